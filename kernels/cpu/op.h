/* What every operator kernel is given: a packet, the arena, the step's data and private scratch memory. */
#ifndef PLOW_OP_H
#define PLOW_OP_H
#include "simd.h"
#include "vm.h"

typedef struct {
  uint8_t *arena;
  uint8_t *scratch;      /* private to the worker, 64-byte aligned */
  const plow_step *step;
  uint32_t step_index;   /* of n_steps */
} plow_ctx;

typedef void plow_op(const plow_packet *p, const plow_ctx *c);
plow_op op_embed, op_norm, op_linear, op_qkv, op_rope, op_kv_append, op_attention, op_elementwise, op_select, op_sample;

/* Scratch bytes of the operators that need some. */
size_t linear_scratch(const plow_packet *p);
size_t qkv_scratch(const plow_packet *p);
size_t attention_scratch(const plow_packet *p);
size_t sample_scratch(const plow_packet *p);

/* The row loop of a packet: rows first, first + step, ... (count of them). Every opcode has it in dims 0..2. */
typedef struct { uint32_t first, step, count; } plow_rows;

INLINE plow_rows rows_of(const plow_packet *p, const plow_ctx *c) {
  uint32_t first = p->dims[0], end = p->dims[1], step = p->dims[2];
  uint32_t live = p->domain == DOMAIN_SAMPLES ? c->step->n_samples : c->step->n_rows;
  if (end > live) end = live;
  return (plow_rows){first, step, first < end ? (end - first + step - 1) / step : 0};
}

INLINE size_t row_at(plow_rows rows, uint32_t i) { return rows.first + (size_t)i * rows.step; }

/* An operand's address, or NULL when the packet has none. */
INLINE void *operand(const plow_packet *p, const plow_ctx *c, int index) {
  return p->operands[index] == NO_OPERAND ? NULL : c->arena + (size_t)p->operands[index] * ALIGN;
}

/* The operand if the flag that goes with it is set, else NULL. */
INLINE void *operand_if(const plow_packet *p, const plow_ctx *c, int flag, int index) {
  return p->flags & flag ? operand(p, c, index) : NULL;
}

INLINE size_t round_up(size_t n, size_t to) { return (n + to - 1) / to * to; }
INLINE uint32_t min_u32(uint32_t a, uint32_t b) { return a < b ? a : b; }
INLINE uint32_t max_u32(uint32_t a, uint32_t b) { return a > b ? a : b; }

/* 1 / sqrt(mean of x^2 + eps) in one fixed order: four partial sums over vectors 0, 4, 8 .. | 1, 5, 9 .. | ... */
INLINE float rms_scale(const float *x, uint32_t n, float eps) {
  vf sum[4] = {vf_zero(), vf_zero(), vf_zero(), vf_zero()};
  uint32_t k = 0;
  for (; k + 4 * LANES <= n; k += 4 * LANES)
    UNROLL for (int j = 0; j < 4; j++) {
      vf v = vf_load(x + k + j * LANES);
      sum[j] = vf_fma(v, v, sum[j]);
    }
  for (int j = 0; k < n; k += LANES, j++) {
    vf v = vf_load_n(x + k, (int)min_u32(n - k, LANES));
    sum[j] = vf_fma(v, v, sum[j]);
  }
  float total = vf_sum(vf_add(vf_add(sum[0], sum[1]), vf_add(sum[2], sum[3])));
  return 1.0f / sqrtf(total / (float)n + eps);
}

/* Load and store of the vector at column k of n: whole where it fits, else the lanes that exist. */
INLINE vf load_column(const float *x, uint32_t k, uint32_t n) {
  return k + LANES <= n ? vf_load(x + k) : vf_load_n(x + k, (int)(n - k));
}
INLINE void store_column(float *y, vf v, uint32_t k, uint32_t n) {
  if (k + LANES <= n) vf_store(y + k, v);
  else vf_store_n(y + k, v, (int)(n - k));
}
#endif
