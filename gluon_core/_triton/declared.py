"""Triton's values as kernels use them, for editors and checkers; nothing runs this.

Triton's own classes hardly declare the types of their operators and methods, and their signatures show
the parameters of the code generator. This file declares the names that kernels may use, on every
supported release; `tests/frontend/test_types.py` compares it with the classes that are installed.

No stub file: next to a partial stub package such as `gluon types` writes, pyright reads none of the
package's own.
"""

# mypy: disable-error-code="empty-body"

from __future__ import annotations

import builtins
from typing import (
    TYPE_CHECKING,
    Any,
    Callable,
    Iterator,
    Optional,
    Sequence,
    TypeVar,
    Union,
    overload,
)

F = TypeVar("F", bound=Callable[..., Any])

if TYPE_CHECKING:
    # Attributes of the object inside are its own, and it may stand wherever the object may.
    class constexpr(Any):  # type: ignore[misc]
        """A compile-time value, and the annotation of a parameter that takes one."""

        value: Any

        def __init__(self, value: Any) -> None: ...
else:
    constexpr = object  # before Python 3.11 no class derives from Any


def constexpr_function(fn: F) -> F:
    """Return a Python function of compile-time values that kernels may call."""


def __getattr__(name: str) -> Any:
    """Return further names of `triton.language`."""


class base_type:
    """Type of a value of a kernel."""

    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
    def mangle(self) -> str:
        """Return a name for the type inside names of functions."""

    def _flatten_ir_types(self, builder: Any, out: list[Any]) -> None: ...
    def _unflatten_ir(self, handles: Sequence[Any], cursor: int) -> builtins.tuple[Any, int]: ...


class base_value:
    """A value of a kernel."""

    type: Any

    def _flatten_ir(self, handles: list[Any]) -> None: ...
    def _set_name(self, builder: Any, name: str) -> None: ...


class dtype(base_type):
    """An element type, such as `gl.float16`."""

    name: str
    primitive_bitwidth: int
    itemsize: int
    fp_mantissa_width: int
    exponent_bias: int

    def __init__(self, name: str) -> None: ...
    def get_int_min_value(self) -> int: ...
    def get_int_max_value(self) -> int: ...
    def is_fp8(self) -> bool: ...

    is_fp16 = is_bf16 = is_fp32 = is_fp64 = is_fp8
    is_int1 = is_int8 = is_int16 = is_int32 = is_int64 = is_fp8
    is_uint8 = is_uint16 = is_uint32 = is_uint64 = is_fp8
    is_int_signed = is_int_unsigned = is_bool = is_block = is_void = is_const = is_fp8
    is_fp8e4nv = is_fp8e4b8 = is_fp8e4b15 = is_fp8e5 = is_fp8e5b16 = is_standard_floating = is_fp8

    def is_floating(self) -> bool:
        """Return True if its values are floating-point numbers."""

    def is_int(self) -> bool:
        """Return True if its values are integers."""

    def is_ptr(self) -> bool:
        """Return True if its values are pointers."""

    @staticmethod
    def is_dtype(type_str: str) -> bool:
        """Return True if `type_str` is the name of an element type."""

    @property
    def scalar(self) -> dtype:
        """dtype of one element."""

    element_ty: dtype
    """Return the type that a pointer's dtype points to."""

    def to_ir(self, builder: Any) -> Any: ...


class pointer_type(dtype):
    """dtype of pointers to `element_ty`."""

    address_space: int
    const: bool

    def __init__(self, element_ty: dtype, address_space: int = 1, const: bool = False) -> None: ...


class block_type(dtype):
    """Type of a tensor: `element_ty` and `shape`."""

    shape: Any
    numel: int
    nbytes: int

    def __init__(self, element_ty: dtype, shape: Sequence[Any]) -> None: ...


class tuple_type(base_type):
    """Type of a tuple of values."""

    types: Sequence[Any]

    def __init__(self, types: Sequence[Any], fields: Any = None) -> None: ...


