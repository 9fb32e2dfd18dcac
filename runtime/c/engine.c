/* The launch engine in C: reads the arguments, writes the parameter array, calls cuLaunchKernelEx; and
 * before it, for `kernel[grid](...)`, finds the compiled kernel that fits the arguments.
 *
 * Optional. It is built when the wheel is built and a C compiler is there; `gluon_runtime.calls` does
 * the same in Python where it is missing. Stable ABI of Python 3.10, no CUDA headers: the one driver
 * function it calls comes in by address.
 */
#define Py_LIMITED_API 0x030A0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <string.h>

#define VERSION 6      /* of this interface; native.py leaves any other alone */
#define MAX_KINDS 512  /* letters that describe the arguments, brackets of tuples included */
#define MAX_VALUES 512 /* parameters of the kernel, scratch memory included */
#define MAX_MAPS 16
#define RANK 5
#define MAP_BYTES 128
#define CACHE_SIZE 1024 /* tensor maps kept; a power of two */
#define DEVICE_CUDA 2   /* DLPack's number */
#define MAX_TENSORS 4   /* classes of tensors read without a call into Python */

/* CUlaunchConfig of the CUDA driver API, section Execution Control. */
typedef struct {
    unsigned int grid[3], block[3], shared;
    void *stream, *attributes;
    unsigned int number;
} Config;

typedef int (*LaunchEx)(const Config *, void *function, void **parameters, void **extra);

/* cuTensorMapEncodeTiled of the CUDA driver API, section Tensor Map Object Management. */
typedef int (*EncodeTiled)(void *map, int type, uint32_t rank, void *address, const uint64_t *shape,
                           const uint64_t *strides, const uint32_t *box, const uint32_t *steps,
                           int interleave, int swizzle, int promotion, int fill);
#define TYPE_TF32 11
#define PROMOTION_128B 2

/* How the kernel wants the map of one of its descriptors, see MapKind in descriptor.py. */
typedef struct {
    uint32_t number; /* equal for kinds that are equal, never 0 */
    int tiled, rank, swizzle, type, bytes, fp4_padded;
    uint32_t box[RANK]; /* fastest dimension first */
} MapKind;

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
    case 'b':
        return signed_value(value, 8, slot);
    case 'h':
        return signed_value(value, 16, slot);
    case 'i':
        return signed_value(value, 32, slot);
    case 'q':
        return signed_value(value, 64, slot);
    case 'B':
        return unsigned_value(value, 8, slot);
    case 'H':
        return unsigned_value(value, 16, slot);
    case 'I':
        return unsigned_value(value, 32, slot);
    case 'Q':
        return unsigned_value(value, 64, slot);
    default: /* 'f' and 'd' */
        real = PyFloat_AsDouble(value);
        if (real == -1.0 && PyErr_Occurred())
            return -1;
        if (kind == 'f') {
            single = (float)real;
            memcpy(slot, &single, sizeof single);
        } else {
            memcpy(slot, &real, sizeof real);
        }
        return 0;
    }
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

