"""SGLang on a rank: the whole engine (whole.py), and its cache stack alone, which shows every byte (stack.py, checks.py).

cpu/ is what lets SGLang run without an accelerator. pools.py, stack.py and checks.py run with the Python of SGLang's environment.
"""
