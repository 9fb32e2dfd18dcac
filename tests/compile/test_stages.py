"""Whatever a stage does, the caller gets an exception of ours and a quiet stderr."""

import os
import pickle
import signal
import sys
import time

import pytest
from triton.runtime.errors import OutOfResources, PTXASError

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core import testing
from gluon_core.compiler import compile, driver
from gluon_core.compiler.stages import isolation_enabled, run_stages
from gluon_core.errors import LayoutError, LimitError, ShapeError, StageError
from gluon_core.plugin.compiler import Stage
from gluon_core.registry.load import registry


class Module:
    """A double of an MLIR module."""

    def __str__(self):
        return "module { the text of it }"


def run(*stages, isolate=True, **more):
    return run_stages(
        [Stage(f"s{i}", stage) for i, stage in enumerate(stages)],
        Module(),
        {"num_warps": 4},
        subject="kernel for target",
        isolate=isolate,
        as_text=True,
        **more,
    )


def good(value, metadata):
    metadata["shared"] = 128
    os.write(2, b"a word from C++\n")
    print("a word from Python")
    return value


def abort(value, metadata):
    os.write(2, b"Assertion `layouts are equal' failed.\n")
    os.abort()


BOTH = pytest.mark.parametrize("isolate", [True, False], ids=["child", "here"])


@pytest.mark.once
@BOTH
def test_results_and_metadata_come_back_and_nothing_is_printed(isolate, capfd):
    result = run(
        good, lambda value, metadata: "text", lambda value, metadata: b"\x7f", isolate=isolate
    )
    assert result.asm == {"s0": "module { the text of it }", "s1": "text", "s2": b"\x7f"}
    assert result.metadata == {"num_warps": 4, "shared": 128}
    assert [name for name, _ in result.ends] == ["s0", "s1", "s2"]
    assert "a word from C++" in result.diagnostics and "a word from Python" in result.diagnostics
    assert capfd.readouterr() == ("", "")


@pytest.mark.once
@BOTH
def test_requested_facts_are_printed(isolate, capfd, monkeypatch):
    monkeypatch.setenv("MLIR_ENABLE_DUMP", "1")
    run(good, isolate=isolate)
    assert "a word from C++" in capfd.readouterr().err


@pytest.mark.once
@BOTH
def test_a_failing_stage_reports_everything(isolate, capfd):
    def failing(value, metadata):
        os.write(2, b"error: cannot lower tt.gather\n")
        raise RuntimeError("PassManager::run failed")

    with pytest.raises(StageError) as caught:
        run(good, failing, isolate=isolate)
    text = str(caught.value)
    assert "kernel for target failed in stage s1: PassManager::run failed" in text
    assert "cannot lower tt.gather" in caught.value.diagnostics
    with open(caught.value.reproducer) as file:
        assert file.read() == "module { the text of it }"
    os.remove(caught.value.reproducer)
    assert isinstance(caught.value, PTXASError)  # the autotuner skips such a configuration
    assert capfd.readouterr() == ("", "")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_an_abort_becomes_an_error(capfd):
    with pytest.raises(StageError) as caught:
        run(good, abort)
    assert "stage s1: the compiler was killed by SIGABRT" in str(caught.value)
    assert "layouts are equal" in caught.value.diagnostics
    os.remove(caught.value.reproducer)
    assert capfd.readouterr() == ("", "")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize(
    "end", [lambda: os.kill(os.getpid(), signal.SIGSEGV), lambda: os._exit(3), sys.exit]
)
def test_every_other_end_becomes_an_error(end):
    with pytest.raises(StageError, match="SIGSEGV|status 3|SystemExit") as caught:
        run(lambda value, metadata: end())
    os.remove(caught.value.reproducer)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_stage_that_hangs_is_ended(monkeypatch):
    monkeypatch.setenv("GLUON_COMPILE_TIMEOUT", "0.5")
    started = time.monotonic()
    with pytest.raises(StageError, match="GLUON_COMPILE_TIMEOUT") as caught:
        run(lambda value, metadata: time.sleep(60))
    assert time.monotonic() - started < 20
    os.remove(caught.value.reproducer)


@pytest.mark.once
@BOTH
def test_our_own_errors_come_through_whole(isolate):
    def limited(value, metadata):
        error = LimitError("too much", expected="at most 5", got="6")
        error.required, error.limit = 6, 5
        raise error

    with pytest.raises(LimitError, match="too much; expected at most 5, got 6") as caught:
        run(limited, isolate=isolate)
    assert isinstance(caught.value, OutOfResources) and caught.value.required == 6
    copy = pickle.loads(pickle.dumps(caught.value))
    assert str(copy) == str(caught.value) and isinstance(copy, OutOfResources)

    def shaped(value, metadata):
        raise ShapeError("wrong", argument="shape")

    with pytest.raises(ShapeError, match="shape: wrong"):
        run(shaped, isolate=isolate)


def test_isolation_can_be_switched_off(monkeypatch):
    seen = []
    monkeypatch.setenv("GLUON_COMPILE_ISOLATION", "0")
    assert not isolation_enabled()
    run(lambda value, metadata: seen.append(os.getpid()) or "x")
    assert seen == [os.getpid()]


@pytest.mark.once
@BOTH
def test_a_result_can_be_replaced(isolate):
    result = run(
        lambda value, metadata: "mine",
        lambda value, metadata: value + "!",
        isolate=isolate,
        override=lambda stage, value: "theirs" if stage == "s0" else None,
    )
    assert result.asm == {"s0": "theirs", "s1": "theirs!"}


@gluon.jit
def undetermined(p):
    x = gl.load(p + gl.arange(0, 128))  # HERE
    gl.store(p + gl.arange(0, 128), x)


def test_an_auto_layout_that_nothing_determines_is_an_error_at_its_line():
    target = registry().target("nvidia:sm_90")
    source, options = testing.bind(undetermined, [testing.MockTensor(gl.float32)], {})
    with pytest.raises(LayoutError, match="nothing determines.*gl.set_auto_layout") as caught:
        compile(source, target, options)
    assert "# HERE" in caught.value.span.text


@gluon.jit
def fine(x):
    gl.store(x, 1)


class Malformed(Module):
    """A module that no process can parse, and that MLIR would not have."""

    def verify(self):
        os.write(2, b"error: 'tt.store' op is malformed\n")
        return False


@pytest.mark.once
@pytest.mark.parametrize("isolation", ["1", "0"])
def test_a_module_that_is_malformed_is_an_error_with_its_words(isolation, monkeypatch, capfd):
    traced = driver.trace_source

    def trace(*args, on_session, **more):
        traced(*args, on_session=on_session, **more)
        return Malformed()

    monkeypatch.setenv("GLUON_COMPILE_ISOLATION", isolation)
    monkeypatch.setattr(driver, "trace_source", trace)
    with pytest.raises(StageError, match="rejects the module of fine") as error:
        compile(fine, "sm_90", signature={"x": "*i32"}, maxnreg=40)
    assert "'tt.store' op is malformed" in error.value.diagnostics
    assert "malformed" not in capfd.readouterr().err
