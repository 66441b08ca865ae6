// Division, remainder, shifts and powers with Python's (torch's) meaning.
// An integer division by zero cannot throw from a kernel: it records the fault in `*err`, the result is 0, and the
// caller, who finds the flag set after the kernel, raises the error that torch raises.
#pragma once
#include "special.h"
#define BJ_FAULT_ZERO_DIVISION 1
#define BJ_FAULT_INDEX 2

namespace bj {

template <class T> BJ T floordiv(T a, T b, i32* err) {
    *err |= b == 0 ? BJ_FAULT_ZERO_DIVISION : 0;
    T d = b == 0 ? (T)1 : b;
    bool wrap = (T)-1 < (T)0 && d == (T)-1;  // INT_MIN / -1 traps
    T q = wrap ? (T)(0 - (u64)a) : (T)(a / (wrap ? (T)1 : d));
    T r = wrap ? (T)0 : (T)(a - q * d);
    return (r != 0 && ((r < 0) != (d < 0))) ? (T)(q - 1) : q;
}
template <class T> BJ T truncdiv(T a, T b, i32* err) {
    *err |= b == 0 ? BJ_FAULT_ZERO_DIVISION : 0;
    T d = b == 0 ? (T)1 : b;
    bool wrap = (T)-1 < (T)0 && d == (T)-1;
    return wrap ? (T)(0 - (u64)a) : (T)(a / (wrap ? (T)1 : d));
}
template <class T> BJ T remainder(T a, T b, i32* err) {
    *err |= b == 0 ? BJ_FAULT_ZERO_DIVISION : 0;
    bool skip = b == 0 || ((T)-1 < (T)0 && b == (T)-1);
    T d = skip ? (T)1 : b, r = (T)(a % d);
    return (r != 0 && ((r < 0) != (d < 0))) ? (T)(r + d) : r;
}
template <class T> BJ T fmod(T a, T b, i32* err) {
    *err |= b == 0 ? BJ_FAULT_ZERO_DIVISION : 0;
    bool skip = b == 0 || ((T)-1 < (T)0 && b == (T)-1);
    return (T)(a % (skip ? (T)1 : b));
}
// Words 0 and 1 of Philox 4x32-10, as word 0 << 32 | word 1 (codegen/ops/rows/random.py).
BJ i64 philox(i64 key, i64 index, i64 draw) {
    u64 k0 = (u64)key & 0xffffffffu, k1 = (u64)key >> 32;
    u64 c0 = (u64)index & 0xffffffffu, c1 = (u64)index >> 32, c2 = (u64)draw & 0xffffffffu, c3 = (u64)draw >> 32;
    for (int i = 0; i < 10; ++i) {
        u64 a = c0 * 0xd2511f53u, b = c2 * 0xcd9e8d57u;
        c0 = (b >> 32) ^ c1 ^ k0, c1 = b & 0xffffffffu, c2 = (a >> 32) ^ c3 ^ k1, c3 = a & 0xffffffffu;
        k0 = (k0 + 0x9e3779b9u) & 0xffffffffu, k1 = (k1 + 0xbb67ae85u) & 0xffffffffu;
    }
    return (i64)(c0 << 32 | c1);
}
template <class T> BJ T floor_mod(T a, T b) {  // index arithmetic: b > 0
    T r = a % b;
    return r < 0 ? r + b : r;
}
template <class T> BJ T floor_div(T a, T b) {
    T q = a / b;
    return (a % b != 0 && ((a < 0) != (b < 0))) ? q - 1 : q;
}
// fmod of floats: exact, through the C library (the quotient may need 277 bits).
BJ f32 fmod(f32 a, f32 b) { return __builtin_fmodf(a, b); }
BJ f64 fmod(f64 a, f64 b) { return __builtin_fmod(a, b); }
template <class T> BJ T remainder(T a, T b) {
    T r = fmod(a, b);
    return (r != (T)0 && ((b < (T)0) != (r < (T)0))) ? r + b : r;
}
template <class T> BJ T floordiv(T a, T b) {
    T m = fmod(a, b);
    T d = (a - m) / b;
    d = (m != (T)0 && ((b < (T)0) != (m < (T)0))) ? d - (T)1 : d;
    T f = floor(d);
    f = d - f > (T)0.5 ? f + (T)1 : f;
    f = d == (T)0 ? copysign((T)0, a / b) : f;
    return b == (T)0 ? a / b : f;
}
template <class T> BJ T shl(T a, T b) {
    return b < 0 || b >= (T)(sizeof(T) * 8) ? (T)0 : (T)((u64)a << (b & (T)(sizeof(T) * 8 - 1)));
}
template <class T> BJ T shr(T a, T b) {
    bool over = b < 0 || b >= (T)(sizeof(T) * 8);
    T most = (T)(sizeof(T) * 8 - 1);
    return over && (T)-1 > (T)0 ? (T)0 : (T)(a >> (over ? most : b));  // beyond the width: the sign
}
template <class T> BJ T ipow(T base, T power) {
    if (power < 0) return base == 1 ? (T)1 : base == (T)-1 ? (T)(power % 2 ? -1 : 1) : (T)0;
    u64 out = 1, b = (u64)base;
    for (u64 p = (u64)power; p; p >>= 1, b *= b) out *= p & 1 ? b : 1;
    return (T)out;
}
// A checked index (an IR op): negative counts from the end; outside, the fault is recorded and 0 is read.
BJ i64 bound(i64 i, i64 size, i32* err) {
    i = i < 0 ? i + size : i;
    bool bad = i < 0 || i >= size;
    *err |= bad ? BJ_FAULT_INDEX : 0;
    return bad ? 0 : i;
}

// The same without the wrap: a negative index is a fault.
BJ i64 inside(i64 i, i64 size, i32* err) {
    bool bad = i < 0 || i >= size;
    *err |= bad ? BJ_FAULT_INDEX : 0;
    return bad ? 0 : i;
}

}  // namespace bj
