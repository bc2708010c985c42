// Package tcp is the fabric over TCP: the one without MPI, on which ranks may
// come and go. docs/protocol.md, "Between ranks: the TCP fabric", is the wire.
//
// Glossary
//
//	calls      the stream of a peer that carries all calls, many at a time
//	payloads   the streams of a peer that carry reads, one at a time each, so
//	           that no call waits behind a payload
//	greeting   what both sides send first; with a code (HMAC) over both greetings
//	           it proves that they have the job's secret
//	life       what is open of one incarnation of a peer, from when it
//	           is reported alive until it is reported gone
//	wire       the descriptor of a payload stream, outside of Go's poller, which
//	           would wake a thread for each piece of a payload that arrives
//
// Streams are opened when first needed. A read that ends early gives its stream
// up, so nothing is written to its memory afterwards and no error of this
// fabric is fabric.Lingering. After a failed attempt to open a stream the peer
// is left alone for a moment: operations fail at once with that attempt's error.
//
// The secret proves who opens a stream. What follows is neither encrypted nor
// signed: who can change packets on the cluster's network can change payloads.
// Where both ranks have an authority, MUNGE, they also prove to run as one user:
// who only got hold of the secret is not let in.
//
// This package does not find ranks or decide who is alive: dht/members has addresses
// and incarnations.
package tcp
