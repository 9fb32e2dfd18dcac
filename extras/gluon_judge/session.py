"""The candidate's process: load it, call it, and report what it did."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import sys
import tempfile
import time
import warnings
from collections import Counter
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, Callable, ContextManager, Iterator, Optional, Sequence

import torch
from torch._C import _len_torch_dispatch_stack
from torch.utils._python_dispatch import _pop_mode

from gluon_core.errors import GluonError
from gluon_core.plugin.paths import load_named
from gluon_core.processes import Link
from gluon_core.registry.load import registry
from gluon_core.simulation.evidence import Record, recording
from gluon_core.simulation.watch import Watch
from gluon_judge.confine import Layer, confine
from gluon_judge.guard import Guard, seal
from gluon_judge.interpreted import checked
from gluon_judge.messages import Call, Outcome, Packed, Sample, Spec
from gluon_judge.observe import Observer
from gluon_judge.operations import Operations, Streams, traced
from gluon_judge.orders import followed, reordered, skipped
from gluon_judge.snapshot import Snapshot
from gluon_judge.source import entry, load, signs
from gluon_judge.tensors import (
    fill,
    members,
    moved,
    pack,
    pack_values,
    storage_bytes,
    unpack,
    whole,
)
from gluon_judge.timing import Timer
from gluon_judge.wire import plain as plain_data
from gluon_judge.wire import restored

__all__ = ["probe", "work"]

_BURST, _BURST_AT_MOST = 1.0, 8.0  # seconds of repeated calls: of the processor, and of the clock
_PERTURB = -6  # M_PERTURB of mallopt
_system = ctypes.CDLL(None)
_now, _worked = time.monotonic, time.process_time  # before anybody replaces them
_KEPT = 4  # earlier results that later calls must not change
_ALLOWED = (
    "PATH", "LANG", "LC_ALL", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "LD_LIBRARY_PATH", "GLUON_TARGET", "PYTHONPATH",
    "CUDA_VISIBLE_DEVICES", "CUDA_HOME",
)  # fmt: skip


class Session:
    """One candidate in this process.

    Args:
        spec: of it.
    """

    def __init__(self, spec: Spec):
        self._spec = spec
        self._prepare()
        self._timer: Optional[Timer] = None
        self.layers: tuple[Layer, ...] = confine(spec.limits, spec.plan, self._begin_device)
        self._observer = Observer(spec.folder, spec.limits.readable, spec.secrets)
        self._guard = Guard(spec.folder, self._noted, self._signs, self._observer.imports)
        sys.meta_path.insert(0, self._guard)
        self._observer.install()
        self._streams = Streams() if torch.cuda.is_available() else None
        if any("compile" in text for text in spec.files.values()):
            with contextlib.suppress(ImportError, AttributeError):  # it replaces functions of torch
                import_module("torch._dynamo.mutation_guard").install_generation_tagging_init()
        self._snapshot = Snapshot(
            (
                __name__,
                Observer.__module__,
                f"{Observer.__module__}.Observer",
                pack.__module__,
                Snapshot.__module__,
            )  # fmt: skip
        )
        _hide()
        self._modes = _modes()
        self._function: Optional[Callable[..., Any]] = None
        self._values: list[Any] = []
        self._earlier: list[tuple[Any, bytes]] = []
        self._hidden: Counter[str] = Counter()

    def _noted(self, code: str, text: str, frame: Any, severity: str) -> None:
        self._observer.note(code, text, frame, severity)

    def _signs(self, text: str) -> None:
        for one in signs(text, ""):
            self._observer.note(
                one.code, f"{one.text}, in code built at run time", None, one.severity
            )

    def _begin_device(self) -> None:
        if self._spec.device != "cpu":
            self._timer = Timer()

    def _prepare(self) -> None:
        allowed = {name: os.environ[name] for name in _ALLOWED if name in os.environ}
        os.environ.clear()
        posix = sys.modules.get("posix")
        if posix is not None:
            vars(posix)["environ"].clear()  # the variables as they were, or the same dictionary
        os.environ.update(allowed)
        folder = self._spec.folder
        own = {
            name: folder
            for name in ("HOME", "TMPDIR", "TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR")
        }
        tempfile.tempdir = folder
        os.environ.update(own, GLUON_COMPILE_ISOLATION="0")
        for name, text in self._spec.files.items():
            path = Path(folder, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        os.chdir(folder)
        sys.path[:] = [folder, *(path for path in sys.path if self._holds_libraries(path))]
        sys.argv = [self._spec.main]

    def _holds_libraries(self, path: str) -> bool:
        """Return True for a folder to import from that the candidate may read, or that has such packages."""
        real = os.path.realpath(path)
        return any(
            real == one or real.startswith(one + os.sep) or os.path.dirname(one) == real
            for one in self._spec.limits.readable
        )

    def load(self) -> Outcome:
        """Load the candidate's file."""
        outcome = Outcome()
        path = os.path.join(self._spec.folder, self._spec.main)
        try:
            with self._counting(0xFF):
                values = load(path, Path(path).stem, self._guard)
            self._function = entry(values, self._spec.function, self._spec.main)
        except BaseException as error:
            cause = error.__cause__ or error
            outcome.error = self._described(cause)
        self._compare_functions()
        self._after(outcome)
        return outcome

    def several(self, calls: Sequence[Call]) -> list[Outcome]:
        """Load the candidate's file and make several calls; return the outcome of each."""
        outcomes = [self.load()]
        if outcomes[0].error is None:
            outcomes += map(self.call, calls)
        return outcomes

    @contextlib.contextmanager
    def _counting(self, byte: int, values: Sequence[Any] = ()) -> Iterator[Operations]:
        """Observe operations of torch, and fill new memory with a byte."""
        fixed = {
            one.untyped_storage().data_ptr(): (f"argument {position + 1}", pack(one).data)
            for position, one in enumerate(values[: self._spec.inputs])
            if isinstance(one, torch.Tensor) and one.numel() and position not in self._spec.mutable
        }
        operations = Operations(byte, fixed)
        _fill_new_memory(byte)
        self._observer.operations = operations
        try:
            with traced(self._hidden, operations), operations:
                yield operations
        finally:
            self._observer.operations = None
            _fill_new_memory(0)

    def call(self, call: Call) -> Outcome:
        """Call the candidate once, or several times with the same values."""
        outcome = self._call(call)
        self._compare_functions()
        first = [one.data for one in outcome.results or []]
        until, latest = _worked() + _BURST, _now() + _BURST_AT_MOST
        for number in range(2, call.burst + 1):
            if outcome.error is not None or _worked() > until or _now() > latest:
                break
            before, outcome = outcome, self._call(call)
            outcome.events = [*before.events, *outcome.events]
            outcome.odd = before.odd
            if not outcome.odd and [one.data for one in outcome.results or []] != first:
                outcome.odd = number
        self._compare_functions()
        outcome.events += self._observer.taken()
        return outcome

    def _compare_functions(self) -> None:
        for name in self._snapshot.changed():
            self._observer.note("patched.module", f"the candidate replaces `{name}`")
        self._observer.left()

    def _call(self, call: Call) -> Outcome:
        outcome = Outcome()
        values = self._arguments(call)
        inputs = self._spec.inputs
        for written in values[inputs:]:
            fill(written, call.poison)
        self._hidden.clear()
        record = Record()
        profile = os.path.join(self._spec.folder, "profile.json") if call.profile else None
        answer: Any = None
        with warnings.catch_warnings(record=True) as caught, contextlib.ExitStack() as stack:
            warnings.simplefilter("always")
            stack.enter_context(recording(record))
            stack.enter_context(_simulating(call, profile))
            stack.enter_context(reordered(call.order))
            stack.enter_context(checked(self._observer.note))
            stack.enter_context(skipped(call.skips))
            stack.enter_context(followed(self._watch(values) if call.profile else None))
            try:
                assert self._function is not None
                with self._counting(call.poison, values) as operations:
                    answer = self._function(*values)
            except BaseException as error:
                outcome.error = self._described(error)
        self._warned(caught)
        outcome.after = [pack(value) for value in values[:inputs]]
        if outcome.error is None:
            outcome.results = self._results(answer, values)
        for name in operations.written:
            self._observer.note("input.modified", f"an operation of torch writes {name}")
        outcome.operations = dict(operations.names + self._hidden)
        outcome.products = operations.products()
        outcome.flops, outcome.elements = operations.flops, operations.elements
        outcome.copied, outcome.scalars = operations.copied, operations.scalars
        _record(outcome, record, call.compiles)
        if profile is not None and os.path.exists(profile):
            outcome.counts = _counts(profile)
        self._after(outcome)
        return outcome

    def _watch(self, values: Sequence[Any]) -> Callable[[], None]:
        """Return a function that notes which inputs differ from what they are now."""
        fixed = {
            position: (one, storage_bytes(one).tobytes())
            for position, one in enumerate(values[: self._spec.inputs])
            if isinstance(one, torch.Tensor) and position not in self._spec.mutable
        }

        def look() -> None:
            for position, (one, before) in fixed.items():
                if storage_bytes(one).tobytes() != before:
                    text = f"a kernel writes argument {position + 1}"
                    self._observer.note("input.modified", text)

        return look

    def prepare(self, call: Call) -> None:
        """Keep the arguments of the calls that are timed; `again` writes them to where those before are."""
        fresh = [moved(unpack(value), self._spec.device) for value in call.values]
        if not call.again or len(self._values) != len(fresh):
            self._values = fresh
            return
        for old, new in zip(self._values, fresh):
            if isinstance(old, torch.Tensor):
                whole(old).copy_(whole(new))

    def sample(self, keep: bool) -> Sample:
        """Time one call on fresh buffers; `keep` returns the result, too."""
        assert self._timer is not None and self._function is not None
        values = self._fresh()
        sample = self._timer.sample(self._function, values, self._spec.inputs, keep)
        if self._streams is not None:
            self._streams.pending.clear()
        return sample

    def repeat(self, count: int) -> Sample:
        """Call so many times on the same fresh buffers and return the last result; the caller has its own clock."""
        assert self._timer is not None and self._function is not None
        return self._timer.repeat(self._function, self._fresh(), self._spec.inputs, count)

    def seen(self) -> Outcome:
        """Return the observations of the calls that were timed, and the operations of one more."""
        outcome = Outcome()
        with self._counting(0xFF) as operations:
            assert self._function is not None
            self._function(*self._fresh())
        outcome.operations = dict(operations.names + self._hidden)
        self._compare_functions()
        self._after(outcome)
        return outcome

    def _fresh(self) -> list[Any]:
        values = [one.clone() if isinstance(one, torch.Tensor) else one for one in self._values]
        for written in values[self._spec.inputs :]:
            fill(written, 0xFF)
        return values

    def _arguments(self, call: Call) -> list[Any]:
        fresh = [moved(unpack(value), self._spec.device) for value in call.values]
        if not call.again or len(self._values) != len(fresh):
            self._values = fresh
            return fresh
        for position, (old, new) in enumerate(zip(self._values, fresh)):
            if isinstance(old, torch.Tensor) and position not in self._spec.constant:
                # without the version counter that torch would raise
                storage_bytes(old)[:] = storage_bytes(new)
        return self._values

    def _results(self, answer: Any, values: list[Any]) -> list[Packed]:
        written = values[self._spec.inputs :]
        results = members(answer)
        if written and all(one is None for one in results):
            results = written
        results = [one for one in results if one is not None]
        strange = [type(one).__name__ for one in results if type(one) is not torch.Tensor]
        if strange:
            self._observer.note("result.type", f"the result is a `{strange[0]}`, no plain tensor")
            return []
        if not written:
            self._keep(results, values)
        return [pack_values(one) for one in results]

    def _keep(self, results: list[Any], values: list[Any]) -> None:
        """Compare earlier results with copies, and their memory with that of these."""
        inputs = {
            one.untyped_storage().data_ptr() for one in values if isinstance(one, torch.Tensor)
        }
        fresh = [one for one in results if one.untyped_storage().data_ptr() not in inputs]
        for old, before in self._earlier:
            shared = any(
                one.untyped_storage().data_ptr() == old.untyped_storage().data_ptr() and one.numel()
                for one in fresh
            )
            if shared:
                self._observer.note("output.aliased", "two calls return the same memory")
            elif pack_values(old).data != before:
                self._observer.note("output.aliased", "a later call changes an earlier result")
        self._earlier += [(one, pack_values(one).data) for one in fresh]
        del self._earlier[:-_KEPT]

    def _warned(self, caught: Sequence[Any]) -> None:
        for one in caught:
            if one.category.__name__ == "SimulatorWarning":
                text = str(one.message).splitlines()[0]
                self._observer.note("sync.tolerated", text)

    def _after(self, outcome: Outcome) -> None:
        """Look at what the candidate left behind."""
        if self._observer.living_threads():
            self._observer.note("left.thread", "a thread of the candidate lives on")
        if _children():
            self._observer.note("left.process", "a process of the candidate lives on")
        if self._streams is not None:
            if self._streams.pending:
                self._observer.note("left.stream", "work on another stream is not waited for")
            self._streams.pending.clear()
        if _modes() != self._modes:
            self._observer.note("patched.module", "a mode of torch is left active")
            while _modes()[0] > self._modes[0]:
                torch._C._pop_torch_function_stack()
            while _modes()[1] > self._modes[1]:
                _pop_mode()
        if gc.callbacks:
            self._observer.note("left.hook", "a callback of the garbage collector is left")
            gc.callbacks.clear()
        if self._earlier and not gc.isenabled():
            gc.enable()
        outcome.events += self._observer.taken()

    def _described(self, error: BaseException) -> dict[str, Any]:
        """Return an error as plain data, with the innermost line of the candidate."""
        folder = os.path.realpath(self._spec.folder)
        place = "", 0
        trace = error.__traceback__
        while trace is not None:
            name = trace.tb_frame.f_code.co_filename
            file = "" if name.startswith("<") else os.path.realpath(name)
            if file.startswith(folder + os.sep):
                place = os.path.relpath(file, folder), trace.tb_lineno
            trace = trace.tb_next
        span = error.span if isinstance(error, GluonError) else None
        if span is not None and os.path.realpath(span.file).startswith(folder + os.sep):
            place = os.path.relpath(os.path.realpath(span.file), folder), span.line
        return {
            "class": type(error).__name__,
            "classes": [kind.__name__ for kind in type(error).__mro__],
            "text": str(error).replace(folder + os.sep, ""),
            "report": getattr(error, "report", "") or "",
            "file": place[0],
            "line": place[1],
        }


