/* QKV: the grouped projection whose epilogue is per head (norm, rope, store to q or to the KV blocks). */
#include "heads.h"
#include "project.h"

typedef struct {
  const plow_packet *p;
  const plow_step *step;
  const float *q_norm, *k_norm, *rope; /* NULL = not wanted */
  float *q;
  kv_cache kv;
  uint32_t num_heads, num_kv_heads, head_dim, rotary_dim, q_stride;
} qkv_t;

/* h: the head's sums of one row; overwritten. Heads are numbered q heads, k heads, v heads. */
static void finish_head(const qkv_t *a, size_t row, uint32_t head, float *h) {
  uint32_t position = (uint32_t)a->step->positions[row], slot = (uint32_t)a->step->slots[row];
  uint32_t k_head = head - a->num_heads, v_head = k_head - a->num_kv_heads;
  bool is_q = head < a->num_heads;
  if (!is_q && k_head >= a->num_kv_heads) {
    kv_store_value(&a->kv, slot, position, v_head, h);
    return;
  }
  if (a->q_norm) head_norm(h, is_q ? a->q_norm : a->k_norm, a->head_dim, a->p->imms[QKV_I_QK_EPS], h);
  if (a->rope) head_rope(h, a->rope + (size_t)position * a->rotary_dim, a->rotary_dim, a->head_dim, h);
  if (is_q) memcpy(a->q + row * a->q_stride + (size_t)head * a->head_dim, h, a->head_dim * sizeof(float));
  else kv_store_key(&a->kv, slot, position, k_head, h);
}

/* All rows of a tile for heads head..end, whose weight rows lie in units unit0..unit1. sums: [TILE_ROWS][stride]. */
static void project_heads(const qkv_t *a, const projection *j, const tile_t *tile, const uint8_t *weight, uint32_t head,
                          uint32_t end, float *sums, size_t stride) {
  uint32_t unit0 = head * a->head_dim / UNIT_COLUMNS, unit1 = (end * a->head_dim + UNIT_COLUMNS - 1) / UNIT_COLUMNS;
  uint32_t pair = tile->rows <= PAIR_ROWS ? 2 : 1;
  for (uint32_t unit = unit0, units; unit < unit1; unit += units) {
    units = min_u32(pair, unit1 - unit);
    unit_sums(weight + unit * unit_bytes(j->k), (int)units, tile->panel, tile->rows, j->k, j->dot,
              sums + (size_t)(unit - unit0) * UNIT_COLUMNS, stride);
  }
  for (uint32_t t = 0; t < tile->rows; t++)
    for (uint32_t h = head; h < end; h++)
      finish_head(a, row_at(j->rows, tile->first + t), h, sums + t * stride + h * a->head_dim - unit0 * UNIT_COLUMNS);
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
      p, c->step, qk_norm ? operand(p, c, QKV_Q_NORM) : NULL, qk_norm ? operand(p, c, QKV_K_NORM) : NULL,
      p->flags & FLAG_ROPE ? operand(p, c, QKV_ROPE) : NULL, operand(p, c, QKV_Y),
      kv_cache_of(operand(p, c, QKV_KV), c->step, d[QKV_D_NUM_KV_HEADS], head_dim),
      d[QKV_D_NUM_HEADS], d[QKV_D_NUM_KV_HEADS], head_dim, d[QKV_D_ROTARY_DIM], d[QKV_D_Y_STRIDE]};
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
