// kit.c: what the checks do in C: copies without an interpreter between two of them, a ring of io_uring whose memory is ours, a pool
// of pread. Python calls it by ctypes (kit.py); the driver's functions are looked up, so it builds and loads where there is no GPU.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/io_uring.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#ifndef IORING_SETUP_NO_MMAP
#define IORING_SETUP_NO_MMAP (1U << 14)
#define user_addr resv2
#endif
#ifndef IORING_SETUP_NO_SQARRAY
#define IORING_SETUP_NO_SQARRAY (1U << 16)
#endif

enum { PAGE = 4096, IDLE_MS = 200, PATIENCE_NS = 1000000000 };

static int (*copy_up)(uint64_t, const void *, size_t, void *);
static int (*copy_down)(void *, uint64_t, size_t, void *);
static int (*stream_sync)(void *), (*set_context)(void *);
static int (*write_value)(void *, uint64_t, uint32_t, unsigned), (*wait_value)(void *, uint64_t, uint32_t, unsigned);

static uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static uint32_t load(const uint32_t *p) { return __atomic_load_n(p, __ATOMIC_ACQUIRE); }
static void store(uint32_t *p, uint32_t v) { __atomic_store_n(p, v, __ATOMIC_RELEASE); }

int kit_load(const char *library) {
    void *driver = dlopen(library, RTLD_NOW | RTLD_GLOBAL);
    if (!driver) return -1;
    *(void **)&copy_up = dlsym(driver, "cuMemcpyHtoDAsync_v2");
    *(void **)&copy_down = dlsym(driver, "cuMemcpyDtoHAsync_v2");
    *(void **)&stream_sync = dlsym(driver, "cuStreamSynchronize");
    *(void **)&set_context = dlsym(driver, "cuCtxSetCurrent");
    *(void **)&write_value = dlsym(driver, "cuStreamWriteValue32_v2");
    *(void **)&wait_value = dlsym(driver, "cuStreamWaitValue32_v2");
    return copy_up && copy_down && stream_sync && set_context && write_value && wait_value ? 0 : -2;
}

// Copies.

int kit_copies(int up, const uint64_t *device, const uint64_t *host, uint64_t n, uint64_t bytes, void *stream) {
    for (uint64_t i = 0; i < n; i++) {
        void *h = (void *)(uintptr_t)host[i];
        int e = up ? copy_up(device[i], h, bytes, stream) : copy_down(h, device[i], bytes, stream);
        if (e) return e;
    }
    return 0;
}

struct copier {
    void *context, *up, *down;
    uint64_t device, host, blocks, bytes, rate; // rate: bytes a second, 0: as fast as it goes
    uint64_t moved;
    int32_t stop, error;
};

// Until stop: groups of blocks, the first half of the memories up and the second half down, both directions at once.
void kit_copier(struct copier *c) {
    enum { GROUP = 8 };
    uint64_t half = c->blocks / 2, at = 0, start = now_ns();
    c->error = set_context(c->context);
    while (!c->error && !__atomic_load_n(&c->stop, __ATOMIC_ACQUIRE)) {
        for (int i = 0; i < GROUP && !c->error; i++, at++) {
            uint64_t a = at * 7919 % half * c->bytes, b = a + half * c->bytes;
            c->error = copy_up(c->device + a, (void *)(uintptr_t)(c->host + a), c->bytes, c->up);
            if (!c->error) c->error = copy_down((void *)(uintptr_t)(c->host + b), c->device + b, c->bytes, c->down);
        }
        if (!c->error) c->error = stream_sync(c->up);
        if (!c->error) c->error = stream_sync(c->down);
        c->moved += 2 * GROUP * c->bytes;
        while (c->rate && !__atomic_load_n(&c->stop, __ATOMIC_ACQUIRE) && (double)(now_ns() - start) * 1e-9 * (double)c->rate < (double)c->moved) usleep(50);
    }
}

// Memory operations of a stream.

// Nanoseconds from enqueueing a write and a wait for what it wrote until the stream is empty.
int kit_pairs(void *stream, uint64_t word, uint32_t n, uint64_t *ns) {
    for (uint32_t i = 0; i < n; i++) {
        uint64_t t = now_ns();
        int e = write_value(stream, word, i + 1, 0);
        if (!e) e = wait_value(stream, word, i + 1, 0);
        if (!e) e = stream_sync(stream);
        if (e) return e;
        ns[i] = now_ns() - t;
    }
    return 0;
}

