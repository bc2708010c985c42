"""A rank as redis-py sees it: sync and asyncio, unix socket and TCP, RESP2 and RESP3.

Runs against redis-server too, where all of it holds except what is marked as a rank's own.
"""

import asyncio
import time
import unittest

import common

try:
    import redis
    import redis.asyncio
except ImportError as e:
    common.skip(f"redis-py is not installed ({e}): apt-get install python3-redis")

SOCKET, PORT = common.where()
VERSION = tuple(int(p) for p in redis.__version__.split(".")[:2])
PROTOCOLS = (2, 3) if VERSION >= (5, 0) else (2,)
LARGE = 33 << 20
OTHER_DB = 9


def client(cls, transport, protocol, db=0, **kw):
    kw.setdefault("socket_timeout", 30)
    if VERSION >= (5, 0):
        kw["protocol"] = protocol
    if transport == "unix":
        return cls(unix_socket_path=SOCKET, db=db, **kw)
    return cls(host="127.0.0.1", port=PORT, db=db, **kw)


class Commands:
    """Every command of docs/protocol.md §3. Subclasses name transport and protocol."""

    transport, protocol = None, None

    def setUp(self):
        self.r = client(redis.Redis, self.transport, self.protocol)
        self.addCleanup(self.r.close)
        self.k = common.unique()

    def test_get_set_exists_del(self):
        self.assertIsNone(self.r.get(self.k))
        self.assertEqual(self.r.exists(self.k), 0)
        self.assertIs(self.r.set(self.k, b"value"), True)
        self.assertEqual(self.r.get(self.k), b"value")
        self.assertEqual(self.r.exists(self.k, self.k, self.k + "x"), 2)
        self.assertIs(self.r.set(self.k, b"another"), True)
        self.assertEqual(self.r.get(self.k), b"another")
        self.assertEqual(self.r.delete(self.k, self.k + "x"), 1)
        self.assertIsNone(self.r.get(self.k))
        self.assertEqual(self.r.delete(self.k), 0)

    def test_unlink_strlen_type(self):
        self.assertEqual(self.r.strlen(self.k), 0)
        self.assertEqual(self.r.type(self.k), b"none")
        self.r.set(self.k, b"12345")
        self.assertEqual(self.r.strlen(self.k), 5)
        self.assertEqual(self.r.type(self.k), b"string")
        self.assertEqual(self.r.unlink(self.k), 1)
        self.assertEqual(self.r.exists(self.k), 0)

    def test_empty_value_is_not_a_miss(self):
        self.r.set(self.k, b"")
        self.assertEqual(self.r.get(self.k), b"")
        self.assertEqual(self.r.exists(self.k), 1)
        self.assertEqual(self.r.strlen(self.k), 0)

    def test_conditions(self):
        self.assertIsNone(self.r.set(self.k, b"a", xx=True))
        self.assertEqual(self.r.exists(self.k), 0)
        self.assertIs(self.r.set(self.k, b"b", nx=True), True)
        self.assertIsNone(self.r.set(self.k, b"c", nx=True))
        self.assertEqual(self.r.get(self.k), b"b")
        self.assertIs(self.r.set(self.k, b"d", xx=True), True)
        self.assertEqual(self.r.get(self.k), b"d")

    def test_a_refused_large_value_leaves_the_connection_in_sync(self):
        self.r.set(self.k, b"kept")
        self.assertIsNone(self.r.set(self.k, common.pattern(3, 3 << 20), nx=True))
        self.assertEqual(self.r.get(self.k), b"kept")

    def test_ttl(self):
        self.assertEqual(self.r.ttl(self.k), -2)
        self.assertEqual(self.r.pttl(self.k), -2)
        self.r.set(self.k, b"v")
        self.assertEqual(self.r.ttl(self.k), -1)
        self.assertEqual(self.r.pttl(self.k), -1)
        self.assertTrue(self.r.expire(self.k, 100))
        self.assertIn(self.r.ttl(self.k), range(90, 101))
        self.assertIn(self.r.pttl(self.k), range(90_000, 100_001))
        self.assertTrue(self.r.pexpire(self.k, 50_000))
        self.assertIn(self.r.ttl(self.k), range(40, 51))
        self.assertFalse(self.r.expire(self.k + "x", 10))
        self.r.set(self.k, b"w", keepttl=True)
        self.assertIn(self.r.ttl(self.k), range(30, 51))
        self.r.set(self.k, b"w")
        self.assertEqual(self.r.ttl(self.k), -1)
        self.assertTrue(self.r.expire(self.k, 0))
        self.assertEqual(self.r.exists(self.k), 0)

    def test_keys_end_with_their_time(self):
        self.r.set(self.k + "px", b"v", px=80)
        self.r.set(self.k + "ex", b"v", ex=1)
        self.assertEqual(self.r.exists(self.k + "px", self.k + "ex"), 2)
        self.wait_for_absence(self.k + "px")
        self.wait_for_absence(self.k + "ex")
        self.assertEqual(self.r.exists(self.k + "px", self.k + "ex"), 0)
        self.assertEqual(self.r.ttl(self.k + "ex"), -2)
        self.assertIs(self.r.set(self.k + "ex", b"new", nx=True), True)

    def wait_for_absence(self, key):
        end = time.monotonic() + 30
        while self.r.get(key) is not None:
            self.assertLess(time.monotonic(), end, f"{key} never ended")
            time.sleep(0.02)

    def test_bad_options_are_one_error(self):
        for args in (
            ("SET", self.k, "v", "EX", "0"),
            ("SET", self.k, "v", "EX", "-1"),
            ("SET", self.k, "v", "PX", "x"),
            ("SET", self.k, "v", "EX"),
            ("SET", self.k, "v", "NX", "XX"),
            ("SET", self.k, "v", "EX", "5", "PX", "5"),
            ("SET", self.k, "v", "EX", "5", "KEEPTTL"),
            ("SET", self.k, "v", "NONSENSE"),
            ("SET", self.k),
            ("GET",),
            ("GET", self.k, "more"),
            ("EXISTS",),
            ("EXPIRE", self.k, "soon"),
            ("MGET",),
            ("SELECT", "many"),
            ("SELECT", "99999"),
            ("SCAN", "cursor"),
            ("CLIENT", "NONSENSE"),
            ("HELLO", "9"),
        ):
            with self.subTest(args), self.assertRaises(redis.ResponseError):
                self.r.execute_command(*args)
            self.assertTrue(self.r.ping())
        self.assertEqual(self.r.exists(self.k), 0)

    def test_mget(self):
        for i in range(3):
            self.r.set(f"{self.k}{i}", b"%d" % i)
        keys = [f"{self.k}{i}" for i in (0, 7, 2, 1, 1)]
        self.assertEqual(self.r.mget(keys), [b"0", None, b"2", b"1", b"1"])

    def test_binary_keys_and_values(self):
        for key in (b"\x00", b"\r\n", b"a b\t*$-:", bytes(range(256)), b"\xff" * 1024):
            key = self.k.encode()[:4] + key[4:] if len(key) == 1024 else self.k.encode() + key
            value = bytes(range(256)) + key
            self.r.set(key, value)
            self.assertEqual(self.r.get(key), value)
            self.assertEqual(self.r.delete(key), 1)

    def test_large_value(self):
        value = common.pattern(1, LARGE)
        self.r.set(self.k, value)
        self.assertEqual(self.r.strlen(self.k), LARGE)
        self.assertTrue(self.r.get(self.k) == value, "wrong bytes")
        self.assertTrue(self.r.mget(self.k, self.k + "x", self.k) == [value, None, value], "wrong bytes")
        self.r.delete(self.k)

    def test_pipeline(self):
        p = self.r.pipeline(transaction=False)
        for i in range(500):
            p.set(f"{self.k}{i}", b"%d" % i)
            p.get(f"{self.k}{i}")
            p.exists(f"{self.k}{i}x")
        got = p.execute()
        self.assertEqual(got, [x for i in range(500) for x in (True, b"%d" % i, 0)])

    def test_pipeline_with_errors_keeps_its_order(self):
        p = self.r.pipeline(transaction=False)
        p.set(self.k, b"a").execute_command("NONSENSE", "x\r\n+y").get(self.k)
        p.execute_command("SET", self.k, b"z", "NONSENSE").get(self.k)
        got = p.execute(raise_on_error=False)
        self.assertEqual([got[0], got[2], got[4]], [True, b"a", b"a"])
        self.assertIsInstance(got[1], redis.ResponseError)
        self.assertIsInstance(got[3], redis.ResponseError)

    def test_pipeline_of_large_values(self):
        values = [common.pattern(i, (1 << 20) + i) for i in range(8)]
        p = self.r.pipeline(transaction=False)
        for i, v in enumerate(values):
            p.set(f"{self.k}{i}", v)
        for i in range(8):
            p.get(f"{self.k}{i}")
        self.assertTrue(p.execute() == [True] * 8 + values, "wrong bytes or order")

    def test_scan(self):
        keys = {f"{self.k}:{i}".encode() for i in range(300)}
        for key in keys:
            self.r.set(key, b"v")
        self.assertEqual(set(self.r.scan_iter(match=self.k + ":*", count=17)), keys)
        self.assertEqual(set(self.r.scan_iter(match=self.k + ":?", count=1000)), {k for k in keys if k[-2:-1] == b":"})
        self.assertEqual(set(self.r.scan_iter(match=self.k + ":1[0-4]")), {f"{self.k}:{i}".encode() for i in range(10, 15)})
        self.assertEqual(set(self.r.scan_iter(match=self.k + ":*", _type="list")), set())
        self.r.delete(*keys)
        self.assertEqual(list(self.r.scan_iter(match=self.k + ":*")), [])

    def test_databases_are_apart(self):
        other = client(redis.Redis, self.transport, self.protocol, db=OTHER_DB)
        self.addCleanup(other.close)
        other.flushdb()
        self.assertEqual(other.dbsize(), 0)
        self.r.set(self.k, b"zero")
        self.assertIsNone(other.get(self.k))
        other.set(self.k, b"nine")
        other.set(self.k + "x", b"nine")
        self.assertEqual(other.dbsize(), 2)
        self.assertEqual(self.r.get(self.k), b"zero")
        other.flushdb()
        self.assertEqual(other.dbsize(), 0)
        self.assertEqual(self.r.get(self.k), b"zero")

    def test_connection_commands(self):
        self.assertTrue(self.r.ping())
        self.assertEqual(self.r.echo(b"\x00 text\r\n"), b"\x00 text\r\n")
        one = client(redis.Redis, self.transport, self.protocol, single_connection_client=True)
        self.addCleanup(one.close)
        self.assertIsInstance(one.client_id(), int)
        self.assertTrue(one.client_setname("me"))
        self.assertIn(one.client_getname(), ("me", b"me"))
        with self.assertRaises(redis.RedisError):
            one.execute_command("AUTH", "nobody", "wrong")
        self.assertIn(one.execute_command("RESET"), (b"RESET", "RESET"))
        self.assertIn(one.execute_command("QUIT"), (b"OK", "OK", True))

    def test_server_commands(self):
        info = self.r.info()
        for field in ("redis_version", "connected_clients", "used_memory", "role"):
            self.assertIn(field, info)
        self.assertEqual(self.r.info("replication")["role"], "master")
        self.assertIsInstance(self.r.config_get("maxmemory"), dict)
        self.assertGreater(self.r.command_count(), 20)
        self.assertIsInstance(self.r.dbsize(), int)

    def test_many_clients(self):
        clients = [client(redis.Redis, self.transport, self.protocol) for _ in range(150)]
        try:
            for i, c in enumerate(clients):
                self.assertIs(c.set(f"{self.k}{i}", b"%d" % i), True)
            for i, c in enumerate(reversed(clients)):
                self.assertEqual(c.get(f"{self.k}{i}"), b"%d" % i)
        finally:
            for c in clients:
                c.close()

    def test_what_a_rank_refuses(self):
        if common.rank_stats() is None:
            self.skipTest("the server is no CASCADE rank")
        for args in (("PUBLISH", "c", "m"), ("SUBSCRIBE", "c"), ("LPUSH", self.k, "v"), ("EVAL", "return 1", "0"),
                     ("XADD", self.k, "*", "f", "v"), ("no\r\nsuch", "x"), ("CLUSTER", "INFO")):
            with self.subTest(args):
                with self.assertRaises(redis.ResponseError) as e:
                    self.r.execute_command(*args)
                self.assertNotIn("\n", str(e.exception))
            self.assertTrue(self.r.ping())
        with self.assertRaises(redis.ResponseError):
            self.r.set(b"k" * 1025, b"v")
        self.assertIsNone(self.r.get(b"k" * 1025))
        self.assertTrue(self.r.ping())


