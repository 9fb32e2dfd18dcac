"""The calls that reach `libcuda` and `libamdhip64`, over stand-ins for the libraries."""

from __future__ import annotations

import struct
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest

from gluon_runtime import driver as drivers
from gluon_runtime import errors, open_bundle
from gluon_runtime.cuda import CudaDriver
from gluon_runtime.hip import HipDriver
from gluon_runtime.libcuda import Config
from gluon_runtime.values import Pointer
from tests.backends.fake_cuda import CALLBACK
from tests.bundle.double import Tensor
from tests.bundle.libraries import Cuda, Hip, arguments_at

pytestmark = pytest.mark.once

ARGUMENTS = (Tensor(0x1000), Tensor(0x2000), 500, 2.5, 512)
SIZES = [8, 8, 4, 4, 8, 8]
PACKED = struct.pack("<QQifQQ", 0x1000, 0x2000, 500, 2.5, 0, 0)


@pytest.fixture
def cuda():
    return Cuda()


@pytest.fixture
def hip():
    return Hip()


def kernel_of(path, driver, name="scale", **changed):
    """A kernel of the bundle, its launch parameters changed."""
    bundle = open_bundle(path, driver=driver)[name]
    forms = [replace(form, launch=replace(form.launch, **changed)) for form in bundle.kernel.forms]
    bundle.kernel = replace(bundle.kernel, forms=tuple(forms))
    return bundle


class TestCuda:
    def test_a_launch(self, bundle_file, cuda):
        kernel = kernel_of(bundle_file, CudaDriver(cuda))
        seen = []
        launch = cuda.cuLaunchKernelEx

        def look(config, function, pointers, extra):  # the buffer is used again afterwards
            seen.append(arguments_at(pointers.value, SIZES))
            return launch(config, function, pointers, extra)

        kernel.bundle.driver._launch = look
        kernel[(4, 2)](*ARGUMENTS, stream=33)
        (launched,) = cuda.launched
        assert launched["grid"] == (4, 2, 1) and launched["block"] == (128, 1, 1)
        assert (launched["shared"], launched["stream"], launched["function"]) == (0, 33, 0xF0)
        assert launched["attributes"] == [] and launched["extra"] is None
        assert seen == [PACKED]
        ((code,),) = cuda.named("load")
        assert code[:4] == b"\x7fELF" and cuda.named("function") == [(0xD0, b"scale")]
        assert cuda.named("mode") == [(2,), (2,)] and cuda.named("set") == []

    def test_clusters_cooperative_and_dependent(self, bundle_file, cuda):
        driver = CudaDriver(cuda)
        kernel = kernel_of(
            bundle_file, driver, num_ctas=16, cooperative=True, dependent=True, shared=100_000
        )
        kernel[(4, 2)](*ARGUMENTS)
        (launch,) = cuda.launched
        assert launch["grid"] == (64, 2, 1) and launch["shared"] == 100_000
        attributes = [(6, (1, 0, 0)), (2, (1, 0, 0)), (4, (16, 1, 1)), (5, (1, 0, 0))]
        assert launch["attributes"] == attributes
        # All that the device has, less what the kernel holds already; and clusters beyond 8 blocks.
        assert cuda.named("set") == [(8, 232448 - 1000), (14, 1)] and cuda.named("prefer") == [(1,)]

    def test_scratch_comes_and_goes_in_the_order_of_the_stream(self, bundle_file, cuda):
        kernel = kernel_of(bundle_file, CudaDriver(cuda), global_scratch=(64, 128))
        kernel[(4, 2)](*ARGUMENTS, stream=5)
        assert [call[0] for call in cuda.calls][-3:] == ["allocate", "launch", "free"]
        assert cuda.named("allocate") == [(64 * 8, 5)] and cuda.named("free") == [(0xABC000, 5)]

    def test_a_thread_without_a_context(self, bundle_file, cuda):
        kernel = kernel_of(bundle_file, CudaDriver(cuda))
        cuda.fails["launch"] = 201
        kernel[1](*ARGUMENTS)
        assert [call[0] for call in cuda.calls][-3:] == ["launch", "enter", "launch"]

    def test_missing_features_of_the_device(self, bundle_file, cuda):
        driver = CudaDriver(cuda)
        with pytest.raises(errors.BundleDeviceError, match="232448 bytes, got 300000 bytes"):
            kernel_of(bundle_file, driver, shared=300_000)[1](*ARGUMENTS)
        cuda.threads = 64
        with pytest.raises(errors.BundleDeviceError, match="at most 64 threads, got 128 threads"):
            kernel_of(bundle_file, driver)[1](*ARGUMENTS)
        assert not cuda.launched

    @pytest.mark.parametrize("call", ["load", "function", "launch"])
    def test_refusals_of_the_driver(self, bundle_file, cuda, call):
        cuda.fails[call] = 999
        text = r"CUDA_ERROR_TESTED \(999\): as the test wanted"
        with pytest.raises(errors.BundleDriverError, match=text):
            kernel_of(bundle_file, CudaDriver(cuda))[1](*ARGUMENTS)
        assert len(cuda.named("mode")) == 2  # the mode of captures is as it was


