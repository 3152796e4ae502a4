// What the warps of a worker (one SM) share: roles, shared memory, the packet list, the ring, bounded waits.
//
//   warps 0..7  consumers  multiply weight stages of the ring with activations; attention
//   warp  8     epilogue   sums the consumers' parts of a tile, finishes it, publishes; small packets (embed, norm, sample)
//   warp  9     loader     walks the same list ahead of everybody and streams weights and KV pages into the ring; it never
//                          waits for an activation, so memory stays busy across packet borders
//   warp  10    leader     of worker 0 only: brings the host's jobs (resident.cuh)
#pragma once
#include "params.h"
#include "plow_abi.h"
#include "ptx.cuh"

constexpr int CONSUMERS = 8, EPILOGUE = 8, LOADER = 9, LEADER = 10;
constexpr int WARPS = 12;                          // three warpgroups; the last warp is idle
constexpr int STAGE = 16384;                       // bytes of a ring stage: 16 weight rows x 512 features, or KV pages
constexpr int STAGES = 12;                         // 192 KiB: 5.7 us of an SM's share of memory bandwidth
constexpr int GROUPS = 4;                          // pairs of consumer warps; pair q takes stages q, q + 4, ... of a tile
constexpr int SUMS = 4;                            // tiles between consumers and epilogue
constexpr int CHUNK = 1024;                        // bytes of 16 rows x 32 features
constexpr int SCRATCH = 16384;                     // attention: KV page of the step's own rows, then partial sums;
                                                   // projections with one column: a KiB of activations for each warp
constexpr int WIDE = 16;                           // slabs of 8 chunks from which activations are streamed, not kept
constexpr uint32_t UNWRITTEN_WORD = 0xffffffffu;

struct __align__(128) Shared {
  uint8_t ring[STAGES][STAGE];
  float4 sums[SUMS][CONSUMERS][32];                // partial 16 x 8 tiles as mma accumulators
  uint8_t scratch[SCRATCH];
  uint16_t q[1024];                                // attention: rotated queries, bf16 [head of the group][head_dim]
  float peak[CONSUMERS][8], mass[CONSUMERS][8];    // attention: running maximum and sum of a warp, by head
  uint64_t full[STAGES], empty[STAGES], sums_full[SUMS], sums_empty[SUMS];
};

// A packet in a warp: lane l holds word l of the record. Every lane must take part in reading a field.
struct Record {
  uint32_t word;
  __device__ __forceinline__ uint32_t at(int i) const { return __shfl_sync(~0u, word, i); }
  __device__ __forceinline__ uint32_t opcode() const { return at(0) & 0xffff; }
  __device__ __forceinline__ uint32_t flags() const { return at(0) >> 16; }
  __device__ __forceinline__ uint32_t signal() const { return at(8) & 0xffff; }
  __device__ __forceinline__ uint32_t epilogue() const { return at(9) & 0xffff; }
  __device__ __forceinline__ uint32_t operand(int i) const { return at(10 + i); }
  __device__ __forceinline__ uint32_t dim(int i) const { return at(18 + i); }
  __device__ __forceinline__ float imm(int i) const { return __uint_as_float(at(30 + i)); }
};
// One warp's walk over the worker's list, step after step, job after job.
struct Walk {
  uint32_t hot;                                    // lane l: word l of the job
  uint32_t n_steps, n_rows;
  uint8_t* arena;
  const uint32_t* list;                            // this lane's word of the worker's first packet
  uint32_t count, next1, next2;
  Record now;
  uint32_t packet, step;                           // step of the job
  uint32_t job = 0;                                // jobs of the launch that were taken

