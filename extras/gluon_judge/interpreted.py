"""Checks on plain Triton kernels, which Triton's interpreter runs program by program.

The interpreter reads and writes wherever an address leads, and its programs never overlap. Its accesses to memory are
checked here: against the extent of the launch's tensors, and, between programs, for an order that atomics establish.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, Callable, Iterator, Mapping, Optional

import numpy as np

__all__ = ["Plain", "checked"]

_MOST = 1 << 23  # accesses of one launch that are compared with each other
Note = Callable[..., None]


@dataclass
class _Access:
    """Elements that one program reads or writes at once.

    Args:
        program: its number.
        step: how many atomics the program had executed.
    """

    program: int
    step: int
    addresses: Any


@dataclass
class _Launch:
    """The accesses of one launch."""

    extents: list[tuple[int, int]]
    program: int = -1
    steps: dict[int, int] = field(default_factory=dict)  # atomics of each program
    reads: list[_Access] = field(default_factory=list)
    writes: list[_Access] = field(default_factory=list)
    size: int = 0


class Plain:
    """Observes the interpreter.

    Args:
        note: called with the code and the text of a finding.
    """

    def __init__(self, note: Note):
        self._note = note
        self._launch: Optional[_Launch] = None
        self.atomic = False  # an atomic is under way, whose own accesses do not count

    def begins(self, values: Any) -> None:
        """Begin a launch with these arguments on the host."""
        extents = []
        for one in _tensors(values):
            storage = one.untyped_storage()
            extents.append((storage.data_ptr(), storage.data_ptr() + storage.nbytes()))
        self._launch = _Launch(sorted(extents))

    def enters(self, program: int) -> None:
        """Begin a program."""
        if self._launch is not None:
            self._launch.program = program

    def ends(self) -> None:
        """Compare the accesses of the launch."""
        launch, self._launch = self._launch, None
        if launch is None or not launch.writes:
            return
        writer = _owners(launch.writes)
        for kind, others in (("writes", launch.writes), ("reads", launch.reads)):
            text = _conflict(launch, writer, others, kind)
            if text is not None:
                self._note("sync.race", text)
                return

    def accesses(self, pointers: Any, mask: Any, size: int, kind: str) -> None:
        """Check one access of the program that runs."""
        launch = self._launch
        if launch is None or self.atomic:
            return
        addresses = np.asarray(pointers).reshape(-1)
        if mask is not None:
            allowed = np.broadcast_to(np.asarray(mask), np.shape(pointers)).reshape(-1)
            addresses = addresses[allowed.astype(bool)]
        if not addresses.size:
            return
        outside = np.ones(addresses.shape, bool)
        whole = addresses.astype(np.int64)
        for low, high in launch.extents:
            outside &= ~((whole >= low) & (whole + size <= high))
        if outside.any():
            text = f"a plain Triton kernel {kind} {int(outside.sum())} elements outside of its arguments"
            self._note("memory.bounds", text)
        step = launch.steps.get(launch.program, 0)
        if kind == "updates":
            launch.steps[launch.program] = step + 1
            return
        if launch.size + whole.size > _MOST:
            return
        launch.size += whole.size
        kept = launch.writes if kind == "writes" else launch.reads
        kept.append(_Access(launch.program, step, np.unique(whole)))


def _tensors(values: Any) -> Iterator[Any]:
    for one in values:
        if isinstance(one, (tuple, list)):
            yield from _tensors(one)
        elif hasattr(one, "untyped_storage"):
            yield one
        elif hasattr(one, "base") and hasattr(one, "block_shape"):
            yield from _tensors([one.base])
        elif hasattr(one, "data") and hasattr(one.data, "untyped_storage"):
            yield one.data


def _owners(accesses: list[_Access]) -> tuple[Any, Any, Any]:
    """Return addresses in rising order, with the program and the step of an access to each."""
    addresses = np.concatenate([one.addresses for one in accesses])
    programs = np.concatenate([np.full(one.addresses.size, one.program) for one in accesses])
    steps = np.concatenate([np.full(one.addresses.size, one.step) for one in accesses])
    order = np.argsort(addresses, kind="stable")
    return addresses[order], programs[order], steps[order]


def _conflict(
    launch: _Launch, writer: tuple[Any, Any, Any], others: list[_Access], kind: str
) -> Optional[str]:
    """Return a description of two programs that access an element without an order; None for none.

    An order is possible where the first program executes an atomic after its access, and the second one before.
    """
    addresses, programs, steps = writer
    for one in others:
        for side in ("left", "right"):  # the first writer of each element, and the last one
            place = np.searchsorted(addresses, one.addresses, side=side) - (side == "right")
            place = np.clip(place, 0, addresses.size - 1)
            apart = (addresses[place] == one.addresses) & (programs[place] != one.program)
            for position in place[apart]:
                program, step = int(programs[position]), int(steps[position])
                first_done = launch.steps.get(program, 0) > step
                second_done = launch.steps.get(one.program, 0) > one.step
                if not (first_done and one.step > 0 or second_done and step > 0):
                    return (
                        f"program {program} of a plain Triton kernel writes an element that program "
                        f"{one.program} {kind}, and no atomic orders them"
                    )
    return None


@contextmanager
def checked(note: Note) -> Iterator[Plain]:
    """Check interpreted launches inside."""
    plain = Plain(note)
    try:
        interpreter: Any = import_module("triton.runtime.interpreter")
    except ImportError:
        yield plain
        return
    executor: Any = interpreter.GridExecutor
    arguments, run = executor._init_args_hst, executor.__call__

    def init_args(self: Any, values: Any, named: Any) -> Any:
        on_host = arguments(self, values, named)
        plain.begins([*on_host[0], *on_host[1].values()])
        return on_host

    def call(self: Any, *values: Any, **named: Any) -> Any:
        with _wrapped(interpreter.interpreter_builder, plain):
            result = run(self, *values, **named)
        plain.ends()
        return result

    executor._init_args_hst, executor.__call__ = init_args, call
    try:
        yield plain
    finally:
        executor._init_args_hst, executor.__call__ = arguments, run


@contextmanager
def _wrapped(builder: Any, plain: Plain) -> Iterator[None]:
    """Let the interpreter's builder report the accesses of a launch."""
    own = dict(vars(builder))
    inner = {name: getattr(builder, name) for name in _ACCESSES}
    enter = builder.set_grid_idx

    def set_grid_idx(x: int, y: int, z: int) -> Any:
        width, height, _ = builder.grid_dim
        plain.enters(x + width * (y + height * z))
        return enter(x, y, z)

    def access(name: str, kind: str, number: int, masked: Optional[int]) -> Callable[..., Any]:
        def call(*values: Any, **named: Any) -> Any:
            mask = None if masked is None else values[masked].data
            plain.accesses(values[number].data, mask, _size(values[number]), kind)
            atomic, plain.atomic = plain.atomic, plain.atomic or kind == "updates"
            try:
                return inner[name](*values, **named)
            finally:
                plain.atomic = atomic

        return call

    wrappers = {name: access(name, *how) for name, how in _ACCESSES.items()}
    vars(builder).update(wrappers, set_grid_idx=set_grid_idx)
    try:
        yield
    finally:
        for name in (*wrappers, "set_grid_idx"):
            vars(builder).pop(name, None)
            if name in own:
                vars(builder)[name] = own[name]


# The builder's methods that access memory: the kind, and the positions of the pointers and of the mask.
_ACCESSES: Mapping[str, tuple[str, int, Optional[int]]] = {
    "create_masked_load": ("reads", 0, 1),
    "create_masked_store": ("writes", 0, 2),
    "create_atomic_rmw": ("updates", 1, 3),
    "create_atomic_cas": ("updates", 0, None),
}


def _size(pointers: Any) -> int:
    """Return the bytes of an element that pointers of the interpreter point to."""
    kind = pointers.get_element_ty()
    return max(1, int(kind.primitive_bitwidth) // 8)
