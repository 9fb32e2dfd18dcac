"""Which lowering a portable op takes, and the reasons against the others."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from gluon_core.errors import (
    ArgumentError,
    BackendError,
    CapabilityError,
)
from gluon_core.layouts import BlockedLayout, DotOperandLayout
from gluon_core.plugin.language import OPS
from gluon_core.plugin.paths import load_path
from gluon_core.portable.selection import available, select
from gluon_core.portable.tiles import blocked_layout, row_swizzle, split_warps
from gluon_core.registry import load as plugins
from gluon_core.registry.load import load
from tests.core.fakes import Plugin, acme, lowering
from tests.tables import mistakes

sys.path.append(str(Path(__file__).parents[1] / "plugin_acme"))

HERE = "tests.core.test_selection"


@dataclass
class Wide:
    width: int


def wide_enough(request):
    return True if request.width >= 4 else f"needs 4 elements, got {request.width}"


def says_nothing(request):
    return None


def offering(*lowerings, backend=None):
    return load([], [Plugin("acme", backend or acme(), lowerings=lowerings)])


def chosen(registry, target="a1", request=None, op="load", triton=(3, 9)):
    return select(op, request or Wide(8), registry.target(target), triton, registry)


# -- choosing ------------------------------------------------------------------------------------


def test_the_highest_priority_that_fits_wins_and_each_other_has_a_reason():
    registry = offering(
        lowering(name="unit", priority=20, requires=("acme.unit",)),
        lowering(name="wide", priority=10, accepts=f"{HERE}:wide_enough"),
    )
    best = chosen(registry)
    assert best.chosen.name == "unit"
    assert [(low.name, reason) for low, reason in best.rejected] == [
        ("wide", "fits, but unit has priority 20 over 10"),
        ("global_load", "fits, but unit has priority 20 over 0"),
    ]
    without = chosen(registry, "a2")
    assert without.chosen.name == "wide"
    assert without.rejected[0][1] == "needs acme.unit, which acme:a2 lacks"
    narrow = chosen(registry, "a2", Wide(2))
    assert narrow.chosen.name == "global_load"
    assert narrow.rejected[1][1] == "needs 4 elements, got 2"


def test_an_old_triton_is_a_reason():
    registry = offering(lowering(name="new", min_triton=(3, 8)))
    assert chosen(registry, triton=(3, 8)).chosen.name == "new"
    old = chosen(registry, triton=(3, 6))
    assert old.chosen.name == "global_load"
    assert old.rejected[0][1] == "needs Triton >= 3.8, found 3.6"


def test_when_none_fits_every_reason_is_listed():
    extras = {"layouts": "somewhere:layouts"}
    registry = offering(
        lowering("mma", "unit", priority=20, requires=("acme.unit",), extras=extras),
        lowering("mma", "wide", priority=10, accepts=f"{HERE}:wide_enough", extras=extras),
    )
    registry._lowerings["mma"] = registry._lowerings["mma"][:2]  # as if the core had none
    with pytest.raises(CapabilityError) as caught:
        chosen(registry, "a2", Wide(1), "mma")
    text = str(caught.value)
    assert "gl.portable.mma" in text and "acme:a2" in text
    assert "unit: needs acme.unit" in text and "wide: needs 4 elements, got 1" in text


def test_a_predicate_that_gives_no_reason_is_the_plugins_mistake():
    registry = offering(lowering(accepts=f"{HERE}:says_nothing"))
    with pytest.raises(BackendError, match="load/fast must answer True or a reason.*got None"):
        chosen(registry)


def test_an_unknown_op_gets_a_suggestion():
    with pytest.raises(ArgumentError, match="Did you mean 'store'"):
        chosen(offering(), op="stroe")


def test_available_leaves_the_operands_out():
    registry = offering(
        lowering(name="unit", priority=20, requires=("acme.unit",)),
        lowering(name="wide", priority=10, accepts=f"{HERE}:says_nothing"),
    )
    names = [low.name for low in available("load", registry.target("a2"), (3, 6), registry)]
    assert names == ["wide", "global_load"]


def test_the_core_alone_implements_every_op_everywhere():
    registry = offering()
    for op, (companions, _) in OPS.items():
        (only,) = registry.lowerings(op)
        assert not only.requires and only.priority == 0
        for path in (only.implement, *(only.extras[name] for name in companions.split())):
            assert callable(load_path(path)), path


# -- tiles ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "m, n, num_warps, expected",
    [
        (64, 64, 4, [2, 2]),
        (128, 64, 4, [4, 1]),
        (128, 64, 8, [4, 2]),
        (16, 256, 4, [1, 4]),
        (256, 8, 4, [4, 1]),
        (16, 8, 4, [4, 1]),
        (16, 16, 4, [1, 4]),
        (32, 8, 4, [4, 1]),
        (64, 64, 1, [1, 1]),
    ],
)
def test_warps_split_a_tile_without_repeating_work_where_there_is_enough(m, n, num_warps, expected):
    warps = split_warps(m, n, num_warps, 16, 8)
    assert warps == expected and warps[0] * warps[1] == num_warps


@pytest.mark.parametrize("shape", [[128, 32], [64, 64], [16, 16], [1, 4], [256, 8]])
@pytest.mark.parametrize("warp_size, num_warps, bits", [(32, 4, 16), (64, 8, 32), (32, 1, 8)])
def test_blocked_layouts_use_every_thread_and_vectors_of_at_most_16_bytes(
    shape, warp_size, num_warps, bits
):
    layout = blocked_layout(shape, bits, num_warps, warp_size)
    dims = layout.to_linear(shape).in_dims
    assert dims["lane"] == warp_size and dims["warp"] == num_warps
    assert layout.size_per_thread[1] * bits <= 128
    if shape[0] * shape[1] >= warp_size * num_warps * 128 // bits and shape[1] * bits >= 128:
        assert layout.size_per_thread == [1, 128 // bits]


def test_swizzles_spread_a_column_over_the_banks():
    for row, bits in [(32, 16), (64, 16), (128, 16), (16, 32), (64, 8)]:
        layout = row_swizzle(row, bits)
        linear = layout.to_linear([64, row])
        vector, rows = layout.vec, 8
        inverse = linear.inverse() if linear.is_invertible() else linear.pseudo_inverse()
        banks = set()
        for r in range(rows):
            offset = inverse.apply(dim0=r, dim1=0)["offset"]
            banks.add(offset * bits // 8 // 16 % 8)
        assert vector * bits == 128
        assert len(banks) == 8, (row, bits, layout)


# -- in a kernel ---------------------------------------------------------------------------------


@pytest.fixture
def traced(monkeypatch):
    """Trace a kernel for the invented third-party hardware; returns (module, selections)."""
    import gluon_acme.plugin
    from gluon_core._triton import JITFunction
    from gluon_core.frontend import trace

    registry = load([], [gluon_acme.plugin])
    monkeypatch.setattr(plugins, "_default", registry)

    def run(kernel, num_warps=4, **signature):
        choices = []
        target = registry.target("acme1")
        backend = registry.backend("acme")
        module = trace(
            JITFunction(kernel),
            signature,
            {},
            {},
            backend=backend,
            target=target,
            options=backend.compiler.options(target, {"num_warps": num_warps}),
            on_session=lambda session: choices.extend(session.selections),
        )
        return module.str_nodebug(), choices

    return run


@pytest.mark.once
def test_each_selection_of_a_kernel_is_recorded_with_its_line(traced):
    from gluon_core import language as gl

    def kernel(x, y):
        layout: gl.constexpr = gl.portable.blocked_layout([128], gl.float32)
        offsets = gl.arange(0, 128, layout)
        gl.portable.store(y, offsets, gl.portable.load(x, offsets, offsets < 100, 2.0))
        gl.portable.store(y, offsets, gl.portable.load(x, offsets.to(gl.int64)))

    text, choices = traced(kernel, x="*fp32", y="*fp32")
    assert text.count("tt.load") == 2 and text.count("tt.store") == 2
    first = kernel.__code__.co_firstlineno
    assert [(s.op, s.chosen.name, s.where.rpartition(":")[2]) for s in choices] == [
        ("load", "acme_load", str(first + 3)),
        ("store", "global_store", str(first + 3)),
        ("load", "global_load", str(first + 4)),
        ("store", "global_store", str(first + 4)),
    ]
    assert "int32 offsets, not int64" in choices[2].rejected[0][1]


@pytest.mark.once
def test_masked_off_elements_are_zero_by_default(traced):
    from gluon_core import language as gl

    def kernel(x):
        layout: gl.constexpr = gl.portable.blocked_layout([128], gl.float32)
        offsets = gl.arange(0, 128, layout)
        gl.portable.store(x, offsets, gl.portable.load(x, offsets, offsets < 100))

    text, _ = traced(kernel, x="*fp32")
    load_line = next(line for line in text.splitlines() if "tt.load" in line)
    assert load_line.count("%") == 4  # result, pointer, mask, other


@pytest.mark.once
def test_a_matmul_takes_its_layouts_from_the_lowering(traced):
    from gluon_core import language as gl

    def kernel(a, b, c):
        layouts: gl.constexpr = gl.portable.mma_layouts(32, 32, 16, gl.float16, gl.float16)
        gl.static_assert(layouts.lowering == "fma")
        a_in: gl.constexpr = gl.portable.blocked_layout([32, 16], gl.float16)
        rows = gl.arange(0, 32, gl.SliceLayout(1, a_in))
        columns = gl.arange(0, 16, gl.SliceLayout(0, a_in))
        a_smem = gl.allocate_shared_memory(gl.float16, [32, 16], layouts.a_shared)
        b_smem = gl.allocate_shared_memory(gl.float16, [16, 32], layouts.b_shared)
        gl.portable.async_copy(a_smem, a, rows[:, None] * 16 + columns[None, :])
        gl.portable.commit()
        gl.portable.wait(0)
        acc = gl.zeros([32, 32], gl.float32, layouts.accumulator)
        acc = gl.portable.mma(a_smem.load(layouts.a), b_smem.load(layouts.b), acc)
        m = gl.arange(0, 32, gl.SliceLayout(1, layouts.accumulator))
        n = gl.arange(0, 32, gl.SliceLayout(0, layouts.accumulator))
        gl.portable.store(c, m[:, None] * 32 + n[None, :], acc)

    text, choices = traced(kernel, a="*fp16", b="*fp16", c="*fp32")
    assert "tt.dot" in text
    assert [s.chosen.name for s in choices] == ["through_registers", "fma", "global_store"]


@pytest.mark.parametrize(
    "num_warps, m, n", [(1, 32, 32), (4, 64, 64), (8, 128, 64), (4, 16, 16), (4, 8, 4)]
)
def test_the_fallbacks_layouts_fit_tile_and_warps(num_warps, m, n):
    from gluon_core._triton import tl
    from gluon_core.portable import fallback
    from gluon_core.portable.requests import MmaRequest

    registry = offering()
    for target in ("a1", "a2"):
        resolved = registry.target(target)
        request = MmaRequest(
            resolved, num_warps, (3, 9), m, n, 32, tl.float16, tl.float16, tl.float32
        )
        layouts = fallback.mma_layouts(request)
        assert isinstance(layouts.accumulator, BlockedLayout)
        dims = layouts.accumulator.to_linear([m, n]).in_dims
        assert dims["lane"] == resolved.warp_size and dims["warp"] == num_warps
        assert layouts.a == DotOperandLayout(0, layouts.accumulator, 0)


def in_kernel(body):
    """A kernel from source lines that may use x (*fp32), layout, at."""
    lines = [
        "def kernel(x):",
        "    layout: gl.constexpr = gl.portable.blocked_layout([128], gl.float32)",
        "    at = gl.arange(0, 128, layout)",
        *(f"    {line}" for line in body.splitlines()),
    ]
    return "\n".join(lines) + "\n"


@pytest.mark.once
@mistakes("""
error | message | body
DtypeError | ptr: must be a scalar pointer | gl.portable.load(x + at, at)
DtypeError | ptr: must be a scalar pointer | gl.portable.load(at, at)
DtypeError | offsets | gl.portable.load(x, 3)
DtypeError | offsets: must be integers | gl.portable.load(x, at.to(gl.float32))
ArgumentError | other: needs a mask | gl.portable.load(x, at, other=1.0)
ArgumentError | num_outstanding | gl.portable.wait(-1)
ArgumentError | num_outstanding | gl.portable.wait(at)
ArgumentError | dest: not shared memory | gl.portable.async_copy(x, x, at)
DtypeError | dest.*expected fp32, got fp16 |
    s = gl.allocate_shared_memory(gl.float16, [128], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    gl.portable.async_copy(s, x, at)
ShapeError | dest.*128.*64 |
    s = gl.allocate_shared_memory(gl.float32, [64], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    gl.portable.async_copy(s, x, at)
ShapeError | k: must be a power of two | L: gl.constexpr = gl.portable.mma_layouts(32, 32, 24, gl.float16, gl.float16)
CapabilityError | no lowering of gl.portable.mma fits on acme:acme1(?s:.)*fma: a is int16, and multiply-add | L: gl.constexpr = gl.portable.mma_layouts(32, 32, 16, gl.int16, gl.int16)
ArgumentError | input_precision | L: gl.constexpr = gl.portable.mma_layouts(32, 32, 16, gl.float16, gl.float16, input_precision='tf23')
LayoutError | a: not the layout of this operand.*Take all three layouts |
    L: gl.constexpr = gl.portable.mma_layouts(32, 32, 16, gl.float32, gl.float32)
    c = gl.zeros([32, 32], gl.float32, L.accumulator)
    gl.portable.mma(c, c, c)
Exception | Did you mean 'load' | gl.portable.laod(x, at)
""")
def test_mistakes_are_named_under_the_kernels_line(traced, tmp_path, body, error, message):
    import importlib.util

    path = tmp_path / "mistaken.py"
    path.write_text("from gluon_core import language as gl\n\n\n" + in_kernel(body))
    spec = importlib.util.spec_from_file_location("mistaken", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    with pytest.raises(error, match=message) as caught:
        traced(module.kernel, x="*fp32")
    assert "mistaken.py:" in str(caught.value)


def test_portable_offers_ops_alone():
    from gluon_core import language as gl

    portable = gl.portable
    assert all(
        getattr(portable, name).__module__.startswith("gluon_core.") for name in dir(portable)
    )
    assert not {name for name in dir(portable) if name.endswith("Request") or name[0].isupper()}
    for name in ("MmaRequest", "MmaLayouts", "OPS"):
        assert not hasattr(portable, name)
