"""One launch on two targets, such as the simulator and a GPU, and how far apart their results are.

    differences = run_both(lambda args, target: kernel[grid](*args.values(), target=target), arrays, sim, gpu)
    assert all(d.exact for d in differences)

Arrays are NumPy's here, and go to each target in the form it takes. Every array is compared, those that
a kernel should leave alone too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable, Mapping

import numpy as np

from gluon_core.plugin.targets import Target
from gluon_core.registry.load import registry

__all__ = ["Difference", "compare", "from_target", "on_target", "run_both"]


@dataclass(frozen=True)
class Difference:
    """The difference of two arrays.

    Args:
        name: of the array.
        size: its elements.
        differing: how many are not the same bits; all NaNs count as one.
        worst: the largest distance; infinite where only one of two is finite or a number.
        scale: the largest finite magnitude.
        ulps: the largest distance in units in the last place, of floats; 0 else.
        first: index of the first that differs, with both values.
    """

    name: str
    size: int
    differing: int = 0
    worst: float = 0.0
    scale: float = 0.0
    ulps: int = 0
    first: tuple[Any, ...] = ()

    @property
    def exact(self) -> bool:
        return not self.differing

    def within(self, relative: float = 0.0, ulps: int = 0) -> bool:
        """Is every distance at most `relative` of the largest magnitude, or that many ulps?"""
        if self.exact:
            return True
        return self.worst <= relative * self.scale or 0 < self.ulps <= ulps

    def __str__(self) -> str:
        if self.exact:
            return f"{self.name}: the same {self.size} elements"
        ulps = f", {self.ulps} ulp" if self.ulps else ""
        share = self.worst / self.scale if self.scale else float("inf")
        where, one, other = self.first
        return (
            f"{self.name}: {self.differing} of {self.size} elements differ, by up to {self.worst:.3g} "
            f"({share:.2g} of the largest{ulps}); first at {where}: {one} and {other}"
        )


def compare(name: str, one: np.ndarray, other: np.ndarray) -> Difference:
    """Return the difference of two arrays of one shape and type."""
    if one.shape != other.shape or one.dtype != other.dtype:
        raise ValueError(f"{name}: {one.dtype}{one.shape} and {other.dtype}{other.shape}")
    one, other = np.ascontiguousarray(one).ravel(), np.ascontiguousarray(other).ravel()
    floating = one.dtype.kind not in "biu"
    size = one.dtype.itemsize
    bits, others = one.view(f"u{size}"), other.view(f"u{size}")
    bad = bits != others
    if floating:
        wide, widened = one.astype(np.float64), other.astype(np.float64)
        bad &= ~(np.isnan(wide) & np.isnan(widened))
    else:
        wide, widened = one.astype(object), other.astype(object)
    if not bad.any():
        return Difference(name, one.size)
    where = int(np.argmax(bad))
    finite = np.isfinite(wide) if floating else np.ones(bad.shape, bool)
    with np.errstate(all="ignore"):
        distance = np.abs((wide - widened)[bad])
    if floating:
        distance[np.isnan(distance)] = np.inf
    scale = max((abs(float(v)) for v in wide[finite]), default=0.0)
    ulps = 0
    if floating:
        steps = [abs(a - b) for a, b in zip(_steps(bits[bad], size), _steps(others[bad], size))]
        ulps = max(steps)
    return Difference(
        name, one.size, int(bad.sum()), float(max(distance)), scale, ulps,
        (where, one[where], other[where]),
    )  # fmt: skip


def _steps(bits: np.ndarray, size: int) -> list[int]:
    """Floats by their order: neighbours are one apart."""
    top = 1 << (8 * size - 1)
    return [-(b - top) if b & top else b for b in bits.tolist()]


def on_target(array: np.ndarray, target: Target) -> Any:
    """Return a copy of an array as `target` takes it: NumPy's on a simulator, else torch's on its
    device."""
    backend = registry().backend(target.backend)
    if backend.simulates:
        return array.copy()
    import torch

    name = array.dtype.name
    kind = getattr(torch, name, None)
    known = array.dtype.kind in "biuf" and name != "bfloat16" and not name.startswith("float8")
    if known and kind is not None and name not in ("uint16", "uint32", "uint64"):
        return torch.from_numpy(array.copy()).to(backend.device.tensor_device)
    plain = array.copy().view(f"i{array.dtype.itemsize}" if array.dtype.itemsize > 1 else "u1")
    return torch.from_numpy(plain).to(backend.device.tensor_device).view(kind)


def from_target(value: Any, like: np.ndarray) -> np.ndarray:
    """Return a result of `on_target` as an array of the type of `like`."""
    if isinstance(value, np.ndarray):
        return value
    import torch

    whole = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[like.dtype.itemsize]
    plain = value.detach().contiguous()
    plain = plain.view(torch.uint8) if plain.dtype == torch.bool else plain.view(whole)
    there: np.ndarray = plain.cpu().numpy()
    return there.view(like.dtype).reshape(like.shape)


def run_both(
    launch: Callable[[Mapping[str, Any], Target], Any],
    arguments: Mapping[str, Any],
    one: Target,
    other: Target,
) -> list[Difference]:
    """Launch on both targets with equal arguments and compare all arrays.

    Args:
        launch: `f(arguments, target)`, which launches there.
        arguments: NumPy arrays and other values by name; they stay as they are.
        one: the first target, mostly the simulator: its reports keep the kernel off the other.
    """
    arrays = {name: v for name, v in arguments.items() if isinstance(v, np.ndarray)}
    ends = []
    for target in (one, other):
        moved = {name: on_target(array, target) for name, array in arrays.items()}
        launch({**arguments, **moved}, target)
        ends.append({name: from_target(moved[name], array) for name, array in arrays.items()})
    return [compare(name, ends[0][name], ends[1][name]) for name in arrays]
