"""Search for the configuration of a kernel that does best: `gluon tune`, and launches with `config="tuned"`.

    import gluon_tune as tune

    TUNE = tune.Task(
        kernel=scale,
        space=tune.space(BLOCK=[256, 512, 1024], num_warps=[2, 4, 8]),
        arguments=lambda new, n: {"x": new.random(n), "y": new.empty(n), "n": n},
        grid=lambda args, config: (-(-args["n"] // config["BLOCK"]),),
        shapes=[{"n": 2**24}],
    )

`gluon tune FILE` searches; `scale[grid](x, y, n, config="tuned")` launches what was found.
"""

from __future__ import annotations

from gluon_core.launch.bench import Arrays, Placeholders, device_target, numpy_of, times
from gluon_tune.session import Outcome, Settings, search
from gluon_tune.space import Space, configs_of, space
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
