"""Measure the seconds to import and to compile, against Triton's own Gluon: one kernel at a time, and
many.

No device is needed: kernels are compiled for sm_90. Small kernels alternate within one process, so
that a busy machine slows both; whole batches alternate process by process, each with an empty cache.

    python benchmarks/compile.py               all of it
    python benchmarks/compile.py --identity 5  the look-up of a kernel of 500 lines in the cache, in as many processes
    python benchmarks/compile.py --imports 20  the import alone, this many times each, with and without torch
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import textwrap
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

TARGET = 90

HEAD = """
import gluon_core as gluon
from gluon_core import language as gl
"""

COPY = """
@gluon.jit
def copy{i}(x, y, n, B: gl.constexpr, L: gl.constexpr):
    o = gl.program_id(0) * B + gl.arange(0, B, layout=L)
    v = gl.load(x + o, mask=o < n)
    gl.store(y + o, v * {scale} + {shift}, mask=o < n)
"""

SOFTMAX = """
@gluon.jit
def softmax{i}(x, y, n, R: gl.constexpr, B: gl.constexpr, L: gl.constexpr):
    r = gl.program_id(0) * R + gl.arange(0, R, layout=gl.SliceLayout(1, L))
    c = gl.arange(0, B, layout=gl.SliceLayout(0, L))
    o = r[:, None] * n + c[None, :]
    m = (c < n)[None, :]
    v = gl.load(x + o, mask=m, other=-float("inf")) * {scale}
    v = v - gl.max(v, 1)[:, None]
    e = gl.exp(v)
    gl.store(y + o, e / gl.sum(e, 1)[:, None], mask=m)
"""

SIGNATURE = {"x": "*fp32", "y": "*fp32", "n": "i32"}
ATTRS = {(i,): [["tt.divisibility", 16]] for i in range(3)}


def constants(name: str, i: int, gl: Any) -> dict[str, Any]:
    if name == "copy":
        return {"B": 128 << (i % 5), "L": gl.BlockedLayout([1 << (i % 3)], [32], [4], [0])}
    layout = gl.BlockedLayout([1, 1 << (i % 3)], [1, 32], [4, 1], [1, 0])
    return {"R": 1 << (i % 3), "B": 512 << (i % 2), "L": layout}


def sources(count: int) -> str:
    """Return a file of `count` different kernels, three small ones to each softmax."""
    parts = [HEAD]
    for i in range(count):
        body = SOFTMAX if i % 4 == 3 else COPY
        parts.append(body.format(i=i, scale=1.5 + i, shift=0.25 * i))
    return "".join(parts)


def kernel_name(i: int) -> str:
    return "softmax" if i % 4 == 3 else "copy"


def module(text: str, name: str) -> Any:
    """`text` imported from a file, as kernels must be."""
    import importlib.util

    path = Path(tempfile.mkdtemp()) / f"{name}.py"
    path.write_text(text)
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


def ours(loaded: Any, i: int, name: str) -> dict[str, Any]:
    import gluon_core as gluon
    from gluon_core import language as gl

    del gluon
    return {
        "fn": getattr(loaded, f"{name}{i}"),
        "target": f"sm_{TARGET}",
        "signature": SIGNATURE,
        "constexprs": constants(name, i, gl),
        "attrs": ATTRS,
    }


def upstream(loaded: Any, i: int, name: str) -> None:
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.experimental.gluon import language as gl
    from triton.experimental.gluon._runtime import GluonASTSource

    values = constants(name, i, gl)
    signature = {**SIGNATURE, **dict.fromkeys(values, "constexpr")}
    source = GluonASTSource(
        fn=getattr(loaded, f"{name}{i}"), signature=signature, constexprs=values, attrs=ATTRS
    )
    triton.compile(source, target=GPUTarget("cuda", TARGET, 32), options={"num_warps": 4})


# -- measurements of a child process ---------------------------------------------------------------


def alternating(count: int) -> None:
    """Print, per kind of kernel, median milliseconds of ours and of upstream's."""
    import upstream as upstream_files

    import gluon_core as gluon

    for name in ("copy", "softmax"):
        body = COPY if name == "copy" else SOFTMAX
        text = HEAD + "".join(body.format(i=i, scale=1.5 + i, shift=0.25 * i) for i in range(count))
        mine = module(text, f"mine_{name}")
        theirs = module(upstream_files.to_upstream(text), f"theirs_{name}")

        def one(side: int, i: int) -> None:
            if side:
                upstream(theirs, i, name)  # noqa: B023 - called at once
            else:
                gluon.compile(**ours(mine, i, name))  # noqa: B023

        spent: tuple[list[float], list[float]] = ([], [])
        for i in range(count):
            for side in (0, 1) if i % 2 else (1, 0):
                begun = time.perf_counter()
                one(side, i)
                spent[side].append(time.perf_counter() - begun)
        print(*(1e3 * statistics.median(side[2:]) for side in spent))


