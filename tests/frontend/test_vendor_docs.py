"""Every op of gl.nvidia and gl.amd documents its operands, its errors, and which instruction it is."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re

import pytest

import gluon_amd.language
import gluon_nvidia.language


def public_names(module):
    """But for those that this release of Triton lacks."""
    names = getattr(module, "__all__", [name for name in vars(module) if not name.startswith("_")])
    return [name for name in names if hasattr(module, name)]


def _ops():
    """(name, op) of each public op, once."""
    operations = {}
    for package in (gluon_nvidia.language, gluon_amd.language):
        for entry in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            module = importlib.import_module(entry.name)
            for name in public_names(module):
                op = getattr(module, name)
                if hasattr(op, "__triton_builtin__") and hasattr(op, "requires"):
                    operations.setdefault(
                        op, f"{module.__name__.partition('.language.')[2]}.{name}"
                    )
    return sorted(((name, op) for op, name in operations.items()), key=lambda item: item[0])


OPS = _ops()


@pytest.mark.once
@pytest.mark.parametrize("op", [op for _, op in OPS], ids=[name for name, _ in OPS])
def test_documentation(op):
    text = inspect.cleandoc(op.__doc__ or "")
    parameters = [name for name in inspect.signature(op).parameters if not name.startswith("_")]
    assert len(text.splitlines()[0]) > 10
    assert re.search(r"^ISA: \S", text, re.M), "names no instruction"
    if not parameters:
        return
    sections = re.split(r"^(Args|Returns|Raises|ISA):", text, flags=re.M)
    assert {"Args", "Raises"} <= set(sections)
    described = sections[sections.index("Args") + 1]
    missing = [name for name in parameters if not re.search(rf"\b{name}\b", described)]
    assert not missing, "parameters that Args does not name"


def test_all_ops_are_here():
    names = {name for name, _ in OPS}
    assert len(names) > 95
    assert {name.partition(".")[0] for name in names} >= {"ampere", "hopper", "blackwell"}
