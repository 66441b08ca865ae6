// Single precision matrix product y = x w^T + b for the shapes of inference: few rows (tens to hundreds), large weights read
// once. The weight is transposed into panels of NR columns on the way (in registers, a few percent of the work), a
// panel of KC rows stays in the first-level cache while all rows of x pass by it; x is read where it lies. The next panel's
// lines are asked for one at a time within the products: in bursts they would hold up the rows of x. Threads take panels as
// they get free, so that a core that other processes slow down does less.
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
// FOLD: additions in a row to one accumulator, a multiple of EVERY
enum { NR = 2 * LANES, KC = 384, MC = 264, GROUP = 8, EVERY = 16, FOLD = 32 };
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
    const f32 *x, *w, *b;  // x: m rows lx apart; w: n rows of k, lw apart (flipped: k rows of n); packed: panels; b: n or null
    f32* y;                // m rows of n
    i64 m, k, n, lx, lw;
    i64 form;              // 0 w [n, k], 1 flipped w [k, n], 2 packed by `pack`
    i64 epilogue;              // 0 none, 1 relu, 2 gelu, 3 gelu's tanh form: applied to the result while it is near
};

typedef f32 Q __attribute__((vector_size(32)));
typedef f32 QU __attribute__((vector_size(32), aligned(4), may_alias));
typedef i32 QI __attribute__((vector_size(32)));
#ifdef __clang__
#define BJ_MIX(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define BJ_MIX(a, b, ...) __builtin_shuffle(a, b, (QI){__VA_ARGS__})
#endif
// An 8 by 8 corner of the weight, transposed in registers: pairs, then fours, then halves change places. Column i goes to to(i).
template <class F> BJ void transpose8(const f32* w, i64 lw, const F& to) {
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
        *(QU*)to(i) = BJ_MIX(r[i], r[i + 4], 0, 1, 2, 3, 8, 9, 10, 11);
        *(QU*)to(i + 4) = BJ_MIX(r[i], r[i + 4], 4, 5, 6, 7, 12, 13, 14, 15);
    }
}
BJ void transpose_panel(const f32* w, i64 lw, f32* out) { transpose8(w, lw, [&](i64 i) { return out + i * NR; }); }

// Steps [from, to) of k of a panel: columns [col, col + NR) of the weight, what lies past n is zero. from: a multiple of 16.
static void fill(const Problem& p, i64 col, i64 k0, i64 from, i64 to, f32* out) {
    i64 cols = p.n - col < NR ? p.n - col : NR, k = from;
    if (p.form == 1) {
        const f32* w = p.w + k0 * p.lw + col;
        if (cols == NR) {
            for (; k < to; ++k) {
                V w0 = load(w + k * p.lw), w1 = load(w + k * p.lw + LANES);
                store(out + k * NR, w0);
                store(out + k * NR + LANES, w1);
            }
        }
        for (; k < to; ++k)
            for (i64 j = 0; j < NR; ++j) out[k * NR + j] = j < cols ? w[k * p.lw + j] : 0.0f;
        return;
    }
    const f32* w = p.w + col * p.lw + k0;
    if (cols == NR) {
        for (; k + 16 <= to; k += 16)  // both halves of a line at once: where rows lie 4 KB apart it is soon lost again
            for (i64 j = 0; j < NR; j += 8) {
                transpose_panel(w + j * p.lw + k, p.lw, out + k * NR + j);
                transpose_panel(w + j * p.lw + k + 8, p.lw, out + (k + 8) * NR + j);
            }
        for (; k + 8 <= to; k += 8)
            for (i64 j = 0; j < NR; j += 8) transpose_panel(w + j * p.lw + k, p.lw, out + k * NR + j);
    }
    for (; k < to; ++k)
        for (i64 j = 0; j < NR; ++j) out[k * NR + j] = j < cols ? w[j * p.lw + k] : 0.0f;
}

// Lines of a weight that are asked for ahead of their use, a few at a time: the weight comes from memory.
struct Ahead {
    const f32* at;
    i64 step, jump;   // floats from one line to the next, and on top from one run to the next
    i64 run, runs;    // lines a run, runs left
    i64 share, done;  // lines at a time; lines of this run so far
};
BJ void ask(Ahead& a) {
    for (i64 left = a.share; left > 0 && a.runs > 0; --left) {
        __builtin_prefetch(a.at, 0, 2);
        a.at += a.step;
        if (++a.done == a.run) a.done = 0, a.at += a.jump, --a.runs;
    }
}

