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

size_t linear_scratch(const plow_packet *p) { return block_scratch(p->dims[LINEAR_D_K]); }

void op_linear(const plow_packet *p, const plow_ctx *c) {
  const uint32_t *d = p->dims;
  output o = {operand(p, c, LINEAR_Y), operand(p, c, LINEAR_BIAS), operand_if(p, c, FLAG_RESIDUAL, LINEAR_RESIDUAL),
              d[LINEAR_D_Y_STRIDE], d[LINEAR_D_RESIDUAL_STRIDE], d[LINEAR_D_N]};
  projection j = projection_of(operand(p, c, LINEAR_X), d[LINEAR_D_X_STRIDE],
                               operand_if(p, c, FLAG_NORM, LINEAR_NORM_WEIGHT), p->imms[LINEAR_I_EPS],
                               p->flags & FLAG_BF16_DOT, rows_of(p, c), d[LINEAR_D_K]);
  _Alignas(64) float sums[TILE_ROWS * UNIT_COLUMNS];
  block_t b;
  for (uint32_t first = 0; first < j.tiles; first += b.tiles) {
    begin_block(&b, &j, operand(p, c, LINEAR_WEIGHT), first, c->scratch);
    for (uint32_t unit = d[LINEAR_D_UNIT0]; unit < d[LINEAR_D_UNIT1]; unit++) {
      begin_unit(&b, unit);
      for (uint32_t i = 0; i < b.tiles; i++) {
        tile_sums(&b, i, sums, UNIT_COLUMNS);
        finish(&o, p->epilogue, &j, &b.tile[i], unit, sums);
      }
    }
  }
}
