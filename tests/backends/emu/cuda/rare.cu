// Instructions and libraries that few programs use: cub, pipelines, semaphores, calls of methods, rare PTX.
#include <cooperative_groups.h>
#include <cooperative_groups/memcpy_async.h>
#include <cooperative_groups/reduce.h>
#include <cooperative_groups/scan.h>
#include <cub/cub.cuh>
#include <cuda/atomic>
#include <cuda/barrier>
#include <cuda/functional>
#include <cuda/pipeline>
#include <cuda/semaphore>
#include <cuda/std/complex>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include "common.cuh"
namespace cg = cooperative_groups;

// launch: grid=1 block=128
KERNEL block_collectives(ARGS) {
    using Scan = cub::BlockScan<u32, 128>;
    using Sort = cub::BlockRadixSort<u32, 128, 4, u32>;
    using Count = cub::BlockHistogram<unsigned char, 128, 4, 64>;
    __shared__ union { typename Scan::TempStorage scan; typename Sort::TempStorage sort; typename Count::TempStorage count; } room;
    __shared__ u32 bins[64];
    int t = threadIdx.x;
    u32 before, all;
    Scan(room.scan).ExclusiveSum(u[t] & 1023, before, all);
    out[t] = before + all;
    u32 keys[4], values[4];
    unsigned char bytes[4];
    for (int i = 0; i < 4; i++) keys[i] = u[4 * t + i], values[i] = 4 * t + i, bytes[i] = keys[i] & 63;
    __syncthreads();
    Sort(room.sort).SortDescending(keys, values, 3, 29);
    for (int i = 0; i < 4; i++) out[128 + 4 * t + i] = keys[i] ^ values[i];
    __syncthreads();
    Count(room.count).Histogram(bytes, bins);
    __syncthreads();
    if (t < 64) out[700 + t] = bins[t];
}

// launch: grid=1 block=64
KERNEL warp_collectives(ARGS) {
    using Merge = cub::WarpMergeSort<u32, 2, 32>;
    using Reduce = cub::WarpReduce<float>;
    __shared__ typename Merge::TempStorage merge[2];
    __shared__ typename Reduce::TempStorage reduce[2];
    int t = threadIdx.x;
    u32 keys[2] = {u[2 * t] >> 4, u[2 * t + 1] >> 4};
    Merge(merge[t / 32]).Sort(keys, [](u32 a, u32 b) { return a > b; });
    out[2 * t] = keys[0], out[2 * t + 1] = keys[1];
    out[128 + t] = bits(Reduce(reduce[t / 32]).HeadSegmentedReduce(float(u[t] & 255), t % 5 == 0, cuda::maximum<>{}));
}

// launch: grid=1 block=128
KERNEL tiles(ARGS) {
    auto tile = cg::tiled_partition<16>(cg::this_thread_block());
    int t = threadIdx.x, v = u[t] & 4095;
    u32 r = cg::reduce(tile, v, cg::plus<int>()) + cg::inclusive_scan(tile, v) * 3 + cg::exclusive_scan(tile, v, cg::bit_xor<int>());
    if (v & 1) {
        auto some = cg::coalesced_threads();
        r += some.size() * 1000 + some.thread_rank() * 7 + some.shfl(v, some.size() - 1);
    }
    auto labelled = cg::labeled_partition(tile, v % 3);
    r ^= cg::reduce(labelled, v, cg::greater<int>()) << 4;
    auto two = cg::binary_partition(tile, v & 2);
    out[t] = r + two.size() * 77 + tile.meta_group_rank();
    out[128 + t] = bits(cg::reduce(tile, float(v), cg::less<float>()));
}

// launch: grid=1 block=128
KERNEL staged_pipeline(ARGS) {
    __shared__ alignas(16) u32 room[2][128];
    __shared__ cuda::pipeline_shared_state<cuda::thread_scope_block, 2> state;
    auto block = cg::this_thread_block();
    auto pipe = cuda::make_pipeline(block, &state);
    auto fetch = [&](int i) {
        pipe.producer_acquire();
        cuda::memcpy_async(block, room[i % 2], u + i * 128, cuda::aligned_size_t<16>(512), pipe);
        pipe.producer_commit();
    };
    fetch(0), fetch(1);
    u32 s = 0;
    for (int i = 0; i < 6; i++) {
        pipe.consumer_wait();
        s = s * 3 + room[i % 2][(threadIdx.x + 1) % 128];
        block.sync();
        pipe.consumer_release();
        if (i < 4) fetch(i + 2);
    }
    out[threadIdx.x] = s;
}

