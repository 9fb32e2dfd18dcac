"""Global memory: arguments of all kinds, masks, atomics in order, and every illegal access named."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
import torch

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.errors import ArgumentError, GluonError
from gluon_sim.errors import DeviceAssertionError, OutOfBoundsError, SimulatorError
from gluon_sim.settings import using

rng = np.random.default_rng(5)
L1 = gl.constexpr(gl.BlockedLayout([1], [32], [4], [0]))


@gluon.jit
def copy(src, dst, n, BLOCK: gl.constexpr):
    o = gl.program_id(0) * BLOCK + gl.arange(0, BLOCK, layout=L1)
    gl.store(dst + o, gl.load(src + o, mask=o < n), mask=o < n)


@gluon.jit
def copy_all(src, dst, BLOCK: gl.constexpr):
    o = gl.program_id(0) * BLOCK + gl.arange(0, BLOCK, layout=L1)
    value = gl.load(src + o)
    gl.store(dst + o, value)


DTYPES = [
    torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int8, torch.uint8, torch.int16,
    torch.int32, torch.int64, torch.bool, torch.float8_e5m2, torch.float8_e4m3fn,
]  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_element_type_of_torch_is_copied_bit_for_bit(dtype, monkeypatch):
    monkeypatch.setenv("GLUON_TARGET", "sim:sm_90")  # the first with e4m3
    size = torch.empty(0, dtype=dtype).element_size()
    raw = torch.randint(0, 2 if dtype == torch.bool else 256, (1000 * size,), dtype=torch.uint8)
    src = raw.view(dtype)
    dst = torch.zeros(1000 * size, dtype=torch.uint8).view(dtype)
    copy[(8,)](src, dst, 1000, 128)
    assert torch.equal(src.view(torch.uint8), dst.view(torch.uint8))


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.int64, np.uint32, ml_dtypes.bfloat16])
def test_numpy_arrays_are_written_in_place(dtype):
    src = (
        rng.standard_normal(300).astype(dtype)
        if dtype is not np.uint32
        else np.arange(300, dtype=dtype)
    )
    dst = np.zeros_like(src)
    copy[(3,)](src, dst, 300, 128)
    assert (src.view(np.uint8) == dst.view(np.uint8)).all()


@gluon.jit
def fill(dst, value, n, BLOCK: gl.constexpr):
    o = gl.arange(0, BLOCK, layout=L1)
    gl.store(dst + o, value, mask=o < n)


def test_a_mask_leaves_the_rest_alone_and_scalars_arrive():
    dst = np.full(64, -1.0, np.float32)
    fill[(1,)](dst, 2.5, 10, 64)
    assert (dst[:10] == 2.5).all() and (dst[10:] == -1).all()
    dst = np.full(64, 5, np.int64)
    fill[(1,)](dst, 2**40 + 1, 64, 64)
    assert (dst == 2**40 + 1).all()


@gluon.jit
def rows(src, stride_m, stride_n, dst, M: gl.constexpr, N: gl.constexpr):
    layout: gl.constexpr = gl.BlockedLayout([1, 1], [1, 32], [4, 1], [1, 0])
    r = gl.arange(0, M, layout=gl.SliceLayout(1, layout))
    c = gl.arange(0, N, layout=gl.SliceLayout(0, layout))
    x = gl.load(src + r[:, None] * stride_m + c[None, :] * stride_n)
    gl.store(dst + r[:, None] * N + c[None, :], x)


def test_torch_views_keep_their_strides_and_offset():
    base = torch.arange(64 * 64, dtype=torch.float32).reshape(64, 64)
    view = base[3:35:2, 5:37].t()
    dst = torch.zeros(32, 16)
    rows[(1,)](view, view.stride(0), view.stride(1), dst, 32, 16)
    assert torch.equal(dst, view)


def test_a_view_of_a_numpy_array_reaches_its_owner_as_on_a_gpu():
    owner = np.arange(256, dtype=np.float32)
    dst = np.zeros(128, np.float32)
    copy_all[(1,)](owner[64:128], dst, 128)  # reads on into the owner's storage
    np.testing.assert_array_equal(dst, owner[64:192])


# ---- illegal accesses -----------------------------------------------------------------------


def test_out_of_bounds_load_names_op_line_program_element_and_argument():
    src, dst = np.zeros(100, np.float32), np.zeros(256, np.float32)
    with pytest.raises(OutOfBoundsError) as caught:
        copy_all[(2,)](src, dst, 128)
    text = str(caught.value)
    assert "load outside its argument's storage" in text
    assert "element (100,) of program (0, 0, 0)" in text
    assert "byte 400 of `src`, which has 400" in text
    assert "value = gl.load(src + o)" in text and "test_memory.py:" in text
    assert caught.value.argument == "src" and isinstance(caught.value, GluonError)
    assert caught.value.span is not None and "^" in text


def test_out_of_bounds_store_names_the_later_program():
    src, dst = torch.zeros(256), torch.zeros(130)
    with pytest.raises(
        OutOfBoundsError, match=r"store outside .* element \(2,\) of program \(1, 0, 0\)"
    ):
        copy_all[(2,)](src, dst, 128)


def test_the_caret_is_under_the_call_in_an_indented_kernel():
    @gluon.jit
    def kernel(p):
        gl.store(p + 7, 1)

    with pytest.raises(OutOfBoundsError) as caught:
        kernel[(1,)](np.zeros(4, np.int32))
    line, caret = str(caught.value).splitlines()[-2:]
    assert line.strip() == "gl.store(p + 7, 1)"
    assert caret.index("^") >= line.index("gl.store")


@gluon.jit
def before(src, dst):
    gl.store(dst, gl.load(src - 3))


def test_an_access_before_the_start_is_measured():
    with pytest.raises(OutOfBoundsError, match="12 bytes before the start of `src`"):
        before[(1,)](np.zeros(4, np.float32), np.zeros(4, np.float64))


@gluon.jit
def crooked(src, dst):
    address = src.to(gl.int64) + 2
    gl.store(dst, gl.load(address.to(gl.pointer_type(gl.float32))))


def test_a_misaligned_address_is_an_error():
    with pytest.raises(SimulatorError, match="no multiple of the element's 4 bytes"):
        crooked[(1,)](np.zeros(8, np.float32), np.zeros(4, np.float32))


def test_the_process_goes_on_after_an_error():
    for _ in range(3):
        with pytest.raises(OutOfBoundsError):
            copy_all[(1,)](np.zeros(4, np.int32), np.zeros(128, np.int32), 128)
    src, dst = np.arange(128, dtype=np.int32), np.zeros(128, np.int32)
    copy_all[(1,)](src, dst, 128)
    assert (src == dst).all()


def test_arrays_that_cannot_be_used_are_refused():
    good = np.zeros((8, 8), np.float32)
    with pytest.raises(ArgumentError, match="ontiguous"):
        copy_all[(1,)](good.T, good, 32)
    frozen = np.zeros(64, np.float32)
    frozen.setflags(write=False)
    with pytest.raises(GluonError, match="writ"):
        copy_all[(1,)](good, frozen, 64)


@gluon.jit
def asserting(a, BLOCK: gl.constexpr):
    o = gl.program_id(0) * BLOCK + gl.arange(0, BLOCK, layout=L1)
    x = gl.load(a + o)
    gl.device_assert(x < 100, "too large")


def test_device_assert_names_program_and_element():
    a = np.zeros(128, np.int32)
    a[70] = 100
    asserting[(2,)](a, 64)  # without debug it is not checked
    with pytest.raises(
        DeviceAssertionError, match=r"element \(6,\) of program \(1, 0, 0\): too large"
    ) as e:
        asserting[(2,)](a, 64, debug=True)
    assert 'gl.device_assert(x < 100, "too large")' in str(e.value)


@gluon.jit
def printing(a, BLOCK: gl.constexpr):
    o = gl.program_id(0) * BLOCK + gl.arange(0, BLOCK, layout=L1)
    gl.device_print("values", gl.load(a + o), gl.program_id(0))


def test_device_print_shows_whole_tensors_with_their_program(capfd):
    printing[(2,)](np.arange(8, dtype=np.int32), 4)
    out = capfd.readouterr().out
    assert "pid (0, 0, 0) values: [0, 1, 2, 3], 0" in out
    assert "pid (1, 0, 0) values: [4, 5, 6, 7], 1" in out


# ---- atomics --------------------------------------------------------------------------------


@gluon.jit
def tickets(counter, out, BLOCK: gl.constexpr):
    o = gl.program_id(0) * BLOCK + gl.arange(0, BLOCK, layout=L1)
    gl.store(out + o, gl.atomic_add(counter + o % 3, 1))


def test_atomics_see_lower_programs_and_elements_first():
    counter, out = np.zeros(3, np.int32), np.zeros(96, np.int32)
    tickets[(3,)](counter, out, 32)
    np.testing.assert_array_equal(out, np.arange(96) // 3)
    assert counter.tolist() == [32, 32, 32]


@gluon.jit
def every_atomic(p, BLOCK: gl.constexpr):
    x = gl.arange(0, BLOCK, layout=L1)
    gl.atomic_add(p + 0 * x, x)
    gl.atomic_max(p + 1 + 0 * x, x)
    gl.atomic_min(p + 2 + 0 * x, -x)
    gl.atomic_and(p + 3 + 0 * x, ~x)
    gl.atomic_or(p + 4 + 0 * x, x)
    gl.atomic_xor(p + 5 + 0 * x, x)
    gl.atomic_xchg(p + 6 + 0 * x, x)
    gl.atomic_add(p + 7 + 0 * x, x, mask=x < 4)


def test_every_kind_of_atomic():
    p = np.array([5, 5, 5, -1, 0, 1, 9, 0], np.int32)
    every_atomic[(2,)](p, 64)
    x = np.arange(64)
    assert p.tolist() == [
        5 + 2 * x.sum(), 63, -63, int(np.bitwise_and.reduce(~x)), 63, 1, 63, 12,
    ]  # fmt: skip


@gluon.jit
def float_sum(p, x, BLOCK: gl.constexpr):
    o = gl.arange(0, BLOCK, layout=L1)
    gl.atomic_add(p + 0 * o, gl.load(x + o))
    gl.atomic_max(p + 1 + 0 * o, gl.load(x + o))
    gl.atomic_min(p + 2 + 0 * o, gl.load(x + o))


def test_float_atomics():
    x = rng.standard_normal(128).astype(np.float32)
    p = np.zeros(3, np.float32)
    float_sum[(1,)](p, x, 128)
    np.testing.assert_allclose(p, [x.sum(), x.max(), x.min()], rtol=1e-5)


@gluon.jit
def half_sum(p, BLOCK: gl.constexpr):
    o = gl.arange(0, BLOCK, layout=L1)
    gl.atomic_add(p + 0 * o, gl.full((BLOCK,), 1.0, gl.float16, L1))


def test_half_atomics_round_at_every_addition():
    p = np.array([2047.0], np.float16)
    half_sum[(1,)](p, 32)
    assert p[0] == 2048  # 2048 + 1 rounds to even: it stays


@gluon.jit
def swap(p, out, BLOCK: gl.constexpr):
    o = gl.arange(0, BLOCK, layout=L1)
    gl.store(out + o, gl.atomic_cas(p + o, o % 2, o + 100))


def test_compare_and_swap_changes_matching_elements():
    p, out = np.zeros(32, np.int32), np.full(32, -1, np.int32)
    swap[(1,)](p, out, 32)
    assert (out == 0).all()
    x = np.arange(32)
    np.testing.assert_array_equal(p, np.where(x % 2 == 0, x + 100, 0))


def test_of_two_stores_to_one_place_the_later_program_stays():
    dst = np.zeros(1, np.int32)

    with using(races=False):
        last_writer[(37,)](dst)
    assert dst[0] == 36


@gluon.jit
def last_writer(dst):
    gl.store(dst, gl.program_id(0))
