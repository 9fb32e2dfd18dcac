"""A vendor in kernels: its ops, their meaning, and its form of portable ops."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Annotated, Mapping, Optional, Sequence, Union

from gluon_core.features import OLDEST
from gluon_core.plugin.paths import Capability, CodePath, Form, ModulePath, Words

__all__ = ["FURTHER", "OPS", "TAKES", "Language", "Lowering"]

# Portable op -> the companions that every lowering of it must name in `extras`:
#   commit(*, _semantic)             closes the group of copies issued so far
#   wait(outstanding, *, _semantic)  until at most `outstanding` groups are in flight
#   layouts(request)                 the `MmaLayouts` this lowering wants, at compile time
#   layout(request)                  the shared layout this lowering wants of a tile, at compile time
#   begin(stages, tiles, *, _semantic)   the values (barriers) that a pipeline carries along; `tiles` are
#                                copied in each step
#   fetch(fetch, *, _semantic)   starts the copies of one step, a `gluon_core.portable.tiles.Fetch`
#   arrived(state, slot, phase, pending, *, _semantic)   waits for the copies of one step
#   end(state, stages, *, _semantic)   no copies will follow
#   first(state, values, facts, count, *, _semantic) -> values   a partition's first tile of a scheduler
#   next(state, values, facts, count, *, _semantic) -> values    the tile after one
# The values of a tile begin with its number, an int32 scalar. The code of `tile_scheduler` gets the
# `TileSchedulerFacts` of `gluon_core.portable.tile_schedulers` and returns the values that all partitions share.
#
# A lowering of `mma` whose unit reads shared memory on its own names these, too, and then gets
# operands in shared memory; where they are missing, operands are loaded before and accumulators are
# tensors. `parts` are the values that stand for an accumulator.
#   accumulator(layouts, start, *, _semantic) -> parts   zeros where `start` is None
#   mma_wait(parts, pending, deps, *, _semantic) -> parts
#   read(parts, *, _semantic) -> tensor             waits for all; the accumulator is used up
#   fence(*, _semantic)                             makes stores to shared memory known to the unit
#
# A lowering of `tile_store` that stores through buffers of its own, while the kernel goes on, names these;
# `gl.portable.writer` asks for it with a request without a value.
#   open(tile, parts, *, _semantic) -> state        `parts` tiles side by side are stored at once
#   put(request, state, epilogue, *, _semantic)     `epilogue` is a `tile_epilogue` or None
#   close(state, *, _semantic)                      waits until the buffers are free
OPS: Mapping[str, frozenset[str]] = MappingProxyType(
    {
        "load": frozenset(),
        "store": frozenset(),
        "async_copy": frozenset({"commit", "wait"}),
        "mma": frozenset({"layouts"}),
        "tile_copy": frozenset({"layout", "begin", "fetch", "arrived", "end"}),
        "tile_store": frozenset(),
        "tile_scheduler": frozenset({"first", "next"}),
    }
)
# Portable op -> the companions that a lowering may name besides; an accumulator comes with a wait and a read.
FURTHER: Mapping[str, frozenset[str]] = MappingProxyType(
    {
        "mma": frozenset({"accumulator", "mma_wait", "read", "fence"}),
        "tile_store": frozenset({"open", "put", "close"}),
    }
)

# The parameters of a lowering's code: how many are positional, and the keywords.
_SEMANTIC = ("_semantic",)
TAKES: Mapping[str, tuple[int, tuple[str, ...]]] = MappingProxyType(
    {
        "implement": (1, _SEMANTIC),
        "accepts": (1, ()),
        "commit": (0, _SEMANTIC),
        "wait": (1, _SEMANTIC),
        "layouts": (1, ()),
        "layout": (1, ()),
        "begin": (2, _SEMANTIC),
        "fetch": (1, _SEMANTIC),
        "arrived": (4, _SEMANTIC),
        "end": (2, _SEMANTIC),
        "first": (4, _SEMANTIC),
        "next": (4, _SEMANTIC),
        "accumulator": (2, _SEMANTIC),
        "mma_wait": (3, _SEMANTIC),
        "read": (1, _SEMANTIC),
        "fence": (0, _SEMANTIC),
        "open": (2, _SEMANTIC),
        "put": (3, _SEMANTIC),
        "close": (1, _SEMANTIC),
    }
)


@dataclass(frozen=True)
class Lowering:
    """One implementation of a portable op.

    Args:
        op: the portable op, one of `OPS`.
        name: unique among the lowerings of an op.
        requires: capabilities that the target must have.
        priority: of the lowerings that fit, the highest wins; two that can fit the same target
            must not share one.
        implement: path of the function that emits the op: `f(request, _semantic) -> value`.
        accepts: path of a predicate `f(request) -> True | str`, the string saying why not; None
            accepts all operands. `request` is the op's request dataclass in `gluon_core.portable.requests`.
        extras: paths of further compile-time functions: those that the op asks for
            (`OPS`), and others that lowerings of it may have.
        min_triton: the oldest Triton (major, minor) whose builder can emit it.
        gives_up: text in a compiler's diagnostics, or several texts, which means that these operands cannot be done
            this way after all, for a reason that only the compiler sees, such as the alignment of
            an address. The kernel is then compiled once more without this lowering.
        expects: patterns of the names that `Compiler.emitted` gives to instructions, at least one of
            which is at the op's line when the compiler kept the lowering; none for "nothing special".
    """

    op: str
    name: Words
    implement: CodePath
    requires: tuple[Capability, ...] = ()
    priority: int = 0
    accepts: Optional[CodePath] = None
    extras: Mapping[str, CodePath] = field(default_factory=dict)
    min_triton: tuple[int, int] = OLDEST
    gives_up: Union[Words, tuple[Words, ...], None] = None
    expects: tuple[str, ...] = ()


@dataclass(frozen=True)
class Language:
    """The facet of a vendor's own language; every part is optional.

    Args:
        namespace: module path behind `gl.<name>`.
        host: module path behind `gluon_core.<name>`.
        exports: names that kernels expect in `gl` itself -> path of the value.
        reference: module path of the reference models, NumPy only.
        lowerings: the portable ops that the vendor implements.
        descriptors: the head of descriptor types in a signature, such as `tensordesc` -> path of the
            class of the type (a subclass of `values.descriptors.tensor_descriptor_type`).
        argument_kinds: paths of `gluon_core.plugin.launcher.ArgumentKind`s, for host objects that
            kernels take and that are no descriptors. They are loaded when the first object of a class
            that the core does not know is passed to a kernel.
    """

    namespace: Optional[ModulePath] = None
    host: Optional[ModulePath] = None
    exports: Mapping[Annotated[str, Form(r"[^\W\d]\w*", "must be an identifier")], CodePath] = (
        field(default_factory=dict)
    )
    reference: Optional[ModulePath] = None
    lowerings: Sequence[Lowering] = ()
    descriptors: Mapping[
        Annotated[str, Form(r"tensordesc\w*", "heads begin with 'tensordesc'")], CodePath
    ] = field(default_factory=dict)
    argument_kinds: Sequence[CodePath] = ()
