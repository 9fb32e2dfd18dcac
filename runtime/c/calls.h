/* `kernel[grid](...)` in C: part of engine.c.
 *
 * `Calls` is the base of the class of kernels. `over(grid)(*arguments, **options)` makes the key of a call, looks it up
 * among those that `remember` was given, and launches. A call that it has not met, or cannot read, goes to `entry` in
 * Python, which decides; one that fails goes to `run`, so that one place reports it.
 */

#define MAX_OPTIONS 16
#define MAX_WATCHED 6

typedef struct {
    PyObject *name, *otherwise; /* otherwise: the default, or NULL */
    int flags;
} Parameter;

enum { RESULT = 3, GRID, LEFT, HIT }; /* places of a `calls.Hit`: its result, grid and constants, and their end */
enum { WHAT, STREAM_OF, ANSWERED };    /* places of an answer: the hit, these and its result; launch and owners follow */

typedef struct {
    PyObject_HEAD
    PyObject *owner; /* the arguments of the constructor, which own all other objects */
    Parameter parameters[MAX_PARAMETERS];
    Py_ssize_t count, positional;
    PyObject *absent; /* the value of a constant that a call leaves out */
    PyObject *watched[2 * MAX_WATCHED]; /* lists and dictionaries, each with a function; see `Calls` in calls.py */
    PyObject *stream; /* the name that calls give a stream by, or None */
    PyObject *is_small; /* returns whether the storage of a tensor is small */
    int ranged;         /* that matters */
    PyObject *equals;   /* see `Reader`; the constants that calls may have equals of */
    Rules rules;
    Table table; /* the answers */
    PyObject *latest, *bound; /* the last function of `over` for a grid of known sizes, its tuple, */
    unsigned int sizes[3];    /* and these */
} Calls;

/* Return whether Python has to look at a call: one of the lists has entries, and its function says so. */
static int is_watched(const Calls *self)
{
    for (int i = 0; i < 2 * MAX_WATCHED && self->watched[i] != NULL; i += 2) {
        PyObject *list = self->watched[i];
        if ((PyList_CheckExact(list) ? Py_SIZE(list) : PyDict_Size(list)) == 0)
            continue;
        OWNED PyObject *answer = PyObject_CallNoArgs(self->watched[i + 1]);
        if (answer == NULL || PyObject_IsTrue(answer) != 0)
            return 1;
    }
    return 0;
}

/* Read an int, or a tuple of one to three, that a device takes and that is not empty. */
static int read_grid(PyObject *grid, unsigned int *out)
{
    static const long most[3] = {0x7fffffff, 65535, 65535};
    int whole = Py_TYPE(grid) == &PyLong_Type, overflow;
    Py_ssize_t count = whole ? 1 : Py_TYPE(grid) == &PyTuple_Type ? PyTuple_Size(grid) : 0;
    out[0] = out[1] = out[2] = 1;
    if (count < 1 || count > 3)
        return -1;
    for (Py_ssize_t axis = 0; axis < count; axis++) {
        PyObject *item = whole ? grid : PyTuple_GetItem(grid, axis);
        long long size = Py_TYPE(item) == &PyLong_Type ? PyLong_AsLongLongAndOverflow(item, &overflow) : 0;
        if (size < 1 || size > most[axis]) /* an overflow is -1 */
            return -1;
        out[axis] = (unsigned int)size;
    }
    return 0;
}

/* Return the grid that a function of the arguments by name gives. */
static PyObject *ask_grid(const Calls *self, PyObject *grid, PyObject *const *values, PyObject *constants)
{
    OWNED PyObject *named = PyDict_New();
    for (Py_ssize_t i = 0; named != NULL && i < self->count; i++) {
        PyObject *value = values[i] == self->absent ? PyTuple_GetItem(constants, i) : values[i];
        if (value == NULL || PyDict_SetItem(named, self->parameters[i].name, value) < 0)
            return NULL;
    }
    return named == NULL ? NULL : PyObject_CallFunctionObjArgs(grid, named, NULL);
}

