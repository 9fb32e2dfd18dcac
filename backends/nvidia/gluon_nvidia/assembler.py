"""The input and output of `ptxas`: lines of the kernel, and places where it keeps no `wgmma` in flight."""

from __future__ import annotations

import contextlib
import io
import re
from typing import Any, Callable, Iterator

from gluon_core.plugin.triton_compiler import TritonCompiler
from gluon_nvidia.timeline import plain

__all__ = ["keep_spills", "keep_warnings", "located", "slow_products"]

_Run = Callable[[Any, "dict[str, Any]"], Any]

# "(C7510) Potential Performance Loss: wgmma.mma_async instructions are serialized due to REASON in the
# function 'kernel'", and newer ones "in line 0"
_SERIALIZED = re.compile(
    r"\(C75\d\d\) Potential Performance Loss: wgmma\.mma_async instructions are serialized "
    r"due to (.+?)(?: in (?:the )?function '[^']*')?(?: in line \d+)?\s*$",
    re.M,
)
_REMEDIES = {
    "defining accumulator": "Where a loop of products may end before it begins, sums that are zeros meet "
    "those of products: let it run once, with range(gl.maximum(steps, 1)), on tiles that are masked.",
    "accumulator registers": "Use the result of warpgroup_mma only after a warpgroup_mma_wait that returns it, "
    "in loops and branches, too, and start sums with warpgroup_mma_init.",
    "register resources": "Multiply smaller tiles, or give the partition more registers: fewer live values "
    "next to the accumulator, more warps to share it, the last argument of gl.warp_specialize.",
    "function": "Inline the functions that are called between a multiplication and its wait.",
}
_ANY = "Between a multiplication and its wait, do not use its accumulator otherwise, and call no function."


_INLINE = re.compile(r"// begin inline asm\n.*?// end inline asm", re.S)
_LOC = re.compile(r"^[ \t]*\.loc\b.*\n", re.M)
_FILE = re.compile(r"^[ \t]*\.file\b.*$", re.M)
_OCTAL = re.compile(r"\\([2-3][0-7]{2})")


def _quoted(text: str) -> str:
    """Return text with `%` as `%25`, and with `%C3%A9` for the bytes that LLVM writes in octal."""
    return _OCTAL.sub(lambda byte: f"%{int(byte[1], 8):02X}", text.replace("%", "%25"))


def located(run: _Run) -> _Run:
    """Return the stage `run`, which writes PTX, with the kernel's lines within inline assembly.

    Newer LLVM counts the lines of the text there, up from the kernel's line: loads, stores and products
    would be ascribed to lines below theirs. Letters beyond ASCII, which ptxas refuses, are replaced in
    comments; the path of the kernel's file is written as in a URL.
    """

    def stage(source: Any, metadata: dict[str, Any]) -> Any:
        ptx = _INLINE.sub(lambda block: _LOC.sub("", block[0]), run(source, metadata))
        ptx = _FILE.sub(lambda line: _quoted(line[0]), ptx)
        return ptx.encode("ascii", "replace").decode("ascii")

    return stage


def keep_warnings(run: _Run) -> _Run:
    """Return the stage `run`, which calls ptxas and puts the warnings of ptxas into the metadata."""

    def stage(source: Any, metadata: dict[str, Any]) -> Any:
        if "wgmma.mma_async" not in source:
            return run(source, metadata)
        result, log = _logged(run, source, metadata)
        products = slow_products(log)
        if products:
            metadata.setdefault("warnings", []).extend(products)
        return result

    return stage


def keep_spills(run: _Run) -> _Run:
    """Return the stage `run`, which calls ptxas, with a warning where a timeline makes a kernel spill registers."""

    def stage(source: Any, metadata: dict[str, Any]) -> Any:
        result, log = _logged(run, source, metadata)
        spilled = _spilled(log)
        if spilled:
            alone = _spilled(_logged(run, plain(source), dict(metadata))[1])
            if spilled > alone:
                metadata.setdefault("warnings", []).append(
                    f"recording a timeline spills {spilled} bytes of registers, {alone} are spilled without: the recorded "
                    "times are too long. Open fewer scopes at once, or give the partition more registers, the last "
                    "argument of gl.warp_specialize."
                )
        return result

    return stage


def _logged(run: _Run, source: Any, metadata: dict[str, Any]) -> tuple[Any, str]:
    """Return what a stage that calls ptxas returns, and the messages of ptxas."""
    output = io.StringIO()
    with _talking() as wanted, contextlib.redirect_stdout(output):
        result = run(source, metadata)
    if wanted:
        print(output.getvalue(), end="")
    return result, output.getvalue()


def _spilled(log: str) -> int:
    """Return the bytes of spills that ptxas reports, stores and loads."""
    return sum(int(size) for size in re.findall(r"(\d+) bytes spill (?:stores|loads)", log))


def slow_products(output: str) -> list[str]:
    """Return a warning for each reason why products wait for each other."""
    reasons = dict.fromkeys(" ".join(warning.split()) for warning in _SERIALIZED.findall(output))
    return [
        f"the assembler waits after each `wgmma`, which is slow: {reason}. {_remedy(reason)}"
        for reason in reasons
    ]


def _remedy(reason: str) -> str:
    return next((text for words, text in _REMEDIES.items() if words in reason), _ANY)


@contextlib.contextmanager
def _talking() -> Iterator[bool]:
    """Print the messages of ptxas as Triton does, where a user asked for them."""
    knobs = TritonCompiler.knobs().nvidia
    wanted, own = bool(knobs.dump_ptxas_log), vars(knobs)
    kept = own.get("dump_ptxas_log", own)
    own["dump_ptxas_log"] = True  # past the knob, which would set the environment of all
    try:
        yield wanted
    finally:
        if kept is own:
            own.pop("dump_ptxas_log")
        else:
            own["dump_ptxas_log"] = kept
