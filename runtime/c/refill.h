/* Prepared launches whose tensors come with each call, everything else being fixed; and the key of such calls.
 * Part of engine.c. */

#define REFILL "gluon.refill"
#define MAX_FILLS 64
#define SIGNATURE_WORDS 256

/* A leaf that gets a tensor of the call: its address, or that of a descriptor's key. */
typedef struct {
    Py_ssize_t tensor;
    size_t leaf, key;
} Fill;

typedef struct {
    PyObject *owner; /* keeps the handle, the arguments and the fallback alive */
    const Launch *launch;
    PyObject *fallback;
    Py_ssize_t tensors;
    size_t leaves, descriptors, fills;
    Fill fill[MAX_FILLS];
    Leaf leaf[MAX_LEAVES];
    Key keys[MAX_MAPS];
} Refill;

static void drop_refill(PyObject *capsule)
{
    Refill *self = PyCapsule_GetPointer(capsule, REFILL);
    if (self == NULL)
        return;
    Py_XDECREF(self->owner);
    PyMem_Free(self);
}

/* Launch with the tensors of a call. Whatever is unusual goes to `fallback`, which also reports what is wrong. */
static PyObject *refilled(PyObject *capsule, PyObject *const *args, Py_ssize_t count)
{
    const Refill *self = PyCapsule_GetPointer(capsule, REFILL);
    Reader reader;
    size_t i;
    void *stream;
    int here;
    if (self == NULL)
        return NULL;
    if (count != self->tensors || (self->launch->current_device != NULL &&
                                   (self->launch->current_device(&here) != 0 ||
                                    here != self->launch->index)))
        return call_python(self->fallback, args, count, NULL);
    start(&reader, NULL);
    reader.leaves = self->leaves;
    reader.descriptors = self->descriptors;
    memcpy(reader.leaf, self->leaf, self->leaves * sizeof *reader.leaf);
    memcpy(reader.keys, self->keys, self->descriptors * sizeof *reader.keys);
    for (i = 0; i < self->fills; i++) {
        const Fill *fill = &self->fill[i];
        View view;
        if (!view_of(args[fill->tensor], &view))
            return call_python(self->fallback, args, count, NULL);
        if (reader.leaf[fill->leaf].what == DESCRIPTOR)
            reader.keys[fill->key].address = start_of(&view);
        else
            reader.leaf[fill->leaf].word = start_of(&view);
    }
    if (find_stream(self->launch->stream_of, self->launch->device, &stream) < 0)
        return NULL;
    if (send_leaves(self->launch, &reader, self->launch->grid, stream) == 0)
        Py_RETURN_NONE;
    PyErr_Clear(); /* nothing was launched */
    return call_python(self->fallback, args, count, NULL);
}

static PyMethodDef refilled_method = {"refilled", (PyCFunction)(void (*)(void))refilled, METH_FASTCALL,
                                      "refilled(*tensors)"};

static Py_ssize_t mark_of(PyObject *value, PyObject *marks)
{
    Py_ssize_t i, count = PyTuple_Size(marks);
    for (i = 0; i < count; i++)
        if (PyTuple_GetItem(marks, i) == value)
            return i;
    return -1;
}

/* Read the fixed arguments, by the letters of the launch, and find the marks. Below 0 where C cannot. */
static int read_fixed(Refill *self, Reader *reader, PyObject *arguments, PyObject *marks)
{
    const char *kind = self->launch->kinds;
    Py_ssize_t i, count = PyTuple_Size(arguments);
    size_t leaf = 0, map = 0;
    start(reader, NULL);
    for (i = 0; i < self->launch->count && kind != NULL; i++)
        kind = split(kind, i < count ? PyTuple_GetItem(arguments, i) : Py_None, reader);
    if (kind == NULL)
        return -1;
    for (kind = self->launch->kinds; *kind; kind++) {
        Leaf *own = &reader->leaf[leaf];
        PyObject *base = own->value, *fields = NULL;
        Py_ssize_t mark;
        if (*kind == '(' || *kind == ')')
            continue;
        if (*kind == 'T') {
            if (read_key(&self->launch->maps[map], own->value, &reader->keys[map]) < 0)
                return -1;
            own->what = DESCRIPTOR;
            fields = fields_of(own->value);
            base = field(own->value, fields, names[BASE]);
            Py_XDECREF(fields);
            Py_XDECREF(base); /* the descriptor keeps it */
        }
        mark = mark_of(base, marks);
        if (mark >= 0) {
            if (self->fills == MAX_FILLS || (*kind != 'T' && *kind != 'P'))
                return -1;
            if (*kind == 'P')
                own->what = ADDRESS;
            self->fill[self->fills++] = (Fill){mark, leaf, map};
        }
        map += *kind == 'T';
        leaf++;
    }
    return 0;
}

/* refill(handle, arguments, marks, fallback) */
static PyObject *refill(PyObject *module, PyObject *args)
{
    PyObject *handle, *arguments, *marks, *fallback, *capsule, *result;
    Reader reader;
    Refill *self;
    if (!PyArg_ParseTuple(args, "OO!O!O", &handle, &PyTuple_Type, &arguments, &PyTuple_Type, &marks, &fallback))
        return NULL;
    self = PyMem_Calloc(1, sizeof *self);
    if (self == NULL)
        return PyErr_NoMemory();
    self->launch = launch_of(handle);
    if (self->launch == NULL || self->launch->sizes == NULL || read_fixed(self, &reader, arguments, marks) < 0) {
        PyErr_Clear();
        PyMem_Free(self);
        Py_RETURN_NONE;
    }
    self->fallback = fallback;
    self->tensors = PyTuple_Size(marks);
    self->leaves = reader.leaves;
    self->descriptors = 0;
    while (self->descriptors < MAX_MAPS && self->launch->maps[self->descriptors].rank)
        self->descriptors++;
    memcpy(self->leaf, reader.leaf, reader.leaves * sizeof *reader.leaf);
    memcpy(self->keys, reader.keys, self->descriptors * sizeof *reader.keys);
    self->owner = Py_BuildValue("OOO", handle, arguments, fallback);
    capsule = self->owner == NULL ? NULL : PyCapsule_New(self, REFILL, drop_refill);
    if (capsule == NULL) {
        Py_XDECREF(self->owner);
        PyMem_Free(self);
        return NULL;
    }
    result = PyCFunction_NewEx(&refilled_method, capsule, NULL);
    Py_DECREF(capsule);
    return result;
}

/* signature(*tensors): dtype, device, sizes, strides and alignment of each as bytes; None stands for itself. */
static PyObject *signature(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    uint64_t words[SIGNATURE_WORDS];
    size_t used = 0;
    Py_ssize_t i;
    for (i = 0; i < count; i++) {
        View view;
        int known = args[i] != Py_None, dim;
        if (known && (!view_of(args[i], &view) || view.strides == NULL))
            Py_RETURN_NONE;
        if (used + 2 + (known ? 2 * (size_t)view.rank : 0) > SIGNATURE_WORDS)
            Py_RETURN_NONE;
        words[used++] = known ? 1 + (uint64_t)view.rank : 0;
        if (!known)
            continue;
        words[used++] = word_of_view(&view, 15);
        for (dim = 0; dim < view.rank; dim++) {
            words[used++] = (uint64_t)view.shape[dim];
            words[used++] = (uint64_t)view.strides[dim];
        }
    }
    return PyBytes_FromStringAndSize((const char *)words, (Py_ssize_t)(used * sizeof *words));
}
