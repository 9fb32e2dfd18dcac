"""The pictures of the pages, made by the tools that the pages show.

python docs/_build/pictures.py    writes docs/pictures
"""

from __future__ import annotations

from pathlib import Path

from gluon_core import language as gl
from gluon_core import layouts

FOLDER = Path(__file__).parents[1] / "pictures"
ROWS = gl.BlockedLayout([1, 2], [4, 8], [1, 1], [1, 0])
COLUMNS = gl.BlockedLayout([2, 1], [4, 8], [1, 1], [0, 1])


def pictures() -> dict[str, str]:
    """File name -> SVG."""
    pictures = {
        "blocked": ROWS.show([4, 16]),
        "conversion": layouts.compare(ROWS, COLUMNS, [8, 16]),
        "vector": gl.BlockedLayout([4], [32], [1], [0]).show([128]),
        "swizzled": gl.SwizzledSharedLayout(1, 1, 32, [1, 0]).show([8, 32]),
        "mma": gl.NVMMADistributedLayout([2, 0], [1, 1], [16, 8]).show([16, 8]),
    }
    return {f"{name}.svg": picture.svg() for name, picture in pictures.items()}


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, text in pictures().items():
        (FOLDER / name).write_text(text)
