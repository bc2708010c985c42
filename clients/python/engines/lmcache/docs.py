"""docs/lmcache.md: the servers of its snippets, pasted into a shell, and its configuration file, read by LMCache."""

import types

from engines import daemon, snippets
from engines.daemon import check
from engines.lmcache import install
from engines.lmcache.server import START_SECONDS, Server
from engines.rank import Rank

PAGE = daemon.ROOT / "docs" / "lmcache.md"
SHAPE = "(2,256,16,8,128):bfloat16:2"
SMALL = {"--l1-size-gb 8": "--l1-size-gb 1"}
READ = "import sys; from lmcache.v1.config import LMCacheEngineConfig as C; c = C.from_file(sys.argv[1]); print(c.remote_url, c.remote_serde, c.chunk_size, c.local_cpu)"


def test(work, program):
    plugin, resp = snippets.of(PAGE, "sh")
    with snippets.Paste(work, program) as paste:
        paste.places.update({**SMALL, "--shm-name lmcache": f"--shm-name {work.name}"})
        paste.pip_of(install.home())
        names = pasted(paste, plugin, work)
    check("L1 shared with the rank" in paste.log.read_text(errors="replace"), f"docs/lmcache.md, plugin, as it stands stores {names} chunks")
    check(without_code(work / "without-code", program, resp) > 0, "docs/lmcache.md, resp, as it stands stores chunks")
    file = work / "lmcache.yaml"
    file.write_text(snippets.of(PAGE, "yaml")[0])
    read = daemon.run([install.home() / "bin" / "python", "-c", READ, file], timeout=300, what="LMCache's configuration", env=daemon.engine_env()).split()
    check(read[-4:] == ["unix:///tmp/cascade-1000/rank0.sock", "naive", "256", "False"], "docs/lmcache.md, in process: LMCache reads it as it is meant")
    return {"stored": names}


def without_code(work, program, snippet):
    work.mkdir()
    port = daemon.free_port()
    with Rank(work, 256 << 20, program=program, port=port) as rank, snippets.Paste(work, program) as paste:
        paste.places, paste.socket = {**SMALL, "7379": str(port)}, rank.path
        return pasted(paste, snippet, work)


def pasted(paste, snippet, work):
    """Runs a server of the document, and LMCache's benchmark on it. How many chunks the rank has then."""
    server = Server(types.SimpleNamespace(path=paste.socket), work, "pasted", SHAPE, 1)
    paste.stand_in("lmcache", f'exec {server.command} "$@" --host 127.0.0.1 --port {server.port} --http-host 127.0.0.1 --http-port {server.http} '
                               "--supported-transfer-mode auto")  # else it serves engines on a GPU only
    child = paste.start([snippet], env=daemon.engine_env())
    try:
        daemon.ready(child, f"http://127.0.0.1:{server.http}/healthcheck", paste.log, seconds=START_SECONDS, what="lmcache server of the document")
        server.ask()
        return paste.stored()
    finally:
        daemon.end(child)
