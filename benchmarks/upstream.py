"""A file of kernels with the imports of Triton's own Gluon: the same source, other import lines."""

from __future__ import annotations

import linecache
import re
import sys
import tempfile
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import ModuleType
from typing import Any

import triton

ROOT = Path(__file__).resolve().parents[1]
CASES = ROOT / "tests" / "kernels" / "cases"
KERNELS = re.compile(r"^from (gluon_kernels\.[\w.]+) import (?:\([^)]*\)|.*)\n", re.MULTILINE)

# Ours -> upstream's. Nothing else of a file changes: host code imports the names of `gluon_core` alone
# that it needs.
IMPORTS = {
    "import gluon_core as gluon\n": "from triton.experimental import gluon\n",
    "from gluon_core import language as gl\n": (
        "from triton.experimental.gluon import language as gl\n"
    ),
    "from gluon_core.language.": "from triton.experimental.gluon.language.",
    "from gluon_core.nvidia.": "from triton.experimental.gluon.nvidia.",
    "from gluon_core.amd.": "from triton.experimental.gluon.amd.",
}
_VERSION = tuple(map(int, triton.__version__.split(".")[:2]))
if _VERSION < (3, 8):  # where the ops had their older names
    IMPORTS[" import async_load, "] = " import async_copy_global_to_shared as async_load, "
    IMPORTS[" async_load, async_store, "] = (
        " async_load, async_copy_shared_to_global as async_store, "
    )


def to_upstream(source: str) -> str:
    """`source` with the import lines of Triton's own Gluon."""
    for ours, theirs in IMPORTS.items():
        source = source.replace(ours, theirs)
    return source


def to_ours(source: str) -> str:
    """Return the inverse of `to_upstream`."""
    for ours, theirs in IMPORTS.items():
        source = source.replace(theirs, ours)
    return source


# Calls of kernels to `gl.portable`, and one spelling of WMMA's layout for every Triton, made with the
# layout classes of whichever package the file imports.
_HELPERS = """
@gluon.constexpr_function
def portable_blocked_layout(shape, dtype):
    from gluon_core.portable.tiles import blocked_layout

    layout = blocked_layout(shape, dtype.primitive_bitwidth, NUM_WARPS, WARP_SIZE)
    return gl.BlockedLayout(
        layout.size_per_thread, layout.threads_per_warp, layout.warps_per_cta, layout.order
    )


@gluon.constexpr_function
def wmma_layout(version, transposed, warps_per_cta, instr_shape=None):
    from gluon_amd.layouts import AMDWMMALayout

    layout = AMDWMMALayout(
        version, transposed, warps_per_cta=warps_per_cta, instr_shape=instr_shape
    )
    spelling = WMMA_SPELLING
    return gl.amd.AMDWMMALayout(version, transposed, instr_shape=layout.instr_shape, **spelling)
"""
_WMMA_SPELLING = (
    '{"warps_per_cta": warps_per_cta}',
    '{"warp_bases": layout.warp_bases, "reg_bases": layout.reg_bases}',
)


def without_our_own(source: str, target: Any, num_warps: int) -> str:
    """`source` for one target, with `gl.target` and `gl.portable`, which upstream does not have,
    replaced by their answers; for either package."""
    source = re.sub(r"gl\.target\.require\(.*\)", "pass", source)
    source = re.sub(
        r"gl\.target\.has\(\"([\w.]+)\"\)", lambda match: str(target.has(match[1])), source
    )
    source = source.replace("gl.portable.blocked_layout(", "portable_blocked_layout(")
    source = source.replace("gl.amd.AMDWMMALayout(", "wmma_layout(")
    if _VERSION == (3, 7):  # whose TDM takes predicates of 32 bits only
        source = re.sub(r"pred=([^),]+)\)", r"pred=(\1).to(gl.int32))", source)
    helpers = _HELPERS.replace("NUM_WARPS", str(num_warps))
    helpers = helpers.replace("WARP_SIZE", str(target.warp_size))
    helpers = helpers.replace("WMMA_SPELLING", _WMMA_SPELLING[_VERSION >= (3, 7)])
    head, mark, rest = source.partition("\n\n\n")
    return f"{head}\n\n{helpers}{mark}{rest}"


def load(name: str, source: str) -> ModuleType:
    """Return the module that `source` makes; kernels are compiled from its text, so it lives in a file."""
    folder = Path(tempfile.mkdtemp(prefix="gluon-upstream-"))
    path = folder / f"{name}.py"
    path.write_text(source)
    linecache.checkcache(str(path))
    return load_file(name, path)


def load_file(name: str, path: Path) -> ModuleType:
    """Return the file as the module `name`."""
    loader = SourceFileLoader(name, str(path))
    spec = spec_from_loader(name, loader)
    assert spec is not None
    module = module_from_spec(spec)
    sys.modules[name] = module
    loader.exec_module(module)
    return module


def source_of(name: str) -> str:
    """Return the text of the cases' file `name`, with its kernels in place of their import."""

    def text_of(match: re.Match[str]) -> str:
        return (ROOT / "kernels" / f"{match[1].replace('.', '/')}.py").read_text() + "\n\n"

    return KERNELS.sub(text_of, (CASES / f"{name}.py").read_text())


def upstream_example(name: str) -> ModuleType:
    """Return the cases' file `name` on Triton's own Gluon, which lacks our building blocks."""
    return load(f"upstream_{name}", to_upstream(source_of(name)))


def our_example(name: str) -> ModuleType:
    """Return the cases' file `name` unchanged."""
    return load(f"ours_{name}", source_of(name))
