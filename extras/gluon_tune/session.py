"""Run a search from begin to end: draw, compile, measure and keep configurations, and stop."""

from __future__ import annotations

import statistics
import time
from concurrent.futures import FIRST_COMPLETED, CancelledError, Future, wait
from dataclasses import replace
from typing import Any, Callable, Mapping, Optional, Sequence

from gluon_core.errors import did_you_mean
from gluon_tune import work
from gluon_tune.engine import Engine, Local
from gluon_tune.errors import TuneError, TuneStoreError, TuneWorkerError
from gluon_tune.isolated import Ended, Failed
from gluon_tune.outcome import Outcome, Progress, Settings, Shape
from gluon_tune.spaces import Config
from gluon_tune.strategies import Strategy, strategy_of
from gluon_tune.task import Reference, Task, refuse_while_reading
from gluon_tune.tuned.store import OBJECTIVES, Key, Store, Trial, plain_text, versions

__all__ = ["Outcome", "Progress", "Settings", "search"]

_PATIENCE = 0.1  # seconds that a device waits for a batch to fill
_BATCH = 12  # configurations that are measured alternately with the best so far
_SLOW = 4.0  # times as long as others before a search that only samples gives a compilation up
_LEAST = 2.0  # seconds that it has at least
_LATE = 1.0  # times that it may take once all others are done
_LATER = (
    0.5  # of the trials that it makes at least: so many more, concurrently, once those are known
)
_SHARE = 0.15  # of the time that all would take, for a search that only samples


def search(
    task: Task | Reference,
    settings: Optional[Settings] = None,
    *,
    engine: Optional[Engine] = None,
    store: Optional[Store] = None,
    progress: Callable[[Progress], None] = lambda state: None,
) -> list[Outcome]:
    """Search the space of a task, for each of its shapes.

    Ctrl-C ends the search and returns the results so far, marked `interrupted`.

    Args:
        task: a task in a variable of its kernel's file, or the reference to one.
        settings: how to search; as usual unless given.
        engine: where to work; two local processes unless given.
        store: what keeps the results, and knows earlier ones; the default file unless given.
        progress: hears of every trial.

    Raises:
        TuneError: it cannot be searched as asked.
        TuneStoreError: the results cannot be kept; earlier ones are.
        TuneWorkerError: there is no device to measure on, or workers are lost or of another build.
    """
    refuse_while_reading()
    settings = settings or Settings()
    if settings.objective not in OBJECTIVES:
        raise TuneError(
            "not an objective",
            argument="objective",
            expected=", ".join(OBJECTIVES),
            got=repr(settings.objective),
            remedy=did_you_mean(settings.objective, OBJECTIVES),
        )
    reference = Reference.of(task) if isinstance(task, Task) else task
    loaded = task if isinstance(task, Task) else reference.load()
    own_engine, own_store = engine is None, store is None
    used, kept = engine or Local(2), store or Store()
    outcomes: list[Outcome] = []
    try:
        for shape in loaded.shapes:
            outcomes.append(_Search(reference, loaded, shape, settings, used, kept, progress).run())
            if outcomes[-1].interrupted:
                break
    finally:
        if own_engine:
            used.close()
        if own_store:
            kept.close()
    return outcomes


def about_device(
    reference: Reference, shape: Shape, settings: Settings, engine: Engine
) -> Future[dict[str, Any]]:
    """Return a worker's description of the task; the worker has a device where one is needed."""
    measured = settings.objective == "time"
    submit = engine.measure if measured else engine.compile
    return submit(work.about, reference, settings.target, shape, measured)


def key_of(future: Future[dict[str, Any]], settings: Settings) -> tuple[Key, dict[str, Any]]:
    """Return the key that configurations compete for, from the answer of `about_device`, and the answer."""
    measured = settings.objective == "time"
    try:
        about = future.result()
    except (Ended, Failed) as error:
        if isinstance(error, Failed) and error.ours:
            raise TuneError(f"cannot be tuned as it is: {error.text}") from None
        raise TuneWorkerError(f"a worker cannot load the task: {error}") from None
    if about["versions"] != versions():
        raise TuneWorkerError(
            "the workers' releases differ from this process's",
            expected=versions(),
            got=about["versions"],
        )
    if measured and not about["devices"]:
        raise TuneWorkerError(
            f"there is no {about['target']} to measure on",
            argument="objective",
            remedy="Without a device, let the time be predicted or something be counted: --objective predicted, "
            "roofline, instructions or registers.",
        )
    names = ("kernel", "target", "device", "bucket", "versions")
    parts = {name: str(about[name]) for name in names}
    fixed = plain_text(about["fixed"])
    return Key(**parts, fixed=fixed, objective=settings.objective), about


