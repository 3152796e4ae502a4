/* The interpreter's interface to its host; plow/runtime/cpu.py mirrors these structs. */
#ifndef PLOW_VM_H
#define PLOW_VM_H
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "plow_abi.h"

#define MAX_WORKERS 256
#define NO_FAULT 0xffffffffu
#define EXPORT __attribute__((visibility("default")))

/* A counter has a cache line of its own: signalling one never slows a wait for another. */
typedef struct { _Alignas(64) _Atomic uint32_t value; } plow_counter;

/* Nanoseconds that one packet waited and executed, summed over `runs` runs. */
typedef struct { uint64_t waiting, executing, runs; } plow_profile;

/* A loaded program. The host owns all memory. `epoch` counts finished steps and wraps, as the counters do. */
typedef struct {
  const plow_packet *const *lists; /* [workers] */
  const uint32_t *lengths;         /* [workers] */
  const uint32_t *totals;          /* [num_counters] signals a step */
  plow_counter *counters;          /* [num_counters] */
  plow_profile *const *profile;    /* [workers] one record a packet, or NULL */
  uint32_t workers, num_counters, epoch;
} plow_program;

/* One step's data, StepBatch of plow/runtime/step.py. With advance set, SAMPLE writes tokens and positions. */
typedef struct {
  int32_t *tokens, *positions;       /* [n_rows] */
  const int32_t *slots;              /* [n_rows] */
  const int32_t *sample_rows;        /* [n_samples], as the five that follow */
  const float *temperature, *top_p, *min_p;
  const int32_t *top_k;
  const uint64_t *seed;
  const int32_t *page_table;         /* [max_slots][blocks_per_seq] */
  int32_t *picked;                   /* [n_steps][n_samples] */
  uint32_t n_rows, n_samples, n_steps, blocks_per_seq, advance;
} plow_step;

enum { RUN_OK = 0, RUN_STUCK = 1, RUN_BAD_OPCODE = 2 };

/* Why a run was given up. at[w]: index of the first packet of worker w's list that has not signalled. */
typedef struct {
  uint32_t worker, counter, have, want;
  uint32_t at[MAX_WORKERS];
} plow_report;

typedef struct plow_vm plow_vm;

/* workers: threads, the caller of plow_run included. cpus: [workers] CPU of each, or NULL for no pinning.
 * scratch_bytes: private memory of each worker, at least plow_scratch_bytes of every packet. NULL when memory or
 * threads are not to be had. */
EXPORT plow_vm *plow_open(uint32_t workers, const int32_t *cpus, uint8_t *arena, uint64_t scratch_bytes);
EXPORT void plow_close(plow_vm *vm);
EXPORT uint64_t plow_scratch_bytes(const plow_packet *packet);
/* timeout_ns: limit of one wait. yield_after: pauses before a waiting thread offers its core. fault_seq: the worker of
 * the packet with this seq stops in front of it (a producer that never signals), for tests; NO_FAULT = none. */
EXPORT void plow_configure(plow_vm *vm, uint64_t timeout_ns, uint32_t yield_after, uint32_t fault_seq);
/* Run n_steps steps on all workers of the program; worker 0 is the caller. Not re-entrant. RUN_*; after a failure the
 * program's counters and epoch are zero again and the next run is good. */
EXPORT int plow_run(plow_vm *vm, plow_program *program, const plow_step *step, plow_report *report);
EXPORT uint32_t plow_abi_version(void);
EXPORT const char *plow_simd(void);
#endif
