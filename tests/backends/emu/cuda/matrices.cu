// Tensor cores: wmma, mma.sync through assembly, ldmatrix.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <mma.h>
#include "common.cuh"
using namespace nvcuda;

template <int M, int N, int K, class LA, class LB> __device__ void product(ARGS) {
    __shared__ __align__(32) __half a[M * K], b[K * N];
    for (int i = threadIdx.x; i < M * K; i += 32) a[i] = __float2half((float)((int)(u[i] & 15) - 8));
    for (int i = threadIdx.x; i < K * N; i += 32) b[i] = __float2half((float)((int)(u[i + 300] & 15) - 8));
    __syncthreads();
    wmma::fragment<wmma::matrix_a, M, N, K, __half, LA> fa;
    wmma::fragment<wmma::matrix_b, M, N, K, __half, LB> fb;
    wmma::fragment<wmma::accumulator, M, N, K, float> fc;
    wmma::fill_fragment(fc, 0.5f);
    wmma::load_matrix_sync(fa, a, std::is_same<LA, wmma::row_major>::value ? K : M);
    wmma::load_matrix_sync(fb, b, std::is_same<LB, wmma::row_major>::value ? N : K);
    wmma::mma_sync(fc, fa, fb, fc);
    for (int i = 0; i < fc.num_elements; ++i) fc.x[i] *= 2.0f;
    wmma::store_matrix_sync((float*)out, fc, N, wmma::mem_row_major);
}

// launch: grid=1 block=32
KERNEL wmma_16x16(ARGS) { product<16, 16, 16, wmma::row_major, wmma::col_major>(u, x, out, n); }
// launch: grid=1 block=32
KERNEL wmma_32x8(ARGS) { product<32, 8, 16, wmma::col_major, wmma::row_major>(u, x, out, n); }
// launch: grid=1 block=32
KERNEL wmma_8x32(ARGS) { product<8, 32, 16, wmma::row_major, wmma::row_major>(u, x, out, n); }

// launch: grid=1 block=32
KERNEL wmma_half_sums(ARGS) {
    __shared__ __align__(32) __half a[256], c[256];
    for (int i = threadIdx.x; i < 256; i += 32) a[i] = __float2half((float)(u[i] & 3) * 0.25f), c[i] = __float2half(1.5f);
    __syncthreads();
    wmma::fragment<wmma::matrix_a, 16, 16, 16, __half, wmma::row_major> fa;
    wmma::fragment<wmma::matrix_b, 16, 16, 16, __half, wmma::row_major> fb;
    wmma::fragment<wmma::accumulator, 16, 16, 16, __half> fc;
    wmma::load_matrix_sync(fa, a, 16), wmma::load_matrix_sync(fb, a, 16), wmma::load_matrix_sync(fc, c, 16, wmma::mem_col_major);
    wmma::mma_sync(fc, fa, fb, fc);
    wmma::store_matrix_sync((__half*)out, fc, 16, wmma::mem_row_major);
}

// launch: grid=1 block=32
KERNEL wmma_integers(ARGS) {
    wmma::fragment<wmma::matrix_a, 16, 16, 16, signed char, wmma::row_major> fa;
    wmma::fragment<wmma::matrix_b, 16, 16, 16, signed char, wmma::col_major> fb;
    wmma::fragment<wmma::accumulator, 16, 16, 16, int> fc;
    wmma::fill_fragment(fc, -3);
    wmma::load_matrix_sync(fa, (const signed char*)u, 16), wmma::load_matrix_sync(fb, (const signed char*)(u + 64), 16);
    wmma::mma_sync(fc, fa, fb, fc);
    wmma::store_matrix_sync((int*)out, fc, 16, wmma::mem_row_major);
}

// launch: grid=1 block=32
KERNEL wmma_tf32(ARGS) {
    wmma::fragment<wmma::matrix_a, 16, 16, 8, wmma::precision::tf32, wmma::row_major> fa;
    wmma::fragment<wmma::matrix_b, 16, 16, 8, wmma::precision::tf32, wmma::col_major> fb;
    wmma::fragment<wmma::accumulator, 16, 16, 8, float> fc;
    wmma::fill_fragment(fc, 0.0f);
    wmma::load_matrix_sync(fa, x + 64, 8), wmma::load_matrix_sync(fb, x + 256, 8);
    for (int i = 0; i < fa.num_elements; ++i) fa.x[i] = wmma::__float_to_tf32(fa.x[i]);
    for (int i = 0; i < fb.num_elements; ++i) fb.x[i] = wmma::__float_to_tf32(fb.x[i]);
    wmma::mma_sync(fc, fa, fb, fc);
    wmma::store_matrix_sync((float*)out, fc, 16, wmma::mem_col_major);
}

// launch: grid=1 block=32
KERNEL wmma_doubles(ARGS) {
    __shared__ double a[32], b[32];
    a[threadIdx.x] = x[64 + threadIdx.x], b[threadIdx.x] = x[128 + threadIdx.x];
    __syncwarp();
    wmma::fragment<wmma::matrix_a, 8, 8, 4, double, wmma::row_major> fa;
    wmma::fragment<wmma::matrix_b, 8, 8, 4, double, wmma::col_major> fb;
    wmma::fragment<wmma::accumulator, 8, 8, 4, double> fc;
    wmma::fill_fragment(fc, 1.0);
    wmma::load_matrix_sync(fa, a, 4), wmma::load_matrix_sync(fb, b, 4);
    wmma::mma_sync(fc, fa, fb, fc);
    wmma::store_matrix_sync((double*)out, fc, 8, wmma::mem_row_major);
}

