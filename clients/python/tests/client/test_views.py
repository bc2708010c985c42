"""Blocks in the rank's arena, without a copy."""

import gc
import os
import unittest

import numpy as np
from rank import MIB, OneRank, until

from cascade_kv import memory

try:
    import torch
except ImportError:
    torch = None


def huge_pages():
    """Whether the kernel makes huge pages when asked to, and has one."""
    room = np.ones(4 * MIB, np.uint8)
    aligned = room.ctypes.data + -room.ctypes.data % (2 * MIB)
    return memory._libc.madvise(aligned, 2 * MIB, 25) == 0  # MADV_COLLAPSE


def reached_by_huge_pages(address):
    """Bytes of the mapping that begins at an address."""
    mine = False
    with open("/proc/self/smaps") as lines:
        for line in lines:
            if line.startswith(f"{address:x}-"):
                mine = True
            elif mine and line.startswith("ShmemPmdMapped:"):
                return int(line.split()[1]) << 10
    return 0


class Views(OneRank):
    shm = "64MiB"  # views may hold 16

    def put(self, n, size=MIB):
        values = [os.urandom(size) for _ in range(n)]
        for i, v in enumerate(values):
            self.assertTrue(self.c.put(self.ns, f"k{i}", v))
        return values

    def test_no_copy(self):
        (value,) = self.put(1)
        with self.c.view(self.ns, "k0") as v, self.c.view(self.ns, "k0") as again:
            self.assertEqual((v.array.tobytes(), v.size, len(v), v.tier), (value, MIB, MIB, "shm"))
            self.assertEqual(v.array.ctypes.data, again.array.ctypes.data)
            arena = self.c._link.state.arena
            self.assertTrue(arena.address <= v.array.ctypes.data <= arena.address + arena.size - MIB)
            self.assertFalse(v.array.flags.writeable)
            with self.assertRaises(ValueError):
                v.array[0] = 1
            self.assertTrue(v.held)
        self.assertFalse(v.held)
        with self.assertRaises(ValueError):
            v.array
        v.release()

    def test_the_arena_lies_in_huge_pages(self):
        """What the rank made of its arena, the client's mapping of it can use."""
        if not huge_pages():
            self.skipTest("no huge pages of shared memory: needs Linux 6.1 and 2 MiB of free memory in one piece")
        self.put(1)
        with self.c.view(self.ns, "k0") as v:
            arena = self.c._link.state.arena

            def mapped():
                _ = arena.array[:: 1 << 20].sum() + v.array.sum()
                return reached_by_huge_pages(arena.address) > arena.size // 2

            until(mapped, "most of the arena in huge pages")

    def test_absent_and_present_in_order(self):
        values = self.put(3, 1000)
        got = self.c.views(self.ns, ["k2", "absent", "k0", "k2"])
        self.assertEqual([g and g.array.tobytes() for g in got], [values[2], None, values[0], values[2]])

    def test_an_empty_block(self):
        self.put(1, 0)
        v = self.c.view(self.ns, "k0")
        self.assertEqual((v.size, v.array.tobytes()), (0, b""))

    def test_views_hold_a_quarter_at_most_and_give_it_back(self):
        self.put(24)
        keys = [f"k{i}" for i in range(24)]
        for give_back in ("release", "with", "garbage"):
            with self.subTest(give_back):
                got = self.c.views(self.ns, keys)
                held = [v for v in got if v is not None]
                self.assertTrue(0 < len(held) < 24, len(held))
                if give_back == "release":
                    for v in held:
                        v.release()
                elif give_back == "with":
                    for v in held:
                        with v:
                            pass
                v = None
                del got, held
                gc.collect()
                self.assertIsNotNone(self.c.view(self.ns, "k23"))
        self.assertIsNotNone(self.c.get(self.ns, "k0"))

    def test_large_values_come_even_when_views_hold_too_much(self):
        values = self.put(24)
        keep = self.c.views(self.ns, [f"k{i}" for i in range(24)])
        for _ in range(2):
            for i in range(24):
                self.assertEqual(self.c.get(self.ns, f"k{i}"), values[i])
        dst = bytearray(MIB)
        for i in range(24):
            self.assertEqual(self.c.get_into(self.ns, f"k{i}", dst), MIB)
            self.assertEqual(dst, values[i])
        self.assertTrue(any(keep))

    def test_a_block_stays_while_an_array_over_it_lives(self):
        (value,) = self.put(1)
        part = self.c.view(self.ns, "k0").array[1000:2000]  # the view itself is garbage now
        gc.collect()
        self.churn(128)
        self.assertEqual(part.tobytes(), value[1000:2000])
        whole = self.c.view(self.ns, "k0")
        self.assertIsNotNone(whole)  # it was never evicted
        del part, whole
        gc.collect()

    def churn(self, n):
        for i in range(n):
            self.c.put(self.ns, f"churn{i}", os.urandom(MIB))

    def test_another_clients_views_do_not_end_with_ours(self):
        (value,) = self.put(1)
        from cascade_kv import Client

        with Client(self.rank.socket) as other:
            kept = other.view(self.ns, "k0")
            self.c.view(self.ns, "k0").release()
            self.c.close()
            self.assertEqual(kept.array.tobytes(), value)
            self.assertTrue(kept.held)
            array = kept.array
        self.assertFalse(kept.held)
        self.assertEqual(len(array.tobytes()), MIB)  # the memory is still mapped

    def test_views_may_end_in_any_thread_and_at_any_time(self):
        self.put(4, 1000)

        class Ring:
            pass

        for i in range(200):
            r = Ring()
            r.me, r.view = r, self.c.view(self.ns, f"k{i % 4}")  # freed by the collector, wherever that runs
            self.assertIsNotNone(r.view)
            del r
            if i % 50 == 0:
                gc.collect()
        until(lambda: self.c.view(self.ns, "k0") is not None, "a view")

    @unittest.skipIf(torch is None, "torch is not installed")
    def test_tensors(self):
        import warnings

        values = np.random.default_rng(5).standard_normal(1000).astype(np.float32)
        self.c.put(self.ns, "k0", values)
        with self.c.view(self.ns, "k0") as v, warnings.catch_warnings():
            warnings.simplefilter("error")
            t = v.tensor(torch.float32)
            self.assertEqual(t.data_ptr(), v.array.ctypes.data)
            self.assertTrue(torch.equal(t, torch.from_numpy(values)))
            self.assertEqual(v.tensor().dtype, torch.uint8)
            del t
        t = self.c.view(self.ns, "k0").tensor(torch.float32)
        gc.collect()
        self.churn(128)
        self.assertTrue(torch.equal(t, torch.from_numpy(values)))
        self.put(1, 0)
        self.assertEqual(self.c.view(self.ns, "k0").tensor().numel(), 0)


if __name__ == "__main__":
    unittest.main()
