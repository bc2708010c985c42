// Package cascade is the store: it decides where every block's bytes live, and
// moves them between tiers with CASCADE's two algorithms (Put: Algorithm 1, Get:
// Algorithm 2). It is the face of the packages below it, which docs/architecture.md
// lists: Open wires them together, and Store's methods are what their users call.
//
// Glossary
//
//	keep     hold a view or stage for as long as a client likes
//
// The package does not know sockets or configuration files, reads the clock only
// through its options, and keeps no block bytes of its own.
package cascade
