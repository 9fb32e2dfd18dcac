"""The effects of instructions by the pseudocode of the vendor's ISA guides, one lane at a time.

An interpreter of the part of that language that arithmetic is written in; whatever else a text uses
raises `Unsupported`.
"""

from __future__ import annotations

import re
from typing import Any, Mapping

import numpy as np

from tests.backends.emu.pseudocode_numbers import (
    CONSTANTS,
    FLOATS,
    FUNCTIONS,
    Int,
    Unsupported,
    as_float,
    binary,
    bits_of,
    cast,
    converted,
    literal,
    truth,
    typed,
    whole,
)

_TOKEN = re.compile(
    r"\s*(?:(?P<sized>\d+'(?:0x[0-9a-fA-F]+|[-\d.]+|[UIFB])[ULF]*)|(?P<number>0x[0-9a-fA-F]+[UL]*|\d+\.\d+F?|\d+[ULF]*)"
    r"|(?P<word>[A-Za-z_]\w*)|(?P<sign>\+:|-:|<<|>>|\*\*|<=|>=|==|!=|<>|&&|\|\||\+=|-=|[-+*/%&|^~!<>=?:;,.()\[\]{}]))"
)
_ENDS = {"endif", "endfor", "else", "elsif", ""}


class Program:
    """One instruction's text.

    Args:
        others: texts of other instructions by name in small letters, which this one may call.
    """

    def __init__(self, text: str, others: Mapping[str, str]):
        self.others = others
        text = re.sub(r"//[^\n]*", "", text)
        self.tokens: list[str] = []
        position, text = 0, text.rstrip()
        while position < len(text):
            match = _TOKEN.match(text, position)
            if match is None:
                raise Unsupported(text[position : position + 10])
            self.tokens.append(match[0].strip())
            position = match.end()

    def run(self, state: dict[str, Any]) -> dict[str, Any]:
        """`state` after it: registers as (bits, width) by name, such as "S0"; "laneId" a number."""
        self.state = state
        self.functions: dict[str, tuple[list[str], int]] = {}
        self.at = 0
        self.returned: Any = None
        self._block(True)
        if self.at < len(self.tokens):
            raise Unsupported(f"at {self.tokens[self.at : self.at + 4]}")
        return self.state

    # -- statements --------------------------------------------------------------------------------

    def _peek(self, ahead: int = 0) -> str:
        position = self.at + ahead
        return self.tokens[position] if position < len(self.tokens) else ""

    def _take(self, wanted: str = "") -> str:
        token = self._peek()
        if wanted and token != wanted:
            raise Unsupported(f"{wanted} and not {token}")
        self.at += 1
        return token

    def _block(self, live: bool) -> bool:
        """Run statements up to an end; False where `break` or `return` left it."""
        while self._peek() not in _ENDS and self._peek() != ")":
            if self._peek() == ";":
                self._take()
                continue
            if not self._statement(live):
                live = False
                self.left = True
        return live

    def _statement(self, live: bool) -> bool:
        word = self._peek()
        if word == "if":
            return self._if(live)
        if word == "for":
            return self._for(live)
        if word in ("break", "return"):
            self._take()
            if word == "return":
                value = self._expression(live)
                if live:
                    self.returned = value
            return False if live else True
        if word == "declare":
            self._take()
            name = self._take()
            self._take(":")
            size = self._take()
            if size.endswith("F"):
                raise Unsupported("a table")
            width = int(size.split("'")[0])
            count = 1
            if self._peek() == "[":
                self._take()
                count = int(self._take())
                self._take("]")
            if live:
                self.state[name] = [Int(0, width, False)] * count if count > 1 else (0, width)
            return True
        if self._peek(1) == "=" and self._peek(2) == "lambda":
            return self._lambda()
        self._assign(live)
        return True

    def _if(self, live: bool) -> bool:
        going, chosen = True, False
        while True:
            word = self._take()
            if word in ("if", "elsif"):
                test = self._expression(live and not chosen)
                self._take("then")
                now = live and not chosen and truth(test)
            elif word == "else":
                now = live and not chosen
            elif word == "endif":
                return going
            else:
                raise Unsupported(word)
            chosen |= now
            if not self._block(now) and now:
                going = False

    def _for(self, live: bool) -> bool:
        self._take("for")
        name = self._take()
        self._take("in")
        first = self._expression(live)
        self._take(":")
        last = self._expression(live)
        self._take("do")
        body = self.at
        if not live:
            self._block(False)
            self._take("endfor")
            return True
        alive = True
        if whole(last) < whole(first):
            raise Unsupported("an empty loop")
        for number in range(whole(first), whole(last) + 1):
            self.at = body
            self.state[name] = Int(number)
            self.returned = None
            alive = self._block(alive)
        self._take("endfor")
        return alive or self.returned is None

    def _lambda(self) -> bool:
        name = self._take()
        self._take("=")
        self._take("lambda")
        self._take("(")
        names = []
        while self._peek() != ")":
            token = self._take()
            if token != ",":
                names.append(token)
        self._take(")")
        self._take("(")
        self.functions[name] = (names, self.at)
        depth = 1
        while depth:
            token = self._take()
            depth += (token == "(") - (token == ")")
            if not token:
                raise Unsupported("a lambda without end")
        return True

    def _assign(self, live: bool) -> None:
        name = self._take()
        if not re.match(r"[A-Za-z_]", name):
            raise Unsupported(f"a statement that starts with {name}")
        places: list[tuple[int, int]] = []
        kind, element = "", None
        while self._peek() in ("[", "."):
            if self._take() == ".":
                kind = self._take()
                continue
            high, low = self._range(live)
            if live and isinstance(self.state.get(name), list):
                element = low
            else:
                places.append((high, low))
        sign = self._take()
        if sign not in ("=", "+=", "-="):
            raise Unsupported(f"{name} {sign}")
        value = self._expression(live)
        if not live:
            return
        if sign != "=":
            old = self._typed_variable(name, kind)
            value = binary(sign[0], old, value)
        if element is not None:
            array = list(self.state[name])
            array[element] = Int.of(bits_of(value)[0], array[element].width, False)
            self.state[name] = array
        else:
            self._put(name, places, kind, value)

    def _put(self, name: str, places: list[tuple[int, int]], kind: str, value: Any) -> None:
        if isinstance(value, str):
            raise Unsupported(value)
        if kind:
            value = converted(value, kind)
        bits, width = bits_of(value)
        if not places and name not in ("D0", "D1", "SCC", "VCC", "EXEC"):
            self.state[name] = value
            return
        old = self.state.get(name, (0, 64))
        if not isinstance(old, tuple):
            old = bits_of(old)
        if not places:
            if kind:
                width = int(re.sub(r"\D", "", kind))
            elif name == "SCC":
                width = 1
            self.state[name] = (bits & (1 << width) - 1, width)
            return
        high, low = places[0]
        if len(places) > 1:
            raise Unsupported("a part of a part")
        mask = (1 << high - low + 1) - 1
        total = max(old[1], high + 1)
        if kind and name in ("D0", "VCC"):
            total = max(total, int(re.sub(r"\D", "", kind)) if high == low else total)
        self.state[name] = (old[0] & ~(mask << low) | (bits & mask) << low, total)

    # -- expressions -------------------------------------------------------------------------------

    def _range(self, live: bool) -> tuple[int, int]:
        """After `[`: (high, low) bits."""
        first = self._expression(live)
        if self._peek() == ":":
            self._take()
            second = self._expression(live)
            self._take("]")
            return (whole(first), whole(second)) if live else (0, 0)
        if self._peek() == "+:":
            self._take()
            count = self._expression(live)
            self._take("]")
            return (whole(first) + whole(count) - 1, whole(first)) if live else (0, 0)
        self._take("]")
        return (whole(first), whole(first)) if live else (0, 0)

    def _expression(self, live: bool) -> Any:
        test = self._level(0, live)
        if self._peek() != "?":
            return test
        self._take()
        chosen = truth(test) if live else False
        yes = self._expression(live and chosen)
        self._take(":")
        no = self._expression(live and not chosen)
        return yes if chosen else no

    _LEVELS = (("||",), ("&&",), ("|",), ("^",), ("&",), ("==", "!=", "<>"), ("<", ">", "<=", ">="),
               ("<<", ">>"), ("+", "-"), ("*", "/", "%"), ("**",))  # fmt: skip

    def _level(self, level: int, live: bool) -> Any:
        if level == len(self._LEVELS):
            return self._unary(live)
        left = self._level(level + 1, live)
        while self._peek() in self._LEVELS[level]:
            sign = self._take()
            if sign in ("||", "&&"):
                known = live and truth(left) == (sign == "||")
                right = self._level(level + 1, live and not known)
                if live:
                    left = truth(left) if known else truth(right)
                continue
            right = self._level(level + 1, live)
            if live:
                if sign == "<>":
                    a, b = as_float(left), as_float(right)
                    left = bool(a < b or a > b)
                else:
                    left = binary(sign, left, right)
        return left

    def _unary(self, live: bool) -> Any:
        sign = self._peek()
        if sign in ("-", "!", "~", "+"):
            self._take()
            value = self._unary(live)
            if not live or sign == "+":
                return value
            if sign == "!":
                return not truth(value)
            if isinstance(value, bool):
                value = Int(int(value), 1, False)
            if sign == "~":
                return Int.of(~value.value, value.width, value.signed)
            if not isinstance(value, Int):
                return -value
            return Int(-value.value, value.width, True, True) if value.literal else Int.of(-value.value, value.width, value.signed)  # fmt: skip
        return self._postfix(self._primary(live), live)

    def _postfix(self, value: Any, live: bool) -> Any:
        while self._peek() in (".", "["):
            if self._take() == ".":
                kind = self._take()
                if kind in ("IEEE", "DX10_CLAMP"):  # fields of MODE
                    value = Int(1)
                elif live:
                    bits = value[0] if isinstance(value, tuple) else bits_of(value)[0]
                    if isinstance(value, Int):
                        bits = value.value  # extended by its sign
                    value = typed(bits, kind)
                continue
            high, low = self._range(live)
            if not live:
                continue
            if isinstance(value, list):
                value = value[low]
            else:
                bits = value[0] if isinstance(value, tuple) else bits_of(value)[0]
                if high < low:  # backwards
                    bits = int(f"{bits:0{low + 1}b}"[::-1], 2)
                    high, low = low, high
                width = high - low + 1
                value = Int(bits >> low & (1 << width) - 1, width, False)
        if isinstance(value, tuple) and live:
            value = Int(value[0], value[1], False)
        return value

    def _typed_variable(self, name: str, kind: str) -> Any:
        value = self.state.get(name, (0, 64))
        if kind:
            return typed(value[0] if isinstance(value, tuple) else bits_of(value)[0], kind)
        return Int(value[0], value[1], False) if isinstance(value, tuple) else value

    def _primary(self, live: bool) -> Any:
        token = self._take()
        if token == "(":
            value = self._expression(live)
            self._take(")")
            return value
        if token == "{":
            parts = [self._expression(live)]
            while self._peek() == ",":
                self._take()
                parts.append(self._expression(live))
            self._take("}")
            bits, total = 0, 0
            for part in parts if live else []:
                own, width = bits_of(part)
                bits, total = bits << width | own, total + width
            return Int(bits, total, False) if live else None
        if "'" in token:
            return self._sized(token, live)
        if token[:1].isdigit():
            return literal(token)
        if not re.match(r"[A-Za-z_]", token):
            raise Unsupported(f"{token} in an expression")
        if self._peek() == "(":
            return self._call(token, live)
        if token in CONSTANTS:
            value = np.float64(CONSTANTS[token])
            if self._peek() == ".":
                self._take()
                value = FLOATS[int(self._take()[1:])](value)
            return value
        if token in ("WAVE32", "WAVE64"):
            return self.state["lanes"] == int(token[4:])
        if not live:
            return (0, 64)
        if token not in self.state:
            raise Unsupported(token)
        return self.state[token]

    def _sized(self, token: str, live: bool) -> Any:
        width, rest = token.split("'")
        if rest in ("U", "I", "F", "B"):
            self._take("(")
            value = self._expression(live)
            self._take(")")
            return cast(value, int(width), rest) if live else None
        if re.fullmatch(r"-?\d+\.\d+", rest):
            return FLOATS[int(width)](float(rest))
        if rest.endswith("F") and not rest.startswith("0x"):
            return FLOATS[int(width)](float(rest[:-1]))
        return Int(int(rest.rstrip("UL"), 0), int(width), False)

    def _call(self, name: str, live: bool) -> Any:
        self._take("(")
        arguments = []
        while self._peek() != ")":
            if self._peek() == ",":
                self._take()
            arguments.append(self._expression(live))
        self._take(")")
        if not live:
            return None
        if name in self.functions:
            names, start = self.functions[name]
            saved, back, before = dict(self.state), self.at, self.returned
            self.state.update(zip(names, arguments))
            self.at, self.returned = start, None
            if self._is_statement():
                self._block(True)
                value = self.returned
            else:
                value = self._expression(True)
            self.state, self.at, self.returned = saved, back, before
            return value
        if name in FUNCTIONS:
            return FUNCTIONS[name](*arguments)
        if name in self.others:
            inner = Program(self.others[name], self.others)
            state = {**{f"S{i}": bits_of(a) for i, a in enumerate(arguments)}, "laneId": Int(0), "lanes": self.state["lanes"], "WAVE_MODE": Int(1)}  # fmt: skip
            state = inner.run(state)
            bits, width = state["D0"] if isinstance(state["D0"], tuple) else bits_of(state["D0"])
            result = re.findall(r"\bD0\.([uif]\d+) *=", self.others[name])
            return typed(bits, result[0]) if result else Int(bits, width, False)
        raise Unsupported(f"{name}()")

    def _is_statement(self) -> bool:
        if self._peek() in ("if", "declare", "for", "return"):
            return True
        return False
