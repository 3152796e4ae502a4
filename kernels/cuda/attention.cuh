// The consumers' part of STREAM_ATTENTION: one row, one kv head with its group of query heads, one part of the context.
//
// Queries are the rows of an mma tile (at most 8 of 16), positions its columns; then probabilities times values. Warps
// work on whole pages of 16 positions with an own running softmax; a row of the step that belongs to the same sequence is
// not in the pages yet, so split 0 normalises and rotates those keys itself and takes them from shared memory as one more
// page. Partial results of the splits are published, and every split merges its share of the columns.
#pragma once
#include "consumer.cuh"

constexpr float LOWEST = -1e30f;                   // below every score; finite, so that differences are
constexpr float LOG2E = 1.4426950408889634f;

template <int DH>
struct Attention {
  static constexpr int CHUNKS = DH / 32;           // of a key
  static constexpr int DIMS = DH > 128 ? 128 : DH; // of the output that a warp accumulates; at 256 a pair shares a page
  static constexpr int SLOTS = DH > 128 ? 4 : 8;   // partial outputs in shared memory
  static constexpr int PAGE = 64 * DH;             // bytes: keys, then values
  static constexpr int PAGES = STAGE / PAGE;       // in a stage
  static constexpr int PAIRS = DH / 64;            // rotated pairs (i, i + DH/2) a lane holds of a head

  Consumer& c;
  const Record r;
  uint32_t row, head, split, group;
  Span span;
  float acc[DIMS / 8][4], peak = LOWEST, mass = 0; // acc: set after `prepare`, which needs the registers
  uint4 query[CHUNKS];

  __device__ __forceinline__ explicit Attention(Consumer& c)
      : c(c), r(c.walk.now), row(r.dim(STREAM_ATTENTION_D_ROW)), head(r.dim(STREAM_ATTENTION_D_KV_HEAD)), split(r.dim(STREAM_ATTENTION_D_SPLIT)),
        group(r.dim(STREAM_ATTENTION_D_NUM_HEADS) / r.dim(STREAM_ATTENTION_D_NUM_KV_HEADS)),
        span(c.walk, row, split, r.dim(STREAM_ATTENTION_D_SPLITS), r.dim(STREAM_ATTENTION_D_WINDOW)) {}

  // N heads of a row: x[i] and x[i + DH/2] of pairs i = lane, lane + 32, ... of each head.
  template <int N>
  __device__ __forceinline__ void load_heads(uint32_t row_, const uint32_t (&index)[N], uint32_t (&raw)[2 * PAIRS * N]) {
    const uint8_t* at = address(c.walk, r.operand(STREAM_ATTENTION_QKV)) + Copy(c.walk).offset + (uint64_t)row_ * r.dim(STREAM_ATTENTION_D_QKV_STRIDE) * 4;
    poll_words<2 * PAIRS * N>(c.p, c.walk, raw, [&](int j) { return at + (index[j / (2 * PAIRS)] * DH + feature(j % (2 * PAIRS), c.lane())) * 4; },
                              [](int) { return true; }, WAIT_ROWS);
  }
  struct Turn {
    float cosine[PAIRS], sine[PAIRS];
  };
  __device__ __forceinline__ Turn turn(uint32_t position) const {
    Turn t;
    const float* table = (const float*)address(c.walk, r.operand(STREAM_ATTENTION_ROPE)) + (uint64_t)position * DH + c.lane();
    const bool on = r.flags() & FLAG_ROPE;
#pragma unroll
    for (int i = 0; i < PAIRS; i++) t.cosine[i] = on ? __ldg(table + i * 32) : 1.f, t.sine[i] = on ? __ldg(table + DH / 2 + i * 32) : 0.f;
    return t;
  }
  __device__ __forceinline__ void rotate(float (&v)[2 * PAIRS], const Turn& t, uint32_t norm_operand) {
    if (r.flags() & FLAG_QK_NORM) {
      const float* norm = (const float*)address(c.walk, norm_operand);
      float sum = 0;
#pragma unroll
      for (int j = 0; j < 2 * PAIRS; j++) sum += v[j] * v[j];
#pragma unroll
      for (int o = 1; o < 32; o <<= 1) sum += __shfl_xor_sync(~0u, sum, o);
      const float scale = rsqrtf(sum * (1.f / DH) + r.imm(STREAM_ATTENTION_I_QK_EPS));
#pragma unroll
      for (int j = 0; j < 2 * PAIRS; j++) v[j] *= scale * __ldg(norm + feature(j, c.lane()));
    }
#pragma unroll
    for (int i = 0; i < PAIRS; i++) {
      const float a = v[2 * i], b = v[2 * i + 1];
      v[2 * i] = a * t.cosine[i] - b * t.sine[i];
      v[2 * i + 1] = b * t.cosine[i] + a * t.sine[i];
    }
  }
  static __device__ __forceinline__ uint32_t feature(int j, uint32_t lane) { return (j & 1) * (DH / 2) + (j >> 1) * 32 + lane; }
  // Byte offsets inside a page of key and value element d of position p.
  static __device__ __forceinline__ uint32_t key_offset(uint32_t p, uint32_t d) { return (p >> 3) * (DH * 16) + (d >> 5) * 512 + (p & 7) * 64 + (d & 31) * 2; }
  static __device__ __forceinline__ uint32_t value_offset(uint32_t p, uint32_t d) {
    return DH * 32 + (d >> 4) * 512 + (d & 7) * 64 + ((p & 7) >> 1) * 16 + ((d >> 3) & 1) * 8 + ((p >> 3) & 1) * 4 + (p & 1) * 2;
  }

