"""The decays of chunks with one gate for each token and head, from gates or from the steps of Mamba-2's scan, on any device."""

import gluon_core as gluon
from gluon_core import language as gl
from gluon_kernels.linear_attention.portable import add

__all__ = ["store_decays"]


@gluon.constexpr_function
def chunk_rows(C, warps, lanes):
    """Return a layout of [chunks, C] in which a warp has whole rows."""
    return gl.BlockedLayout([1, max(C // lanes, 1)], [1, lanes], [warps, 1], [1, 0])


@gluon.jit
def softplus(x):
    """Return log(1 + e^x), precise where e^x is far below one."""
    power = gl.exp2(gl.minimum(x, 20.0) * 1.4426950408889634)
    one_more = 1.0 + power
    apart = gl.where(one_more == 1.0, 1.0, one_more - 1.0)
    log = gl.log2(one_more) * 0.6931471805599453
    return gl.where(x > 20.0, x, gl.where(one_more == 1.0, power, log * (power / apart)))


@gluon.jit
def store_decays(
    gates, slopes, bias, decays, length, heads, chunks, C: gl.constexpr, CHUNKS: gl.constexpr, SOFTPLUS: gl.constexpr,
):  # fmt: skip
    """Store the decays of CHUNKS chunks as `portable.prepare` does; the grid has groups of chunks, heads and batches.

    `gates` are contiguous [batch, length, heads]: the logarithms of decays, or, if `slopes` [heads] is not None, steps, to which `bias` [heads] is
    added, if not None, and `softplus` is applied with SOFTPLUS. Then a gate is step times slope, the step is the token's rate, and a factor of
    e_C / e.
    """
    head = gl.program_id(1)
    batch = gl.program_id(2).to(gl.int64)
    layout: gl.constexpr = chunk_rows(C, gl.num_warps(), gl.target.warp_size())
    chunk = gl.program_id(0) * CHUNKS + gl.arange(0, CHUNKS, gl.SliceLayout(1, layout))[:, None]
    near = gl.arange(0, C, gl.SliceLayout(0, layout))[None, :]
    row = chunk * C + near
    inside = row < length
    gate = gl.load(gates + (batch * length + row) * heads + head, mask=inside, other=0.0)
    gate = gate.to(gl.float32)
    if slopes is not None:
        rate = gate
        if bias is not None:
            rate += gl.load(bias + head).to(gl.float32)
        if SOFTPLUS:
            rate = softplus(rate)
        rate = gl.where(inside, rate, 0.0)
        gate = rate * gl.load(slopes + head).to(gl.float32)
    logs = gl.associative_scan(gate * 1.4426950408889634, 1, add)
    whole = gl.sum(gl.where(near == C - 1, logs, 0.0), 1)[:, None]
    to_last = gl.exp2(whole - logs)
    target = decays + ((batch * heads + head) * chunks + chunk) * (4 * C) + near
    exists = (chunk < chunks) & (near < C)
    gl.store(target, logs, mask=exists)
    gl.store(target + C, gl.exp2(logs), mask=exists)
    if slopes is not None:
        to_last = to_last * rate
        gl.store(target + 3 * C, rate, mask=exists)
    gl.store(target + 2 * C, to_last, mask=exists)
