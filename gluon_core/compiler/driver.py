"""`compile`: options, cache, trace, stages, in that order."""

from __future__ import annotations

import os
import time
import warnings
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, Iterable, Literal, Mapping, Optional, overload

from gluon_core import _triton
from gluon_core.compiler import cache
from gluon_core.compiler.kernel import CompiledKernel
from gluon_core.compiler.observers import stage_done
from gluon_core.compiler.options import whole
from gluon_core.compiler.source import GluonASTSource, check_mapping, strictness, trace_source
from gluon_core.compiler.stages import Recipe, run_stages
from gluon_core.errors import ArgumentError, KernelWarning, StageError, trims
from gluon_core.plugin.backend import Backend
from gluon_core.plugin.compiler import Stage
from gluon_core.plugin.language import OPS
from gluon_core.plugin.targets import Target
from gluon_core.processes import ForkLock, no_collection
from gluon_core.registry.load import registry
from gluon_core.registry.verify import checked
from gluon_core.values.constants import Identity

if TYPE_CHECKING:
    from gluon_core.frontend.session import Session
    from gluon_core.portable.selection import Selection

__all__ = ["compile", "compile_source", "trace_source"]


# Threads compile at once, but Triton's code generator was not written for that.
_tracing = ForkLock()


@trims
def compile(
    fn: Any,
    target: Any = None,
    options: Optional[Mapping[str, Any]] = None,
    *,
    signature: Optional[Mapping[str, Any]] = None,
    constexprs: Optional[Mapping[Any, Any]] = None,
    attrs: Optional[Mapping[Any, Any]] = None,
    **more: Any,
) -> CompiledKernel:
    """Compile a kernel for any target; no device is needed.

    Args:
        fn: a kernel (also one wrapped by `autotune` or `heuristics`), or a `GluonASTSource`.
        target: any spelling of a target, also Triton's GPUTarget; None for `GLUON_TARGET`, else
            the device that is plugged in.
        options: compile options such as `num_warps`; also accepted as keyword arguments. `strict`
            among them is that of `gluon.jit`.
        signature: parameter -> type, see `GluonASTSource`.
        constexprs: parameter -> value.
        attrs: parameter -> attributes, or 16 for "divisible by 16".

    Raises:
        ArgumentError: `fn` is no kernel, or its parameters are not all described.
        TargetError: an unknown target.
        OptionError: an unknown option or an illegal value.
        GluonError: the kernel is wrong; with its line.
        StageError: a compiler failed; with its output.
    """
    check_mapping(options, "options", "from names of options to their values")
    asked = whole({**(options or {}), **more})
    strict = asked.pop("strict", None)
    if _is_source(fn):
        if signature is not None or constexprs is not None or attrs is not None:
            raise ArgumentError("a source brings its own signature", argument="signature")
        source = (
            fn
            if isinstance(fn, GluonASTSource) and strict is None
            else GluonASTSource(fn.fn, fn.signature, fn.constants, fn.attrs, strict)
        )
    else:
        source = GluonASTSource(fn, signature or {}, constexprs, attrs, strict)
    chosen = registry().target(target)
    backend = registry().backend(chosen.backend)
    asked.setdefault("debug", bool(source.fn.debug) or _triton.knobs.runtime.debug)
    names = source.fn.arg_names
    constants = {
        names[path[0]]: value for path, value in source.constants.items() if len(path) == 1
    }
    asked = {**shared_options(constants, backend, chosen), **asked}
    return compile_source(source, chosen, backend, backend.compiler.options(chosen, asked))


def _is_source(fn: Any) -> bool:
    return hasattr(fn, "signature") and hasattr(fn, "constants") and hasattr(fn, "attrs")


def shared_options(values: Mapping[str, Any], backend: Backend, target: Target) -> dict[str, Any]:
    """Return the compile-time values of a kernel, by parameter, that are named like an option of
    `backend`, such as `num_warps`: the kernel is compiled with the same value."""
    if not values:
        return {}
    known = _option_names(backend, target)
    return {name: _triton.unwrap(value) for name, value in values.items() if name in known}


@lru_cache(maxsize=64)
def _option_names(backend: Backend, target: Target) -> frozenset[str]:
    return frozenset(vars(checked(backend, "options", backend.compiler.options(target, {}))))


def requested_options(
    kernel: Any,
    options: Mapping[str, Any],
    constants: Mapping[str, Any],
    backend: Backend,
    target: Target,
) -> tuple[Any, bool]:
    """Return the compile options of a launch, parsed, and whether it is compiled strictly.

    Args:
        options: those of the launch.
        constants: the kernel's compile-time values, by parameter.

    Raises:
        OptionError: an unknown option, or an illegal value.
        LimitError: a value that no kernel can have.
    """
    left = whole(options)
    left.pop("target", None)
    strict = strictness(kernel, left.pop("strict", None))
    left["debug"] = bool(left.get("debug", kernel.debug)) or bool(_triton.knobs.runtime.debug)
    left = {**shared_options(constants, backend, target), **left}
    for name in ("instrumentation_mode", "fpsan_homomorphic_casts"):
        knob = getattr(_triton.knobs.compilation, name, None)
        if knob and name in _option_names(backend, target):
            left.setdefault(name, knob)
    return backend.compiler.options(target, left), strict


