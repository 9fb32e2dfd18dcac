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
#include "bundle_driver.h"

/* -- which form fits ------------------------------------------------------------------------------ */

/* A row of the index: the conditions of an argument, those of gluon_runtime.rules.Condition. */
typedef struct {
    uint32_t parameter, kind, text, rank, code, offset, divisor, words; /* code: a letter, or the place of a map */
    int8_t scores[8];                                                    /* by gb_kind */
    int64_t least;
    uint64_t most;
    int64_t narrow_least;
    uint64_t narrow_most, small;
} Row;

typedef struct {
    Row row;
    const char *text; /* the type, the element type of a pointer, or the constant */
} Argument;

enum { CONSTANT, VALUE, DESCRIPTOR };             /* kinds */
enum { NEVER = -128, WIDER = -2, UNFIT = -1000 }; /* scores */

static uint32_t argument_count(const gb_form *form) { return word(form->row + 76); }

static Argument argument_at(const gb_form *form, uint32_t index)
{
    const gb_bundle *self = form->kernel->bundle;
    Argument argument;
    memcpy(&argument.row, self->index + word(form->row + 80) + ROW_ARGUMENT * (size_t)index, ROW_ARGUMENT);
    argument.text = text_at(self, argument.row.text);
    return argument;
}

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
static int descriptor_fits(const gb_form *form, const Argument *argument, const gb_value *value)
{
    const gb_descriptor *it = descriptor_of(value);
    const unsigned char *map = form->kernel->bundle->index + argument->row.code;
    const char *element = strchr(argument->text, '<'), *end = strchr(argument->text, '[');
    uint32_t i, bytes = word(map + 8);
    if (value->kind != GB_DESCRIPTOR || it->rank != argument->row.rank || element == NULL || end == NULL)
        return 0;
    if (it->type == NULL || strlen(it->type) != (size_t)(end - element - 1) ||
        memcmp(it->type, element + 1, strlen(it->type)) != 0)
        return 0;
    if ((uintptr_t)it->address % 16 || it->strides[it->rank - 1] != 1)
        return 0;
    for (i = 0; i < it->rank; i++)
        if (it->shape[i] < 1 || it->shape[i] > INT32_MAX ||
            (it->box[i] && it->box[i] != word(map + 20 + 4 * i)) ||
            (i + 1 < it->rank && it->strides[i] * bytes % 16))
            return 0;
    return 1;
}

static int is_constant(const Argument *argument, const gb_value *value)
{
    char room[32];
    const char *text = room;
    if (value->kind == GB_CONSTANT)
        text = value->text;
    else if (value->kind == GB_INTEGER)
        snprintf(room, sizeof room, "%lld", (long long)value->bits);
    else if (value->kind == GB_UNSIGNED)
        snprintf(room, sizeof room, "%llu", (unsigned long long)value->bits);
    else
        text = value->bits ? "true" : "false";
    return value->kind == GB_LEFT_OUT || strcmp(text, argument->text) == 0;
}

/* Return the score of a value, or UNFIT. */
static int score(const gb_form *form, const Argument *argument, const gb_value *value)
{
    const Row *row = &argument->row;
    int points = value->kind <= GB_DESCRIPTOR ? row->scores[value->kind] : NEVER;
    int is_pointer = value->kind == GB_POINTER;
    const char *element = is_pointer && value->text != NULL ? value->text : argument->text;
    if (points == NEVER || (row->kind == CONSTANT && !is_constant(argument, value)) ||
        (row->kind == DESCRIPTOR && !descriptor_fits(form, argument, value)))
        return UNFIT;
    if (row->kind != VALUE || (!is_pointer && value->kind != GB_INTEGER && value->kind != GB_UNSIGNED))
        return points;
    if (strcmp(strcmp(element, "i1") == 0 ? "u1" : element, argument->text) != 0 && is_pointer)
        return UNFIT;
    if (!within(value, row->least, row->most) || value->bits % row->divisor ||
        (is_pointer && value->size > row->small))
        return UNFIT;
    return points + (within(value, row->narrow_least, row->narrow_most) ? WIDER : 0);
}

/* Report that no form fits an argument. */
static gb_status misfit(const gb_form *form, const Argument *argument, const char *before, const char *after,
                        gb_error *error)
{
    return fail(error, GB_MISSING, "%s: %s%s; expected %s",
                gb_parameter_name(form->kernel, argument->row.parameter), before, after,
                text_at(form->kernel->bundle, argument->row.words));
}

