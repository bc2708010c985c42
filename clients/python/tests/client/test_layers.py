"""Blocks layer by layer, on a real rank, without an engine."""

import random
import time
import unittest
from unittest import mock

import numpy as np
from rank import MIB, OneRank, Rank, until

from cascade_kv import Client, layers
from cascade_kv.layers import Mover, Plan, Run, Step, key_of

LAYERS, BLOCKS, BYTES, TOKENS = 4, 64, 4096, 16


class Memory:
    """One layer of an engine; late is for copies that end only when they are looked at again."""

    def __init__(self, late=False):
        self.rows, self.late = np.zeros((BLOCKS, BYTES), np.uint8), late

    def read(self, blocks, into):
        into[:] = self.rows[list(blocks)]
        return self._copied()

    def write(self, blocks, out_of):
        self.rows[list(blocks)] = out_of
        return self._copied()

    def _copied(self):
        looks = iter((False, False, True))
        return (lambda: next(looks)) if self.late else None


class Layers(OneRank):
    late = False

    def engine(self, socket=None, staging=MIB):
        memories = [Memory(self.late) for _ in range(LAYERS)]
        mover = Mover(Client(socket or self.rank.socket), self.ns, memories, BYTES, staging)
        self.addCleanup(mover.close)
        return memories, mover

    def names(self, n, tag=None):
        tag = tag or random.randbytes(8)
        return [tag + bytes([i]) for i in range(n)]

    def run_step(self, mover, step, seen=None):
        mover.begin(step)
        mover.load()
        for layer in range(LAYERS):
            mover.wait(layer)
            if seen is not None:
                seen(layer)
            mover.save(layer)
        mover.end()

    def stored(self, n, staging=MIB):
        memories, mover = self.engine(staging=staging)
        for i, m in enumerate(memories):
            m.rows[:] = np.random.default_rng(i).integers(0, 256, m.rows.shape, dtype=np.uint8)
        names = self.names(n)
        with mock.patch.object(layers, "STORE_SECONDS", 60.0):  # the machine may be busy
            self.run_step(mover, Step(stores=[Run(list(range(n)), names)]))
        mover.drain(10)
        self.assertEqual((mover.stored, mover.dropped), (n * LAYERS, 0))
        return memories, names

    def test_a_fresh_engine_has_each_layer_before_it_computes_it(self):
        for staging in (MIB, BYTES):  # a buffer has one block
            with self.subTest(staging):
                there, names = self.stored(20, staging)
                here, mover = self.engine(staging=staging)
                blocks = list(range(40, 20, -1))
                seen = []

                def look(layer, here=here, there=there, blocks=blocks, seen=seen):
                    seen.append((here[layer].rows[blocks] == there[layer].rows[:20]).all())

                self.run_step(mover, Step(loads=[Run(blocks, names)]), look)
                self.assertEqual((seen, mover.take_failed(), mover.loaded), ([True] * LAYERS, set(), 20 * LAYERS))

    def test_layers_are_asked_for_in_their_order(self):
        _, names = self.stored(8)
        _, mover = self.engine()
        asked = []
        load = mover._client.load
        with mock.patch.object(mover._client, "load", side_effect=lambda ns, r, keys, *a, **k: asked.append(keys[0][-1]) or load(ns, r, keys, *a, **k)):
            self.run_step(mover, Step(loads=[Run(list(range(8)), names)]))
        self.assertEqual(asked, list(range(LAYERS)))

    def test_what_is_lost_is_reported_and_nothing_after_it_is_stored(self):
        _, names = self.stored(8)
        self.assertEqual(self.c.delete(self.ns, [key_of(names[5], 2)]), 1)
        _, mover = self.engine()
        more = self.names(2)
        self.run_step(mover, Step(loads=[Run(list(range(8)), names)], stores=[Run([8, 9], more, names[-1])]))
        self.assertEqual(mover.take_failed(), {5})
        mover.drain(10)
        have = [self.c.contains(self.ns, [key_of(n, i) for n in more]).tolist() for i in range(LAYERS)]
        self.assertEqual(have[2:], [[False] * 2] * 2)  # of the first two, as much as was computed before it was known
        # A step that was planned before the scheduler had heard of it.
        self.run_step(mover, Step(stores=[Run([8, 9], more)]))
        mover.drain(10)
        self.assertFalse(self.c.contains(self.ns, [key_of(more[0], i) for i in (2, 3)]).any())
        self.run_step(mover, Step(stores=[Run([8, 9], more)], failures=1))
        mover.drain(10)
        self.assertTrue(self.c.contains(self.ns, [key_of(n, i) for n in more for i in range(LAYERS)]).all())

    def test_a_fault_of_a_copy_is_a_miss_of_all(self):
        _, names = self.stored(4)
        here, mover = self.engine()
        mover.begin(Step(loads=[Run([0, 1, 2, 3], names)]))
        with mock.patch.object(here[0], "write", side_effect=RuntimeError("no device")), self.assertRaises(RuntimeError):
            mover.load()
            mover.wait(0)
        mover.fail()
        mover.end()
        self.assertEqual(mover.take_failed(), {0, 1, 2, 3})
        mover.drain(10)
        self.assertEqual(sorted(mover._free), list(range(layers.BUFFERS)))

    def test_loads_nobody_waited_for_are_misses(self):
        _, names = self.stored(4)
        _, mover = self.engine()
        mover.begin(Step(loads=[Run([0, 1, 2, 3], names)]))
        mover.load()
        mover.wait(0)
        mover.end()
        self.assertEqual(mover.take_failed(), {0, 1, 2, 3})
        mover.drain(10)
        self.assertEqual(sorted(mover._free), list(range(layers.BUFFERS)))

    def test_a_rank_that_hangs_costs_a_step_one_wait(self):
        """Not one for each layer."""
        _, names = self.stored(8)
        _, mover = self.engine()
        with mock.patch.object(layers, "LOAD_SECONDS", 0.2), mock.patch.object(mover._client, "done", side_effect=lambda s: time.sleep(s) or []) as done:
            self.run_step(mover, Step(loads=[Run(list(range(8)), names)]))
        self.assertEqual(mover.take_failed(), set(range(8)))
        self.assertLess(sum(call.args[0] for call in done.call_args_list), 0.3)
        mover.drain(10)

    def test_a_killed_rank_is_a_miss(self):
        rank = Rank().start()
        self.addCleanup(rank.end)
        _, mover = self.engine(rank.socket)
        names = self.names(4)
        self.run_step(mover, Step(stores=[Run([0, 1, 2, 3], names)]))
        mover.drain(10)
        rank.kill()
        self.run_step(mover, Step(loads=[Run([4, 5, 6, 7], names)]))
        self.assertEqual(mover.take_failed(), {4, 5, 6, 7})
        self.run_step(mover, Step(stores=[Run([0], self.names(1))], failures=1))
        mover.drain(10)
        self.assertFalse(mover.busy)
        rank.start()

        def again():
            self.run_step(mover, Step(stores=[Run([0, 1, 2, 3], names)], failures=1))
            mover.drain(10)
            self.run_step(mover, Step(loads=[Run([4, 5, 6, 7], names)], failures=mover._failures))
            return not mover.take_failed()

        until(again, "it loads again")


