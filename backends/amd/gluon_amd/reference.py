"""What the ops of AMD's hardware mean, in NumPy: the models that the simulator runs.

See `gluon_core.reference` for how a model is written. Named like the builder's methods. MFMA and
WMMA are recorded as the portable `dot`, so they need no model here.
"""

from __future__ import annotations

import math
from typing import Any, Callable, Iterator

import numpy as np

from gluon_core.reference import Machine, SharedBuffer, returns

__all__ = [
    "EXTERNS",
    "amd_cluster_arrive",
    "amd_cluster_wait",
    "amd_sched_barrier",
    "async_commit_group",
    "async_wait_group",
    "buffer_atomic_rmw",
    "buffer_load",
    "buffer_load_to_local",
    "buffer_store",
    "extract_slice",
    "lds_barrier_arrive",
    "lds_barrier_init",
    "lds_barrier_wait",
    "scaled_upcast_fp4",
    "scaled_upcast_fp8",
    "warp_pipeline_border",
]

_COPIES = "buffer_load_lds"

# ---- buffer operations: a scalar base and 32-bit element offsets (CDNA3 ISA 9.1) ----------------


def _addresses(pointer: np.ndarray, offsets: np.ndarray, dtype: np.dtype) -> np.ndarray:
    base = pointer.reshape(-1, *([1] * (offsets.ndim - 1)))
    return base + offsets.view(np.uint32).astype(np.int64) * dtype.itemsize


def buffer_load(
    machine: Machine,
    type: Any,
    pointer: np.ndarray,
    offsets: np.ndarray,
    mask: Any = None,
    other: Any = None,
    *cache: Any,
) -> np.ndarray:
    """Elements at `pointer + offsets`; `other` (or zero) where masked off."""
    dtype = machine.result_dtype()
    return machine.load_global(_addresses(pointer, offsets, dtype), dtype, mask, other)


def buffer_store(
    machine: Machine,
    value: np.ndarray,
    pointer: np.ndarray,
    offsets: np.ndarray,
    mask: Any = None,
    *cache: Any,
) -> None:
    machine.store_global(_addresses(pointer, offsets, value.dtype), value, mask)


@returns(lambda kind, pointer, offsets, value, *rest: value.type)
def buffer_atomic_rmw(
    machine: Machine,
    kind: Any,
    pointer: np.ndarray,
    offsets: np.ndarray,
    value: np.ndarray,
    order: Any = None,
    scope: Any = None,
    mask: Any = None,
) -> np.ndarray:
    """Read-modify-write of each element; gives the old values."""
    name = str(getattr(kind, "name", kind)).lower()
    shape = np.broadcast_shapes(offsets.shape[1:], value.shape[1:])
    addresses = machine.full(_addresses(pointer, offsets, value.dtype), shape)
    return machine.atomic_global(name, addresses, value, mask)


def buffer_load_to_local(
    machine: Machine,
    dest: SharedBuffer,
    pointer: np.ndarray,
    offsets: np.ndarray,
    mask: Any = None,
    other: Any = None,
    stride: Any = None,
    *cache: Any,
) -> None:
    """Global memory to LDS past the registers; `other` (or zero) where masked off."""

    def perform() -> None:
        addresses = _addresses(pointer, offsets, dest.dtype)
        machine.store_shared(dest, machine.load_global(addresses, dest.dtype, mask, other))

    machine.issue(_COPIES, perform)


def async_copy_global_to_local(
    machine: Machine,
    smem: SharedBuffer,
    pointer: np.ndarray,
    mask: Any = None,
    other: Any = None,
    *policy: Any,
    **named: Any,
) -> None:
    """`global_load_lds`: the same from a tensor of pointers."""

    def perform() -> None:
        machine.store_shared(smem, machine.load_global(pointer, smem.dtype, mask, other))

    machine.issue(_COPIES, perform)


def async_commit_group(machine: Machine) -> None:
    machine.commit(_COPIES)


def async_wait_group(machine: Machine, pending: int) -> None:
    machine.wait_groups(_COPIES, pending)


# ---- registers ------------------------------------------------------------------------------


def extract_slice(machine: Machine, type: Any, source: np.ndarray, offsets: Any) -> np.ndarray:
    """The part of a tensor of the result's shape that starts at `offsets`."""
    full = np.broadcast_to(source, (source.shape[0], *machine.operand_types()[0].dims))
    cut = tuple(slice(o, o + n) for o, n in zip(offsets, type.dims))
    return full[(slice(None), *cut)]


# ---- narrow floats with block scales (E8M0 exponents) -------------------------------------------

_FP4 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)
_FP4 = np.concatenate([_FP4, -_FP4])


def _scaled(machine: Machine, values: np.ndarray, scale: np.ndarray) -> np.ndarray:
    exponent = scale.view(np.uint8).astype(np.int32)
    factor = np.where(exponent == 255, np.float32(np.nan), np.ldexp(np.float32(1), exponent - 127))
    return (values.astype(np.float32) * factor).astype(machine.result_dtype())


