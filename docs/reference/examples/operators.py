import os

os.environ["GLUON_TARGET"] = "sim:hopper"

import torch
import torch.nn.functional as F

import gluon_kernels

torch.manual_seed(0)


def half(*shape: int) -> torch.Tensor:
    return torch.randn(*shape).bfloat16()


def near(result: torch.Tensor, right: torch.Tensor) -> bool:
    return bool((result.float() - right.float()).abs().max() <= 2e-2 * right.float().abs().max())


# -- gluon_kernels.matmul, gluon_kernels.bmm: products, with a bias and an activation
a, b, bias = half(40, 64), half(64, 72), half(72)
print(near(gluon_kernels.matmul(a, b, bias=bias, activation="relu"), F.relu(a @ b + bias)))
of_batches = gluon_kernels.bmm(a.expand(2, 40, 64), b.expand(2, 64, 72))
print(near(of_batches[1], a @ b))
#> True
#> True

# -- gluon_kernels.matmul_batch_invariant: a product whose rows have the same bits in every batch
alone = gluon_kernels.matmul_batch_invariant(a[:1], b)
print(torch.equal(alone, gluon_kernels.matmul_batch_invariant(a, b)[:1]))
#> True

# -- gluon_kernels.quantize, gluon_kernels.matmul_fp8: 8-bit floats with a scale for each row
x, x_scales = gluon_kernels.quantize(half(32, 128))
w, w_scales = gluon_kernels.quantize(half(48, 128))
result = gluon_kernels.matmul_fp8(x, w.mT, x_scales[:, None], w_scales[None, :])
print(near(result, (x.float() * x_scales[:, None]) @ (w.float() * w_scales[:, None]).mT))
#> True

# -- gluon_kernels.linear: weights of 8 bits
x, weight, scales = half(4, 128), torch.randint(-127, 128, (64, 128), dtype=torch.int8), half(64) / 64
print(near(gluon_kernels.linear(x, weight, scales=scales), x.float() @ (weight * scales[:, None].float()).mT))
#> True

# -- gluon_kernels.grouped_matmul: rows in groups, each with a matrix of its own
offs = torch.tensor([3, 10], dtype=torch.int32)  # the ends of the groups
rows, weights = half(10, 64), half(2, 64, 32)
result = gluon_kernels.grouped_matmul(rows, weights, offs)
print(near(result, torch.cat((rows[:3] @ weights[0], rows[3:] @ weights[1]))))
#> True

# -- gluon_kernels.moe: a layer of experts
tokens, scores = half(6, 64), torch.rand(6, 4)
weights, experts = scores.topk(2)
print(gluon_kernels.moe(tokens, weights, experts, half(4, 64, 128) / 8, half(4, 64, 64) / 8).shape)
#> torch.Size([6, 64])

# -- gluon_kernels.softmax: along any dimension
x = half(3, 1000)
print(near(gluon_kernels.softmax(x), x.softmax(-1)), gluon_kernels.softmax(x, 0).sum(0)[0].item())
#> True 1.0

# -- gluon_kernels.rms_norm, gluon_kernels.layer_norm: the residual is added first, and returned
weight, residual = half(1000), half(3, 1000)
result, summed = gluon_kernels.rms_norm(x, weight, residual=residual)
print(near(result, F.rms_norm(x + residual, (1000,), weight, 1e-6)), torch.equal(summed, x + residual))
print(near(gluon_kernels.layer_norm(x, weight), F.layer_norm(x, (1000,), weight)))
#> True True
#> True

# -- gluon_kernels.cross_entropy: the mean over the rows that count
labels = torch.tensor([5, -100, 999])
print(near(gluon_kernels.cross_entropy(x, labels), F.cross_entropy(x.float(), labels)))
#> True

# -- gluon_kernels.linear_cross_entropy: without all logits in memory
x, weight = half(3, 64), half(1000, 64)
loss = gluon_kernels.linear_cross_entropy(x, weight, labels)
print(near(loss, F.cross_entropy(x.float() @ weight.float().mT, labels)))
#> True

