"""Programs that Triton's own Gluon takes and ours refused once: both trace them, to one module."""

from __future__ import annotations

import pytest

from gluon_core.testing import TRITON_VERSION
from tests.compat import sides
from tests.frontend import oracle

RELEASE = TRITON_VERSION[:2]
_GFX950 = 'TARGET = GPUTarget("hip", "gfx950", 64)\n'


def _kernel(*lines: str, before: str = "", end: str = "", more: str = "") -> str:
    body = "".join(f"    {line}\n" for line in lines)
    args = "ARGS = (ptr(gl.float32), ptr(gl.int32), 5)\n"
    return f"{before}@gluon.jit\ndef kernel(p, q, n):\n{body}{more}{args}{end}"


_ROWS = (
    "L: gl.constexpr = gl.BlockedLayout([1, 1], [1, 32], [4, 1], [1, 0])",
    "S: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [1, 0])",
    "s = gl.allocate_shared_memory(gl.int32, [32, 32], S)",
    "i = gl.full([32, 32], 0, gl.int32, L) + n",
    "column = gl.full([32, 1], 0, gl.int32, L) + n",
    "row = gl.full([1, 32], 0, gl.int32, L) + n",
    "s.store(i)",
)
_READ = "gl.store(q + i, s.load(L))"
_INNER = """\
@gluon.jit
def inner(q, L: gl.constexpr):
    gl.store(q + gl.zeros([64, 64], gl.int32, L), 1)
@gluon.jit
def buffer(q, S: gl.constexpr):
    B: gl.constexpr = gl.BlockedLayout([1, 2], [32, 1], [4, 1], [1, 0])
    s = gl.allocate_shared_memory(gl.int32, [64, 64], S)
    s.store(gl.zeros([64, 64], gl.int32, B))
    gl.store(q + gl.zeros([64, 64], gl.int32, B), s.load(B))
"""


def _scaled(scale: str) -> str:
    return _kernel(
        "M: gl.constexpr = gl.amd.AMDMFMALayout(4, [32, 32, 64], True, [1, 1])",
        "a = gl.full([32, 32], 1, gl.uint8, gl.DotOperandLayout(0, M, 16))",
        "b = gl.full([32, 32], 1, gl.uint8, gl.DotOperandLayout(1, M, 16))",
        "c = gl.zeros([32, 32], gl.float32, M)",
        f"c = gl.amd.cdna4.mfma_scaled(a, {scale}, 'e2m1', b, None, 'e2m1', c)",
        "gl.store(p + gl.full([32, 32], 0, gl.int32, M), c)",
        end=f"{_GFX950}KWARGS = dict(num_warps=1)\n",
    )


def _atomic(mask: str) -> str:
    return _kernel(
        "L: gl.constexpr = gl.BlockedLayout([2], [64], [4], [0])",
        "i = gl.arange(0, 512, L)",
        f"gl.amd.cdna3.buffer_atomic_add(p, i, i.to(gl.float32), mask={mask})",
        end=_GFX950,
    )


def _column(rows: int, columns: int, variant: str) -> str:
    return _kernel(
        "T: gl.constexpr = blackwell.TensorMemoryLayout([128, 1], col_stride=2)",
        f"t = blackwell.allocate_tensor_memory(gl.float16, [{rows}, {columns}], T)",
        f"L: gl.constexpr = blackwell.get_tmem_reg_layout(gl.float16, [{rows}, {columns}], T, 4, instr_variant='{variant}')",
        f"i = gl.full([{rows}, {columns}], 0, gl.int32, L) + n",
        "t.store(gl.load(p + i).to(gl.float16))",
        "gl.store(p + i, t.load(L).to(gl.float32))",
        before="blackwell = gl.nvidia.blackwell\n",
        end='TARGET = GPUTarget("cuda", 100, 32)\n',
    )


