"""Which line of the source each line of a kernel's assembly came from."""

from __future__ import annotations

import inspect
import json
import os
import re

from gluon_core.compiler.kernel import CompiledKernel

__all__ = ["of"]

# `.file 1 "/folder" "name.py"`, `.file 1 "name.py"`; `.loc 1 12 4`: of PTX and of AMDGCN.
_FILE = re.compile(r'^\s*\.file\s+(\d+)\s+"([^"]*)"(?:\s+"([^"]*)")?')
_LOC = re.compile(r"^\s*\.loc\s+(\d+)\s+(\d+)\s+(\d+)")


def of(compiled: CompiledKernel) -> bytes:
    """Return the map of a kernel, JSON: `file`, `line` and `text` of its function, the `assembly` that
    the code object was made of, and `locations`, [line of the assembly, file, line, column], counted
    from 1."""
    fn = compiled.src.fn
    stage = list(compiled.asm)[-2] if len(compiled.asm) > 1 else ""
    text = compiled.asm[stage] if stage else ""
    assembly = text if isinstance(text, str) else ""
    # In PTX the names of the files stand behind the code.
    named = filter(None, map(_FILE.match, assembly.splitlines()))
    files = {match[1]: os.path.basename(match[3] or match[2]) for match in named}
    located = ((n, _LOC.match(line)) for n, line in enumerate(assembly.splitlines(), 1))
    locations = [
        [number, files.get(match[1], ""), int(match[2]), int(match[3])]
        for number, match in located
        if match and int(match[2])
    ]
    lines, first = inspect.getsourcelines(fn.fn)
    document = {
        "file": os.path.basename(fn.fn.__code__.co_filename),
        "line": first,
        "text": "".join(lines),
        "stage": stage,
        "assembly": assembly,
        "locations": locations,
    }
    return json.dumps(document, sort_keys=True).encode()
