"""Operands that loosened checks let through: random operands for each such check.

A loosened check is between a user's mistake and a compiler that aborts, so each has
kernels of its own, most of them wrong. `python -m tests.compat.sweep --family loosened` runs many of them.
"""

from __future__ import annotations

import os
import random
import tempfile
from dataclasses import dataclass

from gluon_core.testing import TRITON_VERSION
from tests.compat import sides
from tests.frontend import oracle
from tests.fuzz import layouts
from tests.fuzz.draw import Draw
from tests.fuzz.layouts import CUDA, HIP
from tests.fuzz.operands import SINK

__all__ = ["CHECKS", "compiled", "ended", "made", "names"]

RELEASE = TRITON_VERSION[:2]
HOPPER, BLACKWELL = CUDA.format(arch=90), CUDA.format(arch=100)
CDNA3, CDNA4 = HIP.format(arch="gfx942", lanes=64), HIP.format(arch="gfx950", lanes=64)

_HOLES: dict[str, list[str]] = {
    "int": ["i", "i + n", "col", "row", "one", "n", "3", "-1", "True", "None", "x", "i.to(gl.int8)",
            "i.to(gl.int64)", "i.to(gl.uint32)", "n.to(gl.int64)", "flat", "i > 2", "p"],
    "mask": ["i > 2", "col > 2", "row > 2", "n > 2", "True", "1", "i", "n", "None", "x", "flat > 1",
             "i.to(gl.int8)", "i.to(gl.uint32)", "2.5"],
    "value": ["x", "i", "n", "2.5", "1", "-1", "None", "col", "row", "flat", "p", "x.to(gl.float16)",
              "i.to(gl.uint32)", "i.to(gl.int64)", "auto"],
    "dtype": [f"gl.{t}" for t in ("float32 float16 float64 int32 int8 uint8 int64 uint32 int1 "
              "float8e5").split()],
    "shape": ["[32, 32]", "[1024]", "[2]", "[1, 2]", "[2, 1]", "[64, 32]", "[16, 32]", "[1]",
              "[2, 32, 32]", "[4, 8, 32]", "[0]", "[3, 2]"],
    "layout": ["L", "F", "P", "gl.AutoLayout()", "gl.CoalescedLayout()", "gl.SliceLayout(0, L)",
               "gl.SliceLayout(1, P)", "S", "gl.DotOperandLayout(0, L, 0)", "T", "None"],
    "shared": ["S", "F1", "gl.NVMMASharedLayout(128, 32, 2)", "gl.NVMMASharedLayout(32, 16, 2)", "L",
               "gl.SharedLinearLayout([[0, 0], [1, 0], [0, 1]])", "gl.SwizzledSharedLayout(4, 0, 3, [1, 0])",
               "gl.PaddedSharedLayout.with_identity_for([[32, 4]], [32, 32], [1, 0])"],
    "axis": ["0", "1", "-1", "2", "-3", "n", "None", "True"],
    "start": ["0", "1", "2", "8", "16", "31", "-1", "n"],
    "length": ["1", "2", "3", "8", "16", "32", "0"],
    "index": ["0", "1", "2", "n", "n & 1", "i", "-1", "n.to(gl.int64)"],
    "scale": ["n", "1", "2.5", "300", "None", "n.to(gl.int64)", "x", "scales", "scales.to(gl.int8)",
              "scales.to(gl.int32)", "n.to(gl.float32)"],
    "kind": ["'e2m1'", "'e4m3'", "'e5m2'", "'bf16'", "'none'"],
    "variant": ["'32x32b'", "'16x64b'", "'16x128b'", "'16x256b'", "'16x32bx2'", "'32x32b_splitn'", "3"],
    "columns": ["1", "2", "4", "16", "64", "256", "3"],
    "rows": ["64", "128", "256", "32"],
    "stride": ["1", "2", "4", "3"],
    "bits": ["float32", "float16", "int8", "float8e5", "float64", "uint8"],
    "box": ["[32, 64]", "[256, 64]", "[512, 64]", "[32, 32]", "[32, 128]", "[64]", "[1, 32, 64]"],
    "half": ["x.to(gl.float16)", "x.to(gl.bfloat16)", "x", "x.to(gl.float8e5)", "x.to(gl.float8e4nv)",
             "i.to(gl.uint8)", "i.to(gl.int8)", "2.5", "n", "i", "x.to(gl.float64)"],
    "fp8": ["x.to(gl.float8e5)", "x.to(gl.float8e4nv)", "x.to(gl.float8e4nv)", "<half>"],
    "codes": ["codes", "codes", "codes.to(gl.int8)", "transposed", "i.to(gl.uint8)", "<fp8>", "2"],
    "count": ["1", "2", "4", "True", "3", "0", "8", "n"],
    "registers": ["24", "40", "25", "8", "0", "-8", "300", "512", "n", "True", "2.5", "1 << 20"],
    "extent": ["64", "n", "True", "0", "-1", "2.5", "n > 2", "i", "1 << 40", "None", "n.to(gl.int64)"],
    "many": ["8", "16", "32", "64", "1"],
    "lanes": ["gl.SliceLayout(1, gl.BlockedLayout([1, 1], [1, 32], [1, 4], [1, 0]))", "F", "gl.AutoLayout()",
              "gl.SliceLayout(1, gl.BlockedLayout([16, 1], [1, 32], [1, 4], [1, 0]))"],
    "wide": ["16", "32", "64", "8"],
}  # fmt: skip


