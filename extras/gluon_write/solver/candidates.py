"""The layouts that an unknown may have: tilings for its own ops, and those that its relations pass on."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import permutations
from typing import Any, Callable, Iterator, Optional, Sequence

from gluon_core.errors import GluonError
from gluon_core.layouts import BlockedLayout, DistributedLayout
from gluon_write.solver.unknowns import AnyLayout, Graph, Unknown
from gluon_write.tracing.buffers import shared_candidates, unit_candidates

__all__ = ["MOST", "candidates"]

MOST = 32  # of one unknown
_FEW = 8  # layouts of tensors that are joined
_MOST_DEMANDED = 4  # that relations pass on from demanded layouts alone
_WIDTHS = (1, 2, 4, 8, 16)
_MOST_PERMUTED = 3  # dimensions whose orders are all tried


def _filled(total: int, sizes: Sequence[int], order: Sequence[int], rest: int) -> list[int]:
    """Split `total` over dimensions of `sizes`, in `order`; what is left repeats the elements of dimension `rest`."""
    parts = [1] * len(sizes)
    for dim in order:
        parts[dim] = min(total, sizes[dim])
        total //= parts[dim]
    parts[rest] *= total
    return parts


def tilings(
    shape: Sequence[int], lanes: int, warps: int, widest: int = 16, single: bool = False
) -> Iterator[DistributedLayout]:
    """Yield blocked layouts of a shape, plain ones first.

    Args:
        single: elements of rows that begin anywhere are moved one by one: a thread may have neighbours of a column.
    """
    rank = len(shape)
    orders = (
        list(permutations(reversed(range(rank)))) if rank <= _MOST_PERMUTED
        else [tuple(reversed(range(rank)))]
    )  # fmt: skip
    seen = set()
    for order in orders:
        for width in _WIDTHS:
            if width > min(shape[order[0]], widest):
                break
            each = [1] * rank
            each[order[0]] = width
            left = [max(1, size // n) for size, n in zip(shape, each)]
            threads = _filled(lanes, left, order, order[-1])
            left = [max(1, size // n) for size, n in zip(left, threads)]
            for way in (tuple(reversed(order)), order):
                # Warps that repeat others are the last ones: so the code of a scan or a store names no bit between.
                parts = _filled(warps, left, way, order[-1])
                own = [each]
                if single and width == 1 and rank == 2:
                    down = max(1, left[order[1]] // parts[order[1]])
                    own.append([down if dim == order[1] else 1 for dim in range(rank)])
                for registers in own:
                    layout = BlockedLayout(registers, threads, parts, list(order))
                    if layout not in seen:
                        seen.add(layout)
                        yield layout


def _widest(one: Unknown) -> int:
    """Return the elements of the widest access, or of a register."""
    bits = [access.bits for access in one.accesses] or [max(one.bits, 8)]
    return max(1, 128 // min(bits))


def _square(shape: Sequence[int], lanes: int, warps: int) -> Iterator[DistributedLayout]:
    """Yield tilings whose threads hold squares, for products without a matrix unit."""
    for side in (2, 4, 8):
        if len(shape) == 2 and min(shape) >= side:
            left = [size // side for size in shape]
            across = min(left[1], 1 << (lanes.bit_length() // 2))
            threads = [lanes // across, across]
            down = max(1, left[0] // threads[0])
            parts = [min(warps, down), warps // min(warps, down)]
            yield BlockedLayout([side, side], threads, parts, [1, 0])


def candidates(graph: Graph, few: bool = False) -> dict[int, list[AnyLayout]]:
    """Return the layouts that each unknown may have, by its number, in a fixed order.

    Args:
        few: only what the ops demand, and the tilings of one tensor of each group of related ones: so few that
            each list has all that relations pass on.
    """
    lists: dict[int, list[AnyLayout]] = {one.number: [] for one in graph.unknowns}
    demanded: dict[int, list[AnyLayout]] = {
        one.number: [] if one.fixed is None else [one.fixed] for one in graph.unknowns
    }
    _Passed(graph, demanded, _MOST_DEMANDED).pass_on()
    products = {r.result.number for r in graph.relations if r.kind == "operand"}
    apart = not graph.multiplies()  # matrix units and copies to shared memory take no columns
    for one in graph.unknowns:
        if one.fixed is not None:
            lists[one.number] = [one.fixed]
        elif one.first is not None and one.unit:
            lists[one.number] += unit_candidates(one.shape, one.bits, one.first)
        elif one.first is not None:
            lists[one.number] += shared_candidates(one.shape, one.bits, one.first)
        elif one.number in products:
            lists[one.number] += _square(one.shape, graph.lanes, one.warps)
        elif not few and (one.accesses or one.reductions or one.scans):
            single = bool(one.accesses) and all(access.together == 1 for access in one.accesses)
            widest = _widest(one)
            lists[one.number] += tilings(
                one.shape, graph.lanes, one.warps, widest, single and apart
            )
    for one in graph.unknowns:  # tilings of reductions leave room for the layouts of units
        if not one.accesses:
            layouts = lists[one.number]
            layouts += [layout for layout in demanded[one.number] if layout not in layouts]
    passed = _Passed(graph, lists)
    passed.pass_on()
    if not few:
        _tile_halves(graph, passed)
    for one in sorted(graph.unknowns, key=lambda u: (-len(u.shape), u.number)):
        if not lists[one.number]:
            for layout in tilings(one.shape, graph.lanes, one.warps):
                passed.add(one.number, layout)
            passed.pass_on()
    return lists


def _halves(graph: Graph) -> Iterator[Unknown]:
    """Yield the layouts of tensors that are joined, and of those that others are split into."""
    halves: dict[int, Unknown] = {}
    for relation in graph.relations:
        op = getattr(relation.detail, "op", "") if relation.kind == "infer" else ""
        if op in ("join", "split"):
            one = relation.source if op == "join" else relation.result
            halves[one.number] = one
    yield from (one for one in halves.values() if one.fixed is None)


def _tile_halves(graph: Graph, passed: _Passed) -> None:
    """Add tilings of halves that have few layouts: a thread has both, and much more in most of other tensors' layouts."""
    for one in _halves(graph):
        if 0 < len(passed.lists[one.number]) < _FEW:
            for layout in tilings(one.shape, graph.lanes, one.warps, _widest(one)):
                if layout not in passed.known[one.number]:
                    passed.add(one.number, layout)
            passed.pass_on()


