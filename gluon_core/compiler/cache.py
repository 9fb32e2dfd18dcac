"""The compilation cache on disk, in Triton's cache folder and through its cache managers.

An entry is one file per stage and a JSON file that lists their digests and its own. It is written
last and each file atomically; whatever does not check out is compiled again, never trusted.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import re
import warnings
from pathlib import Path
from typing import Any, Iterable, Iterator, Mapping, Optional, Sequence

from gluon_core import _triton

__all__ = [
    "Entry",
    "content_hash",
    "key_of",
    "load",
    "load_companion",
    "package_hash",
    "store",
    "store_companion",
]

FORMAT = 1


class Entry:
    """Hold a compiled kernel as it is on disk.

    Args:
        asm: stage -> text or bytes.
        metadata: metadata of the stages, JSON values.
        files: file name -> path, as Triton's hooks want them.
    """

    def __init__(self, asm: dict[str, Any], metadata: dict[str, Any], files: dict[str, str]):
        self.asm = asm
        self.metadata = metadata
        self.files = files

    def move(self, sources: Sequence[str]) -> None:
        """Name the source files of an equal kernel in the metadata and in all texts; machine code keeps its paths."""
        paths: dict[str, str] = {}
        if self.metadata["source_files"] == list(sources):
            return
        for old, new in zip(self.metadata["source_files"], sources):
            folder, now = (f'"{os.path.dirname(path)}"' for path in (old, new))
            paths |= {old: new, folder: now}  # LLVM writes folders apart
        paths.pop('""', None)  # the folder of `<string>`
        pattern = re.compile("|".join(map(re.escape, paths)))
        moved = functools.partial(pattern.sub, lambda match: paths[match[0]])
        self.asm = {k: moved(v) if isinstance(v, str) else v for k, v in self.asm.items()}
        self.metadata = json.loads(moved(json.dumps(self.metadata, ensure_ascii=False)))


def key_of(parts: Iterable[Any]) -> str:
    """Return a hex key over `parts`, unambiguous however they are split."""
    digest = hashlib.sha256()
    for part in parts:
        text = str(part).encode()
        digest.update(b"%d:" % len(text))
        digest.update(text)
    return digest.hexdigest()


def content_hash(packages: tuple[str, ...]) -> str:
    """Digest of the Python files of `packages`; each is read once per process."""
    return key_of(map(package_hash, packages))


@functools.lru_cache(maxsize=None)
def package_hash(package: str) -> str:
    """Digest of the Python files of one."""
    digest = hashlib.sha256()
    for folder in _folders(package):
        start = len(str(folder.parent))  # the path before it may differ between machines
        for path in _python_files(str(folder)):
            digest.update(f"{package}{path[start:]}\0".encode())
            with open(path, "rb", buffering=0) as file:
                digest.update(hashlib.sha256(file.read()).digest())
    return digest.hexdigest()


def _python_files(root: str) -> Iterator[str]:
    """Those under a folder, always in the same order; a file is its own."""
    if not os.path.isdir(root):
        yield root
        return
    with os.scandir(root) as entries:
        sorted_entries = sorted(entries, key=lambda entry: entry.name)
    for entry in sorted_entries:
        if entry.is_dir(follow_symlinks=False):
            yield from _python_files(entry.path)
        elif entry.name.endswith(".py"):
            yield entry.path


def _folders(package: str) -> list[Path]:
    import importlib.util

    try:
        spec = importlib.util.find_spec(package)
    except (ImportError, ValueError):
        spec = None
    if spec is None:
        return []
    if spec.submodule_search_locations:
        return [Path(place) for place in spec.submodule_search_locations]
    return [Path(spec.origin)] if spec.origin and os.path.exists(spec.origin) else []


def _digest(data: Any) -> str:
    return hashlib.sha256(data if isinstance(data, bytes) else data.encode()).hexdigest()


def _self_digest(document: Mapping[str, Any]) -> str:
    return _digest(
        json.dumps({k: v for k, v in document.items() if k != "checksum"}, sort_keys=True)
    )


def _stem(name: str) -> str:
    return name[:150]  # a file name may have 255 characters, and the managers add to it


def load(key: str, name: str) -> Optional[Entry]:
    """Return the entry of `key`, or None where there is none or it is damaged or foreign."""
    document_name = f"{_stem(name)}.json"
    try:
        files = _triton.cache_manager(key).get_group(document_name) or {}
        path = files.get(document_name)
        if path is None:
            return None
        document = json.loads(Path(path).read_text())
        gluon = document["gluon"]
        if gluon["format"] != FORMAT or gluon["key"] != key:
            return None
        if document["checksum"] != _self_digest(document):
            return None
        asm: dict[str, Any] = {}
        for stage, (file, binary, digest) in gluon["files"].items():
            data = Path(files[file]).read_bytes()
            if _digest(data) != digest:
                return None
            asm[stage] = data if binary else data.decode()
        metadata = {k: v for k, v in document.items() if k not in ("checksum", "gluon")}
        return Entry(asm, metadata, dict(files))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None  # damaged: the caller compiles again and overwrites it


def store(
    key: str,
    name: str,
    asm: Mapping[str, Any],
    metadata: Mapping[str, Any],
    binary_only: bool = False,
) -> dict[str, str]:
    """Write an entry; answers file name -> path. A folder that cannot be written costs a warning.

    Args:
        binary_only: keep the last stage alone (`TRITON_STORE_BINARY_ONLY`).
    """
    files: dict[str, str] = {}
    listed: dict[str, tuple[str, bool, str]] = {}
    stages = list(asm)[-1:] if binary_only else list(asm)
    try:
        manager = _triton.cache_manager(key)
        for stage in stages:
            data, file = asm[stage], f"{_stem(name)}.{stage}"
            binary = isinstance(data, bytes)
            files[file] = _triton.put_in_cache(manager, data, file)
            listed[stage] = (file, binary, _digest(data))
        document = dict(metadata, gluon={"format": FORMAT, "key": key, "files": listed})
        document = json.loads(json.dumps(document, default=vars))
        document["checksum"] = _self_digest(document)
        document_name = f"{_stem(name)}.json"
        files[document_name] = _triton.put_in_cache(manager, json.dumps(document), document_name)
        manager.put_group(document_name, files)
    except OSError as error:
        _warn_once(str(error))
    return files


def load_companion(key: str, name: str, kind: str, maker: str) -> Optional[dict[str, Any]]:
    """Return the value that `store_companion` wrote for the same maker; None where it is missing or damaged."""
    file = f"{_stem(name)}.{kind}.json"
    try:
        path = _triton.cache_manager(key).get_file(file)
        document = json.loads(Path(path).read_text()) if path else {}
        whole = document.get("checksum") == _self_digest(document) and document.get("key") == key
        value = document["value"] if whole and document["maker"] == maker else None
        return value if isinstance(value, dict) else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def store_companion(key: str, name: str, kind: str, maker: str, value: Mapping[str, Any]) -> None:
    """Keep a value that was computed from an entry's machine code, in the folder of the entry.

    Args:
        kind: names the file.
        maker: a digest of the tool and of its input; `load_companion` with another one returns None.
        value: JSON values.
    """
    document = {"key": key, "maker": maker, "value": value}
    document = json.loads(json.dumps(document))
    document["checksum"] = _self_digest(document)
    try:
        manager = _triton.cache_manager(key)
        _triton.put_in_cache(manager, json.dumps(document), f"{_stem(name)}.{kind}.json")
    except OSError as error:
        _warn_once(str(error))


@functools.lru_cache(maxsize=None)
def _warn_once(text: str) -> None:
    warnings.warn(
        f"compiled kernels are not kept: the cache folder cannot be written ({text}). "
        "Set TRITON_CACHE_DIR to a folder that can.",
        RuntimeWarning,
        stacklevel=2,
    )
