"""The launch of a call: found by a key once, from then on a prepared launch.

An op asks `Plans` for its plan. The key is what the choice of a kernel depends on: dtypes, shapes, strides, alignment and
device of the tensors, and the op's other arguments. The first call of a key builds the plan, which configures, compiles
and prepares; every later call looks it up, allocates its results and launches through the engine in C.

    plans = Plans(build)

    def softmax(x):
        return plans((key(x),), x)

    def build(x):                       # once per key
        launch = Launch(kernel, (rows,), (x, out, n, BLOCK), tensors=(x, out), num_warps=4)

        def run(x):                     # every call
            out = torch.empty_like(x)
            launch(x, out)
            return out

        return run
"""

from __future__ import annotations

from typing import Any, Callable, Hashable, Optional, Sequence

import torch

import gluon_core as gluon
from gluon_core.plugin.targets import Target
from gluon_core.registry.load import registry

__all__ = ["Counters", "Launch", "Plans", "current_target", "key", "multiprocessors"]

Plan = Callable[..., Any]


def key(tensor: torch.Tensor) -> tuple[Hashable, ...]:
    """Return what plans depend on of a tensor: dtype, shape, strides, device, and address modulo 16."""
    return (
        tensor.dtype,
        tensor.shape,
        tensor.stride(),
        tensor.get_device(),
        tensor.data_ptr() & 15,
    )


class Plans:
    """The plans of one op by key.

    Args:
        build: `build(*arguments) -> run`, where `run(*arguments)` serves all calls of the same key.
        limit: how many are kept; beyond that, the one that was built first is dropped.
    """

    def __init__(self, build: Callable[..., Plan], limit: int = 4096):
        self._build = build
        self._limit = limit
        self._plans: dict[Hashable, Plan] = {}

    def __call__(self, known_by: Hashable, *arguments: Any) -> Any:
        plan = self._plans.get(known_by)
        if plan is None:
            plan = self._add(known_by, arguments)
        return plan(*arguments)

    def _add(self, known_by: Hashable, arguments: tuple[Any, ...]) -> Plan:
        plan = self._build(*arguments)
        if len(self._plans) >= self._limit:
            del self._plans[next(iter(self._plans))]
        self._plans[known_by] = plan
        return plan

    def __len__(self) -> int:
        return len(self._plans)

    def forget(self) -> None:
        """Drop all plans, such as after another tuning table."""
        self._plans.clear()


class Launch:
    """A prepared launch whose tensors are those of each call; everything else is fixed.

    Args:
        kernel: the jit function.
        grid: as in `kernel[grid]`.
        arguments: the kernel's arguments for one call: tensors, descriptors of tensors, numbers, constants,
            and tuples of these.
        tensors: which tensors each call replaces, in the order in which calls give them. An argument that is one of
            them, or a descriptor of one, gets the tensor of the call; it must have the same dtype, shape, strides
            and alignment.
        options: of the launch, such as `num_warps`.
    """

    def __init__(
        self,
        kernel: Any,
        grid: Any,
        arguments: Sequence[Any],
        tensors: Sequence[Optional[torch.Tensor]],
        **options: Any,
    ):
        self._handle = kernel.prepare(*arguments, grid=grid, **options)
        self._fixed = [None if _place(a, tensors) is not None else a for a in arguments]
        self._slots = [
            (place, fill)
            for place, fill in ((i, _filler(a, tensors)) for i, a in enumerate(arguments))
            if fill is not None
        ]

    def __call__(self, *tensors: Optional[torch.Tensor]) -> None:
        arguments = self._fixed.copy()
        for place, fill in self._slots:
            arguments[place] = fill(tensors)
        self._handle(*arguments)


Filler = Callable[[tuple[Any, ...]], Any]


def _place(argument: Any, tensors: Sequence[Optional[torch.Tensor]]) -> Optional[int]:
    """Return which of `tensors` an argument is; None where it is none of them."""
    if argument is None:
        return None
    return next((i for i, tensor in enumerate(tensors) if tensor is argument), None)


def _filler(argument: Any, tensors: Sequence[Optional[torch.Tensor]]) -> Optional[Filler]:
    """Return `f(tensors of a call) -> the argument`; None where it is the same for all calls."""
    place = _place(argument, tensors)
    if place is not None:
        index = place
        return lambda given: given[index]
    if isinstance(argument, tuple):
        fillers = [_filler(item, tensors) for item in argument]
        if not any(fillers):
            return None
        parts = [fill or _constant(item) for fill, item in zip(fillers, argument)]
        return lambda given: tuple([part(given) for part in parts])
    place = _place(getattr(argument, "base", None), tensors)
    if place is None:
        return None
    return _describer(argument, place)


def _constant(value: Any) -> Filler:
    return lambda given: value


def _describer(descriptor: Any, place: int) -> Filler:
    """Describe the tensor of a call as `descriptor` does another one.

    The fields were checked when `descriptor` was made. Each call gets an object of its own: threads
    may share a plan.
    """
    cls: Any = type(descriptor)
    fields = {**vars(descriptor), "base": None}
    new, put = cls.__new__, object.__setattr__

    def describe(given: tuple[Any, ...]) -> Any:
        own = fields.copy()
        own["base"] = given[place]
        described = new(cls)
        put(described, "__dict__", own)
        return described

    return describe


class Counters:
    """Zeros by which the programs of a launch wait for each other; kernels leave zeros, or count modulo a power of two.

    Launches of one stream share them. A CUDA graph gets its own, since it may be replayed on any stream.

    Args:
        count: of int32.
    """

    def __init__(self, count: int):
        self._count = count
        self._by_stream: dict[Hashable, torch.Tensor] = {}

    def __call__(self, device: torch.device) -> torch.Tensor:
        stream = 0
        if device.type == "cuda":
            if torch.cuda.is_current_stream_capturing():
                return self._zeros(device)
            stream = torch.cuda.current_stream(device).cuda_stream
        known_by = (device.index, stream)
        counters = self._by_stream.get(known_by)
        if counters is None:
            counters = self._by_stream[known_by] = self._zeros(device)
        return counters

    def _zeros(self, device: torch.device) -> torch.Tensor:
        return torch.zeros(self._count, dtype=torch.int32, device=device)


def current_target() -> Target:
    """Return the target of launches: `GLUON_TARGET`, the device of this machine, or the simulator."""
    return registry().target(None)


def multiprocessors(tensor: torch.Tensor) -> int:
    """Return how many multiprocessors the device of `tensor` has; as many as an H100 where it is simulated."""
    return gluon.multiprocessors(tensor) or 132
