/* See gluon_bundle.h. For -std=c11 and little-endian machines. */
#include "gluon_bundle.h"

#include <dlfcn.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "driver.h"
#include "sha256.h"
#include "choice.h"
#include "bundle_file.h"
#include "bundle_driver.h"

/* -- which form fits ------------------------------------------------------------------------------ */

static const gb_descriptor *descriptor_of(const gb_value *value)
{
    return (const gb_descriptor *)(uintptr_t)value->bits;
}

/* Return whether a descriptor is of the element type, rank and box that an argument was compiled for. */
static int descriptor_fits(const ArgumentRow *row, const char *element, const gb_value *value)
{
    const gb_descriptor *it = descriptor_of(value);
    if (it->rank != (uint32_t)row->map.rank || it->type == NULL || strcmp(it->type, element) != 0 ||
        (uintptr_t)it->address % 16 || it->strides[it->rank - 1] != 1)
        return 0;
    for (uint32_t i = 0; i < it->rank; i++)
        if (it->shape[i] < 1 || it->shape[i] > INT32_MAX || (it->box[i] && it->box[i] != row->map.box[it->rank - 1 - i]) ||
            (i + 1 < it->rank && it->strides[i] * (uint64_t)row->map.bytes % 16))
            return 0;
    return 1;
}

/* Return the score of a value, or UNFIT. */
static int score(const gb_form *form, const ArgumentRow *row, const gb_value *value)
{
    const char *expected = AT(form, row->text);
    int fits = row->kind != ROW_DESCRIPTOR || (value->kind == GB_DESCRIPTOR && descriptor_fits(row, expected, value));
    if (row->kind == ROW_CONSTANT && value->kind != GB_LEFT_OUT)
        fits = value->kind == GB_CONSTANT ? strcmp(value->text, expected) == 0 : value->bits == row->most;
    return fits ? score_value(row, expected, value) : UNFIT;
}

/* Report that a value is not the one that an argument was compiled for. */
static gb_status misfit(const gb_form *form, const ArgumentRow *row, const char *before, const char *after,
                        gb_error *error)
{
    return fail(error, GB_MISSING, "%s: %s%s; expected %s", gb_parameter_name(kernel_of(form), row->parameter), before,
                after, (const char *)AT(form, row->words));
}

static gb_status miscounted(const gb_form *form, size_t count, gb_error *error)
{
    return fail(error, GB_ARGUMENT, "%s takes %u arguments, got %zu", gb_kernel_name(kernel_of(form)),
                form->arguments.count, count);
}

const gb_form *gb_select(const gb_kernel *kernel, const char *driver, const char *architecture,
                         const gb_value *values, size_t count, gb_error *error)
{
    const gb_form *best = NULL, *form;
    int most = 0, several = 0;
    uint32_t wrong = 0, fewest = 0;
    for (size_t number = 0; (form = gb_form_at(kernel, number)) != NULL; number++) {
        uint32_t bad = form->arguments.count == count ? 0 : UINT32_MAX, first = 0;
        int total = strcmp(TEXT(form, OPTIONS), "{}") == 0; /* usual options decide between equals */
        if (strcmp(TEXT(form, DRIVER), driver) != 0 || strcmp(TEXT(form, ARCHITECTURE), architecture) != 0)
            continue;
        for (uint32_t i = 0; bad != UINT32_MAX && i < count; i++) {
            int points = score(form, arguments_of(form) + i, &values[i]);
            if (points == UNFIT && bad++ == 0)
                first = i;
            total += 2 * points;
        }
        several |= best != NULL && !bad && !fewest && total == most;
        if (best == NULL || bad < fewest || (!bad && !fewest && total > most)) {
            best = form;
            most = total;
            wrong = first;
            fewest = bad;
            several = 0;
        }
    }
    if (best == NULL)
        fail(error, GB_TARGET, "%s was not compiled for %s", gb_kernel_name(kernel), architecture);
    else if (fewest == UINT32_MAX)
        miscounted(best, count, error);
    else if (fewest)
        misfit(best, arguments_of(best) + wrong, gb_kernel_name(kernel), " is not in the bundle for these arguments", error);
    else if (several)
        fail(error, GB_AMBIGUOUS, "several forms of %s fit: give the constants that were left out, or "
                                  "choose one with gb_form_at", gb_kernel_name(kernel));
    return best == NULL || fewest || several ? NULL : best;
}

/* -- packing -------------------------------------------------------------------------------------- */

