// Package lustretest shows on a real Lustre what the Lustre tier promises. It
// consists of tests only, which run guests (internal/testing/guest) and, in them, this
// same test binary as a program. `make test-lustre` runs it; elsewhere it skips.
//
// Glossary
//
//	program  what the binary does when CASCADE_GUEST_PROGRAM names it: storm,
//	         verify, commit, fill, pulse
//	storm    workers that put, read and evict blocks through one tier as fast
//	         as they can
//	journal  what a storm knows to be durable, kept on the host, where the
//	         guest's death cannot reach it
//	point    one moment at which power is cut
//	outage   the time from a fault of the file system to its end; it ends only
//	         once every worker has had several requests answered in it
//	overdue  of an answer: how long after its deadline it came, without the time
//	         in which the guest itself stood still or was busy, which the program
//	         pulse tells
//	lost     acknowledged as durable, not evicted, and not to be found
//	wrong    bytes other than those put
//
// Tests called TestReal… that look at CASCADE_LUSTRE run in a guest themselves,
// started there by tests of the host. docs/lustre.md tells which test shows what.
//
// The programs use tiers/lustre as it is. The guest has one CPU and slow process
// switches, so the package measures no speed and looks for no races. No storm
// calls sync: on this guest it commits the servers' journals too.
package lustretest
