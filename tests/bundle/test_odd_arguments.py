"""Arguments that no kernel takes: each is refused by an error that names it."""

import json

import pytest
import torch

from gluon_bundle import Bundle
from gluon_runtime import Pointer, TensorDescriptor, container, errors, manifest, open_bundle
from tests.bundle.described import kind, moved
from tests.bundle.double import Double
from tests.bundle.kernels import counted

pytestmark = pytest.mark.once

X, Y = Pointer(0x1000, "fp32"), Pointer(0x2000, "fp32")
ENDLESS: list = []
ENDLESS.append(ENDLESS)


@pytest.mark.parametrize("address", [-16, 2**64 + 16])
def test_an_address_out_of_range(bundle_file, address):
    scale = open_bundle(bundle_file, driver=Double())["scale"]
    with pytest.raises(errors.BundleMissingError, match=r"^x: .* got Pointer"):
        scale[1](Pointer(address, "fp32"), Y, 500, 2.5, 512)


def test_a_tensor_without_memory(bundle_file):
    scale = open_bundle(bundle_file, driver=Double())["scale"]
    with pytest.raises(
        errors.BundleArgumentError, match=r"scale\(y\): no argument: .* data pointer"
    ):
        scale[1](X, torch.eye(4).to_sparse(), 500, 2.5, 512)


@pytest.mark.parametrize("value", [{(1, 2): 3}, ENDLESS], ids=["keys", "endless"])
def test_a_constant_that_json_lacks(bundle_file, value):
    scale = open_bundle(bundle_file, driver=Double())["scale"]
    with pytest.raises(errors.BundleMissingError, match="^BLOCK: "):
        scale[1](X, Y, 500, 2.5, value)
    with pytest.raises(errors.BundleMissingError, match="^num_warps: "):
        scale[1](X, Y, 500, 2.5, 512, num_warps=value)


def test_a_tuple_of_another_length_than_none(tmp_path):
    bundle = Bundle()
    for items in ((), ("i32", "i32")):
        bundle.add(counted, {"y": "*i32", "items": items}, target="hopper")
    bundle.write(tmp_path / "counted.glb")
    driver = Double()
    kernel = open_bundle(tmp_path / "counted.glb", driver=driver)["counted"]
    y = Pointer(0x40, "i32")
    kernel[1](y, (2, 3))
    assert driver.launches[-1].content[8:16] == b"\2\0\0\0\3\0\0\0"
    kernel[1](y, ())
    assert len(driver.loads) == 2
    for items in ((2,), (2, 3, 4), 5, None):
        with pytest.raises(
            errors.BundleMissingError, match=r"^items: .*expected \(\) or \(i32, i32\)"
        ):
            kernel[1](y, items)


@pytest.fixture(scope="module")
def boxes(tmp_path_factory):
    bundle = Bundle()
    bundle.add(moved, {"src": kind(32), "dst": kind(32), "row": "i32"}, target="hopper")
    file = tmp_path_factory.mktemp("odd") / "moved.glb"
    bundle.write(file)
    return file


class Maps(Double):
    def tensor_map(self, device, kind, value):
        return bytes(128)


@pytest.mark.parametrize(
    "facts, error",
    [
        ({"shape": (2**63, 64)}, errors.BundleMissingError),
        ({"strides": (-64, 1)}, errors.BundleMissingError),
        ({"block_shape": (32,)}, errors.BundleMissingError),
        ({"block_shape": (32, 64, 1)}, errors.BundleMissingError),
        ({"block_shape": (2**32, 64)}, errors.BundleMissingError),
        ({"block_shape": (2**70, 64)}, errors.BundleMissingError),
        ({"base": Pointer(-16, "fp16")}, errors.BundleMissingError),
        ({"shape": 5}, errors.BundleArgumentError),
        ({"strides": "ab"}, errors.BundleArgumentError),
        ({"block_shape": "ab"}, errors.BundleArgumentError),
    ],
)
def test_descriptors_of_odd_sizes(boxes, facts, error):
    usual = {"base": Pointer(0x1000, "fp16"), "shape": (100, 64), "block_shape": (32, 64)}
    kernel, good = open_bundle(boxes, driver=Maps())["moved"], TensorDescriptor(**usual)
    kernel[1](good, good, 0)
    with pytest.raises(error, match=r"^(src: |moved\(src\): )"):
        kernel[1](TensorDescriptor(**{**usual, **facts}), good, 0)


@pytest.mark.parametrize("divisor", [0, 2**32, 2**70])
def test_a_manifest_with_an_odd_divisor(bundle_file, divisor):
    document = json.loads(container.read(bundle_file).members[container.MANIFEST])
    document["rules"]["divisibility"] = divisor
    with pytest.raises(errors.BundleFormatError, match="expected a divisor"):
        manifest.parse(json.dumps(document).encode(), "test")
