"""The rules of specialization: which facts about an argument choose the compiled code.

A table, `RULES`, and the functions that read it. The just-in-time compiler describes arguments by it, `c/calls.h` gets
it from `calls`, and a bundle carries a copy, of which `index` makes the conditions that `c/choice.h` reads.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, Optional

__all__ = [
    "ABSENT",
    "ALIGN",
    "CONSTANT",
    "PLAIN",
    "Parameter",
    "RULES",
    "SPECIALIZE",
    "WIDTH",
    "Rules",
    "plain_kind",
    "storage_size",
]

# The choice of the code depends, at one parameter, on these; the C engine has the same bits.
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
