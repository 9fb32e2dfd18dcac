"""`gluon write`: a file with the layouts that were chosen for a target."""

from __future__ import annotations

import ast
import math
import re
import sys
import tempfile
from contextlib import redirect_stdout
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Optional, Sequence

from gluon_cli.launched import Form, forms, words_of
from gluon_cli.output import Exit, UsageError, file_and_kernel, source_of
from gluon_cli.run import Runs, run_file
from gluon_cli.scripts import absolute_imports, importable, package_of
from gluon_core.errors import GluonError, LayoutError
from gluon_core.plugin.targets import Target
from gluon_core.registry.load import registry
from gluon_core.simulation.evidence import Record
from gluon_write.explicit import chosen_for
from gluon_write.porting.port import port
from gluon_write.preferred import chosen_form, preferred_form
from gluon_write.solver.solve import Solution
from gluon_write.solver.unknowns import Graph
from gluon_write.text.form import free_name
from gluon_write.text.syntax import is_docstring
from gluon_write.writing.edits import Edits, edits_of, space_in
from gluon_write.writing.foreign_names import Imports
from gluon_write.writing.short_text import ShortText, forced_texts, host_text
from gluon_write.writing.source import explicit_text, launched_early, relaunched, replaced
from gluon_write.writing.variants import (
    aligned_of,
    choices_of,
    chooser,
    decorator_of,
    facts_of,
    heuristics,
    unnamed_constants,
)

__all__ = ["show", "show_port", "written"]

_PROVED = "proved: "
_WORDS = {"counterexample": "refuted", "cannot say": "not decided"}


def show(spec: str, targets: Optional[str], to: Optional[Path], prove: bool) -> int:
    """Print or keep the explicit source of a file's kernels for each of `targets`, and say of each whether it is proved.

    Args:
        to: the folder of the new files, or the one file where it ends in `.py`.

    Returns:
        The exit code: that of a failure where a kernel is refuted, and nothing is written then; another one where the
        prover does not decide.

    Raises:
        UsageError: no such file; or one file to write for several targets.
        GluonError: no layouts fit, or the simulator's report on the written file.
    """
    names = targets.split(",") if targets else [None]
    asked = [registry().target(name) for name in names]  # all of them, before one is written
    end = Exit.OK
    file = Path(file_and_kernel(spec)[0])
    single = to is not None and to.suffix == ".py" and not to.is_dir()
    if single and len(asked) > 1:
        raise UsageError(
            "each target has a file of its own", argument="--to", expected="a folder", got=str(to)
        )
    for chosen in asked:
        ended: list[BaseException] = []
        text, kernels = written(spec, chosen, ended)
        if not kernels:
            print(f'nothing was written: {file} launches no kernel with layouts="auto"')
            return Exit.UNAVAILABLE
        notes: list[str] = []
        if prove:
            notes, wrong = _proofs(text, file, chosen, kernels, ended)
            if wrong:
                print("\n".join([f"nothing was written for {chosen}:", *notes]), file=sys.stderr)
                return Exit.FAILED
            if not all(note.startswith(_PROVED) for note in notes):
                end = Exit.UNAVAILABLE
            text = _below_docstring(text, [f"# {note}" for note in notes])
        form = chosen_form()
        name = f"{file.stem}_{chosen.architecture.name}{f'_{form}' if form else ''}.py"
        if to is None:
            heading = f"# ==== {name} ====\n" if len(asked) > 1 else ""
            print(heading + text, end="")
            print(*notes, sep="\n", end="\n" if notes else "", file=sys.stderr)
            continue
        place = to if single else to / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)
        print("\n".join([f"wrote {place}: {', '.join(kernels)}", *notes]))
    return end


