"""A function's text and tree, for passes that change the form of its loops."""

from __future__ import annotations

import ast
import copy
import io
import linecache
import re
import tokenize
import zlib
from functools import cached_property, lru_cache
from itertools import accumulate
from typing import Any, Callable, Iterable, Mapping, Optional, Sequence

from gluon_core import language
from gluon_core._triton import unwrap
from gluon_core.launch.jit import jit
from gluon_write.text.syntax import nodes_in

__all__ = [
    "Form",
    "bounds_of",
    "changed_copy",
    "edited",
    "factor",
    "free_name",
    "function_of",
    "one_line",
    "public_name",
    "renamed",
    "rewritten",
    "with_text",
]

_SPACES_COUNT = re.compile(
    r"""[#\\]|["'][^"']*?(\s\s|\n|[(\[{] | [)\]}])"""
)  # in comments and strings
_WEAK = (ast.IfExp, ast.BoolOp, ast.Compare, ast.Lambda)  # bind less than a comparison


class Form:
    """Hold the source of a function, and answer by its nodes.

    Args:
        fn: a `@gluon.jit` function.
    """

    def __init__(self, fn: Any):
        self.hold(fn.src)
        self.scope = fn.get_capture_scope()

    def hold(self, source: str) -> None:
        """Hold a text of the function."""
        for name in ("parents", "parameters", "starts"):
            self.__dict__.pop(name, None)
        self.source: str = source
        self.encoded = [line.encode() for line in source.split("\n")]
        self.tree: Any = ast.parse(source).body[0]

    @cached_property
    def space(self) -> str:
        """Return the name of the language in the function's file; "" without one."""
        return next((name for name, value in self.scope.items() if value is language), "")

    @cached_property
    def parents(self) -> dict[int, ast.AST]:
        """Return the node around each other one, by its id."""
        children = ast.iter_child_nodes
        return {id(child): node for node in nodes_in(self.tree) for child in children(node)}

    @cached_property
    def parameters(self) -> list[str]:
        """Return the names of the function's parameters."""
        listed = self.tree.args
        return [arg.arg for arg in (*listed.posonlyargs, *listed.args, *listed.kwonlyargs)]

    @cached_property
    def starts(self) -> list[int]:
        """Return the byte at which each line starts, and the end of the text."""
        sizes = (len(line.encode()) for line in self.source.splitlines(keepends=True))
        return list(accumulate(sizes, initial=0))

    def range_of(self, node: Any) -> tuple[int, int]:
        """Return the first byte of a node, and the one behind it."""
        first = self.starts[node.lineno - 1] + node.col_offset
        return first, self.starts[(node.end_lineno or node.lineno) - 1] + (node.end_col_offset or 0)

    def with_lines(self, edits: Iterable[tuple[ast.stmt, Sequence[str]]]) -> Optional[str]:
        """Return the text with lines in place of statements; None without any."""
        lines, edits = self.source.splitlines(), list(edits)
        for statement, new in sorted(edits, key=lambda edit: edit[0].lineno, reverse=True):
            lines[statement.lineno - 1 : statement.end_lineno] = new
        return "\n".join(lines) + "\n" if edits else None

    def begins_line(self, node: Any) -> bool:
        """Return True if nothing comes before a node on its line."""
        return not self.encoded[node.lineno - 1][: node.col_offset].strip()

    def ends_line(self, node: Any) -> bool:
        """Return True if nothing but a comment follows a node on its line."""
        rest = self.encoded[node.end_lineno - 1][node.end_col_offset :].strip()
        return not rest or rest.startswith(b"#")

    def names_in_use(self) -> set[str]:
        """Return the names that a new variable cannot have."""
        return {*re.findall(r"\w+", self.source), *self.scope}

    def for_loops(self) -> list[ast.For]:
        """Return the `for` loops, the outermost first."""
        return [node for node in nodes_in(self.tree) if isinstance(node, ast.For)]

    def bounds(self, loop: ast.For) -> tuple[str, str, str]:
        """Return first, last and step of a loop over a range, as sides of a comparison."""
        assert isinstance(loop.iter, ast.Call)
        return bounds_of([self.text_of(arg) for arg in loop.iter.args])

    def copied(self, fn: Any, jits: list[Any]) -> Any:
        """Return a kernel with the text that is held, or the kernel where it is the same."""
        return fn if self.source == fn.src else changed_copy(fn, jits, {0: self.source}, {})

    def called(self, node: Any) -> Any:
        """Return the function that a call names, None where it is computed."""
        if not isinstance(node, ast.Call):
            return None
        parts: list[str] = []
        place: Any = node.func
        while isinstance(place, ast.Attribute):
            parts.insert(0, place.attr)
            place = place.value
        value = self.scope.get(place.id) if isinstance(place, ast.Name) else None
        for part in parts:
            value = getattr(value, part, None)
        return unwrap(value)

    def text_of(self, node: ast.AST) -> str:
        """Return the text of a node, which a pass may have made."""
        first, last = getattr(node, "lineno", 0), getattr(node, "end_lineno", None)
        if not first or not last:
            return ast.unparse(node)
        lines = self.encoded[first - 1 : last]
        lines[-1] = lines[-1][: node.end_col_offset]  # type: ignore[attr-defined]
        lines[0] = lines[0][node.col_offset :]  # type: ignore[attr-defined]
        return b"\n".join(lines).decode() or ast.unparse(node)


