/* `kernel[grid](...)` in C: part of engine.c, which includes it.
 *
 * A `Calls` object belongs to one kernel. `call(grid, *arguments, **options)` makes a key of what the
 * choice of a compiled kernel depends on, looks it up among the calls that `remember` was told of, and
 * launches. Whatever it has not met, or cannot read, goes to the function in Python that decides; that
 * one is asked as well where anything goes wrong, so that there is one place that reports it.
 */

#define MAX_PARAMETERS 128
#define MAX_OPTIONS 16
#define MOST_CALLS 4096 /* kept for a kernel; then all are forgotten */

typedef struct {
    PyObject *name, *otherwise; /* otherwise: the default, or NULL */
    int flags;
} Parameter;

/* What a call is answered with. */
typedef struct {
    uint64_t hash;
    uint64_t *words;
    size_t count;
    PyObject *launch, *stream_of, *device, *compiled, *owners; /* owners: what words point to */
    PyObject *sizes; /* the grid where a call names none, or None */
    PyObject *told;  /* what a grid function is told of each constant; None: what the call says */
    const Launch *made; /* within `launch` */
    int index;
} Known;

typedef struct {
    PyObject_HEAD
    Parameter parameters[MAX_PARAMETERS];
    Py_ssize_t count, positional;
    PyObject *decide; /* an object whose attribute `entry` answers what is not known here */
    PyObject *runtime, *enter, *enter_calls, *leave, *leave_calls, *before; /* hooks of launches;
                                                                               runtime may be None */
    PyObject *stream; /* the name that calls give a stream by, or None */
    PyObject *globals, *changed;
    Rules rules;
    int (*current_device)(int *index); /* cuCtxGetDevice; NULL where there is one device */
    Known *table;                   /* a power of two, at most half full */
    size_t size, used;
} Calls;

/* 0 when it was launched; else nothing was. */
static int send_leaves(const Launch *launch, Reader *from, const unsigned int *grid, void *stream)
{
    Packed packed;
    Config config = launch->config;
    const char *kind;
    size_t leaf = 0, descriptor = 0;
    memcpy(config.grid, grid, sizeof config.grid);
    config.stream = stream;
    packed.used = packed.map = 0;
    for (kind = launch->kinds; *kind; kind++) {
        Leaf *next;
        if (*kind == '(' || *kind == ')')
            continue;
        if (leaf == from->leaves)
            return -1;
        next = &from->leaf[leaf++];
        if (*kind == 'x') {
            descriptor += next->what == DESCRIPTOR;
            continue;
        }
        if (*kind == 'T') {
            if (next->what != DESCRIPTOR ||
                put_descriptor(launch, next->value, &from->keys[descriptor++], &packed) < 0)
                return -1;
            continue;
        }
        if (*kind == 'P' && next->what == ADDRESS)
            packed.slots[packed.used] = next->address;
        else if (read_argument(*kind, next->value, &packed.slots[packed.used]) < 0)
            return -1;
        packed.parameters[packed.used] = &packed.slots[packed.used];
        packed.used++;
    }
    return leaf == from->leaves ? send(launch, &config, &packed) : -1;
}

static PyObject *entry_name, *enter_name, *leave_name;

/* The place of a key: that of the call itself, or an empty one. */
static Known *find(const Calls *self, uint64_t hash, const uint64_t *words, size_t count)
{
    size_t place;
    if (self->size == 0)
        return NULL;
    for (place = hash & (self->size - 1);; place = (place + 1) & (self->size - 1)) {
        Known *known = &self->table[place];
        if (known->words == NULL ||
            (known->hash == hash && known->count == count &&
             memcmp(known->words, words, count * sizeof *words) == 0))
            return known;
    }
}

static int has_some(PyObject *list)
{
    return PyList_Check(list) ? PyList_Size(list) != 0 : PyObject_IsTrue(list) != 0;
}

static int is_still(PyObject *object, PyObject *name, PyObject *what)
{
    PyObject *now = PyObject_GetAttr(object, name);
    Py_XDECREF(now);
    return now == what;
}

/* Whether somebody wants to see every launch, or a global has another value: Python's part. */
static int is_watched(const Calls *self)
{
    int changed = 0;
    if (self->runtime == Py_None)
        return 0;
    if (!is_still(self->runtime, enter_name, self->enter) ||
        !is_still(self->runtime, leave_name, self->leave) || has_some(self->enter_calls) ||
        has_some(self->leave_calls) || has_some(self->before))
        return 1;
    if (has_some(self->globals)) {
        PyObject *answer = PyObject_CallNoArgs(self->changed);
        changed = answer == NULL || PyObject_IsTrue(answer) != 0;
        Py_XDECREF(answer);
    }
    return changed;
}

