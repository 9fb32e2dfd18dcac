"""Attention in three partitions that hand tiles through pipes of either memory."""

import math

import pytest
import torch
import triton

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.language.nvidia.blackwell import (
    TensorMemoryLayout,
    allocate_tensor_memory,
    tcgen05_commit,
    tcgen05_mma,
    tensor_memory_descriptor,
)
from gluon_core.language.nvidia.hopper import fence_async_shared, mbarrier, tma
from gluon_core.nvidia.hopper import TensorDescriptor

ARCH = 100
_agg = getattr(gluon, "aggregate", None) or triton.language.core._aggregate


@_agg
class Turn:
    index: gl.tensor
    phase: gl.tensor
    slots: gl.constexpr

    @gluon.constexpr_function
    def __init__(self, index, phase, slots):
        self.index = index
        self.phase = phase
        self.slots = gl.constexpr(slots)

    @gluon.must_use_result
    @gluon.jit
    def after(self):
        if self.slots == 1:
            return Turn(gl.to_tensor(0), self.phase ^ 1, self.slots)
        following = self.index + 1
        wraps = following == self.slots
        index = gl.where(wraps, 0, following)
        phase = gl.where(wraps, self.phase ^ 1, self.phase)
        return Turn(index, phase, self.slots)


def pipe_of(T, alloc_fn):
    @_agg
    class Pipe:
        mem: T
        full: gl.shared_memory_descriptor
        empty: gl.shared_memory_descriptor
        stages: gl.constexpr
        readers: gl.constexpr

        @gluon.constexpr_function
        def __init__(self, mem, full, empty, stages, readers):
            self.mem = mem
            self.full = full
            self.empty = empty
            self.stages = gl.constexpr(stages)
            self.readers = gl.constexpr(readers)

        @gluon.jit
        def alloc(
            shape: gl.constexpr,
            dtype: gl.constexpr,
            layout: gl.constexpr,
            stages: gl.constexpr,
            readers: gl.constexpr = 1,
        ):
            mem = alloc_fn(dtype, [stages] + shape, layout)
            full = gl.allocate_shared_memory(gl.int64, [stages, 1], mbarrier.MBarrierLayout())
            empty = gl.allocate_shared_memory(gl.int64, [stages, 1], mbarrier.MBarrierLayout())
            for i in gl.static_range(stages):
                mbarrier.init(full.index(i), count=1)
                mbarrier.init(empty.index(i), count=readers)
                mbarrier.arrive(empty.index(i), count=readers)
            return Pipe(mem, full, empty, stages, readers)

        @gluon.jit
        def to_fill(self, turn):
            index, phase = turn.index, turn.phase
            mbarrier.wait(self.empty.index(index), phase)
            return self.mem.index(index), self.full.index(index)

        @gluon.jit
        def to_read(self, turn):
            index, phase = turn.index, turn.phase
            mbarrier.wait(self.full.index(index), phase)
            return self.mem.index(index), self.empty.index(index)

        @gluon.jit
        def start(self):
            return Turn(gl.to_tensor(0), gl.to_tensor(0), self.stages)

        @gluon.jit
        def writer(self):
            return In(self, self.start())

        @gluon.jit
        def reader(self):
            return Out(self, self.start())

        @gluon.jit
        def close(self):
            for i in gl.static_range(self.stages):
                mbarrier.invalidate(self.full.index(i))
                mbarrier.invalidate(self.empty.index(i))

    @_agg
    class In:
        pipe: Pipe
        turn: Turn

        @gluon.constexpr_function
        def __init__(self, pipe, turn):
            self.pipe = pipe
            self.turn = turn

        @gluon.jit
        def take(self):
            mem, filled = self.pipe.to_fill(self.turn)
            next = In(self.pipe, self.turn.after())
            return mem, filled, next

    @_agg
    class Out:
        pipe: Pipe
        turn: Turn

        @gluon.constexpr_function
        def __init__(self, pipe, turn):
            self.pipe = pipe
            self.turn = turn

        @gluon.jit
        def take(self):
            mem, drained = self.pipe.to_read(self.turn)
            next = Out(self.pipe, self.turn.after())
            return mem, drained, next

    return Pipe, In, Out


SharedPipe, SharedIn, SharedOut = pipe_of(gl.shared_memory_descriptor, gl.allocate_shared_memory)
TensorPipe, TensorIn, TensorOut = pipe_of(tensor_memory_descriptor, allocate_tensor_memory)


@gluon.jit
def load_part(q_desc, k_desc, v_desc, q_pipe, kv_pipe, off_m, n_ctx, BN: gl.constexpr):
    qp = q_pipe.writer()
    kvp = kv_pipe.writer()
    q, qbar, qp = qp.take()
    mbarrier.expect(qbar, q_desc.block_type.nbytes)
    tma.async_copy_global_to_shared(q_desc, [off_m, 0], qbar, q)
    for n in range(0, n_ctx, BN):
        k, kbar, kvp = kvp.take()
        mbarrier.expect(kbar, k_desc.block_type.nbytes)
        tma.async_copy_global_to_shared(k_desc, [n, 0], kbar, k)
        v, vbar, kvp = kvp.take()
        mbarrier.expect(vbar, v_desc.block_type.nbytes)
        tma.async_copy_global_to_shared(v_desc, [n, 0], vbar, v)


