"""Whole programs that run on a GPU and say what it computes: the evidence for rows of `differences`.

A probe is a source as `tests.frontend.oracle` takes them that also defines `run(torch, device)`, which launches the kernel and
returns (what the GPU computed, what the program says); both are compared element by element. `ARGS` lets the
program be compiled where there is no GPU.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Optional

__all__ = ["PROBES", "Probe"]


@dataclass(frozen=True)
class Probe:
    """One program.

    Args:
        title: of the row in `differences` that it is evidence for; empty where both sides accept it and
            the GPU must compute it right.
        source: the program.
        last: the last release (major, minor) of Triton that compiles it.
    """

    title: str
    source: str
    last: Optional[tuple[int, int]] = None


_TMA = """\
import importlib
import torch as _torch
host = importlib.import_module(gluon.__name__ + ".nvidia.hopper")
hopper = gl.nvidia.hopper
tma, mbarrier = hopper.tma, hopper.mbarrier
load = getattr(tma, "async_load", None) or tma.async_copy_global_to_shared
copy_out = getattr(tma, "async_store", None) or tma.async_copy_shared_to_global
def described(tensor, box, layout):
    return host.TensorDescriptor(tensor, list(tensor.shape), list(tensor.stride()), box, layout)
"""
_WGMMA = """\
import torch as _torch
hopper = gl.nvidia.hopper
"""


def _held(layout: str, shape: list[int]) -> str:
    """Load, convert, reduce and store in a layout."""
    rank = len(shape)
    size = math.prod(shape)
    lanes = {2: "[4, 8]", 3: "[1, 4, 8]"}[rank]
    warps = {2: "[4, 1]", 3: "[1, 4, 1]"}[rank]
    sums = ""
    for axis in range(rank):
        kept, rest = f"gl.SliceLayout({axis}, B)", [n for d, n in enumerate(shape) if d != axis]
        total = f"gl.convert_layout(gl.sum(gl.load(x + i), {axis}), {kept})"
        sums += f"    gl.store(out + {(2 + axis) * size} + {_at(rest, kept)}, {total})\n"
    return f"""\
@gluon.jit
def kernel(x, out):
    L: gl.constexpr = {layout}
    B: gl.constexpr = gl.BlockedLayout({[1] * rank}, {lanes}, {warps}, {list(range(rank))[::-1]})
    at = {_at(shape, "B")}
    i = gl.convert_layout(at, L)
    gl.store(out + i, gl.load(x + i))
    gl.store(out + {size} + at, gl.convert_layout(gl.load(x + i) + 1, B))
{sums}ARGS = (ptr(gl.float32), ptr(gl.float32))
def run(torch, device):
    x = (torch.randperm({size}) % 97).float().to(device)
    out = torch.full(({(2 + rank) * size},), -1.0, device=device)
    kernel[(1,)](x, out, num_warps=4)
    want = torch.full_like(out, -1.0)
    want[:{size}], want[{size} : {2 * size}] = x, x + 1
    for axis in range({rank}):
        total = x.reshape({shape}).sum(axis).flatten()
        want[(2 + axis) * {size} : (2 + axis) * {size} + total.numel()] = total
    return out, want
"""


def _at(shape: list[int], layout: str) -> str:
    """Offsets of a row-major tensor of `shape` in a layout."""
    parts, stride = [], 1
    for d in reversed(range(len(shape))):
        others = [e for e in range(len(shape)) if e != d]
        line = layout
        for e in reversed(others):
            line = f"gl.SliceLayout({e}, {line})"
        part = f"gl.arange(0, {shape[d]}, {line})"
        for e in others:
            part = f"gl.expand_dims({part}, {e})"
        parts.append(f"{part} * {stride}")
        stride *= shape[d]
    return " + ".join(parts)


_COPIES = "gl.DistributedLinearLayout([[2]], [[2], [1], [4], [0], [0]], [[0], [0]], [], [8])"


def _copies(line: str, want: str) -> str:
    return f"""\
@gluon.jit
def kernel(x, out):
    L: gl.constexpr = {_COPIES}
    B: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
    at = gl.arange(0, 8, B)
    i = gl.arange(0, 8, L)
    {line}
