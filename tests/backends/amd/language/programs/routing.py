"""Rows routed to experts, each a matrix: CDNA3's gathering buffer loads from a 64-bit base, operands from
registers by changes of layout, programs that return early or have nothing to multiply."""

import numpy as np

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.language.amd import cdna3
from tests.programs import Launch

NOBODY = gl.constexpr(-1)


@gluon.jit
def routed(
    x,
    experts,
    gates,
    jobs,
    job_count,
    order,
    out,
    outputs,
    inputs,
    COPIES: gl.constexpr,
    ROWS: gl.constexpr,
    BLOCK: gl.constexpr,
    INNER: gl.constexpr,
    GATED: gl.constexpr,
):
    """A job is an expert and a range of `order`, which lists slots: `COPIES` of each row of `x`."""
    job = gl.program_id(0)
    if job >= gl.load(job_count):
        return
    SUMS: gl.constexpr = gl.amd.AMDMFMALayout(
        version=3, instr_shape=[32, 32, 8], transposed=False, warps_per_cta=[2, 2]
    )
    READ: gl.constexpr = gl.BlockedLayout([1, 4], [8, 8], warps_per_cta=[4, 1], order=[1, 0])
    expert = gl.load(jobs + 3 * job)
    first, beyond = gl.load(jobs + 3 * job + 1), gl.load(jobs + 3 * job + 2)
    listed = first + gl.arange(0, ROWS, layout=gl.SliceLayout(1, READ))
    slots = gl.load(order + listed, mask=listed < beyond, other=-1)
    columns = gl.program_id(1) * BLOCK + gl.arange(0, BLOCK, layout=gl.SliceLayout(1, READ))
    inner = gl.arange(0, INNER, layout=gl.SliceLayout(0, READ))
    acc = gl.zeros([ROWS, BLOCK], gl.float32, SUMS)
    if expert == NOBODY:
        pass
    else:
        matrix = experts + expert.to(gl.int64) * outputs * inputs
        for start in range(0, gl.cdiv(inputs, INNER)):
            offsets = start * INNER + inner
            rows = cdna3.buffer_load(
                x,
                (slots // COPIES)[:, None] * inputs + offsets[None, :],
                mask=(slots >= 0)[:, None] & (offsets < inputs)[None, :],
                other=0.0,
            )
            weights = cdna3.buffer_load(
                matrix,
                columns[:, None] * inputs + offsets[None, :],
                mask=(columns < outputs)[:, None] & (offsets < inputs)[None, :],
                other=0.0,
            )
            left = gl.convert_layout(rows, gl.DotOperandLayout(0, SUMS, 4))
            right = gl.convert_layout(gl.permute(weights, [1, 0]), gl.DotOperandLayout(1, SUMS, 4))
            acc = cdna3.mfma(left, right, acc)
    slots = gl.convert_layout(slots, gl.SliceLayout(1, SUMS))
    if GATED:
        acc *= gl.load(gates + slots, mask=slots >= 0, other=0)[:, None]
    columns = gl.convert_layout(columns, gl.SliceLayout(0, SUMS))
    gl.store(
        out + slots[:, None] * outputs + columns[None, :],
        acc.to(out.type.element_ty),
        mask=(slots >= 0)[:, None] & (columns < outputs)[None, :],
    )


def data(rng):
    rows, copies, outputs, inputs, experts, block = 70, 2, 96, 80, 3, 64
    x = rng.standard_normal((rows, inputs)).astype(np.float16)
    matrices = rng.standard_normal((experts, outputs, inputs)).astype(np.float16)
    gates = rng.random(rows * copies).astype(np.float32)
    chosen = rng.choice([-1, 0, 1, 2], rows * copies, p=[0.1, 0.6, 0.1, 0.2])
    order = np.argsort(chosen, kind="stable").astype(np.int32)
    jobs = []
    for expert in range(-1, experts):
        first, beyond = np.searchsorted(chosen[order], [expert, expert + 1])
        jobs += [(expert, start, beyond) for start in range(first, beyond, block)]
    table = np.array(jobs + [(0, 0, 64)] * 2, np.int32)  # nobody may work on the last two
    wanted = np.stack(
        [
            gate
            * (
                matrices[e].astype(float) @ x[i // copies].astype(float)
                if e >= 0
                else np.zeros(outputs)
            )
            for i, (e, gate) in enumerate(zip(chosen, gates.astype(float)))
        ]
    )
    arguments = [x, matrices, gates, table, np.array([len(jobs)], np.int32), order]
    return [*arguments, np.ones((rows * copies, outputs), np.float16), outputs, inputs], {
        "out": wanted
    }


LAUNCHES = [
    Launch(
        routed,
        "gfx942",
        data,
        grid=(8, 2),
        constants={
            "COPIES": 2,
            "ROWS": 64,
            "BLOCK": 64,
            "INNER": 32,
            "GATED": True,
            "num_warps": 4,
        },
        tolerance=1e-3,
    )
]
