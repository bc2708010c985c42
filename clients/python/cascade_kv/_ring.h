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
    uint32_t *notes; /* in halves of words; NULL: there is no room for notes */
    uint64_t mask;   /* of halves */
} Ring;

/* A note that is being written: of the keys of a look-up, in order. Nobody reads it before its end. */
typedef struct {
    Ring *ring; /* NULL: it is not written */
    uint64_t begin, here, at; /* of its halves: the first, the first that says which keys are here, the next */
    uint32_t keys, noted;
} Note;

enum { NOTE_KEYS = 4096 }; /* of a note, at most */
typedef enum { CONTAINED = 1, PROBED = 2, READ_MISSED = 3 } NoteKind;

/* Takes a mapping of at least RING_HEADER bytes for a ring; 0 if it is none of this version. */
int ring_begin(Ring *r, uint8_t *mem, size_t bytes);

/* Tells that the block of a place of the table number was read. */
void ring_touch(Ring *r, uint64_t number, uint32_t place);

/* Makes a namespace the one that look-ups are counted of. */
void ring_use(Ring *r, const char *ns, size_t n);

/* Counts names that were looked for, those of them that were found, and reads that found nothing. */
void ring_count(Ring *r, uint64_t asked, uint64_t found, uint64_t missed);

/* Begins a note of so many keys of the namespace in use, or of the first NOTE_KEYS of them. */
Note note_begin(Ring *r, size_t keys);

/* Adds a key that the table has at a place, or one that it has not, by what policies know it by. */
void note_here(Note *n, uint32_t place);
void note_missing(Note *n, uint64_t print);

/* Ends a note that has all its keys: of places in the table number. now is in ns since 1970. */
void note_end(Note *n, NoteKind kind, uint64_t number, int64_t now);

#endif
