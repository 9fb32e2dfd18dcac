"""Check the constraints of inline assembly before LLVM, which aborts over mistakes."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Optional, Sequence

from gluon_core._triton import tl, tl_tuple, unwrap
from gluon_core.errors import ArgumentError
from gluon_core.semantic.operands import items_of

if TYPE_CHECKING:
    from gluon_core.plugin.targets import Architecture

__all__ = ["check_assembly", "check_packed"]

_OPERAND = re.compile(r"\$\$|\$(?:\{(\d+)(?::\w+)?\}|(\d+))")
_MEMORY = ("m", "o", "V", "p")
_CLOBBERED = re.compile(r"~\{[^{}]+\}")
# One way to hold an operand: a register by name, two letters, a count and as many, a number, a letter.
_CODE = re.compile(r"\{[^{}]*\}|\^..|@\d\w+|\d+|[^|]")
_SPECIAL = re.compile(r"\{[^{}]*\}")


def _registers(bits: int, pack: int) -> int:
    """Return the number of operands of `pack` elements of that many bits: narrow ones share 32-bit registers."""
    return pack if bits >= 32 else max(1, -(-pack * bits // 32))


def check_assembly(
    asm: str, constraints: str, outputs: int, inputs: int, architecture: Architecture
) -> None:
    """See that the constraints name as many operands as there are, and the text no others.

    Raises:
        ArgumentError: they do not; LLVM would end the process.
    """
    pieces: list[str] = []
    for text in _pieces(constraints):
        piece = text.strip()
        if text[:1].isspace() and piece.startswith(("=", "~", "!")):
            raise ArgumentError(
                f"with a space before it, LLVM does not see the {piece[0]!r}",
                argument="constraints",
                expected=f"{piece!r} right behind the comma",
                got=repr(constraints),
            )
        _check_piece(piece, pieces, constraints, architecture)
        pieces.append(piece)
    results = [piece for piece in pieces if piece.startswith("=")]
    read = [piece for piece in pieces if not piece.startswith(("=", "~", "!"))]
    for role, names, count in (("results", results, outputs), ("arguments", read, inputs)):
        if len(names) != count:
            kind = "that begin with '='" if role == "results" else "without '=' or '~'"
            raise ArgumentError(
                f"as many constraints {kind} as registers of {role}",
                argument="constraints",
                expected=f"{count}",
                got=f"{len(names)} in {constraints!r}",
                remedy="Name each result first ('=r'), then each argument ('r'); elements of fewer "
                "than 32 bits share registers, as `pack` says.",
            )
    for operand in _OPERAND.finditer(asm):
        number = operand[1] or operand[2]
        if number is not None and int(number) >= outputs + inputs:
            raise ArgumentError(
                f"the text names an operand that is not there: {operand[0]}",
                argument="asm",
                expected=f"$0 to ${outputs + inputs - 1}" if outputs + inputs else "none",
                got=operand[0],
                remedy="Results come first, from $0 on; a dollar sign itself is $$.",
            )


def _check_piece(
    piece: str, before: Sequence[str], constraints: str, architecture: Architecture
) -> None:
    """See that one constraint, after those `before`, is of the form that LLVM reads."""

    def refuse(words: str, remedy: Optional[str] = None) -> ArgumentError:
        got = repr(piece) if piece == constraints else f"{piece!r} in {constraints!r}"
        return ArgumentError(
            words,
            argument="constraints",
            expected="such as '=r,r', one for each result, then one for each argument",
            got=got,
            remedy=remedy,
        )

    result = piece.startswith("=")
    if piece.startswith("!") or piece.startswith("~") and not _CLOBBERED.fullmatch(piece):
        raise refuse("not a constraint", "Name clobbers as in '~{memory}'.")
    if piece.startswith("~"):
        return
    body = piece[result:]
    if body.startswith("*"):
        raise refuse(
            "operands are values, and a star marks an operand in memory",
            "Give the pointer as an argument, in a register, and load or store in the text.",
        )
    codes = body.lstrip("&%" if result else "%")
    if not codes:
        raise refuse("a constraint is empty")
    if any(_refused_code(code) for code in _CODE.findall(codes)) or len(body) - len(codes) > 2:
        raise refuse("not a constraint")
    if result and any(not earlier.startswith("=") for earlier in before):
        raise refuse("a result comes after an argument", "Name the results first.")
    for code in _CODE.findall(codes):
        results = sum(earlier.startswith("=") for earlier in before)
        if code.isdigit() and (result or int(code) >= results):
            raise refuse(
                f"{code} says that this operand shares the register of result {code}",
                f"There {'is' if results == 1 else 'are'} {results or 'no'} "
                f"result{'s' * (results != 1)} before it; the first is 0.",
            )
    no = _MEMORY if result else architecture.no_constraints
    unfit = [code for code in _CODE.findall(codes) if code in no]
    if unfit and len(unfit) == len(_CODE.findall(codes)):
        where = "" if result else f" on {architecture.backend}:{architecture.name}"
        raise refuse(
            f"{unfit[0]!r} is memory, and {'results' if result else 'operands'} are values in "
            f"registers{where}",
            "Give the pointer as an argument, in a register, and load or store in the text.",
        )


def _refused_code(code: str) -> bool:
    """Return True if LLVM cannot read a code, or has no meaning for it on any target."""
    return code in ("{}", "{", "}", "^", "@") or code[0] in "#*&%=+![]"


def _pieces(constraints: str) -> Sequence[str]:
    """Split at commas, but not inside braces."""
    if not constraints.strip():
        return []
    hidden = _SPECIAL.sub(lambda match: match[0].replace(",", " "), constraints)
    return hidden.split(",")


def check_packed(
    asm: Any, constraints: Any, args: Any, kinds: Any, pack: int, architecture: Architecture
) -> None:
    """See that text and constraints name as many operands as `pack` elements need registers."""
    read = [_bits(unwrap(arg)) for arg in items_of(args)]
    pieces = [
        unwrap(kind).primitive_bitwidth
        for kind in (kinds if isinstance(kinds, (tuple, tl_tuple)) else (kinds,))
    ]
    # How several bits share registers is the compiler's own.
    if pack == 1 or all(bits >= 8 for bits in (*read, *pieces)):
        outputs, inputs = (sum(_registers(bits, pack) for bits in side) for side in (pieces, read))
        check_assembly(unwrap(asm), unwrap(constraints), outputs, inputs, architecture)


def _bits(value: Any) -> int:
    """Bits of an element: a number is a 32-bit one where it fits."""
    if isinstance(value, bool):
        return 1
    if not isinstance(value, tl.tensor):
        wide = isinstance(value, int) and not -(1 << 31) <= value < 1 << 32
        return 64 if wide else 32
    return 64 if value.dtype.is_ptr() else int(value.dtype.primitive_bitwidth)
