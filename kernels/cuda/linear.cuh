// The consumers' part of STREAM_LINEAR and STREAM_HEAD: tiles of 16 weight rows times the step's rows, by mma m16n8k16.
//
// A tile is cut along k into slabs of 8 chunks (256 features, 8 KiB); warp w owns slabs w, w + 8, ... and holds the
// activations of its slabs in registers for the whole packet. The epilogue adds the warps' parts in the order of warps, so
// a result does not depend on the other rows of the step. The order of k inside a chunk is free as long as weights and
// activations agree: a lane feeds its own 8 consecutive features.
#pragma once
#include "consumer.cuh"

// Activations of one slab as mma B fragments (lane 4g + q: column g). With many columns a lane's words are its fragments and
// stay in registers. With one column a single load holds the slab (lane 4u + q: chunk u); it goes to shared memory, from
// where every column gets the same fragments (the epilogue takes the first column).
template <bool ONE>
struct Slab {
  uint4 b[ONE ? 1 : 8];
  uint32_t place = 0;                              // shared address of the slab, with one column

  __device__ __forceinline__ static const uint8_t* at(const uint8_t* x, uint32_t slab, int j) {
    return x + slab * (ONE ? 512 : 4096) + j * 512 + Consumer::lane() * 16;
  }
  __device__ __forceinline__ void issue(const Consumer& c, const uint8_t* x, uint32_t slab, uint32_t chunks) {
    poll_issue<ONE ? 1 : 8>(b, [&](int j) { return at(x, slab, j); },
                            [&](int j) { return ONE ? Consumer::lane() < chunks * 4 : (uint32_t)j < chunks && Consumer::g() < c.walk.n_rows; });
  }
  // buffer: 0 or 1, which half of the warp's share of scratch memory takes the slab.
  __device__ __forceinline__ void settle(Consumer& c, const uint8_t* x, uint32_t slab, int buffer) {
    poll_settle<ONE ? 1 : 8>(c.p, c.walk, b, [&](int j) { return at(x, slab, j); }, WAIT_VEC);
    if (!ONE) return;
    uint8_t* to = c.s.scratch + Consumer::warp() * 1024 + buffer * 512;
    __syncwarp();                                  // what was there is read
    *(uint4*)(to + Consumer::lane() * 16) = b[0];
    __syncwarp();
    place = shared_address(to) + Consumer::q() * 16;
  }
  __device__ __forceinline__ uint4 fragment(int u) const { return ONE ? load_shared(place + u * 64) : b[ONE ? 0 : u]; }
};

template <bool ONE>
struct Linear {
  Consumer& c;
  const uint8_t* x;
  uint32_t tiles, chunks, stages, own, base;       // own: slabs of this warp in a tile; base: the packet's first stage
  bool wide;

  __device__ __forceinline__ static uint32_t slab(uint32_t v) { return Consumer::warp() + 8 * v; }
  __device__ __forceinline__ uint32_t chunks_in(uint32_t v) const { return v < own ? min(8u, chunks - 8 * slab(v)) : 0; }
  __device__ __forceinline__ uint32_t stage_of(uint32_t t, uint32_t v) const {
    const uint32_t s = Consumer::pair() + 4 * v;
    if (!wide) return base + t * stages + s;
    const uint32_t side = min(2u, tiles - (t & ~1u));
    return base + (t & ~1u) * stages + 4 * v * side + (t & 1) * min(4u, stages - 4 * v) + Consumer::pair();
  }
  // A stage that holds one slab only is given back twice by its one reader.
  __device__ __forceinline__ void free(Slot slot, uint32_t v) { c.release(slot, !Consumer::half() && slab(v) * 8 + 8 >= chunks ? 2 : 1); }

  // acc += 16 x 32 weights (lo: rows 0..7, hi: rows 8..15) times 32 x 8 activations
  template <int N>
  __device__ __forceinline__ static void multiply(float (&acc)[N][4], int u, const uint4& lo, const uint4& hi, const uint4& b) {
    mma(acc[(2 * u) % N], lo.x, hi.x, lo.y, hi.y, b.x, b.y);
    mma(acc[(2 * u + 1) % N], lo.z, hi.z, lo.w, hi.w, b.z, b.w);
  }
  // A slab of fewer than 8 chunks is read whole: what lies behind it is finite (the ring starts as zeros and only ever
  // holds weights and KV pages), and its activations are zero.
  template <int N>
  __device__ __forceinline__ void visit(float (&acc)[N][4], uint32_t t, uint32_t v, const Slab<ONE>& x) {
    const Slot slot(stage_of(t, v));
    c.wait_full(slot);
    const uint32_t a = c.ring(slot) + Consumer::half() * (STAGE / 2) + Consumer::lane() * 16;
    if (!(c.p.flags & NO_MATH)) {
#pragma unroll
      for (int h = 0; h < 2; h++) {
        uint4 lo[4], hi[4], b[4];
#pragma unroll
        for (int u = 0; u < 4; u++)
          lo[u] = load_shared(a + (h * 4 + u) * CHUNK), hi[u] = load_shared(a + (h * 4 + u) * CHUNK + CHUNK / 2), b[u] = x.fragment(h * 4 + u);
#pragma unroll
        for (int u = 0; u < 4; u++) multiply(acc, h * 4 + u, lo[u], hi[u], b[u]);
      }
      uint32_t z = 0;                              // the products exist, so the loads have landed
#pragma unroll
      for (int j = 0; j < N; j++) z |= __float_as_uint(acc[j][0]);
      landed(z);
    }
    free(slot, v);
  }
  template <int N>
  __device__ __forceinline__ void finish(float (&acc)[N][4]) {
    float4 sum = make_float4(acc[0][0], acc[0][1], acc[0][2], acc[0][3]);
#pragma unroll
    for (int j = 1; j < N; j++) sum.x += acc[j][0], sum.y += acc[j][1], sum.z += acc[j][2], sum.w += acc[j][3];
    c.hand_over(sum, true, ONE);
#pragma unroll
    for (int j = 0; j < N; j++)
#pragma unroll
      for (int e = 0; e < 4; e++) acc[j][e] = 0;
  }
  // Before any waiting for activations the warp moves its first slab into registers and gives the stage back: the idle
  // register file is worth four more ring stages.
  struct First {
    uint4 lo[8], hi[8];
  };
  __device__ __forceinline__ void take_first(First& f) {
    const Slot slot(stage_of(0, 0));
    c.wait_full(slot);
    const uint32_t a = c.ring(slot) + Consumer::half() * (STAGE / 2) + Consumer::lane() * 16;
    uint32_t z = 0;
#pragma unroll
    for (int u = 0; u < 8; u++) f.lo[u] = load_shared(a + u * CHUNK), f.hi[u] = load_shared(a + u * CHUNK + CHUNK / 2);
#pragma unroll
    for (int u = 0; u < 8; u++) z |= f.lo[u].x | f.hi[u].x;
    landed(z);
    free(slot, 0);
  }
  template <int N>
  __device__ __forceinline__ void use_first(float (&acc)[N][4], const First& f, const Slab<ONE>& x) {
#pragma unroll
    for (int u = 0; u < 8; u++) multiply(acc, u, f.lo[u], f.hi[u], x.fragment(u));
  }

