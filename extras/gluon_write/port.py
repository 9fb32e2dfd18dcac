"""Port kernels of plain Triton: the same file, with the kernels in Gluon and their layouts left out.

The text keeps its comments and its form; edits replace parts of it, and parts within parts.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from typing import Iterable, Optional

from gluon_core import language
from gluon_core.errors import GluonError, KernelSyntaxError, SourceSpan
from gluon_write.form import free_name
from gluon_write.kinds import BLOCK, TILES, Kinds
from gluon_write.library_text import copied
from gluon_write.port_blocks import ported_access, ported_maker, ported_method

__all__ = ["Ported", "port"]

_LANGUAGE = "triton.language"
# Functions of Triton that work on tensors with layouts as they are, though the language has none of
# that name: they are written in its own functions.
_AS_THEY_ARE = frozenset(
    "sigmoid softmax rand randn rand4x randn4x randint randint4x philox broadcast_to swizzle2d "
    "pair_uniform_to_normal uint_to_uniform_float condition core math const".split()
)
_RENAMED = {"debug_barrier": "thread_barrier", "view": "reshape"}
_BLOCKS = frozenset(
    "make_block_ptr advance make_tensor_descriptor load_tensor_descriptor store_tensor_descriptor".split()
)
_COPIED = (
    "sort",
    "topk",
    "flip",
    "interleave",
    "cat",
    "dot_scaled",
)  # functions of gluon_write.library
_DESCRIPTORS = "triton.tools.tensor_descriptor"


@dataclass
class Ported:
    """Hold a ported file.

    Attributes:
        text: of the file. kernels: names of those that are launched, functions: of the others.
    """

    text: str
    kernels: list[str]
    functions: list[str]


@dataclass
class _Names:
    """Hold the file's names of Triton and its language."""

    triton: set[str] = field(default_factory=set)
    tl: set[str] = field(default_factory=set)
    jit: set[str] = field(default_factory=set)
    imports: list[ast.stmt] = field(default_factory=list)
    descriptors: set[str] = field(default_factory=set)  # classes of descriptors on the host


def port(text: str, file: str) -> Ported:
    """Return a file with its kernels of plain Triton ported.

    Args:
        text: of the file. file: its path, for errors.

    Raises:
        KernelSyntaxError: the file does not parse, or has no kernel of plain Triton; or a kernel
            uses a function that has no counterpart, with its line and the remedy.
    """
    try:
        tree = ast.parse(text)
    except SyntaxError as error:
        raise KernelSyntaxError(
            f"the file does not parse: {error.msg}", span=SourceSpan(file, error.lineno or 1, 0)
        ) from None
    names = _names(tree)
    jits = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) and any(_is_jit(d, names) for d in node.decorator_list)
    ]
    if not jits:
        raise KernelSyntaxError(
            f"{file} has no kernel of plain Triton",
            argument="FILE",
            expected="a function with @triton.jit",
        )
    return _Port(text, file, names, jits).ported(tree)


