"""Tensor descriptors as arguments of kernels in bundles: chosen, encoded and packed, in Python and in C."""

from __future__ import annotations

import json
import struct
import types

import numpy
import pytest
import torch

from gluon_bundle import Bundle
from gluon_core import language as gl
from gluon_core.errors import BundleUnsupportedError
from gluon_core.nvidia.hopper import TensorDescriptor
from gluon_runtime import Pointer, container, errors, open_bundle
from gluon_runtime import TensorDescriptor as Described
from gluon_runtime.cuda import CudaDriver
from tests.backends.fake_cuda import CALLBACK, ENCODE_TILED
from tests.bundle.described import kind, moved, rows
from tests.bundle.double import Double, Tensor
from tests.bundle.libraries import Cuda, arguments_at
from tests.bundle.test_c import MISSING, OK, folder, program  # noqa: F401 - fixtures

pytestmark = pytest.mark.once


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    bundle = Bundle()
    for count in (32, 16):
        bundle.add(moved, {"src": kind(count), "dst": kind(count), "row": "i32"}, target="hopper")
    file = tmp_path_factory.mktemp("described") / "moved.glb"
    bundle.write(file)
    return file


class Matrix(Tensor):
    """The attributes of a tensor of torch, 100 rows of 64."""

    shape, row = (100, 64), 64

    def stride(self):
        return self.row, 1


ENCODED = bytes(range(128))


class WithMaps(Double):
    def tensor_map(self, device, kind, value):
        self.memory.append((device, kind, value))
        return ENCODED


def in_boxes(rows, base, **more):
    return Described(base, block_shape=(rows, 64), **more)


def packed(address_free, row):
    """The buffer of a launch: map, shape and strides of two descriptors, and an int."""
    one = ENCODED + struct.pack("<2i2q", 100, 64, *address_free)
    return one + bytes(-len(one) % 64) + one + struct.pack("<i4xQQ", row, 0, 0)