def _packed(*ops: str) -> str:
    return _kernel(
        "i = gl.full([32, 64], 0, gl.int32, gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0])) + n",
        "x = gl.load(p + i)",
        "h, e, w = x.to(gl.float16), x.to(gl.float8e4nv), x.to(gl.float8e5)",
        "f, g, b = n.to(gl.float32), n.to(gl.float16), n.to(gl.bfloat16)",
        *(f"gl.store(p + i, blackwell.{op}.to(gl.float32))" for op in ops),
        before="blackwell = gl.nvidia.blackwell\n",
        end='TARGET = GPUTarget("cuda", 100, 32)\n',
    )


# Name -> (the first release, the last, the program).
PROGRAMS = {
    **{
        f"scale {scale}": ((3, 6), (3, 7), _scaled(scale))
        for scale in ("n", "n.to(gl.int64)", "n.to(gl.float32)")
    },
    "scale of 2": ((3, 6), (3, 9), _scaled("2")),
    **{
        f"buffer atomic, mask {mask}": ((3, 6), (3, 9), _atomic(mask))
        for mask in ("i", "i.to(gl.int8)", "n", "1", "i > 3")
    },
    "buffer atomic of a scalar under a mask to be broadcast": (
        (3, 6),
        (3, 9),
        _kernel(
            "L: gl.constexpr = gl.BlockedLayout([1, 2], [8, 8], [4, 1], [1, 0])",
            "i = gl.full([32, 32], 0, gl.int32, L) + n",
            "row = gl.full([1, 32], 0, gl.int32, L) + n",
            "gl.store(p + i, gl.amd.cdna3.buffer_atomic_add(p, i, n.to(gl.float32), row > 2))",
            end=_GFX950,
        ),
    ),
    "buffer load of `other` without a mask": (
        (3, 6),
        (3, 7),
        _kernel(
            "i = gl.full([256], 0, gl.int32, gl.BlockedLayout([1], [64], [4], [0])) + n",
            "gl.store(p + i, gl.amd.cdna3.buffer_load(p, i, None, 1))",
            end=_GFX950,
        ),
    ),
    "view larger than its memory": (
        (3, 6),
        (3, 7),
        _kernel(*_ROWS, "gl.store(q + i, s._reinterpret(gl.int64, [32, 32], S).load(L).to(gl.int32))"),
    ),
    **{
        f"registers of a column of {rows}, {variant}": ((3, 6), (3, 7), _column(rows, columns, variant))
        for rows, columns, variant in [
            (256, 1, "32x32b"), (256, 1, "16x64b"), (256, 2, "16x64b"), (256, 2, "16x128b"),
        ]
    },
    **{
        f"packed {ops[0]}": (since, (3, 9), _packed(*ops))
        for since, *ops in [
            ((3, 8), "add2(x, x)", "mul2(x, x)", "fma2(x, x, x)", "add2(x, 2)"),
            ((3, 8), "min2(h, h)", "add2(h, h)"),
            ((3, 8), "add2(e, w)", "mul2(e, w, gl.float8e5)", "fma2(w, e, e)"),
            # A scalar of the run is as wide as it is, and no more than its tensors.
            ((3, 8), "add2(x, g)", "fma2(x, g, g)", "fma2(x, f, g)", "mul2(b, h)", "min2(b, h)"),
        ]
    },
    "an operand of wgmma without a swizzle, said to be wider": (
        (3, 6),
        (3, 9),
        _kernel(
            "A: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 8, 16])",
            "a = gl.allocate_shared_memory(gl.bfloat16, [64, 64], gl.NVMMASharedLayout(128, 16, 2))",
            "b = gl.allocate_shared_memory(gl.bfloat16, [64, 8], gl.NVMMASharedLayout(0, 32, 2))",
            "y = gl.nvidia.hopper.warpgroup_mma(a, b, gl.full([64, 8], 0, gl.float32, A))",
            "gl.store(p + gl.full([64, 8], 0, gl.int32, A) + n, y)",
        ),
    ),
    **{
        f"scatter {call}": ((3, 8), (3, 9), _kernel(*_ROWS, f"s.scatter({call}, 0)", _READ))
        for call in ("column, i", "n, i", "row, i")
    },
    **{
        f"atomic scatter {call}": (
            (3, 8),
            (3, 9),
            _kernel(*_ROWS, f"gl.store(q + i, s.atomic_scatter_add({call}))", _READ),
        )
        for call in ("column, i, 0", "i, column, 0", "column, row, 1", "n, i, 0, row > 2",
                     "column, column, 1, i > 2", "i, i, 0, n > 2")
    },
    **{
        f"scatter of a value whose layout is open: {call}": (
            since,
            (3, 9),
            _kernel(*_ROWS, "auto = gl.full([32, 32], 0, gl.int32, gl.AutoLayout()) + n", call, _READ),
        )
        for since, call in (((3, 8), "s.scatter(auto, i, 0)"), ((3, 8), "s.scatter(i, auto, 0)"),
                            ((3, 8), "gl.store(q + i, s.atomic_scatter_add(auto, i, 0))"))
    },
    **{
        f"True for one: {line}": ((3, 6), (3, 9), _kernel(*_ROWS, line))
        for line in ("gl.store(q + gl.zeros([32], gl.int32, gl.SliceLayout(1, L)), gl.sum(i, True))",
                     "gl.store(q, gl.program_id(True))", "gl.store(q + gl.full([True, 32], 0, gl.int32, L), 1)")
    },
    "a shape with an entry of an object, in a call": (
        (3, 8),
        (3, 9),
        _kernel(
            *_ROWS,
            "SIZE: gl.constexpr = 32",
            "gl.store(q + i, filled([SIZE, s.shape[1]], L))",
            before="@gluon.jit\ndef filled(shape, L: gl.constexpr):\n    return gl.full(shape, 1, gl.int32, L)\n",
        ),
    ),
    "a flag that is None": (
        (3, 6),
        (3, 6),
        _kernel(
            "b = gl.allocate_shared_memory(gl.int64, [1], gl.nvidia.ampere.mbarrier.MBarrierLayout())",
            "gl.nvidia.ampere.async_copy.mbarrier_arrive(b, None)",
        ),
    ),
    "slice of the last dimension": (
        (3, 6),
        (3, 9),
        _kernel(*_ROWS, "h = s.slice(16, 16, -1)", "h.store(gl.load(q + gl.zeros([32, 16], gl.int32, L)))", _READ),
    ),
    "register layout made in a call": (
        (3, 6),
        (3, 9),
        _kernel(
            "inner(q, gl.to_linear_layout(gl.BlockedLayout([1, 2], [32, 1], [4, 1], [1, 0]), [64, 64]))",
            before=_INNER,
        ),
    ),
    "swizzled layout made in a call": (
        (3, 6),
        (3, 9),
        _kernel("buffer(q, gl.NVMMASharedLayout.get_default_for([64, 64], gl.int32))", before=_INNER),
    ),
    "padded layout made in a call": (
        (3, 6),
        (3, 9),
        _kernel("buffer(q, S=gl.PaddedSharedLayout.with_identity_for([[64, 8]], [64, 64], [1, 0]))", before=_INNER),
    ),
    "label of a stage": (
        (3, 7),
        (3, 9),
        _kernel(
            "for k in range(n):",
            '    with gl.amd.warp_pipeline_stage("load", priority=1) as stage:',
            '        gl.static_assert(stage.label == "load" and stage.priority == 1)',
            "        gl.store(q + k, n)",
            "    with gl.amd.warp_pipeline_stage() as stage:",
            "        gl.static_assert(stage.label is None)",
            "        gl.store(q + k, 1)",
            '    with gl.amd.warp_pipeline_stage(""):',
            "        gl.store(q + k, 2)",
            end=_GFX950,
        ),
    ),
    "shape of a descriptor that was moved": (
        (3, 8),
        (3, 9),
        _kernel(
            "L: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [1, 0])",
            "d = gl.amd.gfx1250.tdm.make_tensor_descriptor(p, [n, 1024], [1024, 1], [32, 64], L)",
            "d = gl.amd.gfx1250.tdm.update_tensor_descriptor(d, set_bounds=[n - 1, 64])",
            "gl.amd.gfx1250.tdm.async_load(d, dest=gl.allocate_shared_memory(gl.float32, [32, 64], L))",
            "gl.store(q, d.shape[0])",
            end='TARGET = GPUTarget("hip", "gfx1250", 32)\n',
        ),
    ),
    "join of the other signedness": (
        (3, 6),
        (3, 9),
        _kernel(
            *_ROWS,
            "y = gl.join(i, i.to(gl.uint32))",
            "gl.store(p + gl.full(y.shape, 0, gl.int32, y.type.layout), y.to(gl.float32))",
        ),
    ),
    "workers of True warps": (
        (3, 7),
        (3, 9),
        _kernel(
            "gl.warp_specialize([(worker, (q, n)), (worker, (q + 128, n))], [True], [24])",
            before=(
                "@gluon.jit\ndef worker(q, n):\n"
                "    i = gl.arange(0, 128, gl.BlockedLayout([1], [32], [gl.num_warps()], [0]))\n"
                "    gl.store(q + i, i + n)\n"
            ),
        ),
    ),
    **{
        f"registers of partitions: {registers}": (
            since,
            (3, 9),
            _kernel(
                f"gl.warp_specialize([(worker, (q, n)), (worker, (q, 1))], [4], [{registers}])",
                before="@gluon.jit\ndef worker(q, n):\n    gl.store(q, n)\n",
                end=f"TARGET = GPUTarget('cuda', {arch}, 32)\n",
            ),
        )
        for registers, arch, since in ((25, 90, (3, 6)), (300, 100, (3, 6)), (8, 90, (3, 9)), (512, 80, (3, 6)))
    },
    "poll of several": (
        (3, 9),
        (3, 9),
        _kernel("i = gl.arange(0, 128, gl.BlockedLayout([1], [32], [4], [0]))", "gl.store(q + i, gl.atomic_poll(q + i, i))"),
    ),
    "one byte to a row of tensor memory": (
        (3, 9),
        (3, 9),
        _kernel(
            "T: gl.constexpr = blackwell.TensorMemoryLayout([128, 1], col_stride=2)",
            "t = blackwell.allocate_tensor_memory(gl.int8, [128, 1], T)",
            "L: gl.constexpr = gl.BlockedLayout([1, 1], [32, 1], [4, 1], [0, 1])",
            "i = gl.full([128, 1], 0, gl.int32, L) + n",
            "t.store(gl.load(p + i).to(gl.int8))",
            "gl.store(p + i, t.load(L).to(gl.float32))",
            before="blackwell = gl.nvidia.blackwell\n",
            end='TARGET = GPUTarget("cuda", 100, 32)\n',
        ),
    ),
    "packed fp4 of signed bytes": (
        (3, 9),
        (3, 9),
        _kernel(
            "D: gl.constexpr = gl.DotOperandLayout(1, gl.amd.AMDMFMALayout(4, [16, 16, 128], True, [4, 1]), 16)",
            "L: gl.constexpr = gl.BlockedLayout([1, 8], [8, 8], [4, 1], [1, 0])",
            "m = gl.allocate_shared_memory(gl.int8, [64, 64], gl.SwizzledSharedLayout(1, 1, 1, [1, 0]))",
            "m.store((gl.full([64, 64], 0, gl.int32, L) + n).to(gl.int8))",
            "y = gl.amd.cdna4.load_shared_fp4_repacked(m, D)",
            "gl.store(p + gl.full(y.shape, 0, gl.int32, D) + n, y.to(gl.float32))",
            end=_GFX950,
        ),
    ),
    "constant extent of True": (
        (3, 6),
        (3, 7),
        _kernel(
            "L: gl.constexpr = gl.NVMMASharedLayout(128, 32, 2)",
            "d = gl.nvidia.hopper.tma.make_tensor_descriptor(p, [True, 64], [64, 1], [32, 32], L)",
            "s = gl.allocate_shared_memory(gl.float32, [32, 32], L)",
            "gl.nvidia.hopper.tma.async_copy_shared_to_global(d, [0, 0], s)",
        ),
    ),
    "buffer load whose offsets and default are open": (
        (3, 6),
        (3, 9),
        _kernel(
            *_ROWS[:1],
            "column = gl.full([32, 1], 0, gl.int32, L) + n",
            "auto = gl.full([32, 32], 0, gl.int32, gl.AutoLayout()) + n",
            "i = gl.full([32, 32], 0, gl.int32, L) + n",
            "gl.store(p + i, gl.amd.cdna3.buffer_load(p, auto, column > 2, auto))",
            end='TARGET = GPUTarget("hip", "gfx942", 64)\n',
        ).replace("[1, 32], [4, 1]", "[2, 32], [4, 1]"),
    ),
    "hasattr": (
        (3, 6),
        (3, 9),
        _kernel(
            'if hasattr(gl, "atomic_poll"):',
            "    gl.store(q, gl.atomic_poll(q, 1).to(gl.int32))",
            "else:",
            "    gl.store(q, 2)",
            'if hasattr(gl.nvidia.blackwell, "clc"):',
            "    gl.store(q, 3)",
        ),
    ),
}  # fmt: skip


