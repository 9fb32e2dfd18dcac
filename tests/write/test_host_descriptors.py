"""Portable tiles take descriptors that a launch made, and ported kernels those of their host code."""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.amd import gfx1250
from gluon_core.errors import ArgumentError
from gluon_core.nvidia.hopper import TensorDescriptor
from gluon_core.registry.load import registry
from gluon_write.porting.port import port

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


@pytest.mark.parametrize("tiles, count", [(LAYOUT, 1), (NARROW, 0), (None, 0)])
def test_a_launch_knows_strides(tiles, count):
    """Its descriptors are of tensors with rows of 16 bytes, which the type of a stride does not say."""
    signature = {"x": "*fp16:16", "out": "*fp16:16", "N": "i32"}
    constants = {"B": 64}
    if tiles is None:
        constants["tiles"] = None
    else:
        signature["tiles"] = f"tensordesc<fp16[64, 64],{tiles}>"
    asked = gluon.compile(doubled, target="sm_90", signature=signature, constexprs=constants)
    assert asked.asm["ttgir"].count("ttng.async_tma_copy_local_to_global") == count


def test_rows_of_some_bytes_more():
    x = np.random.default_rng(0).standard_normal((72, 72)).astype(np.float16)
    out = np.zeros_like(x)
    tiles = TensorDescriptor.from_tensor(out, [64, 64], LAYOUT)
    doubled[(2, 2)](x, tiles, out, 72, 64, target="sim:hopper")
    assert (out == 2 * x).all()


def padded(rows, columns):
    return gl.PaddedSharedLayout.with_identity_for([[columns, 8]], [rows, columns], [1, 0])


@gluon.jit(layouts="auto")
def product(a, b, a_host, b_host, c, K, B: gl.constexpr, BK: gl.constexpr):
    a_tiles = gl.portable.descriptor(a, [B, K], [K, 1], [B, BK], host=a_host)
    b_tiles = gl.portable.descriptor(b, [K, B], [B, 1], [BK, B], host=b_host)
    acc = gl.zeros((B, B), dtype=gl.float32)
    for k in range(0, K, BK):
        x, y = gl.portable.load(a_tiles, [0, k]), gl.portable.load(b_tiles, [k, 0])
        acc = gl.portable.mma(x, y, acc)
    i, j = gl.arange(0, B), gl.arange(0, B)
    gl.store(c + i[:, None] * B + j[None, :], acc)


def test_tdm_takes_descriptors_of_a_launch():
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(s).astype(np.float16) for s in ((64, 96), (96, 64)))
    c = np.zeros((64, 64), np.float32)
    hosts = (
        gfx1250.TensorDescriptor.from_tensor(a, [64, 32], padded(64, 32)),
        gfx1250.TensorDescriptor.from_tensor(b, [32, 64], padded(32, 64)),
    )
    product[(1,)](a, b, *hosts, c, 96, 64, 32, num_stages=3, target="sim:gfx1250")
    assert np.allclose(c, a.astype(np.float32) @ b.astype(np.float32), atol=1e-3)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("gap, count", [(8, 0), (4, 2)])
def test_a_kernel_for_tdm_makes_no_descriptor_again(gap, count):
    """A descriptor of the launch has the layout of the tiles, or the kernel makes its own."""
    kinds = [
        f"tensordesc<fp16[{r}, {c}],{gl.PaddedSharedLayout.with_identity_for([[c, gap]], [r, c], [1, 0])}>"
        for r, c in ((64, 32), (32, 64))
    ]
    signature = {"a": "*fp16:16", "b": "*fp16:16", "c": "*fp32:16", "K": "i32:16"}
    signature |= {"a_host": kinds[0], "b_host": kinds[1]}
    asked = gluon.compile(
        product, target="gfx1250", signature=signature, constexprs={"B": 64, "BK": 32}
    )
    assert asked.asm["ttgir"].count("make_tensor") == count
    assert "tensor_load_to_lds" in asked.asm["amdgcn"]


def test_other_arguments():
    x = np.zeros((64, 64), np.float16)
    with pytest.raises(ArgumentError, match="host: not a descriptor of a launch"):
        doubled[(1, 1)](x, x, x, 64, 64, target="sim:hopper")


