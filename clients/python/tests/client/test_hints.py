"""What is declared of chains: of how many keys there are blocks, what comes into memory, and that a client without a rank goes on."""

import asyncio
import json
from unittest import mock

import numpy as np
from rank import ChainInFiles, Pool, extents, until

from cascade_kv import AsyncClient, Client, advice, ops
from cascade_kv.errors import Refused
from cascade_kv.resp import as_map, head, words

KEYS = [f"k{i}" for i in range(24)]


def _one(*command):
    return (yield ops.Request(head(len(command)) + words(*command)))


class Hints(ChainInFiles):
    keys = KEYS

    def test_reaches_what_is_there(self):
        self.assertEqual(self.c.hint("ns", [*KEYS, "absent"], shared=3, due=30.5), len(KEYS))
        self.assertEqual(self.c.hint("ns", KEYS, shared=3), len(KEYS))
        self.assertEqual(self.c.hint("ns", [b"absent"], due=1e9), 0)

    def test_nothing_is_declared(self):
        self.assertEqual((self.c.hint("ns", KEYS), self.c.hint("ns", [], due=1.0), self.c.hint("ns", KEYS, shared=-1)), (0, 0, 0))

    def test_soon_fetches(self):
        in_files = [k for k in KEYS if self.c.probe("ns", [k]).tiers.get("lustre")]
        self.assertTrue(in_files)
        self.c.hint("ns", in_files[:2], due=0)
        until(lambda: self.c.probe("ns", in_files[:2]).tiers.get("shm"), "what is needed soon is in memory")

    def test_with_a_store(self):
        """The first of the keys are marked, in each of the commands that a long store takes, and those stored before learn it too."""
        pool, n, size = Pool(4 * 4096), 4, 4096
        region = self.c.region(fd=pool.fd)
        keys = [f"stored{i}" for i in range(n)]
        pool.fill(7)
        self.assertEqual(self.c.store("stored", region, keys, extents(n, size), chain=True, shared=2, due=30.0).tolist(), [1] * n)
        self.assertEqual([self.stat("stored", k, b"prefix") for k in keys], [1, 1, 0, 0])
        self.assertIn("due after", self.class_of("stored", keys[3]))
        self.assertEqual(self.c.store("stored", region, keys, extents(n, size), chain=True).tolist(), [1] * n)
        self.assertTrue(self.c.store("stored", region, keys, extents(n, size), chain=True, due=1e9, job=1))
        self.assertEqual(self.c.done(30)[0][1].tolist(), [1] * n)
        self.assertIn("due after", self.class_of("stored", keys[3]))
        pool.fill(8)
        new = [f"later{i}" for i in range(3)]
        with mock.patch.object(ops, "batches", lambda keys, each=0: iter([(0, 2), (2, 3)])):
            self.assertEqual(self.c.store("stored", region, new, extents(3, size), chain=True, shared=3).tolist(), [1] * 3)
        self.assertEqual([self.stat("stored", k, b"prefix") for k in new], [1, 1, 1])

    def test_with_advice(self):
        """They count with the request: when one of its blocks is stored."""
        self.c.put("advised", "another", b"x" * 5000)
        keys = ["a", "b", "c"]
        self.assertEqual(self.c.advise("advised", keys, shared=2, due=40.0).hits, 0)
        for k in keys:
            self.c.put("advised", k, k.encode() * 5000)
        self.assertIn("due after", self.class_of("advised", "a"))
        self.assertEqual(self.c.advise("advised", keys, due=0).blocks, 3)

    def test_a_rank_of_before(self):
        """One that takes no words is asked as before, and told what is declared by itself."""
        told = []

        def rank(m):
            told.append(m)
            if m[:2] == ["CASCADE.ADVISE", "n"] and m[-2] == "KEYS":
                raise Refused("ERR value is not an integer or out of range")
            if "SHARED" in m and m[0] == "CASCADE.STORE":
                raise Refused("ERR syntax error")
            if m[0] == "CASCADE.STORE":
                return b"\1"
            return 1 if m[0] == "CASCADE.HINT" else [b"hits", 1, b"bytes", 5, b"tiers", [b"shm", 1], b"blocks", 1, b"blocks_us", 3]

        def drive(op):
            answer, refused = None, None
            try:
                while True:
                    request = op.throw(refused) if refused else op.send(answer)
                    answer, refused = None, None
                    try:
                        answer = rank([w.decode() for w in request.data.split(b"\r\n")[2::2]])
                    except Refused as e:
                        refused = e
            except StopIteration as end:
                return end.value

        found = drive(advice.advise(None, "n", ["k"], advice.Ask(0.5, None, 1, 2.0)))
        self.assertEqual((found.hits, found.blocks, found.tokens, found.seconds), (1, 1, None, 3e-6))
        self.assertEqual(told, [
            ["CASCADE.ADVISE", "n", "BLOCK", "500000", "SHARED", "1", "DUE", "2000", "KEYS", "k"],
            ["CASCADE.ADVISE", "n", "500000", "k"],
            ["CASCADE.HINT", "n", "SHARED", "1", "DUE", "2000", "KEYS", "k"],
        ])  # fmt: skip
        told.clear()
        self.assertEqual(drive(advice.advise(None, "n", ["k"], advice.Ask(None, 1000.0))).blocks, 1)
        self.assertEqual([m[2] for m in told], ["PREFILL", "auto"])
        told.clear()
        move = ops.Move("CASCADE.STORE", "n", mock.Mock(number=3), ["k"], np.zeros((1, 1, 2), np.uint64), chain=True, shared=1)
        self.assertEqual(drive(ops.move(mock.Mock(regions={3: 7}), move)).tolist(), [1])
        self.assertEqual([m[4:] for m in told], [["SHARED", "1", "CHAIN", "KEYS", "k"], ["CHAIN", "KEYS", "k"]])

    def stat(self, ns, key, field):
        return self.ask("CASCADE.STAT", ns, key)[field]

    def class_of(self, ns, key):
        return json.loads(self.c._run(lambda s: _one("CASCADE.WHY", ns, key), b""))["levels"][0]["class"]

    def ask(self, *command):
        return as_map(self.c._run(lambda s: _one(*command), []))

    def test_asynchronously(self):
        async def declare():
            async with AsyncClient(self.rank.socket) as c:
                return await c.hint("ns", KEYS, due=2.0), (await c.advise("here", ["k", "absent"], 60.0, shared=2)).blocks

        self.c.put("here", "k", b"x" * 5000)
        self.assertEqual(asyncio.run(declare()), (len(KEYS), 1))

    def test_without_a_rank(self):
        with Client("/tmp/cascade-nobody.sock") as c:
            self.assertEqual(c.hint("ns", KEYS, due=1.0), 0)
