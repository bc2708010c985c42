// Cascaded runs one rank in the foreground: it reads the configuration, opens
// the tiers, listens, and on SIGTERM writes what is in memory only to lustre
// and exits.
//
// Glossary
//
//	rank       the running server; see rank.go for how it is put together
//	supervise  turn signals into calls of the rank
//	reload     SIGHUP: read the configuration again, apply what may change
//	upgrade    another program goes on in this process: upgrade.go
//
// Exit status: 0 after a drain, 1 for anything that failed, a drain cut short
// by a later signal included, 2 for a wrong command line or configuration.
//
// This is wiring only: what a rank does is in internal/server and cascade. The
// program does not go into the background, watch over itself or start other ranks.
package main
