"""The walk back over chunks of linear attention on Hopper: TMA, `wgmma` and warp specialization.

It computes `portable_backward.recur_back`, with the roles of `hopper.py`.
"""

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.language.nvidia.hopper import (
    tma_ring,
    warpgroup_mma,
    warpgroup_mma_init,
    warpgroup_mma_wait,
)
from gluon_kernels.dependent import end_behind_predecessor
from gluon_kernels.linear_attention.hopper import first_state, place_of, share_columns
from gluon_kernels.linear_attention.portable import decay_size

__all__ = ["recur_back"]


@gluon.jit
def copy_chunks_back(ring, sizes, SHARED: gl.constexpr, SETTINGS: gl.constexpr):
    """Copy the tiles of each chunk, the last one first."""
    C: gl.constexpr = SETTINGS[0]
    batch, head, first_column, first, last, _ = place_of(sizes, SETTINGS[2])
    position = ring.producer()
    place = (batch * sizes[0] + head) * sizes[1]
    of_keys = head // SHARED
    for step in range(last - first):
        chunk = last - 1 - step
        row = chunk * C
        matrix = [(place + chunk) * C, 0]
        key = [batch, row, of_keys, 0]
        grad = [batch, row, head, first_column]
        decay = [(place + chunk) * (4 * C)]
        if SETTINGS[3]:
            decay = [(place + chunk) * decay_size(ring.block_shape[3], C)]
            ring.fetch(position, [key, key, grad, decay, matrix, matrix, key])
        else:
            ring.fetch(position, [key, key, grad, decay, matrix, matrix])
        position = position.next()


@gluon.jit
def walk_back(ring, writers, states, sizes, scale, group: gl.constexpr, SETTINGS: gl.constexpr):
    """Compute 64 columns of each chunk."""
    C: gl.constexpr = SETTINGS[0]
    SAVE: gl.constexpr = SETTINGS[1]
    GROUPS: gl.constexpr = SETTINGS[2]
    CHANNELS: gl.constexpr = SETTINGS[3]
    dtype: gl.constexpr = ring.dtype
    K: gl.constexpr = ring.block_shape[3]
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, C, 16])
    state_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, K, 16])
    operand: gl.constexpr = gl.DotOperandLayout(0, layout, 2)
    state_operand: gl.constexpr = gl.DotOperandLayout(0, state_layout, 2)
    column: gl.constexpr = gl.SliceLayout(0, layout)
    initial, final = states
    heads, chunks, _, _, width = sizes
    batch, head, first_column, first, last, segment = place_of(sizes, GROUPS)
    first_column += group * 64
    state, of_head, of_segment, offsets = first_state(initial, sizes, group, K, GROUPS)
    zeros = gl.zeros([64, C], gl.float32, layout)
    near = gl.arange(0, C, column)
    left = gl.convert_layout(state.to(dtype), operand)
    done = zeros.to(dtype)  # what the chunk before left to be stored
    position = ring.consumer()
    for step in range(last - first):
        chunk = last - 1 - step
        tiles = ring.wait(position)
        k = tiles[0].reshape([C, K])
        q = tiles[1].reshape([C, K])
        change = warpgroup_mma(left, k.permute((1, 0)), zeros, use_acc=False, is_async=True)
        if SAVE:
            # In this order a writer is behind the other one's last turn, in the first chunks, too.
            if step > 0:
                before = [batch, (chunk + 1) * C, head, first_column]
                writers[0].store(before, done.permute((1, 0)), turns=writers)
            place = [(of_head * chunks + chunk) * width + first_column, 0]
            writers[1].store(place, state, turns=writers)
        grad = tiles[2].reshape([C, 64 * GROUPS]).slice(group * 64, 64, dim=1).permute((1, 0))
        out = grad.load(state_operand)
        if CHANNELS:
            whole = tiles[3].slice(0, K).load(gl.SliceLayout(0, state_layout))[None, :]
        else:
            from_first = tiles[3].slice(C, C).load(column)
            to_last = tiles[3].slice(2 * C, C).load(column)[None, :]
            whole = gl.sum(gl.where(near == C - 1, from_first, 0.0), 0)
            scaled: gl.constexpr = gl.SliceLayout(0, state_operand)
            factor = gl.convert_layout(from_first * scale, scaled)[None, :]
            out = (out.to(gl.float32) * factor).to(dtype)
        state = state * whole
        change = warpgroup_mma_wait(0, deps=[change])
        if not CHANNELS:
            change = change * to_last
        change = warpgroup_mma(grad, tiles[4], warpgroup_mma_init(change), is_async=True)
        sums = warpgroup_mma(out, q, warpgroup_mma_init(state), is_async=True)
        change = warpgroup_mma_wait(1, deps=[change])
        change = gl.convert_layout(change.to(dtype), operand)
        change = warpgroup_mma(change, tiles[5], zeros, use_acc=False, is_async=True)
        change, sums = warpgroup_mma_wait(0, deps=[change, sums])
        if CHANNELS:
            rate = tiles[3].slice(K, C).load(column)
            seen = tiles[6].reshape([C, K])
        else:
            rate = from_first * tiles[3].slice(3 * C, C).load(column)
            seen = k
        taken = gl.convert_layout((change * -rate[None, :]).to(dtype), state_operand)
        sums = warpgroup_mma(taken, seen, warpgroup_mma_init(sums), is_async=True)
        done = change.to(dtype)
        state = warpgroup_mma_wait(0, deps=[sums])
        ring.release(position)
        left = gl.convert_layout(state.to(dtype), operand)
        position = position.next()
    if SAVE:
        done = done.permute((1, 0))
        writers[0].store([batch, first * C, head, first_column], done, turns=writers)
    if final is not None:
        gl.store(final + of_segment * (K * width) + offsets, state)
    if SAVE:
        writers[0].close()
    end_behind_predecessor()


@gluon.jit
def recur_back(
    q_desc, k_desc, grad_desc, decays, weights, unscaled, seen_desc, changes_desc, states_desc, initial, final, heads, chunks,
    per_segment, width, scale, SHARED: gl.constexpr, STAGES: gl.constexpr, GROUPS: gl.constexpr,
):  # fmt: skip
    """Walk over the chunks of a segment, last one first; the grid has tiles of columns, heads x segments, and batches.

    Descriptors are of blocks [1, C, 1, K] of keys and queries, [1, C, 1, 64 GROUPS] of dO, [4 C] of decays, [C, C] of P and R, and, if
    not None, [1, C, 1, 64] of dY and [64, K] of G. If `seen_desc` is not None, operands are
    the results of `prepare_channels`, whose decays have blocks of `decay_size`. Nothing is read that the kernel in front stores.
    """
    C: gl.constexpr = k_desc.block_type.shape[1]
    SAVE: gl.constexpr = states_desc is not None
    CHANNELS: gl.constexpr = seen_desc is not None
    SETTINGS: gl.constexpr = (C, SAVE, GROUPS, CHANNELS)
    if CHANNELS:
        ring = tma_ring(
            [k_desc, q_desc, grad_desc, decays, weights, unscaled, seen_desc],
            STAGES,
            consumers=GROUPS,
        )
    else:
        ring = tma_ring(
            [k_desc, q_desc, grad_desc, decays, weights, unscaled], STAGES, consumers=GROUPS
        )
    sizes = (heads, chunks, per_segment, width, width)
    states = (initial, final)
    descriptors = (changes_desc, states_desc) if SAVE else ()
    share_columns(
        walk_back, copy_chunks_back, ring, descriptors, states, sizes, scale, SHARED, GROUPS, SETTINGS
    )  # fmt: skip
