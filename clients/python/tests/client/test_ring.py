"""Rings on a real rank with a level on disks: blocks that only these have are read straight into the client's memory."""

import signal
import time
import unittest
from unittest import mock

import numpy as np
from rank import MIB, Pool, Rank, extents, names, until
from test_layers import Memory
from test_upgrade import answer, upgrade

from cascade_kv import Client, RegionRefused, layers
from cascade_kv.layers import Mover, Run, Step
from cascade_kv.ring import STUCK

BLOCK = 256 << 10
MANY = 400  # blocks, more than memory has room for
ENOUGH = 40  # of them that the disks must have for the tests to mean something


def loads(client, ring, ns, keys, word, value, job, at=0):
    return client.load(ns, ring, keys, extents(len(keys), BLOCK, at=at), job=job, after=(word, value))


def ended(client, jobs):
    """Their statuses, by job."""
    out = {}
    until(lambda: out.update({j: s.tolist() for j, s in client.done(0.2)}) or len(out) == jobs, f"{jobs} jobs end")
    return out


class OnDisks(unittest.TestCase):
    """A rank whose memory is empty, and whose disks have blocks of an earlier process."""

    @classmethod
    def setUpClass(cls):
        cls.rank = Rank("32MiB")
        cls.addClassCleanup(cls.rank.end)
        cls.rank.command += ["--nvme-paths", f"{cls.rank.dir}/disk0,{cls.rank.dir}/disk1", "--nvme-bytes", "256MiB", "--nvme-file-bytes", "256KiB"]
        cls.rank.start()
        cls.keys, pool = names(MANY), Pool(8 * BLOCK)
        cls.blocks = {}
        with Client(cls.rank.socket) as c:
            region = c.region(fd=pool.fd)
            for i in range(0, MANY, 8):
                data = pool.fill(i)
                some = cls.keys[i : i + 8]
                until(lambda some=some, region=region: all(c.store("ns", region, some, extents(8, BLOCK)) == 1), "blocks are stored")
                cls.blocks |= {k: data[j * BLOCK : (j + 1) * BLOCK].copy() for j, k in enumerate(some)}
        cls.anew()

    @classmethod
    def anew(cls):
        """Another process, with the disks alone."""
        cls.rank.kill(signal.SIGTERM)
        cls.rank.arena.unlink(missing_ok=True)
        cls.rank.start()
        listed = answer(cls.rank.socket, b"CASCADE.SCAN ns 0 COUNT 1000")  # a look-up would bring some to memory
        cls.there = [k for k in cls.keys if b"\r\n%s\r\n" % k.encode() in listed]
        if len(cls.there) < ENOUGH:
            raise AssertionError(f"the disks have {len(cls.there)} blocks")

    def setUp(self):
        self.c = Client(self.rank.socket)
        self.addCleanup(self.c.close)

    def of(self, ring, i, at=0):
        return ring.data[at + i * BLOCK : at + (i + 1) * BLOCK]

    def level(self, name):
        return next(t for t in self.c.stats()["tiers"] if t["name"] == name)

    def test_nothing_comes_before_its_word(self):
        ring = self.c.ring(20 * BLOCK)
        keys = self.there[:20]
        before = self.level("shm")["usage"]["Blocks"]
        self.assertTrue(loads(self.c, ring, "ns", keys[:10], 3, 5, 1))
        self.assertTrue(loads(self.c, ring, "ns", keys[10:], 3, 6, 2, at=10 * BLOCK))
        self.assertEqual(self.c.done(0.2), [])
        self.assertFalse(ring.data.any())
        ring.raise_word(3, 5)
        self.assertEqual(ended(self.c, 1), {1: [1] * 10})
        self.assertFalse(ring.data[10 * BLOCK :].any())
        ring.raise_word(3, 6)
        self.assertEqual(ended(self.c, 1), {2: [1] * 10})
        for i, k in enumerate(keys):
            np.testing.assert_array_equal(self.of(ring, i), self.blocks[k])
        self.assertEqual(self.level("shm")["usage"]["Blocks"], before)

    def test_what_is_stored_goes_to_the_disks(self):
        ring = self.c.ring(8 * BLOCK, write=True)
        keys = [f"by-ring-{i}" for i in range(8)]
        want = np.random.default_rng(5).integers(0, 256, 8 * BLOCK, dtype=np.uint8)
        before = self.level("shm")["usage"]["Blocks"]
        self.assertTrue(self.c.store("ns", ring, keys, extents(8, BLOCK), chain=True, job=1, after=(4, 9)))
        self.assertEqual(self.c.done(0.1), [])
        self.assertFalse(self.c.contains("ns", keys).any())
        ring.data[:] = want
        ring.raise_word(4, 9)
        self.assertEqual(ended(self.c, 1), {1: [1] * 8})
        self.assertEqual(self.level("shm")["usage"]["Blocks"], before)
        ring.data[:] = 0
        self.assertTrue(loads(self.c, ring, "ns", keys, 4, 9, 2))
        self.assertEqual(ended(self.c, 1), {2: [1] * 8})
        np.testing.assert_array_equal(ring.data, want)
        self.assertTrue(self.c.store("ns", ring, ["never"], extents(1, BLOCK), job=3, after=(4, 10)))
        self.c.cancel(3)
        self.assertEqual(ended(self.c, 1), {3: [2]})
        self.assertFalse(self.c.contains("ns", ["never"]).any())
        ring.detach()
        for i, k in enumerate(keys):
            self.assertEqual(self.c.get("ns", k), want[i * BLOCK : (i + 1) * BLOCK].tobytes())

    def test_a_job_that_is_cancelled(self):
        ring = self.c.ring(10 * BLOCK)
        self.assertTrue(loads(self.c, ring, "ns", self.there[20:30], 1, 1, 1))
        self.c.cancel(1)
        self.assertEqual(ended(self.c, 1), {1: [2] * 10})
        ring.raise_word(1, 1)
        self.assertTrue(loads(self.c, ring, "ns", self.there[20:21], 1, 1, 2))
        self.assertEqual(ended(self.c, 1), {2: [1]})
        self.assertFalse(ring.data[BLOCK:].any())

    def test_a_ring_is_a_region(self):
        ring = self.c.ring(2 * BLOCK)
        ring.data[:BLOCK] = 7
        self.assertEqual(self.c.store("ns", ring, ["own"], extents(1, BLOCK)).tolist(), [1])
        self.assertEqual(self.c.load("ns", ring, ["own"], extents(1, BLOCK, at=BLOCK)).tolist(), [1])
        self.assertTrue((ring.data == 7).all())
        ring.detach()
        self.assertTrue(ring.ended)
        self.assertEqual(self.c.load("ns", ring, ["own"], extents(1, BLOCK)).tolist(), [0])

    def test_a_ring_ends_with_its_connection(self):
        ring = self.c.ring(4 * BLOCK)
        self.assertFalse(ring.ended)
        self.assertTrue(loads(self.c, ring, "ns", self.there[30:34], 1, 1, 1))
        answer = upgrade(self.rank.socket)
        self.assertIn(b":%d\r\n" % self.rank.child.pid, answer)
        self.assertEqual(ended(self.c, 1), {1: [0] * 4})
        until(lambda: ring.ended, "the ring ends")
        ring.raise_word(1, 1)
        self.assertFalse(loads(self.c, ring, "ns", self.there[30:34], 1, 1, 2))
        self.assertFalse(ring.data.any())
        again = self.c.ring(4 * BLOCK)
        self.assertTrue(loads(self.c, again, "ns", self.there[30:34], 1, 1, 3))
        again.raise_word(1, 1)
        self.assertEqual(ended(self.c, 1), {3: [1] * 4})
        np.testing.assert_array_equal(self.of(again, 0), self.blocks[self.there[30]])

    def test_what_can_not_be(self):
        ring = self.c.ring(BLOCK)
        for after, job in (((0, 1), 1), ((33, 1), 1), ((1, 1), None)):
            for move in (self.c.load, self.c.store):
                with self.assertRaises(ValueError):
                    move("ns", ring, ["k"], extents(1, BLOCK), job=job, after=after)
        with self.assertRaises(ValueError):
            ring.raise_word(0, 1)
        with self.assertRaises(RegionRefused):
            self.c.ring(1 << 60)
        with Client(f"{self.rank.dir}/nobody") as away:
            self.assertIsNone(away.ring(BLOCK))


