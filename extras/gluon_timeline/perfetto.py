"""Read Perfetto's binary traces as events in the JSON format of Chrome.

Tracks and slices are read, as FlyDSL's KTRACE and most tools write them: names given or interned, parents of tracks, defaults
of a sequence. Counters, instants and ftrace events are not.

Source: Perfetto, protos/perfetto/trace/trace_packet.proto and track_event/*.proto; Protocol Buffers, Encoding.
"""

from __future__ import annotations

import gzip
import io
import zlib
from dataclasses import dataclass, field
from typing import Any, Iterator, Optional, Union

__all__ = ["events", "unpacked"]

_Value = Union[int, bytes]

# Fields of TracePacket.
_TIMESTAMP, _SEQUENCE, _EVENT, _INTERNED, _DEFAULTS, _DESCRIPTOR = 8, 10, 11, 12, 59, 60
# Fields of TrackEvent, InternedData, TracePacketDefaults and TrackDescriptor.
_TYPE, _NAME_IID, _TRACK, _NAME = 9, 10, 11, 23
_EVENT_NAMES, _EVENT_DEFAULTS = 2, 11
_UUID, _TITLE, _PROCESS, _THREAD, _PARENT = 1, 2, 3, 4, 5
_BEGIN, _END = 1, 2
_MOST_BYTES = 1 << 30


def unpacked(content: bytes) -> bytes:
    """Return a file's bytes without the compression of gzip.

    Raises:
        ValueError: they are damaged, or more than a gibibyte.
    """
    if not content.startswith(b"\x1f\x8b"):
        return content
    try:
        with gzip.open(io.BytesIO(content)) as file:
            plain = file.read(_MOST_BYTES + 1)
    except (EOFError, OSError, zlib.error) as error:
        raise ValueError(f"its compression is damaged: {error}") from error
    if len(plain) > _MOST_BYTES:
        raise ValueError("it is larger than a gibibyte")
    return plain


def events(content: bytes) -> list[dict[str, Any]]:
    """Return the slices of a trace as complete events, and the names of their tracks.

    A track's process is its outermost parent, and its thread the names on the way down. Times are microseconds.

    Raises:
        ValueError: the bytes are no trace, or end within a packet.
    """
    trace = _Trace()
    for number, packet in _fields(content):
        if number != 1 or not isinstance(packet, bytes):
            raise ValueError("it is not a Perfetto trace")
        trace.add(_known(packet))
    return trace.written()


@dataclass
class _Track:
    name: str
    parent: Optional[int]