  // Queries of the group to shared memory; in split 0 also keys and values of the step's rows, and the append.
  __device__ __forceinline__ uint32_t prepare() {
    const uint32_t heads = r.dim(STREAM_ATTENTION_D_NUM_HEADS), kv_heads = r.dim(STREAM_ATTENTION_D_NUM_KV_HEADS);
    uint32_t mine = 0;                             // rows of the step that this row sees
    for (uint32_t j = 0; j < c.walk.n_rows; j++) {
      const uint32_t position = c.walk.position(j);
      if (c.walk.slot(j) == c.walk.slot(row) && position <= span.position && position >= span.first) mine |= 1u << j;
    }
    if (split) mine = 0;
    // Warp w takes query head w and the key of row 7 - w. What does not depend on this step's values comes before the polls.
    const uint32_t key_row = CONSUMERS - 1 - c.warp(), q_norm = r.operand(STREAM_ATTENTION_Q_NORM), k_norm = r.operand(STREAM_ATTENTION_K_NORM);
    const bool has_query = c.warp() < group, has_key = mine >> key_row & 1;
    const uint32_t key_position = c.walk.position(key_row);
    Turn t = turn(has_query || !has_key ? span.position : key_position);
    if (mine) {
      for (uint32_t i = threadIdx.x * 16; i < PAGE; i += CONSUMERS * 32 * 16) *(uint4*)(c.s.scratch + i) = make_uint4(0, 0, 0, 0);
      consumers_meet();
    }
    float v[2 * PAIRS];
    if (has_query) {
      uint32_t raw[2 * PAIRS];
      const uint32_t index[1] = {head * group + c.warp()};
      load_heads<1>(row, index, raw);
#pragma unroll
      for (int j = 0; j < 2 * PAIRS; j++) v[j] = __uint_as_float(raw[j]);
      rotate(v, t, q_norm);
#pragma unroll
      for (int j = 0; j < 2 * PAIRS; j++) c.s.q[c.warp() * DH + feature(j, c.lane())] = pack(v[j], 0);
    }
    if (has_key) {
      if (has_query) t = turn(key_position);
      uint32_t raw[4 * PAIRS];
      const uint32_t index[2] = {heads + head, heads + kv_heads + head};
      uint8_t* page = nullptr;
      if (key_row == row) {
        const uint32_t block = load_word(c.walk.block(c.walk.slot(row), key_position / KV_BLOCK));
        page = address(c.walk, r.operand(STREAM_ATTENTION_KV)) + ((uint64_t)block * kv_heads + head) * PAGE;
      }
      load_heads<2>(key_row, index, raw);
#pragma unroll
      for (int j = 0; j < 2 * PAIRS; j++) v[j] = __uint_as_float(raw[j]);
      rotate(v, t, k_norm);
#pragma unroll
      for (int j = 0; j < 2 * PAIRS; j++) {
        const uint32_t d = feature(j, c.lane());
        const uint16_t k16 = pack(v[j], 0), v16 = pack(__uint_as_float(raw[2 * PAIRS + j]), 0);
        *(uint16_t*)(c.s.scratch + key_offset(key_row, d)) = k16;
        *(uint16_t*)(c.s.scratch + value_offset(key_row, d)) = v16;
        if (page) *(uint16_t*)(page + key_offset(key_position & 15, d)) = k16, *(uint16_t*)(page + value_offset(key_position & 15, d)) = v16;
      }
      if (page) fence_async();
    }
    consumers_meet();
#pragma unroll
    for (int b = 0; b < CHUNKS; b++)
      query[b] = c.g() < group ? *(const uint4*)(c.s.q + c.g() * DH + b * 32 + c.q() * 8) : make_uint4(0, 0, 0, 0);
    uint32_t z = 0;
#pragma unroll
    for (int b = 0; b < CHUNKS; b++) z |= query[b].x;
    landed(z);
    return mine;
  }

