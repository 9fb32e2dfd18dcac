/* A compiled kernel that is bound to a device, the launch, and prepared launches: part of engine.c. */

/* Return whether another device is current. */
static int is_elsewhere(const Launch *self)
{
    int here;
    return self->current_device != NULL && (self->current_device(&here) != 0 || here != self->index);
}

/* Find the current stream through `stream_of(device)`; where that is None, through the library of the tensors. */
static int find_stream(const Launch *self, PyObject *stream_of, void **out)
{
    if (stream_of == Py_None)
        return streams(DEVICE_CUDA, (int32_t)self->index, out);
    OWNED PyObject *stream = PyObject_CallFunctionObjArgs(stream_of, self->device, NULL);
    if (stream == NULL)
        return -1;
    *out = (void *)(uintptr_t)PyLong_AsUnsignedLongLong(stream);
    return PyErr_Occurred() ? -1 : 0;
}

/* Put one leaf by its letter. Its address, its number, or the `key` of a descriptor is known. */
static inline int put_leaf(const Launch *self, char kind, const Leaf *leaf, Key *key, Packed *to)
{
    int fits = leaf->what == NUMBER && kind != 'P' && !is_real(kind) && holds(kind, (long long)leaf->word);
    if (kind == 'T' || leaf->what == DESCRIPTOR)
        return kind == 'T' && leaf->what == DESCRIPTOR ? put_descriptor(self, leaf, key, to) : -1;
    if (leaf->what == ADDRESS ? kind != 'P' : !fits)
        return put_argument(kind, leaf->value, to);
    put_word(to, leaf->word);
    return 0;
}

/* Put the pointers that close every list: global and profile scratch. Return the objects that keep them alive, or NULL with or without an error. */
static PyObject *take_scratch(const Launch *self, const Config *config, Packed *to)
{
    const unsigned int *grid = config->grid;
    unsigned long long global = 0, profile = 0, programs = (unsigned long long)grid[0] * grid[1] * grid[2];
    PyObject *answer = NULL;
    if (self->allocate != Py_None)
        answer = PyObject_CallFunction(self->allocate, "KK", programs, (unsigned long long)(uintptr_t)config->stream);
    if (answer != NULL && !PyArg_ParseTuple(answer, "KKO", &global, &profile, &(PyObject *){NULL}))
        Py_CLEAR(answer);
    put_word(to, global);
    put_word(to, profile);
    return answer;
}

/* Launch through a driver in Python. */
static __attribute__((noinline)) int launch_in_python(const Launch *self, const Config *config, void **parameters)
{
    OWNED PyObject *answer = PyObject_CallFunction(self->stand_in, "KK", (unsigned long long)(uintptr_t)config,
                                                   (unsigned long long)(uintptr_t)parameters);
    return answer == NULL ? -1 : (int)PyLong_AsLong(answer);
}

/* Launch with the leaves of the arguments, or with `flat` ones, on `stream`, the current one where it is NULL; unless it returns 0, nothing was launched. */
static int send(const Launch *self, PyObject *stream_of, Reader *from, PyObject *const *flat, const unsigned int *grid,
                PyObject *stream)
{
    Packed packed;
    Config config = self->config;
    const char *kind = self->kinds;
    size_t leaf = 0, descriptor = 0;
    memcpy(config.grid, grid, sizeof config.grid);
    config.attributes = (void *)self->attributes;
    packed.used = packed.map = 0;
    if (stream != NULL)
        config.stream = (void *)(uintptr_t)PyLong_AsUnsignedLongLong(stream);
    if (stream != NULL ? PyErr_Occurred() != NULL : find_stream(self, stream_of, &config.stream) != 0)
        return -1;
    for (; flat != NULL && *kind; kind++)
        if (*kind != 'x' && put_argument(*kind, flat[kind - self->kinds], &packed) < 0)
            return -1;
    for (; *kind; kind++) {
        Leaf *next = &from->leaf[leaf];
        if (*kind == '(' || *kind == ')')
            continue;
        if (leaf++ == from->leaves)
            return -1;
        if (*kind != 'x' && put_leaf(self, *kind, next, &from->keys[descriptor], &packed) < 0)
            return -1;
        descriptor += next->what == DESCRIPTOR;
    }
    if (flat == NULL && leaf != from->leaves)
        return -1;
    OWNED PyObject *owners = take_scratch(self, &config, &packed);
    int status = owners == NULL && PyErr_Occurred() ? -1 : put_made(self, &packed);
    if (status)
        return status;
    config.grid[0] *= self->ctas;
    if (self->call == NULL)
        return launch_in_python(self, &config, packed.parameters);
    Py_BEGIN_ALLOW_THREADS
    status = self->call(&config, self->function, packed.parameters, NULL);
    Py_END_ALLOW_THREADS
    return status;
}

