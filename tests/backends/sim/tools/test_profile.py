"""Numbers per kernel line, against pencil and paper for small kernels."""

from __future__ import annotations

import json
import re
import sys

import numpy as np
import pytest
from typer.testing import CliRunner

import gluon_core as gluon
from gluon_cli.app import app
from gluon_core import language as gl
from gluon_core.language.nvidia.ampere import async_copy as cp
from gluon_core.layouts import bank_conflicts
from gluon_core.registry.load import registry
from gluon_core.testing import triton_at_least
from gluon_sim.memory.shared import offsets_of
from gluon_sim.sanitizer.access import holders, shared_cost
from gluon_sim.settings import using
from gluon_sim.tools.debug import watched
from gluon_sim.tools.profile import Counts, Profiler, roofline
from gluon_sim.tools.watcher import watching

L1 = gl.constexpr(gl.BlockedLayout([1], [32], [4], [0]))
L2 = gl.constexpr(gl.BlockedLayout([1, 1], [1, 32], [4, 1], [1, 0]))


def profiled(kernel, grid, *args, **options):
    """The report of one launch, its lines by the word they contain."""
    profiler = Profiler()
    # Programs of a grid may write the same here: what counts is how much.
    with watching(profiler), using(races=False):
        kernel[grid](*args, **options)
    (report,) = profiler.report()
    return report


def line(report, word):
    (line_report,) = (r for r in report["lines"] if word in r["source"])
    return line_report


def zeros(n, dtype=np.float32):
    return np.zeros(n, dtype)


# ---- global memory ----------------------------------------------------------------------------


@gluon.jit
def copy(a, out, first, stride, n, BLOCK: gl.constexpr, layout: gl.constexpr):
    i = gl.arange(0, BLOCK, layout=layout)
    x = gl.load(a + first + i * stride, mask=i < n)
    gl.store(out + gl.program_id(0) * BLOCK + i, x)


@pytest.mark.parametrize(
    "per_thread, stride, first, requests, sectors, ideal",
    [
        (1, 1, 0, 4, 16, 16),  # 32 lanes of 4 bytes side by side: 4 sectors each
        (1, 32, 0, 4, 128, 16),  # every lane in a sector of its own
        (1, 2, 0, 4, 32, 16),  # every other element: twice the sectors
        (1, 0, 0, 4, 4, 4),  # all lanes at one address
        (1, 1, 1, 4, 20, 16),  # 128 bytes from byte 4 on lie in 5 sectors
        (4, 1, 0, 1, 16, 16),  # 16 bytes per lane: one warp reads 512 bytes at once
        (2, 1, 0, 2, 16, 16),
        (
            4,
            1,
            1,
            4,
            65,
            16,
        ),  # not aligned: 4 requests, 16 bytes between lanes; the last ends in a 17th
    ],
)
def test_sectors_per_request(per_thread, stride, first, requests, sectors, ideal):
    warps = 4 // per_thread
    layout = gl.BlockedLayout([per_thread], [32], [warps], [0])
    report = profiled(
        copy, (3,), zeros(8192), zeros(384), first, stride, 128, 128, layout, num_warps=warps
    )
    load = line(report, "gl.load")
    assert load["global_read"] == 3 * 128 * 4
    assert (load["read_requests"], load["read_sectors"]) == (3 * requests, 3 * sectors)
    if first == 0 or per_thread == 1:
        assert load["read_ideal"] == 3 * ideal
    store = line(report, "gl.store")
    assert store["global_written"] == 3 * 512
    assert store["write_sectors"] == store["write_ideal"] == 3 * 16


def test_masked_lanes_move_nothing():
    layout = gl.BlockedLayout([1], [32], [4], [0])
    load = line(profiled(copy, (1,), zeros(128), zeros(128), 0, 1, 9, 128, layout), "gl.load")
    # One warp asks, for 36 bytes; the other three have nothing to do.
    assert (load["global_read"], load["read_requests"], load["read_sectors"]) == (36, 1, 2)


def test_a_wave_of_64_lanes(monkeypatch):
    monkeypatch.setenv("GLUON_TARGET", "sim:gfx942")
    layout = gl.BlockedLayout([1], [64], [4], [0])
    load = line(profiled(copy, (1,), zeros(256), zeros(256), 0, 1, 256, 256, layout), "gl.load")
    assert (load["read_requests"], load["read_sectors"]) == (4, 32)


@gluon.jit
def replicated(out, layout: gl.constexpr):
    i = gl.arange(0, 32, layout=layout)
    gl.store(out + i, i)


def test_only_one_holder_of_an_element_stores_it():
    report = profiled(replicated, (1,), zeros(32, np.int32), gl.BlockedLayout([1], [32], [4], [0]))
    store = line(report, "gl.store")
    assert (store["write_requests"], store["write_sectors"], store["global_written"]) == (1, 4, 128)


