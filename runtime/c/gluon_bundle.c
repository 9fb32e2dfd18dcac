/* See gluon_bundle.h. For -std=c11 and little-endian machines. */
#include "gluon_bundle.h"

#include <dlfcn.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "driver.h"
#include "sha256.h"
#include "bundle_file.h"
#include "bundle_driver.h"

/* -- which form fits ------------------------------------------------------------------------------ */

enum { NEVER = -128, WIDER = -2, UNFIT = -1000 }; /* scores */

static const gb_descriptor *descriptor_of(const gb_value *value)
{
    return (const gb_descriptor *)(uintptr_t)value->bits;
}

static int within(const gb_value *value, int64_t least, uint64_t most)
{
    if (value->kind == GB_INTEGER && (int64_t)value->bits < 0)
        return (int64_t)value->bits >= least && (most > INT64_MAX || (int64_t)value->bits <= (int64_t)most);
    return value->bits <= most && (least < 0 || value->bits >= (uint64_t)least);
}

/* Return whether a descriptor is of the element type, rank and box that an argument was compiled for. */
static int descriptor_fits(const gb_bundle *self, const ArgumentRow *row, const gb_value *value)
{
    const gb_descriptor *it = descriptor_of(value);
    const MapRow *map = (const MapRow *)(self->index + row->code);
    const char *element = strchr(text_at(self, row->text), '<'), *end = strchr(text_at(self, row->text), '[');
    uint32_t i;
    if (it->rank != row->rank || element == NULL || end == NULL || it->type == NULL ||
        strlen(it->type) != (size_t)(end - ++element) || memcmp(it->type, element, strlen(it->type)) != 0 ||
        (uintptr_t)it->address % 16 || it->strides[it->rank - 1] != 1)
        return 0;
    for (i = 0; i < it->rank; i++)
        if (it->shape[i] < 1 || it->shape[i] > INT32_MAX || (it->box[i] && it->box[i] != map->box[i]) ||
            (i + 1 < it->rank && it->strides[i] * map->bytes % 16))
            return 0;
    return 1;
}

static int is_constant(const char *expected, const gb_value *value)
{
    char room[32];
    const char *text = room;
    if (value->kind == GB_CONSTANT)
        text = value->text;
    else if (value->kind == GB_BOOLEAN)
        text = value->bits ? "true" : "false";
    else
        snprintf(room, sizeof room, value->kind == GB_INTEGER ? "%" PRId64 : "%" PRIu64, value->bits);
    return value->kind == GB_LEFT_OUT || strcmp(text, expected) == 0;
}

/* Return the score of a value, or UNFIT. */
static int score(const gb_form *form, const ArgumentRow *row, const gb_value *value)
{
    const gb_bundle *self = form->kernel->bundle;
    int points = value->kind <= GB_DESCRIPTOR ? row->scores[value->kind] : NEVER;
    int is_pointer = value->kind == GB_POINTER;
    const char *expected = text_at(self, row->text);
    const char *element = is_pointer && value->text != NULL ? value->text : expected;
    element = strcmp(element, "i1") == 0 ? "u1" : element;
    if (points == NEVER || (row->kind == CONSTANT && !is_constant(expected, value)) ||
        (row->kind == DESCRIPTOR && (value->kind != GB_DESCRIPTOR || !descriptor_fits(self, row, value))))
        return UNFIT;
    if (row->kind != VALUE || (!is_pointer && value->kind != GB_INTEGER && value->kind != GB_UNSIGNED))
        return points;
    if (is_pointer && (strcmp(element, expected) != 0 || value->size > row->small))
        return UNFIT;
    if (!within(value, row->least, row->most) || value->bits % row->divisor)
        return UNFIT;
    return points + (within(value, row->narrow_least, row->narrow_most) ? WIDER : 0);
}

/* Report that a value is not the one that an argument was compiled for. */
static gb_status misfit(const gb_form *form, const ArgumentRow *row, const char *before, const char *after,
                        gb_error *error)
{
    return fail(error, GB_MISSING, "%s: %s%s; expected %s", gb_parameter_name(form->kernel, row->parameter), before,
                after, text_at(form->kernel->bundle, row->words));
}

static gb_status miscounted(const gb_form *form, size_t count, gb_error *error)
{
    return fail(error, GB_ARGUMENT, "%s takes %u arguments, got %zu", gb_kernel_name(form->kernel),
                form->row->argument_count, count);
}

