"""`gluon_core.torch.prepare`, `signature` and `is_plain`: launches that take the tensors of each call."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import gluon_core as gluon
from gluon_core import language as gl
from tests import warm

pytestmark = [pytest.mark.once, pytest.mark.sampled(2)]

ROOT = Path(__file__).parents[2]


@gluon.jit
def scale(pair, out, n, factor, BLOCK: gl.constexpr):
    layout: gl.constexpr = gl.portable.blocked_layout([BLOCK], gl.float32)
    i = gl.program_id(0) * BLOCK + gl.arange(0, BLOCK, layout)
    x = gl.load(pair[0] + i, mask=i < n) + gl.load(pair[1] + i, mask=i < n)
    gl.store(out + i, x * factor, mask=i < n)


def test_a_launch_takes_the_tensors_of_each_call(monkeypatch):
    monkeypatch.setenv("GLUON_TARGET", "sim:sm_90")
    x, y, out = torch.randn(3, 300)
    launch = gluon.torch.prepare(scale, (2,), ((x, y), out, 300, 3.0, 256), (x, y, out))
    other, more, to = torch.randn(3, 300)
    launch(other, more, to)
    assert torch.allclose(to, (other + more) * 3)
    launch(other, other, out)
    assert torch.allclose(out, other * 6)


def test_signatures_distinguish_all_dependencies_of_a_launch():
    x = torch.randn(8, 16)
    same = gluon.torch.signature(x, None)
    assert same == gluon.torch.signature(torch.randn(8, 16), None) and hash(same) is not None
    others = [
        x.mT, x[:, :8], x.half(), x.flatten()[1:].view(-1), x[None], torch.randn(16, 8),
    ]  # fmt: skip
    keys = {gluon.torch.signature(other, None) for other in (x, *others)}
    assert len(keys) == len(others) + 1
    assert gluon.torch.signature(x) != same != gluon.torch.signature(None, x)


def test_signatures_of_the_host_distinguish_targets(monkeypatch):
    """An operator's plans for one target are not those for the next, in one process."""
    monkeypatch.setenv("GLUON_TARGET", "sim:sm_90")
    x = torch.randn(8, 16)
    same = gluon.torch.signature(x)
    monkeypatch.setenv("GLUON_TARGET", "sim:gfx942")
    assert gluon.torch.signature(x) != same


def test_tensors_of_the_host_take_the_dispatcher():
    assert not gluon.torch.is_plain(torch.ones(2))


SCRIPT = """
import os, sys, weakref
sys.path.insert(0, os.getcwd())
os.environ["GLUON_TARGET"] = "nvidia:sm_90"
import ctypes
import torch
from benchmarks.host_launch import use_fake_driver
from benchmarks import fake_driver
libraries, make = [], fake_driver.library
import benchmarks.host_launch as host
host.library = lambda: libraries.append(make()) or libraries[0]
target, _ = use_fake_driver()
import gluon_core as gluon
from gluon_core import language as gl
from tests.torch.test_prepared import scale
launches = ctypes.c_int.in_dll(libraries[0], "launches")
x, y, out = torch.randn(3, 300).unbind(0)
x, y, out = x.clone(), y.clone(), out.clone()
launch = gluon.torch.prepare(scale, (2,), ((x, y), out, 300, 3.0, 256), (x, y, out))
assert launch.__name__ == "handle", launch
before = launches.value
launch(out, x, y)
assert launches.value == before + 1
held = weakref.ref(x)
del x
assert held() is None  # a prepared launch holds no tensor
for wrong in ((out,), (out, y, object())):
    try:
        launch(*wrong)
    except Exception as error:
        print(type(error).__name__)
assert launches.value == before + 1
print("well")
"""


def test_the_engine_launches_with_the_tensors_of_the_call(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    done = warm.run([tmp_path / "script.py"], cwd=ROOT, torch=True)
    assert done.stdout.endswith("well\n"), done.stderr
