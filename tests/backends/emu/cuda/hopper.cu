// Clusters, distributed shared memory, barriers with transactions, bulk copies: sm_90.
#include <cooperative_groups.h>
#include <cuda/barrier>
#include <cuda/ptx>
#include "common.cuh"
namespace cg = cooperative_groups;
namespace ptx = cuda::ptx;

// launch: grid=4 block=64
KERNEL __cluster_dims__(2) cluster_histogram(ARGS) {
    __shared__ u32 bins[32];
    auto cluster = cg::this_cluster();
    if (threadIdx.x < 32) bins[threadIdx.x] = 0;
    cluster.sync();
    u32 bin = u[thread()] & 63;
    atomicAdd(cluster.map_shared_rank(bins, bin / 32) + bin % 32, 1u);
    cluster.sync();
    if (threadIdx.x < 32) atomicAdd(out + cluster.block_rank() * 32 + threadIdx.x, bins[threadIdx.x]);
}

// launch: grid=4 block=32
KERNEL __cluster_dims__(4) cluster_ring(ARGS) {
    __shared__ u32 s[32];
    auto cluster = cg::this_cluster();
    u32 rank = cluster.block_rank(), v = u[thread()];
    for (int k = 0; k < 3; ++k) {
        cluster.map_shared_rank(s, (rank + 1) % cluster.num_blocks())[threadIdx.x] = v + k;
        cluster.sync();
        v = s[31 - threadIdx.x];
        cluster.sync();
    }
    out[thread()] = v;
    if (threadIdx.x == 0) out[200 + blockIdx.x] = rank * 10 + cluster.dim_blocks().x;
}

// launch: grid=2 block=64
KERNEL bulk_copies(ARGS) {
    using barrier = cuda::barrier<cuda::thread_scope_block>;
    __shared__ alignas(128) u32 s[256];
    __shared__ barrier b;
    if (threadIdx.x == 0) init(&b, blockDim.x);
    __syncthreads();
    barrier::arrival_token token;
    if (threadIdx.x == 0) {
        cuda::device::memcpy_async_tx(s, u + blockIdx.x * 256, cuda::aligned_size_t<16>(sizeof(s)), b);
        token = cuda::device::barrier_arrive_tx(b, 1, sizeof(s));
    } else token = b.arrive();
    b.wait(std::move(token));
    for (int i = threadIdx.x; i < 256; i += 64) s[i] = s[i] * 3 + 1;
    ptx::fence_proxy_async(ptx::space_shared);
    __syncthreads();
    if (threadIdx.x == 0) {
        ptx::cp_async_bulk(ptx::space_global, ptx::space_shared, out + blockIdx.x * 256, s, sizeof(s));
        ptx::cp_async_bulk_commit_group();
        ptx::cp_async_bulk_wait_group(ptx::n32_t<0>());
    }
}

// launch: grid=2 block=32
KERNEL bulk_reductions(ARGS) {
    __shared__ alignas(16) u32 s[64];
    for (int i = threadIdx.x; i < 64; i += 32) s[i] = u[blockIdx.x * 64 + i] & 0xffff;
    ptx::fence_proxy_async(ptx::space_shared);
    __syncthreads();
    if (threadIdx.x == 0) {
        ptx::cp_reduce_async_bulk(ptx::space_global, ptx::space_shared, ptx::op_add, out, s, sizeof(s));
        ptx::cp_async_bulk_commit_group();
        ptx::cp_async_bulk_wait_group(ptx::n32_t<0>());
    }
}

// launch: grid=2 block=32
KERNEL __cluster_dims__(2) remote_async_stores(ARGS) {
    __shared__ alignas(16) u32 s[32];
    __shared__ alignas(8) uint64_t b;
    if (threadIdx.x == 0) ptx::mbarrier_init(&b, 1);
    auto cluster = cg::this_cluster();
    ptx::fence_mbarrier_init(ptx::sem_release, ptx::scope_cluster);
    cluster.sync();
    if (threadIdx.x == 0) ptx::mbarrier_arrive_expect_tx(ptx::sem_release, ptx::scope_cta, ptx::space_shared, &b, sizeof(s));
    u32 peer = cluster.block_rank() ^ 1;
    ptx::st_async(cluster.map_shared_rank(s, peer) + threadIdx.x, u[thread()] + 5, cluster.map_shared_rank(&b, peer));
    while (!ptx::mbarrier_try_wait_parity(&b, 0)) {}
    out[thread()] = s[31 - threadIdx.x];
    cluster.sync();
}

