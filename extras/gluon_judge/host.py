"""The host of candidates: a process that has everything imported, and forks one process for each candidate."""

from __future__ import annotations

import functools
import os
import pickle
import re
import secrets
import shutil
import signal
import sys
import sysconfig
import tempfile
import time
from dataclasses import replace
from importlib import import_module
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Optional

from gluon_core.processes import Ended, Link, Process
from gluon_judge import wire
from gluon_judge.confine import PLANS
from gluon_judge.errors import JudgeError

__all__ = ["START", "Failed", "Peer", "libraries", "serve"]

_PRELOADED = (
    "torch", "torch.utils.flop_counter", "numpy", "triton", "triton.language", "triton.testing", "gluon_core", "gluon_core.language",
    "gluon_sim.launcher", "gluon_sim.tools.profile", "gluon_judge.session",
)  # fmt: skip

# Sources that make torch import its compiler within a call.
_IMPORTS_COMPILER = re.compile(
    r"custom_op|triton_op|torch\.compile|import compile|vmap|functorch|torch\.func\b|checkpoint|_dynamo|_refs"
)

START = 60.0  # seconds that the first use of a GPU may take
_NOT_YET = object()


class Failed(Exception):
    """A method of the other process raised an error, given as plain data."""


class Peer:
    """A process of the judge and its methods.

    Args:
        work: "module:function" that serves.
        name: of the process, for errors.
    """

    def __init__(self, work: str, name: str):
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        environment.pop("GLUON_TARGET", None)
        self._process = Process(work, name, environment)

    def ask(self, method: str, *values: Any) -> None:
        """Send a question without waiting for the answer."""
        self._process.send(pickle.dumps((method, values)))

    def answer(self, limit: float = 600.0) -> Any:
        """Return the answer to the oldest question.

        Raises:
            Failed: it is an error.
            Ended: the process is gone, or late.
        """
        try:
            kind, value = self._process.receive(time.monotonic() + limit)
        except Ended as ended:
            last = self._process.output()[-400:].strip().splitlines()[-1:]
            self.end()
            raise Ended(": ".join([ended.how, *last]), ended.hung) from None
        if kind == "error":
            raise Failed(value)
        return value

    def call(self, method: str, *values: Any, limit: float = 600.0) -> Any:
        """Return the answer of a method."""
        self.ask(method, *values)
        return self.answer(limit)

    def end(self) -> None:
        """End the process with all that it started."""
        self._process.end()


