"""The shared index: what it answers is what the rank answers, and what it copies is what was put, whatever happens meanwhile."""

import ctypes
import logging
import os
import random
import shutil
import signal
import struct
import sysconfig
import unittest
from unittest import mock

import numpy as np
from rank import OneRank, Rank, names, until
from storm import Storm, right, value

from cascade_kv import AsyncClient, Client, Probe
from cascade_kv import index as index_module

HELPER = index_module._fast is not None
SIZES = (0, 1, 100, 1000, 4096, 10_000, 43_008, 70_001, 300_000)


def by_socket(rank):
    """A client that asks."""
    c = Client(rank.socket)
    c._new_index = lambda: None
    return c


def by_table(rank):
    """A client that reads the table with what it has."""
    return Client(rank.socket)


def in_python(rank):
    """A client that reads it without the helper."""
    c = Client(rank.socket)
    with mock.patch.object(index_module, "_fast", None):
        c.contains("first", ["x"])
    assert isinstance(c._index._reader, index_module.SlowReader)
    return c


class Answers(OneRank):
    shm = "64MiB"

    def setUp(self):
        super().setUp()
        self.asker = by_socket(self.rank)
        self.addCleanup(self.asker.close)

    def test_the_helper_is_there_where_it_can_be_built(self):
        headers = os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h"))
        if not HELPER and shutil.which("cc") and headers and os.environ.get("CI") == "true":
            self.fail("cascade_kv._fast was not built: scripts/client-helper")

    def both(self, keys):
        """Each question asked both ways."""
        self.assertEqual(self.c.contains(self.ns, keys).tolist(), self.asker.contains(self.ns, keys).tolist())
        known, asked = self.c.probe(self.ns, keys), self.asker.probe(self.ns, keys)
        self.assertEqual(known, asked)
        self.assertEqual(known.load_seconds > 0, asked.load_seconds > 0)

    def test_without_asking(self):
        """Hits and misses come from shared memory: the rank does not run meanwhile."""
        for size in SIZES:
            self.c.put(self.ns, f"k{size}", value("k", 1, size))
        keys = [f"k{size}" for size in SIZES]
        self.assertTrue(self.c.contains(self.ns, keys).all())
        self.rank.pause()
        self.addCleanup(self.rank.go_on)
        self.assertEqual(self.c.contains(self.ns, [*keys, "none"]).tolist(), [True] * len(keys) + [False])
        self.assertEqual(self.c.contains(self.ns + "x", keys).tolist(), [False] * len(keys))
        self.assertEqual(self.c.probe(self.ns, [*keys, "none"]), Probe(len(keys), sum(SIZES), {"shm": len(keys)}))
        self.assertIsNone(self.c.get(self.ns, "none"))
        self.assertEqual(self.c.get_into(self.ns, "none", bytearray(10)), -1)
        if HELPER:
            for size in SIZES:
                dst = bytearray(size + 7)
                self.assertEqual(self.c.get(self.ns, f"k{size}"), value("k", 1, size))
                self.assertEqual(self.c.get_into(self.ns, f"k{size}".encode(), memoryview(dst)[3:]), size)
                self.assertEqual(dst, bytes(3) + value("k", 1, size) + bytes(4))
        self.rank.go_on()

    def test_as_the_rank_answers(self):
        keys = ["text", "ünïcode", b"bytes", b"\x00\r\n", "x" * 1024, "gone", "late", "deep"]
        for i, k in enumerate(keys):
            self.c.put(self.ns, k, b"v" * i, parent=keys[i - 1] if i else None)
        self.both(keys)
        self.c.delete(self.ns, ["gone"])
        self.both(keys)
        self.c.put(self.ns, "gone", b"again")
        self.both(keys)
        self.c._run(lambda s: self.expire("late", 50), None)
        until(lambda: not self.asker.contains(self.ns, ["late"])[0], "it ended")
        self.both(keys)
        self.assertIsNone(self.c.get(self.ns, "late"))
        self.c.clear(self.ns)
        self.both(keys)
        for odd in (["", "a"], ["y" * 1025], [], [b"a"] * 20):
            self.both(odd)

    def expire(self, key, ms):
        from cascade_kv.link import Request
        from cascade_kv.resp import head, words

        yield Request(head(7) + words("CASCADE.PUT", key, b"v", "NS", self.ns, "PX", ms))

    def test_bound_names_are_asked_for(self):
        from cascade_kv.link import Request
        from cascade_kv.resp import head, words

        def bound(state):
            yield Request(head(8) + words("CASCADE.PUT", "meta", b"m", "NS", self.ns, "PARENT", "data", "BOUND"))

        self.c._run(bound, None)
        self.both(["meta", "data"])
        self.assertIsNone(self.c.get(self.ns, "meta"))
        self.c.put(self.ns, "data", b"d")
        self.both(["meta", "data"])
        self.assertEqual(self.c.get(self.ns, "meta"), b"m")

    def test_hits_are_told(self):
        """What is read without asking counts as hits, after the next sweep at the latest."""
        self.c.put(self.ns, "k", b"v")
        before = self.c.stats()["hits"]
        for _ in range(100):
            self.assertEqual(self.c.get(self.ns, "k"), b"v")
        until(lambda: self.c.stats()["hits"] >= before + 100, "100 hits")

    def looked(self):
        """What the rank has counted of this test's namespace."""
        of = [n for n in self.c.stats()["namespaces"] if n["name"] == self.ns]
        return [of[0][k] for k in ("lookups", "found", "hits", "misses")] if of else [0] * 4

    def test_looks_are_told(self):
        """What is looked for without asking is counted as what the rank is asked, whoever reads the table."""
        for k in "ab":
            self.c.put(self.ns, k, b"v")

        def look(c):
            self.assertEqual(c.contains(self.ns, ["a", "b", "x"]).tolist(), [1, 1, 0])
            self.assertEqual(c.probe(self.ns, ["a", "x", "b"]).hits, 1)
            self.assertEqual(c.probe(self.ns, ["a", "b"]).hits, 2)
            for k in ("x", "y"):
                self.assertIsNone(c.get(self.ns, k))
            self.assertIsNone(c.view(self.ns, "z"))
            self.assertEqual(c.get(self.ns, "a"), b"v")

        each = [7, 5, 1, 3]
        asked = self.looked()
        look(self.asker)
        self.assertEqual(self.looked(), [a + n for a, n in zip(asked, each, strict=True)])
        for i, make in enumerate((by_table, in_python)):
            with make(self.rank) as c:
                look(c)
                until(lambda: self.looked() == [a + n * (i + 2) for a, n in zip(asked, each, strict=True)], f"looks of {make.__name__}")

    @unittest.skipUnless(HELPER, "no C helper")
    def test_looks_are_recorded(self):
        """Who records the rank's traffic sees the same look-ups, and reads that find nothing, as if the rank had been asked, before what follows."""
        from cascade_kv.link import Request
        from cascade_kv.resp import head, words

        long = ["x" * n for n in (1, 3, 4, 7, 8, 31, 32, 33, 64, 100, 1024)]
        for parent, k in zip((None, "a", *long), ("a", *long), strict=False):
            self.c.put(self.ns, k, k.encode(), parent=parent)

        def traffic(since):
            def ask(state):
                return (yield Request(head(2) + words("CASCADE.TRAFFIC", since)))

            after, _, commands = self.asker._run(ask, None)
            of = [c for c in map(bytes, commands) if c[34:36] == struct.pack("<H", len(self.ns)) and c[36:].startswith(self.ns.encode())]
            return after, [(c[0], c[26:34], c[36 + len(self.ns) :]) for c in of]  # kind, parent, keys

        def look(c):
            c.contains(self.ns, ["a", *long, "ünïcode", b"b\0", "c" * 1024, *(f"{i}" * i for i in range(1, 80))])
            c.contains(self.ns, long)
            c.probe(self.ns, ["a", "none", "a", *long])
            c.probe(self.ns, [*long, *(f"{i:064x}" for i in range(5000))])
            self.assertIsNone(c.get(self.ns, "none"))
            c.put(self.ns, "end", b"end")

        recorded = []
        for make in (by_socket, by_table):
            with make(self.rank) as c:
                traffic(0)  # from now on there is a log
                c.contains(self.ns, ["before"])
                c.put(self.ns, "before", b"")
                since, _ = traffic(0)
                look(c)
                recorded.append(traffic(since)[1])
        asked, told = recorded
        asked[3] = (*asked[3][:2], asked[3][2][: 8 * 4096])  # a note has no more keys
        self.assertEqual([c[0] for c in asked], [1, 1, 1, 1, 2, 3])
        self.assertEqual(told, asked)

    @unittest.skipUnless(HELPER, "no C helper")
    def test_notes_are_bounded(self):
        """A client whose rank does not run looks up as before, however much."""
        keys = [f"{i:064x}" for i in range(4000)]
        self.c.put(self.ns, "k", b"v")
        self.assertFalse(self.c.contains(self.ns, keys).any())
        self.rank.pause()
        self.addCleanup(self.rank.go_on)
        for _ in range(50):
            self.assertFalse(self.c.contains(self.ns, keys).any())
            self.assertEqual(self.c.probe(self.ns, ["k", *keys]).hits, 1)
        self.rank.go_on()
        self.assertTrue(self.asker.contains(self.ns, ["k"])[0])

    def test_looks_are_told_by_namespace(self):
        """Of so many as there is room for, none of them for another's."""
        with by_table(self.rank) as c:
            for i in range(20):
                for _ in range(3):
                    c.contains(f"{self.ns}/{i}", ["x"])
            c.contains(self.ns + "x" * 300, ["x"])
        told = lambda: [n["lookups"] for n in self.c.stats()["namespaces"] if n["name"].startswith(self.ns + "/")]
        until(lambda: told() == [3] * 16, "the looks of 16 namespaces")

    def test_damage_is_a_miss(self):
        """A bit that changes in the arena is noticed by who copies it."""
        block = value("k", 1, 43_008)
        self.c.put(self.ns, "k", block)
        self.assertEqual(self.c.get(self.ns, "k"), block)
        with self.asker.view(self.ns, "k") as v:
            at = v._lease.__array_interface__["data"][0] - v._lease._arena.address
        with open(self.rank.arena, "r+b") as f:
            f.seek(at + 20_000)
            byte = f.read(1)[0]
            f.seek(at + 20_000)
            f.write(bytes([byte ^ 4]))
        self.assertIsNone(self.c.get(self.ns, "k"))
        self.assertEqual(self.c.get_into(self.ns, "k", bytearray(50_000)), -1)

    def test_another_table_when_one_is_full(self):
        some = names(25_000)
        self.c.contains(self.ns, some[:1])
        first = self.c._index
        for k in some:
            self.c.put(self.ns, k, k.encode())
        self.assertFalse(first.alive())
        for _ in range(2):  # the rank is asked once
            self.assertTrue(self.c.contains(self.ns, some).all())
        self.assertIsNot(self.c._index, first)
        self.assertTrue(self.c._index.alive())

    def test_the_way_without_the_helper(self):
        c = Client(self.rank.socket)
        self.addCleanup(c.close)
        fast, index_module._fast = index_module._fast, None
        try:
            self.c.put(self.ns, "k", b"value")
            self.assertEqual(c.contains(self.ns, ["k", "none", b"k"]).tolist(), [True, False, True])
            self.assertIsInstance(c._index._reader, index_module.SlowReader)
        finally:
            index_module._fast = fast
        self.assertEqual(c.probe(self.ns, ["k", "none"]), Probe(1, 5, {"shm": 1}))
        self.assertEqual((c.get(self.ns, "k"), c.get(self.ns, "none")), (b"value", None))
        self.assertEqual((c.get_into(self.ns, "k", bytearray(9)), c.get_into(self.ns, "none", bytearray(9))), (5, -1))
        many = [f"k{i}" for i in range(50)] + ["k"]
        self.assertEqual(c.contains(self.ns, many).tolist(), [False] * 50 + [True])
        self.c.delete(self.ns, ["k"])
        self.assertFalse(c.contains(self.ns, ["k"])[0])

    def test_a_child_process_has_its_own(self):
        self.c.put(self.ns, "k", b"v")
        self.assertEqual(self.c.get(self.ns, "k"), b"v")
        pid = os.fork()
        if pid == 0:
            ok = self.c.get(self.ns, "k") == b"v" and self.c.contains(self.ns, ["k", "x"]).tolist() == [True, False]
            os._exit(0 if ok else 1)
        self.assertEqual(os.waitpid(pid, 0)[1], 0)
        self.assertEqual(self.c.get(self.ns, "k"), b"v")


