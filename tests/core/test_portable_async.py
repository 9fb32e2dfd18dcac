"""Tiles, pipelines and accumulators of `gl.portable`: one source, on every simulated target."""

from __future__ import annotations

import importlib.util

import ml_dtypes
import numpy as np
import pytest

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.registry.load import registry
from gluon_sim.errors import SimulatorError
from tests.portable_kernels import products
from tests.tables import mistakes

pytestmark = [pytest.mark.once, pytest.mark.sampled(16)]

TARGETS = ("sm_75", "sm_80", "sm_90", "sm_100", "sm_120", "gfx942", "gfx950", "gfx1201", "gfx1250")
ASYNCHRONOUS = ("sm_90", "sm_100")


def multiply(
    target,
    shape=(136, 80, 176),
    block=(64, 64, 32),
    stages=3,
    num_warps=4,
    transposed=False,
    dtype="float16",
    pending=1,
    precision=None,
    out="float32",
):
    """Launch `products`, and compare with NumPy."""
    m, n, k = shape
    rng = np.random.default_rng(0)
    kind = np.dtype(getattr(ml_dtypes, dtype, None) or dtype)
    if kind == np.int8:
        a, b = (rng.integers(-128, 128, s).astype(kind) for s in ((m, k), (k, n)))
    else:
        a, b = (rng.uniform(-1, 1, s).astype(kind) for s in ((m, k), (k, n)))
    wide = np.int64 if kind == np.int8 else np.float64
    wanted = a.astype(wide) @ b.astype(wide)
    c = np.full((m, n), -1 if kind == np.int8 else np.nan, out)
    grid = (-(-m // block[0]), -(-n // block[1]))
    compiled = products[grid](
        a,
        np.ascontiguousarray(b.T) if transposed else b,
        c,
        m,
        n,
        k,
        *block,
        stages,
        transposed,
        pending,
        precision,
        num_warps=num_warps,
        target=registry().target(f"sim:{target}"),
    )
    tolerance = 2e-3 if precision == "tf32" or out == "float16" else 1e-5
    limit = tolerance * float(np.abs(wanted).max())
    np.testing.assert_allclose(c.astype(np.float64), wanted, rtol=0, atol=limit)
    return compiled


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("stages", [2, 3, 4])
def test_one_source_is_right_everywhere(target, stages):
    multiply(target, stages=stages)


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("target", ["sm_80", "sm_90", "sm_100", "gfx950", "gfx1250"])
def test_in_every_order_of_events(monkeypatch, target, seed):
    monkeypatch.setenv("GLUON_SIM_SCHEDULE", "random")
    monkeypatch.setenv("GLUON_SIM_SEED", str(seed))
    multiply(target)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("num_warps", [1, 2, 8])
def test_any_number_of_warps(target, num_warps):
    multiply(target, (64, 96, 80), num_warps=num_warps)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    "shape, block", [((24, 40, 56), (16, 32, 32)), ((128, 128, 32), (128, 128, 16))]
)
def test_tiles_small_and_large(target, shape, block):
    multiply(target, shape, block)


@pytest.mark.parametrize("target", ["sm_80", "sm_90", "sm_100", "sm_120", "gfx942"])
@pytest.mark.parametrize(
    "dtype, precision, out",
    [
        ("bfloat16", None, "float32"),
        ("float16", None, "float16"),
        ("float32", "tf32", "float32"),
        ("int8", None, "int32"),
        ("float8_e4m3fn", None, "float32"),
    ],
)
def test_operands_along_k(target, dtype, precision, out):
    if dtype.startswith("float8") and target in ("sm_80", "gfx942"):
        pytest.skip("it has no such type")
    multiply(target, dtype=dtype, precision=precision, out=out, transposed=True, pending=0)


@pytest.mark.parametrize("target", ["sm_80", *ASYNCHRONOUS])
@pytest.mark.parametrize("pending", [0, 1, 2])
def test_multiplications_are_waited_for_when_one_says(target, pending):
    multiply(target, pending=pending, stages=4) if pending < 2 else multiply(
        target, (64, 64, 32), stages=4, pending=pending
    )


@pytest.mark.parametrize("target", ASYNCHRONOUS)
def test_a_buffer_that_is_fetched_too_early_is_reported(target):
    # Two multiplications may be unfinished, and the second last reads the buffer that is filled.
    with pytest.raises(SimulatorError):
        multiply(target, pending=2)


# -- loads from a pipeline, stores to shared memory ----------------------------------------------


@gluon.jit
def summed(x, out, rows, columns, BLOCK: gl.constexpr, STAGES: gl.constexpr):
    """The sum of the tiles of each 16 rows, which threads load from a pipeline."""
    from_tiles = gl.portable.descriptor(x, [rows, columns], [columns, 1], [16, BLOCK])
    to_tiles = gl.portable.descriptor(out, [rows, BLOCK], [BLOCK, 1], [16, BLOCK])
    layout: gl.constexpr = gl.portable.blocked_layout([16, BLOCK], x.dtype.element_ty)
    tiles = gl.portable.pipeline(from_tiles, STAGES)
    row = gl.program_id(0) * 16
    steps = gl.cdiv(columns, BLOCK)
    for i in gl.static_range(STAGES - 1):
        tiles.fetch(i, [[row, i * BLOCK]], pred=i < steps)
    total = gl.zeros([16, BLOCK], x.dtype.element_ty, layout)
    for step in range(steps):
        (tile,) = tiles.wait(step)
        total += tile.load(layout)
        ahead = step + STAGES - 1
        tiles.fetch(ahead, [[row, ahead * BLOCK]], pred=ahead < steps)
    tiles.close()
    gl.portable.store(to_tiles, [row, 0], total)


def add_up(target, shape=(40, 200)):
    x = np.random.default_rng(0).integers(-9, 9, shape).astype(np.float32)
    out = np.full((shape[0], 32), np.nan, np.float32)
    where = registry().target(f"sim:{target}")
    summed[(-(-shape[0] // 16),)](x, out, *shape, 32, 3, target=where)
    padded = np.pad(x, ((0, 0), (0, -shape[1] % 32))).reshape(shape[0], -1, 32)
    np.testing.assert_array_equal(out, padded.sum(axis=1))


@pytest.mark.parametrize("target", TARGETS)
def test_threads_may_load_from_a_pipeline(target):
    add_up(target)


@gluon.jit
def stored(a, b, c, FENCED: gl.constexpr):
    """c = a @ b for one tile whose operands threads store."""
    layouts: gl.constexpr = gl.portable.mma_layouts(
        64, 64, 32, gl.float16, gl.float16, operands="shared"
    )
    a_in: gl.constexpr = gl.portable.blocked_layout([64, 32], gl.float16)
    b_in: gl.constexpr = gl.portable.blocked_layout([32, 64], gl.float16)
    m = gl.arange(0, 64, gl.SliceLayout(1, a_in))[:, None]
    n = gl.arange(0, 64, gl.SliceLayout(0, b_in))[None, :]
    a_at = m * 32 + gl.arange(0, 32, gl.SliceLayout(0, a_in))[None, :]
    b_at = gl.arange(0, 32, gl.SliceLayout(1, b_in))[:, None] * 64 + n
    a_smem = gl.allocate_shared_memory(gl.float16, [64, 32], layouts.a_shared)
    b_smem = gl.allocate_shared_memory(gl.float16, [32, 64], layouts.b_shared)
    a_smem.store(gl.load(a + a_at))
    b_smem.store(gl.load(b + b_at))
    if FENCED:
        gl.portable.fence()
    acc = gl.portable.mma(a_smem, b_smem, gl.portable.accumulator(layouts), is_async=True)
    acc = gl.portable.mma_wait(acc, deps=[a_smem, b_smem])
    c_tiles = gl.portable.descriptor(c, [64, 64], [64, 1], [64, 64])
    gl.portable.store(c_tiles, [0, 0], gl.portable.read(acc))


def store_and_multiply(target, fenced=True):
    rng = np.random.default_rng(0)
    a, b = (rng.uniform(-1, 1, s).astype(np.float16) for s in ((64, 32), (32, 64)))
    c = np.full((64, 64), np.nan, np.float32)
    stored[(1,)](a, b, c, fenced, target=registry().target(f"sim:{target}"))
    np.testing.assert_allclose(c, a.astype(np.float32) @ b.astype(np.float32), atol=1e-4)


@pytest.mark.parametrize("target", TARGETS)
def test_operands_that_threads_stored(target):
    store_and_multiply(target)


@pytest.mark.parametrize("target", TARGETS)
def test_a_missing_fence_is_reported(target):
    """Also where units read registers, or a newer compiler adds it: it is asked for everywhere."""
    with pytest.raises(SimulatorError, match=r"Put `gl\.portable\.fence\(\)`"):
        store_and_multiply(target, fenced=False)


@gluon.jit
def scaled_between(a, b, c):
    """c = 2 (a @ b) + a @ b, by way of a tensor."""
    layouts: gl.constexpr = gl.portable.mma_layouts(
        64, 64, 32, gl.float16, gl.float16, operands="shared"
    )
    a_tiles = gl.portable.descriptor(a, [64, 32], [32, 1], [64, 32], layouts.a_shared)
    b_tiles = gl.portable.descriptor(b, [32, 64], [64, 1], [32, 64], layouts.b_shared)
    tiles = gl.portable.pipeline([a_tiles, b_tiles], 1)
    tiles.fetch(0, [[0, 0], [0, 0]])
    a_tile, b_tile = tiles.wait(0, pending=0)
    acc = gl.portable.mma(a_tile, b_tile, gl.portable.accumulator(layouts))
    acc = gl.portable.accumulator(layouts, 2 * gl.portable.read(acc))
    acc = gl.portable.mma(a_tile, b_tile, acc, is_async=True)
    c_tiles = gl.portable.descriptor(c, [64, 64], [64, 1], [64, 64])
    gl.portable.store(c_tiles, [0, 0], gl.portable.read(acc))
    tiles.close()


@pytest.mark.parametrize("target", TARGETS)
def test_accumulators_that_begin_with_a_tensor(target):
    rng = np.random.default_rng(0)
    a, b = (rng.uniform(-1, 1, s).astype(np.float16) for s in ((64, 32), (32, 64)))
    c = np.full((64, 64), np.nan, np.float32)
    scaled_between[(1,)](a, b, c, target=registry().target(f"sim:{target}"))
    np.testing.assert_allclose(c, 3 * (a.astype(np.float32) @ b.astype(np.float32)), atol=1e-4)


# -- mistakes ------------------------------------------------------------------------------------


BEFORE = """
from gluon_core import language as gl
import gluon_core as gluon


@gluon.jit
def kernel(x, y):
    layouts: gl.constexpr = gl.portable.mma_layouts(
        64, 64, 32, gl.float16, gl.float16, operands="shared"
    )
    a = gl.allocate_shared_memory(gl.float16, [64, 32], layouts.a_shared)
    b = gl.allocate_shared_memory(gl.float16, [32, 64], layouts.b_shared)
    wide: gl.constexpr = gl.portable.blocked_layout([64, 64], gl.float16)
    zeros = gl.zeros([64, 64], gl.float32, wide)
    tiles = gl.portable.descriptor(x, [64, 64], [64, 1], [32, 64])
    acc = gl.portable.accumulator(layouts)
"""


@mistakes("""
error | message | line
ArgumentError | acc: operands in shared memory need | gl.portable.mma(a, b, zeros)
ArgumentError | expected a tensor | gl.portable.mma(zeros, zeros, acc)
ShapeError | the shapes do not multiply | gl.portable.mma(b, a, acc)
ArgumentError | is_async | gl.portable.mma(a, b, acc, is_async=x)
ArgumentError | acc: not an accumulator | gl.portable.mma_wait(zeros)
ArgumentError | pending: out of range | gl.portable.mma_wait(acc, pending=4)
ArgumentError | acc: not an accumulator | gl.portable.read(zeros)
ArgumentError | layouts: not layouts | gl.portable.accumulator(zeros)
LayoutError | start: not the layout | gl.portable.accumulator(layouts, zeros)
DtypeError | start: not what | gl.portable.accumulator(layouts, zeros.to(gl.int32))
ArgumentError | operands: no such place | gl.portable.mma_layouts(64, 64, 32, gl.float16, gl.float16, operands='smem')
ArgumentError | b_transposed | gl.portable.mma_layouts(64, 64, 32, gl.float16, gl.float16, b_transposed=True)
GluonError | base | gl.portable.descriptor(zeros, [64], [1], [64])
ShapeError | shape: needs one for | gl.portable.descriptor(x, [64], [64, 1], [32, 64])
ShapeError | constant 1 | gl.portable.descriptor(x, [64, 64], [1, 64], [32, 64])
ShapeError | power-of-two | gl.portable.descriptor(x, [64, 64], [64, 1], [32, 48])
LayoutError | shared_layout | gl.portable.descriptor(x, [64, 64], [64, 1], [32, 64], wide)
ArgumentError | descriptors: not a descriptor | gl.portable.pipeline([x], 2)
ArgumentError | descriptors: none | gl.portable.pipeline([], 2)
ArgumentError | stages: out of range | gl.portable.pipeline([tiles], 0)
ShapeError | needs one for each descriptor | gl.portable.pipeline([tiles], 2).fetch(0, [])
ShapeError | needs one for each dimension | gl.portable.pipeline([tiles], 2).fetch(0, [[0]])
ShapeError | step: must be a scalar | gl.portable.pipeline([tiles], 2).wait(zeros)
ShapeError | value: not the shape of a tile | gl.portable.store(tiles, [0, 0], zeros)
ArgumentError | mask: a single tile needs | gl.portable.store(tiles, [0, 0], zeros, mask=zeros)
""")
@pytest.mark.parametrize("target", ["sm_80", "sm_90", "sm_100", "gfx942"])
def test_mistakes_are_named_under_the_kernels_line(tmp_path, target, line, error, message):
    path = tmp_path / "mistaken.py"
    path.write_text(f"{BEFORE}    {line}\n")
    spec = importlib.util.spec_from_file_location("mistaken", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    types = {"x": "*fp16", "y": "*fp16"}
    with pytest.raises(error, match=message) as caught:
        gluon.compile(module.kernel, target=f"sim:{target}", signature=types)
    assert "mistaken.py:" in str(caught.value)
