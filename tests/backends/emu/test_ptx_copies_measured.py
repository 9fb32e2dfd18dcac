"""Copies by TMA on the emulator and on an H200: the same bytes."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from gluon_emu.errors import EmulatorError
from gluon_emu.memory import Allocation
from gluon_emu.ptx.launcher import execute, prepared
from gluon_emu.ptx.loaded import code_of
from gluon_emu.ptx.tensormap import TensorMap, encode_map
from gluon_emu.settings import Settings
from tests.backends.emu.ptx_forms import load
from tests.backends.emu.ptx_tensor_forms import (
    TENSOR,
    THREADS,
    WORDS,
    TensorForm,
    copy_forms,
    faulting_forms,
)

pytestmark = pytest.mark.once
FILE = Path(__file__).with_name("measured") / "h200-copies.xz"
FORMS = {form.name: form for form in copy_forms()}


@lru_cache(maxsize=1)
def measured():
    return load(FILE)


def aligned(size):
    room = np.zeros(size + 1024, np.uint8)
    start = -room.ctypes.data % 1024
    return room[start : start + size]


def emulated(form, settings):
    """The results of a copy, (results, threads of all blocks) of uint64."""
    memory = {"map": aligned(128), "tensor": aligned(TENSOR), "out": aligned(1 << 18)}
    memory["tensor"][:] = form.data
    if isinstance(form, TensorForm):
        raw = form.map(memory["tensor"].ctypes.data).encode()
        memory["map"][:] = np.frombuffer(raw, np.uint8)
    leaves = [(name, "*", room.ctypes.data) for name, room in memory.items()]
    arrays = [Allocation(name, room) for name, room in memory.items()]
    grid, block = (form.blocks, 1, 1), (THREADS, 1, 1)
    execute(prepared(code_of(form.kernel()), grid, leaves, [], arrays, 0, block=block), settings)
    total = THREADS * form.blocks
    return memory["out"].view(np.uint64)[: (WORDS + 1) * total].reshape(WORDS + 1, total)


def test_all_copies_were_measured():
    device, results = measured()
    assert device == "NVIDIA H200" and set(results) == set(FORMS)
    faults = {name for name, words in results.items() if words.size == 1}
    assert faults == {form.name for form in faulting_forms()}


@pytest.mark.sampled(16)
@pytest.mark.parametrize("schedule", ["latest", "eager"])
def test_the_bytes_are_those_of_the_gpu(schedule):
    settings = Settings(schedule=schedule, search=True)
    different = {}
    for name, words in measured()[1].items():
        if words.size == 1:
            continue
        got = emulated(FORMS[name], settings)
        if (got != words).any():
            different[name] = int((got != words).sum())
    assert different == {}


@pytest.mark.parametrize("form", faulting_forms(), ids=lambda form: form.name)
def test_copies_that_fault_on_the_gpu_are_reported(form):
    assert measured()[1][form.name] == 715  # an illegal instruction
    with pytest.raises(EmulatorError, match="illegal instruction on a GPU"):
        emulated(form, Settings())


@pytest.mark.parametrize(
    "shape, strides, box, swizzle, words",
    [
        ((64, 64), (64, 1), (32, 32), 2, None),
        ((1, 64), (34, 1), (1, 32), 2, None),  # the stride of one row
        ((64, 64), (64, 1), (32, 4), 0, "rows of 8 bytes: a multiple of 16"),
        ((64, 64), (64, 1), (32, 64), 2, "rows of 128 bytes, more than its swizzle of 64"),
        ((64, 64), (34, 1), (32, 32), 2, "a stride of 68 bytes"),
        ((1 << 40, 64), (64, 1), (32, 32), 2, "each is 1 to 2\\^32"),
    ],
)
def test_maps_that_no_driver_encodes(shape, strides, box, swizzle, words):
    meta = {"elem_size": 2, "elem_type": 6, "swizzle": swizzle, "block_size": box}
    arguments = SimpleNamespace(padding="zero"), meta, 1 << 20, list(shape), list(strides)
    if words is None:
        assert TensorMap.decode(encode_map(*arguments)).box == box[::-1]
        return
    with pytest.raises(EmulatorError, match=words):
        encode_map(*arguments)
