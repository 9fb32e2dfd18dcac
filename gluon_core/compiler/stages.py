"""Running the stages of a pipeline so that nothing they do can end the process or reach stderr.

The compilers under us abort on some inputs. Where a backend says so (`Compiler.isolate`) its stages
run in another process on the module traced here; it hands texts and metadata back through a pipe and
never touches a device. That is a warm process (`workers`) which parses the module's text and asks the
backend for the stages itself; work that has no such description, such as stages that a user's hook
changed, runs in a child forked for it. `GLUON_COMPILE_ISOLATION=0` keeps the stages in this process.
"""

from __future__ import annotations

import linecache
import operator
import os
import pickle
import re
import sys
import tempfile
import time
import traceback
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Callable, Iterator, Mapping, Optional, Sequence

from gluon_core import _triton
from gluon_core._triton.capture import captured
from gluon_core.compiler.complaints import bad_assembly, blamed, left_out, refused
from gluon_core.compiler.workers import Pool, timeout
from gluon_core.errors import GluonError, LayoutError, LimitError, SourceSpan, StageError
from gluon_core.plugin.backend import Backend
from gluon_core.plugin.compiler import Stage
from gluon_core.plugin.targets import Target
from gluon_core.processes import Ended, Link, Process, fork_lock
from gluon_core.registry.load import registry
from gluon_core.registry.verify import checked

__all__ = ["Recipe", "Result", "isolation_enabled", "processes", "run_stages"]

# Where a user asked Triton to print, the output of stages goes through.
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

Override = Callable[[str, Any], Optional[Any]]


@dataclass
class Result:
    """Hold the outputs of a pipeline.

    Args:
        asm: stage -> text or bytes (or the result of a backend that is not cacheable).
        metadata: additions of the stages.
        ends: stage -> when it ended, seconds of `time.monotonic()`.
        diagnostics: output of the compilers.
    """

    asm: dict[str, Any]
    metadata: dict[str, Any]
    ends: list[tuple[str, float]] = field(default_factory=list)
    diagnostics: str = ""


def isolation_enabled() -> bool:
    """Return True if stages may run in a child process here."""
    return hasattr(os, "fork") and os.environ.get("GLUON_COMPILE_ISOLATION", "1") not in (
        "0",
        "off",
        "false",
    )


def run_stages(
    stages: Sequence[Stage],
    module: Any,
    metadata: Mapping[str, Any],
    *,
    subject: str,
    isolate: bool,
    as_text: bool,
    override: Optional[Override] = None,
    recipe: Optional[Recipe] = None,
    verify: Callable[[], None] = lambda: None,
) -> Result:
    """Run `stages` on `module`.

    Args:
        metadata: input of the stages; it is not changed.
        subject: the kernel and target, for errors.
        isolate: run them in a child process, where the platform can.
        as_text: keep what stages return as text or bytes, not as the objects themselves.
        override: `override(stage, result)` may replace a result; None keeps it.
        recipe: how another process makes the stages; None for one that is forked to run these.
        verify: raises where `module` is malformed; not called where a process parses its text.

    Raises:
        StageError: a stage failed, was killed or took too long; with its output and a reproducer.
        LimitError: a stage found that the kernel does not fit.
        LayoutError: nothing determines an AutoLayout of the kernel.
    """
    job = _Job(list(stages), module, dict(metadata), subject, as_text, override)
    if isolate and isolation_enabled():
        return job.in_child(recipe if as_text and override is None else None, verify)
    verify()
    with fork_lock:
        return job.in_process()


# The compiler's words where no layout next to an AutoLayout determines it.
_UNDETERMINED = re.compile(
    r"^(?P<file>.+?):(?P<line>\d+):(?P<column>\d+): error: .*Failed to infer return type", re.M
)


def _undetermined_layout(match: re.Match[str]) -> LayoutError:
    file, line, column = match["file"], int(match["line"]), int(match["column"])
    text = linecache.getline(file, line).rstrip("\n")
    return LayoutError(
        "nothing determines the layout of this tensor",
        expected="a layout, or an op with a tensor that has one",
        got="an AutoLayout",
        remedy="Give it a layout, use gl.set_auto_layout, or mark the kernel layouts='auto'.",
        span=SourceSpan(file, line, column - 1, None, text or None),
    )


