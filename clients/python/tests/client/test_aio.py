"""AsyncClient: the same as Client, in an event loop."""

import asyncio
import logging
import os
import unittest

import numpy as np
from rank import MIB, OneRank, Pool, Rank, extents, names

from cascade_kv import AsyncClient, Probe, RegionRefused

BLOCK = 64 << 10


class Asked(OneRank, unittest.IsolatedAsyncioTestCase):
    async def asyncSetUp(self):
        self.a = AsyncClient(self.rank.socket)
        self.addAsyncCleanup(self.a.close)

    async def test_values(self):
        for size in (0, 100, 300_000, 3 * MIB):
            value, key = os.urandom(size), f"k{size}"
            self.assertTrue(await self.a.put(self.ns, key, value))
            for _ in range(2):
                self.assertEqual(await self.a.get(self.ns, key), value)
            dst = bytearray(size)
            self.assertEqual(await self.a.get_into(self.ns, key, dst), size)
            self.assertEqual(dst, value)
        self.assertIsNone(await self.a.get(self.ns, "none"))
        self.assertEqual((await self.a.contains(self.ns, ["k0", "none"])).tolist(), [True, False])
        self.assertEqual((await self.a.probe(self.ns, ["k0", "k100", "none"])).hits, 2)
        self.assertEqual(await self.a.probe(self.ns, []), Probe())
        with await self.a.view(self.ns, "k300000") as v:
            self.assertEqual(v.size, 300_000)
        self.assertEqual(await self.a.delete(self.ns, ["k0"]), 1)
        self.assertTrue(await self.a.clear(self.ns))
        self.assertGreater((await self.a.stats())["uptime_seconds"], 0)
        self.assertIsNone(await self.a.get(self.ns, "k100"))

    async def test_moves_and_jobs(self):
        pool, keys = Pool(4 * MIB), names(16)
        data = pool.fill(1, 16 * BLOCK)
        region = await self.a.region(fd=pool.fd)
        self.assertEqual((await self.a.store(self.ns, region, keys, extents(16, BLOCK), chain=True)).tolist(), [1] * 16)
        self.assertEqual((await self.a.load(self.ns, region, keys, extents(16, BLOCK, at=2 * MIB))).tolist(), [1] * 16)
        np.testing.assert_array_equal(pool.array[2 * MIB : 2 * MIB + 16 * BLOCK], data)
        for j in range(50):
            self.assertIs(await self.a.load(self.ns, region, keys, extents(16, BLOCK, at=2 * MIB), job=j), True)
        told = {}
        while len(told) < 50:
            told.update(await self.a.done(30))
        self.assertTrue(all(s.all() for s in told.values()))
        self.assertEqual(await self.a.done(0.01), [])
        await self.a.detach(region)
        r, w = os.pipe()
        with self.assertRaises(RegionRefused):
            await self.a.region(fd=r)
        os.close(r), os.close(w)

    async def test_tasks_take_turns(self):
        values = {f"k{i}": os.urandom(1000 * i) for i in range(20)}
        await asyncio.gather(*[self.a.put(self.ns, k, v) for k, v in values.items()])
        got = await asyncio.gather(*[self.a.get(self.ns, k) for k in values])
        self.assertEqual(got, list(values.values()))

    async def test_a_cancelled_call_leaves_nothing_behind(self):
        logging.disable(logging.CRITICAL)
        self.addCleanup(logging.disable, logging.NOTSET)
        await self.a.put(self.ns, "k", b"value")
        for turns in range(12):
            task = asyncio.ensure_future(self.a.get(self.ns, "k"))
            for _ in range(turns):
                await asyncio.sleep(0)
            task.cancel()
            try:
                await task
            except asyncio.CancelledError:
                pass
            self.assertEqual(await self.a.get(self.ns, "k"), b"value")

    async def test_views_are_given_back(self):
        for i in range(40):
            await self.a.put(self.ns, f"k{i}", os.urandom(4 * MIB))
            with await self.a.view(self.ns, f"k{i}") as v:
                self.assertEqual(v.size, 4 * MIB)


class Away(unittest.IsolatedAsyncioTestCase):
    async def test_killed_and_started_again(self):
        logging.disable(logging.CRITICAL)
        self.addCleanup(logging.disable, logging.NOTSET)
        rank = Rank()
        self.addCleanup(rank.end)
        pool, keys, e = Pool(MIB), names(4), extents(4, BLOCK)
        async with AsyncClient(rank.socket) as a:
            region = await a.region(fd=pool.fd)
            self.assertIsNone(await a.get("n", "k"))
            self.assertEqual((await a.store("n", region, keys, e)).tolist(), [0] * 4)
            self.assertIs(await a.store("n", region, keys, e, job=1), False)
            for _ in range(2):
                rank.start()
                while not (await a.store("n", region, keys, e)).all():
                    await asyncio.sleep(0.02)
                jobs = [j for j in range(50) if await a.store("n", region, keys, e, replace=True, job=j)]
                rank.kill()
                told = {}
                while len(told) < len(jobs):
                    told.update(await a.done(10))
                self.assertEqual(sorted(told), jobs)
                self.assertIsNone(await a.get("n", "k"))
                self.assertEqual((await a.contains("n", keys)).tolist(), [False] * 4)


if __name__ == "__main__":
    unittest.main()
