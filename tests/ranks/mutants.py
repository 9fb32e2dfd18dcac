"""Examples and the library's signals with one line taken out, or one scope narrowed."""

import importlib.util
import re
import sys
from pathlib import Path

import gluon_core.portable.ops as ops

ROOT = Path(__file__).parents[2]
_SIGNALS = re.compile(r"gl\.portable\.(signal|wait_signal|counter_add|counter_wait|rank_barrier)\(")
# Other ordering: copies by TMA, its barriers, launches on a side stream, launches after all ranks have come.
_OTHERS = re.compile(
    r"^\s+(tma\.store_wait|mbarrier\.wait|fence_async_shared|side\.join|self\.meet\[turn\])\("
)
_LIBRARY = re.compile(r"^\s+(_gather_threads\(\)|_add\(.*|wait_signal\(.*)$")


def of_example(path):
    """(label, text) of each way in which a file of examples can lack a signal, a wait or a scope."""
    lines = (ROOT / path).read_text().splitlines()
    for number, line in enumerate(lines):
        indent = line[: len(line) - len(line.lstrip())]
        other = _OTHERS.match(line)
        if other is not None:
            code = line.partition("#")[0].rstrip()
            yield f"line {number + 1} without {other[1]}", _put(lines, number, indent + "pass")
            if "read_only=False" in code:
                narrow = code.replace(", read_only=False", "")
                yield f"line {number + 1} until it is read alone", _put(lines, number, narrow)
            continue
        match = _SIGNALS.search(line)
        if match is None:
            continue
        name = match[1]
        yield f"line {number + 1} without {name}", _put(lines, number, indent + "pass")
        assert line.endswith(")"), "a call on one line"
        if "scope=" not in line:
            narrow = f'{line[:-1]}, scope="gpu")'
            yield f"line {number + 1} with {name} on the device", _put(lines, number, narrow)
        else:
            narrow = line.replace('scope="gpu"', 'scope="cta"')
            yield f"line {number + 1} with {name} in its program", _put(lines, number, narrow)


def of_library():
    """The same of `gluon_core.portable.signals`."""
    lines = (ROOT / "gluon_core/portable/signals.py").read_text().splitlines()
    function = ""
    for number, line in enumerate(lines):
        if line.startswith("def "):
            function = line[4:].partition("(")[0]
        if _LIBRARY.match(line) and not function.startswith("_"):
            indent = line[: len(line) - len(line.lstrip())]
            label = f"{function}, line {number + 1} without {line.strip()}"
            yield label, _put(lines, number, indent + "pass")


def _put(lines, number, line):
    return "\n".join([*lines[:number], line, *lines[number + 1 :], ""])


def load(text, folder, name="mutant"):
    path = Path(folder) / f"{name}.py"
    path.write_text(text)
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    finally:
        del sys.modules[name]
    return module


def use(module, monkeypatch):
    """Let `gl.portable` be a mutant's."""
    for name in ("signal", "wait_signal", "counter_add", "counter_wait", "rank_barrier"):
        monkeypatch.setattr(ops, name, getattr(module, name))
