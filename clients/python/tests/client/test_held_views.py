"""Views that are made by the shared index, on a rank: what they show stays what was put, and every one of them ends."""

import asyncio
import gc
import logging
import mmap
import os
import random
import struct
import threading
import unittest

from rank import MIB, OneRank, Rank, names, until
from storm import Storm, right, value
from test_holds import crc32c
from test_index import HELPER
from test_upgrade import upgrade

from cascade_kv import AsyncClient, Client
from cascade_kv.link import Request
from cascade_kv.resp import head, words

SLOT_0 = 128


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
class Storming(Storm, unittest.TestCase):
    """Views that are kept for a while."""

    SIZES = (100, 4096, 20_000, 70_001, 120_000)

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
        self.run_storm(self.wait)
        with Client(self.rank.socket) as c:
            until(lambda: c.stats()["held"]["bytes"] == 0, "all is given back")
            block = os.urandom(20 * MIB)  # what was held is room again
            self.assertTrue(c.put("n", "large", block))
            self.assertEqual(c.get("n", "large"), block)

    def test_over_kills(self):
        self.run_storm(self.kill)


if __name__ == "__main__":
    unittest.main()
