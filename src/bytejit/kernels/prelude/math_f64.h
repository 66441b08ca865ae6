// float64 functions, about 2 ulp.
// Constants: fit.py. lgamma and pow in float64 call the C library: right, not vectorised.
#pragma once
#include "math_f32.h"
#define BJ_MAGIC 6755399441055744.0  // 1.5 * 2^52: adding it leaves the nearest integer in the low bits
#define BJ_INF64 ((f64)BJ_INF)

namespace bj {

BJ f64 pow2_d(i64 n) { return bits<f64>((u64)(n + 1023) << 52); }
BJ i64 magic_int(f64 t) { return bits<i64>(t) - 0x4338000000000000ll; }

// c0 + c1*x + c2*x*x + c3*x*x*x, xx = x*x: long polynomials in quads wait less than one step after the other.
BJ f64 quad(f64 x, f64 xx, f64 c0, f64 c1, f64 c2, f64 c3) { return fma(fma(c3, x, c2), xx, fma(c1, x, c0)); }
BJ f64 exp_tail(f64 r) {
    f64 z = r * r, z4 = z * z;
    f64 q = fma(1.6641269897486111e-10, z, fma(2.0921746128555634e-09, r, 2.5049890994574679e-08));
    q = fma(q, z4, quad(r, z, 0.0001984126983893592, 2.4801587349152193e-05, 2.755732252346557e-06, 2.7557251880530763e-07));
    q = fma(q, z4, quad(r, z, 0.16666666666666666, 0.041666666666666685, 0.0083333333333341034, 0.0013888888888873296));
    return fma(q, r, 0.5);
}
BJ f64 scale2(f64 p, f64 t) {
    f64 h = fma(t - BJ_MAGIC, 0.5, BJ_MAGIC);
    i64 k = magic_int(t), half = magic_int(h);
    return p * pow2_d(half) * pow2_d(k - half);
}
// As in math_f32.h: 2^n of n in the low bits of t, times p. Results that may be subnormal are made 2^128 times as large.
BJ f64 add_exponent(f64 p, f64 t) { return bits<f64>(bits<u64>(p) + (bits<u64>(t) << 52)); }
BJ f64 exp(f64 x) {
    bool low = x < -708.0;
    f64 y = x < -746.0 ? -746.0 : x, m = low ? BJ_MAGIC + 128.0 : BJ_MAGIC;
    f64 t = fma(y, 1.4426950408889634, m), n = t - m;
    f64 r = fma(n, -6.93147180369123816490e-01, y);
    r = fma(n, -1.90821492927058770002e-10, r);
    f64 scale = low ? 2.938735877055719e-39 : 1.0;
    scale = x < -746.0 ? 0.0 : scale;  // as in math_f32.h
    f64 p = add_exponent(fma(r * r, exp_tail(r), r) + 1.0, t) * scale;
    p = x > 709.782712893384 ? BJ_INF64 : p;
    return x != x ? x : p;
}
BJ f64 exp2(f64 x) {
    bool low = x < -1021.5;
    f64 y = x < -1076.0 ? -1076.0 : x, m = low ? BJ_MAGIC + 128.0 : BJ_MAGIC;
    f64 t = y + m, r = (y - (t - m)) * 0.6931471805599453;
    f64 scale = low ? 2.938735877055719e-39 : 1.0;
    scale = x < -1075.0 ? 0.0 : scale;
    f64 p = add_exponent(fma(r * r, exp_tail(r), r) + 1.0, t) * scale;
    p = x >= 1024.0 ? BJ_INF64 : p;
    return x != x ? x : p;
}
BJ f64 expm1(f64 x) {
    f64 y = x > 710.0 ? 710.0 : x;
    y = y < -40.0 ? -40.0 : y;
    f64 t = fma(y, 1.4426950408889634, BJ_MAGIC), n = t - BJ_MAGIC;
    f64 r = fma(n, -6.93147180369123816490e-01, y);
    r = fma(n, -1.90821492927058770002e-10, r);
    f64 p = fma(r * r, exp_tail(r), r);
    f64 s = pow2_d(magic_int(t) - 1);
    f64 out = 2.0 * fma(s, p, s - 0.5);
    return x == 0.0 ? x : out;
}

struct Split {  // x = (1 + f) * 2^e, 1 + f in [sqrt(1/2), sqrt(2))
    f64 f, e;
};
BJ Split split(f64 x) {
    u64 b = bits<u64>(x) + (0x3ff0000000000000ull - 0x3fe6a09e667f3bcdull);
    f64 e = bits<f64>((b >> 52) | 0x4330000000000000ull) - (4503599627370496.0 + 1023.0);
    f64 f = bits<f64>((b & 0xfffffffffffffull) + 0x3fe6a09e667f3bcdull) - 1.0;
    return Split{f, e};
}
BJ f64 log_parts(f64 f, f64 e) {
    f64 s = f / (2.0 + f), z = s * s, h = 0.5 * f * f, zz = z * z, z4 = zz * zz;
    f64 q = quad(z, zz, 0.18181778493170692, 0.15386983319262623, 0.13252261480661709, 0.13233844032059033);
    q = fma(q, z4, quad(z, zz, 0.66666666666666663, 0.40000000000004893, 0.28571428569423291, 0.22222222605136921));
    f64 y = fma(s, fma(q, z, h), e * 1.90821492927058770002e-10);
    return fma(e, 6.93147180369123816490e-01, f - (h - y));
}
BJ f64 log_special(f64 x, f64 y) {
    y = x == BJ_INF64 ? BJ_INF64 : y;
    y = x == 0.0 ? -BJ_INF64 : y;
    return x >= 0.0 ? y : (f64)BJ_NAN;
}
BJ f64 log(f64 x) {
    bool tiny = x < 2.2250738585072014e-308;
    Split p = split(tiny ? x * 18014398509481984.0 : x);
    return log_special(x, log_parts(p.f, tiny ? p.e - 54.0 : p.e));
}
BJ f64 log2(f64 x) {
    bool tiny = x < 2.2250738585072014e-308;
    Split p = split(tiny ? x * 18014398509481984.0 : x);
    return log_special(x, fma(log_parts(p.f, 0.0), 1.4426950408889634, tiny ? p.e - 54.0 : p.e));
}
BJ f64 log10(f64 x) { return log(x) * 0.4342944819032518; }
BJ f64 log1p(f64 x) {
    f64 u = 1.0 + x;
    f64 lost = x < 1.0 ? x - (u - 1.0) : 1.0 - (u - x);
    Split p = split(u);
    f64 back = pow2_d(magic_int(BJ_MAGIC - (p.e > 500.0 ? 500.0 : p.e)));
    f64 y = log_special(u, log_parts(fma(lost, back, p.f), p.e));
    return abs(x) < 1e-18 ? x : y;
}

BJ f64 sin_poly(f64 r, f64 z) {
    f64 q = fma(-7.4988705332215642e-13, z, 1.6056511930458274e-10);
    q = fma(q, z, -2.5052087844669612e-08);
    q = fma(q, z, 2.7557319135515669e-06);
    q = fma(q, z, -0.00019841269841066646);
    q = fma(q, z, 0.008333333333333106);
    q = fma(q, z, -0.16666666666666666);
    return fma(q * z, r, r);
}
BJ f64 cos_poly(f64 z) {
    f64 q = fma(4.6535151773935144e-14, z, -1.1468166330886628e-11);
    q = fma(q, z, 2.0876732861541582e-09);
    q = fma(q, z, -2.7557319104210596e-07);
    q = fma(q, z, 2.4801587301264348e-05);
    q = fma(q, z, -0.0013888888888888449);
    q = fma(q, z, 0.041666666666666664);
    f64 h = 0.5 * z, w = 1.0 - h;
    return w + fma(q * z, z, (1.0 - w) - h);
}
BJ f64 trig_reduce(f64 x, f64 t) {
    f64 n = t - BJ_MAGIC;
    f64 r = fma(n, -1.5707963267948966, x);
    r = fma(n, -6.123233995736766e-17, r);
    return fma(n, 1.4973849048591698e-33, r);
}
BJ f64 sin(f64 x) {
    f64 t = fma(x, 0.6366197723675814, BJ_MAGIC);
    f64 r = trig_reduce(x, t), z = r * r;
    u64 n = bits<u64>(t);
    f64 y = (n & 1) ? cos_poly(z) : sin_poly(r, z);
    y = bits<f64>(bits<u64>(y) ^ ((n & 2) << 62));
    return x == 0.0 ? x : y;
}
BJ f64 cos(f64 x) {
    f64 t = fma(x, 0.6366197723675814, BJ_MAGIC);
    f64 r = trig_reduce(x, t), z = r * r;
    u64 n = bits<u64>(t);
    f64 y = (n & 1) ? sin_poly(r, z) : cos_poly(z);
    return bits<f64>(bits<u64>(y) ^ (((n + 1) & 2) << 62));
}
BJ f64 tan(f64 x) {
    f64 t = fma(x, 0.6366197723675814, BJ_MAGIC);
    f64 r = trig_reduce(x, t), z = r * r;
    f64 s = sin_poly(r, z), c = cos_poly(z);
    bool odd = bits<u64>(t) & 1;
    f64 y = (odd ? -c : s) / (odd ? s : c);
    return x == 0.0 ? x : y;
}
BJ i32 trig_far(f64 x) { return !(abs(x) <= (f64)BJ_TRIG); }
BJ_COLD f64 sin_any(f64 x) { return __builtin_sin(x); }
BJ_COLD f64 cos_any(f64 x) { return __builtin_cos(x); }
BJ_COLD f64 tan_any(f64 x) { return __builtin_tan(x); }

BJ f64 asin_poly(f64 x, f64 z) {
    f64 q = fma(0.033551878536081374, z, -0.025986227111579597);
    q = fma(q, z, 0.024696942788469518);
    q = fma(q, z, 0.00074258494192680957);
    q = fma(q, z, 0.0099913366564405633);
    q = fma(q, z, 0.0094877896292440995);
    q = fma(q, z, 0.011585134592536185);
    q = fma(q, z, 0.013961959098079004);
    q = fma(q, z, 0.017352939241580378);
    q = fma(q, z, 0.022372151894438613);
    q = fma(q, z, 0.030381944635478601);
    q = fma(q, z, 0.044642857139861575);
    q = fma(q, z, 0.075000000000023631);
    q = fma(q, z, 0.1666666666666666);
    return fma(q * z, x, x);
}
BJ f64 asin(f64 x) {
    f64 a = abs(x);
    bool near = a <= 0.5;
    f64 z = near ? x * x : 0.5 * (1.0 - a), s = near ? a : sqrt(z), p = asin_poly(s, z);
    f64 far = 1.5707963267948966 - (2.0 * p - 6.123233995736766e-17);
    return copysign(near ? p : far, x);
}
BJ f64 acos(f64 x) {
    f64 a = abs(x);
    bool near = a <= 0.5;
    f64 z = near ? x * x : 0.5 * (1.0 - a), s = near ? x : sqrt(z), p = asin_poly(s, z);
    f64 mid = 1.5707963267948966 - (p - 6.123233995736766e-17);
    f64 far = x < 0.0 ? 3.141592653589793 - (2.0 * p - 1.2246467991473532e-16) : 2.0 * p;
    return near ? mid : far;
}
BJ f64 atan_unit(f64 a) {  // a in [0, 1]
    bool mid = a > 0.41421356237309503;
    f64 x = mid ? (a - 1.0) / (a + 1.0) : a, z = x * x;
    f64 q = fma(-0.011848219187342187, z, 0.028312151359276987);
    q = fma(q, z, -0.03988911376612421);
    q = fma(q, z, 0.046858923394230242);
    q = fma(q, z, -0.052517609397205227);
    q = fma(q, z, 0.058811282321284672);
    q = fma(q, z, -0.066665723308990288);
    q = fma(q, z, 0.076923025446556423);
    q = fma(q, z, -0.090909088969429619);
    q = fma(q, z, 0.11111111106284491);
    q = fma(q, z, -0.14285714285640777);
    q = fma(q, z, 0.19999999999999404);
    q = fma(q, z, -0.33333333333333331);
    f64 p = q * z * x;
    return mid ? 0.7853981633974483 + (x + (p + 3.061616997868383e-17)) : x + p;
}
BJ f64 atan(f64 x) {
    f64 a = abs(x);
    bool big = a > 1.0;
    f64 p = atan_unit(big ? 1.0 / a : a);
    return copysign(big ? 1.5707963267948966 - (p - 6.123233995736766e-17) : p, x);
}
BJ f64 atan2(f64 y, f64 x) {
    f64 a = abs(y), b = abs(x);
    bool swap = a > b;
    f64 top = swap ? b : a, low = swap ? a : b;
    f64 q = top / low;
    q = low == 0.0 ? 0.0 : q;
    q = top == BJ_INF64 ? 1.0 : q;
    f64 p = atan_unit(q);
    p = swap ? 1.5707963267948966 - (p - 6.123233995736766e-17) : p;
    p = signbit(x) ? 3.141592653589793 - (p - 1.2246467991473532e-16) : p;
    p = copysign(p, y);
    return x != x || y != y ? (f64)BJ_NAN : p;
}

BJ f64 tanh(f64 x) {
    f64 a = abs(x), z = x * x;
    f64 q = fma(3.2772380471595503e-07, z, -3.1176545679136998e-06);
    q = fma(q, z, 1.27573419986293e-05);
    q = fma(q, z, -3.7259803508591663e-05);
    q = fma(q, z, 9.6017637814339496e-05);
    q = fma(q, z, -0.00023884485240296664);
    q = fma(q, z, 0.00058996273811225564);
    q = fma(q, z, -0.0014558238162475068);
    q = fma(q, z, 0.0035921268128691229);
    q = fma(q, z, -0.008863235432141691);
    q = fma(q, z, 0.021869488531004122);
    q = fma(q, z, -0.053968253968088159);
    q = fma(q, z, 0.1333333333333305);
    q = fma(q, z, -0.33333333333333331);
    f64 near = fma(q * z, x, x);
    f64 far = 1.0 - 2.0 / (exp(2.0 * (a > 20.0 ? 20.0 : a)) + 1.0);
    return copysign(a < 0.625 ? near : far, x);
}
BJ f64 sigmoid(f64 x) { return 1.0 / (1.0 + exp(-x)); }
BJ f64 silu(f64 x) { return x / (1.0 + exp(-x)); }
BJ f64 sinh(f64 x) {
    f64 a = abs(x), e = expm1(a > 30.0 ? 30.0 : a), t = exp(0.5 * a);
    f64 y = a > 22.0 ? (0.5 * t) * t : 0.5 * (e + e / (e + 1.0));
    return copysign(a != a ? a : y, x);
}
BJ f64 cosh(f64 x) {
    f64 a = abs(x), t = exp(0.5 * a), e = exp(a > 30.0 ? 30.0 : a);
    return a > 22.0 ? (0.5 * t) * t : 0.5 * (e + 1.0 / e);
}
BJ f64 asinh(f64 x) {
    f64 a = abs(x), z = a * a;
    f64 y = a > 1e9 ? log(a) + 0.6931471805599453 : log1p(a + z / (1.0 + sqrt(z + 1.0)));
    return copysign(y, x);
}
BJ f64 acosh(f64 x) {
    f64 t = x - 1.0;
    f64 y = x > 1e9 ? log(x) + 0.6931471805599453 : log1p(t + sqrt(2.0 * t + t * t));
    return x < 1.0 ? (f64)BJ_NAN : y;
}
BJ f64 atanh(f64 x) {
    f64 a = abs(x);
    return copysign(0.5 * log1p(2.0 * a / (1.0 - a)), x);
}

BJ f32 pow(f32 x, f32 y) {  // & and |: && and || become jumps where masks are of two widths, and the loop stays scalar
    f64 r = exp2((f64)y * log2((f64)abs(x)));
    bool whole = floor(y) == y, odd = whole & (2.0f * floor(0.5f * y) != y);
    f32 out = (f32)r;
    out = odd & signbit(x) ? -out : out;
    out = (x < 0.0f) & (x > -BJ_INF) & !whole ? BJ_NAN : out;
    bool one = (x == 1.0f) | (y == 0.0f) | ((x == -1.0f) & (abs(y) == BJ_INF));
    return one ? 1.0f : out;
}
BJ f64 pow(f64 x, f64 y) { return __builtin_pow(x, y); }
BJ f64 lgamma(f64 x) { return __builtin_lgamma(x); }
BJ f64 hypot(f64 x, f64 y) { return hypot_scaled(x, y, 1e150, 1e-120, 4.149515568880993e+180, 2.409919865102884e-181); }
// Towards y is up where the bits of x, as a magnitude, grow.
BJ f32 nextafter(f32 x, f32 y) {
    u32 b = bits<u32>(x), away = (x < y) != (x < 0.0f);
    f32 next = x == 0.0f ? bits<f32>((bits<u32>(y) & 0x80000000u) | 1u) : bits<f32>(b + (away ? 1u : 0xffffffffu));
    next = x == y ? y : next;
    return x != x || y != y ? BJ_NAN : next;
}
BJ f64 nextafter(f64 x, f64 y) {
    u64 b = bits<u64>(x), away = (x < y) != (x < 0.0);
    f64 next = x == 0.0 ? bits<f64>((bits<u64>(y) & 0x8000000000000000ull) | 1u) : bits<f64>(b + (away ? 1ull : ~0ull));
    next = x == y ? y : next;
    return x != x || y != y ? (f64)BJ_NAN : next;
}

// log(exp(a) + exp(b)); of two equal infinities that.
template <class T> BJ T logsum(T a, T b) {
    const T top = maximum<T>(a, b), less = minimum<T>(a, b);
    return a == b && isinf(a) ? a : top + log1p(exp(less - top));
}
// The logsum of `sum` and each beginning of a row of at most LOGSUMS numbers, in their place; returns the last one. Of all numbers
// at once, relative to the largest. One by one where some are much smaller, or not finite, or where a result is so near 0 that no
// digit of an f32 is right.
constexpr i64 LOGSUMS = 64;
// `sum` and each beginning of a row of at most LOGSUMS numbers, added up, in their place; returns the last one. Runs of eight are
// added side by side: an addition does not wait for the one before it. The row is written up to its next multiple of eight.
BJ f64 sum_row(f64 sum, f64* row, i64 n) {
    const i64 runs = (n + 7) / 8;
    for (i64 c = n; c < 8 * runs; ++c) row[c] = 0;
    for (int k = 1; k < 8; ++k)
        for (i64 b = 0; b < runs; ++b) row[8 * b + k] = row[8 * b + k - 1] + row[8 * b + k];
    for (i64 b = 0; b < runs; ++b) {
        const f64 last = row[8 * b + 7];
        for (int k = 0; k < 8; ++k) row[8 * b + k] = sum + row[8 * b + k];
        sum = sum + last;
    }
    return sum;
}
static inline __attribute__((noinline, unused)) f64 logsum_row(f64 sum, f64* row, i64 n) {
    alignas(64) f64 part[LOGSUMS];
    const f64 none = -(f64)BJ_INF, first = sum;
    f64 top = sum;
    for (i64 k = 0; k < n; ++k) top = row[k] > top ? row[k] : top;
    const f64 least = top - 600.0, near = abs(top) * 1.4901161193847656e-08;
    i64 wrong = (sum >= least || sum == none) && top - top == 0.0 ? 0 : 1;
#pragma omp simd reduction(| : wrong)
    for (i64 k = 0; k < n; ++k) wrong |= row[k] >= least || row[k] == none ? 0 : 1;
    if (!wrong) {
#pragma omp simd
        for (i64 k = 0; k < n; ++k) part[k] = exp(row[k] - top);
        sum = exp(sum - top);
        for (i64 k = 0; k < n; ++k) part[k] = sum += part[k];
#pragma omp simd reduction(| : wrong)
        for (i64 k = 0; k < n; ++k) {
            part[k] = top + log(part[k]);
            wrong |= abs(part[k]) >= near ? 0 : 1;
        }
    }
    if (wrong) {
        sum = first;
        for (i64 k = 0; k < n; ++k) part[k] = sum = logsum<f64>(sum, row[k]);
    }
#pragma omp simd
    for (i64 k = 0; k < n; ++k) row[k] = part[k];
    return part[n - 1];
}

}  // namespace bj
