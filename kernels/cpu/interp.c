/* The interpreter: workers, counters, waits and the step loop. Operators live in their own files. */
#define _GNU_SOURCE
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "clock.h"
#include "op.h"

#define IDLE_SPIN_NS 200000 /* an idle worker looks for the next run this long before it sleeps */
#define CHECK_EVERY 256     /* pauses between two looks at the clock */

#ifdef PLOW_RACE_MUTANT /* a planted bug: without ordering the thread sanitizer must complain */
#define ACQUIRE memory_order_relaxed
#define RELEASE memory_order_relaxed
#else
#define ACQUIRE memory_order_acquire
#define RELEASE memory_order_release
#endif

typedef struct {
  plow_vm *vm;
  uint8_t *scratch;
  pthread_t thread;
  uint32_t index;
} worker_t;

struct plow_vm {
  /* The job that workers take: written before `job` is incremented, stable until all have said `done`. */
  plow_program *program;
  const plow_step *step;
  plow_report *report;
  bool stop;
  _Alignas(64) _Atomic uint32_t job;
  _Alignas(64) _Atomic uint32_t done;
  _Alignas(64) _Atomic uint32_t given_up; /* RUN_* once a worker gave up; the others follow */
  _Alignas(64) _Atomic uint32_t sleeping;
  uint32_t workers, yield_after, fault_seq;
  uint64_t timeout_ns, scratch_bytes;
  uint8_t *arena;
  int32_t cpus[MAX_WORKERS];
  bool pinned;
  worker_t worker[MAX_WORKERS];
};

static plow_op *const OPERATORS[] = {
    [OP_EMBED] = op_embed, [OP_NORM] = op_norm, [OP_LINEAR] = op_linear, [OP_QKV] = op_qkv, [OP_ROPE] = op_rope,
    [OP_KV_APPEND] = op_kv_append, [OP_ATTENTION] = op_attention, [OP_ELEMENTWISE] = op_elementwise,
    [OP_SELECT] = op_select, [OP_SAMPLE] = op_sample,
};
#define NUM_OPERATORS (sizeof OPERATORS / sizeof *OPERATORS)

/* ---- waits and signals ---- */

/* Value of the counter that meets a wait in step `epoch` (from 1). The step counter refers to the step before. */
static uint32_t wanted(const plow_program *p, plow_wait wait, uint32_t epoch) {
  uint32_t total = p->totals[wait.counter], base = wait.counter == STEP_COUNTER ? epoch - 1 : epoch;
  return base * total - total + wait.threshold;
}

static bool met(const plow_program *p, uint32_t counter, uint32_t want) {
  uint32_t have = atomic_load_explicit(&p->counters[counter].value, ACQUIRE);
  return (int32_t)(have - want) >= 0; /* signed difference: counters wrap */
}

/* The first worker to give up writes the report; later ones only leave. */
static void give_up(plow_vm *vm, uint32_t why, uint32_t worker, uint32_t counter, uint32_t want) {
  uint32_t none = RUN_OK;
  if (!atomic_compare_exchange_strong(&vm->given_up, &none, why)) return;
  plow_report *r = vm->report;
  r->worker = worker, r->counter = counter, r->want = want;
  r->have = counter < vm->program->num_counters ? atomic_load(&vm->program->counters[counter].value) : 0;
}

static bool given_up(plow_vm *vm) { return atomic_load_explicit(&vm->given_up, memory_order_relaxed) != RUN_OK; }

/* Spin with pauses, then offer the core on every look at the clock; false when the run is given up. */
static bool wait_for(plow_vm *vm, uint32_t worker, plow_wait wait, uint32_t epoch) {
  const plow_program *p = vm->program;
  uint32_t want = wanted(p, wait, epoch), pauses = 0;
  uint64_t start = 0;
  while (!met(p, wait.counter, want)) {
    cpu_pause();
    if (++pauses % CHECK_EVERY) continue;
    if (given_up(vm)) return false;
    uint64_t now = clock_ns();
    if (!start) start = now;
    if (now - start > vm->timeout_ns) {
      give_up(vm, RUN_STUCK, worker, wait.counter, want);
      return false;
    }
    if (pauses >= vm->yield_after) sched_yield();
  }
  return true;
}

