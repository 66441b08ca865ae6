// Types, bits and conversions. No standard header is included: builtins only, so that a translation unit parses in milliseconds.
// Everything is branch-free and inlined, so that a loop under `#pragma omp simd` over these functions becomes vector code.
#pragma once
typedef signed char i8;
typedef unsigned char u8;
typedef short i16;
typedef unsigned short u16;
typedef int i32;
typedef unsigned int u32;
typedef long long i64;
typedef unsigned long long u64;
typedef float f32;
typedef double f64;
typedef bool b8;

#define BJ static inline __attribute__((always_inline))
#define BJ_COLD static __attribute__((noinline, cold, unused))
#define BJ_INF __builtin_inff()
#define BJ_NAN __builtin_nanf("")

namespace bj {

// A row of zeros: what a load reads in all lanes under a mask that is false in all of them.
constexpr i64 ZEROS = 32768;  // bytes
alignas(64) static u8 zero_bytes[ZEROS] __attribute__((unused));
template <class T> BJ const T* zeros() { return (const T*)zero_bytes; }

template <class To, class From> BJ To bits(From x) { return __builtin_bit_cast(To, x); }

// A bool in memory. GCC makes vector code of comparisons of bytes, and none of conditions that are read as such, by a reference
// either.
BJ b8 truth(const b8* x) { return *(const u8*)x != 0; }
// A choice that all lanes share: the condition as bits, made before the loop where the compiler cannot see what they stand for.
BJ i64 choice(b8 yes) {
    i64 all = -(i64)yes;
    __asm__("" : "+r"(all));
    return all;
}
BJ f32 choose(i64 all, f32 a, f32 b) { return bits<f32>((bits<i32>(a) & (i32)all) | (bits<i32>(b) & ~(i32)all)); }
BJ f64 choose(i64 all, f64 a, f64 b) { return bits<f64>((bits<i64>(a) & all) | (bits<i64>(b) & ~all)); }
BJ i32 choose(i64 all, i32 a, i32 b) { return (a & (i32)all) | (b & ~(i32)all); }
BJ i64 choose(i64 all, i64 a, i64 b) { return (a & all) | (b & ~all); }

BJ f32 fma(f32 a, f32 b, f32 c) { return __builtin_fmaf(a, b, c); }
BJ f64 fma(f64 a, f64 b, f64 c) { return __builtin_fma(a, b, c); }
BJ f32 abs(f32 x) { return __builtin_fabsf(x); }
BJ f64 abs(f64 x) { return __builtin_fabs(x); }
// Through unsigned arithmetic: the most negative value stays what it is, as in torch, without undefined behaviour.
BJ i64 abs(i64 x) { return x < 0 ? (i64)(0 - (u64)x) : x; }
BJ i32 abs(i32 x) { return x < 0 ? (i32)(0 - (u32)x) : x; }
BJ i16 abs(i16 x) { return (i16)(x < 0 ? -x : x); }
BJ i8 abs(i8 x) { return (i8)(x < 0 ? -x : x); }
BJ u8 abs(u8 x) { return x; }
BJ b8 abs(b8 x) { return x; }
BJ f32 copysign(f32 x, f32 y) { return bits<f32>((bits<u32>(x) & 0x7fffffffu) | (bits<u32>(y) & 0x80000000u)); }
BJ f64 copysign(f64 x, f64 y) {
    return bits<f64>((bits<u64>(x) & 0x7fffffffffffffffull) | (bits<u64>(y) & 0x8000000000000000ull));
}
BJ f32 floor(f32 x) { return __builtin_floorf(x); }
BJ f64 floor(f64 x) { return __builtin_floor(x); }
BJ f32 ceil(f32 x) { return __builtin_ceilf(x); }
BJ f64 ceil(f64 x) { return __builtin_ceil(x); }
BJ f32 trunc(f32 x) { return __builtin_truncf(x); }
BJ f64 trunc(f64 x) { return __builtin_trunc(x); }
BJ f32 round(f32 x) { return __builtin_rintf(x); }  // half to even, as torch.round
BJ f64 round(f64 x) { return __builtin_rint(x); }
BJ f32 sqrt(f32 x) { return __builtin_sqrtf(x); }
BJ f64 sqrt(f64 x) { return __builtin_sqrt(x); }
BJ f32 rsqrt(f32 x) { return 1.0f / __builtin_sqrtf(x); }
BJ f64 rsqrt(f64 x) { return 1.0 / __builtin_sqrt(x); }
BJ b8 isnan(f32 x) { return x != x; }
BJ b8 isnan(f64 x) { return x != x; }
template <class T> BJ b8 isnan(T) { return false; }
BJ b8 isinf(f32 x) { return abs(x) == BJ_INF; }
BJ b8 isinf(f64 x) { return abs(x) == (f64)BJ_INF; }
template <class T> BJ b8 isinf(T) { return false; }
BJ b8 signbit(f32 x) { return (bits<u32>(x) >> 31) != 0; }
BJ b8 signbit(f64 x) { return (bits<u64>(x) >> 63) != 0; }
template <class T> BJ b8 signbit(T x) { return x < (T)0; }

// The larger, the smaller; NaN when either is NaN, as torch.maximum and torch.minimum.
template <class T> BJ T maximum(T a, T b) { return a > b ? a : b; }
template <class T> BJ T minimum(T a, T b) { return a < b ? a : b; }
template <> inline __attribute__((always_inline)) f32 maximum(f32 a, f32 b) { f32 m = a > b ? a : b; return a != a ? a : m; }
template <> inline __attribute__((always_inline)) f32 minimum(f32 a, f32 b) { f32 m = a < b ? a : b; return a != a ? a : m; }
template <> inline __attribute__((always_inline)) f64 maximum(f64 a, f64 b) { f64 m = a > b ? a : b; return a != a ? a : m; }
template <> inline __attribute__((always_inline)) f64 minimum(f64 a, f64 b) { f64 m = a < b ? a : b; return a != a ? a : m; }
// torch.fmax, torch.fmin: a number wins over NaN.
template <class T> BJ T fmax(T a, T b) { return b != b ? a : (a > b ? a : b); }
template <class T> BJ T fmin(T a, T b) { return b != b ? a : (a < b ? a : b); }
template <class T> BJ T relu(T x) { return x < (T)0 ? (T)0 : x; }  // NaN stays, -0.0 stays, as torch.relu
template <class T> BJ T sign(T x) { return (T)((T)((T)0 < x) - (T)(x < (T)0)); }
template <> inline __attribute__((always_inline)) b8 sign(b8 x) { return x; }
template <> inline __attribute__((always_inline)) u8 sign(u8 x) { return x != 0; }
template <class T> BJ T where(b8 c, T a, T b) { return c ? a : b; }

// bfloat16 and float16 live in memory only; every operation is in float. Both round half to even. They are enums, not
// structs: a loop that copies a struct does not become vector code. _Float16 is used where it is an arithmetic type of the
// CPU; elsewhere GCC converts one element at a time, and integer arithmetic in lanes is faster.
enum class bf16 : u16 {};
enum class f16 : u16 {};
#if defined(__AVX512FP16__) || (defined(__aarch64__) && defined(__ARM_FEATURE_FP16_VECTOR_ARITHMETIC))
BJ f32 wide(f16 x) { return (f32)bits<_Float16>((u16)x); }
BJ f16 to_f16(f32 x) { return (f16)bits<u16>((_Float16)x); }
#else
BJ f32 wide(f16 x) {
    u32 h = (u32)(u16)x, sign = (h & 0x8000u) << 16, mag = h & 0x7fffu;
    f32 small = (f32)(i32)mag * 5.9604644775390625e-08f;  // subnormal halves are multiples of 2^-24
    u32 rest = (mag << 13) + (mag >= 0x7c00u ? 0x70000000u : 0x38000000u);
    return bits<f32>((mag < 0x400u ? bits<u32>(small) : rest) | sign);
}
BJ f16 to_f16(f32 x) {
    u32 b = bits<u32>(x), sign = (b >> 16) & 0x8000u, mag = b & 0x7fffffffu;
    u32 normal = (mag - 0x38000000u + 0xfffu + ((mag >> 13) & 1u)) >> 13;
    u32 tiny = bits<u32>(bits<f32>(mag) + 0.5f) - 0x3f000000u;  // adding 0.5 rounds at 2^-24
    u32 out = mag < 0x38800000u ? tiny : normal;
    out = mag >= 0x477ff000u ? 0x7c00u : out;
    out = mag > 0x7f800000u ? 0x7e00u : out;
    return (f16)(u16)(out | sign);
}
#endif
// A row of halves to floats and back. `_Float16` in a loop would be converted one by one, so the CPU's instruction is named.
#if defined(__F16C__) && !defined(__AVX512FP16__)
typedef f32 Floats __attribute__((vector_size(32)));
typedef short Halves16 __attribute__((vector_size(16)));
BJ void widen_row(f32* __restrict to, const f16* __restrict from, i64 n) {
    i64 i = 0;
    for (; i + 8 <= n; i += 8) {
        Halves16 h;
        __builtin_memcpy(&h, from + i, 16);
        Floats x = __builtin_ia32_vcvtph2ps256(h);
        __builtin_memcpy(to + i, &x, 32);
    }
    for (; i < n; ++i) to[i] = wide(from[i]);
}
BJ void narrow_row(f16* __restrict to, const f32* __restrict from, i64 n) {
    i64 i = 0;
    for (; i + 8 <= n; i += 8) {
        Floats x;
        __builtin_memcpy(&x, from + i, 32);
        Halves16 h = __builtin_ia32_vcvtps2ph256(x, 0);
        __builtin_memcpy(to + i, &h, 16);
    }
    for (; i < n; ++i) to[i] = to_f16(from[i]);
}
#else
BJ void widen_row(f32* __restrict to, const f16* __restrict from, i64 n) {
#pragma omp simd
    for (i64 i = 0; i < n; ++i) to[i] = wide(from[i]);
}
BJ void narrow_row(f16* __restrict to, const f32* __restrict from, i64 n) {
#pragma omp simd
    for (i64 i = 0; i < n; ++i) to[i] = to_f16(from[i]);
}
#endif
BJ f32 wide(bf16 x) { return bits<f32>((u32)(u16)x << 16); }
BJ bf16 to_bf16(f32 x) {
    u32 b = bits<u32>(x);
    u32 rounded = (b + 0x7fffu + ((b >> 16) & 1u)) >> 16;
    return (bf16)(u16)(x != x ? 0x7fc0u : rounded);
}
template <class T> BJ T wide(T x) { return x; }
BJ bf16 cut(f32 x) { return (bf16)(u16)(bits<u32>(x) >> 16); }  // of a number of bfloat16, or a nan
// What changes the sign alone, or chooses, needs no conversion to float and back.
#define BJ_MOVED(T) \
    BJ T abs(T x) { return (T)(u16)((u16)x & 0x7fffu); } \
    BJ T negative(T x) { return (T)(u16)((u16)x ^ 0x8000u); } \
    BJ T choose(i64 all, T a, T b) { return (T)(u16)(((u16)a & (u16)all) | ((u16)b & (u16)~all)); }
BJ_MOVED(bf16) BJ_MOVED(f16)
BJ b8 operator!=(bf16 x, i32) { return ((u16)x & 0x7fffu) != 0; }
BJ b8 operator!=(f16 x, i32) { return ((u16)x & 0x7fffu) != 0; }

// A zero that the compiler cannot know. GCC makes trunc(x) of (f32)(i64)x under -fno-trapping-math, which gives -0.0 for -0.5
// and what is out of range as it is: with the zero mixed in, the integer is computed.
static i64 hidden_zero = 0;
static __attribute__((used)) void set_hidden_zero(i64 x) { hidden_zero = x; }
// to<T>(x): x.to(dtype). Out of range floats give what torch's own casts give on this CPU (the conversion instruction's result).
template <class To, class From> struct Cast {
    static inline __attribute__((always_inline)) To of(From x) { return (To)x; }
};
template <class From> struct Cast<b8, From> {
    static inline __attribute__((always_inline)) b8 of(From x) { return x != (From)0; }
};
template <class From> struct Cast<bf16, From> {
    static inline __attribute__((always_inline)) bf16 of(From x) { return to_bf16(Cast<f32, From>::of(x)); }
};
template <class From> struct Cast<f16, From> {
    static inline __attribute__((always_inline)) f16 of(From x) { return to_f16(Cast<f32, From>::of(x)); }
};
// A choice: GCC makes no vector code of a conversion of a comparison's result.
#define BJ_OF_BOOL(T) \
    template <> struct Cast<T, b8> { static inline __attribute__((always_inline)) T of(b8 x) { return x ? (T)1 : (T)0; } };
BJ_OF_BOOL(f32) BJ_OF_BOOL(f64) BJ_OF_BOOL(i32) BJ_OF_BOOL(i64)
// Of what is too large, and of nan, the instruction makes the least integer; GCC makes 0 of a nan, and the largest of infinity,
// where it knows them.
#define BJ_WHOLE(T, F, LIMIT) \
    template <> struct Cast<T, F> { \
        static inline __attribute__((always_inline)) T of(F x) { return (x < LIMIT ? (T)x : (T)-LIMIT) ^ (T)hidden_zero; } \
    };
BJ_WHOLE(i32, f32, 2147483648.0f) BJ_WHOLE(i64, f32, 9223372036854775808.0f)
BJ_WHOLE(i32, f64, 2147483648.0) BJ_WHOLE(i64, f64, 9223372036854775808.0)
template <class To> BJ To small_int(f32 x) { return (To)(x < 2147483648.0f ? (i32)x : (i32)-2147483648.0f); }
template <class To> BJ To small_int(f64 x) { return (To)(x < 2147483648.0 ? (i32)x : (i32)-2147483648.0); }
#define BJ_SMALL(T, F) \
    template <> struct Cast<T, F> { static inline __attribute__((always_inline)) T of(F x) { return small_int<T>(x); } };
BJ_SMALL(i8, f32) BJ_SMALL(u8, f32) BJ_SMALL(i16, f32) BJ_SMALL(i8, f64) BJ_SMALL(u8, f64) BJ_SMALL(i16, f64)
template <class To, class From> BJ To to(From x) { return Cast<To, decltype(wide(x))>::of(wide(x)); }
// x rounded to a 16 bit type and back: where eager would have stored the value.
BJ f32 round_bf16(f32 x) { return wide(to_bf16(x)); }
BJ f32 round_f16(f32 x) { return wide(to_f16(x)); }

// N results as one, pairwise: f of the first half and the second, until one is left. N is a power of two. Each half is an array of
// its own: these stay in registers, where one array that is written again and again goes through memory.
template <int N, class T, class F> BJ T folded(const T* part, F f) {
    if constexpr (N == 1) {
        return part[0];
    } else {
        T half[N / 2];
#pragma omp simd
        for (int k = 0; k < N / 2; ++k) half[k] = (T)f(part[k], part[k + N / 2]);
        return folded<N / 2>((const T*)half, f);
    }
}

// N sums of many floats: partial sums, each of few floats, are added up in f64, so that rounding does not grow with how many there are.
template <class T, int N> struct Wide {
    f64 sum[N] = {};
    inline __attribute__((always_inline)) void take(T* part) {  // part is 0 afterwards
#pragma omp simd
        for (int k = 0; k < N; ++k) sum[k] += (f64)part[k], part[k] = 0;
    }
    inline __attribute__((always_inline)) void give(T* part) {
        for (int k = 0; k < N; ++k) part[k] = (T)sum[k];
    }
    inline __attribute__((always_inline)) T all() {  // N is a power of two
        return (T)folded<N>(sum, [](f64 a, f64 b) { return a + b; });
    }
};

}  // namespace bj
using namespace bj;
