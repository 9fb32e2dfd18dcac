"""Tensor memory (sm_100): allocation, loads, stores and views, PTX ISA 9.7.16.7 and 9.7.16.8.

Loads and stores are over when the op is: the compiler waits for them (tcgen05.wait).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from gluon_core.layouts import SliceLayout
from gluon_core.plugin.reference import Machine, SharedBuffer, returns

__all__ = ["tmem_alloc", "tmem_load", "tmem_store", "tmem_subslice"]


def tmem_alloc(machine: Machine, type: Any, value: Any = None) -> SharedBuffer:
    return machine.allocate_buffer(type, value)


def _reduced(type: Any) -> Any:
    return replace(type, shape=type.shape[:1], layout=SliceLayout(1, type.layout))


def _named(value: Any) -> str:
    return str(getattr(value, "name", value)).lower()


@returns(
    lambda type, memory, kind=None, *how, **named: type if kind is None else [type, _reduced(type)]
)
def tmem_load(
    machine: Machine,
    type: Any,
    memory: SharedBuffer,
    kind: Any = None,
    absolute: bool = False,
    propagate_nan: Any = None,
) -> Any:
    """tcgen05.ld; with `kind` (sm_103) also the least or greatest element of each row."""
    values = machine.load_shared(memory)
    if kind is None:
        return values
    compared = np.abs(values) if absolute else values
    least = "min" in _named(kind)
    if propagate_nan is not None and _named(propagate_nan) == "all":
        rows = compared.min(axis=-1) if least else compared.max(axis=-1)
    else:
        rows = (np.fmin if least else np.fmax).reduce(compared, axis=-1)
    return values, rows


def tmem_store(machine: Machine, memory: SharedBuffer, value: np.ndarray, pred: np.ndarray) -> None:
    """tcgen05.st, where the predicate holds."""
    live = np.asarray(pred)
    if live.all():
        machine.store_shared(memory, value)
        return
    mask = live.reshape(-1, *[1] * len(memory.shape))
    machine.store_shared(memory, value, mask)


def tmem_subslice(
    machine: Machine, type: Any, memory: SharedBuffer, offset: int, dim: int = 1
) -> SharedBuffer:
    """Return a part of one dimension, from element `offset` on."""
    offsets = [0] * len(memory.shape)
    offsets[dim] = int(offset)
    return machine.slice_buffer(memory, type, offsets)
