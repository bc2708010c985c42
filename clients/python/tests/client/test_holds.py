"""Holds of blocks and entries of the index, on tables that are written by hand: what is held, and what the rank is asked for."""

import hashlib
import itertools
import mmap
import os
import random
import struct
import threading
import time
import unittest

import numpy as np
from rank import MIB
from test_index import HELPER

from cascade_kv import ops
from cascade_kv import index as index_module
from cascade_kv.errors import Refused
from cascade_kv.view import Arena

SLOT_0 = 128
BOUND = 3


def crc32c(data):
    """Of bytes, by a way of its own."""
    crc = 0xFFFFFFFF
    for x in data:
        crc = crc32c.table[(crc ^ x) & 255] ^ crc >> 8
    return crc ^ 0xFFFFFFFF


def _table():
    for i in range(256):
        for _ in range(8):
            i = i >> 1 ^ (0x82F63B78 if i & 1 else 0)
        yield i


crc32c.table = list(_table())


class Memory:
    """A memfd of our own."""

    def __init__(self, size):
        self.fd = os.memfd_create("made")
        os.ftruncate(self.fd, size)
        self.map = mmap.mmap(self.fd, size)

    def put(self, form, at, *values):
        struct.pack_into("<" + form, self.map, at, *values)

    def get(self, form, at):
        return struct.unpack_from("<" + form, self.map, at)[0]


class Holds(Memory):
    def __init__(self, slots=4, allowance=MIB):
        super().__init__(SLOT_0 + 8 * slots)
        self.slots = slots
        self.put("8sIIQ", 0, b"CASCHLD1", 1, slots, allowance)

    def all(self):
        """Taken, bytes, and what is in each slot."""
        return self.get("Q", 64), self.get("Q", 72), [self.get("Q", SLOT_0 + 8 * i) for i in range(self.slots)]


class Made:
    """A table of one bucket and an arena, as a rank makes them, written by hand."""

    DATA = 8192
    RECORDS = DATA + 4096
    NS = "n"

    def __init__(self, arena=4 * MIB):
        self.table = Memory(4096 + 64 * 9)
        self.table.put("8sIIQQQ", 0, b"CASCIDX1", 1, 1, 4096 + 64 * 9, 1, arena)
        self.table.put("III", 64, os.getpid(), 1, 1)
        self.table.put("16s16s", 128, b"shm", b"lustre")
        self.file = Memory(arena)
        self.file.put("Q", 32, self.DATA)
        self.arena = Arena(self.file.fd, arena)
        self.names = 0

    def add(self, key, block, at, kind=1, expires=0, seq=2):
        """A name in the arena; returns the places of its entry and of its record."""
        i, self.names = self.names, self.names + 1
        mark = hashlib.sha256(struct.pack("<H", 1) + self.NS.encode() + bytes(61) + key.encode()).digest()[:16]
        crc, entry, record = crc32c(block), 4096 + 64 + 64 * i, self.RECORDS + 128 * i
        self.file.map[at : at + len(block)] = block
        self.file.put("IIQ32xQQI", record, 0x314B4243, 0, 100 + i, at - self.DATA, len(block), crc)
        self.table.put("IHH16sqIIQQQ", entry, seq, kind, 1, mark, expires, len(block), crc, at, record, 100 + i)
        self.table.put("Q", 4096 + 8 * i, struct.unpack("<Q", mark[:8])[0])
        return entry, record

    def reader(self, holds=None):
        r = index_module._fast.Reader(self.table.fd, -1, self.arena.address, self.arena.size, self.arena)
        if holds is not None:
            r.take_holds(holds.fd)
        return r


class TornEntries(unittest.TestCase):
    """An entry whose writer has lost its core in the middle is one of a name that is there."""

    def both(self, reader):
        made = Made()
        made.add("torn", b"value", 64 << 10, seq=3)
        made.add("whole", b"value", 128 << 10)
        r = reader(made)
        out = np.zeros(2, np.uint8)
        self.assertFalse(r.contains("n", ["whole", "torn"], out))
        self.assertEqual((r.contains("n", ["whole", "none"], out), out.tolist()), (True, [1, 0]))
        self.assertIsNone(r.probe("n", ["whole", "torn"]))
        self.assertIs(r.get("n", "torn"), False)
        self.assertEqual(r.get_into("n", "torn", bytearray(9), False), -2)
        self.assertIs(r.hold("n", "torn"), False)
        self.assertIsNone(r.hold("n", "none"))

    def test_in_python(self):
        self.both(lambda made: index_module.SlowReader(made.table.fd))

    @unittest.skipUnless(HELPER, "the helper is not there")
    def test_by_the_helper(self):
        self.both(Made.reader)