def show_port(
    file: Path, to: Optional[Path], explicit: bool, targets: Optional[str], prove: bool
) -> int:
    """Print or keep a file with its kernels of plain Triton ported to Gluon.

    Args:
        to: the new file; with `explicit` it may be the folder of new files.

    Raises:
        UsageError: no such file.
        KernelSyntaxError: an op without a counterpart, with its line.
    """
    if not file.is_file():
        raise UsageError("no such file", argument="FILE", got=str(file))
    ported = port(source_of(file), str(file))
    if explicit:
        with tempfile.TemporaryDirectory() as folder:
            copy = Path(folder) / file.name
            copy.write_text(absolute_imports(ported.text, package_of(file)))
            with importable(file):
                return show(str(copy), targets, to, prove)
    if to is None:
        print(ported.text, end="")
        return Exit.OK
    to.write_text(ported.text)
    functions = f"; functions: {', '.join(ported.functions)}" if ported.functions else ""
    print(f"wrote {to}: {', '.join(ported.kernels)}{functions}")
    return Exit.OK


@dataclass
class _Variant:
    """Hold the explicit text of a kernel for some of its launches.

    Attributes:
        graph, solution: of the first. forms: the launches.
        short: the form that short ones of them take; None where all take one.
    """

    graph: Graph
    solution: Solution
    forms: list[Form]
    short: Optional[_Variant] = None

    @property
    def graphs(self) -> list[Graph]:
        """Return the graphs of all forms."""
        return [self.graph, *([self.short.graph] if self.short else [])]

    def text(self, imports: Imports, name: Optional[str] = None) -> tuple[str, str]:
        """Return the definitions of the functions that the kernel calls, and its own.

        Args:
            imports: of the written file. name: of the kernel, None for its own.
        """
        edits = edits_of(self.graph, self.solution, name)
        parts = self.graph, self.solution, imports
        return _helpers(edits, *parts), _imported(edits, edits, *parts)

    def bare(self) -> str:
        """Return the text without comments and definitions of layouts."""
        lines = "".join(self.text(_imports(self.forms[0], "", []))).splitlines()
        return "\n".join(
            line
            for line in lines
            if not re.match(r"\s*(#|\w*layout(_\d+)?: \w+\.constexpr = )", line)
        )


def written(
    spec: str, target: Target, ended: Optional[list[BaseException]] = None
) -> tuple[str, list[str]]:
    """Return the text of a file with explicit kernels for `target`, and their names.

    A kernel that is launched with several types or constants chooses among a function for each.

    Args:
        ended: receives the exception with which the file ends after its launches.
    """
    file = Path(file_and_kernel(spec)[0])
    launched: dict[tuple[str, int], list[Form]] = {}  # two kernels of a file may have one name
    elsewhere: dict[str, str] = {}
    for form in _launches(spec, target, ended):
        fn: Any = form.source.fn
        home = fn.fn.__code__.co_filename
        if not getattr(fn, "layouts", None):
            continue
        if Path(home).resolve() == file.resolve():
            launched.setdefault((form.name, fn.fn.__code__.co_firstlineno), []).append(form)
        else:
            elsewhere[form.name] = home
    if elsewhere and not launched:
        raise UsageError(
            f"{file.name} launches kernels of other files alone",
            argument="FILE",
            got=", ".join(f"{name} of {home}" for name, home in elsewhere.items()),
            remedy='Launch each below `if __name__ == "__main__":` of its own file, and write that file.',
        )
    text = absolute_imports(source_of(file), package_of(file)) if launched else ""
    definitions = []
    imported: list[str] = []
    for (name, line), listed in launched.items():
        variants = _variants(listed, target, fewer=True)
        wanted = {(_asked(form), one.graph.warps) for one in variants for form in one.forms}
        if any(asked != warps for asked, warps in wanted):
            changed = relaunched(text, name, dict(wanted)) if len(variants) == 1 else None
            if changed is None:
                variants = _variants(listed, target, fewer=False)
            text = changed or text
        if all(graph.dependent for one in variants for graph in one.graphs):
            text = launched_early(text, name)
        imports = _imports(listed[0], text, imported)
        definitions.append((line, name, *_definition(variants, target, text, imports)))
    for line, name, head, definition in sorted(definitions, reverse=True):
        text = replaced(text, name, line, head, definition)
    return _with_imports(text, imported), list(dict.fromkeys(name for name, _ in launched))


