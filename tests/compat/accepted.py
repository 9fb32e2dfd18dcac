"""Programs that look wrong and that both sides accept, each with the reason."""

from __future__ import annotations

from dataclasses import dataclass

from gluon_core.testing import TRITON_VERSION

__all__ = ["ACCEPTED", "Accepted", "section"]


@dataclass(frozen=True)
class Accepted:
    """A program that upstream and we accept.

    Args:
        title: the questionable use.
        why: the reason to accept it.
        source: a kernel, as `tests.frontend.oracle` takes them.
        last: the last release of Triton that accepts it.
        warns: words of our warning; empty where there is none.
    """

    title: str
    why: str
    source: str
    last: tuple[int, int] = (3, 9)
    warns: str = ""

    @property
    def here(self) -> bool:
        return TRITON_VERSION[:2] <= self.last


_ROWS = "L: gl.constexpr = gl.BlockedLayout([1, 2], [4, 8], [4, 1], [1, 0])"


def _kernel(*lines: str, before: str = "", end: str = "", dtype: str = "float32") -> str:
    body = "".join(f"    {line}\n" for line in lines)
    return f"{before}@gluon.jit\ndef kernel(p, n):\n{body}ARGS = (ptr(gl.{dtype}), 5)\n{end}"


_WORKERS = """\
@gluon.jit
def work(p, n):
    gl.store(p, n)
@gluon.jit
def answer(p, n):
    return n
"""
_CDNA3 = 'TARGET = GPUTarget("hip", "gfx942", 64)\n'

ACCEPTED = [
    Accepted(
        "`convert_layout(..., assert_trivial=True)` between layouts that differ on larger shapes",
        "the assertion is about the tensor at hand: for its shape each thread holds the same elements in "
        "both layouts, so no data moves.",
        _kernel(
            _ROWS,
            "x = gl.full([4, 16], 1.0, gl.float32, L)",
            "y = gl.convert_layout(x, gl.BlockedLayout([1, 2], [4, 8], [2, 2], [1, 0]), assert_trivial=True)",
            "gl.store(p + gl.full([4, 16], 0, gl.int32, y.type.layout), y)",
        ),
    ),
    Accepted(
        "`SwizzledSharedLayout` with a number that is no power of two, such as 6 phases",
        "the phase of a row is a remainder, and each number has one; both sides place the elements alike.",
        _kernel(
            _ROWS,
            "S: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 6, [1, 0])",
            "s = gl.allocate_shared_memory(gl.float32, [32, 32], S, gl.full([32, 32], 1.0, gl.float32, L))",
            "gl.store(p + gl.full([32, 32], 0, gl.int32, L), s.load(L))",
        ),
    ),
    Accepted(
        "Masks of buffer atomics that are integers",
        "upstream compares them with 0, and so do we.",
        _kernel(
            "i = gl.arange(0, 256, gl.BlockedLayout([1], [64], [4], [0]))",
            "gl.amd.cdna3.buffer_atomic_add(p, i, i.to(gl.uint32), mask=i)",
            end=_CDNA3,
            dtype="uint32",
        ),
    ),
    Accepted(
        "Fewer names than values on the left of an assignment",
        "upstream drops the rest before Triton 3.9; a KernelWarning names them where the release lets us "
        "see them (not on 3.8).",
        _kernel("a, b = (n, n, n)", "gl.store(p, a + b)"),
        last=(3, 8),
        warns="of 3 values the first 2" if TRITON_VERSION[:2] < (3, 8) else "",
    ),
    Accepted(
        "Workers of `warp_specialize` that return values",
        "upstream drops the values; a KernelWarning says so.",
        _kernel(
            "gl.warp_specialize([(work, (p, n)), (answer, (p, n))], [4], [24])", before=_WORKERS
        ),
        warns="returns a value",
    ),
    Accepted(
        "Register budgets of `warp_specialize` beyond the register file",
        "the compiler ignores such a request and the kernel runs; a KernelWarning gives the numbers.",
        _kernel(
            "gl.warp_specialize([(work, (p, n)), (work, (p, n)), (work, (p, n))], [4, 8], [240, 240])",
            before=_WORKERS,
        ),
        warns="ask for fewer",
    ),
    Accepted(
        "TMA copies to a buffer of another dtype of the same width",
        "a copy moves bytes; upstream compares the dtypes from Triton 3.7 on, and so do we from there.",
        _kernel(
            "d = gl.nvidia.hopper.tma.make_tensor_descriptor(p, [64, 64], [64, 1], [32, 32], gl.NVMMASharedLayout(128, 32, 2))",
            "s = gl.allocate_shared_memory(gl.int32, [32, 32], d.layout)",
            "gl.nvidia.hopper.tma.async_copy_shared_to_global(d, [0, 0], s)",
        ),
        last=(3, 6),
    ),
    Accepted(
        "`buffer_load` of `other` with `mask=None`",
        "nothing is masked, so `other` is never read; upstream refuses it from Triton 3.8 on.",
        _kernel(
            "i = gl.arange(0, 256, gl.BlockedLayout([1], [64], [4], [0]))",
            "gl.store(p + i, gl.amd.cdna3.buffer_load(p, i, None, 1.0))",
            end=_CDNA3,
        ),
        last=(3, 7),
    ),
    Accepted(
        "`num_stages` of a loop that is 0 or negative",
        "the number is a hint to a software pipeliner that Gluon does not run.",
        _kernel("for j in tl.range(0, n, num_stages=-1):", "    gl.store(p + j, n)"),
    ),
]


def section() -> str:
    """Return the part of `docs/compatibility.md` about these programs."""
    rows = "".join(
        f"| {entry.title} | {'to ' + '.'.join(map(str, entry.last)) if entry.last < (3, 9) else 'all'} "
        f"| {entry.why} |\n"
        for entry in ACCEPTED
    )
    return (
        "## Questionable uses that both accept\n\n"
        "Upstream compiles these programs and hardware runs them, so they run here, too.\n\n"
        f"| use | releases | why it is accepted |\n| --- | --- | --- |\n{rows}"
    )
