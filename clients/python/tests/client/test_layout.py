"""How the blocks of a namespace are made: declared, asked for, and used by CascadeAdapter to take blocks apart."""

import random
import types
import unittest
from dataclasses import replace
from math import prod
from unittest import mock

from rank import OneRank, Rank, until

from cascade_kv import AsyncClient, CascadeAdapter, Client, Layout, StorageAdapter, lmcache_layout, ops

LAYOUT = Layout(bytes=120, key_bytes=40, tokens=16, layers=2, heads=8, head_dim=80, dtype="bfloat16")


def older(test):
    """The rank does not serve the command, and says so in its own words."""
    return mock.patch.object(ops, "LAYOUT", "CASCADE.LAYOUTS")(test)


class Layouts(OneRank):
    def test_declared_and_asked_for(self):
        self.assertIsNone(self.c.layout(self.ns))
        self.assertTrue(self.c.set_layout(self.ns, LAYOUT))
        self.assertEqual(self.c.layout(self.ns), LAYOUT)
        self.assertIsNone(self.c.layout(self.ns + "x"))
        for other in (Layout(dtype="dtype=ü,\r\n"), Layout(dtype="\udcff" * 64), Layout(bytes=1, tokens=2**32 - 1), Layout(heads=1)):
            self.assertTrue(self.c.set_layout(self.ns, other))
            self.assertEqual(self.c.layout(self.ns), other)
        self.assertTrue(self.c.set_layout(self.ns, Layout()))
        self.assertIsNone(self.c.layout(self.ns))

    def test_layouts_that_no_blocks_have(self):
        for bad in (
            {"bytes": -1}, {"bytes": (512 << 20) + 1}, {"key_bytes": 1}, {"bytes": 2, "key_bytes": 3}, {"tokens": -1}, {"layers": 1 << 32},
            {"heads": -1}, {"head_dim": 1 << 32}, {"dtype": "x" * 65}, {"dtype": "ü" * 33},
        ):
            with self.subTest(bad), self.assertRaises(ValueError):
                Layout(**bad)

    def test_keys_of(self):
        """The cases of block.Layout.KeysOf."""
        for layout, size, want in (
            (LAYOUT, 120, 40), (LAYOUT, 60, 20), (LAYOUT, 0, 0), (LAYOUT, 240, 80), (LAYOUT, 61, None), (LAYOUT, -3, None),
            (LAYOUT, 120 << 23, None), (Layout(), 10, None), (Layout(bytes=10), 7, 0), (Layout(bytes=10, key_bytes=10), 7, 7),
        ):
            self.assertEqual(layout.keys_of(size), want, (layout, size))

    def test_namespaces_that_no_rank_takes(self):
        with self.assertLogs("cascade_kv"):
            self.assertFalse(self.c.set_layout("n" * 1025, LAYOUT))
        self.assertTrue(self.c.up)

    @older
    def test_an_older_rank(self):
        with self.assertNoLogs("cascade_kv"):
            self.assertIsNone(self.c.layout(self.ns))
            self.assertFalse(self.c.set_layout(self.ns, LAYOUT))
            self.c._declare(self.ns, LAYOUT)
        self.assertTrue(self.c.put(self.ns, "k", b"v"))

    def test_away(self):
        with Client(self.rank.socket + ".none") as c:
            self.assertIsNone(c.layout(self.ns))
            self.assertFalse(c.set_layout(self.ns, LAYOUT))
            c._declare(self.ns, LAYOUT)

    def asked(self, client):
        """How many requests the next calls of a client make."""
        return mock.patch.object(client._link, "call", wraps=client._link.call)

    def test_engines_declare_once_for_a_connection(self):
        self.c._declare(self.ns, LAYOUT)
        with self.asked(self.c) as call:
            for _ in range(5):
                self.c._declare(self.ns, LAYOUT)
        self.assertEqual(call.call_count, 0)
        self.assertEqual(self.c.layout(self.ns), LAYOUT)
        self.c._declare(self.ns, Layout(tokens=1))
        self.assertEqual(self.c.layout(self.ns), Layout(tokens=1))
        with mock.patch.object(ops, "LAYOUT", "CASCADE.LAYOUTS"):
            self.c._declare(self.ns + "x", LAYOUT)
        with self.asked(self.c) as call:
            self.c._declare(self.ns + "x", LAYOUT)
        self.assertEqual(call.call_count, 0)  # it was refused once

    def test_declared_again_to_a_rank_that_was_started_again(self):
        rank = Rank("64MiB").start()
        self.addCleanup(rank.end)
        with Client(rank.socket) as c:
            c._declare(self.ns, LAYOUT)
            rank.kill()
            rank.arena.unlink()
            rank.start()
            with Client(rank.socket) as other:
                self.assertIsNone(other.layout(self.ns))
            until(lambda: c.up, "the client is connected again")
            c._declare(self.ns, LAYOUT)
            self.assertEqual(c.layout(self.ns), LAYOUT)