const gb_form *gb_select(const gb_kernel *kernel, const char *driver, const char *architecture,
                         const gb_value *values, size_t count, gb_error *error)
{
    const gb_form *best = NULL, *near = NULL, *form = kernel->forms, *end = form + gb_form_count(kernel);
    int most = 0, several = 0;
    uint32_t wrong = 0, fewest = UINT32_MAX, i;
    for (; form < end; form++) {
        uint32_t bad = 0, first = 0;
        int total = 0, rank;
        if (strcmp(form->info.driver, driver) != 0 || strcmp(form->info.architecture, architecture) != 0)
            continue;
        near = near == NULL ? form : near;
        if (form->row->argument_count != count)
            continue;
        for (i = 0; i < count; i++) {
            int points = score(form, &form->arguments[i], &values[i]);
            if (points == UNFIT && bad++ == 0)
                first = i;
            total += points;
        }
        if (bad < fewest) {
            fewest = bad;
            near = form;
            wrong = first;
        }
        rank = 2 * total + (strcmp(form->info.options, "{}") == 0); /* usual options decide between equals */
        if (bad)
            continue;
        several = best != NULL && (rank == most || (several && rank < most));
        if (best == NULL || rank > most) {
            best = form;
            most = rank;
        }
    }
    if (best != NULL && !several)
        return best;
    if (best != NULL)
        fail(error, GB_AMBIGUOUS, "several forms of %s fit: give the constants that were left out, or "
                                  "choose one with gb_form_at", gb_kernel_name(kernel));
    else if (near == NULL)
        fail(error, GB_TARGET, "%s was not compiled for %s", gb_kernel_name(kernel), architecture);
    else if (fewest == UINT32_MAX)
        miscounted(near, count, error);
    else
        misfit(near, &near->arguments[wrong], gb_kernel_name(kernel), " is not in the bundle for these arguments",
               error);
    return NULL;
}

/* -- packing -------------------------------------------------------------------------------------- */

/* Return IEEE 754 binary16, rounded once, to nearest even: the sum with 1.5 * 2^52 units of the last place has the
 * units in its lowest bits. */
static uint16_t to_half(double value)
{
    uint64_t bits, magic, units;
    uint16_t sign;
    int exponent;
    double sum;
    memcpy(&bits, &value, sizeof bits);
    sign = (uint16_t)(bits >> 48 & 0x8000);
    exponent = (int)(bits >> 52 & 0x7ff) - 1023;
    if (exponent > 15)
        return (uint16_t)(sign | 0x7c00 | (value != value ? 0x200 : 0));
    exponent = exponent < -14 ? -14 : exponent;
    magic = (uint64_t)(exponent + 42 + 1023) << 52 | UINT64_C(1) << 51;
    memcpy(&sum, &magic, sizeof sum);
    sum += sign ? -value : value;
    memcpy(&units, &sum, sizeof units);
    return (uint16_t)(sign | (((uint64_t)(exponent + 14) << 10) + (units - magic)));
}

static void put(unsigned char *at, uint32_t code, const gb_value *value)
{
    float single = (float)value->real;
    uint16_t narrow = to_half(value->real);
    const unsigned char *bytes = (const unsigned char *)&single;
    if (code == 'f')
        memcpy(at, bytes, 4);
    else if (code == 'd')
        memcpy(at, &value->real, 8);
    else if (code == 'e')
        memcpy(at, &narrow, 2);
    else if (code == 'y') /* bfloat16: the upper half of the float */
        memcpy(at, bytes + 2, 2);
    else
        memcpy(at, &value->bits, letter_bits((char)code) / 8);
}

/* Write the arguments of a form. A device encodes the maps; `pointers` get the places of all values. */
static gb_status pack(gb_device *device, const gb_form *form, const gb_value *values, size_t count,
                      unsigned char *buffer, void **pointers, gb_error *error)
{
    const FormRow *to = form->row;
    void *unused[2 * RANK + 1];
    uint32_t i, d;
    if (count != to->argument_count)
        return miscounted(form, count, error);
    memset(buffer, 0, to->size);
    for (i = 0; i < count; i++) {
        const ArgumentRow *row = &form->arguments[i];
        const gb_descriptor *it = descriptor_of(&values[i]);
        unsigned char *place = buffer + row->offset;
        void **next = pointers == NULL ? unused : pointers;
        int status;
        if (score(form, row, &values[i]) == UNFIT)
            return misfit(form, row, "not the argument that the form was compiled for", "", error);
        if (row->kind == VALUE)
            put(place, row->code, &values[i]);
        if (row->kind != CONSTANT)
            *next++ = place;
        if (row->kind == DESCRIPTOR) {
            status = device == NULL ? 0 : encode(device, form->kernel->bundle->index + row->code, it, place);
            if (status)
                return fail(error, GB_DRIVER, "%s: the driver cannot encode the descriptor: error %d",
                            gb_parameter_name(form->kernel, row->parameter), status);
            place += MAP_BYTES;
            for (d = 0; d < it->rank; d++, place += 4)
                memcpy(*next++ = place, &(int32_t){(int32_t)it->shape[d]}, 4);
            place += 4 * (it->rank % 2);
            for (d = 0; d < it->rank; d++, place += 8)
                memcpy(*next++ = place, &it->strides[d], 8);
        }
        pointers = pointers == NULL ? NULL : next;
    }
    for (i = 0; pointers != NULL && i < 2; i++)
        pointers[i] = buffer + to->scratch[i];
    return GB_OK;
}

