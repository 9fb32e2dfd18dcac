/* See gluon_bundle.h. For -std=c11 and little-endian machines. */
#include "gluon_bundle.h"

#include <dlfcn.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "driver.h"
#include "choice.h"
#include "bundle_file.h"
#include "bundle_driver.h"

/* -- which form fits ------------------------------------------------------------------------------ */

/* Report that values are not those that a form was compiled for. */
static gb_status misfit(const gb_form *form, Fit fit, size_t count, gb_error *error)
{
    const gb_kernel *kernel = kernel_of(form);
    const ArgumentRow *row = arguments_of(form) + fit.first;
    if (fit.wrong == UINT32_MAX)
        return fail(error, GB_ARGUMENT, "%s takes %u arguments, got %zu", gb_kernel_name(kernel), form->arguments.count,
                    count);
    return fail(error, GB_MISSING, "%s: %s is not in the bundle for these arguments; expected %s",
                (const char *)AT(form, row->name), gb_kernel_name(kernel), (const char *)AT(form, row->words));
}

const gb_form *gb_select(const gb_kernel *kernel, const char *driver, const char *architecture,
                         const gb_value *values, size_t count, gb_error *error)
{
    const gb_form *best = NULL, *form;
    Fit most = {0, 0, 0};
    int several = 0;
    for (size_t number = 0; (form = form_at(kernel, number)) != NULL; number++) {
        if (strcmp(TEXT(form, DRIVER), driver) != 0 || strcmp(TEXT(form, ARCHITECTURE), architecture) != 0)
            continue;
        Fit fit = fit_of(form, values, count);
        fit.points = 2 * fit.points + (strcmp(TEXT(form, OPTIONS), "{}") == 0); /* usual options decide between equals */
        several |= best != NULL && !fit.wrong && !most.wrong && fit.points == most.points;
        if (best == NULL || fit.wrong < most.wrong || (!fit.wrong && !most.wrong && fit.points > most.points)) {
            best = form;
            most = fit;
            several = 0;
        }
    }
    if (best == NULL)
        fail(error, GB_TARGET, "%s was not compiled for %s", gb_kernel_name(kernel), architecture);
    else if (most.wrong)
        misfit(best, most, count, error);
    else if (several)
        fail(error, GB_AMBIGUOUS, "several forms of %s fit: give the constants that were left out, or "
                                  "choose one with gb_form_at", gb_kernel_name(kernel));
    return best == NULL || most.wrong || several ? NULL : best;
}

/* -- launching ------------------------------------------------------------------------------------ */

/* Put the arguments of a form; the device encodes the maps of descriptors. */
static gb_status put_values(gb_device *device, const gb_form *form, const gb_value *values, size_t count, Packed *to,
                            gb_error *error)
{
    const Fit fit = fit_of(form, values, count);
    to->used = to->map = 0;
    if (fit.wrong)
        return misfit(form, fit, count, error);
    for (size_t i = 0; i < count; i++) {
        const ArgumentRow *row = arguments_of(form) + i;
        const gb_descriptor *it = descriptor_of(&values[i]);
        uint64_t word = values[i].bits;
        int status;
        if (to->used > MAX_VALUES - 2 * RANK - 3 || to->map == MAX_MAPS)
            return fail(error, GB_ARGUMENT, "%s takes too many arguments", gb_kernel_name(kernel_of(form)));
        if (row->kind == ROW_VALUE) {
            if (is_real((char)row->code))
                (void)write_real((char)row->code, real_of(&values[i]), &word);
            put_word(to, word);
        } else if (row->kind == ROW_DESCRIPTOR) {
            if ((status = encode(device, row->map, it, to->maps[to->map])) != 0)
                return fail(error, GB_DRIVER, "%s: the driver cannot encode the descriptor: error %d",
                            (const char *)AT(form, row->name), status);
            put_described(to, it->shape, it->strides, row->map.rank);
        }
    }
    return GB_OK;
}

/* Launch with arguments that are put but for the addresses of scratch memory. */
static gb_status launch_packed(gb_device *self, const gb_form_info *info, void *function, const uint32_t *grid,
                               void *stream, Packed *packed, gb_error *error)
{
    uint64_t owned[2] = {0, 0}, address, blocks = (uint64_t)grid[0] * grid[1] * grid[2] * info->num_ctas;
    int code = 0;
    for (int i = 0; !code && i < 2; i++) {
        code = scratch(self, i ? info->profile_scratch : info->global_scratch, blocks, stream, &address, &owned[i]);
        put_word(packed, address);
    }
    code = code ? code : launch_now(self, function, info, grid, stream, packed->parameters);
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
    gb_form_info facts, *info = &facts;
    void *function = NULL;
    Packed packed;
    gb_status status;
    gb_form_get(form, info);
    if (grid == NULL && !info->has_grid)
        return fail(error, GB_ARGUMENT, "the bundle does not say over which grid %s runs", info->entry);
    if (strcmp(info->driver, self->driver->name) != 0 || strcmp(info->architecture, self->architecture) != 0)
        return fail(error, GB_TARGET, "%s: the form is for %s, the device is %s", info->entry, info->target,
                    self->architecture);
    grid = grid == NULL ? info->grid : grid;
    if (grid[1] > 65535 || grid[2] > 65535 || grid[0] > INT32_MAX)
        return fail(error, GB_ARGUMENT, "not a grid: %u x %u x %u", grid[0], grid[1], grid[2]);
    if (!grid[0] || !grid[1] || !grid[2])
        return GB_OK;
    if ((status = enter(self, error)) || (status = load(self, form, info, &function, error)) ||
        (status = put_values(self, form, values, count, &packed, error)))
        return status;
    return launch_packed(self, info, function, grid, stream, &packed, error);
}

gb_status gb_launch(gb_device *self, const gb_kernel *kernel, const uint32_t *grid, void *stream,
                    const gb_value *values, size_t count, gb_error *error)
{
    const gb_form *form = NULL;
    if (self != NULL && kernel != NULL)
        form = gb_select(kernel, self->driver->name, self->architecture, values, count, error);
    if (form == NULL)
        return error != NULL && error->status ? error->status : fail(error, GB_MISSING, "no device, or no kernel to launch");
    return gb_launch_form(self, form, grid, stream, values, count, error);
}
