"""CUDA programs, compiled by nvcc, on the emulator: the results of a GPU."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import pytest

from gluon_emu.memory import Allocation
from gluon_emu.ptx.launcher import execute, prepared
from gluon_emu.ptx.loaded import code_of
from gluon_emu.settings import Settings
from tests.backends.emu.cuda_programs import ROOM, VARIANTS, WORDS, inputs, load, programs, words_of

pytestmark = [pytest.mark.once, pytest.mark.filterwarnings("ignore::RuntimeWarning")]
PROGRAMS = programs()


@lru_cache(maxsize=1)
def stored():
    return load()


def emulated(text, program, settings=Settings()):
    """The words of results of a program."""
    arrays = [*inputs(), np.zeros(ROOM, np.uint32)]
    code = code_of(text, program.name)
    names = ("u", "x", "out")
    leaves = [(name, "*", a.ctypes.data) for name, a in zip(names, arrays)]
    memory = [Allocation(n, a.view(np.uint8), n == "out") for n, a in zip(names, arrays)]
    request = prepared(
        code, program.grid, [*leaves, ("n", "i32", WORDS)], [], memory, program.shared,
        block=program.block,
    )  # fmt: skip
    request.together = program.cooperative
    execute(request, settings)
    return arrays[2]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("text", [f"{f}.{v}" for f in sorted({p.file for p in PROGRAMS}) for v in VARIANTS])  # fmt: skip
def test_the_results_are_those_of_the_gpu(text, capfd):
    if text not in stored()["texts"]:
        pytest.skip("not compiled in this way")
    different = {}
    for program in (p for p in PROGRAMS if p.file == text.partition(".")[0]):
        result = stored()["results"].get(f"{text}/{program.name}")
        if result is not None:
            words = emulated(stored()["texts"][text], program)
            different[program.name] = int((words != words_of(result)).sum())
            assert capfd.readouterr().out == result["printed"]
    assert not any(different.values()), different
