"""CascadeTier alone, with vLLM's own types and shared region, on a real rank; and what CascadeConnector does in which engine. Run by the environment's
Python: tier.py DAEMON FOLDER."""

import pathlib
import sys
import time
import types
import unittest
import uuid

import numpy as np
import torch
from prometheus_client import Counter, Gauge, Histogram
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheGroupSpec, MambaSpec, SlidingWindowSpec
from vllm.v1.kv_offload.base import LookupResult, ReqContext, ScheduleEndContext, make_offload_key
from vllm.v1.kv_offload.cpu.shared_offload_region import SharedOffloadRegion
from vllm.v1.kv_offload.tiering.base import TransferJob

from cascade_kv import Client, Layout
from cascade_kv import vllm_layers
from cascade_kv.layers import Counts, Group
from cascade_kv.vllm import CascadeTier
from engines.rank import Rank

ROWS, ROW = 64, 16 * 4096


def spec(**model):
    parallel = types.SimpleNamespace(rank=0, world_size=1, tp_size=1, pp_size=1, pcp_size=1, dcp_size=1, is_parallelism_agnostic=False)
    group = types.SimpleNamespace(group_id=0, tokens_per_block=16, layer_names=("l0", "l1"))
    config = types.SimpleNamespace(groups=(group,), model=types.SimpleNamespace(**{"name": "m", "dtype": "float32", **model}), parallel=parallel,
                                   cache=types.SimpleNamespace(tokens_per_hash=16, blocks_per_chunk=1), kv_cache_layout="LBHNC")
    return types.SimpleNamespace(config=config, kv_events_config=types.SimpleNamespace(enable_kv_cache_events=True))


