"""Programs, barriers, partitions, assertions and printing."""

from __future__ import annotations

from typing import Any

from gluon_core._triton import constexpr, tl_core, unwrap
from gluon_core.builtin import adopt, builtin
from gluon_core.errors import CapabilityError, DtypeError, ShapeError
from gluon_core.semantic.base import describe

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
    "static_assert",
    "static_print",
    "static_range",
    "thread_barrier",
    "warp_specialize",
]

device_print = adopt(
    tl_core.device_print,
    "Print `prefix` and each of `args` from the device, one line per element; `hex` for bits.",
)
device_assert = adopt(
    tl_core.device_assert,
    "Stop the program with `msg` where `cond` is false (and `mask` true). Compiled in with "
    "`debug=True` or TRITON_DEBUG=1.",
)
# The code generator recognises these very objects.
static_assert = tl_core.static_assert
static_print = tl_core.static_print
static_range = tl_core.static_range


def _check_axis(axis: Any) -> None:
    axis = unwrap(axis)
    if isinstance(axis, bool) or not isinstance(axis, int) or not 0 <= axis <= 2:
        raise ShapeError("no such grid axis", argument="axis", expected="0, 1 or 2", got=describe(axis))


@builtin
def program_id(axis: Any, _semantic: Any = None) -> Any:
    """Index of this program along grid `axis` (0, 1 or 2); int32."""
    _check_axis(axis)
    return tl_core.program_id(axis, _semantic=_semantic)


@builtin
def num_programs(axis: Any, _semantic: Any = None) -> Any:
    """Programs along grid `axis` (0, 1 or 2); int32."""
    _check_axis(axis)
    return tl_core.num_programs(axis, _semantic=_semantic)


@builtin
def assume(cond: Any, _semantic: Any = None) -> Any:
    """Let the compiler rely on the scalar int1 `cond` being true."""
    cond = _semantic.to_tensor(unwrap(cond))
    if cond.type.is_block() or not cond.dtype.is_bool():
        raise DtypeError("must be one boolean", argument="cond", expected="int1", got=cond.type)
    return _semantic.assume(cond)


@builtin
def num_warps(_semantic: Any = None) -> Any:
    """Warps that run this code: the kernel's, or the partition's inside `warp_specialize`."""
    return constexpr(_semantic.num_warps)


@builtin
def num_ctas(_semantic: Any = None) -> Any:
    """Blocks of the cluster that runs the kernel."""
    return constexpr(_semantic.num_ctas)


@builtin
def barrier(*, cluster: Any = False, _semantic: Any = None) -> None:
    """Wait for all threads of the block (or partition); with `cluster`, of the whole cluster.

    Memory operations before it are visible to those threads after it.
    """
    return _semantic.barrier(cluster)


@builtin
def thread_barrier(_semantic: Any = None) -> None:
    """The older name of `barrier()`."""
    return _semantic.barrier(False)


@builtin(since=(3, 9))
def inline_asm(
    asm: Any,
    constraints: Any = "",
    args: Any = (),
    result_types: Any = (),
    is_pure: Any = False,
    _semantic: Any = None,
) -> Any:
    """Inline assembly run once by every thread on scalars.

    Returns None, the one result, or a tuple of them, as `result_types` says.
    """
    return _semantic.inline_asm(asm, constraints, args, result_types, is_pure)


@builtin
def warp_specialize(
    functions_and_args: Any,
    worker_num_warps: Any,
    worker_num_regs: Any = None,
    _semantic: Any = None,
    _generator: Any = None,
) -> Any:
    """Run several functions at once, each by its own warps.

    Args:
        functions_and_args: `[(default, args), (worker, args), ...]`; the first runs on the
            kernel's own warps, each other on warps of its own.
        worker_num_warps: warps of each worker, powers of two; layouts inside a worker spread over
            that many.
        worker_num_regs: registers per thread that each worker asks for; optional from Triton 3.7.
            They are rounded up to multiples of 8, four warps that share a group get what the most
            demanding of them asks for, and the default partition gets the rest.

    Arguments may be tensors (laid out over the worker's warps), scalars, buffers, descriptors,
    aggregates, tuples of them, and compile-time values. Workers return nothing.

    Returns:
        What the default function returns. All partitions have ended by then.

    Raises:
        ArgumentError: not pairs of functions and arguments, or not one number for each worker.
        ShapeError: warps that are no power of two.
        LimitError: more warps than a block has, default warps that are no multiple of four, or
            registers outside 24 to 256.
        LayoutError: a tensor that is laid out over other warps than the worker has.

    ISA: PTX 9.7.19.5, setmaxnreg.
    """
    return _semantic.warp_specialize(
        functions_and_args, worker_num_warps, worker_num_regs, _generator
    )


@builtin(name="breakpoint()")
def kernel_breakpoint(_semantic: Any = None) -> None:
    """What `breakpoint()` is inside a kernel: the simulator's prompt opens there."""
    record = getattr(_semantic.builder, "create_breakpoint", None)
    if record is None:
        raise CapabilityError(
            "breakpoint() works on the simulator only",
            remedy="Run with GLUON_TARGET=sim:..., or remove it.",
        )
    record()
