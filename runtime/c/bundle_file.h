/* The file of a bundle, an archive with an index: part of gluon_bundle.c, which includes it. */

#define FORMAT 1
#define INDEX_VERSION 5
#define MOST_BUFFER (1 << 15) /* bytes of the arguments of a launch; no driver takes more */

/* Records of the file, at any address. Those of the index are gluon_bundle.index's: the header, the kernels, and all that
 * these name by their places, in bytes from the header. The last byte is 0, so that a text may begin at any place. */
typedef struct RECORD {
    char magic[4];
    uint16_t version, flags, method, time, date;
    uint32_t checksum, packed, size;
    uint16_t name, more;
} LocalHeader; /* of a member of the archive; its name and more follow, then its content */
typedef struct RECORD { uint32_t at; } Place;
typedef struct RECORD { uint32_t at, count; } Table;
struct RECORD gb_kernel {
    uint32_t own; /* its place */
    Place name;
    Table parameters, forms; /* the places of names, and forms */
};
enum { TARGET, DRIVER, ARCHITECTURE, ENTRY, OPTIONS, DIGEST, TEXTS };
struct RECORD gb_form {
    uint32_t own, kernel;
    Place text[TEXTS];
    Table code;         /* behind the index */
    uint32_t facts[15]; /* those of gb_form_info from num_warps to buffer_size */
    uint32_t scratch[2];
    Table arguments;
};
_Static_assert(offsetof(gb_form_info, num_warps) + 14 * 4 == offsetof(gb_form_info, buffer_size), "facts in a row");
typedef struct RECORD {
    char magic[8];
    uint32_t version;
    Table kernels;
} Header;

/* The address of a place that a kernel or form names. */
#define AT(record, place) ((const void *)((const char *)(record) - (record)->own + (place)))
#define TEXT(form, which) ((const char *)AT(form, (form)->text[which].at))

