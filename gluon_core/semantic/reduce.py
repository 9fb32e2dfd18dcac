"""Reductions, scans, gathers, histograms: ops with an axis."""

from __future__ import annotations

import re
from typing import Any, Sequence

from gluon_core import _triton
from gluon_core._triton import tl, unwrap
from gluon_core._triton.capture import refused
from gluon_core.errors import DtypeError, LayoutError, ShapeError
from gluon_core.features import CLUSTERED_HISTOGRAMS, CLUSTERED_REDUCTIONS, CLUSTERED_SCANS
from gluon_core.layouts import DistributedLinearLayout, SliceLayout
from gluon_core.layouts.linear import split_over_blocks
from gluon_core.semantic.base import SemanticBase, is_placeholder, shape_of
from gluon_core.semantic.operands import compile_time_int, wrap_axis
from gluon_core.values import distributed_type

__all__ = ["ReduceOps"]


_SHARE = "Give it a layout whose blocks hold all of it, or go through global memory."
_CONVERT = "Convert the tensor to a BlockedLayout first, with gl.convert_layout."


def _check_bits(layout: Any, shape: Sequence[int], axis: int) -> None:
    """Refuse layouts on which compilers abort or fail: steps of several bits along the axis."""
    if is_placeholder(layout):
        return
    rows = [row for rows in layout.to_linear(list(shape)).bases.values() for row in rows]
    several = [row for row in rows if row[axis] & (row[axis] - 1)]
    root = layout
    while isinstance(root, SliceLayout):
        root = root.parent
    if root is not layout and isinstance(root, DistributedLinearLayout):  # dimensions cut off count
        every = root.reg_bases + root.lane_bases + root.warp_bases + root.block_bases
        several += [row for row in every if any(v & (v - 1) for v in row)]
    if several:
        raise LayoutError(
            "no Triton reduces along a dimension in which a basis moves along several bits",
            argument="input",
            expected=f"zeros and powers of two in dimension {axis}",
            got=several[0],
            remedy=_CONVERT,
        )


