"""Moving blocks between an engine's memory and the rank."""

import os
import select
import tempfile
import unittest

import numpy as np
from rank import MIB, OneRank, Pool, Rank, extents, names

from cascade_kv import Client, RegionRefused
from cascade_kv.link import Request
from cascade_kv.resp import head, words

BLOCK = 256 << 10


class Moves(OneRank):
    def setUp(self):
        super().setUp()
        self.pool = Pool(32 * MIB)
        self.region = self.c.region(fd=self.pool.fd)
        self.keys = names(16)
        self.here, self.there = extents(16, BLOCK), extents(16, BLOCK, at=16 * MIB)
        self.data = self.pool.fill(1, 16 * BLOCK)
        self.back = self.pool.array[16 * MIB : 16 * MIB + 16 * BLOCK]

    def test_bytes_come_back(self):
        self.assertEqual(self.c.store(self.ns, self.region, self.keys, self.here, chain=True).tolist(), [1] * 16)
        self.assertEqual(self.c.probe(self.ns, self.keys).hits, 16)
        got = self.c.load(self.ns, self.region, self.keys, self.there)
        self.assertEqual((got.dtype, got.tolist()), (np.uint8, [1] * 16))
        np.testing.assert_array_equal(self.back, self.data)
        self.assertEqual(self.c.get(self.ns, self.keys[3]), self.data[3 * BLOCK : 4 * BLOCK].tobytes())

    def test_blocks_in_pieces(self):
        pieces = extents(16, BLOCK, each=4)
        self.assertEqual(self.c.store(self.ns, self.region, self.keys, pieces).tolist(), [1] * 16)
        turned = self.data.reshape(16, 4, -1)[:, ::-1].reshape(16, -1)
        for i in (0, 15):
            self.assertEqual(self.c.get(self.ns, self.keys[i]), turned[i].tobytes())
        self.c.load(self.ns, self.region, self.keys, extents(16, BLOCK, at=16 * MIB, each=4))
        np.testing.assert_array_equal(self.back, self.data)

    def test_misses_are_told_key_by_key(self):
        self.c.store(self.ns, self.region, self.keys[::2], self.here[::2])
        self.assertEqual(self.c.load(self.ns, self.region, self.keys, self.there).tolist(), [1, 0] * 8)
        other = self.there.copy()
        other[:, :, 1] = BLOCK - 1  # of another size: a miss
        self.assertEqual(self.c.load(self.ns, self.region, self.keys, other).tolist(), [0] * 16)

    def test_stored_names_are_kept_unless_replaced(self):
        self.c.store(self.ns, self.region, self.keys, self.here)
        self.pool.fill(2, 16 * BLOCK)
        self.assertEqual(self.c.store(self.ns, self.region, self.keys, self.here).tolist(), [1] * 16)
        self.c.load(self.ns, self.region, self.keys, self.there)
        np.testing.assert_array_equal(self.back, self.data)
        self.c.store(self.ns, self.region, self.keys, self.here, replace=True, prefix=True, parent="root")
        self.c.load(self.ns, self.region, self.keys, self.there)
        np.testing.assert_array_equal(self.back, self.pool.array[: 16 * BLOCK])

    def test_jobs(self):
        self.assertEqual(self.c.done(), [])
        self.assertIs(self.c.store(self.ns, self.region, self.keys, self.here, chain=True, job=5), True)
        ((job, statuses),) = self.c.done(30)
        self.assertEqual((job, statuses.tolist()), (5, [1] * 16))
        for j in range(200):
            self.assertIs(self.c.load(self.ns, self.region, [self.keys[j % 16]], self.there[j % 16 : j % 16 + 1], job=j), True)
        told = {}
        while len(told) < 200:
            some = self.c.done(30)
            self.assertTrue(some)
            for job, statuses in some:
                self.assertNotIn(job, told)
                told[job] = statuses.tolist()
        self.assertEqual(told, {j: [1] for j in range(200)})
        self.assertEqual(self.c.done(0.05), [])
        self.assertFalse(self.c.cancel(3))
        np.testing.assert_array_equal(self.back, self.data)

    def test_a_number_is_free_again_only_when_it_was_told(self):
        self.assertTrue(self.c.store(self.ns, self.region, self.keys, self.here, job=1))
        self.assertFalse(self.c.store(self.ns, self.region, self.keys, self.here, job=1))
        self.assertEqual(len(self.c.done(30)), 1)
        self.assertTrue(self.c.load(self.ns, self.region, self.keys, self.there, job=1))
        self.assertEqual(len(self.c.done(30)), 1)

    def test_a_bell_of_the_callers(self):
        bell = os.eventfd(0, os.EFD_NONBLOCK)
        pool = Pool(MIB)
        data = pool.fill(3)
        region = self.c.region(fd=pool.fd, notify=bell)
        os.close(pool.fd)  # the client has its own
        self.assertTrue(self.c.store(self.ns, region, ["k"], np.array([[[0, MIB]]]), job=9))
        poll = select.poll()
        poll.register(bell, select.POLLIN)
        self.assertTrue(poll.poll(30_000))
        self.assertEqual([(j, s.tolist()) for j, s in self.c.done()], [(9, [1])])
        self.assertEqual(self.c.get(self.ns, "k"), data.tobytes())
        region.detach()
        region.detach()
        self.assertEqual(self.c.store(self.ns, region, ["k"], np.array([[[0, MIB]]])).tolist(), [0])

    def test_cancelled_jobs_are_told(self):
        self.c.store(self.ns, self.region, self.keys, self.here)
        for j in range(64):
            self.assertTrue(self.c.load(self.ns, self.region, self.keys, self.there, job=j))
        for j in range(64):
            self.c.cancel(j)
        told = {}
        while len(told) < 64:
            told.update(self.c.done(30))
        self.assertEqual(sorted(told), list(range(64)))
        self.assertLessEqual({int(s) for statuses in told.values() for s in statuses}, {1, 2})

    def test_a_region_that_the_rank_has_forgotten_is_attached_again(self):
        for how in ({}, {"job": 3}):
            number = self.c._link.state.regions[self.region.number]
            self.c._link.call(Request(head(3) + words("CASCADE.REGION", "DETACH", number)))
            got = self.c.store(self.ns, self.region, self.keys, self.here, **how)
            self.assertTrue(np.all(got))
        self.assertEqual([s.tolist() for _, s in self.c.done(30)], [[1] * 16])
        self.assertEqual(len(self.c._link.state.regions), 1)

    def test_a_file_under_dev_shm(self):
        with tempfile.NamedTemporaryFile(dir="/dev/shm", prefix="cascade-client-") as f:
            pool = Pool(4 * MIB, f.name)
            data = pool.fill(4)
            region = self.c.region(path=f.name)
            self.assertEqual(self.c.store(self.ns, region, ["k"], np.array([[[MIB, 2 * MIB]]])).tolist(), [1])
            self.assertEqual(self.c.get(self.ns, "k"), data[MIB : 3 * MIB].tobytes())

    def test_refused_regions(self):
        with tempfile.NamedTemporaryFile(dir="/var/tmp") as f:
            f.truncate(MIB)
            with self.assertRaisesRegex(RegionRefused, "."):
                self.c.region(fd=f.fileno())
            with self.assertRaises(RegionRefused):
                self.c.region(path=f.name)
        r, w = os.pipe()
        self.addCleanup(os.close, r)
        self.addCleanup(os.close, w)
        with self.assertRaises(RegionRefused):
            self.c.region(fd=r)
        with self.assertRaises(ValueError):
            self.c.region()
        self.assertEqual(self.c.store(self.ns, self.region, self.keys, self.here).tolist(), [1] * 16)  # the connection is in use

    def test_extents_that_are_none(self):
        bad = self.here.copy()
        bad[7, 0, 0] = 32 * MIB
        self.assertEqual(self.c.store(self.ns, self.region, self.keys, bad).tolist(), [0] * 16)
        self.assertIs(self.c.store(self.ns, self.region, self.keys, bad, job=1), False)
        self.assertEqual(self.c.done(), [])
        bad[7, 0] = 0, 0
        self.assertEqual(self.c.load(self.ns, self.region, self.keys, bad).tolist(), [0] * 16)
        for shape in (self.here[:3], self.here[:, :, :1], self.here.reshape(-1), self.here.astype(np.float64)):
            with self.assertRaises(ValueError):
                self.c.store(self.ns, self.region, self.keys, shape)
        self.assertEqual(len(self.c.store(self.ns, self.region, [], np.zeros((0, 1, 2), np.uint64))), 0)

    def test_a_batch_larger_than_a_command(self):
        n = 40_000
        keys = names(n, "x" * 60)
        small = extents(n, 64)
        self.assertEqual(self.c.store(self.ns, self.region, keys, small, chain=True).sum(), n)
        self.assertEqual(self.c.load(self.ns, self.region, keys, extents(n, 64, at=16 * MIB)).sum(), n)
        np.testing.assert_array_equal(self.pool.array[16 * MIB : 16 * MIB + 64 * n], self.pool.array[: 64 * n])
        self.assertIs(self.c.load(self.ns, self.region, keys, small, job=1), False)


class Generated(unittest.TestCase):
    def test_blocks_that_are_marked_are_not_written(self):
        with tempfile.TemporaryDirectory() as files:
            rank = Rank("4MiB", "--lustre-dir", files, "--store-prompt-only").start()
            self.addCleanup(rank.end)
            with Client(rank.socket) as c:
                pool = Pool(16 * MIB)
                pool.fill(1)
                region = c.region(fd=pool.fd)
                for mark in (True, False):
                    keys = names(32)
                    self.assertEqual(c.store("n", region, keys, extents(32, BLOCK, at=8 * MIB * mark), generated=mark).tolist(), [1] * 32)
                for i in range(32):
                    self.assertTrue(c.put("n", f"put {i}", os.urandom(BLOCK), generated=True))
                s = c.stats()
                self.assertGreater(s["generated"], 32)
                self.assertEqual(s["names"], 3 * 32 - s["generated"])
                self.assertEqual(c.probe("n", keys).hits, 32)


if __name__ == "__main__":
    unittest.main()
