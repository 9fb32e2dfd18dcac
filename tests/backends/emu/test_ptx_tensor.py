"""Tensor memory and the tensor core of sm_100: each instruction by its definition in the PTX ISA, against NumPy."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from typer.testing import CliRunner

from gluon_cli.app import app
from gluon_core.registry.load import registry
from gluon_emu.errors import (
    AccessError,
    DeadlockError,
    EmulatorError,
    GluonError,
    RaceError,
    UnknownInstructionError,
)
from gluon_emu.settings import Settings, using
from gluon_nvidia.tensor_memory import TensorMemoryLayout
from gluon_nvidia.tensor_memory_registers import register_layout
from tests import programs
from tests.backends.emu.test_ptx_machine import SCHEDULES, module, run

pytestmark = [
    pytest.mark.once,
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.sampled(2),
]

SHARED = """.shared .align 1024 .b8 room[16384]; .shared .align 8 .b64 gate; .shared .align 16 .b8 answer[16];
.shared .align 4 .b32 slot; .shared .align 4 .b32 other;"""
FIRST = "setp.lt.u32 %p9, %r0, 32; setp.eq.u32 %p8, %r0, 0;"
# %r20: the first column; %r21: with the lanes of the thread's warp.
ALLOC = f"""{FIRST} @%p9 tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [slot], 64; bar.sync 0;
ld.shared.u32 %r20, [slot]; shr.u32 %r21, %r0, 5; and.b32 %r21, %r21, 3; shl.b32 %r21, %r21, 21;
add.u32 %r21, %r21, %r20;"""
FREE = "bar.sync 0; @%p9 tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r20, 64;"
GATE = "@%p8 mbarrier.init.shared.b64 [gate], 1; bar.sync 0;"
COMMIT = "@%p8 tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [gate];"
WAIT = "$W: mbarrier.try_wait.parity.shared.b64 %p1, [gate], 0; @!%p1 bra $W;"
READ = "tcgen05.wait::ld.sync.aligned;"
BOTH = ".param .u64 out, .param .u64 a"


def for_sm_100(body, parameters=".param .u64 out", registers=""):
    text = module(registers + body, SHARED, parameters)
    return text.replace("sm_90a", "sm_100a")


def names(stem, count):
    return "{" + ", ".join(f"%{stem}{i}" for i in range(count)) + "}"


def stored(count):
    """Store %x0 to %xN of each thread to `a`."""
    words = "".join(f"st.global.u32 [%d5+{4 * i}], %x{i};" for i in range(count))
    return (
        f"ld.param.u64 %d4, [a]; mul.wide.u32 %d5, %r3, {4 * count}; add.u64 %d5, %d5, %d4; {words}"
    )


# Stores 32-bit columns c of lane l as 512 l + c, 64 of them.
FILL = "and.b32 %r22, %r0, 127; shl.b32 %r22, %r22, 9;" + "".join(
    f"add.u32 %y{i}, %r22, {i};" for i in range(64)
) + f"tcgen05.st.sync.aligned.32x32b.x64.b32 [%r21], {names('y', 64)}; tcgen05.wait::st.sync.aligned;"  # fmt: skip
REGISTERS = ".reg .b32 %x<130>; .reg .b32 %y<64>;"


def loaded(instruction, count, after=READ, before=FILL, settings=None):
    body = f"{ALLOC}{before}{instruction} {after} {stored(count)} {FREE}"
    words = np.zeros(128 * count, np.uint32)
    run(for_sm_100(body, BOTH, REGISTERS), 128, arrays=[words], settings=settings)
    return words.reshape(4, 32, count)


@SCHEDULES
@pytest.mark.parametrize("shape, repeats, each", [
    ("32x32b", 64, 1), ("16x64b", 32, 1), ("16x128b", 16, 2), ("16x256b", 8, 4),
])  # fmt: skip
def test_fragments_of_loads_are_those_of_the_layouts(shape, repeats, each, schedule):
    """The first 16 lanes of each warp, or all 32, as the layouts say that are compared with Triton's."""
    count = repeats * each
    where = f"tcgen05.ld.sync.aligned.{shape}.x{repeats}.b32 {names('x', count)}, [%r21];"
    words = loaded(where, count, settings=Settings(schedule=schedule, search=True))
    layout = register_layout(TensorMemoryLayout([128, 64], 1), [128, 64], 32, 4, shape)
    table = layout.to_linear([128, 64]).table()
    registers = [table[f"dim{d}"].transpose(2, 1, 0, 3)[..., 0][..., :count] for d in (0, 1)]
    np.testing.assert_array_equal(words, registers[0] * 512 + registers[1])


