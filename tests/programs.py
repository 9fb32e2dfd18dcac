"""Programs: files of kernels with host code, the same text for Triton's own Gluon and for ours.

A program has `LAUNCHES`, one `Launch` or more. Nothing but its import lines differs for upstream,
where names are spelled as the newest Triton spells them. Tests of a folder of programs:

    @pytest.mark.parametrize("program", programs.collect(Path(__file__).with_name("programs")), ids=str)
    class TestPrograms(programs.Tests): ...
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any, Callable, Mapping

import numpy as np
import pytest
from triton.runtime.jit import MockTensor

from benchmarks import upstream
from gluon_core import _triton, testing
from gluon_core.compiler import compile
from gluon_core.plugin.targets import Target
from gluon_core.registry.load import registry
from gluon_core.testing import triton_at_least
from gluon_report.differential import from_target, on_target
from gluon_report.example import device_target
from tests.frontend import oracle

# Upstream's names before this release.
_OLDER = {
    (3, 7): {"gl.barrier(": "gl.thread_barrier("},
    (3, 8): {
        "@gluon.aggregate": "@__import__('triton').language.core._aggregate",
        "async_copy.async_load(": "async_copy.async_copy_global_to_shared(",
        "tma.async_load(": "tma.async_copy_global_to_shared(",
        "tma.async_store(": "tma.async_copy_shared_to_global(",
    },
}
# NumPy's name of a dtype -> the language's, where they differ.
_DTYPES = {
    "float8_e4m3fn": "float8e4nv",
    "float8_e5m2": "float8e5",
    "float8_e4m3fnuz": "float8e4b8",
}
_MAGIC = b"\x7fELF"


@dataclass(frozen=True)
class Boxes:
    """Among the arguments of a launch: a descriptor on the host.

    Args:
        kind: the class of descriptors, of the package that the program imports.
        array: what it describes.
        shape: of a box.
        layout: of a box in shared memory.
    """

    kind: Any
    array: np.ndarray
    shape: list[int]
    layout: Any

    def of(self, base: Any) -> Any:
        """The descriptor of `base`, which stands for the array."""
        return self.kind.from_tensor(base, self.shape, self.layout)


@dataclass(frozen=True)
class Launch:
    """A launch, and what it must leave behind.

    Args:
        kernel: the function that is launched.
        target: the architecture that it is for.
        data: from a random generator, its arguments, and by parameter what an array must hold.
        grid: programs along each dimension.
        constants: compile-time arguments, and options such as `num_warps`.
        tolerance: how far from what it must hold, as a share of the largest magnitude there.
        since: the first Triton whose compiler can do it.
        oracle: the first Triton whose own Gluon takes it.
        compiled: the first Triton that makes machine code of it.
    """

    kernel: Any
    target: str
    data: Callable[[np.random.Generator], tuple[list[Any], dict[str, np.ndarray]]]
    grid: tuple[int, ...] = (1,)
    constants: Mapping[str, Any] = field(default_factory=dict)
    tolerance: float = 0.0
    since: tuple[int, int] = (3, 6)
    oracle: tuple[int, int] = (3, 6)
    compiled: tuple[int, int] = (3, 6)


def _name(path: Path) -> str:
    """Return the name of the module, for both packages, since names of nested functions hold it."""
    return f"program_{path.stem}"


@functools.lru_cache(maxsize=None)
def _twin(path: Path) -> ModuleType:
    """The program on Triton's own Gluon."""
    text = upstream.to_upstream(path.read_text())
    for version, names in _OLDER.items():
        if not triton_at_least(*version):
            for name, older in names.items():
                text = text.replace(name, older)
    return upstream.load(_name(path), text)


