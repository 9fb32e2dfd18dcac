"""What the ops of NVIDIA's hardware mean, in NumPy: the models that the simulator runs.

See `gluon_core.reference` for how a model is written. Named like the builder's methods.
"""

from __future__ import annotations

import math
from typing import Any, Callable, Iterator

import numpy as np

from gluon_core.reference import Machine, SharedBuffer

__all__ = [
    "EXTERNS",
    "async_commit_group",
    "async_copy_global_to_local",
    "async_copy_mbarrier_arrive",
    "async_wait_group",
    "fence_async_shared",
    "mbarrier_arrive",
    "mbarrier_expect",
    "mbarrier_init",
    "mbarrier_inval",
    "mbarrier_wait",
]

# ---- cp.async (sm_80), PTX ISA 9.7.9.25.3 ---------------------------------------------------

_COPIES = "cp.async"


def async_copy_global_to_local(
    machine: Machine,
    smem: SharedBuffer,
    pointer: np.ndarray,
    mask: Any = None,
    other: Any = None,
    *policy: Any,
    **named: Any,
) -> None:
    """Global to shared memory, past the registers; `other` (or zero) where masked off."""

    def perform() -> None:
        values = machine.load_global(pointer, smem.dtype, mask, other)
        machine.store_shared(smem, values)

    machine.issue(_COPIES, perform)


def async_commit_group(machine: Machine) -> None:
    machine.commit(_COPIES)


def async_wait_group(machine: Machine, pending: int) -> None:
    machine.wait_groups(_COPIES, pending)


def async_copy_mbarrier_arrive(
    machine: Machine, barrier: SharedBuffer, increment_count: bool
) -> None:
    """Every thread arrives once its earlier copies are done.

    With `increment_count` each thread first raises the count it then lowers, so the phase only
    waits for the copies; without, the barrier's count must include the threads.
    """
    threads = machine.num_warps * machine.target.warp_size
    if increment_count:
        machine.barrier_raise(barrier, threads)
    machine.issue(
        _COPIES,
        lambda: None,
        lambda: machine.barrier_arrive(barrier, threads),
        barrier=barrier,
        after=True,
    )


# ---- mbarrier (sm_80), PTX ISA 9.7.13.15 -----------------------------------------------------


def mbarrier_init(machine: Machine, barrier: SharedBuffer, count: int) -> None:
    machine.barrier_init(barrier, count)


def mbarrier_inval(machine: Machine, barrier: SharedBuffer) -> None:
    machine.barrier_invalidate(barrier)


def mbarrier_expect(
    machine: Machine, barrier: SharedBuffer, size: int, pred: Any = None, *rest: Any, **named: Any
) -> None:
    """`mbarrier.arrive.expect_tx`: announces `size` bytes and arrives once."""
    machine.barrier_expect(barrier, size, pred)
    machine.barrier_arrive(barrier, 1, pred)


def mbarrier_arrive(
    machine: Machine, barrier: SharedBuffer, count: int, *rest: Any, **named: Any
) -> None:
    """One arrival that counts `count`, where the predicate holds.

    The predicate is the array among the further arguments; the blocks of a cluster to signal are
    plain numbers.
    """
    pred = named.get("pred")
    for value in rest:
        if isinstance(value, np.ndarray):
            pred = value
    machine.barrier_arrive(barrier, count, pred)


def mbarrier_wait(
    machine: Machine, barrier: SharedBuffer, phase: np.ndarray, pred: Any = None, deps: Any = ()
) -> Iterator[Any]:
    """Until the phase of this parity has completed; `deps` only keep buffers alive."""
    yield from machine.barrier_wait(barrier, phase, pred)


def fence_async_shared(machine: Machine, cluster: bool) -> None:
    """What the generic proxy did before becomes visible to the asynchronous one."""
    machine.fence()


# ---- libdevice ------------------------------------------------------------------------------


def _each(fn: Callable[..., float]) -> Callable[..., np.ndarray]:
    lifted = np.frompyfunc(fn, 1, 1)
    return lambda x: lifted(x.astype(np.float64)).astype(np.float64)


def _wide(fn: Callable[..., np.ndarray]) -> Callable[..., np.ndarray]:
    """Computed in float64; the machine rounds to the function's type."""
    return lambda *xs: fn(*(x.astype(np.float64) for x in xs))


def _gamma(x: float) -> float:
    try:
        return math.gamma(x)
    except (OverflowError, ValueError):
        return math.inf if x > 0 else math.nan


def _lgamma(x: float) -> float:
    try:
        return math.lgamma(x)
    except (OverflowError, ValueError):
        return math.inf


_FLOATS: dict[str, Callable[..., np.ndarray]] = {
    "acos": np.arccos, "acosh": np.arccosh, "asin": np.arcsin, "asinh": np.arcsinh,
    "atan": np.arctan, "atan2": np.arctan2, "atanh": np.arctanh, "cbrt": np.cbrt, "ceil": np.ceil,
    "copysign": np.copysign, "cos": np.cos, "cosh": np.cosh, "cospi": lambda x: np.cos(np.pi * x),
    "erf": _each(math.erf), "erfc": _each(math.erfc), "exp": np.exp, "exp10": lambda x: 10.0**x,
    "exp2": np.exp2, "expm1": np.expm1, "fabs": np.abs, "floor": np.floor, "fmax": np.fmax,
    "fmin": np.fmin, "fmod": np.fmod, "hypot": np.hypot, "lgamma": _each(_lgamma), "log": np.log,
    "log10": np.log10, "log1p": np.log1p, "log2": np.log2, "pow": np.power, "rcbrt":
    lambda x: 1 / np.cbrt(x), "rint": np.rint, "nearbyint": np.rint, "rsqrt":
    lambda x: 1 / np.sqrt(x), "sin": np.sin, "sinh": np.sinh, "sinpi": lambda x: np.sin(np.pi * x),
    "sqrt": np.sqrt, "tan": np.tan, "tanh": np.tanh, "tgamma": _each(_gamma), "trunc": np.trunc,
    "round": lambda x: np.copysign(np.floor(np.abs(x) + 0.5), x),
}  # fmt: skip

EXTERNS: dict[str, Callable[..., np.ndarray]] = {}
for _name, _fn in _FLOATS.items():
    EXTERNS[f"__nv_{_name}"] = EXTERNS[f"__nv_{_name}f"] = _wide(_fn)
for _name in ("cos", "exp", "log", "log10", "log2", "pow", "sin", "tan", "exp10"):
    EXTERNS[f"__nv_fast_{_name}f"] = EXTERNS[f"__nv_{_name}f"]
for _suffix in ("", "f", "d"):
    EXTERNS[f"__nv_isnan{_suffix}"] = lambda x: np.isnan(x).astype(np.int32)
    EXTERNS[f"__nv_isinf{_suffix}"] = lambda x: np.isinf(x).astype(np.int32)
EXTERNS["__nv_finitef"] = EXTERNS["__nv_isfinited"] = lambda x: np.isfinite(x).astype(np.int32)
EXTERNS["__nv_abs"] = EXTERNS["__nv_llabs"] = np.abs
EXTERNS["__nv_fmaf"] = lambda a, b, c: a.astype(np.float64) * b.astype(np.float64) + c
EXTERNS["__nv_popc"] = EXTERNS["__nv_popcll"] = lambda x: np.array(
    [bin(int(v) & ((1 << (8 * x.dtype.itemsize)) - 1)).count("1") for v in x.ravel()], np.int32
).reshape(x.shape)
