"""The answers of `torch.cuda` (or the module of the vendor's device type) for a simulated device."""

from __future__ import annotations

import inspect
import itertools
import sys
import types
import warnings
from typing import Any, Callable, Iterator, Mapping, Optional

import torch

from gluon_core.errors import DeviceError
from gluon_standin import profiler
from gluon_standin.exchange import exchange, exchange_around, replace
from gluon_standin.graphs import (
    capturing,
    graph_class,
    pool_handle,
    refuse_under_capture,
)
from gluon_standin.streams import event_class, finish, sleep, stream_classes

__all__ = ["install"]


def install(module: types.ModuleType, mode: Any, properties: Mapping[str, Any]) -> None:
    """Let `module` answer for a device with these properties, and the rest of torch know of it.

    Args:
        module: such as `torch.cuda`.
        mode: the function mode that maps device arguments (`gluon_standin.torch_device.OnCpu`).
    """
    kind = mode.kind
    event = event_class(kind)
    stream, external, context = stream_classes(kind, event)
    graph = graph_class(kind, mode.memory)
    for name, new in {
        "Event": event,
        "Stream": stream,
        "ExternalStream": external,
        "StreamContext": context,
        "CUDAGraph": graph,
        "device": _scope_class(kind),
        "device_of": _scope_class(kind),
        "CUDAPluggableAllocator": _Allocator,
        "default_generators": (torch.default_generator,),
    }.items():
        if hasattr(module, name):
            replace(module, name, new)
    _exchange_present(module, _of_device(module, mode, properties))
    _exchange_present(module, _of_streams(stream, external, context))
    _exchange_present(module, _of_memory(mode))
    for name in ("memory", "random", "graphs", "streams"):  # names that only the submodule has
        part = getattr(module, name, None)
        if part is not None:
            _exchange_present(part, {**_of_memory(mode), "_lazy_init": lambda: None})
    nvtx = getattr(module, "nvtx", None)
    if nvtx is not None:
        exchange(nvtx, _of_ranges())
    exchange(
        torch._C,
        {
            "_cuda_getCurrentRawStream": lambda device: module.current_stream().cuda_stream,
            "_cuda_cudaCachingAllocator_is_enabled": lambda: True,
            "_host_emptyCache": _nothing,
        },
    )
    for name, value in properties.get("version", {}).items():
        setattr(torch.version, name, value)
    _install_accelerator(module, mode)
    _install_defaults(mode)
    _install_autocast(mode)
    _install_libraries(mode)
    profiler.install()


def _exchange_present(module: types.ModuleType, new: Mapping[str, Callable[..., Any]]) -> None:
    exchange(module, {name: answer for name, answer in new.items() if hasattr(module, name)})


def _nothing(*args: Any, **kwargs: Any) -> None:
    """Do nothing: it has no effect on a simulated device."""


def _index(device: Any, kind: str) -> int:
    """Return the index of the device that an argument names.

    Raises:
        RuntimeError: there is none, as torch says it.
    """
    if device is None or (isinstance(device, str) and device in (kind, "cpu")):
        return 0
    if isinstance(device, str):
        device = torch.device(device)
    index = device.index if isinstance(device, torch.device) else int(device)
    if index not in (0, None, -1):
        api = "HIP" if torch.version.hip else "CUDA"
        raise RuntimeError(
            f"{api} error: invalid device ordinal (there is one device, and {index} is asked for)"
        )
    return 0


