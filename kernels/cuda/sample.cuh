// A row's token by its sampling parameters (plow/runtime/sampler.py says what is meant), by all consumer warps of a worker.
//
// Candidates are ordered by logit, equal ones by id: by `key`. With x = (best - logit) / temperature a candidate has the mass
// exp(-x). Both questions have one form: which candidate is the first at which the sum over the ones before it and itself
// reaches a number (top_k), or a share of the total mass (top_p; the pick). A histogram over x narrows the answer down to a
// bin, until the bin's candidates fit into a list that is sorted. Sums are integers inside a bin and have one order over
// bins, so a token is bitwise repeatable.
#pragma once
#include "consumer.cuh"

struct Sampler {
  static constexpr uint32_t BINS = 1024, LIST = 512, LEVELS = 4, THREADS = CONSUMERS * 32;
  static constexpr float FINE = 67108864.f;        // a mass inside its bin is counted in units of 2^-26, in two halves
  static constexpr float REACH = 32;               // x of the last bin: what lies beyond has less than 1e-14 of the best's mass
  struct Level {
    float low, scale;                              // bin of x: (x - low) * scale
    uint32_t chosen;
  };
  struct Board {                                   // in shared memory, in place of attention's queries
    Level level[LEVELS];
    uint32_t bin, in_bin, listed;
    unsigned long long answer, best[CONSUMERS];
  };

  Consumer& c;
  const float* logits;
  uint32_t vocab;
  float best, inverse, min_mass;
  unsigned long long least = 0;                    // keys below it are cut
  uint32_t (*bins)[BINS];                          // count, mass (upper and lower half)
  unsigned long long* list;
  Board& board;

  __device__ __forceinline__ Sampler(Consumer& c) : c(c), bins((uint32_t (*)[BINS])c.s.scratch), list((unsigned long long*)(c.s.scratch + 3 * BINS * 4)), board(*(Board*)c.s.q) {}
  static_assert(3 * BINS * 4 + LIST * 8 <= SCRATCH && sizeof(Board) <= sizeof(Shared::q), "the sampler works in attention's memory");

