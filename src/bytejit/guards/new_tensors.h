// New tensors of the CPU, made by torch's own C functions (compat/torch_functions.py): through torch's Python it takes three
// times as long. native_checker.py puts this text before guard_program.h.

typedef int (*MakeTensor)(i64, const i64*, const i64*, i32, i32, i32, void**);
typedef int (*DropTensor)(void*);
typedef PyObject* (*WrapTensor)(void*);
static MakeTensor make_tensor;
static DropTensor drop_tensor;
static WrapTensor wrap_tensor;
enum { MOST_DIMS = 16 };

extern "C" {
PyObject* PyObject_CallFunctionObjArgs(PyObject*, ...);
bj_size PyTuple_Size(PyObject*);
PyObject* PyTuple_New(bj_size);
int PyTuple_SetItem(PyObject*, bj_size, PyObject*);
PyObject* PyTuple_GetItem(PyObject*, bj_size);
PyObject* PyErr_Occurred(void);
void PyErr_Clear(void);
void Py_IncRef(PyObject*);
}

// new(shape, stride) -> tensor. self: (number of the dtype, torch's function of the same arguments). What torch's C function
// refuses is given to that one: it raises as eager does.
static PyObject* new_tensor(PyObject* self, PyObject* const* args, bj_size) {
    i64 shape[MOST_DIMS], stride[MOST_DIMS];
    void* handle;
    bj_size n = PyTuple_Size(args[0]);
    bool plain = n > MOST_DIMS || PyTuple_Size(args[1]) != n;
    for (bj_size i = 0; !plain && i < n; ++i) {
        shape[i] = PyLong_AsLongLong(PyTuple_GetItem(args[0], i));
        stride[i] = PyLong_AsLongLong(PyTuple_GetItem(args[1], i));
        plain = shape[i] < 0 || stride[i] < 0;
    }
    if (plain || make_tensor(n, shape, stride, (i32)PyLong_AsLongLong(PyTuple_GetItem(self, 0)), 0, 0, &handle)) {
        PyErr_Clear();
        return PyObject_CallFunctionObjArgs(PyTuple_GetItem(self, 1), args[0], args[1], nullptr);
    }
    PyObject* made = wrap_tensor(handle);
    drop_tensor(handle);
    return made;
}
static bj::Method maker_methods[] = {{"new_tensor", new_tensor, 0x80, "a new tensor of the CPU: shape, stride"}};
// maker(make, drop, wrap, dtype's number, torch's function) -> new_tensor of that dtype
static PyObject* maker(PyObject*, PyObject* const* args, bj_size) {
    make_tensor = (MakeTensor)PyLong_AsVoidPtr(args[0]);
    drop_tensor = (DropTensor)PyLong_AsVoidPtr(args[1]);
    wrap_tensor = (WrapTensor)PyLong_AsVoidPtr(args[2]);
    PyObject* self = PyTuple_New(2);
    for (int i = 0; self && i < 2; ++i) {
        Py_IncRef(args[3 + i]);
        PyTuple_SetItem(self, i, args[3 + i]);
    }
    PyObject* made = self ? PyCFunction_NewEx(maker_methods, self, nullptr) : nullptr;
    if (self) Py_DecRef(self);
    return made;
}
