"""Matrix multiplications that hide the traffic between devices: Hopper, on the units of gluon_kernels.

All-gather, then multiply: each rank has a part of the rows of A. Programs begin with the rows that
are there and wait for the others chunk by chunk, while copy engines, or a kernel on a side stream, bring them.

Multiply, then reduce-scatter: each rank has a part of K. Programs begin with the tiles that other
ranks are to sum up and store them in those ranks' memory by TMA; their own tiles come last, when the
tiles of the others are there, and are added to those. With GATHER every rank gets all sums.

Buffers that others write or read alternate: a rank in a call has left the one before.
"""

from typing import Any

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    tma_ring,
    tma_writer,
    warpgroup_mma,
    warpgroup_mma_init,
    warpgroup_mma_wait,
)
from gluon_core.nvidia.hopper import TensorDescriptor
from gluon_kernels.gemm.hopper_cooperative import multiply_tiles

ALWAYS = 1 << 30  # a count that is never waited for


def describe(array, box):
    """Return the TMA descriptor of boxes of an array."""
    layout = gl.NVMMASharedLayout.get_default_for(box, getattr(gl, str(array.dtype).split(".")[-1]))
    return TensorDescriptor.from_tensor(array, box, layout)


def programs(tiles, most):
    """As few as do all tiles in as many rounds as `most` programs would take."""
    return tiles if most is None else gluon.cdiv(tiles, gluon.cdiv(tiles, most))


class Launches:
    """Prepared launches of one kernel, by the arguments that stay from call to call."""

    def __init__(self, kernel):
        self.kernel, self.known = kernel, {}

    def __call__(self, key, grid, make, count):
        """Launch with the results of `make()`: the arguments before the count, and after it."""
        launch = self.known.get(key)
        if launch is None:
            before, after = make()
            handle = self.kernel.prepare(*before, count, *after, grid=grid, num_warps=4)
            launch = self.known[key] = handle, before, after
        handle, before, after = launch
        handle(*before, count, *after)


# -- all-gather, then multiply ---------------------------------------------------------------------


