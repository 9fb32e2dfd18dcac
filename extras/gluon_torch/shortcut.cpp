/* The way of an operator's call past torch's dispatcher, and nodes of autograd whose formulas are Python functions. See shortcut.py. */
#include <ATen/PythonTorchFunctionTLS.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/profiler/api.h>
#include <torch/csrc/utils/object_ptr.h>

namespace gluon {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

enum { MOST = 24 }; /* arguments of a call */

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

/* -- gradients ------------------------------------------------------------------------------------------------- */

struct Formula {
    PyObject *forward, *backward, *context;
};

std::vector<Formula> formulas; /* nodes hold an index, which compiled autograd takes as a constant */

struct Call {
    uint64_t formula, present; /* which arguments are tensors, a bit for each */
    PyObject *const *arguments;
    Py_ssize_t count;
    PyObject *result;
};

struct Operator : torch::autograd::Function<Operator> {
    static at::Tensor forward(AutogradContext *context, at::TensorList, Call *call)
    {
        const Formula formula = formulas[call->formula];
        THPObjectPtr own(checked(PyObject_CallNoArgs(formula.context)));
        PyObject *arguments[MOST + 1] = {own.get()};
        std::copy(call->arguments, call->arguments + call->count, arguments + 1);
        call->result = checked(PyObject_Vectorcall(formula.forward, arguments, (size_t)call->count + 1, nullptr));
        THPObjectPtr kept(checked(PyObject_GetAttr(own.get(), to_save)));
        if (!THPVariable_Check(call->result) || !PyTuple_Check(kept.get())) {
            PyErr_SetString(PyExc_TypeError, "forward must return a tensor, and keep a tuple");
            raise();
        }
        variable_list list((size_t)PyTuple_GET_SIZE(kept.get()));
        for (size_t i = 0; i < list.size(); i++) {
            PyObject *item = PyTuple_GET_ITEM(kept.get(), (Py_ssize_t)i);
            if (item != Py_None)
                list[i] = THPVariable_Unpack(item);
        }
        context->save_for_backward(std::move(list));
        context->saved_data["call"] = (int64_t)(call->present | (uint64_t)call->count << MOST | call->formula << 32);
        return THPVariable_Unpack(call->result);
    }

    static variable_list backward(AutogradContext *context, const variable_list &grads)
    {
        pybind11::gil_scoped_acquire gil;
        const auto call = (uint64_t)context->saved_data["call"].toInt();
        const auto count = (Py_ssize_t)(call >> MOST & 0xff);
        const Formula formula = formulas[call >> 32];
        const variable_list saved = context->get_saved_variables();
        THPObjectPtr own(checked(PyObject_CallNoArgs(formula.context)));
        THPObjectPtr tensors(checked(PyTuple_New((Py_ssize_t)saved.size()))), needs(checked(PyTuple_New(count)));
        for (size_t i = 0; i < saved.size(); i++)
            PyTuple_SET_ITEM(tensors.get(), (Py_ssize_t)i, checked(THPVariable_Wrap(saved[i])));
        size_t place = 0;
        for (Py_ssize_t i = 0; i < count; i++)
            PyTuple_SET_ITEM(needs.get(), i, PyBool_FromLong((call >> i & 1) && context->needs_input_grad(place++)));
        if (PyObject_SetAttr(own.get(), saved_tensors, tensors.get()) < 0 ||
            PyObject_SetAttr(own.get(), needs_input_grad, needs.get()) < 0)
            raise();
        THPObjectPtr grad(checked(THPVariable_Wrap(grads[0])));
        PyObject *arguments[] = {own.get(), grad.get()};
        THPObjectPtr results(checked(PyObject_Vectorcall(formula.backward, arguments, 2, nullptr)));
        variable_list list(place + 1); /* and none for `call` */
        place = 0;
        for (Py_ssize_t i = 0; i < count; i++) {
            PyObject *item = i == 0 ? results.get() : Py_None;
            if (PyTuple_Check(results.get()))
                item = i < PyTuple_GET_SIZE(results.get()) ? PyTuple_GET_ITEM(results.get(), i) : Py_None;
            if (call >> i & 1)
                list[place++] = THPVariable_Check(item) ? THPVariable_Unpack(item) : at::Tensor();
        }
        return list;
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

PyObject *function(PyObject *, PyObject *arguments)
{
    Formula formula;
    if (!PyArg_ParseTuple(arguments, "OOO", &formula.forward, &formula.backward, &formula.context))
        return nullptr;
    THPObjectPtr index(PyLong_FromSize_t(formulas.size()));
    if (index.get() == nullptr)
        return nullptr;
    for (PyObject *object : {formula.forward, formula.backward, formula.context})
        Py_INCREF(object); /* for good: nodes may live longer than the function */
    formulas.push_back(formula);
    return PyCFunction_New(&apply_method, index.get());
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
