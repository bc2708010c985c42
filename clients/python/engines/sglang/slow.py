"""A level that is slower than computing, under SGLang: one server, to which the rank is attached anew with other settings."""

import contextlib
import json
import secrets

from engines import daemon, slow
from engines.sglang import whole

TOKENS = 16 * whole.PAGE + 8  # of a prompt, whose last tokens are always computed
NEW = 4


def test(python, work, program):
    asked = whole.prompts(slow.LEARNED + 2 * slow.PAIRS, TOKENS)
    with slow.ranks(work, program) as ranks:
        ranks.memory()
        with Engine(python, work, "slow", "v1+memfd", ranks.socket, daemon.free_port()) as engine:
            engine.detach()

            @contextlib.contextmanager
            def engines(**settings):
                engine.attach(timeout=slow.FETCH_SECONDS, **settings)
                engine.forget()
                try:
                    yield lambda number: {**(answer := engine.ask(asked[number], NEW)), "found": answer["storage"]}
                    whole.settled(ranks.near)
                finally:
                    engine.detach()

            figures = slow.test(ranks, engines, TOKENS)
            whole.calm(engine)
            return figures


class Engine(whole.Engine):
    """A server whose storage may be changed."""

    def __init__(self, *how):
        super().__init__(*how)
        self.key = secrets.token_hex(16)
        self.more = ["--admin-api-key", self.key]

    def attach(self, **settings):
        extra = json.dumps({**self.extra, **settings})
        self.idle("/hicache/storage-backend", {"hicache_storage_backend": "dynamic", "hicache_storage_backend_extra_config_json": extra,
                                               "hicache_storage_prefetch_policy": "wait_complete"}, method="PUT")

    def detach(self):
        self.idle("/hicache/storage-backend", method="DELETE")