def importing(package: str) -> tuple[Any, float, float]:
    """Return the seconds that a file of kernels needs, and those of the processor."""
    begun, spent = time.perf_counter(), time.process_time()
    if package == "ours":
        import gluon_core as gluon
        from gluon_core import language as gl
    else:
        from triton.experimental import gluon
        from triton.experimental.gluon import language as gl
    gl.float32, gluon.jit  # noqa: B018 - names are found when they are asked for
    return gluon, time.perf_counter() - begun, time.process_time() - spent


def batch(package: str, count: int) -> None:
    """Print seconds of: the import, the first kernel, `count` kernels."""
    gluon, imported, _ = importing(package)
    text = sources(count)
    if package == "upstream":
        import upstream as upstream_files

        text = upstream_files.to_upstream(text)
    loaded = module(text, "many")
    begun = time.perf_counter()
    if package == "ours":
        gluon.compile(**ours(loaded, 0, "copy"))
    else:
        upstream(loaded, 0, "copy")
    first = time.perf_counter() - begun
    begun = time.perf_counter()
    if package == "ours":
        kernels = gluon.compile_many([ours(loaded, i, kernel_name(i)) for i in range(1, count)])
        assert len(kernels) == count - 1
    else:
        for i in range(1, count):
            upstream(loaded, i, kernel_name(i))
    print(imported, first, time.perf_counter() - begun)


def child(*arguments: str) -> list[list[float]]:
    """Return the lines of numbers that this file prints when it is run so, with empty caches; and a
    last one, the seconds of processors' time that it took with its children."""
    with tempfile.TemporaryDirectory() as folder:
        environment = dict(os.environ, TRITON_CACHE_DIR=folder, HOME=folder)
        command = [sys.executable, "-W", "ignore", __file__, *arguments]
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        raise SystemExit(textwrap.indent(done.stderr[-2000:], "  "))
    spent = after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
    numbers = [[float(number) for number in line.split()] for line in done.stdout.splitlines()]
    return [*numbers, [spent]]


LONG = """
    offs_{i} = gl.arange(0, B, layout=gl.SliceLayout(1, L)) + pid * B + {i}
    mask_{i} = (offs_{i} < n) & (SCALE > {i})
    value_{i} = gl.load(x + offs_{i} * stride, mask=mask_{i}, other=0.0)
    gl.store(y + offs_{i}, scaled(value_{i}), mask=mask_{i})
"""


def identified() -> None:
    """Print the milliseconds that a long kernel's first identity takes, and those of the next."""
    import gluon_core
    from gluon_core.registry.load import registry

    head = f"{HEAD}SCALE = gl.constexpr(2)\n\n@gluon.jit\ndef scaled(v):\n    return v * SCALE\n\n"
    body = "".join(LONG.strip("\n").format(i=i) + "\n" for i in range(125))
    function = (
        f"@gluon.jit\ndef long(x, y, n, pid, stride, B: gl.constexpr, L: gl.constexpr):\n{body}"
    )
    kernel = module(head + function, "long").long
    signature = {**SIGNATURE, "pid": "i32", "stride": "i32"}
    layout = gluon_core.language.BlockedLayout([1], [32], [4], [0])
    source = gluon_core.GluonASTSource(kernel, signature, {"B": 128, "L": layout})
    registry()  # loading the plugins is no part of it
    for _ in range(2):
        begun = time.perf_counter()
        source.identity()
        print(1e3 * (time.perf_counter() - begun))


