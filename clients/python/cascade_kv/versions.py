"""The one place that says with which engine versions the adapters were really run."""

from __future__ import annotations

import importlib.metadata
import warnings
from typing import Final

# Engine, as its package is called, to the versions that were run from end to end. Of vLLM 0.33 there is no build for CPU: its Python
# was run over the compiled parts of 0.32.
TESTED: Final[dict[str, tuple[str, ...]]] = {
    "sglang": ("0.5.23",),
    "vllm": ("0.32.0", "0.33.0"),
    "lmcache": ("0.5.6",),
}


def version_of(engine: str) -> str | None:
    """The version of the engine in this environment, or None."""
    try:
        return importlib.metadata.version(engine)
    except importlib.metadata.PackageNotFoundError:
        return None


def check(engine: str, installed: str | None = None) -> bool:
    """Whether this version of the engine was tested. If not, a warning names it and those that were; never an exception.

    Without installed the version is looked up. Local parts of a version ("+cpu") do not count.
    """
    version = installed if installed is not None else version_of(engine)
    tested = TESTED.get(engine, ())
    if version is not None and str(version).split("+", 1)[0] in tested:
        return True
    warnings.warn(
        f"cascade_kv was tested with {engine} {', '.join(tested) or '(no version)'}, not with {version or 'an unknown version'}: "
        "check that its answers equal those without the cache",
        RuntimeWarning,
        stacklevel=2,
    )
    return False
