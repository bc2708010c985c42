"""The environment of LMCache."""

import subprocess

from engines import environment

VERSION = "0.5.6"


def home():
    return environment.make("lmcache", VERSION, size="6 GB", works=works)


def works(home):
    command = home / "bin" / "lmcache"
    return command.exists() and subprocess.run([command, "bench", "l2", "--help"], capture_output=True).returncode == 0
