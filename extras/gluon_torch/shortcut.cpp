/* The way of an operator's call past torch's dispatcher, and nodes of autograd whose formulas are Python functions. See shortcut.py. */
#include <ATen/PythonTorchFunctionTLS.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/profiler/api.h>
#include <torch/csrc/utils/object_ptr.h>

#include <deque>

namespace gluon {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

enum { MOST = 24, SLOTS = 48 }; /* arguments of a call, tensors of a sequence */

PyObject *to_save, *saved_tensors, *needs_input_grad, *wanted, *current_level; /* names */
PyObject *parameter, *checks, *forward_ad; /* torch.nn.Parameter, and the dictionaries of two modules */

[[noreturn]] void raise()
{
    python_error error;
    error.persist();
    throw std::move(error);
}

PyObject *checked(PyObject *object)
{
    if (object == nullptr)
        raise();
    return object;
}

/* -- the way of a call, see prepared.route --------------------------------------------------------------------- */

/* Return true if nothing but gradients is between a call and its kernel: no mode, transform, autocast, trace or profiler. */
bool is_unwatched()
{
    const auto local = c10::impl::tls_local_dispatch_key_set();
    /* Inference mode differs by these, and needs nothing of the dispatcher. */
    const auto included = local.included_.remove(c10::DispatchKey::ADInplaceOrView);
    const auto excluded = local.excluded_ - c10::autograd_dispatch_keyset;
    if (included != c10::default_included_set.remove(c10::DispatchKey::ADInplaceOrView) ||
        excluded != c10::default_excluded_set || at::impl::PythonTorchFunctionTLS::stack_len() > 0 ||
        torch::profiler::impl::profilerEnabled())
        return false;
    PyObject *debug = PyDict_GetItemWithError(checks, wanted), *level = PyDict_GetItemWithError(forward_ad, current_level);
    return debug == Py_False && level != nullptr && PyLong_AsLong(level) < 0;
}

PyObject *route(PyObject *, PyObject *const *arguments, Py_ssize_t count)
{
    long way = 1;
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *argument = arguments[i];
        if (argument == Py_None)
            continue;
        if ((PyObject *)Py_TYPE(argument) != THPVariableClass && (PyObject *)Py_TYPE(argument) != parameter)
            return PyLong_FromLong(0);
        const at::Tensor &tensor = THPVariable_Unpack(argument);
        if (!tensor.is_cuda() || tensor.is_neg())
            return PyLong_FromLong(0);
        if (tensor.requires_grad())
            way = 2;
    }
    if (!is_unwatched())
        way = 0;
    else if (way == 2 && !at::GradMode::is_enabled())
        way = 1;
    return PyErr_Occurred() ? nullptr : PyLong_FromLong(way);
}

PyObject *known_signature(PyObject *both, PyObject *const *tensors, Py_ssize_t count)
{
    PyObject *result = PyObject_Vectorcall(PyTuple_GET_ITEM(both, 0), tensors, (size_t)count, nullptr);
    if (result != Py_None)
        return result;
    Py_DECREF(result);
    return PyObject_Vectorcall(PyTuple_GET_ITEM(both, 1), tensors, (size_t)count, nullptr);
}

PyMethodDef signature_method = {"signature", (PyCFunction)(void (*)(void))known_signature, METH_FASTCALL,
                                "signature(*tensors)\n\nSee prepared.signature."};

PyObject *signature(PyObject *, PyObject *arguments)
{
    return PyTuple_GET_SIZE(arguments) == 2 ? PyCFunction_New(&signature_method, arguments)
                                            : PyErr_Format(PyExc_TypeError, "signature takes two functions");
}

/* -- gradients ------------------------------------------------------------------------------------------------- */

struct Formula {
    PyObject *forward, *backward, *context;
    /* Of functions whose launches are found by signature, see sequences.planned: `forward` and `builder` make plans. */
    PyObject *builder, *signature, *plans, *gradient_plans;
    std::vector<Py_ssize_t> keep;
    Py_ssize_t limit;
};

std::deque<Formula> formulas; /* none moves while its Python functions run; nodes hold an index, which compiled autograd takes as a constant */

struct Call {
    uint64_t formula, present; /* which arguments are tensors, a bit for each */
    PyObject *const *arguments;
    Py_ssize_t count;
    PyObject *result;
};