def _hide() -> None:
    """Take the judge out of reach: its modules leave `sys.modules`, its classes cannot be changed any more."""
    seal(Session, Observer, Snapshot, Operations, Streams, Guard, Timer, Link)
    for name in list(sys.modules):
        if name.partition(".")[0] == "gluon_judge":
            del sys.modules[name]
    sys.modules["__main__"] = ModuleType("__main__")


def _modes() -> tuple[int, int]:
    """Return how many modes of torch are active, of functions and of the dispatcher."""
    return torch._C._len_torch_function_stack(), _len_torch_dispatch_stack()


def _fill_new_memory(byte: int) -> None:
    """Let the C library fill memory that it hands out, where it can; 0 for memory as it comes."""
    with contextlib.suppress(AttributeError, OSError):
        _system.mallopt(_PERTURB, (~byte & 0xFF) or 1 if byte else 0)


def _children() -> bool:
    try:
        return bool(Path(f"/proc/self/task/{os.getpid()}/children").read_text().split())
    except OSError:
        return False


def _simulating(call: Call, profile: Optional[str]) -> ContextManager[Any]:
    simulator = registry().simulator()
    stack = contextlib.ExitStack()
    if simulator is None or simulator.simulation.settings is None:
        return stack
    configured = load_named(
        simulator.simulation.settings, f"backend {simulator.name!r}, simulation"
    )
    more: dict[str, Any] = {"tolerated": "warn"}
    if call.prove:
        more.update(prove="*", within=call.prove)
    stack.enter_context(
        configured(
            checks=True, everywhere=True, schedule=call.schedule, seed=call.seed, timeout=call.timeout, **more
        )
    )  # fmt: skip
    if profile is not None:
        stack.enter_context(simulator.simulation.watch(Watch(profile_json=profile)))
    return stack


