"""Parse the arguments of users: `FILE:KERNEL`, signatures, and values of constexprs."""

from __future__ import annotations

import ast
import functools
import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any, Mapping, Optional, Sequence

from gluon_cli.output import UsageError, unparsed
from gluon_cli.scripts import importable, package_of
from gluon_core.errors import ArgumentError, GluonError, did_you_mean
from gluon_core.plugin.paths import load_path
from gluon_core.registry.load import registry

__all__ = [
    "Kernel",
    "find_kernel",
    "load_file",
    "parse_assignments",
    "parse_value",
    "signature_of",
    "source_of",
]


def load_file(path: str) -> ModuleType:
    """Return the module that the Python file `path` makes; its folder is importable meanwhile.

    Raises:
        UsageError: there is no such file, or it cannot be imported.
    """
    file = Path(path)
    if file.is_dir():
        raise UsageError("a folder, and no file", argument="FILE", got=path)
    if not file.is_file():
        close = did_you_mean(file.name, (p.name for p in file.parent.glob("*.py") if p.is_file()))
        raise UsageError("no such file", argument="FILE", got=path, remedy=close)
    package = package_of(file)
    name = f"{package}.gluon_file_{file.stem}" if package else f"gluon_file_{file.stem}"
    spec = importlib.util.spec_from_file_location(name, file.resolve())
    if spec is None or spec.loader is None:
        raise UsageError("not a Python file", argument="FILE", got=path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        with importable(file):
            spec.loader.exec_module(module)
    except GluonError:
        raise
    except (Exception, SystemExit) as error:
        if isinstance(error, SyntaxError) and error.filename == str(file.resolve()):
            raise unparsed(error, path) from None
        raise UsageError(
            f"{path} cannot be imported: {type(error).__name__}: {error}", argument="FILE"
        ) from error
    return module


class Kernel:
    """A kernel found in a file, with the `Example` that says how to call it, if there is one."""

    def __init__(self, name: str, kernel: Any, example: Any = None):
        self.name = name
        self.kernel = kernel
        self.example = example


def find_kernel(spec: str) -> Kernel:
    """Return the kernel that `FILE:KERNEL` names; `FILE` alone where the file has one example or kernel.

    Raises:
        UsageError: no such file or kernel, or several to choose from.
    """
    path, colon, name = spec.rpartition(":")
    if not colon or not path or name.endswith(".py") or "/" in name or "\\" in name:
        path, name = spec, ""
    module = load_file(path)
    examples = {id(e.kernel): e for e in reversed(getattr(module, "EXAMPLES", ()))}
    kernels = {key: value for key, value in vars(module).items() if _is_kernel(value, module)}
    if name:
        if name not in kernels:
            raise UsageError(
                f"{path} has no kernel {name!r}",
                argument="KERNEL",
                got=repr(name),
                remedy=did_you_mean(name, kernels) or _kernels_line(kernels),
            )
        return Kernel(name, kernels[name], examples.get(id(kernels[name])))
    entries = [key for key, value in kernels.items() if id(value) in examples]
    entries = entries or _not_called(kernels)
    if len(entries) != 1:
        raise UsageError(
            f"{path} has {'several kernels' if entries else 'no kernel'}",
            argument="KERNEL",
            remedy=f"Name one: {', '.join(f'{path}:{name}' for name in entries)}."
            if entries
            else _kernels_line(entries),
        )
    kernel = kernels[entries[0]]
    return Kernel(entries[0], kernel, examples.get(id(kernel)))


def _not_called(kernels: Mapping[str, Any]) -> list[str]:
    """Those that no other one of the file mentions: the others are its functions."""
    from gluon_core.compiler.source import jit_function

    mentioned: set[str] = set()
    for name, kernel in kernels.items():
        mentioned.update(set(jit_function(kernel).fn.__code__.co_names) - {name})
    return [name for name in kernels if name not in mentioned] or list(kernels)


def _kernels_line(kernels: Any) -> str:
    return (
        f"It has {', '.join(kernels)}." if kernels else "It has none: decorate one with gluon.jit."
    )


def _is_kernel(value: Any, module: ModuleType) -> bool:
    from gluon_core.compiler.source import jit_function

    if isinstance(value, type) or not hasattr(value, "fn"):
        return False
    try:
        return bool(jit_function(value).fn.__module__ == module.__name__)
    except ArgumentError:
        return False


# -- values --------------------------------------------------------------------------------------


def parse_assignments(items: Sequence[str], option: str) -> dict[str, Any]:
    """`["BLOCK=128", "layout=BlockedLayout([1], [32], [4], [0])"]` as a dict.

    Raises:
        UsageError: an item without `=`, or a value that cannot be read.
    """
    values: dict[str, Any] = {}
    for item in items:
        name, equals, text = item.partition("=")
        if not equals or not name.strip().isidentifier():
            raise UsageError("must be NAME=VALUE", argument=option, got=repr(item))
        values[name.strip()] = parse_value(text, option)
    return values


def parse_value(text: str, argument: str = "value") -> Any:
    """Return a Python literal, a dtype (`float16`), or a layout (`BlockedLayout([1], [32], [4], [0])`,
    `gl.` in front if you like). Nothing is evaluated but constructors of layouts.

    Raises:
        UsageError: anything else.
        LayoutError: an illegal layout.
    """
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except SyntaxError as error:
        raise UsageError(
            f"cannot be read: {error.msg}", argument=argument, got=repr(text)
        ) from None
    return _value(tree, text, argument)


def _value(node: ast.AST, text: str, argument: str) -> Any:
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, (ast.List, ast.Tuple)):
        items = [_value(item, text, argument) for item in node.elts]
        return tuple(items) if isinstance(node, ast.Tuple) else items
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.USub, ast.UAdd)):
        value = _value(node.operand, text, argument)
        if isinstance(value, (int, float)):
            return -value if isinstance(node.op, ast.USub) else value
    if isinstance(node, (ast.Name, ast.Attribute)):
        value = _named(node, text, argument)
        if not isinstance(value, type):
            return value
    if isinstance(node, ast.Call) and isinstance(node.func, (ast.Name, ast.Attribute)):
        callee = _named(node.func, text, argument)
        if isinstance(callee, type) and all(k.arg for k in node.keywords):
            args = [_value(item, text, argument) for item in node.args]
            named = {str(k.arg): _value(k.value, text, argument) for k in node.keywords}
            return _construct(callee, args, named, text, argument)
    raise UsageError(
        "neither a literal, nor a dtype, nor a layout", argument=argument, got=repr(text)
    )


