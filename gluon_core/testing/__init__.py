"""For those who write kernels or plugins: the module a kernel turns into, and checks on it.

`TRITON_VERSION` and `triton_at_least` name the Triton that tests run on.

`gluon_core.testing.plugin` is a pytest plugin (loaded by itself where gluon-core is installed) with
fixtures that run a test on the simulator and on a GPU. `pytest --pyargs
gluon_core.testing.conformance --gluon-backend NAME` tests an installed backend.
"""

import importlib as _importlib
import typing as _typing

if _typing.TYPE_CHECKING:
    from gluon_core._triton import VERSION as TRITON_VERSION
    from gluon_core.testing.filecheck import (
        MatchError,
        filecheck_test,
        run_filecheck,
        run_filecheck_test,
    )
    from gluon_core.testing.parser import (
        MockTensor,
        ParsedModule,
        bind,
        ir_of,
        normalise,
        run_parser,
        stub_target,
    )
    from gluon_core.testing.places import Place, place

__all__ = [
    "TRITON_VERSION",
    "MatchError",
    "MockTensor",
    "ParsedModule",
    "Place",
    "bind",
    "filecheck_test",
    "ir_of",
    "normalise",
    "place",
    "run_filecheck",
    "run_filecheck_test",
    "run_parser",
    "stub_target",
    "triton_at_least",
]


# Every run of pytest loads `gluon_core.testing.plugin`, hence this file: nothing here imports Triton or NumPy.
_WHERE = {
    **dict.fromkeys(
        ("MatchError", "filecheck_test", "run_filecheck", "run_filecheck_test"), "filecheck"
    ),
    **dict.fromkeys(
        ("MockTensor", "ParsedModule", "bind", "ir_of", "normalise", "run_parser", "stub_target"),
        "parser",
    ),
    **dict.fromkeys(("Place", "place"), "places"),
}


def triton_at_least(*version: int) -> bool:
    """Return whether the installed Triton is `version` (major, minor) or newer."""
    from gluon_core._triton import at_least

    return at_least(*version)


def __getattr__(name: str) -> _typing.Any:
    if name == "TRITON_VERSION":
        from gluon_core._triton import VERSION

        value: _typing.Any = VERSION
    elif name in _WHERE:
        value = getattr(_importlib.import_module(f"{__name__}.{_WHERE[name]}"), name)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
