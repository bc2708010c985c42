// Package netio is the sockets of a server: it receives values straight into the
// memory where they stay, sends replies that refer to memory, and keeps many
// connections that wait without a thread each.
//
// Glossary
//
//	poller      waits for all connections between commands (epoll)
//	quiesce     a time in which connections rest between two commands and listeners
//	            accept nobody, so that another program can take over
//	stalled     said of a client that does not go on with what it has begun
//	watch       to look for what a client sends next instead of going to sleep
//	wide        said of a send buffer that holds a large reply as a whole
//	backlog     answers that are kept for a client that sends and does not read
//	pushback    bytes that are read before those of the socket
//	descriptor  an open file that comes or goes with bytes of a unix socket
//	            (SCM_RIGHTS)
//
// Large replies go out by reference where the kernel allows (vmsplice and splice);
// files of unix sockets are made where nobody else can replace them. The package does
// not parse what clients send, and decides nothing about who may.
package netio
