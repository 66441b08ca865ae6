// Convolutions of 3 by 3 with stride 1 by Winograd's F(2x2, 3x3): 16 products for 4 results where the plain way takes 36. Windows of
// 4 by 4 inputs and the weights are transformed by sums and differences, the products of equal places are matrix products, and their
// sums are transformed back. The transforms cost digits: sums are cut after DIRECT channels, and then are up to 1.5 times as far from
// exact as eager's. Where an infinity in a window, or an overflow of the transform, spoils its 4 results, they are computed plainly.
#pragma once
#include "conv.h"

namespace bj_conv {
// channels of a pass; windows of a block; channels times windows of a block; products in a row to one accumulator
enum { WIDEST = 128, WINDOWS = 96, VALUES = 4096, DIRECT = 64 };

struct Windows {
    i64 down, across, total, block, blocks, slice, slices, panels, grain, pieces, vs, ms;  // vs, ms: floats from one place to the next
};

static Windows windows(const Conv& p, i64 threads) {
    Windows q{};
    q.down = up(p.oh, 2), q.across = up(p.ow, 2), q.total = p.batch * q.down * q.across;
    q.slice = p.c <= WIDEST ? p.c : up(up(p.c, up(p.c, WIDEST)), 8) * 8;
    q.slices = up(p.c, q.slice), q.panels = up(p.o, NR);
    i64 block = least(WINDOWS, up(VALUES / up(q.slice, 8) / 8, MR) * MR);
    q.blocks = up(q.total, block), q.block = up(q.total, q.blocks);
    i64 split = least(q.panels, up(threads * UNITS, q.blocks));
    if (q.slices > 1) split = most(split, up(q.panels, 8));  // the sums of all panels of a piece stay near
    if (split > 1 && q.panels / split < 2) split = most(1, q.panels / 2);
    q.grain = up(q.panels, split), q.pieces = up(q.panels, q.grain);
    q.vs = q.block * up(q.slice, 8) * 8 + 16, q.ms = q.block * NR + 16;  // 16: places must not share sets of the cache
    return q;
}

BJ Q lanes(const f32* x, i64 step, i64 n) {
    if (n >= 8 && step == 1) return *(const QU*)x;
    Q r = {};
    for (i64 i = 0; i < n && i < 8; ++i) r[i] = x[i * step];
    return r;
}

// Windows [t0, t1), channels [c0, c0 + n) -> v[16][windows][n].
static void transform(const Conv& p, const Windows& q, i64 t0, i64 t1, i64 c0, i64 n, f32* v) {
    i64 row = up(n, 8) * 8;
    for (i64 t = t0; t < t1; ++t, v += row) {
        i64 image = t / (q.down * q.across), at = t % (q.down * q.across);
        i64 y = at / q.across * 2 - p.ph, x = at % q.across * 2 - p.pw;
        const f32* from = p.x + image * p.xb + c0 * p.xc + y * p.xh + x * p.xw;
        b8 whole = y >= 0 && x >= 0 && y + 4 <= p.h && x + 4 <= p.wide;
        for (i64 c = 0; c < n; c += 8) {
            Q d[4][4], s[4][4];
#pragma GCC unroll 4
            for (int i = 0; i < 4; ++i)
#pragma GCC unroll 4
                for (int j = 0; j < 4; ++j) {
                    b8 in = whole || (y + i >= 0 && y + i < p.h && x + j >= 0 && x + j < p.wide);
                    d[i][j] = in ? lanes(from + c * p.xc + i * p.xh + j * p.xw, p.xc, n - c) : Q{};
                }
#pragma GCC unroll 4
            for (int j = 0; j < 4; ++j) {
                s[0][j] = d[0][j] - d[2][j], s[1][j] = d[1][j] + d[2][j];
                s[2][j] = d[2][j] - d[1][j], s[3][j] = d[1][j] - d[3][j];
            }
#pragma GCC unroll 4
            for (int i = 0; i < 4; ++i) {
                f32* to = v + i * 4 * q.vs + c;
                *(QU*)to = s[i][0] - s[i][2];
                *(QU*)(to + q.vs) = s[i][1] + s[i][2];
                *(QU*)(to + 2 * q.vs) = s[i][2] - s[i][1];
                *(QU*)(to + 3 * q.vs) = s[i][1] - s[i][3];
            }
        }
    }
}

// A panel's weights of channels [c0, c0 + n) -> u[16][n][NR]. room: 9 * n * NR floats.
static void transform_weights(const Conv& p, const Plan& plain, i64 panel, i64 c0, i64 n, f32* room, f32* u) {
    columns(p, plain, panel * NR, least(NR, p.o - panel * NR), c0, n, room);
    i64 tap = n * NR;
    for (i64 k = 0; k < tap; k += LANES) {
        V s[4][3];
#pragma GCC unroll 3
        for (int j = 0; j < 3; ++j) {
            V a = load(room + j * tap + k), b = load(room + (3 + j) * tap + k), c = load(room + (6 + j) * tap + k);
            V sum = (a + c) * all(0.5f), half = b * all(0.5f);
            s[0][j] = a, s[1][j] = sum + half, s[2][j] = sum - half, s[3][j] = c;
        }
#pragma GCC unroll 4
        for (int i = 0; i < 4; ++i) {
            V sum = (s[i][0] + s[i][2]) * all(0.5f), half = s[i][1] * all(0.5f);
            store(u + (i * 4) * tap + k, s[i][0]);
            store(u + (i * 4 + 1) * tap + k, sum + half);
            store(u + (i * 4 + 2) * tap + k, sum - half);
            store(u + (i * 4 + 3) * tap + k, s[i][2]);
        }
    }
}

// All weights -> u[panels][slices][16][channels of the slice][NR].
static void pack_windows(const Conv& p, const Plan& plain, const Windows& q, i64 from, i64 to, f32* u) {
    Scratch memory(9 * q.slice * NR * 4);
    for (i64 i = from; i < to; ++i)
        for (i64 s = 0; s < q.slices; ++s) {
            i64 c0 = s * q.slice;
            transform_weights(p, plain, i, c0, least(q.slice, p.c - c0), memory.as<f32>(), u + (i * p.c + c0) * 16 * NR);
        }
}

// R windows of one place: m (+)= v u.
template <int R> __attribute__((noinline)) static void place(const f32* v, i64 row, i64 len, const f32* u, f32* m, b8 first) {
    V s0[R], s1[R];
    zero<R>(s0, s1);
    const f32* at[R];
#pragma GCC unroll 16
    for (int i = 0; i < R; ++i) {
        at[i] = v + i * row;
        asm("" : "+r"(at[i]));
    }
    for (i64 k = 0; k < len; ++k, u += NR) {
        V w0 = load(u), w1 = load(u + LANES);
        BJ_KEEP(w0);
        BJ_KEEP(w1);
#pragma GCC unroll 16
        for (int i = 0; i < R; ++i) {
            V x = all(at[i][k]);
            s0[i] = mul_add(x, w0, s0[i]);
            s1[i] = mul_add(x, w1, s1[i]);
        }
    }
    if (!first) {
#pragma GCC unroll 16
        for (int i = 0; i < R; ++i) s0[i] += load(m + i * NR), s1[i] += load(m + i * NR + LANES);
    }
#pragma GCC unroll 16
    for (int i = 0; i < R; ++i) store(m + i * NR, s0[i]), store(m + i * NR + LANES, s1[i]);
}
template <int R> static void places_of(i64 rows, const f32* v, i64 row, i64 len, const f32* u, f32* m, b8 first) {
    if (rows == R) place<R>(v, row, len, u, m, first);
    if constexpr (R > 1)
        if (rows < R) places_of<R - 1>(rows, v, row, len, u, m, first);
}

BJ b8 finite(V x) {
    typedef i64 L __attribute__((vector_size(sizeof(V))));
    V z = x - x;  // NaN where x is not finite
    L odd = (L)(z != z);
    i64 any = 0;
    for (u64 i = 0; i < sizeof(V) / 8; ++i) any |= odd[i];
    return any == 0;
}

// The 4 results of the window at (y, x) by plain sums; a panel's weights u come back out of their sums.
static __attribute__((noinline)) void plainly(const Conv& p, const Windows& q, i64 image, i64 y, i64 x, const f32* u, f32 r[2][2][NR]) {
    for (i64 h = 0; h < NR; h += LANES) {
        V sum[2][2] = {};
        for (i64 c = 0; c < p.c; ++c) {
            i64 c0 = c / q.slice * q.slice, tap = least(q.slice, p.c - c0) * NR;
            const f32 *from = u + c0 * 16 * NR + (c - c0) * NR + h, *in = p.x + image * p.xb + c * p.xc;
            V half[3][4], g[3][3];
            for (int j = 0; j < 4; ++j) {
                half[0][j] = load(from + j * tap), half[2][j] = load(from + (12 + j) * tap);
                half[1][j] = load(from + (4 + j) * tap) - load(from + (8 + j) * tap);
            }
            for (int i = 0; i < 3; ++i) g[i][0] = half[i][0], g[i][1] = half[i][1] - half[i][2], g[i][2] = half[i][3];
            for (i64 i = 0; i < 4; ++i)
                for (i64 j = 0; j < 4; ++j) {
                    i64 row = y - p.ph + i, col = x - p.pw + j;
                    if (row < 0 || row >= p.h || col < 0 || col >= p.wide) continue;
                    V value = all(in[row * p.xh + col * p.xw]);
                    for (i64 a = most(0, i - 2); a < 2 && a <= i; ++a)
                        for (i64 b = most(0, j - 2); b < 2 && b <= j; ++b) sum[a][b] = mul_add(value, g[i - a][j - b], sum[a][b]);
                }
        }
        for (int i = 0; i < 2; ++i)
            for (int j = 0; j < 2; ++j) store(r[i][j] + h, sum[i][j]);
    }
}

// Sums m[16][windows][NR] of a panel, whose weights are u -> results, with what follows.
static void back(const Conv& p, const Windows& q, i64 t0, i64 t1, i64 panel, const f32* m, const f32* u) {
    i64 col = panel * NR, cols = least(NR, p.o - col);
    for (i64 t = t0; t < t1; ++t, m += NR) {
        i64 image = t / (q.down * q.across), at = t % (q.down * q.across), y = at / q.across * 2, x = at % q.across * 2;
        alignas(64) f32 r[2][2][NR];
        V all_of = {};
        for (i64 h = 0; h < NR; h += LANES) {
            V s[2][4];
#pragma GCC unroll 4
            for (int j = 0; j < 4; ++j) {
                const f32* a = m + j * q.ms + h;
                V m1 = load(a + 4 * q.ms), m2 = load(a + 8 * q.ms);
                s[0][j] = load(a) + m1 + m2, s[1][j] = m1 - m2 - load(a + 12 * q.ms);
            }
#pragma GCC unroll 2
            for (int i = 0; i < 2; ++i) {
                V left = s[i][0] + s[i][1] + s[i][2], right = s[i][1] - s[i][2] - s[i][3];
                store(r[i][0] + h, left);
                store(r[i][1] + h, right);
                all_of = all_of + (left - left) + (right - right);
            }
        }
        if (!finite(all_of)) plainly(p, q, image, y, x, u, r);
        for (i64 i = 0; i < 2 && y + i < p.oh; ++i)
            for (i64 j = 0; j < 2 && x + j < p.ow; ++j) {
                i64 to = ((image * p.oh + y + i) * p.ow + x + j) * p.o + col;
                const f32 *scale = p.scale ? p.scale + col : nullptr, *shift = p.shift ? p.shift + col : nullptr;
                const f32* other = p.other ? p.other + to : nullptr;
                if (cols == NR) {
                    for (i64 h = 0; h < NR; h += LANES)
                        store(p.y + to + h, finish(load(r[i][j] + h), scale ? scale + h : nullptr, shift ? shift + h : nullptr,
                                                   other ? other + h : nullptr, p.relu != 0));
                } else {
                    for (i64 h = 0; h < cols; ++h) p.y[to + h] = finish(r[i][j][h], h, scale, shift, other, p.relu != 0);
                }
            }
    }
}

static void run_windows(const Conv& p, i64 threads) {
    Windows q = windows(p, threads);
    i64 worth = 1 + q.total * 16 * p.o * p.c / 250000, units = q.blocks * q.pieces, next = 0;
    threads = least(threads, worth);
    Scratch whole(p.packed ? 0 : q.panels * p.c * 16 * NR * 4);
    const f32* u = p.packed ? p.w : whole.as<f32>();
    if (!p.packed) {
        Plan plain = plan(p, threads);
        parallel(q.panels, 1, threads, [&](i64 a, i64 b) { pack_windows(p, plain, q, a, b, whole.as<f32>()); });
    }
    threads = least(threads, units);
    parallel(threads, 1, threads, [&](i64, i64) {
        i64 held = q.slices > 1 ? q.grain : 1;
        Scratch memory((16 * q.vs + held * 16 * q.ms + 32) * 4);
        f32 *v = memory.as<f32>(), *m = v + 16 * q.vs;
        for (;;) {
            i64 n = __atomic_fetch_add(&next, 1, __ATOMIC_RELAXED);
            if (n >= units) return;
            i64 b = n / q.pieces, t0 = b * q.total / q.blocks, t1 = (b + 1) * q.total / q.blocks, rows = t1 - t0, steps = up(rows, MR);
            i64 first = n % q.pieces * q.grain, stop = least(q.panels, first + q.grain);
            for (i64 s = 0; s < q.slices; ++s) {
                i64 c0 = s * q.slice, len = least(q.slice, p.c - c0), row = up(len, 8) * 8;
                transform(p, q, t0, t1, c0, len, v);
                for (i64 i = first; i < stop; ++i) {
                    f32* sums = m + (held > 1 ? i - first : 0) * 16 * q.ms;
                    const f32* w = u + (i * p.c + c0) * 16 * NR;
                    for (i64 k = 0; k < 16; ++k, w += len * NR)
                        for (i64 t = 0, a = 0; t < steps; ++t) {
                            i64 e = (t + 1) * rows / steps;
                            for (i64 c = 0; c < len; c += DIRECT)
                                places_of<MR>(e - a, v + k * q.vs + a * row + c, row, least(DIRECT, len - c), w + c * NR,
                                              sums + k * q.ms + a * NR, s + c == 0);
                            a = e;
                        }
                    if (s + 1 == q.slices) back(p, q, t0, t1, i, sums, u + i * p.c * 16 * NR);
                }
            }
        }
    });
}

}  // namespace bj_conv
