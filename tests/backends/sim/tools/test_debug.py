"""The prompt over a kernel: breakpoints, failures, names, programs, dumps; and prints."""

from __future__ import annotations

import io
import sys

import numpy as np
import pytest
from typer.testing import CliRunner

import gluon_core as gluon
from gluon_cli.app import app
from gluon_core import language as gl
from gluon_core.errors import ArgumentError, CapabilityError, LayoutError
from gluon_core.language.nvidia.ampere import mbarrier
from gluon_core.layouts import BlockedLayout, PaddedSharedLayout, SwizzledSharedLayout, dump
from gluon_sim.errors import OutOfBoundsError, SimulatorError
from gluon_sim.tools.debug import Debugger
from gluon_sim.tools.watcher import watching

L1 = gl.constexpr(gl.BlockedLayout([1], [32], [4], [0]))
PLAIN = gl.constexpr(gl.SwizzledSharedLayout(1, 1, 1, [0]))


def session(commands, launch, error=None):
    """Return the prompt's answers to these commands; the first is where it stopped."""
    out = io.StringIO()
    debugger = Debugger(io.StringIO("\n".join(commands) + "\n"), out)
    with watching(debugger):
        if error is None:
            launch()
        else:
            with pytest.raises(error) as caught:
                launch()
            assert debugger.post_mortem(caught.value)
    return [part.strip() for part in out.getvalue().split("(gluon) ")]


def here(word):
    """Line number of this file's first line with the word."""
    with open(__file__) as file:
        return next(i for i, text in enumerate(file, 1) if word in text)


# ---- breakpoints ----------------------------------------------------------------------------------


@gluon.jit
def scaled(v, by):
    w = v * by
    breakpoint()
    return w


@gluon.jit
def caller(a, out, n, BLOCK: gl.constexpr):
    i = gl.program_id(0) * BLOCK + gl.arange(0, BLOCK, layout=L1)
    x = gl.load(a + i)
    old = x
    x = old + 1.0
    total = gl.zeros([BLOCK], gl.float32, layout=L1)
    for k in range(2):
        total = total + scaled(x, 2.0)
    x = old
    gl.store(out + i + n, total + x)


def call(n=0):
    a, out = np.arange(256, dtype=np.float32), np.zeros(256, np.float32)
    caller[(2,)](a, out, n, 128)
    return out


def test_a_breakpoint_shows_lines_names_and_values():
    answers = session(["where", "p w[:3]", "w.shape", "p by", "p v + nothing", "q"], call)
    stop = here("    breakpoint()")
    assert f"{__file__}:{stop} in scaled, the kernel, program (0, 0, 0) of 2 here" in answers[0]
    assert "-> breakpoint()" in answers[0]
    lines = answers[1].splitlines()
    assert lines[0].endswith("in caller: total = total + scaled(x, 2.0)")
    assert lines[1].startswith(">") and lines[1].endswith("in scaled: breakpoint()")
    assert answers[2:5] == ["[2., 4., 6.]", "(128,)", "2.0"]
    assert "NameError" in answers[5]


def test_names_have_their_values_at_the_line():
    # In the loop `x` is old + 1, whatever is assigned to it before and after.
    answers = session(
        ["up", "p x[:2]", "p old[:2]", "p k", "p BLOCK", "down", "p v[:2]", "q"], call
    )
    assert answers[2:6] == ["[1., 2.]", "[0., 1.]", "0", "128"]
    assert answers[7] == "[1., 2.]"
    assert "total: tensor<128xfp32" in session(["up", "names", "q"], call)[2]


def test_rebinding_to_an_older_value():
    answers = session(
        ["c", "c", "p x[:2]", "p total[:2]", "q"], lambda: call(1 << 20), OutOfBoundsError
    )
    assert answers[3:5] == ["[0., 1.]", "[4., 8.]"]


def test_each_stop_and_each_program():
    answers = session(
        ["up", "p k", "program 1", "p x[:2]", "program", "program 7", "c", "up", "p k", "c"], call
    )
    assert answers[2] == "0" and "program (1, 0, 0)" in answers[3] and answers[4] == "[129., 130.]"
    assert answers[5] == "(0, 0, 0) (1, 0, 0)" and "not here" in answers[6]
    assert "breakpoint()" in answers[7] and answers[9] == "1"


def test_steps_go_line_by_line():
    answers = session(["q"], call)
    assert len(answers) == 2
    answers = session(["s", "s", "q"], call)
    assert "-> breakpoint()" in answers[0] and "total = total + scaled" in answers[1]


def test_the_result_is_that_without_a_debugger():
    expected = np.arange(256) + 4 * (np.arange(256) + 1)
    results = []
    session(["c", "c"], lambda: results.append(call()))
    np.testing.assert_array_equal(results[0], expected)


def test_breakpoints_are_for_the_simulator():
    with pytest.raises(CapabilityError, match="simulator only"):
        gluon.compile(
            caller,
            target="nvidia:sm_90",
            signature={"a": "*fp32", "out": "*fp32", "n": "i32"},
            constexprs={"BLOCK": 128},
        )


# ---- failures ---------------------------------------------------------------------------------------


@gluon.jit
def outside(a, out, BLOCK: gl.constexpr):
    i = gl.program_id(0) * BLOCK + gl.arange(0, BLOCK, layout=L1)
    s = gl.allocate_shared_memory(gl.float32, [BLOCK], PLAIN)
    x = gl.load(a + i) * 3
    s.store(x)
    gl.store(out + i * 2, x)


