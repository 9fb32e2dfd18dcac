"""The only door from the core to `triton`.

It checks the version, re-exports the names that the core uses, and holds the per-version differences.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import inspect
import os
import re
import tempfile
import threading
import types
from collections import namedtuple
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable, Iterator, Mapping, Optional, Sequence

from gluon_core._triton.ending import LastOfAll
from gluon_core.errors import CapabilityError, TritonVersionError
from gluon_core.features import NEWEST, OLDEST, Feature, dotted

try:
    import triton
except ImportError as error:
    raise TritonVersionError(
        "triton is not installed",
        expected=f"triton >= {dotted(OLDEST)}",
        remedy="Install the triton that your torch pins, or `pip install triton`.",
    ) from error


def _parse_version(text: str) -> tuple[int, int]:
    match = re.match(r"(\d+)\.(\d+)", text)
    if match is None:
        raise TritonVersionError("the version of the installed triton cannot be read", got=text)
    return int(match.group(1)), int(match.group(2))


VERSION_TEXT: str = triton.__version__
VERSION: tuple[int, int] = _parse_version(VERSION_TEXT)

if not OLDEST <= VERSION <= NEWEST:
    raise TritonVersionError(
        "this release of gluon-core does not work with the installed triton",
        expected=f">= {dotted(OLDEST)}, < {dotted((NEWEST[0], NEWEST[1] + 1))}",
        got=VERSION_TEXT,
        remedy="Install another triton, or a gluon-core that knows this one.",
    )

from triton import knobs  # noqa: E402
from triton._C.libtriton import gluon_ir, ir, passes  # noqa: E402
from triton.backends.compiler import GPUTarget, Language  # noqa: E402
from triton.compiler import ASTSource  # noqa: E402
from triton.compiler.errors import (  # noqa: E402
    CompilationError,
    CompileTimeAssertionFailure,
    UnsupportedLanguageConstruct,
)
from triton.language import core as tl_core  # noqa: E402
from triton.language import math as tl_math  # noqa: E402
from triton.language import standard as tl_standard  # noqa: E402
from triton.language.core import _unwrap_if_constexpr as unwrap  # noqa: E402
from triton.language.core import constexpr_type  # noqa: E402
from triton.language.extra import libdevice  # noqa: E402
from triton.language.semantic import IncompatibleTypeErrorImpl, TritonSemantic  # noqa: E402
from triton.runtime.autotuner import Autotuner  # noqa: E402
from triton.runtime.errors import OutOfResources  # noqa: E402
from triton.runtime.jit import (  # noqa: E402
    BoundConstexprFunction,
    ConstexprFunction,
    JITCallable,
    JITFunction,
)

from gluon_core._triton.contexts import make_context, ready_context, use_spare_time  # noqa: E402
from gluon_core._triton.drivers import (  # noqa: E402
    active_driver,
    disassembled,
    given_driver,
    own_driver,
    profile_allocator,
    set_active_driver,
    user_allocator,
)
from gluon_core._triton.hooks import (  # noqa: E402
    Warnings,
    hook_is_empty,
    jit_hook_arguments,
    lazy_dict,
    warn_once,
)
from gluon_core._triton.library import (  # noqa: E402
    ParsedOnce,
    as_written,
    parsed_once,
    traceable,
)
from gluon_core._triton.recast import caught_as, combined  # noqa: E402
from gluon_core._triton.storage import (  # noqa: E402
    build_stamp,
    cache_folder,
    cache_manager,
    compile_times,
    invalidating_environment,
    parse_module,
    parse_text,
    put_in_cache,
    set_knobs,
)

if TYPE_CHECKING:  # the view of kernels on these classes, in a form that editors can read
    from triton.compiler import code_generator

    from gluon_core._triton import declared as tl
    from gluon_core._triton.declared import (
        base_type,
        base_value,
        block_type,
        constexpr,
        constexpr_function,
        dtype,
        pointer_type,
        static_range,
        tensor,
        tuple_type,
    )
    from gluon_core._triton.declared import tuple as tl_tuple
else:
    import triton.language as tl
    from triton.language.core import (
        base_type,
        base_value,
        block_type,
        constexpr,
        dtype,
        pointer_type,
        static_range,
        tensor,
        tuple_type,
    )
    from triton.language.core import tuple as tl_tuple
    from triton.runtime.jit import constexpr_function

__all__ = [
    "VERSION",
    "VERSION_TEXT",
    "ASTSource",
    "Autotuner",
    "BoundConstexprFunction",
    "CompilationError",
    "CompileTimeAssertionFailure",
    "ConstexprFunction",
    "GPUTarget",
    "IncompatibleTypeErrorImpl",
    "JITCallable",
    "JITFunction",
    "Language",
    "OutOfResources",
    "ParsedOnce",
    "TritonSemantic",
    "UnsupportedLanguageConstruct",
    "active_driver",
    "at_least",
    "base_type",
    "base_value",
    "block_type",
    "build_stamp",
    "cache_folder",
    "cache_manager",
    "caught_as",
    "code_generator",
    "combined",
    "compile_times",
    "constexpr",
    "constexpr_function",
    "constexpr_type",
    "create_module",
    "disassembled",
    "dtype",
    "generator_class",
    "given_driver",
    "gluon_ir",
    "gpu_target",
    "has",
    "hook_is_empty",
    "invalidating_environment",
    "ir",
    "jit_hook_arguments",
    "knobs",
    "lazy_dict",
    "libdevice",
    "make_context",
    "make_prototype",
    "op_builder",
    "own_driver",
    "parse_module",
    "parse_text",
    "parsed_once",
    "passes",
    "pointer_type",
    "profile_allocator",
    "put_in_cache",
    "ready_context",
    "require",
    "set_active_driver",
    "set_knobs",
    "static_range",
    "tensor",
    "tl",
    "tl_core",
    "tl_math",
    "tl_standard",
    "tl_tuple",
    "traceable",
    "tuple_type",
    "unwrap",
    "use_spare_time",
    "user_allocator",
    "warn_once",
]


def at_least(*version: int) -> bool:
    """Return True if the installed Triton is `version` (major, minor) or newer: for this file, and
    tests.

    All other code asks for a feature by name.
    """
    return VERSION >= version


def has(feature: Feature) -> bool:
    """Return True if the installed Triton has `feature`."""
    return feature.held_by(VERSION)


def require(feature: Feature, op: str, remedy: Optional[str] = None) -> None:
    """Raise unless the installed Triton has the `feature` that `op` needs.

    Raises:
        CapabilityError: naming the releases that have it.
    """
    if not has(feature):
        raise CapabilityError(feature.refusal(op, VERSION_TEXT), remedy=remedy)


# ---------------------------------------------------------------------------------------------
# Contexts, modules, builders
# ---------------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=None)
def _builder_class(more: Optional[type]) -> Any:
    plain = gluon_ir.GluonOpBuilder
    if more is None:
        return plain
    ops = {name: op for name, op in vars(more).items() if name not in ("__dict__", "__weakref__")}
    return type(more.__name__, (plain,), ops)  # an extension's class shares no child with another


def op_builder(context: Any, arch: str = "", more: Optional[type] = None) -> Any:
    """Return Triton's builder for TTGIR, which from 3.8 on takes the architecture's name.

    Args:
        more: a class with further ops, which are made of those of the builder.
    """
    kind = _builder_class(more)
    return kind(context, arch) if at_least(3, 8) else kind(context)


def create_module(builder: Any, attributes: Mapping[str, Any]) -> Any:
    """Return an empty module with string and 32-bit integer attributes."""
    module = builder.create_module()
    for name, value in attributes.items():
        if isinstance(value, str):
            module.set_attr(name, builder.get_string_attr(value))
        else:
            module.set_attr(name, builder.get_int32_attr(value))
    return module


def gpu_target(target: Any) -> GPUTarget:
    """Triton's spelling of a `gluon_core.plugin.targets.Target`."""
    arch = target.architecture
    return GPUTarget(arch.triton_backend or arch.backend, arch.arch, arch.warp_size)


