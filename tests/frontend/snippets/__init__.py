"""Kernels in Gluon's portable language, one or a few per name of the interface.

`CASES` maps a name to (source, first Triton that has it). Sources run under the imports of Triton's
own Gluon and under ours; `oracle` lists the names there in addition to `gl` and `gluon`.
"""

from __future__ import annotations

from tests.frontend.snippets import (  # noqa: F401 - each adds its cases
    arithmetic,
    axes,
    calls,
    control,
    creation,
    global_memory,
    partitions,
    shapes,
    shared_memory,
)
from tests.frontend.snippets.programs import CASES, PRELUDE, source_of

__all__ = [
    "ABORTS",
    "BROUGHT",
    "CASES",
    "NORMAL_FORM_ONLY",
    "PRELUDE",
    "UNTIL",
    "WIDER",
    "source_of",
]

# The last Triton that has it.
UNTIL = {"thread_barrier": (3, 6)}
# Triton's own Gluon ends the process.
ABORTS = {"auto_layout-10", "fp4_to_fp-2", "to_linear_layout-4"}
# Triton's own Gluon refuses, at least in one version; ours must take it.
WIDER = {
    "argmax",
    "atomic_cas-1",
    "calls-18",
    "calls-19",
    "expand_dims-5",
    "fdiv-2",
    "memdesc-10",
    "memdesc-11",
    "methods-1",
    "reductions-35",
    "warp_specialize-2",
    *(f"argmax-{k}" for k in range(8)),
    *(
        f"atomic_{op}-{k}"
        for op in ("add", "max", "min", "and", "or", "xor", "xchg")
        for k in (3, 6, 7)
    ),
}
# Function names hold the text of a layout made inside a kernel; Triton 3.6 prints its lists as tuples.
NORMAL_FORM_ONLY = {(3, 6): {"calls-9"}}
# Names that older compilers can lower although their own Gluon lacks them.
BROUGHT = {"aggregate_replace", "barrier", "clamp", "cumsum", "expect_zero", "memdesc-reinterpret"}