class AsyncLayouts(OneRank, unittest.IsolatedAsyncioTestCase):
    async def test_declared_and_asked_for(self):
        async with AsyncClient(self.rank.socket) as a:
            self.assertIsNone(await a.layout(self.ns))
            self.assertTrue(await a.set_layout(self.ns, LAYOUT))
            self.assertEqual(await a.layout(self.ns), LAYOUT)
        self.assertEqual(self.c.layout(self.ns), LAYOUT)


class OfLMCache(unittest.TestCase):
    def of(self, *shapes, size=None, dtype="torch.bfloat16", one=False):
        dtypes = [DType(dtype)] * len(shapes)
        meta = types.SimpleNamespace(shape=shapes[0], dtype=dtypes[0], shapes=None if one else list(shapes), dtypes=None if one else dtypes)
        size = sum(2 * prod(s) for s in shapes) if size is None else size
        return lmcache_layout.layout_of(types.SimpleNamespace(meta=meta, get_size=lambda: size))

    def test_of_objects(self):
        keys_first = Layout(bytes=16384, key_bytes=8192, tokens=256, layers=2, dtype="bfloat16")
        self.assertEqual(self.of((2, 2, 256, 8)), keys_first)
        self.assertEqual(self.of((2, 2, 256, 8), one=True), keys_first)
        known = Layout(tokens=256, layers=2, dtype="bfloat16")
        self.assertEqual(self.of((2, 2, 256, 8), size=20000), known)  # more than keys and values
        self.assertEqual(self.of((2, 256, 8)), known)
        self.assertEqual(self.of((1, 2, 256, 8)), known)
        self.assertEqual(self.of((2, 1, 256, 8), (2, 1, 256, 4)), known)  # keys and values of each
        self.assertEqual(self.of((2, 1, 256, 8), (2, 1, 128, 8)), Layout(layers=2, dtype="bfloat16"))
        for other in ((4096,), (3, 2, 256, 8), (2, 2, 2, 256, 8)):
            self.assertEqual(self.of(other, dtype="torch.uint8"), Layout(dtype="uint8"))

    def test_common(self):
        a = Layout(bytes=20, key_bytes=10, tokens=256, layers=2, dtype="bfloat16")
        self.assertEqual(lmcache_layout.common(a, a), a)
        self.assertEqual(lmcache_layout.common(a, replace(a, layers=3)), replace(a, layers=0))
        self.assertEqual(lmcache_layout.common(a, replace(a, bytes=30)), replace(a, bytes=0, key_bytes=0))


class DType:
    itemsize = 2

    def __init__(self, name):
        self.name = name

    def __str__(self):
        return self.name


