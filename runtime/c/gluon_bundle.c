/* See gluon_bundle.h. For -std=c11 and little-endian machines. */
#include "gluon_bundle.h"

#include <dlfcn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "driver.h"
#include "sha256.h"
#include "bundle_file.h"

const char *gb_digest(const gb_bundle *self) { return self->digest; }
size_t gb_kernel_count(const gb_bundle *self) { return self->kernel_count; }

const gb_kernel *gb_kernel_at(const gb_bundle *self, size_t index)
{
    return index < self->kernel_count ? &self->kernels[index] : NULL;
}

const gb_kernel *gb_find(const gb_bundle *self, const char *name, gb_error *error)
{
    size_t i;
    for (i = 0; i < self->kernel_count; i++)
        if (strcmp(gb_kernel_name(&self->kernels[i]), name) == 0)
            return &self->kernels[i];
    fail(error, GB_KERNEL, "the bundle has no kernel '%s'", name);
    return NULL;
}

const char *gb_kernel_name(const gb_kernel *kernel)
{
    return text_at(kernel->bundle, word(kernel->row));
}

size_t gb_parameter_count(const gb_kernel *kernel) { return word(kernel->row + 4); }

static const unsigned char *parameter(const gb_kernel *kernel, size_t index)
{
    return kernel->bundle->index + word(kernel->row + 8) + ROW_PARAMETER * index;
}

const char *gb_parameter_name(const gb_kernel *kernel, size_t index)
{
    if (index >= gb_parameter_count(kernel))
        return NULL;
    return text_at(kernel->bundle, word(parameter(kernel, index)));
}

size_t gb_form_count(const gb_kernel *kernel) { return kernel->count; }

const gb_form *gb_form_at(const gb_kernel *kernel, size_t index)
{
    return index < kernel->count ? &kernel->forms[index] : NULL;
}

void gb_form_get(const gb_form *form, gb_form_info *info)
{
    const gb_bundle *self = form->kernel->bundle;
    const unsigned char *row = form->row;
    uint32_t flags = word(row + 44);
    int i;
    info->target = text_at(self, word(row));
    info->driver = text_at(self, word(row + 4));
    info->architecture = text_at(self, word(row + 8));
    info->entry = text_at(self, word(row + 12));
    info->options = text_at(self, word(row + 24));
    info->num_warps = word(row + 28);
    info->warp_size = word(row + 32);
    info->num_ctas = word(row + 36);
    info->shared = word(row + 40);
    info->cooperative = (flags & 1) != 0;
    info->dependent = (flags & 2) != 0;
    info->has_grid = (flags & 4) != 0;
    for (i = 0; i < 3; i++)
        info->grid[i] = word(row + 48 + 4 * i);
    for (i = 0; i < 2; i++) {
        info->global_scratch[i] = word(row + 60 + 4 * i);
        info->profile_scratch[i] = word(row + 68 + 4 * i);
    }
    info->buffer_size = word(row + 84);
    info->code = form->code;
    info->code_size = form->code_size;
}

/* -- which form fits ------------------------------------------------------------------------------ */

typedef struct {
    uint32_t parameter, is_value, flags, code, offset; /* of a descriptor: flags: rank, code: its map */
    const char *text; /* the type, or the constant */
} Argument;

#define DESCRIPTOR 2 /* of is_value */

static uint32_t argument_count(const gb_form *form) { return word(form->row + 76); }

static Argument argument_at(const gb_form *form, uint32_t index)
{
    const gb_bundle *self = form->kernel->bundle;
    const unsigned char *at = self->index + word(form->row + 80) + ROW_ARGUMENT * (size_t)index;
    return (Argument){word(at),      word(at + 4),  word(at + 12),
                      word(at + 16), word(at + 20), text_at(self, word(at + 8))};
}

static int same_element(const char *pattern, const char *given)
{
    const char *element = pattern + (pattern[1] == 'k' ? 2 : 1);
    if (strcmp(element, "i1") == 0)
        element = "u1";
    return given == NULL || strcmp(element, strcmp(given, "i1") == 0 ? "u1" : given) == 0;
}