class Asynchronous(unittest.IsolatedAsyncioTestCase):
    async def test_the_same_questions(self):
        rank = Rank("64MiB").start()
        self.addCleanup(rank.end)
        async with AsyncClient(rank.socket) as c:
            block = value("k", 1, 43_008)
            await c.put("n", "k", block)
            self.assertEqual((await c.contains("n", ["k", "x"])).tolist(), [True, False])
            self.assertIsNotNone(c._index)
            self.assertEqual(await c.probe("n", ["k", "x"]), Probe(1, 43_008, {"shm": 1}))
            dst = bytearray(50_000)
            self.assertEqual((await c.get("n", "k"), await c.get("n", "x")), (block, None))
            self.assertEqual((await c.get_into("n", "k", dst), dst[:43_008]), (43_008, block))
            rank.kill()
            logging.disable(logging.CRITICAL)
            self.addCleanup(logging.disable, logging.NOTSET)
            self.assertFalse((await c.contains("n", ["k"]))[0])
            self.assertIsNone(await c.get("n", "k"))


class Storming(Storm, unittest.TestCase):
    """Copies by the index."""

    SIZES = SIZES

    def read(self, me):
        rng = random.Random(100 + me)
        dst = bytearray(max(SIZES))
        with Client(self.rank.socket) as c:
            while not self.stop.is_set():
                for key in rng.sample(self.keys, 20):
                    got = c.get("n", key)
                    if got is not None:
                        self.hits[me] += 1
                        if not right(key, got):
                            self.wrong.append((key, got[:80]))
                    n = c.get_into("n", key, dst)
                    if n >= 0 and not right(key, bytes(dst[:n])):
                        self.wrong.append((key, bytes(dst[:80])))
                c.contains("n", self.keys)
                c.probe("n", self.keys)

    def test_every_byte_is_right(self):
        self.run_storm(self.wait)
        with Client(self.rank.socket) as c, by_socket(self.rank) as asker:
            self.assertEqual(c.contains("n", self.keys).tolist(), asker.contains("n", self.keys).tolist())
            for key in self.keys:
                self.assertEqual(c.get("n", key), asker.get("n", key))

    def test_over_kills(self):
        self.run_storm(self.kill)


