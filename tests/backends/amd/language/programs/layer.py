"""A dense layer with its activation: gfx1250's tensor data mover fills rings of padded slots, with
predicates, and aggregates of aggregates hold descriptors, buffers, tensors and constants."""

from functools import partial

import numpy as np

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.language.amd import gfx1250
from gluon_core.language.amd.gfx1250 import tdm
from tests.backends.amd.language import wmma
from tests.programs import Launch

SUMS = gl.constexpr(wmma.two_by_two(gl, 32))


@gluon.aggregate
class Tiling:
    """Extents of a tile of the result and of the boxes that it is made of."""

    HIGH: gl.constexpr
    WIDE: gl.constexpr
    DEEP: gl.constexpr
    LEFT_BOX: gl.constexpr
    RIGHT_BOX: gl.constexpr

    @gluon.constexpr_function
    def __init__(self, HIGH, WIDE, DEEP, BY_OUTPUT):
        self.HIGH, self.WIDE = gl.constexpr(HIGH), gl.constexpr(WIDE)
        self.DEEP = gl.constexpr(DEEP)
        self.LEFT_BOX = gl.constexpr([HIGH, DEEP])
        if BY_OUTPUT:
            self.RIGHT_BOX = gl.constexpr([WIDE, DEEP])
        else:
            self.RIGHT_BOX = gl.constexpr([DEEP, WIDE])


@gluon.constexpr_function
def padded(box, gap):
    return gl.PaddedSharedLayout.with_identity_for([[box[1], gap]], box, [1, 0])


@gluon.aggregate
class Feed:
    """One operand: boxes of a matrix that go through slots while dimension `INNER` advances."""

    boxes: tdm.tensor_descriptor
    slots: gl.shared_memory_descriptor
    outer: gl.tensor
    INNER: gl.constexpr
    LAYOUT: gl.constexpr

    @gluon.constexpr_function
    def __init__(self, boxes, slots, outer, INNER, LAYOUT):
        self.boxes = boxes
        self.slots = slots
        self.outer = outer
        self.INNER = gl.constexpr(INNER)
        self.LAYOUT = gl.constexpr(LAYOUT)

    @gluon.jit
    def over(base, shape, BOX: gl.constexpr, GAP: gl.constexpr, COUNT: gl.constexpr):
        """A matrix as boxes, and slots for them."""
        boxes = tdm.make_tensor_descriptor(
            base=base,
            shape=shape,
            strides=(shape[1], 1),
            block_shape=(BOX[0], BOX[1]),
            layout=padded(BOX, GAP),
        )
        slots = gl.allocate_shared_memory(
            boxes.dtype, shape=[COUNT] + boxes.block_shape, layout=boxes.layout
        )
        return boxes, slots

    @gluon.jit
    def slot(self, step):
        return self.slots.index(step % self.slots.shape[0])

    @gluon.jit
    def request(self, step, wanted=1):
        inner = step * self.boxes.block_shape[self.INNER]
        if self.INNER == 1:
            tdm.async_load(self.boxes, [self.outer, inner], self.slot(step), pred=wanted)
        else:
            tdm.async_load(self.boxes, [inner, self.outer], self.slot(step), pred=wanted)

    @gluon.jit
    def operand(self, step):
        if self.INNER == self.LAYOUT.operand_index:
            return self.slot(step).permute([1, 0]).load(layout=self.LAYOUT)
        else:
            return self.slot(step).load(layout=self.LAYOUT)


@gluon.aggregate
class Feeds:
    left: Feed
    right: Feed

    @gluon.constexpr_function
    def __init__(self, left, right):
        self.left = left
        self.right = right

    @gluon.jit
    def request(self, step, wanted=1):
        self.left.request(step, wanted)
        self.right.request(step, wanted)
        return step + 1

    @gluon.jit
    def multiply(self, step, acc):
        return gl.amd.gfx1250.wmma(self.left.operand(step), self.right.operand(step), acc), step + 1


@gluon.jit
def layer(
    x,
    weights,
    out,
    batch,
    outputs,
    inputs,
    HIGH: gl.constexpr,
    WIDE: gl.constexpr,
    DEEP: gl.constexpr,
    SLOTS: gl.constexpr,
    BY_OUTPUT: gl.constexpr,
):
    tiling = Tiling(HIGH, WIDE, DEEP, BY_OUTPUT)
    column = gl.program_id(axis=0) % gl.cdiv(outputs, WIDE) * tiling.WIDE
    row = gl.program_id(axis=0) // gl.cdiv(outputs, WIDE) * tiling.HIGH
    boxes, slots = Feed.over(x, (batch, inputs), tiling.LEFT_BOX, 8, SLOTS)
    left = Feed(boxes, slots, row, 1, gl.DotOperandLayout(0, SUMS, 8))
    if BY_OUTPUT:
        boxes, slots = Feed.over(weights, (outputs, inputs), tiling.RIGHT_BOX, 8, SLOTS)
    else:
        boxes, slots = Feed.over(weights, (inputs, outputs), tiling.RIGHT_BOX, 16, SLOTS)
    right = Feed(boxes, slots, column, 1 if BY_OUTPUT else 0, gl.DotOperandLayout(1, SUMS, 8))
    feeds = Feeds(left, right)

    steps = gl.cdiv(inputs, tiling.DEEP)
    asked, used = 0, 0
    for _ in gl.static_range(SLOTS - 1):
        asked = feeds.request(asked)
    acc = gl.zeros((HIGH, WIDE), dtype=gl.float32, layout=SUMS)
    for _ in range(steps):
        asked = feeds.request(asked, (asked < steps).to(gl.int32))
        tdm.async_wait(2 * (SLOTS - 1))
        acc, used = feeds.multiply(used, acc)
        gl.barrier()
    tdm.async_wait(0)
    rows = row + gl.arange(0, HIGH, layout=gl.SliceLayout(1, SUMS))
    columns = column + gl.arange(0, WIDE, layout=gl.SliceLayout(0, SUMS))
    gfx1250.buffer_store(
        gl.maximum(acc, 0.0),
        out,
        rows[:, None] * outputs + columns[None, :],
        mask=(rows < batch)[:, None] & (columns < outputs)[None, :],
    )


def data(by_output, rng):
    x = rng.standard_normal((200, 160)).astype(np.float16)
    weights = rng.standard_normal((160, 136)).astype(np.float16)
    wanted = np.maximum(x.astype(np.float64) @ weights.astype(np.float64), 0)
    stored = np.ascontiguousarray(weights.T) if by_output else weights
    return [x, stored, np.zeros((200, 136), np.float32), 200, 136, 160], {"out": wanted}


TILES = {"HIGH": 64, "WIDE": 64, "DEEP": 32, "SLOTS": 3, "num_warps": 4}
LAUNCHES = [
    Launch(
        layer,
        "gfx1250",
        partial(data, by_output),
        grid=(12,),
        constants={**TILES, "BY_OUTPUT": by_output},
        tolerance=1e-6,
        oracle=(3, 7),  # 3.6's own wants predicates of one bit
    )
    for by_output in (False, True)
]
