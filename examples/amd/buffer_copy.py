"""Copy through buffer addressing on AMD: offsets of 32 bits, and masks that cost no branch.

    python examples/amd/buffer_copy.py

A buffer instruction takes a base in scalar registers and an offset for each lane. A masked lane gets an offset past the end
of the buffer, where loads return zero and stores do nothing.
"""

import numpy as np

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.language.amd import cdna3


@gluon.jit
def copy_kernel(src, dst, n, BLOCK: gl.constexpr, THREADS: gl.constexpr):
    layout: gl.constexpr = gl.BlockedLayout([4], [THREADS], [gl.num_warps()], [0])
    offsets = gl.program_id(0) * BLOCK + gl.arange(0, BLOCK, layout)
    values = cdna3.buffer_load(src, offsets, mask=offsets < n, cache=".cs")  # read once
    cdna3.buffer_store(values, dst, offsets, mask=offsets < n)


def main():
    place = gluon.testing.place("amd.buffer_ops")
    values = np.random.default_rng(0).standard_normal(10_000, np.float32)
    dst, grid = place.empty(10_000, np.float32), (gluon.cdiv(10_000, 2048),)
    threads = place.target.warp_size
    copy_kernel[grid](place.array(values), dst, 10_000, 2048, threads, target=place.target)
    np.testing.assert_array_equal(place.numpy(dst), values)
    print(f"buffer copy on {place.target}: 10000 elements")


if __name__ == "__main__":
    main()
