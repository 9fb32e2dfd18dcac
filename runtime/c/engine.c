/* The launch engine in C: reads the arguments, writes the parameter array, calls cuLaunchKernelEx; and
 * before it, for `kernel[grid](...)`, finds the compiled kernel that fits the arguments.
 * Stable ABI of Python 3.10, no CUDA headers: the one driver function that it calls comes in by address.
 */
#define Py_LIMITED_API 0x030A0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

#define VERSION 25     /* of this interface; native.py takes no other */
#define MAX_KINDS 512  /* letters that describe the arguments, brackets of tuples included */
#define MAX_PARAMETERS 128
#define DEVICE_CPU 1    /* DLPack's numbers */
#define DEVICE_CUDA 2
#define MAX_CLASSES 16  /* of tensors and descriptors that are read without a call into Python */

#include "driver.h"
#include "gluon_bundle.h"
#include "choice.h"
#include "arguments.h"
#include "table.h"
#include "keys.h"
#include "maps.h"
#include "made_maps.h"
#include "launches.h"

static COLD PyObject *make(PyObject *Py_UNUSED(module), PyObject *args, PyObject *keywords)
{
    static char *known[] = {"letters", "call", "device", "threads", "shared", "num_ctas", "maps", "cooperative", "dependent",
                            "hip", "function", "current_device", "allocate", "encode", "encode_tiled", "unmark", "programs", NULL};
    unsigned long long function = 0, current_device = 0, encode_tiled = 0;
    PyObject *call;
    const char *kinds, *maps, *programs = NULL;
    Py_ssize_t length, size, words = 0, depth = 0, values;
    int cooperative = 0, dependent = 0, hip = 0;
    Launch self = {.allocate = Py_None, .encode = Py_None};
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "s#OOIIIy#|pppKKOOKpy#", known, &kinds, &length, &call, &self.device,
                                     &self.config.block[0], &self.config.shared, &self.ctas, &maps, &size, &cooperative,
                                     &dependent, &hip, &function, &current_device, &self.allocate, &self.encode,
                                     &encode_tiled, &self.unmark, &programs, &words) ||
        ((self.index = (int)PyLong_AsLong(self.device)) == -1 && PyErr_Occurred()))
        return NULL;
    values = 2 + size / (Py_ssize_t)sizeof *self.maps;
    for (Py_ssize_t i = 0; i < length; i++) {
        depth += (kinds[i] == '(') - (kinds[i] == ')');
        self.count += kinds[i] == '(' ? depth == 1 : kinds[i] != ')' && depth == 0;
        values += kinds[i] == 'T' ? 2 * RANK : kinds[i] != 'x';
    }
    if (length > MAX_KINDS || values > MAX_VALUES || size > (Py_ssize_t)sizeof self.maps)
        return PyErr_Format(PyExc_ValueError, "a launch takes at most %d values, %d of them descriptors", MAX_VALUES, MAX_MAPS);
    memcpy(self.maps, maps, (size_t)size);
    if (PyLong_Check(call))
        self.call = (LaunchEx)(uintptr_t)PyLong_AsUnsignedLongLong(call);
    else
        self.stand_in = call;
    self.function = (void *)(uintptr_t)function;
    self.config.block[1] = self.config.block[2] = 1;
    set_attributes(&self.config, self.attributes, self.ctas, cooperative, dependent, hip);
    self.encode_tiled = (EncodeTiled)(uintptr_t)encode_tiled;
    self.current_device = (int (*)(int *))(uintptr_t)current_device;
    memcpy(self.kinds, kinds, (size_t)length);
    self.flat = strpbrk(self.kinds, "(T") == NULL;
    self.least = self.count;
    for (; length > 0 && self.least > 0 && kinds[length - 1] == 'x'; length--)
        self.least--;
    OWNED PyObject *owner = PyBytes_FromStringAndSize(programs, words);
    self.programs = owner == NULL ? NULL : (const void *)PyBytes_AsString(owner);
    self.end = self.programs + words / (Py_ssize_t)sizeof *self.programs;
    return Py_BuildValue("y#OOOOO", &self, sizeof self, call, self.device, self.allocate, self.encode, owner);
}

static COLD PyObject *teach(PyObject *Py_UNUSED(module), PyObject *cls)
{
    OWNED PyObject *capsule = PyObject_GetAttrString(cls, "__dlpack_c_exchange_api__");
    const Exchange *table = capsule == NULL ? NULL : PyCapsule_GetPointer(capsule, "dlpack_exchange_api");
    int usable = table != NULL && table->major == 1 && table->read != NULL && table->current_stream != NULL;
    ReadView read = usable ? table->read : PyObject_HasAttr(cls, names[ARRAY_STRUCT]) ? read_array : NULL;
    PyErr_Clear();
    if (usable)
        streams = table->current_stream;
    return PyBool_FromLong(class_of((PyTypeObject *)cls) >= 0 || (read != NULL && add_class((PyTypeObject *)cls, read)));
}

/* See the methods. */
static COLD PyObject *open_index(PyObject *Py_UNUSED(module), PyObject *index)
{
    gb_bundle bundle = {(const Header *)PyBytes_AsString(index), (size_t)PyBytes_Size(index), SIZE_MAX, NULL};
    if (!PyErr_Occurred() && !is_index(&bundle))
        PyErr_SetString(PyExc_ValueError, "the index of the bundle is not as this release reads it");
    return PyErr_Occurred() ? NULL : Py_BuildValue("y#O", &bundle, sizeof bundle, index);
}

