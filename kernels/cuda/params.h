// What the host tells the kernel: Params once a launch, by value, and a Job for every call, through a ring in mapped host
// memory (resident.cuh). The host side of both is plow/runtime/cuda_params.py.
#pragma once
#include <cstdint>

constexpr int MAX_ROWS = 8;    // columns of an mma tile: rows that one step computes
constexpr int JOB_RING = 8;    // jobs that may be posted and not yet finished
constexpr int JOB_HOT = 32;    // words that every warp keeps, one in a lane

// Some steps of one program for one batch. Programs of several models may follow each other.
struct Job {
  uint32_t n_steps;              // 0: leave the SMs (never the host's: it asks by REPORT_LEAVE)
  uint32_t n_rows;
  uint32_t step_base;            // steps of all programs that end before this job begins
  uint32_t parity;               // steps that this program has completed (of them, which copy is next)
  uint8_t* arena;
  const uint32_t* packets;       // [workers][max_packets][32] words
  const uint32_t* counts;        // [workers] packets of each list
  const int32_t* page_table;     // [slots][blocks_per_seq]
  uint32_t published;            // from one copy of the published data to the other, in units of ALIGN
  uint32_t max_packets, blocks_per_seq;
  uint32_t sampled;              // bit r: row r is sampled by its parameters, not greedily
  uint32_t positions[MAX_ROWS], slots[MAX_ROWS];
  // ---- from here on read by those who need it
  uint32_t tokens[MAX_ROWS];
  int32_t sample_index[MAX_ROWS];   // place of the row's token in a step of out_tokens; -1: nowhere
  float temperature[MAX_ROWS];
  uint32_t top_k[MAX_ROWS];
  float top_p[MAX_ROWS], min_p[MAX_ROWS];
  uint64_t seed[MAX_ROWS];
  int32_t* out_tokens;           // mapped host memory: [n_steps][MAX_ROWS]
  uint32_t unused[29];
  uint32_t number;               // written last: number of the job, counted from 1
};
static_assert(sizeof(Job) == 512, "a job is 128 words");
enum JobWord : uint32_t { JOB_N_STEPS, JOB_N_ROWS, JOB_STEP_BASE, JOB_PARITY, JOB_ARENA, JOB_PACKETS = 6, JOB_COUNTS = 8, JOB_PAGE_TABLE = 10,
                          JOB_PUBLISHED = 12, JOB_MAX_PACKETS, JOB_BLOCKS_PER_SEQ, JOB_SAMPLED, JOB_POSITIONS, JOB_SLOTS = 24 };

struct Params {
  const Job* posted;             // mapped host memory [JOB_RING]: job n lies in place n % JOB_RING
  Job* jobs;                     // device memory [JOB_RING]: what the workers read
  uint32_t* board;               // device memory, zero at launch, see Board
  unsigned long long* report;    // mapped host memory, see Report
  uint32_t* counters;            // counter c at word 32 c, monotonic over launches and programs
  unsigned long long* diag;      // mapped host memory: [0] 1 = a wait ran into its limit; then notes [workers][DIAG_WARPS][DIAG_WORDS]
  unsigned long long* trace;     // null or [workers][max_packets][4] ns: start, ready, done, published (last step of a job)
  uint32_t workers;
  uint32_t first_job;            // jobs that launches before this one took
  uint32_t launch;               // number of this launch
  uint32_t idle_us;              // the kernel leaves after so long without a job
  uint32_t flags;                // Diagnosis; results are wrong by design
  uint32_t inflight;             // ring stages that the loader keeps in flight
};

// Words of `report`: jobs finished; number of the last launch that left; launch that the host asks to leave once it is idle.
enum Report : uint32_t { REPORT_FINISHED, REPORT_LEFT, REPORT_LEAVE };
// Words of `board`, in cache lines of their own: jobs of this launch that lie in `jobs`; 1 = everybody stops.
enum Board : uint32_t { BOARD_POSTED = 0, BOARD_STOP = 32 };
constexpr int DIAG_NOTES = 16, DIAG_WARPS = 12, DIAG_WORDS = 4;

enum Diagnosis : uint32_t { NO_WAITS = 1, NO_MATH = 2, NO_ATTENTION = 4, NO_LOADS = 8 };