def bounds_of(texts: list[str]) -> tuple[str, str, str]:
    """Return first, last and step of the arguments of a range, as sides of a comparison."""
    nodes = [ast.parse(f"({text})", mode="eval").body for text in texts]
    texts = [f"({t})" if isinstance(n, _WEAK) else t for n, t in zip(nodes, texts)]
    first = "0" if len(texts) == 1 else texts[0]
    return first, texts[min(1, len(texts) - 1)], texts[2] if len(texts) > 2 else "1"


def public_name(called: Any) -> str:
    """Return the name of a function as kernels write it, "" of none."""
    return str(getattr(called, "public", None) or getattr(called, "__name__", ""))


def factor(text: str) -> str:
    """Return an expression as a factor, in parentheses where it needs them."""
    return text if re.fullmatch(r"\w+(\.\w+)*(\(\w*\))?", text) else f"({text})"


def free_name(word: str, taken: set[str]) -> str:
    """Return a name that no other has, and take it."""
    name, number = word, 2
    while name in taken:
        name, number = f"{word}_{number}", number + 1
    taken.add(name)
    return name


def function_of(text: str, name: str, scope: Mapping[str, Any]) -> Any:
    """Return a function that is written for a kernel, with the names that the kernel reads."""
    file = f"<written: {name} {zlib.crc32(text.encode()):08x}>"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    names = dict(scope)
    exec(compile(text, file, "exec"), names)
    written = jit(names[name])
    written.written = written.changed = True
    return written


def edited(source: str, edits: Sequence[tuple[ast.expr, str]]) -> str:
    """Return a text with expressions replaced; empty lines keep the places of the lines behind them."""
    lines = [line.encode() for line in source.splitlines()]
    for node, text in sorted(edits, key=lambda e: (e[0].lineno, e[0].col_offset), reverse=True):
        first, last = node.lineno - 1, (node.end_lineno or node.lineno) - 1
        rest = lines[last][node.end_col_offset or 0 :]
        line = lines[first][: node.col_offset] + text.encode() + rest
        lines[first : last + 1] = [line, *[b""] * (last - first)]
    return b"\n".join(lines).decode() + "\n"


def one_line(text: str) -> str:
    """Return an expression on one line, without its comments and the spaces that its line breaks leave in parentheses."""
    if _SPACES_COUNT.search(text):
        return _joined(text)
    return re.sub(r"(?<=[(\[{]) | (?=[)\]}])", "", " ".join(text.split()))


