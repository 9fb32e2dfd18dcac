"""The plugin of the emulator; importing it imports neither triton nor torch."""

from __future__ import annotations

from typing import Mapping, Sequence

from gluon_core.plugin.backend import Backend
from gluon_core.plugin.hookspec import hookimpl
from gluon_emu.backend import EMU


@hookimpl
def gluon_backends() -> Sequence[Backend]:
    return [EMU]


@hookimpl
def gluon_assemblers() -> Mapping[str, str]:
    return {"ptx": "gluon_emu.ptx:assemble"}
