"""A matrix of faults: each step of a load fails in each of its ways under a whole engine, which goes on.

One engine stores prompts. A fresh one, which has nothing of its own, is asked for them while rules are in force in its rank
(CASCADE.FAULTS of a daemon built with the tag faults), and what it answers is compared with what was computed. Its rank has, one after
the other, everything in memory alone; in memory and in segments; next to nothing, but a peer that has everything; and segments alone.
"""

import json
import os
import pathlib
import secrets
import shutil
import time

from engines import Failed, daemon, say
from engines.environment import Missing

# How the engine's rank comes to the blocks: rules, in the order in which they are tried. Late is past the deadline of a fetch.
FETCH_SECONDS = 0.4
LATE = f"wait={2 * FETCH_SECONDS:g}s"
CELLS = {
    "memory": ("lookup error", f"lookup delay {LATE}", "pin error every=3", "copy error every=3", "copy short every=3", "copy flip every=3",
               f"copy delay every=3 {LATE}", f"completion delay {LATE}", "completion error", "completion drop count=1"),
    "both": ("pin error", "copy short every=3", "copy flip every=3"),
    "remote": ("lookup error", f"lookup delay {LATE}", "remote error every=3", f"remote delay {LATE}", "remote short every=3", "remote flip every=3",
               "remote drop every=3"),
    "segment": ("segment error", f"segment delay {LATE}", "segment short every=3", "segment flip every=3", "segment drop every=3"),
}
KEPT = ("memory", "both")  # where what a fault lost can be stored again: all cells have the first prompt
TRIES, SPARE = 3, 4  # of a cell, and prompts for more than one try
SHM, SMALL = 512 << 20, 4 << 20


def built():
    """The daemon with the tag faults, built of this clone."""
    program = daemon.ROOT / "bin" / "faults" / "cascaded"
    if shutil.which("go") is None:
        raise Missing("go is missing, which builds a daemon with faults")
    daemon.run(["go", "build", "-trimpath", "-tags", "faults", "-o", program, "./cmd/cascaded"], timeout=600, what="go build -tags faults",
               env=dict(os.environ, CGO_ENABLED="0"), cwd=daemon.ROOT)
    return program


class Rank(daemon.Server):
    def stored(self):
        """How many blocks it has been given and has."""
        return json.loads(self.ask("CASCADE.STATS"))["names"]


class Ranks:
    """The engine's rank and, for a while, its peer. A context manager; near is the engine's. A fetch may take fetch_seconds."""

    def __init__(self, work, program, fetch_seconds=FETCH_SECONDS):
        self.work, self.program, self.fetch_seconds = work, program, fetch_seconds
        self.socket = work / "near.sock"
        self.arenas = [pathlib.Path(f"/dev/shm/cascade-{os.getpid()}-{work.name}.{i}.arena") for i in range(2)]
        self.near = self.peer = None

    def __enter__(self):
        self.secret = self.work / "secret"
        self.secret.touch(0o600)
        self.secret.write_text(secrets.token_hex(32))
        return self

    def __exit__(self, *_):
        self._end()
        for arena in self.arenas:
            arena.unlink(missing_ok=True)

    def _end(self):
        for server in (self.near, self.peer):
            if server is not None:
                server.stop()
        self.near = self.peer = None

    def _start(self, number, path, arena, shm, *more):
        command = [self.program, "--rank", number, "--job", "faults", "--socket", path, "--listen=", "--shm-bytes", shm, "--shm-path", arena, "--shm-keep",
                   "--lustre-index=off", "--password-file=", "--admin-listen=", "--log-level", "info",
                   "--deadline-fetch", f"{self.fetch_seconds:g}s", *more]
        server = Rank("rank", command, self.work / f"{pathlib.Path(path).stem}.log", path=path)
        server.start()
        return server

    @property
    def _segments(self):
        return "--lustre-dir", self.work / "segments"

    def memory(self):
        """The engine's rank has everything in memory, as it was stored."""
        self._end()
        self.near = self._start(0, self.socket, self.arenas[0], SHM)

    def both(self):
        """The engine's rank has everything in memory and in segments."""
        self._end()
        self.near = self._start(0, self.socket, self.arenas[0], SHM, *self._segments)
        drain(self.near)

    def remote(self):
        """Another rank has everything in memory, and the engine's has room for next to nothing."""
        keys = names(self.near)
        self._end()
        gossip = daemon.free_port()
        peers = ["--peers-fabric", "tcp", "--peers-listen", "127.0.0.1:0", "--peers-secret-file", self.secret, "--peers-munge", "off", "--peers-gossip"]
        self.peer = self._start(0, self.work / "peer.sock", self.arenas[0], SHM, *peers, f"127.0.0.1:{gossip}")
        self.near = self._start(1, self.socket, self.arenas[1], SMALL, *peers, "127.0.0.1:0", "--peers-seeds", f"127.0.0.1:{gossip}")
        deadline = time.monotonic() + 30
        while missing := [k for k in keys if not self.near.ask("CASCADE.STAT", *k)]:
            if time.monotonic() > deadline:
                raise Failed(f"{len(missing)} of {len(keys)} blocks of the peer are not found")
            time.sleep(0.2)

    def segment(self):
        """The engine's rank has segments, as they were at first, and room in memory for next to nothing."""
        self._end()
        saved, segments = self.work / "saved", self.work / "segments"
        if saved.exists():
            shutil.rmtree(segments)
            shutil.copytree(saved, segments, copy_function=os.link)
        else:
            shutil.copytree(segments, saved, copy_function=os.link)
        self.arenas[1].unlink(missing_ok=True)
        self.near = self._start(0, self.socket, self.arenas[1], SMALL, *self._segments)


