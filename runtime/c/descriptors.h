/* Descriptors of whole tensors that were found legal once: part of engine.c, which includes it. */

#define MOST_DESCRIPTORS 256 /* a power of two */

/* What a descriptor was found legal for, and the fields that others like it have. */
static struct {
    uint64_t words[8 + 3 * RANK];
    size_t count;
    PyObject *cls, *fields, *owners;
} legal[MOST_DESCRIPTORS];

static PyObject *base_key, *block_shape_key, *dict_name;

/* The key of a descriptor of all of `base`; 0 where only Python can tell whether it is legal. */
static size_t describe_words(PyObject *base, PyObject *block, PyObject *layout, PyObject *padding,
                             PyObject *rounded, uint64_t *words)
{
    View view;
    int64_t sizes[RANK];
    size_t count = 0;
    int i;
    if (!view_of(base, &view) || (start_of(&view) & 15) || view.rank < 1 || view.rank > RANK)
        return 0;
    if (rounded != Py_True && rounded != Py_False)
        return 0;
    words[count++] = word_of(Py_TYPE(base));
    words[count++] = word_of_view(&view, 0);
    words[count++] = word_of(layout);
    words[count++] = word_of(padding);
    words[count++] = word_of(rounded);
    words[count++] = (uint64_t)view.rank;
    for (i = 0; i < view.rank; i++) {
        if (view.shape[i] < 2 || view.strides == NULL) /* such strides DLPack may tell otherwise */
            return 0;
        words[count++] = (uint64_t)view.shape[i];
        words[count++] = (uint64_t)view.strides[i];
    }
    if (!PyList_Check(block) && !PyTuple_Check(block))
        return 0;
    Py_INCREF(block);
    if (read_extents(block, view.rank, sizes) < 0) {
        PyErr_Clear();
        return 0;
    }
    for (i = 0; i < view.rank; i++)
        words[count++] = (uint64_t)sizes[i];
    return count;
}

static PyObject *learn_descriptor(PyObject *module, PyObject *args)
{
    PyObject *made, *fields, *given[5] = {NULL}, *owners;
    PyObject *names[5] = {base_key, block_shape_key, layout_name, padding_name, round_name};
    uint64_t words[sizeof legal->words / sizeof *legal->words];
    size_t count, place;
    int i;
    if (!PyArg_ParseTuple(args, "OO!", &made, &PyDict_Type, &fields))
        return NULL;
    for (i = 0; i < 5; i++)
        if ((given[i] = PyDict_GetItemWithError(fields, names[i])) == NULL)
            Py_RETURN_FALSE;
    count = describe_words(given[0], given[1], given[2], given[3], given[4], words);
    if (count == 0)
        Py_RETURN_FALSE;
    fields = PyDict_Copy(fields);
    owners = Py_BuildValue("OOO", (PyObject *)Py_TYPE(given[0]), given[2], given[3]);
    if (fields == NULL || owners == NULL || PyDict_SetItem(fields, base_key, Py_None) < 0 ||
        PyDict_SetItem(fields, block_shape_key, Py_None) < 0)
        return NULL;
    place = hash_words(words, count) % MOST_DESCRIPTORS;
    Py_XDECREF(legal[place].cls);
    Py_XDECREF(legal[place].fields);
    Py_XDECREF(legal[place].owners);
    memcpy(legal[place].words, words, count * sizeof *words);
    legal[place].count = count;
    Py_INCREF(legal[place].cls = (PyObject *)Py_TYPE(made));
    legal[place].fields = fields;
    legal[place].owners = owners;
    Py_RETURN_TRUE;
}

static PyObject *describe(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    uint64_t words[sizeof legal->words / sizeof *legal->words];
    size_t known, place;
    PyObject *made, *fields;
    if (count != 5) {
        PyErr_SetString(PyExc_TypeError, "describe takes 5 arguments");
        return NULL;
    }
    known = describe_words(args[0], args[1], args[2], args[3], args[4], words);
    place = hash_words(words, known) % MOST_DESCRIPTORS;
    if (known == 0 || legal[place].count != known ||
        memcmp(legal[place].words, words, known * sizeof *words) != 0)
        Py_RETURN_NONE;
    fields = PyDict_Copy(legal[place].fields);
    if (fields == NULL || PyDict_SetItem(fields, base_key, args[0]) < 0 ||
        PyDict_SetItem(fields, block_shape_key, args[1]) < 0) {
        Py_XDECREF(fields);
        return NULL;
    }
    made = PyType_GenericAlloc((PyTypeObject *)legal[place].cls, 0);
    if (made != NULL && PyObject_SetAttr(made, dict_name, fields) < 0)
        Py_CLEAR(made);
    Py_DECREF(fields);
    return made;
}
