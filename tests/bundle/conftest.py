"""Bundles that several tests read."""

import pytest

from gluon_core.bundle import Bundle
from tests.bundle import kernels


def build():
    """A bundle of four kernels for a GPU of each vendor."""
    bundle = Bundle()
    scale = {"signature": kernels.SCALE, "grid": (4, 2), "source_map": True}
    bundle.add(kernels.scale, constexprs=kernels.HOPPER, target="hopper", **scale)
    bundle.add(kernels.scale, constexprs=kernels.CDNA3, target="gfx942", **scale)
    general = {**kernels.SCALE, "n": "i32:16"}
    bundle.add(kernels.scale, general, kernels.HOPPER, target="hopper")
    bundle.add(kernels.scale, kernels.SCALE, {**kernels.HOPPER, "BLOCK": 1024}, target="hopper")
    loose = {"x": "*fp16:16", "y": "*fp16", "n": "i64"}
    bundle.add(kernels.loose, loose, kernels.HOPPER, target="hopper")
    bundle.add(kernels.many, kernels.MANY, target="hopper")
    bundle.add(kernels.ones, {"y": "*i32", "stride": "i32:1"}, target=["hopper", "gfx942"])
    bundle.add(kernels.ones, {"y": "*i32", "stride": "i32"}, target="hopper")
    bundle.add(kernels.ones, {"y": "*i32", "stride": "i32"}, target="hopper", num_warps=8)
    return bundle


@pytest.fixture(scope="session")
def bundle_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("bundle") / "kernels.glb"
    build().write(path)
    return path
