"""Reports in the kernel's own variables and calls, with the missing call spelled out."""

import json

import numpy as np
import pytest

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.language.amd.cdna4 import async_copy as lds
from gluon_core.language.nvidia import ampere
from gluon_core.language.nvidia.ampere import async_copy
from gluon_core.language.nvidia.ampere.async_copy import async_copy_global_to_shared as fetch
from gluon_core.language.nvidia.ampere.async_copy import wait_group
from gluon_core.simulation.recorder import CallSite
from gluon_sim.errors import DeadlockError, OutOfBoundsError, RaceError
from gluon_sim.executor.models import models_for
from gluon_sim.tracing.calls import spelled
from tests import warm

REGISTERS = gl.constexpr(gl.BlockedLayout([1], [32], [4], [0]))
SHARED = gl.constexpr(gl.SwizzledSharedLayout(1, 1, 1, [0]))
N = gl.constexpr(128)


@gluon.jit
def by_module(src, dst):
    slots = gl.allocate_shared_memory(gl.float32, [2, N], SHARED)
    i = gl.arange(0, N, REGISTERS)
    async_copy.async_copy_global_to_shared(slots.index(1), src + i)
    async_copy.commit_group()
    gl.store(dst + i, slots.index(1).load(REGISTERS))
    async_copy.wait_group(0)


@gluon.jit
def by_name(src, dst):
    tile = gl.allocate_shared_memory(gl.float32, [N], SHARED)
    i = gl.arange(0, N, REGISTERS)
    fetch(tile, src + i)
    async_copy.commit_group()
    gl.store(dst + i, tile.load(REGISTERS))
    wait_group(0)


@gluon.jit
def by_generation(src, dst):
    tile = gl.allocate_shared_memory(gl.float32, [N], SHARED)
    i = gl.arange(0, N, REGISTERS)
    gl.nvidia.ampere.async_copy.async_copy_global_to_shared(tile, src + i)
    gl.store(dst + i, tile.load(REGISTERS))
    gl.nvidia.ampere.async_copy.wait_group(0)


@gluon.jit
def in_lds(src, dst):
    tile = gl.allocate_shared_memory(gl.float32, [N], SHARED)
    i = gl.arange(0, N, gl.BlockedLayout([1], [64], [2], [0]))
    lds.global_load_to_shared(tile, src + i)
    lds.commit_group()
    gl.store(dst + i, tile.load(gl.BlockedLayout([1], [64], [2], [0])))
    lds.wait_group(0)


@gl.aggregate
class Pair:
    first: gl.shared_memory_descriptor
    second: gl.shared_memory_descriptor

    @gluon.constexpr_function
    def __init__(self, first, second):
        self.first = first
        self.second = second


@gluon.jit
def consume(tile, dst):
    gl.store(dst + gl.arange(0, N, REGISTERS), tile.load(REGISTERS))


@gluon.jit
def of_an_aggregate(src, dst):
    pair = Pair(
        gl.allocate_shared_memory(gl.float32, [N], SHARED),
        gl.allocate_shared_memory(gl.float32, [N], SHARED),
    )
    async_copy.async_copy_global_to_shared(pair.second, src + gl.arange(0, N, REGISTERS))
    async_copy.commit_group()
    consume(pair.second, dst)
    async_copy.wait_group(0)


