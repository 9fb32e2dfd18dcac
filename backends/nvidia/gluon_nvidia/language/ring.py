"""Tiles that one partition copies and others use: rings of buffers with their barriers (sm_90).

    tiles = tma_ring([a_desc, b_desc], STAGES, consumers=2)   # before `gl.warp_specialize`
    ...
    position = tiles.producer()                                     # the partition that copies
    for k in range(0, K, BLOCK_K):
        tiles.fetch(position, [[row, k], [k, column]])
        position = position.next()
    ...
    position = tiles.consumer()                                     # each partition that uses them
    for k in range(0, K, BLOCK_K):
        a_tile, b_tile = tiles.wait(position)
        ...
        tiles.release(position)
        position = position.next()

Each slot has a barrier that says it is full, which the copies complete, and one that says it is
empty, at which every consumer arrives. Phases are the positions' business.

Each block of a cluster has its own slots and barriers. With multicast the even block of a pair copies
the shared tiles for both, so it also waits for the other's consumers, at a barrier of the pair. On Triton 3.6 clusters have
up to eight blocks; those that share a tile take turns by slots, and wait for the consumers of each other (`gluon_nvidia.pairs`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Sequence, Union

from gluon_core import errors
from gluon_core.plugin.ops import builtin, semantic_layer, tl, unwrap
from gluon_core.plugin.semantic import SemanticLayer
from gluon_core.plugin.typing import Const, Scalar
from gluon_core.portable.records import Record
from gluon_core.values import shared_memory_descriptor
from gluon_nvidia.features import PAIRS_ARRIVE, PAIRS_WRITTEN
from gluon_nvidia.language import mbarrier, tma
from gluon_nvidia.language.descriptor import tensor_descriptor
from gluon_nvidia.language.mbarrier_counted import arrive
from gluon_nvidia.language.writer import check_descriptor, fitting, listed
from gluon_nvidia.pairs import parts_of

__all__ = [
    "PositionFacts",
    "RingFacts",
    "begin",
    "check_position",
    "ring_position",
    "tile_ring",
    "tma_ring",
]

_REQUIRES = ("nvidia.tma",)
_SPACE = "gl.nvidia.hopper."
# Remedies for a wait that never ends.
_FULL = (
    "Fetch as many slots of the ring as are waited for, each with ring.fetch(position, ...) and then "
    "position = position.next()."
)
_EMPTY = (
    "Wait for each slot of the ring and release it once, ring.release(position) and then position = position.next(), in "
    "each of the partitions that use it; tma_ring(..., consumers={}) counts them."
)


@dataclass(frozen=True)
class PositionFacts:
    """The slots of the ring, and who walks over it: "producer" or "consumer"."""

    stages: int
    role: str


@dataclass(frozen=True)
class TileFacts:
    """The dtype and shape of a tile, and the layout of its buffers."""

    block_type: tl.block_type
    layout: Any


@dataclass(frozen=True)
class RingFacts:
    """The slots of the ring, the partitions that use each, the tile of each tensor, and for each tensor the bits of a block's rank that its tile does
    not depend on: one of the blocks that differ in them copies it for all."""

    stages: int
    consumers: int
    tiles: tuple[TileFacts, ...] = ()
    shared: tuple[int, ...] = ()

    @property
    def peers(self) -> int:
        """Return a mask: bit x says that a block shares a tile with the one whose rank is its own XOR x."""
        return sum(1 << x for x in {x for bits in self.shared for x in parts_of(bits)} if x)


class ring_position(Record):
    """A slot of a ring and the phase of its barriers. Loops carry it."""

    @property
    def index(self) -> tl.tensor:
        """Return the slot, an int32 scalar."""
        result: tl.tensor = self.parts.values[0]
        return result

    @property
    def phase(self) -> tl.tensor:
        """Return the parity that waiting in this slot is for, an int32 scalar."""
        result: tl.tensor = self.parts.values[1]
        return result

    @builtin(name="ring_position.next")
    def next(self, steps: Scalar[int] = 1) -> ring_position:
        """Return the position after this one.

        Args:
            steps: integer scalar, 0 or more: so many positions on, past slots that another partition uses.
        """
        semantic, count = semantic_layer(), unwrap(steps)
        zero, one, last = _numbers(semantic, self.facts.stages)
        if not (isinstance(count, int) and count == 1):
            return self._on(semantic.scalar_int32(steps, "steps"))
        if self.facts.stages == 1:
            return ring_position([self.index, semantic.xor_(self.phase, one)], self.facts)
        ends = semantic.equal(self.index, last)
        index = semantic.where(ends, zero, semantic.add(self.index, one, True))
        phase = semantic.where(ends, semantic.xor_(self.phase, one), self.phase)
        return ring_position([index, phase], self.facts)

    def _on(self, steps: Any) -> ring_position:
        semantic = semantic_layer()
        stages, one = (semantic.scalar_constant(n, tl.int32) for n in (self.facts.stages, 1))
        # The phase flips with each round of the slots; of a single slot, and of an ordered barrier, with each step.
        first = self.index if self.facts.stages > 1 else semantic.scalar_constant(0, tl.int32)
        place = semantic.add(first, steps, True)
        rounds = semantic.floordiv(place, stages)
        phase = semantic.xor_(self.phase, semantic.and_(rounds, one))
        index = semantic.mod(place, stages) if self.facts.stages > 1 else self.index
        return ring_position([index, phase], self.facts)

    @builtin(name="ring_position.before")
    def before(self) -> ring_position:
        """Return the position before this one."""
        semantic = semantic_layer()
        zero, one, last = _numbers(semantic, self.facts.stages)
        begins = semantic.equal(self.index, zero)
        index = semantic.where(begins, last, semantic.sub(self.index, one, True))
        phase = semantic.where(begins, semantic.xor_(self.phase, one), self.phase)
        return ring_position([index, phase], self.facts)


class tile_ring(Record):
    """Slots of shared memory for a tile of each of some tensors, with their barriers."""

    @property
    def dtype(self) -> tl.dtype:
        """dtype of the first tensor's elements."""
        dtype: tl.dtype = self.facts.tiles[0].block_type.element_ty
        return dtype

    @property
    def block_shape(self) -> list[int]:
        """Shape of the first tensor's tiles."""
        return [int(size) for size in _parts(self)[1][0].shape[1:]]

    @builtin(name="tile_ring.part")
    def part(self, number: Const[int], descriptor: tensor_descriptor) -> tile_ring:
        """Return the ring of one tensor's tiles alone, for one of several producers: `tma_ring(..., producers=2)`.

        Args:
            number: compile-time integer: the index of the tensor's descriptor among those of the ring.
            descriptor: the one to copy by, which the partition made, with the same type, block and layout.

        Raises:
            ArgumentError: no such tensor, or a descriptor that does not fit the buffers.
        """
        _, buffers, *barriers = _parts(self)
        index = semantic_layer().compile_time_int(number, "number", 0)
        if index >= len(self.facts.tiles):
            raise errors.ArgumentError(
                "no tensor of the ring",
                argument="number",
                expected=f"less than {len(self.facts.tiles)}",
                got=index,
            )
        desc = fitting(self.facts.tiles[index], _by_tma(unwrap(descriptor)), "ring")
        alone = slice(index, index + 1)
        facts = replace(self.facts, tiles=self.facts.tiles[alone], shared=self.facts.shared[alone])
        return tile_ring([tl.tuple([desc]), tl.tuple([buffers[index]]), *barriers], facts)

    @builtin(name="tile_ring.producer")
    def producer(self) -> ring_position:
        """Return the first position of the partition that copies."""
        return begin(self.facts, "producer")

    @builtin(name="tile_ring.consumer")
    def consumer(self) -> ring_position:
        """Return the first position of a partition that uses the tiles."""
        return begin(self.facts, "consumer")

    @builtin(name="tile_ring.fetch")
    def fetch(
        self,
        position: ring_position,
        coordinates: Sequence[Any],
        pred: Scalar[bool] = True,
    ) -> None:
        """Wait until the slot is empty, then start copying its tiles.

        Args:
            position: a producer's position.
            coordinates: for each tensor, where its tile begins: an integer scalar per dimension.
            pred: int1 scalar; where false, nothing is waited for or copied, and no consumer must
                wait for the slot.

        Raises:
            ArgumentError: no position of a producer on this ring.
            ShapeError: not one for each tensor.
        """
        check_position(self.facts, position, "producer")
        descs, buffers, full, *empties = _parts(self)
        places = listed(coordinates)
        if len(descs) != len(self.facts.tiles):
            raise errors.ArgumentError(
                "each of several producers copies the tiles of its own tensors",
                argument="ring",
                expected="tma_ring(..., producers=1)",
                got="a ring without descriptors",
                remedy="Copy by `ring.part(number, descriptor)`, which has a tensor and its descriptor.",
            )
        if len(places) != len(descs):
            raise errors.ShapeError(
                "needs one for each tensor",
                argument="coordinates",
                expected=len(descs),
                got=len(places),
            )
        semantic = semantic_layer()
        for empty in empties:
            mbarrier.wait(semantic.memdesc_index(empty, position.index), position.phase, pred)
        ready = semantic.memdesc_index(full, position.index)
        views = [semantic.memdesc_index(buffer, position.index) for buffer in buffers]
        mbarrier.expect(ready, sum(view.nbytes_per_cta for view in views), pred)
        for desc, view, place, shared in zip(descs, views, places, self.facts.shared):
            if shared and semantic.has(PAIRS_WRITTEN):
                _mark(f"load {shared}")
                tma.async_load(desc, place, ready, view, pred)
                _mark("end")
            else:
                tma.async_load(desc, place, ready, view, pred, bool(shared))

    @builtin(name="tile_ring.drain")
    def drain(self, position: ring_position) -> None:
        """Wait until all slots are empty, in the partition that copies, when it is done. Without multicast it does nothing.

        A block must not exit while the other one arrives at its barriers.

        Args:
            position: the producer's, behind its last copy.

        Raises:
            ArgumentError: no position of a producer on this ring.
        """
        check_position(self.facts, position, "producer")
        if not any(self.facts.shared):
            return
        semantic = semantic_layer()
        for _ in range(self.facts.stages):
            for empty in _parts(self)[3:]:
                mbarrier.wait(semantic.memdesc_index(empty, position.index), position.phase)
            position = position.next()

    @builtin(name="tile_ring.wait")
    def wait(self, position: ring_position) -> Union[shared_memory_descriptor, tl.tuple]:
        """Wait until the slot's tiles are there.

        Args:
            position: a consumer's position.

        Returns:
            The tile, a shared memory descriptor; for several tensors, a tuple of them.

        Raises:
            ArgumentError: no position of a consumer on this ring.
        """
        check_position(self.facts, position, "consumer")
        full = _parts(self)[2]
        mbarrier.wait(semantic_layer().memdesc_index(full, position.index), position.phase)
        return self._tiles(position)

    @builtin(name="tile_ring.tiles")
    def tiles(self, position: ring_position) -> Union[shared_memory_descriptor, tl.tuple]:
        """Return the slot's tiles, which this partition has waited for and not released yet.

        Args:
            position: a consumer's position.

        Returns:
            As `wait`.

        Raises:
            ArgumentError: no position of a consumer on this ring.
        """
        check_position(self.facts, position, "consumer")
        return self._tiles(position)

    def _tiles(self, position: ring_position) -> Union[shared_memory_descriptor, tl.tuple]:
        semantic, buffers = semantic_layer(), _parts(self)[1]
        views = [semantic.memdesc_index(buffer, position.index) for buffer in buffers]
        return views[0] if len(views) == 1 else tl.tuple(views)

    @builtin(name="tile_ring.release")
    def release(self, position: ring_position, pred: Scalar[bool] = True) -> None:
        """Release the slot; wait for asynchronous readers of its tiles before, and use what you loaded from it or put a fence between the proxies.

        Args:
            position: a consumer's position.
            pred: int1 scalar; where false, keep it.

        Raises:
            ArgumentError: no position of a consumer on this ring.
        """
        check_position(self.facts, position, "consumer")
        written = any(self.facts.shared) and semantic_layer().has(PAIRS_WRITTEN)
        if written:
            _mark(f"release {self.facts.peers}")
        count = 1 + self.facts.peers.bit_count() if written else 1
        for empty in _parts(self)[3:]:
            arrive(semantic_layer().memdesc_index(empty, position.index), count=count, pred=pred)

    @builtin(name="tile_ring.close")
    def close(self) -> None:
        """Wait for the other block; call it behind `gl.warp_specialize`. Without multicast, or with Triton 3.6, it does nothing."""
        if any(self.facts.shared) and not semantic_layer().has(PAIRS_WRITTEN):
            semantic_layer().barrier(True)

    @builtin(name="tile_ring.empty")
    def empty(self, position: ring_position) -> shared_memory_descriptor:
        """Return the barrier of the empty slot, in place of `release` where a unit has read the tiles
        when it is done: `tcgen05_commit(ring.empty(position))`.

        Args:
            position: a consumer's position.

        Raises:
            ArgumentError: no position of a consumer on this ring; a ring by multicast, whose slots have two.
        """
        check_position(self.facts, position, "consumer")
        if any(self.facts.shared):
            raise errors.ArgumentError(
                "a slot that comes by multicast has two barriers",
                argument="ring",
                expected="one without multicast=True",
                got=self.facts,
                remedy="Give it back with ring.release(position) once its tiles have been read.",
            )
        barrier: shared_memory_descriptor = semantic_layer().memdesc_index(
            _parts(self)[3], position.index
        )
        return barrier


