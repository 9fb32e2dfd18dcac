"""An example file with the imports of Triton's own Gluon: the same source, other import lines."""

from __future__ import annotations

import importlib.util
import linecache
import sys
import tempfile
from pathlib import Path
from types import ModuleType

import triton

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"

# Ours -> upstream's. Nothing else of a file changes.
IMPORTS = {
    "import gluon_core as gluon\n": "from triton.experimental import gluon\n",
    "from gluon_core import language as gl\n": (
        "from triton.experimental.gluon import language as gl\n"
    ),
    "from gluon_core.language.": "from triton.experimental.gluon.language.",
    "from gluon_core.nvidia.": "from triton.experimental.gluon.nvidia.",
    "from gluon_core.amd.": "from triton.experimental.gluon.amd.",
}
if tuple(map(int, triton.__version__.split(".")[:2])) < (3, 8):  # where the op had its older name
    IMPORTS[" import async_load, "] = " import async_copy_global_to_shared as async_load, "


def to_upstream(source: str) -> str:
    """`source` with the import lines of Triton's own Gluon."""
    for ours, theirs in IMPORTS.items():
        source = source.replace(ours, theirs)
    return source


def to_ours(source: str) -> str:
    """The inverse of `to_upstream`."""
    for ours, theirs in IMPORTS.items():
        source = source.replace(theirs, ours)
    return source


def load(name: str, source: str) -> ModuleType:
    """The module that `source` makes; kernels are compiled from its text, so it lives in a file."""
    folder = Path(tempfile.mkdtemp(prefix="gluon-upstream-"))
    path = folder / f"{name}.py"
    path.write_text(source)
    linecache.checkcache(str(path))
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def upstream_example(name: str) -> ModuleType:
    """The example file `name` on Triton's own Gluon."""
    return load(f"upstream_{name}", to_upstream((EXAMPLES / f"{name}.py").read_text()))


def our_example(name: str) -> ModuleType:
    """The example file `name` as it stands."""
    return load(f"ours_{name}", (EXAMPLES / f"{name}.py").read_text())
