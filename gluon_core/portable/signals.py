"""Signals: how programs on several devices, or on one, tell each other how far they are.

A signal is a 32-bit integer in memory that both can reach, such as the pads of
`gluon_core.distributed`. It counts: a signal adds one, a wait takes one away, so it is 0 again after
all waits. Reads and writes before a signal happen before those after the wait for it.

A counter in plain memory serves many programs that wait: it only grows.

These functions are written in the language, whose tracer takes every name for one that the code
needs, so annotations are quoted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Sequence, Union

from gluon_core._triton import constexpr, static_range, tensor, tl, tl_tuple, unwrap
from gluon_core.errors import ArgumentError, DtypeError
from gluon_core.plugin.ops import builtin, semantic_layer, traced
from gluon_core.plugin.typing import Const, Scalar, Values
from gluon_core.semantic import layer
from gluon_core.semantic.operands import compile_time_int, scalar_int32
from gluon_core.values.tensors import describe

SYSTEM = constexpr("sys")
if TYPE_CHECKING:
    constexpr_str = Union[constexpr, str]
else:  # the tracer takes this for a parameter that is compiled in
    constexpr_str = constexpr

__all__ = ["counter_add", "counter_wait", "peer", "rank_barrier", "signal", "wait_signal"]


@builtin
def _gather_threads() -> None:
    """Wait for all threads of the program."""
    semantic_layer().barrier(False)


@builtin
def _add(pointer: tensor, amount: Scalar[int], sem: Const[str], scope: Const[str]) -> tensor:
    semantic = layer()
    amount = scalar_int32(semantic, unwrap(amount), "amount")
    return semantic.atomic_add(_counter(pointer), amount, None, sem, scope)


@builtin
def _now(pointer: tensor, scope: Const[str]) -> tensor:
    """Load a counter with acquire semantics: later accesses come after."""
    semantic = layer()
    zero = semantic.scalar_constant(0, tl.int32)
    return semantic.atomic_cas(_counter(pointer), zero, zero, constexpr("acquire"), scope)


def _counter(pointer: Any) -> Any:
    element = getattr(pointer.type.scalar, "element_ty", None)
    if pointer.type.is_block() or element not in (tl.int32, tl.uint32):
        raise DtypeError(
            "not a counter",
            argument="pointer",
            expected="a scalar pointer to int32",
            got=describe(pointer),
        )
    return pointer


@traced
def signal(pointer: "tensor", scope: constexpr_str = SYSTEM) -> "None":
    """Signal once: add one to the int32 at `pointer`, after all that the program has done before.

    Args:
        pointer: scalar pointer to int32, such as `x.signals[rank] + slot`; 0 at rest.
        scope: "sys" (default) reaches other devices, "gpu" programs of this one alone.
    """
    _gather_threads()
    _add(pointer, 1, "release", scope)


@traced
def wait_signal(pointer: "tensor", scope: constexpr_str = SYSTEM) -> "None":
    """Wait for a signal at `pointer`, and take it away. Accesses before the signal happen before those
    after the wait. One program waits at a pointer.

    Args:
        pointer: scalar pointer to int32 in this device's own memory.
        scope: as of the signal.
    """
    while _now(pointer, scope) == 0:
        pass
    _add(pointer, -1, "relaxed", scope)


@traced
def counter_add(
    pointer: "tensor", amount: "Scalar[int]" = 1, scope: constexpr_str = SYSTEM
) -> "None":
    """Add `amount` to the int32 at `pointer`, after all that the program has done before.

    Args:
        pointer: scalar pointer to int32 that only grows; host code sets it back.
        scope: "sys" (default) reaches other devices, "gpu" programs of this one alone.
    """
    _gather_threads()
    _add(pointer, amount, "release", scope)


@traced
def counter_wait(pointer: "tensor", least: "Scalar[int]", scope: constexpr_str = SYSTEM) -> "None":
    """Wait until the int32 at `pointer` is `least` or more. Any number of programs may wait.

    Args:
        pointer: scalar pointer to int32 in this device's own memory.
        scope: as of `counter_add`.
    """
    while _now(pointer, scope) < least:
        pass


@traced
def rank_barrier(
    signals: "Values",
    rank: "Scalar[int]",
    channel: "Scalar[int]" = 0,
    scope: constexpr_str = SYSTEM,
) -> "None":
    """Wait until the programs with this channel on all ranks have come.

    Accesses of each before happen before accesses of the others after.

    Args:
        signals: the pads of all ranks: `x.signals`.
        rank: this rank: `x.rank`.
        channel: of the program, below `Symmetric.channels`; `gl.program_id(0)` where all take part.
        scope: "sys" reaches other devices.
    """
    _gather_threads()
    for other in static_range(len(signals)):
        if other != rank:
            _add(signals[other] + (channel * len(signals) + rank), 1, "release", scope)
    mine = peer(signals, rank)
    for other in static_range(len(signals)):
        if other != rank:
            wait_signal(mine + (channel * len(signals) + other), scope)


@builtin(name="gl.portable.peer")
def peer(pointers: Union[Values, Sequence[Any]], rank: Scalar[int]) -> tensor:
    """Return the pointer of one rank, where that is known only when the kernel runs.

    With a compile-time `rank`, `pointers[rank]` is the same.

    Args:
        pointers: one for each rank, of one type: `x.peers` or `x.signals`.
        rank: integer scalar, below their number.

    Raises:
        ArgumentError: no pointers, or a compile-time rank that there is not.
    """
    semantic = semantic_layer()
    sequence = unwrap(pointers)
    if not isinstance(sequence, (list, tuple, tl_tuple)) or not len(sequence):
        raise ArgumentError(
            "not the pointers of ranks",
            argument="pointers",
            expected="a tuple",
            got=describe(sequence),
        )
    listed = list(sequence)
    wanted = unwrap(rank)
    if isinstance(wanted, int):
        index = compile_time_int(wanted, "rank", 0)
        if index >= len(listed):
            raise ArgumentError(
                "the rank is out of range",
                argument="rank",
                expected=f"below {len(listed)}",
                got=index,
            )
        return listed[index]
    selected = listed[0]
    for number, pointer in enumerate(listed[1:], 1):
        here = semantic.equal(wanted, semantic.scalar_constant(number, tl.int32))
        selected = semantic.where(here, pointer, selected)
    return selected
