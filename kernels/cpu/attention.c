/* ATTENTION over paged KV blocks: tiles of query vectors that share a kv head, online softmax over chunks.
 *
 * A tile holds rows x heads query vectors: consecutive loop rows of one sequence times the q heads of one kv head. They
 * meet every KV block together. Per vector the arithmetic is fixed, whatever the tile: one FMA chain over head_dim a
 * score; chunks start at multiples of CHUNK; a chunk's exponentials are summed lane by lane in block order; one FMA
 * chain over positions for each output. Positions that a vector does not see carry the weight 0 and change nothing.
 *
 *   position   0 .......... c*CHUNK .......... | (c+1)*CHUNK ...
 *   blocks            |first|  ...  |last|       blocks of the chunk that some vector of the tile sees
 *   scores     [vectors][SCORE_STRIDE], column 0 = first position of block `first`
 */
#include "heads.h"

#define CHUNK 512                   /* positions between two rescalings; a multiple of KV_BLOCK */
#define CHUNK_BLOCKS (CHUNK / KV_BLOCK)
#define SCORE_STRIDE (CHUNK + 80)   /* room for block groups past the end; not a multiple of 4 KB, the L1 set period */
#define MAX_VECTORS (SCORE_VECTORS / 2)
#define MAX_GROUP_BLOCKS 4

typedef struct {
  const plow_packet *p;
  const plow_step *step;
  kv_cache kv;
  vf scale, cap;
  vf rate; /* log2(e) times what the scores still have to be multiplied by */
  bool capped;
  uint32_t window;
  /* scratch */
  float *queries; /* [head_dim][vectors] */
  float *scores;  /* [vectors][SCORE_STRIDE] */
  float *sums;    /* [vectors][head_dim] */
} attention_t;

/* The query vectors of a tile. Vector m sees positions from[m]..to[m]-1 of the slot. */
typedef struct {
  const float *q[MAX_VECTORS];
  float *y[MAX_VECTORS];
  uint32_t from[MAX_VECTORS], to[MAX_VECTORS];
  float largest[MAX_VECTORS], total[MAX_VECTORS];
  uint32_t vectors, slot, kv_head, first, end; /* first..end: union of what the vectors see */
} tile_t;

size_t attention_scratch(const plow_packet *p) {
  size_t head_dim = p->dims[ATTENTION_D_HEAD_DIM];
  return sizeof(float) * (2 * MAX_VECTORS * head_dim + LANES + MAX_VECTORS * SCORE_STRIDE);
}

/* ---- scores: q k^T ---- */

/* A group of blocks for one call of a score kernel, and what it fetches on the way: the next group's keys and this
 * group's values. Blocks lie anywhere, so the hardware's prefetchers do not find them. */
typedef struct {
  const float *keys[MAX_GROUP_BLOCKS];      /* [head_dim][16] each */
  const float *next_keys[MAX_GROUP_BLOCKS];
  const float *values[MAX_GROUP_BLOCKS];    /* [16][head_dim] each */
} block_group;

/* q: [head_dim][vectors]; scores of block b of the group at column 16 b. */
INLINE void scores_of(const block_group *g, const float *q, uint32_t head_dim, float *scores, const int vectors,
                      const int blocks) {
  vf acc[MAX_GROUP_BLOCKS][MAX_VECTORS];
  UNROLL for (int b = 0; b < blocks; b++) UNROLL for (int m = 0; m < vectors; m++) acc[b][m] = vf_zero();
  for (uint32_t i = 0; i < head_dim; i++, q += vectors) {
    vf key[MAX_GROUP_BLOCKS];
    size_t line = (size_t)i * KV_BLOCK;
    UNROLL for (int b = 0; b < blocks; b++) {
      key[b] = vf_load(g->keys[b] + line);
      __builtin_prefetch(g->next_keys[b] + line);
      __builtin_prefetch(g->values[b] + line, 0, 2);
    }
    UNROLL for (int m = 0; m < vectors; m++) {
      vf x = vf_set1(q[m]);
      UNROLL for (int b = 0; b < blocks; b++) acc[b][m] = vf_fma(key[b], x, acc[b][m]);
    }
  }
  UNROLL for (int b = 0; b < blocks; b++)
    UNROLL for (int m = 0; m < vectors; m++) vf_store(scores + m * SCORE_STRIDE + b * KV_BLOCK, acc[b][m]);
}

/* Blocks that a kernel for so many vectors takes at once: as many as there are accumulators. */
#define GROUP_BLOCKS(VECTORS) \
  (SCORE_VECTORS / (VECTORS) > MAX_GROUP_BLOCKS ? MAX_GROUP_BLOCKS : SCORE_VECTORS / (VECTORS))
