// Package heed listens to the signals that a rank obeys from the moment at
// which this program can. A program that takes another one's place (upgrade) is
// sent them before it has begun: until it listens they end it, undrained, and Go
// unblocks whatever was held back over exec. So this is a package of its own, with
// a name that has it initialised as soon as os/signal is, before packages that
// take milliseconds.
//
// Glossary
//
//	heed   keep a signal that came until somebody asks for it
//	told   that a signal to end, SIGTERM or SIGINT, was among them
//	stop   give signals back to what the system does with them, with none of
//	       those before it left on the way
//
// The package does not say what signals mean, and ends nothing.
package heed
