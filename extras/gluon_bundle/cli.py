"""`gluon bundle`: kernels compiled for many targets in one file; the contents of such a file; differences."""

from __future__ import annotations

from dataclasses import asdict, replace
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Optional, Sequence

import typer
from typer.core import TyperGroup

from gluon_cli import complete
from gluon_cli.output import Exit, UsageError, command, console, print_json, table

if TYPE_CHECKING:
    from gluon_bundle import Bundle

__all__ = ["app"]


# Words for commands of the group, which would else be names of bundles to write.
_OTHER_WORDS = {
    **dict.fromkeys(("show", "list", "ls", "info", "cat", "print", "contents"), "inspect"),
    **dict.fromkeys(("check", "validate"), "verify"),
    "compare": "diff",
}


class _Group(TyperGroup):
    """`gluon bundle OUT KERNEL...` builds; a first word that is a command of the group runs that."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] not in self.commands and args[0] not in ("--help", "-h"):
            self._refuse_misspelt(ctx, args[0])
            args = ["build", *args]
        parsed: list[str] = super().parse_args(ctx, args)
        return parsed

    def _refuse_misspelt(self, ctx: Any, word: str) -> None:
        near = _OTHER_WORDS.get(word) or next(iter(get_close_matches(word, self.commands, 1)), None)
        if near is not None and word.replace("-", "").isalpha():
            ctx.fail(
                f"No such command '{word}'. Did you mean '{near}'? A bundle of this name is ./{word}."
            )


app = typer.Typer(
    cls=_Group,
    no_args_is_help=True,
    help="Compile kernels for many targets into one file, which launches without a compiler.\n\n"
    "`gluon bundle OUT SPEC...` builds; see `gluon bundle build --help`.",
)

File = Annotated[str, typer.Argument(metavar="BUNDLE")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON for machines.")]
Digest = Annotated[
    Optional[str], typer.Option("--digest", help="The sha256 that the file must have.")
]


@app.command()
@command
def build(
    out: Annotated[Path, typer.Argument(metavar="OUT", help="The file to write.")],
    specs: Annotated[
        Optional[list[str]],
        typer.Argument(
            metavar="SPEC...",
            help="FILE:KERNEL, a TOML file of specs (`gluon run FILE --record SPECS.toml` writes "
            "one), or a bundle to take in.",
        ),
    ] = None,
    target: Annotated[
        Optional[list[str]],
        typer.Option(
            "--target",
            "-t",
            metavar="TARGET[,TARGET...]",
            help="Compile for them; repeatable.",
            autocompletion=complete.targets,
        ),
    ] = None,
    signature: Annotated[
        Optional[str],
        typer.Option(
            "--signature",
            "-s",
            help="Types, as in `gluon compile`; by default those of the file's launches on the simulator.",
        ),
    ] = None,
    constexpr: Annotated[
        Optional[list[str]],
        typer.Option("--constexpr", "-c", metavar="NAME=VALUE", help="Repeatable."),
    ] = None,
    num_warps: Annotated[
        Optional[int], typer.Option("--num-warps", "-w", help="Warps of a block.")
    ] = None,
    option: Annotated[
        Optional[list[str]],
        typer.Option("--option", metavar="NAME=VALUE", help="Other compile options."),
    ] = None,
    grid: Annotated[
        Optional[str],
        typer.Option("--grid", metavar="X[,Y[,Z]]", help="Where it is always the same."),
    ] = None,
    source_map: Annotated[
        bool, typer.Option("--source-map", help="Keep assembly and the source lines it came from.")
    ] = False,
    cache: Annotated[
        bool, typer.Option("--cache", help="Take in the compilation cache of this machine.")
    ] = False,
    certify: Annotated[
        Optional[Path],
        typer.Option(
            "--certify",
            metavar="PROGRAM",
            help="Certify this program for the targets (`gluon certify`), and keep the certificate; no file is "
            "written where it fails.",
        ),
    ] = None,
    json: Json = False,
) -> Optional[int]:
    """Build a bundle; no device is needed."""
    from gluon_bundle import Bundle, export_cache
    from gluon_bundle import specs as spec_files
    from gluon_cli.compile import options_of
    from gluon_cli.parse import parse_assignments

    if not specs and not cache:
        raise UsageError(
            "names no kernel", argument="SPEC", remedy="Give FILE:KERNEL or SPECS.toml."
        )
    bundle = Bundle()
    targets = spec_files.targets_of(target)
    others = []
    for spec in specs or ():
        if spec_files.looks_like(spec):
            for entry in spec_files.read(spec):
                if targets:
                    entry = replace(entry, targets=targets)
                spec_files.add(bundle, entry, source_map)
        elif _is_bundle(spec):
            others.append(spec)
        else:
            single = spec_files.Spec(
                spec,
                targets,
                signature,
                parse_assignments(constexpr or (), "--constexpr"),
                options_of(num_warps, option),
                grid=_grid(grid),
            )
            spec_files.add(bundle, single, source_map)
    for other in others:
        bundle.merge(Bundle.open(other))
    if cache:
        export_cache(bundle)
    if certify is not None:
        code = _certify(bundle, str(certify), targets)
        if code:
            return code
    digest = bundle.write(out)
    _report(bundle, str(out), digest, json)
    return None


def _certify(bundle: Bundle, program: str, targets: Sequence[str]) -> int:
    """Keep the certificate of a program in a bundle; return the exit code of its verdict."""
    from gluon_core.registry.load import registry

    if not targets:
        raise UsageError("names no target to certify for", argument="--target")
    certificate = registry().service("certify")(program, targets)
    if certificate.exit:
        for line in registry().service("certify.text")(certificate.as_json()):
            print(line)
    else:
        bundle.certify(certificate.as_json())
    return int(certificate.exit)


def _is_bundle(spec: str) -> bool:
    path = Path(spec)
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(4) == b"PK\x03\x04"


def _grid(text: Optional[str]) -> Optional[tuple[int, ...]]:
    if text is None:
        return None
    try:
        return tuple(int(size) for size in text.split(","))
    except ValueError:
        raise UsageError("must be sizes", argument="--grid", got=repr(text)) from None


def _report(bundle: Bundle, path: str, digest: Optional[str], json: bool) -> None:
    forms = sum(len(kernel["forms"]) for kernel in bundle.kernels.values())
    size = Path(path).stat().st_size
    summary = {
        "bundle": path,
        "kernels": len(bundle),
        "forms": forms,
        "cache_entries": len(bundle.cache),
        "bytes": size,
        "sha256": digest,
    }
    if json:
        print_json(summary)
        return
    cached = f", {_count(len(bundle.cache), 'cache entry')}" if bundle.cache else ""
    print(f"{path}: {_count(len(bundle), 'kernel')}, {_count(forms, 'form')}{cached}, {size} bytes")
    print(f"sha256 {digest}")


def _count(number: int, noun: str) -> str:
    many = f"{noun[:-1]}ies" if noun.endswith("y") else f"{noun}s"
    return f"{number} {noun if number == 1 else many}"


@app.command()
@command
def inspect(file: File, digest: Digest = None, json: Json = False) -> None:
    """Print the contents of a bundle: kernels, the target of each form, how it is launched."""
    from gluon_bundle import Bundle
    from gluon_bundle.bundle import spoken

    bundle = Bundle.open(file, digest)
    contents = bundle.inspect()
    if json:
        print_json(contents)
        return
    rows: list[Optional[list[Any]]] = []
    for name, kernel in contents["kernels"].items():
        for form in kernel["forms"]:
            launch = form["launch"]
            grid = "x".join(map(str, form["grid"])) if form["grid"] else "of the launch"
            code = contents["members"][form["code"]]
            threads = launch["num_warps"] * launch["warp_size"]
            rows.append([name, spoken(form), grid, threads, launch["shared"], code])
        rows.append(None)
    columns = ("kernel", "form", "grid", ">threads", ">shared", ">bytes")
    console().print(table(f"{file}, sha256 {contents['digest']}", columns, rows))
    tools = ", ".join(f"{name} {version}" for name, version in contents["tools"].items())
    print(f"built with {tools}")
    if contents.get("certificate"):
        certificate = contents["certificate"]
        names = ", ".join(part["target"] for part in certificate["targets"])
        print(f"{certificate['verdict']}: {certificate['file']} for {names}")
    if contents["cache"]:
        print(_count(len(contents["cache"]), "cache entry"))


@app.command()
@command
def verify(file: File, digest: Digest = None, json: Json = False) -> None:
    """Check every hash in a bundle; exit 1 where one is wrong."""
    from gluon_bundle import Bundle

    verified = Bundle.open(file, digest).verify()
    if json:
        print_json(asdict(verified))
        return
    parts = f"{_count(verified.kernels, 'kernel')}, {_count(verified.forms, 'form')}"
    print(
        f"{file}: the file and its {_count(verified.members, 'part')} have the stated hashes ({parts})"
    )
    print(f"sha256 {verified.digest}")


@app.command()
@command
def diff(
    file: File, other: Annotated[str, typer.Argument(metavar="OTHER")], json: Json = False
) -> Optional[int]:
    """Print the differences between two bundles; exit 1 where there are any."""
    from gluon_bundle import Bundle

    lines = Bundle.open(file).diff(Bundle.open(other))
    if json:
        print_json({"differences": lines})
    else:
        print("\n".join(lines) if lines else "the bundles launch the same code the same way")
    return Exit.FAILED if lines else Exit.OK


@app.command("import-cache")
@command
def import_cache(file: File, digest: Digest = None, json: Json = False) -> None:
    """Put the compilation cache that a bundle holds into the cache of this machine."""
    from gluon_bundle import Bundle
    from gluon_bundle import import_cache as write

    count = write(Bundle.open(file, digest))
    if json:
        print_json({"entries": count})
    else:
        print(f"{_count(count, 'cache entry')} written")
