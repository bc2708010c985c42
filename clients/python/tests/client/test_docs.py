"""The snippets of docs/sglang.md, vllm.md and lmcache.md, pasted into a shell with a real rank; engines and pip are stand-ins that note
their words. With the engines themselves scripts/test-engines does it."""

import json
import logging
import os
import pathlib
import tempfile
import unittest

from rank import ROOT, Client, until

from engines import snippets

DOCS = ROOT / "docs"
CLASSES = {"sglang": "cascade_kv/sglang.py", "vllm": "cascade_kv/vllm.py", "lmcache": "cascade_kv/lmcache.py"}


def find(value, name):
    """What is under this name anywhere in an object."""
    if isinstance(value, dict):
        for k, v in value.items():
            if k == name:
                yield v
            yield from find(v, name)
    elif isinstance(value, list):
        for v in value:
            yield from find(v, name)


class Docs(unittest.TestCase):
    def setUp(self):
        logging.disable(logging.CRITICAL)
        self.addCleanup(logging.disable, logging.NOTSET)
        folder = tempfile.TemporaryDirectory(prefix="cascade-docs-")
        self.addCleanup(folder.cleanup)
        self.work = pathlib.Path(folder.name)
        self.program = os.environ.get("CASCADED", str(ROOT / "bin" / "cascaded"))

    def paste(self, page, command):
        """The JSON in the last words of the engine's command, and the rank's path, on which a client stores and finds."""
        with snippets.Paste(self.work, self.program) as paste:
            paste.record("pip")
            paste.record(command)
            env = {k: v for k, v in os.environ.items() if not k.startswith("CASCADE_")}
            shell = paste.start(snippets.of(DOCS / page, "sh")[: 2 if command == "sglang" else 1], env=env)
            self.assertEqual(shell.wait(60), 0, paste.said())
            self.assertEqual(paste.recorded("pip"), ["install", "./clients/python"])
            paste.stats()
            with Client(str(paste.socket)) as c:
                until(lambda: c.up, "the rank of the document answers")
                self.assertTrue(c.put("ns", "k", b"v"))
                self.assertEqual(c.get("ns", "k"), b"v")
            config = json.loads(paste.recorded(command)[-1])
            self.assertEqual(list(find(config, "socket")), [str(paste.socket)])
        return config

    def names_a_class(self, config, engine, class_name):
        self.assertEqual(list(find(config, "module_path")), [f"cascade_kv.{engine}"])
        self.assertIn(f"class {class_name}", (ROOT / "clients/python" / CLASSES[engine]).read_text())

    def test_sglang(self):
        config = self.paste("sglang.md", "sglang")
        self.names_a_class(config, "sglang", config["class_name"])

    def test_vllm(self):
        config = self.paste("vllm.md", "vllm")
        (tier,) = config["kv_connector_extra_config"]["secondary_tiers"]
        self.names_a_class(config, "vllm", tier["type"])

    def test_vllm_layer_by_layer(self):
        (text,) = snippets.of(DOCS / "vllm.md", "json")
        config = json.loads(text)
        self.assertEqual((config["kv_connector_module_path"], config["kv_load_failure_policy"]), ("cascade_kv.vllm", "recompute"))
        self.assertIn(f'if name != "{config["kv_connector"]}"', (ROOT / "clients" / "python" / CLASSES["vllm"]).read_text())

    def test_lmcache(self):
        config = self.paste("lmcache.md", "lmcache")
        self.names_a_class(config, "lmcache", config["class_name"])

    def test_lmcache_without_code(self):
        _, without = snippets.of(DOCS / "lmcache.md", "sh")
        with snippets.Paste(self.work, self.program) as paste:
            paste.places = {}
            paste.record("lmcache")
            self.assertEqual(paste.start([without], env=dict(os.environ)).wait(60), 0)
            self.assertEqual(json.loads(paste.recorded("lmcache")[-1])["type"], "resp")

    def test_every_snippet_is_run_somewhere(self):
        """Languages and numbers of snippets that the tests here and of scripts/test-engines know."""
        for page, want in {"sglang": {"sh": 2}, "vllm": {"sh": 1, "json": 1}, "lmcache": {"sh": 2, "yaml": 1}}.items():
            text = (DOCS / f"{page}.md").read_text()
            fences = [line[3:] for line in text.splitlines() if line.startswith("```")][::2]
            self.assertEqual({f: fences.count(f) for f in fences}, want, page)


if __name__ == "__main__":
    unittest.main()