class AfterDeath(unittest.TestCase):
    def test_a_table_is_not_trusted_after_its_rank(self):
        """Killed: nothing of the old table is believed at once, although it and the arena are as they were. Started again: the new one is."""
        logging.disable(logging.CRITICAL)
        self.addCleanup(logging.disable, logging.NOTSET)
        rank = Rank("64MiB").start()
        self.addCleanup(rank.end)
        with Client(rank.socket) as c, Client(rank.socket) as other:
            for turn in range(3):
                self.assertTrue(c.put("n", "k", value("k", turn, 43_008)))
                self.assertEqual(c.get("n", "k"), value("k", turn, 43_008))
                index = c._index
                self.assertTrue(index.alive())
                rank.kill()
                self.assertFalse(index.alive())
                self.assertIs(index.get("n", "k"), False)
                self.assertIsNone(index.contains("n", ["k"]))
                self.assertIsNone(index.probe("n", ["k"]))
                self.assertIsNone(c.get("n", "k"))
                self.assertFalse(c.contains("n", ["k"])[0])
                rank.start()
                until(lambda: other.put("n", "k", value("k", turn + 100, 43_008)), "put by somebody else")
                until(lambda: c.up, "connected again")
                self.assertEqual(c.get("n", "k"), value("k", turn + 100, 43_008))
                self.assertIs(index.get("n", "k"), False)

    def test_a_rank_that_ends_in_peace(self):
        logging.disable(logging.CRITICAL)
        self.addCleanup(logging.disable, logging.NOTSET)
        rank = Rank("64MiB").start()
        self.addCleanup(rank.end)
        with Client(rank.socket) as c:
            c.put("n", "k", b"v")
            self.assertEqual(c.get("n", "k"), b"v")
            index = c._index
            rank.kill(signal.SIGTERM)
            self.assertFalse(index.alive())
            self.assertIsNone(c.get("n", "k"))


