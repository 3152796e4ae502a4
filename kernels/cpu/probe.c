/* Ceilings of this machine, measured with the same threads, vectors and counters as the interpreter uses. */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>

#include "clock.h"
#include "op.h"

#define AHEAD 4096      /* prefetch distance of the stream: without it a read under-reports by up to a tenth */
#define CHAINS 12       /* independent accumulators: more than latency x throughput of any core so far */
#define PEAK_ROUNDS 500000

typedef struct {
  const uint8_t *data;          /* read probe: this thread's bytes */
  uint64_t bytes;
  plow_counter *mine, *theirs;  /* hop probes */
  uint32_t rounds, threads;
  int32_t cpu;
  pthread_barrier_t *gate;
  uint64_t begin, end;          /* nanoseconds */
  float sink;                   /* results end here, so that no loop can be dropped */
} probe_t;

static void pin_to(int32_t cpu) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET((size_t)cpu, &set);
  pthread_setaffinity_np(pthread_self(), sizeof set, &set);
}

static void start(probe_t *p) {
  pin_to(p->cpu);
  pthread_barrier_wait(p->gate);
  p->begin = clock_ns();
}

/* Runs `body` on every probe's own thread; seconds from the first start to the last end, 0 when a thread is missing. */
static double run_all(void *(*body)(void *), probe_t *probes, uint32_t threads) {
  pthread_t thread[MAX_WORKERS];
  pthread_barrier_t gate;
  if (threads < 1 || threads > MAX_WORKERS || pthread_barrier_init(&gate, NULL, threads)) return 0;
  uint32_t made = 0;
  for (; made < threads; made++) {
    probes[made].gate = &gate, probes[made].threads = threads;
    if (pthread_create(&thread[made], NULL, body, &probes[made])) break;
  }
  if (made < threads) { /* the others stand at the gate for good: end them there */
    for (uint32_t i = 0; i < made; i++) pthread_cancel(thread[i]), pthread_join(thread[i], NULL);
    return 0;
  }
  uint64_t begin = UINT64_MAX, end = 0;
  for (uint32_t i = 0; i < threads; i++) {
    pthread_join(thread[i], NULL);
    if (probes[i].begin < begin) begin = probes[i].begin;
    if (probes[i].end > end) end = probes[i].end;
  }
  pthread_barrier_destroy(&gate);
  return (double)(end - begin) * 1e-9;
}

/* ---- memory ---- */

static void *read_body(void *arg) {
  probe_t *p = arg;
  start(p);
  vf sum[4] = {vf_zero(), vf_zero(), vf_zero(), vf_zero()};
  for (uint64_t i = 0; i + 256 <= p->bytes; i += 256)
    UNROLL for (int j = 0; j < 4; j++) {
      __builtin_prefetch(p->data + i + j * 64 + AHEAD);
      sum[j] = vf_max(sum[j], vf_load((const float *)(p->data + i + j * 64)));
    }
  p->sink = vf_sum(vf_add(vf_add(sum[0], sum[1]), vf_add(sum[2], sum[3])));
  p->end = clock_ns();
  return NULL;
}

/* Bytes per second that `threads` threads read together, best of `repeats`. data: aligned to 64. */
EXPORT double plow_probe_read(const uint8_t *data, uint64_t bytes, const int32_t *cpus, uint32_t threads,
                              uint32_t repeats) {
  probe_t probes[MAX_WORKERS] = {0};
  double best = 0;
  uint64_t share = bytes / (threads ? threads : 1) & ~(uint64_t)255;
  for (uint32_t r = 0; r < repeats; r++) {
    for (uint32_t i = 0; i < threads && i < MAX_WORKERS; i++)
      probes[i] = (probe_t){.data = data + i * share, .bytes = share, .cpu = cpus[i]};
    double seconds = run_all(read_body, probes, threads);
    if (seconds > 0 && (double)(share * threads) / seconds > best) best = (double)(share * threads) / seconds;
  }
  return best;
}

/* ---- arithmetic ---- */

static void *fma_body(void *arg) {
  probe_t *p = arg;
  vf sum[CHAINS], x = vf_set1(0.999f), y = vf_set1(1e-3f);
  UNROLL for (int i = 0; i < CHAINS; i++) sum[i] = vf_set1((float)i);
  start(p);
  for (uint32_t r = 0; r < p->rounds; r++) {
    UNROLL for (int i = 0; i < CHAINS; i++) sum[i] = vf_fma(sum[i], x, y);
    __asm__ volatile("" ::: "memory");
  }
  p->end = clock_ns();
  UNROLL for (int i = 0; i < CHAINS; i++) p->sink += vf_sum(sum[i]);
  return NULL;
}