  // Looks at one word before many are read.
  __device__ __forceinline__ void hint(uint32_t v) {
    if (!ONE) poll_hint(c.p, c.walk, [&]() { return Slab<ONE>::at(x, slab(v), 0); }, Consumer::g() < c.walk.n_rows, WAIT_VEC);
  }
  // Activations of the warp's SLABS slabs stay for all tiles.
  template <int SLABS>
  __device__ __forceinline__ void narrow(const First& f) {
    Slab<ONE> x0, x1;
    float acc[4][4] = {};
    hint(SLABS - 1);
    x0.issue(c, x, slab(0), chunks_in(0));
    if (ONE && SLABS > 1) x1.issue(c, x, slab(1), chunks_in(1));
    x0.settle(c, x, slab(0), 0);
    c.mark(1);
    use_first(acc, f, x0);
    if (!ONE && SLABS > 1) x1.issue(c, x, slab(1), chunks_in(1));
    if (SLABS > 1) x1.settle(c, x, slab(1), 1), visit(acc, 0, 1, x1);
    finish(acc);
#pragma unroll 1
    for (uint32_t t = 1; t < tiles; t++) {
      visit(acc, t, 0, x0);
      if (SLABS > 1) visit(acc, t, 1, x1);
      finish(acc);
    }
  }
  // Many features: activations are streamed from L2, and two tiles share each slab. The other warps' weights cover the latency.
  __device__ __forceinline__ void streamed(const First& f) {
    Slab<ONE> now;
    float acc0[2][4] = {}, acc1[2][4] = {};
    hint(0);
    now.issue(c, x, slab(0), chunks_in(0));
    now.settle(c, x, slab(0), 0);
    c.mark(1);
    use_first(acc0, f, now);                       // outside of the loop, so that its registers are free there
#pragma unroll 1
    for (uint32_t t = 0; t < tiles; t += 2) {
      const bool two = t + 1 < tiles;
#pragma unroll 1
      for (uint32_t v = 0; v < own; v++) {
        const bool done = t == 0 && v == 0;
        if (!done) now.issue(c, x, slab(v), chunks_in(v)), now.settle(c, x, slab(v), v & 1), visit(acc0, t, v, now);
        if (two) visit(acc1, t + 1, v, now);
      }
      finish(acc0);
      if (two) finish(acc1);
    }
  }
};

template <bool ONE>
__device__ __forceinline__ void consume_linear(Consumer& c) {
  const Record r = c.walk.now;
  Linear<ONE> l{c};
  l.x = address(c.walk, r.operand(STREAM_LINEAR_X)) + Copy(c.walk).offset;
  const uint32_t k = r.dim(STREAM_LINEAR_D_K);
  l.tiles = r.dim(STREAM_LINEAR_D_TILE1) - r.dim(STREAM_LINEAR_D_TILE0);
  l.chunks = chunks_of(k), l.stages = stages_of(k), l.base = c.stage;
  const uint32_t slabs = (l.chunks + 7) / 8;
  l.own = slabs > Consumer::warp() ? (slabs - Consumer::warp() + 7) / 8 : 0;
  l.wide = l.stages * 2 > WIDE;
  // A warp may not wait for a stage more than a turn of the ring ahead of what has landed; warps without stages would.
  const bool idle = slabs < CONSUMERS;
  if (idle || c.idle) consumers_meet();
  c.idle = idle;
  c.mark(0);
  // A warp without slabs is taken apart: registers that are not set on one path are alive around the whole packet loop.
  if (l.own == 0) {
    c.begin_step();
    for (uint32_t t = 0; t < l.tiles; t++) c.hand_over(make_float4(0, 0, 0, 0), false, ONE);
  } else {
    typename Linear<ONE>::First f;
    l.take_first(f);
    c.begin_step();
    if (l.wide) l.streamed(f);
    else if (l.own > 1) l.template narrow<2>(f);
    else l.template narrow<1>(f);
  }
  c.stage += l.tiles * l.stages;
}
