// Package respbench compares SET and GET of a rank with those of redis-server:
// both are started on this machine and driven by the same client. The package
// does not judge its figures.
//
// Glossary
//
//	subject   a server that is measured: the rank, or redis-server
//	phase     one timed run of one operation on one subject
//	plain     a connection that waits in the kernel, in a thread of its own, as
//	          clients written in C++ do, so that the client costs little, and the
//	          same for both subjects
//	quiet     a subject has nothing left to do: no ids to complete, no CPU time
//	          used; every phase begins when both subjects are
//	CPU cost  seconds that the subject's process used from the start of a phase
//	          until it was quiet again, for each GB of values
package respbench