@unittest.skipUnless(HELPER, "the helper is not there")
class Helper(unittest.TestCase):
    def test_copies_and_checksums(self):
        fast = index_module._fast
        self.assertEqual(fast.copy_crc32c(bytearray(9), b"123456789"), 0xE3069283)
        table = []
        for i in range(256):
            for _ in range(8):
                i = i >> 1 ^ (0x82F63B78 if i & 1 else 0)
            table.append(i)
        rng = random.Random(5)
        source = np.frombuffer(rng.randbytes(150_000), np.uint8)
        for most in [6000] * 60 + [140_000] * 4:  # from 32 KiB on it goes another way
            n, a, b = most - rng.randrange(6000), rng.randrange(200), rng.randrange(200)
            dst = np.zeros(150_000, np.uint8)
            crc = 0xFFFFFFFF
            for x in source[a : a + n].tolist():
                crc = table[(crc ^ x) & 255] ^ crc >> 8
            self.assertEqual(fast.copy_crc32c(dst[b : b + n], source[a : a + n]), crc ^ 0xFFFFFFFF)
            self.assertTrue(np.array_equal(dst[b : b + n], source[a : a + n]))
            self.assertFalse(dst[:b].any() or dst[b + n :].any())

    def test_versions_and_features_that_are_not_known(self):
        """A table of one bucket is opened in versions 1 and 2, and without features alone."""
        for version, features, known in ((1, 0, True), (2, 0, True), (0, 0, False), (3, 0, False), (2, 1, False), (2, 1 << 31, False)):
            table = bytearray(4096 + 64 * 9)
            struct.pack_into("<8sIIQQQI", table, 0, b"CASCIDX1", version, 1, len(table), 1, 0, features)
            fd = os.memfd_create("table")
            self.addCleanup(os.close, fd)
            os.write(fd, table)
            for reader in (lambda fd: index_module._fast.Reader(fd, -1, 0, 0, None), index_module.SlowReader):
                with self.subTest(version=version, features=features, reader=reader):
                    if known:
                        reader(fd)
                    else:
                        self.assertRaises(ValueError, reader, fd)

    def test_how_long_loads_take(self):
        """By the table of docs/format.md: tiers at the same time, and all bytes from the first one in the end; without that nothing is known."""
        table = bytearray(4096 + 16 * 64 * 9)
        struct.pack_into("<8sIIQQ", table, 0, b"CASCIDX1", 2, 16, len(table), 5)
        for known, runs, seconds in (
            (True, [(0, 1000)], [0.011]),
            (True, [(0, 1000), (1, 2000), (2, 500)], [0.011, 0.1 + 0.02 + 0.01 + 0.003, 0.4 + 0.05 + 0.01 + 0.0035]),
            (True, [(1, 500), (2, 500), (1, 1500)], [0.1 + 0.005 + 0.01 + 0.0005, 0.4 + 0.05 + 0.01 + 0.001, 0.4 + 0.05 + 0.01 + 0.0025]),
            (True, [(1, 2000)], [0.1 + 0.02 + 0.01 + 0.002]),
            (True, [], []),
            (False, [(0, 1000), (1, 2000)], [0, 0]),
        ):
            for i, line in enumerate([(10_000_000, 10**9), (100_000_000, 10**10), (400_000_000, 10**11)] if known else []):
                struct.pack_into("<QQ", table, 256 + 16 * i, *line)
            if not known:
                table[256:384] = bytes(128)
            reader = mock.Mock(probe=mock.Mock(return_value=[(tier, 3, size) for tier, size in runs]))
            hits, size, _, whole, found = index_module.Index(reader, index_module._header(self.shared(table))).probe("ns", [])
            self.assertEqual((hits, size, [r[1:3] for r in found]), (3 * len(runs), sum(s for _, s in runs), [(3, s) for _, s in runs]))
            for run, want in zip(found, seconds, strict=True):
                self.assertAlmostEqual(run.load_seconds, want)
            self.assertAlmostEqual(whole, seconds[-1] if seconds else 0)

    @unittest.skipUnless(HELPER, "no C helper")
    def test_the_golden_note(self):
        """The example of docs/format.md: its bytes, and none in a ring without room for notes."""
        golden = bytes.fromhex("03000002070000001581e97df41022110500000000000000010000000000000009000000" + "2b2dfe27cf4540af6b5e65997eab365500000000")
        table = bytearray(4096 + 16 * 64 * 9)
        struct.pack_into("<8sIIQQ", table, 0, b"CASCIDX1", 2, 16, len(table), 5)
        struct.pack_into("<III", table, 64, 1, 1, 1)
        reads = index_module.SlowReader(self.shared(table))
        key, mark = next((k, m) for k in map(str, range(1000)) if (m := reads._fingerprint("ns", k))[8] & 15 == 1)
        struct.pack_into("<8s", table, 4096 + 9 * 8, mark[:8])
        struct.pack_into("<IHH16sqI", table, 4096 + 16 * 64 + 9 * 64, 2, 2, 0, mark, 0, 10)
        for words in (0, 32768):
            ring = bytearray(128 + 8 * 16384 + 256 * 16 + 8 * words)
            struct.pack_into("<8sII", ring, 0, b"CASCTCH1", 1, 16384)
            struct.pack_into("<QII", ring, 64, 7, 16, words)
            fd = self.shared(ring)
            reader = index_module._fast.Reader(self.shared(table), fd, 0, 0, None)
            self.assertEqual(reader.probe("ns", [key, "a", "b"]), [(0, 1, 10)])
            after = os.pread(fd, len(ring), 0)
            (noted,) = struct.unpack_from("<Q", after, 80)
            self.assertEqual(noted, 7 if words else 0)
            if words:
                note = after[-8 * words :][:56]
                self.assertEqual(note[:8] + golden[8:16] + note[16:], golden)
                self.assertGreater(struct.unpack_from("<q", note, 8)[0], 1e18)
                self.assertFalse(any(after[-8 * words + 56 :]))
        for words in (4, 16385, 1 << 20):  # too few for any, or none that there can be
            ring = bytearray(128 + 8 * 16384 + 256 * 16 + 8 * 32768)
            struct.pack_into("<8sII", ring, 0, b"CASCTCH1", 1, 16384)
            struct.pack_into("<QII", ring, 64, 0, 16, words)
            fd = self.shared(ring)
            if words > 4:
                self.assertRaises(ValueError, index_module._fast.Reader, self.shared(table), fd, 0, 0, None)
                continue
            self.assertEqual(index_module._fast.Reader(self.shared(table), fd, 0, 0, None).probe("ns", ["a"]), [])
            self.assertEqual(os.pread(fd, 8, 80), bytes(8))

    def shared(self, content):
        fd = os.memfd_create("shared")
        self.addCleanup(os.close, fd)
        os.write(fd, content)
        return fd

    def test_files_that_are_no_table(self):
        for content in (b"", b"CASCIDX1" * 512, bytes(4096), b"CASCIDX1\x02\0\0\0\x10\0\0\0" + bytes(5000)):
            fd = os.memfd_create("none")
            self.addCleanup(os.close, fd)
            os.write(fd, content)
            self.assertIsNone(index_module.open_index(fd, -1, None))
        with self.assertRaises((TypeError, OverflowError)):
            index_module._fast.Reader("x", ctypes, 0, 0, None)


if __name__ == "__main__":
    unittest.main()
