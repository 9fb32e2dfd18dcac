"""The gradients of attention on Hopper in one kernel, which adds to those of queries as it goes.

A program has a tile of keys and values and walks over the queries. Changes of the scores, which `attention_backward_deterministic_hopper.py`
computes twice, are computed once here: two groups of four warps compute the changes of the scores, each
for half of the keys, and multiply them from registers. Through shared memory each group sees those of
the other, a step later, so that one may be ahead: it multiplies them by half of the columns of the keys
(or those of half of the queries by the keys), and TMA adds the product to float32 sums in global memory,
which are in the order that registers have them in. In which order programs add is not known, so that
equal inputs have nearly equal bits only.

The kernels before and after are in `attention_sums.py`.
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
from tests.kernels.cases.attention_backward_deterministic_hopper import gradients
from tests.kernels.cases.attention_sums import (
    finish,
    in_order_of_registers,
    kept,
    padded,
    prepare,
    wrapped,
)


@gluon.jit
def walk(rings, place, CAUSAL: gl.constexpr):
    """Copy the program's keys and values, then the queries that it walks over."""
    own, others = rings
    first, last, steps, length, padded = place
    tile = gl.program_id(0)
    head = gl.program_id(1)
    SIZE: gl.constexpr = own.block_shape[1]
    STEP: gl.constexpr = others.block_shape[1]
    own.fetch(own.producer(), [[head, tile * SIZE, 0], [head, tile * SIZE, 0]])
    at = others.producer()
    for i in range(first, last):
        row = wrapped(i, steps, CAUSAL) * STEP
        statistic = 2 * head * padded + row
        others.fetch(at, [[head, row, 0], [head, row, 0], [statistic], [statistic + padded]])
        at = at.next()