def _construct(
    cls: type, args: Sequence[Any], named: Mapping[str, Any], text: str, argument: str
) -> Any:
    try:
        return cls(*args, **named)
    except TypeError as error:
        raise UsageError(f"{cls.__name__}: {error}", argument=argument, got=repr(text)) from None


def _named(node: ast.AST, text: str, argument: str) -> Any:
    """Return the layout class or the dtype that a dotted name means in the language."""
    from gluon_core import language
    from gluon_core._triton import dtype
    from gluon_core.layouts import Layout

    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    parts.append(node.id if isinstance(node, ast.Name) else "")
    names = [part for part in reversed(parts)]
    if names[0] == "gl" and len(names) > 1:
        names = names[1:]
    value: Any = language
    for name in names:
        try:
            value = None if name.startswith("_") else getattr(value, name, None)
        except GluonError:
            value = None
    if value is None and len(names) == 1:
        long = {short: name for name, short in _short_names().items()}.get(names[0])
        value = getattr(language, long) if long else None
    if isinstance(value, dtype) or (isinstance(value, type) and issubclass(value, Layout)):
        return value
    of_vendors = _layouts_of_vendors()
    if len(names) == 1 and names[0] in of_vendors:
        return of_vendors[names[0]]
    known = [n for n in dir(language) if n.endswith("Layout")]
    raise UsageError(
        f"{'.'.join(names)} is neither a dtype nor a layout",
        argument=argument,
        got=repr(text),
        remedy=did_you_mean(names[-1], [*known, *of_vendors, *_short_names()]),
    )


def _layouts_of_vendors() -> dict[str, type]:
    """Return the layout classes of the languages of all backends by name, where one class has the name."""
    from gluon_core.layouts import Layout

    for backend in registry().backends.values():
        if backend.language.namespace:
            load_path(backend.language.namespace)
    classes: dict[str, type] = {}
    several: set[str] = set()
    waiting: list[type] = [Layout]
    cls: type
    while waiting:
        for cls in waiting.pop().__subclasses__():
            waiting.append(cls)
            if cls.__name__.startswith("_") or classes.setdefault(cls.__name__, cls) is cls:
                continue
            several.add(cls.__name__)
    return {name: cls for name, cls in classes.items() if name not in several}


