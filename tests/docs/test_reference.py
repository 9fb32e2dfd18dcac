"""The language reference: complete, and every example prints what it says."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

from gluon_core.testing import triton_at_least

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "docs" / "_build"))

import mistakes  # noqa: E402
import public_names  # noqa: E402
import reference  # noqa: E402
import sections  # noqa: E402

pytestmark = [pytest.mark.once, pytest.mark.timeout(300)]


# Those that start processes or import torch: their guides, and `tox -e docs`, run them as well.
SLOW = {"host_torch", "host_tune", "operators"}


@pytest.mark.sampled(8)
@pytest.mark.parametrize(
    "file",
    [
        pytest.param(file, id=file.stem, marks=[pytest.mark.campaign] if file.stem in SLOW else [])
        for file in sections.files()
    ],
)
def test_examples_print_their_output(file):
    if file.stem in ("host_torch", "operators"):
        pytest.importorskip("torch")
    for section, printed in sections.run(file):
        assert printed == section.output, f"{file.name}:{section.first}"


# Likewise: the tests of the emulator and of the search make these mistakes, too.
SLOW_MISTAKES = {"emulator", "tuning"}


@pytest.mark.parametrize(
    "file",
    [
        pytest.param(
            file, id=file.stem, marks=[pytest.mark.campaign] if file.stem in SLOW_MISTAKES else []
        )
        for file in mistakes.files()
    ],
)
def test_errors_have_the_text_of_the_page(file):
    if file.stem == "pytorch":
        pytest.importorskip("torch")
    for section, printed in sections.run(file):
        assert printed == section.output, f"{file.name}:{section.first}"
        (name,) = section.names
        assert name in section.code and section.title and printed, f"{file.name}:{section.first}"


def test_every_error_class_has_a_program():
    assert mistakes.shown() == mistakes.classes()


@pytest.mark.parametrize("file", sections.files(), ids=lambda file: file.stem)
def test_examples_use_their_names(file):
    for section in sections.sections(file):
        used = set()
        for node in ast.walk(ast.parse(section.code)):
            if isinstance(node, (ast.Attribute, ast.Name)):
                used.add(node.attr if isinstance(node, ast.Attribute) else node.id)
        # The type of a value is there without being named, and `gl.void` is an annotation, too.
        unused = {name.rpartition(".")[2] for name in section.names} - used
        assert not {name for name in unused if not name.endswith(("_type", "_descriptor"))}, (
            f"{file.name}:{section.first} does not use {unused}"
        )
        assert section.output, f"{file.name}:{section.first} prints nothing"


def test_every_name_of_the_language_and_of_host_code_has_an_example():
    assert public_names.missing() == []
    names = {*public_names.language_names(), *public_names.host_names(), *public_names.room_names()}
    assert len(names) > 150
    extra = {n for n in public_names.exampled() if n.partition(".")[0] not in public_names.VENDORS}
    assert extra <= names | {"gluon.errors", "gluon.layouts", "gluon.jit"}, extra - names


def test_a_name_without_an_example_is_found(monkeypatch):
    import gluon_core.language as gl
    from gluon_core import layouts, tune
    from gluon_core.plugin import ops

    monkeypatch.setattr(gl, "brand_new", lambda x: x, raising=False)
    monkeypatch.setattr(gl.nvidia.hopper.tma, "brand_new", lambda x: x, raising=False)
    monkeypatch.setattr(layouts, "__all__", [*layouts.__all__, "brand_new"])
    monkeypatch.setattr(layouts, "brand_new", lambda x: x, raising=False)
    monkeypatch.setattr(tune, "__all__", [*tune.__all__, "brand_new"])
    monkeypatch.setattr(tune, "brand_new", lambda x: x, raising=False)
    monkeypatch.setattr(ops, "__all__", [*ops.__all__, "brand_new"])
    monkeypatch.setattr(ops, "brand_new", lambda x: x, raising=False)
    names = {"brand_new"}
    names |= {
        f"{room}.brand_new" for room in ("gluon.layouts", "gluon.tune", "gluon_core.plugin.ops")
    }
    assert set(public_names.missing()) == names
    assert any("brand_new" in name for name in public_names.missing("nvidia"))


@pytest.mark.parametrize("vendor", public_names.VENDORS)
def test_every_name_of_a_vendor_has_an_example(vendor):
    assert public_names.missing(vendor) == []


def test_pages_hold_every_name_and_link_to_no_other():
    pages = reference.pages()
    everything = "\n".join(pages.values())
    targets = re.findall(r"^\((g[\w.]+)\)=$", everything, re.M)
    assert len(targets) == len({target.lower() for target in targets})
    wanted = {reference.anchor(name) for name in public_names.exampled()}
    of_vendors = {f"gl.{n}" for v in public_names.VENDORS for n in public_names.vendor_names(v)}
    elsewhere = {n for n in wanted if n.startswith(("gl.nvidia.", "gl.amd."))} - of_vendors
    assert wanted | of_vendors == set(targets) | elsewhere
    assert {"gluon.layouts.equal", "gluon.testing.run_parser", "gluon.tune.search"} < set(targets)
    assert set(re.findall(r"\]\(#([\w.]+)\)", everything)) <= set(targets)
    # Authors of lowerings get it; kernels never pass it.
    of_kernels = "\n".join(text for path, text in pages.items() if "/plugins_" not in path)
    assert "_semantic" not in of_kernels and "<factory>" not in everything
    assert not re.search(r"0x[0-9a-f]{6,}", everything)


def test_an_op_lists_its_requirements():
    if not triton_at_least(3, 9):
        pytest.skip("names that only later releases have are not on the pages")
    page = reference.pages()["reference/nvidia.md"]
    entry = page.partition("### gl.nvidia.hopper.warpgroup_mma\n")[2].partition("\n### ")[0]
    assert "Needs `nvidia.wgmma` (sm_90" in entry
    assert "Needs Triton >= 3.9" in reference.pages()["reference/memory.md"]
    assert "| `global_load` |" in reference.pages()["reference/portable.md"]


def test_every_command_and_setting_is_there():
    pages = reference.pages()
    for name, command in reference.commands():
        assert f"## gluon {name}" in pages["reference/cli.md"]
        for parameter in command.params:
            assert parameter.opts[0] in pages["reference/cli.md"] or parameter.name in (
                "help",
                *(p.name for p in command.params if p.param_type_name == "argument"),
            )
    names = set()
    for folder in ("gluon_core", "backends"):
        for file in (ROOT / folder).rglob("*.py"):
            names |= set(re.findall(r"GLUON_[A-Z_]+[A-Z]\b", file.read_text()))
    missing = {name for name in names if name not in pages["reference/settings.md"]}
    assert missing <= {"GLUON_SIM_CHECKS", "GLUON_SIM", "GLUON_EMU"}, missing


def test_a_wrong_output_is_found(tmp_path):
    file = tmp_path / "wrong.py"
    file.write_text("x = 2\n\n# -- gluon.jit: a number\nprint(x)\n#> 3\n")
    command = [sys.executable, ROOT / "docs" / "_build" / "sections.py"]
    done = subprocess.run([*command, file], capture_output=True, text=True)
    assert done.returncode == 1 and "prints\n2\nand not\n3" in done.stdout, done
    subprocess.run([*command, "--write", file], check=True)
    assert subprocess.run([*command, file]).returncode == 0


def test_pictures_are_up_to_date():
    import pictures

    drawn = pictures.pictures()
    assert {path.name for path in pictures.FOLDER.glob("*")} == set(drawn)
    for name, text in drawn.items():
        assert (pictures.FOLDER / name).read_text() == text, "python docs/_build/pictures.py"
        assert any(name in page.read_text() for page in (ROOT / "docs").glob("*.md")), name


def test_a_signature_keeps_defaults_that_are_text():
    def f(a, mode: str = "", *, scope: str = "gpu", size: int = 4):
        """Nothing."""

    shown = reference.signature("gl.f", f)
    assert 'gl.f(a, mode: str = "", *, scope: str = "gpu", size: int = 4)' in shown
