"""Engines and their rank are killed with -9 at random points of a mixed run: no wrong byte, and nothing stays held.

CASCADE_KILLS_SECONDS: how long it goes on, 10 by default. CASCADE_KILLS_SEED: what is drawn; a run prints its own.
"""

import logging
import os
import random
import signal
import time
import unittest

import mixed
from rank import Rank, until

from cascade_kv import Client

PROCESSES = 3
NOTHING = {"bytes": 0, "views": 0, "pins": 0, "stages": 0, "regions": 0, "jobs": 0}
GONE_SECONDS = 120  # a deadline for a busy machine; how long it takes is printed


class Kills(unittest.TestCase):
    def setUp(self):
        logging.disable(logging.CRITICAL)
        self.addCleanup(logging.disable, logging.NOTSET)
        # Small, so that blocks are evicted and what clients may hold together is soon used up.
        self.rank = Rank("32MiB")
        self.addCleanup(self.rank.end)
        self.rank.start()
        self.c = Client(self.rank.socket, timeout=60)
        self.addCleanup(self.c.close)
        self.board = mixed.Board(PROCESSES)
        self.children = {}
        self.addCleanup(self.kill_all)
        self.worst = 0.0
        self.held = dict.fromkeys(NOTHING, 0)

    def kill_all(self):
        for me in list(self.children):
            self.kill(me)

    def kill(self, me):
        child = self.children.pop(me)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)

    def gone(self, what, test):
        """Waits until the rank has given back what the dead had."""
        since = time.monotonic()
        until(test, what, GONE_SECONDS)
        self.worst = max(self.worst, time.monotonic() - since)

    def stats(self):
        got = self.c.stats()
        for k, n in got.get("held", {}).items():
            self.held[k] = max(self.held[k], n)
        return got

    def nothing_held(self):
        got = self.stats()
        return got and (got["held"], got["leases"], got["connections"]) == (NOTHING, 0, 1)

    def memory_of(self, memfd):
        """Whether the rank has a mapping or a descriptor of an engine's memory."""
        proc = f"/proc/{self.rank.child.pid}"
        with open(f"{proc}/maps") as f:
            if f"memfd:{memfd} " in f.read():
                return True
        for fd in os.listdir(f"{proc}/fd"):
            try:
                if f"memfd:{memfd} " in os.readlink(f"{proc}/fd/{fd}"):
                    return True
            except FileNotFoundError:
                pass
        return False

    def test_mixed_run(self):
        seed = int(os.environ.get("CASCADE_KILLS_SEED") or random.randrange(1 << 31))
        seconds = float(os.environ.get("CASCADE_KILLS_SECONDS") or 10)
        print(f"\nCASCADE_KILLS_SEED={seed}", flush=True)
        rng = random.Random(seed)
        end = time.monotonic() + seconds
        lives = kills = restarts = 0
        while time.monotonic() < end or not restarts:
            names = {}
            for me in range(PROCESSES):
                lives += 1
                names[me] = f"mixed-{me}-{seed + lives}"
                self.children[me] = mixed.process(self.rank.socket, self.board, me, PROCESSES, seed + lives)
            time.sleep(rng.uniform(0.02, 0.6))
            if rng.random() < 0.4:
                self.rank.kill()
                restarts += 1
                time.sleep(rng.choice((0, 0, 0.2)))
                self.rank.start()
                time.sleep(rng.uniform(0.05, 0.8))  # the engines come back
            self.stats()
            for me in rng.sample(range(PROCESSES), PROCESSES):
                self.kill(me)
                kills += 1
                self.gone("the rank has let go of a dead engine's memory", lambda: not self.memory_of(names[me]))
                time.sleep(rng.choice((0, 0, 0.1)))
            self.gone("nothing is held for the dead", self.nothing_held)
            self.assertEqual(self.board.told(), [])
        self.used_again()
        done = {k: (int(n), int(h)) for k, n, h in zip(mixed.KINDS, self.board.done, self.board.hits)}
        print(f"{kills} engines and {restarts} ranks killed in {seconds:g} s; all given back after {1000 * self.worst:.0f} ms at the longest")
        print(f"done, and hits: {done}; seen held at once: {self.held}")
        if seconds >= 10:  # else a busy machine may not come to all of it
            self.assertTrue(all(n and h for n, h in done.values()), done)
            self.assertTrue(all(n for k, n in self.held.items() if k != "jobs"), self.held)  # a job is over too soon to be seen for sure

    def used_again(self):
        """Nothing of the arena is lost: as much of it can be staged as of a new rank's, and once all is deleted it is as empty."""
        self.assertTrue(self.c.clear(mixed.NS))
        fresh = Rank("32MiB").start()
        try:
            with Client(fresh.socket) as c:
                c.put(mixed.NS, "k", b"v")  # sets aside the room of records
                c.clear(mixed.NS)
                want = c.stats()["tiers"][0]["usage"]
        finally:
            fresh.end()
        used = None

        def empty():
            nonlocal used
            used = self.c.stats()["tiers"][0]["usage"]
            return used["Blocks"] == want["Blocks"] and used["Payload"] == want["Payload"]

        self.gone("the arena is empty again", empty)
        print(f"arena when all is deleted: {used}, of a new rank: {want}")


if __name__ == "__main__":
    unittest.main()
