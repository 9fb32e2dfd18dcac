"""The examiner: a process that makes inputs, knows the reference, and compares results.

No candidate ever runs in it, and nothing of it reaches a candidate but inputs.
"""

from __future__ import annotations

import contextlib
import inspect
import os
import sys
from typing import Any, Callable, Mapping, Optional, Sequence

import torch

from gluon_core.processes import Link
from gluon_judge.cases import arguments, cases_of, outputs, permuted
from gluon_judge.errors import JudgeError, ProblemError
from gluon_judge.messages import Difference, Packed
from gluon_judge.numerics import Expected, difference
from gluon_judge.operations import Operations
from gluon_judge.problem import Problem, evaluate, read
from gluon_judge.source import entry, load
from gluon_judge.tensors import pack, unpack
from gluon_judge.workplace import on_target

__all__ = ["Examiner", "serve"]


class Examiner:
    """Cases, and what the reference makes of them.

    Args:
        reference: its file.
        function: in that file; "" to look for the only one.
        problem: a file; "" where the reference states it.
        seed: of all inputs.
    """

    def __init__(self, reference: str, function: str, problem: str, seed: int):
        self.values = load(reference)
        self.function: Callable[..., Any] = entry(self.values, function, reference)
        self.problem = self._problem(problem, reference)
        self.cases = cases_of(self.problem, seed)
        self._expected: dict[tuple[int, int], list[Expected]] = {}
        self._inputs: dict[tuple[int, int], list[Any]] = {}  # packed
        self._agreed: Optional[tuple[Any, list[Difference]]] = (
            None  # the latest, and of which results
        )

    def _problem(self, path: str, reference: str) -> Problem:
        if path:
            return read(path)
        if "PROBLEM" in self.values:
            return read(reference)
        raise ProblemError(
            "the inputs of the reference are unknown",
            argument="--problem",
            expected="a TOML file, or a name PROBLEM in the reference",
            got=reference,
        )

    def about(self) -> dict[str, Any]:
        """Return the problem, the cases, and the name of the reference's function."""
        return {
            "problem": self.problem,
            "cases": self.cases,
            "function": self.function.__name__,
        }

    def inputs(self, case: int, variant: int) -> list[Any]:
        """Return the packed arguments of a case.

        Args:
            variant: 0 for the values of the case, else a permutation of them.
        """
        key = case, variant
        if key not in self._inputs:
            if self.cases[case].timed:  # they are large: keep those of one case
                for other in [one for one in self._inputs if self.cases[one[0]].timed]:
                    if other[0] != case:
                        del self._inputs[other]
            if variant:
                first = [
                    unpack(value) for value in self.inputs(case, 0)[: len(self.problem.inputs)]
                ]
                values = permuted(self.problem, first, variant)
            else:
                values = arguments(self.problem, self.cases[case])
            values += outputs(self.problem, self.cases[case])
            self._inputs[key] = [pack(value) for value in values]
        return self._inputs[key]

    def _arguments(self, case: int, variant: int) -> list[Any]:
        return [unpack(value) for value in self.inputs(case, variant)]

    def expected(self, case: int, variant: int) -> Optional[list[Expected]]:
        """Return the results of the reference; None where it refuses the case."""
        key = case, variant
        if key not in self._expected:
            try:
                same = self._run(self._arguments(case, variant))
            except Exception as error:
                if self.cases[case].listed and self.cases[case].usual:
                    raise JudgeError(
                        f"the reference fails: {type(error).__name__}: {error}",
                        got=str(self.cases[case]),
                    ) from error
                return None
            exact = self._exact(self._arguments(case, variant), same)
            reached = self._reached(case, variant, same)
            self._expected[key] = [
                Expected(*parts) for parts in zip(same, exact, reached, strict=True)
            ]
        return self._expected[key]

    def _reached(self, case: int, variant: int, same: Sequence[Any]) -> list[Any]:
        """Return the elements of each result that depend on NaN or infinity of the inputs.

        Numbers in their place, twice others, change these results.
        """
        if self.cases[case].fill not in ("nan", "infinite"):
            return [None] * len(same)
        runs = []
        for number in (0.25, 2.0):
            values = self._arguments(case, variant)
            for value in values:
                if isinstance(value, torch.Tensor) and value.is_floating_point():
                    wide = value.double()
                    value.copy_(torch.where(torch.isfinite(wide), wide, number))
            try:
                runs.append(self._run(values))
            except Exception:
                return [None] * len(same)
        return [
            (one.double() != two.double()) | (one.double() != first.double())
            for first, one, two in zip(same, *runs, strict=True)
        ]

    def _run(self, values: list[Any]) -> list[Any]:
        count = len(self.problem.inputs)
        parameters = inspect.signature(self.function).parameters.values()
        flexible = any(one.kind is one.VAR_POSITIONAL for one in parameters)
        takes_outputs = flexible or len(parameters) > count
        answer = self.function(*(values if takes_outputs else values[:count]))
        results = list(answer) if isinstance(answer, (tuple, list)) else [answer]
        if self.problem.outputs and takes_outputs and answer is None:
            results = values[count:]
        results = [one for one in results if isinstance(one, torch.Tensor)]
        if not results and not self.problem.mutates:
            raise JudgeError("the reference returns no tensor", argument=self.function.__name__)
        names = list(self.problem.inputs)
        results += [values[names.index(name)] for name in self.problem.mutates]
        return [one.detach().cpu().clone() for one in results]

    def _exact(self, values: list[Any], same: Sequence[Any]) -> list[Any]:
        """Return the reference's results for inputs in float64; None for each where it takes none."""
        wide = [
            value.double()
            if isinstance(value, torch.Tensor) and value.is_floating_point()
            else value
            for value in values
        ]
        try:
            exact = self._run(wide)
        except Exception:
            return [None] * len(same)
        fits = len(exact) == len(same) and all(a.shape == b.shape for a, b in zip(exact, same))
        return exact if fits else [None] * len(same)

    def compare(
        self, case: int, variant: int, results: Sequence[Packed], after: Sequence[Any]
    ) -> Optional[list[Difference]]:
        """Compare results with the reference, and inputs with those that went out.

        Returns:
            None where the reference refuses the case.
        """
        expected = self.expected(case, variant)
        if expected is None:
            return None
        problem, fill = self.problem, self.cases[case].fill
        if not all(_is_whole(one) for one in (*results, *after)):
            return [Difference("result.type", "a result has other bytes than its shape")]
        mine = [unpack(one) for one in results]
        names = list(problem.inputs)
        arrived = self._arguments(case, variant)
        differences = []
        for name, before, now in zip(names, arrived, after):
            if name in problem.mutates:
                mine.append(unpack(now))
            elif isinstance(now, Packed) and pack(before).data != now.data:
                differences.append(Difference("input.modified", f"the call changed `{name}`"))
        if len(mine) != len(expected):
            text = f"{len(mine)} results, expected {len(expected)}"
            return [*differences, Difference("result.shape", text)]
        strict = problem.special == "strict"
        for one, wanted in zip(mine, expected):
            differences += difference(one, wanted, fill, problem.tolerance, strict)
        return differences

    def agree(
        self, case: int, results: Sequence[Packed], reference: Sequence[Packed]
    ) -> list[Difference]:
        """Compare results of a GPU with those of the reference there."""
        if len(results) != len(reference):
            return [
                Difference("result.shape", f"{len(results)} results, expected {len(reference)}")
            ]
        if not all(_is_whole(one) for one in (*results, *reference)):
            return [Difference("result.type", "a result has other bytes than its shape")]
        compared = case, tuple(results), tuple(reference)
        if self._agreed is None or self._agreed[0] != compared:
            self._agreed = compared, self._disagreements(*compared)
        return self._agreed[1]

    def _disagreements(
        self, case: int, results: Sequence[Packed], reference: Sequence[Packed]
    ) -> list[Difference]:
        strict = self.problem.special == "strict"
        fill, tolerance = self.cases[case].fill, self.problem.tolerance
        differences = []
        for one, other in zip(results, reference):
            if one != other:
                expected = Expected(unpack(other), None)
                differences += difference(unpack(one), expected, fill, tolerance, strict)
        return differences

    def required(self, case: int) -> dict[str, float]:
        """Return the operations and bytes that a case requires: `flops`, `bytes`, `written`, `arguments`, `declared`."""
        names = {key: float(size) for key, size in self.cases[case].sizes.items()}
        expected = self.expected(case, 0) or []
        written = sum(one.same.numel() * one.same.element_size() for one in expected)
        work: dict[str, float] = {"written": float(written), "declared": 0.0}
        work["arguments"] = self._sent(case)
        work["elements"] = float(sum(one.same.numel() for one in expected))
        operations, values = Operations(0xFF), self._arguments(case, 0)
        with operations, contextlib.suppress(Exception):
            self._run(values)
        work["copies"] = float(not operations.names)
        if self.problem.flops is not None:
            work["flops"] = float(evaluate(self.problem.flops, names))
            work["declared"] = 1.0
        else:
            work["flops"] = operations.flops
        if self.problem.bytes is not None:
            work["bytes"] = float(evaluate(self.problem.bytes, names))
        return work

    def demanded(self, case: int, written: int) -> dict[str, float]:
        """Return the operations and bytes that a large case requires, without running the reference on this machine.

        Args:
            written: bytes of its results.
        """
        names = {key: float(size) for key, size in self.cases[case].sizes.items()}
        work = {"written": float(written), "arguments": self._sent(case)}
        if self.problem.flops is not None:
            work["flops"] = float(evaluate(self.problem.flops, names))
        else:
            operations = Operations(0xFF)
            shapes = [
                one.to("meta") if isinstance(one, torch.Tensor) else one
                for one in self._arguments(case, 0)
            ]
            with operations, contextlib.suppress(Exception):
                self.function(*shapes[: len(self.problem.inputs)])
            work["flops"] = operations.flops
        if self.problem.bytes is not None:
            work["bytes"] = float(evaluate(self.problem.bytes, names))
        return work

    def _sent(self, case: int) -> float:
        """Return the bytes of the arguments of a case."""
        return float(sum(len(getattr(one, "data", b"")) for one in self.inputs(case, 0)))


