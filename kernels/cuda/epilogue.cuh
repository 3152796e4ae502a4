// The epilogue warp: finishes tiles (norm scale, residual, gate, logits) and publishes them; embed, norm and sample packets.
//
// Lane 4g + q holds a tile's rows g (x, y) and g + 8 (z, w) of columns 2q (x, z) and 2q + 1 (y, w).
#pragma once
#include "published.cuh"

template <bool ONE>  // one column
struct Epilogue {
  const Params& p;
  Shared& s;
  Walk walk;
  uint32_t lane, g, q, c0, sums_full, sums_empty;
  uint32_t tile = 0;                               // tiles taken from the consumers so far

  __device__ Epilogue(const Params& p, Shared& s) : p(p), s(s) {
    lane = threadIdx.x & 31, g = lane >> 2, q = lane & 3, c0 = 2 * q;
    sums_full = shared_address(s.sums_full), sums_empty = shared_address(s.sums_empty);
  }
  // The consumers' parts of the next tile, warps 0..3 and 4..7 added in order and then together, for all columns alike.
  __device__ __forceinline__ void wait_tile(uint32_t slot) {
    wait_barrier(p, walk, shared_address(s.sums_full) + slot * 8, (tile / SUMS) & 1, WAIT_SUMS);
    mark(2);
  }
  __device__ __forceinline__ void mark(int point) {
    if (p.trace) walk.mark(p, point, lane == 0);
  }
  __device__ __forceinline__ void give_back(uint32_t slot) {
    __syncwarp();
    if (lane == 0) barrier_arrive(shared_address(s.sums_empty) + slot * 8);
    tile++;
  }
  __device__ __forceinline__ float4 take(uint32_t parts) {
    const uint32_t slot = tile % SUMS;
    wait_tile(slot);
    float4 v[2] = {};
#pragma unroll
    for (int w = 0; w < CONSUMERS; w++)
      if (w < (int)parts) {
        const float4 u = s.sums[slot][w][lane];
        float4& to = v[w / 4];
        to.x += u.x, to.y += u.y, to.z += u.z, to.w += u.w;
      }
    v[0].x += v[1].x, v[0].y += v[1].y, v[0].z += v[1].z, v[0].w += v[1].w;
    landed(__float_as_uint(v[0].x) | __float_as_uint(v[0].y) | __float_as_uint(v[0].z) | __float_as_uint(v[0].w));
    give_back(slot);
    return v[0];
  }
  // The same with one column: row lane % 16 of the tile.
  __device__ __forceinline__ float take_one(uint32_t parts) {
    const uint32_t slot = tile % SUMS, first = (lane >> 4) * 4;
    wait_tile(slot);
    const float* sums = (const float*)s.sums[slot][first] + (lane & 15);
    float v = 0;
#pragma unroll
    for (int w = 0; w < 4; w++)
      if (first + w < parts) v += sums[w * 128];
    landed(__float_as_uint(v));
    give_back(slot);
    return v + __shfl_xor_sync(~0u, v, 16);
  }
  // Factors 1 / sqrt(mean square + eps) of columns 2q and 2q + 1. Tiles are added in one order whatever the columns.
  __device__ __forceinline__ float2 norm_scale(uint32_t operand, uint32_t k, uint32_t cols, float eps, const Copy& copy) {
    const uint8_t* ssq = address(walk, operand) + copy.offset;
    const uint32_t tiles = k / 16;
    const float inverse = __frcp_rn((float)k);
    float4 sum = make_float4(0, 0, 0, 0);
    if (ONE) {
      for (uint32_t j0 = 0; j0 < tiles; j0 += 128) {
        uint32_t v[8];
        auto at = [&](int j) { return ssq + (j0 + j * 16 + lane) * 4; };
        poll_words<8>(p, walk, v, at, [&](int j) { return lane < 16 && j0 + j * 16 + lane < tiles; }, WAIT_SSQ);
#pragma unroll
        for (int j = 0; j < 8; j++) sum.x += __uint_as_float(v[j]);
      }
#pragma unroll
      for (int o = 1; o < 16; o <<= 1) sum.x += __shfl_xor_sync(~0u, sum.x, o);
      const float f = rsqrtf(__shfl_sync(~0u, sum.x, 0) * inverse + eps);
      return make_float2(f, f);
    }
    for (uint32_t j0 = 0; j0 < tiles; j0 += 128) {
      uint4 v[8];
      auto at = [&](int j) { return ssq + (j0 + j * 16) * 32 + lane * 16; };
      poll_issue<8>(v, at, [&](int j) { return j0 + j * 16 + (lane >> 1) < tiles && (lane & 1) * 4 < walk.n_rows; });
      // columns beyond n_rows are never written: only the active ones of a word count
      Patience patience;
      const uint32_t left = walk.n_rows > (lane & 1) * 4 ? walk.n_rows - (lane & 1) * 4 : 0;
      auto missing = [&](const uint4& x) {
        return (left > 0 && x.x == UNWRITTEN_WORD) || (left > 1 && x.y == UNWRITTEN_WORD) || (left > 2 && x.z == UNWRITTEN_WORD) || (left > 3 && x.w == UNWRITTEN_WORD);
      };
      while (true) {
        bool ok = true;
#pragma unroll
        for (int j = 0; j < 8; j++) ok &= !missing(v[j]);
        if (__all_sync(~0u, ok) || (p.flags & NO_WAITS)) break;
        patience.turn(p, walk, WAIT_SSQ, j0, 0);
#pragma unroll
        for (int j = 0; j < 8; j++) load_four_if(v[j], at(j), missing(v[j]));
      }
#pragma unroll
      for (int j = 0; j < 8; j++)
        sum.x += __uint_as_float(v[j].x), sum.y += __uint_as_float(v[j].y), sum.z += __uint_as_float(v[j].z), sum.w += __uint_as_float(v[j].w);
    }
#pragma unroll
    for (int o = 2; o < 32; o <<= 1) {
      sum.x += __shfl_xor_sync(~0u, sum.x, o), sum.y += __shfl_xor_sync(~0u, sum.y, o);
      sum.z += __shfl_xor_sync(~0u, sum.z, o), sum.w += __shfl_xor_sync(~0u, sum.w, o);
    }
    const float x = __shfl_sync(~0u, sum.x, q >> 1), y = __shfl_sync(~0u, sum.y, q >> 1), z = __shfl_sync(~0u, sum.z, q >> 1), w = __shfl_sync(~0u, sum.w, q >> 1);
    return make_float2(rsqrtf((q & 1 ? z : x) * inverse + eps), rsqrtf((q & 1 ? w : y) * inverse + eps));
  }

