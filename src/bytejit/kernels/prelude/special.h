// The error function's family and the gamma function's, in float32 and float64. Constants: fit.py.
#pragma once
#include "math_f64.h"

namespace bj {

// erfc(a) = exp(-a*a) * q(u) / (a + k), u = (a - k) / (a + k). What the division and the square round off is carried along.
BJ f32 erfc(f32 x) {
    f32 a = abs(x);
    a = a > 10.5f ? 10.5f : a;
    f32 d = a + 3.0f, lost = a - (d - 3.0f), t = 1.0f / d;
    f32 rest = t * fma(-t, lost, fma(-t, d, 1.0f)), u = fma(-6.0f, rest, fma(-6.0f, t, 1.0f));
    f32 p = fma(-0.000325326866f, u, -0.000483686308f);
    p = fma(p, u, 0.00307852402f);
    p = fma(p, u, -0.00122765324f);
    p = fma(p, u, -0.0268389359f);
    p = fma(p, u, 0.119529925f);
    p = fma(p, u, -0.310466141f);
    p = fma(p, u, 0.59022814f);
    p = fma(p, u, -0.88339448f);
    f32 q = fma(p, u, 1.07400692f), w = q * t, s = a * a;
    f32 part = fma(fma(p, u, 1.07400692f - q), t, fma(q, rest, fma(q, t, -w)));
    f32 m = fma(-s, 1.44269502f, 12582976.0f);  // 2^64 times exp(-s): the result may be subnormal
    f32 e = exp_rest(exp_reduced(-s, m - 12582976.0f) - fma(a, a, -s));
    f32 y = add_exponent(w + fma(w, e, fma(part, e, part)), m) * 5.42101086e-20f;
    return x < 0.0f ? 2.0f - y : y;
}
BJ f64 erfc(f64 x) {
    f64 a = abs(x);
    a = a > 27.5 ? 27.5 : a;
    f64 d = a + 4.0, lost = a - (d - 4.0), t = 1.0 / d;
    f64 rest = t * fma(-t, lost, fma(-t, d, 1.0)), u = fma(-8.0, rest, fma(-8.0, t, 1.0));
    f64 uu = u * u, u4 = uu * uu;
    f64 p = -2.921104328759781e-09;
    p = fma(p, u4, quad(u, uu, -8.7028233352185475e-08, 1.2533241773873791e-07, 9.923574381816891e-09, -1.4164442441930709e-08));
    p = fma(p, u4, quad(u, uu, -1.8864491572030552e-05, 4.6977107953071174e-06, 1.4323885210313534e-06, -8.4982042206405154e-07));
    p = fma(p, u4, quad(u, uu, -0.00028095904693824724, -0.00045505222490403393, 0.00017681383144741477, -3.6367705325850472e-06));
    p = fma(p, u4, quad(u, uu, -0.17401093724117225, 0.076381514917167187, -0.026370053320359372, 0.006112055576664068));
    p = fma(p, u4, quad(u, uu, -0.97654872908088231, 0.77320870226524641, -0.54085383131319908, 0.33085158787760116));
    f64 q = fma(p, u, 1.0959956610004911), w = q * t, s = a * a;
    f64 part = fma(fma(p, u, 1.0959956610004911 - q), t, fma(q, rest, fma(q, t, -w)));
    f64 m = fma(-s, 1.4426950408889634, BJ_MAGIC), n = m - BJ_MAGIC;
    f64 r = fma(n, -6.93147180369123816490e-01, -s);
    r = fma(n, -1.90821492927058770002e-10, r - fma(a, a, -s));
    f64 e = fma(r * r, exp_tail(r), r);
    f64 y = scale2(w + fma(w, e, fma(part, e, part)), m);
    return x < 0.0 ? 2.0 - y : y;
}
BJ f64 erf(f64 x) {
    f64 a = abs(x), z = a * a;
    f64 zz = z * z, z4 = zz * zz;
    f64 q = quad(z, zz, 1.6447154868122808e-06, -1.6206608356867929e-07, 1.3712628814674872e-08, -7.7830720472567541e-10);
    q = fma(q, z4, quad(z, zz, 0.0052239776057290289, -0.000854832591965114, 0.0001205529346521502, -1.4924712509522804e-05));
    q = fma(q, z4, quad(z, zz, 0.12837916709551256, -0.37612638903183471, 0.11283791670943219, -0.026866170643026575));
    f64 b = a > 6.0 ? 6.0 : a, s = -b * b, t = 1.0 / (b + 2.0), u = fma(-4.0, t, 1.0), uu = u * u, u4 = uu * uu;
    f64 p = quad(u, uu, -0.00066335209683251789, 3.3864796362677414e-05, 0.00014660095427175871, 4.5884617751730158e-05);
    p = fma(p, u4, quad(u, uu, -0.021510661854104413, 0.0064791862728146715, 0.0030906169102302345, -0.0008373252727989285));
    p = fma(p, u4, quad(u, uu, 1.0215827052420234, -0.68716068441380695, 0.27947209255549471, -0.036442231515299371));
    f64 m = fma(s, 1.4426950408889634, BJ_MAGIC), n = m - BJ_MAGIC;
    f64 r = fma(n, -1.90821492927058770002e-10, fma(n, -6.93147180369123816490e-01, s));
    f64 far = 1.0 - add_exponent(fma(r * r, exp_tail(r), r) + 1.0, m) * (p * t);  // 1 - erfc(a)
    return copysign(a < 1.0 ? fma(q, a, a) : far, x);
}

// erfinv(x) = x * p(w), w = -log(1 - x*x); in w up to 5, in sqrt(w) above.
BJ f32 erfinv(f32 x) {
    SplitF e = split(fma(-x, x, 1.0f));
    f32 w = -log_parts(e.f, e.e), v = w - 2.5f, s = sqrt(w) - 3.0f;
    f32 p = fma(-8.64300009e-09f, v, 2.4252822e-08f);
    p = fma(p, v, 4.64061685e-07f);
    p = fma(p, v, -3.47694208e-06f);
    p = fma(p, v, -4.95329823e-06f);
    p = fma(p, v, 0.000218410525f);
    p = fma(p, v, -0.00125275971f);
    p = fma(p, v, -0.00417750003f);
    p = fma(p, v, 0.246640295f);
    p = fma(p, v, 1.50140941f);
    f32 q = fma(0.000112988477f, s, -0.000307647832f);
    q = fma(q, s, -5.15047577e-05f);
    q = fma(q, s, 0.00148191024f);
    q = fma(q, s, -0.00360094151f);
    q = fma(q, s, 0.00568867009f);
    q = fma(q, s, -0.00763635151f);
    q = fma(q, s, 0.00944496039f);
    q = fma(q, s, 1.00167489f);
    q = fma(q, s, 2.83297682f);
    f32 a = abs(x), y = a * (w < 5.0f ? p : q);
    y = a == 1.0f ? BJ_INF : y;
    return copysign(a <= 1.0f ? y : BJ_NAN, x);
}

BJ i32 erfinv_far(f32) { return 0; }
BJ i32 erfinv_far(f64 x) { return (abs(x) > 0.99999994) & (abs(x) < 1.0); }
BJ f64 erfinv(f64 x) {  // right where `erfinv_far` is 0: w up to 16
    Split e = split(fma(-x, x, 1.0));
    f64 w = -log_parts(e.f, e.e), v = w - 3.125, s = sqrt(w) - 3.25;
    f64 vv = v * v, v4 = vv * vv, ss = s * s, s4 = ss * ss;
    f64 p = fma(-3.3879352774356395e-21, v, -1.6840769111471424e-19);
    p = fma(p, v4, quad(v, vv, 2.1066812622714608e-17, -1.3297643408196829e-16, 1.115321482201909e-17, 1.2716784305612332e-18));
    p = fma(p, v4, quad(v, vv, 2.6335163832422411e-12, -8.1478971631951434e-14, -4.0546712221544195e-14, 6.6329615248292559e-15));
    p = fma(p, v4, quad(v, vv, -4.1126339067456282e-09, 1.0512131171576302e-09, -5.4154149904854254e-11, -1.2975360933100399e-11));
    p = fma(p, v4, quad(v, vv, -1.3882523362719773e-05, -1.3654691971329425e-06, 4.2347877817609629e-07, -2.9070371972681491e-08));
    p = fma(p, v4, quad(v, vv, 0.24015818242558962, -0.0060336708714292331, -0.00074070253416627467, 0.00018673420803164489));
    f64 q = fma(9.0434652491557449e-08, s, -2.6953385420040467e-07);
    q = fma(q, s4, quad(s, ss, 2.926893183730517e-06, -4.0145898277016576e-06, 1.496742440664841e-06, 1.8991270306444752e-08));
    q = fma(q, s4, quad(s, ss, 2.4031341011461803e-05, 6.8284744644265126e-05, -4.7319388864833243e-05, 1.2475672612080778e-05));
    q = fma(q, s4, quad(s, ss, 0.0024914420976186141, -0.0016882755575578817, 0.00095328935368041163, -0.0003550375027848037));
    q = fma(q, s4, quad(s, ss, 3.0838856104922208, 1.0052589676941586, 0.0053709145535540534, -0.0037512085075090229));
    f64 h = fma(p, v, 1.6536545626831027), rest = fma(p, v, 1.6536545626831027 - h) + 0.24015818242558962 * (w - (v + 3.125));
    f64 a = abs(x), y = w < 6.25 ? fma(a, h, a * rest) : a * q;
    y = a == 1.0 ? BJ_INF64 : y;
    return copysign(a <= 1.0 ? y : (f64)BJ_NAN, x);
}

BJ_COLD f64 erfinv_any(f64 y) {  // Halley steps on erfc: beside the ends
    f64 a = abs(y);
    if (!(a > 0.99 && a < 1.0)) return erfinv(y);
    f64 x = __builtin_sqrt(-__builtin_log((1.0 - a) * (1.0 + a))) * 0.95;
    for (int i = 0; i < 60; ++i) {
        f64 f = (1.0 - a) - __builtin_erfc(x), g = 1.1283791670955126 * __builtin_exp(-x * x), step = f / g;
        step = step / (1.0 + x * step);
        x -= step;
        if (abs(step) <= 1e-16 * x) break;
    }
    return copysign(x, y);
}
BJ f32 erfinv_any(f32 x) { return erfinv(x); }

// In float64: near 1 and 2, where lgamma is 0, its parts cancel to 1e-15. Below 8 it is that of x + 8 without the product
// x(x + 1)...(x + 7); of negative x the reflection, both in one logarithm.
BJ f32 lgamma(f32 given) {
    f64 x = (f64)given, a = abs(x), q = a * (a + 7.0), y = a < 8.0 ? a + 8.0 : a, z = 1.0 / y, zz = z * z;
    f64 p = a < 8.0 ? (q * (q + 6.0)) * ((q + 10.0) * (q + 12.0)) : 1.0;
    f64 c = fma(0.006410256410256411, zz, -0.0019175269175269176);
    c = fma(c, zz, 0.00084175084175084171);
    c = fma(c, zz, -0.00059523809523809529);
    c = fma(c, zz, 0.00079365079365079365);
    c = fma(c, zz, -0.0027777777777777779);
    c = fma(c, zz, 0.083333333333333329);
    f64 top = fma(y - 0.5, log(y), fma(c, z, 0.91893853320467278 - y));
    f64 part = a - round(a), below = a * abs(sin(3.141592653589793 * part));
    f64 rest = log(x < 0.0 ? p * 3.141592653589793 / below : p);
    f64 out = x < 0.0 ? rest - top : top - rest;
    out = x == 1.0 || x == 2.0 ? 0.0 : out;
    return (f32)(a == BJ_INF64 ? a : out);
}
// Below 10 that of x + 10, less the sum of 1/(x + i), in pairs that add up to nine; of negative x the reflection.
BJ f64 digamma(f64 given) {
    bool minus = given < 0.0;
    f64 part = given - trunc(given);  // exact, near the poles as well
    f64 x = minus ? 1.0 - given : given, out = minus ? -3.141592653589793 / tan(3.141592653589793 * part) : 0.0;
    bool near = x < 10.0;
    f64 q = x * (x + 9.0), pairs = 1.0 / (q + 20.0) + 1.0 / (q + 18.0) + 1.0 / (q + 14.0) + 1.0 / (q + 8.0) + 1.0 / q;
    f64 sum = near ? (x + x + 9.0) * pairs : 0.0;
    x = near ? x + 10.0 : x;
    f64 half = 0.5 / x, z = 4.0 * half * half;
    f64 c = fma(-0.08333333333333333, z, 0.021092796092796094);
    c = fma(c, z, -0.007575757575757576);
    c = fma(c, z, 0.004166666666666667);
    c = fma(c, z, -0.003968253968253968);
    c = fma(c, z, 0.008333333333333333);
    c = fma(c, z, -0.08333333333333333);
    out = (out - sum) + (log(x) - half + c * z);
    out = given == 0.0 ? copysign(BJ_INF64, -given) : out;
    return minus && part == 0.0 ? (f64)BJ_NAN : out;
}
BJ f32 digamma(f32 x) { return (f32)digamma((f64)x); }

}  // namespace bj
