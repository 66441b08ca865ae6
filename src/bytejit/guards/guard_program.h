// The unit that runs guard programs: tables of steps that guards/program.py writes. guards/native_checker.py puts the enum Op
// of the steps before this text, and explains them.

extern "C" {
PyObject* PyObject_Type(PyObject*);
PyObject* PyObject_GetAttr(PyObject*, PyObject*);
PyObject* PyObject_GetItem(PyObject*, PyObject*);
PyObject* PyObject_CallNoArgs(PyObject*);
int PyObject_IsTrue(PyObject*);
bj_size PyObject_Size(PyObject*);
int PyObject_RichCompareBool(PyObject*, PyObject*, int);
PyObject* PyBool_FromLong(long);
void* PyType_GetSlot(PyObject*, int);
unsigned long PyType_GetFlags(PyObject*);
PyObject* PyUnicode_InternFromString(const char*);
PyObject* PyObject_GenericGetDict(PyObject*, void*);
bj_size PyDict_Size(PyObject*);
PyObject* PyDict_GetItemWithError(PyObject*, PyObject*);
int PyDict_Contains(PyObject*, PyObject*);
int PyDict_Next(PyObject*, bj_size*, PyObject**, PyObject**);
PyObject* PyList_GetItem(PyObject*, bj_size);
bj_size PyList_Size(PyObject*);
PyObject* PySequence_List(PyObject*);
int PySequence_Contains(PyObject*, PyObject*);
char* PyBytes_AsString(PyObject*);
PyObject* PyFunction_GetCode(PyObject*);
PyObject* PyFunction_GetDefaults(PyObject*);
PyObject* PyFunction_GetKwDefaults(PyObject*);
PyObject* PyWeakref_GetObject(PyObject*) __attribute__((weak));      // until Python 3.14
int PyWeakref_GetRef(PyObject*, PyObject**) __attribute__((weak));   // from 3.13 on
extern PyObject _Py_NoneStruct;
void* dlsym(void*, const char*);
}
typedef long long Word;
struct View { void* data; int device_type, device_index, rank; unsigned dtype; long long* sizes; long long* strides;
              unsigned long long offset; };   // DLTensor
typedef int (*Fill)(PyObject*, View*);
typedef PyObject* (*Get)(PyObject*, PyObject*, PyObject*);
enum Answer { NO, YES, ERROR };
struct Head { Word fill, grad, dict, same, values, slots; };

static Word type_of(PyObject* x) { return ((const Word*)x)[1]; }      // Checker.usable has looked: ob_type is there
static Answer when(int truth, Word want) { return truth < 0 ? ERROR : truth == want ? YES : NO; }