  static __device__ __forceinline__ uint32_t lane() { return threadIdx.x & 31; }
  // Fields of the job: every lane must take part.
  __device__ __forceinline__ uint32_t at(uint32_t word) const { return __shfl_sync(~0u, hot, word); }
  __device__ __forceinline__ uint32_t position(uint32_t row) const { return at(JOB_POSITIONS + row) + step; }
  __device__ __forceinline__ uint32_t slot(uint32_t row) const { return at(JOB_SLOTS + row); }
  __device__ __forceinline__ uint64_t pointer(uint32_t word) const { return at(word) | (uint64_t)at(word + 1) << 32; }
  __device__ __forceinline__ uint32_t ended_before() const { return at(JOB_STEP_BASE) + step; }   // steps before this one
  // The block of the page table that holds a page of a slot; it may change between jobs.
  __device__ __forceinline__ const uint32_t* block(uint32_t slot, uint32_t page) const {
    return (const uint32_t*)pointer(JOB_PAGE_TABLE) + (uint64_t)slot * at(JOB_BLOCKS_PER_SEQ) + page;
  }
  // The whole job in device memory; written before this job began, so relaxed loads see it.
  __device__ __forceinline__ const Job& cold(const Params& p) const { return p.jobs[(p.first_job + job - 1) % JOB_RING]; }

  __device__ __forceinline__ void mark(const Params& p, int point, bool on) const {
    const uint64_t packets = at(JOB_MAX_PACKETS);
    if (on && step + 1 == n_steps) p.trace[(blockIdx.x * packets + packet) * 4 + point] = global_time();
  }

  // Waits for the next job; false: leave. Unbounded: the leader always brings one.
  __device__ __forceinline__ bool take_job(const Params& p) {
    uint32_t n = 0;
    while (__any_sync(~0u, (int32_t)(load_acquire(p.board + BOARD_POSTED) - (job + 1)) < 0)) {
      if (++n > 16) __nanosleep(64);
      if (n % 1024 == 0 && __any_sync(~0u, load_word(p.board + BOARD_STOP))) return false;
    }
    hot = load_word((const uint32_t*)(p.jobs + (p.first_job + job) % JOB_RING) + lane());
    job++, packet = 0, step = 0;
    n_steps = at(JOB_N_STEPS), n_rows = at(JOB_N_ROWS), arena = (uint8_t*)pointer(JOB_ARENA);
    if (n_steps == 0) return false;
    list = (const uint32_t*)pointer(JOB_PACKETS) + (uint64_t)blockIdx.x * at(JOB_MAX_PACKETS) * 32 + lane();
    count = __ldg((const uint32_t*)pointer(JOB_COUNTS) + blockIdx.x);
    now.word = fetch(0);
    next1 = fetch(count > 1 ? 1 : 0);
    next2 = fetch(2 % count);
    return true;
  }
  // Fetched two packets ahead by a volatile load: the compiler sinks a plain one to its use, which costs ~2,000 cycles a packet.
  __device__ __forceinline__ uint32_t fetch(uint32_t i) const {
    uint32_t v;
    asm volatile("ld.global.nc.u32 %0, [%1];" : "=r"(v) : "l"(list + (uint64_t)i * 32) : "memory");
    return v;
  }
  __device__ __forceinline__ void advance() {
    now.word = next1;
    next1 = next2;
    if (++packet == count) packet = 0, step++;
    uint32_t ahead = packet + 2;
    while (ahead >= count) ahead -= count;
    next2 = fetch(ahead);
  }
};

// ---- bounded waits. A wait that lasts NOTE_MS leaves a note in mapped host memory, one that lasts LIMIT_MS stops the kernel:
// far enough apart that every warp that waits has left its note by then, and the host finds the culprit among them. To stop
// means that every warp ends by itself, from a wait or before its next job: a trap would take the context with it.
enum What : uint32_t { WAIT_FULL = 1, WAIT_EMPTY, WAIT_SUMS, WAIT_ROOM, WAIT_LANDED, WAIT_STEP, WAIT_VEC, WAIT_SSQ, WAIT_ROWS, WAIT_PARTIAL, WAIT_KEYS, WAIT_TOKEN };
constexpr uint32_t NOTE_MS = 150, LIMIT_MS = 900;
constexpr uint32_t LOOK = 1024;                    // a clock that is read in every turn of a spin loop slows it down

