/* SAMPLE: a token from a row of logits. Semantics: plow/runtime/sampler.py, `sample`. */
#include <stdlib.h>

#include "op.h"

#define GOLDEN 0x9e3779b97f4a7c15u
#define BINS 256       /* candidates by distance to the largest logit; only bins that are reached get sorted */
#define BIN_WIDTH 0.25 /* in units of the temperature */

typedef struct { double p; float logit; uint32_t token; } candidate;

typedef struct {
  const float *logits;
  uint32_t vocab, top_k;
  double temperature, top_p, min_p;
  double u; /* in [0, 1) */
} draw;

size_t sample_scratch(const plow_packet *p) {
  return p->dims[SAMPLE_D_VOCAB] * sizeof(candidate);
}

/* ---- greedy ---- */

/* Lowest index of the largest logit. Lanes keep their first maximum; equal maxima of two lanes go to the lower index. */
static uint32_t argmax(const float *x, uint32_t n) {
  vf best = vf_set1(-INFINITY), best_k = vf_zero();
  for (uint32_t k = 0; k < n; k += LANES) {
    vf v = k + LANES <= n ? vf_load(x + k) : vf_keep(vf_load_n(x + k, (int)(n - k)), 0, (int)(n - k), -INFINITY);
    best_k = vf_select_lt(best, v, vf_set1((float)(k / LANES)), best_k); /* exact: k / LANES < 2^24 */
    best = vf_select_lt(best, v, v, best);
  }
  float value[LANES], vector[LANES];
  vf_store(value, best), vf_store(vector, best_k);
  uint32_t found = 0;
  float largest = -INFINITY;
  for (uint32_t i = 0; i < LANES; i++) {
    uint32_t index = (uint32_t)vector[i] * LANES + i;
    if (value[i] > largest || (value[i] == largest && index < found)) largest = value[i], found = index;
  }
  return found < n ? found : 0;
}

/* ---- random ---- */

static double uniform(uint64_t seed, uint32_t position) {
  uint64_t z = seed + position * (uint64_t)GOLDEN + GOLDEN; /* splitmix64 */
  z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
  z = (z ^ z >> 27) * 0x94d049bb133111ebu;
  return (double)((z ^ z >> 31) >> 11) * 0x1p-53;
}

static uint32_t bin_of(double distance) {
  double bin = distance / BIN_WIDTH;
  return bin < BINS - 1 ? (uint32_t)bin : BINS - 1;
}

/* Descending logits, equals by token. */
static int by_rank(const void *x, const void *y) {
  const candidate *a = x, *b = y;
  if (a->logit != b->logit) return a->logit > b->logit ? -1 : 1;
  return a->token < b->token ? -1 : 1;
}

/* Candidates grouped by bin (bin b is start[b]..start[b + 1]), p = exp((logit - largest) / temperature); returns the
 * sum of all p. */
static double group(const draw *d, float largest, candidate *out, uint32_t start[BINS + 1]) {
  uint32_t count[BINS] = {0}, next[BINS];
  double total = 0;
  for (uint32_t i = 0; i < d->vocab; i++) count[bin_of(((double)largest - d->logits[i]) / d->temperature)]++;
  start[0] = 0;
  for (uint32_t b = 0; b < BINS; b++) next[b] = start[b], start[b + 1] = start[b] + count[b];
  for (uint32_t i = 0; i < d->vocab; i++) {
    double distance = ((double)largest - d->logits[i]) / d->temperature, p = exp(-distance);
    total += p;
    out[next[bin_of(distance)]++] = (candidate){p, d->logits[i], i};
  }
  return total;
}

/* Walks the candidates in descending order while the cuts keep them, sorting a bin when it is entered. Stops at
 * `enough` (sum of p); returns the number kept, *sum their p. */
static uint32_t walk(const draw *d, candidate *c, const uint32_t start[BINS + 1], uint32_t *sorted_bins, double total,
                     double enough, double *sum) {
  uint32_t kept = 0;
  *sum = 0;
  for (uint32_t b = 0; b < BINS; b++) {
    if (b >= *sorted_bins) qsort(c + start[b], start[b + 1] - start[b], sizeof *c, by_rank), *sorted_bins = b + 1;
    for (uint32_t i = start[b]; i < start[b + 1]; i++) {
      bool cut = (d->top_k && kept >= d->top_k) || (kept && d->top_p < 1 && *sum / total >= d->top_p) || c[i].p < d->min_p;
      if (cut || *sum > enough) return kept;
      *sum += c[i].p, kept++;
    }
  }
  return kept;
}

static uint32_t draw_token(const draw *d, candidate *c) {
  uint32_t start[BINS + 1], sorted_bins = 0;
  double sum, total = group(d, d->logits[argmax(d->logits, d->vocab)], c, start);
  bool all = !d->top_k && d->top_p >= 1 && d->min_p <= 0;
  if (all) sum = total;
  else walk(d, c, start, &sorted_bins, total, INFINITY, &sum);
  uint32_t kept = walk(d, c, start, &sorted_bins, total, d->u * sum, &sum);
  return c[kept - 1].token; /* the first whose cumulative p exceeds u * sum, or the last one kept */
}

void op_sample(const plow_packet *p, const plow_ctx *c) {
  const plow_step *s = c->step;
  plow_rows rows = rows_of(p, c);
  for (uint32_t i = 0; i < rows.count; i++) {
    size_t sample = row_at(rows, i);
    int32_t row = s->sample_rows[sample];
    const float *logits = (const float *)operand(p, c, SAMPLE_LOGITS) + sample * p->dims[SAMPLE_D_LOGITS_STRIDE];
    draw d = {logits, p->dims[SAMPLE_D_VOCAB], (uint32_t)s->top_k[sample], (double)s->temperature[sample],
              (double)s->top_p[sample], (double)s->min_p[sample], uniform(s->seed[sample], (uint32_t)s->positions[row])};
    uint32_t token = d.temperature == 0 ? argmax(logits, d.vocab) : draw_token(&d, (candidate *)c->scratch);
    s->picked[(size_t)c->step_index * s->n_samples + sample] = (int32_t)token;
    if (s->advance) s->tokens[row] = (int32_t)token, s->positions[row]++;
  }
}
