"""Texts of functions that a kernel's text takes in: no branches that their constants do not take."""

import pytest

from gluon_write.text.constant_branches import with_taken_branches

pytestmark = pytest.mark.once

TEXT = """x = 1
for i in range(3):
    if 2 == 2:
        # note
        y = 4 if 1 == 2 else 5
    if x:
        a
    elif 1 == 2:
        b
    else:
        c
    if False:
        d
    elif x:
        e
    elif True and 1 < 2:
        f  # taken
    else:
        g
    if None is None: h
while x:
    if not 1:
        i
if 1 / 0 == 1:
    j
"""

TAKEN = """x = 1
for i in range(3):
    # note
    y = 5
    if x:
        a
    else:
        c
    if x:
        e
    else:
        f  # taken
    if None is None: h
while x:
    pass
if 1 / 0 == 1:
    j
"""


def test_branches_of_constants():
    assert with_taken_branches(TEXT) == TAKEN
    assert with_taken_branches(TAKEN) == TAKEN
