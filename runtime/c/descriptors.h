/* Descriptors of whole tensors that were found legal once: part of engine.c. */

static Table legal; /* facts of descriptors -> their class, the fields that others like them have, objects of the facts */

enum { FIELDS = 5 }; /* that `from_tensor` takes: base, block_shape, layout, padding, round_f32_to_tf32 */

/* Write the key of a descriptor; below 0 where only Python can say whether it is legal. */
static int read_facts(PyObject *const *fields, Reader *key)
{
    PyObject *base = fields[0], *block = fields[1], *rounded = fields[4];
    View view;
    int64_t sizes[RANK];
    start(key, NULL, NULL);
    if (!view_of(base, &view) || (start_of(&view) & 15) || view.rank < 1 || view.rank > RANK || add_view(key, &view) ||
        (rounded != Py_True && rounded != Py_False) || (!PyList_Check(block) && !PyTuple_Check(block)))
        return -1;
    if (read_extents(block, sizes) != view.rank) {
        PyErr_Clear();
        return -1;
    }
    add_object(key, Py_TYPE(base));
    for (int i = 2; i < FIELDS; i++)
        add_object(key, fields[i]);
    for (int i = 0; i < view.rank; i++) {
        if (view.shape[i] < 2) /* DLPack may give such a stride otherwise */
            return -1;
        add(key, (uint64_t)sizes[i]);
    }
    return 0;
}

static COLD PyObject *learn_descriptor(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count)
{
    Reader key;
    if (count != 1 + FIELDS || read_facts(args + 1, &key) < 0)
        Py_RETURN_FALSE;
    OWNED PyObject *own = PyObject_GenericGetDict(args[0], NULL), *fields = own == NULL ? NULL : PyDict_Copy(own);
    if (fields == NULL || PyDict_SetItem(fields, names[BASE], Py_None) < 0 ||
        PyDict_SetItem(fields, names[BLOCK_SHAPE], Py_None) < 0 ||
        keep(&legal, key.word, key.words,
             PyTuple_Pack(5, Py_TYPE(args[0]), fields, Py_TYPE(args[1]), args[3], args[4]), fields) < 0)
        return NULL;
    Py_RETURN_TRUE;
}

static PyObject *describe(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count)
{
    Reader key;
    Known *known = count != FIELDS || read_facts(args, &key) < 0 ? NULL : find(&legal, key.word, key.words);
    if (known == NULL)
        Py_RETURN_NONE;
    OWNED PyObject *answer = Py_NewRef(known->answer), *fields = PyDict_Copy((PyObject *)known->part), *descriptor = NULL;
    if (fields == NULL || PyDict_SetItem(fields, names[BASE], args[0]) < 0 ||
        PyDict_SetItem(fields, names[BLOCK_SHAPE], args[1]) < 0 ||
        (descriptor = PyType_GenericAlloc((PyTypeObject *)PyTuple_GetItem(answer, 0), 0)) == NULL ||
        PyObject_SetAttr(descriptor, names[DICT], fields) < 0)
        return NULL;
    return moved(&descriptor);
}
