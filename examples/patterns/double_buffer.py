"""Copy the next block into shared memory while this one is added: `cp.async` and two buffers.

    python examples/patterns/double_buffer.py

While `cp.async` (PTX ISA, 9.7.9.25.3) fills one buffer, the other is read. `wait_group(1)` waits for all copies but those
of the newest group.
"""

import numpy as np

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.language.nvidia.ampere.async_copy import async_load, commit_group, wait_group


@gluon.jit
def fetch(buffers, x, y, place, inside, tile):
    async_load(buffers[0].index(tile % 2), x + place, mask=inside)
    async_load(buffers[1].index(tile % 2), y + place, mask=inside)
    commit_group()


@gluon.jit
def add_kernel(x, y, out, n, BLOCK: gl.constexpr, TILES: gl.constexpr):
    layout: gl.constexpr = gl.BlockedLayout([4], [32], [gl.num_warps()], [0])
    shared: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    x_smem = gl.allocate_shared_memory(x.dtype.element_ty, [2, BLOCK], shared)
    y_smem = gl.allocate_shared_memory(y.dtype.element_ty, [2, BLOCK], shared)
    buffers = (x_smem, y_smem)
    place = gl.program_id(0) * BLOCK * TILES + gl.arange(0, BLOCK, layout)
    fetch(buffers, x, y, place, place < n, 0)
    for tile in range(TILES):
        ahead = place + BLOCK
        fetch(buffers, x, y, ahead, (ahead < n) & (tile + 1 < TILES), tile + 1)
        wait_group(1)
        total = x_smem.index(tile % 2).load(layout) + y_smem.index(tile % 2).load(layout)
        gl.store(out + place, total, mask=place < n)
        place = ahead
    wait_group(0)


def main():
    place = gluon.testing.place("nvidia.cp_async")
    x, y = np.random.default_rng(0).standard_normal((2, 10_000), np.float32)
    out, grid = place.empty(10_000, np.float32), (gluon.cdiv(10_000, 4 * 512),)
    add_kernel[grid](place.array(x), place.array(y), out, 10_000, 512, 4, target=place.target)
    np.testing.assert_array_equal(place.numpy(out), x + y)
    print(f"double buffer on {place.target}: {grid[0]} programs, 4 blocks for each")


if __name__ == "__main__":
    main()