// launch: grid=1 block=64
KERNEL thread_pipeline(ARGS) {
    __shared__ uint4 room[3][64];
    auto pipe = cuda::make_pipeline();
    int t = threadIdx.x;
    for (int i = 0; i < 3; i++) {
        pipe.producer_acquire();
        cuda::memcpy_async(&room[i][t], (const uint4*)u + i * 64 + t, sizeof(uint4), pipe);
        pipe.producer_commit();
    }
    cuda::pipeline_consumer_wait_prior<1>(pipe);
    u32 r = room[0][t].x + room[1][t].w * 2;
    cuda::pipeline_consumer_wait_prior<0>(pipe);
    out[t] = r ^ room[2][t].y;
}

// launch: grid=2 block=64
KERNEL semaphore(ARGS) {
    __shared__ cuda::binary_semaphore<cuda::thread_scope_block> one;
    __shared__ u32 sum;
    if (threadIdx.x == 0) new (&one) cuda::binary_semaphore<cuda::thread_scope_block>(1), sum = 0;
    __syncthreads();
    one.acquire();
    *(volatile u32*)&sum = *(volatile u32*)&sum * 1 + u[threadIdx.x] % 1000;
    one.release();
    __syncthreads();
    out[thread()] = sum;
}

// launch: grid=1 block=96
KERNEL references(ARGS) {
    cuda::atomic_ref<u32, cuda::thread_scope_device> a(out[0]);
    a.fetch_add(3, cuda::memory_order_relaxed), a.fetch_max(500 + threadIdx.x);
    cuda::atomic_ref<u32, cuda::thread_scope_block> b(out[1]);
    b.fetch_xor(u[threadIdx.x]);
    u32 e = 0;
    cuda::atomic_ref<u32, cuda::thread_scope_block> c(out[2]);
    while (!c.compare_exchange_weak(e, e + 1)) {}
    cuda::atomic_ref<double>(*(double*)(out + 4)).fetch_add(0.5);
    cuda::atomic_ref<float>(*(float*)(out + 6)).fetch_max(float(threadIdx.x));
    cuda::atomic_ref<u64, cuda::thread_scope_system>(*(u64*)(out + 8)).fetch_or(1ull << (u[threadIdx.x] % 64));
    atomicInc(out + 10, 17), atomicDec(out + 11, 9);
    atomicAdd((__half2*)(out + 12), __floats2half2_rn(1.f, .5f));
    atomicAdd((__nv_bfloat162*)(out + 13), __floats2bfloat162_rn(1.f, .25f));
    atomicAdd((__half*)(out + 14), __float2half(1.f)), atomicAdd((__nv_bfloat16*)(out + 15), __float2bfloat16(2.f));
}

struct Base { int v; __device__ Base(int v) : v(v) {} __device__ virtual int get(int x) { return x + v; } };
struct Derived : Base { __device__ Derived(int v) : Base(v) {} __device__ int get(int x) override { return x * v; } };
__device__ __noinline__ int deep(int n, int* a) {
    int l[16];
    for (int i = 0; i < 16; i++) l[i] = n * i + a[i & 3];
    return n == 0 ? l[a[0] & 15] : deep(n - 1, l) + l[n & 15];
}

// launch: grid=1 block=64
KERNEL methods_and_stacks(ARGS) {
    int t = threadIdx.x, a[64], s = 0;
    Base base(5);
    Derived derived(6);
    Base* object = (u[t] & 8) ? &base : &derived;
    for (int i = 0; i < 64; i++) a[i] = (int)(u[i] % 1000) * i;
    for (int i = 0; i < 64; i++) s += a[(u[i] + t) & 63];
    out[t] = s + deep(u[t] & 7, a) + object->get(t);
}

// launch: grid=1 block=128
KERNEL complex_numbers(ARGS) {
    int t = threadIdx.x;
    cuda::std::complex<float> a(x[t + 32], 1), b(2, x[t + 33]);
    auto c = a * b / (a + b);
    out[2 * t] = bits(c.real()), out[2 * t + 1] = bits(c.imag());
}

// launch: grid=1 block=128
KERNEL half_pairs(ARGS) {
    int t = threadIdx.x;
    __half2 a = __floats2half2_rn(x[t], x[t + 1]), b = __floats2half2_rn(x[t + 2], 1.5f);
    __half2 c = __hfma2(a, b, __hmul2(a, __hneg2(b)));
    c = __hadd2_sat(c, __hfma2_relu(a, b, b)), c = __hmax2(c, __hmin2_nan(a, b));
    out[t] = *(u32*)&c;
    __nv_bfloat162 d = __floats2bfloat162_rn(x[t], x[t + 1]), e = __float2bfloat162_rn(x[t + 2]);
    __nv_bfloat162 f = __hfma2(d, e, __hfma2_relu(d, d, e));
    out[128 + t] = *(u32*)&f;
    __half2 g = __hgt2(a, b);
    out[256 + t] = *(u32*)&g + __hbne2(a, b) * 3 + __hlt2_mask(a, b);
    __nv_fp8x4_e4m3 h(make_float4(x[t], x[t + 1], x[t + 2], 500.f));
    __nv_fp8_e5m2 i(x[t + 5]);
    out[384 + t] = h.__x ^ i.__x << 8;
}

