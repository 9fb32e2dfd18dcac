"""The compiler: options, a builder, two stages, and a report read from the machine code."""

import re
from collections import Counter
from dataclasses import dataclass
from functools import partial

from gluon_core.plugin import CompileOptions, Compiler, Report, Stage


@dataclass(frozen=True)
class AcmeOptions(CompileOptions):
    """The options of every backend, and a number for each instruction."""

    numbered: bool = False


class AcmeCompiler(Compiler):
    def options(self, target, requested):
        return AcmeOptions.of(target, requested)  # refuses unknown and illegal options

    def builder(self, context, target):
        from gluon_core.plugin.ops import op_builder

        return AcmeBuilder(op_builder(context, target.architecture.arch))

    def pipeline(self, target, options):
        return (Stage("ttgir", tidy), Stage("anvil", partial(assemble, options.numbered)))

    def inspect(self, compiled):
        mix = Counter(line.split()[0] for line in compiled.asm["anvil"].decode().splitlines()[1:])
        shared = compiled.metadata.shared
        return Report(None, None, shared, instruction_count=sum(mix.values()), instruction_mix=mix)


class AcmeBuilder:
    """Triton's builder, and one method more for the op that Triton does not know."""

    def __init__(self, builder):
        self._builder = builder

    def __getattr__(self, name):
        return getattr(self._builder, name)

    def create_acme_add_clamped(self, a, b, low, high):
        arguments, kind = [a, b, low, high], a.get_type()
        return self.create_extern_elementwise("", "", "__acme_add_clamped", arguments, kind, True)


def tidy(module, metadata):
    from gluon_core.plugin.ops import ir, passes

    manager = ir.pass_manager(module.context)
    passes.common.add_inliner(manager)
    passes.common.add_canonicalizer(manager)
    manager.run(module, "acme")
    metadata["shared"] = 0
    return module


def assemble(numbered, module, metadata):
    """Return one instruction for each operation, in order, as text."""
    text = module.str_nodebug()
    metadata["name"] = re.search(r"tt\.func public @(\w+)", text).group(1)
    lines = []
    for line in text.splitlines():
        op = re.match(r"\s*(?:%\S+(?:, %\S+)*\s*=\s*)?\"?((?:tt|ttg|arith|scf|cf)\.\w+)", line)
        if op and not op.group(1).startswith("tt.func"):
            symbol = re.search(r'symbol = "__(\w+)"', line)
            lines.append(symbol.group(1) if symbol else op.group(1).replace(".", "_"))
    if numbered:
        lines = [f"{line} ; {number}" for number, line in enumerate(lines)]
    return "\n".join([f"kernel {metadata['name']}", *lines]).encode()
