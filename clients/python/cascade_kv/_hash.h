/* Hashes of names, checksums, and copies that checksum what they copy. Each has a portable form and those of better processors. */
#ifndef CASCADE_HASH_H
#define CASCADE_HASH_H

#include <stddef.h>
#include <stdint.h>

/* Must be called once, before anything else. */
void hash_init(void);

/* xxHash64 with seed 0. */
uint64_t xxhash64(const uint8_t *p, size_t n);

/* Extends a SHA-256 state by whole blocks of 64 bytes. */
extern void (*sha256_blocks)(uint32_t state[8], const uint8_t *p, size_t blocks);

/* Copies n bytes and returns the CRC32C of what preceded them, crc, and them. */
extern uint32_t (*copy_crc)(uint32_t crc, uint8_t *restrict dst, const uint8_t *restrict src, size_t n);

/* The same past the processor's caches: for much that is not read again soon. */
extern uint32_t (*move_crc)(uint32_t crc, uint8_t *restrict dst, const uint8_t *restrict src, size_t n);

/* The CRC32C alone. Writes nowhere. */
extern uint32_t (*read_crc)(uint32_t crc, const uint8_t *p, size_t n);

#endif