// launch: grid=2 block=32
KERNEL __cluster_dims__(2) multicast_copy(ARGS) {
    __shared__ alignas(128) u32 s[64];
    __shared__ alignas(8) uint64_t b;
    if (threadIdx.x == 0) {
        ptx::mbarrier_init(&b, 1);
        ptx::fence_mbarrier_init(ptx::sem_release, ptx::scope_cluster);
        ptx::mbarrier_arrive_expect_tx(ptx::sem_release, ptx::scope_cta, ptx::space_shared, &b, sizeof(s));
    }
    auto cluster = cg::this_cluster();
    cluster.sync();
    if (cluster.block_rank() == 1 && threadIdx.x == 0) ptx::cp_async_bulk(ptx::space_cluster, ptx::space_global, s, u, sizeof(s), &b, (uint16_t)3);
    while (!ptx::mbarrier_try_wait_parity(&b, 0)) {}
    out[2 * thread()] = s[threadIdx.x] + blockIdx.x, out[2 * thread() + 1] = s[63 - threadIdx.x];
    cluster.sync();
}

// launch: grid=1 block=160
KERNEL producer_and_consumers(ARGS) {
    __shared__ alignas(128) u32 ring[3][128];
    __shared__ alignas(8) uint64_t full[3], empty[3];
    if (threadIdx.x == 0)
        for (int i = 0; i < 3; ++i) ptx::mbarrier_init(full + i, 1), ptx::mbarrier_init(empty + i, 128);
    __syncthreads();
    if (threadIdx.x >= 128) {
        if (threadIdx.x == 128)
            for (int k = 0; k < 7; ++k) {
                while (!ptx::mbarrier_try_wait_parity(empty + k % 3, (k / 3 & 1) ^ 1)) {}
                ptx::mbarrier_arrive_expect_tx(ptx::sem_release, ptx::scope_cta, ptx::space_shared, full + k % 3, 512);
                ptx::cp_async_bulk(ptx::space_cluster, ptx::space_global, ring[k % 3], u + k * 128, 512, full + k % 3);
            }
    } else {
        u32 total = 0;
        for (int k = 0; k < 7; ++k) {
            while (!ptx::mbarrier_try_wait_parity(full + k % 3, k / 3 & 1)) {}
            total = total * 3 + ring[k % 3][127 - threadIdx.x];
            ptx::mbarrier_arrive(empty + k % 3);
        }
        out[threadIdx.x] = total;
    }
}

// launch: grid=1 block=128
KERNEL wgmma_product(ARGS) {
    __shared__ alignas(1024) unsigned short a[64 * 16], b[8 * 16];
    for (int i = threadIdx.x; i < 1024; i += 128) a[(i / 8 % 2) * 64 + i / 128 * 128 + i % 8 + i / 16 % 8 * 8] = 0x3c00 + (u[i] & 0x3ff);
    for (int i = threadIdx.x; i < 128; i += 128) b[(i / 8 % 2) * 64 + i % 8 + i / 16 * 8] = 0x3800 + (u[i + 1024] & 0x1ff);
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncthreads();
    u64 pa = (u64)(__cvta_generic_to_shared(a) >> 4) | 8ull << 16 | 16ull << 32, pb = (u64)(__cvta_generic_to_shared(b) >> 4) | 8ull << 16 | 16ull << 32;
    float d[4] = {1, 2, 3, 4};
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %6, 0; wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%0,%1,%2,%3}, %4, %5, p, 1, 1, 0, 0; }"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "l"(pa), "l"(pb), "r"(1));
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
    asm volatile("wgmma.wait_group.sync.aligned 0;" : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])::"memory");
    for (int i = 0; i < 4; ++i) out[threadIdx.x * 4 + i] = bits(d[i]);
}
