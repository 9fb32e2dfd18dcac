"""`compile_many`: many kernels on several cores."""

from __future__ import annotations

import contextlib
import sys
import time
from typing import (
    TYPE_CHECKING,
    Any,
    Callable,
    Iterable,
    Iterator,
    Literal,
    Mapping,
    Optional,
    Union,
    overload,
)

from gluon_core.compiler.driver import compile
from gluon_core.compiler.kernel import CompiledKernel
from gluon_core.compiler.source import GluonASTSource
from gluon_core.compiler.stages import processes
from gluon_core.compiler.workers import limit
from gluon_core.errors import ArgumentError, GluonError

if TYPE_CHECKING:
    from concurrent.futures import Future

__all__ = ["Request", "compile_many"]

Request = Union[GluonASTSource, Mapping[str, Any], Callable[[], Any]]

_SHOWN_AFTER = 1.0  # seconds of work before there is a progress bar
_WIDTH = 40  # letters of the bar


@overload
def compile_many(
    requests: Iterable[Request],
    target: Any = None,
    options: Optional[Mapping[str, Any]] = None,
    *,
    workers: Optional[int] = None,
    errors: Literal["raise"] = "raise",
    progress: Optional[bool] = None,
) -> list[CompiledKernel]: ...


@overload
def compile_many(
    requests: Iterable[Request],
    target: Any = None,
    options: Optional[Mapping[str, Any]] = None,
    *,
    workers: Optional[int] = None,
    errors: Literal["return"],
    progress: Optional[bool] = None,
) -> list[Union[CompiledKernel, GluonError]]: ...


def compile_many(
    requests: Iterable[Request],
    target: Any = None,
    options: Optional[Mapping[str, Any]] = None,
    *,
    workers: Optional[int] = None,
    errors: str = "raise",
    progress: Optional[bool] = None,
) -> list[Any]:
    """Compile kernels side by side, each as `compile` does; no device is needed.

        gluon.compile_many(
            [dict(fn=kernel, signature={"x": "*fp32"}, constexprs={"BLOCK": b}) for b in (128, 256)],
            target="sm_90",
        )

    Args:
        requests: compilations: a `GluonASTSource`; a mapping of the arguments of `compile`, `fn`
            among them; or a function without parameters that compiles and returns the kernel, such as
            `functools.partial(kernel.warmup, x, y, n, BLOCK=128, grid=(1,))`.
        target: for the requests that name none, see `compile`; functions have their own.
        options: compile options for those requests; a request's own options go first.
        workers: how many to compile at once; None for as many as pay, at most `GLUON_COMPILE_WORKERS`,
            else the cores of the process.
        errors: `"raise"` raises the first error (in the order of the requests) when all others are
            done, so that successful ones are in the cache; `"return"` puts errors in place of kernels.
        progress: show a bar on stderr; None shows one when that is a terminal and it takes long.

    Returns:
        The compiled kernels, in the order of the requests.

    Raises:
        ArgumentError: a request is none of these, or `workers` or `errors` are illegal.
        GluonError: a kernel does not compile.
    """
    if errors not in ("raise", "return"):
        raise ArgumentError(
            "unknown way to handle errors",
            argument="errors",
            expected="'raise' or 'return'",
            got=repr(errors),
        )
    if workers is not None and (not isinstance(workers, int) or workers < 1):
        raise ArgumentError(
            "not a number of processes", argument="workers", expected="1 or more", got=repr(workers)
        )
    jobs = [_job(request, index, target, options) for index, request in enumerate(requests)]
    count = min(workers or limit(), len(jobs))
    results: list[Any] = [None] * len(jobs)
    with contextlib.ExitStack() as stack:
        bar = stack.enter_context(_Bar(len(jobs), progress))
        if count <= 1:
            for index, job in enumerate(jobs):
                results[index] = _outcome(job)
                bar.advance()
        else:
            from concurrent.futures import ThreadPoolExecutor

            done = stack.enter_context(processes(count, len(jobs), workers is not None))
            pool = ThreadPoolExecutor(count, thread_name_prefix="gluon-compile")
            # Ctrl-C drops compilations that have not begun, and waits for the others.
            stack.callback(pool.shutdown, wait=True, cancel_futures=True)
            places: dict[Future[Any], int] = {
                pool.submit(_outcome, job): index for index, job in enumerate(jobs)
            }
            for index, result in _as_done(places):
                results[index] = result
                done()
                bar.advance()
    if errors == "raise":
        for result in results:
            if isinstance(result, GluonError):
                raise result
    return results


def _as_done(places: dict[Future[Any], int]) -> Iterator[tuple[int, Any]]:
    from concurrent.futures import FIRST_COMPLETED, wait

    left = set(places)
    while left:
        done, left = wait(left, return_when=FIRST_COMPLETED)
        for future in done:
            yield places[future], future.result()


def _outcome(job: Callable[[], Any]) -> Any:
    try:
        return job()
    except GluonError as error:
        return error


def _job(
    request: Any, index: int, target: Any, options: Optional[Mapping[str, Any]]
) -> Callable[[], Any]:
    """Return the compilation that a request asks for."""
    if isinstance(request, Mapping):
        fields = dict(request)
        if "fn" not in fields:
            raise ArgumentError(
                "a request names no kernel",
                argument=f"requests[{index}]",
                expected="'fn' among its keys",
                got=", ".join(map(str, fields)) or "no keys",
            )
        fields.setdefault("target", target)
        fields["options"] = {**(options or {}), **(fields.get("options") or {})}
        return lambda: compile(**fields)
    if isinstance(request, GluonASTSource):
        return lambda: compile(request, target, options)
    if callable(request) and not hasattr(request, "arg_names"):
        return request  # type: ignore[no-any-return]  # what it answers is the caller's to know
    raise ArgumentError(
        "cannot be compiled as it is",
        argument=f"requests[{index}]",
        expected="a GluonASTSource, a mapping of compile's arguments, or a function without parameters",
        got=type(request).__name__,
        remedy="Give a kernel as dict(fn=kernel, signature=..., constexprs=...)."
        if callable(request)
        else None,
    )


class _Bar:
    """The progress of the work on a terminal, once it has taken a while."""

    def __init__(self, total: int, wanted: Optional[bool]):
        self._total = total
        self._done = 0
        terminal = bool(getattr(sys.stderr, "isatty", lambda: False)())
        self._shown = total > 1 and (terminal if wanted is None else wanted)
        self._start = time.monotonic()
        self._from = self._start + (_SHOWN_AFTER if wanted is None else 0.0)
        self._drawn = False

    def __enter__(self) -> _Bar:
        return self

    def advance(self) -> None:
        self._done += 1
        now = time.monotonic()
        if self._shown and now >= self._from:
            self._drawn = True
            filled = "#" * (_WIDTH * self._done // self._total)
            seconds = f"{now - self._start:.0f} s"
            sys.stderr.write(
                f"\rcompiling [{filled:<{_WIDTH}}] {self._done}/{self._total} {seconds}"
            )
            sys.stderr.flush()

    def __exit__(self, *details: Any) -> None:
        if self._drawn:
            sys.stderr.write("\n")
