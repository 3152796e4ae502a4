/* SAMPLE: a token from a row of logits. Semantics: plow/runtime/sampler.py, `sample`. */
#include <stdlib.h>

#include "op.h"

#define GOLDEN 0x9e3779b97f4a7c15u
#define BINS 256
#define BIN_WIDTH 0.125 /* of distance; the last bin takes all that is farther than BINS * BIN_WIDTH */
#define NEAR 12.0       /* a draw looks at candidates up to this distance first: p > 6e-6 of the largest */

/* distance: (largest logit - logit) / temperature; p = exp(-distance). */
typedef struct { double p; float logit; uint32_t token; } candidate;

typedef struct {
  const float *logits;
  uint32_t vocab, top_k;
  double temperature, rate, top_p, min_p; /* rate: 1 / temperature */
  double u; /* in [0, 1) */
  float largest;
} draw;

/* Candidates in bins of rising distance; a bin is sorted only when the order inside it decides something. */
typedef struct {
  candidate *c;             /* bin b: c[start[b]] .. c[start[b + 1]] */
  uint32_t start[BINS + 1];
  double mass[BINS];        /* sum of p */
  bool sorted[BINS];
} ranking;

size_t sample_scratch(const plow_packet *p) {
  return p->dims[SAMPLE_D_VOCAB] * sizeof(candidate);
}

/* ---- greedy ---- */

/* Lowest index of the largest logit. A lane keeps its first maximum; of equal lanes the lower index wins. */
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

/* exp(-distance) to 2 ulp, 0 from 700 on: the loop over a vocabulary of it becomes vector code. Taylor series after
 * range reduction to |r| <= ln(2) / 2. */
INLINE double decay(double distance) {
  const double magic = 6755399441055744.0; /* 1.5 * 2^52: adding it leaves round(x) in the low bits */
  double x = distance < 700.0 ? -distance : -700.0, t = x * 1.4426950408889634 + magic, n = t - magic;
  double r = (x - n * 0.693147180369123816490) - n * 1.90821492927058770002e-10;
  double p = 1.0 / 479001600;
  p = p * r + 1.0 / 39916800, p = p * r + 1.0 / 3628800, p = p * r + 1.0 / 362880, p = p * r + 1.0 / 40320;
  p = p * r + 1.0 / 5040, p = p * r + 1.0 / 720, p = p * r + 1.0 / 120, p = p * r + 1.0 / 24;
  p = p * r + 1.0 / 6, p = p * r + 0.5, p = p * r + 1.0, p = p * r + 1.0;
  uint64_t bits, exponent;
  memcpy(&bits, &p, sizeof bits), memcpy(&exponent, &t, sizeof exponent);
  bits += exponent << 52;
  memcpy(&p, &bits, sizeof p);
  return distance < 700.0 ? p : 0.0;
}

INLINE double distance_of(const draw *d, uint32_t token) {
  return ((double)d->largest - (double)d->logits[token]) * d->rate;
}

/* Sum of p over the vocabulary, in sixteen partial sums. */
static double total_mass(const draw *d) {
  double sum[LANES] = {0}, total = 0;
  uint32_t i = 0;
  for (; i + LANES <= d->vocab; i += LANES)
    for (uint32_t j = 0; j < LANES; j++) sum[j] += decay(distance_of(d, i + j));
  for (; i < d->vocab; i++) sum[i % LANES] += decay(distance_of(d, i));
  for (uint32_t j = 0; j < LANES; j++) total += sum[j];
  return total;
}

static uint32_t bin_of(double distance) {
  double bin = distance / BIN_WIDTH;
  return bin < BINS - 1 ? (uint32_t)bin : BINS - 1;
}

/* True when none of 16 logits reaches `least`: most of a vocabulary is skipped by this. */
INLINE bool all_below(const float *logits, float least) {
  uint32_t reached = 0;
  for (int j = 0; j < LANES; j++) reached |= !(logits[j] < least);
  return !reached;
}

/* Rank all candidates whose logit is at least `least` (-INFINITY: all). */
static void rank(const draw *d, float least, ranking *r) {
  uint32_t next[BINS];
  memset(r->start, 0, sizeof r->start), memset(r->mass, 0, sizeof r->mass), memset(r->sorted, 0, sizeof r->sorted);
  for (int pass = 0; pass < 2; pass++) { /* count, then place */
    for (uint32_t i = 0; i < d->vocab; i++) {
      if (i % LANES == 0)
        while (i + LANES <= d->vocab && all_below(d->logits + i, least)) i += LANES;
      if (i >= d->vocab || d->logits[i] < least) continue;
      double distance = distance_of(d, i);
      uint32_t b = bin_of(distance);
      if (pass == 0) r->start[b + 1]++;
      else {
        double p = decay(distance);
        r->c[next[b]++] = (candidate){p, d->logits[i], i}, r->mass[b] += p;
      }
    }
    for (uint32_t b = 0; pass == 0 && b < BINS; b++) next[b] = r->start[b], r->start[b + 1] += r->start[b];
  }
}