@gluon.jit
def counts(a, N: gl.constexpr):
    i = gl.arange(0, N, layout=L1)
    gl.atomic_add(a + i % 8, 1)


def test_atomics():
    row = line(profiled(counts, (2,), zeros(8, np.int32), 128), "atomic_add")
    assert (row["atomics"], row["write_requests"], row["write_sectors"]) == (256, 8, 8)


@gluon.jit
def looped(a, out, n):
    i = gl.arange(0, 128, layout=L1)
    total = gl.zeros([128], gl.float32, layout=L1)
    for k in range(n):
        total += gl.load(a + i)
    total = gl.sum(total, 0) + total
    gl.store(out + i, total)


def test_iterations_add_up_and_the_footprint_does_not():
    report = profiled(looped, (2,), zeros(128), zeros(128), 5)
    load = line(report, "gl.load")
    assert load["read_sectors"] == 2 * 5 * 16 and load["vector"] == 2 * 5 * 128
    # The work of a library function belongs to the line that called it.
    assert {r["file"] for r in report["lines"]} == {__file__}
    # 127 additions of the sum, and 128 of its result.
    assert line(report, "gl.sum")["vector"] == 2 * 255
    roof = report["roofline"]
    assert roof["footprint"] == 2 * 512 and roof["traffic"] == 32 * (160 + 32)


# ---- shared memory ------------------------------------------------------------------------------


@gluon.jit
def transposed(out, shared: gl.constexpr, write: gl.constexpr, read: gl.constexpr):
    s = gl.allocate_shared_memory(gl.float32, [32, 32], shared)
    s.store(gl.full([32, 32], 1.0, gl.float32, layout=write))
    x = s.load(read)
    r = gl.arange(0, 32, layout=gl.SliceLayout(1, read))
    c = gl.arange(0, 32, layout=gl.SliceLayout(0, read))
    gl.store(out + r[:, None] * 32 + c[None, :], x)


ROWS = gl.BlockedLayout([1, 1], [1, 32], [4, 1], [1, 0])
COLUMNS = gl.BlockedLayout([1, 1], [32, 1], [1, 4], [1, 0])
WIDE = gl.BlockedLayout([1, 4], [4, 8], [4, 1], order=[1, 0])
PLAIN = gl.SwizzledSharedLayout(1, 1, 1, [1, 0])
SWIZZLED = gl.SwizzledSharedLayout(1, 1, 32, [1, 0])
PADDED = gl.PaddedSharedLayout.with_identity_for([[32, 1]], [32, 32], [1, 0])


@pytest.mark.parametrize(
    "shared, read, passes, ideal",
    [
        (PLAIN, ROWS, 32, 32),  # 32 rows, one per warp and register
        (PLAIN, COLUMNS, 32 * 32, 32),  # a column is in one bank: 32 passes each
        (SWIZZLED, COLUMNS, 32, 32),
        (PADDED, COLUMNS, 32, 32),
        (PLAIN, WIDE, 32, 32),  # 16 bytes per lane: 8 lanes a pass, 32 passes for 4096 bytes
    ],
    ids=["rows", "columns", "swizzled", "padded", "wide"],
)
def test_bank_conflicts(shared, read, passes, ideal):
    report = profiled(transposed, (2,), zeros(1024), shared, ROWS, read)
    load = line(report, "s.load")
    assert load["shared_read"] == 2 * 4096 and load["shared_written"] == 0
    assert (load["shared_passes"], load["shared_ideal"]) == (2 * passes, 2 * ideal)
    assert load["conflicts"] == 2 * (passes - ideal)
    assert line(report, "s.store")["shared_written"] == 2 * 4096


@pytest.mark.parametrize("shared", [PLAIN, SWIZZLED, gl.SwizzledSharedLayout(4, 2, 8, [1, 0])])
@pytest.mark.parametrize("register", [ROWS, COLUMNS, WIDE])
def test_passes_agree_with_the_algebra_of_layouts(shared, register):
    offsets = offsets_of(shared, (32, 32))[None] * 4
    cost = shared_cost(offsets, 4, holders(register, (32, 32)), 32, False)
    extra = bank_conflicts(register, shared, (32, 32), 32)
    assert cost.passes == cost.ideal * (extra + 1)


