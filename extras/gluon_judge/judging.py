"""The judge: ask the examiner for inputs, the candidate for results, and weigh what comes of it."""

from __future__ import annotations

import os
import secrets
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Optional, Union

from gluon_core.processes import Ended
from gluon_judge.errors import JudgeError, ProblemError
from gluon_judge.host import START, Failed, Peer
from gluon_judge.report import Report, weighed
from gluon_judge.trial import Files, Limits, Trial
from gluon_judge.workplace import simulated

__all__ = ["Judge", "judge"]


class Judge:
    """The processes that judge candidates on one target; use it for several of them.

    Args:
        target: such as "hopper"; its simulator runs the kernels.
    """

    def __init__(self, target: Optional[str] = None):
        self.target = simulated(target)
        self.gpu_target = ""  # tests name a simulated one
        self._examiner: Optional[Peer] = None
        self._gpu: Optional[Peer] = None
        self._gpu_begins = False
        self._host: Optional[Peer] = None
        self._reference: tuple[str, ...] = ()
        self._about: dict[str, Any] = {}

    def __enter__(self) -> Judge:
        return self

    def __exit__(
        self,
        kind: Optional[type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the processes."""
        for peer in (self._examiner, self._host, self._gpu):
            if peer is not None:
                peer.end()
        self._examiner = self._host = self._gpu = None
        self._reference = ()

    def judge(
        self,
        candidate: Union[str, Path],
        reference: Union[str, Path],
        problem: Union[str, Path, None] = None,
        *,
        seed: Optional[int] = None,
        within: float = 60.0,
        claim: Optional[float] = None,
        patience: float = 30.0,
        on_gpu: bool = False,
    ) -> Report:
        """Judge a candidate.

        Args:
            candidate, reference: files, or FILE:FUNCTION.
            problem: a file; None where the reference states it.
            seed: of the inputs; None for one that nobody can know before. The report names it.
            within: seconds after which no further check begins; evidence that is missing then is reported. Rates begin
                for as long again.
            claim: seconds that the author claims for the largest case.
            patience: seconds of one call, after which its process is killed.
            on_gpu: compare results on the GPU of this machine, too, and measure rates.

        Raises:
            JudgeError: the reference fails, or a process of the judge is gone.
            ProblemError: the problem says nothing that inputs can be made from.
        """
        path, function = _parts(candidate)
        reference_path, reference_function = _parts(reference)
        started = time.monotonic()
        seed = secrets.randbelow(1 << 31) if seed is None else seed
        if self._host is None:
            self._host = Peer("gluon_judge.host:serve", "the host of candidates")
            self._host.ask("begin", str(self.target))
            begins = True
        else:
            begins = False
        about = self._opened(reference_path, reference_function, str(problem or ""), seed)
        if on_gpu and self.gpu_target != str(self.target):
            self._begin_gpu()  # its imports take seconds, meanwhile
        if begins:
            self._reply(self._host)
        assert self._examiner is not None
        begun = round(time.monotonic() - started, 3)
        files = Files(path, function or about["function"], reference_path, str(problem or ""))
        trial = Trial(
            self, files, about, Limits(time.monotonic() + within, within, claim, patience)
        )
        trial.report.stages["start"] = begun
        report = trial.run()
        if on_gpu:
            trial.measure(reference_function or about["function"])
        report.seconds = round(time.monotonic() - started, 2)
        return weighed(report)

    def _opened(self, *reference: Any) -> dict[str, Any]:
        if self._examiner is None:
            self._examiner = Peer("gluon_judge.examiner:serve", "the examiner")
            self._reference = ()
        if self._reference != reference:
            self._reference = ()
            self._examiner.ask("open", str(self.target), *reference)
            self._about = self._reply(self._examiner)
            self._reference = reference
        return self._about

    def _reply(self, peer: Peer, limit: float = 600.0) -> Any:
        """Return an answer of a process of the judge's own.

        Raises:
            JudgeError, ProblemError: it failed.
        """
        try:
            return peer.answer(limit)
        except Failed as failed:
            (error,) = failed.args
            if isinstance(error, dict) and error["class"] == "ProblemError":
                raise ProblemError(error["text"]) from None
            if not isinstance(error, dict):
                raise JudgeError(str(error)) from None
            named = "" if error["class"] == "JudgeError" else f"{error['class']}: "
            raise JudgeError(f"{named}{error['text']}") from None
        except Ended as ended:
            self.close()
            raise JudgeError(str(ended)) from None

    def examine(self, method: str, *values: Any, limit: float = 600.0) -> Any:
        """Return the examiner's answer."""
        assert self._examiner is not None
        self._examiner.ask(method, *values)
        return self._reply(self._examiner, limit)

    def forget(self, session: int, on_gpu: bool = False) -> None:
        """End the process of a candidate, if its host is there."""
        if on_gpu and self.gpu_target != str(self.target):
            if self._gpu is not None:
                self.at_gpu("close", session)
        elif self._host is not None:
            self.at_host("close", session)

    def at_gpu(self, method: str, *values: Any, limit: float = 600.0) -> Any:
        """Return the answer of the host of processes on the GPU."""
        if self.gpu_target == str(self.target):
            return self.at_host(method, *values, limit=limit)
        gpu = self._begin_gpu()
        if self._gpu_begins:
            self._reply(gpu, 2 * START)
            self._gpu_begins = False
        gpu.ask(method, *values)
        return self._reply(gpu, limit)

    def _begin_gpu(self) -> Peer:
        """Return the host of processes on the GPU, which may be about to begin."""
        if self._gpu is None:
            self._gpu = Peer("gluon_judge.host:serve", "the host of processes on the GPU")
            self._gpu.ask("begin", self.gpu_target)
            self._gpu_begins = True
        return self._gpu

    def at_host(self, method: str, *values: Any, limit: float = 600.0) -> Any:
        """Return the answer of the host of candidates."""
        assert self._host is not None
        self._host.ask(method, *values)
        return self._reply(self._host, limit)


def judge(
    candidate: Union[str, Path],
    reference: Union[str, Path],
    problem: Union[str, Path, None] = None,
    *,
    target: Optional[str] = None,
    **options: Any,
) -> Report:
    """Judge one candidate; see `Judge.judge` for the options."""
    with Judge(target) as one:
        return one.judge(candidate, reference, problem, **options)


def _parts(spec: Union[str, Path]) -> tuple[str, str]:
    head, colon, tail = str(spec).rpartition(":")
    path, function = (head, tail) if colon and tail.isidentifier() else (str(spec), "")
    if not os.path.isfile(path):
        raise ProblemError("no such file", argument="FILE", got=path)
    return os.path.abspath(path), function
