/* The launch in C: reads the arguments, writes the parameter array, calls cuLaunchKernelEx.
 *
 * Optional. It is built when the wheel is built and a C compiler is there; `launcher.py` does the
 * same in Python where it is missing. Stable ABI of Python 3.10, no CUDA headers: the one driver
 * function it calls comes in by address.
 */
#define Py_LIMITED_API 0x030A0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <string.h>

#define MAX_ARGUMENTS 256

/* CUlaunchConfig of the CUDA driver API, section Execution Control. */
typedef struct {
    unsigned int grid[3], block[3], shared;
    void *stream, *attributes;
    unsigned int number;
} Config;

typedef int (*LaunchEx)(const Config *, void *function, void **parameters, void **extra);

typedef struct {
    LaunchEx call;
    void *function;
    Config config;       /* all but grid and stream */
    unsigned int ctas;   /* blocks per cluster multiply the grid */
    Py_ssize_t count;    /* arguments, constexprs included */
    PyObject *again;     /* again(status, sizes, stream, *arguments) when the driver refuses */
    /* a bound handle only */
    PyObject *sizes, *stream_of, *device, *fallback;
    char kinds[MAX_ARGUMENTS];
} Launch;

static PyObject *data_ptr_name;

static void destroy(PyObject *capsule)
{
    Launch *self = PyCapsule_GetPointer(capsule, "gluon.launch");
    if (self == NULL)
        return;
    Py_XDECREF(self->again);
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

static int address_of(PyObject *value, uint64_t *out)
{
    PyObject *address;
    if (PyLong_CheckExact(value)) {
        *out = PyLong_AsUnsignedLongLong(value);
        return *out == (uint64_t)-1 && PyErr_Occurred() ? -1 : 0;
    }
    if (value == Py_None) {
        *out = 0;
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

static PyObject *refuse(Launch *self, int status, PyObject *sizes, PyObject *stream,
                        PyObject *const *arguments)
{
    PyObject *code, *all, *result;
    Py_ssize_t i;
    all = PyTuple_New(3 + self->count);
    if (all == NULL)
        return NULL;
    code = PyLong_FromLong(status);
    if (code == NULL) {
        Py_DECREF(all);
        return NULL;
    }
    Py_INCREF(sizes);
    Py_INCREF(stream);
    PyTuple_SetItem(all, 0, code);
    PyTuple_SetItem(all, 1, sizes);
    PyTuple_SetItem(all, 2, stream);
    for (i = 0; i < self->count; i++) {
        Py_INCREF(arguments[i]);
        PyTuple_SetItem(all, 3 + i, arguments[i]);
    }
    result = PyObject_CallObject(self->again, all);
    Py_DECREF(all);
    return result;
}

static PyObject *launch_now(Launch *self, PyObject *sizes, PyObject *stream,
                            PyObject *const *arguments)
{
    uint64_t slots[MAX_ARGUMENTS];
    void *parameters[MAX_ARGUMENTS + 2];
    static uint64_t null; /* the global and profile scratch pointers that close every list */
    Config config = self->config;
    Py_ssize_t i, used = 0;
    int status;

    for (i = 0; i < 3; i++) {
        PyObject *item = PyTuple_GetItem(sizes, i);
        if (item == NULL)
            return NULL;
        config.grid[i] = (unsigned int)PyLong_AsUnsignedLong(item);
    }
    config.grid[0] *= self->ctas;
    config.stream = (void *)(uintptr_t)PyLong_AsUnsignedLongLong(stream);
    if (PyErr_Occurred())
        return NULL;
    for (i = 0; i < self->count; i++) {
        if (self->kinds[i] == 'x')
            continue;
        if (read_argument(self->kinds[i], arguments[i], &slots[used]) < 0)
            return NULL;
        parameters[used] = &slots[used];
        used++;
    }
    parameters[used] = &null;
    parameters[used + 1] = &null;
    Py_BEGIN_ALLOW_THREADS
    status = self->call(&config, self->function, parameters, NULL);
    Py_END_ALLOW_THREADS
    if (status)
        return refuse(self, status, sizes, stream, arguments);
    Py_RETURN_NONE;
}

static PyObject *launch(PyObject *capsule, PyObject *const *args, Py_ssize_t count)
{
    Launch *self = PyCapsule_GetPointer(capsule, "gluon.launch");
    if (self == NULL)
        return NULL;
    if (count != self->count + 2) {
        PyErr_Format(PyExc_TypeError, "the kernel takes %zd arguments, got %zd", self->count,
                     count - 2);
        return NULL;
    }
    return launch_now(self, args[0], args[1], args + 2);
}

static PyObject *handle(PyObject *capsule, PyObject *const *args, Py_ssize_t count,
                        PyObject *keywords)
{
    PyObject *stream, *result;
    Launch *self = PyCapsule_GetPointer(capsule, "gluon.launch");
    if (self == NULL)
        return NULL;
    if (keywords != NULL || count != self->count) {
        /* defaults, keywords, another grid: the function written in Python knows them */
        Py_ssize_t i, named = keywords == NULL ? 0 : PyTuple_Size(keywords);
        PyObject *positional = PyTuple_New(count), *rest = PyDict_New();
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
    stream = PyObject_CallFunctionObjArgs(self->stream_of, self->device, NULL);
    if (stream == NULL)
        return NULL;
    result = launch_now(self, self->sizes, stream, args);
    Py_DECREF(stream);
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

static PyObject *make(PyObject *module, PyObject *args)
{
    unsigned long long call, function, attributes;
    unsigned int block, shared, number, ctas;
    const char *kinds;
    Py_ssize_t count;
    PyObject *again;
    Launch *self;
    if (!PyArg_ParseTuple(args, "KKIIKIIs#O", &call, &function, &block, &shared, &attributes,
                          &number, &ctas, &kinds, &count, &again))
        return NULL;
    if (count > MAX_ARGUMENTS) {
        PyErr_Format(PyExc_ValueError, "at most %d arguments", MAX_ARGUMENTS);
        return NULL;
    }
    self = PyMem_Calloc(1, sizeof *self);
    if (self == NULL)
        return PyErr_NoMemory();
    self->call = (LaunchEx)(uintptr_t)call;
    self->function = (void *)(uintptr_t)function;
    self->config.block[0] = block;
    self->config.block[1] = self->config.block[2] = 1;
    self->config.shared = shared;
    self->config.attributes = (void *)(uintptr_t)attributes;
    self->config.number = number;
    self->ctas = ctas;
    self->count = count;
    memcpy(self->kinds, kinds, (size_t)count);
    Py_INCREF(again);
    self->again = again;
    return wrap(self, &launch_method);
}

static PyObject *bind(PyObject *module, PyObject *args)
{
    PyObject *from, *capsule, *sizes, *stream_of, *device, *fallback;
    Launch *source, *self;
    if (!PyArg_ParseTuple(args, "OO!OOO", &from, &PyTuple_Type, &sizes, &stream_of, &device,
                          &fallback))
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
    self->sizes = sizes;
    self->stream_of = stream_of;
    self->device = device;
    self->fallback = fallback;
    Py_INCREF(self->again);
    Py_INCREF(sizes);
    Py_INCREF(stream_of);
    Py_INCREF(device);
    Py_INCREF(fallback);
    return wrap(self, &handle_method);
}

static PyMethodDef methods[] = {
    {"make", make, METH_VARARGS,
     "make(call, function, block, shared, attributes, number, ctas, kinds, again)\n\n"
     "A `launch(sizes, stream, *arguments)` of one loaded kernel. `kinds` has one letter per\n"
     "argument: P for pointers, x for constexprs, else that of the struct module."},
    {"bind", bind, METH_VARARGS,
     "bind(launch, sizes, stream_of, device, fallback)\n\n"
     "A `handle(*arguments)` that launches over `sizes` on `stream_of(device)`; calls with keywords\n"
     "or another number of arguments go to `fallback`."},
    {NULL, NULL, 0, NULL}};

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_launch", NULL, -1, methods,
                                        NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__launch(void)
{
    data_ptr_name = PyUnicode_InternFromString("data_ptr");
    return data_ptr_name == NULL ? NULL : PyModule_Create(&definition);
}
