"""Builds the optional C helper; everything else is in pyproject.toml. Without a C compiler the package is installed without it."""

from setuptools import Extension, setup

setup(
    ext_modules=[
        Extension(
            "cascade_kv._fast",
            ["cascade_kv/_fast.c", "cascade_kv/_hash.c", "cascade_kv/_holds.c", "cascade_kv/_ring.c", "cascade_kv/_table.c"],
            depends=["cascade_kv/_hash.h", "cascade_kv/_holds.h", "cascade_kv/_ring.h", "cascade_kv/_table.h"],
            extra_compile_args=["-O3"],
            optional=True,
        )
    ]
)
