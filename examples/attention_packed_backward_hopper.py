"""The gradients of packed attention on Hopper, without atomics: sequences of any lengths, heads that share keys
and values, a window, a soft cap.

The two kernels and their roles are those of `attention_backward_hopper.py`: one has a tile of keys and
values and walks over the queries of all heads that share them, the other has a tile of queries and walks
over the keys. Which sequence a program's tile is of it finds in the lists of `attention_packed_hopper.py`.
Turned around, a window of queries over keys is one of keys over queries: both kernels see it the same way.
"""

import math

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.cli.example import Example, main
from gluon_core.language.nvidia.hopper import (
    tma_ring,
    tma_writer,
    warpgroup_mma,
    warpgroup_mma_init,
    warpgroup_mma_wait,
)
from gluon_core.nvidia.hopper import TensorDescriptor

try:
    from .attention_packed_hopper import arguments as forward_arguments
    from .attention_packed_hopper import by_head
    from .packed import pairs
    from .packed_gradients import (
        gradients,
        own_tile,
        put,
        room,
        rows_of,
        statistics_of,
        walk,
        weights_of,
    )
except ImportError:  # run as a program
    from attention_packed_hopper import arguments as forward_arguments
    from attention_packed_hopper import by_head
    from packed import pairs
    from packed_gradients import (
        gradients,
        own_tile,
        put,
        room,
        rows_of,
        statistics_of,
        walk,
        weights_of,
    )


@gluon.jit
def key_gradients_of_half(
    rings, writer, outputs, lists, scales, half: gl.constexpr, SETTINGS: gl.constexpr
):
    own, others = rings
    to_keys, to_values = outputs
    scale, log_scale = scales
    dtype: gl.constexpr = own.dtype
    SIZE: gl.constexpr = SETTINGS[0][0]
    ROWS: gl.constexpr = SIZE // 2
    STEP: gl.constexpr = SETTINGS[0][1]
    D: gl.constexpr = own.block_shape[2]
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, STEP, 16])
    out_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, D, 16])
    operand: gl.constexpr = gl.DotOperandLayout(0, out_layout, 2)
    column: gl.constexpr = gl.SliceLayout(0, layout)
    (sequence, row), (first, end), (_, length), (start, stop) = own_tile(lists, 4, SETTINGS)
    row += half * ROWS
    low = row + length - (end - first)
    # With 128 columns registers are too few for a cap's slope beside two products.
    LATE: gl.constexpr = SETTINGS[2] and D == 128
    if sequence < lists[2]:
        nothing = gl.zeros([ROWS, STEP], gl.float32, layout)
        for_keys = warpgroup_mma_init(gl.zeros([ROWS, D], gl.float32, out_layout))
        for_values = warpgroup_mma_init(gl.zeros([ROWS, D], gl.float32, out_layout))
        k, v = own.wait(own.consumer())
        k = k.reshape([SIZE, D]).slice(half * ROWS, ROWS, dim=0)
        v = v.reshape([SIZE, D]).slice(half * ROWS, ROWS, dim=0)
        at = others.consumer()
        for _ in range(SETTINGS[5]):
            for i in range(start, stop):
                q, grad, found = others.wait(at)
                q, grad = q.reshape([STEP, D]), grad.reshape([STEP, D])
                grad_turned = grad.permute((1, 0))
                score = warpgroup_mma(k, q.permute((1, 0)), nothing, use_acc=False, is_async=True)
                if not LATE:
                    change = warpgroup_mma(v, grad_turned, nothing, use_acc=False, is_async=True)
                score = warpgroup_mma_wait(0 if LATE else 1, deps=[score])
                logsum = found.slice(0, STEP).load(column)[None, :]
                p, slope = weights_of(score, logsum, low, i, None, log_scale, SETTINGS)
                weights = gl.convert_layout(p.to(dtype), operand)
                if LATE:
                    change = warpgroup_mma(v, grad_turned, nothing, use_acc=False, is_async=True)
                change = warpgroup_mma_wait(0, deps=[change])
                for_values = warpgroup_mma(weights, grad, for_values, is_async=True)
                change = slope * (change - found.slice(STEP, STEP).load(column)[None, :])
                change = gl.convert_layout(change.to(dtype), operand)
                for_keys = warpgroup_mma(change, q, for_keys, is_async=True)
                for_values, for_keys = warpgroup_mma_wait(0, deps=[for_values, for_keys])
                for_values = warpgroup_mma_init(for_values)
                for_keys = warpgroup_mma_init(for_keys)
                others.release(at)
                at = at.next()
        done = warpgroup_mma_wait(0, deps=[for_values, for_keys])
        # Found again: numbers that a loop does not need take registers in it.
        again = own_tile(lists, 4, SETTINGS)
        line = again[1][0] + again[0][1] + half * ROWS
        place = (line, again[1][1], gl.program_id(1))
        put(writer, to_values, done[0], place, SETTINGS)
        put(writer, to_keys, done[1] * scale, place, SETTINGS)
    writer.close()


