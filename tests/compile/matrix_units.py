"""Cells of the matrix that are about hardware units, options and layouts: see `matrix`.

Each is written for the generation that has the unit, and asked for on all architectures.
"""

from __future__ import annotations

from typing import Iterator

HELPERS = """
@gluon.jit
def tile(p, LAYOUT: gl.constexpr):
    rows = gl.arange(0, 64, gl.SliceLayout(1, LAYOUT))[:, None]
    columns = gl.arange(0, 64, gl.SliceLayout(0, LAYOUT))[None, :]
    return p + rows * 64 + columns

@gluon.jit
def larger(a, b):
    return gl.where(a > b, a, b)

@gluon.jit
def auto():
    return gl.arange(0, 512)
"""
FLOATS = ("fp16", "bf16", "fp32", "fp64")
NARROW = ("fp8e5", "fp8e4nv", "fp8e5b16", "fp8e4b8", "fp8e4b15")
FACTORS = (*FLOATS, *NARROW, "i8", "u8", "i16", "i32")
BITS = {"fp16": 16, "bf16": 16, "fp32": 32, "fp64": 64, "i16": 16, "i32": 32}
PLANE = "gl.BlockedLayout([1, 8], [gl.target.warp_size() // 8, 8], [4, 1], [1, 0])"


def _sums(dtype: str) -> str:
    return "i32" if dtype[0] in "iu" else "fp64" if dtype == "fp64" else "fp32"


def _product(unit: str, layout: str, width: int, dtype: str) -> str:
    return (
        f"C: gl.constexpr = {layout}\n"
        f"x = gl.load(tile(p, gl.DotOperandLayout(0, C, {width})))\n"
        f"y = gl.load(tile(q, gl.DotOperandLayout(1, C, {width})))\n"
        "z = gl.zeros([64, 64], r.dtype.element_ty, C)\n"
        f"gl.store(tile(r, C), {unit}(x, y, z))"
    )


_SHARED = (
    "E: gl.constexpr = p.dtype.element_ty\n"
    f"P: gl.constexpr = {PLANE}\n"
    "S: gl.constexpr = gl.NVMMASharedLayout.get_default_for([64, 64], E)\n"
    "x = gl.allocate_shared_memory(E, [64, 64], S, gl.load(tile(p, P)))\n"
    "y = gl.allocate_shared_memory(E, [64, 64], S, gl.load(tile(q, P))).permute((1, 0))\n"
    "gl.nvidia.hopper.fence_async_shared()\n"
)


