"""Random layouts as source text, and kernels that use one so that no compiler can drop it."""

from __future__ import annotations

from typing import Callable, Sequence

from gluon_core.testing import TRITON_VERSION
from tests.fuzz.draw import Draw

__all__ = ["FAMILIES"]

RELEASE = TRITON_VERSION[:2]
CUDA = 'GPUTarget("cuda", {arch}, 32)'
HIP = 'GPUTarget("hip", "{arch}", {lanes})'


class Setting:
    """A target, the warps of a block and the blocks of a cluster."""

    def __init__(self, d: Draw, vendor: str = "", clusters: bool = True):
        vendor = vendor or d.pick(["cuda", "cuda", "cuda", "hip", "hip"])
        self.warps = d.pick([1, 2, 4, 4, 4, 8])
        self.ctas = 1
        if vendor == "cuda":
            self.arch = d.pick([80, 90, 90, 100, 100, 120])
            self.lanes = 32
            self.target = CUDA.format(arch=self.arch)
            if clusters and self.arch in (90, 100) and d.chance(0.25):
                self.ctas = d.pick([2, 2, 4])
        else:
            self.arch, self.lanes = d.pick(
                [("gfx942", 64), ("gfx950", 64), ("gfx1100", 32), ("gfx1200", 32), ("gfx1250", 32)]
            )
            self.target = HIP.format(arch=self.arch, lanes=self.lanes)
            if clusters and self.arch == "gfx1250" and RELEASE >= (3, 7) and d.chance(0.25):
                self.ctas = d.pick([2, 4])
        self.kwargs = f"dict(num_warps={self.warps}" + (
            f", num_ctas={self.ctas})" if self.ctas > 1 else ")"
        )

    def end(self) -> str:
        return f"TARGET, KWARGS = {self.target}, {self.kwargs}\n"


def blocked(d: Draw, s: Setting, rank: int) -> str:
    size = [d.power(2) for _ in range(rank)]
    text = f"{size}, {d.parts(s.lanes, rank)}, {d.parts(s.warps, rank)}, {d.order(rank)}"
    if s.ctas > 1 or d.chance(0.03):
        text += f", cga_layout={d.cga(rank, s.ctas)}"
    return f"gl.BlockedLayout({text})"


def cga_argument(d: Draw, s: Setting, rank: int) -> str:
    return f", cga_layout={d.cga(rank, s.ctas)}" if s.ctas > 1 or d.chance(0.02) else ""


def linear(d: Draw, s: Setting, rank: int, shape: Sequence[int]) -> str:
    rows = d.cover(shape)
    want = [(s.lanes.bit_length() - 1), (s.warps.bit_length() - 1), (s.ctas.bit_length() - 1)]
    zero = [0] * rank
    parts = []
    for count in want:
        part = []
        for _ in range(count):
            part.append(rows.pop() if rows and d.chance(0.9) else zero)
        parts.append(part)
    registers = rows
    if d.chance(0.2):
        registers.insert(
            d.random.randint(0, len(registers)), d.pick([zero, zero, *d.bases(1, rank)])
        )
    if d.chance(0.1) and parts[0] and registers:
        # A basis that moves along several bits at once.
        k = d.random.randrange(len(parts[0]))
        parts[0][k] = [a ^ b for a, b in zip(parts[0][k], registers[0])]
    return f"gl.DistributedLinearLayout({registers}, {parts[0]}, {parts[1]}, {parts[2]}, {list(shape)})"


def nvmma(d: Draw, s: Setting, rank: int) -> str:
    version = d.pick([[2, 0], [2, 0], [3, 0], [3, 0], [3, 1], [2, 1], [1, 0], [5, 0], [2]])
    warps = d.parts(s.warps, rank)
    if version[0] == 3:
        instr = [16, d.pick([8, 16, 32, 64, 128, 256, 24, 4]), d.pick([8, 16, 32])]
        if d.chance(0.2):
            instr = instr[:2] if d.chance(0.5) else [1, *instr]
    else:
        instr = [1] * (rank - 2) + [16, 8]
        if d.chance(0.2):
            instr = d.pick([[16, 8, 16], [8, 8], [16, 16], [16, 8], [32, 8], [16], [1, 16, 8]])
    return f"gl.NVMMADistributedLayout({version}, {warps}, {instr}{cga_argument(d, s, rank)})"


