"""The launch of a call: found by a key once, from then on a prepared launch.

An op asks `Plans` for its plan. The key is what the choice of a kernel depends on: dtypes, shapes, strides, alignment and
device of the tensors, and the op's other arguments. The first call of a key builds the plan, which configures, compiles
and prepares; every later call looks it up, allocates its results and launches through the engine in C.

    plans = Plans(build)

    def softmax(x):
        return plans(key(x), x)

    def build(x):                       # once per key
        launch = Launch(kernel, (rows,), (x, out, n, BLOCK), (x, out), num_warps=4)
        empty = allocator(x.shape, x.dtype, x.device)

        def run(x):                     # every call
            out = empty()
            launch(x, out)
            return out

        return run
"""

from __future__ import annotations

from functools import partial
from typing import Any, Callable, Hashable, Optional

import torch

import gluon_core as gluon
from gluon_core.plugin.targets import Target
from gluon_core.registry.load import registry

__all__ = [
    "Counters",
    "Launch",
    "Plans",
    "Scratch",
    "allocator",
    "bound",
    "current_target",
    "is_sequence",
    "key",
    "least_depth",
    "multiprocessors",
    "registers",
    "sequence",
    "stream_of_launch",
]

Plan = Callable[..., Any]


sequence: Callable[..., Plan] = gluon.torch.sequence  # makes tensors and launches, without Python
Launch = gluon.torch.prepare  # a launch whose tensors are those of each call
key: Callable[..., Hashable] = gluon.torch.signature  # all that plans depend on of tensors


def bound(plan: Plan, *more: Any) -> Plan:
    """Return `f(*tensors)`, a plan whose calls have more arguments; sequences need them not."""
    return plan if is_sequence(plan) else lambda *tensors: plan(*tensors, *more)


def is_sequence(plan: Plan) -> bool:
    """Return True if a plan is a `sequence` in C++, which ignores what a call has behind its tensors."""
    return type(plan) is type(len)


def least_depth() -> int:
    """Return the fewest elements of 16 bits that a product of the target's matrix unit adds up.

    Tiles of fewer become sums of single elements.
    """
    return 32 if current_target().has("amd.tdm") else 16


def allocator(
    shape: tuple[int, ...], dtype: torch.dtype, device: torch.device
) -> Callable[[], torch.Tensor]:
    """Return `f() -> new contiguous tensor`, by the shortest way that this torch has."""
    shape = tuple(shape)  # torch.Size is not taken
    strides = [1]
    for extent in shape[:0:-1]:
        strides.insert(0, strides[0] * max(extent, 1))
    strides = tuple(strides[: len(shape)])
    guards = getattr(getattr(torch._C, "_dynamo", None), "guards", None)
    short = getattr(guards, "_empty_strided_cuda", None)
    if device.type != "cuda" or short is None or torch.cuda.device_count() > 1:
        return lambda: torch.empty(shape, dtype=dtype, device=device)
    return partial(short, shape, strides, dtype)


class Plans:
    """The plans of one op by key.

    Args:
        build: `build(*arguments) -> run`, where `run` serves all calls of the same key.
        limit: how many are kept; beyond that, the one that was built first is dropped.
        vectors: positions of arguments that kernels read as contiguous: others are copied in each call.
    """

    def __init__(
        self, build: Callable[..., Plan], limit: int = 4096, vectors: tuple[int, ...] = ()
    ):
        self._build = build
        self._limit = limit
        self._vectors = vectors
        self._plans: dict[Hashable, Plan] = {}
        self.get = self._plans.get  # the plan of a key, None before its first call

    def __call__(self, known_by: Hashable, *arguments: Any) -> Any:
        """Return what the plan of a key returns for `arguments`, which are those of `build`, too."""
        plan = self._plans.get(known_by)
        return (self._add(known_by, arguments) if plan is None else plan)(*arguments)

    def find(self, known_by: Hashable, *arguments: Any) -> Plan:
        """Return the plan of a key; `arguments` are those of `build`, for the first call."""
        plan = self._plans.get(known_by)
        return self._add(known_by, arguments) if plan is None else plan

    def _add(self, known_by: Hashable, arguments: tuple[Any, ...]) -> Plan:
        strided = [place for place in self._vectors if _is_strided(arguments[place])]
        plan = self._build(*_distinct(_dense(arguments, strided)))
        plan = _copying(plan, strided) if strided else plan
        if len(self._plans) >= self._limit:
            del self._plans[next(iter(self._plans))]
        self._plans[known_by] = plan
        return plan

    def __len__(self) -> int:
        return len(self._plans)

    def forget(self) -> None:
        """Drop all plans, such as after another tuning table."""
        self._plans.clear()


def _is_strided(argument: Any) -> bool:
    if not isinstance(argument, torch.Tensor) or argument.is_nested:
        return False  # `build` refuses it
    return argument.layout is torch.strided and not argument.is_contiguous()


def _dense(arguments: tuple[Any, ...], places: list[int]) -> tuple[Any, ...]:
    """Return the arguments, with contiguous copies at `places`."""
    return tuple(x.contiguous() if i in places else x for i, x in enumerate(arguments))


def _copying(plan: Plan, places: list[int]) -> Plan:
    return lambda *arguments: plan(*_dense(arguments, places))