  // One page at shared address `keys`; bit p of `valid`: position p of the page counts.
  __device__ __forceinline__ void page(uint32_t keys, uint32_t first_dim, float scale, uint32_t valid) {
    float score[2][4] = {}, e[2][2], top = LOWEST;
#pragma unroll
    for (int j = 0; j < 2; j++)
#pragma unroll
      for (int b = 0; b < CHUNKS; b++) {
        const uint4 k = load_shared(keys + (j * CHUNKS + b) * 512 + c.lane() * 16);
        mma(score[j], query[b].x, 0, query[b].y, 0, k.x, k.y);
        mma(score[j], query[b].z, 0, query[b].w, 0, k.z, k.w);
      }
#pragma unroll
    for (int j = 0; j < 2; j++)
#pragma unroll
      for (int z = 0; z < 2; z++) {
        e[j][z] = valid >> (j * 8 + c.q() * 2 + z) & 1 ? score[j][z] * scale : LOWEST;
        top = fmaxf(top, e[j][z]);
      }
    top = fmaxf(top, __shfl_xor_sync(~0u, top, 1));
    top = fmaxf(top, __shfl_xor_sync(~0u, top, 2));
    const float now = fmaxf(peak, top), old = exp2f(peak - now);
    peak = now, mass *= old;
#pragma unroll
    for (int d = 0; d < DIMS / 8; d++) acc[d][0] *= old, acc[d][1] *= old;
#pragma unroll
    for (int j = 0; j < 2; j++)
#pragma unroll
      for (int z = 0; z < 2; z++) e[j][z] = exp2f(e[j][z] - now), mass += e[j][z];
    const uint32_t a0 = pack(e[0][0], e[0][1]), a2 = pack(e[1][0], e[1][1]);
    const uint32_t values = keys + DH * 32 + first_dim * 32 + c.lane() * 16;
#pragma unroll
    for (int d = 0; d < DIMS / 16; d++) {
      const uint4 v = load_shared(values + d * 512);
      mma(acc[2 * d], a0, 0, a2, 0, v.x, v.y);
      mma(acc[2 * d + 1], a0, 0, a2, 0, v.z, v.w);
    }
  }

  // Bits of the positions of page n of the span that count.
  __device__ __forceinline__ uint32_t valid(uint32_t n) const {
    const uint32_t start = (span.page0 + n) * KV_BLOCK;
    const uint32_t from = span.first > start ? span.first - start : 0, to = min(span.end - start, (uint32_t)KV_BLOCK);
    return (1u << to) - (1u << from);
  }
  __device__ __forceinline__ void pages(uint32_t mine) {
    const uint32_t count = span.page1 - span.page0, stages = (count + PAGES - 1) / PAGES;
    const uint32_t first_dim = PAGES == 1 ? c.half() * DIMS : 0;
    const float scale = r.imm(STREAM_ATTENTION_I_SCALE) * LOG2E;
#pragma unroll
    for (int d = 0; d < DIMS / 8; d++) acc[d][0] = acc[d][1] = acc[d][2] = acc[d][3] = 0;
    bool own = mine && (PAGES == 1 ? c.pair() == 3 : c.warp() == 7);     // the step's own rows first: nothing to wait for
    uint32_t i = PAGES == 1 ? c.pair() : c.pair() * PAGES + c.half() * (PAGES / 2);
#pragma unroll 1
    while (own || i / PAGES < stages) {
      const Slot slot(c.stage + i / PAGES);
      const bool head_of_stage = i % max(PAGES / 2, 1) == 0;
      if (!own && head_of_stage) c.wait_full(slot);
      const uint32_t keys = own ? shared_address(c.s.scratch) : c.ring(slot) + i % PAGES * PAGE;
      if ((own || i < count) && !(c.p.flags & NO_ATTENTION)) page(keys, first_dim, scale, own ? mine : valid(i));
      if (own) {
        own = false;
        continue;
      }
      if (PAGES < 4 || !head_of_stage) {           // the stage's last page of this warp
        uint32_t z = __float_as_uint(mass);
#pragma unroll
        for (int d = 0; d < DIMS / 8; d++) z |= __float_as_uint(acc[d][0]);
        landed(z);
        c.release(slot);
        i += GROUPS * PAGES - (PAGES < 4 ? 0 : 1);
      } else {
        i++;
      }
    }
    c.stage += stages;
  }

