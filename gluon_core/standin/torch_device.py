"""torch's idea of a GPU, answered on CPU tensors as a simulated device: suites run as they are.

A function mode, the outermost of all, turns every device argument that names the accelerator into
the CPU; `.cuda()` and its kin give the tensor itself; `is_cuda` is true. The functions of
`torch.cuda` (or whatever the vendor's device type is called) that host code asks are exchanged. A
tensor's `.device` stays what it is, the CPU, as does Triton's `get_active_torch_device()`.
"""

from __future__ import annotations

import contextlib
import os
import types
from typing import Any, Callable, Iterator, Mapping, Optional

import torch
from torch.overrides import TorchFunctionMode

from gluon_core.contract.registry import registry
from gluon_core.errors import DeviceError
from gluon_core.standin import driver

__all__ = ["stand_in"]

_CPU = torch.device("cpu")
_Device = torch.device


class _OnCpu(TorchFunctionMode):  # type: ignore[misc]  # torch is not required
    """Calls of torch with the accelerator's device replaced.

    Args:
        kind: the device type that is stood in for.
    """

    def __init__(self, kind: str):
        super().__init__()
        self.kind = kind
        self._moves = {getattr(torch.Tensor, kind), torch.Tensor.pin_memory}
        self._here = {getattr(torch.Tensor, f"is_{kind}").__get__, torch.Tensor.is_pinned}
        self._to = torch.Tensor.to

    def _place(self, value: Any) -> Any:
        if isinstance(value, str):
            return "cpu" if value.partition(":")[0] == self.kind else value
        if isinstance(value, _Device):
            return _CPU if value.type == self.kind else value
        return value

    def __torch_function__(
        self,
        func: Callable[..., Any],
        kinds: Any,
        args: tuple[Any, ...] = (),
        kwargs: Optional[Mapping[str, Any]] = None,
    ) -> Any:
        if func in self._moves:
            return args[0]
        if func in self._here:
            return True
        if func is self._to and len(args) > 1 and type(args[1]) is int:  # an index of a device
            args = (args[0], _CPU, *args[2:])
        places = tuple(map(self._place, args))
        named = {name: self._place(value) for name, value in (kwargs or {}).items()}
        return func(*places, **named)


class _Stream:
    """A stream on which everything has happened already."""

    device = _CPU
    device_index = 0
    cuda_stream = 0

    def __init__(self, *args: Any, **kwargs: Any):
        pass

    def __enter__(self) -> _Stream:
        return self

    def __exit__(self, *details: Any) -> None:
        pass

    def synchronize(self) -> None:
        """Calls have ended when they return."""

    def wait_stream(self, stream: Any) -> None:
        """See `synchronize`."""

    def wait_event(self, event: Any) -> None:
        """See `synchronize`."""

    def record_event(self, event: Any = None) -> Any:
        event = event or driver.Event()
        event.record()
        return event

    def query(self) -> bool:
        return True


@contextlib.contextmanager
def _nothing(*args: Any, **kwargs: Any) -> Iterator[None]:
    yield


def _ignored(*args: Any, **kwargs: Any) -> None:
    """It has no effect on a CPU."""


def _refused(name: str) -> Callable[..., Any]:
    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise DeviceError(
            "the device is simulated and cannot do this",
            argument=name,
            remedy="Skip it where GLUON_TARGET names a simulated target.",
        )

    return refuse


def _answers(kind: str, properties: Mapping[str, Any]) -> dict[str, Any]:
    """What the functions of `torch.<kind>` are exchanged for."""
    known = types.SimpleNamespace(**{k: v for k, v in properties.items() if k != "version"})
    stream = _Stream()
    total = properties.get("total_memory", 0)
    return {
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "is_bf16_supported": lambda *args, **kwargs: True,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "get_device_name": lambda device=None: properties.get("name", kind),
        "get_device_capability": lambda device=None: (known.major, known.minor),
        "get_device_properties": lambda device=None: known,
        "mem_get_info": lambda device=None: (total, total),
        "memory_allocated": lambda device=None: 0,
        "max_memory_allocated": lambda device=None: 0,
        "memory_reserved": lambda device=None: 0,
        "max_memory_reserved": lambda device=None: 0,
        "current_stream": lambda device=None: stream,
        "default_stream": lambda device=None: stream,
        "is_current_stream_capturing": lambda: False,
        "Stream": _Stream,
        "ExternalStream": _Stream,
        "Event": driver.Event,
        "stream": _nothing,
        "device": _nothing,
        "device_of": _nothing,
        "graph": _refused(f"torch.{kind}.graph"),
        "CUDAGraph": _refused(f"torch.{kind}.CUDAGraph"),
        "manual_seed": torch.default_generator.manual_seed,
        "manual_seed_all": torch.default_generator.manual_seed,
        **dict.fromkeys(
            (
                "init", "synchronize", "set_device", "set_stream", "empty_cache", "ipc_collect",
                "reset_peak_memory_stats", "reset_max_memory_allocated",
            ),
            _ignored,
        ),
    }  # fmt: skip


_standing: list[tuple[Any, _OnCpu]] = []


def stand_in(wanted: str) -> Any:
    """See `gluon_core.standin.stand_in`."""
    target = registry().target(wanted)
    if not registry().backend(target.backend).simulates:
        raise DeviceError(
            "only a simulated device can be stood in for",
            argument="target",
            expected=f"e.g. sim:{target.architecture.name}",
            got=target,
        )
    if _standing:
        standing = _standing[0][0]
        if standing != target:
            raise DeviceError("another device is stood in for", expected=standing, got=target)
        return target
    vendor = registry().backend(target.architecture.backend)
    kind = vendor.tensor_device
    if kind is None or not hasattr(torch, kind):
        raise DeviceError(f"torch knows no device for {target}", argument="target", got=target)
    module = getattr(torch, kind)
    if module.is_available():
        raise DeviceError(
            f"this machine has a device that torch calls {kind}",
            remedy="Run as it is, or hide the device (CUDA_VISIBLE_DEVICES=).",
        )
    os.environ["GLUON_TARGET"] = target.name
    driver.activate(target.name)
    properties = vendor.torch_properties(target)
    mode = _OnCpu(kind)
    mode.__enter__()
    _standing.append((target, mode))
    for name, answer in _answers(kind, properties).items():
        setattr(module, name, answer)
    for name, value in properties.get("version", {}).items():
        setattr(torch.version, name, value)
    inner = torch.set_default_device
    torch.set_default_device = lambda device: inner(
        mode._place(device) if isinstance(device, (str, _Device)) else device
    )
    torch.Generator = _generators(mode)
    return target


def _generators(mode: _OnCpu) -> Any:
    """`torch.Generator`, which is no function that a mode meets: those of the accelerator are the CPU's."""
    plain: Any = torch.Generator

    class Kind(type(plain)):  # type: ignore[misc]
        def __instancecheck__(cls, value: Any) -> bool:
            return isinstance(value, plain)

    class Generator(plain, metaclass=Kind):  # type: ignore[misc]  # torch is not required
        def __new__(cls, device: Any = "cpu") -> Any:
            return plain(mode._place(device))

    return Generator
