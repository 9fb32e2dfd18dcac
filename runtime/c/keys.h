/* The key of a call: all that the choice of a compiled kernel depends on, by the rules of gluon_runtime.rules. Part
 * of engine.c.
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

/* gluon_runtime.rules: a mask for divisible numbers, and the usual integers. */
typedef struct {
    long long divides, constant, least, most;
} Rules;

/* One value of a call, tuples taken apart: one for each letter of a launch's `kinds`. */
typedef struct {
    PyObject *value;
    uint64_t word; /* the address of a tensor, or of that of a descriptor; a number */
    int what;      /* one of these: */
    int tensor;    /* of a prepared launch: which tensor of a call comes here, from 1 on */
} Leaf;
enum { PLAIN, ADDRESS, NUMBER, DESCRIPTOR };

typedef struct {
    const Rules *rules; /* NULL: no key is wanted */
    PyObject *is_small; /* asked of tensors; NULL where the size of their storages does not matter */
    PyObject *equals;   /* a dictionary: constant -> the equal one whose address is the word of both; or NULL */
    PyObject *owners;   /* with `equals`, a list that gets the objects whose addresses are words; or NULL */
    PyObject *comparable; /* with `owners`, the classes of constants that `equals` gets */
    size_t words, leaves, descriptors;
    int placed; /* a tensor says on which device the call is */
    Leaf leaf[MAX_LEAVES];
    Key keys[MAX_MAPS];
    uint64_t word[MAX_WORDS];
} Reader;

static void start(Reader *to, const Rules *rules, PyObject *is_small)
{
    to->rules = rules;
    to->is_small = is_small;
    to->equals = to->owners = to->comparable = NULL;
    to->words = to->leaves = to->descriptors = 0;
    to->placed = 0;
}

static int add_leaf(Reader *to, PyObject *value, int what, uint64_t word)
{
    if (to->leaves == MAX_LEAVES)
        return -1;
    to->leaf[to->leaves++] = (Leaf){value, word, what, 0};
    return 0;
}

static HOT int add(Reader *to, uint64_t word)
{
    if (to->words == MAX_WORDS)
        return -1;
    to->word[to->words++] = word;
    return 0;
}

/* Element type and device of a tensor; the last bit: its address is divisible by `divides` + 1. */
static HOT uint64_t word_of_view(const View *view, uint64_t divides)
{
    uint64_t word = (uint64_t)view->dtype.code | (uint64_t)view->dtype.bits << 8 |
                    (uint64_t)view->dtype.lanes << 16;
    word |= (uint64_t)(view->device.type & 0xff) << 32;
    word |= (uint64_t)(view->device.index & 0x7fff) << 40;
    return word | (uint64_t)(divides && !(start_of(view) & divides)) << 63;
}

/* Add rank, element type, device, alignment to 16 bytes, sizes and strides of a tensor. */
static HOT int add_view(Reader *to, const View *view)
{
    int failed = view->strides == NULL || add(to, 1 + (uint64_t)view->rank) | add(to, word_of_view(view, 15));
    for (int i = 0; !failed && i < view->rank; i++)
        failed = add(to, (uint64_t)view->shape[i]) | add(to, (uint64_t)view->strides[i]);
    return failed;
}

/* Return an object, or one known to compile alike. */
static COLD PyObject *equal_of(const Reader *to, PyObject *object)
{
    PyObject *equal = PyDict_GetItemWithError(to->equals, object);
    PyErr_Clear(); /* it has no hash */
    if (to->owners != NULL && PyList_Append(to->owners, object) == 0 && equal == NULL &&
        PyObject_IsInstance(object, to->comparable) == 1)
        PyDict_SetItem(to->equals, object, object);
    return equal != NULL && Py_TYPE(equal) == Py_TYPE(object) ? equal : object;
}

/* Add an object by its address. */
static HOT int add_object(Reader *to, void *object)
{
    return add(to, (uint64_t)(uintptr_t)(to->equals == NULL ? object : equal_of(to, object)));
}

/* Add a value that is compiled in: numbers and tuples by value, all else as an object. */
static int add_constant(Reader *to, PyObject *value)
{
    PyTypeObject *cls = Py_TYPE(value);
    uint64_t word = 0;
    int failed = add_object(to, cls), tuple = cls == &PyTuple_Type;
    if (cls == &PyLong_Type)
        word = (uint64_t)PyLong_AsLongLongAndOverflow(value, &failed);
    else if (cls == &PyFloat_Type) {
        double number = PyFloat_AsDouble(value);
        memcpy(&word, &number, sizeof word);
    } else if (!tuple)
        return failed | add_object(to, value);
    failed |= add(to, tuple ? (uint64_t)PyTuple_Size(value) : word);
    for (Py_ssize_t i = 0; tuple && !failed && i < PyTuple_Size(value); i++)
        failed = add_constant(to, PyTuple_GetItem(value, i));
    return failed;
}

