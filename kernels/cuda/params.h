// Kernel parameters, passed by value; the host side is PARAMS in plow/runtime/cuda_params.py.
#pragma once
#include <cstdint>

constexpr int MAX_ROWS = 8;  // columns of an mma tile: rows that one step computes

struct Params {
  const uint32_t* packets;     // [workers][max_packets][32] words
  const uint32_t* counts;      // [workers] packets of each list
  uint8_t* arena;
  uint32_t* counters;          // counter c at word 32 c, monotonic over launches
  const int32_t* page_table;   // [slots][blocks_per_seq]
  int32_t* out_tokens;         // [n_steps][MAX_ROWS], by sample
  unsigned long long* diag;    // mapped host memory: [0] 1 = a wait ran into its limit; then notes [workers][DIAG_WARPS][2]
  unsigned long long* trace;   // null or [workers][max_packets][4] ns: start, ready, done, published (last step)
  uint64_t published_offset, published_bytes;
  uint32_t max_packets, workers, blocks_per_seq, n_steps, n_rows;
  uint32_t step_base;          // steps that this program has completed
  uint32_t flags;              // Diagnosis; results are wrong by design
  uint32_t inflight;           // ring stages that the loader keeps in flight
  uint32_t tokens[MAX_ROWS], positions[MAX_ROWS], slots[MAX_ROWS];
  int32_t sample_index[MAX_ROWS];
};

constexpr int DIAG_NOTES = 16, DIAG_WARPS = 12;

enum Diagnosis : uint32_t { NO_WAITS = 1, NO_MATH = 2, NO_ATTENTION = 4, NO_LOADS = 8 };