class _Job:
    def __init__(
        self,
        stages: list[Stage],
        module: Any,
        metadata: dict[str, Any],
        subject: str,
        as_text: bool,
        override: Optional[Override],
    ):
        self.stages = stages
        self.module = module
        self.metadata = metadata
        self.subject = subject
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
            value = self._run(stage, value, result.metadata)
            replaced = self.override(stage.name, value) if self.override else None
            value = value if replaced is None else replaced
            keep = value if isinstance(value, (bytes, str)) or not self.as_text else str(value)
            result.asm[stage.name] = keep
            result.ends.append((stage.name, time.monotonic()))
        return result

    def _run(self, stage: Stage, value: Any, metadata: dict[str, Any]) -> Any:
        try:
            return stage.run(value, metadata)
        except GluonError:
            raise
        except Exception as error:
            report = refused(error, value) if isinstance(value, str) else None
            if report is None:
                raise
            raise report from None

    def entering(self, name: str, value: Any) -> None:
        """Record the begin of a stage, with its input."""

    def failure(self, message: str, output: str, reproducer: Optional[str]) -> GluonError:
        undetermined = _UNDETERMINED.search(output)
        if undetermined:
            return _undetermined_layout(undetermined)
        unknown = bad_assembly(output, self._input_text)
        if unknown is not None:
            return self._named(unknown)
        words, span, remedy = blamed(output, self._input_text)
        return _triton.caught_as(
            StageError(
                f"compiling {self.subject} failed in stage {self.current}: {words or message}",
                diagnostics=output.strip(),
                reproducer=reproducer,
                span=span,
                remedy=remedy,
            )
        )

    def _named(self, error: StageError) -> StageError:
        """Return the error of a stage that does not know whose it is."""
        error.message = f"compiling {self.subject} failed in stage {self.current}: {error.message}"
        return _triton.caught_as(error)

    # -- in this process ---------------------------------------------------------------------------

    def in_process(self) -> Result:
        text = self._input_text()  # stages change the module
        with captured() as output:
            try:
                result = self.steps()
                problem = None
            except Exception as error:
                problem = error
        printed = output.text()
        if problem is None:
            return self._done(result, printed, text)
        if isinstance(problem, LimitError):
            raise _triton.caught_as(problem) from problem.__cause__
        if isinstance(problem, StageError):
            raise self._named(problem)
        if isinstance(problem, GluonError):
            raise problem
        raise self.failure(_describe(problem), printed, self._saved(text)) from problem

    def _done(self, result: Result, printed: str, text: Optional[str]) -> Result:
        lost = left_out(text, result.asm)
        if lost is not None:
            raise self._named(lost)
        result.diagnostics = printed
        _pass_on(printed)
        return result

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

    # -- in another process ------------------------------------------------------------------------

    def in_child(self, recipe: Optional[Recipe], verify: Callable[[], None]) -> Result:
        """Work in a warm process, where it can get a description of the job; else in one forked for it."""
        text = self._input_text()
        timeout()  # whether it is one, before anything is begun
        if recipe is not None and text is not None:
            job = recipe.packed(text, self.metadata)
            if job is not None:
                result = self._by_worker(recipe, job, text)
                if result is not None:
                    return result
        verify()
        deadline = time.monotonic() + timeout()
        process = self._begun(lambda: Process(self._tell, "the compiler"))
        try:
            result = self._answer(process, text, deadline)
            assert result is not None
            return result
        except Ended as ended:
            raise self._ended(ended, process, text) from ended
        finally:
            process.end()

    def _begun(self, begin: Callable[[], Process]) -> Process:
        try:
            return begin()
        except OSError as error:
            raise self.failure(
                f"no process can be started for the compiler ({error}); "
                "GLUON_COMPILE_ISOLATION=0 compiles in this one",
                "",
                None,
            ) from error

    def _by_worker(self, recipe: Recipe, job: bytes, text: str) -> Optional[Result]:
        """Return the result, or None where a process that was forked before cannot make it."""
        for _ in range(3):  # one that was idle may just have ended
            process = self._begun(lambda: _pool.take(recipe.surroundings))
            deadline = time.monotonic() + timeout()  # waiting for a process does not count
            usable = False
            try:
                process.send(job, deadline)
                _triton.use_spare_time(recipe.backend.compiler.load_dialects)
                result = self._answer(process, text, deadline)
                usable = True
                return result
            except Ended as ended:
                if process.noted() or time.monotonic() >= deadline:
                    raise self._ended(ended, process, text) from ended
            except GluonError as error:
                usable = not isinstance(error.__cause__, Ended)
                raise
            finally:
                _pool.give(process, usable)
        return None

    def _ended(self, ended: Ended, process: Process, text: Optional[str]) -> GluonError:
        self.current = process.noted() or self.current
        how = ended.how
        if ended.hung:
            how = f"it took more than {timeout():g} s (GLUON_COMPILE_TIMEOUT) and was ended"
        return self.failure(how, process.output(), self._saved(text))

    def _answer(self, process: Process, text: Optional[str], deadline: float) -> Optional[Result]:
        """Return the message of a process for this job, None where it cannot begin with it.

        Raises:
            Ended: it will say nothing more.
            GluonError: the job failed.
        """
        kind, value = process.receive(deadline)
        self.current = process.noted() or self.current
        printed = process.output()
        if kind == "done":
            result: Result = value
            return self._done(result, printed, text)
        if kind == "limit":
            raise _triton.caught_as(value)
        if kind == "gluon":
            raise self._named(value) if isinstance(value, StageError) else value
        if kind == "error":
            message, detail = value
            raise self.failure(
                message, "\n".join(filter(None, (printed, detail))), self._saved(text)
            )
        if kind == "cannot":
            return None
        raise Ended(f"the compiler sent a malformed answer ({kind!r})")

    def _tell(self, link: Link) -> None:
        """Do the work in the child and send the result."""
        self.entering = lambda name, value: link.note(name)  # type: ignore[method-assign]  # in the child
        try:
            link.answer("done", self.steps())
        except LimitError as error:
            link.answer("limit", error)
        except GluonError as error:
            link.answer("gluon", error)
        except BaseException as error:
            detail = "" if isinstance(error, RuntimeError) else traceback.format_exc()
            link.answer("error", (_describe(error), detail))
        for stream in (sys.stdout, sys.stderr):
            stream.flush()


