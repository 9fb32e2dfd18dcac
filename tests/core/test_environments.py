"""Environments of tox that are set up at once share the files of their packages (.ci/install.py)."""

import importlib.util
import os
from pathlib import Path

import pytest

pytestmark = pytest.mark.once
ROOT = Path(__file__).parents[2]


@pytest.fixture
def install(monkeypatch):
    """The script, with a pip that unpacks a package and a script; `install.calls` are its arguments."""
    spec = importlib.util.spec_from_file_location("install", ROOT / ".ci" / "install.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.calls, module.code = [], 0

    def pip(*words):
        module.calls.append(words)
        for name in ("it/__init__.py", "bin/it", "share/jupyter/kernel.json"):
            file = Path(words[1]) / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(name)
        return module.code

    monkeypatch.setattr(module, "pip", pip)
    return module


def test_packages_are_unpacked_once_and_linked(install, tmp_path):
    for site in (tmp_path / "one", tmp_path / "two"):
        code, place = install.unpacked(tmp_path / "shared", ["torch", "numpy"])
        assert code == 0
        (site / "it").mkdir(parents=True)
        (site / "it" / "__init__.py").write_text("of an older release")
        install.link(place, site, tmp_path / "prefix")
        assert os.path.samefile(site / "it" / "__init__.py", place / "it" / "__init__.py")
        assert [path.name for path in site.iterdir()] == ["it"]  # neither scripts nor marks
        assert (tmp_path / "prefix" / "share" / "jupyter" / "kernel.json").is_file()
    assert len(install.calls) == 1


def test_other_packages_failures_and_old_files_are_unpacked_anew(install, tmp_path):
    install.unpacked(tmp_path, ["torch"])
    install.unpacked(tmp_path, ["torch", "numpy"])
    assert len(install.calls) == 2
    install.SHARED_FOR = 0.0
    install.code = 1
    assert install.unpacked(tmp_path, ["torch"])[0] == 1
    install.SHARED_FOR = 900.0
    assert install.unpacked(tmp_path, ["torch"])[0] == 1  # nothing of a failure is kept
    assert len(install.calls) == 4
