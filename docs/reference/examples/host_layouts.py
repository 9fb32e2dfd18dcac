from gluon_core import language as gl
from gluon_core import layouts

ROWS = gl.BlockedLayout([1, 2], [4, 8], [2, 1], [1, 0])
COLUMNS = gl.BlockedLayout([2, 1], [4, 8], [2, 1], [0, 1])
SHARED = gl.SwizzledSharedLayout(2, 1, 8, [1, 0])


# -- gluon.layouts.Layout, gluon.layouts.DistributedLayout, gluon.layouts.SharedLayout: the base classes of all layouts
for one in (ROWS, SHARED):
    kinds = (layouts.Layout, layouts.DistributedLayout, layouts.SharedLayout)
    print(type(one).__name__, [isinstance(one, kind) for kind in kinds])
#> BlockedLayout [True, True, False]
#> SwizzledSharedLayout [True, False, True]

# -- gluon.layouts.LinearLayout: the common form of all layouts: bits of the hardware's indices to bits of the element's
bits = layouts.LinearLayout({"lane": [(0, 1), (0, 2), (1, 0)]}, {"row": 2, "column": 4})
print(bits.apply(lane=5))
print(ROWS.to_linear([8, 16]) == layouts.as_linear(ROWS, [8, 16]).to_linear([8, 16]))
#> {'row': 1, 'column': 1}
#> True

# -- gluon.layouts.owner, gluon.layouts.equal, gluon.layouts.as_linear: who holds an element; whether two layouts put all alike
print("(block, warp, lane, register):", layouts.owner(ROWS, [8, 16], [5, 3]))
print(layouts.equal(ROWS, layouts.as_linear(ROWS, [8, 16]), [8, 16]), layouts.equal(ROWS, COLUMNS, [8, 16]))
#> (block, warp, lane, register): [(0, 1, 9, 1)]
#> True False

# -- gluon.layouts.hardware_view, gluon.layouts.tensor_view, gluon.layouts.dump: a layout as text, seen from either side
small = gl.BlockedLayout([1, 2], [2, 2], [1, 1], [1, 0])
print(layouts.tensor_view(small, [2, 4]))
print(layouts.hardware_view(small, [2, 4]))
print(layouts.dump([[0, 1, 2, 3], [4, 5, 6, 7]], small))
#> [[T0:0, T0:1, T1:0, T1:1],
#>  [T2:0, T2:1, T3:0, T3:1]]
#> Warp 0:
#> (0,0), (0,2), (1,0), (1,2)
#> (0,1), (0,3), (1,1), (1,3)
#> T0: 0 1
#> T1: 2 3
#> T2: 4 5
#> T3: 6 7

# -- gluon.layouts.explain_layout, gluon.layouts.explain: the effect of a layout, and the steps of a conversion
print(layouts.explain_layout(ROWS, [8, 16]))
print(layouts.explain(ROWS, COLUMNS, [8, 16], bits=32))
#> BlockedLayout(size_per_thread=[1, 2], threads_per_warp=[4, 8], warps_per_cta=[2, 1], order=[1, 0], cga_layout=[])
#> for a tensor of shape [8, 16]:
#>   register (2): 1 -> (0,1)
#>   lane (32): 1 -> (0,2), 2 -> (0,4), 4 -> (0,8), 8 -> (1,0), 16 -> (2,0)
#>   warp (2): 1 -> (4,0)
#>   block (1): one value
#> from BlockedLayout(size_per_thread=[1, 2], threads_per_warp=[4, 8], warps_per_cta=[2, 1], order=[1, 0], cga_layout=[])
#> to   BlockedLayout(size_per_thread=[2, 1], threads_per_warp=[4, 8], warps_per_cta=[2, 1], order=[0, 1], cga_layout=[])
#> for a tensor of shape [8, 16], 32 bits per element:
#>   within each block: through 512 bytes of shared memory and a barrier; unswizzled, stores take 0 and loads 3 extra passes

# -- gluon.layouts.conversion, gluon.layouts.ConversionCost: the same as numbers, for tests and searches
cost = layouts.conversion(ROWS, COLUMNS, [8, 16], bits=32)
print(cost.kind, cost.shuffles, cost.shared_bytes, isinstance(cost, layouts.ConversionCost))
#> shared 0 512 True

# -- gluon.layouts.bank_conflicts, gluon.layouts.vector_elements: the cost of an access of shared memory
plain = gl.SwizzledSharedLayout(1, 1, 1, [1, 0])
down = gl.BlockedLayout([1, 1], [32, 1], [1, 1], [0, 1])
for name, buffer in (("plain", plain), ("swizzled", gl.SwizzledSharedLayout(1, 1, 32, [1, 0]))):
    print(name, layouts.bank_conflicts(down, buffer, [32, 32], bits=32), "extra passes")
print(layouts.vector_elements(ROWS, SHARED, [8, 16], bits=32), "elements at once")
#> plain 7 extra passes
#> swizzled 0 extra passes
#> 2 elements at once

# -- gluon.layouts.compare, gluon.layouts.Picture: a drawing of the elements that move between two; `layout.show()` draws one
picture = layouts.compare(ROWS, COLUMNS, [8, 16])
print(isinstance(picture, layouts.Picture), str(picture).splitlines()[-1].strip())
#> True 128 of 128 elements: to another warp

# -- gluon.layouts.infer: the layouts of the results of ops that only move elements, as the compiler makes them
print(layouts.infer.permute(ROWS, [8, 16], [1, 0]))
#> BlockedLayout(size_per_thread=[2, 1], threads_per_warp=[8, 4], warps_per_cta=[1, 2], order=[0, 1], cga_layout=[])

# -- gluon.layouts.compiler_version, gluon.layouts.set_compiler_version: conventions follow the installed Triton, or one that you name
layouts.set_compiler_version((3, 6))
print(layouts.compiler_version())
layouts.set_compiler_version(None)
#> (3, 6)

# -- gluon.layouts.set_type_factory: the class of `layout.type`; the language sets it once, and programs need not
kept = ROWS.type
layouts.set_type_factory(lambda layout: f"the type of {type(layout).__name__}")
print(ROWS.type)
layouts.set_type_factory(type(kept))  # as it was
#> the type of BlockedLayout
