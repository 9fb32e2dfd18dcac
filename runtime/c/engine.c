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
#define CACHE_SIZE 1024 /* tensor maps kept; a power of two */
#define DEVICE_CUDA 2   /* DLPack's number */
#define MAX_TENSORS 4   /* classes of tensors read without a call into Python */

#include "driver.h"

#include "arguments.h"

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

/* `fallback`, written in Python, knows defaults, keywords, another grid, and what is wrong. */
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
        return call_python(self->fallback, args, count, keywords);
    if (self->current_device != NULL &&
        (self->current_device(&here) != 0 || here != self->index))
        return call_python(self->fallback, args, count, keywords);
    if (find_stream(self->stream_of, self->device, &stream) < 0)
        return NULL;
    result = launch_now(self, self->grid, self->sizes, stream, args, count);
    if (result == NULL && (PyErr_ExceptionMatches(PyExc_OverflowError) ||
                           PyErr_ExceptionMatches(PyExc_TypeError) ||
                           PyErr_ExceptionMatches(PyExc_AttributeError))) {
        PyErr_Clear(); /* a value that does not fit: nothing was launched */
        return call_python(self->fallback, args, count, keywords);
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

/* teach(cls): read tensors of exactly this class without a call into Python. */
static PyObject *teach(PyObject *module, PyObject *cls)
{
    PyObject *capsule = PyObject_GetAttrString(cls, "__dlpack_c_exchange_api__");
    const Exchange *table;
    int i;
    if (capsule == NULL) {
        PyErr_Clear();
        Py_RETURN_FALSE;
    }
    table = PyCapsule_GetPointer(capsule, "dlpack_exchange_api");
    Py_DECREF(capsule);
    if (table == NULL || table->major != 1 || table->read == NULL) {
        PyErr_Clear();
        Py_RETURN_FALSE;
    }
    for (i = 0; i < tensors_known; i++)
        if ((PyObject *)tensors[i].cls == cls)
            Py_RETURN_TRUE;
    if (tensors_known == MAX_TENSORS)
        Py_RETURN_FALSE;
    Py_INCREF(cls); /* for good */
    tensors[tensors_known].cls = (PyTypeObject *)cls;
    tensors[tensors_known].read = table->read;
    streams = table->current_stream;
    tensors_known++;
    Py_RETURN_TRUE;
}

static PyObject *current_stream(PyObject *module, PyObject *index)
{
    void *stream;
    long device = PyLong_AsLong(index);
    if (device == -1 && PyErr_Occurred())
        return NULL;
    if (streams == NULL || streams(DEVICE_CUDA, (int32_t)device, &stream) != 0) {
        PyErr_Clear();
        Py_RETURN_NONE;
    }
    return PyLong_FromVoidPtr(stream);
}

#include "keys.h"
#include "calls.h"
#include "descriptors.h"

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
