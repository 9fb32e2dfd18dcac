"""Tiles, pipelines and accumulators of `gl.portable`: one source, on every simulated target."""

from __future__ import annotations

import numpy as np
import pytest

from gluon_core.plugins import registry
from gluon_sim.errors import SimulatorError
from tests.portable_kernels import products

TARGETS = ("sm_75", "sm_80", "sm_90", "sm_100", "sm_120", "gfx942", "gfx950", "gfx1201", "gfx1250")
ASYNCHRONOUS = ("sm_90", "sm_100")


def multiply(
    target,
    shape=(136, 80, 176),
    block=(64, 64, 32),
    stages=3,
    num_warps=4,
    turned=False,
    dtype="float16",
    pending=1,
    precision=None,
    out="float32",
):
    """Launch `products`, and compare with NumPy."""
    m, n, k = shape
    rng = np.random.default_rng(0)
    import ml_dtypes

    kind = np.dtype(getattr(ml_dtypes, dtype, None) or dtype)
    if kind == np.int8:
        a, b = (rng.integers(-128, 128, s).astype(kind) for s in ((m, k), (k, n)))
    else:
        a, b = (rng.uniform(-1, 1, s).astype(kind) for s in ((m, k), (k, n)))
    wide = np.int64 if kind == np.int8 else np.float64
    wanted = a.astype(wide) @ b.astype(wide)
    c = np.full((m, n), -1 if kind == np.int8 else np.nan, out)
    grid = (-(-m // block[0]), -(-n // block[1]))
    found = products[grid](
        a,
        np.ascontiguousarray(b.T) if turned else b,
        c,
        m,
        n,
        k,
        *block,
        stages,
        turned,
        pending,
        precision,
        num_warps=num_warps,
        target=registry().target(f"sim:{target}"),
    )
    tolerance = 2e-3 if precision == "tf32" or out == "float16" else 1e-5
    limit = tolerance * float(np.abs(wanted).max())
    np.testing.assert_allclose(c.astype(np.float64), wanted, rtol=0, atol=limit)
    return found


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("stages", [2, 3, 4])
def test_one_source_is_right_everywhere(target, stages):
    multiply(target, stages=stages)


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("target", ["sm_80", "sm_90", "sm_100", "gfx950", "gfx1250"])
def test_in_whatever_order_things_happen(monkeypatch, target, seed):
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
def test_operands_that_lie_along_k(target, dtype, precision, out):
    if dtype.startswith("float8") and target in ("sm_80", "gfx942"):
        pytest.skip("it has no such type")
    multiply(target, dtype=dtype, precision=precision, out=out, turned=True, pending=0)


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
