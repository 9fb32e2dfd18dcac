/* The file of a bundle, an archive with an index: part of gluon_bundle.c, which includes it. */

#define FORMAT 1
#define INDEX_VERSION 3
#define MOST_BUFFER (1 << 20)

/* Records of the file, at any address. Those of the index are gluon_runtime.index's, whose texts are places in the
 * strings, and other places count from its start. */
typedef struct RECORD {
    char magic[4];
    uint16_t version, flags, method, time, date;
    uint32_t checksum, packed, size;
    uint16_t name, more;
} LocalHeader; /* of a member of the archive; its name and more follow, then its content */
typedef struct RECORD {
    char magic[8];
    uint32_t version, kernels, strings, strings_size, divisibility, unused;
    uint64_t small;
} Header;
typedef struct RECORD { uint32_t name, parameter_count, parameters, form_count, forms; } KernelRow;
typedef struct RECORD { uint32_t name, flags; } ParameterRow;
enum { TARGET, DRIVER, ARCHITECTURE, ENTRY, CODE, DIGEST, OPTIONS, TEXTS };
typedef struct RECORD {
    uint32_t text[TEXTS];
    uint32_t num_warps, warp_size, num_ctas, shared, flags, grid[3], global_scratch[2], profile_scratch[2];
    uint32_t argument_count, arguments, size, scratch[2], unused;
} FormRow;
enum { COOPERATIVE_FORM = 1, DEPENDENT_FORM = 2, GRID_FORM = 4 }; /* its flags */
typedef struct RECORD { uint32_t swizzle, type, bytes, fp4_padded, rank, box[RANK]; } MapRow;

struct gb_kernel {
    const gb_bundle *bundle;
    const KernelRow *row;
    const ParameterRow *parameters;
    gb_form *forms;
};

struct gb_form {
    const gb_kernel *kernel;
    const FormRow *row;
    const ArgumentRow *arguments;
    gb_form_info info;
    int checked; /* the hash of the code is right */
};

