/* Unit kernels: sums of one weight unit (32 output rows) over k for a tile of activation rows.
 *
 *   unit    bf16 [k/2][2 halves][16 lanes][2]: one 128-byte step holds two k of 32 output rows (layouts.py)
 *   panel   f32 [k][rows], or [k/2][rows] words of two bf16 in the dot class: what a kernel reads is consecutive
 *   sums    f32 [rows][stride], 32 columns of each row
 *
 * Every (row, output) is one chain of fused multiply-adds over ascending k, so a sum does not depend on the tile, on
 * batch mates or on the vector width.
 */
#ifndef PLOW_UNIT_H
#define PLOW_UNIT_H
#include <stdbool.h>

#include "simd.h"

#define UNIT_COLUMNS UNIT_ROWS

INLINE size_t unit_bytes(uint32_t k) { return (size_t)k * UNIT_ROWS * 2; }

void unit_sums(const uint8_t *unit, const float *panel, uint32_t rows, uint32_t k, bool dot, float *sums, size_t stride);
#endif
