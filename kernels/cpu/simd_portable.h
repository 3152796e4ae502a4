/* `vf` in portable C: an array of 16 floats. Compilers turn the loops into whatever vectors the target has; fmaf is
 * exact everywhere, but only fast where the target has a fused multiply-add. */
#ifndef PLOW_SIMD_PORTABLE_H
#define PLOW_SIMD_PORTABLE_H

#define SIMD_NAME "portable"
#define TILE_ROWS 4
#define TILE_SPLIT 2
#define WIDEN_TILES 6
#define SCORE_VECTORS 4
#define VALUE_VECTORS 2
#define VALUE_ROWS 2
#define MATH static __attribute__((noinline, unused)) /* sixteen fmaf calls an operation: one copy will do */

typedef struct { float x[LANES]; } vf;
#define EACH for (int i = 0; i < LANES; i++)
#define MAP(expression) vf r; EACH r.x[i] = (expression); return r

INLINE uint32_t float_bits(float x) {
  uint32_t u;
  memcpy(&u, &x, sizeof u);
  return u;
}
INLINE float bits_float(uint32_t u) {
  float x;
  memcpy(&x, &u, sizeof x);
  return x;
}
INLINE vf vf_zero(void) { MAP(0.0f); }
INLINE vf vf_set1(float x) { MAP(x); }
INLINE vf vf_load(const float *p) { MAP(p[i]); }
INLINE void vf_store(float *p, vf v) { EACH p[i] = v.x[i]; }
INLINE vf vf_load_n(const float *p, int n) { MAP(i < n ? p[i] : 0.0f); }
INLINE void vf_store_n(float *p, vf v, int n) { for (int i = 0; i < n; i++) p[i] = v.x[i]; }
INLINE vf vf_add(vf a, vf b) { MAP(a.x[i] + b.x[i]); }
INLINE vf vf_sub(vf a, vf b) { MAP(a.x[i] - b.x[i]); }
INLINE vf vf_mul(vf a, vf b) { MAP(a.x[i] * b.x[i]); }
INLINE vf vf_div(vf a, vf b) { MAP(a.x[i] / b.x[i]); }
INLINE vf vf_max(vf a, vf b) { MAP(a.x[i] > b.x[i] ? a.x[i] : b.x[i]); }
INLINE vf vf_min(vf a, vf b) { MAP(a.x[i] < b.x[i] ? a.x[i] : b.x[i]); }
/* a * b + c, a * b - c and c - a * b, rounded once */
INLINE vf vf_fma(vf a, vf b, vf c) { MAP(fmaf(a.x[i], b.x[i], c.x[i])); }
INLINE vf vf_fms(vf a, vf b, vf c) { MAP(fmaf(a.x[i], b.x[i], -c.x[i])); }
INLINE vf vf_fnma(vf a, vf b, vf c) { MAP(fmaf(-a.x[i], b.x[i], c.x[i])); }
/* a < b ? x : y */
INLINE vf vf_select_lt(vf a, vf b, vf x, vf y) { MAP(a.x[i] < b.x[i] ? x.x[i] : y.x[i]); }
INLINE vf vf_abs(vf v) { MAP(fabsf(v.x[i])); }
INLINE vf vf_copysign(vf magnitude, vf sign) { MAP(copysignf(magnitude.x[i], sign.x[i])); }
/* v * 2^n for an integral n such that neither v nor the result is subnormal */
INLINE vf vf_ldexp(vf v, vf n) { MAP(bits_float(float_bits(v.x[i]) + ((uint32_t)(int32_t)n.x[i] << 23))); }
/* 16 words of two bf16: the low halves (even k) and the high halves (odd k) as floats */
INLINE vf vf_bf16_even(const void *p) { MAP(bits_float(((const uint32_t *)p)[i] << 16)); }
INLINE vf vf_bf16_odd(const void *p) { MAP(bits_float(((const uint32_t *)p)[i] & 0xffff0000u)); }
/* 16 words (bf16(even) in the low half, bf16(odd) in the high half), rounded to nearest even */
INLINE uint32_t round_bf16(float x) {
  uint32_t u = float_bits(x);
  return u + 0x7fff + (u >> 16 & 1);
}
INLINE void vf_store_bf16_pairs(uint32_t *p, vf even, vf odd) {
  EACH p[i] = (round_bf16(odd.x[i]) & 0xffff0000u) | round_bf16(even.x[i]) >> 16;
}
/* acc + w_odd * x_odd + w_even * x_even over bf16 pairs; w: 16 words, x: one word for all lanes */
INLINE vf vf_bf16_dot(vf acc, const void *w, uint32_t x) {
  vf even = vf_set1(bits_float(x << 16)), odd = vf_set1(bits_float(x & 0xffff0000u));
  return vf_fma(vf_bf16_even(w), even, vf_fma(vf_bf16_odd(w), odd, acc));
}
/* v[i] lane j <- v[j] lane i */
INLINE void vf_transpose(vf v[LANES]) {
  for (int i = 0; i < LANES; i++)
    for (int j = 0; j < i; j++) {
      float t = v[i].x[j];
      v[i].x[j] = v[j].x[i], v[j].x[i] = t;
    }
}
#undef MAP
#undef EACH
#endif
