"""A vendor in kernels: its ops, their meaning, and its form of portable ops."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Mapping, Optional, Sequence, Union

from gluon_core.features import OLDEST

__all__ = ["Language", "Lowering"]


@dataclass(frozen=True)
class Lowering:
    """One implementation of a portable op.

    Args:
        op: the portable op, one of `gluon_core.portable.OPS`.
        name: what `gluon explain` calls it, unique among the lowerings of an op.
        requires: capabilities that the target must have.
        priority: of the lowerings that fit, the highest wins; two that can fit the same target
            must not share one.
        implement: path of the function that emits the op: `f(request, _semantic) -> value`.
        accepts: path of a predicate `f(request) -> True | str`, the string saying why not; None
            accepts all operands. `request` is the op's request dataclass in `gluon_core.portable`.
        extras: paths of further compile-time functions: those that the op asks for
            (`gluon_core.plugin.requests.OPS`), and others that lowerings of it may have.
        min_triton: the oldest Triton (major, minor) whose builder can emit it.
        gives_up: text in a compiler's diagnostics, or several texts, which means that these operands cannot be done
            this way after all, for a reason that only the compiler sees, such as the alignment of
            an address. The kernel is then compiled once more without this lowering.
        expects: patterns of the names that `Compiler.emitted` gives to instructions, at least one of
            which is at the op's line when the compiler kept the lowering; none for "nothing special".
    """

    op: str
    name: str
    implement: str
    requires: tuple[str, ...] = ()
    priority: int = 0
    accepts: Optional[str] = None
    extras: Mapping[str, str] = field(default_factory=dict)
    min_triton: tuple[int, int] = OLDEST
    gives_up: Union[str, tuple[str, ...], None] = None
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

    namespace: Optional[str] = None
    host: Optional[str] = None
    exports: Mapping[str, str] = field(default_factory=dict)
    reference: Optional[str] = None
    lowerings: Sequence[Lowering] = ()
    descriptors: Mapping[str, str] = field(default_factory=dict)
    argument_kinds: Sequence[str] = ()
