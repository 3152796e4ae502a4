#include "unit.h"

#ifndef PREFETCH_BYTES
#define PREFETCH_BYTES 8192 /* how far ahead weights are fetched: 4 to 16 KB are alike, 2 and 32 KB lose 1 to 6 % */
#endif
#define STEP_BYTES 128 /* two k of a unit */
#define HALF_BYTES 64

typedef void unit_kernel(const void *w, const uint8_t *ahead, const void *panel, uint32_t k, float *sums,
                         size_t stride);

INLINE void prefetch_step(const uint8_t *ahead, int halves) {
  UNROLL for (int h = 0; h < halves; h++) __builtin_prefetch(ahead + h * HALF_BYTES);
}

/* fp32 class. w: the unit or its second half, ahead: what to fetch meanwhile; rows, halves and widened are constants
 * of the instantiation. */
INLINE void sums_f32(const uint8_t *w, const uint8_t *ahead, const float *x, uint32_t k, float *sums, size_t stride,
                     const int rows, const int halves, const bool widened) {
  vf acc[2][TILE_ROWS], weight[2];
  UNROLL for (int h = 0; h < halves; h++) UNROLL for (int t = 0; t < rows; t++) acc[h][t] = vf_zero();
  for (uint32_t i = 0; i < k; i += 2, w += widened ? 2 * STEP_BYTES : STEP_BYTES, ahead += STEP_BYTES, x += 2 * rows) {
    prefetch_step(ahead, halves);
    UNROLL for (int h = 0; h < halves; h++)
      weight[h] = widened ? vf_load((const float *)(w + h * HALF_BYTES)) : vf_bf16_even(w + h * HALF_BYTES);
    UNROLL for (int t = 0; t < rows; t++) {
      vf even = vf_set1(x[t]);
      UNROLL for (int h = 0; h < halves; h++) acc[h][t] = vf_fma(weight[h], even, acc[h][t]);
    }
    UNROLL for (int h = 0; h < halves; h++)
      weight[h] = widened ? vf_load((const float *)(w + STEP_BYTES + h * HALF_BYTES)) : vf_bf16_odd(w + h * HALF_BYTES);
    UNROLL for (int t = 0; t < rows; t++) {
      vf odd = vf_set1(x[rows + t]);
      UNROLL for (int h = 0; h < halves; h++) acc[h][t] = vf_fma(weight[h], odd, acc[h][t]);
    }
  }
  UNROLL for (int h = 0; h < halves; h++)
    UNROLL for (int t = 0; t < rows; t++) vf_store(sums + t * stride + h * LANES, acc[h][t]);
}

/* bf16 dot class: the panel holds words of two bf16. */
INLINE void sums_dot(const uint8_t *w, const uint8_t *ahead, const uint32_t *x, uint32_t k, float *sums, size_t stride,
                     const int rows, const int halves) {
  vf acc[2][TILE_ROWS];
  UNROLL for (int h = 0; h < halves; h++) UNROLL for (int t = 0; t < rows; t++) acc[h][t] = vf_zero();
  for (uint32_t i = 0; i < k; i += 2, w += STEP_BYTES, ahead += STEP_BYTES, x += rows) {
    prefetch_step(ahead, halves);
    UNROLL for (int t = 0; t < rows; t++)
      UNROLL for (int h = 0; h < halves; h++) acc[h][t] = vf_bf16_dot(acc[h][t], w + h * HALF_BYTES, x[t]);
  }
  UNROLL for (int h = 0; h < halves; h++)
    UNROLL for (int t = 0; t < rows; t++) vf_store(sums + t * stride + h * LANES, acc[h][t]);
}

/* Both halves at once while their accumulators fit the registers, else one after the other. */
#define UNIT_KERNEL(NAME, CLASS, TYPE, ROWS, ...)                                                                  \
  static void NAME##_##ROWS(const void *w, const uint8_t *ahead, const void *panel, uint32_t k, float *sums,       \
                            size_t stride) {                                                                       \
    const TYPE *x = panel;                                                                                         \
    if (ROWS <= TILE_SPLIT) sums_##CLASS(w, ahead, x, k, sums, stride, ROWS, 2, ##__VA_ARGS__);                    \
    else {                                                                                                         \
      sums_##CLASS(w, ahead, x, k, sums, stride, ROWS, 1, ##__VA_ARGS__);                                          \
      sums_##CLASS((const uint8_t *)w + HALF_BYTES, ahead + HALF_BYTES, x, k, sums + LANES, stride, ROWS, 1,       \
                   ##__VA_ARGS__);                                                                                 \
    }                                                                                                              \
  }
#define F32_KERNEL(ROWS) UNIT_KERNEL(f32, f32, float, ROWS, false)
#define WIDENED_KERNEL(ROWS) UNIT_KERNEL(widened, f32, float, ROWS, true)
#define DOT_KERNEL(ROWS) UNIT_KERNEL(dot, dot, uint32_t, ROWS)
#define F32_NAME(ROWS) f32_##ROWS,
#define WIDENED_NAME(ROWS) widened_##ROWS,
#define DOT_NAME(ROWS) dot_##ROWS,

EACH_ROWS(F32_KERNEL)
EACH_ROWS(WIDENED_KERNEL)
EACH_ROWS(DOT_KERNEL)

static unit_kernel *const F32[TILE_ROWS] = {EACH_ROWS(F32_NAME)}, *const WIDENED[TILE_ROWS] = {EACH_ROWS(WIDENED_NAME)},
                          *const DOT[TILE_ROWS] = {EACH_ROWS(DOT_NAME)};

void unit_sums(const uint8_t *unit, const float *panel, uint32_t rows, uint32_t k, bool dot, float *sums,
               size_t stride) {
  (dot ? DOT : F32)[rows - 1](unit, unit + PREFETCH_BYTES, panel, k, sums, stride);
}

void unit_widen(const uint8_t *unit, uint32_t k, float *widened) {
  for (uint32_t i = 0; i < k; i += 2, unit += STEP_BYTES, widened += 2 * UNIT_ROWS)
    UNROLL for (int h = 0; h < 2; h++) {
      vf_store(widened + h * LANES, vf_bf16_even(unit + h * HALF_BYTES));
      vf_store(widened + UNIT_ROWS + h * LANES, vf_bf16_odd(unit + h * HALF_BYTES));
    }
}

void unit_sums_widened(const float *widened, const uint8_t *next, const float *panel, uint32_t rows, uint32_t k,
                       float *sums, size_t stride) {
  WIDENED[rows - 1](widened, next, panel, k, sums, stride);
}
