"""Who may copy beside an engine: its own process, or another that opened its memory. Steps of the engine beside each, at the same rate."""

import ctypes
import os
import socket
import subprocess
import sys
import threading
import time

import kit
from kit import MIB

from cascade_kv import memory

BLOCK = 2 * MIB
POOL = (32 if kit.FAKE else 2048) * MIB
SECONDS = 0.2 if kit.FAKE else 1.0
RATES = (0, 8_000_000_000)  # bytes a second, 0: as fast as it goes
ROUNDS = 2
RDWR, DEVICE, POSIX_FD = 3, 1, 1


class Location(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int), ("id", ctypes.c_int)]


class Access(ctypes.Structure):
    _fields_ = [("location", Location), ("flags", ctypes.c_int)]


class Properties(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int), ("handles", ctypes.c_int), ("location", Location), ("windows", ctypes.c_void_p), ("flags", ctypes.c_ubyte * 8)]


class IpcHandle(ctypes.Structure):
    _fields_ = [("reserved", ctypes.c_char * 64)]


def map_handle(cu, handle):
    at = cu.out(ctypes.c_uint64, "cuMemAddressReserve", POOL, 0, 0, 0)
    cu.cuMemMap(at, POOL, 0, handle, 0)
    cu.cuMemSetAccess(at, POOL, ctypes.byref(Access(Location(DEVICE, 0), RDWR)), 1)
    return at


class Copies:
    """Copies between a pool on the device and host memory, by a thread that Python does not hold up."""

    def __init__(self, cu, host, device):
        self.cu, self.lib, self.device = cu, kit.helper(), device
        self.lib.kit_load(kit.LIBRARY.encode())
        self.array = memory.map_file(host, POOL, write=True)
        self.host = cu.register(self.array.ctypes.data, POOL)
        self.streams = cu.stream(), cu.stream()

    def start(self, rate):
        self.run = kit.Copier(self.cu.context, *self.streams, self.device, self.host, POOL // BLOCK, BLOCK, rate)
        self.thread = threading.Thread(target=self.lib.kit_copier, args=(ctypes.byref(self.run),))
        self.began = time.monotonic()
        self.thread.start()

    def stop(self):
        """GB/s, both directions together."""
        self.run.stop = 1
        self.thread.join(10)
        if self.run.error:
            raise RuntimeError(f"the copies failed: {self.run.error}")
        return self.run.moved / (time.monotonic() - self.began) / 1e9


def child():
    """The other process: it is sent the host memory and the pool, then rates and stops."""
    link = socket.socket(fileno=os.dup(0))
    cu = kit.Driver()
    message, fds, _, _ = socket.recv_fds(link, 256, 2)
    t = time.monotonic()
    if message[:1] == b"i":
        device = cu.out(ctypes.c_uint64, "cuIpcOpenMemHandle_v2", IpcHandle.from_buffer_copy(message[1:65]), ctypes.c_uint(1))
    else:
        device = map_handle(cu, cu.out(ctypes.c_uint64, "cuMemImportFromShareableHandle", ctypes.c_void_p(fds[1]), ctypes.c_int(POSIX_FD)))
    copies = Copies(cu, fds[0], device)
    link.sendall(f"{time.monotonic() - t}\n".encode())
    for line in link.makefile():
        if line.startswith("stop"):
            link.sendall(f"{copies.stop()}\n".encode())
        else:
            copies.start(int(line))


class Other:
    def __init__(self, message, fds):
        here, there = socket.socketpair()
        self.child = subprocess.Popen([sys.executable, __file__, "child"], stdin=there, env=os.environ)
        there.close()
        here.settimeout(40)
        socket.send_fds(here, [message], fds)
        self.link, self.answers = here, here.makefile()
        self.open_seconds = self.answer()

    def answer(self):
        line = self.answers.readline()
        if not line:
            raise RuntimeError("the other process ended")
        return float(line)

    def start(self, rate):
        self.link.sendall(f"{rate}\n".encode())

    def stop(self):
        self.link.sendall(b"stop\n")
        return self.answer()


def steps(torch, on):
    """Two kinds of a step: one reads weights, as decoding does, the other computes, as prefilling does."""
    size, layers = (256, 4) if on == "cpu" else (8192, 20)
    weights = [torch.randn(size, size, device=on, dtype=torch.bfloat16) for _ in range(layers)]
    few, many = (torch.randn(n, size, device=on, dtype=torch.bfloat16) for n in (16, size // 4))

    def step(x):
        for w in weights:
            x = x @ w * 0.01
        return x

    return {"decode": lambda: step(few), "prefill": lambda: step(many)}


def timed(torch, on, step):
    """Milliseconds of each step of a phase."""
    out, end = [], time.monotonic() + SECONDS
    while time.monotonic() < end:
        if on == "cpu":
            t = time.monotonic()
            step()
            out.append((time.monotonic() - t) * 1e3)
            continue
        events = [torch.cuda.Event(enable_timing=True) for _ in range(11)]
        for e in events:
            e.record()
            step()
        torch.cuda.synchronize()
        out += [a.elapsed_time(b) for a, b in zip(events, events[1:])]
    return out


def main():
    report = kit.Report()
    torch, on = kit.torch_device()
    cu = kit.Driver()
    host = os.memfd_create("kit")
    os.ftruncate(host, POOL)
    pool = cu.alloc(POOL)
    copiers = {"same": Copies(cu, host, pool)}
    handle = IpcHandle()

    def by_ipc():
        cu.cuIpcGetMemHandle(ctypes.byref(handle), pool)
        return Other(b"i" + bytes(handle), [host])

    def by_vmm():
        wanted = Properties(1, POSIX_FD, Location(DEVICE, 0))
        memory_handle = cu.out(ctypes.c_uint64, "cuMemCreate", POOL, ctypes.byref(wanted), 0)
        map_handle(cu, memory_handle)
        fd = ctypes.c_int()
        cu.cuMemExportToShareableHandle(ctypes.byref(fd), memory_handle, ctypes.c_int(POSIX_FD), 0)
        return Other(b"v", [host, fd.value])

    for name, make in (("ipc", by_ipc), ("vmm", by_vmm)):
        try:
            copiers[name] = make()
            report.put(**{f"{name}_open_s": round(copiers[name].open_seconds, 3)})
        except Exception as e:
            report.put(**{f"{name}_error": f"{type(e).__name__}: {e}"})
    for kind, step in steps(torch, on).items():
        for _ in range(3):
            step()
        seen, moved = {}, {}
        for _ in range(ROUNDS):
            for rate in RATES:
                for name, copier in [("alone", None), *copiers.items()]:
                    if copier is not None:
                        copier.start(rate)
                    found = timed(torch, on, step)
                    key = name if copier is None else f"{name}_{'free' if rate == 0 else f'{rate // 10**9}_gb_s'}"
                    seen.setdefault(key, []).extend(found)
                    if copier is not None:
                        moved.setdefault(key, []).append(copier.stop())
        alone = kit.median(seen["alone"], 4)
        report.put(**{kind: {k: {"step_ms": kit.median(v, 4), "p99_ms": round(sorted(v)[len(v) * 99 // 100], 4), "over_alone": round(kit.median(v, 4) / alone, 3),
                                 **({"gb_s": kit.median(moved[k])} if k in moved else {})} for k, v in seen.items()}})
    for name in ("ipc", "vmm"):
        if name in copiers:
            copiers[name].child.kill()


if __name__ == "__main__":
    child() if sys.argv[1:] == ["child"] else main()