class Killed(unittest.TestCase):
    """A rank that is killed while a ring writes, and started again."""

    def test_stores(self):
        rank = Rank("32MiB")
        self.addCleanup(rank.end)
        rank.command += ["--nvme-paths", f"{rank.dir}/disk", "--nvme-bytes", "64MiB", "--nvme-file-bytes", "256KiB"]
        rank.start()
        want: dict[str, bytes] = {}
        found = 0
        for turn in range(6):
            with Client(rank.socket) as c:
                until(lambda c=c: not c.stats()["tiers"][1]["usage"]["Missing"], "the pool is made")
                ring = c.ring(12 * BLOCK, write=True)
                ring.data[:] = np.random.default_rng(turn).integers(0, 256, 12 * BLOCK, dtype=np.uint8)
                keys = [f"{turn}-{i}" for i in range(12)]
                want |= {k: ring.data[i * BLOCK : (i + 1) * BLOCK].tobytes() for i, k in enumerate(keys)}
                self.assertTrue(c.store("ns", ring, keys, extents(12, BLOCK), chain=True, job=1, after=(1, 1)))
                before = c.stats()["tiers"][0]["usage"]["Blocks"]
                ring.raise_word(1, 1)
                if turn % 3 == 0:
                    self.assertEqual(ended(c, 1), {1: [1] * 12})
                    self.assertEqual(c.stats()["tiers"][0]["usage"]["Blocks"], before)
                    rank.kill(signal.SIGTERM)  # it has time to write its log
                else:
                    time.sleep(0.002 * turn)
                    rank.kill()
            rank.start()
            with Client(rank.socket) as c:
                for k, data in want.items():
                    got = c.get("ns", k)
                    self.assertIn(got, (None, data))
                    found += got is not None
                    if turn % 3 == 0 and k in keys:
                        self.assertEqual(got, data)
        self.assertGreaterEqual(found, 12 * 6 + 12 * 3)  # those of turns 0 and 3, in each turn since