def libraries() -> tuple[str, ...]:
    """Return the folders that a candidate may read: Python, installed packages, the system's libraries."""
    paths = sysconfig.get_paths()
    folders = [paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    folders += [
        "/usr/lib",
        "/usr/lib64",
        "/lib",
        "/lib64",
        "/usr/bin",
        "/bin",
        "/usr/share",
        "/usr/local",
    ]
    folders += ["/etc/ld.so.cache", "/dev/null", "/dev/urandom", "/dev/zero", "/proc/cpuinfo"]
    folders += ["/proc/self", "/sys/devices/system/cpu", "/proc/meminfo"]
    folders += [path for path in sys.path if path and any(Path(path).glob("*.dist-info"))]
    for name in _packages():
        spec = find_spec(name)
        if spec is not None:
            places = list(spec.submodule_search_locations or ([spec.origin] if spec.origin else []))
            installed = [one for one in map(os.path.dirname, places) if one.endswith("-packages")]
            folders += [*places, *installed]
    # The candidate's process finds its own "/proc/self".
    real = (one if one == "/proc/self" else os.path.realpath(one) for one in folders)
    return tuple(dict.fromkeys(one for one in real if os.path.exists(one)))


def _packages() -> list[str]:
    """Return the packages of this project and those that plugins come from."""
    names = {"torch", "triton", "numpy", "gluon_core", "gluon_runtime", "gluon_kernels"}
    for group in ("gluon_core.backends", "gluon_core.extras"):
        names |= {
            one.value.partition(".")[0].partition(":")[0] for one in entry_points(group=group)
        }
    return sorted(names)


class Host:
    """Forks a process for each candidate and passes questions on.

    Args:
        target: the simulated one that kernels run on; "" for the GPU, which no process with children may touch.
    """

    def __init__(self, target: str):
        from gluon_judge.workplace import on_target

        for name in _PRELOADED:
            if find_spec(name.partition(".")[0]) is not None:
                import_module(name)
        import torch

        torch.set_num_threads(1)
        if target:
            from gluon_core.registry.load import registry
            from gluon_judge.warm import warm_up

            on_target(target)
            chosen = registry().target(target)
            refuses = registry().backend(chosen.backend).simulation.machine_code
            vendor = registry().backend(chosen.architecture.backend)
            warm_up(chosen.warp_size, str(vendor.device.tensor_device) if refuses else "cpu")
        self._sessions: dict[int, Process] = {}
        self._folders: dict[int, str] = {}
        self._asked: dict[int, tuple[float, str, Optional[Ended]]] = {}  # deadline, token
        self._numbers = 0
        self._plan: Optional[tuple[str, ...]] = None

    def open(self, spec: Any) -> int:
        """Fork the process of a candidate; return its number."""
        from gluon_judge.session import work

        if any(_IMPORTS_COMPILER.search(text) for text in spec.files.values()):
            import_module("torch._dynamo")  # here, once: it takes seconds
        if spec.device != "cpu":
            spec = replace(spec, plan=self._planned(spec))
        self._numbers += 1
        self._folders[self._numbers] = spec.folder
        self._sessions[self._numbers] = Process(
            functools.partial(work, spec=spec), "the candidate's process", loads=wire.loads
        )
        return self._numbers

    def _planned(self, spec: Any) -> tuple[str, ...]:
        """Return the strictest plan under which the GPU can be used; all are tried at once, in processes of their own.

        Raises:
            JudgeError: it cannot be used at all.
        """
        if self._plan is not None:
            return self._plan
        from gluon_judge.session import probe

        processes: dict[tuple[str, ...], Process] = {
            plan: Process(
                functools.partial(probe, spec=replace(spec, plan=plan, files={})),
                "a first use of the GPU",
                loads=wire.loads,
            )
            for plan in PLANS
        }
        reasons: dict[tuple[str, ...], Any] = {}
        started = time.monotonic()
        until = started + START
        try:
            while len(reasons) < len(PLANS) and time.monotonic() < until:
                for plan, process in processes.items():
                    if plan not in reasons:
                        reasons[plan] = _reason(process)
                        if reasons[plan] is _NOT_YET:
                            del reasons[plan]
                        elif reasons[plan] is None:  # stricter plans get as long again
                            until = min(until, 2 * time.monotonic() - started + 1.0)
                if all(reasons.get(plan) for plan in PLANS[: _first(reasons)]):
                    break
        finally:
            for process in processes.values():
                process.end()
        strictest = _first(reasons)
        if strictest == len(PLANS):
            text = next(iter(reasons.values()), f"no answer within {START:.0f} s")
            raise JudgeError("the GPU cannot be used", got=text)
        self._plan = PLANS[strictest]
        return self._plan

    def call(self, number: int, limit: float, method: str, *values: Any) -> tuple[str, Any]:
        """Return ("done", answer), ("error", text), or ("ended", (how, hung, output))."""
        self.ask(number, limit, method, *values)
        return self.answer(number)

    def ask(self, number: int, limit: float, method: str, *values: Any) -> None:
        """Send a question to a candidate's process without waiting for its `answer`."""
        deadline, token = time.monotonic() + limit, secrets.token_hex(8)
        ended: Optional[Ended] = None
        try:
            job = pickle.dumps((method, wire.plain(values), token))
            self._sessions[number].send(job, deadline)
        except Ended as error:
            ended = error
        self._asked[number] = deadline, token, ended

    def answer(self, number: int) -> tuple[str, Any]:
        """Return the answer to the question that was asked, as `call` does."""
        process, (deadline, token, ended) = self._sessions[number], self._asked.pop(number)
        try:
            if ended is not None:
                raise ended
            kind, answer = process.receive(deadline)
            return kind, _answered(answer, token)
        except wire.Malformed as malformed:
            self.close(number)
            return "ended", (f"its process sent no answer: {malformed}", False, "")
        except Ended as error:
            output = process.output()[-2000:]
            self.close(number)
            return "ended", (error.how, error.hung, output)

    def close(self, number: int) -> None:
        """End a candidate with everything that it started, its folder included."""
        self._asked.pop(number, None)
        process = self._sessions.pop(number, None)
        if process is not None:
            process.end()
        _reap({one.pid for one in self._sessions.values()})
        shutil.rmtree(self._folders.pop(number, ""), ignore_errors=True)


def _first(reasons: dict[tuple[str, ...], Any]) -> int:
    """Return the place of the strictest plan that holds; the number of plans for none."""
    holds = [index for index, plan in enumerate(PLANS) if plan in reasons and reasons[plan] is None]
    return min(holds, default=len(PLANS))


def _reason(process: Process) -> Any:
    """Return why a process could not use the GPU, None if it could, or `_NOT_YET`."""
    try:
        return process.receive(time.monotonic() + 0.05)[1]
    except Ended as ended:
        return _NOT_YET if ended.hung else ended.how


def _answered(answer: Any, token: str) -> Any:
    """Return the value of an answer to the question with this token.

    Raises:
        Malformed: it answers another question, or none.
    """
    if type(answer) is not tuple or len(answer) != 2 or answer[0] != token:
        raise wire.Malformed("another process wrote into its pipe")
    return wire.restored(answer[1])


def _reap(living: set[int]) -> None:
    """End orphans of candidates, which are children of this process, but for `living`."""
    for number in _children(os.getpid()):
        if number in living:
            continue
        try:
            os.kill(number, signal.SIGKILL)
            os.waitpid(number, 0)
        except OSError:
            continue


def _children(process: int) -> list[int]:
    try:
        text = Path(f"/proc/{process}/task/{process}/children").read_text()
    except OSError:
        return []
    return [int(word) for word in text.split()]


def _adopt_orphans() -> None:
    """Become the parent of what a candidate's processes leave behind."""
    import ctypes

    ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)


def serve(link: Link) -> None:
    """Answer calls of a `Host`'s methods; "begin" makes one."""
    _adopt_orphans()
    host: Optional[Host] = None
    while (job := link.next(float("inf"))) is not None:
        method, values = job
        try:
            if method == "begin":
                host = Host(*values)
                link.answer("done")
            else:
                link.answer("done", getattr(host, method)(*values))
        except Exception as error:
            link.answer("error", f"{type(error).__name__}: {error}")


def folder() -> str:
    """Return a new folder for a candidate, whose name does not tell what it is for.

    Raises:
        JudgeError: there is no place for it.
    """
    try:
        return tempfile.mkdtemp()
    except OSError as error:
        raise JudgeError("no temporary folder is writable", got=str(error)) from error
