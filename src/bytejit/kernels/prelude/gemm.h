// Single precision matrix product y = x w^T + b for the shapes of inference: few rows (tens to hundreds), large weights read once.
// The weight is turned into panels of NR columns on the way (a transposition in registers, a few percent of the work), a panel of
// KC rows stays in the first-level cache while all rows of x pass by it; x is read where it lies. Threads take panels
// as they get free, so that a core that other processes slow down does less.
#pragma once
#include "glue.h"

// Holds a vector in a register: gcc else reads it again from memory for each product, and loads are what runs short.
#if defined(__x86_64__)
#define BJ_KEEP(v) asm("" : "+x"(v))
#else
#define BJ_KEEP(v) ((void)0)
#endif

namespace bj_gemm {
using namespace bj;

#if defined(__AVX512F__)
enum { LANES = 16, MR = 12 };
#elif defined(__AVX__)
enum { LANES = 8, MR = 6 };
#else
enum { LANES = 4, MR = 6 };
#endif
enum { NR = 2 * LANES, KC = 384, MC = 32 * MR, GROUP = 4 };
typedef f32 V __attribute__((vector_size(4 * LANES)));
typedef f32 U __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

// All lanes x; one fused multiply and add a lane, written as the instruction: contraction is off in our units.
#if defined(__AVX512F__)
BJ V all(f32 x) { return V{x, x, x, x, x, x, x, x, x, x, x, x, x, x, x, x}; }
BJ V mul_add(V a, V b, V c) { return __builtin_ia32_vfmaddps512_mask(a, b, c, (unsigned short)-1, 4); }
#elif defined(__AVX__)
BJ V all(f32 x) { return V{x, x, x, x, x, x, x, x}; }
#if defined(__FMA__)
BJ V mul_add(V a, V b, V c) { return __builtin_ia32_vfmaddps256(a, b, c); }
#else
BJ V mul_add(V a, V b, V c) { return a * b + c; }
#endif
#else
BJ V all(f32 x) { return V{x, x, x, x}; }
BJ V mul_add(V a, V b, V c) {
    for (int i = 0; i < 4; ++i) c[i] = __builtin_fmaf(a[i], b[i], c[i]);
    return c;
}
#endif
BJ V load(const f32* p) { return *(const U*)p; }
BJ void store(f32* p, V v) { *(U*)p = v; }

struct Problem {
    const f32 *x, *w, *b;  // x: m rows lx apart; w: n rows of k, lw apart (flipped: k rows of n); packed: whole panels; b: n or null
    f32* y;                // m rows of n
    i64 m, k, n, lx, lw;
    i64 form;              // 0 w [n, k], 1 flipped w [k, n], 2 packed by `pack`
    i64 post;              // 0 none, 1 relu, 2 gelu, 3 gelu's tanh form: applied to the result while it is near
};

typedef f32 Q __attribute__((vector_size(32)));
typedef f32 QU __attribute__((vector_size(32), aligned(4), may_alias));
typedef i32 QI __attribute__((vector_size(32)));
#ifdef __clang__
#define BJ_MIX(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define BJ_MIX(a, b, ...) __builtin_shuffle(a, b, (QI){__VA_ARGS__})
#endif
// An 8 by 8 corner of the weight, turned in registers: pairs, then fours, then halves change places.
BJ void turn8(const f32* w, i64 lw, f32* out) {
    Q r[8], t[8];
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) r[i] = *(const QU*)(w + i * lw);
#pragma GCC unroll 4
    for (int i = 0; i < 8; i += 2) {
        t[i] = BJ_MIX(r[i], r[i + 1], 0, 8, 1, 9, 4, 12, 5, 13);
        t[i + 1] = BJ_MIX(r[i], r[i + 1], 2, 10, 3, 11, 6, 14, 7, 15);
    }
#pragma GCC unroll 2
    for (int i = 0; i < 8; i += 4) {
        r[i] = BJ_MIX(t[i], t[i + 2], 0, 1, 8, 9, 4, 5, 12, 13);
        r[i + 1] = BJ_MIX(t[i], t[i + 2], 2, 3, 10, 11, 6, 7, 14, 15);
        r[i + 2] = BJ_MIX(t[i + 1], t[i + 3], 0, 1, 8, 9, 4, 5, 12, 13);
        r[i + 3] = BJ_MIX(t[i + 1], t[i + 3], 2, 3, 10, 11, 6, 7, 14, 15);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
        *(QU*)(out + i * NR) = BJ_MIX(r[i], r[i + 4], 0, 1, 2, 3, 8, 9, 10, 11);
        *(QU*)(out + (i + 4) * NR) = BJ_MIX(r[i], r[i + 4], 4, 5, 6, 7, 12, 13, 14, 15);
    }
}