class MoverWithRing(unittest.TestCase):
    """Layers by way of a ring."""

    LAYERS, BYTES = 6, 4096

    def setUp(self):
        self.rank = Rank("32MiB")
        self.addCleanup(self.rank.end)
        self.rank.command += ["--nvme-paths", f"{self.rank.dir}/disk", "--nvme-bytes", "64MiB", "--nvme-file-bytes", "8KiB"]
        self.rank.start()

    def mover(self, ring=True, ring_stores=False):
        memories = [Rows(self.BYTES) for _ in range(self.LAYERS)]
        mover = Mover(Client(self.rank.socket), "ns", memories, self.BYTES, MIB, ring=ring, ring_stores=ring_stores)
        self.addCleanup(mover.close)
        return memories, mover

    def step(self, mover, step):
        mover.begin(step)
        mover.load()
        for layer in range(self.LAYERS):
            mover.wait(layer)
            mover.save(layer)
        mover.end()

    def stored(self, memories, mover):
        """Stores 32 blocks of every layer, and returns their run and what the memories have then."""
        blocks = list(range(32))
        run = Run(blocks, [bytes([9, i]) for i in blocks])
        for i, m in enumerate(memories):
            m.rows[:32] = np.random.default_rng(i).integers(0, 256, (32, self.BYTES), dtype=np.uint8)
        want = [m.rows.copy() for m in memories]
        self.step(mover, Step(stores=[run]))
        mover.drain(30)
        self.assertEqual((mover.counts.stored, mover.counts.not_stored), (32 * self.LAYERS, 0))
        return run, want

    def loaded(self, memories, mover, run, want):
        """Loads a run into memories without it."""
        for m in memories:
            m.rows[:] = 0
        self.step(mover, Step(loads=[run]))
        self.assertEqual(mover.take_failed(), set())
        for m, rows in zip(memories, want, strict=True):
            np.testing.assert_array_equal(m.rows, rows)

    def test_layers_come_and_go(self):
        memories, mover = self.mover()
        run, want = self.stored(memories, mover)
        filler = Pool(4 * MIB)
        with Client(self.rank.socket) as c:  # the layers leave memory
            region = c.region(fd=filler.fd)
            for i in range(12):
                filler.fill(i)
                c.store("ns", region, names(4), extents(4, MIB))
        for turn in range(3):
            self.loaded(memories, mover, run, want)
            if turn == 1:
                upgrade(self.rank.socket)  # the ring ends, and the next step has another one
                until(lambda: mover._ring.ended, "the ring ends")
        with Client(self.rank.socket) as c:
            (disks,) = (t for t in c.stats()["tiers"] if t["name"] == "nvme")
            self.assertGreater(disks["hits"], 0)
        self.assertIsNotNone(mover._ring)
        self.assertFalse(mover._ring.ended)

    def test_layers_that_go_by_the_ring(self):
        with Client(self.rank.socket) as c:
            until(lambda: not next(t for t in c.stats()["tiers"] if t["name"] == "nvme")["usage"]["Missing"], "the pool is made")
        memories, mover = self.mover(ring_stores=True)
        run, want = self.stored(memories, mover)
        with Client(self.rank.socket) as c:
            tiers = {t["name"]: t["usage"]["Blocks"] for t in c.stats()["tiers"]}
        self.assertEqual((tiers["shm"], tiers["nvme"]), (0, 32 * self.LAYERS))
        self.loaded(memories, mover, run, want)

    def test_a_rank_without_disks(self):
        rank = Rank("32MiB").start()
        self.addCleanup(rank.end)
        mover = Mover(Client(rank.socket), "ns", [Rows(self.BYTES)], self.BYTES, MIB, ring=True)
        self.addCleanup(mover.close)
        self.assertIsNone(mover._ring)
        mover.begin(Step(stores=[Run([0], [b"x"])]))
        mover.save(0)
        mover.end()
        mover.drain(30)
        self.assertEqual(mover.counts.stored, 1)


