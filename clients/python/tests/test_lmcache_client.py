"""The rules that keep LMCache's clients alive (docs/protocol.md §4 and §5), as tests that a wrong server fails.

Rule numbers are those of "What a server should do" in the project's notes on LMCache:
1 leases, 2 absent keys, 3 no errors to SET, 4 exact replies, 6 whole values, 7 answers in time, 8 handshakes and sizes, 9 pairs.

The rank needs 256 MiB of memory or a cold tier.

CASCADE_STORM_BYTES   how much to write when room must become scarce (default: twice the rank's memory, at most 2 GiB)
CASCADE_CLOSE_SECONDS how long a connection may stay open after a miss of unknown size (default 30)
"""

import os
import threading
import time
import unittest

import common
from lmcache_like import Miss, Native, NativeConn, Pairs, chunk_key, in_threads, mp_key

MIB = 1 << 20
META = bytes(range(28))


def memory_bytes():
    """The rank's memory tiers; None when the server does not tell."""
    stats = common.rank_stats()
    if stats is None:
        return None
    sizes = [t["usage"].get("Capacity", t["usage"].get("capacity", 0)) for t in stats["tiers"]]
    return sum(s for s in sizes if s > 0)


def storm(size=MIB):
    """Fills the rank with other chunks until older ones must have been evicted; every SET must be taken."""
    total = int(os.environ.get("CASCADE_STORM_BYTES", 0)) or min(2 * (memory_bytes() or 32 * MIB), 2048 * MIB)
    rest = bytes(size - 32)

    def writer(w):
        with NativeConn() as c:
            for _ in range(w, total // size, 8):
                c.set(mp_key("storm"), os.urandom(32) + rest)  # equal bytes would be stored once, and need no room

    in_threads(8, writer)


class Rule1Leases(unittest.TestCase):
    def test_a_key_that_exists_can_be_got_whatever_arrives(self):
        keys = [mp_key() for _ in range(8)]
        with NativeConn() as c:
            for i, k in enumerate(keys):
                c.set(k, common.pattern(i, MIB))
            self.assertTrue(all(c.exists(k) for k in keys))
            storm()
            for i, k in enumerate(keys):
                self.assertTrue(c.get(k, MIB) == common.pattern(i, MIB), "wrong bytes")
            storm()
            for i, k in enumerate(keys):  # the GET leased again
                self.assertTrue(c.get(k, MIB) == common.pattern(i, MIB), "wrong bytes")


class Rule2AbsentKeys(unittest.TestCase):
    def assert_clean_miss(self, c, size):
        c.command("GET", mp_key())
        n = len(b"$%d\r\n" % size)
        head = c.exactly(n)
        self.assertEqual((head[:1], head[-2:], head.count(b"\r"), head.count(b"\n")), (b"-", b"\r\n", 1, 1), head)
        self.assertTrue(c.silent(), "the reply is longer than the client reads")

    def test_size_known_from_set(self):
        for size in (7, 4096, 999_999, MIB, 10 * MIB):
            with self.subTest(size), NativeConn() as c:
                k = mp_key()
                c.set(k, common.pattern(size, size))
                for _ in range(3):
                    self.assert_clean_miss(c, size)
                self.assertTrue(c.exists(k))
                self.assertTrue(c.get(k, size) == common.pattern(size, size), "wrong bytes")

    def test_size_known_from_get(self):
        k = mp_key()
        with NativeConn() as c:
            c.set(k, common.pattern(1, 123_456))
        with NativeConn() as c:
            self.assertTrue(c.exists(k))
            c.get(k, 123_456)
            self.assert_clean_miss(c, 123_456)
            self.assertTrue(c.get(k, 123_456) == common.pattern(1, 123_456), "wrong bytes")

    def test_keys_of_the_other_mode_too(self):
        with NativeConn() as c:
            c.set(chunk_key(), bytes(65536))
            self.assert_clean_miss(c, 65536)

    def test_size_unknown(self):
        with NativeConn() as c:
            c.command("GET", mp_key())
            self.assertEqual(c.exactly(5), b"$-1\r\n")
            c.sock.settimeout(float(os.environ.get("CASCADE_CLOSE_SECONDS", 30)))
            with self.assertRaises((EOFError, ConnectionError), msg="the waiting thread is never freed"):
                c.exactly(6)

    def test_deleted_key_is_absent(self):
        with NativeConn() as c:
            k = mp_key()
            c.set(k, bytes(5000))
            self.assertTrue(c.delete(k))
            self.assertFalse(c.delete(k))
            self.assertFalse(c.exists(k))
            with self.assertRaises(Miss):
                c.get(k, 5000)
            self.assertTrue(c.silent())

    def test_others_get_null(self):
        """A client with a handshake, or with keys of pairs or none of LMCache's form, parses replies: null, not an error."""
        cases = {
            "redis-py 4 and pairs": (False, lambda: chunk_key() + "kv_bytes"),
            "redis-py 8": (True, mp_key),
            "any client": (False, common.unique),
        }
        for name, (hello, key) in cases.items():
            with self.subTest(name), Pairs(hello=hello) as c:
                k = key()
                c.set(k, bytes(100_000))
                self.assertIsNone(c.get(key()))
                self.assertEqual(c.get(k), bytes(100_000))


class Rule3And4ExactReplies(unittest.TestCase):
    def setUp(self):
        self.n = Native()
        self.addCleanup(self.n.close)

    def test_batches_over_eight_connections(self):
        keys = [mp_key() for _ in range(64)]
        values = [common.pattern(i, MIB) for i in range(64)]
        self.assertEqual(self.n.batch_exists(keys), [False] * 64)
        for _ in range(2):  # the second round replaces
            self.n.batch_set(keys, values)
            self.assertEqual(self.n.batch_exists(keys), [True] * 64)
            self.assertTrue(self.n.batch_get(keys, MIB) == values, "wrong bytes")
        mixed = [k for pair in zip(keys, (mp_key() for _ in keys)) for k in pair]
        self.assertEqual(self.n.batch_exists(mixed), [True, False] * 64)
        self.assertTrue(all(c.silent() for c in self.n.conns), "a reply was longer than the client reads")

    def test_set_is_taken_while_room_is_scarce(self):
        storm()
        storm(size=4 * MIB)

    def test_a_value_that_can_never_fit(self):
        room = memory_bytes()
        if room is None or room >= 400 * MIB:
            self.skipTest("needs a rank with less than 400 MiB of memory that answers CASCADE.STATS")
        with NativeConn(timeout=30) as c:
            k, small = mp_key(), mp_key()
            c.set(small, bytes(1000))
            try:
                c.set(k, bytes(room + MIB))
                self.fail("it was taken")
            except common.ServerError:
                pass  # -NO, exactly five bytes
            self.assertFalse(c.exists(k))
            self.assertEqual(c.get(small, 1000), bytes(1000))


class Rule6WholeValues(unittest.TestCase):
    def test_nothing_is_seen_of_a_set_in_progress(self):
        for first in (False, True):
            with self.subTest(replaces=first), NativeConn() as w, NativeConn() as r:
                k, old, new = mp_key(), common.pattern(1, MIB), common.pattern(2, MIB)
                r.set(mp_key(), old)
                if first:
                    r.set(k, old)
                data = b"".join(w.encode("SET", k, new))
                for at in (100, MIB // 2, len(data) - 1):
                    w.send_bytes(data[:at] if at == 100 else data[last:at])
                    last = at
                    time.sleep(0.02)
                    self.assertEqual(r.exists(k), first)
                    if first:
                        self.assertTrue(r.get(k, MIB) == old, "not the old value")
                    else:
                        with self.assertRaises(Miss):
                            r.get(k, MIB)
                w.send_bytes(data[last:])
                self.assertEqual(w.exactly(5), b"+OK\r\n")
                self.assertTrue(r.get(k, MIB) == new, "not the new value")

    def test_a_set_that_breaks_off_changes_nothing(self):
        k, old = mp_key(), common.pattern(1, MIB)
        with NativeConn() as c:
            c.set(k, old)
            for cut in (60, 200_000, MIB):
                with NativeConn() as w:
                    w.send_bytes(b"".join(w.encode("SET", k, common.pattern(2, MIB)))[:cut])
                time.sleep(0.02)
                self.assertTrue(c.get(k, MIB) == old, "not the old value")

    def test_readers_during_overwrites_see_one_value(self):
        k, values = mp_key(), [common.pattern(i, 300_000) for i in range(4)]
        with NativeConn() as c:
            c.set(k, values[0])
        stop = threading.Event()

        def work(i):
            with NativeConn() as c:
                if i < 2:
                    for n in range(100):
                        c.set(k, values[(n + i) % 4])
                    stop.set()
                    return
                while not stop.is_set():
                    if c.get(k, 300_000) not in values:
                        raise AssertionError("bytes of two values mixed")

        in_threads(6, work)

    def test_the_length_is_what_was_stored_last(self):
        with NativeConn() as c:
            k = mp_key()
            for size in (1000, 999, 65_537, 1, 1000):
                c.set(k, common.pattern(size, size))
                self.assertEqual(c.get(k, size), common.pattern(size, size))


class Rule8Handshakes(unittest.TestCase):
    def test_redis_py_8_and_glide(self):
        with common.Raw() as c:
            for args in (("HELLO", "3"), ("CLIENT", "MAINT_NOTIFICATIONS", "ON", "moving-endpoint-type", "internal-ip"),
                         ("CLIENT", "SETINFO", "LIB-NAME", "redis-py"), ("CLIENT", "SETINFO", "LIB-VER", "8.1.0"), ("SELECT", "4"),
                         ("INFO", "REPLICATION")):
                c.send(*args)
            self.assertEqual(c.reply()[1][b"proto"], 3)
            for _ in range(3):
                try:
                    self.assertEqual(c.reply(), "OK")
                except common.ServerError:
                    pass  # these clients ignore it
            self.assertEqual(c.reply(), "OK")
            info = c.reply()
            self.assertIn(b"role:master", info[1] if isinstance(info, tuple) else info)

    def test_chunk_of_llama_8b(self):
        size = 33_554_432
        with NativeConn(timeout=30) as c:
            k = mp_key()
            c.set(k, common.pattern(5, size))
            self.assertTrue(c.exists(k))
            self.assertTrue(c.get(k, size) == common.pattern(5, size), "wrong bytes")
            c.delete(k)

    def test_150_connections_of_one_client(self):
        conns = [Pairs(unix=i % 2 == 1, hello=i % 3 == 0) for i in range(150)]
        keys = [chunk_key(i) for i in range(150)]
        try:
            in_threads(16, lambda t: [conns[i].put_chunk(keys[i], common.pattern(i, 10_000), META) for i in range(t, 150, 16)])
            in_threads(16, lambda t: [self.assertEqual(conns[i].get_chunk(keys[-i]), (META, common.pattern(-i % 150, 10_000)))
                                      for i in range(t, 150, 16)])
        finally:
            for c in conns:
                c.close()


class Rule9Pairs(unittest.TestCase):
    # a key's two names, as LMCache's versions spell them
    spellings = {
        "redis": lambda k: (k + "metadata", k + "kv_bytes"),
        "valkey": lambda k: (k + ":metadata", k + ":kv_bytes"),
        "valkey cluster": lambda k: ("{" + k + "}:metadata", "{" + k + "}:kv_bytes"),
    }

    def each(self, check):
        for name, spell in self.spellings.items():
            for unix in (False, True):
                with self.subTest(name, unix=unix), Pairs(unix=unix) as c:
                    check(c, *spell(chunk_key()))

    def test_bytes_first(self):
        def check(c, meta, data):
            self.assertEqual(c.do("EXISTS", meta), 0)
            c.set(data, common.pattern(1, 50_000))
            self.assertEqual(c.do("EXISTS", meta), 0)
            c.set(meta, META)
            self.assertEqual(c.do("EXISTS", meta, data), 2)
            self.assertEqual((c.get(meta), c.get(data)), (META, common.pattern(1, 50_000)))

        self.each(check)

    def test_metadata_first_stays_hidden_until_the_bytes_are_here(self):
        def check(c, meta, data):
            c.set(meta, META)
            self.assertEqual(c.do("EXISTS", meta), 0)
            self.assertIsNone(c.get(meta))
            c.set(data, common.pattern(1, 50_000))
            self.assertEqual(c.do("EXISTS", meta), 1)
            self.assertEqual((c.get(meta), c.get(data)), (META, common.pattern(1, 50_000)))

        self.each(check)

    def test_metadata_goes_with_the_bytes(self):
        def check(c, meta, data):
            c.set(data, common.pattern(1, 50_000))
            c.set(meta, META)
            self.assertEqual(c.do("DEL", data), 1)
            self.assertEqual(c.do("EXISTS", meta), 0)
            self.assertIsNone(c.get(meta))

        self.each(check)

    def test_eviction_leaves_no_half(self):
        keys = [chunk_key() for _ in range(64)]
        with Pairs() as c:
            for i, k in enumerate(keys):
                c.put_chunk(k, common.pattern(i, 256 << 10), META)
            storm()
            for i, k in enumerate(keys):
                got = c.get_chunk(k)
                self.assertNotEqual(got, "torn", "metadata without bytes")
                if got is not None:
                    self.assertTrue(got == (META, common.pattern(i, 256 << 10)), "wrong bytes")

    def test_a_lease_of_the_metadata_holds_the_bytes(self):
        keys = [chunk_key() for _ in range(8)]
        with Pairs() as c:
            for i, k in enumerate(keys):
                c.put_chunk(k, common.pattern(i, MIB), META)
                self.assertEqual(c.do("EXISTS", k + "metadata"), 1)
            storm()
            for i, k in enumerate(keys):
                self.assertTrue(c.get_chunk(k) == (META, common.pattern(i, MIB)), "lost in spite of its lease, or wrong bytes")


if __name__ == "__main__":
    common.run("__main__")