// Nanoseconds from a store by the CPU that a stream waits for until the CPU sees the stream's answer. The words are 256 bytes apart.
int kit_round_trips(void *stream, uint64_t device, uint32_t *host, uint32_t n, uint64_t *ns) {
    uint32_t *answer = host + 64;
    for (uint32_t i = 1; i <= n; i++) {
        int e = wait_value(stream, device, i, 0);
        if (!e) e = write_value(stream, device + 256, i, 0);
        if (e) return e;
        for (uint64_t t = now_ns(); now_ns() - t < 30000;) {} // until the stream waits
        uint64_t t = now_ns();
        store(host, i);
        while (load(answer) != i)
            if (now_ns() - t > PATIENCE_NS) return -1;
        ns[i - 1] = now_ns() - t;
    }
    return stream_sync(stream);
}

// Ring.

struct ring {
    uint8_t *memory, *sqes; // what the device writes and reads
    uint64_t memory_bytes, sqes_bytes;
    uint32_t sq_head, sq_tail, cq_head, cq_tail, cqes; // offsets in memory
    uint32_t sq_mask, cq_mask, entries;
    int32_t fd, file;
    uint32_t *flags;
    uint8_t *data;
};

static uint32_t *word(const struct ring *r, uint32_t offset) { return (uint32_t *)(r->memory + offset); }

void kit_ring_close(struct ring *r) {
    if (r->fd >= 0) close(r->fd);
    if (r->file >= 0) close(r->file);
    if (r->memory) munmap(r->memory, r->memory_bytes);
    if (r->sqes) munmap(r->sqes, r->sqes_bytes);
    memset(r, 0, sizeof *r);
    r->fd = r->file = -1;
}

static int failed(struct ring *r) {
    int e = errno ? errno : EIO;
    kit_ring_close(r);
    return -e;
}

// Wakes the kernel thread, if it sleeps. It does once at birth, and a wake-up sent before that is lost; later it does after IDLE_MS without
// an entry, so that a ring which waits for its turn takes no processor.
int kit_ring_wake(struct ring *r) {
    uint64_t t = now_ns();
    while (load(r->flags) & IORING_SQ_NEED_WAKEUP) {
        if (syscall(__NR_io_uring_enter, r->fd, 0, 0, IORING_ENTER_SQ_WAKEUP, NULL, 0) < 0 || now_ns() - t > PATIENCE_NS) return -1;
        usleep(200);
    }
    return 0;
}

