"""Environments of real engines: made once for each version, outside the clone, and kept.

An environment is a virtual environment under ${XDG_CACHE_HOME:-~/.cache}/cascade/NAME-VERSION. It is complete when its
stamp, the file `complete`, says that it was made of what is asked for now.
"""

import fcntl
import os
import pathlib
import shutil
import subprocess
import sys

from engines import say

CLIENT_HELPER = pathlib.Path(__file__).resolve().parents[3] / "scripts" / "client-helper"


class Missing(Exception):
    """Something that this machine would need."""


def folder():
    return pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "cascade"


def make(name, version, requirements=None, **how):
    """The folder of the environment, installed first if it is not complete, with the C helper of our client built for it."""
    home = _made(name, version, requirements, **how)
    subprocess.run([CLIENT_HELPER, home / "bin" / "python"], check=True, stdout=sys.stderr, stdin=subprocess.DEVNULL)
    return home


def _made(name, version, requirements, *, size="several GB", works=None):
    """requirements: what pip installs, NAME==VERSION by default. works(home): false if what is installed is of no use; it is
    asked once, before the stamp is set, and of an environment that has everything but a stamp.
    """
    requirements = [f"{name}=={version}"] if requirements is None else list(requirements)
    home = folder() / f"{name}-{version}"
    home.parent.mkdir(parents=True, exist_ok=True)
    stamp = home / "complete"
    if stamp.exists():
        return home
    # A virtual environment knows its own path, so it is made in place; the stamp makes that safe, and the lock keeps two runs apart.
    with home.with_name(home.name + ".lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        if stamp.exists():
            return home
        if not (works and home.exists() and works(home)):
            install(home, requirements, size)
            if works and not works(home):
                raise Missing(f"{home.name} is installed in {home} and does not run")
        stamp.touch()
    return home


def install(home, requirements, size):
    shutil.rmtree(home, ignore_errors=True)
    say(f"installing {' '.join(requirements) or home.name} in {home}: minutes and {size}")
    steps = [[sys.executable, "-m", "venv", home]]
    if requirements:
        steps.append([home / "bin" / "pip", "install", "--quiet", *requirements])
    for step in steps:
        if subprocess.run([str(word) for word in step], stdout=sys.stderr, stdin=subprocess.DEVNULL).returncode != 0:
            raise Missing(f"{home.name} cannot be installed: {' '.join(map(str, step))} failed")