// Where consumers wait for each other; true once all of them are gone. A warp that ends must go on meeting until then.
__device__ __forceinline__ bool consumers_meet(bool gone = false) {
  uint32_t all;
  asm volatile("{.reg .pred p, q; setp.ne.u32 p, %1, 0; barrier.cta.red.and.aligned.pred q, 1, %2, p; selp.u32 %0, 1, 0, q;}"
               : "=r"(all) : "r"((uint32_t)gone), "n"(CONSUMERS * 32) : "memory");
  return all;
}
// Ends this warp; every lane is here.
__device__ __forceinline__ void end_warp() {
  if (threadIdx.x < CONSUMERS * 32)
    while (!consumers_meet(true)) {}
  asm volatile("exit;");
}
struct Patience {
  uint32_t turns = 0;
  __device__ __forceinline__ void turn(const Params& p, const Walk& w, uint32_t what, uint32_t have, uint32_t want) {
    if (++turns % LOOK == 0) look(p, w, what, have, want);
  }
  // The time of the first look stands in the note as well: a register for it would cost every wait.
  __device__ __forceinline__ void look(const Params& p, const Walk& w, uint32_t what, uint32_t have, uint32_t want) const {
    const unsigned long long now = global_time() >> 20;                // about milliseconds
    volatile unsigned long long* note = p.diag + DIAG_NOTES + (blockIdx.x * DIAG_WARPS + (threadIdx.x >> 5)) * DIAG_WORDS;
    if (turns == LOOK) note[2] = now;
    const uint32_t waited = (uint32_t)(now - note[2]);
    if (waited >= NOTE_MS) {
      note[1] = have | (unsigned long long)want << 32;
      note[0] = what | w.packet << 8 | (unsigned long long)w.step << 32;
    }
    if (waited >= LIMIT_MS) {
      *(volatile unsigned long long*)p.diag = 1;
      store_word(p.board + BOARD_STOP, 1);
    }
    if (__any_sync(__activemask(), load_word(p.board + BOARD_STOP))) end_warp();
  }
};
__device__ __forceinline__ void wait_barrier(const Params& p, const Walk& w, uint32_t bar, uint32_t parity, uint32_t what) {
  Patience patience;
  while (!barrier_try(bar, parity)) patience.turn(p, w, what, parity, parity ^ 1);
}
// Waits until every worker has ended `steps` steps.
__device__ __forceinline__ void wait_steps(const Params& p, const Walk& w, uint32_t steps) {
  if (p.flags & NO_WAITS) return;
  const uint32_t want = steps * p.workers;
  Patience patience;
  uint32_t have;
  while ((int32_t)((have = load_acquire(p.counters + 32 * STEP_COUNTER)) - want) < 0) patience.turn(p, w, WAIT_STEP, have, want);
}

// ---- the ring: stage i of a walk lies in slot i % STAGES, in the i / STAGES-th turn
struct Slot {
  uint32_t index, parity;
  __device__ __forceinline__ explicit Slot(uint32_t stage) : index(stage % STAGES), parity((stage / STAGES) & 1) {}
};

// ---- shapes that loader and consumers derive alike
__device__ __forceinline__ uint32_t chunks_of(uint32_t k) { return k / 32; }
__device__ __forceinline__ uint32_t stages_of(uint32_t k) { return (k / 32 + 15) / 16; }

#ifndef PLOW_SPLIT_PAGES
#define PLOW_SPLIT_PAGES 8
#endif
constexpr uint32_t SPLIT_PAGES = PLOW_SPLIT_PAGES; // a part of fewer pages is not worth the exchange of partial results

// The cached positions that one split of a row's attention reads: pages page0..page1, of them positions first..end.
struct Span {
  uint32_t page0, page1, first, end, position, used;
  bool newest;                                     // holds the position that the step before appended
  __device__ __forceinline__ Span(const Walk& w, uint32_t row, uint32_t split, uint32_t splits, uint32_t window) {
    position = w.position(row);
    end = position;
    for (uint32_t j = 0; j < w.n_rows; j++)        // rows of the same sequence in this step are not in the pages yet
      if (w.slot(j) == w.slot(row)) end = min(end, w.position(j));
    first = window && position + 1 > window ? position + 1 - window : 0;
    const uint32_t low = first / KV_BLOCK, high = (end + KV_BLOCK - 1) / KV_BLOCK, pages = end > first ? high - low : 0;
    const uint32_t each = max((pages + splits - 1) / splits, SPLIT_PAGES);
    used = max((pages + each - 1) / each, 1u);
    page0 = low + min(split * each, pages);
    page1 = low + min((split + 1) * each, pages);
    newest = page1 > page0 && page1 == high;
  }
};
