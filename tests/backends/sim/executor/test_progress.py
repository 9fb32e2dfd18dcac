"""Long launches: how far they are, and where they were when somebody stopped them."""

from __future__ import annotations

import _thread
import os
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.language.nvidia.ampere import mbarrier
from gluon_sim.errors import LaunchInterrupted
from gluon_sim.executor import progress
from gluon_sim.executor.machine import Machine
from gluon_sim.settings import using

L1 = gl.constexpr(gl.BlockedLayout([4], [32], [4], [0]))


@gluon.jit
def spends_time(a, out, ROUNDS: gl.constexpr, N: gl.constexpr):
    o = gl.program_id(0) * N + gl.arange(0, N, layout=L1)
    x = gl.load(a + o)
    for i in range(ROUNDS):
        x = x ^ i
    gl.store(out + o, x)


@pytest.fixture(autouse=True)
def listening():
    """Ctrl-C is heard, also where whoever started the tests wants it ignored, as shells do for jobs
    in the background; processes that a test starts hear it, too."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def interrupted(monkeypatch):
    """Runs a function, presses Ctrl-C soon after its launch has begun, and gives the exception."""
    began = []
    run = Machine.run

    def begin(self, arguments):
        began.append(time.monotonic())
        threading.Timer(0.4, _thread.interrupt_main).start()
        run(self, arguments)

    def interrupt(function):
        with pytest.raises(LaunchInterrupted) as caught:
            function()
        assert time.monotonic() - began[0] < 10
        return caught.value

    monkeypatch.setattr(Machine, "run", begin)
    return interrupt


@pytest.mark.parametrize("workers", [1, 2])
def test_an_interrupt_says_where(workers, interrupted):
    a, out = np.zeros(512 * 2048, np.int32), np.zeros(512 * 2048, np.int32)
    with using(workers=workers):
        interrupt = interrupted(lambda: spends_time[(512,)](a, out, 10**8, 2048))
    assert isinstance(interrupt, KeyboardInterrupt)
    text = interrupt.span.text
    assert "x = x ^ i" in text or "for i in range" in text
    assert (interrupt.done, interrupt.total) == (0, 512)
    assert "0 of 512 programs are over" in str(interrupt) and text.strip() in str(interrupt)


@gluon.jit
def works(bar, ROUNDS: gl.constexpr):
    i = 0
    while i < ROUNDS:
        i = i + 1
    mbarrier.arrive(bar)


@gluon.jit
def waits(bar):
    mbarrier.wait(bar, 0)


@gluon.jit
def partitions(ROUNDS: gl.constexpr):
    bar = mbarrier.allocate_mbarrier()
    mbarrier.init(bar, 1)
    gl.warp_specialize([(waits, (bar,)), (works, (bar, ROUNDS))], [4], [64])


def test_an_interrupt_reports_every_partition(interrupted):
    interrupt = interrupted(lambda: partitions[(1,)](10**9))
    waiting, working = interrupt.tasks
    assert waiting.startswith("the kernel waits for phase 0 of the barrier")
    assert working.startswith("partition 1 of the kernel is at line")
    assert "works" not in interrupt.span.text and interrupt.span.file == __file__


def test_a_long_launch_reports_its_progress(monkeypatch, capsys):
    monkeypatch.setattr(progress, "AFTER", 0.05)
    monkeypatch.setattr(progress, "EVERY", 0.05)
    a, out = np.zeros(4096 * 64, np.int32), np.zeros(4096 * 64, np.int32)
    with using(progress=True, workers=1, schedule="random"):
        spends_time[(64,)](a, out, 3000, 4096)
    printed = capsys.readouterr()
    assert not printed.out
    assert "spends_time: 0 of 64 programs, line" in printed.err
    with using(workers=1):
        spends_time[(64,)](a, out, 3000, 4096)
    assert not capsys.readouterr().err


def test_short_launches_say_nothing(capsys):
    a, out = np.zeros(4096, np.int32), np.zeros(4096, np.int32)
    with using(progress=True):
        spends_time[(1,)](a, out, 3, 4096)
    assert capsys.readouterr() == ("", "")


SCRIPT = """
import numpy as np
from {module} import spends_time
a = np.zeros(4096, np.int32)
print("begins", flush=True)
spends_time[(2,)](a, a, 10**8, 2048)
"""


def test_the_command_ends_at_ctrl_c(tmp_path):
    file = tmp_path / "long.py"
    file.write_text(SCRIPT.format(module="test_progress"))
    run = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "gluon_cli",
            "run",
            str(file),
            "--target",
            "sim:sm_90",
            "--progress",
        ],
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join([os.path.dirname(__file__), *filter(None, sys.path)]),
            "PYTHONWARNINGS": "ignore",  # Triton 3.9 has one on its defaults
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert run.stdout.readline() == "begins\n"
        assert "spends_time: 0 of 2 programs, line" in run.stderr.readline()
        run.send_signal(signal.SIGINT)
        _, printed = run.communicate(timeout=60)
    finally:
        run.kill()
    assert run.returncode == 130
    assert "0 of 2 programs are over" in printed and "Traceback" not in printed
