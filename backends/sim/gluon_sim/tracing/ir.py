"""Typed SSA ops in blocks and regions, each with the kernel line it came from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Iterator, Optional, Sequence, Union

import numpy as np

from gluon_core.simulation.recorder import CallSite
from gluon_sim.tracing.types import FunctionType, Type

__all__ = [
    "PORTABLE",
    "TERMINATORS",
    "UNKNOWN",
    "Block",
    "Function",
    "InsertPoint",
    "Location",
    "Op",
    "Region",
    "Value",
]


@dataclass(unsafe_hash=True)
class Location:
    """A place in the kernel's source: 1-based line, 0-based column.

    Each node of a kernel makes two, and a frozen one takes four times as long.
    """

    file: str = ""
    line: int = 0
    column: int = 0
    name: Optional[str] = None

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column + 1}"

    def get_name(self) -> Optional[str]:
        return self.name

    def set_name(self, name: str) -> None:
        self.name = name


UNKNOWN = Location()
# Portable ops that are done at once where the target is so, by the op that holds them to more.
PORTABLE = {"deferred_store": "gl.portable.async_copy", "deferred_read": "gl.portable.mma"}


@dataclass
class InsertPoint:
    block: Optional["Block"]
    before: Optional["Op"]


class Value:
    """One SSA value: a result of an op, or an argument of a block."""

    __slots__ = ("type", "owner", "index", "replacement", "slot", "name", "attrs")

    def __init__(self, type: Type, owner: Union[Op, Block], index: int):
        self.type = type
        self.owner = owner
        self.index = index
        self.replacement: Optional[Value] = None
        self.slot = -1
        self.name: Optional[str] = None
        self.attrs: Optional[dict[str, Any]] = None

    def resolve(self) -> "Value":
        value = self
        while value.replacement is not None:
            value = value.replacement
        return value

    def get_type(self) -> Type:
        return self.type

    def get_loc(self) -> Location:
        return self.owner.loc if isinstance(self.owner, Op) else UNKNOWN

    def set_loc(self, loc: Location) -> None:
        """Only the name matters: an op keeps the line it was recorded at."""
        if loc.name:
            self.call_it(loc.name)

    def call_it(self, name: str) -> None:
        """Take the name of a variable; the first one stays, but for a more exact one."""
        if self.name is None or name.startswith((f"{self.name}.", f"{self.name}[")):
            self.name = name

    def replace_all_uses_with(self, other: "Value") -> None:
        self.replacement = other

    def set_attr(self, name: str, value: Any) -> None:
        """Keep a hint such as `multiple_of`'s: it changes no result, but it can be checked."""
        self.attrs = {**(self.attrs or {}), name: value}

    def get_context(self) -> Any:
        """Return the type of Triton's semantic layer for a hint."""
        from gluon_core.plugin import ops

        return ops.ir.context()

    def get_defining_op(self) -> Optional["Op"]:
        return self.owner if isinstance(self.owner, Op) else None

    def id(self) -> int:
        return id(self)


class Op:
    """One recorded builder call.

    `name` is the builder method without `create_`; `args` are its arguments as they came, values
    (and lists of values) among plain Python attributes.

    Attributes:
        used: whether anything reads its result, once somebody asked.
        orders: whether an atomic acquires, releases, and reaches its program alone, once somebody
            asked.
        late: whether an arrival comes before anything uses its result, once somebody asked.
        ufunc: of a reduction, the ufunc of its combine region or None, once somebody asked.
        site: the call of the kernel for which it was recorded; None in library functions.
    """

    __slots__ = (
        "name", "args", "kwargs", "results", "regions", "loc", "block", "attrs", "used", "orders",
        "ufunc", "site", "late",
    )  # fmt: skip

    def __init__(
        self,
        name: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        result_types: Sequence[Type],
        regions: int,
        loc: Location,
    ):
        self.name = name
        self.args = args
        self.kwargs = kwargs
        self.results = [Value(t, self, i) for i, t in enumerate(result_types)]
        self.regions = [Region(self) for _ in range(regions)]
        self.loc = loc
        self.block: Optional[Block] = None
        self.attrs: dict[str, Any] = {}
        self.used: Optional[bool] = None
        self.orders: Optional[tuple[bool, bool, bool]] = None
        self.ufunc: Optional[tuple[Optional[np.ufunc]]] = None
        self.site: Optional[CallSite] = None
        self.late: Optional[bool] = None

    @property
    def called(self) -> str:
        """Return the function that the kernel calls for it; the op's own name without such a call."""
        return PORTABLE.get(self.name, self.name) if self.site is None else self.site.function

    def operands(self) -> Iterator[Value]:
        # Asked some fifteen times of every op of a kernel.
        for arg in (*self.args, *self.kwargs.values()) if self.kwargs else self.args:
            if type(arg) is Value:
                yield arg if arg.replacement is None else arg.resolve()
            elif isinstance(arg, (list, tuple)):
                for item in arg:
                    if type(item) is Value:
                        yield item.resolve()

    # queries of code generators
    def get_result(self, index: int) -> Value:
        return self.results[index]

    def get_num_results(self) -> int:
        return len(self.results)

    def get_region(self, index: int) -> "Region":
        return self.regions[index]

    def get_num_regions(self) -> int:
        return len(self.regions)

    def get_body(self, index: int = 0) -> "Block":
        return self.regions[index].blocks[0]

    def get_operation(self) -> "Op":
        return self

    def get_block(self) -> Optional["Block"]:
        return self.block

    def get_operand(self, index: int) -> Value:
        return list(self.operands())[index]

    def get_num_operands(self) -> int:
        return len(list(self.operands()))

    def get_name(self) -> str:
        return self.name

    def set_attr(self, name: str, value: Any) -> None:
        self.attrs[name] = value

    def get_loc(self) -> Location:
        return self.loc

    def verify(self) -> bool:
        return True

    def erase(self) -> None:
        if self.block is not None:
            self.block.ops.remove(self)
            self.block = None

    # structured control flow
    def get_then_block(self) -> "Block":
        return self.regions[0].blocks[0]

    def get_else_block(self) -> "Block":
        return self.regions[1].blocks[0]

    def get_then_yield(self) -> "Op":
        return self.get_then_block().ops[-1]

    def get_else_yield(self) -> "Op":
        return self.get_else_block().ops[-1]

    def get_before(self) -> "Region":
        return self.regions[0]

    def get_after(self) -> "Region":
        return self.regions[1]

    def get_induction_var(self) -> Value:
        return self.regions[0].blocks[0].arguments[0]

    # warp specialization
    def get_default_region(self) -> "Region":
        return self.regions[0]

    def get_partition_op_holder(self) -> "Region":
        return self.regions[1]

    def set_requested_registers(self, registers: Sequence[int]) -> None:
        self.attrs["requested_registers"] = list(registers)


