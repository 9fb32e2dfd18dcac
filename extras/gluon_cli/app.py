"""The commands of `gluon`; what each does stands in the module of its name."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Optional

import typer
from typer.core import TyperGroup

from gluon_bundle import command as bundle
from gluon_cli import complete, plugged
from gluon_cli.output import command
from gluon_core import __version__

__all__ = ["app"]

# What others call it.
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
    """The commands, those of plugins included, which also know what others call them."""

    def list_commands(self, ctx: Any) -> list[str]:
        return [*super().list_commands(ctx), *plugged.names()]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        return super().get_command(ctx, cmd_name) or plugged.find(cmd_name)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        try:
            return super().resolve_command(ctx, args)
        except Exception as error:
            if args and args[0] in ELSEWHERE and hasattr(error, "message"):
                error.message = f"No such command {args[0]!r}. Use {ELSEWHERE[args[0]]}."
            raise


app = typer.Typer(
    name="gluon",
    cls=Commands,
    help="Gluon Core: write a GPU kernel once, simulate it, compile it, run it.\n\n"
    "Exit codes: 0 all is well, 1 a kernel or a result is wrong, 2 the command line is wrong, "
    "3 this machine or this target cannot do it.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

app.add_typer(bundle.app, name="bundle")

Kernel = Annotated[
    str,
    typer.Argument(
        help="FILE:KERNEL; FILE alone where it has one kernel.",
        metavar="KERNEL",
        autocompletion=complete.kernels,
    ),
]
TargetName = Annotated[
    Optional[str],
    typer.Option(
        "--target",
        "-t",
        help="Such as hopper, nvidia:sm_90, gfx942, sim:hopper.",
        autocompletion=complete.targets,
    ),
]
Signature = Annotated[
    Optional[str],
    typer.Option(
        "--signature",
        "-s",
        help="Types of the parameters that are not constexprs, such as '*fp32,*fp32,i32:16', or "
        "'name=type,...'. Files with EXAMPLES bring their own.",
    ),
]
Constexprs = Annotated[
    Optional[list[str]],
    typer.Option(
        "--constexpr",
        "-c",
        metavar="NAME=VALUE",
        help="A literal, a dtype or a layout; repeatable.",
    ),
]
Options = Annotated[
    Optional[list[str]],
    typer.Option("--option", metavar="NAME=VALUE", help="Other compile options; repeatable."),
]
Warps = Annotated[Optional[int], typer.Option("--num-warps", "-w", help="Warps of a block.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON for machines.")]
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
    """Plugins, architectures, capabilities, devices, Triton, and what is broken and why."""
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
            help="Add to the report what `gluon run --trace-isa FILE` counted of the kernel.",
        ),
    ] = None,
    json: Json = False,
) -> int:
    """Compile a kernel for a target; no device is needed.

    Without types, from `--signature` or the file's EXAMPLES, the file is run on the target's simulator,
    and what it launches is compiled.
    """
    from gluon_cli.compile import show

    return show(
        kernel, target, signature, constexpr, num_warps, option, emit, output, json, trace_isa
    )


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
@command
def run(
    context: typer.Context,
    file: File,
    target: TargetName = None,
    json: Annotated[
        bool,
        typer.Option("--json", help="Print the outcome as JSON; the file prints to stderr."),
    ] = False,
    profile: Annotated[
        bool, typer.Option("--profile", help="Print what each kernel line moves and computes.")
    ] = False,
    profile_json: Annotated[
        Optional[str], typer.Option("--profile-json", metavar="FILE", help="... as JSON.")
    ] = None,
    profile_html: Annotated[
        Optional[str],
        typer.Option("--profile-html", metavar="FILE", help="... as a page, beside the source."),
    ] = None,
    html: Annotated[
        Optional[str],
        typer.Option(
            "--html",
            metavar="FILE",
            help="Write one page of all: profile, banks, layouts, timeline, mistakes as pictures, emitted "
            "code beside the source. With --targets, of all of them.",
        ),
    ] = None,
    trace: Annotated[
        Optional[str],
        typer.Option("--trace", metavar="FILE", help="Write a timeline, for ui.perfetto.dev."),
    ] = None,
    trace_isa: Annotated[
        Optional[str],
        typer.Option(
            "--trace-isa",
            metavar="FILE",
            help="Write executed machine instructions, counted by source line, as lines of JSON.",
        ),
    ] = None,
    asm: Annotated[
        Optional[list[str]],
        typer.Option(
            "--asm",
            metavar="KERNEL=FILE",
            help="Execute the assembly in FILE where KERNEL is launched, on a target that executes "
            "machine code; repeatable.",
        ),
    ] = None,
    pdb: Annotated[bool, typer.Option("--pdb", help="Open a prompt where a kernel fails.")] = False,
    schedules: Annotated[
        Optional[int],
        typer.Option(
            "--schedules",
            min=1,
            metavar="N",
            help="Run N times, with asynchronous work as late as can be, at once, and at random "
            "moments; stop at the first that fails.",
        ),
    ] = None,
    schedule: Annotated[
        Optional[str],
        typer.Option(
            "--schedule",
            metavar="NAME",
            help="latest, eager or random: run once, so. Or a file that --explore wrote.",
            autocompletion=complete.one_of("latest", "eager", "random"),
        ),
    ] = None,
    explore: Annotated[
        bool,
        typer.Option(
            "--explore",
            help="Run each launch under all schedules that differ, with every check on; stop at the "
            "first that fails, and write it to KERNEL.schedule.json.",
        ),
    ] = False,
    within: Annotated[
        Optional[float],
        typer.Option(
            "--within", metavar="SECONDS", help="Explore a launch no longer than this; 60."
        ),
    ] = None,
    most: Annotated[
        Optional[int],
        typer.Option(
            "--most", min=1, metavar="N", help="Explore no more schedules of a launch; 1000."
        ),
    ] = None,
    seed: Annotated[int, typer.Option("--seed", help="Of the (first) random schedule.")] = 0,
    timeout: Annotated[
        Optional[float],
        typer.Option("--timeout", metavar="SECONDS", help="End each launch after that time."),
    ] = None,
    check: Annotated[
        bool,
        typer.Option(
            "--check",
            help="Look for mistakes: on the simulator, with every check on, under 10 schedules (or "
            "--schedules), then against the GPU that is plugged in.",
        ),
    ] = False,
    targets: Annotated[
        Optional[str],
        typer.Option(
            "--targets",
            metavar="A,B,...",
            help="Run on each of these, then list the outcomes.",
            autocompletion=complete.several_targets,
        ),
    ] = None,
    compile_for: Annotated[
        Optional[str],
        typer.Option(
            "--compile-for",
            metavar="A,B,...",
            autocompletion=complete.several_targets,
            help="Compile what the file launches for each of these, with the types of the launches; "
            "it runs on their simulators.",
        ),
    ] = None,
    watch: Annotated[
        bool, typer.Option("--watch", help="Run again when FILE or a file beside it changes.")
    ] = False,
    progress: Annotated[
        Optional[bool],
        typer.Option(
            "--progress/--no-progress",
            help="Show how far launches are that take more than two seconds; by default on a "
            "terminal.",
        ),
    ] = None,
    record: Annotated[
        Optional[str],
        typer.Option(
            "--record",
            metavar="SPECS.toml",
            help="Write which forms of which kernels are launched, for `gluon bundle`.",
        ),
    ] = None,
) -> Optional[int]:
    """Run a Python file with its kernels on a target; further arguments go to the file.

    Profiles, timelines, schedules, the timeout and the prompt need a simulated target.
    """
    from gluon_cli.run import Runs, run_file
    from gluon_core.plugin.simulation import Watch
    from gluon_report.specs import recording_to

    _nearly(context)
    if watch:
        from gluon_cli import many

        return many.watch(context, file)
    if html is not None:
        from gluon_report.report.write import checked

        checked(html)
    wish = Watch(profile, profile_json, profile_html, trace, pdb, trace_isa, asm=tuple(asm or ()))
    shown = sys.stderr.isatty() if progress is None else progress
    runs = Runs(schedules, schedule, seed, timeout, check, shown, explore, within, most)
    with recording_to(record):
        if targets is not None or compile_for is not None:
            return _for_many(context, targets, compile_for, target, runs, bool(wish or html), json)
        if html is not None:
            from gluon_report.report.write import run_to_page

            return run_to_page(file, target, context.args, json, wish, runs, html)
        return run_file(file, target, context.args, json, wish, runs)


def _nearly(context: typer.Context) -> None:
    """Say that an option goes to the file, where it looks like one of ours."""
    from difflib import get_close_matches

    known = [name for parameter in context.command.params for name in parameter.opts]
    for given in context.args:
        word = given.partition("=")[0]
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
            from gluon_report.report.write import on_each_to_page

            return on_each_to_page(context, chosen, json)
        return many.on_each(context, chosen, json)
    if watched or runs.check or runs.count or runs.explore:
        raise UsageError("compiles only, and neither checks nor watches", argument="--compile-for")
    return compile_all(context, many.listed(compile_for, "--compile-for"), runs, json)


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
@command
def prove(
    context: typer.Context,
    kernel: Annotated[
        str,
        typer.Argument(
            metavar="FILE:KERNEL", help="A file that launches it; FILE alone for all it launches."
        ),
    ],
    target: TargetName = None,
    within: Annotated[
        float, typer.Option("--within", metavar="SECONDS", help="Give up a kernel after that time.")
    ] = 300.0,
    json: Json = False,
) -> int:
    """Prove that a kernel's synchronization is right for every trip count, or find what is wrong.

    Runs the file on a simulator for the kernel's types and constants. Exit code 0: proved. 1: wrong,
    and the simulator's report of it follows. 3: it cannot be said, and why. Needs z3.
    """
    from gluon_prove.command import show

    return show(kernel, target, within, json, context.args)


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
def demo(
    target: Annotated[
        Optional[list[str]],
        typer.Option(
            "--target",
            "-t",
            help="Compile for these instead; repeatable.",
            autocompletion=complete.targets,
        ),
    ] = None,
    only: Annotated[
        Optional[list[str]],
        typer.Option("--only", help="Examples whose name contains this; repeatable."),
    ] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="All examples, not the ten or so that show most.")
    ] = False,
    jobs: Annotated[Optional[int], typer.Option("--jobs", "-j", min=1, help="Processes.")] = None,
    json: Json = False,
) -> Optional[int]:
    """Run examples on the simulator, compile them for five GPUs, and run them on yours."""
    from gluon_report.demo import show

    return show(target, only, everything, jobs, json)


@app.command()
@command
def doctor(json: Json = False) -> Optional[int]:
    """Find what is wrong with this installation, and say the command that mends it; exit 3 if so."""
    from gluon_report.doctor import show

    return show(json)


@app.command()
@command
def new(
    name: Annotated[str, typer.Argument(help="Of the kernel, such as row_sum.", metavar="NAME")],
    to: Annotated[Path, typer.Option("--to", metavar="DIR", help="Write there.")] = Path(),
) -> Optional[int]:
    """Write a kernel with its test and its benchmark, which pass as they are written."""
    from gluon_report.new import show

    return show(name, to)


@app.command()
@command
def tune(
    file: Annotated[
        Optional[str],
        typer.Argument(
            help="FILE or FILE:NAME of a tune.Task, or of an example with --space. Without it, --export "
            "and --merge work on the store alone.",
            metavar="FILE",
        ),
    ] = None,
    target: TargetName = None,
    objective: Annotated[
        str,
        typer.Option(
            "--objective",
            help="time (on a device), roofline (what the simulator counts), instructions, registers.",
            autocompletion=complete.one_of("time", "roofline", "instructions", "registers"),
        ),
    ] = "time",
    space: Annotated[
        Optional[list[str]],
        typer.Option("--space", metavar="NAME=A,B,...", help="What to search; repeatable."),
    ] = None,
    shape: Annotated[
        Optional[list[str]],
        typer.Option(
            "--shape", metavar="NAME=VALUE;...", help="What to tune for, instead; repeatable."
        ),
    ] = None,
    search: Annotated[
        str,
        typer.Option(
            "--search",
            help="auto, exhaustive, optuna or random.",
            autocompletion=complete.one_of("auto", "exhaustive", "optuna", "random"),
        ),
    ] = "auto",
    trials: Annotated[
        Optional[int], typer.Option("--trials", min=1, help="Configurations to try.")
    ] = None,
    minutes: Annotated[
        Optional[float], typer.Option("--minutes", help="Stop after that time, for each shape.")
    ] = None,
    seed: Annotated[int, typer.Option("--seed", help="Of what the search draws.")] = 0,
    workers: Annotated[
        Optional[int], typer.Option("--workers", "-j", min=1, help="Compilations at once.")
    ] = None,
    dask: Annotated[
        Optional[str], typer.Option("--dask", metavar="ADDRESS", help="Work on this Dask cluster.")
    ] = None,
    ray: Annotated[
        Optional[str],
        typer.Option("--ray", metavar="ADDRESS", help="Work on this Ray cluster; auto, local."),
    ] = None,
    resource: Annotated[
        Optional[list[str]],
        typer.Option(
            "--resource", metavar="NAME=COUNT", help="What a worker that measures must have."
        ),
    ] = None,
    run_limit: Annotated[
        float, typer.Option("--run-limit", metavar="SECONDS", help="Kill a measurement after that.")
    ] = 10.0,
    compile_limit: Annotated[
        float, typer.Option("--compile-limit", metavar="SECONDS", help="... a compilation.")
    ] = 120.0,
    again: Annotated[
        bool, typer.Option("--again", help="Try what the store knows once more.")
    ] = False,
    store: Annotated[
        Optional[Path],
        typer.Option(
            "--store", help="Where results are kept; GLUON_TUNE_STORE, ~/.gluon/tuned.db."
        ),
    ] = None,
    check: Annotated[
        bool,
        typer.Option("--check", help="Measure the stored best again; exit 1 where it is slower."),
    ] = False,
    tolerance: Annotated[
        float, typer.Option("--tolerance", help="How much slower it may be, relative.")
    ] = 0.05,
    export: Annotated[
        Optional[Path],
        typer.Option("--export", help="Write the store: FILE.json, or FILE.py, a table of source."),
    ] = None,
    merge: Annotated[
        Optional[list[Path]],
        typer.Option("--merge", metavar="STORE", help="Take in another store; repeatable."),
    ] = None,
    bundle: Annotated[
        Optional[Path], typer.Option("--bundle", help="Write the best ones into a bundle.")
    ] = None,
    html: Annotated[
        Optional[Path], typer.Option("--html", help="Write a report that needs no network.")
    ] = None,
    json: Json = False,
) -> Optional[int]:
    """Search for the configuration of a kernel that does best; `config="tuned"` launches it."""
    from gluon_tune import Settings
    from gluon_tune.command import Wish, show

    seconds = None if minutes is None else 60 * minutes
    settings = Settings(target, objective, search, trials, seconds, seed)
    settings = replace(settings, run_limit=run_limit, compile_limit=compile_limit, again=again)
    lists = (space or (), shape or (), dask, ray, resource or (), workers)
    files = (export, merge or (), bundle, html)
    return show(Wish(file, *lists, store, check, tolerance, *files, json), settings)


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
    """Tell editors and checkers what the installed plugins add to the language."""
    from gluon_cli.types import show

    return show(to, check)


@app.command()
@command
def layout(
    expression: Annotated[
        Optional[str],
        typer.Argument(
            metavar="LAYOUT", help="Such as 'BlockedLayout([1, 4], [8, 4], [4, 1], [1, 0])'."
        ),
    ] = None,
    shape: Annotated[
        Optional[str],
        typer.Option("--shape", help="Of the tensor or buffer: 64x64. A picture finds one itself."),
    ] = None,
    view: Annotated[str, typer.Option("--view", help="explain, tensor or hardware.")] = "explain",
    compare: Annotated[
        Optional[tuple[str, str]],
        typer.Option(
            "--compare",
            metavar="LAYOUT LAYOUT",
            help="Two register layouts: what a conversion moves how far. A register and a shared "
            "one: the banks that an access hits.",
        ),
    ] = None,
    bits: Annotated[
        Optional[int], typer.Option("--bits", min=1, max=128, help="Of one element; 32.")
    ] = None,
    svg: Annotated[
        Optional[Path], typer.Option("--svg", metavar="FILE", help="Draw it as SVG.")
    ] = None,
    html: Annotated[
        Optional[Path],
        typer.Option("--html", metavar="FILE", help="Draw it as a page that needs no network."),
    ] = None,
    json: Json = False,
) -> None:
    """Which thread, register or address holds which element of a tensor."""
    from gluon_pictures.command import show

    show(expression, compare, shape, view, bits, svg, html, json)
