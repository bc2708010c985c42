"""Views that are made by the shared index, without asking: what they show stays what was put, and every one of them ends."""

import asyncio
import gc
import hashlib
import logging
import mmap
import os
import random
import struct
import threading
import time
import unittest

import numpy as np
from rank import MIB, OneRank, Rank, names, until
from test_index import HELPER, right, value
from test_upgrade import upgrade

from cascade_kv import AsyncClient, Client, ops
from cascade_kv import index as index_module
from cascade_kv.errors import Refused
from cascade_kv.link import Request
from cascade_kv.resp import head, words
from cascade_kv.view import Arena

SLOT_0 = 128
ASK, BOUND = 2, 3


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
        out = np.zeros(3, np.uint8)
        self.assertEqual((r.contains("n", ["torn", "whole", "none"], out), out.tolist()), (1, [ASK, 1, 0]))
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


class Watched(OneRank):
    """With a look at what a client holds."""

    shm = "256MiB"  # 4 for the holds of a client

    def setUp(self):
        super().setUp()
        self.asker = Client(self.rank.socket)
        self.asker._holding = lambda: None
        self.addCleanup(self.asker.close)

    def holds(self, client=None):
        """The table of the client's connection."""

        def op(state):
            reply, fd = yield Request(head(2) + words("CASCADE.INDEX", "HOLDS"), wants_fd=True)
            return reply, fd

        reply, fd = (client or self.c)._run(op, (None, None))
        self.assertIsNotNone(fd, "the rank knows no holds")
        with open(fd, "rb") as f:
            return mmap.mmap(f.fileno(), reply[0], mmap.MAP_SHARED, mmap.PROT_READ)

    @staticmethod
    def taken(table):
        """How many are held, their bytes, and what is in the slots that are not 0."""
        n = struct.unpack_from("<I", table, 12)[0]
        return *struct.unpack_from("<QQ", table, 64), [s for s in struct.unpack_from(f"<{n}Q", table, SLOT_0) if s]

    def put(self, n, size=100_000):
        values = [os.urandom(size) for _ in range(n)]
        for i, v in enumerate(values):
            self.assertTrue(self.c.put(self.ns, f"k{i}", v))
        return values

    def churn(self, n=300):
        """So many new blocks of 1 MiB that all room that is free, or becomes free, is written to."""
        for i in range(n):
            self.asker.put(self.ns, f"churn{i}", os.urandom(MIB))