// Weight columns [col, col + count * NR), rows [k0, k0 + kc) of a flipped weight -> out[count][kc][NR].
static void flipped(const Problem& p, i64 col, i64 count, i64 k0, i64 kc, f32* out) {
    for (i64 k = 0; k < kc; ++k) {
        const f32* row = p.w + (k0 + k) * p.lw + col;
        for (i64 n = 0; n < count; ++n) {
            f32* to = out + (n * kc + k) * NR;
            i64 cols = p.n - col - n * NR;
            if (cols >= NR) {
                store(to, load(row + n * NR));
                store(to + LANES, load(row + n * NR + LANES));
            } else {
                for (i64 j = 0; j < NR; ++j) to[j] = j < cols ? row[n * NR + j] : 0.0f;
            }
        }
    }
}

// Rows [col, col + NR) of a plain weight, columns [k0, k0 + kc) -> out[kc][NR]; what lies past n is zero.
static void panel(const Problem& p, i64 col, i64 k0, i64 kc, f32* out) {
    i64 cols = p.n - col < NR ? p.n - col : NR;
    const f32* w = p.w + col * p.lw + k0;
    i64 k = 0;
    if (cols == NR) {
        for (; k + 8 <= kc; k += 8)
            for (i64 j = 0; j < NR; j += 8) turn8(w + j * p.lw + k, p.lw, out + k * NR + j);
    }
    for (; k < kc; ++k)
        for (i64 j = 0; j < NR; ++j) out[k * NR + j] = j < cols ? w[j * p.lw + k] : 0.0f;
}

// R rows by NR columns: y (+)= x panel; the first part of k starts from b, the last applies what follows.
template <int R> BJ void tile(const f32* x, i64 lx, const f32* panel, i64 kc, f32* y, i64 ly, const f32* b, i64 cols, b8 first, b8 relu) {
    V s0[R], s1[R];
#pragma GCC unroll 16
    for (int i = 0; i < R; ++i) s0[i] = s1[i] = V{};
    for (i64 k = 0; k < kc; ++k) {
        V w0 = load(panel + k * NR), w1 = load(panel + k * NR + LANES);
        BJ_KEEP(w0);
        BJ_KEEP(w1);
#pragma GCC unroll 16
        for (int i = 0; i < R; ++i) {
            V v = all(x[i * lx + k]);
            s0[i] = mul_add(v, w0, s0[i]);
            s1[i] = mul_add(v, w1, s1[i]);
        }
    }
    f32 edge[NR];
#pragma GCC unroll 16
    for (int i = 0; i < R; ++i) {
        f32* row = y + i * ly;
        if (cols == NR) {
            V t0 = first ? (b ? load(b) : V{}) : load(row), t1 = first ? (b ? load(b + LANES) : V{}) : load(row + LANES);
            t0 += s0[i];
            t1 += s1[i];
            if (relu) {  // written so that NaN stays NaN
                t0 = t0 < V{} ? V{} : t0;
                t1 = t1 < V{} ? V{} : t1;
            }
            store(row, t0);
            store(row + LANES, t1);
        } else {
            store(edge, s0[i]);
            store(edge + LANES, s1[i]);
            for (i64 j = 0; j < cols; ++j) {
                f32 t = edge[j] + (first ? (b ? b[j] : 0.0f) : row[j]);
                row[j] = relu && t < 0.0f ? 0.0f : t;
            }
        }
    }
}

template <int R> static void rest(i64 rows, const f32* x, i64 lx, const f32* w, i64 kc, f32* y, i64 ly, const f32* b, i64 cols, b8 first, b8 relu) {
    if (rows == R) tile<R>(x, lx, w, kc, y, ly, b, cols, first, relu);
    if constexpr (R > 1)
        if (rows < R) rest<R - 1>(rows, x, lx, w, kc, y, ly, b, cols, first, relu);
}

// gelu of a corner of y, written as eager writes it.
static void gelu(f32* y, i64 ly, i64 rows, i64 cols, b8 by_tanh) {
    for (i64 i = 0; i < rows; ++i) {
        f32* row = y + i * ly;
        if (by_tanh) {
#pragma omp simd
            for (i64 j = 0; j < cols; ++j) {
                f32 v = row[j];
                row[j] = 0.5f * v * (1.0f + bj::tanh(0.797884583f * (v + 0.0447149985f * v * v * v)));
            }
        } else {
#pragma omp simd
            for (i64 j = 0; j < cols; ++j) row[j] = row[j] * 0.5f * (1.0f + bj::erf(row[j] * 0.707106769f));
        }
    }
}