@dataclass(frozen=True)
class Check:
    """Ops whose check was loosened; `before` are lines that they need in addition to the usual ones."""

    ops: tuple[str, ...]
    target: str = HOPPER
    before: tuple[str, ...] = ()
    since: tuple[int, int] = (3, 6)
    last: tuple[int, int] = (3, 9)


_BUFFERS = (
    "s = gl.allocate_shared_memory(gl.int32, [32, 32], S)",
    "b = gl.allocate_shared_memory(gl.int32, [4, 32, 32], S)",
    "s.store(i)",
)
_MFMA = (
    "M: gl.constexpr = gl.amd.AMDMFMALayout(4, [32, 32, 64], True, [2, 2])",
    "a = gl.full([64, 32], 1, gl.uint8, gl.DotOperandLayout(0, M, 16))",
    "c = gl.full([32, 64], 1, gl.uint8, gl.DotOperandLayout(1, M, 16))",
    "acc = gl.zeros([64, 64], gl.float32, M)",
    "scales = gl.full([64, 2], 1, gl.uint8, gl.BlockedLayout([1, 1], [32, 2], [4, 1], [1, 0]))",
)
_COPY = (
    "barrier = gl.allocate_shared_memory(gl.int64, [1], hopper.mbarrier.MBarrierLayout())",
    "hopper.mbarrier.init(barrier, 1)",
)
CHECKS: dict[str, Check] = {
    "split": Check(("gl.split(<value>)", "gl.split(gl.full(<shape>, 1, <dtype>, <layout>))",
                    "gl.split(gl.join(<value>, <value>))")),
    "slices of buffers": Check((
        "s.slice(<start>, <length>, <axis>).load(L)", "b.slice(<start>, <length>, <axis>).index(<index>).load(L)",
        "b.slice(<start>, <length>, 0).slice(<start>, <length>, <axis>).index(0).load(L)",
        "b.index(<index>).slice(<start>, <length>, <axis>).load(P)",
    ), before=_BUFFERS),
    "conversions": Check((
        "gl.convert_layout(<value>, <layout>)", "gl.convert_layout(<value>, <layout>, assert_trivial=True)",
        "gl.set_auto_layout(gl.convert_layout(<value>, gl.AutoLayout()), <layout>)",
        "gl.convert_layout(gl.full(<shape>, 1, gl.int32, <layout>), <layout>)",
    )),
    "initial values": Check((
        "gl.allocate_shared_memory(<dtype>, <shape>, <shared>, <value>).load(L)",
        "gl.allocate_shared_memory(<dtype>, [32, 32], <shared>, <value>).load(L)",
    )),
    "views": Check((
        "s._reinterpret(<dtype>, <shape>, <shared>).load(<layout>)", "s._reinterpret(<dtype>, <shape>, <shared>)",
        "b._reinterpret(<dtype>, [32, 32], <shared>).load(L)", "s._reinterpret(<dtype>, [32, 32], S).load(L)",
    ), before=_BUFFERS),
    "scatters": Check((
        "s.scatter(<value>, <int>, <axis>)", "s.gather(<int>, <axis>)", "s.scatter(<int>, <int>, 0)",
    ), before=_BUFFERS, since=(3, 7)),
    "atomic scatters": Check((
        "s.atomic_scatter_add(<value>, <int>, <axis>, <mask>)", "s.atomic_scatter_max(<int>, <int>, 0, <mask>)",
    ), before=_BUFFERS, since=(3, 8)),
    "buffer ops": Check((
        "gl.amd.cdna3.buffer_load(p, <int>, <mask>, <value>)", "gl.amd.cdna3.buffer_store(<value>, p, <int>, <mask>)",
        "gl.amd.cdna3.buffer_load(p, auto, <mask>, <value>)", "gl.amd.cdna3.buffer_store(<value>, p, auto, <mask>)",
        "gl.amd.cdna3.buffer_atomic_add(q, <int>, <value>, <mask>)", "gl.amd.cdna3.buffer_atomic_max(q, auto, <value>, <mask>)",
    ), target=CDNA3),
    "scales": Check((
        "gl.amd.cdna4.mfma_scaled(a, <scale>, <kind>, c, <scale>, <kind>, acc)",
        "gl.amd.cdna4.mfma_scaled(a, <scale>, 'e2m1', c, <scale>, 'e2m1', acc)",
    ), target=CDNA4, before=_MFMA),
    "tensor memory": Check((
        "t.load(gl.BlockedLayout([1, <columns>], [32, 1], [4, 1], [0, 1]))", "t.load(R)", "t.load(<layout>)",
        "t.store(gl.full([<rows>, <columns>], 1, gl.<bits>, R))", "t._reinterpret(gl.<bits>, [<rows>, <columns>], TM).load(R)",
        "t.slice(<start>, <length>).load(R)", "t.index(<index>)",
    ), target=BLACKWELL, before=(
        "TM: gl.constexpr = blackwell.TensorMemoryLayout([<rows>, <columns>], col_stride=<stride>)",
        "t = blackwell.allocate_tensor_memory(gl.<bits>, [<rows>, <columns>], TM)",
        "R: gl.constexpr = " + ("t.get_reg_layout(instr_variant=<variant>)" if RELEASE >= (3, 8) else
         "blackwell.get_tmem_reg_layout(gl.<bits>, [<rows>, <columns>], TM, 4, instr_variant=<variant>)"),
    )),
    "packed arithmetic": Check((
        "blackwell.add2(<half>, <half>)", "blackwell.mul2(<half>, <half>, <dtype>)", "blackwell.min2(<half>, <half>)",
        "blackwell.fma2(<half>, <half>, <half>)", "blackwell.mul2(<codes>, <codes>, <dtype>)",
        "blackwell.mul2(<codes>, <codes>, gl.float8e5)", "blackwell.add2(<codes>, <fp8>)",
        "blackwell.fma2(<codes>, <codes>, <fp8>)", "gl.nvidia.rubin.add4(<half>, <half>)",
    ), target=BLACKWELL, since=(3, 8), before=(
        "C: gl.constexpr = gl.BlockedLayout([1, 1], [4, 8], [4, 1], [1, 0])",
        "codes = (gl.full([32, 16], 0, gl.int32, C) + n).to(gl.uint8)",
        "transposed = (gl.full([16, 32], 0, gl.int32, C) + n).to(gl.uint8)",
    )),
    "partitions": Check((
        "gl.warp_specialize([(work, (q, n)), (work, (q, 1))], [<count>], [<registers>])",
        "gl.warp_specialize([(work, (q, n)), (work, (q, 1)), (work, (q, n))], [<count>, 4], [<registers>, 24])",
    )),
    "extents of descriptors": Check((
        "hopper.tma.make_tensor_descriptor(p, [<extent>, 64], [64, 1], [32, 32], gl.NVMMASharedLayout(128, 32, 2))",
        "hopper.tma.make_tensor_descriptor(p, [64, <extent>], [<extent>, 1], [32, 32], gl.NVMMASharedLayout(128, 32, 2))",
    )),
    "rows of gathers": Check((
        "gl.amd.gfx1250.tdm.async_gather(made, gl.arange(0, <many>, <lanes>), s)",
        "gl.amd.gfx1250.tdm.async_scatter(made, gl.arange(0, <many>, <lanes>).to(<dtype>), s)",
    ), target=HIP.format(arch="gfx1250", lanes=32), since=(3, 8), before=(
        "made = gl.amd.gfx1250.tdm.make_tensor_descriptor(p, [n, 64], [64, 1], [<wide>, 32], S)",
        "s = gl.allocate_shared_memory(gl.float32, made.block_shape, S)",
    )),
    "boxes of copies": Check((
        "hopper.tma.async_copy_global_to_shared(desc, [n, 0], barrier, gl.allocate_shared_memory(gl.float16, <box>, B16))",
        "hopper.tma.async_copy_shared_to_global(desc, [<index>, 0], gl.allocate_shared_memory(<dtype>, <box>, <shared>))",
    ), before=_COPY),
}  # fmt: skip