@unittest.skipUnless(HELPER, "the helper is not there")
class Held(Watched):
    def test_without_asking(self):
        """The rank does not run meanwhile."""
        values = self.put(3)
        self.c.view(self.ns, "k0").release()
        self.rank.pause()
        self.addCleanup(self.rank.go_on)
        with self.c.view(self.ns, "k0") as v:
            self.assertEqual((v.array.tobytes(), v.size, len(v), v.tier, v.crc32c), (values[0], 100_000, 100_000, "shm", crc32c(values[0])))
            self.assertFalse(v.array.flags.writeable)
            self.assertTrue(v.held)
        self.assertFalse(v.held)
        with self.assertRaises(ValueError):
            v.array
        v.release()
        self.assertIsNone(self.c.view(self.ns, "none"))
        got = self.c.views(self.ns, ["k2", "none", b"k0", "k2", "k1"])
        self.assertEqual([g and g.array.tobytes() for g in got], [values[2], None, values[0], values[2], values[1]])
        self.rank.go_on()

    def test_at_the_address_that_the_rank_says(self):
        values = self.put(40)
        keys = [f"k{i}" for i in range(40)]
        keys[7] = "none"  # the first so many views are held, what goes beyond the allowance is asked for
        got, told = self.c.views(self.ns, keys), self.asker.views(self.ns, keys)
        count, size, slots = self.taken(self.holds())
        self.assertTrue(0 < count < 40, count)
        self.assertEqual(size, count * 100_000)
        arena, others = self.c._link.state.arena.address, self.asker._link.state.arena.address
        for i, (g, t) in enumerate(zip(got, told)):
            if i == 7:
                self.assertEqual((g, t), (None, None))
                continue
            self.assertEqual(g.array.ctypes.data - arena, t.array.ctypes.data - others)
            self.assertEqual((g.array.tobytes(), g.crc32c, g.tier, g.size), (values[i], t.crc32c, t.tier, t.size))
        self.assertLessEqual(set(slots), {g.array.ctypes.data - arena for g in got if g})

    def test_how_views_end(self):
        self.put(1)
        table = self.holds()
        offset = None

        def held():
            count, size, slots = self.taken(table)
            self.assertEqual((count, size), (len(slots), 100_000 * len(slots)))
            self.assertLessEqual(set(slots), {offset})
            return count

        v = self.c.view(self.ns, "k0")
        offset = v.array.ctypes.data - self.c._link.state.arena.address
        self.assertEqual(held(), 1)
        v.release()
        self.assertEqual(held(), 0)
        v.release()
        with self.c.view(self.ns, "k0"), self.c.view(self.ns, "k0"):
            self.assertEqual(held(), 2)
        self.assertEqual(held(), 0)
        self.c.view(self.ns, "k0")  # nobody looks at it
        gc.collect()
        self.assertEqual(held(), 0)
        part = self.c.view(self.ns, "k0").array[10:20]
        other = part[2:3]
        gc.collect()
        self.assertEqual(held(), 1)
        del part
        gc.collect()
        self.assertEqual(held(), 1)
        del other
        gc.collect()
        self.assertEqual(held(), 0)

    def test_statistics(self):
        self.put(2)
        got = self.c.views(self.ns, ["k0", "k1"])
        before = self.c.stats()["hits"]
        self.assertEqual(self.c.stats()["held"]["views"], 2)
        for _ in range(50):
            self.c.view(self.ns, "k0").release()
        until(lambda: self.c.stats()["hits"] >= before + 50, "50 hits")
        for v in got:
            v.release()
        self.assertEqual(self.c.stats()["held"]["views"], 0)

    def test_all_slots(self):
        """Beyond the slots, too, the rank is asked."""
        self.put(1, 100)
        table = self.holds()
        got = self.c.views(self.ns, ["k0"] * 300)
        self.assertEqual(self.taken(table)[0], 256)
        self.assertTrue(all(v.held for v in got))
        self.assertEqual(len({v.array.ctypes.data for v in got}), 1)
        for v in random.sample(got, 300):
            v.release()
        self.assertEqual(self.taken(table), (0, 0, []))

    def test_bytes_stay(self):
        """Whatever becomes of the names, and of the room around."""
        values = self.put(8)
        got = self.c.views(self.ns, [f"k{i}" for i in range(8)])
        self.assertEqual(self.taken(self.holds())[0], 8)
        self.c.delete(self.ns, ["k0", "k1"])
        self.c.put(self.ns, "k2", os.urandom(100_000))
        self.c.put(self.ns, "k3", os.urandom(10))
        for turn in range(3):
            self.churn()
            for i, v in enumerate(got):
                self.assertEqual(v.array.tobytes(), values[i], (turn, i))
                self.assertTrue(v.held)
            if turn == 0:
                self.c.clear(self.ns)
        for v in got:
            v.release()
        self.churn()
        until(lambda: self.c.stats()["held"]["bytes"] == 0, "nothing is held")

    def test_what_is_let_go_is_room_again(self):
        """Of blocks that went while they were held."""
        for turn in range(100):
            block = os.urandom(3 * MIB)
            self.assertTrue(self.c.put(self.ns, f"turn{turn}", block))
            with self.c.view(self.ns, f"turn{turn}") as v:
                self.c.delete(self.ns, [f"turn{turn}"])
                self.assertEqual(v.array.tobytes(), block)

    def test_a_connection_that_ends(self):
        (block,) = self.put(1)
        c = Client(self.rank.socket)
        v = c.view(self.ns, "k0")
        self.assertEqual(self.taken(self.holds(c))[0], 1)
        array = v.array
        self.assertTrue(v.held)
        self.assertEqual(self.c.stats()["held"]["views"], 1)
        c.close()
        self.assertFalse(v.held)
        until(lambda: self.c.stats()["held"]["views"] == 0, "it ended with its connection")
        self.assertEqual(len(array.tobytes()), 100_000)  # still mapped
        v.release()
        self.assertIsNone(c.view(self.ns, "k0"))
        with Client(self.rank.socket) as other:
            self.assertEqual(other.view(self.ns, "k0").array.tobytes(), block)

    def test_a_forked_child(self):
        (block,) = self.put(1)
        table, v = self.holds(), self.c.view(self.ns, "k0")
        before = self.taken(table)
        self.assertEqual(before[0], 1)
        child = os.fork()
        if child == 0:
            ok = not v.held
            v.release()
            with self.c.view(self.ns, "k0") as own:  # by a connection of its own
                ok = ok and own.held and own.array.tobytes() == block and self.taken(table) == before
                ok = ok and self.taken(self.holds())[0] == 1
            os._exit(0 if ok else 1)
        self.assertEqual(os.waitpid(child, 0)[1], 0)
        self.assertEqual(self.taken(table), before)
        self.assertTrue(v.held)
        self.c.delete(self.ns, ["k0"])
        self.churn()
        self.assertEqual(v.array.tobytes(), block)
        v.release()
        self.assertEqual(self.taken(table)[0], 0)

    def test_threads(self):
        """Views begin and end in several threads; each shows what was put, and none is left."""
        wrong = []

        def work(me):
            try:
                rng = random.Random(me)
                mine = []
                for i in range(400):
                    key, size = f"{me}-{rng.randrange(5)}", rng.choice((100, 5000, 300_000))
                    block = value(key, i, size)
                    assert self.c.put(self.ns, key, block)
                    v = self.c.view(self.ns, key)
                    mine.append((v, block))
                    if len(mine) > 3:
                        v, block = mine.pop(rng.randrange(len(mine)))
                        assert v.array.tobytes() == block, i
                        if rng.random() < 0.5:
                            v.release()
            except BaseException as e:
                wrong.append(e)
                raise

        table = self.holds()
        threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
        for t in threads:
            t.start()
        for t in threads:
            t.join(120)
        self.assertEqual(wrong, [])
        gc.collect()
        self.assertEqual(self.taken(table), (0, 0, []))

    def test_damage_is_a_miss(self):
        """A bit that flips in the arena is noticed by who would hold the block."""
        logging.disable(logging.CRITICAL)
        self.addCleanup(logging.disable, logging.NOTSET)
        self.put(2)
        with self.c.view(self.ns, "k0") as v:
            at = v.array.ctypes.data - self.c._link.state.arena.address
        with open(self.rank.arena, "r+b") as f:
            f.seek(at + 20_000)
            byte = f.read(1)[0]
            f.seek(at + 20_000)
            f.write(bytes([byte ^ 4]))
        self.assertIsNone(self.c.view(self.ns, "k0"))
        self.assertEqual([v is None for v in self.c.views(self.ns, ["k0", "k1"])], [True, False])
        self.assertFalse(self.c.contains(self.ns, ["k0"])[0])
        self.assertEqual(self.taken(self.holds()), (0, 0, []))

    def test_a_rank_that_hangs_up_is_connected_to_again(self):
        """Although its table is in use, by which everything could go on: nobody keeps what such a connection holds."""
        logging.disable(logging.CRITICAL)
        self.addCleanup(logging.disable, logging.NOTSET)
        (block,) = self.put(1)
        v = self.c.view(self.ns, "k0")
        link = self.c._link
        link.end()  # has the rank close it
        until(lambda: link.at_end(0), "it is closed")
        link.state.ended = False
        self.assertFalse(v.held)
        with self.c.view(self.ns, "k0") as again:
            self.assertIsNot(self.c._link, link)
            self.assertTrue(again.held)
            self.assertEqual(again.array.tobytes(), block)