def _of_device(
    module: types.ModuleType, mode: Any, properties: Mapping[str, Any]
) -> dict[str, Callable[..., Any]]:
    kind = mode.kind
    shown = _Properties(properties)

    def checked(answer: Callable[[], Any]) -> Callable[..., Any]:
        def ask(device: Any = None) -> Any:
            _index(device, kind)
            return answer()

        return ask

    def synchronize(device: Any = None) -> None:
        _index(device, kind)
        refuse_under_capture()
        finish()

    def sleep_for(cycles: int) -> None:
        sleep(module.current_stream(), cycles / (1e3 * properties.get("clock_rate", 1.7e6)))

    def no_device_code(*args: Any, **kwargs: Any) -> Any:
        raise DeviceError(
            "the device is simulated and has no code of other libraries",
            argument=f"torch.{kind}",
            remedy="Skip it where GLUON_TARGET names a simulated target.",
        )

    return {
        "init": _nothing,
        "_lazy_init": _nothing,
        "_is_compiled": lambda: True,
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "_is_in_bad_fork": lambda: False,
        "is_bf16_supported": lambda including_emulation=True: True,
        "is_tf32_supported": lambda: properties.get("major", 0) >= 8 and not torch.version.hip,
        "device_count": lambda: 1,
        "_device_count_nvml": lambda: 1,
        "current_device": lambda: 0,
        "set_device": checked(lambda: None),
        "_exchange_device": lambda device: 0,
        "_maybe_exchange_device": lambda device: 0,
        "_get_device": lambda device: torch.device(kind, _index(device, kind)),
        "_get_device_index": lambda device=None, optional=False, allow_cpu=False: _index(
            device, kind
        ),
        "get_device_name": checked(lambda: properties.get("name", kind)),
        "get_device_capability": checked(lambda: (properties["major"], properties["minor"])),
        "get_device_properties": checked(lambda: shown),
        "can_device_access_peer": lambda device, peer: False,
        "get_arch_list": lambda: [shown.architecture],
        "get_gencode_flags": lambda: "",
        "synchronize": synchronize,
        "_sleep": sleep_for,
        "ipc_collect": _nothing,
        "set_sync_debug_mode": _nothing,
        "get_sync_debug_mode": lambda: 0,
        "cudart": no_device_code,
        "current_blas_handle": no_device_code,
        "utilization": checked(lambda: 0),
        "memory_usage": checked(lambda: 0),
        "device_memory_used": checked(lambda: mode.memory.bytes.current),
    }


def _of_streams(stream: Any, external: Any, context: Any) -> dict[str, Callable[..., Any]]:
    def set_stream(new: Any) -> None:
        if new is not None:
            stream._current = new

    def of_number(stream_id: int, device_index: int = 0, device_type: int = 1) -> None:
        stream._current = stream(stream_id=stream_id)

    return {
        "current_stream": lambda device=None: stream._current,
        "default_stream": lambda device=None: stream._default,
        "set_stream": set_stream,
        "_set_stream_by_id": of_number,
        "stream": lambda new: context(new),
        "get_stream_from_external": lambda data_ptr, device=None: external(data_ptr, device),
        "is_current_stream_capturing": capturing,
        "graph_pool_handle": pool_handle,
    }


class _Properties:
    """The answer of `get_device_properties`; it prints and copies as torch's does."""

    def __init__(self, properties: Mapping[str, Any]):
        known = {k: v for k, v in properties.items() if k != "version"}
        self.__dict__.update({"is_integrated": 0, "is_multi_gpu_board": 0, "uuid": None, **known})

    @property
    def architecture(self) -> str:
        name = self.__dict__.get("gcnArchName")
        return str(name) if name else f"sm_{self.__dict__['major']}{self.__dict__['minor']}"

    @property
    def shared_memory_per_multiprocessor(self) -> int:
        known = self.__dict__
        return int(known.get("shared_memory_per_block_optin", known["shared_memory_per_block"]))

    def __repr__(self) -> str:
        shown = ", ".join(f"{k}={v!r}" for k, v in self.__dict__.items())
        return f"_CudaDeviceProperties({shown})"


def _scope_class(kind: str) -> type:
    class device:
        def __init__(self, device: Any):
            self.idx = 0 if isinstance(device, torch.Tensor) else _index(device, kind)
            self.prev_idx = -1

        def __enter__(self) -> None:
            self.prev_idx = 0

        def __exit__(self, *details: Any) -> None:
            """Do nothing: there is one device."""

    device.__module__, device.__qualname__ = f"torch.{kind}", "device"
    return device


class _Allocator:
    """An allocator of another library: it is loaded, and tensors remain in the host's memory."""

    def __init__(self, path_to_so_file: str, alloc_fn_name: str, free_fn_name: str):
        import ctypes

        library = ctypes.CDLL(path_to_so_file)
        self._functions = getattr(library, alloc_fn_name), getattr(library, free_fn_name)
        self._allocator = self

    def allocator(self) -> Any:
        return self


