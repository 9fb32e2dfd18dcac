"""Decode the instructions of litmus tests: PTX, with or without types and brackets."""

from __future__ import annotations

import operator
import re
from dataclasses import replace
from typing import Any, Callable, Mapping, Optional

from gluon_core.errors import did_you_mean
from gluon_emu.litmus.form import LEVELS, LitmusError, Operand, Step
from gluon_emu.litmus.text import Piece

__all__ = ["decode"]

_TYPE = re.compile(r"[busf](?:8|16|32|64)$|pred$")
_INTEGER = re.compile(r"-?(?:0x[0-9a-fA-F]+|\d+)$")
_SPACES = ("global", "shared", "shared::cta", "shared::cluster")
_SEMANTICS = ("weak", "relaxed", "acquire", "release", "acq_rel", "sc")
_ATOMS: Mapping[str, Callable[..., Any]] = {
    "add": operator.add,
    "exch": lambda old, new: new,
    "min": min,
    "max": max,
    "and": operator.and_,
    "or": operator.or_,
    "xor": operator.xor,
    "inc": lambda old, most: 0 if old >= most else old + 1,
    "dec": lambda old, most: most if old == 0 or old > most else old - 1,
    "cas": lambda old, expected, new: new if old == expected else None,
}
_ARITHMETIC = {
    "mov": lambda a: a,
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "and": operator.and_,
    "or": operator.or_,
    "xor": operator.xor,
}
_COMPARE = {
    "eq": operator.eq,
    "ne": operator.ne,
    "lt": operator.lt,
    "le": operator.le,
    "gt": operator.gt,
    "ge": operator.ge,
}
_BRANCHES = {"beq": "eq", "bne": "ne", "blt": "lt", "ble": "le", "bgt": "gt", "bge": "ge"}
_OUTCOME = "?"  # the register of their comparison
_PROXY_ACCESS = {"suld": "surface", "sust": "surface", "tex": "texture"}


def decode(cell: Piece, objects: Mapping[str, int]) -> list[Step]:
    """Return the steps of one cell of the table: labels, and at most one instruction.

    Args:
        objects: the mbarrier objects.

    Raises:
        LitmusError: the instruction is unknown, or is written wrongly.
    """
    steps = []
    text = cell.text
    while (label := re.match(r"\s*([A-Za-z_$][\w$]*)\s*:(?!:)", text)) is not None:
        steps.append(
            Step(
                "label", label.group(1), cell.source.span(cell.offset), to=label.group(1), detail={}
            )
        )
        text = text[label.end() :]
    piece = cell.source.piece(
        cell.offset + len(cell.text) - len(text), cell.offset + len(cell.text)
    )
    if piece.text:
        steps += _Reader(piece, objects).steps()
    return steps


