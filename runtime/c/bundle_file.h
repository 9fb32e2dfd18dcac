/* The file of a bundle, an archive with an index: part of gluon_bundle.c, which includes it. */

#define FORMAT 1
#define INDEX_VERSION 4
#define MOST_BUFFER (1 << 15) /* bytes of the arguments of a launch; no driver takes more */

/* Records of the file, at any address. Those of the index are gluon_bundle.index's: the header, then each kernel, its
 * parameters, and its forms, each in front of its arguments. Texts are places in the strings. */
typedef struct RECORD {
    char magic[4];
    uint16_t version, flags, method, time, date;
    uint32_t checksum, packed, size;
    uint16_t name, more;
} LocalHeader; /* of a member of the archive; its name and more follow, then its content */
typedef struct RECORD {
    char magic[8];
    uint32_t version, kernels, forms, strings_size;
} Header;
typedef struct RECORD { uint32_t place; } TextRow;
typedef struct RECORD { TextRow name; uint32_t parameters, forms; } KernelRow;
enum { TARGET, DRIVER, ARCHITECTURE, ENTRY, OPTIONS, CODE, DIGEST, TEXTS };
typedef struct RECORD {
    TextRow text[TEXTS];
    uint32_t facts[15]; /* those of gb_form_info from num_warps to buffer_size */
    uint32_t scratch[2], arguments;
} FormRow;
_Static_assert(offsetof(gb_form_info, num_warps) + 14 * 4 == offsetof(gb_form_info, buffer_size), "facts in a row");

struct gb_kernel {
    const gb_bundle *bundle;
    const KernelRow *row;
    const TextRow *parameters;
    const gb_form *forms;
};

struct gb_form {
    const gb_kernel *kernel;
    const FormRow *row;
    const ArgumentRow *arguments;
    gb_form_info info;
};

