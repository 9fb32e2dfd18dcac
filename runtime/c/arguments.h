/* The arguments of a launch: scalars, tensors and descriptors as the driver wants them. Part of engine.c. */

/* OWNED variables give their references back at the end of their scope, but for one that was `moved` out. */
#define OWNED __attribute__((cleanup(give_back)))
static inline void give_back(PyObject **reference)
{
    Py_XDECREF(*reference);
}

static inline PyObject *moved(PyObject **reference)
{
    PyObject *object = *reference;
    *reference = NULL;
    return object;
}

/* Functions of every hit: without this the compiler leaves some of them out of line, which costs 4 % of a launch. */
#define HOT inline __attribute__((always_inline))
/* Functions that come before hits: the code of hits is closer together without them, a percent or two of a launch. */
#define COLD __attribute__((cold))

/* Everything that a map depends on. Unused words are 0. */
typedef struct {
    uint32_t number, flags;
    uint64_t address;
    int64_t shape[RANK], strides[RANK];
} Key;
#define FLAG_NAN 16 /* the lower bits are the rank */
#define FLAG_ROUND 32

/* A compiled kernel on a device; see `content`. */
typedef struct {
    PyObject *device;
    int index;                         /* the same */
    int (*current_device)(int *index); /* cuCtxGetDevice; NULL where there is one device */
    LaunchEx call;
    PyObject *stand_in; /* where `call` is NULL: f(address of a Config, address of the parameters) -> status */
    void *function;
    Config config;            /* all but grid and stream; the attributes are the next: */
    Attribute attributes[MOST_ATTRIBUTES];
    unsigned int ctas;        /* blocks per cluster multiply the grid */
    Py_ssize_t count, least;  /* arguments, with all constants and without those at the end */
    PyObject *allocate;       /* allocate(programs, stream) -> (address, address, owners), or None */
    PyObject *encode;         /* encode(number, descriptor) -> bytes for maps that C leaves to it, or None */
    EncodeTiled encode_tiled; /* or NULL */
    int unmark;               /* clear the mark of small tensors, see descriptor.py */
    MapKind maps[MAX_MAPS];         /* of descriptors, then of the programs: */
    const int64_t *programs, *end; /* of `put_made` */
    int flat;                  /* no argument is a tuple or a descriptor */
    char kinds[MAX_KINDS + 1]; /* ends with 0 */
} Launch;

/* Attributes of objects of Python; PyInit__engine interns them. */
enum { ARRAY_STRUCT, BASE, BLOCK_SHAPE, DATA_PTR, DICT, ENTRY, IS_NEG, LAYOUT, PADDING, ROUND, RUN, SELF, SHAPE, STRIDES, NAMES };
static const char *const texts[NAMES] = {
    "__array_struct__", "base",    "block_shape",       "data_ptr", "__dict__", "entry", "is_neg",
    "layout",           "padding", "round_f32_to_tf32", "run",      "__self__", "shape", "strides"};
static PyObject *names[NAMES];

/* Return the structure in a tuple, which also owns its objects. */
static const void *content(PyObject *tuple, size_t size)
{
    PyObject *bytes = PyTuple_GetItem(tuple, 0);
    if (bytes != NULL && PyBytes_Size(bytes) == (Py_ssize_t)size)
        return PyBytes_AsString(bytes);
    PyErr_SetString(PyExc_TypeError, "not an object of the launch engine");
    return NULL;
}

/* Return whether an integer parameter holds a number; its letter is that of the struct module, where upper case is unsigned. */
static inline int holds(char letter, long long number)
{
    int bits = letter_bits(letter);
    if (letter >= 'a')
        return bits == 64 || (number >= -(1LL << (bits - 1)) && number < 1LL << (bits - 1));
    return number >= 0 && (bits == 64 || number >> bits == 0);
}

/* Read an integer; below 0, with or without an exception, where it does not fit: Python says why. */
static inline int read_integer(PyObject *value, char letter, uint64_t *out)
{
    *out = letter == 'Q' ? PyLong_AsUnsignedLongLong(value) : (uint64_t)PyLong_AsLongLong(value);
    if (*out == UINT64_MAX && PyErr_Occurred())
        return -1;
    return letter == 'Q' || holds(letter, (long long)*out) ? 0 : -1;
}

