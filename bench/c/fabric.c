/* The yardstick of `cascade bench fabric`: what MPI itself moves between two ranks, in C.
 *
 * Rank 0 obeys lines on standard input; rank 1 follows. "read MODE BYTES TIMES SLOTS" moves BYTES from rank 1 to rank 0
 * TIMES times and prints the median, the fastest and the sum, in nanoseconds. MODE two: the reader posts its receive,
 * sends a request of 64 bytes and waits; the owner answers with the bytes. MODE rget: MPI_Rget and wait. SLOTS places
 * in memory are used in turn. "quit" ends both.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum { TAG_COMMAND = 9, TAG_REQUEST = 1, TAG_DATA = 2 };
enum { MODE_QUIT, MODE_TWO, MODE_RGET };

/* The memory is a file that the other program of the benchmark maps too: where the pages lie decides how fast they are. */
static char *map(const char *folder, int rank, size_t n) {
  char path[4096];
  snprintf(path, sizeof path, "%s/rank%d", folder, rank);
  int fd = open(path, O_RDWR | O_CREAT, 0600);
  if (fd < 0 || ftruncate(fd, (off_t)n)) { perror(path); exit(1); }
  void *p = mmap(0, n, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, 0);
  if (p == MAP_FAILED) { perror("fabric.c: mmap"); exit(1); }
  close(fd);
  return p;
}

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1e9 + t.tv_nsec;
}

static int compare(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return x < y ? -1 : x > y;
}

/* A rank with nothing to do must not take the core of what is measured meanwhile. */
static void wait_quietly(MPI_Request *r) {
  for (int done = 0; !done; usleep(1000)) MPI_Test(r, &done, MPI_STATUS_IGNORE);
}

static void own(char *src, size_t n, long times, long slots) {
  char request[64];
  for (long i = 0; i < times; i++) {
    MPI_Request r;
    MPI_Irecv(request, sizeof request, MPI_BYTE, 0, TAG_REQUEST, MPI_COMM_WORLD, &r);
    MPI_Wait(&r, MPI_STATUS_IGNORE);
    MPI_Isend(src + (size_t)(i % slots) * n, (int)n, MPI_BYTE, 0, TAG_DATA, MPI_COMM_WORLD, &r);
    MPI_Wait(&r, MPI_STATUS_IGNORE);
  }
}

static void read_two(char *dst, size_t n) {
  static char request[64];
  MPI_Request r[2];
  MPI_Irecv(dst, (int)n, MPI_BYTE, 1, TAG_DATA, MPI_COMM_WORLD, &r[0]);
  MPI_Isend(request, sizeof request, MPI_BYTE, 1, TAG_REQUEST, MPI_COMM_WORLD, &r[1]);
  MPI_Status s[2];
  MPI_Waitall(2, r, s);
}

static void read_rget(char *dst, size_t n, size_t at, MPI_Win win) {
  MPI_Request r;
  MPI_Rget(dst, (int)n, MPI_BYTE, 1, (MPI_Aint)at, (int)n, MPI_BYTE, win, &r);
  MPI_Wait(&r, MPI_STATUS_IGNORE);
}

static void measure(int mode, char *dst, size_t n, long times, long slots, MPI_Win win) {
  double *took = malloc(times * sizeof *took), sum = 0;
  for (long i = 0; i < times; i++) {
    size_t at = (size_t)(i % slots) * n;
    double start = now();
    if (mode == MODE_TWO) read_two(dst + at, n);
    else read_rget(dst + at, n, at, win);
    sum += took[i] = now() - start;
    if (dst[at] != 2 || dst[at + n - 1] != 2) { fprintf(stderr, "fabric.c: wrong bytes\n"); exit(1); }
    dst[at] = dst[at + n - 1] = 0;
  }
  qsort(took, times, sizeof *took, compare);
  printf("%.0f %.0f %.0f\n", took[times / 2], took[0], sum);
  fflush(stdout);
  free(took);
}

int main(int argc, char **argv) {
  int level, rank, ranks;
  if (argc != 3) { fprintf(stderr, "usage: fabric FOLDER BYTES\n"); return 2; }
  const size_t size = (size_t)atol(argv[2]);
  MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &level);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  if (ranks != 2) { fprintf(stderr, "fabric.c: %d ranks, want 2\n", ranks); return 1; }
  char *memory = map(argv[1], rank, size);
  memset(memory, rank + 1, size);
  MPI_Win win = MPI_WIN_NULL;
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  int windows = MPI_Win_create(memory, (MPI_Aint)size, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &win) == MPI_SUCCESS;
  if (windows) MPI_Win_lock_all(MPI_MODE_NOCHECK, win);
  if (rank == 0) { printf("ready\n"); fflush(stdout); }
  for (;;) {
    long command[4] = {MODE_QUIT, 0, 0, 1};
    MPI_Request r;
    if (rank == 0) {
      char line[128], mode[16];
      if (fgets(line, sizeof line, stdin) && sscanf(line, "read %15s %ld %ld %ld", mode, &command[1], &command[2], &command[3]) == 4)
        command[0] = strcmp(mode, "rget") ? MODE_TWO : MODE_RGET;
      if (command[0] == MODE_RGET && !windows) { printf("none\n"); fflush(stdout); continue; }
      MPI_Isend(command, 4, MPI_LONG, 1, TAG_COMMAND, MPI_COMM_WORLD, &r);
      MPI_Wait(&r, MPI_STATUS_IGNORE);
    } else {
      MPI_Irecv(command, 4, MPI_LONG, 0, TAG_COMMAND, MPI_COMM_WORLD, &r);
      wait_quietly(&r);
    }
    if (command[0] == MODE_QUIT) break;
    if (rank == 0) {
      usleep(3000); /* until the owner listens: it is no part of the first transfer */
      measure((int)command[0], memory, (size_t)command[1], command[2], command[3], win);
    } else if (command[0] == MODE_TWO) {
      own(memory, (size_t)command[1], command[2], command[3]);
    } else {
      MPI_Irecv(command, 4, MPI_LONG, 0, TAG_COMMAND + 1, MPI_COMM_WORLD, &r);
      MPI_Wait(&r, MPI_STATUS_IGNORE); /* some libraries serve windows only from within MPI */
    }
    if (rank == 0 && command[0] == MODE_RGET) MPI_Send(command, 4, MPI_LONG, 1, TAG_COMMAND + 1, MPI_COMM_WORLD);
  }
  if (windows) { MPI_Win_unlock_all(win); MPI_Win_free(&win); }
  MPI_Finalize();
  return 0;
}
