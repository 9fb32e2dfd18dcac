"""Results of instructions, against the pseudocode of the vendor's ISA guides, which tinygrad's wheel
carries."""

from __future__ import annotations

import importlib
import re
import zlib
from typing import Any, Iterator

import numpy as np
import pytest

from gluon_emu.amdgcn.isa import families, table
from tests.backends.emu.assembly import lanes_of, one
from tests.backends.emu.pseudocode import Program
from tests.backends.emu.pseudocode_numbers import FLOATS, Int, Unsupported, bits_of, typed

assert families
TEXTS = {"cdna": "gfx942", "rdna3": "gfx1100", "rdna4": "gfx1201"}
# How many instructions are compared at least: those that the interpreter understands.
FLOOR = {"cdna": 400, "rdna3": 450, "rdna4": 480}
APPROXIMATE = re.compile(r"v_(exp|log|rcp|rsq|sqrt|sin|cos)_|v_s_")
EXPLAINED = {
    r"v_dot\d.*": "the guide rounds after each product; in which order the hardware does is not said",
    r"[sv]_rndne_f\d+": "the guide's formula makes +0 of -0.1; LLVM relies on -0",
    r"v_fract_f\d+": "the guide's formula makes 1 of the smallest negatives; LLVM relies on less",
    r"v_frexp_exp_.*": "the exponent of 0 and denormals is not said; LLVM takes 0 and the real one",
    r"v_ldexp_f\d+": "the guide multiplies by a power that may itself not fit",
    r"v_cvt_f32_bf16": "the guide's formula reads the bits as an integer",
}


def sources_of(text: str) -> dict[str, tuple[str, int]]:
    """Sources with the type that the text reads first, and their bits."""
    sources: dict[str, tuple[str, int]] = {}
    for name in ("S0", "S1", "S2"):
        if not re.search(rf"\b{name}\b", text):
            continue
        kinds = re.findall(rf"\b{name}\.([uifb]\d+)\b", text)
        wide = any(k.endswith("64") for k in kinds) or re.search(rf"\b{name}\[6[0-3] :", text)
        floats = [k for k in kinds if k[0] == "f"]
        kind = (floats or kinds or ["b32"])[0]
        parts = re.findall(rf"\b{name}\[[^\]]*\]\.(f16|bf16)", text)
        sources[name] = ("f16x2" if parts else kind, 64 if wide else 32)
    return sources


def numbers(kind: str, width: int, count: int, rng: Any) -> list[int]:
    """Operands with the usual corner cases among them, as bits."""
    size = int(re.sub(r"\D", "", kind.removesuffix("x2")) or 32)
    if kind[0] == "f" and size in FLOATS:
        dtype = FLOATS[size]
        info = np.finfo(dtype)
        special = [0.0, -0.0, 1, -1, 0.5, 2.5, -3.5, np.inf, -np.inf, np.nan, info.max, info.tiny,
                   info.smallest_subnormal, -info.tiny, 65504, 1e-3]  # fmt: skip
        values = np.concatenate([special, rng.standard_normal(count) * 2.0 ** rng.integers(-10, 10, count)])  # fmt: skip
        with np.errstate(all="ignore"):
            bits = values.astype(dtype).view(f"u{size // 8}")
        pool = [int(b) for b in rng.permutation(bits)]
        if kind.endswith("x2"):
            pool = [a | b << 16 for a, b in zip(pool, rng.permutation(pool).tolist())]
        return [pool[i % len(pool)] for i in range(count)]
    edges = [0, 1, 2, 31, 32, 63, 0x7F, 0x80, 0xFF, 0x7FFF, 0x8000, 0xFFFF, 0x7FFFFFFF, 0x80000000,
             0xFFFFFFFF, (1 << 63), (1 << 64) - 1]  # fmt: skip
    pool = edges + [int(x) >> int(s) for x, s in zip(rng.integers(0, 1 << 63, count), rng.integers(0, width, count))]  # fmt: skip
    return [int(i) & (1 << width) - 1 for i in rng.permutation(np.array(pool, object))][:count]


