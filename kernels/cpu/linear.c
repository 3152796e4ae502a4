/* LINEAR: projections, plain and gated. */
#include "project.h"

/* Where the outputs of a packet go. */
typedef struct {
  float *y;
  const float *bias, *residual;
  size_t y_stride, residual_stride;
  uint32_t n;
} output;

/* y[row, column..] = v (+ bias) (+ residual), columns beyond n are left alone. */
INLINE void put(const output *o, size_t row, uint32_t column, vf v) {
  if (column >= o->n) return;
  if (o->bias) v = vf_add(v, load_column(o->bias, column, o->n));
  if (o->residual) v = vf_add(v, load_column(o->residual + row * o->residual_stride, column, o->n));
  store_column(o->y + row * o->y_stride, v, column, o->n);
}

/* sums: [tile rows][UNIT_COLUMNS] of one unit. */
static void finish(const output *o, uint16_t epilogue, const projection *j, const tile_t *tile, uint32_t unit,
                   const float *sums) {
  for (uint32_t t = 0; t < tile->rows; t++, sums += UNIT_COLUMNS) {
    size_t row = row_at(j->rows, tile->first + t);
    vf a = vf_load(sums), b = vf_load(sums + LANES);
    if (epilogue == EPI_GATED_SILU) put(o, row, unit * LANES, vf_mul(vf_silu(a), b));
    else if (epilogue == EPI_GATED_GELU_TANH) put(o, row, unit * LANES, vf_mul(vf_gelu_tanh(a), b));
    else put(o, row, unit * UNIT_COLUMNS, a), put(o, row, unit * UNIT_COLUMNS + LANES, b);
  }
}

size_t projection_scratch(const plow_packet *p) {
  if (p->opcode == OP_LINEAR) return panel_scratch(p->dims[LINEAR_D_K]);
  size_t heads = (size_t)TILE_ROWS * round_up(2 * (size_t)p->dims[QKV_D_HEAD_DIM] + 2 * UNIT_COLUMNS, LANES);
  return panel_scratch(p->dims[QKV_D_K]) + heads * sizeof(float);
}

void op_linear(const plow_packet *p, const plow_ctx *c) {
  const uint32_t *d = p->dims;
  uint32_t k = d[LINEAR_D_K];
  const uint8_t *weight = operand(p, c, LINEAR_WEIGHT);
  output o = {operand(p, c, LINEAR_Y), operand(p, c, LINEAR_BIAS), p->flags & FLAG_RESIDUAL ? operand(p, c, LINEAR_RESIDUAL) : NULL,
              d[LINEAR_D_Y_STRIDE], d[LINEAR_D_RESIDUAL_STRIDE], d[LINEAR_D_N]};
  projection j = projection_of(operand(p, c, LINEAR_X), d[LINEAR_D_X_STRIDE],
                               p->flags & FLAG_NORM ? operand(p, c, LINEAR_NORM_WEIGHT) : NULL, p->imms[LINEAR_I_EPS],
                               p->flags & FLAG_BF16_DOT, rows_of(p, c), k);
  _Alignas(64) float sums[TILE_ROWS * UNIT_COLUMNS];
  tile_t tiles[MAX_BLOCK_TILES];
  for (uint32_t tile = 0; tile < j.tiles; tile += j.tiles_a_block) {
    uint32_t n = min_u32(j.tiles_a_block, j.tiles - tile);
    pack_tiles(&j, tile, tile + n, (float *)c->scratch, tiles);
    for (uint32_t unit = d[LINEAR_D_UNIT0]; unit < d[LINEAR_D_UNIT1]; unit++)
      for (uint32_t i = 0; i < n; i++) {
        unit_sums(weight + unit * unit_bytes(k), tiles[i].panel, tiles[i].rows, k, j.dot, sums, UNIT_COLUMNS);
        finish(&o, p->epilogue, &j, &tiles[i], unit, sums);
      }
  }
}
