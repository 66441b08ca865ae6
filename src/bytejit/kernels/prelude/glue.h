// How a unit is called and how it runs on threads: only what is needed of the interpreter's stable functions and of the OpenMP
// runtime that torch has loaded already (a second runtime in the process would fight over the cores).
#pragma once
#include "integer.h"
#include "turn.h"

extern "C" {
typedef struct _object PyObject;
typedef __PTRDIFF_TYPE__ bj_size;
void* PyLong_AsVoidPtr(PyObject*);
long long PyLong_AsLongLong(PyObject*);
PyObject* PyLong_FromLong(long);
PyObject* PyCFunction_NewEx(void*, PyObject*, PyObject*);
int PyList_Append(PyObject*, PyObject*);
void Py_DecRef(PyObject*);
int PyGILState_Ensure(void);
void PyGILState_Release(int);
void* PyEval_SaveThread(void);
void PyEval_RestoreThread(void*);
}

namespace bj {

struct Method {  // PyMethodDef
    const char* name;
    PyObject* (*call)(PyObject*, PyObject* const*, bj_size);
    int flags;  // 0x80: METH_FASTCALL
    const char* doc;
};

static void (*omp_run)(void (*)(void*), void*, unsigned, unsigned);  // GOMP_parallel
static int (*omp_me)(void);                                         // omp_get_thread_num
static int (*omp_team)(void);                                       // omp_get_num_threads

template <class F> struct Job {
    const F* f;
    i64 n;
    static void run(void* self) {
        const Job* job = (const Job*)self;
        i64 me = omp_me(), team = omp_team();
        i64 begin = job->n * me / team, end = job->n * (me + 1) / team;
        if (begin < end) (*job->f)(begin, end);
    }
};
// f(begin, end) over parts of range(n), at least `grain` long, on at most `threads` threads; inline when one is enough.
template <class F> BJ void parallel(i64 n, i64 grain, i64 threads, const F& f) {
    i64 parts = n / (grain < 1 ? 1 : grain);
    parts = parts < threads ? parts : threads;
    if (parts <= 1 || !omp_run) {
        if (n > 0) f((i64)0, n);
        return;
    }
    Job<F> job{&f, n};
    omp_run(&Job<F>::run, &job, (unsigned)parts, 0);
}

// Memory of a thread's own row, when it is too large for the stack.
struct Scratch {
    void* p;
    explicit Scratch(i64 bytes) : p(__builtin_malloc((u64)(bytes < 1 ? 1 : bytes) + 64)) {}
    ~Scratch() { __builtin_free(p); }
    template <class T> T* as() const { return (T*)(((u64)p + 63) & ~(u64)63); }
};

template <class T> BJ T* pointer(PyObject* x) { return (T*)PyLong_AsVoidPtr(x); }
BJ i64 integer(PyObject* x) { return PyLong_AsLongLong(x); }

// Better: whether (v, i) comes before (w, j) for argmax (argmin): NaN wins, then the larger (smaller), then the first. Without
// branches: with them the loops around it do not run in lanes.
template <class T> BJ b8 arg_max(T v, i64 i, T w, i64 j) {
    b8 first = i < j, vn = isnan(v), wn = isnan(w);
    return (vn & (!wn | first)) | (!vn & !wn & ((v > w) | ((v == w) & first)));
}
template <class T> BJ b8 arg_min(T v, i64 i, T w, i64 j) {
    b8 first = i < j, vn = isnan(v), wn = isnan(w);
    return (vn & (!wn | first)) | (!vn & !wn & ((v < w) | ((v == w) & first)));
}
// The best of N lanes, to the first of them: its value, then the first index that has it. Lane by lane takes twice as long.
template <int N, bool largest, class T> BJ void best_lane(T* best, i64* at) {
    const i64 none = 9223372036854775807LL;
    T top = best[0];
    i64 first = none;
    i32 nan = 0;
    if constexpr (largest) {
#pragma omp simd reduction(max : top)
        for (int k = 0; k < N; ++k) top = best[k] > top ? best[k] : top;
    } else {
#pragma omp simd reduction(min : top)
        for (int k = 0; k < N; ++k) top = best[k] < top ? best[k] : top;
    }
#pragma omp simd reduction(| : nan)
    for (int k = 0; k < N; ++k) nan |= (i32)isnan(best[k]);
#pragma omp simd reduction(min : first)
    for (int k = 0; k < N; ++k) {
        b8 hit = ((nan != 0) & isnan(best[k])) | ((nan == 0) & (best[k] == top));
        i64 i = hit ? at[k] : none;
        first = i < first ? i : first;
    }
    for (int k = 0; nan && k < N; ++k) top = isnan(best[k]) ? best[k] : top;
    best[0] = top, at[0] = first;
}
template <class T> BJ void atomic_add(T* p, T v) {
    T old = *p, sum;
    do sum = old + v;
    while (!__atomic_compare_exchange(p, &old, &sum, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
}

}  // namespace bj

// At the end of a unit: BJ_EXPORT(table, count) hands its methods to the loader.
#define BJ_EXPORT(table, count)                                                                          \
    extern "C" __attribute__((visibility("default"))) void bj_fill(void* list, void* run, void* me, void* team) { \
        int state = PyGILState_Ensure();                                                                 \
        bj::omp_run = (void (*)(void (*)(void*), void*, unsigned, unsigned))run;                         \
        bj::omp_me = (int (*)(void))me;                                                                  \
        bj::omp_team = (int (*)(void))team;                                                              \
        for (int i = 0; i < count; ++i) {                                                                \
            PyObject* f = PyCFunction_NewEx(&table[i], nullptr, nullptr);                                \
            PyList_Append((PyObject*)list, f);                                                           \
            Py_DecRef(f);                                                                                \
        }                                                                                                \
        PyGILState_Release(state);                                                                       \
    }
