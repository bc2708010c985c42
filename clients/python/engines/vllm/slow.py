"""A level that is slower than computing, under vLLM."""

import contextlib

from engines import slow
from engines.vllm import engine, install

TOKENS = 1024  # of a prompt; a chunk has 128
NEW = 4


def test(work, program):
    home = install.home()
    with slow.ranks(work, program) as ranks:

        @contextlib.contextmanager
        def engines(**settings):
            with engine.Engine(home, work, "slow", engine.kv_transfer(ranks.socket, 64 << 20, **settings)) as running:

                def ask(number):
                    (request,) = running.ask([1 + number], TOKENS, new=NEW)["requests"]
                    return {"tokens": request["tokens"], "found": request["cached"], "seconds": request["first_seconds"]}

                yield ask

        return slow.test(ranks, engines, TOKENS)
