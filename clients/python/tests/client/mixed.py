"""An engine's process that does everything a client can, at random, and compares every byte it reads. It lives until it is killed.

What a key's value is follows from key and version: eight bytes each of both, then a piece of common noise. A key is written by one
of the processes and read by all. Board, in memory that outlives them all, has the versions that reads may find.
"""

import ctypes
import mmap
import os
import random
import struct
import time

import numpy as np
from rank import Client  # which finds cascade_kv

from cascade_kv import ops
from cascade_kv.resp import head, keys_bytes, words
from cascade_kv.staging import Stages

KEYS = 48  # of each process
SLOT = 256 << 10
SLOTS = 32
SIZES = (16, 17, 4096, 42 << 10, 70_000, SLOT)
NS = "mixed"
KINDS = ("put", "delete", "get", "get_into", "view", "store", "load", "store job", "load job", "stage", "stage left", "pin", "ask")
_NOISE = np.random.default_rng(0).integers(0, 256, 4 << 20, dtype=np.uint8)


def size_of(key):
    return SIZES[key % len(SIZES)]


def value_of(key, version):
    """The bytes of a version of a key."""
    size = size_of(key)
    at = (key * 7919 + version * 104_729) % (len(_NOISE) - size)
    out = _NOISE[at : at + size].copy()
    out[:16] = np.frombuffer(struct.pack("<QQ", key, version), dtype=np.uint8)
    return out


class Board:
    """What all processes know: for each key the least version that a read may find and the last one written; what was done; what was wrong."""

    def __init__(self, processes):
        numbers = processes * KEYS
        self._map = mmap.mmap(-1, 8 * (2 * numbers + 2 * len(KINDS)))
        everything = np.frombuffer(self._map, dtype=np.uint64)
        self.least, self.last = everything[:numbers], everything[numbers : 2 * numbers]
        self.done, self.hits = everything[2 * numbers : -len(KINDS)], everything[-len(KINDS) :]
        self._read, self._write = os.pipe()
        os.set_blocking(self._read, False)

    def tell(self, text):
        """Something that must not be. At most a line that goes into a pipe whole."""
        os.write(self._write, text.replace("\n", " | ")[-1000:].encode() + b"\n")

    def told(self):
        try:
            return os.read(self._read, 1 << 16).decode().splitlines()
        except BlockingIOError:
            return []


