"""What the protocol tests share: where the rank is, a raw connection, and a clean way to be skipped.

CASCADE_SOCKET  path of the rank's unix socket
CASCADE_PORT    its TCP port on 127.0.0.1
A test program ends with 0 (passed), 1 (failed) or 77 (cannot run here; the reason is the last line it prints).
"""

import json
import os
import socket
import sys
import unittest
import uuid

SKIP = 77
ANSWER_SECONDS = 5  # a rank answers within this time, always


def skip(reason):
    print(f"SKIP: {reason}")
    sys.exit(SKIP)


def where():
    """The socket path and the port, or the end of the program."""
    missing = [v for v in ("CASCADE_SOCKET", "CASCADE_PORT") if not os.environ.get(v)]
    if missing:
        skip(f"{' and '.join(missing)} must name a running rank")
    return os.environ["CASCADE_SOCKET"], int(os.environ["CASCADE_PORT"])


def unique(prefix="t"):
    return f"{prefix}-{uuid.uuid4().hex}"


def pattern(seed, size):
    """size bytes that differ with seed and contain every byte value, CR and LF included."""
    block = bytes((seed * 31 + i * 7 + (i >> 8)) & 255 for i in range(4093))
    return (block * (size // len(block) + 1))[:size]


class ServerError(Exception):
    pass


class Raw:
    """One connection that sends exact bytes and reads either exactly counted or parsed replies."""

    def __init__(self, timeout=ANSWER_SECONDS, unix=False):
        path, port = where()
        if unix:
            self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            self.sock.settimeout(timeout)
            self.sock.connect(path)
        else:
            self.sock = socket.create_connection(("127.0.0.1", port), timeout)
            self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.buf = b""

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        self.sock.close()

    @staticmethod
    def encode(*args):
        out = [b"*%d\r\n" % len(args)]
        for a in args:
            a = a.encode() if isinstance(a, str) else a
            out += [b"$%d\r\n" % len(a), a, b"\r\n"]
        return out

    def send(self, *args):
        self.sock.sendall(b"".join(self.encode(*args)))

    def send_bytes(self, data):
        self.sock.sendall(data)

    def exactly(self, n):
        """n bytes, from the front of what the server sends."""
        out = bytearray(self.buf[:n])
        self.buf = self.buf[n:]
        while len(out) < n:
            got = self.sock.recv(min(n - len(out), 1 << 20))
            if not got:
                raise EOFError(f"closed after {len(out)} of {n} bytes: {bytes(out[:80])!r}")
            out += got
        return bytes(out)

    def line(self):
        while b"\r\n" not in self.buf:
            got = self.sock.recv(1 << 16)
            if not got:
                raise EOFError(f"closed after {self.buf[:80]!r}")
            self.buf += got
        head, self.buf = self.buf.split(b"\r\n", 1)
        return head

    def silent(self, seconds=0.05):
        """Whether nothing is left unread; a reply that is too long shows here."""
        if self.buf:
            return False
        old = self.sock.gettimeout()
        self.sock.settimeout(seconds)
        try:
            self.buf = self.sock.recv(1 << 16)
            return False
        except TimeoutError:
            return True
        finally:
            self.sock.settimeout(old)

    def reply(self):
        """One parsed reply; (kind, value) for the types that only RESP3 has."""
        head = self.line()
        kind, body = head[:1], head[1:]
        if kind == b"+":
            return body.decode()
        if kind == b"-":
            raise ServerError(body.decode())
        if kind == b":":
            return int(body)
        if kind == b"$":
            n = int(body)
            return None if n < 0 else self.exactly(n + 2)[:-2]
        if kind == b"*":
            return None if int(body) < 0 else [self.reply() for _ in range(int(body))]
        if kind == b"_":
            return ("null", body)
        if kind == b"%":
            return ("map", {self.reply(): self.reply() for _ in range(int(body))})
        if kind == b"=":
            return ("verbatim", self.exactly(int(body) + 2)[:-2])
        if kind in b"#,(":
            return (kind.decode(), body)
        raise AssertionError(f"reply of an unknown type: {head!r}")

    def do(self, *args):
        self.send(*args)
        return self.reply()


def rank_stats():
    """CASCADE.STATS as a dict; None when the server is no rank (redis-server, a stand-in)."""
    with Raw() as c:
        try:
            return json.loads(c.do("CASCADE.STATS"))
        except ServerError:
            return None


def run(module_name):
    """Runs the tests of a module; exit status as said above."""
    where()
    result = unittest.main(module=module_name, exit=False, verbosity=2, argv=sys.argv).result
    for test, reason in result.skipped:
        print(f"SKIP: {test}: {reason}")
    sys.exit(0 if result.wasSuccessful() else 1)
