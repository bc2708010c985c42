"""A rank that is away, killed, restarted, stopped: misses, never an exception, and no byte after the answer."""

import logging
import os
import random
import signal
import threading
import time
import unittest

import numpy as np
from rank import MIB, OneRank, Pool, Rank, extents, names, until

from cascade_kv import Client, Probe

BLOCK = 256 << 10


class Away(unittest.TestCase):
    def setUp(self):
        logging.disable(logging.CRITICAL)
        self.addCleanup(logging.disable, logging.NOTSET)
        self.rank = Rank()
        self.addCleanup(self.rank.end)
        self.c = Client(self.rank.socket, timeout=5)
        self.addCleanup(self.c.close)
        self.pool = Pool(16 * MIB)
        self.keys = names(8)
        self.here, self.there = extents(8, BLOCK), extents(8, BLOCK, at=8 * MIB)

    def back(self):
        return self.pool.array[8 * MIB : 8 * MIB + 8 * BLOCK]

    def all_miss(self, region):
        c, keys = self.c, self.keys
        self.assertIsNone(c.get("n", "k"))
        self.assertEqual(c.get_into("n", "k", bytearray(100_000)), -1)
        self.assertIs(c.put("n", "k", b"v"), False)
        self.assertEqual(c.contains("n", keys).tolist(), [False] * 8)
        self.assertEqual(c.probe("n", keys), Probe())
        self.assertEqual(c.store("n", region, keys, self.here).tolist(), [0] * 8)
        self.assertEqual(c.load("n", region, keys, self.here).tolist(), [0] * 8)
        self.assertIs(c.store("n", region, keys, self.here, job=1), False)
        self.assertIs(c.load("n", region, keys, self.here, job=1), False)
        self.assertEqual((c.done(), c.done(0.01), c.cancel(1)), ([], [], False))
        self.assertEqual((c.view("n", "k"), c.views("n", keys)), (None, [None] * 8))
        self.assertEqual((c.delete("n", keys), c.clear("n"), c.stats(), c.events(7).next), (0, False, {}, 7))
        self.assertFalse(c.up)

    def test_before_it_comes_and_when_it_is_there(self):
        region = self.c.region(fd=self.pool.fd)
        self.all_miss(region)
        self.rank.start()
        until(lambda: self.c.up, "the rank is up")
        data = self.pool.fill(1, 8 * BLOCK)
        self.assertEqual(self.c.store("n", region, self.keys, self.here).tolist(), [1] * 8)
        self.assertEqual(self.c.load("n", region, self.keys, self.there).tolist(), [1] * 8)
        np.testing.assert_array_equal(self.back(), data)

    def test_killed_and_started_again(self):
        self.rank.start()
        region = self.c.region(fd=self.pool.fd)
        data = self.pool.fill(2, 8 * BLOCK)
        for _ in range(3):
            self.assertEqual(self.c.store("n", region, self.keys, self.here).tolist(), [1] * 8)
            view = self.c.view("n", self.keys[0])
            self.assertTrue(view.held)
            self.rank.kill()
            self.assertFalse(view.held)  # without having asked
            self.all_miss(region)
            self.assertEqual(view.array.nbytes, BLOCK)  # still mapped
            self.rank.start()
            until(lambda: self.c.up, "the rank is up again")
            self.assertEqual(self.c.store("n", region, self.keys, self.here).tolist(), [1] * 8)
            self.back()[:] = 0
            self.assertEqual(self.c.load("n", region, self.keys, self.there).tolist(), [1] * 8)
            np.testing.assert_array_equal(self.back(), data)
            self.assertIsNotNone(self.c.view("n", self.keys[0]))

    def test_a_restart_between_two_calls_is_not_even_a_miss(self):
        self.rank.start()
        region = self.c.region(fd=self.pool.fd)
        self.pool.fill(3, 8 * BLOCK)
        self.assertEqual(self.c.store("n", region, self.keys, self.here).tolist(), [1] * 8)
        self.rank.kill()
        self.rank.start()
        self.assertEqual(self.c.store("n", region, self.keys, self.here).tolist(), [1] * 8)
        self.rank.kill()
        self.rank.start()
        self.assertIs(self.c.load("n", region, self.keys, self.there, job=1), True)
        self.assertEqual([j for j, _ in self.c.done(30)], [1])
        self.rank.kill()
        self.rank.start()
        self.assertTrue(self.c.up)

    def test_jobs_of_a_killed_rank_are_told_as_failed(self):
        self.rank.start()
        region = self.c.region(fd=self.pool.fd)
        self.pool.fill(4, 8 * BLOCK)
        queued = [j for j in range(300) if self.c.store("n", region, self.keys, self.here, replace=True, job=j)]
        self.rank.kill()
        told = {}
        while len(told) < len(queued):
            some = self.c.done(30)
            self.assertTrue(some, f"{len(told)} of {len(queued)} told")
            for job, statuses in some:
                self.assertNotIn(job, told)
                self.assertEqual(len(statuses), 8)
                told[job] = statuses
        self.assertEqual(sorted(told), queued)
        self.assertEqual(self.c.done(0.05), [])

    def test_kills_at_random_points_of_a_mixed_run(self):
        """Three threads go on over seven kills. What is loaded is right, and nobody sees an exception."""
        self.rank.start()
        stop = threading.Event()
        wrong, good = [], [0, 0, 0]

        def engine(me):
            try:
                pool, rng = Pool(8 * MIB), random.Random(me)
                region = self.c.region(fd=pool.fd)
                while not stop.is_set():
                    seed = rng.randrange(20)
                    keys = [f"{me}-{seed}-{i}" for i in range(4)]
                    data = pool.fill(seed * 10 + me, 4 * BLOCK)
                    self.c.store("m", region, keys, extents(4, BLOCK), chain=True)
                    at = 4 * MIB
                    got = self.c.load("m", region, keys, extents(4, BLOCK, at=at))
                    for i in np.flatnonzero(got):
                        if not np.array_equal(pool.array[at + i * BLOCK : at + (i + 1) * BLOCK], data[i * BLOCK : (i + 1) * BLOCK]):
                            wrong.append((me, seed, i))
                        good[me] += 1
                    pool.array[at:] = 0
                    if self.c.load("m", region, keys[:1], extents(1, BLOCK, at=at), job=me):
                        while not any(job == me for job, _ in self.done(me)):
                            pass
                    value = self.c.get("m", keys[1])
                    if value is not None and value != data[BLOCK : 2 * BLOCK].tobytes():
                        wrong.append((me, seed, "get"))
            except BaseException as e:
                wrong.append(repr(e))
                raise

        self.told, self.telling = {}, threading.Lock()
        threads = [threading.Thread(target=engine, args=(i,)) for i in range(3)]
        for t in threads:
            t.start()
        try:
            for _ in range(7):
                time.sleep(random.uniform(0.05, 0.3))
                self.rank.kill()
                self.rank.start()
            before = list(good)
            until(lambda: all(g > b for g, b in zip(good, before)) or wrong, "all threads have hits after the last kill", 60)
        finally:
            stop.set()
            for t in threads:
                t.join(60)
        self.assertFalse(any(t.is_alive() for t in threads))
        self.assertEqual(wrong, [])

    def done(self, me):
        """done() is for all threads: each takes what is for it."""
        with self.telling:
            for job, statuses in self.c.done(0.01):
                self.told.setdefault(job, []).append(statuses)
            return [(me, self.told[me].pop())] if self.told.get(me) else []

    def test_a_stopped_rank_is_a_miss_after_the_timeout(self):
        self.rank.start()
        c = Client(self.rank.socket, timeout=0.3)
        self.addCleanup(c.close)
        until(lambda: c.put("n", "k", b"v"), "stored, within this short timeout")
        self.rank.pause()
        self.assertIsNone(c.get("n", "k"))
        self.assertIsNone(c.get("n", "k"))
        self.rank.go_on()
        until(lambda: c.get("n", "k") == b"v", "a hit again")

    def test_nothing_is_written_after_a_load_was_given_up(self):
        """The load returns when the rank has closed its end, which a stopped one can not, not when its time is over."""
        self.rank.start()
        c = Client(self.rank.socket, timeout=0.2)
        self.addCleanup(c.close)
        region = c.region(fd=self.pool.fd)
        self.pool.fill(5, 8 * BLOCK)
        until(lambda: c.store("n", region, self.keys, self.here).all(), "stored, within this short timeout")
        self.rank.pause()
        out = []
        t = threading.Thread(target=lambda: out.append(c.load("n", region, self.keys, self.there)))
        t.start()
        t.join(1.5)
        self.assertTrue(t.is_alive())
        self.rank.go_on()
        t.join(30)
        self.assertEqual(out[0].tolist(), [0] * 8)
        self.back()[:] = 7
        until(lambda: c.contains("n", self.keys).all(), "up again")
        self.assertTrue((self.back() == 7).all())

    def test_jobs_of_a_stopped_rank_are_told_when_it_lets_go(self):
        self.rank.start()
        c = Client(self.rank.socket, timeout=0.2)
        self.addCleanup(c.close)
        region = c.region(fd=self.pool.fd)
        self.pool.fill(6, 8 * BLOCK)
        until(lambda: c.store("n", region, self.keys, self.here).all(), "stored, within this short timeout")
        self.rank.pause()
        self.assertIs(c.load("n", region, self.keys, self.there, job=1), True)  # it was sent: nobody knows
        self.assertIsNone(c.get("n", self.keys[0]))
        self.assertEqual(c.done(0.5), [])
        self.assertIs(c.load("n", region, self.keys, self.there, job=1), False)  # the number is not free
        self.rank.go_on()
        self.assertEqual([(j, s.tolist()) for j, s in c.done(30)], [(1, [0] * 8)])

    def test_closed(self):
        self.rank.start()
        region = self.c.region(fd=self.pool.fd)
        self.c.put("n", "k", b"v")
        view = self.c.view("n", "k")
        self.c.store("n", region, self.keys, self.here, job=1)
        self.c.close()
        self.c.close()
        self.assertFalse(view.held)
        self.all_miss(region)
        view.release()
        with Client(self.rank.socket) as other:
            self.assertEqual(other.get("n", "k"), b"v")


