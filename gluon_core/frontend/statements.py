"""Explain a failed statement of a kernel in the words of the language."""

from __future__ import annotations

import ast
import inspect
import re
import sys
from typing import Any, Optional

from gluon_core._triton import tl
from gluon_core.errors import (
    ArgumentError,
    DtypeError,
    GluonError,
    KernelSyntaxError,
    LayoutError,
    ShapeError,
    SourceSpan,
)
from gluon_core.frontend import constructs
from gluon_core.frontend.host_calls import host_function
from gluon_core.frontend.scope import make_constant, value_of

__all__ = ["EXPLAIN"]

_LEFT_OUT = "AutoLayout()"  # of values that get their layout later


def _assign(generator: Any, node: Any, root: Any) -> Optional[GluonError]:
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    if len(targets) > 1:
        names = ", ".join(ast.unparse(target) for target in targets)
        return KernelSyntaxError(
            "kernels set one target at a time",
            got=ast.unparse(node),
            remedy=f"Write an assignment for each of {names}.",
        )
    target = targets[0]
    if isinstance(target, ast.Subscript):
        base, index = ast.unparse(target.value), ast.unparse(target.slice)
        value = value_of(generator, target.value)
        returned = "value" if node.value is None else ast.unparse(node.value)
        remedy = "Make a new tensor, such as with gl.where(mask, new, old)."
        if isinstance(value, tl.tensor) and value.dtype.is_ptr():
            remedy = f"Store to the address: gl.store({base} + {index}, {returned})."
        elif not isinstance(value, tl.tensor):
            remedy = "Make a new tuple, or store to a memory descriptor with `.store(value)`."
        return KernelSyntaxError("kernels cannot assign to an index", got=base, remedy=remedy)
    if isinstance(target, ast.Attribute):
        return KernelSyntaxError(
            "kernels cannot assign to an attribute",
            got=ast.unparse(target),
            remedy="Make a new value; of an aggregate with gl.aggregate_replace.",
        )
    if isinstance(target, (ast.Tuple, ast.List)):
        return _unpack(target, node, root)
    if isinstance(root, TypeError) and "to tensor" in str(root) and isinstance(target, ast.Name):
        return _not_a_tensor(generator, node, target.id, root)
    return None


def _not_a_tensor(
    generator: Any, node: Any, name: str, root: BaseException
) -> Optional[GluonError]:
    kind = re.search(r"of type <class '(?:\w+\.)*(\w+)'> to tensor", str(root))
    held = kind[1] if kind else "value"
    if isinstance(node.value, ast.Call):
        host = host_function(ast.unparse(node.value.func), value_of(generator, node.value.func))
        if host is not None:
            host.span = generator._span(node.value.func)
            return host
    return DtypeError(
        f"a {held} is a compile-time value, and {name!r} is a run-time variable",
        argument=name,
        remedy=f"Annotate it: {name}: gl.constexpr = {ast.unparse(node.value)}",
    )


def _unpack(target: Any, node: Any, root: Any) -> Optional[GluonError]:
    if any(isinstance(item, ast.Starred) for item in target.elts):
        return KernelSyntaxError(
            "a starred target is not supported in kernels",
            got=ast.unparse(target),
            remedy="Name the items one by one, or slice the tuple.",
        )
    text = str(root)
    if isinstance(root, (ValueError, IndexError)):
        match = re.search(r"got (\d+)", text)
        return ShapeError(
            "the names on the left are not as many as the values on the right",
            expected=f"{len(target.elts)} values for ({ast.unparse(target).strip('()')})",
            got=match[1] if match else ast.unparse(node.value),
        )
    if isinstance(root, (TypeError, AttributeError, AssertionError)):
        return DtypeError(
            "only a tuple can be unpacked",
            expected=f"{len(target.elts)} values for ({ast.unparse(target).strip('()')})",
            got=ast.unparse(node.value),
        )
    return None


def _if(generator: Any, node: ast.If, root: Any) -> Optional[GluonError]:
    text = str(root)
    match = re.search(r"Mismatched type for (\w+) between then block \((.*)\) and else", text)
    other = re.search(r"else block \((.*)\)", text)
    if match is not None and other is not None:
        return _differing(
            match[1], match[2], other[1], "from branch to branch of an `if`", "",
            generator._span(_setting(node, match[1])),
        )  # fmt: skip
    match = re.search(
        r"initial value for `(\w+)` is of type (.*), but the \w+ block redefines it as (.*)", text
    )
    if match is not None:
        before, after = _redefined(root) or (match[2], match[3])
        return _differing(
            match[1], before, after, "in one branch of an `if`", "as before the `if`",
            generator._span(_setting(node, match[1])),
        )  # fmt: skip
    if "NoneType" in text and not isinstance(root, GluonError):
        stores = (n for n in ast.walk(node) if isinstance(n, ast.Assign))
        empty = [
            n.targets[0]
            for n in stores
            if isinstance(n.value, ast.Constant) and n.value.value is None
        ]
        name = repr(ast.unparse(empty[0])) if empty else "a name"
        return DtypeError(
            f"{name} is None in one branch of an `if`, and a value in the other",
            remedy="Give it a value of the same type in both branches.",
        )
    inside = next((n for n in ast.walk(node) if isinstance(n, ast.Return)), None)
    if "return" in text and inside is not None:
        return _return_in_loop(generator, inside)
    if "ambiguous" in text or "condition" in text:
        return DtypeError(
            "the condition of an `if` must be one boolean",
            got=ast.unparse(node.test),
            remedy="Choose by element with gl.where, or reduce the tensor to one value first.",
        )
    return None