def _distinct(arguments: tuple[Any, ...]) -> list[Any]:
    """Return the arguments with an alias for each tensor that comes again: a launch tells its tensors by identity."""
    distinct: list[Any] = []
    for argument in arguments:
        if isinstance(argument, torch.Tensor) and any(argument is other for other in distinct):
            argument = argument.detach()
        distinct.append(argument)
    return distinct


class Counters:
    """Zeros by which the programs of a launch wait for each other; kernels leave zeros, or count modulo a power of two.

    Launches of one stream share them. Each launch in a CUDA graph gets its own, since a graph may be replayed on any stream: from a reserve of zeros that
    calls outside of graphs fill, so that a graph has no launch that clears them.

    Args:
        count: of int32.
    """

    def __init__(self, count: int):
        self._count = count
        self._by_stream: dict[Hashable, torch.Tensor] = {}
        self.reserve = _NO_RESERVE  # for graphs; a low one waits for a call that fills it

    def __call__(self, device: torch.device) -> torch.Tensor:
        if device.type != "cuda":
            counters = self._by_stream.get(device)
            if counters is None:
                counters = self._by_stream[device] = self._zeros(device)
            return counters
        if _capturing():
            reserved = _reserve_of(device).take(self._count)
            return self._zeros(device) if reserved is None else reserved
        known_by = stream_of_launch(device)
        counters = self._by_stream.get(known_by)
        if counters is None:
            counters = self._by_stream[known_by] = self._zeros(device)
        self.reserve = reserve = _reserve_of(device)
        if reserve.low:
            reserve.fill()
        return counters

    def _zeros(self, device: torch.device) -> torch.Tensor:
        return torch.zeros(self._count, dtype=torch.int32, device=device)


class Scratch:
    """Memory in which the programs of one launch exchange numbers; their contents before the launch and after it do not matter.

    Launches of one stream share the largest that one of them wants, each launch in a CUDA graph has its own.

    Args:
        count: of float32.
        device: of the launches.
    """

    def __init__(self, count: int, device: torch.device):
        self._count, self._device = count, device
        self._new = allocator((count,), torch.float32, device)

    def __call__(self) -> torch.Tensor:
        known_by = stream_of_launch(self._device)
        if known_by is None:
            return self._new()
        scratch = _scratch.get(known_by)
        if scratch is None or scratch.numel() < self._count:
            scratch = _scratch[known_by] = self._new()
        return scratch


_scratch: dict[Hashable, torch.Tensor] = {}


_capturing: Callable[[], bool] = getattr(torch._C, "_cuda_isCurrentStreamCapturing", lambda: False)
_current_stream: Callable[[Optional[int]], int] = getattr(torch._C, "_cuda_getCurrentRawStream", lambda index: 0)  # fmt: skip


def stream_of_launch(device: torch.device) -> Hashable:
    """Return the device and stream that a launch goes to; None where it goes to a graph, or is simulated."""
    index = device.index
    if index is None or _capturing():  # tensors of a CPU have no index
        return None
    return index, _current_stream(index)


class _Reserve:
    """Zeros for launches in CUDA graphs of one device; what a graph has taken remains its own.

    Attributes:
        low: less than half of the zeros are left.
    """

    SIZE = 1 << 18  # int32
    MOST = (
        1 << 13
    )  # for one launch: where there are more, clearing them costs little next to the launch

    def __init__(self, device: Optional[torch.device]):
        self._device = device
        self.low = True
        self._zeros: list[
            torch.Tensor
        ] = []  # the last ones are handed out; graphs use those before
        self._taken = 0

    def fill(self) -> None:
        """Add zeros; not while a graph is captured."""
        self._zeros.append(torch.zeros(self.SIZE, dtype=torch.int32, device=self._device))
        torch.cuda.current_stream(self._device).synchronize()  # graphs run on any stream
        self._taken, self.low = 0, False

    def take(self, count: int) -> Optional[torch.Tensor]:
        """Return zeros that no other launch has; None where too few are left."""
        count = -(-count // 4) * 4  # from 16 bytes on, as a tensor of its own
        if not self._zeros or count > self.MOST or self._taken + count > self.SIZE:
            return None
        self._taken += count
        self.low = 2 * self._taken > self.SIZE
        return self._zeros[-1][self._taken - count : self._taken]


_NO_RESERVE = _Reserve(None)
_reserves: dict[Optional[int], _Reserve] = {}


def _reserve_of(device: torch.device) -> _Reserve:
    reserve = _reserves.get(device.index)
    if reserve is None:
        reserve = _reserves[device.index] = _Reserve(device)
    return reserve


def current_target() -> Target:
    """Return the target of launches: `GLUON_TARGET`, the device of this machine, or the simulator."""
    return registry().target(None)


def registers(most: int) -> dict[str, int]:
    """Return the options of a launch that bound the registers of a thread, where the compiler takes such a bound."""
    return {"maxnreg": most} if current_target().architecture.backend == "nvidia" else {}


def multiprocessors(tensor: torch.Tensor) -> int:
    """Return how many multiprocessors the device of `tensor` has; as many as an H100 where it is simulated."""
    return gluon.multiprocessors(tensor) or 132
