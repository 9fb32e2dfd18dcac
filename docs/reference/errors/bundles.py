from show_error import folder, show_error

import gluon_core as gluon
from gluon_core import errors
from gluon_core import language as gl
from gluon_bundle import Bundle


@gluon.jit
def one(x):
    gl.store(x, 1.0)


@gluon.jit
def two(x):
    gl.store(x, 2.0)


bundle = Bundle()
bundle.add(one, {"x": "*fp32"}, target="hopper")
good = folder / "good.glb"
bundle.write(good)


def changed(name, change):
    """Return the path of a copy whose bytes were changed."""
    path = folder / name
    path.write_bytes(change(good.read_bytes()))
    return path


# -- BundleError: it is the base of those below; raised itself where gluon-runtime is missing: `pip install gluon-runtime`
try:
    Bundle.open(folder / "none.glb")
except errors.BundleError as error:
    print(type(error).__name__)
#> BundleFormatError

# -- BundleFormatError: give a file that `gluon bundle` wrote
show_error(errors.BundleFormatError, lambda: Bundle.open(folder / "none.glb"))
#> BundleFormatError: none.glb: the bundle cannot be read: No such file or directory

# -- BundleTruncatedError: copy it again, whole
show_error(errors.BundleTruncatedError, lambda: Bundle.open(changed("short.glb", lambda all: all[:-40])))
#> BundleTruncatedError: short.glb: the end of the file is missing

# -- BundleDamagedError: copy it again; its hash is not that of its bytes
middle = len(good.read_bytes()) // 2
show_error(
    errors.BundleDamagedError,
    lambda: Bundle.open(
        changed("damaged.glb", lambda all: all[:middle] + b"????" + all[middle + 4 :])
    ),
)
#> BundleDamagedError: damaged.glb: the file is damaged or was changed; expected sha256 ..., got .... Fetch or build it again.

# -- BundleTargetError: bundle it for that target as well: `-t gfx942`; a simulator has no machine code
show_error(errors.BundleTargetError, lambda: Bundle().add(one, {"x": "*fp32"}, target="sim:hopper"))
#> BundleTargetError: target: kernels for this target have no machine code; got sim:sm_90. Name the hardware: nvidia:sm_90.

# -- BundleNameError: give one of them `name=`
show_error(errors.BundleNameError, lambda: bundle.add(two, {"x": "*fp32"}, target="hopper", name="one"))
#> BundleNameError: name: two kernels that differ are called 'one'; expected reference_bundles.one (source ...), got reference_bundles.two (source ...); they differ in function and identity. Give one of them another name.

# -- BundleUnsupportedError: compile such kernels where they run
tile = "tensordesc_im2col<fp16[64, 64],input_rank=4,NVMMASharedLayout(128, 16, 2)>"
show_error(errors.BundleUnsupportedError, lambda: Bundle().add(one, {"x": tile}, target="hopper"))
#> BundleUnsupportedError: one(x): bundles cannot hold descriptors of this kind; expected descriptors of tiles, tensordesc<...>, got tensordesc_im2col<fp16[64, 64],input_rank=4,NVMMASharedLayout(128, 16, 2)>. Compile this kernel where it runs.

# -- BundleVersionError: read it with the release that wrote it, or build it again
later = lambda all: all.replace(b"gluon-bundle/1 ", b"gluon-bundle/7 ")
show_error(errors.BundleVersionError, lambda: Bundle.open(changed("later.glb", later)))
#> BundleVersionError: later.glb: the bundle has a format that this release does not read; expected format 1, got format 7. Build it anew, or install the release of gluon-runtime that it was built with.

# -- BundleHashError: fetch the bundle that you asked for; this one is whole, and another
show_error(errors.BundleHashError, lambda: Bundle.open(good, digest="0" * 64))
#> BundleHashError: good.glb: this is not the requested bundle; expected sha256 ..., got ...

# -- BundleKernelError: ask for one of those it has: `gluon bundle inspect` lists them
show_error(errors.BundleKernelError, lambda: bundle.code("onne", ""))
#> BundleKernelError: the bundle has no kernel 'onne'. Did you mean 'one'?
