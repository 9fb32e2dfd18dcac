"""The bytes of a bundle, which depend on its content alone. `gluon_runtime.container` describes and reads them."""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
from typing import Any, Mapping

from gluon_runtime.container import DIGITS, FORMAT, HEAD, INDEX, MANIFEST, MIDDLE

__all__ = ["canonical", "pack", "places"]

_HEADER = 30  # bytes before the name of a member
_EPOCH = (1980, 1, 1, 0, 0, 0)


def canonical(document: Any) -> bytes:
    """Return the one way in which a manifest is written."""
    text = json.dumps(document, sort_keys=True, indent=1, ensure_ascii=True, allow_nan=False)
    return text.encode() + b"\n"


def _in_order(members: Mapping[str, bytes]) -> list[str]:
    """Return the names with the index first, and the manifest, which has the hashes of the others, last."""
    return sorted(members, key=lambda name: (name == MANIFEST, name != INDEX, name))


def places(parts: Mapping[str, bytes]) -> dict[str, int]:
    """Return the bytes between the index and the content of each of the parts that `pack` puts behind it."""
    places, end = {}, 0
    for name in _in_order(parts):
        places[name] = end + _HEADER + len(name)
        end = places[name] + len(parts[name])
    return places


def pack(members: Mapping[str, bytes]) -> bytes:
    """Return the bytes of a bundle."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for name in _in_order(members):
            info = zipfile.ZipInfo(name, _EPOCH)
            info.create_system = 3  # else it names the machine that wrote
            info.external_attr = 0o644 << 16
            archive.writestr(info, members[name])
        archive.comment = HEAD + b"%d" % FORMAT + MIDDLE + b"0" * DIGITS
    body = buffer.getvalue()[:-DIGITS]
    return body + hashlib.sha256(body).hexdigest().encode()