@dataclass
class _Trace:
    """The tracks and slices of the packets that were read.

    Attributes:
        tracks: by uuid.
        names: (sequence, iid) -> an interned name.
        defaults: sequence -> the track of its events without one.
        begun: track -> (name, nanoseconds) of the slices that are open.
        slices: (track, name, begin, end), nanoseconds.
    """

    tracks: dict[int, _Track] = field(default_factory=dict)
    names: dict[tuple[int, int], str] = field(default_factory=dict)
    defaults: dict[int, int] = field(default_factory=dict)
    begun: dict[int, list[tuple[str, int]]] = field(default_factory=dict)
    slices: list[tuple[int, str, int, int]] = field(default_factory=list)

    def add(self, packet: dict[int, list[_Value]]) -> None:
        sequence = _number(packet, _SEQUENCE)
        for interned in _messages(packet, _INTERNED):
            for entry in _messages(interned, _EVENT_NAMES):
                self.names[sequence, _number(entry, 1)] = _text(entry, 2)
        for defaults in _messages(packet, _DEFAULTS):
            for event in _messages(defaults, _EVENT_DEFAULTS):
                self.defaults[sequence] = _number(event, _TRACK)
        for track in _messages(packet, _DESCRIPTOR):
            name = _text(track, _TITLE)
            for part, title in ((_PROCESS, 6), (_THREAD, 5)):
                for one in _messages(track, part):
                    name = (
                        name or _text(one, title) or f"{_number(one, 2 if part == _THREAD else 1)}"
                    )
            parent = _number(track, _PARENT) if _PARENT in track else None
            self.tracks[_number(track, _UUID)] = _Track(name, parent)
        for event in _messages(packet, _EVENT):
            self._event(event, sequence, _number(packet, _TIMESTAMP))

    def _event(self, event: dict[int, list[_Value]], sequence: int, time: int) -> None:
        track = _number(event, _TRACK) if _TRACK in event else self.defaults.get(sequence, 0)
        kind = _number(event, _TYPE)
        if kind == _BEGIN:
            name = _text(event, _NAME) or self.names.get((sequence, _number(event, _NAME_IID)), "")
            self.begun.setdefault(track, []).append((name, time))
        elif kind == _END and self.begun.get(track):
            name, begin = self.begun[track].pop()
            self.slices.append((track, name, begin, time))

    def _way(self, track: int) -> list[str]:
        """Return the names from the outermost parent of a track to itself."""
        way: list[str] = []
        seen: set[int] = set()
        one: Optional[int] = track
        while one is not None and one in self.tracks and one not in seen:
            seen.add(one)
            way.insert(0, self.tracks[one].name or str(one))
            one = self.tracks[one].parent
        return way or [str(track)]

    def written(self) -> list[dict[str, Any]]:
        places: dict[int, tuple[str, int]] = {}
        out: list[dict[str, Any]] = []
        for number, track in enumerate(dict.fromkeys(one[0] for one in self.slices)):
            way = self._way(track)
            places[track] = (way[0], number)
            thread = ", ".join(way[1:]) or way[0]
            out.append(
                {
                    "ph": "M",
                    "name": "process_name",
                    "pid": way[0],
                    "tid": 0,
                    "args": {"name": way[0]},
                }
            )
            out.append(
                {
                    "ph": "M",
                    "name": "thread_name",
                    "pid": way[0],
                    "tid": number,
                    "args": {"name": thread},
                }
            )
        for track, name, begin, end in sorted(
            self.slices, key=lambda one: (one[0], one[2], -one[3])
        ):
            pid, tid = places[track]
            out.append(
                {"ph": "X", "name": name, "pid": pid, "tid": tid, "ts": begin / 1e3, "dur": (end - begin) / 1e3}
            )  # fmt: skip
        return out


def _fields(content: bytes) -> Iterator[tuple[int, _Value]]:
    """Yield (number, value) of the fields of a message: integers, and the bytes of all other types."""
    place = 0
    while place < len(content):
        key, place = _varint(content, place)
        number, wire = key >> 3, key & 7
        if wire == 0:
            value, place = _varint(content, place)
            yield number, value
            continue
        if wire == 2:
            size, place = _varint(content, place)
        elif wire in (1, 5):
            size = 8 if wire == 1 else 4
        else:
            raise ValueError(f"byte {place} begins a field of unknown type {wire}")
        if place + size > len(content):
            raise ValueError(f"it ends within a field, at byte {place}")
        yield number, content[place : place + size]
        place += size


def _varint(content: bytes, place: int) -> tuple[int, int]:
    """Return a number of variable length, and the place behind it."""
    value = shift = 0
    while shift < 70:
        if place >= len(content):
            raise ValueError("it ends within a number")
        byte = content[place]
        place += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, place
        shift += 7
    raise ValueError(f"a number at byte {place} is too long")


def _known(message: bytes) -> dict[int, list[_Value]]:
    out: dict[int, list[_Value]] = {}
    for number, value in _fields(message):
        out.setdefault(number, []).append(value)
    return out


def _messages(message: dict[int, list[_Value]], number: int) -> Iterator[dict[int, list[_Value]]]:
    for value in message.get(number, ()):
        if isinstance(value, bytes):
            yield _known(value)


def _number(message: dict[int, list[_Value]], number: int) -> int:
    """Return a field that is an integer, 0 if it is absent."""
    value = message.get(number, [0])[-1]
    return value if isinstance(value, int) else 0


def _text(message: dict[int, list[_Value]], number: int) -> str:
    value = message.get(number, [b""])[-1]
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else ""
