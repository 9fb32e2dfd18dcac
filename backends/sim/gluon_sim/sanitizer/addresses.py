"""Checks of memory accesses: mistakes of a kernel that a GPU would not tell of."""

from __future__ import annotations

from typing import Any, Callable, Mapping, Optional, Sequence

import numpy as np

from gluon_sim.errors import MisalignedError, OutOfBoundsError, UninitialisedError, tolerate
from gluon_sim.sanitizer.agents import Task
from gluon_sim.sanitizer.observed import Buffer
from gluon_sim.tracing.ir import Location, Op
from gluon_sim.tracing.source import span_of
from gluon_sim.tracing.uses import first_use

__all__ = [
    "arguments_aligned",
    "hints_of",
    "initialised",
    "inside",
    "not_before",
    "place",
    "promised",
]


def place(task: Task, bad: np.ndarray) -> tuple[tuple[int, int, int], tuple[int, ...]]:
    """(program, element) of the first element that is true in `bad`, shape (programs, ...)."""
    first = np.unravel_index(int(np.argmax(bad)), bad.shape)
    return task.program_id(int(first[0])), tuple(int(i) for i in first[1:])


def inside(task: Task, access: str, indices: np.ndarray, extent: int, of: str) -> np.ndarray:
    """Return `indices` if all are in 0..extent-1; with the check off, they wrap around.

    Raises:
        OutOfBoundsError: one is outside.
    """
    bad = (indices < 0) | (indices >= extent)
    if not bad.any():
        return indices
    if not task.machine.settings.bounds:
        return indices % extent
    program, element = place(task, bad)
    raise OutOfBoundsError(
        f"{access} picks an element outside the {of} in {_of(program, element)}",
        report="bounds.index",
        argument="index",
        expected=f"0 to {extent - 1}",
        got=int(indices[bad].flat[0]),
        program=program,
        element=element,
    )


def not_before(
    task: Task,
    argument: str,
    first: Sequence[np.ndarray],
    message: str,
    remedy: str,
    where: Optional[np.ndarray] = None,
) -> None:
    """Refuse to begin before a tensor: below 0 in one of its dimensions.

    Args:
        first: indices, an array for each dimension.
        where: a boolean per program; only these begin there.

    Raises:
        OutOfBoundsError: an index is negative, while bounds are checked.
    """
    if not task.machine.settings.bounds:
        return
    for dim, indices in enumerate(map(np.asarray, first)):
        bad = indices < 0
        if where is not None and bad.any():
            bad = bad & np.asarray(where).reshape(-1, *[1] * (bad.ndim - 1))
        if not bad.any():
            continue
        program, element = place(task, bad)
        got = int(np.broadcast_to(indices, bad.shape)[bad][0])
        raise OutOfBoundsError(
            f"{message}, in {_of(program, element)}",
            report="bounds.before",
            argument=argument,
            expected="0 or more",
            got=f"{got} in dimension {dim} of {len(first)}" if len(first) > 1 else got,
            remedy=remedy,
            program=program,
            element=element or None,
        )


_LOADS = ("local_load", "local_gather")  # others use their results


def initialised(
    task: Task,
    access: str,
    buffer: Buffer,
    unwritten: Optional[np.ndarray],
    copied: bool = False,
) -> None:
    """Refuse the use of shared memory that nobody wrote; a copy of it is tolerated.

    Args:
        unwritten: which elements of the read were never written, None for none of them.
        copied: whether the values only go on to other memory.

    Raises:
        UninitialisedError: there are some.
    """
    if unwritten is None or not unwritten.any():
        return
    # A copy in flight may be the missing write: then this is a race, and says which wait
    # is missing.
    task.machine.flights.land_all()
    program, element = place(task, unwritten)
    count = int(np.count_nonzero(unwritten))
    more = f" ({count} elements were not)" if count > 1 else ""
    use = None
    if not copied and task.op.name in _LOADS:
        use = first_use(task.machine.program.program, task.op)
        copied = use is None
    later = f", and line {use.loc.line} uses it" if use is not None else ""
    begins = ""
    if hasattr(buffer.name, "pitch"):  # tensor memory
        begins = (
            " The first product into an accumulator takes use_acc=False."
            if "mma" in task.op.name
            else " A gl.portable.accumulator that may get no product takes zeros as start."
        )
    error = UninitialisedError(
        f"`{access}` of {buffer.name}: {_of(program, element)} was never written{more}{later}",
        report="uninitialised.shared",
        remedy="Write the buffer first, and wait for the write." + begins,
        program=program,
        element=element,
        span=span_of(task.op.loc),
    )
    if not copied:
        raise error
    tolerate(error, task.machine.settings.tolerated, task.memory.warned)


