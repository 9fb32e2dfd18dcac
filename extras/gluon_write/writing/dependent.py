"""Let a kernel in partitions begin while the kernel in front of it in the stream ends.

    @gluon.jit
    def matmul_copies(tiles, a, M, K, BM: gl.constexpr, BK: gl.constexpr):
        # The kernel in front may still run; the one behind may begin.
        gl.inline_asm_elementwise("griddepcontrol.wait; griddepcontrol.launch_dependents; mov.b32 $0, $1;", ...)
        a_tiles = gl.portable.descriptor(a, [M, K], [K, 1], [BM, BK])

Launched with `launch_pdl`, a block is placed as soon as all blocks of the kernel in front have ended or allow it. Barriers are set up and
partitions begin meanwhile; each partition waits until that kernel has ended and its stores are visible (PTX ISA 9.7.13.13,
griddepcontrol). Descriptors that a kernel makes are memory that the kernel in front may use, so that the wait comes first.
Then it allows the next kernel, which waits for this one. Kernels that are launched without `launch_pdl`, such as those of other libraries,
keep the order of the stream on both sides.

Kernels without partitions wait at their beginning, and allow nothing: blocks of the next one would share a multiprocessor before all
others have one. On an H200 a GEMM of 512 took 3.1 us for 3.5, a convolution 4.5 for 4.8; one of 256x4096x4096, which allowed the next,
19.0 for 17.5.

A GEMM of 2048 takes 27.5 us for 28.0 on an H200. A wait behind the part of a description that is in shared memory takes as long.
"""

from __future__ import annotations

import ast
import re
from typing import Any, Iterable

from gluon_core import language
from gluon_sim.tracing.ir import Function, Op
from gluon_sim.tracing.live import live_ops
from gluon_sim.tracing.types import DescriptorType, PointerType
from gluon_write.text.form import Form, rewritten
from gluon_write.text.syntax import is_docstring
from gluon_write.tracing.sketch import Sketch, partition_of, place_of
from gluon_write.tracing.tracer import Tracer
from gluon_write.writing.edits import partitions_of, space_of

__all__ = ["awaiting", "waits"]

_INSTRUCTION = "griddepcontrol"
_WAIT = f"{_INSTRUCTION}.wait;"
_TEXT = f"{_WAIT} {_INSTRUCTION}.launch_dependents;"
#: Ops that only compute addresses.
_ADDRESSES = frozenset(
    "addptr splat broadcast expand_dims reshape trans convert_layout select bitcast".split()
)
_PRODUCTS = ("portable.mma", "warpgroup_mma")
_COPIES = re.compile(r"\.(pipeline|async_load)\(")
_PURE = 3  # the argument of inline assembly that says so


def waits(jits: Iterable[Any]) -> bool:
    """Return True if one of these functions waits for the kernel in front, or allows the next one."""
    return any(_INSTRUCTION in jit.src for jit in jits)


def awaiting(fn: Any, drawn: Sketch, traced: Tracer) -> tuple[Any, Sketch]:
    """Return a kernel whose partitions wait for the kernel in front of it, and its trace; the kernel itself without partitions,
    and without a loop of one product whose tiles are copied ahead.

    The whole kernel waits where anything in front of its partitions accesses global memory.
    """
    options = traced.options
    asked = options.launch_pdl if traced.has("nvidia.gdc") else True
    if asked or options.launch_cooperative_grid or waits(drawn.jits):
        return fn, drawn
    if not drawn.warps and not (traced.has("nvidia.wgmma") and _copies_for_one_product(drawn)):
        return fn, drawn
    waiting = drawn.warps and _partitions(drawn) or {0}
    spaces = {number: space_of(drawn.jits[number].get_capture_scope()) for number in waiting}
    if None in spaces.values():
        return fn, drawn
    text = _TEXT if drawn.warps else _WAIT
    written = rewritten(
        fn, drawn.jits, lambda jit, n: _waiting(jit, str(spaces[n]), text) if n in waiting else None
    )
    return written, traced(written)


def _copies_for_one_product(drawn: Sketch) -> bool:
    """Return True for a kernel with one product, in a loop whose tiles are copied ahead."""
    products = [name for name in drawn.functions.values() if name.endswith(_PRODUCTS)]
    return len(products) == 1 and any(_COPIES.search(jit.src) for jit in drawn.jits)


def _waiting(jit: Any, space: str, text: str) -> str:
    """Return the text of a function that waits first, and then allows the next kernel where `text` does."""
    form = Form(jit)
    first = next(s for s in form.tree.body if not is_docstring(s))
    begins = "; the one behind may begin" if text == _TEXT else ""
    lines = [
        f"# The kernel in front may still run{begins}.",
        f'{space}.inline_asm_elementwise("{text} mov.b32 $0, $1;", "=r,r", [0], {space}.int32, False, 1)',
    ]
    indent, place = b" " * first.col_offset, first.lineno - 1
    form.encoded[place:place] = [indent + line.encode() for line in lines]
    return b"\n".join(form.encoded).decode()


def _partitions(drawn: Sketch) -> set[int]:
    """Return the numbers of the functions of a kernel's partitions; none where the kernel accesses memory before, or parts twice."""
    kernel = Form(drawn.jits[0])
    statements = [getattr(s, "value", None) for s in kernel.tree.body]
    parting = [s for s in statements if kernel.called(s) is language.warp_specialize]
    place = place_of(parting[0], 0) if len(parting) == 1 else None
    if place is None or not isinstance(parting[0], ast.Call):
        return set()
    listed = [drawn.called.get(partition_of(place, i)) for i, _ in partitions_of(parting[0])]
    if len(drawn.warps) != len(listed) - 1 or _accesses(drawn):
        return set()
    return {number for number, jit in enumerate(drawn.jits) if any(jit is one for one in listed)}


def _accesses(drawn: Sketch) -> bool:
    """Return True if a kernel accesses global memory, or could, in front of its partitions."""
    live = {id(op) for op in live_ops(drawn.program)}
    for block in drawn.program.kernel.body.blocks:
        for op in block.ops:
            if op.name == "warp_specialize":
                return False
            if id(op) in live and _touches(op):
                return True
    return True


def _touches(op: Op) -> bool:
    """Return True if an op, or one that it runs, could access global memory."""
    inner = [block for region in op.regions for block in region.blocks]
    if op.name == "call":
        inner += [b for f in op.args if isinstance(f, Function) for b in f.body.blocks]
    if any(_touches(other) for block in inner for other in block.ops):
        return True
    if op.name == "inline_asm":
        return not op.args[_PURE]
    if op.name == "call" or op.name in _ADDRESSES:
        return False
    kinds = [value.type for value in op.operands()]
    return any(
        isinstance(kind, DescriptorType) or isinstance(kind.element, PointerType) for kind in kinds
    )