// Asks for lines [from, to) of the panel at w (NR rows lw apart) ahead of its use: the weight comes from memory.
BJ void ask(const f32* w, i64 lw, i64 from, i64 to) {
    for (i64 i = from; i < to; ++i) __builtin_prefetch(w + i % NR * lw + i / NR * 16, 0, 2);
}

// Rows [row0, row0 + rows) by `count` panels from column `col` on. own: room for GROUP panels of KC + 8 rows.
static void block(const Problem& p, i64 row0, i64 rows, i64 col, i64 count, f32* own) {
    i64 parts = p.k > KC ? (p.k + KC - 1) / KC : 1, step = ((p.k + parts - 1) / parts + 7) / 8 * 8;
    step = step < 8 ? 8 : step;
    for (i64 k0 = 0; k0 == 0 || k0 < p.k; k0 += step) {  // k = 0: the bias alone
        i64 kc = p.k - k0 < step ? p.k - k0 : step;
        b8 first = k0 == 0, end = k0 + kc >= p.k, relu = p.post == 1 && end;
        const f32* x = p.x + row0 * p.lx + k0;
        // a flipped weight is read across the whole group row by row: its rows lie in different pages
        if (p.form == 1) flipped(p, col, count, k0, kc, own);
        for (i64 n = 0; n < count; ++n) {
            i64 c = col + n * NR, cols = p.n - c < NR ? p.n - c : NR;
            const f32* b = p.b ? p.b + c : nullptr;
            const f32* w = own + (p.form == 1 ? n * kc * NR : 0);
            if (p.form == 2) w = p.w + c * p.k + k0 * NR;
            if (p.form == 0) panel(p, c, k0, kc, own);
            f32* y = p.y + row0 * p.n + c;
            // the next panel is the next one of the group, after the last the first one's next part of k
            b8 over = n + 1 == count;
            i64 next = over ? col : c + NR, k1 = over ? k0 + step : k0;
            i64 lines = p.form == 0 && next + NR <= p.n && k1 + kc <= p.k ? NR * (kc / 16) : 0, share = lines / (rows / MR + 1) + 1;
            i64 i = 0, asked = 0;
            for (; i + MR <= rows; i += MR) {
                i64 stop = asked + share < lines ? asked + share : lines;
                ask(p.w + next * p.lw + k1, p.lw, asked, stop);
                asked = stop;
                tile<MR>(x + i * p.lx, p.lx, w, kc, y + i * p.n, p.n, b, cols, first, relu);
            }
            if (i < rows) rest<MR - 1>(rows - i, x + i * p.lx, p.lx, w, kc, y + i * p.n, p.n, b, cols, first, relu);
            if (end && p.post > 1) gelu(y, p.n, rows, cols, p.post == 3);
        }
    }
}

// Several products of one x, on threads that start and end once.
static void multiply(const Problem* all, i64 count, i64 threads) {
    i64 m = all[0].m, blocks = (m + MC - 1) / MC, rows = ((m + blocks - 1) / blocks + MR - 1) / MR * MR, total = 0, work = 0, next = 0;
    for (i64 i = 0; i < count; ++i) {
        total += (all[i].n + NR - 1) / NR * blocks;
        work += m * all[i].n * all[i].k;
    }
    i64 worth = 1 + work / 250000;  // waking a thread takes as long as this many products
    threads = threads < worth ? threads : worth;
    parallel(threads, 1, threads, [&](i64, i64) {
        alignas(64) f32 own[GROUP * (KC + 8) * NR];
        for (;;) {  // panels in groups that get smaller towards the end: the last ones are what threads wait for
            i64 t = __atomic_load_n(&next, __ATOMIC_RELAXED), take, at, panels;
            const Problem* p;
            do {
                if (t >= total) return;
                for (p = all, at = t; at >= (panels = (p->n + NR - 1) / NR) * blocks; ++p) at -= panels * blocks;
                i64 here = panels - at % panels, fair = (total - t) / (threads * 3);
                take = fair < 1 ? 1 : fair > GROUP ? GROUP : fair;
                take = take < here ? take : here;
            } while (!__atomic_compare_exchange_n(&next, &t, t + take, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
            i64 row0 = at / panels * rows, left = p->m - row0;
            if (left > 0) block(*p, row0, left < rows ? left : rows, at % panels * NR, take, own);
        }
    });
}

}  // namespace bj_gemm
