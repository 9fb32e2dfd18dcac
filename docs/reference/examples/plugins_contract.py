from dataclasses import dataclass, fields
from importlib.metadata import EntryPoint

import numpy as np

import gluon_core as gluon
from gluon_core import errors
from gluon_core import language as gl
from gluon_core.plugin import (
    backend,
    builder,
    compiler,
    device,
    hookspec,
    host_descriptor,
    language,
    launcher,
    machine_code,
    options,
    paths,
    reference,
    simulation,
    targets,
    triton_compiler,
)
from gluon_core.portable import requests
from gluon_core.registry import load as plugins
from gluon_core.testing import declared
from gluon_core.simulation import assembly, host_memory, ranks, recorder, settings, stored_addresses, watch

LINE = gl.constexpr(gl.BlockedLayout([1], [32], [4], [0]))
x = np.arange(128, dtype=np.float32)


@gluon.jit
def twice(x, out):
    i = gl.arange(0, 128, LINE)
    gl.store(out + i, 2 * gl.load(x + i))


def refused(call):
    try:
        call()
    except errors.GluonError as error:
        print(f"{type(error).__name__}: {str(error).splitlines()[0]}")


# -- gluon_core.plugin.targets.Architecture, gluon_core.plugin.targets.Limits, gluon_core.plugin.targets.Target: hardware, as a plugin describes it
ANVIL = targets.Architecture(
    name="anvil1",
    backend="anvil",
    aliases=("forge",),
    arch="anvil1",
    triton_backend=None,
    warp_size=32,
    limits=targets.Limits(shared_memory=48 * 1024, max_warps=16),
    capabilities=frozenset({"anvil.clamp"}),
)
target = targets.Target("anvil", ANVIL)
print(target, target.has("anvil.clamp"), ANVIL.limits.shared_memory)
#> anvil:anvil1 True 49152

# -- gluon_core.plugin.options.CompileOptions, gluon_core.plugin.options.FURTHER, gluon_core.plugin.options.check_given: compile options
@dataclass(frozen=True)
class AnvilOptions(options.CompileOptions):
    hammers: int = 1


chosen: options.CompileOptions = AnvilOptions.of(target, {"hammers": 2})
print(chosen.num_warps, chosen.hammers, getattr(chosen, "max_registers", None))
print(options.FURTHER["maxnreg"])
refused(lambda: options.check_given(target, {"anvils": 3}, [f.name for f in fields(AnvilOptions)]))
#> 4 2 None
#> the most 32-bit registers of a thread
#> OptionError: anvils: anvil has no compile option 'anvils'. Options: num_warps, num_ctas, debug, sanitize_overflow, arch, supported_fp8_dtypes, deprecated_fp8_dot_operand_dtypes, default_dot_input_precision, allowed_dot_input_precisions, max_num_imprecise_acc_default, hammers.

# -- gluon_core.plugin.backend.Backend, gluon_core.plugin.backend.API_VERSION, gluon_core.plugin.compiler.Compiler, gluon_core.plugin.device.Device, gluon_core.plugin.language.Language, gluon_core.plugin.language.Lowering, gluon_core.plugin.paths.load_path, gluon_core.plugin.paths.load_named: the parts of a plugin
class AnvilCompiler(compiler.Compiler):
    def options(self, target, options):
        return AnvilOptions.of(target, options)


class AnvilDevice(device.Device):
    tensor_device = "cpu"


LOAD = language.Lowering("load", "anvil_load", "gluon_anvil.lower:load", priority=10)
ANVIL_BACKEND = backend.Backend(
    "anvil",
    (ANVIL,),
    compiler=AnvilCompiler(),
    device=AnvilDevice(),
    language=language.Language(lowerings=(LOAD,)),
    api_version=backend.API_VERSION,
)
print(ANVIL_BACKEND.compiler.options(target, {}).hammers, paths.load_path("math:sqrt")(9.0), paths.load_named("math:floor", "a unit")(9.5))
#> 1 3.0 9

# -- gluon_core.plugin.paths.Form, gluon_core.plugin.paths.Name, gluon_core.plugin.paths.ModulePath, gluon_core.plugin.paths.CodePath, gluon_core.plugin.paths.Capability, gluon_core.plugin.paths.Words: the texts in fields of the contract, which the registry checks
field_types = {"a backend": paths.Name, "a module": paths.ModulePath, "code": paths.CodePath, "a capability": paths.Capability, "a text": paths.Words}
forms: dict[str, paths.Form] = {label: declared.__metadata__[0] for label, declared in field_types.items()}
print(forms["a backend"].pattern, forms["code"].words)
#> [a-z][a-z0-9_]* not a path such as 'package.module:attribute'

