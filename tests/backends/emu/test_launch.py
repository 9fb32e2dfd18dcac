"""Data that a launch passes to machine code: arguments of every kind, grids, tensors, functions."""

from __future__ import annotations

import copy
import json

import numpy as np
import pytest
from typer.testing import CliRunner

import gluon_core as gluon
from gluon_cli.app import app
from gluon_core import language as gl
from gluon_core.errors import ArgumentError, BackendError
from gluon_core.testing import TRITON_VERSION
from gluon_core.testing.conformance.kernels import COLS, KERNELS, ROWS
from gluon_emu.amdgcn import launcher
from gluon_emu.amdgcn.decode.codeobject import assembly_of
from gluon_emu.errors import AccessError, MissingWaitError, RaceError
from gluon_emu.settings import Settings, using
from tests.backends.emu.assembly import MISCOUNTED, run

pytestmark = [
    pytest.mark.once,
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.sampled(2),
]
BOTH = pytest.mark.parametrize("arch", ["gfx942", "gfx1201"])


def lanes(arch):
    return 64 if arch.startswith("gfx9") else 32


@gluon.jit
def scalars(out, a, b, c, d, e, pair, L: gl.constexpr):
    offsets = gl.arange(0, L, gl.BlockedLayout([1], [L], [1], [0]))
    gl.store(out + offsets, gl.full([L], 0.0, gl.float32, offsets.type.layout))
    gl.store(out + 0, a.to(gl.float32))
    gl.store(out + 1, b.to(gl.float32))
    gl.store(out + 2, c.to(gl.float32))
    gl.store(out + 3, d)
    gl.store(out + 4, (e >> 40).to(gl.float32))
    gl.store(out + 5, (pair[0] + pair[1]).to(gl.float32))


@BOTH
def test_scalars(arch):
    out = np.zeros(64, np.float32)
    n = lanes(arch)
    scalars[(1,)](out, -7, 3, True, 0.5, 5 << 40, (20, 22), n, target=f"emu:{arch}", num_warps=1)
    assert out[:6].tolist() == [-7, 3, 1, 0.5, 5, 42]


@gluon.jit
def places(out, L: gl.constexpr):
    x, y, z = gl.program_id(0), gl.program_id(1), gl.program_id(2)
    block = (z * gl.num_programs(1) + y) * gl.num_programs(0) + x
    offsets = gl.arange(0, L, gl.BlockedLayout([1], [L], [1], [0]))
    gl.store(out + block * L + offsets, offsets * 0 + x + 10 * y + 100 * z)


@BOTH
@pytest.mark.parametrize("resident", [1, 7, 1000])
def test_grids(arch, resident):
    n = lanes(arch)
    out = np.zeros((4, 3, 5, n), np.int32)
    with using(resident=resident):
        places[(5, 3, 4)](out, n, target=f"emu:{arch}", num_warps=1)
    z, y, x = np.indices((4, 3, 5))
    np.testing.assert_array_equal(
        out, np.broadcast_to((x + 10 * y + 100 * z)[..., None], out.shape)
    )


@gluon.jit
def slowly(x, out, n, L: gl.constexpr):
    block = gl.program_id(0)
    offsets = block * L + gl.arange(0, L, gl.BlockedLayout([1], [L], [1], [0]))
    for _ in range(block):
        gl.store(out + offsets, gl.load(x + offsets) + gl.load(out + offsets), mask=offsets < n)


@pytest.mark.parametrize("processes", [1, 3])
def test_large_grids_over_processes(monkeypatch, tmp_path, processes):
    shared = []
    whole = launcher.spread
    monkeypatch.setattr(launcher, "spread", lambda *a: shared.append(a[-1]) or whole(*a))
    monkeypatch.setattr(launcher, "_WORTHWHILE", 0)
    x, out = np.arange(20 * 64, dtype=np.int32), np.zeros(20 * 64, np.int32)
    path = tmp_path / "trace"
    with using(resident=2, processes=processes, trace=str(path)):
        slowly[(20,)](x, out, out.size - 3, 64, target="emu:gfx942", num_warps=1)
    wanted = x * np.repeat(np.arange(20), 64)
    wanted[-3:] = 0
    np.testing.assert_array_equal(out, wanted)
    assert shared == [processes] * (processes > 1)
    (document,) = map(json.loads, path.read_text().splitlines())
    assert document["mix"]["global_store_dword"] == sum(range(20))
    with using(resident=2, processes=processes):
        with pytest.raises(AccessError, match=r"past the end of x.*\n.*workgroup \(7, 0, 0\)"):
            slowly[(20,)](x[: 7 * 64].copy(), out, 20 * 64, 64, target="emu:gfx942", num_warps=1)


