// What the warps of a worker (one SM) share: roles, shared memory, the packet list, the ring, bounded waits.
//
//   warps 0..7  consumers  multiply weight stages of the ring with activations; attention
//   warp  8     epilogue   sums the consumers' parts of a tile, finishes it, publishes; small packets (embed, norm, sample)
//   warp  9     loader     walks the same list ahead of everybody and streams weights and KV pages into the ring; it never
//                          waits for an activation, so memory stays busy across packet borders
#pragma once
#include "params.h"
#include "plow_abi.h"
#include "ptx.cuh"

constexpr int CONSUMERS = 8, EPILOGUE = 8, LOADER = 9;
constexpr int WARPS = 12;                          // three warpgroups; the last two warps are idle
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
// Fetched two packets ahead by a volatile load: the compiler sinks a plain one to its use, which costs ~2,000 cycles a packet.
__device__ __forceinline__ uint32_t fetch(const Params& p, uint32_t i) {
  uint32_t v;
  const uint32_t* at = p.packets + ((uint64_t)blockIdx.x * p.max_packets + i) * 32 + (threadIdx.x & 31);
  asm volatile("ld.global.nc.u32 %0, [%1];" : "=r"(v) : "l"(at) : "memory");
  return v;
}

// One warp's walk over the worker's list, step after step.
struct Walk {
  uint32_t count, next1, next2;
  Record now;
  uint32_t packet = 0, step = 0;                   // step of the launch
  __device__ explicit Walk(const Params& p) {
    count = p.counts[blockIdx.x];
    now.word = fetch(p, 0);
    next1 = fetch(p, count > 1 ? 1 : 0);
    next2 = fetch(p, 2 % count);
  }
  static __device__ __forceinline__ uint32_t lane() { return threadIdx.x & 31; }
  __device__ __forceinline__ void advance(const Params& p) {
    now.word = next1;
    next1 = next2;
    if (++packet == count) packet = 0, step++;
    uint32_t ahead = packet + 2;
    while (ahead >= count) ahead -= count;
    next2 = fetch(p, ahead);
  }
};

// ---- bounded waits. A wait that never ends leaves a record in mapped host memory and stops the kernel. The limits are
// counts: a clock in a spin loop is read in every turn and slows it down.
enum What : uint32_t { WAIT_FULL = 1, WAIT_EMPTY, WAIT_SUMS, WAIT_ROOM, WAIT_LANDED, WAIT_STEP, WAIT_VEC, WAIT_SSQ, WAIT_ROWS, WAIT_PARTIAL, WAIT_KEYS, WAIT_TOKEN };
constexpr uint32_t POLLS = 1u << 21, TRIES = 1u << 24;

constexpr uint32_t LATE = 8;                       // a wait is late after 1 / LATE of its limit

// A wait in its n-th turn: a late one notes what this warp waits for, one at its limit stops the kernel. The limits are far
// enough apart that every warp that waits has left its note by then: the host finds the culprit among them.
__device__ __forceinline__ void waiting(const Params& p, const Walk& w, uint32_t n, uint32_t limit, uint32_t what, uint32_t have, uint32_t want) {
  if (n == limit / LATE) {
    volatile unsigned long long* note = p.diag + DIAG_NOTES + (blockIdx.x * DIAG_WARPS + (threadIdx.x >> 5)) * 2;
    note[0] = what | w.packet << 8 | (unsigned long long)w.step << 32;
    note[1] = have | (unsigned long long)want << 32;
    __threadfence_system();
  } else if (n > limit) {
    *(volatile unsigned long long*)p.diag = 1;
    __threadfence_system();
    __trap();
  }
}
__device__ __forceinline__ void wait_barrier(const Params& p, const Walk& w, uint32_t bar, uint32_t parity, uint32_t what) {
  uint32_t n = 0;
  while (!barrier_try(bar, parity))
    if (++n >= TRIES / LATE) waiting(p, w, n, TRIES, what, parity, parity ^ 1);
}
// Waits until every worker has ended `steps` steps of this program.
__device__ __forceinline__ void wait_steps(const Params& p, const Walk& w, uint32_t steps) {
  if (p.flags & NO_WAITS) return;
  const uint32_t want = steps * p.workers;
  uint32_t n = 0, have;
  while ((int32_t)((have = load_acquire(p.counters + 32 * STEP_COUNTER)) - want) < 0)
    if (++n >= POLLS / LATE) waiting(p, w, n, POLLS, WAIT_STEP, have, want);
}

// ---- the ring: stage i of a walk lies in slot i % STAGES, in the i / STAGES-th turn
struct Slot {
  uint32_t index, parity;
  __device__ __forceinline__ explicit Slot(uint32_t stage) : index(stage % STAGES), parity((stage / STAGES) & 1) {}
};
__device__ __forceinline__ void consumers_meet() { asm volatile("bar.sync 1, %0;" ::"n"(CONSUMERS * 32) : "memory"); }

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
  __device__ __forceinline__ Span(const Params& p, uint32_t row, uint32_t split, uint32_t splits, uint32_t window, uint32_t step) {
    position = p.positions[row] + step;
    end = position;
    for (uint32_t j = 0; j < p.n_rows; j++)        // rows of the same sequence in this step are not in the pages yet
      if (p.slots[j] == p.slots[row]) end = min(end, p.positions[j] + step);
    first = window && position + 1 > window ? position + 1 - window : 0;
    const uint32_t low = first / KV_BLOCK, high = (end + KV_BLOCK - 1) / KV_BLOCK, pages = end > first ? high - low : 0;
    const uint32_t each = max((pages + splits - 1) / splits, SPLIT_PAGES);
    used = max((pages + each - 1) / each, 1u);
    page0 = low + min(split * each, pages);
    page1 = low + min((split + 1) * each, pages);
    newest = page1 > page0 && page1 == high;
  }
};
