"""Programs of tests (`python -m tests...`) and the processes of a search see the emulated device of the tests that start them
(`tests.gpu_on_emulator`)."""

import sys

if "gluon_tune.workbench:serve" in sys.orig_argv or any(
    flag == "-m" and module.startswith("tests.")
    for flag, module in zip(sys.orig_argv, sys.orig_argv[1:])
):
    sys.path.insert(0, "")
    from tests.gpu_on_emulator import emulate

    emulate()
    sys.path.remove("")
