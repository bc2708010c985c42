// Package netio is the sockets of a server: it receives values straight into the
// memory where they stay, sends replies that refer to memory, and keeps many
// connections that wait without a thread each.
//
// Glossary
//
//	poller      waits for all connections between commands (epoll)
//	delegate    to have the poller answer commands that take no wait, for the goroutine
//	            of a connection
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
//
// Six devices work around Go's scheduler, for clients in a loop. The rates of
// `cascade bench resp` without one of them, as parts of the rates with all, on a
// virtual machine of two cores (set and get by one connection, set and get by eight;
// medians of 11 alternating pairs):
//
//	                                   values of 42 KiB         of 2 MiB
//	watch in the middle of a value     0.99 1.02 1.03 0.98      0.96 1.02 1.00 0.97
//	watch for the next command         not done                 0.86 0.92 1.01 0.99
//	moveAway                           1.00 1.01 0.99 1.04      0.92 0.99 1.04 0.98
//	places that are kept               1.00 0.97 0.97 0.93      0.94 0.96 1.00 0.98
//	waits in the kernel with a thread  0.32 0.23 0.95 0.80      0.51 0.93 0.78 0.90
//	cpus.AllowWaiters                  0.98 0.98 0.90 1.03      1.02 1.04 0.94 0.87
//	all of them                        0.79 1.02 0.87 0.73      0.65 0.86 0.72 0.89
package netio