/* Descending logits, equals by token. */
static int by_rank(const void *x, const void *y) {
  const candidate *a = x, *b = y;
  if (a->logit != b->logit) return a->logit > b->logit ? -1 : 1;
  return a->token < b->token ? -1 : 1;
}

typedef struct {
  uint32_t kept, last; /* number of candidates kept, token of the last one */
  double sum;          /* of their p */
  bool ended;          /* by a cut or by `enough`, not by the end of the ranking */
} prefix;

/* True when the whole bin is kept and does not reach `enough`: then its order does not matter. */
static bool takes_whole(const draw *d, const ranking *r, uint32_t b, const prefix *f, double total, double enough) {
  uint32_t n = r->start[b + 1] - r->start[b];
  double sum = f->sum + r->mass[b];
  if (b == BINS - 1 || sum * (1 + 1e-12) >= enough) return false;
  if (d->top_k && f->kept + n >= d->top_k) return false;
  if (d->top_p < 1 && sum * (1 + 1e-12) >= d->top_p * total) return false;
  return decay((b + 1) * BIN_WIDTH) > d->min_p;
}

/* Candidates in descending order while the cuts keep them, up to the first whose cumulative p exceeds `enough`. */
static prefix walk(const draw *d, ranking *r, double total, double enough) {
  prefix f = {0};
  for (uint32_t b = 0; b < BINS; b++) {
    candidate *c = r->c + r->start[b];
    uint32_t n = r->start[b + 1] - r->start[b];
    if (n && takes_whole(d, r, b, &f, total, enough)) {
      f.kept += n, f.sum += r->mass[b], f.last = c[n - 1].token;
      continue;
    }
    if (!r->sorted[b]) qsort(c, n, sizeof *c, by_rank), r->sorted[b] = true;
    for (uint32_t i = 0; i < n; i++) {
      bool full = d->top_k && f.kept >= d->top_k, enough_p = f.kept && d->top_p < 1 && f.sum >= d->top_p * total;
      bool cut = full || enough_p || c[i].p < d->min_p;
      if (cut || f.sum > enough) {
        f.ended = true;
        return f;
      }
      f.kept++, f.sum += c[i].p, f.last = c[i].token;
    }
  }
  f.ended = f.sum > enough;
  return f;
}

static uint32_t draw_token(draw *d, candidate *memory) {
  d->largest = d->logits[argmax(d->logits, d->vocab)], d->rate = 1.0 / d->temperature;
  bool all = !d->top_k && d->top_p >= 1 && d->min_p <= 0;
  double total = all || d->top_p < 1 ? total_mass(d) : 0;
  ranking r = {.c = memory};
  prefix f;
  for (int near = 1; near >= 0; near--) {
    rank(d, near ? d->largest - (float)(NEAR * d->temperature) : -INFINITY, &r);
    f = all ? (prefix){.sum = total, .ended = true} : walk(d, &r, total, INFINITY);
    if (near && !f.ended) continue;
    f = walk(d, &r, total, d->u * f.sum); /* the first whose cumulative p exceeds it, or the last one kept */
    if (f.ended) break;
  }
  return f.last;
}

void op_sample(const plow_packet *p, const plow_ctx *c) {
  const plow_step *s = c->step;
  plow_rows rows = rows_of(p, c);
  for (uint32_t i = 0; i < rows.count; i++) {
    size_t sample = row_at(rows, i);
    int32_t row = s->sample_rows[sample];
    const float *logits = (const float *)operand(p, c, SAMPLE_LOGITS) + sample * p->dims[SAMPLE_D_LOGITS_STRIDE];
    draw d = {.logits = logits, .vocab = p->dims[SAMPLE_D_VOCAB], .temperature = (double)s->temperature[sample]};
    d.top_k = (uint32_t)s->top_k[sample], d.top_p = (double)s->top_p[sample], d.min_p = (double)s->min_p[sample];
    d.u = uniform(s->seed[sample], (uint32_t)s->positions[row]);
    uint32_t token = d.temperature == 0 ? argmax(logits, d.vocab) : draw_token(&d, (candidate *)c->scratch);
    s->picked[(size_t)c->step_index * s->n_samples + sample] = (int32_t)token;
    if (s->advance) s->tokens[row] = (int32_t)token, s->positions[row]++;
  }
}