/* An int, or a tuple of one to three, that a device takes and that is not empty. */
static int read_grid(PyObject *grid, unsigned int *out)
{
    static const long most[3] = {0x7fffffff, 65535, 65535};
    Py_ssize_t axis, count = 1;
    int whole = Py_TYPE(grid) == &PyLong_Type;
    out[0] = out[1] = out[2] = 1;
    if (!whole && Py_TYPE(grid) != &PyTuple_Type)
        return -1;
    if (!whole)
        count = PyTuple_Size(grid);
    if (count < 1 || count > 3)
        return -1;
    for (axis = 0; axis < count; axis++) {
        PyObject *item = whole ? grid : PyTuple_GetItem(grid, axis);
        int overflow;
        long long size;
        if (Py_TYPE(item) != &PyLong_Type)
            return -1;
        size = PyLong_AsLongLongAndOverflow(item, &overflow);
        if (overflow || size < 1 || size > most[axis])
            return -1;
        out[axis] = (unsigned int)size;
    }
    return 0;
}

/* What a function of the arguments by name says the grid is. */
static PyObject *ask_grid(const Calls *self, PyObject *grid, PyObject *const *values,
                          PyObject *told)
{
    PyObject *answer, *named = PyDict_New();
    Py_ssize_t i;
    for (i = 0; named != NULL && i < self->count; i++) {
        const Parameter *of = &self->parameters[i];
        PyObject *value = values[i];
        if (told != Py_None && of->flags & CONSTANT)
            value = PyTuple_GetItem(told, i);
        if (value == NULL || PyDict_SetItem(named, of->name, value) < 0)
            Py_CLEAR(named);
    }
    if (named == NULL)
        return NULL;
    answer = PyObject_CallFunctionObjArgs(grid, named, NULL);
    Py_DECREF(named);
    return answer;
}

/* The arguments by parameter, and the options. Below 0 where Python has to say what is wrong. */
static int place_arguments(const Calls *self, PyObject *const *args, Py_ssize_t count,
                           PyObject *keywords, PyObject **values, PyObject **options,
                           Py_ssize_t *optional, PyObject **stream)
{
    Py_ssize_t i, j, named = keywords == NULL ? 0 : PyTuple_Size(keywords);
    if (count > self->positional)
        return -1;
    for (i = 0; i < count; i++)
        values[i] = args[i];
    for (; i < self->count; i++)
        values[i] = NULL;
    for (i = 0; i < named; i++) {
        PyObject *name = PyTuple_GetItem(keywords, i);
        for (j = count; j < self->count && self->parameters[j].name != name; j++) {
        }
        if (j < self->count) {
            values[j] = args[count + i];
        } else if (name == self->stream) {
            *stream = args[count + i];
        } else {
            if (*optional == 2 * MAX_OPTIONS)
                return -1;
            options[(*optional)++] = name;
            options[(*optional)++] = args[count + i];
        }
    }
    for (i = count; i < self->count; i++)
        if (values[i] == NULL && (values[i] = self->parameters[i].otherwise) == NULL)
            return -1;
    return 0;
}

static PyObject *decide(const Calls *self, PyObject *const *args, Py_ssize_t count,
                        PyObject *keywords)
{
    PyObject *result, *entry = PyObject_GetAttr(self->decide, entry_name);
    if (entry == NULL)
        return NULL;
    result = call_python(entry, args, count, keywords);
    Py_DECREF(entry);
    return result;
}

