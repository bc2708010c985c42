"""The README's example does what it says."""

import contextlib
import io
import re
import unittest

from rank import ROOT, OneRank


class Readme(OneRank):
    def test_example(self):
        (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "clients/python/README.md").read_text(), re.S)
        code, n = re.subn(r'Client\(f?".*?"\)', f'Client("{self.rank.socket}")', code)
        self.assertEqual(n, 1)
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            exec(compile(code, "README.md", "exec"), {})
        self.assertEqual(out.getvalue(), "[1 1]\n2\n[1 1]\nshm [0 0 0 0]\n")


if __name__ == "__main__":
    unittest.main()
