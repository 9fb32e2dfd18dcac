"""`gluon.compile` for every target with no device, and its errors on bad input."""

import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
from triton.backends.compiler import GPUTarget

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.compiler import driver
from gluon_core.errors import (
    ArgumentError,
    DeviceError,
    KernelChangedError,
    LimitError,
    OptionError,
    StageError,
    TargetError,
)
from gluon_core.registry.load import registry
from tests.core import kernels_for_runtime as kernels
from tests.core.kernels_for_runtime import L32, L64

pytestmark = [pytest.mark.once, pytest.mark.sampled(4)]


@pytest.fixture(autouse=True)
def folder(monkeypatch, tmp_path):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))


def scale(target, layout=None, **options):
    warp = registry().target(target).warp_size
    return gluon.compile(
        kernels.scale,
        target=target,
        signature={"x": "*fp32", "y": "*fp32", "n": "i32", "factor": "fp32"},
        constexprs={"BLOCK": 256, "LAYOUT": layout or (L32 if warp == 32 else L64)},
        attrs={"x": 16, "y": 16},
        **options,
    )


@pytest.mark.parametrize(
    "target", ["sm_75", "sm_80", "sm_86", "sm_89", "hopper", "sm_100", "sm_120"]
)
def test_nvidia(target):
    compiled = scale(target, num_warps=4)
    arch = registry().target(target).architecture
    assert list(compiled.asm) == ["ttgir", "llir", "ptx", "cubin"]
    assert compiled.asm["cubin"][:4] == b"\x7fELF" and compiled.kernel is compiled.asm["cubin"]
    assert f".target sm_{arch.arch}" in compiled.asm["ptx"]
    assert "LDG" in compiled.asm["sass"] and "STG" in compiled.asm["sass"]
    assert 0 < compiled.n_regs < 100 and compiled.n_spills == 0 and compiled.n_max_threads == 1024
    report = compiled.report()
    assert report.instruction_mix["LDG"] >= 1 and report.instruction_count > 10
    assert report.registers == compiled.n_regs
    assert compiled.metadata.target == GPUTarget("cuda", arch.arch, 32)
    assert compiled.metadata.num_warps == 4 and compiled.metadata.shared == 0
    assert compiled.name == compiled.metadata.name == "scale"
    assert compiled.target.architecture is arch
    assert compiled.metadata.hash == compiled.hash
    with pytest.raises(KeyError):
        compiled.asm["amdgcn"]


@pytest.mark.parametrize("target", ["gfx90a", "gfx942", "gfx950", "gfx1100", "gfx1201"])
def test_amd(target):
    compiled = scale(target, num_warps=4)
    assert list(compiled.asm) == ["ttgir", "llir", "amdgcn", "hsaco"]
    assert compiled.asm["hsaco"][:4] == b"\x7fELF"
    report = compiled.report()
    assert 0 < report.registers < 256 and report.spills == 0
    assert any(name.startswith(("global", "buffer", "flat")) for name in report.instruction_mix)
    assert compiled.n_regs == report.registers
    assert compiled.metadata.target.backend == "hip"


def test_every_architecture_of_every_plugin_is_named_for_its_compiler():
    for arch in registry().architectures():
        assert arch.triton_backend in ("cuda", "hip", None)


def test_tritons_own_way_of_saying_it():
    source = gluon.GluonASTSource(
        fn=kernels.put,
        signature={"y": "*fp32", "VALUE": "constexpr"},
        constexprs={"VALUE": 5.0},
        attrs={(0,): [["tt.divisibility", 16]]},
    )
    compiled = gluon.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": 8})
    assert compiled.metadata.num_warps == 8 and compiled.target.name == "nvidia:sm_90"
    by_name = gluon.compile(
        kernels.put,
        target="h200",
        signature={"y": "*fp32:16"},
        constexprs={"VALUE": 5.0},
        num_warps=8,
    )
    assert by_name.hash == compiled.hash
    text = str(
        source.make_ir("sm_90", registry().backend("nvidia").compiler.options(compiled.target, {}))
    )
    assert "tt.func public @put" in text


