"""What inline assembly says of its operands, looked at before LLVM, which aborts over it."""

from __future__ import annotations

import re
from typing import Any, Sequence

from gluon_core._triton import tl, tl_tuple, unwrap
from gluon_core.errors import ArgumentError
from gluon_core.semantic.operands import items_of

__all__ = ["check_assembly", "check_packed"]

_OPERAND = re.compile(r"\$\$|\$(?:\{(\d+)(?::\w+)?\}|(\d+))")
_SPECIAL = re.compile(r"\{[^{}]*\}")


def _registers(bits: int, pack: int) -> int:
    """How many operands `pack` elements of that many bits are: narrow ones share 32-bit registers."""
    return pack if bits >= 32 else max(1, -(-pack * bits // 32))


def check_assembly(asm: str, constraints: str, outputs: int, inputs: int) -> None:
    """See that the constraints name as many operands as there are, and the text no others.

    Raises:
        ArgumentError: they do not; LLVM would end the process.
    """
    pieces = _pieces(constraints)
    made = [piece for piece in pieces if piece.startswith("=")]
    read = [piece for piece in pieces if not piece.startswith(("=", "~", "!"))]
    if any(not piece.lstrip("=&*") for piece in pieces):
        raise ArgumentError(
            "a constraint is empty",
            argument="constraints",
            expected="such as '=r,r', one for each result, then one for each argument",
            got=repr(constraints),
        )
    for what, names, count in (("results", made, outputs), ("arguments", read, inputs)):
        if len(names) != count:
            kind = "that begin with '='" if what == "results" else "without '=' or '~'"
            raise ArgumentError(
                f"as many constraints {kind} as registers of {what}",
                argument="constraints",
                expected=f"{count}",
                got=f"{len(names)} in {constraints!r}",
                remedy="Name each result first ('=r'), then each argument ('r'); elements of fewer "
                "than 32 bits share registers, as `pack` says.",
            )
    for found in _OPERAND.finditer(asm):
        number = found[1] or found[2]
        if number is not None and int(number) >= outputs + inputs:
            raise ArgumentError(
                f"the text names an operand that is not there: {found[0]}",
                argument="asm",
                expected=f"$0 to ${outputs + inputs - 1}" if outputs + inputs else "none",
                got=found[0],
                remedy="Results come first, from $0 on; a dollar sign itself is $$.",
            )


def _pieces(constraints: str) -> Sequence[str]:
    """What stands between commas, but for those in braces."""
    if not constraints.strip():
        return []
    hidden = _SPECIAL.sub(lambda found: found[0].replace(",", " "), constraints)
    return [piece.strip() for piece in hidden.split(",")]


def check_packed(asm: Any, constraints: Any, args: Any, kinds: Any, pack: int) -> None:
    """See that text and constraints name as many operands as `pack` elements need registers."""
    read = [_bits(unwrap(arg)) for arg in items_of(args)]
    made = [
        unwrap(kind).primitive_bitwidth
        for kind in (kinds if isinstance(kinds, (tuple, tl_tuple)) else (kinds,))
    ]
    if all(bits >= 8 for bits in (*read, *made)):  # how bits share registers is the compiler's own
        outputs, inputs = (sum(_registers(bits, pack) for bits in side) for side in (made, read))
        check_assembly(unwrap(asm), unwrap(constraints), outputs, inputs)


def _bits(value: Any) -> int:
    """Bits of an element; 0 for a number whose type follows from what it meets."""
    if not isinstance(value, tl.tensor):
        return 32 if isinstance(value, float) else 0
    return 64 if value.dtype.is_ptr() else int(value.dtype.primitive_bitwidth)
