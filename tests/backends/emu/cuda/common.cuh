// The arguments of every kernel: random words, floats (special ones first), the results, the number of each.
#pragma once
#include <cstdint>
using u32 = unsigned;
using u64 = unsigned long long;
#define KERNEL extern "C" __global__ void
#define ARGS const u32* __restrict__ u, const float* __restrict__ x, u32* out, int n
__device__ __forceinline__ int thread() { return blockIdx.x * blockDim.x + threadIdx.x; }
__device__ __forceinline__ u32 bits(float v) { return __float_as_uint(v); }
__device__ __forceinline__ void put(u32* out, int i, double v) {
    u64 w = __double_as_longlong(v);
    out[2 * i] = (u32)w, out[2 * i + 1] = (u32)(w >> 32);
}
__device__ __forceinline__ void put64(u32* out, int i, u64 w) { out[2 * i] = (u32)w, out[2 * i + 1] = (u32)(w >> 32); }
