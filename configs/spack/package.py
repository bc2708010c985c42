# Spack (1.0 and newer): packages/cascade_kv/package.py of a repository of the site.
import os

from spack_repo.builtin.build_systems.generic import Package

from spack.package import *


class CascadeKv(Package):
    """CASCADE, a cache of KV blocks for LLM inference: a daemon for each node of a job, the
    operator's tool and the Python client."""

    # Placeholders: there is no public site and no public repository. CASCADE_KV_GIT names a
    # clone, by a path or an address that git takes.
    homepage = "https://example.org/cascade-kv"
    git = os.environ.get("CASCADE_KV_GIT", "file:///usr/src/cascade-kv")

    version("main", branch="main")

    depends_on("go@1.26:", type="build")

    def setup_build_environment(self, env):
        env.set("CGO_ENABLED", "0")
        env.set("GOTOOLCHAIN", "local")
        env.set("GOMODCACHE", join_path(self.stage.path, "modules"))
        env.append_flags("GOFLAGS", "-modcacherw")

    def install(self, spec, prefix):
        go = which("go", required=True)
        programs = ["cascaded", "cascade", "cascade-bench", "cascade-gpu"]
        mkdirp(prefix.bin)
        go("build", "-trimpath", "-o", prefix.bin + "/", *["./cmd/" + p for p in programs])
        pages = join_path(self.stage.path, "manual")
        for p, samples in [("cascade", []), ("cascade-bench", []), ("cascade-gpu", []), ("cascaded", ["configs/cascade.toml"])]:
            go("run", "-tags", "manual", "./cmd/" + p, pages, *samples)
        for page in find(pages, "*.[158]"):
            folder = join_path(prefix.share.man, "man" + page[-1])
            mkdirp(folder)
            install(page, folder)
        completions = join_path(prefix.share, "bash-completion", "completions")
        install_tree(join_path(pages, "bash"), completions)
        install_tree(join_path(pages, "zsh"), join_path(prefix.share, "zsh", "site-functions"))
        install_tree(join_path(pages, "fish"), join_path(prefix.share, "fish", "vendor_completions.d"))
        install_tree("clients/python/cascade_kv", join_path(prefix.share, "cascade-kv", "python", "cascade_kv"))
        install_tree("configs", join_path(prefix.share, "doc", "cascade-kv", "configs"))

    def setup_run_environment(self, env):
        env.prepend_path("PYTHONPATH", join_path(self.prefix.share, "cascade-kv", "python"))
