// Cooperative groups and libcu++: partitions, atomics with orders, barriers, asynchronous copies.
#include <cooperative_groups.h>
#include <cooperative_groups/memcpy_async.h>
#include <cooperative_groups/reduce.h>
#include <cooperative_groups/scan.h>
#include <cuda/atomic>
#include <cuda/barrier>
#include <cuda/pipeline>
#include <cuda_pipeline.h>
#include "common.cuh"
namespace cg = cooperative_groups;

// launch: grid=1 block=96
KERNEL tiles(ARGS) {
    auto block = cg::this_thread_block();
    auto tile = cg::tiled_partition<8>(block);
    u32 v = u[thread()], *o = out + 5 * thread();
    o[0] = cg::reduce(tile, v, cg::plus<u32>()), o[1] = tile.shfl(v, tile.thread_rank() ^ 1), o[2] = tile.any(v & 1);
    o[3] = tile.meta_group_rank() * 100 + tile.thread_rank(), o[4] = cg::inclusive_scan(tile, v & 0xff);
    block.sync();
}

// launch: grid=1 block=64
KERNEL coalesced(ARGS) {
    if (u[thread()] & 1) {
        auto active = cg::coalesced_threads();
        atomicAdd(out + active.size(), 1), atomicAdd(out + 100, active.thread_rank());
    }
}

// launch: grid=1 block=64
KERNEL labeled(ARGS) {
    auto warp = cg::tiled_partition<32>(cg::this_thread_block());
    auto group = cg::labeled_partition(warp, (int)(u[thread()] % 5));
    out[2 * thread()] = group.size(), out[2 * thread() + 1] = cg::reduce(group, (int)threadIdx.x, cg::greater<int>());
}

// launch: grid=1 block=128
KERNEL group_copies(ARGS) {
    __shared__ alignas(16) u32 s[256];
    auto block = cg::this_thread_block();
    cg::memcpy_async(block, s, u, sizeof(s));
    cg::wait(block);
    out[threadIdx.x] = s[255 - threadIdx.x] + s[threadIdx.x];
}

// launch: grid=1 block=64
KERNEL staged_pipeline(ARGS) {
    __shared__ alignas(16) uint4 s[3][64];
    const uint4* from = (const uint4*)u;
    u32 total = 0;
    for (int k = 0; k < 2; ++k) __pipeline_memcpy_async(&s[k][threadIdx.x], from + k * 64 + threadIdx.x, 16), __pipeline_commit();
    for (int k = 0; k < 4; ++k) {
        if (k + 2 < 4) __pipeline_memcpy_async(&s[(k + 2) % 3][threadIdx.x], from + (k + 2) * 64 % 256 + threadIdx.x, 16);
        __pipeline_commit();
        __pipeline_wait_prior(2);
        __syncthreads();
        uint4 v = s[k % 3][63 - threadIdx.x];
        total = total * 5 + v.x + v.y * 2 + v.z * 3 + v.w;
        __syncthreads();
    }
    out[threadIdx.x] = total;
}

// launch: grid=1 block=64
KERNEL library_barrier(ARGS) {
    __shared__ cuda::barrier<cuda::thread_scope_block> b;
    __shared__ u32 s[64];
    if (threadIdx.x == 0) init(&b, 64);
    __syncthreads();
    u32 total = 0;
    for (int k = 0; k < 3; ++k) {
        s[threadIdx.x] = u[threadIdx.x + k];
        auto token = b.arrive();
        b.wait(std::move(token));
        total += s[threadIdx.x ^ (k + 1)];
        b.arrive_and_wait();
    }
    out[threadIdx.x] = total;
}

// launch: grid=1 block=64
KERNEL library_pipeline(ARGS) {
    __shared__ alignas(16) u32 s[2][64];
    auto pipe = cuda::make_pipeline();
    u32 total = 0;
    pipe.producer_acquire();
    cuda::memcpy_async(&s[0][threadIdx.x], u + threadIdx.x, sizeof(u32), pipe);
    pipe.producer_commit();
    for (int k = 0; k < 4; ++k) {
        if (k < 3) {
            pipe.producer_acquire();
            cuda::memcpy_async(&s[(k + 1) & 1][threadIdx.x], u + 64 * (k + 1) + threadIdx.x, sizeof(u32), pipe);
            pipe.producer_commit();
        }
        pipe.consumer_wait();
        __syncthreads();
        total = total * 7 + s[k & 1][63 - threadIdx.x];
        __syncthreads();
        pipe.consumer_release();
    }
    out[threadIdx.x] = total;
}

__device__ u32 flags[4];

// launch: grid=2 block=32
KERNEL ordered_atomics(ARGS) {
    cuda::atomic_ref<u32, cuda::thread_scope_device> flag(flags[0]), count(flags[1]);
    if (blockIdx.x == 0) {
        out[threadIdx.x] = u[threadIdx.x];
        __syncwarp();
        if (threadIdx.x == 0) flag.store(1, cuda::memory_order_release);
    } else {
        if (threadIdx.x == 0) while (flag.load(cuda::memory_order_acquire) == 0) {}
        __syncwarp();
        out[32 + threadIdx.x] = ((volatile u32*)out)[31 - threadIdx.x] + 1;
    }
    count.fetch_add(threadIdx.x, cuda::memory_order_relaxed);
    if (threadIdx.x == 0) out[100 + blockIdx.x] = count.load() != 0;
}

// launch: grid=1 block=32
KERNEL wide_atomics(ARGS) {
    cuda::atomic_ref<double, cuda::thread_scope_device> sum(*(double*)(out + 64));
    sum.fetch_add((double)(u[threadIdx.x] & 0xfff), cuda::memory_order_relaxed);
    atomicAdd((double*)(out + 66), 0.5), atomicExch((u64*)(out + 68), 77ull), atomicCAS((u64*)(out + 70), 0ull, 5ull);
    atomicCAS((unsigned short*)(out + 72), (unsigned short)0, (unsigned short)9);
}

// launch: grid=4 block=64 cooperative=1
KERNEL grid_sync(ARGS) {
    out[thread()] = u[thread()];
    auto grid = cg::this_grid();
    grid.sync();
    out[256 + thread()] = out[255 - thread()] + (u32)grid.size();
}
