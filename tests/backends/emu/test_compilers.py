"""PTX of clang and of CuTe on the emulator: the results that a GPU has for the same programs, and NumPy's."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import pytest

from gluon_emu.errors import EmulatorError
from gluon_emu.memory import Allocation
from gluon_emu.ptx.launcher import execute, prepared
from gluon_emu.ptx.loaded import code_of
from gluon_emu.settings import Settings
from tests.backends.emu import compilers
from tests.backends.emu.test_cuda_programs import (
    PROGRAMS,
    differences,
    emulated,
    stored,
    words_of,
)

pytestmark = [pytest.mark.once, pytest.mark.filterwarnings("ignore::RuntimeWarning")]
# Programs of which clang 19 makes NaN of other bits than nvcc 13, with their type.
NANS = {"float_tools": np.float32, "double_functions": np.float64}


@lru_cache(maxsize=1)
def texts():
    return compilers.texts()


@pytest.mark.parametrize("file", sorted(n for n in texts() if n.startswith("clang/")))
def test_programs_of_clang(file, capfd):
    stem, different = file.partition("/")[2], {}
    for program in (p for p in PROGRAMS if p.file == stem):
        if program.name in ("printing", "reductions"):
            continue
        wanted = words_of(stored()["results"][f"{stem}.90/{program.name}"])
        words = emulated(texts()[file], program)
        if program.name == "rounding_modes":  # clang rounds `__int2float_rz` to nearest
            words[20::24], wanted[20::24] = 0, 0
        if program.name in NANS:
            for result in (words, wanted):
                numbers = result.view(NANS[program.name])
                numbers[np.isnan(numbers)] = 0
        different[program.name] = differences(program, words, wanted)
    assert not any(different.values()), different


def test_clang_exchanges_the_operands_of_a_reduction():
    program = next(p for p in PROGRAMS if p.name == "reductions")
    with pytest.raises(EmulatorError, match="lane 2 does not run it with that mask"):
        emulated(texts()["clang/warps"], program)


SEARCHES = [{"schedule": "latest"}, {"schedule": "eager"}, {"schedule": "random", "seed": 3}, {"search": True}]  # fmt: skip


def gemm(name, text, **settings):
    """The difference of a GEMM of CuTe from NumPy's."""
    m, n, k = 128, 64, 192
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal((rows, k)).astype(np.float16) for rows in (m, n))
    out = np.zeros((m, n), np.float32)
    arrays = dict(zip("ABC", (a, b, out)))
    leaves = [(key, "*", x.ctypes.data) for key, x in arrays.items()]
    leaves += [(key, "i32", size) for key, size in zip("MNK", (m, n, k))]
    memory = [Allocation(key, x.view(np.uint8).ravel()) for key, x in arrays.items()]
    request = prepared(code_of(text, name), (2, 1, 1), leaves, [], memory, 0, block=(128, 1, 1))
    execute(request, Settings(**settings))
    return abs(out - a.astype(float) @ b.astype(float).T).max()


@pytest.mark.parametrize("settings", SEARCHES, ids=str)
@pytest.mark.parametrize("name", ["gemm_sm80", "gemm_sm90"])
def test_products_of_cute(name, settings):
    assert gemm(name, texts()["cute/gemm"], **settings) < 1e-4


def test_a_product_of_cute_without_its_wait():
    text = texts()["cute/gemm"]
    assert text.count("wgmma.wait_group.sync.aligned 0;") == 1
    with pytest.raises(EmulatorError):
        gemm("gemm_sm90", text.replace("wgmma.wait_group.sync.aligned 0;", ""))
