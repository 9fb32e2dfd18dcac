/* The key of a call: what the choice of a compiled kernel depends on, by the rules of gluon_runtime.rules. Part of
 * engine.c, which includes it.
 *
 * Two calls of equal keys must be equal to Python. The reverse need not hold: it costs time only.
 */

#define MAX_WORDS 1024
#define MAX_LEAVES MAX_KINDS

/* flags of a parameter */
#define CONSTANT 1
#define SPECIALIZE 2
#define ALIGN 4
#define WIDTH 8 /* on how many bits an integer needs */

/* gluon_runtime.rules: a mask for what is divisible, and the usual integers. */
typedef struct {
    long long divides, constant, least, most;
    PyObject *described; /* classes of descriptors */
} Rules;

/* One value of a call, tuples taken apart: one for each letter of a launch's `kinds`. */
typedef struct {
    PyObject *value;
    uint64_t address;
    int what; /* one of the following */
} Leaf;
enum { PLAIN, ADDRESS, DESCRIPTOR };

typedef struct {
    const Rules *rules;
    size_t words, leaves, descriptors;
    Leaf leaf[MAX_LEAVES];
    Key keys[MAX_MAPS];
    uint64_t word[MAX_WORDS];
} Reader;

static Leaf *next_leaf(Reader *to, PyObject *value, int what)
{
    Leaf *leaf;
    if (to->leaves == MAX_LEAVES)
        return NULL;
    leaf = &to->leaf[to->leaves++];
    leaf->value = value;
    leaf->what = what;
    return leaf;
}

static PyObject *layout_name, *block_shape_name;

static uint64_t word_of(const void *object)
{
    return (uint64_t)(uintptr_t)object;
}

static int put(Reader *to, uint64_t word)
{
    if (to->words == MAX_WORDS)
        return -1;
    to->word[to->words++] = word;
    return 0;
}

/* Element type and device of a tensor; the last bit: its address is divisible by `divides` + 1. */
static uint64_t word_of_view(const View *view, uint64_t divides)
{
    uint64_t word = (uint64_t)view->dtype.code | (uint64_t)view->dtype.bits << 8 |
                    (uint64_t)view->dtype.lanes << 16;
    word |= (uint64_t)(view->device.type & 0xff) << 32;
    word |= (uint64_t)(view->device.index & 0x7fff) << 40;
    return word | (uint64_t)(divides && !(start_of(view) & divides)) << 63;
}

/* A value that is compiled in: numbers by value, all else by its address. */
static int read_constant(Reader *to, PyObject *value)
{
    PyTypeObject *cls = Py_TYPE(value);
    uint64_t word = word_of(value);
    int overflow;
    if (cls == &PyLong_Type) {
        long long number = PyLong_AsLongLongAndOverflow(value, &overflow);
        if (overflow)
            return -1;
        word = (uint64_t)number;
    } else if (cls == &PyFloat_Type) {
        double number = PyFloat_AsDouble(value);
        memcpy(&word, &number, sizeof word);
    }
    if (next_leaf(to, value, PLAIN) == NULL || put(to, word_of(cls)))
        return -1;
    return put(to, word);
}

static int read_descriptor_fields(Reader *to, PyObject *value, PyObject *fields)
{
    PyObject *base, *layout, *block;
    int64_t sizes[RANK];
    View view;
    Key *key = &to->keys[to->descriptors++];
    int failed, rank, i;
    memset(key, 0, sizeof *key);
    base = field(value, fields, base_name);
    failed = base == NULL || !view_of(base, &view) || put(to, word_of(Py_TYPE(base))) ||
             put(to, word_of_view(&view, 0));
    Py_XDECREF(base);
    if (failed)
        return -1;
    key->address = start_of(&view);
    layout = field(value, fields, layout_name);
    failed = layout == NULL || put(to, word_of(layout));
    Py_XDECREF(layout);
    if (failed || (block = field(value, fields, block_shape_name)) == NULL)
        return -1;
    rank = (int)PySequence_Size(block);
    if (rank < 1 || rank > RANK) {
        Py_DECREF(block);
        return -1;
    }
    if (read_extents(block, rank, sizes) || put(to, (uint64_t)rank)) /* takes `block` */
        return -1;
    for (i = 0; i < rank; i++)
        if (put(to, (uint64_t)sizes[i]))
            return -1;
    return read_fields(value, fields, rank, key); /* refuses other ranks of the tensor */
}