def result_of(text: str) -> tuple[str, int]:
    """(type of D0, its bits); "mask" for a bit of each lane, "" where there is none."""
    if re.search(r"D0\.u64\[laneId\]", text):
        return "mask", 64
    kinds = re.findall(r"\bD0\.([uifb]\d+)(?!\[)(?= *[-+]?= )", text)
    if kinds:
        return kinds[0], max(int(re.sub(r"\D", "", k)) for k in kinds)
    if re.search(r"\bD0\[6[0-3] :", text):
        return "b64", 64
    return ("b32", 32) if re.search(r"\bD0\b", text) else ("", 0)


def texts(folder: str) -> dict[str, tuple[str, str]]:
    """mnemonic -> (family, pseudocode)."""
    module = importlib.import_module(f"tinygrad.runtime.autogen.amd.{folder}.str_pcode")
    texts_by_name: dict[str, tuple[str, str]] = {}
    for key, text in module.PCODE.items():
        family = type(key).__name__.removesuffix("Op")
        if family in ("VOP1", "VOP2", "VOP3", "VOPC", "VOP3SD", "VOP3P", "SOP1", "SOP2", "SOPC"):
            name = re.sub(r"_E(32|64)$", "", key.name).lower()
            texts_by_name.setdefault(name, (family, re.sub(r"//[^\n]*", "", text)))
    return texts_by_name


def compare(name: str, text: str, arch: str, others: dict[str, str]) -> Iterator[str]:
    """Return the differences, a line per lane.

    Raises:
        Unsupported: the text is beyond the interpreter.
    """
    if re.search(r"MEM\[|VGPR|EXEC|\bPC\b|LDS|M0|SGPR|HW_REG|\bP0\b|ROUND_MODE|VCC\.u64\[laneId\]\s*[^=\s]", text):  # fmt: skip
        raise Unsupported("other state")
    scalar = name.startswith(("s_", "v_s_"))
    lanes = lanes_of(arch)
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    sources, (kind, width) = sources_of(text), result_of(text)
    flag = bool(re.search(r"\bSCC\b", text))
    if (
        not sources
        or not kind
        and not flag
        or re.search(r"(?<![=\w])\s*\bVCC\b(?!\.u64\[laneId\] =)", text)
    ):
        raise Unsupported("no result")
    program = Program(text, others)
    count = 24 if scalar else lanes
    operands = {s: numbers(k, w, count, rng) for s, (k, w) in sources.items()}
    old = [0x12345678 + 0x1010 * i for i in range(count)]
    wanted = []
    for lane in range(count):
        state: dict[str, Any] = {s: (bits[lane], sources[s][1]) for s, bits in operands.items()}
        state.update(laneId=Int(lane), lanes=lanes, SCC=(lane & 1, 1), WAVE_MODE=Int(1), D0=(old[lane] | old[lane] << 32, max(width, 32)))  # fmt: skip
        with np.errstate(all="ignore"):
            wanted.append(program.run(state))
    got = list(_executed(name, sources, operands, old, kind, flag, arch, count))
    for lane, (bits, carry) in enumerate(got):
        state = wanted[lane]
        expected = state["D0"] if isinstance(state["D0"], tuple) else bits_of(state["D0"])
        shown = {s: hex(b[lane]) for s, b in operands.items()}
        if kind == "mask":
            right = bits == (expected[0] >> lane & 1)
        else:
            right = not kind or _same(bits, expected[0], kind, width, name)
        if not right and not (
            APPROXIMATE.match(name) and _denormal(operands["S0"][lane], sources["S0"][0])
        ):
            yield f"{name} {shown}: {bits:#x}, by the guide {expected[0]:#x}"
        if flag:
            scc = state["SCC"] if isinstance(state["SCC"], tuple) else bits_of(state["SCC"])
            if bool(scc[0]) != bool(carry):
                yield f"{name} {shown}: SCC {carry}, by the guide {scc[0]}"