/* Add element type, layout and ranks of a descriptor to the key. */
static int add_descriptor(Reader *to, PyObject *value, PyObject *fields, PyObject *base, Key *key)
{
    OWNED PyObject *layout = field(value, fields, names[LAYOUT]);
    int64_t sizes[RANK];
    View view;
    int rank = read_field(value, fields, BLOCK_SHAPE, sizes);
    if (layout == NULL || rank < 1 || key->strides[(key->flags & 15) - 1] != 1 || !view_of(base, &view))
        return -1;
    key->address = start_of(&view);
    int failed = add_object(to, Py_TYPE(base)) | add(to, word_of_view(&view, 0)) | add_object(to, layout) |
                 add(to, key->flags & 15) | add(to, (uint64_t)rank);
    for (int i = 0; i < rank; i++)
        failed |= add(to, (uint64_t)sizes[i]);
    return failed;
}

/* Read a descriptor: the facts of its map into `keys`. */
static __attribute__((noinline)) int read_descriptor(Reader *to, PyObject *value)
{
    OWNED PyObject *fields = fields_of(value), *base = field(value, fields, names[BASE]);
    if (base == NULL || to->descriptors == MAX_MAPS)
        return -1;
    Key *key = &to->keys[to->descriptors++];
    to->placed = 1;
    memset(key, 0, sizeof *key);
    if (read_fields(value, fields, key) < 0 ||
        (to->rules == NULL ? address_of(base, &key->address) : add_descriptor(to, value, fields, base, key)))
        return -1;
    return add_leaf(to, value, DESCRIPTOR, key->address);
}

/* Return a class of integers that the same integer types hold. */
static int width_of(long long number)
{
    static const int most[] = {0, 1, 7, 8, 15, 16, 31, 32};
    unsigned long long left = (unsigned long long)(number < 0 ? ~number : number);
    int bits = left ? 64 - __builtin_clzll(left) : 0, class = number < 0 ? 16 : 0;
    for (size_t i = 0; i < sizeof most / sizeof *most; i++)
        class += bits > most[i];
    return class;
}

/* Read an integer: the facts that the rules name. */
static int read_number(Reader *to, PyObject *value, int flags)
{
    const Rules *rules = to->rules;
    int overflow;
    long long number = PyLong_AsLongLongAndOverflow(value, &overflow);
    if ((overflow && rules != NULL) || add_leaf(to, value, overflow ? PLAIN : NUMBER, (uint64_t)number))
        return -1;
    if (rules == NULL)
        return 0;
    int wide = number < rules->least || number > rules->most;
    int even = (flags & SPECIALIZE) && (flags & ALIGN) && !(number & rules->divides);
    int one = (flags & SPECIALIZE) && number == rules->constant;
    int width = flags & WIDTH ? width_of(number) : 0;
    return add(to, (uint64_t)(wide | even << 1 | one << 2 | width << 3));
}

/* Read whether the storage of a tensor is small, which Python says. */
static int add_size(Reader *to, PyObject *value)
{
    OWNED PyObject *answer = PyObject_CallFunctionObjArgs(to->is_small, value, NULL);
    return answer == NULL || add(to, answer == Py_True);
}

/* Read one argument: its class, and the facts that the choice depends on. Below 0 where C does not know it; then there may be an exception, too. */
static int read_value(Reader *to, PyObject *value, int flags)
{
    PyTypeObject *cls = Py_TYPE(value);
    View view;
    if (flags & CONSTANT)
        return add_leaf(to, value, PLAIN, 0) || add_constant(to, value) ? -1 : 0;
    if (add_object(to, cls))
        return -1;
    if (cls == &PyLong_Type)
        return read_number(to, value, flags);
    if (view_of(value, &view)) {
        uint64_t divides = to->rules != NULL && (flags & SPECIALIZE) && (flags & ALIGN) ? (uint64_t)to->rules->divides : 0;
        if (add_leaf(to, value, ADDRESS, start_of(&view)) ||
            (to->is_small != NULL && flags & SPECIALIZE && add_size(to, value)))
            return -1;
        to->placed = 1;
        return add(to, word_of_view(&view, divides));
    }
    if (cls == &PyFloat_Type || cls == &PyBool_Type || value == Py_None)
        return add_leaf(to, value, PLAIN, 0);
    if (PyTuple_Check(value)) {
        Py_ssize_t count = PyTuple_Size(value);
        int failed = add(to, (uint64_t)count);
        for (Py_ssize_t i = 0; i < count && !failed; i++)
            failed = read_value(to, PyTuple_GetItem(value, i), (flags & WIDTH) | SPECIALIZE | ALIGN);
        return failed ? -1 : 0;
    }
    if (is_descriptor(value))
        return read_descriptor(to, value);
    return to->rules == NULL ? add_leaf(to, value, PLAIN, 0) : -1;
}

static int read_option(Reader *to, PyObject *name, PyObject *value)
{
    PyTypeObject *cls = Py_TYPE(value);
    if (cls != &PyLong_Type && cls != &PyBool_Type && cls != &PyUnicode_Type && value != Py_None)
        return -1;
    return add_object(to, name) || add_constant(to, value) ? -1 : 0;
}
