"""Stores in the engine's process that keep blocks in files: a file for each block, and libraries."""

from __future__ import annotations

import os
import pathlib

from servers import library
from store import Store


class Files(Store):
    name, what = "files", "a file for each block in /dev/shm, temporary name and rename: LMCache's and SGLang's file backends"

    def start(self) -> None:
        self.root = pathlib.Path("/dev/shm") / f"{self.children.dir.name}.files"
        self.root.mkdir()

    def path(self, key: str) -> str:
        return f"{self.root}/{key}"

    def write(self, keys, offsets, size):
        for k, o in zip(keys, offsets):
            p = self.path(k)
            fd = os.open(p + ".t", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            try:
                if os.write(fd, self.part(o, size)) != size:
                    raise RuntimeError("not stored")
            finally:
                os.close(fd)
            os.rename(p + ".t", p)

    def read(self, keys, offsets, size):
        for k, o in zip(keys, offsets):
            fd = os.open(self.path(k), os.O_RDONLY)
            try:
                if os.preadv(fd, [self.part(o, size)], 0) != size:
                    raise RuntimeError("cut short")
            finally:
                os.close(fd)

    def has(self, keys):
        return [os.access(self.path(k), os.F_OK) for k in keys]

    def clear(self) -> None:
        for entry in os.scandir(self.root):
            os.unlink(entry.path)

    def close(self) -> None:
        self.clear()
        self.root.rmdir()


class Lmdb(Store):
    name, what = "lmdb", "LMDB on disk (page cache), writemap, no sync; one transaction for a batch"

    def start(self) -> None:
        self.env = library("lmdb").open(str(self.dir), map_size=4 * self.capacity, sync=False, metasync=False, writemap=True, map_async=True)

    def write(self, keys, offsets, size):
        with self.env.begin(write=True) as t:
            for k, o in zip(keys, offsets):
                t.put(k.encode(), self.part(o, size))

    def read(self, keys, offsets, size):
        with self.env.begin(buffers=True) as t:
            for k, o in zip(keys, offsets):
                self.take(o, size, t.get(k.encode()))

    def has(self, keys):
        with self.env.begin(buffers=True) as t:
            return [t.get(k.encode()) is not None for k in keys]

    def clear(self) -> None:
        with self.env.begin(write=True) as t:
            t.drop(self.env.open_db(None, txn=t), delete=False)

    def close(self) -> None:
        self.env.close()


class Rocks(Store):
    name, what = "rocksdb", "RocksDB (rocksdict) on disk (page cache) with blob files, no sync, no compression"

    def start(self) -> None:
        self.lib, self.n = library("rocksdict"), 0
        self.open()

    def open(self) -> None:
        o = self.lib.Options(raw_mode=True)
        o.create_if_missing(True)
        o.set_compression_type(self.lib.DBCompressionType.none())
        o.set_enable_blob_files(True)
        o.set_min_blob_size(4096)
        self.n += 1
        self.db = self.lib.Rdict(str(self.dir / str(self.n)), o)

    def write(self, keys, offsets, size):
        batch = self.lib.WriteBatch(raw_mode=True)
        for k, o in zip(keys, offsets):
            batch.put(k.encode(), bytes(self.part(o, size)))
        self.db.write(batch)

    def read(self, keys, offsets, size):
        for o, value in zip(offsets, self.db[[k.encode() for k in keys]]):
            self.take(o, size, value)

    def has(self, keys):
        return [k.encode() in self.db for k in keys]

    def clear(self) -> None:
        self.close()
        self.open()

    def close(self) -> None:
        self.db.close()
        self.lib.Rdict.destroy(str(self.dir / str(self.n)))


class Hdf5(Store):
    name, what = "hdf5", "HDF5 (h5py) on disk (page cache), a contiguous dataset for each block"

    def start(self) -> None:
        self.lib = library("h5py")
        self.open()

    def open(self) -> None:
        self.file = self.lib.File(self.dir / "blocks.h5", "w", libver="latest", rdcc_nbytes=0)

    def write(self, keys, offsets, size):
        for k, o in zip(keys, offsets):
            self.file.create_dataset(k, data=self.memory.array[o : o + size])

    def read(self, keys, offsets, size):
        for k, o in zip(keys, offsets):
            self.file[k].read_direct(self.memory.array[o : o + size])

    def has(self, keys):
        return [k in self.file for k in keys]

    def clear(self) -> None:
        self.file.close()
        self.open()

    def close(self) -> None:
        self.file.close()
