"""Instructions of PTX on the emulator, on an H100 and on an H200: the same bits, or within the bound of an approximation."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import numpy as np
import pytest

from gluon_emu.errors import MissingWaitError
from gluon_emu.memory import Allocation
from gluon_emu.ptx.launcher import execute, prepared
from gluon_emu.ptx.loaded import code_of
from gluon_emu.settings import Settings
from tests.backends.emu.ptx_forms import HEADER, forms, inputs, kernel_of, load
from tests.backends.emu.ptx_more_forms import more_forms

pytestmark = [pytest.mark.once, pytest.mark.filterwarnings("ignore::RuntimeWarning")]
MEASURED = Path(__file__).with_name("measured")
DEVICES = {"h100.xz": ("NVIDIA H100 80GB HBM3", forms), "h200.xz": ("NVIDIA H200", more_forms)}
FORMS = {form.name: form for listed in (forms, more_forms) for form in listed()}
ROOM = 1 << 17  # words of results, and of memory for atomics


@lru_cache(maxsize=1)
def measured():
    h100, h200 = (load(MEASURED / file)[1] for file in DEVICES)
    return {**h200, **h100}


def emulated(form, salt=""):
    """The results of a form, (results, threads) of uint64."""
    src, dst = np.ascontiguousarray(inputs(form, salt)), np.zeros(ROOM, np.uint64)
    code = code_of(HEADER + kernel_of(form))
    leaves = [("src", "*", src.ctypes.data), ("dst", "*", dst.ctypes.data)]
    memory = [Allocation(n, a.view(np.uint8).ravel()) for n, a in (("src", src), ("dst", dst))]
    block = (form.threads, 1, 1)
    execute(prepared(code, (form.blocks, 1, 1), leaves, [], memory, 0, block=block), Settings())
    total = form.threads * form.blocks
    return dst[: len(form.results) * total].reshape(len(form.results), total)


def distance(form, got, wanted):
    """Units in the last place between two results; NaN differ from numbers by the most there is."""
    kind = form.results[0]
    bits = 16 if "16" in kind else int(kind[1:])
    dtype = {16: np.float16, 32: np.float32, 64: np.float64}[bits]
    words = "u4" if kind.endswith("x2") else f"u{bits // 8}"
    a, b = (np.ascontiguousarray(x.astype(words)).view(f"u{bits // 8}") for x in (got, wanted))
    exponent = 0x7F80 if kind.startswith("bf16") else int(np.array(np.inf, dtype).view(a.dtype))
    magnitude = a.dtype.type((1 << bits - 1) - 1)
    nan = [(x & magnitude) > exponent for x in (a, b)]
    whole, top = [x & magnitude for x in (a, b)], a.dtype.type(1 << bits - 1)
    larger, smaller = np.maximum(*whole), np.minimum(*whole)
    apart = np.where((a ^ b) & top != 0, larger + smaller, larger - smaller).astype(object)
    near = np.abs(np.subtract(*(x.view(dtype).astype(float) for x in (a, b)))) <= form.absolute
    apart = np.where(near & (form.absolute > 0), 0, apart)
    return np.where(nan[0] & nan[1], 0, np.where(nan[0] | nan[1], 1 << 70, apart))


def compare(form, salt=""):
    """The number of results that differ, or the largest distance of an approximation beyond its bound."""
    got, wanted = emulated(form, salt), measured()[form.name + salt]
    if form.bound:
        return int((distance(form, got, wanted) > form.bound).sum())
    return int((got != wanted).sum())


@pytest.mark.parametrize("file", DEVICES)
def test_all_forms_were_measured(file):
    device, results = load(MEASURED / file)
    assert set(results) == {form.name for form in DEVICES[file][1]()} and device == DEVICES[file][0]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("family", sorted({name.partition(".")[0] for name in FORMS}))
def test_the_bits_are_those_of_the_gpu(family):
    names = [n for n in FORMS if n.partition(".")[0] == family]
    different = {name: count for name in names if (count := compare(FORMS[name]))}
    assert different == {}


def test_a_product_whose_operand_is_overwritten_before_the_wait():
    form = FORMS["wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16"]
    store = "mov.u32 %w, room; add.u32 %w, %w, 64; st.shared.b32 [%w], %a4; wgmma.wait_group"
    late = replace(form, text=form.text.replace("wgmma.wait_group", store))
    with pytest.raises(MissingWaitError, match="while the product of line .* might still read it"):
        emulated(late)
    emulated(replace(form, text=f"{form.text} {store.partition('wgmma')[0]}"))


def test_a_product_without_a_wait_reads_its_operand_when_its_registers_are_used():
    form = FORMS["wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16"]
    text = form.text.partition("wgmma.wait_group")[0]
    assert (emulated(replace(form, text=text)) == emulated(form)).all()
    store = "mov.u32 %w, room; add.u32 %w, %w, 64; st.shared.b32 [%w], %a4;"
    with pytest.raises(MissingWaitError, match="while the product of line .* might still read it"):
        emulated(replace(form, text=text + store))


def test_products_go_on_with_each_other_in_the_registers_of_copies():
    form = FORMS["wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16"]
    product, after = form.text.split("wgmma.commit", 1)
    copies = "".join(f".reg .b32 %e{i}; mov.b32 %e{i}, %d{i};" for i in range(4))
    second = re.sub(r"%d(\d)", r"%e\1", product)
    back = "".join(f"mov.b32 %d{i}, %e{i};" for i in range(4))
    chained = emulated(replace(form, text=f"{product}{copies}{second}{back}wgmma.commit{after}"))
    wait = "wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0;"
    apart = emulated(replace(form, text=f"{product}{wait}{copies}{second}{wait}{back}"))
    assert (chained == apart).all() and (chained != emulated(form)).any()


def test_threads_that_part_before_the_wait_all_have_the_sums():
    form = FORMS["wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16"]
    product, after = form.text.split("wgmma.wait_group", 1)
    half = ".reg .pred %half; .reg .b32 %lane; and.b32 %lane, %t, 1; setp.eq.u32 %half, %lane, 0;"
    part = f"{half} @%half bra $ODD; add.u32 %d0, %d0, 1; $ODD: wgmma.wait_group{after}"
    words = emulated(replace(form, text=product + part))
    wanted = emulated(form).copy()
    wanted[0, 1::2] = (wanted[0, 1::2] + 1) & 0xFFFFFFFF
    assert (words == wanted).all()