def _products(dtype: str) -> Iterator[tuple[str, str]]:
    bits = BITS.get(dtype, 8)
    width = max(1, 32 // bits)
    yield (
        "mma_v2",
        _product(
            "gl.nvidia.ampere.mma_v2",
            "gl.NVMMADistributedLayout([2, 0], [2, 2], [16, 8])",
            width,
            dtype,
        ),
    )
    for name, unit in (("", "gl.dot_fma"),):
        yield (
            f"dot_fma{name}",
            f"C: gl.constexpr = {PLANE}\n"
            "x = gl.load(tile(p, gl.DotOperandLayout(0, C, 0)))\n"
            "y = gl.load(tile(q, gl.DotOperandLayout(1, C, 0)))\n"
            f"z = {unit}(x, y, gl.zeros([64, 64], p.dtype.element_ty, C))\n"
            "gl.store(tile(p, C), z)",
        )
    for version in (1, 2, 3, 4):
        depth = {64: 4, 32: 4, 16: 16, 8: 32}[bits] * (2 if version == 4 and bits < 32 else 1)
        if version < 3 and bits == 8:
            depth = 16
        wide = ", element_bitwidth=64" if dtype == "fp64" else ""
        yield f"mfma{version}", _product(
            "gl.amd.cdna3.mfma" if version < 4 else "gl.amd.cdna4.mfma",
            f"gl.amd.AMDMFMALayout({version}, [16, 16, {depth}], True, [2, 2]{wide})",
            max(1, min(8, 64 // bits)), dtype,
        )  # fmt: skip
    for version, unit in ((1, "rdna3"), (2, "rdna4"), (3, "gfx1250")):
        depth = {1: 16, 2: 16, 3: {64: 4, 32: 4, 16: 32}.get(bits, 64)}[version]
        yield f"wmma{version}", _product(
            f"gl.amd.{unit}.wmma",
            f"gl.amd.AMDWMMALayout({version}, True, WARPS, instr_shape=[16, 16, {depth}])",
            {1: 16, 2: 8, 3: 2 if bits > 16 else 8}[version], dtype,
        )  # fmt: skip
    yield (
        "wgmma",
        _SHARED
        + (
            f"C: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 64, {256 // bits}])\n"
            "z = gl.zeros([64, 64], r.dtype.element_ty, C)\n"
            "gl.store(tile(r, C), gl.nvidia.hopper.warpgroup_mma(x, y, z))"
        ),
    )
    yield (
        "tcgen05",
        _SHARED
        + (
            "M: gl.constexpr = gl.nvidia.blackwell.TensorMemoryLayout([64, 64], col_stride=1)\n"
            "z = gl.nvidia.blackwell.allocate_tensor_memory(r.dtype.element_ty, [64, 64], M)\n"
            "w = gl.nvidia.hopper.mbarrier.allocate_mbarrier()\n"
            "gl.nvidia.hopper.mbarrier.init(w, 1)\n"
            "gl.nvidia.blackwell.tcgen05_mma(x, y, z, use_acc=False, mbarriers=[w])\n"
            "gl.nvidia.hopper.mbarrier.wait(w, 0)\n"
            "v = z.load()\n"
            "gl.store(tile(r, v.type.layout), v)"
        ),
    )
    for place in ("registers", "shared"):
        head = (
            "E: gl.constexpr = p.dtype.element_ty\n"
            "Y: gl.constexpr = gl.portable.mma_layouts(64, 64, 64, E, E, r.dtype.element_ty, "
            f"operands='{place}', b_transposed={place == 'shared'})\n"
        )
        if place == "registers":
            yield (
                "portable",
                head
                + (
                    "x, y = gl.load(tile(p, Y.a)), gl.load(tile(q, Y.b))\n"
                    "z = gl.zeros([64, 64], r.dtype.element_ty, Y.accumulator)\n"
                    "gl.store(tile(r, Y.accumulator), gl.portable.mma(x, y, z))"
                ),
            )
        else:
            yield (
                "portable-shared",
                head
                + (
                    f"P: gl.constexpr = {PLANE}\n"
                    "x = gl.allocate_shared_memory(E, [64, 64], Y.a_shared, gl.load(tile(p, P)))\n"
                    "y = gl.allocate_shared_memory(E, [64, 64], Y.b_shared, gl.load(tile(q, P)))\n"
                    "gl.portable.fence()\n"
                    "z = gl.portable.mma(x, y.permute((1, 0)), gl.portable.accumulator(Y))\n"
                    "gl.store(tile(r, Y.accumulator), gl.portable.read(z))"
                ),
            )


MOVES = {
    "cp.async": "V: gl.constexpr = gl.BlockedLayout([4], [gl.target.warp_size()], [4], [0])\n"
    "s = gl.allocate_shared_memory(p.dtype.element_ty, [512], SH)\n"
    "gl.nvidia.ampere.async_copy.async_load(s, p + gl.arange(0, 512, V))\n"
    "gl.nvidia.ampere.async_copy.commit_group()\ngl.nvidia.ampere.async_copy.wait_group(0)\n"
    "gl.store(r + o, s.load(L))",
    "tma": "E: gl.constexpr = p.dtype.element_ty\n"
    "S: gl.constexpr = gl.NVMMASharedLayout.get_default_for([64, 64], E)\n"
    "d = gl.nvidia.hopper.tma.make_tensor_descriptor(p, [64, 64], [64, 1], [64, 64], S)\n"
    "e = gl.nvidia.hopper.tma.make_tensor_descriptor(r, [64, 64], [64, 1], [64, 64], S)\n"
    "s = gl.allocate_shared_memory(E, [64, 64], S)\n"
    "w = gl.nvidia.hopper.mbarrier.allocate_mbarrier()\n"
    "gl.nvidia.hopper.mbarrier.init(w, 1)\n"
    "gl.nvidia.hopper.mbarrier.expect(w, d.nbytes_per_cta)\n"
    "gl.nvidia.hopper.tma.async_load(d, [0, 0], w, s)\n"
    "gl.nvidia.hopper.mbarrier.wait(w, 0)\n"
    "gl.nvidia.hopper.tma.async_store(e, [0, 0], s)\ngl.nvidia.hopper.tma.store_wait(0)",
    "tma-reduce": "E: gl.constexpr = p.dtype.element_ty\n"
    "S: gl.constexpr = gl.NVMMASharedLayout.get_default_for([64, 64], E)\n"
    f"P: gl.constexpr = {PLANE}\n"
    "e = gl.nvidia.hopper.tma.make_tensor_descriptor(r, [64, 64], [64, 1], [64, 64], S)\n"
    "s = gl.allocate_shared_memory(E, [64, 64], S, gl.load(tile(p, P)))\n"
    "gl.nvidia.hopper.fence_async_shared()\n"
    "gl.nvidia.blackwell.tma.async_atomic_add(e, [0, 0], s)\ngl.nvidia.hopper.tma.store_wait(0)",
    "buffer": "z = gl.amd.cdna3.buffer_load(p, o)\ngl.amd.cdna3.buffer_store(z, r, o)",
    "lds-buffer": "V: gl.constexpr = gl.BlockedLayout([4], [gl.target.warp_size()], [4], [0])\n"
    "s = gl.allocate_shared_memory(p.dtype.element_ty, [512], SH)\n"
    "gl.amd.cdna4.async_copy.buffer_load_to_shared(s, p, gl.arange(0, 512, V))\n"
    "gl.amd.cdna4.async_copy.commit_group()\ngl.amd.cdna4.async_copy.wait_group(0)\n"
    "gl.store(r + o, s.load(L))",
    "lds-global": "V: gl.constexpr = gl.BlockedLayout([4], [gl.target.warp_size()], [4], [0])\n"
    "s = gl.allocate_shared_memory(p.dtype.element_ty, [512], SH)\n"
    "gl.amd.cdna4.async_copy.global_load_to_shared(s, p + gl.arange(0, 512, V))\n"
    "gl.amd.cdna4.async_copy.commit_group()\ngl.amd.cdna4.async_copy.wait_group(0)\n"
    "gl.store(r + o, s.load(L))",
    "lds-gfx1250": "V: gl.constexpr = gl.BlockedLayout([4], [gl.target.warp_size()], [4], [0])\n"
    "s = gl.allocate_shared_memory(p.dtype.element_ty, [512], SH)\n"
    "gl.amd.gfx1250.async_copy.global_to_shared(s, p + gl.arange(0, 512, V))\n"
    "gl.amd.gfx1250.async_copy.commit_group()\ngl.amd.gfx1250.async_copy.wait_group(0)\n"
    "gl.store(r + o, s.load(L))",
    "portable-tiles": "d = gl.portable.descriptor(p, [64, 64], [64, 1], [64, 64])\n"
    "e = gl.portable.descriptor(r, [64, 64], [64, 1], [64, 64])\n"
    "g = gl.portable.pipeline(d, 2)\ng.fetch(0, [[0, 0]])\n(s,) = g.wait(0, pending=0)\n"
    f"gl.portable.store(e, [0, 0], s.load({PLANE}))\ng.close()",
    "portable-load": "z = gl.portable.load(p, o, mask=o > 3)\ngl.portable.store(r, o, z, mask=o > 3)",
    "permute": f"z = gl.permute(gl.load(tile(p, {PLANE})), (1, 0))\n"
    "gl.store(tile(r, z.type.layout), z)",
    "sum-rows": f"z = gl.sum(gl.load(tile(p, {PLANE})), 0)\n"
    f"gl.store(r + gl.arange(0, 64, gl.SliceLayout(0, {PLANE})), z)",
    "argmax": "gl.store(r, gl.argmax(a, 0))",
    "reduce": "gl.store(r, gl.reduce(a, 0, larger))",
    "scan": "gl.store(r + o, gl.associative_scan(a, 0, larger))",
    "split": "z, w = gl.split(gl.join(a, b))\ngl.store(r + o, z)",
    "print": "gl.device_print('a', a)\ngl.store(r + o, a)",
    "transposed-shared": "s = gl.allocate_shared_memory(p.dtype.element_ty, [64, 64], "
    f"gl.SwizzledSharedLayout(8, 1, 8, [1, 0]), gl.load(tile(p, {PLANE})))\n"
    f"z = s.permute((1, 0)).load({PLANE})\ngl.store(tile(r, {PLANE}), z)",
}
BUFFER_ATOMICS = {
    f"buffer_atomic_{kind}": f"gl.amd.cdna3.buffer_atomic_{kind}(p, o, a)"
    for kind in "add and or xor max min xchg".split()
}
CHOICES = {
    **{
        f"load{c}": f"gl.store(r + o, gl.load(p + o, cache_modifier='{c}'))"
        for c in (".ca", ".cg", ".cs", ".cv")
    },
    **{
        f"store{c}": f"gl.store(r + o, a, cache_modifier='{c}')"
        for c in (".wb", ".cg", ".cs", ".wt")
    },
    **{
        f"load-{e}": f"gl.store(r + o, gl.load(p + o, eviction_policy='{e}'))"
        for e in ("evict_first", "evict_last", "evict_normal")
    },
    "volatile": "gl.store(r + o, gl.load(p + o, volatile=True))",
    **{
        f"atomic-{sem}-{scope}": f"gl.atomic_add(r + o, a, sem='{sem}', scope='{scope}')"
        for sem in ("relaxed", "acquire", "release", "acq_rel")
        for scope in ("cta", "gpu", "sys")
    },
    "atomic_load": "gl.store(r, gl.atomic_load(p))",
    "atomic_store": "gl.atomic_store(r, gl.load(p))",
    "assert": "gl.device_assert(a == a, 'odd')",
    "assume": "gl.assume(gl.program_id(0) >= 0)\ngl.store(r + o, a)",
    "clock": "gl.store(r + o, a + gl.program_id(0))",
    "auto": "gl.store(r + o, auto())",
    "auto-unknown": "gl.store(r + gl.arange(0, 512), 1)",
    "auto-converted": "gl.store(r + o, gl.convert_layout(auto(), L))",
    "auto-histogram": "gl.store(r + gl.arange(0, 512, L), gl.histogram(auto(), 512, layout=gl.AutoLayout()))",
    "auto-gather": "gl.store(r + o, gl.gather(a, auto(), 0))",
    "auto-shared": "s = gl.allocate_shared_memory(gl.int32, [512], SH, auto())\n"
    "gl.store(r + o, s.load(L))",
    "coalesced": "gl.store(r + gl.arange(0, 512, gl.CoalescedLayout()), 1)",
    "coalesced-gather": "k = gl.arange(0, 512, gl.CoalescedLayout())\n"
    "gl.store(r + k, gl.gather(a, k, 0))",
    "unused": "gl.load(p + gl.arange(0, 512))\ngl.store(r + o, a)",
    "mbarrier": "w = gl.nvidia.ampere.mbarrier.allocate_mbarrier()\n"
    "gl.nvidia.ampere.mbarrier.init(w, 1)\ngl.nvidia.ampere.mbarrier.arrive(w)\n"
    "gl.nvidia.ampere.mbarrier.wait(w, 0)\ngl.nvidia.ampere.mbarrier.invalidate(w)\n"
    "gl.store(r + o, a)",
    "mbarrier-expect": "w = gl.nvidia.hopper.mbarrier.allocate_mbarrier()\n"
    "gl.nvidia.hopper.mbarrier.init(w, 1)\ngl.nvidia.hopper.mbarrier.expect(w, 0)\n"
    "gl.nvidia.hopper.mbarrier.wait(w, 0)\ngl.store(r + o, a)",
    "fence": "gl.nvidia.hopper.fence_async_shared()\ngl.store(r + o, a)",
    "cluster": "gl.barrier(cluster=True)\ngl.store(r, 1)",
}


def unit_cells() -> Iterator[tuple[str, str, str, str]]:
    """(name, body, dtype, dtype of the result)."""
    for dtype in FACTORS:
        for name, body in _products(dtype):
            yield f"{name}-{dtype}", body, dtype, _sums(dtype)
        for name, body in MOVES.items():
            yield f"{name}-{dtype}", body, dtype, "i32" if name == "argmax" else dtype
    for name, body in BUFFER_ATOMICS.items():
        for dtype in ("i32", "u32", "i64", "fp16", "bf16", "fp32", "fp64"):
            yield f"{name}-{dtype}", body, dtype, dtype
    for name, body in CHOICES.items():
        yield f"{name}-i32", body, "i32", "i32"
