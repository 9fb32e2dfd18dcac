"""Predicted times: orders that the model must get right, whatever its numbers are."""

import numpy as np
import pytest

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.errors import CapabilityError, GluonError
from gluon_core.language.nvidia.hopper import (
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from gluon_core.nvidia.hopper import TensorDescriptor
from gluon_core.timeline import predict

pytestmark = pytest.mark.once


def layout(warps=4, vector=4):
    return gl.BlockedLayout([vector], [32], [warps], [0])


@gluon.jit
def copy(src, dst, BLOCK: gl.constexpr, layout: gl.constexpr):
    i = gl.program_id(0) * BLOCK + gl.arange(0, BLOCK, layout=layout)
    gl.store(dst + i, gl.load(src + i))


@gluon.jit
def work(x, n, BLOCK: gl.constexpr, layout: gl.constexpr, KIND: gl.constexpr):
    i = gl.program_id(0) * BLOCK + gl.arange(0, BLOCK, layout=layout)
    value = gl.load(x + i)
    for _ in range(n):
        with gl.scope("round"):
            if KIND == "exp2":
                value = gl.exp2(value)
            else:
                value = value * 1.5 + 2.0
    gl.store(x + i, value)


def time_of(launch, target="sm_90"):
    with predict(target) as predictions:
        launch()
    (launched,) = predictions.launches
    return launched


def copied(n, vector=4):
    x, y = np.zeros(n, np.float32), np.zeros(n, np.float32)
    block = 1024
    return time_of(lambda: copy[(n // block,)](x, y, block, layout(vector=vector)))


def test_a_large_copy_takes_the_time_of_its_bytes():
    times = {n: copied(n).nanoseconds for n in (1 << 18, 1 << 24, 1 << 26)}
    assert 800 < times[1 << 18] < 3000
    # Beyond the cache: 8 bytes an element at a few bytes per picosecond.
    rate = 8 * (1 << 26) / times[1 << 26]
    assert 3000 < rate < 4800
    assert 3.6 < times[1 << 26] / times[1 << 24] < 4.2
    limits = dict(copied(1 << 26).limits)
    assert max(limits, key=limits.get) == "memory"


def test_results_are_not_computed_and_memory_stays():
    x, y = np.ones(1024, np.float32), np.zeros(1024, np.float32)
    time_of(lambda: copy[(1,)](x, y, 1024, layout()))
    assert not y.any() and (x == 1).all()


def test_special_functions_take_longer_than_sums_of_products():
    def run(kind, n):
        x = np.zeros(1024 * 132, np.float32)
        return time_of(lambda: work[(132,)](x, n, 1024, layout(), kind)).nanoseconds

    few, many = run("exp2", 8), run("exp2", 264)
    assert 2.5 < (many - few) / (run("fma", 264) - run("fma", 8)) < 9


@gluon.jit
def converted(out, n, BLOCK: gl.constexpr, layout: gl.constexpr, ASSEMBLY: gl.constexpr):
    i = gl.arange(0, BLOCK, layout=layout)
    x = i.to(gl.float32)
    for _ in range(n):
        if ASSEMBLY:
            half = gl.inline_asm_elementwise(
                "cvt.rn.bf16x2.f32 $0, $2, $1;", "=r,r,r", [x], gl.bfloat16, True, 2
            )
        else:
            half = x.to(gl.bfloat16)
        x = half.to(gl.float32) + 1
    gl.store(out + i, x)


def test_assembly_takes_the_time_of_its_instructions():
    def run(assembly):
        out = np.zeros(1024, np.float32)
        return time_of(
            lambda: converted[(132,)](out, 60, 1024, layout(vector=2), assembly)
        ).nanoseconds

    assert run(True) == pytest.approx(run(False), rel=0.1)


def test_scopes_and_lines_are_lanes():
    x = np.zeros(1024, np.float32)
    launched = time_of(lambda: work[(1,)](x, 3, 1024, layout(), "exp2"))
    (task,) = [lane for lane in launched.lanes if lane.warps == (0, 4)]
    rounds = [span for span in task.spans if span.kind == "scope"]
    start = work.fn.__code__.co_firstlineno
    assert [(span.name, span.line) for span in rounds] == [("round", start + 5)] * 3
    assert all(a.end <= b.begin for a, b in zip(rounds, rounds[1:]))
    (wait,) = [span for span in task.spans if span.kind == "wait"]
    loads = launched.lanes[wait.cause[0]]
    assert loads.name == "loads" and abs(loads.spans[0].end - wait.end) < 1


@gluon.jit
def pipeline(descriptor, out, n, DEEP: gl.constexpr, PRODUCTS: gl.constexpr):
    """Copy tiles DEEP ahead, and multiply each PRODUCTS times."""
    acc_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 64, 16])
    tiles = gl.allocate_shared_memory(gl.bfloat16, [DEEP, 64, 64], descriptor.layout)
    ready = gl.allocate_shared_memory(gl.int64, [DEEP, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(DEEP):
        mbarrier.init(ready.index(i), count=1)
    for i in gl.static_range(DEEP):
        mbarrier.expect(ready.index(i), 64 * 64 * 2)
        tma.async_copy_global_to_shared(descriptor, [i * 64, 0], ready.index(i), tiles.index(i))
    acc = gl.zeros([64, 64], gl.float32, acc_layout)
    for i in range(n):
        slot = i % DEEP
        mbarrier.wait(ready.index(slot), (i // DEEP) & 1)
        tile = tiles.index(slot)
        for _ in gl.static_range(PRODUCTS):
            acc = warpgroup_mma(tile, tile, acc, is_async=True)
        acc = warpgroup_mma_wait(0, deps=[acc])
        mbarrier.expect(ready.index(slot), 64 * 64 * 2)
        tma.async_copy_global_to_shared(
            descriptor, [(i + DEEP) * 64, 0], ready.index(slot), tiles.index(slot)
        )
    for i in gl.static_range(DEEP):
        mbarrier.wait(ready.index((n + i) % DEEP), ((n + i) // DEEP) & 1)
    rows = gl.arange(0, 64, layout=gl.SliceLayout(1, acc_layout))
    columns = gl.arange(0, 64, layout=gl.SliceLayout(0, acc_layout))
    gl.store(out + rows[:, None] * 64 + columns[None, :], acc)


def pipelined(deep, products, n=24):
    import ml_dtypes

    shared = gl.NVMMASharedLayout.get_default_for([64, 64], gl.bfloat16)
    source = np.zeros(((n + deep) * 64, 64), ml_dtypes.bfloat16)
    descriptor = TensorDescriptor.from_tensor(source, [64, 64], shared)
    out = np.zeros((64, 64), np.float32)
    return time_of(lambda: pipeline[(1,)](descriptor, out, n, deep, products))


def test_a_deeper_pipeline_hides_copies():
    shallow, deep = pipelined(1, 1), pipelined(4, 1)
    assert shallow.length > 1.7 * deep.length
    assert dict(shallow.limits)["matrix unit"] < dict(deep.limits)["matrix unit"]
    path = {launched: set() for launched in ("shallow", "deep")}
    for name, launched in (("shallow", shallow), ("deep", pipelined(4, 24))):
        times = {}
        for lane, begin, end, kind in launched.critical:
            times[launched.lanes[lane].name] = times.get(launched.lanes[lane].name, 0) + end - begin
        path[name] = max(times, key=times.get)
    # One tile at a time: the copies decide. Many products for each: the matrix unit does.
    assert path == {"shallow": "copies in", "deep": "matrix unit"}


def test_waits_name_the_copy_they_waited_for():
    launched = pipelined(1, 1)
    names = [lane.name for lane in launched.lanes]
    (task,) = [lane for lane in launched.lanes if lane.warps]
    causes = [
        names[s.cause[0]] for s in task.spans if s.kind == "wait" and s.name == "mbarrier.wait"
    ]
    assert causes and set(causes) == {"copies in"}
    assert all(s.cause[1] <= s.end for s in task.spans if s.cause is not None)


@gluon.jit
def uneven(x, BLOCK: gl.constexpr, layout: gl.constexpr):
    i = gl.program_id(0) * BLOCK + gl.arange(0, BLOCK, layout=layout)
    value = gl.load(x + i)
    for _ in range(gl.program_id(0)):
        value = gl.exp2(value)
    gl.store(x + i, value)


def test_programs_of_different_length_are_sampled():
    x = np.zeros(512 * 1024, np.float32)
    whole = time_of(lambda: uneven[(512,)](x, 1024, layout()))
    half = time_of(lambda: uneven[(256,)](x, 1024, layout()))
    # Four times the work, on units that are all busy for about the time of the longest programs.
    assert 1.6 < whole.span / half.span < 4.5


@gluon.jit
def lengths(long, n):
    """Return the rounds of a program, long in one program alone."""
    rounds = n
    if gl.program_id(0) == long:
        rounds = 64 * n
    return rounds


@gluon.jit
def one_long(x, long, n, BLOCK: gl.constexpr, layout: gl.constexpr):
    i = gl.program_id(0) * BLOCK + gl.arange(0, BLOCK, layout=layout)
    value = gl.load(x + i)
    for outer in range(2):
        for _ in range(lengths(long, n) * outer):
            value = gl.exp2(value)
    gl.store(x + i, value)


@pytest.mark.parametrize("programs", [132, 2000])
def test_the_longest_program_counts_wherever_it_is(programs):
    x = np.zeros(programs * 128, np.float32)

    def run(long, n=8):
        launch = one_long[(programs,)]
        return time_of(lambda: launch(x, long, n, 128, layout(vector=1))).span

    spans = [run(long) for long in (0, 77, programs - 1)]
    assert min(spans) > 3 * run(-1) and max(spans) < 1.5 * min(spans)
    assert run(77, 16) > 1.7 * spans[1]


@gluon.jit
def chosen(table, x, BLOCK: gl.constexpr, layout: gl.constexpr):
    """Whole numbers in memory decide the number of rounds."""
    i = gl.arange(0, BLOCK, layout=layout)
    value = gl.load(x + i)
    for _ in range(gl.load(table)):
        value = gl.exp2(value)
    gl.store(x + i, value)


def test_whole_numbers_in_memory_steer_programs():
    def run(rounds):
        table, x = np.array([rounds], np.int32), np.zeros(1024, np.float32)
        return time_of(lambda: chosen[(1,)](table, x, 1024, layout())).span

    assert run(1000) > 5 * run(10)


def test_an_architecture_without_a_model():
    with (
        pytest.raises(CapabilityError, match="no model of time is known.*gfx1201"),
        predict("gfx1201"),
    ):
        pass
    with pytest.raises(GluonError), predict("nonsense"):
        pass
