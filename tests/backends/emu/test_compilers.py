"""PTX of clang and of CuTe on the emulator: the results that a GPU has for the same programs, and NumPy's."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import pytest

from gluon_emu.errors import EmulatorError
from gluon_emu.settings import Settings
from tests.backends.emu import compilers
from tests.backends.emu.ptx_fuzz import gemm
from tests.backends.emu.test_cuda_programs import (
    PROGRAMS,
    differences,
    emulated,
    stored,
    words_of,
)

pytestmark = [
    pytest.mark.once,
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),
    pytest.mark.sampled(2),
]
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


@pytest.mark.parametrize("settings", SEARCHES, ids=str)
@pytest.mark.parametrize("name", ["gemm_sm80", "gemm_sm90"])
def test_products_of_cute(name, settings):
    assert abs(gemm(texts()["cute/gemm"], name, Settings(**settings))).max() < 1e-4


def test_a_product_of_cute_without_its_wait():
    text = texts()["cute/gemm"]
    assert text.count("wgmma.wait_group.sync.aligned 0;") == 1
    with pytest.raises(EmulatorError):
        gemm(text.replace("wgmma.wait_group.sync.aligned 0;", ""), "gemm_sm90", Settings())
