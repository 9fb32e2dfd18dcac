"""`gl.portable` over tensors whose alignment TMA does not take or does not know, and layouts of both places."""

from __future__ import annotations

import numpy as np
import pytest

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.compiler.source import GluonASTSource, trace_source
from gluon_core.registry.load import registry
from tests.portable_kernels import TILES, products, tiles_compiled, tiles_selections

pytestmark = pytest.mark.sampled(2)

TARGETS = ["sim:sm_80", "sim:sm_90", "sim:sm_100", "sim:gfx942", "sim:gfx1250"]


def taken(kernel, signature, constexprs=None, target="sm_90", attrs=None):
    """Return the lowerings of each descriptor of a kernel, in order."""
    described = registry().target(target)
    options = registry().backend(described.backend).compiler.options(described, {})
    sessions = []
    source = GluonASTSource(kernel, signature, constexprs or {}, attrs)
    trace_source(source, described, options, on_session=sessions.append)
    return [s.chosen.name for s in sessions[0].selections if s.op == "tile_copy"]


@pytest.mark.once
@pytest.mark.parametrize("target", TARGETS)
def test_any_stride_is_right_on_every_target(target):
    m, n, k = 50, 33, 77
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(s).astype(np.float16) for s in ((m, k), (k, n)))
    c = np.full((m, n), np.nan, np.float32)
    grid = (gluon.cdiv(m, 64), gluon.cdiv(n, 64))
    products[grid](a, b, c, m, n, k, **TILES, target=target)
    np.testing.assert_allclose(c, a.astype(np.float32) @ b.astype(np.float32), atol=1e-3)


@pytest.mark.once
@pytest.mark.parametrize("target, k", [("emu:gfx942", 77), ("emu:gfx1250", 77), ("emu:gfx1250", 1)])
def test_machine_code_is_right_with_any_stride(target, k):
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(s).astype(np.float16) for s in ((65, k), (k, 33)))
    c = np.full((65, 33), np.nan, np.float32)
    products[(2, 1)](a, b, c, 65, 33, k, **TILES, target=target)
    np.testing.assert_allclose(c, a.astype(np.float32) @ b.astype(np.float32), atol=1e-3)


def test_a_base_that_is_not_aligned_is_right():
    rng = np.random.default_rng(0)
    a = rng.standard_normal(64 * 64 + 1).astype(np.float16)[1:].reshape(64, 64)
    b = rng.standard_normal((64, 64)).astype(np.float16)
    c = np.zeros((64, 64), np.float32)
    products[(1, 1)](a, b, c, 64, 64, 64, **TILES, target="sim:sm_90")
    np.testing.assert_allclose(c, a.astype(np.float32) @ b.astype(np.float32), atol=1e-3)


@pytest.mark.once
@pytest.mark.parametrize(
    "aligned, expected",
    [
        (range(6), ["tma", "tma", "tma"]),
        ((0, 1, 2, 3, 4), ["masked_copies", "tma", "tma"]),  # K is not
        ((0, 1, 2, 3, 5), ["tma", "masked_copies", "masked_copies"]),  # N is not
        ((1, 2, 3, 4, 5), ["masked_copies", "tma", "tma"]),  # a is not
    ],
)
def test_tma_is_taken_where_alignment_is_known(aligned, expected):
    _, record = tiles_selections("sm_90", aligned=aligned)
    assert [s.chosen.name for s in record if s.op == "tile_copy"] == expected


@pytest.mark.once
def test_the_reason_names_the_remedy():
    _, record = tiles_selections("sm_90", aligned=(0, 1, 2))
    reasons = {low.name: why for low, why in record[0].rejected}
    assert "strides[0] is not known" in reasons["tma"] and "gl.multiple_of" in reasons["tma"]