@pytest.mark.parametrize("nothing", [None, {}, [], ()])
def test_no_attributes_of_parameters(nothing):
    signature = {"y": "*fp32", "VALUE": "constexpr"}
    by_name = gluon.GluonASTSource(kernels.put, signature, {(1,): 5.0}, attrs=nothing)
    by_place = gluon.GluonASTSource(kernels.put, signature, {"VALUE": 5.0}, nothing)
    assert by_name.attrs == {} and by_name.hash() == by_place.hash()
    compiled = gluon.compile(by_name, target=GPUTarget("cuda", 90, 32))
    assert "tt.divisibility" not in compiled.asm["ttgir"]


def test_attributes_of_parameters_are_a_mapping():
    with pytest.raises(ArgumentError, match="attrs: not a mapping"):
        gluon.GluonASTSource(kernels.put, {"y": "*fp32"}, {"VALUE": 5.0}, attrs=[16])


def test_types_and_values_in_a_signature():
    kernel = gluon.compile(
        kernels.pair, target="sm_80", signature={"y": "*i64", "both": ("i32", "i32:1")}
    )
    assert kernel.src.signature == {"y": "*i64", "both": ("i32", "constexpr")}
    assert kernel.src.constants == {(1, 1): 1}
    signature = {"y": np.zeros(4, np.int64), "both": (gl.int32, "i32")}
    compiled = gluon.compile(kernels.pair, target="sm_80", signature=signature).src.signature
    assert compiled == {"y": "*i64", "both": ("i32", "i32")}


@pytest.mark.parametrize(
    "arguments, words",
    [
        ({"signature": {"z": "*fp32"}}, "no parameter 'z'"),
        ({"signature": {}}, "without a type.*y"),
        ({"signature": {"y": "*fp32"}}, "without a value.*VALUE"),
        ({"signature": {"y": "*fp32"}, "constexprs": {"VALU": 1}}, "Did you mean 'VALUE'"),
        ({"signature": {"y": "*fp32"}, "constexprs": {(7,): 1}}, "no parameter at"),
        ({"signature": {"y": "*fp32:8"}, "constexprs": {"VALUE": 1}}, "':16' and ':1'"),
        ({"signature": {"y": "*float33"}, "constexprs": {"VALUE": 1}}, "float33"),
    ],
)
def test_bad_signatures(arguments, words):
    with pytest.raises(ArgumentError, match=words):
        gluon.compile(kernels.put, target="sm_80", **arguments)


def test_not_a_kernel():
    with pytest.raises(ArgumentError, match="gluon.jit"):
        gluon.compile(len, target="sm_80", signature={})


@pytest.mark.parametrize("target", ["sm_80", "gfx942"])
@pytest.mark.parametrize(
    "options, words",
    [
        ({"num_warp": 4}, "Did you mean 'num_warps'"),
        ({"num_warps": 3}, "power of two"),
        ({"num_warps": 0}, "power of two"),
        ({"num_warps": "4"}, "power of two"),
        ({"num_warps": True}, "power of two"),
    ],
)
def test_bad_options(target, options, words):
    with pytest.raises(OptionError, match=words):
        scale(target, **options)


@pytest.mark.parametrize(
    "target, options",
    [("sm_80", {"num_warps": 64}), ("gfx942", {"num_warps": 32}), ("sm_80", {"num_ctas": 2})],
)
def test_more_than_the_hardware_has(target, options):
    with pytest.raises(LimitError, match="expected at most"):
        scale(target, **options)


@pytest.mark.parametrize("registers", [0, 256, "many"])
def test_bad_register_limits(registers):
    with pytest.raises(OptionError, match="maxnreg"):
        scale("sm_90", maxnreg=registers)


def test_options_at_their_limits():
    wide = gl.BlockedLayout([1], [32], [32], [0])
    assert ".reqntid 1024" in scale("sm_90", layout=wide, num_warps=32).asm["ptx"]
    assert ".maxnreg 255" in scale("sm_90", maxnreg=255).asm["ptx"]


def test_messages_of_ptxas_are_in_the_error(capfd):
    with pytest.raises(StageError) as caught:
        scale("sm_90", ptx_options="--no-such-option")
    assert "stage cubin" in str(caught.value) and "no-such-option" in caught.value.diagnostics
    assert "tt.func" in Path(caught.value.reproducer).read_text()
    Path(caught.value.reproducer).unlink()
    assert capfd.readouterr() == ("", "")