typedef void score_kernel(const block_group *g, const float *q, uint32_t head_dim, float *scores);
#define SCORE_KERNEL(VECTORS)                                                                           \
  static void scores_##VECTORS(const block_group *g, const float *q, uint32_t head_dim, float *s) {     \
    scores_of(g, q, head_dim, s, VECTORS, GROUP_BLOCKS(VECTORS));                                       \
  }
#define NAME_SCORES(VECTORS) scores_##VECTORS,
#if SCORE_VECTORS == 24
#define EACH_VECTORS(F) F(1) F(2) F(3) F(4) F(5) F(6) F(7) F(8) F(9) F(10) F(11) F(12)
#elif SCORE_VECTORS == 6
#define EACH_VECTORS(F) F(1) F(2) F(3)
#elif SCORE_VECTORS == 4
#define EACH_VECTORS(F) F(1) F(2)
#endif
EACH_VECTORS(SCORE_KERNEL)
static score_kernel *const SCORE_KERNELS[MAX_VECTORS] = {EACH_VECTORS(NAME_SCORES)};

/* Raw scores of blocks first..last of the tile's slot. A short last group repeats its last block; the extra columns
 * lie beyond what is read. */
static void chunk_scores(const attention_t *a, const tile_t *t, uint32_t first, uint32_t last) {
  uint32_t blocks = GROUP_BLOCKS(t->vectors);
  for (uint32_t b = first; b <= last; b += blocks) {
    block_group g;
    for (uint32_t i = 0; i < blocks; i++) {
      g.keys[i] = kv_keys(&a->kv, t->slot, min_u32(b + i, last) * KV_BLOCK, t->kv_head);
      g.next_keys[i] = kv_keys(&a->kv, t->slot, min_u32(b + blocks + i, last) * KV_BLOCK, t->kv_head);
      g.values[i] = g.keys[i] + values_after(&a->kv);
    }
    SCORE_KERNELS[t->vectors - 1](&g, a->queries, a->kv.head_dim, a->scores + (size_t)(b - first) * KV_BLOCK);
  }
}

/* ---- softmax ---- */

/* Hides what vector m does not see and caps the scores if asked to; returns the largest. */
static float chunk_largest(const attention_t *a, const tile_t *t, uint32_t m, uint32_t first, uint32_t last) {
  float *s = a->scores + (size_t)m * SCORE_STRIDE;
  vf top = vf_set1(-INFINITY);
  for (uint32_t b = first; b <= last; b++, s += KV_BLOCK) {
    uint32_t start = b * KV_BLOCK;
    vf x = vf_load(s);
    bool partly = t->from[m] > start || t->to[m] < start + KV_BLOCK;
    if (a->capped) x = vf_softcap(vf_mul(x, a->scale), a->cap);
    if (partly)
      x = vf_keep(x, (int)(max_u32(t->from[m], start) - start), (int)(max_u32(t->to[m], start) - start), -INFINITY);
    if (a->capped || partly) vf_store(s, x);
    top = vf_max(top, x);
  }
  return vf_largest(top);
}

/* Scores of vector m over the chunk's blocks become weights 2^(rate (score - largest)) = exp(scale (score - largest));
 * its sums so far are rescaled to the new largest score. Visiting a chunk that the vector does not see changes no bit:
 * the rescaling is then by exactly 1. */
static void chunk_softmax(const attention_t *a, tile_t *t, uint32_t m, uint32_t first, uint32_t last) {
  float *s = a->scores + (size_t)m * SCORE_STRIDE, *sums = a->sums + (size_t)m * a->kv.head_dim;
  float before = t->largest[m], largest = chunk_largest(a, t, m, first, last), scale[LANES];
  if (largest < before) largest = before;
  vf total = vf_zero(), shift = vf_mul(vf_set1(largest == -INFINITY ? 0.0f : largest), a->rate);
  for (uint32_t b = first; b <= last; b++, s += KV_BLOCK) {
    vf e = vf_exp2(vf_fms(vf_load(s), a->rate, shift));
    total = vf_add(total, e);
    vf_store(s, e);
  }
  vf decay = vf_exp2(vf_sub(vf_mul(vf_set1(before), a->rate), shift));
  vf_store(scale, decay);
  t->total[m] = t->total[m] * scale[0] + vf_sum(total);
  t->largest[m] = largest;
  for (uint32_t i = 0; i < a->kv.head_dim; i += LANES) vf_store(sums + i, vf_mul(vf_load(sums + i), decay));
}