// The stride that a check wants of dimension k; where it follows from another dimension, from what is wanted there.
static Word wanted_stride(const View& v, const Word* step, Word rank, Word k) {
    Word from = -1 - step[k];
    return from < 0 ? step[k] : from >= rank ? v.strides[k] : v.sizes[from] * wanted_stride(v, step, rank, from);
}
static PyObject* requires_grad(Word descriptor, PyObject* x) {
    static PyObject* name = PyUnicode_InternFromString("requires_grad");
    if (!descriptor) return PyObject_GetAttr(x, name);
    static Get get = (Get)PyType_GetSlot((PyObject*)type_of((PyObject*)descriptor), 54);      // Py_tp_descr_get
    return get((PyObject*)descriptor, x, (PyObject*)type_of(x));
}
// `grad`: the descriptor of requires_grad, or 0.
static Answer tensor_is(Word fill, Word grad, PyObject* x, const Word* want) {
    static PyObject* yes = PyBool_FromLong(1);
    if (type_of(x) != want[0]) return NO;
    View v;
    if (((Fill)fill)(x, &v)) return ERROR;      // no strides: a sparse or a batched tensor
    Word rank = want[5];
    if (v.device_type != want[1] || v.device_index != want[2] || v.dtype != want[3] || v.rank != rank) return NO;
    const Word* step = want + 6 + rank;
    for (Word k = 0; k < rank; ++k) {
        if (want[6 + k] < 0 ? v.sizes[k] < -want[6 + k] : v.sizes[k] != want[6 + k]) return NO;
        if (v.strides[k] != wanted_stride(v, step, rank, k) && !(want[6 + k] == -1 && v.sizes[k] == 1)) return NO;
    }
    if (want[4] >= 0) {      // last: the view's sizes are the tensor's, which code may set
        PyObject* flag = requires_grad(grad, x);
        if (!flag) return ERROR;
        Py_DecRef(flag);
        if ((flag == yes) != want[4]) return NO;
    }
    return YES;
}
static Answer equals(const Head* head, PyObject* x, PyObject* want) {
    if (x == want) return YES;
    PyObject* result = PyObject_CallFunctionObjArgs((PyObject*)head->same, x, want, nullptr);
    if (!result) return ERROR;
    int truth = PyObject_IsTrue(result);
    Py_DecRef(result);
    return when(truth, 1);
}
// The keys of a dict are those of a list, each the very object. Where this says no they may be equal still.
static bool keys_meet(PyObject* dict, PyObject* want) {
    PyObject *k, *v;
    bj_size n = PyList_Size(want), i = 0;
    if (PyDict_Size(dict) != n) return false;
    for (bj_size at = 0; i < n && PyDict_Next(dict, &at, &k, &v) && k == PyList_GetItem(want, i);) ++i;
    return i == n;
}
static Answer keys_are(const Head* head, PyObject* x, PyObject* want) {
    if (type_of(x) == head->dict && keys_meet(x, want)) return YES;
    PyObject* found = PySequence_List(x);
    if (!found) return ERROR;
    int truth = PyObject_RichCompareBool(found, want, 2);
    Py_DecRef(found);
    return when(truth, 1);
}
static Answer has(const Head* head, PyObject* x, PyObject* key, Word want) {
    return when(type_of(x) == head->dict ? PyDict_Contains(x, key) : PySequence_Contains(x, key), want);
}
static bj_size size_of(PyObject* x) {      // of what may be missing; held: a subclass's __len__ may run anything
    if (!x || x == &_Py_NoneStruct) return 0;
    Py_IncRef(x);
    bj_size n = PyObject_Size(x);
    Py_DecRef(x);
    return n;
}
static Answer function_is(PyObject* x, Word code, Word count) {
    PyObject* found = PyFunction_GetCode(x);
    if (!found) return ERROR;
    if ((Word)found != code) return NO;
    bj_size n = size_of(PyFunction_GetDefaults(x));
    bj_size m = size_of(PyFunction_GetKwDefaults(x));
    return n < 0 || m < 0 ? ERROR : n == count && m == 0 ? YES : NO;
}
// A class is still what it was for: its version has not moved, or `again` says so and of which version.
static Answer class_is(PyObject* x, Word* w) {
    if (w[2] && w[3] && *(const unsigned*)((const char*)x + w[2]) == (unsigned)w[3]) return YES;
    PyObject* result = PyObject_CallFunctionObjArgs((PyObject*)w[4], x, nullptr);
    if (!result) return ERROR;
    Word version = PyLong_AsLongLong(result);
    Py_DecRef(result);
    w[3] = version > 0 ? version : 0;
    return version < 0 ? NO : YES;
}
static Answer state_is(PyObject* getter, Word want) {
    PyObject* found = PyObject_CallNoArgs(getter);
    if (!found) return ERROR;
    Py_DecRef(found);
    return (Word)found == want ? YES : NO;
}
// The dispatch keys of this thread: those included, those excluded.
static const Word* thread_keys(Word library) {
    static __thread const Word* keys;
    if (!keys) keys = (const Word*)dlsym((void*)library, "_ZN3c104impl26raw_local_dispatch_key_setE");
    return keys;
}
static Answer keyed_is(Word* w) {
    const Word* keys = thread_keys(w[3]);
    if (keys && w[4] && keys[0] == w[5] && keys[1] == w[6]) return YES;
    Answer ok = state_is((PyObject*)w[1], w[2]);
    if (keys && ok == YES) w[4] = 1, w[5] = keys[0], w[6] = keys[1];
    return ok;
}
static PyObject* behind(PyObject* ref) {     // null without an error: dead
    PyObject* found = nullptr;
    if (PyWeakref_GetRef) {
        PyWeakref_GetRef(ref, &found);
        return found;
    }
    found = PyWeakref_GetObject(ref);
    if (found == &_Py_NoneStruct) return nullptr;
    if (found) Py_IncRef(found);
    return found;
}
// dict[key], borrowed; null without an error: no such key. A step's hint is where the key was among the dict's items, in its
// low byte, and how often it was looked for above; what lies there is it only where the key does. -1: look it up always.
BJ_COLD PyObject* look_anew(PyObject* dict, PyObject* key, Word* hint) {
    PyObject* found = PyDict_GetItemWithError(dict, key);
    Word tries = (*hint >> 8) + 1;
    if (!found || *hint < 0) return found;
    PyObject *k, *v;
    *hint = -1;
    for (bj_size at = 0, i = 0; tries < 8 && i < 64 && PyDict_Next(dict, &at, &k, &v); i = at)
        if (k == key) {
            *hint = i | tries << 8;
            break;
        }
    return found;
}
BJ PyObject* look(PyObject* dict, PyObject* key, Word* hint) {
    PyObject *k, *found;
    bj_size at = *hint & 255;
    if (*hint > 0 && PyDict_Next(dict, &at, &k, &found) && k == key) return found;
    return look_anew(dict, key, hint);
}
// x[key], new. Of a dict without its class's `__getitem__` and `__missing__`: to look at a defaultdict puts no key there.
static PyObject* other_item(PyObject* x, PyObject* key) {
    if (!(PyType_GetFlags((PyObject*)type_of(x)) & 1ul << 29)) return PyObject_GetItem(x, key);      // Py_TPFLAGS_DICT_SUBCLASS
    PyObject* found = PyDict_GetItemWithError(x, key);
    if (found) Py_IncRef(found);
    return found;
}
static PyObject* item(const Head* head, PyObject* x, PyObject* key, Word* hint) {     // null without an error: no such key
    if (type_of(x) != head->dict) return other_item(x, key);
    PyObject* found = look(x, key, hint);
    if (found) Py_IncRef(found);
    return found;
}
// What a step asks of the value of an item.
static Answer value_is(const Head* head, PyObject* found, Word op, Word want) {
    if (op == OP_ITEM_IS) return (Word)found == want ? YES : NO;
    if (op == OP_ITEM_EMPTY) return type_of(found) == want && PyDict_Size(found) == 0 ? YES : NO;
    return equals(head, found, (PyObject*)want);
}
BJ Answer item_is(const Head* head, PyObject* x, PyObject* key, Word want, Word* hint, Word op) {
    bool plain = type_of(x) == head->dict;
    PyObject* found = plain ? look(x, key, hint) : other_item(x, key);
    if (!found) return PyErr_Occurred() ? ERROR : NO;
    if (plain && op != OP_ITEM_EQUALS) return value_is(head, found, op, want);
    if (plain && (Word)found == want) return YES;
    if (plain) Py_IncRef(found);      // `same` may run anything
    Answer ok = value_is(head, found, op, want);
    Py_DecRef(found);
    return ok;
}
static Answer item_of(const Head* head, PyObject* x, const Word* w) {
    return item_is(head, x, (PyObject*)w[2], w[3], (Word*)w + 4, *w);
}