@gluon.jit
def counted(out, L: gl.constexpr):
    offsets = gl.arange(0, L, gl.BlockedLayout([1], [L], [1], [0]))
    gl.atomic_add(out + offsets, 1)


def test_workgroups_that_add_to_the_same_stay_together(monkeypatch):
    monkeypatch.setattr(launcher, "_WORTHWHILE", 0)
    out = np.zeros(64, np.int32)
    with using(resident=1, processes=3):
        counted[(9,)](out, 64, target="emu:gfx942", num_warps=1)
    assert (out == 9).all()


@gluon.jit
def double(x, out, n, L: gl.constexpr):
    offsets = gl.program_id(0) * 4 * L + gl.arange(0, 4 * L, gl.BlockedLayout([1], [L], [4], [0]))
    gl.store(out + offsets, gl.load(x + offsets, mask=offsets < n) * 2, mask=offsets < n)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "int64"])
def test_tensors(dtype):
    torch = pytest.importorskip("torch")
    x = torch.arange(300).to(getattr(torch, dtype))
    out = torch.zeros_like(x)
    double[(2,)](x, out, 300, 64, target="emu:gfx942")
    assert torch.equal(out, x * 2)


def test_a_slice_of_a_tensor_reaches_the_whole_of_it():
    x, out = np.arange(400, dtype=np.float32), np.zeros(400, np.float32)
    double[(2,)](x[37:], out[37:], 300, 64, target="emu:gfx942")
    np.testing.assert_array_equal(out[37:337], 2 * x[37:337])
    assert not out[:37].any() and not out[337:].any()


def test_bad_arguments():
    out = np.zeros(400, np.float32)
    with pytest.raises(ArgumentError, match="C-contiguous"):
        double[(2,)](np.zeros((20, 30), np.float32).T, out, 300, 64, target="emu:gfx942")
    with pytest.raises(AccessError, match="past the end of x") as caught:
        double[(2,)](np.zeros(299, np.float32), out, 300, 64, target="emu:gfx942")
    assert "gl.load(x + offsets" in str(caught.value)
    with pytest.raises(ArgumentError, match="unknown schedule"):
        Settings(schedule="late")


def bare(compiled, code=None):
    """The kernel as a code object alone."""
    copied = copy.copy(compiled)
    copied.asm = {} if code == b"" else {"hsaco": code or compiled.asm["hsaco"]}
    return copied


@pytest.mark.parametrize("name", ["product", "branches"])
def test_code_objects_without_assembly_are_disassembled(name):
    chosen = KERNELS[name]
    inputs, wanted = chosen.arrays(), np.zeros(ROWS * COLS, chosen.output)
    arguments = [*inputs, wanted, ROWS * COLS]
    compiled = chosen.kernel[(1,)](*arguments, 64, target="emu:gfx90a", num_warps=4)
    try:
        assembly_of(compiled.asm["hsaco"])
    except BackendError as error:
        if "no disassembler here" not in error.message:
            raise
        pytest.skip(str(error))
    again = [*chosen.arrays(), np.zeros(ROWS * COLS, chosen.output), ROWS * COLS]
    launcher.make_launcher(bare(compiled))((1,), 0, *again)
    np.testing.assert_array_equal(again[len(inputs)], wanted)


def test_code_objects_that_cannot_be_read(monkeypatch):
    x = np.arange(300, dtype=np.float32)
    compiled = double[(2,)](x, x.copy(), 300, 64, target="emu:gfx942")
    with pytest.raises(BackendError, match="double comes without its assembly.*without a code"):
        launcher.make_launcher(bare(compiled, b""))
    for broken in (b"no ELF", compiled.asm["hsaco"][:200], compiled.asm["hsaco"][:64] + bytes(900)):
        with pytest.raises(BackendError, match="double comes without its assembly, and .*code obj"):
            launcher.make_launcher(bare(compiled, broken))
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("ROCM_PATH", "/nowhere")
    with pytest.raises(BackendError, match="no disassembler here reads .*gfx942.*llvm-objdump"):
        launcher.make_launcher(bare(compiled))


@gluon.jit(noinline=True)
def plus(p, k):
    return gl.load(p) * k + 1