# -- gluon_core.plugin.hookspec.hookimpl, gluon_core.plugin.hookspec.hookspec, gluon_core.plugin.hookspec.PROJECT, gluon_core.plugin.hookspec.ENTRY_POINTS, gluon_core.plugin.hookspec.EXTRAS: the hooks, and the entry points by which plugins are found
class AnvilPlugin:
    @hookspec.hookimpl
    def gluon_backends(self):
        return [ANVIL_BACKEND]


print(hookspec.PROJECT, hookspec.ENTRY_POINTS, hookspec.EXTRAS, callable(hookspec.hookspec))
#> gluon_core gluon_core.backends gluon_core.extras True

# -- gluon_core.registry.load.load, gluon_core.registry.load.registry, gluon_core.registry.load.Registry, gluon_core.registry.load.Contribution, gluon_core.registry.load.PluginFailure: the installed plugins, and the reasons of failures
own: plugins.Registry = plugins.load(entry_points=[], plugins=[AnvilPlugin()])
print(own.target("forge"), [one.name for one in own.lowerings("load")])
plugin: plugins.Contribution = next(iter(own.plugins.values()))
print([b.name for b in plugin.backends], plugin.origin, "nvidia" in plugins.registry().backends)
missing = EntryPoint("gone", "no_such_module", hookspec.ENTRY_POINTS)
failure = plugins.load(entry_points=[missing]).failures["gone"]
print(isinstance(failure, plugins.PluginFailure), failure.reason)
#> anvil:anvil1 ['anvil_load', 'global_load']
#> ['anvil'] 'AnvilPlugin' True
#> True ModuleNotFoundError: No module named 'no_such_module'

# -- gluon_core.portable.requests.Request, gluon_core.portable.requests.LoadRequest, gluon_core.portable.requests.StoreRequest, gluon_core.portable.requests.AsyncCopyRequest, gluon_core.portable.requests.MmaRequest, gluon_core.portable.requests.MmaLayouts, gluon_core.portable.requests.TileRequest, gluon_core.portable.requests.TileStoreRequest, gluon_core.portable.requests.TileSchedulerRequest: the argument of lowerings and their predicates
def load_accepts(request: requests.LoadRequest):
    narrow = request.offsets.dtype == gl.int32
    return True if narrow else f"the Anvil addresses with int32 offsets, not {request.offsets.dtype}"


for kind in (
    requests.LoadRequest,
    requests.StoreRequest,
    requests.AsyncCopyRequest,
    requests.MmaRequest,
    requests.TileRequest,
    requests.TileStoreRequest,
    requests.TileSchedulerRequest,
):
    shared = len(fields(requests.Request))
    print(kind.__name__, *(f.name for f in fields(kind)[shared : shared + 5]))
print([f.name for f in fields(requests.MmaLayouts)])
#> LoadRequest ptr offsets mask other cache_modifier
#> StoreRequest ptr offsets value mask cache_modifier
#> AsyncCopyRequest dest ptr offsets mask cache_modifier
#> MmaRequest m n k a_dtype b_dtype
#> TileRequest base shape strides dtype block_shape
#> TileStoreRequest tile coordinates value layout
#> TileSchedulerRequest num_ctas
#> ['accumulator', 'a', 'b', 'a_shared', 'b_shared', 'lowering', 'shape', 'acc_dtype', 'in_shared']

# -- gluon_core.plugin.language.OPS, gluon_core.plugin.language.TAKES: portable ops, the companions of their lowerings, and their arguments
print(sorted(language.OPS), language.OPS["async_copy"])
print(language.OPS["mma"], language.TAKES["wait"])
#> ['async_copy', 'load', 'mma', 'store', 'tile_copy', 'tile_scheduler', 'tile_store'] ('commit wait', '')
#> ('layouts', 'accumulator mma_wait read fence') ('outstanding', True)

