"""Blocks layer by layer, on a real rank, without an engine."""

import random
import time
import unittest
from unittest import mock

import numpy as np
from rank import MIB, OneRank, Rank, until

from cascade_kv import Client, layers
from cascade_kv.layers import Group, Mover, Run, Step, key_of

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


class Engines(OneRank):
    late = False
    groups = (Group(TOKENS, range(LAYERS)),)

    def engine(self, socket=None, staging=MIB):
        memories = [Memory(self.late) for _ in range(LAYERS)]
        mover = Mover(Client(socket or self.rank.socket), self.ns, memories, BYTES, staging, groups=self.groups)
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
        """n blocks of each group, of the same names."""
        memories, mover = self.engine(staging=staging)
        for i, m in enumerate(memories):
            m.rows[:] = np.random.default_rng(i).integers(0, 256, m.rows.shape, dtype=np.uint8)
        names = self.names(n)
        with mock.patch.object(layers, "STORE_SECONDS", 60.0):  # the machine may be busy
            self.run_step(mover, Step(stores=[Run(list(range(n)), names, group=g) for g in range(len(self.groups))]))
        mover.drain(10)
        self.assertEqual((mover.counts.stored, mover.counts.not_stored), (n * LAYERS, 0))
        return memories, names


class Layers(Engines):
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
                self.assertEqual((seen, mover.take_failed(), mover.counts.loaded), ([True] * LAYERS, set(), 20 * LAYERS))

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
        self.run_step(mover, Step(stores=[Run([8, 9], more)]))
        mover.drain(10)
        self.assertTrue(self.c.contains(self.ns, [key_of(n, i) for n in more for i in range(LAYERS)]).all())

    def test_a_step_loads_before_it_stores(self):
        """The ends of its loads become known one by one, in their order; that of the last layer when the engine comes to it."""
        _, names = self.stored(8)
        _, mover = self.engine()
        done, ended, order = mover._client.done, {}, []

        def one_by_one(seconds):
            number = len(order) + 1
            ended.update(done(0.0 if number in ended else seconds))
            if number not in ended:
                return []
            order.append(number)
            return [(number, ended.pop(number))]

        beside, store = [], mover._client.store

        def note(ns, region, keys, *args, **kwargs):
            beside.append((keys[0][-1], mover._loading()))
            return store(ns, region, keys, *args, **kwargs)

        left, end = [], mover.end
        more = self.names(2)
        with (
            mock.patch.object(mover._client, "done", one_by_one),
            mock.patch.object(mover._client, "store", note),
            mock.patch.object(mover, "end", side_effect=lambda: left.extend(mover._put_off) or end()),
        ):
            self.run_step(mover, Step(loads=[Run(list(range(8)), names)], stores=[Run([8, 9], more, names[-1])]))
            mover.drain(10)
        self.assertEqual((beside, left), ([(i, False) for i in range(LAYERS)], []))  # what the end of the step finds left: nothing
        self.assertEqual((mover.take_failed(), mover.counts.stored, mover.counts.not_stored), (set(), 2 * LAYERS, 0))

    def test_stores_are_not_put_off_beyond_their_step(self):
        """Nor beyond what the staging memory has room for: there, 20 buffers are wanted where there are 16."""
        _, names = self.stored(1)
        for blocks, staging, early in ((2, MIB, []), (5, BYTES, [0] * 5)):
            with self.subTest(blocks):
                memories, mover = self.engine(staging=staging)
                copied, done = [], mover._client.done
                for layer, memory in enumerate(memories):

                    def read(blocks, into, copied=copied, layer=layer, read=memory.read):
                        copied.append(layer)
                        return read(blocks, into)

                    memory.read = read

                # The end of the first layer's load is not seen in the step.
                hidden: list = []

                def but_first(seconds, done=done, hidden=hidden):
                    got = list(done(seconds))
                    hidden.extend(e for e in got if e[0] == 1)
                    return [e for e in got if e[0] != 1]

                def all_of(seconds, done=done, hidden=hidden):
                    got, hidden[:] = hidden + list(done(0.0 if hidden else seconds)), []
                    return got

                more = self.names(blocks)
                step = Step(stores=[Run(list(range(8, 8 + blocks)), more)], ahead={"r": [Run([0], names)]})
                with mock.patch.object(layers, "STORE_SECONDS", 60.0), mock.patch.object(mover._client, "done", but_first):
                    mover.begin(step)
                    mover.load()
                    for layer in range(LAYERS):
                        mover.wait(layer)
                        mover.save(layer)
                    self.assertEqual(copied, early)
                    mover.end()
                    self.assertEqual(sorted(copied), sorted(list(range(LAYERS)) * (blocks if staging == BYTES else 1)))
                with mock.patch.object(mover._client, "done", all_of):
                    mover.drain(10)
                self.assertEqual((mover.busy, mover.counts.stored, mover.counts.loaded), (False, blocks * LAYERS, LAYERS))

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
        self.run_step(mover, Step(stores=[Run([0], self.names(1))]))
        mover.drain(10)
        self.assertFalse(mover.busy)
        rank.start()

        def again():
            self.run_step(mover, Step(stores=[Run([0, 1, 2, 3], names)]))
            mover.drain(10)
            self.run_step(mover, Step(loads=[Run([4, 5, 6, 7], names)]))
            return not mover.take_failed()

        until(again, "it loads again")