def fails():
    outside[(2,)](np.arange(256, dtype=np.float32), np.zeros(300, np.float32), 128)


def test_post_mortem_has_the_failing_line_program_and_values():
    answers = session(
        ["p x[:3]", "p i[0]", "dump s", "layout s", "ops", "list 1", "q"], fails, SimulatorError
    )
    assert "OutOfBoundsError" in answers[0] and "gl.store(out + i * 2, x)" in answers[0]
    assert (
        f":{here('gl.store(out + i * 2, x)')} in outside, the kernel, program (1, 0, 0)"
        in answers[0]
    )
    # Values live on after their last use, of the program that failed.
    assert answers[1:3] == ["[384., 387., 390.]", "128"]
    assert answers[3].splitlines()[1].split() == ["16:", *(str(3 * (144 + k)) for k in range(16))]
    assert "SwizzledSharedLayout" in answers[4] and answers[5].startswith("store(tensor<128x*fp32")
    assert f"{here('gl.store(out + i * 2, x)')} ->" in answers[6] and "s.store(x)" in answers[6]


def test_errors_of_others_are_not_kept():
    assert not Debugger().post_mortem(ValueError("elsewhere"))


def test_gluon_run_pdb(tmp_path, monkeypatch):
    file = tmp_path / "f.py"
    file.write_text(
        "import numpy as np\nimport gluon_core as gluon\nfrom gluon_core import language as gl\n"
        "@gluon.jit\ndef far(a):\n    at = gl.program_id(0) + 7\n    gl.store(a + at, 1)\n"
        "far[(1,)](np.zeros(4, np.int32))\n"
    )
    monkeypatch.setattr(sys, "argv", list(sys.argv))
    monkeypatch.setattr(sys, "path", list(sys.path))
    arguments = ["run", str(file), "-t", "sim:sm_90", "--pdb"]
    result = CliRunner().invoke(app, arguments, input="p at * 10\nq\n")
    assert result.exit_code == 1
    assert "gl.store(a + at, 1)" in result.stdout and "(gluon) 70" in result.stdout
    assert "OutOfBoundsError" in result.stderr
    # Only the second of many schedules fails; its output is hidden, the prompt is not.
    text = file.read_text().replace("np.zeros(4, np.int32)", "np.zeros(size, np.int32)")
    size = "size = 4 if current().schedule == 'eager' else 8\n"
    head, launch = text.rsplit("far[(1,)]", 1)
    file.write_text(f"from gluon_sim.settings import current\n{head}{size}far[(1,)]{launch}")
    result = CliRunner().invoke(app, [*arguments, "--schedules", "3"], input="p at * 10\nq\n")
    assert result.exit_code == 1 and "(gluon) 70" in result.stdout
    assert "run 2 of 3 failed" in result.stderr


# ---- dumps --------------------------------------------------------------------------------------------


def test_dump_of_registers_by_thread():
    layout = BlockedLayout([1, 2], [2, 2], [2, 1], [1, 0])
    text = dump(np.arange(32).reshape(8, 4), layout)
    assert text.splitlines()[:3] == [
        "T0: " + " 0  1 16 17",
        "T1: " + " 2  3 18 19",
        "T2: " + " 4  5 20 21",
    ]
    assert text.splitlines()[4] == "T4:  8  9 24 25" and len(text.splitlines()) == 8
    assert dump(np.zeros((8, 4)), layout, rows=2).splitlines()[-1] == "... 6 lines more"


def test_dump_of_buffers_by_offset():
    swizzled = SwizzledSharedLayout(1, 1, 4, [1, 0])
    text = dump(np.arange(16).reshape(4, 4), swizzled)
    assert text.split() == "0: 0 1 2 3 5 4 7 6 10 11 8 9 15 14 13 12".split()
    padded = PaddedSharedLayout.with_identity_for([[4, 2]], [2, 4], [1, 0])
    assert dump(np.arange(8).reshape(2, 4) * 0.5, padded).splitlines() == [
        "0:   0 0.5   1 1.5", "6:   2 2.5   3 3.5",
    ]  # fmt: skip


def test_dump_refuses_values_without_a_layout():
    with pytest.raises(ArgumentError, match="scalar"):
        dump(3, BlockedLayout([1], [32], [4], [0]))
    with pytest.raises(ArgumentError, match="not a layout"):
        dump([1, 2], None)
    with pytest.raises(LayoutError):
        dump(np.zeros((4, 4)), BlockedLayout([1], [32], [4], [0]))


# ---- prints ---------------------------------------------------------------------------------------------


@gluon.jit
def says(bar):
    gl.device_print("values", gl.arange(0, 4, layout=L1))
    mbarrier.arrive(bar)


@gluon.jit
def waits(bar):
    mbarrier.wait(bar, 0)
    gl.device_print("after")


@gluon.jit
def chatty():
    bar = mbarrier.allocate_mbarrier()
    mbarrier.init(bar, 1)
    gl.warp_specialize([(waits, (bar,)), (says, (bar,))], [4], [64])
    mbarrier.invalidate(bar)


def test_device_print_names_program_and_partition(capfd):
    chatty[(1,)]()
    out = capfd.readouterr().out
    assert "pid (0, 0, 0) partition 1 values: [0, 1, 2, 3]" in out
    assert "pid (0, 0, 0) after" in out
