"""Every name of gl.amd of Triton 3.6 to 3.9, with its parameters."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.frontend import names_table

ROWS = names_table.read(Path(__file__).with_name("names.json"))


@pytest.mark.once
@pytest.mark.parametrize("row", ROWS, ids=str)
def test_name(row):
    names_table.check(row)


def test_the_table_is_not_empty():
    assert {row.namespace.rsplit(".", 1)[1] for row in ROWS} >= {"cdna3", "cdna4", "gfx1250", "tdm"}
