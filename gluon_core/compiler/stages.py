"""Running the stages of a pipeline so that nothing they do can end the process or reach stderr.

The compilers under us abort on some inputs. Where a backend says so (`Backend.isolate`) its stages
run in a forked child on the module traced by the parent; the child hands texts and metadata back
through a pipe and never touches a device. `GLUON_COMPILE_ISOLATION=0` keeps them in the process.
"""

from __future__ import annotations

import contextlib
import linecache
import os
import pickle
import re
import select
import signal
import sys
import tempfile
import threading
import time
import traceback
import warnings
from dataclasses import dataclass, field
from typing import Any, Callable, Iterator, Mapping, Optional, Sequence

from gluon_core import _triton
from gluon_core._triton.capture import captured
from gluon_core.contract.backend import Stage
from gluon_core.errors import GluonError, LayoutError, LimitError, SourceSpan, StageError

__all__ = ["Result", "isolation_enabled", "run_stages"]

# Where a user asked Triton to print, what the stages say goes through.
_TALKATIVE = (
    "MLIR_ENABLE_DUMP",
    "LLVM_IR_ENABLE_DUMP",
    "MLIR_ENABLE_TIMING",
    "LLVM_ENABLE_TIMING",
    "MLIR_ENABLE_REMARK",
    "MLIR_ENABLE_DIAGNOSTICS",
    "TRITON_ENABLE_LLVM_DEBUG",
    "TRITON_LLVM_DEBUG_ONLY",
    "NVPTX_ENABLE_DUMP",
    "AMDGCN_ENABLE_DUMP",
    "TRITON_DUMP_PTXAS_LOG",
    "TRITON_KERNEL_OVERRIDE",
)

# One compilation forks at a time, so that no thread of ours is inside LLVM when it happens.
_fork_lock = threading.RLock()

Override = Callable[[str, Any], Optional[Any]]


@dataclass
class Result:
    """What a pipeline made.

    Args:
        asm: stage -> text or bytes (or what a backend that is not cacheable returned).
        metadata: what the stages added.
        ends: stage -> when it ended, seconds of `time.time()`.
        diagnostics: what the compilers printed.
    """

    asm: dict[str, Any]
    metadata: dict[str, Any]
    ends: list[tuple[str, float]] = field(default_factory=list)
    diagnostics: str = ""


def isolation_enabled() -> bool:
    """Whether stages may run in a child process here."""
    return hasattr(os, "fork") and os.environ.get("GLUON_COMPILE_ISOLATION", "1") not in (
        "0",
        "off",
        "false",
    )


def _timeout() -> float:
    return float(os.environ.get("GLUON_COMPILE_TIMEOUT", "600"))


def run_stages(
    stages: Sequence[Stage],
    module: Any,
    metadata: Mapping[str, Any],
    *,
    what: str,
    isolate: bool,
    as_text: bool,
    override: Optional[Override] = None,
) -> Result:
    """Run `stages` on `module`.

    Args:
        metadata: what the stages start from; it is not changed.
        what: the kernel and target, for errors.
        isolate: run them in a child process, where the platform can.
        as_text: keep what stages return as text or bytes, not as the objects themselves.
        override: `override(stage, result)` may replace a result; None keeps it.

    Raises:
        StageError: a stage failed, was killed or took too long; with what it said and a reproducer.
        LimitError: a stage found that the kernel does not fit.
        LayoutError: nothing determines an AutoLayout of the kernel.
    """
    job = _Job(list(stages), module, dict(metadata), what, as_text, override)
    with _fork_lock:
        if isolate and isolation_enabled():
            return job.in_child()
        return job.in_process()


# The compiler's words where nothing that an AutoLayout meets says what it is.
_UNDETERMINED = re.compile(
    r"^(?P<file>.+?):(?P<line>\d+):(?P<column>\d+): error: .*Failed to infer return type", re.M
)


