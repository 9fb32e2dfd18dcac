"""Random operands of the ops of NVIDIA's copy engine and barriers, as whole kernels.

Most operands of a kernel are right, so that each refusal has one reason; whatever an
op gives is stored, so that no compiler drops it.
"""

from __future__ import annotations

from typing import Any, Callable

from gluon_core.testing import TRITON_VERSION
from tests.fuzz.draw import Draw
from tests.fuzz.layouts import CUDA

__all__ = ["FAMILIES"]

RELEASE = TRITON_VERSION[:2]
_HEAD = """\
import importlib
host = importlib.import_module(gluon.__name__ + ".nvidia.hopper")
hopper, blackwell, ampere = gl.nvidia.hopper, gl.nvidia.blackwell, gl.nvidia.ampere
tma, mbarrier, async_copy = hopper.tma, hopper.mbarrier, ampere.async_copy
load = getattr(tma, "async_load", None) or tma.async_copy_global_to_shared
store = getattr(tma, "async_store", None) or tma.async_copy_shared_to_global
"""
BITS = {
    "float16": 16, "bfloat16": 16, "float32": 32, "int32": 32, "uint32": 32, "int8": 8, "uint8": 8,
    "int64": 64, "uint64": 64, "int16": 16, "float64": 64, "float8e5": 8, "float8e4nv": 8,
}  # fmt: skip
_MOST_BYTES = 1 << 16
_PRED = ["n > 2", "n", "1", "0", "False", "None", "n.to(gl.int8)", "2.5", "x > 2", "x"]


def _chance(d: Draw, p: float) -> bool:
    """Return True if an operand is to be right: with this probability, and a higher one after the first fault."""
    ok = d.chance(1 - (1 - p) * (0.15 if d.faults else 1))
    d.faults += not ok
    return ok


def _right(d: Draw, right: str, others: list[str], p: float = 0.88) -> str:
    return right if _chance(d, p) else d.pick(others)


def _more(d: Draw, name: str, values: list[str], p: float = 0.2) -> str:
    """A keyword argument, seldom."""
    return f", {name}={d.pick(values)}" if not _chance(d, 1 - p) else ""


def _source(body: list[str], args: str, names: str, end: str) -> str:
    lines = "".join(f"    {line}\n" for line in body)
    return f"{_HEAD}@gluon.jit\ndef kernel(p, q, n{names}):\n{lines}{args}{end}"


def _target(arch: int, warps: int = 4, ctas: int = 1) -> str:
    more = f", num_ctas={ctas}" if ctas > 1 else ""
    return f"TARGET, KWARGS = {CUDA.format(arch=arch)}, dict(num_warps={warps}{more})\n"


def _basis(d: Draw, rank: int) -> list[list[int]]:
    """The bases of a cluster of two blocks: one dimension is split, or none."""
    row = [0] * rank
    if d.chance(0.7):
        row[d.random.randrange(rank)] = 1
    return [row]


# -- the copy engine ------------------------------------------------------------------------------


def _tile(d: Draw, rank: int, bits: int, swizzle: int) -> list[int]:
    inner = max(16, swizzle) * 8 // bits * d.pick([1, 1, 1, 2, 4])
    if not _chance(d, 0.96):
        inner = d.pick([1, 2, 4, 512])
    box = [1 if d.chance(0.4) else d.pick([2, 4]) for _ in range(max(0, rank - 2))]
    box += [d.pick([8, 16, 32, 64, 256, 512, 1, 4])] if rank > 1 else []
    box += [inner]
    while _size(box) * bits // 8 > _MOST_BYTES:
        box[box.index(max(box))] //= 2
    return box


def _size(shape: list[int]) -> int:
    product = 1
    for size in shape:
        product *= size
    return product


def _nvmma(d: Draw, swizzle: int, bits: int, rank: int, cga: Any = None) -> str:
    text = f"gl.NVMMASharedLayout({swizzle}, {bits}, {rank}"
    if not _chance(d, 0.98):
        text += d.pick([", transposed=True", ", fp4_padded=True"])
    return text + (f", cga_layout={cga})" if cga else ")")


_COORD = ["0", "n", "n", "n * 16", "64", "-64"]
_BAD_COORD = ["-1", "True", "n.to(gl.int64)", "2.5", "x", "n.to(gl.uint32)", "n.to(gl.int16)", "None",
              "3", "2**31", "n > 2", "p"]  # fmt: skip


