#include "unit.h"

#ifndef PREFETCH_BYTES
#define PREFETCH_BYTES 8192 /* how far ahead weights are fetched: 2 KB leaves a fifth of the bandwidth, 32 KB adds nothing */
#endif
#define STEP_BYTES 128 /* two k of a unit */
#define HALF_BYTES 64

typedef void unit_kernel(const uint8_t *w, const void *panel, uint32_t k, float *sums, size_t stride);

INLINE void prefetch_step(const uint8_t *w, int halves) {
  UNROLL for (int h = 0; h < halves; h++) __builtin_prefetch(w + h * HALF_BYTES + PREFETCH_BYTES);
}

/* fp32 class. w: the unit, or its second half; rows and halves are constants of the instantiation. */
INLINE void sums_f32(const uint8_t *w, const float *x, uint32_t k, float *sums, size_t stride, const int rows,
                     const int halves) {
  vf acc[2][TILE_ROWS], weight[2];
  UNROLL for (int h = 0; h < halves; h++) UNROLL for (int t = 0; t < rows; t++) acc[h][t] = vf_zero();
  for (uint32_t i = 0; i < k; i += 2, w += STEP_BYTES, x += 2 * rows) {
    prefetch_step(w, halves);
    UNROLL for (int h = 0; h < halves; h++) weight[h] = vf_bf16_even(w + h * HALF_BYTES);
    UNROLL for (int t = 0; t < rows; t++) {
      vf even = vf_set1(x[t]);
      UNROLL for (int h = 0; h < halves; h++) acc[h][t] = vf_fma(weight[h], even, acc[h][t]);
    }
    UNROLL for (int h = 0; h < halves; h++) weight[h] = vf_bf16_odd(w + h * HALF_BYTES);
    UNROLL for (int t = 0; t < rows; t++) {
      vf odd = vf_set1(x[rows + t]);
      UNROLL for (int h = 0; h < halves; h++) acc[h][t] = vf_fma(weight[h], odd, acc[h][t]);
    }
  }
  UNROLL for (int h = 0; h < halves; h++)
    UNROLL for (int t = 0; t < rows; t++) vf_store(sums + t * stride + h * LANES, acc[h][t]);
}

/* bf16 dot class: the panel holds words of two bf16. */
INLINE void sums_dot(const uint8_t *w, const uint32_t *x, uint32_t k, float *sums, size_t stride, const int rows,
                     const int halves) {
  vf acc[2][TILE_ROWS];
  UNROLL for (int h = 0; h < halves; h++) UNROLL for (int t = 0; t < rows; t++) acc[h][t] = vf_zero();
  for (uint32_t i = 0; i < k; i += 2, w += STEP_BYTES, x += rows) {
    prefetch_step(w, halves);
    UNROLL for (int t = 0; t < rows; t++)
      UNROLL for (int h = 0; h < halves; h++) acc[h][t] = vf_bf16_dot(acc[h][t], w + h * HALF_BYTES, x[t]);
  }
  UNROLL for (int h = 0; h < halves; h++)
    UNROLL for (int t = 0; t < rows; t++) vf_store(sums + t * stride + h * LANES, acc[h][t]);
}

/* Both halves at once while their accumulators fit the registers, else one after the other. */
#define UNIT_KERNEL(CLASS, TYPE, ROWS)                                                                     \
  static void CLASS##_##ROWS(const uint8_t *w, const void *x, uint32_t k, float *sums, size_t stride) {    \
    if (ROWS <= TILE_SPLIT) sums_##CLASS(w, (const TYPE *)x, k, sums, stride, ROWS, 2);                    \
    else {                                                                                                 \
      sums_##CLASS(w, (const TYPE *)x, k, sums, stride, ROWS, 1);                                          \
      sums_##CLASS(w + HALF_BYTES, (const TYPE *)x, k, sums + LANES, stride, ROWS, 1);                     \
    }                                                                                                      \
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

static unit_kernel *const KERNELS[2][TILE_ROWS] = {{EACH_ROWS(NAME_KERNEL, f32)}, {EACH_ROWS(NAME_KERNEL, dot)}};

void unit_sums(const uint8_t *unit, const float *panel, uint32_t rows, uint32_t k, bool dot, float *sums, size_t stride) {
  KERNELS[dot][rows - 1](unit, panel, k, sums, stride);
}
