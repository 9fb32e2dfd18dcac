"""The launch of a simulated kernel: bind its arguments, check them, prove it, run it under a schedule."""

from __future__ import annotations

from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Callable, Iterator, Optional, Sequence

from gluon_core.errors import CapabilityError
from gluon_core.registry.load import registry
from gluon_core.simulation.evidence import Proved, Walked, note
from gluon_sim.arguments import Signature
from gluon_sim.errors import SimulatorError, tolerate
from gluon_sim.executor.blas import one_thread
from gluon_sim.executor.compile import CompiledProgram
from gluon_sim.executor.explore import Exploration, one_only, replay
from gluon_sim.executor.machine import Machine, Place
from gluon_sim.executor.ranks import Rank, current
from gluon_sim.memory.global_memory import GlobalMemory
from gluon_sim.memory.guided import Guided
from gluon_sim.sanitizer.addresses import arguments_aligned
from gluon_sim.settings import Settings, launch_number, of_launch
from gluon_sim.timing.session import predicted
from gluon_sim.tools.debug import watched

__all__ = ["Launch", "SimulatedKernel", "Verdict", "make_launcher", "proving"]

Grid = tuple[int, int, int]
Verdict = tuple[
    Proved, Optional[SimulatorError]
]  # of a prover: the error is that of a counterexample


def make_launcher(compiled: Any) -> Callable[..., Any]:
    """Return `launch(grid, stream, *arguments)` for a `CompiledKernel` of the simulator."""
    return SimulatedKernel(compiled).launch


class SimulatedKernel:
    """A compiled kernel: the state that all its launches share.

    Attributes:
        program: the kernel, compiled to steps.
        entry: its public function.
        verdicts: of the prover, by the setting `proxy`.
    """

    def __init__(self, compiled: Any):
        self.compiled = compiled
        self.target = compiled.target
        self.program: CompiledProgram = compiled.asm["program"].compiled
        self.entry = self.program.kernel.function
        self.num_warps = int(compiled.metadata.num_warps)
        self.num_ctas = int(getattr(compiled.metadata, "num_ctas", 1))
        self.verdicts: dict[str, Verdict] = {}
        compiled.function = compiled.module = self.program.program
        kinds, names = compiled.signature_types(), compiled.src.fn.arg_names
        self.signature = Signature(kinds, list(names), self.entry.type.inputs)

    def launch(self, grid: Any, stream: Any, *arguments: Any) -> None:
        """Run the programs of a grid to their end, with the settings that hold now."""
        settings, overridden = of_launch(self.compiled.metadata.simulation)
        if settings.schedule == "explore":  # only without races do all schedules agree
            settings = replace(settings, races=True, deadlocks=True)
        note(settings.off, overridden)
        if settings.capacity and not self.program.fits:
            self.program.refuse_excess()
        rank = current()
        # A rank reaches other ranks' memory where they share it, although all are of one process.
        stored = rank is None and self.program.pointer_casts
        bound = self.signature.bind(arguments, settings.views, stored)
        memory = GlobalMemory() if rank is None else rank.memory()
        memory.hold(bound.storages, bound.homes)
        if rank is not None:
            memory.name_shared()
        x, y, z = (*(int(extent) for extent in grid), 1, 1)[:3]
        launch = Launch(self, settings, memory, bound.values, (x, y, z))
        if rank is not None:
            launch.run_on(rank)
        else:
            launch.run()


