"""Walks over tiles by cluster launch control (sm_100): programs do what others have not begun.

Role 0 asks, a tile ahead, where the program's own tiles end. The answer comes to a slot with two
barriers: full, which it completes, and empty, at which every role arrives once it has read.
"""

from __future__ import annotations

from typing import Any, Union

from gluon_core.errors import CapabilityError
from gluon_core.layouts import SwizzledSharedLayout
from gluon_core.plugin.ops import builtin, code_generator, semantic_layer, tl, traced
from gluon_core.plugin.semantic import SemanticLayer
from gluon_core.plugin.typing import Const, Scalar
from gluon_core.portable import WalkRequest
from gluon_core.portable.schedule import tile_schedule
from gluon_core.portable.walks import make_walk, tile_walk
from gluon_core.values import shared_memory_descriptor
from gluon_nvidia.features import CLC
from gluon_nvidia.language import mbarrier
from gluon_nvidia.language.clc import clc_result, load_result, try_cancel
from gluon_nvidia.language.fence import fence_async_shared
from gluon_nvidia.language.mbarrier_counted import arrive

__all__ = ["accepts", "begin", "first", "following", "walk"]

_FULL = "Role 0 asks for programs to take over: one role, and one only, walks with walk.first(0), to the end."
_EMPTY = (
    "Each of the {} roles of the walk goes through all its turns, once: walk.first(role), then "
    "walk.next(turn) while walk.has(turn)."
)
_BYTES = 16


def accepts(request: WalkRequest) -> Union[bool, str]:
    return _too_wide(request.num_ctas) or True


def _too_wide(num_ctas: int) -> str:
    if num_ctas <= 2:
        return ""
    return f"a barrier for all of a cluster is one of a pair of blocks, not of {num_ctas}"


@builtin(requires=("nvidia.clc",), since=CLC, name="gl.nvidia.blackwell.clc.walk")
def walk(
    tiles: Union[tile_schedule, Scalar[int]], roles: Const[int] = 1, slots: Const[int] = 3
) -> tile_walk:
    """Walk over tiles, taking over programs that have not begun. `gl.portable.walk` does so where it
    can, and says more of it.

    Args:
        tiles: an order of tiles, such as `grouped_tiles`; or their number, an integer scalar.
        roles: compile-time integer: how many roles walk, each from `first(role)` to the end.
        slots: compile-time integer: by how many tiles role 0 may be ahead of the last.

    Returns:
        A `tile_walk`.

    Raises:
        ArgumentError: an illegal number.
        CapabilityError: not sm_100 or newer, a Triton older than 3.8, or more than two blocks in a cluster.
        DtypeError: `tiles` are neither an order nor a number.

    ISA: PTX 9.7.13.17, clusterlaunchcontrol.try_cancel; 9.7.13.18, query_cancel.
    """
    why = _too_wide(semantic_layer().num_ctas)
    if why:
        raise CapabilityError(why, remedy="Use gl.portable.static_walk(tiles, roles).")
    return make_walk("launch_control", tiles, roles, slots)


# -- the lowering of gl.portable.walk --------------------------------------------------------------


def begin(facts: Any, _semantic: SemanticLayer) -> list[shared_memory_descriptor]:
    """Answers, and the barriers of full and of empty slots."""
    blocks = _semantic.num_ctas
    every = [[0]] * (blocks.bit_length() - 1)  # each block of a cluster has the answer
    plain = SwizzledSharedLayout(1, 1, 1, [0], cga_layout=every)
    answers = _semantic.allocate_shared(tl.int64, [facts.slots, 2], plain)
    full = mbarrier.allocate_mbarrier(batch=facts.slots)
    # The even block of a pair asks for both: it waits for the roles of both.
    empty = mbarrier.allocate_mbarrier(batch=facts.slots, two_ctas=blocks > 1)
    _semantic.call_buffer(full, "the answers", _FULL)
    _semantic.call_buffer(empty, "the answers that were read", _EMPTY.format(facts.roles))
    for slot in range(facts.slots):
        mbarrier.init(_semantic.memdesc_index(full, slot), 1)
        mbarrier.init(_semantic.memdesc_index(empty, slot), facts.roles)
    return [answers, full, empty]


def first(state: Any, before: Any, facts: Any, count: Any, _semantic: SemanticLayer) -> list[Any]:
    """A turn is a tile, the slot of the next answer and the parity of its phase."""
    tile, zero = _semantic.program_number(), _semantic.scalar_constant(0, tl.int32)
    _traced(_ask_ahead, state, [tile, zero, zero, count], facts)
    return [tile, zero, zero]


def following(
    state: Any, before: Any, facts: Any, count: Any, _semantic: SemanticLayer
) -> list[Any]:
    found = _traced(_go_on, state, [*before, count], facts)
    return list(found.values)


def _traced(function: Any, state: Any, values: Any, facts: Any) -> Any:
    known = [tl.constexpr(facts.walk.slots), tl.constexpr(facts.role == 0)]
    return code_generator().call_JitFunction(function, [*state, *values, *known], {})


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
    """The next of this program's own tiles; where they end, that of the program in the answer."""
    if tile < count:
        tile += _programs()
        if tile >= count:
            mbarrier.wait(full.index(slot), phase)
            answer = load_result(answers.index(slot))
            tile = count
            if answer.is_canceled():
                tile = _number(answer)
            # What was read may be written over by the unit that answers.
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
    """Role 0 asks for another program where this tile is the last of its own."""
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