/* The injected fault: a producer that never signals. It leaves with the worker that waits for it, or on its own. */
static void stand_still(plow_vm *vm, uint32_t worker) {
  for (uint64_t start = clock_ns(); !given_up(vm); sched_yield())
    if (clock_ns() - start > 2 * vm->timeout_ns) give_up(vm, RUN_STUCK, worker, NO_COUNTER, 0);
}

static void signal_all(const plow_program *p, const plow_packet *packet) {
  for (int i = 0; i < NUM_SIGNALS && packet->signals[i] != NO_COUNTER; i++)
    atomic_fetch_add_explicit(&p->counters[packet->signals[i]].value, 1, RELEASE);
}

/* ---- the step loop ---- */

static bool run_packet(plow_vm *vm, uint32_t worker, const plow_packet *packet, const plow_ctx *ctx, uint32_t epoch,
                       plow_profile *profile) {
  uint64_t begin = profile ? clock_ns() : 0;
  for (int i = 0; i < NUM_WAITS && packet->waits[i].counter != NO_COUNTER; i++)
    if (!wait_for(vm, worker, packet->waits[i], epoch)) return false;
  if (packet->seq == vm->fault_seq) {
    stand_still(vm, worker);
    return false;
  }
  uint64_t ready = profile ? clock_ns() : 0;
  if (packet->opcode != OP_NOP) {
    if (packet->opcode >= NUM_OPERATORS) {
      give_up(vm, RUN_BAD_OPCODE, worker, NO_COUNTER, 0);
      return false;
    }
    OPERATORS[packet->opcode](packet, ctx);
  }
  signal_all(vm->program, packet);
  if (profile) profile->waiting += ready - begin, profile->executing += clock_ns() - ready, profile->runs++;
  return true;
}

static void run_steps(plow_vm *vm, uint32_t worker) {
  const plow_program *p = vm->program;
  plow_profile *profile = p->profile ? p->profile[worker] : NULL;
  plow_ctx ctx = {vm->arena, vm->worker[worker].scratch, vm->step, 0};
  for (; ctx.step_index < vm->step->n_steps; ctx.step_index++)
    for (uint32_t i = 0; i < p->lengths[worker]; i++)
      if (!run_packet(vm, worker, &p->lists[worker][i], &ctx, p->epoch + ctx.step_index + 1,
                      profile ? &profile[i] : NULL)) {
        vm->report->at[worker] = i;
        return;
      }
  vm->report->at[worker] = p->lengths[worker];
}

/* ---- threads ---- */

static void pin_to(int32_t cpu) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET((size_t)cpu, &set);
  pthread_setaffinity_np(pthread_self(), sizeof set, &set); /* best effort: an unpinned worker is only slower */
}

static void wait_for_job(plow_vm *vm, uint32_t seen) {
  uint64_t start = clock_ns();
  for (uint32_t n = 1; atomic_load_explicit(&vm->job, memory_order_acquire) == seen; n++) {
    cpu_pause();
    if (n % CHECK_EVERY) continue;
    if (clock_ns() - start < IDLE_SPIN_NS) continue;
    atomic_fetch_add(&vm->sleeping, 1);
    if (atomic_load(&vm->job) == seen) syscall(SYS_futex, &vm->job, FUTEX_WAIT_PRIVATE, seen, NULL, NULL, 0);
    atomic_fetch_sub(&vm->sleeping, 1);
  }
}

static void *worker_main(void *arg) {
  worker_t *w = arg;
  plow_vm *vm = w->vm;
  if (vm->pinned) pin_to(vm->cpus[w->index]);
  for (uint32_t seen = 0;; seen++) {
    wait_for_job(vm, seen);
    if (vm->stop) return NULL;
    if (w->index < vm->program->workers) run_steps(vm, w->index);
    atomic_fetch_add_explicit(&vm->done, 1, memory_order_release);
  }
}

