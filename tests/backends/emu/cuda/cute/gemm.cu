#include <cute/tensor.hpp>
#include <cute/atom/mma_atom.hpp>
#include <cute/atom/copy_atom.hpp>
#include <cutlass/arch/barrier.h>
using namespace cute;

// C (M, N) = A (M, K) B (N, K)^T, tiles of 64 x 64 x 32, two stages of cp.async
extern "C" __global__ void __launch_bounds__(128) gemm_sm80(half_t const* A, half_t const* B, float* C, int M, int N, int K) {
  Tensor mA = make_tensor(make_gmem_ptr(A), make_shape(M, K), make_stride(K, Int<1>{}));
  Tensor mB = make_tensor(make_gmem_ptr(B), make_shape(N, K), make_stride(K, Int<1>{}));
  Tensor mC = make_tensor(make_gmem_ptr(C), make_shape(M, N), make_stride(N, Int<1>{}));
  auto tile = Shape<_64, _64, _32>{};
  auto coord = make_coord(blockIdx.x, blockIdx.y, _);
  Tensor gA = local_tile(mA, tile, coord, Step<_1, X, _1>{});
  Tensor gB = local_tile(mB, tile, coord, Step<X, _1, _1>{});
  Tensor gC = local_tile(mC, tile, coord, Step<_1, _1, X>{});
  using Atom = decltype(composition(Swizzle<2, 3, 3>{}, Layout<Shape<_8, _32>, Stride<_32, _1>>{}));
  using SL = decltype(tile_to_shape(Atom{}, Shape<_64, _32, _2>{}));
  __shared__ alignas(128) half_t a_room[cosize_v<SL>];
  __shared__ alignas(128) half_t b_room[cosize_v<SL>];
  Tensor sA = make_tensor(make_smem_ptr(a_room), SL{});
  Tensor sB = make_tensor(make_smem_ptr(b_room), SL{});
  auto copier = make_tiled_copy(Copy_Atom<SM80_CP_ASYNC_CACHEGLOBAL<uint128_t>, half_t>{}, Layout<Shape<_32, _4>, Stride<_4, _1>>{}, Layout<Shape<_1, _8>>{});
  auto thr = copier.get_slice(threadIdx.x);
  Tensor tAg = thr.partition_S(gA);
  Tensor tAs = thr.partition_D(sA);
  Tensor tBg = thr.partition_S(gB);
  Tensor tBs = thr.partition_D(sB);
  TiledMMA mma = make_tiled_mma(SM80_16x8x16_F32F16F16F32_TN{}, Layout<Shape<_2, _2>>{}, Tile<_32, _32, _16>{});
  auto tm = mma.get_slice(threadIdx.x);
  Tensor tCg = tm.partition_C(gC);
  Tensor acc = tm.make_fragment_C(tCg);
  Tensor rA = tm.partition_fragment_A(sA(_, _, 0));
  Tensor rB = tm.partition_fragment_B(sB(_, _, 0));
  clear(acc);
  auto ldA = make_tiled_copy_A(Copy_Atom<SM75_U32x4_LDSM_N, half_t>{}, mma);
  auto ldB = make_tiled_copy_B(Copy_Atom<SM75_U32x4_LDSM_N, half_t>{}, mma);
  auto lA = ldA.get_slice(threadIdx.x);
  auto lB = ldB.get_slice(threadIdx.x);
  int steps = size<2>(gA);
  copy(copier, tAg(_, _, _, 0), tAs(_, _, _, 0));
  copy(copier, tBg(_, _, _, 0), tBs(_, _, _, 0));
  cp_async_fence();
  for (int k = 0; k < steps; ++k) {
    cp_async_wait<0>();
    __syncthreads();
    if (k + 1 < steps) {
      copy(copier, tAg(_, _, _, k + 1), tAs(_, _, _, (k + 1) & 1));
      copy(copier, tBg(_, _, _, k + 1), tBs(_, _, _, (k + 1) & 1));
    }
    cp_async_fence();
    copy(ldA, lA.partition_S(sA)(_, _, _, k & 1), lA.retile_D(rA));
    copy(ldB, lB.partition_S(sB)(_, _, _, k & 1), lB.retile_D(rB));
    gemm(mma, rA, rB, acc);
  }
  copy(acc, tCg);
}