  // The warps' results of one output element: maximum, mass, weighted sum.
  __device__ __forceinline__ void combine(uint32_t index, float& top, float& sum, float& out) const {
    const uint32_t h = index / DH;
    top = LOWEST, sum = 0, out = 0;
#pragma unroll
    for (int w = 0; w < SLOTS; w++) top = fmaxf(top, c.s.peak[w * (8 / SLOTS)][h]);
#pragma unroll
    for (int w = 0; w < SLOTS; w++) {
      const float f = exp2f(c.s.peak[w * (8 / SLOTS)][h] - top);
      sum += f * c.s.mass[w * (8 / SLOTS)][h];
      out += f * ((const float*)c.s.scratch)[w * group * DH + index];
    }
  }
  // Where element `index` of the group's output is published.
  __device__ __forceinline__ uint8_t* output(uint32_t index) const {
    const uint32_t cols = r.dim(STREAM_ATTENTION_D_COLS);
    return address(c.walk, r.operand(STREAM_ATTENTION_Y)) + Copy(c.walk).offset + vec_offset(head * group * DH + index, cols == 1 ? 0 : row, cols);
  }
  __device__ __forceinline__ void run() {
    const bool alone = span.used == 1;
    if (!alone || split == 0) {
      const uint32_t mine = prepare();
      c.mark(1);
      pages(mine);
      keep();
    }
    const Copy copy(c.walk);
    const uint32_t splits = r.dim(STREAM_ATTENTION_D_SPLITS), width = group * DH, words = width + (2 * group + 3) / 4 * 4;
    float* all = (float*)(address(c.walk, r.operand(STREAM_ATTENTION_PARTIALS)) + copy.offset) + (uint64_t)(row * r.dim(STREAM_ATTENTION_D_NUM_KV_HEADS) + head) * splits * words;
    for (uint32_t i = threadIdx.x; i < width; i += CONSUMERS * 32) {      // width is a multiple of 32
      float top = 0, sum = 1, out = 0;
      if (!alone || split == 0) combine(i, top, sum, out);
      if (alone && split == 0) {
        const float v = __fdividef(out, sum);
        const uint32_t word = pack(v, __shfl_down_sync(~0u, v, 1));
        uint8_t* y = output(i);
        if (!(c.lane() & 1)) publish(y, copy.other, word, true);
      }
      const bool active = split < span.used && !alone;
      publish((uint8_t*)(all + split * words + i), copy.other, __float_as_uint(out), active);
      if (i % DH == 0) {
        uint8_t* at = (uint8_t*)(all + split * words + width + 2 * (i / DH));
        publish(at, copy.other, __float_as_uint(top), active);
        publish(at + 4, copy.other, __float_as_uint(sum), active);
      }
    }
    if (alone) return;
    const uint32_t share = width / splits;         // a multiple of 4
    for (uint32_t i = c.warp() * 8; i < share; i += CONSUMERS * 8) {
      const uint32_t mine4 = i + (c.lane() >> 4) * 4;
      merge(all, words, width, split * share + min(mine4, share - 4), mine4 < share);
    }
  }
  // This warp's sums to shared memory, in place of the step's own page.
  __device__ __forceinline__ void keep() {
    mass += __shfl_xor_sync(~0u, mass, 1);
    mass += __shfl_xor_sync(~0u, mass, 2);
    consumers_meet();
    if (c.g() < group) {
      const uint32_t slot = PAGES == 1 ? c.pair() : c.warp(), first_dim = PAGES == 1 ? c.half() * DIMS : 0;
      float* out = (float*)c.s.scratch + (slot * group + c.g()) * DH + first_dim;
#pragma unroll
      for (int d = 0; d < DIMS / 8; d++) *(float2*)(out + d * 8 + c.q() * 2) = make_float2(acc[d][0], acc[d][1]);
      if (c.q() == 0) c.s.peak[c.warp()][c.g()] = peak, c.s.mass[c.warp()][c.g()] = mass;
    }
    consumers_meet();
    c.mark(2);
  }
  // Four columns of y from all parts: lane k of 16 reads part k, a half of the warp makes four columns.
  __device__ __forceinline__ void merge(const float* all, uint32_t words, uint32_t width, uint32_t index, bool on) {
    const uint32_t part = c.lane() & 15, h = index / DH;
    const bool is = on && part < span.used;
    const float* from = all + (is ? part : 0) * words;
    uint4 o[1];
    uint32_t pm[2];
    poll_issue<1>(o, [&](int) { return from + index; }, [&](int) { return is; });
    poll_words<2>(c.p, c.walk, pm, [&](int j) { return from + width + 2 * h + j; }, [&](int) { return is; }, WAIT_PARTIAL);
    poll_settle<1>(c.p, c.walk, o, [&](int) { return from + index; }, WAIT_PARTIAL);
    const float peak_ = is ? __uint_as_float(pm[0]) : LOWEST;
    float top = peak_;
#pragma unroll
    for (int s = 1; s < 16; s <<= 1) top = fmaxf(top, __shfl_xor_sync(~0u, top, s));
    const float f = exp2f(peak_ - top);
    float v[5] = {f * __uint_as_float(pm[1]), f * __uint_as_float(o[0].x), f * __uint_as_float(o[0].y), f * __uint_as_float(o[0].z), f * __uint_as_float(o[0].w)};
#pragma unroll
    for (int s = 1; s < 16; s <<= 1)
#pragma unroll
      for (int e = 0; e < 5; e++) v[e] += __shfl_xor_sync(~0u, v[e], s);
    const float inverse = __fdividef(1.f, v[0]);
    uint8_t* y = output(index);
    const int64_t other = Copy(c.walk).other;      // every lane takes part
    if (on && part < 2) publish(y + part * 4, other, part ? pack(v[3] * inverse, v[4] * inverse) : pack(v[1] * inverse, v[2] * inverse), true);
  }
};

