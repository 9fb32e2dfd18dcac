"""Programs of tests (`python -m tests...`) see the emulated device of the tests that start them (`tests.gpu_on_emulator`)."""

import sys

if any(
    flag == "-m" and module.startswith("tests.")
    for flag, module in zip(sys.orig_argv, sys.orig_argv[1:])
):
    sys.path.insert(0, "")
    from tests.gpu_on_emulator import emulate

    emulate()
    sys.path.remove("")