def mfma(d: Draw, s: Setting, rank: int) -> str:
    version = d.pick([1, 2, 3, 3, 4, 4, 0, 5])
    shape = d.pick([[32, 32], [16, 16], [64, 4], [4, 64], [8, 8]])
    k = d.pick([1, 2, 4, 8, 16, 32, 64, 128])
    instr = [*shape, k]
    if d.chance(0.05):
        instr = shape
    more = ""
    if d.chance(0.3):
        more += f", element_bitwidth={d.pick([32, 64, 16, None])}"
    if d.chance(0.3):
        more += f", tiles_per_warp={d.pick([[1, 1], [2, 1], [2, 2], [1, 4], [1, 2, 2]])}"
    transposed = d.pick(["True", "False"])
    return f"gl.amd.AMDMFMALayout({version}, {instr}, {transposed}, {d.parts(s.warps, rank)}{more})"


def wmma(d: Draw, s: Setting, rank: int) -> str:
    version = d.pick([1, 2, 3, 3])
    instr = d.pick(
        {
            1: [[16, 16, 16], None],
            2: [[16, 16, 16], [16, 16, 32], None],
            3: [[16, 16, 4], [16, 16, 32], [16, 16, 64], [16, 16, 128], [32, 16, 128], None],
        }[version]
    )
    if d.chance(0.05):
        instr = d.pick([[16, 16, 8], [8, 8, 8], [16, 16]])
    transposed = d.pick(["True", "False"])
    cga = cga_argument(d, s, rank)
    if RELEASE == (3, 6):
        tiles = d.pick([None, None, [1] * rank, [2] * rank, [2, 1, 1][:rank]])
        if d.chance(0.5):
            warps = d.parts(s.warps, rank)
            text = f"{version}, {transposed}, {warps}, {instr}, {tiles}"
            return f"gl.amd.AMDWMMALayout({text}{cga})"
        more = f", instr_shape={instr}" if instr or d.chance(0.2) else ""
        more += f", tiles_per_warp={tiles}" if tiles else ""
        return f"gl.amd.AMDWMMALayout({version}, {transposed}, warps_per_cta={d.parts(s.warps, rank)}{more}{cga})"
    n = s.warps.bit_length() - 1
    registers = d.pick([0, 0, 1, 2])
    counts = [1] * rank
    rows = []
    for _ in range(n + registers):
        row = [0] * rank
        if not d.chance(0.1):
            k = d.random.randrange(rank)
            row[k] = counts[k]
            counts[k] *= 2
        rows.append(row)
    if d.chance(0.1) and len(rows) > 1:
        rows[0] = [a ^ b for a, b in zip(rows[0], rows[1])]
    d.random.shuffle(rows)
    bases = f"{rows[:n]}" + (f", {rows[n:]}" if registers or d.chance(0.3) else "")
    more = f", instr_shape={instr}" if instr or d.chance(0.2) else ""
    more += f", rank={rank}" if d.chance(0.3) or not rows else ""
    return f"gl.amd.AMDWMMALayout({version}, {transposed}, {bases}{more}{cga})"


def distributed(d: Draw, s: Setting, rank: int, shape: Sequence[int], depth: int = 0) -> str:
    """Any layout of registers for tensors of this rank."""
    kinds = ["blocked", "blocked", "linear", "slice"]
    if rank >= 2:
        kinds += ["mma", "mma", "dot"]
    if d.chance(0.03):
        kinds = ["auto", "coalesced"]
    kind = d.pick(kinds)
    if kind == "slice" and depth < 2 and rank < 4:
        dim = d.random.randint(0, rank)
        size = d.pick([1, 2, 4, 16])
        parent = [*shape[:dim], size, *shape[dim:]]
        return f"gl.SliceLayout({dim}, {distributed(d, s, rank + 1, parent, depth + 1)})"
    if kind == "linear":
        return linear(d, s, rank, shape)
    if kind == "mma":
        return matrix(d, s, rank)
    if kind == "dot":
        parent = d.pick([matrix, matrix, blocked])(d, s, rank)
        width = 0 if "Blocked" in parent else d.pick([1, 2, 4, 8, 16, 2, 4])
        if d.chance(0.05):
            width = d.pick([0, 3, 2])
        return f"gl.DotOperandLayout({d.pick([0, 1])}, {parent}, {width})"
    if kind == "auto":
        return "gl.AutoLayout()"
    if kind == "coalesced":
        return "gl.CoalescedLayout()" if RELEASE >= (3, 7) else "gl.AutoLayout()"
    return blocked(d, s, rank)


def matrix(d: Draw, s: Setting, rank: int) -> str:
    if s.lanes == 64:
        return mfma(d, s, rank)
    return (wmma if isinstance(s.arch, str) else nvmma)(d, s, rank)