// A row that this step does not have: what it wrote in the step before must be unwritten again.
template <int DH>
__device__ __forceinline__ void rearm_attention(Consumer& c) {
  const Record r = c.walk.now;
  const Copy copy(c.walk);
  const uint32_t row = r.dim(STREAM_ATTENTION_D_ROW), head = r.dim(STREAM_ATTENTION_D_KV_HEAD), kv_heads = r.dim(STREAM_ATTENTION_D_NUM_KV_HEADS);
  const uint32_t splits = r.dim(STREAM_ATTENTION_D_SPLITS), split = r.dim(STREAM_ATTENTION_D_SPLIT), cols = r.dim(STREAM_ATTENTION_D_COLS);
  const uint32_t group = r.dim(STREAM_ATTENTION_D_NUM_HEADS) / kv_heads, width = group * DH, words = width + (2 * group + 3) / 4 * 4;
  uint8_t* y = address(c.walk, r.operand(STREAM_ATTENTION_Y)) + copy.offset + copy.other;
  uint8_t* part = address(c.walk, r.operand(STREAM_ATTENTION_PARTIALS)) + copy.offset + copy.other + ((uint64_t)(row * kv_heads + head) * splits + split) * words * 4;
  for (uint32_t i = threadIdx.x; i < words; i += CONSUMERS * 32) {
    store_word(part + i * 4, UNWRITTEN_WORD);
    if (split == 0 && i < width && !(i & 1)) store_word(y + vec_offset(head * width + i, row, cols), UNWRITTEN_WORD);
  }
}

template <int DH>
__device__ __forceinline__ void consume_attention(Consumer& c) {
  c.mark(0);
  consumers_meet();                                // the packet before is done with shared memory
  c.begin_step();
  c.idle = false;
  if (c.walk.now.dim(STREAM_ATTENTION_D_ROW) < c.walk.n_rows) Attention<DH>(c).run();
  else rearm_attention<DH>(c);
  consumers_meet();                                // scratch memory is free again
}