def _undetermined_layout(found: re.Match[str]) -> LayoutError:
    file, line, column = found["file"], int(found["line"]), int(found["column"])
    text = linecache.getline(file, line).rstrip("\n")
    return LayoutError(
        "nothing determines the layout of this tensor",
        expected="a layout, or an op with a tensor that has one",
        got="an AutoLayout",
        remedy="Give it a layout where it is made, or use gl.set_auto_layout.",
        span=SourceSpan(file, line, column - 1, None, text or None),
    )


class _Job:
    def __init__(
        self,
        stages: list[Stage],
        module: Any,
        metadata: dict[str, Any],
        what: str,
        as_text: bool,
        override: Optional[Override],
    ):
        self.stages = stages
        self.module = module
        self.metadata = metadata
        self.what = what
        self.as_text = as_text
        self.override = override
        self.current = stages[0].name if stages else "none"

    # -- the work itself ---------------------------------------------------------------------------

    def steps(self) -> Result:
        result = Result({}, self.metadata)
        value = self.module
        for stage in self.stages:
            self.current = stage.name
            self.entering(stage.name, value)
            value = stage.run(value, result.metadata)
            replaced = self.override(stage.name, value) if self.override else None
            value = value if replaced is None else replaced
            keep = value if isinstance(value, (bytes, str)) or not self.as_text else str(value)
            result.asm[stage.name] = keep
            result.ends.append((stage.name, time.time()))
        return result

    def entering(self, name: str, value: Any) -> None:
        """Called before a stage, with its input."""

    def failure(self, message: str, said: str, reproducer: Optional[str]) -> GluonError:
        undetermined = _UNDETERMINED.search(said)
        if undetermined:
            return _undetermined_layout(undetermined)
        return _triton.stage_error(
            StageError(
                f"compiling {self.what} failed in stage {self.current}: {message}",
                diagnostics=said.strip(),
                reproducer=reproducer,
            )
        )

    # -- in this process ---------------------------------------------------------------------------

    def in_process(self) -> Result:
        with captured() as output:
            try:
                result = self.steps()
                problem = None
            except Exception as error:
                problem = error
        said = output.text()
        if problem is None:
            result.diagnostics = said
            _pass_on(said)
            return result
        if isinstance(problem, LimitError):
            raise _triton.limit_error(problem) from problem.__cause__
        if isinstance(problem, GluonError):
            raise problem
        raise self.failure(_describe(problem), said, self._saved(self._input_text())) from problem

    def _input_text(self) -> Optional[str]:
        if not self.as_text:
            return None
        try:
            return str(self.module)
        except Exception:  # a module that a failed pass left unprintable
            return None

    def _saved(self, text: Optional[str], suffix: str = "ttgir") -> Optional[str]:
        if not text:
            return None
        handle, path = tempfile.mkstemp(prefix="gluon-reproducer-", suffix=f".{suffix}")
        with os.fdopen(handle, "w") as file:
            file.write(text)
        return path

    # -- in a child --------------------------------------------------------------------------------

    def in_child(self) -> Result:
        text = self._input_text()
        with tempfile.TemporaryFile() as output:
            read, write = os.pipe()
            for stream in (sys.stdout, sys.stderr):
                with contextlib.suppress(Exception):
                    stream.flush()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)  # 3.12: threads and fork
                pid = os.fork()
            if pid == 0:
                self._child(read, write, output.fileno())  # never returns
            os.close(write)
            data, ended = self._wait(pid, read)
            output.seek(0)
            said = output.read().decode(errors="replace")
        messages: list[tuple[str, Any]] = list(_unpickled(data))
        for kind, value in messages:
            if kind == "stage":
                self.current = value
        final: tuple[str, Any] = messages[-1] if messages else ("none", None)
        if final[0] == "done":
            result: Result = final[1]
            result.diagnostics = said
            _pass_on(said)
            return result
        if final[0] == "limit":
            raise _triton.limit_error(final[1])
        if final[0] == "gluon":
            raise final[1]
        reproducer = self._saved(text)
        if final[0] == "error":
            message, detail = final[1]
            raise self.failure(message, "\n".join(filter(None, (said, detail))), reproducer)
        raise self.failure(ended, said, reproducer)

    def _child(self, read: int, write: int, output: int) -> None:
        """The child's whole life: no cleanup of the parent's may run in it."""
        try:
            os.setpgid(0, 0)  # so that what it starts, such as ptxas, ends with it
            os.close(read)
            for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGABRT, signal.SIGSEGV):
                with contextlib.suppress(Exception):
                    signal.signal(signum, signal.SIG_DFL)
            with contextlib.suppress(Exception):
                import faulthandler

                faulthandler.disable()  # a crash here is the parent's to report
            os.dup2(output, 1)
            os.dup2(output, 2)
            # pytest and notebooks replace these; the child's words belong into the file
            sys.stdout = os.fdopen(os.dup(1), "w", buffering=1)
            sys.stderr = os.fdopen(os.dup(2), "w", buffering=1)
            pipe = os.fdopen(write, "wb")

            def tell(kind: str, value: Any) -> None:
                pickle.dump((kind, value), pipe)
                pipe.flush()

            self.entering = lambda name, value: tell("stage", name)  # type: ignore[method-assign]  # in the child
            try:
                tell("done", self.steps())
            except LimitError as error:
                tell("limit", error)
            except GluonError as error:
                tell("gluon", error)
            except BaseException as error:
                detail = "" if isinstance(error, RuntimeError) else traceback.format_exc()
                tell("error", (_describe(error), detail))
            with contextlib.suppress(Exception):
                sys.stdout.flush()
                sys.stderr.flush()
        finally:
            os._exit(0)

    def _wait(self, pid: int, read: int) -> tuple[bytes, str]:
        """All that the child sent, and in words how it ended."""
        deadline = time.monotonic() + _timeout()
        chunks: list[bytes] = []
        late = False
        poll = select.poll()  # select() cannot take descriptors beyond 1023
        poll.register(read, select.POLLIN | select.POLLHUP)
        try:
            while True:
                left = deadline - time.monotonic()
                if left <= 0 or not poll.poll(left * 1000):
                    late = True
                    break
                chunk = os.read(read, 1 << 16)
                if not chunk:
                    break
                chunks.append(chunk)
        except BaseException:
            _kill(pid)
            os.waitpid(pid, 0)
            raise
        finally:
            os.close(read)
        if late:
            _kill(pid)
        _, status = os.waitpid(pid, 0)
        if late:
            return b"", f"it took more than {_timeout():g} s (GLUON_COMPILE_TIMEOUT) and was ended"
        if os.WIFSIGNALED(status):
            name = signal.Signals(os.WTERMSIG(status)).name
            return b"".join(chunks), f"the compiler was killed by {name}"
        return b"".join(chunks), f"the compiler ended with status {os.WEXITSTATUS(status)}"


def _kill(pid: int) -> None:
    """End a child and what it started."""
    with contextlib.suppress(OSError):
        os.killpg(pid, signal.SIGKILL)
    with contextlib.suppress(OSError):
        os.kill(pid, signal.SIGKILL)


def _unpickled(data: bytes) -> Iterator[tuple[str, Any]]:
    import io

    stream = io.BytesIO(data)
    while True:
        try:
            yield pickle.load(stream)
        except (EOFError, pickle.UnpicklingError):
            return


def _describe(error: BaseException) -> str:
    text = str(error).strip() or "no message"
    return text if isinstance(error, RuntimeError) else f"{type(error).__name__}: {text}"


def _pass_on(said: str) -> None:
    if said and any(
        os.environ.get(name, "0") not in ("", "0", "false", "off") for name in _TALKATIVE
    ):
        sys.stderr.write(said)