// launch: grid=1 block=128
KERNEL rare_instructions(ARGS) {
    int t = threadIdx.x;
    u32 a = u[t], b = u[t + 128], r, s;
    asm("fns.b32 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b % 40 - 4), "r"(int(u[t + 1] % 17) - 8));
    out[t] = r;
    asm("szext.clamp.s32 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b % 40));
    asm("bmsk.wrap.b32 %0, %1, %2;" : "=r"(s) : "r"(a), "r"(b));
    out[128 + t] = r ^ s;
    asm("prmt.b32.rc16 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(a >> 3));
    asm("prmt.b32.ecl %0, %1, %2, %3;" : "=r"(s) : "r"(a), "r"(b), "r"(b >> 5));
    out[256 + t] = r ^ s;
    asm("{.reg .v2 .u32 v; mov.v2.u32 v, {%1, %2}; mov.v2.u32 v, {v.y, v.x}; sub.u32 %0, v.x, v.y;}" : "=r"(r) : "r"(a), "r"(b));
    out[384 + t] = r;
    asm("vabsdiff4.u32.s32.u32.add %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(b));
    asm("vmad.s32.s32.u32.sat.shr7 %0, %1.b1, %2.h0, %3;" : "=r"(s) : "r"(a), "r"(b), "r"(a));
    out[512 + t] = r ^ s;
}

#if __CUDA_ARCH__ >= 900
__device__ const unsigned short halves[12] = {0x7ff7, 0x3c00, 0x7fff, 0xfff7, 0x7e00, 0x4000, 0xc000, 0, 0x7c00, 0x8000, 0x7f80, 0x7ff6};

// launch: grid=9 block=192
KERNEL outside_elements(ARGS) {
    unsigned short a = halves[threadIdx.x % 12], b = halves[threadIdx.x / 12 % 12], c = halves[(blockIdx.x + threadIdx.x / 144) % 12], r, s;
    asm("fma.rn.oob.f16 %0, %1, %2, %3;" : "=h"(r) : "h"(a), "h"(b), "h"(c));
    asm("fma.rn.oob.relu.bf16 %0, %1, %2, %3;" : "=h"(s) : "h"(a), "h"(b), "h"(c));
    out[thread()] = r | s << 16;
    u32 p = a | b << 16, q = b | c << 16, v;
    asm("fma.rn.oob.relu.f16x2 %0, %1, %2, %3;" : "=r"(v) : "r"(p), "r"(q), "r"(q));
    out[2000 + thread()] = v;
}

// launch: grid=1 block=64
KERNEL arrivals_that_are_missing(ARGS) {
    __shared__ u64 bar;
    u32 at = __cvta_generic_to_shared(&bar), left, done = 0;
    u64 state;
    if (threadIdx.x == 0) asm("mbarrier.init.shared.b64 [%0], 64;" ::"r"(at));
    __syncthreads();
    asm volatile("mbarrier.arrive.shared.b64 %0, [%1];" : "=l"(state) : "r"(at));
    asm("mbarrier.pending_count.b64 %0, %1;" : "=r"(left) : "l"(state));
    atomicAdd(out + left, 1);
    while (!done)
        asm volatile("{.reg .pred p; mbarrier.test_wait.shared.b64 p, [%1], %2; selp.u32 %0, 1, 0, p;}" : "=r"(done) : "r"(at), "l"(state));
}

// launch: grid=4 block=128
KERNEL products_of_bits(ARGS) {
    __shared__ alignas(1024) u32 room[64];
    int t = threadIdx.x;
    const u32* a = u + 4 * t + 512 * blockIdx.x;
    if (t < 64) room[t] = u[3000 + t + 64 * blockIdx.x];
    asm volatile("fence.proxy.async.shared::cta;");
    __syncthreads();
    u64 d = (u32(__cvta_generic_to_shared(room)) >> 4) | (u64)(128 >> 4) << 16 | (u64)(256 >> 4) << 32;
    u32 r[4];
    asm volatile("{.reg .pred p; setp.ne.u32 p, 0, 0; wgmma.fence.sync.aligned;"
                 "wgmma.mma_async.sync.aligned.m64n8k256.s32.b1.b1.and.popc {%0,%1,%2,%3}, {%4,%5,%6,%7}, %8, p;"
                 "wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0;}"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(d));
    for (int i = 0; i < 4; i++) out[4 * thread() + i] = r[i];
}
#endif
