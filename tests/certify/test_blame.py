"""`gluon certify --blame`: entries of docs/known-compiler-bugs.md from scratch, and the bisection."""

import pytest

from gluon_certify import Plan, certify
from gluon_certify.blame import _Search
from gluon_core.testing import triton_at_least
from tests.certify.test_certify import GATHER, OUTSIDE, TWICE, program

pytestmark = [pytest.mark.once, pytest.mark.filterwarnings("ignore")]
PLAN = Plan(schedules=1, launches=1, blame=True)

# Two of four waves have nothing to copy in the second group.
WAITS = """
from gluon_core.language.amd.cdna4 import async_copy

@gluon.jit
def kernel(src, dst, n):
    offsets = gl.arange(0, 2048, layout=gl.BlockedLayout([8], [64], [4], [0]))
    shared: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    first = gl.allocate_shared_memory(gl.float16, [2048], shared)
    second = gl.allocate_shared_memory(gl.float16, [2048], shared)
    async_copy.global_load_to_shared(first, src + offsets)
    async_copy.commit_group()
    async_copy.global_load_to_shared(second, src + offsets, mask=offsets < n)
    async_copy.commit_group()
    async_copy.wait_group(1)
    strided: gl.constexpr = gl.BlockedLayout([1], [64], [4], [0])
    gl.store(dst + gl.arange(0, 2048, strided), first.load(strided))
    async_copy.wait_group(0)

src, dst = np.ones(2048, np.float16), np.zeros(2048, np.float16)
kernel[(1,)](src, dst, 512)
assert (dst == 1).all()
"""

OTHER = """
from gluon_core.language.amd.cdna4 import async_copy

@gluon.jit
def kernel(src, dst):
    offsets = gl.arange(0, 2048, layout=gl.BlockedLayout([8], [64], [4], [0]))
    smem = gl.allocate_shared_memory(gl.float16, [2048], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    async_copy.buffer_load_to_shared(smem, src, offsets, offsets < 1000, other=9)
    async_copy.commit_group()
    async_copy.wait_group(0)
    gl.store(dst + offsets, smem.load(offsets.type.layout))

src, dst = np.ones(2048, np.float16), np.zeros(2048, np.float16)
kernel[(1,)](src, dst)
assert dst[1500] == 9
"""

# Register arithmetic before a copy into LDS.
COUNTED = """
from gluon_core.language.amd.gfx1250 import async_copy

@gluon.jit
def kernel(src, dst):
    offsets = gl.arange(0, 2048, layout=gl.BlockedLayout([8], [32], [4], [0]))
    smem = gl.allocate_shared_memory(gl.float16, [2048], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    async_copy.global_to_shared(smem, src + offsets)
    async_copy.commit_group()
    async_copy.wait_group(0)
    gl.store(dst + offsets, smem.load(offsets.type.layout))

src, dst = np.ones(2048, np.float16), np.zeros(2048, np.float16)
kernel[(1,)](src, dst)
assert (dst == 1).all()
"""

BUGS = {
    "waits": (WAITS, "gfx950", not triton_at_least(3, 8), "pass", "update_async_wait_count"),
    "other": (OTHER, "gfx950", not triton_at_least(3, 8), "pass", "ttgpuir.to_llvmir"),
    "gather": (GATHER, "sm_90", True, "pass", "ttgpuir.to_llvmir"),
    "counted": (COUNTED, "gfx1250", triton_at_least(3, 8) and not triton_at_least(3, 9), "code generator", "LLVM"),
}  # fmt: skip


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", BUGS)
def test_known_bugs_are_found_and_blamed_from_scratch(name, tmp_path):
    text, target, there, step, words = BUGS[name]
    certificate = certify(program(tmp_path, text), [target], plan=PLAN)
    (kernel,) = certificate.targets[0].kernels
    if not there:
        assert certificate.verdict == "certified" and kernel.blame is None
        return
    assert certificate.verdict == "wrong" and kernel.blame is not None
    assert kernel.blame.origin == step and words in kernel.blame.name


def test_a_mistake_of_the_kernel_is_its_own(tmp_path):
    (kernel,) = certify(program(tmp_path, OUTSIDE), ["sm_90"], plan=PLAN).targets[0].kernels
    assert kernel.blame is not None and kernel.blame.origin == "kernel"


def test_right_kernels_have_nobody_to_blame(tmp_path):
    (kernel,) = certify(program(tmp_path, TWICE), ["sm_90"], plan=PLAN).targets[0].kernels
    assert kernel.blame is None


@pytest.mark.parametrize("culprit", [0, 3, 6])
def test_bisection_finds_the_first_pass_that_makes_it_wrong(culprit, monkeypatch):
    names = ["gluon.inliner", *(f"common.{kind}" for kind in ["cse", "canonicalizer", "sccp"] * 2), "LLVM's optimizer"]  # fmt: skip
    optional = names[1:]

    def variant(self, most):
        kept = len(optional) if most is None else most
        return names, "right" if kept <= culprit else "RaceError"

    monkeypatch.setattr(_Search, "_variant", variant)
    search = object.__new__(_Search)
    search.tried, search.compiler = [], "Triton"
    search.failed = type("Failed", (), {"error": "RaceError"})()
    blamed = search.run()
    assert blamed.origin == "pass" and blamed.name.startswith(optional[culprit])


def test_optional_passes_can_be_left_out():
    import gluon_core as gluon
    from gluon_core import language as gl
    from gluon_core._triton.pipelines import limited, optional

    @gluon.jit
    def kernel(x):
        i = gl.arange(0, 128, gl.BlockedLayout([1], [32], [4], [0]))
        gl.store(x + i, gl.load(x + i) * 2 + gl.load(x + i) * 2)

    texts = []
    for most in (None, 0):
        with limited(most) as passes:
            compiled = gluon.compile(kernel, "sm_80", signature={"x": "*fp32:16"})
            texts.append(compiled.asm["ptx"])
            assert sum(map(optional, passes.names)) > 5 and "LLVM's optimizer" in passes.names
    assert texts[0] != texts[1] and texts[0].count("\n") < texts[1].count("\n")
