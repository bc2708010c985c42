// Package earlysignal catches the signals that a rank obeys from the moment at
// which a Go program can. A program that takes another one's place in its process
// (upgrade) may be sent some before main: until a handler is installed, SIGTERM
// would end the new binary without a drain, and Go unblocks whatever was held back
// over exec. So this is a package of its own, which is initialised right after
// os/signal, before packages that take milliseconds.
//
// Importing the package installs the handlers: only a program that reads Signals
// should.
//
// Glossary
//
//	early  before main and before the initialisation of most packages
//	stop   restore the default actions, with no signal lost on the way
//
// The package does not define what signals mean, and ends nothing.
package earlysignal
