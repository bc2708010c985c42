"""What a scheduler loads and stores layer by layer, with a real rank's answers and without an engine."""

import random
import unittest
from unittest import mock

from rank import OneRank

from cascade_kv.layer_plan import Plan
from cascade_kv.layers import Group, Run, Step, key_of

LAYERS, TOKENS = 4, 16


class Plans(OneRank):
    groups = (Group(TOKENS, range(LAYERS)),)
    ahead = False

    def setUp(self):
        super().setUp()
        self.spaces = [f"{self.ns}-{rank}" for rank in range(2)]
        self.plan = self.new()

    def new(self, rate=None):
        return Plan(self.c, self.spaces, self.groups, self.ahead, rate)

    def names(self, n):
        return [random.randbytes(8) for _ in range(n)]

    def put(self, names, layers=range(LAYERS)):
        for ns in self.spaces:
            for n in names:
                for i in layers:
                    self.assertTrue(self.c.put(ns, key_of(n, i), b"x" * 100 + n + bytes([i])))

    def step(self, *what):
        step = Step()
        self.plan.begun(step)
        self.plan.schedule(step, *what)
        return step

    def test_all_layers_of_all_workers_or_none(self):
        names = self.names(6)
        self.put(names)
        self.assertEqual(self.plan.matched("r", [names], 6 * TOKENS, 0), 5 * TOKENS)  # a token is left to compute
        self.assertEqual(self.plan.matched("r", [names], 6 * TOKENS + 1, 2 * TOKENS), 4 * TOKENS)
        self.assertEqual(self.plan.matched("r", [names], 6 * TOKENS + 1, 2 * TOKENS + 1), 0)
        for ns, gone, want in ((self.spaces[1], 4, 4), (self.spaces[0], 3, 3), (self.spaces[1], 1, 1), (self.spaces[0], 0, 0)):
            self.c.delete(ns, [key_of(names[gone], 1)])
            self.assertEqual(self.plan.matched("r", [names], 6 * TOKENS + 1, 0), want * TOKENS)

    def test_what_is_computed_faster_is_not_loaded(self):
        names = self.names(6)
        self.put(names)
        for rate, want in ((None, 6), (1.0, 6), ("auto", 6)):
            self.assertEqual(self.new(rate).matched("r", [names], 6 * TOKENS + 1, 0), want * TOKENS, rate)
        with mock.patch.object(self.c, "advise") as advise:
            advise.return_value.blocks = LAYERS + 1  # one layer of a second block is of no use
            self.assertEqual(self.new(100.0).matched("r", [names], 6 * TOKENS + 1, 0), TOKENS)
            self.assertAlmostEqual(advise.call_args.args[2], TOKENS / 100.0 / LAYERS / 2)
        self.assertRaises(ValueError, self.new, -1)

    def test_a_request(self):
        """Its prefix is loaded in its first step; blocks are stored as they are full; blocks that were lost are stored anew."""
        names = self.names(6)
        self.put(names[:2])
        self.assertEqual(self.plan.matched("r", [names], 6 * TOKENS + 3, 0, shared_tokens=3 * TOKENS), 2 * TOKENS)
        self.plan.allocated("r", 2 * TOKENS)
        first = self.step("r", [[10, 11, 12, 13]], True, 2 * TOKENS, TOKENS + 5)
        self.assertEqual(first, Step([Run([10, 11], names[:2], None, 2)], [Run([12], names[2:3], names[1], 1)]))
        self.assertEqual(self.step("r", [[14, 15, 16]], False, 3 * TOKENS + 5, 3 * TOKENS - 2), Step([], [Run([13, 14, 15], names[3:], names[2])]))
        self.assertEqual(self.step("r", [], False, 6 * TOKENS + 3, 1), Step())
        back = self.step("r", [], False, TOKENS, 2 * TOKENS)
        self.assertEqual(back, Step([], [Run([11, 12], names[1:3], names[0], 2)]))
        self.plan.finished("r", None)
        self.assertEqual(self.step("r", [], False, 0, TOKENS), Step())

    def test_hints_reach_each_layer_of_each_worker(self):
        names = self.names(3)
        self.plan.matched("r", [names], 3 * TOKENS, 0, shared_tokens=TOKENS + 1)
        with mock.patch.object(self.c, "hint") as hint:
            self.plan.finished("r", 2.5)
        want = [(ns, [key_of(n, i) for n in names]) for ns in self.spaces for i in range(LAYERS)]
        self.assertEqual([c.args for c in hint.call_args_list], want)
        self.assertEqual({(c.kwargs["shared"], c.kwargs["due"]) for c in hint.call_args_list}, {(1, 2.5)})


