"""The host's time per launch: `kernel[grid](3 tensors, int, constexpr)`, a prepared handle, upstream
Gluon, and the same launch from C, in a loop and one per Python call; then the same with three
host-side TMA descriptors. All in one run, in turns; needs an NVIDIA GPU.

    python benchmarks/launch_overhead.py [--json] [--only tensors|descriptors] [--seconds 16]

The kernel does next to nothing, so the device never holds the host up; batches are short of the
driver's queue, and waiting for them is not timed. The tables come as soon as they are measured, each within
half of the seconds; compilation, whose steps go to stderr, takes a few seconds more.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib.util
import json
import shutil
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import time
from pathlib import Path
from typing import Any, Callable, Optional

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch  # noqa: E402

import gluon_core as gluon  # noqa: E402
from gluon_core import language as gl  # noqa: E402

BATCH = 400
ROUNDS, FEWEST = 60, 5
GRID = (1,)
TENSORS = "kernel[grid](...) <= 1.20, of 20 arguments <= 1.4, the handle <= 1.03"
DESCRIPTORS = "kept <= 1.5, made anew <= 2.2; the one in C is of tensors"
UPSTREAM = "upstream kernel[grid](...)"
STARTED = time.monotonic()

C_SOURCE = """
#include <Python.h>
typedef int (*launch_t)(const void *, void *, void **, void **);
static PyObject *many(PyObject *module, PyObject *args) {
    unsigned long long launch, config, function, parameters;
    int n, status = 0;
    if (!PyArg_ParseTuple(args, "iKKKK", &n, &launch, &config, &function, &parameters)) return NULL;
    for (int i = 0; i < n; ++i)
        status |= ((launch_t)launch)((void *)config, (void *)function, (void **)parameters, 0);
    return PyLong_FromLong(status);
}
static PyMethodDef methods[] = {{"many", many, METH_VARARGS, ""}, {0}};
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "raw_launch", 0, -1, methods};
PyMODINIT_FUNC PyInit_raw_launch(void) { return PyModule_Create(&module); }
"""


@gluon.jit
def ours(x, y, out, n, BLOCK: gl.constexpr):
    if n < 0:
        gl.store(out, gl.load(x) + gl.load(y) + BLOCK)


@gluon.jit
def ours_of_twenty(
    a, b, c, d, e, f, g, h, i, j, k, u, m, n, o, p, q, r, FIRST: gl.constexpr, SECOND: gl.constexpr
):
    if i < 0:
        gl.store(a, gl.load(b) + q + r + j + FIRST)


@gluon.jit
def ours_described(a, b, c, out, n):
    if n < 0:
        gl.store(out, a.shape[0] + b.shape[0] + c.shape[0])


def theirs() -> Optional[tuple[Any, Any]]:
    """Return the same kernels in upstream Gluon, None where it is not installed."""
    try:
        from triton.experimental import gluon as upstream
        from triton.experimental.gluon import language as ugl
    except ImportError:
        return None
    globals()["ugl"] = ugl

    @upstream.jit
    def kernel(x, y, out, n, BLOCK: ugl.constexpr):
        if n < 0:
            ugl.store(out, ugl.load(x) + ugl.load(y) + BLOCK)

    @upstream.jit
    def described(a, b, c, out, n):
        if n < 0:
            ugl.store(out, a.shape[0] + b.shape[0] + c.shape[0])

    return kernel, described


def raw_loop(
    compiled: Any, arguments: tuple, stream: Optional[int] = None
) -> Optional[Callable[[int], None]]:
    """`run(n)`: n launches from a loop in C; None without a C compiler."""
    from gluon_nvidia import driver
    from gluon_runtime.libcuda import Config

    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        return None
    folder = Path(tempfile.mkdtemp())
    (folder / "raw_launch.c").write_text(C_SOURCE)
    include = f"-I{sysconfig.get_paths()['include']}"
    command = [compiler, "-O2", "-shared", "-fPIC", include, "-o", "raw_launch.so", "raw_launch.c"]
    subprocess.run(command, cwd=folder, check=True)
    spec = importlib.util.spec_from_file_location("raw_launch", folder / "raw_launch.so")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)

    values = [a.data_ptr() if hasattr(a, "data_ptr") else a for a in arguments]
    slots = (ctypes.c_uint64 * (len(values) + 2))(*values)  # two of scratch memory
    pointers = (ctypes.c_void_p * len(slots))()
    pointers[:] = [ctypes.addressof(slots) + 8 * place for place in range(len(slots))]
    config = Config(grid=(*GRID, 1, 1), block=(32 * compiled.metadata.num_warps, 1, 1))
    config.shared = compiled.metadata.shared
    config.stream = torch.cuda.current_stream().cuda_stream if stream is None else stream
    entry = ctypes.cast(driver.driver().calls.cuLaunchKernelEx, ctypes.c_void_p).value
    many, operands = (
        module.many,
        (entry, ctypes.addressof(config), compiled.function, ctypes.addressof(pointers)),
    )

    kept = compiled, arguments, slots, pointers, config  # `operands` has their addresses

    def run(count: int) -> None:
        status = many(count, *operands)
        assert status == 0 and kept, status

    return run


def time_of(run: Callable[[int], None]) -> float:
    torch.cuda.synchronize()
    begin = time.perf_counter()
    run(BATCH)
    spent = time.perf_counter() - begin
    torch.cuda.synchronize()
    return spent / BATCH


def repeated(call: Callable[[], Any]) -> Callable[[int], None]:
    def run(count: int) -> None:
        for _ in range(count):
            call()

    return run


def with_tensors() -> dict[str, Callable[[int], None]]:
    """Return contenders, `run(n)` by name."""
    x, y, out = (torch.zeros(1024, device="cuda") for _ in range(3))
    n = 1000
    compiled = ours[GRID](x, y, out, n, BLOCK=128)
    handle = ours.prepare(x, y, out, n, BLOCK=128, grid=GRID)
    contenders: dict[str, Callable[[int], None]] = {}
    raw = raw_loop(compiled, (x, y, out, n))
    if raw is not None:
        contenders["loop in C"] = raw
        contenders["one launch in C"] = repeated(lambda: raw(1))
    contenders["kernel[grid](...)"] = repeated(lambda: ours[GRID](x, y, out, n, BLOCK=128))
    contenders["kernel[grid](..., num_warps=4)"] = repeated(
        lambda: ours[GRID](x, y, out, n, BLOCK=128, num_warps=4)
    )
    contenders["kernel[lambda](...)"] = repeated(
        lambda: ours[lambda meta: (1,)](x, y, out, n, BLOCK=128)
    )
    contenders["prepared handle"] = repeated(lambda: handle(x, y, out, n, 128))
    eight = [torch.zeros(64, device="cuda") for _ in range(8)]
    contenders["kernel[grid](20 arguments)"] = repeated(
        lambda: ours_of_twenty[GRID](*eight, 2, 3, 4, 5, 6, 7, 8, 9, 1.5, 2.5, 64, True)
    )
    upstream = theirs()
    if upstream is not None:
        contenders[UPSTREAM] = repeated(lambda: upstream[0][GRID](x, y, out, n, BLOCK=128))
    contenders["an empty lambda"] = repeated(lambda: None)
    return contenders


def with_descriptors() -> dict[str, Callable[[int], None]]:
    """Return the same for three host-side descriptors: kept, and made anew for every launch."""
    from gluon_core.nvidia import NVMMASharedLayout
    from gluon_core.nvidia.hopper import TensorDescriptor

    tensors = [torch.zeros(256, 256, dtype=torch.float16, device="cuda") for _ in range(3)]
    out = torch.zeros(1, dtype=torch.int32, device="cuda")
    layout = NVMMASharedLayout(128, 16, 2)

    def make() -> list[TensorDescriptor]:
        return [TensorDescriptor.from_tensor(t, [64, 64], layout) for t in tensors]

    a, b, c = make()
    x, y = torch.zeros(64, device="cuda"), torch.zeros(64, device="cuda")
    compiled = ours[GRID](x, y, x, 1000, BLOCK=128)
    raw = raw_loop(compiled, (x, y, x, 1000))
    handle = ours_described.prepare(a, b, c, out, 1000, grid=GRID)
    contenders: dict[str, Callable[[int], None]] = {}
    if raw is not None:
        contenders["one launch in C"] = repeated(lambda: raw(1))
    contenders |= {
        "3 descriptors, kernel[grid](...)": repeated(
            lambda: ours_described[GRID](a, b, c, out, 1000)
        ),
        "3 descriptors, prepared handle": repeated(lambda: handle(a, b, c, out, 1000)),
        "3 descriptors made anew, kernel[grid](...)": repeated(
            lambda: ours_described[GRID](*make(), out, 1000)
        ),
    }
    upstream = theirs()
    if upstream is not None:
        from triton.experimental.gluon import language as ugl
        from triton.experimental.gluon.nvidia.hopper import TensorDescriptor as Theirs

        their_layout = ugl.NVMMASharedLayout(128, 16, 2)

        def make_theirs() -> list[Any]:
            return [Theirs.from_tensor(t, [64, 64], their_layout) for t in tensors]

        x, y, z = make_theirs()
        contenders[f"3 descriptors, {UPSTREAM}"] = repeated(
            lambda: upstream[1][GRID](x, y, z, out, 1000)
        )
        contenders[f"3 descriptors made anew, {UPSTREAM}"] = repeated(
            lambda: upstream[1][GRID](*make_theirs(), out, 1000)
        )
    return contenders


def in_turns(contenders: dict[str, Callable[[int], None]], seconds: float) -> dict[str, float]:
    """Return the median of a contender's batches, in microseconds per launch.

    Args:
        seconds: after which no round begins, but for the fewest.
    """
    end = time.monotonic() + seconds
    for name, run in contenders.items():
        time_of(run)  # compiles what is not compiled
        progress(name)
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for done in range(ROUNDS):
        if done >= FEWEST and time.monotonic() > end:
            break
        for name, run in contenders.items():
            times[name].append(time_of(run))
    progress(f"{len(times[name])} rounds")
    return {name: statistics.median(samples) * 1e6 for name, samples in times.items()}


def progress(text: str) -> None:
    print(f"{time.monotonic() - STARTED:5.1f} s: {text}", file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument(
        "--json", action="store_true", help="for machines, an object for each table"
    )
    parser.add_argument("--only", choices=("tensors", "descriptors"))
    parser.add_argument("--seconds", type=float, default=16, help="of both tables")
    chosen = parser.parse_args()
    tables = {"tensors": (with_tensors, TENSORS), "descriptors": (with_descriptors, DESCRIPTORS)}
    if torch.cuda.get_device_capability() < (9, 0):
        del tables["descriptors"]
    for name, (contenders, wanted) in tables.items():
        if chosen.only in (None, name):
            times = in_turns(contenders(), chosen.seconds / 2)
            print(json.dumps(times) if chosen.json else table(times, wanted), flush=True)


def table(times: dict[str, float], wanted: str) -> str:
    raw = times.get("one launch in C")
    lines = ["| launch | us | of one in C | of upstream |", "| --- | ---: | ---: | ---: |"]
    for name, spent in times.items():
        theirs_of = f"{name.rpartition(', ')[0]}, {UPSTREAM}"
        upstream = times.get(theirs_of, times.get(UPSTREAM))
        shares = (f"{spent / other:.2f}" if other else "" for other in (raw, upstream))
        lines.append(f"| {name} | {spent:.2f} | {' | '.join(shares)} |")
    return "\n".join([*lines, "", f"Wanted, of one launch in C: {wanted}.", ""])


if __name__ == "__main__":
    main()
