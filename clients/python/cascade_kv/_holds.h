/* What one connection holds of the arena, in the table that it shares with the rank: docs/format.md, "Holds". */
#ifndef CASCADE_HOLDS_H
#define CASCADE_HOLDS_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* What is in a slot by these holds. The size is kept here: what lies in shared memory is not believed. */
typedef struct {
    uint64_t number; /* 0: nothing */
    uint64_t size;
} Held;

typedef struct {
    uint8_t *mem; /* NULL: there are none. Others may share them, so which slots are free is read there */
    size_t bytes;
    uint32_t slots, next; /* next: where to look first for a slot that is free */
    Held *held;           /* by slot */
    uint64_t made;
    pid_t pid; /* whose they are: a forked child does not have the connection */
} Holds;

/* How many slots a table of so many bytes has, 0 if it is none of this version. */
uint32_t holds_slots(const uint8_t *mem, size_t bytes);

/* Takes a table that has slots over; held has room for as many. */
void holds_begin(Holds *h, uint8_t *mem, size_t bytes, Held *held);

/* Puts a block into a slot, and tells whether it could. What is loaded afterwards is loaded after that. */
int holds_take(Holds *h, uint64_t offset, uint64_t size, uint32_t *slot);

/* Whether the rank looks at them no more. */
int holds_ended(const Holds *h);

/* Empties a slot, after the last load of its block. */
void holds_give_back(Holds *h, uint32_t slot);

/* Empties the slot that got a number, unless it was emptied, and unless this is a forked child. */
void holds_let_go(Holds *h, uint64_t number);

#endif
