// Package heed listens to the signals that a rank obeys from the moment at
// which this program can. A program that takes another one's place (upgrade) is
// sent them before it has begun: until it listens they end it, undrained, and Go
// unblocks whatever was held back over exec. So this is a package of its own, with
// a name that has it initialised as soon as os/signal is, before packages that
// take milliseconds.
//
// It does not say what signals mean.
package heed
