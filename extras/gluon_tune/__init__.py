"""Search for the configuration of a kernel that does best: `gluon tune`, and launches with `config="tuned"`.

    from gluon_core import tune

    TUNE = tune.Task(
        kernel=scale,
        space=tune.space(BLOCK=[256, 512, 1024], num_warps=[2, 4, 8]),
        arguments=lambda new, n: {"x": new.random(n), "y": new.empty(n), "n": n},
        grid=lambda args, config: (-(-args["n"] // config["BLOCK"]),),
        shapes=[{"n": 2**24}],
    )

`gluon tune FILE` searches; `scale[grid](x, y, n, config="tuned")` launches the best result.
"""

import importlib as _importlib
import typing as _typing

if _typing.TYPE_CHECKING:
    from gluon_tune.bench import Arrays, Placeholders, device_target, numpy_of, times
    from gluon_tune.session import Outcome, Settings, search
    from gluon_tune.spaces import Space, configs_of, space
    from gluon_tune.task import Task
    from gluon_tune.tuned import Key, Store, Trial

__all__ = [
    "Arrays",
    "Key",
    "Outcome",
    "Placeholders",
    "Settings",
    "Space",
    "Store",
    "Task",
    "Trial",
    "configs_of",
    "device_target",
    "numpy_of",
    "search",
    "space",
    "times",
]

_MODULES = {
    "Arrays": "bench",
    "Key": "tuned",
    "Outcome": "session",
    "Placeholders": "bench",
    "Settings": "session",
    "Space": "spaces",
    "Store": "tuned",
    "Task": "task",
    "Trial": "tuned",
    "configs_of": "spaces",
    "device_target": "bench",
    "numpy_of": "bench",
    "search": "session",
    "space": "spaces",
    "times": "bench",
}


def __getattr__(name: str) -> _typing.Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(_importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
