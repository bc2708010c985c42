"""A vLLM engine that does what it is told, line by line. Run by the environment's Python.

generate.py MODEL KV [CONFIG [WORKERS]]: KV is vLLM's kv_transfer_config as JSON, or - for none. CONFIG is JSON too, what the model's differs in.
WORKERS share the model's heads, one by default.

Each line of standard input is JSON: {"seeds": [...], "tokens": N, "reset": bool}. For each seed a prompt of N pseudo-random tokens and 16 of
another seed is answered greedily; reset forgets first what the engine itself has cached. With "policy" a failed load of KV is handled as
kv_load_failure_policy says, with "new" so many tokens are generated. The answer is one line: RESULT and JSON.
"""

import contextlib
import json
import os
import random
import sys
import time

GENERATED = 32


def main():
    folder, kv = sys.argv[1], sys.argv[2]
    from vllm import LLM

    arguments = {"model": folder, "skip_tokenizer_init": True, "enforce_eager": True, "enable_prefix_caching": True, "disable_log_stats": False,
                 "max_model_len": 8192, "max_num_seqs": 4, "dtype": "float32", "seed": 0}
    if len(sys.argv) > 3:
        arguments["hf_overrides"] = json.loads(sys.argv[3])
    if len(sys.argv) > 4:
        arguments["tensor_parallel_size"] = int(sys.argv[4])
    if kv != "-":
        arguments["kv_transfer_config"] = json.loads(kv)
    llm = LLM(**arguments)
    with open(os.path.join(folder, "config.json"), encoding="utf-8") as f:
        vocabulary = json.load(f)["vocab_size"]
    print("RESULT {}", flush=True)
    for line in sys.stdin:
        print("RESULT " + json.dumps(answer(llm, vocabulary, json.loads(line))), flush=True)
    close(llm)


def answer(llm, vocabulary, order):
    from vllm import SamplingParams
    from vllm.inputs import TokensPrompt

    if order.get("reset"):
        llm.reset_prefix_cache(reset_connector=True)
    if "policy" in order:
        llm.llm_engine.engine_core.engine_core.scheduler.recompute_kv_load_failures = order["policy"] == "recompute"
    sampling = SamplingParams(temperature=0, max_tokens=order.get("new", GENERATED), ignore_eos=True, detokenize=False)
    requests = []
    for seed in order["seeds"]:
        prompt = tokens(seed, order["tokens"], vocabulary) + tokens(-1 - seed, 16, vocabulary)
        began = time.monotonic()
        out = llm.generate([TokensPrompt(prompt_token_ids=prompt)], sampling, use_tqdm=False)[0]
        requests.append({"tokens": list(out.outputs[0].token_ids), "cached": out.num_cached_tokens,
                         "first_seconds": out.metrics.first_token_latency, "seconds": time.monotonic() - began})
    return {"requests": requests, "metrics": metrics(llm)}


def tokens(seed, n, vocabulary):
    r = random.Random(seed)
    return [r.randrange(4, vocabulary) for _ in range(n)]


def metrics(llm):
    out = {}
    for m in llm.get_metrics():
        if "kv_offload" in m.name or "cascade" in m.name:
            value = getattr(m, "value", None)
            if value is not None:
                out[m.name + "".join(f"[{v}]" for k, v in sorted(m.labels.items()) if k not in ("model_name", "engine"))] = value
    return out


def close(llm):
    """The regions in /dev/shm go when connector and worker are shut down, which LLM leaves to chance."""
    inner = getattr(llm.llm_engine.engine_core, "engine_core", None)
    with contextlib.suppress(Exception):
        from vllm.distributed.kv_transfer import ensure_kv_transfer_shutdown

        inner.shutdown()
        if inner.scheduler.connector is not None:
            inner.scheduler.connector.shutdown()
        ensure_kv_transfer_shutdown()
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