# -- gluon_core.plugin.builder.Builder, gluon_core.plugin.builder.METHODS, gluon_core.plugin.builder.EXPERIMENTS, gluon_core.simulation.recorder.Recorder, gluon_core.simulation.recorder.CallSite: the methods that the core calls on a builder; protocols, from which nothing derives
asked = declared.members(builder.Builder)
print(len(asked) > 100, "create_local_alloc" in asked, len(builder.EXPERIMENTS))
print(builder.METHODS["create_{}(x, y, z)"])
print(sorted(declared.members(recorder.Recorder))[-3:])
site = recorder.CallSite("tma.load", "tma.load(x)", None)
#> True True 2
#> fma select cond_branch
#> ['tiles_awaited', 'tiles_begun', 'tiles_fetched']

# -- gluon_core.plugin.builder.RESULTS, gluon_core.plugin.builder.Value: the results of its methods
for kind in builder.RESULTS:
    print(kind, sorted(declared.methods_of(kind))[:3])
print("get_type" in declared.members(builder.Value))
#> block ['add_argument', 'add_argument_at', 'arg']
#> region ['push_back', 'size']
#> operation ['get_after', 'get_before', 'get_body']
#> function ['add_entry_block', 'args', 'finalize']
#> module ['context', 'get_function', 'has_function']
#> True

# -- gluon_core.plugin.compiler.Stage, gluon_core.plugin.compiler.Report: a pipeline of pure steps, and the facts of `inspect` about the machine code
def assemble(source, metadata):
    metadata["shared"] = 0
    return source.encode()


stages = [compiler.Stage("text", lambda source, metadata: str(source)), compiler.Stage("bin", assemble)]
code, metadata = "module {}", {}
for stage in stages:
    code = stage.run(code, metadata)
print(code, metadata)
report = compiler.Report(
    registers=32, spills=0, shared_memory=0, instruction_count=4, instruction_mix={"add": 4}
)
print(report.registers, report.instruction_mix)
#> b'module {}' {'shared': 0}
#> 32 {'add': 4}

# -- gluon_core.plugin.triton_compiler.TritonCompiler, gluon_core.plugin.triton_compiler.TritonDevice, gluon_core.plugin.triton_compiler.check_limits: a vendor whose compiler and driver are Triton's
vendors = plugins.registry().backends
print(isinstance(vendors["nvidia"].compiler, triton_compiler.TritonCompiler))
print(isinstance(vendors["nvidia"].device, triton_compiler.TritonDevice))
refused(lambda: vendors["nvidia"].compiler.tool("no-such-tool"))
refused(lambda: triton_compiler.check_limits(target, {"shared": 1 << 20, "num_warps": 4, "num_ctas": 1}))
#> True
#> True
#> BackendError: the installed Triton ships no no-such-tool
#> LimitError: the kernel needs more shared memory than a block of anvil:anvil1 has; expected at most 49152 bytes, got 1048576 bytes. Use smaller blocks, fewer buffers or stages, or a narrower dtype.

# -- gluon_core.plugin.launcher.Compiled, gluon_core.plugin.launcher.Launcher, gluon_core.plugin.launcher.FastLauncher: a compiled kernel, and its launcher
compiled: launcher.Compiled = gluon.compile(twice, "sm_90", signature={"x": "*fp32", "out": "*fp32"})
print(compiled.name, compiled.target, declared.members(launcher.Compiled) >= {"asm", "metadata"})


class Printing:
    """A launcher of the Anvil."""

    def __call__(self, grid, stream, *arguments):
        print("launched on", grid, "with", len(arguments), "arguments")


launch: launcher.Launcher = Printing()
launch((1, 1, 1), 0, x, x)
print(sorted(declared.members(launcher.FastLauncher)))
#> twice nvidia:sm_90 True
#> launched on (1, 1, 1) with 2 arguments
#> ['engine']

# -- gluon_core.plugin.launcher.ArgumentKind, gluon_core.plugin.launcher.checked_kind: objects of a class of one's own as arguments
class Meters(float):
    pass


kind = launcher.ArgumentKind(Meters, describe=lambda value: ("fp32", ""))
print(launcher.checked_kind(kind).is_for(Meters), kind.is_for(str))
#> True False

