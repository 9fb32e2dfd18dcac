"""Kernels in partitions begin while the kernel in front of them ends."""

import re

import numpy as np
import pytest
import torch

import gluon_core as gluon
from gluon_core import language as gl
from gluon_write.preferred import preferred_form
from gluon_write.writing.source import launched_early

pytestmark = pytest.mark.once

WAIT = 'gl.inline_asm_elementwise("griddepcontrol.wait;'


@gluon.jit
def wait():
    """Wait for the kernel in front."""
    gl.inline_asm_elementwise(
        "griddepcontrol.wait; mov.b32 $0, $1;", "=r,r", [0], gl.int32, False, 1
    )


@gluon.jit(layouts="auto")
def multiply(a, b, c, counts, M, N, K, BM: gl.constexpr, BN: gl.constexpr, BK: gl.constexpr, OWN: gl.constexpr):  # fmt: skip
    """Multiply by tiles; with OWN, the kernel waits itself."""
    if OWN:
        wait()
    row, column = gl.program_id(0) * BM, gl.program_id(1) * BN
    a_tiles = gl.portable.descriptor(a, [M, K], [K, 1], [BM, BK])
    b_tiles = gl.portable.descriptor(b, [K, N], [N, 1], [BK, BN])
    c_tiles = gl.portable.descriptor(c, [M, N], [N, 1], [BM, BN])
    acc = gl.zeros([BM, BN], gl.float32)
    for k in range(0, K, BK):
        x = gl.portable.load(a_tiles, [row, k])
        y = gl.portable.load(b_tiles, [k, column])
        acc = gl.portable.mma(x, y, acc)
    gl.portable.store(c_tiles, [row, column], acc.to(c.dtype.element_ty))


@gluon.jit(layouts="auto")
def multiply_counted(a, b, c, counts, M, N, K, BM: gl.constexpr, BN: gl.constexpr, BK: gl.constexpr, OWN: gl.constexpr):  # fmt: skip
    """Multiply by tiles, of which memory holds the number of rows."""
    row, column, rows = gl.program_id(0) * BM, gl.program_id(1) * BN, gl.load(counts)
    a_tiles = gl.portable.descriptor(a, [rows, K], [K, 1], [BM, BK])
    b_tiles = gl.portable.descriptor(b, [K, N], [N, 1], [BK, BN])
    acc = gl.zeros([BM, BN], gl.float32)
    for k in range(0, K, BK):
        x = gl.portable.load(a_tiles, [row, k])
        y = gl.portable.load(b_tiles, [k, column])
        acc = gl.portable.mma(x, y, acc)
    gl.portable.store(gl.portable.descriptor(c, [M, N], [N, 1], [BM, BN]), [row, column], acc.to(gl.float16))  # fmt: skip


def run(kernel, own=False, form="specialized"):
    """Return the kernel that ran, right on the simulator."""
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal((128, 128)).astype(np.float16) for _ in range(2))
    c, counts = np.zeros((128, 128), np.float16), np.array([128], np.int32)
    sizes = 128, 128, 128, 128, 128, 64
    with preferred_form(form):
        ran = kernel[(1, 1)](a, b, c, counts, *sizes, own, target="sim:sm_90")
    assert np.allclose(c, a.astype(np.float32) @ b, atol=0.1)
    return ran


def test_a_loop_of_one_product_waits_and_allows_nothing(chosen_sources):
    assert run(multiply, form="pipelined").metadata.launch_pdl
    text = chosen_sources[0]
    assert text.count(WAIT) == 1 and text.index(WAIT) < text.index("gl.portable.descriptor(")
    assert "pipeline(" in text and "launch_dependents" not in text


def test_partitions_wait(chosen_sources):
    assert run(multiply).metadata.launch_pdl
    kernel, *partitions = re.split(r"^def ", chosen_sources[0], flags=re.M)[1:]
    assert WAIT not in kernel and len(partitions) == 3
    for text in partitions:
        assert text.count(WAIT) == 1 and text.index(WAIT) < text.index("gl.portable.descriptor(")


