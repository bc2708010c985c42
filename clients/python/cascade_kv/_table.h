/* The table of a shared index as it lies in memory, and the fingerprints that it goes by: docs/format.md, "The shared index". */
#ifndef CASCADE_TABLE_H
#define CASCADE_TABLE_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum { LANE = 64, TIERS = 8, MAX_NAME = 1024, TABLE_HEADER = 4096 };
enum { IN_ARENA = 1, HERE = 2, BOUND = 3 };

typedef enum { MISS = 0, HIT = 1, ASK = 2 } Answer;

typedef struct {
    uint32_t place;
    uint16_t kind, tier;
    int64_t expires;
    uint32_t size, crc;
    uint64_t offset, record, uid;
    const uint8_t *at;
    uint32_t seq;
    uint32_t version; /* of the block's record, once it was looked at */
} Entry;

typedef struct {
    uint8_t *mem;
    size_t bytes;
    uint32_t mask;
    uint64_t number;
    uint64_t arena; /* bytes of the arena that entries point into */
} Table;

/* A namespace, and the hash of it by which the fingerprints of its names begin. */
typedef struct {
    char ns[MAX_NAME];
    ptrdiff_t bytes; /* -1: none yet */
    uint32_t state[8];
    uint64_t hashed;
    uint64_t policy; /* what the rank's policies know its names by, but for the key */
} Namespace;

/* Of memory that others write to. */
static inline uint32_t load32(const uint8_t *p) { return __atomic_load_n((const uint32_t *)p, __ATOMIC_ACQUIRE); }
static inline uint64_t load64(const uint8_t *p) { return __atomic_load_n((const uint64_t *)p, __ATOMIC_RELAXED); }

static inline uint32_t word32(const uint8_t *p) {
    uint32_t v;
    memcpy(&v, p, 4);
    return v;
}

static inline uint64_t word64(const uint8_t *p) {
    uint64_t v;
    memcpy(&v, p, 8);
    return v;
}

/* Takes a mapping of at least TABLE_HEADER bytes for a table; 0 if it is none of this version. */
int table_begin(Table *t, uint8_t *mem, size_t bytes);

/* Whether the table is in use, after everything that was loaded before. */
int table_alive(const Table *t);

/* Whether what is not in the table is nowhere. */
int table_final(const Table *t);

/* What is known of a name; sure is what table_final said, now in ns since 1970. */
Answer table_look(const Table *t, const uint8_t print[16], int sure, int64_t now, Entry *e);

/* Has the processor fetch what table_look reads first. */
void table_prefetch(const Table *t, const uint8_t print[16]);

/* n is at most MAX_NAME. Tells whether it was another one. */
int namespace_set(Namespace *s, const char *ns, ptrdiff_t n);

void fingerprint(const Namespace *s, const char *key, size_t n, uint8_t out[16]);

/* What the rank's policies know the name by. */
uint64_t policy_print(const Namespace *s, const char *key, size_t n);

#endif