struct gb_bundle {
    const unsigned char *data;
    size_t size;
    void *owned;
    char digest[DIGITS + 1];
    const Header *index;
    size_t index_size;
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

/* -- its kernels and forms ------------------------------------------------------------------------- */

const char *gb_digest(const gb_bundle *self) { return self->digest; }
size_t gb_kernel_count(const gb_bundle *self) { return self->index->kernels.count; }
size_t gb_parameter_count(const gb_kernel *kernel) { return kernel->parameters.count; }
size_t gb_form_count(const gb_kernel *kernel) { return kernel->forms.count; }
const char *gb_kernel_name(const gb_kernel *kernel) { return AT(kernel, kernel->name.at); }
static const gb_kernel *kernel_of(const gb_form *form) { return AT(form, form->kernel); }
static const ArgumentRow *arguments_of(const gb_form *form) { return AT(form, form->arguments.at); }

const gb_kernel *gb_kernel_at(const gb_bundle *self, size_t index)
{
    const gb_kernel *first = (const void *)((const char *)self->index + self->index->kernels.at);
    return index < gb_kernel_count(self) ? first + index : NULL;
}

const gb_form *gb_form_at(const gb_kernel *kernel, size_t index)
{
    const gb_form *first = AT(kernel, kernel->forms.at);
    return index < gb_form_count(kernel) ? first + index : NULL;
}

const char *gb_parameter_name(const gb_kernel *kernel, size_t index)
{
    const Place *names = AT(kernel, kernel->parameters.at);
    return index < gb_parameter_count(kernel) ? AT(kernel, names[index].at) : NULL;
}

const gb_kernel *gb_find(const gb_bundle *self, const char *name, gb_error *error)
{
    for (size_t i = 0; i < gb_kernel_count(self); i++)
        if (strcmp(gb_kernel_name(gb_kernel_at(self, i)), name) == 0)
            return gb_kernel_at(self, i);
    fail(error, GB_KERNEL, "the bundle has no kernel '%s'", name);
    return NULL;
}

static gb_form_info info_of(const gb_form *form)
{
    gb_form_info info = {TEXT(form, TARGET), TEXT(form, DRIVER), TEXT(form, ARCHITECTURE), TEXT(form, ENTRY),
                         TEXT(form, OPTIONS), .code = AT(form, form->code.at), .code_size = form->code.count};
    memcpy((char *)&info + offsetof(gb_form_info, num_warps), form->facts, sizeof form->facts);
    return info;
}

void gb_form_get(const gb_form *form, gb_form_info *info) { *info = info_of(form); }

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

/* Find the index; return 0 where there is none, or a member before it is not stored as bundles do. */
static int find_index(gb_bundle *self)
{
    size_t before, place = 0, left;
    while ((left = self->size - place) >= sizeof(LocalHeader)) {
        const LocalHeader *head = (const LocalHeader *)(self->data + place);
        before = sizeof *head + head->name + head->more;
        if (memcmp(head->magic, "PK\3\4", 4) != 0 || head->flags & ~0x800 || head->method ||
            head->packed != head->size || before > left || head->size > left - before)
            return 0;
        self->index = (const Header *)(self->data + place + before);
        self->index_size = head->size;
        if (head->name == 9 && memcmp(head + 1, "index.bin", 9) == 0)
            return 1;
        place += before + head->size;
    }
    return 0;
}

/* -- the index ------------------------------------------------------------------------------------ */

/* Return whether a table of records of `each` bytes is within `size` bytes. */
static int is_within(size_t size, Table table, size_t each)
{
    return table.at <= size && table.count <= (size - table.at) / each;
}

static int are_texts(const gb_bundle *self, const Place *texts, size_t count)
{
    while (count > 0 && texts[count - 1].at < self->index_size)
        count--;
    return count == 0;
}

static int is_argument(const gb_bundle *self, const gb_form *form, size_t buffer, const ArgumentRow *row)
{
    uint32_t rank = (uint32_t)row->map.rank, described = MAP_BYTES + 4 * (rank + rank % 2) + 8 * rank;
    if (row->parameter >= gb_parameter_count(kernel_of(form)) || row->text >= self->index_size ||
        row->words >= self->index_size || !row->divisor)
        return 0;
    if (row->kind == ROW_DESCRIPTOR)
        return rank >= 1 && rank <= RANK && is_within(buffer, (Table){row->offset, 1}, described);
    return row->kind == ROW_CONSTANT || (row->kind == ROW_VALUE && is_within(buffer, (Table){row->offset, 1}, 8));
}

static int is_form(const gb_bundle *self, const gb_kernel *kernel, const gb_form *form)
{
    size_t size = self->index_size, file = self->size - (size_t)((const unsigned char *)self->index - self->data);
    uint32_t buffer;
    if (AT(form, 0) != self->index || kernel_of(form) != kernel || !are_texts(self, form->text, TEXTS) ||
        !is_within(file, form->code, 1) || !is_within(size, form->arguments, sizeof(ArgumentRow)))
        return 0;
    buffer = info_of(form).buffer_size;
    for (uint32_t i = 0; i < form->arguments.count; i++)
        if (!is_argument(self, form, buffer, arguments_of(form) + i))
            return 0;
    return buffer <= MOST_BUFFER && is_within(buffer, (Table){form->scratch[0], 1}, 8) &&
           is_within(buffer, (Table){form->scratch[1], 1}, 8);
}

static int is_kernel(const gb_bundle *self, const gb_kernel *kernel)
{
    size_t size = self->index_size;
    if (AT(kernel, 0) != self->index || !are_texts(self, &kernel->name, 1) ||
        !is_within(size, kernel->parameters, sizeof(Place)) || !is_within(size, kernel->forms, sizeof(gb_form)) ||
        !are_texts(self, AT(kernel, kernel->parameters.at), kernel->parameters.count))
        return 0;
    for (uint32_t i = 0; i < kernel->forms.count; i++)
        if (!is_form(self, kernel, gb_form_at(kernel, i)))
            return 0;
    return 1;
}

static gb_status check_index(gb_bundle *self)
{
    if (!find_index(self) || self->index_size <= sizeof(Header) || memcmp(self->index->magic, "GLBINDEX", 8) != 0)
        return GB_FORMAT;
    if (self->index->version != INDEX_VERSION)
        return GB_VERSION;
    if (!is_within(self->index_size, self->index->kernels, sizeof(gb_kernel)) ||
        ((const char *)self->index)[self->index_size - 1])
        return GB_FORMAT;
    for (uint32_t i = 0; i < self->index->kernels.count; i++)
        if (!is_kernel(self, gb_kernel_at(self, i)))
            return GB_FORMAT;
    return GB_OK;
}

static gb_bundle *open_named(const void *data, size_t size, void *owned, const char *where, gb_error *error)
{
    gb_bundle bundle = {.data = data, .size = size, .owned = owned}, *self = NULL;
    gb_status status = check_file(&bundle, where, error);
    if (!status && (status = check_index(&bundle)) != GB_OK)
        fail(error, status, status == GB_VERSION ? "%s: this loader does not read the version of the index"
                                                 : "%s: the index is not as the format says", where);
    else if (!status && (self = malloc(sizeof *self)) == NULL)
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