def _record(outcome: Outcome, record: Record, compiles: bool) -> None:
    for one, count in record.launches.items():
        outcome.launches.append((one.kernel, one.target, one.by, count))
        if one.proved is not None:
            outcome.proofs.append((one.proved.verdict, one.proved.name, one.proved.lines))
    for failed in record.raised:
        outcome.caught.append((failed.kernel, failed.error, failed.report))
    if not compiles:
        return
    for compiled in record.kernels.values():
        name = str(compiled.name)
        try:
            facts: dict[str, Any] = {"registers": compiled.n_regs, "spills": compiled.n_spills}
        except Exception as error:
            facts = {"error": f"{type(error).__name__}: {error}"}
        outcome.compiled.append((name, facts))


def _counts(path: str) -> dict[str, float]:
    import json

    kernels = json.loads(Path(path).read_text())
    kernels = kernels["kernels"] if isinstance(kernels, dict) else kernels
    counts = {
        "flops": 0.0,
        "matrix": 0.0,
        "vector": 0.0,
        "read": 0.0,
        "written": 0.0,
        "footprint": 0.0,
    }
    for kernel in kernels:
        total = kernel["total"]
        counts["matrix"] += sum(total["matrix"].values())
        counts["vector"] += total["vector"]
        counts["read"] += total["global_read"]
        counts["written"] += total["global_written"]
        counts["footprint"] += kernel["roofline"]["footprint"]
    counts["flops"] = counts["matrix"] + counts["vector"]
    os.unlink(path)
    return counts


def _send(link: Link, token: str, kind: str, value: Any = None) -> None:
    link.answer(kind, (token, plain_data(value)))


def probe(link: Link, spec: Spec) -> None:
    """Answer whether the device can be used under the plan of a specification; None, or the reason why not."""
    try:
        Session(spec)
    except Exception as error:
        link.answer("done", f"{type(error).__name__}: {error}")
    else:
        link.answer("done")


def work(link: Link, spec: Spec) -> None:
    """Answer "load" and "call" until the judge has no more questions."""
    session = Session(spec)
    while (job := link.next(float("inf"))) is not None:
        method, values, token = job
        try:
            values = restored(values)
            if method == "layers":
                _send(link, token, "done", list(session.layers))
            else:
                _send(link, token, "done", getattr(session, method)(*values))
        except Exception as error:
            _send(link, token, "error", f"{type(error).__name__}: {error}")
