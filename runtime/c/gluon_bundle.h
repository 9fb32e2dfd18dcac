/* Launches bundles of compiled Gluon kernels from C and C++.
 *
 *     gb_error error;
 *     gb_bundle *bundle = gb_open("kernels.glb", &error);
 *     gb_device *device = gb_device_open(0, &error);
 *     gb_value arguments[] = {gb_pointer(x, "fp32"), gb_pointer(y, "fp32"), gb_integer(n), gb_real(2.5),
 *                             gb_constant("512"), gb_left_out()};
 *     const uint32_t grid[3] = {4, 1, 1};
 *     if (gb_launch(device, gb_find(bundle, "scale", &error), grid, stream, arguments, 6, &error))
 *         fprintf(stderr, "%s\n", error.text);
 *
 * Compile gluon_bundle.c with the program and link with -ldl. The driver, libcuda or libamdhip64, is
 * opened when a device is. No headers of CUDA or HIP are needed. The format is described in
 * docs/bundles.md of Gluon Core. Functions answer NULL or a status other than GB_OK where they fail,
 * and say why in `error`, which may be NULL.
 */
#ifndef GLUON_BUNDLE_H
#define GLUON_BUNDLE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum {
    GB_OK = 0,
    GB_FORMAT,    /* no such file, or no bundle */
    GB_VERSION,   /* with an index of another version */
    GB_DAMAGED,   /* the index or a code object has another checksum, or the end of the file is missing */
    GB_KERNEL,    /* no kernel of that name */
    GB_TARGET,    /* no code for the device's architecture */
    GB_MISSING,   /* no form fits the arguments */
    GB_AMBIGUOUS, /* several forms fit */
    GB_ARGUMENT,  /* not the kernel's arguments */
    GB_DEVICE,    /* no driver or no device */
    GB_DRIVER,    /* the driver refused */
    GB_MEMORY     /* out of memory */
} gb_status;

typedef struct {
    gb_status status;
    char text[512];
} gb_error;

typedef struct gb_bundle gb_bundle;
typedef struct gb_kernel gb_kernel;
typedef struct gb_form gb_form;
typedef struct gb_device gb_device;

/* -- bundles ------------------------------------------------------------------------------------- */

/* Reads a bundle and checks its index; a code object is checked when it is loaded. */
gb_bundle *gb_open(const char *path, gb_error *error);
/* The same for a bundle in memory, which must stay there. */
gb_bundle *gb_open_memory(const void *data, size_t size, gb_error *error);
/* Frees a bundle; devices that were opened for it must be closed before. */
void gb_close(gb_bundle *bundle);

size_t gb_kernel_count(const gb_bundle *bundle);
const gb_kernel *gb_kernel_at(const gb_bundle *bundle, size_t index);
const gb_kernel *gb_find(const gb_bundle *bundle, const char *name, gb_error *error);
const char *gb_kernel_name(const gb_kernel *kernel);

/* -- forms: a kernel, compiled for one target and one kind of arguments ---------------------------- */

typedef struct {
    const char *target, *driver, *architecture, *entry, *options; /* options: JSON */
    uint32_t num_warps, warp_size, num_ctas, shared;
    int cooperative, dependent;
    int has_grid;
    uint32_t grid[3];
    uint32_t global_scratch[2], profile_scratch[2]; /* bytes per block, alignment */
    const void *code;
    size_t code_size;
} gb_form_info;

size_t gb_form_count(const gb_kernel *kernel);
const gb_form *gb_form_at(const gb_kernel *kernel, size_t index);
void gb_form_get(const gb_form *form, gb_form_info *info);

/* -- arguments: one value per parameter; those of a tuple one after the other ---------------------- */

typedef enum {
    GB_POINTER,
    GB_INTEGER,
    GB_UNSIGNED,
    GB_REAL,
    GB_BOOLEAN,
    GB_CONSTANT,
    GB_LEFT_OUT,
    GB_DESCRIPTOR
} gb_kind;

