"""The whole engine, twice, on CPU: what the first one computes the second one finds in storage.

The model is tiny and its weights are random, the same at each start. 32-bit floats: of equal bytes come equal tokens, however the
prompt is cut into steps.
"""

import json
import os
import pathlib
import random
import time
import urllib.error
import urllib.request

from .. import Failed, daemon, say
from ..rank import Rank

HERE = pathlib.Path(__file__).resolve().parent
CLIENTS = HERE.parent.parent
PAGE = 64
START_SECONDS = 900  # the first start compiles; a busy machine of two cores takes minutes
ANSWER_SECONDS = 300
NEW_TOKENS = 16
MODEL = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 4,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64, "vocab_size": 1024, "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "hidden_act": "silu", "torch_dtype": "float32", "bos_token_id": 1, "eos_token_id": 2,
    "tie_word_embeddings": False,
}
MODES = {
    "plain": {},
    "v1": {"interface_v1": 1},
    "v1+memfd": {"interface_v1": 1, "allocator": "shm"},
}


def environ():
    """The environment variables of processes that import SGLang."""
    out = dict(os.environ, CUDA_VISIBLE_DEVICES="", SGLANG_USE_CPU_ENGINE="1", PYTHONPATH=f"{HERE / 'cpu'}:{CLIENTS}")
    out.pop("PYTHONDONTWRITEBYTECODE", None)  # engines are large: compiling them anew takes minutes
    return out


# What a small machine without an accelerator needs beside what is in docs/sglang.md.
SMALL = ("--device", "cpu", "--served-model-name", "tiny", "--load-format", "dummy", "--skip-tokenizer-init", "--dtype", "float32",
         "--attention-backend", "torch_native", "--sampling-backend", "pytorch", "--cuda-graph-backend-decode", "disabled",
         "--cuda-graph-backend-prefill", "disabled", "--mem-fraction-static", "0.2", "--max-total-tokens", "32768", "--max-running-requests", "8",
         "--enable-cache-report", "--hicache-io-backend", "kernel")


class Client:
    """A server, asked by HTTP."""

    def __init__(self, url):
        self.url = url
        self.key = None  # of its administrator

    def _open(self, path, body=None, method=None):
        data = None if body is None else json.dumps(body).encode()
        headers = {"content-type": "application/json", **({"authorization": f"Bearer {self.key}"} if self.key else {})}
        return urllib.request.urlopen(urllib.request.Request(self.url + path, data, headers, method=method), timeout=ANSWER_SECONDS)

    def ask(self, prompt, new=NEW_TOKENS):
        """The tokens of the answer, how many of the prompt's came from where, and seconds to the first token."""
        sampling = {"max_new_tokens": new, "temperature": 0, "ignore_eos": True}
        begun, first = time.monotonic(), None
        with self._open("/generate", {"input_ids": prompt, "sampling_params": sampling, "stream": True}) as events:
            for event in events:
                if event.startswith(b"data: {"):
                    first, answer = first or time.monotonic() - begun, json.loads(event[6:])
        meta = answer["meta_info"]
        details = meta.get("cached_tokens_details") or {}
        return {"tokens": answer["output_ids"], "cached": meta["cached_tokens"], "storage": details.get("storage", 0), "seconds": first}


class Engine(Client):
    """An SGLang server as a child process. A context manager."""

    def __init__(self, python, work, name, mode, rank_socket, port):
        super().__init__(f"http://127.0.0.1:{port}")
        self.python, self.work = python, work
        self.log = work / f"{name}.log"
        self.extra = {"backend_name": "cascade", "module_path": "cascade_kv.sglang", "class_name": "CascadeHiCache",
                      "socket": str(rank_socket), "prefetch_threshold": PAGE, "hicache_storage_pass_prefix_keys": True, **MODES[mode]}
        self.port, self.more = port, ()

    def __enter__(self):
        model = self.work / "model"
        model.mkdir(exist_ok=True)
        (model / "config.json").write_text(json.dumps(MODEL))
        command = [
            self.python, "-m", "sglang.launch_server", "--model-path", model, *SMALL, "--page-size", PAGE,
            "--enable-hierarchical-cache", "--hicache-ratio", "2", "--hicache-mem-layout", "page_first", "--hicache-write-policy", "write_through",
            "--hicache-storage-prefetch-policy", "wait_complete", "--hicache-storage-backend", "dynamic",
            "--hicache-storage-backend-extra-config", json.dumps(self.extra), "--host", "127.0.0.1", "--port", self.port, *self.more,
        ]
        begun = time.monotonic()
        self.child = daemon.start(command, self.log, env=environ(), cwd=self.work)
        try:
            daemon.ready(self.child, f"{self.url}/health_generate", self.log, seconds=START_SECONDS, what="SGLang", patience=30)
        except Failed:
            self.__exit__()
            raise
        self.start_seconds = time.monotonic() - begun
        return self

    def __exit__(self, *_):
        daemon.end(self.child)

    def ask_all(self, prompts):
        return [self.ask(p) for p in prompts]

    def forget(self):
        """Drops what the engine has in its own memory."""
        self.idle("/flush_cache", {})

    def idle(self, path, body=None, method=None):
        """A call that is refused while something is still under way."""
        deadline = time.monotonic() + 60
        while True:
            try:
                with self._open(path, body, method) as answer:
                    return answer.read()
            except urllib.error.HTTPError as e:
                if time.monotonic() > deadline:
                    raise Failed(f"SGLang refuses {path}: {e.read().decode(errors='replace')}") from None
                time.sleep(0.5)

    def exceptions(self):
        """Lines of the log that tell of an exception."""
        return [line for line in self.log.read_text(errors="replace").splitlines() if line.startswith("Traceback") or "Exception in" in line]


