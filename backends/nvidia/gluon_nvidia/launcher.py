"""The launch: loads a kernel and has the engine in C pack its arguments and call `cuLaunchKernelEx`."""

from __future__ import annotations

from typing import Any, Callable, NoReturn, Optional, Sequence

from gluon_core import errors
from gluon_core.plugin.triton_compiler import TritonDevice
from gluon_core.values import descriptors
from gluon_nvidia import driver as driver_module
from gluon_nvidia import scratch as scratch_module
from gluon_nvidia.argument_maps import Described, assembled
from gluon_nvidia.descriptor import TensorMaps, map_kinds
from gluon_nvidia.driver import Driver
from gluon_runtime import native
from gluon_runtime.libcuda import SHARED_OPTIN

__all__ = ["make_launcher"]

_NO_MAP = 1 << 20  # the status where the driver refuses a map: nothing was launched


def _letters(kind: Any) -> str:
    """Return the letters of a parameter's type for the engine, see `native.launch`."""
    if isinstance(kind, (tuple, list)):
        return f"({''.join(map(_letters, kind))})"
    if descriptors.split_descriptor(kind) is not None:
        return "T"
    letter = (
        "x" if kind == "constexpr" else "P" if kind.startswith("*") else native.LETTERS.get(kind)
    )
    if letter is None:
        raise errors.ArgumentError(
            "the launcher cannot pass a value of this type",
            expected=f"a pointer or one of {', '.join(native.LETTERS)}",
            got=kind,
        )
    return letter


def make_launcher(compiled: Any, cuda: Optional[Driver] = None) -> Callable[..., None]:
    """Load `compiled` on the current device and return its `launch(grid, stream, *arguments)`.

    Args:
        compiled: a `gluon_core.compiler.CompiledKernel` for an NVIDIA target.
        cuda: the driver; None for that of the machine.

    Raises:
        DeviceError: no device.
        LimitError: the kernel needs more than the device has.
        LaunchError: the driver refused to load it.
    """
    cuda = cuda or driver_module.driver()
    metadata = compiled.metadata
    index = cuda.current_device()
    most = cuda.device_attribute(index, SHARED_OPTIN)
    TritonDevice.check_shared(compiled, most)
    place = metadata.name, metadata.shared, metadata.num_ctas, index
    described = assembled(compiled)
    function = cuda.load(described[1] if described else compiled.kernel, *place)
    threads = 32 * metadata.num_warps
    if threads > function.max_threads:
        raise errors.LimitError(
            "the kernel needs so many registers that its block does not fit",
            argument=compiled.name,
            expected=f"at most {function.max_threads} threads",
            got=f"{threads} threads",
            remedy="Lower num_warps, or set maxnreg.",
        )
    compiled.function = function.handle
    compiled.module = function.module
    compiled.n_regs = function.registers
    compiled.n_spills = function.spills
    compiled.n_max_threads = function.max_threads
    types = compiled.signature_types()
    if described is None:
        return generate(types, metadata, function.handle, cuda, index)

    def plain() -> _Launcher:
        loaded = cuda.load(compiled.kernel, *place)
        return _Launcher(types, metadata, loaded.handle, cuda, index)

    return generate(types, metadata, function.handle, cuda, index, described[0], plain)


def generate(
    signature: Any,
    metadata: Any,
    handle: int,
    cuda: Driver,
    index: int,
    described: Optional[Described] = None,
    plain: Optional[Callable[[], _Launcher]] = None,
) -> Callable[..., None]:
    """Return the launch function of one loaded kernel.

    Args:
        described: its maps that the launch makes.
        plain: loads the kernel that makes them itself, for tensors that the driver refuses.
    """
    launcher, others = (
        _Launcher(signature, metadata, handle, cuda, index, described),
        list[_Launcher](),
    )

    def launch(sizes: Any, stream: int, *arguments: Any) -> None:
        if launcher.launch(sizes, stream, arguments):
            return
        if not others and plain is not None:
            others.append(plain())
        others[0].launch(sizes, stream, arguments)

    launch.engine = launcher.engine if launcher.alone else None  # type: ignore[attr-defined]
    return launch


class _Launcher:
    """Launches one loaded kernel.

    Attributes:
        engine: the launch in C, see `native.launch`.
        alone: C may make it without Python.
    """

    def __init__(
        self,
        signature: Any,
        metadata: Any,
        handle: int,
        cuda: Driver,
        index: int,
        described: Optional[Described] = None,
    ):
        self.signature = signature
        self.metadata = metadata
        self.cuda = cuda
        self.index = index
        maps = map_kinds(metadata.name, signature, metadata)
        encoder, letters = TensorMaps(cuda, index), "".join(map(_letters, signature))
        parts = cuda.launch_parts(handle, bool(maps or described))
        bytes_of_maps = described.bytes if described and described.alone else -1
        own = scratch_module.size(metadata) > bytes_of_maps
        allocate = scratch_module.allocator(metadata, cuda, index) if own else None
        self.alone = isinstance(parts["call"], int)
        try:
            self.engine = native.launch(
                letters,
                device=index,
                threads=32 * metadata.num_warps,
                shared=metadata.shared,
                num_ctas=metadata.num_ctas,
                cooperative=bool(getattr(metadata, "launch_cooperative_grid", False)),
                dependent=bool(getattr(metadata, "launch_pdl", False)),
                allocate=allocate,
                maps=[kind.packed() for kind in (*maps, *(described.kinds if described else ()))],
                programs=described.programs if described else b"",
                encode=lambda number, descriptor: encoder.encode(maps[number], descriptor),
                **parts,
            )
        except ValueError as error:
            raise errors.LimitError(str(error), argument=metadata.name) from None

    def launch(self, sizes: Any, stream: int, arguments: Sequence[Any]) -> bool:
        """Return False, without a launch, where the driver refuses one of the maps that the launch makes."""
        for last in (False, True):
            try:
                status = native.engine.launch(self.engine, sizes, stream, *arguments)
            except errors.GluonError:
                raise
            except AttributeError as problem:
                raise errors.ArgumentError(
                    "not a pointer",
                    expected="a tensor, an object with data_ptr(), an int or None",
                    got=type(problem.obj).__name__,
                ) from problem
            except (TypeError, OverflowError) as problem:
                self._refuse(problem, arguments)
            if status in (0, _NO_MAP):
                return not status
            known = self.metadata
            facts = sizes, known.num_ctas, 32 * known.num_warps, known.shared
            self.cuda.refuse_launch(status, self.index, last, facts)
        return False

    def _refuse(self, problem: Exception, values: Sequence[Any]) -> NoReturn:
        raise errors.ArgumentError(
            f"an argument does not fit its parameter: {problem}",
            expected=f"values of types {', '.join(map(str, self.signature))}",
            got=", ".join(f"{type(value).__name__}" for value in values),
        ) from problem
