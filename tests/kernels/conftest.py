"""The cases as test parameters: all of them, or the first of each file (`first_example`)."""

from __future__ import annotations

from tests.kernels import cases

EXAMPLES = cases.load_cases()
IDS = [example.name.replace(" ", "_").replace(",", "") for example in EXAMPLES.values()]


def pytest_generate_tests(metafunc):
    if "example_key" in metafunc.fixturenames:
        metafunc.parametrize("example_key", list(EXAMPLES), ids=IDS)
    elif "example" in metafunc.fixturenames:
        metafunc.parametrize("example", list(EXAMPLES.values()), ids=IDS)
    elif "first_example" in metafunc.fixturenames:
        first = {file: example for (file, index), example in EXAMPLES.items() if index == 0}
        metafunc.parametrize("first_example", list(first.values()), ids=list(first))
