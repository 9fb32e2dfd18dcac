"""The tile scheduler by cluster launch control (sm_100): programs take over tiles that others have not begun.

Partition 0 asks, a tile ahead, where the program's own tiles end. The answer comes to a slot with two
barriers: full, which it completes, and empty, at which every partition arrives once it has read.
"""

from __future__ import annotations

from typing import Any, Union

from gluon_core import errors
from gluon_core.layouts import SwizzledSharedLayout
from gluon_core.plugin.ops import builtin, semantic_layer, tl, traced
from gluon_core.plugin.semantic import SemanticLayer
from gluon_core.plugin.typing import Const, Scalar
from gluon_core.portable import requests
from gluon_core.portable.tile_orders import tile_order
from gluon_core.portable.tile_schedulers import tile_scheduler_type
from gluon_core.values import shared_memory_descriptor
from gluon_nvidia.features import CLC
from gluon_nvidia.language import mbarrier
from gluon_nvidia.language.clc import clc_result, load_result, try_cancel
from gluon_nvidia.language.fence import fence_async_shared
from gluon_nvidia.language.mbarrier_counted import arrive

__all__ = ["accepts", "begin", "first", "following", "tile_scheduler"]

_FULL = (
    "Partition 0 asks for programs to take over: one partition, and one only, begins with "
    "scheduler.first(0), and loops to the end."
)
_EMPTY = (
    "Each of the {} partitions of the tile scheduler takes all its tiles, once: scheduler.first(partition), "
    "then scheduler.next(tile) while scheduler.has(tile)."
)
_BYTES = 16


def accepts(request: requests.TileSchedulerRequest) -> Union[bool, str]:
    return _too_wide(request.num_ctas) or True


def _too_wide(num_ctas: int) -> str:
    if num_ctas <= 2:
        return ""
    return f"a barrier for all of a cluster is one of a pair of blocks, not of {num_ctas}"


@builtin(requires=("nvidia.clc",), since=CLC, name="gl.nvidia.blackwell.clc.tile_scheduler")
def tile_scheduler(
    tiles: Union[tile_order, Scalar[int]], partitions: Const[int] = 1, slots: Const[int] = 3
) -> tile_scheduler_type:
    """Schedule tiles by cluster launch control: take over programs that have not begun.
    `gl.portable.tile_scheduler` does so where it can, and says more of it.

    Args:
        tiles: an order of tiles, such as `swizzled_tiles`; or their number, an integer scalar.
        partitions: compile-time integer: how many partitions take tiles, each from `first(partition)` to
            the end.
        slots: compile-time integer: by how many tiles partition 0 may be ahead of the last.

    Returns:
        A `tile_scheduler_type`.

    Raises:
        ArgumentError: an illegal number.
        CapabilityError: not sm_100 or newer, a Triton older than 3.8, or more than two blocks in a cluster.
        DtypeError: `tiles` are neither an order nor a number.

    ISA: PTX 9.7.13.17, clusterlaunchcontrol.try_cancel; 9.7.13.18, query_cancel.
    """
    why = _too_wide(semantic_layer().num_ctas)
    if why:
        raise errors.CapabilityError(
            why, remedy="Use gl.portable.static_tile_scheduler(tiles, partitions)."
        )
    return tile_scheduler_type.make("launch_control", tiles, partitions, slots)


# -- the lowering of gl.portable.tile_scheduler --------------------------------------------------------------


def begin(facts: Any, _semantic: SemanticLayer) -> list[shared_memory_descriptor]:
    """Answers, and the barriers of full and of empty slots."""
    blocks = _semantic.num_ctas
    every = [[0]] * (blocks.bit_length() - 1)  # each block of a cluster has the answer
    plain = SwizzledSharedLayout(1, 1, 1, [0], cga_layout=every)
    answers = _semantic.allocate_shared(tl.int64, [facts.slots, 2], plain)
    full = mbarrier.allocate_mbarrier(batch=facts.slots)
    # The even block of a pair asks for both: it waits for the partitions of both.
    empty = mbarrier.allocate_mbarrier(batch=facts.slots, two_ctas=blocks > 1)
    _semantic.record("call_buffer", full, "the answers", _FULL)
    _semantic.record(
        "call_buffer", empty, "the answers that were read", _EMPTY.format(facts.partitions)
    )
    for slot in range(facts.slots):
        mbarrier.init(_semantic.memdesc_index(full, slot), 1)
        mbarrier.init(_semantic.memdesc_index(empty, slot), facts.partitions)
    return [answers, full, empty]


def first(state: Any, before: Any, facts: Any, count: Any, _semantic: SemanticLayer) -> list[Any]:
    """Return a tile, the slot of the next answer and the parity of its phase."""
    tile, zero = _semantic.program_number(), _semantic.scalar_constant(0, tl.int32)
    _traced(_semantic, _ask_ahead, state, [tile, zero, zero, count], facts)
    return [tile, zero, zero]


def following(
    state: Any, before: Any, facts: Any, count: Any, _semantic: SemanticLayer
) -> list[Any]:
    after = _traced(_semantic, _go_on, state, [*before, count], facts)
    return list(after.values)


def _traced(semantic: SemanticLayer, function: Any, state: Any, values: Any, facts: Any) -> Any:
    known = [tl.constexpr(facts.scheduler.slots), tl.constexpr(facts.partition == 0)]
    return semantic.call(function, *state, *values, *known)


@traced
def _go_on(
    answers: "shared_memory_descriptor",
    full: "shared_memory_descriptor",
    empty: "shared_memory_descriptor",
    tile: "tl.tensor",
    slot: "tl.tensor",
    phase: "tl.tensor",
    count: "tl.tensor",
    SLOTS: "tl.constexpr",
    ASKS: "tl.constexpr",
) -> "Any":
    """Return the next of this program's own tiles; where they end, that of the program in the answer."""
    if tile < count:
        tile += _programs()
        if tile >= count:
            mbarrier.wait(full.index(slot), phase)
            answer = load_result(answers.index(slot))
            tile = count
            if answer.is_canceled():
                tile = _number(answer)
            # The unit may overwrite the answer once it has been read.
            fence_async_shared()
            arrive(empty.index(slot))
            last = slot == SLOTS - 1
            slot = _either(last, 0, slot + 1)
            phase = _either(last, phase ^ 1, phase)
        _ask_ahead(answers, full, empty, tile, slot, phase, count, SLOTS, ASKS)
    return tile, slot, phase


@traced
def _ask_ahead(
    answers: "shared_memory_descriptor",
    full: "shared_memory_descriptor",
    empty: "shared_memory_descriptor",
    tile: "tl.tensor",
    slot: "tl.tensor",
    phase: "tl.tensor",
    count: "tl.tensor",
    SLOTS: "tl.constexpr",
    ASKS: "tl.constexpr",
) -> None:
    """Ask, in partition 0, for another program where this tile is the last of its own."""
    if ASKS:
        if tile < count:
            if tile + _programs() >= count:
                mbarrier.wait(empty.index(slot), phase ^ 1)
                mbarrier.expect(full.index(slot), _EXPECTED)
                try_cancel(answers.index(slot), full.index(slot))


_EXPECTED = tl.constexpr(_BYTES)


@builtin
def _programs() -> tl.tensor:
    return semantic_layer().programs()


@builtin
def _number(answer: clc_result) -> tl.tensor:
    return semantic_layer().program_number([answer.program_id(axis) for axis in range(3)])


@builtin
def _either(condition: tl.tensor, one: Any, other: Any) -> tl.tensor:
    semantic = semantic_layer()
    return semantic.where(condition, semantic.to_tensor(one), semantic.to_tensor(other))