/* Read the arguments of a launch by its letters, those outside tuples when they are put; constants at the end may be missing. */
static int read_arguments(const Launch *launch, PyObject *const *args, Py_ssize_t count, Reader *to)
{
    const char *kind = launch->kinds;
    start(to, NULL, NULL);
    for (Py_ssize_t i = 0; i < launch->count; i++) {
        PyObject *value = i < count ? args[i] : Py_None;
        int depth = *kind == '(';
        if (depth ? read_value(to, value, 0)
                  : *kind == 'T' ? read_descriptor(to, value) : add_leaf(to, value, PLAIN, 0))
            return -1;
        while (*++kind && depth)
            depth += (*kind == '(') - (*kind == ')');
    }
    return 0;
}

/* See the methods of engine.c. */
static COLD PyObject *launch(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count)
{
    const Launch *self = count < 3 ? NULL : content(args[0], sizeof *self);
    Reader reader;
    unsigned int grid[3];
    if (self == NULL || !PyArg_ParseTuple(args[1], "III", &grid[0], &grid[1], &grid[2]))
        return NULL;
    int status = read_arguments(self, args + 3, count - 3, &reader);
    if (!status)
        status = send(self, NULL, &reader, NULL, grid, args[2]);
    if (status < 0 && !PyErr_Occurred())
        PyErr_SetString(PyExc_OverflowError, "the value is too large, or has another structure");
    return PyErr_Occurred() ? NULL : PyLong_FromLong(status);
}

/* A prepared launch. `fallback`, written in Python, knows defaults, keywords, another grid, and mistakes. */
typedef struct {
    const Launch *launch;
    PyObject *stream_of, *fallback;
    unsigned int grid[3];
    Py_ssize_t least, most;     /* arguments */
    size_t leaves, descriptors; /* from here on, only where all but some tensors is fixed */
    const Leaf *leaf;
    const Key *keys;
} Handle;

/* Take the fixed arguments, and put the tensors of a call in their places. */
static int fill(const Handle *self, PyObject *const *args, Reader *to)
{
    start(to, NULL, NULL);
    to->leaves = self->leaves;
    memcpy(to->leaf, self->leaf, self->leaves * sizeof *to->leaf);
    memcpy(to->keys, self->keys, self->descriptors * sizeof *to->keys);
    for (size_t i = 0; i < to->leaves; i++) {
        Leaf *leaf = &to->leaf[i];
        View view;
        if (leaf->tensor && !view_of(args[leaf->tensor - 1], &view))
            return -1;
        if (leaf->tensor)
            leaf->word = start_of(&view);
    }
    return 0;
}

static PyObject *handle(PyObject *own, PyObject *const *args, Py_ssize_t count, PyObject *keywords)
{
    const Handle *self = (const void *)PyBytes_AsString(PyTuple_GetItem(own, 0));
    const Launch *launch = self->launch;
    Reader reader;
    int failed = keywords != NULL || count < self->least || count > self->most || is_elsewhere(launch);
    PyObject *const *flat = launch->flat && !self->leaves ? args : NULL;
    if (!failed && flat == NULL)
        failed = self->leaves ? fill(self, args, &reader) : read_arguments(launch, args, count, &reader);
    failed = failed || send(launch, self->stream_of, &reader, flat, self->grid, NULL);
    if (!failed)
        Py_RETURN_NONE;
    PyErr_Clear();
    return call_python(self->fallback, NULL, args, count, keywords);
}

