"""Programs, barriers, partitions, assertions and printing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Iterator, Optional, Sequence, Union

from gluon_core import _triton
from gluon_core._triton import constexpr, tensor, tl_core, tl_tuple, unwrap
from gluon_core.errors import (
    ArgumentError,
    CapabilityError,
    DtypeError,
    NotInKernelError,
    ShapeError,
)
from gluon_core.features import INLINE_ASM
from gluon_core.plugin.ops import builtin, code_generator, semantic_layer
from gluon_core.plugin.typing import Const, Dtype, KernelFunction, Operand, Scalar, Values
from gluon_core.semantic import layer
from gluon_core.values.tensors import describe

if TYPE_CHECKING:
    from gluon_core.semantic.composed import Semantic

__all__ = [
    "assume",
    "barrier",
    "device_assert",
    "device_print",
    "inline_asm",
    "num_ctas",
    "num_programs",
    "num_warps",
    "program_id",
    "scope",
    "scope_begin",
    "scope_end",
    "static_assert",
    "static_print",
    "static_range",
    "thread_barrier",
    "warp_specialize",
]


@builtin
def device_print(prefix: Const[str], *args: Operand, hex: Const[bool] = False) -> None:
    """Print `prefix` and each of `args` from the device, one line per element; `hex` for bits."""
    text = unwrap(prefix)
    if not isinstance(text, str):
        raise ArgumentError(
            "the first argument must be a compile-time string",
            argument="prefix",
            expected="gl.device_print('x', x)",
            got=describe(text),
        )
    if not isinstance(unwrap(hex), (bool, int, type(None))):
        raise ArgumentError("must be a compile-time boolean", argument="hex", got=describe(hex))
    escaped = text.replace("%", "%%")  # it becomes part of the format of a `printf`
    tl_core.device_print(escaped, *args, hex=hex, _semantic=semantic_layer())


@builtin
def device_assert(cond: Operand, msg: Const[str] = "", mask: Optional[Operand] = None) -> None:
    """Stop the program with `msg` where `cond` is false (and `mask` true).

    Compiled in with `debug=True` or TRITON_DEBUG=1.
    """
    tl_core.device_assert(cond, msg, mask, _semantic=semantic_layer())


@builtin
def static_assert(cond: Const[bool], msg: Const[str] = "") -> None:
    """Stop the compilation with `msg` unless the compile-time `cond` is true."""
    raise _not_evaluated("static_assert")


@builtin
def static_print(
    *values: object,
    sep: Const[str] = " ",
    end: Const[str] = "\n",
    file: Any = None,
    flush: Const[bool] = False,
) -> None:
    """Print while the kernel is traced, as Python's `print` does."""
    raise _not_evaluated("static_print")


def _not_evaluated(name: str) -> NotInKernelError:
    # The code generator evaluates these itself, before it would call an op.
    return NotInKernelError(f"gl.{name} is for kernels, not for the code of an op")


class static_range(_triton.static_range):
    """`range` of compile-time integers: the loop is unrolled while the kernel is traced."""

    def __init__(
        self,
        arg1: Const[int],
        arg2: Optional[Const[int]] = None,
        step: Optional[Const[int]] = None,
    ) -> None:
        if any(isinstance(bound, int) for bound in (arg1, arg2, step)):  # constants, in a kernel
            raise _loops_on_the_host()
        super().__init__(arg1, arg2, step)

    def __iter__(self) -> Iterator[constexpr]:
        raise _loops_on_the_host()


def _loops_on_the_host() -> NotInKernelError:
    return NotInKernelError(
        "gl.static_range is for the loops of kernels",
        remedy="In host code, and in the body of an op, loop over Python's `range`.",
    )


def _check_axis(axis: Const[int]) -> None:
    index = unwrap(axis)
    if not isinstance(index, int) or not 0 <= index <= 2:
        raise ShapeError(
            "the grid axis is out of range",
            argument="axis",
            expected="0, 1 or 2",
            got=describe(index),
        )


@builtin
def program_id(axis: Const[int]) -> tensor:
    """Index of this program along grid `axis` (0, 1 or 2); int32."""
    _check_axis(axis)
    return tl_core.program_id(axis, _semantic=semantic_layer())


@builtin
def num_programs(axis: Const[int]) -> tensor:
    """Programs along grid `axis` (0, 1 or 2); int32."""
    _check_axis(axis)
    return tl_core.num_programs(axis, _semantic=semantic_layer())


@builtin
def assume(cond: Scalar[bool]) -> None:
    """Let the compiler rely on the scalar int1 `cond` being true."""
    value = semantic_layer().to_tensor(unwrap(cond))
    if value.type.is_block() or not value.dtype.is_bool():
        raise DtypeError("must be one boolean", argument="cond", expected="int1", got=value.type)
    layer().assume(value)


