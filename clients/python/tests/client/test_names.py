"""Namespaces, storage, versions."""

import itertools
import unittest
import warnings

import numpy as np
from rank import OneRank

from cascade_kv import CascadeAdapter, namespace, versions


class Namespaces(unittest.TestCase):
    def test_golden(self):
        self.assertEqual(namespace(tp=2, model="Qwen/Qwen3-8B", dtype="bfloat16"), "dtype=bfloat16,model=Qwen/Qwen3-8B,tp=2")
        self.assertEqual(namespace(), "")
        long = namespace(model="m" * 300)
        self.assertEqual((len(long), long), (199, namespace(model="m" * 300)))
        self.assertTrue(long.startswith("model=mmm"))

    def test_different_fields_have_different_names(self):
        tricky = ["", "a", "b", "a,b", "a=b", "a,b=c", "%2C", ",", "=", "~", " ", "\n", "ü", "x" * 300, "x" * 301, "x" * 200 + "y" * 100]
        seen = {}
        for a, b in itertools.product(tricky, tricky):
            name = namespace(a=a, b=b)
            self.assertNotIn(name, seen)
            seen[name] = a, b
            self.assertLessEqual(len(name.encode()), 200)
            self.assertTrue(name.isprintable() and " " not in name)
        self.assertNotEqual(namespace(a="1"), namespace(b="1"))
        self.assertNotEqual(namespace(a="1", b="2"), namespace(a="1,b=2"))


class Storage(OneRank):
    def test_put_get_contains_clear(self):
        s = CascadeAdapter()
        self.addCleanup(s.close)
        with self.assertRaises(ValueError):
            s.get("k")
        self.assertTrue(s.initialize({"socket": self.rank.socket, "namespace": self.ns}))
        k, v = np.random.default_rng(1).standard_normal((2, 50_000)).astype(np.float32)
        self.assertFalse(s.contains("b"))
        self.assertIsNone(s.get("b"))
        self.assertTrue(s.put("b", k, v))
        self.assertTrue(s.contains("b"))
        self.assertEqual(s.get("b"), (k.tobytes(), v.tobytes()))
        with self.assertRaises(ValueError):
            s.put("c", b"12", b"3456")
        s.clear()
        self.assertFalse(s.contains("b"))

    def test_parts_of_unequal_length(self):
        s = CascadeAdapter()
        self.addCleanup(s.close)
        s.initialize({"socket": self.rank.socket, "namespace": self.ns, "key_bytes": 4})
        self.assertTrue(s.put("b", b"1234", b"567890"))
        self.assertEqual(s.get("b"), (b"1234", b"567890"))

    def test_away(self):
        s = CascadeAdapter()
        self.addCleanup(s.close)
        self.assertFalse(s.initialize({"socket": self.rank.socket + ".none"}))
        self.assertEqual((s.put("b", b"1", b"2"), s.get("b"), s.contains("b")), (False, None, False))
        s.clear()


class Versions(unittest.TestCase):
    def test_what_was_not_tested_is_warned_of(self):
        for engine, tested in versions.TESTED.items():
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                for v in tested:
                    self.assertTrue(versions.check(engine, v))
                    self.assertTrue(versions.check(engine, v + "+cpu"))
            with self.assertWarnsRegex(RuntimeWarning, rf"{engine} .*not with 0\.0\.1"):
                self.assertFalse(versions.check(engine, "0.0.1"))
        with self.assertWarns(RuntimeWarning):
            versions.check("an-engine-that-is-not-there")


if __name__ == "__main__":
    unittest.main()
