"""The semantic layer: the kernel that is being traced, as its ops see it.

An op gets it from `gluon_core.plugin.ops.semantic_layer()`. It checks operands, before a builder can
abort; it makes the ops that every target has; and it holds the builder for the ops of a vendor. All
operands come as the kernel wrote them: a constant may still be a `constexpr`.
"""

from __future__ import annotations

from typing import Any, Callable, Mapping, Optional, Protocol, Sequence, TypeVar, Union

from gluon_core._triton import base_type, dtype, tensor
from gluon_core.features import Feature
from gluon_core.layouts.base import DistributedLayout, Layout, SharedLayout
from gluon_core.plugin.builder import Builder, Enum, Value
from gluon_core.plugin.options import CompileOptions
from gluon_core.plugin.targets import Target
from gluon_core.plugin.typing import (
    BufferLayout,
    Const,
    Dtype,
    KernelFunction,
    Operand,
    RegisterLayout,
    Scalar,
    Shape,
)

__all__ = ["Memory", "MemoryType", "SemanticLayer"]

T = TypeVar("T")
V = TypeVar("V")
M = TypeVar("M", bound="Memory")
Argument = Optional[Const[str]]


class MemoryType(Protocol):
    """Type of a view of on-chip memory."""

    element_ty: dtype
    shape: list[int]
    layout: Any
    alloc_shape: list[int]


class Memory(Protocol):
    """A view of on-chip memory, such as a `shared_memory_descriptor`."""

    handle: Value

    @property
    def type(self) -> MemoryType: ...
    @property
    def dtype(self) -> dtype: ...
    @property
    def shape(self) -> list[int]: ...
    @property
    def rank(self) -> int: ...
    @property
    def layout(self) -> Any: ...


class Trace(Protocol):
    """The kernel at hand: target, options, and notes of its ops.

    Attributes:
        builder: makes the ops; see `gluon_core.plugin.builder`.
        num_warps: warps that run the function.
        passed: grows with all that may wait or be skipped: control flow, calls, waits. A note of a
            function holds as long as it has not grown; an op that waits adds 1.
        until_passed: called once, when `passed` grows.
        notes: of a vendor's ops about the function, by a key of their own.
    """

    builder: Builder
    num_warps: int
    passed: int
    until_passed: list[Callable[[], None]]
    notes: dict[str, Any]

    @property
    def target(self) -> Target: ...
    @property
    def options(self) -> CompileOptions: ...
    @property
    def num_ctas(self) -> int:
        """Blocks of a cluster."""

    def place(self) -> tuple[str, int]:
        """Return file and line of the code that is being traced."""

    def check_capabilities(
        self, public: str, requires: Sequence[str], instead: Optional[str] = None
    ) -> None:
        """Raise CapabilityError for the first of `requires` that the target lacks.

        Args:
            public: the op's name in errors.
            instead: the remedy on such targets.
        """

    def check_assembler(self, subject: str, capability: str, instead: str) -> None:
        """Check a capability that the assembler needs and the compiler does not: the kernel is traced
        without it, and the error comes with the request for machine code."""

    def has(self, feature: Feature) -> bool:
        """Return True if the installed Triton has `feature`."""

    def require(self, feature: Feature, op: str, remedy: Optional[str] = None) -> None:
        """Raise CapabilityError, naming the releases that have it, unless `has(feature)`."""

    def warn(self, text: str) -> None:
        """Warn at the line that is being traced of code that is legal and hardly meant."""