@pytest.mark.once
@pytest.mark.parametrize("name", PROGRAMS)
def test_both_trace_it_to_one_module(name):
    first, last, source = PROGRAMS[name]
    if not first <= RELEASE <= last:
        pytest.skip(f"upstream has it from Triton {first} to {last}")
    oracle.compare(source, raw=False)


@pytest.mark.skipif(RELEASE < (3, 7), reason="scatters came with Triton 3.7")
def test_a_scatter_broadcasts_on_the_simulator():
    import torch

    import gluon_core as gluon
    from gluon_core import language as gl

    @gluon.jit
    def kernel(out):
        layout: gl.constexpr = gl.BlockedLayout([1, 1], [1, 32], [4, 1], [1, 0])
        flat: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [1, 0])
        buffer = gl.allocate_shared_memory(gl.int32, [32, 32], flat)
        rows = gl.expand_dims(gl.arange(0, 32, gl.SliceLayout(1, layout)), 1)
        columns = gl.expand_dims(gl.arange(0, 32, gl.SliceLayout(0, layout)), 0)
        buffer.scatter(rows, 31 - rows + gl.zeros([32, 32], gl.int32, layout), 0)
        gl.store(out + rows * 32 + columns, buffer.load(layout))

    out = torch.zeros(32, 32, dtype=torch.int32)
    kernel[(1,)](out, target="sim:sm_90")
    assert torch.equal(out, (31 - torch.arange(32, dtype=torch.int32))[:, None].expand(32, 32))