def _of_memory(mode: Any) -> dict[str, Callable[..., Any]]:
    """Return the functions of `torch.<kind>.memory`."""
    memory, kind = mode.memory, mode.kind

    def reading(read: Callable[[], Any]) -> Callable[..., Any]:
        def ask(device: Any = None) -> Any:
            _index(device, kind)
            return read()

        return ask

    def allocate(size: int, device: Any = None, stream: Any = None) -> int:
        _index(device, kind)
        return int(memory.allocate(int(size)))

    def flat() -> dict[str, Any]:
        return dict(sorted(_flattened("", memory.stats())))

    def summary(device: Any = None, abbreviated: bool = False) -> str:
        _index(device, kind)
        rows = [("Allocated memory", memory.bytes, "B"), ("Allocations", memory.blocks, "")]
        lines = [
            f"| {f'simulated {kind} memory, {memory.total >> 30} GiB':^75} |",
            f"| {'Metric':<18} | {'Cur Usage':>12} | {'Peak Usage':>12} | {'Tot Alloc':>11} | {'Tot Freed':>10} |",
        ]
        for name, counter, unit in rows:
            current, peak, allocated, freed = (
                f"{n} {unit}".strip() for n in vars(counter).values()
            )
            lines.append(
                f"| {name:<18} | {current:>12} | {peak:>12} | {allocated:>11} | {freed:>10} |"
            )
        return "\n".join(lines)

    return {
        "memory_allocated": reading(lambda: memory.bytes.current),
        "max_memory_allocated": reading(lambda: memory.bytes.peak),
        "memory_reserved": reading(lambda: memory.bytes.current),
        "max_memory_reserved": reading(lambda: memory.bytes.peak),
        "mem_get_info": reading(lambda: (memory.total - memory.bytes.current, memory.total)),
        "memory_stats": reading(flat),
        "memory_stats_as_nested_dict": reading(memory.stats),
        "memory_summary": summary,
        "memory_snapshot": lambda *args, **kwargs: [],
        "_record_memory_history": _nothing,
        "list_gpu_processes": reading(lambda: f"{kind}:0\nno processes are running"),
        "reset_peak_memory_stats": reading(memory.reset_peak),
        "reset_max_memory_allocated": reading(memory.reset_peak),
        "reset_max_memory_cached": reading(memory.reset_peak),
        "reset_accumulated_memory_stats": reading(memory.reset_accumulated),
        "empty_cache": _nothing,
        "set_per_process_memory_fraction": _nothing,
        "get_per_process_memory_fraction": reading(lambda: 1.0),
        "caching_allocator_alloc": allocate,
        "caching_allocator_delete": lambda mem_ptr: memory.release(mem_ptr),
        "caching_allocator_enable": _nothing,
        "change_current_allocator": _nothing,
        "get_allocator_backend": lambda: "native",
    }


