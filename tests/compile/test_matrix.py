"""The simulator's answer is the compiler's: op by dtype by architecture."""

from __future__ import annotations

import pytest

from gluon_core import errors
from gluon_core.testing import TRITON_VERSION, triton_at_least
from tests.compile.matrix import answers, cells, kind, targets

pytestmark = [pytest.mark.once, pytest.mark.sampled(4)]

CELLS = {cell.name: cell for cell in cells()}
SAMPLED = ("sm_75", "sm_90", "gfx942", "gfx1201")

# Where a compiler of some release fails and the simulator does not, target by cell; Triton's to fix.
KNOWN = {
    ("gfx1250", "warp_specialize-fp32"): (3, 6),
    # docs/known-compiler-bugs.md: it takes ten minutes, and may be ended.
    **{(name, "portable-fp8e4b8"): (3, 9) for name in ("gfx1100", "gfx1101")},
    ("gfx1100", "portable-fp8e4nv"): (3, 6),
}


def is_known(target, name):
    return TRITON_VERSION <= KNOWN.get((target, name), (0, 0))


def disagreements(target, names):
    collected = []
    for name in names:
        simulated, compiled = answers(CELLS[name], target)
        if kind(simulated) == kind(compiled):
            continue
        if not is_known(target, name):
            message = str(compiled or simulated).split("\n")[0]
            collected.append(f"{name}: {kind(simulated)}, compiled: {kind(compiled)}: {message}")
    return collected


@pytest.mark.parametrize("target", SAMPLED)
def test_a_sample(target):
    names = list(CELLS)
    assert not disagreements(target, names[SAMPLED.index(target) :: 59])


@pytest.mark.campaign
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("target", targets())
def test_all(target):
    assert len(CELLS) > 1000
    assert not disagreements(target, CELLS)


REFUSED = {
    "add-fp8e5": errors.DtypeError,
    "mul-fp8e5": errors.DtypeError,
    "sub-fp8e5": errors.DtypeError,
    "less-fp8e5": errors.DtypeError,
    "maximum-fp8e5": errors.DtypeError,
    "fma-fp8e5": errors.DtypeError,
    "neg-fp8e5": errors.DtypeError,
    "sum-fp8e5": errors.DtypeError,
    "cumsum-fp8e5": errors.DtypeError,
    "histogram-i64": errors.DtypeError,
    "cast-fp8e5-fp64": errors.DtypeError,
    "cast-fp64-fp8e5": errors.DtypeError,
    "cast-fp8e5-fp8e4nv": errors.DtypeError,
    "auto-unknown-i32": errors.LayoutError,
    "auto-converted-i32": errors.LayoutError,
    "auto-histogram-i32": errors.LayoutError,
    "auto-shared-i32": errors.LayoutError,
    "auto-gather-i32": errors.LayoutError,
    "coalesced-gather-i32": errors.LayoutError,
}


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("target", ["sm_90", "gfx942"])
def test_uncompilable_ops_are_refused_under_the_line(target, name):
    for error in answers(CELLS[name], target):
        assert type(error).__name__ == REFUSED[name].__name__, str(error)
        assert error.span is not None and error.remedy, str(error)


@pytest.mark.parametrize("name", ["auto-i32", "coalesced-i32", "unused-i32"])
def test_layouts_that_something_determines_are_accepted(name):
    assert answers(CELLS[name], "sm_90") == (None, None)


@pytest.mark.parametrize(
    "target, name, accepted",
    [
        ("gfx942", "dot_fma-bf16", False),
        ("gfx1201", "dot_fma-i8", False),
        ("gfx942", "dot_fma-fp16", True),
        ("sm_80", "dot_fma-bf16", True),
        ("gfx942", "mfma2-i8", False),
        ("gfx90a", "mfma2-i8", True),
        ("gfx90a", "lds-buffer-i8", False),
        ("gfx942", "lds-buffer-i8", True),
        ("gfx942", "atomic_cas-i32", triton_at_least(3, 7)),
    ],
)
def test_a_missing_feature_of_an_architecture_is_a_capability(target, name, accepted):
    for error in answers(CELLS[name], target):
        assert kind(error) == ("accepted" if accepted else "CapabilityError"), str(error)
        assert accepted or error.span is not None


def test_a_missing_feature_of_a_release_is_a_capability():
    lacking = not triton_at_least(3, 9)
    for name in ("cast-fp16-bf16", "cast-fp32-fp8e5"):
        for error in answers(CELLS[name], "sm_75"):
            assert kind(error) == ("accepted" if lacking else "CapabilityError"), str(error)
        assert answers(CELLS[name], "sm_80") == (None, None)
