"""Kernels as AMD's libraries write them: upstream's modules, right in the simulator, and compiled."""

from __future__ import annotations

from typing import Any, Callable, NamedTuple

import ml_dtypes
import numpy as np
import pytest

import gluon_core
from gluon_core.compiler import compile
from gluon_core.testing import bind
from tests.frontend import amd_kernels as sources
from tests.frontend import amd_matmuls as matmuls
from tests.frontend import oracle
from tests.frontend.vendor_oracle import VERSION, agree

BF16, HALF, SINGLE = ml_dtypes.bfloat16, np.float16, np.float32
FNUZ = ml_dtypes.float8_e4m3fnuz
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)
E2M1 = np.concatenate([E2M1, -E2M1])


def draw(rng, *shape, dtype=SINGLE):
    return rng.standard_normal(shape).astype(dtype)


def f32(x):
    return x.astype(SINGLE)


def unpacked(x):
    return E2M1[np.stack([x & 15, x >> 4], -1)].reshape(x.shape[0], -1)


def scale(s):
    return np.repeat(2.0 ** (s.astype(SINGLE) - 127), 32, 1)


def softmax(s):
    p = np.exp(s - s.max(-1, keepdims=True))
    return p / p.sum(-1, keepdims=True)


# Each gives the arguments of a launch, its grid, and a function for what is there and what should be.


def gemm(rng):
    a, b, bias = (draw(rng, *shape, dtype=BF16) for shape in ((200, 144), (136, 144), (136,)))
    c = np.zeros((200, 136), BF16)
    sizes = (200, 136, 144, 144, 1, 1, 144, 136, 1)
    return (a, b, c, bias, *sizes), (12,), lambda: (c, f32(a) @ f32(b).T + f32(bias))


def gemm_fp4(rng):
    a, b = rng.integers(0, 256, (2, 128, 256), dtype=np.uint8)
    s, t = rng.integers(124, 130, (2, 128, 16), dtype=np.uint8)
    c = np.zeros((128, 128), SINGLE)
    sizes = (128, 128, 512, 256, 256, 128, 16, 16)
    wanted = (unpacked(a) * scale(s)) @ (unpacked(b) * scale(t)).T
    return (a, b, c, s, t, *sizes), (4,), lambda: (c, wanted)


def gemm_async(rng):
    a, b = draw(rng, 2, 128, 256, dtype=HALF)
    c = np.zeros((128, 128), HALF)
    return (a, b, c, 128, 128, 256), (2, 2), lambda: (c, f32(a) @ f32(b).T)


def attention(rng):
    q, k, v = draw(rng, 3, 2, 200, 64, dtype=HALF)
    o, lse = np.zeros((2, 200, 64), HALF), np.zeros((2, 200), SINGLE)
    s = np.einsum("bmd,bnd->bmn", f32(q), f32(k)) * 0.125
    s = np.where(np.tril(np.ones((200, 200), bool)), s, -np.inf)
    arguments = (q, k, v, o, lse, 0.125, 12800, 64, 200)
    return arguments, (2, 2), lambda: (o, softmax(s) @ f32(v))


