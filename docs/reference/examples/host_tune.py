import tempfile
from pathlib import Path

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core import tune
from gluon_core.registry.load import registry

folder = Path(tempfile.mkdtemp())
SIMULATED = registry().target("sim:hopper")


@gluon.jit
def ones(x, n, BLOCK: gl.constexpr):
    i = gl.program_id(0) * BLOCK + gl.arange(0, BLOCK, gl.BlockedLayout([1], [32], [4], [0]))
    gl.store(x + i, 1.0, mask=i < n)


# -- gluon.tune.space, gluon.tune.Space: values of constants and compile options, and which go together
space = tune.space(BLOCK=[128, 256, 512], num_stages=[1, 2], when=lambda BLOCK, num_stages: BLOCK < 512 or num_stages == 1)
print(isinstance(space, tune.Space), len(list(space)), space.values)
#> True 5 {'BLOCK': (128, 256, 512), 'num_stages': (1, 2)}

# -- gluon.tune.configs_of: the same of kernels that are tuned with Triton's decorator
import triton

known = [triton.Config({"BLOCK": size}, num_warps=4) for size in (128, 256)]
print([one["BLOCK"] for one in tune.configs_of(triton.autotune(known, key=["n"])(ones))])
#> [128, 256]

# -- gluon.tune.Task, gluon.tune.Arrays, gluon.tune.Placeholders, gluon.tune.numpy_of: a kernel, its search space, and its arguments
TUNE = tune.Task(
    kernel=ones,
    space=tune.space(BLOCK=[128, 256]),
    arguments=lambda new, n: {"x": new.empty(n), "n": n},
    grid=lambda args, config: (-(-args["n"] // config["BLOCK"]),),
    shapes=[{"n": 1000}],
)
arguments = TUNE.arguments(tune.Arrays(SIMULATED), n=1000)
scalars = TUNE.arguments(tune.Placeholders(), n=1000)
print(tune.numpy_of(arguments["x"]).shape, scalars["n"], TUNE.grid(arguments, {"BLOCK": 256}))
#> (1000,) 1000 (4,)

# -- gluon.tune.search, gluon.tune.Settings, gluon.tune.Outcome, gluon.tune.Store: the search; `gluon tune FILE` makes it, too
from gluon_core.tune.task import Reference

file = folder / "tasks.py"
file.write_text(
    "import gluon_core as gluon\nfrom gluon_core import language as gl, tune\n\n@gluon.jit\n"
    "def zeros(x, BLOCK: gl.constexpr):\n"
    "    gl.store(x + gl.arange(0, BLOCK, gl.BlockedLayout([1], [32], [4], [0])), 0.0)\n\n"
    "TUNE = tune.Task(zeros, lambda new, n: {'x': new.empty(n)}, lambda args, config: (1,),\n"
    "                 tune.space(BLOCK=[128, 4096]), shapes=[{'n': 4096}])\n"
)
store = tune.Store(folder / "results.db")
settings = tune.Settings(target="hopper", objective="registers")
(best,) = tune.search(Reference.to(str(file)), settings, store=store)
print(isinstance(best, tune.Outcome), best.tried, best.best.config)
#> True 2 {'BLOCK': 128}

# -- gluon.tune.Key, gluon.tune.Trial: the content of a store: the searches, and each configuration with its result
print(isinstance(best.key, tune.Key), best.key.target, best.key.objective)
print(isinstance(best.best, tune.Trial), best.best.status, best.best.value > 0)
#> True nvidia:sm_90 registers
#> True ok True

# -- gluon.tune.device_target, gluon.tune.times: the device to measure on, if there is one
device = tune.device_target()
print("no device" if device is None else len(tune.times(lambda: None, device, 3)) and "no device")
#> no device
