// Published values: their words are their own flags (UNWRITTEN = not written in this step). No fence and no counter orders
// them; each has two copies by step parity, and who writes a word re-arms it in the other copy. That copy's readers have
// all ended: every warp waits for the end of the step before, once a step, before it polls or publishes.
#pragma once
#include "worker.cuh"

__device__ __forceinline__ bool written(uint4 v) {
  return v.x != UNWRITTEN_WORD && v.y != UNWRITTEN_WORD && v.z != UNWRITTEN_WORD && v.w != UNWRITTEN_WORD;
}

// Where this step's copy lies, and the way from it to the other one.
struct Copy {
  uint64_t offset;
  int64_t other;
  __device__ __forceinline__ Copy(const Walk& w) {
    const bool odd = (w.at(JOB_PARITY) + w.step) & 1;
    const int64_t bytes = (int64_t)w.at(JOB_PUBLISHED) * ALIGN;
    offset = odd ? bytes : 0;
    other = odd ? -bytes : bytes;
  }
};
__device__ __forceinline__ uint8_t* address(const Walk& w, uint32_t operand) { return w.arena + (uint64_t)operand * ALIGN; }

__device__ __forceinline__ void publish(uint8_t* to, int64_t other, uint32_t word, bool active) {
  if (active) store_word(to, word);
  store_word(to + other, UNWRITTEN_WORD);
}

// Byte offset of feature k of a column in a vec.
__device__ __forceinline__ uint32_t vec_offset(uint32_t k, uint32_t column, uint32_t cols) {
  return ((k >> 5) * cols + column) * 64 + (k & 31) * 2;
}

// A logit and its id as one number: the larger logit first, then the smaller id. NaN never wins.
__device__ __forceinline__ unsigned long long ordered(float v, uint32_t id) {
  const uint32_t u = __float_as_uint(v), up = !(v == v) ? 0 : u & 0x80000000u ? ~u : u | 0x80000000u;
  return (unsigned long long)up << 32 | (uint32_t)~id;
}
__device__ __forceinline__ float unordered(unsigned long long key) {
  const uint32_t up = key >> 32;
  return __uint_as_float(up & 0x80000000u ? up & 0x7fffffffu : ~up);
}

// ---- polling N 16-byte words; only what is missing is read again. `on(j)`: whether word j exists for this lane.
template <int N, class At, class On>
__device__ __forceinline__ void poll_issue(uint4 (&v)[N], At at, On on) {
#pragma unroll
  for (int j = 0; j < N; j++) {
    const uint32_t s = on(j) ? UNWRITTEN_WORD : 0;
    v[j] = make_uint4(s, s, s, s);
    load_four_if(v[j], at(j), on(j));
  }
}
template <int N, class At>
__device__ __forceinline__ void poll_settle(const Params& p, const Walk& w, uint4 (&v)[N], At at, uint32_t what) {
  Patience patience;
  while (true) {
    bool ok = true;
#pragma unroll
    for (int j = 0; j < N; j++) ok &= written(v[j]);
    if (__all_sync(~0u, ok) || (p.flags & NO_WAITS)) return;
    patience.turn(p, w, what, N, 0);
#pragma unroll
    for (int j = 0; j < N; j++) load_four_if(v[j], at(j), !written(v[j]));
  }
}
// Looks at one word until it is there: keeps polling traffic low before many words are read.
template <class At>
__device__ __forceinline__ void poll_hint(const Params& p, const Walk& w, At at, bool on, uint32_t what) {
  if (p.flags & NO_WAITS) return;
  Patience patience;
  while (true) {
    uint4 v = make_uint4(0, 0, 0, 0);
    load_four_if(v, at(), on);
    if (__all_sync(~0u, written(v))) return;
    patience.turn(p, w, what, 0, 0);
  }
}
// N single words.
template <int N, class At, class On>
__device__ __forceinline__ void poll_words(const Params& p, const Walk& w, uint32_t (&v)[N], At at, On on, uint32_t what) {
#pragma unroll
  for (int j = 0; j < N; j++) v[j] = on(j) ? UNWRITTEN_WORD : 0;
  Patience patience;
  while (true) {
    bool ok = true;
#pragma unroll
    for (int j = 0; j < N; j++) load_word_if(v[j], at(j), v[j] == UNWRITTEN_WORD);
#pragma unroll
    for (int j = 0; j < N; j++) ok &= v[j] != UNWRITTEN_WORD;
    if (__all_sync(~0u, ok) || (p.flags & NO_WAITS)) return;
    patience.turn(p, w, what, N, 0);
  }
}
// Key `i` of a row, 0 behind the last one; the warp goes on when all of its lanes have theirs.
__device__ __forceinline__ unsigned long long poll_key(const Params& p, const Walk& w, const uint8_t* keys, uint32_t i, uint32_t count) {
  Patience patience;
  while (true) {
    const unsigned long long k = i < count ? load_pair(keys + i * 8) : 0;
    if (__all_sync(~0u, k != ~0ull) || (p.flags & NO_WAITS)) return k;
    patience.turn(p, w, WAIT_KEYS, i, 0);
  }
}
