"""`compile`: options, cache, trace, stages, in that order."""

from __future__ import annotations

import os
import time
from typing import Any, Iterable, Mapping, Optional

from gluon_core import _triton
from gluon_core.backend import Backend, Stage
from gluon_core.compiler.kernel import CompiledKernel
from gluon_core.compiler.source import GluonASTSource
from gluon_core.compiler.stages import run_stages
from gluon_core.errors import ArgumentError, StageError
from gluon_core.plugins import registry
from gluon_core.portable import OPS
from gluon_core.runtime import cache
from gluon_core.targets import Target

__all__ = ["compile", "compile_source", "trace_source"]


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
        options: compile options such as `num_warps`; also accepted as keyword arguments.
        signature: parameter -> type, see `GluonASTSource`.
        constexprs: parameter -> value.
        attrs: parameter -> attributes, or 16 for "divisible by 16".

    Raises:
        ArgumentError: `fn` is no kernel, or its parameters are not all described.
        TargetError: an unknown target.
        OptionError: an unknown option or an illegal value.
        GluonError: the kernel is wrong; with its line.
        StageError: a compiler failed; with what it said.
    """
    given = {**(options or {}), **more}
    if _is_source(fn):
        if signature is not None or constexprs is not None or attrs is not None:
            raise ArgumentError("a source brings its own signature", argument="signature")
        source = fn if isinstance(fn, GluonASTSource) else GluonASTSource(
            fn.fn, fn.signature, fn.constants, fn.attrs
        )
    else:
        source = GluonASTSource(fn, signature or {}, constexprs, attrs)
    chosen = registry().target(target)
    backend = registry().backend(chosen.backend)
    given.setdefault("debug", bool(source.fn.debug) or _triton.knobs.runtime.debug)
    names = source.fn.arg_names
    told = {names[path[0]]: value for path, value in source.constants.items() if len(path) == 1}
    given = {**shared_options(told, backend, chosen), **given}
    return compile_source(source, chosen, backend, parse_options(backend, chosen, given))


def _is_source(fn: Any) -> bool:
    return hasattr(fn, "signature") and hasattr(fn, "constants") and hasattr(fn, "attrs")


def parse_options(backend: Backend, target: Target, given: Mapping[str, Any]) -> Any:
    """The options object of `backend`, with Triton's instrumentation knob where it knows it."""
    return backend.options(target, given)


def shared_options(values: Mapping[str, Any], backend: Backend, target: Target) -> dict[str, Any]:
    """Of a kernel's compile-time values, by parameter, those named like an option of `backend`, such
    as `num_warps`: what a kernel is told is also what it is compiled with."""
    if not values:
        return {}
    known = vars(backend.options(target, {}))
    return {name: _triton.unwrap(value) for name, value in values.items() if name in known}


def trace_source(
    source: GluonASTSource, target: Any, options: Any, context: Any = None, **more: Any
) -> Any:
    """The module that `source` turns into, before any stage; `more` goes to `frontend.trace`."""
    from gluon_core.frontend import trace

    chosen = registry().target(target)
    backend = registry().backend(chosen.backend)
    pairs = {path: [tuple(pair) for pair in found] for path, found in source.attrs.items()}
    return trace(
        source.fn,
        source.signature,
        source.constants,
        pairs,
        backend=backend,
        target=chosen,
        options=options,
        context=context,
        **more,
    )


def packages_of(backend: Backend, target: Target) -> tuple[str, ...]:
    """The top-level packages whose content a compilation depends on."""
    found = registry()
    names = {type(backend).__module__, type(found.backend(target.architecture.backend)).__module__}
    for op in OPS:  # also what plugins without a backend contribute
        names.update(low.implement for low in found.lowerings(op))
    tops = {name.split(":")[0].split(".")[0] for name in names}
    return ("gluon_core", *sorted(tops - {"gluon_core"}))


