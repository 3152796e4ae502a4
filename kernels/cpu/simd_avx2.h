/* `vf` on AVX2 + FMA: two ymm registers. */
#ifndef PLOW_SIMD_AVX2_H
#define PLOW_SIMD_AVX2_H
#include <immintrin.h>

#define SIMD_NAME "avx2"
#define TILE_ROWS 6       /* 6 rows x 1 half x 2 registers = 12 accumulators of 16 registers */
#define TILE_SPLIT 3      /* tiles of more rows take the halves of a unit one after the other */
#define WIDEN_TILES 6     /* blocks of so many tiles have each unit widened once: 1.4 x faster long steps */
#define SCORE_VECTORS 6   /* accumulators of the q k^T kernel */
#define VALUE_VECTORS 2   /* head_dim vectors of the p v kernel ... */
#define VALUE_ROWS 3      /* ... times rows */

typedef struct { __m256 lo, hi; } vf;

INLINE vf vf_of(__m256 lo, __m256 hi) { return (vf){lo, hi}; }
INLINE vf vf_of_bits(__m256i lo, __m256i hi) { return (vf){_mm256_castsi256_ps(lo), _mm256_castsi256_ps(hi)}; }
INLINE vf vf_zero(void) { return vf_of(_mm256_setzero_ps(), _mm256_setzero_ps()); }
INLINE vf vf_set1(float x) { return vf_of(_mm256_set1_ps(x), _mm256_set1_ps(x)); }
INLINE vf vf_load(const float *p) { return vf_of(_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)); }
INLINE void vf_store(float *p, vf v) { _mm256_storeu_ps(p, v.lo), _mm256_storeu_ps(p + 8, v.hi); }
INLINE vf vf_load_n(const float *p, int n) {
  float x[LANES] = {0};
  memcpy(x, p, (size_t)n * sizeof(float));
  return vf_load(x);
}
INLINE void vf_store_n(float *p, vf v, int n) {
  float x[LANES];
  vf_store(x, v);
  memcpy(p, x, (size_t)n * sizeof(float));
}
INLINE vf vf_add(vf a, vf b) { return vf_of(_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)); }
INLINE vf vf_sub(vf a, vf b) { return vf_of(_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)); }
INLINE vf vf_mul(vf a, vf b) { return vf_of(_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)); }
INLINE vf vf_div(vf a, vf b) { return vf_of(_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi)); }
INLINE vf vf_max(vf a, vf b) { return vf_of(_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi)); }
INLINE vf vf_min(vf a, vf b) { return vf_of(_mm256_min_ps(a.lo, b.lo), _mm256_min_ps(a.hi, b.hi)); }
/* a * b + c, a * b - c and c - a * b, rounded once */
INLINE vf vf_fma(vf a, vf b, vf c) {
  return vf_of(_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi));
}
INLINE vf vf_fms(vf a, vf b, vf c) {
  return vf_of(_mm256_fmsub_ps(a.lo, b.lo, c.lo), _mm256_fmsub_ps(a.hi, b.hi, c.hi));
}
INLINE vf vf_fnma(vf a, vf b, vf c) {
  return vf_of(_mm256_fnmadd_ps(a.lo, b.lo, c.lo), _mm256_fnmadd_ps(a.hi, b.hi, c.hi));
}
/* a < b ? x : y */
INLINE vf vf_select_lt(vf a, vf b, vf x, vf y) {
  return vf_of(_mm256_blendv_ps(y.lo, x.lo, _mm256_cmp_ps(a.lo, b.lo, _CMP_LT_OQ)),
               _mm256_blendv_ps(y.hi, x.hi, _mm256_cmp_ps(a.hi, b.hi, _CMP_LT_OQ)));
}
INLINE vf vf_abs(vf v) {
  __m256 sign = _mm256_set1_ps(-0.0f);
  return vf_of(_mm256_andnot_ps(sign, v.lo), _mm256_andnot_ps(sign, v.hi));
}
INLINE vf vf_copysign(vf magnitude, vf s) {
  __m256 sign = _mm256_set1_ps(-0.0f);
  return vf_of(_mm256_or_ps(_mm256_andnot_ps(sign, magnitude.lo), _mm256_and_ps(sign, s.lo)),
               _mm256_or_ps(_mm256_andnot_ps(sign, magnitude.hi), _mm256_and_ps(sign, s.hi)));
}
/* v * 2^n for an integral n such that neither v nor the result is subnormal */
INLINE __m256i ldexp_half(__m256 v, __m256 n) {
  return _mm256_add_epi32(_mm256_castps_si256(v), _mm256_slli_epi32(_mm256_cvtps_epi32(n), 23));
}
INLINE vf vf_ldexp(vf v, vf n) { return vf_of_bits(ldexp_half(v.lo, n.lo), ldexp_half(v.hi, n.hi)); }
/* 16 words of two bf16: the low halves (even k) and the high halves (odd k) as floats */
INLINE __m256i words(const void *p, int half) { return _mm256_loadu_si256((const __m256i *)p + half); }
INLINE vf vf_bf16_even(const void *p) {
  return vf_of_bits(_mm256_slli_epi32(words(p, 0), 16), _mm256_slli_epi32(words(p, 1), 16));
}
INLINE vf vf_bf16_odd(const void *p) {
  __m256i mask = _mm256_set1_epi32((int)0xffff0000u);
  return vf_of_bits(_mm256_and_si256(words(p, 0), mask), _mm256_and_si256(words(p, 1), mask));
}
/* 16 words (bf16(even) in the low half, bf16(odd) in the high half), rounded to nearest even */
INLINE __m256i round_bf16(__m256 v) {
  __m256i b = _mm256_castps_si256(v), odd = _mm256_and_si256(_mm256_srli_epi32(b, 16), _mm256_set1_epi32(1));
  return _mm256_add_epi32(b, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
}
INLINE __m256i pair_half(__m256 even, __m256 odd) {
  __m256i high = _mm256_and_si256(round_bf16(odd), _mm256_set1_epi32((int)0xffff0000u));
  return _mm256_or_si256(high, _mm256_srli_epi32(round_bf16(even), 16));
}
INLINE void vf_store_bf16_pairs(uint32_t *p, vf even, vf odd) {
  _mm256_storeu_si256((__m256i *)p, pair_half(even.lo, odd.lo));
  _mm256_storeu_si256((__m256i *)p + 1, pair_half(even.hi, odd.hi));
}
/* acc + w_odd * x_odd + w_even * x_even over bf16 pairs; w: 16 words, x: one word for all lanes */
INLINE vf vf_bf16_dot(vf acc, const void *w, uint32_t x) {
  uint32_t even = x << 16, odd = x & 0xffff0000u;
  float e, o;
  memcpy(&e, &even, sizeof e), memcpy(&o, &odd, sizeof o);
  return vf_fma(vf_bf16_even(w), vf_set1(e), vf_fma(vf_bf16_odd(w), vf_set1(o), acc));
}
/* v[i] lane j <- v[j] lane i */
INLINE void transpose8(__m256 v[8]) {
  __m256 t[8];
  UNROLL for (int i = 0; i < 8; i += 4) { /* 4x4 blocks inside both 128-bit halves */
    __m256 a = _mm256_unpacklo_ps(v[i], v[i + 1]), b = _mm256_unpackhi_ps(v[i], v[i + 1]);
    __m256 c = _mm256_unpacklo_ps(v[i + 2], v[i + 3]), d = _mm256_unpackhi_ps(v[i + 2], v[i + 3]);
    t[i] = _mm256_shuffle_ps(a, c, 0x44), t[i + 1] = _mm256_shuffle_ps(a, c, 0xee);
    t[i + 2] = _mm256_shuffle_ps(b, d, 0x44), t[i + 3] = _mm256_shuffle_ps(b, d, 0xee);
  }
  UNROLL for (int i = 0; i < 4; i++) {
    v[i] = _mm256_permute2f128_ps(t[i], t[i + 4], 0x20);
    v[i + 4] = _mm256_permute2f128_ps(t[i], t[i + 4], 0x31);
  }
}
INLINE void vf_transpose(vf v[LANES]) {
  __m256 q[4][8]; /* quadrants: rows 0..7 and 8..15, low and high columns */
  for (int i = 0; i < 8; i++) q[0][i] = v[i].lo, q[1][i] = v[i].hi, q[2][i] = v[i + 8].lo, q[3][i] = v[i + 8].hi;
  for (int i = 0; i < 4; i++) transpose8(q[i]);
  for (int i = 0; i < 8; i++) v[i] = vf_of(q[0][i], q[2][i]), v[i + 8] = vf_of(q[1][i], q[3][i]);
}
#endif