class LateCopies(Layers):
    """As on a device, whose copies go on while the engine computes: stores wait for them."""

    late = True


class Ahead(Engines):
    """Loads that requests wait for, of two groups of layers."""

    groups = (Group(TOKENS, range(2)), Group(TOKENS, range(2, LAYERS), 2 * TOKENS))

    def waited(self, mover, step):
        """Steps, of which the first has the loads, until its requests wait no more: all, and those that lost something."""
        ended, lost, wanted = set(), set(), set(step.ahead)
        deadline = time.monotonic() + 60
        while ended != wanted:
            self.assertLess(time.monotonic(), deadline, ended)
            self.run_step(mover, step)
            mover.advance()
            now_ended, now_lost = mover.take_waited()
            ended, lost, step = ended | now_ended, lost | now_lost, Step(computes=False)
        return ended, lost

    def until_ended(self, mover, request, ended):
        """Requests that have ended when this one has, and those of them that lost something."""
        ended, lost, deadline = set(ended), set(), time.monotonic() + 60
        while request not in ended:
            self.assertLess(time.monotonic(), deadline)
            mover.advance()
            now_ended, now_lost = mover.take_waited()
            ended, lost = ended | now_ended, lost | now_lost
        return ended, lost

    def fetch(self, blocks, names):
        """What of each group is to be loaded into blocks, of the second one the last two."""
        return Step(ahead={"r": [Run(list(blocks), names), Run(list(blocks)[-2:], names[-2:], group=1)]})

    def test_a_request_has_all_groups_before_it_is_computed(self):
        for staging in (MIB, BYTES):
            with self.subTest(staging):
                there, names = self.stored(20, staging)
                here, mover = self.engine(staging=staging)
                blocks = list(range(40, 20, -1))
                self.assertEqual(self.waited(mover, self.fetch(blocks, names)), ({"r"}, set()))
                for i in range(LAYERS):
                    some = blocks if i < 2 else blocks[-2:]
                    self.assertTrue((here[i].rows[some] == there[i].rows[20 - len(some) : 20]).all(), i)
                    rest = [b for b in range(BLOCKS) if b not in some]
                    self.assertFalse(here[i].rows[rest].any(), i)
                self.assertEqual((mover.counts.loaded, mover.counts.lost, mover.take_failed()), (20 * 2 + 2 * 2, 0, set()))

    def test_one_object_lost_is_all_lost_and_nothing_is_written_afterwards(self):
        for layer, block in ((0, 0), (1, 7), (2, 6), (3, 7)):
            with self.subTest(layer=layer):
                _, names = self.stored(8)
                _, others = self.stored(4)
                self.assertEqual(self.c.delete(self.ns, [key_of(names[block], layer)]), 1)
                here, mover = self.engine(staging=BYTES)
                step = self.fetch(range(8), names)
                step.ahead["other"] = [Run([20, 21, 22, 23], others), Run([22, 23], others[2:], group=1)]
                mover.begin(step)
                mover.load()
                ended, lost = self.until_ended(mover, "r", set())
                for m in here:
                    m.rows[:8] = 77  # the engine has given the blocks to another request
                mover.end()
                ended, more = self.until_ended(mover, "other", ended)
                self.assertEqual((ended, lost | more), ({"r", "other"}, {"r"}))
                mover.drain(10)
                self.assertTrue(all((m.rows[:8] == 77).all() for m in here))
                self.assertEqual(mover.take_failed(), set())
                self.assertEqual(sorted(mover._free), list(range(layers.BUFFERS)))

    def test_steps_store_while_a_request_waits_for_what_is_lost(self):
        """Nothing that is computed has to do with it."""
        _, names = self.stored(4)
        self.c.delete(self.ns, [key_of(names[0], 0)])
        _, mover = self.engine()
        more, step = self.names(2), self.fetch(range(4), names)
        step.stores = [Run([8, 9], more), Run([8, 9], more, group=1)]
        self.assertEqual(self.waited(mover, step), ({"r"}, {"r"}))
        mover.drain(10)
        self.assertTrue(self.c.contains(self.ns, [key_of(n, i) for n in more for i in range(LAYERS)]).all())

    def test_a_rank_that_hangs_ends_the_wait(self):
        _, names = self.stored(8)
        here, mover = self.engine()
        with mock.patch.object(layers, "LOAD_SECONDS", 0.2), mock.patch.object(mover._client, "done", side_effect=lambda s: time.sleep(s) or []):
            self.assertEqual(self.waited(mover, self.fetch(range(8), names)), ({"r"}, {"r"}))
        self.assertEqual(mover.counts.bubble_seconds, 0.0)
        mover.drain(10)
        self.assertFalse(any(m.rows.any() for m in here))
        self.assertEqual(sorted(mover._free), list(range(layers.BUFFERS)))

    def test_a_fault_of_a_copy_is_a_miss_of_all(self):
        _, names = self.stored(4)
        here, mover = self.engine()
        mover.begin(self.fetch(range(4), names))
        with mock.patch.object(here[0], "write", side_effect=RuntimeError("no device")), self.assertRaises(RuntimeError):
            mover.load()
            while not mover.take_waited()[0]:
                mover.advance()
        mover.fail()
        self.assertEqual(mover.take_waited(), ({"r"}, {"r"}))
        mover.drain(10)
        self.assertEqual(sorted(mover._free), list(range(layers.BUFFERS)))

    def test_nothing_to_load_is_no_wait(self):
        _, mover = self.engine()
        self.assertEqual(self.waited(mover, Step(ahead={"r": []})), ({"r"}, set()))

    def test_a_killed_rank_is_a_miss(self):
        rank = Rank().start()
        self.addCleanup(rank.end)
        _, mover = self.engine(rank.socket)
        names = self.names(4)
        self.run_step(mover, Step(stores=[Run([0, 1, 2, 3], names), Run([0, 1, 2, 3], names, group=1)]))
        mover.drain(10)
        rank.kill()
        self.assertEqual(self.waited(mover, self.fetch(range(4, 8), names)), ({"r"}, {"r"}))

    def test_layers_of_which_the_engine_says_nothing_are_stored_at_the_end(self):
        here, mover = self.engine()
        names = self.names(2)
        mover.begin(Step(stores=[Run([0, 1], names), Run([0, 1], names, group=1)]))
        mover.load()
        mover.save(1)
        for m in here:
            m.rows[:2] = 5
        mover.end()
        mover.drain(10)
        self.assertTrue(self.c.contains(self.ns, [key_of(n, i) for n in names for i in range(LAYERS)]).all())
        self.assertEqual([bytes(self.c.get(self.ns, key_of(names[0], i)))[:1] for i in range(LAYERS)], [b"\5", b"\0", b"\5", b"\5"])


class LateAhead(Ahead):
    late = True


if __name__ == "__main__":
    unittest.main()
