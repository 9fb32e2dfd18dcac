"""Kernels of up to three ops on any operands: tensors of any shape, layout and dtype, and values that are no tensors.

The ops are those of `operands`, which expects most of its operands to fit, and a few on top: here most do not.
"""

from __future__ import annotations

import re

from tests.fuzz.draw import Draw
from tests.fuzz.layouts import (
    Setting,
    blocked,
    distributed,
    kernel,
    nvmma_shared,
    padded,
    shared_linear,
    swizzled,
)
from tests.fuzz.operands import FUNCTIONS, GENERAL, KINDS, REST, SHARED

__all__ = ["mixed"]

_SCALARS = ["n", "(3)", "(2.5)", "(0)", "(-1)", "True", "None", "p", "q", "(n > 3)", "(2**40)", "gl.float32", "'text'", "(1, 2)"]  # fmt: skip
_ANY = [*("x", "i", "col", "row") * 3, *_SCALARS]
_TOP = [
    "gl.convert_layout(<any>, <layout>, assert_trivial=<flag>)", "gl.set_auto_layout(<any>, <layout>)",
    "x.reshape(<shape>, can_reorder=True)", "<any>[:, None]", "<any>[None, :]", "<any>[None]", "(<any>, <any>)[<axis>]",
    "gl.to_linear_layout(<layout>, <shape>)", "gl.to_linear_layout(S, <shape>)", "gl.bank_conflicts((<any>).type, s.type)",
    "gl.full(<shape>, <any>, <dtype>, <layout>)", "gl.arange(<start>, <length>, <layout>)", "gl.load(<any>, <any>, <any>)",
    "gl.store(<any>, <any>, <any>)", "gl.atomic_add(<any>, <any>, <any>)", "gl.atomic_cas(<any>, <any>, <any>)",
    "gl.inline_asm_elementwise('mov $0, $1;', <constraints>, [<any>], <dtype>, <flag>, <pack>)",
    "gl.reduce((<any>, <any>), <axis>, <combine>)", "gl.associative_scan((<any>, <any>), <axis>, <combine>)",
    "gl.map_elementwise(<combine>, <any>, <any>, pack=<pack>)", "gl.gather(<any>, <any>, <axis>)",
    "gl.histogram(<any>, <bins>, <any>, <layout>)", "gl.dot_fma(<any>, <any>, <any>)", "gl.join(<any>, <any>)",
    "s.load(<layout>)", "s.store(<any>)", "s.index(<index>)", "s.index(0).load(<layout>)", "s.permute((<order>))",
    "s.reshape(<shape>)", "s.reshape(<shape>).load(<layout>)", "s.slice(<start>, <length>, <axis>).load(<layout>)",
    "s.slice(0, 8, 0).permute((1, 0)).slice(0, 4, 0)", "s._reinterpret(<dtype>, <shape>, S).load(<layout>)",
    "s._keep_alive()", "s.gather(<any>, <axis>)", "s.scatter(<any>, <any>, <axis>)",
    "gl.warp_specialize([(nothing, (<any>, <any>)), (nothing, (<any>, <any>))], [<pack>], [24])",
    "gl.barrier(cluster=<any>)", "gl.static_assert(<any>)", "gl.assume(<any>)", "gl.device_assert(<any>, 'm')",
    *(f"<any> {op} <any>" for op in "+ - * / // % & | ^ << >> < == != and or".split()),
]  # fmt: skip
_BLOCKS = ["if <any>:", "while <any>:", "for k in range(<any>):", "for k in range(<any>, <any>, <any>):"]  # fmt: skip
_TEMPLATES = [*GENERAL, *REST, *SHARED, *_TOP * 3]
_ODD_SHAPES = [[100], [0], [1], [2, 2, 2, 64], [3, 32]]
_BEFORE = f"""{FUNCTIONS}@gluon.jit
def wide(a, b):
    return a.to(gl.float64)
@gluon.jit
def nothing(a, b):
    pass
@gluon.jit
def decided(a, b):
    if a > b:
        return a
    return b
"""


def mixed(d: Draw) -> str:
    """Return a kernel whose operands fit seldom."""
    setting = Setting(d, clusters=False)
    shape = d.shape(d.pick([1, 1, 2, 2, 2, 3, 4]), 10)
    memory = d.shape(d.pick([1, 2, 2, 3]), 10)
    layouts = [
        blocked(d, setting, len(shape)),
        *(distributed(d, setting, len(shape), shape) for _ in "ab"),
    ]
    kinds = {
        **KINDS,
        "any": _ANY,
        "layout": [*layouts, "L", "F", "gl.AutoLayout()", "gl.CoalescedLayout()", "S", "None", "3"],
        "shape": [f"{size}" for size in (shape, memory, shape[::-1], *_ODD_SHAPES)],
        "combine": [*KINDS["combine"], "wide", "nothing", "decided"],
        "axis": [*KINDS["axis"], "3", "-4", "n", "1.5"],
        "index": ["0", "n", "5", "-1", "x"],
        "constraints": ["'=r,r'", "'=f,f'", "'=r'", "'bad'"],
    }
    for kind in ("int", "mask", "float", "tensor"):
        kinds[kind] = [*KINDS[kind], *_ANY]
    lines = [
        f"L: gl.constexpr = {layouts[0]}",
        f"F: gl.constexpr = gl.BlockedLayout([1], [{setting.lanes}], [{setting.warps}], [0])",
    ]
    for name in ("x", "i", "col", "row"):
        size = shape if d.chance(0.97) else d.pick(_ODD_SHAPES)
        lines.append(f"{name} = {_tensor(d, kinds, size)}")
    lines.append("one = 1")
    ops = [d.fill(d.pick(_TEMPLATES), kinds) for _ in range(d.pick([1, 1, 2, 3]))]
    if re.search(r"\b[sb]\.|\bS\b", " ".join(ops)):
        shared = d.pick([swizzled, padded, shared_linear, nvmma_shared])(d, setting, memory, 32)
        plain = f"gl.SwizzledSharedLayout(1, 1, 1, {list(range(len(memory)))})"
        lines.append(f"S: gl.constexpr = {plain if d.chance(0.7) else shared}")
        lines.append(f"s = gl.allocate_shared_memory(<dtype>, {memory}, S)")
        lines[-1] = d.fill(lines[-1], kinds)
        lines.append("b = s")
    if d.chance(0.08):
        block = d.fill(d.pick(_BLOCKS), kinds)
        ops = [block, *(f"    x = {op}" for op in ops)]
    else:
        ops = [f"x = {op}" for op in ops]
    source = kernel([*lines, *ops], setting.end(), _BEFORE)
    return source.replace("def kernel(p, q, h, n):", "def kernel(p, q, h, n, f=2.5, w=None):")


def _tensor(d: Draw, kinds: dict[str, list[str]], shape: list[int]) -> str:
    value = d.pick(["1", "1", "n", "2.5", "0", "True"])
    return d.fill(
        d.pick(
            [f"gl.full({shape}, 1, gl.float32, L).to(<dtype>)", f"gl.full({shape}, {value}, <dtype>, L)",
             f"gl.zeros({shape}, <dtype>, L)", f"gl.zeros({shape}, gl.int32, L) + p", f"gl.zeros({shape}, gl.int32, L)",
             f"gl.zeros({shape}, gl.int32, L) + q", f"gl.zeros({shape}, gl.int32, L) < n", f"gl.full({shape}, 1, <dtype>)",
             d.pick(_SCALARS)]
        ),
        kinds,
    )  # fmt: skip