def test_options_reach_the_code():
    assert ".maxnreg 40" in scale("sm_90", maxnreg=40).asm["ptx"]
    wide = gl.BlockedLayout([1], [32], [8], [0])
    assert ".reqntid 256" in scale("sm_90", layout=wide, num_warps=8).asm["ptx"]


def test_an_unknown_target_names_the_nearest():
    with pytest.raises(TargetError, match="hopper"):
        gluon.compile(
            kernels.put, target="hoppr", signature={"y": "*fp32"}, constexprs={"VALUE": 1}
        )


@pytest.mark.parametrize("target, warp", [("sm_80", L32), ("gfx942", L64)])
def test_too_much_shared_memory_is_refused_before_the_machine_code(target, warp):
    shared = gl.SwizzledSharedLayout(1, 1, 1, [0])
    limit = registry().target(target).limits.shared_memory
    size = 1 << ((limit // 4).bit_length() - 1)  # each of the two buffers fits alone
    with pytest.raises(LimitError, match="shared memory"):
        gluon.compile(
            kernels.big_shared,
            target=target,
            signature={"x": "*fp32"},
            constexprs={"N": size, "LAYOUT": warp, "SHARED": shared},
        )


@pytest.mark.sampled(1)  # short
@pytest.mark.parametrize("target, warp", [("sm_90", L32), ("gfx942", L64)])
def test_a_compiled_kernel_for_another_device_does_not_launch(target, warp, monkeypatch):
    import torch
    from triton.runtime import driver as active

    monkeypatch.setattr(torch.version, "cuda", "13.0")  # a build for CUDA, with or without a driver
    monkeypatch.setattr(active, "_active", None)  # a command of another test may have put one there
    monkeypatch.setattr(active, "_default", None)
    compiled = scale(target, layout=warp)
    if registry().backend(compiled.target.backend).device.target() == compiled.target:
        pytest.skip("that device is here")
    with pytest.raises(DeviceError):
        compiled[(1,)](torch.zeros(4), torch.zeros(4), 4, 1.0, 256, warp)


def test_observers_hear_of_every_stage(monkeypatch):
    collected = []
    monkeypatch.setattr(
        driver,
        "stage_done",
        lambda stage, module, target: collected.append((stage, str(target))),
    )
    scale("sm_80")
    assert collected == [(s, "nvidia:sm_80") for s in ("trace", "ttgir", "llir", "ptx", "cubin")]


SCRIPT = """
import importlib, sys
sys.path.insert(0, {folder!r})
import gluon_core as gluon
from gluon_core.errors import KernelChangedError
import changing
path = changing.__file__
text = open(path).read()
def build(value):
    return gluon.compile(changing.put, target="sm_80", signature={{"y": "*fp32"}}, constexprs={{"VALUE": value}})
build(1.0)
open(path, "w").write("# a line before it\\n" + text)
build(2.0)
open(path, "w").write(text.replace("VALUE)", "VALUE + 1)"))
try:
    build(3.0)
except KernelChangedError as error:
    print("changed:", error)
"""


def test_a_kernel_that_changed_on_disk_is_not_compiled(tmp_path):
    (tmp_path / "changing.py").write_text(
        textwrap.dedent(
            """
            import gluon_core as gluon
            from gluon_core import language as gl


            @gluon.jit
            def put(y, VALUE: gl.constexpr):
                gl.store(y, VALUE)
            """
        )
    )
    root = str(Path(gluon.__file__).parent.parent)
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT.format(folder=str(tmp_path))],
        capture_output=True,
        text=True,
        cwd=root,
    )
    assert "changed: " in done.stdout, done.stderr
    assert "put changed on disk" in done.stdout and "changing.py" in done.stdout
    assert KernelChangedError is not None


def test_arguments_that_must_be_a_mapping():
    for argument in ("signature", "constexprs", "attrs", "options"):
        options = {"signature": {"y": "*fp32"}, argument: [3]}
        with pytest.raises(ArgumentError, match=r"not a mapping; .*a dict.*got \[3\]") as caught:
            gluon.compile(kernels.biased, "sim:hopper", **options)
        assert caught.value.argument == argument
