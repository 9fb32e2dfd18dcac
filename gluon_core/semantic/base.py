"""Share the code of the op families: the session, layout checks, wrapping of inferred results."""

from __future__ import annotations

import linecache
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Callable, Optional, Sequence

from gluon_core import _triton
from gluon_core._triton import TritonSemantic, tl, unwrap
from gluon_core.errors import (
    CapabilityError,
    DtypeError,
    GluonError,
    KernelWarning,
    LayoutError,
    ShapeError,
    SourceSpan,
    is_strict,
    without_addresses,
)
from gluon_core.layouts import AutoLayout, CoalescedLayout
from gluon_core.layouts.base import DistributedLayout, Layout
from gluon_core.values import check_block_shape, distributed_type
from gluon_core.values.accesses import Access, vector_bytes
from gluon_core.values.tensors import describe

if TYPE_CHECKING:
    from gluon_core.plugin.options import CompileOptions

__all__ = ["SemanticBase"]


@lru_cache(maxsize=4096)
def thread_counts(
    layout: DistributedLayout, shape: tuple[int, ...], _strict: bool
) -> tuple[int, int, int]:
    """Lanes, warps and blocks that a layout spreads a tensor of `shape` over."""
    dims = layout.to_linear(shape).in_dims
    return dims.get("lane", 1), dims.get("warp", 1), dims.get("block", 1)