def imported(file, folder):
    """Return the module of a ported file."""
    path = folder / f"{file}.py"
    path.write_text(port((FOLDER / path.name).read_text(), str(FOLDER / path.name)).text)
    spec = importlib.util.spec_from_file_location(f"hosted_{file}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.sampled(4)
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
    module = imported(file, tmp_path)
    if "hopper" in target:  # as on a GPU, where its launch makes the descriptors
        monkeypatch.setattr(module, "tensor_map", _tensor_map)
    result, wanted = getattr(module, case)()
    torch.testing.assert_close(result.float(), wanted.float(), atol=2e-2, rtol=1e-2)


@pytest.mark.sampled(24)
@pytest.mark.parametrize("BM, BN, warps, partitions", [(64, 32, 4, 0), (128, 64, 8, 1)])
def test_functions_that_make_descriptors(BM, BN, warps, partitions, tmp_path):
    """The tutorial's function makes one of a pointer: tiles come ahead through it, in partitions of large blocks."""
    module = imported("fused_attention", tmp_path)
    tensors = {f"desc_{word}": "*fp16:16" for word in "qkvo"}
    signature = {"sm_scale": "fp32", "M": "*fp32:16", "Z": "i32", "H": "i32", **tensors}
    sizes = {"HEAD_DIM": 64, "BLOCK_M": BM, "BLOCK_N": BN, "STAGE": 3}
    kinds = {"FP8_OUTPUT": False, "warp_specialize": False, "IS_HOPPER": True}
    asked = gluon.compile(
        module.tutorial_attn_fwd, target="sm_90", signature={**signature, "N_CTX": "i32:16"},
        constexprs={**sizes, **kinds}, options={"num_warps": warps},
    )  # fmt: skip
    text = asked.asm["ttgir"]
    assert re.search(rf"memdesc<[2-9]x{BN}x64xf16", text)  # a ring of buffers
    assert text.count("ttg.warp_specialize(") == partitions


@pytest.mark.sampled(4)
@pytest.mark.parametrize("rows", [72, 80])
def test_tiles_of_host_code_come_ahead(rows, tmp_path, monkeypatch):
    """Its blocks have the sizes of a descriptor, and rows of tensors may be no multiples of 16 elements."""
    torch = pytest.importorskip("torch")
    module = imported("blocks", tmp_path)
    monkeypatch.setattr(module, "tensor_map", _tensor_map)
    x = torch.zeros(96, rows, dtype=torch.float16)
    tiles = [module.TensorDescriptor(x, x.shape, [rows, 1], [32, 32]) for _ in range(3)]
    sizes = {"BM": 32, "BN": 32, "BK": 32, "num_stages": 3}
    kernel = module.host_desc_kernel.warmup(
        *tiles, 80, grid=(1,), target=registry().target("sm_90"), **sizes
    )
    text = kernel.asm["ttgir"]
    assert text.count("memdesc<3x32x32xf16") > 1  # a ring of buffers for each
    assert text.count("ttng.async_tma_copy_global_to_local") == 6
    assert "ttng.tensormap_create" not in text


@pytest.mark.sampled(6)
@pytest.mark.parametrize("stage", [1, 3])
def test_parts_of_blocks_that_host_code_describes(stage, tmp_path, monkeypatch):
    """Two consumers have a half of the rows each: the kernel makes descriptors of the queries and the result for them."""
    torch = pytest.importorskip("torch")
    module = imported("fused_attention", tmp_path)
    monkeypatch.setattr(module, "tensor_map", _tensor_map)
    x = torch.zeros(256, 64, dtype=torch.float16)
    tiles = [
        module.TensorDescriptor(x, x.shape, [64, 1], [rows, 64]) for rows in (128, 64, 64, 128)
    ]
    words = {"FP8_OUTPUT": False, "warp_specialize": False, "IS_HOPPER": True, "num_warps": 8}
    kernel = module.tutorial_attn_fwd.warmup(
        0.3, torch.zeros(256), 1, 1, *tiles, N_CTX=256, HEAD_DIM=64, BLOCK_M=128, BLOCK_N=64,
        STAGE=stage, target=registry().target("sm_90"), **words,
    )  # fmt: skip
    text = kernel.asm["ttgir"]
    assert text.count("ttg.warp_specialize(") == 1
    assert text.count("ttng.tensormap_create") == 2


@pytest.mark.sampled(24)
@pytest.mark.parametrize("target", ["sim:hopper", "sim:gfx942"])
def test_hooks_of_configurations_set_blocks(target, tmp_path):
    """As `triton.autotune` calls them, which asks Triton for the active device when it is imported."""
    source = FOLDER / "shared" / "tuned_blocks.py"
    text = port(source.read_text(), str(source)).text
    assert "@passing_descriptors\n@gluon.jit(" in text and ".block_shape = [" in text
    run = "result, wanted = product()\nassert (result - wanted).abs().max() < 2e-2\n"
    path = tmp_path / "tuned_blocks.py"
    path.write_text(f"{text}\n\n{run}")
    around = {**os.environ, "GLUON_TARGET": target, "TRITON_CACHE_DIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-W", "ignore", path], env=around, capture_output=True)
    assert done.returncode == 0, done.stderr.decode()


def _tensor_map(base, shape, strides, block_shape):
    layout = gl.NVMMASharedLayout.get_default_for(list(block_shape), gl.float16)
    return TensorDescriptor(base, shape, strides, block_shape, layout)
