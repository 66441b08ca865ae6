// Division, remainder, shifts and powers with Python's (torch's) meaning.
// An integer division by zero cannot throw from a kernel: it records the fault in `*err`, the result is 0, and the
// caller, who finds the flag set after the kernel, raises the error that torch raises.
#pragma once
#include "special.h"
#define BJ_FAULT_ZERO_DIVISION 1
#define BJ_FAULT_INDEX 2

namespace bj {

// CPUs have no vector division of integers, so floats are divided: exact, as a quotient that is not whole is further from a
// whole number than it is rounded. i64 only below 2^51, see `div_far`.
template <class T> struct Divided {
    using F = f64;
    static inline __attribute__((always_inline)) F wide(T x) { return (F)(i32)x; }
    static inline __attribute__((always_inline)) T whole(F q) { return (T)(i32)q; }
};
template <class T> struct DividedShort {
    using F = f32;
    static inline __attribute__((always_inline)) F wide(T x) { return (F)(i32)x; }
    static inline __attribute__((always_inline)) T whole(F q) { return (T)(i32)q; }
};
template <> struct Divided<i16> : DividedShort<i16> {};
template <> struct Divided<i8> : DividedShort<i8> {};
template <> struct Divided<u8> : DividedShort<u8> {};
template <> struct Divided<i64> {
    using F = f64;
    static inline __attribute__((always_inline)) F wide(i64 x) { return bits<f64>(x + 0x4338000000000000ll) - BJ_MAGIC; }
    static inline __attribute__((always_inline)) i64 whole(F q) { return magic_int(q + BJ_MAGIC); }
};
BJ i32 div_far(i64 a, i64 b) {
    const u64 top = 1ull << 51;
    return ((u64)a + top >= 2 * top) | ((u64)b + top >= 2 * top);
}
template <class T> struct DividedParts {  // a = q*d + r, q rounded to 0; d: b, or 1 for what cannot divide
    typename Divided<T>::F q, r, d;
};
template <class T> BJ DividedParts<T> divided(T a, T b, i32* err) {
    using F = typename Divided<T>::F;
    *err |= b == 0 ? BJ_FAULT_ZERO_DIVISION : 0;
    const F x = Divided<T>::wide(a), y = Divided<T>::wide(b), d = y == (F)0 ? (F)1 : y, q = trunc(x / d);
    return DividedParts<T>{q, fma(-q, d, x), d};
}
// Whether the remainder's sign is not the divisor's.
template <class F> BJ bool below(F r, F d) { return r != (F)0 && ((r < (F)0) != (d < (F)0)); }
template <class T> BJ T whole(typename Divided<T>::F q, T a, T b) {
    const bool wrap = (T)-1 < (T)0 && b == (T)-1;  // minus the least number is that number
    return wrap ? (T)(0 - (u64)a) : Divided<T>::whole(q);
}
template <class T> BJ T floordiv(T a, T b, i32* err) {
    const DividedParts<T> p = divided(a, b, err);
    return whole<T>(below(p.r, p.d) ? p.q - 1 : p.q, a, b);
}
template <class T> BJ T truncdiv(T a, T b, i32* err) { return whole<T>(divided(a, b, err).q, a, b); }
template <class T> BJ T remainder(T a, T b, i32* err) {
    const DividedParts<T> p = divided(a, b, err);
    return Divided<T>::whole(below(p.r, p.d) ? p.r + p.d : p.r);
}
template <class T> BJ T fmod(T a, T b, i32* err) { return Divided<T>::whole(divided(a, b, err).r); }
// The same of any i64.
struct WholeQuotient {
    i64 q, r, d;
};
BJ WholeQuotient divided_any(i64 a, i64 b, i32* err) {
    *err |= b == 0 ? BJ_FAULT_ZERO_DIVISION : 0;
    if (b == 0 || b == -1) return WholeQuotient{b == 0 ? a : (i64)(0 - (u64)a), 0, 1};  // the least number by -1 traps
    return WholeQuotient{a / b, a % b, b};
}
BJ_COLD i64 floordiv_any(i64 a, i64 b, i32* err) {
    const WholeQuotient p = divided_any(a, b, err);
    return below(p.r, p.d) ? p.q - 1 : p.q;
}
BJ_COLD i64 truncdiv_any(i64 a, i64 b, i32* err) { return divided_any(a, b, err).q; }
BJ_COLD i64 remainder_any(i64 a, i64 b, i32* err) {
    const WholeQuotient p = divided_any(a, b, err);
    return below(p.r, p.d) ? p.r + p.d : p.r;
}
BJ_COLD i64 fmod_any(i64 a, i64 b, i32* err) { return divided_any(a, b, err).r; }
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
// fmod of floats, exact, in two steps: the first leaves what the quotient's rounding left of a, a whole number of b's last
// places that fits a float again; the second the remainder, or it less b. `mod_far` says where the quotient is too large for
// two steps: a kernel asks first, and takes the cold form of its loop there, which goes to the C library.
BJ i32 mod_far(f32 a, f32 b) { return (abs(a) > abs(b) * 1.0e13f) & (b != 0.0f) & (abs(a) < BJ_INF); }
BJ i32 mod_far(f64 a, f64 b) { return (abs(a) > abs(b) * 1.0e30) & (b != 0.0) & (abs(a) < BJ_INF64); }
template <class T> BJ T fmod(T a, T b) {
    T x = abs(a), y = abs(b);
    T r = fma(-trunc(abs(a / b)), y, x);
    r = fma(-floor(r / y), y, r);
    r = r < (T)0 ? r + y : r;
    r = y == (T)BJ_INF && x < (T)BJ_INF ? x : r;
    return copysign(r, a);
}
BJ_COLD f32 fmod_any(f32 a, f32 b) { return __builtin_fmodf(a, b); }
BJ_COLD f64 fmod_any(f64 a, f64 b) { return __builtin_fmod(a, b); }
// The remainder with b's sign, and the quotient rounded down, of r = fmod(a, b).
template <class T> BJ T remainder_of(T r, T b) { return (r != (T)0 && ((b < (T)0) != (r < (T)0))) ? r + b : r; }
template <class T> BJ T floordiv_of(T m, T a, T b) {
    T d = (a - m) / b;
    d = (m != (T)0 && ((b < (T)0) != (m < (T)0))) ? d - (T)1 : d;
    T f = floor(d);
    f = d - f > (T)0.5 ? f + (T)1 : f;
    f = d == (T)0 ? copysign((T)0, a / b) : f;
    return b == (T)0 ? a / b : f;
}
template <class T> BJ T remainder(T a, T b) { return remainder_of(fmod(a, b), b); }
template <class T> BJ T remainder_any(T a, T b) { return remainder_of(fmod_any(a, b), b); }
template <class T> BJ T floordiv(T a, T b) { return floordiv_of(fmod(a, b), a, b); }
template <class T> BJ T floordiv_any(T a, T b) { return floordiv_of(fmod_any(a, b), a, b); }
template <class T> struct ShiftedIn {  // in what its bits are shifted
    using U = u32;
    using S = i32;
};
template <> struct ShiftedIn<i64> {
    using U = u64;
    using S = i64;
};
template <class T> BJ T shl(T a, T b) {
    const typename ShiftedIn<T>::U most = sizeof(T) * 8 - 1, by = (typename ShiftedIn<T>::U)b;
    return (by & ~most) != 0 ? (T)0 : (T)((typename ShiftedIn<T>::U)a << (by & most));
}
template <class T> BJ T shr(T a, T b) {
    const typename ShiftedIn<T>::S most = sizeof(T) * 8 - 1, by = (typename ShiftedIn<T>::S)b;
    const bool over = (by & ~most) != 0;
    // of i16 and i8 GCC would shift in 16 bits, which AVX2 cannot
    const int up = (T)-1 > (T)0 ? 0 : (sizeof(typename ShiftedIn<T>::S) - sizeof(T)) * 8;
    const typename ShiftedIn<T>::S top = (typename ShiftedIn<T>::S)((typename ShiftedIn<T>::U)a << up);
    const T out = (T)((top >> (over ? most : by)) >> up);  // beyond the width: the sign
    return over && (T)-1 > (T)0 ? (T)0 : out;
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
