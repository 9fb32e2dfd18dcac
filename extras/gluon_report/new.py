"""`gluon new`: a kernel, its test and its benchmark, which pass as they are written."""

from __future__ import annotations

import keyword
from pathlib import Path

from gluon_cli.output import Exit, UsageError

__all__ = ["show"]

_KERNEL = '''\
"""NAME: out = x * factor."""

import numpy as np

import gluon_core as gluon
from gluon_core import language as gl


@gluon.jit
def NAME(x, out, n, factor, BLOCK: gl.constexpr):
    """One program for each BLOCK of the n elements that x and out point to."""
    # Which thread holds which element: here, neighbours touch neighbouring vectors of 16 bytes.
    layout: gl.constexpr = gl.portable.blocked_layout([BLOCK], x.dtype.element_ty)
    offsets = gl.program_id(0) * BLOCK + gl.arange(0, BLOCK, layout=layout)
    inside = offsets < n
    gl.store(out + offsets, gl.load(x + offsets, mask=inside) * factor, mask=inside)


def launch(x, out, factor, target=None, block=1024, num_warps=4):
    """Launch NAME on arrays of the same size: torch tensors on a GPU, or NumPy's on the simulator."""
    n = x.size if isinstance(x, np.ndarray) else x.numel()
    grid = (-(-n // block),)
    NAME[grid](x, out, n, factor, block, num_warps=num_warps, target=target)


def reference(x, factor):
    """Compute the result of NAME in NumPy."""
    return x * np.float32(factor)


if __name__ == "__main__":
    x = np.arange(3000, dtype=np.float32)
    out = np.empty_like(x)
    launch(x, out, 0.5)
    assert (out == reference(x, 0.5)).all()
    print(f"{out[:4]}: right")
'''

_TEST = '''\
"""NAME against NumPy: under many schedules of the simulator, and on the GPU where there is one."""

import numpy as np
import pytest
from NAME import launch, reference

SIZES = (1, 1000, 4096)


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.gluon_targets(TARGETS)
def test_NAME(gluon_place, n):
    x = np.random.default_rng(0).standard_normal(n, dtype=np.float32)
    out = gluon_place.empty(n, "float32")
    launch(gluon_place.array(x), out, 0.5)
    np.testing.assert_array_equal(gluon_place.numpy(out), reference(x, 0.5))


@pytest.mark.gluon_schedules(5)
def test_NAME_under_schedules():
    x = np.ones(3000, np.float32)
    out = np.empty_like(x)
    launch(x, out, 2.0)
    assert (out == 2).all()
'''

_BENCH = '''\
"""How fast NAME is: bytes per second on the GPU; without one, the simulator's counts."""

import numpy as np
from NAME import launch, reference

from gluon_report.example import Arrays, device_target, measure


def bench(n):
    target = device_target()
    if target is None:
        x = np.ones(min(n, 1 << 16), np.float32)
        out = np.empty_like(x)
        launch(x, out, 2.0)
        assert (out == reference(x, 2.0)).all()
        print(f"{x.size} elements: right on the simulator; there is no GPU to measure")
        return
    x, out = Arrays(target).random(n), Arrays(target).empty(n)
    seconds = measure(lambda: launch(x, out, 2.0, target), target)
    print(f"{n} elements on {target}: {seconds * 1e6:.1f} us, {8 * n / seconds / 1e12:.2f} TB/s")


if __name__ == "__main__":
    for power in (16, 20, 24, 28):
        bench(1 << power)
        if device_target() is None:
            print("gluon run NAME.py --profile shows the traffic of each line")
            break
'''


def show(name: str, folder: Path) -> int:
    """Write the three files.

    Raises:
        UsageError: no name of a module, or a file is there already.
    """
    if not name.isidentifier() or keyword.iskeyword(name) or name in ("launch", "reference"):
        raise UsageError(
            "must be a name that Python can import, and not launch or reference",
            argument="NAME",
            got=repr(name),
            remedy="Try letters, digits and _, such as row_sum.",
        )
    texts = {f"{name}.py": _KERNEL, f"test_{name}.py": _TEST, f"bench_{name}.py": _BENCH}
    for file in texts:
        if (folder / file).exists():
            raise UsageError("already exists", argument="NAME", got=str(folder / file))
    folder.mkdir(parents=True, exist_ok=True)
    targets = ", ".join(f'"{spec}"' for spec in _some_targets()) or '"sim"'
    for file, text in texts.items():
        written = text.replace("NAME", name).replace("TARGETS", targets)
        (folder / file).write_text(written, encoding="utf-8")
    where = "" if folder == Path() else f"{folder}/"
    print(f"wrote {', '.join(where + file for file in texts)}; now try")
    print(f"  gluon run {where}{name}.py --check")
    print(f"  python -m pytest {where}test_{name}.py")
    print(f"  python {where}bench_{name}.py")
    return Exit.OK


def _some_targets() -> list[str]:
    """Return an architecture of each vendor that is installed."""
    from gluon_core.registry.load import registry

    targets: dict[str, str] = {}
    for arch in registry().architectures():
        targets.setdefault(arch.backend, arch.name)
    default = registry().default_architecture()
    return [default.name, *(name for vendor, name in targets.items() if vendor != default.backend)]