def packages_of(backend: Backend, target: Target) -> tuple[str, ...]:
    """Return the top-level packages whose content a compilation depends on."""
    plugins = registry()
    tops = {*backend.packages, *plugins.backend(target.architecture.backend).packages}
    for op in OPS:  # plugins without a backend contribute some, too
        tops.update(low.implement.partition(".")[0] for low in plugins.lowerings(op))
    return ("gluon_core", *sorted(tops - {"gluon_core"}))


def cache_key(
    source: GluonASTSource,
    target: Target,
    backend: Backend,
    options: Any,
    identity: Optional[Identity] = None,
) -> str:
    """Return the key of a compiled kernel: everything its machine code depends on."""
    environment = _triton.invalidating_environment()
    hook = _triton.knobs.runtime.add_stages_inspection_hook
    return cache.key_of(
        (
            source.hash(identity),
            _options_text(options),
            target,
            _triton.build_stamp(),
            cache.content_hash(packages_of(backend, target)),
            backend.compiler.version(target),
            sorted(environment.items()),
            hook() if hook is not None else "",
        )
    )


def _options_text(options: Any) -> str:
    hashed = getattr(options, "hash", None)
    return hashed() if callable(hashed) else repr(options)


class _Hardware:
    """See `kernel.Hardware`."""

    def __init__(self, source: GluonASTSource, target: Target, backend: Backend, options: Any):
        architecture = target.architecture
        self._target = Target(architecture.backend, architecture)
        self._backend = registry().backend(architecture.backend)
        self._options = backend.simulation.hardware_options(options)
        self._source = source
        self._whole: Optional[CompiledKernel] = None

    @property
    def stages(self) -> tuple[str, ...]:
        stages = self._backend.compiler.pipeline(self._target, self._options)
        return tuple(stage.name for stage in stages)

    def _compiled(self, until: Optional[str] = None) -> CompiledKernel:
        return compile_source(self._source, self._target, self._backend, self._options, until=until)

    def again(self, until: str) -> CompiledKernel:
        return self._compiled(until=until)

    def source(self) -> str:
        return _module_text(self._source, self._target, self._backend, self._options)

    def kernel(self) -> CompiledKernel:
        if self._whole is None:
            self._whole = self._compiled()
        return self._whole

    def entry(self, name: str) -> Any:
        if self._whole is None and name in self.stages[:-1]:
            return self._compiled(until=name).asm[name]
        return self.kernel().asm[name]


@overload
def compile_source(
    source: GluonASTSource,
    target: Target,
    backend: Backend,
    options: Any,
    load_only: Literal[False] = False,
    until: Optional[str] = None,
) -> CompiledKernel: ...


@overload
def compile_source(
    source: GluonASTSource, target: Target, backend: Backend, options: Any, load_only: bool
) -> Optional[CompiledKernel]: ...


def compile_source(
    source: GluonASTSource,
    target: Target,
    backend: Backend,
    options: Any,
    load_only: bool = False,
    until: Optional[str] = None,
) -> Optional[CompiledKernel]:
    """Return the `CompiledKernel` for parsed options, through the cache.

    Args:
        load_only: answer None rather than compile.
        until: the last stage to run; the result is then not kept.
    """
    started = time.monotonic()
    knobs = _triton.knobs.compilation
    listener = knobs.listener
    identity = source.identity()
    key = cache_key(source, target, backend, options, identity)
    cacheable = backend.compiler.cacheable and identity.lasting
    text = partial(_module_text, source, target, backend, options)
    if cacheable and not knobs.always_compile:
        entry = cache.load(key, source.name)
        if entry is not None:
            entry.move(identity.files)
            kernel = CompiledKernel(
                source,
                target,
                backend,
                entry.asm,
                entry.metadata,
                key,
                entry.files,
                traced=text,
            )
            _warn(source, entry.metadata, cached=True)
            if listener is not None:
                times = _triton.compile_times(started, started, [], time.monotonic())
                _listen(listener, kernel, times, hit=True)
            return kernel
    if load_only:
        return None

    with registry().waiting_for(backend, "pipeline()"):
        stages = checked(backend, "pipeline", backend.compiler.pipeline(target, options))
    if until is not None:
        stages = stages[: 1 + [stage.name for stage in stages].index(until)]
        cacheable = False
    refused: dict[tuple[str, str], str] = {}
    while True:
        context = _triton.ready_context(backend.compiler.load_dialects)
        sessions: list[Session] = []
        with _tracing, no_collection():
            module = trace_source(
                source,
                target,
                options,
                context,
                on_session=sessions.append,
                refused=refused,
                verified=False,
            )
        if until is None and sessions[0].no_machine_code:
            raise sessions[0].no_machine_code[0]
        traced = time.monotonic()
        stage_done("trace", module, target)
        metadata = {**vars(options), **_triton.invalidating_environment(), **sessions[0].chosen}
        metadata["triton_version"] = _triton.VERSION_TEXT
        metadata["target"] = str(target)
        metadata["hash"] = key
        metadata["source_files"] = list(identity.files)
        metadata["given_up"] = [[*lowering, why] for lowering, why in refused.items()]
        metadata |= {"traced_warnings": seen} if (seen := sessions[0].warnings) else {}
        try:
            result = run_stages(
                stages,
                module,
                metadata,
                subject=f"{source.name} for {target}",
                isolate=backend.compiler.isolate,
                as_text=backend.compiler.cacheable,
                override=_overrides(source, options, stages, context),
                recipe=Recipe.of(backend, target, options, stages),
                verify=partial(_verify, module, source.name),
            )
            break
        except StageError as error:
            given_up = _given_up(sessions[0].selections, error)
            if not given_up:
                raise
            if error.reproducer:
                os.unlink(error.reproducer)
            refused.update(given_up)
    for stage in stages:
        stage_done(stage.name, result.asm[stage.name], target)
    _dump(source, result.asm, backend)
    files: Mapping[str, str] = {}
    if cacheable:
        files = cache.store(key, source.name, result.asm, result.metadata, knobs.store_binary_only)
    twin = backend.simulates and registry().backend(target.architecture.backend).compiles
    hardware = _Hardware(source, target, backend, options) if twin else None
    kernel = CompiledKernel(
        source,
        target,
        backend,
        result.asm,
        result.metadata,
        key,
        files,
        result.diagnostics,
        hardware,
        hardware.source if hardware else None if backend.simulates else text,
    )
    _warn(source, result.metadata)
    if listener is not None:
        times = _triton.compile_times(started, traced, result.ends, time.monotonic())
        _listen(listener, kernel, times, hit=False)
    return kernel


