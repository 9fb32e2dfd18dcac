"""Two checkouts of this project, measured in turns in random order: no GPU is needed.

    python benchmarks/before_after.py OLD [NEW] [--rounds 5] [--only launch,import,...] [--seed 0]

OLD is a folder or a commit; NEW is another, or this tree where it is left out. Both are built as wheels and
unpacked into folders of their own, so this Python needs Triton, torch and hatchling, and no gluon package. Launches end in a
driver that does nothing: two processes on one core, one for each checkout, make batches of them in random order, so that
other work on the machine meets both; the medians are in nanoseconds. All other times are the least of the rounds, each in a
process of its own: the import, cold compilation and the demo in seconds of processor time, with their children, and so are
two simulated kernels; the simulator's table in seconds, by the checkout's own simulator.py. Ends with 1 where a ratio is
above 1.02.
"""

from __future__ import annotations

import argparse
import json
import operator
import os
import random
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path
from typing import Any, Callable, Iterator

HERE = Path(__file__).resolve().parent
MOST = 1.02
GRID = (4,)
BATCH, BATCHES = 200, 60  # of launches, and of a round
KINDS = ("launch", "miss", "import", "compile", "simulated", "demo", "simulator", "wheels")
SIMULATED = 6  # cases of simulator.py: those with Triton's interpreter as a rival


# -- in a process of one checkout --------------------------------------------------------------------


def first_import(*names: str) -> Any:
    """Return the first of several modules that this checkout has."""
    import importlib

    for name in names[:-1]:
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError:
            pass
    return importlib.import_module(names[-1])


def use_fake_driver() -> tuple[Any, Any]:
    """Make launches end in a driver that does nothing; return the target and the runtime's driver."""
    from fake_driver import library

    from gluon_nvidia import driver
    from gluon_runtime.cuda import CudaDriver

    registry = first_import("gluon_core.registry.load", "gluon_core.contract.registry").registry()
    backend = registry.backend("nvidia")
    calls = library()
    driver._state = driver.Driver(calls)
    device = backend if callable(backend.device) else backend.device
    type(device).tensor_device = CudaDriver.tensor_device = "cpu"
    driver.stream_getter = lambda: operator.index  # in C: device 0 gives stream 0
    CudaDriver.stream = staticmethod(operator.index)  # type: ignore[method-assign,assignment]
    target = backend.device() if device is backend else device.target()
    return target, CudaDriver(calls)


def launches() -> dict[str, Callable[[], Any]]:
    """Return launches that are hits, an operator, and launches of bundles."""
    import before_after_kernels as kernels
    import torch

    from gluon_core.nvidia import NVMMASharedLayout
    from gluon_core.nvidia.hopper import TensorDescriptor
    from gluon_runtime import open_bundle

    target, runtime_driver = use_fake_driver()
    x, y = torch.zeros(2048), torch.zeros(2048)
    layout = kernels.LAYOUT
    bundle = bundle_of(target, runtime_driver, open_bundle)
    op = torch_op()
    prepared = kernels.scale.prepare(x, y, 2048, 2.0, 512, layout, grid=GRID)
    bundled = bundle.prepare(x, y, 2048, 2.0, grid=GRID)
    boxes = NVMMASharedLayout(128, 16, 2)
    tensors = [torch.zeros(256, 256, dtype=torch.float16) for _ in range(3)]

    def descriptors() -> list[Any]:
        return [TensorDescriptor.from_tensor(each, [64, 64], boxes) for each in tensors]

    a, b, c = descriptors()
    described = kernels.described.prepare(a, b, c, x, 1000, grid=GRID)
    return {
        "launch, hit": lambda: kernels.scale[GRID](x, y, 2048, 2.0, 512, layout),
        "launch, hit, option": lambda: kernels.scale[GRID](
            x, y, 2048, 2.0, 512, layout, num_warps=4
        ),
        "launch, prepared": lambda: prepared(x, y, 2048, 2.0, 512, layout),
        "3 descriptors, hit": lambda: kernels.described[GRID](a, b, c, x, 1000),
        "3 descriptors, made anew": lambda: kernels.described[GRID](*descriptors(), x, 1000),
        "3 descriptors, prepared": lambda: described(a, b, c, x, 1000),
        "operator of torch": lambda: op(x, y, 2.0),
        "bundle, hit": lambda: bundle[GRID](x, y, 2048, 2.0),
        "bundle, prepared": lambda: bundled(x, y, 2048, 2.0),
    }