class Storage(OneRank):
    def adapter(self, rank=None, **config):
        s = CascadeAdapter()
        self.addCleanup(s.close)
        s.initialize({"socket": (rank or self.rank).socket, "namespace": self.ns, **config})
        return s

    def test_a_reader_needs_not_be_told(self):
        """Blocks of many sizes with parts of 3 : 7."""
        reader, writer = self.adapter(), self.adapter()
        self.assertIsNone(reader.get("none"))
        blocks = {}
        for n in (1, 2, 100, 30_000):
            blocks[f"b{n}"] = random.randbytes(3 * n), random.randbytes(7 * n)
            self.assertTrue(writer.put(f"b{n}", *blocks[f"b{n}"]))
            self.assertEqual(reader.get(f"b{n}"), blocks[f"b{n}"])
        self.assertEqual(writer.layout(), Layout(bytes=10, key_bytes=3))
        late = self.adapter()
        self.assertEqual({b: late.get(b) for b in blocks}, blocks)
        self.assertTrue(late.put("c", b"123", b"4567890"))
        with self.assertRaisesRegex(ValueError, "3 of 10; use another namespace, or say so by key_bytes"):
            late.put("d", b"12345", b"67890")
        with self.assertRaises(ValueError):
            writer.put("d", b"123", b"45678901")
        self.assertFalse(writer.contains("d"))

    def test_parts_that_are_empty(self):
        s = self.adapter()
        self.assertTrue(s.put("nothing", b"", b""))
        self.assertIsNone(s.layout())
        self.assertTrue(s.put("values", b"", b"12345"))
        self.assertEqual([self.adapter().get(b) for b in ("nothing", "values")], [(b"", b""), (b"", b"12345")])
        with self.assertRaises(ValueError):
            s.put("keys", b"12345", b"")

    def test_what_a_layout_says_besides_stays(self):
        self.c.set_layout(self.ns, Layout(tokens=16, dtype="fp8"))
        s = self.adapter()
        self.assertTrue(s.put("b", b"1", b"23"))
        self.assertEqual(s.layout(), Layout(bytes=3, key_bytes=1, tokens=16, dtype="fp8"))

    def test_a_layout_that_an_engine_declared(self):
        self.c.set_layout(self.ns, LAYOUT)
        self.c.put(self.ns, "b", bytes(20) + b"v" * 40)
        self.c.put(self.ns, "odd", bytes(61))
        s = self.adapter()
        self.assertEqual(s.get("b"), (bytes(20), b"v" * 40))
        self.assertIsNone(s.get("odd"))
        self.assertTrue(s.put("c", bytes(1), bytes(2)))
        self.assertEqual(s.layout(), LAYOUT)

    def test_blocks_without_a_layout_are_halves(self):
        self.c.put(self.ns, "b", b"12345")
        self.assertEqual(self.adapter().get("b"), (b"12", b"345"))

    def test_key_bytes_override(self):
        s = self.adapter(key_bytes=4)
        self.assertTrue(s.put("b", b"1234", b"56"))
        self.assertTrue(s.put("short", b"123", b""))
        self.assertTrue(s.put("long", b"1234", b"567890"))
        self.assertEqual([s.get(b) for b in ("b", "short", "long")], [(b"1234", b"56"), (b"123", b""), (b"1234", b"567890")])
        with self.assertRaisesRegex(ValueError, "key_bytes was 4"):
            s.put("c", b"123", b"456")
        self.assertEqual(s.layout(), Layout(bytes=6, key_bytes=4))
        self.assertEqual(self.adapter().get("b"), (b"1234", b"56"))
        self.assertEqual(self.adapter(key_bytes=1).get("b"), (b"1", b"23456"))

    @older
    def test_an_older_rank(self):
        s = self.adapter()
        self.assertTrue(s.put("b", b"12", b"34"))
        self.assertEqual(s.get("b"), (b"12", b"34"))
        self.assertIsNone(s.layout())
        with self.assertRaisesRegex(ValueError, "keeps no layout.*key_bytes"):
            s.put("c", b"1", b"234")
        s = self.adapter(key_bytes=1)
        self.assertTrue(s.put("c", b"1", b"234"))
        self.assertEqual(s.get("c"), (b"1", b"234"))

    def test_without_an_answer_a_block_is_not_taken_apart(self):
        self.adapter().put("b", b"1", b"234")
        s = self.adapter()
        with mock.patch.object(s._client, "_run", lambda op, miss, **_: miss):
            self.assertIsNone(s._split(4))

    def test_a_rank_that_was_started_again(self):
        rank = Rank("64MiB").start()
        self.addCleanup(rank.end)
        writer = self.adapter(rank)
        self.assertTrue(writer.put("b", b"1", b"234"))
        rank.kill()
        self.assertFalse(writer.put("c", b"1", b"234"))
        self.assertIsNone(self.adapter(rank).get("b"))
        self.assertFalse(self.adapter(rank).put("b", b"1", b"234"))
        rank.arena.unlink()
        rank.start()
        until(lambda: writer.put("b", b"1", b"234"), "the writer is connected again")
        self.assertEqual(self.adapter(rank).get("b"), (b"1", b"234"))

    def test_other_stores_keep_none(self):
        self.assertIsNone(StorageAdapter.layout(mock.Mock()))


if __name__ == "__main__":
    unittest.main()
