#include <stdbool.h>

#include "unit.h"

#ifndef PREFETCH_BYTES
#define PREFETCH_BYTES 8192 /* how far ahead weights are fetched: 2 KB leaves a fifth of the bandwidth, 32 KB adds nothing */
#endif
#define STEP_BYTES 128 /* two k of a unit */
#define HALF_BYTES 64

typedef void unit_kernel(const uint8_t *w, size_t pair, const void *panel, uint32_t k, float *sums, size_t stride);

/* Half h of the weight step at w; halves 2 and 3 belong to the second unit, `pair` bytes further on. */
INLINE const uint8_t *half_at(const uint8_t *w, size_t pair, int h) {
  return w + (size_t)(h & 1) * HALF_BYTES + (h & 2 ? pair : 0);
}

INLINE void prefetch_step(const uint8_t *w, size_t pair, int first, int halves) {
  UNROLL for (int h = first; h < first + halves; h++) __builtin_prefetch(half_at(w, pair, h) + PREFETCH_BYTES);
}

/* fp32 class. rows, first and halves are constants of the instantiation. */
INLINE void sums_f32(const uint8_t *w, size_t pair, const float *x, uint32_t k, float *sums, size_t stride,
                     const int rows, const int first, const int halves) {
  vf acc[4][TILE_ROWS], weight[4];
  UNROLL for (int h = 0; h < halves; h++) UNROLL for (int t = 0; t < rows; t++) acc[h][t] = vf_zero();
  for (uint32_t i = 0; i < k; i += 2, w += STEP_BYTES, x += 2 * rows) {
    prefetch_step(w, pair, first, halves);
    UNROLL for (int h = 0; h < halves; h++) weight[h] = vf_bf16_even(half_at(w, pair, first + h));
    UNROLL for (int t = 0; t < rows; t++) {
      vf even = vf_set1(x[t]);
      UNROLL for (int h = 0; h < halves; h++) acc[h][t] = vf_fma(weight[h], even, acc[h][t]);
    }
    UNROLL for (int h = 0; h < halves; h++) weight[h] = vf_bf16_odd(half_at(w, pair, first + h));
    UNROLL for (int t = 0; t < rows; t++) {
      vf odd = vf_set1(x[rows + t]);
      UNROLL for (int h = 0; h < halves; h++) acc[h][t] = vf_fma(weight[h], odd, acc[h][t]);
    }
  }
  UNROLL for (int h = 0; h < halves; h++)
    UNROLL for (int t = 0; t < rows; t++) vf_store(sums + t * stride + (size_t)(first + h) * LANES, acc[h][t]);
}

/* bf16 dot class: the panel holds words of two bf16. */
INLINE void sums_dot(const uint8_t *w, size_t pair, const uint32_t *x, uint32_t k, float *sums, size_t stride,
                     const int rows, const int first, const int halves) {
  vf acc[4][TILE_ROWS];
  UNROLL for (int h = 0; h < halves; h++) UNROLL for (int t = 0; t < rows; t++) acc[h][t] = vf_zero();
  for (uint32_t i = 0; i < k; i += 2, w += STEP_BYTES, x += rows) {
    prefetch_step(w, pair, first, halves);
    UNROLL for (int t = 0; t < rows; t++)
      UNROLL for (int h = 0; h < halves; h++) acc[h][t] = vf_bf16_dot(acc[h][t], half_at(w, pair, first + h), x[t]);
  }
  UNROLL for (int h = 0; h < halves; h++)
    UNROLL for (int t = 0; t < rows; t++) vf_store(sums + t * stride + (size_t)(first + h) * LANES, acc[h][t]);
}

/* One unit: both halves at once while their accumulators fit the registers, else one after the other. */
#define UNIT_KERNEL(CLASS, TYPE, ROWS)                                                                                  \
  static void CLASS##_##ROWS(const uint8_t *w, size_t pair, const void *x, uint32_t k, float *sums, size_t stride) {     \
    if (ROWS <= TILE_SPLIT) sums_##CLASS(w, pair, (const TYPE *)x, k, sums, stride, ROWS, 0, 2);                        \
    else {                                                                                                             \
      sums_##CLASS(w, pair, (const TYPE *)x, k, sums, stride, ROWS, 0, 1);                                             \
      sums_##CLASS(w, pair, (const TYPE *)x, k, sums, stride, ROWS, 1, 1);                                             \
    }                                                                                                                  \
  }
#define PAIR_KERNEL(CLASS, TYPE, ROWS)                                                                                  \
  static void CLASS##_pair_##ROWS(const uint8_t *w, size_t pair, const void *x, uint32_t k, float *sums,                \
                                  size_t stride) {                                                                     \
    sums_##CLASS(w, pair, (const TYPE *)x, k, sums, stride, ROWS, 0, 4);                                                \
  }

#if TILE_ROWS == 12
#define EACH_ROWS(F, ...) F(__VA_ARGS__, 1) F(__VA_ARGS__, 2) F(__VA_ARGS__, 3) F(__VA_ARGS__, 4) F(__VA_ARGS__, 5) \
  F(__VA_ARGS__, 6) F(__VA_ARGS__, 7) F(__VA_ARGS__, 8) F(__VA_ARGS__, 9) F(__VA_ARGS__, 10) F(__VA_ARGS__, 11)     \
  F(__VA_ARGS__, 12)
#elif TILE_ROWS == 6
#define EACH_ROWS(F, ...) F(__VA_ARGS__, 1) F(__VA_ARGS__, 2) F(__VA_ARGS__, 3) F(__VA_ARGS__, 4) F(__VA_ARGS__, 5) \
  F(__VA_ARGS__, 6)
#elif TILE_ROWS == 4
#define EACH_ROWS(F, ...) F(__VA_ARGS__, 1) F(__VA_ARGS__, 2) F(__VA_ARGS__, 3) F(__VA_ARGS__, 4)
#endif
#define NAME_KERNEL(CLASS, ROWS) CLASS##_##ROWS,

EACH_ROWS(UNIT_KERNEL, f32, float)
EACH_ROWS(UNIT_KERNEL, dot, uint32_t)
PAIR_KERNEL(f32, float, 1)
PAIR_KERNEL(f32, float, 2)
PAIR_KERNEL(dot, uint32_t, 1)
PAIR_KERNEL(dot, uint32_t, 2)

static unit_kernel *const KERNELS[2][TILE_ROWS] = {{EACH_ROWS(NAME_KERNEL, f32)}, {EACH_ROWS(NAME_KERNEL, dot)}};
static unit_kernel *const PAIR_KERNELS[2][PAIR_ROWS] = {{f32_pair_1, f32_pair_2}, {dot_pair_1, dot_pair_2}};

void unit_sums(const uint8_t *unit, int units, const float *panel, uint32_t rows, uint32_t k, bool dot, float *sums,
               size_t stride) {
  unit_kernel *kernel = units == 2 ? PAIR_KERNELS[dot][rows - 1] : KERNELS[dot][rows - 1];
  kernel(unit, unit_bytes(k), panel, k, sums, stride);
}
