"""The ops of each target that copy to shared memory in the background."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["COPIES", "Copies"]


class Copies(NamedTuple):
    """Name the ops of a target that copy to shared memory in the background.

    Attributes:
        space: of the ops. start: the op that starts a copy. other: more words of it.
        most: buffers; with two, every wait is for all copies, as some releases count them wrongly.
    """

    space: str
    start: str
    other: str = ""
    most: int = 1 << 16


COPIES = {
    "nvidia.cp_async": Copies("nvidia.ampere.async_copy", "async_load"),
    "amd.direct_to_lds_128": Copies(
        "amd.cdna4.async_copy", "global_load_to_shared", ", other=0", 2
    ),
    "amd.async_lds": Copies("amd.gfx1250.async_copy", "global_to_shared", ", other=0", 2),
}
