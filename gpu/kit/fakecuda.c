// fakecuda.c: a stand-in for libcuda where there is no GPU, for the checks of this folder and for tests in Go (internal/testing/fakecuda).
// Its times mean nothing.
//
// Device memory is a memfd, mapped twice: at the address that callers get, where the host may neither read nor write, and at one that only
// this file knows. A touch by the host is a fault (SIGSEGV), as it is with a GPU; copies, memory operations and IPC work. A stream is a
// thread. What the driver refuses on a GPU is refused here, with its number: a thread without a context, a copy in the wrong direction or
// over the edge of an allocation or a registration, a range registered twice.
//
// FAKECUDA in the environment when the library is loaded, or a call of fakecuda_rules, has rules, separated by commas:
//     NAME=CODE     the call returns CODE; NAME is a function as exported, or copy, write, wait, launch: an operation when a stream comes to it,
//                   whose failure every later call returns, until no context is retained
//     NAME~MS       it takes so many milliseconds longer
//     NAME=CODE@N   only its N-th time, counted from 1
// It has the functions of libcufile too, of which it takes regular files; cuFileDriverOpen=5010 is that library's code.
// FAKECUDA_DEVICES and FAKECUDA_MIB are the number of devices (1) and the memory of the first (1,024; device i has i+1 times as much).
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#include "kernel.cu"
#include "../gio/gio.h"

typedef int R;
typedef uint64_t P;
enum { INVALID = 1, NO_MEMORY = 2, UNINITIALIZED = 3, NO_DEVICE = 100, BAD_DEVICE = 101, BAD_CONTEXT = 201, NOT_FOUND = 500,
       NOT_READY = 600, TIMEOUT = 702, REGISTERED = 712, UNREGISTERED = 713, BAD_PTX = 218, PARTITION = 914, FILE_DRIVER = 5011, BAD_FILE = 5018, SMS = 20, OPS = 1 << 16, RANGES = 1024, RULES = 16, DEVICES = 16 };

struct event { uint64_t recorded, reached; double at; };
struct op { enum { COPY, WRITE, WAIT, LAUNCH, LAUNCH_GIO, EVENT, AWAIT } kind; uint64_t a, b, n; };
struct stream { struct op ops[OPS]; int ages[OPS]; uint64_t queued, finished; int ends; pthread_t thread; };
// One allocation, or, without own, one registration of host memory.
struct range { P at; size_t n; char *own; int fd, device, imported; };
struct rule { char name[48]; int code, ms, nth, seen; };

// mu guards all below; moved is signalled when a stream got further.
static pthread_mutex_t mu = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t moved = PTHREAD_COND_INITIALIZER;
static struct range ranges[RANGES];
static struct rule rules[RULES];
static size_t used[DEVICES];
static int retained[DEVICES], devices = 1, initialized, failure, age; // age: how often all contexts ended
static size_t mib = 1024;
static struct stream *null_stream;
static __thread char *current; // (char *)0 + device + 1

static double seconds(void) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec; }

void fakecuda_rules(const char *text) {
    pthread_mutex_lock(&mu);
    memset(rules, 0, sizeof rules);
    for (int i = 0; text && *text && i < RULES; i++, text += strcspn(text, ","), text += *text == ',') {
        size_t n = strcspn(text, "=~,");
        if (n >= sizeof rules[i].name) continue;
        memcpy(rules[i].name, text, n);
        if (text[n] == '=') sscanf(text + n, "=%d@%d", &rules[i].code, &rules[i].nth);
        if (text[n] == '~') sscanf(text + n, "~%d", &rules[i].ms);
    }
    pthread_mutex_unlock(&mu);
}

__attribute__((constructor)) static void load(void) {
    const char *d = getenv("FAKECUDA_DEVICES"), *m = getenv("FAKECUDA_MIB");
    if (d) devices = atoi(d) < DEVICES ? atoi(d) : DEVICES;
    if (m) mib = strtoul(m, 0, 10);
    fakecuda_rules(getenv("FAKECUDA"));
}

