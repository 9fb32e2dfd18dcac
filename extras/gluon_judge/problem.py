"""The statement of a problem: inputs, shapes, tolerances, and the rules for candidates."""

from __future__ import annotations

import ast
import operator
import runpy
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Callable, Mapping, Optional, Sequence, Union

from gluon_judge.errors import ProblemError

__all__ = ["Input", "Problem", "Range", "evaluate", "read"]

Size = Union[int, str]

VALUES = ("normal", "uniform", "positive", "integers", "offsets", "boolean", "permutation", "ones")
SPECIAL = ("strict", "relaxed", "finite")
LAYOUTS = ("contiguous", "offset", "strided")


@dataclass(frozen=True)
class Input:
    """One argument of the candidate and of the reference.

    Args:
        shape: of a tensor: numbers, names of dimensions, or expressions such as "2*N". None for a scalar.
        dtype: torch's name, such as "float16", or a name in the problem's `dtypes`.
        values: the distribution: "normal", "uniform" in [0, 1), "positive", "integers" from `low` up to
            `high`, "offsets" (such integers in rising order, the last of them `high`), "boolean", "permutation" of the
            last dimension, or "ones".
        low, high: bounds of integers, as numbers or expressions.
        value: of a scalar: a number, or an expression of dimensions.
    """

    shape: Optional[tuple[Size, ...]] = None
    dtype: str = "float32"
    values: str = "normal"
    low: Union[int, str] = 0
    high: Union[int, str] = 2
    value: Union[int, float, str, bool, None] = None


@dataclass(frozen=True)
class Range:
    """The sizes that a free dimension may have: multiples of `multiple` from `least` to `most`."""

    least: int = 1
    most: int = 1 << 20
    multiple: int = 1


@dataclass(frozen=True)
class Problem:
    """A problem that candidates solve.

    Args:
        inputs: name -> `Input`, in the order of the arguments.
        shapes: the dimensions of each case.
        timed: the dimensions that `--on-gpu` measures; `shapes` by default.
        outputs: name -> `Input` of tensors that the candidate writes, the last arguments; empty where it
            returns its results.
        dtypes: name -> dtypes; every case runs with each.
        dims: name -> `Range` of a dimension that may have other sizes than those of `shapes`.
        layouts: of inputs that must work, of `LAYOUTS`.
        mutates: inputs that the call may change; they are results, too.
        constants: inputs such as weights, whose values stay: a candidate may keep what it derives from the tensor.
        forbids: "libraries" for all computation by torch, or names of operations such as "aten.mm".
        tolerance: `growth` of the error over that of the reference at the same precision, and
            `relative` and `absolute` errors that are always right.
        flops, bytes: expressions of the dimensions, which no candidate undercuts.
        deterministic: whether results must have the same bits in every run.
        special: "strict" where NaN and infinity of the inputs must reach the result as in the reference, "relaxed" where
            elements that depend on them may be anything, "finite" where inputs have none.
    """

    inputs: Mapping[str, Input]
    shapes: Sequence[Mapping[str, int]] = ({},)
    timed: Sequence[Mapping[str, int]] = ()
    outputs: Mapping[str, Input] = field(default_factory=dict)
    dtypes: Mapping[str, Sequence[str]] = field(default_factory=dict)
    dims: Mapping[str, Range] = field(default_factory=dict)
    layouts: Sequence[str] = ("contiguous", "offset")
    mutates: Sequence[str] = ()
    constants: Sequence[str] = ()
    forbids: Sequence[str] = ()
    tolerance: Mapping[str, float] = field(default_factory=dict)
    flops: Optional[str] = None
    bytes: Optional[str] = None
    deterministic: bool = False
    special: str = "relaxed"


def read(path: Union[str, Path]) -> Problem:
    """Read a problem from TOML, or from the name `PROBLEM` of a Python file.

    Raises:
        ProblemError: the file holds none, or an entry means nothing.
    """
    path = Path(path)
    try:
        if path.suffix == ".toml":
            return _parsed(_toml(path.read_text()), str(path))
        values = runpy.run_path(str(path))
    except OSError as error:
        raise ProblemError("cannot be read", argument="--problem", got=str(error)) from error
    if "PROBLEM" not in values:
        raise ProblemError(
            "the file states no problem",
            argument="--problem",
            expected="a name PROBLEM: a gluon_judge.Problem, or a dict with its fields",
            got=str(path),
        )
    return _parsed(values["PROBLEM"], str(path))


