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

/* The same sums from weights that were widened once for many tiles: f32 [k][32]. The widening costs vector slots that
 * the multiply-adds of a long step can use. next: the unit to fetch meanwhile. */
#define MIN_TILES_TO_WIDEN 8
#define MAX_WIDENED_BYTES (256 * 1024) /* with a block of panels it has to stay in the L2 cache */
INLINE size_t widened_bytes(uint32_t k) { return (size_t)k * UNIT_ROWS * sizeof(float); }
void unit_widen(const uint8_t *unit, uint32_t k, float *widened);
void unit_sums_widened(const float *widened, const uint8_t *next, const float *panel, uint32_t rows, uint32_t k,
                       float *sums, size_t stride);
#endif
