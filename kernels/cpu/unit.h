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

/* F(1) F(2) ... F(TILE_ROWS) */
#if TILE_ROWS == 12
#define EACH_ROWS(F) F(1) F(2) F(3) F(4) F(5) F(6) F(7) F(8) F(9) F(10) F(11) F(12)
#elif TILE_ROWS == 6
#define EACH_ROWS(F) F(1) F(2) F(3) F(4) F(5) F(6)
#elif TILE_ROWS == 4
#define EACH_ROWS(F) F(1) F(2) F(3) F(4)
#endif

INLINE size_t unit_bytes(uint32_t k) { return (size_t)k * UNIT_ROWS * 2; }

void unit_sums(const uint8_t *unit, const float *panel, uint32_t rows, uint32_t k, bool dot, float *sums,
               size_t stride);

/* The same sums from weights that were widened once for at least WIDEN_TILES tiles: f32 [k][32]. Where registers are
 * few, tiles are small and widening takes slots that multiply-adds need. next: the unit to fetch meanwhile. */
#define MAX_WIDENED_BYTES (256 * 1024) /* with a block of panels it should stay in the L2 cache */
INLINE size_t widened_bytes(uint32_t k) { return (size_t)k * UNIT_ROWS * sizeof(float); }
void unit_widen(const uint8_t *unit, uint32_t k, float *widened);
void unit_sums_widened(const float *widened, const uint8_t *next, const float *panel, uint32_t rows, uint32_t k,
                       float *sums, size_t stride);
#endif
