"""Kernels in files with names beyond ASCII, with tabs or Windows' line ends."""

from __future__ import annotations

import importlib.util
import os

import numpy as np
import pytest
from typer.testing import CliRunner

from gluon_cli.app import app
from gluon_core.errors import DtypeError, KernelSyntaxError

pytestmark = [pytest.mark.once, pytest.mark.sampled(3)]

FILE = """
import gluon_core as gluon
from gluon_core import language as gl

LAYOUT = gl.constexpr(gl.BlockedLayout([4], [32], [4], [0]))

@gluon.jit
def kernel(x):
    i = gl.arange(0, 512, LAYOUT)
    gl.store(x + i, 2 * gl.load(x + i))
"""


def imported(path, text):
    path.write_bytes(text.encode())
    spec = importlib.util.spec_from_file_location("imported", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.sampled(6)
@pytest.mark.parametrize("name", ["naïve kérnel.py", "核 %20.py", "%C3%A9.py"])
def test_machine_code_has_the_lines_of_a_file_with_any_name(tmp_path, name):
    folder = tmp_path / "a földer"
    folder.mkdir()
    (folder / name).write_text(FILE)
    words = ["compile", f"{folder / name}:kernel", "--target", "sm_90", "-s", "*fp32:16"]
    result = CliRunner().invoke(app, words, env={"COLUMNS": "200"})
    assert result.exit_code == 0, result.output
    assert f"{name}:10" in result.output and "1 LDG.128, 1 STG.128" in result.output


@pytest.mark.parametrize("indent, end", [("\t", "\n"), ("    ", "\r\n"), ("\t", "\r\n")])
def test_tabs_and_line_ends_leave_the_caret_below_its_expression(tmp_path, indent, end):
    text = FILE.replace("    ", indent).replace("\n", end)
    right = imported(tmp_path / "right.py", text)
    x = np.ones(512, np.float32)
    right.kernel[(1,)](x, target="sim:hopper")
    assert (x == 2).all()
    wrong = imported(tmp_path / "wrong.py", text.replace("gl.load(x + i)", "gl.load(x + 'a')"))
    with pytest.raises(DtypeError) as caught:
        wrong.kernel[(1,)](x, target="sim:hopper")
    line, caret = str(caught.value).splitlines()[-2:]
    assert caret.count("^") == len("x + 'a'")
    assert caret.expandtabs().index("^") == line.expandtabs().index("x + 'a'")


def test_a_function_has_a_name_of_ascii(tmp_path):
    module = imported(tmp_path / "named.py", FILE.replace("kernel", "größe"))
    with pytest.raises(KernelSyntaxError, match="must be ASCII.*got größe"):
        module.größe[(1,)](np.ones(512, np.float32), target="sim:hopper")


LAUNCHED = f"""{FILE}
if __name__ == "__main__":
    import numpy as np

    kernel[(1,)](np.ones(512, np.float32), target="sim:sm_90")
"""


@pytest.mark.parametrize(
    "words, option",
    [
        (["compile", "FILE", "-t", "sm_90", "-o", "no/such/x"], "--output"),
        (["compile", "FILE", "-t", "sm_90", "--emit", "ttgir,llir", "-o", "no/such/x"], "--output"),
        (["certify", "FILE", "-t", "gfx942", "-o", "no/such/x"], "--output"),
        (["new", "name", "--to", "FILE"], "--to"),
        (["timeline", "no/such.json", "--html", "x.html"], "FILE: no such file"),
    ],
)
def test_a_path_that_the_system_refuses(tmp_path, monkeypatch, words, option):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "FILE").write_text(LAUNCHED)
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 2, (result.output, result.exception)
    assert option in result.output and "Error: " in result.output


def test_a_path_that_the_file_opens_itself_is_its_own_error(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "opens.py").write_text("open('no/such')\n")
    result = CliRunner().invoke(app, ["run", "opens.py"])
    assert result.exit_code == 1 and "UsageError" not in result.output


@pytest.mark.parametrize("command", ["write", "port"])
def test_a_file_that_is_no_text(tmp_path, monkeypatch, command):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "FILE").write_bytes(b"x = '\xff'\n")
    result = CliRunner().invoke(app, [command, "FILE"])
    assert result.exit_code == 2, (result.output, result.exception)
    assert "no Python source" in result.output, result.output


@pytest.mark.parametrize("words", [["run"], ["compile", "--target", "sm_90", "--emit", "ptx"]])
def test_a_folder_whose_name_is_no_utf_8(tmp_path, words):
    folder = tmp_path / os.fsdecode(b"gr\xfc")
    folder.mkdir()
    file = folder / "file.py"
    file.write_text(LAUNCHED)
    result = CliRunner().invoke(app, [words[0], str(file), *words[1:]])
    assert result.exit_code == 0, (result.output, result.exception)


def test_nothing_to_look_at_says_so(tmp_path):
    empty = tmp_path / "empty.py"
    empty.write_text("")
    for words, sentence in (
        (["slim", str(empty)], "nothing was tried: no kernel is launched"),
        (["prove", str(empty)], "nothing was proved: no kernel is launched"),
        (["judge", str(empty), "-r", str(empty)], "there is no function to judge"),
    ):
        result = CliRunner().invoke(app, words, env={"COLUMNS": "300"})
        assert result.exit_code == 3 and sentence in result.output, result.output
        assert "JudgeError: JudgeError" not in result.output