const gb_form *gb_select(const gb_kernel *kernel, const char *driver, const char *architecture,
                         const gb_value *values, size_t count, gb_error *error)
{
    const gb_form *best = NULL, *near = NULL;
    int most = 0, several = 0, there = 0;
    uint32_t wrong = 0, fewest = UINT32_MAX, i, expected = 0;
    size_t f;
    for (f = 0; f < kernel->count; f++) {
        const gb_form *form = &kernel->forms[f];
        gb_form_info info;
        uint32_t bad = 0, first = 0;
        int total = 0, rank;
        gb_form_get(form, &info);
        if (strcmp(info.driver, driver) != 0 || strcmp(info.architecture, architecture) != 0)
            continue;
        there = 1;
        expected = argument_count(form);
        if (expected != count)
            continue;
        for (i = 0; i < expected; i++) {
            Argument argument = argument_at(form, i);
            int points = score(form, &argument, &values[i]);
            if (points == UNFIT && bad++ == 0)
                first = i;
            total += points;
        }
        rank = 2 * total + (strcmp(info.options, "{}") == 0); /* usual options decide between equals */
        if (bad && bad < fewest) {
            fewest = bad;
            near = form;
            wrong = first;
        }
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
    else if (!there)
        fail(error, GB_TARGET, "%s was not compiled for %s", gb_kernel_name(kernel), architecture);
    else if (near == NULL)
        fail(error, GB_ARGUMENT, "%s takes %u arguments, got %zu", gb_kernel_name(kernel), expected,
             count);
    else {
        Argument argument = argument_at(near, wrong);
        misfit(near, &argument, gb_kernel_name(kernel), " is not in the bundle for these arguments", error);
    }
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

static void list(void ***pointers, void *place)
{
    if (*pointers != NULL)
        *(*pointers)++ = place;
}

/* Write the arguments of a form. A device encodes the maps; `pointers` get the places of all values. */
static gb_status pack(gb_device *device, const gb_form *form, const gb_value *values, size_t count,
                      unsigned char *buffer, void **pointers, gb_error *error)
{
    uint32_t i, d;
    int status;
    if (count != argument_count(form))
        return fail(error, GB_ARGUMENT, "%s takes %u arguments, got %zu", gb_kernel_name(form->kernel),
                    argument_count(form), count);
    memset(buffer, 0, word(form->row + 84));
    for (i = 0; i < count; i++) {
        Argument argument = argument_at(form, i);
        const Row *row = &argument.row;
        const gb_descriptor *it = descriptor_of(&values[i]);
        unsigned char *place = buffer + row->offset;
        if (score(form, &argument, &values[i]) == UNFIT)
            return misfit(form, &argument, "not the argument that the form was compiled for", "", error);
        if (row->kind == VALUE)
            put(place, row->code, &values[i]);
        if (row->kind != CONSTANT)
            list(&pointers, place);
        if (row->kind != DESCRIPTOR)
            continue;
        status = device == NULL ? 0 : encode(device, form->kernel->bundle->index + row->code, it, place);
        if (status)
            return fail(error, GB_DRIVER, "%s: the driver cannot encode the descriptor: error %d",
                        gb_parameter_name(form->kernel, row->parameter), status);
        for (d = 0, place += MAP_BYTES; d < it->rank; d++, place += 4) {
            int32_t extent = (int32_t)it->shape[d];
            memcpy(place, &extent, 4);
            list(&pointers, place);
        }
        for (d = 0, place += 4 * (it->rank % 2); d < it->rank; d++, place += 8) {
            memcpy(place, &it->strides[d], 8);
            list(&pointers, place);
        }
    }
    list(&pointers, buffer + word(form->row + 88));
    list(&pointers, buffer + word(form->row + 92));
    return GB_OK;
}

gb_status gb_pack(const gb_form *form, const gb_value *values, size_t count, void *buffer,
                  gb_error *error)
{
    return pack(NULL, form, values, count, buffer, NULL, error);
}

/* -- launching ------------------------------------------------------------------------------------ */

static gb_status launch_packed(gb_device *self, const gb_form *form, const gb_form_info *info, void *function,
                               const uint32_t *grid, void *stream, unsigned char *buffer, void **pointers,
                               gb_error *error)
{
    uint64_t owned[2] = {0, 0}, blocks = (uint64_t)grid[0] * grid[1] * grid[2] * info->num_ctas;
    const unsigned char *places = form->row + 88;
    int i, code;
    (void)((code = scratch(self, info->global_scratch, blocks, stream, buffer + word(places), &owned[0])) ||
           (code = scratch(self, info->profile_scratch, blocks, stream, buffer + word(places + 4), &owned[1])) ||
           (code = launch_now(self, function, info, grid, stream, pointers)));
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
    gb_form_info info;
    void **pointers, *function = NULL;
    unsigned char *room, *buffer;
    gb_status status;
    int empty;
    gb_form_get(form, &info);
    if (grid == NULL && !info.has_grid)
        return fail(error, GB_ARGUMENT, "the bundle does not say over which grid %s runs", info.entry);
    if (strcmp(info.driver, self->driver->name) != 0 ||
        strcmp(info.architecture, self->architecture) != 0)
        return fail(error, GB_TARGET, "%s: the form is for %s, the device is %s", info.entry, info.target,
                    self->architecture);
    grid = grid == NULL ? info.grid : grid;
    if (grid[1] > 65535 || grid[2] > 65535 || grid[0] > INT32_MAX)
        return fail(error, GB_ARGUMENT, "not a grid: %u x %u x %u", grid[0], grid[1], grid[2]);
    empty = !grid[0] || !grid[1] || !grid[2];
    if (!empty && ((status = enter(self, error)) || /* a form is the bundle's, which may mark it as checked */
                   (status = load(self, (gb_form *)form, &info, &function, error))))
        return status;
    room = calloc(1, info.buffer_size + 72);
    pointers = calloc((size_t)argument_count(form) * 11 + 2, sizeof *pointers);
    buffer = room == NULL ? NULL : room + (64 - (uintptr_t)room % 64) % 64; /* as maps are aligned */
    if (buffer == NULL || pointers == NULL)
        status = fail(error, GB_MEMORY, "out of memory");
    else
        status = pack(empty ? NULL : self, form, values, count, buffer, pointers, error);
    if (!status && !empty)
        status = launch_packed(self, form, &info, function, grid, stream, buffer, pointers, error);
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
    if (form == NULL)
        return error->status;
    return gb_launch_form(self, form, grid, stream, values, count, error);
}
