"""Which kernels a bundle is made of, as files: TOML that people write, and that `gluon run --record` writes.

    [[kernel]]
    kernel = "softmax.py:softmax"        # FILE:KERNEL; FILE is relative to this file
    targets = ["hopper", "gfx942"]
    signature = "*fp32:16, *fp32:16, i32"
    grid = [128]                         # where it is always the same
    name = "softmax_rows"                # in the bundle; the function's by default
    constexprs = { BLOCK = 1024, LAYOUT = "BlockedLayout([4], [32], [4], [0])" }
    options = { num_warps = 4 }
    attrs = { x = [["tt.pointer_range", 32]] }

Strings among constexprs and options are read as on the command line: a literal, a dtype or a layout.
"""

from __future__ import annotations

import os
import sys
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Iterator, Mapping, Optional, Sequence

from gluon_bundle.bundle import Bundle
from gluon_bundle.form import check_target
from gluon_bundle.recording import Recorded, record
from gluon_cli.launched import forms
from gluon_cli.output import UsageError, file_and_kernel
from gluon_cli.parse import parse_value
from gluon_core.errors import GluonError, did_you_mean
from gluon_core.registry.load import registry

__all__ = ["Spec", "add", "read", "recording_to"]


@dataclass(frozen=True)
class Spec:
    """A kernel and the targets that it is compiled for.

    Args:
        kernel: `FILE:KERNEL`.
        targets: in any spelling; empty for the device that is there.
        signature: as `gluon compile --signature` takes it; None takes those of the file's example or of its launches.
        constexprs, options: values by name.
        attrs: parameter -> list of [attribute, value].
        grid: the number of programs, where it is always the same.
        name: in the bundle; None for the function's.
    """

    kernel: str
    targets: tuple[str, ...] = ()
    signature: Optional[str] = None
    constexprs: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    attrs: Mapping[str, Any] = field(default_factory=dict)
    grid: Optional[tuple[int, ...]] = None
    name: Optional[str] = None


_KINDS: Mapping[str, type] = {
    "kernel": str,
    "targets": list,
    "signature": str,
    "constexprs": dict,
    "options": dict,
    "attrs": dict,
    "grid": list,
    "name": str,
}


def read(path: str) -> list[Spec]:
    """Return the specs in a TOML file.

    Raises:
        UsageError: no such file, no TOML, or an entry that is none.
    """
    try:
        import tomllib  # Python 3.11 has it
    except ModuleNotFoundError:
        import tomli as tomllib
    try:
        document = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"cannot be read: {error.strerror}", argument="SPEC", got=path) from None
    except ValueError as error:
        raise UsageError(f"is not valid TOML: {error}", argument="SPEC", got=path) from None
    entries = document.pop("kernel", None)
    if document or not isinstance(entries, list) or not entries:
        raise UsageError(
            "names no kernels",
            argument="SPEC",
            expected="[[kernel]] entries and nothing else",
            got=", ".join(document) or path,
        )
    return [_spec(entry, f"{path}, kernel {n}", path) for n, entry in enumerate(entries, 1)]


def _spec(entry: Any, where: str, path: str) -> Spec:
    if not isinstance(entry, dict) or "kernel" not in entry:
        raise UsageError("is not a kernel", argument=where, expected='kernel = "FILE:KERNEL"')
    for name, value in entry.items():
        kind = _KINDS.get(name)
        if kind is None:
            raise UsageError(f"has no {name!r}", argument=where, remedy=did_you_mean(name, _KINDS))
        if not isinstance(value, kind):
            raise UsageError(
                f"{name} is of another type",
                argument=where,
                expected=kind.__name__,
                got=repr(value),
            )
    file, colon, kernel = entry["kernel"].rpartition(":")
    file, kernel = (file, kernel) if colon else (kernel, "")
    file = os.path.join(os.path.dirname(path), file)
    return Spec(
        kernel=f"{file}:{kernel}" if kernel else file,
        targets=tuple(map(str, entry.get("targets", ()))),
        signature=entry.get("signature"),
        constexprs=_values(entry.get("constexprs", {}), f"{where}, constexprs"),
        options=_values(entry.get("options", {}), f"{where}, options"),
        attrs=entry.get("attrs", {}),
        grid=tuple(entry["grid"]) if "grid" in entry else None,
        name=entry.get("name"),
    )


def _values(table: Mapping[str, Any], where: str) -> dict[str, Any]:
    return {
        name: parse_value(value, f"{where}.{name}") if isinstance(value, str) else value
        for name, value in table.items()
    }


def add(bundle: Bundle, spec: Spec, source_map: bool = False) -> None:
    """Add a spec to a bundle.

    Raises:
        UsageError: no such file or kernel, or one name for several kernels.
        GluonError: as `Bundle.add`.
    """
    from gluon_core.compiler import GluonASTSource

    for wanted in spec.targets or (None,):
        target = registry().target(wanted)
        if Path(file_and_kernel(spec.kernel)[0]).is_file():  # else `forms` reports it
            check_target(target)
        launched = forms(spec.kernel, target, spec.signature, spec.constexprs, spec.options)
        names = ", ".join(sorted({form.name for form in launched}))
        if spec.name is not None and "," in names:
            raise UsageError(
                f"cannot be the name of several kernels: {names}", argument="name", got=spec.name
            )
        for form in launched:
            source = form.source
            if spec.attrs:
                attrs = {**source.attrs, **spec.attrs}
                source = GluonASTSource(source.fn, source.signature, source.constants, attrs)
            bundle.add(
                source,
                target=target,
                name=spec.name,
                grid=spec.grid,
                source_map=source_map,
                **form.options,
            )


