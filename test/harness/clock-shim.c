/*
 * Preloaded into a server, shifts the wall clock that it sees by an offset that can change while it runs.
 * HOLDFAST_CLOCK_FILE names a file of eight bytes, the offset in nanoseconds. It is mapped, so that reading it is free.
 * The true time comes directly from the kernel: looking up libc's own function during malloc's start-up, as libfaketime
 * does, hangs redis-server. The monotonic clock is not shifted: a real step of the wall clock does not shift it either.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const int64_t second = 1000000000;
static const int64_t unshifted = 0;
static const volatile int64_t *offset = &unshifted;

__attribute__((constructor)) static void map_offset(void) {
  const char *path = getenv("HOLDFAST_CLOCK_FILE");
  int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
  if (file < 0) return;
  void *page = mmap(NULL, sizeof *offset, PROT_READ, MAP_SHARED, file, 0);
  if (page != MAP_FAILED) offset = page;
  close(file);
}

int clock_gettime(clockid_t clock, struct timespec *out) {
  int result = (int)syscall(SYS_clock_gettime, clock, out);
  if (result == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) {
    int64_t now = out->tv_sec * second + out->tv_nsec + *offset;
    out->tv_sec = now / second;
    out->tv_nsec = now % second;
  }
  return result;
}

int gettimeofday(struct timeval *restrict out, void *restrict zone) {
  (void)zone;
  struct timespec now;
  int result = clock_gettime(CLOCK_REALTIME, &now);
  out->tv_sec = now.tv_sec;
  out->tv_usec = now.tv_nsec / 1000;
  return result;
}

time_t time(time_t *out) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  if (out) *out = now.tv_sec;
  return now.tv_sec;
}
