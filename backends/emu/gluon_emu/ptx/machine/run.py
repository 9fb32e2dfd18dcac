"""Execution: which group goes on, where groups part and meet, and reports."""

from __future__ import annotations

import time
from typing import Any, Callable, Optional, Type

import numpy as np

from gluon_core.errors import GluonError
from gluon_core.simulation.assembly import NotModelled
from gluon_emu.errors import DeadlockError, EmulatorError, TimeLimitError, span_of
from gluon_emu.memory import GlobalMemory
from gluon_emu.ptx.machine.access import Memory
from gluon_emu.ptx.machine.agents import Agents
from gluon_emu.ptx.machine.barriers import Barriers
from gluon_emu.ptx.machine.calls import leave_frame
from gluon_emu.ptx.machine.code import SWITCH, Bound, Code
from gluon_emu.ptx.machine.group import LANES, Group, merged, pieces, put
from gluon_emu.ptx.machine.launch import Launch, Waiting
from gluon_emu.ptx.machine.mbarriers import Mbarriers
from gluon_emu.ptx.machine.observe import Observer
from gluon_emu.ptx.machine.races import search
from gluon_emu.ptx.machine.tensor import TensorMemory
from gluon_emu.ptx.machine.tensor_races import TensorRaces
from gluon_emu.ptx.machine.warpgroups import Products
from gluon_emu.ptx.numbers import uint
from gluon_emu.settings import Settings

__all__ = ["Machine"]

_IDLE = 400_000  # jumps back in a row without any change to memory, after which a loop is endless
_SHOWN = 12
_SPINS = 4  # polls after which copies come to their end, until another warp can go on


