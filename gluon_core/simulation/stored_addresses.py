"""Find the memory that a kernel reaches by addresses stored in its arguments, for a backend that runs on the host.

A grouped GEMM takes an array of pointers (`torch.tensor([x.data_ptr() for x in parts])`). On a GPU any address of the
process will do. A simulated launch has to know the extent of the memory behind each, so it looks for the tensor or array that is
alive and holds the address. An address within none belongs to nothing: its access is reported.
"""

from __future__ import annotations

import gc
import sys
import warnings
import weakref
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Iterable, Iterator, Optional

import numpy as np

from gluon_core.simulation.host_memory import Storage, storage_of

__all__ = ["Stored", "behind_addresses", "makes_pointers"]

# An operation of Triton's that makes a pointer of an integer or of memory, or may do so.
_MAKERS = ("tt.int_to_ptr", "!tt.ptr<!tt.ptr", "inline_asm", "extern_elementwise")


def _lowest() -> int:
    """Return the first address of the process; the system's least, where it has no table of them."""
    maps = Path("/proc/self/maps")
    return int(maps.read_text().partition("-")[0], 16) if maps.exists() else 1 << 16


_LOWEST = _lowest()  # arrays are above the program; user space has 48 bits at most
_HIGHEST = 1 << 48


@dataclass(frozen=True)
class Stored:
    """Memory behind an address that an argument holds.

    Args:
        name: the place of the first such address, as `pointers[3]`.
        storage: the whole memory of the tensor or array.
        dtype: of its elements, torch's or NumPy's.
    """

    name: str
    storage: Storage
    dtype: Any

    @property
    def start(self) -> int:
        return self.storage.data.ctypes.data

    @property
    def end(self) -> int:
        return self.start + self.storage.data.nbytes


def makes_pointers(asm: Any) -> bool:
    """Return False if a compiled kernel makes no pointer but by adding to those of its arguments.

    Integers of 64 bits need no search then: memory that was never written often holds old addresses.

    Args:
        asm: the kernel's stages, by name.
    """
    text = str(asm["ttgir"]) if "ttgir" in asm else ""
    return not text or any(maker in text for maker in _MAKERS)


def behind_addresses(roots: Iterable[tuple[str, Any]], runner: str) -> list[Stored]:
    """Return the memory behind the addresses in 64-bit integers, and behind the addresses stored there.

    Args:
        roots: (name, value) of arguments: a flat array of int64 or uint64, or one integer; others are left out.
        runner: who asks, for errors, such as "simulator".
    """
    waiting = [(name, words) for name, value in roots for words in _words(value)]
    waiting = [(name, words) for name, words in waiting if _places(words).size]
    if not waiting:
        return []
    live = _Live()
    reached: dict[int, Stored] = {}
    while waiting:
        name, words = waiting.pop()
        places = _places(words)
        for index, owner in live.owners(words[places]):
            if id(owner) in reached:
                continue
            one = f"{name}[{places[index]}]" if words.size > 1 else f"*{name}"
            storage = storage_of(one, owner, runner)
            if storage is None:
                continue
            reached[id(owner)] = Stored(one, storage, owner.dtype)
            waiting += [(one, inner) for inner in _words(owner) if _places(inner).size]
    return list(reached.values())


def _words(value: Any) -> Iterator[np.ndarray]:
    """Yield 64-bit integers as a flat array of int64; nothing for other values."""
    if isinstance(value, int) and not isinstance(value, bool):
        if 0 <= value < _HIGHEST:
            yield np.array([value], np.int64)
        return
    if str(getattr(value, "dtype", "")).split(".")[-1] not in ("int64", "uint64"):
        return
    if not isinstance(value, np.ndarray):
        if value.device.type != "cpu":
            return
        value = value.detach().contiguous().numpy()
    yield np.ascontiguousarray(value).reshape(-1).view(np.int64)


