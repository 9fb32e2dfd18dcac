"""Timelines recorded by kernels, executed on the emulator."""

import importlib.util
import re

import numpy as np
import pytest

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.errors import ArgumentError, GluonError, KernelWarning, OptionError
from gluon_core.language.nvidia.hopper import mbarrier
from gluon_core.timeline import record

pytestmark = [pytest.mark.once, pytest.mark.sampled(2)]

LAYOUT = gl.BlockedLayout([1], [32], [4], [0])
WAVES = gl.BlockedLayout([1], [64], [4], [0])


@gluon.jit
def rounds(x, n, BLOCK: gl.constexpr, layout: gl.constexpr):
    i = gl.program_id(0) * BLOCK + gl.arange(0, BLOCK, layout=layout)
    with gl.scope("round $all"):
        for _ in range(n):
            with gl.scope("load"):
                value = gl.load(x + i)
            gl.scope_begin("store")
            gl.store(x + i, value + 1)
            gl.scope_end("store")
            gl.barrier()


ON_AMD = pytest.mark.parametrize("emulated", ["sm_90", "gfx942"], indirect=True)


@pytest.fixture
def emulated(monkeypatch, request):
    target = getattr(request, "param", "sm_90")
    monkeypatch.setenv("GLUON_TARGET", f"emu:{target}")
    return WAVES if target == "gfx942" else LAYOUT


def run(n, programs=2, layout=LAYOUT):
    block = layout.threads_per_warp[0] * layout.warps_per_cta[0]
    x = np.zeros(block * programs, np.float32)
    rounds[(programs,)](x, n, block, layout)
    assert (x == n).all()


@pytest.mark.parametrize("emulated", ["sm_90", "gfx942", "gfx1250"], indirect=True)
def test_each_warp_passes_each_scope(emulated):
    run(3, layout=emulated)  # a compiled form without marks is known already
    with record() as timeline:
        run(3, layout=emulated)
        run(2, layout=emulated)
    run(3, layout=emulated)
    assert len(timeline.launches) == 2
    launch = timeline.launches[0]
    assert (launch.kernel, launch.warps, launch.dropped, launch.unpaired) == ("rounds", 8, 0, 0)
    passages = {(name, line): count for name, line, count, _, _ in launch.shares()}
    start = rounds.fn.__code__.co_firstlineno
    assert passages == {
        ("round $all", start + 3): 8,
        ("load", start + 5): 24,
        ("store", start + 7): 24,
    }
    for span in launch.spans:
        assert 0 <= span.begin <= span.end <= launch.nanoseconds + 1
    inner = [s for s in launch.spans if s.block == 1 and s.warp == 2 and s.depth == 1]
    (outer,) = [s for s in launch.spans if s.block == 1 and s.warp == 2 and s.depth == 0]
    assert [s.scope for s in inner] == ["load", "store"] * 3
    assert all(outer.begin <= s.begin and s.end <= outer.end for s in inner)
    assert all(a.end <= b.begin for a, b in zip(inner, inner[1:]))


@ON_AMD
def test_automatic_scopes_name_waits(emulated):
    with record(auto=True) as timeline:
        run(2, 1, emulated)
    passages = {name: count for name, _, count, _, _ in timeline.launches[0].shares()}
    assert passages["barrier"] == 8 and passages["load"] == 8
    assert "barrier" in timeline.table()
    trace = timeline.perfetto()["traceEvents"]
    assert len(trace) == len(timeline.launches[0].spans)


@ON_AMD
def test_the_oldest_spans_are_dropped_and_counted(emulated):
    with record(events=4) as timeline:
        run(3, 1, emulated)
    (launch,) = timeline.launches
    assert launch.dropped == 4 * (1 + 3 * 2 - 4) and launch.unpaired == 0
    # The last of each warp: the store of the second round, both scopes of the third one, and the scope around all.
    kept = sorted(span.scope for span in launch.spans if span.warp == 1)
    assert kept == ["load", "round $all", "store", "store"] and len(launch.spans) == 16