@unittest.skipUnless(HELPER, "the helper is not there")
class Helper(unittest.TestCase):
    """What is written to the table of holds, and what is not held."""

    AT = 64 << 10

    def setUp(self):
        self.made, self.holds = Made(), Holds()
        self.block = os.urandom(5000)
        self.entry, self.record = self.made.add("k", self.block, self.AT)
        self.r = self.made.reader(self.holds)

    def none_held(self):
        self.assertEqual(self.holds.all(), (0, 0, [0] * 4))

    def test_held_and_let_go(self):
        number, *what = self.r.hold("n", "k")
        self.assertEqual(what, [self.AT, 5000, crc32c(self.block), 1])
        self.assertEqual(self.holds.all(), (1, 5000, [self.AT, 0, 0, 0]))
        again = self.r.hold(b"n", b"k")[0]
        self.assertEqual(self.holds.all(), (2, 10_000, [self.AT, self.AT, 0, 0]))
        self.r.let_go(number)
        self.assertEqual(self.holds.all(), (1, 5000, [0, self.AT, 0, 0]))
        third = self.r.hold("n", "k")[0]
        self.r.let_go(number)  # it has ended: whatever has its slot by now stays
        self.assertEqual(self.holds.all(), (2, 10_000, [self.AT, self.AT, 0, 0]))
        self.r.let_go(third), self.r.let_go(again), self.r.let_go(again), self.r.let_go(0), self.r.let_go(1 << 63)
        self.none_held()

    def test_without_holds(self):
        r = self.made.reader()
        self.assertIs(r.hold("n", "k"), False)
        self.assertIsNone(r.hold("n", "none"))
        r.let_go(1)
        self.none_held()

    def test_what_is_not_held(self):
        now = time.time_ns()
        for what, memory, form, at, bad in (
            ("record retracted", self.made.file, "I", self.record, 0),
            ("another block there", self.made.file, "Q", self.record + 8, 7),
            ("the block elsewhere", self.made.file, "Q", self.record + 48, 0),
            ("another size", self.made.file, "Q", self.record + 56, 4999),
            ("blocks are moved", self.made.file, "I", 56, 1),
            ("a bit flipped", self.made.file, "B", self.AT + 3000, self.block[3000] ^ 1),
            ("another CRC", self.made.table, "I", self.entry + 36, 1),
            ("not in the arena", self.made.table, "H", self.entry + 4, 2),
            ("bound to another name", self.made.table, "H", self.entry + 4, BOUND),
            ("being written", self.made.table, "I", self.entry, 5),
            ("beyond the arena", self.made.table, "Q", self.entry + 40, 4 * MIB - 4999),
            ("the rank is killed", self.made.table, "I", 64, 1 << 30 | 7),
            ("the table superseded", self.made.table, "I", 68, 2),
            ("may be elsewhere", self.made.table, "Q", 4096, 7),
            ("ended, here", self.made.table, "q", self.entry + 24, now - 1),
            ("beyond the allowance", self.holds, "Q", 16, 4999),
            ("the connection ended", self.holds, "I", 24, 1),
        ):
            with self.subTest(what):
                good, final = memory.get(form, at), 0 if what in ("may be elsewhere", "ended, here") else 1
                memory.put(form, at, bad)
                self.made.table.put("I", 72, final)
                self.assertIs(self.r.hold("n", "k"), False)
                self.none_held()
                self.made.table.put("I", 72, 1)
                memory.put(form, at, good)
                number, *_ = self.r.hold("n", "k")
                self.r.let_go(number)
                self.none_held()

    def test_a_block_that_was_moved_away_and_back(self):
        """While it was copied others may have been where it is: its record is the same but for the version."""
        made, big, stop = Made(8 * MIB), os.urandom(4 * MIB), threading.Event()
        _, record = made.add("big", big, MIB)
        r = made.reader()

        def move():
            for version in itertools.count():
                if stop.is_set():
                    return
                made.file.put("I", record + 68, version % (1 << 32))

        for what, get in (("get", lambda: r.get("n", "big")), ("get_into", lambda: r.get_into("n", "big", bytearray(len(big)), False))):
            with self.subTest(what):
                whole = big if what == "get" else len(big)
                self.assertEqual(get(), whole)
                stop.clear()
                mover = threading.Thread(target=move)
                mover.start()
                try:
                    self.assertTrue(any(get() in (False, -2) for _ in range(1000)))
                finally:
                    stop.set()
                    mover.join()
                self.assertEqual(get(), whole)

    def test_an_empty_block(self):
        self.made.add("empty", b"", self.AT)
        self.assertIs(self.r.hold("n", "empty"), False)
        self.none_held()

    def test_slots_and_bytes_are_the_connections(self):
        """Two readers of one connection; what one has taken the other has not."""
        other = self.made.reader(self.holds)
        mine, others = self.r.hold("n", "k")[0], other.hold("n", "k")[0]
        self.assertEqual(self.holds.all(), (2, 10_000, [self.AT, self.AT, 0, 0]))
        more = [r.hold("n", "k")[0] for r in (self.r, other)]
        self.assertIs(other.hold("n", "k"), False)  # no slot
        self.assertEqual(self.holds.all(), (4, 20_000, [self.AT] * 4))
        other.let_go(others)
        self.holds.put("Q", 16, 19_999)
        self.assertIs(self.r.hold("n", "k"), False)  # too much
        self.assertEqual(self.holds.all()[:2], (3, 15_000))
        self.holds.put("Q", 16, 20_000)
        more[0:0] = [self.r.hold("n", "k")[0]]
        self.r.let_go(mine), self.r.let_go(more[0]), self.r.let_go(more[1]), other.let_go(more[2])
        self.none_held()

    def test_a_child_neither_holds_nor_lets_go(self):
        number, *_ = self.r.hold("n", "k")
        child = os.fork()
        if child == 0:
            self.r.let_go(number)
            os._exit(0 if self.r.hold("n", "k") is False else 1)
        self.assertEqual(os.waitpid(child, 0)[1], 0)
        self.assertEqual(self.holds.all(), (1, 5000, [self.AT, 0, 0, 0]))
        self.r.let_go(number)
        self.none_held()

    def test_checksums(self):
        """Of each size, from each place: a block is held only if the CRC of its bytes, computed in place, is that of the entry."""
        rng = random.Random(5)
        holds = Holds(allowance=4 * MIB)
        sizes = [*range(1, 20), *(rng.randrange(20, 6000) for _ in range(60)), 255, 256, 257, 2047, 2048, 2049, 262_143, 262_144, 300_001]
        sizes += [k * 4864 + more for k in (1, 2, 3) for more in (-1, 0, 511, 512, 513)]  # what is checksummed at a time, and what is left
        sizes += [rng.randrange(6000, 40_000) for _ in range(20)]
        for size in sizes:
            made, at = Made(), self.AT + rng.randrange(200)
            block = rng.randbytes(size)
            made.add("k", block, at)
            r = made.reader(holds)
            number, *what = r.hold("n", "k")
            self.assertEqual(what, [at, size, crc32c(block), 1])
            r.let_go(number)
            bit = rng.randrange(8 * size)
            made.file.map[at + bit // 8] ^= 1 << bit % 8
            self.assertIs(r.hold("n", "k"), False)
        self.assertEqual(holds.all(), (0, 0, [0] * 4))

    def test_files_that_are_no_holds(self):
        r = self.made.reader()
        start = b"CASCHLD1" + bytes([1, 0, 0, 0])
        for content in (b"", bytes(4096), b"CASCHLD1" * 16, b"CASCHLD1" + bytes(500), start + bytes(500), start + b"\xff" * 500):
            none = Memory(4096)
            os.ftruncate(none.fd, len(content))
            os.pwrite(none.fd, content, 0)
            with self.assertRaises(ValueError):
                r.take_holds(none.fd)
        for none in (-1, 1 << 20):
            with self.assertRaises((OSError, ValueError)):
                r.take_holds(none)
        r.take_holds(self.holds.fd)
        with self.assertRaises(ValueError):
            r.take_holds(self.holds.fd)
        r.let_go(r.hold("n", "k")[0])

    def test_a_refusal_is_final(self):
        made = Made()
        made.add("k", b"v", 64 << 10)
        index = index_module.open_index(made.table.fd, -1, made.arena)
        self.assertTrue(index.wants_holds)
        asking = ops.index_holds(None, index)
        self.assertIn(b"HOLDS", next(asking).data)
        with self.assertRaises(StopIteration):
            asking.throw(Refused("ERR syntax error"))
        self.assertFalse(index.wants_holds)
        self.assertIs(index.hold("n", "k"), False)


if __name__ == "__main__":
    unittest.main()
