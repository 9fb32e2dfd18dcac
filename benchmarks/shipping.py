"""Measure the cost of shipping: an op of torch against its launch, a launch out of a bundle, and the
start of a process that launches a hundred kernels, out of a bundle and against upstream with a warm
disk cache.

    python benchmarks/shipping.py [ops] [shapes] [bundle] [cold] [tune]

Needs a GPU.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Callable

import torch

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

from common import host_us  # noqa: E402

KERNELS = 100
HEAD = """
@{jit}
def k{i}(x, y, n, BLOCK: {gl}.constexpr):
    at = {gl}.program_id(0) * BLOCK + {gl}.arange(0, BLOCK, {gl}.BlockedLayout([1], [32], [4], [0]))
    {gl}.store(y + at, {gl}.load(x + at, mask=at < n) * {i} + {i}, mask=at < n)
"""


def ops() -> None:
    """Measure an eager op against its launch and an empty op of the same schema."""
    from tests.torch import ops_for_tests as test_ops

    @torch.library.custom_op("benchmark::empty", mutates_args=("out",))
    def empty(x: torch.Tensor, out: torch.Tensor, factor: float) -> None:
        pass

    x = torch.randn(200, device="cuda")
    out, kernel = torch.empty_like(x), test_ops.scale_kernel
    nothing, whole = torch.ops.benchmark.empty.default, test_ops.scale_into
    times = host_us(
        {
            "launch": lambda: kernel[(1,)](x, out, 200, 2.0, BLOCK=256),
            "empty": lambda: nothing(x, out, 2.0),
            "op": lambda: whole(x, out, 2.0),
        },
        random.Random(0),
    )
    both = times["launch"] + times["empty"]
    print(
        f"op {times['op']:.2f} us; launch {times['launch']:.2f} + empty op {times['empty']:.2f}: "
        f"{times['op'] / both:.3f} of both (wanted <= 1.1)"
    )


def shapes() -> None:
    """Graph breaks and compilations of ten ops over a hundred shapes."""
    from torch._dynamo.testing import CompileCounterWithBackend

    from tests.torch import ops_for_tests as library
    from tests.torch.attention_op import attention

    def into(x: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        library.scale_into(x, out, 2.0)
        return out

    def tall(x: torch.Tensor) -> torch.Tensor:
        return x[None] + torch.ones(3, 1, device=x.device)

    def heads(x: torch.Tensor) -> torch.Tensor:
        return (x[:, None] + torch.ones(1, 16, device=x.device))[None, None]

    def gradient(function: Callable[[torch.Tensor], torch.Tensor]) -> Callable[..., Any]:
        return lambda x: torch.autograd.grad(function(x.requires_grad_()).square().sum(), x)[0]

    works: dict[str, Callable[[torch.Tensor], Any]] = {
        "elementwise": lambda x: library.scale(x, 2.0),
        "elementwise, gradient": lambda x: library.scale(x, 2.0),
        "elementwise, in place": into,
        "elementwise, of launches": lambda x: library.scale_seen(x, 2.0),
        "norm": lambda x: library.norm(tall(x), x, 1e-6)[0],
        "norm, gradient": lambda x: library.norm(tall(x), x, 1e-6)[0],
        "norm, backward": lambda x: library.norm_backward(tall(x), tall(x), x, x[:3])[0],
        "matmul": lambda x: library.matmul(x[:, None].half(), x[None, :].half()),
        "attention": lambda x: attention(heads(x), heads(x), heads(x), True)[0],
        "attention, gradient": lambda x: attention(heads(x), heads(x), heads(x), True)[0],
    }
    for name, work in works.items():
        torch._dynamo.reset()
        counter = CompileCounterWithBackend("inductor")
        compiled = torch.compile(work, backend=counter, fullgraph=True, dynamic=True)
        differ = 0.0
        for n in range(5, 205, 2):
            x = torch.randn(n, device="cuda")
            if name.endswith("gradient"):
                result, wanted = gradient(compiled)(x), gradient(work)(x.detach().clone())
            else:
                result, wanted = compiled(x), work(x)
            differ = max(differ, float((result - wanted).abs().max()))
        print(
            f"{name}: 100 shapes, 0 graph breaks (fullgraph), {counter.frame_count - 1} recompiles, "
            f"largest difference {differ:.1e}",
            flush=True,
        )


def bundle() -> None:
    """Measure launches out of a bundle against a prepared one of the core."""
    from gluon_bundle import Bundle
    from gluon_core.registry.load import registry
    from gluon_runtime import open_bundle
    from tests.bundle import kernels

    target = registry().backend("nvidia").device.target()
    bundle = Bundle()
    bundle.add(
        kernels.scale, {**kernels.SCALE, "n": "i32:16"}, kernels.HOPPER, target=target, grid=4
    )
    path = Path(tempfile.mkdtemp()) / "kernels.glb"
    bundle.write(path)
    kernel = open_bundle(path)["scale"]
    x = torch.randn(2048, device="cuda")
    y, layout = torch.zeros_like(x), kernels.L32
    ours = kernels.scale.prepare(x, y, 2048, 2.0, 512, layout, grid=(4,))
    theirs = kernel.prepare(x, y, 2048, 2.0, grid=(4,))
    times = host_us(
        {
            "prepared": lambda: ours(x, y, 2048, 2.0, 512, layout),
            "bundled, prepared": lambda: theirs(x, y, 2048, 2.0),
            "bundled, [grid]": lambda: kernel[(4,)](x, y, 2048, 2.0),
        },
        random.Random(0),
    )
    for name, spent in times.items():
        print(f"{name}: {spent:.2f} us, {spent / times['prepared']:.2f} of the prepared launch")


def write_kernels(folder: Path) -> None:
    body = {
        "ours": "import gluon_core as gluon\nfrom gluon_core import language as gl\n",
        "theirs": "from triton.experimental import gluon\n"
        "from triton.experimental.gluon import language as gl\n",
    }
    for name, text in body.items():
        text += "".join(HEAD.format(jit="gluon.jit", gl="gl", i=i) for i in range(KERNELS))
        (folder / f"{name}.py").write_text(text)


TIMED = """
import sys, time
sys.path.insert(0, {folder!r})
import torch
x = torch.ones(256, device="cuda"); y = torch.zeros_like(x); torch.cuda.synchronize()
begin = time.perf_counter()
{body}
torch.cuda.synchronize()
print(time.perf_counter() - begin)
"""
BODIES = {  # in the order of importance
    "gluon_runtime": """
