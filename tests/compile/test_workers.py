"""The processes that compile: warm, replaced when they die, gone when they should be."""

import os
import pickle
import select
import signal
import subprocess
import sys
import textwrap
import threading
import time
from dataclasses import replace

import pytest

import gluon_core as gluon
from gluon_core import _triton, processes
from gluon_core.compiler import compile_source
from gluon_core.errors import OptionError, StageError
from gluon_core.plugin.compiler import Stage
from gluon_core.registry.load import registry
from tests.compile.processes import put, stage_of, workers_now
from tests.core import kernels_for_runtime as kernels
from tests.core.kernels_for_runtime import L32, L64

pytestmark = [
    pytest.mark.once,
    pytest.mark.sampled(8),
    pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork"),
    pytest.mark.usefixtures("alone"),
]


# -- its kernels are those of this process ------------------------------------------------------


@pytest.mark.parametrize("target, layout", [("sm_75", L32), ("sm_90", L32), ("gfx942", L64)])
def test_a_warm_process_agrees_with_this_one(target, layout, monkeypatch, tmp_path):
    def compiled(folder):
        monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / folder))
        return gluon.compile(
            kernels.scale,
            target=target,
            signature={"x": "*fp32:16", "y": "*fp32:16", "n": "i32", "factor": "fp32"},
            constexprs={"BLOCK": 256, "LAYOUT": layout},
        )

    warm = compiled("warm")
    assert len(workers_now()) == 1
    monkeypatch.setenv("GLUON_COMPILE_ISOLATION", "0")
    here = compiled("here")
    assert list(warm.asm) == list(here.asm)
    for stage in here.asm:
        assert warm.asm[stage] == here.asm[stage], stage
    assert warm.metadata == here.metadata


def test_one_process_serves_kernel_after_kernel():
    put(1.0)
    first = workers_now()
    put(2.0)
    assert len(first) == 1 and workers_now() == first


def test_two_vendors_take_turns():
    """Each has a process, which is not ended for the other's sake."""
    put(1.0)
    put(1.0, "gfx942")
    both = set(workers_now())
    put(2.0)
    put(2.0, "gfx942")
    assert len(both) == 2 and set(workers_now()) == both


# -- changes since it was forked ----------------------------------------------------------


@pytest.mark.parametrize("change", ["environment", "folder", "knob", "compiler"])
def test_a_change_of_the_surroundings_is_seen(change, monkeypatch, tmp_path):
    put(1.0)
    before = workers_now()
    if change == "environment":
        monkeypatch.setenv("DISABLE_LLVM_OPT", "1")
    elif change == "folder":
        monkeypatch.chdir(tmp_path)
    elif change == "knob":
        monkeypatch.setattr(_triton.knobs, "propagate_env", False)
        monkeypatch.setattr(_triton.knobs.nvidia, "dump_nvptx", True, raising=False)
        _triton.knobs.compilation.disable_line_info = True
    else:
        stage_of(monkeypatch, "ptx", lambda: print("a word of the new one"))
    try:
        kernel = put(2.0)
        assert set(workers_now()) > set(before)
        if change == "compiler":
            assert "a word of the new one" in kernel.diagnostics
        if change == "environment":
            assert kernel.asm["llir"] != put(2.0, num_warps=2).asm["llir"]
    finally:
        vars(_triton.knobs.compilation).pop("disable_line_info", None)


def test_stages_that_a_hook_changes_run_as_the_hook_says_now(monkeypatch):
    put(1.0)
    words = ["first"]

    def hook(self=None, stages=None, *rest):
        if stages is None:
            return words[-1], words[-1]
        real = stages["ptx"]
        stages["ptx"] = lambda source, metadata: real(source, metadata) + f"// {words[-1]}\n"
        return None

    monkeypatch.setattr(_triton.knobs.runtime, "add_stages_inspection_hook", hook)
    assert put(2.0).asm["ptx"].endswith("// first\n")
    words.append("second")
    assert put(2.0).asm["ptx"].endswith("// second\n")


def test_a_backend_that_only_shares_its_name_compiles_by_itself():
    from gluon_nvidia.backend import NVIDIA, NvidiaCompiler

    class Mine(NvidiaCompiler):
        def pipeline(self, target, options):
            *stages, last = super().pipeline(target, options)
            return (*stages, Stage(last.name, lambda s, m: last.run(s, m) + b"mine"))

    put(1.0)
    target = registry().target("sm_80")
    source = gluon.GluonASTSource(kernels.put, {"y": "*fp32"}, {"VALUE": 3.0})
    mine = replace(NVIDIA, compiler=Mine())
    compiled = compile_source(source, target, mine, mine.compiler.options(target, {}))
    assert compiled.kernel.endswith(b"mine")


