"""The backend: options, builder, two stages of text, and a report read from the text."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from functools import partial
from typing import Any

from gluon_acme.arch import ARCHITECTURES
from gluon_core.errors import DeviceError
from gluon_core.plugin.backend import Backend
from gluon_core.plugin.compiler import Compiler, Report, Stage
from gluon_core.plugin.device import Device
from gluon_core.plugin.language import Language, Lowering
from gluon_core.plugin.options import CompileOptions

_LOWER = "gluon_acme.lower"


@dataclass(frozen=True)
class AcmeOptions(CompileOptions):
    """What every backend has, and whether instructions are numbered in the machine code."""

    numbered: bool = False


class AcmeCompiler(Compiler):
    def options(self, target, given):
        return AcmeOptions.of(target, given)

    def builder(self, context, target):
        from gluon_core.plugin import ops

        return AcmeBuilder(ops.op_builder(context, target.architecture.arch))

    def pipeline(self, target, options):
        return (Stage("ttgir", _tidy), Stage("anvil", partial(_assemble, options.numbered)))

    def inspect(self, compiled):
        mix = Counter(line.split()[0] for line in compiled.asm["anvil"].decode().splitlines()[1:])
        return Report(
            registers=None,
            spills=None,
            shared_memory=compiled.metadata.shared,
            instruction_count=sum(mix.values()),
            instruction_mix=mix,
        )


class AcmeDevice(Device):
    def launcher(self, compiled):
        raise DeviceError("no Anvil was ever built", remedy="Run on target 'sim:acme1'.")


class AcmeBuilder:
    """Triton's builder and one method more, for the op that it does not know."""

    def __init__(self, builder):
        self._builder = builder

    def __getattr__(self, name):
        return getattr(self._builder, name)

    def create_acme_add_clamped(self, a, b, low, high):
        arguments, kind = [a, b, low, high], a.get_type()
        return self.create_extern_elementwise("", "", "__acme_add_clamped", arguments, kind, True)


def _tidy(module, metadata):
    from gluon_core.plugin.ops import ir, passes

    manager = ir.pass_manager(module.context)
    passes.common.add_inliner(manager)
    passes.common.add_canonicalizer(manager)
    passes.common.add_cse(manager)
    try:
        manager.run(module, "acme")
    except TypeError:  # Triton's pass managers differ in whether they take a name
        manager.run(module)
    metadata["shared"] = 0
    return module


def _assemble(numbered: bool, module: Any, metadata: dict) -> bytes:
    """One instruction for each operation, in order: text, so that anybody can read it."""
    text = module.str_nodebug()
    name = re.search(r"tt\.func public @(\w+)", text).group(1)
    metadata["name"] = name
    lines = [f"kernel {name}"]
    for line in text.splitlines():
        found = re.match(r"\s*(?:%\S+(?:, %\S+)*\s*=\s*)?\"?((?:tt|ttg|arith|scf|cf)\.\w+)", line)
        if found and not found.group(1).startswith("tt.func"):
            symbol = re.search(r'symbol = "__(\w+)"', line)
            lines.append(symbol.group(1) if symbol else found.group(1).replace(".", "_"))
    if numbered:
        lines[1:] = [f"{line} ; {number}" for number, line in enumerate(lines[1:])]
    return "\n".join(lines).encode()


ACME = Backend(
    "acme",
    ARCHITECTURES,
    compiler=AcmeCompiler(),
    device=AcmeDevice(),
    language=Language(
        namespace="gluon_acme.language",
        host="gluon_acme.host",
        reference="gluon_acme.reference",
        descriptors={"tensordesc_acme": "gluon_acme.language.descriptor:tile_map_type"},
        lowerings=(
            Lowering(
                "load",
                "acme_clamped_load",
                f"{_LOWER}:load",
                requires=("acme.clamp",),
                priority=10,
                accepts=f"{_LOWER}:load_accepts",
            ),
        ),
    ),
)
