"""From a kernel's Python AST to builder calls, with a source span on every error.

`trace` runs Triton's code generator, subclassed, over a kernel. The builder behind it is the
backend's: Triton's, which emits TTGIR, or a recorder such as the simulator's.
"""

from __future__ import annotations

import ast
import functools
import linecache
import os
import re
from dataclasses import dataclass, field
from types import MappingProxyType, ModuleType
from typing import Any, Callable, Mapping, Optional, Sequence

from gluon_core import _triton
from gluon_core._capture import captured
from gluon_core._triton import CompilationError, code_generator, tl
from gluon_core.backend import Backend, load_path
from gluon_core.descriptors import is_descriptor_text, layout_class, parse_descriptor
from gluon_core.errors import (
    ArgumentError,
    CapabilityError,
    DtypeError,
    GlobalVariableError,
    GluonError,
    KernelSyntaxError,
    LimitError,
    ShapeError,
    SourceSpan,
    StageError,
    StaticAssertionError,
    TraceError,
)
from gluon_core.language.control import kernel_breakpoint
from gluon_core.layouts.base import Layout
from gluon_core.semantic import Semantic
from gluon_core.targets import Target

__all__ = ["Session", "parse_type", "trace"]

_HERE = os.path.dirname(os.path.abspath(__file__))
# Packages whose classes and functions kernels may name without wrapping them in constexpr.
_LANGUAGE_PACKAGES = ("gluon_core", "triton.language")


def translate_layout(layout: Any) -> Layout:
    """Our class for a layout that the builder answers with.

    Triton's builder answers with classes of its own Gluon package; they are recognised by class
    name and read field by field. A recorder answers with our classes.
    """
    if isinstance(layout, Layout):
        return layout
    name = type(layout).__name__
    cls = layout_class(name)
    if cls is None:
        raise TraceError(f"the builder answered with an unknown layout {name}", got=repr(layout))
    values = {}
    for key in getattr(layout, "__dataclass_fields__", ()):
        value = _triton.unwrap(getattr(layout, key))
        values[key] = translate_layout(value) if type(value).__name__.endswith("Layout") else value
    return cls(**values)


@dataclass
class Session:
    """One trace: who compiles, for what, and what was decided on the way."""

    backend: Backend
    target: Target
    options: Any
    context: Any
    selections: list = field(default_factory=list)
    refused: Mapping[tuple[str, str], str] = field(default_factory=dict)
    specialized: bool = False  # while the functions of `warp_specialize` are generated

    def __post_init__(self) -> None:
        self.num_warps = int(getattr(self.options, "num_warps", 4))
        self.num_ctas = int(getattr(self.options, "num_ctas", 1))
        self.packages = self._packages()
        self.codegen = dict(self.backend.codegen(self.target, self.options))
        self.module_map = dict(self.backend.module_map(self.target))

    def _packages(self) -> tuple[str, ...]:
        from gluon_core.plugins import registry

        vendors = {b.language.split(".")[0] for b in registry().backends.values() if b.language}
        return (*_LANGUAGE_PACKAGES, *sorted(vendors))

    def architectures_with(self, capability: str) -> Sequence[str]:
        """Names of the known architectures that have `capability`."""
        from gluon_core.plugins import registry

        return [a.name for a in registry().architectures() if capability in a.capabilities]

    def check_layout(self, layout: Layout) -> None:
        """Raise `CapabilityError` for a vendor's layout on hardware that does not have it."""
        for capability in getattr(layout, "requires", ()):
            if not self.target.has(capability):
                raise CapabilityError(
                    f"{type(layout).__name__} needs {capability}"
                    f" ({', '.join(self.architectures_with(capability))}); target is {self.target}",
                    argument="layout",
                )
        parent = getattr(layout, "parent", None)
        if parent is not None:
            self.check_layout(parent)

    def count_shared(self, nbytes: int) -> None:
        """Raise `LimitError` for one allocation that cannot fit whatever else the kernel does."""
        limit = self.target.limits.shared_memory
        if nbytes > limit:
            raise LimitError(
                f"one allocation needs {nbytes} bytes of shared memory",
                argument="shape",
                expected=f"at most {limit} bytes on {self.target}",
                got=nbytes,
                remedy="Use a smaller tile or fewer stages.",
            )

    @property
    def vendor(self) -> Backend:
        """The backend of the hardware: another than `backend` where that simulates."""
        from gluon_core.plugins import registry

        return registry().backends.get(self.target.architecture.backend, self.backend)

    @staticmethod
    def translate_layout(layout: Any) -> Layout:
        return translate_layout(layout)

    def make_builder(self) -> Any:
        builder = self.backend.builder(self.context, self.target)
        builder.options = self.options
        builder.codegen_fns = self.codegen
        builder.module_map = self.module_map
        return builder