# ---------------------------------------------------------------------------------------------
# The code generator
# ---------------------------------------------------------------------------------------------

# These bodies name their class through a global, so a subclass re-binds them over a copy of the
# module's globals in which that name is the subclass.
_REBOUND = ("call_JitFunction",)


class _inspect:
    """Replace `inspect` for Triton 3.6. It reads the parameters of an op at each call, where later
    releases look for `signature` first; ours do not show the parameters of the generator alone. And it
    takes arguments of nested kernels, such as layouts, for values of the IR."""

    @staticmethod
    def getcallargs(function: Any, *args: Any, **kwargs: Any) -> dict[str, Any]:
        arguments = inspect.getcallargs(function, *args, **kwargs)
        passed = (base_value, JITCallable, tuple, list)
        return {
            name: value if value is None or isinstance(value, passed) else constexpr(value)
            for name, value in arguments.items()
        }

    @staticmethod
    def signature(op: Any) -> Any:
        return getattr(op, "signature", None) or _signature(getattr(op, "__func__", op))


@functools.lru_cache(maxsize=1024)
def _signature(op: Any) -> inspect.Signature:
    return inspect.signature(op)


class _NoWarnings:
    """Replace `warnings` for Triton 3.6, which calls it at each node of a kernel without need. Python
    then forgets, each time, which warnings it has shown."""

    catch_warnings = contextlib.nullcontext

    @staticmethod
    def simplefilter(*unused: Any) -> None:
        pass


