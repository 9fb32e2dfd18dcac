"""Random operands of packed arithmetic, of loads of tensor memory that reduce, and of partitions."""

from __future__ import annotations

from typing import Callable

from gluon_core.testing import TRITON_VERSION
from tests.compat.hardware import _chance, _more, _right, _source, _target
from tests.fuzz.draw import Draw

__all__ = ["FAMILIES"]

RELEASE = TRITON_VERSION[:2]
_ARGS = "ARGS = (ptr(gl.float32), ptr(gl.int32), 5, 2.5)\n"
_VALUES = ["f32", "f32", "f16", "bf16", "e4", "e5", "codes", "codes", "i8", "f64", "column", "other", "row",
           "f", "n", "2.0", "1", "short", "f64", "i32", "None", "p", "True"]  # fmt: skip
_LIKE = {
    "f32": ["f32", "f32", "column", "row", "f", "2.0", "n", "1"],
    "f16": ["f16", "f16", "2.0", "1", "f", "f32"],
    "bf16": ["bf16", "bf16", "1.0", "n"],
    "e4": ["e4", "e5", "e4", "1.0"],
    "e5": ["e5", "e4", "e5", "2"],
    "codes": ["codes", "codes", "e4", "e5", "i8", "1"],
}
_DTYPES = [f"gl.{t}" for t in "float32 float16 bfloat16 float8e4nv float8e5 uint8 float64".split()]


def _ends(op: str, body: list[str]) -> str:
    body += ["y = " + op, "at = gl.full(y.shape, 0, gl.int32, y.type.layout) + n", "gl.store(p + at, y.to(gl.float32))"]  # fmt: skip
    return ""


