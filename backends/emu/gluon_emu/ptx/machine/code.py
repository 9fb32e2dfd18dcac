"""From functions to steps: operands bound, labels resolved, registers dropped when they are dead."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Callable, Optional

import numpy as np

from gluon_core.simulation.assembly import NotModelled
from gluon_emu.errors import EmulatorError, UnknownInstructionError, span_of
from gluon_emu.memory import Allocation
from gluon_emu.ptx.decode.parts import Function, Instruction, Module, Reference
from gluon_emu.ptx.machine.calls import FUNCTION_WINDOW, Graph
from gluon_emu.ptx.machine.liveness import dead_after
from gluon_emu.ptx.machine.special import reader
from gluon_emu.ptx.program import CARRY, TYPES, Call
from gluon_emu.ptx.text import Address, Operand, Pair, Part, Register, Vector

__all__ = ["SHARED_START", "SWITCH", "Bound", "Code", "ModuleCall"]

Find = Callable[[str, tuple[str, ...]], Optional[Callable[[Any], Callable[[Any], Any]]]]
SHARED_START = 1024  # bytes at the start of a block's shared memory that the system keeps
_REMEDY = "`gluon emu FILE.ptx --coverage` lists the forms that are known."
HEAP_BYTES = 8 << 20  # as CUDA has it by default
SWITCH = object()  # the group was placed elsewhere by a step


@dataclass
class Bound:
    """An instruction that can run.

    Args:
        index: among all of the code.
        guard: gives the threads that execute it.
        dead: registers that nobody reads behind it.
        leads: whether jumps come here.
        reads, writes, touches: registers.
        sums: registers that a product of warpgroups goes on with.
    """

    index: int
    source: Instruction
    function: str
    guard: Optional[Callable[[Any], np.ndarray]] = None
    step: Callable[[Any], Any] = lambda group: None
    dead: tuple[str, ...] = ()
    leads: bool = False
    reads: frozenset[str] = frozenset()
    writes: frozenset[str] = frozenset()
    touches: frozenset[str] = frozenset()
    sums: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Symbol:
    """A variable: its space, and its address there."""

    space: str
    address: int
    size: int


class ModuleCall(Call):
    """An instruction of a module that is being made into a step."""

    program: "Code"  # type: ignore[assignment]
    index: int  # among all instructions
    sums: frozenset[str] = frozenset()  # see `Bound`

    def refuse(self, words: str, remedy: Optional[str] = None) -> NotModelled:
        return NotModelled(words, self.statement.text, remedy or _REMEDY)

    def get(self, operand: Operand, type: Any, wider: bool = False) -> Callable[[Any], np.ndarray]:
        if isinstance(operand, Register):
            symbol = self.program.symbol(operand.name)
            if symbol is not None:
                return self._address(symbol, type)
        return super().get(operand, type, wider)

    def _address(self, symbol: Symbol, type: Any) -> Callable[[Any], np.ndarray]:
        address, dtype = symbol.address, type.dtype
        if symbol.space == "local" and self.program.graph.recursive:
            return lambda frame: (
                (frame.values["@fp"] + np.uint64(address)).astype(f"u{dtype.itemsize}").view(dtype)
            )
        if symbol.space != "shared":
            constant = np.full((1, 1), address, np.uint64).astype(f"u{dtype.itemsize}").view(dtype)
            return lambda frame: constant
        return lambda frame: (
            (frame.machine.shared_base(frame) + address).astype(f"u{dtype.itemsize}").view(dtype)
        )


class _Capture(set[str]):
    """The registers that anything writes, and those of the current instruction."""

    def __init__(self) -> None:
        super().__init__()
        self.now: set[str] = set()

    def add(self, name: str) -> None:
        self.now.add(name)
        super().add(name)


class Code:
    """The steps of a kernel and of the functions that it calls.

    Args:
        find: gives what makes a step of an instruction, by its name and modifiers.
        lenient: keep instructions that are not known in `unknown`; the code cannot run then.

    Attributes:
        static_shared: bytes of shared memory that the module declares, behind `SHARED_START`.
        local_bytes: of a thread.
        regions: memory of the module's variables.
        graph: the functions, and how they call each other.
        heap: the address of the memory for `malloc`; 0 where nothing calls it.
        workspace: the address of the barrier of a cooperative grid; 0 where nothing asks for it.
        unknown: instructions that cannot run, with the reasons.
        claims: whether blocks ask for the work of others that have not started.
    """

    target: Any = None
    is_data = each_thread = reaches_memory = False

    def __init__(self, module: Module, kernel: Function, find: Find, lenient: bool = False):
        self.module, self.kernel, self.find = module, kernel, find
        self.widths: dict[str, int] = {CARRY: 1}
        self.written = _Capture()
        self.reading: set[str] = set()
        self.orders: tuple[str, ...] = ()
        self.looked, self.released, self.fence = False, None, None
        self.steps: list[Bound] = []
        self.starts: dict[str, int] = {}
        self.labels: dict[str, int] = {}
        self.symbols: dict[str, Symbol] = {}
        self.names: dict[str, str] = {}  # of the current function
        self.function = kernel
        self.shared_names: list[tuple[int, int, str]] = []
        self.static_shared = self.local_bytes = 0
        self.regions: list[Allocation] = []
        self.heap = self.workspace = 0
        self.unknown: list[tuple[Instruction, NotModelled]] = []
        self.parameters: dict[str, int] = {}
        self.graph = Graph(module, kernel)
        self._variables()
        for function in self.graph.functions:
            self._bind(function)
        self.claims = any(b.source.statement.name == "clusterlaunchcontrol" for b in self.steps)
        if not lenient:
            self._finish()

    # -- variables --

    def _variables(self) -> None:
        variables = list(self.module.variables)
        for function in self.module.functions.values():
            variables += function.variables
        dynamic = []
        for variable in variables:
            name, size, align = variable.name, variable.size, max(1, variable.align)
            if variable.space == "shared":
                if not size:
                    dynamic.append(variable)
                    continue
                offset = -(-(SHARED_START + self.static_shared) // align) * align
                self.static_shared = offset + size - SHARED_START
                self.symbols[name] = Symbol("shared", offset, size)
                self.shared_names.append((offset, size, name))
            elif variable.space == "local":
                offset = -(-self.local_bytes // align) * align
                self.local_bytes = offset + size
                self.symbols[name] = Symbol("local", offset, size)
            elif variable.space in ("global", "const"):
                room = np.zeros(size + align, np.uint8)
                start = -room.ctypes.data % align
                data = room[start : start + size]
                self.regions.append(Allocation(name, data, variable.space == "global", room))
                self.symbols[name] = Symbol(variable.space, data.ctypes.data, size)
        for variable in dynamic:
            align = max(16, variable.align)
            offset = -(-(SHARED_START + self.static_shared) // align) * align
            self.symbols[variable.name] = Symbol("shared", offset, 0)
        for number, name in enumerate(self.module.functions, 1):
            self.symbols.setdefault(name, Symbol("code", FUNCTION_WINDOW + 16 * number, 0))
        if self.graph.cooperative:
            room = np.zeros(64, np.uint64)
            self.regions.append(Allocation("the grid's workspace", room.view(np.uint8)))
            self.workspace = room.ctypes.data
        if self.graph.heap:
            data = np.zeros(HEAP_BYTES, np.uint8)
            self.regions.append(Allocation("the heap", data))
            self.heap = data.ctypes.data
        for variable in variables:
            if variable.content and variable.name in self.symbols:
                self._fill(variable)
        offset = 0
        for parameter in self.kernel.parameters:
            offset = -(-offset // parameter.align) * parameter.align
            self.parameters[parameter.name] = offset
            offset += parameter.size
        self.parameter_bytes = offset
        for name, offset in self.parameters.items():
            self.symbols[name] = Symbol("param", offset, 0)

    def _fill(self, variable: Any) -> None:
        data = next(r.data for r in self.regions if r.name == variable.name)
        for offset, piece in variable.content:
            if isinstance(piece, Reference):
                symbol = self.symbols.get(piece.name)
                piece = piece.bytes_of(symbol.address if symbol else 0)
            data[offset : offset + len(piece)] = np.frombuffer(piece, np.uint8)

    def symbol(self, name: str) -> Optional[Symbol]:
        if self.names.get(name, name) in self.widths:
            return None
        return self.symbols.get(name)

    # -- instructions --

    def _bind(self, function: Function) -> None:
        self.function = function
        prefix = "" if function is self.kernel else f"{function.name}:"
        self.prefix = prefix
        self.starts[function.name] = start = len(self.steps)
        for name, type in function.registers.items():
            if type in TYPES:
                self.widths[prefix + name] = TYPES[type].bits
        for label, index in function.labels.items():
            self.labels[prefix + label] = start + index
        leads = {start + index for index in function.labels.values()}
        if prefix:
            local = function.registers.keys()
        for number, instruction in enumerate(function.instructions):
            if prefix:
                statement = instruction.statement
                operands = tuple(_renamed(o, prefix, local) for o in statement.operands)
                guard = _renamed(statement.guard, prefix, local) if statement.guard else None
                statement = replace(statement, operands=operands, guard=guard)
                instruction = replace(instruction, statement=statement)
            bound = Bound(start + number, instruction, function.name, leads=start + number in leads)
            self.steps.append(bound)
            self.reading, self.written.now = set(), set()
            try:
                self._step(bound)
            except NotModelled as error:
                self.unknown.append((instruction, error))
            except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
                words = f"`{instruction.statement.name}` with such operands is not known: {error}"
                self.unknown.append((instruction, NotModelled(words, instruction.text)))
            bound.reads, bound.writes = frozenset(self.reading), frozenset(self.written.now)
            bound.touches = bound.reads | bound.writes
        if not function.instructions:
            raise EmulatorError(f"{function.name} has no instructions")

    def _step(self, bound: Bound) -> None:
        statement = bound.source.statement
        call = ModuleCall(self, statement)  # type: ignore[arg-type]
        call.index = bound.index
        if statement.guard is not None:
            bound.guard = call.get(statement.guard, TYPES["pred"])
        make = self.find(statement.name, statement.modifiers)
        if make is None:
            form = ".".join((statement.name, *statement.modifiers))
            raise call.refuse(f"`{form}` is not known")
        bound.step, bound.sums = make(call), call.sums

    def _finish(self) -> None:
        if self.unknown:
            instruction, error = self.unknown[0]
            more = len(self.unknown) - 1
            others = f"\n  and {more} more" if more else ""
            raise UnknownInstructionError(
                f"{error.words}\n  in `{instruction.text}` (line {instruction.line} of the PTX)"
                f"{others}",
                remedy=error.remedy,
                span=span_of(instruction.location),
            )
        dead, self.live_in = dead_after(self)
        for bound, names in zip(self.steps, dead):
            bound.dead = names

    # -- the interface of programs --

    def read(self, call: Call, name: str) -> None:
        self.reading.add(name)

    def special(self, name: str, bits: int) -> Callable[[Any], np.ndarray]:
        return reader(name, bits)


def _renamed(operand: Any, prefix: str, local: Any) -> Any:
    """Return the registers of a function under names that no other function has."""
    if isinstance(operand, Register):
        return replace(operand, name=prefix + operand.name) if operand.name in local else operand
    if isinstance(operand, Vector):
        return Vector(tuple(_renamed(o, prefix, local) for o in operand.items))
    if isinstance(operand, Address):
        more = tuple(_renamed(o, prefix, local) for o in operand.more)
        return Address(_renamed(operand.base, prefix, local), operand.offset, more)
    if isinstance(operand, Part):
        return Part(_renamed(operand.base, prefix, local), operand.selector)
    if isinstance(operand, Pair):
        return Pair(_renamed(operand.first, prefix, local), _renamed(operand.second, prefix, local))
    return operand
