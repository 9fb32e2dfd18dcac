"""Which functions call which, and frames on the stacks of threads: PTX ISA 7, the ABI.

The registers and local variables of a function have one place each, as if it were called once at a time. A call that
may come back to its caller keeps the caller's registers under other names, and gives the callee's local
variables a frame of their own.
"""

from __future__ import annotations

from typing import Any, Optional

import numpy as np

from gluon_emu.errors import TrapError
from gluon_emu.ptx.decode.parts import Function, Module, Name, Reference
from gluon_emu.ptx.text import Register

__all__ = ["FUNCTION_WINDOW", "Graph", "enter", "leave_frame"]

FUNCTION_WINDOW = 3 << 56  # of the addresses of functions
_DEPTH = 2000  # calls within calls
_HEAP = ("malloc", "free", "_Znwm", "_Znam", "_ZdlPv", "_ZdaPv")


class Graph:
    """The functions that a kernel reaches.

    Attributes:
        functions: the kernel first.
        addressed: names of functions whose address something takes.
        recursive: pairs of names, of a caller and a callee that may call it in turn.
        stacked: whether threads have stacks: functions that call themselves, or `alloca`.
        cooperative: whether anything asks for the barrier of all blocks.
        heap: whether anything allocates memory.
    """

    def __init__(self, module: Module, kernel: Function):
        self.addressed = _addressed(module)
        self.functions: list[Function] = []
        self.stacked = self.heap = self.cooperative = False
        calls: dict[str, set[str]] = {}
        waiting = [kernel]
        while waiting:
            function = waiting.pop(0)
            if function in self.functions:
                continue
            self.functions.append(function)
            callees = calls.setdefault(function.name, set())
            for instruction in function.instructions:
                statement = instruction.statement
                self.stacked |= statement.name in ("alloca", "stacksave", "stackrestore")
                if statement.name == "mov":
                    self.cooperative |= "%envreg2" in map(str, statement.operands)
                if statement.name != "call":
                    continue
                names = [o.value for o in statement.operands if isinstance(o, Name)]
                self.heap |= bool(names) and names[0] in _HEAP
                callees.update(module.functions[n].name for n in names[:1] if n in module.functions)
                if any(isinstance(o, Register) for o in statement.operands):
                    callees |= self.addressed
            waiting += [module.functions[name] for name in sorted(callees)]
        reach = {name: _reached(calls, name) for name in calls}
        self.recursive = {(a, b) for a in calls for b in calls[a] if a in reach[b]}
        self.stacked |= bool(self.recursive)


def _addressed(module: Module) -> set[str]:
    functions = {name for name, f in module.functions.items() if not f.entry}
    names = {
        piece.name
        for variable in module.variables
        for _, piece in variable.content
        if isinstance(piece, Reference)
    }
    for function in module.functions.values():
        for instruction in function.instructions:
            if instruction.statement.name == "mov":
                operands = instruction.statement.operands
                names |= {o.name for o in operands if isinstance(o, Register)}
    return names & functions


def _reached(calls: dict[str, set[str]], start: str) -> set[str]:
    seen, waiting = {start}, [start]
    while waiting:
        for name in calls.get(waiting.pop(), ()):
            if name not in seen:
                seen.add(name)
                waiting.append(name)
    return seen


def enter(group: Any, caller: Optional[Function], recursive: bool) -> None:
    """Keep everything of the caller that the callee may change, before its frame is on the stack."""
    depth = len(group.stack)
    if depth >= _DEPTH:
        raise TrapError(f"{depth} calls within calls: the stack of a thread is at its end")
    names = ["@sp", "@fp"]
    if recursive and caller is not None:
        prefixes = (f"{caller.name}:", *(f"{p.name}@" for p in caller.parameters))
        names += [name for name in group.values if name.startswith(prefixes)]
    for name in names:
        group.values[f"^{depth}^{name}"] = group.values[name]
    if recursive:
        memory, code = group.machine.memory, group.machine.code
        first = group.values["@sp"] + np.uint64(15) & ~np.uint64(15)
        top = first + np.uint64(code.local_bytes)
        memory.reserve_local(int(top.max()))
        group.values["@fp"], group.values["@sp"] = first, top


def leave_frame(group: Any) -> None:
    """Give the caller back everything that `enter` kept; the frame is off the stack."""
    mark = f"^{len(group.stack)}^"
    for name in [name for name in group.values if name.startswith(mark)]:
        group.values[name[len(mark) :]] = group.values.pop(name)
