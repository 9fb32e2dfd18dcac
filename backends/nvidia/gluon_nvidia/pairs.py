"""Rings by multicast on Triton 3.6, which has no such loads: PTX in which the blocks of a cluster copy for each other.

`tma_ring(multicast=True)` leaves marks in the PTX, instructions without effect and a comment. The stage that writes PTX replaces:

- a load behind the mark `load BITS` by one that brings the tile to the blocks whose ranks differ in these bits alone (`.multicast::cluster`) and counts
  its bytes at the barrier of each. The blocks take turns by slots, whose index is in the address of the barrier, and by loads of a slot.
- the arrival behind the mark `release PEERS`, which counts all blocks that share a tile with this one, by one at the barrier of each: a slot is empty once
  all have used it. Bit x of PEERS says that the block whose rank is this one's XOR x is one of them. The tiles are read by then, and no other memory is
  passed on: a release at the scope of the cluster would wait for all accesses of the thread, half a microsecond.
- the mark `begin`, behind the barriers' initialization, by a barrier of the cluster. Warps that wait for a partition arrive at the kernel's begin and wait
  at its end: those of the first partition take registers over that they give back.

A block ends once its slots are empty (`ring.drain`): nothing that the other block sends is under way then.

Source: PTX ISA, 9.7.9.27.1 (cp.async.bulk.tensor), 9.7.13.15 (mbarrier), 9.7.13.3 (barrier.cluster), 9.7.9.25 (mapa).
"""

from __future__ import annotations

import itertools
import re
from typing import Any, Callable

__all__ = ["marker", "paired", "parts_of"]

_Run = Callable[[Any, "dict[str, Any]"], Any]

_ASM = re.compile(r"// begin inline asm\n.*?// end inline asm", re.S)
_MARK = re.compile(r"[^\n]*// gluon\.pair (\w+)(?: (\d+))?[^\n]*")
_LOAD = re.compile(
    r"@(?P<guard>%p\d+) (?P<name>cp\.async\.bulk\.tensor\.\dd\.shared::cluster\.global\.mbarrier::complete_tx::bytes) "
    r"(?P<places>\[[^\]]*\], \[[^\]]*\]), \[(?P<barrier>%r\d+)\];"
)
_ARRIVE = re.compile(
    r"@(?P<guard>%p\d+) mbarrier\.arrive\.shared::cta\.b64 _, \[(?P<barrier>%r\d+)\], \d+;"
)
_ENTRY = re.compile(r"\.entry\s+[\w$.]+\s*\(.*?\n\{\n", re.S)
_BRACE = re.compile(r"//[^\n]*|[{}]")  # comments are skipped
_RETURN = re.compile(r"^[ \t]*ret;", re.M)

_LOADED = """{{
	.reg .pred turn;
	.reg .b32 rank, slot, first;
	.reg .b16 sharers;
	mov.u32 rank, %cluster_ctarank;
	shr.u32 slot, {barrier}, 3;
	add.u32 slot, slot, {number};
	shl.b32 slot, slot, {shift};
	xor.b32 slot, slot, rank;
	and.b32 slot, slot, {bits};
	setp.eq.and.u32 turn, slot, 0, {guard};
	and.b32 first, rank, {others};
	mov.u32 slot, {sharers};
	shl.b32 slot, slot, first;
	cvt.u16.u32 sharers, slot;
	@turn {name}.multicast::cluster {places}, [{barrier}], sharers;
}}"""
_RELEASED = """{{
	.reg .b32 rank, peer, there;
	mov.u32 rank, %cluster_ctarank;
{peers}	@{guard} mbarrier.arrive.shared::cta.b64 _, [{barrier}];
}}"""
_PEER = """	xor.b32 peer, rank, {peer};
	mapa.shared::cluster.u32 there, {barrier}, peer;
	@{guard} mbarrier.arrive.shared::cluster.b64 _, [there];
"""
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


def parts_of(bits: int) -> list[int]:
    """Return the numbers whose set bits are among `bits`, in rising order."""
    return [number for number in range(bits + 1) if number & bits == number]


def _loaded(bits: int, number: int, place: dict[str, str]) -> str:
    """Return a load for all blocks whose ranks differ in `bits`, the load's `number` giving who makes it first."""
    return _LOADED.format(
        number=number,
        bits=bits,
        shift=(bits & -bits).bit_length() - 1,
        others=7 & ~bits,
        sharers=sum(1 << part for part in parts_of(bits)),
        **place,
    )


def _released(peers: int, number: int, place: dict[str, str]) -> str:
    """Return arrivals at the barriers of this block and of its peers."""
    each = [_PEER.format(peer=x, **place) for x in range(8) if peers >> x & 1]
    return _RELEASED.format(peers="".join(each), **place)


_FORMS = {"load": (_LOAD, _loaded), "release": (_ARRIVE, _released)}


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
    word, value, waits = "", 0, False  # waits for an instruction
    begin = ptx.rindex("// gluon.pair begin")

    def block(match: re.Match[str]) -> str:
        nonlocal word, value, waits
        text = match[0]
        mark = _MARK.search(text)
        if mark:
            if waits:
                raise ValueError(f"PTX without an instruction for the mark {word}")
            word, value, waits = mark[1], int(mark[2] or 0), mark[1] in _FORMS
            last = match.start() < begin < match.end()
            return text.replace(mark[0], f"{mark[0]}\n\t{_BEGUN}") if last else text
        if word not in _FORMS:
            return text
        pattern, form = _FORMS[word]
        text, replaced = pattern.subn(
            lambda place: form(value, next(numbers), place.groupdict()), text
        )
        if replaced:
            waits = False
            word = word if word == "load" else ""  # a tile may take several loads
        return text

    return _ASM.sub(block, ptx)
