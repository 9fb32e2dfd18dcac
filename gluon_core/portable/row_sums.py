"""Reductions of rows that a cluster's blocks share, with one exchange between the blocks.

numerator, highest, total = gl.portable.cluster_softmax(x)      # x [rows, columns], float32
result = numerator * (1 / total)[:, None]                        # softmax
normal = highest + gl.log(total)                                 # of cross entropy
"""

from __future__ import annotations

from typing import Any

from gluon_core._triton import constexpr, tensor, tl, tl_core, tl_math, unwrap
from gluon_core.errors import DtypeError, ShapeError
from gluon_core.layouts import SliceLayout
from gluon_core.plugin.ops import builtin, code_generator, semantic_layer, traced
from gluon_core.semantic import layer
from gluon_core.semantic.base import is_placeholder, shape_of

__all__ = ["cluster_softmax"]

_LOG2E = constexpr(1.4426950408889634)
_LOWEST = constexpr(-3.3e38)  # a maximum that can be subtracted
_max, _sum = tl.max, tl.sum


@traced
def cluster_softmax(x: "tensor") -> "tuple[tensor, tensor, tensor]":
    """Return the exponentials of each row's elements below its maximum, that maximum, and their sum.

    Where the blocks of a cluster share rows, each has a maximum and a sum of its own part, and those
    are exchanged together, once.

    Args:
        x: float32 tensor [rows, columns]; missing elements are -inf.

    Returns:
        `exp(x - maximum)`, a tensor like `x`; maximum and sum, [rows], in the SliceLayout of its layout.

    Raises:
        CapabilityError: blocks of a cluster share rows, with a Triton older than 3.8.
        DtypeError, ShapeError: no such tensor.
    """
    if _sharing(x) == 1:
        highest = _max(x, 1)
        numerator = _exp2((x - highest[:, None]) * _LOG2E)
        total = _sum(numerator, 1)
    else:
        parts = _in_parts(x)
        own = _larger(_max(parts, 2), _LOWEST)
        below = _exp2((parts - own[:, :, None]) * _LOG2E)
        most, of_all = _exchanged(own, _sum(below, 2))
        below = below * _exp2((own - most[:, None]) * _LOG2E)[:, :, None]
        numerator = _as_before(below, x)
        highest = _of_rows(most, x)
        total = _of_rows(of_all, x)
    return numerator, highest, total


@traced
def _merged(m0: "tensor", t0: "tensor", m1: "tensor", t1: "tensor") -> "tuple[tensor, tensor]":
    most = _larger(m0, m1)
    total = t0 * _exp2((m0 - most) * _LOG2E) + t1 * _exp2((m1 - most) * _LOG2E)
    return most, total


@builtin
def _sharing(x: tensor) -> constexpr:
    """Return the number of blocks of the cluster that share a row, each a run of its columns."""
    semantic = layer()
    held = semantic.require_distributed(x, "x")
    if held.dtype != tl.float32:
        raise DtypeError("exponentials take float32", argument="x", got=held.dtype)
    shape, layout = shape_of(held), held.type.layout
    if len(shape) != 2:
        raise ShapeError("not rows", argument="x", expected="[rows, columns]", got=shape)
    if semantic.num_ctas == 1 or is_placeholder(layout):
        return constexpr(1)
    steps = [basis[1] for basis in layout.to_linear(shape).bases["block"] if basis[1]]
    if steps:
        semantic.require_reductions_of_blocks(
            "a reduction of rows that blocks of a cluster share",
            "Give each block rows of its own, num_ctas=1, and walk over those that are too long.",
        )
    blocks = 1 << len(steps)
    runs = {shape[1] // blocks << i for i in range(len(steps))}
    return constexpr(blocks if set(steps) == runs else 1)  # else the compiler exchanges twice


@builtin
def _in_parts(x: tensor) -> tensor:
    rows, columns = shape_of(x)
    count = int(unwrap(_sharing(x)))
    return semantic_layer().reshape(x, [rows, count, columns // count])


@builtin
def _as_before(value: tensor, x: tensor) -> tensor:
    semantic = semantic_layer()
    return semantic.convert_layout(semantic.reshape(value, shape_of(x)), x.type.layout)


@builtin
def _of_rows(value: tensor, x: tensor) -> tensor:
    return semantic_layer().convert_layout(value, SliceLayout(1, x.type.layout))


@builtin
def _exchanged(most: tensor, total: tensor) -> Any:
    """Return the maximum of all blocks, and the sum below it."""
    return tl_core.reduce(
        (most, total), 1, _merged, _semantic=semantic_layer(), _generator=code_generator()
    )


@builtin
def _larger(x: tensor, y: Any) -> tensor:
    semantic = semantic_layer()
    return semantic.maximum(semantic.to_tensor(x), semantic.to_tensor(y), tl.PropagateNan.NONE)


@builtin
def _exp2(x: tensor) -> tensor:
    return tl_math.exp2(x, _semantic=semantic_layer())