class SemanticBase(TritonSemantic):  # type: ignore[misc]  # Triton has no types
    """Triton's semantic layer plus a session: the backend, target and options of one trace."""

    lang = tl

    def __init__(self, builder: Any, session: Any):
        super().__init__(builder)
        self.session = session
        self.num_warps: int = session.num_warps
        # File and line of the traced call.
        self.place: Callable[[], tuple[str, int]] = lambda: ("<kernel>", 1)
        self.scopes: list[tuple[str, int]] = []  # open ones of the function: name, line
        # Grows with all that may wait or be skipped: control flow, calls, waits. Facts that vendors'
        # ops remember of a function are true as long as it has not grown.
        self._passed = 0
        self.until_passed: list[Callable[[], None]] = []  # called once, when it grows
        self.notes: dict[str, Any] = {}
        # Triton 3.8 and later wrap handles through this method; earlier ones call the class.
        self.tensor = tl.tensor

    @property
    def target(self) -> Any:
        return self.session.target

    @property
    def options(self) -> CompileOptions:
        options: CompileOptions = self.session.options
        return options

    @property
    def num_ctas(self) -> int:
        count: int = self.session.num_ctas
        return count

    has = staticmethod(_triton.has)
    require = staticmethod(_triton.require)

    def check_capabilities(
        self, public: str, requires: Sequence[str], instead: Optional[str] = None
    ) -> None:
        """Raise CapabilityError for the first of `requires` that the target lacks."""
        for capability in requires:
            if self.target.has(capability):
                continue
            holders = self.architectures_with(capability)
            where = f" ({', '.join(holders)})" if holders else ""
            raise CapabilityError(
                f"{public} needs {capability}{where}; target is {self.target}",
                remedy=f"Instead: {instead}." if instead else None,
            )

    def architectures_with(self, capability: str) -> Sequence[str]:
        names: Sequence[str] = self.session.architectures_with(capability)
        return names

    @property
    def passed(self) -> int:
        return self._passed

    @passed.setter
    def passed(self, value: int) -> None:
        self._passed = value
        if self.until_passed:
            called, self.until_passed = self.until_passed, []
            for call in called:
                call()

    def check_available(self, layout: Layout) -> None:
        self.session.check_layout(layout)

    def translate_layout(self, layout: Any) -> Layout:
        translated: Layout = self.session.translate_layout(layout)
        return translated

    def note_access(self, offsets: Any, element: Any) -> None:
        """Note the width that the layout of an access to global memory permits."""
        layout = getattr(offsets.type, "layout", None)
        if not isinstance(layout, DistributedLayout) or is_placeholder(layout):
            return
        width = vector_bytes(layout, tuple(shape_of(offsets)), element.primitive_bitwidth)
        if width is not None:
            file, line = self.place()
            self.session.accesses.append(Access(f"{file}:{line}", width))

    def make_tensor(self, handle: Any, type: Any) -> tl.tensor:
        return tl.tensor(handle, type)

    # -- layouts ------------------------------------------------------------------------------

    def check_layout(self, layout: Any, shape: Sequence[int], argument: str = "layout") -> Any:
        """`layout` unwrapped (None becomes AutoLayout), checked against the shape and the launch.

        Raises:
            LayoutError: not a distributed layout, wrong rank, or it spreads the tensor over another
                number of lanes, warps or blocks than the kernel runs with.
        """
        layout = unwrap(layout)
        if layout is None:
            layout = AutoLayout()
        if not isinstance(layout, DistributedLayout):
            raise LayoutError(
                "not a layout for tensors in registers",
                argument=argument,
                expected="a distributed layout such as BlockedLayout",
                got=repr(layout),
            )
        if is_placeholder(layout):
            return layout
        if layout.rank != len(shape):
            raise LayoutError(
                "the rank of the layout is not that of the tensor",
                argument=argument,
                expected=f"rank {len(shape)} for shape {list(shape)}",
                got=f"rank {layout.rank}: {layout}",
            )
        self.session.check_layout(layout)
        lanes, warps, ctas = thread_counts(layout, tuple(int(s) for s in shape), is_strict())
        if lanes != self.target.warp_size:
            raise LayoutError(
                "the layout and the target have different numbers of threads per warp",
                argument=argument,
                expected=f"{self.target.warp_size} threads per warp on {self.target}",
                got=f"{lanes}: {layout}",
                remedy="gl.portable.blocked_layout(shape, dtype) makes a layout for any target.",
            )
        if warps != self.num_warps:
            raise LayoutError(
                "the layout and the kernel have different numbers of warps",
                argument=argument,
                expected=f"{self.num_warps} warps",
                got=f"{warps}: {layout}",
                remedy=f"Change the layout, or launch with num_warps={warps}.",
            )
        if ctas != self.num_ctas:
            raise LayoutError(
                "the layout's blocks are not those of the cluster",
                argument=argument,
                expected=f"num_ctas={self.num_ctas}",
                got=f"{ctas}: {layout}",
            )
        return layout

    def check_blocks(
        self, crosses: Callable[[], bool], subject: str, argument: str, got: str
    ) -> None:
        """Raise where data would move between the blocks of a cluster that do not reach each other.

        Raises:
            LayoutError: `crosses` says so, and the target's blocks have only their own memory.
        """
        if self.num_ctas == 1 or self.target.limits.remote_shared or not crosses():
            return
        raise LayoutError(
            f"{subject} moves data between the blocks of a cluster, which reach only their own shared "
            f"memory on {self.target}",
            argument=argument,
            expected="the same elements in each block before and after",
            got=got,
            remedy="Keep the cga_layout, or store to global memory.",
        )

    def tensor_type(self, element_ty: Any, shape: Sequence[int], layout: Any) -> Any:
        """Return a checked `distributed_type`, or the scalar type for an empty shape."""
        if not len(shape):
            return element_ty
        check_block_shape(shape, "a tensor")
        return distributed_type(element_ty, shape, self.check_layout(layout, shape))

    def layout_of_handle(self, handle: Any) -> Layout:
        """Return the layout that the builder inferred for a tensor handle."""
        return self._translated(self.builder.get_gluon_layout_from_tensor(handle))

    def layout_of_memdesc(self, handle: Any) -> Layout:
        """Return the layout that the builder inferred for a shared-memory handle."""
        return self._translated(self.builder.get_gluon_layout_from_memdesc(handle))

    def _translated(self, inferred: Any) -> Layout:
        layout: Layout = self.session.translate_layout(inferred)
        return layout

    def wrap_inferred(self, handle: Any, element_ty: Any, shape: Sequence[int]) -> Any:
        """Return a tensor value whose layout is the one that the builder inferred."""
        if not len(shape):
            return self.make_tensor(handle, element_ty)
        layout = self.layout_of_handle(handle)
        return self.make_tensor(handle, distributed_type(element_ty, shape, layout))

    def warn(self, text: str) -> None:
        """Warn at the line that is being traced: legal, and hardly meant."""
        file, line = self.place()
        self.session.warnings.append((text, file, line))
        _triton.warn_once(text, KernelWarning, file, line)

    def pass_on(self, error: GluonError) -> None:
        """Warn of a refused use in a kernel that is not strict; see `errors.refuse`.

        Raises:
            GluonError: `error`, where a model of the hardware runs the kernel instead of its machine code.
        """
        modelled = hasattr(
            self.builder, "get_layout"
        )  # no compiler's builder takes layouts as they are
        if modelled:
            error.remedy = (
                f"{error.remedy or ''} With strict=False it compiles for hardware; the simulator does not "
                "run it, since the manuals give it no meaning."
            ).strip()
            raise error
        text = without_addresses(str(error)).rstrip(".")
        self.warn(f"{text}. It is compiled all the same: strict is False.")

    def check_assembler(self, subject: str, capability: str, instead: str) -> None:
        """Check a `capability` that the target's assembler needs and the compiler does not: a target without
        it lets the module be traced, and the error comes with the request for machine code."""
        try:
            self.check_capabilities(subject, (capability,), instead)
        except CapabilityError as error:
            file, line = self.place()
            text = linecache.getline(file, line).rstrip()
            start = len(text) - len(text.lstrip())
            error.span = SourceSpan(file, line, start, len(text), text or None)
            self.session.no_machine_code.append(_triton.caught_as(error))

    def require_op(self, op: str, dtype: Any, remedy: str) -> None:
        """Raise where the target's compiler does not make `gl.op` for a dtype.

        Raises:
            CapabilityError: naming both, and the releases that have it.
        """
        lacking = self.target.architecture.no_ops
        if (op, str(dtype)) in lacking:
            where = lacking[op, str(dtype)]
            if where is None or not _triton.has(where):
                but = f", but with {where.releases}" if where is not None else ""
                raise CapabilityError(
                    f"no gl.{op} of {dtype} on {self.target}{but}", got=dtype, remedy=remedy
                )

    # -- operands -----------------------------------------------------------------------------

    def require_tensor(self, value: Any, argument: str, rank: Optional[int] = None) -> Any:
        """`value` if it is a tensor of the kernel (of `rank`, if given)."""
        if not isinstance(value, tl.tensor):
            raise DtypeError(
                "not a tensor of the kernel",
                argument=argument,
                expected="a tensor",
                got=describe(value),
            )
        if rank is not None and len(value.shape) != rank:
            raise ShapeError(
                "wrong rank", argument=argument, expected=f"rank {rank}", got=describe(value)
            )
        return value

    def require_value(self, value: Any, argument: str) -> Any:
        """`value`, a tensor or a number, as a tensor of the kernel."""
        value = unwrap(value)
        if isinstance(value, (tl.tensor, bool, int, float)):
            return self.to_tensor(value)
        raise DtypeError("not a number", argument=argument, got=describe(value))

    def require_distributed(self, value: Any, argument: str) -> Any:
        """`value` if it is a tensor with a shape and a layout."""
        self.require_tensor(value, argument)
        if not isinstance(value.type, distributed_type):
            raise ShapeError(
                "a scalar has no layout",
                argument=argument,
                expected="a tensor",
                got=describe(value),
            )
        return value


def is_placeholder(layout: Any) -> bool:
    """Return True if a layout stands for one that the compiler chooses later."""
    return isinstance(layout, (AutoLayout, CoalescedLayout))


def shape_of(value: Any) -> list[int]:
    """Shape of a tensor value as Python ints; [] for a scalar."""
    return [int(unwrap(s)) for s in value.shape]
