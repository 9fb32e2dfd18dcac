"""torch's idea of a GPU, answered on CPU tensors as a simulated device: suites run as they are.

A function mode, the outermost of all, maps every device argument that names the accelerator to
the CPU, and keeps account of which tensors would be on the device: `.cuda()`, `.cpu()` and their kin
copy where a machine with that device copies. The functions of `torch.cuda` (or the module of the
vendor's device type) that host code calls are exchanged. A tensor's `.device` remains the CPU, as
does Triton's `get_active_torch_device()`.
"""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass
from typing import Any, Callable, Mapping, Optional

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._device import _device_constructors

from gluon_core.errors import DeviceError
from gluon_core.plugin.targets import Target
from gluon_core.registry.load import registry
from gluon_core.simulation import host_memory
from gluon_standin import driver
from gluon_standin.graphs import refuse_under_capture
from gluon_standin.memory import Memory

__all__ = ["OnCpu", "Standing", "stand_in", "standing"]

_CPU = torch.device("cpu")
_Device = torch.device
_INTERFACE = torch.Tensor.__cuda_array_interface__.__get__


class OnCpu(TorchFunctionMode):  # type: ignore[misc]  # torch is not required
    """Calls of torch with the accelerator's device replaced.

    Args:
        kind: the device type that is simulated.
        memory: keeps account of its tensors.
    """

    def __init__(self, kind: str, memory: Memory):
        super().__init__()
        self.kind = kind
        self.memory = memory
        self.by_default = False  # whether tensors are on the device unless a call says otherwise
        tensor = torch.Tensor
        self._factories = frozenset(_device_constructors())
        self._to = tensor.to
        self._special: dict[Any, Callable[..., Any]] = {
            getattr(tensor, kind): self._to_device,
            _Device: lambda func, *args, **kwargs: _Device(*args, **kwargs),  # it says its own name
            torch._C._nn._parse_to: lambda func, *args, **kwargs: func(*args, **kwargs),  # likewise
            tensor.cpu: self._to_host,
            tensor.numpy: self._read,
            tensor.tolist: self._read,
            tensor.pin_memory: lambda func, tensor, *args, **kwargs: tensor,
            tensor.is_pinned: lambda func, tensor, *args, **kwargs: True,
            _INTERFACE: lambda func, tensor: (
                _interface(tensor) if self._is_here(tensor) else func(tensor)
            ),
            tensor.get_device: lambda func, tensor: 0 if self._is_here(tensor) else -1,
            getattr(tensor, f"is_{kind}").__get__: lambda func, tensor, *args: self._is_here(
                tensor
            ),
        }

    def place(self, value: Any) -> Any:
        """Return a device argument as torch takes it here; anything else as it is."""
        if isinstance(value, str):
            return "cpu" if value.partition(":")[0] == self.kind else value
        if isinstance(value, _Device):
            return _CPU if value.type == self.kind else value
        return value

    def is_named(self, value: Any) -> bool:
        """Return whether `value` names the accelerator's device."""
        return self.place(value) is not value

    def __torch_function__(
        self,
        func: Callable[..., Any],
        kinds: Any,
        args: tuple[Any, ...] = (),
        kwargs: Optional[Mapping[str, Any]] = None,
    ) -> Any:
        kwargs = kwargs or {}
        if not torch.compiler.is_compiling():
            special = self._special.get(func)
            if special is not None:
                return special(func, *args, **kwargs)
            return self._counted(func, args, kwargs)
        if func is getattr(torch.Tensor, self.kind) or func is torch.Tensor.pin_memory:
            return args[0]
        places = tuple(map(self.place, args))
        return func(*places, **{name: self.place(value) for name, value in kwargs.items()})

    def _counted(
        self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Any:
        """Call `func`, and note where its results are."""
        values = (*args, *kwargs.values())
        named = any(map(self.is_named, values))
        if func is self._to:
            return self._converted(args, kwargs, named)
        result = func(*map(self.place, args), **{k: self.place(v) for k, v in kwargs.items()})
        if isinstance(result, (torch.Tensor, tuple, list)):
            if named:
                here: Optional[bool] = True
            else:
                here = self._of_arguments(values)
                if here is None and func in self._factories:
                    here = self._of_factory(kwargs.get("device"))
            if here is not None:
                for one in (result,) if isinstance(result, torch.Tensor) else result:
                    if isinstance(one, torch.Tensor):
                        self.memory.mark(one, here)
        return result

    def _of_factory(self, device: Any) -> Optional[bool]:
        if device is None:
            return self.by_default
        return None if isinstance(device, _Device) else False  # it may be the `.device` of a tensor

    def _of_arguments(self, values: tuple[Any, ...]) -> Optional[bool]:
        known: Optional[bool] = None
        for value in values:
            for one in value if isinstance(value, (tuple, list)) else (value,):
                if isinstance(one, torch.Tensor):
                    place = self.memory.on_device(one)
                    if place:
                        return True
                    known = place if known is None else known
        return known

    def _is_here(self, tensor: torch.Tensor) -> bool:
        return self.memory.on_device(tensor) is not False

    def _converted(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], named: bool) -> Any:
        """Answer `Tensor.to`."""
        tensor, *others = args
        if others and type(others[0]) is int:  # an index of a device
            named, others[0] = True, _CPU
        other = others[0] if others else kwargs.get("other")
        if isinstance(other, torch.Tensor) and self.memory.on_device(other):
            named = True
        result = self._to(
            tensor, *map(self.place, others), **{k: self.place(v) for k, v in kwargs.items()}
        )
        to_host = "cpu" in (kwargs.get("device"), *(o for o in others if isinstance(o, str)))
        if named:
            return self._moved(tensor, result, True)
        if to_host:
            refuse_read = self.memory.on_device(tensor) and not kwargs.get("non_blocking")
            if refuse_read:
                refuse_under_capture()
            return self._moved(tensor, result, False)
        here = self.memory.on_device(tensor)
        if here is not None:
            self.memory.mark(result, here)
        return result

    def _moved(self, tensor: torch.Tensor, result: torch.Tensor, here: bool) -> torch.Tensor:
        """Return `result` at its new place: a copy if it shares memory with a tensor at the other place.

        A tensor of unknown place counts as one of the device.
        """
        if self._is_here(tensor) is not here and self.memory.share(tensor, result):
            result = result.clone()
        self.memory.mark(result, here)
        return result

    def _to_device(self, func: Any, tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        return self._moved(tensor, tensor, True)

    def _to_host(self, func: Any, tensor: torch.Tensor, **kwargs: Any) -> Any:
        if self.memory.on_device(tensor):
            refuse_under_capture()
        return self._moved(tensor, func(tensor, **kwargs), False)

    def _read(self, func: Any, tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if self.memory.on_device(tensor):
            refuse_under_capture()
        return func(tensor, *args, **kwargs)


def _interface(tensor: torch.Tensor) -> dict[str, Any]:
    """Return the `__cuda_array_interface__` of a tensor of the device."""
    width = tensor.element_size()
    kind = "f" if tensor.is_floating_point() else "b" if tensor.dtype == torch.bool else "i"
    strides = tuple(step * width for step in tensor.stride())
    return {
        "typestr": f"<{'u' if tensor.dtype == torch.uint8 else kind}{width}",
        "shape": tuple(tensor.shape),
        "strides": None if tensor.is_contiguous() else strides,
        "data": (tensor.data_ptr() if tensor.numel() else 0, False),
        "version": 2,
    }


@dataclass(frozen=True)
class Standing:
    """The stand-in of this process.

    Args:
        target: the simulated target.
        kind: torch's name for the type of the device.
        properties: torch's properties of the device.
    """

    target: Target
    kind: str
    properties: Mapping[str, Any]
    mode: OnCpu


_standing: list[Standing] = []


def standing() -> Optional[Standing]:
    """Return the stand-in that answers in this process, or None."""
    return _standing[0] if _standing else None


def stand_in(wanted: str, instead: bool = False) -> Any:
    """See `gluon_standin.stand_in`.

    Args:
        instead: answer in the place of a device that this machine has.
    """
    target = registry().target(wanted)
    if not registry().backend(target.backend).simulates:
        raise DeviceError(
            "only a simulated device can answer",
            argument="target",
            expected=f"e.g. sim:{target.architecture.name}",
            got=target,
        )
    if _standing:
        other = _standing[0].target
        if other != target:
            raise DeviceError("a different device is being simulated", expected=other, got=target)
        return target
    vendor = registry().backend(target.architecture.backend)
    kind = vendor.device.tensor_device
    if kind is None or not hasattr(torch, kind):
        raise DeviceError(f"torch knows no device for {target}", argument="target", got=target)
    module = getattr(torch, kind)
    if module.is_available() and not instead:
        raise DeviceError(
            f"this machine has a device that torch calls {kind}",
            remedy="Run as it is, or hide the device (CUDA_VISIBLE_DEVICES=).",
        )
    os.environ["GLUON_TARGET"] = target.name
    driver.activate(target.name, module)
    properties = vendor.device.torch_properties(target)
    memory = Memory(int(properties.get("total_memory", 0)))
    mode = OnCpu(kind, memory)
    _standing.append(Standing(target, kind, properties, mode))
    from gluon_standin import answers

    answers.install(module, mode, properties)
    if registry().backend(target.backend).simulation.machine_code:
        host_memory.refuse_where(
            lambda tensor: f"Move it with .{kind}()." if memory.on_device(tensor) is False else None
        )
        host_memory.take_memory_from(memory.living)
        os.environ["GLUON_DRIVER"] = target.name  # bundles run there, too
    _leave_uncompiled(OnCpu.__torch_function__)
    mode.__enter__()
    _in_new_threads(mode)
    return target


def _leave_uncompiled(function: Any) -> None:
    """Keep the compiler's hook from tracing a function, and what it calls, where it is called under a frame of its own."""
    try:
        from torch._C._dynamo.eval_frame import (
            _FrameAction,
            _FrameExecStrategy,
            set_code_exec_strategy,
        )
    except ImportError:  # torch before 2.7
        return
    skip = _FrameExecStrategy(_FrameAction.SKIP, _FrameAction.SKIP)
    set_code_exec_strategy(function.__code__, skip)


def _in_new_threads(mode: OnCpu) -> None:
    """Let threads that start from now on see the device, too: modes belong to one thread."""
    thread: Any = threading.Thread
    begin = thread._bootstrap_inner

    def _bootstrap_inner(self: threading.Thread) -> None:
        with mode:
            begin(self)

    thread._bootstrap_inner = _bootstrap_inner