class _Reader:
    def __init__(self, piece: Piece, objects: Mapping[str, int]):
        self.piece, self.objects = piece, objects
        guarded = re.match(r"@(!?)%?([\w$]+)\s+", piece.text)
        self.guard = None if guarded is None else (guarded.group(2), guarded.group(1) == "!")
        rest = piece.text[guarded.end() :] if guarded is not None else piece.text
        self.opcode, _, operands = rest.strip().partition(" ")
        self.name, *self.modifiers = self.opcode.split(".")
        start = piece.text.find(operands) if operands else len(piece.text)
        cut = piece.source.piece(piece.offset + start, piece.offset + len(piece.text))
        self.operands = [o for o in cut.split(",") if o.text]

    def error(self, message: str, within: str = "", **facts: Any) -> LitmusError:
        return self.piece.error(message, within, **facts)

    def steps(self) -> list[Step]:
        """Return the steps of an instruction; those of the branches that test formats have are a comparison and a branch."""
        if self.name == "nop":
            self._count(0)
            return []
        if self.name == "goto":
            self.name = "bra"
        compare = _BRANCHES.get(self.name)
        if compare is None or self.guard is not None:
            return [self.step()]
        self._count(3)
        function = _COMPARE[compare]
        values = self._value(0), self._value(1)
        test = self._make(
            "alu", to=_OUTCOME, values=values, function=lambda a, b: int(function(a, b)), detail={}
        )
        jump = self._make("bra", to=self.operands[2].text, guard=(_OUTCOME, False), detail={})
        return [test, jump]

    def step(self) -> Step:
        decoders = {
            "ld": self._load, "tex": self._load, "suld": self._load, "st": self._store, "sust": self._store,
            "atom": self._atomic, "red": self._atomic, "fence": self._fence, "membar": self._membar,
            "bar": self._bar, "barrier": self._bar, "mbarrier": self._mbarrier, "cp": self._copy,
            "setp": self._setp, "bra": self._branch, "ret": self._end, "exit": self._end,
            **dict.fromkeys(_ARITHMETIC, self._alu),
        }  # fmt: skip
        decoder = decoders.get(self.name)
        if decoder is None:
            close = did_you_mean(self.name, decoders)
            raise self.error(
                "the model has no such instruction", self.name, got=self.opcode, remedy=close
            )
        step = decoder()
        if self.modifiers:
            raise self.error(
                f"{self.name} has no such modifier here",
                f".{self.modifiers[0]}",
                got=self.modifiers[0],
            )
        return replace(step, guard=self.guard, detail=step.detail or {})

    # -- parts -------------------------------------------------------------------------------------

    def _make(self, kind: str, **facts: Any) -> Step:
        return Step(kind, self.piece.text, self.piece.source.span(self.piece.offset), **facts)

    def _take(self, *choices: str) -> str:
        """Remove and return the modifier that is one of `choices`; "" if there is none."""
        for modifier in self.modifiers:
            if modifier in choices:
                self.modifiers.remove(modifier)
                return modifier
        return ""

    def _typed(self) -> None:
        self.modifiers = [m for m in self.modifiers if not _TYPE.match(m)]

    def _count(self, least: int, most: Optional[int] = None) -> None:
        most = least if most is None else most
        if not least <= len(self.operands) <= most:
            many = str(least) if least == most else f"{least} to {most}"
            raise self.error(f"{self.opcode} takes {many} operands", got=len(self.operands))

    def _register(self, index: int) -> str:
        word = self.operands[index].text.lstrip("%")
        if not re.match(r"[A-Za-z_][\w$]*$", word):
            raise self.operands[index].error("no register", expected="such as r1", got=word)
        return word

    def _address(self, index: int, barrier: bool = False) -> str:
        word = self.operands[index].text
        name = word.strip("[] %")
        if not re.match(r"[A-Za-z_][\w$]*$", name) or word.startswith("[") != word.endswith("]"):
            raise self.operands[index].error(
                "no address", expected="[x], x a location or a register", got=word
            )
        if barrier != (name in self.objects):
            raise self.operands[index].error(
                f"{name} is {'no' if barrier else 'an'} mbarrier object",
                remedy="Declare it as x = mbarrier(N)." if barrier else None,
            )
        return name

    def _value(self, index: int) -> Operand:
        word = self.operands[index].text.lstrip("%")
        return int(word, 0) if _INTEGER.match(word) else self._register(index)

    def _order(self, default: str, scope: str, *allowed: str) -> tuple[str, str]:
        """Return the semantics and the scope of a memory operation."""
        if self._take("volatile"):
            return "relaxed", "sys"
        mmio = self._take("mmio")
        sem = self._take(*_SEMANTICS)
        level = self._take(*LEVELS)
        if sem and sem not in allowed:
            raise self.error(
                f"{self.name} cannot be .{sem}",
                f".{sem}",
                expected=", ".join(f".{a}" for a in allowed),
            )
        sem = sem or default
        if sem == "weak" and level:
            raise self.error("a weak operation has no scope", f".{level}")
        if sem != "weak" and not (level or scope):
            raise self.error(
                f".{sem} needs a scope", f".{sem}", expected=", ".join(f".{s}" for s in LEVELS)
            )
        if mmio and (sem, level) != ("relaxed", "sys"):
            raise self.error(".mmio is .relaxed.sys alone", ".mmio")
        return sem, level or (scope if sem != "weak" else "")

    # -- instructions ------------------------------------------------------------------------------

    def _proxy(self) -> str:
        return (
            "constant"
            if self._take("const", "constant")
            else _PROXY_ACCESS.get(self.name, "generic")
        )

    def _load(self) -> Step:
        self._count(2)
        proxy = self._proxy()
        allowed = ("weak", "relaxed", "acquire") if proxy == "generic" else ("weak",)
        sem, scope = self._order("weak", "", *allowed)
        self._take(*_SPACES)
        self._typed()
        return self._make(
            "load",
            to=self._register(0),
            address=self._address(1),
            sem=sem,
            scope=scope,
            proxy=proxy,
        )

    def _store(self) -> Step:
        self._count(2)
        proxy = self._proxy()
        allowed = ("weak", "relaxed", "release") if proxy == "generic" else ("weak",)
        sem, scope = self._order("weak", "", *allowed)
        self._take(*_SPACES)
        self._typed()
        return self._make(
            "store",
            address=self._address(0),
            values=(self._value(1),),
            sem=sem,
            scope=scope,
            proxy=proxy,
        )

    def _atomic(self) -> Step:
        function = self._take(*_ATOMS)
        atom = self.name == "atom"
        if not function or not atom and function in ("exch", "cas"):
            raise self.error(
                f"{self.name} needs an operation", expected=", ".join(f".{a}" for a in _ATOMS)
            )
        allowed = ("relaxed", "acquire", "release", "acq_rel") if atom else ("relaxed", "release")
        sem, scope = self._order("relaxed", "gpu", *allowed)
        self._take(*_SPACES)
        self._typed()
        own = 2 if function == "cas" else 1
        self._count(own + 1 + atom)
        values = tuple(self._value(index) for index in range(1 + atom, own + 1 + atom))
        return self._make(
            self.name, to=self._register(0) if atom else "", address=self._address(int(atom)), values=values,
            sem=sem, scope=scope, function=_ATOMS[function],
            detail={"keeps": function != "exch"},
        )  # fmt: skip

    def _fence(self) -> Step:
        self._count(0)
        if self._take("proxy"):
            kinds = ("alias", "async", "constant", "texture", "surface")
            # The state space narrows the fence; the model has it order both.
            self.modifiers = ["async" if m.startswith("async") else m for m in self.modifiers]
            kind = self._take(*kinds)
            if not kind:
                raise self.error(
                    "the model has no such proxy fence", expected=", ".join(kinds), got=self.opcode
                )
            if kind == "async":
                self._take(*_SPACES)
            return self._make("proxy", proxy=kind)
        sem = self._take("sc", "acq_rel", "acquire", "release") or "acq_rel"
        scope = self._take(*LEVELS)
        if not scope:
            raise self.error(
                "a fence needs a scope",
                expected=", ".join(f".{s}" for s in LEVELS),
                got=self.opcode,
            )
        return self._make("fence", sem=sem, scope=scope)

    def _membar(self) -> Step:
        self._count(0)
        scope = {"cta": "cta", "gl": "gpu", "sys": "sys"}.get(self._take("cta", "gl", "sys"))
        if scope is None:
            raise self.error("membar needs .cta, .gl or .sys", got=self.opcode)
        return self._make("fence", sem="sc", scope=scope)

    def _bar(self) -> Step:
        cluster = bool(self._take("cluster"))
        self._take("cta")
        self._take("aligned")
        mode = self._take("sync", "arrive", "wait")
        if cluster and mode in ("arrive", "wait"):
            self._count(0)
            sem = self._take(*(("release", "relaxed") if mode == "arrive" else ("acquire",)))
            detail: dict[str, Any] = {
                "mode": mode,
                "level": "cluster",
                "name": "cluster",
                "count": None,
                "relaxed": sem == "relaxed",
            }
            return self._make("barrier", detail=detail)
        if cluster or mode not in ("sync", "arrive"):
            raise self.error(
                "no barrier of the model",
                expected=".sync, .arrive, .cluster.arrive or .cluster.wait",
                got=self.opcode,
            )
        self._count(1 + (mode == "arrive"), 2)
        count = self._value(1) if len(self.operands) > 1 else None
        if isinstance(count, str) or count is not None and (count < 1 or count % 32):
            raise self.operands[1].error(
                "counts the threads of whole warps", expected="a multiple of 32", got=count
            )
        detail = {
            "mode": mode,
            "level": "cta",
            "name": self.operands[0].text,
            "count": count,
            "relaxed": False,
        }
        return self._make("barrier", detail=detail)

    def _mbarrier(self) -> Step:
        self._take("shared", "shared::cta", "shared::cluster")
        self._typed()
        mode = self._take("arrive", "test_wait", "try_wait", "expect_tx")
        if mode in ("test_wait", "try_wait"):
            parity = bool(self._take("parity"))
            sem, scope = self._order("acquire", "cta", "acquire", "relaxed")
            self._count(3)
            detail: dict[str, Any] = {"parity": parity}
            return self._make(
                "wait", to=self._register(0), address=self._address(1, True), values=(self._value(2),), sem=sem,
                scope=scope, detail=detail,
            )  # fmt: skip
        if mode == "arrive":
            expect = bool(self._take("expect_tx"))
            sem, scope = self._order("release", "cta", "release", "relaxed")
            token = (
                bool(self.operands)
                and not self.operands[0].text.startswith("[")
                and len(self.operands) > 1 + expect
            )
            first = int(token)
            self._count(first + 1 + expect, first + 1 + (1))
            more = (
                self._value(first + 1) if len(self.operands) > first + 1 else (0 if expect else 1)
            )
            detail = {"bytes": more if expect else 0, "arrivals": 1 if expect else more}
            return self._make(
                "arrive", to=self._register(0) if token else "", address=self._address(first, True), sem=sem,
                scope=scope, detail=detail,
            )  # fmt: skip
        if mode == "expect_tx":
            self._order("relaxed", "cta", "relaxed")
            self._count(2)
            detail = {"bytes": self._value(1), "arrivals": 0}
            return self._make(
                "arrive", address=self._address(0, True), sem="relaxed", scope="cta", detail=detail
            )
        raise self.error(
            "no mbarrier operation of the model",
            expected="arrive, expect_tx, test_wait or try_wait",
            got=self.opcode,
        )

    def _copy(self) -> Step:
        reduce = bool(self._take("reduce"))
        if not self._take("async"):
            raise self.error(
                "no copy of the model", expected="cp.async or cp.async.bulk", got=self.opcode
            )
        bulk = bool(self._take("bulk"))
        if self._take("commit_group"):
            self._count(0)
            return self._make("commit", detail={"bulk": bulk})
        if self._take("wait_all"):
            self._count(0)
            return self._make(
                "group", detail={"bulk": False, "pending": 0, "read": False, "all": True}
            )
        if self._take("wait_group"):
            self._count(1)
            pending = self._value(0)
            if isinstance(pending, str):
                raise self.operands[0].error("no number of groups", got=pending)
            return self._make(
                "group",
                detail={
                    "bulk": bulk,
                    "pending": pending,
                    "read": bool(self._take("read")),
                    "all": False,
                },
            )
        by_barrier = bool(self._take("mbarrier::complete_tx::bytes"))
        grouped = bool(self._take("bulk_group"))
        for _ in range(2):
            self._take(*_SPACES)
        self._take("ca", "cg")
        self._typed()
        add = self._take("add", "min", "max", "and", "or", "xor") if reduce else ""
        if reduce != bool(add) or reduce and not bulk or not bulk and (by_barrier or grouped):
            raise self.error("no copy of the model", got=self.opcode)
        if bulk and by_barrier == grouped:
            raise self.error(
                "needs one way to complete",
                expected=".mbarrier::complete_tx::bytes or .bulk_group",
                got=self.opcode,
            )
        self._count(3 + by_barrier)
        size = self._value(2)
        if isinstance(size, str) or size < 1:
            raise self.operands[2].error("no number of bytes", got=self.operands[2].text)
        addresses = [self._address(1)]
        if by_barrier:
            addresses.append(self._address(3, True))
        detail: dict[str, Any] = {
            "bulk": bulk, "addresses": addresses, "bytes": size, "barrier": addresses[1] if by_barrier else "",
        }  # fmt: skip
        return self._make(
            "copy", address=self._address(0), proxy="async" if bulk else "generic",
            function=_ATOMS[add] if add else None, detail=detail,
        )  # fmt: skip

    def _alu(self) -> Step:
        self._typed()
        self._take("lo")
        self._count(2 if self.name == "mov" else 3)
        values = tuple(self._value(index) for index in range(1, len(self.operands)))
        return self._make(
            "alu", to=self._register(0), values=values, function=_ARITHMETIC[self.name]
        )

    def _setp(self) -> Step:
        self._typed()
        compare = self._take(*_COMPARE)
        if not compare:
            raise self.error(
                "setp needs a comparison", expected=", ".join(f".{c}" for c in _COMPARE)
            )
        self._count(3)
        return self._make(
            "alu", to=self._register(0), values=(self._value(1), self._value(2)),
            function=lambda a, b: int(_COMPARE[compare](a, b)),
        )  # fmt: skip

    def _branch(self) -> Step:
        self._take("uni")
        self._count(1)
        return self._make("bra", to=self.operands[0].text)

    def _end(self) -> Step:
        self._count(0)
        return self._make("exit")