@gluon.jit
def copy_arrived(ring, tiles, K, arrived, least, chunk, BLOCK_K: gl.constexpr):
    position = ring.producer()
    for tile in range(gl.program_id(0), tiles.count(), gl.num_programs(0)):
        row, column = tiles.at(tile)
        gl.portable.counter_wait(arrived + row // chunk, least, scope="gpu")
        for k in range(0, K, BLOCK_K):
            ring.fetch(position, [[row, k], [k, column]])
            position = position.next()


@gluon.jit(do_not_specialize=["least"])
def gathered_matmul(
    a_desc,
    b_desc,
    c_desc,
    M,
    N,
    K,
    first_row,
    arrived,
    least,
    chunk,
    BLOCK_M: gl.constexpr,
    BLOCK_N: gl.constexpr,
    BLOCK_K: gl.constexpr,
    STAGES: gl.constexpr,
    GROUP: gl.constexpr,
):
    ring = tma_ring([a_desc, b_desc], STAGES, consumers=2)
    tiles = gl.portable.swizzled_tiles([M, N], [BLOCK_M, BLOCK_N], GROUP, first_row=first_row)
    first = tma_writer(c_desc, parts=4, buffers=4)
    second = tma_writer(c_desc, parts=4, buffers=4)
    gl.warp_specialize(
        [
            (multiply_tiles, (ring, tiles, first, K, 0, BLOCK_K, False)),
            (multiply_tiles, (ring, tiles, second, K, 1, BLOCK_K, False)),
            (copy_arrived, (ring, tiles, K, arrived, least, chunk, BLOCK_K)),
        ],
        [4, 1],
        [232, 24],
    )


@gluon.jit
def meet(x):
    gl.portable.rank_barrier(x.signals, x.rank)


@gluon.jit
def bring_rows(a, arrived, rows, K, chunk, BLOCK: gl.constexpr):
    """Copy the rows of all other ranks into this one's copy of A, chunk by chunk."""
    world: gl.constexpr = len(a.peers)
    layout: gl.constexpr = gl.portable.blocked_layout([BLOCK], a.peers[0].dtype.element_ty)
    mine = gl.portable.peer(a.peers, a.rank)
    for step in range(1, world):
        source = (a.rank + step) % world
        theirs = gl.portable.peer(a.peers, source)
        for start in range(0, rows, chunk):
            first = (source * rows + start) * K
            size = gl.minimum(chunk, rows - start) * K
            for k in range(gl.program_id(0) * BLOCK, size, gl.num_programs(0) * BLOCK):
                offsets = k + gl.arange(0, BLOCK, layout=layout)
                value = gl.load(theirs + first + offsets, mask=offsets < size)
                gl.store(mine + first + offsets, value, mask=offsets < size)
            gl.portable.counter_add(arrived + (source * rows + start) // chunk, 1, scope="gpu")


class GatheredMatmul:
    """`c` = all ranks' rows of A, one below the other, times this rank's `b`.

    Args:
        group: of the ranks.
        rows: of each rank's part of A, a multiple of `chunks` times BLOCK_M.
        K: its columns.
        chunks: that each rank's rows come in.
        engines: copies by copy engines, on a stream of their own; else by `programs` programs of a
            kernel.

    `shard()` is where a rank puts its rows before a call; there are two such places, which take
    turns.
    """

    def __init__(
        self, group, rows, K, dtype, counter_dtype, chunks=4, engines=False, programs=4
    ):  # fmt: skip
        self.group, self.rows, self.K = group, rows, K
        self.chunk = rows // chunks
        self.engines, self.programs = engines, programs
        self.buffers = [group.zeros((group.world * rows, K), dtype) for _ in range(2)]
        self.counters = [self._counters(counter_dtype) for _ in range(2)]
        self.launches = Launches(gathered_matmul)
        self.meet = [meet.prepare(buffer, grid=(1,), num_warps=1) for buffer in self.buffers]
        self.calls = 0

    def _counters(self, dtype):
        """By chunk: how often it came. This rank's own chunks are always there."""
        count = self.rows // self.chunk
        counters = self.group.zeros(self.group.world * count, dtype).local
        counters[self.group.rank * count : (self.group.rank + 1) * count] = ALWAYS
        return counters

    def shard(self):
        """Return this rank's rows of A for the next call."""
        first = self.group.rank * self.rows
        return self.buffers[self.calls % 2].local[first : first + self.rows]

    def __call__(self, b, c, block=(128, 256, 64), stages=3, grid=None, together=16):
        """`c` = all rows of A times `b`, by at most `grid` programs.

        Args:
            together: rows of tiles that are walked at a time.
        """
        turn = self.calls % 2
        a, arrived = self.buffers[turn], self.counters[turn]
        times = self.calls // 2 + 1
        self.calls += 1
        side = None if self.engines else self.group.side_stream()
        if side is None:
            self._bring(turn, times)
            grid = grid and grid - 1  # the copies of the shards need a place to meet
        else:
            self.meet[turn](a)  # all shards are there
            times *= self.programs
            with side:
                bring_rows[(self.programs,)](a, arrived, self.rows, self.K, self.chunk, BLOCK=1024)
        m, n, k = block
        M, N = self.group.world * self.rows, b.shape[1]
        count = programs(gluon.cdiv(M, m) * gluon.cdiv(N, n), grid)
        self.launches(
            (turn, b.data_ptr(), c.data_ptr(), block, stages, count, together),
            (count,),
            lambda: (
                (
                    describe(a.local, [m, k]), describe(b, [k, n]), describe(c, [m // 2, n // 4]),
                    M, N, self.K, self.group.rank * self.rows, arrived,
                ),
                (self.chunk, m, n, k, stages, together),
            ),
            times,
        )  # fmt: skip
        if side is not None:
            side.join()

    def _bring(self, turn, times):
        import torch
        from torch._C._distributed_c10d import _SymmetricMemory

        if not hasattr(self, "stream"):
            self.stream = torch.cuda.Stream()
            self.count = self.rows // self.chunk
        world, rank = self.group.world, self.group.rank
        a, words = self.buffers[turn], self.counters[turn].view(torch.uint32)
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            self.meet[turn](a)  # all shards are there; this rank's own tiles need not wait for that
            for step in range(1, world):
                source = (rank + step) % world
                for number in range(source * self.count, (source + 1) * self.count):
                    rows = slice(number * self.chunk, (number + 1) * self.chunk)
                    a.local[rows].copy_(a.peers[source][rows])
                    _SymmetricMemory.stream_write_value32(words, number, times)


# -- multiply, then reduce-scatter -----------------------------------------------------------------


@gluon.jit
def start_tile(ROWS: gl.constexpr, COLUMNS: gl.constexpr, dtype: gl.constexpr):
    instruction_k: gl.constexpr = 256 // dtype.primitive_bitwidth
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, COLUMNS, instruction_k])
    return gl.zeros([ROWS, COLUMNS], gl.float32, layout)


@gluon.jit
def multiply_steps(ring, position, acc, steps, half: gl.constexpr):
    """`acc` and the products of so many slots, and the position after them."""
    ROWS: gl.constexpr = acc.shape[0]
    acc = warpgroup_mma_init(acc)
    for step in range(0, steps):
        a_tile, b_tile = ring.wait(position)
        acc = warpgroup_mma(a_tile.slice(half * ROWS, ROWS, dim=0), b_tile, acc, is_async=True)
        # The step before is over: give its slot back.
        acc = warpgroup_mma_init(warpgroup_mma_wait(1, deps=[acc]))
        ring.release(position.before(), pred=step > 0)
        position = position.next()
    result = warpgroup_mma_wait(0, deps=[acc])
    ring.release(position.before(), pred=steps > 0)
    return result, position


@gluon.jit
def add_received(acc, inbox, source, row, column, rows, N):
    """Return the sum of `acc` and the tile that a rank sent for `row` and `column` of this rank's rows."""
    layout: gl.constexpr = acc.type.layout
    y = row + gl.arange(0, acc.shape[0], layout=gl.SliceLayout(1, layout))
    x = column + gl.arange(0, acc.shape[1], layout=gl.SliceLayout(0, layout))
    offsets = y[:, None] * N + x[None, :]
    inside = (y < rows)[:, None] & (x < N)[None, :]
    theirs = inbox + source.to(gl.int64) * rows * N
    return acc + gl.load(theirs + offsets, mask=inside, other=0.0).to(gl.float32)


@gluon.jit
def signal_stored(counters, owner, number):
    """Signal that the stores to a tile of another rank are done."""
    tma.store_wait(0, read_only=False)
    gl.portable.counter_add(gl.portable.peer(counters, owner) + number, 1)


@gluon.jit
def store(buffer, value, desc, row, column):
    tma.store_wait(0)
    buffer.store(value.to(buffer.dtype))
    fence_async_shared()
    tma.async_store(desc, [row, column], buffer)


@gluon.jit
def multiply_and_send(
    ring, tiles, through, where, received, sizes, half: gl.constexpr, GATHER: gl.constexpr
):  # fmt: skip
    buffer, came = through
    BLOCK_K: gl.constexpr = ring.block_shape[1]
    outs, boxes, box, counters = where
    inbox, rank, least = received
    rows, N, K = sizes
    world: gl.constexpr = len(boxes)
    ROWS: gl.constexpr = tiles.block[0] // 2
    COLUMNS: gl.constexpr = tiles.block[1]
    position = ring.consumer()
    across = (N + COLUMNS - 1) // COLUMNS
    steps = (K + BLOCK_K - 1) // BLOCK_K
    late = steps // 4
    phase = 0
    sent_to, sent = -1, 0  # a tile on its way, signaled to its owner during the next product
    for tile in range(gl.program_id(0), tiles.count(), gl.num_programs(0)):
        row, column = tiles.at(tile)
        owner = row // rows
        first = row - owner * rows
        number = first // tiles.block[0] * across + column // COLUMNS
        first += half * ROWS
        acc = start_tile(ROWS, COLUMNS, ring.dtype)
        acc, position = multiply_steps(ring, position, acc, steps - late, half)
        if sent_to >= 0:
            signal_stored(counters, sent_to, sent)
        sent_to = -1
        if owner == rank:
            # The tile of the next rank comes into the buffer during the last steps.
            gl.portable.counter_wait(gl.portable.peer(counters, rank) + number, least)
            tma.store_wait(0)
            mbarrier.expect(came, box.nbytes_per_cta)
            tma.async_load(box, [(rank + 1) % world * rows + first, column], came, buffer)
        result, position = multiply_steps(ring, position, acc, late, half)
        if owner == rank:
            mbarrier.wait(came, phase)
            phase ^= 1
            result += buffer.load(result.type.layout).to(gl.float32)
            for step in gl.static_range(2, world):
                result = add_received(result, inbox, (rank + step) % world, first, column, rows, N)
            if GATHER:
                buffer.store(result.to(buffer.dtype))
                fence_async_shared()
                for other in gl.static_range(world):
                    tma.async_store(outs[other], [row + half * ROWS, column], buffer)
            else:
                store(buffer, result, outs[0], first, column)
        else:
            for other in gl.static_range(world):
                if owner == other:
                    store(buffer, result, boxes[other], rank * rows + first, column)
            sent_to, sent = owner, number
    if sent_to >= 0:
        signal_stored(counters, sent_to, sent)
    tma.store_wait(0, read_only=False)


@gluon.jit
def copy_steps(ring, tiles, K, BLOCK_K: gl.constexpr):
    position = ring.producer()
    for tile in range(gl.program_id(0), tiles.count(), gl.num_programs(0)):
        row, column = tiles.at(tile)
        for k in range(0, K, BLOCK_K):
            ring.fetch(position, [[row, k], [k, column]])
            position = position.next()


@gluon.jit(do_not_specialize=["least", "rank"])
def matmul_scattered(
    a_desc,
    b_desc,
    outs,
    boxes,
    box,
    counters,
    inbox,
    rank,
    rows,
    N,
    K,
    least,
    BLOCK_M: gl.constexpr,
    BLOCK_N: gl.constexpr,
    BLOCK_K: gl.constexpr,
    STAGES: gl.constexpr,
    GROUP: gl.constexpr,
    GATHER: gl.constexpr,
):
    world: gl.constexpr = len(boxes)
    ring = tma_ring([a_desc, b_desc], STAGES, consumers=2)
    after = (rank + 1) % world * rows
    tiles = gl.portable.swizzled_tiles(
        [world * rows, N], [BLOCK_M, BLOCK_N], GROUP, first_row=after
    )
    # Room for a whole tile: the tiles of other ranks are on their way while the next product goes on.
    half: gl.constexpr = [BLOCK_M // 2, BLOCK_N]
    first = gl.allocate_shared_memory(box.dtype, half, box.layout)
    second = gl.allocate_shared_memory(box.dtype, half, box.layout)
    came = mbarrier.allocate_mbarrier(batch=2)
    for number in gl.static_range(2):
        mbarrier.init(came.index(number), 1)
    upper, lower = (first, came.index(0)), (second, came.index(1))
    where = (outs, boxes, box, counters)
    here = (inbox, rank, least)
    sizes = (rows, N, K)
    gl.warp_specialize(
        [
            (multiply_and_send, (ring, tiles, upper, where, here, sizes, 0, GATHER)),
            (multiply_and_send, (ring, tiles, lower, where, here, sizes, 1, GATHER)),
            (copy_steps, (ring, tiles, K, BLOCK_K)),
        ],
        [4, 1],
        [232, 24],
    )


class MatmulScattered:
    """`out` = this rank's rows of the sum over ranks of `a @ b`; with `gather`, all rows.

    Args:
        rows: of each rank's part of the result, a multiple of BLOCK_M.
        N: its columns.
        gather: every rank gets all rows, in `result()`.
    """

    def __init__(self, group, rows, N, dtype, counter_dtype, block=(128, 256, 64), gather=False):
        self.group, self.rows, self.N, self.block, self.gather = group, rows, N, block, gather
        tiles = gluon.cdiv(rows, block[0]) * gluon.cdiv(N, block[1])
        self.boxes = [group.empty((group.world * rows, N), dtype) for _ in range(2)]
        self.counters = [group.zeros(tiles, counter_dtype) for _ in range(2)]
        shape = (group.world * rows, N)
        self.outs = [group.empty(shape, dtype) for _ in range(2 if gather else 0)]
        self.launches = Launches(matmul_scattered)
        self.meet = [meet.prepare(box, grid=(1,), num_warps=1) for box in self.boxes]
        self.calls = 0

    def result(self):
        """Return all rows of the latest sum."""
        return self.outs[(self.calls - 1) % 2].local

    def __call__(self, a, b, out=None, stages=3, grid=None, together=16):
        """Multiply; `out` is for the rows of this rank alone, and not for gathered ones."""
        turn = self.calls % 2
        m, n, k = self.block
        box, counters = self.boxes[turn], self.counters[turn]
        world = self.group.world
        least = (self.calls // 2 + 1) * 2 * (world - 1)
        self.calls += 1
        outs: tuple[Any, ...] = self.outs[turn].peers if self.gather else (out,)
        tiles = gluon.cdiv(world * self.rows, m) * gluon.cdiv(self.N, n)
        count = programs(tiles, grid)
        self.launches(
            (turn, a.data_ptr(), b.data_ptr(), outs[0].data_ptr(), stages, count, together),
            (count,),
            lambda: (
                (
                    describe(a, [m, k]), describe(b, [k, n]),
                    tuple(describe(one, [m // 2, n]) for one in outs),
                    tuple(describe(one, [m // 2, n]) for one in box.peers),
                    describe(box.local, [m // 2, n]),
                    counters.peers, box.local, self.group.rank, self.rows, self.N, a.shape[1],
                ),
                (m, n, k, stages, together, self.gather),
            ),
            least,
        )  # fmt: skip
        if self.gather:
            self.meet[turn](box)  # all rows have come
