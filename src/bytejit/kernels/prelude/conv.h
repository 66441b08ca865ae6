// Convolution of single precision images with the channels innermost in the result, as a matrix product whose rows are gathered on
// the way: no matrix of windows is ever made. A thread takes a band of output pixels and a few panels of NR output channels; it
// copies a slice of the input's channels, padded, into a buffer near it (from any layout), turns the weights of a panel's slice
// into columns, and lets the tiles of gemm.h pass by. What follows a convolution in a network (a norm's scale and shift, a
// residual, relu) is applied while a result is in registers.
#pragma once
#include "gemm.h"

namespace bj_conv {
using namespace bj;
using namespace bj_gemm;
enum { DEPTH = 384, PIXELS = 256, NEAR = 48 * 1024, UNITS = 8 };  // rows of a panel's slice; pixels of a band; floats of a band's input; pieces of work a thread

struct Conv {
    const f32 *x, *w, *scale, *shift, *other;  // scale, shift: o, or null; other: as y, or null
    f32* y;                                    // [batch, oh, ow, o]
    i64 xb, xc, xh, xw;                        // element distances of x
    i64 wo, wc, wh, ww;                        // of the weight; packed: unread
    i64 batch, c, h, wide, o, oh, ow, kh, kw, sh, sw, ph, pw, dh, dw, groups, packed, relu;
};

// What a shape makes of the loops. cg, og: channels of a group; slice: channels of one pass; rows, cols: output pixels of a band.
struct Plan {
    i64 cg, og, taps, slice, slices, panels, rows, cols, bands, across, hi, wi, grain, pieces;
    b8 direct, plain;  // x is read in place; the weight is contiguous along taps, then channels
};

BJ i64 up(i64 a, i64 b) { return (a + b - 1) / b; }
BJ i64 least(i64 a, i64 b) { return a < b ? a : b; }
BJ i64 most(i64 a, i64 b) { return a > b ? a : b; }

// Channels of a slice: its taps and channels together are about DEPTH rows of a panel.
static i64 slice_of(i64 cg, i64 taps) {
    i64 s = most(8, DEPTH / taps / 8 * 8);
    if (cg <= s) return cg;
    return up(up(cg, up(cg, s)), 8) * 8;
}

static Plan plan(const Conv& p, i64 threads) {
    Plan q{};
    q.cg = p.c / p.groups, q.og = p.o / p.groups, q.taps = p.kh * p.kw;
    q.slice = slice_of(q.cg, q.taps), q.slices = up(q.cg, q.slice);
    q.panels = up(q.og, NR) * p.groups;
    q.direct = q.taps == 1 && p.ph == 0 && p.pw == 0 && p.xc == 1;
    q.plain = p.ww == 1 && p.wh == p.kw && p.wc == q.taps;
    i64 total = p.batch * p.oh, pieces = up(p.ow, PIXELS);
    q.cols = up(p.ow, pieces), q.across = up(p.ow, q.cols);
    q.wi = (q.cols - 1) * p.sw + (p.kw - 1) * p.dw + 1;
    q.rows = least(most(1, PIXELS / q.cols), total);
    for (;; q.rows = q.rows / 2) {  // images that a band touches have each their own rows around
        i64 images = least(q.rows, (q.rows + p.oh - 2) / p.oh + 1);
        q.hi = q.rows * p.sh + images * most(0, (p.kh - 1) * p.dh + 1 - p.sh);
        if (q.rows == 1 || q.direct || q.hi * q.wi * q.slice <= NEAR) break;
    }
    q.bands = up(total, q.rows) * q.across;
    i64 wanted = threads * UNITS, per = up(q.og, NR);
    i64 split = q.bands * p.groups >= wanted ? 1 : least(up(wanted, q.bands * p.groups), most(1, per / 2));
    q.grain = up(per, split), q.pieces = up(per, q.grain) * p.groups;
    return q;
}

// Weights of panel columns [col, col + cols) of a group, channels [c0, c0 + n) -> out[taps * n][NR], taps outermost.
static void columns(const Conv& p, const Plan& q, i64 col, i64 cols, i64 c0, i64 n, f32* out) {
    const f32* w = p.w + col * p.wo + c0 * p.wc;
    i64 done = 0, all = q.taps * n;
    if (cols == NR && q.plain) {
        i64 c = 0, t = 0;
        for (; done + 8 <= all; done += 8) {
            f32* to[8];
            for (i64 i = 0; i < 8; ++i) {
                to[i] = out + (t * n + c) * NR;
                if (++t == q.taps) t = 0, ++c;
            }
            for (i64 j = 0; j < NR; j += 8) transpose8(w + j * p.wo + done, p.wo, [&](i64 i) { return to[i] + j; });
        }
        for (; done < all; ++done)
            for (i64 j = 0; j < NR; ++j) out[(done % q.taps * n + done / q.taps) * NR + j] = w[j * p.wo + done];
        return;
    }
    for (i64 a = 0; a < p.kh; ++a)
        for (i64 b = 0; b < p.kw; ++b) {
            const f32* from = w + a * p.wh + b * p.ww;
            f32* to = out + (a * p.kw + b) * n * NR;
            i64 c = 0;
            if (cols == NR && p.wc == 1)
                for (; c + 8 <= n; c += 8)
                    for (i64 j = 0; j < NR; j += 8) transpose8(from + j * p.wo + c, p.wo, [&](i64 i) { return to + (c + i) * NR + j; });
            for (; c < n; ++c)
                for (i64 j = 0; j < NR; ++j) to[c * NR + j] = j < cols ? from[j * p.wo + c * p.wc] : 0.0f;
        }
}

BJ void clear(f32* to, i64 n) {
    for (i64 i = 0; i < n; ++i) to[i] = 0.0f;
}
BJ void copy(const f32* from, i64 n, f32* to) {
    i64 i = 0;
    for (; i + LANES <= n; i += LANES) store(to + i, load(from + i));
    for (; i < n; ++i) to[i] = from[i];
}

// One row of an input: `count` pixels of n channels at `from` -> to[count][n].
static void pixels(const f32* from, i64 xc, i64 xw, i64 count, i64 n, f32* to) {
    if (xc == 1) {
        if (xw == n) return copy(from, count * n, to);
        for (i64 i = 0; i < count; ++i) copy(from + i * xw, n, to + i * n);
        return;
    }
    i64 c = 0;
    if (xw == 1)
        for (; c + 8 <= n; c += 8) {
            i64 i = 0;
            for (; i + 8 <= count; i += 8) transpose8(from + c * xc + i, xc, [&](i64 k) { return to + (i + k) * n + c; });
            for (; i < count; ++i)
                for (i64 k = 0; k < 8; ++k) to[i * n + c + k] = from[(c + k) * xc + i];
        }
    for (; c < n; ++c)
        for (i64 i = 0; i < count; ++i) to[i * n + c] = from[c * xc + i * xw];
}

// What a band of output pixels is: rows [row0, row1) of all images one under the other, columns [col0, col1).
struct Band {
    i64 row0, row1, col0, col1;
};

// Channels [c0, c0 + n) of a band's input, padded with zeros -> to[rows][wi][n].
static void gather(const Conv& p, const Plan& q, const Band& band, i64 c0, i64 n, f32* to) {
    i64 reach = (p.kh - 1) * p.dh + 1, left = band.col0 * p.sw - p.pw;
    i64 width = (band.col1 - band.col0 - 1) * p.sw + (p.kw - 1) * p.dw + 1;
    i64 skip = least(most(0, -left), width), stop = most(skip, least(width, p.wide - left));
    for (i64 row = band.row0; row < band.row1;) {
        i64 image = row / p.oh, first = row % p.oh, end = least(p.oh, first + band.row1 - row);
        i64 top = first * p.sh - p.ph, count = (end - first - 1) * p.sh + reach;
        const f32* x = p.x + image * p.xb + c0 * p.xc;
        for (i64 i = top; i < top + count; ++i, to += q.wi * n) {
            if (i < 0 || i >= p.h) {
                clear(to, width * n);
                continue;
            }
            clear(to, skip * n);
            pixels(x + i * p.xh + (left + skip) * p.xw, p.xc, p.xw, stop - skip, n, to + skip * n);
            clear(to + stop * n, (width - stop) * n);
        }
        row += end - first;
    }
}

// Where each pixel of a band begins in the gathered input (n channels) or in x, and where its result goes. Returns how many.
static i64 places(const Conv& p, const Plan& q, const Band& band, i64 n, i64* in, i64* out) {
    i64 reach = (p.kh - 1) * p.dh + 1, base = 0, m = 0;
    for (i64 row = band.row0; row < band.row1;) {
        i64 image = row / p.oh, first = row % p.oh, end = least(p.oh, first + band.row1 - row);
        for (i64 y = first; y < end; ++y)
            for (i64 x = band.col0; x < band.col1; ++x, ++m) {
                in[m] = q.direct ? image * p.xb + y * p.sh * p.xh + x * p.sw * p.xw
                                 : (base + (y - first) * p.sh) * q.wi * n + (x - band.col0) * p.sw * n;
                out[m] = ((image * p.oh + y) * p.ow + x) * p.o;
            }
        base += (end - first - 1) * p.sh + reach;
        row += end - first;
    }
    return m;
}

// What is done with a tile when its sums are there.
struct End {
    f32* y;
    const f32 *scale, *shift, *other;
    i64 cols;
    b8 first, last, relu;
};

BJ V finish(V t, const f32* scale, const f32* shift, const f32* other, b8 relu) {
    if (scale) t = t * load(scale);
    if (shift) t += load(shift);
    if (other) t += load(other);
    if (relu) t = t < V{} ? V{} : t;  // NaN stays NaN
    return t;
}

// The same of channel j alone, at a panel's edge.
BJ f32 finish(f32 t, i64 j, const f32* scale, const f32* shift, const f32* other, b8 relu) {
    if (scale) t *= scale[j];
    if (shift) t += shift[j];
    if (other) t += other[j];
    return relu && t < 0.0f ? 0.0f : t;
}

// R pixels by NR channels: y (+)= the sum over `runs` stretches of `len` inputs, `off` apart.
template <int R> __attribute__((noinline)) static void tile(const f32* x, const i64* in, const i64* out, const i64* off, i64 runs, i64 len, const f32* w, const End& e) {
    V s0[R], s1[R];
#pragma GCC unroll 16
    for (int i = 0; i < R; ++i) s0[i] = s1[i] = V{};
    for (i64 r = 0; r < runs; ++r) {
        const f32* at[R];
#pragma GCC unroll 16
        for (int i = 0; i < R; ++i) {
            at[i] = x + in[i] + off[r];
            asm("" : "+r"(at[i]));  // stays an address in a register
        }
        for (i64 k = 0; k < len; ++k, w += NR) {
            V w0 = load(w), w1 = load(w + LANES);
            BJ_KEEP(w0);
            BJ_KEEP(w1);
#pragma GCC unroll 16
            for (int i = 0; i < R; ++i) {
                V v = all(at[i][k]);
                s0[i] = mul_add(v, w0, s0[i]);
                s1[i] = mul_add(v, w1, s1[i]);
            }
        }
    }
    f32 edge[NR];
#pragma GCC unroll 16
    for (int i = 0; i < R; ++i) {
        f32* row = e.y + out[i];
        const f32* other = e.other ? e.other + out[i] : nullptr;
        if (e.cols == NR) {
            V t0 = s0[i], t1 = s1[i];
            if (!e.first) t0 += load(row), t1 += load(row + LANES);
            if (e.last) {
                t0 = finish(t0, e.scale, e.shift, other, e.relu);
                t1 = finish(t1, e.scale ? e.scale + LANES : nullptr, e.shift ? e.shift + LANES : nullptr,
                            other ? other + LANES : nullptr, e.relu);
            }
            store(row, t0);
            store(row + LANES, t1);
        } else {
            store(edge, s0[i]);
            store(edge + LANES, s1[i]);
            for (i64 j = 0; j < e.cols; ++j) {
                f32 t = edge[j] + (e.first ? 0.0f : row[j]);
                row[j] = e.last ? finish(t, j, e.scale, e.shift, other, e.relu) : t;
            }
        }
    }
}

template <int R> static void tiles(i64 rows, const f32* x, const i64* in, const i64* out, const i64* off, i64 runs, i64 len, const f32* w, const End& e) {
    if (rows == R) tile<R>(x, in, out, off, runs, len, w, e);
    if constexpr (R > 1)
        if (rows < R) tiles<R - 1>(rows, x, in, out, off, runs, len, w, e);
}

// Memory of a thread. Units: floats.
struct Room {
    f32 *x, *w;
    i64 *in, *out, *off;
};

// How the sums of a tile are cut, so that about FOLD products go to one accumulator in a row: `runs` stretches at once,
// of which `len` steps.
struct Cut {
    i64 runs, len;
};
BJ Cut cut(i64 len) {
    if (len > FOLD) return {1, up(len, up(len, FOLD))};
    return {most(1, (FOLD + len / 2) / len), len};
}

// A band by `count` panels of a group, from its `first` on.
static void piece(const Conv& p, const Plan& q, const Band& band, i64 group, i64 first, i64 count, const Room& room) {
    i64 m = places(p, q, band, 0, room.in, room.out), steps = up(m, MR), per = up(q.og, NR);
    for (i64 s = 0; s < q.slices; ++s) {
        i64 c0 = s * q.slice, n = least(q.slice, q.cg - c0), from = group * q.cg + c0;
        i64 runs = q.direct ? 1 : p.dw == 1 ? p.kh : q.taps, len = n * q.taps / runs;
        const f32* x = q.direct ? p.x + from : room.x;
        Cut c = cut(len);
        if (!q.direct) {
            if (s == 0 || n != q.slice) places(p, q, band, n, room.in, room.out);
            gather(p, q, band, from, n, room.x);
        }
        for (i64 r = 0; r < runs; ++r)
            room.off[r] = q.direct ? 0 : p.dw == 1 ? r * p.dh * q.wi * n : (r / p.kw * p.dh * q.wi + r % p.kw * p.dw) * n;
        for (i64 i = 0; i < count; ++i) {
            i64 col = (first + i) * NR, cols = least(NR, q.og - col), at = group * q.og + col;
            const f32* w = room.w;
            if (p.packed) w = p.w + ((group * per + first + i) * q.cg + c0) * q.taps * NR;
            else columns(p, q, at, cols, c0, n, room.w);
            End e{p.y + at, p.scale ? p.scale + at : nullptr, p.shift ? p.shift + at : nullptr, p.other ? p.other + at : nullptr,
                  cols, false, false, p.relu != 0};
            // the next panel's weights are asked for while this one's are used
            const f32* next = p.packed ? w + q.cg * q.taps * NR : p.w + (at + NR) * p.wo + c0 * p.wc;
            i64 lines = i + 1 < count && (p.packed || (q.plain && col + 2 * NR <= q.og)) ? n * q.taps * NR / 16 : 0;
            i64 share = lines / steps + 1, asked = 0;
            for (i64 t = 0, a = 0; t < steps; ++t) {  // tiles of equal height: one of a single row would cost as much as half a full one
                i64 b = (t + 1) * m / steps, stop = least(asked + share, lines);
                for (; asked < stop; ++asked)
                    __builtin_prefetch(p.packed ? next + asked * 16 : next + asked % NR * p.wo + asked / NR * 16, 0, 2);
                for (i64 r = 0; r < runs; r += c.runs)
                    for (i64 k = 0; k < len; k += c.len) {
                        e.first = s == 0 && r == 0 && k == 0;
                        e.last = s + 1 == q.slices && r + c.runs >= runs && k + c.len >= len;
                        tiles<MR>(b - a, x + k, room.in + a, room.out + a, room.off + r, least(c.runs, runs - r), least(c.len, len - k),
                                  w + (r * len + k) * NR, e);
                    }
                a = b;
            }
        }
    }
}

static void run(const Conv& p, i64 threads) {
    Plan q = plan(p, threads);
    i64 total = p.batch * p.oh, units = q.bands * q.pieces, next = 0;
    i64 worth = 1 + total * p.ow * p.o * q.cg * q.taps / 250000;
    threads = least(least(threads, worth), units);
    i64 pixels = q.rows * q.cols, xs = q.direct ? 0 : q.hi * q.wi * q.slice, ws = p.packed ? 0 : q.slice * q.taps * NR;
    parallel(threads, 1, threads, [&](i64, i64) {
        Scratch memory((xs + ws + 64) * 4 + (2 * pixels + q.taps) * 8);
        Room room;
        room.w = memory.as<f32>();
        room.x = room.w + up(ws, 16) * 16;
        room.in = (i64*)(room.x + up(xs, 16) * 16);
        room.out = room.in + pixels;
        room.off = room.out + pixels;
        i64 per = up(q.og, NR), split = up(per, q.grain), down = up(total, q.rows);
        for (;;) {
            i64 u = __atomic_fetch_add(&next, 1, __ATOMIC_RELAXED);
            if (u >= units) return;
            i64 b = u / q.pieces, part = u % q.pieces, group = part / split, first = part % split * q.grain;
            i64 r = b / q.across, c = b % q.across;
            Band band{r * total / down, (r + 1) * total / down, c * q.cols, least(p.ow, (c + 1) * q.cols)};
            piece(p, q, band, group, first, least(q.grain, per - first), room);
        }
    });
}

// The weight as `piece` reads it when packed: panels of a group, each [slices][taps][channels][NR].
static void pack(const Conv& p, f32* to) {
    Plan q = plan(p, 1);
    for (i64 g = 0; g < p.groups; ++g)
        for (i64 col = 0; col < q.og; col += NR)
            for (i64 c = 0; c < q.cg; c += q.slice) {
                i64 n = least(q.slice, q.cg - c);
                columns(p, q, g * q.og + col, least(NR, q.og - col), c, n, to);
                to += n * q.taps * NR;
            }
}

}  // namespace bj_conv
