"""Who serves the socket: a rank of another user gets no byte, no password and no descriptor, and its files are not mapped."""

import asyncio
import contextlib
import logging
import os
import socket
import tempfile
import threading
import unittest
from unittest import mock

from rank import Client, OneRank, Rank, until

from cascade_kv import AsyncClient, CascadeAdapter, CascadeError, ForeignServer
from cascade_kv.link import Link
from cascade_kv.peer import Trust

SECRET = "a secret that only the rank may read"
OTHER = 65534
ROOT_USER = os.geteuid() == 0


@contextlib.contextmanager
def another_user():
    """What listens inside is another user's to clients outside. The kernel notes the user of a socket at listen()."""
    if ROOT_USER:
        os.seteuid(OTHER)
        try:
            yield
        finally:
            os.seteuid(0)
    else:
        yield


def as_seen():
    """For tests without root: the client takes itself for another user than the one who listens."""
    return contextlib.nullcontext() if ROOT_USER else mock.patch("cascade_kv.peer.os.geteuid", lambda: os.getuid() + 1)


class Fake:
    """A server that keeps all bytes and descriptors that come, and answers each read with the next of its answers."""

    def __init__(self, path, foreign=True, answers=()):
        self.path, self.answers = path, list(answers)
        self.got, self.fds, self.accepted = b"", 0, 0
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(path)
        os.chmod(path, 0o777)
        with another_user() if foreign else contextlib.nullcontext():
            self.listener.listen()
        self.uid = (OTHER if ROOT_USER else os.getuid()) if foreign else os.getuid()
        self.thread = threading.Thread(target=self._serve, daemon=True)
        self.thread.start()

    def _serve(self):
        while True:
            try:
                conn, _ = self.listener.accept()
            except OSError:
                return
            self.accepted += 1
            with conn:
                conn.settimeout(10)
                with contextlib.suppress(OSError):
                    self._talk(conn)

    def _talk(self, conn):
        while True:
            data, fds, _, _ = socket.recv_fds(conn, 1 << 16, 8)
            self.got += data
            self.fds += len(fds)
            for fd in fds:
                os.close(fd)
            if not data:
                return
            answer, fd = self.answers.pop(0) if self.answers else (b"-ERR no more\r\n", None)
            if fd is None:
                conn.sendall(answer)
            else:
                socket.send_fds(conn, [answer], [fd])

    def close(self):
        with contextlib.suppress(OSError):
            self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        self.thread.join(15)
        os.unlink(self.path)


