"""The service of the runtime that kernels ask to print: hostcalls.

A wave takes a packet from a stack, fills a header and eight words for each lane, pushes it on another
stack, rings a doorbell and waits until the packet's control word says that it was answered. Printed text comes as messages of several packets: a word of flags, length and the number of the message,
and up to seven words; the words of a message are where to print, the format, and the arguments.

LLVM, "User Guide for AMDGPU Backend": hidden_hostcall_buffer. The layout is that of ROCm's device
library (ockl) and runtime (rocclr).
"""

from __future__ import annotations

import re
import struct
import sys
from typing import Any

import numpy as np

from gluon_emu.memory import Allocation

__all__ = ["Hostcalls", "asks", "formatted"]

_PRINT = 2  # the service that prints
_BEGIN, _END = 1, 2  # flags of a packet of a message
_READY = 1
_FREE, _PUSHED = 24, 32  # stacks in the buffer
_SIGNAL, _MAILBOX, _HEADERS = 64, 128, 4096
_HEADER, _PAYLOAD = 24, 4096

_FORMAT = re.compile(
    r"%(?:(%)|([-+ #0]*)(\d*)((?:\.\d*)?)(hh|hl|h|ll|l|j|z|t|L)?([diouxXfFeEgGaAcspn]))"
)


class Hostcalls:
    """The memory through which waves ask, and the host's answers.

    Args:
        waves: that may ask at once.
    """

    def __init__(self, waves: int):
        self.count = 1 << max(waves - 1, 1).bit_length()
        headers = -(-self.count * _HEADER // 4096) * 4096
        size = _HEADERS + headers + self.count * _PAYLOAD
        whole = np.zeros(size + 4096, np.uint8)
        start = -whole.ctypes.data % 4096
        self.data = whole[start : start + size]
        self.allocation = Allocation("the service that prints", self.data, True, whole)
        self.address = self.data.ctypes.data
        self.view: Any = self.data  # as `struct` takes it
        self.headers, self.payloads = _HEADERS, _HEADERS + headers
        self.messages: dict[int, list[int]] = {}
        self.started = 0
        self.complaints: list[str] = []  # the different lines that went to standard error
        for offset, value in (
            (0, self.address + self.headers), (8, self.address + self.payloads),
            (16, self.address + _SIGNAL), (40, self.count - 1), (_SIGNAL + 16, self.address + _MAILBOX),
        ):  # fmt: skip
            self._put(offset, value)
        # A stack ends with 0; as packet 0 is one too, its first tag is 1.
        following = 0
        for packet in range(self.count):
            self._put(self.headers + packet * _HEADER, following)
            following = packet or self.count
        self._put(_FREE, following)

    def _get(self, offset: int, kind: str = "<Q") -> int:
        return int(struct.unpack_from(kind, self.view, offset)[0])

    def _put(self, offset: int, value: int, kind: str = "<Q") -> None:
        struct.pack_into(kind, self.view, offset, value)

    def serve(self) -> int:
        """Answer all packets that were pushed; a service that is not there, 0 where all are."""
        packets = []
        pushed = self._get(_PUSHED)
        self._put(_PUSHED, 0)
        while pushed:
            packet = pushed & (self.count - 1)
            packets.append(packet)
            pushed = self._get(self.headers + packet * _HEADER)
        for packet in reversed(packets):  # the first that came first
            header = self.headers + packet * _HEADER
            active, service = self._get(header + 8), self._get(header + 16, "<I")
            if service != _PRINT:
                return service
            for lane in range(64):
                if active >> lane & 1:
                    self._answer(self.payloads + packet * _PAYLOAD + lane * 64)
            self._put(header + 20, self._get(header + 20, "<I") & ~_READY, "<I")
        return 0

    def _answer(self, slot: int) -> None:
        """Answer one lane's part of a message."""
        words = struct.unpack_from("<8Q", self.view, slot)
        header = words[0]
        if header & _BEGIN:
            self.started += 1
            number = self.started
            self.messages[number] = []
        else:
            number = header >> 8
        message = self.messages.setdefault(number, [])
        message += words[1 : 1 + (header >> 5 & 7)]
        answer = number << 8
        if header & _END:
            answer = self._print(self.messages.pop(number))
        self._put(slot, answer)

    def _print(self, words: list[int]) -> int:
        raw = struct.pack(f"<{len(words)}Q", *words)
        text = formatted(raw[8:])
        stream = sys.stderr if words and words[0] & 1 else sys.stdout
        stream.write(text)
        stream.flush()
        if stream is sys.stderr:
            self.complaints += [s for s in text.splitlines() if s not in self.complaints]
        return len(text)


def _text(raw: bytes, offset: int) -> tuple[str, int]:
    """Return a string that ends with a 0, and the offset behind it."""
    end = raw.find(b"\0", offset)
    end = len(raw) if end < 0 else end
    return raw[offset:end].decode(errors="replace"), (end // 8 + 1) * 8


_BITS = {"hh": 8, "h": 16, "": 32, "hl": 32}


def formatted(raw: bytes) -> str:
    """Return the output of `printf` for a format and its arguments, each of which has eight bytes or, where it is
    a string, as many as the string."""
    form, offset = _text(raw, 0)

    def value(match: "re.Match[str]") -> str:
        nonlocal offset
        percent, flags, width, precision, length, kind = match.groups()
        if percent:
            return "%"
        spec = f"%{flags}{width}{precision}"
        if kind == "s":
            text, offset = _text(raw, offset)
            return (spec + "s") % text
        word = int.from_bytes(raw[offset : offset + 8].ljust(8, b"\0"), "little")
        offset += 8
        if kind == "n":
            return ""
        if kind == "p":
            return f"{word:#x}"
        if kind == "c":
            return (spec + "c") % chr(word & 0xFF)
        if kind in "fFeEgGaA":
            number = struct.unpack("<d", word.to_bytes(8, "little"))[0]
            return number.hex() if kind in "aA" else str((spec + kind) % number)
        bits = _BITS.get(length or "", 64)
        word &= (1 << bits) - 1
        if kind in "di" and word >> (bits - 1):
            word -= 1 << bits
        return str((spec + ("d" if kind == "u" else kind)) % word)

    return _FORMAT.sub(value, form)


def asks(info: Any) -> bool:
    """Return whether a kernel can ask for such a service."""
    return any(a.kind == "hidden_hostcall_buffer" for a in info.arguments)
