"""Random operands of NVIDIA's matrix units: wgmma, tcgen05 and its scaled products."""

from __future__ import annotations

from typing import Any, Callable

from gluon_core.testing import TRITON_VERSION
from tests.compat.hardware import (
    _PRED,
    BITS,
    _barrier,
    _basis,
    _chance,
    _more,
    _right,
    _right_int,
    _source,
    _target,
)
from tests.fuzz.draw import Draw

__all__ = ["FAMILIES"]

RELEASE = TRITON_VERSION[:2]

# Operands and accumulators that go together.
_PRODUCTS = [("float16", "float32"), ("float16", "float16"), ("bfloat16", "float32"),
             ("float32", "float32"), ("float8e5", "float32"), ("float8e4nv", "float32"),
             ("float8e5", "float16"), ("int8", "int32")]  # fmt: skip
_ANY = [*BITS]


def _operand(d: Draw, name: str, dtype: str, shape: list[int], k_at: int, cga: Any) -> list[str]:
    """A matrix in shared memory as a matrix unit reads it, seldom another one."""
    dtype = _right(d, dtype, _ANY, 0.94)
    bits = BITS[dtype]
    is_transposed = bits == 16 and d.chance(0.3) or (bits != 16 and k_at == 0)
    if not _chance(d, 0.97):
        is_transposed = not is_transposed
    fast = shape[0 if is_transposed else 1] * bits // 8
    swizzle = d.pick([w for w in (128, 64, 32) if w <= fast] or [0])
    if not _chance(d, 0.96):
        swizzle = d.pick([0, 32, 64, 128])
    width = bits if _chance(d, 0.98) else d.pick([8, 16, 32])
    more = ", transposed=True" if is_transposed else ""
    more += f", cga_layout={cga}" if cga else ""
    layout = f"gl.NVMMASharedLayout({swizzle}, {width}, 2{more})"
    if not _chance(d, 0.98):
        layout = d.pick(["gl.SwizzledSharedLayout(1, 1, 1, [1, 0])", "gl.SwizzledSharedLayout(8, 1, 8, [1, 0])",
                         f"gl.NVMMASharedLayout({swizzle}, {width}, 2, fp4_padded=True)",
                         "gl.PaddedSharedLayout.with_identity_for([[64, 8]], [64, 64], [1, 0])"])  # fmt: skip
    if not _chance(d, 0.98):
        shape = [max(1, size * d.pick([1, 2]) // d.pick([1, 2])) for size in shape]
    return [f"{name} = gl.allocate_shared_memory(gl.{dtype}, {shape}, {layout})"]


def wgmma(d: Draw) -> str:
    """`warpgroup_mma` and its kin."""
    warps = d.pick([4, 4, 8]) if _chance(d, 0.98) else 2
    ctas = 2 if d.chance(0.12) else 1
    dtype, sum_type = d.pick(_PRODUCTS)
    bits = BITS[dtype]
    depth = 256 // bits
    m = 64 * d.pick([1, 2, 2]) * (warps // 4 or 1) * ctas
    n = d.pick([8, 16, 32, 64, 128, 256]) * (2 if ctas > 1 else 1)
    k = depth * d.pick([1, 2, 4])
    instr = [
        16,
        _right_int(d, min(n // ctas, d.pick([8, 16, 32, 64, 256])), [8, 64, 24, 512]),
        _right_int(d, depth, [8, 16, 32]),
    ]
    version = _right(d, "[3, 0]", ["[2, 0]", "[3, 1]", "[5, 0]"], 0.97)
    grid = [warps, 1] if _chance(d, 0.93) else d.pick([[warps // 2, 2], [1, warps]])
    split = _basis(d, 2) if ctas > 1 else None
    cga = f", cga_layout={split}" if split else ""
    layout = f"gl.NVMMADistributedLayout({version}, {grid}, {instr}{cga})"
    body = [f"ACC: gl.constexpr = {layout}"]
    rows = [[row[0], 0] for row in split] if split else None
    columns = [[0, row[1]] for row in split] if split else None
    body += _operand(d, "a", dtype, [m, k], 1, rows)
    body += _operand(d, "b", dtype, [k, n], 0, columns)
    acc = _right(d, sum_type, ["float32", "float16", "int32", "float64"], 0.94)
    a = "a"
    if d.chance(0.25):
        width = _right_int(d, 32 // bits, [1, 2, 4, 0])
        index = 0 if _chance(d, 0.97) else 1
        body.append(f"A: gl.constexpr = gl.DotOperandLayout({index}, ACC, {width})")
        body.append(f"r = gl.load(p + gl.full([{m}, {k}], 0, gl.int32, A) + n).to(gl.{dtype})")
        a = "r"
    body.append(f"acc = gl.full([{m}, {n}], 0, gl.{acc}, ACC)")
    options = _more(d, "use_acc", _PRED, 0.15)
    options += _more(
        d, "precision", ["'tf32'", "'ieee'", "None", "'tf32x3'", "'bf16x3'", "3"], 0.12
    )
    options += _more(
        d, "max_num_imprecise_acc", ["0", "32", "64", "16", "128", "1024", "None", "n", "-1"], 0.1
    )
    is_async = d.chance(0.3)
    operands = [
        _right(d, a, ["x", "None", "b", "p"], 0.98),
        _right(d, "b", ["a", "x", "None"], 0.98),
        "acc",
    ]
    if d.chance(0.1):
        operands[2] = "hopper.warpgroup_mma_init(acc)"
    if not _chance(d, 0.97):
        operands[2] = d.pick(["hopper.warpgroup_mma_init(n)", "0", "b"])
    call = f"hopper.warpgroup_mma({', '.join(operands)}{options}"
    if is_async or d.chance(0.05):
        flag = "True" if is_async else d.pick(["False", "n", "1", "None"])
        body.append(f"y = {call}, is_async={flag})")
        waited = _right(
            d, "[y]", ["[y, a, b]", "(y, )", "[a]", "None", "y", "[]", "[n]", "[y, x]"], 0.6
        )
        count = _right(d, "0", ["1", "7", "8", "-1", "n", "None"], 0.8)
        body.append(f"y = hopper.warpgroup_mma_wait({count}, deps={waited})")
        if waited == "[y, a, b]":
            body.append("y = y[0]")
    else:
        body.append(f"y = {call})")
    body.append(f"gl.store(p + gl.full([{m}, {n}], 0, gl.int32, ACC) + n, y.to(gl.float32))")
    if any("x" in part.split("[]")[0].split() for part in operands) or ", x]" in body[-2]:
        body.insert(0, "x = gl.full([128], 0, gl.int32, gl.BlockedLayout([1], [32], [4], [0])) + n")
    arch = 90 if _chance(d, 0.98) else 100
    return _source(
        body, "ARGS = (ptr(gl.float32), ptr(gl.int32), 5)\n", "", _target(arch, warps, ctas)
    )


def tcgen05(d: Draw) -> str:
    """`tcgen05_mma`, `tcgen05_commit` and `tcgen05_copy`."""
    ctas = 2 if d.chance(0.2) else 1
    two = ctas > 1 and d.chance(0.5)
    dtype, sum_type = d.pick([*_PRODUCTS, ("uint8", "int32")])
    bits = BITS[dtype]
    rows = d.pick([64, 128, 128])
    m = rows * d.pick([1, 1, 2]) * ctas
    n = d.pick([8, 16, 32, 64, 128, 256])
    k = 256 // bits * d.pick([1, 2, 4])
    split = [[1, 0]] if two or ctas > 1 and d.chance(0.6) else ([[0, 0]] if ctas > 1 else None)
    acc_type = _right(d, sum_type, ["float32", "float16", "int32"], 0.94)
    stride = _right_int(d, 32 // BITS[acc_type], [1, 2, 4])
    columns = _right_int(d, n, [n // 2, n * 2, 24])
    block = [_right_int(d, rows, [64, 128, 256]), columns]
    if RELEASE >= (3, 8):
        cga = f", cga_layout={split}" if split else ""
    else:
        cga = f", cta_split_num={[2, 1] if split == [[1, 0]] else [1, 1]}" if split else ""
    more = ", two_ctas=True" if two else ""
    body = [
        f"T: gl.constexpr = blackwell.TensorMemoryLayout({block}, col_stride={stride}{cga}{more})"
    ]
    body += _operand(d, "a", dtype, [m, k], 1, [[1, 0]] if split == [[1, 0]] else split)
    body += _operand(d, "b", dtype, [k, n], 0, [[0, 1]] if two else ([[0, 0]] if split else None))
    body += _barrier(d, ctas, 0.95)
    body.append(f"acc = blackwell.allocate_tensor_memory(gl.{acc_type}, [{m}, {n}], T)")
    a = "a"
    if d.chance(0.2):
        packed = _right_int(d, 1, [2])
        body.append(
            f"TA: gl.constexpr = blackwell.TensorMemoryLayout([{_right_int(d, rows, [64, 128])}, {k}], col_stride={packed}{cga}{more})"
        )
        body.append(f"t = blackwell.allocate_tensor_memory(gl.{dtype}, [{m}, {k}], TA)")
        a = "t"
    options = _more(d, "use_acc", _PRED[:-2], 0.2) + _more(d, "pred", _PRED[:-2], 0.15)
    options += _more(d, "multicast", ["True", "False", "n", "None"], 0.1)
    barriers = _right(d, "[bar]", ["bar", "(bar, )", "[bar, bar]", "[]", "None", "[a]", "n"], 0.6)
    if d.chance(0.4):
        options += f", mbarriers={barriers}"
        options += _more(
            d,
            "mbarrier_preds",
            ["[True]", "[n > 2]", "[n > 2, True]", "None", "[]", "True", "[n]", "(n > 2, )"],
            0.3,
        )
    operands = [_right(d, a, ["b", "acc", "None", "n"], 0.98), _right(d, "b", ["a", "acc", "None"], 0.98),
                _right(d, "acc", ["a", "None", "n"], 0.98)]  # fmt: skip
    body.append(f"blackwell.tcgen05_mma({', '.join(operands)}{options})")
    if RELEASE >= (3, 7) and d.chance(0.15):
        read = _right(d, "[a, b]", ["[a]", "(a, b)", "a", "[acc]", "[]"], 0.7)
        spread = _right(d, "False", ["True", "n", "1"], 0.7)
        both = f", {two}" if RELEASE >= (3, 8) else ""
        body.append(
            f"mbarrier.init(bar, blackwell.tcgen05_mma_barrier_count({read}, {spread}{both}))"
        )
    if d.chance(0.3):
        wait = _more(d, "pred", _PRED[:-2], 0.3) + _more(
            d, "descs", ["[a]", "[a, b]", "[a, b, a]", "[]", "a", "[n]"], 0.2
        )
        body.append(
            f"blackwell.tcgen05_commit({_right(d, 'bar', ['a', 'None', '[bar]'], 0.95)}{wait})"
        )
    arch = 100 if _chance(d, 0.98) else d.pick([90, 120])
    return _source(body, "ARGS = (ptr(gl.float32), ptr(gl.int32), 5)\n", "", _target(arch, 4, ctas))


_FORMATS = {"e2m1": "uint8", "e4m3": "float8e4nv", "e5m2": "float8e5"}


def scaled(d: Draw) -> str:
    """`tcgen05_mma_scaled`, and the copies that bring its scales."""
    kinds = [d.pick([*_FORMATS]), d.pick([*_FORMATS])]
    mixed = (kinds[0] == "e2m1") != (kinds[1] == "e2m1")
    fine = kinds == ["e2m1", "e2m1"] and d.chance(0.5)
    scale = _right(
        d,
        "float8e4nv" if fine else d.pick(["int8", "uint8"]),
        ["int8", "float8e4nv", "float8e5", "int16"],
        0.95,
    )
    m, n, k = 128 * d.pick([1, 1, 2]), d.pick([16, 32, 64, 128, 256]), d.pick([64, 128, 256])
    k = 256 if mixed else k
    body = [
        f"T: gl.constexpr = blackwell.TensorMemoryLayout([{_right_int(d, 128, [64])}, {n}], col_stride=1)"
    ]
    for name, kind, shape, axis in (("a", kinds[0], [m, k], 1), ("b", kinds[1], [k, n], 0)):
        dtype = _right(d, _FORMATS[kind], ["uint8", "int8", "float16", "float8e5"], 0.94)
        shape[axis] //= 2 if kind == "e2m1" else 1
        padded = (mixed and kind == "e2m1") == _chance(d, 0.97)
        swizzle = 128 if padded else d.pick([w for w in (128, 64, 32) if w <= shape[axis]])
        is_transposed = (axis == 0) == _chance(d, 0.98)
        more = ", transposed=True" if is_transposed else ""
        more += ", fp4_padded=True" if padded else ""
        body.append(
            f"{name} = gl.allocate_shared_memory(gl.{dtype}, {shape}, gl.NVMMASharedLayout({swizzle}, 8, 2{more}))"
        )
    run = 16 if scale == "float8e4nv" else 32
    held, arch = "blackwell.TensorMemoryScalesLayout()", 100
    if RELEASE >= (3, 8) and d.chance(0.2):
        order = _right(d, "'mnThenK'", ["'kThenMn'", "'x'", "None"], 0.5)
        held = f"gl.nvidia.rubin.TensorMemoryScalesLayout(block_rep_order={order})"
        arch = 107 if RELEASE >= (3, 9) else 100
    for name, size in (("u", m), ("v", n)):
        shape = (
            [size, k // run]
            if _chance(d, 0.97)
            else d.pick([[size, k // 16], [k // run, size], [128, 4]])
        )
        body.append(
            f"{name} = blackwell.allocate_tensor_memory(gl.{scale}, {shape}, {_right(d, held, ['T', 'blackwell.TensorMemoryScalesLayout()'], 0.97)})"
        )
    if d.chance(0.3):
        layout = _right(d, "gl.NVMMASharedLayout(0, 8, 2)", ["gl.NVMMASharedLayout(32, 8, 2)", "gl.SwizzledSharedLayout(1, 1, 1, [1, 0])",
                        "gl.NVMMASharedLayout(0, 8, 2, transposed=True)"], 0.6)  # fmt: skip
        body.append(f"c = gl.allocate_shared_memory(gl.{scale}, [{m}, {k // run}], {layout})")
        body.append(f"blackwell.tcgen05_copy(c, {_right(d, 'u', ['v', 'acc', 'c', 'None'], 0.9)})")
    body += _barrier(d, 1, 0.97)
    body.insert(
        1,
        f"acc = blackwell.allocate_tensor_memory(gl.{_right(d, 'float32', ['float16', 'int32'], 0.96)}, [{m}, {n}], T)",
    )
    options = (
        _more(d, "use_acc", _PRED[:-2], 0.15)
        + _more(d, "pred", _PRED[:-2], 0.15)
        + _more(d, "mbarriers", ["[bar]", "bar", "[]"], 0.3)
    )
    types = [
        repr(_right(d, kind, ["e2m1", "e4m3", "e5m2", "fp16", "E4M3"], 0.97)) for kind in kinds
    ]
    operands = [_right(d, v, ["a", "b", "u", "None"], 0.985) for v in ("a", "b", "acc", "u", "v")]
    body.append(f"blackwell.tcgen05_mma_scaled({', '.join([*operands, *types])}{options})")
    return _source(body, "ARGS = (ptr(gl.float32), ptr(gl.int32), 5)\n", "", _target(arch))


FAMILIES: dict[str, Callable[[Draw], str]] = {
    "wgmma": wgmma,
    "tcgen05": tcgen05,
    "scaled tcgen05": scaled,
}
