"""One server of LMCache that goes on while its rank is damaged, killed and started again: what it serves is right, or computed anew."""

import time

from engines import Failed
from engines.daemon import check
from engines.lmcache.server import CHUNKS, Server
from engines.rank import Rank

SHAPE = "(2,1024,16,8,128):bfloat16:2"  # 2 MiB for a chunk of 256 tokens
REQUESTS = 16
ALL = CHUNKS * REQUESTS
FEW, MANY = 20, 980  # bits


def test(work, program=None):
    with Rank(work, 1 << 30, program=program, cold=True) as rank, Server(rank, work, "trials", SHAPE, REQUESTS) as server:
        trial = Trial(rank, server)
        try:
            trial.arena()
            trial.segments()
            trial.killed()
            trial.upgraded()
            server.calm()
        except Failed as e:
            e.figures = trial.found
            raise
    return {"requests": REQUESTS, "chunks": ALL, "bits": {"arena": FEW + MANY, "segments": FEW + MANY}, "found": trial.found}


class Trial:
    def __init__(self, rank, server):
        self.rank, self.server, self.found = rank, server, {}
        cold, self.sums = server.ask()
        check(cold == [0] * REQUESTS, "the server finds nothing, and is given everything")
        self.again("before anything happens")
        parents = self.rank.parents()
        heads = sum(1 for p in parents.values() if not p)
        known = all(not p or p in parents for p in parents.values())
        layout = {"bytes": 2 << 20, "key_bytes": 1 << 20, "tokens": 256, "layers": 2, "dtype": "bfloat16"}
        check(self.rank.layouts() == [layout], f"the rank knows how chunks are made: {self.rank.layouts()}")
        check(len(parents) == ALL and heads == REQUESTS and known, f"{len(parents)} chunks are {heads} chains in the rank, one for each request")

    def ask(self, when):
        """How many chunks come from the rank. What is served must have the checksums that it always had."""
        self.server.forget()
        cold, sums = self.server.ask()
        self.found[when] = sum(cold)
        check(sums == self.sums, f"{when}: {sum(cold)} of {ALL} chunks are from the rank, all checksums are right")
        return sum(cold)

    def again(self, when):
        """What was lost is computed and stored again; damage that is noticed only now, once more."""
        for _ in range(4):
            self.server.settle()
            if self.ask(when) == ALL:
                break
        check(self.found[when] == ALL, f"{when}: everything is found")

    def arena(self):
        self.rank.flip(FEW, 1)
        check(0 < self.ask(f"{FEW} bits of the arena flipped") < ALL, "some flips were noticed, and some chunks were found")
        self.server.settle()
        self.rank.flip(MANY, 2)
        self.ask(f"{MANY} more bits of the arena flipped")
        self.again("after flips in the arena")

    def segments(self):
        for bits, seed in ((FEW, 3), (MANY, 4)):
            self.rank.chill()
            self.rank.flip_segments(bits, seed)
            time.sleep(3)  # clients try again after 2 s at most
            check(self.ask(f"{bits} bits of segments flipped") < ALL, "flips were noticed")
            self.again(f"after {bits} flips in segments")

    def killed(self):
        self.rank.kill()
        check(self.ask("the rank is killed") == 0, "nothing comes from a rank that is gone")
        self.rank.start()
        time.sleep(3)
        self.ask("the rank is back")
        self.again("the rank is back for a while")

    def upgraded(self):
        with self.rank.upgrading() as times:
            found = self.ask("the rank is upgraded all the while")
        check(found == ALL, f"{times[0]} upgrades, and everything is found")
