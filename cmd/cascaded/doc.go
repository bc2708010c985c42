// Cascaded runs one rank in the foreground: it reads the configuration, opens
// the tiers, listens, and on SIGTERM writes what is in memory only to lustre
// and exits.
//
// Its words are those of internal/rank.
//
// Exit status: 0 after a drain, 1 for anything that failed, a drain cut short
// by a later signal included, 2 for a wrong command line or configuration.
//
// This is the command line, the log and the exit status only: a rank's life is in
// internal/rank. The program does not go into the background, watch over itself or
// start other ranks.
package main