  // ---- results
  // Two neighbouring features k, k + 1 (lanes g, g ^ 1) of column 2q (even g) or 2q + 1 (odd g) as one word of a vec.
  __device__ __forceinline__ void put(uint8_t* y, const Copy& copy, uint32_t k, uint32_t cols, float a, float b) {
    const float z = __shfl_xor_sync(~0u, g & 1 ? a : b, 4);
    const uint32_t word = g & 1 ? pack(z, b) : pack(a, z), column = c0 + (g & 1);
    if (column < cols) publish(y + vec_offset(k, column, cols), copy.other, word, column < walk.n_rows);
  }
  struct Out {
    uint8_t *state, *y, *ssq;
    const float* norm;
  };
  // first: position of STREAM_OUT's first operand.
  __device__ __forceinline__ Out out(const Record& r, const Copy& copy, int first) {
    const uint32_t st = r.operand(first), y = r.operand(first + 1), n = r.operand(first + 2), q = r.operand(first + 3);
    return {st == NO_OPERAND ? nullptr : address(walk, st), y == NO_OPERAND ? nullptr : address(walk, y) + copy.offset,
            q == NO_OPERAND ? nullptr : address(walk, q) + copy.offset, n == NO_OPERAND ? nullptr : (const float*)address(walk, n)};
  }
  // x: a tile's result in fp32. Keeps it, publishes it scaled for the norm that reads it, and its sum of squares.
  // n0, n1: the reader's norm at the tile's features g and g + 8.
  __device__ __forceinline__ void store(const Out& o, const Copy& copy, uint32_t t, uint32_t cols, float4 x, float n0, float n1) {
    if (o.state) *(float4*)(o.state + t * 512 + lane * 16) = x;
    if (o.y) {
      put(o.y, copy, t * 16 + (g & 6), cols, x.x * n0, x.y * n0);
      put(o.y, copy, t * 16 + 8 + (g & 6), cols, x.z * n1, x.w * n1);
    }
    if (o.ssq) {
      float a = square_sum(x.x, x.z), b = square_sum(x.y, x.w);
#pragma unroll
      for (int i = 4; i < 32; i <<= 1) a += __shfl_xor_sync(~0u, a, i), b += __shfl_xor_sync(~0u, b, i);
      const uint32_t column = c0 + g;
      if (g < 2 && column < cols) publish(o.ssq + (t * cols + column) * 4, copy.other, __float_as_uint(g ? b : a), column < walk.n_rows);
    }
  }

