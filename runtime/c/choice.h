/* The index of a bundle, and the score of arguments for the compiled code in it: part of engine.c and of gluon_bundle.c. */

#define INDEX_VERSION 7
#define RECORD __attribute__((packed, may_alias))

/* Records at any address, which gluon_bundle.index makes: the header, the kernels, and all that these name by their
 * places, in bytes from the header. The last byte of the index is 0, so that a text may begin at any place. */
typedef struct RECORD { uint32_t at; } Place;
typedef struct RECORD { uint32_t at, count; } Span;
struct RECORD gb_kernel {
    uint32_t own; /* its place */
    Place name;
    Span forms;
};
enum { TARGET, DRIVER, ARCHITECTURE, SYMBOL, OPTIONS, TEXTS };
struct RECORD gb_form {
    uint32_t own, kernel;
    Place text[TEXTS];
    Span code;          /* behind the index */
    uint32_t checksum;  /* of the code */
    uint32_t facts[14]; /* those of gb_form_info from num_warps to profile_scratch */
    Span arguments;
};
_Static_assert(offsetof(gb_form_info, num_warps) + 14 * 4 == offsetof(gb_form_info, profile_scratch) + 8, "in a row");
typedef struct RECORD {
    char magic[8];
    uint32_t version;
    Span kernels;
} Header;
/* The conditions of an argument; gluon_runtime.conditions makes them. Tuples are taken apart. */
typedef struct RECORD {
    uint32_t name, kind; /* name: of the parameter */
    uint32_t text; /* the type, the element type of a pointer, or the constant */
    uint32_t code; /* a letter */
    uint32_t divisor, words;
    int8_t scores[8]; /* by gb_kind */
    int64_t least;
    uint64_t most;
    int64_t narrow_least;
    uint64_t narrow_most, small;
    MapKind map; /* of a descriptor */
} ArgumentRow;
enum { ROW_CONSTANT, ROW_VALUE, ROW_DESCRIPTOR }; /* its kinds */
enum { NEVER = -128, WIDER = -2, UNFIT = -1000 };  /* scores */

struct gb_bundle {
    const Header *index;
    size_t size, left; /* bytes of the index, and from there to the end of the file */
    void *owned;
};

/* The address of a place that a kernel or form names. */
#define AT(record, place) ((const void *)((const char *)(record) - (record)->own + (place)))
#define TEXT(form, which) ((const char *)AT(form, (form)->text[which].at))

static const gb_kernel *kernel_of(const gb_form *form) { return AT(form, form->kernel); }
static const ArgumentRow *arguments_of(const gb_form *form) { return AT(form, form->arguments.at); }

static const gb_kernel *kernel_at(const gb_bundle *self, size_t index)
{
    const gb_kernel *first = (const void *)((const char *)self->index + self->index->kernels.at);
    return index < self->index->kernels.count ? first + index : NULL;
}

static const gb_form *form_at(const gb_kernel *kernel, size_t index)
{
    const gb_form *first = AT(kernel, kernel->forms.at);
    return index < kernel->forms.count ? first + index : NULL;
}

/* Return whether records of `each` bytes are within `size` bytes. */
static int is_within(size_t size, Span span, size_t each)
{
    return span.at <= size && span.count <= (size - span.at) / each;
}

static int is_argument(const ArgumentRow *row, size_t size)
{
    int known = row->kind < ROW_DESCRIPTOR || (row->kind == ROW_DESCRIPTOR && row->map.rank >= 1 && row->map.rank <= RANK);
    return known && row->divisor && row->name < size && row->text < size && row->words < size;
}

/* Return whether this is an index, no place in it leads out of it, and no code out of the file. */
static int is_index(const gb_bundle *self)
{
    const Header *header = self->index;
    const gb_kernel *kernel;
    const gb_form *form;
    const size_t size = self->size;
    int right = size > sizeof *header && memcmp(header->magic, "GLBINDEX", 8) == 0 && header->version == INDEX_VERSION &&
                is_within(size, header->kernels, sizeof *kernel) && ((const char *)header)[size - 1] == 0;
    for (size_t k = 0; right && (kernel = kernel_at(self, k)) != NULL; k++) {
        right = AT(kernel, 0) == header && kernel->name.at < size && is_within(size, kernel->forms, sizeof *form);
        for (size_t f = 0; right && (form = form_at(kernel, f)) != NULL; f++) {
            right = AT(form, 0) == header && kernel_of(form) == kernel && is_within(self->left, form->code, 1) &&
                    is_within(size, form->arguments, sizeof(ArgumentRow));
            for (int i = 0; right && i < TEXTS; i++)
                right = form->text[i].at < size;
            for (uint32_t i = 0; right && i < form->arguments.count; i++)
                right = is_argument(arguments_of(form) + i, size);
        }
    }
    return right;
}

