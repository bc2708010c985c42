"""Values, questions and namespaces, on a rank."""

import os
import unittest

import numpy as np
from rank import MIB, OneRank, names

from cascade_kv import Client, Probe


class Values(OneRank):
    def test_what_was_put_is_got(self):
        for size in (0, 1, 4095, 4096, 42 << 10, (64 << 10) - 1, 64 << 10, 300_000, MIB + 1, 9 * MIB):
            with self.subTest(size):
                value, key = os.urandom(size), f"k{size}"
                self.assertIsNone(self.c.get(self.ns, key))
                self.assertTrue(self.c.put(self.ns, key, value))
                for _ in range(2):  # the second time its size is known
                    self.assertEqual(self.c.get(self.ns, key.encode()), value)
                self.assertIsInstance(self.c.get(self.ns, key), bytes)
                dst = bytearray(size + 5)
                self.assertEqual(self.c.get_into(self.ns, key, dst), size)
                self.assertEqual(dst, value + bytes(5))
        self.assertIsNone(self.c.get(self.ns, "absent"))  # with a hint from the large ones
        self.assertEqual(self.c.get_into(self.ns, "absent", bytearray(100_000)), -1)
        self.assertEqual(self.c.get_into(self.ns, "absent", bytearray(10)), -1)

    def test_values_of_any_buffer(self):
        a = np.arange(60_000, dtype=np.float32)
        self.assertTrue(self.c.put(self.ns, "a", a))
        out = np.zeros_like(a)
        self.assertEqual(self.c.get_into(self.ns, "a", out), a.nbytes)
        np.testing.assert_array_equal(out, a)

    def test_a_buffer_too_small_is_said_and_changes_nothing(self):
        for size in (100, 200_000):
            self.c.put(self.ns, "k", os.urandom(size))
            dst = bytearray(size - 1)
            with self.assertRaises(ValueError):
                self.c.get_into(self.ns, "k", dst)
            self.assertEqual(dst, bytes(size - 1))
        with self.assertRaises(ValueError):
            self.c.get_into(self.ns, "k", bytes(300_000))  # read-only

    def test_delete_and_clear_are_of_one_namespace(self):
        for k in "abc":
            self.c.put(self.ns, k, k.encode())
            self.c.put(self.ns + "x", k, k.encode())
        self.assertEqual(self.c.delete(self.ns, ["a", "a", "none"]), 1)
        self.assertEqual(self.c.contains(self.ns, ["a", "b", "c"]).tolist(), [False, True, True])
        self.assertTrue(self.c.clear(self.ns))
        self.assertEqual(self.c.contains(self.ns, ["a", "b", "c"]).tolist(), [False, False, False])
        self.assertEqual(self.c.contains(self.ns + "x", ["a", "b", "c"]).tolist(), [True, True, True])

    def test_probe_counts_the_leading_hits(self):
        parent = None
        for i in (0, 1, 2, 4):
            self.c.put(self.ns, f"k{i}", bytes(100 + i), parent=parent, prefix=i == 0)
            parent = f"k{i}"
        keys = [f"k{i}" for i in range(6)]
        p = self.c.probe(self.ns, keys)
        self.assertEqual((p.hits, p.bytes, p.tiers), (3, 303, {"shm": 3}))
        self.assertEqual(self.c.probe(self.ns, keys[3:]), Probe(0, 0, {}))
        self.assertEqual(self.c.probe(self.ns, []), Probe(0, 0, {}))

    def test_more_keys_than_one_command_takes(self):
        here = names(3000)
        for k in here:
            self.c.put(self.ns, k, b"v")
        keys = here + names(70_000, "absent" + "x" * 40)  # 7 MiB of arguments; a command takes 4
        got = self.c.contains(self.ns, keys)
        self.assertEqual(len(got), len(keys))
        self.assertTrue(got[:3000].all())
        self.assertFalse(got[3000:].any())
        self.assertEqual(self.c.probe(self.ns, keys).hits, 3000)
        self.assertEqual(self.c.delete(self.ns, keys), 3000)

    def test_keys_of_all_kinds(self):
        keys = ["text", "ünïcode", b"bytes", b"\x00\r\n$3\r\n", "x" * 1024, b"y"]
        for i, k in enumerate(keys):
            self.assertTrue(self.c.put(self.ns, k, bytes([i])))
        self.assertTrue(self.c.contains(self.ns, keys).all())
        self.assertEqual([self.c.get(self.ns, k) for k in keys], [bytes([i]) for i in range(len(keys))])
        for same in (["aa", "bü"], ["ab", b"cd"], [b"ab", "cd"]):  # of one length as text, of one or another as bytes
            for k in same:
                self.c.put(self.ns, k, b"v")
            self.assertTrue(self.c.contains(self.ns, same).all())

    def test_keys_that_no_rank_takes_are_misses(self):
        for k in ("", "z" * 1025):
            with self.subTest(len(k)):
                self.assertFalse(self.c.put(self.ns, k, b"v"))
                self.assertIsNone(self.c.get(self.ns, k))
                self.assertEqual(self.c.contains(self.ns, [k, "other"]).tolist(), [False, False])
        self.assertEqual(len(self.c.contains(self.ns, [])), 0)
        self.assertEqual(self.c.views(self.ns, []), [])

    def test_stats(self):
        self.c.put(self.ns, "k", b"v")
        self.assertGreater(self.c.stats()["names"], 0)

    def test_sockets_as_urls(self):
        with Client("unix://" + self.rank.socket) as c:
            self.assertTrue(c.up)
        for bad in ("", "redis://host", "tcp://1"):
            with self.assertRaises(ValueError):
                Client(bad)


if __name__ == "__main__":
    unittest.main()
