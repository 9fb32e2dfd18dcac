"""Layouts of tensor memory and of values loaded from it, against the compiler, and their checks.

The compiler's answers come from child processes, because it may abort on what it cannot do.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tempfile

import pytest

from gluon_core.errors import LayoutError
from gluon_core.testing import TRITON_VERSION
from gluon_nvidia.tensor_memory import (
    COLUMNS,
    RubinTensorMemoryScalesLayout,
    TensorMemoryLayout,
    TensorMemoryScalesLayout,
    _TensorMemoryLinearLayout,
    columns_of,
)
from gluon_nvidia.tensor_memory_registers import VARIANTS, register_layout

pytestmark = [pytest.mark.once, pytest.mark.sampled(2)]

CHILD = os.path.join(os.path.dirname(__file__), "tensor_memory_oracle.py")


def ask(requests):
    """The compiler's answer to each request: bases, an error's text, or None for an abort."""
    answers = []
    while len(answers) < len(requests):
        with tempfile.TemporaryFile("w+") as file:
            child = subprocess.run(
                [sys.executable, CHILD],
                input=json.dumps(requests[len(answers) :]),
                stdout=file,
                stderr=subprocess.PIPE,
                text=True,
                timeout=300,
            )
            file.seek(0)
            answers += [json.loads(line) for line in file]
        if len(answers) < len(requests):
            assert child.returncode < 0, child.stderr[-2000:]
            answers.append(None)
    return answers


def power(rng, low, high):
    return 1 << rng.randint(low.bit_length() - 1, high.bit_length() - 1)


def described(layout):
    fields = {name: value for name, value in layout._fields()}
    fields["split"] = layout.cta_split_num
    return {"class": type(layout).__name__, **fields}


def random_cga(rng):
    if rng.random() < 0.5:
        return []
    known = [[[1, 0]], [[0, 1]], [[1, 0], [0, 1]], [[1, 0], [2, 0]]]
    if TRITON_VERSION >= (3, 8):
        known += [[[0, 1], [1, 0]], [[0, 0]], [[1, 0], [0, 0]]]
    return rng.choice(known)


def random_layout(rng):
    """A layout, a shape and the width of an element that fits it."""
    cga = random_cga(rng)
    if rng.random() < 0.2:
        layout = TensorMemoryScalesLayout(cga)
        if TRITON_VERSION >= (3, 8) and rng.random() < 0.5:
            layout = RubinTensorMemoryScalesLayout(cga, rng.choice(["mnThenK", "kThenMn"]))
        return layout, [power(rng, 64, 512), power(rng, 2, 32)], 8
    bits = rng.choice([8, 16, 32])
    stride = rng.choice([1, 32 // bits])
    pairs = cga[:1] == [[1, 0]] and rng.random() < 0.5
    layout = TensorMemoryLayout([power(rng, 64, 128), power(rng, 8, 128)], stride, cga, pairs)
    return layout, [power(rng, 64, 512), power(rng, 8, 256)], bits


def test_register_layouts_match_the_compiler():
    rng = random.Random(0)
    cases, requests = [], []
    while len(cases) < 600:
        layout, shape, bits = random_layout(rng)
        warps, variant = rng.choice([4, 8, 16]), rng.choice(VARIANTS)
        try:
            mine = register_layout(layout, shape, bits, warps, variant)
        except LayoutError:
            continue
        if columns_of(layout, shape, bits) > COLUMNS:
            continue
        cases.append((layout, shape, bits, warps, variant, mine))
        requests.append(
            {"layout": described(layout), "shape": shape, "bits": bits, "warps": warps}
            | {"variant": variant, "cga": layout.cga_layout}
        )
    wrong = []
    for (*case, mine), theirs in zip(cases, ask(requests)):
        bases = [mine.reg_bases, mine.lane_bases, mine.warp_bases, mine.block_bases]
        if bases != theirs:
            wrong.append((case, bases, theirs))
    assert not wrong, f"{len(wrong)} of {len(cases)} differ, first: {wrong[0]}"


@pytest.mark.skipif(TRITON_VERSION < (3, 7), reason="needs Triton 3.7")
def test_linear_forms_match_the_compiler():
    rng = random.Random(1)
    cases, requests = [], []
    while len(cases) < 300:
        layout, shape, _ = random_layout(rng)
        if layout.cga_layout and TRITON_VERSION < (3, 8):
            continue  # it leaves the cluster out
        try:
            bases = layout.to_linear(shape).bases
        except LayoutError:
            continue
        cases.append((layout, shape, [bases["row"], bases["col"]]))
        requests.append({"layout": described(layout), "shape": shape, "linear": True})
    answers = ask(requests)
    wrong = [(case, theirs) for case, theirs in zip(cases, answers) if case[2] != theirs]
    assert not wrong, f"{len(wrong)} of {len(cases)} differ, first: {wrong[0]}"


def test_the_compiler_refuses_the_same():
    """Narrow buffers, odd packing: not one case that upstream takes without a cluster."""
    rng = random.Random(2)
    cases, requests = [], []
    while len(cases) < (60 if TRITON_VERSION >= (3, 8) else 20):  # older ones abort
        bits, stride = rng.choice([8, 16, 32]), rng.choice([1, 2, 4])
        block = [power(rng, 64, 128), power(rng, 8, 32)]
        layout = TensorMemoryLayout(block, stride)
        shape = [power(rng, block[0], 256), power(rng, block[1], 64)]
        warps, variant = rng.choice([4, 8, 16]), rng.choice(VARIANTS)
        try:
            register_layout(layout, shape, bits, warps, variant)
        except LayoutError as error:
            if stride * bits > 32:
                continue  # no such buffer
            cases.append((layout, shape, bits, warps, variant, str(error)))
            requests.append(
                {"layout": described(layout), "shape": shape, "bits": bits, "warps": warps}
                | {"variant": variant, "cga": []}
            )
    taken = [c for c, theirs in zip(cases, ask(requests)) if isinstance(theirs, list)]
    assert not taken, f"{len(taken)} of {len(cases)}, first: {taken[0]}"


@pytest.mark.skipif(TRITON_VERSION < (3, 8), reason="needs Triton 3.8")
def test_names_match_upstream():
    from triton.experimental.gluon.language.nvidia import blackwell, rubin

    pair = {"cga_layout": [[1, 0]], "two_ctas": True}
    for args, named in (
        (([128, 64], 1), {}),
        (([64, 32], 2), {"cga_layout": [[1, 0], [0, 1]]}),
        (([128, 64], 1), pair),
        (([128, 64], 1), {"fp4_padded": True}),
    ):
        theirs = blackwell.TensorMemoryLayout(*args, **named).mangle()
        assert TensorMemoryLayout(*args, **named).mangle() == theirs
    for cga in ([], [[1, 0]]):
        theirs = blackwell.TensorMemoryScalesLayout(cga).mangle()
        assert TensorMemoryScalesLayout(cga).mangle() == theirs
        theirs = rubin.TensorMemoryScalesLayout(cga, "kThenMn").mangle()
        assert RubinTensorMemoryScalesLayout(cga, "kThenMn").mangle() == theirs
    bases = ([[1, 0]], [[0, 1]], [2, 2])
    theirs = blackwell._TensorMemoryLinearLayout(*bases).mangle()
    assert _TensorMemoryLinearLayout(*bases).mangle() == theirs


@pytest.mark.skipif(TRITON_VERSION >= (3, 8), reason="Triton 3.8 has cga_layout")
def test_names_match_older_upstream():
    from triton.experimental.gluon.language.nvidia import blackwell

    for named in ({}, {"cta_split_num": [2, 1], "two_ctas": True}, {"cta_split_num": (2, 2)}):
        theirs = blackwell.TensorMemoryLayout([128, 64], 1, **named).mangle()
        assert TensorMemoryLayout([128, 64], 1, **named).mangle() == theirs
    assert TensorMemoryScalesLayout([2, 1]).mangle() == (
        blackwell.TensorMemoryScalesLayout([2, 1]).mangle()
    )


def test_both_spellings_of_a_cluster():
    layout = TensorMemoryLayout([128, 64], 1, [[1, 0], [0, 1]])
    assert layout == TensorMemoryLayout([128, 64], 1, cta_split_num=[2, 2])
    assert layout == TensorMemoryLayout([128, 64], 1, (2, 2))
    assert layout.cta_split_num == [2, 2]
    assert TensorMemoryLayout([128, 64], 1).cta_split_num is None
    assert TensorMemoryScalesLayout((1, 2)).cga_layout == [[0, 1]]
    assert RubinTensorMemoryScalesLayout().block_rep_order == "mnThenK"


@pytest.mark.parametrize(
    "make, match",
    [
        (lambda: TensorMemoryLayout([32, 64], 1), "block"),
        (lambda: TensorMemoryLayout([128, 96], 1), "block"),
        (lambda: TensorMemoryLayout([128, 1024], 1), "block"),
        (lambda: TensorMemoryLayout([128], 1), "block"),
        (lambda: TensorMemoryLayout([128, 64], 3), "col_stride"),
        (lambda: TensorMemoryLayout([128, 64], 2, fp4_padded=True), "col_stride"),
        (lambda: TensorMemoryLayout([128, 64], 1, cta_split_num=[3, 1]), "cta_split_num"),
        (lambda: TensorMemoryLayout([128, 64], 1, [[1, 0]], cta_split_num=[1, 2]), "disagree"),
        (lambda: TensorMemoryLayout([128, 64], 1, [[3, 0]]), "cga_layout"),
        (lambda: TensorMemoryLayout([128, 64], 1, two_ctas=True).to_linear([128, 64]), "pair"),
        (lambda: TensorMemoryLayout([128, 64], 1).to_linear([64, 64]), "smaller than a block"),
        (lambda: RubinTensorMemoryScalesLayout([], "kThenM"), "block_rep_order"),
        (lambda: register_layout(TensorMemoryLayout([128, 8], 1), [128, 8], 32, 2), "num_warps"),
        (lambda: register_layout(TensorMemoryLayout([128, 8], 1), [128, 8], 64, 4), "element_ty"),
        (lambda: register_layout(TensorMemoryLayout([128, 8], 1), [128, 8], 32, 4, "8x8"), "instr"),
        (lambda: _TensorMemoryLinearLayout([[1]], [[0, 1]], [2, 2]), "rows"),
    ],
)  # fmt: skip
def test_illegal_layouts(make, match):
    with pytest.raises(LayoutError, match=match):
        make().check()


def test_columns():
    whole = TensorMemoryLayout([128, 128], 1)
    assert columns_of(whole, [128, 128], 32) == 128
    assert columns_of(whole, [2, 128, 128], 16) == 128
    assert columns_of(TensorMemoryLayout([64, 64], 1), [128, 64], 32) == 64
    assert columns_of(TensorMemoryLayout([128, 64], 2), [128, 64], 16) == 64
    assert columns_of(TensorMemoryScalesLayout(), [128, 8], 8) == 8
    assert columns_of(TensorMemoryLayout([128, 64], 1, [[1, 0]]), [256, 64], 32) == 64
