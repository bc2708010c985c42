"""Which file lies behind memory of this process, by which an engine's host pool is attached to the rank; and pages mapped ahead of their use."""

from __future__ import annotations

import ctypes
import mmap
import os
import threading
import weakref
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

_MADV_POPULATE_READ, _MADV_POPULATE_WRITE = 22, 23
_STEP = 64 << 20
_HUGE = 2 << 20  # bytes that the kernel can map at once
_PROT_NONE, _MAP_FIXED = 0, 0x10
_libc = ctypes.CDLL(None, use_errno=True)  # its calls let other threads run
_libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
_libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long)
_libc.mmap.restype = ctypes.c_void_p
_libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)


@dataclass(frozen=True, slots=True)
class Backing:
    """The file of a piece of memory, and where the memory begins in it."""

    fd: int  # open for reading and writing; the receiver closes it
    offset: int  # in bytes


def backing(address: int, length: int) -> Backing | None:
    """The file that length bytes of memory at address are shared with, a memfd or a file of tmpfs.

    None if there is none: memory of the process alone, or memory of several files. The file may have lost its name; it
    is found then among the descriptors of this process. Linux only.
    """
    try:
        found = _mapping(address, length)
        if found is None:
            return None
        offset, device, inode, path = found
        for candidate in (path, *_descriptors()):
            fd = _open(candidate, device, inode)
            if fd is not None:
                return Backing(fd, offset)
    except OSError:
        pass  # no /proc, or a kernel that hides it
    return None


def _mapping(address: int, length: int) -> tuple[int, int, int, str] | None:
    """Offset in the file, device, inode and path. The kernel may have cut one mapping of a file in several."""
    at = address
    first: tuple[int, int, int, str] | None = None
    with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as maps:
        for line in maps:
            words = line.rstrip("\n").split(None, 5)
            start, end = (int(x, 16) for x in words[0].split("-"))
            if end <= at:
                continue
            if start > at or words[1][3] != "s" or len(words) < 6:
                return None
            major, minor = (int(x, 16) for x in words[3].split(":"))
            here = (int(words[2], 16) + at - start, os.makedev(major, minor), int(words[4]), words[5])
            if first is None:
                first = here
            elif here[1:3] != first[1:3] or here[0] - first[0] != at - address:
                return None
            at = end
            if at >= address + length:
                return first
    return None


def _descriptors() -> list[str]:
    return [f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd")]


def _open(path: str, device: int, inode: int) -> int | None:
    """A new descriptor of path, if it is that file. What it is is asked first: opening a pipe or a device does things."""
    try:
        if not _is(os.stat(path), device, inode):
            return None
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return None
    if _is(os.fstat(fd), device, inode):
        return fd
    os.close(fd)
    return None


def _is(status: os.stat_result, device: int, inode: int) -> bool:
    return status.st_dev == device and status.st_ino == inode


def map_file(fd: int, size: int, *, write: bool = False) -> NDArray[np.uint8]:
    """The first bytes of a file, shared with all who map it, until the last array over them is gone.

    They begin at a multiple of a huge page, else the kernel could not map the huge pages that a rank makes of its arena.
    """
    if not 0 < size <= os.fstat(fd).st_size:
        raise ValueError("a file that is too small")
    room = _mmap(None, size + _HUGE, _PROT_NONE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1)
    try:
        start = _mmap(room + -room % _HUGE, size, mmap.PROT_READ | (mmap.PROT_WRITE if write else 0), mmap.MAP_SHARED | _MAP_FIXED, fd)
    except OSError:
        _libc.munmap(room, size + _HUGE)
        raise
    block = (ctypes.c_uint8 * size).from_address(start)
    weakref.finalize(block, _libc.munmap, room, size + _HUGE).atexit = False  # the interpreter's last steps may still read it
    array = np.frombuffer(memoryview(block), np.uint8)
    array.flags.writeable = write
    return array


def _mmap(at: int | None, size: int, protection: int, flags: int, fd: int) -> int:
    got = _libc.mmap(at, size, protection, flags, fd, 0)
    if got is None or got == ctypes.c_void_p(-1).value:
        e = ctypes.get_errno()
        raise OSError(e, os.strerror(e))
    return int(got)


def map_ahead(array: Any, *, write: bool) -> None:
    """Maps the pages of an array of bytes in the background, a few at a time: page faults cost as much as a copy. Their contents stay."""
    threading.Thread(target=_populate, args=(array, _MADV_POPULATE_WRITE if write else _MADV_POPULATE_READ), name="cascade-map", daemon=True).start()


def _populate(array: Any, advice: int) -> None:
    for start in range(0, array.nbytes, _STEP):
        if _libc.madvise(int(array.ctypes.data) + start, min(_STEP, array.nbytes - start), advice) != 0:
            return  # a kernel before 5.14