def test_a_kernel_waits_in_front_of_its_loads(chosen_sources):
    assert run(multiply_counted).metadata.launch_pdl
    kernel, *partitions = re.split(r"^def ", chosen_sources[0], flags=re.M)[1:]
    assert kernel.index(WAIT) < kernel.index("gl.load(counts)")
    assert partitions and not any(WAIT in text for text in partitions)


def test_own_waits_are_left_alone(chosen_sources):
    assert not run(multiply, True).metadata.launch_pdl
    assert chosen_sources[0].count("griddepcontrol") == 1


def test_machine_code_waits_before_it_describes():
    signature = dict.fromkeys("abc", "*fp16:16") | {"counts": "*i32:16"}
    signature |= dict.fromkeys("MNK", "i32:16")
    sizes = {"BM": 128, "BN": 128, "BK": 64, "OWN": False}
    with preferred_form("specialized"):
        kernel = gluon.compile(multiply, target="sm_90", signature=signature, constexprs=sizes)
    assert kernel.metadata.launch_pdl
    code = re.findall(
        r"griddepcontrol\.wait|tensormap\.replace\.tile\.global_address|cp\.async\.bulk\.tensor|[ls]\w+\.global",
        kernel.asm["ptx"],
    )
    assert code.count("griddepcontrol.wait") == 3 and code[0] == "griddepcontrol.wait"
    assert sum("tensormap" in one for one in code) == 3


def test_launches_ask_for_it():
    text = "f[(1,)](a, b)\nf[g(\n    2)](\n    a, num_warps=8,\n)\ng[(1,)](a)\nf[(1,)](a, launch_pdl=no)\nf[(1,)]()\n"
    assert launched_early(text, "f") == (
        "f[(1,)](a, b, launch_pdl=True)\nf[g(\n    2)](\n    a, num_warps=8, launch_pdl=True,\n)\n"
        "g[(1,)](a)\nf[(1,)](a, launch_pdl=no)\nf[(1,)]()\n"
    )


def chain(product, a, b, other):
    """Return sums of products, in front of each of which a kernel of torch writes an operand, clears the result, or ends in another stream."""
    here, sums = torch.cuda.current_stream(), []
    for _ in range(4):
        a = torch.roll(a, 1, 0)
        c = torch.full_like(a, float("nan"))
        product(a, b, c)
        sums.append(c.sum(1, dtype=torch.float32))
        product(a, b, c)
        product(c + 0, b, a)
        other.wait_stream(here)
        with torch.cuda.stream(other):
            product(a, b, c)
        here.wait_stream(other)
        d = torch.empty_like(c)
        d.zero_()
        product(c, b, d)
        sums.append(d.sum(1, dtype=torch.float32))
        a = d + 0
    return torch.stack(sums)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_kernels_keep_their_order_on_a_gpu():
    if torch.cuda.get_device_capability() < (9, 0):
        pytest.skip("no dependent launch")
    torch.manual_seed(0)
    a, b = (torch.randn(512, 512, device="cuda", dtype=torch.float16) / 16 for _ in range(2))
    side, other = torch.cuda.Stream(), torch.cuda.Stream()

    def ours(x, y, out):
        with preferred_form("specialized"):
            kernel = multiply[(4, 4)](x, y, out, x, 512, 512, 512, 128, 128, 64, False)
        assert kernel.metadata.launch_pdl

    with torch.cuda.stream(side):
        wanted = chain(lambda x, y, out: torch.matmul(x, y, out=out), a, b, other)
        sums = [chain(ours, a, b, other) for _ in range(10)]
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=side):
            graphed = chain(ours, a, b, other)
        for _ in range(10):
            graphed.zero_()
            graph.replay()
            torch.cuda.synchronize()
            sums.append(graphed.clone())
    for one in sums:
        assert torch.equal(one, sums[0])
        assert torch.allclose(one, wanted, rtol=2e-2, atol=2e-2 * wanted.abs().max().item())