def variants(base):
    """One TestCase per transport and protocol."""
    out = {}
    for transport in ("unix", "tcp"):
        for protocol in PROTOCOLS:
            name = f"{base.__name__}_{transport}_resp{protocol}"
            out[name] = type(name, (base, unittest.TestCase), {"transport": transport, "protocol": protocol})
    return out


class Asyncio:
    """The calls LMCache's redis:// connector makes, and a few more, over redis.asyncio."""

    transport, protocol = None, None

    def test_asyncio(self):
        asyncio.run(self.scenario())

    async def scenario(self):
        r = client(redis.asyncio.Redis, self.transport, self.protocol, max_connections=150)
        k = common.unique()
        try:
            self.assertIsNone(await r.get(k))
            await asyncio.gather(*(r.set(f"{k}{i}", common.pattern(i, 100_000 + i)) for i in range(64)))
            got = await asyncio.gather(*(r.get(f"{k}{i}") for i in range(64)))
            self.assertTrue(got == [common.pattern(i, 100_000 + i) for i in range(64)], "wrong bytes")
            self.assertEqual(await asyncio.gather(*(r.exists(f"{k}{i}") for i in range(60, 70))), [1] * 4 + [0] * 6)
            async with r.pipeline(transaction=False) as p:
                self.assertEqual(await p.set(k, b"a", px=60_000).get(k).ttl(k).delete(k).get(k).execute(), [True, b"a", 60, 1, None])
            self.assertEqual(sorted([x async for x in r.scan_iter(match=f"{k}6?")]), [f"{k}{i}".encode() for i in range(60, 64)])
            large = common.pattern(9, LARGE)
            await r.set(k, large)
            self.assertTrue(await r.get(k) == large, "wrong bytes")
            with self.assertRaises(redis.ResponseError):
                await r.execute_command("NONSENSE")
            self.assertTrue(await r.ping())
            await r.delete(k, *(f"{k}{i}" for i in range(64)))
        finally:
            await (r.aclose() if hasattr(r, "aclose") else r.close())
            await r.connection_pool.disconnect()