class Operands(Protocol):
    """Checks of single operands, and their conversions."""

    # -- known while the kernel is traced ---------------------------------------------------------

    def compile_time_int(
        self, value: object, argument: str, low: Optional[int] = None, high: Optional[int] = None, loose: bool = False,
    ) -> int:  # fmt: skip
        """Return a compile-time integer of `low` to `high`; ArgumentError for anything else, but `loose` by `errors.refuse`."""

    def compile_time_bool(self, value: object, argument: str) -> bool:
        """Return a compile-time boolean, which 0, 1 and None are, too; ArgumentError for anything else."""

    def one_of(self, argument: str, value: object, choices: Sequence[T]) -> T:
        """Return `value` if it is one of `choices`; ArgumentError with the nearest one."""

    def wrap_axis(self, axis: object, rank: int) -> int:
        """Return an axis of -rank to rank - 1, counted from the front; ShapeError for others."""

    def unwrap_shape(self, shape: Shape, argument: str = "shape") -> list[int]:
        """Return compile-time dimensions as integers; ShapeError for anything else."""

    def check_block_shape(self, shape: Sequence[int], subject: str) -> None:
        """Raise ShapeError unless all dimensions are powers of two."""

    def check_layout(
        self, layout: Optional[RegisterLayout], shape: Sequence[int], argument: str = "layout"
    ) -> DistributedLayout:
        """Return the layout (AutoLayout for None) of a tensor of `shape`.

        Raises:
            LayoutError: not a distributed layout, of another rank, or it spreads the tensor over
                another number of lanes, warps or blocks than the kernel runs with.
        """

    def check_shared_layout(
        self, layout: SharedLayout, shape: list[int], batched: bool, uneven: bool = False
    ) -> None:
        """Raise unless a buffer of `shape` can have the layout.

        Args:
            batched: a first dimension may count buffers.
            uneven: the first extent may be no power of two.

        Raises:
            LayoutError: not a layout for shared memory, or of another rank.
            ShapeError: the dimensions are not positive powers of two.
        """

    def check_available(self, layout: Layout) -> None:
        """Raise CapabilityError where the target has no such layout."""

    def translate_layout(self, layout: Any) -> Layout:
        """Return the class of this package for a layout that a builder returned."""

    def same_places(self, a: Layout, b: Layout, shape: Sequence[int]) -> bool:
        """Return True if both layouts put each element in the same places, however they are spelled."""

    def is_placeholder(self, layout: object) -> bool:
        """Return True for a layout that the compiler replaces by one of its choice."""

    # -- known when the kernel runs ---------------------------------------------------------------

    def to_tensor(self, x: object, check_type: bool = True) -> tensor:
        """Return a number as a scalar of the kernel; a tensor as it is."""

    def require_tensor(self, value: object, argument: str, rank: Optional[int] = None) -> tensor:
        """Return `value` if it is a tensor or scalar (of `rank`); else DtypeError or ShapeError."""

    def require_distributed(self, value: object, argument: str) -> tensor:
        """Return `value` if it is a tensor with a shape and a layout; else DtypeError or ShapeError."""

    def predicate(self, value: object, argument: str = "pred") -> tensor:
        """Return a boolean scalar; DtypeError or ShapeError for anything else."""

    def scalar_int32(self, value: object, argument: str) -> tensor:
        """Return an integer scalar as int32; DtypeError or ShapeError for anything else."""

    def handle_or_absent(self, value: Any) -> Optional[Value]:
        """Return the handle of an optional operand as the builder takes it."""

    def items_of(self, values: object) -> list[Any]:
        """Return the items of a tuple or list; a single value alone, and nothing for None."""

    def shape_of(self, value: Any) -> list[int]:
        """Return the shape of a tensor as integers; [] for a scalar."""

    def describe(self, value: object) -> str:
        """Return the description of a value for errors."""

    def same_bits(self, one: dtype, other: dtype) -> bool:
        """Return True for equal dtypes, and for integers that differ in their sign alone."""