class KernelGenerator(code_generator.CodeGenerator):
    """Triton's code generator over our builder and semantic layer. `session` is set per trace."""

    session: Session
    builtin_namespace = {
        **code_generator.CodeGenerator.builtin_namespace,
        "breakpoint": kernel_breakpoint,
    }

    def __init__(self, *args: Any, module: Any = None, **kwargs: Any):
        session = self.session
        self.loop_bounds: set[int] = set()
        self.loop_tests: set[int] = set()
        kwargs["is_gluon"] = False  # the base class would import Triton's own Gluon
        caller_context = kwargs.get("caller_context")
        context = session.context
        # The base class makes itself a plain builder on the MLIR context; ours replaces it.
        super().__init__(context, *args[1:], module=_Nothing if module is None else module, **kwargs)
        self.builder = session.make_builder()
        self.builder.set_loc(self.file_name, self.begin_line + 1, 0)
        self.semantic = Semantic(self.builder, session)
        if caller_context is not None:
            self.semantic.num_warps = caller_context.num_warps
        if module is None:
            self.module = _triton.create_module(self.builder, self._module_attributes())

    def _module_attributes(self) -> dict[str, Any]:
        session = self.session
        attributes: dict[str, Any] = {
            "ttg.target": session.backend.target_attribute(session.target),
            "ttg.num-warps": session.num_warps,
            "ttg.num-ctas": session.num_ctas,
            "ttg.threads-per-warp": session.target.warp_size,
        }
        maxnreg = getattr(session.options, "maxnreg", None)
        if maxnreg is not None:
            attributes["ttg.maxnreg"] = int(maxnreg)
        return attributes

    # -- names ----------------------------------------------------------------------------------

    def _define_name_lookup(self) -> Callable[[str], Any]:
        absent = object()

        def lookup(name: str) -> Any:
            value = self.lscope.get(name, absent)
            if value is not absent:
                return value
            value = self.gscope.get(name, absent)
            if value is not absent:
                if name in self.builtin_namespace or self._allowed_global(value):
                    return value
                if callable(value) and hasattr(value, "__code__"):
                    raise GlobalVariableError(
                        f"a kernel calls {name!r}, which is plain Python",
                        remedy="Decorate it with @gluon.jit, or with @gluon.constexpr_function if it "
                        "works on compile-time values.",
                    )
                raise GlobalVariableError(
                    f"a kernel reads the global variable {name!r}, which is not a constexpr",
                    got=f"{name} = {_shorten(value)}",
                    remedy=f"Write {name} = gl.constexpr({_shorten(value)}) where it is defined, "
                    "or pass it as an argument.",
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

    def visit_For(self, node: Any) -> Any:
        if isinstance(node.iter, ast.Call):
            self.loop_bounds.update(id(arg) for arg in node.iter.args)
        return super().visit_For(node)

    def visit_While(self, node: Any) -> Any:
        self.loop_tests.add(id(node.test))
        return super().visit_While(node)

    def _find_carries(self, node: Any, liveins: Any, ignore: Any = frozenset()) -> Any:
        """The names that a loop carries from round to round, their values and types on entry.

        The base class takes a name for unchanged when the first round gives it back its value on
        entry; with `before = slot` in the body that is so wherever the two were equal on entry.
        """
        names, handles, types = super()._find_carries(node, liveins, ignore)
        parts = (n for part in node.body for n in ast.walk(part))
        stored = {n.id for n in parts if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
        for name, value in liveins.items():
            if name in names or name in ignore or name not in stored:
                continue
            own = _handles(value)
            if any(handle in handles for handle in own):
                names.append(name)
                types.append(value.type)
                handles.extend(own)
        return names, handles, types

    def _check_loop(self, node: Any, value: Any) -> Any:
        """A loop's bound or test as the builder can take it: others would end the process."""
        test = id(node) in self.loop_tests
        if test and isinstance(value, tl.constexpr):
            raise KernelSyntaxError(
                "the test of a while loop is a compile-time constant, which no round can change",
                got=repr(value.value),
                remedy="Compare run-time values, or use a for loop.",
                span=self._span(node),
            )
        if not isinstance(value, tl.tensor):
            return value
        if value.type.is_block():
            what = "the test of a loop must be one boolean" if test else "a loop's bounds must be scalars"
            raise DtypeError(what, got=str(value.type), span=self._span(node))
        if test and not value.dtype.is_bool():
            return self.semantic.cast(value, tl.int1)  # as in Python, and in Triton from 3.9
        return value

    def visit(self, node: Any) -> Any:
        try:
            value = super().visit(node)
            looped = id(node) in self.loop_bounds or id(node) in self.loop_tests
            return self._check_loop(node, value) if looped else value
        except CompilationError as error:
            if not hasattr(error, "gluon_span"):
                error.gluon_span = self._span(getattr(error, "node", None) or node)
            raise

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
            shift = len(text) - len(text.lstrip()) - (len(source[line - 1]) - len(source[line - 1].lstrip()))
            column += max(shift, 0)
            end = None if end is None else end + max(shift, 0)
        return SourceSpan(self.file_name or "<kernel>", number, column, end, text or None)

    def set_value(self, name: str, value: Any) -> None:
        super().set_value(name, value)
        bind = getattr(self.builder, "bind_name", None)  # of builders that a debugger asks
        if bind is not None and isinstance(value, tl.constexpr):
            bind(name, [value.value])
        elif bind is not None and isinstance(value, _triton.base_value):
            bind(name, _handles(value))

    def _maybe_set_loc_to_name(self, val: Any, name: str) -> None:
        if isinstance(val, (_triton.ir.value, _triton.ir.block_argument, _triton.base_value)):
            super()._maybe_set_loc_to_name(val, name)
        elif hasattr(val, "set_loc"):  # a value of a builder that is not Triton's
            val.set_loc(self.builder.create_name_loc(name, val.get_loc()))


def _handles(value: Any) -> list:
    """What a value of a kernel consists of at run time; nothing for others."""
    handles: list = []
    if isinstance(value, _triton.base_value) and not isinstance(value, tl.constexpr):
        value._flatten_ir(handles)
    return handles


class _Nothing:
    """Stands for the module until ours exists: the base class must not make one."""


def _is_namedtuple_class(value: Any) -> bool:
    return isinstance(value, type) and issubclass(value, tuple) and hasattr(value, "_fields")


def _shorten(value: Any, limit: int = 60) -> str:
    text = repr(value)
    return text if len(text) <= limit else text[: limit - 3] + "..."


# ---------------------------------------------------------------------------------------------
# Types in signatures
# ---------------------------------------------------------------------------------------------

_SCALARS: Mapping[str, str] = {
    "i1": "int1",
    "i8": "int8",
    "i16": "int16",
    "i32": "int32",
    "i64": "int64",
    "u1": "int1",
    "u8": "uint8",
    "u16": "uint16",
    "u32": "uint32",
    "u64": "uint64",
    "B": "int1",
    "fp8e4nv": "float8e4nv",
    "fp8e5": "float8e5",
    "fp8e4b15": "float8e4b15",
    "fp8e4b8": "float8e4b8",
    "fp8e5b16": "float8e5b16",
    "fp16": "float16",
    "bf16": "bfloat16",
    "fp32": "float32",
    "f16": "float16",
    "f32": "float32",
    "f64": "float64",
    "fp64": "float64",
}


def parse_type(text: Any, descriptors: Mapping[str, str] = MappingProxyType({})) -> Any:
    """The type that a signature entry names.

    `"*fp32"` is a pointer, `"*kfp32"` one that cannot be stored through, `"constexpr"` a
    compile-time value; a tuple of entries is a tuple argument. A type object is returned as it is.
    For `"tensordesc<...>"` see `gluon_core.descriptors`.

    Args:
        descriptors: `Backend.descriptors`.

    Raises:
        DtypeError: an unknown name.
    """
    if isinstance(text, tuple):
        items = [parse_type(item, descriptors) for item in text]
        return tl.tuple_type(items, getattr(text, "_fields", None))
    if isinstance(text, _triton.base_type):
        return text
    if text is None or text == "constexpr":
        return tl.constexpr_type(None) if text is None else tl.constexpr
    if is_descriptor_text(text):
        types = {head: load_path(path) for head, path in descriptors.items()}
        return parse_descriptor(text, parse_type, types)
    match = re.fullmatch(r"(\*?)(k?)(\w+)", text)
    name = _SCALARS.get(match.group(3)) if match is not None else None
    if match is None or not name:
        raise DtypeError(
            "unknown type in a signature",
            argument="signature",
            expected="e.g. '*fp32', 'i32', 'constexpr'",
            got=repr(text),
        )
    scalar = getattr(tl, name)
    if not match.group(1):
        return scalar
    return tl.pointer_type(scalar, const=bool(match.group(2)))


# ---------------------------------------------------------------------------------------------
# Tracing
# ---------------------------------------------------------------------------------------------


def trace(
    fn: Any,
    signature: Mapping[str, Any],
    constexprs: Mapping[tuple[int, ...], Any],
    attrs: Mapping[tuple[int, ...], list],
    *,
    backend: Backend,
    target: Target,
    options: Any,
    context: Any = None,
    on_session: Optional[Callable[[Session], None]] = None,
    refused: Mapping[tuple[str, str], str] = MappingProxyType({}),
) -> Any:
    """The module that a kernel turns into, before any pass has run.

    Args:
        fn: a `@gluon.jit` function.
        signature: parameter name -> type (see `parse_type`), in the order of the parameters.
        constexprs: path of a (nested) argument -> its compile-time value.
        attrs: path of an argument -> list of (attribute, value), such as `("tt.divisibility", 16)`.
        options: what `backend.options(...)` returned.
        context: an MLIR context to build in; a fresh one by default.
        on_session: called with the session when the trace is done, for those who want the
            lowerings that were selected.
        refused: (op, name) of lowerings that are not to be selected -> the reason.

    Raises:
        GluonError: of the class of the mistake, with the kernel's line. The same object is also a
            `triton.CompilationError`.
    """
    if context is None:
        context = _triton.make_context()
    backend.load_dialects(context)
    session = Session(backend, target, options, context, refused=refused)
    arg_types: list = [None] * len(fn.arg_names)
    for name, text in signature.items():
        arg_types[fn.arg_names.index(name)] = parse_type(text, session.vendor.descriptors)
    prototype = _triton.make_prototype(arg_types, constexprs, attrs)
    by_name = {fn.arg_names[path[0]]: v for path, v in constexprs.items() if len(path) == 1}
    function_name = fn.repr(_triton.SpecializationProxy(by_name, dict(signature)))
    cls = _triton.generator_class("KernelGenerator", KernelGenerator, {"session": session})
    try:
        generator = cls(
            context,
            prototype,
            gscope=fn.get_capture_scope(),
            function_name=function_name,
            jit_fn=fn,
            is_kernel=True,
            options=options,
            codegen_fns=session.codegen,
            module_map=session.module_map,
            is_gluon=True,
            **_triton.generator_arguments(fn),
        )
        generator.visit(fn.parse())
    except CompilationError as error:
        raise kernel_error(error, fn) from error.__cause__
    module = generator.module
    module.context = context
    _verify(module, fn.__name__)
    if on_session is not None:
        on_session(session)
    return module


def _verify(module: Any, name: str) -> None:
    """Raise what MLIR says about a malformed module; it says it on stderr."""
    with captured() as output:
        correct = module.verify()
    said = output.text()
    if not correct:
        raise StageError(
            f"the compiler rejects the module of {name}",
            diagnostics=said or module.str_nodebug(),
        )


# ---------------------------------------------------------------------------------------------
# Errors in kernels
# ---------------------------------------------------------------------------------------------


_TRITON = (
    _triton.CompileTimeAssertionFailure,
    _triton.UnsupportedLanguageConstruct,
    CompilationError,
)


@functools.lru_cache(maxsize=None)
def _combined(cls: type, also: type = CompilationError) -> type:
    """`cls` that is also Triton's class of error, for those who catch either."""
    return type(cls.__name__, (cls, also), {"__module__": cls.__module__, "__reduce__": _reduce})


def _reduce(self: GluonError) -> tuple:
    state = {k: v for k, v in self.__dict__.items() if k not in ("node",)}
    return _restore, (*type(self).__bases__, state)


def _restore(cls: type, also: type, state: dict) -> GluonError:
    combined = _combined(cls, also)
    error = combined.__new__(combined)
    error.__dict__.update(state)
    Exception.__init__(error, state.get("message", ""))
    return error


def kernel_error(error: CompilationError, fn: Any) -> GluonError:
    """Our error for one that came out of the code generator: its class, message, span, call chain."""
    calls = []
    inner = error
    while isinstance(inner.__cause__, CompilationError):
        calls.append(getattr(inner, "gluon_span", None))
        inner = inner.__cause__
    root = inner.__cause__ or inner.__context__
    while isinstance(root, CompilationError):
        root = root.__cause__ or root.__context__
    cls, message, fields = _classify(inner, root)
    combined = _combined(cls, next(kind for kind in _TRITON if isinstance(inner, kind)))
    result = combined.__new__(combined)
    result.__dict__.update(
        message=message,
        argument=None,
        expected=None,
        got=None,
        remedy=None,
        src=inner.src,
        node=inner.node,
        error_message=message,
    )
    result.__dict__.update(fields)
    spans = [fields.get("span") or getattr(inner, "gluon_span", None), *reversed(calls)]
    # A mistake in calling a library function is a mistake at the call.
    own = [span for span in spans if span is not None and not _is_library(span)] or spans[:1]
    result.span, result.calls = own[0], tuple(own[1:])
    Exception.__init__(result, message)
    return result


def _is_call(node: Any) -> bool:
    """Whether an expression, or what a statement evaluates, calls something."""
    return any(isinstance(inner, ast.Call) for inner in ast.walk(node)) if node else False


def _is_library(span: SourceSpan) -> bool:
    return span.file.startswith(_LIBRARIES)


_LIBRARIES = tuple(
    os.path.dirname(path) + os.sep for path in (tl.__file__, os.path.join(_HERE, "language", ""))
)


def _classify(inner: CompilationError, root: Optional[BaseException]) -> tuple[type, str, dict]:
    if isinstance(root, GluonError):
        return type(root), root.message, dict(root.__dict__)
    if isinstance(inner, _triton.CompileTimeAssertionFailure):
        return StaticAssertionError, inner.error_message or "static_assert failed", {}
    if isinstance(inner, _triton.UnsupportedLanguageConstruct):
        return KernelSyntaxError, inner.error_message or "unsupported construct", {}
    if root is None:
        return TraceError, inner.error_message or "the kernel cannot be compiled", {}
    text = str(root) or inner.error_message or type(root).__name__
    if isinstance(root, AttributeError) and type(root.obj).__module__.startswith("triton._C"):
        lacking = f"the installed Triton ({_triton.VERSION_TEXT}) has no {root.name}"
        return CapabilityError, f"{lacking}, which this operation needs", {}
    if isinstance(root, RecursionError) or isinstance(root, KeyError) and _is_call(inner.node):
        return KernelSyntaxError, "functions of a kernel cannot call themselves", {}
    if isinstance(root, NameError):
        return KernelSyntaxError, text, {}
    if isinstance(root, ValueError) and "dtype" in text:
        return DtypeError, text, {}
    if isinstance(root, ValueError) and re.search(r"\b(axis|[Ss]hape)\b", text):
        return ShapeError, text, {}
    if isinstance(root, AssertionError) and re.search(r"\b(cast|type|dtype)\b", text):
        return DtypeError, text, {}
    if isinstance(root, TypeError) and "argument" in text:
        return ArgumentError, text, {}
    for kind, cls in _CLASSES.items():
        if isinstance(root, kind) and "incompatible function arguments" not in text:
            return cls, text, {}
    plain = isinstance(root, (AssertionError, AttributeError)) and str(root)
    return TraceError, text if plain else f"{text} ({type(root).__name__})", {}


# What Triton's own checks raise, as our classes.
_CLASSES: Mapping[type, type] = {
    _triton.IncompatibleTypeErrorImpl: DtypeError,
    TypeError: DtypeError,
    IndexError: ShapeError,
    ValueError: ArgumentError,
    NotImplementedError: KernelSyntaxError,
}
