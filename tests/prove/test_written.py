"""Mistakes in attention as `gluon write` writes it: none is proved."""

import runpy
from pathlib import Path

import pytest

from gluon_prove.verdict import prove
from gluon_sim.launcher import proving
from gluon_sim.settings import using

pytest.importorskip("z3", reason="gluon-core[prove] is not installed")

WRITTEN = Path(__file__).parents[2] / "examples" / "written" / "attention_tiles_sm_90.py"
LOOP = "for start in range(BN, masked_from, BN):"
PRODUCT = (
    "\n            score_product = gl.nvidia.hopper.warpgroup_mma_wait(1, deps=[score_product])"
)
VALUES = "\n            acc = gl.nvidia.hopper.warpgroup_mma_wait(0, deps=[acc])"
RELEASES = "\n            key_ring.release(next_slot)", "\n            value_ring.release(slot)"
MISTAKES = {
    "no release": (LOOP, "value_ring.release(slot)", "pass"),
    "a release before the product is over": (LOOP, f"{VALUES}{RELEASES[1]}", f"{RELEASES[1]}{VALUES}"),
    "a wait for the phase before": (
        LOOP,
        "key = key_ring.wait(next_slot)",
        "key_ring.wait(next_slot.next(2)); key = key_ring.tiles(next_slot)",
    ),
    "a wait at the other ring": (
        LOOP,
        "value = value_ring.wait(slot)",
        "key_ring.wait(slot); value = value_ring.tiles(slot)",
    ),
    "a product more in flight": (LOOP, "warpgroup_mma_wait(0, deps=[acc])", "warpgroup_mma_wait(1, deps=[acc])"),
    "a consumer too few": ("", "[v_tiles], 2, consumers=2", "[v_tiles], 2, consumers=1"),
    "a consumer too many": ("", "[k_tiles], 2, consumers=2", "[k_tiles], 2, consumers=3"),
    "a slot that stays": (LOOP, "slot = next_slot", "pass"),
    "steps without copies": ("def attention_copies", "range(masked_from, length, BN)", "range(masked_from, masked_from, BN)"),
}  # fmt: skip


HARMLESS = {
    "no copy waits for it": ("# One step at most is left.", "key_ring.release(slot)", "pass"),
    # The copy into the slot comes behind one that waits for the values of this step.
    "early, of keys": (LOOP, f"{PRODUCT}{RELEASES[0]}", f"{RELEASES[0]}{PRODUCT}"),
}


def changed(mark, *pairs):
    """Return the file's text with changes behind a mark."""
    text = WRITTEN.read_text()
    for old, new in zip(pairs[::2], pairs[1::2]):
        place = text.index(old, text.index(mark))
        text = text[:place] + new + text[place + len(old) :]
    return text


class _Judged(Exception):
    """Ends a file at its launch, once that is judged."""


def verdict(path):
    """Return the verdict on the launch of a file."""
    verdicts = []

    def judge(launch):
        verdicts.append(prove(launch)[0])
        raise _Judged

    with proving(judge), using(prove="*", within=120.0), pytest.raises(_Judged):
        runpy.run_path(str(path), run_name="__main__")
    return verdicts[0]


@pytest.mark.sampled(8)
@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_are_found(name, tmp_path, monkeypatch):
    monkeypatch.setattr("gluon_prove.verdict.again", lambda *args: (None, "not looked for"))
    monkeypatch.setattr("gluon_prove.search._FEW", 0)  # as for kernels with more states
    path = tmp_path / "attention.py"
    path.write_text(changed(*MISTAKES[name]))
    judged = verdict(path)
    assert judged.verdict == "cannot say" and "does not find it again" in judged.lines[0], judged


@pytest.mark.campaign
@pytest.mark.parametrize("name", HARMLESS)
def test_releases_that_change_no_order_are_proved(name, tmp_path, monkeypatch):
    monkeypatch.setattr("gluon_prove.search._FEW", 0)
    path = tmp_path / "attention.py"
    path.write_text(changed(*HARMLESS[name]))
    assert verdict(path).verdict == "proved"
