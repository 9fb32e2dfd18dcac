"""The comparison of a candidate's result with the reference in float64 and at the same precision."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Mapping, Optional

import torch

from gluon_judge.messages import Difference

__all__ = ["Expected", "difference"]

# Limits of the error: the growth of its root mean square over that of the reference, that of its maximum, and the
# units of the last place that any result may be off. Approximations of float32 functions are some units off; results
# of fewer bits are rounded once from float32.
LONG = (4.0, 12.0, 2.0, 4.0)
SHORT = (2.5, 5.0, 0.15, 0.5)
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
        return [Difference("result.wrong", _first(wrong, result, same))]
    return _of_floats(result, expected, fill, tolerance, strict)


def _of_floats(
    result: Any, expected: Expected, fill: str, tolerance: Mapping[str, float], strict: bool
) -> list[Difference]:
    same, mine = expected.same.double(), result.double()
    exact = same if expected.exact is None else expected.exact.double()
    if not mine.numel():
        return []
    differences = []
    finite = torch.isfinite(same)
    free = torch.zeros_like(finite)
    if expected.reached is not None and not strict:
        free = expected.reached
    generated = finite & torch.isfinite(exact) & ~torch.isfinite(mine) & ~free
    if bool(generated.any()):
        code = "result.wrong" if fill == "drawn" else "special.generated"
        differences.append(Difference(code, _first(generated, mine, same)))
    hidden = (~finite | free) & ~((torch.isnan(same) & torch.isnan(mine)) | (same == mine))
    hidden &= ~finite | ~torch.isclose(mine, same, rtol=0.01, atol=0.0)
    if bool(hidden.any()):
        code = "result.wrong" if strict or fill == "drawn" else "special.hidden"
        differences.append(Difference(code, _first(hidden, mine, same)))
    comparable = finite & torch.isfinite(mine) & torch.isfinite(exact) & ~free
    if bool(comparable.any()):
        graded = _graded(mine, same, exact, comparable, expected.same.dtype, tolerance, fill)
        if graded is not None:
            differences.append(graded)
    return differences


def _graded(
    mine: Any, same: Any, exact: Any, comparable: Any, dtype: Any, tolerance: Mapping[str, float],
    fill: str,
) -> Optional[Difference]:  # fmt: skip
    limits = torch.finfo(dtype)
    good = exact[comparable]
    scale = float(good.abs().square().mean().sqrt())
    unit = limits.eps * torch.clamp(good.abs(), min=max(scale, float(limits.tiny)))
    error = (mine[comparable] - good).abs()
    own = (same[comparable] - good).abs()
    free = tolerance.get("absolute", 0.0) + tolerance.get("relative", 0.0) * good.abs()
    counted = torch.where(error <= free, torch.zeros_like(error), error)
    mean, peak = _norms(counted / unit)
    own_mean, own_peak = _norms(own / unit)
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
        small = bool((error <= 4 * limits.tiny).all())
        return Difference("special.denormal", flushed, numbers) if small else None
    if over <= 1:
        return Difference("precision.growth", f"the error is {over:.0%} of its limit", numbers)
    # An error of many units that still is small against the values: precision, not a wrong result.
    relative = float(error.square().mean().sqrt()) / max(scale, float(limits.tiny))
    if relative < 0.02 and _spread(counted / unit, most[0]):
        times = mean / max(own_mean, floor)
        text = f"the error is {times:.3g} times that of the reference at the same precision"
        return Difference("precision.dropped", text, numbers)
    worst = torch.zeros_like(mine)
    worst[comparable] = counted / unit
    index = _index(int(worst.argmax()), mine.shape)
    place = ", ".join(map(str, index))
    text = f"element [{place}] is {float(mine[index]):.6g}, expected {float(exact[index]):.6g}"
    return Difference("result.wrong", text, numbers)


def _norms(error: Any) -> tuple[float, float]:
    return float(error.square().mean().sqrt()), float(error.max())


def _spread(error: Any, limit: float) -> bool:
    """Return whether the error is everywhere, as that of a precision is, rather than in some elements."""
    return float((error > limit / 8).double().mean()) > 0.1


def _index(flat: int, shape: Any) -> tuple[int, ...]:
    index: list[int] = []
    for size in reversed(tuple(shape)):
        index.insert(0, flat % size)
        flat //= size
    return tuple(index)


def _first(wrong: Any, result: Any, expected: Any) -> str:
    flat = int(wrong.reshape(-1).to(torch.uint8).argmax())
    index = _index(flat, result.shape)
    place = ", ".join(map(str, index))
    count = int(wrong.sum())
    many = f"{count} elements differ; the first" if count > 1 else "one element differs"
    return f"{many}, [{place}], is {result[index].item()}, expected {expected[index].item()}"
