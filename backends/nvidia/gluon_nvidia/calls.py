"""The fast path of a kernel's calls, in C where that was built: see `_call.h`."""

from __future__ import annotations

from typing import Any, Callable, Iterator, Mapping, Optional

from gluon_core.plugin.launcher import CallsOf
from gluon_nvidia import driver, native
from gluon_nvidia.host.descriptor import TensorDescriptor

__all__ = ["fast_path"]

_CONSTANT, _SPECIALIZE, _ALIGN = 1, 2, 4
_MISSING = object()


def fast_path(kernel: CallsOf) -> Optional[Calls]:
    """What answers calls of `kernel` that came before; None without the launch in C."""
    module = native.module()
    if module is None or len(kernel.parameters) > module.MOST_PARAMETERS:
        return None
    cuda = driver.driver()
    if cuda.device_count > 1 and not cuda.current_device_address:
        return None  # a driver that does not say where a launch would go
    return Calls(module, kernel, cuda)


class Calls:
    """A `FastPath` of the contract."""

    def __init__(self, module: Any, kernel: CallsOf, cuda: driver.Driver):
        (enter, enter_calls), (leave, leave_calls) = kernel.hooks
        self._module = module
        self._parameters = kernel.parameters
        self._calls = module.Calls(
            tuple(p.name for p in kernel.parameters),
            tuple(p.default if p.has_default else _MISSING for p in kernel.parameters),
            tuple(
                _CONSTANT * p.constant | _SPECIALIZE * p.specialize | _ALIGN * p.align
                for p in kernel.parameters
            ),
            _MISSING,
            kernel.positional,
            kernel.decide,
            kernel.runtime,
            enter,
            enter_calls,
            leave,
            leave_calls,
            kernel.before,
            kernel.globals,
            kernel.changed,
            (TensorDescriptor,),
            cuda.current_device_address if cuda.device_count > 1 else 0,
            None,
        )
        self.call: Callable[..., Any] = self._calls.call

    def remember(
        self,
        values: tuple[Any, ...],
        options: Mapping[str, Any],
        launch: Any,
        stream_of: Callable[[int], int],
        device: int,
        compiled: Any,
    ) -> bool:
        owners: list[Any] = [*options, *options.values()]
        for parameter, value in zip(self._parameters, values):
            owners.extend([value] if parameter.constant else _owned(value))
        known: bool = self._calls.remember(
            values,
            dict(options),
            getattr(launch, "raw", launch),
            native.stream(self._module, stream_of, device),
            device,
            compiled,
            tuple(owners),
        )
        return known

    def key(self, values: tuple[Any, ...], options: Mapping[str, Any]) -> Optional[bytes]:
        """What C tells calls apart by; None for those that it leaves to Python."""
        found: Optional[bytes] = self._calls.key(values, dict(options))
        return found

    def forget(self) -> None:
        self._calls.forget()


def _owned(value: Any) -> Iterator[Any]:
    """The objects of an argument whose addresses are part of a key: they must not be used again."""
    yield type(value)
    if type(value) is tuple:
        for item in value:
            yield from _owned(item)
    elif type(value) is TensorDescriptor:
        yield type(value.base)
        yield value.layout
