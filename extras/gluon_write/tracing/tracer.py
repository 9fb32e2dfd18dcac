"""Trace the forms of a kernel that one launch may have."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Callable, Iterable, Mapping, Optional

from gluon_core.errors import CapabilityError, GluonError, LayoutError
from gluon_core.frontend.trace import trace
from gluon_core.plugin.targets import Target
from gluon_core.registry.load import registry
from gluon_write.tracing.budget import TRACED, spend
from gluon_write.tracing.carried import Unforeseen
from gluon_write.tracing.sketch import Place, Sketch
from gluon_write.tracing.sketcher import Sketcher, alignments, odd_names

__all__ = ["Tracer"]


@dataclass(frozen=True)
class Tracer:
    """Trace forms of a kernel for a launch: `traced(fn)` is the trace of one.

    Attributes:
        signature, constexprs, attrs: types, constants and known facts of the arguments.
        target, options: of the launch.
        apart: loaded tiles are values of any layout; else only where ops cannot combine those of their descriptors.
    """

    signature: Mapping[str, Any]
    constexprs: Mapping[tuple[int, ...], Any]
    attrs: Mapping[tuple[int, ...], Any]
    target: Target
    options: Any
    apart: bool = False

    @property
    def warps(self) -> int:
        """Return the warps of a program."""
        return int(self.options.num_warps)

    @property
    def threads(self) -> int:
        """Return the threads of a program."""
        return self.warps * self.target.warp_size

    @property
    def stages(self) -> int:
        """Return the buffers that a pipeline may have for each tile: two at least where copies run in the background.

        A launch that asks for one would multiply from registers, which takes up to 1.7 times as long on an H200.
        """
        asked = int(getattr(self.options, "num_stages", None) or 1)
        return max(asked, 2) if self.has("nvidia.cp_async") else asked

    @property
    def room(self) -> int:
        """Return the bytes of shared memory of a program."""
        return self.target.architecture.limits.shared_memory

    def has(self, capability: str) -> bool:
        """Return True if the target has a capability."""
        return self.target.has(capability)

    def copies_tiles(self, drawn: Sketch) -> bool:
        """Return True if tiles of descriptors may be copied ahead in a form, whose warps still do the same."""
        return self.stages > 1 and self.has("nvidia.tma") and bool(drawn.copied) and not drawn.warps

    def with_warps(self, warps: int) -> Tracer:
        """Return a tracer for another number of warps."""
        return replace(self, options=replace(self.options, num_warps=warps))

    def after(
        self, fn: Any, drawn: Sketch, *changes: Callable[[Any, Sketch], Any]
    ) -> tuple[Any, Sketch]:
        """Return a form after changes of its text, each of which returns the same form where it changes nothing, and its trace."""
        for change in changes:
            changed = change(fn, drawn)
            if changed is not fn:
                fn, drawn = changed, self(changed)
        return fn, drawn

    def __call__(self, fn: Any, warps: Optional[int] = None) -> Sketch:
        """Trace a form on the simulator's builder, layouts left out.

        Args:
            warps: of the program; None for those of the launch.

        Raises:
            CapabilityError: the simulator is not installed.
            GluonError: the kernel is wrong, whatever its layouts; with its line.
        """
        backend = registry().backends.get("sim")
        if backend is None:
            raise CapabilityError(
                "layouts are chosen from a trace that the simulator records",
                argument="layouts",
                remedy="Install gluon-sim, or write the layouts.",
            )
        twin = Target("sim", self.target.architecture)
        asked = {"num_warps": warps or self.warps, "num_ctas": int(self.options.num_ctas)}
        asked["sanitize_overflow"] = False  # its checks are no ops of the kernel
        options = backend.compiler.options(twin, asked)
        facts = self.signature, self.constexprs, self.attrs
        ranks: dict[Place, tuple[int, int]] = {}
        looks, apart = False, self.apart
        while True:
            drawn = self._begun(fn, ranks)
            drawn.apart, known = apart, len(ranks)
            kind = type("Sketcher", (Sketcher,), {"drawn": drawn, "looks": looks})
            try:
                drawn.program = trace(
                    fn, *facts, backend=backend, target=twin, options=options, kind=kind
                )
                spend(TRACED * len(drawn.kept))
                return drawn
            except Unforeseen:
                looks = True
            except GluonError as error:
                if len(ranks) > known:
                    continue  # with the layouts that the accesses to buffers need
                if isinstance(error, LayoutError) and drawn.loads_tiles and not apart:
                    apart = True  # an op combines tiles of two layouts
                    continue
                if not looks:
                    looks = True  # for the words that a compiler has
                    continue
                if isinstance(error, LayoutError):
                    _name_lines(error, drawn.kept)
                raise

    def _begun(self, fn: Any, ranks: dict[Place, tuple[int, int]]) -> Sketch:
        """Return a sketch with all that is known before the trace."""
        drawn = Sketch(banks=self.target.architecture.banks, ranks=ranks)
        drawn.side_by_side = self.has("amd.global_load_to_lds")
        drawn.matrices = self.has("nvidia.ldmatrix")
        # AMD's compiler splits conversions that do not fit.
        drawn.room = 0 if self.target.architecture.backend == "amd" else self.room
        drawn.multiples = alignments(fn, self.constexprs, self.attrs)
        drawn.odd = odd_names(fn, self.signature, self.constexprs, self.attrs)
        drawn.constants = {
            fn.arg_names[place[0]]: v for place, v in self.constexprs.items() if len(place) == 1
        }
        return drawn


def _name_lines(error: LayoutError, ops: list[Any]) -> None:
    """Name the lines that the layouts in an error come from."""
    one, other = (_line_of(ops, str(layout)) for layout in (error.expected, error.got))
    words = f"The one comes from line {one}, the other from line {other}."
    if not one or not other:
        words = (
            f"The layout comes from line {one or other}: leave it out there, or convert the value."
        )
    if one or other:
        error.remedy = f"{error.remedy} {words}" if error.remedy else words


def _line_of(ops: Iterable[Any], layout: str) -> int:
    """Return the line of the first op whose result has a layout, given as text, or a slice of it; 0 for none."""
    for op in ops:
        for result in op.results:
            one = getattr(result.type, "layout", None)
            while one is not None:
                if str(one) == layout:
                    return int(op.loc.line)
                one = getattr(one, "parent", None)
    return 0