/* Return a new reference to the plan of a key; a builder makes it of arguments where there is none. */
PyObject *plan_of(const Formula &formula, PyObject *plans, PyObject *key, PyObject *builder, PyObject *const *arguments, size_t count)
{
    PyObject *known = PyDict_GetItemWithError(plans, key);
    if (known != nullptr)
        return Py_NewRef(known);
    if (PyErr_Occurred())
        raise();
    THPObjectPtr plan(checked(PyObject_Vectorcall(builder, arguments, count, nullptr)));
    if (PyDict_GET_SIZE(plans) >= formula.limit)
        PyDict_Clear(plans);
    if (PyDict_SetItem(plans, key, plan.get()) < 0)
        raise();
    return plan.release();
}

variable_list gradients_of(PyObject *results, uint64_t present, Py_ssize_t count)
{
    variable_list list;
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *item = i == 0 ? results : Py_None;
        if (PyTuple_Check(results))
            item = i < PyTuple_GET_SIZE(results) ? PyTuple_GET_ITEM(results, i) : Py_None;
        if (present >> i & 1)
            list.push_back(THPVariable_Check(item) ? THPVariable_Unpack(item) : at::Tensor());
    }
    list.emplace_back(); /* none for `call` */
    return list;
}

struct Operator : torch::autograd::Function<Operator> {
    static at::Tensor forward(AutogradContext *context, at::TensorList, Call *call)
    {
        const Formula &formula = formulas[call->formula];
        variable_list list;
        if (formula.plans != nullptr)
            planned_forward(formula, call, list);
        else
            called_forward(formula, call, list);
        context->save_for_backward(std::move(list));
        context->saved_data["call"] = (int64_t)(call->present | (uint64_t)call->count << MOST | call->formula << 32);
        return THPVariable_Unpack(call->result);
    }

    static void planned_forward(const Formula &formula, Call *call, variable_list &list)
    {
        const auto count = (size_t)call->count;
        THPObjectPtr key(checked(PyObject_Vectorcall(formula.signature, call->arguments, count, nullptr)));
        THPObjectPtr plan(plan_of(formula, formula.plans, key.get(), formula.forward, call->arguments, count));
        THPObjectPtr results(checked(PyObject_Vectorcall(plan.get(), call->arguments, count, nullptr)));
        const bool several = PyTuple_Check(results.get());
        PyObject *result = several && PyTuple_GET_SIZE(results.get()) > 0 ? PyTuple_GET_ITEM(results.get(), 0) : results.get();
        if (!THPVariable_Check(result)) {
            PyErr_SetString(PyExc_TypeError, "a plan must return a tensor, or a tuple that begins with one");
            raise();
        }
        call->result = Py_NewRef(result);
        for (Py_ssize_t place : formula.keep) {
            const Py_ssize_t later = place - call->count;
            if (later >= (several ? PyTuple_GET_SIZE(results.get()) : 1)) {
                PyErr_SetString(PyExc_IndexError, "there is no tensor to keep at this place");
                raise();
            }
            PyObject *item = later < 0 ? call->arguments[place] : several ? PyTuple_GET_ITEM(results.get(), later) : result;
            list.push_back(THPVariable_Check(item) ? THPVariable_Unpack(item) : at::Tensor());
        }
    }

