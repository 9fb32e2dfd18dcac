"""The cache on disk keeps the forms of a kernel without layouts apart."""

import pytest

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.compiler.source import GluonASTSource
from gluon_write.preferred import preferred_form

pytestmark = pytest.mark.once


@gluon.jit(layouts="auto")
def matmul(a, b, c, K, B: gl.constexpr):
    a_tiles = gl.portable.descriptor(a, [B, K], [K, 1], [B, 64])
    b_tiles = gl.portable.descriptor(b, [K, B], [B, 1], [64, B])
    acc = gl.zeros([B, B], gl.float32)
    for k in range(0, K, 64):
        x = gl.portable.load(a_tiles, [0, k])
        y = gl.portable.load(b_tiles, [k, 0])
        acc = gl.portable.mma(x, y, acc)
    gl.store(c + gl.arange(0, B)[:, None] * B + gl.arange(0, B)[None, :], acc)


SIGNATURE = {"a": "*fp16:16", "b": "*fp16:16", "c": "*fp32:16", "K": "i32:16"}


def test_each_form_has_its_own_code(tmp_path, monkeypatch):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    texts = []
    for form in ("pipelined", "specialized", "pipelined"):
        with preferred_form(form):
            asked = gluon.compile(
                matmul, target="sm_90", signature=SIGNATURE, constexprs={"B": 64}, num_stages=3
            )
        texts.append(asked.asm["ttgir"])
    assert texts[0] == texts[2] and "ttg.warp_specialize" not in texts[0]
    assert "ttg.warp_specialize" in texts[1]


def test_key_of_a_kernel_with_layouts_stays():
    """The form counts for kernels whose layouts are chosen, and for no others."""

    def keys(kernel):
        source = GluonASTSource(kernel, SIGNATURE, {"B": 64})
        plain = source.hash()
        with preferred_form("specialized"):
            return plain, source.hash()

    plain, specialized = keys(matmul)
    assert plain != specialized
    one, other = keys(gluon.jit(matmul.fn))
    assert one == other
