// Package sim is a fabric inside one process, for tests and for the scale
// simulator: ranks without sockets, and a network that fails on request.
//
// Glossary
//
//	killed     a rank from and to which everything is lost, until its number
//	           joins again
//
// Time is that of package time, so inside testing/synctest it is virtual.
// Without delays nothing waits, no timer is made and no goroutine started: a
// handler runs on its caller's goroutine. So a Call ends at its deadline only if
// the handler obeys its context, as fabric.Handler demands; and a request whose
// caller gives up while it is on its way is not delivered.
//
// A read copies in two pieces and asks the handler for its hold twice, so that
// evictions under a read do happen here too.
//
// A rank takes another one for alive until SetPeer. The
// package does not model bandwidth: what a message takes does not grow with its
// size.
package sim