/* A tensor in global memory, for a descriptor parameter. The box that one copy moves, and its layout in
 * shared memory, are those that the kernel was compiled for. */
typedef struct {
    const void *address; /* of the first element, a multiple of 16 */
    const char *type;    /* the element type, such as "fp16" */
    uint32_t rank;       /* 1 to 5 */
    uint64_t shape[5];   /* slowest dimension first */
    uint64_t strides[5]; /* in elements; the last is 1 */
    uint32_t box[5];     /* chooses among forms for several boxes; zeros fit any */
    int nan;             /* loads of elements outside bring NaN, or else zero */
    int tf32;            /* copies round fp32 elements */
} gb_descriptor;

typedef struct {
    gb_kind kind;
    uint64_t bits;    /* the address; the integer; whether a boolean is true */
    double real;
    const char *text; /* of a pointer, its element type, NULL fits any; of a constant, its JSON */
    uint64_t size;    /* bytes of storage behind a pointer, UINT64_MAX where that is not known */
} gb_value;

static inline gb_value gb_value_of(gb_kind kind, uint64_t bits, double real, const char *text)
{
    gb_value value;
    value.kind = kind;
    value.bits = bits;
    value.real = real;
    value.text = text;
    value.size = UINT64_MAX;
    return value;
}
/* An address on the device, and the element type behind it, such as "fp32". */
static inline gb_value gb_pointer(const void *address, const char *type)
{
    return gb_value_of(GB_POINTER, (uint64_t)(uintptr_t)address, 0, type);
}
static inline gb_value gb_integer(int64_t value)
{
    return gb_value_of(GB_INTEGER, (uint64_t)value, 0, NULL);
}
static inline gb_value gb_unsigned(uint64_t value)
{
    return gb_value_of(GB_UNSIGNED, value, 0, NULL);
}
static inline gb_value gb_real(double value) { return gb_value_of(GB_REAL, 0, value, NULL); }
static inline gb_value gb_boolean(int value) { return gb_value_of(GB_BOOLEAN, value != 0, 0, NULL); }
/* A compile-time constant as JSON ("512", "true", "\"relu\"", "null"), or the text of a layout. */
static inline gb_value gb_constant(const char *json) { return gb_value_of(GB_CONSTANT, 0, 0, json); }
/* A tensor for a descriptor parameter; `descriptor` must live until the launch. */
static inline gb_value gb_described(const gb_descriptor *descriptor)
{
    return gb_value_of(GB_DESCRIPTOR, (uint64_t)(uintptr_t)descriptor, 0, NULL);
}
/* A compile-time constant that is left to the bundle. */
static inline gb_value gb_left_out(void) { return gb_value_of(GB_LEFT_OUT, 0, 0, NULL); }

/* The form for these arguments on an architecture ("sm_90") of a driver ("cuda", "hip"). */
const gb_form *gb_select(const gb_kernel *kernel, const char *driver, const char *architecture,
                         const gb_value *values, size_t count, gb_error *error);

/* -- launching ----------------------------------------------------------------------------------- */

/* Device `index` of libcuda, or else of libamdhip64, the first driver that sees it. */
gb_device *gb_device_open(int index, gb_error *error);
/* Frees the memory of a device; loaded kernels stay loaded, as work with them may be under way. */
void gb_device_close(gb_device *device);
const char *gb_device_architecture(const gb_device *device);

/* Chooses a form, loads it the first time, and launches it on a stream (a CUstream or hipStream_t, NULL
 * for the default stream). `grid` counts clusters where the kernel has them; NULL takes the grid that
 * the bundle was built with. A device may be used by one thread at a time. */
gb_status gb_launch(gb_device *device, const gb_kernel *kernel, const uint32_t *grid, void *stream,
                    const gb_value *values, size_t count, gb_error *error);
/* The same for a form that was chosen before. */
gb_status gb_launch_form(gb_device *device, const gb_form *form, const uint32_t *grid, void *stream,
                         const gb_value *values, size_t count, gb_error *error);

#ifdef __cplusplus
}
#endif
#endif
