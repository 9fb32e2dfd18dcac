from gluon_core import language as gl
from gluon_core import layouts

# -- BlockedLayout: neighbours to a thread, threads to a warp, warps to a block
rows = gl.BlockedLayout([1, 2], [2, 4], [1, 1], [1, 0])
print(rows.format_tensor_view([2, 8]))
print(layouts.owner(rows, [2, 8], (1, 3)))
#> [[T0:0, T0:1, T1:0, T1:1, T2:0, T2:1, T3:0, T3:1],
#>  [T4:0, T4:1, T5:0, T5:1, T6:0, T6:1, T7:0, T7:1]]
#> [(0, 0, 5, 1)]

# -- SliceLayout: the layout after a reduction, and before `expand_dims`
print(gl.SliceLayout(1, rows).format_tensor_view([2]))
#> [T0:0|T1:0|T2:0|T3:0, T4:0|T5:0|T6:0|T7:0]

# -- DistributedLinearLayout: by its bases
swapped = gl.DistributedLinearLayout([[0, 4]], [[1, 0], [0, 1], [0, 2]], [], [], [2, 8])
print(swapped.format_tensor_view([2, 8]))
#> [[T0:0, T2:0, T4:0, T6:0, T0:1, T2:1, T4:1, T6:1],
#>  [T1:0, T3:0, T5:0, T7:0, T1:1, T3:1, T5:1, T7:1]]

# -- DotOperandLayout, NVMMADistributedLayout: an operand of a matrix unit, and the layout of its result
mma = gl.NVMMADistributedLayout([2, 0], [1, 1], [16, 8])
print(layouts.explain_layout(gl.DotOperandLayout(0, mma, 2), [16, 16]))
print("element (9, 3) of the result:", layouts.owner(mma, [16, 8], (9, 3)))
#> DotOperandLayout(operand_index=0, parent=NVMMADistributedLayout(version=[2, 0], warps_per_cta=[1, 1], instr_shape=[16, 8], cga_layout=[]), k_width=2)
#> for a tensor of shape [16, 16]:
#>   register (8): 1 -> (0,1), 2 -> (8,0), 4 -> (0,8)
#>   lane (32): 1 -> (0,2), 2 -> (0,4), 4 -> (1,0), 8 -> (2,0), 16 -> (4,0)
#>   warp (1): one value
#>   block (1): one value
#> element (9, 3) of the result: [(0, 0, 5, 3)]

# -- AutoLayout, CoalescedLayout: left to the compiler, so there is nothing to draw
print(gl.AutoLayout(), gl.CoalescedLayout())
#> AutoLayout() CoalescedLayout()

# -- SwizzledSharedLayout: rows whose vectors are permuted
swizzled = gl.SwizzledSharedLayout(2, 1, 4, [1, 0])
print(swizzled.format_tensor_view([4, 8]))
columns = gl.BlockedLayout([1, 1], [32, 1], [1, 1], [0, 1])
full = gl.SwizzledSharedLayout(1, 1, 32, [1, 0])
print(layouts.bank_conflicts(columns, full, [32, 32], bits=32), "extra passes")
#> [[ 0,  1,  2,  3,  4,  5,  6,  7],
#>  [10, 11,  8,  9, 14, 15, 12, 13],
#>  [20, 21, 22, 23, 16, 17, 18, 19],
#>  [30, 31, 28, 29, 26, 27, 24, 25]]
#> 0 extra passes

# -- PaddedSharedLayout: gaps after every so many elements
padded = gl.PaddedSharedLayout.with_identity_for([[8, 2]], [4, 8], [1, 0])
print(padded.format_tensor_view([4, 8]))
#> [[ 0,  1,  2,  3,  4,  5,  6,  7],
#>  [10, 11, 12, 13, 14, 15, 16, 17],
#>  [20, 21, 22, 23, 24, 25, 26, 27],
#>  [30, 31, 32, 33, 34, 35, 36, 37]]

# -- SharedLinearLayout: by its bases
print(gl.SharedLinearLayout([[0, 1], [0, 2], [1, 1]], []).format_tensor_view([2, 4]))
#> [[0, 1, 2, 3],
#>  [5, 4, 7, 6]]

# -- NVMMASharedLayout: a tile as TMA writes it and `wgmma` reads it
tile = gl.NVMMASharedLayout(swizzle_byte_width=64, element_bitwidth=16)
print(layouts.explain_layout(tile, [8, 32]))
#> NVMMASharedLayout(swizzle_byte_width=64, element_bitwidth=16, rank=2, transposed=False, fp4_padded=False, cga_layout=[])
#> for a tensor of shape [8, 32]:
#>   offset (256): 1 -> (0,1), 2 -> (0,2), 4 -> (0,4), 8 -> (0,8), 16 -> (0,16), 32 -> (1,0), 64 -> (2,8), 128 -> (4,16)
#>   block (1): one value

# -- AMDMFMALayout, AMDWMMALayout: accumulators of AMD's matrix units
mfma = gl.amd.AMDMFMALayout(4, [16, 16, 16], True, [1, 1])
wmma = gl.amd.AMDWMMALayout(2, True, [])
print(layouts.owner(mfma, [16, 16], (1, 5)), layouts.owner(wmma, [16, 16], (1, 5)))
#> [(0, 0, 17, 1)] [(0, 0, 1, 5)]
