/* The vector abstraction of every CPU kernel: `vf`, 16 floats, on AVX-512, AVX2 + FMA or portable C.
 *
 * All three variants compute the same bits: 16 lanes everywhere, one rounding per operation (a fused multiply-add is
 * always fused, and the build forbids contraction of the rest), and reductions in one fixed tree. A kernel written on
 * `vf` therefore gives the same result on every processor, and its lanes are the LANES of the packet ABI.
 *
 * Register budget: constants below say how many accumulators a kernel may keep without spilling.
 */
#ifndef PLOW_SIMD_H
#define PLOW_SIMD_H
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "plow_abi.h"

#define INLINE static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 32")

#if defined(PLOW_SIMD_AVX512)
#include "simd_avx512.h"
#elif defined(PLOW_SIMD_AVX2)
#include "simd_avx2.h"
#elif defined(PLOW_SIMD_PORTABLE)
#include "simd_portable.h"
#else
#error "define PLOW_SIMD_AVX512, PLOW_SIMD_AVX2 or PLOW_SIMD_PORTABLE (plow/runtime/build_cpu.py does)"
#endif

#ifndef MATH
#define MATH INLINE
#endif

/* Reductions: lanes i and i + 8 first, then i + 4, i + 2, i + 1. */
INLINE float vf_sum(vf v) {
  float x[LANES];
  vf_store(x, v);
  for (int width = LANES / 2; width > 0; width /= 2)
    for (int i = 0; i < width; i++) x[i] += x[i + width];
  return x[0];
}

INLINE float vf_largest(vf v) {
  float x[LANES];
  vf_store(x, v);
  for (int width = LANES / 2; width > 0; width /= 2)
    for (int i = 0; i < width; i++) x[i] = x[i] > x[i + width] ? x[i] : x[i + width];
  return x[0];
}

/* Lanes from..to-1 of v, `fill` elsewhere. */
INLINE vf vf_keep(vf v, int from, int to, float fill) {
  static const float lane[LANES] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  vf index = vf_load(lane), other = vf_set1(fill);
  v = vf_select_lt(index, vf_set1((float)from), other, v);
  return vf_select_lt(index, vf_set1((float)to), v, other);
}

/* exp(x) to 1.5 ulp; 0 where it would be subnormal, infinity above 88.3; a NaN stays one.
 * Range reduction and polynomial: Cephes expf (S. Moshier). */
MATH vf vf_exp(vf x) {
  const float round_magic = 12582912.0f; /* 1.5 * 2^23: adding it rounds to an integer, ties to even */
  vf y = vf_max(vf_set1(-88.0f), vf_min(vf_set1(88.3762626647949f), x)); /* this operand order keeps a NaN */
  vf n = vf_sub(vf_add(vf_mul(y, vf_set1(1.44269504088896341f)), vf_set1(round_magic)), vf_set1(round_magic));
  n = vf_max(vf_set1(-126.0f), n);
  vf r = vf_fnma(n, vf_set1(0.693359375f), y);
  r = vf_fnma(n, vf_set1(-2.12194440e-4f), r);
  vf p = vf_set1(1.9875691500e-4f);
  p = vf_fma(p, r, vf_set1(1.3981999507e-3f));
  p = vf_fma(p, r, vf_set1(8.3334519073e-3f));
  p = vf_fma(p, r, vf_set1(4.1665795894e-2f));
  p = vf_fma(p, r, vf_set1(1.6666665459e-1f));
  p = vf_fma(p, r, vf_set1(5.0000001201e-1f));
  p = vf_add(vf_fma(p, vf_mul(r, r), r), vf_set1(1.0f));
  p = vf_select_lt(vf_set1(88.3762626647949f), x, vf_set1(INFINITY), vf_ldexp(p, n));
  return vf_select_lt(x, vf_set1(-87.3365447504f), vf_zero(), p);
}

/* 2^x to 2 ulp for x up to 127; 0 below -126; a NaN stays one. Polynomial: Cephes exp2f. */
MATH vf vf_exp2(vf x) {
  const float round_magic = 12582912.0f;
  vf y = vf_max(vf_set1(-126.0f), x);
  vf n = vf_sub(vf_add(y, vf_set1(round_magic)), vf_set1(round_magic)), r = vf_sub(y, n);
  vf p = vf_set1(1.535336188319500e-4f);
  p = vf_fma(p, r, vf_set1(1.339887440266574e-3f));
  p = vf_fma(p, r, vf_set1(9.618437357674640e-3f));
  p = vf_fma(p, r, vf_set1(5.550332471162809e-2f));
  p = vf_fma(p, r, vf_set1(2.402264791363012e-1f));
  p = vf_fma(p, r, vf_set1(6.931472028550421e-1f));
  p = vf_fma(p, r, vf_set1(1.0f));
  return vf_select_lt(x, vf_set1(-126.0f), vf_zero(), vf_ldexp(p, n));
}

/* tanh(x) to 2 ulp: a polynomial near 0 (Cephes tanhf), 1 - 2 / (exp(2|x|) + 1) elsewhere. */
MATH vf vf_tanh(vf x) {
  vf a = vf_abs(x), z = vf_mul(x, x);
  vf p = vf_set1(-5.70498872745e-3f);
  p = vf_fma(p, z, vf_set1(2.06390887954e-2f));
  p = vf_fma(p, z, vf_set1(-5.37397155531e-2f));
  p = vf_fma(p, z, vf_set1(1.33314422036e-1f));
  p = vf_fma(p, z, vf_set1(-3.33332819422e-1f));
  vf small = vf_fma(vf_mul(p, z), x, x);
  vf e = vf_exp(vf_add(a, a));
  vf large = vf_sub(vf_set1(1.0f), vf_div(vf_set1(2.0f), vf_add(e, vf_set1(1.0f))));
  return vf_select_lt(a, vf_set1(0.625f), small, vf_copysign(large, x));
}

MATH vf vf_silu(vf x) {
  return vf_div(x, vf_add(vf_set1(1.0f), vf_exp(vf_sub(vf_zero(), x))));
}

/* 0.5 x (1 + tanh(u)) = x / (1 + exp(-2u)), u = sqrt(2/pi) (x + 0.044715 x^3): no cancellation for negative x. */
MATH vf vf_gelu_tanh(vf x) {
  vf u = vf_mul(vf_fma(vf_mul(vf_mul(x, x), vf_set1(0.044715f)), x, x), vf_set1(-2.0f * 0.7978845608028654f));
  return vf_div(x, vf_add(vf_set1(1.0f), vf_exp(u)));
}

MATH vf vf_softcap(vf x, vf cap) {
  return vf_mul(vf_tanh(vf_div(x, cap)), cap);
}

#endif