class Rows(Memory):
    def __init__(self, size):
        super().__init__()
        self.rows = np.zeros((64, size), np.uint8)


class Staged:
    """A region or ring of a client that is none."""

    def __init__(self, client, size=0):
        self.data, self.ended, self.client = np.zeros(size, np.uint8), False, client

    def raise_word(self, word, value):
        pass

    def detach(self):
        self.client.said.append(("detach", self))


class Answers:
    """A client whose rank answers at once, as told. said is what is asked of its rank, but for jobs."""

    def __init__(self, refuses=0):
        self.status, self.refuses, self.said, self.loads, self.jobs = 1, refuses, [], [], []

    def ring(self, size, write=False, notify=None):
        if self.refuses:
            self.refuses -= 1
            self.said.append(("refused", None))
            raise RegionRefused("not yet")
        return self._made("ring", Staged(self, size))

    def region(self, fd=None, notify=None):
        return self._made("region", Staged(self))

    def _made(self, what, region):
        self.said.append((what, region))
        return region

    def load(self, ns, region, keys, extents, job=None, after=None):
        self.loads.append(region)
        self.jobs.append((job, np.full(len(keys), self.status, np.uint8)))
        return True

    def store(self, ns, region, keys, extents, job=None, **_):
        self.jobs.append((job, np.ones(len(keys), np.uint8)))
        return True

    def done(self, seconds):
        out, self.jobs = self.jobs, []
        return out

    def cancel(self, job):
        pass

    def close(self):
        pass


