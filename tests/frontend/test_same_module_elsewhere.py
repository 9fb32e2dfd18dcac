"""The same module for other targets, numbers of warps and clusters."""

from __future__ import annotations

import pytest

from gluon_core.testing import triton_at_least
from tests.frontend import oracle

pytestmark = pytest.mark.once

SOURCE = """
@gluon.constexpr_function
def layout(lanes, warps):
    return gl.BlockedLayout([1, 4], [lanes // 8, 8], [warps, 1], [1, 0], CGA)

@gluon.jit
def combine(a, b):
    return a * b

@gluon.jit
def partial(x, k: gl.constexpr):
    return x * k, gl.associative_scan(x, 1, combine)

@gluon.jit
def kernel(p, q, n, LANES: gl.constexpr, WARPS: gl.constexpr):
    L: gl.constexpr = layout(LANES, WARPS)
    rows = gl.program_id(0) * 64 + gl.arange(0, 64, gl.SliceLayout(1, L))
    columns = gl.arange(0, 32, gl.SliceLayout(0, L))
    offsets = rows[:, None] * 32 + columns[None, :]
    x = gl.load(p + offsets, mask=(rows < n)[:, None], other=0.0)
    total = gl.zeros([64], gl.float32, gl.SliceLayout(1, L))
    for k in range(0, n, 3):
        a, b = partial(x, 2)
        total += gl.sum(a, 1) + gl.max(b, 1)
        if k > 5:
            x = gl.exp2(x)
    y = x + total[:, None].to(gl.float16)
    gl.store(q + offsets, y, mask=(rows < n)[:, None])
    gl.atomic_add(q + rows * 2, total, mask=rows < n, sem="relaxed")
"""


def source(cga: str = "[]") -> str:
    return SOURCE.replace("CGA", cga)


TARGETS = [
    ("cuda", 80, 32),
    ("cuda", 90, 32),
    ("cuda", 100, 32),
    ("cuda", 120, 32),
    ("hip", "gfx942", 64),
    ("hip", "gfx950", 64),
    ("hip", "gfx1100", 32),
    ("hip", "gfx1250", 32),
]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("warps", [1, 4, 8])
@pytest.mark.parametrize("target", TARGETS, ids=lambda t: str(t[1]))
def test_targets(target, warps):
    backend, arch, lanes = target
    oracle.compare(
        f"{source()}\nTARGET = GPUTarget({backend!r}, {arch!r}, {lanes})\n"
        f"ARGS = (ptr(gl.float32), ptr(gl.float32), 100, {lanes}, {warps})\nKWARGS = {{'num_warps': {warps}}}\n"
    )


@pytest.mark.parametrize("ctas, cga", [(2, "[[1, 0]]"), (2, "[[0, 1]]"), (4, "[[1, 0], [0, 1]]")])
def test_clusters(ctas, cga):
    if not triton_at_least(3, 8) and "[0, 1]" in cga:
        pytest.skip("slices of such layouts, and reductions, end the process before 3.8")
    text = source(cga)
    if (
        not triton_at_least(3, 9) or "[0, 1]" in cga
    ):  # a scan would end the compiler, and is refused
        text = text.replace("gl.associative_scan(x, 1, combine)", "combine(x, x)")
    oracle.compare(
        f"{text}\nARGS = (ptr(gl.float32), ptr(gl.float32), 100, 32, 4)\nKWARGS = {{'num_ctas': {ctas}}}\n"
    )


@pytest.mark.parametrize(
    "option",
    [
        "'debug': True",
        "'sanitize_overflow': True, 'debug': True",
        "'maxnreg': 64",
        "'num_stages': 2",
    ],
)
def test_options(option):
    oracle.compare(
        f"{source()}\nARGS = (ptr(gl.float32), ptr(gl.float32), 16, 32, 4)\nKWARGS = {{{option}}}\n"
    )


@pytest.mark.parametrize("argument", ["1", "16", "17", "2**33", "2**63", "-5", "True"])
def test_specialization(argument):
    text = """
@gluon.jit
def kernel(p, n):
    gl.store(p, n)
"""
    oracle.compare(f"{text}\nARGS = (ptr(gl.int64), {argument})\n")


@pytest.mark.parametrize(
    "signature",
    [
        "p: gl.pointer_type(gl.float32), n",
        "p, n: gl.int64",
        "p, n: 'i16'",
        "p, n: gl.float32",
        "p, *n",
    ],
)
def test_annotations(signature):
    if "*n" in signature and not triton_at_least(3, 9):
        pytest.skip("kernels of older versions cannot have *args")
    last = "n[0]" if "*n" in signature else "n"
    text = f"""
@gluon.jit
def kernel({signature}):
    gl.store(p, {last})
"""
    oracle.compare(f"{text}\nARGS = (ptr(gl.float32), 5)\n")


def test_do_not_specialize():
    text = """
@gluon.jit(do_not_specialize=["n"], do_not_specialize_on_alignment=["p"])
def kernel(p, n):
    gl.store(p, n)
ARGS = (ptr(gl.float32), 16)
"""
    oracle.compare(text)
