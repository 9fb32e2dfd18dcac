"""The gradients of attention over packed sequences on Hopper, with equal bits each time.

One kernel has a tile of keys and values and walks over the queries of all heads that share them, the other has a tile of
queries and walks over the keys. Seen from the keys, a window of queries over keys is one of keys over queries.
"""

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.language.nvidia.hopper import tma_ring, tma_writer
from gluon_kernels.attention.hopper_varlen_gradients import (
    key_gradients_of_half,
    query_gradients_of_half,
    walk,
)


@gluon.jit
def varlen_key_gradients(
    q_desc, k_desc, v_desc, grad_desc, to_keys, to_values, keys, values, statistics, rows,
    of_queries, of_keys, count, scale, log_scale, cap, SHARED: gl.constexpr, STAGES: gl.constexpr,
    WINDOW: gl.constexpr, CAPPED: gl.constexpr, MOST: gl.constexpr,
):  # fmt: skip
    """Store the gradients of keys and values; the grid has tiles and heads of keys.

    Tensors are [tokens, heads, D] as of `attention_varlen`, whose window, cap and `log_scale` these are; `scale` is that of scores.
    `statistics` are the result of `prepare`. `to_keys` and `keys` are descriptor and pointer of one tensor.
    """
    BLOCKS: gl.constexpr = (k_desc.block_type.shape[0], q_desc.block_type.shape[0])
    gl.static_assert(BLOCKS[1] == 64, "statistics come for 64 queries at a time")
    REVERSED: gl.constexpr = (WINDOW[1], WINDOW[0])
    SETTINGS: gl.constexpr = (BLOCKS, REVERSED, CAPPED, MOST, True, SHARED)
    rings = (
        tma_ring([k_desc, v_desc], 1, consumers=2),
        tma_ring([q_desc, grad_desc, statistics], STAGES, consumers=2),
    )
    upper = tma_writer(to_values)
    lower = tma_writer(to_values)
    outputs = ((to_keys, keys), (to_values, values))
    lists = (of_keys, of_queries, count)
    scales = (scale, (log_scale, cap))
    gl.warp_specialize(
        [
            (key_gradients_of_half, (rings, upper, outputs, lists, scales, 0, SETTINGS)),
            (key_gradients_of_half, (rings, lower, outputs, lists, scales, 1, SETTINGS)),
            (walk, (rings, lists, rows, SETTINGS)),
        ],
        [4, 1],
        [240, 24],
    )


@gluon.jit
def varlen_query_gradients(
    q_desc, k_desc, v_desc, grad_desc, to_queries, queries, statistics, rows,
    of_queries, of_keys, count, scale, log_scale, cap, SHARED: gl.constexpr, STAGES: gl.constexpr,
    WINDOW: gl.constexpr, CAPPED: gl.constexpr, MOST: gl.constexpr,
):  # fmt: skip
    """Store the gradients of queries; the grid has tiles and heads of queries. `statistics` is a pointer."""
    BLOCKS: gl.constexpr = (q_desc.block_type.shape[0], k_desc.block_type.shape[0])
    SETTINGS: gl.constexpr = (BLOCKS, WINDOW, CAPPED, MOST, False, SHARED)
    rings = (
        tma_ring([q_desc, grad_desc], 1, consumers=2),
        tma_ring([k_desc, v_desc], STAGES, consumers=2),
    )
    upper = tma_writer(to_queries)
    lower = tma_writer(to_queries)
    output = (to_queries, queries)
    lists = (of_queries, of_keys, count)
    rows_known = (statistics, rows)
    scales = (scale, (log_scale, cap))
    gl.warp_specialize(
        [
            (
                query_gradients_of_half,
                (rings, upper, output, lists, rows_known, scales, 0, SETTINGS),
            ),
            (
                query_gradients_of_half,
                (rings, lower, output, lists, rows_known, scales, 1, SETTINGS),
            ),
            (walk, (rings, lists, rows, SETTINGS)),
        ],
        [4, 1],
        [240, 24],
    )
