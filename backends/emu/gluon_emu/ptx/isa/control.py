"""Control flow: PTX ISA 9.7.12, and instructions that change nothing here."""

from __future__ import annotations

from typing import Any

import numpy as np

from gluon_emu.errors import TrapError
from gluon_emu.ptx.decode.parts import Name
from gluon_emu.ptx.isa.table import Step, instruction
from gluon_emu.ptx.program import TYPES

__all__: list[str] = []


def _target(call: Any, operand: Name) -> int:
    """Return the index of the instruction behind a label of the same function."""
    code, name = call.program, str(operand.value)
    if name not in code.function.labels:
        raise call.refuse(f"there is no label {name}", "Labels end with a colon.")
    return int(code.starts[code.function.name] + code.function.labels[name])


@instruction("bra")
def bra(call: Any) -> Step:
    call.flag("uni")
    call.count(1)
    if not isinstance(call.operands[0], Name):
        raise call.refuse("`bra` takes a label")
    target = _target(call, call.operands[0])
    return lambda group: group.machine.jump(group, target)


@instruction("brx")
def brx(call: Any) -> Step:
    """Jump to one of a table's labels."""
    if not call.flag("idx"):
        raise call.refuse("`brx` is there with `.idx` alone")
    call.flag("uni")
    call.count(2)
    function = call.program.function
    labels = function.tables.get(str(call.operands[1]))
    if labels is None:
        raise call.refuse(f"there is no .branchtargets {call.operands[1]}")
    start = call.program.starts[function.name]
    targets = np.array([start + function.labels[label] for label in labels])
    index = call.operands[0]
    get = call.get(index, TYPES["u32"])

    def run(group: Any) -> Any:
        chosen = group.full(get(group))
        if (chosen[group.lanes()] >= targets.size).any():
            raise TrapError(f"an index beyond the table's {targets.size} labels")
        return group.machine.jump_each(group, targets[np.minimum(chosen, targets.size - 1)])

    return run


@instruction("ret")
def ret(call: Any) -> Step:
    call.flag("uni")
    call.count(0)
    code = call.program
    for parameter in code.function.results:
        if parameter.register:
            code.read(call, code.prefix + parameter.name)
    return lambda group: group.machine.back(group)


@instruction("exit")
def exit_(call: Any) -> Step:
    call.count(0)
    return lambda group: group.machine.leave(group)


@instruction("trap")
def trap(call: Any) -> Step:
    call.count(0)

    def run(group: Any) -> Any:
        raise TrapError(group.machine.complaint() or "the kernel trapped")

    return run


@instruction("brkpt", "pmevent", "setmaxnreg", "nanosleep", "griddepcontrol", "prefetch", "prefetchu",
             "discard", "applypriority")  # fmt: skip
def nothing(call: Any) -> Step:
    """Change nothing: caches, the number of registers and time are not modelled."""
    if call.name == "nanosleep":
        return lambda group: group.machine.slept(group)
    return lambda group: None


_ELSEWHERE = {
    "a texture or a surface: the emulator has none": (
        "tex", "tld4", "txq", "suld", "sust", "sured", "suq", "istypep",
    ),
    "an address of several devices, which the driver makes: the emulator is one device": (
        "multimem",
    ),
}  # fmt: skip


def _refusing(words: str) -> Any:
    def refuse(call: Any) -> Step:
        raise call.refuse(f"`{call.name}` is not known, as it needs {words}")

    return refuse


for _words, _names in _ELSEWHERE.items():
    instruction(*_names)(_refusing(_words))