class Recipe:
    """Describe how a process that knows the backends makes the stages of a compilation by itself.

    Args:
        backend: a registered backend.
        stages: those of its pipeline that are to run, from the first on.
    """

    def __init__(self, backend: Backend, target: Target, options: Any, stages: Sequence[Stage]):
        self.backend = backend
        self._header = (backend.name, target, options, len(stages))
        kept: list[Any] = [backend, *registry().backends.values()]
        for stage in stages:
            _implementation(stage.run, kept, 3)
        # Kept are the objects: an id alone may come again.
        self.surroundings = Surroundings(kept, backend.compiler.process(target))

    @classmethod
    def of(
        cls, backend: Backend, target: Target, options: Any, stages: Sequence[Stage]
    ) -> Optional[Recipe]:
        """Return the recipe, None where code of the user's changes stages, or for a backend that
        another process would not find by its name."""
        if registry().backends.get(backend.name) is not backend:
            return None
        if _triton.knobs.runtime.add_stages_inspection_hook is not None:
            return None
        return cls(backend, target, options, stages)

    def packed(self, text: str, metadata: Mapping[str, Any]) -> Optional[bytes]:
        """Return the message to a process; None where it cannot be written down."""
        try:
            return pickle.dumps((*self._header, text, metadata), pickle.HIGHEST_PROTOCOL)
        except Exception:
            return None


