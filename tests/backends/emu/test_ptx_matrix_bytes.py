"""`ldmatrix` and `stmatrix` of bytes, of sm_100: each byte at its place, by the fragments of `mma` that they load and store."""

from __future__ import annotations

import numpy as np
import pytest

from tests.backends.emu.test_ptx_machine import module, run

pytestmark = pytest.mark.once
SHARED = ".shared .align 128 .b8 room[1024];"
LANE = np.arange(32)


def kernel(body):
    start = "mov.u32 %r5, room; shl.b32 %r6, %r0, 4; add.u32 %r6, %r5, %r6;"  # each thread a row of 16 bytes
    return module(start + body, SHARED, ".param .u64 out, .param .u64 a").replace(
        "sm_90a", "sm_100a"
    )


def loaded(rows, form, registers):
    """Return the bytes (register, lane, 4) that a form loads from rows of 16 bytes."""
    copy = (
        "ld.param.u64 %d4, [a]; shl.b32 %r7, %r0, 4; cvt.u64.u32 %d5, %r7; add.s64 %d6, %d4, %d5;"
    )
    copy += "".join(
        f"ld.global.u32 %r8, [%d6+{n}]; st.shared.u32 [%r6+{n}], %r8;" for n in (0, 4, 8, 12)
    )
    names = "{" + ", ".join(f"%r{20 + n}" for n in range(registers)) + "}"
    words = []
    for number in range(registers):
        body = f"{copy} bar.sync 0; ldmatrix.sync.aligned.{form} {names}, [%r6]; st.global.u32 [%d1], %r{20 + number};"
        words.append(run(kernel(body), threads=32, arrays=[rows]))
    return np.stack(words).view(np.uint8).reshape(registers, 32, 4)


@pytest.mark.parametrize("count", [1, 2])
def test_square_matrices_come_transposed(count):
    rows = np.random.default_rng(1).integers(0, 256, (32, 16)).astype(np.uint8)
    got = loaded(rows, f"m16n16.x{count}.trans.shared.b8", 2 * count)
    for number in range(count):
        columns = rows[
            16 * number : 16 * number + 16
        ].T  # a column of the matrix is a row of the fragment
        for half in (0, 1):
            wanted = columns[8 * half : 8 * half + 8].reshape(8, 4, 4).reshape(32, 4)
            np.testing.assert_array_equal(got[2 * number + half], wanted)


@pytest.mark.parametrize("form, bits", [("b4x16_p64", 4), ("b6x16_p32", 6)])
@pytest.mark.parametrize("shape, count", [("m8n16", 1), ("m8n16", 4), ("m16n16", 2)])
def test_narrow_elements_get_a_byte_each(form, bits, shape, count):
    elements = np.random.default_rng(2).integers(0, 1 << bits, (32, 16))
    rows = np.zeros((32, 16), np.uint8)
    for row, numbers in zip(rows, elements):
        whole = sum(int(n) << bits * i for i, n in enumerate(numbers))
        row[:] = np.frombuffer(whole.to_bytes(16, "little"), np.uint8)
    square = shape == "m16n16"
    trans = ".trans" * square
    got = loaded(rows, f"{shape}.x{count}{trans}.shared.b8x16.{form}", count * (1 + square))
    for number in range(count):
        if square:
            wanted = elements[16 * number : 16 * number + 16].T.reshape(2, 32, 4)
            np.testing.assert_array_equal(got[2 * number : 2 * number + 2], wanted)
        else:
            wanted = elements[8 * number : 8 * number + 8].reshape(32, 4)
            np.testing.assert_array_equal(got[number], wanted)


@pytest.mark.parametrize("count", [1, 2, 4])
def test_products_are_stored_transposed(count):
    names = "{" + ", ".join(f"%r{20 + n}" for n in range(count)) + "}"
    fill = "".join(
        f"mad.lo.u32 %r{20 + n}, %r0, 0x04040404, {0x03020100 + 0x80808080 * (n % 2)};"
        for n in range(count)
    )
    body = (
        f"{fill} stmatrix.sync.aligned.m16n8.x{count}.trans.shared.b8 [%r6], {names}; bar.sync 0;"
    )
    stored = []
    for word in range(4):
        text = kernel(f"{body} ld.shared.u32 %r10, [%r6+{4 * word}]; st.global.u32 [%d1], %r10;")
        stored.append(run(text, threads=32, arrays=[np.zeros(4, np.uint32)]))
    rows = np.stack(stored, -1).view(np.uint8).reshape(32, 16)
    for number in range(count):
        product = np.zeros(
            (16, 8), np.uint8
        )  # two neighbours of a row and of the row eight below, as `mma` leaves them
        for byte in range(4):
            place = LANE // 4 + 8 * (byte // 2), 2 * (LANE % 4) + byte % 2
            product[place] = 4 * LANE + byte + 0x80 * (number % 2)
        np.testing.assert_array_equal(rows[8 * number : 8 * number + 8], product.T)