@gluon.jit
def mma_part(q_pipe, kv_pipe, s_pipe, p_pipe, o_pipe, n_ctx, BN: gl.constexpr):
    qc = q_pipe.reader()
    kvc = kv_pipe.reader()
    sp = s_pipe.writer()
    pc = p_pipe.reader()
    op = o_pipe.writer()
    q, qe, qc = qc.take()
    for n in range(0, n_ctx, BN):
        k, ke, kvc = kvc.take()
        s, sr, sp = sp.take()
        tcgen05_mma(q, k.permute((1, 0)), s, use_acc=False, mbarriers=[sr, ke])
        v, ve, kvc = kvc.take()
        p, pe, pc = pc.take()
        o, orr, op = op.take()
        tcgen05_mma(p, v, o, use_acc=n > 0, mbarriers=[orr, ve, pe])
    tcgen05_commit(qe)


@gluon.jit
def softmax_part(
    s_pipe,
    p_pipe,
    o_pipe,
    out_desc,
    off_m,
    n_ctx,
    scale,
    BM: gl.constexpr,
    BN: gl.constexpr,
    D: gl.constexpr,
    dtype: gl.constexpr,
):
    sc = s_pipe.reader()
    pp = p_pipe.writer()
    oc = o_pipe.reader()
    SL: gl.constexpr = gl.BlockedLayout([1, BN], [32, 1], [4, 1], [0, 1])
    OL: gl.constexpr = gl.BlockedLayout([1, D], [32, 1], [4, 1], [0, 1])
    m_i = gl.full([BM], -float("inf"), gl.float32, gl.SliceLayout(1, SL))
    l_i = gl.full([BM], 0.0, gl.float32, gl.SliceLayout(1, SL))
    for n in range(0, n_ctx, BN):
        st, se, sc = sc.take()
        s = st.load(SL) * scale
        mbarrier.arrive(se, count=1)
        m_new = gl.maximum(m_i, gl.max(s, 1))
        alpha = gl.exp2(m_i - m_new)
        p = gl.exp2(s - m_new[:, None])
        l_i = l_i * alpha + gl.sum(p, 1)
        m_i = m_new
        if n > 0:
            ot, oe, oc = oc.take()
            a = gl.convert_layout(alpha, gl.SliceLayout(1, OL))
            ot.store(ot.load(OL) * a[:, None])
            mbarrier.arrive(oe, count=1)
        pt, pr, pp = pp.take()
        pt.store(p.to(dtype))
        mbarrier.arrive(pr, count=1)
    ot, oe, oc = oc.take()
    o = ot.load(OL) / gl.convert_layout(l_i, gl.SliceLayout(1, OL))[:, None]
    buf = gl.allocate_shared_memory(dtype, [BM, D], out_desc.layout)
    buf.store(o.to(dtype))
    fence_async_shared()
    tma.async_copy_shared_to_global(out_desc, [off_m, 0], buf)
    tma.store_wait(0)


@gluon.jit
def attn_kernel(
    q_desc,
    k_desc,
    v_desc,
    o_desc,
    n_ctx,
    scale,
    BM: gl.constexpr,
    BN: gl.constexpr,
    D: gl.constexpr,
):
    dtype: gl.constexpr = q_desc.dtype
    Q: gl.constexpr = q_desc.layout
    KV: gl.constexpr = k_desc.layout
    q_pipe = SharedPipe.alloc([BM, D], dtype, Q, stages=1)
    kv_pipe = SharedPipe.alloc([BN, D], dtype, KV, stages=3)
    s_pipe = TensorPipe.alloc(
        [BM, BN], gl.float32, TensorMemoryLayout([BM, BN], col_stride=1), stages=1
    )
    p_pipe = TensorPipe.alloc([BM, BN], dtype, TensorMemoryLayout([BM, BN], col_stride=1), stages=1)
    o_pipe = TensorPipe.alloc(
        [BM, D], gl.float32, TensorMemoryLayout([BM, D], col_stride=1), stages=1
    )
    off_m = gl.program_id(0) * BM
    gl.warp_specialize(
        [
            (softmax_part, (s_pipe, p_pipe, o_pipe, o_desc, off_m, n_ctx, scale, BM, BN, D, dtype)),
            (mma_part, (q_pipe, kv_pipe, s_pipe, p_pipe, o_pipe, n_ctx, BN)),
            (load_part, (q_desc, k_desc, v_desc, q_pipe, kv_pipe, off_m, n_ctx, BN)),
        ],
        [1, 1],
        [24, 24],
    )
    q_pipe.close()
    kv_pipe.close()
    s_pipe.close()
    p_pipe.close()
    o_pipe.close()


@pytest.mark.parametrize("D, BN", [(64, 64), (128, 128)])
def test_attn(D, BN):
    n, BM = 256, 128
    q, k, v = (torch.randn(n, D).half() for _ in range(3))
    o = torch.empty_like(q)
    d = lambda t, b: TensorDescriptor.from_tensor(
        t, b, gl.NVMMASharedLayout.get_default_for(b, gl.float16)
    )
    attn_kernel[(n // BM,)](
        d(q, [BM, D]),
        d(k, [BN, D]),
        d(v, [BN, D]),
        d(o, [BM, D]),
        n,
        1.44269504 / math.sqrt(D),
        BM,
        BN,
        D,
    )
    ref = torch.nn.functional.scaled_dot_product_attention(
        q.double()[None], k.double()[None], v.double()[None]
    )[0]
    torch.testing.assert_close(o, ref.half(), rtol=1e-2, atol=1e-2)