def _start(d: Draw, rank: int) -> str:
    rank = rank if _chance(d, 0.97) else d.pick([rank + 1, rank - 1])
    parts = [_right(d, d.pick(_COORD), _BAD_COORD, 0.96) for _ in range(rank)]
    return (
        f"[{', '.join(parts)}]" if d.chance(0.9) else f"({''.join(part + ', ' for part in parts)})"
    )


def copies(d: Draw) -> str:
    """Boxes and rows between global and shared memory."""
    arch = d.pick([90, 90, 100, 100, 120])
    ctas = 2 if arch < 120 and d.chance(0.2) else 1
    dtype = d.pick([*BITS, "float16", "float32", "float16"])
    bits = BITS[dtype]
    kinds = ["load", "load", "load", "store", "store", "reduce", "wait", "made"]
    kinds += ["gather", "scatter", "gather"] if arch == 100 else []
    kinds += ["im2col"] if RELEASE >= (3, 8) else []
    kind = d.pick(kinds)
    rows = kind in ("gather", "scatter", "im2col")
    rank = 2 if rows else d.pick([1, 2, 2, 2, 3, 4, 5])
    swizzle = d.pick([0, 32, 64, 128, 128]) if rank > 1 else 0
    box = _tile(d, rank, bits, swizzle)
    if kind in ("gather", "scatter") and _chance(d, 0.97):
        box[0] = 1
    layout = _nvmma(d, swizzle, bits, rank, _basis(d, rank) if ctas > 1 else None)
    layout = _right(d, layout, [_nvmma(d, 64, bits, rank), _nvmma(d, swizzle, 8, rank),
        "gl.SwizzledSharedLayout(1, 1, 1, [1, 0])"], 0.96)  # fmt: skip
    buffer = "smem"
    lines = [f"smem = gl.allocate_shared_memory(gl.{dtype}, {_shape_of(d, kind, box)}, LAYOUT)"]
    if not _chance(d, 0.92):
        other, shape = (
            d.pick(list(BITS)),
            d.pick([box, box[::-1], [1, *box], box[1:] or [64], [64, 64]]),
        )
        lines.append(
            f"other = gl.allocate_shared_memory(gl.{other}, {shape}, "
            f"{_nvmma(d, swizzle, BITS[other], len(shape))})"
        )
        buffer = "other"
    elif not _chance(d, 0.92):
        lines.append(f"many = gl.allocate_shared_memory(gl.{dtype}, {[2, *box]}, LAYOUT)")
        buffer = d.pick(["many.index(1)", "many.index(n & 1)", "many", "many.index(0)", "p", "None", "x",
                         "bar", "smem.permute([1, 0])", f"smem.slice(0, {max(1, box[0] // 2)}, 0)"])  # fmt: skip
    body = [
        f"LAYOUT: gl.constexpr = {layout}",
        "x = gl.full([128], 0, gl.int32, gl.BlockedLayout([1], [32], [4], [0]"
        + (", cga_layout=[[0]])" if ctas > 1 else ")")
        + ") + n",
        *_barrier(d, ctas, 0.95),
        *lines,
    ]
    desc, names = "desc", ", desc"
    shape = [d.pick([64, 256, 1000, 48]) for _ in range(rank - 1)] + [d.pick([64, 256, 1024])]
    strides = [1]
    for size in reversed(shape[1:]):
        strides.insert(0, strides[0] * size)
    if kind == "made" or d.chance(0.08) and not rows:
        desc, names = "made", ""
        body.append(
            f"made = tma.make_tensor_descriptor({_right(d, 'p', ['q', 'n', 'x'])}.to(gl.pointer_type("
            f"gl.{dtype})), {_sizes(d, shape)}, {_sizes(d, strides)}, {box}, LAYOUT)"
        )
    coord = _start(d, rank)
    bar = _right(d, "bar", ["smem", "None", "p", "n"], 0.97)
    pred = _more(d, "pred", _PRED)
    spread = _more(d, "multicast", ["True", "False", "n"], 0.15 if ctas > 1 else 0.04)
    lanes = f"gl.SliceLayout(0, gl.BlockedLayout([1, 4], [32, 1], [1, 4], [1, 0]{_zero(ctas)}))"
    if kind in ("gather", "scatter"):
        lanes = _right(d, lanes, ["gl.BlockedLayout([1], [32], [4], [0])", "gl.AutoLayout()",
            "gl.SliceLayout(0, gl.BlockedLayout([1, 8], [32, 1], [1, 4], [1, 0]))",
            "gl.SliceLayout(0, gl.BlockedLayout([1, 2], [32, 1], [1, 4], [1, 0]))",
            "gl.SliceLayout(1, gl.BlockedLayout([4, 1], [1, 32], [4, 1], [1, 0]))"], 0.92)  # fmt: skip
        count = _right(d, "ROWS", ["8", "4", "64"], 0.97)
        body.append(
            f"at = gl.arange(0, {count}, {lanes}){_right(d, '', ['.to(gl.int64)', '.to(gl.uint32)', ' + n', ' > 2'], 0.9)}"
        )
        body.insert(0, f"ROWS: gl.constexpr = {d.pick([32, 32, 64, 8, 16])}")
        column = _right(d, d.pick(["0", "n", "64"]), _BAD_COORD, 0.94)
        if kind == "gather":
            body.append(
                f"blackwell.tma.async_gather({desc}, at, {column}, {bar}, {buffer}{pred}{spread})"
            )
        else:
            body.append(f"blackwell.tma.async_scatter({desc}, at, {column}, {buffer})")
    elif kind == "im2col":
        rank = d.pick([3, 4, 4, 5])
        offsets = [
            _right(
                d, d.pick(["0", "1", "n.to(gl.int16)"]), ["n", "-1", "True", "2.5", "40000"], 0.95
            )
            for _ in range(rank - 2)
        ]
        body.append(
            f"tma.async_load_im2col({desc}, {_start(d, rank)}, [{', '.join(offsets)}], {bar}, {buffer}{pred}{spread})"
        )
    elif kind in ("load", "made"):
        body.append(f"load({desc}, {coord}, {bar}, {buffer}{pred}{spread})")
    elif kind == "store":
        body.append(f"store({desc}, {coord}, {buffer})")
    elif kind == "reduce":
        op = d.pick(["add", "add", "min", "max", "and", "or", "xor"])
        body.append(f"tma.async_atomic_{op}({desc}, {coord}, {buffer})")
    else:
        body.append(f"store({desc}, {coord}, {buffer})")
        body.append(
            f"tma.store_wait({_right(d, '0', ['1', '63', '-1', 'n', 'True', '2.5', 'None'], 0.5)}{_more(d, 'read_only', ['True', 'False', 'n'])})"
        )
    made_by = f"host.TensorDescriptor(ptr(gl.{dtype}), {shape}, {strides}, {box}, LAYOUT)"
    if kind == "im2col":
        corners = [0] * (rank - 2)
        image = [8, *[32] * (rank - 2), d.pick([64, 256])]
        steps = [1]
        for size in reversed(image[1:]):
            steps.insert(0, steps[0] * size)
        made_by = (
            f"host.TensorDescriptorIm2Col(ptr(gl.{dtype}), {image}, {steps}, {box}, LAYOUT, "
            f"pixel_box_lower_corner={corners}, pixel_box_upper_corner={corners})"
        )
    args = "ARGS = (ptr(gl.float32), ptr(gl.int32), 5)\n"
    if names:
        args = f"LAYOUT = {layout}\nARGS = (ptr(gl.float32), ptr(gl.int32), 5, {made_by})\n"
    return _source(body, args, names, _target(arch, 4, ctas))


