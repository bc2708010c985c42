"""Bits of the arena and of segments are flipped under the client: what is read is right, or a miss."""

import contextlib
import logging
import os
import random
import signal
import unittest

import numpy as np
from mixed import value_of
from rank import MIB, Pool, Rank

from cascade_kv import Client, ops
from cascade_kv.resp import head, words
from engines.rank import flip

BLOCKS = 192
ROUNDS = 5
BITS = 200  # of each round
SLOT = 256 << 10
SUPERBLOCK = 48  # bytes of an arena without which no rank starts with it: docs/format.md §2.2
NS = "flips"
WAYS = ("get", "get_into", "load", "load job", "view")


class Reader:
    """A client that reads in each way that there is, and compares."""

    def __init__(self, test, rank, cold):
        self.cold = cold
        self.test, self.c = test, Client(rank.socket, timeout=60)
        self.pool = Pool(SLOT)
        self.region = self.c.region(fd=self.pool.fd)
        self.hits, self.misses = dict.fromkeys(WAYS, 0), dict.fromkeys(WAYS, 0)

    def put(self, version):
        for key in range(BLOCKS):
            self.test.assertTrue(self.c.put(NS, b"%d" % key, value_of(key, version)))
            if key % (BLOCKS // 12) == 0 and self.cold:
                self.drain()

    def drain(self):
        def op(state):
            return (yield ops.Request(head(1) + words("CASCADE.DRAIN")))

        self.test.assertIsInstance(self.c._run(op, None), int)

    def read(self, version):
        """Reads each block first in one way, then in all. Returns how many of the first were misses."""
        lost = sum(self.one(WAYS[key % len(WAYS)], key, version) for key in range(BLOCKS))
        for key in range(BLOCKS):
            for way in WAYS:
                self.one(way, key, version)
        return lost

    def one(self, way, key, version):
        want = value_of(key, version)
        got = getattr(self, "by_" + way.replace(" ", "_"))(b"%d" % key, len(want))
        if got is None:
            self.misses[way] += 1
            return 1
        if not np.array_equal(got, want):
            self.test.fail(f"{way}: key {key} has wrong bytes in version {version}")
        self.hits[way] += 1
        return 0

    def by_get(self, key, size):
        value = self.c.get(NS, key)
        return None if value is None else np.frombuffer(value, dtype=np.uint8)

    def by_get_into(self, key, size):
        into = np.full(SLOT, 0xEE, dtype=np.uint8)
        n = self.c.get_into(NS, key, into, pool=True)
        return None if n < 0 else into[:n]

    def by_load(self, key, size):
        self.pool.array[:] = 0xEE
        (status,) = self.c.load(NS, self.region, [key], np.array([[[0, size]]]))
        return self.pool.array[:size] if status == 1 else None

    def by_load_job(self, key, size):
        self.pool.array[:] = 0xEE
        self.test.assertTrue(self.c.load(NS, self.region, [key], np.array([[[0, size]]]), job=1))
        told = []
        while not told:
            told = self.c.done(60)
        ((_, (status,)),) = told
        return self.pool.array[:size] if status == 1 else None

    def by_view(self, key, size):
        view = self.c.view(NS, key)
        if view is None:
            return None
        with view:
            return view.array.copy()


class Flips(unittest.TestCase):
    def setUp(self):
        logging.disable(logging.CRITICAL)
        self.addCleanup(logging.disable, logging.NOTSET)
        self.seed = int(os.environ.get("CASCADE_FLIPS_SEED") or random.randrange(1 << 31))
        print(f"\nCASCADE_FLIPS_SEED={self.seed}", flush=True)

    def rounds(self, damage, cold=False):
        """A new rank for each round, with blocks of a version that is the round's number."""
        lost, hits, misses = [], dict.fromkeys(WAYS, 0), dict.fromkeys(WAYS, 0)
        for version in range(1, ROUNDS + 1):
            rank = Rank("64MiB")
            if cold:
                rank.command += ["--lustre-dir", rank.dir / "kv", "--lustre-segment-bytes", str(4 * MIB), "--lustre-index", "off"]
            try:
                reader = Reader(self, rank.start(), cold)
                self.addCleanup(reader.c.close)
                reader.put(version)
                damage(rank, reader, self.seed + version)
                lost.append(reader.read(version))
                self.assertIsNone(rank.child.poll(), "the rank ended")
            finally:
                rank.end()
            for way in WAYS:
                hits[way] += reader.hits[way]
                misses[way] += reader.misses[way]
        print(f"in {ROUNDS} rounds of {BLOCKS} blocks were lost: {lost}; hits {hits}, misses {misses}")
        for way in WAYS:
            self.assertTrue(hits[way] and misses[way], f"{way}: some blocks are damaged, some are not")

    def test_arena(self):
        self.rounds(lambda rank, reader, seed: flip([rank.arena], BITS, seed))

    def test_arena_that_the_next_rank_finds(self):
        def damage(rank, reader, seed):
            rank.kill()
            with rank.arena.open("r+b") as arena:
                superblock = arena.read(SUPERBLOCK)
                flip([rank.arena], BITS, seed)
                arena.seek(0)
                arena.write(superblock)
            rank.start()

        self.rounds(damage)

    def test_segments_under_a_rank(self):
        def damage(rank, reader, seed):
            self.cold(rank, reader, signal.SIGKILL)
            rank.start()
            flip(sorted(rank.dir.rglob("*.bin")), BITS, seed)

        self.rounds(damage, cold=True)

    def test_segments_that_the_next_rank_finds(self):
        def damage(rank, reader, seed):
            self.cold(rank, reader, signal.SIGTERM)
            flip(sorted(rank.dir.rglob("*.bin")), BITS, seed)
            rank.start()

        self.rounds(damage, cold=True)

    def test_a_segment_that_a_killed_rank_was_writing(self):
        """Of such a one a group of blocks that was written at once is taken whole or not at all. So here are fewer bits and several groups."""

        def damage(rank, reader, seed):
            self.cold(rank, reader, signal.SIGKILL)
            flip(sorted(rank.dir.rglob("*.bin")), 3, seed)
            rank.start()

        self.rounds(damage, cold=True)

    def cold(self, rank, reader, how):
        """The rank has ended, and all blocks are in its segments alone."""
        reader.drain()
        rank.kill(how)
        with contextlib.suppress(FileNotFoundError):
            rank.arena.unlink()


if __name__ == "__main__":
    unittest.main()