/* -- scores ---------------------------------------------------------------------------------------- */

static const gb_descriptor *descriptor_of(const gb_value *value)
{
    return (const gb_descriptor *)(uintptr_t)value->bits;
}

/* Return whether a descriptor is of the element type, rank and box of an argument; no map has strides of 2^40. */
static int descriptor_fits(const ArgumentRow *row, const char *element, const gb_value *value)
{
    const gb_descriptor *it = descriptor_of(value);
    if (value->kind != GB_DESCRIPTOR || it->rank != (uint32_t)row->map.rank || it->type == NULL ||
        strcmp(it->type, element) != 0 || (uintptr_t)it->address % 16 || it->strides[it->rank - 1] != 1)
        return 0;
    for (uint32_t i = 0; i < it->rank; i++)
        if (it->shape[i] < 1 || it->shape[i] > INT32_MAX || (it->box[i] && it->box[i] != row->map.box[it->rank - 1 - i]) ||
            it->strides[i] >> 40 || (i + 1 < it->rank && it->strides[i] * (uint64_t)row->map.bytes % 16))
            return 0;
    return 1;
}

static int within(const gb_value *value, int64_t least, uint64_t most)
{
    if (value->kind == GB_INTEGER && (int64_t)value->bits < 0)
        return (int64_t)value->bits >= least && (most > INT64_MAX || (int64_t)value->bits <= (int64_t)most);
    return value->bits <= most && (least < 0 || value->bits >= (uint64_t)least);
}

/* Return a number for a parameter that is real, which takes integers, too. */
static double real_of(const gb_value *value)
{
    double whole = value->kind == GB_INTEGER ? (double)(int64_t)value->bits : (double)value->bits;
    return value->kind == GB_REAL ? value->real : whole;
}

/* Return the score of a value for an argument, or UNFIT. */
static int score(const gb_form *form, const ArgumentRow *row, const gb_value *value)
{
    const char *expected = AT(form, row->text), *element = expected;
    int points = value->kind <= GB_DESCRIPTOR ? row->scores[value->kind] : NEVER, pointer = value->kind == GB_POINTER;
    uint64_t word;
    if (points == NEVER || (row->kind == ROW_DESCRIPTOR && !descriptor_fits(row, expected, value)))
        return UNFIT;
    if (row->kind == ROW_CONSTANT && value->kind != GB_LEFT_OUT)
        return (value->kind == GB_CONSTANT ? strcmp(value->text, expected) == 0 : value->bits == row->most) ? points : UNFIT;
    if (row->kind == ROW_VALUE && is_real((char)row->code))
        return write_real((char)row->code, real_of(value), &word) ? UNFIT : points;
    if (row->kind != ROW_VALUE || value->kind == GB_BOOLEAN)
        return points;
    if (pointer && value->text != NULL)
        element = strcmp(value->text, "i1") == 0 ? "u1" : value->text;
    if (strcmp(element, expected) != 0 || value->size > row->small || !within(value, row->least, row->most) ||
        value->bits % row->divisor)
        return UNFIT;
    return points + (within(value, row->narrow_least, row->narrow_most) ? WIDER : 0);
}

/* How a form fits the values of a call. */
typedef struct {
    uint32_t wrong, first; /* how many arguments do not fit, UINT32_MAX for another number of them, and the first */
    int points;            /* where all fit */
} Fit;

static Fit fit_of(const gb_form *form, const gb_value *values, size_t count)
{
    Fit fit = {form->arguments.count == count ? 0 : UINT32_MAX, 0, 0};
    for (uint32_t i = 0; fit.wrong != UINT32_MAX && i < count; i++) {
        int points = score(form, arguments_of(form) + i, &values[i]);
        if (points == UNFIT && fit.wrong++ == 0)
            fit.first = i;
        fit.points += points;
    }
    return fit;
}
