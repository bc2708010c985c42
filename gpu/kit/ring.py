"""Reads of a file through io_uring that a stream's memory operations, a kernel or a CPU thread trigger, against threads of pread."""

import ctypes
import mmap
import os
import random
import resource
import shutil
import subprocess
import threading
import time

import numpy as np

import kit
from kit import KIB, MIB

BLOCK = 128 * KIB
N = 128 if kit.FAKE else 2048  # reads a round
FILE = (64 if kit.FAKE else 2048) * MIB
ROUNDS = 3 if kit.FAKE else 6
PATIENCE = 5  # seconds until a wait is released

cu, lib, report = kit.Driver(), kit.helper(), kit.Report()
lib.kit_load(kit.LIBRARY.encode())
path = str(kit.WORK / "data.bin").encode()
stream, done = cu.stream(), cu.event(1)


class Ring(ctypes.Structure):
    _fields_ = [(n, ctypes.c_uint64) for n in ("memory", "sqes", "memory_bytes", "sqes_bytes")] + [
        (n, ctypes.c_uint32) for n in ("sq_head", "sq_tail", "cq_head", "cq_tail", "cqes", "sq_mask", "cq_mask", "entries")] + [
        ("fd", ctypes.c_int32), ("file", ctypes.c_int32), ("flags", ctypes.c_uint64), ("data", ctypes.c_uint64)]


class Job(ctypes.Structure):
    _fields_ = [(n, ctypes.c_uint64) for n in ("sq_head", "sq_tail", "cq_head", "cq_tail", "sqes", "cqes", "offsets", "addr", "patience")] + [
        (n, ctypes.c_uint32) for n in ("sq_mask", "cq_mask", "n", "bytes", "depth", "abort", "status", "errors")]


def pages(size):
    array = np.frombuffer(mmap.mmap(-1, size), np.uint8)
    array[::4096] = 1
    return array


def make_file():
    t = time.monotonic()
    part = pages(64 * MIB)
    with open(path, "wb", buffering=0) as f:
        for at in range(0, FILE, part.nbytes):
            lib.kit_fill(kit.p(part), ctypes.c_uint64(at), ctypes.c_uint64(part.nbytes))
            f.write(part)
        os.fsync(f.fileno())
    return {"bytes": FILE, "write_gb_s": round(FILE / (time.monotonic() - t) / 1e9, 2)}


