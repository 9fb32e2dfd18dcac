"""The compilation cache in a bundle: exported on one machine, imported on another.

Entries are found by a key over everything that they depend on, the releases of Gluon Core, its plugins and
Triton included, so they only help a machine with the same.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Optional

from gluon_bundle.bundle import Bundle
from gluon_bundle.errors import BundleFormatError
from gluon_core import _triton
from gluon_core.compiler import cache
from gluon_core.errors import CacheError
from gluon_runtime.manifest import digest_of

__all__ = ["export_cache", "import_cache"]


def export_cache(bundle: Bundle, folder: Optional[str] = None) -> int:
    """Put the entries of the compilation cache into a bundle.

    Args:
        folder: of the cache; None for Triton's (`TRITON_CACHE_DIR`).

    Returns:
        How many there are. Damaged ones and those of Triton itself are left out.

    Raises:
        CacheError: the folder cannot be read.
    """
    where = Path(folder or _triton.cache_folder())
    if not where.is_dir():
        raise CacheError("there is no compilation cache", argument="folder", got=str(where))
    count = 0
    for group in sorted(where.glob("*/__grp__*.json")):
        entry = group.parent / group.name.removeprefix("__grp__")
        files = _entry(entry)
        if not files:
            continue
        key = json.loads(files[entry.name])["gluon"]["key"]
        listed = {}
        for name, data in files.items():
            member = f"cache/{digest_of(data)}"
            bundle.add_file(member, data)
            listed[name] = member
        bundle.cache[key] = listed
        count += 1
    return count


def _entry(path: Path) -> dict[str, bytes]:
    """Return the files of an entry of ours by name; empty for another's, or a damaged one."""
    try:
        files = {path.name: path.read_bytes()}
        gluon = json.loads(files[path.name])["gluon"]
        for name, _, digest in gluon["files"].values():
            files[name] = (path.parent / name).read_bytes()
            if digest_of(files[name]) != digest:
                return {}
    except (OSError, ValueError, KeyError, TypeError):
        return {}
    return files


def import_cache(bundle: Bundle) -> int:
    """Write the cache entries of a bundle into the compilation cache of this machine.

    Returns:
        How many there were.

    Raises:
        BundleHashError: a part of the bundle was exchanged.
        BundleFormatError: an entry is none.
        CacheError: the cache cannot be written.
    """
    for key, listed in bundle.cache.items():
        data = {name: bundle.file(member) for name, member in listed.items()}
        documents = [name for name in data if name.endswith(".json")]
        safe = all(name == Path(name).name for name in data) and key.isalnum()
        if len(documents) != 1 or not safe:
            raise BundleFormatError("not an entry of a compilation cache", argument=key)
        try:
            document = json.loads(data[documents[0]])
            manager = _triton.cache_manager(key)
            files = {
                name: manager.put(content, name, binary=True)
                for name, content in data.items()
                if name != documents[0]
            }
            if document["gluon"]["key"] != key or document["gluon"]["format"] != cache.FORMAT:
                raise BundleFormatError("the entry belongs to another cache", argument=key)
            text = data[documents[0]].decode()
            files[documents[0]] = manager.put(text, documents[0], binary=False)
            manager.put_group(documents[0], files)
        except OSError as error:
            raise CacheError(f"the compilation cache cannot be written: {error}") from error
        except (ValueError, KeyError, TypeError) as error:
            raise BundleFormatError(
                "not an entry of a compilation cache", argument=key, got=str(error)
            ) from error
    return len(bundle.cache)
