"""Predict the time of launches: run a sample of programs, replay them against the clock."""

from __future__ import annotations

import random
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any, Callable, Iterator, Optional, Sequence

import numpy as np

from gluon_core.errors import CapabilityError
from gluon_core.plugin.paths import load_path
from gluon_core.plugin.timing import Timing
from gluon_core.simulation.predicted import Predicted
from gluon_sim.errors import SimulatorError
from gluon_sim.executor.parallel import keep, restore
from gluon_sim.timing.engine import Stuck
from gluon_sim.timing.grid import (
    Prediction,
    Resources,
    Sampled,
    Shared,
    predict,
    resident_blocks,
    sample,
    spread,
)
from gluon_sim.timing.hollow import HollowLaunch
from gluon_sim.timing.picture import picture
from gluon_sim.timing.recorder import Enough, Recorder
from gluon_sim.timing.stream import Start
from gluon_sim.timing.work import weighed
from gluon_sim.tracing.types import PointerType, TensorType

__all__ = ["Wish", "predicted", "predicting", "timing_of"]

Launch = Any  # of `gluon_sim.launcher`, which imports this module
SAMPLE = 8
EVEN = 1.02  # the heaviest program over the lightest, where all count as alike
LIMIT = 400_000
FIRST = 600  # events of programs that are recorded for the traffic of a wave alone
PROBED = 20  # such programs
READS = 6  # of each of their tasks, that are compared in their order
SOON = 24  # of each of their tasks, that are compared in any order


@dataclass(frozen=True)
class Wish:
    """A request to predict the launches inside `predicting`.

    Args:
        tell: called with the prediction of each launch.
        only: predict alone: the launches' results are not computed.
        warm: assume that the same launch ran just before.
    """

    tell: Callable[[Predicted], None]
    only: bool = False
    warm: bool = True


_wish: ContextVar[Optional[Wish]] = ContextVar("gluon_sim_predicting", default=None)


@contextmanager
def predicting(wish: Wish) -> Iterator[None]:
    """Predict the launches inside."""
    token = _wish.set(wish)
    try:
        yield
    finally:
        _wish.reset(token)


def timing_of(target: Any) -> Timing:
    """Return the model of time of a target's architecture.

    Raises:
        CapabilityError: it has none.
    """
    path = target.architecture.timing
    if path is None:
        raise CapabilityError(
            "no model of time is known for this architecture",
            got=target.architecture.name,
            remedy="Predict for one whose plugin has a table of its latencies and rates.",
        )
    timing: Timing = load_path(path)
    return timing


def predicted(launch: Launch) -> bool:
    """Predict a launch if that is asked for; return True if its results are not wanted."""
    wish = _wish.get()
    if wish is None:
        return False
    prediction = predict_launch(launch, wish.warm)
    wish.tell(picture(timing_of(launch.kernel.target), prediction))
    return wish.only


def predict_launch(launch: Launch, warm: bool = True) -> Prediction:
    """Return the predicted time of a launch; memory is as before afterwards."""
    kernel = launch.kernel
    timing = timing_of(kernel.target)
    program = kernel.program
    total = launch.grid[0] * launch.grid[1] * launch.grid[2]
    settings = replace(
        launch.settings, schedule="eager", races=False, overflow=False, uninitialised=False, alignment=False,
        barriers=False, leaks=False, progress=False, deadlocks=False, workers=1,
    )  # fmt: skip
    quiet = replace(launch, settings=settings)
    recorder = Recorder(timing, LIMIT)
    weights = None if program.spins else weighed(program.program, launch.values, launch.grid)
    if weights is not None and weights.max() <= EVEN * weights.min():
        weights = None
    if program.spins and total <= 2 * timing.units:
        numbers = list(range(total))
    else:
        numbers = sample(total, SAMPLE) if weights is None else spread(weights)
    if program.spins and len(numbers) < total:
        raise CapabilityError(
            "the programs wait for each other, and there are too many to execute them all",
            expected=f"at most {2 * timing.units} programs",
            got=str(total),
        )
    use = Resources(
        kernel.num_warps + program.worker_warps,
        program.shared_bytes,
        _registers(launch),
        kernel.num_ctas,
        kernel.target.warp_size,
    )
    touched = launch.memory.nbytes
    kept = keep(program.program, launch.memory, launch.values)
    wave = None
    try:
        numbers = _record_sample(quiet, recorder, numbers)
        if total > 1 and not program.spins:
            wave = _wave(quiet, timing, total, max(1, resident_blocks(timing, use)))
    finally:
        restore(kept)
    try:
        blocks = kernel.num_ctas  # of a program
        sampled = Sampled(
            recorder.blocks,
            [number * blocks for number in numbers],
            total * blocks,
            None if weights is None else np.repeat(weights, blocks),
        )
        return predict(timing, kernel.entry.name, sampled, use, touched, wave, warm)
    except Stuck:
        raise SimulatorError(
            "the time cannot be predicted: a program waits for what the sampled programs never do",
            remedy="Launch a smaller grid, of which all programs are executed.",
        ) from None