# Programs that abort the compiler are refused under their line.
REFUSED = {
    "trivial conversion to a layout that is left open": _kernel(
        "i = gl.full([128], 0, gl.int32, gl.BlockedLayout([1], [32], [4], [0]))",
        "i = gl.convert_layout(i, gl.CoalescedLayout(), assert_trivial=True)",
    ),
    "blocks of tensor memory that fill half of a column": _kernel(
        "T: gl.constexpr = blackwell.TensorMemoryLayout([128, 1], col_stride=1)",
        "t = blackwell.allocate_tensor_memory(gl.float16, [256, 2], T)",
        "L: gl.constexpr = gl.BlockedLayout([1, 2], [32, 1], [4, 1], [0, 1])",
        "t.store(gl.full([256, 2], 0, gl.float16, L))",
        before="blackwell = gl.nvidia.blackwell\n",
        end='TARGET = GPUTarget("cuda", 100, 32)\n',
    ),
    "bytes of tensor memory that fill half of a column": _kernel(
        "T: gl.constexpr = blackwell.TensorMemoryLayout([64, 1], col_stride=2)",
        "t = blackwell.allocate_tensor_memory(gl.int8, [64, 2], T)",
        "L: gl.constexpr = gl.BlockedLayout([1, 2], [32, 1], [4, 1], [0, 1])",
        "t.store(gl.full([64, 2], 0, gl.int8, L))",
        before="blackwell = gl.nvidia.blackwell\n",
        end='TARGET = GPUTarget("cuda", 100, 32)\n',
    ),
}