def made(name: str, number: int) -> str:
    """The source of one kernel for a check, or of one with a layout of a family."""
    d = Draw(random.Random(f"{name}:{number}"))
    if name in layouts.FAMILIES:
        return layouts.FAMILIES[name](d)
    check = CHECKS[name]
    lanes = 64 if check.target in (CDNA3, CDNA4) else 32
    rows = lanes // 8
    body = [
        f"L: gl.constexpr = gl.BlockedLayout([1, 2], [{rows}, 8], [4, 1], [1, 0])",
        f"P: gl.constexpr = gl.BlockedLayout([2, 1], [8, {rows}], [1, 4], [0, 1])",
        f"F: gl.constexpr = gl.BlockedLayout([1], [{lanes}], [4], [0])",
        f"T: gl.constexpr = gl.BlockedLayout([1, 1, 2], [1, {rows}, 8], [1, 4, 1], [2, 1, 0])",
        "S: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [1, 0])",
        "F1: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])",
        "B16: gl.constexpr = gl.NVMMASharedLayout(128, 16, 2)",
        "i = gl.full([32, 32], 0, gl.int32, L) + n",
        "auto = gl.full([32, 32], 0, gl.int32, gl.AutoLayout()) + n",
        "flat = gl.arange(0, 256, F) + n",
        "col = gl.full([32, 1], 0, gl.int32, L) + n",
        "row = gl.full([1, 32], 0, gl.int32, L) + n",
        "one = gl.full([1, 1], 0, gl.int32, L) + n",
        "x = gl.load(p + i)",
    ]
    if "auto" not in check.ops[-1] and "<value>" not in "".join(check.ops):
        body = [line for line in body if not line.startswith("auto")]
    lines = [d.fill(line, _HOLES) for line in check.before]
    op = d.fill(d.pick(check.ops), _HOLES)
    effects = ("store(", ".scatter(", "async_", "warp_specialize", "make_tensor")
    store = any(word in op for word in effects)
    body += [*lines, op if store else f"y = {op}"]
    if not store:
        body.append("sink(p, y)")
    args = "ARGS = (ptr(gl.float32), ptr(gl.int32), 5)\n"
    head = "p, q, n"
    if "desc" in op:
        head += ", desc"
        args = (
            "import torch\nfrom gluon_core.nvidia.hopper import TensorDescriptor\n"
            "DESC = TensorDescriptor(torch.zeros(1024, 128).half(), [1024, 128], [128, 1], [512, 64], "
            "gl.NVMMASharedLayout(128, 16, 2))\n"
            "ARGS = (ptr(gl.float32), ptr(gl.int32), 5, DESC)\n"
        )
    text = "".join(f"    {line}\n" for line in body)
    return (
        "hopper, blackwell = gl.nvidia.hopper, gl.nvidia.blackwell\n"
        f"{SINK}{_WORK if 'work' in op else ''}@gluon.jit\ndef kernel({head}):\n{text}{args}TARGET = {check.target}\n"
    )


