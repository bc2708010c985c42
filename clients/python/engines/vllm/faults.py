"""The matrix of faults under vLLM, with both of its policies for loads that fail: a Llama, and one of which every second layer has a
window, whose KV is in groups of its own; and both layer by layer, with the policy that it must have."""

from engines import faults
from engines.vllm import engine, install, layerwise
from engines.vllm.layerwise import HYBRID

TOKENS = 1024  # of a prompt; a chunk has 128
NEW = 12
POLICIES = ("recompute", "fail")


def tiered(socket):
    return engine.kv_transfer(socket, 64 << 20)


# What a model's configuration differs in, how its KV goes to the rank, and with which policies.
CASES = {"llama": ({}, tiered, POLICIES), "hybrid": (HYBRID, tiered, POLICIES), "layers": ({}, layerwise.kv_transfer, POLICIES[:1]),
         "groups": (HYBRID, layerwise.kv_transfer, POLICIES[:1])}


def test(work, program):
    figures = {}
    for name, case in CASES.items():
        folder = work.with_name(f"{work.name}-{name}")
        folder.mkdir()
        figures[name] = matrix(folder, program, *case)
    return figures


def matrix(work, program, config, kv_transfer, policies):
    home = install.home()
    seeds = list(range(1, 1 + faults.prompts_of(len(policies))))
    with faults.Ranks(work, program) as ranks:
        ranks.memory()
        kv = kv_transfer(ranks.socket)
        with engine.Engine(home, work, "store", kv, config) as first:
            computed = [r["tokens"] for r in first.ask(seeds, TOKENS, new=NEW)["requests"]]
        with engine.Engine(home, work, "load", kv, config) as second:

            def ask(number, policy):
                (request,) = second.ask([seeds[number]], TOKENS, reset=True, policy=policy, new=NEW)["requests"]
                return request["tokens"], request["cached"]

            return faults.Matrix(ranks, ask, computed, TOKENS, policies).run()
