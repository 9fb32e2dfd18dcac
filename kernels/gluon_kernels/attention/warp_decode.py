"""Attention of few queries against many keys and values on NVIDIA's matrix units of one warp.

The roles of programs are those of `portable.py`. Here each warp has a share of a step's keys, and its own maxima, sums and weighted values of them: warps
wait for each other at copies only, and are put together once, behind the last step. The products are those of a batch of warps.
"""

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.language.nvidia.ampere import async_copy, mma_v2
from gluon_kernels.attention.portable import is_within, store_results
from gluon_kernels.attention.portable_forward import capped
from gluon_kernels.attention.tiles import with_sink
from gluon_kernels.dependent import wait_for_predecessor

__all__ = ["attention_of_warps"]

LONG_PAGE = gl.constexpr(256)


@gluon.constexpr_function
def shared_layout(width):
    """Return the layout of keys and values in shared memory: rows of 16 bits, without conflicts of eight rows."""
    rows = max(1, 64 // width)  # of 128 bytes
    return gl.SwizzledSharedLayout(8, rows, 8 // rows, [2, 1, 0])


@gluon.jit
def pages_of(table, first, key, most, PAGE: gl.constexpr):
    """Return the keys from `first` on, and their pages unless PAGE is 0. Pages are loaded up to `most` keys, so that they do not wait for lengths."""
    key = first + key
    page = key
    if PAGE:
        page = gl.load(table + (key.to(gl.uint32) // PAGE), mask=key < most, other=0)
    return key, page


@gluon.jit
def fetch(buffers, caches, slot, places, bounds, row_strides, PAGE: gl.constexpr):
    """Start copying keys and their values to a slot, zeros for those that are not within `bounds`."""
    key, page = places
    there = is_within(key, bounds)[:, :, None]
    for i in gl.static_range(2):
        smem = buffers[i].index(slot)
        column = gl.arange(
            0, smem.shape[2], gl.SliceLayout(0, gl.SliceLayout(1, key.type.layout.parent))
        )
        rows = key.to(gl.int64) * row_strides[i]
        if PAGE:
            near = key.to(gl.uint32) % PAGE
            # One product of 64 bits for all keys of a page, unless it is long.
            near = near.to(gl.int32 if PAGE <= LONG_PAGE else gl.int64) * row_strides[i]
            rows = page.to(gl.int64) * PAGE * row_strides[i] + near
        offsets = rows[:, :, None] + column[None, :][:, None, :]
        async_copy.async_load(smem, caches[i] + offsets, there)
    async_copy.commit_group()


@gluon.jit
def add_keys(
    state, q, buffers, slot, begin, bounds, scale, cap, CAPPED: gl.constexpr, MASKED: gl.constexpr
):
    """Return the maxima, the sums and the weighted values of each warp once a step's keys from `begin` on have joined them.

    If MASKED, those that are not within `bounds` do not.
    """
    largest, total, acc = state
    product: gl.constexpr = acc.type.layout
    right: gl.constexpr = gl.DotOperandLayout(1, product, 2)
    WARPS: gl.constexpr = acc.shape[0]
    KEYS: gl.constexpr = buffers[0].shape[2]
    k_tile = buffers[0].index(slot).permute((0, 2, 1)).load(right)
    nothing = gl.zeros([WARPS, acc.shape[1], KEYS], gl.float32, product)
    score = mma_v2(q, k_tile, nothing) * scale
    if CAPPED:
        score, _ = capped(score, cap)
    if MASKED:
        warp = gl.arange(0, WARPS, gl.SliceLayout(1, gl.SliceLayout(1, product)))[:, None]
        near = gl.arange(0, KEYS, gl.SliceLayout(0, gl.SliceLayout(1, product)))[None, :]
        key = begin + (warp * KEYS + near)[:, None, :]
        score = gl.where(is_within(key, bounds), score, -float("inf"))
    higher = gl.maximum(largest, gl.max(score, axis=2))
    kept = gl.exp2(largest - higher)
    p = gl.exp2(score - higher[:, :, None])
    total = total * kept + gl.sum(p, axis=2)
    v_tile = buffers[1].index(slot).load(right)
    weights = gl.convert_layout(p.to(v_tile.dtype), gl.DotOperandLayout(0, product, 2))
    acc = mma_v2(weights, v_tile, acc * kept[:, :, None])
    return higher, total, acc


@gluon.jit
def attention_of_warps(
    q, k_cache, v_cache, table, lengths, out, parts, counters, totals, sinks, heads, length, table_stride, strides,
    scale, window, cap, splits, ROWS: gl.constexpr, TOKENS: gl.constexpr, D: gl.constexpr, PAGE: gl.constexpr, BLOCK: gl.constexpr,
    STAGES: gl.constexpr, MOST: gl.constexpr, CAPPED: gl.constexpr, JOINED: gl.constexpr, ALIKE: gl.constexpr, WARPS: gl.constexpr,
):  # fmt: skip
    """Attend to the keys of each sequence; the grid has heads of keys, sequences and `splits` parts, MOST at most.

    Arguments are those of `portable.paged_attention`, of 16 bits. ALIKE says that rows of both caches have the same stride.
    """
    dtype: gl.constexpr = q.dtype.element_ty
    M: gl.constexpr = 16  # rows of the matrix units
    KEYS: gl.constexpr = BLOCK // WARPS  # of a warp in a step
    product: gl.constexpr = gl.NVMMADistributedLayout([2, 0], [WARPS, 1, 1], [1, M, 8])
    left: gl.constexpr = gl.DotOperandLayout(0, product, 2)
    by_row: gl.constexpr = gl.SliceLayout(2, product)
    copied: gl.constexpr = gl.BlockedLayout(
        [1, 1, 8], [1, 256 // D, D // 8], [WARPS, 1, 1], [2, 1, 0]
    )
    of_copies: gl.constexpr = gl.SliceLayout(2, copied)
    k_smem = gl.allocate_shared_memory(dtype, [STAGES, WARPS, KEYS, D], shared_layout(D))
    v_smem = gl.allocate_shared_memory(dtype, [STAGES, WARPS, KEYS, D], shared_layout(D))

    if gl.target.has("nvidia.tma"):  # as have all targets with dependent launches
        wait_for_predecessor()
    head = gl.program_id(0)
    sequence = gl.program_id(1)
    split = gl.program_id(2)
    of_sequence = sequence.to(gl.int64)
    of_keys = head.to(gl.int64)
    most = length
    if lengths is not None:
        length = gl.load(lengths + sequence)
    low = gl.to_tensor(0)
    if window is not None:
        low = gl.maximum(length - window, 0)
    start = low // 16 * 16
    share = gl.cdiv(gl.cdiv(length - start, 16), splits) * 16
    first = start + split * share
    end = gl.minimum(first + share, length)
    if PAGE:
        table += of_sequence * table_stride
    k_cache += of_sequence * strides[2][0] + of_keys * strides[2][2]
    v_cache += of_sequence * strides[3][0] + of_keys * strides[3][2]
    buffers = (k_smem, v_smem)
    bounds = (None if window is None else low, end)
    caches = (k_cache, v_cache)
    row_strides = (strides[2][1], strides[2][1] if ALIKE else strides[3][1])
    warp = gl.arange(0, WARPS, gl.SliceLayout(1, of_copies))[:, None]
    place = warp * KEYS + gl.arange(0, KEYS, gl.SliceLayout(0, of_copies))[None, :]
    # Pages are known a step before they are copied, as the table is in memory, too.
    known = ()
    for i in gl.static_range(STAGES - 1):
        known = known + (pages_of(table, first + i * BLOCK, place, most, PAGE),)
    coming = pages_of(table, first + (STAGES - 1) * BLOCK, place, most, PAGE)
    for i in gl.static_range(STAGES - 1):
        fetch(buffers, caches, i, known[i], bounds, row_strides, PAGE)

    q_row = gl.arange(0, M, gl.SliceLayout(0, gl.SliceLayout(2, left)))[None, :][:, :, None]
    q_column = gl.arange(0, D, gl.SliceLayout(0, gl.SliceLayout(1, left)))[None, :][:, None, :]
    of_warp = gl.arange(0, WARPS, gl.SliceLayout(1, gl.SliceLayout(2, left)))[:, None][:, :, None]
    q += of_sequence * strides[0][0] + of_keys * strides[0][1]
    offsets = q_row * strides[0][2] + q_column + 0 * of_warp
    q_tile = gl.load(q + offsets, mask=q_row + 0 * of_warp + 0 * q_column < ROWS, other=0.0)
    largest = gl.full([WARPS, M], -1e30, gl.float32, by_row)
    total = gl.zeros([WARPS, M], gl.float32, by_row)
    acc = gl.zeros([WARPS, M, D], gl.float32, product)
    state = (largest, total, acc)
    steps = gl.cdiv(end - first, BLOCK)
    for step in range(steps - 1):
        async_copy.wait_group(STAGES - 2)
        begin = first + step * BLOCK
        places = coming
        coming = pages_of(table, begin + STAGES * BLOCK, place, most, PAGE)
        state = add_keys(state, q_tile, buffers, step % STAGES, begin, bounds, scale, cap, CAPPED, window is not None)  # fmt: skip
        fetch(buffers, caches, (step + STAGES - 1) % STAGES, places, bounds, row_strides, PAGE)
    async_copy.wait_group(0)
    # A part without keys has a step, too, which adds none of them.
    step = gl.maximum(steps - 1, 0)
    begin = first + step * BLOCK
    state = add_keys(state, q_tile, buffers, step % STAGES, begin, bounds, scale, cap, CAPPED, True)
    largest, total, acc = state

    # A thread has the same numbers of all warps.
    together: gl.constexpr = gl.BlockedLayout(
        [WARPS, 1, 4], [1, 128 // D, D // 4], [1, WARPS, 1], [2, 1, 0]
    )
    of_rows: gl.constexpr = gl.SliceLayout(2, together)
    largest = gl.convert_layout(largest, of_rows)
    total = gl.convert_layout(total, of_rows)
    acc = gl.convert_layout(acc, together)
    top = gl.max(largest, axis=0)
    weight = gl.exp2(largest - top[None, :])
    total = gl.sum(total * weight, axis=0)
    acc = gl.sum(acc * weight[:, :, None], axis=0)
    out_row: gl.constexpr = gl.SliceLayout(1, acc.type.layout)
    score_row = gl.arange(0, M, top.type.layout)
    if sinks is not None:
        sinks += head * (ROWS // TOKENS)
        if MOST == 1:
            sink = gl.load(sinks + score_row // TOKENS, mask=score_row < ROWS, other=0.0)
            top, total, kept = with_sink(sink, top, total)
            acc = acc * gl.convert_layout(kept, out_row)[:, None]
    # A part without keys has the sum 0, whose logarithm weighs nothing.
    out_total = gl.convert_layout(total, out_row)
    acc = acc / gl.where(out_total > 0, out_total, 1.0)[:, None]
    row = gl.arange(0, M, out_row)
    column = gl.arange(0, D, gl.SliceLayout(0, acc.type.layout))
    logsum = top + gl.log2(total)
    rows = (of_sequence, heads, head, of_keys, row, column, score_row)
    buffers = (out, parts, counters, totals, sinks)
    store_results(
        rows, buffers, acc, logsum, split, splits, strides[1], ROWS, TOKENS, D, MOST, JOINED
    )
