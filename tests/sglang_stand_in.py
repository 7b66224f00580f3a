"""Lets the real SGLang be imported and run on a machine without a GPU.

Its compiled kernels need a driver, and torchvision another torch. A finder answers for both with
names that raise when they are called; the Triton kernels beside them run in Triton's interpreter.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import os
import sys
import types
import warnings
from collections.abc import Sequence
from typing import Any, ClassVar

STOOD_IN_FOR = ("sgl_kernel", "torchvision")
"""The compiled kernels, and what the engine reads pictures with: none fits the plain CPU torch."""


class _Missing:
    """Stands for anything of a package that is not there."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> _Missing:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Missing(f"{self._name}.{name}")

    def __call__(self, *_: object, **__: object) -> None:
        raise RuntimeError(f"{self._name} is a stand-in without code")


class _StandIn(types.ModuleType):
    __path__: ClassVar[list[str]] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Missing(f"{self.__name__}.{name}")


class KernelFinder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds the package of compiled kernels, and anything in it."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: object = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname.partition(".")[0] not in STOOD_IN_FOR:
            return None
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return _StandIn(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        return


def import_worker() -> Any:
    """Return the engine's module of the NGRAM worker."""
    from transformers.utils import is_torchvision_available

    os.environ["TRITON_INTERPRET"] = "1"
    is_torchvision_available()  # remembered: transformers must not take the stand-in for it
    if not any(isinstance(finder, KernelFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, KernelFinder())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import sglang.srt.speculative.ngram_worker as worker

    return worker
