"""Other orders of the programs of plain Triton kernels, which run one after the other, and launches that do nothing."""

from __future__ import annotations

import random
from contextlib import contextmanager
from importlib import import_module
from typing import Any, Callable, Iterator, Optional

__all__ = ["followed", "reordered", "skipped"]


@contextmanager
def reordered(seed: int) -> Iterator[None]:
    """Run the programs of interpreted launches inside in an order drawn from `seed`; 0 for the usual one."""
    if not seed:
        yield
        return
    interpreter: Any = import_module("triton.runtime.interpreter")
    builder: Any = interpreter.interpreter_builder
    usual = builder.set_grid_idx
    orders: dict[tuple[int, ...], list[int]] = {}

    def set_grid_idx(x: int, y: int, z: int) -> None:
        width, height, depth = builder.grid_dim
        count = width * height * depth
        order = orders.get((width, height, depth))
        if order is None:
            order = list(range(count))
            random.Random(seed).shuffle(order)
            orders[width, height, depth] = order
        program = order[(x * height + y) * depth + z]
        usual(program // (height * depth), program // depth % height, program % depth)

    builder.set_grid_idx = set_grid_idx
    try:
        yield
    finally:
        builder.set_grid_idx = usual


@contextmanager
def skipped(skips: bool) -> Iterator[None]:
    """Let launches inside do nothing if `skips` is set: no kernel writes its results."""
    if not skips:
        yield
        return
    simulated: Any = import_module("gluon_sim.launcher").Launch
    executor: Any = import_module("triton.runtime.interpreter").GridExecutor
    run, call = simulated.run, executor.__call__
    simulated.run, executor.__call__ = lambda launch: None, lambda one, *values, **named: None
    try:
        yield
    finally:
        simulated.run, executor.__call__ = run, call


@contextmanager
def followed(after: Optional[Callable[[], None]]) -> Iterator[None]:
    """Call `after` after each launch inside; None for nothing."""
    if after is None:
        yield
        return
    simulated: Any = import_module("gluon_sim.launcher").Launch
    executor: Any = import_module("triton.runtime.interpreter").GridExecutor
    run, call = simulated.run, executor.__call__

    def ran(launch: Any) -> Any:
        answer = run(launch)
        after()
        return answer

    def called(one: Any, *values: Any, **named: Any) -> Any:
        answer = call(one, *values, **named)
        after()
        return answer

    simulated.run, executor.__call__ = ran, called
    try:
        yield
    finally:
        simulated.run, executor.__call__ = run, call
