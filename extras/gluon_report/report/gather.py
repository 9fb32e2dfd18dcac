"""Gather the contents of a page, as data that JSON holds: findings, pictures of layouts, emitted code."""

from __future__ import annotations

import ast
import linecache
import os
import re
from dataclasses import asdict
from math import prod
from typing import Any, Iterable, Optional

from gluon_core.errors import GluonError
from gluon_core.registry.load import registry
from gluon_core.simulation.evidence import Record
from gluon_sim.findings import Findings, Held, KernelFindings, Trouble

__all__ = ["gathered"]

_MOST_ELEMENTS = 512  # of a picture; larger tensors are shown by a small one of the same layout
_MOST_PICTURES = 40
_LARGEST = 400_000  # characters of a picture


class _Pictures:
    """Each layout once, by a number."""

    def __init__(self) -> None:
        self.pictures: list[dict[str, str]] = []
        self._numbers: dict[tuple[str, Any], int] = {}

    def number(self, layout: Any, shape: Optional[tuple[int, ...]], bits: int) -> Optional[int]:
        """Return the number of the picture; None where there can be none."""
        shape = shape if shape is None or prod(shape) <= _MOST_ELEMENTS else None
        key = (repr(layout), shape)
        if key not in self._numbers:
            if len(self.pictures) >= _MOST_PICTURES:
                return None
            picture_data = {"title": short(layout), "text": "", "svg": ""}
            for extents in dict.fromkeys((shape, None)):
                try:
                    picture = layout.show(extents, bits=bits)
                except (GluonError, AttributeError):
                    continue
                svg = picture.svg()
                picture_data = {"title": picture.title, "text": picture.text}
                picture_data["svg"] = svg if len(svg) <= _LARGEST else ""
                break
            if picture_data in self.pictures:
                self._numbers[key] = self.pictures.index(picture_data)
                return self._numbers[key]
            self._numbers[key] = len(self.pictures)
            self.pictures.append(picture_data)
        return self._numbers[key]


def short(layout: Any) -> str:
    """Return a layout as one writes it, without unset fields."""
    return repr(layout).replace(", cga_layout=[]", "")


def gathered(
    file: str,
    target: str,
    findings: Findings,
    record: Record,
    refusal: Optional[GluonError] = None,
) -> dict[str, Any]:
    """Run a page once.

    Args:
        file: that ran.
        target: it ran on.
        findings: the findings of the simulator.
        record: of its launches.
        refusal: the error that ended the run, where no launch failed.
    """
    pictures = _Pictures()
    kernels = [_kernel(one, findings, record, pictures) for one in findings.kernels]
    return {
        "file": os.path.basename(file),
        "target": target,
        "kernels": kernels,
        "troubles": [
            *map(_trouble, findings.troubles),
            *map(_trouble, _refused(findings, record, refusal)),
        ],
        "timeline": findings.timeline,
        "pictures": pictures.pictures,
    }


def _refused(
    findings: Findings, record: Record, refusal: Optional[GluonError]
) -> Iterable[Trouble]:
    """Return the errors that ended the run or that the file caught, unless the simulator reported them."""
    reported = {f"{one.error}: {one.text.splitlines()[0]}" for one in findings.troubles}
    if refusal is not None:
        name, text = type(refusal).__name__, str(refusal)
        head = f"{name}: {text.splitlines()[0]}"
        if head not in reported:
            reported.add(head)
            kernel = next((one.kernel for one in record.raised if one.error == head), "")
            yield Trouble(name, kernel, "", text)
    for one in record.raised:
        if one.error not in reported:
            reported.add(one.error)
            yield Trouble(one.error.partition(":")[0], one.kernel, "", one.error.partition(": ")[2])


def _trouble(one: Trouble) -> dict[str, Any]:
    entry = asdict(one)
    for party in entry["parties"]:
        party["source"] = linecache.getline(party["file"], party["line"]).strip()
    return entry


