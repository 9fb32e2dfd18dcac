"""Many kernels at once: in order, from the cache, side by side."""

import functools
import os
import sys
import threading

import pytest
import triton

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.compiler import many, stages
from gluon_core.errors import ArgumentError, OptionError, StaticAssertionError
from gluon_core.launch import ahead
from gluon_core.launch.jit import GluonJITFunction
from tests.compile.processes import put, workers_now
from tests.core import kernels_for_runtime as kernels

pytestmark = [
    pytest.mark.once,
    pytest.mark.sampled(2),
    pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork"),
    pytest.mark.usefixtures("alone"),
]


def request(value, **more):
    return dict(fn=kernels.put, signature={"y": "*fp32"}, constexprs={"VALUE": value}, **more)


def test_many_come_in_order_and_from_the_cache(monkeypatch):
    monkeypatch.setenv("GLUON_COMPILE_WORKERS", "2")
    values = [float(i) for i in range(5)]
    kernels = gluon.compile_many([request(v) for v in values], "sm_80", {"num_warps": 2})
    assert [kernel.src.constants[(1,)] for kernel in kernels] == values
    assert 1 <= len(workers_now()) <= 2
    assert all(kernel.metadata.num_warps == 2 for kernel in kernels)
    assert [k.hash for k in kernels] == [put(v, num_warps=2).hash for v in values]


def test_more_workers_than_cores(monkeypatch):
    monkeypatch.setenv("GLUON_COMPILE_WORKERS", "1")
    gluon.compile_many([request(float(i)) for i in range(6)], "sm_80", workers=3)
    assert len(workers_now()) == 3


def test_many_of_each_kind():
    source = gluon.GluonASTSource(kernels.put, {"y": "*fp32"}, {"VALUE": 1.0})
    compiled = gluon.compile_many(
        [source, request(2.0, target="gfx942"), functools.partial(put, 3.0, "sm_90")],
        target="sm_80",
        workers=2,
    )
    assert [str(kernel.target) for kernel in compiled] == [
        "nvidia:sm_80",
        "amd:gfx942",
        "nvidia:sm_90",
    ]
    assert gluon.compile_many([]) == []


def test_an_error_among_many(monkeypatch):
    bad = request(1.0, options={"num_warps": 3})
    with pytest.raises(OptionError, match="power of two"):
        gluon.compile_many([request(1.0), bad, request(2.0)], "sm_80", workers=2)
    kernels = gluon.compile_many([request(1.0), bad], "sm_80", workers=2, errors="return")
    assert kernels[0].name == "put" and isinstance(kernels[1], OptionError)


@pytest.mark.parametrize(
    "arguments, words",
    [
        (dict(requests=[kernels.put]), r"requests\[0\].*dict\(fn=kernel"),
        (dict(requests=[{"signature": {}}]), "names no kernel"),
        (dict(requests=[7]), "got int"),
        (dict(requests=[], workers=0), "workers"),
        (dict(requests=[], errors="ignore"), "errors"),
    ],
)
def test_values_that_are_no_request(arguments, words):
    with pytest.raises(ArgumentError, match=words):
        gluon.compile_many(**arguments)


@pytest.mark.parametrize("text", ["0", "two", "-1", "1.5"])
def test_values_that_are_no_number_of_workers(text, monkeypatch):
    monkeypatch.setenv("GLUON_COMPILE_WORKERS", text)
    with pytest.raises(OptionError, match="GLUON_COMPILE_WORKERS"):
        gluon.compile_many([request(1.0), request(2.0)], "sm_80")


def test_a_bar_is_for_terminals(capsys, monkeypatch):
    requests = [functools.partial(put, float(i)) for i in range(3)]
    monkeypatch.setattr(many, "_SHOWN_AFTER", 0.0)
    gluon.compile_many(requests)
    assert capsys.readouterr().err == ""
    gluon.compile_many(requests, progress=True)
    assert "3/3" in capsys.readouterr().err
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    gluon.compile_many(requests)
    assert "3/3" in capsys.readouterr().err
    monkeypatch.setattr(many, "_SHOWN_AFTER", 100.0)
    gluon.compile_many(requests)
    assert capsys.readouterr().err == ""


