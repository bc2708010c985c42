"""What the checks share: the driver by ctypes, the C helper, and the report, which is written as it grows."""

import ctypes
import json
import os
import pathlib
import statistics
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
LIBRARY = os.environ.get("LIBCUDA", "libcuda.so.1")
FAKE = "LIBCUDA" in os.environ
WORK = pathlib.Path(os.environ.get("KIT_WORK", "."))
KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
PORTABLE, DEVICEMAP, READ_ONLY = 1, 2, 8
HOST_SIDE = PORTABLE | DEVICEMAP
CHECK = os.environ.get("KIT_CHECK", pathlib.Path(sys.argv[0]).stem)
started = time.monotonic()


def say(text):
    print(f"{time.strftime('%H:%M:%S')} +{time.monotonic() - started:6.1f} {CHECK}: {text}", file=sys.stderr, flush=True)


class Report(dict):
    """Figures of one check, in a file from the first on: what was found before a check dies or is ended counts."""

    def __init__(self):
        self.path = WORK / (CHECK + ".json")

    def put(self, **figures):
        self.update(figures)
        part = self.path.with_suffix(".part")
        part.write_text(json.dumps(self))
        part.rename(self.path)
        say(json.dumps(figures)[:600])

    def attempt(self, name, function, *args):
        """Puts what the function returns, or what it raised: one part's failure leaves the others."""
        try:
            self.put(**{name: function(*args)})
        except Exception as e:
            self.put(**{name: {"error": f"{type(e).__name__}: {e}"}})


def median(values, digits=2):
    return round(statistics.median(values), digits)


class CudaError(Exception):
    def __init__(self, name, code, text):
        super().__init__(f"{name}: {code} {text}")
        self.code = code


class Copier(ctypes.Structure):
    _fields_ = [("context", ctypes.c_void_p), ("up", ctypes.c_void_p), ("down", ctypes.c_void_p)] + [
        (n, ctypes.c_uint64) for n in ("device", "host", "blocks", "bytes", "rate", "moved")] + [("stop", ctypes.c_int32), ("error", ctypes.c_int32)]


class Attributes(ctypes.Structure):  # of a batch of copies: in the stream's order, beside computation
    _fields_ = [("order", ctypes.c_int), ("hints", ctypes.c_int * 4), ("flags", ctypes.c_uint)]


class Driver:
    """The CUDA driver, with the primary context current, which is torch's too. Arguments are integers (64 bit), ctypes objects or arrays."""

    def __init__(self):
        self.lib = ctypes.CDLL(LIBRARY)
        self.cuInit(ctypes.c_uint(0))
        device = ctypes.c_int()
        self.cuDeviceGet(ctypes.byref(device), ctypes.c_int(0))
        self.device = device
        self.context = self.out(ctypes.c_void_p, "cuDevicePrimaryCtxRetain", device)
        self.cuCtxSetCurrent(ctypes.c_void_p(self.context))

    def has(self, name):
        return hasattr(self.lib, name)

    def __getattr__(self, name):
        function = getattr(self.lib, name)

        def call(*args):
            code = function(*(ctypes.c_uint64(a) if isinstance(a, int) else a for a in args))
            if code:
                text = ctypes.c_char_p()
                self.lib.cuGetErrorName(code, ctypes.byref(text))
                raise CudaError(name, code, (text.value or b"?").decode())

        setattr(self, name, call)
        return call

    def out(self, kind, name, *args):
        value = kind()
        getattr(self, name)(ctypes.byref(value), *args)
        return value.value

    def attribute(self, number):
        return self.out(ctypes.c_int, "cuDeviceGetAttribute", ctypes.c_int(number), self.device)

    def stream(self):
        return self.out(ctypes.c_void_p, "cuStreamCreateWithPriority", ctypes.c_uint(1), ctypes.c_int(0))

    def event(self, flags=0):
        """flags 1: a thread that waits for it sleeps."""
        return self.out(ctypes.c_void_p, "cuEventCreate", ctypes.c_uint(flags))

    def alloc(self, size):
        return self.out(ctypes.c_uint64, "cuMemAlloc_v2", size)

    def host_alloc(self, size):
        return self.out(ctypes.c_void_p, "cuMemHostAlloc", size, ctypes.c_uint(HOST_SIDE))

    def register(self, address, size, flags=HOST_SIDE):
        """The device's address of the memory."""
        self.cuMemHostRegister_v2(address, size, ctypes.c_uint(flags))
        return self.out(ctypes.c_uint64, "cuMemHostGetDevicePointer_v2", address, ctypes.c_uint(0))

    def kernel(self, ptx, name):
        return self.out(ctypes.c_void_p, "cuModuleGetFunction", ctypes.c_void_p(self.out(ctypes.c_void_p, "cuModuleLoadData", ptx)), name)

    def launch(self, function, threads, stream, *args):
        """One block; the arguments are of 64 bits."""
        values = [ctypes.c_uint64(a) for a in args]
        at = (ctypes.c_void_p * len(args))(*map(ctypes.addressof, values))
        one = ctypes.c_uint(1)
        self.cuLaunchKernel(ctypes.c_void_p(function), one, one, one, ctypes.c_uint(threads), one, one, ctypes.c_uint(0), ctypes.c_void_p(stream), at, None)

    def batch(self, to, source, sizes, stream):
        """Many copies in one call. The arrays are of uint64."""
        v2 = self.has("cuMemcpyBatchAsync_v2")
        at = Attributes(1, (ctypes.c_int * 4)(), 1)
        first = ctypes.c_size_t(0)
        args = [p(to), p(source), p(sizes), len(to), ctypes.byref(at), ctypes.byref(first), 1]
        if not v2:
            args.append(ctypes.byref(ctypes.c_size_t()))
        getattr(self, "cuMemcpyBatchAsync_v2" if v2 else "cuMemcpyBatchAsync")(*args, stream)


def p(array):
    """The address of a numpy array."""
    return ctypes.c_uint64(array.ctypes.data)


def helper():
    """The C helper: that of the folder, or built here."""
    path = HERE / "libkit.so"
    try:
        lib = ctypes.CDLL(str(path))
    except OSError:
        path = WORK / "libkit.so"
        if os.system(f"cc -O2 -shared -fPIC '{HERE}/kit.c' -o '{path}' -ldl -lpthread"):
            raise
        lib = ctypes.CDLL(str(path))
    for name in ("kit_ring_prepare", "kit_ring_word", "kit_ring_reap", "kit_wrong"):
        getattr(lib, name).restype = ctypes.c_uint32
    return lib


def torch_device():
    """torch, and where the checks compute."""
    import torch
    on = "cuda" if torch.cuda.is_available() else "cpu"
    if on == "cpu" and not FAKE:
        raise RuntimeError("torch sees no GPU")
    if on == "cuda":
        torch.cuda.init()
        torch.zeros(1, device=on)
    return torch, on