def logits(rng):
    q, kv = draw(rng, 2, 32, 128, dtype=FNUZ), draw(rng, 640, 128, dtype=FNUZ)
    s, w = np.abs(draw(rng, 640)), draw(rng, 2, 32)
    lengths = np.array([200, 77], np.int32)
    table = rng.permutation(40)[:32].reshape(2, 16).astype(np.int32)
    out, wanted = np.zeros((2, 2, 256), SINGLE)
    for b, length in enumerate(lengths):
        at = np.arange(length)
        slots = table[b, at // 16] * 16 + at % 16
        raw = np.maximum(f32(q[b]) @ f32(kv[slots]).T * s[slots], 0)
        wanted[b, :length] = (raw * w[b][:, None]).sum(0)
    return (q, kv, s, w, lengths, table, out, 16, 256), (2,), lambda: (out, wanted)


def decode(rng):
    q, k = draw(rng, 2, 16, 128, dtype=BF16), draw(rng, 20, 16, 128, dtype=BF16)
    v, o = draw(rng, 20, 16, 128, dtype=BF16), np.zeros((2, 16, 128), BF16)
    keys = np.ascontiguousarray(k.reshape(20, 16, 16, 8).transpose(0, 2, 1, 3))
    values = np.ascontiguousarray(v.transpose(0, 2, 1))
    table = rng.permutation(20)[:16].reshape(2, 8).astype(np.int32)
    wanted = [
        softmax(f32(q[b]) @ f32(k[table[b]]).reshape(-1, 128).T * 0.1)
        @ f32(v[table[b]]).reshape(-1, 128)
        for b in range(2)
    ]
    return (q, keys, values, o, table, 0.1), (2,), lambda: (o, np.stack(wanted))


def slices(rng):
    a, b = draw(rng, 128, 256, dtype=HALF), draw(rng, 256, 128, dtype=HALF)
    c = np.zeros((128, 128), SINGLE)
    return (a, b, c, 256), (1,), lambda: (c, f32(a) @ f32(b))


def gemm_tdm(transposed):
    def made(rng):
        a, b = draw(rng, 200, 160, dtype=HALF), draw(rng, 160, 136, dtype=HALF)
        c = np.zeros((200, 136), SINGLE)
        second = np.ascontiguousarray(b.T) if transposed else b
        return (a, second, c, 200, 136, 160), (12,), lambda: (c, f32(a) @ f32(b))

    return made


def row_sums(rng):
    a, o = draw(rng, 100, 320, dtype=HALF), np.zeros((100, 64), SINGLE)
    return (a, o, 100, 320), (4,), lambda: (o, f32(a).reshape(100, 5, 64).sum(1))


def gemm_mx(rng):
    a = rng.integers(0, 256, (128, 128), dtype=np.uint8)
    b = draw(rng, 128, 256, dtype=ml_dtypes.float8_e4m3fn)
    s, t = rng.integers(124, 130, (2, 128, 8), dtype=np.uint8)
    c = np.zeros((128, 128), SINGLE)
    wanted = (unpacked(a) * scale(s)) @ (f32(b) * scale(t)).T
    return (a, s, b.view(np.uint8), t, c, 128, 128, 256), (2, 2), lambda: (c, wanted)


def norm(rng):
    x, w = draw(rng, 11, 1000, dtype=BF16), draw(rng, 1000, dtype=BF16)
    q, s = np.zeros((11, 1000), FNUZ), np.zeros(11, SINGLE)
    wanted = f32(x) / np.sqrt((f32(x) ** 2).mean(1, keepdims=True) + 1e-6) * f32(w)
    return (x, w, q, s, 11, 1000, 1e-6), (3,), lambda: (f32(q) * s[:, None], wanted)


def experts(rng):
    n, k, count = 96, 80, 3
    a, b = draw(rng, 25, k, dtype=HALF), draw(rng, count, n, k, dtype=HALF)
    weights, chosen = np.abs(draw(rng, 50)), rng.integers(0, count, 50)
    ids, of = [], []
    for e in range(count):
        mine = list(np.nonzero(chosen == e)[0])
        mine += [50] * (-len(mine) % 64)
        ids, of = ids + mine, of + [e] * (len(mine) // 64)
    c, padded = np.zeros((50, n), HALF), np.array([len(ids)], np.int32)
    sorted_ids, expert = np.array(ids + [50] * 64, np.int32), np.array([*of, -1], np.int32)
    wanted = [f32(a[i // 2]) @ f32(b[chosen[i]]).T * weights[i] for i in range(50)]
    arguments = (a, b, c, weights, sorted_ids, expert, padded, n, k, 50, n * k)
    return arguments, (len(expert), 2), lambda: (c, np.stack(wanted))


def segments(rng):
    starts = np.array([0, 3, 4, 9, 12, 20], np.int32)
    parts, m, total = draw(rng, 12, 16, 64), draw(rng, 12, 16), np.abs(draw(rng, 12, 16))
    out = np.zeros((12, 64), SINGLE)
    e = np.exp2(m[:, :15] - m[:, :15].max(1, keepdims=True))
    wanted = (parts[:, :15] * e[..., None]).sum(1) / (total[:, :15] * e).sum(1)[:, None]
    wanted += np.searchsorted(starts[:5], np.arange(12), "right")[:, None] - 1
    return (starts, parts, m, total, out, 5), (12,), lambda: (out, wanted)


def rotary(rng):
    x, c, s = draw(rng, 20, 64), draw(rng, 20, 32), draw(rng, 20, 32)
    out, wanted = np.zeros((2, 20, 64), SINGLE)
    top, counts = np.zeros((20, 2), np.int32), np.zeros(64, np.int32)
    wanted[:, ::2] = x[:, ::2] * c - x[:, 1::2] * s
    wanted[:, 1::2] = x[:, 1::2] * c + x[:, ::2] * s
    best = np.argsort(-wanted, 1)[:, :2]

    def outcome():
        np.testing.assert_array_equal(top, best)
        np.testing.assert_array_equal(counts, np.bincount(best.ravel(), minlength=64))
        return out, wanted

    return (x, c, s, out, top, counts, 20), (2,), outcome


def recurrence(rng):
    a, x = rng.random((200, 16)).astype(SINGLE), draw(rng, 200, 16)
    out, wanted, h = np.zeros_like(x), np.zeros_like(x), np.zeros(16)
    for t in range(200):
        h = a[t] * h + x[t]
        wanted[t] = h
    return (a, x, out, 200), (1,), lambda: (out, wanted)


class Program(NamedTuple):
    """A source, its target, its data, and the Triton that upstream's ops of it need."""

    source: str
    target: str
    data: Callable[[Any], Any]
    since: tuple[int, int] = (3, 6)
    tolerance: float = 4e-3

    def text(self) -> str:
        old = VERSION < (3, 7)
        form = "warps_per_cta=[2, 2]" if old else "warp_bases=[[0, 1], [1, 0]]"
        layout = f"gl.amd.AMDWMMALayout(3, transposed=True, {form}, instr_shape=[16, 16, %d])"
        deep = 128 if "PACK_" in self.source else 32
        made = self.source.replace("ACC_", layout % deep).replace("PACK_", layout % 64)
        version, depth = ("3", "8") if self.target == "gfx942" else ("4", "16")
        made = made.replace("VERSION_", version).replace("KDIM", depth)
        return made.replace("gl.barrier()", "gl.thread_barrier()") if old else made


TDM = matmuls.TDM_GEMM
PROGRAMS = {
    "gemm": Program(matmuls.GEMM_A16W16, "gfx942", gemm),
    "gemm fp4": Program(matmuls.GEMM_AFP4WFP4, "gfx950", gemm_fp4),
    "gemm, asynchronous": Program(matmuls.ASYNC_GEMM, "gfx950", gemm_async),
    "attention, CDNA3": Program(sources.ATTENTION, "gfx942", attention),
    "attention, CDNA4": Program(sources.ATTENTION, "gfx950", attention),
    "logits of pages": Program(sources.PAGED_MQA_LOGITS, "gfx942", logits),
    "decoding of pages": Program(sources.PA_DECODE, "gfx942", decode),
    "slices": Program(matmuls.PIPELINED_SLICES, "gfx950", slices, (3, 8)),
    "gemm, TDM": Program(TDM.replace("TB_", "False"), "gfx1250", gemm_tdm(False), (3, 7)),
    "gemm, TDM, transposed": Program(TDM.replace("TB_", "True"), "gfx1250", gemm_tdm(True), (3, 7)),
    "TDM and barriers": Program(sources.TDM_MBARRIER, "gfx1250", row_sums),
    # Triton 3.6 cannot translate a wait for copies that are issued under a condition.
    "gemm mx": Program(matmuls.MXGEMM, "gfx1250", gemm_mx, (3, 7)),
    "norm and quantization": Program(sources.RMSNORM_QUANT, "gfx942", norm, (3, 7), 5e-2),
    "experts": Program(matmuls.MOE_GEMM, "gfx942", experts),
    "segments": Program(sources.FIND_SEQ_AND_REDUCE, "gfx950", segments),
    "rotary embedding": Program(sources.ROPE_TOPK, "gfx942", rotary, (3, 8)),
    "recurrence": Program(sources.SCAN_SSM, "gfx942", recurrence),
}


@pytest.fixture(params=list(PROGRAMS))
def program(request):
    found = PROGRAMS[request.param]
    if VERSION < found.since:
        pytest.skip(f"needs Triton {'.'.join(map(str, found.since))}")
    return found


def test_the_module_is_upstreams(program):
    warp_size = 32 if program.target == "gfx1250" else 64
    agree(program.text(), gluon_core._triton.GPUTarget("hip", program.target, warp_size))


def loaded(program):
    return oracle.load(program.text().replace("GLUON", "gluon_core"), oracle.OURS)


def test_it_runs_without_a_report(program):
    module = loaded(program)
    arguments, grid, outcome = program.data(np.random.default_rng(0))
    module.kernel[grid](*arguments, **module.KWARGS, target=f"sim:{program.target}")
    got, wanted = outcome()
    limit = program.tolerance * np.abs(wanted).max()
    np.testing.assert_allclose(got.astype(SINGLE), wanted, rtol=0, atol=limit)


def test_it_compiles(program):
    if VERSION < (3, 9) and "warp_pipeline_stage" in program.source:
        pytest.skip("Triton 3.8 takes no gl.barrier() beside the stages of a loop")
    module = loaded(program)
    source, options = bind(module.kernel, module.ARGS, module.KWARGS)
    compiled = compile(source, target=program.target, options=options)
    assert compiled.asm["hsaco"][:4] == b"\x7fELF"
