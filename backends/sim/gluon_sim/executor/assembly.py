"""Inline assembly: which elements share a register and a run of the text, as the compiler has it.

A thread takes its registers in order, `pack` at a time; elements of fewer than 32 bits share one of 32.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Callable, Optional, Sequence, Union

import numpy as np

from gluon_core.simulation.assembly import Assembler, Assembly, NotModelled
from gluon_sim.errors import SimulatorError
from gluon_sim.executor.task import Task
from gluon_sim.memory.promise import Promise
from gluon_sim.tracing.dtypes import numpy_dtype, unsigned
from gluon_sim.tracing.ir import Op

if TYPE_CHECKING:
    from gluon_core.layouts import Layout

__all__ = ["assembled", "is_data", "runs_text"]


def assembled(op: Op, assembler: Union[Assembler, str, None], target: Any) -> Optional[Assembly]:
    """Return a function that runs an op's text; None where the target's vendor names no dialect.

    Args:
        assembler: the interpreter of the target's dialect; its name where none is installed.

    Raises:
        SimulatorError: the text is not one that it knows, or no interpreter is installed.
    """
    if assembler is None:
        return None
    if isinstance(assembler, str):
        raise SimulatorError(
            f"no installed plugin runs inline assembly in {assembler}",
            got=repr(op.args[0].strip().partition("\n")[0]),
            remedy='Install all plugins: pip install "gluon-core[all]".',
        )
    try:
        return assembler(op.args[0], op.args[1], target)
    except NotModelled as error:
        raise SimulatorError(
            error.words,
            got=error.got,
            remedy=error.remedy,
        ) from error


def is_data(op: Op, assembler: Union[Assembler, str, None], target: Any) -> bool:
    """Return whether an op does nothing but compute its results from its operands."""
    try:
        routine = assembled(op, assembler, target)
    except SimulatorError:
        return False
    return routine is not None and routine.is_data and bool(op.args[3])


def runs_text(op: Op, assembler: Union[Assembler, str, None], target: Any) -> Callable[..., Any]:
    """Return the handler of an op. Mistakes in its text are reported when it runs."""
    try:
        routine = assembled(op, assembler, target)
    except SimulatorError as error:
        refused = error

        def refuse(task: Task, *args: Any) -> Any:
            raise refused.with_traceback(None)

        return refuse
    if routine is None:
        return _unknown
    op.attrs["reaches_memory"] = routine.reaches_memory
    if routine.orders:
        op.attrs["atomic"], op.attrs["order"] = True, routine.orders
    op.attrs["effects"] = not routine.is_data
    return lambda task, asm, constraints, args, *rest: _run(task, routine, args, *rest)


def _unknown(task: Task, asm: str, *rest: Any) -> Any:
    text = asm.strip()
    raise SimulatorError(
        f"inline assembly is not simulated for {task.target}",
        got=repr(text.splitlines()[0] if text else asm),
        remedy="Give the kernel another path where `gl.target` is simulated, or register a "
        "reference model for this text in a plugin's `INLINE_ASM`.",
    )


NOTHING = -1


@dataclass(frozen=True)
class Runs:
    """The runs of a text over a tensor.

    Attributes:
        elements: (runs, pack), flat; or `NOTHING`, beyond a thread's registers.
        threads: who makes each run, numbered over the blocks of the program.
        home: for each element the flat place in `elements` of its first holder.
    """

    elements: np.ndarray
    threads: np.ndarray
    home: np.ndarray


@lru_cache(maxsize=256)
def _runs(
    layout: Optional[Layout], dims: tuple[int, ...], pack: int, threads: int, all_threads: bool
) -> Runs:
    """
    Args:
        threads: of a block, which all hold a scalar.
        all_threads: duplicates included.
    """
    if layout is None:
        index = np.zeros((threads, 1), np.int64)
    else:
        linear = layout.to_linear(dims)
        sizes = linear.in_dims
        order = [d for d in ("block", "warp", "lane", "register") if d in sizes]
        grid = np.meshgrid(*(np.arange(sizes[d]) for d in order), indexing="ij")
        coords = linear.apply_arrays(**dict(zip(order, grid)))
        flat: np.ndarray = np.zeros(grid[0].shape, np.int64)
        for d, extent in enumerate(dims):
            flat = flat * extent + coords[f"dim{d}"]
        index = flat.reshape(-1, sizes.get("register", 1))
    count = index.shape[1]
    if count < pack:  # the rest of its inputs holds any value
        index = np.pad(index, ((0, 0), (0, pack - count)), constant_values=NOTHING)
    programs = np.repeat(np.arange(len(index)), index.shape[1] // pack)
    elements = index.reshape(-1, pack)
    if not all_threads:
        kept = np.unique(_first(elements) // pack)
        elements, programs = elements[kept], programs[kept]
    return Runs(elements, programs, _first(elements))


def _first(elements: np.ndarray) -> np.ndarray:
    """Return the first place of each element, by element."""
    distinct, first = np.unique(elements.ravel(), return_index=True)
    return np.asarray(first[distinct != NOTHING])


def _taken(full: np.ndarray, elements: np.ndarray) -> np.ndarray:
    """Elements (programs, runs, pack) out of (programs, all)."""
    taken: np.ndarray = full[:, elements]
    if (elements == NOTHING).any():
        raw = taken.view(np.uint8).reshape(*taken.shape, -1)
        raw[:, elements == NOTHING] = 1 if taken.dtype == np.bool_ else 0xFF  # of floats a NaN
    return taken


def _bits(dtype: np.dtype) -> int:
    return 1 if dtype == np.bool_ else dtype.itemsize * 8


def _shared(dtype: np.dtype, pack: int) -> int:
    """Return how many elements share a register."""
    return min(max(32 // _bits(dtype), 1), pack)


def _packed(values: np.ndarray, pack: int) -> list[np.ndarray]:
    """Elements (programs, runs, pack) as registers (programs, runs)."""
    bits, per = _bits(values.dtype), _shared(values.dtype, pack)
    raw = values.view(np.uint8) if values.dtype == np.bool_ else unsigned(values)
    if per == 1:
        return [raw[..., j] for j in range(pack)]
    wide = np.uint32
    packed = []
    for j in range(0, pack, per):
        word: Any = raw[..., j].astype(wide)
        for k in range(1, per):
            word = word | (raw[..., j + k].astype(wide) << wide(k * bits))
        packed.append(word)
    return packed


def _unpacked(words: Sequence[np.ndarray], dtype: np.dtype, pack: int) -> np.ndarray:
    """Return registers of one result as its elements (programs, runs, pack)."""
    bits, per = _bits(dtype), _shared(dtype, pack)
    lanes = []
    for word in words:
        for k in range(per):
            lanes.append(_narrowed(word >> word.dtype.type(k * bits) if k else word, dtype))
    return np.stack(np.broadcast_arrays(*lanes), axis=-1)


def _narrowed(raw: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Return the low bits of a register as an element."""
    if dtype == np.bool_:
        truth: np.ndarray = (raw & raw.dtype.type(1)) != 0
        return truth
    return raw.astype(np.dtype(f"u{dtype.itemsize}")).view(dtype)