def _shape_of(d: Draw, kind: str, box: list[int]) -> str:
    return f"[ROWS, {box[1]}]" if kind in ("gather", "scatter") else str(box)


def _sizes(d: Draw, values: list[int]) -> str:
    sizes = [
        _right(d, str(v), ["n", "0", "-1", "n.to(gl.int64)", "2.5", "x", "True"], 0.97)
        for v in values
    ]
    return f"[{', '.join(sizes)}]"


def _zero(ctas: int) -> str:
    return ", cga_layout=[[0, 0]]" if ctas > 1 else ""


# -- barriers -------------------------------------------------------------------------------------


def _barrier(d: Draw, ctas: int, p: float) -> list[str]:
    """A barrier `bar`; right with this probability."""
    if _chance(d, p):
        plain = "gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())"
        if RELEASE >= (3, 7) and (ctas > 1 or d.chance(0.5)):
            plain = "mbarrier.allocate_mbarrier()"
        elif ctas > 1:
            plain = plain.replace("MBarrierLayout()", "MBarrierLayout(cga_layout=[[0]])")
        return [f"bar = {plain}"]
    layout = d.pick(["mbarrier.MBarrierLayout()", "mbarrier.MBarrierLayout([[1]])", "mbarrier.MBarrierLayout([[0]])",
                     "gl.SwizzledSharedLayout(1, 1, 1, [0])", "gl.SwizzledSharedLayout(2, 1, 1, [0])",
                     f"mbarrier.MBarrierLayout.multicta({ctas})", f"mbarrier.MBarrierLayout.multicta({ctas}, two_ctas=True)"])  # fmt: skip
    shape = d.pick(["[1]", "[1]", "[2]", "[4]", "[1, 1]", "[2, 1]"])
    lines = f"bar = gl.allocate_shared_memory(gl.{d.pick(['int64', 'int64', 'int32', 'uint64', 'float64'])}, {shape}, {layout})"
    if d.chance(0.3):
        lines += d.pick([".index(0)", ".index(n & 1)", ".slice(0, 1, 0)"])
    return [lines]


