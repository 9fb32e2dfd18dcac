// Warp instructions, on whole and on parts of warps.
#include "common.cuh"
#define ALL 0xffffffffu

// launch: grid=2 block=64
KERNEL shuffles(ARGS) {
    int i = thread(), lane = threadIdx.x & 31;
    u32 v = u[i], *o = out + 8 * i;
    o[0] = __shfl_sync(ALL, v, (lane * 5 + 3) & 31), o[1] = __shfl_up_sync(ALL, v, 3);
    o[2] = __shfl_down_sync(ALL, v, 7, 16), o[3] = __shfl_xor_sync(ALL, v, 21);
    o[4] = __shfl_sync(ALL, v, lane + 9, 8), o[5] = __shfl_xor_sync(ALL, v, 12, 8);
    o[6] = bits(__shfl_up_sync(ALL, (float)lane, 1, 4));
    o[7] = (u32)(__shfl_down_sync(ALL, (u64)v << 13 | lane, 5) >> 9);
}

// launch: grid=1 block=96
KERNEL votes(ARGS) {
    int i = thread();
    u32 v = u[i], *o = out + 6 * i;
    o[0] = __ballot_sync(ALL, v & 4), o[1] = __any_sync(ALL, v % 40 == 3), o[2] = __all_sync(ALL, v % 50 != 7);
    o[3] = __match_any_sync(ALL, v & 3);
    int p;
    o[4] = __match_all_sync(ALL, i / 64, &p), o[5] = p;
}

// launch: grid=1 block=64
KERNEL reductions(ARGS) {
    int i = thread();
    u32 v = u[i], *o = out + 8 * i;
    o[0] = __reduce_add_sync(ALL, v), o[1] = __reduce_min_sync(ALL, v), o[2] = __reduce_max_sync(ALL, (int)v);
    o[3] = __reduce_and_sync(ALL, v | 0xf0), o[4] = __reduce_or_sync(ALL, v & 0xff), o[5] = __reduce_xor_sync(ALL, v);
    o[6] = __reduce_min_sync(ALL, (int)v);
    if (v & 1) o[7] = __reduce_add_sync(__activemask(), threadIdx.x);
}

// launch: grid=1 block=64
KERNEL partial_masks(ARGS) {
    int i = thread(), lane = threadIdx.x & 31;
    u32 r = 0;
    if (lane < 12) r = __shfl_sync(0xfff, u[i], (lane + 1) % 12);
    else if (lane < 20) r = __ballot_sync(0xff000, u[i] & 1);
    else r = __any_sync(0xfff00000, u[i] % 9 == 0) + 100;
    __syncwarp();
    out[i] = r + __popc(__ballot_sync(ALL, r & 1));
}

// launch: grid=1 block=128
KERNEL warp_scan(ARGS) {
    int lane = threadIdx.x & 31;
    u32 v = u[thread()] & 0xffff;
#pragma unroll
    for (int d = 1; d < 32; d *= 2) { u32 o = __shfl_up_sync(ALL, v, d); if (lane >= d) v += o; }
    out[thread()] = v;
}

// launch: grid=1 block=64
KERNEL butterfly_floats(ARGS) {
    float v = x[thread() + 64], m = v;
    for (int d = 16; d; d >>= 1) v += __shfl_xor_sync(ALL, v, d), m = fmaxf(m, __shfl_xor_sync(ALL, m, d));
    out[2 * thread()] = bits(v), out[2 * thread() + 1] = bits(m);
}

// launch: grid=1 block=64
KERNEL lane_masks(ARGS) {
    u32 lt, le, eq, ge, gt, lane, warp;
    asm volatile("mov.u32 %0, %%lanemask_lt; mov.u32 %1, %%lanemask_le; mov.u32 %2, %%lanemask_eq;" : "=r"(lt), "=r"(le), "=r"(eq));
    asm volatile("mov.u32 %0, %%lanemask_ge; mov.u32 %1, %%lanemask_gt; mov.u32 %2, %%laneid;" : "=r"(ge), "=r"(gt), "=r"(lane));
    asm volatile("mov.u32 %0, %%nwarpid;" : "=r"(warp));
    u32* o = out + 6 * thread();
    o[0] = lt, o[1] = le, o[2] = eq, o[3] = ge, o[4] = gt, o[5] = lane + (warp ? 0 : 1);
}

// launch: grid=1 block=64
KERNEL warp_aggregated_counter(ARGS) {
    u32 place = 0;
    if (u[thread()] % 3 == 0) {
        u32 mask = __activemask();
        int leader = __ffs(mask) - 1, lane = threadIdx.x & 31;
        u32 start = 0;
        if (lane == leader) start = atomicAdd(out + 1000, __popc(mask));
        start = __shfl_sync(mask, start, leader);
        place = start + __popc(mask & ((1u << lane) - 1)) + 1;
    }
    atomicXor(out + 1001, place * place);
    atomicMax(out + 1002, place);
}

#if __CUDA_ARCH__ >= 900
// launch: grid=1 block=64
KERNEL elected(ARGS) {
    u32 lane, who;
    asm volatile("{ .reg .pred p; elect.sync %0|p, 0xffffffff; selp.u32 %1, 1, 0, p; }" : "=r"(lane), "=r"(who));
    out[2 * thread()] = lane, out[2 * thread() + 1] = who;
}
#endif