def _differing(
    name: str, first: str, second: str, where: str, note: str, span: SourceSpan
) -> GluonError:
    """Return the error of a value that has one type and then another.

    Args:
        name: of the variable. first, second: the types as Triton prints them, `<[64], fp32, LAYOUT>`.
        where: it changes. note: of the first type. span: of the second.
    """
    shapes, dtypes, layouts = zip(*(_parts_of(kind) for kind in (first, second)))
    error: type[GluonError]
    shown = repr(name) if name.isidentifier() else name
    if shapes[0] != shapes[1]:
        error, word, parts = ShapeError, "shape", shapes
        remedy = "Give the value of another shape a name of its own."
        if not shapes[0] and "loop" in where:  # such as a sum that begins as 0.0
            remedy = f"Begin with a tensor of that shape: gl.full({shapes[1]}, value, dtype)."
    elif dtypes[0] != dtypes[1]:
        error, word, parts = DtypeError, "type", dtypes
        remedy = "Convert one of them: value.to(dtype)."
    elif all(layouts):
        error, word = LayoutError, "layout"
        parts = tuple("one that is left out" if one == _LEFT_OUT else one for one in layouts)
        written = next(one for one in layouts if one != _LEFT_OUT)
        remedy = f"Convert the other value: gl.convert_layout(value, gl.{written})."
    else:  # such as two buffers
        error, word, parts = DtypeError, "type", (first, second)
        remedy = "Give it one type."
    old, new = (part or "a scalar" for part in parts)
    return error(
        f"{shown} changes its {word} {where}",
        expected=f"{old}, {note}" if note else old,
        got=new,
        remedy=remedy,
        span=span,
    )


def _setting(node: ast.AST, name: str) -> ast.AST:
    """Return the statement of a branch or loop that sets a variable; all of it where several do."""
    kinds = (ast.Assign, ast.AugAssign, ast.AnnAssign)
    setting = [
        part for part in ast.walk(node) if isinstance(part, kinds)
        and any(isinstance(n, ast.Name) and n.id == name and isinstance(n.ctx, ast.Store) for n in ast.walk(part))
    ]  # fmt: skip
    return setting[0] if len(setting) == 1 else node


def _redefined(root: BaseException) -> Optional[tuple[str, str]]:
    """Return the types of a value before an `if` and in its branch; Triton's text leaves their layouts out."""
    trace = root.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    names = trace.tb_frame.f_locals if trace is not None else {}
    values = names.get("value"), names.get("defs", {}).get(names.get("name"))
    kinds = [getattr(value, "type", None) for value in values]
    return None if None in kinds else (str(kinds[0]), str(kinds[1]))


def _parts_of(kind: str) -> tuple[str, str, str]:
    """Return shape, dtype and layout of a type as Triton prints it, "" for those that it lacks."""
    match = re.fullmatch(r"<(\[[^]]*\]), ([^,>]+)(?:, (.*))?>", kind)
    return (match[1].replace("'", ""), match[2], match[3] or "") if match else ("", kind, "")


def _return_in_loop(generator: Any, node: ast.Return) -> KernelSyntaxError:
    return KernelSyntaxError(
        "`return` within a loop is not supported in kernels",
        remedy="Keep the result in a variable, and return it after the loop.",
        span=generator._span(node),
    )


def _returns(generator: Any, node: Any, root: Any) -> Optional[GluonError]:
    match = re.search(
        r"(?:Return type mismatch:?|Inconsistent return types:) (.*?) and (.*?)(?:\. Note|$)",
        str(root),
    )
    returns = [n for n in ast.walk(node) if isinstance(n, ast.Return)]
    if match is None or not returns:
        return None
    return _differing(
        f"the result of {generator.jit_fn.__name__}",
        match[1].replace("triton.language.", ""),
        match[2].replace("triton.language.", ""),
        "from `return` to `return`",
        "",
        generator._span(max(returns, key=lambda statement: statement.lineno)),
    )


