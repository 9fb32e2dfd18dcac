"""Calls, stacks and the heap: PTX ISA 9.7.12.5, 9.7.18, and the functions of CUDA's runtime."""

from __future__ import annotations

from typing import Any

import numpy as np

from gluon_emu.errors import TrapError
from gluon_emu.ptx.decode.parts import Function, Name, Parameter
from gluon_emu.ptx.isa.heap import HEAP
from gluon_emu.ptx.isa.printing import RUNTIME
from gluon_emu.ptx.isa.table import Step, instruction
from gluon_emu.ptx.machine.access import LOCAL_WINDOW
from gluon_emu.ptx.machine.calls import FUNCTION_WINDOW, enter
from gluon_emu.ptx.machine.code import SWITCH
from gluon_emu.ptx.machine.group import move
from gluon_emu.ptx.numbers import uint
from gluon_emu.ptx.program import TYPES
from gluon_emu.ptx.text import Immediate, Register, Vector

__all__: list[str] = []

_RUNTIME = {**RUNTIME, **HEAP}


@instruction("call")
def call_(call: Any) -> Step:
    """Call a function of the module, by its name or its address, or one of the runtime's."""
    call.flag("uni")
    operands = list(call.operands)
    results: Any = ()
    if operands and isinstance(operands[0], Vector):
        results = operands.pop(0).items
    if not operands or not isinstance(operands[0], (Name, Register)):
        raise call.refuse("`call` takes the name or the address of a function")
    target = operands.pop(0)
    arguments = operands.pop(0).items if operands and isinstance(operands[0], Vector) else ()
    code = call.program
    if isinstance(target, Register):
        return _by_address(call, target, results, arguments)
    name = target.value
    function = code.module.functions.get(name)
    if function is None and name in _RUNTIME:
        count, gives, make = _RUNTIME[name]
        if len(arguments) != count or len(results) > gives:
            raise call.refuse(
                f"{name} takes {count} arguments and gives {gives} results, and here are "
                f"{len(arguments)} and {len(results)}"
            )
        return make(call, [str(r) for r in results], [str(a) for a in arguments])
    if function is None:
        raise call.refuse(f"there is no function {name}")
    return _entered(call, function, results, arguments)


def _entered(call: Any, function: Function, results: Any, arguments: Any) -> Step:
    """Return a step that calls `function`, with operands."""
    code, caller, back = call.program, call.program.function, call.index + 1
    if len(arguments) != len(function.parameters) or len(results) > len(function.results):
        raise call.refuse(
            f"{function.name} takes {len(function.parameters)} arguments and gives "
            f"{len(function.results)} results, and here are {len(arguments)} and {len(results)}"
        )
    incoming, numbers = [], []
    for argument, parameter in zip(arguments, function.parameters):
        name = _place(code, function, parameter)
        if isinstance(argument, Register) and not _is_register(code, argument):
            incoming.append((str(argument), name))
        else:
            type = TYPES[parameter.type]
            target = name[1:] if parameter.register else f"{name}@0"
            numbers.append((target, type, call.get(argument, type)))
    returned = []
    for parameter, result in zip(function.results, results):
        held = _is_register(code, result)
        if held:
            call.put(result, TYPES[parameter.type])
        returned.append((_place(code, function, parameter), f"={result}" if held else str(result)))

    def pass_all(group: Any) -> None:
        move(group, incoming)
        for target, type, get in numbers:
            value = np.asarray(get(group))
            group.write(target, type.bits, value if type.bits == 1 else value.view(uint(type.bits)))

    recursive = (caller.name, function.name) in code.graph.recursive
    own = None if caller is code.kernel else caller

    def frame(group: Any) -> None:
        enter(group, own, recursive)
        group.mask = group.active
        pass_all(group)

    def run(group: Any) -> Any:
        if not code.graph.stacked:
            pass_all(group)
            return group.machine.call(group, code.starts[function.name], back, returned)
        return group.machine.call(group, code.starts[function.name], back, returned, frame)

    return run


def _is_register(code: Any, operand: Any) -> bool:
    return isinstance(operand, Register) and operand.name in code.widths


def _place(code: Any, function: Function, parameter: Parameter) -> str:
    """Return a parameter as `machine.group.move` names it."""
    if not parameter.register:
        return parameter.name
    return f"={parameter.name}" if function is code.kernel else f"={function.name}:{parameter.name}"


def _by_address(call: Any, target: Register, results: Any, arguments: Any) -> Step:
    code = call.program
    names = list(code.module.functions)
    get = call.get(target, TYPES["u64"])
    steps = {}
    for number, name in enumerate(names, 1):
        function = code.module.functions[name]
        fits = len(arguments) == len(function.parameters) and len(results) <= len(function.results)
        if name in code.graph.addressed and fits:
            address = FUNCTION_WINDOW + 16 * number
            steps[address] = _entered(call, function, results, arguments)

    def run(group: Any) -> Any:
        chosen = group.full(get(group))
        lanes = group.lanes() & group.everything()
        machine = group.machine
        targets = np.unique(chosen[lanes])
        for address in targets:
            if int(address) not in steps:
                raise TrapError(f"a call of {int(address):#x}, where no such function begins")
        rest = group.everything() & ~lanes
        parts = [group.part(lanes & (chosen == address)) for address in targets]
        if rest.any():
            other = group.part(rest)
            other.pc = group.pc + 1
            machine.place(other)
        for address, part in zip(targets, parts):
            part.mask = part.active
            steps[int(address)](part)
        return SWITCH

    return run


@instruction("alloca")
def alloca(call: Any) -> Step:
    """Reserve bytes on the stack of each thread."""
    type = call.type()
    call.count(2, 3)
    align = 8
    if len(call.operands) == 3:
        if not isinstance(call.operands[2], Immediate):
            raise call.refuse("the alignment of `alloca` is a number")
        align = max(8, int(call.operands[2].value))
    size, put = call.get(call.operands[1], type), call.put(call.operands[0], type)

    def run(group: Any) -> None:
        wanted = np.where(group.lanes(), group.full(size(group)).astype(np.uint64), np.uint64(0))
        if (wanted > np.uint64(1 << 32)).any():
            raise TrapError(f"`alloca` of {int(wanted.max())} bytes")
        first = group.values["@sp"] + np.uint64(align - 1) & ~np.uint64(align - 1)
        top = first + wanted
        group.machine.memory.reserve_local(int(np.where(group.lanes(), top, np.uint64(0)).max()))
        group.write("@sp", 64, top)
        put(group, first.astype(type.dtype))

    return run


@instruction("stacksave")
def stacksave(call: Any) -> Step:
    type = call.type()
    call.count(1)
    put = call.put(call.operands[0], type)
    return lambda group: put(group, group.values["@sp"].astype(type.dtype))


@instruction("stackrestore")
def stackrestore(call: Any) -> Step:
    type = call.type()
    call.count(1)
    get = call.get(call.operands[0], type)
    low = np.uint64(LOCAL_WINDOW - 1)
    return lambda group: group.write("@sp", 64, get(group).astype(np.uint64) & low)
