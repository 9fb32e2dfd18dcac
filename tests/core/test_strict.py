"""`strict`: refusals by judgement as warnings, and mistakes that stay errors."""

from __future__ import annotations

import warnings

import pytest

import gluon_core as gluon
from gluon_core import errors
from gluon_core import language as gl
from gluon_core.compiler.source import GluonASTSource
from gluon_core.nvidia.hopper import TensorDescriptor
from gluon_core.testing import TRITON_VERSION
from tests.compat import sides
from tests.compat.differences import DIFFERENCES

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.once
hopper = gl.nvidia.hopper


def _products(x, out):
    B: gl.constexpr = gl.BlockedLayout([1, 1], [1, 32], [4, 1], [1, 0])
    A: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 64, 32])
    S: gl.constexpr = gl.NVMMASharedLayout(32, 8, 2)
    a = gl.allocate_shared_memory(gl.int8, [64, 32], S, gl.full([64, 32], 1, gl.int8, B))
    b = gl.allocate_shared_memory(gl.uint8, [64, 32], S, gl.full([64, 32], 1, gl.uint8, B))
    hopper.fence_async_shared()
    y = hopper.warpgroup_mma(a, b.permute([1, 0]), gl.zeros([64, 64], gl.int32, A))
    gl.store(out + gl.zeros([64, 64], gl.int32, A), y)


plain = gluon.jit(_products)
loose = gluon.jit(strict=False)(_products)
strict = gluon.jit(strict=True)(_products)
ARGS = (torch.int8, torch.int32)
SIGNATURE = {"x": "*i8", "out": "*i32"}
SAID = "multiply unsigned bytes as signed ones"


def _warned(call):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        call()
    return [w for w in caught if w.category is errors.KernelWarning]


def _refused(call):
    with pytest.raises(errors.DtypeError, match=SAID):
        call()


def _lines(call):
    (warning,) = _warned(call)
    assert SAID in str(warning.message) and "strict is False" in str(warning.message)
    assert warning.filename == __file__
    return warning.lineno


@pytest.mark.parametrize(
    "call",
    [
        lambda: loose.warmup(*ARGS, target="sm_90"),
        lambda: plain.warmup(*ARGS, target="sm_90", strict=False),
        lambda: strict.warmup(*ARGS, target="sm_90", strict=False),
        lambda: gluon.compile(loose, "sm_90", signature=SIGNATURE),
        lambda: gluon.compile(plain, "sm_90", {"strict": False}, signature=SIGNATURE),
        lambda: gluon.compile(GluonASTSource(plain, SIGNATURE), "sm_90", strict=False),
    ],
    ids=["decorator", "launch", "launch over decorator", "compile", "options", "source"],
)
def test_a_warning_at_the_line(call, monkeypatch, tmp_path):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    for kernel in (plain, loose, strict):
        kernel.forget()
    with open(__file__, encoding="utf-8") as file:
        assert "y = hopper.warpgroup_mma" in file.readlines()[_lines(call) - 1]


def test_the_environment_speaks_for_kernels_that_do_not(monkeypatch):
    monkeypatch.setenv("GLUON_STRICT", "0")
    assert not GluonASTSource(plain, SIGNATURE).strict
    assert GluonASTSource(strict, SIGNATURE).strict
    assert GluonASTSource(plain, SIGNATURE, strict=True).strict
    monkeypatch.setenv("GLUON_STRICT", "1")
    assert GluonASTSource(plain, SIGNATURE).strict
    assert not GluonASTSource(loose, SIGNATURE).strict


def test_it_is_part_of_the_identity():
    """In memory and on disk; a strict compile after one that was not refuses all the same."""
    plain.forget()
    _warned(lambda: plain.warmup(*ARGS, target="sm_90", strict=False))
    _refused(lambda: plain.warmup(*ARGS, target="sm_90"))
    _refused(lambda: gluon.compile(plain, "sm_90", signature=SIGNATURE))
    hashes = {GluonASTSource(plain, SIGNATURE, strict=value).hash() for value in (True, False)}
    assert len(hashes) == 2


