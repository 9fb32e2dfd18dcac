"""Rings of tiles and writers of tiles: the tiles they move, their waits, misuse."""

from __future__ import annotations

import numpy as np
import pytest

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.errors import ArgumentError, GluonError
from gluon_core.language.nvidia.hopper import (
    fence_async_shared,
    ordered_barrier,
    tma_ring,
    tma_writer,
)
from gluon_core.language.nvidia.hopper.tma import make_tensor_descriptor
from gluon_core.registry.load import registry
from gluon_sim.errors import BarrierError, DeadlockError, RaceError
from gluon_sim.settings import using
from tests.backends.nvidia.language.rings import described, remove_implied_fences
from tests.backends.sim.sanitizer.test_mutations import Case
from tests.tables import mistakes

pytestmark = [pytest.mark.once, pytest.mark.sampled(4)]

SIM = registry().target("sim:sm_90")
STEPS = 3
LAYOUT = gl.constexpr(gl.BlockedLayout([1, 4], [8, 4], [4, 1], [1, 0]))


@gluon.jit
def fill(ring, rounds, ROWS: gl.constexpr):
    position = ring.producer()
    for i in range(rounds):
        ring.fetch(position, [[i * ROWS, 0], [0, i * ROWS]])
        position = position.next()


@gluon.jit
def add_turned(ring, writer, rounds, ROWS: gl.constexpr, half: gl.constexpr):
    """Half of the rows of `a + b.T`, in two parts side by side."""
    position = ring.consumer()
    for i in range(rounds):
        a, b = ring.wait(position)
        a = a.slice(half * (ROWS // 2), ROWS // 2, dim=0)
        b = b.slice(half * (ROWS // 2), ROWS // 2, dim=1).permute((1, 0))
        result = a.load(LAYOUT) + b.load(LAYOUT)
        ring.release(position)
        position = position.next()
        writer.store([i * ROWS + half * (ROWS // 2), 0], result)
    writer.close()


@gluon.jit
def through_a_ring(
    a, b, out, rounds, ROWS: gl.constexpr, STAGES: gl.constexpr, PARTS: gl.constexpr
):
    ring = tma_ring([a, b], STAGES, consumers=2)
    upper = tma_writer(out, PARTS)
    lower = tma_writer(out, PARTS)
    gl.warp_specialize(
        [
            (add_turned, (ring, upper, rounds, ROWS, 0)),
            (add_turned, (ring, lower, rounds, ROWS, 1)),
            (fill, (ring, rounds, ROWS)),
        ],
        [4, 1],
        [64, 24],
    )


ROWS, COLUMNS = 16, 32


def arrays(rounds):
    rng = np.random.default_rng(0)
    a = rng.normal(size=(rounds * ROWS, COLUMNS)).astype(np.float32)
    b = rng.normal(size=(COLUMNS, rounds * ROWS)).astype(np.float32)
    return {"a": a, "b": b, "out": np.full_like(a, np.nan)}


def operands(args, rounds, stages, parts=2):
    blocks = {"a": [ROWS, COLUMNS], "b": [COLUMNS, ROWS], "out": [ROWS // 2, COLUMNS // parts]}
    arguments = [described(args[name], block) for name, block in blocks.items()]
    return [*arguments, rounds, ROWS, stages, parts]


@pytest.mark.parametrize(
    "rounds, stages, parts", [(1, 1, 2), (5, 1, 1), (1, 3, 2), (7, 2, 1), (8, 3, 2)]
)
def test_tiles_go_through(rounds, stages, parts):
    args = arrays(rounds)
    through_a_ring[(1,)](*operands(args, rounds, stages, parts), target=SIM, num_warps=4)
    np.testing.assert_array_equal(args["out"], args["a"] + args["b"].T)


@gluon.jit
def copy_first(ring, source, rounds, ROWS: gl.constexpr, COLUMNS: gl.constexpr):
    desc = make_tensor_descriptor(
        gl.multiple_of(source, 16), [rounds * ROWS, COLUMNS], [COLUMNS, 1], [ROWS, COLUMNS],
        gl.NVMMASharedLayout.get_default_for([ROWS, COLUMNS], gl.float32),
    )  # fmt: skip
    rows, position = ring.part(0, desc), ring.producer()
    for i in range(rounds):
        rows.fetch(position, [[i * ROWS, 0]])
        position = position.next()


@gluon.jit
def copy_second(ring, desc, rounds, ROWS: gl.constexpr):
    columns, position = ring.part(1, desc), ring.producer()
    for i in range(rounds):
        columns.fetch(position, [[0, i * ROWS]])
        position = position.next()


@gluon.jit
def by_two_producers(
    a, b, source, out, rounds, ROWS: gl.constexpr, COLUMNS: gl.constexpr, MAKERS: gl.constexpr
):
    ring = tma_ring([a, b], 3, producers=MAKERS)
    gl.static_assert(ring.dtype == gl.float32 and ring.block_shape[0] == ROWS)
    writer = tma_writer(out, 1)
    gl.warp_specialize(
        [
            (add_whole, (ring, writer, rounds, ROWS)),
            (copy_first, (ring, source, rounds, ROWS, COLUMNS)),
            (copy_second, (ring, b, rounds, ROWS)),
        ],
        [1, 1],
        [24, 24],
    )


@gluon.jit
def add_whole(ring, writer, rounds, ROWS: gl.constexpr):
    position = ring.consumer()
    for i in range(rounds):
        a, b = ring.wait(position)
        result = a.load(LAYOUT) + b.permute((1, 0)).load(LAYOUT)
        ring.release(position)
        position = position.next()
        writer.store([i * ROWS, 0], result)
    writer.close()


def test_producers_make_their_own_descriptors():
    rounds = 7
    args = arrays(rounds)
    blocks = {"a": [ROWS, COLUMNS], "b": [COLUMNS, ROWS], "out": [ROWS, COLUMNS]}
    a, b, out = (described(args[name], block) for name, block in blocks.items())
    for schedule in ("eager", "latest"):
        args["out"][:] = np.nan
        with using(schedule=schedule):
            by_two_producers[(1,)](
                a, b, args["a"], out, rounds, ROWS, COLUMNS, 2, target=SIM, num_warps=4
            )
        np.testing.assert_array_equal(args["out"], args["a"] + args["b"].T)


@gluon.jit
def by_a_late_producer(a, source, out, rounds, ROWS: gl.constexpr, COLUMNS: gl.constexpr):
    ring = tma_ring(a, 2, late=True)
    writer = tma_writer(out, 1)
    gl.warp_specialize(
        [
            (pass_on, (ring, writer, rounds, ROWS)),
            (copy_first, (ring, source, rounds, ROWS, COLUMNS)),
        ],
        [1],
        [24],
    )


@gluon.jit
def pass_on(ring, writer, rounds, ROWS: gl.constexpr):
    position = ring.consumer()
    for i in range(rounds):
        result = ring.wait(position).load(LAYOUT)
        ring.release(position)
        position = position.next()
        writer.store([i * ROWS, 0], result)
    writer.close()


def test_a_late_producer_makes_its_descriptor():
    args = arrays(5)
    a, out = (described(args[name], [ROWS, COLUMNS]) for name in ("a", "out"))
    by_a_late_producer[(1,)](a, args["a"], out, 5, ROWS, COLUMNS, target=SIM, num_warps=4)
    np.testing.assert_array_equal(args["out"], args["a"])


@gluon.jit
def misused_parts(a, b, CASE: gl.constexpr):
    ring = tma_ring([a, b], 2, producers=2)
    if CASE == "no part":
        ring.fetch(ring.producer(), [[0, 0], [0, 0]])
    if CASE == "late":
        late = tma_ring(a, 2, late=True)
        late.fetch(late.producer(), [[0, 0]])
    if CASE == "number":
        ring.part(2, a)
    if CASE == "descriptor":
        ring.part(1, a)


@pytest.mark.parametrize(
    ("case", "words"),
    [
        ("no part", "each of several producers copies the tiles of its own tensors"),
        ("late", "each of several producers copies the tiles of its own tensors"),
        ("number", "number: no tensor of the ring; expected less than 2, got 2"),
        ("descriptor", "descriptor: does not fit the ring's buffers"),
    ],
)
def test_misused_parts_of_rings(case, words):
    args = arrays(1)
    a, b = described(args["a"], [ROWS, COLUMNS]), described(args["b"], [COLUMNS, ROWS])
    with pytest.raises(ArgumentError) as report:
        misused_parts[(1,)](a, b, case, target=SIM, num_warps=4)
    assert words in str(report.value)


@gluon.jit
def far(a, out, steps, STAGES: gl.constexpr):
    """Store the positions after so many steps: a number from the launch, and 2."""
    ring = tma_ring([a], STAGES)
    order = ordered_barrier(2)
    starts = (ring.producer(), ring.consumer(), order.first(0), order.first(1))
    for i in gl.static_range(4):
        one = starts[i].next()
        for _ in range(steps):
            one = one.next()
        many, two = starts[i].next().next(steps), starts[i].next(2)
        known = starts[i].next().next()
        gl.store(out + 8 * i + 0, one.index)
        gl.store(out + 8 * i + 1, one.phase)
        gl.store(out + 8 * i + 2, known.index)
        gl.store(out + 8 * i + 3, known.phase)
        gl.store(out + 8 * i + 4, many.index)
        gl.store(out + 8 * i + 5, many.phase)
        gl.store(out + 8 * i + 6, two.index)
        gl.store(out + 8 * i + 7, two.phase)


@pytest.mark.parametrize("stages", [1, 3])
def test_many_steps_at_a_time(stages):
    a, tiles = described(arrays(1)["a"], [ROWS, COLUMNS]), []
    for steps in (0, 1, 2, 3, 7):
        out = np.full((4, 2, 4), -1, np.int32)
        far[(1,)](a, out, steps, stages, target=SIM, num_warps=4)
        np.testing.assert_array_equal(out[:, 0], out[:, 1])
        tiles.append(out[1, 0, :2].tolist())
    if stages == 3:  # of a consumer, whose phase begins with 0
        assert tiles == [[1, 0], [2, 0], [0, 1], [1, 1], [2, 0]]


@pytest.mark.parametrize("parts", [3, pytest.param(1, marks=pytest.mark.campaign)])
def test_each_inner_wait_arrival_and_fence_is_needed(monkeypatch, parts):
    """Whatever is left out of a ring or a writer, or changed, is reported."""
    remove_implied_fences(monkeypatch)
    compiled = through_a_ring[(1,)](*operands(arrays(7), 7, 2), target=SIM, num_warps=4)
    case = Case(
        compiled,
        (1,),
        lambda: arrays(7),
        lambda args: operands(args, 7, 2),
        "out",
        lambda args: args["a"] + args["b"].T,
    )
    assert case.run() is None
    kinds, missed = case.judged(parts)
    assert not missed
    for op in ("mbarrier_wait", "mbarrier_arrive", "mbarrier_expect", "fence"):
        assert any(op in name and "deleted" in name for name in kinds), op
    assert case.run() is None


@gluon.jit
def use(ring, out, rounds, RELEASES: gl.constexpr):
    position = ring.consumer()
    for _ in range(rounds):
        total = gl.sum(gl.sum(ring.wait(position).load(LAYOUT), 0), 0)
        if RELEASES:
            ring.release(position)
        position = position.next()
        gl.store(out, total)


@gluon.jit
def copy(ring, rounds, NEXT: gl.constexpr):
    position = ring.producer()
    for _ in range(rounds):
        ring.fetch(position, [[0, 0]])
        if NEXT:
            position = position.next()


@gluon.jit
def in_two_roles(a, out, RELEASES: gl.constexpr, NEXT: gl.constexpr):
    ring = tma_ring(a, 2)
    gl.warp_specialize([(use, (ring, out, 3, RELEASES)), (copy, (ring, 3, NEXT))], [1], [24])


def test_a_wrong_count_is_reported_in_words_of_the_ring():
    a = described(np.ones((ROWS, COLUMNS), np.float32), [ROWS, COLUMNS])
    out = np.zeros(1, np.float32)
    in_two_roles[(1,)](a, out, True, True, target=SIM, num_warps=4)
    assert out == ROWS * COLUMNS
    with pytest.raises(DeadlockError) as error:
        in_two_roles[(1,)](a, out, False, True, target=SIM, num_warps=4)
    message = str(error.value)
    assert "of the empty slots of line" in message and "ring.release(position)" in message
    with pytest.raises(
        BarrierError, match=r"with ring.fetch\(position, ...\) and then position = position.next"
    ):
        in_two_roles[(1,)](a, out, True, False, target=SIM, num_warps=4)


# -- misuse ----------------------------------------------------------------------------------------


def wrong(line, error, **numbers):
    source = f"""
import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.language.nvidia.hopper import tma_ring, tma_writer

@gluon.jit
def kernel(a, b, out, LAYOUT: gl.constexpr):
    ring = tma_ring([a, b], 2)
    other = tma_ring(a, 3)
    writer = tma_writer(out)
    {line}
"""
    return source, error


@mistakes("""
error | text | line
ArgumentError | producer | ring.fetch(ring.consumer(), [[0, 0], [0, 0]])
ArgumentError | consumer | ring.wait(ring.producer())
ArgumentError | consumer | ring.tiles(ring.producer())
ArgumentError | 2 slots | ring.release(other.consumer())
ArgumentError | ring.consumer() | ring.wait(0)
ShapeError | needs one for each tensor | ring.fetch(ring.producer(), [[0, 0]])
ShapeError | not a sequence | ring.fetch(ring.producer(), 0)
ArgumentError | none | tma_ring([], 2)
ArgumentError/ShapeError | not a | tma_ring(ring, 2)
ArgumentError | stages | tma_ring(a, 0)
ArgumentError | consumers | tma_ring(a, 1, consumers=0)
ArgumentError | not a descriptor | tma_writer(ring)
ArgumentError | parts | tma_writer(out, 0)
ArgumentError | does not divide the parts | tma_writer(out, 3, buffers=2)
ShapeError | not that of the writer | writer.store([0, 0], gl.zeros([16, 32], gl.float32, LAYOUT))
ArgumentError | does not fit the writer's buffers | writer.store([0, 0], gl.zeros([16, 16], gl.float32, LAYOUT), a)
ArgumentError | not a | writer.store([0, 0], gl.zeros([16, 16], gl.float32, LAYOUT), 3)
ShapeError | shape of a matrix | gl.portable.swizzled_tiles([8], [4])
ArgumentError | group | gl.portable.swizzled_tiles([8, 8], [4, 4], 0)
""")
def test_misuse_is_an_error_where_it_is(tmp_path, line, error, text):
    from benchmarks.upstream import load

    source, _ = wrong(line, error)
    module = load("ring_misuse", source)
    args = operands(arrays(1), 1, 1)[:3]
    with pytest.raises(GluonError) as caught:
        module.kernel[(1,)](*args, LAYOUT.value, target=SIM, num_warps=4)
    assert isinstance(caught.value, error), caught.value
    assert text in str(caught.value)
    assert line.split("(")[0] in str(caught.value)  # the kernel's own line is shown


@gluon.jit
def move_rows(ring, out, rounds, ROWS: gl.constexpr, FORM: gl.constexpr):
    row = gl.arange(0, ROWS, gl.SliceLayout(1, LAYOUT))[:, None]
    column = gl.arange(0, 32, gl.SliceLayout(0, LAYOUT))[None, :]
    position = ring.consumer()
    for i in range(rounds):
        ring.wait(position)
        tile = ring.tiles(position).load(LAYOUT)
        if FORM == "use":
            tile = tile + 0.0
        if FORM == "fence":
            fence_async_shared()
        ring.release(position)
        position = position.next()
        gl.store(out + (i * ROWS + row) * 32 + column, tile)


@gluon.jit
def fill_rows(ring, rounds, ROWS: gl.constexpr):
    position = ring.producer()
    for i in range(rounds):
        ring.fetch(position, [[i * ROWS, 0]])
        position = position.next()


@gluon.jit
def copy_rows(a, out, rounds, ROWS: gl.constexpr, FORM: gl.constexpr):
    ring = tma_ring([a], 1)
    gl.warp_specialize(
        [(move_rows, (ring, out, rounds, ROWS, FORM)), (fill_rows, (ring, rounds, ROWS))],
        [1],
        [24],
    )


@pytest.mark.parametrize("form", ["use", "fence", "late"])
def test_a_release_does_not_wait_for_loads(form):
    """On an H200 a copy overwrote what an `ldmatrix` before the arrival had not read."""
    a = arrays(3)["a"]
    out = np.zeros_like(a)
    arguments = described(a, [ROWS, COLUMNS]), out, 3, ROWS, form
    if form == "late":
        with pytest.raises(RaceError, match=r"the read by `.*load`.*fence_async_shared"):
            copy_rows[(1,)](*arguments, target=SIM, num_warps=4)
    else:
        copy_rows[(1,)](*arguments, target=SIM, num_warps=4)
        np.testing.assert_array_equal(out, a)