static PyObject *calls_call(PyObject *object, PyObject *const *args, Py_ssize_t count,
                            PyObject *keywords)
{
    Calls *self = (Calls *)object;
    PyObject *values[MAX_PARAMETERS], *options[2 * MAX_OPTIONS];
    PyObject *launch, *compiled, *stream_of, *device, *told, *sizes, *on = NULL, *result = NULL;
    void *stream;
    Py_ssize_t optional = 0, i;
    unsigned int grid[3];
    int here, status = -1;
    uint64_t hash;
    Reader reader;
    const Launch *made;
    Known *known;

    if (count < 1 ||
        place_arguments(self, args + 1, count - 1, keywords, values, options, &optional, &on) < 0)
        goto python;
    if (on != NULL && Py_TYPE(on) != &PyLong_Type)
        goto python;
    reader.rules = &self->rules;
    reader.words = reader.leaves = reader.descriptors = 0;
    for (i = 0; i < self->count; i++)
        if (read_value(&reader, values[i], self->parameters[i].flags))
            goto python;
    for (i = 0; i < optional; i += 2)
        if (read_option(&reader, options[i], options[i + 1]))
            goto python;
    reader.leaves -= (size_t)optional / 2; /* options are no arguments */
    if (is_watched(self))
        goto python;
    hash = hash_words(reader.word, reader.words);
    known = find(self, hash, reader.word, reader.words);
    if (known == NULL || known->words == NULL)
        goto python;
    if (self->current_device != NULL &&
        (self->current_device(&here) != 0 || here != known->index))
        goto python;
    /* what is called from here on may make this object forget the call */
    launch = known->launch;
    compiled = known->compiled;
    stream_of = known->stream_of;
    device = known->device;
    made = known->made;
    told = known->told;
    sizes = args[0] == Py_None ? known->sizes : args[0];
    Py_INCREF(launch);
    Py_INCREF(compiled);
    Py_INCREF(stream_of);
    Py_INCREF(device);
    Py_INCREF(told);
    Py_INCREF(sizes);
    if (read_grid(sizes, grid) < 0) {
        PyObject *asked = PyCallable_Check(sizes) ? ask_grid(self, sizes, values, told) : NULL;
        if (asked == NULL) {
            if (!PyErr_Occurred())
                result = decide(self, args, count, keywords);
            goto done;
        }
        if (read_grid(asked, grid) < 0) {
            PyObject *others[2 + MAX_PARAMETERS + MAX_OPTIONS];
            Py_ssize_t all = count + (keywords == NULL ? 0 : PyTuple_Size(keywords));
            memcpy(others, args, (size_t)all * sizeof *others);
            if (!PyCallable_Check(asked))
                others[0] = asked; /* the function has been asked once */
            result = decide(self, others, count, keywords);
            Py_DECREF(asked);
            goto done;
        }
        Py_DECREF(asked);
    }
    if (on != NULL) {
        stream = (void *)(uintptr_t)PyLong_AsUnsignedLongLong(on);
        if (!PyErr_Occurred())
            status = send_leaves(made, &reader, grid, stream);
    } else if (find_stream(stream_of, device, &stream) == 0)
        status = send_leaves(made, &reader, grid, stream);
    if (status == 0) {
        Py_INCREF(compiled);
        result = compiled;
    } else { /* nothing was launched: Python tries again, or says why not */
        PyErr_Clear();
        result = decide(self, args, count, keywords);
    }
done:
    Py_DECREF(launch);
    Py_DECREF(compiled);
    Py_DECREF(stream_of);
    Py_DECREF(device);
    Py_DECREF(told);
    Py_DECREF(sizes);
    return result;
python:
    PyErr_Clear();
    return decide(self, args, count, keywords);
}

static void release(Known *known)
{
    PyMem_Free(known->words);
    Py_XDECREF(known->launch);
    Py_XDECREF(known->stream_of);
    Py_XDECREF(known->device);
    Py_XDECREF(known->compiled);
    Py_XDECREF(known->owners);
    Py_XDECREF(known->sizes);
    Py_XDECREF(known->told);
}

static void forget_calls(Calls *self)
{
    Known *table = self->table;
    size_t i, size = self->size;
    self->table = NULL;
    self->size = self->used = 0;
    for (i = 0; i < size; i++)
        if (table[i].words != NULL)
            release(&table[i]);
    PyMem_Free(table);
}

