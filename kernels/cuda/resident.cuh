// Residence: the kernel stays on the SMs between calls. The host posts jobs into a ring in mapped memory; one warp, the
// leader, brings them to device memory, where every warp of every worker takes them in order.
//
//   host                         leader (worker 0, warp 10)            other warps
//   job n, then its number  ->   copies it, board = n          ->      take_job: poll board, keep a word a lane
//   reads tokens, finished  <-   counter says all ended: finished <-   last packet of a step: counter += 1
//
// After `idle_us` without a job, or when the host asks for it, the leader brings a job of zero steps and everybody leaves; the
// host sees `left` and launches again when there is work. What it posts at that moment stays in the ring for that launch.
#pragma once
#include "worker.cuh"

struct Leader {
  const Params& p;
  const uint32_t lane = threadIdx.x & 31;
  uint32_t taken = 0, finished = 0;                // jobs of this launch

  __device__ explicit Leader(const Params& p) : p(p) {}
  __device__ __forceinline__ uint32_t place(uint32_t n) const { return (p.first_job + n) % JOB_RING; }
  __device__ __forceinline__ bool is_posted() const { return load_system_acquire(&p.posted[place(taken)].number) == p.first_job + taken + 1; }
  __device__ __forceinline__ void bring() {
    const uint32_t* from = (const uint32_t*)(p.posted + place(taken));
    uint32_t* to = (uint32_t*)(p.jobs + place(taken));
#pragma unroll
    for (int i = 0; i < 4; i++) store_word(to + i * 32 + lane, load_system(from + i * 32 + lane));
    release(++taken);
  }
  __device__ __forceinline__ void release(uint32_t jobs) {
    __threadfence();
    __syncwarp();
    if (lane == 0) store_release(p.board + BOARD_POSTED, jobs);
  }
  // Whether all steps of job n have ended.
  __device__ __forceinline__ bool ended(uint32_t n) const {
    const Job* j = p.jobs + place(n);
    const uint32_t want = (load_word(&j->step_base) + load_word(&j->n_steps)) * p.workers;
    return (int32_t)(load_acquire(p.counters + 32 * STEP_COUNTER) - want) >= 0;
  }
  __device__ __forceinline__ bool asked_to_leave() const { return load_system((const uint32_t*)(p.report + REPORT_LEAVE)) == p.launch; }
  __device__ void run() {
    unsigned long long idle_since = global_time();
    while (true) {
      if (taken - finished < JOB_RING && is_posted()) {
        bring();
      } else if (finished < taken) {
        if (load_word(p.board + BOARD_STOP)) break;
        if (!ended(finished)) continue;
        if (lane == 0) store_system(p.report + REPORT_FINISHED, p.first_job + finished + 1);
        finished++, idle_since = global_time();
      } else if (asked_to_leave() || global_time() - idle_since > 1000ull * p.idle_us) {
        break;
      }
    }
    if (lane == 0) store_word(&p.jobs[place(taken)].n_steps, 0);
    release(taken + 1);
    if (lane == 0) store_system(p.report + REPORT_LEFT, (unsigned long long)p.launch);
  }
};
