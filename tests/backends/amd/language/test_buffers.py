"""Buffer operations of gl.amd: the same modules as upstream, and errors instead of aborts."""

from __future__ import annotations

import pytest

from gluon_core.errors import (
    CapabilityError,
    LayoutError,
)
from gluon_core.testing import TRITON_VERSION
from tests.backends.amd.language.test_units import SETUP, gpu
from tests.frontend.vendor_oracle import agree, parse, refuse
from tests.tables import mistakes

pytestmark = pytest.mark.once

BUFFER = (
    SETUP
    + """
@gluon.jit
def kernel(p, n, k, q):
    rows = gl.arange(0, 32, layout=gl.SliceLayout(1, L))
    columns = gl.arange(0, 64, layout=gl.SliceLayout(0, L))
    offsets = rows[:, None] * 64 + columns[None, :]
    mask = rows[:, None] < n
    x = gl.full([32, 64], {one}, p.dtype.element_ty, layout=L)
    {call}  # HERE
ARGS = (ptr({pointee}), 10, 1 << 40, ptr(gl.float64))
"""
)


def buffer(call, pointee="gl.float16", one="1"):
    return BUFFER.format(call=call, pointee=pointee, one=one)


LOADS = [
    "y = cdna3.buffer_load(p, offsets)",
    "y = cdna3.buffer_load(p, offsets, mask=mask)",
    "y = cdna3.buffer_load(p, offsets, mask, 0)",
    "y = cdna3.buffer_load(p, offsets, mask=mask, other=x, cache='.cg')",
    "y = cdna3.buffer_load(p, offsets, mask=n > 3, other=1.5)",
    "y = cdna3.buffer_load(p, offsets, cache='.cv')",
]
STORES = [
    "cdna3.buffer_store(x, p, offsets)",
    "cdna3.buffer_store(x, p, offsets, mask=mask)",
    "cdna3.buffer_store(stored_value=x, ptr=p, offsets=offsets, mask=mask, cache='.cs')",
    "cdna4.buffer_store(x, p, offsets, n > 3, '.wt')",
]


@pytest.mark.parametrize("call", LOADS)
def test_buffer_load(call):
    agree(buffer(call + "\n    gl.store(p + offsets, y)"))


@pytest.mark.parametrize("call", STORES)
def test_buffer_store(call):
    agree(buffer(call))


@pytest.mark.parametrize("target", ["gfx942", "gfx950"])
@pytest.mark.parametrize("pointee", ["gl.float32", "gl.bfloat16", "gl.int8", "gl.int64"])
def test_buffer_dtypes(pointee, target):
    call = "cdna3.buffer_store(cdna3.buffer_load(p, offsets, mask, 0), p, offsets.to(gl.uint32))"
    agree(buffer(call, pointee), gpu(target))


@pytest.mark.parametrize("target", ["gfx1100", "gfx1200"])
def test_buffers_on_rdna(target):
    """Upstream has no name for them there, but the operation is the same."""
    source = buffer("cdna3.buffer_store(cdna3.buffer_load(p, offsets), p, offsets)")
    agree(source.replace("[8, 8]", "[4, 8]"), gpu(target))


def test_scalars_are_stored_everywhere():
    one = buffer("cdna3.buffer_store(1.0, p, offsets)")
    assert parse(one) == parse(buffer("cdna3.buffer_store(x, p, offsets)"))


