"""A prompt over the machine: where a kernel stopped, its source lines, its values.

It opens where a kernel calls `breakpoint()`, and with `gluon run --pdb` where one fails. Values go
by their names in the kernel; tensors show at full extent, for one program at a time.
"""

from __future__ import annotations

import builtins
import cmd
import linecache
import re
import sys
from dataclasses import dataclass
from typing import Any, Optional, TextIO

import numpy as np

from gluon_core import layouts
from gluon_core.errors import GluonError
from gluon_sim.executor.compile import CompiledProgram, Step
from gluon_sim.executor.frame import Frame
from gluon_sim.executor.task import Task
from gluon_sim.memory.shared import SharedView
from gluon_sim.tools.watcher import Launch, Watcher, watchers_now
from gluon_sim.tracing.ir import Block, Function, Location, Op, Value
from gluon_sim.tracing.source import in_library
from gluon_sim.tracing.types import MemDescType, TensorType

__all__ = ["Debugger", "Place", "Prompt", "visible", "watched"]


def watched(
    program: CompiledProgram, compiled: Any, grid: tuple[int, int, int]
) -> Optional[Launch]:
    """Return the launch for those who watch now, and a prompt at its breakpoints; None where nobody does."""
    watchers = watchers_now()
    if program.breakpoints and not any(watcher.keeps_values for watcher in watchers):
        watchers = (*watchers, Debugger())
    return Launch(program, compiled, grid, watchers) if watchers else None


def visible(op: Op) -> dict[str, Any]:
    """Map name -> value (or constant) of the kernel's names at an op, the latest assigned last."""
    values: dict[str, Any] = {}
    chain: list[tuple[Block, Optional[Op]]] = []
    block: Optional[Block] = op.block
    last: Optional[Op] = op
    while block is not None:
        chain.append((block, last))
        region = block.region
        owner = region.owner if region is not None else None
        if not isinstance(owner, Op):
            # Blocks of a function run in order: those before this one have run, or were skipped.
            blocks = region.blocks if region is not None else [block]
            chain += [(b, None) for b in reversed(blocks[: blocks.index(block)])]
            break
        block, last = owner.block, owner
    for block, last in reversed(chain):
        after: dict[int, list[tuple[str, Any]]] = {}
        for anchor, name, value, _ in block.bindings:
            after.setdefault(id(anchor) if anchor is not None else 0, []).append((name, value))
        named: list[tuple[str, Any]] = [(a.name, a) for a in block.arguments if a.name]
        for name, value in named + after.get(0, []):
            values.pop(name, None)
            values[name] = value
        for other in block.ops:
            if other is last:
                break
            for name, value in after.get(id(other), ()):
                values.pop(name, None)
                values[name] = value
    return values


@dataclass
class Place:
    """One level of the calls that lead to the position of a task."""

    frame: Frame
    op: Op
    function: str

    def value(self, value: Value) -> Any:
        """As the machine holds it, for the programs that are in the frame; None where it is gone."""
        slot = value.resolve().slot
        if not 0 <= slot < len(self.frame.values):
            return None
        try:
            return self.frame.get(slot)
        except (IndexError, AssertionError):
            return None


class Debugger(Watcher):
    """Opens a prompt at breakpoints and, asked by `post_mortem`, where a kernel failed.

    Args:
        stdin, stdout: of the prompt.
    """

    keeps_values = True

    def __init__(self, stdin: Optional[TextIO] = None, stdout: Optional[TextIO] = None):
        self.stdin = stdin
        self.stdout = stdout
        self._failure: Optional[tuple[BaseException, "Prompt"]] = None
        self._stepping: Optional[tuple[Task, Location]] = None
        self._off = False

    def before(self, launch: Launch, task: Task, step: Step) -> None:
        if self._off or launch.in_region(task):
            return
        op = step.op
        if op.name == "breakpoint":
            self._stop(launch, task, op)
        elif self._stepping is not None and self._stepping[0] is task:
            loc = op.loc
            last = self._stepping[1]
            if (loc.file, loc.line) != (last.file, last.line) and not in_library(loc.file):
                self._stop(launch, task, op)

    def failed(self, launch: Launch, task: Task, step: Step, error: BaseException) -> None:
        self._failure = (error, Prompt(launch, task, step.op, self.stdin, self.stdout))

    def _stop(self, launch: Launch, task: Task, op: Op) -> None:
        prompt = Prompt(launch, task, op, self.stdin, self.stdout)
        prompt.ask()
        self._stepping = (task, op.loc) if prompt.wish == "step" else None
        self._off = prompt.wish == "quit"

    def post_mortem(self, error: BaseException) -> bool:
        """Open the prompt where a kernel raised `error`; False where no kernel did."""
        if self._failure is None:
            return False
        known, prompt = self._failure
        chain: Optional[BaseException] = error
        while chain is not None and chain is not known:
            chain = chain.__cause__ or chain.__context__
        if chain is None:
            return False
        print(f"{type(error).__name__}: {error}", file=prompt.stdout)
        match = re.search(r"program \((\d+), (\d+), (\d+)\)", str(error))
        if match:
            prompt.choose(tuple(int(g) for g in match.groups()))
        prompt.ask()
        return True


