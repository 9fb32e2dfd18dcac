"""Pointers that a kernel loads from memory: arrays of addresses reach every live tensor, and nothing else."""

from __future__ import annotations

import gc
import json
import platform
import subprocess
import sys

import numpy as np
import pytest
import torch

import gluon_core as gluon
from gluon_certify import Plan, certify
from gluon_core import language as gl
from gluon_core.errors import GluonError
from gluon_sim.settings import using

pytestmark = [
    pytest.mark.once,
    pytest.mark.sampled(3),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]
TARGETS = ["sim:sm_90", "emu:sm_90", "sim:gfx942", "emu:gfx942"]


@gluon.jit
def double_each(sources, results, n, BLOCK: gl.constexpr):
    layout: gl.constexpr = gl.portable.blocked_layout([BLOCK], gl.float32)
    source = gl.load(sources + gl.program_id(0)).to(gl.pointer_type(gl.float16))
    result = gl.load(results + gl.program_id(0)).to(gl.pointer_type(gl.float32))
    i = gl.arange(0, BLOCK, layout)
    values = gl.load(source + i, mask=i < n, other=0.0)
    gl.store(result + i, values.to(gl.float32) * 2, mask=i < n)


@gluon.jit
def through_two(tables, out):
    table = gl.load(tables).to(gl.pointer_type(gl.int64))
    values = gl.load(table + 1).to(gl.pointer_type(gl.float32))
    gl.store(out, gl.load(values))


@gluon.jit
def at_number(address, out):
    gl.store(out, gl.load(gl.cast(address.to(gl.int64), gl.pointer_type(gl.float32)) + 2))


def table(parts):
    return torch.tensor([part.data_ptr() for part in parts])


@pytest.mark.parametrize("target", TARGETS)
def test_an_array_of_pointers(target):
    sources = [torch.randn(100, dtype=torch.float16) for _ in range(3)]
    whole = torch.zeros(3, 100)
    double_each[(3,)](table(sources), table(whole), 100, BLOCK=128, target=target)
    for source, result in zip(sources, whole):
        assert torch.equal(result, source.float() * 2)


@pytest.mark.parametrize("target", TARGETS)
def test_past_the_end_of_memory_behind_a_pointer(target):
    sources = [torch.zeros(100, dtype=torch.float16) for _ in range(2)]
    results = [torch.zeros(100), torch.zeros(90)]
    with pytest.raises(GluonError, match=r"results\[1\]") as caught:
        double_each[(2,)](table(sources), table(results), 100, BLOCK=128, target=target)
    assert type(caught.value).__name__ in ("OutOfBoundsError", "AccessError")


@pytest.mark.parametrize("target", ["sim:sm_90", "emu:sm_90"])
def test_a_pointer_to_freed_memory(target):
    freed = torch.zeros(1 << 20, dtype=torch.float16)  # large enough to be unmapped
    sources, result = table([freed]), torch.zeros(100)
    double_each[(1,)](sources, table([result]), 100, BLOCK=128, target=target)
    del freed
    gc.collect()  # the launch of the emulator holds its memory in a cycle
    with pytest.raises(GluonError) as caught:
        double_each[(1,)](sources, table([result]), 100, BLOCK=128, target=target)
    assert type(caught.value).__name__ in ("OutOfBoundsError", "AccessError")


@pytest.mark.parametrize("target", ["sim:sm_90", "emu:sm_90"])
def test_pointers_behind_pointers_and_arrays_of_numpy(target):
    values = {"here": (np.arange(7, 9, dtype=np.float32),)}
    inner = np.array([0, values["here"][0].ctypes.data])
    out = np.zeros(1, np.float32)
    through_two[(1,)](np.array([inner.ctypes.data], np.uint64), out, target=target)
    assert out[0] == 7


@pytest.mark.parametrize("target", ["sim:sm_90", "emu:sm_90"])
def test_an_address_as_a_number(target):
    x, out = torch.arange(4.0), torch.zeros(1)
    at_number[(1,)](x.data_ptr(), out, target=target)
    assert out.item() == 2


LOW = """
import mmap
low = mmap.mmap(-1, 4096, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x40)  # below 2 GiB
import numpy as np
import gluon_core as gluon
from gluon_core import language as gl

@gluon.jit
def at_number(address, out):
    gl.store(out, gl.load(gl.cast(address.to(gl.int64), gl.pointer_type(gl.float32)) + 2))

x, out = np.frombuffer(low, np.float32), np.zeros(1, np.float32)
x[2] = 7
at_number[(1,)](x.ctypes.data, out, target="sim:sm_90")
print(x.ctypes.data < 1 << 31, out[0])
"""


@pytest.mark.skipif(platform.machine() != "x86_64", reason="maps memory below 2 GiB")
def test_an_address_of_32_bits(tmp_path):
    (tmp_path / "script.py").write_text(LOW)
    done = subprocess.run(
        [sys.executable, tmp_path / "script.py"], capture_output=True, text=True, check=False
    )
    assert done.stdout == "True 7.0\n", done.stderr


def test_races_in_memory_behind_pointers_are_reported():
    sources = [torch.zeros(64, dtype=torch.float16) for _ in range(2)]
    same = torch.zeros(64)
    sources[1] += 1
    with using(races=True), pytest.raises(GluonError) as caught:
        double_each[(2,)](table(sources), table([same, same]), 64, BLOCK=64, target="sim:sm_90")
    assert type(caught.value).__name__ == "RaceError"


def test_a_certificate_compares_memory_behind_pointers(tmp_path):
    path = tmp_path / "program.py"
    path.write_text(
        """
import torch
from tests.backends.sim.memory.test_stored_addresses import double_each, table
sources, results = torch.arange(200).half().reshape(2, 100), [torch.zeros(100) for _ in range(2)]
double_each[(2,)](table(sources), table(results), 100, BLOCK=128)
assert all(torch.equal(y, x.float() * 2) for x, y in zip(sources, results))
"""
    )
    first, second = (certify(str(path), ["sm_90"], plan=Plan(schedules=2)).as_json() for _ in "ab")
    assert first["verdict"] == "certified"
    names = [one["name"] for one in first["targets"][0]["kernels"][0]["launches"][0]["arrays"]]
    assert names == ["sources", "results", "results[0]", "results[1]", "sources[0]"]
    assert json.dumps(first) == json.dumps(second)


@gluon.jit
def copied(src, out, LANES: gl.constexpr):
    i = gl.arange(0, 128, gl.BlockedLayout([1], [LANES], [4], [0]))
    gl.store(out + i, gl.load(src + i))


@pytest.mark.parametrize("target", TARGETS)
def test_integers_that_look_like_addresses_cost_no_search(target, monkeypatch):
    lanes = 64 if "gfx942" in target else 32
    values = torch.full((128,), torch.zeros(4).data_ptr())
    out = torch.zeros_like(values)
    copied[(1,)](values, out, lanes, target=target)  # compiled

    def search(*arguments):
        raise AssertionError("the objects of the process are searched")

    monkeypatch.setattr(gc, "get_objects", search)
    copied[(1,)](values, out, lanes, target=target)
    assert torch.equal(out, values)
