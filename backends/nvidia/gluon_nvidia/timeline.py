"""Time inside kernels: marks become PTX that writes the clock to a ring buffer in global memory.

`gl.scope` leaves a marker in the PTX, an instruction without effect and a comment. While a timeline is recorded
(the compile option `instrumentation_mode` names it), the stage that writes PTX replaces the marker of a begin by a
read of the clock into a register, and that of an end by code that appends a span to the ring of its warp. The buffer
is Triton's scratch memory for profiles, which every launch path already allocates per block. Automatic scopes enclose
instructions that wait or issue asynchronous work.

Spans that end in the same run of straight-line code share one computation of their address: a run takes consecutive
slots of the ring, as many as spans end in it, and may pass the ring's end. A span costs two reads of the clock, one
multiply-add and one store; a scope that begins where another ends shares its read. ptxas moves no instruction over a read
of the clock, and a barrier waits for the stores in front of it: so a span is stored behind the next read, and a read is
placed behind up to eight instructions on integers that follow its mark, which are addresses as a rule. Else the address of
what a scope waited for would be computed after the wait.

A block's part of the buffer begins with 64 bytes for each warp. Rows of 8-byte slots follow, a slot for each warp in a
row (padded to `columns`, a power of two): `events` rows are the rings, `spare` more take the runs that pass their
end. In little-endian words of 32 bits:

    0 to 3       MAGIC, %smid, %globaltimer (nanoseconds)
    4 to 7       0, 0, %clock64 (cycles)           both when the warp began
    8 to 11      spans, 0, %globaltimer
    12 to 15     0, 0, %clock64                    both when the warp ended
    slot         %clock at the begin, %clock at the end << bits | scope

The span `n` of a warp that wrote `m` in all is in the newest row of those congruent to `n` modulo `events`, if
`n` is at least `m - events`.

The metadata of a compiled kernel says the rest: `timeline` has `scopes` (name, line and file, in the order of their
numbers, which start at 1), `events`, `spare`, `warps` (per block), `columns`, `rows` (the offset of the rows in bytes)
and `bits`.

Source: PTX ISA, 10 (special registers %clock, %clock64, %globaltimer, %smid).
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from typing import Any, Callable, Optional

__all__ = ["HEADER", "MAGIC", "instrumented", "marker", "plain"]

MAGIC = 0x6C676C75
HEADER = 64  # bytes of a warp in front of the rings
_SLOT = 8  # bytes of a span

_Run = Callable[[Any, "dict[str, Any]"], Any]

_MARK = re.compile(r"gluon\.scope (begin|end) (\d+) (.*)")
_ENTRY = re.compile(r"\.entry\s+([\w$.]+)\s*\(", re.M)
_THREADS = re.compile(r"\.(?:reqntid|maxntid)\s+(\d+)(?:,\s*(\d+))?(?:,\s*(\d+))?")
_LOC = re.compile(r"\s*\.loc\s+(\d+)\s+(\d+)")
_CALLER = re.compile(r"@\[ ([^:\]]+):(\d+)")  # in the comment of `.loc`, the innermost first
_LIBRARY = re.compile(r"[/\\](?:gluon_core|triton)[/\\]")
_FILE = re.compile(r'^\s*\.file\s+(\d+)\s+"([^"]*)"', re.M)
_JUMP = re.compile(
    r"^(?!\$L__(?:tmp|func))[\w$.%]+:|\b(?:bra|brx|ret|exit|trap)\b"
)  # labels, too: not those of debuggers
_SILENT = re.compile(r"\s*(?:$|\.loc\b|\$L__tmp\d+:)")  # no instruction, no label of a jump
_SINKS = re.compile(  # integers in registers
    r"\s*(?:bfe|cvt|shl|shr|add|sub|or|and|mov|mul\.wide|mad\.lo|setp)\.(?:[\w.]*[busl])\d+\s+[^{\[;]*;$"
)
_SUNK = 8  # instructions in front of a read of the clock that its mark is in front of
_RETURN = re.compile(r"\s*(?:@(?P<guard>!?%\w+)\s+)?ret;")

#: Automatic scopes: an instruction that begins one, the one that ends it (None: the same), and the name.
_AUTOMATIC: tuple[tuple[re.Pattern[str], Optional[re.Pattern[str]], str], ...] = (
    (re.compile(r"\bmbarrier\.(?:try|test)_wait"), None, "mbarrier wait"),
    (re.compile(r"\bwgmma\.wait_group"), None, "wgmma wait"),
    (re.compile(r"\bwgmma\.fence"), re.compile(r"\bwgmma\.commit_group"), "wgmma issue"),
    (re.compile(r"\btcgen05\.wait"), None, "tcgen05 wait"),
    (re.compile(r"\btcgen05\.(?:mma|cp)"), None, "tcgen05 issue"),
    (re.compile(r"\bcp\.async\.bulk\.wait_group"), None, "TMA store wait"),
    (re.compile(r"\bcp\.(?:reduce\.)?async\.bulk(?!\.(?:wait|commit))"), None, "TMA issue"),
    (re.compile(r"\bcp\.async\.wait_(?:group|all)"), None, "cp.async wait"),
    (re.compile(r"\b(?:bar|barrier)(?:\.cta)?\.(?:sync|red)"), None, "barrier"),
    (re.compile(r"\bbarrier\.cluster\.wait"), None, "cluster barrier"),
    (re.compile(r"\bgriddepcontrol\.wait"), None, "grid dependency wait"),
)


def marker(name: str, begins: bool, line: int) -> str:
    """Return the inline assembly of a mark of the scope that begins in `line`; its 32-bit result is unused."""
    word = "begin" if begins else "end"
    return f"mov.b32 $0, 0; // gluon.scope {word} {line} {name.replace('$', '$$')}"


def instrumented(run: _Run, events: int, automatic: bool) -> _Run:
    """Return the stage `run`, which writes PTX, with code that records the timeline.

    Args:
        events, automatic: see `TritonCompiler.recording`.
    """

    def stage(source: Any, metadata: dict[str, Any]) -> Any:
        return _Writer(events, automatic).written(run(source, metadata), metadata)

    return stage


def plain(ptx: str) -> str:
    """Return PTX without the recording code in it."""
    return "\n".join(line for line in ptx.split("\n") if "%gt" not in line)


@dataclass
class _Writer:
    """Writes the recording code of one module."""

    events: int
    automatic: bool
    scopes: dict[tuple[str, int], int] = field(default_factory=dict)  # name and line -> number
    files: dict[str, str] = field(default_factory=dict)  # number in `.loc` -> path
    places: list[str] = field(default_factory=list)  # the file of each scope
    file: str = ""
    line: int = 0
    spare: int = 0  # rows behind the rings
    run: int = 0  # index of the line that begins a run's stores; spans of the run follow it
    ends: int = 0  # spans that ended in this run
    spans: int = 0  # ends of scopes in the program's text
    pending: str = ""  # the store of the last span
    read: bool = False  # the clock was read for an end, with no instruction behind it
    waiting: list[tuple[int, bool]] = field(default_factory=list)  # marks not read yet
    sunk: int = 0  # instructions behind the first of these marks

    def written(self, ptx: str, metadata: dict[str, Any]) -> str:
        entry = _ENTRY.search(ptx)
        if entry is None:
            return ptx
        opening = ptx.index("\n{", entry.end()) + 2
        closing = _end_of_body(ptx, opening)
        head = ptx[entry.end() : opening]
        threads = _THREADS.search(head)
        sizes = [int(size) for size in threads.groups() if size] if threads else [1024]
        warps = 1
        for size in sizes:
            warps *= size
        warps = max(1, warps // 32)
        self.files = dict(_FILE.findall(ptx))
        lines = ptx[opening:closing].split("\n")
        body = self._body(lines)
        if not self.scopes and self.automatic:  # nothing waits: the time of the warps is left
            body = self._body(lines, whole=True)
        if not self.scopes:
            return ptx
        bits = len(self.scopes).bit_length()
        columns = 1 << (warps - 1).bit_length()
        pitch = columns * _SLOT  # bytes of a row
        first = -(-warps * HEADER // pitch) * pitch
        size = -(-(first + (self.events + self.spare) * pitch) // 128) * 128
        body = body.replace(_SCALE, str(1 << bits)).replace(_MASK, str(self.events * pitch - 1))
        body = _ROWS.sub(lambda rows: str(int(rows[1]) * pitch), body)
        begin = _BEGIN.format(
            block=size,
            first=first,
            scopes=len(self.scopes) + 1,
            spans=max(1, self.spans),
            buffer=f"{entry[1]}_param_{head.count('.param') - 1}",
            magic=MAGIC,
        )
        metadata["profile_scratch_size"] = size
        metadata["profile_scratch_align"] = 128
        metadata["timeline"] = {
            "scopes": [[*scope, file] for scope, file in zip(self.scopes, self.places)],
            "events": self.events,
            "spare": self.spare,
            "warps": warps,
            "columns": columns,
            "rows": first,
            "bits": bits,
        }
        outside = len(_MARK.findall(ptx)) - len(_MARK.findall(ptx[opening:closing]))
        if outside:
            metadata.setdefault("warnings", []).append(
                f"{outside} marks of scopes are in functions that are not inlined: a timeline does not "
                "show them. Remove noinline=True."
            )
        return f"{ptx[:opening]}\n{begin}{body}{ptx[closing:]}"

    def _body(self, lines: list[str], whole: bool = False) -> str:
        written: list[str] = []
        if whole:
            first = next((match for match in map(_LOC.match, lines) if match), None)
            self.file = self.files.get(first[1], "") if first else ""
            self._mark(written, self._number("kernel", int(first[2]) if first else 0), False)
        closing: Optional[tuple[re.Pattern[str], int]] = None  # what ends an automatic scope
        position = 0
        while position < len(lines):
            end = position + 1
            if "// begin inline asm" in lines[position]:
                while end < len(lines) and "// end inline asm" not in lines[end - 1]:
                    end += 1
            unit = lines[position:end]
            position = end
            location = _LOC.match(unit[0])
            if location:
                self._locate(unit[0], location)
            text = "\n".join(unit)
            mark = _MARK.search(text)
            if mark:
                number = self._number(mark[3].strip(), int(mark[2]))
                self.waiting.append((number, mark[1] == "end"))
                written.append(text)  # the result stays defined
                continue
            code = unit[0].split("//")[0].rstrip()
            silent = len(unit) == 1 and _SILENT.match(code) is not None
            if self.waiting and not silent:
                self.sunk += 1
                if self.sunk > _SUNK or len(unit) > 1 or not _SINKS.match(code):
                    self._place(written)
            leaves = _RETURN.fullmatch(code)
            if leaves and whole:
                self._mark(written, 1, True)
            if len(unit) == 1 and _JUMP.search(code):
                self._close(written)
            if leaves:
                written.append(_END)
            scope = self._automatic(text) if self.automatic and closing is None else None
            if scope is not None:
                pattern, name = scope
                number = self._number(name, self.line)
                self._mark(written, number, False)
                closing = (pattern, number) if pattern is not None else None
                written.append(text)
                self.read = False
                if pattern is None:
                    self._mark(written, number, True)
                continue
            written.append(text)
            self.read = self.read and silent
            if closing is not None and closing[0].search(text):
                self._mark(written, closing[1], True)
                closing = None
        self._close(written)
        return "\n".join(written)

    def _locate(self, text: str, location: re.Match[str]) -> None:
        """Set the place in the kernel: the caller's, where a function of the language was inlined."""
        self.line = int(location[2]) or self.line
        self.file = self.files.get(location[1], self.file)
        for name, line in _CALLER.findall(text):
            if not _LIBRARY.search(self.file):
                return
            known = (path for path in self.files.values() if os.path.basename(path) == name)
            self.file, self.line = next(known, name), int(line)

    def _place(self, written: list[str]) -> None:
        """Write the code of the marks that wait for it."""
        for number, ends in self.waiting:
            self._mark(written, number, ends)
        self.waiting, self.sunk = [], 0

    def _mark(self, written: list[str], number: int, ends: bool) -> None:
        if ends or not self.read:
            written.append(_READ)
            self._store(written)
        self.read = ends
        if not ends:
            written.append(f"\tmov.b32 %gts{number}, %gtnow;")
            return
        if not self.ends:
            self.run = len(written)
            written.append("")
        written.append(_SPAN.format(span=self.spans, number=number, scale=_SCALE))
        self.pending = _STORE.format(span=self.spans, row=f"{_ROW}{self.ends}_")
        self.ends += 1
        self.spans += 1

    def _store(self, written: list[str]) -> None:
        """Store the last span."""
        if self.pending:
            written.append(self.pending)
            self.pending = ""

    def _close(self, written: list[str]) -> None:
        """End a run of straight-line code: the address of its slots is known, and how many there are."""
        self._place(written)
        self._store(written)
        if self.ends:
            written[self.run] = _RUN.format(mask=_MASK, rows=f"{_ROW}{self.ends}_")
            self.spare = max(self.spare, self.ends - 1)
            self.ends = 0

    def _automatic(self, text: str) -> Optional[tuple[Optional[re.Pattern[str]], str]]:
        code = "\n".join(line.split("//")[0] for line in text.split("\n"))
        for first, last, name in _AUTOMATIC:
            if first.search(code):
                return (last, name)
        return None

    def _number(self, name: str, line: int) -> int:
        """Return the number of a scope. The marks of its end have the line of its begin."""
        if (name, line) not in self.scopes:
            self.scopes[name, line] = len(self.scopes) + 1
            self.places.append(self.file)
        return self.scopes[name, line]


