"""Random operands for each portable op, most of them wrong. Run as a program: the process must
live to print its last line, whatever the operands; see `test_fuzz`.

    python -m tests.frontend.fuzz SEED COUNT
"""

from __future__ import annotations

import os
import random
import sys
import traceback

from gluon_core.errors import GluonError
from tests.frontend import oracle

DTYPES = [
    f"gl.{t}"
    for t in "float32 float16 bfloat16 float64 int32 int8 uint8 uint32 int64 int1 int16 float8e5 float8e4nv".split()
]
SHAPES = [
    "[128]",
    "[64]",
    "[32, 16]",
    "[16, 32]",
    "[1]",
    "[32, 1]",
    "[8, 4, 4]",
    "[2, 2, 2, 64]",
    "[100]",
    "[0]",
    "[128, 2]",
    "[4, 2]",
    "[256]",
    "[1, 1]",
    "[16, 16, 2]",
]
LAYOUTS = [
    "gl.BlockedLayout([1], [32], [4], [0])",
    "gl.BlockedLayout([4], [32], [4], [0])",
    "gl.BlockedLayout([1], [32], [8], [0])",
    "gl.BlockedLayout([1, 2], [4, 8], [4, 1], [1, 0])",
    "gl.BlockedLayout([2, 1], [8, 4], [1, 4], [0, 1])",
    "gl.BlockedLayout([1, 1, 2], [2, 4, 4], [2, 2, 1], [2, 1, 0])",
    "gl.BlockedLayout([1, 1, 2], [4, 8, 1], [4, 1, 1], [2, 1, 0])",
    "gl.BlockedLayout([1, 1, 1, 2], [2, 2, 2, 4], [2, 2, 1, 1], [3, 2, 1, 0])",
    "gl.SliceLayout(0, gl.BlockedLayout([1, 2], [4, 8], [4, 1], [1, 0]))",
    "gl.SliceLayout(1, gl.BlockedLayout([1, 2], [4, 8], [4, 1], [1, 0]))",
    "gl.SliceLayout(2, gl.BlockedLayout([1, 1, 2], [2, 4, 4], [2, 2, 1], [2, 1, 0]))",
    "gl.DotOperandLayout(0, gl.BlockedLayout([1, 2], [4, 8], [4, 1], [1, 0]), 0)",
    "gl.DotOperandLayout(1, gl.BlockedLayout([1, 2], [4, 8], [4, 1], [1, 0]), 0)",
    "gl.DistributedLinearLayout([[64]], [[1], [2], [4], [8], [16]], [[32], [0]], [], [128])",
    "gl.DistributedLinearLayout([[0, 1], [16, 0]], [[0, 2], [0, 4], [0, 8], [1, 0], [2, 0]], [[4, 0], [8, 0]], [], [32, 16])",
    "gl.NVMMADistributedLayout([2, 0], [4, 1], [16, 8])",
    "gl.DotOperandLayout(0, gl.NVMMADistributedLayout([2, 0], [4, 1], [16, 8]), 2)",
    "gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 16, 16])",
    "gl.AutoLayout()",
    "gl.CoalescedLayout()",
    "None",
    "gl.SwizzledSharedLayout(1, 1, 1, [0])",
    "3",
]
SHARED = [
    "gl.SwizzledSharedLayout(1, 1, 1, [0])",
    "gl.SwizzledSharedLayout(4, 2, 4, [1, 0])",
    "gl.SwizzledSharedLayout(8, 1, 8, [0, 1])",
    "gl.SwizzledSharedLayout(2, 1, 1, [2, 1, 0])",
    "gl.PaddedSharedLayout.with_identity_for([[16, 4]], [32, 16], [1, 0])",
    "gl.PaddedSharedLayout.with_identity_for([[32, 8]], [128], [0])",
    "gl.SharedLinearLayout([[0, 1], [1, 0], [2, 0]])",
    "gl.SharedLinearLayout([[1], [2], [4], [8], [16], [32], [64]])",
    "gl.NVMMASharedLayout(128, 16, 2)",
    "gl.NVMMASharedLayout(32, 8, 2, transposed=True)",
    "gl.NVMMASharedLayout(64, 32, 3)",
    "gl.BlockedLayout([1], [32], [4], [0])",
]
SCALARS = [
    "n",
    "f",
    "3",
    "2.5",
    "0",
    "-1",
    "True",
    "None",
    "fp",
    "ip",
    "n > 3",
    "2**40",
    "gl.float32",
    "'text'",
    "(1, 2)",
]
AXES = ["0", "1", "-1", "2", "3", "-4", "None", "n", "1.5"]
UNARY = (
    "abs ceil cos erf exp exp2 floor log log2 rsqrt sin sqrt sqrt_rn ravel cumsum cumprod".split()
)
BINARY = "add sub mul maximum minimum div_rn fdiv umulhi cdiv join broadcast xor_sum multiple_of expect_zero".split()
METHODS = [
    "T",
    "abs()",
    "item()",
    "softmax()",
    "sort()",
    "flip()",
    "split()",
    "sum()",
    "max()",
    "argmax(0)",
    "ravel()",
    "trans()",
    "histogram(16)",
    "logical_and(b)",
    "cumsum()",
]
OPERATORS = "+ - * / // % & | ^ << >> < <= == != >".split()
COMBINE = ["plus", "both", "wide", "nothing", "cond"]

