#include "_holds.h"

#include <string.h>
#include <unistd.h>

enum { OFF_VERSION = 8, OFF_SLOTS = 12, OFF_ALLOWANCE = 16, OFF_ENDED = 24, OFF_TAKEN = 64, OFF_HELD = 72, FIRST_SLOT = 128 };

static uint64_t *word(const Holds *h, size_t at) { return (uint64_t *)(h->mem + at); }
static uint64_t *slot_at(const Holds *h, uint32_t slot) { return word(h, FIRST_SLOT) + slot; }

static int ours(const Holds *h) { return h->mem && h->pid == getpid(); }

uint32_t holds_slots(const uint8_t *mem, size_t bytes) {
    uint32_t version, slots;
    if (bytes < FIRST_SLOT || memcmp(mem, "CASCHLD1", 8))
        return 0;
    memcpy(&version, mem + OFF_VERSION, 4);
    memcpy(&slots, mem + OFF_SLOTS, 4);
    return version == 1 && FIRST_SLOT + 8 * (uint64_t)slots <= bytes ? slots : 0;
}

void holds_begin(Holds *h, uint8_t *mem, size_t bytes, Held *held) {
    *h = (Holds){.mem = mem, .bytes = bytes, .slots = holds_slots(mem, bytes), .held = held, .pid = getpid()};
}

int holds_take(Holds *h, uint64_t offset, uint64_t size, uint32_t *slot) {
    if (!ours(h) || !offset || !size)
        return 0;
    uint64_t *held = word(h, OFF_HELD), *taken = word(h, OFF_TAKEN);
    uint64_t allowance = __atomic_load_n(word(h, OFF_ALLOWANCE), __ATOMIC_RELAXED);
    if (__atomic_add_fetch(held, size, __ATOMIC_RELAXED) <= allowance) {
        __atomic_fetch_add(taken, 1, __ATOMIC_RELAXED);
        for (uint32_t i = 0, s = h->next; i < h->slots; i++, s++) {
            if (s >= h->slots)
                s = 0;
            uint64_t none = 0, *at = slot_at(h, s);
            if (!__atomic_load_n(at, __ATOMIC_RELAXED) &&
                __atomic_compare_exchange_n(at, &none, offset, 0, __ATOMIC_SEQ_CST, __ATOMIC_RELAXED)) {
                /* The slot before what the caller loads. The rank stores that, has its fence, then loads the slots: one of the two sees what
                 * the other has stored. Without the fence the processor may load while the store still waits. */
                __atomic_thread_fence(__ATOMIC_SEQ_CST);
                h->held[s] = (Held){++h->made * h->slots + s, size};
                h->next = s + 1 < h->slots ? s + 1 : 0;
                *slot = s;
                return 1;
            }
        }
        __atomic_fetch_sub(taken, 1, __ATOMIC_RELEASE);
    }
    __atomic_fetch_sub(held, size, __ATOMIC_RELAXED);
    return 0;
}

int holds_ended(const Holds *h) { return __atomic_load_n((const uint32_t *)(h->mem + OFF_ENDED), __ATOMIC_ACQUIRE) != 0; }

void holds_give_back(Holds *h, uint32_t slot) {
    h->held[slot].number = 0;
    h->next = slot;
    __atomic_store_n(slot_at(h, slot), 0, __ATOMIC_RELEASE); /* after the last load of the block */
    __atomic_fetch_sub(word(h, OFF_HELD), h->held[slot].size, __ATOMIC_RELAXED);
    __atomic_fetch_sub(word(h, OFF_TAKEN), 1, __ATOMIC_RELEASE);
}

void holds_let_go(Holds *h, uint64_t number) {
    if (!number || !ours(h))
        return;
    uint32_t slot = (uint32_t)(number % h->slots);
    if (h->held[slot].number == number)
        holds_give_back(h, slot);
}
