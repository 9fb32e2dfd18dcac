"""`gluon layout FILE:LINE`: the layouts that the solver chose for the values of a line."""

import json

import pytest
from typer.testing import CliRunner

from gluon_cli.app import app
from gluon_write.preferred import preferred_form

pytestmark = pytest.mark.once
KERNEL = """import numpy as np

import gluon_core as gluon
from gluon_core import language as gl


@gluon.jit(layouts="auto")
def doubled(x, out, n, B: gl.constexpr):
    place = gl.program_id(0) * B + gl.arange(0, B)
    value = gl.load(x + place, mask=place < n)
    gl.store(out + place, value * 2, mask=place < n)


if __name__ == "__main__":
    x, out = np.ones(1000, np.float32), np.zeros(1000, np.float32)
    doubled[(1,)](x, out, 992, 1024)
"""


REASONS = """import numpy as np

import gluon_core as gluon
from gluon_core import language as gl


@gluon.jit(layouts="auto")
def narrow(x, ids, out, n, B: gl.constexpr):
    place = gl.arange(0, B)
    row = gl.load(ids + place)
    gl.store(out + place, gl.load(x + row) + gl.load(x + n + place), mask=place < n)


if __name__ == "__main__":
    x, ids, out = np.ones(256, np.float32), np.zeros(128, np.int32), np.zeros(128, np.float32)
    narrow[(1,)](x, ids, out, 100, 128)
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "doubled.py"
    path.write_text(KERNEL)
    return path


def call(*arguments):
    return CliRunner().invoke(app, ["layout", *map(str, arguments)])


def test_a_line_shows_the_layouts_of_its_values(file):
    result = call(f"{file}:10", "--target", "sm_90")
    assert result.exit_code == 0, result.output
    assert "value of doubled: BlockedLayout(size_per_thread=[4]" in result.stdout
    assert "place of doubled: " in result.stdout and "16 bytes a thread" in result.stdout
    assert "next best: BlockedLayout" in result.stdout and "% more" in result.stdout
    wide = call(f"{file}:10:value", "--target", "gfx942", "--json")
    (value,) = json.loads(wide.stdout)
    assert "threads_per_warp=[64]" in value["layout"] and value["shape"] == [1024]


def test_reasons_say_why_an_access_is_narrow(tmp_path):
    """Elements may be apart, begin anywhere, or have a mask that ends anywhere."""
    path = tmp_path / "narrow.py"
    path.write_text(REASONS)
    shown = call(f"{path}:9:place", "--target", "sm_90").stdout
    assert "load of x: 4 bytes a thread, no more are surely adjacent, " in shown
    assert "load of x: 4 bytes a thread, no more are surely aligned, " in shown
    assert "store to out: 4 bytes a thread, the mask may split more, " in shown
    assert "load of ids: 4 bytes a thread, 4 sectors a warp" in shown


def test_one_value_makes_a_picture(file, tmp_path):
    picture = tmp_path / "value.svg"
    result = call(f"{file}:10:value", "--target", "sm_90", "--svg", picture)
    assert result.exit_code == 0, result.output
    assert picture.read_text().startswith("<svg")


@pytest.mark.parametrize(
    "place, words",
    [
        (":10:nothing", "no such value with a layout; expected"),
        (":10:nothing", "10:NAME, NAME one of value, place, got"),
        (":1", "expected a line with one of place (line 9), value (line 10)"),
        (":1", "those that a descriptor replaces have none"),
        ("", "expected FILE:LINE, with a number, got"),
        (":value", "expected FILE:LINE, with a number, got"),
    ],
)
def test_places_without_layouts(file, place, words):
    result = call(f"{file}{place}", "--target", "sm_90")
    assert result.exit_code == 2 and words in result.stderr
    missing = call("nowhere.py:3")
    assert missing.exit_code == 2 and "no such file" in missing.stderr
    file.write_text("def (:\n")
    broken = call(f"{file}:1")
    assert broken.exit_code == 1 and f"{file}:1:5\n    def (:\n        ^\n" in broken.stderr


def test_a_line_shows_the_values_of_its_own_kernel(tmp_path):
    """Two kernels of a file have values of one name."""
    other = KERNEL.partition("@gluon.jit")[2].partition("\n\n\nif")[0].replace("doubled", "other")
    path = tmp_path / "both.py"
    path.write_text(
        KERNEL.replace("\n\nif", f"\n\n@gluon.jit{other}\n\n\nif")
        + "    other[(1,)](x, out, 992, 2048)\n"
    )
    line = next(i for i, t in enumerate(path.read_text().splitlines(), 1) if "def other" in t) + 2
    result = call(f"{path}:{line}", "--target", "sm_90")
    assert result.exit_code == 0, result.output
    assert "value of other: " in result.stdout and "of doubled" not in result.stdout
    # A function that one of them calls has a value whose name the other has, too.
    half = "@gluon.jit\ndef half(x):\n    value = x * 0.5\n    return value\n\n\n"
    text = path.read_text().replace("value * 2", "half(value)", 1)
    path.write_text(text.replace("@gluon.jit", f"{half}@gluon.jit", 1))
    result = call(f"{path}:10", "--target", "sm_90")
    assert "value of doubled: " in result.stdout and "of other" not in result.stdout
    assert "x of doubled: " in call(f"{path}:8", "--target", "sm_90").stdout


PRODUCT = """
@gluon.jit(layouts="auto")
def product(a, b, c, K, B: gl.constexpr):
    row, lane = gl.arange(0, B)[:, None], gl.arange(0, B)[None, :]
    acc = gl.zeros([B, B], gl.float32)
    for k in range(0, K, B):
        x = gl.load(a + row * K + k + lane)
        acc = gl.portable.mma(x, gl.load(b + (k + row) * B + lane), acc)
    gl.store(c + row * B + lane, acc)


product[(1,)](*np.ones((2, 4096), np.float16), np.ones(4096, np.float32), 64, 64)
"""


def test_a_tile_is_shown_by_its_own_name(tmp_path):
    """A ring of buffers holds it, of which one is shown; so does one of a pipeline by descriptors."""
    path = tmp_path / "product.py"
    path.write_text(KERNEL.partition("\n\n\n@")[0] + "\n\n" + PRODUCT)
    line = next(i for i, t in enumerate(path.read_text().splitlines(), 1) if " x = " in t)
    with preferred_form("pipelined"):
        result = call(f"{path}:{line}:x", "--target", "sm_90")
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("x of product: NVMMASharedLayout(")
    assert "\n  as x_ring\n" in result.stdout
    assert "for a tensor of shape [64, 64]:\n  offset (4096): " in result.stdout
    by_tiles = call(f"{path}:{line}:x", "--target", "sm_90")
    assert by_tiles.stdout.startswith("x of product: NVMMASharedLayout("), by_tiles.output
    assert "as x_ring" not in by_tiles.stdout
