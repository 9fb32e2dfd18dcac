"""Kernels as a file launches them: types and constants for `gluon compile` where none are given."""

from __future__ import annotations

import sys
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Mapping, Optional, Sequence

from gluon_cli.check import simulated_twin
from gluon_cli.output import UsageError, file_and_kernel, place_of, unparsed
from gluon_cli.parse import find_kernel, signature_of, source_of
from gluon_cli.run import run_file
from gluon_core.errors import CapabilityError, GluonError, LayoutError
from gluon_core.plugin.targets import Target
from gluon_core.registry.load import registry
from gluon_core.simulation.evidence import Record

__all__ = ["Form", "forms", "gluon_kernels", "one_form", "words_of"]

_OPTIONS = ("num_warps", "num_ctas", "num_stages")  # of a launch that change the code


@dataclass(frozen=True)
class Form:
    """A kernel with the types of its arguments.

    Args:
        name: of the kernel.
        source: a `GluonASTSource`.
        options: to compile with.
    """

    name: str
    source: Any
    options: dict[str, Any]

    @property
    def types(self) -> str:
        """Return the types of the parameters that are not constants, as `--signature` takes them."""
        return signature_of(self.source)


def forms(
    spec: str,
    target: Target,
    signature: Optional[str],
    constexprs: Mapping[str, Any],
    options: Mapping[str, Any],
    ended: Optional[list[BaseException]] = None,
) -> list[Form]:
    """Return the forms of the kernel that `FILE:KERNEL` names; for `FILE`, of all kernels that it launches.

    Without a signature and without `EXAMPLES` in the file it is run on the simulator of `target`, and
    the forms are those that it launches.

    Args:
        ended: receives the exception that ends the run after the launches.

    Raises:
        UsageError: no such file or kernel, or types that do not match the parameters.
    """
    if signature is None:
        file, name = file_and_kernel(spec)
        if Path(file).is_file() and not _has_examples(file):
            launched = _launched(file, name, target, constexprs, options, ended)
            if launched:
                return launched
    named = find_kernel(spec)
    source, merged = source_of(named, target, signature, constexprs, options)
    return [Form(named.name, source, merged)]


def one_form(spec: str, launched: Sequence[Form]) -> Form:
    """Return the one of `forms(spec, ...)` to work on: the first, where one kernel is launched in several,
    and standard error says so.

    Raises:
        UsageError: several kernels are launched.
    """
    names = list(dict.fromkeys(form.name for form in launched))
    if len(names) > 1:
        file = file_and_kernel(spec)[0]
        raise UsageError(
            f"{file} launches several kernels",
            argument="KERNEL",
            remedy=f"Name one: {', '.join(f'{file}:{name}' for name in names)}.",
        )
    if len(launched) > 1:
        print(
            f"gluon: {names[0]} is launched with {len(launched)} signatures or constants; this is the "
            f"first: {launched[0].types}",
            file=sys.stderr,
        )
    return launched[0]


def words_of(error: BaseException) -> str:
    """Return the class and the first line of an exception."""
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"


def _has_examples(file: str) -> bool:
    try:
        return "EXAMPLES" in Path(file).read_text(errors="replace")
    except OSError:
        return False  # opening it later says why


def _launched(
    file: str,
    name: Optional[str],
    target: Target,
    constexprs: Mapping[str, Any],
    options: Mapping[str, Any],
    ended: Optional[list[BaseException]],
) -> list[Form]:
    """Run the file on the simulator of `target`; return the forms that it launches, each once."""
    from gluon_core.compiler import GluonASTSource

    architecture = target.architecture
    twin = simulated_twin(str(Target(architecture.backend, architecture)))
    if not registry().backend(twin.backend).simulates:
        return []  # no simulator is installed
    record = Record()
    try:
        with redirect_stdout(sys.stderr):
            code = run_file(file, str(twin), (), record=record)
        if code and ended is not None:
            ended.append(SystemExit(code))
    except (Exception, SystemExit) as error:  # earlier launches count all the same
        if isinstance(error, UsageError):  # the file is none that Python runs
            raise
        if isinstance(error, SyntaxError) and error.filename == file:
            raise unparsed(error, file) from None
        place = place_of(error, file)
        if isinstance(error, GluonError) and not record.kernels:
            error.span = error.span or place
            if error.span is not None or isinstance(error, (CapabilityError, LayoutError)):
                raise
        if ended is not None:
            ended.append(error)
        line = f", line {place.line}," if place is not None else ""
        shown = isinstance(error, GluonError) and error.span is not None
        words = f"{type(error).__name__}: {error}" if shown else words_of(error)
        print(f"gluon: {file}{line} ended with {words}", file=sys.stderr)
    unique: dict[Any, Form] = {}
    for kernel in gluon_kernels(record):
        source = kernel.src
        if name is not None and source.name != name:
            continue
        if constexprs:
            values = {source.fn.arg_names[p[0]]: v for p, v in source.constants.items()}
            types = {k: v for k, v in source.signature.items() if k not in constexprs}
            values = {k: v for k, v in values.items() if k not in constexprs}
            source = GluonASTSource(source.fn, types, {**values, **constexprs}, source.attrs)
        held = {key: getattr(kernel.metadata, key, None) for key in _OPTIONS}
        if getattr(source.fn, "layouts", None):  # other facts of a simulated kernel want a compiler
            held["num_warps"] = getattr(kernel.metadata, "asked_warps", held["num_warps"])
        passed = {key: value for key, value in held.items() if value is not None}
        form = Form(source.name, source, {**passed, **options})
        unique.setdefault((source.hash(), tuple(sorted(form.options.items(), key=str))), form)
    return list(unique.values())


def gluon_kernels(record: Record) -> list[Any]:
    """Return the compiled Gluon kernels of a run; standard error names its plain Triton kernels, which
    Triton itself compiles."""
    from gluon_core.compiler import GluonASTSource

    kernels = list(record.kernels.values())
    plain = {kernel.src.name for kernel in kernels if not isinstance(kernel.src, GluonASTSource)}
    if plain:
        names = ", ".join(sorted(plain))
        print(
            f"gluon: skipped {names}: plain Triton kernels, which Triton compiles", file=sys.stderr
        )
    return [kernel for kernel in kernels if isinstance(kernel.src, GluonASTSource)]
