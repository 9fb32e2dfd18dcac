"""All families of random programs, by name: what `test_differences` samples and `sweep` runs in full."""

from __future__ import annotations

import hashlib
import random
from typing import Callable

from tests.compat import (
    amd,
    assembly,
    clusters,
    fp4,
    hardware,
    loosened,
    packed,
    products,
    waves,
)
from tests.fuzz import layouts, operands
from tests.fuzz.draw import Draw
from tests.fuzz.mixed import mixed

__all__ = ["ALONE", "CHECKS", "COMPILED", "FAMILIES", "digest", "made"]

FAMILIES: dict[str, Callable[[Draw], str]] = {
    **layouts.FAMILIES,
    **operands.FAMILIES,
    **hardware.FAMILIES,
    **products.FAMILIES,
    **amd.FAMILIES,
    **packed.FAMILIES,
    **waves.FAMILIES,
    **clusters.FAMILIES,
    **assembly.FAMILIES,
    **fp4.FAMILIES,
}
# Checks that were loosened once: kernels most of which are wrong.
CHECKS = [f"loosened {name}" for name in loosened.names() if name not in layouts.FAMILIES]
# Compilers abort on these more often than tracers: sources that both sides trace are compiled as well.
COMPILED = {*CHECKS, *clusters.FAMILIES, *assembly.FAMILIES, *fp4.FAMILIES}


# Operands most of which do not fit: ours alone takes them.
ALONE = {"any operands": mixed}


def made(family: str, seed: int, number: int) -> str:
    """The source of one program."""
    if family in FAMILIES or family in ALONE:
        return {**FAMILIES, **ALONE}[family](Draw(random.Random(f"{family}:{seed}:{number}")))
    return loosened.made(family.removeprefix("loosened "), seed * 100_000 + number)


def digest(source: str) -> str:
    """Return the key of a source in a log."""
    return hashlib.sha256(source.encode()).hexdigest()[:12]
