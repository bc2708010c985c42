"""docs/sglang.md, pasted into a shell, with what SGLang needs on a machine without an accelerator."""

import json

from .. import daemon, snippets
from ..daemon import check
from . import whole


def test(python, program, work, port):
    model = work / "model"
    model.mkdir()
    (model / "config.json").write_text(json.dumps(whole.MODEL))
    with snippets.Paste(work, program, {"MODEL": str(model)}) as paste:
        paste.pip_of(python.parent.parent)
        more = " ".join(map(str, [*whole.SMALL, "--host", "127.0.0.1", "--port", port]))
        paste.stand_in("sglang", f'exec {python.parent}/sglang "$@" {more}')
        server = paste.start(snippets.of(daemon.ROOT / "docs" / "sglang.md", "sh"), env=whole.environ())
        try:
            engine = whole.Client(f"http://127.0.0.1:{port}")
            daemon.ready(server, f"{engine.url}/health_generate", paste.log, seconds=whole.START_SECONDS, what="sglang serve of the document", patience=30)
            engine.ask(whole.prompts(1, 400)[0])
            names = paste.stored()
        finally:
            daemon.end(server)
    check("copied by the rank itself" in paste.log.read_text(errors="replace"), f"docs/sglang.md as it stands stores {names} pages of a prompt")
    return {"stored": names}
