"""Functions of other modules, some of which are not inlined."""

from triton import jit
from triton import language as lang
from triton.language import constexpr
from triton.language.extra import libdevice

EPS: constexpr = constexpr(1e-6)


@jit
def inverse_rms(x, n, eps=EPS):
    return libdevice.rsqrt(lang.sum(x * x, axis=-1, keep_dims=True) / n + eps)


@jit(noinline=True)
def block_offset(table, slot, page: constexpr, stride):
    return lang.load(table + slot // page).to(lang.int64) * stride + slot % page


@jit
def welford(mean_a, m2_a, n_a, mean_b, m2_b, n_b):
    delta, n = mean_b - mean_a, n_a + n_b
    share = lang.where(n > 0, n_b / lang.maximum(n, 1.0), 0.0)
    return mean_a + delta * share, m2_a + m2_b + delta * delta * n_a * share, n