def _carried(generator: Any, node: Any, root: Any) -> Optional[GluonError]:
    text = str(root)
    match = re.search(
        r"variable (\w+) has initial type (.*) but is re-assigned to (.*?) in loop", text
    )
    if match is not None:
        return _differing(
            match[1], match[2], match[3], "in a loop", "as before the loop",
            generator._span(_setting(node, match[1])),
        )  # fmt: skip
    match = re.search(
        r"variable (\w+) changed type, was <class '(.*)'> but is now <class '(.*)'>", text
    )
    if match is not None:
        # Triton's text has the two the other way round.
        now, before = (name.rpartition(".")[2] for name in match.group(2, 3))
        kind = getattr(sys.modules.get(match[2].rpartition(".")[0]), now, None)
        return DtypeError(
            f"{match[1]!r} changes its type in a loop",
            expected=f"{before}, as before the loop",
            got=now,
            remedy=getattr(kind, "how_to_begin", None)
            or "Let it end the body with its type before the loop, or start with its type after the body.",
        )
    match = re.search(r"cannot reassign constexpr (\w+) in the loop", text)
    match = match or re.search(r"variable (\w+) is not a triton value", text)
    nothing = match and _returns_nothing(generator, node, match[1])
    if match is not None and nothing:
        return DtypeError(
            f"{nothing!r} returns nothing, and {match[1]!r} is set to that",
            remedy="Call it without assigning its result.",
        )
    if match is not None:
        return DtypeError(
            f"{match[1]!r} changes in a loop, and was a compile-time value before",
            remedy=f"Start with a run-time value: {match[1]} = gl.to_tensor(...), or loop over "
            "gl.static_range.",
        )
    return None


def _returns_nothing(generator: Any, node: Any, name: str) -> Optional[str]:
    """Return the op that a variable is set to within a loop, if that op gives no value."""
    for inner in ast.walk(node):
        if not isinstance(inner, ast.Assign) or not isinstance(inner.value, ast.Call):
            continue
        if name not in [target.id for target in inner.targets if isinstance(target, ast.Name)]:
            continue
        function = value_of(generator, inner.value.func)
        if getattr(function, "__triton_builtin__", False):
            if inspect.signature(function).return_annotation in (None, "None"):
                return ast.unparse(inner.value.func)
    return None


def _for(generator: Any, node: ast.For, root: Any) -> Optional[GluonError]:
    loops = next((n for n in ast.walk(node) if isinstance(n, ast.Return)), None)
    if isinstance(root, AssertionError) and "block" in str(root) and loops is not None:
        return _return_in_loop(generator, loops)
    if isinstance(node.target, ast.Tuple):
        return KernelSyntaxError(
            "a loop in a kernel has one variable",
            got=ast.unparse(node.target),
            remedy="Unpack the item in the body of the loop.",
        )
    error = constructs.iteration(node, None) or _carried(generator, node, root)
    if error is not None:
        return error
    called = node.iter.func if isinstance(node.iter, ast.Call) else None
    if called is not None and isinstance(root, (TypeError, IndexError)) and "ints" not in str(root):
        return ArgumentError(
            "the arguments of a loop are integers",
            expected=f"{ast.unparse(called)}(end), or (start, end), or (start, end, step)",
            got=ast.unparse(node.iter),
        )
    if "constexpr" in str(root):
        arguments = node.iter.args if isinstance(node.iter, ast.Call) else []
        remedy = make_constant(generator, arguments)
        return DtypeError(
            "the bounds of gl.static_range are compile-time values",
            got=", ".join(map(ast.unparse, arguments)),
            remedy=f"{remedy} Or loop over `range`.".strip(),
        )
    if isinstance(root, TypeError) and "must all be ints" in str(root):
        kinds = str(root).partition("are ")[2].replace("triton.language.", "")
        return DtypeError(
            "the bounds and the step of a loop are integers",
            expected="start, end and step of integer types",
            got=kinds,
            remedy="Convert with x.to(gl.int32).",
        )
    return None


def _while(generator: Any, node: ast.While, root: Any) -> Optional[GluonError]:
    if node.orelse:
        return constructs.no_else(None)
    return _carried(generator, node, root)


def _with(generator: Any, node: ast.With, root: Any) -> Optional[GluonError]:
    inside = next((n for n in ast.walk(node) if isinstance(n, ast.Return)), None)
    if inside is not None:
        return KernelSyntaxError(
            "`return` within a `with` block is not supported in kernels",
            remedy="Keep the result in a variable, and return it after the block.",
            span=generator._span(inside),
        )
    return KernelSyntaxError(
        "`with` is not supported in kernels",
        got=", ".join(ast.unparse(item) for item in node.items),
        remedy="Call the functions of its begin and its end.",
    )


EXPLAIN: Any = (
    ((ast.Assign, ast.AnnAssign, ast.AugAssign), _assign),
    (ast.If, _if),
    (ast.For, _for),
    ((ast.FunctionDef, ast.Return), _returns),
    (ast.While, _while),
    (ast.With, _with),
)