def prompts(count, tokens):
    draw = random.Random(20261122)
    return [[draw.randrange(3, 1000) for _ in range(tokens)] for _ in range(count)]


def settled(rank, seconds=60):
    """Waits until the engine's backups have reached the rank: until nothing new comes for two seconds. Returns the rank's names."""
    last, since, deadline = None, time.monotonic(), time.monotonic() + seconds
    while time.monotonic() < deadline:
        now = rank.stored()
        if now != last:
            last, since = now, time.monotonic()
        elif now and time.monotonic() - since > 2:
            return now
        time.sleep(0.2)
    raise Failed(f"backups do not end: {last}")


def compare(name, got, want, storage=None):
    """Figures of one round. Raises if tokens differ, or if another number of each prompt's came from storage than is said."""
    equal = sum(g["tokens"] == w["tokens"] for g, w in zip(got, want))
    found = [g["storage"] for g in got]
    figures = {"prompts": len(got), "tokens_equal": equal, "prompts_with_hits": sum(f > 0 for f in found), "storage_tokens": sum(found)}
    if equal < len(got):
        raise Failed(f"{name}: {equal} of {len(got)} prompts have equal tokens", figures)
    if storage is not None and set(found) != {storage}:
        raise Failed(f"{name}: {storage} tokens of each prompt should come from storage: {found}", figures)
    return figures


def run_mode(python, program, work, mode, args, port, trials):
    """One interface: an engine stores, a fresh one loads. With trials the fresh one's rank is damaged, killed and started again."""
    asked = prompts(args.sglang_prompts, args.sglang_prompt_tokens)
    whole = (args.sglang_prompt_tokens - 1) // PAGE * PAGE  # the last token is always computed
    figures, start = {}, time.monotonic()
    try:
        with Rank(work, 1 << 30, program=program, cold=trials) as rank:
            with Engine(python, work, "first", mode, rank.path, port) as engine:
                computed = engine.ask_all(asked)
                figures["first"] = {"start_seconds": engine.start_seconds, **compare("computed", computed, computed, 0)}
                figures["first"]["names_stored"] = settled(rank)
                calm(engine)
            with Engine(python, work, "second", mode, rank.path, port) as engine:
                got = engine.ask_all(asked)
                figures["second"] = {"start_seconds": engine.start_seconds, **compare("a fresh engine", got, computed, whole)}
                if trials:
                    figures["flipped"] = flipped(engine, rank, asked, computed, whole)
                    figures["killed"] = killed(engine, rank, asked, computed, whole)
                    figures["upgraded"] = upgraded(engine, rank, asked, computed, whole)
                calm(engine)
    except Failed as e:
        e.figures = {**figures, "at_failure": e.figures}
        raise
    figures["seconds"] = time.monotonic() - start
    say(f"sglang, {mode}: {json.dumps(figures)}")
    return figures


def calm(engine):
    caught = engine.exceptions()
    if caught:
        raise Failed(f"exceptions in the engine: {caught[:5]}")


def flipped(engine, rank, asked, computed, whole):
    """1,000 bits of the arena are flipped, then everything is asked for again; and then 1,000 of segments, when nothing else has it."""
    figures = {}
    for where in ("arena", "segments"):
        engine.forget()
        if where == "arena":
            pages = rank.flip(1000, 1)
        else:
            settled(rank)
            rank.chill()
            pages = rank.flip_segments(1000, 2)
            time.sleep(3)  # clients try again after 2 s at most
        got = compare(f"after bits of {where} were flipped", engine.ask_all(asked), computed)
        figures[where] = {"bits": 1000, "pages_hit": pages, **got}
        if not rank.alive():
            raise Failed(f"the rank ended when bits of {where} were flipped", figures)
        if got["storage_tokens"] >= whole * len(asked):
            raise Failed(f"no flip in {where} was noticed", figures)
    return figures


def killed(engine, rank, asked, computed, whole):
    """The rank ends as by a power cut of its process and is started again; the engine goes on."""
    rank.kill()
    engine.forget()
    away = compare("the rank is away", engine.ask_all(asked), computed, 0)
    rank.start()
    time.sleep(3)  # clients try again after 2 s at most
    engine.forget()
    back = compare("the rank is back, with what it found in its arena", engine.ask_all(asked), computed)
    settled(rank)
    engine.forget()
    return {"away": away, "back": back, "later": compare("the rank is back for a while", engine.ask_all(asked), computed, whole)}


def upgraded(engine, rank, asked, computed, whole):
    """Another program takes the rank's place again and again while the engine asks it."""
    engine.forget()
    with rank.upgrading() as times:
        got = compare("the rank is upgraded all the while", engine.ask_all(asked), computed, whole)
    return {"upgrades": times[0], **got}
