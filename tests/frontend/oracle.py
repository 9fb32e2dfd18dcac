"""One kernel source, twice: with the imports of Triton's own Gluon and with ours.

`compare(source)` parses both on the installed Triton and asserts that the modules are the same
text, function names included once their prefix is replaced. A source defines `kernel`, and may
define `ARGS`, `KWARGS` and `TARGET`; `gluon`, `gl`, `ptr` and `GPUTarget` are there.
"""

from __future__ import annotations

import functools
import importlib.util
import itertools
import linecache
import os
import sys
import tempfile
import warnings
from types import ModuleType
from typing import Any

from gluon_core import testing
from gluon_core.errors import KernelWarning

UPSTREAM = """\
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
"""
OURS = """\
import gluon_core as gluon
from gluon_core import language as gl
"""
COMMON = """\
import triton, triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.runtime.jit import MockTensor as ptr
aggregate = getattr(gluon, "aggregate", None) or triton.language.core._aggregate
TARGET, ARGS, KWARGS = GPUTarget("cuda", 90, 32), (), {}
"""
_PREFIXES = {"triton.experimental.gluon": "gluon_core"}
_number = itertools.count()


@functools.lru_cache(maxsize=None)
def _folder() -> str:
    return tempfile.mkdtemp(prefix="gluon-oracle-")


def load(source: str, imports: str) -> ModuleType:
    """The module that `source` makes under these imports; always called `kernels`."""
    # A name for each process, so that no child is given the bytecode of another's source.
    path = os.path.join(_folder(), f"kernels_{os.getpid()}_{next(_number)}.py")
    with open(path, "w", encoding="utf-8") as file:
        file.write(imports + COMMON + source)
    linecache.checkcache(path)
    spec = importlib.util.spec_from_file_location("kernels", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules["kernels"] = module
    try:
        spec.loader.exec_module(module)
    finally:
        del sys.modules["kernels"]
    return module


def renamed(text: str) -> str:
    """Upstream's text with the names that ours has in their place."""
    for theirs, ours in _PREFIXES.items():
        text = text.replace(theirs, ours)
    return text


def upstream(source: str, **overrides: Any) -> Any:
    """Return the module that Triton's own Gluon makes of `source`."""
    from triton._filecheck import run_parser

    module = load(source, UPSTREAM)
    target = overrides.get("target", module.TARGET)
    return run_parser(module.kernel, module.ARGS, module.KWARGS, target)


def ours(source: str, **overrides: Any) -> Any:
    """Return our module of `source`; a `KernelWarning` on the way is one, also where warnings are errors."""
    module = load(source, OURS)
    target = overrides.get("target", module.TARGET)
    with warnings.catch_warnings():
        warnings.simplefilter("always", KernelWarning)
        return testing.run_parser(module.kernel, module.ARGS, module.KWARGS, target)


def compare(source: str, raw: bool = True, **overrides: Any) -> None:
    """Assert that both make the same module.

    Args:
        raw: compare the modules as they are traced, before any pass; else in normal form.
    """
    assert_same(upstream(source, **overrides), ours(source, **overrides), raw)


def assert_same(theirs: Any, mine: Any, raw: bool = True) -> None:
    """Assert that two modules are the same text."""
    if raw:
        assert mine.str_nodebug() == renamed(theirs.str_nodebug())
    else:
        assert testing.normalise(mine) == renamed(testing.normalise(theirs))
