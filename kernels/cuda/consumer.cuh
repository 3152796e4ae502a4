// State of a consumer warp that linear.cuh and attention.cuh share.
#pragma once
#include "published.cuh"

struct Consumer {
  const Params& p;
  Shared& s;
  Walk walk;
  uint32_t stage = 0;                              // stages of all packets before this one
  uint32_t tile = 0;                               // tiles handed to the epilogue so far
  bool idle = false;                               // some warps had no stage in the packet before
  bool fresh = true;                               // nothing was polled in this step yet

  __device__ Consumer(const Params& p, Shared& s) : p(p), s(s) {}
  static __device__ __forceinline__ uint32_t warp() { return threadIdx.x >> 5; }
  static __device__ __forceinline__ uint32_t lane() { return threadIdx.x & 31; }
  // lane = 4 g + q: row g of an mma operand, columns 2q, 2q + 1
  static __device__ __forceinline__ uint32_t g() { return lane() >> 2; }
  static __device__ __forceinline__ uint32_t q() { return threadIdx.x & 3; }
  // a pair of warps takes every fourth stage; half of a stage is this warp's slab
  static __device__ __forceinline__ uint32_t pair() { return threadIdx.x >> 6; }
  static __device__ __forceinline__ uint32_t half() { return threadIdx.x >> 5 & 1; }
  __device__ __forceinline__ uint32_t ring(Slot slot) const { return shared_address(s.ring) + slot.index * STAGE; }
  // Before the first poll of a step: the other copies were re-armed, and old readers are gone, once the last step ended.
  __device__ __forceinline__ void begin_step() {
    if (!fresh) return;
    fresh = false;
    const uint32_t before = walk.ended_before();
    if (warp() == 0) wait_steps(p, walk, before);
    consumers_meet();
  }
  __device__ __forceinline__ void wait_full(Slot slot) { wait_barrier(p, walk, shared_address(s.full) + slot.index * 8, slot.parity, WAIT_FULL); }
  __device__ __forceinline__ void release(Slot slot, uint32_t count = 1) {
    __syncwarp();
    if (lane() == 0) barrier_arrive(shared_address(s.empty) + slot.index * 8, count);
  }
  // Gives this warp's part of a tile to the epilogue; warps without a part only take part in the hand-over.
  // With one column only its 16 rows are given.
  __device__ __forceinline__ void hand_over(float4 part, bool has_part, bool one) {
    const uint32_t slot = tile % SUMS, parity = (tile / SUMS) & 1;
    wait_barrier(p, walk, shared_address(s.sums_empty) + slot * 8, parity ^ 1, WAIT_ROOM);
    if (has_part && !one) s.sums[slot][warp()][lane()] = part;
    float* rows = (float*)s.sums[slot][warp()];
    if (has_part && one && q() == 0) rows[g()] = part.x, rows[g() + 8] = part.z;
    __syncwarp();
    if (lane() == 0) barrier_arrive(shared_address(s.sums_full) + slot * 8);
    tile++;
  }
  __device__ __forceinline__ void mark(int point) {
    if (p.trace && warp() == 0) walk.mark(p, point, lane() == 0);
  }
};