/* DLPack's table of functions, version 1: DLPackExchangeAPI and the types in it. */
typedef struct {
    uint8_t code, bits;
    uint16_t lanes;
} DataType;

typedef struct {
    void *data;
    struct {
        int32_t type, index;
    } device;
    int32_t rank;
    DataType dtype;
    int64_t *shape, *strides;
    uint64_t byte_offset;
} View;

typedef int (*ReadView)(void *object, View *out);

typedef struct {
    uint32_t major, minor;
    void *previous;
    void *allocate, *take, *give;
    ReadView read;
    int (*current_stream)(int32_t device_type, int32_t index, void **out);
} Exchange;

/* NumPy's PyArrayInterface, which `__array_struct__` gives in a capsule. */
typedef struct {
    int two, rank;
    char kind;
    int item, flags;
    int64_t *shape, *strides;
    void *data;
} Array;
#define USABLE 0x601 /* C-contiguous, in native byte order, writable */

/* Read an array of NumPy that kernels can work on in place; without its sizes, which the capsule holds. */
static int read_array(void *object, View *out)
{
    OWNED PyObject *capsule = PyObject_GetAttr(object, names[ARRAY_STRUCT]);
    const Array *array = capsule == NULL ? NULL : PyCapsule_GetPointer(capsule, NULL);
    const char *kinds = "iufb", *kind = array == NULL ? NULL : strchr(kinds, array->kind);
    if (kind == NULL || (array->flags & USABLE) != USABLE)
        return -1;
    *out = (View){.data = array->data, .device = {DEVICE_CPU, 0}, .rank = array->rank,
                  .dtype = {(uint8_t)(kind - kinds), (uint8_t)(8 * array->item), 1}};
    return 0;
}

/* Exact classes of arrays, of tensors whose library offers that table, and of descriptors, which have no `read`; they live as long as the process. */
static struct {
    PyTypeObject *cls;
    ReadView read;
} classes[MAX_CLASSES];
static int classes_known;
static int (*streams)(int32_t device_type, int32_t index, void **out); /* of the library of the tensors */

/* Return the place of a class among these, below 0 for any other. */
static inline int class_of(const PyTypeObject *cls)
{
    for (int i = 0; i < classes_known; i++)
        if (classes[i].cls == cls)
            return i;
    return -1;
}

/* Know one class more; 0 where there is no room. */
static int add_class(PyTypeObject *cls, ReadView read)
{
    if (classes_known == MAX_CLASSES)
        return 0;
    Py_INCREF(cls); /* for good */
    classes[classes_known].cls = cls;
    classes[classes_known++].read = read;
    return 1;
}

/* Return whether an object describes a tensor; its class is known from now on. */
static int is_descriptor(PyObject *value)
{
    return class_of(Py_TYPE(value)) >= 0 || (PyObject_HasAttr(value, names[BLOCK_SHAPE]) &&
                                             PyObject_HasAttr(value, names[BASE]) && (add_class(Py_TYPE(value), NULL), 1));
}

/* Return whether a tensor is the negative of its memory, as the imaginary part of torch's conjugates does. */
static COLD int is_negative(PyObject *tensor)
{
    OWNED PyObject *answer = PyObject_CallMethodObjArgs(tensor, names[IS_NEG], NULL);
    return answer != Py_False;
}

#define IS_DENSE(view, axis) ((view)->strides[axis] == 1 && (view)->shape[axis] > 1) /* one element's stride says nothing */
/* 1 after reading a tensor of a known class, 0 for other objects, tensors without memory and negatives of it. */
static int view_of(PyObject *value, View *out)
{
    int i = class_of(Py_TYPE(value));
    if (i < 0 || classes[i].read == NULL)
        return 0;
    if (classes[i].read(value, out) == 0 && /* no parts of complex numbers are side by side */
        (out->strides == NULL || (out->rank > 0 && (IS_DENSE(out, 0) || IS_DENSE(out, out->rank - 1))) || !is_negative(value)))
        return 1;
    PyErr_Clear(); /* Python says why */
    return 0;
}

static uint64_t start_of(const View *view)
{
    return (uint64_t)(uintptr_t)view->data + view->byte_offset;
}

static int address_of(PyObject *value, uint64_t *out)
{
    View view;
    if (PyLong_CheckExact(value))
        return read_integer(value, 'Q', out);
    if (value == Py_None || view_of(value, &view))
        return *out = value == Py_None ? 0 : start_of(&view), 0;
    OWNED PyObject *address = PyObject_CallMethodObjArgs(value, names[DATA_PTR], NULL);
    return address == NULL ? -1 : read_integer(address, 'Q', out);
}