/* The integer types of `gluon_runtime.rules`: the first that holds an integer is its usual one. */
static const struct {
    const char *type;
    int64_t least;
    uint64_t most;
} INTEGERS[] = {{"i32", INT32_MIN, INT32_MAX}, {"i64", INT64_MIN, INT64_MAX}, {"u64", 0, UINT64_MAX}};

static int within(const gb_value *value, int64_t least, uint64_t most)
{
    if (value->kind == GB_INTEGER && (int64_t)value->bits < 0)
        return (int64_t)value->bits >= least;
    return value->bits <= most;
}

/* Whether an integer fits `i8` ... `u64`; 2 where the type is the one that it would be compiled for. */
static int integer_fits(const char *type, const gb_value *value)
{
    int bits = atoi(type + 1), is_unsigned = type[0] == 'u';
    size_t i;
    if ((type[0] != 'i' && type[0] != 'u') || (bits != 8 && bits != 16 && bits != 32 && bits != 64))
        return 0;
    if (!within(value, is_unsigned ? 0 : INT64_MIN >> (64 - bits),
                UINT64_MAX >> (64 - bits + !is_unsigned)))
        return 0;
    for (i = 0; !within(value, INTEGERS[i].least, INTEGERS[i].most); i++) {
    }
    return strcmp(type, INTEGERS[i].type) == 0 ? 2 : 1;
}

/* Whether a descriptor is of the element type, rank and box that an argument was compiled for. */
static int descriptor_fits(const gb_form *form, const Argument *argument, const gb_value *value)
{
    const gb_descriptor *given = (const gb_descriptor *)(uintptr_t)value->bits;
    const unsigned char *map = form->kernel->bundle->index + argument->code;
    const char *element = strchr(argument->text, '<'), *end = strchr(argument->text, '[');
    uint32_t i, bytes = word(map + 8);
    if (value->kind != GB_DESCRIPTOR || given->rank != argument->flags || element == NULL || end == NULL)
        return 0;
    if (given->type == NULL || strlen(given->type) != (size_t)(end - element - 1) ||
        memcmp(given->type, element + 1, strlen(given->type)) != 0)
        return 0;
    if ((uintptr_t)given->address % 16 || given->strides[given->rank - 1] != 1)
        return 0;
    for (i = 0; i < given->rank; i++) {
        uint32_t size = word(map + 20 + 4 * i);
        if (given->shape[i] < 1 || given->shape[i] > INT32_MAX || (given->box[i] && given->box[i] != size))
            return 0;
        if (i + 1 < given->rank && given->strides[i] * bytes % 16)
            return 0;
    }
    return 1;
}

/* How much an argument makes of a value; -1000 where it does not fit. */
static int score(const gb_form *form, const Argument *argument, const gb_value *value)
{
    uint32_t divisor = word(form->kernel->bundle->index + 24);
    const char *type = argument->text;
    int number = value->kind == GB_INTEGER || value->kind == GB_UNSIGNED;
    int fits, marks = (int)(argument->flags & 1) + (int)(argument->flags >> 1 & 1);
    uint64_t small;
    if (!argument->is_value) {
        char text[32];
        int constexpr_ = (int)(word(parameter(form->kernel, argument->parameter) + 4) & 1);
        if (value->kind == GB_LEFT_OUT)
            return constexpr_ ? 0 : -1000;
        if (value->kind == GB_CONSTANT)
            return strcmp(value->text, type) == 0 ? (constexpr_ ? 0 : 4) : -1000;
        if (value->kind == GB_INTEGER)
            snprintf(text, sizeof text, "%lld", (long long)value->bits);
        else if (value->kind == GB_UNSIGNED)
            snprintf(text, sizeof text, "%llu", (unsigned long long)value->bits);
        else if (value->kind == GB_BOOLEAN && constexpr_)
            snprintf(text, sizeof text, "%s", value->bits ? "true" : "false");
        else
            return -1000;
        return strcmp(text, type) == 0 ? (constexpr_ ? 0 : 4) : -1000;
    }
    if (argument->is_value == DESCRIPTOR)
        return descriptor_fits(form, argument, value) ? 0 : -1000;
    if (value->kind == GB_DESCRIPTOR)
        return -1000;
    if (type[0] == '*') {
        if (value->kind != GB_POINTER || !same_element(type, value->text))
            return -1000;
        memcpy(&small, form->kernel->bundle->index + 32, 8);
        if ((argument->flags & 1 && value->bits % divisor) ||
            (argument->flags & 2 && value->size > small))
            return -1000;
        return marks;
    }
    if (value->kind == GB_REAL)
        return strcmp(type, "fp32") == 0 ? 0 : strchr("fb", type[0]) ? -2 : -1000;
    if (value->kind == GB_BOOLEAN)
        return strcmp(type, "u1") == 0 || strcmp(type, "i1") == 0 ? 0 : -1000;
    fits = number ? integer_fits(type, value) : 0;
    if (!fits || (argument->flags & 1 && value->bits % divisor))
        return -1000;
    return marks + (fits == 2 ? 0 : -2);
}