def _names(tree: ast.Module) -> _Names:
    names = _Names()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name == _LANGUAGE and alias.asname:
                    names.tl.add(alias.asname)
                    names.imports.append(node)
                elif alias.name in ("triton", _LANGUAGE):
                    names.triton.add(alias.asname or "triton")
                    names.imports.append(node)
        elif isinstance(node, ast.ImportFrom) and node.module == _DESCRIPTORS:
            names.imports.append(node)
            names.descriptors |= {a.asname or a.name for a in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module == "triton":
            names.imports.append(node)
            for alias in node.names:
                if alias.name == "language":
                    names.tl.add(alias.asname or "language")
                elif alias.name == "jit":
                    names.jit.add(alias.asname or "jit")
    return names


def _is_jit(decorator: ast.expr, names: _Names) -> bool:
    called = decorator.func if isinstance(decorator, ast.Call) else decorator
    if isinstance(called, ast.Name):
        return called.id in names.jit
    return (
        isinstance(called, ast.Attribute)
        and called.attr == "jit"
        and isinstance(called.value, ast.Name)
        and called.value.id in names.triton
    )


class _Port:
    def __init__(self, text: str, file: str, names: _Names, jits: list[ast.FunctionDef]):
        self.lines = [line.encode() for line in text.splitlines(keepends=True)]
        self.starts = [0]
        for line in self.lines:
            self.starts.append(self.starts[-1] + len(line))
        self.data = b"".join(self.lines)
        self.file, self.names, self.jits = file, names, jits
        self.edits: list[tuple[int, int, str]] = []  # first and last byte, and the new text
        self.kept = False  # a name of Triton's language stays in a kernel
        self.kinds = Kinds(jits, self._language)
        self.jit = ""  # the function at hand
        self.taken = _bound(ast.parse(text))
        self.needed: dict[str, str] = {}  # functions of the library, and their names in this file

    # -- text -----------------------------------------------------------------------------------

    def span(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        first = self.starts[node.lineno - 1] + node.col_offset
        last = self.starts[(node.end_lineno or node.lineno) - 1] + (node.end_col_offset or 0)
        return first, last

    def replace(self, node: ast.expr | ast.stmt, text: str) -> None:
        """Replace a whole node; the edits within it are dropped."""
        first, last = self.span(node)
        self.edits = [e for e in self.edits if not (first <= e[0] and e[1] <= last)]
        self.edits.append((first, last, text))

    def insert(self, place: int, text: str) -> None:
        self.edits.append((place, place, text))

    def text_of(self, node: ast.expr) -> str:
        """Return the text of an expression after the edits so far."""
        return self.applied(*self.span(node))

    def applied(self, first: int, last: int) -> str:
        text, copied = b"", first
        for start, end, new in sorted(self.edits, key=lambda e: (e[0], e[1])):
            if first <= start and end <= last and start >= copied:
                text += self.data[copied:start] + new.encode()
                copied = end
        return (text + self.data[copied:last]).decode()

    def kind_of(self, node: ast.expr) -> Optional[str]:
        """Return `BLOCK` or `TILES` for a block pointer or a descriptor, None for other values."""
        return self.kinds.of(self.jit, node)

    def need(self, name: str) -> str:
        """Return the name in this file of a function of the library, which is copied to it."""
        if name not in self.needed:
            self.needed[name] = free_name(name, self.taken)
        return self.needed[name]

    # -- the file -------------------------------------------------------------------------------

    def ported(self, tree: ast.Module) -> Ported:
        called = {
            node.func.id
            for jit in self.jits
            for node in ast.walk(jit)
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
        }
        launched = {
            node.value.id
            for node in ast.walk(tree)
            if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name)
        }
        kernels = [jit for jit in self.jits if jit.name not in called or jit.name in launched]
        inside = {id(part) for jit in self.jits for part in ast.walk(jit)}
        for jit in self.jits:
            self._function(jit, jit in kernels)
        self._constants(tree, inside)
        self._descriptors(tree, inside)
        self._imports(tree, inside)
        self._library(tree)
        text = self.applied(0, len(self.data))
        own = [jit.name for jit in self.jits if jit not in kernels]
        return Ported(text, [kernel.name for kernel in kernels], own)

    def _imports(self, tree: ast.Module, inside: set[int]) -> None:
        """Import the language after the imports of Triton, of which those in use stay."""
        uses = {
            node.id
            for node in ast.walk(tree)
            if isinstance(node, ast.Name) and id(node) not in inside
        }
        inner = {
            part.value.id
            for jit in self.jits
            for part in ast.walk(jit)
            if isinstance(part, ast.Attribute) and isinstance(part.value, ast.Name)
        }
        first = min(self.names.imports, key=lambda node: node.lineno)
        ours = "import gluon_core as gluon\nfrom gluon_core import language as gl\n"
        for node in self.names.imports:
            bound = {a.asname or a.name.partition(".")[0] for a in node.names}  # type: ignore[attr-defined]
            bound -= self.names.descriptors
            language_only = bound <= self.names.tl
            stays = bound & self._needed(uses, inner, language_only)
            start, end = self.span(node)
            if not stays:
                end += 1 if self.data[end : end + 1] == b"\n" else 0
                self.edits.append((start, end, ours if node is first else ""))
            elif node is first:
                self.insert(start, ours)

    def _needed(self, uses: set[str], inner: set[str], language_only: bool) -> set[str]:
        names = uses if not (language_only and self.kept) else uses | self.names.tl
        decorators = {
            part.id
            for jit in self.jits
            for decorator in jit.decorator_list
            if not _is_jit(decorator, self.names)
            for part in ast.walk(decorator)
            if isinstance(part, ast.Name)
        }
        return names | decorators | (inner & self.names.triton)

    def _descriptors(self, tree: ast.Module, inside: set[int]) -> None:
        """Give host code a class of descriptors that kernels of every target take."""
        for node in ast.walk(tree):
            if id(node) in inside:
                continue
            if isinstance(node, ast.Name) and node.id in self.names.descriptors:
                self.needed["TensorDescriptor"] = node.id
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                if node.attr == "block_shape" and self.names.descriptors:
                    raise self.error(
                        node,
                        "the block of a descriptor is a part of its type, and does not change",
                        "Make the descriptor in the kernel, with tl.make_tensor_descriptor.",
                    )

    def _library(self, tree: ast.Module) -> None:
        """Copy functions of the library before the first of the file's own."""
        if not self.needed:
            return
        first = next(
            node for node in tree.body if isinstance(node, (ast.FunctionDef, ast.ClassDef))
        )
        line = min([first.lineno, *(d.lineno for d in first.decorator_list)])
        texts = copied(list(self.needed), self.needed, self.taken)
        self.insert(self.starts[line - 1], "".join(f"{text}\n\n\n" for text in texts))

    def _constants(self, tree: ast.Module, inside: set[int]) -> None:
        """Port the compile-time constants of the module, which kernels read."""
        for node in tree.body:
            if not isinstance(node, (ast.Assign, ast.AnnAssign)):
                continue
            for part in ast.walk(node):
                if id(part) not in inside and isinstance(part, ast.Attribute):
                    if self._language(part) == "constexpr":
                        self.replace(part, "gl.constexpr")

    # -- functions ------------------------------------------------------------------------------

    def _function(self, jit: ast.FunctionDef, kernel: bool) -> None:
        self.jit = jit.name
        for decorator in jit.decorator_list:
            if _is_jit(decorator, self.names):
                self._decorator(decorator, kernel)
        if kernel:
            self._parameters(jit)
        whole: list[ast.AST] = [jit.args, *jit.body]
        for part in (inner for root in whole for inner in _innermost_first(root)):
            if isinstance(part, ast.Attribute):
                self._name(part)
            elif isinstance(part, ast.Call):
                self._call(part)
            elif isinstance(part, ast.AugAssign):
                self._accumulated(part)
            elif isinstance(part, ast.Assign):
                self._added(part)

    def _parameters(self, jit: ast.FunctionDef) -> None:
        """Let a kernel make the descriptors that host code described."""
        first = jit.body[0]
        if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and jit.body[1:]:
            first = jit.body[1]
        indent = " " * first.col_offset
        for name in self.kinds.described(jit):
            fields = ", ".join(f"{name}.{f}" for f in ("base", "shape", "strides", "block_shape"))
            line = f"{name} = gl.portable.descriptor({fields})\n{indent}"
            self.insert(self.span(first)[0], line)

    def _decorator(self, decorator: ast.expr, kernel: bool) -> None:
        words = []
        if isinstance(decorator, ast.Call):
            words = [f"{k.arg}={self.text_of(k.value)}" for k in decorator.keywords if k.arg]
        if kernel:
            words.append('layouts="auto"')
        self.replace(decorator, "gluon.jit" + (f"({', '.join(words)})" if words else ""))

    def _language(self, node: ast.AST) -> Optional[str]:
        """Return the name that an expression has in Triton's language; None for others."""
        parts: list[str] = []
        while isinstance(node, ast.Attribute):
            parts.insert(0, node.attr)
            node = node.value
        if not isinstance(node, ast.Name) or not parts:
            return None
        if node.id in self.names.tl:
            return ".".join(parts)
        if node.id in self.names.triton and parts[0] == "language" and len(parts) > 1:
            return ".".join(parts[1:])
        return None

    def _name(self, node: ast.Attribute) -> None:
        name = self._language(node)
        if name is None:
            if isinstance(node.value, ast.Name) and node.value.id in self.names.triton:
                if node.attr in ("cdiv", "next_power_of_2"):
                    self.replace(node, "gl.cdiv" if node.attr == "cdiv" else "gl.next_power_of_2")
            elif node.attr == "dtype" and self.kind_of(node.value) == BLOCK:
                self.replace(node, f"{self.text_of(node.value)}.base.dtype")
            elif node.attr == "shape" and self.kind_of(node.value) == TILES:
                self.replace(node, f"{self.text_of(node.value)}.extents")
            return
        short = name.removeprefix("math.")
        short = _RENAMED.get(short, short)
        if short in ("dot", "trans", "range", *_BLOCKS):
            return  # with the call
        if name in _COPIED:
            self.replace(node, self.need(name))
            return
        if hasattr(language, short):
            self.replace(node, f"gl.{short}")
        elif name.partition(".")[0] in _AS_THEY_ARE or name.startswith("extra."):
            self.kept = True
        elif "." not in name:
            raise self.error(node, f"tl.{name} has no counterpart", None)

    def error(self, node: ast.expr | ast.stmt, words: str, remedy: Optional[str]) -> GluonError:
        line = self.lines[node.lineno - 1].decode().rstrip("\n")
        span = SourceSpan(self.file, node.lineno, node.col_offset, node.end_col_offset, line)
        return KernelSyntaxError(
            words, remedy=remedy or "Rewrite the op by others, then port the file.", span=span
        )

    # -- calls ----------------------------------------------------------------------------------

    def _call(self, node: ast.Call) -> None:
        name = self._language(node.func)
        if name == "dot":
            self._dot(node)
        elif name == "trans":
            dims = [self.text_of(arg) for arg in node.args[1:]]
            order = ", ".join(dims) if dims else "1, 0"
            self.replace(node, f"gl.permute({self.text_of(node.args[0])}, ({order}))")
        elif name == "range":  # its other words are hints for passes that Gluon has not
            self.replace(node, f"range({', '.join(self.text_of(arg) for arg in node.args)})")
        elif name in _BLOCKS:
            ported_maker(self, node, name)
        elif name in ("load", "store"):
            ported_access(self, node, name)
        elif isinstance(node.func, ast.Attribute) and name is None:
            ported_method(self, node)

    def _dot(self, node: ast.Call, acc: Optional[str] = None) -> None:
        """Port a product; `acc` is the text of the sum that it is added to."""
        words = {word.arg: word.value for word in node.keywords}
        a, b = (
            node.args[i] if i < len(node.args) else words[n]
            for i, n in enumerate(("input", "other"))
        )
        addend = node.args[2] if len(node.args) > 2 else words.get("acc")
        if addend is not None and not (isinstance(addend, ast.Constant) and addend.value is None):
            acc = self.text_of(addend)
        if acc is None:
            dtype = self.text_of(words["out_dtype"]) if "out_dtype" in words else "gl.float32"
            rows, columns = self._shape(a)[0], self._shape(b)[1]
            acc = f"gl.zeros([{rows}, {columns}], {dtype})"
        precision = self._precision(words)
        args = ", ".join([self.text_of(a), self.text_of(b), acc, *precision])
        self.replace(node, f"gl.portable.mma({args})")

    def _precision(self, words: dict[Optional[str], ast.expr]) -> list[str]:
        """Return the argument for the rounding of float32 operands: tf32 is Triton's default."""
        allowed = words.get("allow_tf32")
        if isinstance(allowed, ast.Constant) and allowed.value is False:
            return []
        chosen = words.get("input_precision")
        if chosen is None:
            return ['input_precision="tf32"']
        if isinstance(chosen, ast.Constant) and chosen.value == "ieee":
            return []
        if isinstance(chosen, ast.Constant) and chosen.value not in ("tf32", None):
            return ['input_precision="tf32"']  # several products of tf32
        return [f"input_precision={self.text_of(chosen)}"]

    def _shape(self, node: ast.expr) -> tuple[str, str]:
        """Return the expressions for the two sizes of an operand."""
        while True:
            inner = _same_shape(node)
            if inner is None:
                break
            node = inner
        if isinstance(node, ast.Call) and self._language(node.func) == "trans":
            rows, columns = self._shape(node.args[0])
            return columns, rows
        if isinstance(node, ast.Attribute) and node.attr == "T":
            rows, columns = self._shape(node.value)
            return columns, rows
        text = self.text_of(node)
        plain = isinstance(node, (ast.Name, ast.Attribute, ast.Call, ast.Subscript))
        text = text if plain else f"({text})"
        return f"{text}.shape[0]", f"{text}.shape[1]"

    def _accumulated(self, node: ast.AugAssign) -> None:
        """Port `acc += tl.dot(a, b)`: the product adds to its accumulator itself."""
        product = node.value
        if not (isinstance(node.op, ast.Add) and isinstance(product, ast.Call)):
            return
        if self._language(product.func) != "dot" or len(product.args) > 2:
            return
        if any(word.arg == "acc" for word in product.keywords):
            return
        acc = self.data[slice(*self.span(node.target))].decode()
        self.replace(node, f"{acc} = {self._product(product, acc)}")

    def _added(self, node: ast.Assign) -> None:
        """Port `acc = acc * scale + tl.dot(a, b)`: the product adds to its accumulator itself."""
        total, (target, *more) = node.value, node.targets
        if more or not isinstance(target, ast.Name):
            return
        if not isinstance(total, ast.BinOp) or not isinstance(total.op, ast.Add):
            return
        sides = total.left, total.right
        for product, other in (sides, sides[::-1]):
            scaled = isinstance(other, ast.BinOp) and isinstance(other.op, (ast.Mult, ast.Div))
            first = other.left if scaled and isinstance(other, ast.BinOp) else other
            if not isinstance(first, ast.Name) or first.id != target.id:
                continue  # only the variable itself surely has the product's shape
            if not isinstance(product, ast.Call) or self._language(product.func) != "dot":
                continue
            if len(product.args) > 2 or any(word.arg == "acc" for word in product.keywords):
                continue
            acc = self.text_of(other)
            self.replace(total, self._product(product, acc))
            return

    def _product(self, product: ast.Call, acc: str) -> str:
        """Return the text of a product that is added to `acc`."""
        first, last = self.span(product)
        self.edits = [e for e in self.edits if not (e[0] == first and e[1] == last)]
        for argument in (*product.args, *(word.value for word in product.keywords)):
            for part in _innermost_first(argument):
                if isinstance(part, ast.Attribute):
                    self._name(part)
                elif isinstance(part, ast.Call):
                    self._call(part)
        self._dot(product, acc)
        return self.text_of(product)


def _bound(tree: ast.Module) -> set[str]:
    """Return the names that a file uses, but for those of attributes."""
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    names |= {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)}
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            names.add(node.name)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            names |= {alias.asname or alias.name.partition(".")[0] for alias in node.names}
    return names


def _same_shape(node: ast.expr) -> Optional[ast.expr]:
    """Return the operand whose shape an expression has, where the text shows it."""
    if (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "to"
    ):
        return node.func.value
    if isinstance(node, ast.UnaryOp):
        return node.operand
    if isinstance(node, ast.BinOp) and isinstance(node.right, ast.Constant):
        return node.left
    return None


def _innermost_first(node: ast.AST) -> Iterable[ast.AST]:
    for child in ast.iter_child_nodes(node):
        yield from _innermost_first(child)
    yield node
