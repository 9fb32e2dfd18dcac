"""The recorder: where the next op goes, and the line and names of the kernel that it belongs to."""

from __future__ import annotations

import linecache
from typing import Any, Optional, Sequence

from gluon_core.simulation.recorder import CallSite
from gluon_sim.errors import SimulatorError
from gluon_sim.tracing.ir import Block, Function, InsertPoint, Location, Op, Region, Value
from gluon_sim.tracing.program import Program
from gluon_sim.tracing.types import FunctionType, Type

__all__ = ["Recorder"]


class Recorder:
    """Writes down ops, blocks and functions in the order in which a kernel is traced."""

    def __init__(self) -> None:
        self._block: Optional[Block] = None
        self._before: Optional[Op] = None
        self._loc = Location()
        self._indent = 0
        self._unbound: list[tuple[str, Sequence[Any]]] = []
        self._site: Optional[CallSite] = None

    def record(
        self,
        name: str,
        args: tuple[Any, ...] = (),
        results: Sequence[Type] = (),
        regions: int = 0,
        kwargs: Optional[dict[str, Any]] = None,
    ) -> Op:
        # Where an operand is left out, newer versions pass an empty handle of their own.
        args = tuple(None if type(a).__name__ == "value" else a for a in args)
        op = Op(name, args, kwargs or {}, results, regions, self._loc)
        op.block, op.site = self._block, self._site
        if self._block is None:
            # Defaults of parameters are evaluated before the function has a body; they are constants.
            if name != "constant":
                raise SimulatorError(f"{name} was recorded outside a function")
        elif self._before is None:
            self._block.ops.append(op)
        else:
            self._block.ops.insert(self._block.ops.index(self._before), op)
        return op

    # ---- insertion points and locations -------------------------------------------------

    def get_insertion_block(self) -> Optional[Block]:
        return self._block

    def get_insertion_point(self) -> InsertPoint:
        return InsertPoint(self._block, self._before)

    def restore_insertion_point(self, point: InsertPoint) -> None:
        self._block, self._before = point.block, point.before

    def set_insertion_point_to_start(self, block: Block) -> None:
        self._block, self._before = block, (block.ops[0] if block.ops else None)
        unbound, self._unbound = self._unbound, []
        for name, values in unbound:
            self.bind_name(name, values)

    def set_insertion_point_to_end(self, block: Block) -> None:
        self._block, self._before = block, None

    def set_insertion_point_after(self, op: Op) -> None:
        assert op.block is not None
        ops = op.block.ops
        following = ops.index(op) + 1
        self._block, self._before = op.block, (ops[following] if following < len(ops) else None)

    def create_block(self) -> Block:
        assert self._block is not None and self._block.region is not None
        return self.create_block_with_parent(self._block.region, [])

    def create_block_with_parent(self, region: Region, types: Sequence[Type]) -> Block:
        block = Block(None, types)
        region.push_back(block)
        self.set_insertion_point_to_end(block)
        return block

    def new_block(self) -> Block:
        return Block(None)

    def create_loc(self, file: str, line: int, column: int) -> Location:
        return Location(file, line, column + self._indent)

    def create_name_loc(self, name: str, child: Optional[Location] = None) -> Location:
        child = child or self._loc
        return Location(child.file, child.line, child.column, name)

    def get_loc(self) -> Location:
        return self._loc

    def set_loc(self, *where: Any) -> None:
        self._loc = where[0] if len(where) == 1 else Location(*where)

    def enter_call(self, site: Optional[CallSite]) -> Optional[CallSite]:
        """Ascribe the ops recorded from here on to this call of the kernel; return the call before."""
        outer, self._site = self._site, site
        return outer

    def bind_name(self, name: str, values: Sequence[Any]) -> None:
        """Record an assignment of the kernel, of values or of one constant, for debuggers and reports."""
        block, before = self._block, self._before
        if block is None:  # parameters, before the function has a body
            self._unbound.append((name, values))
            return
        position = len(block.ops) if before is None else block.ops.index(before)
        anchor = block.ops[position - 1] if position else None
        for i, value in enumerate(values):
            label = name if len(values) == 1 else f"{name}[{i}]"
            if isinstance(value, Value):
                value.call_it(label)
            block.bindings.append((anchor, label, value, self._loc))

    # ---- modules and functions ----------------------------------------------------------

    def create_module(self) -> Program:
        return Program()

    def get_function_ty(self, inputs: Sequence[Type], outputs: Sequence[Type]) -> FunctionType:
        return FunctionType(tuple(inputs), tuple(outputs))

    def get_or_insert_function(
        self,
        module: Program,
        func_name: str,
        func_type: FunctionType,
        visibility: str,
        noinline: Optional[bool] = False,
    ) -> Function:
        # Kernels are parsed dedented; locations count columns in the file.
        head = linecache.getline(self._loc.file, self._loc.line)
        self._indent = len(head) - len(head.lstrip())
        if not module.has_function(func_name):
            public = visibility == "public"
            module.push_back(Function(func_name, func_type, public, bool(noinline), self._loc))
        return module.get_function(func_name)

    def call(self, function: Function, args: Sequence[Value]) -> Op:
        return self.record("call", (function, list(args)), function.type.outputs)

    def ret(self, values: Sequence[Value]) -> Op:
        return self.record("ret", (list(values),))
