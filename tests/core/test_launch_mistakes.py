"""Slips of a first hour: each error names the mistake in the user's words, and its remedy."""

from __future__ import annotations

import numpy as np
import pytest

import gluon_core as gluon
from gluon_core import errors
from gluon_core import language as gl
from tests.frontend.wrong import says
from tests.tables import mistakes

pytestmark = pytest.mark.once
ROW = gl.BlockedLayout([1], [32], [4], [0])


@gluon.jit
def fills(x, n, BLOCK: gl.constexpr, layout: gl.constexpr = ROW):
    offsets = gl.program_id(0) * BLOCK + gl.arange(0, BLOCK, layout=layout)
    gl.store(x + offsets, 1.0, mask=offsets < n)


@gluon.jit
def by_name(x, *, BLOCK: gl.constexpr):
    gl.store(x + gl.arange(0, BLOCK, layout=gl.BlockedLayout([1], [32], [4], [0])), 1.0)


LAUNCHES = {
    "a float as the grid": (
        lambda x: fills[128 / 64](x, 128, 64),
        errors.LaunchError,
        "got 2.0. Divide by gluon.cdiv(n, block), which rounds up, or by //.",
    ),
    "a float of a function": (
        lambda x: fills[lambda meta: (128 / meta["BLOCK"],)](x, 128, 64),
        errors.LaunchError,
        "got (2.0,). Divide by gluon.cdiv",
    ),
    "text as the grid": (lambda x: fills["2"](x, 128, 64), errors.LaunchError, "got '2'"),
    "an argument too many": (
        lambda x: fills[1](x, 128, 64, ROW, 7),
        errors.CallError,
        "fills() takes from 0 to 4 positional arguments but 5 were given; expected x, n, BLOCK, layout",
    ),
    "by place and not by name": (
        lambda x: by_name[1](x, 64),
        errors.CallError,
        "by_name() takes from 0 to 1 positional arguments but 2 were given",
    ),
    "a misspelt constexpr": (
        lambda x: fills[1](x, 128, BLOK=64),
        errors.CallError,
        "fills() missing 1 required argument: 'BLOCK'; got BLOK. Did you mean 'BLOCK'?",
    ),
    "a keyword of another name": (
        lambda x: fills[1](x, 128, size=64),
        errors.CallError,
        "missing 1 required argument: 'BLOCK'; expected x, n, BLOCK, layout, got size",
    ),
    "a misspelt option": (
        lambda x: fills[1](x, 128, 64, num_warp=4),
        errors.OptionError,
        "Did you mean 'num_warps'",
    ),
}


@pytest.mark.parametrize("name", LAUNCHES)
def test_a_launch_that_does_not_fit(name, monkeypatch):
    monkeypatch.setenv("GLUON_TARGET", "sim:sm_90")  # an array of the host, though there be a GPU
    launch, cls, text = LAUNCHES[name]
    with pytest.raises(cls) as caught:
        launch(np.zeros(256, np.float32))
    assert text in str(caught.value)
    assert len(caught.traceback) <= 4, "frames of the machinery are hidden"
    if cls is errors.CallError:
        assert isinstance(caught.value, TypeError)


def test_a_layout_of_other_lanes():
    with pytest.raises(errors.LayoutError, match="gl.portable.blocked_layout"):
        fills[1](np.zeros(256, np.float32), 128, 64, target="sim:gfx942")


@mistakes("""
id | error | caret | words | code
bits of a loaded float | DtypeError | gl.load(x + o) & 1 | works on integers && gl.load(x + o).to(gl.int32) | gl.load(x + o) & 1
exponential of integers | DtypeError | gl.exp(o) | needs a floating dtype && .to(gl.float32) | gl.exp(o)
exponential of halves | DtypeError | gl.exp(h) | expected fp32 or fp64, got fp16 && h.to(gl.float32) |
    h = v.to(gl.float16)
    gl.exp(h)  # <--
a mask of another shape | ShapeError | - | mask: does not match the pointer; expected [128], got [64] | gl.store(x + o, v, mask=gl.arange(0, 64, L) < n)
a mask of another layout | LayoutError | - | mask: the layout differs from that of the pointers && gl.convert_layout |
    w = gl.arange(0, 128, gl.BlockedLayout([2], [32], [4], [0]))
    gl.load(x + o, mask=w < n)  # <--
other of another shape | ShapeError | - | other: does not match the pointer; expected [128], got [64] | gl.load(x + o, mask=o < n, other=gl.zeros([64], gl.float32, L))
append | TraceError | vs.append | 'vs' is a tuple in a kernel && vs = vs + (item,) | vs = [] ;; vs.append(v)  # <--
value before pointer | DtypeError | gl.store(v, x + o) | the pointer and the value are swapped && gl.store(pointer, value) | gl.store(v, x + o)
number before pointer | DtypeError | gl.atomic_add(1.0, x + o) | the pointer and the value are swapped && gl.atomic_add(pointer, value) | gl.atomic_add(1.0, x + o)
""")
def test_a_slip_in_a_kernel(error, caret, words, code, tmp_path):
    says(error, caret, words, code, tmp_path)
