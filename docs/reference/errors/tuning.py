import os
import sqlite3

import numpy as np
from show_error import folder, show_error

import gluon_core as gluon
from gluon_core import errors, tune
from gluon_core import language as gl
from gluon_core.tune.task import Reference


@gluon.jit
def ones(x, BLOCK: gl.constexpr):
    gl.store(x + gl.arange(0, BLOCK, gl.BlockedLayout([1], [32], [4], [0])), 1.0)


# A search imports the file of its task, so that stands in a file of its own.
(folder / "tasks.py").write_text(
    """
import gluon_core as gluon
from gluon_core import language as gl, tune

@gluon.jit
def zeros(x, BLOCK: gl.constexpr):
    gl.store(x + gl.arange(0, BLOCK, gl.BlockedLayout([1], [32], [4], [0])), 0.0)

TUNE = tune.Task(
    kernel=zeros,
    space=tune.space(BLOCK=[128, 256]),
    arguments=lambda new, n: {"x": new.empty(n)},
    grid=lambda args, config: (1,),
    shapes=[{"n": 256}],
)
"""
)
task = Reference.to(str(folder / "tasks.py"))
store = tune.Store(folder / "found.db")


# -- TuneError: take one of those that the message names; it is the base of those below, too
wrong = tune.Settings(objective="register")
show_error(errors.TuneError, lambda: tune.search(task, wrong, store=store))
#> TuneError: objective: not an objective; expected time, predicted, roofline, instructions, registers, got 'register'. Did you mean 'registers'?

# -- TuneWorkerError: search where there is such a device, or count: `--objective roofline`
elsewhere = tune.Settings(target="gfx1250")
show_error(errors.TuneWorkerError, lambda: tune.search(task, elsewhere, store=store))
#> TuneWorkerError: objective: there is no amd:gfx1250 to measure on. Without a device, let the time be predicted or something be counted: --objective predicted, roofline, instructions or registers.

# -- TuneSpaceError: give each name at least one value, and let `when` allow some of them
show_error(errors.TuneSpaceError, lambda: tune.space(BLOCK=[]))
#> TuneSpaceError: BLOCK: no values to choose from

# -- TuneStoreError: give another file: one that `gluon tune` wrote, or none yet
(folder / "notes.db").write_text("These are notes, and no database of results.\n" * 40)
show_error(errors.TuneStoreError, lambda: tune.Store(folder / "notes.db"))
#> TuneStoreError: the store notes.db cannot be opened: file is not a database. Name another file with --store or GLUON_TUNE_STORE.

# -- TuneStoreVersionError: read it with the release that wrote it, or search again into another file
tune.Store(folder / "newer.db").close()
with sqlite3.connect(folder / "newer.db") as base:
    base.execute("pragma user_version=9")
show_error(errors.TuneStoreVersionError, lambda: tune.Store(folder / "newer.db"))
#> TuneStoreVersionError: newer.db was written by another release; expected format 2, got format 9. Use another file (--store, GLUON_TUNE_STORE), or the release that wrote it and its `gluon tune --export`.

# -- NotTunedError: search before (`gluon tune`), or take `config="tuned:nearest"`
os.environ["GLUON_TUNE_STORE"] = str(folder / "empty.db")
tune.Store(folder / "empty.db").close()
x = np.zeros(128, np.float32)
show_error(errors.NotTunedError, lambda: ones[(1,)](x, config="tuned", target="sim:hopper"))
del os.environ["GLUON_TUNE_STORE"]
#> NotTunedError: config: no configuration of ones is known for this call; expected one for nvidia:sm_90, x=*fp32, got none in empty.db. Run `gluon tune` for it, take the nearest with config='tuned:nearest', or give BLOCK: a launch falls back to given values.
