"""A level that is slower than computing: an engine that knows how fast it computes does not load from it, and answers the same."""

import statistics

from engines import Failed, faults, say
from engines.vllm import engine, install

TOKENS = 1024  # of a prompt; a chunk has 128
NEW = 4
PROMPTS = 16
LEARNED = 6  # prompts after which the level is known to be slow
SETTING = "prefill_tokens_per_second"


def test(work, program):
    home = install.home()
    seeds = list(range(1, 1 + PROMPTS))
    with faults.Ranks(work, program) as ranks:
        ranks.both()
        with engine.Engine(home, work, "store", engine.kv_transfer(ranks.socket, 64 << 20)) as first:
            computed = first.ask(seeds, TOKENS, new=NEW)["requests"]
        faults.drain(ranks.near)
        seconds = statistics.median(r["seconds"] for r in computed[2:])
        wait = min(2 * seconds, faults.FETCH_SECONDS / 2)  # of each read of a file: slower than computing, and in time
        rate = TOKENS / min(seconds, wait / 2)
        figures = {"computed_seconds": seconds, "read_seconds": wait, SETTING: rate}
        for way, settings in (("all", {}), ("worthy", {SETTING: rate})):
            ranks.segment()
            with engine.Engine(home, work, way, engine.kv_transfer(ranks.socket, 64 << 20, **settings)) as second:
                faults.set_rules(ranks.near, f"segment delay wait={wait:g}s")
                got = second.ask(seeds, TOKENS, new=NEW)["requests"]
            late = got[LEARNED:]
            figures[way] = {"loaded_tokens": sum(r["cached"] for r in got), "late_tokens": sum(r["cached"] for r in late),
                            "late_seconds": statistics.median(r["seconds"] for r in late)}
            for seed, want, have in zip(seeds, computed, got, strict=True):
                if want["tokens"] != have["tokens"]:
                    raise Failed(f"{way}: prompt {seed} is answered otherwise than it was computed", figures)
        say(figures)
        if figures["all"]["late_tokens"] == 0:
            raise Failed("nothing is loaded without the setting: the test shows nothing", figures)
        if figures["worthy"]["late_tokens"] > 0:
            raise Failed("what is slower than computing is loaded", figures)
        return figures