static int make_room(Calls *self)
{
    size_t i, size = self->size ? 2 * self->size : 16;
    Known *table, *before = self->table;
    if (2 * (self->used + 1) <= self->size)
        return 0;
    table = PyMem_Calloc(size, sizeof *table);
    if (table == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    self->table = table;
    i = self->size;
    self->size = size;
    while (i-- > 0)
        if (before[i].words != NULL)
            *find(self, before[i].hash, before[i].words, before[i].count) = before[i];
    PyMem_Free(before);
    return 0;
}

static int read_all(Reader *reader, Calls *self, PyObject *values, PyObject *options)
{
    PyObject *name, *value;
    Py_ssize_t i, place = 0;
    reader->rules = &self->rules;
    reader->words = reader->leaves = reader->descriptors = 0;
    if (PyTuple_Size(values) != self->count) {
        PyErr_SetString(PyExc_ValueError, "one value for each parameter");
        return -1;
    }
    for (i = 0; i < self->count; i++)
        if (read_value(reader, PyTuple_GetItem(values, i), self->parameters[i].flags))
            return -1;
    while (PyDict_Next(options, &place, &name, &value))
        if (read_option(reader, name, value))
            return -1;
    return 0;
}

static PyObject *calls_key(PyObject *object, PyObject *args)
{
    PyObject *values, *options;
    Reader reader;
    if (!PyArg_ParseTuple(args, "O!O!", &PyTuple_Type, &values, &PyDict_Type, &options))
        return NULL;
    if (read_all(&reader, (Calls *)object, values, options) < 0) {
        PyErr_Clear();
        Py_RETURN_NONE;
    }
    return PyBytes_FromStringAndSize((const char *)reader.word,
                                     (Py_ssize_t)(reader.words * sizeof *reader.word));
}

static PyObject *calls_remember(PyObject *object, PyObject *args)
{
    Calls *self = (Calls *)object;
    PyObject *values, *options, *launch, *stream_of, *device, *compiled, *owners, *capsule;
    PyObject *sizes = Py_None, *told = Py_None;
    Reader reader;
    Known made, *place;
    if (!PyArg_ParseTuple(args, "O!O!OOO!OO|OO", &PyTuple_Type, &values, &PyDict_Type, &options,
                          &launch, &stream_of, &PyLong_Type, &device, &compiled, &owners, &sizes,
                          &told))
        return NULL;
    capsule = PyObject_GetAttr(launch, self_name);
    made.made = capsule == NULL ? NULL : PyCapsule_GetPointer(capsule, "gluon.launch");
    if (made.made == NULL || read_all(&reader, self, values, options) < 0) {
        Py_XDECREF(capsule);
        PyErr_Clear();
        Py_RETURN_FALSE;
    }
    Py_DECREF(capsule);
    if (self->used >= MOST_CALLS)
        forget_calls(self);
    if (make_room(self) < 0)
        return NULL;
    made.hash = hash_words(reader.word, reader.words);
    made.count = reader.words;
    made.index = (int)PyLong_AsLong(device);
    made.words = PyMem_Malloc(reader.words * sizeof *reader.word + 1);
    if (made.words == NULL)
        return PyErr_NoMemory();
    memcpy(made.words, reader.word, reader.words * sizeof *reader.word);
    Py_INCREF(made.launch = launch);
    Py_INCREF(made.stream_of = stream_of);
    Py_INCREF(made.device = device);
    Py_INCREF(made.compiled = compiled);
    Py_INCREF(made.owners = owners);
    Py_INCREF(made.sizes = sizes);
    Py_INCREF(made.told = told);
    place = find(self, made.hash, made.words, made.count);
    if (place->words != NULL) {
        Known before = *place;
        *place = made;
        release(&before);
    } else {
        *place = made;
        self->used++;
    }
    Py_RETURN_TRUE;
}

static PyObject *calls_forget(PyObject *object, PyObject *unused)
{
    forget_calls((Calls *)object);
    Py_RETURN_NONE;
}

#define EACH_OBJECT(what)                                                                          \
    what(self->decide) what(self->runtime) what(self->enter) what(self->enter_calls)               \
        what(self->leave) what(self->leave_calls) what(self->before) what(self->globals)           \
            what(self->changed) what(self->rules.described) what(self->stream)

static int calls_traverse(PyObject *object, visitproc visit, void *arg)
{
    Calls *self = (Calls *)object;
    size_t i;
    Py_ssize_t j;
#define VISIT(field) Py_VISIT(field);
    EACH_OBJECT(VISIT)
    for (j = 0; j < self->count; j++)
        Py_VISIT(self->parameters[j].otherwise);
    for (i = 0; i < self->size; i++)
        if (self->table[i].words != NULL) {
            Py_VISIT(self->table[i].launch);
            Py_VISIT(self->table[i].stream_of);
            Py_VISIT(self->table[i].compiled);
            Py_VISIT(self->table[i].owners);
            Py_VISIT(self->table[i].told);
        }
    Py_VISIT(Py_TYPE(object));
    return 0;
}

static int calls_clear(PyObject *object)
{
    Calls *self = (Calls *)object;
    Py_ssize_t i;
    forget_calls(self);
    for (i = 0; i < self->count; i++) {
        Py_CLEAR(self->parameters[i].name);
        Py_CLEAR(self->parameters[i].otherwise);
    }
    self->count = self->positional = 0;
    return 0;
}

static void calls_free(PyObject *object)
{
    Calls *self = (Calls *)object;
    PyTypeObject *cls = Py_TYPE(object);
    freefunc give_back = (freefunc)PyType_GetSlot(cls, Py_tp_free);
    PyObject_GC_UnTrack(object);
    calls_clear(object);
#define DROP(field) Py_XDECREF(field);
    EACH_OBJECT(DROP)
    give_back(object);
    Py_DECREF(cls);
}

static PyObject *calls_new(PyTypeObject *cls, PyObject *args, PyObject *keywords)
{
    PyObject *names, *defaults, *flags, *missing, *owner, *runtime, *enter, *leave, *before;
    PyObject *enter_calls, *leave_calls, *globals, *changed, *described, *stream;
    long long divides, constant, least, most;
    unsigned long long current_device;
    Py_ssize_t count, positional, i;
    allocfunc allocate = (allocfunc)PyType_GetSlot(cls, Py_tp_alloc);
    Calls *self;
    if (!PyArg_ParseTuple(args, "O!O!O!OnOOOOOOOOOO!KO(LLLL)", &PyTuple_Type, &names, &PyTuple_Type,
                          &defaults, &PyTuple_Type, &flags, &missing, &positional, &owner,
                          &runtime, &enter, &enter_calls, &leave, &leave_calls, &before, &globals,
                          &changed, &PyTuple_Type, &described, &current_device, &stream, &divides,
                          &constant, &least, &most))
        return NULL;
    count = PyTuple_Size(names);
    if (count > MAX_PARAMETERS || PyTuple_Size(defaults) != count || PyTuple_Size(flags) != count ||
        positional > count) {
        PyErr_SetString(PyExc_ValueError, "too many parameters");
        return NULL;
    }
    self = (Calls *)allocate(cls, 0); /* zeroed */
    if (self == NULL)
        return NULL;
    for (i = 0; i < count; i++) {
        Parameter *to = &self->parameters[i];
        PyObject *otherwise = PyTuple_GetItem(defaults, i);
        to->name = PyTuple_GetItem(names, i);
        Py_INCREF(to->name);
        PyUnicode_InternInPlace(&to->name);
        if (otherwise != missing) {
            Py_INCREF(otherwise);
            to->otherwise = otherwise;
        }
        to->flags = (int)PyLong_AsLong(PyTuple_GetItem(flags, i));
    }
    self->count = count;
    self->positional = positional;
    self->current_device = (int (*)(int *))(uintptr_t)current_device;
    self->decide = owner;
    self->runtime = runtime;
    self->enter = enter;
    self->enter_calls = enter_calls;
    self->leave = leave;
    self->leave_calls = leave_calls;
    self->before = before;
    self->globals = globals;
    self->changed = changed;
    self->rules.described = described;
    self->rules.divides = divides;
    self->rules.constant = constant;
    self->rules.least = least;
    self->rules.most = most;
    self->stream = stream; /* interned, as names in calls are */
#define TAKE(field) Py_INCREF(field);
    EACH_OBJECT(TAKE)
    return (PyObject *)self;
}

static PyMethodDef calls_methods[] = {
    {"call", (PyCFunction)(void (*)(void))calls_call, METH_FASTCALL | METH_KEYWORDS,
     "call(grid, *arguments, **options)"},
    {"key", calls_key, METH_VARARGS,
     "key(values, options)\n\nThe key as bytes; None where only Python can tell."},
    {"remember", calls_remember, METH_VARARGS,
     "remember(values, options, launch, stream_of, device, compiled, owners, sizes=None, told=None)\n\n"
     "Answer calls like this one from now on; False where C cannot. `sizes` is the grid of calls that\n"
     "give None for it; `told` has a value per parameter: what grid functions get for constants."},
    {"forget", calls_forget, METH_NOARGS, "forget()\n\nKnow no call any more."},
    {NULL, NULL, 0, NULL}};

static PyType_Slot calls_slots[] = {
    {Py_tp_new, calls_new},           {Py_tp_dealloc, calls_free}, {Py_tp_traverse, calls_traverse},
    {Py_tp_clear, calls_clear},       {Py_tp_methods, calls_methods},
    {0, NULL}};

static PyType_Spec calls_spec = {"gluon_runtime._engine.Calls", sizeof(Calls), 0,
                                 Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, calls_slots};
