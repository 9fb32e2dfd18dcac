"""Stores of large results, whose rows may begin in the middle of a sector of memory."""

import pytest
import torch

import gluon_core as gluon
import gluon_kernels
from gluon_core import language as gl
from gluon_kernels.gemm import choice, launches, measures, ops, tilings
from gluon_kernels.gemm.epilogue import store_streamed

pytestmark = pytest.mark.once

ROWS, WIDTH, SHARED = 16, 64, 8  # of a tile, and the columns that it shares with the next one
SECTOR = 16  # elements of two bytes


@gluon.jit
def store_tile(c, left, M, N, stride, ROWS: gl.constexpr, WIDTH: gl.constexpr, SHARED: gl.constexpr):  # fmt: skip
    layout: gl.constexpr = gl.BlockedLayout([1, 2], [8, 4], [4, 1], [1, 0])
    value = gl.full([ROWS, WIDTH], 1.0, gl.float32, layout)
    own = (left, left + (WIDTH - SHARED))
    store_streamed(c, value, 0, left, (M, N), stride, (), own, 8, SHARED)


@pytest.mark.parametrize("offset", [0, 8])
@pytest.mark.parametrize("columns", [56, 64, 72, 176, 184])
def test_no_two_tiles_store_a_part_of_the_same_sector(columns, offset, monkeypatch):
    monkeypatch.setenv("GLUON_TARGET", "sim:sm_90")
    rows, stride = 13, columns + 8 * (columns % 16 == 0)
    times = torch.zeros(rows, columns, dtype=torch.int)
    for left in range(0, max(columns - SHARED, 1), WIDTH - SHARED):
        memory = torch.zeros(offset + ROWS * stride + 64, dtype=torch.bfloat16)
        store_tile[(1,)](memory[offset:], left, rows, columns, stride, ROWS, WIDTH, SHARED)
        inside = torch.zeros_like(memory, dtype=torch.bool)
        of_rows = inside[offset : offset + rows * stride].view(rows, stride)
        of_rows[:, :columns] = True
        assert not memory[~inside].any()
        stored = memory[offset : offset + rows * stride].view(rows, stride)[:, :columns] > 0
        times += stored
        for row in range(rows):
            (places,) = torch.nonzero(stored[row], as_tuple=True)
            begin, end = int(places[0]), int(places[-1]) + 1
            first = offset + row * stride
            assert begin == 0 or (first + begin) % SECTOR == 0
            assert end == columns or (first + end) % SECTOR == 0
    assert (times == 1).all()


@pytest.fixture
def forms(monkeypatch):
    """Return the forms of the stores of products, of which all results are large."""
    forms = []

    def prepared(kernel, grid, arguments, *rest, **options):
        forms.append(next((x for x in arguments if x in ("tma", "streamed", "sectors")), ""))
        return prepare(kernel, grid, arguments, *rest, **options)

    prepare = launches.gluon.torch.prepare
    monkeypatch.setenv("GLUON_TARGET", "sim:sm_90")
    monkeypatch.setattr(launches.gluon.torch, "prepare", prepared)
    monkeypatch.setattr(launches, "multiprocessors", lambda tensor: 3)
    monkeypatch.setattr(measures, "WRITTEN", {False: (0, 64), True: (0, 128)})
    for cached in (choice.choose, choice._order):
        cached.cache_clear()
    ops.plans.forget()
    yield forms
    for cached in (choice.choose, choice._order):
        cached.cache_clear()
    ops.plans.forget()


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "columns, k, form, bias", [(256, 64, "streamed", False), (248, 40, "sectors", True), (376, 72, "sectors", False), (256, 136, "tma", False)]
)  # fmt: skip
def test_large_results_are_stored_past_the_cache(columns, k, form, bias, forms):
    a, b = torch.randn(2, 250, k).bfloat16(), torch.randn(2, k, columns).bfloat16()
    more = {"bias": torch.randn(columns).bfloat16(), "activation": "relu"} if bias else {}
    right = a.float() @ b.float()
    if bias:
        right = torch.relu(right + more["bias"].float())
    torch.testing.assert_close(gluon_kernels.bmm(a, b, **more).float(), right, rtol=1e-2, atol=5e-2)
    assert (forms == [form]) if form != "tma" else not {"streamed", "sectors"} & {*forms}


@pytest.mark.parametrize(
    "sides, kernel, block",
    [
        ((8, 4096, 4088, 128), "cooperative", (128, 256, 64)),
        ((256, 4096, 384, 64), "cooperative", (256, 128, 64)),
        ((400, 190, 4096, 64), "pingpong", (64, 256, 64)),
        ((64, 4096, 512, 64), "cooperative", (128, 256, 64)),
        ((24, 1920, 1664, 64), "pingpong", (128, 128, 64)),
    ],
)
def test_large_results_take_tiles_of_which_little_is_in_vain(sides, kernel, block):
    chosen = choice.choose(tilings.Size(*sides))
    assert (chosen.kernel, chosen.block, chosen.whole) == (kernel, block, True)
    assert choice.for_large_result(tilings.Size(*sides[:3], 512)) is None
    assert choice.for_large_result(tilings.Size(1, *sides[1:])) is None  # small
