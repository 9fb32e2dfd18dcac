"""Reference models: the meaning of a vendor's ops, as NumPy functions for the simulator.

A model is a function in the module that `Language.reference` names, called like the builder method
without `create_`. It takes the arguments of the builder method, positional and in order:

- a tensor or scalar operand is a NumPy array. Its first axis runs over the programs that execute
  together, or has extent 1 where they all share the value; then come the tensor's dims, each at
  its extent, or 1 where the value repeats (so arrays broadcast, and elementwise models need not
  care). Integers are signed, bf16 and fp8 are `ml_dtypes`, pointers are int64 byte addresses.
- a buffer in shared or tensor memory is a `SharedBuffer`, a tensor descriptor a `Descriptor`;
- types, layouts, enumerations and plain numbers come as they are.

A model whose first parameter is called `machine` gets the `Machine` there. It may be a generator
that yields results of `machine.blocked` or `machine.barrier_wait`, and goes on once that is over. It
returns the result, a tuple of results, or None.

`EXTERNS` of a reference module maps symbols of the vendor's math library to models, functions of
arrays, or to the name in `MATH` of a function that the simulator computes in float64.

The recorder must know result types before anything runs: decorate the model with `returns`.
Without it an op whose first argument is a type has that result type, any other has no result.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Callable, Iterator, Mapping, Optional, Protocol, Sequence, TypeVar

import numpy as np

__all__ = [
    "MATH", "MORE_MATH", "Descriptor", "Machine", "Remedies", "SharedBuffer", "like", "returns",
]  # fmt: skip

F = TypeVar("F", bound=Callable[..., Any])
V = TypeVar("V")

# C's functions that both float32 and float64 have in every vendor's library, and further ones.
MATH = (
    "acos", "acosh", "asin", "asinh", "atan", "atan2", "atanh", "cbrt", "ceil", "copysign", "cos",
    "cosh", "erf", "erfc", "erfcx", "erfinv", "exp", "exp10", "exp2", "expm1", "fabs", "floor",
    "fmax", "fmin", "fmod", "hypot", "j0", "j1", "lgamma", "log", "log10", "log1p", "log2",
    "nearbyint", "pow", "rint", "round", "rsqrt", "sin", "sinh", "sqrt", "tan", "tanh", "tgamma",
    "trunc", "y0", "y1",
)  # fmt: skip
MORE_MATH = ("erfcinv", "i0", "i1", "ilogb", "jn", "normcdf", "normcdfinv", "yn")


def returns(types: Optional[Callable[..., Any]] = None, claims: bool = False) -> Callable[[F], F]:
    """Declare the result types of a model.

    Args:
        types: `types(*operands)`, with the builder method's operands, gives one type, a list of them, or
            None. A recorded operand has its type as `operand.type`; a scalar type may be its name, such
            as "i32".
        claims: the model calls `Machine.claim`: only a few programs of a grid whose kernel has this op
            start at once, so that there are others to claim.
    """

    def mark(model: F) -> F:
        if types is not None:
            model.results = types  # type: ignore[attr-defined]  # for the recorder
        model.claims = claims  # type: ignore[attr-defined]  # for the machine
        return model

    return mark


def like(position: int) -> Callable[[F], F]:
    """Declare one result of the type of the operand at `position`."""
    return returns(lambda *operands, **named: operands[position].type)


def _flat(value: Any) -> np.ndarray:
    return np.asarray(value).reshape(-1).astype(np.int64, copy=False)


class SharedBuffer(Protocol):
    """A buffer in shared or in tensor memory, or a view of one."""

    dtype: np.dtype

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def offset(self) -> np.ndarray:
        """Return the bytes from the start of the allocation, which is aligned as its layout wants, to the
        lowest element: (programs or 1,)."""


@dataclass(frozen=True, eq=False)
class Descriptor:
    """A tensor in global memory and the box of it that one copy moves.

    Arrays have one entry per program that runs, or one where they all share it. Scalar operands of the
    op that makes it become such arrays.

    Args:
        base: byte address of the first element, int64.
        shape, strides: of the tensor, an int64 array for each dimension; strides in elements.
        dtype: of the elements.
        block_shape: of the box.
        layout: of the box in shared memory.
        padding: of elements outside the tensor that a load brings, "zero" or "nan".
        round_f32_to_tf32: loads round float32 to the precision of tf32.
        extra: further fields of the vendor's mode, by name; the same for all programs.
    """

    base: np.ndarray
    shape: tuple[np.ndarray, ...]
    strides: tuple[np.ndarray, ...]
    dtype: np.dtype
    block_shape: tuple[int, ...]
    layout: Any = None
    padding: str = "zero"
    round_f32_to_tf32: bool = False
    extra: Any = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "base", _flat(self.base))
        for name in ("shape", "strides"):
            object.__setattr__(self, name, tuple(map(_flat, getattr(self, name))))

    @property
    def rank(self) -> int:
        """Return the rank of the tensor."""
        return len(self.shape)

    def box(self, origin: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        """Return the byte addresses of the box whose first element is at `origin`, and which of its elements
        are inside the tensor; both broadcast to (programs, *block_shape)."""
        lead = len(self.shape) - len(self.block_shape)
        extents = (1,) * lead + self.block_shape
        index = []
        for dim, (start, extent) in enumerate(zip(origin, extents)):
            along = [1] * len(extents)
            along[dim] = extent
            steps = np.arange(extent, dtype=np.int64).reshape(1, *along)
            start = np.asarray(start, np.int64).reshape(-1, *[1] * len(extents))
            index.append(start + steps)
        addresses, inside = self.at(index)
        if lead:
            addresses = addresses.reshape(len(addresses), *addresses.shape[1 + lead :])
            inside = inside.reshape(len(inside), *inside.shape[1 + lead :])
        return addresses, inside

    def at(self, index: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        """Return the byte addresses of elements, and which are inside: one array of coordinates for each
        dimension of the tensor, which broadcast and whose first axis is the programs'."""
        rank = max(np.ndim(i) for i in index)
        per_program = (-1,) + (1,) * (rank - 1)
        addresses: Any = self.base.reshape(per_program)
        inside: Any = np.ones((1,) * rank, bool)
        for i, extent, stride in zip(index, self.shape, self.strides):
            i = np.asarray(i, np.int64)
            inside = inside & (i >= 0) & (i < extent.reshape(per_program))
            addresses = addresses + i * stride.reshape(per_program) * self.dtype.itemsize
        addresses, inside = np.broadcast_arrays(addresses, inside)
        return addresses, inside

    def select(self, positions: np.ndarray) -> "Descriptor":
        """Return the descriptor of some of the programs."""

        def pick(values: np.ndarray) -> np.ndarray:
            return values if len(values) == 1 else values[positions]

        return replace(
            self,
            base=pick(self.base),
            shape=tuple(map(pick, self.shape)),
            strides=tuple(map(pick, self.strides)),
        )

    @staticmethod
    def merged(parts: Sequence[tuple[np.ndarray, "Descriptor"]], count: int) -> "Descriptor":
        """Return one descriptor from those of disjoint positions that together are all `count`."""
        first = parts[0][1]
        same = [f for f in first.__dataclass_fields__ if f not in ("base", "shape", "strides")]
        for _, other in parts[1:]:
            if any(getattr(other, name) != getattr(first, name) for name in same):
                raise ValueError("the programs have descriptors of different kinds")

        def join(arrays: Sequence[np.ndarray]) -> np.ndarray:
            out = np.zeros(count, np.int64)
            for (positions, _), values in zip(parts, arrays):
                out[positions] = values
            return out

        all_parts = [other for _, other in parts]
        return replace(
            first,
            base=join([d.base for d in all_parts]),
            shape=tuple(join(sizes) for sizes in zip(*(d.shape for d in all_parts))),
            strides=tuple(join(steps) for steps in zip(*(d.strides for d in all_parts))),
        )


