// Package identity is the names that clients in Go give to what they store, so that independent programs agree: of blocks,
// for engines that hand over tokens instead of keys, and of namespaces. docs/format.md has how they are computed;
// testdata/identity.json of package cascade has golden vectors, which an independent program has made.
//
// The package does not know blocks or their bytes, and keeps nothing: it is pure.
package identity