    static void called_forward(const Formula &formula, Call *call, variable_list &list)
    {
        THPObjectPtr own(checked(PyObject_CallNoArgs(formula.context)));
        PyObject *arguments[MOST + 1] = {own.get()};
        std::copy(call->arguments, call->arguments + call->count, arguments + 1);
        call->result = checked(PyObject_Vectorcall(formula.forward, arguments, (size_t)call->count + 1, nullptr));
        THPObjectPtr kept(checked(PyObject_GetAttr(own.get(), to_save)));
        if (!THPVariable_Check(call->result) || !PyTuple_Check(kept.get())) {
            PyErr_SetString(PyExc_TypeError, "forward must return a tensor, and keep a tuple");
            raise();
        }
        for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(kept.get()); i++) {
            PyObject *item = PyTuple_GET_ITEM(kept.get(), i);
            list.push_back(item == Py_None ? at::Tensor() : THPVariable_Unpack(item));
        }
    }

    static variable_list backward(AutogradContext *context, const variable_list &grads)
    {
        pybind11::gil_scoped_acquire gil;
        const auto call = (uint64_t)context->saved_data["call"].toInt();
        const auto count = (Py_ssize_t)(call >> MOST & 0xff);
        const Formula &formula = formulas[call >> 32];
        const variable_list saved = context->get_saved_variables();
        const bool native = formula.plans != nullptr && !at::GradMode::is_enabled();
        THPObjectPtr grad(checked(THPVariable_Wrap(grads[0]))), needs(checked(PyTuple_New(count)));
        size_t place = 0;
        for (Py_ssize_t i = 0; i < count; i++)
            PyTuple_SET_ITEM(needs.get(), i, PyBool_FromLong((call >> i & 1) && context->needs_input_grad(place++)));
        THPObjectPtr tensors(checked(PyTuple_New((Py_ssize_t)saved.size())));
        for (size_t i = 0; i < saved.size(); i++)
            PyTuple_SET_ITEM(tensors.get(), (Py_ssize_t)i, checked(THPVariable_Wrap(saved[i])));
        if (native) {
            PyObject *arguments[MOST + 2] = {needs.get(), grad.get()};
            const size_t given = std::min(saved.size(), (size_t)MOST);
            for (size_t i = 0; i < given; i++)
                arguments[i + 2] = PyTuple_GET_ITEM(tensors.get(), (Py_ssize_t)i);
            THPObjectPtr known(checked(PyObject_Vectorcall(formula.signature, arguments + 1, given + 1, nullptr)));
            THPObjectPtr key(checked(PyTuple_Pack(2, known.get(), needs.get())));
            THPObjectPtr plan(plan_of(formula, formula.gradient_plans, key.get(), formula.builder, arguments, given + 2));
            THPObjectPtr results(checked(PyObject_Vectorcall(plan.get(), arguments + 1, given + 1, nullptr)));
            return gradients_of(results.get(), call, count);
        }
        THPObjectPtr own(checked(PyObject_CallNoArgs(formula.context)));
        if (PyObject_SetAttr(own.get(), saved_tensors, tensors.get()) < 0 ||
            PyObject_SetAttr(own.get(), needs_input_grad, needs.get()) < 0)
            raise();
        PyObject *arguments[] = {own.get(), grad.get()};
        THPObjectPtr results(checked(PyObject_Vectorcall(formula.backward, arguments, 2, nullptr)));
        return gradients_of(results.get(), call, count);
    }
};

PyObject *apply(PyObject *formula, PyObject *const *arguments, Py_ssize_t count)
{
    HANDLE_TH_ERRORS
    Call call{(uint64_t)PyLong_AsSize_t(formula), 0, arguments, count, nullptr};
    c10::SmallVector<at::Tensor, 4> inputs;
    THPObjectPtr owner;
    at::Tensor result;
    if (count > MOST)
        return PyErr_Format(PyExc_TypeError, "at most %d arguments", MOST);
    for (Py_ssize_t i = 0; i < count; i++)
        if (THPVariable_Check(arguments[i])) {
            inputs.push_back(THPVariable_Unpack(arguments[i]));
            call.present |= (uint64_t)1 << i;
        }
    try {
        result = Operator::apply(at::TensorList(inputs), &call);
    } catch (...) {
        Py_XDECREF(call.result);
        throw;
    }
    owner = call.result;
    return result.is_same(THPVariable_Unpack(owner.get())) ? owner.release() : THPVariable_Wrap(result);
    END_HANDLE_TH_ERRORS
}

PyMethodDef apply_method = {"apply", (PyCFunction)(void (*)(void))apply, METH_FASTCALL, "apply(*arguments)"};

PyObject *added(Formula &&formula)
{
    THPObjectPtr index(PyLong_FromSize_t(formulas.size()));
    if (index.get() == nullptr)
        return nullptr;
    for (PyObject *object : {formula.forward, formula.backward, formula.context, formula.builder, formula.signature})
        Py_XINCREF(object); /* for good: nodes may live longer than the function */
    formulas.push_back(std::move(formula));
    return PyCFunction_New(&apply_method, index.get());
}

PyObject *function(PyObject *, PyObject *arguments)
{
    Formula formula{};
    if (!PyArg_ParseTuple(arguments, "OOO", &formula.forward, &formula.backward, &formula.context))
        return nullptr;
    return added(std::move(formula));
}

