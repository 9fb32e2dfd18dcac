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
def gluon_commands() -> Mapping[str, str]:
    return {"emu": "gluon_emu.command.emu:emu", "litmus": "gluon_emu.command.litmus:litmus"}


@hookimpl
def gluon_services() -> Mapping[str, str]:
    return {"assembly.ptx": "gluon_emu.ptx:assemble"}
