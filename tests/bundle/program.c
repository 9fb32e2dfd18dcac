/* The program that the tests of the C loader run. */
#include "gluon_bundle.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int check(int count, char **paths)
{
    int i;
    for (i = 0; i < count; i++) {
        gb_error error;
        gb_bundle *bundle = gb_open(paths[i], &error);
        printf("%d %s\n", error.status, error.text);
        gb_close(bundle);
    }
    return 0;
}

static int list(const char *path)
{
    gb_error error;
    gb_bundle *bundle = gb_open(path, &error);
    size_t k, f;
    if (bundle == NULL)
        return 1;
    for (k = 0; k < gb_kernel_count(bundle); k++) {
        const gb_kernel *kernel = gb_kernel_at(bundle, k);
        printf("kernel %s\n", gb_kernel_name(kernel));
        for (f = 0; f < gb_form_count(kernel); f++) {
            gb_form_info i;
            gb_form_get(gb_form_at(kernel, f), &i);
            printf("form %s %s %s %s %s %u %u %u %u %d %u,%u,%u %zu\n", i.target, i.driver,
                   i.architecture, i.entry, i.options, i.num_warps, i.warp_size, i.num_ctas, i.shared,
                   i.has_grid, i.grid[0], i.grid[1], i.grid[2], i.code_size);
        }
    }
    gb_close(bundle);
    return 0;
}

/* The numbers of a list such as 64,128; answers how many there are. */
static uint32_t numbers(const char *text, uint64_t *into)
{
    uint32_t count = 0;
    for (char *at = (char *)text; count < 5 && (count == 0 || *at++ == ','); count++)
        into[count] = strtoull(at, &at, 10);
    return count;
}

/* dfp16@1000:64,128:128,1 and, where a box is asked for, :32,64 */
static gb_value descriptor_of(const char *text)
{
    gb_descriptor *made = calloc(1, sizeof *made);
    char *type = strdup(text), *at = strchr(type, '@'), *shape, *strides, *box;
    uint64_t sizes[5] = {0};
    uint32_t i;
    *at = 0;
    shape = strchr(at + 1, ':');
    strides = strchr(shape + 1, ':');
    box = strchr(strides + 1, ':');
    made->type = type;
    made->address = (void *)(uintptr_t)strtoull(at + 1, NULL, 16);
    made->rank = numbers(shape + 1, made->shape);
    numbers(strides + 1, made->strides);
    if (box != NULL)
        numbers(box + 1, sizes);
    for (i = 0; i < 5; i++)
        made->box[i] = (uint32_t)sizes[i];
    return gb_described(made);
}

/* One argument of the command line: pfp32@1000, i-5, u5, f2.5, b1, c512 (JSON), d... (above), - (left out). */
static gb_value value_of(const char *text)
{
    char *at;
    switch (text[0]) {
    case 'd':
        return descriptor_of(text + 1);
    case 'p': {
        gb_value made;
        char *type = strdup(text + 1);
        at = strchr(type, '@');
        *at = 0;
        made = gb_pointer((void *)(uintptr_t)strtoull(at + 1, NULL, 16), *type ? type : NULL);
        return made;
    }
    case 'i':
        return gb_integer(strtoll(text + 1, NULL, 10));
    case 'u':
        return gb_unsigned(strtoull(text + 1, NULL, 10));
    case 'f':
        return gb_real(strtod(text + 1, NULL));
    case 'b':
        return gb_boolean(text[1] == '1');
    case 'c':
        return gb_constant(text + 1);
    default:
        return gb_left_out();
    }
}

/* select FILE KERNEL DRIVER ARCHITECTURE ARGUMENT...: prints the warps of the form. */
static int select_form(int count, char **words)
{
    gb_error error;
    gb_value values[32];
    gb_form_info info;
    int i;
    gb_bundle *bundle = gb_open(words[0], &error);
    const gb_kernel *kernel = bundle ? gb_find(bundle, words[1], &error) : NULL;
    const gb_form *form = NULL;
    for (i = 4; i < count; i++)
        values[i - 4] = value_of(words[i]);
    if (kernel != NULL)
        form = gb_select(kernel, words[2], words[3], values, (size_t)(count - 4), &error);
    if (form == NULL)
        printf("%d %s\n", error.status, error.text);
    else {
        gb_form_get(form, &info);
        printf("0 %u\n", info.num_warps);
    }
    gb_close(bundle);
    return 0;
}

/* launch FILE KERNEL X Y Z STREAM ARGUMENT...: twice, on device 0. The kernel #5 is the one of that number. */
static int launch(int count, char **words)
{
    gb_error error;
    gb_value values[32];
    int i;
    uint32_t grid[3] = {(uint32_t)atoi(words[2]), (uint32_t)atoi(words[3]), (uint32_t)atoi(words[4])};
    gb_bundle *bundle = gb_open(words[0], &error);
    gb_device *device = bundle ? gb_device_open(0, &error) : NULL;
    int numbered = words[1][0] == '#';
    const gb_kernel *kernel = numbered && bundle ? gb_kernel_at(bundle, (size_t)atoi(words[1] + 1))
                                                 : gb_find(bundle, words[1], &error);
    gb_status status = GB_OK;
    for (i = 6; i < count; i++)
        values[i - 6] = value_of(words[i]);
    for (i = 0; i < 2; i++)
        status = gb_launch(device, kernel, grid[0] == 9999 ? NULL : grid,
                  (void *)(uintptr_t)atoi(words[5]), values, (size_t)(count - 6), &error);
    printf("%d %s %s\n", status, device ? gb_device_architecture(device) : "-", error.text);
    gb_device_close(device);
    gb_close(bundle);
    return 0;
}

int main(int count, char **words)
{
    if (count > 2 && strcmp(words[1], "check") == 0)
        return check(count - 2, words + 2);
    if (count == 3 && strcmp(words[1], "list") == 0)
        return list(words[2]);
    if (count > 5 && strcmp(words[1], "select") == 0)
        return select_form(count - 2, words + 2);
    if (count > 7 && strcmp(words[1], "launch") == 0)
        return launch(count - 2, words + 2);
    return 2;
}
