"""A rank that is replaced by another program in its process: clients keep their connections, and all that they hold."""

import asyncio
import os
import socket
import threading
import unittest

import numpy as np
from rank import MIB, OneRank, Pool, extents, names

from cascade_kv import AsyncClient

BLOCK = 64 << 10
UPGRADES = 3


def answer(path, command):
    """What a rank answers to a command, as it is sent."""
    with socket.socket(socket.AF_UNIX) as s:
        s.settimeout(120)
        s.connect(path)
        s.sendall(command + b"\r\nECHO end-of-answer\r\n")
        got = b""
        while not got.endswith(b"end-of-answer\r\n"):
            piece = s.recv(4096)
            if not piece:
                break
            got += piece
        return got


def upgrade(path):
    """Has the rank replaced by the program that it was started from; returns its answer."""
    return answer(path, b"CASCADE.UPGRADE WAIT 60000")


class Upgraded(OneRank):
    shm = "64MiB"

    def replaced(self):
        pid = self.rank.child.pid
        got = upgrade(self.rank.socket)
        self.assertIn(b":%d\r\n" % pid, got)
        self.assertIsNone(self.rank.child.poll())

    def test_a_client_that_holds_things(self):
        value = os.urandom(MIB)
        self.assertTrue(self.c.put(self.ns, "viewed", value))
        view = self.c.view(self.ns, "viewed")
        self.c.delete(self.ns, ["viewed"])
        pool = Pool(8 * MIB)
        region = self.c.region(fd=pool.fd)
        keys, data = names(16), pool.fill(1, 16 * BLOCK)
        link = self.c._link
        for turn in range(UPGRADES):
            self.c.store(self.ns, region, keys, extents(16, BLOCK), job=turn)
            self.replaced()
            done = []
            while not done:
                done = self.c.done(5.0)
            self.assertEqual([(j, s.tolist()) for j, s in done], [(turn, [1] * 16)])
            pool.array[4 * MIB :] = 0
            self.assertEqual(self.c.load(self.ns, region, keys, extents(16, BLOCK, at=4 * MIB)).tolist(), [1] * 16)
            np.testing.assert_array_equal(pool.array[4 * MIB : 4 * MIB + 16 * BLOCK], data)
            self.assertTrue(view.held)
            self.assertEqual(view.array.tobytes(), value)
        self.assertIs(self.c._link, link)
        view.release()

    def test_clients_at_work(self):
        stop, turns, wrong = threading.Event(), [0, 0], []

        def work():
            while not stop.is_set():
                key, value = f"k{turns[0] % 20}", os.urandom(1 + turns[0] * 997 % (300 << 10))
                if not self.c.put(self.ns, key, value):
                    wrong.append(f"put {turns[0]}")
                if self.c.get(self.ns, key) != value:
                    wrong.append(f"get {turns[0]}")
                turns[0] += 1

        async def work_async():
            async with AsyncClient(self.rank.socket) as a:
                while not stop.is_set():
                    keys = [f"a{turns[1] % 20}-{i}" for i in range(4)]
                    values = [os.urandom(20 << 10) for _ in keys]
                    if not all(await asyncio.gather(*(a.put(self.ns, k, v) for k, v in zip(keys, values)))):
                        wrong.append(f"put {turns[1]} of the other")
                    if await asyncio.gather(*(a.get(self.ns, k) for k in keys)) != values:
                        wrong.append(f"get {turns[1]} of the other")
                    turns[1] += 1

        link, threads = self.c._connected(), [threading.Thread(target=work), threading.Thread(target=lambda: asyncio.run(work_async()))]
        for t in threads:
            t.start()
        try:
            for _ in range(UPGRADES):
                before = list(turns)
                while not wrong and all(t.is_alive() for t in threads) and not all(now > then for now, then in zip(turns, before)):
                    stop.wait(0.005)
                self.replaced()
        finally:
            stop.set()
            for t in threads:
                t.join()
        self.assertEqual(wrong, [])
        self.assertTrue(all(turns), turns)
        self.assertIs(self.c._link, link)


if __name__ == "__main__":
    unittest.main()