@gluon.jit
def calling(x, out, L: gl.constexpr):
    offsets = gl.arange(0, 4 * L, gl.BlockedLayout([1], [L], [4], [0]))
    value = gl.load(x + offsets) * plus(x, 3.0)
    gl.store(out + offsets, value + plus(x + 1, 2.0))


@pytest.mark.parametrize("arch", ["gfx942", "gfx1201", "gfx1250"])
def test_functions_that_are_called(arch):
    x, out = np.arange(256, dtype=np.float32), np.zeros(256, np.float32)
    n = lanes(arch)
    compiled = calling[(1,)](x, out, n, target=f"emu:{arch}")
    assert "swap" in compiled.asm["amdgcn"]
    np.testing.assert_array_equal(out[: 4 * n], (x + 3)[: 4 * n])


def test_traces_count_by_line(tmp_path):
    x, out = np.arange(300, dtype=np.float32), np.zeros(300, np.float32)
    path = tmp_path / "trace"
    with using(trace=str(path)):
        double[(2,)](x, out, 300, 64, target="emu:gfx942")
    (document,) = map(json.loads, path.read_text().splitlines())
    assert document["kernel"] == "double" and document["grid"] == [2, 1, 1]
    assert document["global_bytes"] >= 2 * 4 * 300
    line = double.fn.__code__.co_firstlineno + 3
    (mine,) = [one for one in document["lines"] if one["line"] == line]
    stores = [i for i in mine["instructions"] if i["instruction"].startswith("global_store")]
    assert sum(i["bytes"] for i in stores) == 4 * 300
    assert sum(document["mix"].values()) == document["instructions"]


KERNEL = """
import sys
import numpy as np
import gluon_core as gluon
from gluon_core import language as gl

@gluon.jit
def double(src, dst, n, BLOCK: gl.constexpr):
    at = gl.program_id(0) * BLOCK + gl.arange(0, BLOCK, layout=gl.BlockedLayout([1], [64], [4], [0]))
    gl.store(dst + at, gl.load(src + at, mask=at < n) * 2, mask=at < n)

if __name__ == "__main__":
    for block in map(int, sys.argv[1:]):
        x = np.arange(1001, dtype=np.float32)
        double[(4,)](x, x.copy(), 1001, block)
"""


def test_reports_count_executed_instructions(tmp_path):
    """The counts of the launches of this code; of the kernel's other code where there are none."""
    file, trace = tmp_path / "kernel.py", tmp_path / "trace"
    file.write_text(KERNEL)

    def gluon_command(*arguments, code=0):
        # Entries of another run in the cache have the lines of a deleted file.
        env = {"COLUMNS": "200", "TRITON_CACHE_DIR": str(tmp_path / "cache")}
        result = CliRunner().invoke(app, [str(a) for a in arguments], env=env)
        assert result.exit_code == code, (result.stdout, result.stderr, result.exception)
        return result

    def report(target, block, *more, code=0):
        kernel = ("compile", f"{file}:double", "-t", target, "-s", "*fp32:16,*fp32:16,i32")
        return gluon_command(
            *kernel, "-c", f"BLOCK={block}", "--trace-isa", trace, *more, code=code
        )

    gluon_command("run", file, "-t", "emu:gfx942", "--trace-isa", trace, "512", "256", "256")
    document = json.loads(report("emu:gfx942", 256, "--json").stdout)["executed"]
    launches = [json.loads(line) for line in trace.read_text().splitlines()]
    assert (document["launches"], document["warps"], document["same_code"]) == (2, 32, True)
    assert document["instructions"] == sum(one["instructions"] for one in launches[1:])
    assert document["global_bytes"] == 2 * 2 * 4 * 1001
    assert sum(document["instruction_mix"].values()) == document["instructions"]
    assert sum(count for _, _, count in document["lines"]) == document["instructions"]
    text = report("emu:gfx942", 256).stdout
    assert "launches: 2" in text and "kernel.py:10  gl.store(dst + at" in text
    other = json.loads(report("emu:gfx942", 1024, "--json").stdout)["executed"]
    assert other["launches"] == 3 and not other["same_code"]
    assert "no launch of the kernel" in report("emu:gfx950", 256, code=2).stderr
    assert "does not count" in report("gfx942", 256, code=3).stderr
    assert "needs a report" in report("emu:gfx942", 256, "--emit", "ttgir", code=2).stderr
    trace.write_text("not JSON")
    assert "wrote" in report("emu:gfx942", 256, code=2).stderr


