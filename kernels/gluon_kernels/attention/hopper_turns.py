"""Tiles that the programs of a launch take in turn: a program that is done with one takes the next that no other has.

The warp that copies counts in global memory, and passes what describes each tile to the groups of warps that compute. It is a tile ahead of them, so that
the next operands are on their way while a tile's results are stored. The first tiles are those of the programs' own numbers.
"""

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.language.nvidia.hopper import mbarrier

__all__ = ["claim_turn", "end_turn", "next_turn", "pass_turn", "take_turn", "turns_of"]


@gluon.jit
def turns_of(consumers: gl.constexpr, FIELDS: gl.constexpr = 1):
    """Allocate slots for FIELDS numbers of two tiles, which one warp passes to `consumers` groups of warps, before `gl.warp_specialize`."""
    layout: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    fields = gl.allocate_shared_memory(gl.int32, [2 * FIELDS, 1], layout)
    written = mbarrier.allocate_mbarrier(batch=2)
    used = mbarrier.allocate_mbarrier(batch=2)
    for slot in gl.static_range(2):
        mbarrier.init(written.index(slot), 1)
        mbarrier.init(used.index(slot), consumers)
    return fields, written, used


@gluon.jit
def next_turn(counter):
    """Return the number of the program's next tile, from `counter`, which was 0 when the launch began."""
    return gl.num_programs(0) + gl.atomic_add(counter, 1, sem="relaxed", scope="gpu")


@gluon.jit
def claim_turn(counter, count):
    """Return the number of the program's next tile as `next_turn` does; the last of `count` claims, one behind each tile, leaves a zero in `counter` again."""
    claimed = gl.atomic_add(counter, 1, sem="relaxed", scope="gpu")
    if claimed == count - 1:
        gl.atomic_add(counter, -count, sem="relaxed", scope="gpu")
    return gl.num_programs(0) + claimed


@gluon.jit
def pass_turn(turns, nth, numbers):
    """Store the numbers of the program's n-th tile, once those of two tiles before are not needed any more."""
    fields, written, used = turns
    slot = nth % 2
    one: gl.constexpr = gl.BlockedLayout([1], [32], [1], [0])
    mbarrier.wait(used.index(slot), nth // 2 % 2 ^ 1)
    for i in gl.static_range(len(numbers)):
        place = fields.index(slot * len(numbers) + i)
        place.store(gl.full([1], numbers[i], gl.int32, one))
    mbarrier.arrive(written.index(slot))


@gluon.jit
def take_turn(turns, nth, warps: gl.constexpr = 4):
    """Wait for the numbers of the program's n-th tile; so many `warps` take them."""
    fields, written, _ = turns
    FIELDS: gl.constexpr = fields.shape[0] // 2
    slot = nth % 2
    one: gl.constexpr = gl.BlockedLayout([1], [32], [warps], [0])
    mbarrier.wait(written.index(slot), nth // 2 % 2)
    numbers = ()
    for i in gl.static_range(FIELDS):
        numbers = numbers + (gl.sum(fields.index(slot * FIELDS + i).load(one), 0),)
    return numbers


@gluon.jit
def end_turn(turns, nth):
    """Say that this group does not need the numbers of the n-th tile any more."""
    mbarrier.arrive(turns[2].index(nth % 2))
