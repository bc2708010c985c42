#include "_table.h"

#include "_hash.h"

enum { SLOTS = 8 };
enum { OFF_VERSION = 8, OFF_BUCKETS = 12, OFF_SIZE = 16, OFF_NUMBER = 24, OFF_ARENA = 32, OFF_FEATURES = 40, OFF_OWNER = 64, OFF_STATE = 68, OFF_FINAL = 72 };
enum { USED = 1, OWNER_DIED = 1 << 30 };

int table_begin(Table *t, uint8_t *mem, size_t bytes) {
    uint32_t buckets = word32(mem + OFF_BUCKETS);
    uint32_t version = word32(mem + OFF_VERSION);
    if (memcmp(mem, "CASCIDX1", 8) || version < 1 || version > 2 || word32(mem + OFF_FEATURES) || !buckets || buckets & (buckets - 1) || word64(mem + OFF_SIZE) != bytes ||
        TABLE_HEADER + (uint64_t)buckets * LANE * (1 + SLOTS) != bytes)
        return 0;
    *t = (Table){mem, bytes, buckets - 1, word64(mem + OFF_NUMBER), word64(mem + OFF_ARENA)};
    return 1;
}

int table_alive(const Table *t) {
    __atomic_thread_fence(__ATOMIC_ACQUIRE);
    uint32_t owner = load32(t->mem + OFF_OWNER);
    return load32(t->mem + OFF_STATE) == USED && owner && !(owner & OWNER_DIED);
}

int table_final(const Table *t) { return load32(t->mem + OFF_FINAL) == 1; }

/* One whole version of an entry, if it is of this fingerprint. One whose writer does not come to its end, because it has lost its core, is
 * taken for one that the rank must be asked for: the name is there. */
static int read_entry(const uint8_t *p, const uint8_t print[16], Entry *e) {
    for (int tries = 0; tries < 64; tries++) {
        uint32_t seq = load32(p), kind = __atomic_load_n((const uint32_t *)(p + 4), __ATOMIC_RELAXED);
        uint64_t a = load64(p + 8), b = load64(p + 16), sizes = load64(p + 32);
        e->kind = (uint16_t)kind, e->tier = (uint16_t)(kind >> 16);
        e->expires = (int64_t)load64(p + 24);
        e->size = (uint32_t)sizes, e->crc = (uint32_t)(sizes >> 32);
        e->offset = load64(p + 40), e->record = load64(p + 48), e->uid = load64(p + 56);
        __atomic_thread_fence(__ATOMIC_ACQUIRE);
        if (!(seq & 1) && load32(p) == seq) {
            e->at = p, e->seq = seq;
            return kind && a == word64(print) && b == word64(print + 8);
        }
    }
    e->kind = BOUND;
    return 1;
}

static int find(const Table *t, const uint8_t print[16], Entry *e) {
    uint64_t tag = word64(print);
    if (!tag)
        tag = 1;
    const uint8_t *entries = t->mem + TABLE_HEADER + ((size_t)t->mask + 1) * LANE;
    for (int side = 0; side < 2; side++) {
        size_t bucket = word32(print + 8 + 4 * side) & t->mask;
        const uint8_t *tags = t->mem + TABLE_HEADER + bucket * LANE;
        for (size_t i = 0; i < SLOTS; i++)
            if (load64(tags + 8 * i) == tag && read_entry(entries + (bucket * SLOTS + i) * LANE, print, e)) {
                e->place = (uint32_t)(bucket * SLOTS + i);
                return 1;
            }
    }
    return 0;
}

Answer table_look(const Table *t, const uint8_t print[16], int sure, int64_t now, Entry *e) {
    if (!find(t, print, e))
        return sure ? MISS : ASK;
    if (e->kind == BOUND)
        return ASK;
    if (e->expires && now >= e->expires)
        return sure ? MISS : ASK;
    return HIT;
}

void table_prefetch(const Table *t, const uint8_t print[16]) {
    for (int side = 0; side < 2; side++)
        __builtin_prefetch(t->mem + TABLE_HEADER + (size_t)(word32(print + 8 + 4 * side) & t->mask) * LANE);
}

static const uint32_t SHA_START[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};

/* The hash of a namespace fills whole blocks. */
int namespace_set(Namespace *s, const char *ns, ptrdiff_t n) {
    if (s->bytes == n && !memcmp(s->ns, ns, (size_t)n))
        return 0;
    uint8_t room[2 + MAX_NAME + LANE] = {(uint8_t)n, (uint8_t)(n >> 8)};
    memcpy(room + 2, ns, (size_t)n);
    size_t blocks = ((size_t)n + 2 + LANE - 1) / LANE;
    memcpy(s->state, SHA_START, sizeof s->state);
    sha256_blocks(s->state, room, blocks);
    s->hashed = blocks * LANE;
    s->policy = 31 * xxhash64((const uint8_t *)ns, (size_t)n);
    memcpy(s->ns, ns, (size_t)n);
    s->bytes = n;
    return 1;
}

void fingerprint(const Namespace *s, const char *key, size_t n, uint8_t out[16]) {
    uint32_t state[8];
    uint8_t tail[2 * LANE] = {0};
    size_t whole = n / LANE, rest = n % LANE, blocks = rest < LANE - 8 ? 1 : 2;
    memcpy(state, s->state, sizeof state);
    if (whole)
        sha256_blocks(state, (const uint8_t *)key, whole);
    memcpy(tail, key + whole * LANE, rest);
    tail[rest] = 0x80;
    uint64_t bits = (s->hashed + n) * 8;
    for (int i = 0; i < 8; i++)
        tail[blocks * LANE - 1 - (size_t)i] = (uint8_t)(bits >> 8 * i);
    sha256_blocks(state, tail, blocks);
    for (int i = 0; i < 4; i++) {
        out[4 * i] = (uint8_t)(state[i] >> 24);
        out[4 * i + 1] = (uint8_t)(state[i] >> 16);
        out[4 * i + 2] = (uint8_t)(state[i] >> 8);
        out[4 * i + 3] = (uint8_t)state[i];
    }
}

uint64_t policy_print(const Namespace *s, const char *key, size_t n) {
    uint64_t sum = s->policy + xxhash64((const uint8_t *)key, n);
    return sum ? sum : 1;
}