@gluon.jit
def through_descriptor(desc, out, ROWS: gl.constexpr, COLUMNS: gl.constexpr):
    buffer = gl.allocate_shared_memory(gl.float32, [ROWS, COLUMNS], desc.layout)
    gl.amd.gfx1250.tdm.async_load(desc, [2, 4], buffer)
    gl.amd.gfx1250.tdm.async_wait(0)
    layout: gl.constexpr = gl.BlockedLayout([1, 4], [8, 4], [4, 1], [1, 0])
    rows = gl.arange(0, ROWS, gl.SliceLayout(1, layout))
    columns = gl.arange(0, COLUMNS, gl.SliceLayout(0, layout))
    gl.store(out + rows[:, None] * COLUMNS + columns[None, :], buffer.load(layout))


@MISCOUNTED
@pytest.mark.skipif(TRITON_VERSION < (3, 7), reason="the box of a host descriptor needs Triton 3.7")
def test_descriptors_of_the_host():
    from gluon_core.amd.gfx1250 import TensorDescriptor

    x = np.arange(40 * 50, dtype=np.float32).reshape(40, 50)
    layout = gl.PaddedSharedLayout.with_identity_for([[16, 4]], [32, 16], [1, 0])
    desc = TensorDescriptor.from_tensor(x, [32, 16], layout)
    out = np.zeros((32, 16), np.float32)
    through_descriptor[(1,)](desc, out, 32, 16, target="emu:gfx1250")
    np.testing.assert_array_equal(out, x[2:34, 4:20])


@gluon.jit
def too_many(x, out, MANY: gl.constexpr):
    layout: gl.constexpr = gl.BlockedLayout([1], [64], [gl.num_warps()], [0])
    i = gl.arange(0, MANY * 64 * gl.num_warps(), layout)
    values = gl.load(x + i)
    gl.store(out + i, values * gl.sum(values, 0))


@pytest.mark.parametrize("arch", ["gfx90a", pytest.param("gfx942", marks=pytest.mark.campaign)])
def test_registers_that_do_not_fit(arch):
    """They go to scratch: behind a buffer on gfx90a, with instructions of its own on the others."""
    x = np.arange(4 * 64 * 64, dtype=np.float32) % 7
    out = np.zeros_like(x)
    compiled = too_many[(1,)](x, out, 64, target=f"emu:{arch}", num_warps=4, waves_per_eu=8)
    assert "Folded Spill" in compiled.asm["amdgcn"]
    np.testing.assert_array_equal(out, x * x.sum())


def test_first_registers():
    """Scratch behind a buffer, the dispatch packet, the size of scratch."""
    body = """
s_load_dwordx2 s[12:13], s[6:7], 0x0
s_load_dword s14, s[4:5], 0x4
s_add_u32 s0, s0, s10
s_addc_u32 s1, s1, 0
buffer_store_dword v0, off, s[0:3], 0 offset:8
buffer_store_byte v0, off, s[0:3], 0 offset:13
s_waitcnt vmcnt(0) lgkmcnt(0)
buffer_load_dword v1, off, s[0:3], 0 offset:8
buffer_load_ubyte v2, off, s[0:3], 0 offset:13
v_mov_b32_e32 v4, s14
v_add_u32_e32 v4, s8, v4
v_lshlrev_b32_e32 v3, 2, v0
s_waitcnt vmcnt(0)
v_add_u32_e32 v1, v1, v2
global_store_dword v3, v1, s[12:13]
global_store_dword v3, v4, s[12:13] offset:512
"""
    out = np.zeros((2, 128), np.uint32)
    private = "private_segment_buffer user_sgpr_dispatch_ptr user_sgpr_private_segment_size"
    more = f"user_sgpr_{private} system_sgpr_private_segment_wavefront_offset"
    run(body, out, arch="gfx90a", waves=2, scratch=20, asks=more, sgprs=9)
    np.testing.assert_array_equal(out[0], 2 * np.arange(128))
    assert (out[1] == (128 | 1 << 16) + 20).all()  # lanes of a workgroup along x and y, bytes
    body = body.replace("buffer_load_dword v1,", "buffer_load_dwordx2 v[8:9],")
    with pytest.raises(AccessError, match="8 bytes of a swizzled buffer"):
        run(body, out, arch="gfx90a", waves=2, scratch=20, asks=more, sgprs=9)