// A ring that a kernel thread serves, over one file and one registered buffer. mapped: in the kernel's memory, else in ours.
// Returns 0, or the negative errno.
int kit_ring_open(struct ring *r, const char *path, uint8_t *data, uint64_t bytes, uint32_t entries, int mapped) {
    memset(r, 0, sizeof *r);
    r->fd = r->file = -1;
    r->file = open(path, O_RDONLY | O_DIRECT | O_CLOEXEC);
    if (r->file < 0) return failed(r);
    struct io_uring_params p = {.flags = IORING_SETUP_SQPOLL | IORING_SETUP_CQSIZE | IORING_SETUP_NO_SQARRAY | (mapped ? 0 : IORING_SETUP_NO_MMAP),
                                .cq_entries = 2 * entries, .sq_thread_idle = IDLE_MS};
    r->sqes_bytes = sizeof(struct io_uring_sqe) * entries;
    if (!mapped) {
        r->memory_bytes = (256 + sizeof(struct io_uring_cqe) * 2 * entries + PAGE - 1) & ~(uint64_t)(PAGE - 1);
        r->memory = mmap(NULL, r->memory_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
        r->sqes = mmap(NULL, r->sqes_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
        p.cq_off.user_addr = (uintptr_t)r->memory;
        p.sq_off.user_addr = (uintptr_t)r->sqes;
    }
    r->fd = (int)syscall(__NR_io_uring_setup, entries, &p);
    if (r->fd < 0) return failed(r);
    if (mapped) {
        r->memory_bytes = (p.cq_off.cqes + sizeof(struct io_uring_cqe) * p.cq_entries + PAGE - 1) & ~(uint64_t)(PAGE - 1);
        r->memory = mmap(NULL, r->memory_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, r->fd, IORING_OFF_SQ_RING);
        r->sqes = mmap(NULL, r->sqes_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, r->fd, IORING_OFF_SQES);
    }
    if (r->memory == MAP_FAILED || r->sqes == MAP_FAILED) {
        r->memory = r->sqes = NULL;
        return failed(r);
    }
    r->sq_head = p.sq_off.head, r->sq_tail = p.sq_off.tail, r->cq_head = p.cq_off.head, r->cq_tail = p.cq_off.tail, r->cqes = p.cq_off.cqes;
    r->sq_mask = *word(r, p.sq_off.ring_mask), r->cq_mask = *word(r, p.cq_off.ring_mask), r->entries = entries;
    r->flags = word(r, p.sq_off.flags);
    r->data = data;
    struct iovec v = {data, bytes};
    if (syscall(__NR_io_uring_register, r->fd, IORING_REGISTER_FILES, &r->file, 1) < 0 ||
        syscall(__NR_io_uring_register, r->fd, IORING_REGISTER_BUFFERS, &v, 1) < 0)
        return failed(r);
    for (uint64_t t = now_ns(); !(load(r->flags) & IORING_SQ_NEED_WAKEUP) && now_ns() - t < PATIENCE_NS;) {}
    return 0;
}

// Writes n entries, block i of data from offsets[i] of the file, and leaves the tail to whoever triggers them. Returns that tail.
uint32_t kit_ring_prepare(struct ring *r, const uint64_t *offsets, uint32_t n, uint32_t bytes) {
    uint32_t tail = load(word(r, r->sq_tail));
    struct io_uring_sqe *q = (struct io_uring_sqe *)r->sqes;
    for (uint32_t i = 0; i < n; i++)
        q[(tail + i) & r->sq_mask] = (struct io_uring_sqe){.opcode = IORING_OP_READ_FIXED, .flags = IOSQE_FIXED_FILE, .off = offsets[i],
                                                           .addr = (uintptr_t)(r->data + (uint64_t)i * bytes), .len = bytes, .user_data = i};
    return tail + n;
}

uint32_t kit_ring_word(const struct ring *r, uint32_t offset) { return load(word(r, offset)); }

// Releases whoever waits for the kernel's word of a ring that does not answer. The ring is of no use then.
void kit_ring_release(struct ring *r, uint32_t value) { store(word(r, r->cq_tail), value); }

// The trigger of the CPU: one store and loads, no system call. Returns 0, or -1 after a second without a completion.
int kit_ring_drive(struct ring *r, uint32_t sq_tail, uint32_t cq_tail) {
    uint32_t last = load(word(r, r->cq_tail));
    uint64_t t = now_ns();
    store(word(r, r->sq_tail), sq_tail);
    while ((int32_t)(load(word(r, r->cq_tail)) - cq_tail) < 0) {
        if (load(word(r, r->cq_tail)) != last) last = load(word(r, r->cq_tail)), t = now_ns();
        if (now_ns() - t > PATIENCE_NS) return -1;
    }
    return 0;
}

// Takes n completions and returns how many are not of so many bytes.
uint32_t kit_ring_reap(struct ring *r, uint32_t n, uint32_t bytes) {
    uint32_t head = load(word(r, r->cq_head)), bad = 0;
    const struct io_uring_cqe *q = (const struct io_uring_cqe *)(r->memory + r->cqes);
    for (uint32_t i = 0; i < n; i++) bad += q[(head + i) & r->cq_mask].res != (int32_t)bytes;
    store(word(r, r->cq_head), head + n);
    return bad;
}

// Pool and data.

struct pool {
    const uint64_t *offsets;
    uint8_t *data;
    uint32_t n, bytes, next, bad;
    int file;
};

static void *reader(void *arg) {
    struct pool *p = arg;
    for (uint32_t i; (i = __atomic_fetch_add(&p->next, 1, __ATOMIC_RELAXED)) < p->n;)
        if (pread(p->file, p->data + (uint64_t)i * p->bytes, p->bytes, (off_t)p->offsets[i]) != (ssize_t)p->bytes) __atomic_fetch_add(&p->bad, 1, __ATOMIC_RELAXED);
    return NULL;
}

// The same reads by threads. Returns how many failed, or the negative errno.
int kit_pread(const char *path, const uint64_t *offsets, uint32_t n, uint32_t bytes, int threads, uint8_t *data) {
    struct pool p = {.offsets = offsets, .data = data, .n = n, .bytes = bytes, .file = open(path, O_RDONLY | O_DIRECT | O_CLOEXEC)};
    pthread_t ids[64];
    int started = 0;
    if (p.file < 0) return -errno;
    while (started < threads && started < 64 && !pthread_create(&ids[started], NULL, reader, &p)) started++;
    for (int i = 0; i < started; i++) pthread_join(ids[i], NULL);
    close(p.file);
    return started ? (int)p.bad : -EAGAIN;
}

// Each word of the file holds its own offset.
void kit_fill(uint64_t *data, uint64_t offset, uint64_t bytes) {
    for (uint64_t i = 0; i < bytes / 8; i++) data[i] = offset + 8 * i;
}

// How many of the blocks are not what lies at their offsets; every word is compared.
uint32_t kit_wrong(const uint64_t *data, const uint64_t *offsets, uint32_t n, uint32_t bytes) {
    uint32_t wrong = 0;
    for (uint32_t i = 0; i < n; i++) {
        uint64_t differs = 0;
        for (uint32_t k = 0; k < bytes / 8; k++) differs |= data[(uint64_t)i * (bytes / 8) + k] ^ (offsets[i] + 8 * k);
        wrong += differs != 0;
    }
    return wrong;
}
