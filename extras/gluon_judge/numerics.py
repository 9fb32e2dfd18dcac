"""The comparison of a candidate's result with the reference in float64 and at the same precision."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Iterator, Mapping, Optional

import torch

from gluon_judge.messages import Difference

__all__ = ["Expected", "difference"]

# Limits of the error: the growth of its root mean square over that of the reference, that of its maximum, and the
# units of the last place that any result may be off. Approximations of float32 functions are some units off; results
# of fewer bits are rounded once from float32.
LONG = (4.0, 12.0, 2.0, 4.0)
SHORT = (2.5, 5.0, 0.15, 0.5)
_PIECE = 1 << 14  # elements of a result that are compared at once
OPEN = 0.5  # of the limit: from there on the growth is worth a warning


@dataclass(frozen=True)
class Expected:
    """One tensor of the reference.

    Args:
        same: its result at the candidate's precision.
        exact: its result in float64; None for results that are no floating numbers.
        reached: the elements that depend on NaN or infinity of the inputs; None where there are none.
    """

    same: Any
    exact: Any
    reached: Any = None


def difference(
    result: Any, expected: Expected, fill: str, tolerance: Mapping[str, float], strict: bool
) -> list[Difference]:
    """Compare one tensor with the reference.

    Args:
        fill: the kind of values in the inputs, which decides how NaN and infinity count.
        tolerance: of the problem.
        strict: whether NaN and infinity of the inputs must reach the result. Otherwise elements that depend on them may
            be anything.
    """
    same = expected.same
    if tuple(result.shape) != tuple(same.shape):
        shapes = f"{tuple(result.shape)}, expected {tuple(same.shape)}"
        return [Difference("result.shape", f"the result has shape {shapes}")]
    if result.dtype != same.dtype:
        return [Difference("result.dtype", f"the result has {result.dtype}, expected {same.dtype}")]
    if not same.dtype.is_floating_point:
        wrong = result != same
        if expected.reached is not None and not strict:
            wrong &= ~expected.reached
        if not bool(wrong.any()):
            return []
        places = _Places()
        places.add(wrong, 0)
        return [Difference("result.wrong", places.text(result, same))]
    return _of_floats(result, expected, fill, tolerance, strict)


def _of_floats(
    result: Any, expected: Expected, fill: str, tolerance: Mapping[str, float], strict: bool
) -> list[Difference]:
    same = expected.same
    if not result.numel():
        return []
    generated, hidden = _Places(), _Places()
    squares, count = 0.0, 0
    for piece in _pieces(result, expected, strict):
        if piece.comparable is not None:
            finite, mine, free = torch.isfinite(piece.same), piece.mine, piece.free
            known = torch.isfinite(piece.exact)
            generated.add(finite & known & ~torch.isfinite(mine) & ~free, piece.start)
            equal = (torch.isnan(piece.same) & torch.isnan(mine)) | (piece.same == mine)
            equal |= finite & torch.isclose(mine, piece.same, rtol=0.01, atol=0.0)
            hidden.add((~finite | free) & ~equal, piece.start)
        good = piece.good
        squares += float(good.square().sum())
        count += good.numel()
    differences = []
    if generated.count:
        code = "result.wrong" if fill == "drawn" else "special.generated"
        differences.append(Difference(code, generated.text(result, same)))
    if hidden.count:
        code = "result.wrong" if strict or fill == "drawn" else "special.hidden"
        differences.append(Difference(code, hidden.text(result, same)))
    if count:
        scale = math.sqrt(squares / count)
        graded = _graded(result, expected, tolerance, fill, strict, scale)
        if graded is not None:
            differences.append(graded)
    return differences


class _Places:
    """The elements of a tensor that something holds of.

    Attributes:
        count: of them.
    """

    def __init__(self) -> None:
        self.count, self._first = 0, 0

    def add(self, mask: Any, start: int) -> None:
        """Add those of a piece, given as a mask."""
        count = int(mask.sum())
        if count and not self.count:
            self._first = start + int(mask.reshape(-1).to(torch.uint8).argmax())
        self.count += count

    def text(self, result: Any, expected: Any) -> str:
        """Return how many they are, and the values of the first."""
        index = _index(self._first, result.shape)
        place = ", ".join(map(str, index))
        many = (
            f"{self.count} elements differ; the first" if self.count > 1 else "one element differs"
        )
        return f"{many}, [{place}], is {result[index].item()}, expected {expected[index].item()}"


@dataclass(frozen=True)
class _Piece:
    """A piece of a result and of the reference in float64, flat.

    Args:
        start: index of its first element.
        mine, same, exact: the candidate's values, the reference's at the same precision, and those in float64.
        free: elements that may be anything.
        comparable: elements whose error counts; None for all.
    """

    start: int
    mine: Any
    same: Any
    exact: Any
    free: Any
    comparable: Any

    def _counted(self, values: Any) -> Any:
        return values if self.comparable is None else values[self.comparable]

    @property
    def good(self) -> Any:
        """Return the exact values of the comparable elements."""
        return self._counted(self.exact)

    def errors(self) -> tuple[Any, Any]:
        """Return the errors of the candidate and of the reference for the comparable elements."""
        good = self.good
        mine = (self._counted(self.mine) - good).abs()
        own = torch.zeros_like(mine)
        return mine, own if self.same is self.exact else (self._counted(self.same) - good).abs()


def _pieces(result: Any, expected: Expected, strict: bool) -> Iterator[_Piece]:
    """Yield a result piece by piece, each small enough for the caches of a core."""
    tensors = (result, expected.same, expected.exact, None if strict else expected.reached)
    flat: list[Any] = [None if one is None else one.reshape(-1) for one in tensors]
    for start in range(0, result.numel(), _PIECE):
        parts: list[Any] = [None if one is None else one[start : start + _PIECE] for one in flat]
        mine, same = parts[0].double(), parts[1].double()
        exact = same if parts[2] is None else parts[2].double()
        usable = torch.isfinite(mine) & torch.isfinite(same)
        if exact is not same:
            usable &= torch.isfinite(exact)
        free = torch.zeros_like(usable) if parts[3] is None else parts[3]
        if parts[3] is not None:
            usable &= ~free
        comparable = None if bool(usable.all()) else usable
        yield _Piece(start, mine, same, exact, free, comparable)


def _graded(
    result: Any, expected: Expected, tolerance: Mapping[str, float], fill: str, strict: bool,
    scale: float,
) -> Optional[Difference]:  # fmt: skip
    dtype = expected.same.dtype
    limits = torch.finfo(dtype)
    least = max(scale, float(limits.tiny))

    def units() -> Iterator[tuple[_Piece, Any, Any, Any]]:
        """Yield each piece with the counted errors and the reference's in units, and the errors."""
        for piece in _pieces(result, expected, strict):
            size = piece.good.abs()
            error, own = piece.errors()
            unit = limits.eps * torch.clamp(size, min=least)
            counted = error
            if tolerance.get("absolute") or tolerance.get("relative"):
                free = tolerance.get("absolute", 0.0) + tolerance.get("relative", 0.0) * size
                counted = torch.where(error <= free, torch.zeros_like(error), error)
            yield piece, counted / unit, own / unit, error

    total, own_total, whole = _Norms(), _Norms(), _Norms()
    for piece, counted, own, error in units():
        if error.numel():
            total.add(counted, piece)
            own_total.add(own)
            whole.add(error)
    mean, peak = total.mean, total.peak
    own_mean, own_peak = own_total.mean, own_total.peak
    growth, peak_growth, floor, floor_peak = SHORT if limits.bits < 32 else LONG
    wider = tolerance.get("growth", growth) / growth
    most = (
        wider * growth * max(own_mean, floor),
        wider * max(peak_growth * own_peak, peak_growth * floor_peak),
    )
    numbers = (
        f"error {mean:.3g} ulp (rms), {peak:.3g} (max); reference at {dtype} {own_mean:.3g}, "
        f"{own_peak:.3g}; limit {most[0]:.3g}, {most[1]:.3g}"
    ).replace("torch.", "")
    over = max(mean / most[0], peak / most[1])
    if over <= OPEN:
        return None
    if fill == "denormal":
        flushed = "subnormal numbers are flushed to zero"
        small = whole.peak <= 4 * limits.tiny
        return Difference("special.denormal", flushed, numbers) if small else None
    if over <= 1:
        return Difference("precision.growth", f"the error is {over:.0%} of its limit", numbers)
    # An error of many units that still is small against the values: precision, not a wrong result.
    # It is everywhere, rather than in some elements.
    if whole.mean / least < 0.02:
        spread = sum(float((counted > most[0] / 8).sum()) for _, counted, _, _ in units())
        if spread > 0.1 * total.count:
            times = mean / max(own_mean, floor)
            text = f"the error is {times:.3g} times that of the reference at the same precision"
            return Difference("precision.dropped", text, numbers)
    index = _index(total.place, result.shape)
    place = ", ".join(map(str, index))
    exact = expected.same if expected.exact is None else expected.exact
    text = f"element [{place}] is {float(result[index]):.6g}, expected {float(exact[index]):.6g}"
    return Difference("result.wrong", text, numbers)


class _Norms:
    """The root mean square and the maximum of errors, piece by piece.

    Attributes:
        count: of the errors.
        peak: the largest.
        place: index of the largest, where pieces were added with the errors.
    """

    def __init__(self) -> None:
        self.count, self.peak, self.place, self._squares = 0, 0.0, 0, 0.0

    def add(self, errors: Any, piece: Optional[_Piece] = None) -> None:
        """Add the errors of the comparable elements of a piece."""
        self.count += errors.numel()
        self._squares += float(errors.square().sum())
        peak = float(errors.max())
        if peak > self.peak:
            self.peak = peak
            if piece is not None:
                within = int(errors.argmax())
                if piece.comparable is not None:
                    within = int(piece.comparable.nonzero()[within])
                self.place = piece.start + within

    @property
    def mean(self) -> float:
        """Return the root mean square."""
        return math.sqrt(self._squares / max(1, self.count))


def _index(flat: int, shape: Any) -> tuple[int, ...]:
    index: list[int] = []
    for size in reversed(tuple(shape)):
        index.insert(0, flat % size)
        flat //= size
    return tuple(index)
