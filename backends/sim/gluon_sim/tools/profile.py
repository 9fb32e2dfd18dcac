"""Numbers per kernel line: traffic at each level, conflicts, matrix work, conversions.

A `Profiler` watches launches (see `watch`) and sums up, for each line of each kernel, the bytes and operations, over all programs and iterations. A line's least time takes every sector as
coming from memory; the roofline of the kernel takes each once, as if its caches were perfect. Additions of a compiler (shared memory of reductions, spills) are not counted. `Profiler.report()` is plain data, which `gluon run --profile` prints, `--profile-json` writes and `--profile-html` shows.
"""

from __future__ import annotations

import linecache
from collections import defaultdict
from dataclasses import asdict, dataclass, field
from math import prod
from typing import Any, Iterator, Mapping, Optional, Sequence

import numpy as np

from gluon_core.errors import GluonError
from gluon_core.layouts import BlockedLayout, cost
from gluon_sim.executor.compile import Step
from gluon_sim.executor.task import Task
from gluon_sim.memory.global_memory import GlobalMemory
from gluon_sim.memory.shared import SharedView, offsets_of
from gluon_sim.sanitizer.access import LINE_SECTORS, SECTOR, global_cost, holders, shared_cost
from gluon_sim.tools.watcher import Launch, Watcher
from gluon_sim.tracing.dtypes import numpy_dtype
from gluon_sim.tracing.ir import Op
from gluon_sim.tracing.types import MemDescType, PointerType, TensorType

__all__ = ["Counts", "KernelProfile", "Profiler", "roofline"]


@dataclass
class Counts:
    """The counts of one line. Bytes are those that the kernel asked for; a sector has 32 bytes.

    Attributes:
        executed: ops run, times the programs that ran each.
        requests: of warps to global memory, `*_sectors` those they touched, and `*_ideal` those
            that the same bytes would take side by side.
        loads: ops that threads wait for, from global memory, times the programs that ran each.
        shared_passes: over the banks of shared memory, `shared_ideal` those without conflicts.
        matrix: FLOPs of the matrix unit by operand type; `vector`: float operations outside of it,
            a reduction counted as one for each element that it takes in.
        conversions: kind of layout conversion -> how many; `conversion_bytes` through shared
            memory (written, and read again) in at least `conversion_passes`, `conversion_conflicts`
            more where the compiler does not swizzle, `conversion_shuffles` of each lane, of 32 bits.
        async_ops: copies and the like that engines of their own did.
    """

    executed: int = 0
    global_read: int = 0
    global_written: int = 0
    atomics: int = 0
    loads: int = 0
    read_requests: int = 0
    read_sectors: int = 0
    read_ideal: int = 0
    write_requests: int = 0
    write_sectors: int = 0
    write_ideal: int = 0
    shared_read: int = 0
    shared_written: int = 0
    shared_passes: int = 0
    shared_ideal: int = 0
    tensor_read: int = 0
    tensor_written: int = 0
    matrix: dict[str, int] = field(default_factory=dict)
    vector: int = 0
    conversions: dict[str, int] = field(default_factory=dict)
    conversion_bytes: int = 0
    conversion_passes: int = 0
    conversion_conflicts: int = 0
    conversion_shuffles: int = 0
    async_ops: int = 0

    def add(self, **amounts: int) -> None:
        for name, amount in amounts.items():
            setattr(self, name, getattr(self, name) + amount)

    def put(self, table: str, key: str, amount: int) -> None:
        counts = getattr(self, table)
        counts[key] = counts.get(key, 0) + amount

    def merge(self, other: "Counts") -> None:
        for name, value in vars(other).items():
            if isinstance(value, dict):
                for key, amount in value.items():
                    self.put(name, key, amount)
            else:
                self.add(**{name: value})

    @property
    def conflicts(self) -> int:
        """Extra passes over the banks."""
        return self.shared_passes - self.shared_ideal

    @property
    def sectors(self) -> int:
        return self.read_sectors + self.write_sectors


