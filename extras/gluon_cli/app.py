"""The commands of `gluon`; each is implemented in the module of its name."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any, Optional

import typer
from typer.core import TyperGroup

from gluon_cli import complete, plugged
from gluon_cli.options import Constexprs, Json, Kernel, Options, Signature, TargetName, Warps
from gluon_cli.output import command
from gluon_core import __version__
from gluon_core.errors import did_you_mean

__all__ = ["app"]

# Names of other tools for it.
ELSEWHERE = {
    "autotune": "gluon tune FILE",
    "build": "gluon compile FILE:KERNEL, or gluon bundle OUT SPEC...",
    "check": "gluon run FILE --check",
    "debug": "gluon run FILE --pdb",
    "draw": "gluon layout EXPRESSION --svg FILE, or gluon run FILE --html PAGE",
    "profile": "gluon run FILE --profile",
    "simulate": "gluon run FILE --target sim:hopper",
    "test": "pytest: the fixtures come with Gluon Core",
    "trace": "gluon run FILE --trace TIMELINE",
}


class Commands(TyperGroup):
    """The commands, those of plugins included, which also know the names that other tools use."""

    def list_commands(self, ctx: Any) -> list[str]:
        return [*super().list_commands(ctx), *plugged.names()]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        return super().get_command(ctx, cmd_name) or plugged.find(cmd_name)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        try:
            return super().resolve_command(ctx, args)
        except Exception as error:
            if args and hasattr(error, "message"):
                use = ELSEWHERE.get(args[0])
                hint = f"Use {use}." if use else did_you_mean(args[0], self.list_commands(ctx))
                error.message = " ".join(filter(None, (f"No such command {args[0]!r}.", hint)))
            raise


app = typer.Typer(
    name="gluon",
    cls=Commands,
    help="Gluon Core: write a GPU kernel once, simulate it, compile it, run it.\n\n"
    "Exit codes: 0 passed, 1 a kernel or a result failed, 2 the command line is not legal, "
    "3 this machine or this target cannot do it.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

File = Annotated[str, typer.Argument(help="A file that launches kernels.", metavar="FILE")]


def _version(value: bool) -> None:
    if value:
        print(f"gluon-core {__version__}")
        raise typer.Exit()


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


@app.command()
@command
def info(
    name: Annotated[
        Optional[str],
        typer.Argument(
            help="A target or a capability to describe.",
            autocompletion=complete.capabilities_and_targets,
        ),
    ] = None,
    json: Json = False,
) -> Optional[int]:
    """Plugins, architectures, capabilities, devices, Triton, and each broken part with its reason."""
    from gluon_cli.info import show

    return show(name, json)


@app.command()
@command
def compile(
    kernel: Kernel,
    target: TargetName = None,
    signature: Signature = None,
    constexpr: Constexprs = None,
    num_warps: Warps = None,
    option: Options = None,
    emit: Annotated[
        str,
        typer.Option(
            "--emit",
            "-e",
            help="report, ttgir, llir, ptx, amdgcn, sass, cubin, ...",
            autocompletion=complete.emitted,
        ),
    ] = "report",
    output: Annotated[
        Optional[Path], typer.Option("--output", "-o", help="Write to this file.")
    ] = None,
    trace_isa: Annotated[
        Optional[str],
        typer.Option(
            "--trace-isa",
            metavar="FILE",
            help="Add to the report the counts of `gluon run --trace-isa FILE` for the kernel.",
        ),
    ] = None,
    json: Json = False,
) -> int:
    """Compile a kernel for a target; no device is needed.

    Without types, from `--signature` or the file's EXAMPLES, the file is run on the target's simulator,
    and its launches are compiled.
    """
    from gluon_cli.compile import show

    return show(
        kernel, target, signature, constexpr, num_warps, option, emit, output, json, trace_isa
    )


JsonOutcome = Annotated[
    bool,
    typer.Option("--json", help="Print the outcome as JSON; the file prints to stderr."),
]
Profile = Annotated[
    bool, typer.Option("--profile", help="Print the bytes and operations of each kernel line.")
]
ProfileJson = Annotated[
    Optional[str], typer.Option("--profile-json", metavar="FILE", help="... as JSON.")
]
ProfileHtml = Annotated[
    Optional[str],
    typer.Option("--profile-html", metavar="FILE", help="... as a page, next to the source."),
]
Html = Annotated[
    Optional[str],
    typer.Option(
        "--html",
        metavar="FILE",
        help="Write one page of all: profile, banks, layouts, timeline, mistakes as pictures, emitted "
        "code next to the source. With --targets, of all of them.",
    ),
]
Trace = Annotated[
    Optional[str],
    typer.Option("--trace", metavar="FILE", help="Write a timeline, for ui.perfetto.dev."),
]
TimelineFile = Annotated[
    Optional[str],
    typer.Option(
        "--timeline",
        metavar="FILE",
        help="Record when each warp enters and leaves each gl.scope, on the device or an emulator, or predict "
        "it on the simulator: a page (FILE.html) or JSON for ui.perfetto.dev (FILE.json). `auto` is timeline.html with "
        "--timeline-auto.",
    ),
]
TimelineAuto = Annotated[
    bool,
    typer.Option(
        "--timeline-auto",
        help="With --timeline: add scopes around waits, barriers and the issue of asynchronous work.",
    ),
]
TraceIsa = Annotated[
    Optional[str],
    typer.Option(
        "--trace-isa",
        metavar="FILE",
        help="Write executed machine instructions, counted by source line, as lines of JSON.",
    ),
]
Asm = Annotated[
    Optional[list[str]],
    typer.Option(
        "--asm",
        metavar="KERNEL=FILE",
        help="Execute the assembly in FILE where KERNEL is launched, on a target that executes "
        "machine code; repeatable.",
    ),
]
Pdb = Annotated[bool, typer.Option("--pdb", help="Open a prompt where a kernel fails.")]
Schedules = Annotated[
    Optional[int],
    typer.Option(
        "--schedules",
        min=1,
        metavar="N",
        help="Run N times, with asynchronous work as late as can be, at once, and at random "
        "moments; stop at the first that fails.",
    ),
]
Schedule = Annotated[
    Optional[str],
    typer.Option(
        "--schedule",
        metavar="NAME",
        help="latest, eager or random: run once, so. Or a file that --explore wrote.",
        autocompletion=complete.one_of("latest", "eager", "random"),
    ),
]
Explore = Annotated[
    bool,
    typer.Option(
        "--explore",
        help="Run each launch under all schedules that differ, with every check on; stop at the "
        "first that fails, and write it to KERNEL.schedule.json.",
    ),
]
Within = Annotated[
    Optional[float],
    typer.Option("--within", metavar="SECONDS", help="Explore a launch no longer than this; 60."),
]
Most = Annotated[
    Optional[int],
    typer.Option("--most", min=1, metavar="N", help="Explore no more schedules of a launch; 1000."),
]
Seed = Annotated[int, typer.Option("--seed", help="Seed of the (first) random schedule.")]
Timeout = Annotated[
    Optional[float],
    typer.Option("--timeout", metavar="SECONDS", help="End each launch after that time."),
]
Check = Annotated[
    bool,
    typer.Option(
        "--check",
        help="Look for mistakes: on the simulator, with every check on, under 10 schedules (or "
        "--schedules), then against the GPU that is plugged in.",
    ),
]
Targets = Annotated[
    Optional[str],
    typer.Option(
        "--targets",
        metavar="A,B,...",
        help="Run on each of these, then list the outcomes.",
        autocompletion=complete.several_targets,
    ),
]
CompileFor = Annotated[
    Optional[str],
    typer.Option(
        "--compile-for",
        metavar="A,B,...",
        autocompletion=complete.several_targets,
        help="Compile the launches of the file for each of these, with the types of the launches; "
        "it runs on their simulators.",
    ),
]
Repeat = Annotated[
    bool, typer.Option("--watch", help="Run again when FILE or a file next to it changes.")
]
Progress = Annotated[
    Optional[bool],
    typer.Option(
        "--progress/--no-progress",
        help="Show how far launches are that take more than two seconds; by default on a terminal.",
    ),
]
Record = Annotated[
    Optional[str],
    typer.Option(
        "--record",
        metavar="SPECS.toml",
        help="Write which forms of which kernels are launched, for `gluon bundle`.",
    ),
]


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
@command(runs="file")
def run(
    context: typer.Context,
    file: File,
    target: TargetName = None,
    json: JsonOutcome = False,
    profile: Profile = False,
    profile_json: ProfileJson = None,
    profile_html: ProfileHtml = None,
    html: Html = None,
    trace: Trace = None,
    timeline: TimelineFile = None,
    timeline_auto: TimelineAuto = False,
    trace_isa: TraceIsa = None,
    asm: Asm = None,
    pdb: Pdb = False,
    schedules: Schedules = None,
    schedule: Schedule = None,
    explore: Explore = False,
    within: Within = None,
    most: Most = None,
    seed: Seed = 0,
    timeout: Timeout = None,
    check: Check = False,
    targets: Targets = None,
    compile_for: CompileFor = None,
    watch: Repeat = False,
    progress: Progress = None,
    record: Record = None,
) -> Optional[int]:
    """Run a Python file with its kernels on a target; further arguments go to the file.

    Profiles, timelines, schedules, the timeout and the prompt need a simulated target.
    """
    from gluon_cli.output import UsageError
    from gluon_cli.run import Runs, run_file
    from gluon_core.registry.load import registry
    from gluon_core.simulation.watch import Watch

    _nearly(context)
    if watch:
        from gluon_cli import many

        return many.watch(context, file)
    page = None if html is None else registry().service("report.page")
    if page is not None:
        page.checked(html)
    wish = Watch(profile, profile_json, profile_html, trace, pdb, trace_isa, asm=tuple(asm or ()))
    shown = sys.stderr.isatty() if progress is None else progress
    runs = Runs(schedules, schedule, seed, timeout, check, shown, explore, within, most)
    with ExitStack() as around:
        if record is not None:
            around.enter_context(registry().service("bundle.record")(record))
        if timeline == "auto":
            timeline, timeline_auto = "timeline.html", True
        if timeline is not None:
            _timed(around, timeline, timeline_auto, target, targets or compile_for)
        elif timeline_auto:
            raise UsageError("belongs to --timeline", argument="--timeline-auto")
        if targets is not None or compile_for is not None:
            return _for_many(context, targets, compile_for, target, runs, bool(wish or html), json)
        if page is not None:
            code: int = page.run_to_page(file, target, context.args, json, wish, runs, html)
            return code
        return run_file(file, target, context.args, json, wish, runs)


def _timed(
    around: ExitStack, file: str, auto: bool, target: Optional[str], many: Optional[str]
) -> None:
    """Record the timelines of what runs in `around`."""
    from gluon_cli.output import UsageError
    from gluon_core.registry.load import registry

    if many:
        raise UsageError("takes one target", argument="--timeline", remedy="Choose it by --target.")
    chosen = registry().target(target)
    backend = registry().backend(chosen.backend)
    pages = registry().service("timeline.page")
    if not backend.simulates or backend.simulation.machine_code:
        around.enter_context(pages.recorded(file, auto))
        return
    if chosen.architecture.timing is None:
        raise UsageError(
            "no model of time is known for this architecture",
            argument="--timeline",
            got=str(chosen),
            remedy=f"Use --trace, or --target emu:{chosen.architecture.name}, which runs machine code.",
        )
    around.enter_context(pages.predicted(file, chosen))


def _nearly(context: typer.Context) -> None:
    """Say that an option goes to the file, where it looks like one of ours."""
    from difflib import get_close_matches

    known = [name for parameter in context.command.params for name in parameter.opts]
    for argument in context.args:
        word = argument.partition("=")[0]
        close = get_close_matches(word, known, n=1, cutoff=0.8) if word.startswith("--") else None
        if close:
            print(f"gluon: {word} goes to the file. Did you mean {close[0]}?", file=sys.stderr)


def _for_many(
    context: typer.Context,
    targets: Optional[str],
    compile_for: Optional[str],
    target: Optional[str],
    runs: Any,
    watched: bool,
    json: bool,
) -> int:
    from gluon_cli import many
    from gluon_cli.compile_for import compile_for as compile_all
    from gluon_cli.output import UsageError
    from gluon_core.registry.load import registry

    if targets is not None and (target is not None or compile_for is not None):
        raise UsageError(
            "choose one of --target, --targets and --compile-for", argument="--targets"
        )
    if target is not None and not registry().target(target).simulated:
        raise UsageError(
            "the file runs on a simulator, for the types of its launches",
            argument="--target",
            got=target,
            remedy=f"Leave it out, or try --target sim:{registry().target(target).architecture.name}.",
        )
    if compile_for is None:
        chosen = many.listed(targets or "", "--targets")
        if context.params["html"] is not None:
            code: int = registry().service("report.page").on_each_to_page(context, chosen, json)
            return code
        return many.on_each(context, chosen, json)
    if watched or runs.check or runs.count or runs.explore:
        raise UsageError("only compiles: it neither checks nor watches", argument="--compile-for")
    return compile_all(context, many.listed(compile_for, "--compile-for"), runs, json)


@app.command()
@command
def explain(
    kernel: Kernel,
    target: TargetName = None,
    signature: Signature = None,
    constexpr: Constexprs = None,
    num_warps: Warps = None,
    option: Options = None,
    json: Json = False,
) -> None:
    """Explain which lowering each portable op of a kernel takes, why not the others, and its outcome:
    the machine code of each line that reaches global memory or multiplies matrices."""
    from gluon_cli.explain import show

    show(kernel, target, signature, constexpr, num_warps, option, json)


@app.command()
@command
def types(
    to: Annotated[
        Optional[Path],
        typer.Option("--to", metavar="DIR", help="Write there; where packages stand by default."),
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Only say whether it is up to date; exit 1 if not.")
    ] = False,
) -> Optional[int]:
    """Write stubs of the names that installed plugins add, for editors and checkers."""
    from gluon_cli.types import show

    return show(to, check)