class Tier(unittest.TestCase):
    def setUp(self):
        self.rank = Rank(FOLDER, 256 << 20, program=DAEMON)
        self.rank.__enter__()
        self.addCleanup(self.rank.__exit__)
        self.region = SharedOffloadRegion(f"cascade-test-{uuid.uuid4()}", ROWS, None, ROW, ROW)
        self.addCleanup(lambda: pathlib.Path(self.region.mmap_path).unlink(missing_ok=True))
        self.view = self.region.create_kv_memoryview()
        self.rows = np.frombuffer(self.view, dtype=np.uint8).reshape(ROWS, ROW)
        self.rows[:] = np.random.default_rng(1).integers(0, 256, self.rows.shape, dtype=np.uint8)
        self.tier = self.open()
        self.numbers = iter(range(1000))

    def open(self, **settings):
        tier = CascadeTier(spec(**settings.pop("model", {})), self.view, "CascadeTier", socket=str(self.rank.path), **settings)
        self.addCleanup(tier.shutdown)
        return tier

    def keys(self, n, request="r"):
        """Chunks of a request, noted as vLLM's scheduler does."""
        context, keys = ReqContext(req_id=request), [make_offload_key(bytes([i]) * 32, 0) for i in range(n)]
        for i, k in enumerate(keys):
            context.set_offload_key_position(k, 16 * (i + 1))
        return keys, context

    def job(self, keys, rows, context, load=False):
        job = TransferJob(next(self.numbers), keys, np.array(rows, dtype=np.int32), load, context)
        (self.tier.submit_load if load else self.tier.submit_store)(job)
        return job

    def results(self, tier=None):
        (tier or self.tier).drain_jobs()
        return list((tier or self.tier).get_finished_jobs())

    def store(self, n):
        keys, context = self.keys(n)
        self.job(keys, range(n), context)
        (result,) = self.results()
        self.assertTrue(result.success)
        self.assertEqual(result.transfer_bytes, n * ROW)
        return keys, context

    def test_hints_of_a_request(self):
        """What a request's sender knows reaches the rank when the request ends, chunk by chunk; nonsense does not."""
        keys, context = self.keys(4)
        self.job(keys, range(4), context)
        self.assertTrue(self.results())
        told = []
        self.tier._asker.hint = lambda ns, keys, **what: told.append((ns, keys, what))
        for params, want in (({"cascade_shared_tokens": 40, "cascade_due_seconds": 30}, {"shared": 2, "due": 30.0}), ({"cascade_due_seconds": 0}, {"shared": 0, "due": 0.0}),
                             ({"cascade_shared_tokens": "x", "cascade_due_seconds": float("nan")}, None), ({"cascade_due_seconds": -1}, None), (None, None)):
            told.clear()
            context.kv_transfer_params = params
            self.tier.on_request_finished(context)
            self.assertEqual(told, [] if want is None else [(self.tier._ns, [bytes(k) for k in keys], want)], params)

    def test_shared_chunks_are_stored_as_such(self):
        """The chunks that lie within what the sender calls shared are marked when they are stored, before any hint at the end of the request."""
        keys, context = self.keys(4)
        context.kv_transfer_params = {"cascade_shared_tokens": 40}
        self.job(keys[1:], range(3), context)
        self.job(keys[:1], [3], context)
        self.results()
        stored = [self.rank.ask("CASCADE.STAT", self.tier._ns, bytes(k)) for k in keys]
        self.assertEqual([dict(zip(s[::2], s[1::2]))[b"prefix"] for s in stored], [b"1", b"1", b"0", b"0"])

    def test_cold_chunks_are_found_at_once(self):
        """What lies in files alone is a hit or a miss at once, never RETRY: vLLM has a hit loaded in the same step, and the request waits for that."""
        folder = FOLDER / "cold"
        folder.mkdir()
        with Rank(folder, 64 << 20, program=DAEMON, cold=True) as rank:
            tier = CascadeTier(spec(), self.view, "CascadeTier", socket=str(rank.path))
            keys, context = self.keys(16)
            tier.submit_store(TransferJob(1, keys, np.arange(16, dtype=np.int32), False, context))
            self.assertTrue(self.results(tier)[0].success)
            tier.shutdown()
            rank.chill()
            for rate, want in ((None, LookupResult.HIT), (1e12, LookupResult.MISS), (1.0, LookupResult.HIT)):
                tier = CascadeTier(spec(), self.view, "CascadeTier", socket=str(rank.path), prefill_tokens_per_second=rate)
                context = self.keys(16, f"r{rate}")[1]
                self.assertEqual([tier.lookup(k, context) for k in keys], [want] * 16, rate)
                if rate == 1.0:
                    self.rows[:16], stored = 0, self.rows[:16].copy()
                    tier.submit_load(TransferJob(2, keys, np.arange(16, dtype=np.int32), True, context))
                    self.assertTrue(self.results(tier)[0].success)
                    self.assertTrue((self.rows[:16] == stored).all())
                tier.shutdown()

    def test_what_is_generated(self):
        """What comes after the prompt is marked. A job with both, and one of a request that was never scheduled, counts as of the prompt."""
        keys, context = self.keys(8)
        self.tier.on_new_request(prompt := ReqContext(req_id="r"))
        self.tier.on_schedule_end(ScheduleEndContext(set(), set()))
        for k in keys[:3]:
            prompt.set_offload_key_position(k, context.get_offload_key_position(k))
        self.tier.on_schedule_end(ScheduleEndContext({"r", "another"}, set()))
        for k in keys:
            prompt.set_offload_key_position(k, context.get_offload_key_position(k))
        self.tier.on_schedule_end(ScheduleEndContext(set(), {"r"}))
        for some in (keys[:2], keys[2:4], keys[4:]):
            self.job(some, range(len(some)), prompt)
            self.results()
            self.rows[:] += 1  # or its bytes would be a prompt's
        self.assertEqual([self.rank.generated(self.tier._ns, k) for k in keys], [False] * 4 + [True] * 4)
        self.tier.on_request_finished(prompt)
        (key,), unscheduled = [make_offload_key(b"u" * 32, 0)], self.keys(1, "u")[1]
        unscheduled.set_offload_key_position(key, 1000)
        self.tier.on_new_request(unscheduled)
        self.job([key], [40], unscheduled)
        self.results()
        self.assertFalse(self.rank.generated(self.tier._ns, key))
        self.tier.on_request_finished(unscheduled)
        self.assertEqual(self.tier._requests, {})

    def test_what_was_stored_is_found_and_loaded(self):
        keys, context = self.keys(4)
        self.assertEqual([self.tier.lookup(k, context) for k in keys], [LookupResult.MISS] * 4)
        keys, _ = self.store(4)
        with Client(str(self.rank.path)) as c:
            self.assertEqual(c.layout(self.tier._ns), Layout(tokens=16, layers=2, dtype="float32"))
        later = self.keys(5, "later")[1]
        self.assertEqual([self.tier.lookup(k, later) for k in keys], [LookupResult.HIT] * 4)
        self.assertEqual(self.tier.lookup(self.keys(5)[0][4], later), LookupResult.MISS)
        self.job(keys, [40, 30, 20, 10], later, load=True)
        (result,) = self.results()
        self.assertTrue(result.success)
        np.testing.assert_array_equal(self.rows[[40, 30, 20, 10]], self.rows[:4])

    def test_part_of_a_load_and_no_second_promise(self):
        self.store(3)
        keys, context = self.keys(4, "part")
        self.job(keys, [40, 41, 42, 43], context, load=True)
        (result,) = self.results()
        self.assertFalse(result.success)
        self.assertEqual(set(result.successful_keys), set(keys[:3]))
        self.tier.lookup(keys[0], context)
        self.job([keys[3]], [43], context, load=True)
        self.results()
        self.job([keys[3]], [3], context)  # it is there now, and stays a miss for the request that it was lost for
        self.results()
        self.assertEqual(self.tier.lookup(keys[3], context), LookupResult.MISS)
        self.assertEqual(self.tier.lookup(keys[3], self.keys(4, "other")[1]), LookupResult.HIT)

    def test_what_is_in_files_is_a_hit_at_once(self):
        """No look-up waits for blocks on their way: they are promised, and their load waits. So nothing is ever to be retried."""
        self.rank.__exit__()
        self.rank = Rank(FOLDER, 256 << 20, program=DAEMON, cold=True)
        self.rank.__enter__()
        self.addCleanup(self.rank.__exit__)
        self.tier = self.open()
        keys, _ = self.store(8)
        self.rank.chill()
        self.tier = self.open()
        for request in range(3):
            some, context = self.keys(10, f"cold{request}")
            found = [self.tier.lookup(k, context) for k in some]
            self.assertEqual(found, [LookupResult.HIT] * 8 + [LookupResult.MISS] * 2)
        self.job(keys, range(40, 48), context, load=True)
        (result,) = self.results()
        self.assertTrue(result.success)
        np.testing.assert_array_equal(self.rows[40:48], self.rows[:8])

    def test_how_fast_it_computes_is_learned(self):
        self.tier = self.open(prefill_tokens_per_second="auto")
        for chain in range(4):
            context, keys = ReqContext(req_id=f"learned{chain}"), [make_offload_key(bytes([chain, i]) * 16, 0) for i in range(8)]
            for i, k in enumerate(keys):
                context.set_offload_key_position(k, 16 * (i + 1))
            self.assertEqual([self.tier.lookup(k, context) for k in keys], [LookupResult.MISS] * 8)
            time.sleep(0.02)
            self.job(keys, range(8), context)
            self.results()
        with Client(str(self.rank.path)) as c:
            (space,) = [n for n in c.stats()["namespaces"] if n["name"] == self.tier._ns]
        self.assertGreaterEqual(space["prefill_block_us"], 20_000 / 8)
        again = ReqContext(req_id="again")
        for i, k in enumerate(keys):
            again.set_offload_key_position(k, 16 * (i + 1))
        self.assertEqual([self.tier.lookup(k, again) for k in keys], [LookupResult.HIT] * 8)

    def test_another_model_finds_nothing(self):
        keys, _ = self.store(2)
        for other in (self.open(model={"dtype": "bfloat16"}), self.open(model={"name": "n"}), self.open(tenant="v2")):
            self.assertEqual(other.lookup(keys[0], self.keys(2, "x")[1]), LookupResult.MISS)
        self.assertEqual(self.open().lookup(keys[0], self.keys(2, "x")[1]), LookupResult.HIT)

    def test_another_checkpoint_in_the_same_folder_finds_nothing(self):
        folder = FOLDER / "checkpoint"
        folder.mkdir()
        (folder / "model.safetensors").write_bytes(bytes(100_000))
        (folder / "config.json").write_text("{}")
        found = {}
        for text in ("{}", '{"quantization_config": {"quant_method": "fp8"}}', "{}"):
            (folder / "config.json").write_text(text)
            self.tier = self.open(model={"name": str(folder)})
            found.setdefault(text, []).append(self.tier.lookup(self.keys(1)[0][0], self.keys(1, f"x{len(found)}")[1]))
            self.store(1)
        self.assertEqual(list(found.values()), [[LookupResult.MISS, LookupResult.HIT], [LookupResult.MISS]])

    def test_events_of_what_comes_and_goes(self):
        self.tier = self.open(enable_kv_events=True)
        list(self.tier.take_events())
        keys, _ = self.store(2)
        (event,) = [e for e in self.tier.take_events() if not e.removed]
        self.assertEqual(event.keys, keys)
        with Client(str(self.rank.path)) as c:
            self.assertEqual(c.delete(self.tier._ns, keys[:1]), 1)
        gone, deadline = [], time.monotonic() + 30
        while not gone and time.monotonic() < deadline:
            gone = [k for e in self.tier.take_events() if e.removed for k in e.keys]
            time.sleep(0.05)
        self.assertEqual(gone, keys[:1])

    def test_a_rank_that_is_killed_and_comes_back(self):
        keys, context = self.store(4)
        self.rank.kill()
        away = self.keys(4, "away")[1]
        self.assertEqual(self.tier.lookup(keys[0], away), LookupResult.MISS)
        self.job(keys, range(4), away)
        self.job(keys, range(40, 44), away, load=True)
        self.assertEqual([r.success for r in self.results()], [False, False])
        self.assertEqual(list(self.tier.get_finished_jobs()), [])
        self.rank.start()
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            self.job(keys, range(4), context)
            (result,) = self.results()
            if result.success:
                break
            time.sleep(0.1)
        self.assertTrue(result.success)
        self.assertEqual(self.tier.lookup(keys[0], self.keys(4, "back")[1]), LookupResult.HIT)

    def test_a_rank_killed_with_jobs_under_way(self):
        keys, context = self.keys(32)
        for _ in range(8):
            self.job(keys, range(32), context)
        self.rank.kill()
        self.assertEqual(len(self.results()), 8)

    def test_metrics(self):
        names = set(CascadeTier.build_metric_definitions({}))
        keys, context = self.keys(2)
        self.job(keys, [1, 2], context, load=True)
        self.results()
        stats = self.tier.get_stats()
        self.assertEqual(stats.data["data"]["vllm:cascade_chunks_lost"], {("CascadeTier",): 2})
        self.assertLessEqual(set(stats.data["data"]), names)
        self.assertIsNone(self.tier.get_stats())


