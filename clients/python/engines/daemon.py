"""Programs that proofs start: servers of the Redis protocol, and what runs to its end."""

import contextlib
import http.client
import os
import pathlib
import random
import shutil
import signal
import socket
import subprocess
import time
import urllib.request

from engines import Failed, say

ROOT = pathlib.Path(__file__).resolve().parents[3]
CLIENTS = ROOT / "clients" / "python"
START_SECONDS = 60


def check(holds, text):
    if not holds:
        raise Failed(text)
    say(f"ok: {text}")


_given = set()


def free_port(beside=0):
    """A port that nobody has, nor so many after it, told once. The kernel gives none of this range to whoever asks for any port, as
    parts of engines do.
    """
    low = int(pathlib.Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    while True:
        first = random.randrange(10000, max(low, 20000) - beside)
        ports = set(range(first, first + beside + 1))
        with contextlib.suppress(OSError), contextlib.ExitStack() as held:
            for port in ports:
                held.enter_context(socket.create_server(("127.0.0.1", port)))
            if not ports & _given:
                _given.update(ports)
                return first


def redis_server(work, port):
    found = shutil.which("redis-server")
    if not found:
        raise Failed("redis-server is missing: apt-get install redis-server")
    command = [found, "--bind", "127.0.0.1", "--port", str(port), "--save", "", "--appendonly", "no", "--dir", str(work)]
    return Server("redis", command, work / "redis.log", port=port)


class Server:
    """A Redis-protocol server as a child process; a context manager. It may be killed and started again."""

    def __init__(self, name, command, log, *, port=None, path=None):
        self.name, self.command, self.log, self.port, self.path = name, [str(w) for w in command], log, port, path
        self.child = None

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self.stop()

    def start(self):
        env = {k: v for k, v in os.environ.items() if not k.startswith("CASCADE_")}
        with self.log.open("ab") as out:
            self.child = subprocess.Popen(self.command, stdout=out, stderr=out, env=env)
        deadline = time.monotonic() + START_SECONDS
        while True:
            with contextlib.suppress(OSError):
                if self.do("PING").startswith(b"+PONG"):
                    return
            if self.child.poll() is not None or time.monotonic() > deadline:
                self.stop()
                raise Failed(f"{self.name} does not answer: {self.log.read_text(errors='replace')[-2000:]}")
            time.sleep(0.05)

    def kill(self):
        self.child.send_signal(signal.SIGKILL)
        self.child.wait()

    def alive(self):
        return self.child.poll() is None

    def stop(self):
        if self.alive():
            self.child.send_signal(signal.SIGTERM)
            try:
                self.child.wait(30)
            except subprocess.TimeoutExpired:
                self.kill()

    def do(self, *words, seconds=10):
        """One command on a connection of its own; the start of the answer."""
        with self._asked(words, seconds) as s:
            return s.recv(1 << 16)

    def ask(self, *words, seconds=10):
        """The answer to one command: bytes, None, or a list of such."""
        with self._asked(words, seconds) as s, s.makefile("rb") as answer:
            return _reply(answer)

    @contextlib.contextmanager
    def _asked(self, words, seconds):
        request = b"*%d\r\n" % len(words)
        for w in words:
            b = w if isinstance(w, bytes) else str(w).encode()
            request += b"$%d\r\n%s\r\n" % (len(b), b)
        with socket.socket(socket.AF_UNIX if self.path else socket.AF_INET) as s:
            s.settimeout(seconds)
            s.connect(str(self.path) if self.path else ("127.0.0.1", self.port))
            s.sendall(request)
            yield s


def _reply(answer):
    line = answer.readline()
    kind, rest = line[:1], line[1:-2]
    if kind == b"*":
        return [_reply(answer) for _ in range(int(rest))]
    if kind != b"$":
        return rest
    return None if rest == b"-1" else answer.read(int(rest) + 2)[:-2]


def engine_env(**more):
    """The environment of an engine: it finds cascade_kv and nothing of the caller's."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(("CASCADE_", "PYTHON"))}
    env["PYTHONPATH"] = str(CLIENTS)
    env.update(more)
    return env


def run(command, *, timeout, what, env=None, cwd=None):
    """Standard output of a program that must end well."""
    try:
        done = subprocess.run([str(w) for w in command], capture_output=True, text=True, timeout=timeout, env=env, cwd=cwd, stdin=subprocess.DEVNULL)
    except subprocess.TimeoutExpired as e:
        raise Failed(f"{what} did not end within {timeout} s: {str(e.stdout)[-2000:]} {str(e.stderr)[-2000:]}") from None
    if done.returncode != 0:
        raise Failed(f"{what} ended with {done.returncode}: {(done.stdout + done.stderr)[-4000:]}")
    return done.stdout


def start(command, log, *, env, cwd):
    """An engine's server as a child process with a session of its own, for the processes that it starts; end() ends them all."""
    with log.open("ab") as out:
        return subprocess.Popen([str(w) for w in command], stdout=out, stderr=out, stdin=subprocess.DEVNULL, env=env, cwd=cwd, start_new_session=True)


def ready(child, url, log, *, seconds, what, patience=5.0):
    """Returns when the server says at url that all is well."""
    deadline = time.monotonic() + seconds
    while True:
        with contextlib.suppress(OSError, http.client.HTTPException), urllib.request.urlopen(url, timeout=patience):
            return
        if child.poll() is not None or time.monotonic() > deadline:
            raise Failed(f"{what} is not ready: {log.read_text(errors='replace')[-3000:]}")
        time.sleep(0.5)


def end(child, seconds=60):
    """Ends a server of start, by force if it takes too long."""
    for how, wait in ((signal.SIGTERM, seconds), (signal.SIGKILL, 10)):
        try:
            os.killpg(child.pid, how)
            child.wait(wait)
            return
        except ProcessLookupError:
            return
        except subprocess.TimeoutExpired:
            continue