# -- from kernel to source -----------------------------------------------------------------------


def source_of(
    kernel: Kernel,
    target: Any,
    signature: Optional[str],
    constexprs: Mapping[str, Any],
    options: Mapping[str, Any],
) -> tuple[Any, dict[str, Any]]:
    """Return the source and the options of a compilation.

    Args:
        signature: comma-separated types of the parameters that have no value in `constexprs`, in
            their order, or `name=type` items; tuples in parentheses, descriptors as in
            `gluon_core.values.descriptors`; None takes those of the file's `Example`.

    Raises:
        UsageError: types and parameters do not match up.
    """
    from gluon_core.compiler import GluonASTSource

    if signature is None:
        if kernel.example is not None:
            source, usual = kernel.example.source(target)
            if constexprs:
                values = {source.fn.arg_names[p[0]]: v for p, v in source.constants.items()}
                types = {k: v for k, v in source.signature.items() if k not in constexprs}
                values = {k: v for k, v in values.items() if k not in constexprs}
                source = GluonASTSource(source.fn, types, {**values, **constexprs}, source.attrs)
            return source, {**usual, **options}
        signature = ""
    return GluonASTSource(
        kernel.kernel, _types(kernel.kernel, signature, constexprs), constexprs
    ), dict(options)


def signature_of(source: Any) -> str:
    """Return the types of a source as `--signature` takes them, divisibility by 16 included."""

    def text(kind: Any, path: tuple[int, ...]) -> str:
        if isinstance(kind, tuple):
            return f"({', '.join(text(part, (*path, i)) for i, part in enumerate(kind))})"
        aligned = any(
            key == "tt.divisibility" and value % 16 == 0
            for key, value in source.attrs.get(path, ())
        )
        return f"{kind}{':16' if aligned else ''}"

    kinds = enumerate(source.signature.get(name) for name in source.fn.arg_names)
    return ", ".join(text(kind, (i,)) for i, kind in kinds if kind != "constexpr")


def _items(text: str) -> list[str]:
    """Split at commas, except those inside brackets of any kind."""
    items, depth, start = [], 0, 0
    for place, letter in enumerate(f"{text},"):
        depth += (letter in "([<") - (letter in ")]>")
        if letter == "," and not depth:
            items.append(text[start:place].strip())
            start = place + 1
    items.append(text[start:].strip())
    return [item for item in items if item]


def _kind(text: str) -> Any:
    """Return a type, or a tuple of types in parentheses."""
    text = text.strip()
    if text.startswith("(") and text.endswith(")"):
        return tuple(_kind(item) for item in _items(text[1:-1]))
    pointer, word, rest = re.fullmatch(r"(\**)(\w*)(.*)", text, re.DOTALL).groups()  # type: ignore[union-attr]
    return f"{pointer}{_short_names().get(word, word)}{rest}"


@functools.cache
def _short_names() -> dict[str, str]:
    """`float32` -> `fp32`: the name in the language -> the name in a signature."""
    from gluon_core import language
    from gluon_core._triton import dtype

    names = vars(language).items()
    return {name: str(value.name) for name, value in names if isinstance(value, dtype)}


def _types(kernel: Any, signature: str, constexprs: Mapping[str, Any]) -> dict[str, Any]:
    from gluon_core.compiler.source import jit_function

    fn = jit_function(kernel)
    items = _items(signature)
    named = [re.match(r"(\w+)\s*=\s*(.*)", item) for item in items]
    if any(named):
        pairs = (match.groups() if match else (item, "") for match, item in zip(named, items))
        return {name: _kind(kind) for name, kind in pairs}
    wanted = [
        name
        for index, name in enumerate(fn.arg_names)
        if name not in constexprs and index not in fn.constexprs
    ]
    if len(items) != len(wanted):
        raise UsageError(
            f"{fn.__name__} needs a type for each of {', '.join(wanted) or 'no parameter'}",
            argument="--signature",
            expected=f"{len(wanted)} type{'s' * (len(wanted) != 1)}"
            + (", such as '*fp32' or 'i32:16'" if wanted else ""),
            got=f"{len(items)}: {signature!r}" if signature else "none",
            remedy=None
            if signature
            else "Launch it where the file runs as a program: without --signature the types are those "
            "of its launches on the simulator, as with gluon run FILE --compile-for TARGET.",
        )
    return dict(zip(wanted, map(_kind, items)))