@gluon.jit
def computed(x, n, m, PROMISED: gl.constexpr):
    if PROMISED:
        n = gl.multiple_of(n, 8)
    gl.portable.descriptor(x, [8, n], [n, 1], [8, 8])
    gl.portable.descriptor(x + m * n, [8, 8], [n * 2, 1], [8, 8])
    gl.portable.descriptor(x, [8, 8], [m * 3, 1], [8, 8])
    gl.portable.descriptor(x, [8, 8], [gl.minimum(m, 16) // 2, 1], [8, 8])
    gl.portable.descriptor(x, [8, 8], [m + 4, 1], [8, 8])
    gl.portable.descriptor(x, [8, 8], [(m.to(gl.float32) * 16).to(gl.int32) // 16, 1], [8, 8])
    if n > 5:  # names have the same values there
        gl.portable.descriptor(x, [8, 8], [m << 1, 1], [8, 8])
    for _ in range(2):
        m += 1
    gl.portable.descriptor(x, [8, 8], [m, 1], [8, 8])


def test_multiples_are_followed_through_arithmetic():
    types = {"x": "*fp16", "n": "i32", "m": "i32"}
    attrs = {"x": 16, "m": 16}
    yes, no = "tma", "masked_copies"
    common = [yes, yes, no, no, yes, no]
    got = taken(computed, types, {"PROMISED": False}, attrs=attrs)
    assert got == [no, no, *common]
    got = taken(computed, types, {"PROMISED": True}, attrs=attrs)
    assert got == [yes, yes, *common]


@gluon.jit
def described(x, step):
    gl.portable.descriptor(x, [8, 8], [step, 1], [8, 8])


@gluon.jit
def calls(x, n, m):
    described(x, m)
    described(x, n)
    described(x, m)


def test_functions_get_the_known_facts_of_each_call():
    got = taken(calls, {"x": "*fp16", "n": "i32", "m": "i32"}, attrs={"x": 16, "m": 16})
    assert got == ["tma", "masked_copies"]  # two functions, not three


@pytest.mark.parametrize("aligned", [True, False])
def test_gfx1250_moves_tiles_with_the_tdm(aligned):
    got, _ = tiles_selections("gfx1250", aligned=range(6) if aligned else (0, 1, 2))
    assert got["tile_copy"] == "tdm" and "async_copy" not in got


@pytest.mark.once
def test_the_tdm_is_in_the_machine_code():
    assert "tensor_load_to_lds" in tiles_compiled("gfx1250").asm["amdgcn"]


@gluon.jit
def either(a, b, c, PLACE: gl.constexpr):
    layouts: gl.constexpr = gl.portable.mma_layouts(
        64, 64, 64, gl.float16, gl.float16, operands=PLACE
    )
    a_tiles = gl.portable.descriptor(a, [64, 64], [64, 1], [64, 64], layouts.a_shared)
    b_tiles = gl.portable.descriptor(b, [64, 64], [64, 1], [64, 64], layouts.b_shared)
    tiles = gl.portable.pipeline([a_tiles, b_tiles], 1)
    tiles.fetch(0, [[0, 0], [0, 0]])
    x, y = tiles.wait(0)
    start = gl.full([64, 64], 3.0, gl.float32, layouts.accumulator)
    acc = gl.portable.mma(x, y, gl.portable.accumulator(layouts, start))
    total = gl.portable.read(acc)
    if PLACE is None:
        total = gl.portable.mma(x.load(layouts.a), y.load(layouts.b), total)
    tiles.close()
    rows = gl.arange(0, 64, gl.SliceLayout(1, layouts.accumulator))
    columns = gl.arange(0, 64, gl.SliceLayout(0, layouts.accumulator))
    gl.store(c + rows[:, None] * 64 + columns[None, :], total)


@pytest.mark.once
@pytest.mark.parametrize("place", [None, "shared", "registers"])
@pytest.mark.parametrize("target", ["sim:sm_90", "sim:sm_100", "sim:gfx1250"])
def test_layouts_serve_either_place_by_default(target, place):
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal((64, 64)).astype(np.float16) for _ in range(2))
    c = np.zeros((64, 64), np.float32)
    either[(1,)](a, b, c, place, target=target)
    times = 2 if place is None else 1
    wanted = times * (a.astype(np.float32) @ b.astype(np.float32)) + 3
    np.testing.assert_allclose(c, wanted, atol=1e-3)


@pytest.mark.once
@pytest.mark.parametrize(
    "target, place, units",
    [
        ("sm_90", None, {"wgmma", "mma.sync"}),
        ("sm_90", "registers", {"mma.sync"}),
        ("sm_100", None, {"tcgen05", "mma.sync"}),
        ("gfx942", None, {"mfma"}),
    ],
)
def test_the_best_unit_is_the_default(target, place, units):
    described = registry().target(target)
    options = registry().backend(described.backend).compiler.options(described, {})
    sessions = []
    types = {"a": "*fp16", "b": "*fp16", "c": "*fp32"}
    source = GluonASTSource(either, types, {"PLACE": place}, dict.fromkeys("abc", 16))
    trace_source(source, described, options, on_session=sessions.append)
    assert {s.chosen.name for s in sessions[0].selections if s.op == "mma"} == units
