"""Calls of bundled kernels that C answers: they launch as Python would, and only those it may."""

from __future__ import annotations

import ctypes
import struct
import types

import pytest
import torch

from gluon_core.bundle import Bundle
from gluon_runtime import errors, open_bundle
from gluon_runtime.cuda import CudaDriver
from gluon_runtime.libcuda import Config
from tests.backends.fake_cuda import CALLBACK
from tests.bundle import kernels
from tests.bundle.libraries import Cuda, arguments_at, to, value_of

pytestmark = [
    pytest.mark.once,
    pytest.mark.skipif(
        not hasattr(torch.Tensor, "__dlpack_c_exchange_api__"),
        reason="torch has no table of functions for DLPack",
    ),
]
SIZES = {"scale": [8, 8, 4, 4], "ones": [8], "flagged": [8, 1], "paired": []}


class Machine(Cuda):
    """Gives each kernel that is loaded a handle of its own, and records launches."""

    def __init__(self, devices=1):
        super().__init__()
        self.devices, self.seen, self.sizes = devices, [], []
        self.current = 0
        self.cuLaunchKernelEx = CALLBACK(self.launch)
        self.cuCtxGetDevice = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_int))(
            self.tell
        )

    def cuDeviceGetCount(self, count):
        to(count).value = self.devices
        return 0

    def tell(self, index):
        index[0] = self.current
        return 0

    def cuModuleGetFunction(self, function, module, name):
        self.note("function", value_of(module), name)
        to(function, ctypes.c_void_p).value = 0xF0 + len(self.named("function"))
        return 0

    def launch(self, config, function, pointers, extra):
        launch_config = Config.from_address(config)
        content = arguments_at(pointers, self.sizes)
        self.seen.append((function, tuple(launch_config.grid), launch_config.stream, content))
        return self.fails.pop("launch", 0)


@pytest.fixture
def machine(monkeypatch):
    monkeypatch.setattr(CudaDriver, "tensor_device", "cpu")
    return Machine()


def opened(path, machine, name="scale"):
    """The kernel, and the calls of it that came to Python."""
    machine.sizes = SIZES[name]
    kernel, calls = open_bundle(path, driver=CudaDriver(machine))[name], []
    entry = kernel.entry

    def counted(*arguments, **named):
        calls.append(arguments)
        entry(*arguments, **named)

    kernel.entry = counted
    return kernel, calls


X, Y = torch.zeros(2048), torch.zeros(2048)


def test_a_call_that_came_before_does_not_come_to_python(bundle_file, machine):
    kernel, calls = opened(bundle_file, machine)
    early = kernel[(4, 2)]  # taken before anything was launched
    early(X, Y, 500, 2.5, 512)
    early(Y, X, 501, 3.5, 512)
    kernel[7](X, Y, 502, 4.5, BLOCK=512)
    assert len(calls) == 1
    kernel[7](X, Y, n=512, factor=4.5, BLOCK=512)  # another form
    kernel[7](X, Y, 1024, 4.5, 512, stream=9)
    assert len(calls) == 2
    x, y = X.data_ptr(), Y.data_ptr()
    one, two = 0xF1, 0xF2
    launches = [(*seen[:3], *struct.unpack("<QQif", seen[3])) for seen in machine.seen]
    assert launches == [
        (one, (4, 2, 1), None, x, y, 500, 2.5),
        (one, (4, 2, 1), None, y, x, 501, 3.5),
        (one, (7, 1, 1), None, x, y, 502, 4.5),
        (two, (7, 1, 1), None, x, y, 512, 4.5),
        (two, (7, 1, 1), 9, x, y, 1024, 4.5),
    ]


CALLS = [
    *(((X, Y, n, 2.5, 512), {}) for n in (1, 2, 15, 16, 17, 0, -16, -1, 2**31 - 1)),
    ((X, Y, 32, 1.0, 1024), {}),
    ((X, Y, 33, 1.0, 1024), {}),
    ((X, torch.zeros(9)[1:], 32, 1.0, 512), {}),  # not aligned: unsupported form
    ((X, Y.half(), 32, 1.0, 512), {}),
    ((X, Y, 2**31, 1.0, 512), {}),
    ((X, Y, True, 1.0, 512), {}),
    ((X, Y, 32, 1, 512), {}),
    ((X, Y, 32, 1.0, True), {}),
    ((X, Y, 32, 1.0, 512, kernels.L32), {}),
    ((X, Y, 32, 1.0, 512, kernels.L64), {}),
    ((X, Y, 32, 1.0, 512), {"num_warps": 4}),
    ((X, Y, 32, 1.0, 512), {"num_warps": 8}),
    ((X.data_ptr(), Y.data_ptr(), 32, 1.0, 512), {}),
    ((torch.nn.Parameter(X), Y, 32, 1.0, 512), {}),
    ((X, Y, 32, 1.0), {}),
]


