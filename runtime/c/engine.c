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

#define VERSION 9      /* of this interface; native.py leaves any other alone */
#define MAX_KINDS 512  /* letters that describe the arguments, brackets of tuples included */
#define MAX_PARAMETERS 128
#define MAX_VALUES 512 /* parameters of the kernel, scratch memory included */
#define MAX_MAPS 16
#define CACHE_SIZE 1024 /* tensor maps kept; a power of two */
#define DEVICE_CUDA 2   /* DLPack's number */
#define MAX_CLASSES 8   /* of tensors and descriptors that are read without a call into Python */

#include "driver.h"
#include "arguments.h"
#include "keys.h"

/* Split an argument into leaves, as the letters from `kind` on say; return the letters of the next one. */
static const char *split(const char *kind, PyObject *value, Reader *to)
{
    Py_ssize_t i;
    if (*kind != '(') {
        add_leaf(to, value, PLAIN, 0); /* there are as many leaves as letters */
        return kind + 1;
    }
    if (!PyTuple_Check(value)) {
        PyErr_SetString(PyExc_TypeError, "the kernel was compiled for a tuple here");
        return NULL;
    }
    kind++;
    for (i = 0; *kind != ')'; i++) {
        PyObject *item = PyTuple_GetItem(value, i);
        if (item == NULL || (kind = split(kind, item, to)) == NULL)
            return NULL;
    }
    return kind + 1;
}

/* Put one leaf by its letter. Its address, its number, or the key of a descriptor may be known. */
static inline int put_leaf(const Launch *self, char kind, const Leaf *leaf, Key *key, Packed *to)
{
    int is_integer = kind != 'P' && kind != 'f' && kind != 'd';
    if (kind == 'T') {
        if (leaf->what != DESCRIPTOR && read_key(&self->maps[to->map], leaf->value, key) < 0)
            return -1;
        return put_descriptor(self, leaf->value, key, to);
    }
    if (leaf->what == ADDRESS ? kind == 'P'
                              : leaf->what == NUMBER && is_integer && holds(kind, (long long)leaf->word))
        to->slots[to->used] = leaf->word;
    else if (read_argument(kind, leaf->value, &to->slots[to->used]) < 0)
        return -1;
    put(to, &to->slots[to->used]);
    return 0;
}

/* Put the pointers that close every list: global and profile scratch. Return the objects that keep them alive, or
 * NULL with or without an error. */
static PyObject *take_scratch(const Launch *self, const Config *config, Packed *to)
{
    int i;
    PyObject *answer = NULL;
    uint64_t *slots = &to->slots[to->used];
    put_word(to, 0);
    put_word(to, 0);
    if (self->allocate == Py_None)
        return NULL;
    answer = PyObject_CallFunction(
        self->allocate, "KK",
        (unsigned long long)config->grid[0] * config->grid[1] * config->grid[2],
        (unsigned long long)(uintptr_t)config->stream);
    for (i = 0; answer != NULL && i < 2; i++) {
        PyObject *item = PyTuple_GetItem(answer, i);
        if (item != NULL)
            slots[i] = PyLong_AsUnsignedLongLong(item);
    }
    if (PyErr_Occurred())
        Py_CLEAR(answer);
    return answer;
}

/* Launch with the leaves of the arguments. Return the driver's status; below 0 nothing was launched, with or
 * without an exception. */
