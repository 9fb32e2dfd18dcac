"""Hold one trace: its backend, its target, and its decisions on the way."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Callable, Mapping, Optional, Sequence

from gluon_core.errors import CapabilityError, LimitError
from gluon_core.plugin.backend import Backend
from gluon_core.plugin.builder import Builder
from gluon_core.plugin.options import CompileOptions
from gluon_core.plugin.targets import Target
from gluon_core.portable.selection import Selection
from gluon_core.registry.verify import checked
from gluon_core.semantic.multiples import Multiples, PassedMultiples
from gluon_core.values.accesses import Access
from gluon_core.values.descriptors import translate_layout

if TYPE_CHECKING:
    from gluon_core.layouts.base import Layout

__all__ = ["Session"]


# Packages whose classes and functions kernels may name without wrapping them in constexpr.
_LANGUAGE_PACKAGES = ("gluon_core", "triton.language")


@dataclass
class Session:
    """Hold one trace: its backend, its target, and its decisions on the way."""

    backend: Backend
    target: Target
    options: CompileOptions
    context: Any
    selections: list[Selection] = field(default_factory=list)
    refused: Mapping[tuple[str, str], str] = field(default_factory=dict)
    unrolled: int = 0  # rounds of loops over `static_range` so far
    shared_accesses: list[Callable[[], int]] = field(
        default_factory=list
    )  # each tells its conflicts
    accesses: list[Access] = field(default_factory=list)
    multiples: Multiples = field(default_factory=Multiples)
    passing: Optional[PassedMultiples] = None  # to the function that is called next
    no_machine_code: list[CapabilityError] = field(default_factory=list)  # the reasons
    warnings: list[tuple[str, str, int]] = field(default_factory=list)  # text, file, line
    chosen: dict[str, Any] = field(default_factory=dict)  # options of a launch
    specialized: bool = False  # while the functions of `warp_specialize` are generated

    def __post_init__(self) -> None:
        self.options = checked(self.backend, "options", self.options)
        self.num_warps = int(self.options.num_warps)
        self.num_ctas = int(self.options.num_ctas)
        self.maxnreg: Optional[int] = getattr(self.options, "maxnreg", None)
        self.packages = self._packages()
        self.codegen = dict(self.backend.compiler.codegen(self.target, self.options))
        self.module_map = dict(self.backend.compiler.module_map(self.target))

    def _packages(self) -> tuple[str, ...]:
        from gluon_core.registry.load import registry

        vendors = {
            b.language.namespace.split(".")[0]
            for b in registry().backends.values()
            if b.language.namespace
        }
        return (*_LANGUAGE_PACKAGES, *sorted(vendors))

    def architectures_with(self, capability: str) -> Sequence[str]:
        """Names of the known architectures that have `capability`."""
        from gluon_core.registry.load import registry

        return [a.name for a in registry().architectures() if capability in a.capabilities]

    def architectures_with_partitions(self) -> Sequence[str]:
        """Names of the known architectures whose warps can run different functions."""
        from gluon_core.registry.load import registry

        return [a.name for a in registry().architectures() if a.limits.partitions]

    def all_descriptors(self, head: str) -> Sequence[str]:
        """Return the modules of the type classes that backends have for descriptors of this head."""
        from gluon_core.registry.load import registry

        backends = registry().backends.values()
        return [b.language.descriptors[head] for b in backends if head in b.language.descriptors]

    def check_layout(self, layout: Layout) -> None:
        """Raise `CapabilityError` for a vendor's layout on hardware that does not have it."""
        for capability in getattr(layout, "requires", ()):
            if not self.target.has(capability):
                raise CapabilityError(
                    f"{type(layout).__name__} needs {capability}"
                    f" ({', '.join(self.architectures_with(capability))}); target is {self.target}",
                    argument="layout",
                )
        parent = getattr(layout, "parent", None)
        if parent is not None:
            self.check_layout(parent)

    def count_shared(self, nbytes: int) -> None:
        """Raise `LimitError` for one allocation that cannot fit whatever else the kernel does."""
        limit = self.target.limits.shared_memory
        if nbytes > limit:
            raise LimitError(
                f"one allocation needs {nbytes} bytes of shared memory",
                argument="shape",
                expected=f"at most {limit} bytes on {self.target}",
                got=nbytes,
                remedy="Use a smaller tile or fewer stages.",
            )

    @property
    def vendor(self) -> Backend:
        """Return the backend of the hardware: another than `backend` where that simulates."""
        from gluon_core.registry.load import registry

        return registry().backends.get(self.target.architecture.backend, self.backend)

    @staticmethod
    def translate_layout(layout: Any) -> Layout:
        return translate_layout(layout)

    def make_builder(self) -> Builder:
        """Return the backend's builder, with what the contract says that the core sets on it."""
        builder = checked(
            self.backend, "builder", self.backend.compiler.builder(self.context, self.target)
        )
        builder.options = self.options
        builder.codegen_fns = self.codegen
        builder.module_map = self.module_map
        return builder
