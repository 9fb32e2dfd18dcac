"""Facts about the machine that neither the simulator nor the emulator has, as a certificate names them."""

from __future__ import annotations

import re
from typing import Iterable, Iterator

__all__ = ["not_modelled"]

_ALWAYS = "time: neither executor knows how long an instruction takes"
_NVIDIA = (
    "ptxas and the cubin: the emulator executes the PTX that ptxas gets; the hash of the cubin is kept",
    "values that weak memory may return: accesses happen in one order, and missing order is reported instead",
)
_AMD = (
    "AMD's hardware: the manuals are the reference, no instruction was compared with silicon",
    "ISA text: the emulator executes the assembly; the assembler's bytes are hashed and not decoded",
)
_FORMS = {
    "setmaxnreg": "setmaxnreg: the number of registers of a warp",
    "griddepcontrol": "griddepcontrol: the overlap with the kernels before and after",
    "nanosleep": "nanosleep: a turn for the other warps, no time",
    "createpolicy": "cache policies",
    "prefetch": "prefetches",
    "discard": "discarded lines of caches",
}
_UNMEASURED = 100  # the first generation of NVIDIA's of which no GPU was measured
_INEXACT = re.compile(
    r"^(ex2|lg2|sin|cos|tanh|rcp|sqrt|rsqrt|div)\.(approx|full)|^v_(exp|log|sin|cos|rcp|rsq|sqrt)_"
)


def not_modelled(
    backend: str, arch: object, forms: Iterable[str], bare: Iterable[str]
) -> list[str]:
    """Return what the verdict on a kernel leaves out.

    Args:
        backend: of the architecture, "nvidia" or "amd"; `arch` its number or name.
        forms: the executed instructions.
        bare: pointer arguments that were given as numbers.
    """
    return list(dict.fromkeys(_all(backend, arch, sorted(forms), bare)))


def _all(backend: str, arch: object, forms: list[str], bare: Iterable[str]) -> Iterator[str]:
    yield _ALWAYS
    yield from {"nvidia": _NVIDIA, "amd": _AMD}.get(backend, ())
    if backend == "nvidia" and isinstance(arch, int) and arch >= _UNMEASURED:
        yield f"sm_{arch}: the emulation has not been compared with silicon"
    for form in forms:
        stem = form.partition(".")[0]
        if stem in _FORMS:
            yield _FORMS[stem]
        if "L2::cache_hint" in form:
            yield _FORMS["createpolicy"]
    inexact = sorted({m[0].strip("_") for form in forms if (m := _INEXACT.match(form))})
    if inexact:
        yield f"the last bits of approximations: {', '.join(inexact)}"
    for name in bare:
        yield f"memory behind {name}, whose pointer is a number"
