"""docs/vllm.md, pasted into a shell, with what the page says for a machine without a GPU."""

import json
import urllib.request

from engines import daemon, snippets
from engines.daemon import check
from engines.vllm import engine, install

# vLLM's file and the rank's arena must fit into a small machine's memory.
CPU = '"spec_name": "CpuPlatformTieringSpec", "spec_module_path": "cascade_kv.vllm"'


def test(work, program):
    home, port = install.home(), daemon.free_port()
    places = {"MODEL": str(install.model(home)), '"spec_name": "TieringOffloadingSpec"': CPU, "8589934592": str(128 << 20)}
    before = engine.regions()
    with snippets.Paste(work, program, places) as paste:
        paste.pip_of(home)
        paste.stand_in("vllm", f'exec {home}/bin/vllm "$@" --host 127.0.0.1 --port {port} --served-model-name m --enforce-eager '
                               "--max-model-len 4096 --max-num-seqs 4 --num-gpu-blocks-override 48")
        env = engine.env()
        env["VLLM_ENABLE_V1_MULTIPROCESSING"] = "1"
        server = paste.start(snippets.of(daemon.ROOT / "docs" / "vllm.md", "sh"), env=env)
        try:
            daemon.ready(server, f"http://127.0.0.1:{port}/health", paste.log, seconds=engine.START_SECONDS, what="vllm serve of the document")
            complete(port, list(range(10, 410)))
            names = paste.stored()
        finally:
            daemon.end(server)
            for left in engine.regions() - before:
                left.unlink(missing_ok=True)
    check("CascadeTier: rank at" in paste.log.read_text(errors="replace"), f"docs/vllm.md as it stands stores {names} chunks of a prompt")
    return {"stored": names}


def complete(port, prompt):
    body = json.dumps({"model": "m", "prompt": prompt, "max_tokens": 4, "temperature": 0}).encode()
    request = urllib.request.Request(f"http://127.0.0.1:{port}/v1/completions", body, {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=engine.ANSWER_SECONDS) as answer:
        return json.load(answer)
