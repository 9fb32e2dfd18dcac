"""A kernel that is launched with several constants or types: an explicit function for each, and a kernel
that calls the one for its own.

    @gluon.jit
    def softmax(x, out, n, BLOCK: gl.constexpr):
        if BLOCK == 1024:
            softmax_1(x, out, n, BLOCK)
        else:
            gl.static_assert(BLOCK == 4096, "softmax has no layouts for these arguments")
            softmax_2(x, out, n, BLOCK)

Alignment is a fact of a launch that no kernel can ask for. The host finds it:

    @triton.heuristics({"ALIGNED": lambda args: args["n"] % 16 == 0})
    @gluon.jit
    def softmax(x, out, n, BLOCK: gl.constexpr, ALIGNED: gl.constexpr):
        if ALIGNED:
            softmax_1(x, out, n, BLOCK)
        else:
            softmax_2(x, out, n, BLOCK)
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations
from pathlib import Path
from typing import Any, Mapping, Sequence

from gluon_core import language
from gluon_core._triton import tl, unwrap
from gluon_core.launch.jit import GluonJITFunction
from gluon_core.layouts.base import Layout
from gluon_write.text.form import free_name
from gluon_write.text.syntax import is_docstring, nodes_in
from gluon_write.writing.short_text import ShortText
from gluon_write.writing.source import spelled

__all__ = [
    "Choice",
    "aligned_of",
    "chooser",
    "choices_of",
    "decorator_of",
    "facts_of",
    "heuristics",
    "unnamed_constants",
]

_MOST_FACTS = 4  # that tell the variants of a kernel apart
_PLAIN = (bool, int, float, str)
_INTEGERS = ("i32", "i64", "u32", "u64")
_UNIT = 16  # of alignment
_WIDTH = 100  # of a line


@dataclass(frozen=True)
class Choice:
    """Hold when one of the functions of a kernel is called.

    Attributes:
        variant: its index. test: condition of the kernel's parameters, "" for any.
        aligned: parameters that are multiples of 16. first: of the functions with this test. last: of these.
    """

    variant: int
    test: str
    aligned: tuple[str, ...]
    first: bool
    last: bool


def _letter(name: re.Match[str]) -> str:
    """Return the letter with which signatures begin the name of an integer dtype."""
    return name[1] or "i"


def facts_of(source: Any, warps: int, space: str) -> dict[str, str]:
    """Return what a kernel can ask about a launch: expression -> the text of its value."""
    fn = source.fn
    scope = fn.get_capture_scope()
    facts: dict[str, str] = {}
    dtypes = {str(v): n for n, v in vars(language).items() if isinstance(v, tl.dtype)}
    kinds = dtypes | {re.sub("^(u?)int", _letter, name): n for name, n in dtypes.items()}
    for index, param in enumerate(fn.params):
        value = unwrap(source.constants.get((index,)))
        kind = source.signature.get(param.name)
        if param.is_constexpr:
            facts |= _constants(param.name, value, dtypes, space, scope)
            continue
        facts[f"{param.name} is None"] = str(kind == "constexpr" and value is None)
        facts[f"isinstance({param.name}, {space}.tuple)"] = str(isinstance(kind, tuple))
        if kind == "constexpr" and value == 1 or kind in _INTEGERS:
            facts[f"isinstance({param.name}, {space}.tensor)"] = str(kind != "constexpr")
        if isinstance(kind, str) and kind.startswith("*") and kind[1:] in kinds:
            facts[f"{param.name}.dtype.element_ty"] = f"{space}.{kinds[kind[1:]]}"
    for name in _around(fn):
        facts |= _constants(name, scope[name], dtypes, space, scope)
    return {**facts, f"{space}.num_warps()": str(warps)}


@lru_cache(maxsize=16)
def _bound_once(file: str) -> list[str]:
    """Return the names that a file's own statements bind once, in none of its loops."""
    try:
        body = ast.parse(Path(file).read_text()).body
    except (OSError, SyntaxError, UnicodeDecodeError):
        return []
    bound: Counter[str] = Counter()
    while body:
        node = body.pop()
        inner = [
            n for n in ast.iter_child_nodes(node) if isinstance(n, (ast.stmt, ast.excepthandler))
        ]
        loop = isinstance(node, (ast.For, ast.While))
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            bound[node.name] += 1
            continue
        for one in nodes_in(node) if loop else ast.iter_child_nodes(node):
            words = [one] if loop else [] if isinstance(one, ast.stmt) else list(nodes_in(one))
            names = [
                n.id for n in words if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)
            ]
            bound.update(names * (2 if loop else 1))
            bound.update(a.asname or a.name for a in words if isinstance(a, ast.alias))
        body += [] if loop else inner  # type: ignore[arg-type]
    return [name for name, count in bound.items() if count == 1]


