"""Every op with every dtype on every architecture, as kernels of a few lines: what the simulator
accepts must compile, and what does not compile must be refused by both for the same reason.

`cells()` yields them; `answers` gives both verdicts of one.
"""

from __future__ import annotations

import importlib.util
import sys
import tempfile
import warnings
from collections import Counter
from pathlib import Path
from typing import Iterator, NamedTuple, Optional

import numpy as np

import gluon_core as gluon
from gluon_core.errors import GluonError, KernelWarning
from gluon_core.registry.load import registry
from gluon_core.testing import triton_at_least
from tests.compile.matrix_units import HELPERS, unit_cells

FLOATS = ("fp16", "bf16", "fp32", "fp64")
NARROW = ("fp8e5", "fp8e4nv", "fp8e5b16", "fp8e4b8", "fp8e4b15")
SIGNED = ("i8", "i16", "i32", "i64")
UNSIGNED = ("u8", "u16", "u32", "u64")
WHOLE = SIGNED + UNSIGNED
NAMES = {
    **{f"i{bits}": f"int{bits}" for bits in (8, 16, 32, 64)},
    **{f"u{bits}": f"uint{bits}" for bits in (8, 16, 32, 64)},
    **{"fp16": "float16", "bf16": "bfloat16", "fp32": "float32", "fp64": "float64"},
    **{name: name.replace("fp8", "float8") for name in NARROW},
}
BYTES = {name: int("".join(filter(str.isdigit, name))[:2]) // 8 for name in WHOLE + FLOATS}
BYTES |= dict.fromkeys(NARROW, 1) | {"bf16": 2}

BINARY = {
    "add": "a + b",
    "sub": "a - b",
    "mul": "a * b",
    "div": "a / b",
    "floordiv": "a // b",
    "mod": "a % b",
    "and": "a & b",
    "shift": "a << b",
    "less": "gl.where(a < b, 1, 0)",
    "equal": "gl.where(a == b, 1, 0)",
    "maximum": "gl.maximum(a, b)",
    "where": "gl.where(o > 3, a, b)",
    "fma": "gl.fma(a, b, a)",
    "umulhi": "gl.umulhi(a, b)",
    "div_rn": "gl.div_rn(a, b)",
}
UNARY = {
    name: f"gl.{name}(a)"
    for name in "abs exp exp2 log log2 sin cos sqrt sqrt_rn rsqrt erf floor ceil".split()
}
REDUCED = {name: f"gl.{name}(a, 0)" for name in "sum max min xor_sum cumsum cumprod".split()}
ATOMIC = {
    f"atomic_{name}": f"gl.atomic_{name}(p + o, a)"
    for name in "add max min and or xor xchg".split()
} | {"atomic_cas": "gl.atomic_cas(p + o, a, b)"}
MOVED = {
    "neg": "-a",
    "gather": "gl.gather(a, o, 0)",
    "convert": "gl.convert_layout(a, gl.BlockedLayout([2], [gl.target.warp_size()], [4], [0]))",
    "reshape": "gl.reshape(a, [16, 32])",
    "join": "gl.join(a, b)",
    "histogram": "gl.histogram(a, 64, layout=L)",
}
OPS = {**BINARY, **UNARY, **REDUCED, **ATOMIC, **MOVED}
CONTROL = {
    "warp_specialize": "gl.warp_specialize([(first, (p,)), (second, (p,))], [4], [48])",
    "warp_specialize-free": "gl.warp_specialize([(first, (p,)), (second, (p,))], [4])",
    "barrier": "gl.barrier()",
    "async_copy": "s = gl.allocate_shared_memory(p.dtype.element_ty, [512], SH)\n"
    "gl.portable.async_copy(s, p + o)\ngl.portable.commit()\ngl.portable.wait(0)",
    "shared": "s = gl.allocate_shared_memory(p.dtype.element_ty, [512], SH, a)\na = s.load(L)",
}

HEAD = (
    """
import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.testing import triton_at_least
LISTS = triton_at_least(3, 7)
SH = gl.constexpr(gl.SwizzledSharedLayout(1, 1, 1, [0]))

@gluon.jit
def first(p):
    gl.store(p, gl.load(p))

@gluon.jit
def second(p):
    gl.store(p + 1, gl.load(p + 1))

WARPS = gl.constexpr([[0, 1], [1, 0]] if LISTS else [2, 2])
"""
    + HELPERS
    + """
@gluon.jit
def kernel(p, q, r):
    L: gl.constexpr = gl.BlockedLayout([1], [gl.target.warp_size()], [4], [0])
    o = gl.arange(0, 512, layout=L)
    a = gl.load(p + o)
    b = gl.load(q + o)
"""
)


class Cell(NamedTuple):
    """One kernel: its name, its body, the dtype that it is about, and the dtype that it stores."""

    name: str
    body: str
    dtype: str
    result: str


def cells() -> Iterator[Cell]:
    """Every kernel of the matrix, the same for all architectures."""
    for name, text in OPS.items():
        for dtype in WHOLE + FLOATS + NARROW:
            body = f"z = {text}\n" + ("z = gl.ravel(z)\n" if name in ("join", "reshape") else "")
            if name in REDUCED and not name.startswith("cum"):
                body += "gl.store(r, z)"
            elif name in ("join", "histogram", "reshape", "convert"):
                body += "s = gl.allocate_shared_memory(z.dtype, [z.shape[0]], SH)\ns.store(z)"
            else:
                body += "gl.store(r + o, z)"
            result = "i32" if name in ("less", "equal") else dtype
            yield Cell(f"{name}-{dtype}", body, dtype, result)
    for source in WHOLE + FLOATS + NARROW:
        for goal in WHOLE + FLOATS + NARROW:
            if source != goal:
                body = f"gl.store(r + o, a.to(gl.{NAMES[goal]}))"
                yield Cell(f"cast-{source}-{goal}", body, source, goal)
    for name, text in CONTROL.items():
        for dtype in ("fp32", "fp16", "i8", "fp64") if "warp" not in name else ("fp32",):
            yield Cell(f"{name}-{dtype}", f"{text}\ngl.store(r + o, a)", dtype, dtype)
    for cell in unit_cells():
        yield Cell(*cell)


def targets() -> list[str]:
    """The architectures of all vendors whose compilers are here, in the Triton that is here."""
    registered = registry()
    return [
        a.name
        for a in registered.architectures()
        if not registered.backends[a.backend].simulates and triton_at_least(*a.min_triton)
    ]


def _kernel(cell: Cell):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "cell.py"
        body = "".join(f"    {line}\n" for line in cell.body.split("\n"))
        path.write_text(HEAD + body)
        spec = importlib.util.spec_from_file_location("cell", path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module.kernel


class _Memory:
    """512 elements of any dtype of the language."""

    def __init__(self, dtype: str):
        self.bytes = np.ones(512 * BYTES[dtype], np.uint8)
        self.dtype = NAMES[dtype]
        self.ptr_range = self.bytes.size.__int__

    def data_ptr(self) -> int:
        return self.bytes.ctypes.data


def answers(cell: Cell, target: str) -> tuple[Optional[GluonError], Optional[GluonError]]:
    """Return the errors of the simulator and the compiler for a kernel; None where they accept it."""
    verdicts: list[Optional[GluonError]] = []
    aligned = {"p": cell.dtype, "q": cell.dtype, "r": cell.result}
    signature = {name: f"*{dtype}:16" for name, dtype in aligned.items()}
    for where in (f"sim:{target}", target):
        try:
            gluon.compile(_kernel(cell), where, signature=signature)
            verdicts.append(None)
        except GluonError as error:
            verdicts.append(error)
    return verdicts[0], verdicts[1]


def kind(error: Optional[GluonError]) -> str:
    """The class of an error that has a kernel's line, else what a compiler's failure is called."""
    return "accepted" if error is None else type(error).__name__


def main(arguments: list[str]) -> int:
    """Print every disagreement, and how many cells each architecture accepts.

    Arguments are targets, all by default; `2/5` among them takes every fifth cell, from the second on.
    """
    shares = [a for a in arguments if "/" in a]
    part, of = map(int, shares[0].split("/")) if shares else (1, 1)
    names = [a for a in arguments if "/" not in a]
    disagreeing = 0
    for target in names or targets():
        counts: Counter[str] = Counter()
        for cell in list(cells())[part - 1 :: of]:
            simulated, compiled = answers(cell, target)
            if kind(simulated) == kind(compiled):
                counts["accepted" if compiled is None else "refused"] += 1
                continue
            counts["disagree"] += 1
            lines = str(compiled or simulated).split("\n")
            print(f"{target} {cell.name}: {kind(simulated)} / {kind(compiled)}: {lines[0][:150]}")
            if kind(compiled) == "StageError":
                print("    " + " | ".join(lines[1:4])[:300])
        disagreeing += counts["disagree"]
        print(f"| {target} | {counts['accepted']} | {counts['refused']} | {counts['disagree']} |")
        sys.stdout.flush()
    return 1 if disagreeing else 0


if __name__ == "__main__":
    warnings.simplefilter("ignore", KernelWarning)
    sys.exit(main(sys.argv[1:]))