@gluon.jit
def straight(x, n):
    for _ in range(n):
        for _ in gl.static_range(5):
            with gl.scope("a"):
                pass
            with gl.scope("b"):
                gl.store(x, 1.0)


@pytest.mark.parametrize("events", [2, 4, 8, 16, 64])
def test_runs_of_spans_pass_the_end_of_a_ring(emulated, events):
    x = np.zeros(1, np.float32)
    with record(events=events) as timeline:
        straight[(1,)](x, 3)
    (launch,) = timeline.launches
    for warp in range(4):
        spans = [span for span in launch.spans if span.warp == warp]
        kept = min(30, events)
        assert [span.scope for span in spans] == (["a", "b"] * 15)[-kept:]
        for first, second in zip(spans, spans[1:]):
            assert first.end <= second.begin
            shared = second.scope == "b"  # which begins where "a" ends: one read of the clock
            assert not shared or first.end == second.begin
    assert launch.dropped == 4 * (30 - kept)


@gluon.jit
def again(x, depth: gl.constexpr):
    with gl.scope("again"):
        gl.store(x, 1.0)
        if depth > 0:
            again(x, depth - 1)


@ON_AMD
def test_a_scope_within_itself_gives_no_wrong_number(emulated):
    with record() as timeline:
        again[(1,)](np.zeros(1, np.float32), 2)
    (launch,) = timeline.launches
    assert len(launch.spans) == 4 and launch.unpaired == 8
    assert "8 spans of warps" in timeline.table()


OPEN = 40
FEW_REGISTERS = f"""
import gluon_core as gluon
from gluon_core import language as gl

@gluon.jit
def copies(x, i):
    {"; ".join(f'gl.scope_begin("s{n}")' for n in range(OPEN))}
    gl.store(x + i, 1.0)
    {"; ".join(f'gl.scope_end("s{n}")' for n in reversed(range(OPEN)))}

@gluon.jit
def worker(x, layout: gl.constexpr):
    copies(x, gl.arange(0, 32, layout=layout))

@gluon.jit
def main(x, layout: gl.constexpr):
    gl.store(x + 32, 1.0)

@gluon.jit
def two_roles(x, layout: gl.constexpr):
    gl.warp_specialize([(main, (x, layout)), (worker, (x, layout))], [1], [24])
"""


