// Package fabrictest is the one conformance suite that every fabric passes.
//
// Glossary
//
//	remote   the suite's end of that service: it sends the peer commands
//
// Peers may live in other processes: their owner serves NewPeer and waits for
// Peer.Quit. A fabric's own test calls Run with the client's fabric and the
// list of peers; everything the interface in package fabric states is then
// tried. A peer scribbles over a block as soon as it is evicted and not held,
// so a fabric that reads bytes it does not hold is caught.
//
// The suite knows no fabric and measures no speed. It does not test what is
// particular to one: frames, handshakes, lost messages, dead processes.
package fabrictest
