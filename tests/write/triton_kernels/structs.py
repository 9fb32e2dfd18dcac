"""Kernels of plain Triton with structs, factories of kernels, aliases of functions, and rare arguments."""

import torch
import triton
import triton.language as tl
from triton.language.core import _aggregate as aggregate

try:
    from triton.language.extra import libdevice

    triton_tanh = libdevice.tanh
    triton_cast = tl.cast
except ImportError:
    triton_tanh = tl.math.tanh

    @triton.jit
    def triton_cast(x, dtype):
        return x.to(dtype)


def normal(*shape, seed=0, dtype=torch.float32):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


@aggregate
class Span:
    start: tl.tensor
    stop: tl.tensor
    STEP: tl.constexpr

    @triton.constexpr_function
    def __init__(self, start, stop, STEP):
        self.start = start
        self.stop = stop
        self.STEP = tl.constexpr(STEP)

    @triton.jit
    def count(self):
        return tl.cdiv(self.stop - self.start, self.STEP)

    @triton.jit
    def at(self, i):
        offs = self.start + i * self.STEP + tl.arange(0, self.STEP)
        return offs, offs < self.stop


@triton.jit
def span_of(cu_ptr, i, STEP: tl.constexpr):
    return Span(tl.load(cu_ptr + i), tl.load(cu_ptr + i + 1), STEP)


@triton.jit
def segment_kernel(x_ptr, cu_ptr, out_ptr, BLOCK: tl.constexpr):
    span = span_of(cu_ptr, tl.program_id(0), BLOCK)
    total = tl.zeros((BLOCK,), tl.float32)
    for i in range(0, span.count()):
        offs, ok = span.at(i)
        total += tl.load(x_ptr + offs, mask=ok, other=0.0)
    tl.store(out_ptr + tl.program_id(0), tl.sum(total))


def segments():
    x, cu = normal(70), torch.tensor([0, 5, 5, 40, 70], dtype=torch.int32)
    out = torch.empty(4)
    segment_kernel[(4,)](x, cu, out, BLOCK=16)
    return out, torch.stack([x[a:b].sum() for a, b in zip(cu, cu[1:])])


# -- losses in chunks, decorated by hand
def _loss_forward(
    logits_ptr,
    row_stride,
    loss_ptr,
    lse_ptr,
    label_ptr,
    VOCAB: tl.constexpr,
    BLOCK: tl.constexpr,
    CAP,
    DO_CAP: tl.constexpr,
    SCALE,
    DO_SCALE: tl.constexpr,
):
    row = tl.program_id(0)
    logits_ptr += row * triton_cast(row_stride, tl.int64)
    columns = tl.arange(0, BLOCK)
    mask = columns < VOCAB
    label = tl.load(label_ptr + row).to(tl.int32)
    logits = tl.load(logits_ptr + columns, mask=mask, other=-float("inf")).to(tl.float32)
    if DO_SCALE:
        logits = SCALE * logits
    if DO_CAP:
        logits = CAP * triton_tanh(logits / CAP)
    c = tl.max(logits, 0)
    lse = c + tl.log(tl.sum(tl.exp(logits - c), 0))
    if label != -100:
        x = tl.load(logits_ptr + label).to(tl.float32)
        if DO_SCALE:
            x = SCALE * x
        if DO_CAP:
            x = CAP * triton_tanh(x / CAP)
        loss = lse - x
    else:
        loss = 0.0
    tl.store(lse_ptr + row, lse)
    tl.store(loss_ptr + row, loss)


_loss_forward = triton.jit(_loss_forward)
_loss_forward = triton.heuristics(
    {"DO_CAP": lambda args: bool(args["DO_CAP"]), "DO_SCALE": lambda args: bool(args["DO_SCALE"])}
)(_loss_forward)


def loss_by_hand():
    logits, label = normal(4, 60, dtype=torch.float16), torch.tensor([3, -100, 59, 0])
    loss, lse = torch.empty(4), torch.empty(4)
    _loss_forward[(4,)](
        logits,
        logits.stride(0),
        loss,
        lse,
        label,
        VOCAB=60,
        BLOCK=64,
        CAP=5.0,
        DO_CAP=True,
        SCALE=0.5,
        DO_SCALE=True,
    )
    z = 5 * torch.tanh(0.5 * logits.float() / 5)
    want = torch.nn.functional.cross_entropy(z, label, reduction="none")
    return torch.cat([loss, lse]), torch.cat([want, z.logsumexp(1)])


# -- a factory of kernels, whose functions are variables of the function around them
def unary(function, scale):
    SCALE = tl.constexpr(scale)

    @triton.jit
    def kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
        offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + offs, mask=offs < n, other=0.0)
        tl.store(y_ptr + offs, function(x) * SCALE, mask=offs < n)

    return kernel


@triton.jit
def quick(x):
    return x / (1.0 + tl.exp(-1.702 * x))