def _implementation(run: Any, kept: list[Any], depth: int) -> None:
    """Gather the code that `run` consists of: a test or a user may have replaced it meanwhile."""
    code = getattr(run, "__code__", None)
    if code is not None:
        kept.append(code)
        kept.extend(_code_in(run.__globals__, run.__globals__))
        for cell in (run.__closure__ or ()) if depth else ():
            try:
                held = cell.cell_contents
            except ValueError:
                continue
            if callable(held):
                _implementation(held, kept, depth - 1)
            else:
                for base in type(held).__mro__[:-1]:
                    kept.extend(_code_in(base, vars(base)))


_looked: dict[int, tuple[Any, list[Any], list[Any]]] = {}


def _code_in(owner: Any, names: Mapping[str, Any]) -> list[Any]:
    """Return the code among the values of `names`, those of a module or a class; looked for again where
    one of the values is another."""
    values = list(names.values())
    known = _looked.get(id(owner))
    if known is not None and known[0] is owner and len(known[1]) == len(values):
        if all(map(operator.is_, known[1], values)):
            return known[2]
    codes = list(filter(_is_code, values))
    _looked[id(owner)] = owner, values, codes
    return codes


def _is_code(value: Any) -> bool:
    return callable(value) or isinstance(value, (staticmethod, classmethod, property))


class Surroundings:
    """Hold the state that a forked process has of this one and that may change here.

    Args:
        kept: objects that must be the same ones.
        process: the backend's answer for the target (`Compiler.process`).
    """

    def __init__(self, kept: list[Any], process: str):
        self._kept = kept
        try:
            folder = os.getcwd()
        except OSError:
            folder = ""
        environment = [pair for pair in os.environ.items() if pair[0] not in _INERT]
        self._values = (
            tuple(map(id, kept)),
            process,
            folder,
            environment,
            tuple(sys.path),
            _triton.invalidating_environment(),
            _triton.set_knobs(),
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Surroundings) and self._values == other._values

    __hash__ = None  # type: ignore[assignment]  # compared one by one


# Variables that test runners write into the environment before each test; and those that only the
# parent reads.
_INERT = (
    "PYTEST_CURRENT_TEST",
    "GLUON_COMPILE_TIMEOUT",
    "GLUON_COMPILE_WORKERS",
    "TRITON_CACHE_DIR",
)


def _serve(link: Link) -> None:
    """Do a warm process's whole work."""
    while True:
        try:
            job = link.next()
        except Exception as error:  # of a class that it does not know, say
            link.answer("cannot", str(error))
            continue
        if job is None:
            return
        try:
            name, target, options, count, text, metadata = job
            backend = registry().backend(name)
            stages = checked(backend, "pipeline", backend.compiler.pipeline(target, options))[
                :count
            ]
            context = _triton.ready_context(backend.compiler.load_dialects)
            module = _triton.parse_text(text, context)
        except Exception as error:
            link.answer("cannot", str(error))
            continue
        _Job(list(stages), module, metadata, "", True, None)._tell(link)
        del module, context, job
        _triton.use_spare_time(backend.compiler.load_dialects)  # while nobody waits


_pool = Pool(_serve)


@contextmanager
def processes(most: int, jobs: int = 0, asked: bool = False) -> Iterator[Callable[[], None]]:
    """Let this many processes compile at once meanwhile, if that is more than otherwise.

    Args:
        jobs: number of compilations; call the result when one is done.
        asked: as many processes as `most`, even where fewer would be done sooner.
    """
    before, _pool.most = (_pool.most, _pool.asked), max(most, _pool.most)
    _pool.asked = asked
    left = [jobs]
    _pool.left += jobs

    def done() -> None:
        if left[0]:
            left[0] -= 1
            _pool.left -= 1

    try:
        yield done
    finally:
        _pool.most, _pool.asked = before
        _pool.left -= left[0]


def _describe(error: BaseException) -> str:
    text = str(error).strip() or "no message"
    return text if isinstance(error, RuntimeError) else f"{type(error).__name__}: {text}"


def _pass_on(printed: str) -> None:
    if printed and any(
        os.environ.get(name, "0") not in ("", "0", "false", "off") for name in _TALKATIVE
    ):
        sys.stderr.write(printed)
