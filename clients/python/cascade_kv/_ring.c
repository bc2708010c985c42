#include "_ring.h"

#include <string.h>

#include "_table.h"

enum { OFF_VERSION = 8, OFF_SLOTS = 12, OFF_HEAD = 64, OFF_SPACES = 72, OFF_NOTES = 76, OFF_NOTED = 80 };
enum { NOTE_HEAD = 3, NOTE_LIMIT = NOTE_HEAD + NOTE_KEYS / 64 + NOTE_KEYS }; /* words of a note */
enum { COUNT_BYTES = 256, COUNT_FOUND = 8, COUNT_MISSED = 16, COUNT_NAME = 24, COUNT_TEXT = 28 };

int ring_begin(Ring *r, uint8_t *mem, size_t bytes) {
    uint64_t slots = word32(mem + OFF_SLOTS), spaces = word32(mem + OFF_SPACES), words = word32(mem + OFF_NOTES);
    uint64_t notes = RING_HEADER + 8 * slots + COUNT_BYTES * spaces;
    if (memcmp(mem, "CASCTCH1", 8) || word32(mem + OFF_VERSION) != 1 || !slots || words & (words - 1) || notes + 8 * words > bytes)
        return 0;
    *r = (Ring){mem, bytes, slots, (uint32_t)spaces, NULL, words >= 4 * NOTE_LIMIT ? (uint32_t *)(mem + notes) : NULL, 2 * words - 1};
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

Note note_begin(Ring *r, size_t keys) {
    if (!keys || !r->counts || !r->notes)
        return (Note){0};
    Note n = {.ring = r, .keys = keys < NOTE_KEYS ? (uint32_t)keys : NOTE_KEYS};
    n.begin = 2 * __atomic_load_n((uint64_t *)(r->mem + OFF_NOTED), __ATOMIC_RELAXED);
    n.here = n.at = n.begin + 2 * NOTE_HEAD;
    for (uint32_t i = 0; i < 2 * ((n.keys + 63) / 64); i++)
        __atomic_store_n(r->notes + (n.at++ & r->mask), 0, __ATOMIC_RELAXED);
    return n;
}

static void put_half(Note *n, uint32_t v) { __atomic_store_n(n->ring->notes + (n->at++ & n->ring->mask), v, __ATOMIC_RELAXED); }

static int next_key(Note *n) { return n->ring && n->noted < n->keys; }

void note_here(Note *n, uint32_t place) {
    if (!next_key(n))
        return;
    uint32_t *bits = n->ring->notes + ((n->here + n->noted / 32) & n->ring->mask);
    __atomic_store_n(bits, __atomic_load_n(bits, __ATOMIC_RELAXED) | 1u << n->noted % 32, __ATOMIC_RELAXED);
    put_half(n, place);
    n->noted++;
}

void note_missing(Note *n, uint64_t print) {
    if (!next_key(n))
        return;
    put_half(n, (uint32_t)print);
    put_half(n, (uint32_t)(print >> 32));
    n->noted++;
}

void note_end(Note *n, NoteKind kind, uint64_t number, int64_t now) {
    Ring *r = n->ring;
    if (!r || n->noted != n->keys)
        return;
    if (n->at & 1)
        put_half(n, 0);
    uint64_t end = n->at / 2, space = (uint64_t)(r->counts - (r->mem + RING_HEADER + 8 * r->slots)) / COUNT_BYTES;
    n->at = n->begin;
    put_half(n, n->keys | (uint32_t)space << 16 | (uint32_t)kind << 24);
    put_half(n, (uint32_t)__atomic_load_n((uint64_t *)(r->mem + OFF_HEAD), __ATOMIC_RELAXED));
    put_half(n, (uint32_t)now);
    put_half(n, (uint32_t)((uint64_t)now >> 32));
    put_half(n, (uint32_t)number);
    put_half(n, 0);
    __atomic_store_n((uint64_t *)(r->mem + OFF_NOTED), end, __ATOMIC_RELEASE);
}