gb_status gb_pack(const gb_form *form, const gb_value *values, size_t count, void *buffer,
                  gb_error *error)
{
    return pack(NULL, form, values, count, buffer, NULL, error);
}

/* -- launching ------------------------------------------------------------------------------------ */

static gb_status launch_packed(gb_device *self, const gb_form *form, void *function, const uint32_t *grid, void *stream,
                               unsigned char *buffer, void **pointers, gb_error *error)
{
    const gb_form_info *info = &form->info;
    const uint32_t *needs[2] = {info->global_scratch, info->profile_scratch};
    uint64_t owned[2] = {0, 0}, blocks = (uint64_t)grid[0] * grid[1] * grid[2] * info->num_ctas;
    int i, code = 0;
    for (i = 0; !code && i < 2; i++)
        code = scratch(self, needs[i], blocks, stream, buffer + form->row->scratch[i], &owned[i]);
    code = code ? code : launch_now(self, function, info, grid, stream, pointers);
    for (i = 0; i < 2; i++) /* the stream keeps later users behind the kernel */
        if (owned[i])
            need(self, self->driver->free)(owned[i], stream);
    return code ? fail(error, GB_DRIVER, "the driver refused the launch of %s over %u x %u x %u: error %d",
                       info->entry, grid[0], grid[1], grid[2], code)
                : GB_OK;
}

gb_status gb_launch_form(gb_device *self, const gb_form *form, const uint32_t *grid, void *stream,
                         const gb_value *values, size_t count, gb_error *error)
{
    const gb_form_info *info = &form->info;
    void **pointers, *function = NULL;
    unsigned char *room, *buffer;
    gb_status status = GB_OK;
    int empty;
    if (grid == NULL && !info->has_grid)
        return fail(error, GB_ARGUMENT, "the bundle does not say over which grid %s runs", info->entry);
    if (strcmp(info->driver, self->driver->name) != 0 || strcmp(info->architecture, self->architecture) != 0)
        return fail(error, GB_TARGET, "%s: the form is for %s, the device is %s", info->entry, info->target,
                    self->architecture);
    grid = grid == NULL ? info->grid : grid;
    if (grid[1] > 65535 || grid[2] > 65535 || grid[0] > INT32_MAX)
        return fail(error, GB_ARGUMENT, "not a grid: %u x %u x %u", grid[0], grid[1], grid[2]);
    empty = !grid[0] || !grid[1] || !grid[2];
    if (!empty && ((status = enter(self, error)) || /* a form is the bundle's, which may mark it as checked */
                   (status = load(self, (gb_form *)form, &function, error))))
        return status;
    room = calloc(1, info->buffer_size + 72);
    pointers = calloc(count * (2 * RANK + 1) + 2, sizeof *pointers);
    buffer = room == NULL ? NULL : room + (64 - (uintptr_t)room % 64) % 64; /* as maps are aligned */
    if (buffer == NULL || pointers == NULL)
        status = fail(error, GB_MEMORY, "out of memory");
    else
        status = pack(empty ? NULL : self, form, values, count, buffer, pointers, error);
    if (!status && !empty)
        status = launch_packed(self, form, function, grid, stream, buffer, pointers, error);
    free(pointers);
    free(room);
    return status;
}

gb_status gb_launch(gb_device *self, const gb_kernel *kernel, const uint32_t *grid, void *stream,
                    const gb_value *values, size_t count, gb_error *error)
{
    gb_error own;
    const gb_form *form;
    error = error == NULL ? &own : error;
    *error = (gb_error){GB_OK, ""};
    if (kernel == NULL)
        return fail(error, GB_KERNEL, "no kernel");
    form = gb_select(kernel, self->driver->name, self->architecture, values, count, error);
    return form == NULL ? error->status : gb_launch_form(self, form, grid, stream, values, count, error);
}
