"""The real store: blocks of a small transformer's KV in a rank, and the time to the first token with a restored prefix against none.

KIT_CHECK=large: the same with the dimensions of an 8B model.
"""

import contextlib
import ctypes
import os
import pathlib
import time

import numpy as np

import kit
from kit import GIB, MIB

from cascade_kv import Client, namespace
from engines.rank import Rank

BLOCK, TAIL, STEPS, GROUP = 256, 64, 16, 8  # tokens of a block, tokens computed after a restored prefix, greedy steps, blocks of a job
LARGE = kit.CHECK == "large"
if kit.FAKE:
    LAYERS, WIDTH, HEADS, KV_HEADS, HEAD, INNER, LENGTHS, ARENA, REPEATS = 2, 128, 4, 2, 32, 256, (512, 1024), 256 * MIB, 2
elif LARGE:
    LAYERS, WIDTH, HEADS, KV_HEADS, HEAD, INNER, LENGTHS, ARENA, REPEATS = 32, 4096, 32, 8, 128, 14336, (16384, 32768), 20 * GIB, 2
else:
    LAYERS, WIDTH, HEADS, KV_HEADS, HEAD, INNER, LENGTHS, ARENA, REPEATS = 16, 2048, 32, 8, 64, 8192, (4096, 16384, 32768), 8 * GIB, 3