/* A call, read. */
typedef struct {
    PyObject *values[MAX_PARAMETERS], *options[2 * MAX_OPTIONS], *stream;
    Py_ssize_t optional;
    Reader reader;
} Call;

/* Find the argument of each parameter, and the options. Below 0 where Python reports a missing one. */
static HOT int place_arguments(const Calls *self, PyObject *const *args, Py_ssize_t count, PyObject *keywords, Call *to)
{
    Py_ssize_t j, named = keywords == NULL ? 0 : PyTuple_Size(keywords);
    to->stream = NULL;
    to->optional = 0;
    if (count > self->positional)
        return -1;
    for (Py_ssize_t i = 0; i < self->count; i++)
        to->values[i] = i < count ? args[i] : NULL;
    for (Py_ssize_t i = 0; i < named; i++) {
        PyObject *name = PyTuple_GetItem(keywords, i);
        for (j = count; j < self->count && self->parameters[j].name != name; j++) {
        }
        if (j < self->count)
            to->values[j] = args[count + i];
        else if (name == self->stream)
            to->stream = args[count + i];
        else if (to->optional == 2 * MAX_OPTIONS)
            return -1;
        else {
            to->options[to->optional++] = name;
            to->options[to->optional++] = args[count + i];
        }
    }
    for (Py_ssize_t i = count; i < self->count; i++)
        if (to->values[i] == NULL && (to->values[i] = self->parameters[i].otherwise) == NULL)
            return -1;
    return to->stream != NULL && Py_TYPE(to->stream) != &PyLong_Type ? -1 : 0;
}

static inline int read_call(const Calls *self, Call *call, PyObject *equals, PyObject *owners, PyObject *comparable)
{
    start(&call->reader, &self->rules, self->ranged ? self->is_small : NULL);
    call->reader.equals = equals;
    call->reader.owners = owners;
    call->reader.comparable = comparable;
    for (Py_ssize_t i = 0; i < self->count; i++)
        if (read_value(&call->reader, call->values[i], self->parameters[i].flags))
            return -1;
    for (Py_ssize_t i = 0; i < call->optional; i += 2)
        if (read_option(&call->reader, call->options[i], call->options[i + 1]))
            return -1;
    return 0;
}

/* Have Python make a launch that is none of this engine, on another device, or that failed. */
static PyObject *run(Calls *self, const Call *call, PyObject *known, PyObject *grid)
{
    OWNED PyObject *values = tuple_of(NULL, call->values, self->count);
    PyObject *door = (PyObject *)self, *hit = PyTuple_GetItem(known, WHAT);
    PyObject *stream = call->stream == NULL ? Py_None : call->stream;
    return values == NULL ? NULL : PyObject_CallMethodObjArgs(door, names[RUN], hit, grid, stream, values, NULL);
}

/* Return the answer of a call, by its constants or by equal ones. */
static const Known *search(Calls *self, Call *call)
{
    const Known *known = NULL;
    for (int again = 0; known == NULL && (!again || (again == 1 && PyDict_Size(self->equals) > 0)); again++) {
        if (read_call(self, call, again ? self->equals : NULL, NULL, NULL) < 0)
            return NULL;
        known = find(&self->table, call->reader.word, call->reader.words);
    }
    return known;
}

