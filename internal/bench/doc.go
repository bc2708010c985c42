// Package bench measures the rank against yardsticks on the same machine, in
// the same run: RESP against redis-server, Put against SHA-256 alone, reads
// between two ranks against the same transfers in C, and segments against one
// file per block and against fio.
//
// Both sides of a comparison take turns, so that whatever else the machine
// does hits them alike, and who goes first changes with each round. What
// counts is the ratio within a round; its median over the rounds is reported,
// and everything it was made of beside it.
//
// Glossary
//
//	subject    one side of a comparison: the rank, or redis-server
//	phase      one timed run of one operation against one subject
//	round      the phases of both subjects, one after the other
//	stamp      the first 16 bytes of a value, different in every SET, so that
//	           no bytes come twice and deduplication can not help
//	plain      a connection that waits in the kernel, in a thread of its own, as
//	           clients written in C++ do: the client is to cost little, and
//	           the same to both subjects
//	quiet      a subject has nothing left to do: no ids to complete, no CPU
//	           time used; every phase begins when all subjects are
//	CPU cost   seconds that the subject's process used from the start of a
//	           phase until it was quiet again, for each GB of values
//
// Values lie outside the Go heap. The package tunes nothing, keeps no history
// and judges no figure: limits belong to those who call it.
package bench
