/* The yardstick of `cascade bench fabric --mpi none`: a plain copy over a loopback TCP connection between two processes.
 *
 * It obeys the same lines as fabric.c. The reader sends a request of 64 bytes with place and length; the owner, a forked
 * process, answers with the bytes: send and recv with blocking sockets, nothing else.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

struct request {
  size_t at, n;
  char rest[64 - 2 * sizeof(size_t)];
};

static void die(const char *what) {
  perror(what);
  exit(1);
}

/* The memory is a file that the other program of the benchmark maps too: where the pages lie decides how fast they are. */
static char *map(const char *folder, int rank, size_t n) {
  char path[4096];
  snprintf(path, sizeof path, "%s/rank%d", folder, rank);
  int fd = open(path, O_RDWR | O_CREAT, 0600);
  if (fd < 0 || ftruncate(fd, (off_t)n)) die(path);
  void *p = mmap(0, n, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, 0);
  if (p == MAP_FAILED) die("loop.c: mmap");
  close(fd);
  memset(p, rank + 1, n);
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

static void own(int s, const char *src) {
  struct request r;
  while (recv(s, &r, sizeof r, MSG_WAITALL) == (ssize_t)sizeof r) {
    for (size_t done = 0; done < r.n;) {
      ssize_t k = send(s, src + r.at + done, r.n - done, 0);
      if (k <= 0) die("loop.c: send");
      done += (size_t)k;
    }
  }
}

static void measure(int s, char *dst, size_t n, long times, long slots) {
  double *took = malloc(times * sizeof *took), sum = 0;
  for (long i = 0; i < times; i++) {
    struct request r = {.at = (size_t)(i % slots) * n, .n = n};
    double start = now();
    if (send(s, &r, sizeof r, 0) != (ssize_t)sizeof r) die("loop.c: send");
    for (size_t done = 0; done < n;) {
      ssize_t k = recv(s, dst + r.at + done, n - done, 0);
      if (k <= 0) die("loop.c: recv");
      done += (size_t)k;
    }
    sum += took[i] = now() - start;
    if (dst[r.at] != 2 || dst[r.at + n - 1] != 2) { fprintf(stderr, "loop.c: wrong bytes\n"); exit(1); }
    dst[r.at] = dst[r.at + n - 1] = 0;
  }
  qsort(took, times, sizeof *took, compare);
  printf("%.0f %.0f %.0f\n", took[times / 2], took[0], sum);
  fflush(stdout);
  free(took);
}

/* Both ends of one connection over loopback: the owner's and the reader's. */
static void connection(int *owner, int *reader) {
  struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  socklen_t length = sizeof a;
  int one = 1, l = socket(AF_INET, SOCK_STREAM, 0);
  if (l < 0 || bind(l, (void *)&a, sizeof a) || listen(l, 1) || getsockname(l, (void *)&a, &length)) die("loop.c: listen");
  *reader = socket(AF_INET, SOCK_STREAM, 0);
  if (*reader < 0 || connect(*reader, (void *)&a, sizeof a)) die("loop.c: connect");
  if ((*owner = accept(l, 0, 0)) < 0) die("loop.c: accept");
  close(l);
  setsockopt(*owner, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  setsockopt(*reader, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
}

int main(int argc, char **argv) {
  if (argc != 3) { fprintf(stderr, "usage: loop FOLDER BYTES\n"); return 2; }
  const size_t size = (size_t)atol(argv[2]);
  int owner, reader;
  connection(&owner, &reader);
  pid_t child = fork();
  if (child < 0) die("loop.c: fork");
  if (child == 0) {
    close(reader);
    own(owner, map(argv[1], 1, size));
    return 0;
  }
  close(owner);
  char *memory = map(argv[1], 0, size), line[128];
  printf("ready\n");
  fflush(stdout);
  while (fgets(line, sizeof line, stdin)) {
    long n, times, slots;
    if (sscanf(line, "read two %ld %ld %ld", &n, &times, &slots) != 3) break;
    measure(reader, memory, (size_t)n, times, slots);
  }
  return 0;
}
