/* A libcuda that prints what it is asked. FAKE_FAIL names a function that fails with 700. */
#include <stdio.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    unsigned grid[3], block[3], shared;
    void *stream, *attributes;
    unsigned count;
} Config;
typedef struct {
    unsigned id, pad, value[16];
} Attribute;

static int answer(const char *name)
{
    const char *fails = getenv("FAKE_FAIL");
    return fails != NULL && strcmp(fails, name) == 0 ? 700 : 0;
}

int cuInit(unsigned flags) { return (int)flags; }
int cuDeviceGet(int *device, int index) { return *device = 40 + index, index > 0 ? 101 : 0; }
int cuDeviceGetAttribute(int *value, int attribute, int device)
{
    (void)device;
    *value = attribute == 75 ? 9 : attribute == 76 ? 0 : 232448;
    return 0;
}
int cuDevicePrimaryCtxRetain(void **context, int device) { return *context = (void *)0xc0, device != 40; }
int cuCtxGetCurrent(void **context) { return *context = NULL, 0; }
int cuCtxSetCurrent(void *context) { return context != (void *)0xc0; }
int cuModuleLoadData(void **module, const void *code)
{
    printf("load %.3s\n", (const char *)code + 1);
    *module = (void *)0xd0;
    return answer("cuModuleLoadData");
}
int cuModuleGetFunction(void **function, void *module, const char *name)
{
    printf("function %s of %p\n", name, module);
    *function = (void *)0xf0;
    return answer("cuModuleGetFunction");
}
int cuFuncGetAttribute(int *value, int attribute, void *function)
{
    (void)function;
    return *value = attribute == 0 ? 1024 : 1000, 0;
}
int cuFuncSetAttribute(void *function, int attribute, int value)
{
    (void)function;
    printf("set %d to %d\n", attribute, value);
    return 0;
}
int cuFuncSetCacheConfig(void *function, int config) { return (void)function, config != 1; }
int cuMemAllocAsync(uint64_t *address, size_t size, void *stream)
{
    printf("allocate %zu on %p\n", size, stream);
    *address = 0xabc000;
    return answer("cuMemAllocAsync");
}
int cuMemFreeAsync(uint64_t address, void *stream)
{
    printf("free %llx on %p\n", (unsigned long long)address, stream);
    return 0;
}
int cuDriverGetVersion(int *version) { return *version = 13000, 0; }
int cuTensorMapEncodeTiled(unsigned char *map, unsigned type, unsigned rank, void *address,
                           const uint64_t *shape, const uint64_t *strides, const uint32_t *box,
                           const uint32_t *steps, int interleave, int swizzle, int promotion, int fill)
{
    unsigned i;
    memset(map, 0xff, 128);
    printf("map type %u at %p aligned %d interleave %d swizzle %d promotion %d fill %d", type, address,
           (uintptr_t)map % 64 == 0, interleave, swizzle, promotion, fill);
    for (i = 0; i < rank; i++)
        printf(" %llu,%llu,%u,%u", (unsigned long long)shape[i],
               i ? (unsigned long long)strides[i - 1] : 0ull, box[i], steps[i]);
    printf("\n");
    return answer("cuTensorMapEncodeTiled");
}
/* Arguments of the sizes that FAKE_SIZES lists. */
static void bytes_of(void **pointers, const char *sizes)
{
    for (int i = 0, size, read; sscanf(sizes, "%d,%n", &size, &read) == 1; sizes += read, i++) {
        printf(" ");
        for (int b = 0; b < size; b++)
            printf("%02x", ((unsigned char *)pointers[i])[b]);
    }
    printf("\n");
}
/* Two descriptors of two dimensions and an int. */
static void described(void **pointers)
{
    unsigned d, i;
    for (d = 0; d < 2; d++, pointers += 5) {
        const unsigned char *map = pointers[0];
        printf(" map %02x%02x%02x", map[0], map[10], map[127]);
        for (i = 0; i < 2; i++)
            printf(" %d:%lld", *(int *)pointers[1 + i], *(long long *)pointers[3 + i]);
    }
    printf(" %d %llx %llx\n", *(int *)pointers[0], (unsigned long long)*(uint64_t *)pointers[1],
           (unsigned long long)*(uint64_t *)pointers[2]);
}
int cuLaunchKernelEx(const Config *config, void *function, void **pointers, void **extra)
{
    const Attribute *attributes = config->attributes;
    unsigned i;
    printf("launch %p grid %u,%u,%u block %u shared %u stream %p extra %p attributes", function,
           config->grid[0], config->grid[1], config->grid[2], config->block[0], config->shared,
           config->stream, (void *)extra);
    for (i = 0; i < config->count; i++)
        printf(" %u=%u", attributes[i].id, attributes[i].value[0]);
    if (getenv("FAKE_SIZES") != NULL) {
        bytes_of(pointers, getenv("FAKE_SIZES"));
        return answer("cuLaunchKernelEx");
    }
    if (getenv("FAKE_DESCRIBED") != NULL) {
        described(pointers);
        return answer("cuLaunchKernelEx");
    }
    /* scale: two pointers, an int, a float, and two pointers to scratch memory */
    printf(" arguments %llx %llx %d %g %llx %llx\n", (unsigned long long)*(uint64_t *)pointers[0],
           (unsigned long long)*(uint64_t *)pointers[1], *(int *)pointers[2], *(float *)pointers[3],
           (unsigned long long)*(uint64_t *)pointers[4], (unsigned long long)*(uint64_t *)pointers[5]);
    return answer("cuLaunchKernelEx");
}
