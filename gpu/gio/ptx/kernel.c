// kernel.c: the device of a region on a GPU: gio_device of gio.h for warps instead of a thread. kernel.ptx is made from it by clang
// (go generate), without CUDA. One block has 1 + depth warps, so that all of them run at the same time: the first follows SQ and CQ
// and has their words to itself; each other one drives the slot of one IOCB. Between them every word has one writer too.
#include "../gio.h"

// Of one slot, in device memory, zeroed by whoever launches.
struct gio_gpu_slot {
    struct gio_word start; // by the first warp: how often the IOCB was issued
    struct gio_word done;  // by the slot's warp: how often it has ended
    struct gio_word taken; // by the first warp: how often its end was passed on
    gio_u32 failed, first_failed;
    gio_i32 first_result;
    gio_u32 pad[13];
};

struct gio_gpu {
    struct gio_word over; // by the first warp: not 0 ends the others
    struct gio_gpu_slot slot[GIO_MAX_DEPTH];
};

// One thread, until the host stops it or nothing has happened for so many nanoseconds.
GIO_FN void gio_gpu_lead(struct gio_header *h, struct gio_gpu *g, gio_u64 patience) {
    gio_u32 seen = 0, ended = 0, depth = h->depth;
    gio_u64 since = gio_now();
    while (!gio_load_acquire(0, &h->stop.value) && gio_now() - since < patience) {
        gio_u32 tail = gio_load_acquire(GIO_SITE_SQ_TAIL, &h->sq_tail.value), happened = tail != seen;
        for (; seen != tail; seen++) {
            gio_u32 i = h->sq[seen & (GIO_MAX_DEPTH - 1)];
            if (i >= depth || g->slot[i].start.value != g->slot[i].taken.value) continue;
            gio_store_release_gpu(&g->slot[i].start.value, g->slot[i].start.value + 1);
        }
        for (gio_u32 i = 0; i < depth; i++) {
            struct gio_gpu_slot *s = &g->slot[i];
            if (s->start.value == s->taken.value || gio_load_acquire_gpu(&s->done.value) != s->start.value) continue;
            struct gio_iocb *b = gio_slot_iocb(h, i);
            s->taken.value = s->start.value, happened = 1;
            if (s->failed) b->failed = s->failed, b->first_failed = s->first_failed, b->first_result = s->first_result;
            b->ended++;
            h->cq[ended & (GIO_MAX_DEPTH - 1)] = i;
            gio_store_release(GIO_SITE_CQ_TAIL, &h->cq_tail.value, ++ended);
        }
        if (happened) since = gio_now();
        else gio_relax();
    }
}

// Of the first lane, after a load by it alone; what was released before the loaded value is visible to all lanes then.
GIO_FN gio_u32 gio_of_leader(gio_u32 v) {
    v = gio_of_lane(v, 0);
    gio_together();
    return v;
}

// One IOCB, from its event to its last completion. 0: the kernel ends.
GIO_FN int gio_gpu_serve(struct gio_header *h, struct gio_gpu *g, gio_u32 i, gio_u32 lane, gio_u32 *head) {
    struct gio_gpu_slot *s = &g->slot[i];
    struct gio_iocb *b = gio_slot_iocb(h, i);
    struct gio_rings *r = gio_slot_rings(h, i);
    gio_u32 mask = h->num_ioctx - 1, num = b->num_ioctx <= h->num_ioctx ? b->num_ioctx : 0, base = b->base, word = b->event_word, value = b->event_value;
    gio_u32 window = b->window && b->window < num ? b->window : num, published = 0, taken = 0, failed = 0, first_failed = 0, first_result = 0;
    while (word < GIO_EVENTS && (gio_i32)(gio_of_leader(lane ? 0 : gio_load_acquire(GIO_SITE_EVENT, &h->event[word].value)) - value) < 0) {
        if (gio_of_leader(lane ? 0 : gio_load_acquire_gpu(&g->over.value))) return 0;
        gio_relax();
    }
    for (gio_u32 k = lane; k < num; k += 32) gio_prepare_one(h, i, k);
    gio_together();
    while (taken < num) {
        gio_u32 limit = taken + window < num ? taken + window : num;
        if (published < limit) {
            published = limit;
            if (lane == 0) gio_store_release(GIO_SITE_SUBMIT, &r->sq_tail, base + published);
        }
        gio_u32 n = gio_of_leader(lane ? 0 : gio_load_acquire(GIO_SITE_COMPLETED, &r->cq_tail)) - *head;
        if (n == 0) {
            if (gio_of_leader(lane ? 0 : gio_load_acquire_gpu(&g->over.value))) return 0;
            gio_relax();
            continue;
        }
        if (n > 32) n = 32;
        if (n > num - taken) n = num - taken;
        gio_u32 k = 0, bad = 0;
        gio_i32 res = 0;
        if (lane < n) {
            const struct gio_cqe *e = &gio_slot_cqes(h, i)[(*head + lane) & (2 * mask + 1)];
            k = (gio_u32)e->user_data & mask, res = e->res;
            bad = res != (gio_i32)gio_slot_ioctx(h, i)[k].bytes;
        }
        for (gio_u32 m = gio_lanes_where(bad), from = 0; m; m >>= 1, from++) {
            if (!(m & 1)) continue;
            gio_u32 at = gio_of_lane(k, from), result = gio_of_lane((gio_u32)res, from);
            if (failed++ == 0) first_failed = at, first_result = result;
            if (lane == 0) b->failures[at / 32] |= 1u << at % 32;
        }
        *head += n, taken += n;
        gio_together();
        if (lane == 0) gio_store_relaxed(&r->cq_head, *head); // the next GIO_SITE_SUBMIT releases what the lanes read before
    }
    if (lane == 0) {
        s->failed = failed, s->first_failed = first_failed, s->first_result = (gio_i32)first_result;
        gio_store_release_gpu(&s->done.value, s->done.value + 1);
    }
    return 1;
}

__attribute__((nvptx_kernel)) void gio_device(struct gio_header *h, struct gio_gpu *g, gio_u64 patience) {
    gio_u32 thread = __nvvm_read_ptx_sreg_tid_x(), lane = thread & 31, head = 0, seen = 0;
    if (thread == 0) {
        gio_store_release(0, &h->device.value, GIO_DEVICE_RUNNING);
        if ((gio_u32)__nvvm_read_ptx_sreg_ntid_x() == 32 * (1 + h->depth)) gio_gpu_lead(h, g, patience);
        gio_store_release_gpu(&g->over.value, 1);
        gio_store_release(0, &h->device.value, GIO_DEVICE_ENDED);
    }
    if (thread < 32) return;
    gio_u32 i = thread / 32 - 1;
    if (i >= h->depth) return;
    for (;;) {
        if (gio_of_leader(lane ? 0 : gio_load_acquire_gpu(&g->slot[i].start.value)) != seen) {
            seen++;
            if (!gio_gpu_serve(h, g, i, lane, &head)) return;
        } else {
            if (gio_of_leader(lane ? 0 : gio_load_acquire_gpu(&g->over.value))) return;
            gio_relax();
        }
    }
}
