"""Multi-head latent attention of one new token each (DeepSeek-V2, arXiv:2405.04434), absorbed, on any device.

All heads look at one latent vector of each earlier token, which is key and value at once, and at a few rotated elements that are
key only. A sequence is cut into parts of CHUNK tokens, always the same ones, whose results are combined in order: a sequence's
result has the same bits for every batch. How many programs walk over the parts of a sequence is free.
"""

import gluon_core as gluon
from gluon_core import language as gl
from gluon_kernels.attention.portable import fetch, rows_of


@gluon.jit
def load_queries(q, first, heads, stride, M: gl.constexpr, D: gl.constexpr, shared: gl.constexpr):
    """Return some elements of a tile of heads in shared memory."""
    layout: gl.constexpr = gl.portable.blocked_layout([M, D], q.dtype.element_ty)
    row = gl.arange(0, M, gl.SliceLayout(1, layout))
    column = gl.arange(0, D, gl.SliceLayout(0, layout))
    position = row[:, None] * stride + column[None, :]
    tile = gl.portable.load(q + first, position, (row < heads)[:, None])
    return gl.allocate_shared_memory(q.dtype.element_ty, [M, D], shared, tile)


@gluon.jit
def fetch_tile(buffers, cache, table, tile, end, STAGES: gl.constexpr, PAGE: gl.constexpr):
    """Start copying a tile of tokens to its slot: latent elements, and rotated ones."""
    latent, rotated = buffers
    BLOCK: gl.constexpr = latent.shape[1]
    WIDTH: gl.constexpr = latent.shape[2] + rotated.shape[2]
    dtype: gl.constexpr = latent.dtype
    wide: gl.constexpr = gl.portable.blocked_layout([BLOCK, latent.shape[2]], dtype)
    rows, valid = rows_of(table, tile, (None, end), end, wide, PAGE, BLOCK)
    fetch(latent.index(tile % STAGES), cache, rows, valid, WIDTH, wide)
    narrow: gl.constexpr = gl.portable.blocked_layout([BLOCK, rotated.shape[2]], dtype)
    rows, valid = rows_of(table, tile, (None, end), end, narrow, PAGE, BLOCK)
    fetch(rotated.index(tile % STAGES), cache + latent.shape[2], rows, valid, WIDTH, narrow)
    gl.portable.commit()