/* Append the integers of a tuple; false with an error. */
template <typename Number> bool integers(PyObject *tuple, std::vector<Number> &list)
{
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(tuple); i++)
        list.push_back((Number)PyLong_AsSsize_t(PyTuple_GET_ITEM(tuple, i)));
    return !PyErr_Occurred();
}

PyObject *planned(PyObject *, PyObject *arguments)
{
    Formula formula{};
    PyObject *keep;
    if (!PyArg_ParseTuple(arguments, "OOOOOO!n", &formula.forward, &formula.builder, &formula.backward, &formula.context,
                          &formula.signature, &PyTuple_Type, &keep, &formula.limit) ||
        !integers(keep, formula.keep))
        return nullptr;
    if (formula.keep.size() > MOST)
        return PyErr_Format(PyExc_TypeError, "at most %d tensors are kept", MOST);
    formula.plans = PyDict_New();
    formula.gradient_plans = PyDict_New();
    return formula.plans == nullptr || formula.gradient_plans == nullptr ? nullptr : added(std::move(formula));
}

/* -- several launches, see sequences.sequence ------------------------------------------------------------------- */

struct Launch {
    PyObject *function;
    std::vector<int> places;
};

struct Sequence {
    Py_ssize_t count;
    std::vector<PyObject *> makers;
    PyObject *memory;
    std::vector<Launch> launches;
    std::vector<int> results;
    bool several;
};

/* Return a borrowed tensor, None for -1; null with an error where there is none. */
PyObject *slot(PyObject *const *slots, Py_ssize_t count, int place)
{
    if (place >= count)
        PyErr_SetString(PyExc_IndexError, "a sequence has no tensor at this place");
    return place >= count ? nullptr : place < 0 ? Py_None : slots[place];
}

PyObject *run_sequence(PyObject *self, PyObject *const *arguments, Py_ssize_t given)
{
    const auto *sequence = (const Sequence *)PyCapsule_GetPointer(self, nullptr);
    Py_ssize_t count = sequence->count;
    PyObject *slots[SLOTS];
    if (given < count)
        return PyErr_Format(PyExc_TypeError, "a sequence takes %zd tensors", count);
    std::copy(arguments, arguments + count, slots);
    std::vector<THPObjectPtr> made;
    made.reserve(sequence->makers.size());
    for (PyObject *maker : sequence->makers) {
        made.emplace_back(PyObject_CallNoArgs(maker));
        if ((slots[count++] = made.back().get()) == nullptr)
            return nullptr;
    }
    THPObjectPtr shared;
    if (sequence->memory != nullptr) {
        shared = PyObject_CallNoArgs(sequence->memory);
        if (shared.get() == nullptr)
            return nullptr;
        if (!PyTuple_Check(shared.get()) || count + PyTuple_GET_SIZE(shared.get()) > SLOTS)
            return PyErr_Format(PyExc_TypeError, "memory must be a tuple of few tensors");
        for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(shared.get()); i++)
            slots[count++] = PyTuple_GET_ITEM(shared.get(), i);
    }
    for (const Launch &launch : sequence->launches) {
        PyObject *tensors[SLOTS];
        for (size_t i = 0; i < launch.places.size(); i++)
            if ((tensors[i] = slot(slots, count, launch.places[i])) == nullptr)
                return nullptr;
        THPObjectPtr none(PyObject_Vectorcall(launch.function, tensors, launch.places.size(), nullptr));
        if (none.get() == nullptr)
            return nullptr;
    }
    if (!sequence->several)
        return Py_XNewRef(slot(slots, count, sequence->results[0]));
    THPObjectPtr results(PyTuple_New((Py_ssize_t)sequence->results.size()));
    for (size_t i = 0; results.get() != nullptr && i < sequence->results.size(); i++) {
        PyObject *result = slot(slots, count, sequence->results[i]);
        if (result == nullptr)
            return nullptr;
        PyTuple_SET_ITEM(results.get(), (Py_ssize_t)i, Py_NewRef(result));
    }
    return results.release();
}

