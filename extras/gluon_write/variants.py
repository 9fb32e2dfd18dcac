"""A kernel that is launched with several constants or types: an explicit function for each, and a kernel
that calls the one for its own.

    @gluon.jit
    def softmax(x, out, n, BLOCK: gl.constexpr):
        if BLOCK == 1024:
            softmax_1(x, out, n, BLOCK)
        else:
            gl.static_assert(BLOCK == 4096, "softmax has no layouts for these arguments")
            softmax_2(x, out, n, BLOCK)
"""

from __future__ import annotations

import ast
import re
from itertools import combinations
from typing import Any, Mapping, Optional, Sequence

from gluon_core import language
from gluon_core._triton import tl, unwrap

__all__ = ["chooser", "conditions", "facts_of"]

_MOST_FACTS = 4  # that tell the variants of a kernel apart
_PLAIN = (bool, int, float, str)


def _letter(name: re.Match[str]) -> str:
    """Return the letter with which signatures begin the name of an integer dtype."""
    return name[1] or "i"


def facts_of(source: Any, warps: int, space: str) -> dict[str, str]:
    """Return what a kernel can ask about a launch: expression -> the text of its value."""
    fn = source.fn
    facts = {}
    dtypes = {str(v): n for n, v in vars(language).items() if isinstance(v, tl.dtype)}
    kinds = dtypes | {re.sub("^(u?)int", _letter, name): n for name, n in dtypes.items()}
    for index, param in enumerate(fn.params):
        value = unwrap(source.constants.get((index,)))
        kind = source.signature.get(param.name)
        if param.is_constexpr:
            text = _spelled(value, dtypes, space)
            if text is not None:
                facts[param.name] = text
            continue
        facts[f"{param.name} is None"] = str(kind == "constexpr" and value is None)
        facts[f"isinstance({param.name}, {space}.tuple)"] = str(isinstance(kind, tuple))
        if isinstance(kind, str) and kind.startswith("*") and kind[1:] in kinds:
            facts[f"{param.name}.dtype.element_ty"] = f"{space}.{kinds[kind[1:]]}"
    return {**facts, f"{space}.num_warps()": str(warps)}


def _spelled(value: Any, dtypes: Mapping[str, str], space: str) -> Optional[str]:
    if isinstance(value, tl.dtype):
        name = dtypes.get(str(value))
        return None if name is None else f"{space}.{name}"
    return repr(value) if value is None or isinstance(value, _PLAIN) else None


def conditions(variants: Sequence[Sequence[Mapping[str, str]]]) -> list[str]:
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


def chooser(fn: Any, names: Sequence[str], tests: Sequence[str], space: str) -> str:
    """Return the definition of a kernel that calls one of the functions `names`: that whose test holds."""
    tree = ast.parse(fn.src).body[0]
    assert isinstance(tree, ast.FunctionDef)
    first = tree.body[0]
    lines = fn.src.splitlines()
    head = lines[: first.lineno - 1]
    if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
        head = lines[: first.end_lineno]
    indent = " " * first.col_offset
    args = tree.args
    passed = [arg.arg for arg in (*args.posonlyargs, *args.args)]
    passed += [f"*{args.vararg.arg}"] if args.vararg else []
    passed += [f"{arg.arg}={arg.arg}" for arg in args.kwonlyargs]
    body = []
    for number, (name, test) in enumerate(zip(names, tests)):
        last = number == len(names) - 1
        word = "else:" if last else f"{'elif' if number else 'if'} {test}:"
        body.append(f"{indent}{word}")
        if last:
            message = f'"{fn.__name__} has no layouts for these arguments"'
            body.append(f"{indent}    {space}.static_assert({test}, {message})")
        body.append(f"{indent}    {name}({', '.join(passed)})")
    return "\n".join([*head, *body]) + "\n"
