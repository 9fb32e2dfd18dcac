/* The file of a bundle, an archive with an index: part of gluon_bundle.c, which includes it. */

#define FORMAT 1
#define INDEX_VERSION 3
#define HEADER 40
#define ROW_KERNEL 20
#define ROW_PARAMETER 8
#define ROW_FORM 100
#define ROW_ARGUMENT 80
#define ROW_MAP 40
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

/* Return whether `count` rows of `size` bytes at `place` are in the index. */
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
            buffer - word(argument + 20) < room || word(argument) >= word(form->kernel->row + 4) ||
            word(argument + 24) == 0 || word(argument + 28) >= self->strings_size)
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
        data[index->size - 1] || !inside(self, HEADER, count, ROW_KERNEL))
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

/* -- its kernels and forms ------------------------------------------------------------------------- */

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
