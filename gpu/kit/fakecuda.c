// fakecuda.c: a stand-in for the driver where there is no GPU, to run the checks: device memory is a memfd, all streams are one thread
// that does one thing after another, and a wait that nobody satisfies ends the stream after two seconds. Its times mean nothing.
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>
#include "kernel.cu"

typedef int R;
typedef uint64_t P;
enum { INVALID = 1, NOT_FOUND = 500, TIMEOUT = 702, OPS = 1 << 16, MAPS = 64 };
struct op { enum { COPY, WRITE, WAIT, LAUNCH, EVENT } kind; uint64_t a, b, n; };

static struct op ops[OPS];
static uint64_t queued, finished;
static pthread_mutex_t mu = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t moved = PTHREAD_COND_INITIALIZER;
static int failure;
static struct { P at; size_t n; int fd; } maps[MAPS];

static double seconds(void) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec; }

static R run(struct op o) {
    switch (o.kind) {
    case COPY: memcpy((void *)o.a, (void *)o.b, o.n); return 0;
    case WRITE: store_release((u32 *)o.a, (u32)o.b); return 0;
    case WAIT:
        for (double t = seconds(); (int)(load_acquire((u32 *)o.a) - (u32)o.b) < 0; relax())
            if (seconds() - t > 2) return TIMEOUT;
        return 0;
    case LAUNCH: issue((struct job *)o.a); return 0;
    case EVENT: *(double *)o.a = seconds(); return 0;
    }
    return INVALID;
}

static void *stream(void *x) {
    for (;;) {
        pthread_mutex_lock(&mu);
        while (finished == queued) pthread_cond_wait(&moved, &mu);
        struct op o = ops[finished % OPS];
        pthread_mutex_unlock(&mu);
        R e = run(o);
        pthread_mutex_lock(&mu);
        if (e) failure = e;
        finished++;
        pthread_cond_broadcast(&moved);
        pthread_mutex_unlock(&mu);
    }
    return x;
}

static R queue(struct op o) {
    pthread_mutex_lock(&mu);
    while (queued - finished == OPS) pthread_cond_wait(&moved, &mu);
    ops[queued++ % OPS] = o;
    pthread_cond_broadcast(&moved);
    pthread_mutex_unlock(&mu);
    return 0;
}

R cuStreamSynchronize(void *s) {
    (void)s;
    pthread_mutex_lock(&mu);
    while (finished != queued) pthread_cond_wait(&moved, &mu);
    pthread_mutex_unlock(&mu);
    return failure;
}
R cuCtxSynchronize(void) { return cuStreamSynchronize(0); }

R cuInit(unsigned f) { static pthread_t t; return f || pthread_create(&t, 0, stream, 0) ? INVALID : 0; }
R cuDriverGetVersion(int *v) { *v = 13000; return 0; }
R cuDeviceGet(int *d, int i) { *d = i; return 0; }
R cuDeviceGetName(char *n, int l, int d) { snprintf(n, (size_t)l, "no GPU (fake %d)", d); return 0; }
R cuDeviceGetAttribute(int *v, int a, int d) { *v = a == 75 ? 9 : a == 76 ? d : 1; return 0; }
R cuDeviceTotalMem_v2(size_t *n, int d) { *n = (size_t)(d + 1) << 30; return 0; }
R cuDevicePrimaryCtxRetain(void **c, int d) { *c = (char *)0 + d + 1; return 0; }
R cuCtxSetCurrent(void *c) { return c ? 0 : INVALID; }
R cuGetErrorName(R e, const char **s) { static char b[32]; snprintf(b, sizeof b, "FAKE_ERROR_%d", e); *s = b; return 0; }

