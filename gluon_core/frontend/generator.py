"""From a kernel's Python AST to builder calls, with a source span on every error.

Triton's code generator, subclassed, over our builder and semantic layer."""

from __future__ import annotations

import ast
import linecache
import os
from types import ModuleType
from typing import Any, Callable, Iterator, Optional, Sequence

from gluon_core import _triton
from gluon_core._triton import CompilationError, code_generator, tl, tl_core
from gluon_core.errors import (
    DtypeError,
    GlobalVariableError,
    GluonError,
    KernelSyntaxError,
    SourceSpan,
)
from gluon_core.frontend.constructs import ends, refusal
from gluon_core.frontend.explain import add_remedy, explained, reworded
from gluon_core.frontend.host_calls import host_function, is_library
from gluon_core.frontend.loops import LoopGenerator, handles_of
from gluon_core.frontend.scope import value_of
from gluon_core.frontend.session import Session
from gluon_core.language.control import (
    device_print,
    kernel_breakpoint,
    static_assert,
    static_print,
)
from gluon_core.language.target import ANSWERS
from gluon_core.semantic.composed import Semantic
from gluon_core.semantic.multiples import PassedMultiples
from gluon_core.simulation.recorder import CallSite
from gluon_core.values.descriptors import is_layout

__all__ = ["KernelGenerator"]


class _Nothing:
    """Stand in for a missing value; for the module until ours exists: the base class must not make one."""


class _Static(dict[Any, Any]):
    """Hold the functions that the code generator carries out itself. It asks for everything that a
    kernel calls; of a
    function in a kernel's language Triton makes a hash of all that it reads, and where a name there
    is missing that would fail at the outermost call, not in the line that names it."""

    def get(self, called: Any, absent: Any = None) -> Any:
        return absent if isinstance(called, _triton.JITCallable) else super().get(called, absent)


_visit = _triton.generator_visit()
# Types that Python has as they are, and kernels as a constexpr.
_BARE = (bool, int, float, str, tl.dtype, type(None))
_GENERATOR: Any = code_generator.CodeGenerator
# Triton's interpreter may have been at work while this was made: its asserts are others.
_STATIC = _GENERATOR.statically_implemented_functions


def _attribute(value: Any, name: str) -> Any:
    """Return an attribute, or `_Nothing`; Triton's tuples raise ValueError for one that they lack."""
    try:
        return getattr(value, name)
    except (AttributeError, ValueError):
        return _Nothing


def _tuple_of(values: Sequence[Any]) -> Any:
    return tl.tuple([tl.constexpr(v) if isinstance(v, _BARE) else v for v in values])


def _wrapped(value: Any) -> Any:
    """Return a tuple whose constants, and those of tuples in it, are constexprs."""
    return _tuple_of(list(map(_wrapped, value.values))) if isinstance(value, tl.tuple) else value


def _has_attribute(generator: Any, node: ast.Call) -> Any:
    """`hasattr` in a kernel: ops that the installed Triton cannot emit are not there. Triton would make a tuple again first,
    without the names of its parts."""
    value, name = (generator.visit(arg) for arg in node.args)
    plain = value if isinstance(value, tl.tuple) else _triton.unwrap(value)
    attribute = _attribute(plain, _triton.unwrap(name))
    parts = vars(attribute).values() if isinstance(attribute, ModuleType) else [attribute]
    needs = [
        getattr(part, "since", None)
        for part in parts
        if _attribute(part, "__triton_builtin__") is True
    ]
    present = not needs or any(since is None or _triton.has(since) for since in needs)
    return tl.constexpr(attribute is not _Nothing and present)


def _get_attribute(generator: Any, node: ast.Call) -> Any:
    """`getattr` in a kernel: Triton 3.6 would make a tuple again first, without the names of its parts."""
    value, name, *default = (generator.visit(arg) for arg in node.args)
    plain = value if isinstance(value, tl.tuple) else _triton.unwrap(value)
    attribute = _attribute(plain, _triton.unwrap(name))
    if attribute is not _Nothing:
        return attribute
    return default[0] if default else getattr(plain, _triton.unwrap(name))


