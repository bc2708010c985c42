"""Proofs with the real engines, one folder for each; scripts/test-engines runs them.

A folder is an engine if it has proof.py with
- add_options(parser): its options, with the engine's name as prefix unless they are the benchmark's of old;
- install(): installs the engine, if it is not there. It raises environment.Missing;
- prove(args, work): runs everything in the empty folder work and returns figures for the JSON. It raises Failed, with the figures
  so far if it has any, or environment.Missing.

Modules here run with the Python that runs the runner, and import no engine; what imports an engine is run as a child process
by the Python of its environment (environment.py).
"""

import sys


class Failed(Exception):
    """A proof that did not hold. figures goes into the JSON all the same."""

    def __init__(self, text, figures=None):
        super().__init__(text)
        self.figures = figures


def say(text):
    print(f"test-engines: {text}", file=sys.stderr, flush=True)
