"""Tiles of rows that begin anywhere are transposed in a buffer."""

import inspect
import runpy

import numpy as np
import pytest

import gluon_core as gluon
from gluon_core import language as gl

pytestmark = [pytest.mark.once, pytest.mark.sampled(2)]


@gluon.jit(layouts="auto")
def transposed(x, out, M, N, B: gl.constexpr, ACROSS: gl.constexpr):
    i = gl.program_id(0) * B + gl.arange(0, B)
    j = gl.program_id(1) * B + gl.arange(0, B)
    inside = (i < M)[:, None] & (j < N)[None, :]
    tile = gl.load(
        x + i[:, None] * N + j[None, :],
        mask=inside,
    )
    if ACROSS:
        gl.store(out + j[:, None] * M + i[None, :], tile.T, mask=inside.T)
    else:
        gl.store(out + i[:, None] * N + j[None, :], tile, mask=inside)


@gluon.jit(layouts="auto")
def hinted(x, out, M, N, B: gl.constexpr, ACROSS: gl.constexpr):
    i, j = gl.arange(0, B), gl.arange(0, B)
    inside = (i < M)[:, None] & (j < N)[None, :]
    place = x + i[:, None] * N + j[None, :]
    tile = gl.load(place, mask=inside, eviction_policy="evict_first")
    gl.store(out + j[:, None] * M + i[None, :], tile.T, mask=inside.T)


@gluon.jit(layouts="auto")
def across(x, out, M, N, B: gl.constexpr):
    i, j = gl.program_id(0) * B + gl.arange(0, B), gl.program_id(1) * B + gl.arange(0, B)
    tile = gl.load(x + i[:, None] * N + j[None, :], mask=(i < M)[:, None] & (j < N)[None, :])
    gl.store(
        out + j[:, None] * M + i[None, :],
        tile.T,
        mask=(j < N)[:, None] & (i < M)[None, :],
    )


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    "kernel, size, more, kept",
    [
        (across, "i32", {}, True),
        (across, "i32:16", {}, False),  # whole vectors: lines begin where rows do
        (transposed, "i32", {"ACROSS": False}, False),  # adjacent programs load the rest at once
        (hinted, "i32", {"ACROSS": True}, False),  # the source says something else
    ],
)
def test_buffers(kernel, size, more, kept):
    signature = {"x": "*fp32:16", "out": "*fp32:16", "M": size, "N": size}
    constants = {"B": 64, **more}
    options = {"signature": signature, "constexprs": constants, "num_warps": 8}
    asked = gluon.compile(kernel, target="sm_90", **options)
    assert ("memdesc<3x64x64xf32" in asked.asm["ttgir"]) == kept
    assert "evictionPolicy = evict_last" not in asked.asm["ttgir"]


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    "target, dtype, warps, tiles, size",
    [
        ("sim:hopper", np.float32, 8, 3, 64),
        ("sim:hopper", np.float16, 8, 3, 64),
        ("sim:hopper", np.int8, 8, 0, 64),  # eight programs at once leave half of the memory
        ("sim:hopper", np.float32, 4, 0, 32),  # they fill it, and take longer
        ("sim:a100", np.float32, 8, 0, 64),
    ],
)
def test_results(target, dtype, warps, tiles, size, chosen_sources):
    """On Hopper a tile goes through a buffer with room for three, where those of all programs fill the memory."""
    x = np.random.default_rng(0).standard_normal((75, 91)).astype(dtype)
    out = np.zeros((91, 75), dtype)
    grid = -(-75 // size), -(-91 // size)
    across[grid](x, out, 75, 91, size, target=target, num_warps=warps)
    assert (out == x.T).all()
    text = chosen_sources[0]
    assert ("allocate_shared_memory(" in text) == bool(tiles)
    assert f"dtype, [{tiles}, 64, 64]" in text or not tiles


@gluon.jit(layouts="auto")
def addressed_across(x, out, M, N, B: gl.constexpr):
    """Transpose each matrix of a batch by the addresses of its result."""
    base = gl.program_id(2).to(gl.int64) * M * N
    i, j = gl.program_id(0) * B + gl.arange(0, B), gl.program_id(1) * B + gl.arange(0, B)
    inside = (i < M)[:, None] & (j < N)[None, :]
    tile = gl.load(x + base + i[:, None] * N + j[None, :], mask=inside)
    gl.store(out + base + j[None, :] * M + i[:, None], tile, mask=inside)


def test_addresses_that_transpose(chosen_sources):
    x = np.random.default_rng(0).standard_normal((2, 75, 91)).astype(np.float16)
    out = np.zeros((2, 91, 75), np.float16)
    addressed_across[(2, 2, 2)](x, out, 75, 91, 64, target="sim:hopper", num_warps=4)
    assert (out == x.transpose(0, 2, 1)).all()
    assert "dtype, [3, 64, 64]" in chosen_sources[0]


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    "dtype, warps, change",
    [
        (np.float32, 8, ("gl.", "gluon.language.")),  # no name for the module
        (np.float32, 8, ("j[:, None] * M + i[None, :]", "j[None, :] * M + i[:, None]")),
        (np.bool_, 4, ()),  # no buffer takes truth values
    ],
)
def test_other_tiles_have_no_buffer(dtype, warps, change, chosen_sources, tmp_path):
    text = inspect.getsource(across.fn)
    if change:
        text = text.replace(*change)
    if "j[None, :] * M" in text:  # a transposed tile is transposed again
        text = text.replace("tile.T", "gl.permute(tile.T, (1, 0))")
        text = text.replace(
            "(j < N)[:, None] & (i < M)[None, :]", "(i < M)[:, None] & (j < N)[None, :]"
        )
    path = tmp_path / "across.py"
    names = "" if "gluon.language" in text else "from gluon_core import language as gl\n"
    path.write_text(f"import gluon_core as gluon\n{names}\n\n{text}")
    x = (np.random.default_rng(0).standard_normal((75, 91)) > 0.5).astype(dtype)
    out = np.zeros((91, 75), dtype)
    kernel = runpy.run_path(str(path))["across"]
    kernel[(2, 2)](x, out, 75, 91, 64, target="sim:hopper", num_warps=warps)
    assert (out == x.T).all() and "allocate_shared_memory(" not in chosen_sources[0]
