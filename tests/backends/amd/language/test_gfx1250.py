"""gl.amd.gfx1250 and cdna5: the same modules as upstream, and errors instead of aborts."""

from __future__ import annotations

import importlib
import inspect
import operator

import pytest

import gluon_core
from gluon_core.errors import (
    ArgumentError,
    CapabilityError,
    LayoutError,
)
from gluon_core.testing import TRITON_VERSION
from tests.frontend.vendor_oracle import agree, before, parse, refuse, since
from tests.tables import mistakes

SETUP = """
from GLUON.language.amd import gfx1250
from GLUON.language.amd.gfx1250 import async_copy, mbarrier, tdm
TARGET = GPUTarget("hip", "gfx1250", 32)
L = gl.constexpr(gl.BlockedLayout([1, 8], [4, 8], [4, 1], order=[1, 0]))
PLAIN = gl.constexpr(gl.SwizzledSharedLayout(1, 1, 1, [1, 0]))
PADDED = gl.constexpr(gl.PaddedSharedLayout.with_identity_for([[64, 8]], [32, 64], [1, 0]))
"""


def lines(*statements):
    return "".join(f"    {line}\n" for line in statements)


# -- asynchronous copies, barriers, clusters --------------------------------------------------------

COPY = (
    SETUP
    + """
@gluon.jit
def kernel(p, q, n):
    bar = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    rows = gl.arange(0, 32, layout=gl.SliceLayout(1, L))
    columns = gl.arange(0, 64, layout=gl.SliceLayout(0, L))
    offsets = rows[:, None] * 64 + columns[None, :]
    smem = gl.allocate_shared_memory({dtype}, [32, 64], {layout})
    x = gl.full([32, 64], 1.5, {dtype}, layout=L)
{body}
ARGS = (ptr({dtype}), ptr(gl.int32), 10)
"""
)


def copy(*statements, dtype="gl.float16", layout="PLAIN", setup=""):
    return setup + COPY.format(body=lines(*statements), dtype=dtype, layout=layout)


LOADS = [
    "async_copy.global_to_shared(smem, p + offsets)",
    "async_copy.global_to_shared(smem, p + offsets, mask=rows[:, None] < n)",
    "async_copy.global_to_shared(smem, p + offsets, mask=n > 3, other=0.0, cache_modifier='.cg')",
    "async_copy.global_to_shared(smem, p + offsets, rows[:, None] < n, x, '.cv')",
]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("call", LOADS)
@pytest.mark.parametrize("layout", ["PLAIN", "PADDED"])
def test_global_to_shared(call, layout):
    agree(copy(call, "async_copy.commit_group()", "async_copy.wait_group(1)", layout=layout))


STORES = [
    "async_copy.shared_to_global(p + offsets, smem)",
    "async_copy.shared_to_global(p + offsets, smem, mask=rows[:, None] < n)",
    "async_copy.shared_to_global(p + offsets, smem, n > 3, '.wt')",
]


@pytest.mark.once
@pytest.mark.parametrize("modifier", ["", ".ca", ".cg", ".cs", ".cv"])
def test_cache_modifiers_of_loads(modifier):
    call = f"async_copy.global_to_shared(smem, p + offsets, cache_modifier='{modifier}')"
    (line,) = (line for line in parse(copy(call)).splitlines() if "async_copy_global" in line)
    assert f" = {modifier[1:]}" in line if modifier else "{" not in line


@since(3, 7)
@pytest.mark.parametrize("call", STORES)
def test_shared_to_global(call):
    agree(copy(call, "async_copy.commit_group()", "async_copy.wait_group()"))


@before(3, 7)
def test_shared_to_global_needs_3_7():
    refuse(copy(STORES[0] + "  # HERE"), CapabilityError, "shared_to_global needs Triton >= 3.7")


@pytest.mark.once
@mistakes("""
error | match | call
DtypeError | not shared memory | async_copy.global_to_shared(x, p + offsets)
DtypeError | not a pointer | async_copy.global_to_shared(smem, offsets)
DtypeError | element type | async_copy.global_to_shared(smem, q + offsets)
ShapeError | shape | async_copy.global_to_shared(smem, p + columns)
DtypeError | boolean | async_copy.global_to_shared(smem, p + offsets, mask=n)
ArgumentError | cache_modifier | async_copy.global_to_shared(smem, p + offsets, cache_modifier='.wt')
ArgumentError | compile-time | async_copy.wait_group(n)
ArgumentError | out of range | async_copy.wait_group(-1)
DtypeError | 64-bit | async_copy.mbarrier_arrive(smem)
ArgumentError | out of range | mbarrier.init(bar, 0)
ArgumentError | compile-time | mbarrier.init(bar, n)
DtypeError | scalar | mbarrier.wait(bar, 1.0)
ArgumentError | out of range | mbarrier.arrive(bar, count=1 << 30)
""")
def test_bad_copies_and_barriers(call, error, match):
    refuse(copy(call + "  # HERE"), error, match)


@pytest.mark.once
@pytest.mark.parametrize(
    "dtype, few, enough",
    [("gl.int8", 2, 4), ("gl.float16", 1, 2), ("gl.float32", 0, 1), ("gl.float64", 0, 1)],
)
def test_lanes_copy_at_least_4_bytes(dtype, few, enough):
    def source(count):
        text = copy("async_copy.global_to_shared(smem, p + offsets)  # HERE", dtype=dtype)
        return text.replace("BlockedLayout([1, 8]", f"BlockedLayout([1, {count}]").replace(
            "1.5", "1"
        )

    agree(source(enough))
    if few:
        refuse(source(few), LayoutError, "4, 8 or 16 bytes")


