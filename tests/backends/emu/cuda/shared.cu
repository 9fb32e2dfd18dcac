// Shared memory, barriers, atomics, and blocks that communicate.
#include "common.cuh"

// launch: grid=4 block=128
KERNEL histogram(ARGS) {
    __shared__ u32 bins[64];
    if (threadIdx.x < 64) bins[threadIdx.x] = 0;
    __syncthreads();
    for (int k = 0; k < 4; ++k) atomicAdd(bins + (u[(thread() + k * 37) % n] & 63), 1u);
    __syncthreads();
    if (threadIdx.x < 64) atomicAdd(out + threadIdx.x, bins[threadIdx.x]);
}

// launch: grid=1 block=128
KERNEL atomics(ARGS) {
    __shared__ u32 s[16];
    __shared__ u64 w[2];
    __shared__ float f;
    int t = threadIdx.x;
    if (t < 16) s[t] = t == 3 ? ~0u : 0;
    if (t == 0) w[0] = 0, w[1] = 1ull << 40, f = 0;
    __syncthreads();
    u32 v = u[t];
    atomicAdd(s, v), atomicSub(s + 1, v), atomicMax(s + 2, v), atomicMin(s + 3, v);
    atomicMax((int*)s + 4, (int)v), atomicMin((int*)s + 5, (int)v), atomicOr(s + 6, 1u << (v & 31));
    atomicXor(s + 7, v), atomicInc(s + 8, 50), atomicDec(s + 9, 70), atomicAnd(s + 10, v);
    atomicAdd(w, (u64)v * v), atomicMax(w + 1, (u64)v << 20), atomicAdd(&f, (float)(v & 255));
    __syncthreads();
    if (t < 16) out[t] = s[t];
    if (t == 0) put64(out, 8, w[0]), put64(out, 9, w[1]), out[20] = bits(f);
}

// launch: grid=2 block=64
KERNEL float_max_by_cas(ARGS) {
    int* target = (int*)out;
    float v = fabsf(x[thread() + 64]);
    int old = *(volatile int*)target;
    while (__int_as_float(old) < v) {
        int seen = atomicCAS(target, old, __float_as_int(v));
        if (seen == old) break;
        old = seen;
    }
}

// launch: grid=2 block=256
KERNEL block_scan(ARGS) {
    __shared__ u32 s[2][256];
    int t = threadIdx.x, from = 0;
    s[0][t] = u[thread()] & 1023;
    __syncthreads();
    for (int d = 1; d < 256; d *= 2, from ^= 1) {
        s[from ^ 1][t] = s[from][t] + (t >= d ? s[from][t - d] : 0);
        __syncthreads();
    }
    out[thread()] = s[from][t];
}

// launch: grid=2,2 block=32,8
KERNEL transposed_tile(ARGS) {
    __shared__ float tile[32][33];
    int c = blockIdx.x * 32 + threadIdx.x, r = blockIdx.y * 32 + threadIdx.y;
    for (int k = 0; k < 32; k += 8) tile[threadIdx.y + k][threadIdx.x] = x[((r + k) * 64 + c) % n];
    __syncthreads();
    c = blockIdx.y * 32 + threadIdx.x, r = blockIdx.x * 32 + threadIdx.y;
    for (int k = 0; k < 32; k += 8) out[(r + k) * 64 + c] = bits(tile[threadIdx.x][threadIdx.y + k]);
}

extern __shared__ __align__(16) unsigned char dynamic[];

// launch: grid=1 block=64 shared=2048
KERNEL dynamic_shared(ARGS) {
    u32* words = (u32*)dynamic;
    unsigned short* halves = (unsigned short*)(dynamic + 1024);
    int t = threadIdx.x;
    words[t] = u[t], halves[63 - t] = (unsigned short)(u[t] >> 5);
    __syncthreads();
    ((uint4*)(dynamic + 1536))[t % 16] = ((uint4*)dynamic)[t / 4];
    __syncthreads();
    out[t] = words[(t * 7) & 63] + halves[t];
}

// launch: grid=2 block=96
KERNEL block_votes(ARGS) {
    u32 v = u[thread()], *o = out + 3 * thread();
    o[0] = __syncthreads_count(v & 1), o[1] = __syncthreads_and(v % 100 != 5), o[2] = __syncthreads_or(v % 100 == 5);
}

// launch: grid=1 block=128
KERNEL named_barriers(ARGS) {
    __shared__ u32 s[128];
    int t = threadIdx.x;
    if (t < 64) {
        s[t] = u[t];
        asm volatile("bar.arrive 3, 128;" ::: "memory");
        asm volatile("bar.sync 4, 64;" ::: "memory");
        out[t] = s[63 - t] + 1;
    } else {
        asm volatile("bar.sync 3, 128;" ::: "memory");
        out[t] = s[t - 64] * 2;
    }
}

__device__ u32 arrived = 0;

// launch: grid=6 block=64
KERNEL last_block_sums(ARGS) {
    __shared__ bool last;
    __shared__ u32 s[64];
    int t = threadIdx.x;
    s[t] = u[thread()] >> 4;
    __syncthreads();
    for (int d = 32; d; d >>= 1) { if (t < d) s[t] += s[t + d]; __syncthreads(); }
    if (t == 0) {
        ((volatile u32*)out)[blockIdx.x + 1] = s[0];
        __threadfence();
        last = atomicInc(&arrived, gridDim.x - 1) == gridDim.x - 1;
    }
    __syncthreads();
    if (last && t == 0) {
        u32 total = 0;
        for (int b = 0; b < gridDim.x; ++b) total += ((volatile u32*)out)[b + 1];
        out[0] = total;
    }
}

// launch: grid=4 block=32
KERNEL spin_lock(ARGS) {
    if (threadIdx.x == 0) {
        while (atomicCAS(out, 0, 1) != 0) {}
        __threadfence();
        ((volatile u32*)out)[1] += blockIdx.x + 1;
        ((volatile u32*)out)[2] += u[blockIdx.x];
        __threadfence();
        atomicExch(out, 0);
    }
}

// launch: grid=2 block=128
KERNEL bitonic_sort(ARGS) {
    __shared__ u32 s[128];
    int t = threadIdx.x;
    s[t] = u[thread()];
    for (int k = 2; k <= 128; k *= 2)
        for (int j = k / 2; j; j /= 2) {
            __syncthreads();
            int o = t ^ j;
            if (o > t && (s[t] > s[o]) == ((t & k) == 0)) { u32 w = s[t]; s[t] = s[o], s[o] = w; }
        }
    __syncthreads();
    out[thread()] = s[t];
}
