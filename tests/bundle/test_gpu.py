"""Bundles on the GPU that is plugged in: from Python without a compiler, from C, and under the JIT."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.bundle import Bundle, record
from gluon_core.compiler import driver as compiler
from gluon_core.errors import BackendError
from gluon_core.registry.load import registry
from gluon_runtime import TensorDescriptor, c_sources, errors, open_bundle
from tests.bundle import described, kernels

torch = pytest.importorskip("torch")
ROOT = Path(__file__).parents[2]

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]


@gluon.jit
def shifted(x, y, N: gl.constexpr, LAYOUT: gl.constexpr, SHARED: gl.constexpr):
    """Through shared memory, more of it than a block has by default."""
    offsets = gl.arange(0, N, layout=LAYOUT)
    buffer = gl.allocate_shared_memory(gl.float32, [N], SHARED)
    buffer.store(gl.load(x + offsets))
    gl.barrier()
    gl.store(y + offsets, buffer.load(LAYOUT) + 1.0)


@gluon.jit
def counted(total, BLOCK: gl.constexpr):
    gl.atomic_add(total, 1)


WIDE = {
    "N": 16384,
    "LAYOUT": gl.BlockedLayout([4], [32], [4], [0]),
    "SHARED": gl.SwizzledSharedLayout(1, 1, 1, order=[0]),
}


def target():
    backend = next(b for b in registry().backends.values() if not b.simulates and b.device.target())
    return backend.device.target()


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    bundle, here = Bundle(), target()
    layout = gl.BlockedLayout([4], [here.warp_size], [4], [0])
    constants = {"BLOCK": 512, "LAYOUT": layout}
    for n in ("i32", "i32:16"):
        bundle.add(kernels.scale, {**kernels.SCALE, "n": n}, constants, target=here, grid=4)
    bundle.add(kernels.many, kernels.MANY, target=here)
    bundle.add(kernels.ones, {"y": "*i32:16", "stride": "i32:1"}, target=here)
    if here.architecture.backend == "nvidia":
        bundle.add(shifted, {"x": "*fp32:16", "y": "*fp32:16"}, WIDE, target=here)
    bundle.add(
        counted, {"total": "*i32:16"}, {"BLOCK": 1}, target=here, launch_cooperative_grid=True
    )
    file = tmp_path_factory.mktemp("gpu") / "kernels.glb"
    bundle.write(file)
    return file


@pytest.fixture
def tensors():
    x = torch.randn(2048, device="cuda")
    return x, torch.zeros_like(x)


def test_a_process_without_triton_and_gluon_core(path):
    if target().simulated:
        pytest.skip("the device is emulated by gluon_core's own packages")
    program = """
    import sys
    sys.modules["triton"] = sys.modules["gluon_core"] = None  # to import either is an error
    import torch
    from gluon_runtime import open_bundle
    bundle = open_bundle(sys.argv[1])
    x = torch.randn(2048, device="cuda")
    y = torch.zeros_like(x)
    bundle["scale"][4](x, y, 2000, 2.5, 512)
    expected = torch.where(torch.arange(2048, device="cuda") < 2000, x * 2.5, 0)
    torch.testing.assert_close(y, expected)
    bundle["scale"](x, y, 2048, 3.0)
    torch.testing.assert_close(y, x * 3.0)
    print("launched")
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program), str(path)],
        env={**os.environ, "PYTHONPATH": str(ROOT / "runtime")},
        capture_output=True,
        text=True,
    )
    assert done.stdout.strip() == "launched", done.stderr


def test_every_width_of_arguments(path):
    y = torch.zeros(4, device="cuda")
    bundle = open_bundle(path)
    bundle["many"][1](y, -3, 2**20, 1.5, 0.5, -2.0, True, (-7, 3.25))
    assert y[0].item() == -3 + 2**20 + 1.5 + 0.5 - 2.0 - 7 + 3.25
    bundle["many"][1](y, -3, 2**20, 1.5, 0.5, -2.0, False, (-7, 3.25))
    assert y[0].item() == -3 + 2**20 + 1.5 + 0.5 - 2.0 + 3.25


def test_more_shared_memory_than_the_default(path):
    if target().architecture.backend != "nvidia":
        pytest.skip("the limit is NVIDIA's")
    x = torch.randn(16384, device="cuda")
    y = torch.zeros_like(x)
    bundle = open_bundle(path)
    assert bundle["shifted"].kernel.forms[0].launch.shared > 48 * 1024
    bundle["shifted"][1](x, y)
    torch.testing.assert_close(y, x + 1)