ATOMICS = [
    ("add", ["gl.float16", "gl.float32", "gl.float64", "gl.uint32", "gl.uint64"]),
    ("max", ["gl.float64", "gl.int32", "gl.uint32", "gl.int64", "gl.uint64"]),
    ("min", ["gl.float64", "gl.int32", "gl.uint32"]),
    ("and", ["gl.int32", "gl.int64"]),
    ("or", ["gl.int32"]),
    ("xor", ["gl.int64"]),
    ("xchg", ["gl.int32", "gl.int64"]),
]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("op, dtype", [(op, t) for op, dtypes in ATOMICS for t in dtypes])
def test_buffer_atomics(op, dtype):
    source = buffer(
        f"y = cdna3.buffer_atomic_{op}(p, offsets, x)\n"
        f"    y = cdna3.buffer_atomic_{op}(p, offsets, y, mask=mask)\n"
        f"    y = cdna3.buffer_atomic_{op}(p, offsets, y, mask, 'relaxed', 'cta')\n"
        f"    y = cdna3.buffer_atomic_{op}(p, offsets, y, sem='acquire', scope='sys')\n"
        "    gl.store(p + offsets, y)",
        dtype,
    )
    needed = {"xchg": (3, 9), "max": (3, 8), "min": (3, 8)}.get(op, (3, 6))
    if TRITON_VERSION >= needed or (op != "xchg" and "uint" in dtype):
        agree(source)
    else:
        with pytest.raises(CapabilityError, match=rf"buffer_atomic_{op}.*Triton >= {needed[0]}"):
            parse(source)


def test_bfloat16_atomics_are_for_cdna4():
    source = buffer("cdna4.buffer_atomic_add(p, offsets, x)", "gl.bfloat16")
    agree(source, gpu("gfx950"))
    refuse(source, CapabilityError, "amd.buffer_atomics_bf16.*gfx950", gpu("gfx942"))


@pytest.mark.parametrize("op", ["add", "and", "or"])
def test_signs_of_integers_do_not_matter(op):
    """Upstream knows `add` of unsigned and the others of signed integers only."""
    call = f"cdna3.buffer_atomic_{op}(p, offsets, x)"
    assert parse(buffer(call, "gl.int32")) == parse(buffer(call, "gl.uint32"))


OTHER = "gl.BlockedLayout([8, 1], [8, 8], [1, 4], [0, 1])"


@mistakes("""
error | match | call
DtypeError | ptr: must be a scalar | cdna3.buffer_load(p + offsets, offsets)
DtypeError | ptr: not a pointer | cdna3.buffer_load(n, offsets)
DtypeError | offsets.*32 bits | cdna3.buffer_load(p, offsets.to(gl.int64))
DtypeError | offsets | cdna3.buffer_load(p, x)
ShapeError | offsets: a scalar | cdna3.buffer_load(p, n)
DtypeError | mask: must be boolean | cdna3.buffer_load(p, offsets, mask=offsets)
ArgumentError 3.8+ | other: needs a mask | cdna3.buffer_load(p, offsets, other=0)
ArgumentError | cache | cdna3.buffer_load(p, offsets, mask, cache='.xy')
ShapeError | mask: does not match | cdna3.buffer_load(p, offsets, mask=rows < n)
LayoutError | layout | cdna3.buffer_load(p, gl.convert_layout(offsets, OTHER), mask)
DtypeError | stored_value: the dtype | cdna3.buffer_store(offsets, p, offsets)
DtypeError | stored_value: the dtype | cdna3.buffer_store(x, q, offsets)
ArgumentError | cache | cdna3.buffer_store(x, p, offsets, cache='.ca')
LayoutError | layout | cdna3.buffer_store(gl.convert_layout(x, OTHER), p, offsets)
DtypeError | buffer_atomic_max does not | cdna3.buffer_atomic_max(p, offsets, x)
DtypeError | buffer_atomic_xchg does not | cdna3.buffer_atomic_xchg(p, offsets, x)
DtypeError | value: the dtype | cdna3.buffer_atomic_add(p, offsets, offsets)
ArgumentError | sem | cdna3.buffer_atomic_add(p, offsets, x, sem='now')
ArgumentError | scope | cdna3.buffer_atomic_add(p, offsets, x, scope='here')
""")
def test_buffer_errors(call, error, match):
    refuse(buffer(call.replace("OTHER", OTHER)), error, match)


def test_pairs_of_halves():
    source = buffer("cdna3.buffer_atomic_add(p, offsets, x)").replace(
        "[1, 8], [8, 8]", "[1, 1], [1, 64]"
    )
    refuse(source, LayoutError, "adds pairs")


def test_no_buffers_on_nvidia():
    source = buffer("cdna3.buffer_load(p, offsets)").replace("[8, 8]", "[4, 8]")
    refuse(source, CapabilityError, "amd.buffer_ops", "nvidia:sm_90")
