"""Output of kernels, and failed assertions, through the service of the runtime that takes them."""

from __future__ import annotations

import struct

import numpy as np
import pytest

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.registry.load import registry
from gluon_emu.amdgcn.machine.hostcall import Hostcalls, formatted
from gluon_emu.errors import TrapError
from gluon_emu.settings import using

pytestmark = pytest.mark.sampled(2)

# Waves of 64 and of 32 lanes; the others differ in the text of the assembly.
ALL = ["gfx942", "gfx1201", *(pytest.param(a, marks=pytest.mark.campaign) for a in ("gfx90a", "gfx1100"))]  # fmt: skip


@gluon.jit
def says(x, WARP: gl.constexpr):
    layout: gl.constexpr = gl.BlockedLayout([1], [WARP], [2], [0])
    values = gl.load(x + gl.program_id(0) * 2 * WARP + gl.arange(0, 2 * WARP, layout=layout))
    gl.device_print("half of it", values * 0.5)


@gluon.jit
def limits(x, out, most, WARP: gl.constexpr):
    layout: gl.constexpr = gl.BlockedLayout([1], [WARP], [1], [0])
    lanes = gl.arange(0, WARP, layout=layout)
    values = gl.load(x + lanes)
    gl.device_assert(values < most, "too large a value")
    gl.store(out + lanes, values)


@pytest.mark.once
@pytest.mark.parametrize("arch", ALL)
def test_printed_output(arch, capsys):
    target = registry().target(f"emu:{arch}")
    warp = target.warp_size
    x = np.arange(6 * warp, dtype=np.float32)
    with using(resident=2):  # one workgroup after the other
        says[(3,)](x, warp, target=target, num_warps=2)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == x.size
    outputs = {}
    for line in lines:
        before, _, value = line.partition("half of it: ")
        pid = int(before.split("pid (")[1].split(",")[0])
        index = int(before.split("idx (")[1].split(")")[0])
        outputs[pid * 2 * warp + index] = float(value)
    assert outputs == {i: i / 2 for i in range(x.size)}


@pytest.mark.once
@pytest.mark.parametrize("arch", ALL)
def test_an_assertion_that_fails(arch, capsys):
    target = registry().target(f"emu:{arch}")
    warp = target.warp_size
    x, out = np.arange(warp, dtype=np.int32), np.zeros(warp, np.int32)
    options = {"target": target, "num_warps": 1, "debug": True}
    limits[(1,)](x, out, warp, warp, **options)
    np.testing.assert_array_equal(out, x)
    out[:] = 0
    with pytest.raises(
        TrapError, match="(?s)assertion failed: too large a value\n.*lanes .*gl.device_assert"
    ) as caught:
        limits[(1,)](x, out, warp - 3, warp, **options)
    assert caught.value.span.file == __file__
    assert capsys.readouterr().err.count("too large a value") == 3  # a line for each lane
    assert f"lanes {warp - 3}-{warp - 1}\n" in str(caught.value)
    assert f"{warp - 3} and {warp - 2} (lane {warp - 2})" in str(caught.value)
    assert not out.any()


@gluon.jit
def says_much(x, out, WARP: gl.constexpr):
    layout: gl.constexpr = gl.BlockedLayout([1], [WARP], [2], [0])
    i = gl.program_id(0) * 2 * WARP + gl.arange(0, 2 * WARP, layout=layout)
    values = gl.load(x + i)
    gl.device_print("first; of many", values, i)
    gl.device_assert(values >= 0, "first; negative")
    total = gl.sum(values)
    gl.device_print("total", total)
    gl.device_assert(total > -1000000, "total")
    gl.store(out + i, values * 3 + total)


@pytest.mark.once
@pytest.mark.parametrize(
    "arch",
    [
        "gfx1201",
        *(pytest.param(a, marks=pytest.mark.campaign) for a in ("gfx942", "gfx90a", "gfx1100")),
    ],
)
def test_several_prints_and_assertions_with_overflow_checks(arch, capsys):
    target = registry().target(f"emu:{arch}")
    warp = target.warp_size
    x, out = np.arange(4 * warp, dtype=np.int32), np.zeros(4 * warp, np.int32)
    options = {"target": target, "num_warps": 2, "debug": True}
    says_much[(2,)](x, out, warp, **options)
    totals = x.reshape(2, -1).sum(1)
    np.testing.assert_array_equal(out, 3 * x + np.repeat(totals, 2 * warp))
    lines = capsys.readouterr().out.splitlines()
    assert sum("first; of many" in line for line in lines) == 2 * x.size  # both operands
    assert {int(s.split()[-1]) for s in lines if " total: " in s} == {*totals.tolist()}
    says_much[(2,)](x, out, warp, **options)
    assert capsys.readouterr().out.splitlines() == lines  # in the same order

    x[3] = 1 << 30
    with pytest.raises(TrapError, match="int32 overflow detected for operation") as caught:
        says_much[(2,)](x, out, warp, **options)
    assert caught.value.span.line == says_much.fn.__code__.co_firstlineno + 10
    x[3], x[2 * warp + 5] = 3, -2
    with pytest.raises(TrapError, match="assertion failed: first; negative\n") as caught:
        says_much[(2,)](x, out, warp, **options)
    assert "in workgroup (1, 0, 0), wave 0, lane 5\n" in str(caught.value)


@pytest.mark.once
def test_formats():
    def words(*values):
        return b"".join(v if isinstance(v, bytes) else struct.pack("<q", v) for v in values)

    def double(value):
        return struct.pack("<d", value)

    text = formatted(
        words(
            b"%d|%5u|%-4x|%lld|%c|%%|%s|%.2f|%g|%hhd|%p\n".ljust(48, b"\0"), -1, 7, 255, -(1 << 40), 65,
            b"a string\0".ljust(16, b"\0"), double(1.005), double(1e30), 0x1FF, 4096,
        )
    )  # fmt: skip
    assert text == "-1|    7|ff  |-1099511627776|A|%|a string|1.00|1e+30|-1|0x1000\n"
    assert formatted(words(b"none".ljust(8, b"\0"))) == "none"
    assert formatted(words(b"%u%u\0".ljust(8, b"\0"), 1)) == "10"  # an argument that did not come


def test_other_services_are_not_there():
    service = Hostcalls(4)
    service._put(service.headers + 8, 1)
    service._put(service.headers + 16, 1, "<I")  # calls of functions of the host
    service._put(32, service.count)
    assert service.serve() == 1


@gluon.jit
def percents(n):
    gl.device_print("100% of %d", n)


@pytest.mark.parametrize("target", ["emu:gfx942", "emu:sm_90", "sim:sm_90"])
def test_a_percent_sign_is_text(target, capfd):
    percents[(1,)](7, target=target)
    lines = capfd.readouterr().out.splitlines()
    assert lines and all(line.endswith("100% of %d: 7") for line in lines)