def test_a_cooperative_launch(path):
    total = torch.zeros(1, dtype=torch.int32, device="cuda")
    bundle = open_bundle(path)
    assert bundle["counted"].kernel.forms[0].launch.cooperative
    bundle["counted"][100](total)
    assert total.item() == 100


def test_streams_graphs_and_prepared_launches(path, tensors):
    x, y = tensors
    kernel = open_bundle(path)["scale"]
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    kernel[4](x, y, 2048, 2.0, 512, stream=stream)
    stream.synchronize()
    torch.testing.assert_close(y, x * 2)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kernel[4](x, y, 2048, 5.0, 512)
    y.zero_()
    graph.replay()
    torch.testing.assert_close(y, x * 5)
    handle = kernel.prepare(x, y, 2048, 2.0, 512, grid=4)
    handle(x, y, 2048, 7.0)
    torch.testing.assert_close(y, x * 7)


def test_dlpack(path, tensors):
    x, y = tensors

    class Capsule:
        def __init__(self, tensor):
            self.tensor = tensor

        def __dlpack__(self):
            return self.tensor.__dlpack__()

    open_bundle(path)["scale"][4](Capsule(x), Capsule(y), 2048, 2.5)
    torch.testing.assert_close(y, x * 2.5)


def test_arguments_that_the_bundle_is_not_for(path, tensors):
    x, y = tensors
    kernel = open_bundle(path)["scale"]
    with pytest.raises(
        errors.BundleMissingError, match="x: .*expected .*divisible by 16, got Pointer"
    ):
        kernel[4](x[1:], y, 2000, 2.5)
    with pytest.raises(errors.BundleDeviceError, match=r"scale\(x\)"):
        kernel[4](x.cpu(), y, 2000, 2.5)
    torch.cuda.synchronize()
    assert not y.any()


def test_the_jit_takes_from_the_bundle(path, tensors, monkeypatch, tmp_path):
    x, y = tensors
    monkeypatch.setenv("GLUON_BUNDLE", str(path))
    monkeypatch.setenv("GLUON_NO_JIT", "1")
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(compiler, "run_stages", None)
    kernels.scale.forget()
    layout = gl.BlockedLayout([4], [target().warp_size], [4], [0])
    for factor in (2.0, 3.0):
        kernels.scale[4](x, y, 2000, factor, 512, layout)
    torch.testing.assert_close(y[:2000], x[:2000] * 3)
    with pytest.raises(gluon.errors.RecompileError, match="BLOCK"):
        kernels.scale[4](x, y, 2000, 2.0, 1024, layout)
    kernels.scale.forget()


def test_recorded_launches_work(tensors, tmp_path):
    x, y = tensors
    layout = gl.BlockedLayout([4], [target().warp_size], [4], [0])
    with record() as recording:
        kernels.scale[4](x, y, 2048, 2.0, 512, layout)
    bundle = Bundle()
    bundle.add_recorded(recording)
    bundle.write(tmp_path / "recorded.glb")
    y.zero_()
    open_bundle(tmp_path / "recorded.glb")["scale"](x, y, 2048, 4.0)
    torch.testing.assert_close(y, x * 4)


class Value(ctypes.Structure):
    """`gb_value` of gluon_bundle.h."""

    _fields_ = [
        ("kind", ctypes.c_int),
        ("bits", ctypes.c_uint64),
        ("real", ctypes.c_double),
        ("text", ctypes.c_char_p),
        ("size", ctypes.c_uint64),
    ]


class Error(ctypes.Structure):
    _fields_ = [("status", ctypes.c_int), ("text", ctypes.c_char * 512)]


class Descriptor(ctypes.Structure):
    """`gb_descriptor`."""

    _fields_ = [
        ("address", ctypes.c_void_p),
        ("type", ctypes.c_char_p),
        ("rank", ctypes.c_uint32),
        ("shape", ctypes.c_uint64 * 5),
        ("strides", ctypes.c_uint64 * 5),
        ("box", ctypes.c_uint32 * 5),
        ("nan", ctypes.c_int),
        ("tf32", ctypes.c_int),
    ]


UNKNOWN = 2**64 - 1


