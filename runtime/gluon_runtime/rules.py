"""The rules of specialization: which facts about an argument choose the compiled code.

A table, `RULES`, and the functions that read it. The just-in-time compiler describes arguments by it, `c/calls.h` gets
it from `calls`, and a bundle carries a copy that its loaders, `select` and `c/gluon_bundle.c`, read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Mapping, NamedTuple, Optional

__all__ = [
    "ABSENT",
    "ALIGN",
    "CONSTANT",
    "CONSTANT_SCORE",
    "Condition",
    "PLAIN",
    "Parameter",
    "RULES",
    "SPECIALIZE",
    "WIDTH",
    "Rules",
    "plain_kind",
    "storage_size",
]

# The choice of the code depends, at one parameter, on these; the C engine and bundles have the same bits.
CONSTANT = 1  # the value is compiled in
SPECIALIZE = 2  # whether the value is one of `Rules.constants`, and ALIGN
ALIGN = 4  # whether it is divisible by `Rules.divisibility`
WIDTH = 8  # how many bits an integer needs: forms of a bundle may take any width


class _Absent:
    def __repr__(self) -> str:
        return "nothing"


ABSENT: Any = _Absent()  # the value of a parameter that a call leaves out


class Parameter(NamedTuple):
    """One parameter of a kernel.

    Args:
        name: of it.
        kind: `plain`, `keyword` (by name only) or `variadic` (`*name`).
        default: its default, or `ABSENT`.
        flags: the facts that the choice of the code depends on, see above.
    """

    name: str
    kind: str
    default: Any
    flags: int


CONSTANT_SCORE = 4  # of an argument that is a constant of the code
_ANY, _NONE = (-(2**1024), 2**1024), (1, 0)  # integers
_RAW, _WIDER = -3, -2  # scores of an address for a pointer, and of a type wider than the usual one


class Condition(NamedTuple):
    """The arguments that code takes for a parameter, and the score of each: launches choose the code of the highest sum.

    Args:
        scores: by the kind of the argument: `pointer`, `int`, `float` or `bool`; the code takes no others.
        within: the least and the most of an integer or address.
        narrower: of integers that have a narrower type of their own, which cost two points.
        divisor: of integers and addresses.
        element: the element type of a pointer.
        small: the most bytes of storage behind a pointer; None for any.
    """

    scores: Mapping[str, int]
    within: tuple[int, int]
    narrower: tuple[int, int]
    divisor: int = 1
    element: str = ""
    small: Optional[int] = None

    def score(
        self, kind: str, value: Any, dtype: Optional[str], size: Optional[int]
    ) -> Optional[int]:
        """Return the score of an argument; None where the code does not take it.

        Args:
            dtype, size: of a pointer, None where they are not known.
        """
        points = self.scores.get(kind)
        if points is None or kind not in ("pointer", "int"):
            return points
        fits = self.within[0] <= value <= self.within[1] and value % self.divisor == 0
        if self.element:
            fits &= dtype in (None, self.element)
            fits &= self.small is None or (size is not None and size <= self.small)
        narrow = self.narrower[0] <= value <= self.narrower[1]
        return points + _WIDER * narrow if fits else None


@dataclass(frozen=True)
class Rules:
    """The rules by which a launch chooses its code from an argument.

    Args:
        divisibility: addresses and integers divisible by it are marked so.
        constants: integers that become constants.
        integers: (type, least, most): the first that holds an integer is its type.
        small: the most bytes of storage behind a pointer that is marked small.
    """

    divisibility: int
    constants: tuple[int, ...]
    integers: tuple[tuple[str, int, int], ...]
    small: int

    def integer_type(self, value: int) -> Optional[str]:
        """Return the type that holds an integer; None if none does."""
        for name, least, most in self.integers:
            if least <= value <= most:
                return name
        return None

    def condition(
        self, kind: str, annotated: bool, divisible: bool = False, small: bool = False
    ) -> Condition:
        """Return the arguments that code takes for a parameter of the type `kind`.

        Args:
            annotated: the parameter has this type whatever its argument.
            divisible, small: the marks that the code assumes.
        """
        marks, divisor = divisible + small, self.divisibility if divisible else 1
        if kind.startswith("*"):
            element = kind.removeprefix("*k").removeprefix("*")
            scores, most = {"pointer": marks, "int": marks + _RAW}, self.small if small else None
            element = "u1" if element == "i1" else element
            return Condition(scores, (0, 2**64 - 1), _NONE, divisor, element, most)
        if kind[:2] in ("fp", "bf") or kind == "f32":
            scores = {"float": 0 if kind in ("fp32", "f32") else _WIDER}
            return Condition({**scores, "int": 0} if annotated else scores, _ANY, _NONE)
        if kind in ("u1", "i1"):
            return Condition({"bool": 0, "int": 0} if annotated else {"bool": 0}, (0, 1), _NONE)
        bits = int(kind[1:]) if kind[:1] in "iu" and kind[1:].isdigit() else 0
        sign = 2 ** (bits - 1) if kind[:1] == "i" and bits else 0
        within = (-sign, 2**bits - 1 - sign) if bits else _NONE
        usual, narrower = [name for name, _, _ in self.integers], _ANY
        if annotated or kind == usual[0]:
            narrower = _NONE
        elif kind in usual:
            narrower = self.integers[usual.index(kind) - 1][1:]
        return Condition({"int": marks}, within, narrower, divisor)

    def is_small(self, value: Any) -> bool:
        """Return whether the storage that a tensor or array is in is small."""
        size = storage_size(value)
        return size is not None and size <= self.small


RULES = Rules(
    divisibility=16,
    constants=(1,),
    integers=(
        ("i32", -(2**31), 2**31 - 1),
        ("i64", -(2**63), 2**63 - 1),
        ("u64", 0, 2**64 - 1),
    ),
    small=2**31 - 1,
)


# The values of Python that kernels take, and their names. Subclasses are the same to a kernel.
PLAIN = {bool: "bool", int: "int", float: "float", type(None): "none", tuple: "tuple"}


def plain_kind(value: Any) -> str:
    """Return the name in `PLAIN`, "" for all other values."""
    for cls in type(value).__mro__:
        if cls in PLAIN:
            return PLAIN[cls]
    return ""


def storage_size(value: Any) -> Optional[int]:
    """Return the bytes of the storage that a tensor or array is in; None if it does not say."""
    own = getattr(value, "ptr_range", None)
    if own is not None:
        return int(own())
    storage = getattr(value, "untyped_storage", None)
    if storage is not None:
        return int(storage().size())
    nbytes = getattr(value, "nbytes", None)
    return None if nbytes is None else int(nbytes)
