// The loader warp: bulk copies of weight tiles and KV pages into the ring, in the order in which consumers take them.
#pragma once
#include "worker.cuh"

struct Loader {
  const Params& p;
  Shared& s;
  Walk walk;
  uint64_t policy = evict_first();
  // Next stage to fill and oldest stage in flight: slot, and parity of its turn. Counted up, not divided: one warp does all
  // of this, and the time of its instructions is the time between two copies.
  uint32_t slot = 0, turn = 0, old_slot = 0, old_turn = 0, flying = 0;
  uint32_t ended = 0;                              // steps that are known to have ended

  __device__ Loader(const Params& p, Shared& s) : p(p), s(s) {}
  static __device__ __forceinline__ void next(uint32_t& slot, uint32_t& turn) {
    if (++slot == STAGES) slot = 0, turn ^= 1;
  }
  // Waits for room in the ring and for the bound on bytes in flight (queued loads delay every poll on the chip, and no
  // more than 64 KiB are needed); returns the slot.
  __device__ __forceinline__ uint32_t room() {
    if (flying >= p.inflight) {
      wait_barrier(p, walk, shared_address(s.full) + old_slot * 8, old_turn, WAIT_LANDED);
      next(old_slot, old_turn);
    } else {
      flying++;
    }
    const uint32_t now = slot;
    wait_barrier(p, walk, shared_address(s.empty) + now * 8, turn ^ 1, WAIT_EMPTY);
    next(slot, turn);
    return now;
  }
  __device__ __forceinline__ void weights(const uint8_t* from, uint32_t bytes) {
    const uint32_t now = room(), full = shared_address(s.full) + now * 8;
    if (walk.lane() == 0) {
      if (p.flags & NO_LOADS) {
        barrier_arrive(full);
      } else {
        barrier_expect(full, bytes);
        bulk_copy(shared_address(s.ring) + now * STAGE, from, bytes, full, policy);
      }
    }
    __syncwarp();
  }
  // tiles tile by tile; with many features two tiles side by side, four stages of each in turn
  __device__ __forceinline__ void linear(const Record& r) {
    const uint32_t tile0 = r.dim(STREAM_LINEAR_D_TILE0), tiles = r.dim(STREAM_LINEAR_D_TILE1) - tile0, k = r.dim(STREAM_LINEAR_D_K);
    const uint32_t bytes = k * 32, stages = stages_of(k);
    const uint8_t* from = walk.arena + (uint64_t)r.operand(STREAM_LINEAR_WEIGHT) * ALIGN + (uint64_t)tile0 * bytes;
    if (stages * 2 > WIDE) {
      for (uint32_t t = 0; t < tiles; t += 2, from += 2 * bytes) {
        const uint32_t side = min(2u, tiles - t);
        for (uint32_t s0 = 0; s0 < stages; s0 += GROUPS)
          for (uint32_t u = 0; u < side; u++) run_of(from + u * bytes + s0 * STAGE, min(GROUPS * STAGE, bytes - s0 * STAGE));
      }
    } else if (bytes % STAGE == 0) {
      run_of(from, tiles * bytes);
    } else {
      for (uint32_t t = 0; t < tiles; t++, from += bytes) run_of(from, bytes);
    }
  }
  __device__ __forceinline__ void run_of(const uint8_t* from, uint32_t bytes) {
#pragma unroll 1
    for (; bytes >= STAGE; bytes -= STAGE, from += STAGE) weights(from, STAGE);
    if (bytes) weights(from, bytes);
  }
  __device__ __forceinline__ void pages(const Record& r) {
    const uint32_t row = r.dim(STREAM_ATTENTION_D_ROW), head = r.dim(STREAM_ATTENTION_D_KV_HEAD), heads = r.dim(STREAM_ATTENTION_D_NUM_KV_HEADS);
    const uint32_t bytes = 64 * r.dim(STREAM_ATTENTION_D_HEAD_DIM), window = r.dim(STREAM_ATTENTION_D_WINDOW);
    const uint32_t split = r.dim(STREAM_ATTENTION_D_SPLIT), splits = r.dim(STREAM_ATTENTION_D_SPLITS);
    const uint8_t* kv = walk.arena + (uint64_t)r.operand(STREAM_ATTENTION_KV) * ALIGN + (uint64_t)head * bytes;
    if (row >= walk.n_rows) return;
    const Span span(walk, row, split, splits, window);
    const uint32_t* table = walk.block(walk.slot(row), 0);
    const uint32_t each = STAGE / bytes, before = walk.ended_before();
    see(walk.step ? before - 1 : before);          // appended before the last step: has long ended; a job before may append anywhere
    for (uint32_t page = span.page0; page < span.page1; page += 32) {
      const uint32_t n = min(32u, span.page1 - page);
      const uint32_t id = walk.lane() < n ? load_word(table + page + walk.lane()) : 0;
      for (uint32_t i = 0; i < n; i += each) {
        const uint32_t m = min(each, n - i);
        if (span.newest && page + i + m == span.page1) see(before);
        const uint32_t now = room();
        if (walk.lane() == 0) {
          if (p.flags & NO_LOADS) barrier_arrive(shared_address(s.full) + now * 8);
          else barrier_expect(shared_address(s.full) + now * 8, m * bytes);
        }
        for (uint32_t j = 0; j < m; j++) {
          const uint32_t block = __shfl_sync(~0u, id, i + j);
          if (walk.lane() == 0 && !(p.flags & NO_LOADS))
            bulk_copy(shared_address(s.ring) + now * STAGE + j * bytes, kv + (uint64_t)block * heads * bytes, bytes, shared_address(s.full) + now * 8, policy);
        }
      }
    }
  }
  // Makes the pages that steps up to `steps` appended visible to bulk copies.
  __device__ __forceinline__ void see(uint32_t steps) {
    if ((int32_t)(ended - steps) >= 0) return;
    wait_steps(p, walk, steps);
    if (walk.lane() == 0) fence_async();
    ended = steps;
    __syncwarp();
  }
  __device__ void run() {
    while (walk.take_job(p)) {
      if (walk.job == 1) ended = walk.ended_before();                // a launch orders what came before
      for (; walk.step < walk.n_steps; walk.advance()) {
        const uint32_t op = walk.now.opcode();
        if (op == OP_STREAM_LINEAR || op == OP_STREAM_HEAD) linear(walk.now);
        else if (op == OP_STREAM_ATTENTION) pages(walk.now);
        __syncwarp();
      }
    }
  }
};
static_assert(STREAM_LINEAR_WEIGHT == STREAM_HEAD_WEIGHT && STREAM_LINEAR_X == STREAM_HEAD_X && STREAM_LINEAR_SSQ == STREAM_HEAD_SSQ, "LINEAR and HEAD share operands");