def parallel(**sizes):
    return types.SimpleNamespace(**{"world_size": 1, "tensor_parallel_size": 1, "decode_context_parallel_size": 1, **sizes})


class Connector(unittest.TestCase):
    def test_where_a_request_waits_for_all_that_it_loads(self):
        """In every engine in which vLLM does not compute again right what a lost layer spoiled."""
        one, window = [Group(16, range(4))], [Group(16, range(4), 64)]
        for groups, workers, asynchronous, second, why in (
            (one, 1, False, False, ""), (one + window, 1, False, False, "groups"), (window, 1, False, False, "windows"),
            (one, 2, False, False, "other workers"), (one, 1, True, False, "asynchronous"), (one, 1, False, True, "second model runner"),
        ):
            engine = types.SimpleNamespace(parallel_config=parallel(world_size=workers), use_v2_model_runner=second,
                                           scheduler_config=types.SimpleNamespace(async_scheduling=asynchronous))
            told = vllm_layers._whole_first(engine, groups)
            self.assertEqual(bool(told), bool(why), told)
            self.assertIn(why, told)

    def test_which_engines_it_serves(self):
        attention = {"block_size": 16, "num_kv_heads": 1, "head_size": 8, "dtype": torch.float32}
        full, window = FullAttentionSpec(**attention), SlidingWindowSpec(**attention, sliding_window=64)
        state = MambaSpec(block_size=16, shapes=((4, 4),), dtypes=(torch.float32,))
        for specs, sizes, why in (
            ([full], {}, ""), ([full, window], {"world_size": 2, "tensor_parallel_size": 2}, ""), ([full, state], {}, "MambaSpec"),
            ([full], {"world_size": 2}, "same layers"), ([full], {"world_size": 2, "tensor_parallel_size": 2, "decode_context_parallel_size": 2}, "same layers"),
        ):
            groups = [KVCacheGroupSpec([f"l{i}"], spec) for i, spec in enumerate(specs)]
            told = vllm_layers._unfit(types.SimpleNamespace(parallel_config=parallel(**sizes)), types.SimpleNamespace(kv_cache_groups=groups))
            self.assertEqual(bool(told), bool(why), told)
            self.assertIn(why, told)
        draft = [KVCacheGroupSpec(["l0"], full), KVCacheGroupSpec(["l1"], full, is_eagle_group=True)]
        self.assertIn("draft", vllm_layers._unfit(types.SimpleNamespace(parallel_config=parallel()), types.SimpleNamespace(kv_cache_groups=draft)))

    def test_metrics(self):
        """What workers count reaches vLLM's /metrics, each count once."""
        kind = vllm_layers.CascadeConnector
        workers = [object.__new__(kind), object.__new__(kind)]
        for worker in workers:
            worker._mover, worker._told = types.SimpleNamespace(counts=Counts()), Counts()
            self.assertIsNone(worker.get_kv_connector_stats())
        first, second = (worker._mover.counts for worker in workers)
        told = {}
        prom = kind.build_prom_metrics(types.SimpleNamespace(kv_transfer_config=None), {c: c for c in (Counter, Gauge, Histogram)}, ["engine"], {0: ["0"]})
        for _ in range(2):
            first.loaded, first.stored, first.bubble_seconds = first.loaded + 3, first.stored + 1, first.bubble_seconds + 0.5
            second.loaded, second.lost, second.not_stored = second.loaded + 1, second.lost + 5, second.not_stored + 2
            stats = workers[0].get_kv_connector_stats().aggregate(workers[1].get_kv_connector_stats())
            told = kind.build_kv_connector_stats(stats.to_dict()).reduce()
            prom.observe(stats.to_dict(), 0)
        names = [f"vllm:cascade_{n}" for n in ("layers_loaded", "layers_lost", "layers_stored", "layers_not_stored", "bubble_seconds")]
        self.assertEqual([told[n] for n in names], [4, 5, 1, 2, 0.5])
        self.assertEqual([prom._counters[0, n]._value.get() for n in names], [8, 10, 2, 4, 1.0])
        self.assertTrue(kind.build_kv_connector_stats().is_empty())


if __name__ == "__main__":
    DAEMON, FOLDER = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    unittest.main(argv=[sys.argv[0]])