from gluon_runtime import open_bundle
opened = open_bundle({bundle!r})
for i in range({count}):
    opened[f"k{{i}}"][1](x, y, 256, 256)
""",
    "upstream with a warm disk cache": """
import theirs
for i in range({start}, {count}):
    getattr(theirs, f"k{{i}}")[(1,)](x, y, 256, 256)
""",
    "gluon_core with GLUON_BUNDLE": """
import ours
for i in range({count}):
    getattr(ours, f"k{{i}}")[1](x, y, 256, 256)
""",
    "gluon_core with a warm disk cache": """
import ours
for i in range({count}):
    getattr(ours, f"k{{i}}")[1](x, y, 256, 256)
""",
}


def cold() -> None:
    """Seconds beyond importing torch, until a hundred kernels have run."""
    folder = Path(tempfile.mkdtemp())
    write_kernels(folder)
    environment = {**os.environ, "TRITON_CACHE_DIR": str(folder / "cache")}
    path = folder / "kernels.glb"

    def run(name: str, **more: Any) -> float:
        job = {"bundle": str(path), "count": KERNELS, "start": 0, **more}
        program = TIMED.format(folder=str(folder), body=BODIES[name].format(**job))
        extra = {"GLUON_BUNDLE": str(path), "GLUON_NO_JIT": "1"} if "BUNDLE" in name else {}
        done = subprocess.run(
            [sys.executable, "-c", program],
            env={**environment, **extra},
            capture_output=True,
            text=True,
        )
        if done.returncode:
            raise RuntimeError(f"{name}: {done.stderr[-1500:]}")
        return float(done.stdout)

    os.environ.update(environment)
    sys.path.insert(0, str(folder))
    import ours  # type: ignore[import-not-found]

    from gluon_bundle import Bundle
    from gluon_core.registry.load import registry

    target = registry().backend("nvidia").device.target()
    bundle = Bundle()
    begin = time.perf_counter()
    for i in range(KERNELS):
        signature = {"x": "*fp32:16", "y": "*fp32:16", "n": "i32:16"}
        bundle.add(getattr(ours, f"k{i}"), signature, {"BLOCK": 256}, target=target, grid=1)
    bundle.write(path)
    print(f"bundle of {KERNELS} kernels made in {time.perf_counter() - begin:.1f} s")
    pieces = [(start, start + 10) for start in range(0, KERNELS, 10)]
    with ThreadPoolExecutor(10) as pool:  # warms upstream's cache
        theirs = "upstream with a warm disk cache"
        list(pool.map(lambda piece: run(theirs, start=piece[0], count=piece[1]), pieces))
    for name in BODIES:
        runs = [run(name) for _ in range(2)]
        print(f"cold start, {name}: {min(runs):.3f} s", flush=True)


def tune() -> None:
    """Seconds of the first call of a kernel with sixteen configurations, one after the other and side by
    side."""
    for workers in ("1", ""):
        with tempfile.TemporaryDirectory() as folder:
            environment = {**os.environ, "TRITON_CACHE_DIR": folder}
            environment["GLUON_COMPILE_WORKERS"] = workers
            command = [sys.executable, __file__, "tuned"]
            done = subprocess.run(command, env=environment, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(done.stderr[-1500:])
        how = "one after the other" if workers else "on all cores"
        print(f"triton.autotune over 16 configurations, compiled {how}: {done.stdout.strip()} s")


def tuned() -> None:
    import triton

    import gluon_core as gluon
    from gluon_core import language as gl

    @gluon.jit
    def rows(x, y, n, COLUMNS: gl.constexpr, VECTOR: gl.constexpr):
        layout: gl.constexpr = gl.BlockedLayout([VECTOR], [32], [gl.num_warps()], [0])
        column = gl.arange(0, COLUMNS, layout)
        offsets, inside = gl.program_id(0) * n + column, column < n
        value = gl.load(x + offsets, mask=inside, other=-float("inf"))
        weight = gl.exp(value - gl.max(value, 0))
        gl.store(y + offsets, weight / gl.sum(weight, 0), mask=inside)

    configurations = [
        triton.Config({"COLUMNS": columns, "VECTOR": vector}, num_warps=warps)
        for columns in (1024, 2048)
        for vector in (2, 4)
        for warps in (1, 2, 4, 8)
    ]
    x = torch.randn(64, 1000, device="cuda")
    y = torch.zeros_like(x)
    kernel = triton.autotune(configurations, key=["n"])(rows)
    begin = time.perf_counter()
    kernel[(64,)](x, y, 1000)
    torch.cuda.synchronize()
    print(f"{time.perf_counter() - begin:.2f}")
    torch.testing.assert_close(y, torch.softmax(x, 1))


if __name__ == "__main__":
    parts = {"ops": ops, "shapes": shapes, "bundle": bundle, "cold": cold, "tune": tune}
    known = {**parts, "tuned": tuned}
    unknown = [word for word in sys.argv[1:] if word not in known]
    if unknown:
        sys.exit(f"unknown part: {', '.join(unknown)}; the parts are {', '.join(parts)}")
    for part in sys.argv[1:] or parts:
        known[part]()