static R new_map(P *at, size_t n, int fd) {
    void *p = mmap(0, n, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    for (int i = 0; p != MAP_FAILED && i < MAPS; i++)
        if (!maps[i].at) { maps[i].at = *at = (P)p, maps[i].n = n, maps[i].fd = fd; return 0; }
    return INVALID;
}
R cuMemAlloc_v2(P *d, size_t n) { int fd = memfd_create("device", 0); return ftruncate(fd, (off_t)n) ? INVALID : new_map(d, n, fd); }
R cuMemFree_v2(P d) {
    cuCtxSynchronize();
    for (int i = 0; i < MAPS; i++)
        if (maps[i].at == d) { munmap((void *)d, maps[i].n); close(maps[i].fd); maps[i].at = 0; return 0; }
    return INVALID;
}
R cuMemHostAlloc(void **p, size_t n, unsigned f) { (void)f; *p = mmap(0, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0); return *p == MAP_FAILED; }
R cuMemFreeHost(void *p) { return p ? 0 : INVALID; }
R cuMemHostRegister_v2(void *p, size_t n, unsigned f) { (void)f; return p && n ? 0 : INVALID; }
R cuMemHostUnregister(void *p) { return p ? 0 : INVALID; }
R cuMemHostGetDevicePointer_v2(P *d, void *p, unsigned f) { (void)f; *d = (P)p; return 0; }

R cuStreamCreateWithPriority(void **s, unsigned f, int p) { (void)f, (void)p; *s = (char *)0 + 4; return 0; }
R cuEventCreate(void **e, unsigned f) { (void)f; *e = calloc(1, sizeof(double)); return 0; }
R cuEventRecord(void *e, void *s) { (void)s; return queue((struct op){EVENT, (P)e, 0, 0}); }
R cuEventSynchronize(void *e) { return cuStreamSynchronize(e); }
R cuEventElapsedTime(float *ms, void *a, void *b) { *ms = (float)((*(double *)b - *(double *)a) * 1e3); return 0; }
R cuMemcpyHtoDAsync_v2(P d, const void *h, size_t n, void *s) { (void)s; return queue((struct op){COPY, d, (P)h, n}); }
R cuMemcpyDtoHAsync_v2(void *h, P d, size_t n, void *s) { (void)s; return queue((struct op){COPY, (P)h, d, n}); }
R cuMemcpyBatchAsync_v2(P *d, P *s, size_t *n, size_t k, void *at, size_t *idx, size_t nat, void *st) {
    (void)at, (void)idx, (void)nat, (void)st;
    for (size_t i = 0; i < k; i++) queue((struct op){COPY, d[i], s[i], n[i]});
    return 0;
}
R cuMemsetD8Async(P d, unsigned char v, size_t n, void *s) { cuStreamSynchronize(s); memset((void *)d, v, n); return 0; }
R cuStreamWriteValue32_v2(void *s, P a, u32 v, unsigned f) { (void)s, (void)f; return queue((struct op){WRITE, a, v, 0}); }
R cuStreamWaitValue32_v2(void *s, P a, u32 v, unsigned f) { (void)s, (void)f; return queue((struct op){WAIT, a, v, 0}); }
R cuModuleLoadData(void **m, const void *p) { *m = (char *)0 + 2; return strstr(p, ".entry issue") ? 0 : INVALID; }
R cuModuleGetFunction(void **f, void *m, const char *n) { *f = m; return strcmp(n, "issue") ? NOT_FOUND : 0; }
R cuLaunchKernel(void *f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned sh, void *s, void **p, void **x) {
    (void)f, (void)gy, (void)gz, (void)by, (void)bz, (void)sh, (void)s, (void)x;
    return gx == 1 && bx == 32 ? queue((struct op){LAUNCH, **(P **)p, 0, 0}) : INVALID;
}

struct ipc { int pid, fd; size_t n; char rest[48]; };
R cuIpcGetMemHandle(struct ipc *h, P d) {
    for (int i = 0; i < MAPS; i++)
        if (maps[i].at == d) { *h = (struct ipc){.pid = getpid(), .fd = maps[i].fd, .n = maps[i].n}; return 0; }
    return INVALID;
}
R cuIpcOpenMemHandle_v2(P *d, struct ipc h, unsigned f) { (void)f; char s[64]; snprintf(s, sizeof s, "/proc/%d/fd/%d", h.pid, h.fd); return new_map(d, h.n, open(s, O_RDWR)); }
R cuIpcCloseMemHandle(P d) { return cuMemFree_v2(d); }
R cuMemCreate(P *h, size_t n, const void *prop, unsigned long long f) { (void)prop, (void)f; *h = (P)memfd_create("vmm", 0); return ftruncate((int)*h, (off_t)n); }
R cuMemRelease(P h) { return close((int)h); }
R cuMemExportToShareableHandle(int *fd, P h, int type, unsigned long long f) { (void)f; *fd = dup((int)h); return type != 1; }
R cuMemImportFromShareableHandle(P *h, void *fd, int type) { *h = (P)dup((int)(P)fd); return type != 1; }
R cuMemAddressReserve(P *d, size_t n, size_t al, P at, unsigned long long f) { (void)al, (void)at, (void)f; *d = (P)mmap(0, n, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0); return 0; }
R cuMemMap(P d, size_t n, size_t off, P h, unsigned long long f) { (void)f; return mmap((void *)d, n, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, (int)h, (off_t)off) == MAP_FAILED; }
R cuMemSetAccess(P d, size_t n, const void *desc, size_t k) { (void)n, (void)desc, (void)k; return d ? 0 : INVALID; }
