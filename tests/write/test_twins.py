"""The kernels that benchmarks/triton_twins.py times in two forms."""

import importlib
import re
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
pytestmark = pytest.mark.once


@pytest.fixture
def cases(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import twin_cases

    monkeypatch.setattr(twin_cases, "DEVICE", "cpu")
    return twin_cases


def test_both_forms_have_one_text(cases, tmp_path):
    """A launch that has small operands runs on the simulator as the kernel says."""
    text = (BENCHMARKS / "twin_rows.py").read_text()
    free = cases.without_layouts(text)
    assert "triton" not in free.partition('"""\n')[2] and free.count(cases.MARK) == text.count(
        "@triton.jit"
    )
    launch = cases.quantize4(6, 32, 4, 1)()
    _, module = cases.twins(launch.file, tmp_path)
    getattr(module, launch.kernel)[launch.grid](*launch.args, **launch.words)
    x, q, scale, _ = launch.args
    nibbles = torch.stack([q & 15, q >> 4], -1).view(6, 32).float() - 8
    assert ((nibbles * scale[:, None] - x.float()).abs() <= scale[:, None] * 0.51).all()


def test_every_kernel_is_launched(cases):
    written = set()
    for file in BENCHMARKS.glob("twin_*.py"):
        written |= set(re.findall(r"@triton\.jit\ndef (\w+)\(\s*\w+_ptr", file.read_text()))
    kinds = importlib.import_module("twin_kind_cases").KINDS
    elements = importlib.import_module("twin_element_cases").ELEMENTS
    engines = importlib.import_module("twin_engine_cases").ENGINES
    gemms = importlib.import_module("twin_gemm_cases").GEMMS
    libraries = importlib.import_module("twin_library_cases").LIBRARIES
    serving = importlib.import_module("twin_serving_cases").SERVING
    library = importlib.import_module("twin_library_gemm_cases").LIBRARY
    launched = (cases.LAUNCHES, kinds, elements, engines, gemms, libraries, serving, library)
    assert sum(map(len, launched)) >= 2 * len(written)
    source = "".join(file.read_text() for file in BENCHMARKS.glob("twin_*cases.py"))
    assert not [name for name in written if f'"{name}"' not in source]


def test_results_that_differ_are_not_timed(cases):
    result = torch.zeros(4)
    runs = {"ours": lambda: result.fill_(2.0), "triton": lambda: result.fill_(1.0)}
    with pytest.raises(ValueError, match="differ by 1 of their norm"):
        cases.Twins(runs, [result], False, 0.01).check()
    cases.Twins({**runs, "ours": runs["triton"]}, [result], False, 0.01).check()
    added = {"ours": lambda: result.add_(1.0), "triton": lambda: result.add_(1.0)}
    cases.Twins(added, [result], True, 0.0).check()