def _kernel(
    one: KernelFindings, findings: Findings, record: Record, pictures: _Pictures
) -> dict[str, Any]:
    mine = [t for t in findings.troubles if (t.kernel, t.target) == (one.kernel, one.target)]
    places = [(row.file, row.line) for row in one.lines]
    places += [(use.file, use.line) for use in one.banks]
    places += [(value.file, value.line) for value in one.values]
    places += [(party.file, party.line) for trouble in mine for party in trouble.parties]
    values: dict[str, list[dict[str, Any]]] = {}
    files = list(dict.fromkeys([one.file, *(file for file, line in places if line)]))
    for value in one.values:
        place = f"{files.index(value.file)}:{value.line}"
        values.setdefault(place, []).append(_value(value, pictures))
    return {
        "name": one.kernel,
        "target": one.target,
        "launches": one.launches,
        "programs": one.programs,
        "summary": one.summary,
        "columns": one.columns,
        "files": files,
        "source": [_source(number, file, places) for number, file in enumerate(files)],
        "lines": [
            {"at": f"{files.index(row.file)}:{row.line}", "cells": row.cells, "by": row.numbers}
            for row in one.lines
        ],
        "total": one.total,
        "banks": [
            {
                "at": f"{files.index(use.file)}:{use.line}",
                "line": use.line,
                "way": use.way,
                "passes": use.passes,
                "ideal": use.ideal,
                "buffer": short(use.buffer),
                "buffer_line": use.buffer_line,
                "buffer_picture": pictures.number(use.buffer, None, 32),
                "cure": "" if use.cure is None else short(use.cure),
                "cure_picture": use.cure and pictures.number(use.cure, None, 32),
                "cured": use.cured,
                "note": use.note,
            }
            for use in one.banks
        ],
        "values": values,
        "code": list(_code(one, record, files)),
    }


def _value(value: Held, pictures: _Pictures) -> dict[str, Any]:
    return {
        "name": value.name,
        "type": value.type,
        "layout": short(value.layout),
        "picture": pictures.number(value.layout, value.shape, value.bits),
    }


def _source(number: int, file: str, places: Iterable[tuple[str, int]]) -> dict[str, Any]:
    """Return the functions of a file that the places are in, line by line."""
    lines: set[int] = set()
    for line in {line for other, line in places if other == file and line}:
        if line not in lines:
            lines.update(_around(file, line))
    rows = [[line, linecache.getline(file, line).rstrip("\n")] for line in sorted(lines)]
    return {"file": os.path.basename(file), "number": number, "rows": rows}


def _around(file: str, line: int) -> range:
    """Return the lines of the innermost function around `line`, with its decorators."""
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except SyntaxError:
        return range(line, line + 1)
    around = [range(line, line + 1)]
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
            lines = range(first, (node.end_lineno or node.lineno) + 1)
            if line in lines:
                around.append(lines)
    return min(around[1:] or around, key=len)


# -- emitted code ----------------------------------------------------------------------------------


def _code(one: KernelFindings, record: Record, files: list[str]) -> Iterable[dict[str, Any]]:
    """Return the code of each launched form of the kernel, compiled for the simulated hardware."""
    seen = set()
    for kernel in record.kernels.values():
        if (kernel.src.name, str(kernel.target)) != (one.kernel, one.target):
            continue
        types = ", ".join(str(kind) for kind in kernel.src.types if kind != "constexpr")
        form = (types, repr(kernel.src.constants), kernel.metadata.num_warps)
        if form in seen:
            continue
        seen.add(form)
        yield {"form": f"{one.kernel}({_brief(types)})", **_compiled(kernel, files)}


def _brief(types: str) -> str:
    """Without the layouts of descriptors."""
    return re.sub(r"(\[[\d, ]*\]),\w+\([^()]*\)(?=>)", r"\1", types)


def _compiled(kernel: Any, files: list[str]) -> dict[str, Any]:
    """Return the compiled kernel, or the reason why there is none."""
    entry: dict[str, Any] = {"target": "", "entries": [], "facts": {}, "problem": ""}
    try:
        hardware = kernel.hardware.kernel() if kernel.hardware is not None else kernel
        backend = registry().backend(hardware.target.architecture.backend)
        entry["target"] = str(hardware.target)
        entry["entries"] = [
            {
                "name": name,
                "lines": [
                    _line(one, files) for one in backend.compiler.listing(name, hardware.asm)
                ],
            }
            for name in backend.compiler.listings
            if name in hardware.asm or name in backend.compiler.derives
        ]
        report = asdict(hardware.report())
        for part in ("loops", "instruction_mix"):
            report.pop(part)
        entry["facts"] = {"num_warps": hardware.metadata.num_warps, **report}
    except GluonError as error:
        entry["problem"] = f"{type(error).__name__}: {str(error).splitlines()[0]}"
    return entry


def _line(one: Any, files: list[str]) -> list[str]:
    """Return the text and the place of an emitted line, as in `files`. A kernel from the cache may have
    been compiled where its file had another path."""
    if not one.line:
        return [one.text]
    if one.file in files:
        return [one.text, f"{files.index(one.file)}:{one.line}"]
    name = os.path.basename(one.file)
    same = [number for number, file in enumerate(files) if os.path.basename(file) == name]
    return [one.text, f"{same[0]}:{one.line}"] if same else [one.text]