class TestPython:
    def test_a_launch(self, path):
        driver = WithMaps()
        kernel = open_bundle(path, driver=driver)["moved"]
        src, dst = Matrix(0x1000, "float16"), Matrix(0x20000, "float16")
        for row in (7, 9):
            kernel[1](in_boxes(32, src), in_boxes(32, dst, padding="nan"), row)
        assert [launch.content for launch in driver.launches] == [
            packed((64, 1), 7),
            packed((64, 1), 9),
        ]
        # Encoded once each, for both launches.
        assert [(v.base.address, v.padding) for _, _, v in driver.memory] == [
            (0x1000, "zero"),
            (0x20000, "nan"),
        ]
        assert [m.box for _, m, _ in driver.memory] == [(32, 64)] * 2

    def test_the_box_chooses_the_form(self, path):
        driver = WithMaps()
        kernel = open_bundle(path, driver=driver)["moved"]
        src = Matrix(0x1000, "float16")
        kernel[1](in_boxes(16, src), Described(src), 7)
        assert {m.box for _, m, _ in driver.memory} == {(16, 64)}
        with pytest.raises(errors.BundleAmbiguousError, match="2 forms"):
            kernel[1](Described(src), Described(src), 7)
        with pytest.raises(errors.BundleMissingError, match=r"src: .*fp16.*block_shape=\(64, 64\)"):
            kernel[1](in_boxes(64, src), in_boxes(64, src), 7)
        with pytest.raises(errors.BundleMissingError, match=r"tensordesc<fp16\[.*got .*'fp32'"):
            kernel[1](in_boxes(32, Matrix(0x1000)), in_boxes(32, src), 7)
        with pytest.raises(errors.BundleMissingError, match=r"src: .*got Pointer\(0x1000, 'fp16'"):
            kernel[1](src, in_boxes(32, src), 7)

    def test_descriptors_of_gluon_core_and_plain_addresses(self, path):
        driver = WithMaps()
        kernel = open_bundle(path, driver=driver)["moved"]
        layout = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=2)
        array = numpy.zeros((100, 64), numpy.float16)

        class Base(Matrix):
            dtype = array.dtype

            def __init__(self):
                super().__init__(0x1000, "float16")
                self.dtype = array.dtype

        theirs = TensorDescriptor(Base(), (100, 64), (64, 1), (32, 64), layout)
        pointer = Described(Pointer(0x1000, "fp16"), (100, 64), block_shape=(32, 64))
        handle = kernel.prepare(theirs, pointer, 7, grid=1)
        handle(theirs, pointer, 9)
        assert driver.launches[0].content == packed((64, 1), 9)
        with pytest.raises(
            errors.BundleMissingError, match="row: .*expected i32, got 1099511627776"
        ):
            handle(theirs, pointer, 2**40)
        other = gl.NVMMASharedLayout(swizzle_byte_width=64, element_bitwidth=16, rank=2)
        other_box = TensorDescriptor(Base(), (100, 64), (64, 1), (32, 32), other)
        with pytest.raises(errors.BundleMissingError, match=r"src: .*block_shape=\(32, 32\)"):
            kernel[1](other_box, pointer, 7)

    @pytest.mark.parametrize(
        "value, got",
        [
            (lambda: Described(3.0), "float of shape None"),
            (lambda: Described(Pointer(64, "fp16")), "shape None"),
            (lambda: Described(Pointer(64, "fp16"), (8, 8), (8, 2)), r"strides \(8, 2\)"),
            (lambda: Described(Pointer(64, "fp16"), (8, 8), padding="one"), "padding 'one'"),
        ],
    )
    def test_objects_that_cannot_be_described(self, path, value, got):
        kernel = open_bundle(path, driver=WithMaps())["moved"]
        with pytest.raises(errors.BundleArgumentError, match=rf"moved\(src\): not a .*got .*{got}"):
            kernel[1](value(), Described(Matrix(0x1000, "float16")), 7)

    @pytest.mark.parametrize(
        "value, got",
        [
            (lambda: Described(Pointer(64, "fp16"), (8, 0)), r"shape=\(8, 0\)"),
            (lambda: Described(Pointer(64, "fp16"), (2,) * 6), r"shape=\(2, 2, 2, 2, 2, 2\)"),
            (lambda: Described(Pointer(64, "fp16"), (8, 8), (1,)), r"strides=\(1,\)"),
            (lambda: Described(Pointer(72, "fp16"), (8, 8)), r"Pointer\(0x48, 'fp16'"),
            (lambda: Described(Pointer(64, "fp16"), (8, 9)), r"strides=\(9, 1\)"),
            (lambda: Described(Pointer(64), (8, 8)), r"Pointer\(0x40, None"),
            (lambda: Described(Pointer(64, "fp16"), (2**31, 8)), r"shape=\(2147483648, 8\)"),
        ],
    )
    def test_tensors_that_no_copy_reaches(self, path, value, got):
        kernel = open_bundle(path, driver=WithMaps())["moved"]
        words = rf"src: .*expected tensordesc<fp16.*multiples of 16 bytes, got .*{got}"
        with pytest.raises(errors.BundleMissingError, match=words):
            kernel[1](value(), Described(Matrix(0x1000, "float16")), 7)

    def test_a_last_stride_of_a_known_call(self, path, monkeypatch):
        """C answers the second call, and lets nobody encode another map than the tensor's."""
        monkeypatch.setattr(CudaDriver, "tensor_device", "cpu")
        cuda = Cuda()
        cuda.cuLaunchKernelEx = CALLBACK(lambda *_: 0)
        cuda.cuTensorMapEncodeTiled = ENCODE_TILED(lambda *_: 0)
        kernel = open_bundle(path, driver=CudaDriver(cuda))["moved"]
        layout = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=2)
        described = types.SimpleNamespace(
            base=torch.zeros(100, 128, dtype=torch.float16), shape=(100, 64), strides=(64, 1),
            block_shape=(32, 64), layout=layout, padding="zero", round_f32_to_tf32=False,
        )  # fmt: skip
        kernel[1](described, described, 7)
        described.strides = (128, 2)
        with pytest.raises(errors.BundleArgumentError, match=r"strides \(128, 2\)"):
            kernel[1](described, described, 7)

    def test_the_driver_encodes(self, path):
        cuda, seen = Cuda(), []
        launch = cuda.cuLaunchKernelEx

        def look(config, function, pointers, extra):
            seen.append(arguments_at(pointers.value, [128, 4, 4, 8, 8] * 2 + [4, 8, 8]))
            return launch(config, function, pointers, extra)

        cuda.cuLaunchKernelEx = look
        kernel = open_bundle(path, driver=CudaDriver(cuda))["moved"]
        src = Matrix(0x1000, "float16")
        kernel[1](in_boxes(32, src), in_boxes(32, src, padding="nan"), 7)
        first, second = cuda.named("encode")
        assert first == (6, 2, 0x1000, [64, 100], [128], [64, 32], [1, 1], 0, 3, 2, 0)
        assert second[-1] == 1
        encoded = b"\xff" * 10 + b"\xdf" + b"\xff" * 117  # a small tensor's, unmarked
        shape = struct.pack("<2i2q", 100, 64, 64, 1)
        assert seen == [(encoded + shape) * 2 + struct.pack("<iQQ", 7, 0, 0)]
        cuda.fails["encode"] = 1
        with pytest.raises(errors.BundleDriverError, match="cannot encode the descriptor"):
            kernel[1](in_boxes(32, Matrix(0x4000, "float16")), in_boxes(32, src), 7)