def scaled_upcast_fp8(
    machine: Machine, type: Any, source: np.ndarray, scale: np.ndarray
) -> np.ndarray:
    """source * 2 ** (scale - 127), as a 16-bit float."""
    return _scaled(machine, source, scale)


@returns(lambda source, scale, element, axis: scale.type.with_element(element))
def scaled_upcast_fp4(
    machine: Machine, source: np.ndarray, scale: np.ndarray, element: Any, axis: int
) -> np.ndarray:
    """The same for two e2m1 numbers in each byte, the low half first, along `axis`."""
    raw = np.broadcast_to(source, (source.shape[0], *machine.operand_types()[0].dims)).view(
        np.uint8
    )
    both = np.stack([_FP4[raw & 15], _FP4[raw >> 4]], axis=axis + 2)
    shape = [n * 2 if d == axis + 1 else n for d, n in enumerate(raw.shape)]
    return _scaled(machine, both.reshape(shape), scale)


# ---- LDS barriers (gfx1250) -----------------------------------------------------------------


def lds_barrier_init(machine: Machine, barrier: SharedBuffer, count: int) -> None:
    machine.barrier_init(barrier, count)


@returns(lambda barrier, count: "i32")
def lds_barrier_arrive(machine: Machine, barrier: SharedBuffer, count: int) -> np.ndarray:
    """Arrives `count` times; gives the parity of the phase before."""
    before = machine.barrier_phase(barrier)
    machine.barrier_arrive(barrier, count)
    return before


def lds_barrier_wait(machine: Machine, barrier: SharedBuffer, phase: np.ndarray) -> Iterator[Any]:
    yield from machine.barrier_wait(barrier, phase)


# ---- hints to the scheduler: no meaning ------------------------------------------------------


def amd_sched_barrier(machine: Machine, mask: int) -> None:
    """Keeps the compiler's scheduler from moving instructions."""


def warp_pipeline_border(machine: Machine, *marks: Any) -> None:
    """Marks a stage of a software pipeline."""


def amd_cluster_arrive(machine: Machine) -> None:
    """One workgroup is a cluster of one."""


def amd_cluster_wait(machine: Machine) -> None:
    """One workgroup is a cluster of one."""


# ---- ocml -----------------------------------------------------------------------------------


def _each(fn: Callable[..., float]) -> Callable[..., np.ndarray]:
    lifted = np.frompyfunc(fn, 1, 1)
    return lambda x: lifted(x.astype(np.float64)).astype(np.float64)


_FLOATS: dict[str, Callable[..., np.ndarray]] = {
    "acos": np.arccos, "acosh": np.arccosh, "asin": np.arcsin, "asinh": np.arcsinh,
    "atan": np.arctan, "atan2": np.arctan2, "atanh": np.arctanh, "cbrt": np.cbrt, "ceil": np.ceil,
    "copysign": np.copysign, "cos": np.cos, "cosh": np.cosh, "erf": _each(math.erf),
    "erfc": _each(math.erfc), "exp": np.exp, "exp10": lambda x: 10.0**x, "exp2": np.exp2,
    "expm1": np.expm1, "fabs": np.abs, "floor": np.floor, "fmax": np.fmax, "fmin": np.fmin,
    "fmod": np.fmod, "hypot": np.hypot, "log": np.log, "log10": np.log10, "log1p": np.log1p,
    "log2": np.log2, "pow": np.power, "rint": np.rint, "rsqrt": lambda x: 1 / np.sqrt(x),
    "sin": np.sin, "sinh": np.sinh, "sqrt": np.sqrt, "tan": np.tan, "tanh": np.tanh,
    "trunc": np.trunc, "round": lambda x: np.copysign(np.floor(np.abs(x) + 0.5), x),
}  # fmt: skip


def _wide(fn: Callable[..., np.ndarray]) -> Callable[..., np.ndarray]:
    return lambda *xs: fn(*(x.astype(np.float64) for x in xs))


EXTERNS: dict[str, Callable[..., np.ndarray]] = {}
for _name, _fn in _FLOATS.items():
    for _bits in (16, 32, 64):
        EXTERNS[f"__ocml_{_name}_f{_bits}"] = _wide(_fn)
    EXTERNS[f"__triton_hip_fast_{_name}f"] = _wide(_fn)
for _bits in (16, 32, 64):
    EXTERNS[f"__ocml_isnan_f{_bits}"] = lambda x: np.isnan(x).astype(np.int32)
    EXTERNS[f"__ocml_isinf_f{_bits}"] = lambda x: np.isinf(x).astype(np.int32)
    EXTERNS[f"__ocml_isfinite_f{_bits}"] = lambda x: np.isfinite(x).astype(np.int32)
