"""Control flow: PTX ISA 9.7.12, and instructions that change nothing here."""

from __future__ import annotations

from typing import Any

import numpy as np

from gluon_emu.errors import TrapError
from gluon_emu.ptx.decode.module import Name
from gluon_emu.ptx.isa.table import Step, instruction
from gluon_emu.ptx.machine.code import SWITCH
from gluon_emu.ptx.program import TYPES
from gluon_emu.ptx.text import Address, Register, Vector

__all__: list[str] = []


def _target(call: Any, operand: Any) -> Any:
    """Return a function that gives the index of a label; labels ahead are not known yet."""
    code, prefix = call.program, call.program.prefix
    label = prefix + str(operand.value)
    if str(operand.value) not in code.function.labels:
        raise call.refuse(f"there is no label {operand.value}", "Labels end with a colon.")
    at = code.starts[code.function.name] + code.function.labels[str(operand.value)]
    assert label
    return at


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
    if isinstance(index, Name):
        index = Register(call.program.prefix + index.value.lstrip("%"))
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
             "discard", "applypriority", "isspacep_")  # fmt: skip
def nothing(call: Any) -> Step:
    """Change nothing: caches, the number of registers and time are not modelled."""
    for operand in call.operands:
        if isinstance(operand, Address) and isinstance(operand.base, Register):
            call.get(operand.base, TYPES["b64"], True) if call.program.symbol(
                operand.base.name
            ) is None else None
    if call.name == "nanosleep":
        return lambda group: group.machine.slept(group)
    return lambda group: None


@instruction("call")
def call_(call: Any) -> Step:
    """Call a function of the module, or one of the runtime's."""
    from gluon_emu.ptx.isa.printing import RUNTIME

    call.flag("uni")
    operands = list(call.operands)
    results: Any = ()
    if operands and isinstance(operands[0], Vector):
        results = operands.pop(0).items
    if not operands or not isinstance(operands[0], Name):
        raise call.refuse("only functions of the module are called")
    name = operands.pop(0).value
    arguments = operands.pop(0).items if operands and isinstance(operands[0], Vector) else ()
    code = call.program
    if name in RUNTIME:
        return RUNTIME[name](call, [str(a) for a in results], [str(a) for a in arguments])
    function = code.module.functions.get(name)
    if function is None:
        raise call.refuse(f"there is no function {name}")
    incoming = [(str(a), p.name) for a, p in zip(arguments, function.parameters)]
    back = call.index + 1
    returned = [(p.name, str(r)) for p, r in zip(function.results, results)]

    def run(group: Any) -> Any:
        move(group, incoming)
        return group.machine.call(group, code.starts[name], back, returned)

    return run


def move(group: Any, pairs: Any) -> None:
    """Copy variables of parameters, whose pieces live in registers named VARIABLE@OFFSET."""
    for source, target in pairs:
        for key in [k for k in group.values if k.startswith(f"{source}@")]:
            value = group.values[key]
            group.write(target + key[len(source) :], value.dtype.itemsize * 8, value)


_ = SWITCH
