/* What one client tells the rank of its reads and look-ups, in memory that it shares with it: docs/format.md, "The touch ring". */
#ifndef CASCADE_RING_H
#define CASCADE_RING_H

#include <stddef.h>
#include <stdint.h>

enum { RING_HEADER = 128 };

typedef struct {
    uint8_t *mem; /* NULL: nothing is told */
    size_t bytes;
    uint64_t slots;
    uint32_t spaces; /* namespaces of which look-ups can be counted */
    uint8_t *counts; /* of the namespace in use; NULL: it has no place */
} Ring;

/* Takes a mapping of at least RING_HEADER bytes for a ring; 0 if it is none of this version. */
int ring_begin(Ring *r, uint8_t *mem, size_t bytes);

/* Tells that the block of a place of the table number was read. */
void ring_touch(Ring *r, uint64_t number, uint32_t place);

/* Makes a namespace the one that look-ups are counted of. */
void ring_use(Ring *r, const char *ns, size_t n);

/* Counts names that were looked for, those of them that were found, and reads that found nothing. */
void ring_count(Ring *r, uint64_t asked, uint64_t found, uint64_t missed);

#endif
