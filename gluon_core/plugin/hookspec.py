"""The hooks a plugin may implement (pluggy project `gluon_core`).

A first plugin is three lines in a module that the entry point group `gluon_core.backends` names:

    from gluon_core.plugin.hookspec import hookimpl

    @hookimpl
    def gluon_backends():
        return [Backend("acme", ARCHITECTURES)]

Importing that module must import neither triton, torch nor a driver library: it happens whenever
anybody asks the registry anything.

A plugin without a backend, which surrounds the language with commands, modules and services, uses the
entry point group `gluon_core.extras` and the same hooks. `GLUON_PLUGINS` narrows the first group alone.
"""

from __future__ import annotations

from typing import Annotated, Any, Mapping, Sequence, Union

import pluggy

from gluon_core.plugin.backend import Backend
from gluon_core.plugin.language import Lowering
from gluon_core.plugin.paths import CodePath, Form, ModulePath, Name
from gluon_core.plugin.targets import Target

__all__ = ["ENTRY_POINTS", "EXTRAS", "PROJECT", "hookimpl", "hookspec"]

PROJECT = "gluon_core"
ENTRY_POINTS = "gluon_core.backends"
EXTRAS = "gluon_core.extras"

CommandName = Annotated[str, Form(r"[a-z][a-z0-9-]*", "not the name of a command")]
ServiceName = Annotated[str, Form(r"[a-z][a-z0-9_.]*", "not the name of a service")]

hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)


@hookspec
def gluon_backends() -> Sequence[Backend]:
    """Return the backends of this plugin. Called once, when it registers."""
    raise NotImplementedError


@hookspec
def gluon_lowerings() -> Sequence[Lowering]:
    """Lowerings of portable ops beyond those of the plugin's own backends.

    Called once, when the plugin registers; a plugin needs no backend to contribute some.
    """
    raise NotImplementedError


@hookspec
def gluon_commands() -> Mapping[CommandName, CodePath]:
    """Return commands of `gluon`: name -> path of a `typer.Typer`, or of a function whose parameters
    are Typer's.

    The path is loaded when the command runs, or when `gluon --help` lists it.
    """
    raise NotImplementedError


@hookspec
def gluon_modules() -> Mapping[Name, ModulePath]:
    """Return modules that users import as `gluon_core.<name>`: name -> path of the module."""
    raise NotImplementedError


@hookspec
def gluon_services() -> Mapping[ServiceName, Union[ModulePath, CodePath]]:
    """Return services, which others ask for by name: name -> path of a module or an object.

    `registry().service(name)` loads it. A name begins with that of the extra of gluon-core that
    installs it: an error for its absence names that. The core and the simulator ask for

    - `tune.configurations`: `f(kernel, parameters)` returns a function that finds the values and options
      of a launch with `config=`;
    - `bundle.code`: a module whose `take` and `nearest` look for compiled kernels while the variable
      GLUON_BUNDLE is set;
    - `pictures`: a module that draws layouts (`gluon_core.layouts.pictures.Pictures`);
    - `standin`: a module whose `activate(target)` gives Triton a driver while GLUON_TARGET names a
      simulated target;
    - `assembly.<dialect>`: a `gluon_core.simulation.assembly.Assembler` for the dialect that a reference
      module names as `ASSEMBLY`;
    - `<extra>.errors`: a module of error classes, which `gluon_core.errors` offers as well;
    - `prove`: a function of a simulated launch that judges its kernel for every trip count. It returns
      a `gluon_core.simulation.evidence.Proved`, and the error of a counterexample or None.
    """
    raise NotImplementedError


@hookspec
def gluon_stage_done(stage: str, module: Any, target: Target) -> None:
    """Observe a finished compilation stage. The return value is ignored.

    Args:
        stage: its name in the backend's pipeline.
        module: its result; observers must not change it.
        target: of the compilation.
    """
    raise NotImplementedError
