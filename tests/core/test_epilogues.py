"""Epilogues and writers of tiles: results, hardware, waits; misuse."""

from __future__ import annotations

import re

import numpy as np
import pytest

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.errors import GluonError
from gluon_core.registry.load import registry
from tests.backends.sim.sanitizer.test_mutations import Case
from tests.tables import mistakes

pytestmark = pytest.mark.once

SIM = registry().target("sim:sm_90")
ROWS, COLUMNS = 40, 48  # no multiples of two tiles


@gluon.jit
def squared(x):
    return x * x - 1


@gluon.jit
def finished(
    x, out, sizes, row_scale, column_scale, bias, residual, numbers,
    ACTIVATION: gl.constexpr, PARTS: gl.constexpr, LANES: gl.constexpr = 32,
):  # fmt: skip
    """`out` is `x`, float32, after an epilogue; tiles of 16 x 16, PARTS side by side."""
    rows, columns, stride = sizes
    scale, result_scale = numbers
    layout: gl.constexpr = gl.BlockedLayout([1, 16 * PARTS], [LANES, 1], [4, 1], [1, 0])
    end = gl.portable.epilogue(
        [rows, columns],
        scale,
        row_scale,
        column_scale,
        bias,
        ACTIVATION,
        residual,
        stride if residual is not None else None,
        result_scale,
    )
    tiles = gl.portable.descriptor(out, [rows, columns], [columns, 1], [16, 16])
    writer = gl.portable.writer(tiles, PARTS, end)
    order = gl.portable.swizzled_tiles([rows, columns], [16, 16 * PARTS], 2)
    work = gl.portable.tile_scheduler(order)
    turn = work.first()
    while work.has(turn):
        row, column = work.at(turn)
        r = row + gl.arange(0, 16, gl.SliceLayout(1, layout))
        c = column + gl.arange(0, 16 * PARTS, gl.SliceLayout(0, layout))
        inside = (r < rows)[:, None] & (c < columns)[None, :]
        offsets = r[:, None] * columns + c[None, :]
        writer.store([row, column], gl.load(x + offsets, mask=inside, other=0.0))
        turn = work.next(turn)
    writer.close()


def operands(dtype=np.float32):
    rng = np.random.default_rng(0)
    return {
        "x": rng.normal(size=(ROWS, COLUMNS)).astype(np.float32),
        "out": np.full((ROWS, COLUMNS), 77, dtype),
        "row_scale": rng.normal(size=ROWS).astype(np.float32),
        "column_scale": rng.normal(size=COLUMNS).astype(np.float32),
        "bias": rng.normal(size=COLUMNS).astype(np.float16),
        "residual": rng.normal(size=(ROWS, COLUMNS + 8)).astype(np.float16),
        "scale": 0.5,
        "result_scale": 3.0,
    }


def launch(operands, parts=2, activation=None, target=SIM, **options):
    names = ("row_scale", "column_scale", "bias", "residual")
    numbers = tuple(operands.get(name) for name in ("scale", "result_scale"))
    args = [operands["x"], operands["out"], (ROWS, COLUMNS, COLUMNS + 8)]
    args += [*(operands.get(name) for name in names), numbers, activation, parts, target.warp_size]
    return finished[(2,)](*args, target=target, num_warps=4, **options)


def wanted(operands, activation=None):
    x = operands["x"].astype(np.float64)
    x = x * (operands.get("scale") or 1)
    if operands.get("row_scale") is not None:
        x = x * operands["row_scale"][:, None]
    if operands.get("column_scale") is not None:
        x = x * operands["column_scale"]
    if operands.get("bias") is not None:
        x = x + operands["bias"].astype(np.float64)
    if activation is not None:
        x = {"squared": lambda x: x * x - 1, "exp": np.exp}[activation.__name__](x)
    if operands.get("residual") is not None:
        x = x + operands["residual"][:, :COLUMNS].astype(np.float64)
    return x * (operands.get("result_scale") or 1)


EVERY = ("scale", "row_scale", "column_scale", "bias", "residual", "result_scale")


@pytest.mark.sampled(12)
@pytest.mark.parametrize("spec", ["sim:sm_80", "sim:sm_90", "sim:gfx942", "sim:gfx1201"])
@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize(
    "names, activation",
    [((), None), (EVERY, squared), (("bias",), gl.exp), (("residual", "scale"), None)],
    ids=["none", "all", "bias", "residual"],
)
def test_computed_results(spec, parts, names, activation):
    arguments = operands()
    used = {name: arguments[name] for name in ("x", "out", *names)}
    launch(used, parts, activation, registry().target(spec))
    np.testing.assert_allclose(used["out"], wanted(used, activation), rtol=1e-5, atol=1e-5)


