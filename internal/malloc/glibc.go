//go:build cgo

package malloc

// #include <malloc.h>
// #include <stdlib.h>
// #include <string.h>
//
// #ifdef __GLIBC__
// static __attribute__((constructor)) void one_arena(void) {
// 	const char *tunables = getenv("GLIBC_TUNABLES");
// 	if (!getenv("MALLOC_ARENA_MAX") && !(tunables && strstr(tunables, "glibc.malloc.arena_max=")))
// 		mallopt(M_ARENA_MAX, 1);
// }
// #endif
import "C"