ARGS = (ptr(gl.float32), ptr(gl.float32))
def run(torch, device):
    x, out = torch.arange(1, 9).float().to(device), torch.zeros(8, device=device)
    kernel[(1,)](x, out, num_warps=4)
    return out, {want}
"""


def _tile(body: str, run: str, desc: str = "ptr(gl.float32)", names: str = "desc, out", dtype: str = "float32", head: str = _TMA) -> str:  # fmt: skip
    lines = "".join(f"    {line}\n" for line in body.strip().splitlines())
    runs = "".join(f"    {line}\n" for line in run.strip().splitlines())
    return f"""\
{head}@gluon.jit
def kernel({names}):
    B: gl.constexpr = gl.BlockedLayout([1, 1], [1, 32], [4, 1], [1, 0])
    F: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
{lines}ARGS = ({desc}, ptr(gl.{dtype}))
def run(torch, device):
{runs}"""


_BAR = """\
bar = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
mbarrier.init(bar, count=1)
"""


def _loaded(
    coord: str, box: list[int], layout: str, want: str, dtype: str = "float32", buffer: str = "desc.block_shape",
    nbytes: str = "desc.block_type.nbytes", view: str = "{buffer}", bar: str = _BAR, wait: str = "bar", rank: int = 2,
) -> str:  # fmt: skip
    """A box that TMA loads, stored to `out` as the buffer holds it."""
    shape = "[64, 64]" if rank == 2 else "[4096]"
    body = f"""\
{bar}s = gl.allocate_shared_memory(desc.dtype, {buffer}, {layout})
mbarrier.expect({wait}, {nbytes})
load(desc, {coord}, {wait}, s)
mbarrier.wait({wait}, 0)
y = s.load({"B" if rank == 2 else "F"})
{"gl.store(out + gl.arange(0, y.shape[0], gl.SliceLayout(1, B))[:, None] * y.shape[1] + gl.arange(0, y.shape[1], gl.SliceLayout(0, B))[None, :], y)" if rank == 2 else "gl.store(out + gl.arange(0, y.shape[0], F), y)"}
"""
    run = f"""\
x = torch.arange(4096).to(torch.{dtype}).reshape({shape}).to(device)
out = torch.full(({math.prod(box)},), -1, dtype=torch.{dtype}, device=device)
kernel[(1,)](described(x, {box}, {layout}), out, num_warps=4)
return out, {want}.flatten()
"""
    desc = f"described(_torch.zeros({shape}, dtype=_torch.{dtype}), {box}, {layout})"
    return _tile(body, run, desc, dtype=dtype)


def _nvmma(swizzle: int, bits: int, rank: int = 2, more: str = "") -> str:
    return f"gl.NVMMASharedLayout({swizzle}, {bits}, {rank}{more})"


def _in_kernel(sizes: str, strides: str) -> str:
    """A descriptor that the kernel makes."""
    layout = _nvmma(128, 32)
    body = f"""\
d = tma.make_tensor_descriptor(x, {sizes}, {strides}, [32, 32], {layout})
{_BAR}s = gl.allocate_shared_memory(gl.float32, [32, 32], {layout})
mbarrier.expect(bar, 4096)
load(d, [0, 0], bar, s)
mbarrier.wait(bar, 0)
gl.store(out + {_at([32, 32], "B")}, s.load(B))
"""
    run = f"""\
import triton
triton.set_allocator(lambda size, alignment, stream: torch.empty(size, device=device, dtype=torch.int8))
x = torch.arange(8192, device=device).float()
out = torch.full((32, 32), -1.0, device=device)
kernel[(1,)](x, out, num_warps=4)
(rows, columns), (row, _) = {sizes}, {strides}
want = torch.zeros(32, 32, device=device)
inside = min(rows, 32), min(columns, 32)
want[:inside[0], :inside[1]] = torch.as_strided(x, inside, (row % x.numel(), 1))
return out, want
"""
    return _tile(body, run, names="x, out")


def _product(
    a: str, b: str, low: tuple[int, int], high: tuple[int, int], warps: str = "[4, 1]"
) -> str:
    kinds = {"int8": ("int8", 8, 32), "uint8": ("uint8", 8, 32), "float16": ("float16", 16, 16)}
    _, bits, k = kinds[a]
    acc = "int32" if bits == 8 else "float32"
    lay_a = _nvmma(32, bits)
    lay_b = _nvmma(32, bits, 2, ", transposed=True")
    body = f"""\