void end_sequence(PyObject *capsule)
{
    auto *sequence = (Sequence *)PyCapsule_GetPointer(capsule, nullptr);
    for (PyObject *maker : sequence->makers)
        Py_DECREF(maker);
    for (const Launch &launch : sequence->launches)
        Py_DECREF(launch.function);
    Py_XDECREF(sequence->memory);
    delete sequence;
}

PyMethodDef run_method = {"run", (PyCFunction)(void (*)(void))run_sequence, METH_FASTCALL, "run(*tensors)"};

PyObject *sequence(PyObject *, PyObject *arguments)
{
    PyObject *makers, *memory, *launches, *results;
    int several;
    auto *sequence = new Sequence{};
    THPObjectPtr capsule(PyCapsule_New(sequence, nullptr, end_sequence));
    if (capsule.get() == nullptr ||
        !PyArg_ParseTuple(arguments, "nO!OO!O!p", &sequence->count, &PyTuple_Type, &makers, &memory, &PyList_Type, &launches,
                          &PyTuple_Type, &results, &several))
        return nullptr;
    if (sequence->count + PyTuple_GET_SIZE(makers) > SLOTS)
        return PyErr_Format(PyExc_TypeError, "at most %d tensors", SLOTS);
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(makers); i++)
        sequence->makers.push_back(Py_NewRef(PyTuple_GET_ITEM(makers, i)));
    sequence->memory = memory == Py_None ? nullptr : Py_NewRef(memory);
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(launches); i++) {
        PyObject *function, *places;
        if (!PyArg_ParseTuple(PyList_GET_ITEM(launches, i), "OO!", &function, &PyTuple_Type, &places))
            return nullptr;
        sequence->launches.push_back({Py_NewRef(function), {}});
        if (!integers(places, sequence->launches.back().places))
            return nullptr;
        if (PyTuple_GET_SIZE(places) > SLOTS)
            return PyErr_Format(PyExc_TypeError, "at most %d tensors of a launch", SLOTS);
    }
    sequence->several = several != 0;
    if (!integers(results, sequence->results))
        return nullptr;
    return PyCFunction_New(&run_method, capsule.get());
}

PyObject *watch(PyObject *, PyObject *arguments)
{
    PyObject *objects[3];
    if (!PyArg_ParseTuple(arguments, "OO!O!", &objects[0], &PyDict_Type, &objects[1], &PyDict_Type, &objects[2]))
        return nullptr;
    for (PyObject *object : objects)
        Py_INCREF(object);
    parameter = objects[0], checks = objects[1], forward_ad = objects[2];
    Py_RETURN_NONE;
}

PyMethodDef methods[] = {
    {"function", function, METH_VARARGS,
     "function(forward, backward, context)\n\nReturn `f(*arguments)` with a gradient, see shortcut.function."},
    {"planned", planned, METH_VARARGS,
     "planned(forward, builder, backward, context, signature, keep, limit)\n\nReturn `f(*tensors)` with a gradient, see sequences.planned."},
    {"sequence", sequence, METH_VARARGS,
     "sequence(count, makers, memory, launches, results, several)\n\nReturn `f(*tensors)`, see sequences.sequence."},
    {"signature", signature, METH_VARARGS,
     "signature(in_c, in_python)\n\nReturn `signature(*tensors)`, by the second function where the first returns None; see prepared.signature."},
    {"route", (PyCFunction)(void (*)(void))route, METH_FASTCALL, "route(*tensors)\n\nSee prepared.route."},
    {"watch", watch, METH_VARARGS,
     "watch(parameter, checks, forward_ad)\n\nTake torch.nn.Parameter and the dictionaries of modules that `route` reads."},
    {nullptr, nullptr, 0, nullptr}};

PyModuleDef definition = {PyModuleDef_HEAD_INIT, "shortcut", nullptr, -1, methods, nullptr, nullptr, nullptr, nullptr};

} // namespace
} // namespace gluon

PyMODINIT_FUNC PyInit_shortcut()
{
    gluon::to_save = PyUnicode_InternFromString("to_save");
    gluon::saved_tensors = PyUnicode_InternFromString("saved_tensors");
    gluon::needs_input_grad = PyUnicode_InternFromString("needs_input_grad");
    gluon::wanted = PyUnicode_InternFromString("wanted");
    gluon::current_level = PyUnicode_InternFromString("_current_level");
    return PyModule_Create(&gluon::definition);
}