class _Passed:
    """Hold the layouts of all unknowns, and which of them relations have passed on.

    Args:
        lists: number of an unknown -> its layouts, which grow. limit: of the layouts of one unknown.
    """

    def __init__(self, graph: Graph, lists: dict[int, list[Any]], limit: int = MOST):
        self.lists = lists
        self.known = {number: set(layouts) for number, layouts in lists.items()}
        self.ways: list[_Way] = []
        for relation in graph.relations:
            source, result = relation.source, relation.result
            # A split has results of its own kind of layout: few, and no others will do.
            most = 2 * limit if relation.kind == "infer" else limit
            if relation.kind != "view":
                for way in (
                    _Way(source.number, result, relation.forward, most),
                    _Way(result.number, source, relation.backward, most),
                ):
                    if way.end.fixed is None:
                        self.ways.append(way)

    def add(self, number: int, layout: AnyLayout) -> None:
        """Add a layout of an unknown."""
        self.known[number].add(layout)
        self.lists[number].append(layout)

    def pass_on(self) -> None:
        """Add the layouts that relations give at their other end, until nothing is new."""
        changed = True
        while changed:
            changed = False
            for way in self.ways:
                changed |= self._go(way)

    def _go(self, way: _Way) -> bool:
        start, end = self.lists[way.start], self.lists[way.end.number]
        known, grown = self.known[way.end.number], False
        shape = tuple(way.end.shape)
        for layout in start[way.passed : len(start)]:
            if len(end) >= way.most:
                break
            way.passed += 1
            try:
                other = way.rule(layout)
            except GluonError:
                continue
            if other is None or other in known or not _fits(other, shape):
                continue
            self.add(way.end.number, other)
            grown = True
        return grown


@lru_cache(maxsize=1 << 16)
def _fits(layout: DistributedLayout, shape: tuple[int, ...]) -> bool:
    """Return True if a layout can describe a tensor of a shape."""
    try:
        layout.to_linear(list(shape))
    except GluonError:
        return False
    return True


@dataclass
class _Way:
    """Hold one direction of a relation.

    Attributes:
        start: number of the unknown that passes layouts on, end: the one that gets them.
        rule: the layout at the end, by that at the start. most: of the layouts at the end.
        passed: how many layouts were passed on.
    """

    start: int
    end: Unknown
    rule: Callable[[DistributedLayout], Optional[DistributedLayout]]
    most: int
    passed: int = 0