def identities(processes: int) -> bool:
    """Print how long the identity of a kernel of 500 lines takes; return whether that is too long."""
    rows = [child("--child", "identity") for _ in range(processes)]
    least = [min(row[column][0] for row in rows) for column in range(2)]
    print("| identity of a kernel of 500 lines | ms | wanted |")
    print("| --- | ---: | --- |")
    for label, milliseconds in zip(("first in a process", "again"), least):
        print(f"| {label} | {milliseconds:.2f} | <= 2 |")
    return max(least) > 2


def imports(turns: int) -> bool:
    """Print how long the import takes, in processes of each kind in turns; return True if it takes too
    long."""
    missed = False
    print("| import | ours | upstream | least, ours / upstream | median | wanted |")
    print("| --- | --- | --- | --- | --- | --- |")
    for libraries in ("", "torch"):
        seconds: dict[str, list[list[float]]] = {"ours": [], "upstream": []}
        for _ in range(turns):
            for package, rows in seconds.items():
                rows.append(child("--child", "import", package, libraries)[0])
        for column, unit in enumerate(("seconds", "processor time")):
            least, middle = (
                {package: f([row[column] for row in rows]) for package, rows in seconds.items()}
                for f in (min, statistics.median)
            )
            shares = [side["ours"] / side["upstream"] for side in (least, middle)]
            wanted = 1.1 if column else None  # seconds are those of a machine that others use, too
            missed |= wanted is not None and shares[0] > wanted
            print(
                f"| {unit}{', torch imported before' if libraries else ''} | "
                f"{1e3 * least['ours']:.0f} ms | {1e3 * least['upstream']:.0f} ms | "
                f"{shares[0]:.2f} | {shares[1]:.2f} | {f'<= {wanted}' if wanted else ''} |"
            )
    return missed


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kernels", type=int, default=100, help="of a batch")
    parser.add_argument("--each", type=int, default=30, help="kernels that alternate, of each kind")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--imports", type=int, metavar="N", help="the import alone, N times each")
    parser.add_argument(
        "--identity", type=int, metavar="N", help="a kernel's identity, in N processes"
    )
    parser.add_argument("--child", nargs="*", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.imports:
        return int(imports(options.imports))
    if options.identity:
        return int(identities(options.identity))
    if options.child:
        kind, *rest = options.child
        if kind == "identity":
            identified()
            return 0
        if kind == "import":
            if rest[1]:
                __import__(rest[1])
            print(*importing(rest[0])[1:])
            return 0
        alternating(int(rest[0])) if kind == "alternating" else batch(rest[0], int(rest[1]))
        return 0
    turns = range(options.turns)
    rows: dict[str, tuple[list[float], list[float], str, float]] = {}
    for _ in turns:
        for name, numbers in zip(
            ("small kernel", "softmax kernel"), child("--child", "alternating", str(options.each))
        ):
            row = rows.setdefault(name, ([], [], "ms", 1.0))
            row[0].append(numbers[0])
            row[1].append(numbers[1])
    for _ in turns:
        both = [
            sum(child("--child", "batch", package, str(options.kernels)), [])
            for package in ("ours", "upstream")
        ]
        names = ("import", "first kernel", f"{options.kernels} kernels", "their processors' time")
        for index, (name, bound) in enumerate(zip(names, (None, 1.0, 0.6, None))):
            row = rows.setdefault(name, ([], [], "s", bound or float("inf")))
            row[0].append(both[0][index])
            row[1].append(both[1][index])
    missed = False
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    print(f"Load of the machine ({os.cpu_count()} processors) at the end: {load}\n")
    print(
        "| measured | ours | upstream | ours / upstream | wanted |\n| --- | --- | --- | --- | --- |"
    )
    for name, (mine, theirs, unit, bound) in rows.items():
        left, right = statistics.median(mine), statistics.median(theirs)
        wanted = f"<= {bound:g}" if bound != float("inf") else ""
        missed |= left / right > bound
        print(
            f"| {name} | {left:.3g} {unit} | {right:.3g} {unit} | {left / right:.2f} | {wanted} |"
        )
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