  // Not contracted: with one column two lanes hold the squares.
  static __device__ __forceinline__ float square_sum(float a, float b) { return __fadd_rn(__fmul_rn(a, a), __fmul_rn(b, b)); }

  // ---- packets
  static __device__ __forceinline__ float gate(float x, bool silu) {
    const float u = silu ? x : 1.5957691216057308f * (x + 0.044715f * x * x * x);   // 2 sqrt(2 / pi); gelu_tanh(x) = x sigmoid(2 y)
    return __fdividef(x, 1.f + __expf(-u));
  }
  // Tokens of columns 2q and 2q + 1.
  __device__ __forceinline__ uint2 tokens(const Record& r, const Copy& copy, uint32_t vocab) {
    uint32_t v[1] = {0};
    if (walk.step == 0) {
      if (lane < walk.n_rows) v[0] = load_word(&walk.cold(p).tokens[lane]);
    } else {                                       // published by the step before, in the other copy
      const uint8_t* at = address(walk, r.operand(STREAM_EMBED_TOKENS)) + copy.offset + copy.other + lane * 4;
      poll_words<1>(p, walk, v, [&](int) { return at; }, [&](int) { return lane < walk.n_rows; }, WAIT_TOKEN);
    }
    v[0] = min(v[0], vocab - 1);                   // without waits it is no token
    return make_uint2(__shfl_sync(~0u, v[0], c0), __shfl_sync(~0u, v[0], c0 + 1));
  }
  // LINEAR, NORM, EMBED and HEAD: every tile is taken or made, scaled by the norm's factor, and published. One warp runs this
  // alone, at a fifth of an instruction a cycle: what a kind of packet does not need is not compiled into its loop.
  enum Kind { STORE, ROWS, GATED, HEAD, NORM, EMBED };
  struct Fields {
    uint32_t tile0, tile1, k, cols, n_valid, stride, parts, third, fourth;
    const uint8_t* first;
    const float* weight;
    float imm0, imm1;
    bool has_residual, silu;
    Out out;
    float2 scale;
    uint2 token;
  };
  __device__ __forceinline__ void tiles(const Record& r, const Copy& copy, uint32_t op) {
    const bool norm = op == OP_STREAM_NORM, embed = op == OP_STREAM_EMBED;
    Fields f;
    f.tile0 = r.dim(STREAM_LINEAR_D_TILE0), f.tile1 = r.dim(STREAM_LINEAR_D_TILE1), f.k = r.dim(STREAM_LINEAR_D_K), f.cols = r.dim(STREAM_LINEAR_D_COLS);
    f.n_valid = r.dim(STREAM_LINEAR_D_N), f.stride = r.dim(STREAM_LINEAR_D_Y_STRIDE), f.parts = min((f.k / 32 + 7) / 8, (uint32_t)CONSUMERS);
    const uint32_t second = r.operand(2), ssq = norm ? r.operand(STREAM_NORM_SSQ) : second;
    f.first = address(walk, r.operand(0)), f.third = r.operand(3), f.fourth = r.operand(4), f.weight = (const float*)address(walk, second);
    f.imm0 = r.imm(0), f.imm1 = r.imm(1);
    f.has_residual = (op == OP_STREAM_LINEAR || norm) && f.third != NO_OPERAND;
    f.silu = r.epilogue() == EPI_GATED_SILU;
    f.out = out(r, copy, embed ? STREAM_EMBED_STATE : STREAM_LINEAR_STATE);
    f.scale = make_float2(1, 1), f.token = make_uint2(0, 0);
    if (embed) f.token = tokens(r, copy, f.n_valid);
    else if (ssq != NO_OPERAND) f.scale = norm_scale(ssq, f.k, f.cols, f.imm0, copy);
    const uint32_t place = r.dim(STREAM_HEAD_D_KEY), keys = r.dim(STREAM_HEAD_D_KEYS);
    const int kind = op == OP_STREAM_HEAD ? HEAD : norm ? NORM : embed ? EMBED : r.flags() & FLAG_F32_ROWS ? ROWS : r.epilogue() != EPI_STORE ? GATED : STORE;
    if constexpr (ONE) {
      if (kind == HEAD) one_column<HEAD>(f, copy, place);
      else if (kind == NORM) one_column<NORM>(f, copy, place);
      else if (kind == EMBED) one_column<EMBED>(f, copy, place);
      else if (kind == ROWS) one_column<ROWS>(f, copy, place);
      else if (kind == GATED) one_column<GATED>(f, copy, place);
      else one_column<STORE>(f, copy, place);
    } else {
      if (kind == HEAD) columns<HEAD>(f, copy, place, keys);
      else if (kind == NORM) columns<NORM>(f, copy, place, keys);
      else if (kind == EMBED) columns<EMBED>(f, copy, place, keys);
      else if (kind == ROWS) columns<ROWS>(f, copy, place, keys);
      else if (kind == GATED) columns<GATED>(f, copy, place, keys);
      else columns<STORE>(f, copy, place, keys);
    }
  }
  template <int KIND>
  __device__ __forceinline__ void columns(const Fields& f, const Copy& copy, uint32_t place, uint32_t keys) {
    const float imm0 = f.imm0, cap = f.imm1;
    unsigned long long best0 = 0, best1 = 0;
    for (uint32_t t = f.tile0; t < f.tile1; t++) {
      const uint32_t at = t * 512 + lane * 16, n = t * 16 + g;
      float4 old = make_float4(0, 0, 0, 0), v = old;
      float n0 = 1, n1 = 1, w0 = 1, w1 = 1;        // what does not depend on this step comes before the wait
      if ((KIND == STORE || KIND == NORM) && f.has_residual) old = *(const float4*)(address(walk, f.third) + at);
      if ((KIND == STORE || KIND == NORM || KIND == EMBED) && f.out.norm) n0 = load_early(f.out.norm + n), n1 = load_early(f.out.norm + n + 8);
      if (KIND == NORM) w0 = load_early(f.weight + n), w1 = load_early(f.weight + n + 8);
      if (KIND == NORM) v = *(const float4*)(f.first + at);
      else if (KIND == EMBED) v = gather(f.first, f.token, n, f.k, imm0);
      else v = take(f.parts);
      v.x *= f.scale.x, v.z *= f.scale.x, v.y *= f.scale.y, v.w *= f.scale.y;   // after a product: it is linear
      v.x *= w0, v.y *= w0, v.z *= w1, v.w *= w1;
      if (KIND == HEAD) {
        if (cap > 0) v.x = cap * tanhf(v.x / cap), v.y = cap * tanhf(v.y / cap), v.z = cap * tanhf(v.z / cap), v.w = cap * tanhf(v.w / cap);
        float* l = (float*)address(walk, f.third) + (uint64_t)c0 * f.stride + n;
        if (c0 < walk.n_rows) l[0] = v.x, l[8] = v.z;
        if (c0 + 1 < walk.n_rows) l[f.stride] = v.y, l[f.stride + 8] = v.w;
        if (n < f.n_valid) best0 = max(best0, ordered(v.x, n)), best1 = max(best1, ordered(v.y, n));
        if (n + 8 < f.n_valid) best0 = max(best0, ordered(v.z, n + 8)), best1 = max(best1, ordered(v.w, n + 8));
      } else if (KIND == ROWS) {
        auto put_row = [&](uint32_t column, uint32_t m, float x) {
          if (column < f.cols) publish(f.out.y + ((uint64_t)column * f.stride + m) * 4, copy.other, __float_as_uint(x), column < walk.n_rows);
        };
        put_row(c0, n, v.x), put_row(c0 + 1, n, v.y), put_row(c0, n + 8, v.z), put_row(c0 + 1, n + 8, v.w);
      } else if (KIND == GATED) {
        put(f.out.y, copy, t * 8 + (g & 6), f.cols, gate(v.x, f.silu) * v.z, gate(v.y, f.silu) * v.w);
      } else {
        v.x += old.x, v.y += old.y, v.z += old.z, v.w += old.w;
        store(f.out, copy, t, f.cols, v, n0, n1);
      }
    }
    if (KIND == HEAD) logits_visible();
    if (KIND == HEAD) publish_keys(address(walk, f.fourth) + copy.offset, copy, f.cols, best0, best1, place, keys);
  }
  // One column: lane l and l + 16 hold row l of the tile.
  template <int KIND>
  __device__ __forceinline__ void one_column(const Fields& f, const Copy& copy, uint32_t place) {
    const float imm0 = f.imm0, cap = f.imm1;
    const uint32_t row = lane & 15, state = (row & 7) * 64 + (row >> 3) * 8;
    const bool low = lane < 16;
    unsigned long long best = 0;
    for (uint32_t t = f.tile0; t < f.tile1; t++) {
      const uint32_t n = t * 16 + row;
      float old = 0, n0 = 1, w0 = 1, v;
      if ((KIND == STORE || KIND == NORM) && f.has_residual) old = load_own(address(walk, f.third) + t * 512 + state);
      if ((KIND == STORE || KIND == NORM || KIND == EMBED) && f.out.norm) n0 = load_early(f.out.norm + n);
      if (KIND == NORM) w0 = load_early(f.weight + n);
      if (KIND == NORM) v = load_own(f.first + t * 512 + state);
      else if (KIND == EMBED) v = element(f.first, __shfl_sync(~0u, f.token.x, 0), n, f.k, imm0);
      else v = take_one(f.parts);
      v *= f.scale.x;
      if (KIND == NORM) v *= w0;
      if (KIND == HEAD) {
        if (cap > 0) v = cap * tanhf(v / cap);
        if (low) ((float*)address(walk, f.third))[n] = v;
        if (n < f.n_valid) best = max(best, ordered(v, n));
      } else if (KIND == ROWS) {
        if (low) publish(f.out.y + n * 4, copy.other, __float_as_uint(v), true);
      } else if (KIND == GATED) {
        const float o = gate(v, f.silu) * __shfl_xor_sync(~0u, v, 8);
        const uint32_t word = pack(o, __shfl_down_sync(~0u, o, 1));
        if (lane < 8 && !(lane & 1)) publish(f.out.y + vec_offset(t * 8 + lane, 0, 1), copy.other, word, true);
      } else {
        v += old;
        if (f.out.state && low) *(float*)(f.out.state + t * 512 + state) = v;
        if (f.out.y) {
          const float o = v * n0;
          const uint32_t word = pack(o, __shfl_down_sync(~0u, o, 1));
          if (low && !(lane & 1)) publish(f.out.y + vec_offset(n, 0, 1), copy.other, word, true);
        }
        if (f.out.ssq) {
          float a = square_sum(v, __shfl_xor_sync(~0u, v, 8));
#pragma unroll
          for (int i = 1; i < 8; i <<= 1) a += __shfl_xor_sync(~0u, a, i);
          if (lane == 0) publish(f.out.ssq + t * 4, copy.other, __float_as_uint(a), true);
        }
      }
    }
    if (KIND == HEAD) {
      logits_visible();
#pragma unroll
      for (int o = 1; o < 16; o <<= 1) best = max(best, __shfl_xor_sync(~0u, best, o));
      uint8_t* at = address(walk, f.fourth) + copy.offset + place * 8;
      if (lane == 0) store_pair(at, best), store_pair(at + copy.other, ~0ull);
    }
  }
  // Who samples by parameters reads other workers' logits once it has their keys.
  __device__ __forceinline__ void logits_visible() {
    if (walk.at(JOB_SAMPLED) == 0) return;
    __threadfence();
    __syncwarp();
  }
  static __device__ __forceinline__ float element(const uint8_t* table, uint32_t token, uint32_t f, uint32_t k, float scale) {
    const uint64_t at = (uint64_t)(token / 16) * k * 32 + (f / 32) * CHUNK + (token % 16) * 64 + (f % 32) * 2;
    return bf16_to_float(__ldg((const uint16_t*)(table + at))) * scale;
  }
  // Features n and n + 8 of the tokens' rows of a table of tiles.
  __device__ __forceinline__ float4 gather(const uint8_t* table, uint2 token, uint32_t n, uint32_t k, float scale) {
    float4 x = make_float4(0, 0, 0, 0);
    if (c0 < walk.n_rows) x.x = element(table, token.x, n, k, scale), x.z = element(table, token.x, n + 8, k, scale);
    if (c0 + 1 < walk.n_rows) x.y = element(table, token.y, n, k, scale), x.w = element(table, token.y, n + 8, k, scale);
    return x;
  }
  __device__ __forceinline__ void publish_keys(uint8_t* keys, const Copy& copy, uint32_t cols, unsigned long long best0, unsigned long long best1, uint32_t key, uint32_t count) {
#pragma unroll
    for (int o = 4; o < 32; o <<= 1) best0 = max(best0, __shfl_xor_sync(~0u, best0, o)), best1 = max(best1, __shfl_xor_sync(~0u, best1, o));
    const uint32_t column = c0 + g;
    if (g > 1 || column >= cols) return;
    uint8_t* at = keys + ((uint64_t)column * count + key) * 8;
    if (column < walk.n_rows) store_pair(at, g ? best1 : best0);
    store_pair(at + copy.other, ~0ull);
  }
  __device__ __forceinline__ void sample(const Record& r, const Copy& copy) {
    const uint32_t row = r.dim(STREAM_SAMPLE_D_ROW), vocab = r.dim(STREAM_SAMPLE_D_VOCAB);
    uint8_t* to = address(walk, r.operand(STREAM_SAMPLE_TOKENS)) + copy.offset + row * 4;
    uint32_t token = 0;
    if (row < walk.n_rows) token = min(walk.at(JOB_SAMPLED) >> row & 1 ? sampled() : greedy(r, copy, row), vocab - 1);   // without waits it is no token
    if (lane == 0) {
      publish(to, copy.other, token, row < walk.n_rows);
      if (row < walk.n_rows) {
        const Job& job = walk.cold(p);
        const int32_t at = (int32_t)load_word(&job.sample_index[row]);
        if (at >= 0) store_system((int32_t*)load_pair(&job.out_tokens) + walk.step * MAX_ROWS + at, (int32_t)token);
      }
    }
    __syncwarp();
  }
  // What the consumers found (sample.cuh).
  __device__ __forceinline__ uint32_t sampled() {
    const uint32_t slot = tile % SUMS;
    wait_tile(slot);
    const uint32_t token = __float_as_uint(*(const float*)s.sums[slot][0]);
    landed(token);
    give_back(slot);
    return token;
  }
  __device__ __forceinline__ uint32_t greedy(const Record& r, const Copy& copy, uint32_t row) {
    const uint32_t count = r.dim(STREAM_SAMPLE_D_KEYS);
    const uint8_t* keys = address(walk, r.operand(STREAM_SAMPLE_KEYS)) + copy.offset + (uint64_t)row * count * 8;
    unsigned long long best = 0;
    for (uint32_t i = 0; i < count; i += 32) {
      const unsigned long long k = poll_key(p, walk, keys, i + lane, count);
      best = k > best ? k : best;
    }
#pragma unroll
    for (int o = 16; o; o >>= 1) {
      const unsigned long long k = __shfl_xor_sync(~0u, best, o);
      best = k > best ? k : best;
    }
    return ~(uint32_t)best;
  }
  __device__ __forceinline__ void step() {
    const Record r = walk.now;
    const Copy copy(walk);
    const uint32_t op = r.opcode();
    if (op == OP_STREAM_LINEAR || op == OP_STREAM_HEAD || op == OP_STREAM_NORM || op == OP_STREAM_EMBED) tiles(r, copy, op);
    else if (op == OP_STREAM_SAMPLE) sample(r, copy);
    else if (op == OP_NOP) take_one(0);
    const uint32_t signal = r.signal();
    __syncwarp();
    if (signal != NO_COUNTER && lane == 0) {
      fence_async();
      add_release(p.counters + 32 * signal);
    }
    mark(3);
  }
  __device__ void run() {
    while (walk.take_job(p))
      for (; walk.step < walk.n_steps; walk.advance()) {
        if (walk.packet == 0) {
          const uint32_t before = walk.ended_before();
          wait_steps(p, walk, before);
        }
        step();
      }
  }
};
static_assert(STREAM_LINEAR_STATE == 4 && STREAM_NORM_STATE == 4 && STREAM_LINEAR_RESIDUAL == 3 && STREAM_NORM_RESIDUAL == 3 && STREAM_NORM_WEIGHT == 2 &&
                  STREAM_LINEAR_SSQ == 2 && STREAM_HEAD_SSQ == 2 && STREAM_HEAD_LOGITS == 3 && STREAM_HEAD_KEYS == 4 && STREAM_EMBED_TABLE == 0 && STREAM_NORM_X == 0,
              "tiles() reads operands by position");
static_assert(STREAM_LINEAR_D_N == STREAM_HEAD_D_N && STREAM_LINEAR_D_Y_STRIDE == STREAM_HEAD_D_LOGITS_STRIDE && STREAM_NORM_D_K == STREAM_LINEAR_D_K &&
                  STREAM_EMBED_D_K == STREAM_LINEAR_D_K && STREAM_EMBED_D_VOCAB == STREAM_LINEAR_D_N && STREAM_LINEAR_I_EPS == 0 && STREAM_NORM_I_EPS == 0 && STREAM_EMBED_I_SCALE == 0,
              "tiles() reads dims and immediates by position");
