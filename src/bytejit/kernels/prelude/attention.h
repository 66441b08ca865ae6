// Single precision attention: softmax(q k^T scale + mask) v, a few rows of q at a time, so that scores never leave the caches.
// Keys and values are taken BLOCK at a time and turned into panels that all rows of a unit share; with more keys than one block
// holds, the sums so far are scaled when a larger score comes. Products run in the tiles of gemm.h.
#pragma once
#include "gemm.h"

namespace bj_attention {
using namespace bj;
using bj_gemm::MR;
using bj_gemm::NR;

enum { BLOCK = 384, ROWS = 12, UNIT = 252 };  // keys at once; rows of scores at once; most rows of q that share panels

// Distances in elements: between batches, heads, rows; the innermost dimension is dense. A head of k and v serves `group` of q.
struct View {
    const f32* p;
    i64 b, h, l;
    const f32* at(i64 batch, i64 head) const { return p + batch * b + head * h; }
};
struct Attention {
    View q, k, v, y;
    const void* mask;                    // null, or f32 added to the scores, or (flags) bools: whether a score counts
    i64 mb, mh, ml, ms, flags;
    i64 batch, heads, group, rows, keys, dim, out;  // dim: of q and k; out: of v and y
    i64 causal;                          // row i sees keys 0 .. i
    i64 strict;                          // a row whose scores are all -inf is NaN, else 0
    f32 scale;
};

BJ bj_gemm::Problem source(const f32* w, i64 lw, i64 n, i64 k, i64 form) {
    bj_gemm::Problem p{};
    p.w = w, p.lw = lw, p.n = n, p.k = k, p.form = form;
    return p;
}

// y (+)= x panel over `rows` rows.
static void product(i64 rows, const f32* x, i64 lx, const f32* panel, i64 kc, f32* y, i64 ly, i64 cols, b8 first) {
    bj_gemm::Ahead none{};
    while (rows > 0) {
        i64 now = rows >= MR + 4 || rows <= MR ? (rows < MR ? rows : MR) : (rows + 1) / 2;
        bj_gemm::rest<MR>(now, x, lx, panel, kc, y, ly, nullptr, cols, first, false, none);
        x += now * lx;
        y += now * ly;
        rows -= now;
    }
}

BJ void multiply(f32* y, i64 n, f32 by) {
#pragma omp simd
    for (i64 i = 0; i < n; ++i) y[i] *= by;
}

// What the mask adds to the scores of one row.
static void mask_row(const Attention& a, i64 batch, i64 head, i64 row, i64 key, i64 n, f32* add) {
    i64 at = batch * a.mb + head * a.mh + row * a.ml + key * a.ms;
    if (a.flags) {
        const u8* m = (const u8*)a.mask + at;
        for (i64 j = 0; j < n; ++j) add[j] = m[j * a.ms] ? 0.0f : -BJ_INF;
    } else {
        const f32* m = (const f32*)a.mask + at;
        for (i64 j = 0; j < n; ++j) add[j] = m[j * a.ms];
    }
}

// e^x for x <= 0; what is below e^-87 is 0.
BJ f32 exp_low(f32 x) {
    f32 p = exp_near(x < -87.0f ? -87.0f : x);
    p = x < -87.0f ? 0.0f : p;
    return x != x ? x : p;
}

// The scores of one row, scaled, with what the mask adds; those that lie past n up to `all` are -inf. Returns the largest.
static f32 scaled(f32* s, i64 n, i64 all, f32 scale, const f32* add) {
    f32 top = -BJ_INF;
    if (add) {
#pragma omp simd reduction(max : top)
        for (i64 j = 0; j < n; ++j) {
            f32 t = s[j] * scale + add[j];
            s[j] = t;
            top = t > top ? t : top;
        }
    } else {
#pragma omp simd reduction(max : top)
        for (i64 j = 0; j < n; ++j) {
            f32 t = s[j] * scale;
            s[j] = t;
            top = t > top ? t : top;
        }
    }
    for (i64 j = n; j < all; ++j) s[j] = -BJ_INF;
    return top;
}

// Those scores -> e^(score - largest) in place, `all` in whole vectors. most, sum: of the row's earlier blocks, brought up to
// date. Returns what earlier blocks' results have to be multiplied with. A row whose scores are all -inf counts nothing.
static f32 soften(f32* s, i64 all, f32 top, f32& most, f32& sum) {
    f32 before = most, now = top > before ? top : before, total = 0.0f;
    most = now;
    if (now == -BJ_INF) {
        for (i64 j = 0; j < all; ++j) {
            s[j] = s[j] != s[j] ? s[j] : 0.0f;
            total += s[j];
        }
        sum += total;
        return 1.0f;
    }
    i64 n = (all + 15) / 16 * 16;
#pragma omp simd reduction(+ : total)
    for (i64 j = 0; j < n; ++j) {
        f32 e = exp_low(s[j] - now);
        s[j] = e;
        total += e;
    }
    f32 factor = exp_low(before - now);
    sum = sum * factor + total;
    return factor;
}

// One block of keys for rows [row, row + n) of one head.
static void meet(const Attention& a, i64 batch, i64 head, i64 row, i64 n, i64 key, i64 keys, const f32* ks, const f32* vs,
                 f32* s, f32* add, f32* most, f32* sum) {
    const f32* q = a.q.at(batch, head) + row * a.q.l;
    f32* y = (f32*)a.y.at(batch, head) + row * a.y.l;
    if (a.causal && row + n - key < keys) keys = row + n - key;
    for (i64 j = 0; j < keys; j += NR) product(n, q, a.q.l, ks + j * a.dim, a.dim, s + j, BLOCK, NR, true);
    i64 all = (keys + 15) / 16 * 16;
    f32 top[ROWS];
    for (i64 i = 0; i < n; ++i) {
        i64 seen = a.causal && row + i + 1 - key < keys ? row + i + 1 - key : keys;
        if (a.mask && (i == 0 || a.ml)) mask_row(a, batch, head, row + i, key, keys, add);
        top[i] = scaled(s + i * BLOCK, seen < 0 ? 0 : seen, all, a.scale, a.mask ? add : nullptr);
    }
    for (i64 i = 0; i < n; ++i) {  // apart from the loop above: one row's largest is not waited for
        f32 factor = soften(s + i * BLOCK, all, top[i], most[i], sum[i]);
        if (key > 0 && factor != 1.0f) multiply(y + i * a.y.l, a.out, factor);
    }
    for (i64 d = 0; d < a.out; d += NR) {
        i64 cols = a.out - d < NR ? a.out - d : NR;
        product(n, s, BLOCK, vs + d * BLOCK, keys, y + d, a.y.l, cols, key == 0);
    }
}

// Rows [row, row + n) of one head.
static void unit(const Attention& a, i64 batch, i64 head, i64 row, i64 n, f32* own) {
    i64 shared = head / a.group;
    f32 *ks = own, *vs = ks + BLOCK * a.dim, *s = vs + BLOCK * ((a.out + NR - 1) / NR * NR), *add = s + ROWS * BLOCK;
    f32 most[UNIT], sum[UNIT];
    for (i64 i = 0; i < n; ++i) most[i] = -BJ_INF, sum[i] = 0.0f;
    i64 last = a.causal && row + n < a.keys ? row + n : a.keys;
    bj_gemm::Problem k = source(a.k.at(batch, shared), a.k.l, last, a.dim, 0);
    bj_gemm::Problem v = source(a.v.at(batch, shared), a.v.l, a.out, last, 1);
    for (i64 key = 0; key < last; key += BLOCK) {
        i64 keys = last - key < BLOCK ? last - key : BLOCK;
        for (i64 j = 0; j < keys; j += NR) bj_gemm::fill(k, key + j, 0, 0, a.dim, ks + j * a.dim);
        for (i64 d = 0; d < a.out; d += NR) bj_gemm::fill(v, d, key, 0, keys, vs + d * BLOCK);
        for (i64 i = 0; i < n; i += ROWS) {
            i64 now = n - i < ROWS ? n - i : ROWS;
            if (a.causal && row + i + now <= key) continue;
            meet(a, batch, head, row + i, now, key, keys, ks, vs, s, add, most + i, sum + i);
        }
    }
    f32* y = (f32*)a.y.at(batch, head) + row * a.y.l;
    for (i64 i = 0; i < n; ++i) multiply(y + i * a.y.l, a.out, sum[i] == 0.0f && !a.strict ? 1.0f : 1.0f / sum[i]);
}

static void run(const Attention& a, i64 threads) {
    i64 pairs = a.batch * a.heads, parts = (a.rows + UNIT - 1) / UNIT, next = 0;
    while (pairs * parts < 4 * threads && a.rows > 48 * parts) ++parts;  // units that threads can share out among them
    i64 rows = ((a.rows + parts - 1) / parts + MR - 1) / MR * MR;
    rows = rows < UNIT ? rows : UNIT;
    parts = (a.rows + rows - 1) / rows;
    i64 room = BLOCK * (a.dim + (a.out + NR - 1) / NR * NR + ROWS + 1) * 4;
    i64 worth = 1 + pairs * a.rows * a.keys * (a.dim + a.out) / 250000;
    threads = threads < worth ? threads : worth;
    parallel(threads, 1, threads, [&](i64, i64) {
        Scratch own(room);
        for (;;) {
            i64 t = __atomic_fetch_add(&next, 1, __ATOMIC_RELAXED);
            if (t >= pairs * parts) return;
            i64 pair = t / parts, row = t % parts * rows, n = a.rows - row < rows ? a.rows - row : rows;
            unit(a, pair / a.heads, pair % a.heads, row, n, own.as<f32>());
        }
    });
}

}  // namespace bj_attention
