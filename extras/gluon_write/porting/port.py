"""Port kernels of plain Triton: the same file, with the kernels in Gluon and their layouts left out.

The text keeps its comments and its form; edits replace parts of it, and parts within parts.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from pathlib import Path
from typing import Iterable, Mapping, Optional

from gluon_cli.output import unparsed
from gluon_core import language
from gluon_core.errors import GluonError, KernelSyntaxError, SourceSpan
from gluon_write.porting.aliases import OURS, Aliases, taken_names
from gluon_write.porting.barriers import loaded_again
from gluon_write.porting.blocks import (
    blocks_in,
    own_names,
    ported_access,
    ported_maker,
    ported_method,
)
from gluon_write.porting.claims import claimed
from gluon_write.porting.kinds import BLOCK, TILES, Kinds
from gluon_write.porting.library_text import copied
from gluon_write.porting.modules import (
    Foreign,
    all_names,
    find_function,
    import_text,
    imports_in,
    reached,
)
from gluon_write.porting.modules import copied as copied_from
from gluon_write.porting.names import (
    Names,
    bound_by,
    bound_in,
    imports_of,
    is_jit,
    kernels_of,
    rewritten,
    without_locals,
)
from gluon_write.porting.products import accumulated, added, ported_product
from gluon_write.porting.ranks import Ranks, ranks_of_parameters
from gluon_write.text.form import factor, free_name
from gluon_write.text.syntax import arguments, first_of, mentions, nodes_in

__all__ = ["Ported", "port"]

# Functions of Triton that work on tensors with layouts as they are, though the language has none of
# that name: they are written in its own functions. And values that are no functions.
_AS_THEY_ARE = frozenset(
    "sigmoid softmax rand randn rand4x randn4x randint randint4x philox philox_impl broadcast_to "
    "swizzle2d pair_uniform_to_normal uint_to_uniform_float condition const PropagateNan "
    "TRITON_MAX_TENSOR_NUMEL constexpr_type slice target_info extra".split()
)
_MODULES = frozenset("core math standard random".split())
_HOST = {"cdiv": "gl.cdiv", "next_power_of_2": "gluon.next_power_of_2"}  # of the package Triton
_EARLY = "math.", "libdevice."  # modules that had the functions of libdevice in early releases
_RENAMED = {"debug_barrier": "thread_barrier", "view": "reshape", "unsqueeze": "expand_dims"}
_BLOCKS = frozenset(
    "make_block_ptr advance make_tensor_descriptor load_tensor_descriptor store_tensor_descriptor".split()
)
# Functions of gluon_write.porting.library.
_COPIED = frozenset("sort topk bitonic_merge flip interleave cat dot_scaled".split())
_OF_OTHER_NAMES = {"_log2": "log2_of", "get_int_dtype": "integer_of"}


@dataclass
class Ported:
    """Hold a ported file.

    Attributes:
        text: of the file. kernels: names of those that are launched, functions: of the others.
    """

    text: str
    kernels: list[str]
    functions: list[str]


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
        raise unparsed(error, file) from None
    names = all_names(tree, Path(file))
    jits = _jits(tree, names)
    other = without_locals(text, tree, jits, ("gl", "gluon"), _bound(tree))
    if other != text:
        return port(other, file)
    if not jits:
        raise KernelSyntaxError(
            f"{file} has no kernel of plain Triton",
            argument="FILE",
            expected="a function with @triton.jit",
        )
    own = taken_names(tree, [*jits, *_wrappers(tree, names)])
    aliases = Aliases(text, own, _bound(tree))
    tree = ast.parse(aliases.hidden)
    names = all_names(tree, Path(file))
    result = _Port(aliases.hidden, file, names, _jits(tree, names), aliases.words).ported(tree)
    lists = ([aliases.names.get(n, n) for n in one] for one in (result.kernels, result.functions))
    return Ported(aliases.shown(result.text), *lists)


def _jits(tree: ast.Module, names: Names) -> list[ast.FunctionDef]:
    wrapped = {call.args[0].id for call in _wrappers(tree, names)}  # type: ignore[attr-defined]
    return [
        node
        for node in nodes_in(tree)
        if isinstance(node, ast.FunctionDef)
        and (node.name in wrapped or any(is_jit(d, names) for d in node.decorator_list))
    ]


def _wrappers(tree: ast.Module, names: Names) -> list[ast.Call]:
    """Return the calls `triton.jit(function)`."""
    return [
        node
        for node in nodes_in(tree)
        if isinstance(node, ast.Call) and is_jit(node.func, names)
        and node.args and isinstance(node.args[0], ast.Name)
    ]  # fmt: skip


class _Port:
    def __init__(
        self,
        text: str,
        file: str,
        names: Names,
        jits: list[ast.FunctionDef],
        words: Mapping[str, str],
    ) -> None:
        self.lines = [line.encode() for line in text.splitlines(keepends=True)]
        self.starts = [0]
        for line in self.lines:
            self.starts.append(self.starts[-1] + len(line))
        self.data = b"".join(self.lines)
        self.file, self.names, self.jits, self.words = file, names, jits, words
        self.tree = ast.parse(text)
        self.imports = imports_in(self.tree)
        self.wrappers = _wrappers(self.tree, names)
        self.edits: list[tuple[int, int, str]] = []  # first and last byte, and the new text
        self.bound: frozenset[str] = frozenset()  # by the function at hand
        self.kept: set[str] = set()  # its parameters that keep their values
        self.constants: set[str] = set()  # those at compile time
        self.kinds = Kinds(jits, self.language)
        self.passed = ranks_of_parameters(jits, names)
        self.jit = jits[0].name if jits else ""  # the function at hand
        self.values: dict[str, list[ast.expr]] = {}  # of its variables
        self.apart: dict[int, str] = {}  # new names of its blocks, by the id of a node
        self.taken = _bound(self.tree) | set(OURS)
        self.needed: dict[str, str] = {}  # functions of the library, and their names in this file
        self.foreign: dict[Foreign, str] = {}  # functions of other files, the same
        self.outer: tuple[Path, ...] = ()  # files for which this one is ported
        self.defined = {getattr(node, "name", "") for node in self.tree.body}
        classes = [node for node in nodes_in(self.tree) if isinstance(node, ast.ClassDef)]
        self.methods = {getattr(node, "name", "") for one in classes for node in one.body}
        self.changed = False  # whether hooks change the blocks of descriptors
        self.dropped: set[str] = set()  # names whose imports are replaced
        self.modules: set[str] = set()  # names of the modules of those functions

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

    def ported(self, tree: ast.Module, helpers: bool = False) -> Ported:
        """Return the file; with `helpers`, no function of it is a kernel."""
        kernels = [] if helpers else kernels_of(tree, self.jits, self.names)
        inside = {id(part) for jit in self.jits for part in nodes_in(jit)}
        self._check_names(tree)
        self.changed = bool(self.names.descriptors) and any(
            isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
            for node in nodes_in(tree)
            if id(node) not in inside and getattr(node, "attr", "") == "block_shape"
        )
        for jit in self.jits:
            self._function(jit, jit in kernels)
        self._constants(tree, inside)
        self._descriptors(tree, inside)
        self._library(tree)
        text = self._imports(self.applied(0, len(self.data)))
        own = [jit.name for jit in self.jits if jit not in kernels]
        return Ported(text, [kernel.name for kernel in kernels], own)

    def _check_names(self, tree: ast.Module) -> None:
        """Refuse a file that hides Triton's names."""
        for node in imports_of(tree):
            if any(alias.name == "*" for alias in node.names):
                raise self.error(
                    node,
                    f"the names that {node.module} has are not listed",  # type: ignore[union-attr]
                    "Import them by name, or the module: import triton.language as tl.",
                )

    def _imports(self, text: str) -> str:
        """Return the text with the imports of the language, and of Triton those that it uses."""
        tree = ast.parse(text)
        uses = {node.id for node in nodes_in(tree) if isinstance(node, ast.Name)}
        before = {node.id for node in nodes_in(self.tree) if isinstance(node, ast.Name)}
        lines = [line.encode() for line in text.splitlines(keepends=True)]
        first = next(
            (top for top in tree.body if next(imports_of(top), None) is not None), tree.body[0]
        )
        triton = {id(node) for node in imports_of(tree)}
        own = "".join(f"{line}\n" for line in OURS.values())
        own += "" if isinstance(first, (ast.Import, ast.ImportFrom)) else "\n"
        edits = [(first.lineno, 0, first.lineno, 0, own)]
        whole: list[ast.stmt] = []  # statements within blocks that go with their lines
        for node in nodes_in(tree):
            if not isinstance(node, (ast.Import, ast.ImportFrom)):
                continue
            gone = [
                alias
                for alias in node.names
                if bound_by(alias) in self.dropped
                or bound_by(alias) in self.modules - uses
                or (id(node) in triton or bound_by(alias) in self.names.copied)
                and (bound_by(alias) in self.names.descriptors or bound_by(alias) in before - uses)
            ]
            if gone:
                left = rewritten(node, [alias for alias in node.names if alias not in gone])
                start, end = node.lineno, node.end_lineno or node.lineno
                column = node.end_col_offset or 0
                shared = lines[start - 1][: node.col_offset] + lines[end - 1][column:]
                if left or shared.strip():
                    edits.append((start, node.col_offset, end, column, left or "pass"))
                elif node.col_offset:
                    whole.append(node)
                else:
                    edits.append((start, 0, end + 1, 0, ""))
        for block in blocks_in(tree):
            going = [node for node in block if node in whole]
            if going and len(going) == len(block):  # a block may not become empty
                kept = going.pop(0)
                end, column = kept.end_lineno or kept.lineno, kept.end_col_offset or 0
                edits.append((kept.lineno, kept.col_offset, end, column, "pass"))
            edits += [
                (node.lineno, 0, (node.end_lineno or node.lineno) + 1, 0, "") for node in going
            ]
        for start, column, end, last, new in sorted(edits, reverse=True):
            before_it, after_it = lines[start - 1][:column], b"".join(lines[end - 1 : end])[last:]
            lines[start - 1 : end] = [before_it + new.encode() + after_it]
        return b"".join(lines).decode()

    def _descriptors(self, tree: ast.Module, inside: set[int]) -> None:
        """Give host code a class of descriptors that kernels of every target take."""
        for node in nodes_in(tree):
            if id(node) not in inside and isinstance(node, ast.Name):
                if node.id in self.names.descriptors and self.changed:
                    self.needed["ChangedDescriptor"] = node.id
                elif node.id in self.names.descriptors:
                    self.needed["TensorDescriptor"] = node.id

    def _library(self, tree: ast.Module) -> None:
        """Copy functions of the library and of other files before the first of the file's own."""
        if not self.needed and not self.foreign:
            return
        first = next(
            node
            for node in tree.body
            if isinstance(node, (ast.FunctionDef, ast.ClassDef))
            or any(part in self.jits for part in nodes_in(node))
        )
        decorators = getattr(first, "decorator_list", [])
        line = min([first.lineno, *(d.lineno for d in decorators)])
        texts = self._foreign_texts()
        texts += copied(list(self.needed), self.needed, self.taken)
        imports = "".join(f"{t}\n" for t in texts if t.startswith(("import ", "from ")))
        others = (t for t in texts if not t.startswith(("import ", "from ")))
        imports += "\n\n" if imports else ""
        self.insert(self.starts[line - 1], imports + "".join(f"{t}\n\n\n" for t in others))

    def _foreign_texts(self) -> list[str]:
        """Return the ported text of functions of other files."""
        bound = {
            bound_by(alias): import_text(node, alias)
            for node in nodes_in(self.tree)
            if isinstance(node, (ast.Import, ast.ImportFrom))
            for alias in node.names
        }
        bound |= OURS
        texts: list[str] = []
        for file in dict.fromkeys(one.file for one in self.foreign):
            wanted = {one.name: name for one, name in self.foreign.items() if one.file == file}
            text = file.read_text()
            there = ast.parse(text)
            names = all_names(there, file)
            jits = _jits(there, names)
            hidden = taken_names(there, [*jits, *_wrappers(there, names)])
            aliases = Aliases(text, hidden, self.taken, self.words)
            there = ast.parse(aliases.hidden)
            names = all_names(there, file)
            if file in self.outer:
                raise self.error(
                    self.jits[0],
                    f"the file and {file.name} import each other's functions",
                    "Move the functions that both call to a third file.",
                )
            needed = reached(there, [aliases.words.get(name, name) for name in wanted])
            jits = [jit for jit in _jits(there, names) if jit.name in needed]
            inner = _Port(aliases.hidden, str(file), names, jits, aliases.words)
            inner.outer = (*self.outer, Path(self.file).resolve())
            ported = aliases.shown(inner.ported(there, helpers=True).text)
            wanted = {self.words.get(name, name): own for name, own in wanted.items()}
            texts += [t for t in copied_from(ported, wanted, self.taken, bound) if t not in texts]
        return texts

    def _constants(self, tree: ast.Module, inside: set[int]) -> None:
        """Port the compile-time constants of the module, which kernels read."""
        for node in tree.body:
            if not isinstance(node, (ast.Assign, ast.AnnAssign)):
                continue
            for part in nodes_in(node):
                if id(part) not in inside and isinstance(part, ast.Attribute):
                    if self.language(part) == "constexpr":
                        self.replace(part, "gl.constexpr")
            if isinstance(node, ast.AnnAssign) and node.value is not None:
                plain = not isinstance(node.value, ast.Call)
                if self.language(node.annotation) == "constexpr" and plain:
                    text = self.text_of(node.value)  # early releases took the annotation for it
                    self.replace(node, f"{ast.unparse(node.target)} = gl.constexpr({text})")

    # -- functions ------------------------------------------------------------------------------

    def _function(self, jit: ast.FunctionDef, kernel: bool) -> None:
        self.jit, self.bound = jit.name, bound_in(jit)
        stored = {
            n.id for n in nodes_in(jit) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)
        }
        arguments = [arg for arg in nodes_in(jit.args) if isinstance(arg, ast.arg)]
        self.kept = {arg.arg for arg in arguments} - stored
        self.constants = {
            arg.arg
            for arg in arguments
            if arg.annotation is not None and self.language(arg.annotation) == "constexpr"
        } - stored
        self.ranks = Ranks(jit, self.language, self.passed.get(jit.name))
        self.apart = own_names(jit, self.language, self.taken)
        self.values = {}
        for node in nodes_in(jit):
            for target in node.targets if isinstance(node, ast.Assign) else ():
                if isinstance(target, ast.Name) and isinstance(node, ast.Assign):
                    self.values.setdefault(target.id, []).append(node.value)
        for decorator in jit.decorator_list:
            if is_jit(decorator, self.names):
                self._decorator(decorator, kernel, jit)
        for call in self.wrappers:
            if call.args[0].id == jit.name:  # type: ignore[attr-defined]
                self._wrapper(call, kernel, jit)
        if kernel:
            self._parameters(jit)
        for root in (jit.args, *([jit.returns] if jit.returns else []), *jit.body):
            self.parts(root)
        loaded_again(self, jit)

    def parts(self, root: ast.AST) -> None:
        """Port the expressions of a part of a function, the innermost first."""
        for part in _innermost_first(root):
            if isinstance(part, ast.Attribute):
                self._name(part)
            elif isinstance(part, ast.Name):
                self._plain_name(part)
            elif isinstance(part, ast.Call):
                self._call(part)
            elif isinstance(part, ast.AugAssign):
                accumulated(self, part)
            elif isinstance(part, ast.Assign):
                added(self, part)
            elif isinstance(part, ast.Expr):
                claimed(self, part)

    def _parameters(self, jit: ast.FunctionDef) -> None:
        """Let a kernel make the descriptors that host code described."""
        first = first_of(jit.body)
        indent = " " * first.col_offset
        for name in self.kinds.described(jit):
            fields = ", ".join(f"{name}.{f}" for f in ("base", "shape", "strides", "block_shape"))
            line = f"{name} = gl.portable.descriptor({fields}, host={name}.host)\n{indent}"
            if name not in self.kept:  # a launch may pass a pointer, of which the kernel makes it
                line = f"if isinstance({name}, gl.tuple):\n{indent}    {line}"
            self.insert(self.span(first)[0], line)

    def _decorator(self, decorator: ast.expr, kernel: bool, jit: ast.FunctionDef) -> None:
        words, before = [], ""
        if isinstance(decorator, ast.Call):
            words = [f"{k.arg}={self.text_of(k.value)}" for k in decorator.keywords if k.arg]
        if kernel:
            words.append('layouts="auto"')
            if self.changed and self.kinds.described(jit):
                before = f"{self.need('passing_descriptors')}\n{' ' * jit.col_offset}@"
        self.replace(decorator, f"{before}gluon.jit" + (f"({', '.join(words)})" if words else ""))

    def _wrapper(self, call: ast.Call, kernel: bool, jit: ast.FunctionDef) -> None:
        words = [f"{k.arg}={self.text_of(k.value)}" for k in call.keywords if k.arg]
        words += ['layouts="auto"'] if kernel else []
        text = f"gluon.jit({', '.join(words)})({jit.name})" if words else f"gluon.jit({jit.name})"
        if kernel and self.changed and self.kinds.described(jit):
            text = f"{self.need('passing_descriptors')}({text})"
        self.replace(call, text)

    def language(self, node: ast.AST) -> Optional[str]:
        """Return the name that an expression has in Triton's language; None for others."""
        return self.names.language(node, self.bound)

    def _plain_name(self, node: ast.Name) -> None:
        if id(node) in self.apart:
            self.replace(node, self.apart[id(node)])
        if not isinstance(node.ctx, ast.Load) or node.id in self.bound:
            return
        if node.id in self.names.functions:
            self._renamed(node, self.names.full(node), self.language(node) or "")
        elif self.names.own.get(node.id) in _HOST:
            self.replace(node, _HOST[self.names.own[node.id]])
        elif not (node.id in self.names.modules or node.id in self.names.triton):
            if node.id not in self.defined:
                self._elsewhere(node)

    def _elsewhere(self, node: ast.Name | ast.Attribute) -> None:
        """Name the copy of a function that comes from another file."""
        one = find_function(self.imports, Path(self.file), node)
        if one is None:
            return
        if one not in self.foreign:
            if isinstance(node, ast.Name):
                self.foreign[one] = node.id
                self.dropped.add(node.id)
            else:
                self.foreign[one] = free_name(node.attr, self.taken)
                self.modules |= mentions(node)
        self.replace(node, self.foreign[one])

    def _name(self, node: ast.Attribute) -> None:
        name = self.language(node)
        if name is not None:
            self._renamed(node, self.names.full(node), name)
        elif self.names.of_triton(node, self.bound) in _HOST:
            self.replace(node, _HOST[node.attr])
        elif node.attr == "dtype" and self.kind_of(node.value) == BLOCK:
            self.replace(node, f"{self.text_of(node.value)}.base.dtype")
        elif node.attr == "shape" and self.kind_of(node.value) == TILES:
            self.replace(node, f"{self.text_of(node.value)}.extents")
        elif isinstance(node.value, (ast.Name, ast.Attribute)):
            root: ast.expr = node.value
            while isinstance(root, ast.Attribute):
                root = root.value
            if isinstance(root, ast.Name) and root.id not in self.bound:
                self._elsewhere(node)

    def _renamed(self, node: ast.Name | ast.Attribute, full: str, name: str) -> None:
        """Write a function of Triton's language by its name here."""
        short, last = _RENAMED.get(name, name), name.rpartition(".")[2]
        if short in ("dot", "trans", "range", "tensor_descriptor", *_BLOCKS):
            return  # with the call
        if name in _COPIED or name in _OF_OTHER_NAMES:
            self.replace(node, self.need(_OF_OTHER_NAMES.get(name, name)))
        elif name == "CONSTEXPR_0":
            self.replace(node, "gl.constexpr(0)")
        elif "." not in short and short != "extra" and hasattr(language, short):
            self.replace(node, f"gl.{short}")
        elif full.startswith(_EARLY) and hasattr(language.extra.libdevice, last):
            self.replace(node, f"gl.extra.libdevice.{last}")
        elif full == "libdevice":
            return  # with its function
        elif name.partition(".")[0] in _AS_THEY_ARE or name in _MODULES:
            return
        else:
            raise self.error(node, f"tl.{full} has no counterpart", None)

    def error(self, node: ast.expr | ast.stmt, words: str, remedy: Optional[str]) -> GluonError:
        line = self.lines[node.lineno - 1].decode().rstrip("\n")
        span = SourceSpan(self.file, node.lineno, node.col_offset, node.end_col_offset, line)
        return KernelSyntaxError(
            words, remedy=remedy or "Rewrite the op by others, then port the file.", span=span
        )

    # -- calls ----------------------------------------------------------------------------------

    def _call(self, node: ast.Call) -> None:
        name = self.language(node.func)
        if isinstance(node.func, ast.Name) and node.func.id == "isinstance" and len(node.args) == 2:
            if self.language(node.args[1]) == "tensor_descriptor":
                value = self.text_of(node.args[0])
                self.replace(node, f'hasattr({value}, "block_shape")')
        elif name == "dot":
            ported_product(self, node)
        elif name == "trans":
            dims = [self.text_of(arg) for arg in node.args[1:]]
            order = ", ".join(dims) if dims else "1, 0"
            self.replace(node, f"gl.permute({self.text_of(node.args[0])}, ({order}))")
        elif name == "range":  # its other words are hints for passes that Gluon has not
            words = arguments(node, ("arg1", "arg2", "step"))
            texts = [self.text_of(words[n]) for n in ("arg1", "arg2", "step") if n in words]
            if "step" in words and "arg2" not in words:
                texts = ["0", *texts]
            self.replace(node, f"range({', '.join(texts)})")
        elif name == "static_range":  # its bounds stay constants, which those of a function are not
            for arg in node.args:
                own = (
                    self.names.of_triton(arg.func, self.bound) if isinstance(arg, ast.Call) else ""
                )
                if own == "cdiv" and isinstance(arg, ast.Call) and len(arg.args) == 2:
                    value, step = (factor(self.text_of(one)) for one in arg.args)
                    self.replace(arg, f"({value} + {step} - 1) // {step}")
        elif name in _BLOCKS:
            ported_maker(self, node, name)
        elif name in ("load", "store"):
            ported_access(self, node, name)
        elif name in ("reshape", "view"):  # which keep the order of the elements here
            texts = [self.text_of(arg) for arg in node.args]
            kept = [w for w in node.keywords if w.arg != "can_reorder"]
            texts += [f"{w.arg}={self.text_of(w.value)}" for w in kept]
            self.replace(node, f"gl.reshape({', '.join(texts)})")
        elif isinstance(node.func, ast.Attribute) and name is None:
            ported_method(self, node)


def _bound(tree: ast.Module) -> set[str]:
    """Return the names that a file uses, but for those of attributes."""
    names = {node.id for node in nodes_in(tree) if isinstance(node, ast.Name)}
    names |= {node.arg for node in nodes_in(tree) if isinstance(node, ast.arg)}
    for node in nodes_in(tree):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            names.add(node.name)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            names |= {alias.asname or alias.name.partition(".")[0] for alias in node.names}
    return names


def _innermost_first(node: ast.AST) -> Iterable[ast.AST]:
    for child in ast.iter_child_nodes(node):
        yield from _innermost_first(child)
    yield node