def generator_visit() -> Any:
    """`CodeGenerator.visit`, a function."""
    module = _code_generator()
    visit = module.CodeGenerator.visit
    if at_least(3, 7):
        return visit
    return _rebind(visit, {**vars(module), "warnings": _NoWarnings})


def generator_truths() -> dict[str, Any]:
    """Return the methods of `CodeGenerator` for `and` and `or`, which warn of tensors once."""
    module = _code_generator()
    names = ("visit_BoolOp", "_apply_boolean_values")  # the second from 3.9 on
    replaced = {
        name: vars(module.CodeGenerator)[name]
        for name in names
        if name in vars(module.CodeGenerator)
    }
    return {
        name: _rebind(one, {**vars(module), "warnings": Warnings}) for name, one in replaced.items()
    }


def generator_class(
    name: str, base: type, members: Mapping[str, Any], functions: Mapping[str, Any]
) -> type:
    """Return a subclass of `base` (a `CodeGenerator`) that makes nested generators of its own kind.

    Args:
        functions: replacements of functions of the code generator's module.

    `call_any` of `base` is Triton's `call_Function`, which `base` may override.
    """
    code_generator = _code_generator()
    namespace = {**vars(code_generator), **functions}
    body: dict[str, Any] = dict(members)
    for method in _REBOUND:
        body[method] = _rebind(getattr(code_generator.CodeGenerator, method), namespace)
    if not at_least(3, 7):
        namespace["inspect"] = _inspect
        body["call_any"] = _rebind(code_generator.CodeGenerator.call_Function, namespace)
    call = body["call_JitFunction"]

    def call_JitFunction(
        self: Any, fn: JITFunction, args: Any, kwargs: Any, *rest: Any, **more: Any
    ) -> Any:
        self.semantic.passed += 1  # it may hold a wait
        args = [_constants(arg) for arg in args]
        kwargs = {key: _constants(arg) for key, arg in kwargs.items()}
        passed = self.before_call(fn, args, kwargs)
        result = call(self, parsed_once(fn), args, kwargs, *rest, **more)
        self.after_call(passed)
        return result

    body["call_JitFunction"] = call_JitFunction
    cls = type(name, (base,), body)
    namespace["CodeGenerator"] = cls
    return cls


def _code_generator() -> Any:
    """Triton's module, which imports its own Gluon as a whole: not before something is compiled."""
    as_written()
    from triton.compiler import code_generator

    globals()["code_generator"] = code_generator
    return code_generator


def __getattr__(name: str) -> Any:
    if name == "code_generator":
        return _code_generator()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _rebind(function: types.FunctionType, namespace: dict[str, Any]) -> types.FunctionType:
    copy = types.FunctionType(
        function.__code__, namespace, function.__name__, function.__defaults__, function.__closure__
    )
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy


def _constants(arg: Any) -> Any:
    """Return a tuple of plain numbers, such as the shape of a descriptor, as functions take it: older
    releases ask each item for its type."""
    if type(arg) is tl_tuple and arg.values and all(isinstance(v, int) for v in arg.values):
        return tl_tuple([constexpr(value) for value in arg.values])
    return arg


def _constant_type(value: Any) -> Any:
    if at_least(3, 9) and isinstance(value, tuple):
        fields = getattr(type(value), "_fields", None)
        return tuple_type([_constant_type(item) for item in value], fields)
    return constexpr(value).type


def make_prototype(
    arg_types: list[Any],
    constants: Mapping[tuple[int, ...], Any],
    attributes: Mapping[tuple[int, ...], list[Any]],
) -> Any:
    """Return the kernel's signature as the code generator names it.

    `arg_types` holds one type per parameter; paths in `constants` overwrite (nested) entries.
    """
    for path, value in constants.items():
        holder: Any = arg_types
        for index in path[:-1]:
            holder = holder[index]
        items = holder if isinstance(holder, list) else holder.types
        items[path[-1]] = _constant_type(value)
    make = _code_generator().ASTFunction
    if at_least(3, 7):
        return make([], arg_types, dict(attributes))
    prototype = make([], arg_types, dict(constants), dict(attributes))
    values_of = prototype.deserialize
    prototype.deserialize = lambda function: [_retyped(value) for value in values_of(function)]
    return prototype