def cache_key(source: GluonASTSource, target: Target, backend: Backend, options: Any) -> str:
    """What identifies a compiled kernel: everything its machine code depends on."""
    environment = _triton.invalidating_environment()
    hook = _triton.knobs.runtime.add_stages_inspection_hook
    return cache.key_of(
        (
            source.hash(),
            _options_text(options),
            target,
            _triton.build_stamp(),
            cache.content_hash(packages_of(backend, target)),
            backend.pipeline_version(target),
            sorted(environment.items()),
            hook() if hook is not None else "",
        )
    )


def _options_text(options: Any) -> str:
    hashed = getattr(options, "hash", None)
    return hashed() if callable(hashed) else repr(options)


def compile_source(
    source: GluonASTSource,
    target: Target,
    backend: Backend,
    options: Any,
    load_only: bool = False,
) -> Any:
    """The `CompiledKernel` for parsed options, through the cache.

    Args:
        load_only: answer None rather than compile.
    """
    started = time.time()
    knobs = _triton.knobs.compilation
    listener = knobs.listener
    key = cache_key(source, target, backend, options)
    cacheable = backend.cacheable and source.repeatable
    if cacheable and not knobs.always_compile:
        entry = cache.load(key, source.name)
        if entry is not None:
            made = CompiledKernel(source, target, backend, entry.asm, entry.metadata, key, entry.files)
            if listener is not None:
                times = _triton.compile_times(started, started, [], time.time())
                _listen(listener, made, times, hit=True)
            return made
    if load_only:
        return None

    stages = backend.pipeline(target, options)
    refused: dict[tuple[str, str], str] = {}
    while True:
        context = _triton.make_context()
        sessions: list = []
        module = trace_source(
            source, target, options, context, on_session=sessions.append, refused=refused
        )
        traced = time.time()
        registry().stage_done("trace", module, target)
        metadata = {**_plain(options), **_triton.invalidating_environment()}
        metadata["triton_version"] = _triton.VERSION_TEXT
        metadata["target"] = str(target)
        metadata["hash"] = key
        try:
            result = run_stages(
                stages,
                module,
                metadata,
                what=f"{source.name} for {target}",
                isolate=backend.isolate,
                as_text=backend.cacheable,
                override=_overrides(source, options, stages, context),
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
        registry().stage_done(stage.name, result.asm[stage.name], target)
    _dump(source, result.asm, backend)
    files: Mapping[str, str] = {}
    if cacheable:
        files = cache.store(key, source.name, result.asm, result.metadata, knobs.store_binary_only)
    made = CompiledKernel(
        source, target, backend, result.asm, result.metadata, key, files, result.diagnostics
    )
    if listener is not None:
        times = _triton.compile_times(started, traced, result.ends, time.time())
        _listen(listener, made, times, hit=False)
    return made


def _given_up(selections: Iterable[Any], error: StageError) -> dict[tuple[str, str], str]:
    """(op, name) of the lowerings that a failed compilation says are not possible -> its words."""
    found = {}
    for lowering in (selection.chosen for selection in selections):
        texts = lowering.gives_up or ()
        texts = (texts,) if isinstance(texts, str) else texts
        for line in error.diagnostics.splitlines():
            if any(text in line for text in texts):
                found[lowering.op, lowering.name] = f"the compiler refused: {line.strip()}"
    return found


def _listen(listener: Any, made: CompiledKernel, times: Any, hit: bool) -> None:
    listener(
        src=made.src,
        metadata=made.metadata._asdict(),
        metadata_group=made.metadata_group,
        times=times,
        cache_hit=hit,
    )


def _plain(options: Any) -> dict[str, Any]:
    return dict(getattr(options, "__dict__", {}) or {})


def _overrides(source: GluonASTSource, options: Any, stages: tuple[Stage, ...], context: Any) -> Any:
    """The function that swaps in a user's files (`TRITON_KERNEL_OVERRIDE`, `ir_override`), or None."""
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
        manager.put(backend.derive("sass", asm), f"{source.name[:150]}.sass")
    except KeyError:
        pass
