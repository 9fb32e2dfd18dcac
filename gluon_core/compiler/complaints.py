"""Complaints of compilers and assemblers, as reports on the kernel's line."""

from __future__ import annotations

import linecache
import re
from typing import Callable, Mapping, Optional

from gluon_core.errors import SourceSpan, StageError
from gluon_core.frontend.located import complaint, place_of, places_of_op

__all__ = ["bad_assembly", "blamed", "left_out", "refused"]

# "ptxas file.ptx, line 33; error   : Not a name of any known instruction: 'frobnicate'"
_SAID = re.compile(r"^\S.*, line (\d+);\s*(?:error|fatal)\s*: *(.+)$", re.M)
_LOCATION = re.compile(r"^\s*\.loc\s+(\d+)\s+(\d+)\s+(\d+)")
_FILE = re.compile(r'^\s*\.file\s+(\d+)\s+"([^"]+)"', re.M)
_MOST = 3


def refused(error: Exception, source: str) -> Optional[StageError]:
    """Return the report of an assembler's complaint `error` about `source`, or None where it is none."""
    lines = source.splitlines()
    messages = list(dict.fromkeys(_SAID.findall(str(error))))
    if not messages:
        return None
    first = int(messages[0][0])
    text = lines[first - 1].strip() if 0 < first <= len(lines) else ""
    words = "; ".join(message.strip() for _, message in messages[:_MOST])
    return StageError(
        f"the assembler says: {words}",
        got=text or None,
        remedy="Where the kernel has inline assembly, look at its text and its constraints.",
        span=_span(lines, first),
    )


# "error: unknown asm constraint 'w'", "error: couldn't allocate output register for constraint 'w'"
_CONSTRAINT = re.compile(r"^(?:.*: )?error: (.*constraint '([^']+)'.*)$", re.M)
# "error: invalid instruction, did you mean: v_mov_b32?", then the line, then a caret below it
_SHOWN = re.compile(r"^(?:.*: )?error: *(.+)\n\s*(\S+)(.*)\n *\^", re.M)
# Messages with which LLVM aborts over inline assembly; they do not name the assembly.
_ABORTED = re.compile(
    r"^.*(?:[Ii]nline ?[Aa]sm|failed to parse constraints|in prepareDAGLevelOperands|getCopyToParts).*$",
    re.M,
)
_ASM = re.compile(
    r'elementwise_inline_asm "((?:[^"\\]|\\.)*)".*constraints = "([^"]*)"'
    r'.*loc\((#\w+|"[^"]*":\d+:\d+)\)'
)


def bad_assembly(output: str, text: Callable[[], Optional[str]]) -> Optional[StageError]:
    """Return the report of inline assembly that LLVM does not take, or None where it complains of none.

    Args:
        text: gives the module that was compiled.
    """
    constraint, shown = _CONSTRAINT.search(output), _SHOWN.search(output)
    aborted = _ABORTED.search(output)
    if constraint is None and shown is None and aborted is None:
        return None
    module = text() or ""
    texts = _ASM.findall(module)
    if constraint is not None:  # the one that names it so, before one with more letters in a piece
        texts.sort(key=lambda asm: constraint[2] not in _bare(asm[1]))
    for body, constraints, loc in texts:
        if constraint is not None:
            words, name = constraint.groups()
            if any(name in one for one in _bare(constraints)):
                return StageError(
                    f"constraints: {words}",
                    got=repr(constraints),
                    remedy="LLVM's language reference lists them by target, under inline assembly.",
                    span=_place(module, loc),
                )
        elif shown is not None and shown[2] in body:
            return StageError(
                f"the assembler says: {shown[1]}",
                got=f"{shown[2]}{shown[3]}",
                remedy="Where the kernel has inline assembly, look at its text and its constraints.",
                span=_place(module, loc),
            )
    if aborted is None or not texts:
        return None
    places = dict.fromkeys(_place(module, loc) for _, _, loc in texts)
    others = ", ".join(f"line {place.line}" for place in [*places][1:] if place)
    return StageError(
        "LLVM ended over inline assembly that it cannot take",
        got=" or ".join(dict.fromkeys(repr(constraints) for _, constraints, _ in texts)),
        remedy="Look at the constraints, and at the types of their operands"
        + (f"; it may be another one, of {others}." if others else "."),
        diagnostics=aborted[0].strip(),
        span=next(iter(places)),
    )