@builtin(requires=_REQUIRES, name=_SPACE + "tma_ring")
def tma_ring(
    descriptors: Union[tensor_descriptor, Sequence[tensor_descriptor], Sequence[Any]],
    stages: Const[int],
    consumers: Const[int] = 1,
    two_ctas: Const[bool] = False,
    multicast: Const[bool] = False,
    producers: Const[int] = 1,
    late: Const[bool] = False,
) -> tile_ring:
    """Allocate a ring of `stages` slots for a tile of each of `descriptors`, which one partition fills by
    TMA and `consumers` partitions use. Make it before `gl.warp_specialize`, and hand it to the partitions.

    Args:
        descriptors: one or several, those of `gl.portable.descriptor` included where it takes TMA; each
            copy is of a descriptor's whole block.
        stages: compile-time integer.
        consumers: compile-time integer; each of so many partitions releases every slot.
        two_ctas: the blocks of a pair multiply together: the even one waits until a slot of both is full.
        multicast: of tensors whose `cga_layout` repeats the block in several blocks of a cluster, one
            copies for all of these, and their slots go around together. Clusters of two with Triton 3.6, and 3.8 on, of four and eight
            with 3.6; end with `ring.drain(position)` and `ring.close()`.
        producers: compile-time integer; a slot is full when each of so many partitions has copied the tile of
            its tensor, by `ring.part(number, descriptor)`. Such a ring keeps no descriptors but their blocks, so that
            each partition can make its own while the others make theirs.
        late: the one producer makes its descriptor itself, too, for `ring.part(0, descriptor)`.

    Returns:
        A `tile_ring`.

    Raises:
        ArgumentError: no descriptors, or an illegal number; `multicast` without such a cluster, of tensors
            that its blocks do not share, or together with `two_ctas`.
        CapabilityError: `multicast` with another Triton.

    ISA: PTX 9.7.9.27.1, cp.async.bulk.tensor; 9.7.13.15, mbarrier.
    """
    semantic = semantic_layer()
    count = semantic.compile_time_int(stages, "stages", 1)
    users = semantic.compile_time_int(consumers, "consumers", 1)
    makers = semantic.compile_time_int(producers, "producers", 1)
    sequence = unwrap(descriptors)
    single = not isinstance(sequence, (list, tuple, tl.tuple))
    described = [sequence] if single else listed(sequence)
    descs = [_by_tma(one) for one in described]
    for desc in descs:
        check_descriptor(desc, "descriptors")
    if not descs:
        raise errors.ArgumentError("none", argument="descriptors", expected="at least one")
    shared = _shared(semantic, descs, multicast, two_ctas)
    tiles_of = [
        one if getattr(one, "native", None) else desc for one, desc in zip(described, descs)
    ]
    buffers = [
        semantic.allocate_shared(desc.dtype, [count, *map(int, tile.block_shape)], tile.layout)
        for desc, tile in zip(descs, tiles_of)
    ]
    full = mbarrier.allocate_mbarrier(batch=count, two_ctas=two_ctas)
    empties = [mbarrier.allocate_mbarrier(batch=count)]
    tiles = tuple(TileFacts(desc.type.block_type, desc.layout) for desc in descs)
    facts = RingFacts(count, users, tiles, shared)
    written = any(shared) and semantic.has(PAIRS_WRITTEN)
    arrivals = users * (1 + facts.peers.bit_count() if written else 1)
    if any(shared) and not written:
        empties.append(mbarrier.allocate_mbarrier(batch=count, two_ctas=True))
    semantic.record("call_buffer", full, "the full slots", _FULL)
    for empty in empties:
        semantic.record("call_buffer", empty, "the empty slots", _EMPTY.format(users))
    for slot in range(count):
        mbarrier.init(semantic.memdesc_index(full, slot), makers)
        for empty in empties:
            mbarrier.init(semantic.memdesc_index(empty, slot), arrivals)
    if written:
        _mark("begin")
    # Where blocks use each other's barriers, compilers that have PAIRS_ARRIVE let them wait after this.
    kept = descs if makers == 1 and not semantic.compile_time_bool(late, "late") else []
    return tile_ring([tl.tuple(kept), tl.tuple(buffers), full, *empties], facts)


