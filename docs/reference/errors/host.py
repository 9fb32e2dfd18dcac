import os
import subprocess
import sys

import numpy as np
from show_error import folder, show_error

import gluon_core as gluon
from gluon_core import errors
from gluon_core import language as gl

LINE = gl.BlockedLayout([1], [32], [4], [0])
x = np.arange(128, dtype=np.float32)


@gluon.jit
def ones(x, N: gl.constexpr = 128):
    gl.store(x + gl.arange(0, N, LINE), 1.0)


# -- GluonError: it is the base of all; catch it where any mistake shall be caught, and read its parts
try:
    ones[(1,)](x, target="sim:hoper")
except errors.GluonError as error:
    print(type(error).__name__, error.argument, error.got, sep=", ")
#> TargetError, target, 'sim:hoper'

# -- TargetError: `gluon info` lists the targets of the plugins that are installed
show_error(errors.TargetError, lambda: ones[(1,)](x, target="sim:hoper"))
#> TargetError: target: unknown architecture 'hoper'; got 'sim:hoper'. Did you mean 'hopper' or 'thor'? Installed backends: amd, emu, nvidia, sim.

# -- OptionError: the message names the nearest option
show_error(errors.OptionError, lambda: ones[(1,)](x, target="sim:hopper", num_warp=4))
#> OptionError: num_warp: nvidia has no compile option 'num_warp'. Did you mean 'num_warps' or 'num_ctas'?

# -- CallError: the arguments are those of the kernel's parameters, in number and by name
@gluon.jit
def scaled(x, factor, BLOCK: gl.constexpr):
    gl.store(x, factor)


show_error(errors.CallError, lambda: scaled[(1,)](x, 2.0, BLOK=128, target="sim:hopper"))
#> CallError: scaled() missing 1 required argument: 'BLOCK'; got BLOK. Did you mean 'BLOCK'?

# -- IntegerError: kernels take integers of up to 64 bits; pass a wider one in parts
@gluon.jit
def filled(x, value):
    gl.store(x, value)


show_error(errors.IntegerError, lambda: filled[(1,)](x, 2**70, target="sim:hopper"))
#> IntegerError: filled(value): the integer does not fit 64 bits; got ...

# -- LaunchError: a grid has one to three positive sizes
show_error(errors.LaunchError, lambda: ones[(1, 1, 1, 1)](x, target="sim:hopper"))
#> LaunchError: grid: not a grid; expected an int, one to three ints, or a function of the arguments that returns those, got (1, 1, 1, 1)

# -- DeviceError: run it on the simulator, with target="sim:hopper" or GLUON_TARGET
show_error(errors.DeviceError, lambda: ones[(1,)](x, target="nvidia:sm_90"))
#> DeviceError: x: nvidia:sm_90 works on cuda tensors; got x on cpu:0. Move them with .cuda(). Or simulate with GLUON_TARGET=sim:sm_90.

# -- RecompileError: strict mode (`GLUON_NO_JIT=1`): compile before, or take the argument that was compiled for
os.environ["GLUON_NO_JIT"] = "1"
try:
    show_error(errors.RecompileError, lambda: ones[(1,)](x, N=64, target="sim:hopper"))
finally:
    del os.environ["GLUON_NO_JIT"]
#> RecompileError: N: this launch of ones would compile and GLUON_NO_JIT is set; expected N: constant 128, got N: constant 64. Warm it up, add it to a bundle, or keep the argument from changing the key (do_not_specialize, do_not_specialize_on_alignment).

# -- KernelChangedError: start the program again; a kernel is compiled from its file, which has other lines now
import importlib.util

file = folder / "changing.py"
file.write_text(
    "import gluon_core as gluon\nfrom gluon_core import language as gl\n\n\n"
    "@gluon.jit\ndef one(x):\n    gl.store(x, 1.0)\n"
)
spec = importlib.util.spec_from_file_location("changing", file)
changing = importlib.util.module_from_spec(spec)
spec.loader.exec_module(changing)
file.write_text(file.read_text().replace("1.0", "2.0"))
os.utime(file, (0, 0))
show_error(errors.KernelChangedError, lambda: changing.one[(1,)](x, target="sim:hopper"))
#> KernelChangedError: changing.py:5: one changed on disk since it was imported. Import the module again (restart the process) to compile the new source.

# -- PluginError: the message names the plugin's mistake; here, that it comes after plugins are read
from gluon_core.registry.load import registry

show_error(errors.PluginError, lambda: registry().register(object(), name="late"))
#> PluginError: plugin: the registry is frozen; got 'late'. Pass it to gluon_core.registry.load.load(plugins=[...]).

# -- BackendError: a plugin, a tool of a vendor or the machine failed; here there is no such text
kernel = gluon.compile(ones, "sm_90", signature={"x": "*fp32"})
show_error(errors.BackendError, lambda: registry().backend("nvidia").compiler.listing("sass", {"cubin": b"none"}))
#> BackendError: nvdisasm could not read the machine code

# -- StageError: a compiler failed on a kernel; `diagnostics` has its words, `reproducer` a file to run again
@gluon.jit
def garbled(x):
    i = gl.arange(0, 128, LINE)
    v = gl.inline_asm_elementwise("no.such $0, $1;", "=r,r", [i], gl.int32, True, 1)
    gl.store(x + i, v.to(gl.float32))


try:
    gluon.compile(garbled, "sm_90", signature={"x": "*fp32"})
except errors.StageError as error:
    print(str(error).partition(": ")[0], "... no such" if "no.such" in str(error) else "")
#> compiling garbled for nvidia:sm_90 failed in stage cubin ... no such

# -- CacheError: give a folder that can be written as TRITON_CACHE_DIR
from gluon_bundle import Bundle, export_cache

show_error(errors.CacheError, lambda: export_cache(Bundle(), "nowhere"))
#> CacheError: folder: there is no compilation cache; got nowhere

# -- TritonVersionError: install a Triton from 3.6 on: the one that your torch pins
code = "import sys; sys.modules['triton'] = None; import gluon_core.language"
done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
print(done.stderr.strip().splitlines()[-1].removeprefix("gluon_core.errors."))
print(issubclass(errors.TritonVersionError, ImportError))
#> TritonVersionError: triton is not installed; expected triton >= 3.6. Install the triton that your torch pins, or `pip install triton`.
#> True