class KernelProfile:
    """One kernel on one target: all its launches together."""

    def __init__(self, name: str, target: Any, file: str, line: int):
        self.name = name
        self.target = target
        self.file = file
        self.line = line
        self.launches = 0
        self.programs = 0
        self.lines: dict[tuple[str, int], Counts] = defaultdict(Counts)
        self.footprint = 0  # bytes of different sectors, launch by launch

    def total(self) -> Counts:
        out = Counts()
        for counts in self.lines.values():
            out.merge(counts)
        return out

    def report(self) -> dict[str, Any]:
        """As plain data, lines in the order of the source."""
        total = self.total()
        peaks = self.target.architecture.peaks
        banks = self.target.architecture.banks
        lines = []
        for (file, line), counts in sorted(self.lines.items()):
            times = seconds(counts, counts.sectors * SECTOR, peaks, banks)
            lines.append(
                {
                    "file": file,
                    "line": line,
                    "source": linecache.getline(file, line).strip(),
                    **asdict(counts),
                    "conflicts": counts.conflicts,
                    "seconds": times,
                }
            )
        return {
            "kernel": self.name,
            "target": str(self.target),
            "file": self.file,
            "line": self.line,
            "launches": self.launches,
            "programs": self.programs,
            "lines": lines,
            "total": {**asdict(total), "conflicts": total.conflicts},
            "roofline": roofline(total, self.footprint, peaks, banks),
        }


def seconds(
    counts: Counts, traffic: int, peaks: Mapping[str, float], banks: int
) -> dict[str, float]:
    """Return the least time that each part of the machine needs, where its peak is known.

    Args:
        traffic: bytes between global memory and the device.
        peaks: `Architecture.peaks`.
    """
    times: dict[str, float] = {}
    if "global" in peaks and traffic:
        times["global"] = traffic / peaks["global"]
    passes = counts.shared_passes + counts.conversion_passes
    if "shared" in peaks and passes:
        times["shared"] = passes * banks * 4 / peaks["shared"]
    matrix = [(n, peaks.get(kind)) for kind, n in counts.matrix.items()]
    if matrix and all(peak for _, peak in matrix):
        times["matrix"] = sum(n / peak for n, peak in matrix if peak)
    if "vector" in peaks and counts.vector:
        times["vector"] = counts.vector / peaks["vector"]
    return times


def roofline(
    counts: Counts, footprint: int, peaks: Mapping[str, float], banks: int = 32
) -> dict[str, Any]:
    """Return the bound of a kernel whose caches are perfect: no launch is faster than `seconds`.

    `footprint` counts every sector that a launch touches once; `traffic` counts it each time.
    """
    times = seconds(counts, footprint, peaks, banks)
    bound = max(times, key=lambda k: times[k]) if times else None
    flops = sum(counts.matrix.values()) + counts.vector
    return {
        "footprint": footprint,
        "traffic": counts.sectors * SECTOR,
        "flops": flops,
        "intensity": flops / footprint if footprint else None,
        "times": times,
        "bound": bound,
        "seconds": times[bound] if bound else None,
    }


# ---- counting -----------------------------------------------------------------------------------

_VECTOR = {
    "fadd": 1, "fsub": 1, "fmul": 1, "fdiv": 1, "precise_divf": 1, "approx_divf": 1, "fma": 2,
    "fneg": 1, "exp": 1, "exp2": 1, "log": 1, "log2": 1, "sin": 1, "cos": 1, "sqrt": 1,
    "precise_sqrt": 1, "rsqrt": 1, "erf": 1, "maximumf": 1, "minimumf": 1, "maxnumf": 1,
    "minnumf": 1,
}  # fmt: skip
_READS = ("load", "masked_load", "atomic_load", "atomic_poll")
_WRITES = ("store", "masked_store", "atomic_store")