class ReduceOps(SemanticBase):
    @staticmethod
    def require_reductions_of_blocks(subject: str, remedy: str) -> None:
        """Raise where the installed Triton does not reduce across the blocks of a cluster."""
        _triton.require(CLUSTERED_REDUCTIONS, subject, remedy)

    def _same_shapes(self, inputs: Sequence[Any], subject: str) -> list[Any]:
        """Return the inputs, all distributed, with one shape and one layout."""
        values = [self.require_distributed(value, "input") for value in inputs]
        shape = shape_of(values[0])
        for value in values[1:]:
            if shape_of(value) != shape:
                raise ShapeError(
                    f"all inputs of a {subject} must have one shape",
                    argument="input",
                    expected=shape,
                    got=shape_of(value),
                )
        # Two passes: the first definite layout must reach inputs that came before it.
        for _ in range(2):
            for i in range(1, len(values)):
                values[0], values[i] = self.unify_layouts(values[0], values[i])
        return values

    def reduction(
        self, inputs: Sequence[Any], axis: Any, region_builder_fn: Any
    ) -> tuple[Any, ...]:
        if unwrap(axis) is None:
            inputs = [self.reshape(t, [_numel(t)]) for t in inputs]
            axis = 0
        values = self._same_shapes(inputs, "reduction")
        shape, layout = shape_of(values[0]), values[0].type.layout
        axis = wrap_axis(axis, len(shape))
        _check_bits(layout, shape, axis)
        if not is_placeholder(layout):
            self.check_blocks(
                lambda: split_over_blocks(layout.to_linear(shape), axis),
                "the reduction", "axis", f"{axis} of {layout}",
            )  # fmt: skip
            if not _triton.has(CLUSTERED_REDUCTIONS) and axis in self._split_dims(layout, shape):
                _triton.require(
                    CLUSTERED_REDUCTIONS,
                    f"a reduction along dimension {axis}, which the blocks of a cluster share,",
                    _SHARE,
                )
        rest = shape[:axis] + shape[axis + 1 :]
        if rest:
            kept = layout if is_placeholder(layout) else SliceLayout(axis, layout)
            if isinstance(kept, SliceLayout):
                kept.check_compiler()  # before the op is made, which aborts
        op = self.builder.create_reduce([value.handle for value in values], axis)
        region_builder_fn(op)
        self._verify(op, "the combine function of the reduction")
        results = []
        for i, value in enumerate(values):
            scalar = value.type.scalar
            result_type = distributed_type(scalar, rest, kept) if rest else scalar
            results.append(self.make_tensor(op.get_result(i), result_type))
        return tuple(results)

    def associative_scan(
        self, inputs: Sequence[Any], axis: Any, region_builder_fn: Any, reverse: Any
    ) -> tuple[Any, ...]:
        values = self._same_shapes(inputs, "scan")
        shape, layout = shape_of(values[0]), values[0].type.layout
        axis = wrap_axis(axis, len(shape))
        split = self._split_dims(layout, shape)
        if axis in split:
            raise LayoutError(
                f"no Triton scans along a dimension that the blocks of a cluster share: {axis}",
                argument="axis",
                expected="a layout whose cga_layout is 0 there",
                got=repr(layout),
                remedy=_SHARE,
            )
        if split and not _triton.has(CLUSTERED_SCANS):
            subject = "a scan of a tensor that the blocks of a cluster share"
            _triton.require(CLUSTERED_SCANS, subject, _SHARE)
        op = self.builder.create_scan(
            [value.handle for value in values], axis, bool(unwrap(reverse))
        )
        region_builder_fn(op)
        self._verify(op, "the combine function of the scan")
        return tuple(
            self.make_tensor(op.get_result(i), value.type) for i, value in enumerate(values)
        )

    def _split_dims(self, layout: Any, shape: Sequence[int]) -> list[int]:
        """Return the dimensions along which some block of a cluster lacks elements."""
        if self.num_ctas == 1 or is_placeholder(layout):
            return []
        linear = layout.to_linear(list(shape))
        return [dim for dim in range(len(shape)) if split_over_blocks(linear, dim)]

    @staticmethod
    def _verify(op: Any, subject: str) -> None:
        output = refused(op)
        if output is not None and "layout" in _first_error(output):
            raise LayoutError(
                f"the installed Triton has no {subject.rpartition(' ')[2]} in this layout",
                argument="input",
                got=_first_error(output),
                remedy=_CONVERT,
            )
        if output is not None:
            raise DtypeError(
                f"{subject} does not return the types it takes",
                argument="combine_fn",
                got=_first_error(output),
                remedy="It must return one value per input, each of the input's dtype.",
            )

    def gather(self, src: Any, index: Any, axis: Any) -> Any:
        src = self.require_distributed(src, "src")
        index = self.require_distributed(index, "index")
        if not index.dtype.is_int():
            raise DtypeError("must be integers", argument="index", got=index.dtype)
        self._check_gathered(src, index)
        source, wanted = shape_of(src), shape_of(index)
        if len(source) != len(wanted):
            raise ShapeError(
                "src and index must have one rank",
                argument="index",
                expected=len(source),
                got=len(wanted),
            )
        axis = wrap_axis(axis, len(source))
        for dim, (have, want) in enumerate(zip(source, wanted)):
            if dim != axis and have != want:
                raise ShapeError(
                    f"dimension {dim} must be that of src",
                    argument="index",
                    expected=source,
                    got=wanted,
                )
        if axis in self._split_dims(src.type.layout, source):
            self.warn(
                f"gl.gather along dimension {axis}, which the blocks of a cluster share: each block "
                "finds its own elements, and arbitrary bytes in place of those of the others. "
                + _SHARE
            )
        handle = self.builder.create_gather(src.handle, index.handle, axis)
        return self.make_tensor(
            handle, distributed_type(src.type.scalar, wanted, index.type.layout)
        )

    def _check_gathered(self, src: Any, index: Any) -> None:
        for argument, value in (("src", src), ("index", index)):
            if is_placeholder(value.type.layout):
                raise LayoutError(
                    "the compiler cannot infer the layout of the gathered tensor",
                    argument=argument,
                    expected="a tensor with a layout",
                    got=repr(value.type.layout),
                    remedy="Give it a layout, use gl.set_auto_layout, or mark the kernel layouts='auto'.",
                )

    def histogram(self, input: Any, num_bins: Any, mask: Any = None, layout: Any = None) -> Any:
        input = self.require_distributed(input, "input")
        num_bins = compile_time_int(num_bins, "num_bins", 1)
        if num_bins & (num_bins - 1):
            raise ShapeError(
                "the number of bins must be a power of two",
                argument="num_bins",
                got=num_bins,
                remedy=f"Round up to {1 << num_bins.bit_length()}.",
            )
        if len(input.shape) != 1:
            raise ShapeError("histogram takes one dimension", argument="input", got=shape_of(input))
        if not input.dtype.is_int():
            raise DtypeError("histogram takes integers", argument="input", got=input.dtype)
        if input.dtype.primitive_bitwidth != 32:
            raise DtypeError(
                "histogram takes integers of 32 bits",
                argument="input",
                got=input.dtype,
                remedy="Convert them: x.to(gl.int32).",
            )
        if unwrap(layout) is None:
            raise LayoutError(
                "histogram needs the layout of its result",
                argument="layout",
                expected=f"a layout of [{num_bins}]",
                remedy=f"Pass one, such as gl.histogram(x, {num_bins}, layout=gl.AutoLayout()).",
            )
        layout = self.check_layout(layout, [num_bins])
        mask = unwrap(mask)
        if mask is not None:
            mask, input = self.broadcast_impl_value(self.to_tensor(mask), input)
            if not mask.type.scalar.is_bool():
                raise DtypeError("must be boolean", argument="mask", got=mask.dtype)
        if not _triton.has(CLUSTERED_HISTOGRAMS) and self._split_dims(
            input.type.layout, shape_of(input)
        ):
            self.warn(
                "gl.histogram of a tensor that the blocks of a cluster share: without "
                f"{CLUSTERED_HISTOGRAMS.releases} each block counts its own elements. {_SHARE}"
            )
        result_type = distributed_type(tl.int32, [num_bins], layout)
        handle = self.builder.create_histogram(
            input.handle,
            num_bins,
            None if mask is None else mask.handle,
            layout._to_ir(self.builder),
        )
        return self.make_tensor(handle, result_type)

    def dot_fma(self, a: Any, b: Any, acc: Any) -> Any:
        """Compute `a @ b + acc` with fused multiply-adds; see `gl.dot_fma`."""
        for name, value in (("a", a), ("b", b), ("acc", acc)):
            self.require_distributed(value, name)
        (m, k), (k2, n) = _matrix(a, "a"), _matrix(b, "b")
        if k != k2 or shape_of(acc)[-2:] != [m, n]:
            raise ShapeError(
                "the shapes do not multiply",
                expected="a [M, K], b [K, N], acc [M, N]",
                got=f"{shape_of(a)}, {shape_of(b)}, {shape_of(acc)}",
            )
        if not a.dtype == b.dtype == acc.dtype:
            raise DtypeError(
                "dot_fma takes one dtype for a, b and acc",
                expected=acc.dtype,
                got=f"{a.dtype}, {b.dtype}",
            )
        self.require_op("dot_fma", acc.dtype, "Convert the operands: x.to(gl.float32).")
        self.check_dot_operands(a, b, acc)
        # Neither means anything to fused multiply-adds; IR agrees with Triton's own, text and all.
        get_zero = {tl.float16: "get_fp16", tl.float64: "get_fp64"}.get(acc.dtype, "get_fp32")
        getattr(self.builder, get_zero)(0)
        precision = self.options.default_dot_input_precision
        handle = self.builder.create_dot(
            a.handle, b.handle, acc.handle, self._str_to_dot_input_precision(precision), 0
        )
        return self.make_tensor(handle, acc.type)

    def check_dot_operands(self, a: Any, b: Any, acc: Any) -> None:
        """Raise unless `a` and `b` have the DotOperandLayouts of `acc`'s layout."""
        from gluon_core.layouts import DotOperandLayout

        for index, (name, value) in enumerate((("a", a), ("b", b))):
            layout = value.type.layout
            if (
                not isinstance(layout, DotOperandLayout)
                or layout.operand_index != index
                or layout.parent != acc.type.layout
            ):
                raise LayoutError(
                    "not the operand layout of the accumulator",
                    argument=name,
                    expected=f"DotOperandLayout({index}, {acc.type.layout}, ...)",
                    got=repr(layout),
                    remedy="convert_layout the operand first.",
                )


def _first_error(output: str) -> Any:
    """Return the sentence of a diagnostic."""
    match = re.search(r"error: (?:'[\w.]+' op )?(.*)", output)
    return match.group(1) if match else None


def _numel(value: Any) -> int:
    total = 1
    for size in shape_of(value):
        total *= size
    return total


def _matrix(value: Any, name: str) -> tuple[int, int]:
    shape = shape_of(value)
    if len(shape) < 2:
        raise ShapeError("must be a matrix", argument=name, expected="rank 2 or 3", got=shape)
    return shape[-2], shape[-1]