BEFORE = """
@gluon.jit
def plus(a, b):
    return a + b
@gluon.jit
def both(a, i, b, j):
    return a + b, i + j
@gluon.jit
def wide(a, b):
    return a.to(gl.float64)
@gluon.jit
def nothing(a, b):
    pass
@gluon.jit
def cond(a, b):
    if a > b:
        return a
    return b
"""


_FLAT = [layout for k, layout in enumerate(LAYOUTS) if k in (0, 1, 8, 9, 13, 18, 19)]
_FLAT2 = [layout for k, layout in enumerate(LAYOUTS) if k in (3, 4, 10, 11, 12, 14, 15, 16, 18, 19)]
_FLAT3 = [LAYOUTS[k] for k in (5, 6, 18)]
FITTING = {
    "[128]": _FLAT,
    "[64]": _FLAT,
    "[256]": _FLAT,
    "[1]": _FLAT,
    "[32, 16]": _FLAT2,
    "[16, 32]": _FLAT2,
    "[32, 1]": _FLAT2,
    "[128, 2]": _FLAT2,
    "[1, 1]": _FLAT2,
    "[4, 2]": _FLAT2,
    "[8, 4, 4]": _FLAT3,
    "[16, 16, 2]": _FLAT3,
    "[2, 2, 2, 64]": [LAYOUTS[7]],
}
SHARED_FITTING = {
    "[128]": [SHARED[0], SHARED[5], SHARED[7]],
    "[2, 128]": [SHARED[0]],
    "[32, 16]": [*SHARED[1:3], SHARED[4], *SHARED[8:10]],
    "[4, 2]": [SHARED[6], SHARED[1]],
    "[2, 32, 16]": [SHARED[1], SHARED[2], SHARED[8], SHARED[3]],
    "[64, 64]": [SHARED[1], SHARED[8], SHARED[9]],
    "[8, 4, 4]": [SHARED[3], SHARED[10], SHARED[1]],
}