class AheadPlans(Plans):
    """One group, whose requests wait for what they load."""

    ahead = True

    def test_a_request(self):
        names = self.names(6)
        self.put(names[:3])
        self.assertEqual(self.plan.matched("r", [names], 6 * TOKENS + 3, TOKENS), 2 * TOKENS)
        self.plan.allocated("r", 2 * TOKENS, [[9, 10, 11, 12]])
        self.assertEqual(self.step("another", [], True, 0, 1), Step(ahead={"r": [Run([10, 11], names[1:3])]}))
        self.plan.allocated("r", 0, [[9, 10, 11, 12]])  # once more, when it has them
        self.assertEqual(self.step("r", [[9, 10, 11, 12]], True, 3 * TOKENS, TOKENS), Step(stores=[Run([12], names[3:4], names[2])]))

    def test_what_was_lost_once_is_not_waited_for_again(self):
        names = self.names(2)
        self.put(names)
        self.assertEqual(self.plan.matched("r", [names], 2 * TOKENS + 1, 0), 2 * TOKENS)
        self.plan.lost({"r", "gone"})
        self.assertEqual([self.plan.matched("r", [names], 2 * TOKENS + 1, 0) for _ in range(3)], [0] * 3)
        self.assertEqual(self.plan.matched("s", [names], 2 * TOKENS + 1, 0), 2 * TOKENS)
        self.plan.finished("r", None)
        self.assertEqual(self.plan.matched("r", [names], 2 * TOKENS + 1, 0), 2 * TOKENS)


class Groups(Plans):
    """Attention to all tokens in blocks of 32, and two groups with windows of 40 and 16 tokens in blocks of 16."""

    groups = (Group(2 * TOKENS, range(2)), Group(TOKENS, range(2, 3), 40), Group(TOKENS, range(3, 4), TOKENS))
    ahead = True
    TOTAL = 8 * TOKENS + 5

    def setUp(self):
        super().setUp()
        self.all = [self.names(4), self.names(8), self.names(8)]
        for names, group in zip(self.all, self.groups, strict=True):
            self.put(names, group.layers)

    def lose(self, group, block, space=1):
        self.assertEqual(self.c.delete(self.spaces[space], [key_of(self.all[group][block], self.groups[group].layers[-1])]), 1)

    def matched(self, computed=0, prompt=TOTAL, request="r"):
        return self.plan.matched(request, self.all, prompt, computed)

    def test_all_layers_of_all_workers_or_none(self):
        """As far as all groups have what they need to go on there, in blocks that are whole in all groups."""
        self.assertEqual(self.matched(), 8 * TOKENS)
        self.assertEqual(self.matched(prompt=8 * TOKENS), 6 * TOKENS)
        self.assertEqual(self.matched(computed=2 * TOKENS), 6 * TOKENS)
        self.assertEqual(self.matched(computed=TOKENS), 0)
        # To go on after 128 tokens the first window needs 89 to 127, which are in its blocks 5 to 7, and the second one 113 to 127.
        self.lose(1, 4)
        self.lose(2, 6)
        self.assertEqual(self.matched(), 8 * TOKENS)
        self.lose(1, 5, 0)
        # After 96, tokens from 57: 3 to 5. After 64, from 25: 1 to 3.
        self.assertEqual(self.matched(), 4 * TOKENS)
        self.lose(2, 3)
        self.assertEqual(self.matched(), 2 * TOKENS)
        self.assertEqual(self.matched(computed=2 * TOKENS), 0)
        self.lose(0, 0)
        self.assertEqual(self.matched(), 0)
        self.assertEqual(self.matched(computed=2 * TOKENS), 0)

    def test_a_hole_in_the_whole_group(self):
        self.lose(0, 2)
        self.assertEqual(self.matched(), 4 * TOKENS)
        self.assertEqual(self.matched(computed=6 * TOKENS), 2 * TOKENS)

    def test_what_is_computed_faster_is_not_loaded(self):
        self.assertRaises(ValueError, self.new, 100.0)
        self.assertRaises(ValueError, Plan, self.c, self.spaces, self.groups)

    def test_a_request(self):
        """It loads the blocks that the engine has kept for it, and stores what it computes by group."""
        self.assertEqual(self.matched(computed=2 * TOKENS, prompt=6 * TOKENS + 5), 4 * TOKENS)
        blocks = [[1, 2, 3, 4], [None, None, None, 15, 16, 17, 18], [None] * 5 + [25, 26]]
        self.plan.allocated("r", 4 * TOKENS, blocks)
        a, b, c = self.all
        waits = Step(ahead={"r": [Run([2, 3], a[1:3]), Run([15, 16, 17], b[3:6], group=1), Run([25], c[5:6], group=2)]})
        self.assertEqual(self.step("another", [], True, 0, 1), waits)
        got = [[1, 2, 3, 4], [0, 0, 0, 15, 16, 17, 18], [0, 0, 0, 0, 0, 25, 26]]
        step = self.step("r", got, True, 6 * TOKENS, TOKENS)
        self.assertEqual(step, Step(stores=[Run([18], b[6:7], b[5], group=1), Run([26], c[6:7], c[5], group=2)]))
        step = self.step("r", [[], [19], [27]], False, 7 * TOKENS, TOKENS)
        self.assertEqual(step, Step(stores=[Run([4], a[3:], a[2]), Run([19], b[7:], b[6], group=1), Run([27], c[7:], c[6], group=2)]))

    def test_hints_reach_each_layer_of_each_worker(self):
        self.plan.matched("r", self.all, self.TOTAL, 0, shared_tokens=3 * TOKENS)
        with mock.patch.object(self.c, "hint") as hint:
            self.plan.finished("r", None)
        self.assertEqual(len(hint.call_args_list), 2 * LAYERS)
        self.assertEqual({(len(c.args[1]), c.kwargs["shared"]) for c in hint.call_args_list}, {(4, 1), (8, 3)})


if __name__ == "__main__":
    unittest.main()