static PyMethodDef handle_method = {"handle", (PyCFunction)(void (*)(void))handle,
                                    METH_FASTCALL | METH_KEYWORDS, "handle(*arguments)"};

static PyObject *as_function(const Handle *self, PyObject *owner)
{
    OWNED PyObject *own = Py_BuildValue("y#O", self, sizeof *self, owner);
    return own == NULL ? NULL : PyCFunction_NewEx(&handle_method, own, NULL);
}

static COLD PyObject *bind(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *launch;
    Handle self = {0};
    if (!PyArg_ParseTuple(args, "O!(III)OO", &PyTuple_Type, &launch, &self.grid[0], &self.grid[1], &self.grid[2],
                          &self.stream_of, &self.fallback) ||
        (self.launch = content(launch, sizeof *self.launch)) == NULL)
        return NULL;
    self.least = self.launch->least;
    self.most = self.launch->count;
    return as_function(&self, args);
}

/* Return which of the marks this is, from 1 on: the argument itself, or the base of a descriptor; 0 for none. */
static int mark_of(const Leaf *leaf, PyObject *marks)
{
    OWNED PyObject *base = leaf->what == DESCRIPTOR ? PyObject_GetAttr(leaf->value, names[BASE]) : NULL;
    int i = (int)PyTuple_Size(marks);
    while (i > 0 && PyTuple_GetItem(marks, i - 1) != (base == NULL ? leaf->value : base))
        i--;
    return i;
}

static COLD PyObject *refill(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *bound, *arguments, *marks, *fallback, *values[MAX_PARAMETERS];
    Reader reader;
    Py_ssize_t count = 0;
    if (!PyArg_ParseTuple(args, "OO!O!O", &bound, &PyTuple_Type, &arguments, &PyTuple_Type, &marks, &fallback))
        return NULL;
    OWNED PyObject *own = PyObject_GetAttr(bound, names[SELF]);
    const Handle *source = own == NULL ? NULL : content(own, sizeof *source);
    if (source == NULL)
        return NULL;
    for (; count < PyTuple_Size(arguments) && count < MAX_PARAMETERS; count++)
        values[count] = PyTuple_GetItem(arguments, count);
    if (count < source->least || read_arguments(source->launch, values, count, &reader) < 0) {
        PyErr_Clear();
        Py_RETURN_NONE;
    }
    for (size_t i = 0; i < reader.leaves; i++) {
        Leaf *leaf = &reader.leaf[i];
        leaf->tensor = mark_of(leaf, marks);
        if (leaf->tensor && leaf->what != DESCRIPTOR)
            *leaf = (Leaf){Py_None, 0, ADDRESS, leaf->tensor};
    }
    OWNED PyObject *owner = Py_BuildValue("Oy#y#", args, reader.leaf, reader.leaves * sizeof(Leaf), reader.keys,
                                          reader.descriptors * sizeof(Key));
    if (owner == NULL)
        return NULL;
    Handle self = *source;
    self.fallback = fallback;
    self.least = self.most = PyTuple_Size(marks);
    self.leaves = reader.leaves;
    self.descriptors = reader.descriptors;
    self.leaf = (const void *)PyBytes_AsString(PyTuple_GetItem(owner, 1));
    self.keys = (const void *)PyBytes_AsString(PyTuple_GetItem(owner, 2));
    return as_function(&self, owner);
}

/* Return dtype, device, sizes, strides and alignment to 16 bytes of each tensor of a GPU; None stands for itself. */
static PyObject *signature(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count)
{
    Reader to;
    start(&to, NULL, NULL);
    for (Py_ssize_t i = 0; i < count; i++) {
        View view;
        if (args[i] == Py_None ? add(&to, 0)
                               : !view_of(args[i], &view) || view.device.type == DEVICE_CPU || add_view(&to, &view))
            Py_RETURN_NONE;
    }
    return PyBytes_FromStringAndSize((const char *)to.word, (Py_ssize_t)(to.words * sizeof *to.word));
}