@gluon.jit
def mla_decode(
    q, cache, table, lengths, parts, logsums, heads, most, table_stride, scale,
    LATENT: gl.constexpr, ROTATED: gl.constexpr, PAGE: gl.constexpr, CHUNK: gl.constexpr,
    BLOCK_M: gl.constexpr, BLOCK: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """Attend to the parts of each sequence; the grid has tiles of heads, sequences, and programs that share a sequence.

    `q` is [sequences, heads, LATENT + ROTATED], `cache` [pages, PAGE, LATENT + ROTATED], the table [sequences, pages of the longest].
    The result of each part of CHUNK tokens goes to `parts` [sequences, heads, most, LATENT], float32, the logarithm (base 2) of its
    sum to `logsums`. `scale` includes log2(e); BLOCK divides CHUNK.
    """
    dtype: gl.constexpr = q.dtype.element_ty
    WIDTH: gl.constexpr = LATENT + ROTATED
    # Copies through registers have branches, and LLVM moves products past these: such copies begin when the scores are known.
    ASYNC: gl.constexpr = gl.target.has("nvidia.cp_async")
    scores: gl.constexpr = gl.portable.mma_layouts(
        BLOCK_M, BLOCK, LATENT, dtype, dtype, operands="shared", b_transposed=True
    )
    rotations: gl.constexpr = gl.portable.mma_layouts(
        BLOCK_M, BLOCK, ROTATED, dtype, dtype, operands="shared", b_transposed=True
    )
    values: gl.constexpr = gl.portable.mma_layouts(
        BLOCK_M, LATENT, BLOCK, dtype, dtype, operands="shared"
    )
    by_row: gl.constexpr = gl.SliceLayout(1, scores.accumulator)
    out_row: gl.constexpr = gl.SliceLayout(1, values.accumulator)
    latent = gl.allocate_shared_memory(dtype, [STAGES, BLOCK, LATENT], values.b_shared)
    rotated = gl.allocate_shared_memory(dtype, [STAGES, BLOCK, ROTATED], rotations.b_shared)
    weights = gl.allocate_shared_memory(dtype, [BLOCK_M, BLOCK], values.a_shared)
    sequence = gl.program_id(1)
    head = gl.program_id(0) * BLOCK_M
    length = gl.load(lengths + sequence)
    table += sequence * table_stride
    first_row = sequence * heads + head
    of_head = q + first_row.to(gl.int64) * WIDTH
    q_latent = load_queries(of_head, 0, heads - head, WIDTH, BLOCK_M, LATENT, scores.a_shared)
    q_rotated = load_queries(
        of_head, LATENT, heads - head, WIDTH, BLOCK_M, ROTATED, rotations.a_shared
    )
    gl.portable.fence()

    row = gl.arange(0, BLOCK_M, out_row)
    column = gl.arange(0, LATENT, gl.SliceLayout(0, values.accumulator))
    score_row = gl.arange(0, BLOCK_M, by_row)
    key = gl.arange(0, BLOCK, gl.SliceLayout(0, scores.accumulator))
    for part in range(gl.program_id(2), gl.cdiv(length, CHUNK), gl.num_programs(2)):
        end = gl.minimum((part + 1) * CHUNK, length)
        first = part * (CHUNK // BLOCK)
        for i in gl.static_range(STAGES - 1):
            fetch_tile((latent, rotated), cache, table, first + i, end, STAGES, PAGE)
        largest = gl.full([BLOCK_M], -1e30, gl.float32, by_row)
        total = gl.zeros([BLOCK_M], gl.float32, by_row)
        result = gl.zeros([BLOCK_M, LATENT], gl.float32, values.accumulator)
        for tile in range(first, gl.cdiv(end, BLOCK)):
            gl.portable.wait(STAGES - 2)
            slot = tile % STAGES
            acc = gl.portable.accumulator(scores)
            k_tile = latent.index(slot).permute((1, 0))
            acc = gl.portable.mma(q_latent, k_tile, acc, is_async=True)
            k_tile = rotated.index(slot).permute((1, 0))
            acc = gl.portable.mma(q_rotated, k_tile, acc, is_async=True)
            score = gl.portable.read(acc) * scale
            # All warps have finished the tile before: its slot is free.
            if ASYNC:
                fetch_tile((latent, rotated), cache, table, tile + STAGES - 1, end, STAGES, PAGE)
            score = gl.where((tile * BLOCK + key < end)[None, :], score, -float("inf"))
            higher = gl.maximum(largest, gl.max(score, axis=1))
            if not ASYNC:
                fetch_tile((latent, rotated), cache, table, tile + STAGES - 1, end, STAGES, PAGE)
            decay = gl.exp2(largest - higher)
            p = gl.exp2(score - higher[:, None])
            total = total * decay + gl.sum(p, axis=1)
            largest = higher
            weights.store(p.to(dtype))
            gl.portable.fence()
            result = result * gl.convert_layout(decay, out_row)[:, None]
            sums = gl.portable.accumulator(values, result)
            result = gl.portable.read(gl.portable.mma(weights, latent.index(slot), sums))
        gl.portable.wait(0)

        result = result / gl.convert_layout(total, out_row)[:, None]
        position = (first_row + row).to(gl.int64) * most + part
        gl.store(parts + position[:, None] * LATENT + column[None, :], result,
                 mask=(head + row < heads)[:, None])  # fmt: skip
        position = (first_row + score_row).to(gl.int64) * most + part
        gl.store(logsums + position, largest + gl.log2(total), mask=head + score_row < heads)


@gluon.jit
def combine(
    parts, logsums, lengths, out, heads, most, CHUNK: gl.constexpr, D: gl.constexpr
):  # fmt: skip
    """Combine the parts of a head's result, in order."""
    layout: gl.constexpr = gl.portable.blocked_layout([D], gl.float32)
    row = gl.program_id(1) * heads + gl.program_id(0)
    count = gl.cdiv(gl.load(lengths + gl.program_id(1)), CHUNK)
    column = gl.arange(0, D, layout)
    logsums += row.to(gl.int64) * most
    parts += row.to(gl.int64) * most * D
    largest = gl.to_tensor(-1e30)
    for part in range(count):
        largest = gl.maximum(largest, gl.load(logsums + part))
    total = gl.to_tensor(0.0)
    acc = gl.zeros([D], gl.float32, layout)
    for part in range(count):
        weight = gl.exp2(gl.load(logsums + part) - largest)
        total += weight
        acc += weight * gl.load(parts + part * D + column)
    result = acc / gl.where(total > 0, total, 1.0)
    gl.store(out + row.to(gl.int64) * D + column, result.to(out.dtype.element_ty))