/* `kernel[grid](...)`; `bound` is a tuple of the calls and the grid. */
static PyObject *over_call(PyObject *bound, PyObject *const *args, Py_ssize_t count, PyObject *keywords)
{
    Calls *self = (Calls *)PyTuple_GetItem(bound, 0);
    PyObject *grid = PyTuple_GetItem(bound, 1);
    const Launch *launch = NULL;
    const Known *found;
    Call call;
    unsigned int sizes[3];
    int elsewhere = 0;
    if (place_arguments(self, args, count, keywords, &call) < 0 || is_watched(self) ||
        (found = search(self, &call)) == NULL ||
        ((launch = found->part) != NULL && (elsewhere = is_elsewhere(launch)) && !call.reader.placed)) {
        PyErr_Clear();
        OWNED PyObject *entry = PyObject_GetAttr((PyObject *)self, names[ENTRY]);
        return entry == NULL ? NULL : call_python(entry, grid, args, count, keywords);
    }
    /* Functions that are called from here on may make this object forget the call. */
    OWNED PyObject *asked = NULL, *known = Py_NewRef(found->answer);
    if (launch == NULL || elsewhere)
        return run(self, &call, known, grid);
    int unsized = 0;
    if (bound == self->bound)
        memcpy(sizes, self->sizes, sizeof sizes);
    else {
        PyObject *hit = PyTuple_GetItem(known, WHAT), *wanted = grid == Py_None ? PyTuple_GetItem(hit, GRID) : grid;
        unsized = read_grid(wanted, sizes);
        if (unsized && PyCallable_Check(wanted)) {
            if ((asked = ask_grid(self, wanted, call.values, PyTuple_GetItem(hit, LEFT))) == NULL)
                return NULL;
            unsized = read_grid(asked, sizes);
            grid = PyCallable_Check(asked) ? grid : asked; /* it is asked once */
        }
    }
    if (!unsized && send(launch, PyTuple_GetItem(known, STREAM_OF), &call.reader, NULL, sizes, call.stream) == 0)
        return Py_NewRef(PyTuple_GetItem(known, ANSWERED));
    PyErr_Clear(); /* Python tries again, or says why not */
    return run(self, &call, known, grid);
}

static PyMethodDef over_method = {"over", (PyCFunction)(void (*)(void))over_call, METH_FASTCALL | METH_KEYWORDS,
                                  "over(*arguments, **options)"};

/* over(grid): one function for all grids of the same sizes in a row. */
static PyObject *calls_over(PyObject *object, PyObject *grid)
{
    Calls *self = (Calls *)object;
    unsigned int sizes[3];
    int fixed = read_grid(grid, sizes) == 0;
    if (self->owner == NULL)
        return PyErr_Format(PyExc_TypeError, "Calls.__init__ was not called");
    if (fixed && self->latest != NULL && memcmp(self->sizes, sizes, sizeof sizes) == 0)
        return Py_NewRef(self->latest);
    OWNED PyObject *before = NULL, *bound = PyTuple_Pack(2, object, grid);
    PyObject *function = bound == NULL ? NULL : PyCFunction_NewEx(&over_method, bound, NULL);
    if (fixed && function != NULL) {
        memcpy(self->sizes, sizes, sizeof sizes);
        self->bound = bound; /* the function has it */
        before = self->latest;
        self->latest = Py_NewRef(function);
    }
    return function;
}

static void forget_calls(Calls *self)
{
    forget(&self->table);
    if (self->equals != NULL)
        PyDict_Clear(self->equals);
}

/* See calls_methods. */
static COLD PyObject *calls_remember(PyObject *object, PyObject *const *args, Py_ssize_t count, PyObject *keywords)
{
    Calls *self = (Calls *)object;
    Call call;
    int ranged = count == 5 ? PyObject_IsTrue(args[3]) : 0;
    const Launch *launch = count != 5 || args[1] == Py_None ? NULL : content(args[1], sizeof *launch);
    if (PyErr_Occurred() || count != 5 || !PyTuple_Check(args[0]) || PyTuple_Size(args[0]) != HIT || !PyTuple_Check(args[4]))
        return PyErr_Format(PyExc_TypeError, "remember takes a hit, a launch, a stream, whether it is ranged, and classes");
    if ((ranged && !self->ranged) || self->table.used == MOST_KNOWN)
        forget_calls(self);
    self->ranged |= ranged;
    OWNED PyObject *owners = PyList_New(0);
    if (owners == NULL || place_arguments(self, args + count, 0, keywords, &call) < 0 ||
        read_call(self, &call, self->equals, owners, args[4]) < 0 || PyErr_Occurred()) {
        PyErr_Clear();
        Py_RETURN_FALSE;
    }
    PyObject *answer = PyTuple_Pack(5, args[0], args[2], PyTuple_GetItem(args[0], RESULT), args[1], owners);
    return keep(&self->table, call.reader.word, call.reader.words, answer, launch) < 0 ? NULL : PyBool_FromLong(1);
}