def test_passes_of_a_loose_trace_are_refused_afterwards(monkeypatch, tmp_path):
    """Layouts remember that they were checked: not where refusals were let pass."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))

    @gluon.jit
    def kernel(out):
        L: gl.constexpr = gl.DistributedLinearLayout(
            [[2]], [[2], [1], [4], [0], [0]], [[0], [0]], [], [8]
        )
        gl.store(out + gl.arange(0, 8, L), 1.0)

    if TRITON_VERSION[:2] == (3, 7):  # whose builder ends the process
        with pytest.raises(errors.LayoutError, match="two places hold one element"):
            kernel.warmup(torch.float32, target="sm_90", strict=False)
        return
    assert _warned(lambda: kernel.warmup(torch.float32, target="sm_90", strict=False))
    with pytest.raises(errors.LayoutError, match="two places hold one element"):
        kernel.warmup(torch.float32, target="sm_90")


def test_the_simulator_says_that_it_has_no_meaning_for_it():
    out = torch.zeros(4096, dtype=torch.int32)
    with pytest.raises(errors.DtypeError, match="the simulator does not run it"):
        loose[(1,)](out.to(torch.int8), out, target="sim:sm_90")


@gluon.jit(strict=False)
def scaled(out):
    M: gl.constexpr = gl.amd.AMDMFMALayout(4, [16, 16, 128], True, [2, 2])
    a = gl.full([64, 128], 1, gl.float32, gl.DotOperandLayout(0, M, 8)).to(gl.float8e5)
    b = gl.full([128, 64], 1, gl.float32, gl.DotOperandLayout(1, M, 8)).to(gl.float8e5)
    c = gl.amd.cdna4.mfma_scaled(
        a, None, "e5m2", b, None, "e5m2", gl.zeros([64, 64], gl.float32, M)
    )
    rows, columns = gl.arange(0, 64, gl.SliceLayout(1, M)), gl.arange(0, 64, gl.SliceLayout(0, M))
    gl.store(out + rows[:, None] * 64 + columns[None, :], c)


def test_the_emulator_runs_the_machine_code():
    out = torch.zeros(64, 64)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", errors.KernelWarning)
        scaled[(1,)](out, target="emu:gfx950")
    assert (out == 128).all()


@pytest.mark.parametrize("value", ["no", 2, [0]])
def test_another_value(value):
    with pytest.raises(errors.OptionError, match="strict: must be true or false"):
        plain.warmup(*ARGS, target="sm_90", strict=value)


@pytest.mark.parametrize(
    "title", ["`SwizzledSharedLayout` with an entry", "A constant index beyond"]
)
def test_aborts_and_measured_faults_stay_errors(title):
    (source,) = (d.source for d in DIFFERENCES if d.title.startswith(title))
    loosely = sides.traced_by(sides.oracle.ours, source + "KWARGS = {'strict': False}\n")
    assert loosely.how == "error"


def test_host_code_reads_the_environment(monkeypatch):
    error = errors.LayoutError("as we read the manual")
    with pytest.raises(errors.LayoutError):
        errors.refuse(error)
    monkeypatch.setenv("GLUON_STRICT", "0")
    assert [str(w.message) for w in _warned(lambda: errors.refuse(error))] == [str(error)]


def test_a_box_of_another_size_stays_an_error():
    """From Triton 3.7 on compilers refuse such copies, or abort where the rank differs, too."""
    if TRITON_VERSION[:2] < (3, 7):
        pytest.skip("Triton 3.6 copies boxes of any size")
    layout = gl.NVMMASharedLayout(128, 16, 2)
    box = TensorDescriptor(torch.zeros(64, 64).half(), [64, 64], [64, 1], [64, 64], layout)

    @gluon.jit(strict=False)
    def kernel(x):
        bar = gl.allocate_shared_memory(gl.int64, [1], hopper.mbarrier.MBarrierLayout())
        hopper.mbarrier.init(bar, 1)
        tile = gl.allocate_shared_memory(gl.float16, [1, 32, 64], x.layout)
        hopper.tma.async_load(x, [0, 0], bar, tile)

    with pytest.raises(errors.ShapeError, match="the shape is not that of the descriptor's box"):
        kernel.warmup(box, target="sm_90")
