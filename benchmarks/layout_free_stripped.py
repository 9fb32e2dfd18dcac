"""Kernels of gluon_kernels with their layouts taken out.

Each is launched with the constants of the operator that has the layouts, so the layouts alone differ.
"""

from __future__ import annotations

import re
from pathlib import Path

__all__ = ["odd_rows_text", "rows_text", "without_layouts"]

ROOT = Path(__file__).resolve().parents[1]
_ARGUMENT = r"(?:gl\.SliceLayout\(\d, layout\)|\w+\.type\.layout|layout|others|edges|flat)"
_FOLDER = ROOT / "kernels" / "gluon_kernels" / "norm"
_IMPORT = r"from gluon_kernels\.norm\.(?:rows|portable) import (?:\([^)]*\)|[^(\n]*)\n"


def without_layouts(text: str) -> str:
    """Return the text of kernels without their layouts, each marked `layouts="auto"`."""
    text = re.sub(r"\n +(?:layout|others|edges|flat): gl\.constexpr = .*", "", text)
    text = re.sub(r",\s*layout: gl\.constexpr(?=\s*[,)])", "", text)
    text = re.sub(rf",\s*{_ARGUMENT}(?=\s*[,)])", "", text)
    return text.replace("@gluon.jit\n", '@gluon.jit(layouts="auto")\n')


def rows_text() -> str:
    """Return the kernels over rows of `gluon_kernels.norm` without layouts."""
    rows, kernels = ((_FOLDER / f"{name}.py").read_text() for name in ("rows", "portable"))
    rows = rows.partition("@dataclass")[0]
    return without_layouts(rows) + without_layouts(re.sub(_IMPORT, "", kernels))


def odd_rows_text() -> str:
    """Return the kernels of `gluon_kernels.norm.odd`, over rows that begin anywhere, without layouts."""
    kernels = re.sub(_IMPORT, "", (_FOLDER / "odd.py").read_text())
    return rows_text() + without_layouts(kernels)