def _run(
    task: Task, routine: Assembly, args: Sequence[np.ndarray], pure: bool = False, pack: int = 1
) -> Any:
    pack = int(pack)
    types = [v.type for v in (*task.op.results, *task.op.operands())]
    dims = next((t.dims for t in types if t.dims), ())
    layout = next((t.layout for t in types if t.dims), None)
    dtypes = [numpy_dtype(result.type) for result in task.op.results]
    plain = [a.read() if isinstance(a, Promise) else np.asarray(a) for a in args]
    threads = task.num_warps * task.target.warp_size if task.target is not None else 128
    machine: Any = task
    if pack == 1 and not routine.each_thread:
        return _each(machine, routine, plain, dtypes, dims, lambda: _owners(layout, dims, threads))
    runs = _runs(layout, dims, pack, threads, routine.each_thread)
    words: list[np.ndarray] = []
    for value in plain:
        full = np.broadcast_to(value, (value.shape[0], *dims)).reshape(value.shape[0], -1)
        words += _packed(_taken(full, runs.elements), pack)
    registers = routine(machine, words, lambda: runs.threads[None])
    results, position = [], 0
    for dtype in dtypes:
        count = pack // _shared(dtype, pack)
        lanes = _unpacked(registers[position : position + count], dtype, pack)
        position += count
        lanes = np.broadcast_to(lanes, (lanes.shape[0], len(runs.elements), pack))
        flat = lanes.reshape(lanes.shape[0], -1)[:, runs.home]
        results.append(flat.reshape(lanes.shape[0], *dims))
    return results[0] if len(results) == 1 else tuple(results) or None


def _owners(layout: Optional[Layout], dims: tuple[int, ...], threads: int) -> np.ndarray:
    """Return the first thread that holds each element."""
    runs = _runs(layout, dims, 1, threads, False)
    owners = np.zeros(runs.elements.size, np.int64)
    owners[runs.elements[:, 0]] = runs.threads
    return owners.reshape(1, *(dims or (1,)))


def _each(
    machine: Any,
    routine: Assembly,
    args: Sequence[np.ndarray],
    dtypes: Sequence[np.dtype],
    dims: tuple[int, ...],
    threads: Callable[[], np.ndarray],
) -> Any:
    """Return a run for each element, wherever it is: arrays as they are."""
    if not dims:
        args = [a.reshape(-1, 1) for a in args]
    words = [_packed(a[..., None], 1)[0] for a in args]
    results = []
    for dtype, word in zip(dtypes, routine(machine, words, threads)):
        value = _narrowed(word, dtype)
        if not dims:
            value = value.reshape(-1)
        elif value.ndim != len(dims) + 1:  # one for all
            value = value.reshape((1,) * (len(dims) + 1))
        results.append(value)
    return results[0] if len(results) == 1 else tuple(results) or None