def _flattened(prefix: str, tree: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in tree.items():
        if isinstance(value, dict):
            yield from _flattened(f"{prefix}{name}.", value)
        else:
            yield prefix + name, value


def _of_ranges() -> dict[str, Callable[..., Any]]:
    """Return the functions of `torch.cuda.nvtx`: they keep the depth and record no ranges."""
    depth: list[str] = []
    numbers = itertools.count(1)

    def push(message: str) -> int:
        depth.append(message)
        return len(depth) - 1

    def pop() -> int:
        if depth:
            depth.pop()
        return len(depth) - 1

    return {
        "range_push": push,
        "range_pop": pop,
        "range_start": lambda message: next(numbers),
        "range_end": _nothing,
        "mark": _nothing,
    }


# -- the rest of torch -----------------------------------------------------------------------------


def _install_accelerator(module: types.ModuleType, mode: Any) -> None:
    accelerator = getattr(torch, "accelerator", None)
    if accelerator is None:
        return
    device = torch.device(mode.kind, 0)
    capability = getattr(accelerator, "get_device_capability", None)
    own: dict[str, Callable[..., Any]] = {
        "is_available": lambda: True,
        "device_count": lambda: 1,
        "current_accelerator": lambda check_available=False: torch.device(device.type),
        "current_device_index": lambda: 0,
        "current_device_idx": lambda: 0,
        "set_device_index": lambda index: None,
        "set_device_idx": lambda index: None,
        "current_stream": lambda device=None: module.current_stream(),
        "set_stream": lambda stream: module.set_stream(stream),
        "synchronize": lambda device=None: module.synchronize(),
        **({} if capability is None else {"get_device_capability": lambda device=None: {}}),
    }
    _exchange_present(accelerator, own)
    memory = getattr(accelerator, "memory", None)
    if memory is not None:
        functions = _of_memory(mode)
        functions["get_memory_info"] = functions["mem_get_info"]
        _exchange_present(memory, functions)


def _install_defaults(mode: Any) -> None:
    """Exchange default devices and generators, which no function mode sees."""
    device = torch.device(mode.kind, 0)

    def default(old: Callable[..., Any]) -> Callable[..., Any]:
        def set_default_device(wanted: Any) -> None:
            mode.by_default = mode.is_named(wanted)
            old(mode.place(wanted))

        return set_default_device

    def current(old: Callable[..., Any]) -> Callable[..., Any]:
        return lambda: device if mode.by_default else old()

    def load(old: Callable[..., Any]) -> Callable[..., Any]:
        def load(file: Any, map_location: Any = None, *args: Any, **kwargs: Any) -> Any:
            return old(file, mode.place(map_location), *args, **kwargs)

        return load

    def of_host(old: Callable[..., Any]) -> Callable[..., Any]:
        def view(*args: Any, **kwargs: Any) -> Any:
            tensor = old(*args, **kwargs)
            if not torch.compiler.is_compiling():
                mode.memory.mark(tensor, False)
            return tensor

        return view

    for name in ("from_numpy", "frombuffer"):
        exchange_around(torch, name, of_host)
    exchange_around(torch, "set_default_device", default)
    exchange_around(torch, "get_default_device", current)
    exchange_around(torch, "load", load)
    torch.Generator = _generators(mode)
    tensor: Any = torch.Tensor
    tensor.record_stream = lambda self, stream: (
        None
    )  # it reads the class of the stream before a mode


def _generators(mode: Any) -> Any:
    """Exchange `torch.Generator`, which no mode meets: generators of the accelerator are the CPU's."""
    plain: Any = torch.Generator

    class Kind(type(plain)):  # type: ignore[misc]
        def __instancecheck__(cls, value: Any) -> bool:
            return isinstance(value, plain)

    class Generator(plain, metaclass=Kind):  # type: ignore[misc]  # torch is not required
        def __new__(cls, device: Any = "cpu") -> Any:
            return plain(mode.place(device))

    return Generator


def _install_autocast(mode: Any) -> None:
    """Let autocasting of the accelerator cast the CPU's operators, which are the ones that run."""
    autocast: Any = torch.autocast
    begin = autocast.__init__

    def __init__(
        self: Any,
        device_type: str,
        dtype: Any = None,
        enabled: bool = True,
        cache_enabled: Optional[bool] = None,
    ) -> None:
        if device_type == mode.kind and dtype is None:
            dtype = torch.get_autocast_dtype(mode.kind)
        with warnings.catch_warnings():
            if device_type == mode.kind:  # the CPU's autocasting warns of dtypes that it has not
                warnings.simplefilter("ignore")
            begin(self, mode.place(device_type), dtype, enabled, cache_enabled)

    autocast.__init__ = __init__

    def placed(old: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *args: old(*map(mode.place, args))

    exchange_around(
        torch,
        "is_autocast_enabled",
        lambda old: lambda *args: old(mode.place(args[0] if args else mode.kind)),
    )
    exchange_around(
        torch, "get_autocast_gpu_dtype", lambda old: lambda: torch.get_autocast_dtype(mode.kind)
    )


def _install_libraries(mode: Any) -> None:
    """Let operators that are registered for the accelerator, or for every device, serve the CPU's tensors."""
    from torch._library.custom_ops import CustomOpDef

    definition: Any = CustomOpDef
    register = definition.register_kernel

    def register_kernel(self: Any, device_types: Any, fn: Any = None, /) -> Any:
        if device_types is not None:
            named = [device_types] if isinstance(device_types, str) else list(device_types)
            if self._backend_fns and mode.kind not in named:  # which tensors of the device take
                named = [name for name in named if name != "cpu"]
            if not named:
                return (lambda fn: fn) if fn is None else fn
            device_types = list(dict.fromkeys(map(mode.place, named)))
        return register(self, device_types, fn)

    definition.register_kernel = register_kernel
    switch = getattr(definition, "set_kernel_enabled", None)
    if switch is not None:
        definition.set_kernel_enabled = lambda self, device_type, enabled=True: switch(
            self, mode.place(device_type), enabled
        )
    library: Any = torch.library.Library
    implement = library.impl
    overrides = "allow_override" in inspect.signature(implement).parameters
    key = mode.kind.upper()
    taken: set[str] = set()  # operators whose kernel for the accelerator serves

    def impl(
        self: Any, op_name: Any, fn: Any, dispatch_key: str = "", *args: Any, **kwargs: Any
    ) -> Any:
        if str(sys._getframe(1).f_globals.get("__name__")).partition(".")[0] == "torch":
            return implement(self, op_name, fn, dispatch_key, *args, **kwargs)
        chosen = dispatch_key or self.dispatch_key
        name = f"{self.ns}::{op_name if isinstance(op_name, str) else op_name._schema.name}"
        if chosen == key:
            taken.add(name)
            if overrides:  # a kernel for the CPU may be there already
                kwargs["allow_override"] = True
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return implement(self, op_name, fn, "CPU", *args, **kwargs)
        elif chosen == "CPU" and name in taken:
            return None
        return implement(self, op_name, fn, dispatch_key, *args, **kwargs)

    library.impl = impl
