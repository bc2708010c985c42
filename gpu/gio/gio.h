// gio.h: the ring of gpu/gio, as the host and a device see it. docs/gio.md has the layout in words. Memory is little-endian.
//
// One source for three compilers: cc for a CPU, clang --target=nvptx64-nvidia-cuda and nvcc for a GPU. What differs is the few
// accesses below. A test compiles this file and compares every offset with those of the Go structs.
#ifndef GIO_H
#define GIO_H

typedef unsigned char gio_u8;
typedef unsigned short gio_u16;
typedef unsigned int gio_u32;
typedef int gio_i32;
typedef unsigned long long gio_u64;

#define GIO_MAGIC 0x31304f4947534143ull // "CASGIO01"
#define GIO_VERSION 1

enum {
    GIO_PAGE = 4096,
    GIO_MAX_DEPTH = 64,     // IOCBs of a queue, entries of SQ and CQ
    GIO_MAX_IOCTX = 2048,   // IOCTXs of an IOCB
    GIO_MAX_BUFFERS = 16,   // pieces of data memory
    GIO_EVENTS = 32,        // words that a start can wait for
    GIO_NO_EVENT = -1,      // event_word of an IOCB that starts at once

    GIO_READ = 0, GIO_WRITE = 1,

    GIO_ENGINE_SERVING = 1, GIO_ENGINE_ENDED = 2,
    GIO_DEVICE_RUNNING = 1, GIO_DEVICE_ENDED = 2,
};

// A word with a cache line, and one writer, to itself.
struct gio_word { gio_u32 value, pad[15]; };

struct gio_buffer { gio_u64 address, bytes; }; // address: the engine's own, for gio_sqe.addr

// The first page.
struct gio_header {
    gio_u64 magic;
    gio_u32 version, depth, num_ioctx, slot_bytes, sqes_offset, iocb_offset, buffers, files;
    gio_u64 bytes;
    gio_u64 pad0[2];
    struct gio_word sq_tail;   // written by the host: IOCBs handed to the device
    struct gio_word cq_tail;   // written by the device: IOCBs that ended
    struct gio_word engine;    // written by the engine: GIO_ENGINE_*
    struct gio_word stop;      // written by the host: not 0 ends the device
    struct gio_word device;    // written by the device: GIO_DEVICE_*
    gio_u64 pad1[16];
    struct gio_buffer buffer[GIO_MAX_BUFFERS];
    gio_u32 sq[GIO_MAX_DEPTH]; // indexes of IOCBs
    gio_u32 cq[GIO_MAX_DEPTH];
    struct gio_word event[GIO_EVENTS];
    gio_u64 pad2[96];
};

// The kernel's struct io_rings: a slot begins with it, and 2 * num_ioctx completions follow.
struct gio_rings {
    gio_u32 sq_head, sq_tail, cq_head, cq_tail, sq_mask, cq_mask, sq_entries, cq_entries, sq_dropped, sq_flags, cq_flags, cq_overflow;
    gio_u64 pad[2];
};

// The kernel's struct io_uring_cqe and struct io_uring_sqe, of a read or write of a registered file and buffer.
struct gio_cqe { gio_u64 user_data; gio_i32 res; gio_u32 flags; };

struct gio_sqe {
    gio_u8 opcode, flags;
    gio_u16 ioprio;
    gio_i32 file;
    gio_u64 offset, addr;
    gio_u32 len, rw_flags;
    gio_u64 user_data;
    gio_u16 buffer, personality;
    gio_i32 splice;
    gio_u64 pad[2];
};

enum { GIO_OP_READ_FIXED = 4, GIO_OP_WRITE_FIXED = 5, GIO_SQE_FIXED_FILE = 1 };

// One I/O: the scatter entry, then what of which file.
struct gio_ioctx {
    gio_u64 address; // in the buffer
    gio_u32 length;  // of the memory
    gio_u32 id;      // of the buffer
    gio_u64 offset;  // in the file
    gio_u32 bytes;   // to read or write, at most length
    gio_u32 file;
};

struct gio_iocb {
    gio_u32 index, num_ioctx, op, window; // window: the most I/Os under way, 0 for all
    gio_u32 event_word;
    gio_u32 event_value;                  // it starts when (i32)(event - event_value) >= 0
    gio_u32 base;                         // tail of the slot's SQ before the IOCB's entries
    gio_u32 pad0;
    gio_u32 ended, failed;                // written by the device, as all below
    gio_i32 first_result;                 // of the first that failed: a negative errno, or bytes fewer than asked
    gio_u32 first_failed;
    gio_u64 pad1[2];
    gio_u32 failures[GIO_MAX_IOCTX / 32]; // bit i: IOCTX i failed
};

// Memory order. A mutated build of a test weakens one site to prove that it is looked at.
#ifndef GIO_WEAKEN
#define GIO_WEAKEN 0
#endif

