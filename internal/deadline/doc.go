// Package deadline bounds how long one command of a client waits for the store, with all
// its calls together, so that the answer is there before the client gives up.
//
// Glossary
//
//	owed   of an answer: collected, to be sent with those of later commands
//
// The package starts no timers of its own and does not end commands: the contexts that
// it makes do.
package deadline