def arithmetic(d: Draw) -> str:
    """add2 and its kin, of four at once on Rubin; numbers of 4 bits are pairs in bytes."""
    rubin = RELEASE >= (3, 8) and d.chance(0.35)
    arch = 107 if rubin and RELEASE >= (3, 9) else 100
    arch = arch if _chance(d, 0.95) else d.pick([90, 103, 120])
    space = "gl.nvidia.rubin" if rubin else "gl.nvidia.blackwell"
    kinds = ["add2", "sub2", "mul2", "fma2", "min2", "max2"]
    kinds += ["add4", "sub4", "mul4", "fma4"] if rubin else []
    kind = d.pick(kinds)
    first = d.pick([*_LIKE])
    count = 3 if kind.startswith("fma") else 2
    operands = [first] + [d.pick(_LIKE[first]) for _ in range(count - 1)]
    d.random.shuffle(operands)
    operands = [_right(d, text, _VALUES, 0.95) for text in operands]
    more = _more(d, "dtype", _DTYPES, 0.25)
    if "codes" in operands and d.chance(0.8):
        more = f", dtype={d.pick(['gl.float8e4nv', 'gl.float8e5'])}"
    size = _right(d, "4", ["2", "1", "8"], 0.9)
    half = _right(d, str(max(1, int(size) // 2)), ["4", "1"], 0.96)
    body = [
        f"L: gl.constexpr = gl.BlockedLayout([1, {size}], [4, 8], [4, 1], [1, 0])",
        f"H: gl.constexpr = gl.BlockedLayout([1, {half}], [4, 8], [4, 1], [1, 0])",
        "M: gl.constexpr = gl.BlockedLayout([1, 2], [4, 8], [4, 1], [1, 0])",
        "f32 = gl.load(p + gl.zeros([32, 64], gl.int32, L) + n)",
        "i32 = gl.zeros([32, 64], gl.int32, L) + n",
    ]
    forms = {
        "f16": "f32.to(gl.float16)", "bf16": "f32.to(gl.bfloat16)", "e4": "f32.to(gl.float8e4nv)",
        "e5": "f32.to(gl.float8e5)", "f64": "f32.to(gl.float64)", "codes": "(gl.zeros([32, 32], gl.int32, H) + n).to(gl.uint8)",
        "i8": "(gl.zeros([32, 32], gl.int32, H) + n).to(gl.int8)", "column": "gl.full([32, 1], 2.0, gl.float32, L)",
        "row": "gl.full([1, 64], 2.0, gl.float32, L)", "short": "gl.full([32, 32], 1.0, gl.float32, L)",
        "other": "gl.full([32, 64], 1.0, gl.float32, M)",
    }  # fmt: skip
    body += [f"{name} = {forms[name]}" for name in dict.fromkeys(operands) if name in forms]
    _ends(f"{space}.{kind}({', '.join(operands)}{more})", body)
    return _source(body, _ARGS, ", f", _target(arch))


def pairs(d: Draw) -> str:
    """float2: the pairs that releases before 3.8 have in the place of packed arithmetic."""
    layout = _right(d, "gl.BlockedLayout([2, 4], [4, 8], [4, 1], [1, 0])",
                    ["gl.BlockedLayout([1, 1], [4, 8], [4, 1], [1, 0])", "gl.BlockedLayout([1, 2], [1, 32], [2, 2], [1, 0])"], 0.85)  # fmt: skip
    dtype = _right(d, "float32", ["float16", "int32", "float64", "bfloat16"], 0.93)
    axis = d.pick(["0", "1", "1"]) if _chance(d, 0.95) else d.pick(["2", "-1", "None", "n"])
    body = [
        f"L: gl.constexpr = {layout}",
        "at = gl.zeros([32, 64], gl.int32, L) + n",
        f"a = gl.load(p + at).to(gl.{dtype})",
        f"x = float2.pack({_right(d, 'a', ['x', '2.0', 'at', 'f'], 0.97)}, {axis})",
        f"y = float2.full_like(x, {_right(d, d.pick(['gl.to_tensor(2.0)', 'f', 'f * n', '0.0 * n']), ['2.0', '1', 'n', 'a', 'x'], 0.9)})",
    ]
    value = _right(d, "x", ["a", "2.0", "f"], 0.97)
    op = d.pick(["x + y", "x - y", "x * y", f"{value} * x", f"float2.fma(x, y, {value})", f"float2.fma({value}, x, y)",
                 f"x + {value}", "x / y", "-x", "x", "float2.pack2(a, a + 1)", f"float2.pack2(a, {value})"])  # fmt: skip
    body.append(f"z = {op}")
    end = d.pick(["unpack", "unpack", "two", "sum"])
    if end == "unpack":
        axis = axis if _chance(d, 0.95) else d.pick(["0", "1", "2"])
        body.append(f"u = float2.unpack(z, {axis})")
    else:
        added = f".sum({axis})" if end == "sum" else ""
        body.append(f"lo, hi = float2.unpack2(z{added})")
        body.append("u = lo + hi")
    body.append("gl.store(p + gl.full(u.shape, 0, gl.int32, u.type.layout) + n, u.to(gl.float32))")
    source = _source(body, _ARGS, ", f", _target(100 if _chance(d, 0.97) else d.pick([90, 120])))
    path = 'gl.__name__ + ".nvidia.blackwell.float2"'
    return source.replace("@gluon.jit", f"float2 = importlib.import_module({path})\n@gluon.jit", 1)


def reductions(d: Draw) -> str:
    """Loads of tensor memory that give a row's largest or smallest number as well."""
    arch = 103 if _chance(d, 0.9) else d.pick([100, 107, 90])
    dtype = _right(d, "float32", ["float16", "int32", "int8"], 0.93)
    rows = _right(d, "128", ["64", "256"], 0.92)
    columns = d.pick([16, 32, 64, 128])
    body = [
        f"T: gl.constexpr = blackwell.TensorMemoryLayout([128, {columns}], col_stride=1)",
        f"t = blackwell.allocate_tensor_memory(gl.{dtype}, [{rows}, {columns}], T)",
    ]
    layout_text = "t.get_reg_layout()" if RELEASE >= (3, 8) else (
        f"blackwell.get_tmem_reg_layout(gl.{dtype}, [{rows}, {columns}], T, 4)")  # fmt: skip
    body.append(f"R: gl.constexpr = {layout_text}")
    layout = _right(d, "R", [f"gl.BlockedLayout([1, {columns}], [32, 1], [4, 1], [0, 1])", "None",
                             "gl.BlockedLayout([1, 1], [1, 32], [4, 1], [1, 0])", "gl.AutoLayout()"], 0.8)  # fmt: skip
    if RELEASE >= (3, 8) and d.chance(0.3):
        layout = ""
    more = _more(d, "abs", ["True", "False", "n", "1"], 0.3)
    more += _more(d, "propagate_nan", ["tl.PropagateNan.ALL", "tl.PropagateNan.NONE", "True", "None"], 0.3)  # fmt: skip
    body.append(
        f"v, r = t.{d.pick(['load_max', 'load_min'])}({(layout + more).removeprefix(', ')})"
    )
    body.append("at = gl.full(v.shape, 0, gl.int32, v.type.layout) + n")
    body.append(d.pick(["gl.store(p + at, (v + gl.expand_dims(r, 1)).to(gl.float32))", "gl.store(p + at, v.to(gl.float32))",
                        "gl.store(p + gl.full(r.shape, 0, gl.int32, r.type.layout), r.to(gl.float32))"]))  # fmt: skip
    return _source(body, _ARGS, ", f", _target(arch, 4 if _chance(d, 0.95) else 8))


_PARTS = """\
@gluon.jit
def returns(x, n):
    return x + n, x * 2
@gluon.jit
def one(x, n):
    return x + n
@gluon.jit
def writes(q, n):
    at = gl.arange(0, 128, gl.BlockedLayout([1], [32], [gl.num_warps()], [0]))
    gl.store(q + at, at + n)
@gluon.jit
def fills(s, k):
    s.index(k).store(gl.full([128], 1, gl.int32, gl.BlockedLayout([1], [32], [gl.num_warps()], [0])))
@gluon.jit
def reads(s, q):
    L: gl.constexpr = gl.BlockedLayout([1], [32], [gl.num_warps()], [0])
    gl.store(q + gl.arange(0, 128, L), s.index(0).load(L))
@gluon.jit
def wrong(q, n):
    at = gl.arange(0, 128, gl.BlockedLayout([1], [32], [3], [0]))
    gl.store(q + at, at)
@gluon.jit
def nested(q, n):
    gl.warp_specialize([(writes, (q, n)), (writes, (q, n))], [1], [24])
@gluon.jit
def constant(q, K: gl.constexpr):
    gl.store(q, K)
"""


def partitions(d: Draw) -> str:
    """`warp_specialize`."""
    arch = d.pick([90, 90, 100, 100, 80, 120])
    warps = d.pick([4, 4, 8]) if _chance(d, 0.97) else d.pick([1, 2])
    defaults = [
        "(returns, (x, n))",
        "(one, (x, n))",
        "(one, (n, 2))",
        "(writes, (q, n))",
        "(fills, (s, n))",
    ]
    workers = ["(writes, (q, n))", "(writes, (q + 128, n))", "(fills, (s, 1))", "(fills, (s, n & 1))", "(reads, (s, q))",
               "(constant, (q, 3))", "(writes, [q, n])"]  # fmt: skip
    faults = ["(returns, (x, n))", "(wrong, (q, n))", "(nested, (q, n))", "(writes, (q,))", "(writes, (q, n, n))", "writes",
              "(None, ())", "(writes, q)", "(constant, (q, n))", "(one, (x, n))"]  # fmt: skip
    count = d.pick([1, 1, 2, 3])
    parts = [_right(d, d.pick(defaults), faults, 0.95)]
    parts += [_right(d, d.pick(workers), faults, 0.95) for _ in range(count)]
    passed = count if _chance(d, 0.96) else count + d.pick([-1, 1])
    usual = ["4"] if RELEASE == (3, 6) else ["1", "2", "4", "4"]
    sizes = [_right(d, d.pick(usual), ["3", "0", "8", "n", "16", "True"], 0.96) for _ in range(passed)]  # fmt: skip
    registers = [_right(d, d.pick(["24", "40", "128", "232"]), ["25", "0", "512", "n", "8"], 0.95) for _ in range(passed)]  # fmt: skip
    more = f", [{', '.join(registers)}]"
    if RELEASE >= (3, 7):
        more = d.pick([more, more, "", ", None", f", worker_num_regs=[{', '.join(registers)}]"])
    elif not _chance(d, 0.97):
        more = ""
    body = [
        f"L: gl.constexpr = gl.BlockedLayout([1], [32], [{warps}], [0])",
        "x = gl.arange(0, 128, L) + n",
        "s = gl.allocate_shared_memory(gl.int32, [2, 128], gl.SwizzledSharedLayout(1, 1, 1, [0]))",
    ]
    call = f"gl.warp_specialize([{', '.join(parts)}], [{', '.join(sizes)}]{more})"
    if parts[0].startswith("(returns"):
        body += [f"a, b = {call}", "gl.store(q + gl.arange(0, 128, L), a + b)"]
    elif parts[0].startswith("(one, (x"):
        body += [f"a = {call}", "gl.store(q + gl.arange(0, 128, L), a)"]
    elif d.chance(0.2):
        body += ["for k in range(n):", f"    {call}"]
    else:
        body.append(call)
    source = _source(body, _ARGS, ", f", _target(arch, warps))
    parts = _PARTS
    if RELEASE == (3, 6):  # which has no compile-time num_warps
        parts = parts.replace("gl.num_warps()", "4")
    return source.replace("@gluon.jit\ndef kernel", f"{parts}@gluon.jit\ndef kernel", 1)


FAMILIES: dict[str, Callable[[Draw], str]] = {
    "partitions": partitions,
    **({"packed pairs": pairs} if RELEASE < (3, 8) else {"packed arithmetic": arithmetic}),
    **({"loads that reduce": reductions} if RELEASE >= (3, 7) else {}),
}