#if defined(__NVPTX__) || defined(__CUDA_ARCH__)
#define GIO_FN static inline __attribute__((always_inline))
GIO_FN gio_u32 gio_load_acquire(int site, const gio_u32 *p) { gio_u32 v; (void)site; asm volatile("ld.acquire.sys.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory"); return v; }
GIO_FN void gio_store_release(int site, gio_u32 *p, gio_u32 v) { (void)site; asm volatile("st.release.sys.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory"); }
GIO_FN void gio_store_relaxed(gio_u32 *p, gio_u32 v) { asm volatile("st.relaxed.sys.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory"); }
GIO_FN void gio_relax(void) { asm volatile("nanosleep.u32 64;" ::: "memory"); }

// Among the warps of one kernel, in device memory.
GIO_FN gio_u32 gio_load_acquire_gpu(const gio_u32 *p) { gio_u32 v; asm volatile("ld.acquire.gpu.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory"); return v; }
GIO_FN void gio_store_release_gpu(gio_u32 *p, gio_u32 v) { asm volatile("st.release.gpu.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory"); }

// Within a warp, all of whose lanes call these together. gio_together orders memory among the lanes; a shuffle does not.
GIO_FN void gio_together(void) { asm volatile("bar.warp.sync 0xffffffff;" ::: "memory"); }
GIO_FN gio_u32 gio_of_lane(gio_u32 v, gio_u32 lane) { gio_u32 r; asm volatile("shfl.sync.idx.b32 %0, %1, %2, 31, 0xffffffff;" : "=r"(r) : "r"(v), "r"(lane) : "memory"); return r; }
GIO_FN gio_u32 gio_lanes_where(gio_u32 v) { gio_u32 r; asm volatile("{ .reg .pred p; setp.ne.u32 p, %1, 0; vote.sync.ballot.b32 %0, p, 0xffffffff; }" : "=r"(r) : "r"(v) : "memory"); return r; }
GIO_FN gio_u64 gio_now(void) { gio_u64 v; asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(v) :: "memory"); return v; } // nanoseconds
#else
#define GIO_FN static inline
GIO_FN gio_u32 gio_load_acquire(int site, const gio_u32 *p) { return site == GIO_WEAKEN ? __atomic_load_n(p, __ATOMIC_RELAXED) : __atomic_load_n(p, __ATOMIC_ACQUIRE); }
GIO_FN void gio_store_release(int site, gio_u32 *p, gio_u32 v) {
    if (site == GIO_WEAKEN) __atomic_store_n(p, v, __ATOMIC_RELAXED);
    else __atomic_store_n(p, v, __ATOMIC_RELEASE);
}
GIO_FN void gio_store_relaxed(gio_u32 *p, gio_u32 v) { __atomic_store_n(p, v, __ATOMIC_RELAXED); }
#if defined(__x86_64__)
GIO_FN void gio_relax(void) { __builtin_ia32_pause(); }
#else
GIO_FN void gio_relax(void) { asm volatile("" ::: "memory"); }
#endif
#endif

enum { // sites of GIO_WEAKEN: those of the device, then those of a host and an engine in C
    GIO_SITE_SQ_TAIL = 1, GIO_SITE_EVENT, GIO_SITE_SUBMIT, GIO_SITE_COMPLETED, GIO_SITE_CQ_TAIL,
    GIO_SITE_HOST_ISSUE, GIO_SITE_HOST_EVENT, GIO_SITE_HOST_CQ, GIO_SITE_ENGINE_TAKE, GIO_SITE_ENGINE_COMPLETE,
};

GIO_FN gio_u8 *gio_slot(struct gio_header *h, gio_u32 i) { return (gio_u8 *)h + GIO_PAGE + (gio_u64)i * h->slot_bytes; }
GIO_FN struct gio_rings *gio_slot_rings(struct gio_header *h, gio_u32 i) { return (struct gio_rings *)gio_slot(h, i); }
GIO_FN struct gio_cqe *gio_slot_cqes(struct gio_header *h, gio_u32 i) { return (struct gio_cqe *)(gio_slot(h, i) + sizeof(struct gio_rings)); }
GIO_FN struct gio_sqe *gio_slot_sqes(struct gio_header *h, gio_u32 i) { return (struct gio_sqe *)(gio_slot(h, i) + h->sqes_offset); }
GIO_FN struct gio_iocb *gio_slot_iocb(struct gio_header *h, gio_u32 i) { return (struct gio_iocb *)(gio_slot(h, i) + h->iocb_offset); }
GIO_FN struct gio_ioctx *gio_slot_ioctx(struct gio_header *h, gio_u32 i) { return (struct gio_ioctx *)(gio_slot_iocb(h, i) + 1); }

// The entry of one IOCTX. The engine checks it; nothing here does.
GIO_FN void gio_prepare_one(struct gio_header *h, gio_u32 i, gio_u32 k) {
    const struct gio_iocb *b = gio_slot_iocb(h, i);
    const struct gio_ioctx *c = gio_slot_ioctx(h, i) + k;
    struct gio_sqe *s = &gio_slot_sqes(h, i)[(b->base + k) & (h->num_ioctx - 1)];
    s->opcode = b->op == GIO_WRITE ? GIO_OP_WRITE_FIXED : GIO_OP_READ_FIXED, s->flags = GIO_SQE_FIXED_FILE, s->ioprio = 0;
    s->file = (gio_i32)c->file, s->offset = c->offset;
    s->addr = h->buffer[c->id & (GIO_MAX_BUFFERS - 1)].address + c->address, s->len = c->bytes, s->rw_flags = 0;
    s->user_data = k, s->buffer = (gio_u16)c->id, s->personality = 0, s->splice = 0, s->pad[0] = s->pad[1] = 0;
}

