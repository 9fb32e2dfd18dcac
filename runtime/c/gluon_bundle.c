/* See gluon_bundle.h. For -std=c11 and little-endian machines. */
#include "gluon_bundle.h"

#include <dlfcn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FORMAT 1
#define INDEX_VERSION 1
#define DIGITS 64
#define HEADER 40
#define ROW_KERNEL 20
#define ROW_PARAMETER 8
#define ROW_FORM 100
#define ROW_ARGUMENT 24
#define ROW_MAP 40
#define MAP_BYTES 128
#define NONE ((size_t)-1)

struct gb_kernel {
    const gb_bundle *bundle;
    const unsigned char *row;
    gb_form *forms;
    size_t count;
};

struct gb_form {
    const gb_kernel *kernel;
    const unsigned char *row;
    const void *code;
    size_t code_size;
    int checked; /* the hash of the code is right */
};

typedef struct {
    const char *name;
    size_t name_size;
    const unsigned char *data;
    size_t size;
} Member;

struct gb_bundle {
    const unsigned char *data;
    size_t size;
    void *owned;
    char digest[DIGITS + 1];
    Member *members;
    size_t member_count;
    const unsigned char *index;
    size_t index_size;
    const char *strings;
    uint32_t strings_size;
    gb_kernel *kernels;
    size_t kernel_count;
};

static gb_status fail(gb_error *error, gb_status status, const char *format, ...)
{
    if (error != NULL) {
        va_list rest;
        va_start(rest, format);
        error->status = status;
        vsnprintf(error->text, sizeof error->text, format, rest);
        va_end(rest);
    }
    return status;
}

static uint32_t word(const unsigned char *at)
{
    return (uint32_t)at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
}

static uint16_t half(const unsigned char *at) { return (uint16_t)(at[0] | at[1] << 8); }

/* -- SHA-256, FIPS 180-4 -------------------------------------------------------------------------- */

