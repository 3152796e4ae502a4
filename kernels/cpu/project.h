/* What LINEAR and QKV share: cutting the rows into tiles and laying their (normalised) inputs out as panels. */
#ifndef PLOW_PROJECT_H
#define PLOW_PROJECT_H
#include "op.h"
#include "unit.h"

/* The activation side of a projection.
 *
 *   rows of the packet   0 ............................................. count
 *   tiles                |  0  |  1  |  2  |  3  |  4  | ...   sizes differ by at most one, at most TILE_ROWS
 *   blocks               |      block 0    |     block 1 ...   tiles whose panels fit PANEL_BYTES together
 *
 * A weight unit is streamed once a block and meets all tiles of the block while it is in the cache.
 */
typedef struct {
  const float *x, *norm_weight; /* norm_weight: NULL = no norm before */
  uint32_t x_stride, k;
  float eps;
  bool dot;
  plow_rows rows;
  uint32_t tiles, tiles_a_block;
} projection;

projection projection_of(const float *x, uint32_t x_stride, const float *norm_weight, float eps, bool dot,
                         plow_rows rows, uint32_t k);

/* First loop row of a tile; the tile ends where the next one begins. */
INLINE uint32_t tile_start(const projection *j, uint32_t tile) {
  return (uint32_t)((uint64_t)j->rows.count * tile / j->tiles);
}

/* A tile ready for the unit kernels. */
typedef struct { const float *panel; uint32_t first, rows; } tile_t;

/* A block of tiles and the weights that it meets, unit by unit. */
#define MAX_BLOCK_TILES 64
typedef struct {
  const projection *j;
  const uint8_t *weight;
  float *widened; /* f32 [k][32] of the current unit, or NULL: few tiles, the dot class, k too large */
  uint32_t unit, tiles;
  tile_t tile[MAX_BLOCK_TILES];
} block_t;

#define PANEL_BYTES (512 * 1024)
uint32_t block_tiles(uint32_t k); /* tiles of the largest block */
size_t block_scratch(uint32_t k);

/* Pack the block that begins at tile `first`; memory: block_scratch(k) bytes. */
void begin_block(block_t *b, const projection *j, const uint8_t *weight, uint32_t first, uint8_t *memory);
/* Make a unit the current one. */
void begin_unit(block_t *b, uint32_t unit);
/* Sums of the current unit for a tile: f32 [rows][stride], 32 columns of each row. */
INLINE void tile_sums(const block_t *b, uint32_t tile, float *sums, size_t stride) {
  const tile_t *t = &b->tile[tile];
  const uint8_t *unit = b->weight + b->unit * unit_bytes(b->j->k);
  if (b->widened) unit_sums_widened(b->widened, unit + unit_bytes(b->j->k), t->panel, t->rows, b->j->k, sums, stride);
  else unit_sums(unit, t->panel, t->rows, b->j->k, b->j->dot, sums, stride);
}
#endif
