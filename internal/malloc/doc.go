// Package malloc makes all threads of a program that imports it share one arena
// of C's allocator. Programs import it for that effect; libraries do not.
//
// A program built with cgo keeps Pebble's block cache and memtables in memory
// of C. glibc gives every thread that asks for some an arena of its own, and
// what one arena has free no other can use; Go moves a goroutine from thread to
// thread, so that one cache lies in pieces in all of them. An index of five
// million blocks took 390 to 430 MiB so, and 130 with one arena, with the same
// times: Pebble asks for memory in large pieces and not often.
//
// It is set before Go's runtime starts, whose threads get arenas from the start
// and keep them. The environment decides where it has their number:
// MALLOC_ARENA_MAX, or glibc.malloc.arena_max in GLIBC_TUNABLES.
//
// The package has no functions. Where there is no cgo, or another C library
// than glibc, it does nothing: memory is Go's there, or has no arenas.
package malloc
