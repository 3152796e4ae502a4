/* QKV: the grouped projection whose epilogue is per head (norm, rope, store to q or to the KV blocks). */
#include "heads.h"
#include "project.h"

typedef struct {
  const plow_step *step;
  const float *q_norm, *k_norm, *rope; /* NULL = not wanted */
  float *q;
  kv_cache kv;
  uint32_t num_heads, num_kv_heads, head_dim, rotary_dim, q_stride;
  float qk_eps;
} qkv_t;

typedef struct { uint32_t positions[TILE_ROWS], slots[TILE_ROWS]; } places; /* of a tile's rows */

static places places_of(const plow_step *step, const projection *j, const tile_t *tile) {
  places at;
  for (uint32_t t = 0; t < tile->rows; t++) {
    size_t row = row_at(j->rows, tile->first + t);
    at.positions[t] = (uint32_t)step->positions[row], at.slots[t] = (uint32_t)step->slots[row];
  }
  return at;
}

/* One head of all rows of a tile. h: [rows][stride] sums, overwritten. Heads: q heads, then k heads, then v heads. */
static void finish_head(const qkv_t *a, const projection *j, const tile_t *tile, const places *at, uint32_t head,
                        float *h, size_t stride) {
  uint32_t k_head = head - a->num_heads, v_head = k_head - a->num_kv_heads, head_dim = a->head_dim;
  bool is_q = head < a->num_heads, is_k = !is_q && k_head < a->num_kv_heads;
  for (uint32_t t = 0; t < tile->rows; t++) {
    float *x = h + t * stride;
    if (a->q_norm && (is_q || is_k)) head_norm(x, is_q ? a->q_norm : a->k_norm, head_dim, a->qk_eps, x);
    if (a->rope && (is_q || is_k))
      head_rope(x, a->rope + (size_t)at->positions[t] * a->rotary_dim, a->rotary_dim, head_dim, x);
    float *q = a->q + row_at(j->rows, tile->first + t) * a->q_stride + (size_t)head * head_dim;
    if (is_q) memcpy(q, x, head_dim * sizeof(float));
    else if (!is_k) kv_store_value(&a->kv, at->slots[t], at->positions[t], v_head, x);
  }
  if (is_k) kv_store_keys(&a->kv, at->slots, at->positions, tile->rows, k_head, h, stride);
}

/* Floats of a row of sums: two heads, and the parts of units that stick out. */
static size_t sums_stride(uint32_t head_dim) { return round_up(2 * (size_t)head_dim + 2 * UNIT_COLUMNS, LANES); }

size_t qkv_scratch(const plow_packet *p) {
  size_t rows = (size_t)block_tiles(p->dims[QKV_D_K]) * TILE_ROWS;
  return block_scratch(p->dims[QKV_D_K]) + rows * sums_stride(p->dims[QKV_D_HEAD_DIM]) * sizeof(float);
}

/* All tiles of a block for heads head..end, whose weight rows lie in units unit0..unit1.
 * sums: [tile][TILE_ROWS][stride]; column 0 is the first row of unit0. */
static void project_heads(const qkv_t *a, block_t *b, uint32_t head, uint32_t end, float *sums) {
  uint32_t unit0 = head * a->head_dim / UNIT_COLUMNS, unit1 = (end * a->head_dim + UNIT_COLUMNS - 1) / UNIT_COLUMNS;
  size_t stride = sums_stride(a->head_dim), tile_floats = TILE_ROWS * stride;
  for (uint32_t unit = unit0; unit < unit1; unit++) {
    begin_unit(b, unit);
    for (uint32_t i = 0; i < b->tiles; i++)
      tile_sums(b, i, sums + i * tile_floats + (size_t)(unit - unit0) * UNIT_COLUMNS, stride);
  }
  for (uint32_t i = 0; i < b->tiles; i++) {
    places at = places_of(a->step, b->j, &b->tile[i]);
    for (uint32_t h = head; h < end; h++) {
      uint32_t column = h * a->head_dim - unit0 * UNIT_COLUMNS;
      finish_head(a, b->j, &b->tile[i], &at, h, sums + i * tile_floats + column, stride);
    }
  }
}

/* Heads are taken in the smallest groups that end at a unit border, so no unit is computed twice:
 * one head when head_dim is a multiple of 32, else (head_dim an odd multiple of 16) two. */
static uint32_t group_end(uint32_t head, uint32_t head1, uint32_t head_dim) {
  uint32_t end = head + 1;
  return end < head1 && end * head_dim % UNIT_COLUMNS ? end + 1 : end;
}

void op_qkv(const plow_packet *p, const plow_ctx *c) {
  const uint32_t *d = p->dims;
  uint32_t k = d[QKV_D_K], head1 = d[QKV_D_HEAD1], head_dim = d[QKV_D_HEAD_DIM];
  qkv_t a = {
      c->step, operand_if(p, c, FLAG_QK_NORM, QKV_Q_NORM), operand_if(p, c, FLAG_QK_NORM, QKV_K_NORM),
      operand_if(p, c, FLAG_ROPE, QKV_ROPE), operand(p, c, QKV_Y),
      kv_cache_of(operand(p, c, QKV_KV), c->step, d[QKV_D_NUM_KV_HEADS], head_dim),
      d[QKV_D_NUM_HEADS], d[QKV_D_NUM_KV_HEADS], head_dim, d[QKV_D_ROTARY_DIM], d[QKV_D_Y_STRIDE],
      p->imms[QKV_I_QK_EPS]};
  projection j = projection_of(operand(p, c, QKV_X), d[QKV_D_X_STRIDE], operand_if(p, c, FLAG_NORM, QKV_NORM_WEIGHT),
                               p->imms[QKV_I_EPS], p->flags & FLAG_BF16_DOT, rows_of(p, c), k);
  float *sums = (float *)(c->scratch + block_scratch(k));
  block_t b;
  for (uint32_t first = 0; first < j.tiles; first += b.tiles) {
    begin_block(&b, &j, operand(p, c, QKV_WEIGHT), first, c->scratch);
    for (uint32_t head = d[QKV_D_HEAD0], end; head < head1; head = end) {
      end = group_end(head, head1, head_dim);
      project_heads(&a, &b, head, end, sums);
    }
  }
}