class Kernel:
    """A random kernel: some operands, then one op on them."""

    def __init__(self, random_: random.Random):
        self.random = random_
        self.lines: list[str] = []

    def pick(self, choices: list[str]) -> str:
        return self.random.choice(choices)

    def tensor(self, name: str) -> str:
        """A tensor called `name`, most often of a shape that its layout fits."""
        shape, layout, dtype = self.pick(SHAPES), self.pick(LAYOUTS), self.pick(DTYPES)
        if self.random.random() < 0.95:
            shape = self.pick(list(FITTING))
            layout = self.pick(FITTING[shape])
        self.shape, self.layout = shape, layout
        value = self.pick(["1", "1", "n", "f", "0", "True"])
        ways = [
            f"gl.full({shape}, 1, gl.float32, {layout}).to({dtype})",
            f"gl.full({shape}, {value}, {dtype}, {layout})",
            f"gl.zeros({shape}, {dtype}, {layout})",
            f"gl.zeros({shape}, gl.int32, {layout}) + fp",
            f"gl.zeros({shape}, gl.int32, {layout})",
            f"gl.zeros({shape}, gl.int32, {layout}) + ip",
            f"gl.zeros({shape}, gl.int32, {layout}) < n",
            f"gl.full({shape}, 1, {dtype})",
            self.pick(SCALARS[:8]),
        ]
        self.lines.append(f"{name} = {self.pick(ways)}")
        return name

    def like(self, name: str) -> str:
        """Another tensor with the shape and layout of the last."""
        self.lines.append(
            f"{name} = gl.full({self.shape}, 1, gl.float32, {self.layout}).to({self.pick(DTYPES)})"
        )
        return name

    def memdesc(self, name: str) -> str:
        shape, layout = self.pick(SHAPES), self.pick(SHARED)
        if self.random.random() < 0.9:
            shape = self.pick(list(SHARED_FITTING))
            layout = self.pick(SHARED_FITTING[shape])
        value = self.pick(["", "", "", "", ", a"])
        self.lines.append(
            f"{name} = gl.allocate_shared_memory({self.pick(DTYPES)}, {shape}, {layout}{value})"
        )
        return name

    def operand(self) -> str:
        return self.pick(["a", "a", "b", "c", *SCALARS[:6]])

    def op(self) -> str:
        p, x, y, z = self.pick, self.operand(), self.operand(), self.operand()
        layout, dtype, shape, axis = p(LAYOUTS), p(DTYPES), p(SHAPES), p(AXES)
        return p(
            [
                f"gl.{p(UNARY)}({x})",
                f"gl.{p(BINARY)}({x}, {y})",
                f"{x} {p(OPERATORS)} {y}",
                f"{x} {p(OPERATORS)} {y}",
                f"a.{p(METHODS)}",
                f"gl.where({x}, {y}, {z})",
                f"gl.fma({x}, {y}, {z})",
                f"gl.clamp({x}, {y}, {z})",
                f"gl.convert_layout({x}, {layout}, assert_trivial={p(['True', 'False'])})",
                f"gl.set_auto_layout({x}, {layout})",
                f"a.to({dtype}, bitcast={p(['True', 'False', 'False'])})",
                f"gl.cast({x}, {dtype}, {p(['None', repr('rtz'), repr('rtne'), '3'])})",
                f"gl.reshape({x}, {shape})",
                f"a.reshape({shape}, can_reorder=True)",
                f"gl.permute({x}, {p(['(1, 0)', '[0]', '(0, 1, 2)', '(2, 0, 1)', '(0, 0)', '3'])})",
                f"gl.expand_dims({x}, {axis})",
                f"{x}[:, None]",
                f"{x}[None, :]",
                f"{x}[None]",
                f"gl.split({x})",
                f"a.broadcast_to({shape})",
                f"gl.{p(['sum', 'max', 'min', 'xor_sum', 'reduce_or'])}({x}, {axis})",
                f"gl.max({x}, {axis}, return_indices=True, keep_dims=True)",
                f"gl.reduce({p(['a', '(a, b)', '(b, a)', 'c', '(a, a)'])}, {axis}, {p(COMBINE)})",
                f"gl.associative_scan({p(['a', '(a, b)', 'b'])}, {axis}, {p(COMBINE)}, reverse={p(['True', 'False'])})",
                f"gl.map_elementwise({p(COMBINE)}, {x}, {y}, pack={p(['1', '2', '3'])})",
                f"gl.gather({x}, {y}, {axis})",
                f"gl.histogram({x}, {p(['16', '100', '0', 'n', '-2'])}, {p(['None', y])}, {layout})",
                f"gl.dot_fma({x}, {y}, {z})",
                f"gl.fp4_to_fp({x}, {dtype}, {axis})",
                f"gl.load({x}, {p(['None', y])}, {p(['None', z])})",
                f"gl.store({x}, {y}, {p(['None', z])})",
                f"gl.atomic_{p(['add', 'max', 'min', 'and', 'or', 'xor', 'xchg'])}({x}, {y}, {p(['None', z])})",
                f"gl.atomic_cas({x}, {y}, {z})",
                f"gl.atomic_load({x}, {p(['None', y])})",
                f"gl.atomic_store({x}, {y}, {p(['None', z])})",
                f"gl.atomic_poll({x}, {y})",
                f"gl.full({shape}, {x}, {dtype}, {layout})",
                f"gl.full_like({x}, {y})",
                f"gl.zeros_like({x}, {shape}, {dtype}, {layout})",
                f"gl.to_linear_layout({p([layout, p(SHARED)])}, {shape})",
                f"gl.bank_conflicts(({x}).type, s.type)",
                f"gl.inline_asm_elementwise('mov $0, $1;', {p([repr('=r,r'), repr('=f,f'), repr('bad'), repr('=r')])}, [{x}], {dtype}, True, {p(['1', '2', '4', '3', '0'])})",
                f"gl.device_print('x', {x})",
                f"gl.device_assert({x}, 'm')",
                f"gl.max_constancy({x}, {p(['4', '[4, 4]', '3'])})",
                f"gl.to_tensor({x})",
                f"gl.assume({x})",
                f"gl.fpsan.embed({x})",
                f"gl.fpsan.unembed({x}, {dtype})",
                f"gl.umulhi({x}, {y})",
                f"gl.join({x}, {y})",
                f"s.load({layout})",
                f"s.store({x})",
                f"s.index({p(['0', 'n', '5', '-1', 'a'])})",
                f"s.slice({p(['0', '16', '3', 'n'])}, {p(['16', '8', '3', '0'])}, {axis})",
                f"s.permute({p(['(1, 0)', '[0]', '(0, 1, 2)', '(2, 0, 1)'])})",
                f"s.reshape({shape})",
                f"s.index(0).load({layout})",
                f"s.reshape({shape}).load({layout})",
                f"s.permute((1, 0)).load({layout})",
                f"s.slice(0, 8, {p(['0', '1'])}).load({layout})",
                f"s.slice(0, 8, 0).reshape({shape})",
                "s.slice(0, 8, 0).permute((1, 0)).slice(0, 4, 0)",
                f"s._reinterpret({dtype}, {shape}, {p(SHARED)}).load({layout})",
                f"s._reinterpret({dtype}, {shape}, {p(SHARED)})",
                f"s.gather({x}, {axis})",
                f"s.scatter({x}, {y}, {axis})",
                f"s.atomic_scatter_{p(['add', 'max', 'and', 'xchg'])}({x}, {y}, {axis}, {p(['None', z])})",
                "s._keep_alive()",
                f"if {x}:\n        a = {y}",
                f"for k in range({x}):\n        a = {y}",
                f"while {x}:\n        a = {y}",
                f"for k in range({x}, {y}, {z}):\n        a += k",
                f"gl.static_assert({x})",
                f"gl.arange({p(['0', 'n', '-3', '2.0'])}, {p(['16', 'n', '100'])}, {layout})",
                f"gl.warp_specialize([(nothing, ({x}, {y})), (nothing, ({z}, {x}))], [{p(['1', '2', '4'])}], [24])",
                f"gl.program_id({axis})",
                f"({x}, {y})[{axis}]",
                f"gl.barrier(cluster={p(['True', 'False', x])})",
            ]
        )

    def source(self) -> str:
        self.tensor("a")
        for name in ("b", "c"):
            if self.random.random() < 0.75:
                self.like(name)
            else:
                self.tensor(name)
        op = self.op()
        while op.startswith("s.") and self.random.random() < 0.3:
            op = self.op()
        for _ in range(3):
            if (
                " = " not in op
                and not op.startswith(("for", "if", "while"))
                and self.random.random() < 0.5
            ):
                op = f"a = {op}\n    {self.op()}"
        if "s." in op:
            self.memdesc("s")
        body = [*self.lines, op]
        kernel = "@gluon.jit\ndef kernel(fp, hp, ip, cp, n, f):\n" + "".join(
            f"    {line}\n" for line in body
        )
        return f"{BEFORE}\n{kernel}ARGS = (ptr(gl.float32), ptr(gl.float16), ptr(gl.int32), ptr(gl.int8), 100, 2.5)\n"


def main(seed: int, count: int) -> None:
    worked = refused = 0
    for number in range(count):
        source = Kernel(random.Random(f"{seed}:{number}")).source()
        os.write(
            1,
            f"CASE {number}\n{source}\n".encode()
            if "-v" in sys.argv
            else f"CASE {number}\n".encode(),
        )
        try:
            oracle.ours(source)
            worked += 1
        except GluonError as error:
            assert str(error) and (error.span is None or error.span.text), repr(error)
            refused += 1
        except Exception:
            os.write(1, f"FOREIGN {number}\n{source}\n{traceback.format_exc()}\n".encode())
    os.write(1, f"END {worked} {refused}\n".encode())


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
