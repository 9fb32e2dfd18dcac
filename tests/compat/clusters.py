"""Reductions, scans, gathers, histograms and conversions of tensors that the blocks of a cluster share."""

from __future__ import annotations

from typing import Callable

from tests.compat.hardware import _chance, _right
from tests.fuzz.draw import Draw
from tests.fuzz.layouts import RELEASE, Setting, blocked, distributed, kernel

__all__ = ["FAMILIES"]

_FUNCTIONS = """@gluon.jit
def larger(a, b):
    return gl.maximum(a, b)
@gluon.jit
def pairs(a, b, c, d):
    return gl.maximum(a, c), b + d
"""


class _Cluster(Setting):
    """A target with clusters, most often of several blocks."""

    def __init__(self, d: Draw):
        super().__init__(d, d.pick(["cuda", "cuda", "hip"]) if RELEASE >= (3, 7) else "cuda", False)
        self.arch, self.lanes = d.pick([90, 90, 100]), 32
        end = f'GPUTarget("cuda", {self.arch}, 32)'
        if "hip" in self.target:
            self.arch, end = "gfx1250", 'GPUTarget("hip", "gfx1250", 32)'
        self.target, self.ctas = end, d.pick([2, 2, 4, 1])
        more = f", num_ctas={self.ctas}" if self.ctas > 1 else ""
        self.kwargs = f"dict(num_warps={self.warps}{more})"


def _axis(d: Draw, rank: int) -> str:
    right = d.pick([*range(rank), -1])
    return _right(d, str(right), ["None", str(rank), "n", "True"], 0.95)


def _gathered(d: Draw, s: _Cluster, rank: int, shape: list[int]) -> list[str]:
    axis = _axis(d, rank)
    other = list(shape)
    if axis.lstrip("-").isdigit() and int(axis) < rank:
        other[int(axis)] = d.pick([shape[int(axis)], 8, 32])
    layout = d.pick(["L", distributed(d, s, rank, other), blocked(d, s, rank)])
    return [
        f"G: gl.constexpr = {layout}",
        f"at = gl.full({other}, 0, gl.{_right(d, d.pick(['int32', 'int64', 'int16']), ['float32'], 0.97)}, G)",
        f"y = gl.gather({_right(d, 'x', ['i', 'p'], 0.96)}, at, {axis})",
    ]


def _counted(d: Draw, s: _Cluster) -> list[str]:
    bins = _right(d, str(d.pick([16, 32, 128])), ["3", "1", "n"], 0.96)
    mask = d.pick(["", "", ", mask=i > 2", ", mask=i", ", mask=n > 2"])
    more = f", layout={blocked(d, s, 1)}" if d.chance(0.5) else ""
    return [
        f"y = gl.histogram({_right(d, 'i', ['x', 'i.to(gl.int64)'], 0.96)}, {bins}{mask}{more})"
    ]


def _steps(d: Draw, s: _Cluster, rank: int, shape: list[int]) -> list[str]:
    """Lines that give `y`."""
    kinds = [
        "reduce",
        "reduce",
        "reduce",
        "scan",
        "scan",
        "gather",
        "gather",
        "convert",
        "shape",
        "sort",
    ]
    kind = d.pick(kinds + (["histogram"] * 4 if rank == 1 else []))
    axis, of = (
        _axis(d, rank),
        d.pick(["x", "x", "i", "x.to(gl.float16)", "i.to(gl.int64)", "i > 2"]),
    )
    keep = d.pick(["", "", ", keep_dims=True"])
    back = d.pick(["", "", ", reverse=True", ", reverse=n"] if d.chance(0.3) else [""])
    if kind == "gather":
        return _gathered(d, s, rank, shape)
    if kind == "histogram":
        return _counted(d, s)
    if kind == "reduce":
        call = d.pick([
            f"gl.sum({of}, {axis}{keep})", f"gl.max({of}, {axis}{keep})", f"gl.min({of}, {axis})",
            f"gl.max(x, {axis}, return_indices=True{keep})", f"gl.reduce(x, {axis}, larger{keep})",
            f"gl.reduce((x, i), {axis}, pairs{keep})", f"x.argmax({axis})", f"gl.xor_sum(i, {axis})",
            f"gl.sum({of})", f"x.softmax({axis})",
        ])  # fmt: skip
    elif kind == "scan":
        call = d.pick([f"gl.cumsum({of}, {axis}{back})", f"gl.cumprod(x, {axis}{back})",
                       f"gl.associative_scan(x, {axis}, larger{back})", f"gl.associative_scan((x, i), {axis}, pairs{back})"])  # fmt: skip
    elif kind == "convert":
        call = f"gl.convert_layout({of}, {d.pick([distributed, lambda *a: blocked(*a[:3])])(d, s, rank, shape)})"
    elif kind == "sort":
        call = d.pick([f"x.sort({axis})", f"x.flip({axis})", "gl.ravel(x)", "x.sort()"])
    else:
        new = d.parts(_product(shape), d.pick([1, 2, 3]))
        call = d.pick([f"gl.reshape({of}, {new})", f"gl.expand_dims({of}, {axis})", f"gl.permute(x, {d.order(rank)})",
                       "gl.split(gl.join(x, x))", f"gl.join(x, {_right(d, 'x', ['i', 'n'], 0.9)})"])  # fmt: skip
    return [f"y = {call}"]


def _product(shape: list[int]) -> int:
    product = 1
    for size in shape:
        product *= size
    return product


_SINK = """@gluon.jit
def sink(p, y):
    if isinstance(y, gl.tuple):
        for k in gl.static_range(len(y)):
            sink(p, y[k])
    elif y.type.is_block():
        gl.store(p + gl.full(y.shape, 0, gl.int32, y.type.layout), y.to(gl.float32))
    else:
        gl.store(p, y.to(gl.float32))
"""


def shared_by_blocks(d: Draw) -> str:
    """An op with an axis, or one that moves elements, on a tensor of a cluster."""
    s = _Cluster(d)
    rank = d.pick([1, 1, 2, 2, 2, 3])
    shape = d.parts(1 << d.random.randint(6, 11), rank)
    layout = blocked(d, s, rank) if _chance(d, 0.6) else distributed(d, s, rank, shape)
    body = [
        f"L: gl.constexpr = {layout}",
        f"i = gl.full({shape}, 0, gl.int32, L) + n",
        "x = gl.load(p + i)",
        *_steps(d, s, rank, shape),
        "sink(p, y)",
    ]
    return kernel(body, s.end(), _SINK + _FUNCTIONS)


FAMILIES: dict[str, Callable[[Draw], str]] = {"clusters": shared_by_blocks}
