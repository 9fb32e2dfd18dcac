"""The gradients of varlen attention on Hopper, without atomics: sequences of any lengths, heads that share keys
and values, a window, a soft cap.

The two kernels and their roles are those of `attention_backward_deterministic_hopper.py`: one has a tile of keys and
values and walks over the queries of all heads that share them, the other has a tile of queries and walks
over the keys. Which sequence a program's tile is of it finds in the lists of `attention_varlen_hopper.py`.
Seen from the other side, a window of queries over keys is one of keys over queries: both kernels see it the same way.
"""

import math

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.language.nvidia.hopper import tma_ring, tma_writer
from gluon_core.nvidia.hopper import TensorDescriptor
from gluon_report.example import Example
from tests.kernels.cases.attention_varlen_hopper import arguments as forward_arguments
from tests.kernels.cases.attention_varlen_hopper import by_head
from tests.kernels.cases.varlen import pairs
from tests.kernels.cases.varlen_gradients import (
    key_gradients_of_half,
    query_gradients_of_half,
    walk,
)
from tests.kernels.cases.varlen_statistics import gradients, prepare, rows_of, statistics_of


@gluon.jit
def varlen_key_gradients(
    q_desc, k_desc, v_desc, grad_desc, to_keys, to_values, keys, values, statistics, rows,
    of_queries, of_keys, count, scale, log_scale, cap, SHARED: gl.constexpr, STAGES: gl.constexpr,
    WINDOW: gl.constexpr, CAPPED: gl.constexpr, MOST: gl.constexpr,
):  # fmt: skip
    """Tensors are [tokens, heads, D] and stand as in `attention_varlen`, whose window and scales these are;
    `scale` is that of scores. `statistics` are the result of `prepare`, in a row.
    `to_keys` and `keys` are descriptor and pointer of the same. A grid of tiles and heads of keys."""
    BLOCKS: gl.constexpr = (k_desc.block_type.shape[0], q_desc.block_type.shape[0])
    gl.static_assert(BLOCKS[1] == 64, "statistics come for 64 queries at a time")
    TURNED: gl.constexpr = (WINDOW[1], WINDOW[0])
    SETTINGS: gl.constexpr = (BLOCKS, TURNED, CAPPED, MOST, True, SHARED)
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
    """As above, but for `statistics`, which is a pointer. A grid of tiles and heads of queries."""
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


OUTS = {"keys": ("for_keys", "for_values"), "queries": ("for_queries",)}
NAMES = {"for_queries": "q", "for_keys": "k", "for_values": "v"}


def operands(args, config, size=128, step=64):
    """Return the operands of the gradients of keys if `args` has room for these, else of those of queries."""
    keys = "for_keys" in args
    (tokens, _, depth), cap = args["q"].shape, args["cap"]
    blocks = {name: (step, size)[(name in "kv") == keys] for name in ("q", "k", "v", "grad")}
    descriptors = [by_head(args[name], rows) for name, rows in blocks.items()]
    outs = [args[name] for name in OUTS["keys" if keys else "queries"]]
    statistics, sequences = args["statistics"], args["of_queries"].shape[0] - 1
    if keys:
        flat = gl.NVMMASharedLayout(0, 32, rank=1)
        statistics = TensorDescriptor.from_tensor(statistics, [2 * step], flat)
    lists = (args["of_queries"], args["of_keys"], sequences)
    scale, log2e = 1 / math.sqrt(depth), math.log2(math.e)
    scales = (2 * scale / cap * log2e, cap * log2e) if cap else (scale * log2e, 1.0)
    described = (*descriptors, *(by_head(out, size // 2) for out in outs), *outs)
    return (*described, statistics, rows_of(tokens, sequences), *lists, scale, *scales)


def grid(args, config, size=128):
    """As many tiles as there may be: where sequences begin is known to the kernel alone."""
    own = args["k" if "for_keys" in args else "q"]
    return own.shape[0] // size + args["of_queries"].shape[0] - 1, own.shape[1]


def arguments(depth, window, cap, shared, who):
    def make(new, large, lengths=None, heads=None, keys=None):
        make = forward_arguments(depth, depth, window, cap, shared)
        args = make(new, large, lengths, heads or (None if large else max(shared, 2)), keys)
        args["grad"] = new.random(args.pop("out").shape, "bfloat16")
        args["statistics"] = statistics_of(new, args)
        return {**args, **{out: new.empty(args[NAMES[out]].shape, "bfloat16") for out in OUTS[who]}}

    return make


def configure(window, cap, shared):
    def config(warp_size, stages=2, most=32):
        settings = {"SHARED": shared, "STAGES": stages, "WINDOW": window}
        return {**settings, "CAPPED": cap is not None, "MOST": most, "num_warps": 4}

    return config


def kept(args):
    """The shapes of statistics, float32."""
    rows = rows_of(args["q"].shape[0], args["of_queries"].shape[0] - 1)
    return {"statistics": (2 * args["q"].shape[1] * rows,)}


def launch(args, most=32, **options):
    """Launch all three kernels. `args` has the arguments of `attention_varlen` and its out and logsums; grad; and
    outputs of any content: for_queries, for_keys, for_values and statistics."""
    (tokens, heads, depth), lists = args["q"].shape, args["of_queries"]
    rows = rows_of(tokens, lists.shape[0] - 1)
    wide = gl.BlockedLayout([1, 8], [256 // depth, depth // 8], [4, 1], [1, 0])
    inputs = (args["out"], args["grad"], args["logsums"], args["statistics"], None, lists)
    run = prepare[rows // 64, heads]
    run(*inputs, lists.shape[0] - 1, heads, depth, most, 64, wide, num_warps=4, **options)
    shared = heads // args["k"].shape[1]
    config = configure(args["window"], args["cap"], shared)(32, most=most)
    every = {out for outs in OUTS.values() for out in outs}
    for who, kernel in (("keys", varlen_key_gradients), ("queries", varlen_query_gradients)):
        mine = {name: x for name, x in args.items() if name not in every or name in OUTS[who]}
        kernel[grid(mine, config)](*operands(mine, config), **config, **options)


def example(name, who, depth=128, window=(None, 0), cap=None, shared=4):
    products = {"keys": 4, "queries": 3}[who]
    return Example(
        name=f"varlen attention backward, {who}, {name}",
        kernel=varlen_key_gradients if who == "keys" else varlen_query_gradients,
        arguments=arguments(depth, window, cap, shared, who),
        operands=operands,
        grid=grid,
        config=configure(window, cap, shared),
        reference=lambda args: gradients(args)[OUTS[who][0]],
        output=OUTS[who][0],
        flops=lambda args: 2 * products * args["q"].shape[1] * depth * pairs(args),
        requires=("nvidia.wgmma", "nvidia.tma"),
        tolerance=1e-2,
    )


EXAMPLES = [example("causal, 4 heads share keys", who) for who in OUTS]
# Not in the demo.
MORE = [
    example(name, who, depth, window, cap, shared)
    for who in OUTS
    for name, depth, window, cap, shared in (
        ("window to both sides, capped", 64, (20, 9), 20.0, 1),
        ("window of 40, capped", 128, (39, 0), 20.0, 2),
        ("causal", 64, (None, 0), None, 2),
        ("full", 128, (None, None), None, 1),
    )
]
