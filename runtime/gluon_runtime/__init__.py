"""The launch engine of Gluon kernels, and bundles of compiled ones: no compiler, no Triton, no Gluon Core.

    from gluon_runtime import open_bundle

    kernels = open_bundle("kernels.glb")
    kernels["matmul"][grid](a, b, c, m, n, k)

Arguments are torch tensors, anything with DLPack, `Pointer(address)`,
`TensorDescriptor(tensor)`, and numbers. The format is described in docs/bundles.md of Gluon Core.
"""

from __future__ import annotations

import importlib
from pathlib import Path as _Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gluon_runtime import errors as errors
    from gluon_runtime.bundle import Bundle, BundledKernel, open_bundle
    from gluon_runtime.driver import Driver
    from gluon_runtime.errors import BundleError
    from gluon_runtime.values import Pointer, TensorDescriptor

__version__ = "0.1.0"

__all__ = [
    "Bundle",
    "BundleError",
    "BundledKernel",
    "Driver",
    "Pointer",
    "TensorDescriptor",
    "__version__",
    "c_sources",
    "errors",
    "open_bundle",
]

_HOMES = {
    "Bundle": "bundle",
    "BundleError": "errors",
    "BundledKernel": "bundle",
    "Driver": "driver",
    "Pointer": "values",
    "TensorDescriptor": "values",
    "open_bundle": "bundle",
}


def __getattr__(name: str) -> Any:
    """Import the reader of bundles on first use: a launch of the just-in-time compiler does without."""
    if name == "errors":
        return importlib.import_module("gluon_runtime.errors")
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"gluon_runtime.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def c_sources() -> _Path:
    """Return the folder with `gluon_bundle.h` and `gluon_bundle.c`, the loader for C and C++."""
    here = _Path(__file__).parent
    installed = here / "c"
    return installed if installed.is_dir() else here.parent / "c"
