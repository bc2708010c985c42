// Package server is the rank's front: a unix socket and TCP for clients, HTTP
// on loopback for operators. It turns bytes into calls of cascade/ and answers
// back; docs/protocol.md says what is spoken.
//
// Glossary
//
//	conn         one client connection: a goroutine, a parser, a reply buffer
//	database     n of SELECT n; its keys live in the namespace redis/n
//	pair         <k>kv_bytes and <k>metadata, the two halves of one LMCache
//	             chunk: the second is bound to the first
//	fixed-length LMCache's C++ client, which counts reply bytes instead of
//	             reading them
//	view         a block that a client reads in place, in the arena that it maps
//	stage        room in the arena that a client fills
//	pin          a block that stays in memory as long as a client wants
//	held         views, stages and pins; the budget bounds them
//	peer         the process at the other end, known by its user id
//	transfer     blocks on their way between a client's memory, its region
//	             (internal/region), and the store
//	job          a transfer that runs beside its connection
//	turn         what a transfer moves before others get the worker
//	bounce       memory that the bytes of arriving values pass through, in the
//	             core's cache
//	watch        to look for what a client sends next instead of going to sleep
//	stranger     a connection that has not authenticated, where a password is set
//	owner        the rank's own user, on the unix socket
//	halt         a time in which connections rest between two commands, so that
//	             another program can take over (internal/handover)
//
// Values pass from socket to tier memory through a bounce, and from there to the
// socket directly. Only the first 64 KiB of one that arrives may be on the Go heap,
// until there is room for all of it. The package keeps no blocks, decides no
// placement and reads no configuration files.
package server