def test_a_call_launches_as_when_it_was_decided(bundle_file, monkeypatch):
    """Again and again, so that no call is taken for another that was learnt."""
    monkeypatch.setattr(CudaDriver, "tensor_device", "cpu")

    def outcome(kernel, machine, call):
        del machine.seen[:]
        arguments, named = call
        try:
            kernel[(2,)](*arguments, **named)
        except errors.BundleError as error:
            return type(error)
        ((function, grid, _, content),) = machine.seen
        loaded = kernel._loaded.values()
        form = next(hit.form for hit in loaded if hit.loaded.function == function)
        return form.key, grid, content

    machine = Machine()
    kernel, calls = opened(bundle_file, machine)
    expected = []
    for call in CALLS:
        kernel.forget()
        expected.append(outcome(kernel, machine, call))
    assert len(calls) == len(CALLS)
    assert 3 < expected.count(errors.BundleMissingError) < len(CALLS) // 2
    kernel, calls = opened(bundle_file, machine)
    came = []
    for step in (1, -1, 1):
        assert [outcome(kernel, machine, call) for call in CALLS[::step]] == expected[::step]
        came.append(len(calls))
    assert came[2] - came[0] == 2 * expected.count(errors.BundleMissingError)


def test_constants_of_integers(bundle_file, machine):
    kernel, calls = opened(bundle_file, machine, "ones")
    y = torch.zeros(4, dtype=torch.int32)
    for stride in (1, 5, 1, 5, 2**40):
        try:
            kernel[1](y, stride, num_warps=4)
        except errors.BundleMissingError:
            assert stride == 2**40
    kernel[1](y, 6, num_warps=8)
    kernel[1](y, 7, num_warps=8)
    assert [seen[0] - 0xF0 for seen in machine.seen] == [1, 2, 1, 2, 3, 3]
    assert len(calls) == 4


def test_an_integer_for_a_bit(tmp_path, machine):
    """0 and 16 are alike but for the bits that they need."""
    bundle = Bundle()
    bundle.add(kernels.flagged, {"y": "*i32:16", "flag": "u1"}, target="hopper")
    bundle.write(tmp_path / "flagged.glb")
    kernel, calls = opened(tmp_path / "flagged.glb", machine, "flagged")
    y = torch.zeros(4, dtype=torch.int32)
    for flag in (0, 0, 0):
        kernel[1](y, flag)
    for flag in (16, 2):
        with pytest.raises(errors.BundleMissingError, match="flag"):
            kernel[1](y, flag)
    assert len(calls) == 3 and [seen[3][8] for seen in machine.seen] == [0, 0, 0]


def test_tuples(tmp_path, machine):
    bundle = Bundle()
    for number in ("i32", "i32:1"):
        pair = (number, ("*fp32:16", "fp32"))
        bundle.add(kernels.paired, {"y": "*fp32:16", "pair": pair}, target="hopper")
    bundle.write(tmp_path / "paired.glb")
    kernel, calls = opened(tmp_path / "paired.glb", machine, "paired")
    for number in (5, 6, 1, 7, 1):
        machine.sizes = [8, 8, 4] if number == 1 else [8, 4, 8, 4]
        kernel[1](X, (number, (Y, number / 2)))
    with pytest.raises(errors.BundleMissingError):
        kernel[1](X, (5, (Y.half(), 2.5)))
    with pytest.raises(errors.BundleMissingError):
        kernel[1](X, (5, Y, 2.5))
    assert len(calls) == 4
    x, y = X.data_ptr(), Y.data_ptr()
    wanted = [
        struct.pack("<QQf", x, y, 0.5)
        if n == 1
        else struct.pack("<Qi", x, n) + struct.pack("<Qf", y, n / 2)
        for n in (5, 6, 1, 7, 1)
    ]
    assert [seen[3] for seen in machine.seen] == wanted


