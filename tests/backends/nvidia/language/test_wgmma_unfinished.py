"""Accumulators of wgmma that are read before a wait covers them warn at the line that reads; all others do not."""

from __future__ import annotations

import importlib.util
import textwrap
import warnings

import pytest

import gluon_core as gluon
from gluon_core.errors import KernelWarning

pytestmark = pytest.mark.once

HEAD = """
import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.language.nvidia.hopper import warpgroup_mma as mma, warpgroup_mma_wait as wait

ACC = gl.constexpr(gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 64, 16]))
SH = gl.constexpr(gl.NVMMASharedLayout(128, 16, 2))

@gluon.jit
def covers(acc):
    return wait(0, deps=[acc])

@gluon.jit
def kernel(out, n):
    a = gl.allocate_shared_memory(gl.float16, [64, 64], SH, gl.full([64, 64], 1.0, gl.float16, ACC))
    b = gl.allocate_shared_memory(gl.float16, [64, 64], SH, gl.full([64, 64], 1.0, gl.float16, ACC))
    gl.nvidia.hopper.fence_async_shared()
    z = gl.zeros([64, 64], gl.float32, ACC)
    o = gl.arange(0, 64, gl.SliceLayout(1, ACC))[:, None] * 64 + gl.arange(0, 64, gl.SliceLayout(0, ACC))[None, :]
"""

READ = {
    "one": "c = mma(a, b, z, is_async=True)  # of\nc = wait(1, [c])\ngl.store(out + o, c)  # <--",
    "the younger of two": """
        c = mma(a, b, z, is_async=True)
        d = mma(a, b, z, is_async=True)  # of
        c, d = wait(1, [c, d])
        x = c * 2
        gl.store(out + o, x + d)  # <--
    """,
    "the older of two": """
        c = mma(a, b, z, is_async=True)  # of
        d = mma(a, b, z, is_async=True)
        c = wait(2, [c])
        x = c * 2  # <--
        wait(0, [d])
    """,
    "in a loop": """
        c = z
        for i in range(n):
            c = mma(a, b, c, is_async=True)  # of
            c = wait(1, [c])
            gl.store(out + o, c)  # <--
    """,
    "kept": """
        c = mma(a, b, z, is_async=True)  # of
        c = wait(1, [c])
        s = gl.allocate_shared_memory(gl.float32, [64, 64], gl.SwizzledSharedLayout(1, 1, 1, [1, 0]))
        s.store(c)  # <--
    """,
}

FINE = {
    "waited for": "c = mma(a, b, z, is_async=True)\nc = wait(0, [c])\ngl.store(out + o, c)",
    "not asynchronous": "c = mma(a, b, z)\ngl.store(out + o, c)",
    "the older of two": """
        c = mma(a, b, z, is_async=True)
        d = mma(a, b, z, is_async=True)
        c = wait(1, [c])
        gl.store(out + o, c)
        d = wait(0, [d])
        gl.store(out + o, d)
    """,
    "handed on": """
        c = mma(a, b, z, is_async=True)
        c = wait(1, [c])
        c = mma(a, b, c, is_async=True)
        c = wait(0, [c])
        gl.store(out + o, c)
    """,
    "carried": """
        c = z
        for i in range(n):
            c = mma(a, b, c, is_async=True)
            c = wait(1, [c])
        c = wait(0, [c])
        gl.store(out + o, c)
    """,
    "another wait in between": """
        c = mma(a, b, z, is_async=True)
        c = wait(1, [c])
        d = mma(a, b, z, is_async=True)
        wait(1, [d])
        gl.store(out + o, c)
        wait(0, [d])
    """,
    "one that is not asynchronous in between": """
        c = mma(a, b, z, is_async=True)
        c = wait(1, [c])
        d = mma(a, b, z)
        gl.store(out + o, c)
    """,
    "a function that may wait": """
        c = mma(a, b, z, is_async=True)
        d = mma(a, b, z, is_async=True)
        c = wait(2, [c])
        covers(d)
        gl.store(out + o, c)
    """,
    "a branch in between": """
        c = mma(a, b, z, is_async=True)
        c = wait(1, [c])
        if n > 2:
            wait(0, [c])
        gl.store(out + o, c)
    """,
    "never read": "c = mma(a, b, z, is_async=True)\nc = wait(1, [c])\nt = (c, z)\nwait(0, [c])",
}


def told(folder, body):
    path = folder / "kernel.py"
    text = textwrap.indent(textwrap.dedent(body), "    ")
    path.write_text(HEAD + text + "\n")
    spec = importlib.util.spec_from_file_location("kernel", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        kinds = {"out": "*fp32", "n": "i32"}
        gluon.compile(module.kernel, "sim:sm_90", signature=kinds)
    lines = path.read_text().split("\n")
    mine = [w for w in caught if w.category is KernelWarning and "accumulator" in str(w.message)]
    return lines, mine


@pytest.mark.parametrize("name", READ)
def test_a_read_that_no_wait_covers_warns(name, tmp_path):
    lines, mine = told(tmp_path, READ[name])
    assert mine and all("# <--" in lines[w.lineno - 1] for w in mine), mine
    line = next(i + 1 for i, text in enumerate(lines) if "# of" in text)
    assert f"the multiplication of line {line} writes it" in str(mine[0].message)
    assert "warpgroup_mma_wait(0" in str(mine[0].message)


@pytest.mark.parametrize("name", FINE)
def test_covered_and_uncertain_accesses_are_silent(name, tmp_path):
    assert not told(tmp_path, FINE[name])[1]
