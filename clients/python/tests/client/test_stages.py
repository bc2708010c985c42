"""Blocks that a client writes into the arena itself."""

import ctypes
import os
import unittest

import numpy as np
from rank import MIB, OneRank

from cascade_kv.staging import Stages


class StagesOfOtherFiles(OneRank):
    shm = "64MiB"

    def store(self, key):
        data = np.frombuffer(os.urandom(MIB), dtype=np.uint8)

        def write(_, address):
            ctypes.memmove(address, data.ctypes.data, data.nbytes)

        stored = Stages(self.c).store("ns", [key], [MIB], write)
        return data, list(stored)

    def test_the_path_leads_to_another_file(self):
        for other in (False, True):
            with self.subTest(other=other):
                self.rank.arena.unlink()
                if other:
                    self.rank.arena.write_bytes(bytes(64 * MIB))
                data, stored = self.store(b"key")
                self.assertEqual(stored, [True])
                self.assertEqual(self.c.get("ns", b"key"), data.tobytes())
                if other:
                    self.assertEqual(self.rank.arena.read_bytes().strip(b"\0"), b"")
                else:
                    self.rank.arena.touch()


if __name__ == "__main__":
    unittest.main()