def _is_instance(generator: Any, node: ast.Call) -> Any:
    """`isinstance` in a kernel: Triton would make the tuple again first, which it cannot where an item is None."""
    value, kinds = (generator.visit(arg) for arg in node.args)
    listed = kinds.values if isinstance(kinds, tl.tuple) else [kinds]
    classes = tuple(_triton.unwrap(kind) for kind in listed)
    plain = value if isinstance(value, tl.tuple) else _triton.unwrap(value)
    return tl.constexpr(isinstance(plain, classes))


class KernelGenerator(LoopGenerator):
    """Triton's code generator over our builder and semantic layer. `session` is set per trace."""

    session: Session
    gscope: dict[str, Any]
    builtin_namespace = {
        **code_generator.CodeGenerator.builtin_namespace,
        "breakpoint": kernel_breakpoint,
        "print": device_print,
    }
    statically_implemented_functions = _Static(
        {
            **_STATIC,
            **dict.fromkeys(
                (static_assert, tl_core.static_assert), _GENERATOR.execute_static_assert
            ),
            **dict.fromkeys(
                (static_print, tl_core.static_print), _GENERATOR.static_executor(print)
            ),
            isinstance: _is_instance,
            hasattr: _has_attribute,
            getattr: _get_attribute,
        }
    )

    def __init__(self, *args: Any, module: Any = None, **kwargs: Any):
        session = self.session
        self.loop_bounds: set[int] = set()
        self.loop_tests: set[int] = set()
        self.called: set[int] = set()  # names before parentheses
        self.left: set[int] = set()
        self.visited: dict[int, Any] = {}  # arguments of a loop that were visited already
        self.looking = 0  # loops around whose bodies are traced for their carried names
        self.seen: Any = None  # the body of a loop within these, traced for that already
        self.branches: set[int] = set()  # bodies that do not always run once
        self.returns_in_branches: list[ast.If] = []
        kwargs["is_gluon"] = False  # the base class would import Triton's own Gluon
        if kwargs.get("file_name"):  # locations are UTF-8, which names of files need not be
            kwargs["file_name"] = os.fsencode(kwargs["file_name"]).decode("utf-8", "replace")
        self.passed, self.session.passing = self.session.passing, None
        self.unbound: set[str] = set()  # parameters without their values yet
        caller_context = kwargs.get("caller_context")
        context = session.context
        # The base class makes itself a plain builder on the MLIR context; ours replaces it.
        super().__init__(
            context, *args[1:], module=_Nothing if module is None else module, **kwargs
        )
        self.builder = session.make_builder()
        self.builder.set_loc(self.file_name, self.begin_line + 1, 0)
        self.semantic = Semantic(self.builder, session)
        self.semantic.place = self._place
        if caller_context is not None:
            self.semantic.num_warps = caller_context.num_warps
        if module is None:
            self.module = _triton.create_module(self.builder, self._module_attributes())

    def _place(self) -> tuple[str, int]:
        line = getattr(self.cur_node, "lineno", 1)
        return self.file_name or "<kernel>", self.begin_line + line

    def _module_attributes(self) -> dict[str, Any]:
        session = self.session
        attributes: dict[str, Any] = {
            "ttg.target": session.backend.compiler.target_attribute(session.target),
            "ttg.num-warps": session.num_warps,
            "ttg.num-ctas": session.num_ctas,
            "ttg.threads-per-warp": session.target.warp_size,
        }
        if session.maxnreg is not None:
            attributes["ttg.maxnreg"] = int(session.maxnreg)
        return attributes

    # -- names ----------------------------------------------------------------------------------

    def _define_name_lookup(self) -> Callable[[str], Any]:
        absent = object()

        def lookup(name: str) -> Any:
            value = self.lscope.get(name, absent)
            if value is not absent:
                return value
            value = _triton.traceable(self.gscope.get(name, absent))
            if value is not absent:
                if name in self.builtin_namespace or self._allowed_global(value):
                    return value
                host = host_function(name, value)
                if host is not None:
                    raise host
                shown = reworded(_shorten(value))
                literal = repr(value) == shown
                raise GlobalVariableError(
                    f"a kernel reads the global variable {name!r}, which is not a constexpr",
                    got=f"{name} = {shown}",
                    remedy=f"Write {name} = gl.constexpr({shown if literal else '...'}) where it is "
                    "defined, or pass it as an argument.",
                )
            value = self.builtin_namespace.get(name, absent)
            if value is not absent:
                return value
            raise NameError(f"{name} is not defined")

        return lookup

    def _allowed_global(self, value: Any) -> bool:
        if value is None or isinstance(
            value, (ModuleType, tl.constexpr, tl.dtype, _triton.JITCallable)
        ):
            return True
        if getattr(value, "__triton_builtin__", False) or getattr(
            value, "__triton_aggregate__", False
        ):
            return True
        module = getattr(value, "__module__", None) or ""
        if module.split(".")[0] in self.session.packages or module.startswith("triton.language"):
            return True
        return (
            _is_namedtuple_class(value)
            or self.visiting_arg_default_value
            or _triton.knobs.compilation.allow_non_constexpr_globals
        )

    # -- errors ---------------------------------------------------------------------------------

    def visit_if_top_level(self, cond: Any, node: Any) -> Any:
        self.returns_in_branches.append(node)
        return super().visit_if_top_level(cond, node)

    def visit_then_else_blocks(self, node: Any, *blocks: Any) -> Any:
        self.branches.update((id(node.body), id(node.orelse)))
        return super().visit_then_else_blocks(node, *blocks)

    def visit_Return(self, node: Any) -> Any:
        self.semantic.check_scopes()
        return super().visit_Return(node)

    def visit_If(self, node: Any) -> Any:
        self.semantic.passed += 1
        test = self.visit(node.test)
        self.visited[id(node.test)] = test  # for the base class, which asks again
        self.left.discard(id(node))
        names = self.gscope
        # The base class asks globals alone for a method of a name.
        if not names.keys().isdisjoint(self.lscope):
            self.gscope = {name: names[name] for name in names if name not in self.lscope}
        try:
            result = super().visit_If(node)
        finally:
            self.gscope = names
        if not isinstance(test, tl.tensor):
            taken = node.body if _triton.unwrap(test) else node.orelse
            self.left |= {id(node)} if id(taken) in self.left else set()
        self.semantic.passed += 1
        return result

    def visit_IfExp(self, node: Any) -> Any:
        self.semantic.passed += 1
        test = self.visit(node.test)
        self.visited[id(node.test)] = test  # for the base class, which asks again
        if isinstance(test, tl.tensor) and test.type.is_block():
            raise DtypeError(
                "the condition of `a if condition else b` must be one boolean",
                got=str(test.type),
                remedy="Choose element by element: gl.where(condition, a, b).",
                span=self._span(node),
            )
        result = super().visit_IfExp(node)
        self.semantic.passed += 1
        return result

    def visit_Attribute(self, node: Any) -> Any:
        attribute = _triton.traceable(super().visit_Attribute(node))
        if id(node) not in self.called and any(attribute is answer for answer in ANSWERS):
            return attribute(_semantic=self.semantic)  # as a property
        return attribute

    def visit_Call(self, node: Any) -> Any:
        self.called.add(id(node.func))
        result = super().visit_Call(node)
        # A call right in the arguments of another one: Triton 3.6 would pass on the bare layout.
        return tl.constexpr(result) if is_layout(result) else result

    call_any = code_generator.CodeGenerator.call_Function

    def call_Function(self, node: Any, fn: Any, args: Any, kws: Any) -> Any:
        enter = getattr(self.builder, "enter_call", None)  # of builders that report kernels' words
        if enter is None or not isinstance(node, ast.Call) or is_library(self.file_name):
            return self.call_any(node, fn, args, kws)
        outer = enter(self._call_site(node, getattr(fn, "__func__", fn)))
        try:
            return self.call_any(node, fn, args, kws)
        finally:
            enter(outer)

    def _call_site(self, node: Any, called: Any) -> CallSite:
        """Return the site of a call; the rounds of an unrolled loop share it."""
        public = getattr(called, "public", "")
        known: Optional[CallSite] = getattr(node, "gluon_site", None)
        if known is None or known.public != public or known.scope is not self.gscope:
            function, source = (" ".join(ast.unparse(n).split()) for n in (node.func, node))
            known = CallSite(function, source, self._span(node), public, self.gscope)
            node.gluon_site = known
        return known

    def visit_List(self, node: Any) -> Any:
        return self.visit_Tuple(node)

    def visit_Tuple(self, node: Any) -> Any:
        # A property gives a bare number: Triton 3.6 asks the entries of a tuple for their type.
        return _tuple_of([self.visit(entry) for entry in node.elts])

    def visit_BinOp(self, node: Any) -> Any:
        # A sum of tuples: Triton 3.9 takes the constants of the second one out of their constexprs.
        return _wrapped(super().visit_BinOp(node))

    def visit_Compare(self, node: Any) -> Any:
        for side, other in (node.left, node.comparators[0]), (node.comparators[0], node.left):
            number = isinstance(other, ast.Constant) and isinstance(other.value, (int, float))
            callee = value_of(self, side) if number else None
            property_ = any(callee is answer for answer in ANSWERS)
            if getattr(callee, "__triton_builtin__", False) and not property_:
                # Python would say that they differ, and quietly take the other branch.
                raise KernelSyntaxError(
                    "a function is compared with a number",
                    got=ast.unparse(node),
                    remedy=f"Call it: {ast.unparse(side)}().",
                    span=self._span(node),
                )
        return super().visit_Compare(node)

    def visit(self, node: Any) -> Any:
        if id(node) in self.visited:
            return self.visited.pop(id(node))
        try:
            value = _visit(self, node)
            looped = id(node) in self.loop_bounds or id(node) in self.loop_tests
            return self._check_loop(node, value) if looped else value
        except CompilationError as error:
            if not hasattr(error, "gluon_span"):
                place = getattr(error, "node", None) or node
                error.gluon_span = self._span(place)
                self._explain(error, place)
            raise

    def _explain(self, error: Any, node: Any) -> None:
        """Raise our error at `node`, where the words of Triton or of a library function do not help."""
        root: Any = error
        while isinstance(root, CompilationError):
            inner, root = root, root.__cause__ or root.__context__
        own = not is_library(self.file_name)
        if isinstance(root, GluonError) and own and isinstance(node, ast.Call):
            add_remedy(self, node, root)
        if isinstance(inner, _triton.CompileTimeAssertionFailure):
            return
        called = inner is not error  # the failure is in a function that is called here
        if not called or own and is_library(getattr(inner, "gluon_file", None)):
            explanation = explained(self, node, root or RuntimeError(inner.error_message))
            if explanation is not None:
                inner.gluon_error = explanation
        if not called:
            inner.gluon_file = self.file_name

    def visit_FunctionDef(self, node: Any) -> None:
        if self.fn:
            raise self._refusal(node)
        self.unbound = {argument.arg for argument in node.args.args}
        super().visit_FunctionDef(node)
        self.semantic.check_scopes()
        self._check_result(node)
        if self.returns_in_branches and not self.is_kernel and not ends(node.body):
            returned = self.ret_type
            if (
                returned is None
                or returned == tl.void
                or isinstance(returned, _triton.constexpr_type)
            ):
                return
            self.cur_node = self.returns_in_branches[0]
            self.semantic.warn(
                f"{node.name} returns a value on some paths alone: where it comes to its end, the "
                "result is undefined. Return a value there, too."
            )

    def _check_result(self, node: Any) -> None:
        """Refuse a kernel's result: nobody gets it, and older compilers fail on it."""
        returned = self.ret_type
        if not self.is_kernel or returned in (None, tl.void):
            return
        if isinstance(returned, _triton.constexpr_type) and returned.value is None:
            return
        returns = [n for n in ast.walk(node) if isinstance(n, ast.Return) and n.value is not None]
        if not returns:
            return
        first: Any = returns[0]
        self.cur_node = first
        if not self.semantic.kernels_may_return or isinstance(returned, _triton.block_type):
            error: Any = self._unsupported(first, "")
            error.gluon_error = KernelSyntaxError(
                "a kernel cannot return a value",
                got=ast.unparse(first).splitlines()[0],
                remedy="Store it to memory that the kernel gets as an argument.",
                span=self._span(first),
            )
            raise error
        self.semantic.warn(
            f"{node.name} is a kernel and returns a value, which nobody gets. Store it to memory."
        )

    def generic_visit(self, node: Any) -> Any:
        raise self._refusal(node)

    def _refusal(self, node: Any) -> Any:
        error: Any = self._unsupported(node, "")
        error.gluon_error = refusal(node, self._span(node))
        return error

    def _span(self, node: Any) -> Optional[SourceSpan]:
        line = getattr(node, "lineno", None)
        if line is None:
            return None
        number = self.begin_line + line
        text = linecache.getline(self.file_name or "", number).rstrip("\n")
        source = self.jit_fn.src.split("\n")
        column, end = node.col_offset, getattr(node, "end_col_offset", None)
        if getattr(node, "end_lineno", line) != line:
            end = None
        if line <= len(source) and text:
            shift = (
                len(text)
                - len(text.lstrip())
                - (len(source[line - 1]) - len(source[line - 1].lstrip()))
            )
            column += max(shift, 0)
            end = None if end is None else end + max(shift, 0)
        return SourceSpan(self.file_name or "<kernel>", number, column, end, text or None)

    def assignTarget(self, target: Any, value: Any) -> None:
        values = getattr(value, "values", None)
        names = target.elts if isinstance(target, ast.Tuple) else ()
        starred = any(isinstance(name, ast.Starred) for name in names)
        if names and not starred and values is not None and len(values) > len(names):
            if self.semantic.drops_values:
                shown = ast.unparse(target).strip("()")
                self.semantic.warn(
                    f"of {len(values)} values the first {len(names)} are taken, for ({shown}); "
                    "newer releases of Triton refuse it. Name as many as there are."
                )
        super().assignTarget(target, value)

    def _bind_multiples(self, name: str, value: Any) -> None:
        """Note the known facts of a parameter: declared for a kernel's, passed by a caller to others."""
        self.unbound.discard(name)
        if not self.is_kernel:
            passed = self.passed
            if passed is not None:
                self.session.multiples.bind(value, lambda path: passed.of(name, path), ())
            return

        def declared(path: tuple[int, ...]) -> int:
            pairs = self.prototype.attrs.get(path, ())
            return max((int(n) for key, n in pairs if key == "tt.divisibility"), default=1)

        self.session.multiples.bind(value, declared, (self.jit_fn.arg_names.index(name),))

    def before_call(self, fn: Any, args: Any, kwargs: Any) -> PassedMultiples:
        arguments = {**dict(zip(fn.arg_names, args)), **kwargs}
        known = {name: self.session.multiples.within(value) for name, value in arguments.items()}
        passed = PassedMultiples(known, self.session.multiples.asked)
        self.session.passing = passed
        return passed

    def after_call(self, passed: PassedMultiples) -> None:
        self.session.passing = None
        if passed.variant is not None and self.session.multiples.asked > passed.asked:
            passed.variant.by_multiples = True

    def set_value(self, name: str, value: Any) -> None:
        super().set_value(name, value)
        if self.fn is not None and name in self.unbound:
            self._bind_multiples(name, value)
        bind = getattr(self.builder, "bind_name", None)  # of builders that a debugger asks
        if bind is not None and isinstance(value, tl.constexpr):
            bind(name, [value.value])
        elif bind is not None and isinstance(value, _triton.base_value):
            for label, handle in _labelled(name, value):
                bind(label, [handle])

    def _maybe_set_loc_to_name(self, val: Any, name: str) -> None:
        if isinstance(val, (_triton.ir.value, _triton.ir.block_argument, _triton.base_value)):
            super()._maybe_set_loc_to_name(val, name)
        elif hasattr(val, "set_loc"):  # a value of a builder that is not Triton's
            val.set_loc(self.builder.create_name_loc(name, val.get_loc()))


def _labelled(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the run-time parts of a value, each with the expression for it."""
    if isinstance(value, tl.tuple):
        for number, part in enumerate(value.values):
            yield from _labelled(f"{name}[{number}]", part)
        return
    aggregate = getattr(type(value), "__triton_aggregate__", False)
    parts = [field for field, _ in value.type.fields] if aggregate else []
    for field in parts:
        yield from _labelled(f"{name}.{field}", getattr(value, field))
    if not parts:
        handles = handles_of(value)
        for number, handle in enumerate(handles):
            yield (name if len(handles) == 1 else f"{name}[{number}]"), handle


def _is_namedtuple_class(value: Any) -> bool:
    return isinstance(value, type) and issubclass(value, tuple) and hasattr(value, "_fields")


def _shorten(value: Any, limit: int = 60) -> str:
    text = repr(value)
    return text if len(text) <= limit else text[: limit - 3] + "..."


for _name, _method in _triton.generator_truths().items():
    setattr(KernelGenerator, _name, _method)