static int read_descriptor_key(Reader *to, PyObject *value)
{
    PyObject *fields;
    int status;
    if (to->descriptors == MAX_MAPS || next_leaf(to, value, DESCRIPTOR) == NULL)
        return -1;
    fields = fields_of(value);
    status = read_descriptor_fields(to, value, fields);
    Py_XDECREF(fields);
    return status;
}

/* Integers that get the same fit the same integer types. */
static int width_of(long long number)
{
    static const int most[] = {0, 1, 7, 8, 15, 16, 31, 32};
    unsigned long long left = (unsigned long long)(number < 0 ? ~number : number);
    int bits = 0, class = number < 0 ? 16 : 0;
    size_t i;
    for (; left; left >>= 1)
        bits++;
    for (i = 0; i < sizeof most / sizeof *most; i++)
        class += bits > most[i];
    return class;
}

/* One argument: its class, and what the choice depends on. Below 0 where C does not know it; then
 * there may be an exception, too. */
static int read_value(Reader *to, PyObject *value, int flags)
{
    PyTypeObject *cls = Py_TYPE(value);
    Leaf *leaf;
    View view;
    Py_ssize_t i, count;
    if (flags & CONSTANT)
        return read_constant(to, value);
    if (put(to, word_of(cls)))
        return -1;
    if (view_of(value, &view)) {
        leaf = next_leaf(to, value, ADDRESS);
        if (leaf == NULL)
            return -1;
        leaf->address = start_of(&view);
        return put(to, word_of_view(&view, (flags & SPECIALIZE) && (flags & ALIGN)
                                               ? (uint64_t)to->rules->divides
                                               : 0));
    }
    if (cls == &PyLong_Type) {
        int overflow;
        long long number = PyLong_AsLongLongAndOverflow(value, &overflow);
        int wide = number < to->rules->least || number > to->rules->most;
        int even = (flags & SPECIALIZE) && (flags & ALIGN) && !(number & to->rules->divides);
        int one = (flags & SPECIALIZE) && number == to->rules->constant;
        if (overflow || next_leaf(to, value, PLAIN) == NULL)
            return -1;
        return put(to, (uint64_t)(wide | even << 1 | one << 2 |
                                  (flags & WIDTH ? width_of(number) << 3 : 0)));
    }
    if (cls == &PyFloat_Type || cls == &PyBool_Type || value == Py_None)
        return next_leaf(to, value, PLAIN) == NULL ? -1 : 0;
    if (cls == &PyTuple_Type) {
        count = PyTuple_Size(value);
        if (put(to, (uint64_t)count))
            return -1;
        for (i = 0; i < count; i++)
            if (read_value(to, PyTuple_GetItem(value, i), (flags & WIDTH) | SPECIALIZE | ALIGN))
                return -1;
        return 0;
    }
    for (i = 0, count = PyTuple_Size(to->rules->described); i < count; i++)
        if (PyTuple_GetItem(to->rules->described, i) == (PyObject *)cls)
            return read_descriptor_key(to, value);
    return -1;
}

static int read_option(Reader *to, PyObject *name, PyObject *value)
{
    PyTypeObject *cls = Py_TYPE(value);
    if (cls != &PyLong_Type && cls != &PyBool_Type && cls != &PyUnicode_Type && value != Py_None)
        return -1;
    return put(to, word_of(name)) || read_constant(to, value) ? -1 : 0;
}

static uint64_t hash_words(const uint64_t *words, size_t count)
{
    uint64_t hash = 0xcbf29ce484222325u;
    size_t i;
    for (i = 0; i < count; i++) {
        hash = (hash ^ words[i]) * 0x9e3779b97f4a7c15u;
        hash ^= hash >> 32;
    }
    return hash;
}