def test_options_that_cannot_be_sent_are_compiled_all_the_same(monkeypatch):
    put(1.0)
    monkeypatch.setattr(
        pickle,
        "dumps",
        lambda value, *a, real=pickle.dumps, **k: _refuse(value) or real(value, *a, **k),
    )
    assert put(2.0).asm["cubin"][:4] == b"\x7fELF"


def _refuse(value):
    if isinstance(value, tuple) and len(value) == 6:  # a job
        raise TypeError("cannot pickle that")


# -- ends ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGABRT, signal.SIGSEGV])
def test_a_process_that_dies_at_work_is_an_error_and_replaced(end, monkeypatch, kept_reproducers):
    with monkeypatch.context() as broken:
        stage_of(broken, "ptx", lambda: os.kill(os.getpid(), end))
        with pytest.raises(StageError, match=f"stage ptx: .*killed by {end.name}") as caught:
            put(1.0)
    kept_reproducers.append(caught.value)
    assert "tt.func" in open(caught.value.reproducer).read()
    assert workers_now() == []
    assert put(1.0).asm["cubin"][:4] == b"\x7fELF"


def test_a_process_that_died_while_idle_is_replaced():
    put(1.0)
    (pid,) = workers_now()
    os.kill(pid, signal.SIGKILL)
    put(2.0)
    (other,) = workers_now()
    assert other != pid


def test_an_idle_process_ends_by_itself(monkeypatch):
    monkeypatch.setattr(processes, "IDLE", 0.1)
    put(1.0)
    (pid,) = workers_now()
    assert _gone(pid, 10), "it is still there"
    put(2.0)


def test_a_process_that_hangs_is_ended(monkeypatch, kept_reproducers):
    stage_of(monkeypatch, "ptx", lambda: time.sleep(60))
    monkeypatch.setenv("GLUON_COMPILE_TIMEOUT", "1")
    begun = time.monotonic()
    with pytest.raises(StageError, match="stage ptx: .*1 s .GLUON_COMPILE_TIMEOUT") as caught:
        put(1.0)
    kept_reproducers.append(caught.value)
    assert time.monotonic() - begun < 20 and workers_now() == []


def test_a_process_that_is_stopped_is_late_too(monkeypatch, kept_reproducers):
    put(1.0)
    (pid,) = workers_now()
    os.kill(pid, signal.SIGSTOP)
    monkeypatch.setenv("GLUON_COMPILE_TIMEOUT", "1")
    with pytest.raises(StageError, match="GLUON_COMPILE_TIMEOUT") as caught:
        put(2.0)
    kept_reproducers.append(caught.value)
    assert _gone(pid, 5)


@pytest.mark.parametrize(
    "garbage, words",
    [
        (b"Segmentation fault, I think\n", "malformed answer"),
        (processes._HEADER.pack(b"gluo", 5) + b"hello", "cannot be read"),
        (processes._HEADER.pack(b"gluo", 1 << 60), "malformed answer"),
        (processes._HEADER.pack(b"gluo", 100) + b"cut", "ended with status 7"),
    ],
)
def test_garbage_in_the_pipe_is_an_error(garbage, words, monkeypatch, kept_reproducers):
    def write(self):
        link = next(
            value
            for frame in _frames()
            for value in frame.f_locals.values()
            if isinstance(value, processes.Link)
        )
        os.write(link._answers, garbage)
        os._exit(7)

    stage_of(monkeypatch, "ptx", lambda: write(None))
    with pytest.raises(StageError, match=words) as caught:
        put(1.0)
    kept_reproducers.append(caught.value)
    assert workers_now() == []


def _frames():
    frame = sys._getframe()
    while frame is not None:
        yield frame
        frame = frame.f_back


def test_no_process_to_be_had_is_an_error(monkeypatch):
    def refuse():
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(os, "fork", refuse)
    with pytest.raises(StageError, match="temporarily unavailable.*GLUON_COMPILE_ISOLATION=0"):
        put(1.0)


@pytest.mark.parametrize("text", ["soon", "-1", "nan"])
def test_a_limit_that_is_no_time(text, monkeypatch):
    monkeypatch.setenv("GLUON_COMPILE_TIMEOUT", text)
    with pytest.raises(OptionError, match="GLUON_COMPILE_TIMEOUT.*seconds"):
        put(1.0)


