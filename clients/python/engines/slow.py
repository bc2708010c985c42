"""A level that is slower than computing, under a whole engine: one that knows how fast it computes does not load from it, is as fast as
without it, and answers the same.

One engine stores prompts and so shows how fast it computes. Its rank then has them in segments alone, each read of which takes longer than
the whole prompt. An engine without the setting loads them all the same. One with the setting loads until the rank knows the level, and
from then on computes; prompts that nobody has stored are asked in turns with stored ones, which must not be slower.
"""

import math
import os
import statistics

from engines import Failed, faults, say

SETTING = "prefill_tokens_per_second"
LEARNED = 6  # prompts after which the level is known to be slow
PAIRS = 16
LOADED = 3  # prompts of an engine without the setting
LIMIT = 1.05
CHANCE = 0.001  # of a ratio that is at the limit to be judged above it, however busy the machine is
REFRESH = 4  # pairs
FETCH_SECONDS = 60  # no read is too late


def ranks(work, program):
    return faults.Ranks(work, program, FETCH_SECONDS)


def test(ranks, engines, tokens):
    """engines(**settings): a context manager that gives an engine which has nothing in its own memory, as ask(number): the answer's
    tokens, how many of the prompt's came from the rank (found), and seconds to the first one, of a prompt of so many tokens. What the
    engine has been asked is stored in its rank when it ends.
    """
    stored = range(LEARNED + PAIRS)
    ranks.both()
    with engines() as ask:
        computed = [ask(number) for number in stored]
    for i in range(PAIRS // REFRESH):
        ranks.near.ask("CASCADE.PUT", f"spare {i}", os.urandom(1 << 18), "NS", "slow")
    faults.drain(ranks.near)
    seconds = statistics.median(a["seconds"] for a in computed[2:])
    wait = max(2 * seconds, 0.1)
    figures = {"computed_seconds": seconds, "read_seconds": wait, SETTING: tokens / seconds}

    def again(ask, number):
        answer = ask(number)
        if answer["tokens"] != computed[number]["tokens"]:
            raise Failed(f"prompt {number} is answered otherwise than it was computed, {answer['found']} tokens of it loaded", figures)
        return answer

    def slowly():
        faults.set_rules(ranks.near, f"segment delay wait={wait:g}s")

    ranks.segment()
    with engines() as ask:
        slowly()
        figures["all"] = _summary([again(ask, number) for number in stored[-LOADED:]])
    ranks.segment()
    with engines(**{SETTING: tokens / seconds}) as ask:
        slowly()
        figures["first"] = _summary([again(ask, number) for number in stored[:LEARNED]])
        loading, computing = _pairs(ranks.near, lambda number: again(ask, number), ask, stored[LEARNED:])
    figures["late"], figures["computed"] = _summary(loading), _summary(computing)
    ratios = [a["seconds"] / b["seconds"] for a, b in zip(loading, computing)]
    figures["ratio"], figures["ratios"] = statistics.median(ratios), ratios
    say(figures)
    _judge(figures)
    return figures


def _pairs(rank, again, ask, stored):
    """The answers to stored prompts and to others, in turns; who goes first changes."""
    loading, computing = [], []
    for i, number in enumerate(stored):
        if i % REFRESH == 0:  # some minutes after the last load a level is not known to be slow any more
            if not rank.ask("CASCADE.GET", "NS", "slow", f"spare {i // REFRESH}", seconds=FETCH_SECONDS):
                raise Failed(f"spare block {i // REFRESH} is not loaded")
        turns = [lambda: loading.append(again(number)), lambda: computing.append(ask(stored.stop + i))]
        for turn in turns[::-1] if i % 2 else turns:
            turn()
    return loading, computing


def _summary(answers):
    return {"prompts": len(answers), "found": sum(a["found"] for a in answers), "seconds": statistics.median(a["seconds"] for a in answers)}


def _judge(figures):
    if figures["all"]["found"] == 0:
        raise Failed("nothing is loaded without the setting: the test shows nothing", figures)
    if figures["first"]["found"] == 0:
        raise Failed("with the setting nothing is loaded from a level of which nothing is known", figures)
    if figures["computed"]["found"] > 0:
        raise Failed("prompts that nobody stored are found", figures)
    if figures["late"]["found"] > 0:
        raise Failed("what is slower than computing is loaded", figures)
    above = sum(r > LIMIT for r in figures["ratios"])
    if _tail(above, PAIRS) < CHANCE:
        raise Failed(f"the first token comes later than without the rank: {figures['ratio']:.2f} times, {above} of {PAIRS} pairs above {LIMIT}", figures)


def _tail(above, pairs):
    """How likely so many pairs or more are above what half of them are above."""
    return sum(math.comb(pairs, k) for k in range(above, pairs + 1)) / 2 ** pairs