class Wire(unittest.TestCase):
    """What redis-py hides, or its old versions do not speak: bytes of RESP2 and RESP3, inline lines, bad input."""

    def test_null_follows_the_protocol(self):
        for unix in (False, True):
            with common.Raw(unix=unix) as c:
                k = common.unique()
                c.send("GET", k)
                self.assertEqual(c.exactly(5), b"$-1\r\n")
                c.send("MGET", k)
                self.assertEqual(c.exactly(9), b"*1\r\n$-1\r\n")
                kind, hello = c.do("HELLO", "3")
                self.assertEqual((kind, hello[b"proto"], hello[b"role"]), ("map", 3, b"master"))
                c.send("GET", k)
                self.assertEqual(c.exactly(3), b"_\r\n")
                c.send("SET", k, "v", "XX")
                self.assertEqual(c.exactly(3), b"_\r\n")
                self.assertEqual(c.do("CONFIG", "GET", "maxmemory")[0], "map")
                self.assertEqual(c.do("RESET"), "RESET")
                c.send("GET", k)
                self.assertEqual(c.exactly(5), b"$-1\r\n")
                self.assertTrue(c.silent())

    def test_hello(self):
        with common.Raw() as c:
            with self.assertRaisesRegex(common.ServerError, "^NOPROTO"):
                c.do("HELLO", "4")
            flat = c.do("HELLO", "2", "SETNAME", "me")
            self.assertEqual(dict(zip(flat[::2], flat[1::2]))[b"proto"], 2)
            self.assertEqual(c.do("CLIENT", "GETNAME"), b"me")
            if common.rank_stats() is not None:  # redis-server knows SETINFO since 7.2
                self.assertEqual(c.do("CLIENT", "SETINFO", "LIB-NAME", "test"), "OK")

    def test_inline(self):
        with common.Raw() as c:
            c.send_bytes(b"PING\r\n\r\nping \"a b\"\r\n")
            self.assertEqual(c.exactly(7), b"+PONG\r\n")
            self.assertEqual(c.reply(), b"a b")

    def test_broken_framing_is_said_and_ends_the_connection(self):
        for bad in (b"*x\r\n", b"*1\r\n$-5\r\n", b"*1\r\n:1\r\n", b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$536870913\r\n", b"PING \"open\r\n"):
            with self.subTest(bad), common.Raw() as c:
                c.send_bytes(bad)
                with self.assertRaisesRegex(common.ServerError, "^ERR Protocol error"):
                    c.reply()
                with self.assertRaises((EOFError, ConnectionError)):
                    c.exactly(1)

    def test_a_value_that_is_cut_off_changes_nothing(self):
        k = common.unique()
        with common.Raw() as c:
            self.assertEqual(c.do("SET", k, b"old"), "OK")
        with common.Raw() as c:
            c.send_bytes(b"*3\r\n$3\r\nSET\r\n$%d\r\n%s\r\n$1000000\r\n" % (len(k), k.encode()) + bytes(500_000))
        with common.Raw() as c:
            self.assertEqual(c.do("GET", k), b"old")

    def test_bytes_that_trickle(self):
        k = common.unique()
        with common.Raw() as c:
            for b in b"".join(c.encode("SET", k, "value") + c.encode("GET", k)):
                c.send_bytes(bytes([b]))
            self.assertEqual(c.reply(), "OK")
            self.assertEqual(c.reply(), b"value")


globals().update(variants(Commands))
globals().update(variants(Asyncio))

if __name__ == "__main__":
    print(f"redis-py {redis.__version__}, protocols {PROTOCOLS}")
    common.run("__main__")