def _retyped(value: Any) -> Any:
    """Return a tuple whose type has the constants in it: a branch that returns copies values by their types."""
    if not isinstance(value, tl_core.tuple):
        return value
    items = [_retyped(item) for item in value.values]
    return tl_core.tuple(
        items, tuple_type([item.type for item in items], getattr(value.type, "fields", None))
    )


SpecializationProxy = namedtuple("SpecializationProxy", ["constants", "signature"])


def generator_arguments(fn: JITFunction) -> dict[str, Any]:
    """Return the file and line of `fn` in the form of the installed code generator."""
    if at_least(3, 8):
        return {
            "file_name": fn.file_name,
            "begin_line": fn.def_file_line_number,
            "begin_col": fn.def_file_col_number,
        }
    file_name, begin_line = source_position(fn)
    return {"file_name": file_name, "begin_line": begin_line}


def source_position(fn: JITCallable) -> tuple[str, int]:
    """File of `fn` and the 1-based line of its `def`."""
    if hasattr(fn, "def_file_line_number"):
        return fn.file_name, fn.def_file_line_number
    from triton.runtime.jit import get_jit_fn_file_line

    place: tuple[str, int] = get_jit_fn_file_line(fn)
    return place


def tool(name: str) -> Optional[str]:
    """Path of a tool that ships inside the Triton wheel (`FileCheck`, `ptxas`, `nvdisasm`), or None."""
    root = Path(triton.__file__).parent
    candidates = (root / name, *sorted(root.glob(f"backends/*/bin/{name}")))
    return next((str(path) for path in candidates if path.exists()), None)


# ---------------------------------------------------------------------------------------------
# Running: types of arguments
# ---------------------------------------------------------------------------------------------


def type_names() -> Mapping[str, str]:
    """Triton's short names of element types: `float32` -> `fp32`, `bool` -> `u1`, ..."""
    from triton.runtime.jit import type_canonicalisation_dict

    names: Mapping[str, str] = type_canonicalisation_dict
    return names


# ---------------------------------------------------------------------------------------------
# Triton's own compilers
# ---------------------------------------------------------------------------------------------


def gluon_stages(compiler: Any, options: Any) -> dict[str, Any]:
    """Stage name -> function of one of Triton's compilers, for a module as we trace it."""
    stages: dict[str, Any] = {}
    compiler.add_stages(stages, options, Language.GLUON)
    stages.pop("glir", None)  # the identity on a traced module
    inline = stages.get("ttgir")
    if inline is not None and VERSION < (3, 8):
        stages["ttgir"] = lambda module, metadata: inline(_hoisted(module), metadata)
    return stages


def _hoisted(module: Any) -> Any:
    """Return the module with constants that loops carry defined outside of them, which takes their lines from them.

    Before Triton 3.8, inlining loses a constant that a loop assigns to a carried value around an inner loop.
    """
    ops: dict[str, list[Any]] = collections.defaultdict(list)
    module.walk(lambda op: ops[op.get_name()].append(op))
    constants = {op.get_result(0).id() for op in ops["arith.constant"]}
    carried = {op.get_operand(i).id() for op in ops["scf.yield"] for i in range(op.get_num_operands())}  # fmt: skip
    if len(ops["scf.for"]) > 1 and constants & carried:
        run_passes(module, "common.add_sccp")
    return module


def run_passes(module: Any, *names: str) -> None:
    """Run passes over a module; each is named with its dialect, as in `gluon.add_inliner`."""
    if names[0] == "gluon.add_inliner" and VERSION < (3, 8):
        _hoisted(module)
    manager = ir.pass_manager(module.context)
    for name in names:
        dialect, _, add = name.partition(".")
        getattr(getattr(passes, dialect), add)(manager)
    manager.run(module, "plugin")


# The names under which a compiled kernel of Triton keeps the module that its stages begin with.
SOURCE_ENTRIES = ("source", "glir") if VERSION >= (3, 9) else ("source",)


if VERSION >= (3, 9):  # its bindings print the objects that they think have leaked
    _last = LastOfAll()