def kernel(body: Sequence[str], end: str, before: str = "") -> str:
    lines = "".join(f"    {line}\n" for line in body)
    args = "ARGS = (ptr(gl.float32), ptr(gl.int32), ptr(gl.float16), 5)\n"
    return f"{before}@gluon.jit\ndef kernel(p, q, h, n):\n{lines}{args}{end}"


def in_registers(d: Draw) -> str:
    """A tensor in a layout is loaded, used and stored."""
    s = Setting(d)
    rank = d.pick([1, 2, 2, 2, 3])
    shape = d.shape(rank)
    layout = distributed(d, s, rank, shape)
    use = d.pick(["none", "none", "convert", "from", "sum", "expand", "trans", "split", "dtype"])
    body = [
        f"L: gl.constexpr = {layout}",
        f"i = gl.full({shape}, 0, gl.int32, L) + n",
    ]
    if use == "dtype":
        body += ["x = gl.load(h + i)", "gl.store(h + i, x)"]
        return kernel(body, s.end())
    body.append("x = gl.load(p + i)")
    if use == "convert":
        body.append(f"B: gl.constexpr = {distributed(d, s, rank, shape)}")
        body += ["x = gl.convert_layout(x, B)", "i = gl.convert_layout(i, B)"]
    elif use == "from":
        body[0] = f"L: gl.constexpr = {blocked(d, s, rank)}"
        body += [f"x = gl.convert_layout(x, {layout})", "x = gl.convert_layout(x * 2, L)"]
    elif use == "sum":
        axis = d.random.randrange(rank)
        body += [f"x = gl.sum(x, {axis})", f"i = gl.max(i, {axis})"]
    elif use == "expand":
        axis = d.random.randint(0, rank)
        body[0] = (
            f"P: gl.constexpr = {distributed(d, s, rank + 1, [*shape[:axis], 1, *shape[axis:]])}"
        )
        body[1] = f"i = gl.full({shape}, 0, gl.int32, gl.SliceLayout({axis}, P)) + n"
        body += [f"x = gl.expand_dims(x, {axis})", f"i = gl.expand_dims(i, {axis})"]
    elif use == "trans":
        order = d.order(rank)
        body += [f"x = gl.permute(x, {order})", f"i = gl.permute(i, {order})"]
    elif use == "split":
        body += ["x = gl.join(x, x)", "x, y = gl.split(x)", "x = x + y"]
    body.append("gl.store(p + i, x)")
    return kernel(body, s.end())


def swizzled(d: Draw, s: Setting, shape: Sequence[int], bits: int) -> str:
    rank = len(shape)
    text = f"{d.power(4)}, {d.power(3)}, {d.power(4)}, {d.order(rank)}{cga_argument(d, s, rank)}"
    return f"gl.SwizzledSharedLayout({text})"