class TestBuilding:
    def test_facts_of_the_manifest(self, path):
        document = json.loads(container.read(path).members["manifest.json"])
        (form,) = [f for f in document["kernels"]["moved"]["forms"] if "fp16[32" in str(f)]
        assert form["arguments"][0] == {
            "descriptor": kind(32),
            "element": "fp16",
            "rank": 2,
            "block": [32, 64],
        }
        field = form["packing"]["fields"][1]
        assert (field["path"], field["code"], field["offset"]) == ([1], "map", 192)
        assert field["map"]["box"] == [32, 64] and field["map"]["element_bytes"] == 2
        assert Bundle.open(path).verify().forms == 2

    def test_other_kinds_are_refused(self):
        with pytest.raises(BundleUnsupportedError, match=r"moved\(src\).*this kind"):
            im2col = kind(32).replace("tensordesc<", "tensordesc_im2col<")
            Bundle().add(moved, {"src": im2col, "dst": im2col, "row": "i32"}, target="hopper")

    def test_other_hardware_is_refused(self):
        layout = gl.PaddedSharedLayout.with_identity_for([[64, 8]], [32, 64], [1, 0])
        bundle = Bundle()
        bundle.add(
            rows, {"desc": f"tensordesc<fp16[32, 64],{layout!r}>", "y": "*i32"}, target="gfx1250"
        )
        with pytest.raises(BundleUnsupportedError, match="rows.*for this target.*gfx1250"):
            bundle.compile()

    def test_the_jit_takes_it(self, path, monkeypatch):
        from gluon_bundle import supply
        from gluon_core.compiler import driver as compiler
        from gluon_core.compiler.source import GluonASTSource
        from gluon_core.registry.load import registry

        monkeypatch.setenv("GLUON_BUNDLE", str(path))
        monkeypatch.setattr(compiler, "run_stages", None)
        source = GluonASTSource(moved, {"src": kind(32), "dst": kind(32), "row": "i32"})
        target = registry().target("hopper")
        backend = registry().backend(target.backend)
        taken = supply.take(source, target, backend, backend.compiler.options(target, {}))
        names = taken.metadata.tensordesc_meta
        assert [list(entry["block_size"]) for entry in names] == [[32, 64]] * 2
        assert {entry["elem_size"] for entry in names} == {2}


class TestC:
    SRC, DST = "dfp16@1000:100,64:64,1:32,64", "dfp16@20000:100,64:64,1"

    def test_a_form_is_chosen(self, program, path):  # noqa: F811
        (line,) = program("select", path, "moved", "cuda", "sm_90", self.SRC, self.DST, "i7")
        assert line == f"{OK} 4"
        for wrong in (
            "dfp16@1000:100,64:64,1:64,64",
            "dfp32@1000:100,64:64,1",
            "dfp16@1008:100,64:64,1",
            "dfp16@1000:100,64:65,1",
            "dfp16@1000:100,64,2:128,2,1",
            "pfp16@1000",
        ):
            (line,) = program("select", path, "moved", "cuda", "sm_90", wrong, self.DST, "i7")
            assert line.startswith(f"{MISSING} src: "), line

    def test_a_launch(self, program, folder, path):  # noqa: F811
        environment = {"LD_LIBRARY_PATH": str(folder), "FAKE_DESCRIBED": "1"}
        words = ("launch", path, "moved", 3, 1, 1, 5, self.SRC, self.DST, "i7")
        lines = program(*words, **environment)
        encoded = "aligned 1 interleave 0 swizzle 3 promotion 2 fill 0 64,0,64,1 100,128,32,1"
        maps = [line for line in lines if line.startswith("map type")]
        assert maps[:2] == [
            f"map type 6 at {address} {encoded}" for address in ("0x1000", "0x20000")
        ]
        launched = [line for line in lines if line.startswith("launch")]
        assert len(launched) == 2
        assert launched[0].endswith(
            "arguments map ffdfff 100:64 64:1 map ffdfff 100:64 64:1 7 0 0".removeprefix(
                "arguments "
            )
        )
        assert lines[-1].startswith("0 sm_90")
        lines = program(*words, **environment, FAKE_FAIL="cuTensorMapEncodeTiled")
        assert "src: the driver cannot encode the descriptor: error 700" in lines[-1]
