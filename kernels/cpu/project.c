#include "project.h"

uint32_t block_tiles(uint32_t k) {
  size_t tiles = PANEL_BYTES / (TILE_ROWS * (size_t)k * sizeof(float));
  return tiles < 1 ? 1 : tiles > MAX_BLOCK_TILES ? MAX_BLOCK_TILES : (uint32_t)tiles;
}

/* One vector of slack: the last transposed row of a panel is stored whole. */
static size_t panel_scratch(uint32_t k) {
  return round_up(block_tiles(k) * TILE_ROWS * (size_t)k * sizeof(float) + LANES * sizeof(float), ALIGN);
}

static bool may_widen(uint32_t k) { return widened_bytes(k) <= MAX_WIDENED_BYTES; }

size_t block_scratch(uint32_t k) { return panel_scratch(k) + (may_widen(k) ? widened_bytes(k) : 0); }

projection projection_of(const float *x, uint32_t x_stride, const float *norm_weight, float eps, bool dot,
                         plow_rows rows, uint32_t k) {
  uint32_t tiles = (rows.count + TILE_ROWS - 1) / TILE_ROWS, most = block_tiles(k);
  uint32_t blocks = (tiles + most - 1) / most;
  return (projection){x, norm_weight, x_stride, k, eps, dot, rows, tiles, blocks ? (tiles + blocks - 1) / blocks : 0};
}

/* rows: a constant of the instantiation, so that the transposed vectors stay in registers. */
INLINE void pack_rows(const projection *j, uint32_t first, const uint32_t rows, float *panel) {
  const float *source[TILE_ROWS];
  vf scale[TILE_ROWS];
  for (uint32_t t = 0; t < rows; t++) {
    source[t] = j->x + row_at(j->rows, first + t) * j->x_stride;
    scale[t] = vf_set1(j->norm_weight ? rms_scale(source[t], j->k, j->eps) : 1.0f);
  }
  for (uint32_t k = 0; k < j->k; k += LANES) {
    vf v[LANES];
    UNROLL for (uint32_t t = 0; t < rows; t++) v[t] = vf_load(source[t] + k);
    if (j->norm_weight) {
      vf weight = vf_load(j->norm_weight + k);
      UNROLL for (uint32_t t = 0; t < rows; t++) v[t] = vf_mul(vf_mul(v[t], scale[t]), weight);
    }
    UNROLL for (uint32_t t = rows; t < LANES; t++) v[t] = vf_zero();
    vf_transpose(v);
    /* Whole vectors are stored: lanes beyond `rows` are overwritten by the next store. */
    if (j->dot) {
      uint32_t *pairs = (uint32_t *)panel + (size_t)k / 2 * rows;
      UNROLL for (uint32_t i = 0; i < LANES; i += 2) vf_store_bf16_pairs(pairs + i / 2 * rows, v[i], v[i + 1]);
    } else {
      UNROLL for (uint32_t i = 0; i < LANES; i++) vf_store(panel + (size_t)(k + i) * rows, v[i]);
    }
  }
}

#define PACK_CASE(ROWS) \
  case ROWS: pack_rows(j, first, ROWS, panel); break;
static void pack_tile(const projection *j, uint32_t first, uint32_t rows, float *panel) {
  switch (rows) { EACH_ROWS(PACK_CASE) }
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

void begin_block(block_t *b, const projection *j, const uint8_t *weight, uint32_t first, uint8_t *memory) {
  float *panel = (float *)memory;
  b->j = j, b->weight = weight, b->tiles = min_u32(j->tiles_a_block, j->tiles - first);
  bool widen = b->tiles >= WIDEN_TILES && !j->dot && may_widen(j->k);
  b->widened = widen ? (float *)(memory + panel_scratch(j->k)) : NULL;
  for (uint32_t i = 0; i < b->tiles; i++) {
    uint32_t row = tile_start(j, first + i), rows = tile_start(j, first + i + 1) - row;
    b->tile[i] = (tile_t){panel, row, rows};
    if (rows == 1 && !j->dot) b->tile[i].panel = pack_row(j, row, panel);
    else pack_tile(j, row, rows, panel);
    panel += (size_t)rows * j->k;
  }
}

void begin_unit(block_t *b, uint32_t unit) {
  b->unit = unit;
  if (b->widened) unit_widen(b->weight + unit * unit_bytes(b->j->k), b->j->k, b->widened);
}
