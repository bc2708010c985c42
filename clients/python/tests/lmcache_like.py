"""Imitations of LMCache's two ways to speak Redis, byte for byte as far as the wire can tell.

Native   the C++ client behind resp:// and {"type":"resp"}: it counts reply bytes and parses nothing
Pairs    the redis:// connector: metadata and bytes of a chunk under two keys
"""

import os
from concurrent.futures import ThreadPoolExecutor

import common


class Desync(Exception):
    """The reply had not the bytes the client counts on; what follows is misread."""


class Miss(Exception):
    """A GET failed within the bytes the client reads: a clean miss."""


def mp_key(tag="0"):
    return f"test-model@01000100@{tag}@{os.urandom(32).hex()}"


def chunk_key(worker=0):
    return f"meta-llama/Llama-3.1-8B@1@{worker}@{os.urandom(8).hex()}@bfloat16"


class NativeConn(common.Raw):
    """One of the C++ client's sockets: RESP2, no handshake, one command in flight, replies by exact length."""

    def command(self, *args):
        parts = self.encode(*args)
        sent = self.sock.sendmsg(parts)  # writev, as the C++ client
        if sent < sum(map(len, parts)):
            self.sock.sendall(memoryview(b"".join(parts))[sent:])

    def set(self, key, value):
        self.command("SET", key, value)
        got = self.exactly(5)
        if got == b"-NO\r\n":
            raise common.ServerError("NO")
        if got != b"+OK\r\n":
            raise Desync(f"SET answered {got!r}")

    def exists(self, key):
        self.command("EXISTS", key)
        got = self.exactly(4)
        if got not in (b":0\r\n", b":1\r\n"):
            raise Desync(f"EXISTS answered {got!r}")
        return got == b":1\r\n"

    def delete(self, key):
        self.command("DEL", key)
        got = self.exactly(4)
        if got not in (b":0\r\n", b":1\r\n"):
            raise Desync(f"DEL answered {got!r}")
        return got == b":1\r\n"

    def get(self, key, size):
        """The value; reads as many bytes of the head as a value of that size has, whatever comes."""
        want = b"$%d\r\n" % size
        self.command("GET", key)
        head = self.exactly(len(want))
        if head != want:
            if head[:1] == b"-" and head[-2:] == b"\r\n":
                raise Miss(head)
            raise Desync(f"GET answered {head!r} where {want!r} was due")
        value = self.exactly(size)
        if self.exactly(2) != b"\r\n":
            raise Desync("the value is not followed by CRLF")
        return value


class Native:
    """The C++ client: eight connections, batches dealt out to them."""

    def __init__(self, workers=8):
        self.conns = [NativeConn() for _ in range(workers)]
        self.pool = ThreadPoolExecutor(workers)

    def close(self):
        self.pool.shutdown(wait=True)
        for c in self.conns:
            c.close()

    def _batch(self, call, items):
        out = [None] * len(items)
        step = -(-len(items) // len(self.conns)) or 1

        def shard(w):
            for i in range(w * step, min((w + 1) * step, len(items))):
                out[i] = call(self.conns[w], items[i])

        for f in [self.pool.submit(shard, w) for w in range(len(self.conns))]:
            f.result()
        return out

    def batch_set(self, keys, values):
        self._batch(lambda c, kv: c.set(*kv), list(zip(keys, values)))

    def batch_exists(self, keys):
        return self._batch(lambda c, k: c.exists(k), keys)

    def batch_get(self, keys, size):
        return self._batch(lambda c, k: c.get(k, size), keys)


class Pairs(common.Raw):
    """The redis:// connector on one connection. redis-py 4 sends no handshake; newer ones do (hello=True)."""

    suffixes = ("metadata", "kv_bytes")

    def __init__(self, unix=False, hello=True):
        super().__init__(unix=unix)
        self.null = None
        if hello:
            self.do("HELLO", "3")
            self.null = ("null", b"")
            for sub in (("MAINT_NOTIFICATIONS", "ON", "moving-endpoint-type", "internal-ip"), ("SETINFO", "LIB-NAME", "redis-py")):
                try:
                    self.do("CLIENT", *sub)
                except common.ServerError:
                    pass  # as redis-py does

    def set(self, name, value):
        if self.do("SET", name, value) != "OK":
            raise AssertionError(f"SET {name} was not answered OK")

    def get(self, name):
        got = self.do("GET", name)
        if got is None and self.null is not None:
            raise Desync("a null of RESP2 after HELLO 3")
        return None if got == self.null else got

    def put_chunk(self, key, value, meta):
        self.set(key + "kv_bytes", value)
        self.set(key + "metadata", meta)

    def get_chunk(self, key):
        """(metadata, bytes), or None; 'torn' when only the metadata is there, which costs LMCache two trips and a DEL."""
        meta = self.get(key + "metadata")
        if meta is None:
            return None
        value = self.get(key + "kv_bytes")
        return "torn" if value is None else (meta, value)


def in_threads(n, call):
    """Runs call(0..n-1) at once and raises the first error."""
    with ThreadPoolExecutor(n) as pool:
        for f in [pool.submit(call, i) for i in range(n)]:
            f.result()