def padded(d: Draw, s: Setting, shape: Sequence[int], bits: int) -> str:
    rank = len(shape)
    pairs = [[d.power(8), d.power(5)] for _ in range(d.pick([1, 1, 2]))]
    cga = d.cga(rank, s.ctas)
    if d.chance(0.5):
        more = f", {cga}" if cga or d.chance(0.3) else ""
        text = f"{pairs}, {list(shape)}, {d.order(rank)}{more}"
        return f"gl.PaddedSharedLayout.with_identity_for({text})"
    counts = [1 << sum(1 for row in cga if row[k]) for k in range(rank)]
    tile = [max(1, size // count) for size, count in zip(shape, counts)]
    rows = d.cover(tile)
    if d.chance(0.05):
        rows.append([0] * rank)
    if RELEASE == (3, 6):
        cga = [[v * t for v, t in zip(row, tile)] for row in cga]
    if RELEASE == (3, 6) and d.chance(0.3):
        return f"gl.PaddedSharedLayout({pairs}, {rows}, block_bases={cga}, shape={list(shape)})"
    return f"gl.PaddedSharedLayout({pairs}, {rows}, {cga}, {list(shape)})"


def shared_linear(d: Draw, s: Setting, shape: Sequence[int], bits: int) -> str:
    rank = len(shape)
    cga = d.cga(rank, s.ctas)
    counts = [1 << sum(1 for row in cga if row[k]) for k in range(rank)]
    tile = [max(1, size // count) for size, count in zip(shape, counts)]
    rows = d.cover(tile)
    if d.chance(0.3) and len(rows) > 1:
        rows[-1] = [a ^ b for a, b in zip(rows[-1], rows[0])]
    if d.chance(0.05):
        rows.insert(0, [0] * rank)
    blocks = [[v * t for v, t in zip(row, tile)] for row in cga]
    text = f"{rows}" + (f", {blocks}" if blocks or d.chance(0.2) else "")
    if d.chance(0.3):
        text += f", alignment={d.power(10)}"
    return f"gl.SharedLinearLayout({text})"


def nvmma_shared(d: Draw, s: Setting, shape: Sequence[int], bits: int) -> str:
    rank = len(shape)
    if d.chance(0.03):
        rank = d.pick([0, 1, 2, 3])
    if d.chance(0.05):
        bits = d.pick([8, 16, 32, 64, 4, 128])
    text = f"{d.pick([0, 32, 64, 128, 128, 16])}, {bits}, {rank}"
    if d.chance(0.2):
        text += ", transposed=True"
    if d.chance(0.1):
        text += ", fp4_padded=True"
    return f"gl.NVMMASharedLayout({text}{cga_argument(d, s, rank)})"


def partitioned(d: Draw, s: Setting, shape: Sequence[int], bits: int) -> str:
    count, groups = d.pick([2, 2, 4, 1]), d.pick([1, 2, 4])
    dim = d.random.randrange(len(shape))
    part = list(shape)
    part[dim] = max(1, part[dim] // (count * groups))
    inner = d.pick([swizzled, padded, shared_linear])(d, s, part, bits)
    path = "gl.amd.gfx1250"
    return f"{path}.PartitionedSharedLayout({count}, {groups}, {dim}, {inner})"


DTYPES = {"float32": 32, "float16": 16, "int8": 8, "float64": 64, "int1": 8, "float8e5": 8}


def in_shared(d: Draw) -> str:
    """A buffer in a layout is written, read through a view, and stored."""
    s = Setting(d)
    rank = d.pick([1, 2, 2, 2, 3])
    shape = d.shape(rank, 12)
    dtype = d.pick(["float32", "float32", "float16", "float16", "int8", "float64", "float8e5"])
    bits = DTYPES[dtype]
    kinds = [swizzled, padded, shared_linear, nvmma_shared]
    if s.arch == "gfx1250" and RELEASE >= (3, 8):
        kinds += [partitioned, partitioned]
    layout = d.pick(kinds)(d, s, shape, bits)
    first = distributed(d, s, rank, shape) if d.chance(0.2) else blocked(d, s, rank)
    body = [
        f"L: gl.constexpr = {first}",
        f"S: gl.constexpr = {layout}",
        f"i = gl.full({shape}, 0, gl.int32, L) + n",
        f"x = gl.load(p + i).to(gl.{dtype})",
    ]
    if d.chance(0.3):
        body.append(f"s = gl.allocate_shared_memory(gl.{dtype}, {shape}, S, x)")
    elif d.chance(0.3):
        body.append(f"b = gl.allocate_shared_memory(gl.{dtype}, {[2, *shape]}, S)")
        body += ["s = b.index(n & 1)", "s.store(x)"]
    else:
        body += [f"s = gl.allocate_shared_memory(gl.{dtype}, {shape}, S)", "s.store(x)"]
    use = d.pick(["none", "none", "permute", "slice", "reshape", "other"])
    if use == "permute":
        order = d.order(rank)
        body += [f"s = s.permute({order})", f"i = gl.permute(i, {order})"]
        body += ["y = s.load(i.type.layout)"]
    elif use == "slice":
        dim = d.random.randrange(rank)
        length = max(1, shape[dim] // d.pick([1, 2, 4]))
        start = length * d.random.randint(0, max(0, shape[dim] // length - 1))
        part = [length if k == dim else v for k, v in enumerate(shape)]
        body += [f"s = s.slice({start}, {length}, {dim})", "y = s.load(L)"]
        body += [f"i = gl.full({part}, 0, gl.int32, L) + n"]
    elif use == "reshape":
        new = d.parts(_product(shape), d.pick([1, 2, 3]))
        body += [f"M: gl.constexpr = {blocked(d, s, len(new))}"]
        body += [f"s = s.reshape({new})", "y = s.load(M)"]
        body += [f"i = gl.full({new}, 0, gl.int32, M) + n"]
    elif use == "other":
        body += [f"M: gl.constexpr = {distributed(d, s, rank, shape)}", "y = s.load(M)"]
        body += [f"i = gl.full({shape}, 0, gl.int32, M) + n"]
    else:
        body.append("y = s.load(L)")
    body.append("gl.store(p + i, y.to(gl.float32))")
    return kernel(body, s.end())


def _product(values: Sequence[int]) -> int:
    product = 1
    for value in values:
        product *= value
    return product


def in_tensor_memory(d: Draw) -> str:
    """A tensor in tensor memory is written, read and stored."""
    s = Setting(d, "cuda")
    s.arch, s.target = 100, CUDA.format(arch=100)
    s.warps = d.pick([4, 4, 8])
    s.kwargs = f"dict(num_warps={s.warps}" + (f", num_ctas={s.ctas})" if s.ctas > 1 else ")")
    bits = d.pick(["float32", "float32", "float16", "int8"])
    rows, columns = d.pick([64, 128, 128, 256]), d.power(8)
    columns = max(columns, 1)
    block = [
        d.pick([rows if rows <= 128 else 128, 64, 128]),
        d.pick([columns, columns, max(1, columns // 2)]),
    ]
    stride = d.pick([1, 1, 32 // DTYPES[bits], 2])
    if RELEASE >= (3, 8):
        cga = f", cga_layout={d.cga(2, s.ctas)}" if s.ctas > 1 or d.chance(0.03) else ""
    else:
        cga = f", cta_split_num={d.pick([[s.ctas, 1], [1, s.ctas]])}" if s.ctas > 1 else ""
    two = ", two_ctas=True" if s.ctas > 1 and d.chance(0.3) else ""
    layout = f"blackwell.TensorMemoryLayout({block}, col_stride={stride}{cga}{two})"
    if d.chance(0.1):
        layout = "blackwell.TensorMemoryScalesLayout()"
        bits = "int8"
    elif RELEASE >= (3, 7) and d.chance(0.1):
        cover = (
            [[1 << k, 0] for k in range(7)],
            [[0, 1 << k] for k in range(columns.bit_length() - 1)],
        )
        if d.chance(0.3):
            cover = (cover[0], d.cover([1, columns]))
        if d.chance(0.2):
            cover = (d.cover([128, 1]), cover[1])
        layout = f"blackwell._TensorMemoryLinearLayout({cover[0]}, {cover[1]}, [128, {columns}])"
    shape = [rows, columns]
    body = [
        f"T: gl.constexpr = {layout}",
        f"t = blackwell.allocate_tensor_memory(gl.{bits}, {shape}, T)",
    ]
    if d.chance(0.2):
        part = (
            f"slice({d.pick([0, 0, 1, 2, 3])}, {d.pick([1, 2, 3, 4])}, 0)." if d.chance(0.5) else ""
        )
        copies = f"t = blackwell.allocate_tensor_memory(gl.{bits}, {[4, *shape]}, T)"
        body[-1] = f"{copies}.{part}index({d.pick(['0', '1', 'n & 1', '3'])})"
    ways = ["blocked", "method", "method", "linear"]
    way = d.pick(ways)
    if way == "method":
        variant = d.pick(
            [
                "",
                "",
                "instr_variant='32x32b'",
                "instr_variant='16x64b'",
                "instr_variant='16x128b'",
                "instr_variant='16x256b'",
                "instr_variant='16x32bx2'",
                "instr_variant='32x32b_splitn'",
            ]
        )
        body.append(f"L: gl.constexpr = t.get_reg_layout({variant})")
        if RELEASE == (3, 6) or d.chance(0.3):
            variant = variant or "instr_variant='32x32b'"
            body[-1] = (
                f"L: gl.constexpr = blackwell.get_tmem_reg_layout(gl.{bits}, {shape}, T, {s.warps}, {variant})"
            )
    elif way == "blocked":
        per = max(1, columns // (s.warps // 4))
        body.append(
            f"L: gl.constexpr = gl.BlockedLayout([1, {per}], [32, 1], [4, {s.warps // 4}], [0, 1]{cga_argument(d, s, 2)})"
        )
    else:
        body.append(f"L: gl.constexpr = {linear(d, s, 2, shape)}")
    body += [
        f"i = gl.full({shape}, 0, gl.int32, L) + n",
        f"x = gl.load(p + i).to(gl.{bits})",
        "t.store(x)",
        "y = t.load(L)"
        if RELEASE < (3, 8) or d.chance(0.5)
        else "y = gl.convert_layout(t.load(), L)",
        "gl.store(p + i, y.to(gl.float32))",
    ]

    return kernel(body, s.end(), "blackwell = gl.nvidia.blackwell\n")


FAMILIES: dict[str, Callable[[Draw], str]] = {
    "registers": in_registers,
    "shared memory": in_shared,
    "tensor memory": in_tensor_memory,
}
