"""Random operands of AMD's copies, barriers and matrix units, and of Ampere's, as `hardware` has them."""

from __future__ import annotations

from typing import Callable

from gluon_core.testing import TRITON_VERSION
from tests.compat.hardware import BITS, _chance, _more, _right, _right_int, _target
from tests.fuzz.draw import Draw
from tests.fuzz.layouts import HIP

__all__ = ["FAMILIES"]

RELEASE = TRITON_VERSION[:2]
_ARGS = "ARGS = (ptr(gl.float32), ptr(gl.int32), 5)\n"
_MASKS = ["x > 2", "i > 2", "n > 2", "True", "None", "x", "1", "row > 2", "2.5"]


def _kernel(body: list[str], end: str) -> str:
    lines = "".join(f"    {line}\n" for line in body)
    return f"@gluon.jit\ndef kernel(p, q, n):\n{lines}{_ARGS}{end}"


def _hip(arch: str, warps: int = 4) -> str:
    lanes = 64 if arch in ("gfx942", "gfx950") else 32
    return f"TARGET, KWARGS = {HIP.format(arch=arch, lanes=lanes)}, dict(num_warps={warps})\n"


def _tile(d: Draw, lanes: int, dtype: str) -> tuple[list[str], int]:
    """Lines for a tile `[rows, 64]`: its layout L, offsets `i`, pointers `at`, a buffer `s`; and rows."""
    bits = BITS[dtype]
    each = max(1, d.pick([32, 64, 128, 128]) // bits)
    each = _right_int(d, each, [1, 2, 8])
    across = max(1, min(lanes, 64 // each))
    tile = [lanes // across * 4, 64]
    rows = tile[0] * d.pick([1, 1, 2])
    layout = f"gl.BlockedLayout([1, {each}], [{lanes // across}, {across}], [4, 1], [1, 0])"
    shared = _right(d, "gl.SwizzledSharedLayout(1, 1, 1, [1, 0])", [
        f"gl.SwizzledSharedLayout({max(1, 128 // bits)}, 2, 4, [1, 0])", "gl.SwizzledSharedLayout(1, 1, 1, [0, 1])",
        f"gl.PaddedSharedLayout.with_identity_for([[64, {128 // bits}]], [{rows}, 64], [1, 0])",
        "gl.NVMMASharedLayout(128, 16, 2)"], 0.8)  # fmt: skip
    size = _right(
        d, f"[{rows}, 64]", [f"[{rows}, 32]", f"[2, {rows}, 64]", f"[{rows * 2}, 64]"], 0.95
    )
    buffer = _right(d, dtype, ["float32", "int8", "float16", "int32"], 0.94)
    return [
        f"L: gl.constexpr = {layout}",
        f"i = gl.arange(0, {rows}, gl.SliceLayout(1, L))[:, None] * 64 + gl.arange(0, 64, gl.SliceLayout(0, L))[None, :]",
        "x = i + n",
        "row = gl.arange(0, 64, gl.SliceLayout(0, L))[None, :]",
        f"base = p.to(gl.pointer_type(gl.{dtype}))",
        "at = base + i",
        f"s = gl.allocate_shared_memory(gl.{buffer}, {size}, {shared})",
    ], rows


def copies(d: Draw) -> str:
    """Copies from global to shared memory that threads start: cp.async, and AMD's."""
    dtype = d.pick(["float16", "float32", "float16", "int8", "float64", "bfloat16", "int32"])
    arch = d.pick(["sm_80", "sm_80", "gfx950", "gfx950", "gfx942", "gfx1250"])
    lanes = 64 if arch in ("gfx942", "gfx950") else 32
    body, _ = _tile(d, lanes, dtype)
    mask = _more(d, "mask", _MASKS, 0.3)
    buffer = _right(d, "s", ["s.slice(0, 16, 0)", "s.index(0)", "x", "None"], 0.96)
    pointers = _right(d, "at", ["base", "i", "p", "at + n", "row + base"], 0.95)
    wait = _right(d, "0", ["1", "-1", "n", "None", "True"], 0.9)
    if arch == "sm_80":
        more = mask + _more(
            d, "cache_modifier", ["'.ca'", "'.cg'", "'.cs'", "None", "''", "3"], 0.2
        )
        more += _more(
            d, "eviction_policy", ["'evict_last'", "'evict_first'", "''", "'now'", "None"], 0.1
        )
        more += _more(d, "volatile", ["True", "False", "n", "None"], 0.1)
        space = "gl.nvidia.ampere.async_copy"
        body += [f"{space}.async_copy_global_to_shared({buffer}, {pointers}{more})", f"{space}.commit_group()",
                 f"{space}.wait_group({wait})"]  # fmt: skip
        return _kernel(body, _target(80))
    other = _more(d, "other", ["0.0", "0", "x", "1.5", "n", "x.to(gl.float16)", "None"], 0.2)
    hint = _more(d, "cache_modifier", ["'.ca'", "'.cg'", "'.cv'", "''", "None"], 0.1)
    if arch == "gfx1250":
        space = "gl.amd.gfx1250.async_copy"
        if d.chance(0.3):
            body += [f"{space}.shared_to_global({pointers}, {buffer}{mask}{hint})"]
        else:
            body += [f"{space}.global_to_shared({buffer}, {pointers}{mask}{other}{hint})"]
    else:
        space = "gl.amd.cdna4.async_copy"
        offsets = _right(d, "i", ["i.to(gl.int64)", "x", "row", "n", "i.to(gl.uint32)", "at"], 0.94)
        if d.chance(0.5):
            base = _right(d, "base", ["at", "n", "q"], 0.96)
            body += [
                f"{space}.buffer_load_to_shared({buffer}, {base}, {offsets}{mask}{other}{hint})"
            ]
        else:
            body += [f"{space}.global_load_to_shared({buffer}, {pointers}{mask}{other}{hint})"]
    body += [f"{space}.commit_group()", f"{space}.wait_group({wait})"]
    if arch == "gfx950":
        body += [f"y = {space}.load_shared_relaxed(s, {_right(d, 'L', ['gl.AutoLayout()', 'None', 'gl.SliceLayout(0, L)'], 0.95)})",
                 "gl.store(q + i, y.to(gl.int32))"]  # fmt: skip
    return _kernel(body, _hip(arch))


def tdm(d: Draw) -> str:
    """The tensor data mover of gfx1250, and its barriers."""
    dtype = d.pick(["float16", "float16", "float32", "int8", "bfloat16", "float64"])
    box = [d.pick([16, 32, 64]), d.pick([32, 64, 128])]
    rank = _right_int(d, 2, [1, 3])
    box = {1: box[1:], 2: box, 3: [2, *box]}[rank]
    order = list(range(rank))[::-1]
    pad = [[box[-1], d.pick([4, 8, 16, 1])]]
    layout = _right(d, d.pick([f"gl.PaddedSharedLayout.with_identity_for({pad}, {box}, {order})",
                               f"gl.SwizzledSharedLayout(1, 1, 1, {order})"]),
                    [f"gl.SwizzledSharedLayout(8, 2, 4, {order})", f"gl.SwizzledSharedLayout(1, 1, 1, {order[::-1]})",
                     "gl.NVMMASharedLayout(128, 16, 2)", "None"], 0.93)  # fmt: skip
    shape, strides = [1024] * rank, [1 << 10 * k for k in range(rank)][::-1]
    sizes = [
        [_right(d, str(v), ["n", "-1", "0", "2.5", "n.to(gl.int64)", "True"], 0.985) for v in vs]
        for vs in (shape, strides)
    ]
    texts = [f"[{', '.join(part)}]" for part in sizes]
    space = "gl.amd.gfx1250"
    many = _right(d, str(box), [str(box[::-1]), str([2, *box]), "[64, 64]"], 0.95)
    element = _right(d, dtype, ["float32", "int8", "uint8", "int16"], 0.95)
    bar = "gl.allocate_shared_memory(gl.int64, [1], gl.amd.gfx1250.mbarrier.MBarrierLayout())"
    bar = _right(d, bar, [bar.replace("int64", "int32"), bar.replace("[1]", "[2]"), "s"], 0.96)
    parts = [
        _right(
            d,
            d.pick(["0", "n", "16"]),
            ["-1", "2.5", "True", "n.to(gl.int64)", "None", "n > 2"],
            0.97,
        )
        for _ in range(rank if _chance(d, 0.97) else 1)
    ]
    coordinates = f"[{', '.join(parts)}]"
    barrier = _more(d, "mbarrier", ["bar", "None", "s"], 0.25)
    counts = ["2", "0", "-1", "n", "True", "None", "1 << 20"]
    ops = [
        f"{space}.tdm.async_load(desc, {coordinates}, {_right(d, 's', ['bar', 'None', 'p'], 0.96)}{_more(d, 'pred', ['n > 2', 'n', 'True', '0', '2.5', 'None'], 0.2)}{barrier})",
        f"{space}.tdm.async_store(desc, {coordinates}, {_right(d, 's', ['bar', 'None', 'p'], 0.96)}{barrier})",
        f"{space}.tdm.async_wait({_right(d, '0', counts, 0.5)})",
        f"{space}.mbarrier.init(bar, {_right(d, '1', counts, 0.5)})",
        f"{space}.mbarrier.wait(bar, {_right(d, 'n & 1', ['0', '1', 'n > 2', '2.5', 'None', 'n.to(gl.int64)'], 0.5)})",
        f"{space}.mbarrier.arrive(bar{_more(d, 'count', counts, 0.5)})",
    ]
    if RELEASE >= (3, 7):
        ops.append(
            f"{space}.tdm.prefetch(desc, {coordinates}{_more(d, 'pred', ['n > 2', 'True', 'n', '0'], 0.3)}{_more(d, 'speculative', ['True', 'n', 'None', '1'], 0.3)})"
        )
    if RELEASE >= (3, 8) and rank == 2:
        rows = d.pick(["gl.SliceLayout(0, gl.BlockedLayout([1, 16], [32, 1], [4, 1], [1, 0]))", "gl.SliceLayout(1, gl.BlockedLayout([1, 1], [32, 1], [4, 1], [1, 0]))",
                       "gl.BlockedLayout([1], [32], [4], [0])"])  # fmt: skip
        kind = d.pick(["int32", "int32", "int16", "int64"])
        body_rows = f"rows = gl.arange(0, {_right_int(d, box[0], [8, 64])}, {rows}).to(gl.{kind})"
        ops += (
            [f"{body_rows}; {space}.tdm.async_gather(desc, rows, {parts[-1]}, s{barrier})"]
            if RELEASE == (3, 8)
            else []
        )
        ops += (
            [f"{body_rows}; {space}.tdm.async_gather(desc, rows, s{barrier})"]
            if RELEASE >= (3, 9)
            else []
        )
    body = [
        f"LAYOUT: gl.constexpr = {layout}",
        f"desc = {space}.tdm.make_tensor_descriptor({_right(d, 'p', ['n', 'q'], 0.97)}.to(gl.pointer_type(gl.{dtype})), {texts[0]}, {texts[1]}, {box}, LAYOUT)",
        f"s = gl.allocate_shared_memory(gl.{element}, {many}, {_right(d, 'LAYOUT', [f'gl.SwizzledSharedLayout(1, 1, 1, {order})'], 0.95)})",
        f"bar = {bar}",
        d.pick(ops),
    ]
    return _kernel(body, _hip("gfx1250"))


def _ones(name: str, shape: list[int], dtype: str, index: int) -> str:
    """An operand; not every Triton has constants of 8-bit floats."""
    narrow = dtype.startswith("float8")
    ones = f"{name} = gl.full({shape}, 1, gl.{'float32' if narrow else dtype}, D{index})"
    return ones + (f".to(gl.{dtype})" if narrow else "")


def _product(
    d: Draw, call: str, acc: str, dtype: str, sums: str, m: int, n: int, k: int, width: int
) -> list[str]:
    kinds = [
        _right(d, dtype, ["float16", "bfloat16", "float32", "int8", "uint8", "float8e5"], 0.95)
        for _ in "ab"
    ]
    shapes = [[m, k], [k, n], [m, n]]
    if not _chance(d, 0.96):
        shapes[d.random.randrange(3)] = d.pick([[64, 64], [32, 32], [m, n * 2], [k]])
    result = _right(d, sums, ["float32", "float16", "int32", "float64"], 0.95)
    lines = [f"M: gl.constexpr = {acc}"]
    for index, name in enumerate("ab"):
        operand = index if _chance(d, 0.98) else 1 - index
        layout = _right(
            d,
            f"gl.DotOperandLayout({operand}, M, {_right_int(d, width, [1, 2, 4, 8, 16])})",
            ["M", "gl.AutoLayout()"],
            0.97,
        )
        lines += [
            f"D{index}: gl.constexpr = {layout}",
            _ones(name, shapes[index], kinds[index], index),
        ]
    lines.append(f"c = gl.full({shapes[2]}, 0, gl.{result}, M)")
    operands = [_right(d, name, ["c", "None", "n", "0"], 0.985) for name in "abc"]
    lines.append(f"y = {call}({', '.join(operands)})")
    lines.append(f"gl.store(p + gl.zeros({shapes[2]}, gl.int32, M) + n, y.to(gl.float32))")
    return lines


def products(d: Draw) -> str:
    """Products in registers: mma.sync, MFMA and WMMA."""
    unit = d.pick(["mma", "mma", "mfma", "mfma", "wmma", "wmma"])
    warps = [4, 1] if d.chance(0.5) else [2, 2]
    if unit == "mma":
        dtype, sums = d.pick([("float16", "float32"), ("float16", "float16"), ("bfloat16", "float32"),
                              ("float32", "float32"), ("int8", "int32"), ("float8e5", "float32"), ("float64", "float64")])  # fmt: skip
        width = max(1, 32 // BITS[dtype])
        acc = f"gl.NVMMADistributedLayout([2, {_right_int(d, 0, [1])}], {warps}, [16, 8])"
        call = "gl.nvidia.ampere.mma_v2"
        k = 256 // BITS[dtype] * d.pick([1, 2, 4]) // (1 if _chance(d, 0.97) else 4) or 1
        lines = _product(d, call, acc, dtype, sums, 64, 64, k, width)
        if d.chance(0.2):
            lines[-2] = (
                lines[-2][:-1]
                + _more(d, "input_precision", ["'tf32'", "'ieee'", "'tf32x3'", "None", "3"], 1.0)
                + ")"
            )
        return _kernel(lines, _target(d.pick([80, 80, 90, 120, 100])))
    if unit == "mfma":
        arch, version = d.pick([("gfx942", 3), ("gfx950", 4)])
        dtype, sums = d.pick([("float16", "float32"), ("bfloat16", "float32"), ("float32", "float32"),
                              ("int8", "int32"), ("float8e5", "float32"), ("float8e4b8", "float32"), ("float64", "float64")])  # fmt: skip
        bits = BITS.get(dtype, 8)
        k = {16: 8, 32: 2, 8: 16, 64: 4}[bits] * (2 if version == 4 and bits < 32 else 1)
        side = 16 if bits == 64 or d.chance(0.5) else 32
        k *= 2 if side == 16 and bits < 64 else 1
        more = f", element_bitwidth={64}" if bits == 64 else ""
        acc = f"gl.amd.AMDMFMALayout({_right_int(d, version, [1, 2, 3, 4])}, [{side}, {side}, {_right_int(d, k, [8, 16, 32])}], {d.pick([True, False])}, {warps}{more})"
        width = _right_int(d, max(1, k * side // 64), [4, 8, 16])
        name = "cdna3" if version == 3 else d.pick(["cdna3", "cdna4"])
        return _kernel(
            _product(
                d, f"gl.amd.{name}.mfma", acc, dtype, sums, 128, 128, k * d.pick([1, 2]), width
            ),
            _hip(arch),
        )
    arch, version, name = d.pick(
        [("gfx1100", 1, "rdna3"), ("gfx1200", 2, "rdna4"), ("gfx1250", 3, "gfx1250")]
    )
    dtype, sums = d.pick([("float16", "float32"), ("bfloat16", "float32"), ("int8", "int32"), ("float8e5", "float32"),
                          ("float16", "float16"), ("float32", "float32")])  # fmt: skip
    k = 16 if version < 3 else {8: 64, 16: 32, 32: 4}[BITS[dtype]]
    width = {1: 16, 2: 8, 3: 8 if k > 4 else 2}[version]
    grid = (
        f"warps_per_cta={warps}"
        if RELEASE == (3, 6)
        else f"{[[0, 1], [1, 0]] if warps == [2, 2] else [[1, 0], [2, 0]]}"
    )
    acc = f"gl.amd.AMDWMMALayout({_right_int(d, version, [1, 2, 3])}, {d.pick([True, True, False])}, {grid}, instr_shape=[16, 16, {_right_int(d, k, [16, 32])}])"
    return _kernel(
        _product(d, f"gl.amd.{name}.wmma", acc, dtype, sums, 64, 64, k * d.pick([1, 2]), width),
        _hip(arch),
    )


_HOLDS = {"e2m1": "uint8", "e4m3": "float8e4nv", "e5m2": "float8e5"}


def scaled(d: Draw) -> str:
    """Scaled products: MFMA of gfx950, WMMA of gfx1250."""
    kinds = [d.pick([*_HOLDS]), d.pick([*_HOLDS])]
    mfma = d.chance(0.6)
    k = d.pick([128, 256])
    if mfma:
        side = d.pick([16, 32])
        acc = f"gl.amd.AMDMFMALayout(4, [{side}, {side}, {_right_int(d, 2048 // side, [64, 16])}], True, [2, 2])"
        call, layout_call = "gl.amd.cdna4.mfma_scaled", "gl.amd.cdna4.get_mfma_scale_layout"
    else:
        grid = "warps_per_cta=[2, 2]" if RELEASE == (3, 6) else "[[0, 1], [1, 0]]"
        acc = f"gl.amd.AMDWMMALayout(3, True, {grid}, instr_shape=[16, 16, {_right_int(d, 128, [64])}])"
        call, layout_call = "gl.amd.gfx1250.wmma_scaled", "gl.amd.gfx1250.get_wmma_scale_layout"
    lines = [f"M: gl.constexpr = {acc}"]
    # Two to a byte: the layout of an instruction of half its K.
    half = (
        acc.replace(", 128]", ", 64]").replace(", 64], True, [2", ", 32], True, [2")
        if mfma
        else acc.replace(", 128]", ", 64]")
    )
    lines.append(f"H: gl.constexpr = {acc if mfma else half}")
    for index, (name, kind) in enumerate(zip("ab", kinds)):
        dtype = _right(d, _HOLDS[kind], ["int8", "uint8", "float8e5", "float16"], 0.95)
        size = k // 2 if kind == "e2m1" else k
        shape = [64, size] if index == 0 else [size, 64]
        parent = "H" if kind == "e2m1" else "M"
        lines += [f"D{index}: gl.constexpr = gl.DotOperandLayout({index}, {parent}, {_right_int(d, 16, [8, 4])})",
                  _ones(name, shape, dtype, index)]  # fmt: skip
    scales = []
    for index in (0, 1):
        scale = (
            d.pick(["s", "s", "1", "None", "n"])
            if RELEASE < (3, 8)
            else d.pick(["s", "s", "s", "None", "1"])
        )
        if scale == "s":
            runs = _right_int(d, k // 32, [k // 16, 1])
            lines.append(
                f"S{index}: gl.constexpr = {layout_call}(gl.DotOperandLayout({index}, M, 16), [64, {runs}])"
            )
            kind = _right(d, "uint8", ["int8", "float8e4nv", "int32"], 0.95)
            lines.append(f"s{index} = gl.full([64, {runs}], 127, gl.{kind}, S{index})")
            scale = f"s{index}"
        scales.append(_right(d, scale, ["2.5", "300", "a", "n.to(gl.int64)", "0", "True"], 0.96))
    lines.append(
        f"c = gl.full([64, 64], 0, gl.{_right(d, 'float32', ['float16', 'int32'], 0.97)}, M)"
    )
    names = [repr(_right(d, kind, ["e2m1", "e4m3", "fp16"], 0.97)) for kind in kinds]
    lines.append(f"y = {call}(a, {scales[0]}, {names[0]}, b, {scales[1]}, {names[1]}, c)")
    lines.append("gl.store(p + gl.zeros([64, 64], gl.int32, M) + n, y.to(gl.float32))")
    return _kernel(lines, _hip("gfx950" if mfma else "gfx1250"))


FAMILIES: dict[str, Callable[[Draw], str]] = {
    "copies by threads": copies,
    "copies of the TDM": tdm,
    "products in registers": products,
    "scaled products": scaled,
}