class Products(Protocol):
    """Checks of the operands of matrix units."""

    def check_matmul_shapes(
        self, a: Sequence[int], b: Sequence[int], acc: Sequence[int], batches: bool = True
    ) -> None:
        """Raise ShapeError unless the shapes multiply; with `batches` all may have one dimension more."""

    def check_matmul_dtypes(
        self,
        unit: str,
        a: dtype,
        b: dtype,
        acc: dtype,
        accumulators: Mapping[dtype, Sequence[dtype]],
        families: Sequence[Sequence[dtype]] = (),
        isa: str = "",
    ) -> None:
        """Raise DtypeError unless a matrix unit multiplies `a` by `b` and adds up in `acc`.

        Args:
            unit: its name.
            accumulators: for each dtype of operands, those of accumulators.
            families: dtypes of which the two operands may be any.
            isa: where the manual says so.
        """

    def check_k_width(self, a: tensor, b: tensor, least: int = 1) -> None:
        """Raise LayoutError unless both operands' layouts have one k_width, of `least` or more."""

    def check_dot_operands(self, a: tensor, b: tensor, acc: tensor) -> None:
        """Raise LayoutError unless `a` and `b` have the DotOperandLayouts of `acc`'s layout."""

    def enum(self, family: str, name: str) -> Enum:
        """Return a member of one of the builder's enums, such as `enum("ATOMIC_OP", "ADD")`."""

    def dot_precision(self, name: str) -> Enum:
        """Return the builder's enum of a precision of products, such as "ieee" or "tf32"."""

    def scale_format(self, name: str) -> Enum:
        """Return the builder's enum of a format of scaled products, such as "e4m3"."""


class OnChip(Protocol):
    """Shared memory, barriers there, and views of any memory on the chip."""

    def allocate_shared(
        self,
        element_ty: Dtype,
        shape: Shape,
        layout: BufferLayout,
        value: Optional[tensor] = None,
    ) -> Any:
        """Allocate a `shared_memory_descriptor`, with `value` in it. See `gl.allocate_shared_memory`."""

    def shared_load(self, mem: Memory, layout: Optional[RegisterLayout]) -> tensor:
        """Load a buffer; see `shared_memory_descriptor.load`."""

    def shared_store(self, mem: Memory, value: tensor) -> None:
        """Store to a buffer; see `shared_memory_descriptor.store`."""

    def memdesc_index(self, mem: M, index: Scalar[int], remedy: Optional[str] = None) -> M:
        """Return one of several buffers, in shared memory or other.

        Args:
            remedy: for a view of one buffer.

        Raises:
            ShapeError: the view has no dimension that counts buffers, or is of parts of them, or the
                index is known and leaves it.
            DtypeError: the index is not an integer of up to 32 bits.
        """

    def shared_memory(self, value: V, argument: str) -> V:
        """Return `value` if it is a view of shared memory that can be used; else DtypeError or ShapeError."""

    def require_unbatched(self, mem: Memory) -> None:
        """Raise LayoutError where the first dimension of a buffer counts copies."""

    def check_barrier(self, value: V, argument: str, remedy: str, seen: Optional[int] = None) -> V:
        """Return `value` if it is a barrier in shared memory.

        Args:
            remedy: how such a barrier is allocated.
            seen: barriers of a cluster that its shape counts; those of its layout by default.

        Raises:
            DtypeError: no shared memory, or not of 64-bit integers.
            LayoutError: not the layout of a barrier.
            ShapeError: not one barrier per block.
        """

    def check_stored(self, memory: MemoryType, value: object, first: bool = False) -> None:
        """Raise ShapeError or DtypeError unless `value` is a tensor that fits a buffer's type.

        Args:
            first: the value initializes an allocation; integers may be of the other sign.
        """

    def check_view_size(
        self, have: int, want: int, unit: str, memory: Optional[Memory] = None
    ) -> None:
        """Raise ShapeError for another view of memory that the installed compiler refuses.

        Args:
            have: size of the view that there is, which `memory` may give.
            want: that of the one to be made of it.
            unit: of these sizes, in the plural.
        """

    def check_copied(
        self, memory: Memory, source: tensor, element: dtype, argument: str, bits: bool = False
    ) -> None:
        """Raise unless a buffer has the dtype and shape of the elements that `source` points to.

        Args:
            bits: a dtype of the same width does, too.

        Raises:
            DtypeError, ShapeError: it has not.
        """

    def consecutive_elements(
        self, layout: DistributedLayout, shared: SharedLayout, shape: Sequence[int]
    ) -> Optional[int]:
        """Return how many consecutive registers of each thread go to consecutive addresses of `shared`;
        None where a layout has no linear form."""

    # -- for who records the kernel ---------------------------------------------------------------

    def record(self, event: str, *values: Any) -> None:
        """Pass an event, with handles of values, to a builder that records the kernel
        (`gluon_core.simulation.recorder.Recorder`); others ignore it."""

    def deferred_store(
        self, mem: Memory, value: tensor, ptr: Any, offsets: Any, mask: Optional[Operand]
    ) -> None:
        """Store a value loaded from `ptr` + `offsets`: a copy that counts as done after a wait."""


