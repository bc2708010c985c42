// Package server is the rank's front: it answers the commands of clients on a unix
// socket and on TCP, by calls of cascade/; docs/protocol.md specifies them.
//
// Glossary
//
//	conn         one client connection: a goroutine, a parser, a reply buffer
//	database     n of SELECT n; its keys live in the namespace redis/n
//	pair         <k>kv_bytes and <k>metadata, the two halves of one LMCache
//	             chunk: the second is bound to the first
//	fixed-length LMCache's C++ client, which counts reply bytes instead of
//	             reading them
//	own client   one of the rank's own user, on the unix socket
//
// Values pass from the socket to tier memory, and from there to the socket, without a
// copy on the Go heap but of the first 64 KiB of one that arrives, until there is room
// for all of it. Sockets are those of internal/netio; who may come in is decided by
// internal/admission; regions and jobs are internal/transfer's, views, stages and pins
// internal/holdings'; HTTP is internal/admin's. The package keeps no blocks, decides no
// placement, and does not read configuration files.
package server