/* Write the arguments of a form into its buffer, and list the places of its parameters; a device encodes the maps. */
static gb_status put_values(gb_device *device, const gb_form *form, const gb_value *values, size_t count,
                            unsigned char *buffer, void **parameters, gb_error *error)
{
    void **last = parameters + MAX_VALUES - 2 * RANK - 3;
    memset(buffer, 0, info_of(form).buffer_size);
    if (count != form->arguments.count)
        return miscounted(form, count, error);
    for (size_t i = 0; i < count; i++) {
        const ArgumentRow *row = arguments_of(form) + i;
        const gb_descriptor *it = descriptor_of(&values[i]);
        unsigned char *place = buffer + row->offset;
        uint64_t word = values[i].bits;
        int status, rank = row->kind == ROW_DESCRIPTOR ? row->map.rank : 0;
        if (score(form, row, &values[i]) == UNFIT)
            return misfit(form, row, "not the argument that the form was compiled for", "", error);
        if (parameters > last)
            return fail(error, GB_ARGUMENT, "%s takes too many arguments", gb_kernel_name(kernel_of(form)));
        if (row->kind != ROW_CONSTANT)
            *parameters++ = place;
        if (row->kind == ROW_VALUE && is_real((char)row->code))
            (void)write_real((char)row->code, values[i].real, &word);
        if (row->kind == ROW_VALUE)
            memcpy(place, &word, (size_t)letter_bits((char)row->code) / 8);
        if (rank && device != NULL && (status = encode(device, row->map, it, place)) != 0)
            return fail(error, GB_DRIVER, "%s: the driver cannot encode the descriptor: error %d",
                        gb_parameter_name(kernel_of(form), row->parameter), status);
        for (int d = 0; d < 2 * rank; d++) { /* the shape in 32 bits each, the strides in 64 */
            unsigned char *part = place + MAP_BYTES + (d < rank ? 4 * d : 8 * d - 4 * rank + 4 * (rank % 2));
            memcpy(part, d < rank ? &it->shape[d] : &it->strides[d - rank], d < rank ? 4 : 8);
            *parameters++ = part;
        }
    }
    for (int i = 0; i < 2; i++)
        parameters[i] = buffer + form->scratch[i];
    return GB_OK;
}

gb_status gb_pack(const gb_form *form, const gb_value *values, size_t count, void *buffer, gb_error *error)
{
    void *parameters[MAX_VALUES];
    return put_values(NULL, form, values, count, buffer, parameters, error);
}

/* -- launching ------------------------------------------------------------------------------------ */

/* Launch with arguments that are in their buffer but for the addresses of scratch memory. */
static gb_status launch_packed(gb_device *self, const gb_form *form, const gb_form_info *info, void *function,
                               const uint32_t *grid, void *stream, unsigned char *buffer, void **parameters,
                               gb_error *error)
{
    uint64_t owned[2] = {0, 0}, address, blocks = (uint64_t)grid[0] * grid[1] * grid[2] * info->num_ctas;
    int code = 0;
    for (int i = 0; !code && i < 2; i++) {
        code = scratch(self, i ? info->profile_scratch : info->global_scratch, blocks, stream, &address, &owned[i]);
        memcpy(buffer + form->scratch[i], &address, sizeof address);
    }
    code = code ? code : launch_now(self, function, info, grid, stream, parameters);
    for (int i = 0; i < 2; i++) /* the stream keeps later users behind the kernel */
        if (owned[i])
            self->calls[FREE](owned[i], stream);
    return code ? fail(error, GB_DRIVER, "the driver refused the launch of %s over %u x %u x %u: error %d",
                       info->entry, grid[0], grid[1], grid[2], code)
                : GB_OK;
}

gb_status gb_launch_form(gb_device *self, const gb_form *form, const uint32_t *grid, void *stream,
                         const gb_value *values, size_t count, gb_error *error)
{
    const gb_form_info facts = info_of(form), *info = &facts;
    void *function = NULL, *parameters[MAX_VALUES];
    _Alignas(64) unsigned char buffer[MOST_BUFFER];
    gb_status status = GB_OK;
    if (grid == NULL && !info->has_grid)
        return fail(error, GB_ARGUMENT, "the bundle does not say over which grid %s runs", info->entry);
    if (strcmp(info->driver, self->driver->name) != 0 || strcmp(info->architecture, self->architecture) != 0)
        return fail(error, GB_TARGET, "%s: the form is for %s, the device is %s", info->entry, info->target,
                    self->architecture);
    grid = grid == NULL ? info->grid : grid;
    if (grid[1] > 65535 || grid[2] > 65535 || grid[0] > INT32_MAX)
        return fail(error, GB_ARGUMENT, "not a grid: %u x %u x %u", grid[0], grid[1], grid[2]);
    int empty = !grid[0] || !grid[1] || !grid[2];
    if (!empty && ((status = enter(self, error)) || (status = load(self, form, info, &function, error))))
        return status;
    status = put_values(empty ? NULL : self, form, values, count, buffer, parameters, error);
    return status || empty ? status : launch_packed(self, form, info, function, grid, stream, buffer, parameters, error);
}

gb_status gb_launch(gb_device *self, const gb_kernel *kernel, const uint32_t *grid, void *stream,
                    const gb_value *values, size_t count, gb_error *error)
{
    gb_error own;
    error = error == NULL ? &own : error;
    *error = (gb_error){GB_OK, ""};
    if (kernel == NULL)
        return fail(error, GB_KERNEL, "no kernel");
    const gb_form *form = gb_select(kernel, self->driver->name, self->architecture, values, count, error);
    return form == NULL ? error->status : gb_launch_form(self, form, grid, stream, values, count, error);
}
