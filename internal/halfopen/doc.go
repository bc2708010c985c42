// Package halfopen bounds the connections whose other side has not proved yet
// who it is.
//
// Glossary
//
//	half-open  accepted, and not proved
//	network    where a connection comes from, as coarsely as one machine can
//	           choose its own address: an IPv4 address, an IPv6 /64, or all of
//	           loopback
//
// A full table makes room for the next connection and never lets it wait: a
// stranger who holds connections open takes the places of strangers only, as
// long as honest peers prove themselves sooner than a flood goes through the
// table. The package reads and writes no byte and sets no deadline.
package halfopen
