"""Differences in what copies, counts and multiplies on its own, as `tests.compat.differences` has them."""

from __future__ import annotations

from gluon_core.testing import TRITON_VERSION

__all__ = ["UNITS"]

_HEAD = """\
import importlib
host = importlib.import_module(gluon.__name__ + ".nvidia.hopper")
hopper, blackwell, ampere = gl.nvidia.hopper, gl.nvidia.blackwell, gl.nvidia.ampere
tma, mbarrier = hopper.tma, hopper.mbarrier
load = getattr(tma, "async_load", None) or tma.async_copy_global_to_shared
"""


def _kernel(*lines: str, arch: int = 90, names: str = "", args: str = "") -> str:
    body = "".join(f"    {line}\n" for line in lines)
    return (
        f"{_HEAD}@gluon.jit\ndef kernel(p, n{names}):\n{body}"
        f'ARGS = (ptr(gl.float32), 5{args})\nTARGET = GPUTarget("cuda", {arch}, 32)\n'
    )


def _hip(*lines: str) -> str:
    body = "".join(f"    {line}\n" for line in lines)
    return (
        f"@gluon.jit\ndef kernel(p, n):\n{body}ARGS = (ptr(gl.float32), 5)\n"
        'TARGET, KWARGS = GPUTarget("hip", "gfx1250", 32), dict(num_warps=4)\n'
    )


_BAR = "bar = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())"


def _copied(
    box: list[int], layout: str, coord: str, buffer: str = "desc.block_shape", dtype: str = "float32"
) -> str:  # fmt: skip
    shape, strides = [64] * len(box), [64**k for k in range(len(box))][::-1]
    return _kernel(
        _BAR,
        f"s = gl.allocate_shared_memory(desc.dtype, {buffer}, desc.layout)",
        f"load(desc, {coord}, bar, s)",
        names=", desc",
        args=f", host.TensorDescriptor(ptr(gl.{dtype}), {shape}, {strides}, {box}, {layout})",
    )


def _scattered(rows: int, column: str) -> str:
    layout = "gl.NVMMASharedLayout(128, 32, 2)"
    return _kernel(
        f"s = gl.allocate_shared_memory(gl.float32, [8, 32], {layout})",
        "R: gl.constexpr = gl.BlockedLayout([1, 4], [32, 1], [1, 4], [1, 0])",
        f"blackwell.tma.async_scatter(desc, gl.arange(0, 8, gl.SliceLayout(0, R)), {column}, s)",
        arch=100,
        names=", desc",
        args=f", host.TensorDescriptor(ptr(gl.float32), [64, 64], [64, 1], [{rows}, 32], {layout})",
    )


def _moved(line: str, layout: str, dtype: str = "float32") -> str:
    return _hip(
        f"L: gl.constexpr = {layout}",
        "d = gl.amd.gfx1250.tdm.make_tensor_descriptor(p, [64, 64], [64, 1], [32, 32], L)",
        f"s = gl.allocate_shared_memory(gl.{dtype}, [32, 32], L)",
        line,
    )


def _wgmma(warps: str) -> str:
    return _kernel(
        f"A: gl.constexpr = gl.NVMMADistributedLayout([3, 0], {warps}, [16, 32, 16])",
        "a = gl.allocate_shared_memory(gl.float16, [64, 16], gl.NVMMASharedLayout(32, 16, 2))",
        "b = gl.allocate_shared_memory(gl.float16, [16, 64], gl.NVMMASharedLayout(128, 16, 2))",
        "y = hopper.warpgroup_mma(a, b, gl.full([64, 64], 0, gl.float32, A))",
        "gl.store(p + gl.full([64, 64], 0, gl.int32, A) + n, y)",
    )


def _tcgen05(*lines: str, columns: int = 64) -> str:
    return _kernel(
        f"T: gl.constexpr = blackwell.TensorMemoryLayout([128, {columns}], col_stride=1)",
        f"acc = blackwell.allocate_tensor_memory(gl.float32, [128, {columns}], T)",
        *lines,
        arch=100,
    )