@unittest.skipUnless(HELPER, "the helper is not there")
class Superseded(Watched):
    shm = "64MiB"

    def test_upgrades(self):
        """Another program in the rank's process keeps what is held, and goes on with the same table."""
        values = self.put(4)
        keys = [f"k{i}" for i in range(4)]
        old, got = self.holds(), self.c.views(self.ns, keys)
        link = self.c._link
        self.c.delete(self.ns, keys)
        for turn in range(3):
            self.assertIn(b"version", upgrade(self.rank.socket))
            self.churn(100)
            self.assertEqual([v.array.tobytes() for v in got], values)
            self.assertTrue(all(v.held for v in got))
            self.c.put(self.ns, "k3", values[3])  # its name may have gone
            self.c.view(self.ns, "k3").release()  # asked for, as is the next table then
            with self.c.view(self.ns, "k3") as again:
                self.assertEqual(self.taken(old)[0], 5)
                self.assertEqual(again.array.tobytes(), values[3])
        self.assertIs(self.c._link, link)
        for v in got:
            v.release()
        self.assertEqual(self.taken(old), (0, 0, []))
        self.assertEqual(self.c.stats()["held"]["bytes"], 0)

    def test_a_table_that_is_superseded(self):
        """Another reader goes on with the connection's holds; views that are there stay."""
        (block,) = self.put(1)
        old, v = self.holds(), self.c.view(self.ns, "k0")
        first = self.c._index
        for k in names(25_000):
            self.c.put(self.ns, k, k.encode())
            if not first.alive():
                break
        self.assertFalse(first.alive())
        self.c.view(self.ns, "k0").release()  # asked for, as is another table then
        with self.c.view(self.ns, "k0") as again:
            self.assertIsNot(self.c._index, first)
            self.assertEqual(self.taken(old)[0], 2)
            self.assertEqual(again.array.ctypes.data, v.array.ctypes.data)
        self.assertEqual(self.taken(old)[0], 1)
        self.assertTrue(v.held)
        self.c.delete(self.ns, ["k0"])
        self.churn(100)
        self.assertEqual(v.array.tobytes(), block)
        v.release()
        self.assertEqual(self.taken(old), (0, 0, []))