A: gl.constexpr = gl.NVMMADistributedLayout([3, 0], {warps}, [16, 32, {k}])
i = gl.arange(0, 64, gl.SliceLayout(1, B))[:, None] * {k} + gl.arange(0, {k}, gl.SliceLayout(0, B))[None, :]
sa = gl.allocate_shared_memory(gl.{a}, [64, {k}], {lay_a}, gl.load(x + i))
j = gl.arange(0, {k}, gl.SliceLayout(1, B))[:, None] * 64 + gl.arange(0, 64, gl.SliceLayout(0, B))[None, :]
sb = gl.allocate_shared_memory(gl.{b}, [{k}, 64], {lay_b}, gl.load(w + j))
hopper.fence_async_shared()
y = hopper.warpgroup_mma(sa, sb, gl.zeros([64, 64], gl.{acc}, A))
o = gl.arange(0, 64, gl.SliceLayout(1, A))[:, None] * 64 + gl.arange(0, 64, gl.SliceLayout(0, A))[None, :]
gl.store(out + o, y)
"""
    lines = "".join(f"    {line}\n" for line in body.splitlines())
    wide = "int32" if bits == 8 else "float32"
    return f"""\
{_WGMMA}@gluon.jit
def kernel(x, w, out):
    B: gl.constexpr = gl.BlockedLayout([1, 1], [1, 32], [4, 1], [1, 0])
{lines}ARGS = (ptr(gl.{a}), ptr(gl.{b}), ptr(gl.{acc}))
def run(torch, device):
    torch.manual_seed(0)
    x = torch.randint({low[0]}, {low[1]}, (64, {k})).to(torch.{a})
    w = torch.randint({high[0]}, {high[1]}, ({k}, 64)).to(torch.{b})
    out = torch.zeros(64, 64, dtype=torch.{acc}, device=device)
    kernel[(1,)](x.to(device), w.to(device), out, num_warps=4)
    return out, (x.to(torch.{wide}) @ w.to(torch.{wide})).to(torch.{acc}).to(device)
"""


_WAIT = f"""\
hopper = gl.nvidia.hopper
@gluon.jit
def kernel(x, out):
    B: gl.constexpr = gl.BlockedLayout([1, 1], [1, 32], [4, 1], [1, 0])
    A: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 8, 16])
    S: gl.constexpr = gl.NVMMASharedLayout(128, 16, 2)
    a = gl.allocate_shared_memory(gl.float16, [64, 256], S, gl.load(x + {_at([64, 256], "B")}))
    b = gl.allocate_shared_memory(
        gl.float16, [256, 8], gl.NVMMASharedLayout(128, 16, 2, transposed=True), gl.load(x + {_at([256, 8], "B")}))
    hopper.fence_async_shared()
    zero = gl.zeros([64, 8], gl.float32, A)
    sums = ()
    for k in gl.static_range(GROUPS):
        sums = sums + (hopper.warpgroup_mma(a, b, zero + k, is_async=True),)
    o = {_at([64, 8], "A")}
    for k in gl.static_range(GROUPS):
        y = hopper.warpgroup_mma_wait(PENDING, deps=[sums[k]])
        gl.store(out + k * 512 + o, y)
        if k == GROUPS - PENDING - 1:
            hopper.warpgroup_mma_wait(0, deps=[sums[GROUPS - 1]])
GROUPS, PENDING = gl.constexpr(20), gl.constexpr(8)
ARGS = (ptr(gl.float16), ptr(gl.float32))
def run(torch, device):
    torch.manual_seed(0)
    x = torch.randint(-3, 4, (64 * 256,)).half().to(device)
    out = torch.zeros(20, 64, 8, device=device)
    kernel[(1,)](x, out, num_warps=4)
    y = x.float().reshape(64, 256) @ x[:2048].float().reshape(256, 8)
    return out, torch.stack([y + k for k in range(20)])
