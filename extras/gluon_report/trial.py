"""Define the smallest kernel, which `gluon doctor` compiles and runs."""

from __future__ import annotations

from typing import Any

import gluon_core as gluon
from gluon_core import _triton
from gluon_core import language as gl
from gluon_core.compiler import compile

__all__ = ["one", "source"]


@gluon.jit
def one(out):  # type: ignore[no-untyped-def]  # an annotation would be read as a global
    gl.store(out, 1)


def source(architecture: Any) -> Any:
    """`one`, compiled for an architecture, and not taken from the cache."""
    target = f"{architecture.backend}:{architecture.name}"
    knobs = _triton.knobs.compilation
    with knobs.scope():
        knobs.always_compile = True
        return compile(one, target, signature={"out": "*i32"})