// obey does what the rules have for a call or an operation, and returns its code.
static R obey(const char *name) {
    int code = 0, ms = 0;
    pthread_mutex_lock(&mu);
    for (int i = 0; i < RULES; i++)
        if (!strcmp(rules[i].name, name)) {
            ms += rules[i].ms;
            if (!rules[i].nth || ++rules[i].seen == rules[i].nth) code = rules[i].code ? rules[i].code : code;
        }
    pthread_mutex_unlock(&mu);
    if (ms) usleep((useconds_t)ms * 1000);
    return code;
}

static R enter(const char *name, int context) {
    R e = obey(name);
    if (e) return e;
    pthread_mutex_lock(&mu);
    e = !initialized ? UNINITIALIZED : !context ? 0 : !current || !retained[current - (char *)0 - 1] ? BAD_CONTEXT : failure;
    pthread_mutex_unlock(&mu);
    return e;
}
#define ENTER do { R e_ = enter(__func__, 0); if (e_) return e_; } while (0)
#define IN_CONTEXT do { R e_ = enter(__func__, 1); if (e_) return e_; } while (0)

static int this_device(void) { return current ? (int)(current - (char *)0) - 1 : 0; }

// at finds the range that begins at an address.
static struct range *at(P a, int device_memory) {
    for (int i = 0; i < RANGES; i++)
        if (ranges[i].n && ranges[i].at == a && !ranges[i].own == !device_memory) return &ranges[i];
    return 0;
}

// touching finds a range that shares a byte with another.
static struct range *touching(P a, size_t n) {
    for (int i = 0; i < RANGES; i++)
        if (ranges[i].n && a < ranges[i].at + ranges[i].n && ranges[i].at < a + n) return &ranges[i];
    return 0;
}

static struct range *add(struct range r) {
    for (int i = 0; i < RANGES; i++)
        if (!ranges[i].n) { ranges[i] = r; return &ranges[i]; }
    return 0;
}

// reach returns where this file reaches n bytes, or 0 where the driver reaches them not; device is whether they are a device's.
static char *reach(P a, size_t n, int *device) {
    pthread_mutex_lock(&mu);
    struct range *r = touching(a, n ? n : 1);
    char *p = !r ? (char *)a : a < r->at || a + n > r->at + r->n ? 0 : r->own ? r->own + (a - r->at) : (char *)a;
    *device = r && r->own;
    pthread_mutex_unlock(&mu);
    return a ? p : 0;
}

// The kernel gio_device, on one thread as a CPU does: until the host stops it, or nothing has happened for so many nanoseconds.
static void gio(struct gio_header *h, u64 patience) {
    struct gio_device d = {.h = h};
    gio_store_release(0, &h->device.value, GIO_DEVICE_RUNNING);
    for (double t = seconds(); !gio_load_acquire(0, &h->stop.value) && (seconds() - t) * 1e9 < (double)patience;) {
        if (gio_device_step(&d)) t = seconds();
        else gio_relax();
    }
    gio_store_release(0, &h->device.value, GIO_DEVICE_ENDED);
}

static R run(struct op o) {
    static const char *const rule[] = {[COPY] = "copy", [WRITE] = "write", [WAIT] = "wait", [LAUNCH] = "launch", [LAUNCH_GIO] = "launch", [EVENT] = "", [AWAIT] = ""};
    R e = obey(rule[o.kind]);
    if (e) return e;
    switch (o.kind) {
    case COPY: memcpy((void *)o.a, (void *)o.b, o.n); return 0;
    case WRITE: store_release((u32 *)o.a, (u32)o.b); return 0;
    case WAIT:
        for (double t = seconds(); (int)(load_acquire((u32 *)o.a) - (u32)o.b) < 0; relax())
            if (seconds() - t > 10) return TIMEOUT; // nobody will store it
        return 0;
    case LAUNCH: issue((struct job *)o.a); return 0;
    case LAUNCH_GIO: gio((struct gio_header *)o.a, o.n); return 0;
    case EVENT: case AWAIT: break;
    }
    struct event *v = (struct event *)o.a;
    pthread_mutex_lock(&mu);
    if (o.kind == EVENT) v->at = seconds(), v->reached = o.b;
    while (v->reached < o.b && !failure) pthread_cond_wait(&moved, &mu);
    pthread_mutex_unlock(&mu);
    return 0;
}

