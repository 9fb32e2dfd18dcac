"""`wgmma` that ptxas does not keep under way: a warning where it happens, and none for the examples."""

from __future__ import annotations

import re
import warnings

import pytest

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.errors import KernelWarning
from gluon_core.language.nvidia.hopper import warpgroup_mma, warpgroup_mma_init, warpgroup_mma_wait
from gluon_core.registry.load import registry
from gluon_kernels.attention.problem import PROBLEMS as ATTENTION
from gluon_kernels.gemm.problem import PROBLEMS as GEMM
from gluon_kernels.moe.problem import GROUPED_MATMUL
from gluon_kernels.moe.problem import PROBLEMS as MOE
from gluon_nvidia.assembler import slow_products
from gluon_nvidia.inspect import disassemble
from tests.kernels import cases
from tests.kernels.launched import launches_of

pytestmark = pytest.mark.once

TILE = gl.constexpr(gl.NVMMASharedLayout(128, 16, 2))
SUMS = gl.constexpr(gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 64, 16]))


@gluon.jit
def halved(out, n, AT_ONCE: gl.constexpr):
    """Sums that are halved in each step: of the step that is done, or while it is under way."""
    a = gl.allocate_shared_memory(gl.float16, [64, 64], TILE)
    b = gl.allocate_shared_memory(gl.float16, [64, 64], TILE)
    acc = warpgroup_mma_init(gl.zeros([64, 64], gl.float32, SUMS))
    for _ in range(n):
        acc = warpgroup_mma(a, b, acc, is_async=True)
        done = warpgroup_mma_wait(1 if AT_ONCE else 0, deps=[acc])
        acc = warpgroup_mma_init(done * 0.5)
    result = warpgroup_mma_wait(0, deps=[acc])
    row = gl.arange(0, 64, gl.SliceLayout(1, SUMS))
    column = gl.arange(0, 64, gl.SliceLayout(0, SUMS))
    gl.store(out + row[:, None] * 64 + column[None, :], result)


def compiled(at_once):
    """Return the kernel, and the warnings."""
    signature, constants = {"out": "*fp32", "n": "i32"}, {"AT_ONCE": at_once}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        kernel = gluon.compile(halved, "sm_90", signature=signature, constexprs=constants)
    return kernel, [one for one in caught if one.category is KernelWarning]


def waits(kernel):
    """Return the number of products in flight at each wait: as the kernel says, and as ptxas made it."""
    wanted = re.findall(r"wgmma\.wait_group\.sync\.aligned (\d+)", kernel.asm["ptx"])
    matches = re.findall(r"WARPGROUP\.DEPBAR\.LE gsb0, 0x(\d+)", disassemble(kernel.asm["cubin"]))
    return sorted(wanted), sorted(matches)


def test_sums_that_are_used_too_early_are_reported():
    for _ in range(2):  # the second time from the cache
        kernel, (warning,) = compiled(True)
        text = str(warning.message)
        assert text.startswith("halved: the assembler waits after each `wgmma`, which is slow: ")
        assert "accumulator registers" in text and "warpgroup_mma_wait" in text
        lines = open(__file__).read().splitlines()
        assert warning.filename == __file__
        assert "@gluon.jit" in lines[warning.lineno - 1] and "halved" in lines[warning.lineno]
    wanted, waited = waits(kernel)
    assert "1" in wanted and "1" not in waited


def test_others_are_not(capfd, monkeypatch):
    kernel, messages = compiled(False)
    assert not messages and len(set(map(tuple, waits(kernel)))) == 1
    assert not capfd.readouterr().out
    assert getattr(kernel.metadata, "warnings", None) is None


def test_a_reason_is_reported_once_and_without_the_function():
    template = (
        "ptxas info    : (C7510) Potential Performance Loss: wgmma.mma_async instructions are "
        "serialized due to {} in{} function 'f'{}\n"
    )
    few = "insufficient register resources for the wgmma pipeline"
    (text,) = slow_products(
        template.format(few, "", "") + template.format(few, " the", " in line 0")
    )
    assert f": {few}. Multiply smaller tiles" in text
    (text,) = slow_products(
        template.format("non wgmma instructions defining accumulator registers", "", "")
    )
    assert "range(gl.maximum(steps, 1))" in text
    (text,) = slow_products(template.format("something new", " the", ""))
    assert "something new. Between a multiplication and its wait" in text
    assert slow_products("ptxas info    : Used 58 registers, used 0 barriers") == []


def without_warning(example, large):
    with warnings.catch_warnings():
        warnings.simplefilter("error", KernelWarning)
        return example.compile(registry().target("sm_90"), large)


def compiled_for_hopper(problem, shape):
    """Return the kernels that a call launches, compiled; a warning of theirs is an error."""
    arguments = problem.arguments(shape, "cpu")
    launches = launches_of(lambda: problem.op(**arguments), "sim:sm_90")
    with warnings.catch_warnings():
        warnings.simplefilter("error", KernelWarning)
        for launch in launches:
            values, options = launch.fresh(), launch.options
            yield launch.kernel.warmup(*values, grid=launch.grid, target="sm_90", **options)


def test_products_of_groups_stay_under_way():
    """They once did not, at half the speed."""
    (kernel,) = compiled_for_hopper(GROUPED_MATMUL, GROUPED_MATMUL.small[0])
    wanted, waited = waits(kernel)
    assert wanted == waited and "1" in waited


@pytest.mark.campaign
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", [e.name for e in cases.load_cases().values()])
def test_products_of_examples_stay_under_way(name):
    (example,) = (e for e in cases.load_cases().values() if e.name == name)
    if example.lacks(registry().target("sm_90")):
        pytest.skip("not for Hopper")
    without_warning(example, True)


@pytest.mark.campaign
@pytest.mark.timeout(300)
@pytest.mark.parametrize("problem", [*GEMM, *MOE, *ATTENTION], ids=lambda problem: problem.name)
def test_products_of_operators_stay_under_way(problem):
    for shape in problem.small:
        assert list(compiled_for_hopper(problem, shape))
