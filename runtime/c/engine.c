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

#define VERSION 21     /* of this interface; native.py takes no other */
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
#include "launches.h"

static PyObject *make(PyObject *Py_UNUSED(module), PyObject *args, PyObject *keywords)
{
    static char *known[] = {"letters", "call", "device", "threads", "shared", "num_ctas", "maps", "cooperative", "dependent",
                            "hip", "function", "current_device", "allocate", "encode", "encode_tiled", "unmark", NULL};
    unsigned long long function = 0, current_device = 0, encode_tiled = 0;
    PyObject *call;
    const char *kinds, *maps;
    Py_ssize_t length, size, depth = 0, values = 2;
    int cooperative = 0, dependent = 0, hip = 0;
    Launch self = {.allocate = Py_None, .encode = Py_None};
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "s#OOIIIy#|pppKKOOKp", known, &kinds, &length, &call, &self.device,
                                     &self.config.block[0], &self.config.shared, &self.ctas, &maps, &size, &cooperative,
                                     &dependent, &hip, &function, &current_device, &self.allocate, &self.encode,
                                     &encode_tiled, &self.unmark) ||
        ((self.index = (int)PyLong_AsLong(self.device)) == -1 && PyErr_Occurred()))
        return NULL;
    for (Py_ssize_t i = 0; i < length; i++) {
        depth += (kinds[i] == '(') - (kinds[i] == ')');
        self.count += kinds[i] == '(' ? depth == 1 : kinds[i] != ')' && depth == 0;
        values += kinds[i] == 'T' ? 1 + 2 * RANK : kinds[i] != 'x';
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
    return Py_BuildValue("y#OOOO", &self, sizeof self, call, self.device, self.allocate, self.encode);
}

static PyObject *teach(PyObject *Py_UNUSED(module), PyObject *cls)
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
static PyObject *score(PyObject *Py_UNUSED(module), PyObject *args)
{
    const char *row, *expected;
    Py_ssize_t size;
    int points, kind;
    gb_value value = gb_left_out();
    if (!PyArg_ParseTuple(args, "y#siKzK", &row, &size, &expected, &kind, &value.bits, &value.text, &value.size))
        return NULL;
    value.kind = (gb_kind)kind;
    points = size == sizeof(ArgumentRow) ? score_value((const ArgumentRow *)row, expected, &value) : UNFIT;
    return points == UNFIT ? Py_BuildValue("") : PyLong_FromLong(points);
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
    {"refill", refill, METH_VARARGS,
     "refill(handle, arguments, marks, fallback)\n\nReturn `handle(*tensors)`, which launches with tensors in place\n"
     "of `marks`, integers among the arguments or bases of descriptors; None where C cannot."},
    {"score", score, METH_VARARGS,
     "score(row, text, kind, bits, element, size)\n\nReturn the score of a `gb_value`, see choice.h; None for none."},
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
