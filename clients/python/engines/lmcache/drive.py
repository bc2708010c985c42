"""A client of LMCache's server, made of the parts of LMCache's own benchmark. Run by the environment's Python.

Each line of standard input is JSON: {"server": [...]}, the words of `lmcache bench server` that name a server, which is connected to; or
{"request": N}: what the server has of request N is loaded into memory that held zeros, and what it lacks is stored. The answer is one
line: RESULT and JSON, {} or {"computed": [...], "served": [...]}: the checksum of each chunk of the request as it is, and of each chunk
that was loaded.
"""

import argparse
import json
import sys


def main():
    out, client = sys.stdout, None
    sys.stdout = sys.stderr  # LMCache prints too
    for line in sys.stdin:
        order = json.loads(line)
        if "server" in order:
            if client is not None:
                client.close()
            client, answer = Client(order["server"]), {}
        else:
            answer = client.ask(order["request"])
        print("RESULT " + json.dumps(answer), file=out, flush=True)


class Client:
    def __init__(self, words):
        from lmcache.cli.commands.bench.server_bench.client import ServerBenchClient
        from lmcache.cli.commands.bench.server_bench.command import add_server_arguments
        from lmcache.cli.commands.bench.server_bench.config import parse_args_to_config

        parser = argparse.ArgumentParser()
        add_server_arguments(parser)
        self.client = ServerBenchClient(parse_args_to_config(parser.parse_args(words)), lambda text: print(text, file=sys.stderr))
        self.client.start()
        self.close = self.client.close
        self.memory = [t for worker in self.client._workers for t in worker.kv_caches.values()]
        self.whole = [t.clone() for t in self.memory]
        self.asked = 0

    def ask(self, number):
        self.asked += 1
        request = self.client.create_request(number, request_id=f"r{number}-{self.asked}", request_kind="faults")
        for t, whole in zip(self.memory, self.whole):
            t.copy_(whole)
        computed = self.client.compute_checksums(request, start_token=0, token_count=request.num_full_tokens)
        found = self.client.lookup(request).hit_chunks * request.chunk_size
        self.client.zero_destination(request, start_token=0, token_count=found)
        loaded = self.client.retrieve(request, start_token=0, token_count=found)
        served = []
        if loaded is not None and loaded.succeeded:
            served = self.client.compute_checksums(request, start_token=0, token_count=found)
        for t, whole in zip(self.memory, self.whole):
            t.copy_(whole)
        self.client.store(request, start_token=found, token_count=request.num_full_tokens - found)
        self.client.end_session(request)
        return {"computed": computed, "served": served}


if __name__ == "__main__":
    main()
