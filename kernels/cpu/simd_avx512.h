/* `vf` on AVX-512: one zmm register. */
#ifndef PLOW_SIMD_AVX512_H
#define PLOW_SIMD_AVX512_H
#include <immintrin.h>

#define SIMD_NAME "avx512"
#define TILE_ROWS 12      /* rows of a linear tile: 12 rows x 2 halves = 24 accumulators of 32 registers */
#define TILE_SPLIT 12     /* tiles of more rows take the halves of a unit one after the other */
#define WIDEN_TILES 1000000 /* never: widening a unit once for many tiles gains 1 % here and loses 4 % of a large k */
#define SCORE_VECTORS 24  /* accumulators of the q k^T kernel */
#define VALUE_VECTORS 4   /* head_dim vectors of the p v kernel ... */
#define VALUE_ROWS 6      /* ... times rows */

typedef __m512 vf;

INLINE vf vf_zero(void) { return _mm512_setzero_ps(); }
INLINE vf vf_set1(float x) { return _mm512_set1_ps(x); }
INLINE vf vf_load(const float *p) { return _mm512_loadu_ps(p); }
INLINE void vf_store(float *p, vf v) { _mm512_storeu_ps(p, v); }
INLINE __mmask16 first_lanes(int n) { return (__mmask16)((1u << n) - 1); }
INLINE vf vf_load_n(const float *p, int n) { return _mm512_maskz_loadu_ps(first_lanes(n), p); }
INLINE void vf_store_n(float *p, vf v, int n) { _mm512_mask_storeu_ps(p, first_lanes(n), v); }
INLINE vf vf_add(vf a, vf b) { return _mm512_add_ps(a, b); }
INLINE vf vf_sub(vf a, vf b) { return _mm512_sub_ps(a, b); }
INLINE vf vf_mul(vf a, vf b) { return _mm512_mul_ps(a, b); }
INLINE vf vf_div(vf a, vf b) { return _mm512_div_ps(a, b); }
INLINE vf vf_max(vf a, vf b) { return _mm512_max_ps(a, b); }
INLINE vf vf_min(vf a, vf b) { return _mm512_min_ps(a, b); }
/* a * b + c, a * b - c and c - a * b, rounded once */
INLINE vf vf_fma(vf a, vf b, vf c) { return _mm512_fmadd_ps(a, b, c); }
INLINE vf vf_fms(vf a, vf b, vf c) { return _mm512_fmsub_ps(a, b, c); }
INLINE vf vf_fnma(vf a, vf b, vf c) { return _mm512_fnmadd_ps(a, b, c); }
/* a < b ? x : y */
INLINE vf vf_select_lt(vf a, vf b, vf x, vf y) {
  return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(a, b, _CMP_LT_OQ), y, x);
}
INLINE __m512i bits_of(vf v) { return _mm512_castps_si512(v); }
INLINE vf vf_abs(vf v) { return _mm512_abs_ps(v); }
INLINE vf vf_copysign(vf magnitude, vf sign) {
  __m512i s = _mm512_set1_epi32((int)0x80000000u);
  return _mm512_castsi512_ps(_mm512_ternarylogic_epi32(s, bits_of(sign), bits_of(magnitude), 0xca));
}
/* v * 2^n for an integral n such that neither v nor the result is subnormal */
INLINE vf vf_ldexp(vf v, vf n) {
  return _mm512_castsi512_ps(_mm512_add_epi32(bits_of(v), _mm512_slli_epi32(_mm512_cvtps_epi32(n), 23)));
}
/* 16 words of two bf16: the low halves (even k) and the high halves (odd k) as floats */
INLINE vf vf_bf16_even(const void *p) { return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_loadu_si512(p), 16)); }
INLINE vf vf_bf16_odd(const void *p) {
  return _mm512_castsi512_ps(_mm512_and_si512(_mm512_loadu_si512(p), _mm512_set1_epi32((int)0xffff0000u)));
}
/* 16 words (bf16(even) in the low half, bf16(odd) in the high half), rounded to nearest even */
INLINE void vf_store_bf16_pairs(uint32_t *p, vf even, vf odd) {
  __m512i one = _mm512_set1_epi32(1), half = _mm512_set1_epi32(0x7fff), e = bits_of(even), o = bits_of(odd);
  e = _mm512_add_epi32(e, _mm512_add_epi32(half, _mm512_and_si512(_mm512_srli_epi32(e, 16), one)));
  o = _mm512_add_epi32(o, _mm512_add_epi32(half, _mm512_and_si512(_mm512_srli_epi32(o, 16), one)));
  o = _mm512_and_si512(o, _mm512_set1_epi32((int)0xffff0000u));
  _mm512_storeu_si512(p, _mm512_or_si512(o, _mm512_srli_epi32(e, 16)));
}
/* acc + w_odd * x_odd + w_even * x_even over bf16 pairs; w: 16 words, x: one word for all lanes */
INLINE vf vf_bf16_dot(vf acc, const void *w, uint32_t x) {
#if defined(__AVX512BF16__)
  return _mm512_dpbf16_ps(acc, (__m512bh)_mm512_loadu_si512(w), (__m512bh)_mm512_set1_epi32((int)x));
#else
  __m512i pair = _mm512_set1_epi32((int)x);
  vf odd = _mm512_castsi512_ps(_mm512_and_si512(pair, _mm512_set1_epi32((int)0xffff0000u)));
  acc = vf_fma(vf_bf16_odd(w), odd, acc);
  return vf_fma(vf_bf16_even(w), _mm512_castsi512_ps(_mm512_slli_epi32(pair, 16)), acc);
#endif
}
/* v[i] lane j <- v[j] lane i */
INLINE void vf_transpose(vf v[LANES]) {
  __m512 t[LANES];
  UNROLL for (int i = 0; i < LANES; i += 4) { /* 4x4 blocks inside every 128-bit quarter */
    __m512 a = _mm512_unpacklo_ps(v[i], v[i + 1]), b = _mm512_unpackhi_ps(v[i], v[i + 1]);
    __m512 c = _mm512_unpacklo_ps(v[i + 2], v[i + 3]), d = _mm512_unpackhi_ps(v[i + 2], v[i + 3]);
    t[i] = _mm512_shuffle_ps(a, c, 0x44), t[i + 1] = _mm512_shuffle_ps(a, c, 0xee);
    t[i + 2] = _mm512_shuffle_ps(b, d, 0x44), t[i + 3] = _mm512_shuffle_ps(b, d, 0xee);
  }
  UNROLL for (int i = 0; i < 4; i++) { /* then 4x4 blocks of quarters */
    __m512 a = _mm512_shuffle_f32x4(t[i], t[i + 4], 0x88), b = _mm512_shuffle_f32x4(t[i], t[i + 4], 0xdd);
    __m512 c = _mm512_shuffle_f32x4(t[i + 8], t[i + 12], 0x88), d = _mm512_shuffle_f32x4(t[i + 8], t[i + 12], 0xdd);
    v[i] = _mm512_shuffle_f32x4(a, c, 0x88), v[i + 8] = _mm512_shuffle_f32x4(a, c, 0xdd);
    v[i + 4] = _mm512_shuffle_f32x4(b, d, 0x88), v[i + 12] = _mm512_shuffle_f32x4(b, d, 0xdd);
  }
}
#endif
