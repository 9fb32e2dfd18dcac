"""The decays of a chunk with one gate for each token and head, from gates or from the steps of Mamba-2's scan."""

import gluon_core as gluon
from gluon_core import language as gl
from gluon_kernels.linear_attention.portable import add, tokens_layout

__all__ = ["load_gates", "store_decays"]


@gluon.jit
def softplus(x):
    """Return log(1 + e^x), precise where e^x is far below one."""
    power = gl.exp2(gl.minimum(x, 20.0) * 1.4426950408889634)
    one_more = 1.0 + power
    apart = gl.where(one_more == 1.0, 1.0, one_more - 1.0)
    log = gl.log2(one_more) * 0.6931471805599453
    return gl.where(x > 20.0, x, gl.where(one_more == 1.0, power, log * (power / apart)))


@gluon.jit
def load_gates(gates, batch, head, heads, length, chunk, C: gl.constexpr):
    """Load what a chunk's gates are made of, from contiguous [batch, length, heads]; zeros past the last token.

    A loop carries them in their own dtype: a conversion would wait for memory.
    """
    layout: gl.constexpr = tokens_layout(C, gl.num_warps(), gl.target.warp_size())
    row = chunk * C + gl.arange(0, C, layout)
    place = (batch.to(gl.int64) * length + row) * heads + head
    return gl.load(gates + place, mask=row < length, other=0.0)


@gluon.jit
def store_decays(decays, gate, slope, bias, rows, C: gl.constexpr, SOFTPLUS: gl.constexpr):
    """Store the decays of a chunk of so many `rows` to four vectors in shared memory, those of `portable.prepare`.

    `gate` has the logarithms of decays, or, if `slope` is not None, steps, to which `bias` is added, if not None, and `softplus` is applied with
    SOFTPLUS. Then a gate is step times slope, the step is the token's rate, and a factor of e_C / e.
    """
    near = gl.arange(0, C, gate.type.layout)
    gate = gate.to(gl.float32)
    if slope is not None:
        rate = gate
        if bias is not None:
            rate += bias
        if SOFTPLUS:
            rate = softplus(rate)
        rate = gl.where(near < rows, rate, 0.0)
        gate = rate * slope
        decays[3].store(rate)
    logs = gl.associative_scan(gate * 1.4426950408889634, 0, add)
    whole = gl.sum(gl.where(near == C - 1, logs, 0.0), 0)
    to_last = gl.exp2(whole - logs)
    if slope is not None:
        to_last = to_last * rate
    decays[0].store(logs)
    decays[1].store(gl.exp2(logs))
    decays[2].store(to_last)
