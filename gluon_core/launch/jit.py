"""`@gluon.jit`: a Python function as a kernel."""

from __future__ import annotations

import functools
import inspect
import os
import warnings
from typing import (
    TYPE_CHECKING,
    Any,
    Callable,
    Concatenate,
    Generic,
    Iterable,
    Optional,
    ParamSpec,
    Protocol,
    Sequence,
    TypeVar,
    Union,
    overload,
)

from gluon_core import _triton
from gluon_core.compiler import kernel_text as source
from gluon_core.errors import (
    ArgumentError,
    KernelSyntaxError,
    KernelWarning,
    NotInKernelError,
    trims,
)
from gluon_core.imports import when_imported
from gluon_core.launch import opaque

if TYPE_CHECKING:
    from gluon_core.compiler import CompiledKernel
    from gluon_core.launch.miss import Dispatcher

__all__ = ["GluonJITFunction", "Grid", "Launch", "jit", "must_use_result"]

P = ParamSpec("P")
Q = ParamSpec("Q")
R = TypeVar("R")

# How many programs: along one to three axes, or a function of the arguments by name that says it.
Grid = Union[int, Sequence[int], Callable[[dict[str, Any]], Any]]


class Launch(Protocol[P]):
    """`kernel[grid]`: takes the kernel's arguments, and options besides."""

    @overload
    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> CompiledKernel: ...

    @overload
    def __call__(self, *args: Any, **arguments_and_options: Any) -> CompiledKernel: ...


