"""The decoder, and the client, against bytes that no rank would send."""

import logging
import pathlib
import random
import socket
import tempfile
import threading
import unittest

from rank import Pool, extents

from cascade_kv import Client
from cascade_kv.errors import ProtocolError, Refused
from cascade_kv.resp import INCOMPLETE, MAX_DEPTH, Decoder, head, keys_bytes, words

ROUNDS = 3000


def feed(decoder, data):
    while data:
        with decoder.room() as room:
            n = min(len(room), len(data))
            room[:n] = data[:n]
        decoder.got(n)
        data = data[n:]


def encode(value):
    if value is None:
        return b"$-1\r\n"
    if isinstance(value, list):
        return b"*%d\r\n" % len(value) + b"".join(map(encode, value))
    if isinstance(value, int):
        return b":%d\r\n" % value
    if isinstance(value, bytes):
        return b"$%d\r\n%b\r\n" % (len(value), value)
    return b"+%b\r\n" % value.encode()


def some_value(rng, depth=0):
    kind = rng.randrange(6 if depth < MAX_DEPTH else 5)
    if kind == 5:
        return [some_value(rng, depth + 1) for _ in range(rng.randrange(4))]
    sizes = (0, 1, 10, 5000, 70_000) if depth == 0 else (0, 1, 10, 200)
    return (None, rng.randrange(-(10**18), 10**18), "OK", "ü" * rng.randrange(5), rng.randbytes(rng.choice(sizes)))[kind]


class Requests(unittest.TestCase):
    def test_golden(self):
        self.assertEqual(head(2) + words("GET", b"k"), b"*2\r\n$3\r\nGET\r\n$1\r\nk\r\n")
        self.assertEqual(words("ü", 12, -1, b""), b"$2\r\n\xc3\xbc\r\n$2\r\n12\r\n$2\r\n-1\r\n$0\r\n\r\n")

    def test_keys_are_words(self):
        for keys in (
            [],
            ["a"],
            [b"a", b"b"],
            ["a", "bb"],
            ["aa", b"b"],
            [b"aa", "bb"],
            ["ü", "aa"],
            ("a", "b"),
            [b"", b""],
            [bytearray(b"x"), b"y"],
        ):
            with self.subTest(keys):
                self.assertEqual(keys_bytes(keys), words(*[bytes(k) if isinstance(k, bytearray) else k for k in keys]))


class Replies(unittest.TestCase):
    def test_any_replies_in_any_pieces(self):
        rng = random.Random(1)
        for _ in range(200):
            values = [some_value(rng) for _ in range(rng.randrange(1, 6))]
            data, decoder, got = b"".join(map(encode, values)), Decoder(), []
            while data:
                n = rng.choice((1, 2, 3, 10, 1000, 100_000))
                feed(decoder, data[:n])
                data = data[n:]
                while (reply := decoder.reply()) is not INCOMPLETE:
                    got.append(reply)
            self.assertEqual(got, values)
            self.assertTrue(decoder.empty)

    def test_errors_are_values(self):
        d = Decoder()
        feed(d, b"-BUSY wait\r\n*2\r\n-ERR x\r\n:1\r\n*-1\r\n")
        first = d.reply()
        self.assertIsInstance(first, Refused)
        self.assertEqual((first.code, str(first)), ("BUSY", "BUSY wait"))
        second = d.reply()
        self.assertEqual((str(second[0]), second[1]), ("ERR x", 1))
        self.assertIsNone(d.reply())
        self.assertIs(d.reply(), INCOMPLETE)

    def test_what_is_no_reply_is_a_protocol_error(self):
        deep = b"*1\r\n" * (MAX_DEPTH + 1)
        for bad in (
            b"x\r\n",
            b"\r\n",
            b"$x\r\n",
            b"$-2\r\n",
            b"$1_0\r\n",
            b"$ 1\r\n",
            b"$+1\r\n",
            b"$\r\n",
            b":\r\n",
            b":--1\r\n",
            b"$536870913\r\n",
            b"$99999999999999999999999\r\n",
            b"*99999999\r\n",
            b"*-2\r\n",
            b"*2147483648\r\n",
            b"$1\r\nabc",
            b"$0\r\nxx",
            deep,
            b"+" + b"x" * 70_000,
        ):
            with self.subTest(bad[:30]):
                d = Decoder()
                feed(d, bad)
                with self.assertRaises(ProtocolError):
                    d.reply()

    def test_an_announced_length_takes_no_memory(self):
        d = Decoder()
        feed(d, b"*2000000\r\n$500000000\r\n")
        self.assertIs(d.reply(), INCOMPLETE)
        with d.room() as room:
            self.assertLess(len(room), 1 << 20)

    def test_random_bytes_are_a_reply_or_an_error_and_never_more(self):
        for alphabet in (bytes(range(256)), b"*$:+-\r\n0123456789 ", b"*$:\r\n012"):
            rng = random.Random(alphabet)
            for _ in range(ROUNDS):
                data = bytes(rng.choices(alphabet, k=rng.randrange(1, 60)))
                if rng.random() < 0.5:
                    whole = bytearray(encode(some_value(rng)))
                    for _ in range(rng.randrange(1, 4)):
                        whole[rng.randrange(len(whole))] = rng.choice(alphabet)
                    data = bytes(whole[:500])
                d = Decoder()
                feed(d, data)
                try:
                    for _ in range(len(data) + 1):
                        if d.reply() is INCOMPLETE:
                            break
                    else:
                        self.fail(f"more replies than bytes: {data!r}")
                except ProtocolError:
                    pass


