#include "_ring.h"

#include <string.h>

#include "_table.h"

enum { OFF_VERSION = 8, OFF_SLOTS = 12, OFF_HEAD = 64, OFF_SPACES = 72 };
enum { COUNT_BYTES = 256, COUNT_FOUND = 8, COUNT_MISSED = 16, COUNT_NAME = 24, COUNT_TEXT = 28 };

int ring_begin(Ring *r, uint8_t *mem, size_t bytes) {
    uint64_t slots = word32(mem + OFF_SLOTS), spaces = word32(mem + OFF_SPACES);
    if (memcmp(mem, "CASCTCH1", 8) || word32(mem + OFF_VERSION) != 1 || !slots || RING_HEADER + 8 * slots + COUNT_BYTES * spaces > bytes)
        return 0;
    *r = (Ring){mem, bytes, slots, (uint32_t)spaces, NULL};
    return 1;
}

void ring_touch(Ring *r, uint64_t number, uint32_t place) {
    if (!r->mem)
        return;
    uint64_t *head = (uint64_t *)(r->mem + OFF_HEAD), n = __atomic_load_n(head, __ATOMIC_RELAXED);
    uint64_t *slot = (uint64_t *)(r->mem + RING_HEADER) + n % r->slots;
    __atomic_store_n(slot, number << 32 | place, __ATOMIC_RELAXED);
    __atomic_store_n(head, n + 1, __ATOMIC_RELEASE);
}

/* Readers of one connection share its ring, so whose a place is is read there. */
void ring_use(Ring *r, const char *ns, size_t n) {
    r->counts = NULL;
    if (!r->mem || !n || n > COUNT_BYTES - COUNT_TEXT)
        return;
    uint8_t *at = r->mem + RING_HEADER + 8 * r->slots;
    for (uint32_t i = 0; i < r->spaces; i++, at += COUNT_BYTES) {
        uint32_t *length = (uint32_t *)(at + COUNT_NAME), have = __atomic_load_n(length, __ATOMIC_RELAXED);
        if (!have) {
            memcpy(at + COUNT_TEXT, ns, n);
            __atomic_store_n(length, (uint32_t)n, __ATOMIC_RELEASE);
        } else if (have != n || memcmp(at + COUNT_TEXT, ns, n))
            continue;
        r->counts = at;
        return;
    }
}

static void add(uint8_t *p, uint64_t n) {
    uint64_t *count = (uint64_t *)p;
    __atomic_store_n(count, __atomic_load_n(count, __ATOMIC_RELAXED) + n, __ATOMIC_RELAXED);
}

void ring_count(Ring *r, uint64_t asked, uint64_t found, uint64_t missed) {
    if (!r->counts)
        return;
    add(r->counts, asked);
    add(r->counts + COUNT_FOUND, found);
    add(r->counts + COUNT_MISSED, missed);
}
