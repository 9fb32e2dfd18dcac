"""Bundles: kernels compiled for many targets in one file, which launches without a compiler.

    from gluon_core.bundle import Bundle

    bundle = Bundle()
    bundle.add(softmax, signature={"x": "*fp32:16", "y": "*fp32:16", "n": "i32"},
             constexprs={"BLOCK": 1024}, target=["hopper", "gfx942"], num_warps=8)
    bundle.write("kernels.glb")

`gluon_runtime.open_bundle("kernels.glb")["softmax"][grid](x, y, n)` launches it, and so does
`softmax[grid](...)` under `GLUON_BUNDLE=kernels.glb`. The format is described in docs/bundles.md.
"""

import importlib as _importlib
import typing as _typing

if _typing.TYPE_CHECKING:
    from gluon_bundle.bundle import Bundle, Evidence
    from gluon_bundle.caches import export_cache, import_cache
    from gluon_bundle.recording import Recorded, Recording, record

__all__ = [
    "Bundle",
    "Evidence",
    "Recorded",
    "Recording",
    "export_cache",
    "import_cache",
    "record",
]

_MODULES = {
    "Bundle": "bundle",
    "Evidence": "bundle",
    "Recorded": "recording",
    "Recording": "recording",
    "export_cache": "caches",
    "import_cache": "caches",
    "record": "recording",
}


def __getattr__(name: str) -> _typing.Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(_importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
