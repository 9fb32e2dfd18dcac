/* The launch as drivers take it, for the engine and for bundles: part of engine.c and of gluon_bundle.c. */

#define RANK 5
#define MAP_BYTES 128

/* CUlaunchConfig of the CUDA driver API, section Execution Control; HIP_LAUNCH_CONFIG is the same. */
typedef struct {
    unsigned int grid[3], block[3], shared;
    void *stream, *attributes;
    unsigned int number;
} Config;

typedef int (*LaunchEx)(const Config *, void *function, void **parameters, void **extra);

/* cuTensorMapEncodeTiled of the CUDA driver API, section Tensor Map Object Management. */
typedef int (*EncodeTiled)(void *map, int type, uint32_t rank, void *address, const uint64_t *shape,
                           const uint64_t *strides, const uint32_t *box, const uint32_t *steps,
                           int interleave, int swizzle, int promotion, int fill);
#define TYPE_TF32 11
#define PROMOTION_128B 2

/* How the kernel wants the map of one of its descriptors, see MapKind in descriptor.py. */
typedef struct {
    uint32_t number; /* equal for kinds that are equal, never 0 */
    int tiled, rank, swizzle, type, bytes, fp4_padded;
    uint32_t box[RANK]; /* fastest dimension first */
} MapKind;

/* Encode the map of a tensor; return the driver's status. `extents` and `steps`, in elements, begin with the
 * slowest dimension; `map` is aligned to 64. */
static int encode_map(EncodeTiled call, const MapKind *kind, uint64_t address, const uint64_t *extents,
                      const uint64_t *steps, int tf32, int nan, int unmark, void *map)
{
    uint64_t shape[RANK], strides[RANK], reach = 0;
    uint32_t ones[RANK];
    int i, status, last = kind->rank - 1;
    for (i = 0; i <= last; i++) {
        shape[i] = extents[last - i];
        if (i == 0 && kind->fp4_padded)
            shape[i] *= 2; /* two elements are one byte */
        if (i)
            strides[i - 1] = steps[last - i] * (uint64_t)kind->bytes;
        ones[i] = 1;
        reach += (shape[i] - 1) * (i ? strides[i - 1] : (uint64_t)kind->bytes);
    }
    status = call(map, tf32 ? TYPE_TF32 : kind->type, (uint32_t)kind->rank, (void *)(uintptr_t)address,
                  shape, strides, kind->box, ones, 0, kind->swizzle, PROMOTION_128B, nan ? 1 : 0);
    if (status == 0 && unmark && reach + 1 < 128 * 1024)
        ((unsigned char *)map)[10] &= (unsigned char)~0x20; /* small tensors: copies of them may fail */
    return status;
}

/* Return the bits of an integer parameter by its letter in the struct module. */
static int letter_bits(char letter)
{
    switch (letter | 0x20) {
    case 'b':
        return 8;
    case 'h':
        return 16;
    case 'i':
        return 32;
    default:
        return 64;
    }
}