@dataclass(frozen=True)
class Launch:
    """One launch of a kernel.

    Args:
        memory: the memory that its programs can reach.
        values: of the kernel's inputs.
        grid: programs in x, y, z.
    """

    kernel: SimulatedKernel
    settings: Settings
    memory: GlobalMemory
    values: Sequence[Any]
    grid: Grid

    @cached_property
    def identity(self) -> tuple[str, str, int]:
        """Return the kernel, the target, and which launch of the kernel this is."""
        name = self.kernel.entry.name
        return name, str(self.kernel.target), launch_number(name)

    def machine(
        self, schedule: Optional[Guided] = None, grid: Optional[Grid] = None,
        settings: Optional[Settings] = None, program: Optional[CompiledProgram] = None,
        place: Optional[Place] = None,
    ) -> Machine:  # fmt: skip
        """Return a machine that runs this launch, or one that differs from it by the arguments given."""
        kernel = self.kernel
        return Machine(
            program or kernel.program, self.memory, grid or self.grid, kernel.num_warps,
            kernel.target, settings=settings or self.settings, num_ctas=kernel.num_ctas,
            schedule=schedule, place=place,
        )  # fmt: skip

    def check(self) -> None:
        """Report mistakes before any program runs: arguments, and barriers that nobody uses."""
        kernel, settings = self.kernel, self.settings
        entry = kernel.entry
        if settings.alignment and entry.arg_attrs:
            arguments_aligned(entry.arg_attrs, kernel.signature.leaves, self.values, entry.loc)
        if settings.barriers:
            for report in kernel.program.unused_barriers:
                tolerate(report, settings.tolerated, self.memory.warned)

    def run_on(self, rank: Rank) -> None:
        """Run the launch in the simulation that all ranks share."""
        self.check()
        rank.launch(self.machine(place=rank.place), self.values)

    def run(self) -> None:
        """Prove the kernel if that is asked for, then run it under the schedules of the settings.

        Raises:
            GluonError: a mistake in the kernel.
        """
        self.check()
        if predicted(self):
            return
        settings = self.settings
        if settings.prove in ("*", self.kernel.entry.name):
            self.prove()
        with one_thread():
            try:
                if settings.replay is not None:
                    self.run_again(settings.replay)
                elif settings.schedule == "explore":
                    self.run_all()
                else:
                    self.run_once()
            finally:
                self.memory.unmark()

    def run_once(self) -> None:
        """Run under the usual schedule, or a random one, for whoever watches."""
        kernel = self.kernel
        launch = watched(kernel.program, kernel.compiled, self.grid)
        with launch or nullcontext():
            machine = self.machine(program=None if launch is None else launch.program)
            machine.watched = launch is not None
            machine.run(self.values)
        machine.release()

    def run_all(self) -> None:
        """Run under all schedules that differ, or as many as the settings allow."""
        if one_only(self.kernel.program):
            self.machine().run(self.values)
            note(walked=Walked(1, 1, True))
        else:
            exploration = Exploration(
                self.machine, self.memory, self.values, self.settings, self.identity
            )
            note(walked=exploration.run())

    def run_again(self, schedule: str) -> None:
        """Run under the schedule in a file; under the usual one if that is of another launch."""
        if not replay(schedule, self.machine, self.values, self.identity):
            self.machine().run(self.values)

    def prove(self) -> None:
        """Judge the kernel for every trip count, once for all its launches.

        Raises:
            CapabilityError: no prover is installed.
            SimulatorError: the simulator's report of a counterexample.
        """
        verdicts, proxy = self.kernel.verdicts, self.settings.proxy
        if proxy not in verdicts:
            with one_thread():
                verdicts[proxy] = _prover()(self)
        proved, error = verdicts[proxy]
        note(proved=proved)
        if error is not None:
            raise error


_provers: list[Callable[[Launch], Verdict]] = []


@contextmanager
def proving(prover: Callable[[Launch], Verdict]) -> Iterator[None]:
    """Ask `prover`, not the one that is installed, about kernels that launches inside are to prove."""
    _provers.append(prover)
    try:
        yield
    finally:
        _provers.remove(prover)


def _prover() -> Callable[[Launch], Verdict]:
    if _provers:
        return _provers[-1]
    if "prove" not in registry().offers("service"):
        raise CapabilityError(
            "proofs need a prover, and none is installed",
            argument="prove",
            remedy='pip install "gluon-core[prove]"',
        )
    prover: Callable[[Launch], Verdict] = registry().service("prove")
    return prover
