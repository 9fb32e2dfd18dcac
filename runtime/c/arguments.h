/* The arguments of a launch: scalars, tensors and descriptors as the driver wants them. Part of engine.c, which
 * includes it. */

/* Everything that a map depends on. Unused words are 0. */
typedef struct {
    uint32_t number, flags;
    uint64_t address;
    int64_t shape[RANK], strides[RANK];
} Key;
#define FLAG_NAN 1
#define FLAG_ROUND 2

typedef struct {
    Key key;
    unsigned char map[MAP_BYTES];
} Entry;

/* Descriptors come again and again with the same tensor, from fresh objects too: two places for
 * each key, no allocation. The interpreter's lock protects it. */
static Entry cache[CACHE_SIZE];

typedef struct {
    LaunchEx call;
    void *function;
    Config config;       /* all but grid and stream */
    unsigned int ctas;   /* blocks per cluster multiply the grid */
    Py_ssize_t count;    /* arguments, constexprs included */
    Py_ssize_t least;    /* without the constexprs at the end */
    PyObject *again;     /* again(status, sizes, stream, *arguments) when the driver refuses */
    PyObject *allocate;  /* allocate(programs, stream) -> (address, address, owners), or NULL */
    PyObject *encode;    /* encode(number, descriptor) -> bytes, what C leaves to it; or NULL */
    EncodeTiled encode_tiled; /* or NULL */
    int unmark;               /* clear the mark of small tensors, see descriptor.py */
    /* a bound handle only */
    PyObject *sizes, *stream_of, *device, *fallback;
    unsigned int grid[3]; /* what `sizes` says */
    int (*current_device)(int *index); /* cuCtxGetDevice; NULL where there is one device */
    int index;                         /* what `device` says */
    MapKind maps[MAX_MAPS];
    char kinds[MAX_KINDS + 1]; /* ends with 0 */
} Launch;

/* The arguments of one launch as the driver wants them. */
typedef struct {
    void *parameters[MAX_VALUES];
    uint64_t slots[MAX_VALUES];
    _Alignas(64) unsigned char maps[MAX_MAPS][MAP_BYTES];
    int used, map;
} Packed;

static PyObject *self_name, *data_ptr_name, *base_name, *shape_name, *strides_name, *padding_name, *round_name;

static void destroy(PyObject *capsule)
{
    Launch *self = PyCapsule_GetPointer(capsule, "gluon.launch");
    if (self == NULL)
        return;
    Py_XDECREF(self->again);
    Py_XDECREF(self->allocate);
    Py_XDECREF(self->encode);
    Py_XDECREF(self->sizes);
    Py_XDECREF(self->stream_of);
    Py_XDECREF(self->device);
    Py_XDECREF(self->fallback);
    PyMem_Free(self);
}

static int signed_value(PyObject *value, int bits, int64_t *out)
{
    long long read = PyLong_AsLongLong(value);
    if (read == -1 && PyErr_Occurred())
        return -1;
    if (bits < 64 && (read < -(1LL << (bits - 1)) || read >= (1LL << (bits - 1)))) {
        PyErr_Format(PyExc_OverflowError, "%R does not fit %d bits", value, bits);
        return -1;
    }
    *out = read;
    return 0;
}

static int unsigned_value(PyObject *value, int bits, uint64_t *out)
{
    unsigned long long read = PyLong_AsUnsignedLongLong(value);
    if (read == (unsigned long long)-1 && PyErr_Occurred())
        return -1;
    if (bits < 64 && read >> bits) {
        PyErr_Format(PyExc_OverflowError, "%R does not fit %d unsigned bits", value, bits);
        return -1;
    }
    *out = read;
    return 0;
}

/* DLPack's table of functions, version 1: DLPackExchangeAPI and what it refers to. */
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

/* Exact classes of tensors whose library offers that table; they live as long as the process. */
static struct {
    PyTypeObject *cls;
    ReadView read;
} tensors[MAX_TENSORS];
static int tensors_known;
static int (*streams)(int32_t device_type, int32_t index, void **out); /* of that library */

/* 1 after reading a tensor of a known class, 0 for other objects and for tensors without memory. */
static int view_of(PyObject *value, View *out)
{
    PyTypeObject *cls = Py_TYPE(value);
    int i;
    for (i = 0; i < tensors_known; i++)
        if (tensors[i].cls == cls) {
            if (tensors[i].read(value, out) == 0)
                return 1;
            PyErr_Clear(); /* data_ptr() says what is wrong */
            return 0;
        }
    return 0;
}

/* The current stream of a device: `stream_of(device)` tells; where that is None, the library of the
 * tensors, which then was seen to give the same. */
static int find_stream(PyObject *stream_of, PyObject *device, void **out)
{
    PyObject *stream;
    if (stream_of == Py_None)
        return streams(DEVICE_CUDA, (int32_t)PyLong_AsLong(device), out);
    stream = PyObject_CallFunctionObjArgs(stream_of, device, NULL);
    if (stream == NULL)
        return -1;
    *out = (void *)(uintptr_t)PyLong_AsUnsignedLongLong(stream);
    Py_DECREF(stream);
    return PyErr_Occurred() ? -1 : 0;
}

