"""`GLUON_BUNDLE` and `GLUON_NO_JIT`: launches of kernels that take their code from bundles; and recording."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import numpy
import pytest

from gluon_core import errors
from gluon_core.bundle import Bundle, record
from gluon_core.compiler import driver as compiler
from tests.backends.fake_cuda import FakeCuda, plug_cuda
from tests.bundle import kernels
from tests.bundle.double import Tensor

ROOT = Path(__file__).parents[2]
ALL = (kernels.scale, kernels.loose, kernels.many, kernels.ones)


@pytest.fixture
def device(monkeypatch, bundle_file, tmp_path):
    """A machine with a Hopper GPU, an empty cache, and a bundle."""
    fake = FakeCuda([8, 8, 4, 4, 8, 8])
    plug_cuda(monkeypatch, fake)
    monkeypatch.setenv("GLUON_BUNDLE", str(bundle_file))
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("GLUON_TARGET", raising=False)
    for kernel in ALL:
        kernel.forget()
    yield fake
    for kernel in ALL:
        kernel.forget()


@pytest.fixture
def no_compiler(monkeypatch):
    def refuse(*args, **kwargs):
        raise AssertionError("compiled although the bundle has it")

    monkeypatch.setattr(compiler, "run_stages", refuse)


class Array(Tensor):
    """A tensor whose dtype is one of NumPy, which the JIT knows."""

    def __init__(self, address, dtype="float32", **more):
        super().__init__(address, dtype, **more)
        self.dtype = numpy.dtype(dtype)


ARGUMENTS = (Array(0x1000), Array(0x2000), 500, 2.5, 512, kernels.L32)


class TestTaking:
    def test_a_launch_takes_from_the_bundle(self, device, no_compiler, bundle_file, monkeypatch):
        monkeypatch.setenv("GLUON_NO_JIT", "1")
        for _ in range(2):
            compiled = kernels.scale[(3, 2)](*ARGUMENTS)
        assert len(device.launches) == 2
        assert device.launches[1].grid == (3, 2, 1) and device.launches[1].block == (128, 1, 1)
        assert device.launches[1].parameters[:4] == [
            struct.pack("<Q", 0x1000),
            struct.pack("<Q", 0x2000),
            struct.pack("<i", 500),
            struct.pack("<f", 2.5),
        ]
        known = [f["code"] for f in Bundle.open(bundle_file).kernels["scale"]["forms"]]
        assert f"code/{digest_of(compiled.asm['cubin'])}.cubin" in known
        assert compiled.metadata.shared == 0 and compiled.metadata.num_warps == 4

    def test_a_form_that_assumes_less(self, device, no_compiler):
        # BLOCK=1024 is there without the mark on n; n=512 has it.
        kernels.scale[1](Array(0x1000), Array(0x2000), 512, 2.5, 1024, kernels.L32)
        assert device.launches[0].parameters[2] == struct.pack("<i", 512)

    @pytest.mark.once
    def test_kernels_outside_the_bundle_are_compiled(self, device):
        compiled = kernels.scale[1](Array(0x1000), Array(0x2000), 500, 2.5, 256, kernels.L32)
        assert "ttgir" in compiled.asm and len(device.launches) == 1

    def test_options_choose(self, device, no_compiler):
        y = Array(0x2000, "int32")
        device.sizes = [8, 4, 8, 8]
        assert kernels.ones[1](Array(0x2004, "int32"), 3).metadata.num_warps == 4
        assert kernels.ones[1](y, 3, num_warps=8).metadata.num_warps == 8

    def test_simulated_launches_have_nothing_to_take(self, device):
        x, y = numpy.ones(64, "f4"), numpy.zeros(64, "f4")
        kernels.scale[1](x, y, 64, 2.5, 512, kernels.L32, target="sim:hopper")
        assert (y == 2.5).all() and not device.launches

    @pytest.mark.once
    def test_a_kernel_that_has_changed_since(self, device, monkeypatch, tmp_path):
        other = tmp_path / "kernels.py"
        text = (
            (ROOT / "tests/bundle/kernels.py")
            .read_text()
            .replace("value * factor", "value + factor")
        )
        other.write_text(text)
        import importlib.util

        spec = importlib.util.spec_from_file_location("changed_kernels", other)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        with pytest.warns(RuntimeWarning, match="scale from another state of its source"):
            compiled = module.scale[1](*ARGUMENTS[:5], module.L32)
        assert "ttgir" in compiled.asm  # compiled from what it is now
        monkeypatch.setenv("GLUON_NO_JIT", "1")
        monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "empty"))
        module.scale.forget()
        with pytest.raises(errors.RecompileError, match="source: as when the bundle was built"):
            module.scale[1](*ARGUMENTS[:5], module.L32)

    def test_the_same_source_elsewhere_is_the_same_kernel(self, device, no_compiler, tmp_path):
        other = tmp_path / "elsewhere.py"
        other.write_text((ROOT / "tests/bundle/kernels.py").read_text())
        import importlib.util

        spec = importlib.util.spec_from_file_location("elsewhere", other)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        module.scale[1](*ARGUMENTS[:5], module.L32)
        assert len(device.launches) == 1


def digest_of(data):
    import hashlib

    return hashlib.sha256(data).hexdigest()


class TestStrict:
    @pytest.mark.once
    @pytest.mark.parametrize(
        "change, argument, message",
        [
            ((Array(0x1004),), "x", r"x: \*fp32 divisible by 16; got x: \*fp32"),
            ((Array(0x1000, "float16"),), "x", r"got x: \*fp16 divisible by 16"),
            ((Array(0x1000), Array(0x2000), 2**40), "n", "n: i64"),
            ((Array(0x1000), Array(0x2000), 1), "n", "n: constant 1"),
            ((Array(0x1000), Array(0x2000), 50, 2.5, 64), "BLOCK", "constant 64"),
        ],
    )
    def test_the_argument_is_named(self, device, monkeypatch, change, argument, message):
        monkeypatch.setenv("GLUON_NO_JIT", "1")
        with pytest.raises(
            errors.RecompileError, match=message.replace("; got", ", got")
        ) as caught:
            kernels.scale[1](*change, *ARGUMENTS[len(change) :])
        assert caught.value.argument == argument and not device.launches

    def test_the_option_is_named(self, device, monkeypatch):
        monkeypatch.setenv("GLUON_NO_JIT", "1")
        with pytest.raises(errors.RecompileError, match="num_warps"):
            kernels.ones[1](Array(0x2000, "int32"), 3, num_warps=2)

    @pytest.mark.once
    def test_a_kernel_that_is_not_there(self, device, monkeypatch, tmp_path):
        bundle = Bundle()
        bundle.add(kernels.many, kernels.MANY, target="hopper")
        bundle.write(tmp_path / "other.glb")
        monkeypatch.setenv("GLUON_BUNDLE", str(tmp_path / "other.glb"))
        monkeypatch.setenv("GLUON_NO_JIT", "1")
        with pytest.raises(errors.RecompileError, match="launch of scale would compile"):
            kernels.scale[1](*ARGUMENTS)


class TestWrongBundles:
    def test_damaged(self, device, monkeypatch, bundle_file, tmp_path):
        data = bytearray(bundle_file.read_bytes())
        data[len(data) // 2] ^= 1
        (tmp_path / "bad.glb").write_bytes(data)
        monkeypatch.setenv("GLUON_BUNDLE", str(tmp_path / "bad.glb"))
        with pytest.raises(errors.BundleDamagedError):
            kernels.scale[1](*ARGUMENTS)

    def test_not_there(self, device, monkeypatch):
        monkeypatch.setenv("GLUON_BUNDLE", "/nowhere.glb")
        with pytest.raises(
            errors.BundleFormatError, match="/nowhere.glb: the bundle cannot be read"
        ):
            kernels.scale[1](*ARGUMENTS)

    @pytest.mark.once
    def test_two_with_other_kernels_of_one_name(self, device, monkeypatch, bundle_file, tmp_path):
        other = Bundle()
        other.add(kernels.many, kernels.MANY, target="hopper", name="scale")
        other.write(tmp_path / "other.glb")
        both = os.pathsep.join([str(bundle_file), str(tmp_path / "other.glb")])
        monkeypatch.setenv("GLUON_BUNDLE", both)
        with pytest.raises(
            errors.BundleNameError, match="two kernels that differ are called 'scale'"
        ):
            kernels.scale[1](*ARGUMENTS)

    @pytest.mark.once
    def test_two_that_complete_each_other(self, device, monkeypatch, tmp_path):
        paths = []
        for kernel, signature in ((kernels.scale, kernels.SCALE), (kernels.loose, None)):
            bundle = Bundle()
            signature = signature or {"x": "*fp32:16", "y": "*fp32", "n": "i32"}
            bundle.add(kernel, signature, kernels.HOPPER, target="hopper")
            paths.append(tmp_path / f"{kernel.__name__}.glb")
            bundle.write(paths[-1])
        monkeypatch.setenv("GLUON_BUNDLE", os.pathsep.join(map(str, paths)))
        monkeypatch.setattr(compiler, "run_stages", None)
        monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "empty"))
        kernels.scale[1](*ARGUMENTS)
        device.sizes = [8, 8, 4, 8, 8]
        kernels.loose[1](Array(0x1000), Array(0x2000), 1, 512, kernels.L32)
        assert len(device.launches) == 2


class TestRecording:
    def run(self, x=None, n=64, grid=2):
        x = numpy.ones(128, "f4") if x is None else x
        y = numpy.zeros(128, "f4")
        kernels.scale[(grid,)](x, y, n, 2.5, 512, kernels.L32, target="sim:hopper")

    @pytest.mark.once
    def test_forms_and_grids(self):
        self.run()  # a launch before is no reason to miss the next
        with record() as recording:
            self.run()
            self.run()
            self.run(n=50, grid=2)
            self.run(n=50, grid=3)
        self.run(n=48)
        one, other = recording
        assert [(f.grid, f.launches) for f in (one, other)] == [((2, 1, 1), 2), (None, 2)]
        assert str(one.target) == "sim:sm_90" and str(one.hardware) == "nvidia:sm_90"
        assert one.source.signature["n"] == "i32" and (2,) in one.source.attrs
        assert (2,) not in other.source.attrs and one.options == {}

    def test_launches_are_as_fast_afterwards(self, monkeypatch):
        self.run()
        with record():
            self.run()
        missed = []
        monkeypatch.setattr(kernels.scale.dispatcher, "miss", lambda *call: missed.append(call))
        self.run()
        assert not missed

    @pytest.mark.once
    def test_recorded_launches_are_those_of_a_gpu(self, device, monkeypatch, tmp_path):
        with record() as recording:
            self.run(n=64)
        bundle = Bundle()
        bundle.add_recorded(recording)
        bundle.write(tmp_path / "recorded.glb")
        assert [f["target"] for f in bundle.kernels["scale"]["forms"]] == ["nvidia:sm_90"]
        monkeypatch.setenv("GLUON_BUNDLE", str(tmp_path / "recorded.glb"))
        monkeypatch.setenv("GLUON_NO_JIT", "1")
        monkeypatch.setattr(compiler, "run_stages", None)
        monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "empty"))
        kernels.scale.forget()
        compiled = kernels.scale[2](Array(0x1000), Array(0x2000), 64, 2.5, 512, kernels.L32)
        assert list(compiled.asm) == ["cubin"] and len(device.launches) == 1
        assert bundle.kernels["scale"]["forms"][0]["grid"] == [2, 1, 1]