def _same(got: int, wanted: int, kind: str, width: int, name: str) -> bool:
    mask = (1 << width) - 1
    if got & mask == wanted & mask:
        return True
    if kind[0] == "f":
        a, b = (np.float64(typed(x, kind)) for x in (got, wanted))
        if np.isnan(a) and np.isnan(b):
            return True
        if APPROXIMATE.match(name):
            tiny = float(np.finfo(FLOATS[width]).tiny)
            if max(abs(a), abs(b)) <= tiny:  # denormals may be flushed
                return True
            unit = abs(float(np.spacing(FLOATS[width](b))))
            return bool(abs(a - b) <= 2 * unit)
    return False


def _denormal(bits: int, kind: str) -> bool:
    """Return True if transcendental instructions take the operand for 0."""
    return kind == "f32" and 0 < bits & 0x7FFFFFFF < 0x800000


def _executed(
    name: str,
    sources: dict[str, tuple[str, int]],
    operands: dict[str, list[int]],
    old: list[int],
    kind: str,
    flag: bool,
    arch: str,
    count: int,
) -> Iterator[tuple[int, Any]]:
    """(bits of the result, SCC) of the emulator, for each sample."""
    scalar = name.startswith(("s_", "v_s_"))
    letter = "s" if scalar else "v"
    places = {s: 4 + 2 * i for i, s in enumerate(sources)}
    texts = [
        f"{letter}[{places[s]}:{places[s] + 1}]" if w == 64 else f"{letter}{places[s]}"
        for s, (_, w) in sources.items()
    ]
    wide = result_width(kind) == 64
    result = {"mask": "s[20:21]", "": ""}.get(kind) if kind in ("mask", "") else (
        f"{letter}[20:21]" if wide else f"{letter}20"
    )  # fmt: skip
    if kind == "mask" and arch != "gfx942":
        result = "s20"
    extra = ["vcc"] if name in CARRIES else []
    line = f"{name} {', '.join([x for x in (result, *extra, *texts) if x])}"
    if scalar:
        for i in range(count):
            registers = {"scc": i & 1, "s20": old[i], "s21": old[i]}
            for s, register in places.items():
                registers[f"s{register}"] = operands[s][i] & 0xFFFFFFFF
                registers[f"s{register + 1}"] = operands[s][i] >> 32
            low, high, scc = one(line, registers, "s20", "s21", "scc", arch=arch)
            yield int(low) | int(high) << 32, scc
        return
    registers = {"v20": np.array(old, np.uint32), "v21": np.array(old, np.uint32)}
    for s, register in places.items():
        registers[f"v{register}"] = np.array([b & 0xFFFFFFFF for b in operands[s]], np.uint32)
        registers[f"v{register + 1}"] = np.array([b >> 32 for b in operands[s]], np.uint32)
    if kind == "mask":
        low, high = one(line, registers, "s20", "s21", arch=arch)
        bits = int(low) | int(high) << 32
        for i in range(count):
            yield bits >> i & 1, None
        return
    low, high = one(line, registers, "v20", "v21", arch=arch)
    for i in range(count):
        yield int(low[i]) | int(high[i]) << 32, None


CARRIES = ("v_add_co_u32", "v_sub_co_u32", "v_subrev_co_u32")


def result_width(kind: str) -> int:
    return int(re.sub(r"\D", "", kind) or 32)


@pytest.mark.once
@pytest.mark.parametrize("folder", TEXTS)
def test_the_vendors_pseudocode_agrees(folder):
    pytest.importorskip("tinygrad", reason="tinygrad's wheel brings the pseudocode of the guides")
    arch = TEXTS[folder]
    known = texts(folder)
    others = {name: text for name, (_, text) in known.items()}
    compared, differing = [], []
    for name, (_, text) in sorted(known.items()):
        if table.find(name) is None:
            continue
        try:
            differences = list(compare(name, text, arch, others))
        except (Unsupported, RecursionError):
            continue
        compared.append(name)
        if differences and not any(re.fullmatch(pattern, name) for pattern in EXPLAINED):
            differing += differences[:2]
    assert not differing, "\n".join(differing)
    assert len(compared) >= FLOOR[folder], len(compared)
