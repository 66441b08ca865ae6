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
BJ f32 exp_reduced(f32 x, f32 n) { return fma(n, -1.42860677e-06f, fma(n, -0.693145752f, x)); }  // x - n*log(2)
BJ f32 exp_rest(f32 r) {  // exp(r) - 1, |r| <= 0.3466
    f32 q = fma(0.000199533897f, r, 0.00139357755f);
    q = fma(q, r, 0.00833319779f);
    q = fma(q, r, 0.0416664556f);
    q = fma(q, r, 0.166666672f);
    q = fma(q, r, 0.5f);
    return fma(r * r, q, r);
}
BJ f32 exp_core(f32 x, f32 n) { return exp_rest(exp_reduced(x, n)) + 1.0f; }
BJ f32 exp_near(f32 x) {  // |x| <= 80
    f32 t = fma(x, 1.44269502f, 12582912.0f);
    return add_exponent(exp_core(x, t - 12582912.0f), t);
}
BJ f32 exp(f32 x) {
    bool low = x < -87.0f;  // the result may be subnormal: made 2^64 times as large, then scaled with one rounding
    f32 y = x < -105.0f ? -105.0f : x;
    f32 m = low ? 12582976.0f : 12582912.0f;
    f32 t = fma(y, 1.44269502f, m);
    f32 scale = low ? 5.42101086e-20f : 1.0f;
    scale = x < -104.0f ? 0.0f : scale;  // a product that rounds to 0 takes 12 times as long: softmax of masked rows
    f32 p = add_exponent(exp_core(y, t - m), t) * scale;
    p = x > 88.7228317f ? BJ_INF : p;
    return x != x ? x : p;
}

