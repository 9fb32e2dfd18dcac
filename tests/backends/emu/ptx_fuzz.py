"""PTX changed at random: each text runs, or ends in an error of Gluon's own.

python -m tests.backends.emu.ptx_fuzz [SECONDS [SEED]]
"""

from __future__ import annotations

import random
import re
import signal
import sys
import time
import traceback

import numpy as np

from gluon_core.errors import GluonError
from gluon_emu.memory import Allocation
from gluon_emu.ptx.launcher import execute, prepared
from gluon_emu.ptx.loaded import code_of
from gluon_emu.settings import Settings
from tests.backends.emu import compilers
from tests.backends.emu.cuda_programs import programs
from tests.backends.emu.test_cuda_programs import emulated, stored

_TOKEN = re.compile(r"\s+|[\w$%.]+|.", re.S)
_NUMBERS = ["0", "1", "-1", "3", "31", "32", "33", "63", "255", "1024", "4096", "65535", "2147483647", "-2147483648",
            "4294967295", "0x7fffffffffffffff", "18446744073709551616", "0f7F800000", "0d7FF0000000000000", "1e400"]  # fmt: skip
_WORDS = [".b8", ".b16", ".b32", ".b64", ".u32", ".s32", ".s64", ".f16", ".f32", ".f64", ".pred", ".v2", ".v4", ".shared", ".global",
          ".local", ".param", ".const", ".sync", ".aligned", ".rn", ".sat", ".ftz", ".x", "@", "!", "|", "_", "{", "}", "(", ")",
          "[", "]", ",", ";", ":", "\"", "'", "//", "/*", "<", ">", "<99999999>", "WARP_SZ", "%tid.x", "%envreg1", "%p1",
          "bra", "call", "ret", "exit", "bar.sync", "ld", "st", "mov", "atom", ".func", ".entry", ".reg", ".align 3", "\0", "é"]  # fmt: skip


def changed(text: str, rng: random.Random) -> str:
    """Return a text with one to three random changes."""
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        lines = text.split("\n")
        kind = rng.randrange(10)
        if kind == 0:
            del lines[rng.randrange(len(lines))]
        elif kind == 1:
            lines.insert(rng.randrange(len(lines)), rng.choice(lines))
        elif kind == 2:
            i, j = rng.randrange(len(lines)), rng.randrange(len(lines))
            lines[i], lines[j] = lines[j], lines[i]
        elif kind == 3 and rng.randrange(4) == 0:
            return text[: rng.randrange(len(text))]
        if kind < 4:
            text = "\n".join(lines)
            continue
        number = rng.choice([n for n, line in enumerate(lines) if line.strip()] or [0])
        tokens = _TOKEN.findall(lines[number])
        place = rng.randrange(len(tokens)) if tokens else 0
        other = rng.choice(_TOKEN.findall(rng.choice(lines)) or [""])
        if kind == 4:
            tokens[place : place + 1] = []
        elif kind == 5:
            tokens[place : place + 1] = [rng.choice(_WORDS)]
        elif kind == 6:
            tokens.insert(place, rng.choice(_WORDS))
        elif kind == 7:
            tokens[place : place + 1] = [other]
        elif kind == 8:
            numbers = [n for n, t in enumerate(tokens) if re.fullmatch(r"-?\d\w*", t)] or [place]
            tokens[rng.choice(numbers) :][:1] = []
            where = rng.choice(numbers)
            tokens[where : where + 1] = [rng.choice(_NUMBERS)]
        else:
            parts = lines[number].split(".")
            part = rng.randrange(len(parts))
            parts[part] = rng.choice((parts[rng.randrange(len(parts))], rng.choice(_WORDS)[1:], ""))
            tokens = [".".join(parts)]
        lines[number] = "".join(tokens)
        text = "\n".join(lines)
    return text


def tried(text: str, program, timeout: float = 2.0, schedule: str = "latest") -> str:
    """Return how a text ends: "result", or the class of an error.

    Args:
        program: one of CUDA, or the name of a GEMM of CuTe.

    Raises:
        Exception: any error that is not Gluon's own, or one that says that the emulator failed.
    """
    settings = Settings(
        timeout=timeout, schedule=schedule, seed=len(text), search=schedule == "random"
    )
    try:
        if isinstance(program, str):
            gemm(text, program, settings)
        else:
            emulated(text, program, settings)
    except GluonError as error:
        if "the emulator failed" in str(error):
            raise
        return type(error).__name__
    return "result"


def gemm(text: str, name: str, settings: Settings) -> np.ndarray:
    """Run a GEMM of CuTe; return the difference from NumPy's."""
    m, n, k = 128, 64, 192
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal((rows, k)).astype(np.float16) for rows in (m, n))
    out = np.zeros((m, n), np.float32)
    arrays = dict(zip("ABC", (a, b, out)))
    leaves = [(key, "*", x.ctypes.data) for key, x in arrays.items()]
    leaves += [(key, "i32", size) for key, size in zip("MNK", (m, n, k))]
    memory = [Allocation(key, x.view(np.uint8).ravel()) for key, x in arrays.items()]
    request = prepared(code_of(text, name), (2, 1, 1), leaves, [], memory, 0, block=(128, 1, 1))
    execute(request, settings)
    return out - a.astype(float) @ b.astype(float).T


def kernel_alone(text: str, name: str) -> str:
    """Return a module without its other kernels, which makes changes hit."""
    parts = re.split(r"(?=^\.visible \.entry )", text, flags=re.M)
    kept = [p for p in parts if not p.startswith(".visible .entry") or f".entry {name}(" in p]
    return "".join(kept)


def main(seconds: float = 180, seed: int = 0) -> int:
    cases = [
        (kernel_alone(stored()["texts"][f"{p.file}.{v}"], p.name), p)
        for p in programs()
        for v in ("80", "90")
        if f".entry {p.name}(" in stored()["texts"].get(f"{p.file}.{v}", "")
    ]
    cute = compilers.texts()["cute/gemm"]
    cases += 20 * [(kernel_alone(cute, name), name) for name in ("gemm_sm80", "gemm_sm90")]
    rng, counts, failures = random.Random(seed), {}, set()
    signal.signal(signal.SIGPROF, _late)
    begun = time.monotonic()
    while time.monotonic() - begun < seconds:
        text, program = rng.choice(cases)
        mutant = changed(text, rng)
        signal.setitimer(signal.ITIMER_PROF, 12)
        try:
            verdict = tried(mutant, program, schedule=rng.choice(("latest", "eager", "random")))
        except Exception as error:
            verdict = "FAILED"
            last = traceback.extract_tb(error.__cause__.__traceback__ if error.__cause__ else error.__traceback__)[-1]  # fmt: skip
            place = f"{last.filename}:{last.lineno}: {type(error).__name__}: {str(error)[:300]}"
            if place.partition(": ")[0] not in failures:
                failures.add(place.partition(": ")[0])
                print(f"{program}: {place}", flush=True)
        signal.setitimer(signal.ITIMER_PROF, 0)
        counts[verdict] = counts.get(verdict, 0) + 1
    print(sum(counts.values()), "texts:", dict(sorted(counts.items(), key=lambda one: -one[1])))
    return "FAILED" in counts


class TooSlow(Exception):
    """A text that takes longer than its timeout."""


def _late(number, frame):
    raise TooSlow(f"12 s of processor time, in {frame.f_code.co_filename}:{frame.f_lineno}")


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