# -- shared --------------------------------------------------------------------------------------


def begin(facts: RingFacts, role: str) -> ring_position:
    """Return a producer may pass the barriers of slots that nobody has used yet."""
    semantic = semantic_layer()
    first = semantic.scalar_constant(0, tl.int32)
    phase = semantic.scalar_constant(int(role == "producer"), tl.int32)
    return ring_position([first, phase], PositionFacts(facts.stages, role))


def _mark(word: str) -> None:
    """Leave a mark where machine code is written; simulators run the ring as it is."""
    builder = semantic_layer().builder
    if hasattr(type(builder), "mark_pair"):
        builder.mark_pair(word)


def _by_tma(desc: Any) -> Any:
    """Return TMA's descriptor of a portable one; others as they are."""
    native = getattr(desc, "native", None)
    return native[0] if native else desc


def _numbers(semantic: SemanticLayer, stages: int) -> tuple[Any, Any, Any]:
    """0, 1 and the last slot."""
    zero, one, last = (semantic.scalar_constant(n, tl.int32) for n in (0, 1, stages - 1))
    return zero, one, last


def _parts(ring: tile_ring) -> tuple[Any, ...]:
    """Descriptors, buffers, the barriers of full slots, and those of empty ones: the block's, and the pair's."""
    descs, buffers, *barriers = ring.parts.values
    return descs.values, buffers.values, *barriers