def bundle_of(target: Any, driver: Any, open_bundle: Callable[..., Any]) -> Any:
    import before_after_kernels as kernels

    contents = first_import("gluon_bundle", "gluon_core.compiler.bundle").Bundle()
    signature = {"x": "*fp32:16", "y": "*fp32:16", "n": "i32:16", "factor": "fp32"}
    constants = {"BLOCK": 512, "LAYOUT": kernels.LAYOUT}
    contents.add(kernels.scale, signature, constants, target=target, grid=4)
    path = Path(tempfile.mkdtemp()) / "kernels.glb"
    contents.write(path)
    return open_bundle(path, driver=driver)["scale"]


def torch_op() -> Any:
    import before_after_kernels as kernels

    def scale(x: Any, out: Any, factor: float) -> None:
        kernels.scale[GRID](x, out, 2048, factor, 512, kernels.LAYOUT)

    make = first_import("gluon_torch", "gluon_core.torch").op
    schema = "(Tensor x, Tensor(a!) out, float factor) -> ()"
    return make("before_after::scale", scale, mutates_args=("out",), schema=schema)


def answer(calls: dict[str, Callable[[], Any]]) -> None:
    """Print the names of calls, then for each name that is read the nanoseconds of such a call in a batch."""
    print(json.dumps(list(calls)), flush=True)
    for line in sys.stdin:
        call = calls[line.strip()]
        for _ in range(BATCH // 10):
            call()
        begin = time.perf_counter_ns()
        for _ in range(BATCH):
            call()
        print((time.perf_counter_ns() - begin) / BATCH, flush=True)


def miss() -> dict[str, float]:
    """Nanoseconds of a launch for which a kernel is in the cache on disk alone: median of many."""
    import before_after_kernels as kernels
    import torch

    use_fake_driver()
    spent = []
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        x, y = torch.zeros(4096, dtype=dtype), torch.zeros(4096, dtype=dtype)
        for n in (2048, 2047, 1):
            for block in (256, 512, 1024):
                begin = time.perf_counter_ns()
                kernels.scale[GRID](x, y, n, 2.0, block, kernels.LAYOUT)
                spent.append(time.perf_counter_ns() - begin)
    return {"launch, miss": statistics.median(spent[1:]), "launch, first": float(spent[0])}


def imported() -> dict[str, float]:
    begin = time.process_time()
    import gluon_core as gluon
    from gluon_core import language as gl

    gl.float32, gluon.jit  # noqa: B018 - names are looked up when they are asked for
    return {"import": time.process_time() - begin}


def compiled() -> dict[str, float]:
    """Seconds of processor time for a first kernel and 15 more."""
    import before_after_kernels as kernels

    import gluon_core as gluon
    from gluon_core import language as gl

    spent = [processor_time()]
    for i in range(8):
        gluon.compile(
            kernels.scale,
            target="sm_90",
            signature={"x": "*fp32:16", "y": "*fp32:16", "n": "i32", "factor": "fp32"},
            constexprs={"BLOCK": 128 << i, "LAYOUT": kernels.LAYOUT},
        )
        spent.append(processor_time())
        gluon.compile(
            kernels.softmax,
            target="sm_90",
            signature={"x": "*fp32:16", "y": "*fp32:16", "n": "i32"},
            constexprs={
                "ROWS": 1 << (i % 4),
                "BLOCK": 256 << (i // 4),
                "LAYOUT": gl.BlockedLayout([1, 1 << (i % 3)], [1, 32], [4, 1], [1, 0]),
            },
        )
    return {"compile, first": spent[1] - spent[0], "compile, 15 more": processor_time() - spent[1]}


def processor_time() -> float:
    used = [resource.getrusage(scope) for scope in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


def simulated() -> dict[str, float]:
    """Seconds of processor time of simulated launches with all checks, which other work on the machine does not change."""
    import before_after_kernels as kernels
    import numpy as np

    from gluon_core import language as gl

    os.environ["GLUON_TARGET"] = "sim:sm_80"
    x = np.random.default_rng(0).random(1 << 18, np.float32)
    y = np.empty_like(x)
    rows = gl.BlockedLayout([1, 4], [1, 32], [4, 1], [1, 0])
    calls = {
        "simulated, scale": lambda: kernels.scale[(512,)](x, y, x.size, 2.0, 512, kernels.LAYOUT),
        "simulated, softmax": lambda: kernels.softmax[(256,)](x, y, 256, 4, 256, rows),
    }
    spent = dict.fromkeys(calls, float("inf"))
    for name, call in calls.items():
        call()
        for _ in range(15):
            begin = time.process_time()
            call()
            spent[name] = min(spent[name], time.process_time() - begin)
    return spent


def demo() -> dict[str, float]:
    from importlib.metadata import entry_points

    (command,) = entry_points(group="console_scripts", name="gluon")
    program = f"import sys; from {command.module} import {command.attr} as main; sys.exit(main())"
    done = subprocess.run(
        [sys.executable, "-c", program, "demo"], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(done.stdout + done.stderr)
    return {"gluon demo": processor_time()}


MEASURES = {
    "miss": miss,
    "import": imported,
    "compile": compiled,
    "simulated": simulated,
    "demo": demo,
}
COLD = ("compile", "demo")  # with an empty cache; the others keep one for each checkout


# -- both checkouts ------------------------------------------------------------------------------------


class Checkout:
    """A checkout, built and unpacked below a folder.

    Attributes:
        site: value of `PYTHONPATH`.
        wheels: name of a distribution -> bytes of its wheel.
    """

    def __init__(self, root: Path, folder: Path):
        self.copy, self.site, self.cache = folder / "copy", folder / "site", folder / "cache"
        # A build leaves files in its sources: those of the checkout stay as they are.
        left_out = shutil.ignore_patterns(
            ".git", ".tox", ".venv*", "build", "dist", "*.so", "__pycache__", "docs"
        )
        shutil.copytree(root, self.copy, ignore=left_out)
        wheels = folder / "wheels"
        for project in projects(self.copy):
            command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps"]
            command += ["--no-build-isolation", "--wheel-dir", str(wheels), str(project)]
            subprocess.run(command, check=True)
        self.wheels = {}
        for wheel in sorted(wheels.glob("*.whl")):
            self.wheels[wheel.name.partition("-")[0]] = float(wheel.stat().st_size)
            with zipfile.ZipFile(wheel) as file:
                file.extractall(self.site)

    def environment(self, cache: str, target: str) -> dict[str, str]:
        """Return the environment of a program that uses the checkout; "" as the target for none."""
        threads = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
        own = {"PYTHONPATH": str(self.site), "TRITON_CACHE_DIR": cache, "GLUON_TARGET": target}
        known = {**os.environ, **own, **dict.fromkeys(threads, "1")}
        if not target:
            del known["GLUON_TARGET"]
        return known

    def run(self, *arguments: str, cold: bool = False) -> dict[str, float]:
        """Return the last line of a program's output, read as JSON."""
        elsewhere = "simulator" in arguments[0] or {"demo", "import"} & {*arguments}
        with tempfile.TemporaryDirectory() as folder:
            done = subprocess.run(
                [sys.executable, *arguments],
                env=self.environment(
                    folder if cold else str(self.cache), "" if elsewhere else "nvidia:sm_90"
                ),
                cwd=folder, capture_output=True, text=True, check=False,
            )  # fmt: skip
        if done.returncode:
            raise SystemExit(f"{' '.join(arguments)} in {self.copy}:\n{done.stdout}{done.stderr}")
        return dict(json.loads(done.stdout.splitlines()[-1]))

    def launching(self) -> subprocess.Popen[str]:
        """Start a process that makes launches, see `answer`."""
        return subprocess.Popen(
            [sys.executable, __file__, "--child", "launch", str(self.site)],
            env=self.environment(str(self.cache), "nvidia:sm_90"),
            cwd=self.cache.parent, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def measure(self, kind: str) -> dict[str, float]:
        name, _, case = kind.partition(" ")
        if name != "simulator":
            return self.run(__file__, "--child", name, str(self.site), cold=name in COLD)
        result: Any = self.run(str(self.copy / "benchmarks" / "simulator.py"), "--case", case)
        return {f"simulator, case {case}, {k}": v for k, v in result["seconds"].items()}


def projects(root: Path) -> Iterator[Path]:
    for pattern in ("pyproject.toml", "*/pyproject.toml", "*/*/pyproject.toml"):
        for file in sorted(root.glob(pattern)):
            if "[build-system]" in file.read_text():
                yield file.parent


def tasks(kinds: list[str], rounds: int, seed: int) -> list[tuple[str, str]]:
    """Return (kind, side) for all rounds in random order, but the sides of a pair next to each other."""
    chosen = [kind for kind in kinds if kind in MEASURES]
    if "simulator" in kinds:
        chosen += [f"simulator {case}" for case in range(SIMULATED)]
    dice = random.Random(seed)
    times = {kind: rounds * (5 if kind == "import" else 1) for kind in chosen}
    pairs = [(kind, dice.sample(("old", "new"), 2)) for kind in chosen for _ in range(times[kind])]
    dice.shuffle(pairs)
    return [(kind, side) for kind, sides in pairs for side in sides]


def in_pairs(sides: dict[str, Checkout], rounds: int, seed: int) -> dict[str, dict[str, float]]:
    """Return the median nanoseconds of each launch on each side; batches of the sides follow each other in random order."""
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(cores)})  # of the children, too
    running = {side: checkout.launching() for side, checkout in sides.items()}

    def ask(side: str, name: str = "") -> str:
        process = running[side]
        assert process.stdin is not None and process.stdout is not None
        if name:
            process.stdin.write(f"{name}\n")
            process.stdin.flush()
        line = process.stdout.readline()
        if not line:
            raise SystemExit(f"the launches of {side} ended")
        return line

    names = {side: json.loads(ask(side)) for side in running}["new"]
    dice, spent = random.Random(seed), {side: {name: [] for name in names} for side in sides}
    for _ in range(rounds * BATCHES):
        for name in names:
            for side in dice.sample(list(sides), 2):
                spent[side][name].append(float(ask(side, name)))
    os.sched_setaffinity(0, cores)
    for process in running.values():
        process.kill()
    return {
        side: {name: statistics.median(times) for name, times in known.items()}
        for side, known in spent.items()
    }


def files_of(commit: str, folder: Path) -> Path:
    """Write the files of a commit of this repository into `folder`."""
    archive = subprocess.run(
        ["git", "-C", str(HERE.parent), "archive", commit], stdout=subprocess.PIPE, check=False
    )
    if archive.returncode:
        raise SystemExit(f"{commit!r} is neither a folder nor a commit of {HERE.parent}")
    folder.mkdir(parents=True)
    subprocess.run(["tar", "-x", "-C", str(folder)], input=archive.stdout, check=True)
    return folder


def compare(old: str, new: str, kinds: list[str], rounds: int, seed: int) -> int:
    with tempfile.TemporaryDirectory() as folder:
        sides = {}
        for name, place in (("old", old), ("new", new)):
            files = Path(place)
            if not files.is_dir():
                files = files_of(place, Path(folder) / name / "files")
            sides[name] = Checkout(files.resolve(), Path(folder) / name)
        best: dict[str, dict[str, float]] = {"old": {}, "new": {}}
        if "launch" in kinds:
            best = in_pairs(sides, rounds, seed)
        if "miss" in kinds:  # fills the caches
            for checkout in sides.values():
                checkout.measure("miss")
        for kind, side in tasks(kinds, rounds, seed):
            for name, value in sides[side].measure(kind).items():
                best[side][name] = min(value, best[side].get(name, value))
            print(f"{kind}: {side}", file=sys.stderr)
        for side, checkout in sides.items() if "wheels" in kinds else ():
            sizes = checkout.wheels
            best[side]["wheel of gluon_core, bytes"] = sizes["gluon_core"]
            best[side]["all wheels, bytes"] = sum(sizes.values())
    return judged(best)


def judged(best: dict[str, dict[str, float]]) -> int:
    """Print what was measured of both sides and their ratios; return 1 where one is above the most."""
    print("| measured | old | new | new / old |\n| --- | ---: | ---: | ---: |")
    worse = []
    for name in best["new"]:
        before, after = best["old"][name], best["new"][name]
        ratio = after / before
        print(f"| {name} | {before:,.4g} | {after:,.4g} | {ratio:.3f} |")
        if ratio > MOST:
            worse.append(name)
    print(f"\n{len(worse)} above {MOST}{': ' if worse else ''}{', '.join(worse)}")
    return 1 if worse else 0


def check_site(site: str) -> None:
    import gluon_core

    if not str(gluon_core.__file__).startswith(site):
        raise SystemExit(f"{gluon_core.__file__} is not in {site}: use a Python without gluon-core")


def child(kind: str, site: str) -> None:
    check_site(site)
    if kind == "launch":
        answer(launches())
    else:
        print(json.dumps(MEASURES[kind]()))


def main() -> int:
    if sys.argv[1:2] == ["--child"]:
        if sys.argv[2] == "import":
            print(json.dumps(imported()))
        else:
            child(*sys.argv[2:])
        return 0
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("old", help="a folder or a commit")
    parser.add_argument("new", nargs="?", default=str(HERE.parent), help="the same")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default=",".join(KINDS), help="some of " + ",".join(KINDS))
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args()
    return compare(chosen.old, chosen.new, chosen.only.split(","), chosen.rounds, chosen.seed)


if __name__ == "__main__":
    sys.exit(main())