def _toml(text: str) -> dict[str, Any]:
    try:
        import tomllib
    except ImportError:  # Python 3.10
        import tomli as tomllib
    try:
        parsed: dict[str, Any] = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ProblemError("not valid TOML", argument="--problem", got=str(error)) from error
    return parsed


def _parsed(value: Any, where: str) -> Problem:
    if isinstance(value, Problem):
        return _checked(value)
    if not isinstance(value, Mapping):
        raise ProblemError("PROBLEM is not a Problem", got=type(value).__name__, expected="a dict")
    entries = dict(value)
    _only(entries, Problem, where)
    for name in ("inputs", "outputs"):
        entries[name] = {key: _built(Input, one, key) for key, one in entries.get(name, {}).items()}
    entries["dims"] = {key: _built(Range, one, key) for key, one in entries.get("dims", {}).items()}
    return _checked(Problem(**entries))


def _built(kind: Any, value: Any, name: str) -> Any:
    if isinstance(value, kind):
        return value
    if kind is Input and not isinstance(value, Mapping):
        value = {"value": value}
    if not isinstance(value, Mapping):
        raise ProblemError("is not a table", argument=name, got=repr(value))
    entries = dict(value)
    _only(entries, kind, name)
    if "shape" in entries:
        entries["shape"] = tuple(entries["shape"])
    return kind(**entries)


def _only(entries: Mapping[str, Any], kind: Any, where: str) -> None:
    known = [one.name for one in fields(kind)]
    for name in entries:
        if name not in known:
            raise ProblemError(
                "is not a field of a Problem",
                argument=f"{where}: {name}",
                expected=", ".join(known),
            )


def _checked(problem: Problem) -> Problem:
    if not problem.inputs:
        raise ProblemError("a problem needs inputs", argument="inputs")
    for name, one in {**problem.inputs, **problem.outputs}.items():
        if (one.shape is None) == (one.value is None):
            raise ProblemError("needs a shape unless the value is a scalar", argument=name)
        if one.values not in VALUES:
            raise ProblemError(
                "no such distribution", argument=name, got=one.values, expected=", ".join(VALUES)
            )
    if problem.special not in SPECIAL:
        raise ProblemError(
            "unknown rule", argument="special", got=problem.special, expected=", ".join(SPECIAL)
        )
    unknown = [name for name in problem.layouts if name not in LAYOUTS]
    if unknown:
        raise ProblemError(
            "no such layout", argument="layouts", got=unknown[0], expected=", ".join(LAYOUTS)
        )
    for field_name in ("mutates", "constants"):
        for name in getattr(problem, field_name):
            if name not in problem.inputs:
                raise ProblemError("is not an input", argument=field_name, got=name)
    return problem


_OPERATORS: dict[type, Callable[..., Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
    ast.USub: operator.neg,
}
_FUNCTIONS: dict[str, Callable[..., Any]] = {"min": min, "max": max}


def evaluate(text: Any, names: Mapping[str, float]) -> Any:
    """Return the value of an expression such as "2*M*N*K"; anything but a string as it is.

    Raises:
        ProblemError: an unknown name, or no arithmetic.
    """
    if not isinstance(text, str):
        return text

    def value(node: ast.AST) -> Any:
        if isinstance(node, ast.Constant) and isinstance(node.value, (int, float)):
            return node.value
        if isinstance(node, ast.Name) and node.id in names:
            return names[node.id]
        if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
            return _OPERATORS[type(node.op)](value(node.left), value(node.right))
        if isinstance(node, ast.UnaryOp) and type(node.op) in _OPERATORS:
            return _OPERATORS[type(node.op)](value(node.operand))
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id in _FUNCTIONS
        ):
            return _FUNCTIONS[node.func.id](*map(value, node.args))
        raise ProblemError(
            "cannot be computed",
            got=text,
            expected=f"arithmetic over {', '.join(names) or 'numbers'}",
        )

    try:
        return value(ast.parse(text, mode="eval").body)
    except SyntaxError as error:
        raise ProblemError("is not an expression", got=text) from error
