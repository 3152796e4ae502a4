// The loader warp: bulk copies of weight tiles and KV pages into the ring, in the order in which consumers take them.
#pragma once
#include "worker.cuh"

struct Loader {
  const Params& p;
  Shared& s;
  Walk walk;
  uint64_t policy = evict_first();
  uint32_t stage = 0, landing = 0;                 // next stage to fill; oldest stage in flight
  uint32_t ended;                                  // steps of the program that are known to have ended

  __device__ Loader(const Params& p, Shared& s) : p(p), s(s), walk(p), ended(p.step_base) {}
  __device__ __forceinline__ uint32_t ring() const { return shared_address(s.ring); }
  __device__ __forceinline__ uint32_t full(Slot slot) const { return shared_address(s.full) + slot.index * 8; }
  // Waits for room in the ring and for the bound on bytes in flight (queued loads delay every poll on the chip, and no
  // more than 64 KiB are needed); returns the slot. Lane 0 only.
  __device__ __forceinline__ Slot room() {
    if (stage - landing >= p.inflight) {
      const Slot old(landing++);
      wait_barrier(p, walk, full(old), old.parity, WAIT_LANDED);
    }
    const Slot slot(stage++);
    wait_barrier(p, walk, shared_address(s.empty) + slot.index * 8, slot.parity ^ 1, WAIT_EMPTY);
    return slot;
  }
  __device__ __forceinline__ void weights(const uint8_t* from, uint32_t bytes) {
    const Slot slot = room();
    if (p.flags & NO_LOADS) return barrier_arrive(full(slot));
    barrier_expect(full(slot), bytes);
    bulk_copy(ring() + slot.index * STAGE, from, bytes, full(slot), policy);
  }
  // tiles tile by tile; with many features two tiles side by side, four stages of each in turn
  __device__ __forceinline__ void linear(const Record& r) {
    const uint32_t tile0 = r.dim(STREAM_LINEAR_D_TILE0), tiles = r.dim(STREAM_LINEAR_D_TILE1) - tile0, k = r.dim(STREAM_LINEAR_D_K);
    const uint32_t bytes = k * 32, stages = stages_of(k);
    const uint8_t* from = p.arena + (uint64_t)r.operand(STREAM_LINEAR_WEIGHT) * ALIGN + (uint64_t)tile0 * bytes;
    if (walk.lane()) return;
    auto copy = [&](uint32_t tile, uint32_t s) {
      weights(from + (uint64_t)tile * bytes + (uint64_t)s * STAGE, min((uint32_t)STAGE, bytes - s * STAGE));
    };
    if (stages * 2 <= WIDE) {
      for (uint32_t t = 0; t < tiles; t++)
        for (uint32_t s = 0; s < stages; s++) copy(t, s);
    } else {
      for (uint32_t t = 0; t < tiles; t += 2)
        for (uint32_t s0 = 0; s0 < stages; s0 += GROUPS)
          for (uint32_t u = t; u < min(t + 2, tiles); u++)
            for (uint32_t s = s0; s < min(s0 + GROUPS, stages); s++) copy(u, s);
    }
  }
  __device__ __forceinline__ void pages(const Record& r) {
    const uint32_t row = r.dim(STREAM_ATTENTION_D_ROW), head = r.dim(STREAM_ATTENTION_D_KV_HEAD), heads = r.dim(STREAM_ATTENTION_D_NUM_KV_HEADS);
    const uint32_t bytes = 64 * r.dim(STREAM_ATTENTION_D_HEAD_DIM), window = r.dim(STREAM_ATTENTION_D_WINDOW);
    const uint32_t split = r.dim(STREAM_ATTENTION_D_SPLIT), splits = r.dim(STREAM_ATTENTION_D_SPLITS);
    const uint8_t* kv = p.arena + (uint64_t)r.operand(STREAM_ATTENTION_KV) * ALIGN + (uint64_t)head * bytes;
    if (row >= p.n_rows) return;
    const Span span(p, row, split, splits, window, walk.step);
    const int32_t* table = p.page_table + (uint64_t)p.slots[row] * p.blocks_per_seq;
    const uint32_t each = STAGE / bytes, before = p.step_base + walk.step;
    if (walk.step > 1) see(before - 1);            // appended by steps before the last one: has long ended
    for (uint32_t page = span.page0; page < span.page1; page += 32) {
      const uint32_t n = min(32u, span.page1 - page);
      const int32_t id = walk.lane() < n ? __ldg(table + page + walk.lane()) : 0;
      for (uint32_t i = 0; i < n; i += each) {
        const uint32_t m = min(each, n - i);
        if (walk.step && span.newest && page + i + m == span.page1) see(before);
        Slot slot(0);
        if (walk.lane() == 0) {
          slot = room();
          if (p.flags & NO_LOADS) barrier_arrive(full(slot));
          else barrier_expect(full(slot), m * bytes);
        }
        for (uint32_t j = 0; j < m; j++) {
          const uint32_t block = __shfl_sync(~0u, id, i + j);
          if (walk.lane() == 0 && !(p.flags & NO_LOADS))
            bulk_copy(ring() + slot.index * STAGE + j * bytes, kv + (uint64_t)block * heads * bytes, bytes, full(slot), policy);
        }
      }
    }
  }
  // Makes the pages that steps up to `steps` appended visible to bulk copies.
  __device__ __forceinline__ void see(uint32_t steps) {
    if ((int32_t)(ended - steps) >= 0) return;
    if (walk.lane() == 0) {
      wait_steps(p, walk, steps);
      fence_async();
    }
    ended = steps;
    __syncwarp();
  }
  __device__ void run() {
    for (; walk.step < p.n_steps; walk.advance(p)) {
      const uint32_t op = walk.now.opcode();
      if (op == OP_STREAM_LINEAR || op == OP_STREAM_HEAD) linear(walk.now);
      else if (op == OP_STREAM_ATTENTION) pages(walk.now);
      __syncwarp();
    }
  }
};
static_assert(STREAM_LINEAR_WEIGHT == STREAM_HEAD_WEIGHT && STREAM_LINEAR_X == STREAM_HEAD_X && STREAM_LINEAR_SSQ == STREAM_HEAD_SSQ, "LINEAR and HEAD share operands");