@gluon.jit
def packed_key_gradients(
    q_desc, k_desc, v_desc, grad_desc, to_keys, to_values, keys, values, statistics, rows,
    of_queries, of_keys, count, scale, log_scale, cap, SHARED: gl.constexpr, STAGES: gl.constexpr,
    WINDOW: gl.constexpr, CAPPED: gl.constexpr, MOST: gl.constexpr,
):  # fmt: skip
    """Tensors are [tokens, heads, D] and stand as in `attention_packed`, whose window and scales these are;
    `scale` is that of scores. `statistics` are what `prepare` makes, in a row.
    `to_keys` and `keys` are descriptor and pointer of the same. A grid of tiles and heads of keys."""
    BLOCKS: gl.constexpr = (k_desc.block_type.shape[0], q_desc.block_type.shape[0])
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
def query_gradients_of_half(
    rings, writer, output, lists, found, scales, half: gl.constexpr, SETTINGS: gl.constexpr
):
    own, others = rings
    statistics, rows = found
    scale, log_scale = scales
    dtype: gl.constexpr = own.dtype
    SIZE: gl.constexpr = SETTINGS[0][0]
    ROWS: gl.constexpr = SIZE // 2
    STEP: gl.constexpr = SETTINGS[0][1]
    D: gl.constexpr = own.block_shape[2]
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, STEP, 16])
    out_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, D, 16])
    operand: gl.constexpr = gl.DotOperandLayout(0, out_layout, 2)
    (sequence, row), (first, end), (_, length), (start, stop) = own_tile(lists, 4, SETTINGS)
    row += half * ROWS
    low = row + length - (end - first)
    head = gl.program_id(1)
    if sequence < lists[2]:
        near = row + gl.arange(0, ROWS, gl.SliceLayout(1, layout))
        at_row = statistics + 2 * (head * rows + room(first, sequence) + row) + near - row
        there = near < end - first
        logsum = gl.load(at_row, mask=there, other=float("inf"))
        delta = gl.load(at_row + 64, mask=there, other=0.0)[:, None]
        nothing = gl.zeros([ROWS, STEP], gl.float32, layout)
        acc = warpgroup_mma_init(gl.zeros([ROWS, D], gl.float32, out_layout))
        q, grad = own.wait(own.consumer())
        q = q.reshape([SIZE, D]).slice(half * ROWS, ROWS, dim=0)
        grad = grad.reshape([SIZE, D]).slice(half * ROWS, ROWS, dim=0)
        at = others.consumer()
        for i in range(start, stop):
            k, v = others.wait(at)
            k = k.reshape([STEP, D])
            v = v.reshape([STEP, D]).permute((1, 0))
            score = warpgroup_mma(q, k.permute((1, 0)), nothing, use_acc=False, is_async=True)
            change = warpgroup_mma(grad, v, nothing, use_acc=False, is_async=True)
            score = warpgroup_mma_wait(1, deps=[score])
            p, slope = weights_of(score, logsum[:, None], low, i, length, log_scale, SETTINGS)
            change = warpgroup_mma_wait(0, deps=[change])
            change = gl.convert_layout((slope * (change - delta)).to(dtype), operand)
            acc = warpgroup_mma(change, k, acc, is_async=True)
            acc = warpgroup_mma_init(warpgroup_mma_wait(0, deps=[acc]))
            others.release(at)
            at = at.next()
        done = warpgroup_mma_wait(0, deps=[acc])
        put(writer, output, done * scale, (first + row, end, head), SETTINGS)
    writer.close()