/* Read (kind, bits, real, text, size, (shape, strides, box)); the text of a descriptor is its element type. */
static int read_choice(PyObject *item, gb_value *value, gb_descriptor *it)
{
    PyObject *shape, *strides, *box;
    int64_t sizes[RANK] = {0};
    int kind;
    if (!PyArg_ParseTuple(item, "iKdzK(OOO)", &kind, &value->bits, &value->real, &value->text, &value->size, &shape,
                          &strides, &box))
        return -1;
    value->kind = (gb_kind)kind;
    if (kind != GB_DESCRIPTOR)
        return 0;
    *it = (gb_descriptor){.address = (void *)(uintptr_t)value->bits, .type = value->text};
    int rank = read_extents(shape, (int64_t *)it->shape), steps = read_extents(strides, (int64_t *)it->strides);
    int boxes = read_extents(box, sizes);
    it->rank = rank > 0 && steps == rank && (boxes == 0 || boxes == rank) ? (uint32_t)rank : 0; /* 0 fits none */
    for (int i = 0; i < RANK; i++)
        it->box[i] = sizes[i] == (uint32_t)sizes[i] ? (uint32_t)sizes[i] : UINT32_MAX;
    value->bits = (uint64_t)(uintptr_t)it;
    return PyErr_Clear(), 0; /* a size beyond 64 bits */
}

static COLD PyObject *fit(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *index, *list;
    Py_ssize_t kernel_number, form_number, count;
    gb_value values[MAX_KINDS];
    gb_descriptor descriptors[MAX_KINDS];
    if (!PyArg_ParseTuple(args, "O!nnO!", &PyTuple_Type, &index, &kernel_number, &form_number, &PyList_Type, &list))
        return NULL;
    const gb_bundle *bundle = content(index, sizeof *bundle);
    const gb_kernel *kernel = bundle == NULL ? NULL : kernel_at(bundle, (size_t)kernel_number);
    const gb_form *form = kernel == NULL ? NULL : form_at(kernel, (size_t)form_number);
    if (form == NULL || (count = PyList_Size(list)) > MAX_KINDS)
        return PyErr_Format(PyExc_IndexError, "not in the index");
    for (Py_ssize_t i = 0; i < count; i++)
        if (read_choice(PyList_GetItem(list, i), &values[i], &descriptors[i]) < 0)
            return NULL;
    Fit fit = fit_of(form, values, (size_t)count);
    return Py_BuildValue("IiI", fit.wrong, -fit.points, fit.first);
}

#include "calls.h"
#include "descriptors.h"

static PyMethodDef methods[] = {
    {"make", (PyCFunction)(void (*)(void))make, METH_VARARGS | METH_KEYWORDS,
     "Return a launch, see `native.launch`."},
    {"launch", (PyCFunction)(void (*)(void))launch, METH_FASTCALL,
     "launch(launch, sizes, stream, *arguments)\n\nLaunch once on the current device; return the driver's status. Raise\n"
     "TypeError, OverflowError or AttributeError for an argument that does not fit."},
    {"bind", bind, METH_VARARGS,
     "bind(launch, sizes, stream_of, fallback)\n\nReturn `handle(*arguments)` that launches over `sizes`; calls with\n"
     "keywords or another number of arguments, on another device, and those that fail go to `fallback`."},
    {"describe", (PyCFunction)(void (*)(void))describe, METH_FASTCALL,
     "describe(base, block_shape, layout, padding, rounded)\n\n"
     "Return the descriptor of all of a tensor where one like it was learnt, else None."},
    {"learn_descriptor", (PyCFunction)(void (*)(void))learn_descriptor, METH_FASTCALL,
     "learn_descriptor(descriptor, base, block_shape, layout, padding, rounded)\n\n"
     "Describe tensors like this base without checking; False where C cannot tell them."},
    {"open", open_index, METH_O, "open(index)\n\nReturn the index of a bundle for `fit`, see choice.h. Raise ValueError for another."},
    {"refill", refill, METH_VARARGS,
     "refill(handle, arguments, marks, fallback)\n\nReturn `handle(*tensors)`, which launches with tensors in place\n"
     "of `marks`, integers among the arguments or bases of descriptors; None where C cannot."},
    {"fit", fit, METH_VARARGS,
     "fit(index, kernel, form, values)\n\nReturn how many arguments do not fit a form, its points below 0, and the first of them."},
    {"signature", (PyCFunction)(void (*)(void))signature, METH_FASTCALL,
     "signature(*tensors)\n\nReturn the facts of tensors as bytes, see launches.h; None where C cannot read one, or a CPU has it."},
    {"teach", teach, METH_O,
     "teach(cls)\n\nRead objects of exactly this class without calls into Python: tensors through DLPack's table of functions,\n"
     "arrays of NumPy; False where it cannot."},
    {NULL, NULL, 0, NULL}};

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_engine", NULL, -1, methods,
                                        NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__engine(void)
{
    OWNED PyObject *module = PyModule_Create(&definition), *calls = PyType_FromSpec(&calls_spec);
    for (int i = 0; i < NAMES; i++)
        names[i] = PyUnicode_InternFromString(texts[i]);
    if (PyErr_Occurred() || PyModule_AddObjectRef(module, "Calls", calls) < 0 ||
        PyModule_AddIntConstant(module, "VERSION", VERSION) < 0 ||
        PyModule_AddIntConstant(module, "MOST_PARAMETERS", MAX_PARAMETERS) < 0)
        return NULL;
    return moved(&module);
}