static const uint32_t K[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

static uint32_t turn(uint32_t x, int by) { return x >> by | x << (32 - by); }

static void digest_block(uint32_t state[8], const unsigned char *block)
{
    uint32_t w[64], v[8];
    int i;
    for (i = 0; i < 16; i++)
        w[i] = (uint32_t)block[4 * i] << 24 | (uint32_t)block[4 * i + 1] << 16 |
               (uint32_t)block[4 * i + 2] << 8 | block[4 * i + 3];
    for (; i < 64; i++) {
        uint32_t a = w[i - 15], b = w[i - 2];
        w[i] = w[i - 16] + w[i - 7] + (turn(a, 7) ^ turn(a, 18) ^ a >> 3) +
               (turn(b, 17) ^ turn(b, 19) ^ b >> 10);
    }
    memcpy(v, state, sizeof v);
    for (i = 0; i < 64; i++) {
        uint32_t one = v[7] + (turn(v[4], 6) ^ turn(v[4], 11) ^ turn(v[4], 25)) +
                       ((v[4] & v[5]) ^ (~v[4] & v[6])) + K[i] + w[i];
        uint32_t two = (turn(v[0], 2) ^ turn(v[0], 13) ^ turn(v[0], 22)) +
                       ((v[0] & v[1]) ^ (v[0] & v[2]) ^ (v[1] & v[2]));
        memmove(v + 1, v, 7 * sizeof *v);
        v[4] += one;
        v[0] = one + two;
    }
    for (i = 0; i < 8; i++)
        state[i] += v[i];
}

static void digest_of(const unsigned char *data, size_t size, char out[DIGITS + 1])
{
    uint32_t state[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                         0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
    unsigned char tail[128] = {0};
    size_t whole = size / 64 * 64, rest = size - whole, i;
    size_t end = rest < 56 ? 64 : 128;
    uint64_t bits = (uint64_t)size * 8;
    for (i = 0; i < whole; i += 64)
        digest_block(state, data + i);
    if (rest)
        memcpy(tail, data + whole, rest);
    tail[rest] = 0x80;
    for (i = 0; i < 8; i++)
        tail[end - 1 - i] = (unsigned char)(bits >> 8 * i);
    for (i = 0; i < end; i += 64)
        digest_block(state, tail + i);
    for (i = 0; i < 8; i++)
        snprintf(out + 8 * i, 9, "%08x", (unsigned)state[i]);
}

/* -- the archive ---------------------------------------------------------------------------------- */

/* Where the comment starts, counted from the end of the file at most; NONE without one. */
static size_t find_comment(const unsigned char *data, size_t size)
{
    static const char head[] = "gluon-bundle/";
    size_t length = sizeof head - 1, i, least = size > 256 ? size - 256 : 0;
    if (size < length)
        return NONE;
    for (i = size - length + 1; i-- > least;)
        if (memcmp(data + i, head, length) == 0)
            return i + length;
    return NONE;
}

static gb_status check_file(gb_bundle *self, const char *where, gb_error *error)
{
    static const char middle[] = " sha256=";
    const unsigned char *data = self->data;
    size_t size = self->size, place = find_comment(data, size), digits = 0;
    unsigned version = 0;
    if (place == NONE) {
        int begins = size >= 4 && memcmp(data, "PK\3\4", 4) == 0 &&
                     (size < 43 || memcmp(data + 30, "manifest.json", 13) == 0);
        int starts = size > 0 && size < 4 && memcmp(data, "PK\3\4", size) == 0;
        if (begins || starts)
            return fail(error, GB_TRUNCATED, "%s: the end of the file is missing", where);
        return fail(error, GB_FORMAT, "%s: not a bundle", where);
    }
    while (place + digits < size && data[place + digits] >= '0' && data[place + digits] <= '9' &&
           digits < 6)
        version = version * 10 + (data[place + digits++] - '0');
    place += digits;
    if (size - place >= sizeof middle - 1 && memcmp(data + place, middle, sizeof middle - 1) == 0) {
        if (digits && version != FORMAT)
            return fail(error, GB_VERSION, "%s: the bundle has format %u, this loader reads %d", where,
                        version, FORMAT);
    }
    if (size - place < sizeof middle - 1 + DIGITS)
        return fail(error, GB_TRUNCATED, "%s: the end of the file is missing", where);
    digest_of(data, size - DIGITS, self->digest);
    if (memcmp(data + size - DIGITS, self->digest, DIGITS) != 0)
        return fail(error, GB_DAMAGED, "%s: the file is damaged or was changed: its sha256 is %s", where,
                    self->digest);
    return GB_OK;
}

static gb_status read_members(gb_bundle *self, const char *where, gb_error *error)
{
    size_t place = 0, room = 0;
    while (self->size - place >= 30 && memcmp(self->data + place, "PK\3\4", 4) == 0) {
        const unsigned char *at = self->data + place;
        size_t packed = word(at + 18), size = word(at + 22), name = half(at + 26), more = half(at + 28);
        size_t start = place + 30 + name + more;
        if (half(at + 6) & ~0x800 || half(at + 8) || packed != size || start > self->size ||
            size > self->size - start)
            return fail(error, GB_FORMAT, "%s: a member is not stored as bundles do", where);
        if (self->member_count == room) {
            Member *grown = realloc(self->members, (room = 2 * room + 16) * sizeof *grown);
            if (grown == NULL)
                return fail(error, GB_MEMORY, "out of memory");
            self->members = grown;
        }
        self->members[self->member_count++] =
            (Member){(const char *)at + 30, name, self->data + start, size};
        place = start + size;
    }
    return GB_OK;
}

static const Member *find_member(const gb_bundle *self, const char *name)
{
    size_t i;
    for (i = 0; i < self->member_count; i++)
        if (self->members[i].name_size == strlen(name) &&
            memcmp(self->members[i].name, name, strlen(name)) == 0)
            return &self->members[i];
    return NULL;
}

/* -- the index ------------------------------------------------------------------------------------ */

static const char *text_at(const gb_bundle *self, uint32_t place) { return self->strings + place; }

/* Whether `count` rows of `size` bytes at `place` are in the index. */
static int inside(const gb_bundle *self, uint32_t place, uint32_t count, size_t size)
{
    return place <= self->index_size && count <= (self->index_size - place) / size;
}

static gb_status read_form(gb_form *form, const char *where, gb_error *error)
{
    const gb_bundle *self = form->kernel->bundle;
    const unsigned char *row = form->row;
    uint32_t i, count = word(row + 76), place = word(row + 80), buffer = word(row + 84);
    uint32_t scratch = word(row + 88), other = word(row + 92);
    const Member *code;
    for (i = 0; i < 7; i++)
        if (word(row + 4 * i) >= self->strings_size)
            return fail(error, GB_FORMAT, "%s: the index names a text that is not there", where);
    if (!inside(self, place, count, ROW_ARGUMENT) || buffer > 1 << 20 || scratch > buffer ||
        other > buffer || buffer - scratch < 8 || buffer - other < 8)
        return fail(error, GB_FORMAT, "%s: a form leads out of the index", where);
    for (i = 0; i < count; i++) {
        const unsigned char *argument = self->index + place + ROW_ARGUMENT * i;
        uint32_t kind = word(argument + 4), rank = word(argument + 12), map = word(argument + 16);
        uint32_t room = kind == 0 ? 0 : 8;
        if (kind == 2) {
            if (rank < 1 || rank > 5 || !inside(self, map, 1, ROW_MAP) ||
                word(self->index + map + 16) != rank)
                return fail(error, GB_FORMAT, "%s: a descriptor leads out of the index", where);
            room = MAP_BYTES + 4 * (rank + rank % 2) + 8 * rank;
        }
        if (kind > 2 || word(argument + 8) >= self->strings_size || word(argument + 20) > buffer ||
            buffer - word(argument + 20) < room || word(argument) >= word(form->kernel->row + 4))
            return fail(error, GB_FORMAT, "%s: an argument leads out of the index", where);
    }
    code = find_member(self, text_at(self, word(row + 16)));
    if (code == NULL)
        return fail(error, GB_HASH, "%s: a part is missing: %s", where, text_at(self, word(row + 16)));
    form->code = code->data;
    form->code_size = code->size;
    return GB_OK;
}

static gb_status read_kernel(gb_kernel *kernel, const char *where, gb_error *error)
{
    const gb_bundle *self = kernel->bundle;
    const unsigned char *row = kernel->row;
    uint32_t i, parameters = word(row + 4), forms = word(row + 12);
    if (word(row) >= self->strings_size || !inside(self, word(row + 8), parameters, ROW_PARAMETER) ||
        !inside(self, word(row + 16), forms, ROW_FORM))
        return fail(error, GB_FORMAT, "%s: a kernel leads out of the index", where);
    for (i = 0; i < parameters; i++)
        if (word(self->index + word(row + 8) + ROW_PARAMETER * i) >= self->strings_size)
            return fail(error, GB_FORMAT, "%s: a parameter leads out of the index", where);
    kernel->forms = calloc(forms ? forms : 1, sizeof *kernel->forms);
    if (kernel->forms == NULL)
        return fail(error, GB_MEMORY, "out of memory");
    kernel->count = forms;
    for (i = 0; i < forms; i++) {
        gb_status status;
        kernel->forms[i].kernel = kernel;
        kernel->forms[i].row = self->index + word(row + 16) + ROW_FORM * i;
        status = read_form(&kernel->forms[i], where, error);
        if (status)
            return status;
    }
    return GB_OK;
}

static gb_status read_index(gb_bundle *self, const char *where, gb_error *error)
{
    const Member *index = find_member(self, "index.bin");
    const unsigned char *data;
    uint32_t i, strings, count;
    if (index == NULL || index->size < HEADER || memcmp(index->data, "GLBINDEX", 8) != 0)
        return fail(error, GB_FORMAT, "%s: a part is missing: index.bin", where);
    self->index = data = index->data;
    self->index_size = index->size;
    if (word(data + 8) != INDEX_VERSION)
        return fail(error, GB_VERSION, "%s: the index has version %u", where, word(data + 8));
    count = word(data + 12);
    strings = word(data + 16);
    self->strings_size = word(data + 20);
    if (strings > index->size || self->strings_size != index->size - strings || !self->strings_size ||
        data[index->size - 1] || !inside(self, HEADER, count, ROW_KERNEL) || !word(data + 24))
        return fail(error, GB_FORMAT, "%s: the index is not as the format says", where);
    self->strings = (const char *)data + strings;
    self->kernels = calloc(count ? count : 1, sizeof *self->kernels);
    if (self->kernels == NULL)
        return fail(error, GB_MEMORY, "out of memory");
    self->kernel_count = count;
    for (i = 0; i < count; i++) {
        gb_status status;
        self->kernels[i].bundle = self;
        self->kernels[i].row = data + HEADER + ROW_KERNEL * i;
        status = read_kernel(&self->kernels[i], where, error);
        if (status)
            return status;
    }
    return GB_OK;
}

static gb_bundle *open_named(const void *data, size_t size, void *owned, const char *where,
                             gb_error *error)
{
    gb_bundle *self = calloc(1, sizeof *self);
    if (error != NULL)
        *error = (gb_error){GB_OK, ""};
    if (self == NULL) {
        fail(error, GB_MEMORY, "out of memory");
        free(owned);
        return NULL;
    }
    self->data = data;
    self->size = size;
    self->owned = owned;
    if (check_file(self, where, error) || read_members(self, where, error) ||
        read_index(self, where, error)) {
        gb_close(self);
        return NULL;
    }
    return self;
}

gb_bundle *gb_open_memory(const void *data, size_t size, gb_error *error)
{
    return open_named(data, size, NULL, "the bundle", error);
}

gb_bundle *gb_open(const char *path, gb_error *error)
{
    FILE *file = fopen(path, "rb");
    unsigned char *data = NULL;
    long size = -1;
    if (file != NULL && fseek(file, 0, SEEK_END) == 0)
        size = ftell(file);
    if (size >= 0 && fseek(file, 0, SEEK_SET) == 0)
        data = malloc((size_t)size + 1);
    if (data == NULL || fread(data, 1, (size_t)size, file) != (size_t)size) {
        fail(error, GB_FORMAT, "%s: the bundle cannot be read", path);
        free(data);
        data = NULL;
    }
    if (file != NULL)
        fclose(file);
    return data == NULL ? NULL : open_named(data, (size_t)size, data, path, error);
}

void gb_close(gb_bundle *self)
{
    size_t i;
    if (self == NULL)
        return;
    for (i = 0; i < self->kernel_count; i++)
        free(self->kernels[i].forms);
    free(self->kernels);
    free(self->members);
    free(self->owned);
    free(self);
}

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
    case 'b':
    case 'B':
        memcpy(at, &value->bits, 1);
        break;
    case 'h':
    case 'H':
        memcpy(at, &value->bits, 2);
        break;
    case 'i':
    case 'I':
        memcpy(at, &value->bits, 4);
        break;
    default:
        memcpy(at, &value->bits, 8);
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

/* -- drivers -------------------------------------------------------------------------------------- */

/* CUlaunchConfig and HIP_LAUNCH_CONFIG; CUlaunchAttribute and hipLaunchAttribute. */
typedef struct {
    unsigned grid[3], block[3], shared;
    void *stream, *attributes;
    unsigned count;
} Config;

typedef struct {
    unsigned id, pad;
    unsigned value[16];
} Attribute;

typedef struct Loaded {
    const gb_form *form;
    void *function;
    struct Loaded *next;
} Loaded;

struct gb_device {
    int hip, index;
    void *library, *context;
    char architecture[64];
    Loaded *loaded;
};

typedef int (*Call)();

static Call call_of(const gb_device *self, const char *name)
{
    void *found = dlsym(self->library, name);
    Call call;
    memcpy(&call, &found, sizeof call);
    return call;
}

static int missing_call(void) { return 999; }

static Call need(const gb_device *self, const char *name)
{
    Call call = call_of(self, name);
    return call == NULL ? (Call)missing_call : call;
}

static gb_status open_cuda(gb_device *self, gb_error *error)
{
    int device = 0, major = 0, minor = 0;
    self->library = dlopen("libcuda.so.1", RTLD_NOW);
    if (self->library == NULL)
        return fail(error, GB_DEVICE, "libcuda.so.1 is not installed");
    if (need(self, "cuInit")(0) || need(self, "cuDeviceGet")(&device, self->index) ||
        need(self, "cuDeviceGetAttribute")(&major, 75, device) ||
        need(self, "cuDeviceGetAttribute")(&minor, 76, device) ||
        need(self, "cuDevicePrimaryCtxRetain")(&self->context, device))
        return fail(error, GB_DEVICE, "libcuda.so.1 sees no device %d", self->index);
    snprintf(self->architecture, sizeof self->architecture, "sm_%d%d", major, minor);
    return GB_OK;
}

static gb_status open_hip(gb_device *self, gb_error *error)
{
    static const char *names[] = {"libamdhip64.so", "libamdhip64.so.7", "libamdhip64.so.6"};
    static char room[4096]; /* more than hipDeviceProp_t of any release has */
    size_t i;
    Call ask;
    for (i = 0; i < 3 && self->library == NULL; i++)
        self->library = dlopen(names[i], RTLD_NOW);
    if (self->library == NULL)
        return fail(error, GB_DEVICE, "libamdhip64.so is not installed");
    self->hip = 1;
    ask = call_of(self, "hipGetDevicePropertiesR0600");
    if (ask == NULL)
        ask = need(self, "hipGetDeviceProperties");
    if (need(self, "hipSetDevice")(self->index) || ask(room, self->index))
        return fail(error, GB_DEVICE, "libamdhip64.so sees no device %d", self->index);
    for (i = 256; i + sizeof self->architecture < sizeof room; i++) /* behind the device's own name */
        if (memcmp(room + i, "gfx", 3) == 0) {
            size_t length = strcspn(room + i, ":");
            if (length >= sizeof self->architecture)
                length = sizeof self->architecture - 1;
            memcpy(self->architecture, room + i, length);
            return GB_OK;
        }
    return fail(error, GB_DEVICE, "libamdhip64.so does not say what device %d is", self->index);
}

gb_device *gb_device_open(const gb_bundle *bundle, int index, gb_error *error)
{
    int wants[2] = {0, 0};
    size_t k, f;
    gb_device *self = calloc(1, sizeof *self);
    gb_status status = GB_DEVICE;
    if (self == NULL) {
        fail(error, GB_MEMORY, "out of memory");
        return NULL;
    }
    self->index = index;
    for (k = 0; k < bundle->kernel_count; k++)
        for (f = 0; f < bundle->kernels[k].count; f++) {
            gb_form_info info;
            gb_form_get(&bundle->kernels[k].forms[f], &info);
            wants[0] |= strcmp(info.driver, "cuda") == 0;
            wants[1] |= strcmp(info.driver, "hip") == 0;
        }
    fail(error, GB_DEVICE, "the bundle has no code for a driver that is known");
    if (wants[0])
        status = open_cuda(self, error);
    if (status && wants[1]) {
        self->library = NULL;
        status = open_hip(self, error);
    }
    if (status) {
        free(self);
        return NULL;
    }
    if (error != NULL)
        *error = (gb_error){GB_OK, ""};
    return self;
}

void gb_device_close(gb_device *self)
{
    while (self != NULL && self->loaded != NULL) {
        Loaded *next = self->loaded->next;
        free(self->loaded);
        self->loaded = next;
    }
    free(self);
}

const char *gb_device_architecture(const gb_device *self) { return self->architecture; }

static gb_status enter(gb_device *self, gb_error *error)
{
    void *current = NULL;
    int status;
    if (self->hip)
        status = need(self, "hipSetDevice")(self->index);
    else {
        status = need(self, "cuCtxGetCurrent")(&current);
        if (!status && current != self->context)
            status = need(self, "cuCtxSetCurrent")(self->context);
    }
    return status ? fail(error, GB_DRIVER, "the device cannot be used: error %d of the driver", status)
                  : GB_OK;
}

static gb_status set_up(gb_device *self, void *function, const gb_form_info *info, gb_error *error)
{
    int device = 0, most = 0, own = 0, threads = 0;
    int status = need(self, "cuDeviceGet")(&device, self->index);
    if (!status)
        status = need(self, "cuDeviceGetAttribute")(&most, 97, device);
    if (!status)
        status = need(self, "cuFuncGetAttribute")(&threads, 0, function);
    if (!status && (info->shared > (unsigned)most ||
                    info->num_warps * info->warp_size > (unsigned)threads))
        return fail(error, GB_DEVICE, "%s needs %u bytes of shared memory and %u threads; the device has "
                                      "%d and %d", info->entry, info->shared,
                    info->num_warps * info->warp_size, most, threads);
    if (!status && info->shared > 48 * 1024) {
        status = need(self, "cuFuncSetCacheConfig")(function, 1);
        if (!status)
            status = need(self, "cuFuncGetAttribute")(&own, 1, function);
        if (!status)
            status = need(self, "cuFuncSetAttribute")(function, 8, most - own);
    }
    if (!status && info->num_ctas > 8)
        status = need(self, "cuFuncSetAttribute")(function, 14, 1);
    return status ? fail(error, GB_DRIVER, "%s cannot be set up: error %d of the driver", info->entry,
                         status)
                  : GB_OK;
}

static gb_status load(gb_device *self, gb_form *form, void **function, gb_error *error)
{
    Loaded *found;
    gb_form_info info;
    void *module = NULL;
    int status;
    for (found = self->loaded; found != NULL; found = found->next)
        if (found->form == form) {
            *function = found->function;
            return GB_OK;
        }
    gb_form_get(form, &info);
    if (!form->checked) {
        char digest[DIGITS + 1];
        digest_of(form->code, form->code_size, digest);
        if (strcmp(digest, text_at(form->kernel->bundle, word(form->row + 20))) != 0)
            return fail(error, GB_HASH, "the code of %s was exchanged: its sha256 is %s", info.entry,
                        digest);
        form->checked = 1;
    }
    status = need(self, self->hip ? "hipModuleLoadData" : "cuModuleLoadData")(&module, info.code);
    if (!status)
        status = need(self, self->hip ? "hipModuleGetFunction" : "cuModuleGetFunction")(
            function, module, info.entry);
    if (status)
        return fail(error, GB_DRIVER, "%s cannot be loaded: error %d of the driver", info.entry, status);
    if (!self->hip && set_up(self, *function, &info, error))
        return error == NULL ? GB_DRIVER : error->status;
    found = malloc(sizeof *found);
    if (found == NULL)
        return fail(error, GB_MEMORY, "out of memory");
    *found = (Loaded){form, *function, self->loaded};
    self->loaded = found;
    return GB_OK;
}

static int launch_now(gb_device *self, void *function, const gb_form_info *info, const uint32_t *grid,
                      void *stream, void **pointers)
{
    Attribute attributes[4];
    Config config;
    unsigned threads = info->num_warps * info->warp_size;
    if (self->hip && info->num_ctas == 1)
        return need(self, info->cooperative ? "hipModuleLaunchCooperativeKernel"
                                            : "hipModuleLaunchKernel")(
            function, grid[0], grid[1], grid[2], threads, 1u, 1u, info->shared, stream, pointers,
            (void *)NULL);
    memset(attributes, 0, sizeof attributes);
    memset(&config, 0, sizeof config);
    config.grid[0] = grid[0] * info->num_ctas;
    config.grid[1] = grid[1];
    config.grid[2] = grid[2];
    config.block[0] = threads;
    config.block[1] = config.block[2] = 1;
    config.shared = info->shared;
    config.stream = stream;
    config.attributes = attributes;
    if (info->dependent && !self->hip) {
        attributes[config.count].id = 6;
        attributes[config.count++].value[0] = 1;
    }
    if (info->cooperative) {
        attributes[config.count].id = 2;
        attributes[config.count++].value[0] = 1;
    }
    if (info->num_ctas != 1) {
        attributes[config.count].id = 4;
        attributes[config.count].value[0] = info->num_ctas;
        attributes[config.count].value[1] = attributes[config.count].value[2] = 1;
        config.count++;
        if (!self->hip) {
            attributes[config.count].id = 5;
            attributes[config.count++].value[0] = 1;
        }
    }
    return need(self, self->hip ? "hipDrvLaunchKernelEx" : "cuLaunchKernelEx")(
        &config, function, pointers, (void *)NULL);
}

/* Memory for one launch; its address goes into the buffer. `*owned` is what is to be given back. */
static int scratch(gb_device *self, const uint32_t need_[2], uint64_t blocks, void *stream,
                   unsigned char *at, uint64_t *owned)
{
    uint64_t size = need_[0] * blocks, address = 0, align = need_[1] ? need_[1] : 1;
    int status;
    *owned = 0;
    if (!need_[0])
        return 0;
    status = need(self, self->hip ? "hipMallocAsync" : "cuMemAllocAsync")(
        &address, (size_t)(size + (align > 256 ? align : 0)), stream);
    *owned = status ? 0 : address;
    address = (address + align - 1) / align * align;
    memcpy(at, &address, 8);
    return status;
}

/* cuTensorMapEncodeTiled; `into` is aligned to 64. */
static int encode(gb_device *self, const unsigned char *map, const gb_descriptor *given, unsigned char *into)
{
    uint32_t i, rank = given->rank, element = word(map + 4), bytes = word(map + 8), box[5], ones[5];
    uint64_t shape[5], strides[5], reach = 0;
    int version = 0, status;
    for (i = 0; i < rank; i++) {
        shape[i] = given->shape[rank - 1 - i];
        strides[i] = given->strides[rank - 1 - i] * bytes;
        box[i] = word(map + 20 + 4 * (rank - 1 - i));
        ones[i] = 1;
    }
    if (word(map + 12)) /* two elements are one byte */
        shape[0] *= 2;
    for (i = 0; i < rank; i++)
        reach += (shape[i] - 1) * (i ? strides[i] : bytes);
    /* PTX numbers element types as the driver does but for three. */
    element = element == 8 ? 10 : element == 9 ? 8 : element == 10 ? 9 : element;
    status = need(self, "cuTensorMapEncodeTiled")(
        into, given->tf32 ? 11u : element, rank, given->address, shape, strides + 1, box, ones, 0,
        (int)word(map), 2, given->nan ? 1 : 0);
    if (!status && reach + 1 < 128 * 1024 && !need(self, "cuDriverGetVersion")(&version) &&
        version <= 13010)
        into[10] &= (unsigned char)~0x20; /* these mark small tensors so that copies may fail */
    return status;
}

gb_status gb_launch_form(gb_device *self, const gb_form *form, const uint32_t *grid, void *stream,
                         const gb_value *values, size_t count, gb_error *error)
{
    gb_form_info info;
    uint64_t owned[2], blocks;
    uint32_t i, used = 0, places = argument_count(form);
    void *function = NULL, **pointers = NULL;
    unsigned char *room = NULL, *buffer = NULL;
    gb_status status;
    int code = 0;
    gb_form_get(form, &info);
    if (grid == NULL && !info.has_grid)
        return fail(error, GB_ARGUMENT, "the bundle does not say over which grid %s runs", info.entry);
    if (strcmp(info.driver, self->hip ? "hip" : "cuda") != 0 ||
        strcmp(info.architecture, self->architecture) != 0)
        return fail(error, GB_TARGET, "%s: the form is for %s, the device is %s", info.entry, info.target,
                    self->architecture);
    grid = grid == NULL ? info.grid : grid;
    if (grid[1] > 65535 || grid[2] > 65535 || grid[0] > INT32_MAX)
        return fail(error, GB_ARGUMENT, "not a grid: %u x %u x %u", grid[0], grid[1], grid[2]);
    room = calloc(1, info.buffer_size + 72);
    pointers = calloc((size_t)places * 11 + 2, sizeof *pointers);
    if (room != NULL) /* maps are aligned to 64 */
        buffer = room + (64 - (uintptr_t)room % 64) % 64;
    if (buffer == NULL || pointers == NULL)
        status = fail(error, GB_MEMORY, "out of memory");
    else
        status = gb_pack(form, values, count, buffer, error);
    if (!status && grid[0] && grid[1] && grid[2])
        status = enter(self, error);
    else
        goto done;
    if (!status) /* a form of a bundle is ours to mark as checked */
        status = load(self, &((gb_kernel *)form->kernel)->forms[form - form->kernel->forms], &function,
                      error);
    if (status)
        goto done;
    for (i = 0; i < places; i++) {
        Argument argument = argument_at(form, i);
        unsigned char *at = buffer + argument.offset;
        uint32_t d, rank = argument.flags;
        if (argument.is_value)
            pointers[used++] = at;
        if (argument.is_value != DESCRIPTOR)
            continue;
        code = encode(self, form->kernel->bundle->index + argument.code,
                      (const gb_descriptor *)(uintptr_t)values[i].bits, at);
        if (code) {
            status = fail(error, GB_DRIVER, "%s: the driver cannot encode the descriptor: error %d",
                          gb_parameter_name(form->kernel, argument.parameter), code);
            goto done;
        }
        for (d = 0; d < 2 * rank; d++)
            pointers[used++] = at + (d < rank ? shape_place(d) : stride_place(rank, d - rank));
    }
    pointers[used++] = buffer + word(form->row + 88);
    pointers[used] = buffer + word(form->row + 92);
    blocks = (uint64_t)grid[0] * grid[1] * grid[2] * info.num_ctas;
    code = scratch(self, info.global_scratch, blocks, stream, pointers[used - 1], &owned[0]);
    if (!code)
        code = scratch(self, info.profile_scratch, blocks, stream, pointers[used], &owned[1]);
    else
        owned[1] = 0;
    if (!code)
        code = launch_now(self, function, &info, grid, stream, pointers);
    for (i = 0; i < 2; i++) /* the stream keeps later users behind the kernel */
        if (owned[i])
            need(self, self->hip ? "hipFreeAsync" : "cuMemFreeAsync")(owned[i], stream);
    if (code)
        status = fail(error, GB_DRIVER, "the driver refused the launch of %s over %u x %u x %u: error %d",
                      info.entry, grid[0], grid[1], grid[2], code);
done:
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
    form = gb_select(kernel, self->hip ? "hip" : "cuda", self->architecture, values, count, error);
    if (form == NULL)
        return error->status;
    return gb_launch_form(self, form, grid, stream, values, count, error);
}
