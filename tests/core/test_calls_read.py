"""Arguments that the engine in C reads: such a call, once met, does not come to Python."""

import gc
import weakref
from typing import NamedTuple

import numpy
import pytest
import torch

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.errors import ArgumentError, LaunchError
from gluon_core.nvidia import NVMMASharedLayout
from gluon_core.nvidia.hopper import TensorDescriptor

pytestmark = [
    pytest.mark.once,
    pytest.mark.skipif(
        not hasattr(torch.Tensor, "__dlpack_c_exchange_api__"),
        reason="torch has no table of functions for DLPack",
    ),
]


class Pair(NamedTuple):
    source: object
    to: object


@gluon.jit
def scale(x, y, n, FACTOR: gl.constexpr, LAYOUT: gl.constexpr):
    i = gl.arange(0, 64, LAYOUT)
    gl.store(y + i, (gl.load(x + i, mask=i < n) * FACTOR[0]).to(y.dtype.element_ty), mask=i < n)


@gluon.jit
def copy(pair, n):
    i = gl.arange(0, 64, gl.BlockedLayout([1], [32], [4], [0]))
    gl.store(pair.to + i, gl.load(pair.source + i, mask=i < n), mask=i < n)


@gluon.jit
def rows(a, out):
    gl.store(out, a.shape[0])


@gluon.jit
def programs(out):
    if gl.program_id(0) + gl.program_id(1) == 0:
        gl.store(out, gl.num_programs(0) + 10 * gl.num_programs(1))


@pytest.fixture
def entries(monkeypatch):
    """Forget the kernels; return `entries(kernel)`, the list that gets the calls of it that come to Python."""
    monkeypatch.setenv("GLUON_TARGET", "sim:sm_90")
    for kernel in (scale, copy, rows, programs):
        kernel.forget()

    def of(kernel):
        calls, entry = [], kernel.dispatcher.entry
        monkeypatch.setattr(
            kernel.dispatcher, "entry", lambda *a, **k: calls.append(a) or entry(*a, **k)
        )
        return calls

    return of


def line(threads=32):
    return gl.BlockedLayout([1], [32], [threads // 8], [0])


def test_arrays_of_numpy(entries):
    calls, layout = entries(scale), line()
    for number in range(3):
        x, y = numpy.full(64, number, numpy.float32), numpy.zeros(64, numpy.float32)
        scale[(1,)](x, y, 64, (2,), layout)
        assert (y == 2 * number).all()
    assert len(calls) == 1
    scale[(1,)](x.astype(numpy.int32), numpy.zeros(64, numpy.int32), 64, (2,), layout)
    assert len(calls) == 2  # other elements, other code


@pytest.mark.parametrize("change", [lambda x: x[::2], lambda x: x.astype(">f4")])
def test_arrays_that_kernels_cannot_work_on(entries, change):
    x, y = numpy.ones(128, numpy.float32), numpy.zeros(64, numpy.float32)
    scale[(1,)](x, y, 64, (2,), line())
    with pytest.raises(ArgumentError, match=r"NumPy arrays must be|elements of this type; got >f4"):
        scale[(1,)](change(x), y, 64, (2,), line())
    x.flags.writeable = False
    with pytest.raises(ArgumentError, match="writeable=False"):
        scale[(1,)](x, y, 64, (2,), line())


def test_equal_layouts_and_tuples_are_one(entries):
    calls, (x, y) = entries(scale), torch.ones(2, 64)
    for _ in range(3):
        scale[(1,)](x, y, 64, tuple([2]), line())
    assert len(calls) == 1
    scale[(1,)](x, y, 64, tuple([2]), line(64), num_warps=8)
    assert len(calls) == 2


def test_equal_strings_and_layouts_in_tuples_are_one(entries):
    calls, (x, y) = entries(scale), torch.ones(2, 64)
    for _ in range(3):
        scale[(1,)](x, y, 64, (2, "".join(["o", "ne"]), line()), line())
    assert len(calls) == 1
    scale[(1,)](x, y, 64, (2, "other", line()), line())
    assert len(calls) == 2


def test_equal_constants_that_compile_to_other_code_are_two(entries):
    x, y = torch.ones(64, dtype=torch.int32), torch.zeros(64, dtype=torch.int32)
    forms = [scale[(1,)](x, y, 64, factor, line()) for factor in ((2,), (2.0,), (2,))]
    assert forms[0] is forms[2] is not forms[1]


def test_named_tuples(entries):
    calls = entries(copy)
    for number in range(3):
        pair = Pair(torch.full((64,), float(number)), torch.zeros(64))
        copy[(1,)](pair, 64)
        assert torch.equal(*pair)
    assert len(calls) == 1
    copy[(1,)](Pair(pair.source.int(), pair.to.int()), 64)
    assert len(calls) == 2


def test_descriptors_whose_layouts_are_made_anew(entries):
    calls, out = entries(rows), torch.zeros(1, dtype=torch.int32)
    for extent in (64, 32, 16):
        x = torch.zeros(extent, 64, dtype=torch.float16)
        rows[(1,)](TensorDescriptor.from_tensor(x, [16, 64], NVMMASharedLayout(128, 16, 2)), out)
        assert out.item() == extent
    assert len(calls) == 1
    rows[(1,)](TensorDescriptor.from_tensor(x, [16, 32], NVMMASharedLayout(64, 16, 2)), out)
    assert len(calls) == 2


def test_kept_launches_keep_their_grid(entries):
    calls, out = entries(programs), torch.zeros(1, dtype=torch.int32)
    one, two, asked = programs[1], programs[(2, 1, 1)], programs[lambda named: (3,)]
    for launch, expected in ((one, 11), (two, 12), (one, 11), (asked, 13), (programs[1, 2], 21)):
        launch(out)
        assert out.item() == expected
    assert len(calls) == 1
    with pytest.raises(LaunchError, match="grid"):
        programs[(1.0,)](out)
    with pytest.raises(LaunchError, match="grid"):
        programs[None](out)
    assert gc.is_tracked(asked)


def test_a_kernel_that_nobody_has_is_collected_with_its_calls(entries):
    kernel, out = gluon.jit(programs.fn), torch.zeros(1, dtype=torch.int32)
    kernel[2](out)
    kernel[2](out)
    calls = weakref.ref(kernel.dispatcher)
    kernel = gluon.jit(programs.fn)  # Triton 3.9 keeps the latest of each name
    gc.collect()
    assert calls() is None


def test_scalars_of_numpy_are_read_as_numbers(entries):
    calls, (x, y) = entries(scale), torch.ones(2, 64)
    scale[(1,)](x, y, 64, (2,), line())
    learned = scale.dispatcher.learn
    scale.dispatcher.learn = lambda *values: pytest.fail("the call is decided again")
    scale[(1,)](x, y, numpy.int64(64), (2,), line())
    scale.dispatcher.learn = learned
    assert len(calls) == 2 and torch.equal(y, 2 * x)
