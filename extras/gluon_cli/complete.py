"""Values of options for the completion of shells, computed when you press tab."""

from __future__ import annotations

from typing import Callable, Iterable, Iterator

__all__ = ["capabilities_and_targets", "emitted", "kernels", "one_of", "several_targets", "targets"]

Complete = Callable[[str], list[str]]


def one_of(*values: str) -> Complete:
    """Return a function that completes one of these values."""
    return lambda incomplete: _begin(values, incomplete)


def targets(incomplete: str) -> list[str]:
    """Complete an architecture's name or alias; behind `sim:` and its like, one that the backend simulates."""
    return _begin(_targets(incomplete), incomplete)


def several_targets(incomplete: str) -> list[str]:
    """Complete the last one of several targets with commas between."""
    before, comma, last = incomplete.rpartition(",")
    return [before + comma + value for value in targets(last)]


def capabilities_and_targets(incomplete: str) -> list[str]:
    """Complete a target or a capability of hardware."""
    from gluon_core.registry.load import registry

    known = {c for one in registry().architectures() for c in one.capabilities}
    return _begin([*_targets(incomplete), *sorted(known)], incomplete)


def emitted(incomplete: str) -> list[str]:
    """Complete a form that `gluon compile --emit` can write, for any backend."""
    from gluon_core.registry.load import registry

    forms = ["report", "source", "ttgir", "llir"]
    for backend in registry().backends.values():
        forms += [*backend.compiler.listings, *backend.compiler.derives]
    return _begin([*dict.fromkeys(forms), "cubin", "hsaco"], incomplete)


def kernels(incomplete: str) -> list[str]:
    """Complete a file, and behind `FILE.py:` a kernel; the file is read and not run."""
    import ast
    from pathlib import Path

    file, colon, _ = incomplete.rpartition(":")
    if not colon:
        folder, _, name = incomplete.rpartition("/")
        entries = sorted(Path(folder or ".").glob(f"{name}*"))
        prefix = f"{folder}/" if folder else ""
        parts = [f"{prefix}{one.name}" for one in entries if one.suffix == ".py"]
        return parts + [f"{prefix}{one.name}/" for one in entries if one.is_dir()]
    try:
        tree = ast.parse(Path(file).read_text(encoding="utf-8"))
    except (OSError, SyntaxError, ValueError):
        return []
    names = [
        node.name
        for node in tree.body
        if isinstance(node, ast.FunctionDef)
        and any("jit" in ast.dump(d) for d in node.decorator_list)
    ]
    return _begin([f"{file}:{name}" for name in names], incomplete)


def _targets(incomplete: str) -> Iterator[str]:
    from gluon_core.registry.load import registry

    known = registry()
    prefix, colon, _ = incomplete.partition(":")
    for one in known.architectures():
        for name in one.spellings:
            yield f"{prefix}:{name}" if colon else name
    if not colon:
        yield from (f"{backend}:" for backend in known.backends)


def _begin(values: Iterable[str], incomplete: str) -> list[str]:
    return [value for value in dict.fromkeys(values) if value.startswith(incomplete)]