class Global(Protocol):
    """Global memory."""

    def check_pointer(self, pointer: object, argument: str = "pointer") -> tensor:
        """Return `pointer` if it is one, or a tensor of pointers; DtypeError for anything else."""

    def check_mask(
        self, pointer: tensor, mask: Optional[Operand], argument: str = "mask"
    ) -> Optional[tensor]:
        """Return the mask of an access as booleans that may accompany `pointer`."""

    def masked(
        self,
        source: tensor,
        element: dtype,
        mask: Optional[Operand],
        other: Optional[Operand] = None,
        subject: str = "pointer",
        other_alone: bool = False,
    ) -> tuple[Optional[tensor], Optional[tensor]]:
        """Return the mask of an access and the values where it is false, with the shape and layout of
        `source`.

        Args:
            source: tensor of the pointers or offsets that are accessed.
            element: dtype that `other` is cast to.
            subject: the name of `source` in errors.
            other_alone: `other` may come without a mask, which changes nothing.

        Raises:
            DtypeError: the mask is not boolean.
            ShapeError: mask or other do not fit.
            ArgumentError: `other` without a mask.
        """

    def like(self, source: tensor, value: tensor, argument: str, subject: str) -> tensor:
        """Return `value` with the shape and layout of `source`; `subject` is its name in errors."""

    def cache_operands(
        self, cache: Argument, eviction: Argument = None, policy: Any = None, store: bool = False
    ) -> tuple[Any, ...]:
        """Return the hints of an asynchronous copy as its builder takes them.

        Raises:
            ArgumentError: no such hint, or the two strings and the policy that replaces them.
        """

    def cache_modifier(
        self, name: Argument, store: bool = False, argument: str = "cache_modifier"
    ) -> Enum:
        """Return the builder's enum of a cache modifier of loads or stores; ArgumentError if none."""

    def memory_order(self, sem: Argument, scope: Argument) -> tuple[Enum, Enum]:
        """Return the builder's enums of the order and the scope of an atomic op; ArgumentError if none."""

    def load_global(
        self,
        pointer: Operand,
        mask: Optional[Operand] = None,
        other: Optional[Operand] = None,
        cache_modifier: Argument = None,
        eviction_policy: Argument = None,
        volatile: Const[bool] = False,
        cache_policy: Any = None,
    ) -> tensor:
        """See `gl.load`."""

    def store_global(
        self,
        pointer: Operand,
        value: Operand,
        mask: Optional[Operand] = None,
        cache_modifier: Argument = None,
        eviction_policy: Argument = None,
        cache_policy: Any = None,
    ) -> Any:
        """See `gl.store`."""