static PyObject *calls_forget(PyObject *object, PyObject *Py_UNUSED(ignored))
{
    forget_calls((Calls *)object);
    Py_RETURN_NONE;
}

static COLD int calls_traverse(PyObject *object, visitproc visit, void *arg)
{
    Calls *self = (Calls *)object;
    Py_VISIT(self->owner);
    Py_VISIT(self->equals);
    Py_VISIT(self->latest);
    for (size_t i = 0; i < BUCKETS; i++)
        for (const Known *known = self->table.bucket[i]; known != NULL; known = known->next)
            Py_VISIT(known->answer);
    Py_VISIT(Py_TYPE(object));
    return 0;
}

static int calls_clear(PyObject *object)
{
    forget_calls((Calls *)object);
    ((Calls *)object)->bound = NULL;
    Py_CLEAR(((Calls *)object)->latest);
    return 0;
}

static COLD void calls_free(PyObject *object)
{
    Calls *self = (Calls *)object;
    PyTypeObject *cls = Py_TYPE(object);
    freefunc give_back = (freefunc)PyType_GetSlot(cls, Py_tp_free);
    PyObject_GC_UnTrack(object);
    calls_clear(object);
    Py_XDECREF(self->owner);
    Py_XDECREF(self->equals);
    give_back(object);
    Py_DECREF(cls);
}

/* Take the parameters; -1 with an exception where they are none. */
static int declare(Calls *self, PyObject *parameters)
{
    for (; self->count < PyTuple_Size(parameters); self->count++) {
        Parameter *to = &self->parameters[self->count];
        const char *kind;
        if (!PyArg_ParseTuple(PyTuple_GetItem(parameters, self->count), "UsOi", &to->name, &kind,
                              &to->otherwise, &to->flags))
            return -1;
        if (to->otherwise == self->absent && !(to->flags & CONSTANT))
            to->otherwise = NULL;
        self->positional += strcmp(kind, "plain") == 0;
    }
    return 0;
}

static COLD int calls_init(PyObject *object, PyObject *args, PyObject *Py_UNUSED(keywords))
{
    Calls *self = (Calls *)object;
    PyObject *parameters, *watched;
    if (self->owner != NULL)
        PyErr_SetString(PyExc_TypeError, "Calls.__init__ was called before");
    if (self->owner != NULL || (self->equals = PyDict_New()) == NULL)
        return -1;
    Py_INCREF(self->owner = args);
    if (!PyArg_ParseTuple(args, "O!OO!OO(LLLL)", &PyTuple_Type, &parameters, &self->absent, &PyTuple_Type, &watched,
                          &self->stream, &self->is_small, &self->rules.divides, &self->rules.constant,
                          &self->rules.least, &self->rules.most))
        return -1;
    for (Py_ssize_t i = 0; i < PyTuple_Size(watched) && i < 2 * MAX_WATCHED; i++)
        self->watched[i] = PyTuple_GetItem(watched, i);
    return declare(self, parameters);
}

static PyMethodDef calls_methods[] = {
    {"over", calls_over, METH_O, "over(grid)\n\nReturn `f(*arguments, **options)`, which answers calls."},
    {"remember", (PyCFunction)(void (*)(void))calls_remember, METH_FASTCALL | METH_KEYWORDS,
     "remember(hit, launch, stream_of, ranged, comparable, **arguments)\n\n"
     "Answer calls with these arguments from now on, see `Calls.learn`; False where C cannot. `launch` is that of\n"
     "`native.launch`, or None; `comparable` are the classes of constants whose equals compile alike."},
    {"forget", calls_forget, METH_NOARGS, "forget()\n\nForget all calls."},
    {NULL, NULL, 0, NULL}};

static PyType_Slot calls_slots[] = {
    {Py_tp_init, calls_init},         {Py_tp_dealloc, calls_free}, {Py_tp_traverse, calls_traverse},
    {Py_tp_clear, calls_clear},       {Py_tp_methods, calls_methods},
    {0, NULL}};

static PyType_Spec calls_spec = {"gluon_runtime._engine.Calls", sizeof(Calls), 0,
                                 Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC, calls_slots};