quick_kernel = unary(quick, 2.0)
sine_kernel = unary(tl.sin, 3.0)


def factories():
    x = normal(50)
    y, z = torch.empty(50), torch.empty(50)
    quick_kernel[(2,)](x, y, 50, BLOCK=32)
    sine_kernel[(2,)](x, z, 50, BLOCK=32)
    return torch.cat([y, z]), torch.cat([x * torch.sigmoid(1.702 * x) * 2, x.sin() * 3])


# -- heads of a cache in three dimensions, stored by words
@triton.jit
def heads_kernel(
    x_ptr, cos_ptr, sin_ptr, o_ptr, T, H: tl.constexpr, D: tl.constexpr, BT: tl.constexpr
):
    t = tl.program_id(0) * BT + tl.arange(0, BT)
    h, d = tl.arange(0, H), tl.arange(0, D)
    place = t[:, None, None] * (H * D) + h[None, :, None] * D + d[None, None, :]
    ok = (t < T)[:, None, None]
    x = tl.load(x_ptr + place, mask=ok, other=0.0).to(tl.float32)
    first, second = tl.split(tl.permute(tl.reshape(x, (BT, H, 2, D // 2)), (0, 1, 3, 2)))
    half = tl.arange(0, D // 2)
    rot = t[:, None] * (D // 2) + half[None, :]
    c = tl.expand_dims(tl.load(cos_ptr + rot, mask=t[:, None] < T, other=0.0), 1)
    s = tl.expand_dims(tl.load(sin_ptr + rot, mask=t[:, None] < T, other=0.0), 1)
    y = tl.join(first * c - second * s, second * c + first * s)
    y = tl.reshape(tl.trans(y, 0, 1, 3, 2), (BT, H, D))
    peak = tl.max(tl.abs(y), axis=2, keep_dims=True)
    scaled = tl.clamp(y / tl.maximum(peak, 1e-4) * 127.0, -127.0, 127.0)
    code = (scaled + tl.where(scaled >= 0, 0.5, -0.5)).to(tl.int8)
    tl.store(o_ptr + place, code, mask=ok, cache_modifier=".cs")


def heads():
    T, H, D = 6, 2, 16
    x, a = normal(T, H, D, dtype=torch.float16), normal(T, D // 2, seed=1)
    out = torch.zeros(T, H, D, dtype=torch.int8)
    heads_kernel[(2,)](x, a.cos(), a.sin(), out, T, H, D, BT=4)
    f, s = x.float().chunk(2, -1)
    c, n = a.cos()[:, None], a.sin()[:, None]
    y = torch.cat([f * c - s * n, s * c + f * n], -1)
    scaled = y / y.abs().amax(-1, keepdim=True).clamp(min=1e-4) * 127
    return out.float() / 127, (scaled + torch.where(scaled >= 0, 0.5, -0.5)).trunc() / 127


# -- several outputs by elements, in branches
@triton.jit
def parts_of(x, y):
    if x > y:
        big, small = x, y
    else:
        big, small = y, x
    ratio = small / big if big != 0.0 else 0.0
    return big, small, ratio


@triton.jit
def branches_kernel(x_ptr, y_ptr, o_ptr, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    x, y = tl.load(x_ptr + i, mask=i < n, other=1.0), tl.load(y_ptr + i, mask=i < n, other=1.0)
    big, small, ratio = tl.map_elementwise(parts_of, x, y)
    largest = tl.argmax(big, axis=0, tie_break_left=False)
    best, where = tl.max(small, axis=0, return_indices=True)
    tl.store(o_ptr + i, ratio + tl.sum(tl.where(i == largest, big, 0.0)) + best + where, mask=i < n)


def branched():
    x, y, out = normal(30).abs(), normal(30, seed=1).abs(), torch.empty(30)
    branches_kernel[(1,)](x, y, out, 30, BLOCK=32)
    big, small = torch.maximum(x, y), torch.minimum(x, y)
    big_all = torch.cat([big, torch.ones(2)])
    small_all = torch.cat([small, torch.ones(2)])
    return out, small / big + big_all.max() + small_all.max() + small_all.argmax()


# -- addresses of layers in memory, pointers cast from words
@triton.jit
def layers_kernel(table_ptr, dst_ptr, strides_ptr, n, LAYERS: tl.constexpr, BLOCK: tl.constexpr):
    layer = tl.program_id(0)
    stride = tl.load(strides_ptr + layer)
    src = tl.load(table_ptr + layer).to(tl.pointer_type(tl.float16))
    offs = tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.float32)
    i = tl.program_id(1)
    while i * BLOCK < n:
        total += tl.load(src + (i * BLOCK + offs) * stride, mask=i * BLOCK + offs < n, other=0.0)
        i += tl.num_programs(1)
    tl.atomic_add(dst_ptr + layer, tl.sum(total).to(tl.float32), sem="relaxed")
    tl.atomic_max(dst_ptr + LAYERS + layer, tl.max(total, 0))


def layered():
    a, b = normal(40, dtype=torch.float16), normal(80, seed=1, dtype=torch.float16)
    table, strides, out = (
        torch.tensor([a.data_ptr(), b.data_ptr()]),
        torch.tensor([1, 2], dtype=torch.int32),
        torch.zeros(4),
    )
    layers_kernel[(2, 2)](table, out, strides, 40, LAYERS=2, BLOCK=16)
    sums, tops = [], []
    for v in (a.float(), b[::2].float()):
        parts = torch.stack(
            [torch.nn.functional.pad(v, (0, 24)).view(4, 16)[p::2].sum(0) for p in range(2)]
        )
        sums.append(parts.sum())
        tops.append(parts.max().clamp(min=0))
    return out, torch.stack(sums + tops)


# -- scaled products of 4 bits on one side and 8 on the other
@triton.jit
def scaled_kernel(
    a_ptr, as_ptr, b_ptr, bs_ptr, o_ptr, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr
):
    m, n = tl.arange(0, M), tl.arange(0, N)
    a = tl.load(a_ptr + m[:, None] * K + tl.arange(0, K)[None, :])
    b = tl.load(b_ptr + tl.arange(0, K // 2)[:, None] + n[None, :] * (K // 2))
    g = tl.arange(0, K // 32)
    sa = tl.load(as_ptr + m[:, None] * (K // 32) + g[None, :])
    sb = tl.load(bs_ptr + n[:, None] * (K // 32) + g[None, :])
    c = tl.dot_scaled(a, sa, "e4m3", b, sb, "e2m1", fast_math=False)
    tl.store(o_ptr + m[:, None] * N + n[None, :], c)


def scaled_dot_mixed():
    M, N, K = 32, 32, 64
    a = normal(M, K).to(torch.float8_e4m3fn)
    b = torch.randint(
        0, 256, (N, K // 2), generator=torch.Generator().manual_seed(1), dtype=torch.uint8
    )
    sa, sb = (
        torch.randint(
            125, 130, (r, K // 32), generator=torch.Generator().manual_seed(i), dtype=torch.uint8
        )
        for i, r in enumerate((M, N))
    )
    out = torch.empty(M, N)
    scaled_kernel[(1,)](a, sa, b, sb, out, M, N, K)
    table = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    table = torch.cat([table, -table])
    codes = torch.stack([b & 15, b >> 4], 2).reshape(N, K)
    w = table[codes.long()] * torch.exp2(sb.float() - 127).repeat_interleave(32, 1)
    x = a.float() * torch.exp2(sa.float() - 127).repeat_interleave(32, 1)
    return out, x @ w.t()


# -- random numbers of several words, and strings
@triton.jit
def noise_kernel(x_ptr, o_ptr, seed, n, KIND: tl.constexpr, BLOCK: tl.constexpr):
    tl.static_assert(KIND == "keep" or KIND == "drop", "KIND is keep or drop")
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    r0, r1, r2, r3 = tl.randint4x(seed, offs, n_rounds=7)
    u = tl.uint_to_uniform_float(r0)
    x = tl.load(x_ptr + offs, mask=offs < n, other=0.0)
    parity = ((r1 ^ r2 ^ r3) & 0).to(tl.int32)
    if KIND == "keep":
        y = tl.where(u >= 0.0, x + parity, 0.0)
    else:
        y = tl.where(u < 0.0, x, 0.0)
    tl.store(o_ptr + offs, y, mask=offs < n)


def noisy():
    x, y = normal(40), torch.empty(40)
    noise_kernel[(2,)](x, y, 7, 40, KIND="keep", BLOCK=32)
    return y, x


# -- descriptors in three dimensions whose results are added in memory
@triton.jit
def pooled_kernel(x_ptr, o_ptr, B, H, W, BH: tl.constexpr, BW: tl.constexpr):
    x = tl.make_tensor_descriptor(
        x_ptr, shape=[B, H, W], strides=[H * W, W, 1], block_shape=[1, BH, BW]
    )
    o = tl.make_tensor_descriptor(o_ptr, shape=[H, W], strides=[W, 1], block_shape=[BH, BW])
    b, i, j = tl.program_id(0), tl.program_id(1) * BH, tl.program_id(2) * BW
    tile = x.load([b, i, j]).reshape(BH, BW)
    o.atomic_add([i, j], tl.exp(tile))
    tl.device_assert(b < B, f"b={BH}")


def pooled():
    B, H, W = 3, 10, 24
    x, o = normal(B, H, W), torch.zeros(H, W)
    triton.set_allocator(lambda size, align, stream: torch.empty(size, dtype=torch.int8))
    pooled_kernel[(B, 2, 2)](x, o, B, H, W, BH=8, BW=16)
    return o, x.exp().sum(0)


CASES = [
    segments,
    loss_by_hand,
    factories,
    heads,
    branched,
    layered,
    scaled_dot_mixed,
    noisy,
    pooled,
]