# kernel, target, num_warps -> the words of the report
CASES = {
    "a slot": (by_module, "sim:sm_80", 4, (
        "of `slots` (`slots.index(1)`)", "`async_copy.async_copy_global_to_shared`",
        "`slots.index(1).load`", "Put `async_copy.wait_group(0)` between line {copy} and line {load}.",
    )),
    "imported names": (by_name, "sim:sm_80", 4, (
        "byte 0 of `tile`:", "by `fetch` at", "Put `wait_group(0)` between",
    )),
    "whole paths": (by_generation, "sim:sm_80", 4, (
        "`gl.nvidia.ampere.async_copy.async_copy_global_to_shared`",
        "Put `gl.nvidia.ampere.async_copy.commit_group()` and `gl.nvidia.ampere.async_copy.wait_group(0)`",
    )),
    "another vendor": (in_lds, "sim:gfx950", 2, (
        "by `lds.global_load_to_shared`", "Put `lds.wait_group(0)` between",
    )),
    "an aggregate and a function": (of_an_aggregate, "sim:sm_80", 4, (
        "byte 0 of `pair.second`", "by `tile.load` at line",
    )),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_a_race_is_reported_in_the_words_of_the_kernel(case):
    kernel, target, num_warps, wanted = CASES[case]
    src, dst = np.ones(N.value, np.float32), np.zeros(N.value, np.float32)
    with pytest.raises(RaceError) as caught:
        kernel[(1,)](src, dst, target=target, num_warps=num_warps)
    error, text = caught.value, str(caught.value)
    copy, load = sorted(access.span.line for access in error.accesses)
    copy, load = (load, copy) if "function" in case else (copy, load)
    for part in wanted:
        assert part.format(copy=copy, load=load) in text
    shown = {error.span.line, *(span.line for span in error.related)}
    assert shown == {copy, load} and text.count("^^^") >= 2


@gluon.jit
def leaves(src, dst):
    tile = gl.allocate_shared_memory(gl.float32, [N], SHARED)
    fetch(tile, src + gl.arange(0, N, REGISTERS))
    tile.store(gl.zeros([N], gl.float32, REGISTERS))


@gluon.jit
def waits(dst):
    bars = gl.allocate_shared_memory(gl.int64, [2, 1], ampere.mbarrier.MBarrierLayout())
    for i in range(2):
        ampere.mbarrier.init(bars.index(i), 1)
    ampere.mbarrier.wait(bars.index(1), 0)
    gl.store(dst, 1.0)


@gluon.jit
def beyond(src, dst):
    i = gl.arange(0, N, REGISTERS)
    gl.store(dst + i, gl.load(src + i + 1))


def test_other_reports_use_the_words_too():
    array = np.zeros(N.value, np.float32)
    with pytest.raises(RaceError, match=r"by `fetch` .*and the write by `tile.store`"):
        leaves[(1,)](array, array, target="sim:sm_80")
    with pytest.raises(
        DeadlockError, match=r"phase 0 of the barrier `bars.index\(1\)` \(byte 8 of `bars`\)"
    ):
        waits[(1,)](array, target="sim:sm_80")
    with pytest.raises(OutOfBoundsError, match=r"src: gl.load outside its argument's storage"):
        beyond[(1,)](array, np.zeros_like(array), target="sim:sm_80")


@pytest.mark.parametrize("target", ["sim:sm_80", "sim:sm_100", "sim:gfx950", "sim:gfx1250"])
def test_every_call_of_a_vendor_s_remedies_exists(target):
    import gluon_core.language as language
    from gluon_core.registry.load import registry

    remedies = vars(models_for(registry().target(target)).remedies).values()
    groups = (group.values() if isinstance(group, dict) else [group] for group in remedies)
    texts = [text for group in groups for calls in group for text in calls]
    assert texts
    for text in texts:
        path = text.partition("(")[0]
        value = language
        for part in path.split(".")[1:]:
            value = getattr(value, part)
        assert value.public == path, text


def test_a_call_is_spelled_by_the_shortest_name_of_the_file():
    texts = ["gl.nvidia.ampere.async_copy.wait_group({pending})", "gl.portable.wait({pending})"]

    def site(function, public, scope):
        return CallSite(function, function, None, public, scope)

    own = "gl.nvidia.ampere.async_copy.async_copy_global_to_shared"
    assert spelled(texts, None, pending=1) == texts[0].format(pending=1)
    assert spelled(texts, site("f", own, {}), pending=1) == texts[0].format(pending=1)
    assert spelled(texts, site("cp.f", own, {"cp": async_copy}), pending=1) == "cp.wait_group(1)"
    assert spelled(texts, site("g.f", own, {"g": gl}), pending=2).startswith("g.nvidia.ampere.")
    assert spelled(texts, site("f", own, {"w": wait_group, "g": gl}), pending=0) == "w(0)"
    portable = site("gl.portable.async_copy", "gl.portable.async_copy", {"gl": gl})
    assert spelled(texts, portable, pending=0) == "gl.portable.wait(0)"
    assert spelled([], portable) == ""


FAILS = """
import numpy as np
import gluon_core as gluon
from gluon_core import language as gl

@gluon.jit
def mirror(x):
    i = gl.arange(0, 128, gl.BlockedLayout([1], [32], [4], [0]))
    gl.store(x + i, 1.0)
    gl.store(x + i + 128, gl.load(x + 127 - i))

mirror[(1,)](np.zeros(256, np.float32))
"""


@pytest.mark.once
def test_a_kernel_that_fails_its_own_run_is_not_called_proved(tmp_path):
    file = tmp_path / "mirror.py"
    file.write_text(FAILS)
    command = ["-m", "gluon_core", "prove", str(file), "--target", "sim:sm_80"]
    done = warm.run(command, timeout=100)
    assert done.returncode == 1
    assert done.stdout.startswith("fails: mirror on sim:sm_80 (1 state")
    assert "RaceError" in done.stderr
    done = warm.run([*command, "--json"], timeout=100)
    report = json.loads(done.stdout)
    assert done.returncode == report["exit"] == 1
    assert [row["verdict"] for row in report["verdicts"]] == ["fails"]