class Servers(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="cascade-server-")
        self.addCleanup(folder.cleanup)
        self.path = os.path.join(folder.name, "rank.sock")

    def fake(self, **how):
        fake = Fake(self.path, **how)
        self.addCleanup(fake.close)
        return fake

    def client(self, **how):
        c = Client(self.path, **how)
        self.addCleanup(c.close)
        return c

    def wants_nothing_sent(self, fake):
        until(lambda: fake.accepted, "the client connects")
        self.assertEqual((fake.got, fake.fds), (b"", 0), "sent to a rank of another user")

    def test_another_user_gets_nothing(self):
        fake = self.fake()
        pool = os.memfd_create("pool")
        self.addCleanup(os.close, pool)
        os.ftruncate(pool, 1 << 20)
        with as_seen(), self.assertLogs("cascade_kv", logging.ERROR) as said:
            c = self.client(password=SECRET)
            self.assertFalse(c.put("ns", "k", b"v"))
            c.region(fd=pool)
            until(lambda: fake.accepted, "the client connects")
            until(lambda: not c.up and fake.accepted > 1, "it connects again, and looks again")
            self.assertIsNone(c.get("ns", "k"))
            self.assertIsNone(c.view("ns", "k"))
        self.wants_nothing_sent(fake)
        for word in (self.path, f"uid {fake.uid}", "server_uids", "CASCADE_SERVER_UIDS"):
            self.assertIn(word, said.output[0])
        self.assertNotIn(SECRET, "".join(said.output))

    def test_another_user_gets_nothing_async(self):
        fake = self.fake()

        async def ask():
            async with AsyncClient(self.path, password=SECRET) as c:
                return await c.put("ns", "k", b"v"), await c.get("ns", "k")

        with as_seen(), self.assertLogs("cascade_kv", logging.ERROR) as said:
            self.assertEqual(asyncio.run(ask()), (False, None))
        self.wants_nothing_sent(fake)
        self.assertIn(f"uid {fake.uid}", said.output[0])

    def test_the_error_has_a_type(self):
        fake = self.fake()
        with as_seen(), self.assertRaises(ForeignServer) as raised:
            Link(self.path, 5.0, Trust(None))
        self.assertEqual((raised.exception.path, raised.exception.uid), (self.path, fake.uid))
        self.assertIsInstance(raised.exception, CascadeError)

    def test_each_reconnect_looks_again(self):
        rank = Rank("64MiB")
        self.addCleanup(rank.end)
        rank.start()
        c = Client(rank.socket)
        self.addCleanup(c.close)
        self.assertTrue(c.put("ns", "k", b"v"))
        rank.kill()
        os.unlink(rank.socket)
        fake = Fake(rank.socket)
        with as_seen(), self.assertLogs("cascade_kv", logging.ERROR):
            until(lambda: not c.put("ns", "k", b"v") and fake.accepted, "the client meets the other user's rank")
        fake.close()
        self.assertEqual(fake.got, b"")
        rank.start()
        until(lambda: c.put("ns", "k", b"v"), "the rank is back")

    def test_listed_users(self):
        lists = ([OTHER if ROOT_USER else os.getuid()], f"7, {OTHER if ROOT_USER else os.getuid()}")
        for listed in lists:
            fake = Fake(self.path)
            with as_seen():
                c = Client(self.path, server_uids=listed)
                c.put("ns", "k", b"v")
                c.close()
            fake.close()
            self.assertIn(b"HELLO", fake.got)
        fake = self.fake()
        with as_seen(), mock.patch.dict(os.environ, CASCADE_SERVER_UIDS=lists[1]):
            self.client().put("ns", "k", b"v")
            adapter = CascadeAdapter()
            self.addCleanup(adapter.close)
            with self.assertLogs("cascade_kv", logging.ERROR):
                adapter.initialize({"socket": self.path, "server_uids": [7]})  # goes before the variable
        self.assertEqual(fake.got.count(b"HELLO"), 1)

    def test_what_is_no_list(self):
        for bad in ("me", "1;2", [-1], [1 << 32], ["1"], [True]):
            with self.assertRaisesRegex(ValueError, "server_uids"):
                Client(self.path, server_uids=bad)
        with mock.patch.dict(os.environ, CASCADE_SERVER_UIDS="me"), self.assertRaisesRegex(ValueError, "server_uids"):
            Client(self.path)

    def test_files_of_others_are_not_mapped(self):
        """A rank of this user sends an arena that another one owns: nothing of it is mapped, and the bytes come by the socket."""
        arena = os.memfd_create("arena")
        self.addCleanup(os.close, arena)
        os.ftruncate(arena, 1 << 16)
        if ROOT_USER:
            os.fchown(arena, OTHER, -1)
        hello = b"*2\r\n$7\r\nmodules\r\n*1\r\n*4\r\n$4\r\nname\r\n$7\r\ncascade\r\n$3\r\nver\r\n:2\r\n"
        size = b"*1\r\n:65536\r\n"
        self.fake(foreign=False, answers=[(hello, None), (b"-ERR no index\r\n", None), (size, arena), (b"$5\r\nvalue\r\n", None)])
        c = self.client()
        self.assertTrue(c.up)
        if not ROOT_USER:
            c._link.state.server = os.getuid() + 1
        c._sizes["ns"] = 1 << 20
        self.assertEqual(c.get("ns", "k"), b"value")
        self.assertIsNone(c._link.state.arena)


class OwnRank(OneRank):
    def test_own_rank_is_trusted(self):
        self.assertTrue(self.c.put(self.ns, "k", b"v"))
        self.assertEqual(self.c._link.state.server, os.geteuid())
        with self.c.view(self.ns, "k") as v:
            self.assertEqual(v.array.tobytes(), b"v")


if __name__ == "__main__":
    unittest.main()