# -- gluon_core.plugin.simulation.Simulation, gluon_core.simulation.settings.Settings, gluon_core.plugin.simulation.HARDWARE, gluon_core.simulation.ranks.RankHost, gluon_core.simulation.ranks.Ranks: the additional parts of a backend that simulates
simulator = vendors["sim"]
runs: simulation.Simulation = simulator.simulation
with paths.load_path(simulator.simulation.settings)(schedule="eager", races=False):
    twice[(1,)](x, out := np.zeros_like(x), target="sim:hopper")
print(out[:3], callable(settings.Settings), vendors["nvidia"].simulation is simulation.HARDWARE)
print(sorted(declared.members(ranks.RankHost))[-2:], sorted(declared.members(ranks.Ranks)))
#> [0. 2. 4.] True True
#> ['side_stream', 'world'] []

# -- gluon_core.simulation.settings.LaunchSettings, gluon_core.simulation.settings.Scopes: the checks of launches, by the environment and by blocks of code
@dataclass(frozen=True)
class AnvilSettings(settings.LaunchSettings):
    PREFIX = "ANVIL"
    RUNNER = "Anvil"
    races: bool = True
    timeout: float = 60.0


print(AnvilSettings.from_environment({"ANVIL_RACES": "0"}), AnvilSettings.checks())
scopes = settings.Scopes(AnvilSettings)
with scopes.using(timeout=1.0):
    print(scopes.current().timeout)
#> AnvilSettings(races=False, timeout=60.0) ('races',)
#> 1.0

# -- gluon_core.plugin.host_descriptor.HostDescriptor, gluon_core.plugin.host_descriptor.HostTensor: descriptors in host code
class Tiles(host_descriptor.HostDescriptor):
    """The reference models of the Anvil."""

    head = "tensordesc_anvil"


base: host_descriptor.HostTensor = x.reshape(8, 16)
flat = gl.SwizzledSharedLayout(1, 1, 1, [1, 0])
print(Tiles(base, [8, 16], [16, 1], [4, 4], flat).block_shape)
refused(lambda: Tiles(base, [8, 16], [16, 2], [4, 4], flat))
#> [4, 4]
#> ShapeError: Tiles.strides: the elements of the last dimension must be contiguous; expected 1 at the end, got [16, 2]. Describe the transposed tensor, or copy it with .contiguous().

# -- gluon_core.simulation.host_memory.Storage, gluon_core.simulation.host_memory.address_of, gluon_core.simulation.host_memory.refuse_where, gluon_core.simulation.host_memory.storage_of: the memory behind an argument, for a backend that runs on the host
host_memory.refuse_where(lambda tensor: None)  # no tensor is refused
memory: host_memory.Storage = host_memory.storage_of("x", x[32:], "Anvil")
print(host_memory.address_of("x", x) == x.ctypes.data, memory.data.nbytes, memory.writable)
#> True 512 True

# -- gluon_core.simulation.host_memory.take_memory_from, gluon_core.simulation.host_memory.device_memory, gluon_core.simulation.host_memory.refusal: the memory of a simulated device
print(host_memory.device_memory(), host_memory.refusal(x))
host_memory.take_memory_from(lambda: iter([(x.view(np.uint8), x)]))
((data, owner),) = host_memory.device_memory() or ()
print(data.nbytes, owner is x)
#> None None
#> 512 True

# -- gluon_core.simulation.host_memory.bytes_of: the bytes of a storage of torch
import torch

print(host_memory.bytes_of(torch.zeros(3).untyped_storage()).shape)
#> torch.Size([12])

# -- gluon_core.simulation.stored_addresses.Stored, gluon_core.simulation.stored_addresses.behind_addresses, gluon_core.simulation.stored_addresses.makes_pointers: the memory behind addresses that arguments hold, such as an array of pointers
table = np.array([0, x.ctypes.data])
behind: list[stored_addresses.Stored] = stored_addresses.behind_addresses([("table", table)], "Anvil")
print([(one.name, one.storage.data.nbytes, str(one.dtype)) for one in behind])
print(stored_addresses.makes_pointers({"ttgir": "%1 = tt.load %0"}))  # nothing to look for
#> [('table[1]', 512, 'float32')]
#> False

# -- gluon_core.plugin.reference.Machine, gluon_core.plugin.reference.SharedBuffer, gluon_core.plugin.reference.Descriptor: the models of ops: functions of NumPy arrays, and of the machine where they start work
def anvil_add_clamped(a, b, low, high):
    return np.minimum(np.maximum(a + b, low), high)