/* Return a tuple of values, after `first` where that is there. */
static PyObject *tuple_of(PyObject *first, PyObject *const *values, Py_ssize_t count)
{
    Py_ssize_t before = first != NULL;
    PyObject *tuple = PyTuple_New(before + count);
    for (Py_ssize_t i = -before; tuple != NULL && i < count; i++)
        PyTuple_SetItem(tuple, before + i, Py_NewRef(i < 0 ? first : values[i]));
    return tuple;
}

/* Call a function of Python with `first`, where that is there, and the arguments of a call from there. */
static PyObject *call_python(PyObject *function, PyObject *first, PyObject *const *args, Py_ssize_t count,
                             PyObject *keywords)
{
    OWNED PyObject *positional = tuple_of(first, args, count), *named = PyDict_New();
    if (positional == NULL || named == NULL)
        return NULL;
    for (Py_ssize_t i = 0; keywords != NULL && i < PyTuple_Size(keywords); i++)
        if (PyDict_SetItem(named, PyTuple_GetItem(keywords, i), args[count + i]) < 0)
            return NULL;
    return PyObject_Call(function, positional, named);
}

/* A field of a descriptor, by its own dictionary where it is there: half the time of an attribute. */
static PyObject *field(PyObject *descriptor, PyObject *fields, PyObject *name)
{
    PyObject *value = fields == NULL ? NULL : PyDict_GetItemWithError(fields, name);
    return value == NULL ? PyObject_GetAttr(descriptor, name) : Py_NewRef(value);
}

static PyObject *fields_of(PyObject *descriptor)
{
    PyObject *fields = PyObject_GenericGetDict(descriptor, NULL);
    if (fields == NULL)
        PyErr_Clear();
    return fields;
}

/* Read up to RANK integers of a sequence; return their number, or -1. */
static int read_extents(PyObject *values, int64_t *out)
{
    int list = !PyTuple_Check(values);
    OWNED PyObject *fast = list && !PyList_Check(values) ? PySequence_List(values) : Py_NewRef(values);
    Py_ssize_t count = fast == NULL ? -1 : list ? PyList_Size(fast) : PyTuple_Size(fast);
    for (Py_ssize_t i = 0; i < count && count <= RANK; i++) {
        out[i] = PyLong_AsLongLong(list ? PyList_GetItem(fast, i) : PyTuple_GetItem(fast, i));
        if (out[i] == -1 && PyErr_Occurred())
            return -1;
    }
    return count <= RANK ? (int)count : -1;
}

static int read_field(PyObject *descriptor, PyObject *fields, int name, int64_t *out)
{
    OWNED PyObject *values = field(descriptor, fields, names[name]);
    return values == NULL ? -1 : read_extents(values, out);
}

/* Read all that a map depends on besides the address and the kind. */
static int read_fields(PyObject *descriptor, PyObject *fields, Key *key)
{
    OWNED PyObject *padding = field(descriptor, fields, names[PADDING]), *round = field(descriptor, fields, names[ROUND]);
    int rank = read_field(descriptor, fields, SHAPE, key->shape), rounds = round == NULL ? -1 : PyObject_IsTrue(round);
    if (padding == NULL || rounds < 0 || rank < 1 || read_field(descriptor, fields, STRIDES, key->strides) != rank)
        return -1;
    int nan = PyUnicode_Check(padding) && PyUnicode_CompareWithASCIIString(padding, "nan") == 0;
    key->flags = (uint32_t)(rank | FLAG_NAN * nan | FLAG_ROUND * rounds);
    return 0;
}

/* Put one argument that is no descriptor; little-endian, so narrow types are at the start of their slots. */
static inline int put_argument(char kind, PyObject *value, Packed *to)
{
    uint64_t *slot = &to->slots[to->used];
    int failed = kind == 'P' ? address_of(value, slot) : is_real(kind) ? 0 : read_integer(value, kind, slot);
    if (kind != 'P' && is_real(kind)) {
        double real = PyFloat_AsDouble(value);
        failed = (real == -1.0 && PyErr_Occurred()) || write_real(kind, real, slot);
    }
    return failed ? -1 : (put(to, slot), 0);
}
