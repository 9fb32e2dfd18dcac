"""Narrow floats with block scales (E8M0 exponents)."""

from __future__ import annotations

from typing import Any

import numpy as np

from gluon_core.reference import Machine, returns

__all__ = [
    "scaled_upcast_fp4",
    "scaled_upcast_fp8",
]

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