def _places(words: np.ndarray) -> np.ndarray:
    """Return the indices of words that may be addresses."""
    return np.flatnonzero((words >= _LOWEST) & (words < _HIGHEST))


class _Live:
    """The tensors and arrays of the process that own memory on the host.

    The search through all objects of the process takes tenths of a second: those that launches reached are remembered.
    """

    def __init__(self) -> None:
        self._remaining = [_known, _tensors, _arrays]
        self._owners: dict[
            int, tuple[int, Any]
        ] = {}  # by the first address: the end, and the owner

    def owners(self, addresses: np.ndarray) -> Iterator[tuple[int, Any]]:
        """Yield (index of the first address in it, tensor or array) of the memory that holds any of the addresses."""
        number, inside = self._search(addresses)
        while self._remaining and not inside.all():
            for start, end, owner in self._remaining.pop(0)():
                self._owners.setdefault(start, (end, owner))
            number, inside = self._search(addresses)
        starts = sorted(self._owners)
        each, firsts = np.unique(np.where(inside, number, -1), return_index=True)
        for first, one in sorted(zip(firsts.tolist(), each.tolist())):
            if one >= 0:
                owner = self._owners[starts[one]][1]
                _reached[starts[one]] = weakref.ref(owner)
                yield first, owner

    def _search(self, addresses: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the number of the memory below each address, in the order of addresses, and if the address is in it."""
        starts = np.array([0, *sorted(self._owners)], np.int64)
        ends = np.array([0, *(self._owners[start][0] for start in starts[1:].tolist())], np.int64)
        number = np.searchsorted(starts, addresses, "right") - 1
        return number - 1, addresses < ends[number]


_reached: dict[int, weakref.ref[Any]] = {}  # by the first address of the memory

_Owner = tuple[int, int, Any]  # the first address, the end, the tensor or array


def _known() -> Iterator[_Owner]:
    """Yield the memory that earlier launches reached, as far as it is alive."""
    for start, reference in list(_reached.items()):
        owner = reference()
        one = None if owner is None else _extent(owner)
        if one is None or one[0] != start:
            del _reached[start]
        else:
            yield one


def _extent(owner: Any) -> Optional[_Owner]:
    """Return the memory of a tensor or array; None where it has none on the host."""
    if isinstance(owner, np.ndarray):
        start, size = owner.ctypes.data, owner.nbytes if owner.flags.c_contiguous else 0
    else:
        try:
            if owner.device.type != "cpu":
                return None
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of tensors without memory
                storage = owner.untyped_storage()
                start, size = storage.data_ptr(), storage.nbytes()
        except (NotImplementedError, RuntimeError):
            return None
    return (start, start + size, owner) if start and size else None


def _tensors() -> Iterator[_Owner]:
    """Yield the memory of torch's tensors."""
    tensor: Any = getattr(sys.modules.get("torch"), "Tensor", None)
    objects = [] if tensor is None else gc.get_objects()
    tensors = [one for one in objects if issubclass(type(one), tensor)]
    tensors.sort(
        key=lambda one: str(one.dtype) == "torch.uint8"
    )  # others first: bytes may be a view of them
    for one in tensors:
        extent = _extent(one)
        if extent is not None:
            yield extent


def _arrays() -> Iterator[_Owner]:
    """Yield the memory of NumPy's arrays.

    Python's collector does not list them: they are in containers and in variables of calls.
    """
    queue = gc.get_referents(*gc.get_objects())
    for frame in sys._current_frames().values():
        inner: Optional[FrameType] = frame
        while inner is not None:
            queue += inner.f_locals.values()
            inner = inner.f_back
    while queue:
        for one in queue:
            if issubclass(type(one), np.ndarray):
                while isinstance(one.base, np.ndarray):
                    one = one.base
                extent = _extent(one)
                if extent is not None:
                    yield extent
        plain = [one for one in queue if type(one) in (tuple, dict) and not gc.is_tracked(one)]
        queue = gc.get_referents(*plain)
