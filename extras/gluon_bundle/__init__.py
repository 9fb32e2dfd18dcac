"""Bundles: kernels compiled for many targets in one file, which launches without a compiler.

    from gluon_core.bundle import Bundle

    made = Bundle()
    made.add(softmax, signature={"x": "*fp32:16", "y": "*fp32:16", "n": "i32"},
             constexprs={"BLOCK": 1024}, target=["hopper", "gfx942"], num_warps=8)
    made.write("kernels.glb")

`gluon_runtime.open_bundle("kernels.glb")["softmax"][grid](x, y, n)` launches it, and so does
`softmax[grid](...)` under `GLUON_BUNDLE=kernels.glb`. The format is described in docs/bundles.md.
"""

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