def _is_whole(packed: Any) -> bool:
    """Return True for a tensor of a candidate's process whose bytes are those of its shape, and for other values."""
    if not isinstance(packed, Packed):
        return True
    dtype = getattr(torch, packed.dtype, None)
    parts = (*packed.shape, *packed.strides, packed.offset)
    if not isinstance(dtype, torch.dtype) or any(type(one) is not int or one < 0 for one in parts):
        return False
    if len(packed.shape) != len(packed.strides):
        return False
    steps = sum((size - 1) * stride for size, stride in zip(packed.shape, packed.strides))
    return 0 in packed.shape or (packed.offset + steps + 1) * dtype.itemsize <= len(packed.data)


def serve(link: Link) -> None:
    """Answer calls of an `Examiner`'s methods; "open" makes one."""
    torch.set_num_threads(1)
    examiner: Optional[Examiner] = None
    while (job := link.next(float("inf"))) is not None:
        method, values = job
        try:
            if method == "open":
                target, path, *rest = values
                on_target(target)
                _enter(os.path.dirname(os.path.abspath(path)))
                examiner = Examiner(path, *rest)
                link.answer("done", examiner.about())
            else:
                link.answer("done", getattr(examiner, method)(*values))
        except Exception as error:
            link.answer("error", _sent(error))


def _enter(folder: str) -> None:
    """Import modules from the folder of a reference, and forget those of the one before."""
    before = [path for path in sys.path if path in _folders]
    for name, module in list(sys.modules.items()):
        if any(
            str(getattr(module, "__file__", None) or "").startswith(path + os.sep)
            for path in before
        ):
            del sys.modules[name]
    sys.path[:] = [folder, *(path for path in sys.path if path not in _folders)]
    _folders.add(folder)


_folders: set[str] = set()  # of references


def _sent(error: Exception) -> Mapping[str, Any]:
    """Return an error as plain data: its class, its text, and whether it is a mistake of the user's files."""
    ours = isinstance(error, (JudgeError, ProblemError))
    return {"class": type(error).__name__, "text": str(error), "ours": ours}
