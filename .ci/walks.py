"""Count the stays and returns of the walks that a reader of this code takes, by running them.

    python .ci/walks.py [--list] [NAME ...]

A walk is a call, and the functions that it enters, in the order of their first entry: the text that a
reader of the call follows. Consecutive functions of one file are one stay there; a stay in a file that
was
left before is a return, so returns are stays less files. Functions of the packages whose walk it is
count, those of Triton, torch and the standard library do not; neither do comprehensions, nor the code
that a module runs on import. Every kernel is in the disk cache before, so that compilation does not
count; nor do calls by functions of the compiler package in a launch, nor functions below the emulator's
loop over instructions. A simulated launch is counted to the simulator's loop over ops, as the emulated one
is, and with the ops of its kernel.

A count by hand on another day, for comparison: an op 7 stays in 4 files, a launch miss 81 in 24, a
simulated launch 71 in 33, an emulated one 22 in 11. This counts 7 in 4, 83 in 32, 79 in 34 and 22 in
16 there.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Callable, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
GRID = (4,)
IN_C = {"(f) bundle, launch"}  # enters no function of Python where the engine in C is built
NO_FUNCTIONS = {"<module>", "<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>"}


class Walk(NamedTuple):
    """Functions in the order of their first entry, as (file, name)."""

    functions: list[tuple[str, str]]

    @property
    def stays(self) -> list[str]:
        files = [file for file, _ in self.functions]
        return [file for i, file in enumerate(files) if i == 0 or files[i - 1] != file]

    @property
    def files(self) -> int:
        return len(set(self.stays))

    def __str__(self) -> str:
        stays = len(self.stays)
        in_c = "" if stays else " (in C)"
        return f"{stays} stays, {self.files} files, {stays - self.files} returns{in_c}"


class Tracer:
    """Record the functions of packages that run within the block.

    Args:
        packages: whose functions count.
        above: names of functions, and folders of functions, below which nothing counts.
        start: the name of a function within which alone functions count, or "" for everywhere.
    """

    def __init__(self, *packages: str, above: tuple[str, ...] = (), start: str = ""):
        self.packages = packages
        self.folders = tuple(f"{os.sep}{package}{os.sep}" for package in packages)
        self.above, self.start = above, start
        self.closed = tuple(str(ROOT / folder) + os.sep for folder in above if "/" in folder)
        self.functions: dict[CodeType, tuple[str, str]] = {}
        self._outside = 0  # frames since one below which nothing counts
        self._inside = 0 if start else 1

    def __enter__(self) -> Tracer:
        sys.setprofile(self._event)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)

    @property
    def walk(self) -> Walk:
        """Return the walk.

        Raises:
            SystemExit: a package is not that of this checkout, so that nothing of it was traced.
        """
        for package in self.packages:
            file = str(getattr(sys.modules.get(package), "__file__", "not imported"))
            if not file.startswith(str(ROOT) + os.sep):
                raise SystemExit(f"nothing was traced: {package} is {file}, not in {ROOT}")
        return Walk(list(self.functions.values()))

    def _event(self, frame: FrameType, event: str, _: Any) -> None:
        if event not in ("call", "return"):
            return
        code, step = frame.f_code, 1 if event == "call" else -1
        name = getattr(code, "co_qualname", code.co_name)
        if event == "return" and self._outside:
            self._outside -= 1
        if self.start and (self._inside or name == self.start):
            self._inside += step
        if event == "return" or not self._inside:
            return
        if self._outside:
            self._outside += 1
            return
        if code.co_filename.startswith(str(ROOT)) and code.co_name not in NO_FUNCTIONS:
            file = code.co_filename.removeprefix(str(ROOT) + os.sep)
            if any(folder in os.sep + file for folder in self.folders):
                self.functions.setdefault(code, (file, name))
        below = name in self.above or code.co_filename.startswith(self.closed)
        if below or code.co_name == "<module>":
            self._outside = 1


def op() -> dict[str, Walk]:
    """Trace a call of `tma.async_load` in a kernel, to the builder."""
    import walk_kernels as kernels

    from gluon_core import language as gl
    from gluon_core.nvidia import NVMMASharedLayout
    from gluon_core.nvidia.hopper import TensorDescriptor
    from gluon_core.registry.load import registry
    from gluon_core.testing import MockTensor, run_parser

    layout = NVMMASharedLayout(128, 16, 2)
    described = TensorDescriptor(MockTensor(gl.float16), [256, 256], [256, 1], [64, 64], layout)
    target = registry().target("nvidia:sm_90")
    with Tracer("gluon_nvidia", start="async_load") as tracer:
        run_parser(kernels.load_tile, args=(described,), target=target)
    return {"(a) op": tracer.walk}


def launch() -> dict[str, Walk]:
    """Trace a launch of a kernel for arguments of an earlier launch, and for others."""
    import torch
    import walk_kernels as kernels

    from benchmarks.host_launch import use_fake_driver

    use_fake_driver()
    x, y = torch.zeros(2048), torch.zeros(2048)
    kernels.scale[GRID](x, y, 2048, 2.0, 512)
    walks = {}
    for name in ("(b) launch, miss", "(b) launch, hit"):
        with Tracer("gluon_core", "gluon_runtime", above=("gluon_core/compiler",)) as tracer:
            kernels.scale[GRID](x, y, 2047, 2.0, 512)
        walks[name] = tracer.walk
    return walks


def on_cpu(target: str, label: str, tracer: Tracer) -> dict[str, Walk]:
    import numpy as np
    import walk_kernels as kernels

    os.environ["GLUON_TARGET"] = target
    x = np.arange(2048, dtype=np.float32)
    y = np.zeros_like(x)
    for _ in range(2):
        kernels.scale[GRID](x, y, 2048, 2.0, 512)
    with tracer:
        kernels.scale[GRID](x, y, 2048, 2.0, 512)
    assert (y == 2 * x).all()
    return {label: tracer.walk}


def simulated() -> dict[str, Walk]:
    """Trace a simulated launch: from the arguments to the loop over ops, and to the end of the kernel."""
    to_loop = Tracer("gluon_sim", above=("run_block",))
    return {
        **on_cpu("sim:sm_90", "(c) simulated launch", to_loop),
        **on_cpu("sim:sm_90", "(c) simulated launch, with ops", Tracer("gluon_sim")),
    }


def emulated() -> dict[str, Walk]:
    """Trace an emulated launch: from the arguments to the loop over instructions."""
    tracer = Tracer("gluon_emu", above=("Machine._run",))
    return on_cpu("emu:gfx942", "(d) emulated launch", tracer)


def torch_op() -> dict[str, Walk]:
    """Trace a call of an operator of torch, to the launch of its kernel, which is a hit."""
    import torch
    import walk_kernels as kernels

    import gluon_torch
    from benchmarks.host_launch import use_fake_driver

    use_fake_driver()

    schema = "(Tensor x, Tensor(a!) out, float factor) -> ()"

    @gluon_torch.op("gluon_walks::scale", mutates_args=("out",), schema=schema)
    def scale(x: Any, out: Any, factor: float) -> None:
        kernels.scale[GRID](x, out, x.numel(), factor, 512)

    x, y = torch.zeros(2048), torch.zeros(2048)
    for _ in range(2):
        scale(x, y, 2.0)
    with Tracer("gluon_core", "gluon_torch", "gluon_runtime") as tracer:
        scale(x, y, 2.0)
    return {"(e) torch op": tracer.walk}


def bundle() -> dict[str, Walk]:
    """Trace a bundle of kernels: opened, prepared for arguments, launched."""
    import torch
    import walk_kernels as kernels

    from benchmarks.host_launch import use_fake_driver
    from gluon_core.bundle import Bundle
    from gluon_runtime import open_bundle

    target, driver = use_fake_driver()
    contents = Bundle()
    signature = {"x": "*fp32:16", "y": "*fp32:16", "n": "i32:16", "factor": "fp32"}
    contents.add(kernels.scale, signature, {"BLOCK": 512}, target=target, grid=4)
    x, y = torch.zeros(2048), torch.zeros(2048)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernels.glb"
        contents.write(path)
        steps: dict[str, Callable[[], Any]] = {
            "open": lambda: open_bundle(path, driver=driver),
            "prepare": lambda: opened["scale"].prepare(x, y, 2048, 2.0, grid=GRID),
            "launch": lambda: prepared(x, y, 2048, 2.0),
        }
        walks = {}
        opened, prepared = steps["open"](), None
        for name, step in steps.items():
            with Tracer("gluon_runtime") as tracer:
                result = step()
            walks[f"(f) bundle, {name}"] = tracer.walk
            opened, prepared = (result, None) if name == "open" else (opened, result)
    return walks


WALKS = {walk.__name__: walk for walk in (op, launch, simulated, emulated, torch_op, bundle)}


def measured(name: str) -> dict[str, Walk]:
    """Run a walk in a process of its own, twice: the first time fills the cache."""
    with tempfile.TemporaryDirectory() as cache:
        environment = {**os.environ, "TRITON_CACHE_DIR": cache}
        for _ in range(2):
            done = subprocess.run(
                [sys.executable, __file__, "--child", name],
                env=environment, capture_output=True, text=True, check=False,
            )  # fmt: skip
            if done.returncode:
                raise SystemExit(f"the walk {name!r} failed:\n{done.stdout}{done.stderr}")
    walks = json.loads(done.stdout.splitlines()[-1])
    empty = [label for label, functions in walks.items() if not functions and label not in IN_C]
    if empty:
        raise SystemExit(f"the walk {', '.join(empty)} met no function of its packages")
    return {label: Walk([(f, n) for f, n in functions]) for label, functions in walks.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=" ".join(WALKS))
    parser.add_argument("--list", action="store_true", help="name the functions")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    sys.path.insert(0, str(ROOT))
    if chosen.child:
        print(json.dumps({k: w.functions for k, w in WALKS[chosen.names[0]]().items()}))
        return
    for name in chosen.names or WALKS:
        for label, walk in measured(name).items():
            print(f"{label}: {walk}")
            previous = ""
            for file, function in walk.functions if chosen.list else ():
                print(f"    {'' if file == previous else file:50} {function}")
                previous = file


if __name__ == "__main__":
    main()
