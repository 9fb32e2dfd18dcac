"""The file: a zip archive, stored and not compressed, whose bytes depend on its content alone.

Order, timestamps and attributes of the members are fixed. The archive's comment is
`gluon-bundle/<version> sha256=<hex>`, the hash of every byte before those 64 digits, so any changed
byte is noticed, the bookkeeping of the archive included. Reading evaluates nothing.
"""

from __future__ import annotations

import hashlib
import os
import struct
import zlib
from pathlib import Path
from typing import Mapping, Optional, Union

from gluon_runtime.errors import (
    BundleDamagedError,
    BundleFormatError,
    BundleHashError,
    BundleTruncatedError,
    BundleVersionError,
)

__all__ = [
    "CERTIFICATE",
    "DIGITS",
    "FORMAT",
    "HEAD",
    "INDEX",
    "MANIFEST",
    "MIDDLE",
    "Container",
    "read",
    "unpack",
]

FORMAT = 1
MANIFEST = "manifest.json"
INDEX = "index.bin"
CERTIFICATE = "certificate.json"

HEAD = b"gluon-bundle/"
MIDDLE = b" sha256="
DIGITS = 64
_START = b"PK\x03\x04"
_LOCAL = struct.Struct("<4s5H3I2H")  # the header before each member
_FIRST = INDEX.encode()


class Container:
    """The members of a bundle.

    Attributes:
        members: name -> bytes, in the order of the file.
        digest: the hash that the file carries, hex: compare it with the one that was published.
    """

    def __init__(self, members: Mapping[str, bytes], digest: str):
        self.members = dict(members)
        self.digest = digest


def read(path: Union[str, os.PathLike[str]], digest: Optional[str] = None) -> Container:
    """Return the bundle in a file, see `unpack`.

    Raises:
        BundleFormatError: there is no such file, or it is no bundle.
    """
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise BundleFormatError(
            f"the bundle cannot be read: {error.strerror or error}", argument=str(path)
        ) from error
    return unpack(data, str(path), digest)


def unpack(data: bytes, where: str, digest: Optional[str] = None) -> Container:
    """Return the members of a bundle, once its hash is right.

    Args:
        data: the file.
        where: its name in errors.
        digest: the hash that the caller knows the bundle to have, from elsewhere.

    Raises:
        BundleFormatError: no bundle.
        BundleVersionError: of another version of the format.
        BundleTruncatedError: the end of the file is missing.
        BundleDamagedError: its bytes are not those that were written.
        BundleHashError: intact, but not the one with this `digest`.
    """
    place = data.rfind(HEAD, max(0, len(data) - 256))
    if place < 0:
        raise _headless(data, where)
    version, separator, rest = data[place + len(HEAD) :].partition(MIDDLE)
    if separator and version.isdigit() and version != b"%d" % FORMAT:
        raise BundleVersionError(
            "the bundle has a format that this release does not read",
            argument=where,
            expected=f"format {FORMAT}",
            got=f"format {version.decode()}",
            remedy="Build it anew, or install the release of gluon-runtime that it was built with.",
        )
    if len(rest) < DIGITS:
        raise BundleTruncatedError("the end of the file is missing", argument=where)
    recorded = rest.decode("ascii", "replace")
    really = hashlib.sha256(data[:-DIGITS]).hexdigest()
    if recorded != really:
        raise BundleDamagedError(
            "the file is damaged or was changed",
            argument=where,
            expected=f"sha256 {recorded}",
            got=really,
            remedy="Fetch or build it again.",
        )
    if digest is not None and digest.lower() != really:
        raise BundleHashError(
            "this is not the requested bundle",
            argument=where,
            expected=f"sha256 {digest}",
            got=really,
        )
    return Container(_members(data, where), really)


def _headless(data: bytes, where: str) -> Exception:
    """Return the error of a file that does not end as a bundle does."""
    begins = data[:4] == _START and data[30 : 30 + len(_FIRST)] == _FIRST
    short = len(data) < 30 + len(_FIRST) and (_START.startswith(data[:4]) or data[:4] == _START)
    if begins or (data and short):
        return BundleTruncatedError(
            "the end of the file is missing", argument=where, got=f"{len(data)} bytes"
        )
    return BundleFormatError(
        "not a bundle",
        argument=where,
        got="an empty file" if not data else f"a file that begins with {data[:8]!r}",
        remedy="`gluon bundle OUT KERNEL...` makes one.",
    )


def _members(data: bytes, where: str) -> dict[str, bytes]:
    """Return all members, read from their headers in a row; nothing else may stand in between."""
    members: dict[str, bytes] = {}
    place = 0
    while data[place : place + 4] == _START:
        if place + _LOCAL.size > len(data):
            raise BundleFormatError("a member has no header", argument=where)
        fields = _LOCAL.unpack_from(data, place)
        flags, method, checksum, packed, size, name_size, more = (fields[2], fields[3], *fields[6:])
        start = place + _LOCAL.size + name_size + more
        name = data[place + _LOCAL.size :][:name_size].decode("utf-8", "replace")
        content = data[start : start + size]
        if flags & ~0x800 or method or packed != size or len(content) != size or name in members:
            raise BundleFormatError(
                "a member is not stored as bundles do", argument=f"{where}:{name}"
            )
        if zlib.crc32(content) != checksum:
            raise BundleHashError("a member has another checksum", argument=f"{where}:{name}")
        members[name] = content
        place = start + size
    if MANIFEST not in members or INDEX not in members:
        raise BundleFormatError(
            "a part is missing", argument=where, expected=f"{MANIFEST} and {INDEX}"
        )
    return members
