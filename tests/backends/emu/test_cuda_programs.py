"""CUDA programs, compiled by nvcc, on the emulator: the results of a GPU."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import pytest

from gluon_emu.memory import Allocation
from gluon_emu.ptx.launcher import execute, prepared
from gluon_emu.ptx.loaded import code_of
from gluon_emu.settings import Settings
from tests.backends.emu.cuda_programs import ROOM, STORED, WORDS, inputs, load, programs, words_of

pytestmark = [pytest.mark.once, pytest.mark.filterwarnings("ignore::RuntimeWarning")]
PROGRAMS = programs()
OF_90 = ("outside_elements", "arrivals_that_are_missing", "products_of_bits")


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


# Programs with approximations: words of a result, units in the last place, and an absolute bound.
APPROXIMATE = {
    "trigonometry": (1, 1, 0.0), "exponentials": (1, 2, 0.0), "special_functions": (1, 2, 0.0),
    "fast_intrinsics": (1, 512, 2.0**-20), "doubles": (2, 1, 0.0),
}  # fmt: skip


def differences(program, words, wanted):
    """The number of words that differ, of approximations beyond their bounds."""
    if program.name not in APPROXIMATE:
        return int((words != wanted).sum())
    size, units, absolute = APPROXIMATE[program.name]
    dtype, top = (np.float32, 1 << 31) if size == 1 else (np.float64, 1 << 63)
    a, b = (w.view(f"i{4 * size}").astype(object) for w in (words, wanted))
    apart = np.abs(np.where(a < 0, -top - a, a) - np.where(b < 0, -top - b, b))
    near = np.abs(words.view(dtype).astype(float) - wanted.view(dtype)) <= absolute
    return int(((apart > units) & ~near).sum())


def test_all_programs_were_measured():
    kept = {f"{text}/{p.name}" for text in stored()["texts"] for p in PROGRAMS if p.file == text.partition(".")[0]}  # fmt: skip
    assert kept - set(stored()["results"]) <= {
        "warps.80/elected",
        *(f"rare.80/{name}" for name in OF_90),
    }
    assert stored()["device"] == "NVIDIA H200"


@pytest.mark.sampled(6)
@pytest.mark.parametrize("text", sorted(stored()["texts"]))
def test_the_results_are_those_of_the_gpu(text, capfd):
    code, different = stored()["texts"][text], {}
    if text == "matrices.80":  # the GPU has the tensor cores of sm_90
        code = code.replace(".target sm_80", ".target sm_90")
    for program in (p for p in PROGRAMS if p.file == text.partition(".")[0]):
        result = stored()["results"].get(f"{text}/{program.name}")
        if result is not None:
            words, printed = emulated(code, program), capfd.readouterr().out
            if program.name == "printing":  # its last lines have %hhd, which a GPU does not know
                known = result["printed"].partition("3.142")[0]
                assert known.count("\n") == 5 and printed.startswith(known)
                continue
            assert printed == result["printed"]
            different[program.name] = differences(program, words, words_of(result))
    assert not any(different.values()), different


RARE = [p for p in PROGRAMS if p.file == "rare"]


@lru_cache(maxsize=1)
def unmeasured():
    return load(STORED.with_name("rare.xz"))["texts"]


def _scan(u):
    few = u[:128] & 1023
    return np.cumsum(few) - few + few.sum()


def _sorted(u):
    """Return keys by 26 of their bits, falling, equal ones in their order, each with its index."""
    order = np.argsort(-(u[:512] >> 3 & (1 << 26) - 1).astype(np.int64), kind="stable")
    return u[order] ^ order.astype(np.uint32)


def _staged(u):
    total = np.zeros(128, np.uint32)
    for i in range(6):
        total = total * np.uint32(3) + np.roll(u[i * 128 : i * 128 + 128], -1)
    return total


# Program -> (first word, words by NumPy) of some of its results.
BY_NUMPY = {
    "block_collectives": [(0, _scan), (128, _sorted), (700, lambda u: np.bincount(u[:512] & 63, minlength=64))],
    "staged_pipeline": [(0, _staged)],
    "thread_pipeline": [(0, lambda u: (u[0:256:4] + u[259:512:4] * np.uint32(2)) ^ u[513:768:4])],
    "semaphore": [(0, lambda u: np.full(128, (u[:64] % 1000).sum()))],
    "arrivals_that_are_missing": [(1, lambda u: np.ones(64))],
}  # fmt: skip


@pytest.mark.sampled(6)
@pytest.mark.parametrize("program", RARE, ids=str)
def test_rare_programs_have_one_result_on_both_architectures(program):
    """No GPU has run these yet: code for two architectures agrees, and with NumPy where that is short."""
    both = [emulated(unmeasured()["rare.90"], program)]
    if program.name not in OF_90:
        both.append(emulated(unmeasured()["rare.80"], program))
        np.testing.assert_array_equal(*both)
    assert both[0].any()
    for first, wanted in BY_NUMPY.get(program.name, ()):
        words = wanted(inputs()[0])
        np.testing.assert_array_equal(both[0][first : first + words.size], words)