/* ---- values: p v ---- */

typedef struct { const float *values[CHUNK_BLOCKS]; uint32_t first, end; } value_run; /* positions within the blocks */

/* sums[rows][columns] += weights x values over the run's positions. */
INLINE void add_values(const value_run *run, const float *weights, uint32_t head_dim, float *sums, const int rows,
                       const int columns) {
  vf acc[VALUE_ROWS][VALUE_VECTORS];
  UNROLL for (int m = 0; m < rows; m++)
    UNROLL for (int j = 0; j < columns; j++) acc[m][j] = vf_load(sums + (size_t)m * head_dim + j * LANES);
  for (uint32_t i = run->first; i < run->end;) {
    const float *v = run->values[i / KV_BLOCK] + (size_t)(i % KV_BLOCK) * head_dim;
    for (uint32_t stop = min_u32(run->end, (i / KV_BLOCK + 1) * KV_BLOCK); i < stop; i++, v += head_dim) {
      vf value[VALUE_VECTORS];
      UNROLL for (int j = 0; j < columns; j++) value[j] = vf_load(v + j * LANES);
      UNROLL for (int m = 0; m < rows; m++) {
        vf weight = vf_set1(weights[m * SCORE_STRIDE + i]);
        UNROLL for (int j = 0; j < columns; j++) acc[m][j] = vf_fma(value[j], weight, acc[m][j]);
      }
    }
  }
  UNROLL for (int m = 0; m < rows; m++)
    UNROLL for (int j = 0; j < columns; j++) vf_store(sums + (size_t)m * head_dim + j * LANES, acc[m][j]);
}

typedef void value_kernel(const value_run *run, const float *weights, uint32_t head_dim, float *sums);
#define VALUE_KERNEL(ROWS)                                                                                     \
  static void values_wide_##ROWS(const value_run *r, const float *w, uint32_t head_dim, float *s) {            \
    add_values(r, w, head_dim, s, ROWS, VALUE_VECTORS);                                                        \
  }                                                                                                            \
  static void values_one_##ROWS(const value_run *r, const float *w, uint32_t head_dim, float *s) {             \
    add_values(r, w, head_dim, s, ROWS, 1);                                                                    \
  }
#define NAME_WIDE(ROWS) values_wide_##ROWS,
#define NAME_ONE(ROWS) values_one_##ROWS,
#if VALUE_ROWS == 6
#define EACH_VALUE_ROWS(F) F(1) F(2) F(3) F(4) F(5) F(6)
#elif VALUE_ROWS == 3
#define EACH_VALUE_ROWS(F) F(1) F(2) F(3)
#elif VALUE_ROWS == 2
#define EACH_VALUE_ROWS(F) F(1) F(2)
#endif
EACH_VALUE_ROWS(VALUE_KERNEL)
static value_kernel *const WIDE_KERNELS[VALUE_ROWS] = {EACH_VALUE_ROWS(NAME_WIDE)};
static value_kernel *const ONE_KERNELS[VALUE_ROWS] = {EACH_VALUE_ROWS(NAME_ONE)};

static void chunk_values(const attention_t *a, const tile_t *t, uint32_t first, uint32_t last) {
  uint32_t head_dim = a->kv.head_dim, start = first * KV_BLOCK;
  value_run run = {.first = max_u32(t->first, start) - start, .end = min_u32(t->end, (last + 1) * KV_BLOCK) - start};
  for (uint32_t b = first; b <= last; b++)
    run.values[b - first] = kv_keys(&a->kv, t->slot, b * KV_BLOCK, t->kv_head) + values_after(&a->kv);
  for (uint32_t m = 0, rows; m < t->vectors; m += rows) {
    rows = min_u32(VALUE_ROWS, t->vectors - m);
    value_run part = run;
    for (uint32_t i = 0, columns; i < head_dim; i += columns * LANES) {
      bool wide = i + VALUE_VECTORS * LANES <= head_dim;
      columns = wide ? VALUE_VECTORS : 1;
      (wide ? WIDE_KERNELS : ONE_KERNELS)[rows - 1](&part, a->scores + (size_t)m * SCORE_STRIDE, head_dim,
                                                    a->sums + (size_t)m * head_dim + i);
      for (uint32_t b = first; b <= last; b++) part.values[b - first] += columns * LANES;
    }
  }
}

/* ---- tiles ---- */