# -- recording -------------------------------------------------------------------------------------


@contextmanager
def recording_to(path: str) -> Iterator[None]:
    """Record the launches inside, and write it to the TOML file `path`.

    Raises:
        UsageError: the file cannot be written.
    """
    with record() as recording:
        yield
    entries, problems = [], []
    for launch in recording:
        try:
            entries.append(_entry(launch, os.path.dirname(os.path.abspath(path))))
        except GluonError as error:
            problems.append(str(error))
    try:
        Path(path).write_text("\n".join(entries), encoding="utf-8")
    except OSError as error:
        raise UsageError(
            f"cannot be written: {error.strerror}", argument="--record", got=path
        ) from None
    forms = "1 form" if len(entries) == 1 else f"{len(entries)} forms"
    print(f"gluon: recorded {forms} of kernels in {path}", file=sys.stderr)
    for problem in dict.fromkeys(problems):
        print(f"gluon: not recorded: {problem}", file=sys.stderr)


def _entry(launch: Recorded, folder: str) -> str:
    """Return a form as an entry of a TOML file in `folder`."""
    source, fn = launch.source, launch.source.fn.fn
    if "<locals>" in fn.__qualname__:
        raise UsageError(
            "a kernel within a function has no FILE:KERNEL",
            argument=fn.__qualname__,
            remedy="Record it in the program, with gluon_core.bundle.record().",
        )
    file = os.path.relpath(fn.__code__.co_filename, folder)
    types = []
    constants: dict[str, Any] = {}
    for index, (name, kind) in enumerate(source.signature.items()):
        if kind == "constexpr":
            where = f"{fn.__name__}({name})"
            constants[name] = _text(source.constants.get((index,)), where)
        else:
            types.append(f"{name}={_kind(kind, fn.__name__)}")
    names = source.fn.arg_names
    attrs = {}
    for place, pairs in source.attrs.items():
        if len(place) != 1:
            raise UsageError(
                "marks within tuples cannot be written",
                argument=f"{fn.__name__}({names[place[0]]})",
            )
        attrs[names[place[0]]] = [list(pair) for pair in pairs]
    options = {k: _text(v, f"{fn.__name__}, option {k}") for k, v in launch.options.items()}
    lines = [
        "[[kernel]]",
        f"kernel = {_toml(f'{Path(file).as_posix()}:{fn.__name__}')}",
        f"targets = [{_toml(str(launch.hardware))}]",
        f"signature = {_toml(', '.join(types))}",
    ]
    if launch.grid is not None:
        lines.append(f"grid = {list(launch.grid)}")
    for title, table in (("constexprs", constants), ("options", options), ("attrs", attrs)):
        if table:
            lines.append(f"[kernel.{title}]")
            lines += [f"{name} = {_toml(value)}" for name, value in table.items()]
    return "\n".join(lines) + "\n"


def _kind(kind: Any, where: str) -> str:
    if isinstance(kind, (tuple, list)):
        if "constexpr" in kind:
            raise UsageError("constants within tuples cannot be written", argument=where)
        return f"({', '.join(_kind(item, where) for item in kind)})"
    return str(kind)


def _text(value: Any, where: str) -> Any:
    """Return a constant as TOML holds it: a number, or a text that `parse_value` reads."""
    from gluon_core import language
    from gluon_core._triton import dtype, unwrap

    value = unwrap(value)
    if type(value) in (bool, int) or (type(value) is float and value == value):
        return value
    text = repr(value)
    if isinstance(value, dtype):
        same = (n for n in dir(language) if isinstance(getattr(language, n, None), dtype))
        text = next((name for name in same if getattr(language, name) == value), text)
    try:
        same_again = bool(parse_value(text) == value)
    except GluonError:
        same_again = False
    if not same_again:
        raise UsageError(
            "a constant that cannot be written as a literal",
            argument=where,
            expected="a literal, a dtype or a layout",
            got=text,
            remedy="Record it in the program, with gluon_core.bundle.record().",
        )
    return text


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        escaped = value.replace("\\", "\\\\").replace('"', '\\"')
        return '"' + "".join(c if c.isprintable() else f"\\u{ord(c):04x}" for c in escaped) + '"'
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_toml, value))}]"
    return repr(value)


def looks_like(spec: str) -> bool:
    """Return True if an argument names a file of specs."""
    return spec.endswith(".toml")


def targets_of(names: Optional[Sequence[str]]) -> tuple[str, ...]:
    """Return the targets that `--target` named, repeated or with commas."""
    return tuple(name.strip() for text in names or () for name in text.split(",") if name.strip())
