"""The kernel of the daemon's own ring: a process serves a file, issues reads and compares all bytes; the GPU is the ring's device."""

import array
import ctypes
import json
import mmap
import os
import socket
import subprocess

import numpy as np

import kit

PATIENCE = 5_000_000_000  # nanoseconds without an IOCB after which the kernel ends by itself
SLOT, SHARED, DEPTH, DEVICE_ENDED = 256, 64, 12, 2  # bytes of the kernel's memory; where the header has the depth; the device's word
DEVICE_WORD = 320

cu, report = kit.Driver(), kit.Report()


def drive(engine):
    ours, theirs = socket.socketpair()
    name = kit.WORK / f"gio-{engine}.bin"
    host = subprocess.Popen([str(kit.HERE / "gio.test"), str(name), engine, "4" if kit.FAKE else "64"], env=dict(os.environ, CASCADE_GIO_TEST_ROLE="gpu"),
                            preexec_fn=lambda: os.dup2(theirs.fileno(), 3), close_fds=False, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    theirs.close()
    ours.settimeout(10)
    fds = array.array("i")
    _, ancillary, _, _ = ours.recvmsg(1, socket.CMSG_SPACE(2 * fds.itemsize))
    if not ancillary:
        return {"error": host.communicate(timeout=5)[1][-500:]}
    fds.frombytes(ancillary[0][2])
    region = np.frombuffer(mmap.mmap(fds[0], os.fstat(fds[0]).st_size), np.uint8)
    depth = int(region[DEPTH:DEPTH + 4].view(np.uint32)[0])
    size = SHARED + SLOT * depth
    state, stream = cu.alloc(size), cu.stream()
    cu.cuMemsetD8Async(state, ctypes.c_ubyte(0), size, stream)
    header = cu.register(region.ctypes.data, region.nbytes)
    function = cu.kernel((kit.HERE / "gio.ptx").read_bytes() + b"\0", b"gio_device")
    cu.launch(function, 32 * (1 + depth), stream, header, state, PATIENCE)
    out, said = host.communicate(timeout=20)
    cu.cuStreamSynchronize(stream)
    cu.cuMemHostUnregister(region.ctypes.data)
    figures = json.loads(out) if out else {"error": said[-500:]}
    figures["gb_s"] = round(figures.get("gb_s", 0), 3)
    return {**figures, "kernel_ended": int(region[DEVICE_WORD:DEVICE_WORD + 4].view(np.uint32)[0]) == DEVICE_ENDED}


for engine in ("io_uring", "user"):
    report.attempt(engine, drive, engine)