  static __device__ __forceinline__ unsigned long long mix(unsigned long long z) {          // splitmix64
    z += 0x9E3779B97F4A7C15ull;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ z >> 27) * 0x94D049BB133111EBull;
    return z ^ z >> 31;
  }
  __device__ __forceinline__ float x_of(float logit) const { return (best - logit) * inverse; }
  // The bin of a candidate at a level; the last level goes by id, for candidates that x cannot tell apart.
  __device__ __forceinline__ uint32_t bin_at(int l, float x, uint32_t id) const {
    if (l == LEVELS - 1) return id / ((vocab + BINS - 1) / BINS);
    return (uint32_t)fminf(fmaxf((x - board.level[l].low) * board.level[l].scale, 0), BINS - 1.f);
  }
  __device__ __forceinline__ float low_of(int depth, uint32_t bin) const {
    const Level& v = board.level[min(depth, (int)LEVELS - 2)];
    return v.low + (depth == LEVELS - 1 ? v.chosen : bin) / v.scale;
  }
  __device__ __forceinline__ double mass_of(int depth, uint32_t bin) const {
    return ((double)bins[1][bin] * 8192 + bins[2][bin]) * (1. / FINE) * __expf(-low_of(depth, bin));
  }
  // Every candidate that is kept and lies in the chosen bins above `depth`: counted in its bin, or listed if that is chosen.
  __device__ __forceinline__ void pass(int depth, bool listing) {
    if (!listing)
      for (uint32_t i = threadIdx.x; i < 3 * BINS; i += THREADS) ((uint32_t*)bins)[i] = 0;
    consumers_meet();
#pragma unroll 1
    for (uint32_t n0 = threadIdx.x * 4; n0 < vocab; n0 += THREADS * 4 * 4) {
      float4 v[4];
#pragma unroll
      for (int j = 0; j < 4; j++) v[j] = n0 + j * THREADS * 4 < vocab ? __ldcg((const float4*)(logits + n0 + j * THREADS * 4)) : make_float4(0, 0, 0, 0);
#pragma unroll
      for (int i = 0; i < 16; i++) {
        const float4& w = v[i / 4];
        const float logit = i % 4 == 0 ? w.x : i % 4 == 1 ? w.y : i % 4 == 2 ? w.z : w.w, x = x_of(logit);
        const uint32_t id = n0 + i / 4 * THREADS * 4 + i % 4;
        const unsigned long long key = ordered(logit, id);
        bool in = id < vocab && key >= least && __expf(-x) >= min_mass;
        for (int l = 0; l < depth; l++) in = in && bin_at(l, x, id) == board.level[l].chosen;
        if (!in) continue;
        const uint32_t bin = bin_at(depth, x, id);
        if (!listing) {
          const uint32_t m = (uint32_t)fminf(__expf(low_of(depth, bin) - x) * FINE, 2 * FINE);
          atomicAdd(&bins[0][bin], 1u), atomicAdd(&bins[1][bin], m >> 13), atomicAdd(&bins[2][bin], m & 8191);
        } else if (bin == board.level[depth].chosen) {
          const uint32_t at = atomicAdd(&board.listed, 1u);
          if (at < LIST) list[at] = key;
        }
      }
    }
    consumers_meet();
  }
  struct Limit {
    uint32_t count;                                // reached when so many candidates,
    double share;                                  // or this share of the total mass, have been passed;
    bool beyond;                                   // exceeded, not only reached
    __device__ __forceinline__ bool met(uint32_t n, double mass, double total) const {
      const double want = share * total;
      return n >= count || (beyond ? mass > want : mass >= want);
    }
  };
  // Warp 0: the first of `n` items (count, mass) at whose end the limit is met, else the last with a count. Sums of what lies
  // before it are added to `before`; total 0: the items' own mass.
  struct Before {
    uint32_t count;
    double mass, total;
  };
  template <class Count, class Mass>
  __device__ __forceinline__ uint32_t first_met(uint32_t n, const Limit& limit, Before& before, Count count_of, Mass mass_of) {
    const uint32_t each = (n + 31) / 32, from = min(c.lane() * each, n), to = min(from + each, n);
    uint32_t count = 0, last = 0;
    double mass = 0;
#pragma unroll 1
    for (uint32_t i = from; i < to; i++) {
      count += count_of(i), mass += mass_of(i);
      if (count_of(i)) last = i + 1;
    }
    uint32_t count_to = count;                     // with all lanes before
    double mass_to = mass;
    for (int o = 1; o < 32; o <<= 1) {
      const uint32_t m = __shfl_up_sync(~0u, count_to, o);
      const double q = __shfl_up_sync(~0u, mass_to, o);
      if (c.lane() >= o) count_to += m, mass_to += q;
    }
    for (int o = 16; o; o >>= 1) last = max(last, __shfl_xor_sync(~0u, last, o));
    if (before.total == 0) before.total = __shfl_sync(~0u, mass_to, 31);
    const uint32_t met = __ballot_sync(~0u, from < to && limit.met(before.count + count_to, before.mass + mass_to, before.total));
    const uint32_t lane = met ? __ffs(met) - 1 : (max(last, 1u) - 1) / each;
    uint32_t at = from;
    before.count += count_to - count, before.mass += mass_to - mass;
    for (const uint32_t end = met ? to : last; at + 1 < end; at++) {
      if (limit.met(before.count + count_of(at), before.mass + mass_of(at), before.total)) break;
      before.count += count_of(at), before.mass += mass_of(at);
    }
    before.count = __shfl_sync(~0u, before.count, lane), before.mass = __shfl_sync(~0u, before.mass, lane);
    return __shfl_sync(~0u, at, lane);
  }
  // The key of the first candidate, in order, at which the limit is met.
  __device__ __forceinline__ unsigned long long find(const Limit& limit) {
    Before before = {0, 0, 0};                     // warp 0's
    if (threadIdx.x == 0) board.level[0] = {0, BINS / REACH, 0};
    int depth = 0;
    bool listing = false;
#pragma unroll 1
    while (true) {
      consumers_meet();
      pass(depth, listing);
      if (listing) break;
      if (c.warp() == 0) {
        const uint32_t bin = first_met(BINS, limit, before, [&](uint32_t i) { return bins[0][i]; }, [&](uint32_t i) { return mass_of(depth, i); });
        if (c.lane() == 0) {
          const float low = low_of(depth, bin);
          board.level[depth].chosen = bin, board.in_bin = bins[0][bin], board.listed = 0;
          if (depth < (int)LEVELS - 2) board.level[depth + 1] = {low, board.level[depth].scale * BINS, 0};
        }
      }
      consumers_meet();
      listing = board.in_bin <= LIST || depth == LEVELS - 1;
      if (!listing) depth++;
    }
    const uint32_t n = min(board.listed, LIST);
    sort(n);
    if (c.warp() == 0) {
      const uint32_t at = first_met(n, limit, before, [](uint32_t) { return 1u; }, [&](uint32_t i) { return (double)__expf(-x_of(unordered(list[i]))); });
      if (c.lane() == 0) board.answer = list[at];
    }
    consumers_meet();
    const unsigned long long answer = board.answer;
    landed((uint32_t)answer | (uint32_t)(answer >> 32));
    return answer;
  }
  // Descending, bitonic over the next power of two.
  __device__ __forceinline__ void sort(uint32_t n) {
    uint32_t size = 2;
    while (size < n) size *= 2;
#pragma unroll 1
    for (uint32_t i = n + threadIdx.x; i < size; i += THREADS) list[i] = 0;
    consumers_meet();
#pragma unroll 1
    for (uint32_t k = 2; k <= size; k *= 2)
#pragma unroll 1
      for (uint32_t j = k / 2; j; j /= 2) {
#pragma unroll 1
        for (uint32_t i = threadIdx.x; i < size; i += THREADS) {
          const uint32_t other = i ^ j;
          if (other > i) {
            const unsigned long long a = list[i], b = list[other];
            if ((i & k) ? a > b : a < b) list[i] = b, list[other] = a;
          }
        }
        consumers_meet();
      }
  }
  // Of all workers' best keys; logits of all of them are visible after it.
  __device__ __forceinline__ unsigned long long best_key(const uint8_t* keys, uint32_t count) {
    unsigned long long top = 0;
    for (uint32_t i = 0; i < count; i += THREADS) {
      const unsigned long long k = poll_key(c.p, c.walk, keys, i + threadIdx.x, count);
      top = k > top ? k : top;
    }
    __threadfence();
    for (int o = 16; o; o >>= 1) {
      const unsigned long long k = __shfl_xor_sync(~0u, top, o);
      top = k > top ? k : top;
    }
    if (c.lane() == 0) board.best[c.warp()] = top;
    consumers_meet();
    for (int w = 0; w < CONSUMERS; w++) top = max(top, board.best[w]);
    return top;
  }
  __device__ __forceinline__ uint32_t token(const Record& r, uint32_t row) {
    const Job& job = c.walk.cold(c.p);
    const uint32_t keys = r.dim(STREAM_SAMPLE_D_KEYS);
    vocab = r.dim(STREAM_SAMPLE_D_VOCAB);
    logits = (const float*)address(c.walk, r.operand(STREAM_SAMPLE_LOGITS)) + (uint64_t)row * r.dim(STREAM_SAMPLE_D_LOGITS_STRIDE);
    best = unordered(best_key(address(c.walk, r.operand(STREAM_SAMPLE_KEYS)) + Copy(c.walk).offset + (uint64_t)row * keys * 8, keys));
    inverse = 1.f / __uint_as_float(load_word(&job.temperature[row]));
    const unsigned long long z = mix(load_pair(&job.seed[row]) + c.walk.position(row) * 0x9E3779B97F4A7C15ull);
    const uint32_t top_k = load_word(&job.top_k[row]);
    const float top_p = __uint_as_float(load_word(&job.top_p[row])), min_p = __uint_as_float(load_word(&job.min_p[row]));
    Limit cut = {top_k ? top_k : ~0u, top_p < 1 ? (double)top_p : 2., false};        // its shares are of all candidates
    bool picking = !top_k && !(top_p < 1);
#pragma unroll 1
    while (true) {
      if (picking) cut = {~0u, (double)(z >> 11) * 0x1p-53, true};
      min_mass = picking ? min_p : 0;
      const unsigned long long key = find(cut);
      if (picking) return ~(uint32_t)key;
      least = key, picking = true;
    }
  }
};

__device__ __forceinline__ void consume_sample(Consumer& c) {
  const Record r = c.walk.now;
  const uint32_t row = r.dim(STREAM_SAMPLE_D_ROW);
  if (row >= c.walk.n_rows || !(c.walk.at(JOB_SAMPLED) >> row & 1)) return;
  consumers_meet();                                // the packet before is done with shared memory
  c.begin_step();
  c.idle = false;
  const uint32_t token = Sampler(c).token(r, row);
  consumers_meet();
  c.hand_over(make_float4(__uint_as_float(token), 0, 0, 0), true, true);
}