def _gone(pid, seconds):
    """Return True if the process is gone, or a zombie, within some time."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        try:
            with open(f"/proc/{pid}/stat") as file:
                if file.read().rpartition(")")[2].split()[0] == "Z":
                    return True
        except OSError:
            return True
        time.sleep(0.05)
    return False


# -- next to forks, threads, signals and the interpreter's end ---------------------------------------


HEAD = """
import os, signal, sys, threading, time
import gluon_core as gluon
from gluon_core.compiler import stages
from tests.core import kernels_for_runtime as kernels
def put(value):
    return gluon.compile(kernels.put, target="sm_80", signature={"y": "*fp32"}, constexprs={"VALUE": value})
def pids():
    return stages._pool.pids()
"""


def script(body, **more):
    root = os.path.dirname(os.path.dirname(gluon.__file__))
    return subprocess.run(
        [sys.executable, "-W", "ignore", "-c", HEAD + textwrap.dedent(body)],
        capture_output=True,
        text=True,
        timeout=100,
        cwd=root,
        **more,
    )


@pytest.mark.once
def test_a_fork_of_the_user_has_its_own_process():
    done = script("""
        put(1.0)
        mine = pids()
        child = os.fork()
        if child == 0:
            assert pids() == []
            put(2.0)
            assert pids() and pids() != mine
            os._exit(5)
        put(3.0)
        assert pids() == mine
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 5
        put(4.0)
        assert pids() == mine
        print("well")
    """)
    assert done.stdout == "well\n", done.stderr


@pytest.mark.once
@pytest.mark.parametrize("end", ["sys.exit(0)", "os._exit(0)", "os.kill(os.getpid(), 9)"])
def test_nothing_is_left_when_the_interpreter_ends(end):
    done = script(f"""
        put(1.0)
        print(*pids(), flush=True)
        {end}
    """)
    (pid,) = map(int, done.stdout.split())
    assert _gone(pid, 10)


def test_open_descriptors_are_closed():
    """A pipe of the user's reports its end, though a process was forked while it was open."""
    read, write = os.pipe()
    put(1.0)
    assert workers_now()
    os.close(write)
    assert select.select([read], [], [], 5)[0], "the process that compiles holds it open"
    assert os.read(read, 1) == b""
    os.close(read)


def test_old_descriptors_do_not_write_into_new_files(tmp_path, monkeypatch):
    """A logger that is used within a stage holds a number, which must not be another file's now."""
    log = open(tmp_path / "log", "w")  # noqa: SIM115

    def write():
        with open(tmp_path / "new", "w") as new:
            log.write("a word for the log")
            log.flush()
            new.write("new")

    stage_of(monkeypatch, "ptx", write)
    put(1.0)
    log.close()
    assert (tmp_path / "new").read_text() == "new" and (tmp_path / "log").read_text() == ""


def test_no_descriptor_is_leaked(monkeypatch, kept_reproducers):
    put(1.0)
    before = len(os.listdir("/proc/self/fd"))
    for value in range(2, 5):
        os.kill(workers_now()[0], signal.SIGKILL)
        put(float(value))
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.once
def test_an_interrupt_ends_the_compilation_and_its_process():
    done = script("""
        signal.signal(signal.SIGINT, signal.default_int_handler)
        from triton.backends.nvidia.compiler import CUDABackend
        real = CUDABackend.make_ptx
        CUDABackend.make_ptx = lambda *a, **k: time.sleep(60)
        def interrupt():
            while not pids():
                time.sleep(0.01)
            time.sleep(0.3)
            os.kill(os.getpid(), signal.SIGINT)
        threading.Thread(target=interrupt).start()
        begun = time.monotonic()
        try:
            put(1.0)
        except KeyboardInterrupt:
            print("interrupted", time.monotonic() - begun < 30, pids())
        CUDABackend.make_ptx = real
        print(put(1.0).asm["cubin"][:4] == b"\\x7fELF")
    """)
    assert done.stdout == "interrupted True []\nTrue\n", done.stderr


def test_threads_compile_at_once(monkeypatch):
    monkeypatch.setenv("GLUON_COMPILE_WORKERS", "2")
    kernels, seen = {}, set()

    def work(start):
        for value in range(start, start + 3):
            kernels[value] = put(float(value))
            seen.update(workers_now())

    threads = [threading.Thread(target=work, args=(10 * i,)) for i in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(kernels) == 9 and len(seen) == 2
    for value, kernel in kernels.items():
        assert kernel.src.constants[(1,)] == float(value)
    assert len({kernel.asm["cubin"] for kernel in kernels.values()}) == 9