// The accumulators of R rows by NR columns are put aside after FOLD additions: rounding else grows with the square root of all,
// and libraries cut a short k into as many sums as a vector has lanes.
template <int R> BJ void zero(V* s0, V* s1) {
#pragma GCC unroll 16
    for (int i = 0; i < R; ++i) s0[i] = s1[i] = V{};
}
template <int R> BJ void add(V* s0, V* s1, const V* aside0, const V* aside1) {
#pragma GCC unroll 16
    for (int i = 0; i < R; ++i) s0[i] += aside0[i], s1[i] += aside1[i];
}
template <int R> BJ void fold(V* s0, V* s1, V* aside0, V* aside1, b8 first) {
    if (!first) add<R>(s0, s1, aside0, aside1);
#pragma GCC unroll 16
    for (int i = 0; i < R; ++i) aside0[i] = s0[i], aside1[i] = s1[i];
    zero<R>(s0, s1);
}

// R rows by NR columns: y (+)= x panel; the first part of k starts from b, the last applies what follows.
// Not inlined: within a larger function registers run short and it loses a tenth of its speed.
template <int R> __attribute__((noinline))
static void tile(const f32* x, i64 lx, const f32* panel, i64 kc, f32* y, i64 ly, const f32* b, i64 cols, b8 first,
                 b8 relu, Ahead& next) {
    V s0[R], s1[R], aside0[R], aside1[R];
    zero<R>(s0, s1);
    for (i64 k = 0; k < kc;) {
        i64 stop = k + EVERY < kc ? k + EVERY : kc;
        ask(next);
        if (k > 0 && k % FOLD == 0) fold<R>(s0, s1, aside0, aside1, k == FOLD);
        for (; k < stop; ++k) {
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
    }
    if (kc > FOLD) add<R>(s0, s1, aside0, aside1);
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

template <int R>
static void rest(i64 rows, const f32* x, i64 lx, const f32* w, i64 kc, f32* y, i64 ly, const f32* b, i64 cols, b8 first,
                 b8 relu, Ahead& next) {
    if (rows == R) tile<R>(x, lx, w, kc, y, ly, b, cols, first, relu, next);
    if constexpr (R > 1)
        if (rows < R) rest<R - 1>(rows, x, lx, w, kc, y, ly, b, cols, first, relu, next);
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

// An epilogue as a pass over `n` numbers.
static void finish(f32* y, i64 n, i64 epilogue) {
    if (epilogue > 1) gelu(y, n, 1, n, epilogue == 3);
    if (epilogue != 1) return;
#pragma omp simd
    for (i64 i = 0; i < n; ++i) y[i] = y[i] < 0.0f ? 0.0f : y[i];
}

// What a thread takes at once: rows [row0, row0 + rows) by `count` panels from column `col` on.
struct Part {
    const Problem* p;
    i64 row0, rows, col, count;
};

// A panel on its way: `n`-th of its part, steps [k0, k0 + kc) of k.
struct Panel {
    Part part;
    i64 n, k0, kc;
    i64 col() const { return part.col + n * NR; }
};

// Length of the parts that k is cut into.
BJ i64 part_of(i64 k) {
    i64 parts = k > KC ? (k + KC - 1) / KC : 1, step = ((k + parts - 1) / parts + 15) / 16 * 16;
    return step < 16 ? 16 : step;
}

// The panel's lines in the order in which `fill` reads them, to be asked for in `times` goes during `tiles` tiles. None
// where there are few: the machine's own guesses do better than asking for all at once.
static Ahead ahead(const Panel& a, i64 tiles, i64 times) {
    const Problem& p = *a.part.p;
    i64 cols = p.n - a.col() < NR ? p.n - a.col() : NR;
    Ahead made{};
    if (a.part.count == 0 || tiles < (p.form == 0 ? 3 : 1)) return made;
    if (p.form == 0) made = {p.w + a.col() * p.lw + a.k0, 16, p.lw - (a.kc + 15) / 16 * 16, (a.kc + 15) / 16, cols, 0, 0};
    if (p.form == 1) made = {p.w + a.k0 * p.lw + a.col(), 16, p.lw - NR, NR / 16 < 1 ? 1 : NR / 16, a.kc, 0, 0};
    if (p.form == 2) made = {p.w + a.col() * p.k + a.k0 * NR, 16, 0, a.kc * NR / 16, 1, 0, 0};
    made.share = made.run * made.runs / (times < 1 ? 1 : times) + 1;
    return made;
}

// One panel by all rows; meanwhile the next panel is asked for and filled into `out`.
static void sweep(const Panel& a, const f32* w, const Panel& b, f32* out) {
    const Problem& p = *a.part.p;
    i64 rows = a.part.rows, c = a.col(), cols = p.n - c < NR ? p.n - c : NR, tiles = rows / MR, left = rows % MR;
    b8 first = a.k0 == 0, end = a.k0 + a.kc >= p.k, relu = p.epilogue == 1 && end;
    if (left > 0 && left < 4 && tiles > 0) --tiles, left += MR;  // few rows alone would wait for their own sums
    Ahead next = ahead(b, tiles, tiles * ((a.kc + EVERY - 1) / EVERY));
    i64 ready = 0, blocks = b.part.count > 0 && b.part.p->form == 1 ? (b.kc + 15) / 16 : 0;
    const f32* x = p.x + a.part.row0 * p.lx + a.k0;
    const f32* bias = p.b ? p.b + c : nullptr;
    f32* y = p.y + a.part.row0 * p.n + c;
    for (i64 t = 0; t < tiles; ++t) {
        tile<MR>(x, p.lx, w, a.kc, y, p.n, bias, cols, first, relu, next);
        x += MR * p.lx;
        y += MR * p.n;
        i64 stop = blocks * t / tiles;  // what the tile before this one has asked for
        if (stop > ready) {
            fill(*b.part.p, b.col(), b.k0, ready * 16, stop * 16, out);
            ready = stop;
        }
    }
    while (left > 0) {
        i64 now = left >= MR ? (left + 1) / 2 : left;
        rest<MR - 1>(now, x, p.lx, w, a.kc, y, p.n, bias, cols, first, relu, next);
        x += now * p.lx;
        y += now * p.n;
        left -= now;
    }
    if (blocks > ready) fill(*b.part.p, b.col(), b.k0, ready * 16, b.kc, out);
    if (end && p.epilogue > 1) gelu(p.y + a.part.row0 * p.n + c, p.n, rows, cols, p.epilogue == 3);
}

// The panel after `a`, for all panels of a group before the next part of k: a part of x stays in the second-level cache.
template <class F> static Panel follow(Panel a, const F& take) {
    i64 k = a.part.p->k, step = part_of(k);
    if (++a.n == a.part.count) {
        a.n = 0;
        a.k0 += step;
        if (a.k0 >= k) {
            a.part = take();
            a.k0 = 0;
            k = a.part.p->k;
            step = part_of(k);
        }
    }
    a.kc = k - a.k0 < step ? k - a.k0 : step;
    return a;
}

// Several products of one x, on threads that start and end once.
static void multiply(const Problem* all, i64 count, i64 threads) {
    i64 m = all[0].m, blocks = (m + MC - 1) / MC, rows = ((m + blocks - 1) / blocks + MR - 1) / MR * MR;
    i64 total = 0, work = 0, next = 0;
    for (i64 i = 0; i < count; ++i) {
        total += (all[i].n + NR - 1) / NR * blocks;
        work += m * all[i].n * all[i].k;
    }
    i64 worth = 1 + work / 250000;  // waking a thread takes as long as this many products
    threads = threads < worth ? threads : worth;
    auto take = [&]() {  // panels in groups that get smaller towards the end: the last ones are what threads wait for
        i64 t = __atomic_load_n(&next, __ATOMIC_RELAXED), count, at, panels;
        const Problem* p;
        do {
            if (t >= total) return Part{all, 0, 0, 0, 0};
            for (p = all, at = t; at >= (panels = (p->n + NR - 1) / NR) * blocks; ++p) at -= panels * blocks;
            i64 here = panels - at % panels, fair = (total - t) / (threads * 2);
            count = fair < 1 ? 1 : fair > GROUP ? GROUP : fair;
            count = count < here ? count : here;
        } while (!__atomic_compare_exchange_n(&next, &t, t + count, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
        i64 row0 = at / panels * rows, left = p->m - row0;
        return Part{p, row0, left < rows ? left : rows, at % panels * NR, count};
    };
    parallel(threads, 1, threads, [&](i64, i64) {
        alignas(64) f32 own[2][KC * NR];
        Panel now{take(), -1, 0, 0};
        if (now.part.count == 0) return;
        now = follow(now, take);
        if (now.part.p->form == 1) fill(*now.part.p, now.col(), 0, 0, now.kc, own[0]);
        for (i64 i = 0; now.part.count > 0;) {
            Panel next = follow(now, take);
            const Problem& p = *now.part.p;
            if (p.form == 0) fill(p, now.col(), now.k0, 0, now.kc, own[i]);
            sweep(now, p.form == 2 ? p.w + now.col() * p.k + now.k0 * NR : own[i], next, own[i ^ 1]);
            now = next;
            if (now.part.p->form == 1) i ^= 1;
        }
    });
}

}  // namespace bj_gemm
