// Package preflight checks whether a node can run a rank as configured. It is one
// list of checks: cascade doctor runs all of them, and a rank that starts runs
// those that are marked so, which use neither the network nor a shared file
// system and take milliseconds.
//
// The package changes nothing but for files that it makes to see whether it can
// and removes at once. It does not look at ranks that run.
package preflight
