"""The outcome of a kernel's ops in its machine code, and the arguments that keep accesses narrow.

The code itself is read, line by line. Where accesses are narrower than the layout permits, the kernel
is compiled again with its arguments declared divisible by 16, all of them and all but one: so the
arguments that make the difference are known, and the savings.
"""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Any, Iterator, Mapping, Optional, Sequence

from gluon_cli.emitted import LineCode, by_line
from gluon_core.compiler.driver import compile_source
from gluon_core.compiler.source import GluonASTSource, Path, trace_source
from gluon_core.errors import GluonError
from gluon_core.frontend.session import Session
from gluon_core.plugin.machine_code import Instruction
from gluon_core.plugin.targets import Target
from gluon_core.portable.selection import Selection
from gluon_core.registry.load import registry
from gluon_core.values.accesses import WIDEST, Access

__all__ = ["LineOutcome", "OpOutcome", "Outcome", "outcome"]

_MOST_TRIED = 8  # arguments that are tried one by one
_ALIGNED = ["tt.divisibility", 16]
_NARROW = 4  # bytes below which the note names the layout
# Ops whose instructions are at other lines: those of `fetch`, where `descriptor` selects.
_ELSEWHERE = ("tile_copy",)


@dataclass(frozen=True)
class OpOutcome:
    """One portable op of a kernel.

    Args:
        selection: the lowering that was taken.
        kept: whether the machine code has its instructions; None where the lowering expects none, or
            nothing is known of the code.
        instead: the instructions that the op's line has instead, name -> count.
    """

    selection: Selection
    kept: Optional[bool] = None
    instead: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class LineOutcome:
    """One line of a kernel that reaches global memory or multiplies.

    Args:
        code: its instructions.
        note: why accesses are narrow and how to widen them, None where they are not.
        arguments: the parameters that are not known to be divisible by 16, and would have to be.
    """

    code: LineCode
    note: Optional[str] = None
    arguments: tuple[str, ...] = ()


@dataclass(frozen=True)
class Outcome:
    """The outcome of a kernel.

    Args:
        ops: its portable ops, each once.
        lines: its lines, empty where nothing reads the target's machine code.
        problem: why there is no machine code, None where there is.
    """

    ops: tuple[OpOutcome, ...]
    lines: tuple[LineOutcome, ...] = ()
    problem: Optional[str] = None


def outcome(source: GluonASTSource, target: Target, options: Mapping[str, Any]) -> Outcome:
    """Compile `source` and compare its machine code with the selected code. A simulated target
    answers for the architecture that it simulates.

    Raises:
        GluonError: the kernel has a mistake.
    """
    architecture = target.architecture
    real = Target(architecture.backend, architecture)
    compiles = registry().backend(real.backend).compiles
    code: Optional[dict[tuple[str, int], LineCode]] = None
    problem: Optional[str] = None
    refused: dict[tuple[str, str], str] = {}
    if compiles:
        try:
            code, refused = _code(source, real, options)
        except GluonError as error:
            problem = f"{type(error).__name__}: {str(error).splitlines()[0]}"
    session = _traced(source, real if compiles else target, options, refused)
    selections = _each_once(session.selections)
    if code is None:
        return Outcome(tuple(map(OpOutcome, selections)), (), problem)
    lines = tuple(_lines(source, real, options, code, session.accesses))
    return Outcome(tuple(_ops(selections, code)), lines)


def _traced(
    source: GluonASTSource, target: Target, options: Mapping[str, Any], refused: Mapping[Any, str]
) -> Session:
    sessions: list[Session] = []
    parsed = registry().backend(target.backend).compiler.options(target, options)
    trace_source(source, target, parsed, on_session=sessions.append, refused=refused)
    return sessions[0]


def _code(
    source: GluonASTSource, target: Target, options: Mapping[str, Any]
) -> tuple[dict[tuple[str, int], LineCode], dict[tuple[str, str], str]]:
    """Return the instructions by line, and the lowerings that the compiler refused."""
    backend = registry().backend(target.backend)
    compiled = compile_source(source, target, backend, backend.compiler.options(target, options))
    given_up = getattr(compiled.metadata, "given_up", None) or ()
    return by_line(backend.compiler.emitted(compiled)), {
        (op, name): why for op, name, why in given_up
    }


def _each_once(selections: Sequence[Selection]) -> list[Selection]:
    """Return `selections` without repeats: ops of unrolled loops and of functions that are called twice."""
    unique: dict[Any, Selection] = {}
    for one in selections:
        key = (one.op, one.where, one.chosen.name, tuple(reason for _, reason in one.rejected))
        unique.setdefault(key, one)
    return list(unique.values())


# -- kept or not -----------------------------------------------------------------------------------


def _place(where: Optional[str]) -> tuple[str, int]:
    file, _, line = (where or "").rpartition(":")
    return (os.path.basename(file), int(line)) if line.isdigit() else ("", 0)


def _at(code: Mapping[tuple[str, int], LineCode], where: Optional[str]) -> list[LineCode]:
    """Return the code of a line; compilers spell file names in other ways than Python."""
    file, line = _place(where)
    return [one for one in code.values() if one.line == line and _same_file(one.file, file)]


def _same_file(written: str, name: str) -> bool:
    return os.path.basename(written) == name


def _ops(
    selections: Sequence[Selection], code: Mapping[tuple[str, int], LineCode]
) -> Iterator[OpOutcome]:
    for one in selections:
        patterns = one.chosen.expects
        if not patterns or not code:
            yield OpOutcome(one)
            continue
        own = _at(code, one.where)
        kept = any(line.has(patterns) for line in own)
        if not kept:  # at a line that no other op of the kind has: instructions move
            taken = {_place(s.where) for s in selections if s.op == one.op and s is not one}
            elsewhere = one.op in _ELSEWHERE
            kept = any(
                line.has(patterns)
                and (elsewhere or (os.path.basename(line.file), line.line) not in taken)
                for line in code.values()
            )
        counts: Counter[str] = Counter()
        for line in own if not kept else ():
            counts.update(line.counts)
        yield OpOutcome(one, kept, dict(counts.most_common()))