def unnamed_constants(source: Any, facts: Mapping[str, str]) -> dict[str, Any]:
    """Return the constants of a launch that no fact of it names."""
    fn, words = source.fn, set(re.findall(r"\w+", " ".join(facts)))
    scope = fn.get_capture_scope()
    values = {p.name: source.constants.get((i,)) for i, p in enumerate(fn.params) if p.is_constexpr}
    values |= {name: scope[name] for name in _around(fn)}
    return {name: unwrap(value) for name, value in values.items() if name not in words}


def _around(fn: Any) -> list[str]:
    """Return the variables of the function that makes a kernel; each of its kernels has a copy of the functions."""
    scope = fn.get_capture_scope()
    names = [name for name in fn.fn.__code__.co_freevars if name in scope]
    return [name for name in names if not isinstance(unwrap(scope[name]), GluonJITFunction)]


def _constants(
    name: str, value: Any, dtypes: Mapping[str, str], space: str, scope: Mapping[str, Any]
) -> dict[str, str]:
    """Return what a kernel can ask about a constant, part by part."""
    value = unwrap(value)
    if isinstance(value, (tuple, list, tl.tuple)):
        parts = [
            _constants(f"{name}[{i}]", part, dtypes, space, scope) for i, part in enumerate(value)
        ]
        return {f"len({name})": str(len(parts))} | {
            key: text for one in parts for key, text in one.items()
        }
    if isinstance(value, tl.dtype):
        kind = dtypes.get(str(value))
        return {} if kind is None else {name: f"{space}.{kind}"}
    if isinstance(value, Layout):
        return {name: spelled(value, scope)}
    if isinstance(value, GluonJITFunction):
        once = _bound_once(scope["__file__"]) if "__file__" in scope else ()
        known = (word for word in once if unwrap(scope.get(word)) is value)
        word = next((word for word in known if word != name.partition("[")[0]), None)
        return {} if word is None else {name: word}
    return {name: repr(value)} if value is None or isinstance(value, _PLAIN) else {}


def aligned_of(source: Any) -> tuple[frozenset[str], int]:
    """Return the integer parameters of a launch that are multiples of 16, and how many facts of that kind it has."""
    aligned = {path[0] for path, known in source.attrs.items() if known and len(path) == 1}
    params = [source.fn.params[index].name for index in aligned]
    integers = frozenset(name for name in params if source.signature.get(name) in _INTEGERS)
    return integers, len(aligned)


def choices_of(
    variants: Sequence[Sequence[Mapping[str, str]]],
    aligned: Sequence[Sequence[tuple[frozenset[str], int]]],
) -> list[Choice]:
    """Return when each variant is called; some are not, where neither their parameters nor their alignment differ.

    Args:
        variants: the facts of the launches of each. aligned: what `aligned_of` says of these.
    """
    groups: list[list[int]] = []
    for number, launches in enumerate(variants):
        alike = [g for g in groups if any(f in variants[n] for n in g for f in launches)]
        groups = [g for g in groups if g not in alike] + [[*sum(alike, []), number]]
    groups.sort()
    tests = _conditions([[facts for n in group for facts in variants[n]] for group in groups])
    choices = []
    for group, test in zip(groups, tests):
        known = {n: frozenset.intersection(*(names for names, _ in aligned[n])) for n in group}
        common = frozenset.intersection(*known.values())
        # A layout for fewer facts is right with more of them.
        least = {n: min(count for _, count in aligned[n]) for n in group}
        ranked = sorted(group, key=lambda n: (-len(known[n]), least[n], n))
        kept = [n for i, n in enumerate(ranked) if known[n] not in [known[m] for m in ranked[:i]]]
        for number in kept:
            names = tuple(sorted(known[number] - common)) if number != kept[-1] else ()
            ends = number == kept[0], number == kept[-1]
            choices.append(Choice(number, test, names, *ends))
    return choices


def heuristics(
    choices: Sequence[Choice], taken: set[str]
) -> tuple[dict[tuple[str, ...], str], list[str]]:
    """Return the parameters that say what is aligned, and the lines of the decorator that finds them."""
    flags = {
        names: free_name("ALIGNED", taken)
        for names in dict.fromkeys(c.aligned for c in choices)
        if names
    }
    entries = []
    for names, flag in flags.items():
        each = f'args["{names[0]}"] % {_UNIT} == 0'
        if len(names) > 1:
            listed = ", ".join(f'"{name}"' for name in names)
            each = f"all(args[name] % {_UNIT} == 0 for name in ({listed}))"
        entries.append(f'        "{flag}": lambda args: {each},')
    return flags, entries


def decorator_of(entries: Sequence[str]) -> str:
    """Return the decorator that finds parameters on the host, "" for none."""
    listed = "\n".join(entries)
    return f"@triton.heuristics(\n    {{\n{listed}\n    }}\n)\n" if entries else ""


