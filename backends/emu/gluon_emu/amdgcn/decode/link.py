"""The linker, which replaces symbols in operands and in data by numbers.

LLVM, "User Guide for AMDGPU Backend": Relocation Records; "AMDGPU Symbolic expressions".
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Callable, Mapping, Optional

from gluon_core.errors import BackendError
from gluon_emu.amdgcn.decode.expressions import evaluate, symbols_of
from gluon_emu.amdgcn.decode.operands import Const, Operand, Word
from gluon_emu.amdgcn.decode.program import Instruction, Program, code_address
from gluon_emu.errors import span_of

__all__ = ["link"]

_REFERENCE = re.compile(
    r"""(?P<symbol>"[^"]+"|[A-Za-z_.$][\w.$]*)
        @(?P<kind>rel|gotpcrel|abs)(?P<bits>32|64)?(?:@(?P<part>lo|hi))?(?P<offset>(?:[-+]\d+)?)$""",
    re.VERBOSE,
)
_TO_LABELS = ("s_branch", "s_cbranch", "s_call")
# Scalar instructions of one word, whose immediates are part of it.
_SHORT = (
    "s_wait", "s_nop", "s_delay_alu", "s_clause", "s_movk", "s_cmovk", "s_addk", "s_mulk", "s_cmpk",
    "s_set", "s_sleep",
)  # fmt: skip


def link(program: Program, sets: Mapping[str, str]) -> Callable[[str], int]:
    """Place the data, and replace symbols in operands and data by their values; return the lookup of a
    symbol's value.

    Args:
        sets: symbol -> expression, of `.set`.

    Raises:
        BackendError: a symbol is not defined, or an operand is no expression.
    """
    data, instructions = program.data, program.instructions
    known = {*program.labels, *data.symbols, *sets}
    references: list[tuple[int, int, Optional[re.Match[str]]]] = []
    for number, ins in enumerate(instructions):
        if ins.name.startswith(_TO_LABELS):
            _check_label(ins, program)
            continue
        for place, operand in enumerate(ins.operands):
            if isinstance(operand, Word):
                match = _REFERENCE.match(operand.text)
                if match is not None and match["kind"] == "gotpcrel":
                    data.slot(match["symbol"].strip('"'))
                if match is not None or _names(operand.text, known):
                    references.append((number, place, match))
    data.place()
    value_of = _Values(program, sets)
    data.resolve(value_of)
    for number, place, match in references:
        ins = instructions[number]
        try:
            if match is None:
                value = evaluate(str(ins.operands[place]), value_of)
            else:
                value = _value(program, number, match, value_of)
        except BackendError as error:
            raise _refused(ins, error.message) from None
        operands: list[Operand] = list(ins.operands)
        operands[place] = Const(value, literal=True)
        instructions[number] = replace(ins, operands=tuple(operands))
    return value_of


class _Values:
    """The values of symbols by name: an address, or the value of the `.set` expression."""

    def __init__(self, program: Program, sets: Mapping[str, str]):
        self.program, self.sets = program, sets
        self._open: list[str] = []

    def __call__(self, symbol: str) -> int:
        """Return the value of a symbol.

        Raises:
            KeyError: it is not defined.
            BackendError: its definition leads back to itself.
        """
        symbol = symbol.strip('"')
        if symbol in self.program.labels:
            return code_address(self.program.labels[symbol])
        if symbol in self.program.data.symbols:
            return self.program.data.address(symbol)
        if symbol in self._open:
            raise BackendError(f"the symbol {symbol} is defined by itself")
        self._open.append(symbol)
        try:
            return evaluate(self.sets[symbol], self)
        finally:
            self._open.pop()


def _names(text: str, known: set[str]) -> bool:
    """Return whether an operand is an expression of symbols of this code object."""
    if text in known:
        return True
    if not re.search(r"[-+*/&|<>(]", text):
        return False
    try:
        symbols = symbols_of(text)
    except BackendError:
        return False
    return bool(symbols) and all(symbol.strip('"') in known for symbol in symbols)


def _value(program: Program, number: int, match: "re.Match[str]", value_of: _Values) -> int:
    symbol, offset = match["symbol"].strip('"'), int(match["offset"] or 0)
    if match["kind"] == "gotpcrel":
        value_of(symbol)
        target = program.data.slot_address(symbol)
    else:
        try:
            target = value_of(symbol)
        except KeyError:
            raise BackendError(f"the symbol {symbol} is not defined") from None
    if match["kind"] != "abs":
        base, length = _counter(program.instructions, number)
        # The high half repeats the offset, counted from its own literal.
        target += 0 if length is None else offset - length
        target -= code_address(base)
    else:
        target += offset
    target &= (1 << 64) - 1
    return target >> (32 if match["part"] == "hi" else 0) & (
        (1 << 64) - 1 if match["part"] is None and match["bits"] == "64" else 0xFFFFFFFF
    )


def _counter(instructions: list[Instruction], number: int) -> tuple[int, Optional[int]]:
    """Return the index behind the last `s_getpc` before an instruction, and the number of bytes
    between the two; None where the length of an instruction between them is not known."""
    length: Optional[int] = 4  # the literal is behind the first word
    for index in range(number - 1, -1, -1):
        ins = instructions[index]
        if ins.name.startswith(("s_getpc", "s_get_pc")):
            return index + 1, length
        length = None if length is None or (size := _size(ins)) is None else length + size
    raise BackendError("no s_getpc comes before a distance to a symbol")


def _size(ins: Instruction) -> Optional[int]:
    """Return the size of a scalar instruction in bytes; None where it is not known."""
    if not ins.name.startswith("s_") or "load" in ins.name:
        return None
    if ins.name.startswith(_SHORT):
        return 4
    for operand in ins.operands:
        if isinstance(operand, Const) and operand.literal:
            return 8
        if isinstance(operand, Word) and "@" in operand.text:
            return 12 if "64" in operand.text else 8
    return 4


def _check_label(ins: Instruction, program: Program) -> None:
    label = str(ins.operands[-1]).strip('"') if ins.operands else ""
    if label not in program.labels:
        raise _refused(ins, f"there is no label {label}")


def _refused(ins: Instruction, reason: str) -> BackendError:
    return BackendError(
        f"the emulator does not understand `{ins.text}` at line {ins.line} of the assembly: {reason}",
        span=span_of(ins.location),
    )
