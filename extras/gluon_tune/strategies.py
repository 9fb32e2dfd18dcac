"""In which order configurations are tried."""

from __future__ import annotations

import importlib.util
import random
from itertools import combinations, islice
from operator import itemgetter
from typing import Any, Optional, Protocol

from gluon_core.errors import did_you_mean
from gluon_tune.errors import TuneError, TuneSpaceError
from gluon_tune.spaces import Config, Space
from gluon_tune.tuned.store import plain_text

__all__ = ["STRATEGIES", "Strategy", "strategy_of"]

STRATEGIES = ("auto", "exhaustive", "optuna", "random")
SMALL = 64  # configurations that are all tried unless somebody says otherwise
_MOST = 1_000_000  # combinations that are looked through for those that belong to a space
_PATIENCE = 40  # draws that were known or illegal before one is taken at random
_FIRST = 12  # turns that go to neighbours of the start, before anything is known
_PAIRS = 0.5  # share of neighbours that differ in two parameters
_BEST = 2  # configurations whose neighbours are tried
_MODEL = 4  # every so many turns the library chooses


class Strategy(Protocol):
    """Says which configurations to try."""

    def ask(self) -> Optional[dict[str, Any]]:
        """Return the next configuration; None when there is none left."""

    def tell(self, config: Config, value: Optional[float], large: bool = False) -> None:
        """Record the value of a configuration: less is better, None where it is of no use; `large`: it needs more
        than there is of something, so that larger ones do so, too."""


class InOrder:
    """All configurations of a list, one after the other.

    Args:
        configs: the list.
        start: the one to begin with.
    """

    def __init__(self, configs: list[dict[str, Any]], start: Optional[Config]):
        first = [dict(start)] if start is not None else []
        self._left = iter([*first, *(config for config in configs if config not in first)])
        self._seen: set[str] = set()

    def ask(self) -> Optional[dict[str, Any]]:
        for config in self._left:
            if plain_text(config) not in self._seen:
                return config
        return None

    def tell(self, config: Config, value: Optional[float], large: bool = False) -> None:
        self._seen.add(plain_text(config))


class Optuna:
    """Neighbours of the best two so far, since the configuration that people start with is seldom far off; every fourth one
    is the proposal of a tree-structured Parzen estimator, fitted to the others.

    Args:
        space: the space to draw from.
        configs: all that belong to it, where they are few enough to tell.
        start: the one to begin with.
        seed: of the drawing.
    """

    def __init__(
        self,
        space: Space,
        configs: Optional[list[dict[str, Any]]],
        start: Optional[Config],
        seed: int,
    ):
        import optuna

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self._optuna = optuna
        self._space = space
        self._random = random.Random(seed)
        self._left = None if configs is None else {plain_text(c): c for c in configs}
        self._seen: set[str] = set()
        self._asked: dict[str, Any] = {}
        self._start = None if start is None else dict(start)
        self._best: list[tuple[float, dict[str, Any]]] = []  # a few, the best first
        self._large: list[dict[str, Any]] = []  # do not fit
        self._centre = self._start
        self._turn = 0
        self._distributions: dict[str, Any] = {}
        for name, values in space.values.items():
            self._distributions[name] = (
                optuna.distributions.IntDistribution(0, len(values) - 1)
                if self._ordered(name)
                else optuna.distributions.CategoricalDistribution(tuple(range(len(values))))
            )
        # A trial that is under way counts as a poor one, so that those asked for at once differ.
        with _quiet():
            sampler = optuna.samplers.TPESampler(
                seed=seed, multivariate=True, constant_liar=True, n_startup_trials=8
            )
        self._study = optuna.create_study(sampler=sampler)

    def _indices(self, config: Config) -> dict[str, int]:
        return {name: self._space.values[name].index(value) for name, value in config.items()}

    def ask(self) -> Optional[dict[str, Any]]:
        if self._start is not None:
            start, self._start = self._start, None
            if plain_text(start) not in self._seen:
                return self._take(start)
        if self._left is not None and not self._left:
            return None
        self._turn += 1
        near = self._neighbour() if self._turn <= _FIRST or self._turn % _MODEL else None
        if near is not None:
            return self._take(near)
        for _ in range(_PATIENCE):
            trial = self._study.ask(self._distributions)
            config = {n: self._space.values[n][trial.params[n]] for n in self._space.values}
            text = plain_text(config)
            if (
                text not in self._seen
                and (text in self._left if self._left is not None else config in self._space)
                and not self._too_large(config)
            ):
                self._asked[text] = trial
                return self._take(config)
            known = self._asked.get(text)
            value = known if isinstance(known, float) else None
            self._tell(trial, value)
        if self._left is None:
            return None
        return self._take(self._random.choice(sorted(self._left.items()))[1])

    def _neighbour(self) -> Optional[dict[str, Any]]:
        """Return a neighbour of one of the best: a parameter or two differ, by a step if ordered."""
        centres = [config for _, config in self._best]
        if not centres and self._centre is not None:
            centres = [self._centre]
        if not centres:
            return None
        centre = self._random.choice(centres)
        both = self._turn > _FIRST and self._random.random() < _PAIRS
        for pairs in (both, not both):
            neighbours = [{**centre, **change} for change in self._steps(centre, pairs)]
            self._random.shuffle(neighbours)
            for config in neighbours:
                new = plain_text(config) not in self._seen and config in self._space
                if new and not self._too_large(config):
                    return config
        return None

    def _too_large(self, config: Config) -> bool:
        """Return True if a configuration that does not fit is nowhere larger."""
        return any(
            all(
                config[name] >= value if self._ordered(name) else config[name] == value
                for name, value in one.items()
            )
            for one in self._large
        )

    def _steps(self, centre: Config, pairs: bool) -> list[dict[str, Any]]:
        """Return the changes that lead to neighbours."""
        single = []
        for name, values in self._space.values.items():
            position = values.index(centre[name])
            near = (position - 1, position + 1) if self._ordered(name) else range(len(values))
            single += [{name: values[i]} for i in near if 0 <= i < len(values) and i != position]
        if not pairs:
            return single
        return [{**one, **other} for one, other in combinations(single, 2) if [*one] != [*other]]

    def _ordered(self, name: str) -> bool:
        values = self._space.values[name]
        return all(type(v) in (int, float) for v in values) and len(values) > 2

    def _take(self, config: dict[str, Any]) -> dict[str, Any]:
        text = plain_text(config)
        self._seen.add(text)
        if self._left is not None:
            self._left.pop(text, None)
        return config

    def _tell(self, trial: Any, value: Optional[float]) -> None:
        states = self._optuna.trial.TrialState
        if value is None:
            self._study.tell(trial, state=states.PRUNED)
        else:
            self._study.tell(trial, value)

    def tell(self, config: Config, value: Optional[float], large: bool = False) -> None:
        text = plain_text(config)
        if large:
            self._large.append(dict(config))
        trial = self._asked.pop(text, None)
        if value is not None:
            self._asked[text] = value
            self._best = sorted([*self._best, (value, dict(config))], key=itemgetter(0))[:_BEST]
        if trial is not None and not isinstance(trial, float):
            self._tell(trial, value)
            return
        self._take(dict(config))
        if value is not None:
            with _quiet():
                finished = self._optuna.trial.create_trial(
                    params=self._indices(config), distributions=self._distributions, value=value
                )
            self._study.add_trial(finished)