def arguments_aligned(
    attributes: Mapping[int, Mapping[str, Any]],
    names: Sequence[str],
    values: Sequence[Any],
    loc: Optional[Location],
) -> None:
    """Check that arguments keep the specialization's promises to the compiler.

    Vector accesses are chosen by these promises; a launch through the kernel makes only true ones,
    one through a kernel compiled before may not.

    Args:
        attributes: position -> {attribute: value} of the kernel's parameters.
    """
    for position, promised in attributes.items():
        factor = promised.get("tt.divisibility")
        factor = int(getattr(factor, "value", factor) or 1)
        if position < len(values) and int(values[position].flat[0]) % factor:
            raise MisalignedError(
                "the kernel was compiled for a multiple of "
                f"{factor}, and its vector accesses rely on that",
                report="alignment.argument",
                argument=names[position],
                got=hex(int(values[position].flat[0])),
                remedy="Launch through the kernel, which compiles for other alignments too.",
                span=span_of(loc),
            )


def _of(program: tuple[int, ...], element: tuple[int, ...]) -> str:
    return f"element {element} of program {program}" if element else f"program {program}"


# ---- promises of a kernel to the compiler ------------------------------------------------------

_HINTS = ("tt.divisibility", "tt.contiguity", "tt.constancy")
# Ops that bring indices behind an end back into a tensor: their results are in runs up to there.
_BOUNDED = ("srem", "urem", "select", "minsi", "minui")
_SPELLED = dict(zip(_HINTS, ("multiple_of", "max_contiguous", "max_constancy")))


def hints_of(op: Op) -> list[tuple[int, dict[str, Any]]]:
    """Return (index, hints) of the results that a kernel gives hints about."""
    hinted = []
    for i, result in enumerate(op.results):
        hints = {k: v for k, v in (result.attrs or {}).items() if k in _HINTS}
        if hints:
            hinted.append((i, hints))
    return hinted


def promised(op: Op, run: Callable[..., Any], simple: bool) -> Callable[..., Any]:
    """`run` as a handler that checks the claims of `multiple_of` and its like about the results."""
    hints = hints_of(op)

    def handler(task: Task, *args: Any, **named: Any) -> Any:
        out = run(*args) if simple else run(task, *args, **named)
        if task.machine.settings.alignment and not hasattr(out, "send"):
            outs = out if isinstance(out, (tuple, list)) else (out,)
            for i, promises in hints:
                if isinstance(outs[i], np.ndarray):
                    _keep(task, outs[i], op, i, promises)
        return out

    return handler


def _continues(full: np.ndarray, type: Any) -> np.ndarray:
    """Return the elements that follow their neighbour in some dimension: compilers know such runs,
    and a divisor is a claim about the first element of each."""
    pointee = getattr(type.element, "pointee", None)
    unit = max(1, getattr(pointee, "bits", 8) // 8) if pointee is not None else 1
    follows = np.zeros(full.shape, dtype=bool)
    for axis in range(1, full.ndim):
        inner = [slice(None)] * full.ndim
        inner[axis] = slice(1, None)
        follows[tuple(inner)] |= np.diff(full.astype(np.int64), axis=axis) == unit
    return follows


def _keep(task: Task, value: np.ndarray, op: Op, result: int, hints: dict[str, Any]) -> None:
    """Check hints about a result. A run that ends where `%`, `where` or `minimum` bounds indices is tolerated.

    Kernels mask what they compute from such elements; hardware loads the elements that follow in memory instead.

    Raises:
        MisalignedError: another hint does not hold.
    """
    type = op.results[result].type
    dims: tuple[int, ...] = type.dims
    full = np.asarray(np.broadcast_to(value, (value.shape[0], *dims)))
    runs = hints.get("tt.contiguity") or (1,) * max(1, len(dims))
    for name, wanted in hints.items():
        for axis, factor in enumerate(wanted):
            if factor <= 1:
                continue
            if name == "tt.divisibility":
                kept = np.arange(dims[axis] if dims else 1) % runs[axis] == 0
                bad = (full % factor != 0) & ~_continues(full, type)
                bad &= kept.reshape(-1, *([1] * (len(dims) - axis - 1))) if dims else True
            else:
                step = np.diff(full.astype(np.int64), axis=axis + 1, prepend=0)
                inner = (np.arange(dims[axis]) % factor != 0).reshape(
                    -1, *([1] * (len(dims) - axis - 1))
                )
                bad = (step != (name == "tt.contiguity")) & inner
            if bad.any():
                program, element = place(task, bad)
                first = np.unravel_index(int(np.argmax(bad)), bad.shape)
                error = MisalignedError(
                    f"{_SPELLED[name]}({factor}) does not hold for {_of(program, element)}, and the "
                    "width of vector accesses may rely on it",
                    report="alignment.promise",
                    got=int(full[first]),
                    remedy="Claim only facts that always hold.",
                    program=program,
                    element=element,
                    span=span_of(op.loc),
                )
                if name != "tt.contiguity" or op.name not in _BOUNDED:
                    raise error
                tolerate(error, task.machine.settings.tolerated, task.memory.warned)
