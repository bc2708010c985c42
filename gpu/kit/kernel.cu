// kernel.cu: one warp drives one ring: it writes the entries, stores the tail, reads the completions. nvcc and NVRTC compile it for the
// GPU; fakecuda.c includes it, and it is a warp of one lane there.
typedef unsigned int u32;
typedef unsigned long long u64;

#ifdef __CUDACC__
#define DEVICE static __device__ __forceinline__
#define KERNEL extern "C" __global__
#define LANE (threadIdx.x)
#define LANES 32
DEVICE u32 load_acquire(const u32 *p) { u32 v; asm volatile("ld.acquire.sys.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory"); return v; }
DEVICE void store_release(u32 *p, u32 v) { asm volatile("st.release.sys.u32 [%0], %1;" :: "l"(p), "r"(v) : "memory"); }
DEVICE u32 of_leader(u32 v) { return __shfl_sync(~0u, v, 0); }
DEVICE u32 sum(u32 v) { for (int i = 16; i; i /= 2) v += __shfl_xor_sync(~0u, v, i); return v; }
DEVICE void together(void) { __syncwarp(); }
DEVICE void relax(void) { __nanosleep(100); }
#else
#define DEVICE static inline
#define KERNEL
#define LANE 0u
#define LANES 1
DEVICE u32 load_acquire(const u32 *p) { return __atomic_load_n(p, __ATOMIC_ACQUIRE); }
DEVICE void store_release(u32 *p, u32 v) { __atomic_store_n(p, v, __ATOMIC_RELEASE); }
DEVICE u32 of_leader(u32 v) { return v; }
DEVICE u32 sum(u32 v) { return v; }
DEVICE void together(void) {}
DEVICE void relax(void) { __builtin_ia32_pause(); }
#endif

struct sqe { u64 head, off, addr, len, user_data, rest[3]; };
struct cqe { u64 user_data; int res; u32 flags; };

// In pinned memory. Pointers are the device's, addr and offsets are what the ring's owner means.
struct job {
    u32 *sq_head, *sq_tail, *cq_head, *cq_tail;
    struct sqe *sqes;
    const struct cqe *cqes;
    const u64 *offsets; // in the file
    u64 addr;           // of the data
    u64 patience;       // empty polls
    u32 sq_mask, cq_mask, n, bytes, depth, abort, status, errors;
};

enum { READ_FIXED_OF_FILE_0 = 4 | 1 << 8, DONE = 1, GAVE_UP = 2 };

// Loads and stores only. The leader alone stores and loads words of the other side, each of which has one writer.
KERNEL void issue(struct job *j) {
    u32 n = j->n, bytes = j->bytes, tail = load_acquire(j->sq_tail), seen = load_acquire(j->cq_head), next = 0, done = 0, bad = 0, status = DONE;
    u64 idle = 0;
    while (done < n) {
        u32 room = j->sq_mask + 1 - (tail - of_leader(LANE ? 0 : load_acquire(j->sq_head)));
        u32 k = n - next;
        if (k > j->depth - (next - done)) k = j->depth - (next - done);
        if (k > room) k = room;
        for (u32 i = LANE; i < k; i += LANES) {
            struct sqe *s = &j->sqes[(tail + i) & j->sq_mask];
            s->head = READ_FIXED_OF_FILE_0;
            s->off = j->offsets[next + i];
            s->addr = j->addr + (u64)(next + i) * bytes;
            s->len = bytes;
            s->user_data = next + i;
            s->rest[0] = s->rest[1] = s->rest[2] = 0;
        }
        together();
        tail += k;
        next += k;
        if (k && LANE == 0) store_release(j->sq_tail, tail);
        u32 ready = of_leader(LANE ? 0 : load_acquire(j->cq_tail));
        if (ready == seen) {
            if (++idle > j->patience || of_leader(LANE ? 0 : load_acquire(&j->abort))) {
                status = GAVE_UP;
                break;
            }
            relax();
            continue;
        }
        idle = 0;
        for (u32 i = LANE; i < ready - seen; i += LANES)
            bad += *(const volatile int *)&j->cqes[(seen + i) & j->cq_mask].res != (int)bytes;
        together();
        done += ready - seen;
        seen = ready;
        if (LANE == 0) store_release(j->cq_head, seen);
    }
    bad = sum(bad);
    if (LANE == 0) {
        j->errors = bad;
        store_release(&j->status, status);
    }
}
