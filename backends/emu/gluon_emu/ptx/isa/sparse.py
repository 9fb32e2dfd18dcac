"""Left operands of which two of four elements are kept: PTX ISA 9.7.14.6, `mma.sp`, and `wgmma.mma_async.sp`."""

from __future__ import annotations

from typing import Any, Callable

import numpy as np

from gluon_emu.ptx.isa.products import ELEMENTS
from gluon_emu.ptx.program import TYPES
from gluon_emu.ptx.text import Immediate

__all__ = ["chooser", "gathered"]


def chooser(
    call: Any, kind: str, depth: int, metadata: Any, selector: Any
) -> Callable[[Any], np.ndarray]:
    """Return a function of a group that reads its metadata: the places (warps, 16, kept) along K of the elements that
    each row keeps.

    Four elements (of 4 bits: four pairs; of 32 bits: two elements) share four bits of metadata, the places of the two
    kept ones. For 16 and 32 bits a thread of each quad has 16 bits of its row, and of the row eight below in the upper
    half; for 4 and 8 bits a thread has 32 bits of its row, and the next one of the row eight below. The selector says
    which threads of a quad have them, as many as the depth takes.

    Args:
        depth: K of the whole product.
    """
    if not isinstance(selector, Immediate):
        raise call.refuse("the selector of the metadata is a number")
    get = call.get(metadata, TYPES["b32"])
    bits = ELEMENTS[kind]
    unit = 2 if bits == 4 else 1  # elements that are kept together
    nibbles = depth // (8 if bits == 4 else 2 if bits == 32 else 4)
    threads = max(1, nibbles // 4)
    first = int(selector.value) * threads
    if not 0 <= first <= 4 - threads:
        raise call.refuse(f"no selector {selector.value} of the metadata for this shape")
    lanes = np.arange(8)[:, None] * 4 + first + np.arange(threads)
    shifts = np.arange(0, 16 if bits > 8 else 32, 4, dtype=np.uint32)

    def read(group: Any) -> np.ndarray:
        words = group.full(get(group))[:, lanes]  # warps, 8, threads
        if bits > 8:
            rows = np.stack((words & np.uint32(0xFFFF), words >> np.uint32(16)), 1)
        else:
            rows = np.stack((words[..., ::2], words[..., 1::2]), 1)
        chosen = rows.reshape(words.shape[0], 16, -1)[..., None] >> shifts & np.uint32(15)
        chosen = chosen.reshape(words.shape[0], 16, -1)[..., :nibbles].astype(np.int64)
        if bits == 32:  # one of two: the places are of halves
            places = (chosen >> 1 & 1) + 2 * np.arange(nibbles)
        else:
            pair = np.stack((chosen & 3, chosen >> 2), -1) + 4 * np.arange(nibbles)[:, None]
            places = pair.reshape(*chosen.shape[:2], -1)
        return np.asarray(
            (places[..., None] * unit + np.arange(unit)).reshape(*places.shape[:2], -1)
        )

    return read


def gathered(right: np.ndarray, places: np.ndarray) -> np.ndarray:
    """Return the rows of the right operand that each row of the left one meets.

    Args:
        right: (products, K, N).
        places: (products, M, kept).

    Returns:
        (products, M, kept, N).
    """
    return np.take_along_axis(right[:, None], places[..., None], 2)
