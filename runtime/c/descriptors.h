/* Descriptors of whole tensors that were found legal once: part of engine.c. */

#define MOST_DESCRIPTORS 256 /* a power of two */

/* The facts that a descriptor was found legal for, and the fields that others like it have. */
typedef struct {
    uint64_t words[8 + 3 * RANK];
    size_t count;
    PyObject *cls, *fields, *owners;
} Legal;
static Legal legal[MOST_DESCRIPTORS];

enum { FIELDS = 5 }; /* that a descriptor of all of a tensor is made of, in this order: */
static const int described_by[FIELDS] = {BASE, BLOCK_SHAPE, LAYOUT, PADDING, ROUND};

/* Write the key of a descriptor, and find its place; NULL where only Python can say whether it is legal. */
static Legal *find_legal(PyObject *const *fields, uint64_t *words, size_t *words_count)
{
    PyObject *base = fields[0], *block = fields[1], *rounded = fields[4];
    View view;
    int64_t sizes[RANK];
    size_t count = 0;
    if (!view_of(base, &view) || (start_of(&view) & 15) || view.rank < 1 || view.rank > RANK ||
        view.strides == NULL || (rounded != Py_True && rounded != Py_False) ||
        (!PyList_Check(block) && !PyTuple_Check(block)))
        return NULL;
    if (read_extents(block, sizes) != view.rank) {
        PyErr_Clear();
        return NULL;
    }
    words[count++] = (uint64_t)(uintptr_t)Py_TYPE(base);
    words[count++] = word_of_view(&view, 0);
    for (int i = 2; i < FIELDS; i++)
        words[count++] = (uint64_t)(uintptr_t)fields[i];
    words[count++] = (uint64_t)view.rank;
    for (int i = 0; i < view.rank; i++) {
        if (view.shape[i] < 2) /* DLPack may give such a stride otherwise */
            return NULL;
        words[count++] = (uint64_t)view.shape[i];
        words[count++] = (uint64_t)view.strides[i];
        words[count++] = (uint64_t)sizes[i];
    }
    *words_count = count;
    return &legal[hash_words(words, count) % MOST_DESCRIPTORS];
}

static PyObject *learn_descriptor(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *descriptor, *fields, *known[FIELDS];
    Legal entry;
    if (!PyArg_ParseTuple(args, "OO!", &descriptor, &PyDict_Type, &fields))
        return NULL;
    for (int i = 0; i < FIELDS; i++)
        if ((known[i] = PyDict_GetItemWithError(fields, names[described_by[i]])) == NULL)
            Py_RETURN_FALSE;
    Legal *place = find_legal(known, entry.words, &entry.count);
    if (place == NULL)
        Py_RETURN_FALSE;
    entry.cls = (PyObject *)Py_TYPE(descriptor);
    entry.fields = PyDict_Copy(fields);
    if (entry.fields == NULL || PyDict_SetItem(entry.fields, names[BASE], Py_None) < 0 ||
        PyDict_SetItem(entry.fields, names[BLOCK_SHAPE], Py_None) < 0)
        return NULL;
    entry.owners = Py_BuildValue("OOOON", entry.cls, Py_TYPE(known[0]), known[2], known[3], entry.fields);
    if (entry.owners == NULL)
        return NULL;
    Py_XDECREF(place->owners);
    *place = entry;
    Py_RETURN_TRUE;
}

static PyObject *describe(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count)
{
    Legal asked;
    if (count != FIELDS)
        return PyErr_Format(PyExc_TypeError, "describe takes %d arguments", FIELDS);
    Legal *place = find_legal(args, asked.words, &asked.count);
    if (place == NULL || place->count != asked.count ||
        memcmp(place->words, asked.words, asked.count * sizeof *asked.words) != 0)
        Py_RETURN_NONE;
    OWNED PyObject *descriptor = NULL, *fields = PyDict_Copy(place->fields);
    if (fields == NULL || PyDict_SetItem(fields, names[BASE], args[0]) < 0 ||
        PyDict_SetItem(fields, names[BLOCK_SHAPE], args[1]) < 0 ||
        (descriptor = PyType_GenericAlloc((PyTypeObject *)place->cls, 0)) == NULL ||
        PyObject_SetAttr(descriptor, names[DICT], fields) < 0)
        return NULL;
    return moved(&descriptor);
}