@dataclass(frozen=True)
class Program:
    """One launch of a file."""

    path: Path
    index: int
    launch: Launch

    def __str__(self) -> str:
        return f"{self.path.stem}-{self.index}"

    def _needs(self, version: tuple[int, int]) -> None:
        if not triton_at_least(*version):
            pytest.skip(f"needs Triton {version[0]}.{version[1]}")

    def _parsed(self, launch: Launch, parser: Callable[..., Any]) -> str:
        """The module of a launch in normal form."""
        architecture = registry().target(launch.target).architecture
        gpu = _triton.GPUTarget(
            architecture.triton_backend, architecture.arch, architecture.warp_size
        )
        arguments = _without_elements(_arguments(launch)[0])
        return testing.normalise(parser(launch.kernel, arguments, launch.constants, gpu))

    def compare(self) -> str:
        """Assert that the module is upstream's; its text in normal form."""
        from triton._filecheck import run_parser

        self._needs(max(self.launch.since, self.launch.oracle))
        theirs = self._parsed(_twin(self.path).LAUNCHES[self.index], run_parser)
        mine = self._parsed(self.launch, testing.run_parser)
        assert mine == oracle.renamed(theirs)
        return mine

    def simulate(self) -> None:
        """Assert that the results are right on the simulator, and nothing is reported."""
        self.run(registry().target(f"sim:{self.launch.target}"))

    def run(self, target: Target) -> None:
        """Assert that the results are right on `target`."""
        launch = self.launch
        self._needs(launch.since if target.simulated else max(launch.since, launch.compiled))
        inputs, wanted = _arguments(launch)
        arrays: list[tuple[np.ndarray, Any]] = []

        def placed(value: Any) -> Any:
            if isinstance(value, tuple):
                return tuple(map(placed, value))
            if isinstance(value, Boxes):
                return value.of(placed(value.array))
            if isinstance(value, np.ndarray):
                arrays.append((value, on_target(value, target)))
                return arrays[-1][1]
            return value

        launch.kernel[launch.grid](*map(placed, inputs), **launch.constants, target=target)
        names = launch.kernel.arg_names
        for name, expected in wanted.items():
            like = inputs[names.index(name)]
            like = like.array if isinstance(like, Boxes) else like
            output = next(output for array, output in arrays if array is like)
            got = from_target(output, like).astype(np.float64)
            assert got.shape == expected.shape, name
            limit = launch.tolerance * np.abs(expected).max()
            np.testing.assert_allclose(got, expected, rtol=0, atol=limit, err_msg=name)

    def compile(self) -> None:
        """Assert that it becomes machine code."""
        self._needs(max(self.launch.since, self.launch.compiled))
        arguments = _without_elements(_arguments(self.launch)[0])
        source, options = testing.bind(self.launch.kernel, arguments, self.launch.constants)
        compiled = compile(source, target=self.launch.target, options=options)
        assert [code[:4] for code in compiled.asm.values() if isinstance(code, bytes)] == [_MAGIC]


def _arguments(launch: Launch) -> tuple[list[Any], dict[str, np.ndarray]]:
    return launch.data(np.random.default_rng(0))


def _without_elements(values: Any) -> list[Any]:
    """Arguments as the parsers of both packages take them."""
    import torch

    def standing(value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(map(standing, value))
        if isinstance(value, Boxes):
            dtype = getattr(torch, value.array.dtype.name)
            return value.of(torch.empty(value.array.shape, dtype=dtype, device="meta"))
        if isinstance(value, np.ndarray):
            name = value.dtype.name
            return MockTensor(getattr(_triton.tl, _DTYPES.get(name, name)))
        return value

    return [standing(value) for value in values]


def collect(folder: Path) -> list[Program]:
    """The launches of all programs in a folder."""
    programs = []
    for path in sorted(folder.glob("*.py")):
        module = upstream.load_file(_name(path), path)
        programs += [Program(path, i, one) for i, one in enumerate(module.LAUNCHES)]
    assert programs, f"no programs in {folder}"
    return programs


class Tests:
    """The tests of each `program`."""

    def test_the_module_is_upstreams(self, program):
        program.compare()

    def test_it_runs_without_a_report(self, program):
        program.simulate()

    @pytest.mark.gpu
    def test_it_runs_on_the_gpu(self, program):
        device = device_target()
        if device is None:
            pytest.skip("there is no GPU here")
        if device.architecture != registry().target(program.launch.target).architecture:
            pytest.skip(f"this GPU is no {program.launch.target}")
        program.run(device)
