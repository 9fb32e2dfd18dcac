"""Rare parts of the language, as libraries use them."""

import enum
from typing import NamedTuple

import torch
import triton
import triton.language as language
import triton.language as tl
import triton.language.extra.cuda as tlx
from triton import jit
from triton.language import constexpr
from triton.language.extra import libdevice
from triton.language.extra.cuda import globaltimer


class Kind(enum.IntEnum):
    RELU = 0
    GELU = 1


class Sizes:
    BLOCK = tl.constexpr(64)
    WARPS = 4


KIND_RELU = tl.constexpr(int(Kind.RELU))
SHIFTS = tl.constexpr((0, 8, 16, 24))


def normal(*shape, seed=0, dtype=torch.float32):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


# vLLM-like: activation chosen by an enumeration, dtype from pointers, aliases of the language


@jit(repr=lambda spec: "activation", do_not_specialize_on_alignment=["n"])
def activation_kernel(x_ptr, out_ptr, n, KIND: "tl.constexpr", BLOCK: constexpr = Sizes.BLOCK):
    pid = language.program_id(0).to(language.int64)
    i = pid * BLOCK + language.arange(0, BLOCK)
    inside = i < n
    x = language.load(x_ptr + i, inside, 0)
    y: language.float32 = x.to(tl.float32)
    if KIND == KIND_RELU:
        y = tl.maximum(y, 0.0, propagate_nan=tl.PropagateNan.ALL)
    elif KIND == 1:
        y = 0.5 * y * (1 + libdevice.erf(y * 0.7071067811865476))
    else:
        tl.static_assert(False, "no such kind")
    bits: tl.constexpr = out_ptr.dtype.element_ty.primitive_bitwidth
    if bits == 16 and out_ptr.dtype.element_ty.is_floating():
        y = (
            y.cast(out_ptr.type.element_ty, fp_downcast_rounding="rtz")
            if hasattr(y, "nothing")
            else y.to(out_ptr.type.element_ty, fp_downcast_rounding="rtz")
        )
    tl.store(out_ptr + i, y, inside)


def activations():
    x = normal(100)
    a, b = torch.empty(100), torch.empty(100, dtype=torch.float16)
    activation_kernel[(2,)](x, a, 100, KIND=0)
    activation_kernel[(2,)](x, b, 100, 1)
    return torch.cat([a, b.float()]), torch.cat([x.relu(), torch.nn.functional.gelu(x)])


# Functions as constants, tuples of functions, recursion over tuples


@jit
def add_one(x):
    return x + 1


@jit
def twice(x, by: tl.constexpr = 2):
    return x * by


@jit
def applied(x, fns: tl.constexpr):
    for f in tl.static_range(len(fns)):
        x = fns[f](x)
    return x


@jit
def compose_kernel(x, out, FIRST: tl.constexpr, N: tl.constexpr):
    i = tl.arange(0, N)
    v = tl.load(x + i)
    v = FIRST(v)
    v = twice(add_one(v), by=3)
    v = libdevice.floor(v + 0.5)
    tl.store(out + i, v)


def composed():
    x, out = normal(32), torch.empty(32)
    compose_kernel[(1,)](x, out, twice, N=32)
    return out, ((2 * x + 1) * 3 + 0.5).floor()


class Strides(NamedTuple):
    row: int
    column: int


class Matrix(NamedTuple):
    ptr: object
    strides: Strides
    shape: tuple


@jit
def at(m, rows, columns):
    return m.ptr + rows[:, None] * m.strides.row + columns[None, :] * m.strides.column


@jit
def named_kernel(x, y, B: tl.constexpr):
    r, c = tl.arange(0, B), tl.arange(0, B)
    inside = (r[:, None] < x.shape[0]) & (c[None, :] < x.shape[1])
    v = tl.load(at(x, r, c), mask=inside)
    s = Strides(y.strides.column, y.strides.row)
    t = Matrix(y.ptr, s, (y.shape[1], y.shape[0]))
    tl.store(at(t, r, c), v, mask=inside)