VOCABULARY = 32000
PIECE = BLOCK * KV_HEADS * HEAD * 2  # bytes of one layer's keys, or values, of a block
PIECES = 2 * LAYERS
BYTES = PIECE * PIECES
ROOM = os.statvfs("/dev/shm").f_bavail * os.statvfs("/dev/shm").f_frsize // 10 * 9
ARENA = min(ARENA, ROOM // MIB * MIB)
LENGTHS = tuple(n for i, n in enumerate(LENGTHS) if sum(LENGTHS[:i + 1]) // BLOCK * BYTES * 1.2 < ARENA and n // BLOCK * BYTES <= ARENA // 4)  # what all views may hold
CAPACITY = (max(LENGTHS) + TAIL + STEPS + BLOCK - 1) // BLOCK * BLOCK


class Model:
    """A decoder as Llama's, its weights drawn: RMS norm, rotary positions, grouped keys and values, gated MLP."""

    def __init__(self, torch, on):
        self.torch, self.on, self.f = torch, on, torch.nn.functional
        torch.manual_seed(1)

        def weight(*shape):
            return torch.randn(*shape, device=on, dtype=torch.bfloat16) * 0.02

        self.embed, self.head = weight(VOCABULARY, WIDTH) * 50, weight(VOCABULARY, WIDTH)
        self.layers = [(weight((HEADS + 2 * KV_HEADS) * HEAD, WIDTH), weight(WIDTH, HEADS * HEAD), weight(2 * INNER, WIDTH), weight(WIDTH, INNER))
                       for _ in range(LAYERS)]
        angle = torch.arange(CAPACITY, device=on)[:, None] / 500000 ** (torch.arange(0, HEAD, 2, device=on) / HEAD)
        self.cos, self.sin = angle.cos()[:, None], angle.sin()[:, None]

    def rotate(self, x, start):
        c, s = self.cos[start:start + len(x)], self.sin[start:start + len(x)]
        a, b = x.float().chunk(2, -1)
        return self.torch.cat((a * c - b * s, b * c + a * s), -1).bfloat16()

    def forward(self, tokens, cache, start):
        """The next token. cache: [keys and values, layers, tokens, heads, head]; the tokens from start on are computed into it."""
        torch, f, n = self.torch, self.f, len(tokens)
        x, mask = self.embed[tokens], None
        if start and n > 1:
            mask = torch.arange(start + n, device=self.on)[None] <= torch.arange(start, start + n, device=self.on)[:, None]
        for i, (qkv, out, gate, down) in enumerate(self.layers):
            h = f.rms_norm(x, (WIDTH,))
            q, k, v = (h @ qkv.T).view(n, -1, HEAD).split((HEADS, KV_HEADS, KV_HEADS), 1)
            cache[0, i, start:start + n] = self.rotate(k, start)
            cache[1, i, start:start + n] = v
            keys, values = (cache[j, i, :start + n].transpose(0, 1).repeat_interleave(HEADS // KV_HEADS, 0)[None] for j in (0, 1))
            q = self.rotate(q, start).transpose(0, 1)[None]
            a = f.scaled_dot_product_attention(q, keys, values, attn_mask=mask, is_causal=not start and n > 1)
            x = x + a[0].transpose(0, 1).reshape(n, -1) @ out.T
            g, u = (f.rms_norm(x, (WIDTH,)) @ gate.T).chunk(2, -1)
            x = x + (f.silu(g) * u) @ down.T
        return int((f.rms_norm(x[-1], (WIDTH,)) @ self.head.T).argmax())

    def greedy(self, first, cache, length):
        tokens = [first]
        for i in range(STEPS - 1):
            tokens.append(self.forward(self.torch.tensor(tokens[-1:], device=self.on), cache, length + i))
        return tokens


class Bench:
    """The engine's side: a cache on the device, a region on the host, a client."""

    def __init__(self, rank):
        self.torch, self.on = kit.torch_device()
        self.cu = kit.Driver()
        self.model = Model(self.torch, self.on)
        self.cache = self.torch.zeros(2, LAYERS, CAPACITY, KV_HEADS, HEAD, device=self.on, dtype=self.torch.bfloat16)
        self.streams = [self.cu.stream() for _ in range(4)]
        size = max(LENGTHS) // BLOCK * BYTES
        fd = os.memfd_create("region")
        os.ftruncate(fd, size)
        from cascade_kv import memory
        self.region_array = memory.map_file(fd, size, write=True)
        self.region_array[::4096] = 1
        self.cu.register(self.region_array.ctypes.data, size)
        self.client = Client(str(rank.path), timeout=60)
        self.region = self.client.region(fd=fd)
        self.ns = namespace(model="kit", dtype="bfloat16", tp=1, rank=0, page=BLOCK)
        draw = np.random.default_rng(7)
        self.prompts = {n: self.torch.from_numpy(draw.integers(0, VOCABULARY, n + TAIL)).to(self.on) for n in LENGTHS}
        row = CAPACITY * KV_HEADS * HEAD * 2  # bytes of a layer's keys in the cache
        self.rows = np.uint64(self.cache.data_ptr()) + np.arange(PIECES, dtype=np.uint64) * np.uint64(row)
        self.pieces = np.arange(PIECES, dtype=np.uint64) * np.uint64(PIECE)

    def keys(self, n):
        return [f"{n}-{i}" for i in range(n // BLOCK)]

    def extents(self, n):
        return np.array([[[i * BYTES, BYTES]] for i in range(n // BLOCK)], np.uint64)

    def sync(self):
        if self.on == "cuda":
            self.torch.cuda.synchronize()
        for s in self.streams:
            self.cu.cuStreamSynchronize(s)

    def copy(self, blocks, hosts, up=True):
        """Blocks between the cache and addresses on the host, dealt to the streams; it returns before they are there."""
        for i, s in enumerate(self.streams):
            some = list(zip(blocks, hosts))[i::len(self.streams)]
            if some:
                device = np.concatenate([self.rows + np.uint64(b * PIECE) for b, _ in some])
                host = np.concatenate([np.uint64(h) + self.pieces for _, h in some])
                to, source = (device, host) if up else (host, device)
                self.cu.batch(to, source, np.full(len(to), PIECE, np.uint64), s)

    def host(self, n):
        return [self.region_array.ctypes.data + i * BYTES for i in range(n // BLOCK)]

    def recompute(self, n):
        t = time.monotonic()
        first = self.model.forward(self.prompts[n], self.cache, 0)
        return time.monotonic() - t, first

    def tail(self, n):
        return self.model.forward(self.prompts[n][n:], self.cache, n)

    def fill(self, n):
        """Computes a prefix, stores its blocks, and keeps what a restored one is compared with."""
        self.model.forward(self.prompts[n][:n], self.cache, 0)
        self.sync()
        want = self.cache[:, :, :n].clone()
        times = {}
        t = time.monotonic()
        self.copy(range(n // BLOCK), self.host(n), up=False)
        self.sync()
        times["d2h_gb_s"] = round(n // BLOCK * BYTES / (time.monotonic() - t) / 1e9, 2)
        t = time.monotonic()
        status = self.client.store(self.ns, self.region, self.keys(n), self.extents(n), chain=True)
        times["store_gb_s"] = round(n // BLOCK * BYTES / (time.monotonic() - t) / 1e9, 2)
        if not (status == 1).all():
            raise RuntimeError(f"{int((status != 1).sum())} of {len(status)} blocks were not stored")
        tokens, again = (self.model.greedy(self.tail(n), self.cache, n + TAIL) for _ in range(2))
        times["repeat_tokens_equal"] = sum(a == b for a, b in zip(tokens, again))  # less than STEPS: the computation itself does not repeat
        return want, tokens, times

    def by_region(self, n):
        """The rank copies groups of blocks into the region; each goes up as it is there."""
        keys, extents, hosts = self.keys(n), self.extents(n), self.host(n)
        if self.client.probe(self.ns, keys).hits != len(keys):
            raise RuntimeError("the prefix is not there")
        groups = {j: range(a, min(a + GROUP, len(keys))) for j, a in enumerate(range(0, len(keys), GROUP))}
        for j, g in groups.items():
            if not self.client.load(self.ns, self.region, keys[g.start:g.stop], extents[g.start:g.stop], job=j):
                raise RuntimeError("a load was not queued")
        while groups:
            finished = self.client.done(20)
            if not finished:
                raise TimeoutError("the loads do not end")
            for j, status in finished:
                if not (np.asarray(status) == 1).all():
                    raise RuntimeError(f"statuses of a load: {list(status)}")
                g = groups.pop(j)
                self.copy(g, hosts[g.start:g.stop])

    def by_arena(self, n):
        """The device copies out of the rank's memory itself."""
        views = self.client.views(self.ns, self.keys(n))
        if None in views:
            raise RuntimeError(f"{views.count(None)} of {len(views)} views refused")
        self.copy(range(n // BLOCK), [v.array.ctypes.data for v in views])
        self.sync()
        for v in views:
            v.release()

    def register_arena(self):
        """The client's mapping of the arena, whole and read-only, for the device."""
        view = self.client.views(self.ns, self.keys(LENGTHS[0])[:1])[0]
        whole = view._lease._arena  # its only mapping; the client has no call for it
        t = time.monotonic()
        self.cu.register(whole.address, whole.size, kit.HOST_SIDE | kit.READ_ONLY)
        return {"address": whole.address, "bytes": whole.size, "seconds": round(time.monotonic() - t, 3)}

    def ttft(self, how, n, want, tokens):
        """Seconds until the prefix is there and until the first token, and whether bytes and tokens are those computed."""
        self.cache.zero_()
        self.sync()
        t = time.monotonic()
        how(n)
        self.sync()
        loaded = time.monotonic()
        first = self.tail(n)
        end = time.monotonic()
        same = bool(self.torch.equal(self.cache[:, :, :n], want))
        return {"load_s": loaded - t, "ttft_s": end - t, "bytes_equal": same, "tokens_equal": sum(a == b for a, b in zip(self.model.greedy(first, self.cache, n + TAIL), tokens))}


def summary(samples, n):
    return {"ttft_s": kit.median([s["ttft_s"] for s in samples], 4), "load_s": kit.median([s["load_s"] for s in samples], 4),
            "load_gb_s": kit.median([n // BLOCK * BYTES / s["load_s"] / 1e9 for s in samples]), "samples": len(samples),
            "bytes_equal": all(s["bytes_equal"] for s in samples), "tokens_equal": min(s["tokens_equal"] for s in samples)}


def main():
    report = kit.Report()
    work = kit.WORK / f"{kit.WORK.name}-{kit.CHECK}"
    work.mkdir()
    with contextlib.closing(contextlib.ExitStack()) as stack:
        rank = stack.enter_context(Rank(work, ARENA, program=kit.HERE / "cascaded", cold=True))
        report.put(model={"layers": LAYERS, "width": WIDTH, "kv_heads": KV_HEADS, "head": HEAD, "kv_bytes_per_token": BYTES // BLOCK, "block_bytes": BYTES, "prefixes": LENGTHS, "arena_bytes": ARENA})
        bench = Bench(rank)
        found, wanted = {}, {}
        for n in LENGTHS:
            seconds = [bench.recompute(n) for _ in range(REPEATS + 1)][1:]
            want, tokens, stored = bench.fill(n)
            wanted[n] = want, tokens
            bench.tail(n)
            t = time.monotonic()
            bench.tail(n)
            found[n] = {"recompute_ttft_s": kit.median([s for s, _ in seconds], 4), "recompute_first_token_equal": seconds[0][1] == tokens[0],
                        "tail_alone_s": round(time.monotonic() - t, 4), **stored}
            report.put(prefixes=found)

        def level(name, how, repeats):
            for n in LENGTHS:
                try:
                    samples = [bench.ttft(how, n, *wanted[n]) for _ in range(repeats)]
                    found[n][name] = {**summary(samples, n), "over_recompute": round(summary(samples, n)["ttft_s"] / found[n]["recompute_ttft_s"], 3)}
                except Exception as e:
                    found[n][name] = {"error": f"{type(e).__name__}: {e}"}
                report.put(prefixes=found)

        level("dram_region", bench.by_region, REPEATS)
        report.attempt("arena_registered", bench.register_arena)
        level("dram_arena", bench.by_arena, REPEATS)
        if "error" not in report["arena_registered"]:
            bench.cu.cuMemHostUnregister(report["arena_registered"]["address"])
        t = time.monotonic()
        rank.chill(60)
        os.sync()
        try:
            pathlib.Path("/proc/sys/vm/drop_caches").write_text("3") if not kit.FAKE else None
        except OSError as e:
            report.put(drop_caches=str(e))
        report.put(drain_and_restart_s=round(time.monotonic() - t, 2), segments_bytes=sum(f.stat().st_size for f in rank.directory.rglob("*.bin")))
        for _ in range(200):
            if bench.client.up:
                break
            time.sleep(0.05)
        level("file_region", bench.by_region, 1)
        level("dram_region_after_file", bench.by_region, 1)


main()