struct gb_bundle {
    const unsigned char *data, *next; /* next: of the records, of which `left` bytes are not read */
    size_t size, left;
    void *owned;
    char digest[DIGITS + 1];
    const Header *header;
    const char *strings;
    gb_kernel *kernels;
    gb_form *forms;
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

/* Return the next `count` records; NULL where the index has fewer. */
static const void *take(gb_bundle *self, size_t count, size_t size)
{
    const unsigned char *first = self->next;
    if (count > self->left / size)
        return NULL;
    self->next += count * size;
    self->left -= count * size;
    return first;
}

/* Return whether `count` texts are in the index. */
static int are_texts(const gb_bundle *self, const TextRow *texts, size_t count)
{
    while (count > 0 && texts[count - 1].place < self->header->strings_size)
        count--;
    return count == 0;
}

/* Return whether `size` bytes of a buffer are within it. */
static int is_within(const gb_form *form, uint32_t place, uint32_t size)
{
    return place <= form->info.buffer_size && size <= form->info.buffer_size - place;
}

static int is_argument(const gb_form *form, const ArgumentRow *row)
{
    uint32_t texts = form->kernel->bundle->header->strings_size, rank = (uint32_t)row->map.rank;
    if (row->parameter >= form->kernel->row->parameters || row->text >= texts || row->words >= texts || !row->divisor)
        return 0;
    if (row->kind == ROW_DESCRIPTOR)
        return rank >= 1 && rank <= RANK && is_within(form, row->offset, MAP_BYTES + 4 * (rank + rank % 2) + 8 * rank);
    return row->kind == ROW_CONSTANT || (row->kind == ROW_VALUE && is_within(form, row->offset, 8));
}

/* Read a form; GB_HASH where its code is not in the file. */
static gb_status read_form(gb_bundle *self, gb_form *form)
{
    const FormRow *row = form->row = take(self, 1, sizeof *row);
    gb_form_info *info = &form->info;
    const char *text[TEXTS];
    uint32_t i = 0;
    if (row == NULL || (form->arguments = take(self, row->arguments, sizeof *form->arguments)) == NULL ||
        !are_texts(self, row->text, TEXTS))
        return GB_FORMAT;
    for (int t = 0; t < TEXTS; t++)
        text[t] = self->strings + row->text[t].place;
    *info = (gb_form_info){.target = text[TARGET], .driver = text[DRIVER], .architecture = text[ARCHITECTURE],
                           .entry = text[ENTRY], .options = text[OPTIONS]};
    memcpy((char *)info + offsetof(gb_form_info, num_warps), row->facts, sizeof row->facts);
    while (i < row->arguments && is_argument(form, &form->arguments[i]))
        i++;
    if (i < row->arguments || info->buffer_size > MOST_BUFFER || !is_within(form, row->scratch[0], 8) ||
        !is_within(form, row->scratch[1], 8))
        return GB_FORMAT;
    info->code = member(self, text[CODE], &info->code_size);
    return info->code == NULL ? GB_HASH : GB_OK;
}

/* Read a kernel, whose forms come to `*forms`. */
static gb_status read_kernel(gb_bundle *self, gb_kernel *kernel, gb_form **forms)
{
    const KernelRow *row = kernel->row = take(self, 1, sizeof *row);
    gb_status status = GB_OK;
    kernel->bundle = self;
    kernel->forms = *forms;
    if (row == NULL || (kernel->parameters = take(self, row->parameters, sizeof *kernel->parameters)) == NULL ||
        !are_texts(self, &row->name, 1) || !are_texts(self, kernel->parameters, row->parameters) ||
        row->forms > self->header->forms - (size_t)(*forms - self->forms))
        return GB_FORMAT;
    for (; !status && *forms < kernel->forms + row->forms; (*forms)++) {
        (*forms)->kernel = kernel;
        status = read_form(self, *forms);
    }
    return status;
}

static gb_status read_index(gb_bundle *self)
{
    const Header *header = NULL;
    gb_status status = GB_OK;
    if ((self->next = member(self, "index.bin", &self->left)) != NULL)
        header = take(self, 1, sizeof *header);
    if (header == NULL || memcmp(header->magic, "GLBINDEX", 8) != 0)
        return GB_FORMAT;
    if (header->version != INDEX_VERSION)
        return GB_VERSION;
    if (!header->strings_size || header->strings_size > self->left || self->next[self->left - 1] ||
        header->kernels > self->left / sizeof(KernelRow) || header->forms > self->left / sizeof(FormRow))
        return GB_FORMAT;
    self->left -= header->strings_size;
    self->strings = (const char *)self->next + self->left;
    self->header = header;
    self->kernels = calloc((size_t)header->kernels + 1, sizeof *self->kernels);
    gb_form *forms = self->forms = calloc((size_t)header->forms + 1, sizeof *forms);
    if (self->kernels == NULL || forms == NULL)
        return GB_MEMORY;
    for (uint32_t i = 0; !status && i < header->kernels; i++)
        status = read_kernel(self, &self->kernels[i], &forms);
    return status || (!self->left && forms == self->forms + header->forms) ? status : GB_FORMAT;
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
    if (self == NULL)
        return;
    free(self->kernels);
    free(self->forms);
    free(self->owned);
    free(self);
}

/* -- its kernels and forms ------------------------------------------------------------------------- */

const char *gb_digest(const gb_bundle *self) { return self->digest; }
size_t gb_kernel_count(const gb_bundle *self) { return self->header->kernels; }
size_t gb_parameter_count(const gb_kernel *kernel) { return kernel->row->parameters; }
size_t gb_form_count(const gb_kernel *kernel) { return kernel->row->forms; }
void gb_form_get(const gb_form *form, gb_form_info *info) { *info = form->info; }
const char *gb_kernel_name(const gb_kernel *kernel) { return kernel->bundle->strings + kernel->row->name.place; }

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
    return index < gb_parameter_count(kernel) ? kernel->bundle->strings + kernel->parameters[index].place : NULL;
}

const gb_kernel *gb_find(const gb_bundle *self, const char *name, gb_error *error)
{
    for (size_t i = 0; i < gb_kernel_count(self); i++)
        if (strcmp(gb_kernel_name(&self->kernels[i]), name) == 0)
            return &self->kernels[i];
    fail(error, GB_KERNEL, "the bundle has no kernel '%s'", name);
    return NULL;
}