// The slots of one run, each of which owns its object until the run ends.
struct Slots {
    bj::Scratch memory;
    PyObject** at;
    Word n = 0;
    explicit Slots(Word most) : memory(8 * most), at(memory.as<PyObject*>()) {}
    ~Slots() { while (n) Py_DecRef(at[--n]); }
    bool add(PyObject* x) { if (x) at[n++] = x; return x; }
    bool borrow(PyObject* x) { if (x) Py_IncRef(x); return add(x); }
    PyObject* tuple(const Word* which, Word count) const {
        PyObject* all = PyTuple_New(count);
        for (Word i = 0; all && i < count; ++i) {
            Py_IncRef(at[which[i]]);
            PyTuple_SetItem(all, i, at[which[i]]);
        }
        return all;
    }
};

// Whether each of the first objects is another one than all the rest: `which` numbers the first `count`, then `others` more.
static bool distinct(const Slots& s, const Word* which, Word count, Word others) {
    Word size = 16;
    while (size < 2 * count) size *= 2;
    bj::Scratch memory(8 * size);
    PyObject** table = memory.as<PyObject*>();       // open addressing
    for (Word i = 0; i < size; ++i) table[i] = nullptr;
    for (Word i = 0; i < count + others; ++i) {
        PyObject* x = s.at[which[i]];
        Word at = (Word)(((unsigned long long)x >> 4) * 0x9E3779B97F4A7C15ull >> 32) & (size - 1);
        while (table[at] && table[at] != x) at = (at + 1) & (size - 1);
        if (table[at]) return false;
        if (i < count) table[at] = x;
    }
    return true;
}