def test_eight_bits_have_the_nearest_there_is():
    arguments = {**operands(np.int8), "result_scale": 90.0}
    used = {name: arguments[name] for name in ("x", "out", "result_scale")}
    launch(used)
    exact = wanted(used)
    assert (np.abs(exact) > 128).any()
    np.testing.assert_array_equal(used["out"], np.clip(np.round(exact), -128, 127))
    torch = pytest.importorskip("torch")
    out = torch.zeros((ROWS, COLUMNS), dtype=torch.float8_e4m3fn)
    used = {"x": torch.from_numpy(arguments["x"]), "out": out, "result_scale": 400.0}
    launch(used)
    exact = (used["x"].numpy() * np.float32(400)).clip(-448, 448)
    limited = torch.from_numpy(exact).to(torch.float8_e4m3fn)
    assert (out.float() == limited.float()).all() and (out.float().abs() == 448).any()


def test_the_writer_stores_by_the_unit_that_there_is():
    from gluon_report.example import Placeholders

    new = Placeholders()
    results = {name: new.empty((ROWS, COLUMNS)) for name in ("x", "out")}
    args = [
        results["x"],
        results["out"],
        (ROWS, COLUMNS, COLUMNS),
        *[None] * 4,
        (None, None),
        None,
        2,
    ]
    ptx = finished.warmup(*args, grid=(1,), target="sm_90", num_warps=4).asm["ptx"]
    assert ptx.count("cp.async.bulk.tensor.2d.global") == 2
    assert re.search(r"cp.async.bulk.wait_group.read\s+1", ptx)
    ptx = finished.warmup(*args, grid=(1,), target="sm_80", num_warps=4).asm["ptx"]
    assert "cp.async.bulk" not in ptx


@pytest.fixture
def no_implied_fences(monkeypatch):
    """The compiler adds no fences between the proxies."""
    from gluon_nvidia.reference import proxy

    monkeypatch.setattr(proxy, "_fence", lambda *operands: None)


def test_each_inner_wait_and_fence_is_needed(no_implied_fences):
    """Whatever is left out of a writer is reported."""
    fixed = {name: value for name, value in operands().items() if name in ("x", "bias")}

    def fresh():
        return {**fixed, "out": np.full((ROWS, COLUMNS), np.nan, np.float32)}

    def values(args):
        sizes = (ROWS, COLUMNS, COLUMNS)
        return [
            args["x"], args["out"], sizes, None, None, args["bias"], None, (None, None), squared, 2
        ]  # fmt: skip

    compiled = finished[(2,)](*values(fresh()), target=SIM, num_warps=4)
    case = Case(compiled, (2,), fresh, values, "out", lambda args: wanted(args, squared), 1e-6)
    assert case.run() is None
    kinds, missed = case.judged()
    assert not missed
    for op in ("async_tma_store_wait", "fence"):
        assert any(op in name and "deleted" in name for name in kinds), op
    assert case.run() is None


# -- misuse --------------------------------------------------------------------------------------


@mistakes("""
error | text | line
ShapeError | shape of a matrix | gl.portable.epilogue([8])
ShapeError | not a sequence | gl.portable.epilogue(8)
DtypeError | bias | gl.portable.epilogue([8, 8], bias=3)
DtypeError | row_scale | gl.portable.epilogue([8, 8], row_scale=out + COLUMN)
DtypeError | must be a scalar | gl.portable.epilogue([8, 8], scale=out)
ArgumentError | needs a residual | gl.portable.epilogue([8, 8], stride=3)
ArgumentError | activation | gl.portable.epilogue([8, 8], activation=3)
ShapeError | two dimensions | gl.portable.epilogue([8, 8]).apply(COLUMN, [0, 0])
ShapeError | not a sequence | gl.portable.epilogue([8, 8]).apply(TILE, 0)
ArgumentError | does not return the type of its argument | gl.portable.epilogue([8, 8], activation=total).apply(TILE, [0, 0])
ArgumentError | not a descriptor | gl.portable.writer(out)
ArgumentError | parts | gl.portable.writer(tiles, 0)
ArgumentError | not an epilogue | gl.portable.writer(tiles, 1, tiles)
ShapeError | 2 of [16, 16] | gl.portable.writer(tiles, 2).store([0, 0], TILE)
ShapeError | one for each dimension | gl.portable.writer(tiles).store([0], TILE)
""")
@pytest.mark.parametrize("spec", ["sim:sm_90", "sim:sm_80"])
def test_misuse_is_an_error_where_it_is(spec, line, error, text):
    from benchmarks.upstream import load

    source = f"""
import gluon_core as gluon
from gluon_core import language as gl

@gluon.jit
def total(x):
    return gl.sum(x, 0)

@gluon.jit
def kernel(out, LAYOUT: gl.constexpr):
    COLUMN = gl.arange(0, 16, gl.SliceLayout(0, LAYOUT))
    TILE = gl.zeros([16, 16], gl.float32, LAYOUT)
    tiles = gl.portable.descriptor(out, [16, 16], [16, 1], [16, 16])
    {line}
"""
    layout = gl.BlockedLayout([1, 4], [8, 4], [4, 1], [1, 0])
    out = np.zeros((16, 16), np.float32)
    with pytest.raises(GluonError) as caught:
        load("epilogue_misuse", source).kernel[(1,)](out, layout, target=spec, num_warps=4)
    assert isinstance(caught.value, error), caught.value
    assert text in str(caught.value)
    assert line.split("(")[0] in str(caught.value)  # the kernel's own line is shown