def _imports(form: Form, text: str, lines: list[str]) -> Imports:
    """Return the imports of a kernel's file, which go to `lines`."""
    taken = set(re.findall(r"\w+", "\n".join([text, *lines])))
    return Imports(form.source.fn, taken, lines)


def _with_imports(text: str, lines: list[str]) -> str:
    """Return a file's text with imports before those of this library, and of what its decorators name."""
    body = ast.parse(text).body
    imports = [s for s in body if isinstance(s, (ast.Import, ast.ImportFrom))]
    names = {name.asname or name.name for s in imports for name in s.names}
    if "@triton.heuristics(" in text and "triton" not in names:
        lines = ["import triton", *lines]
    if not lines:
        return text
    early = [s for s in body[:1] if isinstance(getattr(s, "value", None), ast.Constant)]
    early += [s for s in imports if getattr(s, "module", None) == "__future__"]
    first = max((s.end_lineno or s.lineno for s in early), default=0)
    for one in reversed([s for s in imports if s not in early]):
        source = one.module if isinstance(one, ast.ImportFrom) else one.names[0].name
        if (source or "").startswith("gluon_core") or one is imports[-1]:
            first = one.lineno - 1
    whole = text.splitlines()
    return "\n".join([*whole[:first], *dict.fromkeys(lines), *whole[first:]]) + "\n"


def _launches(spec: str, target: Target, ended: Optional[list[BaseException]]) -> list[Form]:
    """Return the launches of a file.

    Raises:
        UsageError: it has none, or no such kernel.
    """
    try:
        return forms(spec, target, None, {}, {}, ended)
    except UsageError as error:
        path, name = file_and_kernel(spec)
        file = Path(path)
        named = error.argument == "KERNEL" and name is not None
        if not file.is_file() or named or error.argument not in ("KERNEL", "--signature"):
            raise
        raise UsageError(
            f"{file.name} launches no {name or 'kernel'}",
            argument="FILE",
            expected="a program that launches its kernels: their types and constants are those of the launches",
            remedy='Launch them with small arrays below `if __name__ == "__main__":`.',
        ) from None


def _asked(form: Form) -> int:
    """Return the warps that a launch asks for."""
    return int(form.options["num_warps"])


def _variants(launched: Sequence[Form], target: Target, fewer: bool) -> list[_Variant]:
    """Return the explicit texts of a kernel, each once.

    Args:
        fewer: they may be for fewer warps than the launches ask for.
    """
    backend = registry().backend(target.backend)
    variants: dict[str, _Variant] = {}
    for form in launched:
        options = backend.compiler.options(target, dict(form.options))
        source = form.source
        facts = source.signature, source.constants, source.attrs, target, options
        graph, solution = chosen_for(source.fn, *facts, fewer)
        one = _Variant(graph, solution, [])
        if graph.short is not None:
            same = replace(options, num_warps=graph.warps)
            with preferred_form("pipelined"):
                one.short = _Variant(*chosen_for(source.fn, *facts[:-1], same, False), [form])
        lines = "".join(one.text(_imports(form, "", []))).splitlines()
        key = "\n".join(line for line in lines if not line.lstrip().startswith("#"))
        variants.setdefault(key, one).forms.append(form)
    return list(variants.values())


