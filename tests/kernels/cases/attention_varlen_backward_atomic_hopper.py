"""The gradients of varlen attention on Hopper in one kernel, which adds to those of queries as it goes: sequences
of any lengths, heads that share keys and values, a window, a soft cap.

The roles and their exchange are those of `attention_backward_atomic_hopper.py`; tiles, weights and rows that
end within a tile those of `varlen_gradients.py`. The sums are where the statistics are: each sequence's begin with a
step of their own. In which order programs add is not known, so that equal inputs have nearly equal bits only.
"""

import math

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
from gluon_report.example import Example
from tests.kernels.cases import varlen_statistics as parts
from tests.kernels.cases.attention_sums import in_order_of_registers
from tests.kernels.cases.attention_varlen_backward_deterministic_hopper import configure, grid
from tests.kernels.cases.attention_varlen_hopper import arguments as forward_arguments
from tests.kernels.cases.attention_varlen_hopper import by_head
from tests.kernels.cases.varlen import pairs
from tests.kernels.cases.varlen_gradients import own_tile, put, walk, weights_of
from tests.kernels.cases.varlen_statistics import room, rows_of


@gluon.jit
def gradients_of_half(
    rings, exchange, outs, lists, scales, rows, half: gl.constexpr, SETTINGS: gl.constexpr
):
    own, others = rings
    changes, written, used = exchange
    writer, to_keys, to_values, sums = outs
    dtype: gl.constexpr = own.dtype
    SIZE: gl.constexpr = SETTINGS[0][0]
    ROWS: gl.constexpr = SIZE // 2
    STEP: gl.constexpr = SETTINGS[0][1]
    D: gl.constexpr = own.block_shape[2]
    # This group has half of the sums of queries, which are 64 x 128 or 128 x 64 in each step.
    ROW: gl.constexpr = half * (STEP - 64)
    COLUMN: gl.constexpr = half * (D - 64)
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, STEP, 16])
    out_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, D, 16])
    sum_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 64, 16])
    operand: gl.constexpr = gl.DotOperandLayout(0, out_layout, 2)
    column: gl.constexpr = gl.SliceLayout(0, layout)
    work = own_tile(lists, 4, SETTINGS)
    sequence = work[0][0]
    start, stop = work[3]
    row = work[0][1] + half * ROWS
    low = row + work[2][1] - (work[1][1] - work[1][0])
    # Keys that are not there must not add to gradients of queries; a causal mask hides them.
    there = None
    if SETTINGS[1][0] is None or SETTINGS[1][0] != 0:
        there = work[1][1] - work[1][0] - row
    if sequence < lists[2]:
        nothing = gl.zeros([ROWS, STEP], gl.float32, layout)
        no_sum = gl.zeros([64, 64], gl.float32, sum_layout)
        for_keys = warpgroup_mma_init(gl.zeros([ROWS, D], gl.float32, out_layout))
        for_values = warpgroup_mma_init(gl.zeros([ROWS, D], gl.float32, out_layout))
        buffer = gl.allocate_shared_memory(gl.float32, [16, 256], sums.layout)
        k, v = own.wait(own.consumer())
        k_columns = k.reshape([SIZE, D]).slice(COLUMN, 64, dim=1)
        k = k.reshape([SIZE, D]).slice(half * ROWS, ROWS, dim=0)
        v = v.reshape([SIZE, D]).slice(half * ROWS, ROWS, dim=0)
        at = others.consumer()
        # A step adds the changes of the one before; before the first there are none.
        changes.index(1).slice(half * ROWS, ROWS, dim=0).store(nothing.to(dtype))
        fence_async_shared()
        mbarrier.arrive(written.index(1))
        i = start
        # Where a step's sums lie, 16 rows for half of them.
        to = gl.program_id(1) * SETTINGS[5] * rows + room(work[2][0], sequence, STEP)
        to = to // STEP * 32 + start * 32 + half * 16
        behind = to
        for _ in range(SETTINGS[5] * (stop - start)):
            q, grad, statistics = others.wait(at)
            q, grad = q.reshape([STEP, D]), grad.reshape([STEP, D])
            before = at.index ^ 1
            # With 128 columns registers are too few for both products at a time, and for one in addition
            # to a cap's slope.
            ORDER: gl.constexpr = 2 if SETTINGS[2] else 1 if D == 128 else 0
            grad_turned = grad.permute((1, 0))
            score = warpgroup_mma(k, q.permute((1, 0)), nothing, use_acc=False, is_async=True)
            change = nothing
            if ORDER == 0:
                change = warpgroup_mma(v, grad_turned, nothing, use_acc=False, is_async=True)
            score = warpgroup_mma_wait(1 if ORDER == 0 else 0, deps=[score])
            if ORDER == 1:
                change = warpgroup_mma(v, grad_turned, nothing, use_acc=False, is_async=True)
            logsum = statistics.slice(0, STEP).load(column)[None, :]
            p, slope = weights_of(score, logsum, low, i, there, scales[1], SETTINGS)
            weights = gl.convert_layout(p.to(dtype), operand)
            if ORDER == 2:
                change = warpgroup_mma(v, grad_turned, nothing, use_acc=False, is_async=True)
            change = warpgroup_mma_wait(0, deps=[change])
            delta = statistics.slice(STEP, STEP).load(column)[None, :]
            change = (slope * (change - delta)).to(dtype)
            if D == 128:
                for_values = warpgroup_mma(weights, grad, for_values, is_async=True)
            mbarrier.wait(used.index(at.index), at.phase ^ before)
            changes.index(at.index).slice(half * ROWS, ROWS, dim=0).store(change)
            fence_async_shared()
            mbarrier.arrive(written.index(at.index))
            if D == 64:
                for_values = warpgroup_mma(weights, grad, for_values, is_async=True)
            mbarrier.wait(written.index(before), at.phase)
            every = changes.index(before).permute((1, 0)).slice(ROW, 64, dim=0)
            product = warpgroup_mma(every, k_columns, no_sum, use_acc=False, is_async=True)
            for_keys = warpgroup_mma(gl.convert_layout(change, operand), q, for_keys, is_async=True)
            product, for_values = warpgroup_mma_wait(1, deps=[product, for_values])
            for_values = warpgroup_mma_init(for_values)
            mbarrier.arrive(used.index(before))
            tma.store_wait(0)
            buffer.store(in_order_of_registers(product))
            fence_async_shared()
            tma.async_atomic_add(sums, [behind, 0], buffer)
            for_keys = warpgroup_mma_init(warpgroup_mma_wait(0, deps=[for_keys]))
            others.release(at)
            at = at.next()
            behind = to
            ends = i + 1 == stop  # the next head's
            to += gl.where(ends, rows // STEP - (stop - start) + 1, 1) * 32
            i = gl.where(ends, start, i + 1)
        if start < stop:
            mbarrier.wait(written.index(at.index ^ 1), at.phase)
            every = changes.index(at.index ^ 1).permute((1, 0)).slice(ROW, 64, dim=0)
            product = warpgroup_mma(every, k_columns, no_sum, use_acc=False)
            tma.store_wait(0)
            buffer.store(in_order_of_registers(product))
            fence_async_shared()
            tma.async_atomic_add(sums, [behind, 0], buffer)
            tma.store_wait(0)
        done = warpgroup_mma_wait(0, deps=[for_values, for_keys])
        # Found again: numbers that a loop does not need take registers in it.
        again = own_tile(lists, 4, SETTINGS)
        place = (again[1][0] + again[0][1] + half * ROWS, again[1][1], gl.program_id(1))
        put(writer, to_values, done[0], place, SETTINGS)
        put(writer, to_keys, done[1] * scales[0], place, SETTINGS)
    writer.close()


@gluon.jit
def varlen_gradients_atomic(
    q_desc, k_desc, v_desc, grad_desc, to_keys, to_values, keys, values, statistics, sums, rows,
    of_queries, of_keys, count, scale, log_scale, cap, SHARED: gl.constexpr, STAGES: gl.constexpr,
    WINDOW: gl.constexpr, CAPPED: gl.constexpr, MOST: gl.constexpr,
):  # fmt: skip
    """As `varlen_key_gradients`; `statistics` are of STEP rows at a time, and `sums` [heads, rows, D] by 64 x 64
    elements in order of registers."""
    SIZE: gl.constexpr = k_desc.block_type.shape[0]
    STEP: gl.constexpr = q_desc.block_type.shape[0]
    D: gl.constexpr = k_desc.block_type.shape[2]
    gl.static_assert(STEP * D == 64 * 128, "128 queries of 64 elements in a step, or 64 of 128")
    gl.static_assert(STAGES == 2, "as many slots as there are of changes")
    TURNED: gl.constexpr = (WINDOW[1], WINDOW[0])
    SETTINGS: gl.constexpr = ((SIZE, STEP), TURNED, CAPPED, MOST, True, SHARED)
    rings = (
        tma_ring([k_desc, v_desc], 1, consumers=2),
        tma_ring([q_desc, grad_desc, statistics], STAGES, consumers=2),
    )
    changed: gl.constexpr = gl.NVMMASharedLayout(128, 16, rank=2)
    changes = gl.allocate_shared_memory(q_desc.dtype, [2, SIZE, STEP], changed)
    written = mbarrier.allocate_mbarrier(batch=2)
    used = mbarrier.allocate_mbarrier(batch=2)
    for slot in gl.static_range(2):
        mbarrier.init(written.index(slot), 2)
        mbarrier.init(used.index(slot), 2)
    exchange = (changes, written, used)
    upper = (tma_writer(to_values), (to_keys, keys), (to_values, values), sums)
    lower = (tma_writer(to_values), (to_keys, keys), (to_values, values), sums)
    lists = (of_keys, of_queries, count)
    scales = (scale, (log_scale, cap))
    gl.warp_specialize(
        [
            (gradients_of_half, (rings, exchange, upper, lists, scales, rows, 0, SETTINGS)),
            (gradients_of_half, (rings, exchange, lower, lists, scales, rows, 1, SETTINGS)),
            (walk, (rings, lists, rows, SETTINGS)),
        ],
        [4, 1],
        [240, 24],
    )


def rows_at_once(args):
    return 128 * 64 // args["q"].shape[2]


def kept(args):
    """The shapes of statistics and sums, float32."""
    (tokens, heads, depth), sequences = args["q"].shape, args["of_queries"].shape[0] - 1
    rows = rows_of(tokens, sequences, rows_at_once(args))
    return {"statistics": (2 * heads * rows,), "sums": (heads * rows * depth // 256, 256)}


def operands(args, config):
    (tokens, _, depth), cap, step = args["q"].shape, args["cap"], rows_at_once(args)
    outs = [args[name] for name in ("for_keys", "for_values")]
    blocks = {"q": step, "k": 128, "v": 128, "grad": step}
    descriptors = [by_head(args[name], rows) for name, rows in blocks.items()]
    flat, wide = (gl.NVMMASharedLayout(0, 32, rank=rank) for rank in (1, 2))
    statistics = TensorDescriptor.from_tensor(args["statistics"], [2 * step], flat)
    sums = TensorDescriptor.from_tensor(args["sums"], [16, 256], wide)
    sequences = args["of_queries"].shape[0] - 1
    rows = rows_of(tokens, sequences, step)
    scale, log2e = 1 / math.sqrt(depth), math.log2(math.e)
    scales = (2 * scale / cap * log2e, cap * log2e) if cap else (scale * log2e, 1.0)
    described = (*descriptors, *(by_head(out, 64) for out in outs), *outs, statistics, sums)
    return (*described, rows, args["of_queries"], args["of_keys"], sequences, scale, *scales)


def launch(args, most=32, **options):
    """Launch all three kernels. `args` has the arguments of `attention_varlen` and its out and logsums; grad; and
    outputs of any content: for_queries, for_keys, for_values and those of `kept`."""
    (tokens, heads, depth), lists, step = args["q"].shape, args["of_queries"], rows_at_once(args)
    count, rows = lists.shape[0] - 1, rows_of(tokens, lists.shape[0] - 1, step)
    wide = gl.BlockedLayout([1, 8], [256 // depth, depth // 8], [4, 1], [1, 0])
    inputs = (args[name] for name in ("out", "grad", "logsums", "statistics", "sums"))
    run = parts.prepare[rows // step, heads]
    run(*inputs, lists, count, heads, depth, most, step, wide, num_warps=4, **options)
    shared = heads // args["k"].shape[1]
    config = configure(args["window"], args["cap"], shared)(32, most=most)
    varlen_gradients_atomic[grid(args, config)](*operands(args, config), **config, **options)
    layouts = (
        gl.BlockedLayout([4], [32], [4], [0]),
        gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0]),
    )
    inputs = (
        args["sums"],
        args["for_queries"],
        lists,
        count,
        heads,
        depth**-0.5,
        depth,
        most,
        step,
    )
    parts.finish[rows // 64 * (depth // 64), heads](*inputs, *layouts, num_warps=4, **options)


def arguments(depth, window, cap, shared):
    def make(new, large, lengths=None, heads=None, keys=None):
        make = forward_arguments(depth, depth, window, cap, shared)
        args = make(new, large, lengths, heads or (None if large else max(shared, 2)), keys)
        args["grad"] = new.random(args.pop("out").shape, "bfloat16")
        args["statistics"] = parts.statistics_of(new, args, rows_at_once(args))
        args.update({f"for_{to}": new.empty(args[of].shape, "bfloat16") for to, of in OUTS})
        return {**args, "sums": new.random(kept(args)["sums"])}

    return make


OUTS = (("keys", "k"), ("values", "v"))


def example(name, depth=128, window=(None, 0), cap=None, shared=4):
    return Example(
        name=f"varlen attention backward, atomic, {name}",
        kernel=varlen_gradients_atomic,
        arguments=arguments(depth, window, cap, shared),
        operands=operands,
        grid=grid,
        config=configure(window, cap, shared),
        reference=lambda args: parts.gradients(args, rows_at_once(args))["for_keys"],
        output="for_keys",
        flops=lambda args: 10 * args["q"].shape[1] * depth * pairs(args),
        requires=("nvidia.wgmma", "nvidia.tma"),
        tolerance=1e-2,
        any_order=True,
    )


EXAMPLES = [example("causal, 4 heads share keys")]
# Not in the demo.
MORE = [
    example("window to both sides, capped", 64, (20, 9), 20.0, 1),
    example("window of 40", 128, (39, 0), None, 2),
    example("causal", 64, (None, 0), None, 2),
    example("full", 128, (None, None), None, 1),
    example("causal, capped", 128, (None, 0), 20.0, 1),
]
