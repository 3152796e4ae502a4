/* Per-head work that QKV, ROPE, KV_APPEND and ATTENTION share. */
#ifndef PLOW_HEADS_H
#define PLOW_HEADS_H
#include "op.h"

/* h[head_dim] <- h / rms(h) * weight. x and h may be the same. */
INLINE void head_norm(const float *x, const float *weight, uint32_t head_dim, float eps, float *h) {
  vf scale = vf_set1(rms_scale(x, head_dim, eps));
  for (uint32_t i = 0; i < head_dim; i += LANES)
    store_column(h, vf_mul(vf_mul(load_column(x, i, head_dim), scale), load_column(weight, i, head_dim)), i, head_dim);
}

/* Rotate pairs (i, i + rotary_dim/2); features from rotary_dim on are copied. table: cos[rotary_dim/2] then sin. */
INLINE void head_rope(const float *x, const float *table, uint32_t rotary_dim, uint32_t head_dim, float *h) {
  uint32_t half = rotary_dim / 2;
  for (uint32_t i = 0; i < half; i += LANES) {
    vf a = load_column(x, i, half), b = load_column(x + half, i, half);
    vf cosine = load_column(table, i, half), sine = load_column(table + half, i, half);
    store_column(h, vf_sub(vf_mul(a, cosine), vf_mul(b, sine)), i, half);
    store_column(h + half, vf_add(vf_mul(b, cosine), vf_mul(a, sine)), i, half);
  }
  if (h != x && rotary_dim < head_dim) memcpy(h + rotary_dim, x + rotary_dim, (head_dim - rotary_dim) * sizeof(float));
}

/* KV region of a layer: f32 [block][k, v][num_kv_heads][16 * head_dim].
 * Keys lie transposed, [head_dim][16 positions]; values [16 positions][head_dim]. */
typedef struct {
  float *region;
  const int32_t *page_table;
  uint32_t blocks_per_seq, num_kv_heads, head_dim;
} kv_cache;

INLINE kv_cache kv_cache_of(float *region, const plow_step *s, uint32_t num_kv_heads, uint32_t head_dim) {
  return (kv_cache){region, s->page_table, s->blocks_per_seq, num_kv_heads, head_dim};
}

/* Keys of a head in the block that holds `position` of a slot; the values are values_after(kv) floats further on. */
INLINE float *kv_keys(const kv_cache *kv, uint32_t slot, uint32_t position, uint32_t head) {
  size_t block = (size_t)kv->page_table[(size_t)slot * kv->blocks_per_seq + position / KV_BLOCK];
  return kv->region + (block * 2 * kv->num_kv_heads + head) * KV_BLOCK * kv->head_dim;
}
INLINE size_t values_after(const kv_cache *kv) { return (size_t)kv->num_kv_heads * KV_BLOCK * kv->head_dim; }

/* Keys of `rows` rows: row i goes to positions[i] of slots[i] and lies at k + i * stride. Feature by feature, so that
 * rows in one block, which share every line of it, write each line once and not in turn with another worker. */
INLINE void kv_store_keys(const kv_cache *kv, const uint32_t *slots, const uint32_t *positions, uint32_t rows,
                          uint32_t head, const float *k, size_t stride) {
  float *column[TILE_ROWS];
  for (uint32_t i = 0; i < rows; i++) column[i] = kv_keys(kv, slots[i], positions[i], head) + positions[i] % KV_BLOCK;
  for (uint32_t d = 0; d < kv->head_dim; d++)
    for (uint32_t i = 0; i < rows; i++) column[i][(size_t)d * KV_BLOCK] = k[i * stride + d];
}
INLINE void kv_store_value(const kv_cache *kv, uint32_t slot, uint32_t position, uint32_t head, const float *v) {
  float *row = kv_keys(kv, slot, position, head) + values_after(kv) + (size_t)(position % KV_BLOCK) * kv->head_dim;
  memcpy(row, v, kv->head_dim * sizeof(float));
}
#endif