/* The map of `key` through the driver; the driver's status. */
static int encode_now(const Launch *self, const MapKind *kind, const Key *key, void *map)
{
    uint64_t shape[RANK], strides[RANK], reach = 0;
    uint32_t steps[RANK];
    int i, status, last = kind->rank - 1;
    for (i = 0; i <= last; i++) {
        shape[i] = (uint64_t)key->shape[last - i];
        if (i == 0 && kind->fp4_padded)
            shape[i] *= 2;
        if (i)
            strides[i - 1] = (uint64_t)key->strides[last - i] * (uint64_t)kind->bytes;
        steps[i] = 1;
        reach += (shape[i] - 1) * (i ? strides[i - 1] : (uint64_t)kind->bytes);
    }
    status = self->encode_tiled(map, key->flags & FLAG_ROUND ? TYPE_TF32 : kind->type,
                                (uint32_t)kind->rank, (void *)(uintptr_t)key->address, shape,
                                strides, kind->box, steps, 0, kind->swizzle, PROMOTION_128B,
                                key->flags & FLAG_NAN ? 1 : 0);
    if (status == 0 && self->unmark && reach + 1 < 128 * 1024)
        ((unsigned char *)map)[10] &= (unsigned char)~0x20; /* bit 21 of the second word */
    return status;
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
                        encode_now(self, kind, key, map) == 0;
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

static int read_descriptor(const Launch *self, PyObject *descriptor, Packed *to)
{
    Key key;
    if (read_key(&self->maps[to->map], descriptor, &key) < 0)
        return -1;
    return put_descriptor(self, descriptor, &key, to);
}

/* One argument; answers where the kind of the next one is, NULL after an error. */
static const char *pack(const Launch *self, const char *kind, PyObject *value, Packed *to)
{
    Py_ssize_t i;
    switch (*kind) {
    case 'x':
        return kind + 1;
    case 'T':
        return read_descriptor(self, value, to) < 0 ? NULL : kind + 1;
    case '(':
        if (!PyTuple_Check(value)) {
            PyErr_SetString(PyExc_TypeError, "the kernel was compiled for a tuple here");
            return NULL;
        }
        kind++;
        for (i = 0; *kind != ')'; i++) {
            PyObject *item = PyTuple_GetItem(value, i);
            if (item == NULL || (kind = pack(self, kind, item, to)) == NULL)
                return NULL;
        }
        return kind + 1;
    default:
        if (read_argument(*kind, value, &to->slots[to->used]) < 0)
            return NULL;
        to->parameters[to->used] = &to->slots[to->used];
        to->used++;
        return kind + 1;
    }
}

/* The pointers that close every list: global and profile scratch. What keeps them alive, or NULL
 * with or without an error. */
static PyObject *take_scratch(const Launch *self, const Config *config, Packed *to)
{
    int i;
    PyObject *found = NULL;
    uint64_t *slots = &to->slots[to->used];
    slots[0] = slots[1] = 0;
    to->parameters[to->used] = &slots[0];
    to->parameters[to->used + 1] = &slots[1];
    if (self->allocate == NULL)
        return NULL;
    found = PyObject_CallFunction(
        self->allocate, "KK",
        (unsigned long long)config->grid[0] * config->grid[1] * config->grid[2],
        (unsigned long long)(uintptr_t)config->stream);
    for (i = 0; found != NULL && i < 2; i++) {
        PyObject *item = PyTuple_GetItem(found, i);
        if (item != NULL)
            slots[i] = PyLong_AsUnsignedLongLong(item);
    }
    if (PyErr_Occurred())
        Py_CLEAR(found);
    return found;
}

/* The driver's status, below 0 with a Python exception. */
static int send(const Launch *self, Config *config, Packed *packed)
{
    int status;
    PyObject *owners = take_scratch(self, config, packed);
    if (owners == NULL && PyErr_Occurred())
        return -1;
    config->grid[0] *= self->ctas;
    Py_BEGIN_ALLOW_THREADS
    status = self->call(config, self->function, packed->parameters, NULL);
    Py_END_ALLOW_THREADS
    Py_XDECREF(owners);
    return status;
}

static int read_sizes(PyObject *sizes, unsigned int *grid)
{
    Py_ssize_t i;
    for (i = 0; i < 3; i++) {
        PyObject *item = PyTuple_GetItem(sizes, i);
        if (item == NULL)
            return -1;
        grid[i] = (unsigned int)PyLong_AsUnsignedLong(item);
    }
    return PyErr_Occurred() ? -1 : 0;
}

/* `sizes` says what `grid` does, for where the driver refuses; constexprs at the end may be missing. */
static PyObject *launch_now(Launch *self, const unsigned int *grid, PyObject *sizes, void *stream,
                            PyObject *const *arguments, Py_ssize_t count)
{
    Packed packed;
    Config config = self->config;
    const char *kind = self->kinds;
    Py_ssize_t i;
    int status;

    memcpy(config.grid, grid, sizeof config.grid);
    config.stream = stream;
    packed.used = packed.map = 0;
    for (i = 0; i < count; i++) {
        kind = pack(self, kind, arguments[i], &packed);
        if (kind == NULL)
            return NULL;
    }
    status = send(self, &config, &packed);
    if (status < 0)
        return NULL;
    if (status)
        return refuse(self, status, sizes, stream, arguments, count);
    Py_RETURN_NONE;
}

static PyObject *launch(PyObject *capsule, PyObject *const *args, Py_ssize_t count)
{
    void *stream;
    unsigned int grid[3];
    Launch *self = PyCapsule_GetPointer(capsule, "gluon.launch");
    if (self == NULL)
        return NULL;
    if (count != self->count + 2) {
        PyErr_Format(PyExc_TypeError, "the kernel takes %zd arguments, got %zd", self->count,
                     count - 2);
        return NULL;
    }
    stream = (void *)(uintptr_t)PyLong_AsUnsignedLongLong(args[1]);
    if (PyErr_Occurred() || read_sizes(args[0], grid) < 0)
        return NULL;
    return launch_now(self, grid, args[0], stream, args + 2, self->count);
}

/* The function written in Python: it knows defaults, keywords, another grid, and what is wrong. */
static PyObject *fall_back(Launch *self, PyObject *const *args, Py_ssize_t count,
                           PyObject *keywords)
{
    PyObject *result, *positional = PyTuple_New(count), *rest = PyDict_New();
    Py_ssize_t i, named = keywords == NULL ? 0 : PyTuple_Size(keywords);
    if (positional == NULL || rest == NULL)
        return NULL;
    for (i = 0; i < count; i++) {
        Py_INCREF(args[i]);
        PyTuple_SetItem(positional, i, args[i]);
    }
    for (i = 0; i < named; i++)
        PyDict_SetItem(rest, PyTuple_GetItem(keywords, i), args[count + i]);
    result = PyObject_Call(self->fallback, positional, rest);
    Py_DECREF(positional);
    Py_DECREF(rest);
    return result;
}

static PyObject *handle(PyObject *capsule, PyObject *const *args, Py_ssize_t count,
                        PyObject *keywords)
{
    PyObject *result;
    void *stream;
    int here;
    Launch *self = PyCapsule_GetPointer(capsule, "gluon.launch");
    if (self == NULL)
        return NULL;
    if (keywords != NULL || count < self->least || count > self->count)
        return fall_back(self, args, count, keywords);
    if (self->current_device != NULL &&
        (self->current_device(&here) != 0 || here != self->index))
        return fall_back(self, args, count, keywords);
    if (find_stream(self->stream_of, self->device, &stream) < 0)
        return NULL;
    result = launch_now(self, self->grid, self->sizes, stream, args, count);
    if (result == NULL && (PyErr_ExceptionMatches(PyExc_OverflowError) ||
                           PyErr_ExceptionMatches(PyExc_TypeError) ||
                           PyErr_ExceptionMatches(PyExc_AttributeError))) {
        PyErr_Clear(); /* a value that does not fit: nothing was launched */
        return fall_back(self, args, count, keywords);
    }
    return result;
}

static PyMethodDef launch_method = {"launch", (PyCFunction)(void (*)(void))launch, METH_FASTCALL,
                                    "launch(sizes, stream, *arguments)"};
static PyMethodDef handle_method = {"handle", (PyCFunction)(void (*)(void))handle,
                                    METH_FASTCALL | METH_KEYWORDS, "handle(*arguments)"};

static PyObject *wrap(Launch *self, PyMethodDef *method)
{
    PyObject *result, *capsule = PyCapsule_New(self, "gluon.launch", destroy);
    if (capsule == NULL) {
        PyMem_Free(self);
        return NULL;
    }
    result = PyCFunction_NewEx(method, capsule, NULL);
    Py_DECREF(capsule);
    return result;
}

static int read_map_kind(PyObject *fields, MapKind *kind)
{
    long values[7 + RANK];
    Py_ssize_t i, count = PyTuple_Size(fields);
    if (count < 8 || count > 7 + RANK) {
        PyErr_SetString(PyExc_ValueError, "not a kind of tensor map");
        return -1;
    }
    memset(kind, 0, sizeof *kind);
    for (i = 0; i < count; i++) {
        values[i] = PyLong_AsLong(PyTuple_GetItem(fields, i));
        if (PyErr_Occurred())
            return -1;
        if (i >= 7)
            kind->box[i - 7] = (uint32_t)values[i];
    }
    kind->number = (uint32_t)values[0];
    kind->tiled = (int)values[1];
    kind->rank = (int)values[2];
    kind->swizzle = (int)values[3];
    kind->type = (int)values[4];
    kind->bytes = (int)values[5];
    kind->fp4_padded = (int)values[6];
    if (kind->rank < 1 || kind->rank > RANK || (kind->tiled && kind->rank != count - 7)) {
        PyErr_SetString(PyExc_ValueError, "not a rank of tensor maps");
        return -1;
    }
    return 0;
}

static PyObject *make(PyObject *module, PyObject *args)
{
    unsigned long long call, function, attributes, encode_tiled;
    unsigned int block, shared, number, ctas;
    const char *kinds;
    Py_ssize_t length, count, i;
    PyObject *again, *allocate, *maps, *encode;
    int unmark;
    Launch *self;
    if (!PyArg_ParseTuple(args, "KKIIKIIs#nOOO!OKp", &call, &function, &block, &shared,
                          &attributes, &number, &ctas, &kinds, &length, &count, &again, &allocate,
                          &PyTuple_Type, &maps, &encode, &encode_tiled, &unmark))
        return NULL;
    if (length > MAX_KINDS || PyTuple_Size(maps) > MAX_MAPS) {
        PyErr_SetString(PyExc_ValueError, "too many arguments");
        return NULL;
    }
    self = PyMem_Calloc(1, sizeof *self);
    if (self == NULL)
        return PyErr_NoMemory();
    for (i = 0; i < PyTuple_Size(maps); i++)
        if (read_map_kind(PyTuple_GetItem(maps, i), &self->maps[i]) < 0) {
            PyMem_Free(self);
            return NULL;
        }
    self->call = (LaunchEx)(uintptr_t)call;
    self->function = (void *)(uintptr_t)function;
    self->config.block[0] = block;
    self->config.block[1] = self->config.block[2] = 1;
    self->config.shared = shared;
    self->config.attributes = (void *)(uintptr_t)attributes;
    self->config.number = number;
    self->ctas = ctas;
    self->count = count;
    self->encode_tiled = (EncodeTiled)(uintptr_t)encode_tiled;
    self->unmark = unmark;
    memcpy(self->kinds, kinds, (size_t)length);
    for (self->least = count; length > 0 && self->least > 0 && kinds[length - 1] == 'x'; length--)
        self->least--;
    Py_INCREF(again);
    self->again = again;
    if (allocate != Py_None) {
        Py_INCREF(allocate);
        self->allocate = allocate;
    }
    if (encode != Py_None) {
        Py_INCREF(encode);
        self->encode = encode;
    }
    return wrap(self, &launch_method);
}

static PyObject *bind(PyObject *module, PyObject *args)
{
    PyObject *from, *capsule, *sizes, *stream_of, *device, *fallback;
    Launch *source, *self;
    unsigned long long current_device;
    unsigned int grid[3];
    if (!PyArg_ParseTuple(args, "OO!OO!OK", &from, &PyTuple_Type, &sizes, &stream_of, &PyLong_Type,
                          &device, &fallback, &current_device) ||
        read_sizes(sizes, grid) < 0)
        return NULL;
    capsule = PyObject_GetAttrString(from, "__self__");
    if (capsule == NULL)
        return NULL;
    source = PyCapsule_GetPointer(capsule, "gluon.launch");
    Py_DECREF(capsule);
    if (source == NULL)
        return NULL;
    self = PyMem_Calloc(1, sizeof *self);
    if (self == NULL)
        return PyErr_NoMemory();
    *self = *source;
    memcpy(self->grid, grid, sizeof grid);
    self->sizes = sizes;
    self->stream_of = stream_of;
    self->device = device;
    self->fallback = fallback;
    self->current_device = (int (*)(int *))(uintptr_t)current_device;
    self->index = (int)PyLong_AsLong(device);
    Py_INCREF(self->again);
    Py_XINCREF(self->allocate);
    Py_XINCREF(self->encode);
    Py_INCREF(sizes);
    Py_INCREF(stream_of);
    Py_INCREF(device);
    Py_INCREF(fallback);
    return wrap(self, &handle_method);
}

static PyObject *forget_maps(PyObject *module, PyObject *unused)
{
    memset(cache, 0, sizeof cache);
    Py_RETURN_NONE;
}

#include "calls.h"

static PyMethodDef methods[] = {
    {"forget_maps", forget_maps, METH_NOARGS,
     "forget_maps()\n\nEncode every descriptor anew when it comes next."},
    {"make", make, METH_VARARGS,
     "make(call, function, block, shared, attributes, number, ctas, kinds, count, again, allocate,\n"
     "maps, encode, encode_tiled, unmark)\n\n"
     "A `launch(sizes, stream, *arguments)` of one loaded kernel with `count` arguments. `kinds` has\n"
     "one letter per argument: P for pointers, T for descriptors, x for constexprs, else that of the\n"
     "struct module; those of a tuple stand in parentheses."},
    {"bind", bind, METH_VARARGS,
     "bind(launch, sizes, stream_of, device, fallback, current_device)\n\n"
     "A `handle(*arguments)` that launches over `sizes` on `stream_of(device)`; calls with keywords,\n"
     "with another number of arguments (constexprs at the end may be left out), or while\n"
     "cuCtxGetDevice, whose address `current_device` is, names another device (0: there is no other)\n"
     "go to `fallback`."},
    {"current_stream", current_stream, METH_O,
     "current_stream(index)\n\nThe stream of a device, of the library whose tensors were taught; None\n"
     "where it does not tell. Where it does, None stands for a `stream_of`."},
    {"describe", (PyCFunction)(void (*)(void))describe, METH_FASTCALL,
     "describe(base, block_shape, layout, padding, rounded)\n\n"
     "The descriptor of all of a tensor where one like it was learnt, else None."},
    {"learn_descriptor", learn_descriptor, METH_VARARGS,
     "learn_descriptor(made, fields)\n\n"
     "Describe tensors like that of `made` without checking; False where C cannot tell them."},
    {"teach", teach, METH_O,
     "teach(cls)\n\nRead tensors of exactly this class through DLPack's table of functions, which the\n"
     "class must offer; False where it does not."},
    {NULL, NULL, 0, NULL}};

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_engine", NULL, -1, methods,
                                        NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__engine(void)
{
    PyObject *calls, *module = PyModule_Create(&definition);
    base_key = PyUnicode_InternFromString("base");
    block_shape_key = PyUnicode_InternFromString("block_shape");
    dict_name = PyUnicode_InternFromString("__dict__");
    data_ptr_name = PyUnicode_InternFromString("data_ptr");
    self_name = PyUnicode_InternFromString("__self__");
    entry_name = PyUnicode_InternFromString("entry");
    enter_name = PyUnicode_InternFromString("launch_enter_hook");
    leave_name = PyUnicode_InternFromString("launch_exit_hook");
    layout_name = PyUnicode_InternFromString("layout");
    block_shape_name = PyUnicode_InternFromString("block_shape");
    base_name = PyUnicode_InternFromString("base");
    shape_name = PyUnicode_InternFromString("shape");
    strides_name = PyUnicode_InternFromString("strides");
    padding_name = PyUnicode_InternFromString("padding");
    round_name = PyUnicode_InternFromString("round_f32_to_tf32");
    calls = PyType_FromSpec(&calls_spec);
    if (module == NULL || PyErr_Occurred() || PyModule_AddObject(module, "Calls", calls) < 0 ||
        PyModule_AddIntConstant(module, "VERSION", VERSION) < 0 ||
        PyModule_AddIntConstant(module, "MOST_KINDS", MAX_KINDS) < 0 ||
        PyModule_AddIntConstant(module, "MOST_PARAMETERS", MAX_PARAMETERS) < 0 ||
        PyModule_AddIntConstant(module, "MOST_VALUES", MAX_VALUES) < 0 ||
        PyModule_AddIntConstant(module, "MOST_MAPS", MAX_MAPS) < 0) {
        Py_XDECREF(module);
        return NULL;
    }
    return module;
}
