"""The target and the forms of the tests of rows."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from gluon_kernels.norm import gated, loss, ops, rows, tilings
from gluon_kernels.plans import Plans
from tests.kernels.routes import route

PLANS = [value for value in vars(ops).values() if isinstance(value, Plans)]


@pytest.fixture
def hopper(monkeypatch):
    monkeypatch.setenv("GLUON_TARGET", "sim:sm_90")
    for plans in PLANS:
        plans.forget()
    yield
    for plans in PLANS:
        plans.forget()


@pytest.fixture(params=["one", "several"])
def programs(request, monkeypatch):
    """Rows of one program, and rows that several share."""
    if request.param == "several":
        tiling = rows.tiling

        def divided(columns, *arguments, **options):
            tiles = tiling(columns, *arguments, **options)
            if columns <= 64:
                return tiles
            width = 64 * tiles.layout.size_per_thread[1]
            layout = rows.gl.BlockedLayout(tiles.layout.size_per_thread, [1, 32], [1, 2], [1, 0])
            pieces = -(-columns // (4 * width))
            return rows.Tiling(tiles.align, 4, 1, pieces, width, 2, layout)

        monkeypatch.setattr(tilings, "tiling", divided)


@pytest.fixture(params=["dispatched", "direct"])
def way(request, monkeypatch):
    """Calls through the operators, and calls past them, which tensors on a GPU take."""
    if request.param == "direct":
        for module in (ops, loss, gated):
            monkeypatch.setattr(module, "route", route)
