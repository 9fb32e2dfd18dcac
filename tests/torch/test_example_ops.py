"""The operators of the examples of products, serving and blocks: results, gradients and declarations are true."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from tests.kernels import cases

pytestmark = pytest.mark.once


def module(name):
    return cases.module(name)


products, expert, serving, block = (
    module(f"{kind}_ops") for kind in ("gemm", "moe", "serving", "block")
)


@pytest.fixture(autouse=True)
def simulated(monkeypatch):
    """Tensors are on the CPU here, where there is a GPU as well."""
    monkeypatch.setenv("GLUON_TARGET", "sim:sm_90")
    torch.manual_seed(0)


def bf16(*shape):
    return torch.randn(shape).bfloat16()


def int32(*numbers):
    return torch.tensor(numbers, dtype=torch.int32)


def near(got, wanted, tolerance=1e-2):
    if isinstance(wanted, tuple):
        for mine, other in zip(got, wanted):
            near(mine, other, tolerance)
        return
    got, wanted = got.double(), wanted.double()
    assert got.shape == wanted.shape
    torch.testing.assert_close(got, wanted, atol=tolerance * wanted.abs().max().item(), rtol=0)


# -- arguments of operators, and references ------------------------------------------------------


def experts(a, b, starts, counts):
    out = torch.zeros(a.shape[0], b.shape[2], dtype=torch.double)
    for i, (start, count) in enumerate(zip(starts.tolist(), counts.tolist())):
        rows = torch.arange(start, start + count)
        out = out.index_copy(0, rows, a[rows] @ b[i])
    return out


def routed(a, b, starts, counts, sources, targets, weights, rows):
    output = experts(a[sources.long()], b, starts, counts) * weights[:, None]
    return torch.zeros(rows, b.shape[2], dtype=torch.double).index_copy(0, targets.long(), output)


def scaled(a, b, a_scales, b_scales):
    return (a * a_scales[:, None]) @ (b * b_scales[:, None]).T


def scaled_by_block(a, b, a_scales, b_scales):
    a = a * a_scales.T.repeat_interleave(128, 1)[:, : a.shape[1]]
    wide = b_scales.repeat_interleave(128, 0).repeat_interleave(128, 1)
    return a @ (b * wide[: b.shape[0], : b.shape[1]]).T


def of_few_bits(a, weights, scales, format):
    arrays = weights.numpy(), scales.double().numpy()
    restored = module("matmul_weight_only").restored(*arrays, format, a.shape[1] // scales.shape[1])
    return a @ torch.from_numpy(restored).T


def loss(x, w, labels, ignored):
    logits = x @ w.T
    every = F.cross_entropy(logits, labels, reduction="none", ignore_index=ignored)
    return every, logits.logsumexp(1)


def packed(q, k, v, of_queries, of_keys, left, right, cap):
    shared, outputs = q.shape[1] // k.shape[1], []
    k, v = (x.repeat_interleave(shared, 1) for x in (k, v))
    bounds = [zip(ends.tolist(), ends.tolist()[1:]) for ends in (of_queries, of_keys)]
    for (begin, end), (first, last) in zip(*bounds):
        score = torch.einsum("qhd,khd->qhk", q[begin:end], k[first:last]) / q.shape[2] ** 0.5
        if cap:
            score = cap * (score / cap).tanh()
        away = torch.arange(last - first) - torch.arange(end - begin)[:, None]
        away = away - (last - first) + (end - begin)
        seen = away <= (1000 if right is None else right)
        seen &= away >= (-1000 if left is None else -left)
        score = score.masked_fill(~seen[:, None], -torch.inf)
        logsum = score.logsumexp(2)
        p = torch.where(seen[:, None], (score - logsum.clamp(min=-1e30)[..., None]).exp(), 0)
        outputs.append((torch.einsum("qhk,khd->qhd", p, v[first:last]), logsum))
    out, logsum = (torch.cat(parts) for parts in zip(*outputs))
    return out, logsum / math.log(2)


def paged(q, k_cache, v_cache, table, lengths):
    shared, rows = q.shape[1] // k_cache.shape[2], []
    for i, length in enumerate(lengths.tolist()):
        k, v = (x[table[i].long()].flatten(0, 1)[:length] for x in (k_cache, v_cache))
        k, v = (x.transpose(0, 1).repeat_interleave(shared, 0) for x in (k, v))
        rows.append(F.scaled_dot_product_attention(q[i, :, None], k, v)[:, 0])
    return torch.stack(rows)


def latent(q, cache, table, lengths, width, scale):
    rows = []
    for i, length in enumerate(lengths.tolist()):
        kv = cache[table[i].long()].flatten(0, 1)[:length]
        rows.append((q[i] @ kv.T * scale).softmax(1) @ kv[:, :width])
    return torch.stack(rows)


def norm(x, weight, bias, epsilon):
    spread = (x.var(-1, unbiased=False) + epsilon).rsqrt()
    mean = x.mean(-1)
    return F.layer_norm(x, x.shape[-1:], weight, bias, epsilon), mean.flatten(), spread.flatten()


def turned(x, cosines, sines, inverse):
    (a, b), c, s = x.chunk(2, -1), cosines[:, None], sines[:, None] * (-1 if inverse else 1)
    return torch.cat([a * c - b * s, b * c + a * s], -1)


def largest(x, count):
    return tuple(
        torch.sort(x, descending=True, stable=True, dim=-1)[i][..., :count] for i in (0, 1)
    )


def rounded(x, dtype):
    scale = x.abs().amax(-1) / 448
    return (x / scale[..., None]).to(torch.float8_e4m3fn), scale


def float8(*shape):
    return torch.randn(shape).to(torch.float8_e4m3fn)


# Operator, its arguments, and the same in float64; how many of its arguments have gradients.
CASES = {
    "bmm": (products.bmm, lambda: (bf16(2, 24, 40), bf16(2, 40, 16)), torch.matmul, 2),
    "grouped": (
        expert.grouped,
        lambda: (bf16(70, 40), bf16(3, 40, 24), int32(0, 3, 8), int32(3, 0, 62)),
        experts,
        2,
    ),
    "gathered": (
        expert.gathered,
        lambda: (
            bf16(5, 40), bf16(2, 40, 24), int32(0, 2), int32(2, 4), int32(4, 0, 0, 1, 2, 4),
            int32(0, 3, 1, 6, 4, 5), torch.rand(6), 7,
        ),
        routed,
        0,
    ),
    "fp8 by row": (
        products.matmul_fp8,
        lambda: (float8(5, 144), float8(24, 144), torch.rand(5), torch.rand(24)),
        scaled,
        0,
    ),
    "fp8 by block": (
        products.matmul_fp8,
        lambda: (float8(5, 144), float8(136, 144), torch.rand(2, 5), torch.rand(2, 2)),
        scaled_by_block,
        0,
    ),
    "int4": (
        products.matmul_weight_only_op,
        lambda: (bf16(3, 128), torch.randint(256, (24, 64), dtype=torch.uint8), bf16(24, 2), "int4"),
        of_few_bits,
        0,
    ),
    "linear cross entropy": (
        products.fused_linear_cross_entropy,
        lambda: (bf16(9, 40), bf16(72, 40), torch.tensor([1, -100, 71, 3, 4, 5, 0, 9, 9]), -100),
        loss,
        2,
    ),
    "packed": (
        serving.attention_varlen,
        lambda: (
            bf16(70, 4, 64), bf16(75, 2, 64), bf16(75, 2, 64), int32(0, 3, 70), int32(0, 5, 75),
            None, 0, None,
        ),
        packed,
        3,
    ),
    "packed, window and cap": (
        serving.attention_varlen,
        lambda: (
            bf16(70, 2, 64), bf16(70, 2, 64), bf16(70, 2, 64), int32(0, 3, 70), int32(0, 3, 70),
            5, 2, 3.0,
        ),
        packed,
        3,
    ),
    "packed, of any lengths": (  # none, one, more queries than keys, keys without queries
        serving.attention_varlen,
        lambda: (
            bf16(137, 2, 128), bf16(141, 1, 128), bf16(141, 1, 128), int32(0, 1, 1, 66, 135, 137, 137),
            int32(0, 1, 6, 69, 136, 136, 141), 5, 1, None,
        ),
        packed,
        3,
    ),
    "paged": (
        serving.attention_paged,
        lambda: (
            bf16(2, 4, 64), bf16(7, 4, 2, 64), bf16(7, 4, 2, 64),
            int32(*range(1, 7)).reshape(2, 3), int32(11, 2),
        ),
        paged,
        0,
    ),
    "latent": (
        serving.attention_latent,
        lambda: (bf16(2, 3, 96), bf16(6, 16, 96), int32(5, 3, 1, 0).reshape(2, 2), int32(20, 3), 64, 0.1),
        latent,
        0,
    ),
    "layer norm": (
        block.layer_norm,
        lambda: (torch.randn(3, 2, 72), torch.randn(72), torch.randn(72), 1e-5),
        norm,
        3,
    ),
    "SwiGLU": (
        block.swiglu,
        lambda: (torch.randn(3, 2, 72), torch.randn(3, 2, 72)),
        lambda gate, up: F.silu(gate) * up,
        2,
    ),
    "rotary": (
        block.rotary,
        lambda: (torch.randn(2, 3, 5, 32), torch.rand(3, 16), torch.rand(3, 16), False),
        turned,
        1,
    ),
    "top-k": (block.top_k, lambda: (bf16(2, 3, 50), 7), largest, 0),
    "top-k, radix": (block.top_k, lambda: (bf16(2, 3, 50), 9), largest, 0),
    "quantized rows": (
        block.quantize_rows,
        lambda: (torch.randn(3, 72), torch.float8_e4m3fn),
        rounded,
        0,
    ),
}  # fmt: skip
for name, op in products.plain.items():
    CASES[name] = (op, lambda: (bf16(24, 40), bf16(40, 16)), torch.matmul, 2)


def doubled(args):
    return [
        x.double() if isinstance(x, torch.Tensor) and x.is_floating_point() else x for x in args
    ]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", CASES)
def test_results_are_right(name):
    op, make, wanted, _ = CASES[name]
    args = make()
    got, other = op(*args), wanted(*doubled(args))
    near(got, other, 0.04 if name == "quantized rows" else 1e-2)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case[3]])
def test_gradients_are_torchs(name):
    op, make, wanted, count = CASES[name]
    args = make()
    gradients = []
    for function, arguments in ((op, args), (wanted, doubled(args))):
        leaves = [x.requires_grad_() for x in arguments[:count]]
        out = function(*leaves, *arguments[count:])
        out = out[0] if isinstance(out, tuple) else out
        weight = torch.linspace(-1, 1, out.numel()).reshape(out.shape).to(out.dtype)
        gradients.append(torch.autograd.grad((out * weight).sum(), leaves))
    near(*map(tuple, gradients), 2e-2)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", CASES)
def test_declarations_are_true(name):
    op, make, _, count = CASES[name]
    args = [
        x.requires_grad_() if i < count and isinstance(x, torch.Tensor) else x
        for i, x in enumerate(make())
    ]
    checks = ["test_faketensor", "test_autograd_registration"]
    if not name.startswith("fp8"):  # torch compares no such numbers
        checks.append("test_schema")
    torch.library.opcheck(op.overload, tuple(args), test_utils=checks)


def test_rows_in_pieces(monkeypatch):
    monkeypatch.setattr(block, "PIECE", 32)
    x = torch.randn(2, 90)
    near(block.top_k(x, 5), largest(x, 5), 0)


@pytest.mark.once
def test_rows_without_a_largest_element():
    for x, count, error in (
        (torch.arange(12).reshape(3, 4), 2, TypeError),
        (bf16(3, 4), 5, ValueError),
    ):
        with pytest.raises(error, match="must be"):
            block.top_k(x, count)


def test_in_a_compiled_function():
    """Gradients, too, with sizes that torch does not know."""
    a, b = bf16(24, 40).requires_grad_(), bf16(40, 16).requires_grad_()
    matmul = products.plain["matmul"]
    compiled = torch.compile(
        lambda a, b: matmul(a * 2, b) + 1, backend="aot_eager", fullgraph=True, dynamic=True
    )
    out = compiled(a, b)
    out.sum().backward()
    near(out.detach(), (a.double() * 2 @ b.double() + 1).detach())
    near(a.grad, (2 * b.double().sum(1)).expand(24, 40).detach())
