"""Which checkpoint a model is, where its name does not tell."""

from __future__ import annotations

import hashlib
import pathlib


def fingerprint(model_path: str) -> str:
    """A fingerprint of the checkpoint in a folder, wherever the folder is; "" if the model is no local folder.

    Two checkpoints that have one name must not exchange blocks. Of each file of weights its name, its size and
    16 samples of 4 KiB count: less than a second for any model.
    """
    folder = pathlib.Path(model_path)
    if not folder.is_dir():
        return ""
    digest = hashlib.sha256()
    for file in sorted(folder.iterdir()):
        if file.name == "config.json":
            digest.update(file.read_bytes())
        elif file.suffix in (".safetensors", ".bin", ".gguf", ".pt", ".pth"):
            size = file.stat().st_size
            digest.update(f"{file.name} {size}\n".encode())
            with file.open("rb") as f:
                for i in range(16):
                    f.seek(size * i // 16)
                    digest.update(f.read(4096))
    return digest.hexdigest()[:32]
