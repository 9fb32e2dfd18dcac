"""The runs of one thread: its events for each choice of values that it may read."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Iterator, Mapping, Optional, Union

from gluon_emu.litmus.form import LitmusError, Operand, Program, Step, Test

__all__ = ["MOST_STEPS", "Event", "Run", "runs"]

MOST_STEPS = 400


@dataclass(frozen=True)
class Event:
    """A memory operation, a fence, or one side of a barrier.

    Args:
        thread: its index; -1 for initial values.
        location: the bytes, and `address` the name that they were accessed by.
        read, write: the values; None where it does not.
        proxy: of a memory operation; of a proxy fence the one that it joins with the generic one.
        needs: the events, by index in the run, whose values this one depends on.
        keeps: the written value depends on the one that was read.
        reduction: it reads without an acquire pattern.
        barrier: of its sides "arrive" and "wait": (level, name, count, relaxed).
    """

    thread: int
    kind: str
    text: str
    location: str = ""
    address: str = ""
    read: Any = None
    write: Any = None
    sem: str = "weak"
    scope: str = ""
    proxy: str = "generic"
    needs: frozenset[int] = frozenset()
    keeps: bool = True
    reduction: bool = False
    barrier: Optional[tuple[str, str, Optional[int], bool]] = None

    @property
    def strong(self) -> bool:
        return self.sem != "weak"


@dataclass
class Run:
    """A run of a thread.

    Args:
        order: (i, j): event i is before j in program order, or within one asynchronous operation.
        issued: (i, events): asynchronous events that start after event i; -1 where nothing is before.
        program: the events of the thread itself.
        cut: a loop went on beyond the bound.
    """

    events: list[Event] = field(default_factory=list)
    order: list[tuple[int, int]] = field(default_factory=list)
    issued: list[tuple[int, tuple[int, ...]]] = field(default_factory=list)
    program: list[int] = field(default_factory=list)
    registers: dict[str, Any] = field(default_factory=dict)
    cut: bool = False


class _Open(Exception):
    """A read has no value yet; `choices` are those that it may return."""

    def __init__(self, choices: list[Any]):
        self.choices = choices


def runs(test: Test, index: int, values: Mapping[str, set[Any]], unroll: int) -> Iterator[Run]:
    """Yield the runs of a thread.

    Args:
        values: those that each location may hold.
        unroll: how often a branch may go back.

    Raises:
        LitmusError: an address is no location.
    """
    pending: list[list[Any]] = [[]]
    while pending:
        chosen = pending.pop()
        try:
            yield _Thread(test, index, values, chosen, unroll).run()
        except _Open as read:
            pending += [[*chosen, value] for value in reversed(read.choices)]


class _Thread:
    def __init__(
        self, test: Test, index: int, values: Mapping[str, set[Any]], chosen: list[Any], unroll: int
    ):
        self.test, self.index, self.values = test, index, values
        self.program: Program = test.threads[index]
        self.choices = iter(chosen)
        self.unroll = unroll
        self.result = Run(registers=dict(self.program.registers))
        self.taint: dict[str, frozenset[int]] = {}
        self.control: frozenset[int] = frozenset()
        self.open: dict[bool, list[list[tuple[int, ...]]]] = {False: [], True: []}
        self.group: dict[bool, list[tuple[int, ...]]] = {False: [], True: []}
        self.done: set[int] = set()

    def run(self) -> Run:
        steps, index, back, count = self.program.steps, 0, 0, 0
        labels = {step.to: number for number, step in enumerate(steps) if step.kind == "label"}
        while index < len(steps):
            step = steps[index]
            index += 1
            count += 1
            if count > MOST_STEPS:
                self.result.cut = True
                break
            guard = self._guard(step)
            if step.kind == "bra":
                self.control |= guard[1]
                if guard[0]:
                    back += labels[step.to] < index
                    if back > self.unroll:
                        self.result.cut = True
                        break
                    index = labels[step.to]
                continue
            if not guard[0]:
                if step.to:
                    self.taint[step.to] = self.taint.get(step.to, frozenset()) | guard[1]
                continue
            if step.kind == "exit":
                self.control |= guard[1]
                break
            self._step(step, guard[1])
        return self.result

    def _guard(self, step: Step) -> tuple[bool, frozenset[int]]:
        if step.guard is None:
            return True, frozenset()
        register, negated = step.guard
        value = self.result.registers.get(register, 0)
        return bool(value) is not negated, self.taint.get(register, frozenset())

    def _operand(self, value: Operand) -> tuple[Any, frozenset[int]]:
        if isinstance(value, int):
            return value, frozenset()
        if (
            value not in self.result.registers
            and value in self.test.initial.keys() | self.test.aliases
        ):
            return value, frozenset()
        return self.result.registers.get(value, 0), self.taint.get(value, frozenset())

    def _number(self, step: Step, value: Operand) -> tuple[int, frozenset[int]]:
        number, needs = self._operand(value)
        if not isinstance(number, int):
            raise LitmusError(f"{value} holds an address, and a number is needed", span=step.span)
        return number, needs

    def _location(self, step: Step, name: str) -> tuple[str, str, frozenset[int]]:
        """Return the location, the address and what they depend on."""
        needs: frozenset[int] = frozenset()
        if name in self.result.registers or name in self.taint:
            needs = self.taint.get(name, frozenset())
            name = self.result.registers[name]
        location = self.test.aliases.get(name, name) if isinstance(name, str) else ""
        if location not in self.test.initial:
            raise LitmusError("the register holds no address", span=step.span, got=name)
        return location, name, needs

    def _read(self, step: Step, location: str, barrier: bool = False) -> Any:
        if barrier != (location in self.test.counts):
            raise LitmusError(
                f"{location} is {'no' if barrier else 'an'} mbarrier object", span=step.span
            )
        for value in self.choices:
            return value
        raise _Open(sorted(self.values[location]))

    # -- events ------------------------------------------------------------------------------------

    def _emit(self, event: Event, after: tuple[int, ...] = ()) -> int:
        """Add an event of the thread; `after` are asynchronous ones that it waits for."""
        run = self.result
        number = len(run.events)
        run.events.append(event)
        if run.program:
            run.order.append((run.program[-1], number))
        run.order += [(one, number) for one in after]
        run.program.append(number)
        return number

    def _step(self, step: Step, guard: frozenset[int]) -> None:
        needs = self.control | guard
        if step.kind == "alu":
            values = [self._operand(v) for v in step.values]
            assert step.function is not None
            if step.text.split()[0].startswith("mov"):
                self._set(step.to, values[0][0], values[0][1] | guard)
                return
            numbers = [self._number(step, v) for v in step.values]
            self._set(
                step.to,
                step.function(*(n for n, _ in numbers)),
                guard.union(*(t for _, t in numbers)),
            )
        elif step.kind in ("load", "store", "atom", "red"):
            self._access(step, needs, guard)
        elif step.kind in ("arrive", "wait"):
            self._object(step, needs, guard)
        elif step.kind == "fence":
            self._emit(Event(self.index, "fence", step.text, sem=step.sem, scope=step.scope))
        elif step.kind == "proxy":
            self._emit(Event(self.index, "proxy", step.text, proxy=step.proxy))
        elif step.kind == "barrier":
            barrier = (
                step.detail["level"],
                step.detail["name"],
                step.detail["count"],
                step.detail["relaxed"],
            )
            for side in ("arrive", "wait"):
                if step.detail["mode"] in ("sync", side):
                    self._emit(Event(self.index, side, step.text, barrier=barrier))
        elif step.kind == "copy":
            self._copy(step, needs)
        elif step.kind == "commit":
            bulk = step.detail["bulk"]
            self.open[bulk].append(self.group[bulk])
            self.group[bulk] = []
        elif step.kind == "group":
            self._group(step)

    def _set(self, register: str, value: Any, taint: frozenset[int]) -> None:
        if register and register != "_":
            self.result.registers[register] = value
            self.taint[register] = taint

    def _access(self, step: Step, needs: frozenset[int], guard: frozenset[int]) -> None:
        location, address, more = self._location(step, step.address)
        common: dict[str, Any] = dict(
            location=location, address=address, sem=step.sem, scope=step.scope, proxy=step.proxy
        )
        needs |= more
        if step.kind == "load":
            value = self._read(step, location)
            number = self._emit(
                Event(self.index, "memory", step.text, read=value, needs=needs, **common)
            )
            self._set(step.to, value, guard | {number})
            return
        operands = [self._number(step, v) for v in step.values]
        needs = needs.union(*(taint for _, taint in operands))
        if step.kind == "store":
            if location in self.test.counts:
                raise LitmusError(f"{location} is an mbarrier object", span=step.span)
            self._emit(
                Event(self.index, "memory", step.text, write=operands[0][0], needs=needs, **common)
            )
            return
        value = self._read(step, location)
        assert step.function is not None
        new = step.function(value, *(number for number, _ in operands))
        if new is None and step.sem in (
            "release",
            "acq_rel",
        ):  # a compare-and-swap that fails stores nothing
            common["sem"] = "acquire" if step.sem == "acq_rel" else "relaxed"
        number = self._emit(
            Event(
                self.index, "memory", step.text, read=value, write=new, needs=needs,
                keeps=step.detail["keeps"], reduction=step.kind == "red", **common,
            )
        )  # fmt: skip
        self._set(step.to, value, guard | {number})

    def _object(self, step: Step, needs: frozenset[int], guard: frozenset[int]) -> None:
        location, address, more = self._location(step, step.address)
        state = self._read(step, location, True)
        new: Any = None
        result: Union[int, bool]
        if step.kind == "wait":
            wanted, taint = self._number(step, step.values[0])
            more |= taint
            result = int(
                (state[0] & 1) != (wanted & 1) if step.detail["parity"] else state[0] > wanted
            )
        else:
            arrivals, one = self._number(step, step.detail["arrivals"])
            size, other = self._number(step, step.detail["bytes"])
            more |= one | other
            result = state[0]
            new = _advanced(state, arrivals, size, self.test.counts[location])
        number = self._emit(
            Event(
                self.index, "memory", step.text, location, address, state, new, step.sem, step.scope,
                needs=needs | more, reduction=step.kind == "arrive",
            )
        )  # fmt: skip
        self._set(step.to, result, guard | {number})

    def _copy(self, step: Step, needs: frozenset[int]) -> None:
        run, detail = self.result, step.detail
        last = run.program[-1] if run.program else -1
        source, source_address, one = self._location(step, detail["addresses"][0])
        to, to_address, other = self._location(step, step.address)
        needs |= one | other
        members: list[int] = []

        def add(event: Event) -> int:
            number = len(run.events)
            if members:
                run.order.append((members[-1], number))
            run.events.append(event)
            members.append(number)
            return number

        value = self._read(step, source)
        common: dict[str, Any] = dict(proxy=step.proxy)
        read = add(
            Event(
                self.index,
                "memory",
                step.text,
                source,
                source_address,
                read=value,
                needs=needs,
                **common,
            )
        )
        needs |= {read}
        if detail["bulk"]:  # a completed read lets generic writes reuse the source
            add(Event(self.index, "proxy", step.text, proxy="async"))
        if step.function is None:
            add(
                Event(
                    self.index,
                    "memory",
                    step.text,
                    to,
                    to_address,
                    write=value,
                    needs=needs,
                    **common,
                )
            )
        else:
            old = self._read(step, to)
            new = step.function(old, value)
            add(
                Event(
                    self.index, "memory", step.text, to, to_address, old, new, "relaxed", "gpu", step.proxy, needs,
                    reduction=True,
                )
            )  # fmt: skip
        if detail["bulk"]:  # its completion is followed by a fence between the proxies
            add(Event(self.index, "proxy", step.text, proxy="async"))
        if detail["barrier"]:
            place, address, more = self._location(step, detail["barrier"])
            state = self._read(step, place, True)
            new = _advanced(state, 0, -detail["bytes"], self.test.counts[place])
            add(
                Event(
                    self.index, "memory", step.text, place, address, state, new, "release", "cluster",
                    needs=needs | more, reduction=True,
                )
            )  # fmt: skip
        else:
            self.group[detail["bulk"]].append(tuple(members))
        run.issued.append((last, tuple(members)))

    def _group(self, step: Step) -> None:
        bulk, pending = step.detail["bulk"], step.detail["pending"]
        groups = self.open[bulk]
        finished = groups if pending == 0 else groups[:-pending]
        copies = [copy for group in finished for copy in group]
        if step.detail["all"]:
            copies += self.group[bulk]
        # With .read the sources have been read, and nothing is said about the destinations.
        after = tuple(copy[1] if step.detail["read"] else copy[-1] for copy in copies)
        self._emit(Event(self.index, "done", step.text), after)


def _advanced(
    state: tuple[int, int, int], arrivals: int, size: int, expected: int
) -> tuple[int, int, int]:
    """Return the state of an mbarrier object after arrivals and a change of its pending bytes."""
    phase, pending, left = state[0], state[1] - arrivals, state[2] + size
    return (phase + 1, expected, 0) if pending == 0 and left == 0 else (phase, pending, left)
