// Constants, variables of modules, strings, printing, assertions, memory from the heap.
#include <cassert>
#include <cstdio>
#include "common.cuh"

__constant__ float weights[16] = {1, 2, 3, 4, 5, 6, 7, 8, 0.5f, 0.25f, 0.125f, -1, -2, -3, -4, 1e-3f};
__device__ u64 wide[4] = {1, 0x123456789abcdefull, ~0ull, 1ull << 63};
__device__ double scale = 2.5;
__device__ const char letters[] = "the quick brown fox";
__device__ u32 counter = 7;
__device__ u32* pointer = &counter;
struct Entry { short a; char b; double c; };
__device__ Entry entries[3] = {{1, 'x', 1.5}, {-2, 'y', -2.25}, {300, 'z', 1e300}};

// launch: grid=1 block=64
KERNEL constants(ARGS) {
    int t = threadIdx.x;
    out[t] = bits(weights[t & 15] * weights[u[t] & 15]);
    put64(out + 64, t, wide[t & 3] + (u64)(scale * t));
    out[256 + t] = letters[t % sizeof(letters)];
    Entry e = entries[t % 3];
    put(out + 512, t, e.c + e.a + e.b);
}

// launch: grid=2 block=32
KERNEL global_variables(ARGS) {
    if (threadIdx.x == 0) atomicAdd(pointer, 5);
    __threadfence();
    out[thread()] = letters[threadIdx.x & 7] + *(const unsigned char*)(weights + 3);
    if (threadIdx.x == 1) out[200 + blockIdx.x] = pointer == &counter;
}

// launch: grid=1 block=4
KERNEL printing(ARGS) {
    int t = threadIdx.x;
    printf("thread %d of %u: %f %g %e|%5d|%-5d|%05d|%x|%#X|%c|%s|%%|%llu|%lld|%p\n", t, blockDim.x, t * 1.5, 1.0 / (t + 1),
           t * 1e10, t, t, -t, t * 1000, t + 10, 'a' + t, t & 1 ? "odd" : "even", 1ull << (t * 20), -5ll * t, (void*)nullptr);
    if (t == 2) printf("no arguments\n");
    out[t] = printf("%.3f %10.2f %+d %hhd\n", 3.14159, -2.5, t, 300);
}

// launch: grid=1 block=32
KERNEL assertions(ARGS) {
    assert(n > 0);
    assert(u[threadIdx.x] != 0 && "a word is zero");
    out[threadIdx.x] = u[threadIdx.x] / 3;
}

struct Node { u32 value; Node* next; };

// launch: grid=1 block=16
KERNEL heap_lists(ARGS) {
    Node* head = nullptr;
    for (int i = 0; i < (int)(u[threadIdx.x] % 9 + 1); ++i) {
        Node* node = (Node*)malloc(sizeof(Node));
        if (!node) return;
        *node = {u[threadIdx.x + i], head}, head = node;
    }
    u32 total = 0;
    while (head) { total = total * 3 + head->value; Node* next = head->next; free(head), head = next; }
    u32* many = new u32[8];
    for (int i = 0; i < 8; ++i) many[i] = total >> i;
    out[threadIdx.x] = total + many[threadIdx.x & 7];
    delete[] many;
}

// launch: grid=1 block=32
KERNEL library_copies(ARGS) {
    __align__(8) unsigned char a[40], b[40];
    for (int i = 0; i < 40; ++i) a[i] = (unsigned char)(u[threadIdx.x] >> (i % 24)), b[i] = 0;
    memcpy(b + 3, a, 30);
    memset(a + 5, 0x5a, 11);
    memcpy(a + 20, b, threadIdx.x % 20);
    u32 total = 0;
    for (int i = 0; i < 40; ++i) total = total * 33 + a[i] + 7 * b[i];
    out[threadIdx.x] = total;
}

// launch: grid=3,2,2 block=4,2,3
KERNEL three_dimensions(ARGS) {
    int b = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
    int t = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
    out[b * 24 + t] = threadIdx.x + 10 * threadIdx.y + 100 * threadIdx.z + 1000 * blockIdx.x + 10000 * blockIdx.y + 100000 * blockIdx.z;
}
