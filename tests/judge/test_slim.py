"""`gluon slim`: synchronization that is unnecessary is proved so; the rest comes with a counterexample."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from gluon_cli.app import app

pytest.importorskip("z3", reason="gluon-core[prove] is not installed")
pytestmark = pytest.mark.once

COPY = """
import numpy as np

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.language.nvidia.hopper import fence_async_shared, mbarrier, tma
from gluon_core.nvidia.hopper import TensorDescriptor


@gluon.jit
def copy(src, dst, tiles):
    layout: gl.constexpr = gl.BlockedLayout([1, 1], [1, 32], [4, 1], [1, 0])
    arrived = mbarrier.allocate_mbarrier(batch=1)
    mbarrier.init(arrived.index(0), count=1)
    tile = gl.allocate_shared_memory(src.dtype, src.block_type.shape, src.layout)
    out = gl.allocate_shared_memory(dst.dtype, dst.block_type.shape, dst.layout)
    for i in range(tiles):
        mbarrier.expect(arrived.index(0), src.block_type.nbytes)
        tma.async_load(src, [0, i * 32], arrived.index(0), tile)
        mbarrier.wait(arrived.index(0), i & 1)
        value = tile.load(layout)
        tma.store_wait(0)
        out.store(value)
        fence_async_shared()
        tma.async_store(dst, [0, i * 32], out)
        {more}
    tma.store_wait(0)


src = np.random.default_rng(0).random((8, 96), np.float32)
dst = np.zeros_like(src)
layout = gl.NVMMASharedLayout(128, 32, 2)
described = [TensorDescriptor.from_tensor(x, [8, 32], layout) for x in (src, dst)]
copy[(1,)](*described, 3, target="sim:sm_90")
assert (src == dst).all()
"""


@pytest.fixture
def slim(tmp_path):
    def slim(more="pass", *arguments):
        file = tmp_path / "copy_tiles.py"
        file.write_text(COPY.format(more=more))
        command = ["slim", f"{file}:copy", "--target", "sim:sm_90", "--within", "90", *arguments]
        return CliRunner().invoke(app, command)

    return slim


def _changes(result):
    (kernel,) = json.loads(result.stdout)["kernels"]
    assert kernel["verdict"] == "proved", kernel
    return {
        (one["op"], one["source"].partition("  ")[0], one["change"]): one
        for one in kernel["changes"]
    }


def test_the_needs_of_a_kernel_are_shown_with_the_schedule(slim):
    result = slim("pass", "--json")
    assert result.exit_code == 0, result.output
    changes = _changes(result)
    assert {one["verdict"] for one in changes.values()} == {"needed"}
    removed = changes["mbarrier_wait", "mbarrier.wait(arrived.index(0), i & 1)", "removed"]
    assert "RaceError" in " ".join(removed["lines"])
    fence = changes["fence_async_shared", "fence_async_shared()", "removed"]
    assert fence["lines"][0] == "schedule latest: RaceError"


def test_a_second_wait_and_a_second_fence_are_proved_unnecessary(slim):
    result = slim("tma.store_wait(0); fence_async_shared()", "--json")
    assert result.exit_code == 0, result.output
    unnecessary = {
        (one["op"], one["source"], one["change"]): " ".join(one["lines"])
        for one in _changes(result).values()
        if one["verdict"] == "unnecessary"
    }
    twice = "tma.store_wait(0); fence_async_shared()"
    assert ("fence_async_shared", twice, "removed") in unnecessary
    assert ("async_tma_store_wait", "tma.store_wait(0)", "removed") in unnecessary
    assert all("no race in shared memory" in text for text in unnecessary.values())


def test_text_lists_each_change(slim):
    result = slim("fence_async_shared()")
    assert result.exit_code == 0
    assert "copy on sim:sm_90: proved" in result.stdout
    assert (
        "  unnecessary: fence_async_shared removed, line 26: fence_async_shared()" in result.stdout
    )
    assert "  needed: fence_async_shared removed, line 24: fence_async_shared()" in result.stdout


def test_a_kernel_that_is_wrong_or_not_launched_is_no_success(slim, tmp_path):
    (tmp_path / "nothing.py").write_text("x = 1\n")
    result = CliRunner().invoke(
        app, ["slim", str(tmp_path / "nothing.py"), "--target", "sim:sm_90"]
    )
    assert result.exit_code == 3 and "nothing was tried" in result.stdout
    result = slim("tma.async_store(src, [0, 0], tile)")
    assert result.exit_code in (1, 3)