def _definition(
    variants: Sequence[_Variant], target: Target, text: str, imports: Imports
) -> tuple[str, str]:
    """Return the code above a kernel, and its definition."""
    fn = variants[0].forms[0].source.fn
    space = space_in(fn.get_capture_scope())
    facts = [[facts_of(form.source, _asked(form), space) for form in one.forms] for one in variants]
    choices = choices_of(
        facts, [[aligned_of(form.source) for form in one.forms] for one in variants]
    )
    taken = set(re.findall(r"\w+", text))
    chosen = [choice.variant for choice in choices]
    others = [one for number, one in enumerate(variants) if number not in chosen]
    for one in others:
        _check_constants(one, [variants[number] for number in chosen], space)
    note = "".join(
        f"# Launches with {types} get these layouts, too: no condition tells them apart.\n"
        for types in dict.fromkeys(form.types for one in others for form in one.forms)
    )
    if len(choices) == 1 and variants[choices[0].variant].short is None:
        one = variants[choices[0].variant]
        helpers, definition = one.text(imports)
        return helpers + _heading(one, target) + note, definition
    head, names = "", {}
    shorts: dict[int, ShortText] = {}
    flags, entries = heuristics(choices, taken)
    for number, choice in enumerate(choices, 1):
        one = variants[choice.variant]
        name = f"{fn.__name__}_{number}" if len(choices) > 1 else fn.__name__
        parts = [(one, free_name(name, taken) if len(choices) > 1 else name)]
        if one.short is not None and one.graph.short is not None:
            words = ("FEW", "few_steps", f"{name}_pipelined")
            short = shorts[choice.variant] = ShortText(*(free_name(w, taken) for w in words))
            head += f"{host_text(short.host, one.graph.short, imports.module(math))}\n\n"
            entries.append(short.entry)
            parts.append((one.short, short.name))
        for part, own in parts:
            helpers, definition = part.text(imports, own)
            if own == fn.__name__:  # so that its helpers have names without its own
                own = free_name(f"{own}_specialized", taken)
                definition = re.sub(rf"\bdef {fn.__name__}\b", f"def {own}", definition, count=1)
            if part is one:
                names[choice.variant] = own
            head += f"{helpers}{_heading(part, target)}@{imports.library()}.jit\n{definition}\n\n"
    text = chooser(fn, names, choices, flags, space, shorts)
    return head + note + decorator_of(entries), text


def _check_constants(other: _Variant, chosen: Sequence[_Variant], space: str) -> None:
    """Check that a launch without a function of its own computes the same in those of others.

    Raises:
        LayoutError: its text differs from theirs by a constant that no condition of a kernel names.
    """
    form = other.forms[0]

    def constants(form: Form) -> dict[str, Any]:
        return unnamed_constants(form.source, facts_of(form.source, _asked(form), space))

    own = constants(form)
    alike = [one for one in chosen if any(constants(f) == own for f in one.forms)]
    if alike or not own or other.bare() in [one.bare() for one in chosen]:
        return
    name = form.source.fn.__name__
    names = ", ".join(own)
    raise LayoutError(
        f"launches of {name} with {form.types} need functions of their own, and {names} is no value that a kernel compares",
        argument="layouts",
        expected="numbers, strings, types, layouts or functions of the file, or one launch",
        got=", ".join(f"{word}={value!r}" for word, value in own.items()),
        remedy=f"Give {name} a constexpr that distinguishes the launches, or write it for one of them.",
    )


def _heading(variant: _Variant, target: Target) -> str:
    """Return the comments above an explicit kernel."""
    text = f"# Layouts for {target}, {variant.forms[0].types}.\n"
    asked, warps = max(map(_asked, variant.forms)), variant.graph.warps
    if asked != warps:
        text += f"# Launched with num_warps={warps}: more would only copy, and hold registers that a group of rows needs.\n"
    if variant.graph.dependent:
        text += "# Launched with launch_pdl=True, it begins while the kernel in front ends.\n"
    if not variant.solution.exact:
        text += f"# {variant.solution.words().capitalize()}.\n"
    return text