# -- gluon_kernels.swiglu: of the halves of a projection
gate, up = half(3, 256).chunk(2, -1)
print(near(gluon_kernels.swiglu(gate, up), F.silu(gate) * up))
#> True

# -- gluon_kernels.topk, gluon_kernels.TopK: equal elements in the order of their indices
values, indices = gluon_kernels.topk(torch.tensor([[1.0, 3.0, 2.0, 3.0]]), 2)
print(values.tolist(), indices.tolist(), type(gluon_kernels.topk(values, 1)) is gluon_kernels.TopK)
#> [[3.0, 3.0]] [[1, 3]] True

# -- gluon_kernels.cumsum: sums in float32
print(gluon_kernels.cumsum(torch.ones(2, 5))[0].tolist())
#> [1.0, 2.0, 3.0, 4.0, 5.0]

# -- gluon_kernels.rotary: the halves of heads rotated by the angles of their positions
angles = torch.rand(7, 16)
heads = half(1, 7, 2, 32)
rotated = gluon_kernels.rotary(heads, angles.cos(), angles.sin())
print(near(gluon_kernels.rotary(rotated, angles.cos(), angles.sin(), inverse=True), heads))
#> True

# -- gluon_kernels.attention: heads of keys that queries share
q, k, v = half(1, 4, 70, 64), half(1, 2, 70, 64), half(1, 2, 70, 64)
right = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
print(near(gluon_kernels.attention(q, k, v, causal=True), right))
#> True

# -- gluon_kernels.attention_varlen: packed sequences of 30 and 40 tokens
ends = torch.tensor([0, 30, 70], dtype=torch.int32)
packed = [x[0].transpose(0, 1).contiguous() for x in (q, k, v)]
print(gluon_kernels.attention_varlen(*packed, ends, causal=True).shape)
#> torch.Size([70, 4, 64])

# -- gluon_kernels.attention_fp8: expected one scale for each head, on Hopper
fp8 = [x.to(torch.float8_e4m3fn) for x in (q, k, v)]
ones = [torch.ones(1, x.shape[1]) for x in (q, k, v)]
print(gluon_kernels.attention_fp8(*fp8, *ones).shape)
#> torch.Size([1, 4, 70, 64])

# -- gluon_kernels.attention_decode: one new token of two sequences, whose keys are in pages of 16 tokens
keys, values = half(4, 16, 2, 64), half(4, 16, 2, 64)
table, lengths = torch.tensor([[3, 0], [1, 2]]), torch.tensor([20, 32])
table, lengths = table.int(), lengths.int()
print(gluon_kernels.attention_decode(half(2, 4, 64), keys, values, table, lengths).shape)
#> torch.Size([2, 4, 64])

# -- gluon_kernels.mla_decode: latent vectors of 512 elements and 64 rotated ones in pages of 64 tokens
cache, lengths = half(2, 64, 576) / 8, torch.tensor([50, 64], dtype=torch.int32)
table = torch.tensor([[1], [0]], dtype=torch.int32)
print(gluon_kernels.mla_decode(half(2, 16, 576) / 8, cache, table, lengths).shape)
#> torch.Size([2, 16, 512])

# -- gluon_kernels.gated_delta_rule, gluon_kernels.kda: linear attention with a gate for each head, or for each channel of the keys
q, k, v = (half(1, 70, 2, 64) / 8 for _ in "qkv")
gates, betas = -torch.rand(1, 70, 2), torch.rand(1, 70, 2)
one = gluon_kernels.gated_delta_rule(q, k, v, gates, betas)
other = gluon_kernels.kda(q, k, v, gates[..., None].expand(1, 70, 2, 64).contiguous(), betas)
print(near(one, other))
#> True

# -- gluon_kernels.gated_linear_attention, gluon_kernels.ssd: one operator under the names of two papers
steps, rates = torch.rand(1, 70, 2), -torch.rand(2)
one = gluon_kernels.ssd(v, steps, rates, k, q)
scaled = (v * steps[..., None]).bfloat16()
print(near(gluon_kernels.gated_linear_attention(q, k, scaled, steps * rates, scale=1.0), one))
#> True
