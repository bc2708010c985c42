// Package lustretest shows on a real Lustre what the Lustre tier promises. It
// consists of tests only, which run guests (internal/testing/guest) and, in them, this
// same test binary as a program. `make test-lustre` runs it; elsewhere it skips.
//
// Glossary
//
//	program  what the binary does when CASCADE_GUEST_PROGRAM names it: storm,
//	         verify, commit, fill, pulse
//	point    one moment at which power is cut
//	outage   the time from a fault of the file system to its end; it ends only
//	         once every worker has had several requests answered in it
//	overdue  of an answer: how long after its deadline it came, without the time
//	         in which the guest itself stood still or was busy, which the program
//	         pulse shows
//	wrong    bytes other than those put
//
// Tests called TestReal… that look at CASCADE_LUSTRE run in a guest themselves,
// started there by tests of the host. docs/lustre.md lists which test shows what.
//
// The programs use package lustre as it is. The guest has one CPU and slow process
// switches, so the package measures no speed and looks for no races. No storm
// calls sync: on this guest it commits the servers' journals too.
package lustretest
