"""Readers beside writers that put, overwrite and delete until blocks are evicted, on a rank that may be killed meanwhile."""

import hashlib
import logging
import os
import random
import threading
import time

from rank import Rank, until

from cascade_kv import Client

READERS = WRITERS = 2


def value(key, version, size):
    """Bytes that tell whose they are, all of them."""
    head = f"{key}|{version}|{size}|".encode()
    if size < len(head):
        return head[:size]
    rest = hashlib.shake_128(head).digest(size - len(head))
    return head + rest


def right(key, got):
    """Whether these bytes were ever put under this key."""
    if len(got) < 60:
        return True
    k, version, size, _ = got.split(b"|", 3)
    return k.decode() == key and got == value(key, int(version), int(size)) and len(got) == int(size)


class Storm:
    """A part of a test case, which reads: read(me) until stop is set, with hits[me] counted and what is wrong noted."""

    SECONDS = float(os.environ.get("CASCADE_STORM_SECONDS", "4"))
    SIZES: tuple[int, ...]

    def setUp(self):
        logging.disable(logging.CRITICAL)
        self.addCleanup(logging.disable, logging.NOTSET)
        self.rank = Rank("32MiB").start()
        self.addCleanup(self.rank.end)
        self.keys = [f"key-{i}" for i in range(160)]
        self.wrong, self.hits, self.stop = [], [0] * READERS, threading.Event()

    def write(self, me):
        rng = random.Random(me)
        with Client(self.rank.socket) as c:
            while not self.stop.is_set():
                key = rng.choice(self.keys)
                what = rng.random()
                if what < 0.85:
                    c.put("n", key, value(key, rng.randrange(1 << 40), rng.choice(self.SIZES)))
                elif what < 0.99:
                    c.delete("n", [key])
                else:
                    c.clear("n")

    def run_storm(self, meanwhile):
        def contained(work, me):
            try:
                work(me)
            except BaseException as e:
                self.wrong.append(repr(e))
                raise

        threads = [threading.Thread(target=contained, args=(self.write, i)) for i in range(WRITERS)]
        threads += [threading.Thread(target=contained, args=(self.read, i)) for i in range(READERS)]
        for t in threads:
            t.start()
        try:
            meanwhile()
        finally:
            self.stop.set()
            for t in threads:
                t.join()
        self.assertEqual(self.wrong, [])
        self.assertTrue(all(self.hits), self.hits)

    def wait(self):
        end = time.monotonic() + self.SECONDS
        while not self.wrong and (time.monotonic() < end or not all(self.hits)):
            time.sleep(0.05)

    def kill(self):
        """The rank is killed and started again on the same arena, which readers still have mapped with the table of the one before."""
        end = time.monotonic() + self.SECONDS
        kills = 0
        while not self.wrong and (time.monotonic() < end or kills < 3):
            time.sleep(random.uniform(0.05, 0.4))
            self.rank.kill()
            self.rank.start()
            kills += 1
        was = list(self.hits)
        until(lambda: self.wrong or all(n > w for n, w in zip(self.hits, was)), "hits again")