static uint64_t start_of(const View *view)
{
    return (uint64_t)(uintptr_t)view->data + view->byte_offset;
}

static int address_of(PyObject *value, uint64_t *out)
{
    PyObject *address;
    View view;
    if (PyLong_CheckExact(value)) {
        *out = PyLong_AsUnsignedLongLong(value);
        return *out == (uint64_t)-1 && PyErr_Occurred() ? -1 : 0;
    }
    if (value == Py_None) {
        *out = 0;
        return 0;
    }
    if (view_of(value, &view)) {
        *out = start_of(&view);
        return 0;
    }
    address = PyObject_CallMethodObjArgs(value, data_ptr_name, NULL);
    if (address == NULL)
        return -1;
    *out = PyLong_AsUnsignedLongLong(address);
    Py_DECREF(address);
    return *out == (uint64_t)-1 && PyErr_Occurred() ? -1 : 0;
}

/* One argument into an 8-byte slot; little-endian, so narrow types sit at its start. */
static int read_argument(char kind, PyObject *value, void *slot)
{
    double real;
    float single;
    switch (kind) {
    case 'P':
        return address_of(value, slot);
    case 'i': /* most of them */
        return signed_value(value, 32, slot);
    case 'f':
    case 'd':
        real = PyFloat_AsDouble(value);
        if (real == -1.0 && PyErr_Occurred())
            return -1;
        single = (float)real;
        if (kind == 'f')
            memcpy(slot, &single, sizeof single);
        else
            memcpy(slot, &real, sizeof real);
        return 0;
    default: /* as the struct module: upper case is unsigned */
        return kind < 'a' ? unsigned_value(value, letter_bits(kind), slot)
                          : signed_value(value, letter_bits(kind), slot);
    }
}

/* Calls a function of Python with the arguments of a call from there. */
static PyObject *call_python(PyObject *function, PyObject *const *args, Py_ssize_t count, PyObject *keywords)
{
    PyObject *result = NULL, *positional = PyTuple_New(count), *rest = NULL;
    Py_ssize_t i, named = keywords == NULL ? 0 : PyTuple_Size(keywords);
    if (named)
        rest = PyDict_New();
    if (positional != NULL && (rest != NULL || !named)) {
        for (i = 0; i < count; i++) {
            Py_INCREF(args[i]);
            PyTuple_SetItem(positional, i, args[i]);
        }
        for (i = 0; i < named; i++)
            if (PyDict_SetItem(rest, PyTuple_GetItem(keywords, i), args[count + i]) < 0)
                break;
        if (i == named)
            result = PyObject_Call(function, positional, rest);
    }
    Py_XDECREF(positional);
    Py_XDECREF(rest);
    return result;
}

static PyObject *refuse(Launch *self, int status, PyObject *sizes, void *on,
                        PyObject *const *arguments, Py_ssize_t count)
{
    PyObject *code, *stream, *all, *result;
    Py_ssize_t i;
    all = PyTuple_New(3 + self->count);
    if (all == NULL)
        return NULL;
    code = PyLong_FromLong(status);
    stream = PyLong_FromVoidPtr(on);
    if (code == NULL || stream == NULL) {
        Py_XDECREF(code);
        Py_DECREF(all);
        return NULL;
    }
    Py_INCREF(sizes);
    PyTuple_SetItem(all, 0, code);
    PyTuple_SetItem(all, 1, sizes);
    PyTuple_SetItem(all, 2, stream);
    for (i = 0; i < self->count; i++) {
        PyObject *argument = i < count ? arguments[i] : Py_None; /* a constexpr: nobody asks */
        Py_INCREF(argument);
        PyTuple_SetItem(all, 3 + i, argument);
    }
    result = PyObject_CallObject(self->again, all);
    Py_DECREF(all);
    return result;
}

/* A field of a descriptor, by its own dictionary where it is there: half the time of an attribute. */
static PyObject *field(PyObject *descriptor, PyObject *fields, PyObject *name)
{
    PyObject *value = fields == NULL ? NULL : PyDict_GetItemWithError(fields, name);
    if (value == NULL)
        return PyObject_GetAttr(descriptor, name);
    Py_INCREF(value);
    return value;
}

static PyObject *fields_of(PyObject *descriptor)
{
    PyObject *fields = PyObject_GenericGetDict(descriptor, NULL);
    if (fields == NULL)
        PyErr_Clear();
    return fields;
}