_BITS = "gl.DistributedLinearLayout([[0, 2], [4, 0]], [[0, 8], [2, 0], [0, 1], [1, 0], [0, 4]], [[12, 0], [0, 0]], [], [16, 16])"
REFUSED["reduction along several bits"] = _kernel(
    f"x = gl.full([16, 16], 1.0, gl.float32, {_BITS})",
    "gl.store(p + gl.arange(0, 16, gl.AutoLayout()), gl.sum(x, 0))",
)
REFUSED["reduction of a slice that cuts several bits off"] = _kernel(
    f"x = gl.full([16], 1.0, gl.float32, gl.SliceLayout(0, {_BITS}))", "gl.store(p, gl.sum(x, 0))"
)
REFUSED["scales of MFMA in any layout"] = _scaled(
    "gl.full([32, 2], 1, gl.uint8, gl.BlockedLayout([1, 1], [32, 2], [1, 1], [1, 0]))"
)
REFUSED["fewer registers than arguments, a number among them"] = _kernel(
    *_ROWS,
    "gl.store(q + i, gl.inline_asm_elementwise('mov.b32 $0, $1;', '=r,r', [i, 2], gl.int32, True, 1))",
)
REFUSED["view of parts of bytes"] = _kernel(
    *_ROWS, "gl.store(q + i, s._reinterpret(gl.int1, [32, 32], S).load(L).to(gl.int32))"
)
if RELEASE >= (3, 8):
    REFUSED["rows of a scatter whose layout is open"] = _kernel(
        "d = gl.nvidia.hopper.tma.make_tensor_descriptor(p, [64, 64], [64, 1], [1, 32], S)",
        "s = gl.allocate_shared_memory(gl.float32, [32, 32], S)",
        "gl.nvidia.blackwell.tma.async_scatter(d, gl.arange(0, 32, gl.AutoLayout()), n, s)",
        before="S = gl.constexpr(gl.NVMMASharedLayout(128, 32, 2))\n",
        end='TARGET = GPUTarget("cuda", 100, 32)\n',
    )
    REFUSED["scales of an upcast whose layout is open"] = _kernel(
        "i = gl.full([32, 64], 0, gl.int32, gl.BlockedLayout([1, 8], [8, 8], [4, 1], [1, 0])) + n",
        "s = gl.full([32, 128], 127, gl.uint8, gl.AutoLayout())",
        "y = gl.amd.cdna4.scaled_upcast(i.to(gl.int8), s, gl.float16, axis=1)",
        end=_GFX950,
    )
    REFUSED["rows of a TDM gather whose layout is open"] = _kernel(
        "S: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [1, 0])",
        "d = gl.amd.gfx1250.tdm.make_tensor_descriptor(p, [64, 64], [64, 1], [32, 32], S)",
        "s = gl.allocate_shared_memory(gl.float32, [32, 32], S)",
        "gl.amd.gfx1250.tdm.async_gather(d, gl.arange(0, 32, gl.AutoLayout()), s)",
        end='TARGET = GPUTarget("hip", "gfx1250", 32)\n',
    )
