"""A recorded program: typed SSA ops in blocks and regions, each with the kernel line it came from.

The builder writes it, the machine runs it, `str(program)` prints it.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from typing import Any, Iterator, Optional, Sequence

__all__ = [
    "Block", "DescriptorType", "FunctionType", "Function", "InsertPoint", "Location", "MemDescType", "Op", "OpaqueType",
    "PointerType", "Program", "Region", "ScalarType", "TensorType", "Type", "Value",
]  # fmt: skip

BITS = {
    "i1": 1, "i8": 8, "i16": 16, "i32": 32, "i64": 64, "i128": 128, "fp16": 16, "bf16": 16,
    "fp32": 32, "fp64": 64, "fp8e4nv": 8, "fp8e4b8": 8, "fp8e4b15": 8, "fp8e5": 8, "fp8e5b16": 8,
}  # fmt: skip


# ---- types ----------------------------------------------------------------------------------


class Type:
    """Base of all types. Compare with `==`."""

    @property
    def element(self) -> "Type":
        """What one element is; a scalar is its own element."""
        return self

    @property
    def dims(self) -> tuple[int, ...]:
        return ()

    def with_element(self, element: "Type") -> "Type":
        """The same shape and layout, other elements."""
        return element

    def get_context(self) -> None:
        return None


@dataclass(frozen=True)
class ScalarType(Type):
    name: str

    @property
    def bits(self) -> int:
        return BITS[self.name]

    @property
    def is_float(self) -> bool:
        return self.name[0] in "fb"

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class PointerType(Type):
    pointee: Type
    address_space: Any = 1

    bits = 64

    def __str__(self) -> str:
        return f"*{self.pointee}"


@dataclass(frozen=True)
class TensorType(Type):
    elem: Type
    shape: tuple[int, ...]
    layout: Any = None

    @property
    def element(self) -> Type:
        return self.elem

    @property
    def dims(self) -> tuple[int, ...]:
        return self.shape

    def with_element(self, element: Type) -> Type:
        return replace(self, elem=element)

    def __str__(self) -> str:
        dims = "x".join(map(str, self.shape))
        layout = "" if self.layout is None else f", {self.layout}"
        return f"tensor<{dims}x{self.elem}{layout}>"


@dataclass(frozen=True)
class MemDescType(Type):
    """A buffer in shared (or tensor) memory, or a view of one."""

    elem: Type
    shape: tuple[int, ...]
    layout: Any
    alloc_shape: tuple[int, ...]
    space: str = "shared"

    @property
    def element(self) -> Type:
        return self.elem

    @property
    def dims(self) -> tuple[int, ...]:
        return self.shape

    def __str__(self) -> str:
        dims = "x".join(map(str, self.shape))
        return f"memdesc<{dims}x{self.elem}, {self.layout}, {self.space}>"


@dataclass(frozen=True)
class OpaqueType(Type):
    """A type that only the op that makes it and the ops that take it understand."""

    name: str
    fields: tuple = ()

    def __str__(self) -> str:
        return f"{self.name}<{', '.join(map(str, self.fields))}>" if self.fields else self.name


@dataclass(frozen=True)
class DescriptorType(OpaqueType):
    """A tensor descriptor; `fields` are the type of the box, whether its elements are signed, and
    its layout in shared memory."""

    @property
    def element(self) -> Type:
        return self.fields[0].element


@dataclass(frozen=True)
class FunctionType(Type):
    inputs: tuple[Type, ...]
    outputs: tuple[Type, ...]


# ---- places ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Location:
    """A place in the kernel's source: 1-based line, 0-based column."""

    file: str = ""
    line: int = 0
    column: int = 0
    name: Optional[str] = None

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column + 1}"

    def get_name(self) -> Optional[str]:
        return self.name

    def set_name(self, name: str) -> None:
        object.__setattr__(self, "name", name)


UNKNOWN = Location()


@dataclass
class InsertPoint:
    block: Optional["Block"]
    before: Optional["Op"]


# ---- values and ops -------------------------------------------------------------------------


class Value:
    """One SSA value: a result of an op, or an argument of a block."""

    __slots__ = ("type", "owner", "index", "replacement", "slot", "name", "attrs")

    def __init__(self, type: Type, owner: Any, index: int):
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

    def set_type(self, type: Type) -> None:
        self.type = type

    def get_loc(self) -> Location:
        return self.owner.loc if isinstance(self.owner, Op) else UNKNOWN

    def set_loc(self, loc: Location) -> None:
        """Only the name matters: an op keeps the line it was recorded at."""
        if loc.name:
            self.name = loc.name

    def replace_all_uses_with(self, other: "Value") -> None:
        self.replacement = other

    def set_attr(self, name: str, value: Any) -> None:
        """Keep a hint such as `multiple_of`'s: it changes no result, but it can be checked."""
        self.attrs = {**(self.attrs or {}), name: value}

    def get_context(self) -> Any:
        """What Triton's semantic layer would make a hint in."""
        from gluon_core import _triton

        return _triton.ir.context()

    def get_defining_op(self) -> Optional["Op"]:
        return self.owner if isinstance(self.owner, Op) else None

    def id(self) -> int:
        return id(self)