static Word length(PyObject* dict) { return ((const Word*)dict)[2]; }

// WALK reads a dict's tables as compat/layouts.py has found them. Each entry is an op, a key and what the op wants. A shape is a number of keys, then each key with the entry that asks
// for it, or -1; no other key that is asked for is in a dict of these keys. It is what `learn` has returned.
enum Walk { SLOT, SHAPE, LEARN, TRIES, FETCHED, COUNT, ENTRIES };      // words of the step behind its op
static Answer walk(const Head* head, PyObject* x, const Word* w, PyObject** out) {      // ERROR: look for each key
    const Word* shape = (const Word*)w[SHAPE];
    const Word* entries = w + ENTRIES;
    if (!shape || type_of(x) != head->dict || length(x) != *shape) return ERROR;
    const char* keys = (const char*)((const Word*)x)[4];
    if (!keys[10]) return ERROR;      // some key is no string
    struct Item { Word key; PyObject* value; };
    const Item* at = (const Item*)(keys + 32 + ((Word)1 << keys[9]));
    const Item* last = at + ((const Word*)keys)[3];
    Word shared = ((const Word*)x)[5];      // values of a dict that shares its keys
    PyObject* const* values = (PyObject* const*)(shared + head->values);
    const Word* end = shape + 1 + 2 * *shape;
    for (++shape; at < last; ++at) {
        PyObject* v = shared ? *values++ : at->value;
        if (!v) continue;
        if (shape == end || at->key != *shape) return ERROR;
        const Word* entry = entries + shape[1];
        bool asked = shape[1] >= 0;
        shape += 2;
        if (!asked) continue;
        switch (*entry) {
        case OP_ITEM: out[entry[2]] = v; break;
        case OP_ITEM_IS: if ((Word)v != entry[2]) return NO; break;
        case OP_ITEM_EMPTY: if (type_of(v) != entry[2] || length(v)) return NO; break;
        default: if ((Word)v != entry[2]) return ERROR;
        }
    }
    return shape == end ? YES : ERROR;
}
static Answer walk_slowly(const Head* head, PyObject* x, Word* w, Slots& s) {
    Answer ok = YES;
    const Word* entry = w + ENTRIES;
    for (Word i = 0; ok == YES && i < w[COUNT]; ++i, entry += 3) {
        PyObject* key = (PyObject*)entry[1];
        Word hint = -1;
        if (*entry == OP_HAS) ok = has(head, x, key, entry[2]);
        else if (*entry != OP_ITEM) ok = item_is(head, x, key, entry[2], &hint, *entry);
        else if (!s.add(item(head, x, key, &hint))) ok = PyErr_Occurred() ? ERROR : NO;
    }
    if (ok != YES || type_of(x) != head->dict || w[TRIES] == 8) return ok;
    ++w[TRIES];
    PyObject* shape = PyObject_CallFunctionObjArgs((PyObject*)w[LEARN], x, nullptr);
    if (!shape) return ERROR;
    w[SHAPE] = PyLong_AsLongLong(shape);
    Py_DecRef(shape);
    return YES;
}
static Answer walk_or_look(const Head* head, PyObject* x, Word* w, Slots& s) {
    Answer ok = walk(head, x, w, s.at + s.n);
    if (ok == ERROR) return walk_slowly(head, x, w, s);
    if (ok == YES) for (Word i = 0; i < w[FETCHED]; ++i) s.borrow(s.at[s.n]);
    return ok;
}