def test_halves_of_a_warp_load_different_columns():
    words = loaded(f"tcgen05.ld.sync.aligned.16x32bx2.x8.b32 {names('x', 8)}, [%r21], 16;", 8)
    warp, thread, register = np.indices(words.shape)
    column = register + thread // 16 * 16
    np.testing.assert_array_equal(words, (warp * 32 + thread % 16) * 512 + column)


def test_halves_of_registers_are_packed_and_unpacked():
    packed = f"tcgen05.ld.sync.aligned.32x32b.x8.pack::16b.b32 {names('x', 8)}, [%r21];"
    warp, thread, register = np.indices((4, 32, 8))
    low = (warp * 32 + thread) * 512 + 2 * register & 0xFFFF
    np.testing.assert_array_equal(loaded(packed, 8), low | (low + 1) << 16)
    unpacked = "tcgen05.st.sync.aligned.32x32b.x8.unpack::16b.b32 [%r21], {" + ", ".join(
        f"%x{i}" for i in range(8)
    ) + "}; tcgen05.wait::st.sync.aligned; tcgen05.ld.sync.aligned.32x32b.x16.b32 "  # fmt: skip
    words = loaded(f"{packed}{READ}{unpacked}{names('x', 16)}, [%r21];", 16)
    warp, thread, register = np.indices((4, 32, 16))
    np.testing.assert_array_equal(words, (warp * 32 + thread) * 512 + register & 0xFFFF)


def test_a_load_that_reduces():
    least = f"tcgen05.ld.red.sync.aligned.32x32b.x4.max.f32 {names('x', 4)}, %x4, [%r21];"
    words = loaded(least, 5)
    np.testing.assert_array_equal(words[..., 4], words[..., 3])


# ---- order -------------------------------------------------------------------------------------