def named_tuples():
    x, y = normal(20, 30), torch.empty(30, 20)
    named_kernel[(1,)](
        Matrix(x, Strides(*x.stride()), tuple(x.shape)),
        Matrix(y, Strides(*y.stride()), tuple(y.shape)),
        B=32,
    )
    return y, x.t()


# map_elementwise, randoms, prints


@jit
def compare(a, b):
    if a < b:
        return -1
    elif a == b:
        return 0
    else:
        return 1


@jit
def mapped_kernel(a, b, out, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(out + i, tl.map_elementwise(compare, tl.load(a + i), tl.load(b + i)))


def mapped():
    a, b = (
        torch.randint(0, 3, (64,), generator=torch.Generator().manual_seed(s)).to(torch.int32)
        for s in range(2)
    )
    out = torch.empty(64, dtype=torch.int32)
    mapped_kernel[(1,)](a, b, out, N=64)
    return out.float(), (a > b).float() - (a < b).float()


@jit
def noise_kernel(out, seed, N: tl.constexpr):
    i = tl.arange(0, N)
    a = tl.randn(seed, i)
    b, c, d, e = tl.randn4x(seed, i)
    f = tl.randint(seed, i).to(tl.uint32, bitcast=True)
    tl.store(out + i, a)
    tl.store(out + N + i, b)
    tl.store(out + 2 * N + i, f / 4294967296.0)
    if seed < 0:
        tl.device_print("seed", seed, hex=True)
        print("noise", a)
    assert seed >= 0, "a negative seed"


def noise():
    N = 512
    out = torch.empty(3, N)
    noise_kernel[(1,)](out, 5, N=N)
    good = torch.tensor(
        [
            out[0].mean().abs() < 0.2,
            (out[0].std() - 1).abs() < 0.2,
            (out[1].std() - 1).abs() < 0.2,
            (out[2].mean() - 0.5).abs() < 0.1,
        ]
    )
    return good.float(), torch.ones(4)


# block pointers, descriptors' functions, loops with options


@jit
def lora_kernel(
    x_ptr,
    a_ptr,
    b_ptr,
    out_ptr,
    M,
    N,
    K,
    R: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
):
    pid_m, pid_n = tl.program_id(0), tl.program_id(1)
    x = tl.make_block_ptr(x_ptr, (M, K), (K, 1), (pid_m * BM, 0), (BM, BK), (1, 0))
    a = tl.make_block_ptr(
        a_ptr,
        shape=(K, R),
        strides=(1, K),
        offsets=(0, 0),
        block_shape=(BK, R),
        order=(0, 1),
    )
    low = tl.zeros((BM, R), tl.float32)
    for _ in tl.range(0, tl.cdiv(K, BK), loop_unroll_factor=2, disallow_acc_multi_buffer=True):
        low += tl.dot(
            tl.load(x, boundary_check=(0, 1), padding_option="zero"),
            tl.load(a, boundary_check=(0,)),
        )
        x, a = (
            tl.advance(x, (0, BK)),
            a.advance((BK, 0)) if hasattr(a, "advance") else tl.advance(a, (BK, 0)),
        )
    b = tl.make_block_ptr(b_ptr, (R, N), (N, 1), (0, pid_n * BN), (R, BN), (1, 0))
    out = tl.make_block_ptr(out_ptr, (M, N), (N, 1), (pid_m * BM, pid_n * BN), (BM, BN), (1, 0))
    y = tl.dot(
        low.to(b_ptr.dtype.element_ty),
        tl.load(b, boundary_check=(1,)),
        allow_tf32=False,
    )
    tl.store(out, y.to(out_ptr.dtype.element_ty), boundary_check=(0, 1))


def lora_blocks():
    M, N, K, R = 20, 40, 50, 16
    x, a, b = (
        normal(*s, seed=i, dtype=torch.float16) for i, s in enumerate(((M, K), (R, K), (R, N)))
    )
    out = torch.empty(M, N, dtype=torch.float16)
    lora_kernel[(2, 2)](x, a, b, out, M, N, K, R, BM=16, BN=32, BK=16)
    return out, (x.float() @ a.float().t()).half().float() @ b.float()


@jit
def described_kernel(x_ptr, y_ptr, M, N, stride, B: tl.constexpr):
    x = tl.make_tensor_descriptor(
        x_ptr,
        shape=[M, N],
        strides=[stride, 1],
        block_shape=[B, B],
        padding_option="zero",
    )
    y = tl.make_tensor_descriptor(y_ptr, [M, N], [stride, 1], [B, B])
    row = tl.program_id(0) * B
    for c in tl.range(0, N, B, flatten=False, warp_specialize=False):
        v = tl.load_tensor_descriptor(x, [row, c])
        tl.store_tensor_descriptor(y, [row, c], v * 2)
    y.atomic_add([row, 0], tl.full([B, B], 1.0, x_ptr.dtype.element_ty))


def described():
    x = normal(20, 24)
    y = torch.empty_like(x)
    triton.set_allocator(lambda size, align, stream: torch.empty(size, dtype=torch.int8))
    described_kernel[(2,)](x, y, 20, 24, 24, B=16)
    want = 2 * x
    want[:, :16] += 1
    return y, want


# reductions and orders by methods; batched products; halves and bits


@jit
def methods_kernel(x, out, N: tl.constexpr, M: tl.constexpr):
    m, n = tl.arange(0, M), tl.arange(0, N)
    v = tl.load(x + m[:, None] * N + n)
    s = v.sum(axis=1, keep_dims=True)
    w = (
        (v - s / N).max(0)
        + v.min(axis=0)
        + v.argmax(0).to(tl.float32)
        + v.argmin(0, tie_break_left=False)
    )
    w += v.cumsum(0, reverse=True).sum(0) + tl.sum(v.to(tl.int32), 0, dtype=tl.int64).to(tl.float32)
    low, where = tl.min(v, 0, return_indices=True)
    w += low * where + tl.reduce_or(v.to(tl.int32, bitcast=True) & 1, 0) + tl.sort(v, dim=1).sum(0)
    w += tl.flip(v, 0).xor_sum(0) if False else tl.flip(v, 0).sum(0)
    v3 = tl.reshape(v, (M // 2, 2, N)).trans(1, 0, 2)
    a, b = tl.split(v3.permute(1, 2, 0))
    w += (a * b).sum(0) + v.associative_scan(1, add, reverse=True).sum(0) + v.reduce(0, add)
    tl.store(out + n, w)


@jit
def add(a, b):
    return a + b


def methods():
    M, N = 8, 16
    x, out = normal(M, N), torch.empty(N)
    methods_kernel[(1,)](x, out, N=N, M=M)
    want = (x - x.mean(1, keepdim=True)).amax(0) + x.amin(0) + x.argmax(0) + x.argmin(0)
    want = want + x.flip(0).cumsum(0).sum(0) + x.int().sum(0) + x.amin(0) * x.argmin(0)
    want = want + (x.view(torch.int32) & 1).amax(0) + x.sort(1).values.sum(0) + x.sum(0)
    want = want + (x[::2] * x[1::2]).sum(0) + x.flip(1).cumsum(1).flip(1).sum(0) + x.sum(0)
    return out, want


@jit
def bits_kernel(x, out, N: tl.constexpr):
    i = tl.arange(0, N)
    word = tl.load(x + i)
    total = tl.zeros([N], tl.int32)
    for s in tl.static_range(4):
        total += ((word >> SHIFTS[s]) & 0xFF).to(tl.int8, bitcast=False).to(tl.int32)
    total += libdevice.popc(word) + libdevice.clz(word) * 2 + libdevice.ffs(word)
    unsigned = word.to(tl.uint32, bitcast=True)
    total += (tl.umulhi(unsigned, unsigned) >> 24).to(tl.int32)
    half: tl.constexpr = tl.int16
    total += word.to(half).to(tl.int32) // 3 + (word % 7) + (unsigned % 5).to(tl.int32)
    tl.store(out + i, total)


def assembly_bits():
    x = torch.randint(
        -(1 << 31), (1 << 31) - 1, (64,), generator=torch.Generator().manual_seed(3)
    ).to(torch.int32)
    out = torch.empty(64, dtype=torch.int32)
    bits_kernel[(1,)](x, out, N=64)
    want = []
    for v in x.tolist():
        u = v & 0xFFFFFFFF
        signed = lambda b: b - 256 if b > 127 else b  # noqa: E731
        s = sum(signed((u >> k) & 255) for k in (0, 8, 16, 24))
        s += bin(u).count("1") + 2 * (32 - u.bit_length()) + ((u & -u).bit_length())
        s += (u * u >> 32) >> 24
        h = u & 0xFFFF
        h = h - 65536 if h > 32767 else h
        quotient = abs(h) // 3 * (1 if h >= 0 else -1)
        rest = abs(v) % 7 * (1 if v >= 0 else -1)
        want.append(s + quotient + rest + u % 5)
    return out.float(), torch.tensor(want).float()


@jit
def batched_kernel(a, b, c, B: tl.constexpr, N: tl.constexpr):
    i, j, k = (
        tl.arange(0, B)[:, None, None],
        tl.arange(0, N)[None, :, None],
        tl.arange(0, N)[None, None, :],
    )
    x = tl.load(a + i * N * N + j * N + k)
    y = tl.load(b + i * N * N + j * N + k)
    z = tl.dot(x, tl.trans(y, 0, 2, 1), input_precision="tf32x3")
    tl.store(c + i * N * N + j * N + k, z)


def batched_products():
    a, b = normal(2, 16, 16), normal(2, 16, 16, seed=1)
    c = torch.empty(2, 16, 16)
    batched_kernel[(1,)](a, b, c, B=2, N=16)
    return c, a @ b.transpose(1, 2)


@jit
def product(x, y, HOW: tl.constexpr):
    z = tl.dot(x, y, input_precision=HOW)
    return z


@jit
def scores(x, y, HOW: tl.constexpr):
    return product(x, tl.trans(y, 0, 2, 1), HOW)


@jit
def helper_kernel(a, b, c, B: tl.constexpr, N: tl.constexpr):
    i, j, k = (
        tl.arange(0, B)[:, None, None],
        tl.arange(0, N)[None, :, None],
        tl.arange(0, N)[None, None, :],
    )
    x = tl.load(a + i * N * N + j * N + k)
    y = tl.load(b + i * N * N + j * N + k)
    tl.store(c + i * N * N + j * N + k, scores(x, y, "ieee"))


def products_in_functions():
    a, b = normal(2, 16, 16), normal(2, 16, 16, seed=1)
    c = torch.empty(2, 16, 16)
    helper_kernel[(1,)](a, b, c, B=2, N=16)
    return c, a @ b.transpose(1, 2)


# locks of 64 bits, atomics on floats and halves


@jit
def claim_kernel(lock, owner, best, sums, x, n, BLOCK: tl.constexpr):
    pid = tl.program_id(0)
    i = pid * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + i, mask=i < n, other=0.0)
    while tl.atomic_cas(lock, 0, 1, sem="acquire") == 1:
        pass
    old = tl.load(sums)
    tl.store(sums, old + tl.sum(v, 0))
    tl.debug_barrier()
    tl.atomic_xchg(lock, 0, sem="release")
    tl.atomic_max(best, tl.max(v, 0))
    before = tl.atomic_add(owner + (i % 4), 1, mask=i < n)
    tl.atomic_min(owner + 4, tl.max(before, 0) * 0 + pid)


def claims():
    x = normal(100)
    lock, owner, best, sums = (
        torch.zeros(1, dtype=torch.int32),
        torch.zeros(5, dtype=torch.int64),
        torch.full((1,), -9.0),
        torch.zeros(1),
    )
    owner[4] = 9
    claim_kernel[(4,)](lock, owner, best, sums, x, 100, BLOCK=32)
    return torch.cat([owner.float(), best, sums]), torch.cat(
        [torch.tensor([25.0, 25, 25, 25, 0]), x.max()[None], x.sum()[None]]
    )


# clocks, functions that are not inlined, assembly


@jit(noinline=True)
def both_of(x, y, scale: tl.constexpr = 2):
    return x * scale, y + scale


@jit
def clock_kernel(x, out, times, N: tl.constexpr):
    begin = globaltimer()
    i = tl.arange(0, N)
    a, b = both_of(tl.load(x), 3)
    tl.store(out + i, tl.load(x + i) * a + b)
    tl.store(times, globaltimer() - begin)
    tl.store(times + 1, tlx.smid().to(tl.int64))
    tl.store(times + 2, tl.num_programs(0) * 1 + tlx.num_threads() // 32)


def assembly_clocks():
    x, out, times = normal(64), torch.empty(64), torch.full((3,), -1)
    clock_kernel[(1,)](x, out, times, N=64)
    return torch.cat([out, (times >= 0).float()]), torch.cat([2 * x[0] * x + 5, torch.ones(3)])


@jit
def packed_asm_kernel(x, lo, hi, N: tl.constexpr):
    i = tl.arange(0, N)
    v = tl.load(x + i)
    a, b = tl.inline_asm_elementwise(
        "{ cvt.rna.tf32.f32 $0, $2; sub.f32 $1, $2, $0; }",
        "=r,=f,f",
        [v],
        dtype=(tl.int32, tl.float32),
        is_pure=True,
        pack=1,
    )
    tl.store(lo + i, a.to(tl.float32, bitcast=True))
    tl.store(hi + i, b)


def assembly_tf32():
    x, lo, hi = normal(64), torch.empty(64), torch.empty(64)
    packed_asm_kernel[(1,)](x, lo, hi, 64)
    return lo + hi, x


# a kernel with several returns, and helper functions that return in branches


@jit
def clipped(x, HOW: tl.constexpr):
    if HOW == "none":
        return x
    if HOW == "both":
        return tl.minimum(tl.maximum(x, -1.0), 1.0)
    return tl.maximum(x, -1.0)


@jit
def pieces(x, PARTS: tl.constexpr):
    if PARTS == 1:
        return (x,)
    return tl.split(tl.reshape(x, (x.shape[0], x.shape[1] // 2, 2)))


@jit
def returning_kernel(x, out, n, HOW: tl.constexpr, BLOCK: tl.constexpr):
    pid = tl.program_id(0)
    i = pid * BLOCK + tl.arange(0, BLOCK)
    if pid * BLOCK >= n:
        return
    v = clipped(tl.load(x + i, mask=i < n), HOW)
    if pid == 0:
        tl.store(out + i, v, mask=i < n)
        return
    if pid == 1 and (n > 10 or not n < 3):
        v = v * min(pid + 1, 3, n)
    else:
        v = -v
    tl.store(out + i, v, mask=i < n)


def returning():
    x, outs = normal(60), [torch.empty(60) for _ in range(3)]
    for out, how in zip(outs, ("none", "both", "low")):
        returning_kernel[(5,)](x, out, 60, how, BLOCK=16)
    ways = [x, x.clamp(-1, 1), x.clamp(min=-1)]
    scale = torch.tensor([1.0] * 16 + [2.0] * 16 + [-1.0] * 28)
    return torch.cat(outs), torch.cat([w * scale for w in ways])


CASES = [
    activations, composed, named_tuples, mapped, noise, lora_blocks, described, methods, assembly_bits, batched_products, claims,
    assembly_clocks, assembly_tf32, returning, products_in_functions,
]  # fmt: skip