if RELEASE >= (3, 9):
    REFUSED["scales of a downcast whose layout is open"] = _kernel(
        "x = gl.full([32, 64], 2.0, gl.float16, gl.BlockedLayout([1, 8], [8, 8], [4, 1], [1, 0]))",
        "s = gl.full([32, 2], 127, gl.int8, gl.AutoLayout())",
        "y = gl.amd.cdna4.scaled_downcast(x, s, 'e4m3')",
        end=_GFX950,
    )
REFUSED["a block pointer that is none"] = _kernel(*_ROWS, "i = i.advance([1, 1])")
if RELEASE < (3, 8):
    REFUSED["reduction of blocks that interleave"] = _kernel(
        "L: gl.constexpr = gl.DistributedLinearLayout([[0, 4], [32, 0]],",
        "    [[16, 0], [0, 2], [0, 0], [2, 0], [4, 0]], [[1, 0], [0, 1]], [[8, 0]], [64, 8])",
        "x = gl.sum(gl.full([64, 8], 0, gl.int32, L) + n, 1)",
        end="KWARGS = dict(num_ctas=2)\n",
    )
    REFUSED["split of blocks that interleave"] = _kernel(
        "L: gl.constexpr = gl.DistributedLinearLayout([[1, 0], [4, 0]],",
        "    [[2, 0], [0, 8], [0, 1], [8, 0], [0, 2]], [[0, 16], [0, 0]], [[0, 4]], [16, 32])",
        "x = gl.full([16, 32], 0, gl.int32, L) + n",
        "x, y = gl.split(gl.join(x, x))",
        "gl.store(q + gl.full([16, 32], 0, gl.int32, x.type.layout), x)",
        end="KWARGS = dict(num_ctas=2)\n",
    )
    REFUSED["conversion between blocks"] = _kernel(
        "one: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0], cga_layout=[[1]])",
        "x = gl.full([512], 0, gl.int32, one) + n",
        "x = gl.convert_layout(x, gl.BlockedLayout([1], [32], [4], [0], cga_layout=[[0]]))",
        end="KWARGS = dict(num_ctas=2)\n",
    )
    REFUSED["slice of a buffer with unused places"] = _kernel(
        "L: gl.constexpr = gl.BlockedLayout([4, 4], [4, 8], [4, 1], [0, 1])",
        "S: gl.constexpr = gl.SharedLinearLayout([[0, 0], [2, 0], [0, 1], [1, 0]])",
        "s = gl.allocate_shared_memory(gl.int8, [4, 2], S)",
        "s.slice(0, 2, 0).load(L)",
    )