@unittest.skipUnless(HELPER, "the helper is not there")
class Asynchronous(unittest.IsolatedAsyncioTestCase):
    async def test_the_same(self):
        rank = Rank("256MiB").start()
        self.addCleanup(rank.end)
        async with AsyncClient(rank.socket) as a:
            blocks = [os.urandom(200_000) for _ in range(30)]
            await asyncio.gather(*(a.put("n", f"k{i}", b) for i, b in enumerate(blocks)))
            (await a.view("n", "k0")).release()
            rank.pause()
            try:
                with await a.view("n", "k1") as v:
                    self.assertEqual(v.array.tobytes(), blocks[1])
                    self.assertTrue(v.held)
                self.assertIsNone(await a.view("n", "none"))
                got = await a.views("n", ["k3", "none", "k2"])
                self.assertEqual([v and v.array.tobytes() for v in got], [blocks[3], None, blocks[2]])
                del v, got
            finally:
                rank.go_on()
            got = await a.views("n", [f"k{i}" for i in range(30)])  # beyond what is held without asking
            self.assertEqual([v.array.tobytes() for v in got], blocks)
            self.assertTrue(all(v.held for v in got))
            for v in got:
                v.release()
            self.assertEqual((await a.stats())["held"]["views"], 0)


@unittest.skipUnless(HELPER, "the helper is not there")
class Storm(unittest.TestCase):
    """Views that are kept for a while beside writers that overwrite, delete and evict what they show."""

    SECONDS = float(os.environ.get("CASCADE_STORM_SECONDS", "4"))
    SIZES = (100, 4096, 20_000, 70_001, 120_000)

    def setUp(self):
        logging.disable(logging.CRITICAL)
        self.addCleanup(logging.disable, logging.NOTSET)
        self.keys = [f"key-{i}" for i in range(160)]
        self.wrong, self.hits, self.stop = [], [0, 0], threading.Event()

    def write(self, me):
        rng = random.Random(me)
        with Client(self.rank.socket) as c:
            while not self.stop.is_set():
                key = rng.choice(self.keys)
                if rng.random() < 0.9:
                    c.put("n", key, value(key, rng.randrange(1 << 40), rng.choice(self.SIZES)))
                else:
                    c.delete("n", [key])

    def read(self, me):
        rng = random.Random(100 + me)
        kept = []
        with Client(self.rank.socket) as c:
            while not self.stop.is_set():
                for key, view in zip(some := rng.sample(self.keys, 4), c.views("n", some)):
                    if view is not None:
                        kept.append((key, view, view.array.tobytes()))
                while len(kept) > 12:
                    key, view, first = kept.pop(rng.randrange(len(kept)))
                    last = view.array.tobytes()
                    if view.held:
                        self.hits[me] += 1
                        if not right(key, first) or first != last:
                            self.wrong.append((key, first[:80], last[:80]))
                    view.release()

    def test_every_byte_stays_right(self):
        self.rank = Rank("32MiB").start()
        self.addCleanup(self.rank.end)
        self.run_all(lambda: time.sleep(self.SECONDS))
        with Client(self.rank.socket) as c:
            until(lambda: c.stats()["held"]["bytes"] == 0, "all is given back")
            self.assertTrue(all(self.hits), self.hits)
            block = os.urandom(20 * MIB)  # what was held is room again
            self.assertTrue(c.put("n", "large", block))
            self.assertEqual(c.get("n", "large"), block)

    def test_over_kills(self):
        self.rank = Rank("32MiB").start()
        self.addCleanup(self.rank.end)

        def kill():
            end = time.monotonic() + self.SECONDS
            while not self.wrong and time.monotonic() < end:
                time.sleep(random.uniform(0.05, 0.4))
                self.rank.kill()
                self.rank.start()
            was = list(self.hits)
            until(lambda: self.wrong or all(n > w for n, w in zip(self.hits, was)), "hits again")

        self.run_all(kill)

    def run_all(self, meanwhile):
        def contained(work, me):
            try:
                work(me)
            except BaseException as e:
                self.wrong.append(repr(e))
                raise

        threads = [threading.Thread(target=contained, args=(w, i)) for w in (self.write, self.read) for i in range(2)]
        for t in threads:
            t.start()
        try:
            meanwhile()
        finally:
            self.stop.set()
            for t in threads:
                t.join()
        self.assertEqual(self.wrong, [])


if __name__ == "__main__":
    unittest.main()