@gluon.jit
def packed_query_gradients(
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
    found = (statistics, rows)
    scales = (scale, (log_scale, cap))
    gl.warp_specialize(
        [
            (
                query_gradients_of_half,
                (rings, upper, output, lists, found, scales, 0, SETTINGS),
            ),
            (
                query_gradients_of_half,
                (rings, lower, output, lists, found, scales, 1, SETTINGS),
            ),
            (walk, (rings, lists, rows, SETTINGS)),
        ],
        [4, 1],
        [240, 24],
    )


OUTS = {"keys": ("for_keys", "for_values"), "queries": ("for_queries",)}
NAMES = {"for_queries": "q", "for_keys": "k", "for_values": "v"}


def operands(args, config, size=128, step=64):
    """Of the gradients of keys where there is room for them, else of those of queries."""
    keys = "for_keys" in args
    (tokens, _, depth), cap = args["q"].shape, args["cap"]
    blocks = {name: (step, size)[(name in "kv") == keys] for name in ("q", "k", "v", "grad")}
    found = [by_head(args[name], rows) for name, rows in blocks.items()]
    outs = [args[name] for name in OUTS["keys" if keys else "queries"]]
    statistics, sequences = args["statistics"], args["of_queries"].shape[0] - 1
    if keys:
        flat = gl.NVMMASharedLayout(0, 32, rank=1)
        statistics = TensorDescriptor.from_tensor(statistics, [2 * step], flat)
    lists = (args["of_queries"], args["of_keys"], sequences)
    scale, log2e = 1 / math.sqrt(depth), math.log2(math.e)
    scales = (2 * scale / cap * log2e, cap * log2e) if cap else (scale * log2e, 1.0)
    described = (*found, *(by_head(out, size // 2) for out in outs), *outs)
    return (*described, statistics, rows_of(tokens, sequences), *lists, scale, *scales)


def grid(args, config, size=128):
    """As many tiles as there may be: where sequences begin is known to the kernel alone."""
    own = args["k" if "for_keys" in args else "q"]
    return own.shape[0] // size + args["of_queries"].shape[0] - 1, own.shape[1]


def arguments(depth, window, cap, shared, who):
    def make(new, large, lengths=None, heads=None, keys=None):
        make = forward_arguments(depth, depth, window, cap, shared)
        args = make(new, large, lengths, heads, keys)
        args["grad"] = new.random(args.pop("out").shape, "bfloat16")
        args["statistics"] = statistics_of(new, args)
        return {**args, **{out: new.empty(args[NAMES[out]].shape, "bfloat16") for out in OUTS[who]}}

    return make


def configure(window, cap, shared):
    def config(warp_size, stages=2, most=32):
        settings = {"SHARED": shared, "STAGES": stages, "WINDOW": window}
        return {**settings, "CAPPED": cap is not None, "MOST": most, "num_warps": 4}

    return config


def example(name, who, depth=128, window=(None, 0), cap=None, shared=4):
    products = {"keys": 4, "queries": 3}[who]
    return Example(
        name=f"packed attention backward, {who}, {name}",
        kernel=packed_key_gradients if who == "keys" else packed_query_gradients,
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
    example(name, who, *rest)
    for who in OUTS
    for name, *rest in (
        ("window to both sides, capped", 64, (20, 9), 20.0, 1),
        ("window of 40, capped", 128, (39, 0), 20.0, 2),
        ("causal", 64, (None, 0), None, 2),
        ("full", 128, (None, None), None, 1),
    )
]

if __name__ == "__main__":
    raise SystemExit(main(EXAMPLES))
