/*
 * Preloaded into a PostgreSQL server, delays each write that makes a file grow, as a slow or throttled disk does.
 * HOLDFAST_DISK_FILE names a file of eight bytes, the delay in microseconds, which can change while the server runs.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

static const int64_t none = 0;
static const volatile int64_t *delay = &none;

__attribute__((constructor)) static void map_delay(void) {
  const char *path = getenv("HOLDFAST_DISK_FILE");
  int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
  if (file < 0) return;
  void *page = mmap(NULL, sizeof *delay, PROT_READ, MAP_SHARED, file, 0);
  if (page != MAP_FAILED) delay = page;
  close(file);
}

static void wait_if_growing(int file, off_t end) {
  struct stat found;
  if (*delay > 0 && fstat(file, &found) == 0 && S_ISREG(found.st_mode) && end > found.st_size) usleep(*delay);
}

ssize_t pwrite64(int file, const void *bytes, size_t count, off64_t at) {
  wait_if_growing(file, at + (off_t)count);
  return syscall(SYS_pwrite64, file, bytes, count, at);
}

ssize_t pwrite(int file, const void *bytes, size_t count, off_t at) { return pwrite64(file, bytes, count, at); }

int posix_fallocate64(int file, off64_t at, off64_t count) {
  wait_if_growing(file, at + count);
  return syscall(SYS_fallocate, file, 0, at, count) == 0 ? 0 : 22;
}

int posix_fallocate(int file, off_t at, off_t count) { return posix_fallocate64(file, at, count); }