@opaque.no_triton_source
class GluonJITFunction(_triton.ParsedOnce, Generic[P, R]):
    """A kernel, or a function that kernels call.

    `kernel[grid](*args, **options)` launches; `grid` is an int, up to three ints, or a function of
    the arguments by name. Options are those of the backend (`num_warps`, `num_ctas`, `maxnreg`,
    ...) and `target`.
    """

    def __init__(  # noqa: PLR0913 - the arguments of the decorator
        self,
        fn: Callable[P, R],
        version: Any = None,
        do_not_specialize: Optional[Iterable[Union[int, str]]] = None,
        do_not_specialize_on_alignment: Optional[Iterable[Union[int, str]]] = None,
        debug: Optional[bool] = None,
        noinline: Optional[bool] = None,
        repr: Optional[Callable[..., str]] = None,
        launch_metadata: Optional[Callable[..., Any]] = None,
        strict: Optional[bool] = None,
        layouts: Optional[str] = None,
    ):
        if not callable(fn) or not hasattr(fn, "__code__"):
            raise ArgumentError("not a function", argument="fn", got=type(fn).__name__)
        if inspect.iscoroutinefunction(fn) or inspect.isasyncgenfunction(fn):
            raise KernelSyntaxError(
                f"`async def {fn.__name__}` is not supported in kernels",
                remedy="Asynchronous copies have ops of their own: start them, and wait where the "
                "data is needed.",
            )
        try:
            super().__init__(
                fn,
                version=version,
                do_not_specialize=_listed(do_not_specialize),
                do_not_specialize_on_alignment=_listed(do_not_specialize_on_alignment),
                debug=debug,
                noinline=noinline,
                repr=repr,
                launch_metadata=launch_metadata,
            )
        except AttributeError as error:  # its source holds no such function
            raise source.changed(fn) from error
        except (ValueError, OSError):
            raise KernelSyntaxError(
                f"the source of {fn.__name__} cannot be read",
                argument="fn",
                remedy="Kernels are compiled from source: define them in a Python file.",
            ) from None
        source.remember(fn, self.src)
        _check_named(self, "do_not_specialize", do_not_specialize)
        _check_named(self, "do_not_specialize_on_alignment", do_not_specialize_on_alignment)
        self.strict = strict
        if layouts not in (None, "auto"):
            raise ArgumentError(
                "unknown choice", argument="layouts", expected="'auto' or None", got=f"{layouts!r}"
            )
        self.layouts = layouts
        self._dispatcher: Optional[Dispatcher] = None
        opaque.arm()
        functools.update_wrapper(self, fn, updated=())

    def is_gluon(self) -> bool:
        """Return whether tensors of the kernel have layouts; Triton asks."""
        return True

    @property
    def dispatcher(self) -> Dispatcher:
        """Return the object that launches this kernel; made on first use."""
        dispatcher = self._dispatcher
        if dispatcher is None:
            from gluon_core.launch.miss import Dispatcher

            if os.environ.get("GLUON_TIMELINE", "0") not in ("", "0"):
                from gluon_core.registry.load import registry

                registry().service("timeline.process")()
            dispatcher = self._dispatcher = Dispatcher(self)
        return dispatcher

    if TYPE_CHECKING:  # a method of an aggregate is bound to it

        @overload
        def __get__(self, owner: None, kind: Any = None) -> GluonJITFunction[P, R]: ...

        @overload
        def __get__(
            self: GluonJITFunction[Concatenate[Any, Q], R], owner: object, kind: Any = None
        ) -> GluonJITFunction[Q, R]: ...

        def __get__(self, owner: Any, kind: Any = None) -> Any: ...

    @opaque.closed
    def __getitem__(self, grid: Grid) -> Launch[P]:
        """`kernel[grid]`: a function of the kernel's arguments that launches it."""
        return (self._dispatcher or self.dispatcher).over(grid)

    __getitem__._torchdynamo_inline = opaque.subscript  # type: ignore[attr-defined]

    @opaque.closed
    def run(self, *args: Any, grid: Grid, warmup: bool, **kwargs: Any) -> Optional[CompiledKernel]:
        """Launch or warm up: `kernel[grid]` and Triton's autotuner call it.

        Returns:
            The `CompiledKernel`, None where a `jit_cache_hook` took over.
        """
        if warmup:
            return self.dispatcher.warmup(args, kwargs)
        launched: Optional[CompiledKernel] = self.dispatcher.over(grid)(*args, **kwargs)
        return launched

    @opaque.closed
    def warmup(self, *args: Any, grid: Grid = (1,), **kwargs: Any) -> Optional[CompiledKernel]:
        """Compile for a call without making it; dtypes may stand for aligned tensors of them.

        Returns:
            The `CompiledKernel`.
        """
        return self.run(*args, grid=grid, warmup=True, **kwargs)

    @opaque.closed
    def prepare(
        self, *args: Any, grid: Grid, timeline: Union[bool, str] = False, **kwargs: Any
    ) -> Callable[..., None]:
        """Compile and load for a call, without making it.

        Args:
            args: arguments as the launches will have them.
            grid: as in `kernel[grid]`; a launch may pass another as `grid=`.
            timeline: record when warps pass scopes (`gluon_core.timeline`); "auto" adds automatic ones.
            kwargs: further arguments and options.

        Returns:
            `handle(*args)`, which launches on the current stream and checks nothing: its arguments
            must have the dtypes, alignment, constants and device of those given here. With `timeline`, `handle.timeline`
            waits for its launches and returns their `gluon_core.timeline.Timeline`.

        Raises:
            ArgumentError: `timeline` is something else.
        """
        if timeline:
            if timeline is not True and timeline != "auto":
                raise ArgumentError(
                    "chooses no recording",
                    argument="timeline",
                    expected="True or 'auto'",
                    got=repr(timeline),
                )
            mode = "timeline:auto" if timeline == "auto" else "timeline"
            kwargs = {**kwargs, "instrumentation_mode": mode}
        handle, compiled, options = self.dispatcher.prepare(args, grid, kwargs)
        mode = str(getattr(options, "instrumentation_mode", None) or "")
        # The facts of a simulated kernel's compiler come from compiling it: ask only where a recording is on.
        if not mode.startswith("timeline") or getattr(compiled.metadata, "timeline", None) is None:
            return handle
        from gluon_core.registry.load import registry

        # The call asks for it, not a recording of the process.
        own = "instrumentation_mode" in kwargs
        record = registry().service("timeline.prepared")
        recorded: Callable[..., None] = record(handle, compiled, own)
        return recorded

    def forget(self) -> None:
        """Drop the compiled kernels that this process holds; those on disk stay."""
        self._dispatcher = None

    @property
    def cache_key(self) -> str:
        """Return the digest of the kernel's source, of the functions that it calls and of the constants that it reads.

        Raises:
            KernelSyntaxError: it unpacks into targets within targets, which Triton cannot follow.
            HostFunctionError: it, or a function that it calls, calls a function of host code.
        """
        try:
            return str(super().cache_key)
        except Exception as error:
            self.hash = None  # Triton left its mark of a function that calls itself
            if isinstance(error, RuntimeError) and "Unsupported function" in str(error):
                mistake = source.host_call(self)
                if mistake is not None:
                    raise mistake from None
            span = source.nested_unpacking(self) if isinstance(error, TypeError) else None
            if span is None:
                raise
            raise KernelSyntaxError(
                "kernels cannot unpack into nested targets",
                remedy="Unpack the outer tuple first, then the inner one.",
                span=span,
            ) from None

    def create_binder(self) -> Any:
        """Triton's table of compiled kernels per device, which stays empty: ours are elsewhere."""
        return {}, {}, None, None, self.dispatcher.bind

    def preload(self, specialization_data: str) -> Optional[CompiledKernel]:
        """Compile, or load from the cache, the form that a `jit_cache_hook` got as `specialization_data`.

        Returns:
            The `CompiledKernel`.
        """
        from gluon_core.launch.ahead import preload

        loaded: Optional[CompiledKernel] = preload(self, specialization_data)
        return loaded

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """In kernels: the function's result. Host code launches instead, `kernel[grid](...)`."""
        raise NotInKernelError(
            f"{self.__name__} is a kernel and cannot be called like a function",
            remedy=f"Launch it: {self.__name__}[grid](...).",
        )

    def __repr__(self) -> str:
        return f"JITFunction({self.module}:{self.fn.__qualname__})"


