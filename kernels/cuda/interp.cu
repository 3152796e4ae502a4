// The interpreter of STREAM packets for Hopper: one cooperative kernel that stays on the SMs while there is work; one worker an
// SM, every worker walks its own static list of packets, step after step, job after job. See docs/gpu.md.
// Build: nvcc -O3 -std=c++17 -gencode=arch=compute_90a,code=sm_90a -cubin interp.cu
#define _Static_assert static_assert
#include "attention.cuh"
#include "epilogue.cuh"
#include "linear.cuh"
#include "loader.cuh"
#include "resident.cuh"
#include "sample.cuh"

// {threads, bytes of dynamic shared memory, sizeof(Params), sizeof(Job), ABI version}: read by the host, so that no number stands twice
__device__ __constant__ uint32_t plow_launch[5] = {WARPS * 32, sizeof(Shared), sizeof(Params), sizeof(Job), ABI_VERSION};

// Registers of a thread: what the launch gives all three warpgroups alike is all there is, more than that waits for ever.
constexpr int LAUNCH_REGISTERS = 65536 / (WARPS * 32) / 8 * 8, CONSUMER_REGISTERS = 192, OTHER_REGISTERS = 120;
static_assert(CONSUMERS * CONSUMER_REGISTERS + (WARPS - CONSUMERS) * OTHER_REGISTERS <= WARPS * LAUNCH_REGISTERS, "setmaxnreg would wait for ever");

template <bool ONE, int DH>
__device__ __forceinline__ void consume(const Params& p, Shared& s) {
  Consumer c(p, s);
  while (true) {
    if (!c.walk.take_job(p)) end_warp();
    for (; c.walk.step < c.walk.n_steps; c.walk.advance()) {
      if (c.walk.packet == 0) c.fresh = true;
      const uint32_t op = c.walk.now.opcode();
      if (op == OP_STREAM_LINEAR || op == OP_STREAM_HEAD) consume_linear<ONE>(c);
      else if (op == OP_STREAM_ATTENTION) consume_attention<DH>(c);
      else if (op == OP_STREAM_SAMPLE) consume_sample(c);
      else if (op == OP_NOP) c.hand_over(make_float4(0, 0, 0, 0), false, true);
    }
  }
}

template <bool ONE, int DH>
__device__ __forceinline__ void interpret(const Params& p) {
  extern __shared__ __align__(128) uint8_t raw[];
  Shared& s = *(Shared*)raw;
  for (uint32_t i = threadIdx.x * 16; i < sizeof(s.ring); i += WARPS * 32 * 16) *(uint4*)((uint8_t*)s.ring + i) = make_uint4(0, 0, 0, 0);
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");           // the copies that follow come after these stores
  if (threadIdx.x == 0) {
    for (int i = 0; i < STAGES; i++) barrier_init(shared_address(&s.full[i]), 1), barrier_init(shared_address(&s.empty[i]), 2);
    for (int i = 0; i < SUMS; i++) barrier_init(shared_address(&s.sums_full[i]), CONSUMERS), barrier_init(shared_address(&s.sums_empty[i]), 1);
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  }
  __syncthreads();
  const uint32_t warp = threadIdx.x >> 5;
  if (warp < CONSUMERS) {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(CONSUMER_REGISTERS));
    consume<ONE, DH>(p, s);
  } else {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(OTHER_REGISTERS));
    if (warp == EPILOGUE) Epilogue<ONE>(p, s).run();
    else if (warp == LOADER) Loader(p, s).run();
    else if (warp == LEADER && blockIdx.x == 0) Leader(p).run();
  }
}

// One build of the same interpreter for each number of columns and head size: what a program cannot meet costs no registers
// and no instruction cache (a build with all of them in one kernel spilled, and was a quarter slower).
#define ENTRY(COLS, DH)                                                                        \
  extern "C" __global__ void __launch_bounds__(WARPS * 32, 1) plow_interp_c##COLS##_d##DH(const __grid_constant__ Params p) { \
    interpret<COLS == 1, DH>(p);                                                                \
  }
// A bundle has those that its programs need.
#if !defined(PLOW_ONLY) || defined(PLOW_C1_D64)
ENTRY(1, 64)
#endif
#if !defined(PLOW_ONLY) || defined(PLOW_C1_D128)
ENTRY(1, 128)
#endif
#if !defined(PLOW_ONLY) || defined(PLOW_C1_D256)
ENTRY(1, 256)
#endif
#if !defined(PLOW_ONLY) || defined(PLOW_C8_D64)
ENTRY(8, 64)
#endif
#if !defined(PLOW_ONLY) || defined(PLOW_C8_D128)
ENTRY(8, 128)
#endif
#if !defined(PLOW_ONLY) || defined(PLOW_C8_D256)
ENTRY(8, 256)
#endif
