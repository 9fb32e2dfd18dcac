"""Attention to the last keys, or to all before: CDNA's 32 by 32 matrix instructions, softmax that goes
along in an aggregate, keys transposed in shared memory; for both generations."""

from functools import partial

import numpy as np

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.language.amd.cdna3 import buffer_load, buffer_store, mfma
from tests.programs import Launch

NOTHING = gl.constexpr(float("-inf"))


@gluon.aggregate
class Seen:
    """Return for each query the largest logit, the sum of powers of two, and of values in that measure."""

    top: gl.tensor
    mass: gl.tensor
    values: gl.tensor

    @gluon.constexpr_function
    def __init__(self, top, mass, values):
        self.top = top
        self.mass = mass
        self.values = values

    @gluon.jit
    def add(self, logits, values):
        """With more keys; `logits` are in powers of two."""
        top = gl.maximum(self.top, gl.max(logits, 1))
        zero = gl.where(top == NOTHING, 0.0, top)
        weights = gl.exp2(logits - zero[:, None])
        rest = gl.exp2(self.top - zero)
        narrow = gl.convert_layout(
            weights.to(values.dtype), gl.DotOperandLayout(0, self.values.type.layout, 4)
        )
        total = mfma(narrow, values, self.values * rest[:, None])
        return Seen(top, self.mass * rest + gl.sum(weights, 1), total)


@gluon.jit
def attend(
    queries,
    keys,
    values,
    out,
    logs,
    scale,
    head_pitch,
    pitch,
    length,
    GENERATION: gl.constexpr,
    BACK: gl.constexpr,
    ROWS: gl.constexpr,
    KEYS: gl.constexpr,
    WIDTH: gl.constexpr,
):
    """Each query sees the `BACK` keys that end with its own, or all up to it where `BACK` is 0."""
    LOG2_E: gl.constexpr = 1.0 / 0.6931471805599453
    SUMS: gl.constexpr = gl.amd.AMDMFMALayout(
        GENERATION, [32, 32, 8 if GENERATION == 3 else 16], True, [4, 1]
    )
    READ: gl.constexpr = gl.BlockedLayout([1, 8], [8, 8], warps_per_cta=[4, 1], order=[1, 0])
    QUERY: gl.constexpr = gl.SliceLayout(1, SUMS)
    head = gl.program_id(1).to(gl.int64) * head_pitch
    queries += head
    keys += head
    values += head
    first = gl.program_id(0) * ROWS
    across = gl.arange(0, WIDTH, layout=gl.SliceLayout(0, READ))[None, :]
    down = first + gl.arange(0, ROWS, layout=gl.SliceLayout(1, READ))[:, None]
    q = buffer_load(queries, down * pitch + across, mask=down < length, other=0.0)
    q = gl.convert_layout(q, gl.DotOperandLayout(0, SUMS, 8))
    k_slot = gl.allocate_shared_memory(
        keys.dtype.element_ty, [KEYS, WIDTH], gl.SwizzledSharedLayout(8, 1, 8, [1, 0])
    )
    v_slot = gl.allocate_shared_memory(
        values.dtype.element_ty, [KEYS, WIDTH], gl.SwizzledSharedLayout(4, 1, 16, [1, 0])
    )

    seen = Seen(
        gl.full([ROWS], NOTHING, gl.float32, layout=QUERY),
        gl.zeros([ROWS], gl.float32, layout=QUERY),
        gl.zeros([ROWS, WIDTH], gl.float32, layout=SUMS),
    )
    me = first + gl.arange(0, ROWS, layout=QUERY)
    begin = 0
    if BACK > 0:
        begin = gl.maximum(first - BACK + 1, 0) // KEYS * KEYS
    for start in range(begin, gl.minimum(first + ROWS, length), KEYS):
        rows = start + gl.arange(0, KEYS, layout=gl.SliceLayout(1, READ))[:, None]
        k_slot.store(buffer_load(keys, rows * pitch + across, mask=rows < length, other=0.0))
        v_slot.store(buffer_load(values, rows * pitch + across, mask=rows < length, other=0.0))
        logits = mfma(
            q,
            k_slot.permute([1, 0]).load(gl.DotOperandLayout(1, SUMS, 8)),
            gl.zeros([ROWS, KEYS], gl.float32, layout=SUMS),
        )
        ago = me[:, None] - start - gl.arange(0, KEYS, layout=gl.SliceLayout(0, SUMS))[None, :]
        visible = ago >= 0
        if BACK > 0:
            visible = visible & (ago < BACK)
        logits = gl.where(visible, logits * (scale * LOG2_E), NOTHING)
        seen = seen.add(logits, v_slot.load(gl.DotOperandLayout(1, SUMS, 4)))
    here = me < length
    gl.store(
        logs + gl.program_id(1) * length + me, (seen.top + gl.log2(seen.mass)) / LOG2_E, mask=here
    )
    result = (seen.values / seen.mass[:, None]).to(out.dtype.element_ty)
    columns = gl.arange(0, WIDTH, layout=gl.SliceLayout(0, SUMS))
    buffer_store(result, out + head, me[:, None] * pitch + columns[None, :], mask=here[:, None])


def data(back, rng):
    heads, length, width = 2, 200, 64
    q, k, v = rng.standard_normal((3, heads, length, width)).astype(np.float16)
    i, j = np.ogrid[:length, :length]
    hidden = (j > i) | (back > 0) & (i - j >= back)
    logits = q.astype(float) @ k.astype(float).swapaxes(1, 2) * 0.125
    powers = np.exp(np.where(hidden, -np.inf, logits))
    wanted = (powers / powers.sum(2, keepdims=True)) @ v.astype(float)
    out, logs = np.zeros((heads, length, width), np.float16), np.zeros((heads, length), np.float32)
    arguments = [q, k, v, out, logs, 0.125, length * width, width, length]
    return arguments, {"out": wanted, "logs": np.log(powers.sum(2))}


TILES = {"ROWS": 128, "KEYS": 64, "WIDTH": 64, "num_warps": 4}
LAUNCHES = [
    Launch(
        attend,
        target,
        partial(data, back),
        grid=(2, 2),
        constants={**TILES, "GENERATION": generation, "BACK": back},
        tolerance=2e-3,
    )
    for target, generation, back in (("gfx942", 3, 70), ("gfx950", 4, 0))
]
