// Package kit is what the benchmarks of cascade-bench have in common: turns,
// figures, the machine they were taken on, values whose bytes never repeat, and
// processes that are started for a measurement.
//
// Both sides of a comparison take turns, so that whatever else the machine does
// affects them alike, and another side goes first in each round. The ratio
// within a round is what counts; its median over the rounds is reported, with
// everything it was made of.
//
// Glossary
//
//	way    one side of a comparison, or one of several things that are measured
//	round  each way once, one after the other
//	stamp  the first 16 bytes of a value, different each time it is stored, so
//	       that deduplication never applies
//
// Values are outside the Go heap. The package tunes nothing, keeps no history
// and judges no figure: limits belong to its callers.
package kit