class TestHowManyProcesses:
    """Another process is forked where it pays: what is left takes longer than the fork."""

    def forked(self, monkeypatch, forking, job):
        monkeypatch.setenv("GLUON_COMPILE_WORKERS", "4")
        monkeypatch.setattr(stages._pool, "forking", forking)
        monkeypatch.setattr(stages._pool, "job", job)
        gluon.compile_many([request(float(i)) for i in range(8)], "sm_80")
        return len(workers_now())

    def test_forks_that_take_long(self, monkeypatch):
        assert self.forked(monkeypatch, forking=30.0, job=0.05) == 1

    def test_kernels_that_take_long(self, monkeypatch):
        assert self.forked(monkeypatch, forking=0.01, job=30.0) > 1


@pytest.fixture
def in_pairs(monkeypatch):
    """Compilations wait until a second one is at work; the list has the number of them."""
    monkeypatch.setenv("GLUON_COMPILE_WORKERS", "2")
    monkeypatch.setenv("GLUON_TARGET", "sm_80")
    both = threading.Barrier(2, timeout=30)
    real, seen = stages._Job.in_child, []

    def meeting(self, *args):
        seen.append(both.wait())
        return real(self, *args)

    monkeypatch.setattr(stages._Job, "in_child", meeting)
    return seen


@pytest.mark.once
def test_forms_of_one_kernel_are_compiled_side_by_side(in_pairs):
    """Warm-ups of one kernel do not wait for each other."""
    kernel = gluon.jit(kernels.put.fn)
    import torch

    gluon.compile_many(
        [functools.partial(kernel.warmup, torch.float32, VALUE=v, grid=(1,)) for v in (1.0, 2.0)]
    )
    assert len(in_pairs) == 2


@gluon.jit
def tuned_put(x, n, VALUE: gl.constexpr):
    gl.static_assert(VALUE < 100)
    if n > 0:
        gl.store(x, VALUE)


@pytest.mark.once
class TestConfigurationsOfATuner:
    """`triton.autotune` asks for one form after the other; they are compiled side by side."""

    values = (1.0, 2.0, 3.0, 4.0)

    def tuned(self, *values, **more):
        configurations = [triton.Config({"VALUE": value}) for value in values]
        return triton.autotune(configurations, key=["n"], **more)(gluon.jit(tuned_put.fn))

    def test_a_warm_up(self, in_pairs):
        import torch

        compiled = self.tuned(*self.values).warmup(torch.float32, 16, grid=(1,))
        assert len(in_pairs) == 4 and len({kernel.hash for kernel in compiled}) == 4

    def test_a_search_and_the_next(self, in_pairs, monkeypatch):
        import torch

        def run(self, *args, grid, warmup, **requested):  # there is nothing to launch on
            return self.dispatcher.warmup(args, requested)

        monkeypatch.setattr(GluonJITFunction, "run", run)
        measured = []

        def bench(call, **_):
            measured.append(call())
            return [1.0, 1.0, 1.0]

        tuned = self.tuned(*self.values, do_bench=bench)
        for n in (16, 1):  # 1 is another form of each
            tuned[(1,)](torch.float32, n)
        assert len(in_pairs) == len(measured) == 8

    def test_failed_compilations_are_the_tuners(self, monkeypatch):
        import torch

        monkeypatch.setenv("GLUON_TARGET", "sm_80")
        tuned = self.tuned(1.0, 200.0)
        with pytest.raises(StaticAssertionError):
            tuned.warmup(torch.float32, 16, grid=(1,))

    def test_hooks_that_change_arguments_come_first(self, monkeypatch):
        import torch

        monkeypatch.setenv("GLUON_TARGET", "sm_80")
        monkeypatch.setenv("GLUON_COMPILE_WORKERS", "2")
        asked = []
        monkeypatch.setattr(ahead, "compile_many", lambda jobs, **_: asked.extend(jobs))
        tuned = self.tuned(*self.values)
        for configuration in tuned.configs[:2]:
            configuration.pre_hook = lambda args: None
        tuned.warmup(torch.float32, 16, grid=(1,))
        assert [job.args[-1]["VALUE"] for job in asked] == [3.0, 4.0]