@builtin
def num_warps() -> constexpr:
    """Warps that run this code: the kernel's, or the partition's inside `warp_specialize`."""
    return constexpr(semantic_layer().num_warps)


@builtin
def num_ctas() -> constexpr:
    """Blocks of the cluster that runs the kernel."""
    return constexpr(semantic_layer().num_ctas)


@builtin
def barrier(*, cluster: Const[bool] = False) -> None:
    """Wait for all threads of the block (or partition); with `cluster`, of the whole cluster.

    Memory operations before it are visible to those threads after it.
    """
    semantic_layer().barrier(cluster)


@builtin
def thread_barrier() -> None:
    """Wait at the block's barrier: the older name of `barrier()`."""
    semantic_layer().barrier(False)


@builtin(since=INLINE_ASM)
def inline_asm(
    asm: Const[str],
    constraints: Const[str] = "",
    args: Union[Operand, Values] = (),
    result_types: Union[Dtype, Sequence[Dtype], tl_tuple] = (),
    is_pure: Const[bool] = False,
) -> Any:
    """Inline assembly run once by every thread on scalars.

    Returns None, the one result, or a tuple of them, as `result_types` says.
    """
    return layer().inline_asm(asm, constraints, args, result_types, is_pure)


@builtin
def warp_specialize(
    functions_and_args: Union[Sequence[tuple[KernelFunction, Values]], tl_tuple],
    worker_num_warps: Union[Sequence[Const[int]], tl_tuple, constexpr],
    worker_num_regs: Optional[Union[Sequence[Const[int]], tl_tuple, constexpr]] = None,
) -> Any:
    """Run several functions at once, each by its own warps.

    Args:
        functions_and_args: `[(default, args), (worker, args), ...]`; the first runs on the
            kernel's own warps, each other on warps of its own.
        worker_num_warps: warps of each worker, powers of two; layouts inside a worker spread over
            that many.
        worker_num_regs: registers per thread that each worker asks for; optional from Triton 3.7. They
            are rounded up to multiples of 8, four warps that share a group get the largest of their
            numbers, and the default partition gets the rest.

    Arguments may be tensors (laid out over the worker's warps), scalars, buffers, descriptors,
    aggregates, tuples of them, and compile-time values. Workers return nothing.

    Returns:
        The result of the default function. All partitions have ended by then.

    Raises:
        ArgumentError: not pairs of functions and arguments, or not one number for each worker.
        ShapeError: warps that are no power of two.
        LimitError: more warps than a block has, default warps that are no multiple of four, or
            registers outside 24 to 256.
        LayoutError: a tensor that is laid out over other warps than the worker has.
        CapabilityError: the target's warps all run one function.

    ISA: PTX 9.7.19.5, setmaxnreg.
    """
    return layer().warp_specialize(
        functions_and_args, worker_num_warps, worker_num_regs, code_generator()
    )


class scope:
    """Name a span of a kernel, which timelines show: `with gl.scope("load K"):`.

    Without a recording (`gluon_core.timeline`) it adds no instruction. With one, the first lane of each
    warp that passes notes the time at the begin and at the end. Scopes nest, and a name may be used again.

    Args:
        name: text of one line, known while compiling.

    Raises:
        ArgumentError: another name.
    """

    __triton_builtin__ = True

    def __init__(self, name: Const[str], *, _semantic: Optional[Semantic] = None):
        if _semantic is None:
            raise NotInKernelError(
                "gl.scope was used outside a kernel",
                remedy="Use it in a function decorated with @gluon.jit.",
            )
        self._semantic, self._name = _semantic, unwrap(name)

    def __enter__(self) -> scope:
        self._semantic.mark_scope(self._name, True)
        return self

    def __exit__(self, *error: object) -> None:
        self._semantic.mark_scope(self._name, False)


@builtin
def scope_begin(name: Const[str]) -> None:
    """Begin a span as `gl.scope` does; `gl.scope_end` with the same name ends it.

    Raises:
        ArgumentError: no text of one line; or the function, the branch or the loop in which it begins ends or returns before
            the span.
    """
    layer().mark_scope(unwrap(name), True)


@builtin
def scope_end(name: Const[str]) -> None:
    """End the innermost open span, which `gl.scope_begin` began in the same function.

    Raises:
        ArgumentError: the innermost open span has another name, or none is open; or it began outside of this branch or loop.
    """
    layer().mark_scope(unwrap(name), False)


@builtin(name="breakpoint()")
def kernel_breakpoint() -> None:
    """Open the simulator's prompt: `breakpoint()` inside a kernel."""
    record = getattr(semantic_layer().builder, "create_breakpoint", None)
    if record is None:
        raise CapabilityError(
            "breakpoint() works on the simulator only",
            remedy="Run with GLUON_TARGET=sim:..., or remove it.",
        )
    record()