static void *serve(void *x) {
    struct stream *s = x;
    pthread_mutex_lock(&mu);
    for (;;) {
        while (s->finished == s->queued && !s->ends) pthread_cond_wait(&moved, &mu);
        if (s->finished == s->queued) break;
        struct op o = s->ops[s->finished % OPS];
        int skip = (failure || s->ages[s->finished % OPS] != age) && o.kind != EVENT; // what comes after a failure is not done, nor what contexts left behind
        pthread_mutex_unlock(&mu);
        R e = skip ? 0 : run(o);
        pthread_mutex_lock(&mu);
        if (e && !failure) failure = e;
        s->finished++;
        pthread_cond_broadcast(&moved);
    }
    pthread_mutex_unlock(&mu);
    free(s);
    return 0;
}

static struct stream *begin(void) {
    struct stream *s = calloc(1, sizeof *s);
    sigset_t all, before; // signals are for threads of the program
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int e = !s || pthread_create(&s->thread, 0, serve, s);
    pthread_sigmask(SIG_SETMASK, &before, 0);
    if (e) { free(s); return 0; }
    pthread_detach(s->thread);
    return s;
}

// of returns a stream; 0 is the default stream, which takes no part in the order of others here.
static struct stream *of(void *s) { return s ? s : null_stream; }

static R queue(void *stream, struct op o) {
    struct stream *s = of(stream);
    pthread_mutex_lock(&mu);
    while (s->queued - s->finished == OPS) pthread_cond_wait(&moved, &mu);
    s->ages[s->queued % OPS] = age;
    s->ops[s->queued++ % OPS] = o;
    pthread_cond_broadcast(&moved);
    pthread_mutex_unlock(&mu);
    return 0;
}

static R finish(struct stream *s) {
    pthread_mutex_lock(&mu);
    for (uint64_t until = s->queued; s->finished < until;) pthread_cond_wait(&moved, &mu);
    R e = failure;
    pthread_mutex_unlock(&mu);
    return e;
}

R cuInit(unsigned f) {
    R e = obey(__func__);
    if (e || f || !devices) return e ? e : f ? INVALID : NO_DEVICE;
    pthread_mutex_lock(&mu);
    if (!null_stream) null_stream = begin();
    initialized = !!null_stream;
    pthread_mutex_unlock(&mu);
    return initialized ? 0 : NO_MEMORY;
}
R cuDriverGetVersion(int *v) { *v = 13000; return obey(__func__); }
R cuDeviceGetCount(int *n) { ENTER; *n = devices; return 0; }
R cuDeviceGet(int *d, int i) { ENTER; *d = i; return i >= 0 && i < devices ? 0 : BAD_DEVICE; }
R cuDeviceGetName(char *n, int l, int d) { ENTER; snprintf(n, (size_t)l, "no GPU (fake %d)", d); return 0; }
// 75, 76: compute capability 9.i; 33, 34, 50: PCI bus, device, domain; 16: SMs; 10, 39: threads of a warp and of an SM. Of the others, all are "yes" or one.
R cuDeviceGetAttribute(int *v, int a, int d) { ENTER; *v = a == 75 ? 9 : a == 76 ? d : a == 33 ? d + 1 : a == 34 || a == 50 ? 0 : a == 16 ? SMS : a == 10 ? 32 : a == 39 ? 2048 : 1; return 0; }
R cuDeviceTotalMem_v2(size_t *n, int d) { ENTER; *n = (size_t)(d + 1) * mib << 20; return 0; }
R cuDeviceGetUuid_v2(unsigned char *u, int d) { ENTER; memset(u, 0xfa, 16); u[15] = (unsigned char)d; return 0; }
R cuDeviceGetPCIBusId(char *n, int l, int d) { ENTER; snprintf(n, (size_t)l, "0000:%02x:00.0", (unsigned)d + 1); return 0; }
R cuGetErrorName(R e, const char **s) { static __thread char b[32]; snprintf(b, sizeof b, "FAKE_ERROR_%d", e); *s = b; return 0; }