@pytest.fixture(scope="module")
def loader(tmp_path_factory):
    """`launch(path, name, grid, values)`, through the loader in C."""
    compiler_ = shutil.which("gcc") or shutil.which("cc")
    if compiler_ is None:
        pytest.skip("there is no C compiler")
    if target().simulated:
        from gluon_emu.cuda import serve

        try:
            serve(str(target()))
        except BackendError as error:  # such as a torch for CUDA, which loads NVIDIA's driver
            pytest.skip(f"code in C does not find the emulated driver: {error}")
    library_path = tmp_path_factory.mktemp("c") / "libgluon_bundle.so"
    source = str(c_sources() / "gluon_bundle.c")
    flags = ["-std=c11", "-shared", "-fPIC", "-O2"]
    subprocess.run([compiler_, *flags, source, "-o", str(library_path), "-ldl"], check=True)
    library = ctypes.CDLL(str(library_path))
    for name in ("gb_open", "gb_device_open", "gb_find"):
        getattr(library, name).restype = ctypes.c_void_p
    library.gb_device_architecture.restype = ctypes.c_char_p
    error = Error()

    def launch(path, name, grid, values):
        bundle = ctypes.c_void_p(library.gb_open(str(path).encode(), ctypes.byref(error)))
        assert bundle, error.text
        device = ctypes.c_void_p(library.gb_device_open(0, ctypes.byref(error)))
        assert device, error.text
        assert library.gb_device_architecture(device).decode() == target().architecture.name
        kernel = ctypes.c_void_p(library.gb_find(bundle, name, ctypes.byref(error)))
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        status = library.gb_launch(
            device,
            kernel,
            (ctypes.c_uint32 * 3)(grid, 1, 1),
            stream,
            (Value * len(values))(*values),
            ctypes.c_size_t(len(values)),
            ctypes.byref(error),
        )
        assert status == 0, error.text

    return launch


def test_the_loader_in_c(path, tensors, loader):
    x, y = tensors
    values = (
        Value(0, x.data_ptr(), 0, b"fp32", UNKNOWN),
        Value(0, y.data_ptr(), 0, b"fp32", UNKNOWN),
        Value(1, 2000, 0, None, UNKNOWN),
        Value(3, 0, 2.5, None, UNKNOWN),
        Value(5, 0, 0, b"512", UNKNOWN),
        Value(6, 0, 0, None, UNKNOWN),
    )
    loader(path, b"scale", 4, values)
    torch.testing.assert_close(y[:2000], x[:2000] * 2.5)
    assert not y[2000:].any()


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    bundle = Bundle()
    signature = {"src": described.kind(32), "dst": described.kind(32), "row": "i32"}
    bundle.add(described.moved, signature, target=target())
    file = tmp_path_factory.mktemp("described") / "moved.glb"
    bundle.write(file)
    return file


@pytest.mark.skipif(
    not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0),
    reason="needs an SM90 GPU",
)
class TestDescriptors:
    """Boxes of 32 rows of a matrix of 100, which TMA moves; what is outside of it comes as zeros."""

    @pytest.fixture
    def matrices(self):
        source = torch.randn(100, 64, device="cuda", dtype=torch.half)
        return source, torch.full((32, 64), -1.0, device="cuda", dtype=torch.half)

    def moved(self, source, row):
        expected = torch.zeros(32, 64, device="cuda", dtype=torch.half)
        left = source[row : row + 32]
        expected[: len(left)] = left
        return expected

    def test_python(self, file, matrices):
        source, into = matrices
        kernel = open_bundle(file)["moved"]
        for row in (8, 90):
            kernel[1](TensorDescriptor(source), TensorDescriptor(into), row)
            assert torch.equal(into, self.moved(source, row))
        handle = kernel.prepare(TensorDescriptor(source), TensorDescriptor(into), 8, grid=1)
        handle(TensorDescriptor(source), TensorDescriptor(into), 24)
        assert torch.equal(into, self.moved(source, 24))

    def test_c(self, file, matrices, loader):
        source, into = matrices
        collected = []
        for tensor in matrices:
            shape, strides = ctypes.c_uint64 * 5, tensor.stride()
            one = Descriptor(tensor.data_ptr(), b"fp16", 2, shape(*tensor.shape), shape(*strides))
            collected.append(one)
        values = [Value(7, ctypes.addressof(one), 0, None, UNKNOWN) for one in collected]
        loader(file, b"moved", 1, (*values, Value(1, 90, 0, None, UNKNOWN)))
        assert torch.equal(into, self.moved(source, 90))

    def test_the_jit(self, file, matrices, monkeypatch, tmp_path):
        from gluon_core.nvidia.hopper import TensorDescriptor as HostDescriptor

        source, into = matrices
        monkeypatch.setenv("GLUON_BUNDLE", str(file))
        monkeypatch.setenv("GLUON_NO_JIT", "1")
        monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
        monkeypatch.setattr(compiler, "run_stages", None)
        described.moved.forget()
        layout = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=2)
        pair = (HostDescriptor.from_tensor(x, [32, 64], layout) for x in matrices)
        described.moved[(1,)](*pair, 24)
        assert torch.equal(into, self.moved(source, 24))
        described.moved.forget()
