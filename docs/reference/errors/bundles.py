import re
import tempfile
from pathlib import Path

import gluon_core as gluon
from gluon_core import errors
from gluon_core import language as gl
from gluon_core.compiler.bundle import Bundle

folder = Path(tempfile.mkdtemp())


def said(kind, wrong):
    """What an error of this class says."""
    try:
        wrong()
    except kind as error:
        text = str(error).splitlines()[0].replace(f"{folder}/", "")
        print(f"{type(error).__name__}: {re.sub('[0-9a-f]{12,}', '...', text)}")


@gluon.jit
def one(x):
    gl.store(x, 1.0)


@gluon.jit
def two(x):
    gl.store(x, 2.0)


made = Bundle()
made.add(one, {"x": "*fp32"}, target="hopper")
good = folder / "good.glb"
made.write(good)


def changed(name, change):
    """The path of a copy whose bytes were changed."""
    path = folder / name
    path.write_bytes(change(good.read_bytes()))
    return path


# -- BundleFormatError: give a file that `gluon bundle` wrote
said(errors.BundleFormatError, lambda: Bundle.open(folder / "none.glb"))
#> BundleFormatError: none.glb: the bundle cannot be read: No such file or directory

# -- BundleTruncatedError: copy it again, whole
said(errors.BundleTruncatedError, lambda: Bundle.open(changed("short.glb", lambda all: all[:-40])))
#> BundleTruncatedError: short.glb: the end of the file is missing

# -- BundleDamagedError: copy it again; its hash is not that of its bytes
middle = len(good.read_bytes()) // 2
said(
    errors.BundleDamagedError,
    lambda: Bundle.open(
        changed("damaged.glb", lambda all: all[:middle] + b"????" + all[middle + 4 :])
    ),
)
#> BundleDamagedError: damaged.glb: the file is damaged or was changed; expected sha256 ..., got .... Fetch or build it again.

# -- BundleTargetError: bundle it for that target as well: `-t gfx942`; a simulator has no machine code
said(errors.BundleTargetError, lambda: Bundle().add(one, {"x": "*fp32"}, target="sim:hopper"))
#> BundleTargetError: target: kernels for this target have no machine code; got sim:sm_90. Name the hardware: nvidia:sm_90.

# -- BundleNameError: give one of them `name=`
said(errors.BundleNameError, lambda: made.add(two, {"x": "*fp32"}, target="hopper", name="one"))
#> BundleNameError: name: two kernels that differ are called 'one'; expected reference_bundles.one (source ...), got reference_bundles.two (source ...); they differ in function and identity. Give one of them another name.

# -- BundleUnsupportedError: let the kernel make the descriptor
tile = "tensordesc<fp16[64, 64],NVMMASharedLayout(128, 16, 2)>"
said(errors.BundleUnsupportedError, lambda: Bundle().add(one, {"x": tile}, target="hopper"))
#> BundleUnsupportedError: one(x): bundles cannot hold kernels that take tensor descriptors; got tensordesc<fp16[64, 64],NVMMASharedLayout(128, 16, 2)>. Pass a pointer, and make the descriptor in the kernel (tma.make_tensor_descriptor), or compile this kernel where it runs.