def test_grids(bundle_file, machine):
    kernel, calls = opened(bundle_file, machine)
    asked = []

    def grid(meta):
        asked.append(meta)
        return meta["n"] // 100, meta["BLOCK"] // 256

    for _ in range(2):
        kernel[grid](X, Y, 500, 2.5, 512)
    for _ in range(2):
        kernel(X, Y, 500, 2.5, 512)
    kernel[(0,)](X, Y, 500, 2.5, 512)
    with pytest.raises(errors.BundleGridError):
        kernel[(1, 70000)](X, Y, 500, 2.5, 512)
    assert [seen[1] for seen in machine.seen] == [(5, 2, 1)] * 2 + [(4, 2, 1)] * 2
    assert len(asked) == 2 and list(asked[0]) == list(asked[1])
    assert len(calls) == 1


def test_a_grid_function_gets_omitted_constants(bundle_file, machine):
    kernel, calls = opened(bundle_file, machine)
    for _ in range(3):
        kernel[lambda meta: meta["BLOCK"] // 128](X, Y, 16, 2.5, 512)
    forms = [form for form in kernel.kernel.forms if form.arguments[4].value == 512]
    kernel.kernel = type(kernel.kernel)(**{**vars(kernel.kernel), "forms": tuple(forms)})
    for _ in range(3):
        kernel[lambda meta: meta["BLOCK"] // 256](X, Y, 16, 2.5)
    assert [seen[1][0] for seen in machine.seen] == [4] * 3 + [2] * 3
    assert len(calls) == 2


def test_constants_that_may_change_are_looked_at_each_time(bundle_file, machine):
    class Named:
        def __init__(self, text):
            self.text = text

        def __repr__(self):
            return self.text

    kernel, calls = opened(bundle_file, machine)
    layout = Named(repr(kernels.L32))
    kernel[1](X, Y, 500, 2.5, 512, layout)
    kernel[1](X, Y, 500, 2.5, 512, layout)
    layout.text = "another"
    with pytest.raises(errors.BundleMissingError):
        kernel[1](X, Y, 500, 2.5, 512, layout)
    assert len(calls) == 3


def test_refusals_of_the_driver(bundle_file, machine):
    kernel, _ = opened(bundle_file, machine)
    kernel[1](X, Y, 500, 2.5, 512)
    machine.fails = type("Always", (dict,), {"pop": lambda self, *_: 1})()
    with pytest.raises(errors.BundleDriverError, match="refused the launch"):
        kernel[1](X, Y, 500, 2.5, 512)


def test_streams_that_are_objects(bundle_file, machine):
    class Stream:
        cuda_stream = 77

    kernel, _ = opened(bundle_file, machine)
    for stream in (Stream(), 33, Stream(), None, 34):
        kernel[1](X, Y, 500, 2.5, 512, stream=stream)
    assert [seen[2] for seen in machine.seen] == [77, 33, 77, None, 34]


def test_with_several_devices_the_current_one_counts(bundle_file, monkeypatch):
    monkeypatch.setattr(CudaDriver, "tensor_device", "cpu")
    machine = Machine(devices=2)
    kernel, calls = opened(bundle_file, machine)
    for current in (0, 0, 1, 0):
        machine.current = current
        kernel[1](X, Y, 500, 2.5, 512)
    assert len(calls) == 1 and len(machine.seen) == 4
    assert {device for _, device in kernel._loaded} == {0}
    for current in (0, 1):  # nothing but the current device says where these are
        machine.current = current
        kernel[1](X.data_ptr(), Y.data_ptr(), 500, 2.5, 512)
    assert {device for _, device in kernel._loaded} == {0, 1}
    machine.seen.clear()
    prepared = kernel.prepare(X, Y, 500, 2.5, 512, grid=1)
    assert isinstance(prepared, types.BuiltinFunctionType)
    for count, current in enumerate((0, 1), start=1):
        machine.current = current
        contexts = len(machine.named("enter"))
        prepared(X, Y, 500, 2.5, 512)
        assert len(machine.seen) == count
        assert (len(machine.named("enter")) > contexts) == (current == 1)
