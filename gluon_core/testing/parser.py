"""The module that a kernel turns into, as it is traced and in a normal form."""

from __future__ import annotations

import inspect
from types import MappingProxyType
from typing import Any, Mapping, Optional, Sequence

from gluon_core import _triton
from gluon_core._triton import ir, passes
from gluon_core.compiler.source import GluonASTSource, jit_function
from gluon_core.errors import ArgumentError, OptionError, StageError, TargetError
from gluon_core.launch.placeholder import Placeholder
from gluon_core.plugin.targets import Target
from gluon_core.registry.load import registry

__all__ = ["MockTensor", "ParsedModule", "bind", "ir_of", "normalise", "run_parser", "stub_target"]

# The target of parsing by default: that of Triton's own frontend tests.
_STUB = _triton.GPUTarget("cuda", 100, 32)  # the target of Triton's own frontend tests

ParsedModule = Any  # an MLIR module, or the program that a simulator recorded


class MockTensor(Placeholder):
    """Stand in for a tensor whose address is divisible by 16, where only the dtype matters.

    Args:
        dtype: of torch, NumPy or the language.
        shape: offered as `.shape` to whoever asks.
    """

    def __init__(self, dtype: Any, shape: Optional[Sequence[int]] = None):
        super().__init__(dtype, [1] if shape is None else list(shape))


def stub_target() -> Target:
    """Return the target of `run_parser` when none is given: that of Triton's frontend tests if a plugin
    contributes it, else the default architecture of those that are installed."""
    plugins = registry()
    try:
        return plugins.target(_STUB)
    except TargetError:
        architecture = plugins.default_architecture()
        return Target(architecture.backend, architecture)


def bind(
    kernel: Any, args: Sequence[Any], kwargs: Mapping[str, Any], pointer_range_bits: Any = None
) -> tuple[GluonASTSource, dict[str, Any]]:
    """Return a call of `kernel`, as the compiler sees it: the source, and the rest as options.

    Raises:
        ArgumentError: the arguments do not fit the parameters.
    """
    from gluon_core.launch.arguments import parameters_of
    from gluon_core.launch.cache import signature_of

    fn = jit_function(kernel)
    parameters = parameters_of(fn)
    names = {p.name for p in parameters}
    arguments = {name: value for name, value in kwargs.items() if name in names}
    options = {name: value for name, value in kwargs.items() if name not in names}
    options.pop("grid", None)
    options.pop("warmup", None)
    strict = options.pop("strict", None)
    try:
        bound = fn.signature.bind(*args, **arguments)
    except TypeError as error:
        raise ArgumentError(
            f"{fn.__name__}{inspect.signature(fn.fn)} cannot be called so: {error}", argument="args"
        ) from None
    bound.apply_defaults()
    values = (bound.arguments[p.name] for p in parameters)
    described = [p.read(v, pointer_range_bits, running=False) for p, v in zip(parameters, values)]
    parts = signature_of([p.name for p in parameters], described)
    return GluonASTSource(fn, *parts, strict), options


def run_parser(
    kernel_fn: Any,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] = MappingProxyType({}),
    target: Any = None,
) -> ParsedModule:
    """Return the module that a kernel turns into, before any pass has run.

    Args:
        kernel_fn: a `@gluon.jit` function.
        args: its arguments; `MockTensor(dtype)` stands for a tensor.
        kwargs: arguments by name; others are compile options. Sanitizing of
            integer overflow is off unless `sanitize_overflow` says otherwise.
        target: any spelling of a target, also Triton's GPUTarget.

    Returns:
        A module; `str_nodebug()` is its text without locations.

    Raises:
        GluonError: the kernel is wrong; with its line.
    """
    from gluon_core.compiler.driver import shared_options, trace_source

    chosen = stub_target() if target is None else registry().target(target)
    backend = registry().backend(chosen.backend)
    source, options = bind(kernel_fn, args, kwargs, backend.compiler.pointer_range_bits)
    names = source.fn.arg_names
    constants = {
        names[path[0]]: value for path, value in source.constants.items() if len(path) == 1
    }
    options = {**shared_options(constants, backend, chosen), **options}
    if "sanitize_overflow" in options:
        parsed = backend.compiler.options(chosen, options)
    else:
        try:
            parsed = backend.compiler.options(chosen, {**options, "sanitize_overflow": False})
        except OptionError as error:
            if error.argument != "sanitize_overflow":
                raise
            parsed = backend.compiler.options(chosen, options)
    return trace_source(source, chosen, parsed)


def normalise(module: ParsedModule) -> str:
    """Return the text of an MLIR module after inlining, canonicalization, CSE and removal of unused
    functions, without locations: equal for kernels that mean the same to the compiler.

    Raises:
        StageError: a pass failed; with its output.
    """
    manager = ir.pass_manager(module.context)
    passes.gluon.add_inliner(manager)
    passes.gluon.add_canonicalizer(manager)
    passes.common.add_cse(manager)
    passes.common.add_symbol_dce(manager)
    try:
        manager.run(module, "normalise")
    except RuntimeError as error:
        raise StageError(f"a pass failed: {error}", diagnostics=module.str_nodebug()) from error
    text: str = module.str_nodebug()
    return text


def ir_of(
    kernel_fn: Any,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] = MappingProxyType({}),
    target: Any = None,
) -> str:
    """Return the kernel's IR in normal form (see `normalise`); takes the arguments of `run_parser`.

    Two kernels with the same text compile to the same machine code.
    """
    return normalise(run_parser(kernel_fn, args, kwargs, target))
