"""Accumulators in tensor memory as a ring, stored by a writer: results, requirements, misuse."""

from __future__ import annotations

import numpy as np
import pytest

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.errors import GluonError
from gluon_core.language.nvidia.blackwell import accumulator_ring, tcgen05_commit, tcgen05_mma
from gluon_core.language.nvidia.hopper import tma_ring, tma_writer
from gluon_core.nvidia.blackwell import TensorDescriptor
from gluon_core.registry.load import registry
from gluon_core.testing import TRITON_VERSION
from gluon_sim.errors import DeadlockError
from tests.backends.sim.sanitizer.test_mutations import Case
from tests.tables import mistakes

pytestmark = [pytest.mark.once, pytest.mark.sampled(4)]

SIM = registry().target("sim:sm_100")
COLUMNS, DEPTH = 32, 16


@gluon.jit
def copies(ring, work):
    position = ring.producer()
    turn = work.first(0)
    while work.has(turn):
        ring.fetch(position, [[work.at(turn) * 128, 0], [0, 0]])
        position = position.next()
        turn = work.next(turn)


@gluon.jit
def products(ring, sums, work):
    position = ring.consumer()
    to = sums.producer()
    turn = work.first(1)
    while work.has(turn):
        acc = sums.take(to)
        a_tile, b_tile = ring.wait(position)
        tcgen05_mma(a_tile, b_tile, acc, use_acc=False)
        tcgen05_commit(ring.empty(position))
        position = position.next()
        sums.done(to)
        to = to.next()
        turn = work.next(turn)


@gluon.jit
def stores(sums, writer, work, WHOLE: gl.constexpr):
    position = sums.consumer()
    turn = work.first(2)
    while work.has(turn):
        row = work.at(turn) * 128
        if WHOLE:
            writer.store([row, 0], sums.wait(position))
            sums.release(position)
        else:
            sums.store(position, writer, [row, 0])
        position = position.next()
        turn = work.next(turn)
    writer.close()


@gluon.jit
def through_accumulators(a, b, c, bias, rounds, SLOTS: gl.constexpr, WHOLE: gl.constexpr):
    work = gl.portable.tile_scheduler(rounds, partitions=3)
    ring = tma_ring([a, b], 2)
    sums = accumulator_ring([128, 32], SLOTS)
    end = gl.portable.epilogue([rounds * 128, 32], bias=bias)
    writer = tma_writer(c, parts=2, epilogue=end)
    gl.warp_specialize(
        [
            (stores, (sums, writer, work, WHOLE)),
            (products, (ring, sums, work)),
            (copies, (ring, work)),
        ],
        [1, 1],
        [48, 48],
    )


def described(array, block, dtype):
    layout = gl.NVMMASharedLayout.get_default_for(block, dtype)
    return TensorDescriptor.from_tensor(array, block, layout)


def arrays(rounds):
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(128 * rounds, DEPTH)), rng.normal(size=(DEPTH, COLUMNS))
    return {
        "a": a.astype(np.float16),
        "b": b.astype(np.float16),
        "c": np.full((128 * rounds, COLUMNS), np.nan, np.float32),
        "bias": rng.normal(size=COLUMNS).astype(np.float32),
    }


