"""Bundles that several tests read."""

import pytest

from gluon_core.bundle import Bundle
from tests.bundle import kernels


def build():
    """A bundle of four kernels for a GPU of each vendor."""
    made = Bundle()
    scale = {"signature": kernels.SCALE, "grid": (4, 2), "source_map": True}
    made.add(kernels.scale, constexprs=kernels.HOPPER, target="hopper", **scale)
    made.add(kernels.scale, constexprs=kernels.CDNA3, target="gfx942", **scale)
    general = {**kernels.SCALE, "n": "i32:16"}
    made.add(kernels.scale, general, kernels.HOPPER, target="hopper")
    made.add(kernels.scale, kernels.SCALE, {**kernels.HOPPER, "BLOCK": 1024}, target="hopper")
    loose = {"x": "*fp16:16", "y": "*fp16", "n": "i64"}
    made.add(kernels.loose, loose, kernels.HOPPER, target="hopper")
    made.add(kernels.many, kernels.MANY, target="hopper")
    made.add(kernels.ones, {"y": "*i32", "stride": "i32:1"}, target=["hopper", "gfx942"])
    made.add(kernels.ones, {"y": "*i32", "stride": "i32"}, target="hopper")
    made.add(kernels.ones, {"y": "*i32", "stride": "i32"}, target="hopper", num_warps=8)
    return made


@pytest.fixture(scope="session")
def bundle_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("bundle") / "kernels.glb"
    build().write(path)
    return path
