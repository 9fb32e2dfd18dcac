"""Single instructions that move values between lanes, and those of matrix units."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from tests.backends.emu.assembly import lanes_of, one, run, words

pytestmark = pytest.mark.once


def lane_sources(control: str, lanes: int):
    """For each lane the lane it reads by the ISA's table of controls, None for none."""
    name, _, value = control.partition(":")
    sources = []
    for lane in range(lanes):
        row, lane_in_row = lane // 16 * 16, lane % 16
        if name == "row_shl":
            sources.append(
                row + lane_in_row + int(value) if lane_in_row + int(value) < 16 else None
            )
        elif name == "row_shr":
            sources.append(row + lane_in_row - int(value) if lane_in_row >= int(value) else None)
        elif name == "row_ror":
            sources.append(row + (lane_in_row - int(value)) % 16)
        elif name == "quad_perm":
            sources.append(lane // 4 * 4 + int(value[1 + 2 * (lane % 4)]))
        elif name == "row_mirror":
            sources.append(row + 15 - lane_in_row)
        elif name == "row_half_mirror":
            sources.append(lane // 8 * 8 + 7 - lane % 8)
        elif name == "row_bcast" and value == "15":
            sources.append(row - 1 if row else None)
        elif name == "row_bcast":
            sources.append(31 if lane >= 32 else None)
        elif name == "row_xmask":
            sources.append(row + (lane_in_row ^ int(value)))
        else:
            sources.append(row + int(value))
    return sources


@pytest.mark.parametrize("control, arch", [
    ("row_shl:3", "gfx942"), ("row_shr:1", "gfx942"), ("row_ror:5", "gfx942"),
    ("quad_perm:[1,0,3,2]", "gfx942"), ("row_mirror", "gfx942"), ("row_half_mirror", "gfx942"),
    ("row_bcast:15", "gfx942"), ("row_bcast:31", "gfx942"), ("row_newbcast:4", "gfx942"),
    ("row_share:4", "gfx1100"), ("row_xmask:5", "gfx1201"), ("row_shr:8", "gfx1250"),
])  # fmt: skip
@pytest.mark.parametrize("bound", [True, False])
def test_dpp(control, arch, bound):
    lanes = lanes_of(arch)
    value, old = words(1, lanes), words(2, lanes)
    on = np.random.default_rng(3).random(lanes) < 0.8
    more = "row_mask:0xb bank_mask:0xd" + (" bound_ctrl:1" if bound else "")
    text = f"v_mov_b32_dpp v1, v0 {control} {more}"
    (got,) = one(text, {"v0": value, "v1": old}, "v1", arch=arch, exec_mask=on)
    for lane, source in enumerate(lane_sources(control, lanes)):
        wanted = old[lane]
        there = source is not None and on[source]
        chosen = 0xB >> lane // 16 & 1 and 0xD >> lane % 16 // 4 & 1
        if on[lane] and chosen and (there or bound):
            wanted = value[source] if there else 0
        assert got[lane] == wanted, lane


@pytest.mark.parametrize("select", ["BYTE_0", "BYTE_3", "WORD_1"])
@pytest.mark.parametrize("unused", ["UNUSED_PAD", "UNUSED_PRESERVE"])
def test_sdwa(select, unused):
    a, b, old = words(1), words(2), words(3)
    text = (
        f"v_or_b32_sdwa v2, v0, v1 dst_sel:WORD_1 dst_unused:{unused} "
        f"src0_sel:{select} src1_sel:BYTE_1"
    )
    (got,) = one(text, {"v0": a, "v1": b, "v2": old}, "v2")
    shift, mask = {"BYTE_0": (0, 255), "BYTE_3": (24, 255), "WORD_1": (16, 65535)}[select]
    value = (a >> np.uint32(shift) & np.uint32(mask)) | (b >> np.uint32(8) & np.uint32(255))
    kept = old & np.uint32(0xFFFF) if unused == "UNUSED_PRESERVE" else np.uint32(0)
    np.testing.assert_array_equal(got, value << np.uint32(16) | kept)


def test_readlane_and_friends():
    value = words(1)
    on = np.arange(64) >= 5
    assert one("v_readfirstlane_b32 s2, v0", {"v0": value}, "s2", exec_mask=on)[0] == value[5]
    assert one("v_readlane_b32 s2, v0, 63", {"v0": value}, "s2")[0] == value[63]
    (below,) = one("v_mbcnt_lo_u32_b32 v1, -1, 0", {}, "v1")
    np.testing.assert_array_equal(below, np.minimum(np.arange(64), 32))
    (all_below,) = one("v_mbcnt_hi_u32_b32 v1, -1, v0", {"v0": below}, "v1")
    np.testing.assert_array_equal(all_below, np.arange(64))


def test_permlane_swap():
    a, b = words(1), words(2)
    x, y = one("v_permlane32_swap_b32 v0, v1", {"v0": a, "v1": b}, "v0", "v1", arch="gfx950")
    np.testing.assert_array_equal(x, np.concatenate((a[:32], b[:32])))
    np.testing.assert_array_equal(y, np.concatenate((a[32:], b[32:])))


def test_permlanex16():
    a = words(1, 32)
    text = "v_permlanex16_b32 v1, v0, s0, s1"
    picks = np.random.default_rng(0).integers(0, 16, 16)
    table = sum(int(p) << 4 * i for i, p in enumerate(picks))
    registers = {"v0": a, "s0": table & 0xFFFFFFFF, "s1": table >> 32}
    (got,) = one(text, registers, "v1", arch="gfx1201")
    np.testing.assert_array_equal(got, a[np.concatenate((16 + picks, picks))])


def test_bpermute_and_permute():
    a = words(1)
    to = np.random.default_rng(0).permutation(64).astype(np.uint32)
    (pulled,) = one("ds_bpermute_b32 v2, v0, v1", {"v0": to * np.uint32(4), "v1": a}, "v2")
    np.testing.assert_array_equal(pulled, a[to])
    (pushed,) = one("ds_permute_b32 v2, v0, v1", {"v0": to * np.uint32(4), "v1": a}, "v2")
    np.testing.assert_array_equal(pushed[to], a)


def test_swizzle():
    a = words(1, 32)
    for text, lane in (("swizzle(SWAP,4)", np.arange(32) ^ 4), ("swizzle(BROADCAST,8,2)", np.arange(32) // 8 * 8 + 2)):  # fmt: skip
        (got,) = one(f"ds_swizzle_b32 v1, v0 offset:{text}", {"v0": a}, "v1", arch="gfx1250")
        np.testing.assert_array_equal(got, a[lane])


def test_a_dual_instruction_reads_before_it_writes():
    a, b = words(1, 32), words(2, 32)
    text = "v_dual_mov_b32 v0, v1 :: v_dual_add_nc_u32 v1, v0, v1"
    x, y = one(text, {"v0": a, "v1": b}, "v0", "v1", arch="gfx1100")
    np.testing.assert_array_equal(x, b)
    np.testing.assert_array_equal(y, a + b)


def test_comparisons_leave_inactive_lanes_clear():
    a, b = words(1), words(2)
    on = np.random.default_rng(0).random(64) < 0.5
    (got,) = one("v_cmp_lt_u32_e32 vcc, v0, v1", {"v0": a, "v1": b}, "vcc", exec_mask=on)
    np.testing.assert_array_equal(got, (a < b) & on)
    a, b, on = words(1, 32), words(2, 32), on[:32]
    text, registers = "v_cmpx_lt_i32_e32 v0, v1", {"v0": a, "v1": b}
    (mask,) = one(text, registers, "exec", arch="gfx1100", exec_mask=on)
    np.testing.assert_array_equal(mask, (a.view(np.int32) < b.view(np.int32)) & on)


# -- matrices --------------------------------------------------------------------------------------


@pytest.mark.parametrize("size, depth, arch", [(32, 8, "gfx942"), (16, 16, "gfx942"), (16, 32, "gfx950"), (32, 16, "gfx950")])  # fmt: skip
def test_mfma(size, depth, arch):
    """By the lane maps of the ISA: rows of A and columns of B by lane, K along the elements."""
    rng = np.random.default_rng(0)
    a = rng.integers(-8, 8, (size, depth)).astype(np.float16)
    b = rng.integers(-8, 8, (depth, size)).astype(np.float16)
    held = size * depth // 64
    registers = {}
    for name, matrix in (("a", a), ("b", b.T)):
        lanes = np.stack(
            [matrix[lane % size, lane // size * held :][:held] for lane in range(64)]
        ).astype(np.float16)
        for i, word in enumerate(lanes.view(np.uint32).T):
            registers[f"v{i + (0 if name == 'a' else 8)}"] = word.copy()
    words_ = held // 2
    count = size * size // 64
    text = (
        f"v_mfma_f32_{size}x{size}x{depth}_f16 v[16:{15 + count}], v[0:{words_ - 1}], "
        f"v[8:{7 + words_}], 1.0"
    )
    got = one(text, registers, *(f"v{16 + i}" for i in range(count)), arch=arch)
    result = a.astype(np.float32) @ b.astype(np.float32) + 1
    for i in range(count):
        for lane in range(64):
            row = 4 * (lane // size) + i % 4 + (4 * 64 // size) * (i // 4)
            assert got[i].view(np.float32)[lane] == result[row, lane % size]


@pytest.mark.parametrize("chosen", [0, 1])
@pytest.mark.parametrize("size, depth, kind", [(16, 32, "f16"), (32, 16, "f16"), (16, 64, "i8"), (32, 32, "i8")])  # fmt: skip
def test_sparse_products(size, depth, kind, chosen):
    """Two of four elements along K of A are given, with two bits for the place of each."""
    rng = np.random.default_rng(1)
    dtype, result = (np.float16, np.float32) if kind == "f16" else (np.int8, np.int32)
    places = np.sort(rng.permuted(np.tile(np.arange(4), (size, depth // 4, 1)), axis=2)[..., :2])
    kept = rng.integers(-8, 8, places.shape).astype(dtype)
    a = np.zeros((size, depth // 4, 4), dtype)
    np.put_along_axis(a, places, kept, 2)
    a, b = a.reshape(size, depth), rng.integers(-8, 8, (depth, size)).astype(dtype)
    held = size * depth // 64  # along K, of a lane
    registers = {"v8": np.zeros(64, np.uint32)}
    for lane in range(64):
        row, first = lane % size, lane // size * held
        mine = kept[row, first // 4 : (first + held) // 4].ravel()
        bits = places[row, first // 4 : (first + held) // 4].ravel()
        number = sum(int(bit) << 2 * i for i, bit in enumerate(bits))
        others = 0xA5A5A5A5 & ~(((1 << held) - 1) << chosen * held)
        registers["v8"][lane] = number << chosen * held | others
        for name, part in ((0, mine), (4, b[first : first + held, row])):
            for i, word in enumerate(np.ascontiguousarray(part).view(np.uint32)):
                registers.setdefault(f"v{name + i}", np.zeros(64, np.uint32))[lane] = word
    count = size * size // 64
    old = rng.integers(-99, 99, (count, 64)).astype(result)
    registers.update({f"v{16 + i}": old[i].view(np.uint32) for i in range(count)})
    text = (
        f"v_smfmac_{'f32' if kind == 'f16' else 'i32'}_{size}x{size}x{depth}_{kind} "
        f"v[16:{15 + count}], v[0:1], v[4:7], v8 abid:{chosen}"
    )
    got = one(text, registers, *(f"v{16 + i}" for i in range(count)))
    wanted = a.astype(np.float64) @ b.astype(np.float64)
    for i in range(count):
        for lane in range(64):
            row = 4 * (lane // size) + i % 4 + (4 * 64 // size) * (i // 4)
            assert got[i].view(result)[lane] == wanted[row, lane % size] + old[i][lane]


NARROW = {
    "fp8": ml_dtypes.float8_e4m3fn,
    "bf8": ml_dtypes.float8_e5m2,
    "fp4": ml_dtypes.float4_e2m1fn,
}


@pytest.mark.parametrize("kind", list(NARROW))
def test_conversions_of_eight(kind):
    """To float32 by a byte of scale, and back over a float's exponent."""
    values = np.random.default_rng(4).uniform(-6, 6, (8, 32)).astype(NARROW[kind])
    width = 4 if kind == "fp4" else 8
    codes = values.view(np.uint8).astype(np.uint64) & np.uint64((1 << width) - 1)
    whole = np.bitwise_or.reduce(codes << (width * np.arange(8, dtype=np.uint64))[:, None])
    words = {"v0": (whole & np.uint64(0xFFFFFFFF)).astype(np.uint32)}
    source = "v0"
    if width == 8:
        words["v1"], source = (whole >> np.uint64(32)).astype(np.uint32), "v[0:1]"
    text = f"v_cvt_scale_pk8_f32_{kind} v[8:15], {source}, v2 scale_sel:1"
    scale = {"v2": np.full(32, 0x55008255, np.uint32)}
    results = one(text, {**words, **scale}, *[f"v{8 + i}" for i in range(8)], arch="gfx1250")
    wanted = values.astype(np.float32) * np.float32(8)  # 0x82 - 127 = 3
    np.testing.assert_array_equal(np.stack(results).view(np.float32), wanted)
    registers = {f"v{8 + i}": wanted[i].view(np.uint32) for i in range(8)}
    text = f"v_cvt_scalef32_pk8_{kind}_f32 {source}, v[8:15], v2"
    registers["v2"] = np.full(32, 8.0, np.float32).view(np.uint32)
    for got, word in zip(one(text, registers, *words, arch="gfx1250"), words.values()):
        np.testing.assert_array_equal(got, word)


def test_a_clock_of_cycles_goes_on():
    out = np.zeros(32, np.uint32)
    run(
        """
    s_load_b64 s[4:5], s[0:1], 0x0
    s_getreg_b32 s6, hwreg(HW_REG_SHADER_CYCLES_LO)
    s_getreg_b32 s7, hwreg(HW_REG_SHADER_CYCLES_LO)
    s_sub_co_u32 s6, s7, s6
    v_mov_b32_e32 v1, s6
    v_lshlrev_b32_e32 v0, 2, v0
    s_wait_kmcnt 0x0
    global_store_b32 v0, v1, s[4:5]
    """,
        out,
        arch="gfx1201",
    )
    assert (out > 0).all()