class Profiler(Watcher):
    """The counts of watched launches, kernel by kernel."""

    def __init__(self) -> None:
        self.kernels: dict[tuple[str, str, str, int], KernelProfile] = {}
        self._touched: dict[int, np.ndarray] = {}
        self._starts: dict[int, int] = {}

    def report(self) -> list[dict[str, Any]]:
        """Return one entry per kernel and target, in the order of their first launch."""
        return [k.report() for k in self.kernels.values()]

    def _repr_html_(self) -> str:
        from gluon_sim.tools.profile_html import part

        return part(self.report())

    def __rich_console__(self, console: Any, options: Any) -> Iterator[Any]:
        from gluon_sim.tools.profile_text import pieces

        yield from pieces(self.report(), options.max_width)

    # ---- launches -----------------------------------------------------------------------------

    def begin(self, launch: Launch) -> None:
        kernel = launch.program.program.kernel
        loc = kernel.loc
        key = (kernel.name, str(launch.target), loc.file, loc.line)
        if key not in self.kernels:
            self.kernels[key] = KernelProfile(kernel.name, launch.target, loc.file, loc.line)
        self.current = self.kernels[key]
        self.current.launches += 1
        self.current.programs += prod(launch.grid)
        self.banks = launch.target.architecture.banks
        self._touched = {}
        self._starts = {}

    def end(self, launch: Launch) -> None:
        sectors = sum(int(page.sum()) for page in self._touched.values())
        self.current.footprint += sectors * SECTOR

    def _aligned(
        self, memory: GlobalMemory, addresses: np.ndarray, mask: Optional[np.ndarray]
    ) -> np.ndarray:
        """Return the addresses as they would be on a device, where every array starts on its own at a
        multiple of 256 bytes; those of the host may start anywhere."""
        live = addresses if mask is None else addresses[mask]
        if not live.size:
            return addresses
        out: np.ndarray = addresses
        low, high = int(live.min()), int(live.max())
        while True:
            allocation = memory.find(low)
            if allocation is None:
                return out
            start = self._starts.setdefault(allocation.base, len(self._starts) << 44)
            if high < allocation.end and out is addresses:
                out = addresses - allocation.base + start
                return out
            inside = (addresses >= allocation.base) & (addresses < allocation.end)
            out = np.where(inside, addresses - allocation.base + start, out)
            if high < allocation.end:
                return out
            low = int(live[live >= allocation.end].min())

    def _touch(self, addresses: np.ndarray, mask: Optional[np.ndarray]) -> None:
        """Remember which sectors a launch touched: pages of 65536 flags."""
        live = addresses if mask is None else addresses[np.broadcast_to(mask, addresses.shape)]
        sectors = np.unique(live.ravel() // SECTOR)
        pages = sectors >> 16
        for page in np.unique(pages):
            flags = self._touched.get(int(page))
            if flags is None:
                flags = self._touched[int(page)] = np.zeros(1 << 16, bool)
            flags[sectors[pages == page] & 0xFFFF] = True

    # ---- ops ------------------------------------------------------------------------------------

    def after(self, launch: Launch, task: Task, step: Step, args: Sequence[Any]) -> None:
        op = step.op
        if launch.in_region(task) or op.name == "scope":
            return
        loc = launch.line(task, op)
        counts = self.current.lines[loc.file, loc.line]
        programs = task.programs
        counts.executed += programs
        name = op.name
        if name in _VECTOR and _is_float(op):
            counts.vector += _VECTOR[name] * prod(op.results[0].type.dims) * programs
        elif name in ("reduce", "scan") and _is_float(op):
            operands = list(op.operands())
            kept = op.results if name == "reduce" else ()
            done = sum(prod(v.type.dims) for v in operands) - sum(prod(r.type.dims) for r in kept)
            counts.vector += done * programs
        elif name in _READS:
            mask = args[1] if name in ("masked_load", "atomic_load") else None
            self._global(counts, task, op, args[0], mask, None, "read")
            counts.loads += programs
        elif name in _WRITES:
            mask = args[2] if len(args) > 2 and isinstance(args[2], np.ndarray) else None
            self._global(counts, task, op, args[0], mask, None, "write")
        elif name == "atomic_rmw":
            self._atomic(counts, task, op, args[1], args[3], None)
        elif name == "atomic_cas":
            self._atomic(counts, task, op, args[0], None, None)
        elif name == "local_load":
            self._shared(counts, args[1], op.results[0].type, "read", programs)
        elif name in ("local_store", "local_alloc"):
            values = list(op.operands())
            if name == "local_store":
                self._shared(counts, args[0], values[1].type, "written", programs)
            elif values:
                self._allocated(counts, op, values[0].type, programs)
        elif name in ("local_gather", "local_scatter", "local_atomic_scatter_rmw"):
            self._picked(counts, task, op, args, programs)
        elif name == "dot":
            self._dot(counts, op, args, programs)
        elif name == "convert_layout":
            self._convert(counts, op, programs)

    def event(self, launch: Launch, task: Task, op: Op, method: str, *details: Any) -> None:
        loc = launch.line(task, op)
        counts = self.current.lines[loc.file, loc.line]
        programs = task.programs
        if method == "load_global":
            addresses, type = details[:2]
            dtype = type if isinstance(type, np.dtype) else numpy_dtype(type)
            mask = details[2] if len(details) > 2 else None
            self._global(counts, task, op, addresses, mask, dtype.itemsize, "read")
        elif method == "store_global":
            addresses, values = details[:2]
            mask = details[2] if len(details) > 2 else None
            size = values.dtype.itemsize
            shape = np.broadcast_shapes(addresses.shape[1:], values.shape[1:])
            wide = np.broadcast_to(addresses, (addresses.shape[0], *shape))
            self._global(counts, task, op, wide, mask, size, "write")
        elif method == "atomic_global":
            addresses, values = details[1:3]
            mask = details[3] if len(details) > 3 else None
            self._atomic(counts, task, op, addresses, mask, values.dtype.itemsize)
        elif method in ("load_shared", "store_shared"):
            view = details[0]
            way = "read" if method == "load_shared" else "written"
            if isinstance(view, SharedView):
                self._shared(counts, view, _tensor_like(op, view.shape), way, programs)
        elif method == "dot":
            a, _, acc = details[:3]
            k = next((t.type.dims[-1] for t in op.operands() if _fits(t.type, a)), a.shape[-1])
            kind = _kind(next(op.operands()).type, details[3] if len(details) > 3 else None)
            counts.put("matrix", kind, 2 * prod(acc.shape[1:]) * k * programs)
        elif method == "issue":
            counts.async_ops += programs

    # ---- global memory ------------------------------------------------------------------------

    def _access(
        self,
        task: Task,
        op: Op,
        addresses: Any,
        mask: Optional[np.ndarray],
        size: Optional[int],
        stores: bool,
    ) -> tuple[Any, int]:
        type = _pointer_type(op, addresses)
        if size is None:
            element = type.element if isinstance(type, (TensorType, PointerType)) else None
            assert isinstance(element, PointerType)
            size = numpy_dtype(element.pointee).itemsize
        shape = addresses.shape[1:]
        if type is not None:
            shape = np.broadcast_shapes(shape, type.dims)
        if mask is not None:
            mask = np.asarray(mask)
            mask = mask.reshape(
                mask.shape[0], *([1] * (len(shape) + 1 - mask.ndim)), *mask.shape[1:]
            )
        rows = max(addresses.shape[0], 1 if mask is None else mask.shape[0])
        addresses = np.broadcast_to(addresses, (rows, *shape))
        mask = None if mask is None else np.broadcast_to(mask, (rows, *shape))
        held = None
        if isinstance(type, TensorType):
            held = holders(type.layout, tuple(type.dims))
        addresses = self._aligned(task.memory, addresses, mask)
        self._touch(addresses, mask)
        cost = global_cost(addresses, mask, size, held, stores)
        return cost, task.programs // rows if rows == 1 else 1

    def _global(
        self,
        counts: Counts,
        task: Task,
        op: Op,
        addresses: np.ndarray,
        mask: Optional[np.ndarray],
        size: Optional[int],
        way: str,
    ) -> None:
        cost, times = self._access(task, op, addresses, mask, size, way == "write")
        requests = cost.requests
        if not isinstance(_pointer_type(op, addresses), TensorType):
            requests = -(
                -cost.ideal // LINE_SECTORS
            )  # an engine asks for whole lines, not for warps
        key = "global_read" if way == "read" else "global_written"
        counts.add(
            **{
                key: cost.bytes * times,
                f"{way}_requests": requests * times,
                f"{way}_sectors": cost.sectors * times,
                f"{way}_ideal": cost.ideal * times,
            }
        )

    def _atomic(
        self,
        counts: Counts,
        task: Task,
        op: Op,
        addresses: np.ndarray,
        mask: Optional[np.ndarray],
        size: Optional[int],
    ) -> None:
        cost, times = self._access(task, op, addresses, mask, size, True)
        if size is None:
            size = numpy_dtype(_pointer_type(op, addresses).element.pointee).itemsize
        counts.add(
            atomics=cost.bytes // size * times,
            global_written=cost.bytes * times,
            write_requests=cost.requests * times,
            write_sectors=cost.sectors * times,
            write_ideal=cost.ideal * times,
        )

    # ---- shared memory ------------------------------------------------------------------------

    def _shared(self, counts: Counts, view: Any, type: Any, way: str, programs: int) -> None:
        size = view.dtype.itemsize
        if view.type.space != "shared":
            counts.add(**{f"tensor_{way}": view.table.size * size * programs})
            return
        held = None
        if isinstance(type, TensorType):
            held = holders(type.layout, tuple(type.dims))
        bases, times = np.unique(view.base, return_counts=True)
        times = times * (programs // len(view.base)) if len(view.base) == 1 else times
        for base, count in zip(bases, times):
            offsets = (view.table + base)[None]
            self._banks(counts, offsets, size, held, way, int(count))

    def _banks(
        self, counts: Counts, offsets: np.ndarray, size: int, held: Any, way: str, times: int
    ) -> None:
        cost = shared_cost(offsets, size, held, self.banks, way == "written")
        counts.add(
            **{
                f"shared_{way}": cost.bytes * times,
                "shared_passes": cost.passes * times,
                "shared_ideal": cost.ideal * times,
            }
        )

    def _allocated(self, counts: Counts, op: Op, type: Any, programs: int) -> None:
        """Count the bytes with which an allocation fills its buffer."""
        result_type = op.results[0].type
        assert isinstance(result_type, MemDescType)
        size = numpy_dtype(result_type).itemsize
        if result_type.space != "shared":
            counts.add(tensor_written=prod(result_type.shape) * size * programs)
            return
        held = holders(type.layout, tuple(type.dims))
        offsets = (offsets_of(result_type.layout, tuple(result_type.shape)) * size)[None]
        self._banks(counts, offsets, size, held, "written", programs)

    def _picked(self, counts: Counts, task: Task, op: Op, args: Any, programs: int) -> None:
        """Elements of a buffer chosen by index: the banks are those of the real indices."""
        operands = list(op.operands())
        if op.name == "local_gather":
            view, indices, axis, which = args[1], args[2], args[3], 1
        elif op.name == "local_scatter":
            view, indices, axis, which = args[0], args[2], args[3], 2
        else:
            view, indices, axis, which = args[1], args[3], args[5], 2
        type: Any = operands[which].type
        # Where bounds are not checked, the machine stays inside the buffer as well.
        indices = np.clip(indices, 0, view.table.shape[axis] - 1)
        indices = np.broadcast_to(indices, (indices.shape[0], *type.dims))
        size = view.dtype.itemsize
        grid = list(np.ogrid[tuple(slice(0, n) for n in type.dims)])
        where = [indices if d == axis else g[None] for d, g in enumerate(grid)]
        offsets = view.table[tuple(np.broadcast_arrays(*where))]
        offsets = offsets + view.base.reshape(-1, *([1] * (offsets.ndim - 1)))
        times = programs // offsets.shape[0]
        held = holders(type.layout, tuple(type.dims))
        if op.name != "local_scatter":
            self._banks(counts, offsets, size, held, "read", times)
        if op.name != "local_gather":
            self._banks(counts, offsets, size, held, "written", times)

    # ---- arithmetic -----------------------------------------------------------------------------

    def _dot(self, counts: Counts, op: Op, args: Any, programs: int) -> None:
        result = op.results[0].type
        a = next(op.operands()).type
        flops = 2 * prod(result.dims) * a.dims[-1] * programs
        if isinstance(result, TensorType) and isinstance(result.layout, BlockedLayout):
            counts.vector += flops
        else:
            counts.put("matrix", _kind(a, args[3]), flops)

    def _convert(self, counts: Counts, op: Op, programs: int) -> None:
        before, after = next(op.operands()).type, op.results[0].type
        if not (isinstance(before, TensorType) and isinstance(after, TensorType)):
            return
        element = after.element
        bits = 64 if isinstance(element, PointerType) else getattr(element, "bits", 32)
        conversion = _conversion(before.layout, after.layout, tuple(after.dims), max(8, bits))
        if conversion is None or conversion.kind == "none":
            return
        counts.put("conversions", conversion.kind, programs)
        if conversion.shared_bytes:
            passes = -(-conversion.shared_bytes // (4 * self.banks))
            extra = conversion.store_conflicts + conversion.load_conflicts
            counts.add(
                conversion_bytes=2 * conversion.shared_bytes * programs,
                conversion_passes=2 * passes * programs,
                conversion_conflicts=extra * passes * programs,
            )
        counts.conversion_shuffles += conversion.shuffles * programs


def _conversion(before: Any, after: Any, shape: tuple[int, ...], bits: int) -> Any:
    try:
        return cost.conversion(before, after, shape, bits)
    except (AttributeError, GluonError):
        return None


def _is_float(op: Op) -> bool:
    return bool(op.results) and getattr(op.results[0].type.element, "is_float", False)


def _kind(type: Any, precision: Any) -> str:
    """Return the operand type of a matrix unit: fp16, bf16, tf32, int8, ..."""
    name = getattr(type.element, "name", str(type.element))
    how = str(getattr(precision, "name", precision)).lower()
    if name == "fp32" and "tf32" in how:
        return "tf32"
    if name.startswith("fp8"):
        return "fp8"
    return "int8" if name == "i8" else name


def _fits(type: Any, value: np.ndarray) -> bool:
    dims = getattr(type, "dims", ())
    return len(dims) == value.ndim - 1 and all(s in (1, d) for s, d in zip(value.shape[1:], dims))


def _pointer_type(op: Op, addresses: np.ndarray) -> Any:
    """Return the type whose layout says which thread holds which address: the pointers' own where the op
    has a tensor of them, else that of a tensor of the same shape (offsets, values)."""
    types = [v.type for v in op.operands()]
    pointers = [t for t in types if isinstance(t.element, PointerType)]
    tensors = [t for t in pointers if isinstance(t, TensorType) and _fits(t, addresses)]
    if tensors:
        return tensors[0]
    shaped = [t for t in types if isinstance(t, TensorType) and _fits(t, addresses)]
    if addresses.ndim > 1 and shaped:
        return shaped[0]
    if addresses.ndim == 1 and pointers and not isinstance(pointers[0], TensorType):
        return pointers[0]
    return None


def _tensor_like(op: Op, shape: tuple[int, ...]) -> Any:
    """Return a tensor of the op (result or operand) that has the shape of a buffer, or None."""
    types = [r.type for r in op.results] + [v.type for v in op.operands()]
    return next((t for t in types if isinstance(t, TensorType) and t.dims == tuple(shape)), None)