class Hangs(unittest.TestCase):
    """Disks that do not answer, and ranks that make no ring."""

    LAYERS, BYTES = layers.BUFFERS, 4096

    def setUp(self):
        for name in ("LOAD_SECONDS", "STORE_SECONDS"):  # nothing here ends because time passes
            patch = mock.patch.object(layers, name, 3600.0)
            patch.start()
            self.addCleanup(patch.stop)

    def mover(self, client):
        mover = Mover(client, "ns", [Rows(self.BYTES) for _ in range(self.LAYERS)], self.BYTES, layers.BUFFERS * self.BYTES, ring=True)
        self.addCleanup(mover.close)
        return mover

    def step(self, mover, loads=()):
        """What the step lost."""
        calls, advance = iter(range(1000)), mover._advance

        def limited(seconds):
            self.assertIsNotNone(next(calls, None), "the step waits for what can not come")
            advance(seconds)

        with mock.patch.object(mover, "_advance", side_effect=limited):
            mover.begin(Step(loads=[Run([b], [b"name"]) for b in loads]))
            mover.load()
            for layer in range(self.LAYERS):
                mover.wait(layer)
            mover.end()
        return mover.take_failed()

    def hang(self, mover, client):
        client.status = STUCK
        with self.assertLogs("cascade_kv.layers") as logged:
            self.assertEqual(self.step(mover, loads=[3]), {3})
        self.assertEqual(len(logged.output), 1, logged.output)
        client.status = 1

    def test_a_hang_costs_its_own_step_alone(self):
        client = Answers()
        mover = self.mover(client)
        self.hang(mover, client)
        self.assertEqual(self.step(mover, loads=[5]), set())
        (_, first), (_, second) = client.said
        self.assertEqual(client.said, [("ring", first), ("ring", second)])  # the first one's end would be waited for
        self.assertEqual(client.loads[-self.LAYERS :], [second] * self.LAYERS)
        self.assertEqual(sorted(mover._free), list(range(layers.BUFFERS)))

    def test_one_ring_at_a_time_is_set_aside(self):
        client = Answers()
        mover = self.mover(client)
        for _ in range(3):
            self.hang(mover, client)
            self.assertEqual(self.step(mover, loads=[5]), set())
        first, second, third, fourth = (r for what, r in client.said if what == "ring")
        want = [("ring", first), ("ring", second), ("detach", first), ("ring", third), ("detach", second), ("ring", fourth)]
        self.assertEqual(client.said, want)

    def test_what_is_set_aside_ends_with_its_connection(self):
        client = Answers()
        mover = self.mover(client)
        self.hang(mover, client)
        self.step(mover)
        first, second = (r for _, r in client.said)
        first.ended = second.ended = True
        self.assertEqual(self.step(mover, loads=[5]), set())
        self.assertEqual([c for c in client.said if c[0] == "detach"], [("detach", first), ("detach", second)])
        self.assertIsNone(mover._aside)

    def test_a_hang_after_which_there_is_no_ring(self):
        client = Answers()
        mover = self.mover(client)
        self.hang(mover, client)
        client.refuses = 1
        with self.assertLogs("cascade_kv.layers"):
            self.assertEqual(self.step(mover, loads=[5]), set())
        self.assertEqual([what for what, _ in client.said], ["ring", "refused", "region"])
        self.assertEqual(client.loads[-self.LAYERS :], [client.said[-1][1]] * self.LAYERS)
        self.assertIsNone(mover._ring)

    def test_stores_that_go_on_do_not_keep_what_is_lost(self):
        client = Answers()
        mover = self.mover(client)
        self.hang(mover, client)
        mover._queue(self.stored_piece(mover))
        self.assertTrue(mover.busy)
        self.assertEqual(self.step(mover, loads=[5]), set())
        self.assertEqual(mover.counts.stored, 1)

    def stored_piece(self, mover):
        (piece,) = mover._pieces(Run([7], [b"name"]), 0, load=False)
        mover._take(piece)
        return piece

    def test_a_ring_that_is_refused_is_asked_for_again(self):
        client = Answers(refuses=3)
        with self.assertLogs("cascade_kv.layers") as logged, mock.patch.object(layers, "RING_SECONDS", 0.0):
            mover = self.mover(client)
            for _ in range(3):
                self.assertEqual(self.step(mover, loads=[5]), set())
        self.assertEqual([what for what, _ in client.said], ["refused", "region", "refused", "refused", "ring", "detach"])
        self.assertIs(mover._region, mover._ring)
        self.assertEqual(len(logged.output), 1, logged.output)

    def test_it_is_not_asked_for_in_each_step(self):
        client = Answers(refuses=1)
        with self.assertLogs("cascade_kv.layers"), mock.patch.object(layers, "RING_SECONDS", 3600.0):
            mover = self.mover(client)
            for _ in range(3):
                self.step(mover)
        self.assertEqual([what for what, _ in client.said], ["refused", "region"])

    def test_a_step_that_can_not_begin(self):
        client = Answers()
        mover = self.mover(client)
        with mock.patch.object(mover, "_renew", side_effect=RegionRefused("no memory")), self.assertRaises(RegionRefused):
            mover.begin(Step(ahead={"r": [Run([0], [b"name"])]}))
        mover.fail()
        self.assertEqual(mover.take_waited(), ({"r"}, {"r"}))
        mover.load()
        mover.end()
        self.assertEqual(client.loads, [])
        self.assertEqual(mover.take_waited(), (set(), set()))


class Turns(unittest.TestCase):
    def test_layers_ahead(self):
        self.assertEqual([layers.turns(i, 5) for i in range(5)], [3, 4, 5, 5, 5])
        self.assertEqual(layers.turns(0, 1), 1)


if __name__ == "__main__":
    unittest.main()