@gluon.jit
def gradients_of_half(rings, exchange, outs, place, half: gl.constexpr, SETTINGS: gl.constexpr):
    own, others = rings
    changes, written, used = exchange
    writer, to_keys, sums = outs
    first, last, steps, length, padded = place
    SCALE: gl.constexpr = SETTINGS[0]
    CAUSAL: gl.constexpr = SETTINGS[1]
    WHOLE: gl.constexpr = SETTINGS[2]
    dtype: gl.constexpr = own.dtype
    SIZE: gl.constexpr = own.block_shape[1]
    ROWS: gl.constexpr = SIZE // 2
    STEP: gl.constexpr = others.block_shape[1]
    D: gl.constexpr = own.block_shape[2]
    # This group has half of the sums of queries, which are 64 x 128 or 128 x 64 in each step.
    ROW: gl.constexpr = half * (STEP - 64)
    COLUMN: gl.constexpr = half * (D - 64)
    LOG_SCALE: gl.constexpr = SCALE * 1.4426950408889634
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, STEP, 16])
    out_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, D, 16])
    sum_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 64, 16])
    operand: gl.constexpr = gl.DotOperandLayout(0, out_layout, 2)
    column: gl.constexpr = gl.SliceLayout(0, layout)
    head = gl.program_id(1)
    start = gl.program_id(0) * SIZE + half * ROWS
    key = start + gl.arange(0, ROWS, gl.SliceLayout(1, layout))
    nothing = gl.zeros([ROWS, STEP], gl.float32, layout)
    no_sum = gl.zeros([64, 64], gl.float32, sum_layout)
    for_keys = warpgroup_mma_init(gl.zeros([ROWS, D], gl.float32, out_layout))
    for_values = warpgroup_mma_init(gl.zeros([ROWS, D], gl.float32, out_layout))
    buffer = gl.allocate_shared_memory(gl.float32, [16, 256], sums.layout)
    tile = head * (padded * D // 4096) + half  # of the sums; a step has two

    k, v = own.wait(own.consumer())
    k_columns = k.reshape([SIZE, D]).slice(COLUMN, 64, dim=1)
    k = k.reshape([SIZE, D]).slice(half * ROWS, ROWS, dim=0)
    v = v.reshape([SIZE, D]).slice(half * ROWS, ROWS, dim=0)
    at = others.consumer()
    # A step adds the changes of the one before; before the first there are none.
    changes.index(1).slice(half * ROWS, ROWS, dim=0).store(nothing.to(dtype))
    fence_async_shared()
    mbarrier.arrive(written.index(1))
    # The mask takes registers: in heads of 64, where its loop is one step, the others have a loop without.
    LOOPS: gl.constexpr = 2 if CAUSAL and D == 64 else 1
    middle = gl.minimum(first + SIZE // STEP, last) if LOOPS == 2 else last
    for loop in gl.static_range(LOOPS):
        begin, end = (first, middle) if loop == 0 else (middle, last)
        for i in range(begin, end):
            q, grad, logsums, deltas = others.wait(at)
            q = q.reshape([STEP, D])
            grad = grad.reshape([STEP, D])
            before = at.index ^ 1
            # With 128 columns registers are too few for both products at a time.
            if D == 64:
                score = warpgroup_mma(k, q.permute((1, 0)), nothing, use_acc=False, is_async=True)
                change = warpgroup_mma(
                    v, grad.permute((1, 0)), nothing, use_acc=False, is_async=True
                )
                score = warpgroup_mma_wait(1, deps=[score])
                p = gl.exp2(score * LOG_SCALE + logsums.load(column)[None, :])
            else:
                score = warpgroup_mma(k, q.permute((1, 0)), nothing, use_acc=False)
                score = score * LOG_SCALE + logsums.load(column)[None, :]
                change = warpgroup_mma(
                    v, grad.permute((1, 0)), nothing, use_acc=False, is_async=True
                )
                p = gl.exp2(score)
            if CAUSAL and loop == 0:
                if i * STEP < start + ROWS:
                    query = i * STEP + gl.arange(0, STEP, column)
                    p = gl.where(query[None, :] >= key[:, None], p, 0.0)
            elif not WHOLE:
                p = gl.where((key < length)[:, None], p, 0.0)  # else perhaps infinite
            weights = gl.convert_layout(p.to(dtype), operand)
            change = warpgroup_mma_wait(0, deps=[change])
            change = (p * (change + deltas.load(column)[None, :])).to(dtype)
            if D != 64:
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
            step = wrapped(gl.maximum(i - 1, first), steps, CAUSAL)
            tma.async_atomic_add(sums, [(tile + 2 * step) * 16, 0], buffer)
            for_keys = warpgroup_mma_init(warpgroup_mma_wait(0, deps=[for_keys]))
            others.release(at)
            at = at.next()
    mbarrier.wait(written.index(at.index ^ 1), at.phase)
    every = changes.index(at.index ^ 1).permute((1, 0)).slice(ROW, 64, dim=0)
    product = warpgroup_mma(every, k_columns, no_sum, use_acc=False)
    tma.store_wait(0)
    buffer.store(in_order_of_registers(product))
    fence_async_shared()
    step = wrapped(last - 1, steps, CAUSAL)
    tma.async_atomic_add(sums, [(tile + 2 * step) * 16, 0], buffer)
    tma.store_wait(0)
    done = warpgroup_mma_wait(0, deps=[for_values, for_keys])
    writer.store([head, start, 0], done[0])
    writer.store([head, start, 0], done[1] * SCALE, to_keys)
    writer.close()


@gluon.jit
def gradients_atomic(
    q_desc, k_desc, v_desc, grad_desc, statistics, to_keys, to_values, sums, length, padded,
    SCALE: gl.constexpr, CAUSAL: gl.constexpr, WHOLE: gl.constexpr,
):  # fmt: skip
    """Tensors are [heads, length, D], `statistics` the result of `prepare`, in a row. `SCALE` is that of
    the scores; `WHOLE` says that the last tile of keys is full."""
    SIZE: gl.constexpr = k_desc.block_type.shape[1]
    STEP: gl.constexpr = q_desc.block_type.shape[1]
    D: gl.constexpr = k_desc.block_type.shape[2]
    gl.static_assert(STEP * D == 64 * 128, "128 queries of 64 elements in a step, or 64 of 128")
    rings = (
        tma_ring([k_desc, v_desc], 1, consumers=2),
        tma_ring([q_desc, grad_desc, statistics, statistics], 2, consumers=2),
    )
    # As many slots as the ring has, so that they share positions.
    changed: gl.constexpr = gl.NVMMASharedLayout(128, 16, rank=2)
    changes = gl.allocate_shared_memory(q_desc.dtype, [2, SIZE, STEP], changed)
    written = mbarrier.allocate_mbarrier(batch=2)
    used = mbarrier.allocate_mbarrier(batch=2)
    for slot in gl.static_range(2):
        mbarrier.init(written.index(slot), 2)
        mbarrier.init(used.index(slot), 2)
    exchange = (changes, written, used)
    upper = (tma_writer(to_values), to_keys, sums)
    lower = (tma_writer(to_values), to_keys, sums)
    steps = gl.cdiv(length, STEP)
    first = gl.program_id(0) * SIZE // STEP
    place = (first, steps if CAUSAL else first + steps, steps, length, padded)
    SETTINGS: gl.constexpr = (SCALE, CAUSAL, WHOLE)
    gl.warp_specialize(
        [
            (gradients_of_half, (rings, exchange, upper, place, 0, SETTINGS)),
            (gradients_of_half, (rings, exchange, lower, place, 1, SETTINGS)),
            (walk, (rings, place, CAUSAL)),
        ],
        [4, 1],
        [240, 24],
    )


def describe(array, dtype, *block):
    layout = gl.NVMMASharedLayout(0, 32, rank=len(block))
    if dtype == gl.bfloat16:
        layout = gl.NVMMASharedLayout.get_default_for(block, dtype)
    return TensorDescriptor.from_tensor(array, list(block), layout)


def operands(args, config):
    heads, length, depth = args["q"].shape
    step = 128 * 64 // depth
    blocks = {"q": step, "k": 128, "v": 128, "grad": step, "for_keys": 64, "for_values": 64}
    descriptors = {
        name: describe(args[name], gl.bfloat16, 1, n, depth) for name, n in blocks.items()
    }
    descriptors["statistics"] = describe(args["statistics"], gl.float32, step)
    descriptors["sums"] = describe(args["sums"], gl.float32, 16, 256)
    names = ("q", "k", "v", "grad", "statistics", "for_keys", "for_values", "sums")
    return (*(descriptors[name] for name in names), length, padded(length))


def grid(args, config):
    return gluon.cdiv(args["q"].shape[1], 128), args["q"].shape[0]


def configure(causal, shape):
    whole = shape[1] % 128 == 0
    return {"SCALE": shape[2] ** -0.5, "CAUSAL": causal, "WHOLE": whole, "num_warps": 4}


def launch(args, causal, **options):
    """Launch all three kernels. `args` has q, k, v, grad, the forward pass's out and logsums,
    and outputs of any content: for_queries, for_keys, for_values and those of `kept`."""
    heads, length, depth = args["q"].shape
    wide = gl.BlockedLayout([1, 8], [256 // depth, depth // 8], [4, 1], [1, 0])
    inputs = (args[name] for name in ("out", "grad", "logsums", "statistics", "sums"))
    rows = padded(length)
    prepare[rows // 64, heads](*inputs, length, rows, depth, wide, num_warps=4, **options)
    config = configure(causal, args["q"].shape)
    gradients_atomic[grid(args, config)](*operands(args, config), **config, **options)
    layouts = (
        gl.BlockedLayout([4], [32], [4], [0]),
        gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0]),
    )
    inputs = (args["sums"], args["for_queries"], length, rows, config["SCALE"], depth, *layouts)
    finish[rows // 64 * (depth // 64), heads](*inputs, num_warps=4, **options)


def arguments(depth):
    def make(new, large, shape=None):
        shape = shape or ((128, 8192, depth) if large else (2, 200, depth))
        tensors = {name: new.random(shape, "bfloat16") for name in ("q", "k", "v", "grad")}
        tensors["statistics"] = new.random(kept(shape)["statistics"])
        tensors.update({name: new.empty(shape, "bfloat16") for name in ("for_keys", "for_values")})
        return {**tensors, "sums": new.random(kept(shape)["sums"])}

    return make


def exact(args, causal):
    """The gradients that `statistics` give, in float64."""
    heads, length, _ = args["q"].shape
    rows = -args["statistics"].reshape(heads, 2, -1)[:, :, :length]
    return gradients({**args, "logsums": rows[:, 0], "deltas": rows[:, 1]}, causal)


MORE = [
    Example(
        name=f"attention backward, atomic, {'causal' if causal else 'full'}, head {depth}",
        kernel=gradients_atomic,
        arguments=arguments(depth),
        operands=operands,
        grid=grid,
        config=lambda warp_size, of=(causal, (2, 200, depth)): configure(*of),
        large_config=lambda warp_size, of=(causal, (128, 8192, depth)): configure(*of),
        reference=lambda args, causal=causal: exact(args, causal)[1],
        output="for_keys",
        flops=lambda args, half=causal: (
            10 * math.prod(args["q"].shape) * args["q"].shape[1] // (1 + half)
        ),
        requires=("nvidia.wgmma", "nvidia.tma"),
        tolerance=1e-2,
        any_order=True,
    )
    for causal in (False, True)
    for depth in (64, 128)
]
EXAMPLES = MORE[1:3]
