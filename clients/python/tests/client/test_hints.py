"""What is declared of chains: of how many keys there are blocks, what comes into memory, and that a client without a rank goes on."""

import asyncio

from rank import ChainInFiles, until

from cascade_kv import AsyncClient, Client

KEYS = [f"k{i}" for i in range(24)]


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

    def test_asynchronously(self):
        async def declare():
            async with AsyncClient(self.rank.socket) as c:
                return await c.hint("ns", KEYS, due=2.0)

        self.assertEqual(asyncio.run(declare()), len(KEYS))

    def test_without_a_rank(self):
        with Client("/tmp/cascade-nobody.sock") as c:
            self.assertEqual(c.hint("ns", KEYS, due=1.0), 0)
