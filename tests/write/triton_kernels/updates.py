"""Kernels of plain Triton for training: losses in chunks, gradients under locks, optimizers, noise, and persistent products."""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from triton.language.extra.libdevice import tanh
from triton.tools.tensor_descriptor import TensorDescriptor

MAX_FUSED_SIZE: int = 65536
NEXT = triton.next_power_of_2


def normal(*shape, seed=0, dtype=torch.float32):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def whole(low, high, *shape, seed=0, dtype=torch.int64):
    return torch.randint(low, high, shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


# a loss that writes gradients over the logits: caps, smoothing, weights, z-loss, and labels that are left out


@triton.jit
def loss_kernel(
    X_ptr, X_stride, Y_ptr, Y_stride, weight_ptr, loss_ptr, z_loss_ptr, loss_stride, n_cols, n_non_ignore, sum_non_ignore_weight,
    weight_sum, ignore_index, lse_square_scale: tl.constexpr, label_smoothing: tl.constexpr, reduction: tl.constexpr, softcap,
    RETURN_Z_LOSS: tl.constexpr, BLOCK_SIZE: tl.constexpr, HAS_WEIGHT: tl.constexpr, HAS_SOFTCAPPING: tl.constexpr, HAS_GRADIENTS: tl.constexpr,
):  # fmt: skip
    """Write the loss of a row, and its gradient over the row."""
    program_id = tl.program_id(0).to(tl.int64)
    Y_ptr += program_id * Y_stride
    y = tl.load(Y_ptr)
    X_ptr += program_id * X_stride
    if y == ignore_index:
        for i in range(0, n_cols, BLOCK_SIZE):
            X_offsets = i + tl.arange(0, BLOCK_SIZE)
            tl.store(X_ptr + X_offsets, 0.0, mask=X_offsets < n_cols)
        return
    loss_ptr += program_id * loss_stride
    if RETURN_Z_LOSS:
        z_loss_ptr += program_id * loss_stride
    if HAS_WEIGHT:
        weight_y = tl.load(weight_ptr + y).cast(tl.float32)
    m = float("-inf")
    d = 0.0
    ori_X_y = tl.load(X_ptr + y).cast(tl.float32)
    if HAS_SOFTCAPPING:
        ori_X_y = softcap * tanh(ori_X_y / softcap)
    scaled_x_sum = 0.0
    eps = label_smoothing / n_cols
    for i in range(0, n_cols, BLOCK_SIZE):
        X_offsets = i + tl.arange(0, BLOCK_SIZE)
        X_block = tl.load(X_ptr + X_offsets, mask=X_offsets < n_cols, other=float("-inf")).cast(
            tl.float32
        )
        if HAS_SOFTCAPPING:
            X_block = softcap * tanh(X_block / softcap)
        block_max = tl.max(X_block)
        if label_smoothing > 0:
            if HAS_WEIGHT:
                weight_block = tl.load(weight_ptr + X_offsets, mask=X_offsets < n_cols)
                scaled_x_sum += tl.sum(
                    tl.where(X_offsets < n_cols, -eps * X_block * weight_block, 0.0)
                )
            else:
                scaled_x_sum += tl.sum(tl.where(X_offsets < n_cols, -eps * X_block, 0.0))
        m_new = tl.maximum(m, block_max)
        d = d * tl.exp(m - m_new) + tl.sum(tl.exp(X_block - m_new))
        m = m_new
    lse = m + tl.log(d)
    if HAS_GRADIENTS:
        for i in range(0, n_cols, BLOCK_SIZE):
            X_offsets = i + tl.arange(0, BLOCK_SIZE)
            X_block = tl.load(X_ptr + X_offsets, mask=X_offsets < n_cols, other=float("-inf")).cast(
                tl.float32
            )
            if HAS_SOFTCAPPING:
                intermediate = tanh(X_block / softcap)
                X_block = softcap * intermediate
            if not HAS_WEIGHT:
                X_block = tl.exp(X_block - m) / d
                X_block += 2 * lse_square_scale * lse * X_block
                X_block += -eps
                X_block = tl.where(X_offsets != y, X_block, X_block - (1 - label_smoothing))
                if reduction == "mean":
                    X_block = X_block / n_non_ignore
            else:
                weight_block = tl.load(weight_ptr + X_offsets, mask=X_offsets < n_cols)
                softmax_X = tl.exp(X_block - m) / d
                dloss_ori = (1 - label_smoothing) * softmax_X
                dloss_ori = (
                    tl.where(X_offsets != y, dloss_ori, dloss_ori - (1 - label_smoothing))
                    * weight_y
                )
                dloss_smooth = eps * (-weight_block + softmax_X * weight_sum)
                dz_loss = 2 * lse_square_scale * lse * softmax_X
                if reduction == "mean":
                    dloss_ori, dloss_smooth = (
                        dloss_ori / sum_non_ignore_weight,
                        dloss_smooth / sum_non_ignore_weight,
                    )
                    dz_loss = dz_loss / n_non_ignore
                X_block = dloss_ori + dloss_smooth + dz_loss
            if HAS_SOFTCAPPING:
                X_block = X_block * (1 - intermediate * intermediate)
            tl.store(X_ptr + X_offsets, X_block, mask=X_offsets < n_cols)
    tl.debug_barrier()
    loss = lse - ori_X_y
    if HAS_WEIGHT:
        loss = weight_y * loss
    if label_smoothing > 0:
        if HAS_WEIGHT:
            smooth_loss = scaled_x_sum + eps * lse * weight_sum
        else:
            smooth_loss = scaled_x_sum + label_smoothing * lse
        loss = loss * (1 - label_smoothing) + smooth_loss
    z_loss = lse_square_scale * lse * lse
    if reduction == "mean":
        loss = loss / (sum_non_ignore_weight if HAS_WEIGHT else n_non_ignore)
        z_loss = z_loss / n_non_ignore
    loss += z_loss
    tl.store(loss_ptr, loss)
    if RETURN_Z_LOSS:
        tl.store(z_loss_ptr, z_loss)


def loss_in_place():
    R, N, pieces = 5, 90, []
    y = whole(0, N, R)
    y[2] = -100
    for weighted in (False, True):
        x = normal(R, N).requires_grad_()
        w = torch.rand(N, generator=torch.Generator().manual_seed(1)) + 0.5 if weighted else None
        logits, loss, z = x.detach().clone(), torch.zeros(R), torch.zeros(R)
        seen = int((y >= 0).sum())
        total = float(w[y[y >= 0]].sum()) if weighted else float(seen)
        loss_kernel[(R,)](
            X_ptr=logits, X_stride=logits.stride(-2), Y_ptr=y, Y_stride=y.stride(-1), weight_ptr=w, loss_ptr=loss, z_loss_ptr=z,
            loss_stride=loss.stride(-1), n_cols=N, n_non_ignore=seen, sum_non_ignore_weight=total,
            weight_sum=float(w.sum()) if weighted else 0.0, ignore_index=-100, lse_square_scale=1e-3, label_smoothing=0.1,
            reduction="mean", softcap=None if weighted else 5.0, RETURN_Z_LOSS=True, BLOCK_SIZE=min(MAX_FUSED_SIZE // 2048, NEXT(N)),
            HAS_WEIGHT=weighted, HAS_SOFTCAPPING=not weighted, HAS_GRADIENTS=True, num_warps=4)  # fmt: skip
        capped = x if weighted else 5 * torch.tanh(x / 5)
        want = torch.nn.functional.cross_entropy(capped, y, w, label_smoothing=0.1)
        zw = 1e-3 * capped.logsumexp(1)[y >= 0].square().sum() / seen
        (want + zw).backward()
        pieces.append(
            (
                torch.cat([logits.flatten(), loss.sum()[None], z.sum()[None]]),
                torch.cat([x.grad.flatten(), (want + zw).detach()[None], zw.detach()[None]]),
            )
        )
    return torch.cat([p[0] for p in pieces]), torch.cat([p[1] for p in pieces])


# gradients of a norm: rows share partial sums of weights under locks; a second kernel adds the parts


@triton.jit
def norm_dx_kernel(
    DX, DY, DW, DB, X, W, Mean, Rstd, Lock, stride, N, GROUP: tl.constexpr, BLOCK: tl.constexpr
):
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    mask = cols < N
    X += row * stride
    DY += row * stride
    DX += row * stride
    lock_id = row % GROUP
    Lock += lock_id
    Count = Lock + GROUP
    DW, DB = DW + lock_id * N + cols, DB + lock_id * N + cols
    x, dy = (
        tl.load(X + cols, mask=mask, other=0).to(tl.float32),
        tl.load(DY + cols, mask=mask, other=0).to(tl.float32),
    )
    w = tl.load(W + cols, mask=mask).to(tl.float32)
    mean, rstd = tl.load(Mean + row), tl.load(Rstd + row)
    xhat = (x - mean) * rstd
    wdy = w * dy
    xhat = tl.where(mask, xhat, 0.0)
    wdy = tl.where(mask, wdy, 0.0)
    c1, c2 = tl.sum(xhat * wdy, axis=0) / N, tl.sum(wdy, axis=0) / N
    tl.store(DX + cols, (wdy - (xhat * c1 + c2)) * rstd, mask=mask)
    partial_dw, partial_db = (dy * xhat).to(w.dtype), (dy).to(w.dtype)
    while tl.atomic_cas(Lock, 0, 1) == 1:
        pass
    count = tl.load(Count)
    if count == 0:
        tl.atomic_xchg(Count, 1)
    else:
        partial_dw += tl.load(DW, mask=mask)
        partial_db += tl.load(DB, mask=mask)
    tl.store(DW, partial_dw, mask=mask)
    tl.store(DB, partial_db, mask=mask)
    tl.debug_barrier()
    tl.atomic_xchg(Lock, 0)


@triton.jit
def norm_dw_kernel(DW, DB, FINAL_DW, FINAL_DB, M, N, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    cols = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    dw, db = (
        tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32),
        tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32),
    )
    for i in range(0, M, BLOCK_M):
        rows = i + tl.arange(0, BLOCK_M)
        mask, offs = (rows[:, None] < M) & (cols[None, :] < N), rows[:, None] * N + cols[None, :]
        dw += tl.load(DW + offs, mask=mask, other=0.0)
        db += tl.load(DB + offs, mask=mask, other=0.0)
    tl.store(FINAL_DW + cols, tl.sum(dw, axis=0), mask=cols < N)
    tl.store(FINAL_DB + cols, tl.sum(db, axis=0), mask=cols < N)


def locked_norm():
    M, N, GROUP = 9, 50, 4
    x, dy, w = (
        normal(M, N).requires_grad_(),
        normal(M, N, seed=1),
        normal(N, seed=2).requires_grad_(),
    )
    b = torch.zeros(N, requires_grad=True)
    mean, rstd = x.mean(1).detach(), torch.rsqrt(x.var(1, unbiased=False) + 1e-5).detach()
    dx, dw, db = torch.empty(M, N), torch.empty(GROUP, N), torch.empty(GROUP, N)
    locks, fw, fb = torch.zeros(2 * GROUP, dtype=torch.int32), torch.empty(N), torch.empty(N)
    norm_dx_kernel[(M,)](
        dx,
        dy,
        dw,
        db,
        x.detach(),
        w.detach(),
        mean,
        rstd,
        locks,
        x.stride(0),
        N,
        GROUP=GROUP,
        BLOCK=64,
        num_warps=2,
    )
    norm_dw_kernel[lambda meta: [triton.cdiv(N, meta["BLOCK_N"])]](
        dw, db, fw, fb, min(GROUP, M), N, BLOCK_M=4, BLOCK_N=32, num_ctas=1
    )
    torch.nn.functional.layer_norm(x, (N,), w, b).backward(dy)
    return torch.cat([dx.flatten(), fw, fb]), torch.cat([x.grad.flatten(), w.grad, b.grad])


# an optimizer's step in place: bfloat16 weights rounded at random by bits, and a scale that comes from memory


@triton.jit
def rounded_at_random(x, seed, offsets):
    bits = x.to(tl.uint32, bitcast=True)
    noise = tl.randint(seed, offsets).to(tl.uint32, bitcast=True) & 0xFFFF
    return ((bits + noise) & 0xFFFF0000).to(tl.float32, bitcast=True).to(tl.bfloat16)


@triton.jit(do_not_specialize=["step", "seed"])
def adam_kernel(
    p_ptr, g_ptr, m_ptr, v_ptr, found_inf_ptr, scale_ptr, lr, beta1, beta2, eps, decay, step, seed, n,
    AMSGRAD: tl.constexpr, DECOUPLED: tl.constexpr, STOCHASTIC: tl.constexpr, BLOCK: tl.constexpr, most_ptr=None,
):  # fmt: skip
    if tl.load(found_inf_ptr) != 0:
        return
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    offs = tl.max_contiguous(tl.multiple_of(offs, BLOCK), BLOCK)
    mask = offs < n
    p, g = (
        tl.load(p_ptr + offs, mask=mask).to(tl.float32),
        tl.load(g_ptr + offs, mask=mask).to(tl.float32),
    )
    g = g / tl.load(scale_ptr)
    m, v = tl.load(m_ptr + offs, mask=mask), tl.load(v_ptr + offs, mask=mask)
    p = p * (1 - lr * decay) if DECOUPLED else p
    if not DECOUPLED:
        g += decay * p
    m = m + (1 - beta1) * (g - m)
    v = tl.fma(v, beta2, (1 - beta2) * g * g)
    step_f = step.to(tl.float32)
    c1, c2 = 1 - tl.exp2(step_f * tl.log2(beta1)), 1 - tl.exp2(step_f * tl.log2(beta2))
    if AMSGRAD:
        tl.static_assert(most_ptr is not None)
        most = tl.maximum(tl.load(most_ptr + offs, mask=mask), v)
        tl.store(most_ptr + offs, most, mask=mask)
        denominator = tl.sqrt_rn(most / c2) + eps
    else:
        denominator = tl.sqrt(v / c2) + eps
    p -= lr * tl.div_rn(m / c1, denominator)
    if STOCHASTIC and p_ptr.dtype.element_ty == tl.bfloat16:
        tl.store(p_ptr + offs, rounded_at_random(p, seed, offs), mask=mask)
    else:
        tl.store(p_ptr + offs, p.to(p_ptr.dtype.element_ty), mask=mask)
    tl.store(m_ptr + offs, m, mask=mask)
    tl.store(v_ptr + offs, v, mask=mask)


def adam_step():
    n, got, want = 100, [], []
    for amsgrad in (True, False):
        p = normal(n, dtype=torch.float32 if amsgrad else torch.bfloat16)
        g, m, v = normal(n, seed=1), normal(n, seed=2) * 0.1, normal(n, seed=3).abs() * 0.1
        most, before = v.clone() * 0.5, (p.float().clone(), m.clone(), v.clone())
        none, scale = torch.zeros(1), torch.tensor([4.0])
        adam_kernel[(4,)](
            p, g * 4, m, v, none, scale, 0.1, 0.9, 0.99, 1e-8, 0.01, 3, 77, n, AMSGRAD=amsgrad, DECOUPLED=amsgrad,
            STOCHASTIC=not amsgrad, BLOCK=32, **({"most_ptr": most} if amsgrad else {}))  # fmt: skip
        old = before[0] * (1 - 0.1 * 0.01) if amsgrad else before[0]
        grad = g if amsgrad else g + 0.01 * before[0]
        mw, vw = torch.lerp(before[1], grad, 0.1), before[2] * 0.99 + 0.01 * grad.square()
        top = torch.maximum(before[2] * 0.5, vw) if amsgrad else vw
        pw = old - 0.1 * (mw / (1 - 0.9**3)) / ((top / (1 - 0.99**3)).sqrt() + 1e-8)
        if not amsgrad:
            assert ((p.float() - pw).abs() <= pw.abs() * 2**-7).all()
            p = pw
        got += [p.float(), m, v]
        want += [pw, mw, vw]
    return torch.cat(got), torch.cat(want)


# noise, dropout and a residual sum in one pass, with seeds of rows, and the same noise on the way back


@triton.jit
def dropout_norm_kernel(
    X, RES, W, OUT, RES_OUT, SEEDS, MASK, n, p, eps, stride, BLOCK: tl.constexpr, IS_RMS: tl.constexpr, STORE_MASK: tl.constexpr,
    HAS_RES: tl.constexpr = False,
):  # fmt: skip
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    x = tl.load(X + row * stride + cols, mask=cols < n, other=0.0).to(tl.float32)
    keep = tl.rand(tl.load(SEEDS + row).to(tl.uint32), cols, n_rounds=7) > p
    x = tl.where(keep, x / (1.0 - p), 0.0)
    if STORE_MASK:
        tl.store(MASK + row * n + cols, keep, mask=cols < n)
    if HAS_RES:
        x += tl.load(RES + row * stride + cols, mask=cols < n, other=0.0).to(tl.float32)
        tl.store(RES_OUT + row * stride + cols, x, mask=cols < n)
    if not IS_RMS:
        mean = tl.sum(x, axis=0) / n
        xbar = tl.where(cols < n, x - mean, 0.0)
        var = tl.sum(xbar * xbar, axis=0) / n
    else:
        mean = 0.0
        xbar = tl.where(cols < n, x, 0.0)
        var = tl.sum(xbar * xbar, axis=0) / n
    y = (x - mean) * (1 / tl.sqrt(var + eps)) * tl.load(W + cols, mask=cols < n).to(tl.float32)
    tl.store(OUT + row * stride + cols, y, mask=cols < n)


def dropped_norm():
    R, n, p, got, want = 4, 70, 0.3, [], []
    for rms in (False, True):
        x, res, w = normal(R, n), normal(R, n, seed=1), normal(n, seed=2)
        out, res_out, mask = (
            torch.empty(R, n),
            torch.empty(R, n),
            torch.empty(R, n, dtype=torch.bool),
        )
        dropout_norm_kernel[(R,)](
            x,
            res,
            w,
            out,
            res_out,
            whole(0, 2**31, R),
            mask,
            n,
            p,
            1e-6,
            n,
            128,
            rms,
            STORE_MASK=True,
            HAS_RES=True,
        )
        assert 0.5 < mask.float().mean() < 0.85
        r = torch.where(mask, x / (1 - p), torch.zeros(1)) + res
        mean = 0 if rms else r.mean(1, keepdim=True)
        y = (r - mean) * torch.rsqrt((r - mean).square().mean(1, keepdim=True) + 1e-6) * w
        got += [out, res_out]
        want += [y, r]
    return torch.cat(got), torch.cat(want)


# programs that stay, over tiles in groups, with descriptors of the host and an epilogue in two halves


@triton.jit
def tile_of(tile_id, num_pid_in_group, num_pid_m, GROUP_M: tl.constexpr):
    group_id = tile_id // num_pid_in_group
    first_pid_m = group_id * GROUP_M
    group_size_m = min(num_pid_m - first_pid_m, GROUP_M)
    return first_pid_m + (tile_id % group_size_m), (tile_id % num_pid_in_group) // group_size_m


@triton.jit
def staying_kernel(
    a_desc, b_desc, c_desc, bias_ptr, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP_M: tl.constexpr,
    NUM_SMS: tl.constexpr, EPILOGUE_SUBTILE: tl.constexpr, WARP_SPECIALIZE: tl.constexpr,
):  # fmt: skip
    dtype = tl.float16
    start_pid = tl.program_id(axis=0)
    num_pid_m, num_pid_n = tl.cdiv(M, BM), tl.cdiv(N, BN)
    k_tiles, num_tiles = tl.cdiv(K, BK), num_pid_m * num_pid_n
    tile_id_c = start_pid - NUM_SMS
    for tile_id in tl.range(
        start_pid, num_tiles, NUM_SMS, flatten=True, warp_specialize=WARP_SPECIALIZE
    ):
        pid_m, pid_n = tile_of(tile_id, GROUP_M * num_pid_n, num_pid_m, GROUP_M)
        offs_am, offs_bn = pid_m * BM, pid_n * BN
        accumulator = tl.zeros((BM, BN), dtype=tl.float32)
        for ki in range(k_tiles):
            a, b = a_desc.load([offs_am, ki * BK]), b_desc.load([offs_bn, ki * BK])
            accumulator = tl.dot(a, b.T, accumulator)
        tile_id_c += NUM_SMS
        offs_cm, offs_cn = tile_of(tile_id_c, GROUP_M * num_pid_n, num_pid_m, GROUP_M)
        offs_cm, offs_cn = offs_cm * BM, offs_cn * BN
        if bias_ptr is not None:
            accumulator += tl.load(
                bias_ptr + offs_cn + tl.arange(0, BN),
                mask=offs_cn + tl.arange(0, BN) < N,
                other=0.0,
            )[None, :]
        if EPILOGUE_SUBTILE:
            acc = tl.reshape(accumulator, (BM, 2, BN // 2))
            acc = tl.permute(acc, (0, 2, 1))
            acc0, acc1 = tl.split(acc)
            c_desc.store([offs_cm, offs_cn], acc0.to(dtype))
            c_desc.store([offs_cm, offs_cn + BN // 2], acc1.to(dtype))
        else:
            c_desc.store([offs_cm, offs_cn], accumulator.to(dtype))


def staying():
    M, N, K, BM, BN, BK = 70, 96, 48, 32, 32, 16
    a, b, bias = (
        normal(M, K, dtype=torch.float16),
        normal(N, K, seed=1, dtype=torch.float16),
        normal(N, seed=2),
    )
    outs = []
    for halves in (True, False):
        c = torch.empty(M, N, dtype=torch.float16)
        described = [
            TensorDescriptor.from_tensor(a, [BM, BK]),
            TensorDescriptor.from_tensor(b, block_shape=[BN, BK]),
            TensorDescriptor(c, c.shape, c.stride(), [BM, BN // (2 if halves else 1)]),
        ]
        staying_kernel[(4,)](
            *described,
            bias,
            M,
            N,
            K,
            BM,
            BN,
            BK,
            2,
            NUM_SMS=4,
            EPILOGUE_SUBTILE=halves,
            WARP_SPECIALIZE=False,
        )
        outs.append(c)
    want = a.float() @ b.float().t() + bias
    return torch.stack(outs) * 0.1, torch.stack([want, want]) * 0.1


# a gated layer: halves of a row, activations by name, gradients that replace their operands


@triton.jit
def activated(x, NAME: tl.constexpr):
    if NAME == "silu":
        s = tl.sigmoid(x)
        return x * s, s * (1 + x * (1 - s))
    elif NAME == "gelu":
        inner = 0.7978845608028654 * (x + 0.044715 * x * x * x)
        t = tanh(inner)
        return 0.5 * x * (1 + t), 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * 0.7978845608028654 * (
            1 + 0.134145 * x * x
        )
    else:
        r = tl.where(x > 0, x, 0.0)
        return r * r, 2 * r


@triton.jit
def gated_kernel(DOUT, E, G, n, NAME: tl.constexpr, BLOCK: tl.constexpr, LONG: tl.constexpr):
    block = tl.program_id(0)
    if LONG:
        offs = block.to(tl.int64) * BLOCK + tl.arange(0, BLOCK).to(tl.int64)
        n = tl.cast(n, tl.int64)
    else:
        offs = block * BLOCK + tl.arange(0, BLOCK)
    mask = offs < n
    dout, e, g = (
        tl.load(DOUT + offs, mask=mask, other=0),
        tl.load(E + offs, mask=mask, other=0).to(tl.float32),
        tl.load(G + offs, mask=mask, other=0),
    )
    f, slope = activated(e, NAME)
    f = f.to(dout.dtype)
    tl.store(DOUT + offs, f * g, mask=mask)
    tl.store(E + offs, dout * f, mask=mask)
    tl.store(G + offs, ((dout * g).to(tl.float32) * slope).to(dout.dtype), mask=mask)


@dataclass
class Gate:
    name: str
    long: bool = True

    def __call__(self, *tensors):
        n = tensors[0].numel()
        gated_kernel[(triton.cdiv(n, 64),)](*tensors, n, NAME=self.name, BLOCK=64, LONG=self.long)
        return torch.stack(tensors)


def gated():
    got, want = [], []
    for name, long in (("silu", True), ("gelu", False), ("relu2", False)):
        dout, e, g = (normal(3, 40, seed=s) for s in range(3))
        x = e.clone().requires_grad_()
        f = {
            "silu": torch.nn.functional.silu,
            "gelu": lambda v: torch.nn.functional.gelu(v, approximate="tanh"),
            "relu2": lambda v: v.relu().square(),
        }[name](x)
        (slope,) = torch.autograd.grad(f.sum(), x)
        want.append(torch.stack([f.detach() * g, dout * f.detach(), dout * g * slope]))
        got.append(Gate(name, long)(dout, e, g))
    return torch.stack(got), torch.stack(want)


CASES = [loss_in_place, locked_norm, adam_step, dropped_norm, staying, gated]