_WORK = """@gluon.jit
def work(q, n):
    gl.store(q, n)
"""


def _compiled(source: str, cache: str) -> str:
    """Machine code, the way a user's launch makes it."""
    os.environ["TRITON_CACHE_DIR"] = cache
    module = oracle.load(source, oracle.OURS)
    module.kernel.warmup(*module.ARGS, grid=(1,), target=module.TARGET, **module.KWARGS)
    return "compiled"


def ended(name: str, number: int) -> tuple[str, str]:
    """(how, what was said): traced, or compiled where tracing went well.

    `refused`, or `late` by the compiler, both under the kernel's line; `compiled`; or what must not
    be: `nowhere` (an error without a line), `foreign` or `abort`.
    """
    source = made(name, number)
    kind = "refused"
    outcome = sides.child(lambda: str(oracle.ours(source)) and "traced")
    if outcome.how == "ok":
        how, text = compiled(source)
        return how, f"{text}\n{source}" if text else ""
    how = kind if outcome.how == "error" else outcome.how
    return how if "^" in outcome.text or how != kind else "nowhere", f"{outcome.text}\n{source}"


def compiled(source: str) -> tuple[str, str]:
    """Return the end of a compile, and its message; see `ended`."""
    with tempfile.TemporaryDirectory(prefix="gluon-loosened-") as cache:
        outcome = sides.child(lambda: _compiled(source, cache))
    if outcome.how == "ok":
        return "compiled", ""
    how = "late" if outcome.how == "error" else outcome.how
    return how if "^" in outcome.text or how != "late" else "nowhere", outcome.text


def names() -> list[str]:
    """The checks that the installed release has, and the families of layouts."""
    here = [name for name, check in CHECKS.items() if check.since <= RELEASE <= check.last]
    return [*here, *layouts.FAMILIES]
