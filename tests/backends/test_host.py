"""`gluon_core.<vendor>`: one module object however it is spelled, and nothing heavy behind it."""

import importlib
import subprocess
import sys

import pytest

VENDORS = ["nvidia", "amd"]


@pytest.mark.parametrize("vendor", VENDORS)
def test_host_namespace_is_the_plugins_module(vendor):
    import gluon_core

    module = importlib.import_module(f"gluon_core.{vendor}")
    assert module is importlib.import_module(f"gluon_{vendor}.host")
    assert getattr(gluon_core, vendor) is module
    assert all(a.backend == vendor for a in module.ARCHITECTURES)


@pytest.mark.once
@pytest.mark.parametrize("vendor", VENDORS)
def test_host_namespace_imports_no_compiler(vendor):
    code = (
        f"import sys, gluon_core.{vendor}; print(sorted({{'triton', 'torch'}} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "[]", done.stderr