def _end_of_body(ptx: str, offset: int) -> int:
    """Return the index of the line break before the brace that closes a body; inline assembly has braces, too."""
    depth = 1
    while True:
        end = ptx.find("\n", offset)
        end = len(ptx) if end < 0 else end
        code = ptx[offset:end].split("//")[0]
        depth += code.count("{") - code.count("}")
        if depth <= 0 or end == len(ptx):
            return offset - 1
        offset = end + 1


# These stand for numbers that are known when all scopes are: the factor of cycles, the mask of a ring, and rows in bytes.
_SCALE, _MASK, _ROW = "%gtscale", "%gtmask", "%gtrow"
_ROWS = re.compile(r"%gtrow(\d+)_")
# `gt` is the prefix of the recorder's registers. A warp's first lane writes. The slots of the others differ, which keeps
# them out of uniform registers, from which each store would copy them.
_BEGIN = """\
	.reg .b64 %gtbase, %gttime, %gtrows, %gtslot;
	.reg .b32 %gta, %gtb, %gtc, %gtd, %gtcolumn, %gtnext, %gtnow, %gtfrom<{spans}>, %gtend<{spans}>, %gts<{scopes}>;
	.reg .pred %gtfirst;
	mov.u32 %gta, %ctaid.z;
	mov.u32 %gtb, %nctaid.y;
	mov.u32 %gtc, %ctaid.y;
	mad.lo.u32 %gta, %gta, %gtb, %gtc;
	mov.u32 %gtb, %nctaid.x;
	mov.u32 %gtc, %ctaid.x;
	mad.lo.u32 %gta, %gta, %gtb, %gtc;
	mov.u32 %gtb, %tid.x;
	and.b32 %gtc, %gtb, 31;
	shl.b32 %gtnext, %gtc, 3;
	setp.eq.u32 %gtfirst, %gtc, 0;
	shr.u32 %gtb, %gtb, 5;
	shl.b32 %gtcolumn, %gtb, 3;
	ld.param.b64 %gtbase, [{buffer}];
	cvta.to.global.u64 %gtbase, %gtbase;
	mad.wide.u32 %gtbase, %gta, {block}, %gtbase;
	add.u64 %gtrows, %gtbase, {first};
	mad.wide.u32 %gtbase, %gtb, 64, %gtbase;
	mov.u32 %gta, {magic};
	mov.u32 %gtb, %smid;
	mov.u64 %gttime, %globaltimer;
	mov.b64 {{%gtc, %gtd}}, %gttime;
	@%gtfirst st.global.v4.b32 [%gtbase], {{%gta, %gtb, %gtc, %gtd}};
	mov.u64 %gttime, %clock64;
	mov.b64 {{%gtc, %gtd}}, %gttime;
	mov.u32 %gta, 0;
	@%gtfirst st.global.v4.b32 [%gtbase+16], {{%gta, %gta, %gtc, %gtd}};
"""
_RUN = """\
	and.b32 %gtc, %gtnext, {mask};
	or.b32 %gtc, %gtc, %gtcolumn;
	cvt.u64.u32 %gttime, %gtc;
	add.u64 %gtslot, %gtrows, %gttime;
	add.u32 %gtnext, %gtnext, {rows};"""
_READ = "\tmov.u32 %gtnow, %clock;"
_SPAN = """\
	mad.lo.u32 %gtend{span}, %gtnow, {scale}, {number};
	mov.b32 %gtfrom{span}, %gts{number};"""
_STORE = "\t@%gtfirst st.global.v2.b32 [%gtslot+{row}], {{%gtfrom{span}, %gtend{span}}};"
_END = """\
	mov.u64 %gttime, %clock64;
	mov.b64 {%gtc, %gtd}, %gttime;
	mov.u32 %gta, 0;
	@%gtfirst st.global.v4.b32 [%gtbase+48], {%gta, %gta, %gtc, %gtd};
	mov.u64 %gttime, %globaltimer;
	mov.b64 {%gtc, %gtd}, %gttime;
	div.u32 %gtb, %gtnext, %gtrow1_;
	@%gtfirst st.global.v4.b32 [%gtbase+32], {%gtb, %gta, %gtc, %gtd};"""
