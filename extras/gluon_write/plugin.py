"""The plugin that chooses layouts; importing it imports neither triton nor the simulator."""

from __future__ import annotations

from typing import Mapping

from gluon_core.plugin.hookspec import hookimpl


@hookimpl
def gluon_commands() -> Mapping[str, str]:
    return {"write": "gluon_write.cli:app", "port": "gluon_write.cli:port_app"}


@hookimpl
def gluon_services() -> Mapping[str, str]:
    return {
        "write": "gluon_write.explicit:explicit",
        "write.form": "gluon_write.preferred:form_key",
        "write.launch": "gluon_write.partitions.short_launches:choosing",
        "write.layouts": "gluon_write.shown:layouts_of",
        "write.names": "gluon_write.shown:names_of",
    }