// The same with wgmma on tiles of 64 x 64 x 64
extern "C" __global__ void __launch_bounds__(128) gemm_sm90(half_t const* A, half_t const* B, float* C, int M, int N, int K) {
  Tensor mA = make_tensor(make_gmem_ptr(A), make_shape(M, K), make_stride(K, Int<1>{}));
  Tensor mB = make_tensor(make_gmem_ptr(B), make_shape(N, K), make_stride(K, Int<1>{}));
  Tensor mC = make_tensor(make_gmem_ptr(C), make_shape(M, N), make_stride(N, Int<1>{}));
  auto tile = Shape<_64, _64, _64>{};
  auto coord = make_coord(blockIdx.x, blockIdx.y, _);
  Tensor gA = local_tile(mA, tile, coord, Step<_1, X, _1>{});
  Tensor gB = local_tile(mB, tile, coord, Step<X, _1, _1>{});
  Tensor gC = local_tile(mC, tile, coord, Step<_1, _1, X>{});
  using SL = decltype(tile_to_shape(GMMA::Layout_K_SW128_Atom<half_t>{}, Shape<_64, _64, _2>{}));
  __shared__ alignas(1024) half_t a_room[cosize_v<SL>];
  __shared__ alignas(1024) half_t b_room[cosize_v<SL>];
  Tensor sA = make_tensor(make_smem_ptr(a_room), SL{});
  Tensor sB = make_tensor(make_smem_ptr(b_room), SL{});
  auto copier = make_tiled_copy(Copy_Atom<SM80_CP_ASYNC_CACHEGLOBAL<uint128_t>, half_t>{}, Layout<Shape<_16, _8>, Stride<_8, _1>>{}, Layout<Shape<_1, _8>>{});
  auto thr = copier.get_slice(threadIdx.x);
  Tensor tAg = thr.partition_S(gA);
  Tensor tAs = thr.partition_D(sA);
  Tensor tBg = thr.partition_S(gB);
  Tensor tBs = thr.partition_D(sB);
  TiledMMA mma = make_tiled_mma(SM90_64x64x16_F32F16F16_SS<GMMA::Major::K, GMMA::Major::K>{});
  auto tm = mma.get_slice(threadIdx.x);
  Tensor tCg = tm.partition_C(gC);
  Tensor acc = tm.make_fragment_C(tCg);
  Tensor fA = tm.make_fragment_A(tm.partition_A(sA));
  Tensor fB = tm.make_fragment_B(tm.partition_B(sB));
  clear(acc);
  int steps = size<2>(gA);
  copy(copier, tAg(_, _, _, 0), tAs(_, _, _, 0));
  copy(copier, tBg(_, _, _, 0), tBs(_, _, _, 0));
  cp_async_fence();
  for (int k = 0; k < steps; ++k) {
    cp_async_wait<0>();
    cutlass::arch::fence_view_async_shared();
    __syncthreads();
    warpgroup_fence_operand(acc);
    warpgroup_arrive();
    gemm(mma, fA(_, _, _, k & 1), fB(_, _, _, k & 1), acc);
    warpgroup_commit_batch();
    if (k + 1 < steps) {
      copy(copier, tAg(_, _, _, k + 1), tAs(_, _, _, (k + 1) & 1));
      copy(copier, tBg(_, _, _, k + 1), tBs(_, _, _, (k + 1) & 1));
    }
    cp_async_fence();
    warpgroup_wait<0>();
    warpgroup_fence_operand(acc);
    __syncthreads();
  }
  copy(acc, tCg);
}