BARRIERS = [
    "mbarrier.init(bar, count=4)",
    "mbarrier.init(bar, 4)",
    "before = mbarrier.arrive(bar)",
    "mbarrier.wait(bar, mbarrier.arrive(bar, count=2))",
    "mbarrier.wait(bar, 0)",
    "mbarrier.wait(bar, n & 1)",
    "async_copy.mbarrier_arrive(bar)",
]


@pytest.mark.once
@pytest.mark.parametrize("call", BARRIERS)
def test_barriers(call):
    agree(copy(call))


def test_a_barrier_gives_the_phase_before():
    agree(copy("gl.store(q, mbarrier.arrive(bar))"))


CLUSTER = (
    SETUP.replace("mbarrier, tdm", "cluster")
    + """
@gluon.jit
def kernel():
    cluster.arrive()  # HERE
    cluster.wait()
KWARGS = {"num_ctas": 2}
"""
)


@since(3, 7)
def test_clusters():
    agree(CLUSTER)
    refuse(CLUSTER.replace("2}", "1}"), ArgumentError, "several workgroups")


@before(3, 7)
def test_clusters_need_3_7():
    refuse(CLUSTER, CapabilityError, "Triton >= 3.7")


# -- elsewhere, and by the other name ----------------------------------------------------------------


def test_other_targets_lack_it():
    for call in ("tdm.async_wait()", "async_copy.commit_group()", "mbarrier.init(bar, 1)"):
        source = SETUP + (
            "@gluon.jit\ndef kernel():\n"
            "    bar = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())\n"
            f"    {call}  # HERE\n"
        )
        gfx1200 = gluon_core._triton.GPUTarget("hip", "gfx1200", 32)
        refuse(source, CapabilityError, "gfx1250", gfx1200)


def public(module):
    return {name: value for name, value in vars(module).items() if not name.startswith("_")}


def test_both_spellings_are_one():
    from gluon_core.language.amd import cdna5, gfx1250

    for unit in ("async_copy", "mbarrier", "tdm") + (
        ("cluster",) if TRITON_VERSION >= (3, 7) else ()
    ):
        old, new = getattr(gfx1250, unit), getattr(cdna5, unit)
        assert public(old) and public(old) == public(new)
    assert public(gfx1250).keys() == public(cdna5).keys()


# -- names ------------------------------------------------------------------------------------------

UNITS = ["", ".async_copy", ".mbarrier", ".tdm"] + (
    [".cluster"] if TRITON_VERSION >= (3, 7) else []
)
HIDDEN = {"_semantic", "_generator", "_builder", "self"}
# Both forms of 3.7 and later go through one signature, and 3.6 wants what may be left out later.
FORMS = {"async_gather", "async_scatter"}


def parameters(value):
    try:
        parameters_of_op = inspect.signature(value).parameters
    except (TypeError, ValueError):
        return None
    return [name for name in parameters_of_op if name not in HIDDEN]


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize(
    "generation", ["gfx1250"] + (["cdna5"] if TRITON_VERSION >= (3, 8) else [])
)
def test_every_name_with_its_parameters(generation, unit):
    path = operator.attrgetter(f"amd.{generation}{unit}")
    theirs = path(importlib.import_module("triton.experimental.gluon.language"))
    ours = path(gluon_core.language)
    names = getattr(theirs, "__all__", None) or [n for n in vars(theirs) if not n.startswith("_")]
    seen = 0
    for name in names:
        value = getattr(theirs, name)
        home = getattr(value, "__module__", "") or ""
        if (
            inspect.ismodule(value)
            or ".gluon." not in home
            or name in ("builtin", "constexpr_function")
        ):
            continue
        if not (set(home.split(".")) & {"amd"} or name == "PartitionedSharedLayout"):
            continue
        mine = getattr(ours, name)
        want, have = parameters(value), parameters(mine)
        if want and have and name not in FORMS:
            assert [p for p in have if p in want] == want, name
            seen += 1
    assert seen or unit == ".cluster"


@pytest.mark.parametrize(
    "layout, target",
    [
        ("gl.PaddedSharedLayout.with_identity_for([[64, N // 8]], [32, N], [1, 0])", ("hip", "gfx1250", 32)),
        ("gl.NVMMASharedLayout.get_default_for([32, N], gl.float16)", ("cuda", 90, 32)),
    ],
)  # fmt: skip
def test_functions_that_make_layouts_may_be_called_in_kernels(layout, target):
    source = f"""
@gluon.jit
def kernel(N: gl.constexpr):
    layout: gl.constexpr = {layout}
    smem = gl.allocate_shared_memory(gl.float16, [32, N], layout)
    smem.store(gl.full([32, N], 1.0, gl.float16, gl.BlockedLayout([1, 8], [4, 8], [4, 1], order=[1, 0])))
ARGS = (64,)
"""
    agree(source, gluon_core._triton.GPUTarget(*target))


def test_lds_has_320_kib():
    from gluon_core.errors import LimitError

    source = (
        SETUP
        + "@gluon.jit\ndef kernel():\n"
        + "    smem = gl.allocate_shared_memory(gl.float16, [{}, 256, 64], PLAIN)  # HERE\n"
    )
    parse(source.format(10))
    refuse(source.format(11), LimitError, "327680|320")


def test_warps_have_32_lanes():
    source = (
        SETUP
        + "@gluon.jit\ndef kernel():\n"
        + "    x = gl.full([64], 1, gl.int32, gl.BlockedLayout([1], [64], [4], [0]))  # HERE\n"
    )
    refuse(source, LayoutError, "32 threads per warp")