// forget drops what the contexts had, after the last one.
static void forget(void) {
    for (int i = 0; i < devices; i++)
        if (retained[i]) return;
    for (struct range *r = ranges; r < ranges + RANGES; r++) {
        if (r->own) munmap((void *)r->at, r->n), munmap(r->own, r->n), close(r->fd);
        memset(r, 0, sizeof *r);
    }
    memset(used, 0, sizeof used);
    failure = 0;
    age++;
}

static R retain(int d, int by) {
    R e = INVALID;
    pthread_mutex_lock(&mu);
    if (d >= 0 && d < devices && retained[d] + by >= 0) {
        e = 0;
        if (!(retained[d] += by)) forget();
    }
    pthread_mutex_unlock(&mu);
    return e;
}
R cuDevicePrimaryCtxRetain(void **c, int d) { ENTER; *c = (char *)0 + d + 1; return retain(d, 1); }
R cuDevicePrimaryCtxRelease_v2(int d) { ENTER; return retain(d, -1); }
R cuCtxSetCurrent(void *c) { ENTER; current = c; return 0; }
R cuCtxSynchronize(void) { IN_CONTEXT; return finish(null_stream); }

static R map(P *d, size_t n, int fd, int imported) {
    int dev = this_device();
    R e = NO_MEMORY;
    pthread_mutex_lock(&mu);
    if (fd >= 0 && (imported || used[dev] + n <= (size_t)(dev + 1) * mib << 20)) {
        void *given = mmap(0, n, PROT_NONE, MAP_SHARED, fd, 0), *own = mmap(0, n, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        if (given != MAP_FAILED && own != MAP_FAILED && add((struct range){(P)given, n, own, fd, dev, imported})) {
            *d = (P)given, e = 0;
            if (!imported) used[dev] += n;
        }
    }
    pthread_mutex_unlock(&mu);
    if (e && fd >= 0) close(fd);
    return e;
}
static R unmap(P d, int imported) {
    R e = INVALID;
    pthread_mutex_lock(&mu);
    struct range *r = at(d, 1);
    if (r && r->imported == imported) {
        munmap((void *)r->at, r->n), munmap(r->own, r->n), close(r->fd);
        if (!imported) used[r->device] -= r->n;
        memset(r, 0, sizeof *r), e = 0;
    }
    pthread_mutex_unlock(&mu);
    return e;
}
static int memory(const char *name, size_t n) {
    int fd = memfd_create(name, MFD_CLOEXEC);
    if (fd >= 0 && ftruncate(fd, (off_t)n)) { close(fd); fd = -1; }
    return fd;
}
R cuMemAlloc_v2(P *d, size_t n) { IN_CONTEXT; return n ? map(d, n, memory("device", n), 0) : INVALID; }
R cuMemFree_v2(P d) { IN_CONTEXT; finish(null_stream); return unmap(d, 0); }
R cuMemGetInfo_v2(size_t *left, size_t *all) {
    IN_CONTEXT;
    int d = this_device();
    pthread_mutex_lock(&mu);
    *all = (size_t)(d + 1) * mib << 20, *left = *all - used[d];
    pthread_mutex_unlock(&mu);
    return 0;
}

static R enlist(P a, size_t n) {
    pthread_mutex_lock(&mu);
    struct range *r = touching(a, n);
    R e = !a || !n ? INVALID : r ? r->own ? INVALID : REGISTERED : add((struct range){.at = a, .n = n, .fd = -1}) ? 0 : NO_MEMORY;
    pthread_mutex_unlock(&mu);
    return e;
}
static R delist(P a, size_t *n) {
    pthread_mutex_lock(&mu);
    struct range *r = at(a, 0);
    if (r) *n = r->n, memset(r, 0, sizeof *r);
    pthread_mutex_unlock(&mu);
    return r ? 0 : UNREGISTERED;
}
R cuMemHostAlloc(void **p, size_t n, unsigned f) {
    (void)f;
    IN_CONTEXT;
    *p = mmap(0, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return *p == MAP_FAILED ? NO_MEMORY : enlist((P)*p, n);
}
R cuMemFreeHost(void *p) { size_t n = 0; IN_CONTEXT; R e = delist((P)p, &n); if (!e) munmap(p, n); return e; }
R cuMemHostRegister_v2(void *p, size_t n, unsigned f) { (void)f; IN_CONTEXT; return enlist((P)p, n); }
R cuMemHostUnregister(void *p) { size_t n; IN_CONTEXT; return delist((P)p, &n); }
R cuMemHostGetDevicePointer_v2(P *d, void *p, unsigned f) {
    (void)f;
    IN_CONTEXT;
    pthread_mutex_lock(&mu);
    struct range *r = touching((P)p, 1);
    pthread_mutex_unlock(&mu);
    *d = (P)p;
    return r && !r->own ? 0 : INVALID;
}

R cuStreamCreateWithPriority(void **s, unsigned f, int p) { (void)f, (void)p; IN_CONTEXT; return (*s = begin()) ? 0 : NO_MEMORY; }
R cuStreamDestroy_v2(void *s) { // as the driver's: what is queued is still done
    ENTER;
    pthread_mutex_lock(&mu);
    if (s) ((struct stream *)s)->ends = 1;
    pthread_cond_broadcast(&moved);
    pthread_mutex_unlock(&mu);
    return s ? 0 : INVALID;
}
R cuStreamSynchronize(void *s) { IN_CONTEXT; return finish(of(s)); }
R cuStreamQuery(void *s) {
    IN_CONTEXT;
    pthread_mutex_lock(&mu);
    R e = failure ? failure : of(s)->finished < of(s)->queued ? NOT_READY : 0;
    pthread_mutex_unlock(&mu);
    return e;
}
R cuEventCreate(void **e, unsigned f) { (void)f; IN_CONTEXT; return (*e = calloc(1, sizeof(struct event))) ? 0 : NO_MEMORY; }
R cuEventDestroy_v2(void *e) { ENTER; return e ? 0 : INVALID; } // its memory stays: a stream may still come to it
R cuEventRecord(void *e, void *s) {
    IN_CONTEXT;
    pthread_mutex_lock(&mu);
    uint64_t n = ++((struct event *)e)->recorded;
    pthread_mutex_unlock(&mu);
    return queue(s, (struct op){EVENT, (P)e, n, 0});
}
static R reached(struct event *v, int wait) {
    pthread_mutex_lock(&mu);
    for (uint64_t until = v->recorded; v->reached < until && wait;) pthread_cond_wait(&moved, &mu);
    R e = failure ? failure : v->reached < v->recorded && !wait ? NOT_READY : 0;
    pthread_mutex_unlock(&mu);
    return e;
}
R cuEventSynchronize(void *e) { IN_CONTEXT; return reached(e, 1); }
R cuEventQuery(void *e) { IN_CONTEXT; return reached(e, 0); }
R cuStreamWaitEvent(void *s, void *e, unsigned f) {
    (void)f;
    IN_CONTEXT;
    pthread_mutex_lock(&mu);
    uint64_t n = ((struct event *)e)->recorded;
    pthread_mutex_unlock(&mu);
    return queue(s, (struct op){AWAIT, (P)e, n, 0});
}
R cuEventElapsedTime(float *ms, void *a, void *b) { *ms = (float)((((struct event *)b)->at - ((struct event *)a)->at) * 1e3); return 0; }

enum { IN_HOST, IN_DEVICE, ANY };
static R copy(P d, P s, size_t n, int to, int from, void *stream) {
    int there, here;
    char *a = reach(d, n, &there), *b = reach(s, n, &here);
    return !a || !b || (to != ANY && to != there) || (from != ANY && from != here) ? INVALID : queue(stream, (struct op){COPY, (P)a, (P)b, n});
}
R cuMemcpyHtoDAsync_v2(P d, const void *h, size_t n, void *s) { IN_CONTEXT; return copy(d, (P)h, n, IN_DEVICE, IN_HOST, s); }
R cuMemcpyDtoHAsync_v2(void *h, P d, size_t n, void *s) { IN_CONTEXT; return copy((P)h, d, n, IN_HOST, IN_DEVICE, s); }
R cuMemcpyBatchAsync_v2(P *d, P *s, size_t *n, size_t k, void *how, size_t *idx, size_t nat, void *st) {
    IN_CONTEXT;
    if (!how || !idx || nat != 1 || !st) return INVALID; // the default stream is refused
    R e = 0;
    for (size_t i = 0; i < k && !e; i++) e = copy(d[i], s[i], n[i], ANY, ANY, st);
    return e;
}
R cuMemsetD8Async(P d, unsigned char v, size_t n, void *s) {
    int device;
    IN_CONTEXT;
    finish(of(s));
    char *p = reach(d, n, &device);
    if (!p || !device) return INVALID;
    memset(p, v, n);
    return 0;
}
static R word(P a, struct op o, void *s) {
    int device;
    char *p = reach(a, 4, &device);
    pthread_mutex_lock(&mu);
    int known = !!touching(a, 4);
    pthread_mutex_unlock(&mu);
    o.a = (P)p;
    return !p || !known || a % 4 ? INVALID : queue(s, o);
}
R cuStreamWriteValue32_v2(void *s, P a, u32 v, unsigned f) { IN_CONTEXT; return f ? INVALID : word(a, (struct op){WRITE, 0, v, 0}, s); }
R cuStreamWaitValue32_v2(void *s, P a, u32 v, unsigned f) { IN_CONTEXT; return f ? INVALID : word(a, (struct op){WAIT, 0, v, 0}, s); }
// A module is 2 where it has the kernel of kernel.cu, 3 where it has that of gpu/gio; so is its function.
R cuModuleLoadData(void **m, const void *p) {
    IN_CONTEXT;
    *m = (char *)0 + (strstr(p, ".entry issue") ? 2 : 3);
    return strstr(p, ".entry issue") || strstr(p, ".entry gio_device(") ? 0 : BAD_PTX;
}
R cuModuleGetFunction(void **f, void *m, const char *n) { IN_CONTEXT; *f = m; return strcmp(n, m == (char *)0 + 2 ? "issue" : "gio_device") ? NOT_FOUND : 0; }
R cuModuleUnload(void *m) { IN_CONTEXT; return m ? 0 : INVALID; }
R cuLaunchKernel(void *f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned sh, void *s, void **p, void **x) {
    IN_CONTEXT;
    P first = **(P **)p;
    if (sh || x || gx != 1 || gy != 1 || gz != 1 || by != 1 || bz != 1) return INVALID;
    if (f == (char *)0 + 3) { // state is device memory of the size that the kernel has, and zeroed
        u32 depth = ((struct gio_header *)first)->depth;
        int device;
        char *state = reach(*(P *)p[1], 64 + 256 * depth, &device);
        return state && device && bx == 32 * (1 + depth) ? queue(s, (struct op){LAUNCH_GIO, first, (P)state, *(u64 *)p[2]}) : INVALID;
    }
    return bx == 32 ? queue(s, (struct op){LAUNCH, first, 0, 0}) : INVALID;
}

// Green contexts. As of compute capability 9: parts are of 8 SMs, or of 2 where flags ignore who is scheduled together.
struct resource { int type; char pad[92]; unsigned sms; char rest[44]; };
R cuDeviceGetDevResource(int d, struct resource *r, int type) {
    ENTER;
    *r = (struct resource){.type = type, .sms = SMS};
    return d < 0 || d >= devices ? BAD_DEVICE : type != 1 ? INVALID : 0;
}
R cuDevSmResourceSplitByCount(struct resource *r, unsigned *n, const struct resource *in, struct resource *rest, unsigned flags, unsigned least) {
    ENTER;
    unsigned unit = flags & 1 ? 2 : 8, size = least < unit ? unit : (least + unit - 1) / unit * unit, most = in->sms / size;
    if (in->type != 1 || flags > 1) return INVALID;
    if (!most) return PARTITION;
    *n = r && *n < most ? *n : most;
    for (unsigned i = 0; r && i < *n; i++) r[i] = (struct resource){.type = 1, .sms = size};
    if (rest) *rest = (struct resource){.type = 1, .sms = in->sms - *n * size};
    return 0;
}
R cuDevResourceGenerateDesc(void **desc, struct resource *r, unsigned n) { ENTER; *desc = (char *)0 + r->sms; return n == 1 && r->type == 1 && r->sms ? 0 : INVALID; }
R cuGreenCtxCreate(void **g, void *desc, int d, unsigned flags) {
    ENTER;
    *g = desc;
    return d < 0 || d >= devices ? BAD_DEVICE : flags != 1 || !desc ? INVALID : 0; // the default stream is required
}
R cuGreenCtxDestroy(void *g) { ENTER; return g ? 0 : BAD_CONTEXT; }

// libcufile: a result is its own code and one of the driver.
struct file_error { int code, driver; };
struct file_description { int type; union { int fd; void *handle; } of; const void *functions; };
struct file_error cuFileDriverOpen(void) { R e = obey(__func__); return (struct file_error){e, e == FILE_DRIVER ? NO_DEVICE : 0}; }
struct file_error cuFileDriverClose_v2(void) { return (struct file_error){obey(__func__), 0}; }
struct file_error cuFileHandleRegister(void **h, struct file_description *d) {
    struct stat st;
    R e = obey(__func__);
    *h = d;
    return (struct file_error){e ? e : d->type != 1 || d->functions || fstat(d->of.fd, &st) || !S_ISREG(st.st_mode) ? BAD_FILE : 0, 0};
}
void cuFileHandleDeregister(void *h) { (void)h; }

struct ipc { int pid, fd; size_t n; char rest[48]; };
R cuIpcGetMemHandle(struct ipc *h, P d) {
    IN_CONTEXT;
    pthread_mutex_lock(&mu);
    struct range *r = at(d, 1);
    if (r) *h = (struct ipc){.pid = getpid(), .fd = r->fd, .n = r->n};
    pthread_mutex_unlock(&mu);
    return r ? 0 : INVALID;
}
R cuIpcOpenMemHandle_v2(P *d, struct ipc h, unsigned f) {
    char s[64];
    IN_CONTEXT;
    if (f != 1 || h.pid == getpid()) return h.pid == getpid() ? BAD_CONTEXT : INVALID; // the driver opens no handle of its own process
    snprintf(s, sizeof s, "/proc/%d/fd/%d", h.pid, h.fd);
    int fd = open(s, O_RDWR | O_CLOEXEC);
    return fd < 0 ? INVALID : map(d, h.n, fd, 1);
}
R cuIpcCloseMemHandle(P d) { IN_CONTEXT; return unmap(d, 1); }
R cuMemCreate(P *h, size_t n, const void *prop, unsigned long long f) { (void)prop, (void)f; *h = (P)memory("vmm", n); return (int)*h < 0 ? NO_MEMORY : 0; }
R cuMemRelease(P h) { return close((int)h); }
R cuMemExportToShareableHandle(int *fd, P h, int type, unsigned long long f) { (void)f; *fd = dup((int)h); return type != 1; }
R cuMemImportFromShareableHandle(P *h, void *fd, int type) { *h = (P)dup((int)(P)fd); return type != 1; }
R cuMemAddressReserve(P *d, size_t n, size_t al, P where, unsigned long long f) {
    (void)al, (void)where, (void)f;
    *d = (P)mmap(0, n, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return (void *)*d == MAP_FAILED ? NO_MEMORY : 0;
}
R cuMemMap(P d, size_t n, size_t off, P h, unsigned long long f) {
    (void)f;
    char *own = mmap(0, n, PROT_READ | PROT_WRITE, MAP_SHARED, (int)h, (off_t)off);
    if (own == MAP_FAILED) return NO_MEMORY;
    pthread_mutex_lock(&mu);
    struct range *r = add((struct range){d, n, own, dup((int)h), this_device(), 1});
    pthread_mutex_unlock(&mu);
    return r ? 0 : NO_MEMORY;
}
R cuMemSetAccess(P d, size_t n, const void *desc, size_t k) { (void)n, (void)desc, (void)k; return d ? 0 : INVALID; }
