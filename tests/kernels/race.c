/* Steps of a small program on two workers, for the thread sanitizer: a value goes round through counters.
 * Prints the value that came round; the sanitizer prints the rest. */
#include <stdio.h>
#include <string.h>

#include "op.h"

#define WORKERS 2
#define STEPS 50

/* Only interp.c and rows.c are linked: the other operators are not under test here. */
void op_linear(const plow_packet *p, const plow_ctx *c) { (void)p, (void)c; }
void op_qkv(const plow_packet *p, const plow_ctx *c) { (void)p, (void)c; }
void op_attention(const plow_packet *p, const plow_ctx *c) { (void)p, (void)c; }
void op_sample(const plow_packet *p, const plow_ctx *c) { (void)p, (void)c; }
size_t linear_scratch(const plow_packet *p) { return (void)p, 0; }
size_t qkv_scratch(const plow_packet *p) { return (void)p, 0; }
size_t attention_scratch(const plow_packet *p) { return (void)p, 0; }
size_t sample_scratch(const plow_packet *p) { return (void)p, 0; }

static _Alignas(64) uint8_t arena[8192];
static plow_packet lists[WORKERS][2];
static plow_counter counters[WORKERS];

static plow_packet blank(uint16_t opcode, uint16_t worker) {
  plow_packet p = {.opcode = opcode, .worker = worker};
  for (int i = 0; i < NUM_WAITS; i++) p.waits[i].counter = NO_COUNTER;
  for (int i = 0; i < NUM_SIGNALS; i++) p.signals[i] = NO_COUNTER;
  for (int i = 0; i < NUM_OPERANDS; i++) p.operands[i] = NO_OPERAND;
  return p;
}

/* arena line `to` = 1.01 * arena line `from`, in lines of 64 bytes */
static plow_packet scale(uint16_t worker, uint32_t from, uint32_t to) {
  plow_packet p = blank(OP_ELEMENTWISE, worker);
  p.epilogue = EPI_SCALE, p.imms[ELEMENTWISE_I_FACTOR] = 1.01f;
  p.operands[ELEMENTWISE_A] = from, p.operands[ELEMENTWISE_Y] = to;
  p.dims[0] = 0, p.dims[1] = 1, p.dims[2] = 1, p.dims[ELEMENTWISE_D_WIDTH] = LANES;
  p.dims[ELEMENTWISE_D_A_STRIDE] = p.dims[ELEMENTWISE_D_Y_STRIDE] = LANES;
  return p;
}

int main(void) {
  const plow_packet *pointers[WORKERS];
  uint32_t lengths[WORKERS], totals[WORKERS] = {WORKERS, 1};
  for (uint16_t w = 0; w < WORKERS; w++) {
    plow_packet first = scale(w, w, w + 1u), last = w == WORKERS - 1 ? scale(w, WORKERS, 0) : blank(OP_NOP, w);
    first.waits[0] = (plow_wait){STEP_COUNTER, WORKERS};
    if (w) first.waits[1] = (plow_wait){w, 1};
    if (w < WORKERS - 1) first.signals[0] = w + 1;
    last.signals[0] = STEP_COUNTER;
    lists[w][0] = first, lists[w][1] = last, pointers[w] = lists[w], lengths[w] = 2;
  }
  ((float *)arena)[0] = 1.0f;
  int32_t token = 0, position = 0, slot = 0, sample_row = 0, table = 0, picked[STEPS];
  plow_program program = {.lists = pointers, .lengths = lengths, .totals = totals, .counters = counters,
                          .workers = WORKERS, .num_counters = WORKERS};
  plow_step step = {.tokens = &token, .positions = &position, .slots = &slot, .sample_rows = &sample_row,
                    .page_table = &table, .picked = picked, .n_rows = 1, .n_steps = STEPS, .blocks_per_seq = 1};
  plow_report report;
  plow_vm *vm = plow_open(WORKERS, NULL, arena, 0);
  if (!vm) return 2;
  for (int run = 0; run < 4; run++)
    if (plow_run(vm, &program, &step, &report) != RUN_OK) return 3;
  plow_close(vm);
  printf("%.4f\n", (double)((float *)arena)[0]);
  return 0;
}