def _record(launch: Launch, recorder: Recorder, numbers: list[int]) -> None:
    """Execute programs one after the other and record them."""
    kernel = launch.kernel
    watched = HollowLaunch(kernel.program, kernel.compiled, launch.grid, [recorder])
    recorder.begin(watched)
    with np.errstate(all="ignore"):
        if kernel.program.spins:
            raise CapabilityError(
                "kernels whose programs wait for each other cannot be predicted yet"
            )
        for number in numbers:
            machine = launch.machine(program=watched.program)
            machine.watched = True
            x, rest = number % launch.grid[0], number // launch.grid[0]
            recorder.start((x, rest % launch.grid[1], rest // launch.grid[1]))
            try:
                machine.step(np.array([number], np.int64), launch.values)
            except Enough:
                pass
            machine.release()


def _record_sample(launch: Launch, recorder: Recorder, numbers: list[int]) -> list[int]:
    """Record the first program, the last, and one between them; the others unless these do the same. Return the recorded ones."""
    outer = sorted({numbers[0], numbers[len(numbers) // 2], numbers[-1]})
    _record(launch, recorder, outer)
    sizes = {tuple(sorted(len(s.events) for s in block.streams)) for block in recorder.blocks}
    inner = [number for number in numbers if number not in outer]
    if len(sizes) == 1 or not inner:
        return outer
    _record(launch, recorder, inner)
    order = sorted(range(len(numbers)), key=lambda i: [*outer, *inner][i])
    recorder.blocks = [recorder.blocks[i] for i in order]
    return numbers


def _wave(launch: Launch, timing: Timing, total: int, resident: int) -> Optional[Shared]:
    """Return the shares of the bytes that no other block of a wave reads.

    The first reads of some blocks stand for all: how many of them coincide says how many blocks share a box.
    """
    recorder = Recorder(timing, FIRST)
    wave = min(total, timing.units * resident)
    chosen = sorted(random.Random(0).sample(range(wave), min(wave, PROBED)))
    _record(launch, recorder, chosen)
    at_once: dict[tuple[int, int], list[Start]] = {}
    soon: dict[int, list[Start]] = {}
    for block in recorder.blocks:
        for i, stream in enumerate(block.streams):
            reads = [e for e in stream.events if isinstance(e, Start) and e.bytes and not e.writes]
            soon.setdefault(i, []).extend(reads[:SOON])
            for j, event in enumerate(reads[:READS]):
                at_once.setdefault((i, j), []).append(event)
    blocks = len(chosen)
    if not at_once:
        return None
    return Shared(
        _alone(list(at_once.values()), wave, lambda reads: len(reads)),
        _alone(list(soon.values()), wave, lambda reads: blocks),
    )


def _alone(
    groups: Sequence[Sequence[Start]], wave: int, blocks_of: Callable[[Sequence[Start]], int]
) -> float:
    """Return the share of the bytes of groups of reads that one block of a wave reads alone."""
    size = distinct = 0.0
    for reads in filter(None, groups):
        blocks = blocks_of(reads)
        each = len(reads) / blocks  # reads of a block
        seen = len({read.key for read in reads}) / each
        total = sum(read.bytes for read in reads)
        size += total
        distinct += total * _distinct(blocks, seen, wave)
    return distinct / size


def _distinct(drawn: int, seen: float, wave: int) -> float:
    """Return the share of different boxes among those of a whole wave, of which `drawn` were seen, `seen` of them different.

    Each box is taken to belong to the same number of blocks, c: of a sample, wave / c * (1 - (1 - drawn / wave) ** c) differ.
    """
    low, high = 1.0, float(wave)
    for _ in range(40):
        c = (low + high) / 2
        if wave / c * (1 - max(0.0, 1 - drawn / wave) ** c) > seen:
            low = c
        else:
            high = c
    return 1 / low


def _registers(launch: Launch) -> int:
    """Return an estimate of a thread's registers: the widest live tensors, addresses and scalars."""
    kernel = launch.kernel
    limits = kernel.target.limits
    requested = [
        op.attrs.get("requested_registers") for op in kernel.program.program.walk_ops()
        if op.name == "warp_specialize"
    ]  # fmt: skip
    warps = kernel.num_warps + kernel.program.worker_warps
    if any(requested):
        return int(min(limits.register_file // (32 * max(warps, 1)) // 8 * 8, limits.max_registers))
    widest = 0
    threads = kernel.num_warps * kernel.target.warp_size
    for op in kernel.program.program.walk_ops():
        live = 0
        for type in (*(v.type for v in op.operands()), *(r.type for r in op.results)):
            if isinstance(type, TensorType):
                size = 1
                for extent in type.shape:
                    size *= extent
                element: Any = type.element
                bits = 64 if isinstance(element, PointerType) else getattr(element, "bits", 32)
                live += max(1, size // threads) * bits // 32
        widest = max(widest, live)
    return int(min(limits.max_registers, 24 + widest))
