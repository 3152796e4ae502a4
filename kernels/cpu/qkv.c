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

/* One head of all rows of a tile. h: [rows][stride] sums, overwritten. Heads are q heads, then k heads, then v heads. */
static void finish_head(const qkv_t *a, const projection *j, const tile_t *tile, const places *at, uint32_t head,
                        float *h, size_t stride) {
  uint32_t k_head = head - a->num_heads, v_head = k_head - a->num_kv_heads, head_dim = a->head_dim;
  bool is_q = head < a->num_heads, is_k = !is_q && k_head < a->num_kv_heads;
  for (uint32_t t = 0; t < tile->rows; t++) {
    float *x = h + t * stride;
    if (a->q_norm && (is_q || is_k)) head_norm(x, is_q ? a->q_norm : a->k_norm, head_dim, a->qk_eps, x);
    if (a->rope && (is_q || is_k))
      head_rope(x, a->rope + (size_t)at->positions[t] * a->rotary_dim, a->rotary_dim, head_dim, x);
    if (is_q)
      memcpy(a->q + row_at(j->rows, tile->first + t) * a->q_stride + (size_t)head * head_dim, x, head_dim * sizeof(float));
    else if (!is_k) kv_store_value(&a->kv, at->slots[t], at->positions[t], v_head, x);
  }
  if (is_k) kv_store_keys(&a->kv, at->slots, at->positions, tile->rows, k_head, h, stride);
}

/* All rows of a tile for heads head..end, whose weight rows lie in units unit0..unit1. sums: [TILE_ROWS][stride]. */
static void project_heads(const qkv_t *a, const projection *j, const tile_t *tile, const uint8_t *weight, uint32_t head,
                          uint32_t end, float *sums, size_t stride) {
  uint32_t unit0 = head * a->head_dim / UNIT_COLUMNS, unit1 = (end * a->head_dim + UNIT_COLUMNS - 1) / UNIT_COLUMNS;
  for (uint32_t unit = unit0; unit < unit1; unit++)
    unit_sums(weight + unit * unit_bytes(j->k), tile->panel, tile->rows, j->k, j->dot,
              sums + (size_t)(unit - unit0) * UNIT_COLUMNS, stride);
  places at;
  for (uint32_t t = 0; t < tile->rows; t++) {
    size_t row = row_at(j->rows, tile->first + t);
    at.positions[t] = (uint32_t)a->step->positions[row], at.slots[t] = (uint32_t)a->step->slots[row];
  }
  for (uint32_t h = head; h < end; h++)
    finish_head(a, j, tile, &at, h, sums + h * a->head_dim - unit0 * UNIT_COLUMNS, stride);
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
  bool qk_norm = p->flags & FLAG_QK_NORM;
  qkv_t a = {
      c->step, qk_norm ? operand(p, c, QKV_Q_NORM) : NULL, qk_norm ? operand(p, c, QKV_K_NORM) : NULL,
      p->flags & FLAG_ROPE ? operand(p, c, QKV_ROPE) : NULL, operand(p, c, QKV_Y),
      kv_cache_of(operand(p, c, QKV_KV), c->step, d[QKV_D_NUM_KV_HEADS], head_dim),
      d[QKV_D_NUM_HEADS], d[QKV_D_NUM_KV_HEADS], head_dim, d[QKV_D_ROTARY_DIM], d[QKV_D_Y_STRIDE],
      p->imms[QKV_I_QK_EPS]};
  projection j = projection_of(operand(p, c, QKV_X), d[QKV_D_X_STRIDE], p->flags & FLAG_NORM ? operand(p, c, QKV_NORM_WEIGHT) : NULL,
                               p->imms[QKV_I_EPS], p->flags & FLAG_BF16_DOT, rows_of(p, c), k);
  float *sums = (float *)(c->scratch + panel_scratch(k));
  size_t stride = round_up(2 * (size_t)head_dim + 2 * UNIT_COLUMNS, LANES);
  tile_t tiles[MAX_BLOCK_TILES];
  for (uint32_t tile = 0; tile < j.tiles; tile += j.tiles_a_block) {
    uint32_t n = min_u32(j.tiles_a_block, j.tiles - tile);
    pack_tiles(&j, tile, tile + n, (float *)c->scratch, tiles);
    for (uint32_t head = d[QKV_D_HEAD0], end; head < head1; head = end) {
      end = group_end(head, head1, head_dim);
      for (uint32_t i = 0; i < n; i++)
        project_heads(&a, &j, &tiles[i], operand(p, c, QKV_WEIGHT), head, end, sums, stride);
    }
  }
}
