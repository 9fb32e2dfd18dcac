"""Kernels of many kinds get layouts, and their explicit source names what it computes again."""

import re
from pathlib import Path

import numpy as np
import pytest

from gluon_core.registry.load import registry
from gluon_write.command import written

torch = pytest.importorskip("torch")
from tests.write import mixed_kernels  # noqa: E402

pytestmark = [pytest.mark.once, pytest.mark.sampled(10)]


@pytest.mark.sampled(23)
@pytest.mark.parametrize(
    "name, target",
    [
        ("conv", "gfx942"), ("fp8_gemm", "gfx950"), ("column_moments", "gfx1250"),
        ("ragged", "gfx942"), ("two_depths", "gfx1250"), ("rotary", "sm_80"), ("int4_gemm", "sm_90"), ("dropout", "gfx942"), ("decode", "gfx1250"),
    ],
)  # fmt: skip
def test_mixed_kernels(name, target, monkeypatch):
    monkeypatch.setenv("GLUON_TARGET", f"sim:{target}")
    result, wanted, tolerance = getattr(mixed_kernels, f"run_{name}")()
    assert np.abs(result.float().numpy() - wanted.float().numpy()).max() <= tolerance


def test_repeated_vectors_have_names(tmp_path):
    """An index vector that is computed again in another layout has one name there, and unread ones are gone."""
    path = tmp_path / "convolution.py"
    path.write_text(Path(mixed_kernels.__file__).read_text() + "\n\nrun_conv()\n")
    text, _ = written(str(path), registry().target("sm_90"))
    kernel = text[text.index("def conv(") : text.index("def run_conv(")]
    code = [line for line in kernel.splitlines() if not line.lstrip().startswith("#")]
    assert max(map(len, code[3:])) <= 130
    vectors = re.findall(r"c0 \+ gl\.arange\(0, BC, layout=(\w+)\)", kernel)
    assert len(vectors) == len(set(vectors)) == 2
    for name in re.findall(r"^ +(\w+) = [^\n]*arange", kernel, re.M):
        assert len(re.findall(rf"\b{name}\b", kernel)) > 1, name


def test_common_assignments_are_taken_apart(tmp_path):
    """Tensors that one statement assigns have a statement each; a swap stays."""
    path = tmp_path / "pairs.py"
    path.write_text(PAIRS)
    text, _ = written(str(path), registry().target("sm_90"))
    kernel = text[text.index("def moved(") : text.index("\nx = ")]
    assert len(re.findall(r"^    (?:i|j|first|last) = ", kernel, re.M)) == 4
    assert "first, last = last, first" in kernel


PAIRS = """import numpy as np

import gluon_core as gluon
from gluon_core import language as gl


@gluon.jit(layouts="auto")
def moved(x, out, N, B: gl.constexpr):
    i, j = gl.arange(0, B), gl.program_id(0) * B + gl.arange(0, B)
    first, last = gl.load(x + i[:, None] * N + j[None, :]), gl.load(x + j[None, :] * N + i[:, None])
    first, last = last, first
    gl.store(out + j[:, None] * N + i[None, :], (first - last).T)


x = np.ones((64, 64), np.float32)
moved[(1,)](x, x, 64, 64)
"""


def test_loads_within_products_are_copied_ahead(tmp_path):
    path = tmp_path / "inline.py"
    gemm = (Path(__file__).parents[2] / "examples" / "written" / "gemm.py").read_text()
    lines = [line for line in gemm.splitlines() if " = gl.portable.load(" not in line]
    loads = "gl.portable.load(a_tiles, [row, k]), gl.portable.load(b_tiles, [k, column])"
    path.write_text("\n".join(lines).replace("gl.portable.mma(x, y", f"gl.portable.mma({loads}"))
    text, _ = written(str(path), registry().target("sm_90"))
    assert "a_tile, b_tile = tiles.wait(step)" in text