def latencies():
    words, out = pages(4096), np.zeros(500, np.uint64)
    words[:] = 0
    at = cu.register(words.ctypes.data, words.nbytes)
    found = {}
    for name, call in (("write_then_wait_us", lambda: lib.kit_pairs(ctypes.c_void_p(stream), ctypes.c_uint64(at + 512), len(out), kit.p(out))),
                       ("cpu_stream_cpu_us", lambda: lib.kit_round_trips(ctypes.c_void_p(stream), ctypes.c_uint64(at), kit.p(words), len(out), kit.p(out)))):
        error = call()
        us = np.sort(out[20:]) / 1e3
        found[name] = {"error": error} if error else {"median": round(float(us[len(us) // 2]), 2), "p99": round(float(us[len(us) * 99 // 100]), 2)}
    return found


def nvrtc(source):
    """PTX by the compiler in a library, where there is no nvcc."""
    for name in ("libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"):
        try:
            c = ctypes.CDLL(name)
            break
        except OSError:
            continue
    else:
        raise RuntimeError("neither nvcc nor libnvrtc")
    program, size = ctypes.c_void_p(), ctypes.c_size_t()
    c.nvrtcCreateProgram(ctypes.byref(program), source, b"kernel.cu", 0, None, None)
    options = (ctypes.c_char_p * 1)(b"--gpu-architecture=compute_80")
    if c.nvrtcCompileProgram(program, 1, options):
        raise RuntimeError("libnvrtc refuses kernel.cu")
    c.nvrtcGetPTXSize(program, ctypes.byref(size))
    text = ctypes.create_string_buffer(size.value)
    c.nvrtcGetPTX(program, text)
    return text.value


def kernel():
    source = kit.HERE / "kernel.cu"
    if kit.FAKE:
        text = b".entry issue"
    elif shutil.which("nvcc"):
        out = kit.WORK / "kernel.ptx"
        subprocess.run(["nvcc", "-ptx", "-arch=compute_80", str(source), "-o", str(out)], check=True, timeout=60, capture_output=True)
        text = out.read_bytes()
    else:
        text = nvrtc(source.read_bytes())
    return cu.kernel(text, b"issue")


def cpu_seconds():
    u = resource.getrusage(resource.RUSAGE_SELF)
    return np.array([u.ru_utime, u.ru_stime])


class Mode:
    """One way to read N blocks into pinned memory and from there to the device. Rings stay open between rounds."""

    def __init__(self, name, mapped=0, depth=256):
        self.name, self.depth, self.data = name, depth, pages(N * BLOCK)
        cu.register(self.data.ctypes.data, self.data.nbytes)
        self.gb_s, self.figures, self.cpu, self.prepare = [], {"failed_reads": 0, "wrong_blocks": 0, "reads": 0}, np.zeros(2), 0.0
        self.ring = None
        if name.startswith("pread"):
            return
        self.ring = Ring()
        error = lib.kit_ring_open(ctypes.byref(self.ring), path, kit.p(self.data), ctypes.c_uint64(self.data.nbytes), N, mapped)
        if error:
            raise OSError(-error, os.strerror(-error))
        if name != "cpu":
            self.words = cu.register(self.ring.memory, self.ring.memory_bytes)
            self.entries = cu.register(self.ring.sqes, self.ring.sqes_bytes)
        if name.startswith("ptx"):
            self.control = pages(4096 + 8 * N)
            self.at = cu.register(self.control.ctypes.data, self.control.nbytes)
            self.job = Job.from_buffer(self.control)
            self.function = kernel()

    def round(self, offsets, device, back):
        """Reads, checks what lies on the device after the stream's own copy to it, and counts."""
        n, size = len(offsets), len(offsets) * BLOCK
        cu.cuMemsetD8Async(device, ctypes.c_ubyte(255), size, stream)
        cu.cuStreamSynchronize(stream)
        released = threading.Timer(PATIENCE, self.release)
        time.sleep(0.25)  # until the kernel threads of the other rings sleep: their time would be counted here
        if self.ring is not None and lib.kit_ring_wake(ctypes.byref(self.ring)):
            raise TimeoutError("the kernel thread of the ring does not wake")
        before = cpu_seconds()
        if self.name.startswith("pread"):
            t = time.monotonic()
            failed = lib.kit_pread(path, kit.p(offsets), n, BLOCK, int(self.name[6:]), kit.p(self.data))
        else:
            if not self.name.startswith("ptx"):
                self.sq = lib.kit_ring_prepare(ctypes.byref(self.ring), kit.p(offsets), n, BLOCK)
            self.cq = lib.kit_ring_word(ctypes.byref(self.ring), self.ring.cq_tail) + n & 0xFFFFFFFF
            middle = cpu_seconds()
            self.prepare += (middle - before)[0]
            before, failed = middle, 0
            released.start()
            t = time.monotonic()
            self.trigger(offsets, n)
        if self.name not in ("cpu",) and self.ring is not None:
            cu.cuEventRecord(done, stream)
            cu.cuEventSynchronize(done)
        s = time.monotonic() - t
        released.cancel()
        self.cpu += cpu_seconds() - before
        if self.ring is not None:
            failed = self.job.errors if self.name.startswith("ptx") else lib.kit_ring_reap(ctypes.byref(self.ring), n, BLOCK)
            if self.name.startswith("ptx") and self.job.status != 1:
                raise RuntimeError("the kernel gave up")
        cu.cuMemcpyHtoDAsync_v2(device, self.data.ctypes.data, size, stream)
        cu.cuMemcpyDtoHAsync_v2(back.ctypes.data, device, size, stream)
        cu.cuStreamSynchronize(stream)
        self.figures["wrong_blocks"] += lib.kit_wrong(kit.p(back), kit.p(offsets), n, BLOCK)
        self.figures["failed_reads"] += failed
        self.figures["reads"] += n
        self.gb_s.append(size / s / 1e9)

    def trigger(self, offsets, n):
        if self.name == "cpu":
            if lib.kit_ring_drive(ctypes.byref(self.ring), self.sq, self.cq):
                raise TimeoutError("the ring does not answer")
        elif self.name.startswith("memop"):
            cu.cuStreamWriteValue32_v2(stream, self.words + self.ring.sq_tail, ctypes.c_uint32(self.sq), ctypes.c_uint(0))
            cu.cuStreamWaitValue32_v2(stream, self.words + self.ring.cq_tail, ctypes.c_uint32(self.cq), ctypes.c_uint(0))
        else:
            r, j = self.ring, self.job
            for name in ("sq_head", "sq_tail", "cq_head", "cq_tail", "cqes"):
                setattr(j, name, self.words + getattr(r, name))
            j.sqes, j.offsets, j.addr, j.patience = self.entries, self.at + 4096, r.data, 2_000_000
            j.sq_mask, j.cq_mask, j.n, j.bytes, j.depth, j.abort, j.status, j.errors = r.sq_mask, r.cq_mask, n, BLOCK, self.depth, 0, 0, 0
            self.control[4096:4096 + 8 * n] = offsets.view(np.uint8)
            cu.launch(self.function, 32, stream, self.at)

    def release(self):
        kit.say(f"{self.name}: no answer for {PATIENCE} s, the wait is released")
        if self.name.startswith("ptx"):
            self.job.abort = 1
        else:
            lib.kit_ring_release(ctypes.byref(self.ring), self.cq)
        self.released = True

    def result(self):
        gb = self.figures["reads"] * BLOCK / 1e9
        return {**self.figures, "gb_s": kit.median(self.gb_s), "rounds_gb_s": [round(g, 2) for g in self.gb_s],
                "user_s_per_gb": round(float(self.cpu[0]) / gb, 5), "system_s_per_gb": round(float(self.cpu[1]) / gb, 5),
                "prepare_user_s_per_gb": round(self.prepare / gb, 5)}


def modes():
    device, back = cu.alloc(N * BLOCK), pages(N * BLOCK)
    cu.register(back.ctypes.data, back.nbytes)
    draw = random.Random(1)
    opened, found = [], {}
    for name, options in (("pread_8", {}), ("pread_32", {}), ("cpu", {}), ("memop", {}), ("memop_mapped", {"mapped": 1}), ("ptx_depth_64", {"depth": 64}),
                          ("ptx_depth_256", {"depth": 256})):
        try:
            opened.append(Mode(name, **options))
        except Exception as e:
            found[name] = {"error": f"{type(e).__name__}: {e}"}
    for turn in range(ROUNDS):
        for mode in list(opened):
            offsets = np.array([draw.randrange(FILE // BLOCK) * BLOCK for _ in range(N)], np.uint64)
            try:
                mode.round(offsets, device, back)
                found[mode.name] = mode.result()
                if getattr(mode, "released", False):
                    raise TimeoutError("a wait had to be released")
            except Exception as e:
                opened.remove(mode)
                found[mode.name] = {**found.get(mode.name, {}), "error": f"{type(e).__name__}: {e}"}
        report.put(modes=found)
    pool = max((found[m].get("gb_s", 0) for m in ("pread_8", "pread_32")), default=0)
    return {m: round(f["gb_s"] / pool, 2) for m, f in found.items() if "gb_s" in f and pool}


report.attempt("latency", latencies)
report.attempt("file", make_file)
report.attempt("over_best_pread", modes)
