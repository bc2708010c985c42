"""cascade_kv.memory: which file lies behind an address, and files as memory."""

import mmap
import os
import tempfile
import unittest

import numpy as np

from cascade_kv import memory

SIZE = 8 * mmap.PAGESIZE


def address(m):
    return int(np.frombuffer(m, dtype=np.uint8).ctypes.data)


class Backing(unittest.TestCase):
    def check(self, m, at):
        """The file found is the one mapped: what is written to the memory at offset `at` is read from the file."""
        m[at : at + 5] = b"hello"
        found = memory.backing(address(m) + at, 5)
        self.assertIsNotNone(found)
        try:
            self.assertEqual(os.pread(found.fd, 5, found.offset), b"hello")
            os.pwrite(found.fd, b"world", found.offset)
            self.assertEqual(m[at : at + 5], b"world")
        finally:
            os.close(found.fd)

    def test_memfd(self):
        fd = os.memfd_create("memory-test")
        os.ftruncate(fd, SIZE)
        self.check(mmap.mmap(fd, SIZE), 3 * mmap.PAGESIZE + 17)
        os.close(fd)

    def test_file_and_part_of_a_file(self):
        with tempfile.NamedTemporaryFile(dir="/dev/shm") as f:
            f.truncate(SIZE)
            self.check(mmap.mmap(f.fileno(), SIZE), 0)
            self.check(mmap.mmap(f.fileno(), SIZE // 2, offset=SIZE // 2), 40)

    def test_file_without_a_name_is_found_by_its_descriptor(self):
        with tempfile.TemporaryFile(dir="/dev/shm") as f:
            f.truncate(SIZE)
            self.check(mmap.mmap(f.fileno(), SIZE), mmap.PAGESIZE)

    def test_another_file_of_the_same_name_is_not_taken(self):
        with tempfile.TemporaryDirectory(dir="/dev/shm") as d:
            path = os.path.join(d, "f")
            fd = os.open(path, os.O_RDWR | os.O_CREAT)
            os.ftruncate(fd, SIZE)
            m = mmap.mmap(fd, SIZE)
            at = address(m)
            os.close(fd)
            os.unlink(path)
            with open(path, "wb") as other:
                other.truncate(SIZE)
            found = memory.backing(at, SIZE)
            if found is not None:  # mmap keeps a descriptor of its own, by which the right one is found
                self.assertEqual(os.fstat(found.fd).st_nlink, 0)
                os.close(found.fd)

    def test_a_mapping_that_the_kernel_cut_is_one(self):
        fd = os.memfd_create("memory-test")
        os.ftruncate(fd, SIZE)
        m = mmap.mmap(fd, SIZE)
        m.madvise(mmap.MADV_DONTFORK, 2 * mmap.PAGESIZE, mmap.PAGESIZE)
        found = memory.backing(address(m), SIZE)
        self.assertEqual(found.offset, 0)
        os.close(found.fd)
        os.close(fd)

    def test_private_memory_and_memory_beyond_the_file_have_none(self):
        private = mmap.mmap(-1, SIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self.assertIsNone(memory.backing(address(private), SIZE))
        fd = os.memfd_create("memory-test")
        os.ftruncate(fd, SIZE)
        m = mmap.mmap(fd, SIZE)
        os.close(fd)
        self.assertIsNone(memory.backing(address(m), SIZE + 64 * SIZE))


class Mapping(unittest.TestCase):
    def setUp(self):
        self.fd = os.memfd_create("memory-test")
        self.addCleanup(os.close, self.fd)
        os.ftruncate(self.fd, SIZE)

    def mapped(self):
        """Mappings of the file in this process."""
        with open("/proc/self/maps") as maps:
            return sum("memory-test" in line for line in maps)

    def test_shared_and_where_huge_pages_can_be(self):
        a, b = memory.map_file(self.fd, SIZE, write=True), memory.map_file(self.fd, SIZE - 5)
        self.assertEqual([x.ctypes.data % (2 << 20) for x in (a, b)], [0, 0])
        self.assertEqual((a.nbytes, b.nbytes), (SIZE, SIZE - 5))
        a[100:105] = np.frombuffer(b"hello", np.uint8)
        self.assertEqual((b[100:105].tobytes(), os.pread(self.fd, 5, 100)), (b"hello", b"hello"))
        with self.assertRaises(ValueError):
            b[0] = 1

    def test_it_ends_with_the_last_array_over_it(self):
        whole = memory.map_file(self.fd, SIZE, write=True)
        part = whole[10:20]
        del whole
        part[:] = 7
        self.assertEqual((self.mapped(), os.pread(self.fd, 1, 19)), (1, b"\7"))
        del part
        self.assertEqual(self.mapped(), 0)

    def test_sizes_that_the_file_has_not(self):
        for size in (0, -1, SIZE + 1):
            with self.assertRaises(ValueError):
                memory.map_file(self.fd, size)
        self.assertEqual(self.mapped(), 0)

    def test_a_file_that_may_not_be_written(self):
        fd = os.open(f"/proc/self/fd/{self.fd}", os.O_RDONLY)
        self.addCleanup(os.close, fd)
        before = self.rooms()
        with self.assertRaises(OSError):
            memory.map_file(fd, SIZE, write=True)
        self.assertEqual(self.rooms(), before)

    def rooms(self):
        with open("/proc/self/statm") as f:
            return int(f.read().split()[0])


if __name__ == "__main__":
    unittest.main()
