"""The layouts that reshapes, joins and splits give their results."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from gluon_core.layouts import DistributedLayout, infer

__all__ = ["Inference"]


@dataclass(frozen=True)
class Inference:
    """Give the layout of a result by that of the operand; two of them are equal where their results are.

    Attributes:
        op: "reshape", "join" or "split". before, after: shapes of the operand and of the result.
    """

    op: str
    before: tuple[int, ...]
    after: tuple[int, ...]

    def __call__(self, layout: DistributedLayout) -> DistributedLayout:
        return _inferred(self, layout)


@lru_cache(maxsize=1 << 14)
def _inferred(inference: Inference, layout: DistributedLayout) -> DistributedLayout:
    before, after = inference.before, inference.after
    if inference.op == "reshape":
        result: DistributedLayout = infer.reshape(layout, before, after)
    elif inference.op == "join":
        result = infer.join(layout, before)
    else:
        result = infer.split(layout, before)
    return result