// The steps from w on: the tuple wanted, None where a check fails.
static PyObject* run(const Head* head, const Word* w, Slots& s, PyObject* const* args) {
    Answer ok = YES;
    while (ok == YES) {
        PyObject* x = *w > OP_WEAK && *w != OP_DISTINCT ? s.at[w[1]] : nullptr;
        bool got = true;
        switch (*w) {
        case OP_DONE: return s.tuple(w + 2, w[1]);
        case OP_STATE: ok = state_is((PyObject*)w[1], w[2]); w += 3; break;
        case OP_FLAG: ok = when(((Word(*)())w[1])() & 255, w[2]); w += 3; break;
        case OP_KEYED: ok = keyed_is((Word*)w); w += 7; break;
        case OP_ARG: got = s.borrow(args[1 + w[1]]); w += 2; break;
        case OP_CONST: got = s.borrow((PyObject*)w[1]); w += 2; break;
        case OP_WEAK: got = s.add(behind((PyObject*)w[1])); w += 2; break;
        case OP_ATTR: got = s.add(PyObject_GetAttr(x, (PyObject*)w[2])); w += 3; break;
        case OP_ITEM: got = s.add(item(head, x, (PyObject*)w[2], (Word*)w + 3)); w += 4; break;
        case OP_TUPLE_ITEM: got = s.borrow(PyTuple_GetItem(x, w[2])); w += 3; break;
        case OP_TYPE_OF: got = s.add(PyObject_Type(x)); w += 2; break;
        case OP_OWN_DICT: got = s.add(PyObject_GenericGetDict(x, nullptr)); w += 2; break;
        case OP_ITEM_EQUALS: ok = item_of(head, x, w); w += 5; break;
        case OP_ITEM_IS: ok = item_of(head, x, w); w += 5; break;
        case OP_ITEM_EMPTY: ok = item_of(head, x, w); w += 5; break;
        case OP_IS: ok = when((Word)x == w[2], w[3]); w += 4; break;
        case OP_TYPE_IS: ok = when(type_of(x) == w[2], 1); w += 3; break;
        case OP_CLASS_IS: ok = when(type_of(x) == (Word)s.at[w[2]], 1); w += 3; break;
        case OP_EQUALS: ok = equals(head, x, (PyObject*)w[2]); w += 3; break;
        case OP_TRUE: ok = when(PyObject_IsTrue(x), w[2]); w += 3; break;
        case OP_LEN: {
            bj_size n = PyObject_Size(x);
            ok = n < 0 ? ERROR : n == w[2] ? YES : NO; w += 3; break;
        }
        case OP_KEYS: ok = keys_are(head, x, (PyObject*)w[2]); w += 3; break;
        case OP_HAS: ok = has(head, x, (PyObject*)w[2], w[3]); w += 4; break;
        case OP_ALIAS: ok = when(x == s.at[w[2]], w[3]); w += 4; break;
        case OP_DISTINCT: ok = when(distinct(s, w + 3, w[1], w[2]), 1); w += 3 + w[1] + w[2]; break;
        case OP_FUNCTION: ok = function_is(x, w[2], w[3]); w += 4; break;
        case OP_WALK: ok = walk_or_look(head, x, (Word*)w + 1, s); w += 7 + 3 * w[6]; break;
        case OP_CLASS: ok = class_is(x, (Word*)w); w += 5; break;
        case OP_TENSOR: ok = tensor_is(head->fill, head->grad, x, w + 2); w += 8 + 2 * w[7]; break;
        }
        if (!got) ok = PyErr_Occurred() ? ERROR : NO;
    }
    if (ok == ERROR) return nullptr;
    Py_IncRef(&_Py_NoneStruct);
    return &_Py_NoneStruct;
}
// run(table, *args) -> tuple of the values wanted, or None where a guard fails. Raises what a step raises.
static PyObject* run_program(PyObject*, PyObject* const* args, bj_size) {
    const Head* head = (const Head*)PyLong_AsVoidPtr(args[0]);
    Slots s(head->slots);
    return run(head, (const Word*)(head + 1), s, args);
}
// fit(words, at, tensor) -> whether it is as the words from `at` on, of a TENSOR step, say. The first word: Fill.
static PyObject* fit(PyObject*, PyObject* const* args, bj_size) {
    const Word* w = (const Word*)PyBytes_AsString(args[0]);
    if (!w) return nullptr;
    Answer ok = tensor_is(w[0], 0, args[2], w + PyLong_AsLongLong(args[1]));
    if (ok == ERROR) PyErr_Clear();      // torch gives no view of it (a sparse tensor, a meta tensor): it does not fit
    return PyBool_FromLong(ok == YES);
}
static bj::Method methods[] = {{"run", run_program, 0x80, "checks guards and fetches values as a table says"},
                               {"fit", fit, 0x80, "checks a tensor"},
                               {"maker", maker, 0x80, "a function that makes tensors of a dtype"}};
BJ_EXPORT(methods, 3)
