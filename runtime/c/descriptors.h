/* Descriptors of whole tensors that were found legal once: part of engine.c. */

#define MOST_DESCRIPTORS 256 /* a power of two */

/* The facts that a descriptor was found legal for, and the fields that others like it have. */
typedef struct {
    uint64_t words[8 + 3 * RANK];
    size_t count;
    PyObject *fields, *owner; /* the owner: a tuple of the class, these fields, and the objects of the key */
} Legal;
static Legal legal[MOST_DESCRIPTORS];

enum { FIELDS = 5 }; /* that `from_tensor` takes: base, block_shape, layout, padding, round_f32_to_tf32 */

/* Write the key of a descriptor, and find its place; NULL where only Python can say whether it is legal. */
static Legal *find_legal(PyObject *const *fields, Reader *key)
{
    PyObject *base = fields[0], *block = fields[1], *rounded = fields[4];
    View view;
    int64_t sizes[RANK];
    start(key, NULL, NULL);
    if (!view_of(base, &view) || (start_of(&view) & 15) || view.rank < 1 || view.rank > RANK || add_view(key, &view) ||
        (rounded != Py_True && rounded != Py_False) || (!PyList_Check(block) && !PyTuple_Check(block)))
        return NULL;
    if (read_extents(block, sizes) != view.rank) {
        PyErr_Clear();
        return NULL;
    }
    add_object(key, Py_TYPE(base));
    for (int i = 2; i < FIELDS; i++)
        add_object(key, fields[i]);
    for (int i = 0; i < view.rank; i++) {
        if (view.shape[i] < 2) /* DLPack may give such a stride otherwise */
            return NULL;
        add(key, (uint64_t)sizes[i]);
    }
    return &legal[hash_words(key->word, key->words) % MOST_DESCRIPTORS];
}

static PyObject *learn_descriptor(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count)
{
    Reader key;
    Legal *place = count == 1 + FIELDS ? find_legal(args + 1, &key) : NULL;
    if (place == NULL)
        Py_RETURN_FALSE;
    OWNED PyObject *own = PyObject_GenericGetDict(args[0], NULL), *fields = own == NULL ? NULL : PyDict_Copy(own);
    if (fields == NULL || PyDict_SetItem(fields, names[BASE], Py_None) < 0 ||
        PyDict_SetItem(fields, names[BLOCK_SHAPE], Py_None) < 0)
        return NULL;
    Py_XDECREF(place->owner);
    place->owner = PyTuple_Pack(5, Py_TYPE(args[0]), fields, Py_TYPE(args[1]), args[3], args[4]);
    place->fields = fields;
    place->count = place->owner == NULL ? 0 : key.words;
    memcpy(place->words, key.word, place->count * sizeof *place->words);
    Py_RETURN_TRUE;
}

static PyObject *describe(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count)
{
    Reader key;
    Legal *place = count == FIELDS ? find_legal(args, &key) : NULL;
    if (place == NULL || place->count != key.words ||
        memcmp(place->words, key.word, key.words * sizeof *key.word) != 0)
        Py_RETURN_NONE;
    OWNED PyObject *descriptor = NULL, *fields = PyDict_Copy(place->fields);
    if (fields == NULL || PyDict_SetItem(fields, names[BASE], args[0]) < 0 ||
        PyDict_SetItem(fields, names[BLOCK_SHAPE], args[1]) < 0 ||
        (descriptor = PyType_GenericAlloc((PyTypeObject *)PyTuple_GetItem(place->owner, 0), 0)) == NULL ||
        PyObject_SetAttr(descriptor, names[DICT], fields) < 0)
        return NULL;
    return moved(&descriptor);
}
