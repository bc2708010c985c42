"""Where SGLang's storage class looks pages up, for each interface that SGLang may use, and what it declares of them. SGLang itself is not
needed: scripts/test-engines runs its cache stack. So its modules, and torch, are stand-ins with what the class imports."""

import enum
import functools
import importlib
import sys
import types
import unittest
import warnings
from unittest import mock

from rank import OneRank

import cascade_kv.versions  # noqa: F401  # modules that are first imported among the stand-ins go with them
from cascade_kv import Layout
from cascade_kv.worth import Worth


class HitPolicy(enum.Enum):
    ALL_PAGES = "all_pages"
    TRAILING_PAGES = "trailing_pages"


class Name(enum.Enum):
    KV = "kv"
    DRAFT = "draft"
    MAMBA = "mamba"


class Result(types.SimpleNamespace):
    def __init__(self, pages, hits, restorable):
        super().__init__(kv_hit_pages=pages, hits=hits, restorable=restorable)

    @classmethod
    def empty(cls):
        return cls(0, {}, [])


@functools.cache
def sglang():
    """cascade_kv.sglang over the stand-ins."""
    storage = types.ModuleType("sglang.srt.mem_cache.hicache_storage")
    storage.HiCacheStorage, storage.HiCacheStorageConfig, storage.PoolTransfer = object, object, types.SimpleNamespace
    storage.PoolHitPolicy, storage.PoolName, storage.PoolTransferResult = HitPolicy, Name, Result
    names = ["sglang", "sglang.srt", "sglang.srt.mem_cache"]
    stand_ins = {**{n: types.ModuleType(n) for n in names}, storage.__name__: storage, "torch": types.ModuleType("torch")}
    with mock.patch.dict(sys.modules, stand_ins), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a version that is not installed
        return importlib.import_module("cascade_kv.sglang")


class LookUp(OneRank):
    def backend(self, **extra):
        b = object.__new__(sglang().CascadeHiCache)
        b._config = types.SimpleNamespace(extra_config=extra)
        b._look, b._flat, b._said = self.c, self.ns + "-flat", {}
        b._worth, b._layouts = Worth(), {}
        b._pools = {n.value: (None, f"{self.ns}-{n.value}") for n in Name}
        return b

    def put(self, ns, keys):
        for k in keys:
            self.assertTrue(self.c.put(f"{self.ns}-{ns}", k, b"page of " + k.encode()))

    def test_kv_is_looked_for_where_it_is_written(self):
        """Draft and Mamba pools are always written by the v2 methods, KV by those of the interface that is set."""
        keys = [f"{i:064x}" for i in range(8)]
        self.put("flat", keys[:6])  # KV, plain interface
        self.put("kv", keys[:4])  # KV, interface v1
        self.put("draft", keys[:5])
        self.put("mamba", keys[2:3])
        draft = types.SimpleNamespace(name=Name.DRAFT, keys=None, hit_policy=HitPolicy.ALL_PAGES)
        mamba = types.SimpleNamespace(name=Name.MAMBA, keys=keys[:1], hit_policy=HitPolicy.TRAILING_PAGES)
        for extra, kv in (({}, 6), ({"interface_v1": 0}, 6), ({"interface_v1": 1}, 4)):
            b = self.backend(**extra)
            self.assertEqual(b.batch_exists(keys), kv, extra)
            self.assertEqual(b.batch_exists_v2(keys).kv_hit_pages, kv, extra)
            got = b.batch_exists_v2(keys, [draft])
            self.assertEqual((got.kv_hit_pages, got.hits), (min(kv, 5), {Name.KV: kv, Name.DRAFT: min(kv, 5)}), extra)
            got = b.batch_exists_v2(keys, [draft, mamba])
            self.assertEqual((got.kv_hit_pages, got.restorable), (3, [3]), extra)

    def test_plain_kv_needs_no_pool_with_parts(self):
        """A KV pool that tells no storage where its pages are is copied by SGLang: the plain interface finds it all the same."""
        keys = [f"{i:064x}" for i in range(3)]
        self.put("flat", keys)
        b = self.backend()
        del b._pools["kv"]
        self.assertEqual(b.batch_exists_v2(keys).kv_hit_pages, 3)


class MHATokenToKVPoolHost(types.SimpleNamespace):
    """As far as SGLang's pool of this name says how its pages are made."""

    def __init__(self, **more):
        super().__init__(**{"page_size": 64, "layer_num": 3, "head_num": 2, "head_dim": 32, "dtype": "torch.bfloat16", **more})
        self.size_per_token = 2 * self.layer_num * self.head_num * self.head_dim * 2


class MLATokenToKVPoolHost(types.SimpleNamespace):
    pass


class Layouts(OneRank):
    def test_of_pools(self):
        layout_of = sglang().layout_of
        known = {"tokens": 64, "layers": 3, "heads": 2, "head_dim": 32, "dtype": "bfloat16"}
        pool, half = MHATokenToKVPoolHost(), 64 * 3 * 2 * 32 * 2
        self.assertEqual(layout_of(pool, [half, half]), Layout(bytes=2 * half, key_bytes=half, **known))
        self.assertEqual(layout_of(pool, [half // 3] * 6), Layout(**known))  # keys and values of each layer
        self.assertEqual(layout_of(pool, sglang()._flat_parts(pool)), layout_of(pool, [half, half]))
        wide = MHATokenToKVPoolHost(v_head_dim=16)
        self.assertEqual(layout_of(wide, []), Layout(**{**known, "head_dim": 0}))
        mla = MLATokenToKVPoolHost(page_size=1, logical_page_size=64, layer_num=2, dtype="torch.uint8", head_num=None)
        self.assertEqual(layout_of(mla, [10, 10]), Layout(tokens=64, layers=2, dtype="uint8"))
        self.assertEqual(sglang()._flat_parts(mla), [])
        self.assertEqual(layout_of(object(), [1, 1]), Layout())

    def test_declared_with_what_is_stored(self):
        b = object.__new__(sglang().CascadeHiCache)
        b._writer = types.SimpleNamespace(client=self.c, store=lambda ns, keys, pages, parent: [True] * len(keys))
        b._layouts = {self.ns: Layout(tokens=64, layers=3)}
        for ns in (self.ns, self.ns + "x", self.ns):
            self.assertEqual(b._write(ns, ["a", "b"], None, None), [True, True])
        self.assertEqual([self.c.layout(ns) for ns in (self.ns, self.ns + "x")], [Layout(tokens=64, layers=3), None])


if __name__ == "__main__":
    unittest.main()
