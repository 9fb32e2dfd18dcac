"""Launches bundles of compiled Gluon kernels: no compiler, no Triton, no Gluon Core.

    from gluon_runtime import open_bundle

    kernels = open_bundle("kernels.glb")
    kernels["matmul"][grid](a, b, c, m, n, k)

Arguments are torch tensors, anything with `__cuda_array_interface__` or DLPack, `Pointer(address)`,
`TensorDescriptor(tensor)`, and numbers. The format is described in docs/bundles.md of Gluon Core.
"""

from pathlib import Path as _Path

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


def c_sources() -> _Path:
    """The folder with `gluon_bundle.h` and `gluon_bundle.c`, the loader for C and C++."""
    here = _Path(__file__).parent
    installed = here / "c"
    return installed if installed.is_dir() else here.parent / "c"
