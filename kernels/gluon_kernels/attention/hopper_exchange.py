"""A step of the gradients of attention on Hopper: two groups of warps exchange the changes of the scores, and add to sums of queries.

Each group has half of the keys. It multiplies its own changes and weights from registers; through shared memory it sees those of the
other group, a step later, so that one may be ahead: it multiplies them by half of the columns of the keys (or those of half of the
queries by the keys), and TMA adds the product to float32 sums in global memory, which are in the order that registers have them in.
The last changes of a tile of keys are added in the first step of the next tile, for which their keys are kept, or at its end where shared memory has one tile of keys only.

An exchange is the changes of two steps, with a barrier of each that says they are written and one that says they are used; its slots
are those of the ring of queries.
"""

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_init,
    warpgroup_mma_wait,
)
from gluon_kernels.attention.online import accumulators, start_sums, wait_sums
from gluon_kernels.attention.sums import in_order_of_registers

__all__ = [
    "NOWHERE",
    "add_step",
    "add_to_sums",
    "columns_of",
    "columns_of_half",
    "exchange_of",
    "last_product",
    "rows_of_half",
    "slots_of_keys",
    "start_exchange",
]

# A row past those of all sums, where the step before the first one adds: TMA writes nothing there.
NOWHERE = gl.constexpr(1 << 30)


@gluon.constexpr_function
def slots_of_keys(width):
    """Return how many tiles of keys fit the shared memory."""
    return 2 if width == 64 else 1


@gluon.jit
def exchange_of(dtype: gl.constexpr, SIZE: gl.constexpr, STEP: gl.constexpr):
    """Allocate an exchange for SIZE keys and STEP queries, before `gl.warp_specialize`."""
    changed: gl.constexpr = gl.NVMMASharedLayout(128, 16, rank=2)
    changes = gl.allocate_shared_memory(dtype, [2, SIZE, STEP], changed)
    written = mbarrier.allocate_mbarrier(batch=2)
    used = mbarrier.allocate_mbarrier(batch=2)
    for slot in gl.static_range(2):
        mbarrier.init(written.index(slot), 2)
        mbarrier.init(used.index(slot), 2)
    return changes, written, used


@gluon.jit
def columns_of(tile, COLUMNS: gl.constexpr):
    """Return the parts of a tile that heads have."""
    parts = (tile,)
    if len(COLUMNS) == 2:
        parts = (tile.slice(0, COLUMNS[0], dim=1), tile.slice(COLUMNS[0], COLUMNS[1], dim=1))
    return parts


@gluon.jit
def columns_of_half(
    keys, half: gl.constexpr, SIZE: gl.constexpr, D: gl.constexpr, COLUMNS: gl.constexpr
):
    """Return this group's columns of all keys of a tile; heads of two parts leave the second one to the second group."""
    COLUMN: gl.constexpr = half * (D - 64)
    MANY: gl.constexpr = COLUMNS[half] if len(COLUMNS) == 2 else 64
    return keys.reshape([SIZE, D]).slice(COLUMN, MANY, dim=1)


@gluon.jit
def rows_of_half(tile, half: gl.constexpr, SIZE: gl.constexpr, D: gl.constexpr):
    """Return this group's rows of a tile of keys or values."""
    return tile.reshape([SIZE, D]).slice(half * (SIZE // 2), SIZE // 2, dim=0)


@gluon.jit
def start_exchange(exchange, zeros, half: gl.constexpr):
    """Store zeros as this group's changes before the first step: a step adds the changes of the one before."""
    changes, written, _ = exchange
    ROWS: gl.constexpr = zeros.shape[0]
    changes.index(1).slice(half * ROWS, ROWS, dim=0).store(zeros.to(changes.dtype))
    fence_async_shared()
    mbarrier.arrive(written.index(1))


@gluon.jit
def product_of_changes(
    exchange, slot, k_columns, STEP: gl.constexpr, D: gl.constexpr, half: gl.constexpr
):
    """Start to multiply this group's half of all changes of a step, which are 64 x 128 or 128 x 64."""
    ROW: gl.constexpr = half * (STEP - 64)
    COLUMNS: gl.constexpr = k_columns.shape[1]
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, COLUMNS, 16])
    every = exchange[0].index(slot).permute((1, 0)).slice(ROW, 64, dim=0)
    zeros = gl.zeros([64, COLUMNS], gl.float32, layout)
    return warpgroup_mma(every, k_columns, zeros, use_acc=False, is_async=True)


@gluon.jit
def add_to_sums(sums, buffer, product, row):
    """Let TMA add a product to its rows of the sums, 16 of them for 64 columns."""
    tma.store_wait(0)
    buffer.store(in_order_of_registers(product))
    fence_async_shared()
    tma.async_atomic_add(sums, [row, 0], buffer)


@gluon.jit
def add_step(exchange, tiles, gradients, sums, buffer, position, row, half: gl.constexpr):
    """Add the weights and changes of a step to the gradients of keys and values, and the product of the step before to `row` of the sums.

    Args:
        tiles: parts of queries, of gradients of results, and of weights as operands, changes, and this group's columns of keys.
        gradients: of keys and values, by parts.
    """
    changes, written, used = exchange
    q, grad, weights, change, k_columns = tiles
    for_keys, for_values = gradients
    PARTS: gl.constexpr = len(for_keys)
    STEP: gl.constexpr = changes.shape[2]
    D: gl.constexpr = 8192 // STEP
    ROWS: gl.constexpr = change.shape[0]
    before = position.index ^ 1
    # With 128 columns registers are too few for more products at a time.
    if D != 64:
        for_values = start_sums(for_values, weights, grad)
    mbarrier.wait(used.index(position.index), position.phase ^ before)
    changes.index(position.index).slice(half * ROWS, ROWS, dim=0).store(change)
    fence_async_shared()
    mbarrier.arrive(written.index(position.index))
    if D == 64:
        for_values = start_sums(for_values, weights, grad)
    mbarrier.wait(written.index(before), position.phase)
    product = product_of_changes(exchange, before, k_columns, STEP, D, half)
    operand = ()
    for i in gl.static_range(PARTS):
        operand = operand + (gl.convert_layout(change, weights[i].type.layout),)
    for_keys = start_sums(for_keys, operand, q)
    done = warpgroup_mma_wait(PARTS, deps=(product,) + for_values)
    for_values = ()
    for i in gl.static_range(PARTS):
        for_values = for_values + (warpgroup_mma_init(done[1 + i]),)
    mbarrier.arrive(used.index(before))
    add_to_sums(sums, buffer, done[0], row)
    for_keys = accumulators(wait_sums(for_keys))
    return for_keys, for_values


@gluon.jit
def last_product(
    exchange, k_columns, position, STEP: gl.constexpr, D: gl.constexpr, half: gl.constexpr
):
    """Return the product of the last step's changes, which `add_to_sums` adds; `position` is the one behind it. A writer that is closed later waits for the addition."""
    last = position.index ^ 1
    mbarrier.wait(exchange[1].index(last), position.phase)
    product = product_of_changes(exchange, last, k_columns, STEP, D, half)
    return warpgroup_mma_wait(0, deps=[product])