class _quiet:
    """Silence the library's warnings about experimental features."""

    def __enter__(self) -> None:
        import warnings

        self._kept = warnings.catch_warnings()
        self._kept.__enter__()
        warnings.simplefilter("ignore")

    def __exit__(self, *details: Any) -> None:
        self._kept.__exit__(None, None, None)


def strategy_of(
    name: str, space: Space, start: Optional[Config], seed: int, trials: Optional[int]
) -> tuple[Strategy, int, int]:
    """Return the strategy of that name, how many trials it makes, and how many configurations there are
    (0 where they were not counted).

    Raises:
        TuneError: an unknown name, or optuna is not installed.
        TuneSpaceError: the space is empty, or too large for the strategy.
    """
    if name not in STRATEGIES:
        raise TuneError(
            "unknown way to search",
            argument="search",
            expected=", ".join(STRATEGIES),
            got=repr(name),
            remedy=did_you_mean(name, STRATEGIES),
        )
    configs = list(space) if space.size <= _MOST else None
    if configs is not None and not configs:
        raise TuneSpaceError("no configuration belongs to the space", got=repr(space))
    count = 0 if configs is None else len(configs)
    small = 0 < count <= SMALL or (trials is not None and 0 < count <= trials)
    if name == "auto":
        name = "exhaustive" if small else "optuna"
    wanted = trials or (count if name == "exhaustive" else default_trials(count))
    if name == "exhaustive":
        if configs is None:
            raise TuneSpaceError(
                f"{space.size} combinations are too many to try them all",
                expected=f"at most {_MOST}",
            )
        return InOrder(configs, start), min(wanted, count), count
    wanted = min(wanted, count) if count else wanted
    if name == "optuna":
        if importlib.util.find_spec("optuna") is None:
            raise TuneError(
                f"optuna is not installed, and {count or space.size} configurations are many",
                remedy="pip install 'gluon-core[tune]', or use --search random or exhaustive.",
            )
        return Optuna(space, configs, start, seed), wanted, count
    drawn = configs if configs is not None else list(islice(space, _MOST))
    random.Random(seed).shuffle(drawn)
    return InOrder(drawn, start), wanted, count


def default_trials(count: int) -> int:
    """Return how many of `count` configurations are tried: few enough to take a fifth of the time of all."""
    return max(min(20, count // 4), min(200, count // 24)) if count else 200