class Engine:
    """One life of process `me`."""

    def __init__(self, socket, board, me, processes, seed):
        self.board, self.me, self.rng = board, me, random.Random(seed)
        self.total = processes * KEYS
        # With this timeout no request that was given up is still read by a living rank.
        self.c = Client(socket, timeout=60)
        self.fd = os.memfd_create(f"mixed-{me}-{seed}")
        os.ftruncate(self.fd, SLOT * SLOTS)
        self.pool = np.frombuffer(mmap.mmap(self.fd, SLOT * SLOTS), dtype=np.uint8)
        self.region = self.c.region(fd=self.fd)
        self.stages = Stages(self.c)
        self.jobs, self.next_job = {}, 0  # number to what finishes it
        self.writing, self.slots = set(), set(range(SLOTS))
        self.views = []

    def run(self):
        tasks = [getattr(self, "do_" + kind.replace(" ", "_")) for kind in KINDS]
        misses = 0
        while True:
            i = self.rng.randrange(len(KINDS))
            hits = tasks[i]()
            self.board.done[i] += np.uint64(1)
            self.board.hits[i] += np.uint64(hits)
            self.finish(0)
            misses = 0 if hits else misses + 1
            if misses > 20:  # the rank is away
                time.sleep(0.01)

    # What is right.

    def check(self, how, key, floor, data):
        data = np.frombuffer(data, dtype=np.uint8)
        if len(data) != size_of(key):
            return self.board.tell(f"{how}: key {key} has {len(data)} bytes")
        got, version = struct.unpack("<QQ", data[:16].tobytes())
        if got != key or not np.array_equal(data, value_of(key, version)):
            wrong = np.flatnonzero(data != value_of(key, version)) if got == key else []
            self.board.tell(f"{how}: wrong bytes of key {key}: said to be {got}, version {version}; {len(wrong)} differ, from {wrong[:1]}")
        elif not floor <= version <= self.board.last[key]:
            self.board.tell(f"{how}: key {key} has version {version}, not {floor} to {self.board.last[key]}")

    def some(self):
        return self.rng.randrange(self.total)

    def mine(self, most=1):
        """Keys of this process that no job writes."""
        own = [k for k in range(self.me * KEYS, (self.me + 1) * KEYS) if k not in self.writing]
        return self.rng.sample(own, min(most, len(own)))

    def new(self, key):
        self.board.last[key] += np.uint64(1)
        return int(self.board.last[key])

    def written(self, key, version):
        self.board.least[key] = version

    # Values.

    def do_put(self):
        for key in self.mine():
            version = self.new(key)
            if self.c.put(NS, name(key), value_of(key, version)):
                self.written(key, version)
                return 1
        return 0

    def do_delete(self):
        if self.rng.random() < 0.8:
            return 0
        for key in self.mine():
            version = self.new(key)  # which is never stored
            if self.c.delete(NS, [name(key)]):
                self.written(key, version)
                return 1
        return 0

    def do_get(self):
        key = self.some()
        floor = int(self.board.least[key])
        value = self.c.get(NS, name(key))
        if value is None:
            return 0
        self.check("get", key, floor, value)
        return 1

    def do_get_into(self):
        key = self.some()
        floor, into = int(self.board.least[key]), np.full(SLOT, 0xEE, np.uint8)
        n = self.c.get_into(NS, name(key), into)
        if n < 0:
            return 0
        self.check("get_into", key, floor, into[:n])
        return 1

    # Views: looked at when they come and when they go, at any time after that.

    def do_view(self):
        keys = [self.some() for _ in range(3)]
        floors = [int(self.board.least[k]) for k in keys]
        hits = 0
        for key, floor, view in zip(keys, floors, self.c.views(NS, [name(k) for k in keys])):
            if view is not None:
                self.look("view", key, floor, view)
                self.views.append((key, floor, view))
                hits += 1
        while len(self.views) > 12:
            key, floor, view = self.views.pop(self.rng.randrange(len(self.views)))
            self.look("old view", key, floor, view)
            view.release()
        return hits

    def look(self, how, key, floor, view):
        data = view.array.copy()
        if view.held:  # else the memory belongs to another rank by now
            self.check(how, key, floor, data)

    # Regions.

    def move(self, keys):
        """Slots and their extents for as many of the keys as there are slots."""
        slots = [self.slots.pop() for _ in keys[: len(self.slots)]]
        e = np.zeros((len(slots), 1, 2), dtype=np.uint64)
        for i, s in enumerate(slots):
            e[i, 0] = s * SLOT, size_of(keys[i])
        return keys[: len(slots)], slots, e

    def slot(self, s, key):
        return self.pool[s * SLOT : s * SLOT + size_of(key)]

    def storing(self):
        keys, slots, e = self.move(self.mine(6))
        versions = [self.new(k) for k in keys]
        for key, version, s in zip(keys, versions, slots):
            self.slot(s, key)[:] = value_of(key, version)
        self.writing.update(keys)

        def end(statuses):
            for key, version, s, status in zip(keys, versions, slots, statuses):
                self.writing.discard(key)
                self.slots.add(s)
                if status == 1:
                    self.written(key, version)
            return int(np.sum(statuses == 1))

        return keys, e, end

    def loading(self):
        keys, slots, e = self.move([self.some() for _ in range(6)])
        floors = [int(self.board.least[k]) for k in keys]
        for key, s in zip(keys, slots):
            self.slot(s, key)[:] = 0xEE

        def end(statuses):
            for key, floor, s, status in zip(keys, floors, slots, statuses):
                if status == 1:
                    self.check("load", key, floor, self.slot(s, key))
                self.slots.add(s)
            return int(np.sum(statuses == 1))

        return keys, e, end

    def do_store(self):
        keys, e, end = self.storing()
        return end(self.c.store(NS, self.region, [name(k) for k in keys], e, replace=True))

    def do_load(self):
        keys, e, end = self.loading()
        return end(self.c.load(NS, self.region, [name(k) for k in keys], e))

    def do_store_job(self):
        keys, e, end = self.storing()
        return self.submit(self.c.store, keys, e, end, replace=True)

    def do_load_job(self):
        keys, e, end = self.loading()
        return self.submit(self.c.load, keys, e, end)

    def submit(self, do, keys, e, end, **how):
        self.next_job += 1
        if keys and do(NS, self.region, [name(k) for k in keys], e, job=self.next_job, **how):
            self.jobs[self.next_job] = end
            return 1
        end(np.zeros(len(keys), np.uint8))
        return 0

    def finish(self, wait):
        """Takes what is done, and waits for it when many jobs are under way."""
        for number, statuses in self.c.done(5 if len(self.slots) < 12 else wait):
            if number not in self.jobs:
                self.board.tell(f"job {number} is told, which nobody waits for")
            self.jobs.pop(number)(statuses)

    # The arena.

    def do_stage(self):
        keys = self.mine(2)
        values = [(k, v, value_of(k, v)) for k, v in ((k, self.new(k)) for k in keys)]

        def write(i, address):
            ctypes.memmove(address, values[i][2].ctypes.data, len(values[i][2]))

        stored = self.stages.store(NS, [name(k) for k in keys], [size_of(k) for k in keys], write)
        for (key, version, _), good in zip(values, stored):
            if good:
                self.written(key, version)
        return int(sum(stored))

    def do_stage_left(self):
        """Stages that are never committed: some are aborted, the rest stay until this process is killed."""
        got = self.ask(head(3) + words("CASCADE.STAGE", 5000, 100_000))
        numbers = [s[0] for s in got or [] if s is not None]
        if numbers and self.rng.random() < 0.9:
            self.ask(head(1 + len(numbers)) + words("CASCADE.ABORT", *numbers))
        return len(numbers)

    def do_pin(self):
        keys = [name(self.some()) for _ in range(3)]
        pinned = self.ask(head(2 + len(keys)) + words("CASCADE.PIN", NS) + keys_bytes(keys))
        if self.rng.random() < 0.8:
            self.ask(head(2 + len(keys)) + words("CASCADE.UNPIN", NS) + keys_bytes(keys))
        return pinned or 0

    def ask(self, request):
        def op(state):
            return (yield ops.Request(request))

        return self.c._run(op, None)

    def do_ask(self):
        keys = [name(self.some()) for _ in range(8)]
        found = self.c.contains(NS, keys)
        return int(found.sum()) + self.c.probe(NS, keys).hits


def name(key):
    return b"key-%d" % key


def process(socket, board, me, processes, seed):
    """A child that is an engine; returns its number. It ends only if it is killed, or by an exception, which it tells."""
    child = os.fork()
    if child:
        return child
    try:
        Engine(socket, board, me, processes, seed).run()
    except BaseException as e:
        import traceback

        board.tell("".join(traceback.format_exception(e)))
    os._exit(1)