class tuple(base_value):
    """A tuple of values of a kernel; Python's tuples in kernels have this class."""

    values: Sequence[Any]

    def __init__(self, args: Sequence[Any], type: Optional[tuple_type] = None) -> None: ...
    def __getitem__(self, index: Union[int, slice, constexpr]) -> Any: ...
    def __iter__(self) -> Iterator[Any]: ...
    def __len__(self) -> int: ...
    def __add__(self, other: Any) -> tuple: ...
    def __mul__(self, other: Union[int, constexpr]) -> tuple: ...


class static_range:
    """`range` of compile-time integers: the loop is unrolled while the kernel is traced."""

    def __init__(
        self,
        arg1: Union[int, constexpr],
        arg2: Optional[Union[int, constexpr]] = None,
        step: Optional[Union[int, constexpr]] = None,
    ) -> None: ...
    def __iter__(self) -> Iterator[constexpr]: ...


_dtype = dtype  # `tensor` has an attribute of that name
Dtype = Union[dtype, constexpr]
ConstInt = Union[int, constexpr]
ConstBool = Union[bool, constexpr]
ConstStr = Union[str, constexpr]
Operand = Union["tensor", int, float, bool, constexpr]


class tensor(base_value):
    """Numbers or pointers in registers: a tensor spread over the threads by a layout, or a scalar.

    Operators work on elements; operands are broadcast, and must have equal layouts.
    """

    handle: Any
    type: Any
    dtype: _dtype
    """dtype of an element."""
    shape: tuple
    """Compile-time extents; empty for a scalar."""
    numel: constexpr
    """Number of elements."""

    def __init__(self, handle: Any, type: Any) -> None: ...
    @property
    def T(self) -> tensor:
        """With its two dimensions exchanged."""

    # In a kernel these give tensors; that Python may ask them for a truth value lets checkers
    # accept `min(a, b)`, `if a < b` and loops over run-time bounds.
    def __bool__(self) -> bool: ...
    def __index__(self) -> int: ...
    def __int__(self) -> int: ...
    def __neg__(self) -> tensor: ...

    __invert__ = __neg__

    def __add__(self, other: Operand) -> tensor: ...

    __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __add__
    __truediv__ = __rtruediv__ = __floordiv__ = __rfloordiv__ = __mod__ = __rmod__ = __add__
    __and__ = __rand__ = __or__ = __ror__ = __xor__ = __rxor__ = __add__
    __lshift__ = __rlshift__ = __rshift__ = __rrshift__ = __add__
    __lt__ = __le__ = __gt__ = __ge__ = __add__

    def __eq__(self, other: Operand) -> tensor: ...  # type: ignore[override]
    def __ne__(self, other: Operand) -> tensor: ...  # type: ignore[override]
    def __getitem__(self, slices: Any) -> tensor:
        """`x[:, None]` and the like: a dimension of size 1 at each None."""

    # -- elements ------------------------------------------------------------------------------

    def to(
        self,
        dtype: Dtype,
        fp_downcast_rounding: Optional[ConstStr] = None,
        bitcast: ConstBool = False,
    ) -> tensor:
        """With elements of `dtype`; see `gl.cast`."""

    cast = to

    def abs(self) -> tensor:
        """Compute each element by itself: the function of this name in `gl`."""

    ceil = floor = cos = sin = exp = exp2 = log = log2 = erf = abs
    sqrt = sqrt_rn = rsqrt = sigmoid = abs

    def cdiv(self, div: Operand) -> tensor:
        """Divided, rounded up; integers."""

    def logical_and(self, other: Operand) -> tensor:
        """Return int1: both are true (`logical_or`: one is)."""

    logical_or = logical_and

    # -- shape ---------------------------------------------------------------------------------

    def reshape(self, *shape: Any, can_reorder: ConstBool = False) -> tensor:
        """With another shape of as many elements; see `gl.reshape`."""

    def permute(self, *dims: Any) -> tensor:
        """With its dimensions in another order; see `gl.permute`."""

    def trans(self, *dims: Any) -> tensor:
        """With its dimensions in the order `dims`; the two of a matrix exchanged by default."""

    def expand_dims(self, axis: Any) -> tensor:
        """With a dimension of size 1 at `axis`; see `gl.expand_dims`."""

    def broadcast_to(self, *shape: Any) -> tensor:
        """Repeated along dimensions of size 1."""

    def ravel(self) -> tensor:
        """With one dimension."""

    def split(self) -> builtins.tuple[tensor, tensor]:
        """Return the two halves of a last dimension of size 2; see `gl.split`."""

    def gather(self, index: tensor, axis: ConstInt) -> tensor:
        """See `gl.gather`."""

    # -- reductions ----------------------------------------------------------------------------

    def sum(
        self,
        axis: Optional[ConstInt] = None,
        keep_dims: ConstBool = False,
        dtype: Optional[Dtype] = None,
    ) -> tensor:
        """Sum along `axis`, of all elements by default; see `gl.sum`."""

    @overload
    def max(self, axis: Optional[ConstInt] = None, *, keep_dims: ConstBool = False) -> tensor: ...

    @overload
    def max(
        self,
        axis: Optional[ConstInt] = None,
        return_indices: ConstBool = False,
        return_indices_tie_break_left: ConstBool = True,
        keep_dims: ConstBool = False,
    ) -> Any: ...

    def max(
        self,
        axis: Optional[ConstInt] = None,
        return_indices: ConstBool = False,
        return_indices_tie_break_left: ConstBool = True,
        keep_dims: ConstBool = False,
    ) -> Any:
        """Greatest (`min`: smallest) along `axis`; see `gl.max`."""

    min = max

    def argmax(
        self,
        axis: ConstInt,
        tie_break_left: ConstBool = True,
        keep_dims: ConstBool = False,
    ) -> tensor:
        """Index of the greatest (`argmin`: smallest) along `axis`."""

    argmin = argmax

    def xor_sum(self, axis: Optional[ConstInt] = None, keep_dims: ConstBool = False) -> tensor:
        """Exclusive or along `axis`; integers."""

    def reduce_or(self, axis: Optional[ConstInt], keep_dims: ConstBool = False) -> tensor:
        """Or along `axis`; integers."""

    def reduce(
        self,
        axis: Optional[ConstInt],
        combine_fn: Callable[..., Any],
        keep_dims: ConstBool = False,
    ) -> tensor:
        """Combine along `axis`; see `gl.reduce`."""

    def associative_scan(
        self,
        axis: ConstInt,
        combine_fn: Callable[..., Any],
        reverse: ConstBool = False,
    ) -> tensor:
        """Scan along `axis`; see `gl.associative_scan`."""

    def cumsum(
        self,
        axis: ConstInt = 0,
        reverse: ConstBool = False,
        dtype: Optional[Dtype] = None,
    ) -> tensor:
        """Return the running sum along `axis`."""

    def cumprod(
        self,
        axis: ConstInt = 0,
        reverse: ConstBool = False,
        dtype: Optional[Dtype] = None,
    ) -> tensor:
        """Return the running product along `axis`."""

    # -- memory: of pointers -------------------------------------------------------------------

    def store(self, value: Operand, mask: Optional[Operand] = None) -> None:
        """Write `value` where these point; see `gl.store`."""

    def atomic_add(
        self,
        val: Operand,
        mask: Optional[Operand] = None,
        sem: Optional[ConstStr] = None,
        scope: Optional[ConstStr] = None,
    ) -> tensor:
        """Change the values at these pointers atomically; see the function of this name in `gl`."""

    atomic_and = atomic_or = atomic_xor = atomic_max = atomic_min = atomic_xchg = atomic_add

    def atomic_cas(
        self,
        cmp: Operand,
        val: Operand,
        sem: Optional[ConstStr] = None,
        scope: Optional[ConstStr] = None,
    ) -> tensor:
        """See `gl.atomic_cas`."""
