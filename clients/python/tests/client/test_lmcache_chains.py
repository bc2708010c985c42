"""Chains that LMCache's look-ups tell of."""

import random
import unittest

import rank  # noqa: F401  where the package is

from cascade_kv.lmcache_chains import Chains, Run


def names(*letters):
    return [c.encode() for c in letters]


def told(runs, of):
    """Runs as texts: the parent, and the names."""
    return [((r.parent or b"").decode(), r.chain, "".join(of[i].decode() for i in r.places)) for r in runs]


class Runs(unittest.TestCase):
    def runs(self, chains, letters):
        of = names(*letters)
        return told(chains.runs(of), of)

    def test_nothing_is_known(self):
        self.assertEqual(self.runs(Chains(), "abc"), [("", False, "abc")])
        self.assertEqual(self.runs(Chains(), ""), [])

    def test_a_prompt(self):
        c = Chains()
        c.learn(names(*"abcd"), [False] * 4)
        self.assertEqual(self.runs(c, "abcd"), [("", True, "abcd")])
        self.assertEqual(self.runs(c, "abcd"), [("", False, "abcd")], "it was forgotten")

    def test_the_rest_of_a_prompt(self):
        c = Chains()
        c.learn(names(*"abcd"), [True, True, False, False])
        self.assertEqual(self.runs(c, "cd"), [("b", True, "cd")])

    def test_in_pieces_and_in_any_order(self):
        c = Chains()
        c.learn(names(*"abcd"), [False] * 4)
        self.assertEqual(self.runs(c, "ba"), [("", True, "ab")])
        self.assertEqual(self.runs(c, "dc"), [("b", True, "cd")])

    def test_branches_and_strangers(self):
        c = Chains()
        c.learn(names(*"abc"), [False] * 3)
        c.learn(names(*"abx"), [False] * 3)
        runs = self.runs(c, "zaxbc")
        self.assertEqual(runs[0], ("", False, "z"))
        self.assertEqual(runs[1:], [("", True, "abx"), ("b", True, "c")])

    def test_a_circle(self):
        c = Chains()
        c.learn(names(*"ab"), [False] * 2)
        c.learn(names(*"ba"), [False] * 2)
        c.learn(names(*"cc"), [False] * 2)
        self.assertEqual(sorted("".join(n for _, _, n in self.runs(c, "abc"))), list("abc"))

    def test_it_is_bounded(self):
        c = Chains(most=2)
        c.learn(names(*"abcdef"), [False] * 6)
        self.assertEqual(self.runs(c, "abcdef"), [("", False, "abc"), ("", True, "def")])

    def test_every_name_once_and_parents_first(self):
        rng = random.Random(1)
        for _ in range(200):
            c, of = Chains(), names(*"abcdefghij")
            for _ in range(3):
                some = sorted(rng.sample(of, rng.randrange(1, 8)))  # else there may be circles
                c.learn(some, [rng.random() < 0.2 for _ in some])
            stored = rng.sample(of, rng.randrange(len(of)))
            runs = c.runs(stored)
            self.assertEqual(sorted(i for r in runs for i in r.places), list(range(len(stored))))
            self.assertTrue(all(r.chain or r.parent is None for r in runs))
            before = set()
            for r in runs:
                self.assertTrue(r.parent not in stored or r.parent in before, (stored, runs))
                before.update(stored[i] for i in r.places)
            self.assertTrue(all(isinstance(r, Run) for r in runs))


if __name__ == "__main__":
    unittest.main()
