"""Hold the settings of a search, its progress and its results."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Mapping, Optional

from gluon_tune.spaces import Config
from gluon_tune.tuned.store import Key, Trial

__all__ = ["Outcome", "Progress", "Settings", "Shape"]

Shape = Mapping[str, Any]


@dataclass(frozen=True)
class Settings:
    """The settings of a search.

    Args:
        target: the hardware, in any spelling; None for the device that is there.
        objective: quantity to minimize: "time" on a device, "predicted" (seconds by the simulator's model of time,
            without compiling), "roofline" (seconds by what the
            simulator counts, see `estimate`), "instructions" or "registers" of the machine code.
        search: "auto" (all of them where they are at most 64), "exhaustive", "optuna" or "random".
        trials: how many configurations to try; None leaves it to the search, which then does not count
            what is pruned.
        seconds: when to stop.
        seed: of the random draws.
        rounds: samples of each contender at most; `finals`: of the best ones at the end, in turns again.
        compile_limit, run_limit, simulate_limit: seconds after which one compilation, one sample, one
            simulation is killed.
        spills: bytes that a configuration may spill and still be measured.
        conflicts: extra passes over the banks from which on one is not measured; None ignores them. The
            spills and needs of the default configuration are always accepted.
        again: try what is known, too.
    """

    target: Optional[str] = None
    objective: str = "time"
    search: str = "auto"
    trials: Optional[int] = None
    seconds: Optional[float] = None
    seed: int = 0
    rounds: int = 6
    finals: int = 12
    compile_limit: float = 120.0
    run_limit: float = 10.0
    simulate_limit: float = 120.0
    spills: int = 64
    conflicts: Optional[int] = 7
    again: bool = False

    def limits(self) -> dict[str, Any]:
        return {
            "compile": self.compile_limit,
            "simulate": self.simulate_limit,
            "spills": self.spills,
            "conflicts": self.conflicts,
        }


@dataclass
class Outcome:
    """The results for one shape.

    Args:
        key: the key that the configurations competed for.
        shape: the parameters of `arguments`.
        trials: all that are kept for the key, the best first.
        tried: how many are from this search.
        total: how many configurations there are, 0 where they were not counted.
        seconds: duration of the search.
        default: the configuration to beat.
        options: compile options that were not searched.
        interrupted: whether somebody stopped it.
        facts: of the device.
        call: the kernel's arguments, with their own sizes.
    """

    key: Key
    shape: Shape
    trials: list[Trial] = field(default_factory=list)
    tried: int = 0
    total: int = 0
    seconds: float = 0.0
    default: Optional[Config] = None
    options: Mapping[str, Any] = field(default_factory=dict)
    interrupted: bool = False
    facts: Mapping[str, Any] = field(default_factory=dict)
    call: str = ""

    @property
    def best(self) -> Optional[Trial]:
        return self.trials[0] if self.trials and self.trials[0].status == "ok" else None

    @property
    def start(self) -> Optional[Trial]:
        """Return the trial of the default configuration."""
        return next((t for t in self.trials if t.config == self._whole(self.default)), None)

    def _whole(self, config: Optional[Config]) -> Optional[dict[str, Any]]:
        return None if config is None else {**self.options, **config}


@dataclass(frozen=True)
class Progress:
    """The progress of a search.

    Args:
        shape: the shape that is searched.
        done, wanted: trials.
        best: the best so far.
        left: seconds that the rest takes at the pace so far; None before there is one.
        trial: the latest trial.
    """

    shape: Shape
    done: int
    wanted: int
    best: Optional[Trial]
    left: Optional[float]
    trial: Optional[Trial]
