"""The plans of linear attention: chunks, segments and prepared launches for each key."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Callable, NamedTuple, Optional, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from gluon_core.errors import ShapeError
from gluon_kernels.attention.launches import descriptor_of
from gluon_kernels.linear_attention import channels as by_channel
from gluon_kernels.linear_attention import portable
from gluon_kernels.linear_attention.combine import combine
from gluon_kernels.linear_attention.cost import Walks, least_time
from gluon_kernels.plans import Launch, allocator, current_target, multiprocessors, registers

__all__ = [
    "CHUNK",
    "RESERVED",
    "TILE",
    "Kept",
    "Prepared",
    "Sizes",
    "Workspace",
    "combine_launch",
    "flagged_groups",
    "forward_plan",
    "on_hopper",
    "operands_of",
    "padded_state",
    "power",
    "prepare_launch",
    "stages_of",
    "strides_of",
    "walk_launch",
]

Plan = Callable[..., Any]
CHUNK = 64
LEAST_CHUNKS = 4  # of a segment
TILE = 64  # columns of values of a group of warps
MOST_STAGES = 4  # of walks on Hopper
RESERVED = 1024  # bytes of shared memory for barriers and sums
CHANNELS = 128  # of a chunk's gates at a time
GENTLE_REGISTERS = 80  # so that three programs share a processor
RESIDENT = 4  # programs of `portable.prepare` that share a processor
AMPLE = (
    160 << 10
)  # bytes of shared memory of a processor that keeps all operands of a chunk with gates of channels


def power(size: int) -> int:
    """Return the power of two that covers a width."""
    return max(16, 1 << (size - 1).bit_length())


def on_hopper(width: int) -> bool:
    """Return True if the kernels for Hopper take keys of this width, on the target of launches."""
    target = current_target()
    return bool(target.has("nvidia.wgmma") and target.has("nvidia.tma") and width <= 128)


def _by_processors(v: Tensor, chunks: int) -> int:
    """Return the number of segments that processors can walk at a time; each is walked twice, so that fewer than four gain nothing."""
    segments = multiprocessors(v) // (v.shape[0] * v.shape[2] * -(-v.shape[3] // (2 * TILE)))
    if segments < 4:
        return 1
    segments = -(-chunks // max(-(-chunks // segments), LEAST_CHUNKS))
    return segments if segments >= 4 else 1


@dataclass(frozen=True)
class Sizes:
    """The sizes of a call, those of padded heads, and the segments that a sequence is cut into.

    Args:
        width, columns: of keys and of values, padded where TMA and `wgmma` read them.
        segments: parts of a sequence that are walked at a time; each has `per_segment` chunks but the last.
        channels: each channel of the keys has its own decays.
        hopper: the kernels for Hopper walk.
        groups: of warps that share the tiles of a program.
    """

    batch: int
    length: int
    heads: int
    shared: int
    width: int
    columns: int
    chunks: int
    segments: int
    per_segment: int
    delta: bool
    channels: bool
    hopper: bool
    groups: int

    @classmethod
    def of(cls, k: Tensor, v: Tensor, g: Tensor, delta: bool, waves: int = 1) -> Sizes:
        batch, length, heads, columns = v.shape
        width = k.shape[3]
        hopper = on_hopper(width)
        if hopper:
            width = 64 if width <= 64 else 128
            columns = -(-columns // TILE) * TILE
        chunks = -(-length // CHUNK)
        segments, groups = _by_processors(v, chunks), 1
        if hopper:
            heads_of_all, channels = batch * heads, g.ndim == 4
            processors = multiprocessors(v)
            shared = heads // k.shape[2]
            walks = Walks(
                heads_of_all, chunks, width, columns, delta, channels, processors, shared, waves
            )
            segments, groups = least_time(walks)
        per_segment = -(-chunks // segments)
        segments = -(-chunks // max(per_segment, 1))
        return cls(
            batch, length, heads, heads // k.shape[2], width, columns, chunks, segments, per_segment, delta, g.ndim == 4,
            hopper, groups,
        )  # fmt: skip

    @property
    def walked(self) -> int:
        """Return how many heads share the keys that are walked; with decays of channels each has its own."""
        return 1 if self.channels else self.shared

    @property
    def decays(self) -> int:
        """Return how many float32 a chunk has for its decays."""
        if self.channels:
            return int(portable.decay_size(power(self.width), CHUNK))
        return 4 * CHUNK

    @property
    def mapped(self) -> int:
        """Return the rows of the final state of a segment, those of its map included."""
        return self.columns + (self.width if self.delta else 0)

    def readable(self, x: Tensor, width: int) -> Tensor:
        """Return heads of this width, which TMA copies where the kernels for Hopper do."""
        more = width - x.shape[3]
        if more:
            return F.pad(x, (0, more))
        if x.stride(3) != 1:
            return x.contiguous()
        if self.hopper:
            steps = all(s * x.element_size() % 16 == 0 and s > 0 for s in x.stride()[:3])
            if not steps or x.data_ptr() % 16:
                return x.clone(memory_format=torch.contiguous_format)
        return x


def strides_of(x: Tensor) -> tuple[int, int, int]:
    """Return the strides of batches, rows and heads."""
    return x.stride(0), x.stride(1), x.stride(2)


class Prepared(NamedTuple):
    """The operands of a walk over chunks: those of the call, and the results of `prepare` or `prepare_channels`.

    Args:
        q, weights: None where no results are computed.
        seen: the keys by which values are seen, None where they are `k`.
        flags: of chunks, 1 where gates of channels are not gentle; None where gentle ones have no kernels of their own.
    """

    q: Optional[Tensor]
    k: Tensor
    decays: Tensor
    weights: Optional[Tensor]
    inverses: Optional[Tensor]
    unscaled: Optional[Tensor]
    seen: Optional[Tensor]
    flags: Optional[Tensor] = None

    def for_states(self) -> Prepared:
        """Return the operands without those of results."""
        return self._replace(q=None, weights=None)


def prepare_launch(
    sizes: Sizes, q: Tensor, k: Tensor, g: Tensor, beta: Optional[Tensor], scale: float,
    new: Workspace, gradients: bool,
) -> tuple[Prepared, Callable[..., Prepared]]:  # fmt: skip
    """Return results by which launches are planned, and `prepare(q, k, g, beta)`; `gradients` need T without rates, too."""
    gentle = sizes.channels and has_gentle_kernels(sizes, k)

    def results(q: Tensor, k: Tensor) -> Prepared:
        weights, inverses = new.square(), new.square() if sizes.delta else None
        unscaled = new.square() if sizes.delta and gradients else None
        if sizes.channels:
            q, k, seen = new.keys(), new.keys(), new.keys()
            flags = new.flags() if gentle else None
            return Prepared(q, k, new.decays(), weights, inverses, unscaled, seen, flags)
        return Prepared(q, k, new.decays(), weights, inverses, unscaled, None)

    width = k.shape[3]
    first = results(q, k)
    squares = (first.decays, first.weights, first.inverses, first.unscaled)
    strides = (strides_of(q), strides_of(k))
    grid = (sizes.chunks, sizes.heads, sizes.batch)
    launch: Plan
    if sizes.channels:
        launch = _channels_launch(sizes, q, k, g, beta, first, scale)
    else:
        tensors = (q, k, g, beta, *squares)
        launch = Launch(
            portable.prepare,
            grid,
            (*tensors, strides, sizes.length, sizes.heads, scale, power(width), CHUNK, sizes.shared, width),
            tensors,
            num_warps=4,
            )  # fmt: skip

    def run(q: Tensor, k: Tensor, g: Tensor, beta: Optional[Tensor]) -> Prepared:
        done = results(q, k)
        own = (done.q, done.k, done.seen) if sizes.channels else ()
        flags = () if done.flags is None else (done.flags,)
        launch(q, k, g, beta, *own, done.decays, done.weights, done.inverses, done.unscaled, *flags)
        return done

    return first, run


def has_gentle_kernels(sizes: Sizes, k: Tensor) -> bool:
    """Return True if chunks with gentle gates of channels have kernels of their own."""
    return sizes.hopper and k.shape[3] == sizes.width and k.dtype == torch.bfloat16


def flagged_groups(sizes: Sizes, k: Tensor) -> tuple[int, int]:
    """Return how many chunks there are, and how many of them a program of those with flags looks at."""
    total = sizes.batch * sizes.heads * sizes.chunks
    return total, min(32, power(-(-total // (2 * multiprocessors(k)))))


def _channels_launch(
    sizes: Sizes, q: Tensor, k: Tensor, g: Tensor, beta: Optional[Tensor], first: Prepared, scale: float
) -> Plan:  # fmt: skip
    """Return the launch of `prepare_channels`, or of `prepare_gentle` and of what it flags."""
    squares = (first.decays, first.weights, first.inverses, first.unscaled)
    tensors = (q, k, g, beta, first.q, first.k, first.seen, *squares)
    strides = tuple(strides_of(x) for x in (q, k, g))
    width = k.shape[3]
    widths = (width, g.shape[3], sizes.width)
    grid = (sizes.chunks, sizes.heads, sizes.batch)
    target = current_target()
    ample = target.has("nvidia.cp_async") and target.limits.shared_memory >= AMPLE
    covered = power(sizes.width)
    constants = (covered, CHUNK, sizes.shared, ample, min(covered, CHANNELS))
    # The assembler of CUDA 12.9 takes 32 registers without a bound.
    most = 128 if target.has("nvidia.wgmma") else 255  # 128: two programs for a processor
    options: dict[str, Any] = {"num_warps": 8, **registers(most)}
    if first.flags is None:
        alone: Plan = Launch(
            by_channel.prepare_channels, grid, (*tensors, strides, sizes.length, sizes.heads, scale, widths, *constants), tensors,
            **options,
        )  # fmt: skip
        return alone
    from gluon_kernels.linear_attention.channels_gentle import prepare_gentle

    flags = first.flags
    steps = (*strides, sizes.heads * sizes.width)
    gentle = Launch(
        prepare_gentle,
        grid,
        (
            *tensors, flags, steps, sizes.length, sizes.heads, scale, sizes.width, CHUNK, sizes.shared,
            sizes.length % CHUNK == 0,
        ),
        (*tensors, flags),
        num_warps=8,
        **registers(GENTLE_REGISTERS),
    )  # fmt: skip
    total, each = flagged_groups(sizes, k)
    rest = Launch(
        by_channel.prepare_flagged,
        (-(-total // each),),
        (
            *tensors, flags, strides, sizes.length, sizes.heads, sizes.chunks, scale, widths, total, *constants, each,
        ),
        (*tensors, flags),
        **options,
    )  # fmt: skip

    def run(*tensors: Any) -> None:
        gentle(*tensors)
        rest(*tensors)

    return run


def _tile_and_stages(sizes: Sizes) -> tuple[int, int]:
    """Return the columns of values and the slots of a portable walk: processors of AMD and small ones of NVIDIA have room for one slot."""
    target = current_target()
    row = (3 if sizes.channels else 2) * power(sizes.width) + 2 * CHUNK
    if target.has("nvidia.cp_async"):
        for stages in (2, 1):
            if stages * CHUNK * (row + TILE) * 2 <= target.limits.shared_memory:
                return TILE, stages
    most = target.limits.shared_memory // (2 * 2 * CHUNK)
    if power(sizes.width) >= most:  # queries and keys alone would fill it
        raise ShapeError(
            "keys are too wide for a block's shared memory",
            argument="q",
            expected=f"1 to {power(most) // 2}",
            got=sizes.width,
        )
    return TILE // 2, 1


def stages_of(
    read: Sequence[tuple[int, ...]], stored: Sequence[tuple[int, ...]], programs: int = 1
) -> int:
    """Return how many chunks a walk on Hopper has room for: a chunk takes longer to arrive than the one before it to be walked.

    Args:
        read: the blocks of a chunk, of half precision, and of float32 where they have one dimension.
        stored: those that are stored.
        programs: that share a processor.
    """
    room = current_target().limits.shared_memory // programs - RESERVED - sum(map(_size, stored))
    return max(1, min(MOST_STAGES, room // sum(map(_size, read))))


def _size(block: tuple[int, ...]) -> int:
    """Return the bytes of a block, as they are placed."""
    return -(-math.prod(block) * (4 if len(block) == 1 else 2) // 128) * 128


def _behind_prepare(sizes: Sizes, v: Tensor, segments: int) -> dict[str, bool]:
    """Return the options of the walk behind `portable.prepare`: it is placed while the last programs of that end, if all are under way at a time.

    Programs that wait for others take their processors: of walks and joins of segments, 107 us for 102 (1x8192x8); of one walk 29.0 for 29.9 (8x836x4).
    """
    programs = sizes.chunks * sizes.heads * sizes.batch
    alone = segments == 1 and not sizes.channels
    return {"launch_pdl": True} if alone and programs <= RESIDENT * multiprocessors(v) else {}


def walk_launch(
    sizes: Sizes, prepared: Prepared, v: Tensor, outs: Any, initial: Optional[Tensor],
    final: Optional[Tensor], scale: float, segments: int, mapped: bool,
) -> Plan:  # fmt: skip
    """Return `launch(prepared, v, outs, initial, final)`; `outs` are the result, N, and the states before chunks.

    Args:
        mapped: the maps of segments are computed, too.
    """
    q, k, decays, weights, inverses, _, seen, _ = prepared
    out, news, states = outs
    per_segment = sizes.per_segment if segments > 1 else sizes.chunks
    rows = sizes.mapped if mapped else sizes.columns
    if not sizes.hopper:
        written = out if out is not None else v
        strides = tuple(strides_of(x) for x in (k if q is None else q, k, v, written))
        tensors = (q, k, v, decays, weights, inverses, seen, out, news, states, initial, final)
        tile, stages = _tile_and_stages(sizes)
        stages = 1 if sizes.channels and sizes.width > 128 else stages
        constants = (power(sizes.width), CHUNK, tile, sizes.walked, stages)
        tiles = -(-sizes.columns // tile)
        if mapped and sizes.delta:
            tiles += -(-sizes.width // tile)
        portable_launch: Plan = Launch(
            portable.recur,
            (tiles, sizes.heads * segments, sizes.batch),
            (
                *tensors, strides, sizes.length, sizes.heads, sizes.chunks, per_segment, scale,
                (sizes.width, sizes.columns), *constants,
            ),
            tensors,
            num_warps=4,
        )  # fmt: skip

        def run_portable(
            prepared: Prepared, v: Tensor, outs: Any, initial: Any, final: Any
        ) -> None:
            q, k, decays, weights, inverses, _, seen, _ = prepared
            portable_launch(q, k, v, decays, weights, inverses, seen, *outs, initial, final)

        return run_portable
    from gluon_kernels.linear_attention import hopper

    width, groups = sizes.width, sizes.groups
    flat = [None if x is None else x.view(-1, CHUNK) for x in (weights, inverses)]
    lines = decays.view(-1)
    columns = None if states is None else states.view(-1, width)
    of_keys, square = (1, CHUNK, 1, width), (CHUNK, CHUNK)
    decay = (width if sizes.channels else 2 * CHUNK,)
    blocks = (of_keys, of_keys, (1, CHUNK, 1, TILE * groups), decay, square, square, of_keys)
    loaded = (q, k, v, lines, *flat, seen)
    described = [None if x is None else descriptor_of(x, *b) for x, b in zip(loaded, blocks)]
    read = [b for x, b in zip(loaded, blocks) if x is not None]
    of_values = (1, CHUNK, 1, TILE)
    kinds = ((out, of_values), (news, of_values), (columns, (TILE, width)))
    stored = [b for x, b in kinds if x is not None] * groups
    targets = [None if x is None else descriptor_of(x, *b) for x, b in kinds]
    stages = stages_of(read, stored)
    launch = Launch(
        hopper.recur,
        (rows // (TILE * groups), sizes.heads * segments, sizes.batch),
        (
            *described, *targets, initial, final, sizes.heads, sizes.chunks, per_segment, rows, sizes.columns, scale,
            sizes.walked, stages, groups,
        ),
        (*loaded, out, news, columns, initial, final),
        num_warps=4,
        **_behind_prepare(sizes, v, segments),
    )  # fmt: skip

    def run(prepared: Prepared, v: Tensor, outs: Any, initial: Any, final: Any) -> None:
        q, k, decays, weights, inverses, _, seen, _ = prepared
        out, news, states = outs
        squares = [None if x is None else x.view(-1, CHUNK) for x in (weights, inverses)]
        columns = None if states is None else states.view(-1, width)
        launch(q, k, v, decays.view(-1), *squares, seen, out, news, columns, initial, final)

    return run


def combine_launch(
    sizes: Sizes, fresh: Tensor, maps: Optional[Tensor], decays: Tensor, initial: Optional[Tensor], firsts: Tensor,
    final: Tensor, reverse: bool,
) -> Launch:  # fmt: skip
    """Return `launch(fresh, maps, decays, initial, firsts, final)`."""
    tensors = (fresh, maps, decays, initial, firsts, final)
    tile, width = 16, power(sizes.width)
    part = 32 if width <= 128 else 16
    target = current_target()
    ample = target.has("nvidia.cp_async") and target.limits.shared_memory >= 6 * part * width * 4
    return Launch(
        combine,
        (-(-sizes.columns // tile), sizes.batch * sizes.heads),
        (
            *tensors, (sizes.segments, sizes.per_segment, sizes.chunks, fresh.shape[-2]), (sizes.width, sizes.columns),
            width, CHUNK, tile, min(part, width), 5 if ample else 2, sizes.delta, reverse,
        ),
        tensors,
        num_warps=4,
    )  # fmt: skip


class Workspace:
    """The tensors between the launches of a call."""

    def __init__(self, sizes: Sizes, dtype: torch.dtype, device: torch.device):
        heads = (sizes.batch, sizes.heads)
        chunks = (*heads, sizes.chunks)
        state = (sizes.columns, sizes.width)
        self.decays = allocator((*chunks, sizes.decays), torch.float32, device)
        self.keys = allocator((sizes.batch, sizes.length, sizes.heads, sizes.width), dtype, device)
        self.square = allocator((*chunks, CHUNK, CHUNK), dtype, device)
        self.flags = allocator(chunks, torch.int32, device)
        self.maps = allocator(
            (*heads, sizes.segments, sizes.mapped, sizes.width), torch.float32, device
        )
        self.segments = allocator((*heads, sizes.segments, *state), torch.float32, device)
        before = max(sizes.segments - 1, 1)
        self.fresh = allocator((*heads, before, *state), torch.float32, device)
        self.totals = allocator((*heads, before), torch.float32, device)
        self.fresh_of_both = allocator((2, *heads, before, *state), torch.float32, device)
        self.totals_of_both = allocator((2, *heads, before), torch.float32, device)
        self.state = allocator((*heads, *state), torch.float32, device)
        self.states = allocator((*chunks, *state), dtype, device)
        self.states_of_both = allocator((2, *chunks, *state), dtype, device)
        self.values = allocator(
            (sizes.batch, sizes.length, sizes.heads, sizes.columns), dtype, device
        )


def padded_state(x: Optional[Tensor], sizes: Sizes) -> Optional[Tensor]:
    """Return [batch, heads, V, K], float32 and contiguous, padded with zeros."""
    if x is None:
        return None
    more = (sizes.width - x.shape[3], sizes.columns - x.shape[2])
    if any(more):
        x = F.pad(x, (0, more[0], 0, more[1]))
    return x.float().contiguous()


def near_rows(x: Tensor) -> Tensor:
    """Return heads whose 64 rows of a chunk 32-bit offsets reach."""
    return x if x.stride(3) == 1 and abs(x.stride(1)) < 1 << 24 else x.contiguous()


def operands_of(sizes: Sizes, q: Tensor, k: Tensor, *values: Tensor) -> tuple[Tensor, ...]:
    """Return queries and keys, and tensors of the width of values, as the kernels read them."""
    if sizes.channels:  # read through pointers once
        keys = [near_rows(x) for x in (q, k)]
    else:
        keys = [near_rows(sizes.readable(x, sizes.width)) for x in (q, k)]
    return (*keys, *(near_rows(sizes.readable(x, sizes.columns)) for x in values))


class Kept(NamedTuple):
    """Tensors that a walk leaves for its gradients.

    Args:
        news, states: N, and the states before chunks.
        maps: of segments, None with one segment.
        q, k, decays, weights, unscaled, seen, flags: those of `Prepared`; None for queries and keys that are those of the call.
    """

    news: Tensor
    states: Tensor
    maps: Optional[Tensor]
    q: Optional[Tensor]
    k: Optional[Tensor]
    decays: Tensor
    weights: Optional[Tensor]
    unscaled: Optional[Tensor]
    seen: Optional[Tensor]
    flags: Optional[Tensor]

    def prepared(self, q: Tensor, k: Tensor) -> Prepared:
        """Return the operands of a walk back, for queries and keys of the call."""
        q, k = q if self.q is None else self.q, k if self.k is None else self.k
        decays, weights, unscaled, seen, flags = self[5:]
        return Prepared(q, k, decays, weights, None, unscaled, seen, flags)


def forward_plan(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Optional[Tensor],
    initial: Optional[Tensor],
    scale: float,
    keep: bool = False,
) -> Plan:
    """Return `run(q, k, v, g, beta, initial) -> (out, final state, Kept)`; states are [batch, heads, V, K], float32.

    Args:
        keep: gradients will be wanted; else `Kept` is None.
    """
    sizes = Sizes.of(k, v, g, beta is not None)
    width, columns = k.shape[3], v.shape[3]
    new = Workspace(sizes, v.dtype, v.device)
    exact = (width, columns) == (sizes.width, sizes.columns)
    q, k, v = operands_of(sizes, q, k, v)
    initial = padded_state(initial, sizes)
    prepared, prepare = prepare_launch(sizes, q, k, g, beta, scale, new, keep)
    many = sizes.segments > 1
    nothing = (None, None, None)

    def targets() -> tuple[Tensor, Optional[Tensor], Optional[Tensor]]:
        return new.values(), new.values() if keep else None, new.states() if keep else None

    outs, final = targets(), new.state()
    if many:
        maps, firsts = new.maps(), new.segments()
        mapping = walk_launch(
            sizes, prepared.for_states(), v, nothing, None, maps, scale, sizes.segments, True
        )
        join = combine_launch(
            sizes, maps, maps.detach(), prepared.decays, initial, firsts, final, False
        )
        walk = walk_launch(sizes, prepared, v, outs, firsts, None, scale, sizes.segments, False)
    else:
        walk = walk_launch(sizes, prepared, v, outs, initial, final, scale, 1, False)

    def run(
        q: Tensor,
        k: Tensor,
        v: Tensor,
        g: Tensor,
        beta: Optional[Tensor],
        initial: Optional[Tensor],
    ) -> tuple[Tensor, Tensor, Optional[Kept]]:
        q, k, v = operands_of(sizes, q, k, v)
        initial = padded_state(initial, sizes)
        prepared = prepare(q, k, g, beta)
        outs, final, maps = targets(), new.state(), None
        if many:
            maps, firsts = new.maps(), new.segments()
            mapping(prepared.for_states(), v, nothing, None, maps)
            join(maps, maps, prepared.decays, initial, firsts, final)
            walk(prepared, v, outs, firsts, None)
        else:
            walk(prepared, v, outs, initial, final)
        out, news, states = outs
        kept = None
        if news is not None and states is not None:
            own_q, own_k = (prepared.q, prepared.k) if sizes.channels else (None, None)
            _, _, decays, weights, _, unscaled, seen, flags = prepared
            kept = Kept(news, states, maps, own_q, own_k, decays, weights, unscaled, seen, flags)
        if not exact:
            out, final = out[..., :columns].contiguous(), final[..., :columns, :width].contiguous()
        return out, final, kept

    return run
