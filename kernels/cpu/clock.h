/* Time and the spin hint. */
#ifndef PLOW_CLOCK_H
#define PLOW_CLOCK_H
#include <stdint.h>
#include <time.h>

static inline uint64_t clock_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static inline void cpu_pause(void) {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("isb");
#endif
}
#endif