struct gb_bundle {
    const unsigned char *data, *index;
    size_t size, index_size;
    void *owned;
    char digest[DIGITS + 1];
    const Header *header;
    gb_kernel *kernels;
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

/* -- the archive ---------------------------------------------------------------------------------- */

/* Check the comment at the end, `gluon-bundle/<version> sha256=<hex>`, and the hash in it. */
static gb_status check_file(gb_bundle *self, const char *where, gb_error *error)
{
    static const char head[] = "gluon-bundle/", first[] = "manifest.json";
    char tail[257] = "";
    size_t length = self->size < 256 ? self->size : 256, i = length + 1;
    unsigned version = FORMAT;
    int digits = 0;
    memcpy(tail, self->data + self->size - length, length);
    while (i-- > 0 && strncmp(tail + i, head, sizeof head - 1) != 0) {
    }
    if (i == (size_t)-1) {
        size_t named = sizeof(LocalHeader), more = sizeof first - 1;
        int begins = self->size > 0 && memcmp(self->data, "PK\3\4", self->size < 4 ? self->size : 4) == 0;
        if (begins && (self->size < named + more || memcmp(self->data + named, first, more) == 0))
            return fail(error, GB_TRUNCATED, "%s: the end of the file is missing", where);
        return fail(error, GB_FORMAT, "%s: not a bundle", where);
    }
    i += sizeof head - 1;
    if (sscanf(tail + i, "%5u sha256=%n", &version, &digits) == 1 && digits && version != FORMAT)
        return fail(error, GB_VERSION, "%s: the bundle has format %u, this loader reads %d", where, version, FORMAT);
    if (!digits || length - i - (size_t)digits < DIGITS)
        return fail(error, GB_TRUNCATED, "%s: the end of the file is missing", where);
    digest_of(self->data, self->size - DIGITS, self->digest);
    if (memcmp(tail + length - DIGITS, self->digest, DIGITS) != 0)
        return fail(error, GB_DAMAGED, "%s: the file is damaged or was changed: its sha256 is %s", where, self->digest);
    return GB_OK;
}

/* Find a member by its name; NULL where there is none, or one before it is not stored as bundles do. */
static const unsigned char *member(const gb_bundle *self, const char *name, size_t *size)
{
    size_t place = 0, left;
    while ((left = self->size - place) >= sizeof(LocalHeader)) {
        const LocalHeader *head = (const LocalHeader *)(self->data + place);
        const unsigned char *text = self->data + place + sizeof *head;
        size_t before = sizeof *head + head->name + head->more;
        if (memcmp(head->magic, "PK\3\4", 4) != 0 || head->flags & ~0x800 || head->method ||
            head->packed != head->size || before > left || head->size > left - before)
            return NULL;
        *size = head->size;
        if (head->name == strlen(name) && memcmp(text, name, head->name) == 0)
            return self->data + place + before;
        place += before + head->size;
    }
    return NULL;
}

/* -- the index ------------------------------------------------------------------------------------ */

static const char *text_at(const gb_bundle *self, uint32_t place)
{
    return (const char *)self->index + self->header->strings + place;
}

/* Return the record at a place; NULL where `count` of them are not in the index. */
static const void *record_at(const gb_bundle *self, uint32_t place, uint32_t count, size_t size)
{
    return place <= self->index_size && count <= (self->index_size - place) / size ? self->index + place : NULL;
}

/* Return whether all that an argument names is in the index, and its value in the buffer. */
static int is_argument(const gb_form *form, const ArgumentRow *row)
{
    const gb_kernel *kernel = form->kernel;
    uint32_t size = form->row->size, room = row->kind == ROW_CONSTANT ? 0 : 8, texts = kernel->bundle->header->strings_size;
    if (row->kind == ROW_DESCRIPTOR) {
        const MapRow *map = record_at(kernel->bundle, row->code, 1, sizeof *map);
        if (row->rank < 1 || row->rank > RANK || map == NULL || map->rank != row->rank)
            return 0;
        room = MAP_BYTES + 4 * (row->rank + row->rank % 2) + 8 * row->rank;
    }
    return row->kind <= ROW_DESCRIPTOR && row->divisor && row->parameter < kernel->row->parameter_count &&
           row->text < texts && row->words < texts && row->offset <= size && size - row->offset >= room;
}

/* Read a form; GB_HASH where its code is not in the file. */
static gb_status read_form(gb_form *form)
{
    const gb_bundle *self = form->kernel->bundle;
    const FormRow *row = form->row;
    const char *text[TEXTS];
    size_t size;
    const unsigned char *code;
    uint32_t i;
    for (i = 0; i < TEXTS; i++) {
        if (row->text[i] >= self->header->strings_size)
            return GB_FORMAT;
        text[i] = text_at(self, row->text[i]);
    }
    form->arguments = record_at(self, row->arguments, row->argument_count, sizeof *form->arguments);
    if (form->arguments == NULL || row->size > MOST_BUFFER)
        return GB_FORMAT;
    for (i = 0; i < 2; i++)
        if (row->scratch[i] > row->size || row->size - row->scratch[i] < 8)
            return GB_FORMAT;
    for (i = 0; i < row->argument_count; i++)
        if (!is_argument(form, &form->arguments[i]))
            return GB_FORMAT;
    if ((code = member(self, text[CODE], &size)) == NULL)
        return GB_HASH;
    form->info = (gb_form_info){
        text[TARGET], text[DRIVER], text[ARCHITECTURE], text[ENTRY], text[OPTIONS],
        row->num_warps, row->warp_size, row->num_ctas, row->shared,
        (row->flags & COOPERATIVE_FORM) != 0, (row->flags & DEPENDENT_FORM) != 0, (row->flags & GRID_FORM) != 0,
        {row->grid[0], row->grid[1], row->grid[2]}, {row->global_scratch[0], row->global_scratch[1]},
        {row->profile_scratch[0], row->profile_scratch[1]}, row->size, code, size};
    return GB_OK;
}

static gb_status read_kernel(gb_kernel *kernel)
{
    const gb_bundle *self = kernel->bundle;
    const KernelRow *row = kernel->row;
    const FormRow *forms = record_at(self, row->forms, row->form_count, sizeof *forms);
    gb_status status = GB_OK;
    uint32_t i;
    kernel->parameters = record_at(self, row->parameters, row->parameter_count, sizeof *kernel->parameters);
    if (row->name >= self->header->strings_size || kernel->parameters == NULL || forms == NULL)
        return GB_FORMAT;
    for (i = 0; i < row->parameter_count; i++)
        if (kernel->parameters[i].name >= self->header->strings_size)
            return GB_FORMAT;
    kernel->forms = calloc((size_t)row->form_count + 1, sizeof *kernel->forms);
    for (i = 0; kernel->forms != NULL && !status && i < row->form_count; i++) {
        kernel->forms[i].kernel = kernel;
        kernel->forms[i].row = &forms[i];
        status = read_form(&kernel->forms[i]);
    }
    return kernel->forms == NULL ? GB_MEMORY : status;
}

static gb_status read_index(gb_bundle *self)
{
    const Header *header = (const Header *)(self->index = member(self, "index.bin", &self->index_size));
    const KernelRow *rows;
    gb_status status = GB_OK;
    uint32_t i;
    if (header == NULL || self->index_size < sizeof *header || memcmp(header->magic, "GLBINDEX", 8) != 0)
        return GB_FORMAT;
    if (header->version != INDEX_VERSION)
        return GB_VERSION;
    rows = record_at(self, sizeof *header, header->kernels, sizeof *rows);
    if (header->strings > self->index_size || header->strings_size != self->index_size - header->strings ||
        !header->strings_size || self->index[self->index_size - 1] || rows == NULL)
        return GB_FORMAT;
    self->kernels = calloc((size_t)header->kernels + 1, sizeof *self->kernels);
    self->header = header;
    for (i = 0; self->kernels != NULL && !status && i < header->kernels; i++) {
        self->kernels[i].bundle = self;
        self->kernels[i].row = &rows[i];
        status = read_kernel(&self->kernels[i]);
    }
    return self->kernels == NULL ? GB_MEMORY : status;
}

static gb_bundle *open_named(const void *data, size_t size, void *owned, const char *where, gb_error *error)
{
    gb_error own;
    gb_bundle *self = calloc(1, sizeof *self);
    gb_status status;
    error = error == NULL ? &own : error;
    *error = (gb_error){GB_OK, ""};
    if (self == NULL) {
        fail(error, GB_MEMORY, "out of memory");
        free(owned);
        return NULL;
    }
    self->data = data;
    self->size = size;
    self->owned = owned;
    if (!check_file(self, where, error) && (status = read_index(self)) != GB_OK)
        fail(error, status, status == GB_VERSION ? "%s: this loader does not read the version of the index"
                            : status == GB_HASH  ? "%s: code that the index names is missing"
                            : status == GB_MEMORY ? "%s: out of memory"
                                                  : "%s: the index is not as the format says", where);
    if (error->status) {
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
    for (i = 0; self->kernels != NULL && i < self->header->kernels; i++)
        free(self->kernels[i].forms);
    free(self->kernels);
    free(self->owned);
    free(self);
}

/* -- its kernels and forms ------------------------------------------------------------------------- */

const char *gb_digest(const gb_bundle *self) { return self->digest; }
size_t gb_kernel_count(const gb_bundle *self) { return self->header->kernels; }
size_t gb_parameter_count(const gb_kernel *kernel) { return kernel->row->parameter_count; }
size_t gb_form_count(const gb_kernel *kernel) { return kernel->row->form_count; }
void gb_form_get(const gb_form *form, gb_form_info *info) { *info = form->info; }
const char *gb_kernel_name(const gb_kernel *kernel) { return text_at(kernel->bundle, kernel->row->name); }

const gb_kernel *gb_kernel_at(const gb_bundle *self, size_t index)
{
    return index < gb_kernel_count(self) ? &self->kernels[index] : NULL;
}

const gb_form *gb_form_at(const gb_kernel *kernel, size_t index)
{
    return index < gb_form_count(kernel) ? &kernel->forms[index] : NULL;
}

const char *gb_parameter_name(const gb_kernel *kernel, size_t index)
{
    return index < gb_parameter_count(kernel) ? text_at(kernel->bundle, kernel->parameters[index].name) : NULL;
}

const gb_kernel *gb_find(const gb_bundle *self, const char *name, gb_error *error)
{
    size_t i;
    for (i = 0; i < gb_kernel_count(self); i++)
        if (strcmp(gb_kernel_name(&self->kernels[i]), name) == 0)
            return &self->kernels[i];
    fail(error, GB_KERNEL, "the bundle has no kernel '%s'", name);
    return NULL;
}