static int send_leaves(const Launch *self, Reader *from, const unsigned int *grid, void *stream)
{
    Packed packed;
    Config config = self->config;
    const char *kind;
    size_t leaf = 0, descriptor = 0;
    PyObject *owners;
    Key own;
    int status;
    memcpy(config.grid, grid, sizeof config.grid);
    config.stream = stream;
    packed.used = packed.map = 0;
    for (kind = self->kinds; *kind; kind++) {
        Leaf *next = &from->leaf[leaf];
        Key *key = &own;
        if (*kind == '(' || *kind == ')')
            continue;
        if (leaf++ == from->leaves)
            return -1;
        if (next->what == DESCRIPTOR)
            key = &from->keys[descriptor++];
        if (*kind != 'x' && put_leaf(self, *kind, next, key, &packed) < 0)
            return -1;
    }
    if (leaf != from->leaves)
        return -1;
    owners = take_scratch(self, &config, &packed);
    if (owners == NULL && PyErr_Occurred())
        return -1;
    config.grid[0] *= self->ctas;
    Py_BEGIN_ALLOW_THREADS
    status = self->call(&config, self->function, packed.parameters, NULL);
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

/* Launch over `grid`, which `sizes` has for Python; constants at the end may be missing. */
static PyObject *launch_now(const Launch *self, const unsigned int *grid, PyObject *sizes, void *stream,
                            PyObject *const *arguments, Py_ssize_t count)
{
    const char *kind = self->kinds;
    Reader reader;
    Py_ssize_t i;
    int status;
    start(&reader, NULL);
    for (i = 0; i < self->count && kind != NULL; i++) {
        PyObject *value = i < count ? arguments[i] : Py_None;
        if (*kind == '(')
            kind = split(kind, value, &reader);
        else if (add_leaf(&reader, value, PLAIN, 0) == 0)
            kind++;
    }
    status = kind == NULL ? -1 : send_leaves(self, &reader, grid, stream);
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
    Launch *self = PyCapsule_GetPointer(capsule, LAUNCH);
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

/* Launch a prepared call. `fallback`, written in Python, knows defaults, keywords, another grid, and mistakes. */
static PyObject *handle(PyObject *capsule, PyObject *const *args, Py_ssize_t count,
                        PyObject *keywords)
{
    PyObject *result;
    void *stream;
    int here;
    Launch *self = PyCapsule_GetPointer(capsule, LAUNCH);
    if (self == NULL)
        return NULL;
    if (keywords != NULL || count < self->least || count > self->count ||
        (self->current_device != NULL &&
         (self->current_device(&here) != 0 || here != self->index)))
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

/* Return a function with a launch as its `__self__`. `owner`, a reference that is given up, keeps the objects of the
 * launch alive. */
static PyObject *wrap(const Launch *launch, PyMethodDef *method, PyObject *owner)
{
    PyObject *result = NULL, *capsule = NULL;
    Launch *self = owner == NULL ? NULL : PyMem_Malloc(sizeof *self);
    if (self != NULL) {
        *self = *launch;
        self->owner = owner;
        capsule = PyCapsule_New(self, LAUNCH, destroy);
    }
    if (capsule != NULL)
        result = PyCFunction_NewEx(method, capsule, NULL);
    else {
        PyMem_Free(self);
        Py_XDECREF(owner);
    }
    Py_XDECREF(capsule);
    return result == NULL && !PyErr_Occurred() ? PyErr_NoMemory() : result;
}

static const Launch *launch_of(PyObject *function)
{
    PyObject *capsule = PyObject_GetAttr(function, names[SELF]);
    const Launch *self = capsule == NULL ? NULL : PyCapsule_GetPointer(capsule, LAUNCH);
    Py_XDECREF(capsule); /* the function keeps it */
    return self;
}

static int read_map_kind(PyObject *fields, MapKind *kind)
{
    uint32_t *box = kind->box;
    Py_ssize_t sizes = PyTuple_Size(fields) - 7;
    if (!PyArg_ParseTuple(fields, "IiiiiiiI|IIII", &kind->number, &kind->tiled, &kind->rank,
                          &kind->swizzle, &kind->type, &kind->bytes, &kind->fp4_padded, &box[0],
                          &box[1], &box[2], &box[3], &box[4]))
        return -1;
    if (kind->rank >= 1 && kind->rank <= RANK && (!kind->tiled || kind->rank == sizes))
        return 0;
    PyErr_SetString(PyExc_ValueError, "not a rank of tensor maps");
    return -1;
}

static PyObject *make(PyObject *module, PyObject *args, PyObject *keywords)
{
    static char *known[] = {"letters", "call",  "function", "threads",   "shared", "attributes",
                            "number",  "num_ctas", "count", "values",    "again",  "allocate",
                            "maps",    "encode",   "encode_tiled", "unmark", NULL};
    unsigned long long call, function, attributes, encode_tiled = 0;
    const char *kinds;
    Py_ssize_t length, values, i;
    PyObject *maps = NULL;
    Launch self;
    memset(&self, 0, sizeof self);
    self.allocate = self.encode = Py_None;
    if (!PyArg_ParseTupleAndKeywords(
            args, keywords, "s#KKIIKIInnO|OO!OKp", known, &kinds, &length, &call, &function,
            &self.config.block[0], &self.config.shared, &attributes, &self.config.number, &self.ctas,
            &self.count, &values, &self.again, &self.allocate, &PyTuple_Type, &maps, &self.encode,
            &encode_tiled, &self.unmark))
        return NULL;
    if (call == 0 || length > MAX_KINDS || self.count > MAX_PARAMETERS || values > MAX_VALUES ||
        (maps != NULL && PyTuple_Size(maps) > MAX_MAPS))
        Py_RETURN_NONE;
    for (i = 0; maps != NULL && i < PyTuple_Size(maps); i++)
        if (read_map_kind(PyTuple_GetItem(maps, i), &self.maps[i]) < 0)
            return NULL;
    self.call = (LaunchEx)(uintptr_t)call;
    self.function = (void *)(uintptr_t)function;
    self.config.block[1] = self.config.block[2] = 1;
    self.config.attributes = (void *)(uintptr_t)attributes;
    self.encode_tiled = (EncodeTiled)(uintptr_t)encode_tiled;
    memcpy(self.kinds, kinds, (size_t)length);
    self.least = self.count;
    for (; length > 0 && self.least > 0 && kinds[length - 1] == 'x'; length--)
        self.least--;
    return wrap(&self, &launch_method, Py_BuildValue("OOO", self.again, self.allocate, self.encode));
}

static PyObject *bind(PyObject *module, PyObject *args)
{
    PyObject *function, *sizes, *stream_of, *device, *fallback;
    const Launch *source;
    Launch self;
    unsigned long long current_device;
    if (!PyArg_ParseTuple(args, "OO!OO!OK", &function, &PyTuple_Type, &sizes, &stream_of, &PyLong_Type,
                          &device, &fallback, &current_device) ||
        (source = launch_of(function)) == NULL)
        return NULL;
    self = *source;
    if (read_sizes(sizes, self.grid) < 0)
        return NULL;
    self.sizes = sizes;
    self.stream_of = stream_of;
    self.device = device;
    self.fallback = fallback;
    self.current_device = (int (*)(int *))(uintptr_t)current_device;
    self.index = (int)PyLong_AsLong(device);
    Py_INCREF(args);
    return wrap(&self, &handle_method, args);
}

static PyObject *forget_maps(PyObject *module, PyObject *unused)
{
    memset(cache, 0, sizeof cache);
    Py_RETURN_NONE;
}

static PyObject *teach(PyObject *module, PyObject *args)
{
    PyObject *cls, *capsule;
    const Exchange *table;
    int described, usable;
    if (!PyArg_ParseTuple(args, "Op", &cls, &described))
        return NULL;
    capsule = PyObject_GetAttrString(cls, "__dlpack_c_exchange_api__");
    table = capsule == NULL ? NULL : PyCapsule_GetPointer(capsule, "dlpack_exchange_api");
    usable = table != NULL && table->major == 1 && table->read != NULL;
    PyErr_Clear();
    Py_XDECREF(capsule);
    if (class_of((PyTypeObject *)cls) >= 0)
        Py_RETURN_TRUE;
    if (classes_known == MAX_CLASSES || !(usable || described))
        Py_RETURN_FALSE;
    Py_INCREF(cls); /* for good */
    classes[classes_known].cls = (PyTypeObject *)cls;
    classes[classes_known++].read = usable ? table->read : NULL;
    if (usable)
        streams = table->current_stream;
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

#include "calls.h"
#include "descriptors.h"
#include "refill.h"

static PyMethodDef methods[] = {
    {"forget_maps", forget_maps, METH_NOARGS,
     "forget_maps()\n\nEncode every descriptor anew when it comes next."},
    {"make", (PyCFunction)(void (*)(void))make, METH_VARARGS | METH_KEYWORDS,
     "make(letters, *, call, function, threads, shared, attributes, number, num_ctas, count, values,\n"
     "again, allocate=None, maps=(), encode=None, encode_tiled=0, unmark=False)\n\n"
     "Return `launch(sizes, stream, *arguments)`, see native.py; None for more arguments than fit."},
    {"bind", bind, METH_VARARGS,
     "bind(launch, sizes, stream_of, device, fallback, current_device)\n\n"
     "Return `handle(*arguments)` that launches over `sizes` on `stream_of(device)`; calls with keywords,\n"
     "with another number of arguments (constants at the end may be left out), or while\n"
     "cuCtxGetDevice, whose address `current_device` is, names another device (0: there is no other)\n"
     "go to `fallback`."},
    {"current_stream", current_stream, METH_O,
     "current_stream(index)\n\nReturn the stream of a device, of the library whose tensors were taught; None\n"
     "where it does not say. Where it does, None stands for a `stream_of`."},
    {"describe", (PyCFunction)(void (*)(void))describe, METH_FASTCALL,
     "describe(base, block_shape, layout, padding, rounded)\n\n"
     "Return the descriptor of all of a tensor where one like it was learnt, else None."},
    {"learn_descriptor", learn_descriptor, METH_VARARGS,
     "learn_descriptor(descriptor, fields)\n\n"
     "Describe tensors like that of `descriptor` without checking; False where C cannot tell them."},
    {"refill", refill, METH_VARARGS,
     "refill(handle, arguments, marks, fallback)\n\n"
     "Return `refilled(*tensors)`, which launches a prepared call with tensors in place of `marks`, integers among the\n"
     "arguments or bases of descriptors; unusual calls go to `fallback`. None where C cannot."},
    {"signature", (PyCFunction)(void (*)(void))signature, METH_FASTCALL,
     "signature(*tensors)\n\nReturn dtype, device, sizes, strides and alignment to 16 bytes of each as bytes;\n"
     "None where C cannot read one."},
    {"teach", teach, METH_VARARGS,
     "teach(cls, described)\n\nRead tensors of exactly this class through DLPack's table of functions, which the\n"
     "class must offer, or descriptors by their fields; False where it does not."},
    {NULL, NULL, 0, NULL}};

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_engine", NULL, -1, methods,
                                        NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__engine(void)
{
    PyObject *calls, *module = PyModule_Create(&definition);
    int i;
    for (i = 0; i < NAMES; i++)
        names[i] = PyUnicode_InternFromString(texts[i]);
    calls = PyType_FromSpec(&calls_spec);
    if (module == NULL || PyErr_Occurred() || PyModule_AddObject(module, "Calls", calls) < 0 ||
        PyModule_AddIntConstant(module, "VERSION", VERSION) < 0 ||
        PyModule_AddIntConstant(module, "MOST_PARAMETERS", MAX_PARAMETERS) < 0) {
        Py_XDECREF(module);
        return NULL;
    }
    return module;
}
