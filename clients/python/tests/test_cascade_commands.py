"""The CASCADE.* commands (docs/protocol.md §6) over raw RESP2 and RESP3, ids checked with hashlib."""

import hashlib
import json
import os
import unittest

import common


def as_dict(reply):
    """A map of either protocol."""
    if isinstance(reply, tuple):
        return reply[1]
    return dict(zip(reply[::2], reply[1::2]))


class Commands:
    hello = None

    def setUp(self):
        self.c = common.Raw(unix=True, timeout=30)
        self.addCleanup(self.c.close)
        if self.hello:
            self.c.do("HELLO", self.hello)
        self.ns = common.unique("ns")
        self.k = common.unique("k")

    def put(self, key, value, *options):
        return self.c.do("CASCADE.PUT", key, value, "NS", self.ns, *options).decode()

    def is_null(self, reply):
        return reply == (("null", b"") if self.hello == "3" else None)

    def test_put_is_by_content(self):
        value = os.urandom(100_000)
        id1 = self.put(self.k, value)
        self.assertIn(len(id1), (32, 64))
        self.assertEqual(id1, hashlib.sha256(value).hexdigest()[: len(id1)])
        before = self.stats()
        self.assertEqual(self.put(self.k + "2", value), id1)
        self.assertGreater(self.stats()["duplicates"], before["duplicates"])
        self.assertEqual(as_dict(self.c.do("CASCADE.STAT", self.ns, self.k))[b"refs"], 2)
        for k in (self.k, self.k + "2"):
            self.assertEqual(self.c.do("CASCADE.GET", "NS", self.ns, k), value)

    def test_namespaces_are_apart_and_databases_are_some(self):
        self.put(self.k, b"there")
        self.assertTrue(self.is_null(self.c.do("GET", self.k)))
        self.assertTrue(self.is_null(self.c.do("CASCADE.GET", self.k)))
        self.assertEqual(self.c.do("SET", self.k, b"here"), "OK")
        self.assertEqual(self.c.do("CASCADE.GET", self.k), b"here")
        self.assertEqual(self.c.do("CASCADE.GET", "NS", "redis/0", self.k), b"here")
        self.assertEqual(self.c.do("CASCADE.GET", "NS", self.ns, self.k), b"there")

    def test_del_and_clear_are_of_one_namespace(self):
        other = common.unique("ns")
        for key in (self.k, self.k + "2", self.k + "3"):
            self.put(key, key.encode())
        self.c.do("CASCADE.PUT", self.k, b"other", "NS", other)
        self.assertEqual(self.c.do("CASCADE.DEL", self.ns, self.k, self.k, self.k + "absent"), 1)
        self.assertTrue(self.is_null(self.c.do("CASCADE.GET", "NS", self.ns, self.k)))
        self.assertEqual(self.c.do("CASCADE.CLEAR", self.ns), "OK")
        for key in (self.k + "2", self.k + "3"):
            self.assertTrue(self.is_null(self.c.do("CASCADE.GET", "NS", self.ns, key)))
        self.assertEqual(self.c.do("CASCADE.GET", "NS", other, self.k), b"other")

    def test_probe_counts_the_leading_hits(self):
        keys = [f"{self.k}.{i}" for i in range(6)]
        parent = ()
        for i, key in enumerate(keys):
            if i != 4:
                self.put(key, common.pattern(i, 1000 + i), *parent)
            parent = ("PARENT", key)
        got = as_dict(self.c.do("CASCADE.PROBE", self.ns, *keys))
        self.assertEqual((got[b"hits"], got[b"bytes"]), (4, 4006))
        self.assertEqual(sum(as_dict(got[b"tiers"]).values()), 4)
        none = as_dict(self.c.do("CASCADE.PROBE", self.ns, self.k + "absent", keys[0]))
        self.assertEqual((none[b"hits"], none[b"bytes"], as_dict(none[b"tiers"])), (0, 0, {}))

    def test_stat(self):
        self.put(self.k, b"head", "PREFIX")
        value = os.urandom(777)
        block = self.put(self.k + ".1", value, "PARENT", self.k, "PX", "60000")
        got = as_dict(self.c.do("CASCADE.STAT", self.ns, self.k + ".1"))
        self.assertEqual((got[b"id"].decode(), got[b"size"], got[b"parent"].decode(), got[b"refs"]), (block, 777, self.k, 1))
        self.assertIn(got[b"pttl"], range(30_000, 60_001))
        self.assertGreaterEqual(len(got[b"tiers"]), 1)
        head = as_dict(self.c.do("CASCADE.STAT", self.ns, self.k))
        self.assertEqual((head[b"parent"], head[b"pttl"]), (b"", -1))
        self.assertIn(head[b"prefix"], (1, ("#", b"t")))
        self.assertTrue(self.is_null(self.c.do("CASCADE.STAT", self.ns, self.k + "absent")))

    def test_bound_names_follow_their_parent(self):
        self.put(self.k + "m", b"meta", "PARENT", self.k, "BOUND")
        self.assertTrue(self.is_null(self.c.do("CASCADE.GET", "NS", self.ns, self.k + "m")))
        self.put(self.k, b"bytes")
        self.assertEqual(self.c.do("CASCADE.GET", "NS", self.ns, self.k + "m"), b"meta")

    def test_drain_and_stats(self):
        self.put(self.k, os.urandom(5000))
        self.assertIsInstance(self.c.do("CASCADE.DRAIN"), int)
        stats = self.stats()
        self.assertEqual(stats["pending_ids"], 0)
        self.assertGreaterEqual(stats["uptime_seconds"], 0)
        self.assertTrue(stats["version"])
        self.assertGreater(stats["names"], 0)

    def stats(self):
        return json.loads(self.c.do("CASCADE.STATS"))

    def test_bad_requests_are_one_error(self):
        for args in (("PUT",), ("PUT", self.k), ("PUT", self.k, "v", "NONSENSE"), ("PUT", self.k, "v", "NS"), ("PUT", self.k, "v", "BOUND"),
                     ("PUT", self.k, "v", "PX", "0"), ("PUT", self.k, "v", "PARENT", self.k), ("PUT", "", "v"), ("GET",), ("GET", "NS", self.ns),
                     ("PROBE", self.ns), ("STAT", self.ns), ("DEL", self.ns), ("CLEAR",), ("NONSENSE",)):
            with self.subTest(args):
                with self.assertRaises(common.ServerError):
                    self.c.do("CASCADE." + args[0], *args[1:])
                self.assertEqual(self.c.do("PING"), "PONG")
        self.assertTrue(self.is_null(self.c.do("CASCADE.GET", self.k)))


class OverRESP2(Commands, unittest.TestCase):
    hello = None


class OverRESP3(Commands, unittest.TestCase):
    hello = "3"


if __name__ == "__main__":
    common.where()
    if common.rank_stats() is None:
        common.skip("the server at CASCADE_PORT is no CASCADE rank")
    common.run("__main__")
