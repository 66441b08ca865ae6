// float32 functions, at most 2 ulp over the whole range, with infinities, NaN, subnormals and -0.0 as torch has them.
// Constants: fit.py. sin, cos and tan here are right for |x| <= BJ_TRIG; a kernel asks `trig_far` first and takes the cold
// form of its loop (sin_any and so on) for the rest.
#pragma once
#include "base.h"
#define BJ_TRIG 1.0e5f

namespace bj {

BJ f32 pow2_f(i32 n) { return bits<f32>((u32)(n + 127) << 23); }

// x + 2^23 * 1.5 holds the nearest integer in its low bits: shifted left by 23, that adds to a float's exponent.
BJ f32 add_exponent(f32 p, f32 t) { return bits<f32>(bits<u32>(p) + (bits<u32>(t) << 23)); }
// exp(x - n*log(2)), |remainder| <= 0.3466.
BJ f32 exp_core(f32 x, f32 n) {
    f32 r = fma(n, -0.693145752f, x);
    r = fma(n, -1.42860677e-06f, r);
    f32 q = fma(0.000199533897f, r, 0.00139357755f);
    q = fma(q, r, 0.00833319779f);
    q = fma(q, r, 0.0416664556f);
    q = fma(q, r, 0.166666672f);
    q = fma(q, r, 0.5f);
    return fma(r * r, q, r) + 1.0f;
}
BJ f32 exp_near(f32 x) {  // |x| <= 80
    f32 t = fma(x, 1.44269502f, 12582912.0f);
    return add_exponent(exp_core(x, t - 12582912.0f), t);
}
BJ f32 exp(f32 x) {
    bool low = x < -87.0f;  // the result may be subnormal: made 2^64 times as large, then scaled with one rounding
    f32 y = x < -105.0f ? -105.0f : x;
    f32 m = low ? 12582976.0f : 12582912.0f;
    f32 t = fma(y, 1.44269502f, m);
    f32 p = add_exponent(exp_core(y, t - m), t) * (low ? 5.42101086e-20f : 1.0f);
    p = x > 88.7228317f ? BJ_INF : p;
    return x != x ? x : p;
}

BJ f32 exp2(f32 x) {
    x = x > 130.0f ? 130.0f : x;
    x = x < -152.0f ? -152.0f : x;
    f32 t = x + 12582912.0f;
    f32 r = (x - (t - 12582912.0f)) * 0.693147182f;
    f32 q = fma(0.000199533897f, r, 0.00139357755f);
    q = fma(q, r, 0.00833319779f);
    q = fma(q, r, 0.0416664556f);
    q = fma(q, r, 0.166666672f);
    q = fma(q, r, 0.5f);
    f32 p = fma(r * r, q, r) + 1.0f;
    i32 k = bits<i32>(t) - 0x4b400000;
    i32 half = k >> 1;
    return p * pow2_f(half) * pow2_f(k - half);
}

BJ f32 expm1(f32 x) {
    f32 y = x > 89.0f ? 89.0f : x;
    y = y < -18.0f ? -18.0f : y;
    f32 t = fma(y, 1.44269502f, 12582912.0f);
    f32 n = t - 12582912.0f;
    f32 r = fma(n, -0.693145752f, y);
    r = fma(n, -1.42860677e-06f, r);
    f32 q = fma(0.000199584538f, r, 0.00139337103f);
    q = fma(q, r, 0.00833319221f);
    q = fma(q, r, 0.0416664779f);
    q = fma(q, r, 0.166666672f);
    q = fma(q, r, 0.5f);
    f32 p = fma(r * r, q, r);
    f32 s = pow2_f(bits<i32>(t) - 0x4b400000 - 1);  // half of 2^n: 2^128 is no float
    f32 out = 2.0f * fma(s, p, s - 0.5f);
    return x == 0.0f ? x : out;
}

// log(m * 2^e) with m = 1 + f in [sqrt(1/2), sqrt(2)).
BJ f32 log_parts(f32 f, f32 e) {
    f32 q = fma(0.0680545941f, f, -0.117268823f);
    q = fma(q, f, 0.11888919f);
    q = fma(q, f, -0.123963036f);
    q = fma(q, f, 0.142180741f);
    q = fma(q, f, -0.166685298f);
    q = fma(q, f, 0.20002228f);
    q = fma(q, f, -0.25f);
    q = fma(q, f, 0.333333105f);
    f32 z = f * f;
    f32 y = fma(f * z, q, e * -2.12194442e-4f);
    y = fma(-0.5f, z, y);
    return fma(e, 0.693359375f, f + y);
}
BJ f32 log_special(f32 x, f32 y) {
    y = x == BJ_INF ? BJ_INF : y;
    y = x == 0.0f ? -BJ_INF : y;
    return x >= 0.0f ? y : BJ_NAN;
}
BJ f32 log(f32 x) {
    bool tiny = x < 1.17549435e-38f;
    u32 b = bits<u32>(tiny ? x * 8388608.0f : x) - 0x3f3504f3u;  // so that m starts at sqrt(1/2)
    f32 e = (f32)((i32)b >> 23) - (tiny ? 23.0f : 0.0f);
    f32 f = bits<f32>((b & 0x7fffffu) + 0x3f3504f3u) - 1.0f;
    return log_special(x, log_parts(f, e));
}
BJ f32 log1p(f32 x) {
    f32 u = 1.0f + x;
    f32 lost = x < 1.0f ? x - (u - 1.0f) : 1.0f - (u - x);
    u32 b = bits<u32>(u) - 0x3f3504f3u;
    i32 k = (i32)b >> 23;
    f32 f = bits<f32>((b & 0x7fffffu) + 0x3f3504f3u) - 1.0f;
    f += lost * pow2_f(k > 100 ? -100 : -k);
    f32 y = log_special(u, log_parts(f, (f32)k));
    return abs(x) < 1e-10f ? x : y;
}

// sin and cos of r = x - n*pi/2, |r| <= 0.79.
BJ f32 sin_poly(f32 r, f32 z) {
    f32 q = fma(2.7941328e-06f, z, -0.000198493959f);
    q = fma(q, z, 0.00833337102f);
    q = fma(q, z, -0.166666672f);
    return fma(q * z, r, r);
}
BJ f32 cos_poly(f32 z) {
    f32 q = fma(2.44286457e-05f, z, -0.00138872908f);
    q = fma(q, z, 0.0416666456f);
    q = fma(q, z, -0.5f);
    return fma(q, z, 1.0f);
}
BJ f32 trig_reduce(f32 x, f32 t) {
    f32 n = t - 12582912.0f;
    f32 r = fma(n, -1.57079637f, x);
    r = fma(n, 4.37113883e-08f, r);
    return fma(n, 1.71512489e-15f, r);
}
BJ f32 sin(f32 x) {
    f32 t = fma(x, 0.636619747f, 12582912.0f);
    f32 r = trig_reduce(x, t), z = r * r;
    u32 n = bits<u32>(t);
    f32 y = (n & 1) ? cos_poly(z) : sin_poly(r, z);
    y = bits<f32>(bits<u32>(y) ^ ((n & 2) << 30));
    return x == 0.0f ? x : y;
}
BJ f32 cos(f32 x) {
    f32 t = fma(x, 0.636619747f, 12582912.0f);
    f32 r = trig_reduce(x, t), z = r * r;
    u32 n = bits<u32>(t);
    f32 y = (n & 1) ? sin_poly(r, z) : cos_poly(z);
    return bits<f32>(bits<u32>(y) ^ (((n + 1) & 2) << 30));
}
BJ i32 trig_far(f32 x) { return !(abs(x) <= BJ_TRIG); }  // NaN too: both forms return NaN
BJ_COLD f32 sin_any(f32 x) { return __builtin_sinf(x); }
BJ_COLD f32 cos_any(f32 x) { return __builtin_cosf(x); }
BJ_COLD f32 tan_any(f32 x) { return __builtin_tanf(x); }

BJ f32 tanh(f32 x) {
    f32 a = abs(x), z = x * x;
    f32 q = fma(0.00215615123f, z, -0.0081938291f);
    q = fma(q, z, 0.0217084065f);
    q = fma(q, z, -0.0539484322f);
    q = fma(q, z, 0.133332223f);
    q = fma(q, z, -0.333333313f);
    f32 near = fma(q * z, x, x);
    f32 far = 1.0f - 2.0f / (exp_near(2.0f * (a > 10.0f ? 10.0f : a)) + 1.0f);
    return copysign(a < 0.625f ? near : far, x);  // near alone would turn -0.0 to 0.0
}
BJ f32 sigmoid(f32 x) { return 1.0f / (1.0f + exp(-x)); }
BJ f32 silu(f32 x) { return x / (1.0f + exp(-x)); }

// erf(a) = 1 - (1 - u)^8 for u = (a + a*q(a)) / 8: erfc's eighth root is nearly straight, so that one short polynomial serves
// the whole range without exp, division or choice. The powers are taken of u, not of 1 - u: near 0 nothing is lost.
BJ f32 erf(f32 x) {
    f32 a = abs(x), b = a > 4.0f ? 4.0f : a;
    f32 q = fma(3.82333346e-05f, b, -0.000709703774f);
    q = fma(q, b, 0.00409904402f);
    q = fma(q, b, -0.00148692995f);
    q = fma(q, b, -0.0527176075f);
    q = fma(q, b, 0.0167134963f);
    q = fma(q, b, 0.557042778f);
    q = fma(q, b, 0.128379166f);
    f32 w = q * b, u = b + w, lost = w - (u - b);  // 8 u, and what its rounding lost
    f32 v = u + fma(u * u, fma(u, fma(u, -0.00048828125f, 0.015625f), -0.1875f), lost);  // 2 (1 - (1 - u)^4)
    return copysign(fma(v * -0.25f, v, v), x);
}

}  // namespace bj
