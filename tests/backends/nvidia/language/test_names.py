"""Every name of gl.nvidia of Triton 3.6 to 3.9, with its parameters; and each op has a model."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import gluon_nvidia
from gluon_nvidia import reference
from gluon_sim.tracing.builder import SimBuilder
from tests.frontend import names_table

ROWS = names_table.read(Path(__file__).with_name("names.json"))


@pytest.mark.once
@pytest.mark.parametrize("row", ROWS, ids=str)
def test_name(row):
    names_table.check(row)


def test_the_table_is_not_empty():
    wanted = {"ampere", "hopper", "blackwell", "rubin", "tma", "mbarrier", "clc", "float2"}
    assert {row.namespace.rsplit(".", 1)[1] for row in ROWS} >= wanted


def test_every_op_has_a_model():
    """The builder ops that gl.nvidia emits and that the simulator cannot run: none."""
    folder = Path(gluon_nvidia.__file__).parent / "language"
    texts = [file.read_text() for file in folder.rglob("*.py")]
    emitted = {name for text in texts for name in re.findall(r"\bcreate_(\w+)", text)}
    assert {"packed_arith", "clc_try_cancel", "tcgen05_mma", "warpgroup_mma"} <= emitted
    missing = {
        name
        for name in emitted
        if not hasattr(reference, name) and not hasattr(SimBuilder, f"create_{name}")
    }
    assert missing == set()