class TorchInUse:
    """A torch that is built for one driver, with a device that it works on."""

    def __init__(self, **built):
        self.version = SimpleNamespace(**{"cuda": None, "hip": None, **built})
        named = SimpleNamespace(gcnArchName="gfx950:xnack-") if "hip" in built else object()
        self.cuda = SimpleNamespace(
            is_initialized=lambda: True, get_device_properties=lambda device: named
        )
        self._C = SimpleNamespace(_cuda_getCurrentRawStream=lambda device: 55)


class TestHip:
    def test_a_launch(self, bundle_file, hip):
        driver = HipDriver(hip)
        assert driver.architecture(0) == "gfx942"
        kernel_of(bundle_file, driver)[(4, 2)](*ARGUMENTS, stream=33)
        assert hip.launched == [[4, 2, 1, 256, 1, 1, 0]]
        ((function, stream, pointers, extra),) = hip.named("launch")
        assert (function, stream, extra) == (0xF0, 33, None) and pointers

    def test_torch_for_another_driver_is_not_asked(self, bundle_file, hip, monkeypatch):
        """With an NVIDIA GPU in use, its torch knows neither the architecture nor the stream."""
        monkeypatch.setitem(sys.modules, "torch", TorchInUse(cuda="13.0"))
        monkeypatch.setattr(drivers, "_raw", {"cuda": lambda device: 44})
        driver = HipDriver(hip)
        assert driver.architecture(0) == "gfx942" and driver.stream(0) == 0
        monkeypatch.setitem(sys.modules, "torch", TorchInUse(hip="7.0"))
        assert HipDriver(hip).architecture(0) == "gfx950" and driver.stream(0) == 55

    def test_cooperative_and_clusters(self, bundle_file, hip):
        kernel_of(bundle_file, HipDriver(hip), cooperative=True)[4](*ARGUMENTS)
        assert hip.named("cooperative")[0][0] == 0xF0
        kernel_of(bundle_file, HipDriver(hip), num_ctas=2)[4](*ARGUMENTS)
        assert hip.launched[1]["grid"] == (8, 1, 1) and hip.launched[1]["block"] == (256, 1, 1)
        assert hip.launched[1]["attributes"] == [(4, (2, 1, 1))]

    def test_refusals_of_the_driver(self, bundle_file, hip):
        hip.fails["launch"] = 7
        with pytest.raises(errors.BundleDriverError, match="HIP error 7: as the test wanted"):
            kernel_of(bundle_file, HipDriver(hip))[1](*ARGUMENTS)