@gluon.jit
def gathered(out, step: gl.constexpr, layout: gl.constexpr):
    s = gl.allocate_shared_memory(gl.float32, [1024], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    s.store(gl.full([1024], 1.0, gl.float32, layout=L1))
    i = gl.arange(0, 128, layout=layout)
    x = s.gather(i * step % 1024, axis=0)
    gl.store(out + i, x)


@pytest.mark.skipif(not triton_at_least(3, 7), reason="gather on shared memory came with 3.7")
@pytest.mark.parametrize("step, passes", [(1, 4), (2, 8), (8, 32), (0, 4)])
def test_conflicts_of_a_gather_are_those_of_its_indices(step, passes):
    # Four warps; lanes `step` words apart share a bank `step` at a time, and words that are one
    # and the same are read once.
    row = line(profiled(gathered, (1,), zeros(128), step, L1), "s.gather")
    assert (row["shared_passes"], row["shared_ideal"]) == (passes, 4)


@gluon.jit
def copied(a, out):
    i = gl.arange(0, 128, layout=L1)
    s = gl.allocate_shared_memory(gl.float32, [128], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    cp.async_copy_global_to_shared(s, a + i)
    cp.commit_group()
    cp.wait_group(0)
    gl.store(out + i, s.load(L1))


def test_an_asynchronous_copy_counts_where_it_was_issued():
    row = line(profiled(copied, (2,), zeros(128), zeros(128)), "async_copy")
    assert (row["global_read"], row["read_sectors"], row["async_ops"]) == (1024, 32, 2)
    assert (row["shared_written"], row["shared_passes"], row["conflicts"]) == (1024, 8, 0)


# ---- arithmetic -----------------------------------------------------------------------------------


def test_an_engine_moves_whole_rows_of_the_banks():
    cost = shared_cost(np.arange(0, 512, 4)[None], 4, None, 32, True)
    assert (cost.bytes, cost.passes, cost.ideal) == (512, 4, 4)


@gluon.jit
def product(a, c, KW: gl.constexpr):
    mma: gl.constexpr = gl.NVMMADistributedLayout([2, 0], [4, 1], [16, 8])
    m = gl.arange(0, 64, layout=gl.SliceLayout(1, L2))
    k = gl.arange(0, 32, layout=gl.SliceLayout(0, L2))
    x = gl.load(a + m[:, None] * 32 + k[None, :])
    y = gl.load(a + k[None, :] + gl.arange(0, 32, layout=gl.SliceLayout(1, L2))[:, None])
    left = gl.convert_layout(x, gl.DotOperandLayout(0, mma, KW))
    right = gl.convert_layout(y, gl.DotOperandLayout(1, mma, KW))
    acc = gl.nvidia.ampere.mma_v2(left, right, gl.zeros((64, 32), c.dtype.element_ty, mma))
    gl.store(c + m[:, None] * 32 + k[None, :], gl.convert_layout(acc, L2))


@pytest.mark.parametrize(
    "dtype, out, width, kind",
    [
        (np.float16, np.float32, 2, "fp16"),
        (np.float32, np.float32, 1, "tf32"),
        (np.int8, np.int32, 4, "int8"),
    ],
)
def test_matrix_work_by_type(dtype, out, width, kind):
    report = profiled(product, (3,), zeros(64 * 32, dtype), zeros(64 * 32, out), width)
    assert line(report, "mma_v2")["matrix"] == {kind: 3 * 2 * 64 * 32 * 32}
    assert report["total"]["vector"] == 0
    convert = line(report, "left = ")
    assert convert["conversions"] == {"shared": 3}
    # Written once and read once.
    assert convert["conversion_bytes"] == 3 * 2 * 64 * 32 * np.dtype(dtype).itemsize


@gluon.jit
def register_moves(a):
    i = gl.arange(0, 256, layout=L1)
    x = gl.load(a + i)
    y = gl.convert_layout(x, gl.DistributedLinearLayout(
        [[128]], [[1], [2], [4], [8], [16]], [[32], [64]], [], [256]))  # fmt: skip
    z = gl.convert_layout(y, gl.BlockedLayout([2], [32], [4], [0]))
    gl.store(a + i, gl.convert_layout(z, L1))


def test_a_conversion_between_equal_layouts_is_free():
    report = profiled(register_moves, (1,), zeros(256))
    assert all(not r["conversions"] for r in report["lines"] if "y = " in r["source"])
    through = line(report, "z = ")
    assert through["conversions"] == {"shared": 1} and through["conversion_bytes"] == 2 * 1024
    # 8 passes of 128 bytes to write and 8 to read; neither layout conflicts in a row of words.
    assert (through["conversion_passes"], through["conversion_conflicts"]) == (16, 0)


def test_the_roofline_takes_the_slowest_part():
    counts = Counts(matrix={"fp16": 4000}, shared_passes=10, vector=30)
    peaks = {"global": 100.0, "shared": 1280.0, "fp16": 1000.0, "vector": 10.0}
    bound = roofline(counts, 600, peaks, 32)
    # global 600/100, shared 10*128/1280, matrix 4000/1000, vector 30/10
    assert bound["times"] == {"global": 6.0, "shared": 1.0, "matrix": 4.0, "vector": 3.0}
    assert (bound["bound"], bound["seconds"], bound["intensity"]) == ("global", 6.0, 4030 / 600)
    assert roofline(counts, 600, {}, 32)["bound"] is None


def test_peaks_are_facts_of_architectures():
    for arch in registry().architectures():
        known = {"global", "shared", "vector", "fp64", "fp32", "tf32", "bf16", "fp16", "fp8", "fp4"}
        rates = {name: value for name, value in arch.peaks.items() if name != "units"}
        assert set(rates) <= known | {"int8"}
        assert all(1e11 < value < 1e17 for value in rates.values())
        assert 16 <= arch.peaks.get("units", 16) <= 512
    hopper = registry().target("hopper").architecture
    assert hopper.peaks["fp16"] == 989.4e12 and hopper.peaks["global"] == 4.8e12


# ---- off, and the command -------------------------------------------------------------------------


def test_nothing_is_wrapped_while_nobody_watches():
    compiled = copied[(1,)](zeros(128), zeros(128))
    assert watched(compiled.asm["program"].compiled, compiled, (1, 1, 1)) is None


FILE = """
import numpy as np
import gluon_core as gluon
from gluon_core import language as gl

@gluon.jit
def doubled(a, N: gl.constexpr, layout: gl.constexpr):
    i = gl.arange(0, N, layout=layout)
    x = gl.load(a + i) * 2
    gl.store(a + i, x)

doubled[(1,)](np.ones(128, np.float32), 128, gl.BlockedLayout([1], [32], [4], [0]))
"""


def command(*arguments, code=0, monkeypatch):
    monkeypatch.setattr(sys, "argv", list(sys.argv))
    monkeypatch.setattr(sys, "path", list(sys.path))
    result = CliRunner().invoke(app, ["run", *map(str, arguments)], env={"COLUMNS": "160"})
    assert result.exit_code == code, (result.stdout, result.stderr, result.exception)
    return result


def test_gluon_run_profile(tmp_path, monkeypatch):
    file, data, page = tmp_path / "f.py", tmp_path / "p.json", tmp_path / "p.html"
    file.write_text(FILE)
    monkeypatch.setenv("GLUON_TARGET", "sim:sm_90")
    out = command(
        file, "--profile", "--profile-json", data, "--profile-html", page, monkeypatch=monkeypatch
    ).stdout
    assert "x = gl.load(a + i) * 2" in out and "512 B" in out
    # 512 bytes touched at 4.8 TB/s: 107 ps.
    assert "at least 107 ps, bound by global" in out
    (report,) = json.loads(data.read_text())
    assert report["kernel"] == "doubled" and report["target"] == "sim:sm_90"
    assert line(report, "gl.load")["read_sectors"] == 16
    text = page.read_text()
    assert "def doubled(a, N: gl.constexpr" in text and "@gluon.jit" in text and "107 ps" in text
    assert "<script" not in text and "http" not in text


def test_a_profile_fits_a_screen(tmp_path, monkeypatch):
    file, data, page = tmp_path / "f.py", tmp_path / "p.json", tmp_path / "p.html"
    file.write_text(FILE)
    monkeypatch.setattr(sys, "argv", list(sys.argv))
    monkeypatch.setattr(sys, "path", list(sys.path))
    asked = ["run", str(file), "-t", "sim:sm_90", "--profile"]
    asked += ["--profile-json", str(data), "--profile-html", str(page)]
    done = CliRunner().invoke(app, asked, env={"COLUMNS": "80"})
    assert max(map(len, done.stdout.splitlines())) <= 80
    assert re.search(r"\d+ +107 ps global +x = gl.load\(a \+ i\) \* 2 ", done.stdout)
    assert re.search(r"doubled, memory.*\d+ +512 B.* 4 *\n", done.stdout, re.DOTALL)
    assert "doubled on sim:sm_90: 1 launch, 1 program " in done.stdout
    assert f"wrote {data}" in done.stderr and f"wrote {page}" in done.stderr
    # The page starts with the time, and has no column of nothing.
    (heads,) = re.findall(r"<table><tr>(.*?)</tr>", page.read_text())
    names = re.findall(r"<th[^>]*>([^<]*)</th>", heads)
    assert names == ["least time", "", "source", "ops", "global read", "global written"] + [
        "sectors/request"
    ]
    assert re.search(r'<tr><td class="heat" style="--part: 100%">', page.read_text())


def test_profiles_of_hardware_are_refused(tmp_path, monkeypatch):
    file = tmp_path / "f.py"
    file.write_text(FILE)
    errors = command(
        file, "-t", "nvidia:sm_90", "--profile", code=2, monkeypatch=monkeypatch
    ).stderr
    assert "Try --target sim:sm_90" in errors
    errors = command(
        file, "-t", "sim:sm_90", "--profile-json", tmp_path / "no" / "x", code=2,
        monkeypatch=monkeypatch,
    ).stderr  # fmt: skip
    assert "folder does not exist" in errors