class _Search:
    """One shape."""

    def __init__(
        self,
        reference: Reference,
        task: Task,
        shape: Shape,
        settings: Settings,
        engine: Engine,
        store: Store,
        progress: Callable[[Progress], None],
    ):
        self.reference, self.task, self.shape = reference, task, dict(shape)
        self.settings, self.engine, self.store = settings, engine, store
        self.progress = progress
        self.began = time.monotonic()
        # A worker with a device takes a while to begin; those that compile need not wait for it.
        later = about_device(reference, shape, settings, engine)
        if settings.objective == "time":
            begun = [  # all of them begin now
                engine.compile(work.about, reference, settings.target, shape, False)
                for _ in range(min(engine.slots, task.searched.size))
            ]
            wait(begun, return_when=FIRST_COMPLETED)
            first = next(future for future in begun if future.done())
            self.about = key_of(first, replace(settings, objective="registers"))[1]
        else:
            self.about = key_of(later, settings)[1]
        default = self.about["default"]
        self.strategy: Strategy
        self.strategy, self.wanted, total = strategy_of(
            settings.search, task.searched, default, settings.seed, settings.trials
        )
        self.asked = 0
        self.last = self.began  # when the last one was asked for
        self.done = 0
        self.total = total
        self.opened = time.monotonic()  # since when workers are there
        self.took: list[float] = []  # seconds that workers had of each configuration
        self.samples = not total or self.wanted < total  # whether not all are tried
        self.spare = self.wanted if self.samples and settings.trials is None else 0
        self.instead = 0  # trials that did not count
        self.compiled: list[float] = []  # seconds that compilations took
        self.under_way: dict[Future[Any], tuple[str, Any]] = {}
        self.ready: list[tuple[Config, dict[str, Any]]] = []  # compiled, not measured yet
        self._ask()
        self._go_on_until(later)
        try:
            self.key, self.about = key_of(later, settings)
        except BaseException:
            for future in self.under_way:
                future.cancel()
            raise
        self.outcome = Outcome(
            self.key, self.shape, total=total, default=default, options=self.about["options"],
            call=self.about.get("call", ""),
        )  # fmt: skip
        self.best: Optional[Trial] = None
        self.default: Optional[Mapping[str, Any]] = None  # the facts of its code
        self.held: list[tuple[Config, Mapping[str, Any]]] = []  # wait for that
        self.idle = time.monotonic()  # since when a device waits, or something is there to measure
        self.lost: dict[str, int] = {}  # how often a configuration went with its worker

    # -- the loop --------------------------------------------------------------------------------

    def run(self) -> Outcome:
        self._recall()
        try:
            while True:
                self._ask()
                self._measure()
                if not self.under_way or self._only_late():
                    break
                done, _ = wait(self.under_way, _PATIENCE, FIRST_COMPLETED)
                for future in done:
                    self._take(future)
            self._finals()
        except KeyboardInterrupt:
            self.outcome.interrupted = True
            for future in self.under_way:
                future.cancel()
            self.engine.close()
        outcome = self.outcome
        outcome.trials = self.store.of(self.key)
        outcome.tried, outcome.seconds = self.done, time.monotonic() - self.began
        return outcome

    def _bare(self, config: Config) -> dict[str, Any]:
        """Return a configuration without the options that were not searched."""
        return {name: config[name] for name in self.task.searched.values if name in config}

    def _recall(self) -> None:
        """Take in the trials of earlier searches, which are not repeated."""
        if self.settings.again:
            return
        begun = {plain_text(config): future for future, (_, config) in self.under_way.items()}
        for trial in self.store.of(self.key):
            config = self._bare(trial.config)
            if config == self.about["default"]:
                self.default = trial.detail
            if config in self.task.searched:
                early = begun.get(plain_text(config))
                if early is None:
                    self.asked += 1
                else:  # it was asked for before it was known which device this is
                    early.cancel()
                    del self.under_way[early]
                self._tell(config, trial)
                self.done += 1
                self._consider(trial)

    def _tell(self, config: Config, trial: Trial) -> None:
        value = trial.value if trial.status == "ok" else None
        self.strategy.tell(config, value, bool(trial.detail.get("large")))

    def _consider(self, trial: Trial) -> None:
        if trial.status == "ok" and trial.value is not None:
            if self.best is None or self.best.value is None or trial.value < self.best.value:
                self.best = trial

    @property
    def _over(self) -> bool:
        limit = self.settings.seconds
        return limit is not None and time.monotonic() - self.began > limit

    def _ask(self) -> None:
        """Keep workers compiling, but not so many that the search would ask without knowing anything."""
        ahead = max(2, min(self.engine.slots, self.wanted // 4 or 1))
        compiling = sum(kind == "compile" for kind, _ in self.under_way.values())
        while compiling + len(self.ready) < ahead + _BATCH and compiling < self.engine.slots:
            if not self._ask_one():
                return
            compiling += 1

    def _ask_one(self) -> bool:
        """Compile another configuration, if there is one to try."""
        if self._over or (self.asked >= self.wanted and not self._more()):
            return False
        config = self.strategy.ask()
        if config is None:
            self.asked = self.wanted
            return False
        self.asked += 1
        self.wanted = max(self.wanted, self.asked)
        self.last = time.monotonic()
        self._compile(config)
        return True

    def _more(self) -> bool:
        """Return True while a search that samples has time: a search of all would take long."""
        if not self.samples or self.settings.trials is not None or len(self.took) < _BATCH:
            return False
        if self.asked - self.instead >= self.total // 3:
            return False
        pace = statistics.mean(self.took) / self.engine.slots
        whole = self.opened - self.began + self.total * pace
        return time.monotonic() - self.began < _SHARE * whole

    def _go_on_until(self, there: Future[Any]) -> None:
        """Let workers compile while the one with the device begins: that takes no time."""
        slots, wanted, free = self.engine.slots, self.wanted, 0
        most = wanted
        if self.samples and self.settings.trials is not None:
            most = min(2 * slots, wanted // 2)  # the others are asked for when something is known
        elif self.samples:
            free = self.spare
            self.wanted += free
        large: set[Future[Any]] = set()
        while not there.done():
            done = [future for future in self.under_way if future.done()]
            for future in done:
                if future not in large and _does_not_fit(future):
                    large.add(future)
                    self.strategy.tell(self.under_way[future][1], None, True)
            busy = len(self.under_way) - len(done)
            more = len(self.under_way) < most + min(free, len(large)) and busy < slots
            if not (more and self._ask_one()):
                left = [future for future in self.under_way if not future.done()]
                wait([there, *left], return_when=FIRST_COMPLETED)
        late = min(int(_LATER * wanted), slots) if free else 0
        self.wanted = max(wanted, self.asked - min(free, len(large)) + late)

    def _only_late(self) -> bool:
        """Return True if only compilations are left that take far longer than others did: a search that
        samples does not wait for them, and knows nothing of them."""
        if not self.samples or len(self.compiled) < _BATCH or self.ready or self.held:
            return False
        if self.asked < self.wanted or self._more():
            return False
        if any(kind != "compile" for kind, _ in self.under_way.values()):
            return False
        if time.monotonic() - self.last < _LATE * statistics.median(self.compiled):
            return False
        for future in self.under_way:
            future.cancel()
        self.under_way.clear()
        return True

    def _compile(self, config: Config) -> None:
        call = (self.reference, self.settings.target, self.shape, dict(config))
        limits = {**self.settings.limits(), "patience": self._patience()}
        began = time.monotonic()

        def ended(future: Future[Any]) -> None:
            if not future.cancelled():
                self.took.append(time.monotonic() - began)

        future = self.engine.compile(work.compile_one, *call, self.settings.objective, limits)
        future.add_done_callback(ended)
        self.under_way[future] = ("compile", config)

    def _patience(self) -> Optional[float]:
        """Seconds after which a compilation is given up, since others take far less; None waits."""
        if not self.samples or len(self.compiled) < _BATCH:
            return None
        own = float((self.default or {}).get("compile_seconds", 0.0))
        return max(_LEAST, _SLOW * max(statistics.median(self.compiled), own))

    def _measure(self) -> None:
        """Send compiled configurations to a free device, once they fill a batch or no more come."""
        measuring = sum(kind == "measure" for kind, _ in self.under_way.values())
        compiling = len(self.under_way) - measuring
        while self.ready and measuring < self.engine.meters:
            patient = time.monotonic() - self.idle < _PATIENCE
            if len(self.ready) < _BATCH and compiling and patient:
                return
            batch, self.ready = self.ready[:_BATCH], self.ready[_BATCH:]
            batch = [one for one in batch if not self._beaten(*one)]
            if not batch:
                continue
            configs = [config for config, _ in batch]
            anchor = self.best
            if anchor is not None:  # in turns with it: a device that slows down slows both
                configs.append(self._bare(anchor.config))
            self._submit(configs, self.settings.rounds, ("measure", (batch, anchor)))
            measuring += 1

    def _submit(self, configs: Sequence[Config], rounds: int, batch: tuple[str, Any]) -> None:
        call = (self.reference, self.settings.target, self.shape, list(configs))
        devices, limit = self.about.get("devices", 1), self.settings.run_limit
        future = self.engine.measure(work.measure, *call, rounds, devices, limit)
        self.under_way[future] = batch

    def _beaten(self, config: Config, detail: Mapping[str, Any]) -> bool:
        """Return True if the peaks of the target exclude the configuration, and drop it then."""
        bound = detail.get("bound")
        high = None if self.best is None else self.best.high
        if bound is None or high is None or bound <= high:
            return False
        reason = f"takes {bound:.3g} s at the target's peaks, the best {high:.3g} s"
        self._keep(config, Trial({}, "pruned", reason=reason, detail=detail))
        return True

    # -- results of workers -------------------------------------------------------------------------

    def _take(self, future: Future[Any]) -> None:
        kind, job = self.under_way.pop(future)
        try:
            answer = future.result()
        except (CancelledError, KeyboardInterrupt):
            return
        except Failed as error:
            raise TuneError(f"cannot be tuned as it is: {error.text}") from None
        except (TuneStoreError, TuneWorkerError):
            raise
        except Exception as error:  # the engine's own words for a worker that is gone
            configs = [job] if kind == "compile" else [config for config, _ in job[0]]
            self._again(configs, error)
            return
        if kind == "compile":
            self._compiled(job, answer)
        else:
            self._measured(*job, *answer)

    def _again(self, configs: Sequence[Config], error: Exception) -> None:
        """Do work again that went with its worker; not for ever."""
        for config in configs:
            text = plain_text(config)
            self.lost[text] = self.lost.get(text, 0) + 1
            if sum(self.lost.values()) > 10 + self.wanted:
                raise TuneWorkerError(
                    f"workers are lost all the time, the last with: {error}",
                    remedy="The results so far are kept.",
                )
            if self.lost[text] > 2:
                reason = f"its worker was lost {self.lost[text]} times: {type(error).__name__}"
                self._keep(config, Trial({}, "bad", reason=reason))
            else:
                self._compile(config)

    def _same_build(self, answer: Mapping[str, Any]) -> None:
        versions = answer.get("versions", self.key.versions)
        if versions != self.key.versions:
            raise TuneWorkerError(
                "workers have different releases", expected=self.key.versions, got=versions
            )

    def _compiled(self, config: Config, answer: Mapping[str, Any]) -> None:
        self._same_build(answer)
        self.held.append((config, answer))
        if "compile_seconds" in answer["detail"]:
            self.compiled.append(answer["detail"]["compile_seconds"])
        if config == self.about["default"]:
            self.default = answer["detail"]
        waits = any(
            kind == "compile" and job == self.about["default"]
            for kind, job in self.under_way.values()
        )
        if not waits:
            held, self.held = self.held, []
            for one in held:
                self._judge(*one)

    def _judge(self, config: Config, answer: Mapping[str, Any]) -> None:
        """Return True if a configuration is worth a measurement, compared with the needs of the default."""
        status, reason, detail = answer["status"], answer["reason"], answer["detail"]
        value = answer.get("value")
        if status in ("ok", "compiled") and "num_warps" in detail:  # it was compiled
            why = work.pruned(detail, self.settings.limits(), self.default)
            if why:
                status, reason, value = "pruned", why, None
        if status == "compiled":
            if not self.ready:
                self.idle = time.monotonic()
            self.ready.append((config, detail))
            return
        self._keep(config, Trial({}, status, value, value, value, reason, detail))

    def _measured(
        self,
        batch: Sequence[Any],
        anchor: Optional[Trial],
        results: Sequence[Mapping[str, Any]],
        facts: Mapping[str, Any],
    ) -> None:
        self._same_build(facts)
        self.outcome.facts = dict(facts)
        drift = 1.0  # the drift of the best so far is that of these
        if anchor is not None and anchor.value and results[-1]["status"] == "ok":
            drift = results[-1]["value"] / anchor.value
        for (config, detail), result in zip(batch, results):
            trial = measured_trial(result, {**detail, **facts})
            self._keep(config, _scaled(trial, 1 / drift))

    def _keep(self, config: Config, trial: Trial, again: bool = False) -> None:
        whole = {**self.about["options"], **config}
        complete = replace(trial, config=whole, name=self.task.name, shape=self.shape)
        self.store.add(self.key, complete)
        if again:
            return
        self._tell(config, complete)
        self.done += 1
        cheap = complete.status == "pruned" and "compile_seconds" not in complete.detail
        if cheap and self.spare:  # it cost next to nothing: another one instead
            self.spare -= 1
            self.asked -= 1
            self.instead += 1
        self._consider(complete)
        done = self.done - self.instead
        pace = (time.monotonic() - self.began) / max(1, done)
        left = pace * max(0, self.wanted - done)
        if self.settings.seconds is not None:
            left = min(left, max(0.0, self.settings.seconds - (time.monotonic() - self.began)))
        state = Progress(self.shape, done, self.wanted, self.best, left, complete)
        self.progress(state)

    def _finals(self) -> None:
        """Measure the best ones once more, side by side and longer: the winner is not the luckiest."""
        if self.settings.objective != "time":
            return
        known = [trial for trial in self.store.of(self.key) if trial.status == "ok"]
        known = [trial for trial in known if self._bare(trial.config) in self.task.searched]
        if len(known) < 2:
            return
        best = [self._bare(trial.config) for trial in known[:4]]
        default = self.about["default"]
        if default is not None and default not in best:
            best += [self._bare(t.config) for t in known if self._bare(t.config) == default]
        before = {plain_text(self._bare(trial.config)): trial for trial in known}
        self._submit(best, self.settings.finals, ("finals", best))
        (future,) = self.under_way
        while not wait([future], 0.5).done:
            pass
        self.under_way.clear()
        try:
            results, facts = future.result()
        except (Ended, Failed, CancelledError, RuntimeError):
            return  # known results stay
        self._same_build(facts)
        changes = []
        for config, result in zip(best, results):
            old = before.pop(plain_text(config))
            final = measured_trial(result, {**old.detail, **facts, "final": True})
            self._keep(config, final, again=True)
            if final.value and old.value:
                changes.append(final.value / old.value)
        if changes:  # the device is another one than at the beginning, to the others as well
            drift = statistics.median(changes)
            self.store.add_all(self.key, [_scaled(trial, drift) for trial in before.values()])


def _does_not_fit(future: Future[Any]) -> bool:
    if future.cancelled() or future.exception() is not None:
        return False
    return bool(future.result()["detail"].get("large"))


def _scaled(trial: Trial, by: float) -> Trial:
    """Return a trial whose times are `by` times as long."""
    if trial.value is None or by == 1.0:
        return trial
    low, high = (None if bound is None else bound * by for bound in (trial.low, trial.high))
    return replace(trial, value=trial.value * by, low=low, high=high)


def measured_trial(result: Mapping[str, Any], detail: Mapping[str, Any]) -> Trial:
    numbers = (result.get("value"), result.get("low"), result.get("high"))
    facts = {k: v for k, v in detail.items() if k != "versions"}
    if "samples" in result:
        facts["samples"] = result["samples"]
    return Trial({}, result["status"], *numbers, result["reason"], facts)
