"""`vllm serve` with a device cache and a host tier that are too small, under `vllm bench serve`: what was evicted comes from the rank."""

import json
import re
import urllib.request

from engines import daemon
from engines.daemon import check
from engines.rank import Rank
from engines.vllm import engine, install

PROMPTS = 32
START_SECONDS = 600


def test(work, program=None):
    home = install.home()
    port = daemon.free_port()
    before = engine.regions()
    with Rank(work, 1 << 30, program=program) as rank:
        server = serve(home, work, port, engine.kv_transfer(rank.path, 24 << 20))
        try:
            daemon.ready(server, f"http://127.0.0.1:{port}/health", work / "serve.log", seconds=START_SECONDS, what="vllm serve")
            figures = load(home, work, port)
            hits = counter(port, "vllm:kv_offload_tiering_chunk_hits_total", "1:CascadeTier")
            read = counter(port, "vllm:kv_offload_tiering_read_bytes_total", "1:CascadeTier")
        finally:
            daemon.end(server)
            for left in engine.regions() - before:
                left.unlink(missing_ok=True)
    check(figures["completed"] == PROMPTS and not figures.get("failed"), f"{figures['completed']} of {PROMPTS} requests done, none failed")
    check(hits > 0 and read > 0, f"{hits:.0f} chunks were found in the rank, {read / (1 << 20):.0f} MiB read")
    return {"chunk_hits": hits, "read_bytes": read, "mean_ttft_ms": figures.get("mean_ttft_ms")}


def serve(home, work, port, kv):
    """48 blocks of 128 tokens on the device and 48 chunks in host memory; the benchmark's prefixes have 128."""
    command = [home / "bin" / "vllm", "serve", install.model(home), "--served-model-name", "m", "--host", "127.0.0.1", "--port", port, "--enforce-eager",
               "--max-model-len", 4096, "--max-num-seqs", 4, "--num-gpu-blocks-override", 48, "--kv-transfer-config", json.dumps(kv)]
    env = engine.env()
    env["VLLM_ENABLE_V1_MULTIPROCESSING"] = "1"
    return daemon.start(command, work / "serve.log", env=env, cwd=work)


def load(home, work, port):
    daemon.run([home / "bin" / "vllm", "bench", "serve", "--host", "127.0.0.1", "--port", port, "--model", install.model(home), "--served-model-name", "m",
                "--dataset-name", "prefix_repetition", "--prefix-repetition-num-prefixes", 8, "--prefix-repetition-prefix-len", 2048,
                "--prefix-repetition-suffix-len", 64, "--prefix-repetition-output-len", 8, "--num-prompts", PROMPTS, "--max-concurrency", 1,
                "--seed", 3, "--ignore-eos", "--save-result", "--result-dir", work, "--result-filename", "result.json"],
               timeout=500, what="vllm bench serve", env=engine.env(), cwd=work)
    return json.loads((work / "result.json").read_text())


def counter(port, name, tier):
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as r:
        text = r.read().decode()
    return sum(float(m[1]) for m in re.finditer(rf'^{re.escape(name)}{{[^}}]*tier="{re.escape(tier)}"[^}}]*}} (\S+)$', text, re.MULTILINE))
