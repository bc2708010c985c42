// tsan.c: host, device and engine of one region as threads, for ThreadSanitizer. Built with GIO_WEAKEN=n one access has no order,
// and the sanitizer has to report it.
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../gio.h"

enum { NUM = 16, DEPTH = 2, ROUNDS = 40, BYTES = 64 };

static struct gio_header *h;
static unsigned char file[NUM * BYTES], *data;

static void *device(void *unused) {
    gio_device_run(h);
    return unused;
}

static void *engine(void *unused) {
    gio_u32 head[DEPTH] = {0}, tail[DEPTH] = {0};
    while (!gio_load_acquire(0, &h->stop.value)) {
        for (gio_u32 i = 0; i < DEPTH; i++) {
            struct gio_rings *r = gio_slot_rings(h, i);
            gio_u32 end = gio_load_acquire(GIO_SITE_ENGINE_TAKE, &r->sq_tail), n = end - head[i];
            for (gio_u32 k = n; k-- > 0;) { // the youngest first
                struct gio_sqe s = gio_slot_sqes(h, i)[(head[i] + k) & (NUM - 1)];
                unsigned char *at = data + (s.addr - h->buffer[0].address);
                if (s.opcode == GIO_OP_WRITE_FIXED) memcpy(file + s.offset, at, s.len);
                else memcpy(at, file + s.offset, s.len);
                gio_slot_cqes(h, i)[tail[i]++ & (2 * NUM - 1)] = (struct gio_cqe){s.user_data, (gio_i32)s.len, 0};
                gio_store_release(GIO_SITE_ENGINE_COMPLETE, &r->cq_tail, tail[i]);
            }
            head[i] = end;
        }
    }
    return unused;
}

static gio_u32 issued, reaped, base[DEPTH];

static void issue(gio_u32 i, int op, int event, gio_u32 value) {
    struct gio_iocb *b = gio_slot_iocb(h, i);
    b->num_ioctx = NUM, b->op = (gio_u32)op, b->window = op == GIO_READ ? 3 : 0, b->event_word = (gio_u32)event, b->event_value = value, b->base = base[i], b->failed = 0;
    for (gio_u32 k = 0; k < NUM; k++)
        gio_slot_ioctx(h, i)[k] = (struct gio_ioctx){(i * NUM + k) * BYTES, BYTES, 0, k * BYTES, BYTES, 0};
    gio_prepare(h, i);
    base[i] += NUM;
    h->sq[issued++ & (GIO_MAX_DEPTH - 1)] = i;
    gio_store_release(GIO_SITE_HOST_ISSUE, &h->sq_tail.value, issued);
}

static int wait_for(gio_u32 i) {
    while (gio_load_acquire(GIO_SITE_HOST_CQ, &h->cq_tail.value) == reaped) gio_relax();
    return h->cq[reaped++ & (GIO_MAX_DEPTH - 1)] == i && !gio_slot_iocb(h, i)->failed;
}

int main(void) {
    gio_u32 slot = 3 * GIO_PAGE;
    h = calloc(1, GIO_PAGE + DEPTH * slot);
    data = calloc(DEPTH * NUM, BYTES);
    h->depth = DEPTH, h->num_ioctx = NUM, h->slot_bytes = slot, h->sqes_offset = GIO_PAGE, h->iocb_offset = 2 * GIO_PAGE;
    h->buffer[0].address = 1 << 20;
    pthread_t d, e;
    pthread_create(&d, NULL, device, NULL);
    pthread_create(&e, NULL, engine, NULL);
    int wrong = 0;
    for (gio_u32 round = 1; round <= ROUNDS; round++) {
        issue(0, GIO_WRITE, 5, round);
        for (int i = 0; i < NUM * BYTES; i++) data[i] = (unsigned char)(round + (gio_u32)i); // after it was issued: the event orders it
        gio_store_release(GIO_SITE_HOST_EVENT, &h->event[5].value, round);
        wrong += !wait_for(0);
        issue(1, GIO_READ, GIO_NO_EVENT, 0);
        wrong += !wait_for(1);
        wrong += memcmp(data, data + NUM * BYTES, NUM * BYTES) != 0;
    }
    gio_store_release(0, &h->stop.value, 1);
    pthread_join(d, NULL);
    pthread_join(e, NULL);
    printf("%d wrong\n", wrong);
    return wrong != 0;
}