def anvil_start_copy(
    machine: reference.Machine,
    buffer: reference.SharedBuffer,
    tiles: reference.Descriptor,
    row: np.ndarray,
):
    def perform():
        addresses, inside = tiles.box([row])
        machine.store_shared(buffer, machine.load_global(addresses, tiles.dtype, inside))

    machine.issue("anvil", perform)


@reference.returns(claims=True)
def anvil_next_program(machine):
    return machine.claim()


print(anvil_add_clamped(x[:3], 1.0, 0.0, 2.0))
#> [1. 2. 2.]

# -- gluon_core.plugin.reference.returns, gluon_core.plugin.reference.like: the types of results
@reference.like(0)
def anvil_negate(a):
    return -a


@reference.returns(lambda a, mask: [a.type, mask.type])
def anvil_split(a, mask):
    return a, ~mask


print(callable(anvil_negate.results), callable(anvil_split.results))
#> True True

# -- gluon_core.simulation.assembly.Assembler, gluon_core.simulation.assembly.Assembly, gluon_core.simulation.assembly.NotModelled: inline assembly on the simulator: the service `assembly.<dialect>` of a plugin
class AnvilText:
    is_data, each_thread, reaches_memory, orders = True, False, False, ()

    def __call__(self, machine, registers, threads):
        return [~registers[0]]


def anvil_assembler(text, constraints, target=None):
    if text.strip() != "inv $0, $1":
        raise assembly.NotModelled("only `inv` is known", text)
    return AnvilText()


assembler: assembly.Assembler = anvil_assembler
inverts: assembly.Assembly = assembler("inv $0, $1", "=r,r", None)
print(inverts(None, [np.array([[0, 1]], np.uint32)], None)[0])
try:
    assembler("mul $0, $1", "=r,r", None)
except assembly.NotModelled as error:
    print(error.words, "-", error.got)
#> [[4294967295 4294967294]]
#> only `inv` is known - mul $0, $1

# -- gluon_core.plugin.machine_code.find_loops, gluon_core.plugin.machine_code.Instruction, gluon_core.plugin.machine_code.Loop: loops of machine code, whose lines a vendor reads
body = [machine_code.Instruction("mov"), machine_code.Instruction("fma", labels=("again",)), machine_code.Instruction("add")]
body.append(machine_code.Instruction("branch", target="again"))
loop: machine_code.Loop
(loop,) = machine_code.find_loops(body)
print(loop.label, loop.depth, dict(loop.instruction_mix))
#> again 1 {'fma': 1, 'add': 1, 'branch': 1}

# -- gluon_core.plugin.machine_code.CodeLine: which line of a kernel a line of code is for
text = '\t.file 1 "anvil.py"\n\t.loc 1 7 0\n\tadd r0, r1\n'
line: machine_code.CodeLine
(line,) = AnvilCompiler().listing("asm", {"asm": text})
print(line.text.strip(), line.file, line.line)
print(AnvilCompiler().listing("ttgir", {"ttgir": '#loc1 = loc("anvil.py":3:5)\nop loc(#loc1)\n'})[0])
#> add r0, r1 anvil.py 7
#> CodeLine(text='op', file='anvil.py', line=3)

# -- gluon_core.simulation.watch.Watch, gluon_core.simulation.watch.Executed: watching kernels while they run
findings = []
with simulator.simulation.watch(watch.Watch(findings=findings.append)):
    twice[(1,)](x, out, target="sim:hopper")
kernel = findings[0].kernels[0]
busy = max(kernel.lines, key=lambda one: one.numbers)
print(kernel.kernel, kernel.target, kernel.columns[:2], busy.line == kernel.line + 2)
print(*(f.name for f in fields(watch.Executed)[:4]))
#> twice sim:sm_90 ('least time', 'ops') True
#> launches warps instructions instruction_mix

# -- gluon_core.plugin.reference.Remedies: the calls that order asynchronous work, for reports of a missing one
remedies = reference.Remedies(waits={"anvil": ("gl.anvil.wait({pending})",)})
print(remedies.waits["anvil"][0].format(pending=0))
#> gl.anvil.wait(0)

# -- gluon_core.plugin.reference.MATH, gluon_core.plugin.reference.MORE_MATH: functions of a vendor's math library that the simulator computes
print("erf" in reference.MATH, reference.MORE_MATH[:2])
#> True ('erfcinv', 'i0')
