"""TMA on a GPU: the same kernels and results as on the simulator."""

from __future__ import annotations

import pytest
import torch

from gluon_core import language as gl
from gluon_core.nvidia.hopper import TensorDescriptor
from gluon_core.registry.load import registry
from gluon_core.testing import TRITON_VERSION
from tests.backends.sim.hardware import test_tma as kernels
from tests.backends.sim.hardware import test_tma_order as ordered
from tests.backends.sim.hardware.test_tma import CUBE, F16, F32, FLAT

DEVICE = registry().backend("nvidia").device.target()
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(DEVICE is None or not DEVICE.has("nvidia.tma"), reason="no GPU with TMA"),
]
since_38 = pytest.mark.skipif(TRITON_VERSION < (3, 8), reason="needs Triton 3.8")


@pytest.fixture(autouse=True)
def fresh(monkeypatch, tmp_path):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.delenv("GLUON_TARGET", raising=False)


def numbers(*shape, dtype=torch.float16):
    torch.manual_seed(0)
    return torch.randint(-99, 99, shape, device="cuda").to(dtype)


def describe(tensor, block, layout=F16, **more):
    return TensorDescriptor.from_tensor(tensor, list(block), layout, **more)


@pytest.mark.parametrize("block, layout", [((64, 64), F16), ((32, 128), F16), ((512, 64), F16)])
def test_boxes_in_and_across_the_tensor(block, layout):
    a = numbers(1000, 136)
    b = torch.zeros_like(a)
    grid = (-(-1000 // block[0]), -(-136 // block[1]))
    kernels.copy_boxes[grid](describe(a, block, layout), describe(b, block, layout))
    assert torch.equal(a, b)


@pytest.mark.parametrize("padding", ["zero", "nan"])
@pytest.mark.parametrize("x, y", [(-8, -8), (60, 40), (-64, 0), (500, 8)])
def test_elements_outside_come_as_padding(x, y, padding):
    a, out = numbers(100, 72), torch.zeros(64, 64, dtype=torch.float16, device="cuda")
    kernels.read_box[(1,)](describe(a, (64, 64), padding=padding), out, x, y, 1)
    value = float("nan") if padding == "nan" else 0.0
    wide = torch.full((1000, 1000), value, dtype=torch.float16, device="cuda")
    wide[100:200, 100:172] = a
    expected = wide[100 + x : 164 + x, 100 + y : 164 + y]
    torch.testing.assert_close(out, expected, rtol=0, atol=0, equal_nan=True)


def test_a_predicate_for_each_program():
    a, out = numbers(64, 64), torch.zeros(4, 64, 64, dtype=torch.float16, device="cuda")
    kernels.read_box[(4,)](describe(a, (64, 64)), out, 0, 0, 2)
    assert torch.equal(out[0], a) and torch.equal(out[1], a) and (out[2:] == 7).all()


def test_other_ranks():
    a = numbers(5, 64, 64)
    b = torch.zeros_like(a)
    kernels.squeeze[(1,)](describe(a, (1, 64, 64), CUBE), describe(b, (1, 64, 64), CUBE), 5)
    assert torch.equal(b, a.flip(0))
    a, b = numbers(1000), torch.zeros(1000, dtype=torch.float16, device="cuda")
    kernels.copy_line[(4,)](describe(a, (256,), FLAT), describe(b, (256,), FLAT))
    assert torch.equal(a, b)


@pytest.mark.skipif(TRITON_VERSION < (3, 7), reason="needs Triton 3.7")
def test_rounding_to_tf32_ties_included():
    bits = torch.arange(1024, dtype=torch.int32, device="cuda") * 0x1000 + 0x3F800000
    a = bits.view(torch.float32).reshape(32, 32).contiguous()
    out = torch.zeros_like(a)
    layout = gl.BlockedLayout([1, 4], [4, 8], [4, 1], order=[1, 0])
    kernels.read_float[(1,)](describe(a, (32, 32), F32, round_f32_to_tf32=True), out, layout)
    host = torch.zeros(32, 32)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GLUON_TARGET", "sim:sm_90")
        kernels.read_float[(1,)](
            describe(a.cpu(), (32, 32), F32, round_f32_to_tf32=True), host, layout
        )
    assert torch.equal(out.cpu(), host)


def test_descriptors_that_differ_between_programs():
    a = numbers(5, 64, 64)
    b = torch.zeros_like(a)
    sizes = torch.tensor([64, 1, 20, 33, 48], dtype=torch.int32, device="cuda")
    kernels.copy_matrices[(2, 1, 5)](a, b, sizes, 64, 0, F16)
    for one, other, size in zip(a, b, sizes.tolist()):
        assert torch.equal(other[:size], one[:size]) and not other[size:].any()


def test_a_descriptor_that_a_branch_chooses():
    a, b = numbers(64, 64), numbers(64, 64) + 1
    out = torch.zeros(4, 64, 64, dtype=torch.float16, device="cuda")
    kernels.choose[(4,)](a, b, out, F16)
    cut = b.clone()
    cut[40:] = 0
    assert torch.equal(out, torch.stack([a, cut, a, cut]))


@pytest.mark.parametrize("kind", ["add", "min", "max", "and", "or", "xor"])
def test_reductions_of_integers(kind):
    layout = gl.NVMMASharedLayout(128, 32, 2)
    parts, b = numbers(128, 32, dtype=torch.int32), numbers(30, 32, dtype=torch.int32)
    cpu = b.cpu().clone()
    kernels.reduce_box[(4,)](describe(parts, (32, 32), layout), describe(b, (32, 32), layout), kind)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GLUON_TARGET", "sim:sm_90")
        kernels.reduce_box[(4,)](
            describe(parts.cpu(), (32, 32), layout), describe(cpu, (32, 32), layout), kind
        )
    assert torch.equal(b.cpu(), cpu)


@pytest.mark.parametrize("kind", ["add", "min", "max"])
def test_reductions_of_floats(kind):
    parts, b = numbers(128, 64), numbers(30, 64)
    stacked = torch.cat([b[None], parts.reshape(4, 32, 64)[:, :30]])
    kernels.reduce_box[(4,)](describe(parts, (32, 64)), describe(b, (32, 64)), kind)
    expected = {"add": stacked.sum(0), "min": stacked.amin(0), "max": stacked.amax(0)}[kind]
    assert torch.equal(b, expected)


@since_38
def test_im2col():
    from gluon_core.nvidia.hopper import TensorDescriptorIm2Col

    a = numbers(2, 8, 10, 64)
    out = torch.ones(9 * 256, 64, dtype=torch.float16, device="cuda")
    image = TensorDescriptorIm2Col.from_tensor(
        a, [256, 64], F16, pixel_box_lower_corner=[-1, -1], pixel_box_upper_corner=[-1, -1]
    )
    kernels.convolve[(3, 3)](image, describe(out, (256, 64)), 3, 3)
    padded = torch.nn.functional.pad(a, (0, 0, 1, 1, 1, 1, 0, 2))
    for r in range(3):
        for s in range(3):
            taps = padded[:, r : r + 8, s : s + 10].reshape(-1, 64)[:256].clone()
            taps[2 * 8 * 10 :] = 0
            assert torch.equal(out[(r * 3 + s) * 256 :][:256], taps), (r, s)


@since_38
def test_writes_of_a_store_are_there_after_the_longer_wait():
    b = torch.zeros(64, 64, dtype=torch.float16, device="cuda")
    out = torch.zeros_like(b)
    ordered.read_back[(1,)](describe(b, (64, 64)), b, out, False)
    assert (out == 5).all()


@pytest.mark.parametrize("pending", [0, 1])
def test_groups_of_stores(pending):
    b = torch.zeros(200 * 64, 64, dtype=torch.float16, device="cuda")
    ordered.alternate[(1,)](describe(b, (64, 64)), 200, pending)
    expected = torch.arange(1, 201, dtype=torch.float16, device="cuda").repeat_interleave(64)
    assert torch.equal(b, expected[:, None].expand_as(b))


def test_a_pipeline_of_partitions():
    a = numbers(70 * 64, 64)
    b = torch.zeros_like(a)
    ordered.pipeline[(1,)](describe(a, (64, 64)), describe(b, (64, 64)), 70, False)
    assert torch.equal(b, a + a)


@pytest.mark.skipif(TRITON_VERSION < (3, 7), reason="needs Triton 3.7")
@pytest.mark.parametrize("cga, multicast", [([[0, 0]], True), ([[1, 0]], False), ([[1, 0]], True)])
def test_blocks_of_a_cluster(cga, multicast):
    layout = gl.NVMMASharedLayout(128, 16, 2, cga_layout=cga)
    a = numbers(64, 64)
    b = torch.zeros_like(a)
    kernels.pair[(1,)](
        describe(a, (64, 64), layout), describe(b, (64, 64), layout), layout, multicast, num_ctas=2
    )
    assert torch.equal(a, b)
