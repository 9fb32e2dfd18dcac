"""Rings by multicast on Triton 3.6, which has no such loads: PTX in which the blocks of a pair copy for each other.

`tma_ring(multicast=True)` leaves marks in the PTX, instructions without effect and a comment. The stage that writes PTX replaces:

- a load behind the mark `load` by one that brings the tile to both blocks (`.multicast::cluster`) and counts its bytes at the barrier of each.
  The blocks take turns by slots, whose index is in the address of the barrier, and by loads of a slot.
- the arrival behind the mark `release`, which counts two, by one at the barrier of each block: a slot is empty once both have used it. The tiles are
  read by then, and no other memory is passed on: a release at the scope of the cluster would wait for all accesses of the thread, half a microsecond.
- the mark `begin`, behind the barriers' initialization, by a barrier of the cluster. Warps that wait for a partition arrive at the kernel's begin and wait
  at its end: those of the first partition take registers over that they give back.

A block ends once its slots are empty (`ring.drain`): nothing that the other block sends is under way then.

Source: PTX ISA, 9.7.9.27.1 (cp.async.bulk.tensor), 9.7.13.15 (mbarrier), 9.7.13.3 (barrier.cluster), 9.7.9.25 (mapa).
"""

from __future__ import annotations

import itertools
import re
from typing import Any, Callable

__all__ = ["marker", "paired"]

_Run = Callable[[Any, "dict[str, Any]"], Any]

_ASM = re.compile(r"// begin inline asm\n.*?// end inline asm", re.S)
_MARK = re.compile(r"[^\n]*// gluon\.pair (\w+)[^\n]*")
_LOAD = re.compile(
    r"@(?P<guard>%p\d+) (?P<name>cp\.async\.bulk\.tensor\.\dd\.shared::cluster\.global\.mbarrier::complete_tx::bytes) "
    r"(?P<places>\[[^\]]*\], \[[^\]]*\]), \[(?P<barrier>%r\d+)\];"
)
_ARRIVE = re.compile(
    r"@(?P<guard>%p\d+) mbarrier\.arrive\.shared::cta\.b64 _, \[(?P<barrier>%r\d+)\], 2;"
)
_ENTRY = re.compile(r"\.entry\s+[\w$.]+\s*\(.*?\n\{\n", re.S)
_BRACE = re.compile(r"//[^\n]*|[{}]")  # comments are skipped
_RETURN = re.compile(r"^[ \t]*ret;", re.M)

_LOADED = """{{
	.reg .pred turn;
	.reg .b32 rank, slot;
	.reg .b16 both;
	mov.u32 rank, %cluster_ctarank;
	shr.u32 slot, {barrier}, 3;
	add.u32 slot, slot, {number};
	xor.b32 rank, rank, slot;
	and.b32 rank, rank, 1;
	setp.eq.and.u32 turn, rank, 0, {guard};
	mov.b16 both, 3;
	@turn {name}.multicast::cluster {places}, [{barrier}], both;
}}"""
_RELEASED = """{{
	.reg .b32 rank, there;
	mov.u32 rank, %cluster_ctarank;
	xor.b32 rank, rank, 1;
	mapa.shared::cluster.u32 there, {barrier}, rank;
	@{guard} mbarrier.arrive.shared::cluster.b64 _, [there];
	@{guard} mbarrier.arrive.shared::cta.b64 _, [{barrier}];
}}"""
_BEGUN = """fence.mbarrier_init.release.cluster;
	barrier.cluster.arrive.relaxed.aligned;
	barrier.cluster.wait.acquire.aligned;"""
_ARRIVED = """{{
	.reg .pred first;
	.reg .b32 thread;
	mov.u32 thread, %tid.x;
	setp.lt.u32 first, thread, {threads};
	@first bra begins;
	barrier.cluster.arrive.relaxed.aligned;
begins:
}}
"""
_ENDED = """{{
	.reg .pred first;
	.reg .b32 thread;
	mov.u32 thread, %tid.x;
	setp.lt.u32 first, thread, {threads};
	@first bra ends;
	barrier.cluster.wait.acquire;
ends:
}}
	ret;"""
_FORMS = {"load": (_LOAD, _LOADED), "release": (_ARRIVE, _RELEASED)}


def marker(word: str) -> str:
    """Return the inline assembly of a mark; its 32-bit result is unused."""
    return f"mov.b32 $0, 0; // gluon.pair {word}"


def paired(run: _Run, threads: int) -> _Run:
    """Return the stage `run`, which writes PTX, with marks replaced.

    Args:
        threads: of a block, that do not wait for a partition.
    """

    def stage(source: Any, metadata: dict[str, Any]) -> Any:
        ptx = run(source, metadata)
        if "// gluon.pair begin" not in ptx:
            return ptx
        ptx = _replaced(ptx)
        entry = _ENTRY.search(ptx)
        if entry is None:
            raise ValueError("PTX without an entry")
        end = _end(ptx, entry.end())
        body = _RETURN.sub(_ENDED.format(threads=threads), ptx[entry.end() : end])
        return f"{ptx[: entry.end()]}{_ARRIVED.format(threads=threads)}{body}{ptx[end:]}"

    return stage


def _end(ptx: str, begin: int) -> int:
    """Return the place of the brace that closes the body which begins at `begin`; functions that are not inlined follow."""
    depth = 1
    for brace in _BRACE.finditer(ptx, begin):
        depth += {"{": 1, "}": -1}.get(brace[0], 0)
        if depth == 0:
            return brace.start()
    raise ValueError("PTX whose entry does not end")


def _replaced(ptx: str) -> str:
    """Return PTX with the instructions that marks announce replaced.

    Raises:
        ValueError: a mark without an instruction.
    """
    numbers = itertools.count()
    word, waits, begin = "", False, ptx.rindex("// gluon.pair begin")  # waits for an instruction

    def block(match: re.Match[str]) -> str:
        nonlocal word, waits
        text = match[0]
        mark = _MARK.search(text)
        if mark:
            if waits:
                raise ValueError(f"PTX without an instruction for the mark {word}")
            word, waits = mark[1], mark[1] in _FORMS
            last = match.start() < begin < match.end()
            return text.replace(mark[0], f"{mark[0]}\n\t{_BEGUN}") if last else text
        if word not in _FORMS:
            return text
        pattern, form = _FORMS[word]
        text, replaced = pattern.subn(
            lambda place: form.format(number=next(numbers), **place.groupdict()), text
        )
        if replaced:
            waits = False
            word = word if word == "load" else ""  # a tile may take several loads
        return text

    return _ASM.sub(block, ptx)
