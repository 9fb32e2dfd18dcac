"""Optimizations of launches change no result: BLAS on one thread, partitioned programs in batches."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest

from gluon_core.registry.load import registry
from gluon_report.example import Arrays
from gluon_sim.executor.blas import one_thread
from gluon_sim.executor.machine import Machine
from tests.kernels import cases


def test_blas_has_one_thread_while_a_launch_runs():
    control = pytest.importorskip("threadpoolctl")

    def counts():
        libraries = control.ThreadpoolController().info()
        own = [lib for lib in libraries if lib["user_api"] == "blas" and "numpy" in lib["filepath"]]
        return {lib["num_threads"] for lib in own}

    with control.threadpool_limits(3):
        before = counts()
        with one_thread():
            assert counts() == {1}
            other = threading.Thread(target=lambda: one_thread().__enter__())
            other.start()  # a launch parallel to this one, which outlives it
            other.join()
        assert counts() == before


@pytest.mark.parametrize("programs, batched", [(4, True), (5, False)])
def test_partitioned_programs_run_in_batches_until_they_part(monkeypatch, programs, batched):
    steps = []
    step = Machine.step

    def watched(self, numbers, arguments, together=False):
        steps.append((len(numbers), together))
        return step(self, numbers, arguments, together)

    monkeypatch.setattr(Machine, "step", watched)
    example = cases.module("add_tma").EXAMPLES[1]
    example = replace(example, grid=lambda args, config: (programs,))
    target = registry().target("sim:sm_90")
    args = example.arguments(Arrays(target), False, (512, 32))  # 8 tiles
    options = example.configure(target)
    example.launch(args, options, target=target)
    assert example.difference(args[example.output], example.reference(args)) is None
    one_by_one = [(1, False)] * programs
    assert steps == [(programs, True)] + ([] if batched else one_by_one)