def _conditions(variants: Sequence[Sequence[Mapping[str, str]]]) -> list[str]:
    """Return a condition for each variant that holds for its launches and for no other's.

    Args:
        variants: the facts of the launches of each.

    Returns:
        As many as there are variants; fewer where the last have no fact of their own.
    """
    while len(variants) > 1:
        launches = [facts for variant in variants for facts in variant]
        keys = [key for key in launches[0] if all(key in facts for facts in launches)]
        keys = [key for key in keys if len({facts[key] for facts in launches}) > 1]
        for size in range(1, min(len(keys), _MOST_FACTS) + 1):
            for chosen in combinations(keys, size):
                texts = [
                    {tuple(facts[key] for key in chosen): None for facts in variant}
                    for variant in variants
                ]
                if sum(map(len, texts)) == len({values for text in texts for values in text}):
                    return [_either(chosen, list(text)) for text in texts]
        variants = variants[:-1]
    return [""]


def _either(keys: Sequence[str], choices: Sequence[Sequence[str]]) -> str:
    each = [" and ".join(map(_holds, keys, values)) for values in choices]
    if len(each) == 1:
        return each[0]
    return " or ".join(f"({one})" if len(keys) > 1 else one for one in each)


def _holds(key: str, value: str) -> str:
    if value in ("True", "False"):
        return key if value == "True" else f"not ({key})" if " " in key else f"not {key}"
    return f"{key} is None" if value == "None" else f"{key} == {value}"


def chooser(
    fn: Any,
    names: Mapping[int, str],
    choices: Sequence[Choice],
    flags: Mapping[tuple[str, ...], str],
    space: str,
    shorts: Mapping[int, ShortText],
) -> str:
    """Return the definition of a kernel that calls one of its functions.

    Args:
        names: of the functions, by variant. flags: parameters that say what is aligned.
        shorts: of variants with a form for short launches.
    """
    tree = ast.parse(fn.src).body[0]
    assert isinstance(tree, ast.FunctionDef)
    first = tree.body[0]
    lines = fn.src.splitlines()
    documented = is_docstring(first)
    added = [*flags.values(), *dict.fromkeys(one.flag for one in shorts.values())]
    head = _with_flags(lines[: first.lineno - 1], tree, added, space)
    head += lines[first.lineno - 1 : first.end_lineno] if documented else []
    outer = " " * first.col_offset
    args = tree.args
    passed = [arg.arg for arg in (*args.posonlyargs, *args.args)]
    passed += [f"*{args.vararg.arg}"] if args.vararg else []
    passed += [f"{arg.arg}={arg.arg}" for arg in args.kwonlyargs]
    body: list[str] = []
    for choice in choices:
        indent = outer
        last = choice.test == choices[-1].test
        if choice.test and choice.first:
            word = "elif" if body else "if"
            body.append(f"{indent}{'else' if last else f'{word} {choice.test}'}:")
            if last and not _excluded(choice.test, choices[0].test):
                message = f'"{fn.__name__} has no layouts for these arguments"'
                body.append(f"{indent}    {space}.static_assert({choice.test}, {message})")
        indent += "    " if choice.test else ""
        if not (choice.first and choice.last):
            word = "if" if choice.first else "elif"
            tested = "else" if choice.last else f"{word} {flags[choice.aligned]}"
            body.append(f"{indent}{tested}:")
            indent += "    "
        short = shorts.get(choice.variant)
        call = f"{names[choice.variant]}({', '.join(passed)})"
        if short is not None:
            body += [f"{indent}if {short.flag}:", f"{indent}    {short.name}({', '.join(passed)})"]
            body += [f"{indent}else:"]
            indent += "    "
        body.append(f"{indent}{call}")
    return "\n".join([*head, *body]) + "\n"


def _excluded(test: str, other: str) -> bool:
    """Return True if one of two conditions is the other one negated."""
    first, second = (ast.parse(text, mode="eval").body for text in (test, other))
    for one, two in ((first, second), (second, first)):
        if isinstance(one, ast.UnaryOp) and isinstance(one.op, ast.Not):
            if ast.dump(one.operand) == ast.dump(two):
                return True
    return False


def _with_flags(
    head: list[str], tree: ast.FunctionDef, flags: Sequence[str], space: str
) -> list[str]:
    """Return the lines of a kernel's head with more parameters."""
    if not flags:
        return head
    args = tree.args
    listed: list[Any] = [*args.posonlyargs, *args.args, *args.kwonlyargs, *args.defaults]
    listed += [default for default in args.kw_defaults if default is not None]
    last = max(listed, key=lambda n: (n.end_lineno or 0, n.end_col_offset or 0))
    default = " = False" if args.defaults else ""
    added = "".join(f", {flag}: {space}.constexpr{default}" for flag in flags)
    line, column = (last.end_lineno or 1) - 1, last.end_col_offset
    held = head[line].encode()
    changed = (held[:column] + added.encode() + held[column:]).decode()
    if len(changed) > _WIDTH and line == tree.lineno - 1:
        start, end = changed.index("(") + 1, changed.rindex(")")
        return [*head[:line], changed[:start], f"    {changed[start:end]}", changed[end:]]
    return [*head[:line], changed, *head[line + 1 :]]