# -- arguments that keep accesses narrow -----------------------------------------------------------


def _lines(
    source: GluonASTSource,
    target: Target,
    options: Mapping[str, Any],
    code: Mapping[tuple[str, int], LineCode],
    accesses: Sequence[Access],
) -> Iterator[LineOutcome]:
    permitted: dict[tuple[str, int], int] = {}
    for access in accesses:
        place = _place(access.where)
        permitted[place] = min(access.width, permitted.get(place, WIDEST))
    narrow = {
        place: line
        for place, line in code.items()
        if line.line
        and line.narrowest is not None
        and line.narrowest[1] < permitted.get((os.path.basename(place[0]), place[1]), WIDEST)
    }
    owed = _owed(source, target, options, narrow) if narrow else {}
    for place, line in code.items():
        line_outcome = LineOutcome(line)
        if place in owed:
            line_outcome = replace(line_outcome, note=owed[place][1], arguments=owed[place][0])
        elif line.narrowest is not None:
            known = permitted.get((os.path.basename(place[0]), place[1]))
            line_outcome = replace(line_outcome, note=_limit(line.narrowest, known))
        yield line_outcome


def _limit(narrowest: tuple[str, int], permitted: Optional[int]) -> Optional[str]:
    """Return the limits of accesses that no argument would widen."""
    noun, width = _plural(narrowest[0]), narrowest[1]
    if permitted is None:
        return None
    if width < permitted:
        return (
            f"{width}-byte {noun}, where the layout permits {permitted}: offsets or masks are not known "
            "to be the same, or consecutive, for the elements of one thread; promise it with "
            "gl.max_contiguous or gl.multiple_of"
        )
    if width < _NARROW:
        return (
            f"{width}-byte {noun}: the layout gives each thread no more in a row; "
            "gl.portable.blocked_layout makes one that gives 16 bytes"
        )
    return None


def _plural(kind: str) -> str:
    return "copies" if kind == "copy" else f"{kind}s"


def _owed(
    source: GluonASTSource,
    target: Target,
    options: Mapping[str, Any],
    narrow: Mapping[tuple[str, int], LineCode],
) -> dict[tuple[str, int], tuple[tuple[str, ...], str]]:
    """Return, by line, the arguments that keep accesses narrow, and the note about them."""
    unknown = list(_unknown(source))

    def code_with(paths: Sequence[Path]) -> Mapping[tuple[str, int], LineCode]:
        attrs = {path: list(pairs) for path, pairs in source.attrs.items()}
        for path in paths:
            attrs[path] = [*(p for p in attrs.get(path, ()) if p[0] != _ALIGNED[0]), _ALIGNED]
        again = GluonASTSource(source.fn, source.signature, source.constants, attrs)
        return _code(again, target, options)[0]

    def moves(code: Mapping[tuple[str, int], LineCode], place: tuple[str, int]) -> int:
        return code[place].moves if place in code else 0

    if not unknown:
        return {}
    try:
        best = code_with([path for path, _ in unknown])
        better = {place for place, line in narrow.items() if moves(best, place) < line.moves}
        without: dict[str, Mapping[tuple[str, int], LineCode]] = {}
        if better and 1 < len(unknown) <= _MOST_TRIED:
            for left, name in unknown:
                without[name] = code_with([path for path, _ in unknown if path != left])
    except GluonError:
        return {}  # not every combination need be legal
    owed = {}
    for place in better:
        needed = [name for name, code in without.items() if moves(code, place) > moves(best, place)]
        names = tuple(needed or [name for _, name in unknown])
        owed[place] = names, _advice(source, names, narrow[place], best.get(place))
    return owed


def _unknown(source: GluonASTSource) -> Iterator[tuple[Path, str]]:
    """Yield the path and name of each argument that could be declared divisible by 16, and is not."""

    def walk(kind: Any, path: Path, name: str) -> Iterator[tuple[Path, str]]:
        if isinstance(kind, tuple):
            for index, part in enumerate(kind):
                yield from walk(part, (*path, index), f"{name}[{index}]")
            return
        text = str(kind)
        integer = text[:1] in ("i", "u") and text[1:].isdigit() and text[1:] not in ("1", "8")
        known = any(
            key == _ALIGNED[0] and value % 16 == 0 for key, value in source.attrs.get(path, ())
        )
        if (integer or text.startswith("*")) and not known and path not in source.constants:
            yield path, name

    for index, name in enumerate(source.fn.arg_names):
        yield from walk(source.signature.get(name), (index,), name)


def _advice(
    source: GluonASTSource, names: Sequence[str], now: LineCode, then: Optional[LineCode]
) -> str:
    kind, width = now.narrowest or (Instruction.LOAD, 0)
    listed = names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
    verb = "is" if len(names) == 1 else "are"
    types = dict.fromkeys(f"`{source.signature.get(n.partition('[')[0])}:16`" for n in names)
    instead = ""
    if then is not None:
        wide = Counter({n: c for n, c in then.counts.items() if c != now.counts.get(n)})
        shown = ", ".join(f"{count} {name}" for name, count in wide.most_common(3))
        instead = f" ({shown or then.moves} instead)"
    return (
        f"{width}-byte {_plural(kind)}: {listed} {verb} not known to be divisible by 16; declare "
        f"{' and '.join(types)}, or use gl.multiple_of{instead}"
    )