static void attend(const attention_t *a, tile_t *t) {
  uint32_t head_dim = a->kv.head_dim;
  for (uint32_t i = 0; i < head_dim; i += LANES) {
    vf v[LANES];
    for (uint32_t m = 0; m < t->vectors; m++) v[m] = vf_load(t->q[m] + i);
    for (uint32_t m = t->vectors; m < LANES; m++) v[m] = vf_zero();
    vf_transpose(v);
    for (uint32_t j = 0; j < LANES; j++) vf_store(a->queries + (size_t)(i + j) * t->vectors, v[j]);
  }
  memset(a->sums, 0, t->vectors * head_dim * sizeof(float));
  for (uint32_t m = 0; m < t->vectors; m++) t->largest[m] = -INFINITY, t->total[m] = 0.0f;
  for (uint32_t chunk = t->first / CHUNK * CHUNK; chunk < t->end; chunk += CHUNK) {
    uint32_t first = max_u32(chunk, t->first) / KV_BLOCK, last = (min_u32(chunk + CHUNK, t->end) - 1) / KV_BLOCK;
    chunk_scores(a, t, first, last);
    for (uint32_t m = 0; m < t->vectors; m++) chunk_softmax(a, t, m, first, last);
    chunk_values(a, t, first, last);
  }
  for (uint32_t m = 0; m < t->vectors; m++) {
    vf share = vf_set1(1.0f / t->total[m]);
    for (uint32_t i = 0; i < head_dim; i += LANES)
      vf_store(t->y[m] + i, vf_mul(vf_load(a->sums + (size_t)m * head_dim + i), share));
  }
}

/* Adds the query vectors of one row for heads head..end. */
static void add_row(const attention_t *a, const plow_ctx *c, tile_t *t, size_t row, uint32_t head, uint32_t end) {
  const uint32_t *d = a->p->dims;
  uint32_t to = (uint32_t)a->step->positions[row] + 1, from = a->window && to > a->window ? to - a->window : 0;
  if (t->vectors == 0) t->slot = (uint32_t)a->step->slots[row], t->first = from, t->end = to;
  t->first = min_u32(t->first, from), t->end = max_u32(t->end, to);
  for (uint32_t h = head; h < end; h++) {
    uint32_t m = t->vectors++;
    t->q[m] = (const float *)operand(a->p, c, ATTENTION_Q) + row * d[ATTENTION_D_Q_STRIDE] + (size_t)h * a->kv.head_dim;
    t->y[m] = (float *)operand(a->p, c, ATTENTION_Y) + row * d[ATTENTION_D_Y_STRIDE] + (size_t)h * a->kv.head_dim;
    t->from[m] = from, t->to[m] = to;
  }
}

/* All rows for q heads head..end of one kv head (at most MAX_VECTORS of them). */
static void attend_heads(const attention_t *a, const plow_ctx *c, plow_rows rows, uint32_t kv_head, uint32_t head,
                         uint32_t end) {
  for (uint32_t i = 0; i < rows.count;) {
    tile_t t = {.kv_head = kv_head};
    do add_row(a, c, &t, row_at(rows, i++), head, end);
    while (i < rows.count && t.vectors + end - head <= MAX_VECTORS &&
           (uint32_t)a->step->slots[row_at(rows, i)] == t.slot);
    attend(a, &t);
  }
}

void op_attention(const plow_packet *p, const plow_ctx *c) {
  const uint32_t *d = p->dims;
  uint32_t head_dim = d[ATTENTION_D_HEAD_DIM], group = d[ATTENTION_D_NUM_HEADS] / d[ATTENTION_D_NUM_KV_HEADS];
  float scale = p->imms[ATTENTION_I_SCALE], cap = p->imms[ATTENTION_I_SOFTCAP];
  float *scores = (float *)c->scratch, *sums = scores + MAX_VECTORS * SCORE_STRIDE;
  float *queries = sums + MAX_VECTORS * (size_t)head_dim;
  attention_t a = {
      p, c->step, kv_cache_of(operand(p, c, ATTENTION_KV), c->step, d[ATTENTION_D_NUM_KV_HEADS], head_dim),
      vf_set1(scale), vf_set1(cap), vf_set1((cap > 0.0f ? 1.0f : scale) * 1.44269504088896341f), cap > 0.0f,
      d[ATTENTION_D_WINDOW], queries, scores, sums};
  plow_rows rows = rows_of(p, c);
  for (uint32_t head = d[ATTENTION_D_HEAD0], end; head < d[ATTENTION_D_HEAD1]; head = end) {
    end = min_u32(min_u32((head / group + 1) * group, d[ATTENTION_D_HEAD1]), head + MAX_VECTORS);
    attend_heads(&a, c, rows, head / group, head, end);
  }
}