class LateCopies(Layers):
    """As on a device, whose copies go on while the engine computes: stores wait for them."""

    late = True


class Plans(OneRank):
    def setUp(self):
        super().setUp()
        self.plan = Plan(self.c, self.ns, LAYERS, TOKENS)

    def put(self, names):
        for n in names:
            for i in range(LAYERS):
                self.assertTrue(self.c.put(self.ns, key_of(n, i), b"x" * BYTES + n + bytes([i])))

    def step(self, *what):
        step = Step()
        self.plan.schedule(step, *what)
        return self.plan.planned(step)

    def test_all_layers_or_none(self):
        names = [random.randbytes(8) for _ in range(6)]
        self.put(names)
        self.assertEqual(self.plan.matched("r", names, 6 * TOKENS, 0), 5 * TOKENS)  # a token is left to compute
        self.assertEqual(self.plan.matched("r", names, 6 * TOKENS + 1, 2 * TOKENS), 4 * TOKENS)
        self.assertEqual(self.plan.matched("r", names, 6 * TOKENS + 1, 2 * TOKENS + 1), 0)
        self.c.delete(self.ns, [key_of(names[3], 1)])
        self.assertEqual(self.plan.matched("r", names, 6 * TOKENS + 1, 0), 3 * TOKENS)

    def test_what_is_computed_faster_is_not_loaded(self):
        names = [random.randbytes(8) for _ in range(6)]
        self.put(names)
        for rate, want in ((None, 6), (1.0, 6), ("auto", 6)):
            self.assertEqual(Plan(self.c, self.ns, LAYERS, TOKENS, rate).matched("r", names, 6 * TOKENS + 1, 0), want * TOKENS, rate)
        with mock.patch.object(self.c, "advise") as advise:
            advise.return_value.blocks = LAYERS + 1  # one layer of a second block is of no use
            self.assertEqual(Plan(self.c, self.ns, LAYERS, TOKENS, 100.0).matched("r", names, 6 * TOKENS + 1, 0), TOKENS)
            self.assertAlmostEqual(advise.call_args.args[2], TOKENS / 100.0 / LAYERS)
        self.assertRaises(ValueError, Plan, self.c, self.ns, LAYERS, TOKENS, -1)

    def test_a_request(self):
        """Its prefix is loaded in its first step; blocks are stored as they are full; blocks that were lost are stored anew."""
        names = [random.randbytes(8) for _ in range(6)]
        self.put(names[:2])
        self.assertEqual(self.plan.matched("r", names, 6 * TOKENS + 3, 0, shared_tokens=3 * TOKENS), 2 * TOKENS)
        self.plan.allocated("r", 2 * TOKENS)
        first = self.step("r", [10, 11, 12, 13], True, 2 * TOKENS, TOKENS + 5)
        self.assertEqual(first, Step([Run([10, 11], names[:2], None, 2)], [Run([12], names[2:3], names[1], 1)]))
        self.assertEqual(self.step("r", [14, 15, 16], False, 3 * TOKENS + 5, 3 * TOKENS - 2), Step([], [Run([13, 14, 15], names[3:], names[2])]))
        self.assertEqual(self.step("r", [], False, 6 * TOKENS + 3, 1), Step())
        self.plan.failed()
        back = self.step("r", [], False, TOKENS, 2 * TOKENS)
        self.assertEqual(back, Step([], [Run([11, 12], names[1:3], names[0], 2)], failures=1))
        self.plan.finished("r", None)
        self.assertEqual(self.step("r", [], False, 0, TOKENS), Step(failures=1))

    def test_hints_reach_each_layer(self):
        names = [random.randbytes(8) for _ in range(3)]
        self.plan.matched("r", names, 3 * TOKENS, 0, shared_tokens=TOKENS + 1)
        with mock.patch.object(self.c, "hint") as hint:
            self.plan.finished("r", 2.5)
        self.assertEqual([c.args[1] for c in hint.call_args_list], [[key_of(n, i) for n in names] for i in range(LAYERS)])
        self.assertEqual({(c.kwargs["shared"], c.kwargs["due"]) for c in hint.call_args_list}, {(1, 2.5)})


if __name__ == "__main__":
    unittest.main()