static void *dot_body(void *arg) {
  probe_t *p = arg;
  _Alignas(64) uint32_t words[LANES];
  vf sum[CHAINS];
  for (int i = 0; i < LANES; i++) words[i] = 0x3f803f80u; /* two bf16 ones */
  UNROLL for (int i = 0; i < CHAINS; i++) sum[i] = vf_set1((float)i); /* equal chains would be merged */
  start(p);
  for (uint32_t r = 0; r < p->rounds; r++)
    UNROLL for (int i = 0; i < CHAINS; i++) sum[i] = vf_bf16_dot(sum[i], words, 0x38003800u);
  p->end = clock_ns();
  UNROLL for (int i = 0; i < CHAINS; i++) p->sink += vf_sum(sum[i]);
  return NULL;
}

static double peak(void *(*body)(void *), double flops, const int32_t *cpus, uint32_t threads, uint32_t repeats) {
  probe_t probes[MAX_WORKERS] = {0};
  double best = 0;
  for (uint32_t r = 0; r < repeats; r++) {
    for (uint32_t i = 0; i < threads && i < MAX_WORKERS; i++)
      probes[i] = (probe_t){.rounds = PEAK_ROUNDS, .cpu = cpus[i]};
    double seconds = run_all(body, probes, threads);
    if (seconds > 0 && flops * PEAK_ROUNDS * threads / seconds > best) best = flops * PEAK_ROUNDS * threads / seconds;
  }
  return best;
}

/* Floating-point operations per second of all threads together: fp32 multiply-add, and bf16 dot product. */
EXPORT double plow_probe_fma(const int32_t *cpus, uint32_t threads, uint32_t repeats) {
  return peak(fma_body, 2.0 * LANES * CHAINS, cpus, threads, repeats);
}
EXPORT double plow_probe_dot(const int32_t *cpus, uint32_t threads, uint32_t repeats) {
  return peak(dot_body, 4.0 * LANES * CHAINS, cpus, threads, repeats);
}

/* ---- counters ---- */

static void wait_for(const plow_counter *c, uint32_t want) {
  for (uint32_t n = 1; atomic_load_explicit(&c->value, memory_order_acquire) < want; n++) {
    cpu_pause();
    if (n % 4096 == 0) sched_yield();
  }
}
static void signal_counter(plow_counter *c) { atomic_fetch_add_explicit(&c->value, 1, memory_order_release); }

static void *hop_body(void *arg) {
  probe_t *p = arg;
  start(p);
  for (uint32_t r = 1; r <= p->rounds; r++) {
    if (p->theirs > p->mine) signal_counter(p->mine), wait_for(p->theirs, r);
    else wait_for(p->theirs, r), signal_counter(p->mine);
  }
  p->end = clock_ns();
  return NULL;
}

static void *barrier_body(void *arg) {
  probe_t *p = arg;
  start(p);
  for (uint32_t r = 1; r <= p->rounds; r++) signal_counter(p->mine), wait_for(p->mine, r * p->threads);
  p->end = clock_ns();
  return NULL;
}

static double best_round(void *(*body)(void *), bool apart, const int32_t *cpus, uint32_t repeats, uint32_t rounds) {
  double best = 0;
  for (uint32_t r = 0; r < repeats; r++) {
    plow_counter counters[2] = {0};
    probe_t probes[2];
    for (uint32_t i = 0; i < 2; i++) {
      plow_counter *mine = &counters[apart ? i : 0], *theirs = &counters[apart ? 1 - i : 0];
      probes[i] = (probe_t){.mine = mine, .theirs = theirs, .rounds = rounds, .cpu = cpus[i]};
    }
    double seconds = run_all(body, probes, 2) / rounds;
    if (best == 0 || seconds < best) best = seconds;
  }
  return best;
}

/* Seconds from a signal on one CPU until another has seen it (half a round trip), and of one barrier of two workers. */
EXPORT double plow_probe_hop(const int32_t *cpus, uint32_t repeats, uint32_t rounds) {
  return best_round(hop_body, true, cpus, repeats, rounds) / 2;
}
EXPORT double plow_probe_barrier(const int32_t *cpus, uint32_t repeats, uint32_t rounds) {
  return best_round(barrier_body, false, cpus, repeats, rounds);
}
