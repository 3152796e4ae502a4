/* Unit kernels: sums of one weight unit (32 output rows, or two units) over k for a tile of activation rows.
 *
 *   unit    bf16 [k/2][2 halves][16 lanes][2]: one 128-byte step holds two k of 32 output rows (layouts.py)
 *   panel   f32 [k][rows], or [k/2][rows] words of two bf16 in the dot class: what a kernel reads is consecutive
 *   sums    f32 [rows][stride], 32 (or 64) columns of each row
 *
 * Every (row, output) is one chain of fused multiply-adds over ascending k, so a sum does not depend on the tile, on
 * batch mates or on the vector width.
 */
#ifndef PLOW_UNIT_H
#define PLOW_UNIT_H
#include "simd.h"

#define UNIT_COLUMNS UNIT_ROWS
#define PAIR_ROWS 2 /* tiles of at most this many rows take two units at a time: more chains hide the latency */

INLINE size_t unit_bytes(uint32_t k) { return (size_t)k * UNIT_ROWS * 2; }

/* units: 1, or 2 for tiles of at most PAIR_ROWS rows. */
void unit_sums(const uint8_t *unit, int units, const float *panel, uint32_t rows, uint32_t k, bool dot, float *sums,
               size_t stride);
#endif