def _shared(
    semantic: SemanticLayer, descs: Sequence[Any], multicast: Const[bool], two_ctas: Const[bool]
) -> tuple[int, ...]:
    """Return for each tensor the bits of a block's rank that its tile does not depend on; 0 for those that each block copies itself."""
    if not semantic.compile_time_bool(multicast, "multicast"):
        return (0,) * len(descs)
    if not semantic.has(PAIRS_WRITTEN):
        semantic.require(PAIRS_ARRIVE, "tma_ring(multicast=True)")
    if semantic.num_ctas not in (2, 4, 8):
        raise errors.ArgumentError(
            "needs a cluster of blocks",
            argument="multicast",
            expected="num_ctas=2, 4 or 8",
            got=semantic.num_ctas,
        )
    if semantic.num_ctas > 2:
        semantic.require(
            PAIRS_WRITTEN, "tma_ring(multicast=True) in clusters of four and eight blocks"
        )
    if semantic.compile_time_bool(two_ctas, "two_ctas"):
        raise errors.ArgumentError(
            "blocks that multiply together hold different parts",
            argument="multicast",
            expected="multicast or two_ctas",
            got="both",
        )
    splits = [desc.layout.cga_layout for desc in descs]
    shared = tuple(sum(1 << bit for bit, base in enumerate(split) if not any(base)) for split in splits)  # fmt: skip
    if not any(shared):
        raise errors.ArgumentError(
            "the blocks do not share a tile",
            argument="multicast",
            expected="a descriptor whose layout has a base of zeros in its cga_layout, such as [[0, 0]]",
            got=splits,
        )
    return shared


def check_position(facts: RingFacts, position: Any, role: str) -> None:
    wanted = PositionFacts(facts.stages, role)
    if not isinstance(position, ring_position) or position.facts != wanted:
        shown = (
            position.facts
            if isinstance(position, ring_position)
            else semantic_layer().describe(position)
        )
        raise errors.ArgumentError(
            "this needs another source position",
            argument="position",
            expected=f"one of a {role}, in {wanted.stages} slots",
            got=shown,
            remedy=f"Begin with ring.{role}() and go on with next().",
        )
