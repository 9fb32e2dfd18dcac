"""The result of a layout-free product passes through one buffer, and a step loads its tiles before it stores them."""

import re

import pytest

import gluon_core as gluon
from gluon_core import language as gl

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.once


@gluon.jit(layouts="auto")
def product(a, b, c, M, N, K, stride, BM: gl.constexpr, BN: gl.constexpr, BK: gl.constexpr):
    m, n, k = gl.arange(0, BM), gl.arange(0, BN), gl.arange(0, BK)
    a_ptrs = a + m[:, None] * stride + k[None, :]
    b_ptrs = b + k[:, None] * N + n[None, :]
    acc = gl.zeros([BM, BN], gl.float32)
    for step in range(0, K, BK):
        x = gl.load(a_ptrs, mask=(m[:, None] < M) & (k[None, :] < K - step), other=0.0)
        y = gl.load(b_ptrs, mask=(k[:, None] < K - step) & (n[None, :] < N), other=0.0)
        acc = gl.portable.mma(x, y, acc)
        a_ptrs += BK
        b_ptrs += BK * N
    result = acc.to(c.dtype.element_ty)
    inside = (m[:, None] < M) & (n[None, :] < N)
    gl.store(c + m[:, None] * N + n[None, :], result, mask=inside)


SIGNATURE = {"a": "*fp16:16", "b": "*fp16:16", "c": "*fp16:16"}
SIGNATURE |= {name: "i32:16" for name in ("M", "N", "K", "stride")}


def ops_of(aligned=True, **sizes):
    """Return the moves of tiles of a kernel for Hopper, in order."""
    whole = ":16" if aligned else ""
    signature = {"a": f"*fp16{whole}", "b": f"*fp16{whole}", "c": "*fp16:16", "M": "i32:16"}
    signature |= {"N": f"i32{whole}", "K": "i32:16", "stride": f"i32{whole}"}
    sizes = {"BM": 128, "BN": 256, "BK": 32} | sizes
    asked = gluon.compile(
        product, target="sm_90", signature=signature, constexprs=sizes, num_stages=3, num_warps=8
    )
    return re.findall(
        r"(convert_layout|local_store|tt\.load|local_load|tt\.store|warp_group_dot) ",
        asked.asm["ttgir"],
    )


def test_a_large_result_has_a_buffer():
    assert ops_of() == ["warp_group_dot", "local_store", "local_load", "tt.store"]


def test_a_small_result_is_converted():
    assert ops_of(BN=128) == ["warp_group_dot", "convert_layout", "tt.store"]


def test_copies_start_behind_the_product():
    """Copies of one step are under way while the tiles of another one are awaited."""
    asked = gluon.compile(
        product, target="sm_90", signature=SIGNATURE, constexprs={"BM": 128, "BN": 128, "BK": 64},
        num_stages=3, num_warps=4,
    )  # fmt: skip
    text = asked.asm["ttgir"]
    loop = text[text.index("scf.for") : text.index("scf.yield")]
    ops = re.findall(r"async_wait \{num = \d|warp_group_dot |dot_wait|async_copy_global", loop)
    assert ops == ["async_wait {num = 1", "warp_group_dot ", "dot_wait", *["async_copy_global"] * 2]


def test_rings_fill_the_memory_that_there_is():
    """Four buffers of 48 KB leave no room for a fifth."""
    asked = gluon.compile(
        product, target="sm_90", signature=SIGNATURE, constexprs={"BM": 128, "BN": 256, "BK": 64},
        num_stages=4, num_warps=8,
    )  # fmt: skip
    assert asked.metadata.shared == 4 * 48 << 10


def test_loads_of_a_step_come_before_its_stores():
    """A store has a barrier before it, which no load passes."""
    ops = ops_of(False, BN=64)
    assert ops[:5] == ["tt.load", "tt.load", "local_store", "local_store", "warp_group_dot"]


@pytest.mark.parametrize("aligned", [True, False])
def test_results(aligned, monkeypatch):
    monkeypatch.setenv("GLUON_TARGET", "sim:hopper")
    M, N, K = (100, 112, 80) if aligned else (100, 101, 39)
    x, y = torch.randn(M, K).half(), torch.randn(K, N).half()
    out = torch.empty(M, N, dtype=torch.float16)
    product[(1,)](x, y, out, M, N, K, x.stride(0), BM=128, BN=256, BK=32, num_stages=3, num_warps=8)
    assert (out.float() - x.float() @ y.float()).abs().max() < 0.1


@gluon.jit(layouts="auto")
def rotated(x, cos, sin, out, T, H, B: gl.constexpr, D: gl.constexpr):
    t, half, whole = gl.program_id(0) * B + gl.arange(0, B), gl.arange(0, D // 2), gl.arange(0, D)
    present, head = (t < T)[:, None], gl.program_id(1)
    c = gl.load(cos + t[:, None] * (D // 2) + half[None, :], mask=present)
    s = gl.load(sin + t[:, None] * (D // 2) + half[None, :], mask=present)
    value = gl.load(x + (t[:, None] * H + head) * D + whole[None, :], mask=present)
    a, b = gl.split(gl.reshape(value, (B, D // 2, 2)))
    value = gl.reshape(gl.join(a * c - b * s, a * s + b * c), (B, D))
    gl.store(out + (t[:, None] * H + head) * D + whole[None, :], value, mask=present)


def test_registers_of_a_vector_are_in_the_order_of_memory():
    """Neighbours in another order are loaded one by one."""
    signature = {name: "*fp32:16" for name in ("x", "cos", "sin", "out")}
    signature |= {"T": "i32", "H": "i32"}
    kernel = gluon.compile(
        rotated, target="sm_90", signature=signature, constexprs={"B": 16, "D": 32}
    )
    accesses = re.findall(r"(?:ld|st)\.global\.\S+", kernel.asm["ptx"])
    assert sorted(accesses) == ["ld.global.v2.b32"] * 2 + ["ld.global.v4.b32", "st.global.v4.b32"]
