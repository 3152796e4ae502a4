#include "project.h"

static uint32_t block_tiles(uint32_t k) {
  size_t tiles = PANEL_BYTES / (TILE_ROWS * (size_t)k * sizeof(float));
  return tiles < 1 ? 1 : tiles > MAX_BLOCK_TILES ? MAX_BLOCK_TILES : (uint32_t)tiles;
}

/* One vector of slack: the last transposed row of a panel is stored whole. */
size_t panel_scratch(uint32_t k) {
  return round_up(block_tiles(k) * TILE_ROWS * (size_t)k * sizeof(float) + LANES * sizeof(float), ALIGN);
}

projection projection_of(const float *x, uint32_t x_stride, const float *norm_weight, float eps, bool dot,
                         plow_rows rows, uint32_t k) {
  uint32_t tiles = (rows.count + TILE_ROWS - 1) / TILE_ROWS, most = block_tiles(k);
  uint32_t blocks = (tiles + most - 1) / most;
  return (projection){x, norm_weight, x_stride, k, eps, dot, rows, tiles, blocks ? (tiles + blocks - 1) / blocks : 0};
}

static void pack_tile(const projection *j, uint32_t first, uint32_t rows, float *panel) {
  const float *source[TILE_ROWS];
  vf scale[TILE_ROWS];
  for (uint32_t t = 0; t < rows; t++) {
    source[t] = j->x + row_at(j->rows, first + t) * j->x_stride;
    if (j->norm_weight) scale[t] = vf_set1(rms_scale(source[t], j->k, j->eps));
  }
  for (uint32_t k = 0; k < j->k; k += LANES) {
    vf v[LANES];
    for (uint32_t t = 0; t < rows; t++) {
      v[t] = vf_load(source[t] + k);
      if (j->norm_weight) v[t] = vf_mul(vf_mul(v[t], scale[t]), vf_load(j->norm_weight + k));
    }
    for (uint32_t t = rows; t < LANES; t++) v[t] = vf_zero();
    vf_transpose(v);
    /* Whole vectors are stored: lanes beyond `rows` are overwritten by the next store. */
    if (j->dot)
      for (uint32_t i = 0; i < LANES; i += 2) vf_store_bf16_pairs((uint32_t *)panel + (k + i) / 2 * rows, v[i], v[i + 1]);
    else
      for (uint32_t i = 0; i < LANES; i++) vf_store(panel + (size_t)(k + i) * rows, v[i]);
  }
}

/* One row in the fp32 class: the panel is the row itself, so there is nothing to transpose. */
static const float *pack_row(const projection *j, uint32_t row, float *panel) {
  const float *x = j->x + row_at(j->rows, row) * j->x_stride;
  if (!j->norm_weight) return x;
  vf scale = vf_set1(rms_scale(x, j->k, j->eps));
  for (uint32_t k = 0; k < j->k; k += LANES)
    vf_store(panel + k, vf_mul(vf_mul(vf_load(x + k), scale), vf_load(j->norm_weight + k)));
  return panel;
}

void pack_tiles(const projection *j, uint32_t tile0, uint32_t tile1, float *memory, tile_t *out) {
  for (uint32_t tile = tile0; tile < tile1; tile++, out++) {
    uint32_t first = tile_start(j, tile), rows = tile_start(j, tile + 1) - first;
    *out = (tile_t){memory, first, rows};
    if (rows == 1 && !j->dot) out->panel = pack_row(j, first, memory);
    else pack_tile(j, first, rows, memory);
    memory += (size_t)rows * j->k;
  }
}