class Op:
    """One recorded builder call.

    `name` is the builder method without `create_`; `args` are its arguments as they came, values
    (and lists of values) among plain Python attributes.
    """

    __slots__ = ("name", "args", "kwargs", "results", "regions", "loc", "block", "attrs")

    def __init__(
        self,
        name: str,
        args: tuple,
        kwargs: dict,
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
        self.attrs: dict = {}

    def operands(self) -> Iterator[Value]:
        for arg in itertools.chain(self.args, self.kwargs.values()):
            if isinstance(arg, Value):
                yield arg.resolve()
            elif isinstance(arg, (list, tuple)):
                for item in arg:
                    if isinstance(item, Value):
                        yield item.resolve()

    # what code generators ask of an operation
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
        # (the last op before it or None, name, value or constant) of each assignment, in order
        self.bindings: list[tuple[Optional[Op], str, Any]] = []

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

    has_return = has_terminator

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

    def replace_use_in_block_with(self, old: Value, new: Value) -> None:
        def swap(arg: Any) -> Any:
            if arg is old:
                return new
            if isinstance(arg, (list, tuple)):
                return type(arg)(swap(a) for a in arg)
            return arg

        for op in self.ops:
            op.args = tuple(swap(a) for a in op.args)

    def erase(self) -> None:
        if self.region is not None:
            self.region.blocks.remove(self)
            self.region = None

    def move_before(self, other: "Block") -> None:
        self.erase()
        self.region = other.region
        assert other.region is not None
        other.region.blocks.insert(other.region.blocks.index(other), self)

    def id(self) -> int:
        return id(self)


class Region:
    def __init__(self, owner: Any):
        self.owner = owner
        self.blocks: list[Block] = []

    def size(self) -> int:
        return len(self.blocks)

    def empty(self) -> bool:
        return not self.blocks

    def push_back(self, block: Block) -> None:
        block.region = self
        self.blocks.append(block)

    def push_front(self, block: Block) -> None:
        block.region = self
        self.blocks.insert(0, block)

    def get_parent_region(self) -> Optional["Region"]:
        block = getattr(self.owner, "block", None)
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
        self.arg_attrs: dict[int, dict] = {}
        self.attrs: dict = {}

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
        """Drop blocks that nothing can reach: what stands after a return."""
        reached, todo = set(), self.body.blocks[:1]
        while todo:
            block = todo.pop()
            if id(block) in reached:
                continue
            reached.add(id(block))
            if block.ops:
                todo += [a for a in block.ops[-1].args if isinstance(a, Block)]
        self.body.blocks = [b for b in self.body.blocks if id(b) in reached]

    def has_return(self) -> bool:
        return True

    def id(self) -> int:
        return id(self)


class Program:
    """All functions that one kernel specialization needs; the public one is the kernel."""

    def __init__(self) -> None:
        self.functions: dict[str, Function] = {}
        self.context: Any = None
        self.attrs: dict = {}

    def has_function(self, name: str) -> bool:
        return name in self.functions

    def get_function(self, name: str) -> Function:
        return self.functions[name]

    def push_back(self, function: Function) -> None:
        self.functions[function.name] = function

    def get_entry_func_name(self) -> str:
        return self.kernel.name

    @property
    def kernel(self) -> Function:
        for function in self.functions.values():
            if function.public:
                return function
        raise LookupError("the program has no kernel")

    def verify(self) -> bool:
        return True

    def verify_with_diagnostics(self) -> tuple[bool, str]:
        return True, ""

    def set_attr(self, name: str, value: Any) -> None:
        self.attrs[name] = value

    def walk_ops(self) -> Iterator[Op]:
        """Every op, also those in nested regions."""

        def walk(region: Region) -> Iterator[Op]:
            for block in region.blocks:
                for op in block.ops:
                    yield op
                    for inner in op.regions:
                        yield from walk(inner)

        for function in self.functions.values():
            yield from walk(function.body)

    def str_nodebug(self) -> str:
        """The text without source locations."""
        from .text import render

        return render(self, locations=False)

    def __str__(self) -> str:
        from .text import render

        return render(self, locations=True)