// launch: grid=1 block=32
KERNEL wmma_one_bit(ARGS) {
    using namespace wmma::experimental;
    wmma::fragment<wmma::matrix_a, 8, 8, 128, precision::b1, wmma::row_major> fa;
    wmma::fragment<wmma::matrix_b, 8, 8, 128, precision::b1, wmma::col_major> fb;
    wmma::fragment<wmma::accumulator, 8, 8, 128, int> fc;
    wmma::fill_fragment(fc, 0);
    wmma::load_matrix_sync(fa, u, 128), wmma::load_matrix_sync(fb, u + 32, 128);
    wmma::bmma_sync(fc, fa, fb, fc, bmmaBitOpAND);
    wmma::store_matrix_sync((int*)out, fc, 8, wmma::mem_row_major);
}

// launch: grid=1 block=32
KERNEL mma_with_ldmatrix(ARGS) {
    __shared__ __align__(16) __half a[256], b[128];
    for (int i = threadIdx.x; i < 256; i += 32) a[i] = __float2half(x[64 + i] * 0.25f);
    for (int i = threadIdx.x; i < 128; i += 32) b[i] = __float2half(x[400 + i]);
    __syncwarp();
    u32 ra[4], rb[2], lane = threadIdx.x;
    u32 pa = (u32)__cvta_generic_to_shared(a + (lane & 15) * 16 + (lane >> 4) * 8), pb = (u32)__cvta_generic_to_shared(b + (lane & 15) * 8);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];" : "=r"(ra[0]), "=r"(ra[1]), "=r"(ra[2]), "=r"(ra[3]) : "r"(pa));
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0,%1}, [%2];" : "=r"(rb[0]), "=r"(rb[1]) : "r"(pb));
    float d[4] = {1, 2, 3, 4};
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "r"(ra[0]), "r"(ra[1]), "r"(ra[2]), "r"(ra[3]), "r"(rb[0]), "r"(rb[1]));
    for (int i = 0; i < 4; ++i) out[lane * 4 + i] = bits(d[i]);
}

// launch: grid=1 block=32
KERNEL mma_four_bits(ARGS) {
    int d[4] = {0, 1, 2, 3}, t = threadIdx.x;
    asm volatile("mma.sync.aligned.m16n8k64.row.col.s32.s4.u4.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3]) : "r"(u[t]), "r"(u[t + 32]), "r"(u[t + 64]), "r"(u[t + 96]), "r"(u[t + 128]), "r"(u[t + 160]));
    for (int i = 0; i < 4; ++i) out[t * 4 + i] = d[i];
}

// launch: grid=1 block=32
KERNEL mma_one_bit(ARGS) {
    int d[4] = {0, 1, 2, 3}, e[4] = {5, 6, 7, 8}, t = threadIdx.x;
    asm volatile("mma.sync.aligned.m16n8k256.row.col.s32.b1.b1.s32.xor.popc {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3]) : "r"(u[t]), "r"(u[t + 32]), "r"(u[t + 64]), "r"(u[t + 96]), "r"(u[t + 128]), "r"(u[t + 160]));
    asm volatile("mma.sync.aligned.m16n8k128.row.col.s32.b1.b1.s32.and.popc {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
                 : "+r"(e[0]), "+r"(e[1]), "+r"(e[2]), "+r"(e[3]) : "r"(u[t]), "r"(u[t + 32]), "r"(u[t + 64]));
    for (int i = 0; i < 4; ++i) out[t * 8 + i] = d[i], out[t * 8 + 4 + i] = e[i];
}

// launch: grid=1 block=32
KERNEL mma_sparse(ARGS) {
    int t = threadIdx.x;
    float d[4] = {1, 2, 3, 4}, e[4] = {0, 0, 0, 0};
    u32 a[4], b[4], choice[4] = {0x4, 0x8, 0xc, 0x9}, meta = 0;
    for (int i = 0; i < 4; ++i) {
        __half2 p = __floats2half2_rn((float)((int)(u[t + 32 * i] & 15) - 8), (float)((int)(u[t + 32 * i] >> 8 & 15) - 8));
        __half2 q = __floats2half2_rn((float)((int)(u[t + 128 + 32 * i] & 15) - 8), (float)((int)(u[t + 128 + 32 * i] >> 8 & 15) - 8));
        a[i] = *(u32*)&p, b[i] = *(u32*)&q;
    }
    for (int i = 0; i < 8; ++i) meta |= choice[u[t + 300] >> 2 * i & 3] << 4 * i;
    asm volatile("mma.sp::ordered_metadata.sync.aligned.m16n8k32.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9,%10,%11}, {%0,%1,%2,%3}, %12, 0x1;"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "r"(b[2]), "r"(b[3]), "r"(meta));
    asm volatile("mma.sp::ordered_metadata.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5}, {%6,%7}, {%0,%1,%2,%3}, %8, 0x2;"
                 : "+f"(e[0]), "+f"(e[1]), "+f"(e[2]), "+f"(e[3]) : "r"(a[0]), "r"(a[1]), "r"(b[0]), "r"(b[1]), "r"(meta));
    for (int i = 0; i < 4; ++i) out[t * 8 + i] = bits(d[i]), out[t * 8 + 4 + i] = bits(e[i]);
}
