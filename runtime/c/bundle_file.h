/* The file of a bundle, an archive whose first member is the index: part of gluon_bundle.c, which includes it. */

/* Its begin, at any address. */
typedef struct RECORD {
    char magic[4];
    uint16_t version, flags, method, time, date;
    uint32_t checksum, packed, size;
    uint16_t length, more;
    char name[9];
    Header index;
} Begin;

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

/* -- its kernels and forms ------------------------------------------------------------------------- */

size_t gb_kernel_count(const gb_bundle *self) { return self->index->kernels.count; }
size_t gb_form_count(const gb_kernel *kernel) { return kernel->forms.count; }
const char *gb_kernel_name(const gb_kernel *kernel) { return AT(kernel, kernel->name.at); }
const gb_kernel *gb_kernel_at(const gb_bundle *self, size_t index) { return kernel_at(self, index); }
const gb_form *gb_form_at(const gb_kernel *kernel, size_t index) { return form_at(kernel, index); }

const gb_kernel *gb_find(const gb_bundle *self, const char *name, gb_error *error)
{
    for (size_t i = 0; self != NULL && i < gb_kernel_count(self); i++)
        if (strcmp(gb_kernel_name(kernel_at(self, i)), name) == 0)
            return kernel_at(self, i);
    fail(self == NULL ? NULL : error, GB_KERNEL, "the bundle has no kernel '%s'", name); /* gb_open said why */
    return NULL;
}

void gb_form_get(const gb_form *form, gb_form_info *info)
{
    *info = (gb_form_info){TEXT(form, TARGET), TEXT(form, DRIVER), TEXT(form, ARCHITECTURE), TEXT(form, SYMBOL),
                           TEXT(form, OPTIONS), .code = AT(form, form->code.at), .code_size = form->code.count};
    memcpy((char *)info + offsetof(gb_form_info, num_warps), form->facts, sizeof form->facts);
}

/* -- opening --------------------------------------------------------------------------------------- */

/* Return the CRC-32 of bytes, the checksum of an archive. */
static uint32_t checksum_of(const void *data, size_t size)
{
    uint32_t sum = UINT32_MAX;
    for (const unsigned char *byte = data; size-- > 0; byte++) {
        sum ^= *byte;
        for (int bit = 0; bit < 8; bit++)
            sum = sum >> 1 ^ (sum & 1 ? 0xedb88320 : 0);
    }
    return ~sum;
}

static gb_bundle *open_named(const void *data, size_t size, void *owned, const char *where, gb_error *error)
{
    const Begin *begin = data;
    gb_bundle *self = NULL, bundle = {&begin->index, 0, size - offsetof(Begin, index), owned};
    if (size < sizeof *begin || memcmp(begin->name, "index.bin", sizeof begin->name) != 0)
        fail(error, GB_FORMAT, "%s: not a bundle", where);
    else if (begin->index.version != INDEX_VERSION)
        fail(error, GB_VERSION, "%s: the index has version %u, this loader reads %d", where, begin->index.version,
             INDEX_VERSION);
    else if ((bundle.size = begin->size) > bundle.left || begin->checksum != checksum_of(bundle.index, bundle.size) ||
             !is_index(&bundle))
        fail(error, GB_DAMAGED, "%s: the index is damaged, or the end of the file is missing", where);
    else if ((self = malloc(sizeof *self)) == NULL)
        fail(error, GB_MEMORY, "out of memory");
    if (self == NULL) {
        free(owned);
        return NULL;
    }
    fail(error, GB_OK, "%s", "");
    *self = bundle;
    return self;
}

gb_bundle *gb_open_memory(const void *data, size_t size, gb_error *error)
{
    return open_named(data, size, NULL, "the bundle", error);
}

gb_bundle *gb_open(const char *path, gb_error *error)
{
    FILE *file = fopen(path, "rb");
    long size = file != NULL && fseek(file, 0, SEEK_END) == 0 ? ftell(file) : -1;
    unsigned char *data = size >= 0 && fseek(file, 0, SEEK_SET) == 0 ? malloc((size_t)size + 1) : NULL;
    int whole = data != NULL && fread(data, 1, (size_t)size, file) == (size_t)size;
    if (file != NULL)
        fclose(file);
    if (whole)
        return open_named(data, (size_t)size, data, path, error);
    fail(error, GB_FORMAT, "%s: the bundle cannot be read", path);
    free(data);
    return NULL;
}

void gb_close(gb_bundle *self)
{
    if (self != NULL)
        free(self->owned);
    free(self);
}
