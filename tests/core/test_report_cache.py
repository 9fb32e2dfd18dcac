"""The cache of reports of machine code, next to the machine code."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.registry.load import registry

pytestmark = [pytest.mark.once, pytest.mark.sampled(3)]


@gluon.jit
def copy_kernel(src, dst, BLOCK: gl.constexpr, LAYOUT: gl.constexpr):
    offsets = gl.arange(0, BLOCK, layout=LAYOUT)
    gl.store(dst + offsets, gl.load(src + offsets))


def compiled(block=128):
    return gluon.compile(
        copy_kernel,
        target="sm_90",
        signature={"src": "*fp32", "dst": "*fp32"},
        constexprs={"BLOCK": block, "LAYOUT": gl.BlockedLayout([1], [32], [4], [0])},
    )


@pytest.fixture
def inspected(monkeypatch, tmp_path):
    """Return the list of kernels inspected so far, with a cache of its own."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    compiler, calls = type(registry().backend("nvidia").compiler), []
    own = compiler.inspect

    def inspect(self, kernel):
        calls.append(kernel)
        return own(self, kernel)

    monkeypatch.setattr(compiler, "inspect", inspect)
    return calls


def kept(tmp_path):
    (path,) = Path(tmp_path).rglob("*.report.json")
    return path


def test_one_inspection_for_all_processes(inspected, tmp_path):
    first = compiled().report()
    again = compiled().report()
    assert first == again and len(inspected) == 1
    assert kept(tmp_path).parent == Path(compiled().metadata_group["copy_kernel.cubin"]).parent


@pytest.mark.parametrize("damage", ["text", "number", "maker"])
def test_damaged_and_foreign_entries_are_made_again(inspected, tmp_path, damage):
    first = compiled().report()
    path = kept(tmp_path)
    document = json.loads(path.read_text())
    if damage == "number":
        document["value"]["registers"] += 1
    elif damage == "maker":
        document["maker"] = "another"
    path.write_text("{" if damage == "text" else json.dumps(document))
    assert compiled().report() == first and len(inspected) == 2
    compiled().report()
    assert len(inspected) == 2


def test_another_binary_has_another_report(inspected, monkeypatch):
    compiled().report()
    compiled(256).report()
    assert len(inspected) == 2
    monkeypatch.setenv("TRITON_ALWAYS_COMPILE", "1")
    compiled().report()
    assert len(inspected) == 3
