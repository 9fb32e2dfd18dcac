"""Graphs: record the launches and tensor operations of a capture, and replay them.

As on hardware a capture computes nothing that can be seen: memory that was there before holds
afterwards what it held. A replay runs the recorded work in order, over the contents that the static
tensors have then, and writes its results where the capture has put them.
"""

from __future__ import annotations

import itertools
from typing import Any, Callable, Iterator, Optional

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from gluon_core.simulation import evidence
from gluon_standin.memory import Memory

__all__ = ["Capture", "capturing", "graph_class", "pool_handle", "refuse_under_capture"]

_pools: Iterator[int] = itertools.count(1)
_captures: list["Capture"] = []

_Work = Callable[[], Any]


def capturing() -> bool:
    """Return whether a graph is being captured."""
    return bool(_captures)


def pool_handle() -> tuple[int, int]:
    """Return a new token of a memory pool."""
    return 0, next(_pools)


def refuse_under_capture() -> None:
    """Raise, as the device's driver does, where work that has to wait is asked for during a capture."""
    if _captures:
        capture = _captures[-1]
        capture.broken = True
        raise _error("operation not permitted when stream is capturing")


def _error(text: str) -> RuntimeError:
    kind: type[RuntimeError] = getattr(torch, "AcceleratorError", RuntimeError)
    return kind(f"{'HIP' if torch.version.hip else 'CUDA'} error: {text}")


class Capture(TorchDispatchMode):  # type: ignore[misc]  # torch is not required
    """The work between the beginning and the end of a capture.

    Args:
        memory: tells tensors of the device from those of the host.
    """

    def __init__(self, memory: Memory):
        super().__init__()
        self.work: list[_Work] = []
        self.broken = False
        self._memory = memory
        self._born: dict[int, Any] = {}  # storages that the capture itself creates
        self._before: dict[int, tuple[Any, Any]] = {}  # a storage -> it and its contents before

    def begin(self) -> None:
        _captures.append(self)
        evidence.observers.append(self._launched)
        self.__enter__()

    def end(self) -> None:
        self.__exit__(None, None, None)
        evidence.observers.remove(self._launched)
        _captures.remove(self)
        for storage, contents in self._before.values():
            if storage.nbytes() == contents.nbytes():
                storage.copy_(contents)
        self._before.clear()

    def replay(self) -> None:
        with torch.no_grad():
            for one in self.work:
                one()

    def _launched(self, launch: _Work) -> None:
        """Note the launch of a kernel, and leave memory as it is."""
        self.work.append(launch)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        tags = func.tags
        waits = torch.Tag.data_dependent_output in tags or torch.Tag.dynamic_output_shape in tags
        if waits and any(
            self._memory.on_device(one) is not False for one in _tensors((args, kwargs))
        ):
            refuse_under_capture()
        schema = func._schema
        written = _written(schema, args, kwargs)
        for tensor in written:
            self._keep(tensor)
        before = {_key(one) for one in _tensors((args, kwargs))}
        evidence.observers.remove(self._launched)  # an operator's own launches are part of it
        try:
            result = func(*args, **kwargs)
        finally:
            evidence.observers.append(self._launched)
        fresh = [one for one in _tensors(result) if _key(one) not in before]
        for one in fresh:
            self._born[_key(one)] = one.untyped_storage()
        if written or fresh:
            self.work.append(lambda: _again(func, args, kwargs, result, before))
        return result

    def _keep(self, tensor: torch.Tensor) -> None:
        key = _key(tensor)
        if key not in self._born and key not in self._before:
            storage = tensor.untyped_storage()
            self._before[key] = storage, storage.clone()


def _again(func: Any, args: Any, kwargs: Any, result: Any, before: set[int]) -> None:
    """Run an operator once more, and copy its results into the tensors that it returned first."""
    new = func(*args, **kwargs)
    for old, computed in zip(_tensors(result), _tensors(new)):
        if _key(old) not in before:
            old.detach().copy_(computed)


def _tensors(tree: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_iter(tree) if isinstance(leaf, torch.Tensor)]


def _key(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def _written(schema: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[torch.Tensor]:
    """Return the tensors that an operator writes to."""
    values = []
    for index, argument in enumerate(schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            value = args[index] if index < len(args) else kwargs.get(argument.name)
            values.append(value)
    return _tensors(values)


def graph_class(kind: str, memory: Memory) -> type:
    """Return `torch.<kind>.CUDAGraph`."""

    class CUDAGraph:
        __doc__ = f"A graph of the simulated device, as `torch.{kind}.CUDAGraph`."

        def __init__(self, keep_graph: bool = False):
            self.keep_graph = keep_graph
            self._capture: Optional[Capture] = None
            self._ended = False
            self._pool: Any = None

        def capture_begin(
            self,
            pool: Any = None,
            capture_error_mode: str = "global",
            check_input_liveness: bool = False,
        ) -> None:
            modes = ("global", "thread_local", "relaxed")
            if capture_error_mode not in modes:
                raise RuntimeError(
                    "Unknown capture error mode. Expected `global`, `thread_local`, or `relaxed`, "
                    f"got {capture_error_mode}"
                )
            if self._capture is not None:
                raise RuntimeError(
                    "This CUDAGraph instance already owns a captured graph. To capture a new graph, "
                    "create a new instance."
                )
            if _captures:
                refuse_under_capture()
            self._pool = pool if pool is not None else pool_handle()
            self._capture = Capture(memory)
            self._capture.begin()

        def capture_end(self) -> None:
            if self._capture not in _captures or self._capture is None:
                raise RuntimeError(
                    "capture_end was called, and no capture of this graph is under way"
                )
            self._capture.end()
            if self._capture.broken:
                self._capture = None
                raise _error("operation failed due to a previous error during capture")
            self._ended = True

        def instantiate(self) -> None:
            self._whole("instantiate")

        def replay(self) -> None:
            self._whole("replay").replay()

        def reset(self) -> None:
            self._capture, self._ended = None, False

        def pool(self) -> Any:
            self._whole("pool")
            return self._pool

        def register_generator_state(self, generator: Any) -> None:
            """Do nothing: each replay draws new numbers of every generator."""

        def enable_debug_mode(self) -> None:
            """See `debug_dump`."""

        def debug_dump(self, debug_path: str) -> None:
            """Write the number of recorded steps."""
            with open(debug_path, "w") as file:
                file.write(f"// {len(self._whole('debug_dump').work)} steps\ndigraph {{}}\n")

        def _whole(self, name: str) -> Capture:
            if self._capture is None or not self._ended:
                raise RuntimeError(
                    f"Called CUDAGraph::{name} without a preceding successful capture."
                )
            return self._capture

    CUDAGraph.__module__ = f"torch.{kind}.graphs"
    CUDAGraph.__qualname__ = "CUDAGraph"
    return CUDAGraph
