/* Operators that work row by row: EMBED, NORM, ROPE, KV_APPEND, ELEMENTWISE, SELECT. */
#include "heads.h"
#include "unit.h"

/* y[t] = table[token] * scale. In unit layout a row is one 4-byte word in every 128-byte step of its unit. */
void op_embed(const plow_packet *p, const plow_ctx *c) {
  const uint32_t *d = p->dims;
  uint32_t width = d[EMBED_D_WIDTH];
  plow_rows rows = rows_of(p, c);
  for (uint32_t i = 0; i < rows.count; i++) {
    size_t row = row_at(rows, i);
    uint32_t token = (uint32_t)c->step->tokens[row], lane = token % UNIT_ROWS;
    const uint8_t *unit = (const uint8_t *)operand(p, c, EMBED_TABLE) + (size_t)(token / UNIT_ROWS) * unit_bytes(width);
    const uint8_t *word = unit + lane * 4;
    float *y = (float *)operand(p, c, EMBED_Y) + row * d[EMBED_D_Y_STRIDE];
    for (uint32_t k = 0; k < width; k += 2, word += 4 * UNIT_ROWS) {
      uint32_t pair, even, odd;
      memcpy(&pair, word, sizeof pair);
      even = pair << 16, odd = pair & 0xffff0000u;
      memcpy(y + k, &even, sizeof even), memcpy(y + k + 1, &odd, sizeof odd);
      y[k] *= p->imms[EMBED_I_SCALE], y[k + 1] *= p->imms[EMBED_I_SCALE];
    }
  }
}

void op_norm(const plow_packet *p, const plow_ctx *c) {
  const uint32_t *d = p->dims;
  uint32_t width = d[NORM_D_WIDTH], group = d[NORM_D_GROUP];
  const float *weight = operand(p, c, NORM_WEIGHT), *residual = operand_if(p, c, FLAG_RESIDUAL, NORM_RESIDUAL);
  plow_rows rows = rows_of(p, c);
  for (uint32_t i = 0; i < rows.count; i++) {
    size_t row = row_at(rows, i);
    const float *x = (const float *)operand(p, c, NORM_X) + row * d[NORM_D_X_STRIDE];
    float *y = (float *)operand(p, c, NORM_Y) + row * d[NORM_D_Y_STRIDE];
    for (uint32_t g = 0; g < width; g += group) head_norm(x + g, weight, group, p->imms[NORM_I_EPS], y + g);
    if (!residual) continue;
    const float *r = residual + row * d[NORM_D_RESIDUAL_STRIDE];
    for (uint32_t k = 0; k < width; k += LANES)
      store_column(y, vf_add(load_column(y, k, width), load_column(r, k, width)), k, width);
  }
}

void op_rope(const plow_packet *p, const plow_ctx *c) {
  const uint32_t *d = p->dims;
  uint32_t head_dim = d[ROPE_D_HEAD_DIM], rotary_dim = d[ROPE_D_ROTARY_DIM];
  const float *norm = operand_if(p, c, FLAG_NORM, ROPE_NORM_WEIGHT);
  plow_rows rows = rows_of(p, c);
  for (uint32_t i = 0; i < rows.count; i++) {
    size_t row = row_at(rows, i);
    const float *x = (const float *)operand(p, c, ROPE_X) + row * d[ROPE_D_X_STRIDE];
    const float *table = (const float *)operand(p, c, ROPE_ROPE) + (size_t)c->step->positions[row] * rotary_dim;
    float *y = (float *)operand(p, c, ROPE_Y) + row * d[ROPE_D_Y_STRIDE];
    for (uint32_t h = 0; h < d[ROPE_D_NUM_HEADS]; h++, x += head_dim, y += head_dim) {
      if (norm) head_norm(x, norm, head_dim, p->imms[ROPE_I_EPS], y);
      head_rope(norm ? y : x, table, rotary_dim, head_dim, y);
    }
  }
}

void op_kv_append(const plow_packet *p, const plow_ctx *c) {
  const uint32_t *d = p->dims;
  uint32_t heads = d[KV_APPEND_D_NUM_KV_HEADS], head_dim = d[KV_APPEND_D_HEAD_DIM];
  kv_cache kv = kv_cache_of(operand(p, c, KV_APPEND_KV), c->step, heads, head_dim);
  plow_rows rows = rows_of(p, c);
  for (uint32_t i = 0; i < rows.count; i++) {
    size_t row = row_at(rows, i);
    uint32_t slot = (uint32_t)c->step->slots[row], position = (uint32_t)c->step->positions[row];
    const float *k = (const float *)operand(p, c, KV_APPEND_K) + row * d[KV_APPEND_D_K_STRIDE];
    const float *v = (const float *)operand(p, c, KV_APPEND_V) + row * d[KV_APPEND_D_V_STRIDE];
    for (uint32_t h = 0; h < heads; h++, k += head_dim, v += head_dim) {
      kv_store_keys(&kv, &slot, &position, 1, h, k, 0);
      kv_store_value(&kv, slot, position, h, v);
    }
  }
}

INLINE vf combine(uint16_t function, vf a, vf b, vf factor) {
  switch (function) {
    case EPI_ADD: return vf_add(a, b);
    case EPI_MUL: return vf_mul(a, b);
    case EPI_SCALE: return vf_mul(a, factor);
    case EPI_SILU: return vf_silu(a);
    case EPI_GELU_TANH: return vf_gelu_tanh(a);
    case EPI_SOFTCAP: return vf_softcap(a, factor);
    case EPI_ACT_MUL_SILU: return vf_mul(vf_silu(a), b);
    case EPI_ACT_MUL_GELU_TANH: return vf_mul(vf_gelu_tanh(a), b);
    default: return a;
  }
}

void op_elementwise(const plow_packet *p, const plow_ctx *c) {
  const uint32_t *d = p->dims;
  uint32_t width = d[ELEMENTWISE_D_WIDTH];
  const float *a0 = operand(p, c, ELEMENTWISE_A), *b0 = operand(p, c, ELEMENTWISE_B);
  vf factor = vf_set1(p->imms[ELEMENTWISE_I_FACTOR]);
  plow_rows rows = rows_of(p, c);
  for (uint32_t i = 0; i < rows.count; i++) {
    size_t row = row_at(rows, i);
    const float *a = a0 + row * d[ELEMENTWISE_D_A_STRIDE], *b = b0 ? b0 + row * d[ELEMENTWISE_D_B_STRIDE] : a;
    float *y = (float *)operand(p, c, ELEMENTWISE_Y) + row * d[ELEMENTWISE_D_Y_STRIDE];
    for (uint32_t k = 0; k < width; k += LANES)
      store_column(y, combine(p->epilogue, load_column(a, k, width), load_column(b, k, width), factor), k, width);
  }
}

void op_select(const plow_packet *p, const plow_ctx *c) {
  const uint32_t *d = p->dims;
  plow_rows rows = rows_of(p, c);
  for (uint32_t i = 0; i < rows.count; i++) {
    size_t row = row_at(rows, i);
    const float *x = (const float *)operand(p, c, SELECT_X) + (size_t)c->step->sample_rows[row] * d[SELECT_D_X_STRIDE];
    memcpy((float *)operand(p, c, SELECT_Y) + row * d[SELECT_D_Y_STRIDE], x, d[SELECT_D_WIDTH] * sizeof(float));
  }
}
