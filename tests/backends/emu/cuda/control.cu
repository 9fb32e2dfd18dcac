// Control flow: divergence, tables, functions with parameters, recursion, local memory.
#include <new>
#include <alloca.h>
#include "common.cuh"

// launch: grid=4 block=96
KERNEL collatz(ARGS) {
    u32 v = u[thread()] % 100000 + 1, steps = 0;
    while (v != 1) v = v & 1 ? 3 * v + 1 : v >> 1, ++steps;
    out[thread()] = steps;
}

// launch: grid=2 block=128
KERNEL dense_switch(ARGS) {
    u32 v = u[thread()], r;
    switch (v % 13) {
        case 0: r = v * 3; break;
        case 1: r = v ^ 0x55; break;
        case 2: r = __popc(v); break;
        case 3: r = v >> 7;  // falls through
        case 4: r = v + 17; break;
        case 5: r = ~v; break;
        case 6: r = v / 7; break;
        case 7: r = v % 1001; break;
        case 8: r = __brev(v); break;
        case 9: r = v << 3 | v >> 29; break;
        case 10: r = __clz(v | 1); break;
        case 11: r = (u32)((int)v / -3); break;
        default: r = 0xdead;
    }
    out[thread()] = r;
}

// launch: grid=2 block=64
KERNEL nested_loops(ARGS) {
    u32 total = 0, v = u[thread()];
    for (int i = 0; i < (int)(v & 15); ++i) {
        for (int j = 0;; ++j) {
            if (j > (int)(v >> 4 & 7) + i) break;
            if ((i ^ j) % 3 == 1) continue;
            total += i * j + 1;
            if (total > 300) goto done;
        }
        if (total & 32) total ^= v >> 16;
    }
done:
    out[thread()] = total;
}

__noinline__ __device__ u32 fibonacci(u32 k) { return k < 2 ? k : fibonacci(k - 1) + fibonacci(k - 2); }

// launch: grid=1 block=64
KERNEL recursion(ARGS) { out[thread()] = fibonacci(u[thread()] % 12); }

__noinline__ __device__ void quicksort(u32* v, int low, int high) {
    if (low >= high) return;
    u32 pivot = v[(low + high) / 2];
    int i = low, j = high;
    while (i <= j) {
        while (v[i] < pivot) ++i;
        while (v[j] > pivot) --j;
        if (i <= j) { u32 t = v[i]; v[i++] = v[j], v[j--] = t; }
    }
    quicksort(v, low, j);
    quicksort(v, i, high);
}

// launch: grid=1 block=48
KERNEL local_quicksort(ARGS) {
    u32 v[24];
    for (int i = 0; i < 24; ++i) v[i] = u[(thread() * 24 + i) % n] >> 8;
    quicksort(v, 0, 23);
    for (int i = 0; i < 24; ++i) out[thread() * 24 + i] = v[i];
}

struct Mixed { double d; short s[3]; char c; float f; u64 w; };
__noinline__ __device__ Mixed combine(Mixed a, Mixed b, bool flip) {
    Mixed r = flip ? b : a;
    r.d += b.d * 2, r.s[1] = a.s[0] - b.s[2], r.c ^= b.c, r.f = a.f * b.f, r.w = a.w + b.w;
    return r;
}

// launch: grid=1 block=64
KERNEL structs_by_value(ARGS) {
    int i = thread();
    Mixed a{1.5 * i, {(short)u[i], (short)(u[i] >> 8), 3}, (char)i, 0.5f, u[i]};
    Mixed b{0.25, {4, 5, (short)(u[i + 1] >> 16)}, (char)u[i], (float)i, 1ull << (i & 63)};
    Mixed r = combine(combine(a, b, i & 1), a, i & 2);
    put(out, 4 * i, r.d), put64(out, 4 * i + 1, r.w);
    out[8 * i + 4] = (u32)r.s[0] << 16 | (unsigned short)r.s[1], out[8 * i + 5] = r.c, out[8 * i + 6] = bits(r.f);
}

typedef u32 (*Operation)(u32, u32);
__device__ u32 op_add(u32 a, u32 b) { return a + b; }
__device__ u32 op_xor(u32 a, u32 b) { return a ^ b; }
__device__ u32 op_mul(u32 a, u32 b) { return a * b + 1; }
__device__ Operation operations[3] = {op_add, op_xor, op_mul};

// launch: grid=1 block=96
KERNEL function_pointers(ARGS) {
    u32 v = u[thread()];
    for (int i = 0; i < 5; ++i) v = operations[(v >> i) % 3](v, u[thread() + i]);
    out[thread()] = v;
}

struct Shape { __device__ virtual float area(float s) const = 0; };
struct Square : Shape { __device__ float area(float s) const override { return s * s; } };
struct Circle : Shape { float pi; __device__ Circle(float p) : pi(p) {} __device__ float area(float s) const override { return pi * s * s; } };

// launch: grid=1 block=64
KERNEL virtual_functions(ARGS) {
    __align__(16) char room[32];
    Shape* s;
    if (u[thread()] & 1) s = new (room) Square; else s = new (room) Circle(3.25f);
    out[thread()] = bits(s->area((float)thread()));
}

// launch: grid=1 block=64
KERNEL variable_alloca(ARGS) {
    int size = u[thread()] % 20 + 1;
    u32* room = (u32*)alloca(size * sizeof(u32));
    for (int i = 0; i < size; ++i) room[i] = u[i] + i;
    u32 total = 0;
    for (int i = size - 1; i >= 0; --i) total = total * 31 + room[i];
    out[thread()] = total;
}

// launch: grid=2 block=100
KERNEL early_exit(ARGS) {
    int i = thread();
    if (threadIdx.x >= 70) return;
    u32 v = u[i];
    if (v & 1) { out[i] = v; return; }
    for (int k = 0; k < 3; ++k) { v = v * 5 + 1; if ((v & 6) == 6) { out[i] = k; return; } }
    out[i] = v;
}

__noinline__ __device__ float horner(const float* c, int k, float v) {
    float r = c[k];
    for (int i = k - 1; i >= 0; --i) r = fmaf(r, v, c[i]);
    return r;
}

// launch: grid=1 block=64
KERNEL local_array_passed(ARGS) {
    float c[10];
    for (int i = 0; i < 10; ++i) c[(i * 7 + threadIdx.x) % 10] = (float)(i + 1) / (float)(threadIdx.x + 1);
    out[thread()] = bits(horner(c, 9 - threadIdx.x % 4, 0.75f));
}
