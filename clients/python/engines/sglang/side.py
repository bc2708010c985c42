"""The matrix of faults under SGLang's cache stack with a draft model's pages beside those of the model, which come by interface v2. What is
compared is every byte. Run by the Python of SGLang's environment:

    python -m engines.sglang.side PROGRAM WORK > figures.json

PROGRAM is the daemon with faults, WORK an empty folder. Ends with 1 if a cell is wrong; the figures tell.
"""

import json
import logging
import os
import pathlib
import sys

# Standard output is for the figures alone; SGLang and what it compiles print too.
_out = os.dup(1)
os.dup2(2, 1)

from engines import Failed, faults
from engines.sglang.stack import PAGE, Stack

PAGES = 12


def main():
    program, work = map(pathlib.Path, sys.argv[1:3])
    logging.basicConfig(level=logging.WARNING)
    prompts = faults.prompts_of(1)
    with faults.Ranks(work, program) as ranks:
        ranks.memory()
        extra = {"backend_name": "cascade", "module_path": "cascade_kv.sglang", "class_name": "CascadeHiCache", "socket": str(ranks.socket),
                 "hicache_storage_pass_prefix_keys": True, "interface_v1": 1, "allocator": "shm"}
        stack = Stack(extra=extra, draft=True)

        def tokens(number):
            return list(range(number * PAGES * PAGE, (number + 1) * PAGES * PAGE))

        def ask(number, _):
            """Wrong pages, and tokens that came from the rank."""
            stack.forget()
            loaded, slots = stack.fetch(tokens(number))
            wrong = stack.wrong_pages(slots, 1000 * number) + (len(slots) != loaded)
            if loaded < PAGES * PAGE:
                stack.forget()
                stack.put(tokens(number), 1000 * number)
            return wrong, loaded

        try:
            for number in range(prompts):
                stack.forget()
                stack.put(tokens(number), 1000 * number)
            figures, status = faults.Matrix(ranks, ask, [0] * prompts, PAGES * PAGE).run(), 0
        except Failed as e:
            figures, status = {**(e.figures or {}), "failed": str(e)}, 1
        finally:
            stack.close()
    with os.fdopen(_out, "w") as out:
        json.dump(figures, out, indent=2)
    return status


if __name__ == "__main__":
    sys.exit(main())
