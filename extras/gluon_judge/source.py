"""The files of candidates and references: which function is judged, which files belong to it, what the source shows."""

from __future__ import annotations

import ast
import importlib.util
import inspect
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable, Iterator, Mapping, Optional

from gluon_judge.errors import JudgeError
from gluon_judge.guard import REFLECTIVE, Guard

__all__ = ["Seen", "entry", "load", "members", "scan", "signs"]

_USUAL = ("run", "solution", "forward", "main", "candidate", "reference")


def load(path: str, name: str = "", guard: Optional[Guard] = None) -> dict[str, Any]:
    """Run a file as a module and return its names.

    Args:
        guard: of a candidate's modules; None for files of the judge's user.

    Raises:
        JudgeError: it cannot be loaded.
    """
    name = name or f"judged_{Path(path).stem}"
    locate = importlib.util.spec_from_file_location if guard is None else guard.spec
    spec = locate(name, path)
    if spec is None or spec.loader is None:
        raise JudgeError("is not a Python file", argument=path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise JudgeError(
            f"cannot be loaded: {type(error).__name__}: {error}", argument=path
        ) from error
    return vars(module)


def entry(values: Mapping[str, Any], wanted: str, path: str) -> Callable[..., Any]:
    """Return the function of a file that is judged.

    Args:
        wanted: its name; "" for a usual name, or the only public function that is no kernel.

    Raises:
        JudgeError: there is none, or no telling which.
    """
    if wanted:
        value = values.get(wanted)
        if not callable(value):
            raise JudgeError("the file has no such function", argument=path, expected=wanted)
        return value  # type: ignore[no-any-return]
    own = {
        name: value
        for name, value in values.items()
        if inspect.isfunction(value)
        and not name.startswith("_")
        and value.__module__ == values.get("__name__")
    }
    for name in _USUAL:
        if name in own:
            return own[name]
    if len(own) != 1:
        raise JudgeError(
            "several functions could be judged" if own else "there is no function to judge",
            argument=path,
            expected="FILE:FUNCTION, or one public function",
            got=", ".join(own) or "no function",
        )
    return next(iter(own.values()))


def members(path: str, hidden: tuple[str, ...]) -> dict[str, str]:
    """Return the files that a candidate consists of: its own, and those next to it that it imports.

    Args:
        hidden: files that are no part of it, whoever imports them.

    Returns:
        relative path -> text.
    """
    root = Path(path).resolve().parent
    secret = {Path(one).resolve() for one in hidden if one}
    texts: dict[str, str] = {}
    left = [Path(path).resolve()]
    while left:
        file = left.pop()
        name = file.relative_to(root).as_posix()
        if name in texts:
            continue
        texts[name] = file.read_text(encoding="utf-8")
        for module in _imported(texts[name]):
            for place in (Path(*module.split(".")), Path(*module.split(".")[:1])):
                for near in (root / place.with_suffix(".py"), root / place / "__init__.py"):
                    if near.is_file() and near not in secret:
                        left.append(near)
    return texts


def _imported(text: str) -> Iterator[str]:
    try:
        tree = ast.parse(text)
    except SyntaxError:  # loading it says so
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (one.name for one in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module


# -- signs in the source ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Seen:
    """A suspicious pattern in the source.

    Args:
        code: of a finding.
        text: of the finding.
        file, line: where.
        severity: "" for that of the code.
    """

    code: str
    text: str
    file: str
    line: int
    severity: str = ""


_NAMES = {
    "datetime.now": "reads.clock",
    "datetime.utcnow": "reads.clock",
    "datetime.today": "reads.clock",
    "elapsed_time": "reads.clock",
    "clock_gettime": "reads.clock",
    "sys.modules": "reads.harness",
    "uuid.uuid1": "reads.clock",
    "os.times": "reads.clock",
    "resource.getrusage": "reads.clock",
    "timeit.default_timer": "reads.clock",
    "st_mtime": "reads.clock",
    "st_mtime_ns": "reads.clock",
    "st_ctime_ns": "reads.clock",
    "st_atime_ns": "reads.clock",
    "getmtime": "reads.clock",
    "posix.environ": "reads.environment",
    "load_inline": "native.code",
    "__array_interface__": "native.code",
    "__array_struct__": "native.code",
    "__cuda_array_interface__": "native.code",
    "ctypeslib": "native.code",
    "from_address": "native.code",
    "ctypes": "native.code",
    "cffi": "native.code",
}
_TEXTS = ("gluon_judge", "gluon judge", "gluon-judge")
_DATES = ("now", "utcnow", "today")


def scan(texts: Mapping[str, str]) -> list[Seen]:
    """Return signs that no call at run time shows, outside of `if __name__ == "__main__"`."""
    return list(dict.fromkeys(one for file, text in texts.items() for one in signs(text, file)))


def signs(text: str, file: str) -> list[Seen]:
    """Return the signs in the text of one file, or of code that is built at run time."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):  # running it says so
        return []
    seen: list[Seen] = []
    dates = any(
        "datetime" in ast.dump(node)
        for node in ast.walk(tree)
        if isinstance(node, (ast.Import, ast.ImportFrom))
    )
    for node in _outside_main(tree):
        sign = _sign(node)
        if sign is None and dates and isinstance(node, ast.Attribute) and node.attr in _DATES:
            sign = "reads.clock", f"the source names `datetime.{node.attr}`", ""
        if sign is not None:
            code, words, severity = sign
            seen.append(Seen(code, words, file, getattr(node, "lineno", 0), severity))
    return seen


def _outside_main(tree: ast.Module) -> Iterator[ast.AST]:
    for node in tree.body:
        if isinstance(node, ast.If) and "__main__" in ast.dump(node.test):
            continue
        yield from ast.walk(node)


def _sign(node: ast.AST) -> Optional[tuple[str, str, str]]:
    if isinstance(node, ast.Attribute):
        if node.attr in REFLECTIVE:
            return "reads.harness", f"the source names `{node.attr}`", "doubt"
        owner = (
            node.value.attr
            if isinstance(node.value, ast.Attribute)
            else getattr(node.value, "id", "")
        )
        for name in (f"{owner}.{node.attr}", node.attr):
            if name in _NAMES:
                severity = "doubt" if _NAMES[name] == "reads.harness" else ""
                return _NAMES[name], f"the source names `{name}`", severity
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        names = [one.name for one in node.names]
        modules = [getattr(node, "module", None) or "", *names]
        for module in modules:
            root = module.partition(".")[0]
            if root in ("ctypes", "cffi"):
                return "native.code", f"the source imports `{root}`", ""
            if root == "gluon_judge":
                return "reads.harness", "the source imports the judge", ""
            if root == "__main__":
                return "reads.harness", "the source imports `__main__`", ""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        if any(text in node.value for text in _TEXTS) and len(node.value) < 80:
            return "reads.harness", "the source names the judge", ""
        named = REFLECTIVE & set(node.value.split("."))
        if named and len(node.value) < 80:
            return "reads.harness", f"the source names `{min(named)}`", "doubt"
    return None
