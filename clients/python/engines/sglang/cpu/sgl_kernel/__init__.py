"""Stands in for the package sgl_kernel, whose wheels need CUDA's driver library.

Every name and submodule can be imported; calling one raises. sgl_kernel.scalar_type, which is data types and no kernels, is the
real one.
"""

import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
import types

__version__ = "0.4.10"
__path__ = []


def _stub(name):
    def absent(*_, **__):
        raise NotImplementedError(f"sgl_kernel.{name} was called, and there is no accelerator")

    absent.__name__ = name
    return absent


class _Module(types.ModuleType):
    __path__ = []

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return _stub(name)


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path, target=None):
        if not name.startswith("sgl_kernel."):
            return None
        if name == "sgl_kernel.scalar_type":
            for folder in sys.path:
                file = os.path.join(folder, "sgl_kernel", "scalar_type.py")
                if os.path.isfile(file):
                    return importlib.util.spec_from_file_location(name, file)
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec):
        return _Module(spec.name)

    def exec_module(self, module):
        pass


sys.meta_path.insert(0, _Finder())


def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)
    return _stub(name)
