"""Portable tiles take descriptors that a launch made, and ported kernels those of their host code."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.errors import ArgumentError
from gluon_core.nvidia.hopper import TensorDescriptor
from gluon_write.port import port

pytestmark = [pytest.mark.once, pytest.mark.sampled(2)]

FOLDER = Path(__file__).parent / "triton_kernels"
LAYOUT = gl.NVMMASharedLayout.get_default_for([64, 64], gl.float16)
NARROW = gl.NVMMASharedLayout(32, 16, 2)


@gluon.jit(layouts="auto")
def doubled(x, tiles, out, N, B: gl.constexpr):
    x_tiles = gl.portable.descriptor(x, [N, N], [N, 1], [B, B])
    out_tiles = gl.portable.descriptor(out, [N, N], [N, 1], [B, B], host=tiles)
    place = [gl.program_id(0) * B, gl.program_id(1) * B]
    gl.portable.store(out_tiles, place, gl.portable.load(x_tiles, place) * 2)


@pytest.mark.parametrize("layout", [LAYOUT, NARROW, None])
def test_results(layout):
    """A descriptor of another layout, or none, is made in the kernel."""
    x = np.random.default_rng(0).standard_normal((96, 96)).astype(np.float16)
    out = np.zeros_like(x)
    tiles = TensorDescriptor.from_tensor(out, [64, 64], layout) if layout is not None else None
    doubled[(2, 2)](x, tiles, out, 96, 64, target="sim:hopper")
    assert (out == 2 * x).all()


@pytest.mark.parametrize("tiles, count", [(LAYOUT, 0), (NARROW, 1), (None, 1)])
def test_the_kernel_makes_no_descriptor_again(tiles, count):
    signature = {"x": "*fp16:16", "out": "*fp16:16", "N": "i32:16"}
    constants = {"B": 64}
    if tiles is None:
        constants["tiles"] = None
    else:
        signature["tiles"] = f"tensordesc<fp16[64, 64],{tiles}>"
    asked = gluon.compile(doubled, target="sm_90", signature=signature, constexprs=constants)
    assert asked.asm["ttgir"].count("ttng.tensormap_create") == count


def test_other_arguments():
    x = np.zeros((64, 64), np.float16)
    with pytest.raises(ArgumentError, match="host: not a descriptor of a launch"):
        doubled[(1, 1)](x, x, x, 64, 64, target="sim:hopper")


@pytest.mark.parametrize("target", ["sim:hopper", "sim:gfx942"])
@pytest.mark.parametrize(
    "file, case",
    [
        ("blocks", "host_descriptors"),
        ("fused_attention", "tutorial_causal"),
        ("fused_attention", "tutorial_device"),
    ],
)
def test_ported_kernels(file, case, target, tmp_path, monkeypatch):
    torch = pytest.importorskip("torch")
    monkeypatch.setenv("GLUON_TARGET", target)
    path = tmp_path / f"{file}.py"
    path.write_text(port((FOLDER / path.name).read_text(), str(FOLDER / path.name)).text)
    spec = importlib.util.spec_from_file_location(f"hosted_{file}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    if "hopper" in target:  # as on a GPU, where its launch makes the descriptors
        monkeypatch.setattr(module, "tensor_map", _tensor_map)
    result, wanted = getattr(module, case)()
    torch.testing.assert_close(result.float(), wanted.float(), atol=2e-2, rtol=1e-2)


def _tensor_map(base, shape, strides, block_shape):
    layout = gl.NVMMASharedLayout.get_default_for(list(block_shape), gl.float16)
    return TensorDescriptor(base, shape, strides, block_shape, layout)