def test_scopes_in_few_registers_are_reported(tmp_path):
    file = tmp_path / "few_registers.py"
    file.write_text(FEW_REGISTERS)
    spec = importlib.util.spec_from_file_location("few_registers", file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    with pytest.warns(KernelWarning, match=r"a timeline spills \d+ bytes of registers, 0 are"):
        gluon.compile(
            module.two_roles,
            "sm_90",
            signature={"x": "*fp32"},
            constexprs={"layout": gl.BlockedLayout([1], [32], [1], [0])},
            options={"instrumentation_mode": "timeline:64"},
        )


MANY = 100
FEW_REGISTERS_OF_WAVES = f"""
import gluon_core as gluon
from gluon_core import language as gl

@gluon.jit
def waves(x, layout: gl.constexpr):
    i = gl.arange(0, 256, layout=layout)
    {"; ".join(f'gl.scope_begin("s{n}")' for n in range(MANY))}
    gl.store(x + i, 1.0)
    {"; ".join(f'gl.scope_end("s{n}")' for n in reversed(range(MANY)))}
"""


@pytest.mark.filterwarnings("error")
def test_scopes_in_few_registers_of_waves_are_reported(tmp_path):
    file = tmp_path / "few_registers_of_waves.py"
    file.write_text(FEW_REGISTERS_OF_WAVES)
    spec = importlib.util.spec_from_file_location("few_registers_of_waves", file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    known = {"signature": {"x": "*fp32"}, "constexprs": {"layout": WAVES}}
    few = {"waves_per_eu": 8}
    gluon.compile(module.waves, "gfx942", **known, options=few)
    with pytest.warns(KernelWarning, match=r"a timeline spills \d+ registers, 0 are"):
        gluon.compile(
            module.waves,
            "gfx942",
            **known,
            options={**few, "instrumentation_mode": "timeline:64"},
        )


@ON_AMD
def test_a_prepared_call_keeps_its_timeline(emulated):
    block = emulated.threads_per_warp[0] * 4
    x = np.zeros(block, np.float32)
    plain = rounds.prepare(x, 2, block, emulated, grid=(1,))
    handle = rounds.prepare(x, 2, block, emulated, grid=(1,), timeline="auto")
    plain(x, 2, block, emulated)
    handle(x, 2, block, emulated)
    (launch,) = handle.timeline.launches
    passages = {name: count for name, _, count, _, _ in launch.shares()}
    assert passages == {"round $all": 4, "load": 8, "store": 8, "barrier": 8}
    handle(x, 2, block, emulated)
    assert len(handle.timeline.launches) == 2 and (x == 6).all()
    with record() as timeline:
        handle(x, 2, block, emulated)
        within = rounds.prepare(x, 2, block, emulated, grid=(1,))
        within(x, 2, block, emulated)
    within(x, 2, block, emulated)
    assert not within.timeline.launches  # nobody asked it to keep them
    assert [len({span.scope for span in launch.spans}) for launch in timeline.launches] == [4, 3]
    assert len(handle.timeline.launches) == 2


@gluon.jit(layouts="auto")
def doubled(x, BLOCK: gl.constexpr):
    i = gl.arange(0, BLOCK)
    gl.store(x + i, 2 * gl.load(x + i))


@gluon.jit(layouts="auto")
def mean(x, out, BLOCK: gl.constexpr):
    total = gl.sum(gl.load(x + gl.arange(0, BLOCK)), 0)
    gl.store(out, total / BLOCK)


@ON_AMD
def test_automatic_scopes_of_kernels_without_layouts(emulated):
    x, out = np.ones(256, np.float32), np.zeros(1, np.float32)
    with record(auto=True) as timeline:
        doubled[(1,)](x, 256)
        mean[(1,)](x, out, 256)
    whole, reduced = timeline.launches
    start = doubled.fn.__code__.co_firstlineno
    assert {(s.scope, s.line in (start, start + 1, start + 2)) for s in whole.spans} == {
        ("kernel", True)
    }
    assert len(whole.spans) == 4 and not whole.unpaired
    line = mean.fn.__code__.co_firstlineno + 2
    assert {(s.scope, s.line, s.file) for s in reduced.spans} == {("barrier", line, __file__)}
    assert out[0] == 2


def test_prepare_refuses_another_timeline(emulated):
    with pytest.raises(ArgumentError, match="expected True or 'auto', got 'all'"):
        rounds.prepare(np.zeros(128, np.float32), 2, 128, LAYOUT, grid=(1,), timeline="all")


def test_launches_beyond_the_limit_are_counted(emulated):
    with record(launches=1) as timeline:
        run(1)
        run(1)
    assert len(timeline.launches) == 1 and timeline.skipped == 1


def test_a_kernel_that_is_not_recorded_has_no_instruction_of_scopes():
    signature = {"x": "*fp32", "n": "i32"}
    constants = {"BLOCK": 128, "layout": LAYOUT}
    plain = gluon.compile(rounds, target="sm_90", signature=signature, constexprs=constants)
    assert "clock64" not in plain.asm["ptx"] and "gluon.scope" not in plain.asm["ptx"]
    options = {"instrumentation_mode": "timeline:64"}
    timed = gluon.compile(
        rounds, "sm_90", signature=signature, constexprs=constants, options=options
    )
    assert timed.metadata.timeline["events"] == 64
    # Headers of four warps, 64 rows of four slots, and two more: the spans of a round may pass the ring's end.
    assert timed.metadata.timeline["spare"] <= 2
    rows = 64 + timed.metadata.timeline["spare"]
    assert timed.metadata.profile_scratch_size == -(-(4 * 64 + rows * 4 * 8) // 128) * 128
    assert timed.metadata.profile_scratch_align == 128


@pytest.mark.parametrize("mode", ["timeline:3", "timeline:auto:0", "timelines"])
def test_wrong_modes(mode):
    with pytest.raises(OptionError, match="unknown recording"):
        gluon.compile(
            rounds,
            "sm_90",
            signature={"x": "*fp32", "n": "i32"},
            constexprs={"BLOCK": 128, "layout": LAYOUT},
            options={"instrumentation_mode": mode},
        )


@gluon.jit
def without_end(x):
    gl.scope_begin("a")


@gluon.jit
def without_begin(x):
    gl.scope_end("a")


@gluon.jit
def crossed(x):
    gl.scope_begin("a")
    gl.scope_begin("b")
    gl.scope_end("a")


@gluon.jit
def numbered(x):
    gl.scope_begin(3)


@gluon.jit
def ended_in_a_branch(x, n):
    gl.scope_begin("a")
    if n > 3:
        gl.scope_end("a")


@gluon.jit
def begun_in_one_branch(x, n):
    if n > 3:
        gl.scope_begin("a")
    else:
        gl.store(x, 1.0)
    gl.scope_end("a")


@gluon.jit
def begun_in_a_loop(x, n):
    for _ in range(n):
        gl.scope_begin("a")
    gl.scope_end("a")


@gluon.jit
def ended_in_a_loop(x, n):
    gl.scope_begin("a")
    while n > 0:
        n -= 1
        gl.scope_end("a")


@gluon.jit
def left_early(x, n):
    gl.scope_begin("a")
    if n > 3:
        return
    gl.scope_end("a")


@gluon.jit
def left_within(x, n):
    with gl.scope("a"):
        if n > 3:
            return
        gl.store(x, 1.0)


@pytest.mark.parametrize(
    "kernel, words",
    [
        (ended_in_a_branch, "begun in line .* ends inside of a branch or a loop"),
        (begun_in_one_branch, "begun in line .* does not end in a branch or a loop"),
        (begun_in_a_loop, "does not end in a branch or a loop"),
        (ended_in_a_loop, "ends inside of a branch or a loop"),
        (left_early, "begun in line .* has no end"),
        (left_within, "`return` within a `with` block is not supported"),
    ],
)
@pytest.mark.parametrize("target", ["sm_90", "gfx942", "sim:sm_90", "emu:gfx942"])
def test_scopes_that_some_paths_do_not_end(kernel, words, target):
    with pytest.raises(GluonError, match=words):
        gluon.compile(kernel, target, signature={"x": "*fp32", "n": "i32"})


@gluon.jit
def balanced_on_each_path(x, n, UNROLLED: gl.constexpr):
    if UNROLLED:
        gl.scope_begin("a")
    for _ in range(n):
        if n > 3:
            gl.scope_begin("b")
            gl.store(x, 1.0)
            gl.scope_end("b")
        else:
            with gl.scope("c"):
                gl.store(x, 2.0)
    for i in gl.static_range(2):
        if i == 1 and UNROLLED:
            gl.scope_end("a")
    if n > 7:
        return
    with gl.scope("d"):
        gl.store(x, 3.0)


@pytest.mark.parametrize("target", ["sm_90", "gfx942", "sim:sm_90"])
def test_scopes_that_each_path_ends(target):
    for unrolled in (False, True):
        signature = {"x": "*fp32", "n": "i32"}
        gluon.compile(
            balanced_on_each_path, target, signature=signature, constexprs={"UNROLLED": unrolled}
        )


@pytest.mark.parametrize(
    "kernel, words",
    [
        (without_end, "begun in line .* has no end"),
        (without_begin, "not the innermost open one"),
        (crossed, "expected 'b', got 'a'"),
        (numbered, "string of one line"),
    ],
)
@pytest.mark.parametrize("target", ["sm_90", "sim:gfx942"])
def test_unbalanced_scopes(kernel, words, target):
    with pytest.raises(ArgumentError, match=words):
        gluon.compile(kernel, target, signature={"x": "*fp32"})


@pytest.mark.parametrize("wrong", [{"events": 3}, {"events": "8"}, {"launches": 0}])
def test_wrong_arguments(wrong):
    with pytest.raises(ArgumentError, match=next(iter(wrong))), record(**wrong):
        pass


def test_outside_kernels():
    with pytest.raises(GluonError, match="outside a kernel"):
        gl.scope("a")


@gluon.jit
def alternating(x, n, BLOCK: gl.constexpr, layout: gl.constexpr):
    i = gl.arange(0, BLOCK, layout=layout)
    for _ in range(n):
        gl.scope_begin("copy")
        value = gl.load(x + i)
        gl.scope_end("copy")
        gl.scope_begin("copy")
        gl.store(x + i, value + 1)
        gl.scope_end("copy")


@ON_AMD
def test_a_name_of_two_lines_pairs_each_end_with_its_own_begin(emulated):
    x = np.zeros(256, np.float32)
    with record() as timeline:
        alternating[(1,)](x, 3, 256, emulated)
    (launch,) = timeline.launches
    start = alternating.fn.__code__.co_firstlineno
    passages = {line: count for _, line, count, _, _ in launch.shares()}
    assert passages == {start + 4: 12, start + 7: 12} and not launch.unpaired
    assert {span.file for span in launch.spans} == {__file__}


@gluon.jit
def behind_braces(x, layout: gl.constexpr):
    i = gl.arange(0, 128, layout=layout)
    ready = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    mbarrier.init(ready, count=1)
    mbarrier.arrive(ready, count=1)
    mbarrier.wait(ready, 0)  # a loop in braces
    with gl.scope("behind"):
        gl.store(x + i, i.to(gl.float32))


def test_marks_behind_braces_of_inline_assembly(emulated):
    with record() as timeline:
        behind_braces[(1,)](np.zeros(128, np.float32), LAYOUT)
    assert [span.scope for span in timeline.launches[0].spans] == ["behind"] * 4


@pytest.mark.parametrize("arch", ["gfx90a", "gfx950", "gfx1100", "gfx1201"])
def test_waves_keep_their_state_in_registers(arch):
    lanes = 64 if arch.startswith("gfx9") else 32
    layout = gl.BlockedLayout([1], [lanes], [4], [0])
    code = gluon.compile(
        rounds,
        arch,
        signature={"x": "*fp32", "n": "i32"},
        constexprs={"BLOCK": 4 * lanes, "layout": layout},
        options={"instrumentation_mode": "timeline:64"},
    ).asm["amdgcn"]
    assert "gluon.scope" not in code
    assert re.search(r"s_memtime|SHADER_CYCLES", code)
    assert not re.search(r"\bds_(?:write|store)|\bscratch_|\bbuffer_store", code)


@gluon.jit
def addressed_behind_a_wait(x, n, layout: gl.constexpr):
    i = gl.arange(0, 128, layout=layout)
    ready = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    mbarrier.init(ready, count=1)
    mbarrier.arrive(ready, count=1)
    with gl.scope("wait"):
        mbarrier.wait(ready, 0)
    gl.store(x + (n * 12 + 5) * 128 + i, 1.0)


def test_addresses_are_computed_before_the_end_of_a_wait_is_read():
    code = gluon.compile(
        addressed_behind_a_wait,
        "sm_90",
        signature={"x": "*fp32", "n": "i32"},
        constexprs={"layout": LAYOUT},
        options={"instrumentation_mode": "timeline:64"},
    ).asm["ptx"]
    behind = code[code.index("gluon.scope end") :].split("\n")[1:]
    read = next(number for number, line in enumerate(behind) if "%clock;" in line)
    passed = [
        line.split("//")[0].strip()
        for line in behind[:read]
        if line.startswith("\t") and not re.match(r"\t(?:\.|//)", line)
    ]
    assert 1 <= len(passed) <= 8, passed
    assert all(re.match(r"(?:add|shl|mad\.lo|mul\.wide|mul\.lo|cvt|mov|or|and)\.", one) for one in passed)  # fmt: skip
