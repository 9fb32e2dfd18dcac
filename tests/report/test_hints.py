"""`gluon hints`: shapes and layouts of named values as inlay hints."""

import json

import pytest
from typer.testing import CliRunner

from gluon_cli.app import app

pytestmark = pytest.mark.once

FILE = """
import numpy as np
import gluon_core as gluon
from gluon_core import language as gl

@gluon.jit
def twice(value):
    result = 2 * value
    return result

@gluon.jit
def kernel(x, n, BLOCK: gl.constexpr, layout: gl.constexpr):
    i = gl.arange(0, BLOCK, layout=layout)
    total = gl.zeros([BLOCK], gl.float32, layout)
    for k in range(n):
        value = gl.load(
            x + i
        )
        total += twice(value)
    tile = gl.allocate_shared_memory(gl.float32, [BLOCK], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    tile.store(total)
    gl.store(x + i, tile.load(layout))

kernel[(1,)](np.ones(128, np.float32), 2, 128, gl.BlockedLayout([1], [32], [4], [0]))
"""


def hints(path, *options):
    result = CliRunner().invoke(app, ["hints", str(path), "--target", "sm_90", "--json", *options])
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_values_have_their_shapes_where_they_are_named(tmp_path):
    path = tmp_path / "kernel.py"
    path.write_text(FILE)
    lines = FILE.split("\n")
    shown = {}
    for hint in hints(path):
        place = hint["position"]
        before = lines[place["line"]][: place["character"]].split()[-1].split("(")[-1]
        shown[before, place["line"] + 1] = hint["label"]
        assert hint["uri"] == path.as_uri() and hint["kind"] == 1
    line = {text: i + 1 for i, text in enumerate(lines)}
    wide = ": fp32[128]"
    assert shown == {
        ("value", line["def twice(value):"]): wide,
        ("result", line["    result = 2 * value"]): wide,
        ("x", 12): ": *fp32",
        ("n", 12): ": i32",
        ("i", 13): ": i32[128]",
        ("total", 14): wide,
        ("k", 15): ": i32",
        ("value", 16): wide,
        ("total", 19): wide,
        ("tile", 20): ": fp32[128] in shared memory",
    }
    (buffer,) = [hint for hint in hints(path) if "shared" in hint["label"]]
    assert buffer["tooltip"].startswith("SwizzledSharedLayout(vec=1")


def test_kernels_without_layouts_show_those_that_are_found():
    shown = {
        (hint["position"]["line"] + 1, hint["label"]): hint["tooltip"]
        for hint in hints("examples/reductions/softmax.py")
    }
    assert "BlockedLayout" in shown[20, ": fp32[4, 1024]"]


def test_a_kernel_that_is_written_anew_has_the_names_of_its_source():
    shown = {
        (hint["data"]["name"], hint["label"]): hint["tooltip"]
        for hint in hints("examples/written/gemm.py")
    }
    (sums,) = {layout for (name, _), layout in shown.items() if name == "acc"}
    assert sums.startswith("NVMMADistributedLayout(") and ("K", ": i32") in shown


def test_text_names_places(tmp_path):
    path = tmp_path / "kernel.py"
    path.write_text(FILE)
    result = CliRunner().invoke(app, ["hints", f"{path}:kernel", "--target", "gfx942"])
    assert result.exit_code  # threads per warp are not the target's
    result = CliRunner().invoke(app, ["hints", str(path), "--target", "sim:sm_90"])
    assert f"{path}:13:5: i: i32[128]  BlockedLayout(" in result.output


@pytest.mark.parametrize("spec", ["no_such_file.py", "examples/reductions/softmax.py:none"])
def test_wrong_names(spec):
    assert CliRunner().invoke(app, ["hints", spec]).exit_code == 2