def _listed(names: Any) -> list[Union[int, str]]:
    return [names] if isinstance(names, (str, int)) else list(names or ())


def _check_named(kernel: Any, argument: str, names: Any) -> None:
    """Warn of names of no parameter, which Triton ignores."""
    known = {*kernel.arg_names, *range(len(kernel.arg_names))}
    strange = [name for name in _listed(names) if name not in known]
    if strange:
        warnings.warn(
            f"{argument} of {kernel.__name__} names no parameter: {strange[0]!r}. "
            f"It has {', '.join(kernel.arg_names) or 'none'}.",
            KernelWarning,
            stacklevel=5,
        )


@overload
def jit(fn: Callable[P, R]) -> GluonJITFunction[P, R]: ...


@overload
def jit(
    *,
    version: Any = None,
    repr: Optional[Callable[..., str]] = None,
    launch_metadata: Optional[Callable[..., Any]] = None,
    do_not_specialize: Optional[Iterable[Union[int, str]]] = None,
    do_not_specialize_on_alignment: Optional[Iterable[Union[int, str]]] = None,
    debug: Optional[bool] = None,
    noinline: Optional[bool] = None,
    strict: Optional[bool] = None,
    layouts: Optional[str] = None,
) -> Callable[[Callable[P, R]], GluonJITFunction[P, R]]: ...


@trims
def jit(  # noqa: PLR0913 - Triton's, and two of ours
    fn: Optional[Callable[..., Any]] = None,
    *,
    version: Any = None,
    repr: Optional[Callable[..., str]] = None,
    launch_metadata: Optional[Callable[..., Any]] = None,
    do_not_specialize: Optional[Iterable[Union[int, str]]] = None,
    do_not_specialize_on_alignment: Optional[Iterable[Union[int, str]]] = None,
    debug: Optional[bool] = None,
    noinline: Optional[bool] = None,
    strict: Optional[bool] = None,
    layouts: Optional[str] = None,
) -> Any:
    """Make a kernel of a Python function; usable bare or with options.

    Args:
        repr: names the compiled function, from its specialization.
        launch_metadata: `f(grid, metadata, arguments)`: further facts for launch hooks.
        do_not_specialize: parameters (names or indices) of whose value the code must not depend.
        do_not_specialize_on_alignment: parameters whose divisibility by 16 must not matter.
        debug: keep assertions in the code.
        noinline: stay a function of its own when kernels call it.
        strict: False makes all that we refuse and Triton's Gluon compiles a `KernelWarning` with the
            line, except code that aborts a compiler or was seen to go wrong on a GPU (the table in
            docs/compatibility.md); the simulator has no meaning for such ops and still ends there. None
            leaves it to `GLUON_STRICT`. The kernel's value holds for all that it calls; a launch, `warmup`
            or `gluon.compile` may override it with `strict=`.
        layouts: "auto" lets layouts be left out; gluon-extras chooses them for the target, and
            `gluon write` hands them back as source.
    """

    @trims
    def decorate(function: Callable[P, R]) -> GluonJITFunction[P, R]:
        return GluonJITFunction(
            function,
            version=version,
            do_not_specialize=do_not_specialize,
            do_not_specialize_on_alignment=do_not_specialize_on_alignment,
            debug=debug,
            noinline=noinline,
            repr=repr,
            launch_metadata=launch_metadata,
            strict=strict,
            layouts=layouts,
        )

    return decorate if fn is None else decorate(fn)


def must_use_result(x: Any, s: Union[bool, str] = True) -> Any:
    """Make it an error in kernels to call a function and drop its result.

    Args:
        x: the function; or the message, when used as `@must_use_result("...")`.
        s: the message, or True for the usual one.
    """
    if isinstance(x, str):
        return lambda function: must_use_result(function, x)
    x._must_use_result = s
    return x


def _sources_of_ours(filecheck: Any) -> None:
    """Let `run_parser` of Triton's own frontend tests trace kernels of ours as ours."""
    theirs = filecheck.GluonASTSource

    def source(fn: Any, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(fn, GluonJITFunction):
            return theirs(fn, *args, **kwargs)
        from gluon_core.compiler.source import GluonASTSource

        return GluonASTSource(fn, *args, **kwargs)

    filecheck.GluonASTSource = source


when_imported("triton._filecheck", _sources_of_ours)