class TestPreparedInC:
    """Launches where `gluon-nvidia` is installed, compared with those through ctypes."""

    @pytest.fixture(params=["1", "0"])
    def both(self, request, bundle_file, cuda, monkeypatch):
        """A kernel, and (config, bytes of the arguments) of its launches."""
        if request.param == "0":
            monkeypatch.setattr(CudaDriver, "_address_of", lambda *of: 0)
        seen = []

        def launch(config, function, pointers, extra):
            launch_config = Config.from_address(config)
            seen.append(
                (
                    tuple(launch_config.grid),
                    tuple(launch_config.block),
                    launch_config.shared,
                    launch_config.count,
                    function,
                )
                + (arguments_at(pointers, SIZES),)
            )
            return cuda.fails.pop("launch", 0)

        cuda.cuLaunchKernelEx = CALLBACK(launch)
        driver = CudaDriver(cuda)
        return kernel_of(bundle_file, driver, num_ctas=2, cooperative=True, shared=64), seen

    @pytest.fixture
    def launched(self, request, both):
        """Handles of `prepare`, and their launches."""
        kernel, seen = both
        handle = kernel.prepare(*ARGUMENTS, grid=(3, 2))
        in_python = type(handle).__name__ == "function"
        assert in_python == (request.node.callspec.params["both"] == "0")
        return handle, seen

    def test_over_a_grid(self, both, cuda, request):
        kernel, seen = both
        for factor in (2.5, 3.5):
            kernel[(3, 2)](Tensor(0x1000), Tensor(0x2000), 500, factor, 512)
        in_python = {loaded.engine is None for loaded in kernel._loaded.values()}
        assert in_python == {request.node.callspec.params["both"] == "0"}
        assert seen[0] == ((6, 2, 1), (128, 1, 1), 64, 3, 0xF0, PACKED)
        assert seen[1][-1] == struct.pack("<QQifQQ", 0x1000, 0x2000, 500, 3.5, 0, 0)
        kernel[(1,)](0x3000, Pointer(0x4000, "fp32"), 500, 1.0, 512, stream=9)
        assert seen[2][-1] == struct.pack("<QQifQQ", 0x3000, 0x4000, 500, 1.0, 0, 0)
        for x, n in ((2**64, 500), (Tensor(0x1000), 2**40)):
            with pytest.raises(errors.BundleMissingError):
                kernel[(1,)](x, Tensor(0x2000), n, 1.0, 512)
        assert len(seen) == 3
        cuda.fails["launch"] = 201  # no context in this thread: it gets one
        kernel[(3, 2)](*ARGUMENTS)
        assert seen[-1][-1] == PACKED
        failing = iter([1, 1, 1])
        cuda.fails = type("Always", (dict,), {"pop": lambda self, *_: next(failing)})()
        with pytest.raises(errors.BundleDriverError, match="refused the launch"):
            kernel[(3, 2)](*ARGUMENTS)

    def test_constants_given_and_left_out(self, launched):
        handle, seen = launched
        handle(*ARGUMENTS)
        handle(*ARGUMENTS[:4])
        handle(*ARGUMENTS, "layout")
        assert seen == [((6, 2, 1), (128, 1, 1), 64, 3, 0xF0, PACKED)] * 3
        handle(Tensor(0x3000), 0x4000, -7, 1)
        assert seen[-1][-1] == struct.pack("<QQifQQ", 0x3000, 0x4000, -7, 1.0, 0, 0)
        handle(Pointer(0x5000), Tensor(0x6000), 1, 2.0)
        assert seen[-1][-1] == struct.pack("<QQifQQ", 0x5000, 0x6000, 1, 2.0, 0, 0)

    def test_mistakes_are_reported(self, launched, cuda):
        handle, seen = launched
        with pytest.raises(
            errors.BundleArgumentError, match="factor: .*missing 1 .*; expected x, y"
        ):
            handle(*ARGUMENTS[:3])
        with pytest.raises(errors.BundleMissingError, match="n: .*expected i32, got 1099511627776"):
            handle(Tensor(0x1000), Tensor(0x2000), 2**40, 2.5)
        assert not seen
        cuda.fails["launch"] = 201  # no context in this thread: it gets one
        handle(*ARGUMENTS)
        assert len(seen) >= 2 and seen[-1][-1] == PACKED
        failing = iter([1, 1, 1])
        cuda.fails = type("Always", (dict,), {"pop": lambda self, *_: next(failing)})()
        with pytest.raises(errors.BundleDriverError, match="refused the launch"):
            handle(*ARGUMENTS)
