"""Short launches of a kernel in partitions take its pipelined form."""

import runpy
from pathlib import Path

import numpy as np
import pytest

import gluon_core as gluon
import gluon_write.explicit
from gluon_core import language as gl
from gluon_core.registry.load import registry
from gluon_write.partitions.row_bounds import RowBound, row_bounds
from gluon_write.partitions.short_launches import ShortLaunches
from gluon_write.porting.port import port
from gluon_write.preferred import chosen_form, chosen_warps
from gluon_write.tracing.tracer import Tracer
from gluon_write.writing.short_text import host_text

pytestmark = pytest.mark.once

KERNELS = Path(__file__).parent / "triton_kernels"

SHORT = ShortLaunches(
    (RowBound(1, "length"), RowBound(64, 1)), 10, 20, 1.5, 1.0, 100, 15, 500, 0.5, 50, 4
)


@pytest.mark.parametrize(
    ("grid", "length", "short"),
    [
        ((10, 1, 1), 769, True), ((10, 1, 1), 768, True), ((10, 1, 1), 770, False), ((11, 1, 1), 365, True),
        ((11, 1, 1), 366, False), ((20, 1, 1), 499, True), ((21, 1, 1), 177, True), ((21, 1, 1), 178, False),
        ((1, 9, 1), 1, True), ((1, 13, 1), 1, False),
    ],
)  # fmt: skip
def test_written_hosts_say_the_same(grid, length, short):
    """Rows are those of the argument or of the grid; a grid has one to three sizes, or a function gives it."""
    assert SHORT.test(["x", "length"])(grid, [None, length]) is short
    assert ShortLaunches.of_facts(SHORT.facts()) == SHORT
    scope = {}
    exec("import math\n" + host_text("few", SHORT, "math"), scope)
    assert scope["few"]({"grid": grid[:2], "length": length}) is short
    assert scope["few"]({"grid": lambda args: (*grid[:1], args["y"]), "y": grid[1], "length": length}) is short  # fmt: skip


@gluon.jit(layouts="auto")
def doubled(x, y, n, B: gl.constexpr):
    for start in range(gl.program_id(0) * B, n, gl.num_programs(0) * B):
        place = start + gl.arange(0, B)
        gl.store(y + place, gl.load(x + place, mask=place < n) * 2, mask=place < n)


def test_the_host_chooses_a_form_for_each_launch(monkeypatch):
    """The pipelined form is compiled for the first short launch; a recording and a process that may not compile keep one form."""
    short = ShortLaunches((RowBound(1, "n"),), 4, 4, 1.0, 1.0, 0, 1000, 83, 0.0, 20, 2)
    forms, chosen_for = [], gluon_write.explicit.chosen_for

    def seen(*args):
        forms.append((chosen_form(), chosen_warps()))
        return chosen_for(*args)

    monkeypatch.setattr(gluon_write.explicit, "chosen_for", seen)
    written = gluon_write.explicit.short_launches_of
    monkeypatch.setattr(
        gluon_write.explicit, "short_launches_of", lambda *a: None if chosen_form() else short
    )
    traced = Tracer({}, {}, {}, registry().target("sm_90"), None)
    assert written(doubled, None, [doubled], traced) is None  # no partitions

    def launch(n, programs, **options):
        x, y = np.arange(n, dtype=np.float32), np.zeros(n, np.float32)
        doubled[(programs,)](x, y, n, 32, target="sim:sm_90", **options)
        assert (y == 2 * x).all()

    launch(101, 1)
    launch(101, 4)
    launch(51, 5)
    assert forms == [(None, None)]
    monkeypatch.setenv("GLUON_NO_JIT", "1")
    launch(99, 2)
    assert forms == [(None, None)]
    monkeypatch.delenv("GLUON_NO_JIT")
    doubled.forget()
    launch(99, 2)
    launch(49, 5)
    launch(99, 3)
    assert forms == [(None, None), (None, None), ("pipelined", 2)]


@gluon.jit
def walked(tile, acc, last, B: gl.constexpr):
    for start in range(0, last, B):
        acc = gl.portable.mma(tile, tile, acc)
    return acc


@gluon.jit(layouts="auto")
def summed(x, y, ends, length, window, B: gl.constexpr, KIND: gl.constexpr):
    place = gl.arange(0, B)[:, None] * B + gl.arange(0, B)[None, :]
    tile, acc = gl.load(x + place), gl.zeros([B, B], gl.float32)
    block, two = gl.program_id(0), 2
    behind = (block + 1) * B
    if KIND == 0:
        acc = walked(tile, acc, gl.minimum(length, behind + window), B)
    elif KIND == 1:
        acc = walked(tile, acc, behind, B)
        acc = walked(tile, acc, min(behind, length), B)
    elif KIND == 2:
        acc = walked(tile, acc, gl.cdiv(window.to(gl.int64), two) * two, B)
    elif KIND == 3:
        acc = walked(tile, acc, max(length, behind), B)
    elif KIND == 4:
        acc = walked(tile, acc, gl.load(ends + block), B)
    else:
        acc = walked(tile, acc, length * window, B)
    gl.store(y + place, acc)


def test_sizes_of_a_launch_bound_its_rows(monkeypatch):
    """One size does, or a larger one of two; no bound is an end that the kernel loads, or a product of sizes."""
    known = []

    def kept(fn, before, *args):
        known.append(row_bounds(fn, before))

    monkeypatch.setattr(gluon_write.explicit, "short_launches_of", kept)
    types = np.dtype("float16"), np.dtype("float32"), np.dtype("int32")
    for kind in range(6):
        summed.warmup(*types, 96, 96, 32, kind, target="sim:sm_90", num_stages=1)
    length, window, blocks = RowBound(1, "length"), RowBound(1, "window"), RowBound(32, 0)
    assert known == [[length], [blocks], [window], [length, blocks], [], []]


@pytest.mark.campaign
def test_programs_without_a_walk_begin_anew_for_each_block(monkeypatch, tmp_path):
    """Many short programs take the pipelined form: partitions took 1.9 of its time (8,192 of 256 keys on an H200)."""
    seen, written = [], gluon_write.explicit.short_launches_of

    def kept(*args):
        seen.append(written(*args))
        return seen[-1]

    monkeypatch.setattr(gluon_write.explicit, "short_launches_of", kept)
    text = (KERNELS / "tiles.py").read_text()
    head, name, rest = text.partition("def tile_attention_kernel(")
    moves = "".join(
        f"    {one} = {one} + tl.program_id(2).to(tl.int64) * N_CTX * HEAD\n"
        for one in ("q_ptr", "k_ptr", "v_ptr", "o_ptr")
    )
    text = head + name + rest.replace("    rows = Z * N_CTX\n", moves + "    rows = N_CTX\n", 1)
    (tmp_path / "moved.py").write_text(port(text, str(KERNELS / "tiles.py")).text)
    kernel = runpy.run_path(str(tmp_path / "moved.py"))["tile_attention_kernel"]
    half = np.dtype("float16")
    kernel.warmup(
        *[half] * 4, 0.125, 1, 256, HEAD=64, BM=128, BN=64, CAUSAL=False, target="sm_90",
        num_warps=8, num_stages=3,
    )  # fmt: skip
    (short,) = [one for one in seen if one is not None]
    is_short = short.test(["N_CTX"])
    assert is_short((2, 1, 4096), [256]) and not is_short((32, 1, 4096), [4096])
