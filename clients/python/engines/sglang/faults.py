"""The matrix of faults under SGLang, and under its cache stack with a draft model's pages beside each page: there every byte is compared."""

import json
import subprocess

from engines import Failed, daemon, faults
from engines.sglang import whole

TOKENS = 12 * whole.PAGE + 8  # of a prompt, whose last tokens are always computed
TIMEOUT = 0.5  # of a client: a late answer is none
SIDE_SECONDS = 600


def test(python, work, program):
    asked = whole.prompts(faults.prompts_of(1), TOKENS)
    with faults.Ranks(work, program) as ranks:
        ranks.memory()
        with engine(python, work, "store", ranks) as first:
            computed = [a["tokens"] for a in first.ask_all(asked)]
            whole.settled(ranks.near)
        with engine(python, work, "load", ranks) as second:

            def ask(number, _):
                second.forget()
                answer = second.ask(asked[number])
                return answer["tokens"], answer["storage"]

            figures = faults.Matrix(ranks, ask, computed, TOKENS // whole.PAGE * whole.PAGE).run()
            whole.calm(second)
            return figures


def test_side(python, work, program):
    """The same under the cache stack alone, with pages of a draft model beside the model's."""
    run = subprocess.run([python, "-m", "engines.sglang.side", program, work], env=whole.environ(), cwd=work, stdin=subprocess.DEVNULL,
                         stdout=subprocess.PIPE, timeout=SIDE_SECONDS)
    try:
        figures = json.loads(run.stdout)
    except ValueError:
        raise Failed(f"the cache stack under faults ended with {run.returncode} and no figures") from None
    if run.returncode != 0:
        raise Failed(figures.get("failed", f"the cache stack under faults ended with {run.returncode}"), figures)
    return figures


def engine(python, work, name, ranks):
    made = whole.Engine(python, work, name, "v1+memfd", ranks.socket, daemon.free_port())
    made.extra["timeout"] = TIMEOUT
    return made