class Machine:
    """Some of a launch's blocks, all of which are resident at once.

    Attributes:
        block_of: of each warp (row), among the resident blocks.
        thread_of: (rows, 32), the number of each thread in its block.
        exited: (rows, 32).
        flying: registers that `wgmma` may still read or write, for watchers; empty without one.
        fetched: registers of loads from shared memory that nothing has used, likewise.
        changes: how often anything changed that a thread may wait for.
        observer: gets the events (`machine.observe`); None for nobody.
    """

    def __init__(
        self,
        launch: Launch,
        memory: GlobalMemory,
        waiting: Waiting,
        numbers: np.ndarray,
        settings: Settings,
        deadline: Optional[float],
        tally: Any,
    ):
        code = launch.code
        self.code: Code = code
        self.steps = code.steps
        self.launch, self.settings, self.deadline, self.tally = launch, settings, deadline, tally
        self.grid, self.cluster, self.block_size = launch.grid, launch.cluster, launch.block
        threads = int(np.prod(self.block_size))
        self.warps = -(-threads // LANES)
        self.cluster_size = int(np.prod(self.cluster))
        self.waiting = waiting
        self.blocks = count = int(numbers.size)
        self._place(numbers)
        rows = count * self.warps
        self.block_of = np.repeat(np.arange(count), self.warps)
        lane = np.arange(LANES)
        self.thread_of = (np.arange(rows) % self.warps * LANES)[:, None] + lane
        self.exited = self.thread_of >= threads
        self.dynamic_shared = launch.shared
        self.memory = Memory(self, memory, code.local_bytes)
        self.shared_bytes = self.memory.shared_bytes
        self.agents = Agents(self, settings)
        self.barriers = Barriers(self)
        self.mbarriers = Mbarriers(self)
        self.products = Products(self)
        self.tensor = TensorMemory(self, settings)
        self.ready: list[Group] = []
        self.parked: list[Group] = []
        self.changes = self.idle = self.polls = self.counted = 0
        self.clock = 1 << 20
        self.observer: Optional[Observer] = None
        self.complaints: list[str] = []
        self.limit: Any = None
        self.flying: dict[str, np.ndarray] = {}
        self.fetched: dict[str, int] = {}
        if settings.search:
            self.observer = search(self, TensorRaces)
        self.random = (
            np.random.default_rng(settings.seed) if settings.schedule == "random" else None
        )

    def _place(self, numbers: np.ndarray) -> None:
        """Blocks by clusters, and by x, then y, then z."""
        (cx, cy, _), size = self.cluster, self.cluster_size
        of, rank = numbers // size, numbers % size
        whole = self._clusters(of)
        inner = np.stack((rank % cx, rank // cx % cy, rank // (cx * cy)), 1)
        self.block_ids = whole * np.array(self.cluster) + inner
        self.rank_of = rank
        self.block_numbers = numbers

    def _clusters(self, of: np.ndarray) -> np.ndarray:
        gx, gy = self.grid[0] // self.cluster[0], self.grid[1] // self.cluster[1]
        return np.stack((of % gx, of // gx % gy, of // (gx * gy)), 1)

    def claim(self) -> Optional[tuple[int, int, int]]:
        """Return the first block of a cluster that will not start any more; None where all have started."""
        cluster = self.waiting.claim()
        if cluster is None:
            return None
        x, y, z = (int(i) for i in self._clusters(np.array([cluster]))[0] * np.array(self.cluster))
        return x, y, z

    # -- the scheduler --

    def run(self) -> None:
        """Run all blocks to their end.

        Raises:
            EmulatorError: the code violates a rule, or cannot go on.
        """
        rows = np.arange(self.block_of.size)
        active = ~self.exited
        values = {name: self._unset(name) for name in self.code.live_in}
        if self.code.graph.stacked:
            values["@sp"] = np.full((1, 1), -(-self.code.local_bytes // 16) * 16, np.uint64)
            values["@fp"] = np.zeros((1, 1), np.uint64)
        start = self.code.starts[self.code.kernel.name]
        self.ready = [Group(self, rows, None if active.all() else active, values, start)]
        while True:
            if self.ready:
                self._advance(self._next())
            elif self.parked and self.agents.pending():
                self.agents.run_some()
            elif not self.mbarriers.time_out():
                break
        if self.parked:
            raise self._deadlock()
        if self.observer is not None:
            self.observer.ended()
        self.agents.finish()
        self.tensor.ended()

    def _unset(self, name: str) -> np.ndarray:
        bits = self.code.widths.get(name, 32)
        return np.zeros((1, 1), np.bool_ if bits == 1 else uint(bits))

    def _next(self) -> Group:
        """Take the group that is furthest behind, with all others that are there."""
        ready = self.ready
        if len(ready) == 1:
            self.limit = None
            return ready.pop()
        if self.random is not None:
            first = ready[int(self.random.integers(len(ready)))]
        else:
            first = min(ready, key=lambda g: g.key)
        place = (first.pc, first.stack, first.passed)
        together = [g for g in ready if (g.pc, g.stack, g.passed) == place]
        self.ready = [g for g in ready if (g.pc, g.stack, g.passed) != place]
        self._set_limit()
        return merged(together)

    def _set_limit(self) -> None:
        self.limit = min((g.key for g in self.ready), default=None)

    def place(self, *groups: Group) -> None:
        """Let groups go on when it is their turn."""
        self.ready += groups
        self._set_limit()

    def park(self, group: Group) -> Any:
        """Keep a group until `wake`."""
        self.parked.append(group)
        return SWITCH

    def wake(self, *groups: Group) -> None:
        for group in groups:
            self.parked.remove(group)
        self.place(*groups)

    def _advance(self, group: Group) -> None:
        """Run a group until it gives way."""
        steps, counts = self.steps, self.tally.counts
        values, pc, size = group.values, group.pc, group.rows.size
        moved = False
        while True:
            bound = steps[pc]
            if bound.leads and moved and self.ready:
                group.pc = pc
                if self.limit is not None and group.key >= self.limit or self.random is not None:
                    self.ready.append(group)
                    return
            moved = True
            counts[pc] += size
            self.counted += 1
            if not self.counted & 63:
                group.pc = pc
                self._check_time(group)
            group.pc = pc
            outcome = self._step(bound, group)
            if outcome is None:
                for name in bound.dead:
                    values.pop(name, None)
                pc += 1
            elif outcome is SWITCH:
                return
            else:
                for name in bound.dead:
                    values.pop(name, None)
                pc = outcome

    def _step(self, bound: Bound, group: Group) -> Any:
        """Execute an instruction; return None, the index that all go to, or SWITCH."""
        try:
            group.mask = group.active
            if bound.guard is not None:
                mask = bound.guard(group)
                if group.active is not None:
                    mask = mask & group.active
                if not mask.any():
                    return None
                group.mask = None if mask.all() else mask
            if (
                self.flying
                and not bound.touches.isdisjoint(self.flying)
                and self.observer is not None
            ):
                self.observer.registers(group, bound)
            if (
                self.fetched
                and not bound.reads.isdisjoint(self.fetched)
                and self.observer is not None
            ):
                self.observer.consumed(group, bound)
            awaited = self.products.awaited
            if awaited and not bound.touches.isdisjoint(awaited):
                self.products.touch(group, bound)
            loading = self.tensor.loading
            if loading and not bound.touches.isdisjoint(loading):
                self.tensor.touched(group, bound.touches)
            return bound.step(group)
        except EmulatorError as error:
            raise self._placed(error, bound, group) from None
        except NotModelled as error:
            raise self.report(EmulatorError, error.words, bound, group) from None
        except GluonError as error:
            raise self.report(EmulatorError, error.message, bound, group) from error
        except KeyError as error:
            name = error.args[0] if error.args else None
            if name in self.code.widths and name not in group.values:  # nobody wrote this register
                group.values[name] = self._unset(name)
                return self._step(bound, group)
            words = f"the emulator failed: {type(error).__name__}: {error}"
            raise self.report(EmulatorError, words, bound, group) from error
        except (ArithmeticError, IndexError, TypeError, ValueError) as error:
            words = f"the emulator failed: {type(error).__name__}: {error}"
            raise self.report(EmulatorError, words, bound, group) from error

    # -- jumps --

    def jump(self, group: Group, target: int) -> Any:
        """Move the masked threads to `target`, the others on."""
        if target <= group.pc:
            self._looped(group)
        tally, pc = self.tally, group.pc
        if group.mask is None or group.active is not None and group.mask is group.active:
            tally.jumped[pc] += group.size
            tally.whole[pc] += group.size
            return target
        chosen = group.lanes()
        rest = group.everything() & ~chosen
        tally.jumped[pc] += int(chosen.any(1).sum())
        tally.whole[pc] += int((~rest.any(1)).sum())
        if not rest.any():
            return target
        taken, other = group.part(chosen), group.part(rest)
        taken.pc, other.pc = target, group.pc + 1
        self._drop(group.pc, taken, other)
        self.place(taken, other)
        return SWITCH

    def _drop(self, pc: int, *groups: Group) -> None:
        for group in groups:
            for name in self.steps[pc].dead:
                group.values.pop(name, None)

    def jump_each(self, group: Group, targets: np.ndarray) -> Any:
        """Let each masked thread go to its own target."""
        lanes = group.lanes()
        parts = []
        for target in np.unique(targets[lanes]):
            part = group.part(lanes & (targets == target))
            part.pc = int(target)
            parts.append(part)
        rest = group.everything() & ~lanes
        if rest.any():
            parts.append(group.part(rest))
            parts[-1].pc = group.pc + 1
        self._drop(group.pc, *parts)
        self.place(*parts)
        return SWITCH

    def _looped(self, group: Group) -> None:
        if group.seen != self.changes:
            group.seen = self.changes
            self.idle = 0
        else:
            self.idle += 1
            if self.idle > _IDLE:
                raise self.report(
                    TimeLimitError,
                    f"a loop of {self.code.kernel.name} does not end: {_IDLE} jumps back in a row "
                    f"changed nothing\n{self._stuck()}",
                    self.steps[group.pc],
                    group,
                )
        if group.polled:
            group.turn += 1
            group.polled = False
            self.polls += 1
            if self.polls > _SPINS and self.agents.pending():
                ready = len(self.ready)
                while self.agents.pending() and len(self.ready) == ready:
                    self.agents.run_some()
                self.polls = 0

    def call(
        self,
        group: Group,
        target: int,
        back: int,
        results: Any,
        frame: Optional[Callable[[Group], None]] = None,
    ) -> Any:
        """Let the masked threads go on in a function.

        Args:
            frame: keeps what the function may change.
        """
        rest = None
        if group.mask is not None and group.mask is not group.active:
            others = group.everything() & ~group.lanes()
            rest = group.part(others) if others.any() else None
            group = group.part(group.lanes())
        if frame is not None:
            frame(group)
        group.stack = (*group.stack, (back, tuple(results)))
        group.pc = target
        if rest is not None:
            rest.pc = back
            self.place(rest)
        self.place(group)
        return SWITCH

    def back(self, group: Group) -> Any:
        """Return from a function; from the kernel, leave."""
        if not group.stack:
            return self.leave(group)
        going = group
        others = group.everything() & ~group.lanes()
        if others.any():
            going, rest = group.part(group.lanes()), group.part(others)
            rest.pc = group.pc + 1
            self.place(rest)
        going.mask = going.active
        pc, results = going.stack[-1]
        going.stack = going.stack[:-1]
        parts = pieces(going, results)
        if self.code.graph.stacked:
            leave_frame(going)
        put(going, parts)
        going.pc = pc
        self.place(going)
        return SWITCH

    def leave(self, group: Group) -> Any:
        """End the masked threads."""
        lanes = group.lanes() & group.everything()
        if self.observer is not None:
            self.observer.left(group, lanes)
        self.exited[group.rows] |= lanes
        rest = group.everything() & ~lanes
        self.changes += 1
        if rest.any():
            other = group.part(rest)
            other.pc = group.pc + 1
            self.place(other)
        self.barriers.left(np.unique(group.block))
        self.converge()
        return SWITCH

    # -- threads of a warp that have to come together --

    def complete(self, group: Group, members: Optional[np.ndarray] = None) -> Optional[np.ndarray]:
        """Return the warps whose threads are all here; None where that is all of them.

        Args:
            members: (warps, 32 or 1) masks of the threads that each thread waits for; all by default.
        """
        if group.active is None and group.mask is None and members is None:
            return None
        lanes = group.lanes()
        if lanes.all():
            return None
        awaited = ~self.exited[group.rows]
        if members is not None:
            bits = np.uint32(1) << np.arange(LANES, dtype=np.uint32)
            named = np.where(lanes, members, np.uint32(0))
            awaited &= (np.bitwise_or.reduce(named, 1)[:, None] & bits) != 0
        here: np.ndarray = (~awaited | lanes).all(1)
        return None if here.all() else here

    def await_warps(self, group: Group, here: np.ndarray) -> Any:
        """Warps whose threads are all here execute the instruction again, the others wait for theirs."""
        threads = group.everything()
        parts = []
        if here.any():
            parts.append(group.part(threads & here[:, None]))
        missing = group.part(threads & ~here[:, None])
        kept = [
            g for g in self.parked
            if (g.pc, g.stack, g.passed) == (missing.pc, missing.stack, missing.passed)
            and not self.held(g)
        ]  # fmt: skip
        for one in kept:
            self.parked.remove(one)
        if kept:
            parts.append(merged([missing, *kept]))
        else:
            self.parked.append(missing)
        self.place(*parts)
        return SWITCH

    def warpgroups(self, group: Group) -> Optional[np.ndarray]:
        """Return the warps whose four warps are all here; None where that is all of them."""
        whole = self.complete(group)
        number = group.block * (-(-self.warps // 4)) + group.rows % self.warps // 4
        here = np.bincount(number, None if whole is None else whole)[number] == 4
        return None if here.all() else here

    def converge(self) -> None:
        """Ask those again who wait for threads of their warp."""
        waiting = [g for g in self.parked if g.active is not None and not self.held(g)]
        if waiting:
            self.wake(*waiting)

    def held(self, group: Group) -> bool:
        """Return whether a barrier or a copy keeps a group."""
        return any(one.holds(group) for one in (self.barriers, self.mbarriers, self.tensor))

    # -- what groups ask for --

    def shared_base(self, group: Group) -> Any:
        """Return the window of each block's own shared memory in that of its cluster."""
        if self.cluster_size == 1:
            return _ZERO
        return (self.rank_of[group.block] << 24)[:, None]

    def tick(self) -> int:
        self.clock += 32
        return self.clock

    def slept(self, group: Group) -> None:
        self.clock += 1000
        group.polled = True

    def complaint(self) -> str:
        return self.complaints[-1] if self.complaints else ""

    # -- reports --

    def _check_time(self, group: Group) -> None:
        if self.deadline is not None and time.monotonic() > self.deadline:
            self.ready.append(group)
            raise TimeLimitError(
                f"{self.code.kernel.name} did not end in {self.settings.timeout:g} s\n{self._stuck()}",
                remedy="A larger timeout may be all it needs; a loop that never ends shows above.",
                span=span_of(self.steps[group.pc].source.location),
            )

    def _placed(self, error: EmulatorError, bound: Bound, group: Group) -> EmulatorError:
        if error.instruction is not None:
            return error
        place = getattr(error, "place", None)
        return self.report(type(error), error.message, bound, group, place, error.remedy)

    def report(
        self,
        kind: Type[EmulatorError],
        message: str,
        bound: Bound,
        group: Group,
        place: Optional[tuple[int, int]] = None,
        remedy: Optional[str] = None,
    ) -> EmulatorError:
        """Return an error about an instruction.

        Args:
            place: the warp among those of the group, and the lane; the first that executes it by default.
        """
        source = bound.source
        if place is None:
            where = np.argwhere(group.lanes() & group.everything())
            place = (int(where[0][0]), int(where[0][1])) if where.size else (0, 0)
        row, lane = place
        block = tuple(int(i) for i in self.block_ids[group.block[row]])
        warp = int(group.rows[row]) % self.warps
        file = self.code.module.file
        line = f"{file}:{source.line}" if file else f"line {source.line} of the PTX"
        where_ = f"block {block}, warp {warp}, lane {lane}"
        error = kind(
            f"{message}\n  in `{_short(source.text)}` ({line}), {where_}",
            span=span_of(source.location),
            remedy=remedy,
        )
        if self.code.module.caveat:
            error.message += f"\n  ({self.code.module.caveat})"
        error.instruction, error.workgroup, error.wave = source.text, block, warp  # type: ignore[assignment]
        if source.location is not None:
            error.message += "".join(f"\n  inlined at {f}:{n}" for f, n in source.location.inlined)
        return error

    def _stuck(self) -> str:
        lines = []
        for group in sorted([*self.ready, *self.parked], key=lambda g: g.pc):
            source = self.steps[group.pc].source
            block = tuple(int(i) for i in self.block_ids[group.block[0]])
            many = f" and {group.rows.size - 1} more warps" if group.rows.size > 1 else ""
            where = source.location or f"line {source.line} of the PTX"
            why = self.mbarriers.why(group) or self.barriers.why(group) or self.tensor.why(group)
            lines.append(
                f"  block {block}, warp {int(group.rows[0]) % self.warps}{many}: at "
                f"`{_short(source.text)}` ({where}){why}"
            )
        more = [f"  and {len(lines) - _SHOWN} more places"] if len(lines) > _SHOWN else []
        return "\n".join(lines[:_SHOWN] + more)

    def _deadlock(self) -> EmulatorError:
        first = min(self.parked, key=lambda g: g.pc)
        source = self.steps[first.pc].source
        return DeadlockError(
            f"no warp of {self.code.kernel.name} can go on\n{self._stuck()}",
            span=span_of(source.location),
        )


def _short(text: str) -> str:
    return text if len(text) < 160 else text[:120] + " ... " + text[-30:]


_ZERO = np.zeros((1, 1), np.int64)
