"""What an engine is advised to load: what it computes faster stays where it is."""

import unittest
from unittest import mock

from rank import MIB, ChainInFiles, until

from cascade_kv import AsyncClient, Client, Layout, advice
from cascade_kv.worth import Worth

BLOCK = MIB
KEYS = [f"k{i}" for i in range(48)]
FAST = 1e12  # tokens a second: whatever is loaded is slower
SLOW = 1.0


class Advice(ChainInFiles):
    keys = KEYS

    def test_what_is_slow_to_compute_is_loaded(self):
        a = self.c.advise("ns", KEYS, 60.0)
        self.assertEqual((a.hits, a.blocks, a.bytes), (len(KEYS), len(KEYS), len(KEYS) * BLOCK))
        self.assertGreater(a.seconds, 0)

    def test_what_takes_no_time_is_computed(self):
        a = self.c.advise("ns", KEYS, 0.0)
        self.assertEqual((a.hits, a.blocks), (len(KEYS), 0))

    def test_what_is_in_memory_is_loaded_without_a_question(self):
        key = KEYS[-1]
        self.assertEqual(self.c.put("hot", key, b"x" * BLOCK), True)
        self.assertEqual(self.c.probe("hot", [key]).hits, 1)
        with mock.patch.object(self.c, "_run", side_effect=AssertionError("it asks")):
            self.assertEqual(self.c.advise("hot", [key], 0.0).blocks, 1)

    def test_what_is_learned(self):
        fast = Worth("auto")
        for chain in range(4):
            keys = [f"learned{chain}/{i}" for i in range(8)]
            self.assertEqual(fast.leading(self.c, "learned", keys, None), 0)
            for k in keys:
                self.c.put("learned", k, b"x" * 5000 + k.encode())
        told = [n for n in self.c.stats()["namespaces"] if n["name"] == "learned"]
        self.assertGreater(told[0].get("prefill_block_us", 0), 0)
        self.assertEqual(fast.leading(self.c, "learned", keys, None), 8)  # memory is faster still, or it is not asked

    def test_each_prefix(self):
        """Levels, bytes and times of all prefixes, in the order of the chain, whoever answers."""
        asked = self.c.advise("ns", KEYS, 60.0)
        self.assertGreater(len(asked.runs), 1)
        for found in (asked, self.c.probe("ns", KEYS)):
            self.assertEqual((sum(r.hits for r in found.runs), sum(r.bytes for r in found.runs)), (len(KEYS), len(KEYS) * BLOCK))
            self.assertEqual({t: sum(r.hits for r in found.runs if r.tier == t) for t in found.tiers}, found.tiers)
            times = [r.load_seconds for r in found.runs]
            self.assertEqual((times, times[-1]), (sorted(times), found.load_seconds))

        def same():
            with mock.patch.object(self.c, "_run", side_effect=AssertionError("it asks")):
                known = self.c.probe("ns", KEYS)
            return [r[:3] for r in known.runs] == [r[:3] for r in self.c._run(lambda s: advice.probe(s, "ns", KEYS), None).runs]

        until(same, "one answer by the index and by the rank")  # a probe brings blocks into memory

    def test_nothing(self):
        self.assertEqual(self.c.advise("ns", [], 1.0).blocks, 0)
        self.assertEqual(self.c.advise("none", KEYS, 1.0).blocks, 0)

    def test_asynchronously(self):
        import asyncio

        async def ask():
            async with AsyncClient(self.rank.socket) as c:
                return await c.advise("ns", KEYS, 60.0), await c.advise("ns", KEYS, 0.0)

        slow, fast = asyncio.run(ask())
        self.assertEqual((slow.blocks, fast.blocks), (len(KEYS), 0))

    def test_worth(self):
        layout = Layout(bytes=BLOCK, tokens=64)
        for rate, known, want in ((None, layout, 48), (SLOW, layout, 48), (FAST, layout, 0), (FAST, None, 48), (FAST, Layout(), 48)):
            # without tokens of a block, which the rank does not know either, all is loaded
            self.assertEqual(Worth(rate).leading(self.c, "ns", KEYS, known), want, (rate, known))
        self.assertEqual(Worth("auto").leading(self.c, "ns", KEYS, None), 48)  # nothing is learned of what was put without a question
        self.assertTrue(self.c.set_layout("ns", layout))
        for rate, want, tokens in ((SLOW, 48, 48 * 64), (FAST, 0, 0)):
            self.assertEqual(Worth(rate).leading(self.c, "ns", KEYS, None), want, rate)
            a = self.c.advise("ns", KEYS, tokens_per_second=rate)
            self.assertEqual((a.blocks, a.tokens), (want, tokens))
        self.assertEqual(Worth(1e300).leading(self.c, "ns", KEYS, None), 0)  # more than a rank takes
        for bad in (0, -1, float("nan"), float("inf"), "fast"):
            self.assertRaises(ValueError, Worth, bad)


if __name__ == "__main__":
    unittest.main()
