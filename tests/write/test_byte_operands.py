"""Products of bytes that layout-free kernels load through pointers: the unit reads them along the depth alone."""

import pytest
import torch

import gluon_core as gluon
from gluon_core import language as gl
from gluon_sim.settings import using

pytestmark = pytest.mark.once

FLOATS = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}
rare = pytest.mark.campaign
TYPES = {**FLOATS, "int8": torch.int8, "uint8": torch.uint8}


@gluon.jit(layouts="auto")
def product(
    a, b, c, M, N, K, a_row, a_column, b_row, b_column,
    SUM: gl.constexpr, BM: gl.constexpr, BN: gl.constexpr, BK: gl.constexpr,
):  # fmt: skip
    rows = gl.program_id(0) * BM + gl.arange(0, BM)
    columns, along = gl.program_id(1) * BN + gl.arange(0, BN), gl.arange(0, BK)
    left = a + rows[:, None] * a_row + along[None, :] * a_column
    right = b + along[:, None] * b_row + columns[None, :] * b_column
    acc = gl.zeros([BM, BN], SUM)
    for k in range(0, K, BK):
        x = gl.load(left, mask=(rows[:, None] < M) & (along[None, :] < K - k), other=0)
        y = gl.load(right, mask=(columns[None, :] < N) & (along[:, None] < K - k), other=0)
        acc = gl.portable.mma(x, y, acc)
        left += BK * a_column
        right += BK * b_row
    gl.store(
        c + rows[:, None] * N + columns[None, :],
        acc,
        mask=(rows[:, None] < M) & (columns[None, :] < N),
    )


@gluon.jit(layouts="auto")
def scaled(a, b, scales, c, K, B: gl.constexpr, BK: gl.constexpr):
    """Multiply the product of each step by scales of its rows, and load B in rows of its columns."""
    rows, along = gl.arange(0, B), gl.arange(0, BK)
    acc = gl.zeros([B, B], gl.float32)
    for step in range(K // BK):
        k = step * BK + along
        x = gl.load(a + rows[:, None] * K + k[None, :])
        y = gl.load(b + rows[:, None] * K + k[None, :])
        scale = gl.load(scales + rows * (K // BK) + step)
        acc += gl.portable.mma(x, y.T, gl.zeros([B, B], gl.float32)) * scale[:, None]
    gl.store(c + rows[:, None] * B + rows[None, :], acc)


def bytes_of(kind, rows, columns, seed, along_rows=True):
    """Return a matrix whose rows are contiguous, or its columns."""
    generator = torch.Generator().manual_seed(seed)
    size = (rows, columns) if along_rows else (columns, rows)
    if "int" in kind:
        least = 0 if kind == "uint8" else -127
        values = torch.randint(least, 128, size, dtype=TYPES[kind], generator=generator)
    else:
        values = torch.randn(size, generator=generator).to(TYPES[kind])
    return values if along_rows else values.t()


@pytest.mark.parametrize(
    "kinds, size, along, block",
    [
        pytest.param(("int8", "int8"), (64, 64, 144), (True, True), (64, 64, 64), marks=rare),
        (("int8", "int8"), (67, 41, 83), (True, True), (64, 32, 32)),  # no address is aligned
        pytest.param(("int8", "int8"), (64, 48, 80), (True, False), (64, 32, 32), marks=rare),
        (("int8", "int8"), (64, 48, 80), (False, True), (64, 32, 32)),
        (
            ("uint8", "int8"),
            (64, 32, 64),
            (True, True),
            (64, 32, 32),
        ),  # the unit has no such product
        pytest.param(
            ("int8", "int8"), (64, 32, 32), (True, True), (64, 32, 16), marks=rare
        ),  # less deep than the unit
        pytest.param(("e4m3", "e4m3"), (64, 45, 96), (True, True), (64, 32, 32), marks=rare),
        (("e4m3", "e5m2"), (61, 64, 71), (True, True), (64, 64, 32)),
    ],
)
def test_product(kinds, size, along, block):
    m, n, k = size
    a, b = bytes_of(kinds[0], m, k, 1, along[0]), bytes_of(kinds[1], k, n, 2, not along[1])
    whole = "int" in kinds[0]
    kind, sums = (torch.int32, gl.int32) if whole else (torch.float32, gl.float32)
    wanted = a.double() @ b.double()
    grid = (-(-m // block[0]), -(-n // block[1]))
    for schedule in ("eager", "latest"):  # copies land as early, and as late as they may
        c = torch.zeros(m, n, dtype=kind)
        with using(schedule=schedule):
            product[grid](
                a, b, c, *size, *a.stride(), *b.stride(), sums, *block,
                num_stages=3, target="sim:hopper",
            )  # fmt: skip
        bound = 0 if whole else 2e-2
        assert torch.allclose(c.double(), wanted, atol=bound, rtol=bound), schedule


@pytest.mark.parametrize("kind", [pytest.param("e4m3", marks=rare), "e5m2"])
def test_sums_are_scaled_between_steps(kind):
    a, b = bytes_of(kind, 64, 128, 3), bytes_of(kind, 64, 128, 4)
    scales = torch.rand(64, 4) + 0.5
    parts = zip(a.float().split(32, 1), b.float().split(32, 1), scales.t())
    wanted = sum(x @ y.t() * scale[:, None] for x, y, scale in parts)
    for schedule in ("eager", "latest"):
        c = torch.zeros(64, 64)
        with using(schedule=schedule):
            scaled[(1,)](a, b, scales, c, 128, 64, 32, num_stages=3, target="sim:hopper")
        assert torch.allclose(c, wanted, atol=2e-2, rtol=2e-2), schedule


def code(kind, sums, along, depth=64):
    signature = dict.fromkeys(("a", "b"), f"*{kind}:16") | {"c": f"*{sums}:16"}
    signature |= dict.fromkeys(("M", "N", "K", "a_row", "a_column", "b_row", "b_column"), "i32:16")
    ones = ("a_column" if along[0] else "a_row", "b_row" if along[1] else "b_column")
    for name in ones:
        del signature[name]
    constants = {"SUM": gl.int32 if sums == "i32" else gl.float32, "BM": 64, "BN": 64, "BK": depth}
    asked = gluon.compile(
        product, target="sm_90", signature=signature, constexprs=constants | dict.fromkeys(ones, 1)
    )
    return asked.asm["ptx"]


@pytest.mark.parametrize(
    "kind, sums",
    [
        ("i8", "i32"),
        pytest.param("fp8e4nv", "fp32", marks=rare),
        pytest.param("fp8e5", "fp32", marks=rare),
    ],
)
def test_units_read_bytes_along_the_depth(kind, sums):
    text = code(kind, sums, (True, True))
    assert "wgmma.mma_async" in text and "cp.async.cg.shared.global" in text
    assert "mma.sync" not in text


@rare
@pytest.mark.parametrize("along", [(True, False), (False, True)])
def test_units_read_no_bytes_across_the_depth(along):
    text = code("fp8e4nv", "fp32", along)
    assert "wgmma" not in text and "mma.sync" in text
