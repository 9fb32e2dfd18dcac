"""The conditions of an argument: which values code takes for a parameter, and how well they fit.

Launches choose the code of the highest sum of scores. `c/choice.h` has the same record and gives the scores.
"""

from __future__ import annotations

import struct
from typing import Any, Mapping, NamedTuple, Optional

from gluon_runtime import native
from gluon_runtime.manifest import Parameter, Rules, TensorMap, Value

__all__ = ["CONSTANT_SCORE", "KINDS", "Condition", "condition", "map_kind"]

_ARGUMENT = struct.Struct("<6I8bqQqQQ48s")

# The kinds of values in C, `gb_kind`, and the score of one that code does not take.
KINDS = ("pointer", "integer", "unsigned", "real", "boolean", "constant", "left out", "descriptor")
_NEVER = -128
CONSTANT_SCORE = 4  # of an argument that is a constant of the code
_RAW, _WIDER = -3, -2  # scores of an address for a pointer, and of a type wider than the usual one
_ANY, _NONE = (-(2**1024), 2**1024), (1, 0)  # integers


class Condition(NamedTuple):
    """The arguments that code takes for a parameter, and the score of each: launches choose the code of the highest sum.

    Args:
        scores: by the kind of the argument, one of `KINDS`; the code takes no others.
        within: the least and the most of an integer or address.
        narrower: of integers that have a narrower type of their own, which cost two points.
        divisor: of integers and addresses.
        text: the element type of a pointer, or the type.
        small: the most bytes of storage behind a pointer.
    """

    scores: Mapping[str, int]
    within: tuple[int, int] = (0, 0)
    narrower: tuple[int, int] = (1, 0)
    divisor: int = 1
    text: str = ""
    small: int = 2**64 - 1

    def packed(  # noqa: PLR0913 - the fields of the record
        self,
        kind: int,
        code: int,
        name: int,
        text: int,
        words: int,
        encoding: Optional[TensorMap],
    ) -> bytes:
        """Return an `ArgumentRow` of `c/choice.h`."""
        scores = [self.scores.get(name, _NEVER) for name in KINDS]
        least, most = (-(2**63), 0) * 2, (2**63 - 1, 2**64 - 1) * 2
        limits = zip(least, (*self.within, *self.narrower), most)
        clamped = [max(low, min(number, high)) for low, number, high in limits]
        head = (name, kind, text, code, self.divisor, words)
        return _ARGUMENT.pack(
            *head, *scores, *clamped, self.small, map_kind(encoding) if encoding else b""
        )


def condition(parameter: Parameter, pattern: Value, rules: Rules) -> Condition:
    """Return the arguments that fit a value of a form. An integer may be an address or a float."""
    kind, annotated = pattern.type, parameter.type == pattern.type
    marks, divisor = pattern.divisible + pattern.small, 1
    if pattern.divisible:
        divisor = rules.divisibility
    if kind.startswith("*"):
        element = kind.removeprefix("*k").removeprefix("*")
        scores = {"pointer": marks, "integer": marks + _RAW, "unsigned": marks + _RAW}
        small = rules.small if pattern.small else 2**64 - 1
        return Condition(
            scores, (0, 2**64 - 1), _NONE, divisor, "u1" if element == "i1" else element, small
        )
    if kind[:2] in ("fp", "bf") or kind == "f32":
        scores = {"real": 0 if kind in ("fp32", "f32") else _WIDER}
        scores |= {"integer": 0, "unsigned": 0} if annotated else {}
        return Condition(scores, _ANY, text=kind)
    if kind in ("u1", "i1"):
        scores = {"boolean": 0, "integer": 0, "unsigned": 0} if parameter.type else {"boolean": 0}
        return Condition(scores, (0, 1), text=kind)
    bits = int(kind[1:]) if kind[:1] in "iu" and kind[1:].isdigit() else 0
    sign = 2 ** (bits - 1) if kind[:1] == "i" and bits else 0
    within = (-sign, 2**bits - 1 - sign) if bits else _NONE
    usual, narrower = [name for name, _, _ in rules.integers], _ANY
    if annotated or kind == usual[0]:
        narrower = _NONE
    elif kind in usual:
        narrower = rules.integers[usual.index(kind) - 1][1:]
    return Condition({"integer": marks, "unsigned": marks}, within, narrower, divisor, kind)


def map_kind(encoding: TensorMap, key: Any = None) -> bytes:
    """Return how maps of a descriptor are made, see `native.map_kind`."""
    head = (1, len(encoding.box), encoding.swizzle, encoding.element_type, encoding.element_bytes)
    return native.map_kind(key, *head, int(encoding.fp4_padded), box=encoding.box)
