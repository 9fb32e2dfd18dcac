import numpy as np

import gluon_core as gluon
from gluon_core import language as gl
from gluon_core import testing
from gluon_core.registry.load import registry

HOPPER = registry().target("sm_90")
LINE = gl.BlockedLayout([1], [32], [4], [0])


@gluon.jit
def twice(x, N: gl.constexpr):
    i = gl.arange(0, N, LINE)
    gl.store(x + i, 2 * gl.load(x + i))


# -- gluon.testing.run_parser, gluon.testing.ParsedModule, gluon.testing.MockTensor: the module that a kernel turns into
module: testing.ParsedModule = testing.run_parser(
    twice, (testing.MockTensor(gl.int32), 128), target=HOPPER
)
print([line.strip()[:34] for line in str(module).splitlines() if "tt.func" in line])
#> ['tt.func public @twice(%x: !tt.ptr<']

# -- gluon.testing.ir_of, gluon.testing.normalise: the same after common passes, to compare two kernels
text = testing.ir_of(twice, (testing.MockTensor(gl.int32), 128), target=HOPPER)
print(text == testing.normalise(module), text.count("tt.load"))
#> True 1

# -- gluon.testing.run_filecheck, gluon.testing.MatchError: whether a text has lines in an order
lines = "// CHECK: tt.load\n// CHECK: tt.store"
testing.run_filecheck("twice", text, lines)
try:
    testing.run_filecheck("twice", text, "// CHECK: tt.atomic_rmw")
except testing.MatchError as error:
    print(str(error).splitlines()[0])
#> twice does not match its CHECK lines

# -- gluon.testing.filecheck_test, gluon.testing.run_filecheck_test: a kernel with its own expected IR
@gluon.jit
def counts():
    # CHECK: tt.make_range
    gl.arange(0, 128, LINE)


testing.run_filecheck_test(counts)
test_counts = testing.filecheck_test(counts)
test_counts()
print("both passed")
#> both passed

# -- gluon.testing.bind, gluon.testing.stub_target: the arguments of `gluon.compile` for a call; the target where none is named
source, options = testing.bind(twice, (testing.MockTensor(gl.int32),), {"N": 128, "num_warps": 4})
print(gluon.compile(source, "sm_90", options).n_spills, testing.stub_target())
#> 0 nvidia:sm_100

# -- gluon.testing.TRITON_VERSION, gluon.testing.triton_at_least: the installed release of Triton, for tests that depend on it
print(testing.TRITON_VERSION >= (3, 6), testing.triton_at_least(3, 6))
#> True True

# -- gluon.testing.place, gluon.testing.Place: the device and the target for kernels that need a capability
here: testing.Place = testing.place("nvidia.wgmma")
x = here.array(np.arange(128, dtype=np.int32))
twice[(1,)](x, 128, target=here.target)
print(here.target, here.simulated, here.numpy(x)[:3])
#> sim:sm_90 True [0 2 4]