@gluon.jit
def several_lines(x, ASM: gl.constexpr, L: gl.constexpr):
    i = gl.arange(0, L, gl.BlockedLayout([1], [L], [1], [0]))
    gl.store(x + i, gl.inline_asm_elementwise(ASM, "=&v,v", [gl.load(x + i)], gl.int32, True, 1))


@BOTH
@pytest.mark.parametrize(
    "text",
    [
        "v_mov_b32 $0, $1\nv_mov_b32 $0, 7",
        "s_branch over_{n}\nover_{n}: v_mov_b32 $0, 7",
        "s_branch across_{n}\n  v_mov_b32 $0, $1\n across_{n}:\n   v_mov_b32 $0, 7",
    ],
)
def test_every_line_of_a_kernels_own_assembly_counts(arch, text):
    """Indented or not, with labels before it or not."""
    n = lanes(arch)
    x = np.arange(n, dtype=np.int32)
    several_lines[(1,)](x, text.format(n=n), n, target=f"emu:{arch}", num_warps=1)
    assert (x == 7).all()


@gluon.jit
def doubles_tiles(x, out, n, WAIT: gl.constexpr, WARPS: gl.constexpr = 4):
    tiles: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [WARPS, 1], [1, 0])
    plain: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [1, 0])
    sink = gl.amd.gfx1250.tdm.make_tensor_descriptor(out, [n * 32, 64], [64, 1], [32, 64], plain)
    tile = gl.allocate_shared_memory(gl.float16, [32, 64], plain)
    rows = gl.arange(0, 32, gl.SliceLayout(1, tiles))[:, None]
    offsets = rows * 64 + gl.arange(0, 64, gl.SliceLayout(0, tiles))[None, :]
    for i in range(n):
        values = gl.load(x + i * 2048 + offsets)
        if WAIT:
            gl.amd.gfx1250.tdm.async_wait(0)
        tile.store(values + values)
        gl.amd.gfx1250.tdm.async_store(sink, [i * 32, 0], tile)
    gl.amd.gfx1250.tdm.async_wait(0)


def test_a_copy_from_lds_that_has_not_read_is_waited_for():
    x, out = np.ones((96, 64), np.float16), np.zeros((96, 64), np.float16)
    doubles_tiles[(1,)](x, out, 3, True, target="emu:gfx1250")
    assert (out == 2).all()
    with pytest.raises(RaceError, match="writes what wave 0 reads"):
        doubles_tiles[(1,)](x, out, 3, False, target="emu:gfx1250")
    with pytest.raises(MissingWaitError, match="a copy before it may not have read"):
        doubles_tiles[(1,)](x, out, 3, False, 1, target="emu:gfx1250", num_warps=1)


@gluon.jit
def stored_and_loaded(x, out, WAIT: gl.constexpr, WARPS: gl.constexpr):
    """A tile goes to memory from LDS, and comes back by ordinary loads, of other waves, too."""
    tiles: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [WARPS, 1], [1, 0])
    plain: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [1, 0])
    sink = gl.amd.gfx1250.tdm.make_tensor_descriptor(x, [32, 64], [64, 1], [32, 64], plain)
    tile = gl.allocate_shared_memory(gl.float16, [32, 64], plain)
    rows = gl.arange(0, 32, gl.SliceLayout(1, tiles))[:, None]
    offsets = rows * 64 + gl.arange(0, 64, gl.SliceLayout(0, tiles))[None, :]
    tile.store(gl.load(x + offsets) * 2)
    gl.amd.gfx1250.tdm.async_store(sink, [0, 0], tile)
    if WAIT:
        gl.amd.gfx1250.tdm.async_wait(0)
    gl.barrier()
    gl.store(out + offsets, gl.load(x + offsets))
    gl.amd.gfx1250.tdm.async_wait(0)


@pytest.mark.parametrize("warps", [1, 4])
def test_a_load_waits_for_the_copy_from_lds_that_stores_its_data(warps):
    x, out = np.ones((32, 64), np.float16), np.zeros((32, 64), np.float16)
    stored_and_loaded[(1,)](x, out, True, warps, target="emu:gfx1250", num_warps=warps)
    assert (out == 2).all()
    with pytest.raises(
        MissingWaitError, match=r"missing s_wait_tensorcnt 0.*which reads global memory"
    ):
        stored_and_loaded[(1,)](x, out, False, warps, target="emu:gfx1250", num_warps=warps)