def _scaled(
    a: str = "float8e5", acc: str = "float32", scale: str = "uint8", runs: int = 4, pad: str = "",
    kind: str = "e5m2",
) -> str:  # fmt: skip
    stride = 32 // int(acc.removeprefix("float"))
    bits = 16 if a == "float16" else 8
    return _kernel(
        f"T: gl.constexpr = blackwell.TensorMemoryLayout([128, 64], col_stride={stride})",
        f"acc = blackwell.allocate_tensor_memory(gl.{acc}, [128, 64], T)",
        f"a = gl.allocate_shared_memory(gl.{a}, [128, 128], gl.NVMMASharedLayout(128, {bits}, 2{pad}))",
        "b = gl.allocate_shared_memory(gl.float8e5, [128, 64], gl.NVMMASharedLayout(128, 8, 2, transposed=True))",
        "S: gl.constexpr = blackwell.TensorMemoryScalesLayout()",
        f"u = blackwell.allocate_tensor_memory(gl.{scale}, [128, {runs}], S)",
        "v = blackwell.allocate_tensor_memory(gl.uint8, [64, 4], S)",
        f"blackwell.tcgen05_mma_scaled(a, b, acc, u, v, '{kind}', 'e5m2')",
        arch=100,
    )


_SCALED_MFMA = """\
@gluon.jit
def kernel(p, n):
    M: gl.constexpr = gl.amd.AMDMFMALayout(4, [16, 16, 128], True, [2, 2])
    a = gl.full([64, 128], 1, gl.float32, gl.DotOperandLayout(0, M, 8)).to(gl.float8e5)
    b = gl.full([128, 64], 1, gl.float32, gl.DotOperandLayout(1, M, 16)).to(gl.float8e5)
    c = gl.full([64, 64], 0, gl.float32, M)
    c = gl.amd.cdna4.mfma_scaled(a, None, 'e5m2', b, None, 'e5m2', c)
    gl.store(p + gl.zeros([64, 64], gl.int32, M) + n, c)
ARGS = (ptr(gl.float32), 5)
TARGET, KWARGS = GPUTarget("hip", "gfx950", 64), dict(num_warps=4)
"""
_DIRECT = """\
@gluon.jit
def kernel(p, n):
    L: gl.constexpr = gl.BlockedLayout([1, 8], [8, 8], [4, 1], [1, 0])
    S: gl.constexpr = gl.PaddedSharedLayout.with_identity_for([[64, 8]], [32, 64], [1, 0])
    i = gl.arange(0, 32, gl.SliceLayout(1, L))[:, None] * 64 + gl.arange(0, 64, gl.SliceLayout(0, L))[None, :]
    s = gl.allocate_shared_memory(gl.float16, [32, 64], S)
    gl.amd.cdna4.async_copy.buffer_load_to_shared(s, p, i)
    gl.amd.cdna4.async_copy.wait_group(0)
ARGS = (ptr(gl.float16), 5)
TARGET, KWARGS = GPUTarget("hip", "gfx950", 64), dict(num_warps=4)
"""
# Title, why, a pattern of our message, and a program.
UNITS: list[tuple[str, str, str, str]] = [
    (
        "A descriptor with a constant extent or stride that it cannot hold",
        "extents are 1 to 2^32, strides multiples of 16 bytes below 2^40 (PTX 5.5.8).",
        r"^(shape: an illegal extent|strides: an illegal stride)",
        _kernel(
            "L: gl.constexpr = gl.NVMMASharedLayout(128, 32, 2)",
            "d = tma.make_tensor_descriptor(p, [64, 64], [1 << 40, 1], [32, 32], L)",
            _BAR,
            "load(d, [n, 0], bar, gl.allocate_shared_memory(gl.float32, [32, 32], L))",
        ),
    ),
    (
        "A descriptor whose box has rows of less than 16 bytes",
        "a copy moves multiples of 16 bytes (PTX 5.5.3.1); upstream's launch fails.",
        r"a row of the box is (shorter than one copy writes|a multiple of 16 bytes)",
        _copied([2], "gl.NVMMASharedLayout(0, 32, 1)", "[n]"),
    ),
    (
        "A copy whose last coordinate is a constant between multiples of 16 bytes",
        "an illegal instruction, as seen on sm_90.",
        r"the box does not start where TMA can begin",
        _copied([32, 32], "gl.NVMMASharedLayout(128, 32, 2)", "[n, 3]"),
    ),
    (
        "A barrier that counts further than 2^20 - 1, or a negative number of bytes",
        "the counts of a barrier have 20 bits (PTX 9.7.13.15.3).",
        r"^(count|bytes_per_cta): out of range",
        _kernel(_BAR, "mbarrier.init(bar, 1 << 20)"),
    ),
    (
        "A wait for all but a negative number of groups",
        "the number has no sign (PTX 9.7.9.25.3.3): nothing is waited for.",
        r"^num_outstanding: out of range",
        _kernel("gl.nvidia.ampere.async_copy.wait_group(-1)"),
    ),
    (
        "A copy of the TMA with a descriptor whose layout is transposed",
        "the engine writes rows as they come (PTX 5.5.5); the buffer has columns there.",
        r"TMA keeps rows in the tensor's order",
        _copied([32, 32], "gl.NVMMASharedLayout(128, 32, 2, transposed=True)", "[n, 0]"),
    ),
    (
        "`gl.minimum` and `gl.maximum` of 8-bit floats",
        "of a tensor with itself, which the compiler takes away; no compiler compares two of them.",
        r"^the (minimum|maximum) has no form",
        _kernel(
            "L: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])",
            "x = gl.load(p + gl.zeros([128], gl.int32, L) + n).to(gl.float8e5)",
            "gl.store(p + gl.zeros([128], gl.int32, L), gl.minimum(x, x).to(gl.float32))",
        ),
    ),
    (
        "`warpgroup_mma` with warps that are not stacked four high",
        "each warp of a group holds 16 of 64 rows (PTX 9.7.15.5.1), whatever a layout says.",
        r"wgmma runs on groups of four warps, stacked along the rows",
        _wgmma("[2, 2]"),
    ),
    (
        "`tcgen05_mma` with an N that no instruction has",
        "with 128 rows N is a multiple of 16 from 16 on (PTX 9.7.16.2.1).",
        r"not the N of an instruction",
        _tcgen05(
            "a = gl.allocate_shared_memory(gl.float16, [128, 64], gl.NVMMASharedLayout(128, 16, 2))",
            "b = gl.allocate_shared_memory(gl.float16, [64, 8], gl.NVMMASharedLayout(128, 16, 2, transposed=True))",
            "blackwell.tcgen05_mma(a, b, acc)",
            columns=8,
        ),
    ),
    (
        "An allocation of more tensor memory than a block has",
        "512 columns; upstream finds out when the kernel is launched.",
        r"one allocation needs \d+ columns of tensor memory",
        _kernel(
            "T: gl.constexpr = blackwell.TensorMemoryLayout([128, 256], col_stride=1)",
            "t = blackwell.allocate_tensor_memory(gl.float32, [512, 256], T)",
            "L: gl.constexpr = gl.BlockedLayout([1, 256], [32, 1], [4, 1], [0, 1])",
            "t.store(gl.full([512, 256], 0.0, gl.float32, L))",
            arch=100,
        ),
    ),
    (
        "Operands of `tcgen05_mma_scaled` that are padded but are no fp4 next to fp8, or the reverse",
        "the unit reads fp4 padded next to fp8 alone (PTX 9.7.16.3.3): it would take gaps for numbers, "
        "or numbers for gaps.",
        r"fp4 is padded next to fp8, and only there",
        _scaled(pad=", fp4_padded=True"),
    ),
    (
        "An accumulator of `tcgen05_mma_scaled` that is not float32",
        "the unit adds scaled products up in float32 alone (PTX 9.7.16.2.1).",
        r"scaled products are accumulated in float32",
        _scaled(acc="float16"),
    ),
    (
        "Scales of `tcgen05_mma_scaled` of another dtype than the formats have",
        "scales are powers of two in a byte, or float8e4nv for fp4 alone (PTX 9.7.16.10.7).",
        r"not the dtype of scales|scales of float8e4nv are for fp4",
        _scaled(scale="float8e5"),
    ),
    (
        "Scales of `tcgen05_mma_scaled` of another shape than one to each run of K",
        "upstream steps from one run to the next by the buffer's own size, so that from the second on "
        "scales are other rows', or lie beyond the buffer.",
        r"not one scale for \d+ elements of K",
        _scaled(runs=8),
    ),
    (
        "Operands of `tcgen05_mma_scaled` that are wider than their format",
        "its elements have a byte, or half of one.",
        r"not the dtype of e\dm\d",
        _scaled(a="float16").replace("gl.float8e5, [128, 64], gl.NVMMASharedLayout(128, 8,", "gl.float16, [128, 64], gl.NVMMASharedLayout(128, 16,"),
    ),
    (
        "A copy to a buffer whose tiles, or the width of whose elements, are not those of the copied box",
        "upstream does not compare them, or no more than their sizes: the copy leaves the buffer, or "
        "brings other rows than its coordinates say.",
        r"the shape is not that of the descriptor's box|the elements are not the descriptor's"
        r"|^(smem|dest): the element type is not the pointer's|^dest: the shape differs from that of the copied tensor",
        _copied([32, 32], "gl.NVMMASharedLayout(128, 32, 2)", "[n, 0]", "[16, 64]"),
    ),
    (
        "A copy with more or fewer coordinates than its descriptor has dimensions",
        "an illegal instruction (PTX 9.7.9.27.1).",
        r"^coord: needs one for each dimension",
        _copied([32, 32], "gl.NVMMASharedLayout(128, 32, 2)", "[n]"),
    ),
    (
        "A descriptor of a tensor whose elements are not as wide as those of its layout",
        "the box is cut for elements of one width, and copied for those of the other.",
        r"^(TensorDescriptor.)?layout: the layout is for elements of a different (width|size)",
        # On the host 3.9 refuses it, too.
        _kernel(
            "L: gl.constexpr = gl.NVMMASharedLayout(64, 8, 2)",
            "d = tma.make_tensor_descriptor(p.to(gl.pointer_type(gl.float16)), [64, 64], [64, 1], [32, 64], L)",
            _BAR,
            "load(d, [n, 0], bar, gl.allocate_shared_memory(gl.float16, [32, 64], L))",
        ),
    ),
    (
        "`NVMMASharedLayout` that is transposed, of more than two dimensions",
        "upstream takes it where nothing but the copy engine uses it, which writes rows as they come; "
        "every load, store and product of it fails.",
        r"a transposed buffer of more than two dimensions has no matrix layout",
        _copied([1, 1, 16, 32], "gl.NVMMASharedLayout(64, 16, 4, transposed=True)", "[n, n, n, 0]", dtype="float16"),
    ),
    (
        "An allocation of more shared memory than a block has",
        "upstream finds out when the kernel is launched.",
        r"one allocation needs \d+ bytes of shared memory",
        _kernel(
            "s = gl.allocate_shared_memory(gl.float32, [1 << 16], gl.SwizzledSharedLayout(1, 1, 1, [0]))",
            "B: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])",
            "s.store(gl.full([1 << 16], 1.0, gl.float32, B))",
        ),
    ),
    (
        "`NVMMASharedLayout` with padded fp4 of other elements than bytes, or another swizzle than 128",
        "such copies there are not (PTX 5.5.1).",
        r"padded fp4 exists for 8-bit elements and the 128-byte swizzle only",
        _copied([32, 32], "gl.NVMMASharedLayout(128, 32, 2, fp4_padded=True)", "[n, 0]"),
    ),
    (
        "Something else than a barrier, or several, where a commit arrives at a barrier",
        "upstream does not look: an arrival changes the bytes there, or the first barrier alone.",
        r"^\w+: (a barrier is a 64-bit integer|not one barrier)",
        _tcgen05(
            "a = gl.allocate_shared_memory(gl.float16, [128, 64], gl.NVMMASharedLayout(128, 16, 2))",
            "b = gl.allocate_shared_memory(gl.float16, [64, 64], gl.NVMMASharedLayout(128, 16, 2))",
            "blackwell.tcgen05_mma(a, b, acc, mbarriers=[a])",
        ),
    ),
    (
        "An accumulator of `tcgen05_mma_scaled` in blocks of 64 rows",
        "scaled products have 128 rows (PTX 9.7.16.2.1).",
        r"scaled products have accumulators of 128 rows",
        _scaled().replace("Layout([128, 64], col", "Layout([64, 64], col"),
    ),
    (
        "A copy of the TDM between a descriptor and a buffer of other elements",
        "upstream does not compare them: the copy leaves the buffer, or fills a part of it.",
        r"^(dest|src): the dtype is not the descriptor's",
        _moved(
            "gl.amd.gfx1250.tdm.async_load(d, [n, 0], s)",
            "gl.SwizzledSharedLayout(1, 1, 1, [1, 0])",
            "int8",
        ),
    ),
    (
        "A copy of the TDM to a buffer that is laid out otherwise than the descriptor says",
        "upstream before 3.8 does not compare the paddings: the copy leaves gaps that the buffer has not, and its end.",
        r"^(dest|src): laid out differently than the descriptor says",
        _hip(
            "L: gl.constexpr = gl.PaddedSharedLayout.with_identity_for([[32, 4]], [32, 32], [1, 0])",
            "d = gl.amd.gfx1250.tdm.make_tensor_descriptor(p, [64, 64], [64, 1], [32, 32], L)",
            "s = gl.allocate_shared_memory(gl.float32, [32, 32], gl.SwizzledSharedLayout(1, 1, 1, [1, 0]))",
            "gl.amd.gfx1250.tdm.async_load(d, [n, 0], s)",
        ),
    ),
    (
        "A copy of the TDM with fewer or more offsets than its descriptor has dimensions",
        "upstream takes as many as come, and does not say which dimensions they are of.",
        r"^offsets: one value for each dimension of the tensor",
        _moved("gl.amd.gfx1250.tdm.async_load(d, [n], s)", "gl.SwizzledSharedLayout(1, 1, 1, [1, 0])"),
    ),
    (
        "Rows of a TDM gather or scatter whose indices differ from lane to lane",
        "the instruction takes indices from scalar registers, and the compiler fills them with those of "
        "the first lane: the others' rows are not moved.",
        r"a warp moves rows as one, and its lanes hold different indices",
        _hip(
            "L: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [1, 0])",
            "d = gl.amd.gfx1250.tdm.make_tensor_descriptor(p, [64, 64], [64, 1], [32, 32], L)",
            "s = gl.allocate_shared_memory(gl.float32, [32, 32], L)",
            "R: gl.constexpr = gl.SliceLayout(1, gl.BlockedLayout([1, 1], [32, 1], [4, 1], [1, 0]))",
            "rows = gl.arange(0, 32, R) + n",
            f"gl.amd.gfx1250.tdm.async_scatter(d, rows, {'n, ' if TRITON_VERSION[:2] == (3, 7) else ''}s)",
        ),
    ),
    (
        "Rows of a TDM gather or scatter that are more than the box has",
        "upstream moves as many as there are indices, whatever the buffer holds: the last lie beyond it.",
        r"one index for each row of the box",
        _hip(
            "L: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [1, 0])",
            "d = gl.amd.gfx1250.tdm.make_tensor_descriptor(p, [64, 64], [64, 1], [16, 32], L)",
            "s = gl.allocate_shared_memory(gl.float32, [16, 32], L)",
            "R: gl.constexpr = gl.SliceLayout(1, gl.BlockedLayout([32, 1], [1, 32], [1, 4], [1, 0]))",
            "rows = gl.arange(0, 32, R) + n",
            f"gl.amd.gfx1250.tdm.async_scatter(d, rows, {'n, ' if TRITON_VERSION[:2] == (3, 7) else ''}s)",
        ),
    ),
    (
        "`float2` of other numbers than float32",
        "upstream puts halves of registers side by side and calls them two float32.",
        r"pairs are of float32",
        _kernel(
            "L: gl.constexpr = gl.BlockedLayout([2, 4], [4, 8], [4, 1], [1, 0])",
            "at = gl.zeros([32, 64], gl.int32, L) + n",
            "x = float2.pack(gl.load(p + at).to(gl.float16), 1)",
            "gl.store(p + at, float2.unpack(x + x, 1).to(gl.float32))",
            arch=100,
        ).replace(
            "@gluon.jit",
            'float2 = importlib.import_module(gl.__name__ + ".nvidia.blackwell.float2")\n@gluon.jit',
        )
        if TRITON_VERSION < (3, 8)
        else "",
    ),
    (
        "A pair of blocks of 64 rows with more than one block of tensor memory each",
        "the compilers before 3.8 lay out such pairs for one block of tensor memory only: others are not where they look.",
        r"a pair of blocks of 64 rows has one block of tensor memory each",
        _kernel(
            "T: gl.constexpr = blackwell.TensorMemoryLayout([64, 256], col_stride=1, cta_split_num=[2, 1], two_ctas=True)",
            "a = gl.allocate_shared_memory(gl.float8e5, [256, 32], gl.NVMMASharedLayout(32, 8, 2, cga_layout=[[1, 0]]))",
            "b = gl.allocate_shared_memory(gl.float8e5, [32, 256], gl.NVMMASharedLayout(32, 8, 2, transposed=True, cga_layout=[[0, 1]]))",
            "acc = blackwell.allocate_tensor_memory(gl.float32, [256, 256], T)",
            "blackwell.tcgen05_mma(a, b, acc)",
            arch=100,
        )
        + "KWARGS = dict(num_ctas=2)\n"
        if TRITON_VERSION < (3, 8)
        else "",
    ),
    (
        "`clamp_bounds` of `update_tensor_descriptor` as a run-time value",
        "upstream takes any such value for true, whatever it is when the kernel runs.",
        r"^clamp_bounds: must be a compile-time boolean",
        _hip(
            "L: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [1, 0])",
            "d = gl.amd.gfx1250.tdm.make_tensor_descriptor(p, [64, 64], [64, 1], [32, 32], L)",
            "d = gl.amd.gfx1250.tdm.update_tensor_descriptor(d, add_offsets=[n, 0], clamp_bounds=n)",
            "s = gl.allocate_shared_memory(gl.float32, [32, 32], L)",
            "gl.amd.gfx1250.tdm.async_load(d, dest=s)",
        ),
    ),
    (
        "`warpgroup_mma` of unsigned bytes",
        "upstream multiplies them as signed ones: from 128 on they are negative, below they are right.",
        r"^[ab]: compilers multiply unsigned bytes as signed ones",
        _kernel(
            "A: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 8, 32])",
            "a = gl.allocate_shared_memory(gl.int8, [64, 32], gl.NVMMASharedLayout(32, 8, 2))",
            "b = gl.allocate_shared_memory(gl.uint8, [32, 8], gl.NVMMASharedLayout(32, 8, 2, transposed=True))",
            "y = hopper.warpgroup_mma(a, b, gl.full([64, 8], 0, gl.int32, A))",
            "gl.store(p + gl.full([64, 8], 0, gl.int32, A) + n, y.to(gl.float32))",
        ),
    ),
    (
        "A part of a tensor that begins before it",
        "no register holds it; upstream takes others' registers, or one that nobody wrote.",
        r"^offsets: the part leaves the tensor",
        _hip(
            "L: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0])",
            "y = gl.amd.slice(gl.full([64, 128], 0, gl.int32, L) + n, [32, 128], [-32, 0])",
            "gl.store(p + gl.zeros([32, 128], gl.int32, L), y.to(gl.float32))",
        ),
    ),
    (
        "Packed fp4 alone, whose last dimension is not the layout's fastest",
        "upstream gives the result a register for elements beyond it.",
        r"mul[24]\(ct, ct,",
        _kernel(
            "T: gl.constexpr = gl.BlockedLayout([4, 1], [8, 4], [1, 4], [0, 1])",
            "ct = (gl.full([32, 64], 0, gl.int32, T) + n).to(gl.uint8)",
            "y = blackwell.mul2(ct, ct, gl.float8e4nv)",
            "gl.store(p + gl.zeros(y.shape, gl.int32, y.type.layout), y.to(gl.float32))",
            arch=100,
        ),
    ),
    (
        "A column of a gather or scatter that is a constant beyond int32",
        "coordinates have 32 bits with a sign (PTX 9.7.9.27.1): upstream's are negative from 2^31 on.",
        r"^y_offset: out of range",
        _scattered(1, "2**31"),
    ),
    (
        "A gather or scatter by a descriptor whose box has several rows",
        "rows are chosen with a box of one row (PTX 5.5.3.2).",
        r"rows of a matrix are chosen with a box of one row",
        _scattered(8, "n"),
    ),
    (
        "A descriptor of the TDM in another order than the tensor's",
        "it writes the last dimension first.",
        r"TDM writes the last dimension first|^strides: TDM reads rows of consecutive elements",
        _moved("gl.amd.gfx1250.tdm.async_load(d, [n, 0], s)", "gl.SwizzledSharedLayout(1, 1, 1, [0, 1])"),
    ),
    (
        "Operands of a scaled product of AMD whose `k_width` is not the unit's",
        "a lane holds 16 bytes along K that follow each other: with others the unit multiplies elements "
        "of different K, or with the scale of another run.",
        r"a lane of scaled MFMA holds runs of 16 bytes along K|^[ab]: not the layout of an operand",
        _SCALED_MFMA,
    ),
    (
        "A direct copy to LDS in which a warp's lanes do not write side by side",
        "the instruction writes lane after lane, over gaps and other places alike.",
        r"the lanes of a warp write to LDS side by side",
        _DIRECT,
    ),
    (
        "A descriptor of the TDM with a padding that it has not",
        "it pads by 1 to 128 dwords.",
        r"the padding is not one that TDM has",
        _hip(
            "L: gl.constexpr = gl.PaddedSharedLayout.with_identity_for([[32, 1]], [32, 32], [1, 0])",
            "d = gl.amd.gfx1250.tdm.make_tensor_descriptor(p.to(gl.pointer_type(gl.float16)), [64, 64], [64, 1], [32, 32], L)",
        ),
    ),
]  # fmt: skip
