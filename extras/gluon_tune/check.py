"""Check that the best configurations are still as fast."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Mapping, Optional

from gluon_tune import work
from gluon_tune.engine import Engine, Local
from gluon_tune.session import Settings, about_device, key_of, measured_trial
from gluon_tune.task import Reference, Task, refuse_while_reading
from gluon_tune.tuned.store import Key, Store, Trial

__all__ = ["Checked", "check"]


@dataclass(frozen=True)
class Checked:
    """A configuration that was the best, measured again.

    Args:
        key, trial: as it was kept.
        now: as it is; its `status` is not "ok" where it does not run any more.
        slower: whether it is slower than its interval and the tolerance allow.
    """

    key: Key
    trial: Trial
    now: Trial
    slower: bool


def check(
    task: Task | Reference,
    settings: Optional[Settings] = None,
    *,
    engine: Optional[Engine] = None,
    store: Optional[Store] = None,
    tolerance: float = 0.05,
) -> list[Checked]:
    """Measure (or count) the best of each shape again.

    Args:
        tolerance: how much slower one may be, relative.

    Returns:
        One for each shape of which something is known; none where nothing is.
    """
    refuse_while_reading()
    settings = settings or Settings()
    reference = Reference.of(task) if isinstance(task, Task) else task
    loaded = task if isinstance(task, Task) else reference.load()
    used, kept = engine or Local(1), store or Store()
    checks = []
    try:
        for shape in loaded.shapes:
            key, about = key_of(about_device(reference, shape, settings, used), settings)
            best = kept.best(key)
            if best is None:
                continue
            config = {n: v for n, v in best.config.items() if n in loaded.searched.values}
            call = (reference, settings.target, shape)
            answer: Mapping[str, Any]
            if settings.objective == "time":
                more = (settings.finals, about["devices"], settings.run_limit)
                (answer,), facts = used.measure(work.measure, *call, [config], *more).result()
            else:
                limits = settings.limits()
                answer = used.compile(
                    work.compile_one, *call, config, settings.objective, limits
                ).result()
                facts = answer["detail"]
            now = replace(measured_trial(answer, facts), config=best.config)
            checks.append(Checked(key, best, now, _slower(best, now, tolerance)))
    finally:
        if engine is None:
            used.close()
        if store is None:
            kept.close()
    return checks


def _slower(before: Trial, now: Trial, tolerance: float) -> bool:
    if now.status != "ok" or now.value is None or before.value is None:
        return True
    low = now.value if now.low is None else now.low
    high = before.value if before.high is None else before.high
    return now.value > before.value * (1 + tolerance) and low > high
