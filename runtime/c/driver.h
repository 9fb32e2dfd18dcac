/* The launch as drivers take it, for the engine and for bundles: part of engine.c and of gluon_bundle.c. */

#define RANK 5
#define MAP_BYTES 128

/* CUlaunchConfig of the CUDA driver API, section Execution Control; HIP_LAUNCH_CONFIG is the same. */
typedef struct {
    unsigned int grid[3], block[3], shared;
    void *stream, *attributes;
    unsigned int number;
} Config;

/* CUlaunchAttribute and hipLaunchAttribute. */
typedef struct {
    unsigned id, pad;
    unsigned value[16];
} Attribute;
enum { COOPERATIVE = 2, CLUSTER = 4, CLUSTER_POLICY = 5, DEPENDENT = 6, MOST_ATTRIBUTES = 4 }; /* ids */

static void add_attribute(Config *config, int wanted, unsigned id, unsigned first)
{
    if (wanted)
        ((Attribute *)config->attributes)[config->number++] = (Attribute){id, 0, {first, id == CLUSTER, id == CLUSTER}};
}

/* Fill `attributes`, which has room for MOST_ATTRIBUTES. */
static void set_attributes(Config *config, Attribute *attributes, unsigned ctas, int cooperative, int dependent, int hip)
{
    config->attributes = attributes;
    add_attribute(config, dependent && !hip, DEPENDENT, 1);
    add_attribute(config, cooperative, COOPERATIVE, 1);
    add_attribute(config, ctas != 1, CLUSTER, ctas);
    add_attribute(config, ctas != 1 && !hip, CLUSTER_POLICY, 1); /* spread */
}

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
    int tiled, rank, swizzle, type, bytes, fp4_padded; /* type: as PTX's tensormap.replace numbers it */
    uint32_t box[RANK]; /* fastest dimension first */
} MapKind;

/* Encode the map of a tensor; return the driver's status. `extents` and `steps`, in elements, begin with the
 * slowest dimension; `map` is aligned to 64. */
static int encode_map(EncodeTiled call, const MapKind *kind, uint64_t address, const uint64_t *extents,
                      const uint64_t *steps, int tf32, int nan, int unmark, void *map)
{
    static const int of_ptx[] = {10, 8, 9}; /* the types 8 to 10; the driver numbers the others as PTX does */
    uint64_t shape[RANK], strides[RANK], reach = 0;
    uint32_t ones[RANK];
    int last = kind->rank - 1, type = kind->type >= 8 && kind->type <= 10 ? of_ptx[kind->type - 8] : kind->type;
    for (int i = 0; i <= last; i++) {
        shape[i] = extents[last - i];
        if (i == 0 && kind->fp4_padded)
            shape[i] *= 2; /* two elements are one byte */
        if (i)
            strides[i - 1] = steps[last - i] * (uint64_t)kind->bytes;
        ones[i] = 1;
        reach += (shape[i] - 1) * (i ? strides[i - 1] : (uint64_t)kind->bytes);
    }
    int status = call(map, tf32 ? TYPE_TF32 : type, (uint32_t)kind->rank, (void *)(uintptr_t)address,
                      shape, strides, kind->box, ones, 0, kind->swizzle, PROMOTION_128B, nan ? 1 : 0);
    if (status == 0 && unmark && reach + 1 < 128 * 1024)
        ((unsigned char *)map)[10] &= (unsigned char)~0x20; /* small tensors: copies of them may fail */
    return status;
}

#define MAX_VALUES 512 /* parameters of a kernel, scratch memory included */
#define MAX_MAPS 32

/* The arguments of one launch as the driver wants them. */
typedef struct {
    void *parameters[MAX_VALUES];
    uint64_t slots[MAX_VALUES];
    _Alignas(64) unsigned char maps[MAX_MAPS][MAP_BYTES];
    int used, map;
} Packed;

static inline void put(Packed *to, void *value)
{
    to->parameters[to->used++] = value;
}

static inline void put_word(Packed *to, uint64_t word)
{
    to->slots[to->used] = word;
    put(to, &to->slots[to->used]);
}

/* Put a descriptor, whose map is in its place: the map, then shape and strides. */
static inline void put_described(Packed *to, const uint64_t *shape, const uint64_t *strides, int rank)
{
    put(to, to->maps[to->map++]);
    for (int i = 0; i < 2 * rank; i++) /* int32 shapes are at the start of their slots */
        put_word(to, i < rank ? shape[i] : strides[i - rank]);
}

/* Return IEEE 754 binary16, rounded once, to nearest even: beyond 2^52, doubles are whole numbers. */
static __attribute__((noinline)) uint16_t to_half(double value)
{
    int exponent, sign = signbit(value) ? 0x8000 : 0;
    if (!(fabs(value) < 65536))
        return (uint16_t)(sign | 0x7c00 | (value != value ? 0x200 : 0));
    (void)frexp(value, &exponent);
    exponent = value == 0 || exponent < -13 ? -13 : exponent;
    double units = ldexp(fabs(value), 11 - exponent) + 0x1p52;
    return (uint16_t)(sign | (((exponent + 13) << 10) + (int)(units - 0x1p52)));
}

/* Letters of parameters are those of the struct module; y is bfloat16. */
static inline int is_real(char letter)
{
    return letter == 'f' || letter == 'd' || letter == 'e' || letter == 'y';
}

/* Write a number by the letter of its parameter, which is real; -1 where it is finite and becomes infinite. */
static __attribute__((noinline)) int write_real(char letter, double value, void *to)
{
    float single = (float)value;
    if (letter == 'd')
        memcpy(to, &value, sizeof value);
    else if (letter == 'f')
        memcpy(to, &single, sizeof single);
    else if (letter == 'y') /* the upper half of the float */
        memcpy(to, (unsigned char *)&single + 2, 2);
    else {
        uint16_t narrow = to_half(value);
        memcpy(to, &narrow, sizeof narrow);
        if ((narrow & 0x7fff) == 0x7c00)
            single = (float)HUGE_VAL;
    }
    return letter != 'd' && single - single != 0 && value - value == 0 ? -1 : 0;
}

/* Return the bits of an integer parameter by its letter. */
static inline int letter_bits(char letter)
{
    letter |= 0x20;
    return letter == 'b' ? 8 : letter == 'h' ? 16 : letter == 'i' ? 32 : 64;
}