"""


def _barrier(
    body: str, want: str = "torch.ones(128)", dtype: str = "int64", shape: str = "[1]"
) -> str:
    """Threads that a barrier releases, and that then say so."""
    text = (
        f"bar = gl.allocate_shared_memory(gl.{dtype}, {shape}, mbarrier.MBarrierLayout())\n{body}\n"
    )
    text += "gl.store(out + gl.arange(0, 128, F), x + gl.full([128], 0.0, gl.float32, F))"
    run = f"""\
out = torch.zeros(128, device=device)
kernel[(1,)](1.0, out, num_warps=4)
return out, {want}.to(device)
"""
    return _tile(text, run, "1.0", "x, out")


def _shared(view: str, dims: str, order: str) -> str:
    """Three buffers; the second is written by a view that leaves it, the others must stay."""
    other = "gl.allocate_shared_memory(gl.float32, [1024], gl.SwizzledSharedLayout(1, 1, 1, [0]), gl.load(x + i))"
    return f"""\
@gluon.jit
def kernel(x, out):
    F: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
    B: gl.constexpr = gl.BlockedLayout([1, 1], [1, 32], [4, 1], [1, 0])
    i = gl.arange(0, 1024, F)
    before = {other}
    s = gl.allocate_shared_memory(gl.float32, {dims}, gl.SwizzledSharedLayout(1, 1, 1, {order}))
    after = {other}
    {view}
    gl.store(out + i, before.load(F))
    gl.store(out + 1024 + i, after.load(F))
ARGS = (ptr(gl.float32), ptr(gl.float32))
def run(torch, device):
    x = torch.arange(1024).float().to(device)
    out = torch.zeros(2048, device=device)
    kernel[(1,)](x, out, num_warps=4)
    return out, torch.cat([x, x])