TERMINATORS = frozenset(
    "ret branch cond_branch yield_op condition_op reduce_ret scan_ret map_elementwise_ret "
    "warp_yield warp_return".split()
)


class Block:
    """A list of ops with arguments."""

    def __init__(self, region: Optional["Region"], types: Sequence[Type] = ()):
        self.region = region
        self.ops: list[Op] = []
        self.arguments = [Value(t, self, i) for i, t in enumerate(types)]
        self.order = -1
        # (the last op before it or None, name, value or constant, place) of each assignment, in order
        self.bindings: list[tuple[Optional[Op], str, Any, Location]] = []

    def add_argument(self, type: Type, loc: Any = None) -> Value:
        self.arguments.append(Value(type, self, len(self.arguments)))
        return self.arguments[-1]

    add_argument_at = add_argument

    def arg(self, index: int) -> Value:
        return self.arguments[index]

    get_argument = arg

    def get_num_arguments(self) -> int:
        return len(self.arguments)

    def get_parent(self) -> Optional["Region"]:
        return self.region

    def has_terminator(self) -> bool:
        return bool(self.ops) and self.ops[-1].name in TERMINATORS

    def get_terminator(self) -> Optional[Op]:
        return self.ops[-1] if self.has_terminator() else None

    def merge_block_before(self, target: "Block") -> None:
        """Move this block's ops to the start of `target`; this block is gone then."""
        for op in self.ops:
            op.block = target
        target.ops[:0] = self.ops
        target.bindings[:0] = self.bindings
        self.ops, self.bindings = [], []
        self.erase()

    def erase(self) -> None:
        if self.region is not None:
            self.region.blocks.remove(self)
            self.region = None

    def id(self) -> int:
        return id(self)


class Region:
    def __init__(self, owner: Union[Op, Function]):
        self.owner = owner
        self.blocks: list[Block] = []

    def size(self) -> int:
        return len(self.blocks)

    def empty(self) -> bool:
        return not self.blocks

    def push_back(self, block: Block) -> None:
        block.region = self
        self.blocks.append(block)

    def get_parent_region(self) -> Optional["Region"]:
        block = self.owner.block if isinstance(self.owner, Op) else None
        return block.region if block is not None else None

    def id(self) -> int:
        return id(self)


class Function:
    """A kernel or a function it calls."""

    def __init__(self, name: str, type: FunctionType, public: bool, noinline: bool, loc: Location):
        self.name = name
        self.type = type
        self.public = public
        self.noinline = noinline
        self.loc = loc
        self.body = Region(self)
        self.arg_attrs: dict[int, dict[str, Any]] = {}
        self.attrs: dict[str, Any] = {}

    def add_entry_block(self) -> Block:
        block = Block(self.body, self.type.inputs)
        self.body.blocks.append(block)
        return block

    @property
    def arguments(self) -> list[Value]:
        if not self.body.blocks:
            self.add_entry_block()
        return self.body.blocks[0].arguments

    def args(self, index: int) -> Value:
        return self.arguments[index]

    def get_num_args(self) -> int:
        return len(self.type.inputs)

    def set_arg_attr(self, index: int, name: str, value: Any) -> None:
        self.arg_attrs.setdefault(index, {})[name] = value

    def set_attr(self, name: str, value: Any) -> None:
        self.attrs[name] = value

    def reset_type(self, type: FunctionType) -> None:
        self.type = type

    def finalize(self) -> None:
        """Drop blocks that nothing can reach: code after a return."""
        reached, todo = set(), self.body.blocks[:1]
        while todo:
            block = todo.pop()
            if id(block) in reached:
                continue
            reached.add(id(block))
            if block.ops:
                todo += [a for a in block.ops[-1].args if isinstance(a, Block)]
        self.body.blocks = [b for b in self.body.blocks if id(b) in reached]

    def id(self) -> int:
        return id(self)