static void post_job(plow_vm *vm) {
  atomic_store(&vm->done, 0);
  /* Sequentially consistent, as `sleeping` is: either we see the sleeper, or it sees the job. */
  atomic_fetch_add(&vm->job, 1);
  if (atomic_load(&vm->sleeping)) syscall(SYS_futex, &vm->job, FUTEX_WAKE_PRIVATE, MAX_WORKERS, NULL, NULL, 0);
}

static void wait_for_workers(plow_vm *vm) {
  for (uint32_t n = 1; atomic_load_explicit(&vm->done, memory_order_acquire) < vm->workers - 1; n++) {
    cpu_pause();
    if (n >= vm->yield_after && n % CHECK_EVERY == 0) sched_yield();
  }
}

/* ---- the host's calls ---- */

static bool start_workers(plow_vm *vm) {
  for (uint32_t w = 0; w < vm->workers; w++) {
    vm->worker[w] = (worker_t){.vm = vm, .index = w};
    void *scratch = mmap(NULL, vm->scratch_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (scratch == MAP_FAILED) {
      vm->workers = w;
      return false;
    }
    vm->worker[w].scratch = scratch;
    if (w > 0 && pthread_create(&vm->worker[w].thread, NULL, worker_main, &vm->worker[w])) {
      munmap(scratch, vm->scratch_bytes);
      vm->workers = w;
      return false;
    }
  }
  return true;
}

plow_vm *plow_open(uint32_t workers, const int32_t *cpus, uint8_t *arena, uint64_t scratch_bytes) {
  if (workers < 1 || workers > MAX_WORKERS) return NULL;
  plow_vm *vm = aligned_alloc(64, round_up(sizeof *vm, 64));
  if (!vm) return NULL;
  memset(vm, 0, sizeof *vm);
  vm->workers = workers, vm->arena = arena, vm->scratch_bytes = scratch_bytes + ALIGN;
  vm->pinned = cpus != NULL;
  if (cpus) memcpy(vm->cpus, cpus, workers * sizeof *cpus);
  plow_configure(vm, 10000000000u, 2000, NO_FAULT);
  if (start_workers(vm)) return vm;
  plow_close(vm);
  return NULL;
}

void plow_close(plow_vm *vm) {
  vm->stop = true;
  post_job(vm);
  for (uint32_t w = 0; w < vm->workers; w++) {
    if (w > 0) pthread_join(vm->worker[w].thread, NULL);
    munmap(vm->worker[w].scratch, vm->scratch_bytes);
  }
  free(vm);
}

void plow_configure(plow_vm *vm, uint64_t timeout_ns, uint32_t yield_after, uint32_t fault_seq) {
  vm->timeout_ns = timeout_ns, vm->yield_after = yield_after, vm->fault_seq = fault_seq;
}

uint64_t plow_scratch_bytes(const plow_packet *p) {
  switch (p->opcode) {
    case OP_LINEAR: return linear_scratch(p);
    case OP_QKV: return qkv_scratch(p);
    case OP_ATTENTION: return attention_scratch(p);
    case OP_SAMPLE: return sample_scratch(p);
    default: return 0;
  }
}

int plow_run(plow_vm *vm, plow_program *program, const plow_step *step, plow_report *report) {
  cpu_set_t before;
  bool pinned = vm->pinned && !pthread_getaffinity_np(pthread_self(), sizeof before, &before);
  if (pinned) pin_to(vm->cpus[0]); /* only during the run: threads made later must not inherit it */
  vm->program = program, vm->step = step, vm->report = report;
  atomic_store(&vm->given_up, RUN_OK);
  post_job(vm);
  run_steps(vm, 0);
  wait_for_workers(vm);
  if (pinned) pthread_setaffinity_np(pthread_self(), sizeof before, &before);
  int result = (int)atomic_load(&vm->given_up);
  program->epoch += step->n_steps;
  if (result != RUN_OK) {
    program->epoch = 0;
    for (uint32_t i = 0; i < program->num_counters; i++) atomic_store(&program->counters[i].value, 0);
  }
  return result;
}

uint32_t plow_abi_version(void) { return ABI_VERSION; }
const char *plow_simd(void) { return SIMD_NAME; }