def operands(args, rounds, slots=2, whole=False):
    a = described(args["a"], [128, DEPTH], gl.float16)
    b = described(args["b"], [DEPTH, COLUMNS], gl.float16)
    c = described(args["c"], [128, COLUMNS // 2], gl.float32)
    return [a, b, c, args["bias"], rounds, slots, whole]


def wanted(args):
    return args["a"].astype(np.float64) @ args["b"].astype(np.float64) + args["bias"]


@pytest.mark.parametrize("rounds, grid, slots, whole", [(1, 1, 1, False), (5, 2, 2, True)])
def test_tiles_go_through(rounds, grid, slots, whole):
    args = arrays(rounds)
    arguments = operands(args, rounds, slots, whole)
    through_accumulators[(grid,)](*arguments, target=SIM, num_warps=4)
    np.testing.assert_allclose(args["c"], wanted(args), rtol=1e-3, atol=1e-3)


@pytest.fixture
def every_fence(monkeypatch):
    """The compiler adds no fences between the proxies, and all that the letter asks for are wanted."""
    from gluon_nvidia.reference import proxy

    monkeypatch.setattr(proxy, "_fence", lambda *operands: None)
    monkeypatch.setenv("GLUON_SIM_PROXY", "strict")


@pytest.mark.parametrize("parts", [8, pytest.param(1, marks=pytest.mark.campaign)])
def test_each_inner_wait_arrival_and_fence_is_needed(every_fence, parts):
    """Anything that is left out of ring, accumulators, writer or tile scheduler, or changed, is reported."""
    rounds = 24
    grid = (rounds if TRITON_VERSION >= (3, 8) else 4,)  # every slot is used again, several times
    compiled = through_accumulators[grid](
        *operands(arrays(rounds), rounds), target=SIM, num_warps=4
    )
    case = Case(
        compiled,
        grid,
        lambda: arrays(rounds),
        lambda args: operands(args, rounds),
        "c",
        wanted,
        1e-3,
    )
    assert case.run() is None
    kinds, missed = case.judged(parts)
    assert not missed
    for op in ("mbarrier_wait", "mbarrier_arrive", "mbarrier_expect", "fence", "tcgen05_commit"):
        assert any(op in name and "deleted" in name for name in kinds), op
    assert case.run() is None


# -- misuse --------------------------------------------------------------------------------------


@gluon.jit
def never_read(sums, rounds):
    position = sums.producer()
    for _ in range(rounds):
        sums.take(position)
        sums.done(position)
        position = position.next()


@gluon.jit
def idle(out):
    gl.store(out, 1)


@gluon.jit
def unread(out, rounds):
    sums = accumulator_ring([128, 32], 2)
    gl.warp_specialize([(idle, (out,)), (never_read, (sums, rounds))], [1], [48])


def test_a_consumer_that_never_reads_is_reported():
    unread[(1,)](np.zeros(1, np.int32), 2, target=SIM, num_warps=4)
    with pytest.raises(DeadlockError, match="of the empty accumulators of line .*\n?.*Read each"):
        unread[(1,)](np.zeros(1, np.int32), 3, target=SIM, num_warps=4)


@mistakes("""
error | text | line
ArgumentError | producer | sums.take(sums.consumer())
ArgumentError | producer | sums.done(sums.consumer())
ArgumentError | consumer | sums.wait(sums.producer())
ArgumentError | consumer | sums.release(0)
ArgumentError | not a writer | sums.store(sums.consumer(), sums, [0, 0])
ShapeError | 1 of [128, 16] side by side | sums.store(sums.consumer(), writer, [0, 0])
ArgumentError | slots | accumulator_ring([128, 32], 0)
ArgumentError | not an epilogue | tma_writer(c, epilogue=c)
""")
def test_misuse_is_an_error_where_it_is(line, error, text):
    from benchmarks.upstream import load

    source = f"""
import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.language.nvidia.blackwell import accumulator_ring
from gluon_core.language.nvidia.hopper import tma_writer

@gluon.jit
def kernel(c):
    sums = accumulator_ring([128, 32], 2)
    writer = tma_writer(c)
    {line}
"""
    with pytest.raises(GluonError) as caught:
        load("sums_misuse", source).kernel[(1,)](operands(arrays(1), 1)[2], target=SIM, num_warps=4)
    assert isinstance(caught.value, error), caught.value
    assert text in str(caught.value) and line.split("(")[0] in str(caught.value)


def test_it_compiles():
    args = operands(arrays(1), 1)
    compiled = through_accumulators.warmup(*args, grid=(1,), target="sm_100", num_warps=4)
    assert compiled.report().spills == 0
    assert ("clusterlaunchcontrol" in compiled.asm["ptx"]) == (TRITON_VERSION >= (3, 8))