def drain(rank):
    answer = rank.do("CASCADE.DRAIN", seconds=120)
    if not answer.startswith(b":"):
        raise Failed(f"the rank does not drain: {answer!r}")


def names(rank):
    """Namespace and key of all blocks."""
    found = []
    for space in json.loads(rank.ask("CASCADE.STATS"))["namespaces"]:
        cursor = b"0"
        while True:
            cursor, keys = rank.ask("CASCADE.SCAN", space["name"], cursor, "COUNT", 1000)
            found += [(space["name"], k) for k in keys]
            if cursor == b"0":
                break
    return found


def set_rules(rank, *rules):
    """Puts rules into force, or OFF, and returns what those before have done."""
    answer = rank.ask("CASCADE.FAULTS", *(rules or ("OFF",)))
    if not answer.startswith(b"["):
        raise Failed(f"CASCADE.FAULTS: {answer!r}")
    return json.loads(answer)


def losses(rank):
    return {f"{step}/{reason}": n for step, reasons in json.loads(rank.ask("CASCADE.STATS"))["losses"].items() for reason, n in reasons.items()}


def prompts_of(ways):
    """How many prompts there must be for so many ways to ask."""
    return 1 + SPARE + sum(len(rules) * ways for phase, rules in CELLS.items() if phase not in KEPT)


class Matrix:
    """The cells of one engine.

    engine(number, way): the answer to a prompt, without what the engine has in its own memory, and how much of the prompt came from the
    rank; what did not is stored again. whole is that for all of it. ways: settings of the engine under each of which every cell is tried.
    """

    def __init__(self, ranks, engine, computed, whole, ways=("",)):
        self.ranks, self.engine, self.computed, self.whole, self.ways = ranks, engine, computed, whole, ways
        self.cells, self.wrong = [], []

    def run(self):
        fresh = iter(range(1, len(self.computed)))
        for phase, rules in CELLS.items():
            getattr(self.ranks, phase)()
            for rule in rules:
                for way in self.ways:
                    if rule.startswith("segment drop"):
                        self.ranks.segment()  # a file that is gone took blocks of all prompts along
                    for _ in range(TRIES):
                        self._connect(way)
                        prompt = 0 if phase in KEPT else next(fresh, None)
                        if prompt is None:
                            raise Failed("the engine gives up before it comes to a step, again and again", {"cells": self.cells})
                        if self.cell(phase, rule, way, prompt):
                            break
                    else:
                        self.wrong.append(f"{phase}: {rule} {way}: the engine never came to that step")
            self._connect(way)
        say("\n" + table(self.cells))
        if self.wrong:
            raise Failed(f"{len(self.wrong)} cells of {len(self.cells)} are wrong: {'; '.join(self.wrong)}", {"cells": self.cells})
        return {"cells": self.cells}

    def _connect(self, way):
        """The first prompt is there again: what a fault lost is stored once more, and a client that lost its rank comes back in 2 s."""
        deadline = time.monotonic() + 30
        while True:
            answer, found = self.engine(0, way)
            self._compare(f"after {json.dumps(self.cells[-1:])}, without a fault", 0, answer)
            if found == self.whole:
                return
            if time.monotonic() > deadline:
                raise Failed(f"without a fault {found} of {self.whole} come from the rank: {json.dumps(self.cells[-1:])}", {"cells": self.cells})
            time.sleep(0.3)

    def _counted(self, before, some):
        """What was lost since before. What a client gave up is counted when the step that was late is over."""
        deadline = time.monotonic() + 5
        while True:
            counted = {k: n - before.get(k, 0) for k, n in losses(self.ranks.near).items() if n > before.get(k, 0)}
            if counted or not some or time.monotonic() > deadline:
                return counted
            time.sleep(0.05)

    def _compare(self, what, prompt, answer):
        if answer != self.computed[prompt]:
            self.wrong.append(what)
            return 1
        return 0

    def cell(self, phase, rule, way, prompt):
        """Whether the fault happened: on a busy machine an engine may give up before it asks."""
        rank = self.ranks.near
        before = losses(rank)
        set_rules(rank, rule)
        began = time.monotonic()
        answer, found = self.engine(prompt, way)
        seconds = time.monotonic() - began
        (fired,) = set_rules(rank)
        counted = self._counted(before, found < self.whole and fired["fired"])
        step, kind = rule.split()[:2]
        what = f"{phase}: {rule} {way}".strip()
        cell = {"phase": phase, "step": step, "fault": kind, "rule": rule, "way": way, "fired": fired["fired"], "found": found, "of": self.whole,
                "lost": counted, "wrong": self._compare(what, prompt, answer), "seconds": round(seconds, 2)}
        say(json.dumps(cell))
        self._compare(f"{what}, and then without", prompt, self.engine(prompt, way)[0])
        if not fired["fired"]:
            return False
        self.cells.append(cell)
        if found < self.whole and not counted:
            self.wrong.append(f"{what}: {found} of {self.whole} found and no loss counted")
        return True


def table(cells):
    """Markdown."""
    rows = [("blocks are in", "step", "fault", "policy", "fired", "found", "lost", "wrong"), ("---",) * 8]
    for c in cells:
        lost = ", ".join(f"{n} {k}" for k, n in sorted(c["lost"].items())) or "-"
        rows.append((c["phase"], c["step"], c["fault"], c["way"] or "-", str(c["fired"]), f"{c['found']} of {c['of']}", lost, str(c["wrong"])))
    widths = [max(map(len, column)) for column in zip(*rows)]
    return "\n".join("| " + " | ".join(cell.ljust(w) for cell, w in zip(row, widths)) + " |" for row in rows)