_GFX1250 = 'TARGET, KWARGS = GPUTarget("hip", "gfx1250", 32), dict(num_warps=4, num_ctas={})\n'
_LOADED = "gl.store(q + gl.zeros(y.shape, gl.int32, y.type.layout), y)"
if RELEASE >= (3, 8):
    for _inner in (
        "gl.SwizzledSharedLayout(1, 1, 1, [0])",
        "gl.PaddedSharedLayout.with_identity_for([[64, 8]], [128], [0])",  # would abort
    ):
        REFUSED[f"another shape of partitioned memory: {_inner}"] = _kernel(
            "B: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])",
            f"S: gl.constexpr = gl.amd.gfx1250.PartitionedSharedLayout(2, 1, 0, {_inner})",
            "y = gl.allocate_shared_memory(gl.int32, [256], S).reshape([256]).load(B)",
            _LOADED,
            end=_GFX1250.format(1),
        )
    for _line in (
        "y = gl.allocate_shared_memory(gl.int32, [512], S).load(B)",
        "gl.allocate_shared_memory(gl.int32, [512], S).store(x)",
        "gl.allocate_shared_memory(gl.int32, [512], S, x)",
        "y = gl.convert_layout(x, C)",
        "y = gl.sum(x, 0)",
    ):
        REFUSED[f"another block's memory: {_line}"] = _kernel(
            "B: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0], cga_layout=[[1]])",
            "C: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0], cga_layout=[[0]])",
            # Each block has every other element, and in B one half.
            "S: gl.constexpr = gl.SharedLinearLayout([[2], [4], [8], [16], [32], [64], [128], [256]], [[1]])",
            "x = gl.full([512], 0, gl.int32, B) + n",
            _line,
            end=_GFX1250.format(2),
        )


@pytest.mark.once
@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", REFUSED)
def test_no_abort(name):
    outcome = sides.traced_by(oracle.ours, REFUSED[name])
    assert outcome.how == "error" and "^^^" in outcome.text, outcome
