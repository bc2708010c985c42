"""What the machine is and allows."""

import ctypes
import ctypes.util
import mmap
import os
import pathlib
import platform
import subprocess
import time

import numpy as np

import kit

ATTRIBUTES = {"sm_major": 75, "sm_minor": 76, "multiprocessors": 16, "async_engines": 40, "host_native_atomic_supported": 86,
              "can_use_host_pointer_for_registered_mem": 91, "can_flush_remote_writes": 98, "vmm_supported": 102, "posix_fd_handles": 103,
              "gpu_direct_rdma_with_vmm": 110, "read_only_host_register": 113, "gpu_direct_rdma": 116, "gpu_direct_rdma_flush_options": 117,
              "gpu_direct_rdma_writes_ordering": 118, "can_use_64_bit_stream_mem_ops": 122, "can_use_stream_wait_value_nor": 123,
              "dma_buf_supported": 124, "fabric_handles": 128, "mps_enabled": 133}
SYMBOLS = ["cuStreamWriteValue32_v2", "cuStreamWaitValue32_v2", "cuStreamBatchMemOp_v2", "cuMemcpyBatchAsync", "cuMemcpyBatchAsync_v2",
           "cuDeviceGetDevResource", "cuDevSmResourceSplitByCount", "cuDevSmResourceSplit", "cuDevResourceGenerateDesc", "cuGreenCtxCreate",
           "cuGreenCtxStreamCreate", "cuMemGetHandleForAddressRange", "cuFlushGPUDirectRDMAWrites"]


def output(*command):
    return subprocess.run(command, capture_output=True, text=True, timeout=15, check=True).stdout.strip()


def host():
    meminfo = dict(line.split(":", 1) for line in pathlib.Path("/proc/meminfo").read_text().splitlines())
    cpu = [line.split(":", 1)[1].strip() for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    return {"kernel": platform.release(), "cpus": os.cpu_count(), "cpu": cpu[:1], "mem_total": meminfo["MemTotal"].strip(), "libc": platform.libc_ver(),
            "io_uring_disabled": _read("/proc/sys/kernel/io_uring_disabled"), "shm_bytes": os.statvfs("/dev/shm").f_blocks * os.statvfs("/dev/shm").f_frsize,
            "work": str(kit.WORK), "work_filesystem": output("stat", "-f", "-c", "%T", str(kit.WORK)), "block_devices": os.listdir("/sys/block"),
            "python": platform.python_version(), "cufile": ctypes.util.find_library("cufile"), "driver_module": _read("/proc/driver/nvidia/version")}


def _read(path):
    try:
        return pathlib.Path(path).read_text().strip()
    except OSError as e:
        return f"{e.strerror}"


def smi():
    names = ["name", "driver_version", "memory.total", "memory.used", "pcie.link.gen.current", "pcie.link.gen.max", "pcie.link.width.current", "clocks.sm",
             "power.limit", "mig.mode.current", "ecc.mode.current"]
    return dict(zip(names, output("nvidia-smi", "--query-gpu=" + ",".join(names), "--format=csv,noheader").split(", ")))


def gpu():
    cu = kit.Driver()
    name = ctypes.create_string_buffer(128)
    cu.cuDeviceGetName(name, ctypes.c_int(128), cu.device)
    return {"name": name.value.decode(), "api": cu.out(ctypes.c_int, "cuDriverGetVersion"), "bytes": cu.out(ctypes.c_size_t, "cuDeviceTotalMem_v2", cu.device),
            "attributes": {k: cu.attribute(v) for k, v in ATTRIBUTES.items()}, "symbols_missing": [s for s in SYMBOLS if not cu.has(s)]}


def dma_buf():
    """A descriptor of device memory that other drivers could read."""
    cu = kit.Driver()
    fd = ctypes.c_int(-1)
    cu.cuMemGetHandleForAddressRange(ctypes.byref(fd), cu.alloc(2 * kit.MIB), 2 * kit.MIB, ctypes.c_int(1), 0)
    link = os.readlink(f"/proc/self/fd/{fd.value}")
    os.close(fd.value)
    return {"descriptor": link}


def rings():
    lib = kit.helper()
    path = kit.WORK / "facts.bin"
    path.write_bytes(bytes(kit.MIB))
    found = {}
    for name, mapped in (("sqpoll_no_mmap", 0), ("sqpoll_mapped", 1)):
        ring, data = ctypes.create_string_buffer(256), mmap.mmap(-1, kit.MIB)
        error = lib.kit_ring_open(ring, str(path).encode(), ctypes.c_void_p(np.frombuffer(data, np.uint8).ctypes.data), ctypes.c_uint64(kit.MIB), 64, mapped)
        found[name] = "works" if error == 0 else os.strerror(-error)
        if error == 0:
            lib.kit_ring_close(ring)
    return found


def compilers():
    found = {}
    for name, command in (("nvcc", ("nvcc", "--version")), ("cc", ("cc", "--version"))):
        try:
            found[name] = output(*command).splitlines()[-1 if name == "nvcc" else 0]
        except (OSError, subprocess.SubprocessError) as e:
            found[name] = str(e)
    return found


def torch():
    t = time.monotonic()
    torch, on = kit.torch_device()
    return {"version": torch.__version__, "device": on, "seconds_to_import_and_start": round(time.monotonic() - t, 1)}


report = kit.Report()
for part in (host, smi, gpu, dma_buf, rings, compilers, torch):
    report.attempt(part.__name__, part)