/* `rank` integers of a sequence; `values` is a new reference that is given up. */
static int read_extents(PyObject *values, int rank, int64_t *out)
{
    int i;
    int list = values != NULL && PyList_Check(values);
    Py_ssize_t count = values == NULL ? -1 : list ? PyList_Size(values) : PySequence_Size(values);
    if (count != rank && !PyErr_Occurred())
        PyErr_Format(PyExc_ValueError, "the kernel was compiled for a descriptor of rank %d, not %zd",
                     rank, count);
    if (count != rank) {
        Py_XDECREF(values);
        return -1;
    }
    for (i = 0; i < rank; i++) {
        PyObject *item;
        if (list || PyTuple_Check(values)) {
            item = list ? PyList_GetItem(values, i) : PyTuple_GetItem(values, i);
            Py_XINCREF(item);
        } else {
            item = PySequence_GetItem(values, i);
        }
        if (item == NULL)
            break;
        out[i] = PyLong_AsLongLong(item);
        Py_DECREF(item);
        if (out[i] == -1 && PyErr_Occurred())
            break;
    }
    Py_DECREF(values);
    return i == rank ? 0 : -1;
}

/* What a map depends on besides the address and the kind. */
static int read_fields(PyObject *descriptor, PyObject *fields, int rank, Key *key)
{
    PyObject *padding, *round;
    int rounds;
    if (read_extents(field(descriptor, fields, shape_name), rank, key->shape) ||
        read_extents(field(descriptor, fields, strides_name), rank, key->strides))
        return -1;
    padding = field(descriptor, fields, padding_name);
    if (padding == NULL)
        return -1;
    if (PyUnicode_Check(padding) && PyUnicode_CompareWithASCIIString(padding, "nan") == 0)
        key->flags |= FLAG_NAN;
    Py_DECREF(padding);
    round = field(descriptor, fields, round_name);
    if (round == NULL)
        return -1;
    rounds = PyObject_IsTrue(round);
    Py_DECREF(round);
    if (rounds < 0)
        return -1;
    if (rounds)
        key->flags |= FLAG_ROUND;
    return 0;
}

static int read_key(const MapKind *kind, PyObject *descriptor, Key *key)
{
    PyObject *base, *fields = fields_of(descriptor);
    int failed;
    memset(key, 0, sizeof *key);
    base = field(descriptor, fields, base_name);
    failed = base == NULL || address_of(base, &key->address) ||
             read_fields(descriptor, fields, kind->rank, key);
    Py_XDECREF(base);
    Py_XDECREF(fields);
    return failed ? -1 : 0;
}

static uint32_t hash_of(const Key *key)
{
    const uint64_t *words = (const uint64_t *)key;
    uint64_t hash = 0xcbf29ce484222325u;
    size_t i;
    for (i = 0; i < sizeof *key / sizeof *words; i++)
        hash = (hash ^ words[i]) * 0x100000001b3u ^ hash >> 29;
    return (uint32_t)(hash ^ hash >> 32) % CACHE_SIZE;
}

/* One descriptor: its map, then shape and strides. */
static int put_descriptor(const Launch *self, PyObject *descriptor, Key *key, Packed *to)
{
    const MapKind *kind = &self->maps[to->map];
    unsigned char *map = to->maps[to->map];
    Entry *entry;
    uint32_t place;
    int i;
    key->number = kind->number;
    place = hash_of(key);
    entry = &cache[place];
    if (!kind->tiled || memcmp(&entry->key, key, sizeof *key) != 0) {
        Entry *other = &cache[place ^ 1];
        if (kind->tiled && memcmp(&other->key, key, sizeof *key) == 0) {
            entry = other;
        } else {
            int known = kind->tiled && self->encode_tiled != NULL &&
                        encode_map(self->encode_tiled, kind, key->address,
                                   (const uint64_t *)key->shape, (const uint64_t *)key->strides,
                                   key->flags & FLAG_ROUND, key->flags & FLAG_NAN, self->unmark,
                                   map) == 0;
            if (!known) { /* im2col, no such driver, or a refusal: Python knows, or says why */
                char *bytes;
                Py_ssize_t size;
                PyObject *made = PyObject_CallFunction(self->encode, "iO", to->map, descriptor);
                if (made == NULL || PyBytes_AsStringAndSize(made, &bytes, &size) < 0 ||
                    size != MAP_BYTES) {
                    if (!PyErr_Occurred())
                        PyErr_SetString(PyExc_ValueError, "a tensor map has 128 bytes");
                    Py_XDECREF(made);
                    return -1;
                }
                memcpy(map, bytes, MAP_BYTES);
                Py_DECREF(made);
            }
            if (kind->tiled) {
                if (entry->key.number && !other->key.number)
                    entry = other;
                entry->key = *key;
                memcpy(entry->map, map, MAP_BYTES);
            }
            entry = NULL;
        }
    }
    if (entry != NULL)
        memcpy(map, entry->map, MAP_BYTES);
    to->map++;
    to->parameters[to->used++] = map;
    for (i = 0; i < kind->rank; i++, to->used++) {
        to->slots[to->used] = (uint64_t)key->shape[i]; /* int32: the start of the slot */
        to->parameters[to->used] = &to->slots[to->used];
    }
    for (i = 0; i < kind->rank; i++, to->used++) {
        to->slots[to->used] = (uint64_t)key->strides[i];
        to->parameters[to->used] = &to->slots[to->used];
    }
    return 0;
}