_SAFE = {
    name: getattr(builtins, name)
    for name in "abs all any bool dict float hex int len list max min range round set sorted str "
    "sum tuple type zip".split()
}


def _source_name(function: Function) -> str:
    """Return a function's name in the source; specializations carry more."""
    match = re.search(r"def (\w+)", linecache.getline(function.loc.file, function.loc.line))
    return match.group(1) if match else function.name


class Prompt(cmd.Cmd):
    """The commands; each method's first line is its help."""

    prompt = "(gluon) "

    def __init__(
        self,
        launch: Launch,
        task: Task,
        op: Op,
        stdin: Optional[TextIO] = None,
        stdout: Optional[TextIO] = None,
    ):
        super().__init__(stdin=stdin or sys.stdin, stdout=stdout or sys.stdout)
        self.use_rawinput = stdin is None and sys.stdin.isatty()
        self.launch = launch
        self.task = task
        self.wish = "continue"
        self.places: list[Place] = []
        name = _source_name(launch.program.program.kernel)
        for frame, call in launch.calls(task):
            self.places.append(Place(frame, call, name))
            name = _source_name(call.args[0])
        self.places.append(Place(task.frame, op, name))
        self.level = len(self.places) - 1
        self.index = 0

    def ask(self) -> None:
        """Until the user goes on."""
        self._where()
        self.cmdloop()

    def cmdloop(self, intro: Any = None) -> None:
        try:
            super().cmdloop(intro)
        except (KeyboardInterrupt, OSError):
            # OSError: something captured the standard input, as pytest does.
            self.wish = "quit"

    # ---- where ------------------------------------------------------------------------------------

    @property
    def place(self) -> Place:
        return self.places[self.level]

    def say(self, text: Any = "") -> None:
        print(text, file=self.stdout)

    def _programs(self) -> list[tuple[int, int, int]]:
        rows = self.place.frame.rows.index
        x, y, z = self.task.batch.ids
        return [(int(x[r]), int(y[r]), int(z[r])) for r in rows]

    def choose(self, program: tuple[int, ...]) -> bool:
        """Show values of this program; False where it is not here."""
        programs = self._programs()
        if program not in programs:
            return False
        self.index = programs.index(program)
        return True

    def _where(self) -> None:
        loc = self.place.op.loc
        programs = self._programs()
        others = f" of {len(programs)} here" if len(programs) > 1 else ""
        self.say(
            f"> {loc.file}:{loc.line} in {self.place.function}, {self.task.name}, program "
            f"{programs[min(self.index, len(programs) - 1)]}{others}"
        )
        self.say(f"-> {linecache.getline(loc.file, loc.line).strip()}")

    # ---- values ------------------------------------------------------------------------------------

    def names(self) -> dict[str, Any]:
        return visible(self.place.op)

    def array(self, value: Value) -> Any:
        """Return the value of the chosen program: a scalar, or an array of the tensor's shape."""
        held = self.place.value(value)
        if held is None:
            return None
        if isinstance(held, SharedView):
            held = held.load(self.place.frame.rows)
        if not isinstance(held, np.ndarray):
            return held
        held = held[self.index if held.shape[0] > 1 else 0]
        dims = value.type.dims
        if len(dims) == held.ndim:
            held = np.broadcast_to(held, dims)
        return held[()] if held.ndim == 0 else held

    def values(self) -> dict[str, Any]:
        values = {
            name: self.array(value) if isinstance(value, Value) else value
            for name, value in self.names().items()
        }
        return {name: value for name, value in values.items() if value is not None}

    def evaluate(self, text: str) -> Any:
        scope = {"np": np, **_SAFE, **self.values()}
        return eval(text, {"__builtins__": {}}, scope)  # the user's own words, at their prompt

    # ---- commands ----------------------------------------------------------------------------------

    def do_where(self, line: str) -> None:
        """where: the calls that lead here, the innermost last."""
        for i, place in enumerate(self.places):
            loc = place.op.loc
            text = linecache.getline(loc.file, loc.line).strip()
            mark = ">" if i == self.level else " "
            self.say(f"{mark} {loc.file}:{loc.line} in {place.function}: {text}")

    def do_list(self, line: str) -> None:
        """list [N]: the kernel's source around the current line, N lines to each side (5)."""
        loc = self.place.op.loc
        around = int(line) if line.strip().isdigit() else 5
        for number in range(max(1, loc.line - around), loc.line + around + 1):
            text = linecache.getline(loc.file, number)
            if text:
                mark = "->" if number == loc.line else "  "
                self.say(f"{number:5d} {mark} {text.rstrip()}")

    def do_names(self, line: str) -> None:
        """names: the names that can be printed here, with types and layouts."""
        for name, value in self.names().items():
            if not isinstance(value, Value):
                self.say(f"{name}: constexpr = {value}")
                continue
            gone = "" if self.place.value(value) is not None else " (not computed)"
            self.say(f"{name}: {value.type}{gone}")

    def do_p(self, line: str) -> None:
        """p EXPRESSION: a value of the chosen program, or Python over them (np is NumPy)."""
        try:
            shown = self.evaluate(line)
        except Exception as error:
            self.say(f"{type(error).__name__}: {error}")
            return
        self.say(np.array2string(shown, separator=", ") if isinstance(shown, np.ndarray) else shown)

    def _named(self, name: str) -> Optional[Value]:
        value = self.names().get(name.strip())
        if not isinstance(value, Value):
            self.say(f"no tensor and no buffer is called {name.strip()!r} here; `names` lists them")
        return value

    def do_layout(self, line: str) -> None:
        """layout NAME: the layout of a tensor or a buffer."""
        value = self._named(line)
        if value is not None:
            self.say(repr(getattr(value.type, "layout", None)))

    def do_dump(self, line: str) -> None:
        """dump NAME: a tensor by thread and register, a buffer by offset."""
        value = self._named(line)
        if value is None:
            return
        array = self.array(value)
        if array is None or not isinstance(value.type, (TensorType, MemDescType)):
            self.say(f"{line.strip()} is no tensor and no buffer, or is not computed yet")
            return
        try:
            self.say(layouts.dump(array, value.type.layout))
        except GluonError as error:
            self.say(error)

    def do_program(self, line: str) -> None:
        """program X [Y [Z]]: look at another program of the grid; without numbers, list them."""
        numbers = [int(n) for n in re.findall(r"\d+", line)]
        if not numbers:
            self.say(" ".join(str(p) for p in self._programs()))
            return
        if not self.choose((*numbers, 0, 0)[:3]):
            self.say("that program is not here; `program` lists those that are")
            return
        self._where()

    def do_up(self, line: str) -> None:
        """up: to the caller."""
        self._go(-1)

    def do_down(self, line: str) -> None:
        """down: back towards the position of the task."""
        self._go(1)

    def _go(self, by: int) -> None:
        if not 0 <= self.level + by < len(self.places):
            self.say("no further")
            return
        self.level += by
        self.index = min(self.index, len(self._programs()) - 1)
        self._where()

    def do_ops(self, line: str) -> None:
        """ops: the current op of the task, with its operands' types."""
        op = self.place.op
        types = ", ".join(str(v.type) for v in op.operands())
        self.say(f"{op.name}({types})")

    def do_step(self, line: str) -> bool:
        """step: on to the next line of the kernel."""
        self.wish = "step"
        return True

    def do_continue(self, line: str) -> bool:
        """continue: on to the next breakpoint."""
        self.wish = "continue"
        return True

    def do_quit(self, line: str) -> bool:
        """quit: on, past all breakpoints."""
        self.wish = "quit"
        return True

    do_w, do_l, do_n, do_s, do_c, do_q, do_u, do_d = (
        do_where, do_list, do_step, do_step, do_continue, do_quit, do_up, do_down,
    )  # fmt: skip
    do_EOF = do_quit

    def precmd(self, line: str) -> str:
        """`w.shape` is an expression, although `w` alone is a command."""
        word = line.split(maxsplit=1)[0] if line.strip() else ""
        return line if not word or word.isidentifier() or word == "?" else f"p {line}"

    def emptyline(self) -> bool:
        return False

    def default(self, line: str) -> None:
        self.do_p(line)

    def get_names(self) -> list[str]:
        return [n for n in dir(type(self)) if n != "do_EOF"]
