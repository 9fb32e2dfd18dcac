"""The kernels whose times are predicted and measured: operators of `gluon_kernels` and a copy, at fixed sizes."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, replace
from typing import Any, Callable, Iterator, Optional

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core.launch.jit import GluonJITFunction

__all__ = ["CASES", "SIZES", "Case", "Launch", "configurations"]


@gluon.jit
def copy(src, dst, n, BLOCK: gl.constexpr, layout: gl.constexpr):
    """Copy n elements."""
    offsets = gl.program_id(0) * BLOCK + gl.arange(0, BLOCK, layout=layout)
    mask = offsets < n
    gl.store(dst + offsets, gl.load(src + offsets, mask=mask), mask=mask)


@dataclass(frozen=True)
class Launch:
    """One launch: `kernel[grid](*arguments, **options)`."""

    kernel: Any
    grid: Any
    arguments: tuple[Any, ...]
    options: dict[str, Any]

    def __call__(self, **more: Any) -> Any:
        return self.kernel[self.grid](*self.arguments, **{**self.options, **more})

    def warmup(self, **more: Any) -> Any:
        return self.kernel.warmup(*self.arguments, **{**self.options, **more})


@contextlib.contextmanager
def _noted(launches: list[Launch]) -> Iterator[None]:
    """Append to `launches` those that operators prepare."""
    prepare = GluonJITFunction.prepare

    def noting(self: Any, *args: Any, grid: Any, **options: Any) -> Any:
        launches.append(Launch(self, grid, args, options))
        return prepare(self, *args, grid=grid, **options)

    GluonJITFunction.prepare = noting  # type: ignore[method-assign]
    try:
        yield
    finally:
        GluonJITFunction.prepare = prepare  # type: ignore[method-assign]


@dataclass(frozen=True)
class Case:
    """A kernel at a size.

    Args:
        family: "GEMM", "attention", "softmax" or "copy".
        size: of the problem.
        fit: its time may be used to fit the model; else it only tests it.
        configuration: choices other than the operator's own, by name.
        causal: of attention.
    """

    family: str
    size: tuple[int, ...]
    fit: bool = False
    configuration: Optional[tuple[Any, ...]] = None
    causal: bool = False

    @property
    def name(self) -> str:
        size = "x".join(map(str, self.size))
        chosen = f" {self.configuration}" if self.configuration is not None else ""
        return f"{'causal ' if self.causal else ''}{self.family} {size}{chosen}"

    def launch(self, device: str) -> Launch:
        """Return the launch, with tensors on "cuda", or on "cpu" for a simulated target."""
        launches: list[Launch] = []
        with _noted(launches):
            _MAKE[self.family](self, device)
        return launches[-1] if launches else _copy_launch(self, device)


def _tensor(shape: tuple[int, ...], device: str) -> Any:
    import torch

    if device == "cpu":  # pages that nobody touches take no memory
        return torch.zeros(shape, dtype=torch.bfloat16)
    return torch.randn(shape, device=device, dtype=torch.bfloat16)


def _gemm(case: Case, device: str) -> None:
    import torch

    from gluon_kernels.gemm import launches
    from gluon_kernels.gemm.call import checked
    from gluon_kernels.gemm.tilings import TILINGS

    m, n, k = case.size
    a, b = _tensor((m, k), device), _tensor((n, k), device).mT
    tiling = TILINGS[case.configuration[0]] if case.configuration else None
    if tiling is not None and case.configuration and len(case.configuration) > 1:
        tiling = replace(tiling, **dict(case.configuration[1]))
    out = torch.empty((m, n), dtype=torch.bfloat16, device=device)
    launches.plan(checked("matmul", a, b, None, None, None, out), out, tiling)


def _attention(case: Case, device: str) -> None:
    import torch

    from gluon_kernels.attention import launches

    batch, heads, length, width = case.size
    q, k, v = (_tensor((batch, heads, length, width), device) for _ in range(3))
    out = torch.empty_like(q)
    before: dict[str, Any] = {}
    if case.configuration:
        from gluon_kernels.attention.order import code

        rows, keys, stages, order = case.configuration
        changes = {"rows_of": lambda *_: (rows, code(*order)), "KEYS": keys, "STAGES": stages}
        before = {name: getattr(launches, name) for name in changes}
        vars(launches).update(changes)
    try:
        causal = case.causal or bool(case.configuration)
        launches.forward_plan(q, k, v, None, causal, width**-0.5, False, out)
    finally:
        vars(launches).update(before)


def _softmax(case: Case, device: str) -> None:
    from gluon_kernels.norm.launches import softmax_plan

    x = _tensor(case.size, device)
    softmax_plan(x, x.dtype, None)


def _copy(case: Case, device: str) -> None:
    """Nothing is prepared: the launch is made below."""


def _copy_launch(case: Case, device: str) -> Launch:
    (n,) = case.size
    x, y = _tensor((n,), device), _tensor((n,), device)
    layout = gl.BlockedLayout([8], [32], [4], [0])
    block = 2048
    return Launch(copy, (-(-n // block),), (x, y, n, block, layout), {"num_warps": 4})


_MAKE: dict[str, Callable[[Case, str], None]] = {
    "GEMM": _gemm, "attention": _attention, "softmax": _softmax, "copy": _copy,
}  # fmt: skip


def _cases() -> Iterator[Case]:
    for size in ((1024, 1024, 1024), (2048, 2048, 2048), (4096, 4096, 4096), (8192, 8192, 8192),
                 (8192, 8192, 1024)):  # fmt: skip
        yield Case("GEMM", size)
    for size in ((512, 512, 512), (1536, 1536, 1536), (3072, 3072, 3072), (4096, 4096, 12288),
                 (16384, 1024, 4096)):  # fmt: skip
        yield Case("GEMM", size, fit=True)
    for length in (512, 1024, 2048, 4096, 8192):
        yield Case("attention", (1, 32, length, 128))
        yield Case("attention", (1, 32, length, 64))
    for length in (768, 1536, 3072, 6144):
        yield Case("attention", (2, 12, length, 128), fit=True)
        yield Case("attention", (2, 12, length, 64), fit=True)
    for size in ((4096, 1024), (4096, 4096), (8192, 8192), (32768, 2048), (2048, 16384)):
        yield Case("softmax", size)
    for size in ((2048, 512), (8192, 1024), (16384, 4096), (4096, 16384)):
        yield Case("softmax", size, fit=True)
    for power in (20, 22, 24, 26, 28):
        yield Case("copy", (1 << power,))
    for power in (19, 21, 23, 25, 27):
        yield Case("copy", (1 << power,), fit=True)
    # Measured after the first model was made, which then changed: products of registers, last tiles, uneven programs.
    for size in (
        (1280, 1280, 1280),
        (2560, 5120, 1024),
        (4864, 4096, 4096),
        (6144, 6144, 3072),
        (1024, 8192, 8192),
    ):
        yield Case("GEMM", size, fit=True)
    for size in (
        (1, 24, 640, 128),
        (2, 16, 1280, 64),
        (1, 40, 2560, 128),
        (4, 8, 3584, 64),
        (1, 16, 6912, 128),
    ):
        yield Case("attention", size, fit=True)
        yield Case("attention", size, fit=True, causal=True)
    for size in ((3000, 1536), (6144, 3072), (20000, 1024), (1536, 12288), (12288, 8192)):
        yield Case("softmax", size, fit=True)
    for n in (1_500_000, 6_000_000, 20_000_000, 100_000_000, 400_000_000):
        yield Case("copy", (n,), fit=True)


CASES = tuple(_cases())


def _sizes() -> Iterator[Case]:
    """Sizes that no one looked at while the model was made."""
    for size in ((1792, 1792, 1792), (3584, 2048, 2048), (5120, 5120, 2560), (2048, 8192, 4096),
                 (7168, 4096, 1536)):  # fmt: skip
        yield Case("GEMM", size)
    for size in ((1, 20, 896, 128), (2, 24, 1152, 64), (1, 28, 2304, 128), (3, 8, 3072, 64),
                 (1, 12, 5632, 128)):  # fmt: skip
        yield Case("attention", size)
        yield Case("attention", size, causal=True)
    for size in ((5000, 2048), (10000, 1280), (3072, 6144), (2500, 10240), (16384, 8192)):
        yield Case("softmax", size)
    for n in (2_500_000, 10_000_000, 30_000_000, 80_000_000, 250_000_000):
        yield Case("copy", (n,))


SIZES = tuple(_sizes())


def configurations() -> tuple[Case, ...]:
    """Return the choices that are ranked, 24 for each size: tilings of two products, tiles of a causal attention."""
    from gluon_kernels.gemm.tilings import TILINGS, Size, fits

    cases = []
    for size in ((4096, 4096, 4096), (2048, 1536, 4096)):
        tilings = [t for t in TILINGS.values() if t.kernel != "split_k" and fits(t, Size(1, *size))]
        for tiling in tilings[:16]:
            cases.append(Case("GEMM", size, configuration=(tiling.name,)))
        for tiling in tilings[:8:2]:
            for stages in (2, 3):
                chosen = (tiling.name, (("stages", stages),))
                cases.append(Case("GEMM", size, configuration=chosen))
    size = (2, 16, 4096, 64)
    for rows in (128, 192):
        for keys in (64, 128):
            for stages in (1, 2, 3):
                for order in ((8, True, True), (2, False, False)):
                    cases.append(Case("attention", size, configuration=(rows, keys, stages, order)))
    return tuple(cases)
