// Package remotebench measures what a block costs that comes from another rank: two
// ranks over TCP on loopback, one of which has the blocks, the other of which is asked
// for them in batches. Counted is the processor time of both, as the kernel has it.
//
// Glossary
//
//	once     the first read of a block by the rank that is asked: nothing stays there
//	repeats  its second and third read; with the third one the block stays
//
// What the client takes does not count, nor do the puts. The package does not judge its
// figures, and measures no time: see fabricbench for rates.
package remotebench
