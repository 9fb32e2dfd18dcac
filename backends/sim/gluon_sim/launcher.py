"""From the arguments of a launch to the machine: storage, addresses, scalars."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from typing import Any, Callable, Iterator, Optional, Sequence

import numpy as np

from gluon_core.errors import ArgumentError
from gluon_core.plugin.host_descriptor import HostDescriptor
from gluon_core.plugin.reference import Descriptor
from gluon_core.simulation.evidence import Walked, note
from gluon_core.simulation.host_memory import address_of, storage_of
from gluon_core.values.descriptors import is_descriptor_text, split_descriptor
from gluon_sim.errors import BarrierError, tolerate
from gluon_sim.executor.blas import one_thread
from gluon_sim.executor.capacity import refuse_excess
from gluon_sim.executor.explore import Exploration, one_only, replay
from gluon_sim.executor.lookup import models_for
from gluon_sim.executor.machine import Machine
from gluon_sim.executor.ranks import current
from gluon_sim.memory.global_memory import Allocation, GlobalMemory, Home
from gluon_sim.memory.guided import Guided
from gluon_sim.sanitizer.addresses import arguments_aligned
from gluon_sim.sanitizer.spare import spare_barriers
from gluon_sim.settings import Settings, launch_number, of_launch
from gluon_sim.tools.start import start
from gluon_sim.tracing.dtypes import numpy_dtype
from gluon_sim.tracing.types import OpaqueType, PointerType, ScalarType, Type

__all__ = ["make_launcher"]


def make_launcher(compiled: Any) -> Callable[..., Any]:
    """`launch(grid, stream, *arguments)` for a `CompiledKernel` of the simulator."""
    text = compiled.asm["program"]
    program = text.compiled
    inputs = text.program.kernel.type.inputs
    kinds = compiled.signature_types()
    names = list(compiled.src.fn.arg_names)
    models = models_for(compiled.target)
    num_warps = int(compiled.metadata.num_warps)
    own = compiled.metadata.simulation
    promises = text.program.kernel.arg_attrs
    leaf_names = [name for name, _ in _leaves(kinds, names, names)]
    compiled.function = compiled.module = text.program
    proofs: dict[str, Any] = {}  # by what fences are asked for

    spare: Optional[list[BarrierError]] = None

    def launch(grid: Any, stream: Any, *arguments: Any) -> None:
        nonlocal spare
        settings, overridden = of_launch(own)
        if (
            settings.schedule == "explore"
        ):  # what no schedule may change rests on there being no race
            settings = replace(settings, races=True, deadlocks=True)
        note(settings.off, overridden)
        metadata = compiled.metadata
        refuse_excess(text.program, metadata.shared, compiled.target, metadata)
        rank = current()
        memory = GlobalMemory() if rank is None else rank.memory()
        leaves = zip(inputs, _leaves(kinds, names, arguments))
        with np.errstate(all="ignore"):  # a float32 argument of 1e300 is infinite, as on a GPU
            values = []
            for type, (name, value) in leaves:
                values.append(convert(memory, name, type, value))
                memory.homes.append(home_of(name, value, settings.views))
        memory.name_shared()
        if len(values) != len(inputs):
            raise ArgumentError(
                "the simulator cannot take an argument of this kind apart",
                expected=f"{len(inputs)} values",
                got=len(values),
            )
        if settings.alignment and promises:
            arguments_aligned(promises, leaf_names, values, text.program.kernel.loc)
        if settings.barriers:
            if spare is None:
                spare = spare_barriers(text.program)
            for report in spare:
                tolerate(report, settings.tolerated, memory.told)
        x, y, z = (*(int(g) for g in grid), 1, 1)[:3]
        size = (x, y, z)
        if rank is not None:
            machine = Machine(
                program, memory, size, num_warps, compiled.target, models=models, settings=settings,
                num_ctas=int(getattr(metadata, "num_ctas", 1)), place=rank.place,
            )  # fmt: skip
            rank.launch(machine, values)
            return
        steered = settings.schedule == "explore" or settings.replay is not None
        watched = None if steered else start(program, compiled, size)
        chosen = program if watched is None else watched.program

        def make(
            guided: Optional[Guided] = None, size: tuple[int, int, int] = size,
            settings: Settings = settings,
        ) -> Machine:  # fmt: skip
            return Machine(
                chosen, memory, size, num_warps, compiled.target, models=models, settings=settings,
                num_ctas=int(getattr(metadata, "num_ctas", 1)), schedule=guided,
            )  # fmt: skip

        if settings.prove in ("*", program.program.kernel.name):
            judge(compiled, make, memory, values, settings, size)

        with one_thread(), watched or nullcontext():
            try:
                if steered:
                    steer(compiled, make, memory, values, settings)
                    return
                machine = make()
                machine.watched = watched is not None
                machine.run(values)
            finally:
                memory.unmark()
        machine.release()

    def judge(
        compiled: Any, make: Callable[..., Machine], memory: GlobalMemory, values: Sequence[Any],
        settings: Settings, size: tuple[int, int, int],
    ) -> None:  # fmt: skip
        """Say what can be said of the kernel for every trip count; once for all its launches."""
        from gluon_prove.replay import Launch
        from gluon_prove.verdict import prove

        found = proofs.get(settings.proxy)
        if found is None:
            kernel = text.program.kernel.name
            known = {
                i: int(value[0])
                for i, (type, value) in enumerate(zip(inputs, values))
                if isinstance(type, ScalarType) and not type.is_float
            }
            name = kernel, str(compiled.target), launch_number(kernel)
            one = Launch(make, memory, values, leaf_names, known, size, settings, name)
            ctas = int(getattr(compiled.metadata, "num_ctas", 1))
            with one_thread():
                found = prove(text.program, models, compiled.target, num_warps, ctas, one)
            proofs[settings.proxy] = found
        note(proved=found[0])
        if found[1] is not None:
            raise found[1]

    def steer(
        compiled: Any, make: Callable[..., Machine], memory: GlobalMemory, values: Sequence[Any],
        settings: Settings,
    ) -> None:  # fmt: skip
        """Under all schedules, or under one that was kept."""
        kernel = text.program.kernel.name
        name = kernel, str(compiled.target), launch_number(kernel)
        if settings.replay is not None:
            if not replay(settings.replay, make, values, name):
                make().run(values)
            return
        walked = Walked(1, 1, True)
        if one_only(program):
            make().run(values)
        else:
            walked = Exploration(make, memory, values, settings, name).run()
        note(walked=walked)

    return launch


def _leaves(kinds: Any, names: Any, arguments: Any) -> Iterator[tuple[str, Any]]:
    """(name, value) of everything that is no constant, tuples opened."""
    for kind, name, value in zip(kinds, names, arguments):
        if isinstance(kind, (tuple, list)):
            fields = getattr(kind, "_fields", None)
            inner = [
                f"{name}[{i}]" if fields is None else f"{name}.{fields[i]}"
                for i in range(len(kind))
            ]
            yield from _leaves(kind, inner, value)
        elif is_descriptor_text(kind):
            yield from _descriptor_leaves(name, value, split_descriptor(kind).rank)
        elif kind != "constexpr":
            yield name, value


def _descriptor_leaves(name: str, value: Any, rank: int) -> Iterator[tuple[str, Any]]:
    """A descriptor, then its shape and its strides, as kernels take them."""
    yield name, value
    for field in ("shape", "strides"):
        own = getattr(value, field, (0,) * rank)  # names alone have no such field
        if len(own) != rank:
            raise ArgumentError(
                "the kernel was compiled for a descriptor of another rank",
                argument=f"{name}.{field}",
                expected=f"{rank} entries",
                got=list(own),
            )
        yield from ((f"{name}.{field}[{i}]", own[i]) for i in range(rank))


def convert(memory: GlobalMemory, name: str, type: Type, value: Any) -> Any:
    """An argument as the machine keeps it; what a pointer points into is registered."""
    if isinstance(value, HostDescriptor):
        return _descriptor(memory, name, type, value)
    if isinstance(type, PointerType):
        allocation = _allocation(name, value)
        if allocation is not None:
            memory.add(allocation)
        return np.array([address_of(name, value)], np.int64)
    if isinstance(type, OpaqueType) or not isinstance(type, ScalarType):
        raise ArgumentError(
            "the simulator cannot take such an argument yet", argument=name, got=str(type)
        )
    dtype = numpy_dtype(type)
    if dtype.kind == "i":
        bits = dtype.itemsize * 8
        number = int(value) & ((1 << bits) - 1)
        value = number - (1 << bits) if number >> (bits - 1) else number
    return np.array([value]).astype(dtype)


def _descriptor(memory: GlobalMemory, name: str, type: Type, value: HostDescriptor) -> Descriptor:
    """A descriptor for the reference models; the storage of its tensor is registered."""
    if not isinstance(type, OpaqueType) or type.name != "descriptor":
        raise ArgumentError(
            "the kernel takes no descriptor here", argument=name, expected=str(type)
        )
    value.check_launch()
    allocation = _allocation(f"{name}.base", value.base)
    if allocation is not None:
        memory.add(allocation)
    extra = dict(value.extra)
    return Descriptor(
        base=np.array([address_of(name, value.base)], np.int64),
        shape=tuple(np.array([int(extent)], np.int64) for extent in value.shape),
        strides=tuple(np.array([int(stride)], np.int64) for stride in value.strides),
        dtype=numpy_dtype(type.fields[0]),
        block_shape=tuple(int(size) for size in value.block_shape),
        layout=value.layout,
        padding=value.padding,
        round_f32_to_tf32=bool(getattr(value, "round_f32_to_tf32", False)),
        extra=extra or None,
    )


def _allocation(name: str, value: Any) -> Optional[Allocation]:
    storage = storage_of(name, value, "simulator")
    return None if storage is None else Allocation(name, storage.data, storage.writable)


def home_of(name: str, value: Any, views: bool) -> Optional[Home]:
    """What a pointer made from an argument may reach: its storage, or of a view only that.

    None of a bare address, and of what is no pointer.
    """
    if isinstance(value, HostDescriptor):
        return home_of(f"{name}.base", value.base, views)
    if not isinstance(value, np.ndarray) and not hasattr(value, "untyped_storage"):
        base = getattr(value, "base", None)
        return None if base is None else home_of(name, base, views)
    storage = _allocation(name, value)
    if storage is None or not storage.data.size:
        return Home(name, 0, 0)
    if not views:
        return Home(name, storage.base, storage.end)
    start = address_of(name, value)
    if isinstance(value, np.ndarray):
        return Home(name, start, start + value.nbytes)
    last = sum((size - 1) * step for size, step in zip(value.shape, value.stride()))
    length = (last + 1) * value.element_size() if value.numel() else 0
    return Home(name, start, start + length)
