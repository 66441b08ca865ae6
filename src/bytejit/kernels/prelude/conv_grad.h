// Gradient of a convolution's weight: for each tap the matrix product of the result's gradient [o, pixels] and the input's pixels
// [pixels, c] that the tap has met. A chunk of pixels is laid out in panels: of the gradient MR output channels side by side, of the
// input NR channels of the rows that one row of taps reads, padded. Tiles of MR by NR sums stay in registers for a whole chunk.
#pragma once
#include "conv.h"

namespace bj_conv {
enum { CHUNK = 256, MOST = 1 << 23 };  // pixels of a chunk, which go to one accumulator; floats of all threads' sums

struct WeightGrad {
    const f32 *g, *x;
    f32* w;                                    // [o, c, kh, kw], dense
    i64 gb, gc, gh, gw, xb, xc, xh, xw;        // element distances of g and x
    i64 batch, c, h, wide, o, oh, ow, kh, kw, sh, sw, ph, pw, dh, dw;
};

// Rows [r0, r1) of output pixels, all images one under the other: the gradient, output channels [first, first + n) side by side.
static void pack_gradient(const WeightGrad& p, i64 r0, i64 r1, i64 first, i64 n, f32* to) {
    for (i64 r = r0; r < r1; ++r) {
        const f32* from = p.g + r / p.oh * p.gb + r % p.oh * p.gh + first * p.gc;
        if (p.gc == 1)
            for (i64 i = 0; i < p.ow; ++i, to += n)
                for (i64 k = 0; k < n; ++k) to[k] = from[i * p.gw + k];
        else
            for (i64 i = 0; i < p.ow; ++i, to += n)
                for (i64 k = 0; k < n; ++k) to[k] = from[i * p.gw + k * p.gc];
    }
}

// The same rows' input as row `a` of taps reads it: channels [first, first + NR), `wp` padded columns.
static void pack_input(const WeightGrad& p, i64 r0, i64 r1, i64 a, i64 first, i64 wp, f32* to) {
    i64 n = least(NR, p.c - first), skip = least(p.pw, wp), stop = most(skip, least(wp, p.wide + p.pw));
    for (i64 r = r0; r < r1; ++r, to += wp * NR) {
        i64 y = r % p.oh * p.sh - p.ph + a * p.dh;
        if (y < 0 || y >= p.h) {
            clear(to, wp * NR);
            continue;
        }
        const f32* from = p.x + r / p.oh * p.xb + y * p.xh + first * p.xc - p.pw * p.xw;
        clear(to, skip * NR);
        if (n == NR && p.xc == 1)
            for (i64 i = skip; i < stop; ++i) {
                store(to + i * NR, load(from + i * p.xw));
                store(to + i * NR + LANES, load(from + i * p.xw + LANES));
            }
        else
            for (i64 i = skip; i < stop; ++i)
                for (i64 k = 0; k < NR; ++k) to[i * NR + k] = k < n ? from[i * p.xw + k * p.xc] : 0.0f;
        clear(to + stop * NR, (wp - stop) * NR);
    }
}

// sums[R][NR] += (first: =) the products of `rows` rows of `cols` pixels. g: [pixels][R]; x: rows `row` apart, pixels `step` apart.
template <int R> __attribute__((noinline)) static void weight_tile(const f32* g, const f32* x, i64 rows, i64 cols, i64 row, i64 step, b8 first, f32* sums) {
    V s0[R], s1[R];
#pragma GCC unroll 16
    for (int i = 0; i < R; ++i) s0[i] = s1[i] = V{};
    for (i64 r = 0; r < rows; ++r) {
        const f32* at = x + r * row;
        for (i64 k = 0; k < cols; ++k, at += step, g += R) {
            V x0 = load(at), x1 = load(at + LANES);
            BJ_KEEP(x0);
            BJ_KEEP(x1);
#pragma GCC unroll 16
            for (int i = 0; i < R; ++i) {
                V v = all(g[i]);
                s0[i] = mul_add(v, x0, s0[i]);
                s1[i] = mul_add(v, x1, s1[i]);
            }
        }
    }
#pragma GCC unroll 16
    for (int i = 0; i < R; ++i) {
        store(sums + i * NR, first ? s0[i] : load(sums + i * NR) + s0[i]);
        store(sums + i * NR + LANES, first ? s1[i] : load(sums + i * NR + LANES) + s1[i]);
    }
}

template <int R> static void weight_tiles(i64 n, const f32* g, const f32* x, i64 rows, i64 cols, i64 row, i64 step, b8 first, f32* sums) {
    if (n == R) weight_tile<R>(g, x, rows, cols, row, step, first, sums);
    if constexpr (R > 1)
        if (n < R) weight_tiles<R - 1>(n, g, x, rows, cols, row, step, first, sums);
}

// Rows [r0, r1), units [u0, u1) of a panel of input channels and a row of taps -> sums[unit][kw][o][NR].
static void weight_chunks(const WeightGrad& p, i64 r0, i64 r1, i64 u0, i64 u1, f32* sums) {
    i64 wp = (p.ow - 1) * p.sw + (p.kw - 1) * p.dw + 1, most_rows = most(1, CHUNK / p.ow), tiles = up(p.o, MR);
    Scratch memory((most_rows * p.ow * p.o + most_rows * wp * NR + 16) * 4);
    f32 *x = memory.as<f32>(), *g = x + up(most_rows * wp * NR, 16) * 16;
    i64 chunks = up(r1 - r0, most_rows);
    for (i64 i = 0; i < chunks; ++i) {
        i64 a = r0 + i * (r1 - r0) / chunks, b = r0 + (i + 1) * (r1 - r0) / chunks, pixels = (b - a) * p.ow;
        for (i64 t = 0; t < tiles; ++t) {
            i64 o0 = t * p.o / tiles, o1 = (t + 1) * p.o / tiles;
            pack_gradient(p, a, b, o0, o1 - o0, g + o0 * pixels);
        }
        for (i64 u = u0; u < u1; ++u) {
            pack_input(p, a, b, u % p.kh, u / p.kh * NR, wp, x);
            for (i64 k = 0; k < p.kw; ++k)
                for (i64 t = 0; t < tiles; ++t) {
                    i64 o0 = t * p.o / tiles, o1 = (t + 1) * p.o / tiles;
                    weight_tiles<MR>(o1 - o0, g + o0 * pixels, x + k * p.dw * NR, b - a, p.ow, wp * NR, p.sw * NR,
                                     i == 0, sums + ((u * p.kw + k) * p.o + o0) * NR);
                }
        }
    }
}

// Threads take units; where these are few, also rows of pixels, with sums of their own that are added up.
static void run_weight(const WeightGrad& p, i64 threads) {
    i64 units = up(p.c, NR) * p.kh, rows = p.batch * p.oh, size = units * p.kw * p.o * NR;
    threads = most(1, least(threads, rows * p.ow * p.o * p.c * p.kh * p.kw / 250000));
    i64 parts = units >= 2 * threads ? 1 : most(1, least(least(threads, rows), MOST / size)), shares = threads / parts;
    Scratch memory(parts * size * 4);
    f32* sums = memory.as<f32>();
    parallel(threads, 1, threads, [&](i64 first, i64 end) {
        for (i64 t = first; t < end; ++t) {
            i64 part = t % parts, share = t / parts;
            if (share < shares)
                weight_chunks(p, part * rows / parts, (part + 1) * rows / parts, share * units / shares, (share + 1) * units / shares,
                              sums + part * size);
        }
    });
    parallel(p.o, 1, threads, [&](i64 first, i64 end) {
        i64 taps = p.kh * p.kw;
        for (i64 o = first; o < end; ++o)
            for (i64 c = 0; c < p.c; c += NR)
                for (i64 tap = 0; tap < taps; ++tap) {
                    const f32* from = sums + ((c / NR * taps + tap) * p.o + o) * NR;
                    f32* to = p.w + (o * p.c + c) * taps + tap;
                    for (i64 k = 0; k < least(NR, p.c - c); ++k) {
                        f32 sum = from[k];
                        for (i64 t = 1; t < parts; ++t) sum += from[t * size + k];
                        to[k * taps] = sum;
                    }
                }
    });
}

}  // namespace bj_conv
