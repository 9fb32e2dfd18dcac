"""A vendor in kernels: its ops, their meaning, and its form of portable ops."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Annotated, Mapping, Optional, Sequence, Union

from gluon_core.features import OLDEST
from gluon_core.plugin.paths import Capability, CodePath, Form, ModulePath, Words

__all__ = ["OPS", "TAKES", "Language", "Lowering"]

# Portable op -> the companions that every lowering of it must name in `extras`, and those that it may name
# besides. A lowering of `mma` with an accumulator has a unit that reads shared memory on its own: it gets operands in shared
# memory; otherwise operands are loaded before, and accumulators are tensors. One of `tile_store` that opens a writer
# stores through buffers of its own, while the kernel goes on: `gl.portable.writer` asks for it with a
# request without a value.
OPS: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "load": ("", ""),
        "store": ("", ""),
        "async_copy": ("commit wait", ""),
        "mma": ("layouts", "accumulator mma_wait read fence"),
        "tile_copy": ("layout begin fetch arrived end", ""),
        "tile_store": ("", "open put close"),
        "tile_scheduler": ("first next", ""),
    }
)
# The code of a lowering -> its positional parameters, and whether `_semantic` follows. The values of a tile
# begin with its number, an int32 scalar; `facts` are those of `gluon_core.portable.tile_schedulers`;
# `parts` are the values of an accumulator.
TAKES: Mapping[str, tuple[str, bool]] = MappingProxyType(
    {
        "implement": ("request", True),
        "accepts": ("request", False),  # True, or the reason why not
        "commit": ("", True),  # close the group of copies issued so far
        "wait": ("outstanding", True),  # until at most so many groups are in flight
        "layouts": ("request", False),  # the `MmaLayouts` of operands and result
        "layout": ("request", False),  # the shared layout of a tile
        "begin": ("stages tiles", True),  # the values of a pipeline (barriers); tiles of each step
        "fetch": (
            "fetch",
            True,
        ),  # start the copies of one step, a `gluon_core.portable.tiles.Fetch`
        "arrived": ("state slot phase pending", True),  # wait for the copies of one step
        "end": ("state stages", True),  # no copies follow
        "first": ("state values facts count", True),  # the values of a partition's first tile
        "next": ("state values facts count", True),  # those of the tile after one
        "accumulator": ("layouts start", True),  # its parts: zeros where `start` is None
        "mma_wait": ("parts pending deps", True),  # the parts
        "read": ("parts", True),  # wait for all, return the tensor; the accumulator is used up
        "fence": ("", True),  # make stores to shared memory known to the unit
        "open": ("tile parts", True),  # the state of a writer of `parts` tiles side by side
        "put": ("request state epilogue", True),  # store; `epilogue` is a `tile_epilogue` or None
        "close": ("state", True),  # wait until the buffers are free
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