static void spoken(const gb_form *form, const Argument *argument, char *out, size_t room)
{
    uint32_t divisor = word(form->kernel->bundle->index + 24);
    if (!argument->is_value)
        snprintf(out, room, "constant %s", argument->text);
    else if (argument->is_value == DESCRIPTOR)
        snprintf(out, room, "%.100s, of %u dimensions, its rows at multiples of 16 bytes", argument->text,
                 argument->flags);
    else if (argument->flags & 1)
        snprintf(out, room, "%s divisible by %u", argument->text, divisor);
    else
        snprintf(out, room, "%s", argument->text);
}

const gb_form *gb_select(const gb_kernel *kernel, const char *driver, const char *architecture,
                         const gb_value *values, size_t count, gb_error *error)
{
    const gb_form *best = NULL, *near = NULL;
    int most = 0, several = 0, there = 0, plain = 0;
    uint32_t wrong = 0, fewest = UINT32_MAX, i, expected = 0;
    size_t f;
    char text[200];
    for (f = 0; f < kernel->count; f++) {
        const gb_form *form = &kernel->forms[f];
        gb_form_info info;
        uint32_t bad = 0, first = 0;
        int total = 0, given;
        gb_form_get(form, &info);
        if (strcmp(info.driver, driver) != 0 || strcmp(info.architecture, architecture) != 0)
            continue;
        there = 1;
        expected = argument_count(form);
        if (expected != count)
            continue;
        for (i = 0; i < expected; i++) {
            Argument argument = argument_at(form, i);
            int found = score(form, &argument, &values[i]);
            if (found <= -1000 && bad++ == 0)
                first = i;
            total += found;
        }
        if (bad) {
            if (bad < fewest) {
                fewest = bad;
                near = form;
                wrong = first;
            }
            continue;
        }
        given = strcmp(info.options, "{}") == 0;
        if (best == NULL || total > most || (total == most && given && !plain)) {
            several = 0;
            best = form;
            most = total;
            plain = given;
        } else if (total == most && given == plain) {
            several = 1;
        }
    }
    if (best != NULL && several) {
        fail(error, GB_AMBIGUOUS, "several forms of %s fit: give the constants that were left out, or "
                                  "choose one with gb_form_at", gb_kernel_name(kernel));
        return NULL;
    }
    if (best != NULL)
        return best;
    if (!there)
        fail(error, GB_TARGET, "%s was not compiled for %s", gb_kernel_name(kernel), architecture);
    else if (near == NULL)
        fail(error, GB_ARGUMENT, "%s takes %u arguments, got %zu", gb_kernel_name(kernel), expected,
             count);
    else {
        Argument argument = argument_at(near, wrong);
        spoken(near, &argument, text, sizeof text);
        fail(error, GB_MISSING, "%s: %s is not in the bundle for these arguments; expected %s",
             gb_parameter_name(kernel, argument.parameter), gb_kernel_name(kernel), text);
    }
    return NULL;
}