BJ f32 exp2(f32 x) {
    bool low = x < -125.5f;  // as in exp
    f32 y = x < -152.0f ? -152.0f : x;
    f32 m = low ? 12582976.0f : 12582912.0f;
    f32 t = y + m;
    f32 scale = low ? 5.42101086e-20f : 1.0f;
    scale = x < -150.0f ? 0.0f : scale;  // as in exp
    f32 p = add_exponent(exp_rest((y - (t - m)) * 0.693147182f) + 1.0f, t) * scale;
    p = x >= 128.0f ? BJ_INF : p;
    return x != x ? x : p;
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
struct SplitF {  // x = (1 + f) * 2^e, 1 + f in [sqrt(1/2), sqrt(2)); any x >= 0, subnormal ones too
    f32 f, e;
};
BJ SplitF split(f32 x) {
    bool tiny = x < 1.17549435e-38f;
    u32 b = bits<u32>(tiny ? x * 8388608.0f : x) - 0x3f3504f3u;  // so that m starts at sqrt(1/2)
    f32 e = (f32)((i32)b >> 23) - (tiny ? 23.0f : 0.0f);
    return SplitF{bits<f32>((b & 0x7fffffu) + 0x3f3504f3u) - 1.0f, e};
}
BJ f32 log(f32 x) {
    SplitF p = split(x);
    return log_special(x, log_parts(p.f, p.e));
}
BJ f32 log2(f32 x) {  // log2(1 + f) = f + f*q(f)
    SplitF p = split(x);
    f32 f = p.f, q = fma(-0.116423346f, f, 0.190143421f);
    q = fma(q, f, -0.19013986f);
    q = fma(q, f, 0.203791425f);
    q = fma(q, f, -0.23964487f);
    q = fma(q, f, 0.288623482f);
    q = fma(q, f, -0.36069724f);
    q = fma(q, f, 0.480896771f);
    q = fma(q, f, -0.721347332f);
    q = fma(q, f, 0.442695051f);
    return log_special(x, p.e + fma(f, q, f));
}
BJ f32 log10(f32 x) {  // log10(1 + f) = f*(7/16 + q(f))
    SplitF p = split(x);
    f32 f = p.f, q = fma(-0.0331616588f, f, 0.0561283939f);
    q = fma(q, f, -0.057531964f);
    q = fma(q, f, 0.0615772009f);
    q = fma(q, f, -0.0721279457f);
    q = fma(q, f, 0.0868681669f);
    q = fma(q, f, -0.108580746f);
    q = fma(q, f, 0.144764781f);
    q = fma(q, f, -0.217147186f);
    q = fma(q, f, -0.00320551801f);
    f32 y = fma(f, 0.4375f, fma(f, q, p.e * -1.43209888e-08f));  // of log10(2) what a float does not hold
    return log_special(x, fma(p.e, 0.301030010f, y));
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
BJ f32 tan(f32 x) {
    f32 t = fma(x, 0.636619747f, 12582912.0f), n = t - 12582912.0f;
    f32 a = fma(n, -1.57079637f, x), b = n * 4.37113883e-08f, r = a + b, c = r - a;
    f32 lost = (a - (r - c)) + (b - c) + fma(n, 1.71512489e-15f, fma(n, 4.37113883e-08f, -b));
    f32 z = r * r, q = fma(0.00955172256f, z, 0.00283328607f);
    q = fma(q, z, 0.0246135257f);
    q = fma(q, z, 0.0533580668f);
    q = fma(q, z, 0.133394748f);
    q = fma(q, z, 0.333331287f);
    f32 p = r + fma(q * z, r, fma(lost, z, lost));
    bool odd = bits<u32>(t) & 1;
    f32 y = (odd ? -1.0f : p) / (odd ? p : 1.0f);
    return x == 0.0f ? x : y;
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


// Both functions are sums of sinh(r) and cosh(r) times 2^n and 2^-n.
struct Halves {
    f32 up, down, s, c;  // 2^n/4, 2^-n/4, sinh(r), cosh(r) - 1
};
BJ Halves halves(f32 a) {  // a >= 0
    a = a > 89.5f ? 89.5f : a;
    f32 t = fma(a, 1.44269502f, 12582912.0f), n = t - 12582912.0f;
    f32 r = exp_reduced(a, n);
    i32 k = bits<i32>(t) - 0x4b400000, low = 125 - k;
    f32 up = bits<f32>((k + 125) << 23), down = bits<f32>((low > 0 ? low : 0) << 23);
    f32 z = r * r, q = fma(0.000199584538f, z, 0.00833319221f);
    q = fma(q, z, 0.166666672f);
    f32 c = fma(fma(0.00139357755f, z, 0.0416664556f), z, 0.5f) * z;
    return Halves{up, down, fma(q * z, r, r), c};
}
BJ f32 sinh(f32 x) {
    Halves h = halves(abs(x));
    f32 sum = h.up + h.down, diff = h.up - h.down;
    return copysign(2.0f * (diff + fma(sum, h.s, diff * h.c)), x);
}
BJ f32 cosh(f32 x) {
    Halves h = halves(abs(x));
    return 2.0f * (h.up + fma(h.up, h.s + h.c, h.down * ((h.c - h.s) + 1.0f)));
}
BJ f32 asinh(f32 x) {
    f32 a = abs(x), z = a * a, q = fma(-0.00015394119f, z, 0.00125103875f);
    q = fma(q, z, -0.00467076572f);
    q = fma(q, z, 0.0109829549f);
    q = fma(q, z, -0.0193132143f);
    q = fma(q, z, 0.0294261947f);
    q = fma(q, z, -0.044466015f);
    q = fma(q, z, 0.0749834552f);
    q = fma(q, z, -0.16666612f);
    bool big = a > 1e6f;
    SplitF p = split(big ? a : a + sqrt(z + 1.0f));
    f32 y = a < 1.1752f ? fma(q * z, a, a) : log_parts(p.f, p.e + (big ? 1.0f : 0.0f));  // up to a result of 1
    return copysign(a < BJ_INF ? y : a, x);
}
BJ f32 acosh(f32 x) {
    f32 t = x - 1.0f, q = fma(8.23538576e-05f, t, -0.000505506468f);
    q = fma(q, t, 0.00178674189f);
    q = fma(q, t, -0.00554551138f);
    q = fma(q, t, 0.0187448598f);
    q = fma(q, t, -0.083333075f);
    bool near = t < 1.0f, big = x > 1e6f;
    f32 s = sqrt(near ? t + t : fma(x, x, -1.0f));
    SplitF p = split(big ? x : x + s);
    f32 y = near ? fma(q * t, s, s) : log_parts(p.f, p.e + (big ? 1.0f : 0.0f));
    y = x >= 1.0f ? y : BJ_NAN;
    return x == BJ_INF ? x : y;
}
BJ f32 atanh(f32 x) {
    f32 a = abs(x), z = a * a, q = fma(0.177001774f, z, 0.0511143357f);
    q = fma(q, z, 0.118310198f);
    q = fma(q, z, 0.142217398f);
    q = fma(q, z, 0.200025842f);
    q = fma(q, z, 0.333332986f);
    SplitF p = split((1.0f + a) / (1.0f - a));
    f32 y = a < 0.5f ? fma(q * z, a, a) : 0.5f * log_parts(p.f, p.e);
    y = a == 1.0f ? BJ_INF : y;
    return copysign(a <= 1.0f ? y : BJ_NAN, x);
}

// asin(s) = s + s*z*q(z), s <= 0.5403; above pi/2 - 2*asin(sqrt((1 - a)/2)), where the result and 2*asin are in one binade.
BJ f32 asin_tail(f32 z) {
    f32 q = fma(0.0435682535f, z, 0.00997658726f);
    q = fma(q, z, 0.0330249853f);
    q = fma(q, z, 0.0443672054f);
    q = fma(q, z, 0.0750130191f);
    return fma(q, z, 0.166666463f) * z;
}
BJ f32 asin(f32 x) {
    f32 a = abs(x);
    bool near = a <= 0.5403f;
    f32 z = near ? a * a : fma(-0.5f, a, 0.5f), s = near ? a : sqrt(z);
    f32 p = s + fma(asin_tail(z), s, near ? 0.0f : 2.18556941e-08f);
    return copysign(near ? p : fma(-2.0f, p, 1.57079637f), x);
}
BJ f32 acos(f32 x) {
    f32 a = abs(x);
    bool near = a <= 0.5403f;
    f32 z = near ? a * a : fma(-0.5f, a, 0.5f), s = near ? x : sqrt(z), q = asin_tail(z);
    f32 base = near ? 1.57079637f : x < 0.0f ? 3.14159274f : 0.0f;
    f32 w = near ? -s : x < 0.0f ? -2.0f * s : 2.0f * s;
    return base + (w + fma(w, q, base * -2.78275342e-08f));
}
BJ f32 atan_tail(f32 a) {  // of a in [0, 1]: atan(a) - a
    f32 z = a * a, q = fma(0.00289678201f, z, -0.0162714031f);
    q = fma(q, z, 0.0430533662f);
    q = fma(q, z, -0.0753864646f);
    q = fma(q, z, 0.106595658f);
    q = fma(q, z, -0.142093986f);
    q = fma(q, z, 0.19993566f);
    q = fma(q, z, -0.333331436f);
    return q * z * a;
}
BJ f32 atan(f32 x) {
    f32 a = abs(x);
    bool big = a > 1.0f;
    f32 b = big ? 1.0f / a : a, p = atan_tail(b);
    return copysign(big ? 1.57079637f - (b + (p + 4.37113883e-08f)) : b + p, x);
}
BJ f32 atan2(f32 y, f32 x) {
    f32 a = abs(y), b = abs(x);
    bool swap = a > b;
    f32 top = swap ? b : a, low = swap ? a : b;
    bool small = low < 1e-30f;  // a quotient of subnormal numbers
    f32 q = (small ? top * 1.84467441e19f : top) / (small ? low * 1.84467441e19f : low);
    q = low == 0.0f ? 0.0f : q;
    q = top == BJ_INF ? 1.0f : q;
    f32 p = atan_tail(q);
    bool left = signbit(x);
    f32 base = swap ? 1.57079637f : left ? 3.14159274f : 0.0f;
    u32 flip = swap != left ? 0x80000000u : 0u;
    q = bits<f32>(bits<u32>(q) ^ flip), p = bits<f32>(bits<u32>(p) ^ flip);
    p = copysign(base + (q + (p + base * -2.78275342e-08f)), y);
    return x != x || y != y ? BJ_NAN : p;
}
// Above `high` the squares overflow, below `low` they lose digits: scaled by `up` and `down`, powers of 2.
template <class T> BJ T hypot_scaled(T x, T y, T high, T low, T up, T down) {
    T a = abs(x), b = abs(y), most = a > b ? a : b, least = a > b ? b : a;
    T by = most > high ? down : most < low ? up : (T)1, back = most > high ? up : most < low ? down : (T)1;
    most *= by, least *= by;
    T z = least * least, r = sqrt(fma(most, most, z) + fma(least, least, -z)) * back;
    r = x != x || y != y ? (T)BJ_NAN : r;
    return a == (T)BJ_INF || b == (T)BJ_INF ? (T)BJ_INF : r;
}
BJ f32 hypot(f32 x, f32 y) { return hypot_scaled(x, y, 1e18f, 1e-12f, 1.84467441e19f, 5.42101086e-20f); }

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