def barriers(d: Draw) -> str:
    """Barriers, fences, clusters and what else the threads of a block wait for."""
    arch = d.pick([80, 90, 90, 90, 100, 100])
    ctas = d.pick([2, 2, 4]) if arch > 80 and d.chance(0.35) else 1
    space = "ampere.mbarrier" if arch == 80 else d.pick(["mbarrier", "mbarrier", "ampere.mbarrier"])
    bar = _right(d, "bar", ["x", "n", "None", "p", "smem", "many", "many.index(1)"], 0.93)
    pred = _more(d, "pred", _PRED, 0.25)
    block = (
        _more(d, "from_cta", ["0", "1", "3", "-1", "n", "None", "True"], 0.15)
        if RELEASE >= (3, 9)
        else ""
    )
    counts = ["2", "32", "0", "-1", "1 << 20", "(1 << 20) - 1", "n", "True", "2.5", "None", "False"]
    phases = [
        "0",
        "1",
        "2",
        "-1",
        "True",
        "n > 2",
        "n.to(gl.int64)",
        "n.to(gl.uint32)",
        "2.5",
        "x",
        "None",
        "n.to(gl.int8)",
        "1 << 31",
    ]
    deps = ["[smem]", "(smem, )", "smem", "[]", "None", "[x]", "[p]", "[smem, bar]", "n"]
    ops = [
        f"{space}.init({bar}, {_right(d, '1', counts, 0.5)})",
        f"{space}.init({bar}, count={_right(d, '1', counts, 0.5)})",
        f"{space}.wait({bar}, {_right(d, 'n & 1', phases, 0.5)}{pred}{_more(d, 'deps', deps, 0.3)})",
        f"{space}.wait({bar}, {_right(d, '0', phases, 0.5)}{pred})",
        f"{space}.invalidate({bar})",
        f"ampere.mbarrier.arrive({bar}{pred})",
        f"async_copy.mbarrier_arrive({bar}{_more(d, 'increment_count', ['True', 'False', 'n', '1', 'None'], 0.6)})",
        f"async_copy.wait_group({_right(d, '0', ['1', '7', '-1', 'n', 'True', 'None', '2.5'], 0.5)})",
        "async_copy.commit_group()",
    ]
    if arch > 80:
        number = "bytes" if RELEASE == (3, 6) else "bytes_per_cta"
        sizes = [
            "1024",
            "0",
            "-4",
            "3",
            "1 << 20",
            "(1 << 20) - 1",
            "n",
            "True",
            "2.5",
            "None",
            "smem.nbytes_per_cta",
        ]
        flag = d.pick(["", "", "True", "False", "n", "1", "None", "0"])
        ops += [
            f"mbarrier.arrive({bar}{_more(d, 'count', counts, 0.4)}{pred}{block})",
            f"mbarrier.arrive({bar}{_more(d, 'count', counts, 0.4)}{pred}{block})",
            f"mbarrier.expect({bar}, {_right(d, '4096', sizes, 0.4)}{pred}{block})",
            f"mbarrier.expect({bar}, {number}={_right(d, '4096', sizes, 0.4)}{pred}{block})",
            f"hopper.fence_async_shared({flag})",
            f"hopper.cluster.barrier({flag})" if RELEASE >= (3, 8) else "gl.barrier(cluster=True)",
            f"gl.barrier({_right(d, '', ['cluster=True', 'cluster=n', 'cluster=False', 'True'], 0.3)})",
        ]
        if RELEASE >= (3, 7):
            batch = _right(
                d,
                "",
                [
                    "batch=2",
                    "batch=3",
                    "batch=0",
                    "batch=n",
                    "two_ctas=True",
                    "batch=2, two_ctas=True",
                    "batch=True",
                ],
                0.2,
            )
            ops.append(
                f"mbarrier.init(mbarrier.allocate_mbarrier({batch}){d.pick(['', '.index(0)'])}, 1)"
            )
            if ctas > 1:
                pair = _more(d, "two_cta", ["True", "False"], 0.4)
                many = f"mbarrier.MBarrierLayout.multicta({_right_int(d, ctas, [1, 8, 3])}{pair})"
                ops.append(f"mbarrier.init(gl.allocate_shared_memory(gl.int64, [1], {many}), 1)")
        if (3, 7) <= RELEASE <= (3, 8):
            both = [f"hopper.cluster.arrive({flag})", "hopper.cluster.wait()"]
            ops += ["; ".join(both), d.pick(both), "mbarrier.fence_init_release_cluster()"]
        if RELEASE == (3, 7):
            ops.append("mbarrier.sync_cluster_init()")
        if RELEASE >= (3, 8):
            more = "cta_mask" if RELEASE == (3, 8) else "multicast_cta"
            spread = _more(d, more, ["0", "1", "2", "3", "-1", "n", "None", "True", "7"], 0.6)
            ops.append(
                f"gl.nvidia.rubin.mbarrier.arrive({bar}{_more(d, 'count', counts, 0.3)}{pred}{block}{spread})"
            )
        if RELEASE >= (3, 8) and arch == 100:
            answer = _right(d, "answer", ["bar", "smem", "x", "answer.index(0)"], 0.85)
            ops += [
                f"blackwell.clc.try_cancel({answer}, {bar})",
                f"gl.store(q, blackwell.clc.load_result({answer}).program_id({_right(d, '0', ['1', '2', '3', '-1', 'n', 'True'], 0.5)}))",
                f"gl.store(q, blackwell.clc.load_result({answer}).program_id({_right(d, '0', ['1', '2', '3', '-1', 'n', 'True'], 0.5)}))",
                f"gl.store(q, blackwell.clc.load_result({answer}).is_canceled().to(gl.int32))",
            ]
        if RELEASE >= (3, 8):
            ops.append(
                f"{d.pick(['hopper', 'hopper', 'blackwell'])}.async_store({_right(d, 'smem', ['bar', 'many', 'x'])}, {_right(d, 'y', ['x', 'n', 'y.to(gl.float16)', 'y.to(gl.uint32)'])}, {bar})"
            )
    zero = str([[0]] * (ctas.bit_length() - 1))
    cga = f", cga_layout={zero}" if ctas > 1 else ""
    body = [
        f"L: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0]{cga})",
        f"S: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0]{cga})",
        "x = gl.full([128], 0, gl.int32, L) + n",
        "y = gl.full([1024], 0, gl.int32, L) + n",
        "smem = gl.allocate_shared_memory(gl.int32, [1024], S)",
        *_barrier(d, ctas, 0.85),
        f"{space}.init(bar, 1)" if d.chance(0.3) else "pass",
    ]
    op = d.pick(ops)
    if "many" in op:
        body.append("many = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())")
    if "answer" in op:
        body.append(
            f"answer = gl.allocate_shared_memory(gl.int64, [2], gl.SwizzledSharedLayout(1, 1, 1, [0]{cga}))"
        )
    return _source(
        [*body, op], "ARGS = (ptr(gl.float32), ptr(gl.int32), 5)\n", "", _target(arch, 4, ctas)
    )


def _right_int(d: Draw, right: int, others: list[int]) -> int:
    return right if _chance(d, 0.96) else d.pick(others)


FAMILIES: dict[str, Callable[[Draw], str]] = {
    "copies of the TMA": copies,
    "barriers": barriers,
}