class Machine(Protocol):
    """The machine that runs a model.

    `mask` and `where` are boolean arrays that broadcast like any operand; None means everywhere.

    Attributes:
        num_warps: that run the op.
        first_warp: the number in its block of the first of these, which is not 0 in a partition.
    """

    num_warps: int
    first_warp: int

    @property
    def programs(self) -> int:
        """Return the number of programs that run together."""

    @property
    def target(self) -> Any:
        """Return the `gluon_core.plugin.targets.Target` that is simulated."""

    @property
    def specialized(self) -> bool:
        """Return True if the kernel has more warps than these, for its partitions."""

    def program_id(self, position: int) -> tuple[int, int, int]:
        """Return the (x, y, z) of the program at a position of the first axis."""

    @property
    def grid(self) -> tuple[int, int, int]:
        """Return the number of programs in x, y, z."""

    @property
    def blocks(self) -> int:
        """Return the number of blocks of a program: the size of its cluster along x."""

    @property
    def all_warps(self) -> int:
        """Return the warps of a block, those of partitions included."""

    @property
    def shared_bytes(self) -> int:
        """Return the bytes of shared memory that the kernel allocates in each block."""

    def ticks(self, passed: int = 0) -> int:
        """Read a clock: return a number that grows from call to call of one launch, by `passed` at least."""

    def claim(self) -> Optional[tuple[int, int, int]]:
        """Take a program of the grid that has not started, which will not start then; None where
        none is left. Only for models that `returns(claims=True)`; one program runs at a time there."""

    def full(self, value: np.ndarray, shape: Sequence[int]) -> np.ndarray:
        """Return `value` at full extent, (programs, *shape), read-only."""

    def operand_types(self) -> list[Any]:
        """Return the recorded types of the op's operands (values only, lists flattened)."""

    def result_dtype(self, index: int = 0) -> np.dtype:
        """Return the NumPy type of one result."""

    # -- memory --

    def load_global(
        self, addresses: np.ndarray, type: Any, mask: Any = None, other: Any = None
    ) -> np.ndarray:
        """Load elements (of a NumPy or recorded type) at byte addresses; `other` or 0 where masked off.

        An element outside every argument is an error, unless masked off. So for stores and atomics.
        """

    def store_global(self, addresses: np.ndarray, values: np.ndarray, mask: Any = None) -> None: ...

    def atomic_global(
        self, kind: str, addresses: np.ndarray, values: np.ndarray, mask: Any = None
    ) -> np.ndarray:
        """Read, modify and write, by the kind add, fadd, max, min, umax, umin, and, or, xor, xchg, inc or dec
        (up to the value, then from 0; and back); old values."""

    def refuse_before(
        self, argument: str, place: Sequence[np.ndarray], message: str, remedy: str
    ) -> None:
        """Report an index below 0 in `place`, an array for each dimension of the tensor that the op
        writes next, where hardware does not leave out elements before the tensor.

        Args:
            argument: whose indices they are.
            message, remedy: the consequence, and the fix; index and program are added.
        """

    def compare_and_swap(
        self, addresses: np.ndarray, compare: np.ndarray, values: np.ndarray, mask: Any = None
    ) -> np.ndarray:
        """Write `values` atomically where memory holds the bits of `compare`; return old values."""

    def load_shared(
        self, buffer: SharedBuffer, mask: Any = None, copied: bool = False
    ) -> np.ndarray:
        """Load all elements, (programs, *shape); elements that `mask` leaves out are not read and
        have any value.
        Where they only go on to other memory, as they are, they are `copied`."""

    def store_shared(self, buffer: SharedBuffer, values: np.ndarray, mask: Any = None) -> None: ...

    def allocate_buffer(self, type: Any, value: Any = None) -> SharedBuffer:
        """Return a new buffer of a recorded type of shared or tensor memory, holding `value` if given."""

    def slice_buffer(self, buffer: SharedBuffer, type: Any, offsets: Sequence[int]) -> SharedBuffer:
        """Return the part of a buffer, of that type, at an offset in each dimension."""

    def dot(
        self, a: np.ndarray, b: np.ndarray, acc: np.ndarray, precision: Any = None
    ) -> np.ndarray:
        """Return acc + a @ b over the last two dims, at full extent; "tf32" truncates float32 operands."""

    # -- asynchronous work: issued to a queue, closed into groups, waited for by count --

    def issue(
        self,
        queue: str,
        perform: Callable[[], None],
        signal: Optional[Callable[[], None]] = None,
        *,
        barrier: Optional[SharedBuffer] = None,
        after: bool = False,
        proxy: str = "generic",
        read: Optional[Callable[[], None]] = None,
        where: Any = None,
        fills: Any = None,
        remote: bool = False,
    ) -> None:
        """Start work: `perform()` moves data, then `signal()` reports it to those who wait.

        When it happens is the machine's choice, between here and the wait that asks for it, so
        `perform` reads its sources and writes its destination with the machine's methods and
        nothing else. Its accesses are ordered after everything before the issue, and before
        everything after a wait for it: for its group, or for the barrier that `signal` arrives at.

        Args:
            barrier: the one that `signal` arrives at or completes bytes of.
            after: it starts when all earlier work of the queue is over.
            proxy: through which it accesses memory. For any but "generic", writes of
                others through the generic proxy need a `fence` before the issue.
            read: reads the sources, before `perform` writes; others may wait for that alone.
            where: a boolean per program; only these do it. Inside, operands are those of these
                programs: `select` takes them.
            fills: the `promise` that `perform` writes to.
            remote: it reaches shared memory of other blocks of the cluster.
        """

    def select(self, value: V, where: Any) -> V:
        """Return an operand (an array, a buffer or a descriptor) of those programs for which `where`, a
        boolean per program, holds. None holds for all."""

    def promise(self, shape: Sequence[int], dtype: np.dtype) -> np.ndarray:
        """Return an array (programs, *shape) that the model returns now and work in flight fills. A
        kernel that reads it before a wait for that work gets an error. A model that gets one as an
        operand takes its elements inside `perform` of later work, with `np.asarray`."""

    def settled(self, value: np.ndarray) -> np.ndarray:
        """Return the elements of a promise, if its work is known to be over; else the promise. A waiting op
        returns it; any other array comes back as it is."""

    def fence(self) -> None:
        """Make all earlier accesses visible to the other proxies."""

    def implied_fence(
        self,
        buffers: Sequence[Any],
        known: Sequence[str],
        writes: bool = False,
        newer: Optional[Mapping[str, str]] = None,
    ) -> None:
        """Fence as the compiler does here, if it knows of accesses to `buffers` since the last one.

        Args:
            buffers: accessed by the coming work through the other proxy.
            known: whose accesses through the generic proxy the compiler knows of: "own", of the
                partition itself; "before", of the program before its partitions started;
                "partitions", of those that are over; "calls", across functions that stay functions.
            writes: the work writes, so reads count, too.
            newer: of those in `known` that not every supported compiler knows of, the releases that
                do, such as "Triton >= 3.7".
        """

    def commit(self, queue: str) -> None:
        """Close the queue's current group. A queue belongs to one partition."""

    def wait_groups(self, queue: str, pending: int, reads: bool = False) -> None:
        """Wait until at most `pending` closed groups are unfinished; with `reads`, when at most so
        many have not read their sources."""

    # -- barriers in shared memory: a count of arrivals and of bytes, and a phase --

    def barrier_init(self, buffer: SharedBuffer, count: int) -> None:
        """Let its phases take `count` arrivals. Refused while the barrier is in use."""

    def barrier_invalidate(self, buffer: SharedBuffer) -> None: ...

    def barrier_arrive(
        self, buffer: SharedBuffer, count: int = 1, where: Any = None, everywhere: bool = False
    ) -> None:
        """Arrive, and release all that the partition (or the work that signals) did and knows.

        Args:
            everywhere: each block of a cluster arrives at the barriers of the others, too.
        """

    def barrier_raise(self, buffer: SharedBuffer, count: int) -> None:
        """Expect `count` arrivals more in the current phase."""

    def barrier_expect(self, buffer: SharedBuffer, size: int, where: Any = None) -> None:
        """Expect `size` more bytes in the current phase."""

    def barrier_complete(self, buffer: SharedBuffer, size: int, where: Any = None) -> None:
        """Note that `size` bytes have come."""

    def barrier_remote(self, buffer: SharedBuffer) -> None:
        """Note that other blocks of the cluster will signal at this barrier: refused unless they know
        that it was initialized."""

    def cluster_release(self) -> None:
        """Release all initializations so far to those who pass a cluster barrier after this."""

    def cluster_acquire(self) -> None:
        """Acquire the earlier releases of all blocks of the cluster, which have come."""

    def barrier_phase(self, buffer: SharedBuffer) -> np.ndarray:
        """Return the parity of the phase that each program's barrier is in, int32."""

    def barrier_wait(self, buffer: SharedBuffer, parity: Any, where: Any = None) -> Iterator[Any]:
        """Wait, by `yield from`, until the phase of that parity has completed, and knows then
        all that those knew who arrived."""

    def blocked(self, ready: Callable[[], bool], describe: str) -> Any:
        """Wait, by `yield`, until `ready()`; `describe` is for the error when that never is."""


@dataclass(frozen=True)
class Remedies:
    """The calls with which kernels order asynchronous work: `REMEDIES` of a vendor's reference module.

    Each text is a call by the op's public name. `{pending}`, `{barrier}` and `{result}` are filled
    with the number of groups that may be unfinished, the barrier, and the result of the work. From
    several texts a report takes the one whose namespace is closest to the op that started the work.

    Args:
        waits: by queue, the call that waits for groups.
        finishes: the same, of queues whose work `waits` may find to have read its sources alone.
        commits: by queue, the call that closes a group.
        signals: by queue, the call that lets a barrier track earlier work.
        fences: by proxy, the fence between the generic proxy and that one.
        barrier_waits: the call that waits for a phase of a barrier.
        barrier_arrives: the call that arrives at one.
    """

    waits: Mapping[str, Sequence[str]] = field(default_factory=dict)
    finishes: Mapping[str, Sequence[str]] = field(default_factory=dict)
    commits: Mapping[str, Sequence[str]] = field(default_factory=dict)
    signals: Mapping[str, Sequence[str]] = field(default_factory=dict)
    fences: Mapping[str, Sequence[str]] = field(default_factory=dict)
    barrier_waits: Sequence[str] = ()
    barrier_arrives: Sequence[str] = ()