def _bare(constraints: str) -> list[str]:
    return [one.strip().lstrip("=&+%*~") for one in constraints.split(",")]


def left_out(text: Optional[str], asm: Mapping[str, object]) -> Optional[StageError]:
    """Return the report of inline assembly that was there for LLVM, and is not there after it.

    Newer ones do not report constraints that they do not take: they drop the assembly, and its results
    are whatever the registers hold.

    Args:
        text: the module that was compiled.
        asm: its outputs, by stage.
    """
    if text is None or "inline_asm " not in text:
        return None
    stages = [value for name, value in asm.items() if isinstance(value, str)]
    before = str(asm.get("llir", ""))
    after = "\n".join(stages[stages.index(before) + 1 :]) if before in stages else ""
    if not after:
        return None
    for body, constraints, loc in _ASM.findall(text):
        called = re.search(
            rf'(?:(%[\w.]+) = )?(?:tail )?call [^\n"]*asm [^"\n]*"{re.escape(body)}"', before
        )
        used = called and (called[1] is None or len(re.findall(rf"{called[1]}\b", before)) > 1)
        words = max(re.split(r"\$\{[^}]*\}|\$\d+|\$\$|\\[0-9A-F]{2}", body), key=len).strip()
        if used and len(words) > 2 and "$(" not in body and words not in after:
            return StageError(
                "the compiler does not take this inline assembly, and left it out: it has no operands "
                "such as the constraints ask for",
                got=repr(constraints),
                remedy="LLVM's language reference lists constraints by target, under inline assembly.",
                span=_place(text, loc),
            )
    return None


def _place(module: str, loc: str) -> Optional[SourceSpan]:
    place = place_of(module, loc)
    if place is None:
        return None
    file, line, column = place
    text = linecache.getline(file, line).rstrip("\n")
    return SourceSpan(file, line, max(column - 1, 0), None, text or None)


def _span(lines: list[str], line: int) -> Optional[SourceSpan]:
    """Return the kernel's line that a line of assembly was made of."""
    files = dict(_FILE.findall("\n".join(lines)))
    for text in reversed(lines[:line]):
        match = _LOCATION.match(text)
        if match and match[2] != "0":
            file, number = files.get(match[1], ""), int(match[2])
            shown = linecache.getline(file, number).rstrip("\n")
            return SourceSpan(file, number, max(int(match[3]) - 1, 0), None, shown or None)
    return None


# "ReduceOpToLLVM.cpp:31: ... matchAndRewrite(triton::ReduceOp, ...): Assertion `...' failed."
_ENDED = re.compile(r"^.*(?:Assertion `|UNREACHABLE executed|LLVM ERROR).*$", re.M)
_CLASS = re.compile(r"\b([A-Z]\w*?)Op(?=To[A-Z]|Conversion|Pattern|Lowering|Adaptor|\b)")
_FEW = 4


def blamed(
    output: str, text: Callable[[], Optional[str]]
) -> tuple[str, Optional[SourceSpan], Optional[str]]:
    """Return a compiler's complaint, the kernel's line, and the remedy, as far as known.

    Args:
        text: gives the module that was compiled.
    """
    for ended in _ENDED.finditer(output):
        for name in dict.fromkeys(_CLASS.findall(ended[0])):
            places = places_of_op(text() or "", name.lower())
            if not places:
                continue
            lines = ", ".join(str(place.line) for place in places[1:_FEW])
            more = " and others" if len(places) > _FEW else ""
            remedy = (
                "Try another layout, shape or dtype there; docs/known-compiler-bugs.md may know it."
            )
            if lines:
                remedy += f" It may be another one, of line {lines}{more}."
            shown = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()
            return f"the compiler ended the process over this {shown}", places[0], remedy
    complained = complaint(output)
    return (*complained, None) if complained is not None else ("", None, None)