def _joined(text: str) -> str:
    """Join the tokens of an expression; strings keep their characters, and spaces remain between tokens of a line."""
    lines = f"({text}\n)".split("\n")
    skipped = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.ENDMARKER)
    joined, row, column = "", 1, 1
    for token in list(tokenize.generate_tokens(io.StringIO("\n".join(lines)).readline))[1:]:
        if token.type in skipped or not token.string:
            continue
        same = token.start[0] == row
        between = lines[row - 1][column : token.start[1]] if same else " "
        rows = lines[token.start[0] - 1 : token.end[0]]
        rows[-1] = rows[-1][: token.end[1]]
        rows[0] = rows[0][token.start[1] :]
        word = "\n".join(rows)
        if len(rows) > 1 and token.type == tokenize.STRING:
            word = repr(ast.literal_eval(word))
        inner = not joined.endswith(("(", "[", "{")) and not word.startswith((")", "]", "}"))
        joined += (between if between.strip() else " " * (bool(between) and inner)) + word
        row, column = token.end
    return joined.removesuffix(")").strip()


def rewritten(
    fn: Any,
    jits: list[Any],
    text_of: Callable[[Any, int], Optional[str]],
    more: Mapping[str, Any] = {},
) -> Any:
    """Return a kernel whose functions have the texts of `text_of(jit, number)`, None for the same; itself if all are.

    Args:
        more: new functions that the new texts call.
    """
    texts = {number: text_of(jit, number) for number, jit in enumerate(jits)}
    changed = {number: text for number, text in texts.items() if text is not None}
    return changed_copy(fn, jits, changed, {}, more) if changed else fn


def changed_copy(
    fn: Any,
    jits: list[Any],
    texts: Mapping[int, str],
    done: dict[int, Any],
    more: Mapping[str, Any] = {},
) -> Any:
    """Return a function with a new text, which calls such functions; itself where nothing changes.

    Args:
        jits: the kernel and the functions that it calls. texts: new sources, by number in `jits`.
        done: copies that are known, by number. more: new functions that the new texts call.
    """
    number = next(i for i, one in enumerate(jits) if one is fn)
    if number in done:
        return done[number]
    done[number] = fn  # a function that calls itself stays
    scope = dict(fn.get_capture_scope())
    text = texts.get(number, fn.src)
    # A scope has all names of a module: copies for the sake of others would call the functions that were.
    read = set(re.findall(r"\w+", f"{fn.src} {text}"))
    called = {
        name: changed_copy(unwrap(value), jits, texts, done, more)
        for name, value in scope.items()
        if name in read and any(unwrap(value) is one for one in jits)
    }
    called = {name: one for name, one in called.items() if one is not unwrap(scope[name])}
    if _parameters(text) != _parameters(fn.src):
        done[number] = function_of(text, fn.__name__, scope | {**called, **more})
    elif called or number in texts:
        own: Any = with_text(fn, text)
        scope |= {**called, **more} if number in texts else called
        own.get_capture_scope = lambda: scope
        own.changed = True
        done[number] = own
    return done[number]


def with_text(fn: Any, text: str) -> Any:
    """Return a copy of a function with another text, which keeps its first source."""
    own: Any = copy.copy(fn)
    own.original = getattr(fn, "original", fn.src)
    own._unsafe_update_src(text)
    return own


@lru_cache(maxsize=1 << 8)
def _parameters(text: str) -> str:
    """Return the parameters of a function's text."""
    node = ast.parse(text).body[0]
    assert isinstance(node, ast.FunctionDef)
    return ast.unparse(node.args)


def renamed(text: str, names: Mapping[str, str]) -> str:
    """Return an expression or statement with its variables renamed."""
    for name, new in names.items():
        text = re.sub(rf"(?<![\w.]){name}\b(?!\s*=[^=])", new, text)
    return _targets(text, names)


def _targets(text: str, names: Mapping[str, str]) -> str:
    for name, new in names.items():
        text = re.sub(rf"(?<![\w.(,]){name}(?=\s*=[^=])", new, text)
    return text
