"""vLLM stores in one process and loads in a fresh one. What the first computed is the reference: float32, so that a prompt with a
loaded prefix gives the very tokens of a recomputed one. Under the second the rank is damaged, killed, started again, and fills again.
"""

import shutil
import time

from engines.daemon import check
from engines.rank import Rank
from engines.vllm import engine, install

PREFIX = 2048  # tokens, 16 chunks
SEEDS = [1, 2, 3, 4]
MORE = [5, 6]
TIER = "1:CascadeTier"
ANSWERED, CHUNK = 7, 128
ALL = PREFIX * len(SEEDS)
FEW, MANY = 24, 976  # bits


def tokens(answer):
    return [r["tokens"] for r in answer["requests"]]


def cached(answer):
    return [r["cached"] for r in answer["requests"]]


def test(work, program=None):
    return run(install.home(), work, program)


def test_next(work, program=None):
    """The next vLLM's scheduler, connector and tiers."""
    return run(install.next_home(), work, program, short=True)


def run(home, work, program, *, short=False):
    with Rank(work, 1 << 30, program=program, cold=True) as rank:
        kv = engine.kv_transfer(rank.path, 128 << 20)
        kv["kv_connector_extra_config"]["offload_prompt_only"] = False
        with engine.Engine(home, work, "store", kv) as first:
            reference = first.ask(SEEDS + MORE)
            check(cached(reference) == [0] * 6, "the first process finds nothing and computes")
            check(rank.layouts() == [{"tokens": 128, "layers": 4, "dtype": "float32"}], f"the rank knows how chunks are made: {rank.layouts()}")
            again = first.ask(SEEDS, reset=True)
            check(cached(again) == [PREFIX] * 4, f"the same process finds {PREFIX} tokens of each prompt in the rank alone")
            check(tokens(again) == tokens(reference)[:4], "and its tokens equal those that it computed")
        with engine.Engine(home, work, "load", kv) as second:
            loaded = second.ask(SEEDS)
            check(cached(loaded) == [PREFIX] * 4, f"a fresh process finds {PREFIX} tokens of each prompt")
            check(tokens(loaded) == tokens(reference)[:4], f"its tokens equal those computed, {len(tokens(loaded)[0])} of each")
            check(loaded["metrics"].get(f"vllm:kv_offload_tiering_read_bytes[{TIER}]", 0) >= 4 * 16 << 20, "64 MiB came from the rank")
            answered(rank, second)
            found = {} if short else flipped(rank, second, tokens(reference))
            killed(rank, second, tokens(reference))
            if not short:
                upgraded(rank, second, tokens(reference))
    return {"tokens_found_after_flips": found, "prompts": len(SEEDS), "cached_of_each": PREFIX, "equal_of_each": len(tokens(loaded)[0]), "metrics": loaded["metrics"]}


def answered(rank, live):
    """An answer that fills a chunk is marked as generated, and the prompt before it is not."""
    before, deadline = rank.parents(), time.monotonic() + 60
    live.ask([ANSWERED], CHUNK - 16, new=CHUNK + 16)  # the prompt is a chunk
    while len(new := {k: p for k, p in rank.parents().items() if k not in before}) < 2 and time.monotonic() < deadline:
        time.sleep(0.1)
    marks = {parent != b"": rank.generated(rank.namespaces()[0], key) for key, parent in new.items()}
    check(len(new) == 2 and marks == {False: False, True: True}, f"a prompt's chunk is stored as such and one of the answer as generated: {marks}")


def flipped(rank, live, reference):
    """Bits of the arena and of segments are flipped, a few and then many. vLLM compares no checksums, so its tokens tell."""
    found = {}

    def ask(what, some=False):
        answer = live.ask(SEEDS, reset=True)
        found[what] = sum(cached(answer))
        check(tokens(answer) == reference[:4], f"{what}: {found[what]} of {ALL} tokens come from the rank, and what is computed from them is right")
        check(found[what] < ALL, "flips were noticed")
        if some:
            check(found[what] > 0, "and some chunks were found")
        whole(live)

    for bits, some in ((FEW, True), (MANY, False)):
        rank.flip(bits, bits)
        ask(f"{bits} bits of the arena flipped", some)
    for bits in (FEW, MANY):
        rank.chill()
        rank.flip_segments(bits, bits)
        time.sleep(3)  # a client tries again after two seconds at most
        ask(f"{bits} bits of segments flipped")
    return found


def whole(live):
    """What was lost has been computed and stored again."""
    for _ in range(5):
        again = live.ask(SEEDS, reset=True)
        if sum(cached(again)) == ALL:
            break
    check(sum(cached(again)) == ALL, "then everything is found again")


def killed(rank, live, reference, seeds=SEEDS, more=MORE, prefix=PREFIX):
    """The daemon ends with -9 under an engine, and comes back without its memory. reference: what is computed of seeds and of more."""
    n = len(seeds)
    rank.kill()
    away = live.ask(seeds, prefix, reset=True)
    check(cached(away) == [0] * n and tokens(away) == reference[:n], "with the rank killed the engine computes, and its tokens are right")
    rank.arena.unlink(missing_ok=True)
    shutil.rmtree(rank.directory)
    rank.start()
    # A client tries again after at most two seconds; what is computed before that is not stored.
    for _ in range(10):
        back = live.ask(more, prefix, reset=True)
        check(tokens(back) == reference[n:], "with an empty rank in its place the tokens are right")
        if cached(back) == [prefix] * len(more):
            break
    check(cached(back) == [prefix] * len(more), "and the same engine has hits again")



def upgraded(rank, live, reference):
    """Another program takes the rank's place again and again while the engine asks it."""
    with rank.upgrading() as times:
        for _ in range(4):
            again = live.ask(MORE, reset=True)
            check(cached(again) == [PREFIX] * 2 and tokens(again) == reference[4:], f"after {times[0]} upgrades there are hits, and the tokens are right")
