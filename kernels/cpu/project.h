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

/* Panels of tiles tile0..tile1 in `memory`; returns the number of tiles written to out. */
void pack_tiles(const projection *j, uint32_t tile0, uint32_t tile1, float *memory, tile_t *out);

#define PANEL_BYTES (512 * 1024)
#define MAX_BLOCK_TILES 64
size_t panel_scratch(uint32_t k);
#endif
