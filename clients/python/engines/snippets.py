"""The fenced snippets of a document, pasted: run by a shell as they stand, but for what a machine differs in.

A document's words are for a large machine with a model of its own. So PLACES in the text are put in the place of what they name, and
commands are found first in a folder of stand-ins, which call the real ones with what a small machine needs besides.
"""

import contextlib
import json
import os
import pathlib
import re
import shlex
import socket
import time

from engines import Failed, daemon

SOCKET = "/tmp/cascade-$(id -u)/rank0.sock"  # in documents


def of(document, language):
    """The snippets of a file that are in a language, in order."""
    return re.findall(rf"```{language}\n(.*?)```", document.read_text(), re.S)


class Paste:
    """A folder in which the snippets of a page are run, with a rank that they start; a context manager, at whose end all of it ends.

    places: more of what is replaced in the text, each of which must be in it.
    """

    def __init__(self, work, program, places=None):
        self.work, self.program = work, pathlib.Path(program).resolve()
        self.socket = work / "rank.sock"
        self.places = {SOCKET: str(self.socket), "64GiB": "256MiB", "/lustre/$USER/kv": str(work / "kv"), **(places or {})}
        self.bin = work / "bin"
        self.bin.mkdir()
        self.packages = work / "packages"
        self.log = work / "paste.log"
        self.child = None
        self.arena = pathlib.Path(f"/dev/shm/cascade-{os.getpid()}-{work.name}-paste.arena")
        more = f"--shm-path {shlex.quote(str(self.arena))} --password-file= --admin-listen="
        self.stand_in("cascaded", f'exec {shlex.quote(str(self.program))} "$@" {more}')

    def stand_in(self, command, script):
        path = self.bin / command
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)

    def recorded(self, command):
        """What the last call of a command that only notes its words was given."""
        return (self.work / f"{command}.words").read_text().split("\0")[:-1]

    def record(self, command):
        words = shlex.quote(str(self.work / f"{command}.words"))
        self.stand_in(command, f"""printf '%s\\0' "$@" > {words}""")

    def pip_of(self, home):
        """pip install installs for this page alone, and of the environment's Python."""
        self.stand_in("pip", f'cd {shlex.quote(str(daemon.ROOT))}\nexec {home}/bin/python -m pip "$@" --quiet --no-deps --no-build-isolation '
                             f"--disable-pip-version-check --target {shlex.quote(str(self.packages))}")

    def text(self, snippets):
        text = "\n".join(snippets)
        for was, now in self.places.items():
            if was not in text:
                raise Failed(f"the document does not have {was}")
            text = text.replace(was, now)
        return "set -eu\n" + text

    def start(self, snippets, *, env, found=()):
        """Pastes; found are folders for PATH after the stand-ins."""
        # What the page installs, not what lies in the clone.
        paths = [str(self.packages), *(p for p in env.get("PYTHONPATH", "").split(os.pathsep) if p not in ("", str(daemon.CLIENTS)))]
        env = dict(env, PYTHONPATH=os.pathsep.join(paths),
                   PATH=os.pathsep.join([str(self.bin), *map(str, found), os.environ["PATH"]]), USER="user")
        self.child = daemon.start(["bash", "-c", self.text(snippets)], self.log, env=env, cwd=self.work)
        return self.child

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.child is not None:
            with contextlib.suppress(PermissionError):
                daemon.end(self.child)
            self.await_end_of_rank()
        self.arena.unlink(missing_ok=True)

    def await_end_of_rank(self):
        """The shell may be gone long before the rank, which is of its process group."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.child.pid, 15)
            for _ in range(600):
                os.killpg(self.child.pid, 0)
                time.sleep(0.1)
            os.killpg(self.child.pid, 9)

    def stats(self, seconds=60):
        """The rank's statistics, once it answers."""
        deadline = time.monotonic() + seconds
        while True:
            with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as s:
                s.settimeout(10)
                s.connect(str(self.socket))
                s.sendall(b"CASCADE.STATS\r\n")
                with s.makefile("rb") as answer:
                    return json.loads(answer.read(int(answer.readline()[1:])))
            if time.monotonic() > deadline:
                raise Failed(f"the rank of the document does not answer: {self.said()}")
            time.sleep(0.1)

    def stored(self, seconds=60):
        """Waits until the rank has been given something; returns how many names it has."""
        deadline = time.monotonic() + seconds
        while not (names := self.stats()["names"]):
            if time.monotonic() > deadline:
                raise Failed(f"nothing was stored in the rank of the document: {self.said()}")
            time.sleep(0.2)
        return names

    def said(self):
        return self.log.read_text(errors="replace")[-3000:] if self.log.exists() else ""
