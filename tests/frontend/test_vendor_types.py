"""Every public name of gl.nvidia and gl.amd says its types, and is called what kernels call it."""

from __future__ import annotations

import inspect

import pytest

import gluon_amd.host
import gluon_amd.language
import gluon_amd.layouts
import gluon_nvidia.host
import gluon_nvidia.language
import gluon_nvidia.layouts
import gluon_nvidia.tensor_memory

LANGUAGES = (gluon_nvidia.language, gluon_amd.language)
HOSTS = (gluon_nvidia.host, gluon_amd.host)
OTHERS = (gluon_nvidia.layouts, gluon_nvidia.tensor_memory, gluon_amd.layouts)

# Constructors' arguments that nobody passes by hand.
MADE_OF = {"self", "cls", "builder", "handle"}
# Types that depend on the operands (wgmma), is for numbers and arrays alike (pad), or is Triton's.
DEPENDS = {"warpgroup_mma_wait", "pad", "to_ir", "type"}


def _names(module):
    """But for those that this release of Triton lacks."""
    names = getattr(module, "__all__", [name for name in vars(module) if not name.startswith("_")])
    return [name for name in names if hasattr(module, name)]


def _namespaces(module):
    """A module, and those that it exports."""
    yield module
    for name in _names(module):
        member = getattr(module, name)
        if inspect.ismodule(member):
            yield from _namespaces(member)


def _functions(owner, prefix, name):
    value = inspect.getattr_static(owner, name)
    if isinstance(value, (staticmethod, classmethod)):
        value = value.__func__
    if isinstance(value, property):
        value = value.fget
    if inspect.isclass(value):
        for member in vars(value):
            if not member.startswith("_") or member == "__init__":
                yield from _functions(value, f"{prefix}.{value.__name__}", member)
    elif inspect.isfunction(value):
        yield f"{prefix}.{name}", value


def _public():
    """(name, function) of every public function and method that the packages define."""
    modules = [module for top in (*LANGUAGES, *HOSTS) for module in _namespaces(top)]
    names = {}
    for module in (*modules, *OTHERS):
        for name in _names(module):
            for label, function in _functions(module, module.__name__, name):
                if function.__module__.startswith(("gluon_nvidia", "gluon_amd")):
                    names.setdefault(function, label)
    return {label: function for function, label in names.items()}


def _untyped(label, function):
    """Return the parameters of a function without a type, or with any."""
    name = label.rsplit(".", 1)[-1]
    if name in DEPENDS:
        return []
    signature = inspect.signature(function)
    types = {
        name: parameter.annotation
        for name, parameter in signature.parameters.items()
        if not name.startswith("_") and name not in MADE_OF
    }
    if name != "__init__":
        types["return"] = signature.return_annotation
    return [f"{label}: {part}" for part, kind in types.items() if kind in (signature.empty, "Any")]


def test_types():
    public = _public()
    assert len(public) > 150
    assert [part for label in public for part in _untyped(label, public[label])] == []


@pytest.mark.parametrize("language", LANGUAGES)
def test_names(language):
    """help() and tracebacks call a function as kernels do; an older name shows what it is now."""
    seen = 0
    for module in _namespaces(language):
        for name in _names(module):
            member = getattr(module, name)
            if inspect.isfunction(member):
                seen += 1
                assert member.__name__ == member.__qualname__, f"{module.__name__}.{name}"
                assert getattr(module, member.__name__, None) is member, f"{module.__name__}.{name}"
    assert seen > 50