class Registers(Protocol):
    """Tensors in registers: making them, their layouts and shapes, arithmetic."""

    def make_tensor(self, handle: Value, type: base_type) -> tensor:
        """Return the tensor of `type` that is `handle`."""

    def tensor_type(self, element_ty: dtype, shape: Sequence[int], layout: RegisterLayout) -> Any:
        """Return the type of a tensor, checked as `check_layout` does; the dtype for an empty shape."""

    def wrap_inferred(self, handle: Value, element_ty: dtype, shape: Sequence[int]) -> tensor:
        """Return the tensor that is `handle`, with the layout that the builder inferred."""

    def scalar_constant(self, value: Union[bool, int, float], dtype: dtype) -> tensor: ...
    def make_scalar(self, value: object, dtype: dtype) -> tensor:
        """Return a number, or a tensor of one element, as a scalar of `dtype`."""

    def full(
        self,
        shape: Shape,
        value: object,
        dtype: Optional[dtype],
        layout: Optional[RegisterLayout] = None,
    ) -> tensor: ...
    def arange(
        self, start: Const[int], end: Const[int], layout: Optional[RegisterLayout] = None
    ) -> tensor: ...

    def convert_layout(
        self, value: tensor, layout: RegisterLayout, assert_trivial: Const[bool] = False
    ) -> tensor: ...
    def unify_layouts(self, lhs: tensor, rhs: tensor) -> tuple[tensor, tensor]:
        """Return both with one layout, where one of them has none of its own yet."""

    def broadcast_impl_value(self, lhs: tensor, rhs: tensor) -> tuple[tensor, tensor]:
        """Return both with one shape and layout."""

    def reshape(
        self, input: tensor, dst_shape: Sequence[int], can_reorder: Const[bool] = False
    ) -> tensor: ...
    def permute(self, input: tensor, dims: Sequence[int]) -> tensor: ...
    def expand_dims(self, input: tensor, axis: int) -> tensor: ...
    def split_columns(self, value: tensor, width: int) -> list[tensor]:
        """Return the parts of `width` columns of a tensor, left to right."""

    def moved_right(self, place: Sequence[tensor], columns: int) -> list[tensor]:
        """Return coordinates `columns` further to the right."""

    def join(self, a: Operand, b: Operand) -> tensor: ...
    def split(self, a: tensor) -> tuple[tensor, tensor]: ...

    def cast(
        self, input: tensor, dst_ty: dtype, fp_downcast_rounding: Optional[str] = None
    ) -> tensor: ...
    def bitcast(self, input: tensor, dst_ty: dtype) -> tensor: ...
    def add(self, input: Operand, other: Operand, sanitize_overflow: bool) -> tensor: ...
    def sub(self, input: Operand, other: Operand, sanitize_overflow: bool) -> tensor: ...
    def mul(self, input: Operand, other: Operand, sanitize_overflow: bool) -> tensor: ...
    def floordiv(self, input: Operand, other: Operand) -> tensor: ...
    def mod(self, input: Operand, other: Operand) -> tensor: ...
    def minus(self, input: tensor) -> tensor: ...
    def and_(self, input: Operand, other: Operand) -> tensor: ...
    def or_(self, input: Operand, other: Operand) -> tensor: ...
    def xor_(self, input: Operand, other: Operand) -> tensor: ...
    def shl(self, input: Operand, other: Operand) -> tensor: ...
    def lshr(self, input: Operand, other: Operand) -> tensor: ...
    def equal(self, input: Operand, other: Operand) -> tensor: ...
    def not_equal(self, input: Operand, other: Operand) -> tensor: ...
    def less_than(self, input: Operand, other: Operand) -> tensor: ...
    def greater_than(self, input: Operand, other: Operand) -> tensor: ...
    def greater_equal(self, input: Operand, other: Operand) -> tensor: ...
    def minimum(self, x: tensor, y: tensor, propagate_nan: Enum) -> tensor: ...
    def maximum(self, x: tensor, y: tensor, propagate_nan: Enum) -> tensor: ...
    def clamp(self, x: tensor, min: tensor, max: tensor, propagate_nan: Enum) -> tensor: ...
    def where(self, condition: tensor, x: Operand, y: Operand) -> tensor: ...
    def dot_fma(self, a: tensor, b: tensor, acc: tensor) -> tensor: ...


class Control(Protocol):
    """Threads rather than data."""

    def barrier(self, cluster: Const[bool] = False) -> None:
        """See `gl.barrier`."""

    def program_number(self, place: Optional[Sequence[tensor]] = None) -> tensor:
        """Return the number of the program at `place`, an id for each axis; of this one by default."""

    def programs(self) -> tensor:
        """Return how many programs were launched."""

    def call(self, function: KernelFunction, *args: Any) -> Any:
        """Trace a function of the kernel's language, as a call in the kernel would, and return its result.

        Raises:
            NotInKernelError: host code runs the op, not a kernel.
        """


class SemanticLayer(Trace, Operands, Products, OnChip, Global, Registers, Control, Protocol):
    """The semantic layer of one function that is being traced.

    It has the methods that vendors call; other ops of `gl` are called as kernels call them.
    """