def _helpers(edits: Edits, graph: Graph, solution: Solution, imports: Imports) -> str:
    """Return the definitions of the explicit functions that a kernel calls.

    Raises:
        LayoutError: one reads a name of another file which no import gives.
    """
    text = ""
    for called in edits.all():
        if called is edits:
            continue
        here, there = (one.fn.fn.__code__.co_filename for one in (edits, called))
        if here != there and not getattr(called.fn, "written", False):
            text += f"# From {Path(there).name}.\n"
        text += (
            f"@{imports.library()}.jit\n{_imported(called, edits, graph, solution, imports)}\n\n"
        )
    return text


def _imported(
    edits: Edits, kernel: Edits, graph: Graph, solution: Solution, imports: Imports
) -> str:
    """Return the definition of a function of a kernel with the names that its file has."""
    copies = {
        one.name for one in kernel.all()
    }  # some are read in branches that this one does not take
    return imports.with_imports(explicit_text(edits, graph, solution), edits.fn, copies)


def _proofs(
    text: str, file: Path, target: Target, kernels: list[str], ended: Sequence[BaseException]
) -> tuple[list[str], bool]:
    """Return what the prover says of the written file, and whether a kernel is wrong.

    Args:
        ended: the exceptions with which the file that the user wrote ends, too.
    """
    architecture = target.architecture
    record, report = Record(), ""
    with tempfile.TemporaryDirectory() as folder, importable(file):
        try:
            for number, one in enumerate(forced_texts(text)):
                copy = Path(folder) / str(number) / file.name
                copy.parent.mkdir()
                copy.write_text(one)
                try:
                    with redirect_stdout(sys.stderr):
                        twin = str(Target("sim", architecture))
                        runs = Runs(prove="*", within=300.0)
                        code = run_file(str(copy), twin, (), runs=runs, record=record)
                    if code not in (Exit.OK, Exit.UNAVAILABLE) and not ended:
                        return [f"the written file ends with exit code {code}"], True
                except GluonError:
                    raise
                except Exception as error:  # of the file's own code
                    if not ended:
                        return [f"the written file ends with {words_of(error)}"], True
        except GluonError as error:
            if getattr(error, "report", None) is not None:  # of the simulator
                report = words_of(error)
            if _without_lines(error) not in map(_without_lines, ended):
                return [f"{_refuted(record)}{type(error).__name__}: {error}"], True
    notes = []
    wrong = False
    failed = {one.kernel for one in record.raised if one.error == report}
    for verdict in dict.fromkeys(one.proved for one in record.launches if one.proved is not None):
        if verdict.name.partition(" on ")[0] in failed:  # as in its source
            notes.append(f"fails: {verdict.name}: its launch ends with the error above")
            wrong = True
            continue
        wrong |= verdict.verdict == "counterexample"
        note = f"{_WORDS.get(verdict.verdict, verdict.verdict)}: {verdict.name}"
        if verdict.verdict != "proved" and verdict.lines:
            note += f": {verdict.lines[0].strip()}"
        notes += [] if note in notes else [note]
    seen = {word for note in notes for word in re.findall(r"\w+", note)}  # whole names
    missing = [name for name in kernels if name not in seen]
    return [
        *notes,
        *(f"not decided: {name}: the file does not launch it" for name in missing),
    ], wrong


def _without_lines(error: BaseException) -> str:
    """Return the class and the first line of an exception; lines of the written file are not those of its source."""
    return re.sub(r"\bline \d+", "line", words_of(error))


def _refuted(record: Record) -> str:
    """Return the word for a kernel that the prover refuted, if it did."""
    verdicts = [one.proved.verdict for one in record.launches if one.proved is not None]
    return "refuted: " if "counterexample" in verdicts else ""


def _below_docstring(text: str, notes: list[str]) -> str:
    """Return a file's text with comments where its code begins."""
    body = ast.parse(text).body
    end = (body[0].end_lineno or 0) if body and is_docstring(body[0]) else 0
    lines = text.splitlines()
    return "\n".join([*lines[:end], *([""] if end else []), *notes, *lines[end:]]) + "\n"
