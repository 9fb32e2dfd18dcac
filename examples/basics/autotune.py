"""Let `triton.autotune` choose the block size and the warps of a Gluon kernel.

    python examples/basics/autotune.py

The tuner times each configuration once per `key`. Without a GPU there is nothing to time: `do_bench` here counts every
configuration as equal on the simulator, which runs them all and keeps the first.
"""

import numpy as np
import triton

import gluon_core as gluon
from gluon_core import language as gl

CONFIGS = [
    triton.Config({"BLOCK": block}, num_warps=warps)
    for block, warps in ((1024, 4), (2048, 4), (4096, 8))
]


PLACE = gluon.testing.place()


def do_bench(call, quantiles):
    if not PLACE.simulated:
        return triton.testing.do_bench(call, quantiles=quantiles)
    call()
    return [1.0] * len(quantiles)


@triton.autotune(configs=CONFIGS, key=["n"], do_bench=do_bench)
@gluon.jit
def scale_kernel(x, out, n, factor, THREADS: gl.constexpr, BLOCK: gl.constexpr):
    layout: gl.constexpr = gl.BlockedLayout([4], [THREADS], [gl.num_warps()], [0])
    i = gl.program_id(0) * BLOCK + gl.arange(0, BLOCK, layout)
    gl.store(out + i, gl.load(x + i, mask=i < n) * factor, mask=i < n)


def main():
    values = np.random.default_rng(0).standard_normal(10_000, np.float32)
    x, out = PLACE.array(values), PLACE.empty(10_000, np.float32)
    grid = lambda meta: (gluon.cdiv(10_000, meta["BLOCK"]),)  # noqa: E731
    threads = PLACE.target.warp_size
    scale_kernel[grid](x, out, 10_000, 3.0, THREADS=threads, target=PLACE.target)
    np.testing.assert_array_equal(PLACE.numpy(out), 3 * values)
    best = scale_kernel.best_config.kwargs
    print(f"autotune on {PLACE.target}: {best} of {len(CONFIGS)} configurations")


if __name__ == "__main__":
    main()
