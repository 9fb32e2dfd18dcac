"""`trace`: the module that a kernel turns into, before any pass has run."""

from __future__ import annotations

from types import MappingProxyType
from typing import Any, Callable, Mapping, Optional

from gluon_core import _triton
from gluon_core._triton import CompilationError
from gluon_core._triton.capture import refused as refused_by_mlir
from gluon_core.errors import StageError, answering
from gluon_core.frontend.callees import naming
from gluon_core.frontend.diagnostics import kernel_error
from gluon_core.frontend.generator import KernelGenerator
from gluon_core.frontend.located import complaint
from gluon_core.frontend.session import Session
from gluon_core.frontend.signature import check_descriptor, parse_type
from gluon_core.plugin.backend import Backend
from gluon_core.plugin.targets import Target
from gluon_core.registry.load import registry

__all__ = ["trace", "verify"]


def trace(
    fn: Any,
    signature: Mapping[str, Any],
    constexprs: Mapping[tuple[int, ...], Any],
    attrs: Mapping[tuple[int, ...], list[Any]],
    *,
    backend: Backend,
    target: Target,
    options: Any,
    context: Any = None,
    on_session: Optional[Callable[[Session], None]] = None,
    refused: Mapping[tuple[str, str], str] = MappingProxyType({}),
    verified: bool = True,
    strict: bool = True,
    kind: Any = KernelGenerator,
) -> Any:
    """Return the module that a kernel turns into, before any pass has run.

    Args:
        fn: a `@gluon.jit` function.
        signature: parameter name -> type (see `parse_type`), in the order of the parameters.
        constexprs: path of a (nested) argument -> its compile-time value.
        attrs: path of an argument -> list of (attribute, value), such as `("tt.divisibility", 16)`.
        options: the result of `backend.compiler.options(...)`.
        context: an MLIR context with the backend's dialects to build in; a fresh one by default.
        on_session: called with the session when the trace is done, for those who want the
            lowerings that were selected.
        verified: raise MLIR's complaint about the module here; parsing it again would report it, too.
        strict: raise the refusals of `errors.refuse`; else warn of them at the kernel's line.
        refused: (op, name) of lowerings that are not to be selected -> the reason.
        kind: the class of the code generator; another than ours takes omitted layouts as they are.

    Raises:
        GluonError: of the class of the mistake, with the kernel's line. The same object is also a
            `triton.CompilationError`.
    """
    if context is None:
        context = _triton.make_context(backend.compiler.load_dialects)
    session = Session(backend, target, options, context, refused=refused)
    arg_types: list[Any] = [None] * len(fn.arg_names)
    for name, text in signature.items():
        check_descriptor(name, text, session)
        arg_types[fn.arg_names.index(name)] = parse_type(text, session.vendor.language.descriptors)
    prototype = _triton.make_prototype(arg_types, constexprs, attrs)
    by_name = {fn.arg_names[path[0]]: v for path, v in constexprs.items() if len(path) == 1}
    function_name = fn.repr(_triton.SpecializationProxy(by_name, dict(signature)))
    cls = _triton.generator_class("KernelGenerator", kind, {"session": session}, naming(session))
    tree, scope = fn.parse(), fn.get_capture_scope()
    if getattr(fn, "layouts", None) and kind is KernelGenerator:
        explicit = registry().service("write")
        facts = signature, constexprs, attrs, target, session.options
        tree, scope, session.chosen = explicit(fn, *facts)
        session.num_warps = session.chosen["num_warps"]
    try:
        generator = cls(
            context,
            prototype,
            gscope=scope,
            function_name=function_name,
            jit_fn=fn,
            is_kernel=True,
            options=options,
            codegen_fns=session.codegen,
            module_map=session.module_map,
            is_gluon=True,
            **_triton.generator_arguments(fn),
        )
        with answering(None if strict else generator.semantic.pass_on):
            generator.visit(tree)
    except CompilationError as error:
        raise kernel_error(error, fn) from error.__cause__
    module = generator.module
    module.context = context
    if verified:
        verify(module, fn.__name__)
    if on_session is not None:
        on_session(session)
    return module


def verify(module: Any, name: str) -> None:
    """Raise MLIR's complaint about a malformed module.

    Raises:
        StageError: it is malformed.
    """
    refusal = refused_by_mlir(module)
    if refusal is not None:
        words, span = complaint(refusal) or ("", None)
        raise StageError(
            f"the compiler rejects the module of {name}" + (f": {words}" if words else ""),
            diagnostics=refusal or module.str_nodebug(),
            span=span,
        )