"""


_P = "gl.NVMMADistributedLayout([3, 0], {}, {})"
_DOT = "gl.DotOperandLayout({}, {}, {})"
_V3 = _P.format([1, 4, 1], [1, 16, 8])
_V3N = _P.format([1, 4, 1], [1, 16, 8, 16])
_V3B = _P.format([4, 1, 1], [16, 8, 16])
_V3C = _P.format([2, 1, 2], [1, 16, 32])
_ODD = "gl.NVMMADistributedLayout([2, 0], [2, 2], [4, 2])"
_BATCH = "gl.NVMMADistributedLayout([2, 0], [2, 2, 1], [2, 16, 8])"
_SLICED = "gl.SliceLayout({}, {})"

_LINEAR = "`DistributedLinearLayout` in which two places hold one element without a zero basis"
_EXTENT = "A descriptor with a constant extent or stride that it cannot hold"
_ROWS = "A descriptor whose box has rows of less than 16 bytes"
_COORD = "A copy whose last coordinate is a constant between multiples of 16 bytes"
_COUNT = "A barrier that counts further than 2^20 - 1, or a negative number of bytes"
_BYTES = "`warpgroup_mma` of unsigned bytes"
_OTHER = "A copy to a buffer whose tiles, or the width of whose elements, are not those of the copied box"
_WIDTH = "A descriptor of a tensor whose elements are not as wide as those of its layout"

PROBES: dict[str, Probe] = {
    # Layouts that both sides accept.
    "operand of v3, rank 3": Probe("", _held(_DOT.format(0, _V3, 2), [2, 64, 32])),
    "operand of v3, rank 3, warps along the batch": Probe("", _held(_DOT.format(0, _V3B, 1), [4, 32, 16])),
    "operand of v3, rank 3, warps along K": Probe("", _held(_DOT.format(0, _V3C, 4), [4, 32, 64])),
    "operand of v3, rank 3, instruction of 4": Probe("", _held(_DOT.format(0, _V3N, 2), [2, 128, 16])),
    "slice 0 of an operand of v3, rank 3": Probe("", _held(_SLICED.format(0, _DOT.format(0, _V3, 2)), [64, 32])),
    "slice 1 of an operand of v3, rank 3": Probe("", _held(_SLICED.format(1, _DOT.format(0, _V3, 2)), [8, 32])),
    "slice 2 of an operand of v3, rank 3": Probe("", _held(_SLICED.format(2, _DOT.format(0, _V3B, 2)), [8, 64])),
    "operand of a tile of 4 by 2": Probe("", _held(_DOT.format(0, _ODD, 2), [64, 32]), (3, 7)),
    "operand B of a tile of 4 by 2": Probe("", _held(_DOT.format(1, _ODD, 1), [32, 64]), (3, 7)),
    "operand of v3, 2 numbers of no instruction": Probe(
        "", _held(_DOT.format(0, "gl.NVMMADistributedLayout([3, 0], [4, 1], [8, 8])", 2), [64, 32])
    ),
    "accumulator of a batch of 2": Probe("", _held(_BATCH, [4, 32, 16])),
    "operand of a batch of 2": Probe("", _held(_DOT.format(1, _BATCH, 2), [4, 32, 16])),
    # Rows.
    "places with copies: load and store": Probe(_LINEAR, _copies("gl.store(out + i, gl.load(x + i))", "x")),
    "places with copies: convert": Probe(
        _LINEAR, _copies("gl.store(out + at, gl.convert_layout(gl.load(x + i), B))", "x")
    ),
    "places with copies: convert from": Probe(
        _LINEAR, _copies("gl.store(out + i, gl.convert_layout(gl.load(x + at), L))", "x")
    ),
    "places with copies: maximum": Probe(_LINEAR, _copies("gl.store(out, gl.max(gl.load(x + i), 0))", "torch.tensor([8.0] + [0.0] * 7).to(device)")),
    "places with copies: sum": Probe(_LINEAR, _copies("gl.store(out, gl.sum(gl.load(x + i), 0))", "torch.tensor([36.0] + [0.0] * 7).to(device)")),
    "places with copies: atomic": Probe(_LINEAR, _copies("gl.atomic_add(out + i, gl.load(x + i))", "x")),
    "an index beyond a view": Probe(
        "A constant index beyond a multi-buffered view",
        _shared("s.index(2).store(gl.full([128], -1.0, gl.float32, F))", "[2, 128]", "[0]"),
    ),
    "a slice beyond a buffer": Probe(
        "A slice of shared memory that leaves its dimension",
        _shared("s.slice(4, 32, 0).store(gl.full([32, 32], -1.0, gl.float32, B))", "[32, 32]", "[1, 0]"),
    ),
    "an extent of 2^40": Probe(_EXTENT, _in_kernel("[1 << 40, 64]", "[64, 1]")),
    "a stride of 68 bytes": Probe(_EXTENT, _in_kernel("[64, 17]", "[17, 1]")),
    "a stride of 2^40 of one row": Probe("", _in_kernel("[1, 64]", "[1 << 40, 1]")),
    "a stride of 68 bytes of one row": Probe("", _in_kernel("[1, 17]", "[17, 1]")),
    "a box of 8 bytes": Probe(_ROWS, _loaded("[0]", [2], _nvmma(0, 32, 1), "x[:2]", rank=1)),
    "a box of rows of 8 bytes": Probe(_ROWS, _loaded("[0, 0]", [32, 2], _nvmma(0, 32), "x[:32, :2]")),
    "a load at 12 bytes": Probe(_COORD, _loaded("[1, 3]", [32, 32], _nvmma(128, 32), "x[1:33, 3:35]")),
    "a load at 12 bytes, not swizzled": Probe(_COORD, _loaded("[1, 3]", [32, 32], _nvmma(0, 32), "x[1:33, 3:35]")),
    "a load at 4 bytes, one dimension": Probe(_COORD, _loaded("[1]", [128], _nvmma(0, 32, 1), "x[1:129]", rank=1)),
    "a load at 2 bytes": Probe(_COORD, _loaded("[1, 1]", [32, 32], _nvmma(64, 16), "x[1:33, 1:33]", dtype="float16")),
    "a load at 16 bytes": Probe("", _loaded("[1, 4]", [32, 32], _nvmma(128, 32), "x[1:33, 4:36]")),
    "a store at 12 bytes": Probe(
        _COORD,
        _tile(
            f"s = gl.allocate_shared_memory(gl.float32, [32, 32], {_nvmma(128, 32)}, gl.full([32, 32], 1.0, gl.float32, B))\n"
            "hopper.fence_async_shared()\ncopy_out(desc, [1, 3], s)\ntma.store_wait(0)\n",
            f"out = torch.zeros(64, 64, device=device)\nkernel[(1,)](described(out, [32, 32], {_nvmma(128, 32)}), out, num_warps=4)\n"
            "want = torch.zeros_like(out)\nwant[1:33, 3:35] = 1\nreturn out, want\n",
            f"described(_torch.zeros(64, 64), [32, 32], {_nvmma(128, 32)})",
        ),
    ),
    "a barrier of 2^20 + 1": Probe(
        _COUNT,
        _barrier(
            "mbarrier.init(bar, (1 << 20) + 1)\nmbarrier.arrive(bar, count=1)\nmbarrier.wait(bar, 0)",
            "torch.zeros(128)",
        ),
    ),
    "a barrier of -4 bytes": Probe(
        _COUNT,
        _barrier("mbarrier.init(bar, 1)\nmbarrier.expect(bar, -4)\nmbarrier.wait(bar, 0)", "torch.zeros(128)"),
    ),
    "a wait for 8 groups": Probe("", _WAIT),
    "a wait for 12 groups": Probe("", _WAIT.replace("gl.constexpr(8)", "gl.constexpr(12)")),
    "wgmma with warps two by two": Probe(
        "`warpgroup_mma` with warps that are not stacked four high", _product("float16", "float16", (-3, 4), (-3, 4), "[2, 2]")
    ),
    "wgmma with four warps": Probe("", _product("float16", "float16", (-3, 4), (-3, 4))),
    "wgmma of int8 and uint8": Probe(
        _BYTES, _product("int8", "uint8", (-8, 8), (0, 256))
    ),
    "wgmma of uint8 and uint8": Probe(_BYTES, _product("uint8", "uint8", (0, 256), (0, 256))),
    "wgmma of int8 and uint8 below 128": Probe(
        _BYTES, _product("int8", "uint8", (-8, 8), (0, 128))
    ),
    "a buffer of another shape": Probe(_OTHER, _loaded("[0, 0]", [32, 32], _nvmma(128, 32), "x[:32, :32].contiguous()", buffer="[16, 64]")),
    "a copy with one coordinate of two": Probe(
        "A copy with more or fewer coordinates than its descriptor has dimensions",
        _loaded("[0]", [32, 32], _nvmma(128, 32), "x[:32, :32]"),
    ),
    "a layout for narrower elements": Probe(_WIDTH, _loaded("[0, 0]", [32, 64], _nvmma(64, 8), "x[:32, :64]", dtype="float16")),
    "more shared memory than a block has": Probe(
        "An allocation of more shared memory than a block has",
        _tile(
            "s = gl.allocate_shared_memory(gl.float32, [1 << 16], gl.SwizzledSharedLayout(1, 1, 1, [0]))\n"
            "s.store(gl.full([1 << 16], 1.0, gl.float32, F) * x)\ngl.store(out + gl.arange(0, 1 << 16, F), s.load(F))",
            "out = torch.zeros(1 << 16, device=device)\nkernel[(1,)](1.0, out, num_warps=4)\nreturn out, torch.ones_like(out)\n",
            "1.0", "x, out",
        ),
    ),
    "padded fp4 of float32": Probe(
        "`NVMMASharedLayout` with padded fp4 of other elements than bytes, or another swizzle than 128",
        _loaded("[0, 0]", [32, 32], _nvmma(128, 32, 2, ", fp4_padded=True"), "x[:32, :32]", nbytes="4096"),
    ),
    "a barrier of uint64": Probe(
        "",
        _barrier("mbarrier.init(bar, 1)\nmbarrier.arrive(bar, count=1)\nmbarrier.wait(bar, 0)", dtype="uint64"),
    ),
}  # fmt: skip