/* -- packing -------------------------------------------------------------------------------------- */

/* IEEE 754 binary16, rounded to nearest even from all the bits of the double. */
static uint16_t to_half(double value)
{
    uint64_t bits, rest, half_way;
    uint16_t sign;
    int exponent, shift = 42;
    memcpy(&bits, &value, sizeof bits);
    sign = (uint16_t)(bits >> 48 & 0x8000);
    exponent = (int)(bits >> 52 & 0x7ff);
    bits &= UINT64_C(0xfffffffffffff);
    if (exponent == 0x7ff)
        return (uint16_t)(sign | 0x7c00 | (bits ? 0x200 : 0));
    exponent += 15 - 1023;
    if (exponent >= 31)
        return (uint16_t)(sign | 0x7c00);
    if (exponent <= 0) {
        shift += 1 - exponent;
        if (shift > 53)
            return sign;
        bits |= UINT64_C(1) << 52;
        exponent = 0;
    }
    rest = bits & ((UINT64_C(1) << shift) - 1);
    half_way = UINT64_C(1) << (shift - 1);
    bits = (uint64_t)exponent << 10 | bits >> shift;
    if (rest > half_way || (rest == half_way && bits & 1))
        bits++;
    return (uint16_t)(sign | bits);
}

static void put(unsigned char *at, uint32_t code, const gb_value *value)
{
    float single = (float)value->real;
    uint32_t bits;
    uint16_t narrow;
    switch (code) {
    case 'f':
        memcpy(at, &single, 4);
        break;
    case 'd':
        memcpy(at, &value->real, 8);
        break;
    case 'e':
        narrow = to_half(value->real);
        memcpy(at, &narrow, 2);
        break;
    case 'y': /* bfloat16: the upper half of the float */
        memcpy(&bits, &single, 4);
        narrow = (uint16_t)(bits >> 16);
        memcpy(at, &narrow, 2);
        break;
    default:
        memcpy(at, &value->bits, letter_bits((char)code) / 8);
    }
}

/* Where the shape and the strides of a descriptor go, counted from its map. */
static size_t shape_place(uint32_t i) { return MAP_BYTES + 4 * (size_t)i; }

static size_t stride_place(uint32_t rank, uint32_t i)
{
    return MAP_BYTES + 4 * (size_t)(rank + rank % 2) + 8 * (size_t)i;
}

static void put_descriptor(unsigned char *at, const gb_descriptor *given)
{
    uint32_t i;
    for (i = 0; i < given->rank; i++) {
        int32_t extent = (int32_t)given->shape[i];
        memcpy(at + shape_place(i), &extent, 4);
        memcpy(at + stride_place(given->rank, i), &given->strides[i], 8);
    }
}

gb_status gb_pack(const gb_form *form, const gb_value *values, size_t count, void *buffer,
                  gb_error *error)
{
    uint32_t i;
    if (count != argument_count(form))
        return fail(error, GB_ARGUMENT, "%s takes %u arguments, got %zu", gb_kernel_name(form->kernel),
                    argument_count(form), count);
    memset(buffer, 0, word(form->row + 84));
    for (i = 0; i < count; i++) {
        Argument argument = argument_at(form, i);
        if (score(form, &argument, &values[i]) <= -1000) {
            char text[200];
            spoken(form, &argument, text, sizeof text);
            return fail(error, GB_MISSING, "%s: not what the form was compiled for; expected %s",
                        gb_parameter_name(form->kernel, argument.parameter), text);
        }
        if (argument.is_value == DESCRIPTOR)
            put_descriptor((unsigned char *)buffer + argument.offset,
                           (const gb_descriptor *)(uintptr_t)values[i].bits);
        else if (argument.is_value)
            put((unsigned char *)buffer + argument.offset, argument.code, &values[i]);
    }
    return GB_OK;
}

#include "bundle_device.h"