// Host: the entries of an IOCB whose IOCTXs are filled in.
GIO_FN void gio_prepare(struct gio_header *h, gio_u32 i) {
    for (gio_u32 k = 0; k < gio_slot_iocb(h, i)->num_ioctx; k++) gio_prepare_one(h, i, k);
}

// Device: memory alone, no system call, and no wait: a step does what can be done now.
struct gio_device_slot { gio_u32 state, num, base, window, published, taken, cq_head; }; // state: 0 idle, 1 waits for its event, 2 started

struct gio_device {
    struct gio_header *h;
    gio_u32 sq_seen, cq_tail, active;
    struct gio_device_slot slot[GIO_MAX_DEPTH];
};

GIO_FN void gio_device_finish(struct gio_device *d, gio_u32 i) {
    d->slot[i].state = 0, d->active--;
    gio_slot_iocb(d->h, i)->ended++;
    d->h->cq[d->cq_tail & (GIO_MAX_DEPTH - 1)] = i;
    gio_store_release(GIO_SITE_CQ_TAIL, &d->h->cq_tail.value, ++d->cq_tail);
}

GIO_FN void gio_device_take(struct gio_device *d, gio_u32 i) { // completions of slot i
    struct gio_device_slot *s = &d->slot[i];
    struct gio_rings *r = gio_slot_rings(d->h, i);
    struct gio_iocb *b = gio_slot_iocb(d->h, i);
    gio_u32 mask = d->h->num_ioctx - 1, tail = gio_load_acquire(GIO_SITE_COMPLETED, &r->cq_tail);
    if (tail == s->cq_head) return;
    for (; s->cq_head != tail && s->taken < s->num; s->cq_head++, s->taken++) {
        const struct gio_cqe *e = &gio_slot_cqes(d->h, i)[s->cq_head & (2 * mask + 1)];
        gio_u32 k = (gio_u32)e->user_data & mask;
        if (e->res == (gio_i32)gio_slot_sqes(d->h, i)[(s->base + k) & mask].len) continue;
        if (b->failed++ == 0) b->first_result = e->res, b->first_failed = k;
        b->failures[k / 32] |= 1u << k % 32;
    }
    gio_store_relaxed(&r->cq_head, s->cq_head); // the next GIO_SITE_SUBMIT releases what was read before
}

GIO_FN int gio_device_step(struct gio_device *d) { // whether anything happened
    struct gio_header *h = d->h;
    gio_u32 tail = gio_load_acquire(GIO_SITE_SQ_TAIL, &h->sq_tail.value), happened = tail - d->sq_seen;
    for (; d->sq_seen != tail; d->sq_seen++) {
        gio_u32 i = h->sq[d->sq_seen & (GIO_MAX_DEPTH - 1)];
        if (i >= h->depth || d->slot[i].state) continue;
        struct gio_device_slot *s = &d->slot[i];
        const struct gio_iocb *b = gio_slot_iocb(h, i);
        s->state = 1, s->num = b->num_ioctx <= h->num_ioctx ? b->num_ioctx : 0, s->base = b->base, s->published = s->taken = 0;
        s->window = b->window && b->window < s->num ? b->window : s->num, d->active++;
    }
    for (gio_u32 i = 0; d->active && i < h->depth; i++) {
        struct gio_device_slot *s = &d->slot[i];
        if (s->state == 1) {
            const struct gio_iocb *b = gio_slot_iocb(h, i);
            if (b->event_word < GIO_EVENTS && (gio_i32)(gio_load_acquire(GIO_SITE_EVENT, &h->event[b->event_word].value) - b->event_value) < 0) continue;
            s->state = 2;
        }
        if (s->state != 2) continue;
        gio_u32 taken = s->taken, limit = s->taken + s->window < s->num ? s->taken + s->window : s->num;
        if (s->published < limit) {
            s->published = limit, happened = 1;
            gio_store_release(GIO_SITE_SUBMIT, &gio_slot_rings(h, i)->sq_tail, s->base + s->published);
        }
        gio_device_take(d, i);
        happened |= s->taken != taken;
        if (s->taken == s->num) gio_device_finish(d, i), happened = 1;
    }
    return happened != 0;
}

// Until the host stops it.
GIO_FN void gio_device_run(struct gio_header *h) {
    struct gio_device d = {.h = h};
    gio_store_release(0, &h->device.value, GIO_DEVICE_RUNNING);
    while (!gio_load_acquire(0, &h->stop.value))
        if (!gio_device_step(&d)) gio_relax();
    gio_store_release(0, &h->device.value, GIO_DEVICE_ENDED);
}

#endif
