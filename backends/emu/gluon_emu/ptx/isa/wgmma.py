"""Products of matrices by warpgroups: PTX ISA 9.7.15, `wgmma`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Optional

import numpy as np

from gluon_emu.errors import AccessError
from gluon_emu.ptx.isa.barrier import synchronous
from gluon_emu.ptx.isa.mma import accumulator_places, left_places
from gluon_emu.ptx.isa.products import ELEMENTS, integer_products, products, unpack
from gluon_emu.ptx.isa.sparse import chooser, gathered
from gluon_emu.ptx.isa.table import Step, instruction
from gluon_emu.ptx.isa.tensor import swizzled
from gluon_emu.ptx.machine.code import SHARED_START
from gluon_emu.ptx.machine.warpgroups import Operand, Product
from gluon_emu.ptx.numbers import decode, uint
from gluon_emu.ptx.program import TYPES
from gluon_emu.ptx.text import Immediate, Register, Vector

__all__ = ["offsets_of"]

_SHAPE = re.compile(r"m64n(\d+)k(\d+)")
_PATTERNS = {1: np.uint8, 2: np.uint16, 4: np.uint32}
_MODES = {0: 0, 1: 3, 2: 2, 3: 1}  # of descriptors -> 1 for 32, 2 for 64, 3 for 128 bytes


@instruction("wgmma.fence", "wgmma.commit_group", "wgmma.wait_group")
def order(call: Any) -> Step:
    """Order products: a commit closes a group, and a wait finishes groups (`machine.warpgroups`)."""
    call.flag("sync"), call.flag("aligned")
    if "fence" in call.left:

        def fence(group: Any) -> None:
            if group.machine.observer is not None:
                group.machine.observer.fence(group, None, "wgmma")

        return synchronous(fence)
    newest = int(call.operands[0].value) if call.operands else None

    def run(group: Any) -> None:
        if group.machine.observer is not None:
            group.machine.observer.groups(group, "wgmma", newest)
        if newest is None:
            group.machine.products.commit(group)
        else:
            group.machine.products.wait(group, newest)

    return synchronous(run)


@lru_cache(maxsize=256)
def offsets_of(
    extent: int, depth: int, size: int, leading: int, stride: int, mode: int, across: bool
) -> np.ndarray:
    """Return the byte of each element (extent, depth) from the start of a matrix.

    Args:
        size: bytes of an element.
        leading, stride: of the descriptor, in bytes.
        mode: of swizzling.
        across: elements along `extent` are next to each other.
    """
    place, k = np.arange(extent)[:, None], np.arange(depth)[None, :]
    span = 16 << mode
    if not across:
        inner = k * size
        if not mode:
            return np.asarray(
                place // 8 * stride + place % 8 * 16 + inner // 16 * leading + inner % 16
            )
        return np.asarray(place // 8 * stride + place % 8 * span + inner)
    inner = place * size
    if not mode:
        return np.asarray(inner // 16 * stride + inner % 16 + k % 8 * 16 + k // 8 * leading)
    return np.asarray(inner // span * leading + inner % span + k // 8 * stride + k % 8 * span)


@lru_cache(maxsize=1024)
def _atoms(
    descriptor: int, extent: int, depth: int, size: int, across: bool
) -> tuple[np.ndarray, int]:
    """Return the byte in a block's shared memory of each 16 bytes of a matrix, and the end of the last.

    Args:
        descriptor: of the matrix.

    Returns:
        (extent, depth * size / 16), or (extent * size / 16, depth) if elements along `extent` are next to each other.
    """
    leading, stride = (descriptor >> 16 & 0x3FFF) << 4, (descriptor >> 32 & 0x3FFF) << 4
    mode = _MODES[descriptor >> 62 & 3]
    offsets = offsets_of(extent, depth, size, leading, stride, mode, across)
    each = 16 // size
    offsets = offsets[::each] if across else offsets[:, ::each]
    address = swizzled(((descriptor & 0x3FFF) << 4) + offsets, mode) & 0x3FFFF
    return address, int(address.max()) + 16


def _matrices(
    group: Any, descriptors: np.ndarray, extent: int, depth: int, kind: str, across: bool
) -> Operand:
    """Return the matrices (extent, depth) that the descriptors of warpgroups point to.

    Raises:
        AccessError: a matrix begins before the shared memory, or ends behind it.
    """
    memory, size = group.machine.memory, ELEMENTS[kind] // 8
    blocks = group.block[::4]
    sharing = _sharing(blocks, descriptors)
    blocks, descriptors = blocks[::sharing], descriptors[::sharing]
    different, which = descriptors[:1], None
    if (descriptors != descriptors[0]).any():
        different, which = np.unique(descriptors, return_inverse=True)
    parts = []
    for descriptor in different.tolist():
        address, high = _atoms(descriptor, extent, depth, size, across)
        low = int(address.min())
        if low < SHARED_START or high > memory.shared_bytes:
            raise AccessError(
                f"a matrix from {low:#x} to {high:#x} of shared memory, which is from {SHARED_START:#x} "
                f"to {memory.shared_bytes:#x}"
            )
        parts.append(address)
    address = parts[0] if which is None else np.stack(parts)[which]
    places = (blocks * memory.stride)[:, None, None] + address
    if group.machine.observer is not None:
        group.machine.observer.product(group, [places.repeat(sharing, 0)], 16)
    index = places >> 4
    return Operand(index, memory.atoms.take(index, 0), sharing)


def _sharing(blocks: np.ndarray, descriptors: np.ndarray) -> int:
    """Return how many warpgroups in a row, all those of a block, have one descriptor."""
    count = int(np.count_nonzero(blocks == blocks[0]))
    if count == 1 or blocks.size % count:
        return 1
    those = np.stack((blocks, descriptors.view(np.int64))).reshape(2, -1, count)
    return count if bool((those == those[:, :, :1]).all()) else 1


def _matrix(operand: Operand, depth: int, kind: str, across: bool) -> np.ndarray:
    """Return the numbers of an operand, (matrices, extent, depth)."""
    count, size = operand.index.shape[0], ELEMENTS[kind] // 8
    raw = operand.values.view(_PATTERNS[size]).reshape(
        count, -1, depth * (16 // size if across else 1)
    )
    if not across:
        return _numbers(raw, kind)
    raw = raw.reshape(count, -1, depth, 16 // size).swapaxes(1, 2).reshape(count, depth, -1)
    return np.swapaxes(_numbers(raw, kind), 1, 2)


def _numbers(raw: np.ndarray, kind: str) -> np.ndarray:
    """Return elements of shared memory as float32, or float64."""
    if kind == "bf16":
        words = raw.astype(np.uint32)
        words <<= np.uint32(16)
        return words.view(np.float32)
    if kind == "f16":
        return raw.view(np.float16).astype(np.float32)
    if kind == "tf32":
        return np.asarray((raw & np.uint32(0xFFFFE000)).view(np.float32))
    if raw.itemsize == 1 and kind in ("s8", "u8"):
        return np.asarray((raw.view(np.int8) if kind == "s8" else raw).astype(np.float64))
    return np.asarray(_eight(kind)[raw]) if raw.itemsize == 1 else decode(raw, kind)


@lru_cache(maxsize=None)
def _eight(kind: str) -> np.ndarray:
    """Return the numbers of all patterns of an 8-bit float, as float32."""
    return decode(np.arange(256, dtype=np.uint8), kind).astype(np.float32)


@dataclass(frozen=True)
class _Form:
    """A product of 64 rows.

    Args:
        n: columns.
        kinds: of the operands, and of the sums.
        sign: -1 for the negative product.
    """

    n: int
    kinds: tuple[str, str, str]
    sign: int
    saturate: bool
    generation: int

    def matrix(self, words: np.ndarray) -> np.ndarray:
        """Return words (registers, warps, 32) as patterns (warpgroups, 64, n)."""
        last = np.ascontiguousarray(np.moveaxis(words, 0, -1))
        if self.kinds[2] == "f16":
            last = last.view(np.uint16)
        z = np.empty((words.shape[1], 16, self.n), last.dtype)
        rows, columns = accumulator_places(16, self.n)
        z[:, rows, columns] = last
        return z.reshape(-1, 64, self.n)

    def words(self, matrix: np.ndarray) -> np.ndarray:
        """Return patterns (warpgroups, 64, n) as words (registers, warps, 32)."""
        rows, columns = accumulator_places(16, self.n)
        values = np.ascontiguousarray(matrix.reshape(-1, 16, self.n)[:, rows, columns])
        return np.ascontiguousarray(np.moveaxis(values.view(np.uint32), -1, 0))

    def sums(
        self,
        x: np.ndarray,
        y: np.ndarray,
        old: Optional[np.ndarray],
        keeps: np.ndarray,
        exact: bool,
    ) -> np.ndarray:
        """Return the sums, as patterns (warpgroups, 64, n).

        Args:
            x: (warpgroups, 64, k).
            y: (warpgroups or less, k, n), fewer if neighbours share theirs; (warpgroups, 64, k, n) if each row has its own.
            old: the patterns before, None for zero.
            keeps: the threads (warps, 32) that add to them.
            exact: add as the hardware does.
        """
        left, right, result = self.kinds
        if old is None or not keeps.any():
            z: Any = np.zeros((x.shape[0], 64, self.n), np.float32)
        else:
            if not keeps.all():
                words = self.words(old)
                old = self.matrix(np.where(keeps, words, np.zeros((), words.dtype)))
            z = _sums(old, result)
        if y.ndim == 3:
            x, z = x.reshape(y.shape[0], -1, x.shape[2]), z.reshape(y.shape[0], -1, self.n)
        if result == "s32":
            total = integer_products(x, y, z, self.saturate)
            return total.reshape(-1, 64, self.n)
        x = x if self.sign > 0 else -x
        if exact or y.ndim > 3:
            total = products(x, y, z, (left, right), result, self.generation, True)
            return total.reshape(-1, 64, self.n)
        total = np.matmul(x.astype(np.float32, copy=False), y.astype(np.float32, copy=False))
        total += z
        if result == "f16":
            total = total.astype(np.float16)
        return np.asarray(total.view(uint(8 * total.itemsize)).reshape(-1, 64, self.n))


def _types(call: Any) -> tuple[list[str], bool]:
    """Return the types of the sums and the factors, and whether these are bits; eight steps along K are a byte then."""
    ones = call.flag("and") and call.flag("popc")
    types, call.left = list(call.left), []
    if ones and types == ["s32", "b1", "b1"]:
        return ["s32", "u8", "u8"], True
    if ones or len(types) != 3 or any(t not in ELEMENTS or t == "b1" for t in types[1:]):
        raise call.refuse("`wgmma` of these types is not known")
    return types, False


def _bits(x: np.ndarray, axis: int) -> np.ndarray:
    """Return the bits of bytes along an axis, as numbers."""
    return np.unpackbits(x.astype(np.uint8), axis).astype(np.float64)


@instruction("wgmma.mma_async")
def mma_async(call: Any) -> Step:
    call.flag("mma_async"), call.flag("sync"), call.flag("aligned")
    sparse = call.flag("sp")
    shape = next((m for m in call.left if _SHAPE.fullmatch(m)), None)
    if shape is None:
        raise call.refuse("this shape of `wgmma` is not known")
    call.left.remove(shape)
    n, k = map(int, _SHAPE.fullmatch(shape).groups())  # type: ignore[union-attr]
    saturate = call.flag("satfinite")
    types, ones = _types(call)
    k = k // 8 if ones else k
    result, left, right = types
    each = max(1, 32 // ELEMENTS[left])
    out = 2 if result == "f16" else 1
    d, a, b, *rest = call.operands
    items = list(d.items) if isinstance(d, Vector) else [d]
    if len(items) != 64 * n // 128 // out:
        raise call.refuse(f"{len(items)} registers for a tile of 64 by {n}")
    word = TYPES["b32"]
    gets = [call.get(i, word) for i in items]
    for item in items:
        call.put(item, word)
    registers = isinstance(a, Vector)
    names = [i.name for i in items if isinstance(i, Register)]
    factors = [i.name for i in a.items if isinstance(i, Register)] if registers else []
    get_a: Any = [call.get(i, word) for i in a.items] if registers else call.get(a, TYPES["b64"])
    get_b = call.get(b, TYPES["b64"])
    choose = chooser(call, left, k, rest.pop(0), rest.pop(0)) if sparse and len(rest) > 2 else None
    if sparse and choose is None:
        raise call.refuse("`wgmma.mma_async.sp` takes metadata and their selector")
    held = k // 2 if sparse else k  # elements of a row of the left operand
    flag = call.get(rest[0], TYPES["pred"])
    signs = [int(o.value) for o in rest[1:] if isinstance(o, Immediate)]
    sign = [1, 1] if len(signs) < 2 else signs[:2]
    flipped = signs[2:]
    across_a = bool(flipped[0]) if len(flipped) == 2 and not registers else False
    across_b = bool(flipped[-1]) if flipped else False
    form = _Form(n, (left, right, result), sign[0] * sign[1], saturate, call.program.module.arch)
    rows_a, depth_a = left_places(16, held, each)
    wide = np.float64 if result == "s32" else np.float32
    targets = {i.name: number for number, i in enumerate(items) if isinstance(i, Register)}
    call.sums = frozenset(names)

    def run(group: Any) -> Any:
        here = group.machine.warpgroups(group)
        if here is not None:
            return group.machine.await_warps(group, here)
        observer = group.machine.observer
        if observer is not None:
            observer.products(group, names, factors)
        pending, warps = group.machine.products, group.rows.size
        operands = [_matrices(group, group.full(get_b(group))[::4, 0], n, k, right, across_b)]
        held_here = None
        if registers:
            words = np.stack([group.full(get(group)) for get in get_a], -1)
            held_here = np.zeros((warps, 16, held), wide)
            held_here[:, rows_a, depth_a] = unpack(words, left, each)
        else:
            descriptors = group.full(get_a(group))[::4, 0]
            operands.append(_matrices(group, descriptors, 64, held, left, across_a))
        places = None if choose is None else choose(group).reshape(-1, 64, held)
        keeps = group.full(flag(group))
        exact = group.machine.settings.sums == "hardware"
        before = pending.continued(group, targets) if pending.awaited else None
        kept: Optional[np.ndarray] = None
        if keeps.any() and before is None:
            kept = np.stack([group.full(get(group)) for get in gets])

        def factors_of(stored: list[Operand]) -> tuple[np.ndarray, np.ndarray]:
            y = _matrix(stored[0], k, right, across_b).swapaxes(1, 2)
            if held_here is not None:
                x = held_here.reshape(-1, 64, held)
            else:
                x = _matrix(stored[1], held, left, across_a).repeat(stored[1].sharing, 0)
            if ones:
                return _bits(x, 2), _bits(y, 1)
            if places is not None:
                y = gathered(y.repeat(stored[0].sharing, 0), places)
            return x, y

        def add(x: np.ndarray, y: np.ndarray, old: Optional[np.ndarray]) -> np.ndarray:
            return form.sums(x, y, old, keeps, exact)

        group.machine.changes += 1
        product = Product(group, targets, operands, before or kept, form, factors_of, add)
        product.library = not exact and choose is None and result == "f32"
        product.adds = bool(keeps.all())
        pending.start(group, product)

    return run


def _sums(patterns: np.ndarray, kind: str) -> np.ndarray:
    """Return sums as numbers."""
    if kind == "s32":
        return patterns.view(np.int32).astype(np.float64)
    if kind == "f16":
        return patterns.view(np.float16).astype(np.float32)
    return patterns.view(np.float32)