_warned: dict[Any, Any] = {}


def _warn(source: GluonASTSource, metadata: Mapping[str, Any], cached: bool = False) -> None:
    """Pass on warnings of stages about the kernel, at its first line; of a cached one, those of its lines, too."""
    for text, file, line in metadata.get("traced_warnings") or () if cached else ():
        _triton.warn_once(text, KernelWarning, file, line)
    for text in metadata.get("warnings") or ():
        code = source.fn.fn.__code__
        file, line = code.co_filename, source.fn.starting_line_number
        warnings.warn_explicit(
            f"{source.name}: {text}", KernelWarning, file, line, registry=_warned
        )


def _verify(module: Any, name: str) -> None:
    from gluon_core.frontend.trace import verify

    verify(module, name)


def _module_text(source: GluonASTSource, target: Target, backend: Backend, options: Any) -> str:
    """Return the module before any stage, traced again."""
    context = _triton.ready_context(backend.compiler.load_dialects)
    with _tracing, no_collection():
        return str(trace_source(source, target, options, context))


def _given_up(selections: Iterable[Selection], error: StageError) -> dict[tuple[str, str], str]:
    """(op, name) of the lowerings that a failed compilation says are not possible -> its words."""
    entries = {}
    for lowering in (selection.chosen for selection in selections):
        texts = lowering.gives_up or ()
        texts = (texts,) if isinstance(texts, str) else texts
        for line in error.diagnostics.splitlines():
            if any(text in line for text in texts):
                entries[lowering.op, lowering.name] = f"the compiler refused: {line.strip()}"
    return entries


def _listen(listener: Any, kernel: CompiledKernel, times: Any, hit: bool) -> None:
    listener(
        src=kernel.src,
        metadata=kernel.metadata._asdict(),
        metadata_group=kernel.metadata_group,
        times=times,
        cache_hit=hit,
    )


def _overrides(
    source: GluonASTSource, options: Any, stages: tuple[Stage, ...], context: Any
) -> Any:
    """Return the function that swaps in a user's files (`TRITON_KERNEL_OVERRIDE`, `ir_override`), or None."""
    by_option = getattr(options, "ir_override", None)
    manager = None
    if _triton.knobs.compilation.override:
        manager = _triton.cache_manager(source.hash(), "override")
    if manager is None and not by_option:
        return None
    last = stages[-1].name

    def override(stage: str, value: Any) -> Optional[Any]:
        path = manager.get_file(f"{source.name[:150]}.{stage}") if manager is not None else None
        if path is None and by_option and by_option.endswith(f".{stage}"):
            path = by_option
        if path is None:
            return None
        print(f"Overriding {source.name}.{stage} with file {path}")
        if stage == last:
            with open(path, "rb") as file:
                return file.read()
        if isinstance(value, str):
            with open(path) as file:
                return file.read()
        return _triton.parse_module(path, context)

    return override


def _dump(source: GluonASTSource, asm: Mapping[str, Any], backend: Backend) -> None:
    """Write every stage to Triton's dump folder when `TRITON_KERNEL_DUMP` asks for it."""
    if not _triton.knobs.compilation.dump_ir:
        return
    manager = _triton.cache_manager(source.hash(), "dump")
    for stage, value in asm.items():
        manager.put(value, f"{source.name[:150]}.{stage}")
    try:
        manager.put(backend.compiler.derive("sass", asm), f"{source.name[:150]}.sass")
    except KeyError:
        pass
