// A tile of a matrix, turned: for a loop that would read along its columns.
#pragma once
#include "base.h"

namespace bj {

#if defined(__AVX2__) && defined(__has_builtin)
#if __has_builtin(__builtin_shufflevector)
#define BJ_TURNS 1
#endif
#endif
#ifdef BJ_TURNS
typedef i16 Eight2 __attribute__((vector_size(16)));
typedef i32 Eight4 __attribute__((vector_size(32)));
typedef i64 Eight8 __attribute__((vector_size(64)));

// 8 x 8 elements. Column i of `from`, whose rows are `step` elements apart, becomes row i of `to`, whose rows are `TILE` apart.
template <i64 TILE, class Eight> BJ void turn_8(const u8* from, i64 step, u8* to) {
    constexpr i64 SIZE = sizeof(Eight) / 8;
    Eight a[8], b[8];
    for (int i = 0; i < 8; ++i) __builtin_memcpy(&a[i], from + SIZE * i * step, sizeof(Eight));
    for (int i = 0; i < 8; i += 2) {  // pairs of rows, element by element
        b[i] = __builtin_shufflevector(a[i], a[i + 1], 0, 8, 1, 9, 4, 12, 5, 13);
        b[i + 1] = __builtin_shufflevector(a[i], a[i + 1], 2, 10, 3, 11, 6, 14, 7, 15);
    }
    for (int i = 0; i < 8; i += 4)
        for (int k = 0; k < 2; ++k) {  // pairs of pairs, two elements at a time
            a[i + 2 * k] = __builtin_shufflevector(b[i + k], b[i + k + 2], 0, 1, 8, 9, 4, 5, 12, 13);
            a[i + 2 * k + 1] = __builtin_shufflevector(b[i + k], b[i + k + 2], 2, 3, 10, 11, 6, 7, 14, 15);
        }
    for (int i = 0; i < 4; ++i) {  // halves
        const Eight low = __builtin_shufflevector(a[i], a[i + 4], 0, 1, 2, 3, 8, 9, 10, 11);
        const Eight high = __builtin_shufflevector(a[i], a[i + 4], 4, 5, 6, 7, 12, 13, 14, 15);
        __builtin_memcpy(to + SIZE * TILE * i, &low, sizeof(low));
        __builtin_memcpy(to + SIZE * TILE * (i + 4), &high, sizeof(high));
    }
}
template <i64 TILE, class T> BJ void turn_8_of(const T* from, i64 step, T* to) {
    if (sizeof(T) == 2) turn_8<TILE, Eight2>((const u8*)from, step, (u8*)to);
    if (sizeof(T) == 4) turn_8<TILE, Eight4>((const u8*)from, step, (u8*)to);
    if (sizeof(T) == 8) turn_8<TILE, Eight8>((const u8*)from, step, (u8*)to);
}
#endif
// to[TILE * i + k] = from[i + step * k] for i < n and k < m, both at most TILE.
template <class T, i64 TILE> BJ void turn(const T* from, i64 step, i64 n, i64 m, T* to) {
    i64 done = 0;
#ifdef BJ_TURNS
    if (sizeof(T) > 1)
        for (; done + 8 <= n; done += 8) {
            i64 k = 0;
            for (; k + 8 <= m; k += 8) turn_8_of<TILE>(from + done + step * k, step, to + TILE * done + k);
            for (; k < m; ++k)
                for (i64 i = done; i < done + 8; ++i) to[TILE * i + k] = from[i + step * k];
        }
#endif
    for (i64 k = 0; k < m; ++k)
        for (i64 i = done; i < n; ++i) to[TILE * i + k] = from[i + step * k];
}

}  // namespace bj