class Sharing(OneRank):
    def test_three_threads_at_once(self):
        wrong = []

        def work(me):
            try:
                pool = Pool(2 * MIB)
                region = self.c.region(fd=pool.fd)
                for i in range(60):
                    value = os.urandom(random.choice((10, 5000, 100_000)))
                    key = f"{me}-{i}"
                    assert self.c.put(self.ns, key, value)
                    assert self.c.get(self.ns, key) == value
                    data = pool.fill(i, MIB)
                    e = np.array([[[0, MIB]]])
                    assert self.c.store(self.ns, region, [key + "r"], e).tolist() == [1]
                    with self.c.view(self.ns, key + "r") as v:
                        assert np.array_equal(v.array, data)
                    assert self.c.probe(self.ns, [key, key + "r", "x"]).hits == 2
            except BaseException as e:
                wrong.append(e)
                raise

        threads = [threading.Thread(target=work, args=(i,)) for i in range(3)]
        for t in threads:
            t.start()
        for t in threads:
            t.join(120)
        self.assertEqual(wrong, [])

    def test_a_forked_child_has_a_connection_of_its_own(self):
        value = os.urandom(100_000)
        self.c.put(self.ns, "k", value)
        view = self.c.view(self.ns, "k")
        r, w = os.pipe()
        child = os.fork()
        if child == 0:
            ok = False
            try:
                view.release()  # the parent's: this changes nothing
                ok = self.c.get(self.ns, "k") == value and self.c.put(self.ns, "child", b"c") and self.c.view(self.ns, "k") is not None
                self.c.close()
            finally:
                os.write(w, b"1" if ok else b"0")
                os._exit(0)
        for _ in range(200):  # at the same time
            self.assertEqual(self.c.get(self.ns, "k"), value)
        os.waitpid(child, 0)
        self.assertEqual(os.read(r, 1), b"1")
        os.close(r), os.close(w)
        self.assertTrue(view.held)
        self.assertEqual(view.array.tobytes(), value)
        self.assertEqual(self.c.get(self.ns, "child"), b"c")

    def test_a_fork_while_another_thread_asks(self):
        stop = threading.Event()
        t = threading.Thread(target=lambda: [self.c.get(self.ns, "none") for _ in iter(stop.is_set, True)])
        t.start()
        try:
            for _ in range(10):
                child = os.fork()
                if child == 0:
                    signal.alarm(20)  # ends a child that hangs
                    os._exit(0 if self.c.put(self.ns, "k", b"v") and self.c.get(self.ns, "k") == b"v" else 1)
                self.assertEqual(os.waitpid(child, 0)[1], 0)
        finally:
            stop.set()
            t.join(30)

    def test_what_a_client_had_is_given_back_when_it_dies(self):
        before = open_files(self.rank.child.pid)
        for _ in range(3):
            child = os.fork()
            if child == 0:
                c, pool = Client(self.rank.socket), Pool(MIB)
                region = c.region(fd=pool.fd)
                c.store(self.ns, region, ["k"], np.array([[[0, MIB]]]))
                c.view(self.ns, "k")
                os.kill(os.getpid(), signal.SIGKILL)
            os.waitpid(child, 0)
        until(lambda: open_files(self.rank.child.pid) <= before, "the rank has closed what was the children's", 5)


def open_files(pid):
    return len(os.listdir(f"/proc/{pid}/fd"))


if __name__ == "__main__":
    unittest.main()
