// Package load brings blocks to this rank: from its cold tier, from the memory of
// other ranks, and from segments that others left; and up to where requests read them,
// from the memory tier below that (residency.Ladder.Deep). Each is read once, for all
// who ask for it meanwhile, into a slot of residency.Ladder.Host where it is to
// stay, and else into a buffer. What was probed is prefetched.
//
// The package does not locate blocks: package others does.
//
// Glossary
//
//	landed  prefetched: here, in a buffer, before its get
package load