class Hostile:
    """A server that answers every request with bytes that no rank would send."""

    def __init__(self, answer):
        self.dir = tempfile.TemporaryDirectory(prefix="cascade-hostile-")
        self.path = str(pathlib.Path(self.dir.name) / "s")
        self.answer = answer
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(self.path)
        self.listener.listen()
        self.thread = threading.Thread(target=self.serve)
        self.thread.start()

    def serve(self):
        while True:
            try:
                conn, _ = self.listener.accept()
            except OSError:
                return
            with conn:
                try:
                    while conn.recv(1 << 16):
                        conn.sendall(self.answer())
                except OSError:
                    pass

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        self.thread.join(30)
        self.dir.cleanup()


def ask(c, region):
    """Every call: whatever is answered, the results are of the right shape."""
    keys, e = ["a", "b"], extents(2, 100)
    assert isinstance(c.get("n", "k"), (bytes, type(None)))
    assert isinstance(c.put("n", "k", b"v"), bool)
    assert c.contains("n", keys).shape == (2,)
    assert isinstance(c.probe("n", keys).hits, int)
    assert c.store("n", region, keys, e).shape == (2,)
    assert c.load("n", region, keys, e, job=1) in (True, False)
    assert isinstance(c.done(), list) and isinstance(c.cancel(1), bool)
    assert len(c.views("n", keys)) == 2
    assert isinstance(c.stats(), dict) and isinstance(c.events().events, list)
    assert isinstance(c.delete("n", keys), int) and isinstance(c.clear("n"), bool)


class HostileServers(unittest.TestCase):
    def setUp(self):
        logging.disable(logging.CRITICAL)
        self.addCleanup(logging.disable, logging.NOTSET)

    def run_against(self, answer):
        with Hostile(answer) as server, Client(server.path, timeout=0.05) as c:
            c._backoff.failed = lambda: None  # again at once
            region = c._new_region(Pool(1 << 16).fd, None, None)
            c._regions[region.number] = region
            for _ in range(10):
                ask(c, region)

    def test_random_answers(self):
        rng = random.Random(7)
        hello = encode([b"server", b"cascade", b"modules", [[b"name", b"cascade", b"ver", 2]]])
        self.run_against(lambda: rng.randbytes(rng.randrange(1, 200)))
        self.run_against(lambda: encode(some_value(rng)))
        self.run_against(
            lambda: rng.choice(
                (
                    hello,
                    b"+OK\r\n",
                    b":1\r\n",
                    b"$2\r\n\x01\x01\r\n",
                    b"+QUEUED\r\n",
                    b"*1\r\n*2\r\n:1\r\n$1\r\n\x01\r\n",
                    b"*2\r\n*5\r\n:1\r\n:-5\r\n:10\r\n:0\r\n$3\r\nshm\r\n$-1\r\n",
                    encode(some_value(rng)),
                    b"-ERR no\r\n",
                )
            )
        )

    def test_more_than_was_asked_for(self):
        self.run_against(lambda: b"+OK\r\n+OK\r\n")

    def test_bytes_that_trickle_do_not_stretch_the_timeout(self):
        with Hostile(lambda: b"$100000\r\n") as server, Client(server.path, timeout=0.05) as c:
            for _ in range(3):
                self.assertIsNone(c.get("n", "k"))


if __name__ == "__main__":
    unittest.main()