ONE = "tcgen05.ld.sync.aligned.32x32b.x1.b32 {%r10}, [%r21];"
PUT = "tcgen05.st.sync.aligned.32x32b.x1.b32 [%r21], {%r0};"
COPY = "add.u32 %r25, %r20, 0; @%p8 tcgen05.cp.cta_group::1.128x128b [%r25], %d7;"
ROOM = """mov.u32 %r4, room; shl.b32 %r5, %r0, 4; add.u32 %r5, %r5, %r4; st.shared.v4.u32 [%r5], {%r0, 7, 8, 9};
fence.proxy.async.shared::cta; shr.u32 %r6, %r4, 4; mov.b64 %d6, {%r6, 0}; or.b64 %d7, %d6, 0x400800080000;"""
STORE = "st.global.u32 [%d1], %r10;"
# name: body with [[the part that is needed]]; each thread has its own number in the end.
ORDERS = {
    "wait for a store": f"{PUT} [[tcgen05.wait::st.sync.aligned;]] {ONE}{READ}{STORE}",
    "wait for a load before the next store": (
        f"{PUT} tcgen05.wait::st.sync.aligned; {ONE} [[{READ}]] mov.u32 %r11, 5;"
        "tcgen05.st.sync.aligned.32x32b.x1.b32 [%r21], {%r11}; tcgen05.wait::st.sync.aligned;" + STORE
    ),
    "wait for a copy": f"{GATE}{ROOM} bar.sync 0; {COPY}{COMMIT} [[{WAIT}]] {ONE}{READ}{STORE}",
    "commit of a copy": f"{GATE}{ROOM} bar.sync 0; [[{COPY}]] {COMMIT} {WAIT} {ONE}{READ}{STORE}",
    "proxy fence before a copy": (
        f"{GATE}{ROOM.replace('fence.proxy.async.shared::cta;', '[[fence.proxy.async.shared::cta;]]')}"
        f"bar.sync 0; {COPY}{COMMIT} {WAIT} {ONE}{READ}{STORE}"
    ),
    "barrier before a copy": f"{GATE}{ROOM} [[bar.sync 0;]] {COPY}{COMMIT} {WAIT} {ONE}{READ}{STORE}",
    "wait before shared memory is written again": (
        f"{GATE}{ROOM} bar.sync 0; {COPY}{COMMIT} [[{WAIT}]] st.shared.u32 [%r5], 3;"
        + WAIT.replace("$W", "$V") + f"{ONE}{READ}{STORE}"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ORDERS)
def test_each_wait_and_fence_is_needed(name):
    """Right under each schedule, and without the part reported by the search, under some schedule wrong."""
    text = f"{ALLOC}{ORDERS[name]}{FREE}"
    right = for_sm_100(text.replace("[[", "").replace("]]", ""))
    for schedule in ("latest", "eager", "random"):
        out = run(right, 128, settings=Settings(schedule=schedule, search=True))
        np.testing.assert_array_equal(out, np.arange(128))
    wrong = for_sm_100(text[: text.index("[[")] + text[text.index("]]") + 2 :])
    if name == "commit of a copy":
        assert not (run(wrong, 128) == np.arange(128)).any()
        return
    with pytest.raises(EmulatorError, match="have no order|does not wait"):
        for schedule in ("latest", "eager"):
            run(wrong, 128, settings=Settings(schedule=schedule, search=True))


def test_a_missing_wait_shows_without_the_search():
    """Under the schedule "latest" a store that nobody waits for has not happened."""
    body = f"{ALLOC}{PUT}{ONE}{READ}{STORE}{FREE}"
    assert (run(for_sm_100(body), 128) == 0xFFFFFFFF).all()
    np.testing.assert_array_equal(
        run(for_sm_100(body), 128, settings=Settings(schedule="eager")), np.arange(128)
    )


# The form of a copy -> the row (its first word is the row's number) that lane l gets.
COPIES = {
    "128x128b": lambda lane: lane,
    "64x128b.warpx2::02_13": lambda lane: lane % 64,
    "64x128b.warpx2::01_23": lambda lane: lane % 32 + lane // 64 * 32,
    "32x128b.warpx4": lambda lane: lane % 32,
}


@pytest.mark.parametrize("form", COPIES)
def test_copies_reach_the_lanes_of_their_warps(form):
    copy = COPY.replace("128x128b", form)
    out = run(
        for_sm_100(f"{ALLOC}{GATE}{ROOM} bar.sync 0; {copy}{COMMIT}{WAIT}{ONE}{READ}{STORE}{FREE}"),
        128,
    )
    np.testing.assert_array_equal(out, [COPIES[form](lane) for lane in range(128)])


def test_a_copy_of_four_rows_leaves_the_other_lanes():
    copy = COPY.replace("128x128b", "4x256b")
    zeros = "mov.u32 %r10, -9; tcgen05.st.sync.aligned.32x32b.x1.b32 [%r21], {%r10}; tcgen05.wait::st.sync.aligned; bar.sync 0;"
    out = run(
        for_sm_100(f"{ALLOC}{GATE}{ROOM}{zeros}{copy}{COMMIT}{WAIT}{ONE}{READ}{STORE}{FREE}"), 128
    )
    np.testing.assert_array_equal(out.view(np.int32), [0, 1, 2, 3] + [-9] * 124)


@pytest.mark.parametrize("first", [0, 64])
@SCHEDULES
def test_a_shift_moves_rows_up_to_the_last(first, schedule):
    fill = "tcgen05.st.sync.aligned.32x32b.x1.b32 [%r21], {%r0}; tcgen05.wait::st.sync.aligned; bar.sync 0;"
    shift = f"add.u32 %r22, %r20, {first << 16}; @%p8 tcgen05.shift.cta_group::1.down [%r22];"
    body = f"{ALLOC}{GATE}{fill}{shift}{COMMIT}{WAIT}{ONE}{READ}{STORE}{FREE}"
    out = run(for_sm_100(body), 128, settings=Settings(schedule=schedule, search=True))
    rows = np.arange(128)
    np.testing.assert_array_equal(out, np.where((rows >= first) & (rows < 127), rows + 1, rows))


EVERYWHERE = """setp.eq.u32 %p7, %r1, 0; and.pred %p7, %p7, %p8; mov.u16 %h0, 3; @%p7 tcgen05.commit.cta_group::1
.mbarrier::arrive::one.shared::cluster.multicast::cluster.b64 [gate], %h0;""".replace("\n", "")


@SCHEDULES
def test_a_commit_arrives_in_other_blocks(schedule):
    """Their mbarriers are there after a barrier of the cluster."""
    meet = "barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;"
    settings = Settings(schedule=schedule, search=True)
    text = f"{ALLOC}{GATE}{{}} {EVERYWHERE}{WAIT} mov.u32 %r10, 1; {STORE}{FREE}"
    registers = ".reg .b16 %h<2>;"
    right = for_sm_100(text.format(meet), registers=registers)
    assert (run(right, 128, 2, 2, settings=settings) == 1).all()
    with pytest.raises(EmulatorError, match="this read and the write by `@%p8 mbarrier.init"):
        run(for_sm_100(text.format(""), registers=registers), 128, 2, 2, settings=settings)


# ---- mistakes ----------------------------------------------------------------------------------

MISTAKES = {
    "ends without deallocating 64 columns": (f"{ALLOC}{STORE}", EmulatorError),
    "a power of two from 32": (f"{FIRST} @%p9 tcgen05.alloc.cta_group::1.sync.aligned.b32 [slot], 48;", EmulatorError),
    "after `tcgen05.relinquish_alloc_permit`": (
        f"{FIRST} @%p9 tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned; {ALLOC}{FREE}", EmulatorError),
    "a deallocation of 64 columns": (f"{ALLOC}{FREE}{FREE}", EmulatorError),
    "a deallocation of 32 columns": (f"{ALLOC}{FREE.replace('64', '32')}", EmulatorError),
    "512 columns of tensor memory": (
        f"{ALLOC} @%p9 tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [other], 512; {FREE}", DeadlockError),
    "only the 32 lanes": (f"{ALLOC} {ONE.replace('%r21', '%r20')} {READ}{FREE}", AccessError),
    "not all allocated": (f"{ALLOC} {ONE.replace('[%r21]', '[%r21+64]')} {READ}{FREE}", AccessError),
    "no mbarrier was initialised": (f"{ALLOC} {COMMIT} {FREE}", EmulatorError),
    "pairs need an even number": (
        ALLOC.replace("group::1", "group::2") + FREE.replace("group::1", "group::2"), EmulatorError),
    "this form of `tcgen05.cp`": (f"{ALLOC} {COPY.replace('128x128b', '8x256b')} {FREE}", UnknownInstructionError),
    "`tcgen05.shift` is `.down`": ("tcgen05.shift.cta_group::1.up [%r20];", UnknownInstructionError),
    "a shift of rows from lane 5 on": (
        f"{ALLOC} add.u32 %r22, %r20, 327680; @%p8 tcgen05.shift.cta_group::1.down [%r22]; {FREE}", EmulatorError),
    "this form of `tcgen05.mma`": (
        "tcgen05.mma.cta_group::1.kind::mxf4.block_scale.scale_vec::4X [%r20], %d6, %d7, %r4, [%r5], [%r6], %p1;",
        UnknownInstructionError),
    "a copy to columns 0x1fe to 0x202": (
        f"{ALLOC}{GATE}{ROOM} {COPY.replace('%r20, 0', '%r20, 510')}{COMMIT}{WAIT}{FREE}", AccessError),
    "a matrix from 0x0 to": (f"{ALLOC}{GATE} mov.u64 %d7, 0x400800080000; {COPY}{COMMIT}{WAIT}{FREE}", AccessError),
}  # fmt: skip


@pytest.mark.parametrize("words", MISTAKES)
def test_mistakes_name_the_instruction(words):
    text, kind = MISTAKES[words]
    with pytest.raises(kind, match=words) as caught:
        run(for_sm_100(text), 128)
    assert isinstance(caught.value, GluonError)
    if kind is AccessError:
        assert "has not been compared with silicon" in str(caught.value)


def test_the_command_says_that_nothing_was_compared_with_silicon(tmp_path):
    file = tmp_path / "kernel.ptx"
    file.write_text(
        for_sm_100(f"{ALLOC}{PUT} tcgen05.wait::st.sync.aligned; {ONE}{READ}{STORE}{FREE}")
    )
    result = CliRunner().invoke(
        app, ["emu", str(file), "--arg", "i32[128]", "--block", "128", "--check"]
    )
    assert result.exit_code == 0
    assert (
        "no race and no other mistake under one schedule (the emulation of sm_100 has not"
        in result.output
    )
    result = CliRunner().invoke(app, ["emu", str(file), "--coverage"])
    assert result.exit_code == 0
    assert "has not been compared with silicon" in result.output


def test_an_allocation_waits_for_columns():
    """The second warp gets the columns that the first one frees."""
    take = "tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [{}], 512;"
    give = "ld.shared.u32 %r20, [{}]; tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r20, 512;"
    body = f"""{FIRST} @%p9 {take.format("slot")} bar.sync 0; @%p9 bra $GIVE; {take.format("other")}
    {give.format("other")} bra $END; $GIVE: {give.format("slot")} $END: mov.u32 %r10, 1; {STORE}"""
    assert (run(for_sm_100(body)) == 1).all()


# ---- products ----------------------------------------------------------------------------------


@dataclass
class Product:
    """One `tcgen05.mma`, and its operands.

    Args:
        kind: `f16` and so on.
        types: of A, of B and of the sums, by their numbers in descriptors.
        dtypes: of A, B.
        shape: M, N, K.
        across: operands whose elements along M or N are next to each other.
        negated: operands.
        ws: each warp alone.
        keeps: the sums go on from ones.
        more: operands behind the descriptor.
        held: A is in tensor memory.
        shifted: `.ashift`.
    """

    kind: str
    types: tuple[int, int, int]
    dtypes: tuple[type, type]
    shape: tuple[int, int, int]
    across: tuple[bool, bool] = (False, False)
    negated: tuple[bool, bool] = (False, False)
    ws: bool = False
    keeps: bool = False
    more: str = ""
    held: bool = False
    shifted: bool = False

    def descriptor(self):
        m, n, _ = self.shape
        bits = self.types[2] << 4 | self.types[0] << 7 | self.types[1] << 10
        bits |= (
            self.negated[0] << 13
            | self.negated[1] << 14
            | self.across[0] << 15
            | self.across[1] << 16
        )
        return bits | n >> 3 << 17 | m >> 4 << 24


def core_matrices(matrix, across):
    """Return the bytes of a matrix (extent, depth) in core matrices of 8 rows of 16 bytes, without swizzle.

    Along the depth where `across`: rows are steps of the depth then. Core matrices follow each other, first along the
    rows' direction in steps of 128 bytes, then along the other.
    """
    rows = np.ascontiguousarray(matrix.T if across else matrix)
    raw = rows.view(np.uint8).reshape(rows.shape[0] // 8, 8, -1, 16)
    return raw.transpose(2, 0, 1, 3).reshape(-1), rows.shape[0] // 8 * 128


def described(stride, across):
    """Return the upper bits of a descriptor: core matrices every 128 bytes, and every `stride` bytes."""
    leading, other = (128, stride) if across else (stride, 128)
    return leading >> 4 << 16 | other >> 4 << 32 | 1 << 46


def values(rng, dtype, shape):
    if dtype in (np.int8, np.uint8):
        return rng.integers(np.iinfo(dtype).min, np.iinfo(dtype).max + 1, shape).astype(dtype)
    return (rng.standard_normal(shape) * 2).astype(dtype)


def product(case, operands=None):
    """Return the cells (128, columns) of tensor memory after a product, and A and B as float64.

    Args:
        operands: A (M, K) and B (N, K); random ones by default.
    """
    rng = np.random.default_rng(0)
    m, n, k = case.shape
    a, b = operands or (
        values(rng, dtype, (extent, k)) for dtype, extent in zip(case.dtypes, (m, n))
    )
    image, fields = np.zeros(16384, np.uint8), []
    for start, matrix, across in ((0, a, case.across[0]), (8192, b, case.across[1])):
        raw, stride = core_matrices(matrix, across)
        image[start : start + raw.size] = raw
        fields.append(described(stride, across) | start >> 4)
    words = np.zeros((128, 64), np.uint32)
    copy = "".join(
        f"ld.global.v4.u32 {{%y0, %y1, %y2, %y3}}, [%d6+{i * 2048}]; st.shared.v4.u32 [%r5+{i * 2048}], {{%y0, %y1, %y2, %y3}};"
        for i in range(8)
    )
    left, fill = "%d11", ""
    if case.held:  # each lane has its row, from column 32 on
        count = a.shape[1] * a.itemsize // 4
        loads = "".join(f"ld.global.u32 %x{i}, [%d9+{4 * i}];" for i in range(count))
        fill = f"""ld.param.u64 %d8, [c]; mul.wide.u32 %d9, %r0, {4 * count}; add.u64 %d9, %d9, %d8; {loads}
        add.u32 %r26, %r21, 32; tcgen05.st.sync.aligned.32x32b.x{count}.b32 [%r26], {names("x", count)};
        tcgen05.wait::st.sync.aligned; add.u32 %r27, %r20, 32;"""
        left = "[%r27]"
    zero = "".join(f"mov.u32 %y{i}, {0x3F800000 if case.keeps else 0};" for i in range(64))
    clear = (
        zero
        + f"tcgen05.st.sync.aligned.32x32b.x64.b32 [%r21], {names('y', 64)}; tcgen05.wait::st.sync.aligned;"
    )
    name = "mma.ws" if case.ws else "mma"
    body = f"""{ALLOC}{GATE} {clear} {fill} ld.param.u64 %d4, [b]; mul.wide.u32 %d5, %r0, 16; add.u64 %d6, %d5, %d4;
    mov.u32 %r4, room; shl.b32 %r5, %r0, 4; add.u32 %r5, %r5, %r4; {copy} fence.proxy.async.shared::cta; bar.sync 0;
    shr.u32 %r6, %r4, 4; cvt.u64.u32 %d10, %r6; add.u64 %d11, %d10, {fields[0]}; add.u64 %d12, %d10, {fields[1]};
    mov.u32 %r7, {case.descriptor()}; setp.ne.u32 %p7, {int(case.keeps)}, 0;
    @%p8 tcgen05.{name}.cta_group::1.kind::{case.kind}{".ashift" * case.shifted} [%r20], {left}, %d12, %r7, {case.more.replace("ENABLE", "%p7") or "%p7"};
    {COMMIT}{WAIT} tcgen05.ld.sync.aligned.32x32b.x64.b32 {names("x", 64)}, [%r21]; {READ} {stored(64)} {FREE}"""
    parameters = ".param .u64 out, .param .u64 a, .param .u64 b, .param .u64 c"
    held = np.ascontiguousarray(a).view(np.uint8).ravel().copy()
    run(
        for_sm_100(body, parameters, REGISTERS),
        128,
        arrays=[words, image, held],
        settings=Settings(search=True),
    )
    return words, a.astype(np.float64), b.astype(np.float64)


E4M3, E5M2, BF16 = ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2, ml_dtypes.bfloat16
PRODUCTS = {
    "f16": Product("f16", (0, 0, 1), (np.float16, np.float16), (128, 16, 16)),
    "bf16 by f16": Product("f16", (1, 0, 1), (BF16, np.float16), (128, 24, 16)),
    "sums that go on": Product("f16", (0, 0, 1), (np.float16, np.float16), (128, 16, 16), keeps=True),
    "sums of half the size": Product(
        "f16", (0, 0, 1), (np.float16, np.float16), (128, 16, 16), keeps=True, more="ENABLE, 1"),
    "A transposed": Product("f16", (0, 0, 1), (np.float16, np.float16), (128, 16, 16), (True, False)),
    "B transposed": Product("f16", (0, 0, 1), (np.float16, np.float16), (128, 16, 16), (False, True)),
    "A negated": Product("f16", (0, 0, 1), (np.float16, np.float16), (128, 16, 16), negated=(True, False)),
    "64 rows": Product("f16", (0, 0, 1), (np.float16, np.float16), (64, 32, 16)),
    "64 rows, warps alone": Product("f16", (0, 0, 1), (np.float16, np.float16), (64, 64, 16), ws=True),
    "32 rows, warps alone": Product("f16", (0, 0, 1), (np.float16, np.float16), (32, 64, 16), ws=True),
    "A in tensor memory": Product("f16", (0, 0, 1), (np.float16, np.float16), (128, 16, 16), held=True),
    "rows of A shifted": Product(
        "f16", (0, 0, 1), (np.float16, np.float16), (128, 16, 16), held=True, shifted=True),
    "bytes in tensor memory": Product("f8f6f4", (0, 1, 1), (E4M3, E5M2), (128, 16, 32), held=True),
    "tf32": Product("tf32", (2, 2, 1), (np.float32, np.float32), (128, 16, 8)),
    "e4m3 by e5m2": Product("f8f6f4", (0, 1, 1), (E4M3, E5M2), (128, 16, 32)),
    "integers": Product("i8", (1, 0, 2), (np.int8, np.uint8), (128, 16, 32)),
    "sums of f16": Product("f16", (0, 0, 0), (np.float16, np.float16), (128, 16, 16)),
    "lanes that stay": Product(
        "f16", (0, 0, 1), (np.float16, np.float16), (128, 16, 16), more="{5, 0, 0, 0}, ENABLE"),
}  # fmt: skip


def placed(case, sums):
    """Return the sums (M, N) where the data path layouts D, E, F and G put them."""
    cells = np.zeros((128, 64), sums.dtype)
    m, n = sums.shape
    for i in range(m):
        for j in range(n):
            lane, column = i, j
            if case.ws and m == 64:
                lane, column = (i, j) if j < n // 2 else (i + 64, j - n // 2)
            elif case.ws and m == 32:
                lane, column = i + 32 * (j // (n // 4)), j % (n // 4)
            elif m == 64:
                lane = (i // 16) * 32 + i % 16
            cells[lane, column] = sums[i, j]
    return cells


@pytest.mark.parametrize("name", PRODUCTS)
def test_products(name):
    case = PRODUCTS[name]
    words, a, b = product(case)
    if case.kind == "tf32":
        a, b = (
            (x.astype(np.float32).view(np.uint32) & 0xFFFFE000).view(np.float32) for x in (a, b)
        )
    if case.shifted:
        a = np.concatenate((a[1:], a[-1:]))
    sums = a.astype(np.float64) @ b.astype(np.float64).T * (-1 if case.negated[0] else 1)
    if case.keeps:
        sums = sums + (0.5 if case.more else 1.0)
    if case.kind == "i8":
        expected = placed(case, sums.astype(np.int32)).view(np.uint32)
    elif case.types[2] == 0:
        expected = placed(case, sums.astype(np.float16)).view(np.uint16).astype(np.uint32)
    else:
        expected = placed(case, sums.astype(np.float32)).view(np.uint32)
    if case.keeps:
        written = placed(case, np.ones_like(sums)) == 0
        expected[written] = 0x3F800000
    if name == "lanes that stay":
        expected[[0, 2]] = 0
    shown = 32 if case.held else 64  # A has columns of its own
    np.testing.assert_array_equal(words[:, :shown], expected[:, :shown])


def test_sub_byte_operands_have_padded_groups():
    """16 elements of 4 or 6 bits begin each 16 bytes: codes of e2m1 by codes of e3m2."""
    k = np.arange(32)
    a = ((np.arange(128)[:, None] + k) % 16).astype(np.uint8)
    b = ((3 * np.arange(16)[:, None] + k) % 64).astype(np.uint8)

    def packed(matrix, bits):
        out = np.zeros(matrix.shape, np.uint8)
        for unit in range(0, matrix.shape[1], 16):
            whole = sum(matrix[:, unit + i].astype(object) << bits * i for i in range(16))
            for byte in range(bits * 2):
                out[:, unit + byte] = [int(w) >> 8 * byte & 255 for w in whole]
        return out

    case = Product("f8f6f4", (5, 4, 1), (np.uint8, np.uint8), (128, 16, 32))
    words = product(case, (packed(a, 4), packed(b, 6)))[0]
    numbers = [a.view(ml_dtypes.float4_e2m1fn), b.view(ml_dtypes.float6_e3m2fn)]
    sums = numbers[0].astype(np.float64) @ numbers[1].astype(np.float64).T
    np.testing.assert_array_equal(words[:, :16].view(np.float32), sums.astype(np.float32))


# ---- cluster launch control ---------------------------------------------------------------------

TAKE = """@%p8 mbarrier.arrive.expect_tx.shared.b64 _, [gate], 16;
@%p8 clusterlaunchcontrol.try_cancel.async.shared::cta.mbarrier::complete_tx::bytes.b128 [answer], [gate];
$W: mbarrier.try_wait.parity.shared.b64 %p1, [gate], %r15; @!%p1 bra $W; xor.b32 %r15, %r15, 1;
ld.shared.v2.b64 {%d6, %d7}, [answer]; mov.b128 %q0, {%d6, %d7}; fence.proxy.async.shared::cta; bar.sync 0;
clusterlaunchcontrol.query_cancel.is_canceled.pred.b128 %p2, %q0;
@%p2 clusterlaunchcontrol.query_cancel.get_first_ctaid::x.b32.b128 %r14, %q0; @%p2 bra $AGAIN;"""


@SCHEDULES
def test_each_block_runs_once_or_is_claimed_once(schedule):
    body = f"""{FIRST}{GATE} mov.u32 %r15, 0; mov.u32 %r14, %r1;
    $AGAIN: mad.lo.u32 %r16, %r14, %r2, %r0; mul.wide.u32 %d5, %r16, 4; add.u64 %d5, %d5, %d0;
    atom.global.add.u32 %r17, [%d5], 1; {TAKE}"""
    text = for_sm_100(body, registers=".reg .b128 %q<2>;")
    out = run(text, 64, 7, settings=Settings(schedule=schedule, search=True))
    assert (out == 1).all()


# ---- warps and programs -------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["min", "max", "min.abs", "max.NaN"])
def test_reductions_of_floats(form):
    floats = np.random.default_rng(1).standard_normal(64).astype(np.float32)
    floats[[3, 40]] = np.nan, -np.inf
    body = f"""ld.param.u64 %d4, [a]; mul.wide.u32 %d5, %r0, 4; add.u64 %d5, %d5, %d4; ld.global.f32 %f0, [%d5];
    redux.sync.{form}.f32 %r10, %f0, -1; {STORE}"""
    out = run(for_sm_100(body, BOTH), arrays=[floats]).view(np.float32).reshape(2, 32)
    inputs = np.abs(floats) if "abs" in form else floats
    fn = {"min": np.fmin, "max": np.fmax}[form[:3]] if "NaN" not in form else np.maximum
    expected = fn.reduce(inputs.reshape(2, 32), axis=1)
    np.testing.assert_array_equal(out, np.broadcast_to(expected[:, None], out.shape))


def test_accesses_of_256_bits_and_pairs_of_floats():
    room = np.arange(520, dtype=np.float32)
    source = room[-room.ctypes.data % 32 // 4 :][:512]
    body = f"""ld.param.u64 %d4, [a]; mul.wide.u32 %d5, %r0, 32; add.u64 %d5, %d5, %d4;
    ld.global.v4.b64 {{%d6, %d7, %d8, %d9}}, [%d5]; add.rn.f32x2 %d6, %d6, %d9;
    ld.global.v8.b32 {names("x", 8)}, [%d5]; mov.b64 {{%r10, %r11}}, %d6; st.global.v8.b32 [%d5], {{%r10, %r11, %x2, %x3, %x4, %x5, %x6, %x7}};
    {STORE}"""
    before = source.reshape(64, 8).copy()
    run(for_sm_100(body, BOTH, REGISTERS), arrays=[source])
    np.testing.assert_array_equal(source.reshape(64, 8)[:, :2], before[:, :2] + before[:, 6:])
    np.testing.assert_array_equal(source.reshape(64, 8)[:, 2:], before[:, 2:])


FOLDER = Path(__file__).parents[1] / "nvidia/language/programs"
BLACKWELL = [one for one in programs.collect(FOLDER) if one.launch.target == "sm_100"]


@pytest.mark.sampled(12)
@pytest.mark.parametrize("program", BLACKWELL, ids=str)
@pytest.mark.parametrize("schedule", ["latest", "random"])
def test_programs(program, schedule):
    target = registry().target("emu:sm_100")
    # docs/known-compiler-bugs.md: the search reports barriers of pairs of blocks from Triton 3.7 on.
    checks = not str(program).startswith("pair_of_blocks")
    with using(schedule=schedule, search=checks, timeout=60):
        program.run(target)


# The word of an allocation is read, and a bulk copy goes over it: the address may be on its way, data that came there later may not.
REUSED = f"""{FIRST} {GATE} @%p9 tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [room], 64; bar.sync 0;
ld.shared.u32 %r20, [room]; bar.sync 0; {{data}}
@%p8 mbarrier.arrive.expect_tx.shared.b64 _, [gate], 128;
@%p8 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [room], [%d0], 128, [gate];
{WAIT} add.u32 %r22, %r22, 1; {FREE} st.global.u32 [%d1], %r22;"""
DATA = """mov.u32 %r23, 7; st.shared.u32 [room], %r23; fence.proxy.async.shared::cta; bar.sync 0;
ld.shared.u32 %r22, [room]; bar.sync 0;"""


def test_data_over_the_address_of_tensor_memory_is_watched():
    settings = Settings(search=True)
    run(for_sm_100(REUSED.format(data="mov.u32 %r22, 1;")), 128, settings=settings)
    with pytest.raises(RaceError, match="nothing used the value before its warp arrived"):
        run(for_sm_100(REUSED.format(data=DATA)), 128, settings=settings)
